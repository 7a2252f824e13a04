"""Bounds of a point's plans by transfers, and by what the array waits for them. No IR.

Arrays have the axes of `PerPlan`. docs/mapper.md defines the terms. All bounds follow from the order of transfers. The
DMA does them one after the other, and a transfer waits until its buffer is free.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from cnncc.mapper.arrays import NONE, PerPlan, transfer_cycles
from cnncc.mapper.block_times import BlockTimes
from cnncc.mapper.blocks import Buffers, Weights
from cnncc.mapper.space import StagePlace
from cnncc.model.occupancy import ceil_div


class BlockTransfers:
    """Bounds of the plans of a point, given the stage of weights."""

    def __init__(self, times: BlockTimes) -> None:
        self.times, self.blocks, self.bound = times, times.blocks, times.bound
        self.dram, self.streamed = self.bound.arch.dram, self.blocks.budget.streamed
        self.wpc = self.dram.words_per_cycle

    def least(self, stage: Weights, buffers: Buffers) -> PerPlan:
        """The highest of these bounds, or of BOUND-3 if nothing overlaps. buffers: those of this stage."""
        beside = self.beside_array(stage, buffers)
        return beside if self.bound.arch.sequencer.overlap else np.maximum(beside, self.in_turn(stage))

    def beside_array(self, stage: Weights, buffers: Buffers) -> PerPlan:
        """The highest of BOUND-4 with BOUND-12, and BOUND-14 to BOUND-19.

        BOUND-15 to BOUND-18 hold where everything that is streamed has two buffers.
        """
        idle = self.first_results(stage)
        dma = self.bound.head + self.blocks.transfers(stage.words - stage.buffer) + idle
        stalls = np.maximum(self.last_iteration(stage), self.in_one_buffer(stage, buffers))
        with_two = self.third_slices, self.behind_weights, self.behind_image, self.small_blocks
        for of_two in with_two if np.any(buffers.doubled) else ():
            stalls = np.maximum(stalls, np.where(buffers.doubled, of_two(stage), 0))
        return np.maximum(dma, self.times.compute + stalls)

    def first_results(self, stage: Weights) -> PerPlan:
        """BOUND-12. The DMA idles for max(0, A(full) − D(words before the first results)) + λ.

        At most these words come while the array works on the first block:

        - two blocks of the image, or the other slices of one and a block
        - three blocks of the residual
        - the weights of a block, and a slice
        """
        blocks = self.blocks
        if "output" not in self.streamed:
            return NONE
        slices = np.where(blocks.sliced, ceil_div(self.bound.shape.sizes.c, blocks.tiles.c), 1)
        words = np.minimum(blocks.image * (1 + slices), blocks.moved_image - blocks.image)
        words = words + 3 * blocks.outputs * ("residual" in self.streamed)
        if stage.part is not None:
            number = np.where(stage.place == StagePlace.IN_K_BLOCK, blocks.k.full[blocks.kk], blocks.full)
            words = words + np.minimum(stage.words / number + stage.buffer, stage.words - stage.buffer)
        return np.maximum(self.times.in_full - words / self.wpc, 0) + self.dram.latency_cycles

    def last_iteration(self, stage: Weights) -> PerPlan:
        """BOUND-14. D(words of the last iteration of the outermost loop − two blocks of each operand) − A(last).

        Two blocks come while the array works on earlier ones. The others wait for their buffers.
        """
        blocks, times = self.blocks, self.blocks.times
        if "output" not in self.streamed:
            return NONE
        weights = (stage.words - stage.buffer) * self._weights_of_last(stage)
        words = blocks.moved_image * blocks.image_of_last + (blocks.moved - blocks.moved_image) * blocks.share_of_last
        prefetched = 2 * (blocks.image + stage.buffer + blocks.outputs * ("residual" in self.streamed))
        return ((words + weights) / times - prefetched) / self.wpc - self.times.in_last / times

    def _weights_of_last(self, stage: Weights) -> PerPlan:
        """The share of all streamed weights that comes in the last iteration, at least."""
        blocks = self.blocks
        share, equal = blocks.share_of_last, 1 / blocks.outer_trips
        tiled = not {"h", "w"}.isdisjoint(self.bound.at.form.order.partition("|")[0])
        # Each block has all its slices once, or again for each of its tiles of h and w, of which a small one has fewer.
        inside = np.minimum(share, equal) if tiled else equal
        inside = np.maximum(inside, equal * (stage.place == StagePlace.IN_BLOCK))
        return np.where(blocks.k_outermost, share, np.where(stage.place == StagePlace.IN_K_BLOCK, 0, inside))

    @cached_property
    def _between_blocks(self) -> int:
        """e · λ + turn: from the last macro-instruction of block b to the first of block b + 2, beside transfers."""
        return self.dram.latency_cycles * (1 + ("residual" in self.streamed)) + self.bound.turn

    @cached_property
    def _end_words(self) -> PerPlan:
        """Words of the results of the last block before the next one of k."""
        blocks = self.blocks
        return blocks.k.sizes[blocks.kk] * blocks.h.last[blocks.hh] * blocks.w.last[blocks.ww]

    def _slices_behind_results(self, stage: Weights) -> PerPlan:
        """Slices of weights for a block of k that come behind results and before a second block that is full."""
        k_full, h_full, w_full = self.blocks.full_sides
        second_is_full = (w_full > 1) | (self.blocks.w.number[self.blocks.ww] == 1) & (h_full > 1)
        # The first two slices find free buffers.
        return np.where((stage.place == StagePlace.IN_K_BLOCK) & second_is_full, np.maximum(k_full - 2, 0), 0)

    def third_slices(self, stage: Weights) -> PerPlan:
        """BOUND-15. For each full block, max(0, D(s2 … s3) + e · λ + commit latency − A(s1) − A(s2)).

        Slices s1, s2, s3 are those of the ifmap or of weights. The DMA transfers, in this order:

        - s2. It waits for a buffer.
        - the results of block b − 1
        - the residual of block b
        - the image of block b + 1, unless it is sliced
        - the next slice of weights of BOUND-16, once for each
        - s3
        """
        bound, blocks = self.bound, self.blocks
        if "output" not in self.streamed:
            return NONE
        inside = np.full(1, stage.part is not None) & (stage.place > StagePlace.IN_BLOCK)
        weights = np.where(inside, stage.buffer, 0)
        of_weights = np.ones(1) if stage.part is None else np.where(inside, stage.part, 1)
        of_image = np.where(blocks.sliced, blocks.tiles.c / bound.shape.sizes.c, 1)
        part = np.minimum(of_image, of_weights)  # of a block's work that is done with a slice
        third = weights + np.where(of_weights < of_image, 0, blocks.image * blocks.sliced)
        # Weights that stay in PEs leave their slice's buffer long before the last macro-instruction with it.
        second = blocks.image * blocks.sliced if self.times.weights_stay else weights
        held = bound.arch.pe.ifmap_halves * bound.first_last[0]
        residual = "residual" in self.streamed
        images = blocks.double & ~blocks.sliced & (blocks.k_outside | bound.shape.channelwise)
        words = blocks.outputs * residual + blocks.image * images + third
        comes = np.maximum(transfer_cycles(second, self.dram) - held, 0) - 2 * self.times.in_full * part
        comes = comes + self.dram.latency_cycles * (1 + residual) + bound.arch.commit.latency_cycles
        stall = np.maximum(comes + transfer_cycles(words + blocks.outputs, self.dram), 0)
        with_weights = np.maximum(comes + transfer_cycles(words + self._end_words + stage.buffer, self.dram), 0)
        slices = self._slices_behind_results(stage)
        rows = blocks.full // blocks.in_a_row  # residual and image are those of the block behind the next one
        others = np.maximum(blocks.full - rows * (1 + (images | residual)) - slices, 0)
        return np.where(part <= 1 / 2, stall * others + with_weights * slices, 0)

    def behind_weights(self, stage: Weights) -> PerPlan:
        """BOUND-16. The image comes again per block of k: max(0, D(results, weights, image) + e · λ + turn − A(b)).

        - the second block of the image behind the next slice of weights: A(full), results of the last block
        - the first block of a row: A(end), full results, no weights

        Both come behind the results of the block two before. Only full blocks count.
        """
        blocks = self.blocks
        if not {"ifmap", "output"} <= self.streamed:
            return NONE
        w_number, (k_full, h_full, _) = blocks.w.number[blocks.ww], blocks.full_sides
        words = blocks.image + blocks.outputs * ("residual" in self.streamed)
        second = (
            transfer_cycles(words + self._end_words + stage.buffer, self.dram)
            + self._between_blocks
            - self.times.in_full
        )
        first = transfer_cycles(words + blocks.outputs, self.dram) + self._between_blocks - self.times.in_end
        slices = self._slices_behind_results(stage)
        ends = k_full * np.where(w_number > 1, h_full - 1, 1) - (w_number == 1)
        stalls = np.maximum(second, 0) * slices + np.maximum(first, 0) * np.maximum(ends - slices, 0)
        return np.where(blocks.double & ~blocks.sliced & blocks.k_outside, stalls, 0)

    def behind_image(self, stage: Weights) -> PerPlan:
        """BOUND-17. For each full image block, max(0, D(results, next image, weights) + λ + turn − A(full)).

        All blocks of k read a block of the image in turn. The DMA transfers, in this order: the results of the last of
        them, the next block of the image, the weights of the next block but one.
        """
        blocks = self.blocks
        if stage.part is None or not {"ifmap", "output"} <= self.streamed or self.bound.shape.channelwise:
            return NONE
        k_full, h_full, w_full = blocks.full_sides
        results = blocks.outputs // blocks.k.sizes[blocks.kk] * blocks.k.last[blocks.kk]
        comes = (
            transfer_cycles(results + blocks.image + stage.buffer, self.dram)
            + self.dram.latency_cycles
            + self.bound.turn
        )
        rows = np.where(blocks.w.number[blocks.ww] == w_full, 1, h_full)
        images = self.bound.times * np.maximum(h_full * w_full - rows - 1, 0)
        inside = blocks.double & ~blocks.sliced & ~blocks.k_outside & (stage.part == 1) & (k_full > 1)
        return np.where(inside, np.maximum(comes - self.times.in_full, 0) * images, 0)

    def small_blocks(self, stage: Weights) -> PerPlan:
        """BOUND-18. Slices of weights inside blocks: max(0, D(weights of a block − prefetched) − A(small block)).

        Small blocks stand at the ends of rows, and in the last row. They need as many words of weights as full ones.
        Two slices are in the GLB, and `weight_halves` in PEs.
        """
        blocks, bound = self.blocks, self.bound
        if stage.part is None:
            return NONE
        sizes = bound.shape.sizes
        channels = np.where(blocks.k_outside, blocks.k.sizes[blocks.kk], blocks.group)
        words, prefetched = channels * sizes.c * sizes.r * sizes.s, stage.buffer * (2 + bound.arch.pe.weight_halves)
        w_number, h_number = blocks.w.number[blocks.ww], blocks.h.number[blocks.hh]
        end = np.maximum((words - prefetched) / self.wpc - self.times.in_row_end, 0) * (h_number - 1)
        last = np.maximum((words * w_number - prefetched) / self.wpc - self.times.in_last_row, 0)
        times = bound.times * np.where(blocks.k_outside, blocks.k.full[blocks.kk], 1)
        return np.where(stage.place >= StagePlace.IN_BLOCK, (end + last) * times, 0)

    def in_one_buffer(self, stage: Weights, buffers: Buffers) -> PerPlan:
        """BOUND-19. The array waits for D(words but the first) + (N − 1) · (e · λ − A(held)), with N blocks or slices.

        Block b + 1 of results waits until block b has left. Meanwhile PEs hold `psum_halves` sums. Slice j + 1 of
        weights waits for the last load of slice j. Meanwhile PEs hold the work of `weight_halves` loads.
        """
        blocks, bound, pe, latency = self.blocks, self.bound, self.bound.arch.pe, self.dram.latency_cycles
        ways = len(self.streamed & {"output", "residual"})
        wait = ways * latency - self.times.held_sums
        words = ways * (blocks.everything - blocks.last_results) / self.wpc
        results = np.where(buffers.results == 1, words + (blocks.results - 1) * wait, 0) if ways else NONE
        if stage.part is None:
            return np.maximum(results, 0)
        loads = bound.trips("h") * bound.trips("w") if self.times.weights_stay else 1
        wait = latency - pe.weight_halves * bound.first_last[0] * loads
        # For a bound from below the most slices count where a wait is negative, and the fewest where it is not.
        number = blocks.slices(stage) if wait < 0 else stage.words // stage.buffer
        weights = (stage.words - stage.buffer) / self.wpc + (number - 1) * wait
        return np.maximum(np.where(buffers.weights == 1, np.maximum(results, weights), results), 0)

    def in_turn(self, stage: Weights) -> PerPlan:
        """BOUND-3. A + decoding + loads + commits + transfers, each with its latency, as nothing overlaps (TIME-6)."""
        blocks, bound, times, arch = self.blocks, self.bound, self.times, self.bound.arch
        transfers = blocks.images * ("ifmap" in self.streamed)
        transfers = transfers + blocks.results * len(self.streamed & {"output", "residual"})
        transfers = transfers + np.maximum(stage.words // np.maximum(stage.buffer, 1) - 1, 0)
        words = blocks.moved + stage.words - stage.buffer
        dma = transfer_cycles(words, self.dram) + transfers * (1 + self.dram.latency_cycles)
        # TIME-6: each is decoded when all others are done, which takes a cycle, and ends after its latency.
        load, commit = 1 + arch.bus.latency_cycles, 1 + arch.commit.latency_cycles
        # Of loads in blocks that of a word for each macro-instruction is all that is known here.
        if bound.depends_on_blocks:
            return times.compute + times.macros * (2 + load) + times.committing() + times.commits * commit + dma
        return times.compute + times.macros + bound.loads(load) + bound.commits(commit) + dma
