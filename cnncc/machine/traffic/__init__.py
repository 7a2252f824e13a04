"""Counts of the words and operations of instructions."""
