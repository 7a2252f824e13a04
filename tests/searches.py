"""Searches that run few of the candidates they find: for values, which are right under any mapping."""

from __future__ import annotations

from cnncc.mapper import cached_search, search

# Names in cnncc.mapper.search, and their values.
SHORT = {"RUNS": 4, "PATIENCE": 4, "POINTS": 100, "MOVING_POINTS": 20, "TILES": 200, "MOVING_TILES": 200}


def forget() -> None:
    """Drop what this process has found."""
    cached_search._found.clear()
    search.search.cache_clear()
