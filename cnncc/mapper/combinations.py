"""All combinations of a layer's unrollings and boxes, with bounds of each. No IR.

All forms with one name have the same combinations. Bounds are computed as arrays: those that are quick to compute for
all combinations, then the others for the combinations that the first ones leave.
"""

from __future__ import annotations

from functools import cached_property, lru_cache, partial
from math import prod
from typing import NamedTuple

import numpy as np

from cnncc.arch.model import Arch
from cnncc.mapper.arrays import ILLEGAL, Amounts, Counts, Flags, stable_order
from cnncc.mapper.space import Form, Numbers, block_distributed, numbers
from cnncc.mapper.tables import EqualParts, LoopTable, LoopTables, table
from cnncc.mapper.tiles import tiles_in_time
from cnncc.model.layer_shape import LayerShape

# All 31 million of a 3 x 3 convolution of ResNet-50 on 16 x 16 PEs would take 250 MB an array.
AT_ONCE = 1 << 16  # combinations


class Combinations(NamedTuple):
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

    def some(self, chosen: Flags) -> Combinations:
        """The combinations that are chosen."""
        indices, tiles, cycles, least = (each[chosen] for each in (self.indices, self.tiles, self.cycles, self.least))
        return Combinations(self.form, indices, tiles, cycles, least, self.beyond)


def tables(numbers: Numbers, form: Form, cut: bool) -> dict[str, LoopTables]:
    """The tables of all dimensions."""
    sizes, shared = numbers.shape.sizes, {dim: block_distributed(form, dim) for dim in "khw"}
    bk, bw, bh, bc, br, bs = numbers.in_box
    rows_k, rows_h, rows_c, rows_r = numbers.rows.max(axis=0).tolist()
    cols_k, cols_h, cols_w = numbers.cols.max(axis=0).tolist()
    # A pool is not put together from parts (SPACE-5).
    even = EqualParts.ABOUT if numbers.shape.is_mac else EqualParts.EXACTLY
    return {
        "k": table(numbers.shape.tiled_together, rows_k, cols_k, bk, True, shared["k"], EqualParts.NOT, cut),
        "h": table(sizes.h, rows_h, cols_h, bh, False, shared["h"], EqualParts.NOT, cut),
        "w": table(sizes.w, 1, cols_w, bw, False, shared["w"], EqualParts.NOT, cut),
        "c": table(sizes.c, rows_c, 1, bc, False, False, even),
        "r": table(sizes.r, rows_r, 1, br, False, False, even),
        "s": table(sizes.s, 1, 1, bs, False, False, even),
    }


