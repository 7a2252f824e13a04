"""All combinations of a layer's unrollings and boxes, and what the array does for each, as arrays. No IR.

They are the same for all forms with the same name. For a pair of unrollings all boxes are looked at together. What the
loops over a dimension do depends on the PEs of this dimension alone: it is found out once for all such pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cnncc.mapper.space import BOX_DIMS, Counts, Form, Numbers, shared
from cnncc.mapper.tables import NEVER, LoopTable, Table, table
from cnncc.model.layer_shape import LayerShape


class Found(NamedTuple):
    """Combinations of one form: numbers of unrollings and box, cycles of the macro-instructions.

    least: what the layer takes at least, by them, by loads and by commits. In this order. beyond: where there is none,
    the least of what was looked at, by all of these.
    """

    form: Form
    which: Counts
    cycles: Counts
    least: Counts
    beyond: int


def _tables(found: Numbers, form: Form, cut: bool) -> dict[str, Table]:
    """By dimension."""
    sizes = found.shape.sizes
    p, z, zh, q, taps, cols, _ = (tuple(np.unique(column).tolist()) for column in found.boxes.T)
    rows_k, rows_h, rows_c, rows_r = found.rows.max(axis=0).tolist()
    cols_k, cols_h, cols_w = found.cols.max(axis=0).tolist()
    return {
        "k": table(found.shape.tiled_together, rows_k, cols_k, p, True, shared(form, "k"), False, cut),
        "h": table(sizes.h, rows_h, cols_h, zh, False, shared(form, "h"), False, cut),
        "w": table(sizes.w, 1, cols_w, z, False, shared(form, "w"), False, cut),
        "c": table(sizes.c, rows_c, 1, q, False, False, True),
        "r": table(sizes.r, rows_r, 1, taps, False, False, True),
        "s": table(sizes.s, 1, 1, cols, False, False, True),
    }


class _Boxes:
    """What loops do for all boxes, by the PEs that they have."""

    def __init__(self, found: Numbers, form: Form, tables: dict[str, Table]) -> None:
        self.found, self.name, self.tables = found, form.name, tables
        self.over, self.sums, self.windows = cache(self._over), cache(self._sums), cache(self._windows)
        self.columns = cache(self._columns)
        shape, trips = found.shape, self.over("s", 1, 1).trips
        # Of each window of a box but the first so many columns are its own: as the stride, if taps are as many.
        fewest = shape.sizes.s - (trips - 1) * found.boxes[:, 5]  # taps of a part
        self.fresh = trips * (np.minimum(shape.window.stride[1], fewest) if shape.window.dilation[1] == 1 else 1)

    def _over(self, dim: str, rows: int, cols: int) -> LoopTable:
        """Loops over one dimension."""
        return self.tables[dim].of(rows, cols, self.found.boxes[:, BOX_DIMS.index(dim)])

    def _sums(self, c_rows: int, r_rows: int) -> LoopTable:
        """Loops over c and r."""
        c, r = self.over("c", c_rows, 1), self.over("r", r_rows, 1)
        return LoopTable(c.trips * r.trips, c.held * r.held)

    def _windows(self, w_cols: int) -> Any:
        """Columns of the image that a PE takes for all its windows: these overlap."""
        w = self.over("w", 1, w_cols)
        return self.fresh * (w.held - w.trips) + self.found.shape.sizes.s * w.trips

    def _columns(self, neighbours: bool) -> Any:
        """Columns of the image that come for all outputs; of those that neighbours pass on as many as the stride."""
        shape, (z, lanes) = self.found.shape, (self.found.boxes[:, 1], self.found.boxes[:, 6])
        shared = self.found.arch.links.n2n and not shape.channelwise and neighbours
        first = np.where(shared & (lanes == 1), min(shape.sizes.s, shape.window.stride[1]), shape.sizes.s)
        return shape.sizes.w * (self.fresh * (1 - 1 / z) + first / z)

    def loads(self, rows: Sequence[int], cols: Sequence[int]) -> Any:
        """Cycles in which loads are busy, at least: a PE takes a word a cycle, a row a burst, the GLB gives some.

        Rules: LOAD-2.

        Weights come once where they stay over h and w, the ifmap where over k. Windows overlap in w; in h they do only
        where they are of one row.
        """
        shape, sizes, arch = self.found.shape, self.found.shape.sizes, self.found.arch
        (rk, rh, rc, rr), (ck, ch, cw), own = rows, cols, shape.channelwise
        k, h, w, sums = self.over("k", rk, ck), self.over("h", rh, ch), self.over("w", 1, cw), self.sums(rc, rr)
        again = k.held if own else 1.0 if self.name == "is" else k.trips
        ifmap = again * (h.held if sizes.r == 1 else h.trips) * sums.held * self.windows(cw)
        columns, port = self.columns(cw > 1), arch.glb.words_per_cycle
        distinct = (shape.tiled_together if own else again) * columns * (sizes.c * _distinct_rows(shape, rows, cols))
        in_row = (shape.tiled_together / rk if own else again) * columns * sums.held * (sizes.h / rh)
        ifmap = np.maximum(np.maximum(ifmap, in_row / arch.bus.burst_words), distinct / port)
        if not shape.is_mac:
            return ifmap
        everything = shape.tiled_together * sizes.c * sizes.r * sizes.s
        weights = np.maximum(k.held * sums.held * self.over("s", 1, 1).held, everything / port)
        return ifmap + (weights if self.name == "ws" else weights * h.trips * w.trips)

    def in_turn(self, rows: Sequence[int], cols: Sequence[int], cut: bool) -> Any:
        """Cycles of commits, and before and after these and loads, where nothing overlaps (TIME-6), at least."""
        shape, sizes, arch = self.found.shape, self.found.shape.sizes, self.found.arch
        (rk, rh, rc, rr), (ck, ch, cw), (p, z, zh) = rows, cols, self.found.boxes.T[:3]
        k, sums = self.over("k", rk, ck).trips, self.sums(rc, rr).trips * self.over("s", 1, 1).trips
        pixels = self.over("h", rh, ch).trips * self.over("w", 1, cw).trips
        loads = (1.0 if self.name == "is" else k) * pixels * sums
        if shape.is_mac:
            loads = loads + k * sums * (1.0 if self.name == "ws" else pixels)
        # Sums are partial where loops over c, r, s stand outside others in time.
        outer = 1.0 if cut or self.name == "os" else sums
        held = {"is": -(-shape.tiled_together // (rk * ck)) > p,
                "ws": (-(-sizes.h // (rh * ch)) > zh) | (-(-sizes.w // cw) > z)}  # fmt: skip
        partial = (outer > 1) & held.get(self.name, False)
        times = np.where(partial, outer, 1)
        words = (1 + 2 * arch.words_per_sum * partial) / arch.glb.words_per_cycle
        busy = np.maximum(words, 1 / (prod(cols) * arch.commit.units_per_column))
        busy = busy * shape.tiled_together * sizes.h * sizes.w
        each = 1 + arch.commit.latency_cycles + rc * rr - 1
        return loads * (1 + arch.bus.latency_cycles) + times * (busy + k * pixels * each)


def combinations_below(found: Numbers, form: Form, limit: int, cut: bool = False) -> Found:
    """The combinations of a form that take less than `limit` cycles, by macro-instructions, loads and commits.

    cut: in blocks that may be cut; then the cycles are those of the blocks for which they are fewest, or below.
    """
    shape, arch, tables = found.shape, found.arch, _tables(found, form, cut)
    boxes, lanes = _Boxes(found, form, tables), found.boxes[:, -1]
    times = shape.sizes.n * (shape.sizes.k // shape.tiled_together)
    overhead = arch.pe.start_cycles + arch.pe.finish_cycles
    results = times * prod((shape.tiled_together, shape.sizes.h, shape.sizes.w))
    port, units = arch.glb.words_per_cycle, arch.commit.units_per_column
    all_rows, all_cols, s = found.rows.tolist(), found.cols.tolist(), boxes.over("s", 1, 1)
    which: list[Counts] = []
    cycles: list[Counts] = []
    steps = _steps(found, tables) * times
    beyond = [float(steps.min())] if steps.min() >= limit else []
    for row, col in np.argwhere(steps < limit).tolist():
        (rk, rh, rc, rr), (ck, ch, cw) = rows, cols = all_rows[row], all_cols[col]
        k, h, w, sums = (
            boxes.over("k", rk, ck), boxes.over("h", rh, ch), boxes.over("w", 1, cw), boxes.sums(rc, rr),
        )  # fmt: skip
        macros = times * k.trips * h.trips * w.trips * sums.trips * s.trips
        total = overhead * macros + times * k.held * h.held * w.held * sums.held * s.held / lanes
        least = total + (found.words if arch.sequencer.overlap else macros)
        if which and least.min() >= limit:
            continue
        loads = times * boxes.loads(rows, cols)
        if arch.sequencer.overlap:
            least = np.maximum(least, np.maximum(loads, results / min(port, ck * ch * cw * units)))
        else:
            least = least + loads + times * boxes.in_turn(rows, cols, cut)
        least = np.where(_has_room(found, form, rows, cols, cut), least, NEVER)
        good = np.nonzero(least < limit)[0]
        if not len(good):
            beyond.append(float(least.min()))
        else:
            which.append(np.column_stack([np.full(len(good), row), np.full(len(good), col), good]))
            cycles.append(np.rint(np.stack([total[good], least[good]])).astype(np.int64))
    if not which:
        none = np.zeros(0, np.int64)
        return Found(form, np.zeros((0, 3), np.int64), none, none, int(min(beyond)))
    everything, (all_cycles, least_of_all) = np.concatenate(which), np.concatenate(cycles, axis=1)
    order = np.argsort(least_of_all, kind="stable")
    return Found(form, everything[order], all_cycles[order], least_of_all[order], limit)


def _has_room(found: Numbers, form: Form, rows: Sequence[int], cols: Sequence[int], cut: bool) -> Any:
    """For which boxes register files have room, by whether neighbours pass columns on (as `passes_columns` says).

    Where that depends on blocks (cut), those for which there may be room.
    """
    if not found.arch.pe.pong_words:
        return True
    (k, _, w), group = cols, found.shape.tiled_together
    beside = sum(pes > 1 for pes in cols) < 2 or (w > 1 and (not shared(form, "w") or w >= found.shape.sizes.w))
    if cut and (form.name == "is" or (form.name == "ws" and not beside)):
        return found.fits.any(axis=1)
    anew = form.name != "is" or found.boxes[:, 0] * rows[0] * k >= group  # k does not run behind the ifmap's stage
    return np.where(anew & beside, found.fits[:, 1], found.fits[:, 0])


def _distinct_rows(shape: LayerShape, rows: Sequence[int], cols: Sequence[int]) -> float:
    """Rows of the image that come for all outputs, at least: PEs on a diagonal share them."""
    sizes, stride = shape.sizes, shape.window.stride[0]
    outputs, taps = rows[1] * cols[1], rows[3]
    apart = min(stride, taps) if taps == sizes.r and shape.window.dilation[0] == 1 else 1
    return sizes.h / outputs * (sizes.r / taps) * ((outputs - 1) * (apart if taps > 1 else 1) + taps)


def _steps(found: Numbers, tables: dict[str, Table]) -> Any:
    """Steps of all macro-instructions, at least, for unrollings of rows and of columns."""
    k, h, w, c, r = (tables[dim].held.min(axis=2).astype(float) for dim in "khwcr")
    (rk, rh, rc, rr), (ck, ch, cw) = found.rows.T[:, :, None], found.cols.T
    alone = w[1, cw] * c[rc, 1] * r[rr, 1]
    return k[rk, ck] * h[rh, ch] * alone * found.shape.sizes.s / int(found.boxes[:, -1].max())
