"""Blocks in which a layer's operands move through the GLB, and its weights: their words, for points with equal tiles.

All sizes of blocks, in both orders, in one buffer or two, are looked at together, as arrays. No IR.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from cnncc.arch.model import Arch
from cnncc.mapper.arrays import NONE, Counts, Flags, PerPlan, transfer_cycles
from cnncc.mapper.block_sizes import (
    BlockSizes,
    block_tiles,
    channels_of_block,
    groups_inside,
    has_one_start,
    least_params,
    positions_in_blocks,
    reach_of,
    side,
    sides,
)
from cnncc.mapper.space import StagePlace, forms_of
from cnncc.mapper.tiles import Tiles, any_of
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.occupancy import ceil_div

_Numbers = tuple[Counts, Counts]  # of blocks, of full ones
Cells = tuple[Counts, ...]  # of some plans: numbers of the sizes of k, h and w, the order, buffers of the ifmap


@lru_cache(maxsize=4096)
def _axes(shape: tuple[int, ...]) -> tuple[Counts, ...]:
    """The indices along each axis of an array."""
    return np.ix_(*map(np.arange, shape))


class Weights(NamedTuple):
    """A stage of weights in the GLB.

    - place: the number of loops around the stage (`StagePlace`)
    - buffers: the most buffers that it may have
    - buffer: words of a buffer
    - words: words of all transfers. With two buffers the first slice comes while the layer before runs.
    - part: the share of a block's work that is done with a slice, if slices come inside blocks
    - k, c: output and input channels of a slice
    - with_params: whether parameters may come with it
    """

    place: PerPlan | int
    buffers: PerPlan | int
    buffer: PerPlan | int
    words: PerPlan | int
    part: PerPlan | None = None
    k: PerPlan | int = 0
    c: PerPlan | int = 0
    with_params: bool = False


class Buffers(NamedTuple):
    """The buffers of plans with one stage of weights.

    - results: the number of buffers of output and of residual; 1.5 if output has two and residual one
    - weights: the number of buffers of weights
    - params_in_slices: whether parameters come in slices
    - fit: whether all buffers fit, and the plan is legal
    - doubled: whether all operands that come or go in blocks or slices have two, and a block has one group of channels
    """

    results: PerPlan
    weights: PerPlan | int
    params_in_slices: Flags
    fit: Flags
    doubled: Flags


class Blocks:
    """All plans of blocks together, as arrays with the axes `[k, h, w, order, ifmap]`.

    - k, h, w: the size of a block, by its number
    - order: 0 with k outside, 1 with k inside
    - ifmap: 0 in one buffer, 1 in two, 2 in slices of c in two

    With `cells`, a selection of plans, the axis is `[cell]`. If tiles are arrays, for many points, the axes are
    `[tile, cell]`. Tiles of the dimensions that blocks cut are equal for all points then.
    """

    def __init__(
        self, shape: LayerShape, arch: Arch, budget: GlbBudget, tiles: Tiles, cells: Cells | None = None
    ) -> None:
        self.shape, self.arch, self.budget, self.tiles = shape, arch, budget, tiles
        self.tile = block_tiles(shape, budget, tiles)
        self.k, self.h, self.w = sides(shape, budget, tiles)
        lengths = [len(each.sizes) for each in (self.k, self.h, self.w)]
        ways = 1 if "ifmap" not in budget.streamed else 2 + may_be_sliced(shape, budget, tiles)
        self.cells = cells or _axes((*lengths, 2, ways))
        self.shaped = np.broadcast_shapes(*(each.shape for each in self.cells))
        self.kk, self.hh, self.ww, order, ifmap = self.cells
        self.k_outside: Flags = order == 0
        self.double: Flags = ifmap > 0
        self.sliced: Flags = ifmap == 2
        self.group = shape.tiled_together
        # Blocks of shuffled channels are of all groups: there is a loop over these inside.
        self.groups_inside = groups_inside(shape, budget)
        self._count_blocks()
        self._count_buffers()
        self.legal: Flags = self._is_one_of_two_orders() & self._uses_ifmap_buffers() & self._has_legal_buffers()
        self._count_words()

    def _sides(self) -> tuple[tuple[BlockSizes, Counts], ...]:
        return (self.k, self.kk), (self.h, self.hh), (self.w, self.ww)

    def _count_blocks(self) -> None:
        """SPACE-10. Blocks of the image and of results, all and full ones, and which loop is outside the others."""
        sizes, k_blocks = self.shape.sizes, self.k.number[self.kk]
        self.of_image: PerPlan = self.h.number[self.hh] * self.w.number[self.ww]
        # An ifmap stays for all blocks of k if these are inside, and if it has one block for them (SPACE-11).
        again = np.where(self.k_outside | self.sliced | self.shape.channelwise, k_blocks, 1)
        self.times = times = sizes.n * (sizes.k // self.group // self.groups_inside)
        slices = np.where(self.sliced, ceil_div(sizes.c, self.tiles.c), 1)
        groups = np.where(self.sliced, self.groups_inside, 1)
        self.images: PerPlan = times * groups * self.of_image * again * slices  # blocks or slices of the ifmap
        self.results: PerPlan = times * self.of_image * k_blocks
        self.full_sides = k_full, h_full, w_full = self.k.full[self.kk], self.h.full[self.hh], self.w.full[self.ww]
        self.full: PerPlan = times * k_full * h_full * w_full  # full blocks
        self.k_cut: Flags = k_blocks > 1
        self.k_outermost: Flags = self.k_outside & self.k_cut
        self.h_outermost: Flags = ~self.k_outermost & (self.h.number[self.hh] > 1)

    def _is_one_of_two_orders(self) -> Flags:
        """SPACE-11. Of two orders of the same loops one is legal. Blocks of k alone are inside: an image comes once."""
        image_cut: Flags = self.of_image > 1
        return image_cut & (self.k_outside | self.k_cut) | ~image_cut & (self.k_outside != self.k_cut)

    def _uses_ifmap_buffers(self) -> Flags:
        """SPACE-11. One block needs one buffer only, and slices have a part of the channels."""
        several = (self.images > 1) if "ifmap" in self.budget.streamed else np.False_
        return (several | ~self.double) & (~self.sliced | (self.tiles.c < self.shape.sizes.c))

    def _count_buffers(self) -> None:
        """LEGAL-5. The most buffers of results. Residual or output alone has one inside loops over n and k."""
        many, streamed = self.results > 1, self.budget.streamed
        self.one_start = has_one_start(self.budget)
        self.in_one_buffer = self.one_start & (self.times * self.k.number[self.kk] > 1)
        # With a resident output the residual has two buffers only if the ifmap has.
        self.only_inputs = "ifmap" in streamed and "output" not in streamed
        self.several_results: Flags = many & self.double if self.only_inputs else many
        self.most_results: PerPlan = 1 + (self.several_results & ~self.in_one_buffer)

    def _has_legal_buffers(self) -> Flags | bool:
        """SPACE-13. Where two buffers of results would not be legal, a tight budget alone has plans with one."""
        if not self.budget.tight:
            return ~(self.in_one_buffer & (self.double | self.several_results))
        if not self.one_start:
            return True
        equal = self.group % self.k.sizes[self.kk] == 0
        # Beside a resident output residual and ifmap stand at one place (`has_tokens`): not with k inside.
        apart = self.only_inputs and not self.shape.channelwise
        return ~(self.double & self.in_one_buffer) & equal & (self.k_outside | ~self.k_cut | (not apart))

    def of_outermost(self, k: PerPlan, h: PerPlan, w: PerPlan) -> PerPlan:
        """The value k, h or w of the outermost loop over blocks. A loop over a single block does not count."""
        return self.k_outermost * k + self.h_outermost * h + ~(self.k_outermost | self.h_outermost) * w

    @cached_property
    def outer_trips(self) -> PerPlan:
        """Iterations of the outermost loop."""
        return self.of_outermost(*(side.number[at] for side, at in self._sides()))

    @cached_property
    def share_of_last(self) -> PerPlan:
        """The share of the outputs that the last iteration of the outermost loop computes."""
        k, h, w = (side.last[at] for side, at in self._sides())
        return self.of_outermost(k / self.group, h / self.shape.sizes.h, w / self.shape.sizes.w)

    @cached_property
    def image_of_last(self) -> PerPlan:
        """The share of the image's transferred words that come in that iteration."""
        if "ifmap" not in self.budget.streamed:
            return NONE
        rows, cols = (_image(self.shape, axis, self.tile[dim]) for axis, dim in enumerate("hw"))
        h, w = (1 - each[at] * (side.number[at] - 1) / all_[at] for (each, all_), (side, at) in zip(
            (rows, cols), self._sides()[1:], strict=True
        ))  # fmt: skip
        return self.of_outermost(self.share_of_last if self.shape.channelwise else 1 / self.outer_trips, h, w)

    @cached_property
    def in_a_row(self) -> PerPlan:
        """How many full blocks come one after the other, at least."""
        k, h, w = ((side.number[at], side.full[at]) for side, at in self._sides())

        def row(outer: _Numbers, middle: _Numbers, inner: _Numbers) -> Counts:
            more = np.where(middle[1] == middle[0], outer[1], 1)
            return inner[1] * np.where(inner[1] == inner[0], middle[1] * more, 1)

        return np.where(self.k_outside, row(k, h, w), row(h, w, k))

    def _count_words(self) -> None:
        """Words: of all buffers; of all transfers, of the ifmap's, of a block of it; before and after all blocks."""
        shape, sizes, streamed = self.shape, self.shape.sizes, self.budget.streamed
        k, h, w = (side.sizes[at] for side, at in self._sides())
        outputs, everything = self.groups_inside * k * h * w, shape.results
        self.everything = everything
        self.outputs: PerPlan = outputs
        self.moved_image: PerPlan = np.zeros(1)
        self.image: PerPlan = self.moved_image
        if "ifmap" in streamed:
            rows, cols = (_image(shape, axis, self.tile[dim]) for axis, dim in enumerate("hw"))
            of_block = channels_of_block(shape, self.groups_inside, k)
            self.image = np.where(self.sliced, self.tiles.c, of_block) * rows[0][self.hh] * cols[0][self.ww]
            once = shape.channelwise | (self.groups_inside > 1) & ~self.sliced
            channels = np.where(once, shape.channels, sizes.c * (sizes.k // self.group))
            again = np.where((self.k_outside | self.sliced) & (not shape.channelwise), self.k.number[self.kk], 1)
            self.moved_image = sizes.n * channels * again * rows[1][self.hh] * cols[1][self.ww]
        results = len(streamed & {"output", "residual"})
        self.moved: PerPlan = self.moved_image + results * everything
        # In one place the residual comes before the ifmap (GLB-3). Without a streamed ifmap BOUND-11 has it.
        self.first: PerPlan = self.image + outputs * ("residual" in streamed and "ifmap" in streamed)
        self.params = shape.param_words(self.arch)
        self.images_words: PerPlan = (1 + self.double) * self.image
        self.results_words: PerPlan = results * outputs
        least = least_params(shape, self.arch, self.budget)
        self.least_words: PerPlan = least + self.images_words + self.results_words  # without weights and partial sums

    @cached_property
    def last_results(self) -> PerPlan:
        """Results of the last block."""
        return self.groups_inside * self.k.last[self.kk] * self.h.last[self.hh] * self.w.last[self.ww]

    @property
    def last(self) -> PerPlan:
        """Words that leave after the last block."""
        return self.last_results * ("output" in self.budget.streamed)

    @cached_property
    def adds_up(self) -> dict[str, Flags | bool]:
        """For c, r and s: whether the sums of a block are partial where its loop runs more than once."""
        return self.tiles.adds_up({dim: side.sizes[at] for dim, (side, at) in zip("khw", self._sides(), strict=True)})

    @cached_property
    def partial(self) -> Flags | bool:
        """Whether a block has partial sums."""
        runs = {"c": self.tiles.c < self.shape.sizes.c, "r": self.tiles.taps, "s": self.tiles.taps}
        return self.shape.is_mac and any_of(self.adds_up[dim] & runs[dim] for dim in "crs")

    @cached_property
    def sums(self) -> PerPlan:
        """Words of partial sums."""
        words = self.outputs if "output" in self.budget.streamed else self.everything
        return np.where(self.partial, self.arch.words_per_sum * words, 0)

    def fetched(self, image: PerPlan) -> PerPlan:
        """BOUND-20. Words from DRAM at least: image, residual, parameters, and weights. image: words of the image.

        Weights come once if all of them fit beside a block, or those of a block of k inside which the image runs. Else
        they come once for each block of the image, of all images together (LOCAL-5).
        """
        sizes, weights, free = self.shape.sizes, self.shape.weight_words, self.budget.words - self.least_words
        of_block = self.k.sizes[self.kk] * sizes.c * sizes.r * sizes.s
        once = self.k_outside & (of_block <= free) & (self.groups_inside == 1)
        again = np.where(weights <= free, weights, weights * np.where(once, 1, self.of_image))
        return image + again + self.params + self.everything * ("residual" in self.budget.streamed)

    def commit(self, partial: Flags | bool) -> PerPlan:
        """Cycles for a result: its words through the GLB, or the units."""
        arch = self.arch
        words = 1 + self.budget.residual + 2 * arch.words_per_sum * partial
        return np.maximum(words / arch.glb.words_per_cycle, 1 / (arch.cols * arch.commit.units_per_column))

    def committing(self, again: PerPlan) -> PerPlan:
        """Cycles of all commits at least. again: of a result in a full block; others may have no partial sums."""
        full = self.full * self.outputs
        return full * again * self.commit(self.partial) + (self.everything - full) * self.commit(False)

    def stages(self) -> Iterator[Weights]:
        """Where weights may be staged: all at once, inside the loop over blocks of k, or inside one of the point's."""
        shape, tiles, sizes = self.shape, self.tiles, self.shape.sizes
        everything = shape.weight_words
        yield Weights(StagePlace.OUTSIDE, 1, everything, everything)
        if not shape.is_mac:
            return
        k_block, k_outside = self.k.sizes[self.kk], self.k_outside & (self.groups_inside == 1)
        if len(self.k.sizes) > 1 or sizes.k > shape.tiled_together:
            words = sizes.n * everything * np.where(k_outside, 1, self.of_image)
            # With k outside, the slice of a block of k serves all its blocks of the image: these have no slices inside.
            part = np.where(k_outside, np.inf, 1 / self.groups_inside)
            yield self._slices(
                np.where(k_outside, StagePlace.IN_K_BLOCK, StagePlace.IN_BLOCK), k_block, sizes.c, words, part
            )
        cut = {"h": (self.h, self.hh), "w": (self.w, self.ww)}
        before, inside = tiles.form.order.split("|")
        again, k_now, c_now = sizes.n * self.of_image, k_block, sizes.c
        # Each loop before the bar is one place further in. SPACE-12: loops over r and s stay inside a slice.
        place = int(StagePlace.IN_BLOCK)
        for dim in before.partition("r")[0]:
            place += 1
            if dim in "hw":
                (size, number, last, _), at = cut[dim]
                tile = getattr(tiles, dim)
                # Slices inside a loop over tiles of the image come again for each tile.
                all_tiles = (number[at] - 1) * -(-size[at] // tile) - (-last[at] // tile)
                again = again // number[at] * all_tiles
                continue
            k_now, c_now = (np.minimum(k_block, tiles.k), c_now) if dim == "k" else (k_now, tiles.c)
            part = k_now / k_block * (c_now / sizes.c) / self.groups_inside
            yield self._slices(place, k_now, c_now, everything * again, part)
        # Behind the bar come the loops in space, then that over c.
        if inside.startswith("c") and np.any(tiles.c < sizes.c):
            part = k_now / k_block * (tiles.c / sizes.c) / self.groups_inside
            yield self._slices(place + tiles.spaces + 1, k_now, tiles.c, everything * again, part)

    def _slices(self, place: PerPlan | int, k: PerPlan, c: PerPlan | int, words: PerPlan, part: PerPlan) -> Weights:
        sizes, tight, buffers = self.shape.sizes, self.budget.tight, 2
        if tight and self.one_start:  # blocks of residual or output, alone, have one buffer inside loops over n and k
            buffers = np.where((sizes.n > 1) | (k < sizes.k), 1, 2)
        with_params = tight and not self.budget.streamed and self.shape.shuffle == 1 and bool(np.all(c == sizes.c))
        return Weights(place, buffers, k * c * sizes.r * sizes.s, words, part, k, c, with_params)

    def slices(self, stage: Weights) -> PerPlan | int:
        """The most slices of weights that come."""
        sizes = self.shape.sizes
        k_blocks, again = sizes.k // self.group * self.k.number[self.kk], stage.words // self.shape.weight_words
        return k_blocks * -(-self.k.sizes[self.kk] // stage.k) * -(-sizes.c // stage.c) * again

    def buffers(self, stage: Weights) -> Buffers:
        """Two buffers of results and of slices of weights. In a tight budget one if two do not fit, first of the
        residual, then of output, then of weights; and parameters come in slices if not all of them fit.
        """
        budget = self.budget.words - self.images_words - self.sums
        each = self.shape.params * self.arch.words_per_param
        all_params, slice_, results = self.params, stage.buffer, self.results_words
        slices = all_params + results + slice_ > budget
        if stage.with_params:
            with_params = slice_ + each * stage.k
            beside_two = all_params + stage.buffers * slice_ <= budget
            slices = slices | ~beside_two & (stage.buffers * with_params <= budget)
            params, slice_ = np.where(slices, 0, all_params), np.where(slices, with_params, slice_)
        elif positions_in_blocks(self.shape, self.budget):
            block = (1 + self.double) * each * self.h.sizes[self.hh] * self.shape.sizes.w
            params = np.where(slices, block, all_params)
        else:
            params, slices = all_params, np.zeros(1, np.bool_)
        count, weights = self.most_results, stage.buffers
        if self.budget.tight:
            if {"residual", "output"} <= self.budget.streamed:
                count = np.where(params + count * results + weights * slice_ <= budget, count, np.minimum(count, 1.5))
            count = np.where(params + count * results + weights * slice_ <= budget, count, 1)
            weights = np.where(params + count * results + weights * slice_ <= budget, weights, 1)
        some = stage.part is None or stage.buffer < self.shape.weight_words
        fit = self.legal & some & (params + count * results + weights * slice_ <= budget)
        doubled = ~self.in_one_buffer & (count == self.most_results) & (stage.part is None or weights > 1)
        return Buffers(count, weights, slices, fit, doubled & (self.groups_inside == 1))

    def refills(self, held: int) -> PerPlan:
        """BOUND-10. Cycles in which the array has nothing to do while the DMA fills the one buffer of the ifmap again.

        held: cycles of what PEs hold meanwhile, which is nothing where the results of a block go out in between.
        """
        streamed, sizes, arch = self.budget.streamed, self.shape.sizes, self.arch
        if "ifmap" not in streamed:
            return NONE
        words, each = self.moved_image - self.image, arch.dram.latency_cycles - held
        if "output" in streamed:
            k, times = self.k.last[self.kk], sizes.n * (sizes.k // self.group)
            # Where k goes on with an image, these are the last channels of each.
            everything = times * sizes.h * sizes.w * np.where(self.images == self.results, self.group, k)
            words, each = words + everything - self.last_results, arch.dram.latency_cycles + arch.commit.latency_cycles
        again = words / arch.dram.words_per_cycle + (self.images - 1) * each
        return np.where(self.double | (self.images <= 1), 0, np.maximum(again, 0))

    @cached_property
    def round_trips(self) -> PerPlan:
        """BOUND-22. (D(words) + blocks · λ) / buffers, of the ifmap, of the residual and of the output.

        A buffer has one transfer at a time, from its start until its last word is there.
        """
        dram, longest = self.arch.dram, np.zeros(1)
        if "ifmap" in self.budget.streamed:
            cycles = self.moved_image * dram.rate_cycles / dram.rate_words
            longest = (cycles + self.images * dram.latency_cycles) / (1 + self.double)
        if {"residual", "output"} & self.budget.streamed:
            cycles = self.everything * dram.rate_cycles / dram.rate_words
            longest = np.maximum(longest, (cycles + self.results * dram.latency_cycles) / self.most_results)
        return longest

    def transfers(self, weights: PerPlan | int) -> PerPlan:
        """BOUND-4. Cycles of the DMA, at least, for what moves and for these words of weights.

        The residual of a block waits until the results of the one two before have left: for a latency, if nothing else
        comes meanwhile.
        """
        dram, others = self.arch.dram, self.moved_image + weights
        if not {"residual", "output"} <= self.budget.streamed:
            return transfer_cycles(self.moved - self.moved_image + others, dram)
        waits = np.maximum(self.results - 2, 0) * dram.latency_cycles
        results = transfer_cycles(self.moved - self.moved_image, dram)
        return results + np.maximum(transfer_cycles(others, dram), waits)


def may_be_sliced(shape: LayerShape, budget: GlbBudget, tiles: Tiles) -> bool:
    """Whether the ifmap may come in slices of c: inside a loop over c that is outside all others."""
    residual_alone = "residual" in budget.streamed and "output" not in budget.streamed
    outside = tiles.form.order.startswith("c") and not shape.channelwise
    return "ifmap" in budget.streamed and outside and not residual_alone and bool(np.any(tiles.c < shape.sizes.c))


class PlanBounds(NamedTuple):
    """The plans of tiles that may fit, the cycles of their transfers at least, and their words from DRAM at least."""

    cells: Cells
    cycles: PerPlan
    fetched: PerPlan


def cells_below(shape: LayerShape, arch: Arch, budget: GlbBudget, tiles: Tiles, limit: int) -> Cells:
    """The plans that may fit, and whose transfers may take less than `limit` cycles."""
    plans = plan_bounds(shape, arch, budget, tiles)
    return some_of(plans.cells, plans.cycles < limit)


def plan_bounds(shape: LayerShape, arch: Arch, budget: GlbBudget, tiles: Tiles) -> PlanBounds:
    """The bounds of all plans that may fit. Without slices of c they depend on the sizes of blocks alone."""
    if not may_be_sliced(shape, budget, tiles):
        tile = block_tiles(shape, budget, tiles)
        tiles = Tiles(forms_of(shape)[0], tile["k"], tile["h"], tile["w"], shape.sizes.c)
    return _plan_bounds(shape, arch, budget, tiles)


@lru_cache(maxsize=32)  # each may have megabytes
def _plan_bounds(shape: LayerShape, arch: Arch, budget: GlbBudget, tiles: Tiles) -> PlanBounds:
    blocks = Blocks(shape, arch, budget, tiles)
    there = np.broadcast_to(blocks.legal & (blocks.least_words <= budget.words), blocks.shaped)
    cycles = np.maximum(blocks.transfers(0), blocks.round_trips)
    of_each = cycles, blocks.fetched(blocks.moved_image)
    return PlanBounds(np.nonzero(there), *(np.broadcast_to(each, blocks.shaped)[there] for each in of_each))


def some_of(cells: Cells, chosen: Flags | Counts) -> Cells:
    """The cells that are chosen, by flags or by their numbers."""
    return tuple(each[chosen] for each in cells)


@lru_cache(maxsize=4096)
def _image(shape: LayerShape, axis: int, tile: int) -> tuple[Counts, Counts]:
    """Rows (columns) of the image: that a block needs, that all blocks need one after the other."""
    size, taps, limit = ((shape.sizes.h, shape.sizes.r, shape.ih), (shape.sizes.w, shape.sizes.s, shape.iw))[axis]
    stride, dilation, blocks = shape.window.stride[axis], shape.window.dilation[axis], side(size, tile)

    def needed(outputs: Counts) -> Counts:
        return np.where(blocks.sizes == size, limit, reach_of(outputs, taps, stride, dilation))

    return needed(blocks.sizes), needed(blocks.sizes) * (blocks.number - 1) + needed(blocks.last)
