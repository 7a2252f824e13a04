"""How the operands of a point move through the GLB: blocks, stages of weights, and what the layer takes at least.

All plans of a point are bounded together, as arrays. Plans that fit become candidates. A layer that lies in the GLB as
a whole has one block: its plans are a few stages of weights, and are bounded one by one, in a sixth of the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import lru_cache
from math import ceil
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from cnncc.arch.model import Arch
from cnncc.mapper.arrays import transfer_cycles
from cnncc.mapper.block_times import BlockTimes, plans_below
from cnncc.mapper.block_transfers import BlockTransfers
from cnncc.mapper.blocks import Blocks, Buffers, Cells, Counts, Weights, cells_below
from cnncc.mapper.bound import Bound
from cnncc.mapper.space import BlockPlan
from cnncc.mapper.tiles import Tiles, tiles_of
from cnncc.model.layer_shape import GlbBudget, LayerShape


def candidates(
    bound: Bound, budget: GlbBudget, limit: int, cells: Cells | None = None
) -> Iterator[tuple[int, BlockPlan]]:
    """All plans of a point that fit and may take less than `limit` cycles, and what they take at least, in this order.

    cells: no others may.
    """
    is_whole = not budget.streamed and not budget.tight and bound.arch.sequencer.overlap
    some = cells is None or len(cells[0]) > 0
    return in_one_block(bound, budget, limit) if is_whole and some else in_blocks(bound, budget, limit, cells)


class _Slices(NamedTuple):
    """A plan of a layer that lies in the GLB as a whole: words of all transfers of weights, and of one slice."""

    plan: BlockPlan
    words: int
    buffer: int


@lru_cache(maxsize=1024)
def _slices(shape: LayerShape, arch: Arch, budget: GlbBudget, tiles: Tiles) -> tuple[_Slices, ...]:
    """The plans that fit."""
    blocks = Blocks(shape, arch, budget, tiles, (np.zeros(1, np.int64),) * 5)
    each = [(stage, blocks.buffers(stage)) for stage in blocks.stages()]
    return tuple(
        _Slices(plan_at(blocks, 0, stage, buffers), *(int(np.max(words)) for words in (stage.words, stage.buffer)))
        for stage, buffers in each
        if np.all(buffers.fit)
    )


def in_one_block(bound: Bound, budget: GlbBudget, limit: int) -> Iterator[tuple[int, BlockPlan]]:
    """BOUND-4. The candidates of a layer that lies in the GLB as a whole: max(array, head + D(words but one slice)).

    No other rule says more. BOUND-18 speaks of small blocks, which are this one: all weights come in its time.
    """
    shape, dram, all_plans = bound.shape, bound.arch.dram, list[tuple[int, BlockPlan]]()
    array = bound.cycles(bound.compute)
    for plan, words, buffer in _slices(shape, bound.arch, budget, tiles_of(shape, bound.at)):
        least = max(array, bound.head + transfer_cycles(words - buffer, dram))
        if not budget.prefetched:  # the array waits for the first slice; this is for the order, and proves nothing
            least += transfer_cycles(buffer, dram)
        if least < limit:
            all_plans.append((least, plan))
    return iter(sorted(all_plans, key=itemgetter(0)))


def in_blocks(
    bound: Bound, budget: GlbBudget, limit: int, cells: Cells | None = None
) -> Iterator[tuple[int, BlockPlan]]:
    """The candidates of a layer in blocks, or in a tight budget."""
    shape, arch, tiles = bound.shape, bound.arch, tiles_of(bound.shape, bound.at)
    cells = cells_below(shape, arch, budget, tiles, limit) if cells is None else cells
    # Tiled loops have the same parts in all blocks: the point's own bound has said all of them.
    if bound.depends_on_blocks:
        cells = plans_below(bound, budget, tiles, cells, limit)
    if not len(cells[0]):
        return
    blocks = Blocks(shape, arch, budget, tiles, cells)
    times = BlockTimes(blocks, bound)
    array, transfers, by_stage = times.array(), BlockTransfers(times), list[Iterator[tuple[int, BlockPlan]]]()
    possible = array < limit
    for stage in blocks.stages() if possible.any() else ():
        buffers = blocks.buffers(stage)
        if not (fitting := possible & buffers.fit).any():
            continue
        least = np.maximum(array, transfers.least(stage, buffers))
        if not budget.prefetched:  # the array waits for the first slice; this is for the order, and proves nothing
            least = least + transfer_cycles(stage.buffer, arch.dram)
        good = np.nonzero(fitting & (least < limit))[0]
        if len(good):
            by_stage.append(_in_order(blocks, least[good].astype(np.int64), good, stage, buffers))
    # The plans of each stage are in order, and made only when they are asked for.
    yield from heapq.merge(*by_stage, key=itemgetter(0))


def _in_order(
    blocks: Blocks, least: Counts, where: Counts, stage: Weights, buffers: Buffers
) -> Iterator[tuple[int, BlockPlan]]:
    """The plans with one stage of weights, those that take the least first."""
    for number in np.argsort(least, kind="stable").tolist():
        yield int(least[number]), plan_at(blocks, int(where[number]), stage, buffers)


def plan_at(blocks: Blocks, i: int, stage: Weights, buffers: Buffers) -> BlockPlan:
    """The plan of cell `i` with a stage of weights. What all plans have alike may be one number, or an array of one."""
    each = (stage.place, buffers.weights, buffers.results, buffers.params_in_slices)
    place, weights, results, slices = (one if isinstance(one, int) else one[i % len(one)] for one in each)
    k, h, w, order, ifmap = (int(cell[i]) for cell in blocks.cells)
    k, h, w = (int(side.sizes[at]) for side, at in zip((blocks.k, blocks.h, blocks.w), (k, h, w), strict=True))
    # Of 1.5 buffers of results the output has two and the residual one (`Buffers`).
    counts = {"ifmap": min(2, 1 + ifmap), "residual": int(results), "output": ceil(results)}
    streamed = tuple((operand, counts[operand]) for operand in sorted(blocks.budget.streamed))
    return BlockPlan(k, h, w, order == 0, int(place), int(weights), streamed, ifmap == 2, bool(slices))
