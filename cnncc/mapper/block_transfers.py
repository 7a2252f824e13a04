"""What a layer takes at least by the transfers of its blocks, and what the array waits for them. No IR.

All plans of one point together, as arrays like those of `blocks.py`.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from cnncc.mapper.block_times import BlockTimes
from cnncc.mapper.blocks import Buffers, Weights
from cnncc.mapper.bound import up


class BlockTransfers:
    """What the transfers of a point's blocks take at least, with weights in one of its stages."""

    def __init__(self, times: BlockTimes) -> None:
        self.times, self.blocks, self.bound = times, times.blocks, times.bound

    def beside_array(self, stage: Weights) -> Any:
        """Cycles of array and DMA together, block after block."""
        blocks, bound, times = self.blocks, self.bound, self.times
        streamed, wpc = blocks.budget.streamed, bound.arch.dram.words_per_cycle
        weights, turns = stage.words - stage.buffer, blocks.turns
        inner = np.maximum(blocks.images // turns, 1) if "ifmap" in streamed else np.ones_like(blocks.images)
        last: Any = self._moved_last + weights * self._weights_last(stage)
        waits = self.between_blocks if {"ifmap", "output"} <= streamed else 0
        together: Any = np.maximum(bound.head + blocks.transfers(weights), times.compute)
        before, others = times.compute - times.in_last, (blocks.moved + weights - last) / wpc
        runs = _runs(before, others, (turns - 1) * inner, waits) + _runs(times.in_last, last / wpc, inner, waits)
        least: Any = np.maximum(together, np.where(blocks.sliced, 0, runs))
        if "output" in streamed:  # of the last blocks of all two come ahead, behind whose buffers are the others
            ahead = 2 * (blocks.image + stage.buffer + blocks.outputs * ("residual" in streamed))
            behind = (last / blocks.times - ahead) / wpc
            least = np.maximum(least, times.compute - times.in_last / blocks.times + behind)
        least = np.maximum(least, self.behind_first_results(stage))
        buffers = blocks.buffers(stage)
        least = np.maximum(least, times.compute + self.in_one_buffer(stage, buffers))
        for stalls in (
            self.behind_results, self.behind_weights, self.behind_image, self.beside_images, self.small_blocks,
        ):  # fmt: skip
            least = np.maximum(least, times.compute + np.where(buffers.doubled, stalls(stage), 0))
        return least

    @cached_property
    def _moved_last(self) -> Any:
        """Words of activations that move in the last iteration of the outermost loop."""
        blocks = self.blocks
        return blocks.moved_image * blocks.image_of_last + (blocks.moved - blocks.moved_image) * blocks.share_of_last

    def _weights_last(self, stage: Weights) -> Any:
        """Of weights that move, those that do in that iteration, at least."""
        blocks = self.blocks
        turns, share = 1 / blocks.turns, blocks.share_of_last
        tiled = not {"h", "w"}.isdisjoint(self.bound.at.form.order.partition("|")[0])
        inside = np.minimum(share, turns) if tiled else turns
        inside = np.maximum(inside, turns * (stage.place == 5))
        return np.where(blocks.k_outermost, share, np.where(stage.place == 3, 0, inside))

    @cached_property
    def between_blocks(self) -> int:
        """Cycles between the last macro-instruction of a block and the first of the next but one, beside transfers."""
        residual = "residual" in self.blocks.budget.streamed
        return self.bound.arch.dram.latency_cycles * (1 + residual) + self.bound.between()

    @cached_property
    def _end_words(self) -> Any:
        """Words of the results of the last block before the next one of k."""
        blocks = self.blocks
        return blocks.k.sizes[blocks.kk] * blocks.h.last[blocks.hh] * blocks.w.last[blocks.ww]

    def behind_first_results(self, stage: Weights) -> Any:
        """Cycles of the DMA: it waits for the first block of results, but for two blocks of the image (or of its
        slices), and of residuals, and for the weights of this block and two slices more.
        """
        blocks, bound, dram = self.blocks, self.bound, self.bound.arch.dram
        if "output" not in blocks.budget.streamed:
            return 0
        slices = np.where(blocks.sliced, up(bound.shape.sizes.c, blocks.tiles.c), 1)
        words = np.minimum(blocks.image * (1 + slices), blocks.moved_image - blocks.image)
        words = words + 3 * blocks.outputs * ("residual" in blocks.budget.streamed)
        weights = stage.words - stage.buffer
        if stage.part is not None:
            number = np.where(stage.place == 3, blocks.k.full[blocks.kk], blocks.full)
            words = words + np.minimum(stage.words / number + stage.buffer, weights)
        first = np.maximum(self.times.in_full - words / dram.words_per_cycle, 0)
        return bound.head + first + blocks.transfers(weights) + dram.latency_cycles

    def _slices_behind_results(self, stage: Weights) -> Any:
        """How many slices of weights, for a block of k each, come behind results, and before a second block that is
        full.
        """
        k_full, h_full, w_full = self.blocks.full_sides
        second_is_full = (w_full > 1) | (self.blocks.w.number[self.blocks.ww] == 1) & (h_full > 1)
        return np.where((stage.place == 3) & second_is_full, np.maximum(k_full - 2, 0), 0)

    def behind_results(self, stage: Weights) -> Any:
        """Cycles that the array waits for third slices, of image or weights, in full blocks.

        The DMA does these in order: slice 2 (which waits for a buffer), results of block b - 1, residuals of block b,
        image of block b + 1, [the next weights, the first time with a block of k], slice 3. The array works on slices
        1 and 2 meanwhile.
        """
        bound, blocks, dram = self.bound, self.blocks, self.bound.arch.dram
        if "output" not in blocks.budget.streamed:
            return 0
        inside: Any = (stage.part is not None) & (stage.place > 5)
        weights: Any = np.where(inside, stage.buffer, 0)
        of_weights: Any = 1 if stage.part is None else np.where(inside, stage.part, 1)
        of_image: Any = np.where(blocks.sliced, blocks.tiles.c / bound.shape.sizes.c, 1)
        part: Any = np.minimum(of_image, of_weights)
        third: Any = weights + np.where(of_weights < of_image, 0, blocks.image * blocks.sliced)
        # Where weights stay in PEs their slice is free long before the last macro-instruction with it.
        second = blocks.image * blocks.sliced if self.times.weights_stay else weights
        held = bound.arch.pe.ifmap_halves * bound.first_last[0]
        images = blocks.double & ~blocks.sliced & (blocks.k_outside | bound.shape.channelwise)
        residual = "residual" in blocks.budget.streamed
        words = blocks.outputs * residual + blocks.image * images + third
        comes = np.maximum(second // dram.words_per_cycle - held, 0) - 2 * self.times.in_full * part
        comes = comes + dram.latency_cycles * (1 + residual) + bound.arch.commit.latency_cycles
        each = np.maximum(comes + (words + blocks.outputs) // dram.words_per_cycle, 0)
        first = np.maximum(comes + (words + self._end_words + stage.buffer) // dram.words_per_cycle, 0)
        slices = self._slices_behind_results(stage)
        rows = blocks.full // blocks.in_a_row  # residual and image are those of the block behind the next one
        others = np.maximum(blocks.full - rows * (1 + (images | residual)) - slices, 0)
        return np.where(part <= 1 / 2, each * others + first * slices, 0)

    def behind_weights(self, stage: Weights) -> Any:
        """Cycles that the array waits for blocks of the image where all of it comes for each block of k: for the second
        one, behind the next slice of weights, and for the first of a row. Both come behind the results of the block
        two before. Of full blocks alone.
        """
        blocks, wpc = self.blocks, self.bound.arch.dram.words_per_cycle
        if not {"ifmap", "output"} <= blocks.budget.streamed:
            return 0
        w_number, (k_full, h_full, _) = blocks.w.number[blocks.ww], blocks.full_sides
        words = blocks.image + blocks.outputs * ("residual" in blocks.budget.streamed)
        first = (words + self._end_words + stage.buffer) // wpc + self.between_blocks - self.times.in_full
        slices = self._slices_behind_results(stage)
        end = (words + blocks.outputs) // wpc + self.between_blocks - self.times.in_end
        ends = k_full * np.where(w_number > 1, h_full - 1, 1) - (w_number == 1)
        waits = np.maximum(first, 0) * slices + np.maximum(end, 0) * np.maximum(ends - slices, 0)
        return np.where(blocks.double & ~blocks.sliced & blocks.k_outside, waits, 0)

    def behind_image(self, stage: Weights) -> Any:
        """Cycles that the array waits for a block's weights behind the next block of the image, in full blocks.

        All blocks of k read a block of the image one after the other. The DMA does these in order: results of the last
        of them, next block of the image, weights.
        """
        blocks, dram = self.blocks, self.bound.arch.dram
        if stage.part is None or not {"ifmap", "output"} <= blocks.budget.streamed or self.bound.shape.channelwise:
            return 0
        k_full, h_full, w_full = blocks.full_sides
        results = blocks.outputs // blocks.k.sizes[blocks.kk] * blocks.k.last[blocks.kk]
        comes = (results + blocks.image + stage.buffer) // dram.words_per_cycle + dram.latency_cycles
        rows = np.where(blocks.w.number[blocks.ww] == w_full, 1, h_full)
        often = self.bound.times * np.maximum(h_full * w_full - rows - 1, 0)
        each = np.maximum(comes + self.bound.between() - self.times.in_full, 0)
        beside = blocks.double & ~blocks.sliced & ~blocks.k_outside
        return np.where(beside & (stage.part == 1) & (k_full > 1), each * often, 0)

    def beside_images(self, stage: Weights) -> Any:
        """Cycles that the array waits while a block of the image comes.

        No slice of weights comes meanwhile. The array has two of them, and what PEs hold.
        """
        blocks, bound = self.blocks, self.bound
        if stage.part is None:
            return 0
        there = 2 * self.times.compute * blocks.share * stage.part + 2 * bound.first_last[0]
        words = (blocks.moved_image - 2 * blocks.image) / bound.arch.dram.words_per_cycle
        waits = words - np.maximum(blocks.images - 2, 1) * there
        return np.where(blocks.images > 2, np.maximum(waits, 0), 0)

    def in_one_buffer(self, stage: Weights, buffers: Buffers) -> Any:
        """Cycles that the array waits for what goes or comes through one buffer.

        Block b + 1 of results waits until block b has left: meanwhile PEs hold `psum_halves` of work. Slice j + 1 of
        weights waits for the last load of slice j: meanwhile PEs hold the work of `weight_halves` loads.
        """
        blocks, bound, arch = self.blocks, self.bound, self.bound.arch
        moved = len(blocks.budget.streamed & {"output", "residual"})
        alone = prod(np.where(blocks.adds_up[dim], 1, bound.trips(dim)) for dim in "crs")
        each = moved * arch.dram.latency_cycles - arch.pe.psum_halves * bound.first_last[0] * alone
        words = moved * (blocks.everything - blocks.last_results) / arch.dram.words_per_cycle
        results = np.where(buffers.results == 1, words + (blocks.results - 1) * each, 0) if moved else 0
        if stage.part is None:
            return np.maximum(results, 0)
        loads = bound.trips("h") * bound.trips("w") if self.times.weights_stay else 1
        each = arch.dram.latency_cycles - arch.pe.weight_halves * bound.first_last[0] * loads
        number = stage.number if each < 0 else stage.words // stage.buffer
        weights = (stage.words - stage.buffer) / arch.dram.words_per_cycle + (number - 1) * each
        return np.maximum(np.where(buffers.weights == 1, np.maximum(results, weights), results), 0)

    def small_blocks(self, stage: Weights) -> Any:
        """Cycles that the array waits for slices of weights in small blocks: at the ends of rows, and in the last row.

        A small block needs as many words of weights as a full one. Two slices are there, and what PEs hold.
        """
        blocks, bound = self.blocks, self.bound
        if stage.part is None:
            return 0
        sizes, arch = bound.shape.sizes, bound.arch
        channels = np.where(blocks.k_outside, blocks.k.sizes[blocks.kk], blocks.group)
        words, ahead = channels * sizes.c * sizes.r * sizes.s, stage.buffer * (2 + arch.pe.weight_halves)
        w_number, wpc = blocks.w.number[blocks.ww], arch.dram.words_per_cycle
        end = np.maximum((words - ahead) / wpc - self.times.in_row_end, 0) * (blocks.h.number[blocks.hh] - 1)
        last = np.maximum((words * w_number - ahead) / wpc - self.times.in_last_row, 0)
        often = bound.times * np.where(blocks.k_outside, blocks.k.full[blocks.kk], 1)
        return np.where(stage.place >= 5, (end + last) * often, 0)

    def in_turn(self, stage: Weights) -> Any:
        """Cycles of all engines together, where nothing overlaps (TIME-6)."""
        blocks, bound, times = self.blocks, self.bound, self.times
        arch, streamed = bound.arch, blocks.budget.streamed
        transfers = blocks.images * ("ifmap" in streamed) + blocks.results * len(streamed & {"output", "residual"})
        transfers = transfers + np.maximum(stage.words // np.maximum(stage.buffer, 1) - 1, 0)
        words = blocks.moved + stage.words - stage.buffer
        dma = words // arch.dram.words_per_cycle + transfers * (1 + arch.dram.latency_cycles)
        load, commit = 1 + arch.bus.latency_cycles, 1 + arch.commit.latency_cycles
        if bound.depends_on_blocks:  # at least a load of a word for each macro-instruction
            return times.compute + times.macros * (2 + load) + times.committing() + times.commits * commit + dma
        return times.compute + times.macros + bound.loads(load) + bound.commits(commit) + dma


def _runs(compute: Any, dma: Any, number: Any, waits: int) -> Any:
    """Cycles of so many blocks alike, at least, that take these of the array and of the DMA.

    Block b waits for the results of block b - 2 to leave, and these for its last commit. So two blocks take at least
    compute + dma + waits. The first two blocks and the last one do not wait. With waits = 0 blocks do not wait for each
    other like that.
    """
    number = np.maximum(number, 1)
    waiting = np.maximum(number - 3, 0)
    some = waiting / number
    least = np.maximum(compute, dma * some)
    return np.maximum(least, (compute * some + dma * some + waiting * waits) / 2) if waits else least
