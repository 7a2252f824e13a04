"""Architecture files: what the array is, as data."""
