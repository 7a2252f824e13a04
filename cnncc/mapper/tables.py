"""Trips and extents of the loops over one dimension, for all numbers of PEs and indices in the box together. No IR."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cnncc.mapper.arrays import ILLEGAL, Amounts, Counts, Flags


@lru_cache(maxsize=4096)
def even_parts(extent: int, most: int) -> tuple[int, ...]:
    """⌈extent / 1⌉, ⌈extent / 2⌉, …: those up to `most`, in ascending order."""
    return tuple(sorted({-(-extent // count) for count in range(1, extent + 1) if -(-extent // count) <= most}))


class EqualParts(Enum):
    """Whether PEs have equal parts of a dimension, or parts as equal as may be."""

    NOT = 0
    ABOUT = 1
    EXACTLY = 2


class LoopTable(NamedTuple):
    """Trips in time of a dimension's loops, and the sum of the indices that the boxes of all trips hold.

    Floats, as products may be very large.
    """

    trips: Amounts
    held: Amounts


class LoopTables(NamedTuple):
    """`LoopTable` for many numbers of PEs: axes `[PEs on rows, PEs on columns, box]`.

    column: the last index for each number of indices in the box.
    """

    trips: Amounts
    held: Amounts
    column: Counts

    def of(self, rows: Counts | int, cols: Counts | int, box: Counts) -> LoopTable:
        """Those of PEs and boxes, which are broadcast. box: numbers of indices in the box."""
        _, many, boxes = self.trips.shape
        pes, column = rows * many + cols, self.column.take(box)
        # Taken axis by axis: this is the most frequent case, and takes two thirds of the time.
        if isinstance(pes, np.ndarray) and pes.ndim == 2 and column.ndim == 1:  # some PEs [n, 1], each with all boxes
            some = (each.reshape(-1, boxes).take(pes[:, 0], axis=0) for each in (self.trips, self.held))
            return LoopTable(*(each.take(column, axis=1) for each in some))
        at = pes * boxes + column
        return LoopTable(self.trips.take(at), self.held.take(at))


@lru_cache(maxsize=512)
def table(
    extent: int,
    rows: int,
    cols: int,
    box: tuple[int, ...],
    spread: bool,
    share: bool,
    even: EqualParts,
    cut: bool = False,
) -> LoopTables:
    """The table of a dimension, for 1 to `rows` and 1 to `cols` PEs. Illegal entries are ILLEGAL (SPACE-5).

    - box: numbers of indices in the box, in ascending order
    - spread: the dimension is k, whose rest goes to as many PE sets as divide it
    - share: PEs share the dimension out (block-distributed)
    - even: how equal the parts of PEs are that add up (c, r)
    - cut: blocks may have any size. An entry is the least over all sizes then, as parts of PEs depend on the block.
    """
    if share and cut:
        blocks = [_in_blocks(extent, size, rows, cols, box, spread) for size in even_parts(extent, extent)]
        return LoopTables(*(np.minimum.reduce(column) for column in zip(*blocks, strict=True)))
    return _in_blocks(extent, extent, rows, cols, box, spread, share, even)


def _in_blocks(
    extent: int,
    block: int,
    rows: int,
    cols: int,
    box: tuple[int, ...],
    spread: bool,
    share: bool = True,
    even: EqualParts = EqualParts.NOT,
) -> LoopTables:
    """The table for blocks of this size."""
    r, c, b = np.broadcast_arrays(*np.ix_(range(1, rows + 1), range(1, cols + 1), box))
    on_rows = -(-block // r)
    on_cols = -(-on_rows // c)
    if share:
        # Every PE has work, and no box is larger than its part.
        legal = (-(-block // on_rows) == r) & (-(-on_rows // on_cols) == c) & (b <= on_cols)
    else:
        legal = ((r - 1) * c * b < extent) & ((c - 1) * b < extent) & (b <= extent)
    if even is EqualParts.EXACTLY:
        legal &= (r * c == 1) | (extent % (r * c * b) == 0)
    if even is EqualParts.ABOUT:
        # Of all b with so many tiles the smallest.
        tiles = -(-extent // (r * c * b))
        legal &= (r * c == 1) | (b == -(-extent // (tiles * r * c)))
    index = np.nonzero(legal)
    r, c, b, on_rows, on_cols = (numbers[index] for numbers in (r, c, b, on_rows, on_cols))
    loops: list[tuple[Counts, Counts | None]]
    if share:
        loops = [
            (np.full(len(b), block), None),
            (on_rows, _sets(block, on_rows, spread & (c == 1))),
            (on_cols, _sets(on_rows, on_cols, spread)),
            (b, None),
        ]
    else:
        tile, row = np.minimum(r * c * b, extent), np.minimum(c * b, extent)
        loops = [(tile, None), (row, _sets(tile, row, spread & (c == 1))), (b, _sets(row, b, spread))]
    trips, held = bodies(np.full(len(b), extent), loops)
    # Indices are numbers of PEs: nothing stands at 0.
    never = np.full((rows + 1, cols + 1, len(box)), float(ILLEGAL))
    result = LoopTables(never, never.copy(), np.zeros(box[-1] + 1, np.int64))
    result.trips[1:, 1:][index] = trips
    result.held[1:, 1:][index] = held
    result.column[list(box)] = range(len(box))
    return result


def _sets(around: Counts | int, step: Counts, spread: Flags | bool) -> Counts:
    """PE sets among which the rest of a loop is spread: as many as the loop around it has full steps."""
    # COST-2: callers ask for the innermost loop over k in space: that on columns, or that on rows if there is no other.
    return np.where(spread, around // step, 1)


def bodies(extent: Counts, loops: Sequence[tuple[Counts, Counts | None]]) -> tuple[Counts, Counts]:
    """Trips in time of nested loops over one dimension, and the sum of the extents of their insides (SPACE-5).

    loops: (step, sets), outermost first; sets is None for a loop in time. All full steps of a loop in space are one
    trip. Its rest is one more, spread evenly over up to `sets` PE sets.
    """
    if not loops:
        return np.minimum(extent, 1), extent
    (step, sets), *inside = loops
    full, rest = extent // step, extent % step
    if sets is not None:
        full, rest = np.minimum(full, 1), rest // _sharing(rest, sets)
    (trips, held), (rest_trips, rest_held) = bodies(step, inside), bodies(rest, inside)
    return full * trips + rest_trips, full * held + rest_held


def _sharing(rest: Counts, sets: Counts) -> Counts:
    """The most sets, up to `sets`, that share a rest evenly; 1 if nothing is left over."""
    return _even_sets(int(np.max(rest, initial=0)), int(np.max(sets, initial=1)))[rest, sets]


@lru_cache(maxsize=256)
def _even_sets(rest: int, sets: int) -> Counts:
    """`even_sets`, for all rests and sets up to these: axes `[rest, sets]`."""
    counts = np.ones((rest + 1, sets + 1), np.int64)
    for count in range(2, sets + 1):
        counts[:, count] = np.where(np.arange(rest + 1) % count, counts[:, count - 1], count)
    return counts
