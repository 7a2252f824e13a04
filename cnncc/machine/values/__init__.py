"""The effect of instructions on memories and register files."""
