"""What instructions do to memories and register files."""
