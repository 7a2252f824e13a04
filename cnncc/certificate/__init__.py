"""Certificates: proven bounds of a network's mappings, and a checker that shares no code with the search."""
