"""All combinations of a layer's unrollings and boxes, with bounds of each. No IR.

All forms with one name have the same combinations. The bounds of all boxes of a pair of unrollings are computed
together. The loops over a dimension depend only on the PEs of this dimension, and are counted once for all such pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

from cnncc.mapper.arrays import Amounts, Counts, Flags, PerBox
from cnncc.mapper.space import BOX_DIMS, Form, Numbers, shared
from cnncc.mapper.tables import NEVER, LoopTable, Table, table
from cnncc.mapper.tiles import tiles_in_time
from cnncc.model.layer_shape import LayerShape


class Found(NamedTuple):
    """Combinations of one form whose bound is below a limit, the lowest bound first.

    - indices: those of rows, columns and box in `Numbers`. Axes `[combination, 3]`.
    - tiles: indices of k h w c that PEs and box take at a time. Axes `[combination, khwc]`.
    - cycles, least: cycles of all macro-instructions, and the bound. Axes `[combination]`.
    - beyond: the limit. Without any combination it is the lowest bound of all.
    """

    form: Form
    indices: Counts
    tiles: Counts
    cycles: Counts
    least: Counts
    beyond: int

    def some(self, chosen: Flags) -> Found:
        """The combinations that are chosen."""
        indices, tiles, cycles, least = (each[chosen] for each in (self.indices, self.tiles, self.cycles, self.least))
        return Found(self.form, indices, tiles, cycles, least, self.beyond)


def tables(numbers: Numbers, form: Form, cut: bool) -> dict[str, Table]:
    """The tables of all dimensions."""
    sizes = numbers.shape.sizes
    p, z, zh, q, taps, cols, _ = (tuple(np.unique(column).tolist()) for column in numbers.boxes.T)
    rows_k, rows_h, rows_c, rows_r = numbers.rows.max(axis=0).tolist()
    cols_k, cols_h, cols_w = numbers.cols.max(axis=0).tolist()
    return {
        "k": table(numbers.shape.tiled_together, rows_k, cols_k, p, True, shared(form, "k"), False, cut),
        "h": table(sizes.h, rows_h, cols_h, zh, False, shared(form, "h"), False, cut),
        "w": table(sizes.w, 1, cols_w, z, False, shared(form, "w"), False, cut),
        "c": table(sizes.c, rows_c, 1, q, False, False, True),
        "r": table(sizes.r, rows_r, 1, taps, False, False, True),
        "s": table(sizes.s, 1, 1, cols, False, False, True),
    }


class _Boxes:
    """Bounds of a form for all boxes, given the PEs on rows (k h c r) and on columns (k h w).

    Arrays have axes `[box]`. cut: blocks may have any size; bounds hold for all of them then (BOUND-5).
    """

    def __init__(self, numbers: Numbers, form: Form, cut: bool) -> None:
        self.numbers, self.form, self.cut = numbers, form, cut
        self.shape, self.arch = numbers.shape, numbers.arch
        self.groups = self.shape.sizes.n * (self.shape.sizes.k // self.shape.tiled_together)
        self.tables = tables(numbers, form, cut)
        self.over, self.sums, self.windows = cache(self._over), cache(self._sums), cache(self._windows)
        self.columns = cache(self._columns)
        trips = self.over("s", 1, 1).trips
        # A window of a box, but the first, has at least so many columns of its own: the stride, or all of few taps.
        fewest_taps = self.shape.sizes.s - (trips - 1) * numbers.boxes[:, 5]
        stride, dilation = self.shape.window.stride[1], self.shape.window.dilation[1]
        self.fresh: PerBox = trips * (np.minimum(stride, fewest_taps) if dilation == 1 else 1)

    def _over(self, dim: str, rows: int, cols: int) -> LoopTable:
        """Loops over one dimension."""
        return self.tables[dim].of(rows, cols, self.numbers.boxes[:, BOX_DIMS.index(dim)])

    def _sums(self, c_rows: int, r_rows: int) -> LoopTable:
        """Loops over c and r."""
        c, r = self.over("c", c_rows, 1), self.over("r", r_rows, 1)
        return LoopTable(c.trips * r.trips, c.held * r.held)

    def _windows(self, w_cols: int) -> PerBox:
        """Columns of the image that a PE takes for all its windows, which overlap."""
        w = self.over("w", 1, w_cols)
        return self.fresh * (w.held - w.trips) + self.shape.sizes.s * w.trips

    def _columns(self, neighbours: bool) -> PerBox:
        """Columns of the image for all outputs. The first of a box are as few as the stride if neighbours pass on."""
        shape, (z, lanes) = self.shape, (self.numbers.boxes[:, 1], self.numbers.boxes[:, 6])
        passed = self.arch.links.n2n and not shape.channelwise and neighbours
        first = np.where(passed & (lanes == 1), min(shape.sizes.s, shape.window.stride[1]), shape.sizes.s)
        return shape.sizes.w * (self.fresh * (1 - 1 / z) + first / z)

    def fewest_steps(self) -> Amounts:
        """Steps of all macro-instructions with the best box: axes `[unrolling of rows, unrolling of columns]`."""
        k, h, w, c, r = (self.tables[dim].held.min(axis=2).astype(float) for dim in "khwcr")
        (rk, rh, rc, rr), (ck, ch, cw) = self.numbers.rows.T[:, :, None], self.numbers.cols.T
        steps = k[rk, ck] * h[rh, ch] * w[1, cw] * c[rc, 1] * r[rr, 1] * self.shape.sizes.s
        return steps / int(self.numbers.boxes[:, -1].max())

    def macros(self, rows: Sequence[int], cols: Sequence[int]) -> tuple[PerBox, PerBox]:
        """All macro-instructions and A, their cycles: steps / lanes + (start + finish) · macro-instructions."""
        (rk, rh, rc, rr), (ck, ch, cw), s = rows, cols, self.over("s", 1, 1)
        k, h, w, sums = self.over("k", rk, ck), self.over("h", rh, ch), self.over("w", 1, cw), self.sums(rc, rr)
        macros = self.groups * k.trips * h.trips * w.trips * sums.trips * s.trips
        steps = self.groups * k.held * h.held * w.held * sums.held * s.held / self.numbers.boxes[:, -1]
        return macros, steps + (self.arch.pe.start_cycles + self.arch.pe.finish_cycles) * macros

    def loads(self, rows: Sequence[int], cols: Sequence[int]) -> PerBox:
        """BOUND-2. All loads ≥ Σ max(words of a PE, distinct words / GLB's words per cycle).

        Weights come once if they stay over h and w (`ws`), the ifmap once if it stays over k (`is`). Windows overlap in
        w. They overlap in h only if they have one row.
        """
        shape, sizes, arch = self.shape, self.shape.sizes, self.arch
        (rk, rh, rc, rr), (ck, ch, cw), own = rows, cols, shape.channelwise
        k, h, w, sums = self.over("k", rk, ck), self.over("h", rh, ch), self.over("w", 1, cw), self.sums(rc, rr)
        again = k.held if own else 1.0 if self.form.name == "is" else k.trips
        ifmap = again * (h.held if sizes.r == 1 else h.trips) * sums.held * self.windows(cw)
        columns, port = self.columns(cw > 1), arch.glb.words_per_cycle
        distinct = (shape.tiled_together if own else again) * columns * (sizes.c * _distinct_rows(shape, rows, cols))
        ifmap = np.maximum(ifmap, distinct / port)
        if not shape.is_mac:
            return ifmap
        distinct = shape.tiled_together * sizes.c * sizes.r * sizes.s
        weights = np.maximum(k.held * sums.held * self.over("s", 1, 1).held, distinct / port)
        return ifmap + (weights if self.form.name == "ws" else weights * h.trips * w.trips)

    def commits(self, cols: Sequence[int]) -> float:
        """BOUND-2. All commits ≥ results / min(GLB's words per cycle, output units of all columns in use)."""
        units = prod(cols) * self.arch.commit.units_per_column
        results = self.shape.tiled_together * self.shape.sizes.h * self.shape.sizes.w
        return results / min(self.arch.glb.words_per_cycle, units)

    def in_turn(self, rows: Sequence[int], cols: Sequence[int]) -> PerBox:
        """BOUND-3. loads · (1 + bus latency) + all commits + commits · (1 + commit latency + PEs that add up − 1)."""
        shape, sizes, arch = self.shape, self.shape.sizes, self.arch
        (rk, rh, rc, rr), (ck, ch, cw), (p, z, zh) = rows, cols, self.numbers.boxes.T[:3]
        k, sums = self.over("k", rk, ck).trips, self.sums(rc, rr).trips * self.over("s", 1, 1).trips
        pixels = self.over("h", rh, ch).trips * self.over("w", 1, cw).trips
        loads = (1.0 if self.form.name == "is" else k) * pixels * sums
        if shape.is_mac:
            loads = loads + k * sums * (1.0 if self.form.name == "ws" else pixels)
        # Sums are partial where loops over c, r, s stand outside others in time.
        outer = 1.0 if self.cut or self.form.name == "os" else sums
        held = {"is": -(-shape.tiled_together // (rk * ck)) > p,
                "ws": (-(-sizes.h // (rh * ch)) > zh) | (-(-sizes.w // cw) > z)}  # fmt: skip
        partial = (outer > 1) & held.get(self.form.name, False)
        times = np.where(partial, outer, 1)
        words = (1 + 2 * arch.words_per_sum * partial) / arch.glb.words_per_cycle
        busy = np.maximum(words, 1 / (prod(cols) * arch.commit.units_per_column))
        busy = busy * shape.tiled_together * sizes.h * sizes.w
        overhead = 1 + arch.commit.latency_cycles + rc * rr - 1
        return loads * (1 + arch.bus.latency_cycles) + times * (busy + k * pixels * overhead)

    def fit_register_files(self, rows: Sequence[int], cols: Sequence[int]) -> Flags:
        """Boxes for which ping, pong and FIFO have room, by whether neighbours pass columns on (SPACE-4).

        If that depends on blocks, they are the boxes that may have room.
        """
        numbers, (k, _, w) = self.numbers, cols
        alone = sum(pes > 1 for pes in cols) < 2
        beside = alone or (w > 1 and (not shared(self.form, "w") or w >= self.shape.sizes.w))
        if self.cut and (self.form.name == "is" or (self.form.name == "ws" and not beside)):
            return numbers.fits[:, 0] | numbers.fits[:, 1]
        anew = self.form.name != "is" or numbers.boxes[:, 0] * rows[0] * k >= self.shape.tiled_together
        return np.where(anew & beside, numbers.fits[:, 1], numbers.fits[:, 0])


def combinations_below(numbers: Numbers, form: Form, limit: int, cut: bool = False) -> Found:
    """The combinations of a form whose bound is below `limit`, by BOUND-1 to BOUND-3 as far as boxes know them.

    cut: blocks may have any size; cycles are the least over all sizes then, or below (BOUND-5).
    """
    arch, boxes = numbers.arch, _Boxes(numbers, form, cut)
    groups, overlap = boxes.groups, arch.sequencer.overlap
    all_rows, all_cols = numbers.rows.tolist(), numbers.cols.tolist()
    parts: list[Counts] = []
    cycles: list[Counts] = []
    steps = boxes.fewest_steps() * groups
    beyond = [float(steps.min())] if steps.min() >= limit else []
    for row, col in np.argwhere(steps < limit).tolist():
        rows, cols = all_rows[row], all_cols[col]
        macros, compute = boxes.macros(rows, cols)
        least = compute + (numbers.words if overlap else macros)
        if parts and least.min() >= limit:
            continue
        loads = groups * boxes.loads(rows, cols)
        if overlap:
            least = np.maximum(least, np.maximum(loads, groups * boxes.commits(cols)))
        else:
            least = least + loads + groups * boxes.in_turn(rows, cols)
        if arch.pe.pong_words:
            least = np.where(boxes.fit_register_files(rows, cols), least, NEVER)
        below = np.nonzero(least < limit)[0]
        if not len(below):
            beyond.append(float(least.min()))
        else:
            parts.append(np.column_stack([np.full(len(below), row), np.full(len(below), col), below]))
            cycles.append(np.rint(np.stack([compute[below], least[below]])).astype(np.int64))
    if not parts:
        none = np.zeros(0, np.int64)
        return Found(form, np.zeros((0, 3), np.int64), np.zeros((0, 4), np.int64), none, none, int(min(beyond)))
    indices, (all_cycles, all_least) = np.concatenate(parts), np.concatenate(cycles, axis=1)
    order = np.argsort(all_least, kind="stable")
    indices = indices[order]
    return Found(form, indices, tiles_in_time(numbers, indices), all_cycles[order], all_least[order], limit)


def _distinct_rows(shape: LayerShape, rows: Sequence[int], cols: Sequence[int]) -> float:
    """Rows of the image for all outputs, at least: PEs on a diagonal share them."""
    sizes, stride = shape.sizes, shape.window.stride[0]
    outputs, taps = rows[1] * cols[1], rows[3]
    apart = min(stride, taps) if taps == sizes.r and shape.window.dilation[0] == 1 else 1
    return sizes.h / outputs * (sizes.r / taps) * ((outputs - 1) * (apart if taps > 1 else 1) + taps)
