"""Bounds of a point's plans by the array, block after block. No IR.

Arrays have the axes of `PerPlan`, those of `Trips` one axis `[size of blocks]`. docs/mapper.md defines the terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache, reduce
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from cnncc.arch.model import Arch
from cnncc.mapper.arrays import NONE, Amounts, Counts, Flags, PerPlan, transfer_cycles
from cnncc.mapper.block_sizes import BlockSizes, sides
from cnncc.mapper.blocks import Blocks, Cells, some_of
from cnncc.mapper.bound import Bound, LoopPart, Loops, last_steps, parts_of
from cnncc.mapper.space import Chain, steps_in_lanes
from cnncc.mapper.tiles import Tiles
from cnncc.model.layer_shape import GlbBudget
from cnncc.model.occupancy import ceil_div
from cnncc.model.register_files import positions, shared_columns


class Trips(NamedTuple):
    """Trips of the loops inside the blocks of one dimension, and sums of the indices that a PE holds in them.

    - trips, held: of all blocks. steps: `held`, as many at a time as lanes with sums of their own take
    - last_trips, last_steps: of the last block
    - own: whether every PE has work and the box fits. Else another point makes the same mapping.
    - in_one: trips of a full block; 0 if they are on different PEs. Of these trips the next four speak:
    - first, end: indices of the first and of the last
    - tail, short: steps of the last `halves`, and of the last `halves - 1`
    """

    trips: Counts
    held: Counts
    steps: Counts
    last_trips: Counts
    last_steps: Counts
    own: Flags
    in_one: Counts
    first: Counts
    end: Counts
    tail: Counts
    short: Counts


@lru_cache(maxsize=1 << 14)
def _side(extent: int, sizes: tuple[int, ...], chain: Chain, spread: bool, halves: int, own_lanes: int) -> Trips:
    rows = (_inside(extent, size, chain, spread, halves, own_lanes) for size in sizes)
    return Trips(*(np.array(column) for column in zip(*rows, strict=True)))


def _inside(extent: int, size: int, chain: Chain, spread: bool, halves: int, own_lanes: int) -> tuple[int, ...]:
    """A row of `Trips`, for blocks of one size."""
    full, rest = divmod(extent, size)
    last = _trips(rest or size, size, chain, spread, own_lanes)
    of_full = _trips(size, size, chain, spread, own_lanes) if rest else last
    trips, held, steps = (full * a + (rest > 0) * b for a, b in zip(of_full, last, strict=True))
    inside = parts_of(size, chain, spread, size)
    in_one = of_full[0] if inside.pieces == 1 else 0
    end, lasts = last_steps(inside, 1), (last_steps(inside, count, own_lanes) for count in (halves, halves - 1))
    return trips, held, steps, last[0], last[2], _is_own(size, chain), in_one, inside[0].held, end, *lasts


def _is_own(size: int, chain: Chain) -> bool:
    rows, cols, box, share = chain
    on_rows = ceil_div(size, rows)
    on_cols = ceil_div(on_rows, cols)
    return not share or (ceil_div(size, on_rows) == rows and ceil_div(on_rows, on_cols) == cols and box <= on_cols)


def _trips(extent: int, size: int, chain: Chain, spread: bool, own_lanes: int) -> tuple[int, int, int]:
    """Trips, the indices of all, and the steps of all."""
    inside = parts_of(extent, chain, spread, size)
    steps = sum(part.trips * steps_in_lanes(part.held, own_lanes) for part in inside)
    return inside.trips, sum(part.trips * part.held for part in inside), steps


class LoadWords(NamedTuple):
    """Words of loads, at three places. The place that takes longest says how many cycles (LOAD-2).

    - pe: into the register file of a PE
    - buses: over the bus of a row
    - port: out of the GLB; words that several PEs need come once

    Columns that neighbours pass on are loaded into the last PE alone.
    """

    pe: Amounts
    buses: Amounts
    port: Amounts

    def times(self, other: LoadWords) -> LoadWords:
        """With the loops over another dimension, too."""
        return LoadWords(*(a * b for a, b in zip(self, other, strict=True)))

    def plus(self, other: LoadWords) -> LoadWords:
        """The words of these loads and of other ones."""
        return LoadWords(*(a + b for a, b in zip(self, other, strict=True)))

    def again(self, count: Amounts | int) -> LoadWords:
        """The words of so many times these loads."""
        return LoadWords(*(words * count for words in self))

    def at(self, index: Counts) -> LoadWords:
        """The words of some sizes of blocks, by their numbers."""
        return LoadWords(*(words[index] for words in self))

    def cycles(self, arch: Arch) -> PerPlan:
        """The cycles of the loads: those of the place that takes longest."""
        buses, port = self.buses / arch.bus.burst_words, self.port / arch.glb.words_per_cycle
        return np.maximum(self.pe / arch.pe.words_per_cycle, np.maximum(buses, port))


def words_of(
    parts: Iterable[LoopPart], taps: int = 1, stride: int = 1, dilation: int = 1, passed: tuple[int, int] = (0, 0)
) -> LoadWords:
    """The words of loads over one dimension.

    passed: columns that a neighbour passes on to a PE with one, and with several.
    """
    pe = buses = port = 0
    for part in parts:
        each = positions(part.held, taps, stride, dilation)[0]
        shared = passed[part.held > 1] if part.cols > 1 else 0
        of_row = part.trips * ((each - shared) * part.cols + shared)
        pe, buses, port = pe + part.trips * each, buses + of_row, port + part.rows * of_row
    return LoadWords(*(np.array([words]) for words in (pe, buses, port)))


@lru_cache(maxsize=1 << 14)
def _loaded(
    extent: int, sizes: tuple[int, ...], chain: Chain, spread: bool, window: tuple[int, int, int],
    passed: tuple[int, int],
) -> LoadWords:  # fmt: skip
    """The words of loads over all blocks of a dimension, for blocks of each size. window: taps, stride, dilation."""
    rows = list[LoadWords]()
    for size in sizes:
        full, rest = divmod(extent, size)
        each = words_of(parts_of(size, chain, spread, size), *window, passed).again(full)
        rows.append(each.plus(words_of(parts_of(rest, chain, spread, size), *window, passed)) if rest else each)
    return LoadWords(*(np.concatenate(words) for words in zip(*rows, strict=True)))


def trips_of(bound: Bound, sides: Iterable[BlockSizes]) -> Iterator[Trips]:
    """The trips inside blocks of k, of h and of w, for all their sizes."""
    halves = bound.halves("I" if _weights_stay(bound) else "W")
    for dim, side in zip("khw", sides, strict=True):
        extent = bound.extent[dim]
        own_lanes, sizes = bound.at.own_lanes if dim == "k" else 1, tuple(side.sizes.tolist())
        yield _side(extent, sizes, bound.at.chain(dim, extent), dim == "k", halves, own_lanes)


def _weights_stay(bound: Bound) -> bool:
    return bound.at.form.order.partition("|")[2].startswith("W")


def plans_below(bound: Bound, budget: GlbBudget, tiles: Tiles, cells: Cells, limit: int) -> Cells:
    """Plans whose macro-instructions take less than `limit` cycles, and in whose blocks every PE has work and the box
    fits: else another point makes the same mapping.
    """
    each = [*zip(trips_of(bound, sides(bound.shape, budget, tiles)), cells[:3], strict=True)]
    k, h, w = ((trips.trips[at], trips.steps[at]) for trips, at in each)
    compute = bound.macro_cycles(k, h, w)
    return some_of(cells, np.logical_and.reduce([compute < limit, *(trips.own[at] for trips, at in each)]))


def _of_blocks(trips: Trips, side: BlockSizes, at: Counts) -> tuple[Loops[PerPlan], Loops[PerPlan], Loops[PerPlan]]:
    """The loops in all blocks together, in the last one, in a full one."""
    rest, full = side.number > side.full, side.full
    of_full = (trips.trips - rest * trips.last_trips) // full, (trips.steps - rest * trips.last_steps) // full
    return (
        (trips.trips[at], trips.steps[at]),
        (trips.last_trips[at], trips.last_steps[at]),
        (of_full[0][at], of_full[1][at]),
    )


class BlockTimes:
    """Cycles of the array for the plans of a point, and the bounds that follow from them alone.

    | attribute | cycles A(…), of all macro-instructions in |
    |---|---|
    | compute | all blocks: A |
    | in_last | the last iteration of the outermost loop over blocks: A(last) |
    | in_full | a full block: A(full) |
    | in_end | the last block of a row, or of a column if rows have one block: A(end) |
    | in_row_end, in_last_row | that of a row, and those of the last row; with k inside, for all channels |

    macros counts macro-instructions, commits counts commits; again counts the commits of a result.
    """

    def __init__(self, blocks: Blocks, bound: Bound) -> None:
        self.blocks, self.bound = blocks, bound
        arch = bound.arch
        self.weights_stay = _weights_stay(bound)
        self.halves = bound.halves("I" if self.weights_stay else "W")
        self.overhead = arch.pe.start_cycles + arch.pe.finish_cycles
        k, h, w = trips_of(bound, (blocks.k, blocks.h, blocks.w))
        self.k, self.h, self.w = k, h, w
        cycles = bound.macro_cycles
        k_all, k_last, k_full = _of_blocks(k, blocks.k, blocks.kk)
        h_all, h_last, h_full = _of_blocks(h, blocks.h, blocks.hh)
        w_all, w_last, w_full = _of_blocks(w, blocks.w, blocks.ww)
        self.compute = cycles(k_all, h_all, w_all)
        lasts = cycles(k_last, h_all, w_all), cycles(k_all, h_last, w_all), cycles(k_all, h_all, w_last)
        self.in_last: PerPlan = blocks.of_outermost(*lasts)
        # All cycles are those of all images and groups, these are of a single block.
        self.in_full = cycles(k_full, h_full, w_full) // bound.times
        ends = cycles(k_full, h_full, w_last), cycles(k_full, h_last, w_full)
        self.in_end = np.where(blocks.w.number[blocks.ww] > 1, *ends) // bound.times
        k_one = np.where(blocks.k_outside, k_full[0], k_all[0]), np.where(blocks.k_outside, k_full[1], k_all[1])
        self.in_row_end = cycles(k_one, h_full, w_last) // bound.times
        self.in_last_row = cycles(k_one, h_last, w_all) // bound.times
        self.macros = bound.times * prod(bound.trips(dim) for dim in "crs") * (k_all[0] * h_all[0] * w_all[0])
        again = (np.where(blocks.adds_up[dim], bound.trips(dim), 1) for dim in "crs")
        self.again: PerPlan = prod(again, start=np.ones(1, np.int64))
        # A smaller block may have one tile where a full one has several, and so no partial sums.
        everywhere = blocks.full * blocks.outputs == blocks.everything
        self.commits = bound.times * np.where(everywhere, self.again, 1) * (k_all[0] * h_all[0] * w_all[0])
        self.refills: PerPlan = blocks.refills(arch.pe.ifmap_halves * bound.first_last[0])

    def array(self) -> PerPlan:
        """BOUND-1. D(first block) + fill + A + stalls + drain + D(last block), with λ for both transfers.

        Stalls are those of BOUND-9 to BOUND-11. BOUND-2, BOUND-13, BOUND-22 and BOUND-23 hold, too.
        """
        blocks, bound, dram = self.blocks, self.bound, self.bound.arch.dram
        cut = bool(blocks.budget.streamed)
        comes = np.where(blocks.first > 0, transfer_cycles(blocks.first, dram) + dram.latency_cycles, 0)
        leaves = np.where(blocks.last > 0, transfer_cycles(blocks.last, dram) + dram.latency_cycles, 0)
        # How many results the last commit has depends on the last block: only the cycle behind it is certain.
        drain = leaves + (1 if cut else bound.drain)
        compute = self.compute + self.refills + self.residual_comes()
        committing = self.committing()
        sums = self.sums(committing)
        # The point's bounds are for block-distributed loops over a whole dimension: in blocks they have other parts.
        if cut and bound.depends_on_blocks:
            engines = np.maximum(self.loading(), committing)
            array = np.maximum(compute + self.waits() + drain, sums + leaves)
            least = bound.descriptors + comes + np.maximum(array, engines)
        else:
            waits = 0 if cut else bound.waits
            array = np.maximum(compute + waits + drain, sums + leaves)
            least = np.maximum(bound.fill_behind(comes) + array, bound.engines)
        beside = np.maximum(self.buffers_of_results(), bound.head + blocks.round_trips)
        return np.maximum(least, beside)

    def sums(self, committing: PerPlan) -> PerPlan:
        """BOUND-23 in blocks. (A + committing + commits · commit latency) / `psum_halves`."""
        arch = self.bound.arch
        return (self.compute + committing + self.commits * arch.commit.latency_cycles) / arch.pe.psum_halves

    def loading(self) -> PerPlan:
        """BOUND-2 in blocks: all loads, one after the other, by `LoadWords`.

        The stationary operand comes once for each block, the other one for each macro-instruction.
        """
        bound, blocks, k = self.bound, self.blocks, self._load_words("k").at(self.blocks.kk)
        image = self._image_words()
        if self.weights_stay:
            parts = product(*(bound.parts[dim] for dim in "kcrs"))
            loads = sum(prod(part.trips for part in tile) * bound.durations.weight_load(*tile) for tile in parts)
            image = image.times(k) if bound.shape.channelwise else image.again(self.k.trips[blocks.kk])
            return bound.times * (image.cycles(bound.arch) + loads * blocks.of_image)
        trips = self.h.trips[blocks.hh] * self.w.trips[blocks.ww]
        weights = reduce(LoadWords.times, (words_of(bound.parts[dim]) for dim in "crs"), k.again(trips))
        image = image.again(blocks.k.number[blocks.kk])
        return bound.times * (image.cycles(bound.arch) + weights.cycles(bound.arch))

    def _image_words(self) -> LoadWords:
        """The words of an ifmap that comes in each trip over c, h, w, r and s, with one index of k."""
        bound, blocks, total = self.bound, self.blocks, LoadWords(NONE, NONE, NONE)
        for r, s in product(bound.parts["r"], bound.parts["s"]):
            rows = self._load_words("h", r.held).at(blocks.hh)
            columns = self._load_words("w", s.held).at(blocks.ww)
            total = total.plus(rows.times(columns).again(r.trips * s.trips))
        return total.times(words_of(bound.parts["c"]))

    def _load_words(self, dim: str, taps: int = 1) -> LoadWords:
        """What loads bring of one dimension, for each size of its blocks; of h and w, what the windows touch."""
        bound, shape, extent = self.bound, self.bound.shape, self.bound.extent[dim]
        axis = "khw".index(dim)
        side = (self.blocks.k, self.blocks.h, self.blocks.w)[axis]
        stride, dilation = (1, *shape.window.stride)[axis], (1, *shape.window.dilation)[axis]
        passed = (0, 0)
        if dim == "w" and bound.at.products == 1:
            passed = shared_columns(shape, bound.arch, taps, 1), shared_columns(shape, bound.arch, taps, 2)
        sizes, chain = tuple(side.sizes.tolist()), bound.at.chain(dim, extent)
        return _loaded(extent, sizes, chain, dim == "k", (taps, stride, dilation), passed)

    def committing(self) -> PerPlan:
        """BOUND-2 in blocks. All commits, each with one cycle for every PE but one that adds up."""
        down = prod(min(part.rows for part in self.bound.parts[dim]) for dim in "cr") - 1
        return self.blocks.committing(self.again) + self.commits * down

    @cached_property
    def held_sums(self) -> PerPlan | int:
        """Cycles of the macro-instructions of the sums that PEs hold while a commit waits: `psum_halves` of them."""
        of_commit = prod(np.where(self.blocks.adds_up[dim], 1, self.bound.trips(dim)) for dim in "crs")
        return self.bound.arch.pe.psum_halves * self.bound.first_last[0] * of_commit

    def residual_comes(self) -> PerPlan:
        """BOUND-11. max(0, D(first block) + λ − `psum_halves` · macro-instructions of a commit − fill).

        The first commit waits for this block, if it does not come before the image. PEs go on with the sums that they
        hold meanwhile.
        """
        blocks, bound, dram = self.blocks, self.bound, self.bound.arch.dram
        if "residual" not in blocks.budget.streamed or "ifmap" in blocks.budget.streamed:
            return NONE
        comes = transfer_cycles(blocks.outputs, dram) + dram.latency_cycles
        return np.maximum(comes - self.held_sums - bound.fill, 0)

    def buffers_of_results(self) -> PerPlan:
        """BOUND-13. head + (commits + commit latencies + D(results) + N · λ) / 2, with N blocks of results.

        Each of two buffers is filled, drained, and filled again. One of them takes half of all that at least.
        """
        blocks, bound, arch = self.blocks, self.bound, self.bound.arch
        if "output" not in blocks.budget.streamed:
            return NONE
        latencies = blocks.results * (arch.commit.latency_cycles + arch.dram.latency_cycles)
        cycles = blocks.everything * (blocks.commit(False) + 1 / arch.dram.words_per_cycle)
        return bound.head + (cycles + latencies) / 2

    def waits(self) -> PerPlan:
        """BOUND-9 in blocks. (L − B + F) · max(0, both, alone): the two lines of the rule.

        short: cycles of the last `halves - 1` macro-instructions; lasts: of the last `halves`; neither with overhead.
        """
        bound, blocks, arch, (k, h, w) = self.bound, self.blocks, self.bound.arch, (self.k, self.h, self.w)
        kk, hh, ww, latency = blocks.kk, blocks.hh, blocks.ww, arch.bus.latency_cycles
        tiles = {dim: bound.parts[dim][0] for dim in "khwcrs"}
        taps, pixels = prod(bound.at.steps(dim, tiles[dim].held) for dim in "crs"), h.first[hh] * w.first[ww]
        # A load of the ifmap has at least as many pixels as there are outputs, of a PE and of all PEs.
        tile, channels = blocks.tiles, blocks.tiles.k if bound.shape.channelwise else blocks.tiles.c
        image = tiles["c"].held * pixels * (tiles["k"].held if bound.shape.channelwise else 1)
        image = image // arch.pe.words_per_cycle
        words = channels * np.minimum(tile.h, blocks.h.sizes[hh]) * np.minimum(tile.w, blocks.w.sizes[ww])
        image = np.maximum(image, words // arch.glb.words_per_cycle)
        weights = bound.durations.weight_load(*(tiles[dim] for dim in "kcrs"))
        if self.weights_stay:
            # The last trips: rows of one trip each; or the last row's columns, and full rows' if these are too few.
            one_row, held = w.in_one[ww] == 1, taps * bound.at.steps("k", tiles["k"].held)
            more = np.maximum(self.halves - w.in_one[ww], 0) * h.first[hh] * w.first[ww]
            rows = np.where(more > 0, h.first[hh], h.end[hh])
            lasts = held * np.where(one_row, h.tail[hh] * w.first[ww], rows * w.tail[ww] + more)
            short = held * np.where(one_row, h.short[hh] * w.first[ww], rows * w.short[ww] + more)
            other, trips = image, h.in_one[hh] * w.in_one[ww]
            dims, full, blocks_of_others = "kcrs", blocks.h.full[hh] * blocks.w.full[ww], blocks.of_image
        else:
            lasts, short = taps * pixels * k.tail[kk], taps * pixels * k.short[kk]
            other, trips = weights, k.in_one[kk]
            dims, full, blocks_of_others = "hwcrs", blocks.k.full[kk], blocks.k.number[kk]
        both = weights + image + latency - lasts - self.halves * self.overhead
        alone = other + latency - short - (self.halves - 1) * self.overhead
        stall = np.maximum(np.where(trips > self.halves, both, 0), np.where(trips >= self.halves, alone, 0))
        loads = bound.times * prod(tiles[dim].trips for dim in dims) * full
        in_row = np.where(self.refills > 0, 0, blocks.full - blocks.full // blocks.in_a_row)
        blocks_of_groups = blocks.results * blocks.groups_inside // blocks_of_others
        return np.maximum(loads - blocks_of_groups * full + in_row, 0) * np.maximum(stall, 0)
