"""Architecture files: the description of an array, as data."""
