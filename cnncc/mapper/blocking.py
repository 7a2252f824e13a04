"""How the operands of a point move through the GLB: blocks, stages of weights, and what the DMA takes at least.

For one point all plans are looked at together, as arrays; those that find room become candidates.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cnncc.arch.model import Arch
from cnncc.mapper.bound import Bound, up, ways
from cnncc.mapper.layer_shape import LayerShape, reach
from cnncc.mapper.space import Chain, Plan, Point, steps_of

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Room:
    """Words of the GLB for the buffers of a layer; which of ifmap, residual and output do not lie there as a whole.

    residual: whether there is one.
    """

    words: int
    moving: frozenset[str] = frozenset()
    residual: bool = False


def least_words(shape: LayerShape, arch: Arch, room: Room) -> int:
    """Words that buffers take at least in any mapping: of one output, its window, and the weights of one product."""
    sizes, window = shape.sizes, shape.window
    words = shape.params * arch.words_per_param * (sizes.h * sizes.w if shape.per_position else sizes.k)
    words += sizes.r * sizes.s * shape.is_mac + sum(operand in room.moving for operand in ("output", "residual"))
    if "ifmap" in room.moving:
        sides = zip((sizes.r, sizes.s), (sizes.h, sizes.w), (shape.ih, shape.iw), window.dilation, strict=True)
        words += sizes.c * prod(whole if n == 1 else reach(1, taps, 1, step) for taps, n, whole, step in sides)
    return words


class Side(NamedTuple):
    """Blocks of one dimension: sizes that are tried, trips and held sums of loops inside, how many; the last one."""

    sizes: Counts
    trips: Counts
    held: Counts
    number: Counts
    last: Counts
    last_trips: Counts
    last_held: Counts


def blocks(extent: int, chain: Chain, spread: bool, cut: bool) -> Side:
    """All sizes of blocks of a dimension: as equal as may be, of whole tiles where the dimension is tiled."""
    sizes = [extent]
    if cut:
        tile = 1 if chain[3] else steps_of(chain, extent)[0]
        tiles = up(extent, tile)
        sizes = sorted({min(extent, up(tiles, parts) * tile) for parts in range(1, tiles + 1)}, reverse=True)
    return Side(
        *(np.array(column) for column in zip(*(_inside(extent, size, chain, spread) for size in sizes), strict=True))
    )


def _inside(extent: int, size: int, chain: Chain, spread: bool) -> tuple[int, ...]:
    full, rest = divmod(extent, size)
    last = _trips(rest or size, size, chain, spread)
    each = _trips(size, size, chain, spread) if rest else last
    trips, held = (full * a + (rest > 0) * b for a, b in zip(each, last, strict=True))
    return size, trips, held, full + (rest > 0), rest or size, *last


def _trips(part: int, size: int, chain: Chain, spread: bool) -> tuple[int, int]:
    found = ways(part, chain, spread, size)
    return sum(way.trips for way in found), sum(way.trips * way.held for way in found)


class _Grid:
    """All blocks of k, h and w together, each in both orders: arrays [k, h, w, order], the first order with k outside.

    What is here are words and cycles of a point's plans, but for its weights.
    """

    def __init__(self, shape: LayerShape, arch: Arch, at: Point, room: Room, bound: Bound) -> None:
        self.shape, self.arch, self.at, self.room, self.bound = shape, arch, at, room, bound
        self.k, self.h, self.w = self._sides()
        lengths = [len(side.sizes) for side in (self.k, self.h, self.w)]
        self.shaped = (*lengths, 2)
        self.kk, self.hh, self.ww, order = (np.asarray(each) for each in np.ix_(*map(range, (*lengths, 2))))
        self.k_outside: Any = order == 0
        self.group = shape.tiled_together
        self._count_blocks()
        self._count_cycles()
        self._count_words()

    def _sides(self) -> tuple[Side, Side, Side]:
        shape, moving = self.shape, self.room.moving
        alone = self.room.residual and len(moving & {"output", "residual"}) == 1  # one start of a commit is for both
        cut = {
            "k": shape.shuffle == 1 and not alone and (shape.channelwise or "output" in moving),
            "h": True,
            "w": not shape.per_position,
        }
        extent = {"k": shape.tiled_together, "h": shape.sizes.h, "w": shape.sizes.w}
        k, h, w = (
            blocks(extent[dim], self.at.chain(dim, extent[dim]), dim == "k", bool(moving) and cut[dim]) for dim in "khw"
        )
        return k, h, w

    def _count_blocks(self) -> None:
        sizes, k_blocks = self.shape.sizes, self.k.number[self.kk]
        self.of_image: Any = self.h.number[self.hh] * self.w.number[self.ww]
        # Where only one of k and the image is cut, its blocks are outside what is fetched once.
        k_cut: Any = k_blocks > 1
        image_cut: Any = self.of_image > 1
        either = image_cut & (self.k_outside | k_cut)
        self.legal: Any = np.broadcast_to(np.asarray(either | ~image_cut & (self.k_outside != k_cut)), self.shaped)
        again = k_blocks if self.shape.channelwise else np.where(self.k_outside, k_blocks, 1)
        self.images: Any = sizes.n * self.of_image * again  # blocks of the ifmap
        self.results: Any = sizes.n * (sizes.k // self.group) * self.of_image * k_blocks
        self.buffers = {
            operand: 1 + np.broadcast_to((self.images if operand == "ifmap" else self.results) > 1, self.shaped)
            for operand in self.room.moving
        }  # one block needs one buffer only

    def _count_cycles(self) -> None:
        """Of the array: all, and those of the last block of the outermost loop."""
        shape, k, h, w = self.shape, self.k, self.h, self.w
        kk, hh, ww = self.kk, self.hh, self.ww
        times = shape.sizes.n * (shape.sizes.k // self.group)
        overhead = self.arch.pe.start_cycles + self.arch.pe.finish_cycles
        trips = times * prod(sum(way.trips for way in self.bound.ways[dim]) for dim in "crs")
        held = times * prod(sum(way.trips * way.held for way in self.bound.ways[dim]) for dim in "crs") // self.at.lanes

        def cycles(k: tuple[Any, Any], h: tuple[Any, Any]) -> Any:
            return overhead * trips * (k[0] * h[0] * w.trips[ww]) + held * (k[1] * h[1] * w.held[ww])

        k_all, h_all = (k.trips[kk], k.held[kk]), (h.trips[hh], h.held[hh])
        self.compute: Any = cycles(k_all, h_all)
        self.in_last: Any = np.where(
            self.k_outside,
            cycles((k.last_trips[kk], k.last_held[kk]), h_all),
            cycles(k_all, (h.last_trips[hh], h.last_held[hh])),
        )

    def _count_words(self) -> None:
        """Of all buffers; moved in all, of the ifmap alone, of one block of it; before the first and after the last."""
        shape, sizes, moving = self.shape, self.shape.sizes, self.room.moving
        k, h, w = (side.sizes[at] for side, at in ((self.k, self.kk), (self.h, self.hh), (self.w, self.ww)))
        outputs, everything = k * h * w, sizes.n * sizes.k * sizes.h * sizes.w
        self.share: Any = outputs / everything  # of a block of results
        self.moved_image: Any = np.zeros((1, 1, 1, 1))
        self.image: Any = self.moved_image
        if "ifmap" in moving:
            rows, cols = _image(shape, 0, self.h), _image(shape, 1, self.w)
            self.image = (k * sizes.c if shape.channelwise else sizes.c) * rows[0][self.hh] * cols[0][self.ww]
            channels = shape.channels if shape.channelwise else sizes.c * (sizes.k // self.group)
            again = 1 if shape.channelwise else np.where(self.k_outside, self.k.number[self.kk], 1)
            self.moved_image = sizes.n * channels * again * rows[1][self.hh] * cols[1][self.ww]
        results = len(moving & {"output", "residual"})
        self.moved: Any = self.moved_image + results * everything
        self.first: Any = self.image + outputs * ("residual" in moving and "ifmap" in moving)
        last = self.k.last[self.kk] * self.h.last[self.hh] * self.w.last[self.ww]
        self.last: Any = last * ("output" in moving)
        params = shape.params * self.arch.words_per_param * (sizes.h * sizes.w if shape.per_position else sizes.k)
        words: Any = params + self.buffers.get("ifmap", 0) * self.image
        for operand in moving & {"output", "residual"}:
            words = words + self.buffers[operand] * outputs
        if self.bound.partial:
            words = words + self.arch.words_per_param * (outputs if "output" in moving else everything)
        self.words: Any = words

    # -- what a plan takes at least --------------------------------------------------------------------------------

    def array(self) -> Any:
        """Cycles of the array, between the first block's and the last block's transfers; of loads; of commits."""
        wpc, latency = self.arch.dram.words_per_cycle, self.arch.dram.latency_cycles
        cut = bool(self.room.moving)
        comes = np.where(self.first > 0, self.first // wpc + latency, 0)
        drain = (1 if cut else self.bound.drain()) + np.where(self.last > 0, self.last // wpc + latency, 0)
        if cut and any(self.at.chain(dim, 1)[3] for dim in "khw"):  # what PEs load depends on the block
            return self.bound.views() + comes + self.compute + drain
        return np.maximum(self.bound.fill(comes) + self.compute + drain, self.bound.engines())

    def with_weights(self, stage: Weights) -> Any:
        """Cycles of array and DMA together, block after block."""
        wpc = self.arch.dram.words_per_cycle
        weights = stage.words - stage.buffer
        words = self.moved + weights
        turns = np.where(self.k_outside, self.k.number[self.kk], self.h.number[self.hh])
        inner = self.results / self.results if not self.room.moving & {"ifmap"} else np.maximum(self.images // turns, 1)
        share = np.where(self.k_outside, self.k.last[self.kk] / self.group, self.h.last[self.hh] / self.shape.sizes.h)
        image = share if self.shape.channelwise else np.where(self.k_outside, 1 / turns, share)
        last = (
            self.moved_image * image + (self.moved - self.moved_image) * share + weights * np.minimum(share, 1 / turns)
        )
        waits = 0
        if {"ifmap", "output"} <= self.room.moving:
            waits = self.arch.dram.latency_cycles + self.bound.between()
        full = _runs(self.compute - self.in_last, (words - last) / wpc, (turns - 1) * inner, waits)
        least = np.maximum(self.bound.head() + words // wpc, full + _runs(self.in_last, last / wpc, inner, waits))
        if stage.part is None:
            return least
        # While a block of the image comes, no slice of weights does: the array has two, and what PEs hold.
        there = 2 * self.compute * self.share * stage.part + 2 * self.bound.first_last()[0]
        stalls = np.maximum(self.images - 2, 0) * np.maximum(self.image / wpc - there, 0)
        return np.maximum(least, self.compute + stalls)


def _image(shape: LayerShape, axis: int, side: Side) -> tuple[Counts, Counts]:
    """Rows (columns) of the image: that a block needs, that all blocks need one after the other."""
    size, taps, limit = ((shape.sizes.h, shape.sizes.r, shape.ih), (shape.sizes.w, shape.sizes.s, shape.iw))[axis]
    stride, dilation = shape.window.stride[axis], shape.window.dilation[axis]

    def needed(outputs: Counts) -> Counts:
        return np.where(side.sizes == size, limit, (outputs - 1) * stride + (taps - 1) * dilation + 1)

    return needed(side.sizes), needed(side.sizes) * (side.number - 1) + needed(side.last)


def _runs(compute: Any, dma: Any, number: Any, waits: int) -> Any:
    """Cycles of so many blocks alike, at least, that take these of the array and of the DMA.

    A block comes behind the one that leaves two before it, which waits for that one's last commit: two blocks take
    what one computes, what the DMA takes for one, and `waits`. The first two and the last do not wait. Without `waits`
    blocks do not wait for each other like that.
    """
    number = np.maximum(number, 1)
    waiting = np.maximum(number - 3, 0)
    some = waiting / number
    least = np.maximum(compute, dma * some)
    return np.maximum(least, (compute * some + dma * some + waiting * waits) / 2) if waits else least


class Weights(NamedTuple):
    """A stage of weights in the GLB: before which loop, in how many buffers, words of a buffer, words that come.

    Of these the first slice comes ahead, in the layer before. part: of a block's work that is done with a slice, where
    slices come inside blocks.
    """

    place: Any
    buffers: int
    buffer: Any
    words: Any
    part: Any = None


def candidates(
    shape: LayerShape, arch: Arch, at: Point, room: Room, bound: Bound, limit: int
) -> Iterator[tuple[int, Plan]]:
    """All plans of a point for which there is room and that may take less than `limit` cycles, and what they take at
    least. In this order.
    """
    grid = _Grid(shape, arch, at, room, bound)
    array, found = grid.array(), list[Iterator[tuple[int, Plan]]]()
    for stage in _stages(grid):
        least = np.maximum(array, grid.with_weights(stage)).astype(np.int64)
        good = grid.legal & (grid.words + stage.buffers * stage.buffer <= room.words) & (least < limit)
        where = np.argwhere(good)
        if len(where):
            found.append(_in_order(grid, np.broadcast_to(least, grid.shaped)[good], where, stage))
    return heapq.merge(*found, key=_first)


def _first(candidate: tuple[int, Plan]) -> int:
    return candidate[0]


def _in_order(grid: _Grid, least: Counts, where: Counts, stage: Weights) -> Iterator[tuple[int, Plan]]:
    """The plans with one stage of weights, those that take the least first."""
    places = np.broadcast_to(stage.place, grid.shaped)
    for number in np.argsort(least, kind="stable").tolist():
        index = tuple(where[number].tolist())
        k, h, w = (int(side.sizes[i]) for side, i in zip((grid.k, grid.h, grid.w), index[:3], strict=True))
        moving = tuple((operand, int(buffers[index])) for operand, buffers in sorted(grid.buffers.items()))
        yield int(least[number]), Plan(k, h, w, index[3] == 0, int(places[index]), stage.buffers, moving)


def _stages(grid: _Grid) -> Iterator[Weights]:
    """Where weights may be staged: all at once, inside the loop over blocks of k, or inside one of the point's."""
    shape, at, sizes = grid.shape, grid.at, grid.shape.sizes
    everything, taps = shape.weight_words, sizes.r * sizes.s
    yield Weights(0, 1, everything, everything)
    if not shape.is_mac:
        return
    k_block = grid.k.sizes[grid.kk]
    if len(grid.k.sizes) > 1 or sizes.k > shape.tiled_together:
        words = sizes.n * everything * np.where(grid.k_outside, 1, grid.of_image)
        part = np.where(grid.k_outside, np.inf, 1)
        yield Weights(np.where(grid.k_outside, 3, 5), 2, k_block * sizes.c * taps, words, part)
    tile = {dim: steps_of(at.chain(dim, sizes.of(dim)), sizes.of(dim))[0] for dim in "hwc"}
    tile["k"] = steps_of(at.chain("k", shape.tiled_together), shape.tiled_together)[0]
    cut = {"h": grid.h.sizes[grid.hh], "w": grid.w.sizes[grid.ww]}
    before, inside = at.form.order.split("|")
    again, k_now, c_now = sizes.n * grid.of_image, k_block, sizes.c
    place = 5
    for dim in before.partition("r")[0]:
        place += 1
        if dim in "hw":
            again = again * -(-cut[dim] // tile[dim])
            continue
        k_now, c_now = (np.minimum(k_block, tile["k"]), c_now) if dim == "k" else (k_now, tile["c"])
        part = k_now / k_block * (c_now / sizes.c)
        yield Weights(place, 2, k_now * c_now * taps, everything * again, part)
    if inside.startswith("c") and tile["c"] < sizes.c:
        spaces = sum(count > 1 for count in at.rows[:2]) + sum(count > 1 for count in at.cols)
        part = k_now / k_block * (tile["c"] / sizes.c)
        yield Weights(place + spaces + 1, 2, k_now * tile["c"] * taps, everything * again, part)