class Bounds:
    """Loops of a form's combinations, and their bounds.

    A combination is given by the indices of its unrollings of rows and columns, and of its box, in `Numbers`. They are
    broadcast, as all arrays are. cut: blocks may have any size; bounds hold for all of them then (BOUND-5).

    - rows, cols: PEs of each dimension, axes `[k h c r, …]` and `[k h w, …]`
    - bk bw bh bc br bs: indices in the box
    - k h w c r s: trips in time, and indices that the boxes of all trips hold
    - lanes, own_lanes: over c, r and s; over k
    """

    def __init__(
        self, numbers: Numbers, form: Form, cut: bool, of: dict[str, LoopTables], row: Counts, col: Counts, box: Counts
    ) -> None:
        self.shape, self.arch, self.form, self.cut = numbers.shape, numbers.arch, form, cut
        self.numbers, self.at = numbers, box
        boxes_of = numbers.boxes if self.arch.pe.lanes > 1 else numbers.boxes[:, :6]
        each = (numbers.rows, row), (numbers.cols, col), (boxes_of, box)
        self.rows, self.cols, boxes = (listed.T.take(at, axis=1) for listed, at in each)
        self.bk, self.bw, self.bh, self.bc, self.br, self.bs, *lanes = boxes
        (rk, rh, rc, rr), (ck, ch, cw) = self.rows, self.cols
        self.groups = _groups(self.shape)
        self.k, self.h, self.w = of["k"].of(rk, ck, self.bk), of["h"].of(rh, ch, self.bh), of["w"].of(1, cw, self.bw)
        self.c, self.r, self.s = of["c"].of(rc, 1, self.bc), of["r"].of(rr, 1, self.br), of["s"].of(1, 1, self.bs)
        self.sums = LoopTable(self.c.trips * self.r.trips, self.c.held * self.r.held)
        *self.lanes_of, self.own_lanes = lanes or (1, 1, 1, 1)
        self.lanes: Counts | int = prod(self.lanes_of)

    @cached_property
    def terms(self) -> Amounts:
        """Steps of all products of a sum."""
        if self.arch.pe.lanes == 1:
            return self.sums.held * self.s.held
        loops = (self.c, self.bc), (self.r, self.br), (self.s, self.bs)
        # What lanes take as a whole is one step, a smaller rest too; else they divide all parts but such a rest.
        by_c, by_r, by_s = (np.where(lanes == size, loop.trips, np.ceil(loop.held / lanes))
                            for lanes, (loop, size) in zip(self.lanes_of, loops, strict=True))  # fmt: skip
        return by_c * by_r * by_s

    @cached_property
    def fresh(self) -> Amounts:
        """Columns of its own that a window of a box, but the first, has at least: the stride, or all of few taps."""
        fewest_taps = self.shape.sizes.s - (self.s.trips - 1) * self.bs
        stride, dilation = self.shape.window.stride[1], self.shape.window.dilation[1]
        return self.s.trips * (np.minimum(stride, fewest_taps) if dilation == 1 else 1)

    @cached_property
    def uneven(self) -> Amounts:
        """Partial sums where fewer PEs add up a rest: in the loop over it and in those around it."""
        sizes, (_, _, rc, rr) = self.shape.sizes, self.rows
        uneven_c = (rc > 1) & (sizes.c % (rc * self.bc) > 0)
        uneven_r = (rr > 1) & (sizes.r % (rr * self.br) > 0)
        return np.where(uneven_r, self.sums.trips, np.where(uneven_c, self.c.trips, 1))

    def windows(self) -> Amounts:
        """Columns of the image that a PE takes for all its windows, which overlap."""
        return self.fresh * (self.w.held - self.w.trips) + self.shape.sizes.s * self.w.trips

    def columns(self) -> Amounts:
        """Columns of the image for all outputs. The first of a box are as few as the stride if neighbours pass on."""
        shape, neighbours = self.shape, self.cols[2] > 1
        passed = self.arch.links.n2n and not shape.channelwise and neighbours
        first = np.where(passed & (self.lanes == 1), min(shape.sizes.s, shape.window.stride[1]), shape.sizes.s)
        return shape.sizes.w * (self.fresh * (1 - 1 / self.bw) + first / self.bw)

    def distinct_rows(self) -> Amounts:
        """Rows of the image for all outputs, at least: PEs on a diagonal share them."""
        sizes, stride, dilation = self.shape.sizes, self.shape.window.stride[0], self.shape.window.dilation[0]
        outputs, taps = self.rows[1] * self.cols[1], self.rows[3]
        # With all taps on rows, side by side, each further output has `stride` rows of its own; else one at least.
        apart = np.where((taps == sizes.r) & (dilation == 1), np.minimum(stride, taps), 1)
        return sizes.h / outputs * (sizes.r / taps) * ((outputs - 1) * apart + taps)

    @cached_property
    def macros(self) -> Amounts:
        """All macro-instructions."""
        return self.groups * self.k.trips * self.h.trips * self.w.trips * self.sums.trips * self.s.trips

    @cached_property
    def compute(self) -> Amounts:
        """A, their cycles: steps + (start + finish) · macro-instructions. With own lanes it is a bound."""
        steps = self.groups * self.k.held * self.h.held * self.w.held * self.terms / self.own_lanes
        return steps + (self.arch.pe.start_cycles + self.arch.pe.finish_cycles) * self.macros

    def loads(self) -> Amounts:
        """BOUND-2. All loads ≥ Σ max(words of a PE / those of its write port, distinct words / GLB's words per cycle).

        Weights come once if they stay over h and w (`ws`), the ifmap once if it stays over k (`is`). Windows overlap in
        w. They overlap in h only if they have one row.
        """
        shape, sizes, own = self.shape, self.shape.sizes, self.shape.channelwise
        k, h, w, sums, port = self.k, self.h, self.w, self.sums, self.arch.glb.words_per_cycle
        write = self.arch.pe.words_per_cycle
        again = k.held if own else 1.0 if self.form.name == "is" else k.trips
        ifmap = again * (h.held if sizes.r == 1 else h.trips) * sums.held * self.windows()
        distinct = (shape.tiled_together if own else again) * self.columns() * (sizes.c * self.distinct_rows())
        ifmap = np.maximum(ifmap / write, distinct / port)
        if not shape.is_mac:
            return ifmap
        distinct = shape.tiled_together * sizes.c * sizes.r * sizes.s
        weights = np.maximum(k.held * sums.held * self.s.held / write, distinct / port)
        return ifmap + (weights if self.form.name == "ws" else weights * h.trips * w.trips)

    def units(self) -> Counts:
        """Output units of all columns in use."""
        return self.cols.prod(axis=0) * self.arch.commit.units_per_column

    def committing(self) -> tuple[Amounts, Amounts]:
        """BOUND-2. The cycles of all commits, at least, and how many there are.

        cycles ≥ results · max(words / GLB's words per cycle, 1 / output units of all columns in use)
                 + commits · (PEs that add up − 1)
        """
        shape, sizes, arch = self.shape, self.shape.sizes, self.arch
        (rk, rh, *_), (ck, ch, cw) = self.rows, self.cols
        sums = self.sums.trips * self.s.trips
        # Sums are partial where loops over c, r, s stand outside others in time.
        # A block may be a single tile, with no loop inside.
        outer = 1.0 if self.cut or self.form.name == "os" else sums
        held = {"is": -(-shape.tiled_together // (rk * ck)) > self.bk,
                "ws": (-(-sizes.h // (rh * ch)) > self.bh) | (-(-sizes.w // cw) > self.bw)}  # fmt: skip
        partial = (outer > 1) & held.get(self.form.name, False)
        times = np.maximum(np.where(partial, outer, 1), self.uneven)
        partial = partial | (self.uneven > 1)
        words = (1 + 2 * arch.words_per_sum * partial) / arch.glb.words_per_cycle
        busy = np.maximum(words, 1 / self.units()) * shape.tiled_together * sizes.h * sizes.w
        commits = times * (self.k.trips * self.h.trips * self.w.trips)
        return times * busy + commits * (self.adding_up(partial) - 1), commits

    def in_turn(self) -> Amounts:
        """BOUND-3. loads · (1 + bus latency) + all commits + commits · (1 + commit latency)."""
        k, sums, pixels = self.k.trips, self.sums.trips * self.s.trips, self.h.trips * self.w.trips
        loads = (1.0 if self.form.name == "is" else k) * pixels * sums
        if self.shape.is_mac:
            loads = loads + k * sums * (1.0 if self.form.name == "ws" else pixels)
        busy, commits = self.committing()
        arch = self.arch
        return loads * (1 + arch.bus.latency_cycles) + busy + commits * (1 + arch.commit.latency_cycles)

    def beside_loads(self) -> Amounts:
        """BOUND-2, BOUND-23. All commits, or (A + commits · commit latency + all commits) / `psum_halves`."""
        arch, (busy, commits) = self.arch, self.committing()
        waits = self.groups * (busy + commits * arch.commit.latency_cycles)
        return np.maximum(self.groups * busy, (self.compute + waits) / arch.pe.psum_halves)

    def adding_up(self, partial: Flags) -> Counts:
        """PEs that add up a sum, at least. Where they do not divide c or r, some partial sums are of one PE alone."""
        sizes, (_, _, rc, rr) = self.shape.sizes, self.rows
        even = (sizes.c % (rc * self.bc) == 0) & (sizes.r % (rr * self.br) == 0)
        rows = np.minimum(rc, sizes.c // self.bc) * np.minimum(rr, sizes.r // self.br)
        return np.where(partial & ~even, 1, rows)

    def fit_register_files(self) -> Flags:
        """Whether ping, pong and FIFO have room, by whether neighbours pass columns on (SPACE-4).

        If that depends on blocks: whether they may have room.
        """
        (rk, *_), (ck, _, cw) = self.rows, self.cols
        loaded, passed = self.numbers.fits.T.take(self.at, axis=1)
        # COST-3: columns are passed on along w, or with one dimension on columns, and not under a loop over k (`is`).
        one_dim = (self.cols > 1).sum(axis=0) < 2
        beside = one_dim | (cw > 1) & (not block_distributed(self.form, "w") or cw >= self.shape.sizes.w)
        anew = self.form.name != "is" or self.bk * rk * ck >= self.shape.tiled_together
        on_blocks = self.cut & ((self.form.name == "is") | (self.form.name == "ws") & ~beside)
        some: Flags = beside & anew
        return passed & (some | on_blocks) | loaded & (~some | on_blocks)

    def soon(self) -> Amounts:
        """BOUND-1, as far as it is soon known."""
        words = self.numbers.words.take(self.at) / self.arch.pe.words_per_cycle
        return self.compute + (words if self.arch.sequencer.overlap else self.macros)

    def least(self) -> Amounts:
        """The bound; ILLEGAL where register files have no room."""
        loads = self.groups * self.loads()
        if self.arch.sequencer.overlap:
            least = np.maximum(self.soon(), np.maximum(loads, self.beside_loads()))
        else:
            least = self.soon() + loads + self.groups * self.in_turn()
        return np.where(self.fit_register_files(), least, ILLEGAL) if self.arch.pe.pong_words else least


def _groups(shape: LayerShape) -> int:
    return shape.sizes.n * (shape.sizes.k // shape.tiled_together)


def _fewest_steps(numbers: Numbers, of: dict[str, LoopTables]) -> Amounts:
    """Steps of all macro-instructions with the best box: axes `[unrolling of rows, unrolling of columns]`."""
    k, h, w, c, r = (of[dim].held.min(axis=2) for dim in "khwcr")
    (rk, rh, rc, rr), (ck, ch, cw) = numbers.rows.T[:, :, None], numbers.cols.T
    steps = k[rk, ck] * h[rh, ch] * w[1, cw] * c[rc, 1] * r[rr, 1] * numbers.shape.sizes.s
    return steps / int(numbers.boxes[:, 6:].prod(axis=1).max()) * _groups(numbers.shape)


def combinations_below(numbers: Numbers, form: Form, limit: int, cut: bool = False) -> Combinations:
    """The combinations of a form whose bound is below `limit`, by BOUND-1 to BOUND-3 as far as boxes know them.

    cut: blocks may have any size; cycles are the least over all sizes then, or below (BOUND-5).
    """
    of, boxes = tables(numbers, form, cut), np.arange(len(numbers.boxes))
    bounds = partial(Bounds, numbers, form, cut, of)
    # Most pairs of unrollings take too many steps with any box. They are left out before boxes are looked at.
    steps = _fewest_steps(numbers, of)
    pairs = np.argwhere(steps < limit)
    parts = np.array_split(pairs, 1 + len(pairs) * len(boxes) // AT_ONCE)
    indices, cycles = list[Counts](), list[Counts]()
    for part in parts:
        row, col = part.T
        pair, box = np.nonzero(bounds(row[:, None], col[:, None], boxes).soon() < limit)
        some = bounds(row[pair], col[pair], box)
        least = some.least()
        below = least < limit
        indices.append(np.column_stack([row[pair], col[pair], box])[below])
        cycles.append(np.rint(np.stack([some.compute[below], least[below]])).astype(np.int64))
    chosen, (all_cycles, all_least) = np.concatenate(indices), np.concatenate(cycles, axis=1)
    if not len(chosen):
        # The next look then starts from the lowest bound of all (`_looks`).
        each = (bounds(part[:, :1], part[:, 1:], boxes).least() for part in parts if len(part))
        limit = int(min((least.min() for least in each), default=steps.min()))
    order = stable_order(all_least)
    chosen = chosen[order]
    return Combinations(form, chosen, tiles_in_time(numbers, chosen), all_cycles[order], all_least[order], limit)


@lru_cache(maxsize=256)
def found_below(shape: LayerShape, arch: Arch, form: Form, limit: int, cut: bool) -> Combinations:
    """`combinations_below`, kept: the GLB budgets of a layer, which are searched one after the other, share it."""
    return combinations_below(numbers(shape, arch), form, limit, cut)
