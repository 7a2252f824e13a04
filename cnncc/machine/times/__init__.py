"""The times of instructions."""
