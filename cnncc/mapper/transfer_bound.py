"""Bounds of a layer by its transfers, before a mapping is looked at. No IR."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from cnncc.arch.model import Arch
from cnncc.mapper.arrays import NEVER, Counts, Flags, PerPlan, transfer_cycles
from cnncc.mapper.block_sizes import cut_dims, least_words, least_words_of
from cnncc.mapper.blocks import Blocks, Cells, Weights, cells_below, some_of
from cnncc.mapper.bound import ideal_cycles
from cnncc.mapper.space import Form, block_distributed, form_of_all_blocks, forms_of
from cnncc.mapper.tiles import Tiles
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.occupancy import ceil_div

MANY = 32  # tiles that are looked at together
CELLS = 10_000  # plans of these together from which on it saves time to leave some out


class TransferBound:
    """The least cycles of a layer over all plans that fit (BOUND-4)."""

    def __init__(self, shape: LayerShape, arch: Arch, budget: GlbBudget, steps: int = 0) -> None:
        """steps: of a macro-instruction, at most."""
        self.shape, self.arch, self.budget = shape, arch, budget
        self.held = arch.pe.ifmap_halves * (arch.pe.start_cycles + arch.pe.finish_cycles + steps)

    @cached_property
    def floor(self) -> int:
        """Cycles of the DMA for any tiles, at least: blocks may have any size, and no weights are transferred.

        Blocks of whole tiles are some of these.
        """
        blocks = Blocks(self.shape, self.arch, self.budget, Tiles(form_of_all_blocks(self.shape), 1, 1, 1, 1))
        there = blocks.legal & (blocks.least_words <= self.budget.words)
        return int(np.where(there, np.maximum(blocks.transfers(0), blocks.round_trips), NEVER).min())

    def least(self, form: Form, tiles: Counts, compute: Counts, limit: int) -> tuple[Counts, Cells, Flags]:
        """The bound of each tile, or NEVER; the plans; and flags: whether a tile's plan has a bound below `limit`.

        The tiles have blocks of equal sizes. Axes: tiles `[tile, khwc]`, compute and bound `[tile]`, flags
        `[tile, plan]`. compute: cycles of all macro-instructions.
        """
        shape, arch, budget, first = self.shape, self.arch, self.budget, Tiles(form, *tiles.min(axis=0).tolist())
        cells = cells_below(shape, arch, budget, first, limit)
        if len(cells[0]) * len(tiles) > CELLS:
            cells = some_of(cells, self._array(Blocks(shape, arch, budget, first, cells), compute.min()) < limit)
        if not len(cells[0]):
            return np.full(len(tiles), NEVER), cells, np.zeros((len(tiles), 0), np.bool_)
        cycles = self.of_plans(Blocks(shape, arch, budget, Tiles.of_many(form, tiles), cells), compute[:, None])
        return cycles.min(axis=1), cells, cycles < limit

    def of_plans(self, blocks: Blocks, compute: Counts | int) -> Counts:
        """BOUND-4. max(DMA, array, commits) of each plan, in the best stage of weights that fits; else NEVER."""
        best: PerPlan = np.full(1, NEVER)
        for _, cycles in self.by_stage(blocks, compute):
            best = np.minimum(best, cycles)
        return best.astype(np.int64)

    def by_stage(self, blocks: Blocks, compute: Counts | int) -> Iterator[tuple[Weights, PerPlan]]:
        """The bound of each plan (BOUND-4) by the stage of weights; NEVER where its buffers have no room."""
        slices = ceil_div(self.shape.sizes.c, blocks.tiles.c)
        commits = blocks.committing(np.where(blocks.adds_up["c"], slices, 1)) * self.arch.sequencer.overlap
        others = np.maximum(np.maximum(self._array(blocks, compute), commits), blocks.round_trips)
        for stage in blocks.stages():
            transfers = blocks.transfers(stage.words - stage.buffer)
            yield stage, np.where(blocks.buffers(stage).fit, np.maximum(transfers, others), NEVER)

    def _array(self, blocks: Blocks, compute: Counts | int) -> PerPlan:
        """Cycles of the array: A + refills of one buffer + D(first block) + D(last block)."""
        # Where nothing overlaps, the cycles of the array come on top of this bound (`TrafficOf.least`).
        compute = compute * self.arch.sequencer.overlap
        return compute + blocks.refills(self.held) + transfer_cycles(blocks.first + blocks.last, self.arch.dram)


class TrafficOf:
    """`TransferBound` for the points of a form, computed once for equal tiles, and for many tiles at once.

    - tiles, array, compute: by points in the order of `array`: axes `[point, khwc]` and `[point]`. `array` is the
      bound of a point by the array, `compute` the cycles of its macro-instructions
    - number: the tile of each point. Tiles are numbered by their first point
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
        self.known = np.where(self.fits, -1, NEVER)  # bounds of tiles; -1: not computed yet
        self.compute = np.full(len(first), NEVER)
        np.minimum.at(self.compute, self.number, compute)
        # Blocks depend on the tiles of those dimensions that they cut in whole tiles.
        apart = [dim in cut_dims(traffic.shape, traffic.budget) and not block_distributed(form, dim) for dim in "khwc"]
        self.blocks = self.tiles @ (base * apart)  # equal for tiles with blocks of equal sizes
        self.plans = dict[int, tuple[Cells, Flags]]()

    def least(self, i: int, limit: int) -> int:
        """The bound of point i, by array and transfers; NEVER if that of its tile is not below `limit`."""
        if self.known[number := self.number[i]] < 0:
            alike = (self.blocks[number:] == self.blocks[number]) & (self.known[number:] < 0)
            some = number + np.nonzero(alike)[0][:MANY]
            self.known[some], cells, below = self.traffic.least(self.form, self.tiles[some], self.compute[some], limit)
            self.plans.update(zip(some.tolist(), ((cells, of_tile) for of_tile in below), strict=True))
        array = int(self.array[i])
        return max(array, int(self.known[number]) + (0 if self.traffic.arch.sequencer.overlap else array))

    def cells(self, i: int) -> Cells:
        """Plans of point i that were below the limit when its tile was looked at."""
        return some_of(*self.plans[self.number[i]])


def streamed_cycles(shape: LayerShape, arch: Arch, budget: GlbBudget) -> int:
    """BOUND-4. ⌊words / words per cycle⌋, each word once: streamed ones, and weights that the GLB has no room for.

    The image counts only if windows leave no word out. The GLB holds all weights that come before the layer starts.
    """
    sizes, window = shape.sizes, shape.window
    words = len(budget.streamed - {"ifmap"}) * shape.results + max(0, shape.weight_words - budget.words)
    taps = zip((sizes.r, sizes.s), window.stride, window.dilation, strict=True)
    if "ifmap" in budget.streamed and all(stride <= (count - 1) * dilation + 1 for count, stride, dilation in taps):
        words += sizes.n * shape.channels * shape.ih * shape.iw
    return transfer_cycles(words, arch.dram)


@lru_cache(maxsize=1 << 14)
def cycles_about(shape: LayerShape, arch: Arch, budget: GlbBudget) -> int:
    """An estimate of a layer's cycles, to compare GLB budgets in a millisecond; NEVER if nothing fits.

    It is max(all multipliers busy, transfers) with tiles of a usual size. It is no bound, as other tiles may take less.
    """
    sizes = shape.sizes
    if shape.kind == "copy":
        return transfer_cycles(len(budget.streamed) * shape.results, arch.dram)
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
