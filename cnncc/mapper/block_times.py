"""What a layer takes at least in blocks: of the array, of loads and commits, block after block. No IR.

All plans of one point together, as arrays like those of `blocks.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cnncc.mapper.blocks import Blocks, BlockSizes, Counts
from cnncc.mapper.bound import Bound, last_held, up, ways
from cnncc.mapper.space import Chain


class Trips(NamedTuple):
    """The trips of the loops inside the blocks of one dimension, and the sums of indices that their PEs hold.

    - trips, held: of all blocks
    - last_trips, last_held: of the last block
    - own: every PE has work in a block, and the box fits it: no other point makes the same mapping
    - in_one: trips in a full block, if all of them are on the same PEs
    - first, end: what the first and the last of these hold
    - tail, short: what the last `halves` of these hold, and the last `halves - 1`
    """

    trips: Counts
    held: Counts
    last_trips: Counts
    last_held: Counts
    own: Counts
    in_one: Counts
    first: Counts
    end: Counts
    tail: Counts
    short: Counts


@lru_cache(maxsize=1 << 14)
def _side(extent: int, sizes: tuple[int, ...], chain: Chain, spread: bool, halves: int) -> Trips:
    found = (_inside(extent, size, chain, spread, halves) for size in sizes)
    return Trips(*(np.array(column) for column in zip(*found, strict=True)))


def _inside(extent: int, size: int, chain: Chain, spread: bool, halves: int) -> tuple[int, ...]:
    full, rest = divmod(extent, size)
    last = _trips(rest or size, size, chain, spread)
    each = _trips(size, size, chain, spread) if rest else last
    trips, held = (full * a + (rest > 0) * b for a, b in zip(each, last, strict=True))
    inside = ways(size, chain, spread, size)
    in_one = each[0] if sum(way.pieces for way in inside) == 1 else 0
    lasts = (last_held(inside, count) for count in (1, halves, halves - 1))
    return trips, held, *last, _is_own(size, chain), in_one, inside[0].held, *lasts


def _is_own(size: int, chain: Chain) -> bool:
    rows, cols, box, share = chain
    on_rows = up(size, rows)
    on_cols = up(on_rows, cols)
    return not share or (up(size, on_rows) == rows and up(on_rows, on_cols) == cols and box <= on_cols)


def _trips(part: int, size: int, chain: Chain, spread: bool) -> tuple[int, int]:
    found = ways(part, chain, spread, size)
    return sum(way.trips for way in found), sum(way.trips * way.held for way in found)


def trips_of(bound: Bound, sides: Iterable[BlockSizes]) -> Iterator[Trips]:
    """What loops over k, h and w do in blocks of all sizes."""
    halves = bound.halves("I" if _weights_stay(bound) else "W")
    for dim, side in zip("khw", sides, strict=True):
        extent = bound.extent[dim]
        yield _side(extent, tuple(side.sizes.tolist()), bound.at.chain(dim, extent), dim == "k", halves)


def _weights_stay(bound: Bound) -> bool:
    return bound.at.form.order.partition("|")[2].startswith("W")


def _of_blocks(trips: Trips, side: BlockSizes, at: Any) -> Iterator[tuple[Counts, Counts]]:
    """Trips and held sums of all blocks, of the last one, of a full one."""
    rest, full = side.number > side.full, side.full
    yield trips.trips[at], trips.held[at]
    yield trips.last_trips[at], trips.last_held[at]
    yield (
        ((trips.trips - rest * trips.last_trips) // full)[at],
        ((trips.held - rest * trips.last_held) // full)[at],
    )


class BlockTimes:
    """What all blocks of a point take at least, as arrays like those of `blocks`."""

    def __init__(self, blocks: Blocks, bound: Bound) -> None:
        self.blocks, self.bound = blocks, bound
        at, arch = bound.at, bound.arch
        self.weights_stay = _weights_stay(bound)
        self.halves = bound.halves("I" if self.weights_stay else "W")
        k, h, w = trips_of(bound, (blocks.k, blocks.h, blocks.w))
        kk, hh, ww = blocks.kk, blocks.hh, blocks.ww
        overhead = arch.pe.start_cycles + arch.pe.finish_cycles
        trips = bound.times * prod(bound.trips(dim) for dim in "crs")
        held = bound.times * prod(sum(way.trips * way.held for way in bound.ways[dim]) for dim in "crs") // at.lanes

        def cycles(k: tuple[Any, Any], h: tuple[Any, Any], w: tuple[Any, Any]) -> Any:
            return overhead * trips * (k[0] * h[0] * w[0]) + held * (k[1] * h[1] * w[1])

        (k_all, k_last, k_full), (h_all, h_last, h_full), (w_all, w_last, w_full) = (
            _of_blocks(*each) for each in ((k, blocks.k, kk), (h, blocks.h, hh), (w, blocks.w, ww))
        )
        self.macros: Any = trips * (k_all[0] * h_all[0] * w_all[0])
        # Of the array: all, those of the outermost loop's last blocks; of one block, and of the last one in a row.
        self.compute: Any = cycles(k_all, h_all, w_all)
        lasts = cycles(k_last, h_all, w_all), cycles(k_all, h_last, w_all), cycles(k_all, h_all, w_last)
        self.in_last: Any = blocks.of_outermost(*lasts)
        self.in_full: Any = cycles(k_full, h_full, w_full) // bound.times
        ends = cycles(k_full, h_full, w_last), cycles(k_full, h_last, w_full)
        self.in_end: Any = np.where(blocks.w.number[ww] > 1, *ends) // bound.times
        # The same of all blocks of k with one of the image, where these are inside; of the last row's.
        k_one = np.where(blocks.k_outside, k_full[0], k_all[0]), np.where(blocks.k_outside, k_full[1], k_all[1])
        self.in_row_end: Any = cycles(k_one, h_full, w_last) // bound.times
        self.in_last_row: Any = cycles(k_one, h_last, w_all) // bound.times
        self.again: Any = prod(np.where(blocks.adds_up[dim], bound.trips(dim), 1) for dim in "crs")
        self.k, self.h, self.w = k, h, w
        everywhere = blocks.full * blocks.outputs == blocks.everything
        self.commits: Any = bound.times * np.where(everywhere, self.again, 1) * (k_all[0] * h_all[0] * w_all[0])
        self.refills = blocks.refills(arch.pe.ifmap_halves * bound.first_last[0])

    def array(self) -> Any:
        """Cycles of the array, between the first block's and the last block's transfers; of loads; of commits."""
        blocks, bound, dram = self.blocks, self.bound, self.bound.arch.dram
        cut = bool(blocks.budget.streamed)
        comes = np.where(blocks.first > 0, blocks.first // dram.words_per_cycle + dram.latency_cycles, 0)
        drain = (1 if cut else bound.drain) + np.where(
            blocks.last > 0, blocks.last // dram.words_per_cycle + dram.latency_cycles, 0
        )
        compute = self.compute + self.refills + self.residual_comes()
        if cut and bound.depends_on_blocks:
            engines = np.maximum(self.loading(), self.committing())
            least = bound.views() + comes + np.maximum(compute + self.waits() + drain, engines)
        else:
            waits = 0 if cut else bound.waits
            least = np.maximum(bound.fill(comes) + compute + waits + drain, bound.engines)
        return np.maximum(least, self.buffers_of_results())

    def residual_comes(self) -> Any:
        """Cycles that the array waits for the first block of a residual alone: what does not fit their sums."""
        blocks, bound, dram = self.blocks, self.bound, self.bound.arch.dram
        if "residual" not in blocks.budget.streamed or "ifmap" in blocks.budget.streamed:
            return 0
        comes = blocks.outputs // dram.words_per_cycle + dram.latency_cycles
        alone = prod(np.where(blocks.adds_up[dim], 1, bound.trips(dim)) for dim in "crs")
        return np.maximum(comes - bound.arch.pe.psum_halves * bound.first_last[0] * alone - bound.start, 0)

    def loading(self) -> Any:
        """Cycles of all loads: a PE takes a word a cycle, the GLB gives some; what stays comes once for each block."""
        bound, blocks, ways, sizes = self.bound, self.blocks, self.bound.ways, self.bound.shape.sizes
        k_trips, k_held = self.k.trips[blocks.kk], self.k.held[blocks.kk]
        trips, held = (each[0][blocks.hh] * each[1][blocks.ww] for each in zip(self.h[:2], self.w[:2], strict=True))
        c_held = sum(way.trips * way.held for way in ways["c"])
        image = np.maximum(c_held * held, sizes.c * sizes.h * sizes.w / bound.arch.glb.words_per_cycle)
        image = bound.times * bound.trips("r") * bound.trips("s") * image
        if self.weights_stay:
            each = product(*(ways[dim] for dim in "kcrs"))
            load = sum(prod(way.trips for way in tile) * bound.durations.weight_load(*tile) for tile in each)
            return image * (k_held if bound.shape.channelwise else k_trips) + bound.times * load * blocks.of_image
        products = k_held * c_held * prod(sum(way.trips * way.held for way in ways[dim]) for dim in "rs")
        return image * blocks.k.number[blocks.kk] + bound.times * products * trips

    def waits(self) -> Any:
        """As `Bound.waits`, in each block: for its loads of full tiles alone, of the image with as many as outputs.

        The first load of a block comes behind another block: where both are full, and the array does not wait anyway.
        """
        bound, blocks, arch, (k, h, w) = self.bound, self.blocks, self.bound.arch, (self.k, self.h, self.w)
        kk, hh, ww = blocks.kk, blocks.hh, blocks.ww
        tiles = {dim: bound.ways[dim][0] for dim in "khwcrs"}
        taps, pixels = prod(tiles[dim].held for dim in "crs"), h.first[hh] * w.first[ww]
        image = tiles["c"].held * pixels * (tiles["k"].held if bound.shape.channelwise else 1)
        tile, channels = blocks.tiles, blocks.tiles.k if bound.shape.channelwise else blocks.tiles.c
        words = channels * np.minimum(tile.h, blocks.h.sizes[hh]) * np.minimum(tile.w, blocks.w.sizes[ww])
        image = np.maximum(image, words // arch.glb.words_per_cycle)
        weights, latency = bound.durations.weight_load(*(tiles[dim] for dim in "kcrs")), arch.bus.latency_cycles
        if self.weights_stay:
            alone, held = w.in_one[ww] == 1, taps * tiles["k"].held
            more = np.maximum(self.halves - w.in_one[ww], 0) * h.first[hh] * w.first[ww]
            each = np.where(more > 0, h.first[hh], h.end[hh])
            lasts = held * np.where(alone, h.tail[hh] * w.first[ww], each * w.tail[ww] + more)
            short = held * np.where(alone, h.short[hh] * w.first[ww], each * w.short[ww] + more)
            load = image
            trips, times, dims = h.in_one[hh] * w.in_one[ww], blocks.h.full[hh] * blocks.w.full[ww], "kcrs"
            others = blocks.of_image
        else:
            lasts, short, load = taps * pixels * k.tail[kk], taps * pixels * k.short[kk], weights
            trips, times, dims = k.in_one[kk], blocks.k.full[kk], "hwcrs"
            others = blocks.k.number[kk]
        overhead = arch.pe.start_cycles + arch.pe.finish_cycles
        both = weights + image + latency - lasts // bound.at.lanes - self.halves * overhead
        own = load + latency - short // bound.at.lanes - (self.halves - 1) * overhead
        waits = np.maximum(np.where(trips > self.halves, both, 0), np.where(trips >= self.halves, own, 0))
        firsts = np.where(self.refills > 0, 0, blocks.full - blocks.full // blocks.in_a_row)
        blocks_of_groups = blocks.results * blocks.groups_inside // others
        steps = bound.times * prod(tiles[dim].trips for dim in dims) * times + firsts - blocks_of_groups * times
        return np.maximum(steps, 0) * np.maximum(waits, 0)

    def committing(self) -> Any:
        """Cycles of all commits, and of sums on their way down."""
        down = prod(min(way.rows for way in self.bound.ways[dim]) for dim in "cr") - 1
        return self.blocks.committing(self.again) + self.commits * down

    def buffers_of_results(self) -> Any:
        """Cycles in which results go through their two buffers: each is filled, emptied, and filled again."""
        blocks, bound, arch = self.blocks, self.bound, self.bound.arch
        if "output" not in blocks.budget.streamed:
            return 0
        waits = blocks.results * (arch.commit.latency_cycles + arch.dram.latency_cycles)
        words = blocks.everything * (blocks.commit(False) + 1 / arch.dram.words_per_cycle)
        return bound.head + (words + waits) / 2
