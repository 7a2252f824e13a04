"""Searches of other lengths than usual: short ones are for values, which are right under any mapping."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import pytest

from cnncc.arch.model import Arch
from cnncc.mapper import cached_search, layer_search, search
from cnncc.mapper.effort import Effort
from cnncc.mapper.search import Result
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling import residency, smaller_budgets
from cnncc.util import processors

SHORTEST = {"front_tiles": 0, "more": 1, "local_starts": 1}
SHORT = Effort(points=20, tiles=100, runs=2, streamed_points=10, streamed_tiles=100, patience=2, few_runs=2, **SHORTEST)
FEWEST = Effort(points=20, tiles=20, runs=1, streamed_points=20, streamed_tiles=20, patience=1, first=True, **SHORTEST)
SHORT_FRONTS = replace(SHORT, front_tiles=10, front_in_vain=2)
NO_END = 1 << 30
ENDLESS = Effort(
    streamed_points=NO_END, streamed_tiles=NO_END, patience=NO_END, few_runs=NO_END, twins=NO_END, one_point=NO_END,
    alike=NO_END,
)  # fmt: skip


def of_whole_space(shape: LayerShape, arch: Arch, budget: GlbBudget) -> Result | None:
    """The best of the whole space: a search that ends by itself, and looks at tiles with h and w exchanged, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "rows_are_columns", lambda shape: False)
        return search.search(shape, arch, budget, effort=ENDLESS)


def search_with(patch: pytest.MonkeyPatch, effort: Effort) -> None:
    """Have all searches but direct ones go on so long."""
    patch.setattr(layer_search, "USUAL", effort)


class Setattr(Protocol):
    """`setattr`, or that of a `pytest.MonkeyPatch`."""

    def __call__(self, target: object, name: str, value: object, /) -> None: ...


def search_first(setting: Setattr) -> None:
    """Have all searches run the first candidate that they find, for values, which are right under any mapping.

    Inputs and results that fit are resident. No process is started: it would search as usual.
    """
    setting(layer_search, "USUAL", FEWEST)
    setting(residency, "END_PART", 0)
    setting(smaller_budgets, "FIRST_SHARES", (8,))
    setting(processors, "usable", lambda: 1)


def forget() -> None:
    """Drop what this process has found."""
    cached_search._found.clear()
    search.search.cache_clear()
