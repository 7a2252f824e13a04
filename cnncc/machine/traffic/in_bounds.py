"""The number of positions inside bounds (rule DESC-3), counted index by index, not position by position."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from cnncc.numerics import Ints

# The most distinct positions on one axis while counting; the programs of networks need some hundreds.
_MOST_POSITIONS = 1 << 20


class BoundedIndex(NamedTuple):
    """An index that runs over [low, high) and adds `step` times itself to a position."""

    low: int
    high: int
    step: int

    @property
    def least(self) -> int:
        """The least that it adds."""
        return min(self.low * self.step, (self.high - 1) * self.step)

    @property
    def most(self) -> int:
        """The most that it adds."""
        return max(self.low * self.step, (self.high - 1) * self.step)


def count_inside(starts: Sequence[int], limit: int, indices: Sequence[BoundedIndex]) -> int:
    """The number of combinations of a start and indices with 0 <= start + Σ step * index < limit.

    The distinct positions and their multiplicities are updated index by index, longest steps first. A position is
    dropped once the remaining indices cannot lead it back inside.
    Raises: ValueError, for too many distinct positions.
    """
    least, most = sum(index.least for index in indices), sum(index.most for index in indices)
    if min(starts) + least >= 0 and max(starts) + most < limit:
        return len(starts) * prod(index.high - index.low for index in indices)
    at, often = np.unique(np.array(starts, np.int64), return_counts=True)
    # The last index is not spread: how many of its values lead inside is one division for each position.
    *ordered, last = sorted((index for index in indices if index.step), key=lambda index: -abs(index.step)) or [_ONE]
    for i, index in enumerate(ordered):
        rest = (*ordered[i + 1 :], last)
        low, high = -sum(index.most for index in rest), limit - sum(index.least for index in rest)
        at, often = _spread(at, often, index, low, high)
        if not at.size:
            return 0
    inside = int((often * _runs_inside(at, limit, last)).sum())
    return inside * prod(index.high - index.low for index in indices if not index.step)


_ONE = BoundedIndex(0, 1, 1)


def _spread(at: Ints, often: Ints, index: BoundedIndex, low: int, high: int) -> tuple[Ints, Ints]:
    """Positions after one more index, within low .. high - 1, and how often each occurs."""
    ends = sorted(((low - int(at.max())) / index.step, (high - int(at.min())) / index.step))
    # Quotients are rounded, so one value more on each side is taken; `kept` is exact.
    runs = np.arange(max(index.low, int(ends[0]) - 1), min(index.high, int(ends[1]) + 2), dtype=np.int64)
    if runs.size * at.size > _MOST_POSITIONS:
        raise ValueError(f"the positions spread over more than {_MOST_POSITIONS} places on one axis")
    spread = (at[:, None] + runs * index.step).ravel()
    weights = np.repeat(often, runs.size)
    kept = (spread >= low) & (spread < high)
    places, place_of = np.unique(spread[kept], return_inverse=True)
    sums = np.zeros(places.size, np.int64)
    np.add.at(sums, place_of, weights[kept])
    return places, sums


def _runs_inside(at: Ints, limit: int, index: BoundedIndex) -> Ints:
    """By position, the number of values of `index` that lead to 0 .. limit - 1."""
    first, last = (-at, limit - 1 - at) if index.step > 0 else (at - limit + 1, at)
    step = abs(index.step)
    return np.maximum(np.minimum(last // step, index.high - 1) - np.maximum(-(-first // step), index.low) + 1, 0)
