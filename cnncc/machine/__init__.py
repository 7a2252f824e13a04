"""The reference machine: container, interpreter of values, interpreter of times."""
