"""What a layer takes at least by its transfers, before any mapping is looked at. No IR."""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import product
from typing import Any

import numpy as np

from cnncc.arch.model import Arch
from cnncc.mapper.blocks import Blocks, Cells, cells_below, cut_dims, least_words, least_words_of, some_of
from cnncc.mapper.bound import ideal_cycles, up
from cnncc.mapper.space import Counts, Form, forms_of, shared
from cnncc.mapper.tiles import Tiles
from cnncc.model.layer_shape import GlbBudget, LayerShape

NEVER = 1 << 60
MANY = 32  # tiles that are looked at together
CELLS = 10_000  # plans of these together from which on it saves time to leave some out


class TransferBound:
    """What any plan of a layer takes at least by its transfers."""

    def __init__(self, shape: LayerShape, arch: Arch, budget: GlbBudget, steps: int = 0) -> None:
        """steps: of a macro-instruction, at most."""
        self.shape, self.arch, self.budget = shape, arch, budget
        self.held = arch.pe.ifmap_halves * (arch.pe.start_cycles + arch.pe.finish_cycles + steps)

    @cached_property
    def floor(self) -> int:
        """Cycles of the DMA, at least, whatever the tiles are: blocks may have any size, weights are there already.

        As many blocks of whole tiles are as large or larger, and move as many words or more.
        """
        form = next((form for form in forms_of(self.shape) if form.order.startswith("c")), forms_of(self.shape)[0])
        blocks = Blocks(self.shape, self.arch, self.budget, Tiles(form, 1, 1, 1, 1))
        there = blocks.legal & (blocks.least_words <= self.budget.words)
        return int(np.where(there, blocks.transfers(0), NEVER).min())

    def least(self, form: Form, tiles: Counts, compute: Counts, limit: int) -> tuple[Counts, Cells, Any]:
        """Cycles at least, by tiles (number, k h w c), blocks of which are made alike; NEVER where there is no room, or
        if they are not below `limit`. Then plans, and for each tile which of them may take less.

        compute: cycles of macro-instructions.
        """
        shape, arch, budget, first = self.shape, self.arch, self.budget, Tiles(form, *tiles.min(axis=0).tolist())
        cells = cells_below(shape, arch, budget, first, limit)
        if len(cells[0]) * len(tiles) > CELLS:
            cells = some_of(cells, self._alone(Blocks(shape, arch, budget, first, cells), compute.min()) < limit)
        if not len(cells[0]):
            return np.full(len(tiles), NEVER), cells, np.zeros((len(tiles), 0), np.bool_)
        k, h, w, c = (int(each[0]) if (each == each[0]).all() else each[:, None] for each in tiles.T)
        cycles = self.of_plans(Blocks(shape, arch, budget, Tiles(form, k, h, w, c), cells), compute[:, None])
        return cycles.min(axis=1), cells, cycles < limit

    def of_plans(self, blocks: Blocks, compute: Any) -> Counts:
        """Cycles at least of plans, with the weights where transfers take the fewest; NEVER where there is no room."""
        slices = up(self.shape.sizes.c, blocks.tiles.c)
        commits = blocks.committing(np.where(blocks.adds_up["c"], slices, 1)) * self.arch.sequencer.overlap
        alone = np.maximum(self._alone(blocks, compute), commits)
        best: Any = NEVER
        for stage in blocks.stages():
            transfers = blocks.transfers(stage.words - stage.buffer)
            best = np.minimum(best, np.where(blocks.buffers(stage).fit, np.maximum(transfers, alone), NEVER))
        return best.astype(np.int64)

    def _alone(self, blocks: Blocks, compute: Counts) -> Any:
        """Cycles of the array, at least: before the first block is there, and when the last one leaves, it has nothing
        to do, either.
        """
        compute = compute * self.arch.sequencer.overlap
        return compute + blocks.refills(self.held) + (blocks.first + blocks.last) // self.arch.dram.words_per_cycle


