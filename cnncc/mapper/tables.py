"""What the loops over one dimension do, for all numbers of PEs and of indices in the box at once. No IR."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

NEVER = 1 << 40  # cycles of what cannot be


@lru_cache(maxsize=4096)
def even_parts(extent: int, most: int) -> tuple[int, ...]:
    """Sizes of tiles of an extent that are as equal as may be, up to `most`."""
    return tuple(sorted({-(-extent // count) for count in range(1, extent + 1) if -(-extent // count) <= most}))


class LoopTable(NamedTuple):
    """What loops do: trips in time, and the sum of what boxes hold in them. Floats, as products may be very large."""

    trips: Any
    held: Any


class Table(NamedTuple):
    """For numbers of PEs on rows and columns and in the box: trips in time, and the sum of what boxes hold in them.

    place: of each number in the box its column.
    """

    trips: Counts
    held: Counts
    place: Counts

    def of(self, rows: int, cols: int, box: Counts) -> LoopTable:
        """For an array of numbers in the box."""
        column = self.place[box]
        return LoopTable(self.trips[rows, cols][column].astype(float), self.held[rows, cols][column].astype(float))


@lru_cache(maxsize=512)
def table(
    extent: int,
    rows: int,
    cols: int,
    box: tuple[int, ...],
    spread: bool,
    share: bool,
    even: bool,
    cut: bool = False,
) -> Table:
    """The table of a dimension, for numbers of PEs up to these. NEVER where they do not make a mapping of their own.

    box: the numbers in the box, from the smallest.
    spread: its rest goes to as many sets as divide it (k). even: PEs have equal parts (c, r). cut: blocks of the
    dimension may be cut; then the least of all of them, as what PEs share out depends on the block.
    """
    if share and cut:
        blocks = [_in_blocks(extent, size, rows, cols, box, spread) for size in even_parts(extent, extent)]
        return Table(*(np.minimum.reduce(column) for column in zip(*blocks, strict=True)))
    return _in_blocks(extent, extent, rows, cols, box, spread, share, even)


def _in_blocks(
    extent: int,
    block: int,
    rows: int,
    cols: int,
    box: tuple[int, ...],
    spread: bool,
    share: bool = True,
    even: bool = False,
) -> Table:
    """The table for loops that are made for blocks of this size."""
    r, c, b = np.broadcast_arrays(*np.ix_(range(1, rows + 1), range(1, cols + 1), box))
    on_rows = -(-block // r)
    on_cols = -(-on_rows // c)
    if share:
        legal = (-(-block // on_rows) == r) & (-(-on_rows // on_cols) == c) & (b <= on_cols)
    else:
        legal = ((r - 1) * c * b < extent) & ((c - 1) * b < extent) & (b <= extent)
    if even:
        legal &= (r * c == 1) | (extent % (r * c * b) == 0)
    where = np.nonzero(legal)
    r, c, b, on_rows, on_cols = (each[where] for each in (r, c, b, on_rows, on_cols))
    if share:
        loops = [
            (block, 0),
            (on_rows, _sets(block, on_rows, spread & (c == 1))),
            (on_cols, _sets(on_rows, on_cols, spread)),
            (b, 0),
        ]
    else:
        tile, row = np.minimum(r * c * b, extent), np.minimum(c * b, extent)
        loops = [(tile, 0), (row, _sets(tile, row, spread & (c == 1))), (b, _sets(row, b, spread))]
    trips, held = bodies(extent, loops)
    full = np.full((rows + 1, cols + 1, len(box)), NEVER, np.int64)
    found = Table(full, full.copy(), np.zeros(box[-1] + 1, np.int64))
    found.trips[1:, 1:][where] = trips
    found.held[1:, 1:][where] = held
    found.place[list(box)] = range(len(box))
    return found


def _sets(around: Any, step: Any, spread: Any) -> Any:
    return np.where(spread, around // step, 1)


def bodies(extent: Any, loops: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """How often the inside of nested loops over one dimension runs one after the other, and the sum of its extents.

    loops: (step, sets), outermost first; sets: 0 in time. All whole steps of a loop in space are one run, its rest a
    further one, spread evenly over up to so many sets. On arrays of extents, steps and sets.
    """
    if not loops:
        return np.minimum(extent, 1), extent
    (step, sets), *inside = loops
    whole, rest = extent // step, extent % step
    in_time = isinstance(sets, int)
    times = whole if in_time else np.minimum(whole, 1)
    each = rest if in_time else rest // _sharing(rest, sets)
    (count, total), (rest_count, rest_total) = bodies(step, inside), bodies(each, inside)
    return times * count + rest_count, times * total + rest_total


def _sharing(rest: Counts, sets: Counts) -> Counts:
    """The most sets, up to `sets`, that share a rest evenly; 1 where nothing is left over."""
    return _even_sets(int(np.max(rest, initial=0)), int(np.max(sets, initial=1)))[rest, sets]


@lru_cache(maxsize=256)
def _even_sets(rest: int, sets: int) -> Counts:
    found = np.ones((rest + 1, sets + 1), np.int64)
    for count in range(2, sets + 1):
        found[:, count] = np.where(np.arange(rest + 1) % count, found[:, count - 1], count)
    return found
