"""When instructions happen."""
