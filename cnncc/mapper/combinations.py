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
from cnncc.mapper.tables import Loops, Table, table


class Found(NamedTuple):
    """Combinations of one form: numbers of unrollings and box, cycles of the macro-instructions.

    least: what the layer takes at least, by them and by the words of loads, of which a PE takes one a cycle. In this
    order.
    """

    form: Form
    which: Counts
    cycles: Counts
    least: Counts


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
        self.over, self.sums, self.image_words = cache(self._over), cache(self._sums), cache(self._image_words)

    def _over(self, dim: str, rows: int, cols: int) -> Loops:
        """Loops over one dimension."""
        return self.tables[dim].of(rows, cols, self.found.boxes[:, BOX_DIMS.index(dim)])

    def _sums(self, c_rows: int, r_rows: int) -> Loops:
        """Loops over c, r and s."""
        c, r, s = self.over("c", c_rows, 1), self.over("r", r_rows, 1), self.over("s", 1, 1)
        return Loops(c.trips * r.trips * s.trips, c.held * r.held * s.held)

    def loads(self, k: Loops, pixels: Any, sums: Loops, together: bool) -> Any:
        """Cycles in which loads are busy, at least: a PE takes a word a cycle, the GLB gives some (L2).

        Weights come once where they stay over h and w, the ifmap where over k. pixels: trips over h and w. together:
        rows of the image are shared by PEs on a diagonal.
        """
        shape, glb = self.found.shape, self.found.arch.glb.words_per_cycle
        again = 1.0 if self.name == "is" else k.trips
        words = self.image_words(together) * (shape.tiled_together if shape.channelwise else again)
        image = np.maximum(again * pixels * sums.held, words / glb)
        if not shape.is_mac:
            return image
        everything = shape.tiled_together * shape.sizes.c * shape.sizes.r * shape.sizes.s
        weights = np.maximum(k.held * sums.held, everything / glb)
        return image + (weights if self.name == "ws" else weights * pixels)

    def _image_words(self, together: bool) -> Any:
        """Words of a channel that neighbours do not pass on, for all outputs, times the channels.

        Of their columns there are as many as the stride.
        """
        shape, sizes = self.found.shape, self.found.shape.sizes
        columns = sizes.s if shape.channelwise else min(sizes.s, shape.window.stride[1])
        rows = sizes.h * (1 if together else sizes.r) / self.found.boxes[:, 2]
        return sizes.c * rows * columns * (sizes.w / self.found.boxes[:, 1])

    def in_turn(self, rows: Sequence[int], cols: Sequence[int], cut: bool) -> Any:
        """Cycles of commits, and before and after these and loads, where nothing overlaps (Z6), at least."""
        shape, sizes, arch = self.found.shape, self.found.shape.sizes, self.found.arch
        (rk, rh, rc, rr), (ck, ch, cw), (p, z, zh) = rows, cols, self.found.boxes.T[:3]
        k, sums = self.over("k", rk, ck).trips, self.sums(rc, rr).trips
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
        words = (1 + 2 * arch.words_per_param * partial) / arch.glb.words_per_cycle
        busy = np.maximum(words, 1 / (prod(cols) * arch.commit.units_per_column))
        busy = busy * shape.tiled_together * sizes.h * sizes.w
        each = 1 + arch.commit.latency_cycles + rc * rr - 1
        return loads * (1 + arch.bus.latency_cycles) + times * (busy + k * pixels * each)


def combinations_below(found: Numbers, form: Form, limit: int, cut: bool = False) -> Found:
    """The combinations of a form whose macro-instructions and first loads take less than `limit` cycles.

    cut: in blocks that may be cut; then the cycles are those of the blocks for which they are fewest, or below.
    """
    shape, arch, tables = found.shape, found.arch, _tables(found, form, cut)
    boxes, lanes = _Boxes(found, form, tables), found.boxes[:, -1]
    times = shape.sizes.n * (shape.sizes.k // shape.tiled_together)
    overhead = arch.pe.start_cycles + arch.pe.finish_cycles
    all_rows, all_cols = found.rows.tolist(), found.cols.tolist()
    which: list[Counts] = []
    cycles: list[Counts] = []
    for row, col in np.argwhere(_least(found, tables) * times < limit).tolist():
        (rk, rh, rc, rr), (ck, ch, cw) = rows, cols = all_rows[row], all_cols[col]
        k, h, w = boxes.over("k", rk, ck), boxes.over("h", rh, ch), boxes.over("w", 1, cw)
        sums = boxes.sums(rc, rr)
        pixels = h.trips * w.trips
        macros = times * k.trips * pixels * sums.trips
        total = overhead * macros + times * k.held * h.held * w.held * sums.held / lanes
        loads = times * boxes.loads(k, pixels, sums, rr > 1)
        if arch.sequencer.overlap:
            least = np.maximum(total + found.words, loads)
        else:
            least = total + loads + macros + times * boxes.in_turn(rows, cols, cut)
        good = np.nonzero(least < limit)[0]
        if len(good):
            which.append(np.column_stack([np.full(len(good), row), np.full(len(good), col), good]))
            cycles.append(np.rint(np.stack([total[good], least[good]])).astype(np.int64))
    if not which:
        return Found(form, np.zeros((0, 3), np.int64), *[np.zeros(0, np.int64)] * 2)
    everything, (all_cycles, least_of_all) = np.concatenate(which), np.concatenate(cycles, axis=1)
    order = np.argsort(least_of_all, kind="stable")
    return Found(form, everything[order], all_cycles[order], least_of_all[order])


def _least(found: Numbers, tables: dict[str, Table]) -> Any:
    """Steps of all macro-instructions, at least, for unrollings of rows and of columns."""
    k, h, w, c, r = (tables[dim].held.min(axis=2).astype(float) for dim in "khwcr")
    (rk, rh, rc, rr), (ck, ch, cw) = found.rows.T[:, :, None], found.cols.T
    alone = w[1, cw] * c[rc, 1] * r[rr, 1]
    return k[rk, ck] * h[rh, ch] * alone * found.shape.sizes.s / int(found.boxes[:, -1].max())