class TrafficOf:
    """The same for the points of a form, once for equal tiles; for many of these together when one is asked for.

    tiles: of each point, in the order of what the array takes at least, `array`; `compute` are the cycles of its
    macro-instructions. number: by points those of their tiles, counted in this order.
    """

    def __init__(self, traffic: TransferBound, form: Form, tiles: Counts, array: Counts, compute: Counts) -> None:
        self.traffic, self.form, self.array = traffic, form, array
        base = np.cumprod([1, *(tiles.max(axis=0) + 1)[:3]])  # makes one number of a tile
        _, first, same = np.unique(tiles @ base, return_index=True, return_inverse=True)
        self.first = np.sort(first)
        self.number: list[int] = np.searchsorted(self.first, first)[same].tolist()
        self.tiles = tiles[self.first]
        words = least_words_of(traffic.shape, traffic.arch, traffic.budget, form, self.tiles)
        self.fits = words <= traffic.budget.words
        self.found = np.where(self.fits, -1, NEVER)
        self.compute = np.full(len(first), NEVER)
        np.minimum.at(self.compute, self.number, compute)
        apart = [dim in cut_dims(traffic.shape, traffic.budget) and not shared(form, dim) for dim in "khwc"]
        self.blocks = self.tiles @ (base * apart)
        self.plans = dict[int, tuple[Cells, Any]]()

    def least(self, i: int, limit: int) -> int:
        """Cycles that point i takes at least, array and transfers together; NEVER if these are not below `limit`."""
        if self.found[number := self.number[i]] < 0:
            alike = (self.blocks[number:] == self.blocks[number]) & (self.found[number:] < 0)
            some = number + np.nonzero(alike)[0][:MANY]
            self.found[some], cells, may = self.traffic.least(self.form, self.tiles[some], self.compute[some], limit)
            self.plans.update(zip(some.tolist(), ((cells, each) for each in may), strict=True))
        alone = int(self.array[i])
        return max(alone, int(self.found[number]) + (0 if self.traffic.arch.sequencer.overlap else alone))

    def cells(self, i: int) -> Cells:
        """Plans of point i that were below the limit when its tile was looked at."""
        return some_of(*self.plans[self.number[i]])


def streamed_cycles(shape: LayerShape, arch: Arch, budget: GlbBudget) -> int:
    """Cycles of the DMA, at least, for what moves: each word once, of an image of which everything is needed."""
    sizes, window = shape.sizes, shape.window
    words = len(budget.streamed - {"ifmap"}) * sizes.n * sizes.k * sizes.h * sizes.w
    taps = zip((sizes.r, sizes.s), window.stride, window.dilation, strict=True)
    if "ifmap" in budget.streamed and all(stride <= (count - 1) * dilation + 1 for count, stride, dilation in taps):
        words += sizes.n * shape.channels * shape.ih * shape.iw
    return words // arch.dram.words_per_cycle


@lru_cache(maxsize=1 << 14)
def cycles_about(shape: LayerShape, arch: Arch, budget: GlbBudget) -> int:
    """Cycles of a layer, all multipliers busy, unless its transfers take longer: with tiles of a usual size.

    No bound, as other tiles may take less; NEVER where there is no room. In a millisecond, to compare rooms.
    """
    sizes = shape.sizes
    if shape.kind == "copy":
        return len(budget.streamed) * sizes.n * sizes.k * sizes.h * sizes.w // arch.dram.words_per_cycle
    ideal = ideal_cycles(shape, arch)
    if least_words(shape, arch, budget) > budget.words:
        return NEVER
    traffic = TransferBound(shape, arch, budget)
    together = (2 * arch.cols, 4) if shape.channelwise else (2 * arch.cols,)  # few images may fit, of 4 channels
    least = NEVER
    for form, k in product(forms_of(shape), together):
        blocks = Blocks(shape, arch, budget, Tiles(form, min(k, sizes.k), 1, 1, min(2 * arch.rows, sizes.c)))
        least = min(least, int(traffic.of_plans(blocks, ideal).min()))
        if least == ideal:
            break  # no other takes less
    return least + (0 if arch.sequencer.overlap else ideal)
