"""Sizes of blocks in which a layer's operands move through the GLB, and the words that these take at least. No IR."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from cnncc.arch.model import Arch
from cnncc.mapper.arrays import Counts, PerPlan
from cnncc.mapper.space import Form
from cnncc.mapper.tiles import Tiles
from cnncc.model.layer_shape import GlbBudget, LayerShape, reach
from cnncc.model.occupancy import ceil_div


def least_words(shape: LayerShape, arch: Arch, budget: GlbBudget) -> int:
    """Words that buffers take at least in any mapping: of one output, its window, and the weights of one product.

    Of the window all channels, or two slices of one.
    """
    sizes, window = shape.sizes, shape.window
    words = least_params(shape, arch, budget)
    words += sizes.r * sizes.s * shape.is_mac + sum(operand in budget.streamed for operand in ("output", "residual"))
    if "ifmap" in budget.streamed:
        sides = zip((sizes.r, sizes.s), (sizes.h, sizes.w), (shape.ih, shape.iw), window.dilation, strict=True)
        channels = sizes.c if shape.channelwise else min(sizes.c, 2)
        # A single row of outputs is all rows: its block has all rows of the image (`ifmap_block`).
        words += channels * prod(whole if n == 1 else reach(1, taps, 1, step) for taps, n, whole, step in sides)
    return words


def least_params(shape: LayerShape, arch: Arch, budget: GlbBudget) -> int:
    """Words of parameters that are there at least: all, or a slice of them (SPACE-12)."""
    each = shape.params * arch.words_per_param
    if shape.per_position:
        # No block cuts w by position (`cut_dims`).
        return each * (1 if positions_in_blocks(shape, budget) else shape.sizes.h) * shape.sizes.w
    in_slices = budget.tight and shape.is_mac and not budget.streamed and shape.shuffle == 1
    return each * (1 if in_slices else shape.sizes.k)


def positions_in_blocks(shape: LayerShape, budget: GlbBudget) -> bool:
    """Whether parameters by position may come with blocks of the ifmap or the output."""
    by_position = budget.tight and shape.per_position and not shape.is_mac
    return by_position and not budget.streamed.isdisjoint({"ifmap", "output"})


def groups_inside(shape: LayerShape, budget: GlbBudget) -> int:
    """Groups of output channels in a block: all of them if the output is streamed and its channels are shuffled."""
    return shape.sizes.k // shape.tiled_together if shape.shuffle > 1 and "output" in budget.streamed else 1


def channels_of_block(shape: LayerShape, groups: int, k: PerPlan | int) -> PerPlan | int:
    """Channels of the image for a block of k output channels in each of so many groups: all for several groups."""
    return shape.channels if groups > 1 else k * shape.sizes.c if shape.channelwise else shape.sizes.c


class BlockSizes(NamedTuple):
    """Blocks of one dimension: sizes that are tried, how many of each, the size of the last, how many are full."""

    sizes: Counts
    number: Counts
    last: Counts
    full: Counts


def has_one_start(budget: GlbBudget) -> bool:
    """Whether residual or output alone is streamed: a commit has one start for both."""
    return budget.residual and len(budget.streamed & {"output", "residual"}) == 1


def cut_dims(shape: LayerShape, budget: GlbBudget) -> str:
    """Which of k, h and w blocks may cut."""
    streamed = budget.streamed
    # SPACE-10: a block of k has fewer words of results, or of an image whose channels are its own. Else k is not cut.
    by_k = budget.tight or (not has_one_start(budget) and (shape.channelwise or "output" in streamed))
    cut = {
        "k": shape.shuffle == 1 and by_k,
        "h": True,
        "w": not shape.per_position,
    }
    return "".join(dim for dim, may_be in cut.items() if streamed and may_be)


@lru_cache(maxsize=4096)
def side(extent: int, tile: int) -> BlockSizes:
    """All sizes of blocks of a dimension: as equal as may be, of whole tiles."""
    tiles = ceil_div(extent, tile)
    sizes = np.array(
        sorted({min(extent, ceil_div(tiles, parts) * tile) for parts in range(1, tiles + 1)}, reverse=True)
    )
    number = -(-extent // sizes)
    return BlockSizes(sizes, number, extent - (number - 1) * sizes, extent // sizes)


def sides(shape: LayerShape, budget: GlbBudget, tiles: Tiles) -> tuple[BlockSizes, BlockSizes, BlockSizes]:
    """The sizes that blocks of k, h and w may have."""
    tile, sizes = block_tiles(shape, budget, tiles), shape.sizes
    return side(shape.tiled_together, tile["k"]), side(sizes.h, tile["h"]), side(sizes.w, tile["w"])


def block_tiles(shape: LayerShape, budget: GlbBudget, tiles: Tiles) -> dict[str, int]:
    """What blocks are multiples of; all where they do not cut."""
    extent = {"k": shape.tiled_together, "h": shape.sizes.h, "w": shape.sizes.w}
    return extent | {dim: tiles.block(dim) for dim in cut_dims(shape, budget)}


def least_words_of(shape: LayerShape, arch: Arch, budget: GlbBudget, form: Form, tiles: Counts) -> PerPlan:
    """Words that buffers take at least, by tiles (number, k h w c): one buffer each, a block being one tile."""
    sizes, window, streamed = shape.sizes, shape.window, budget.streamed
    of_tiles = Tiles(form, *tiles.T)
    block: dict[str, PerPlan | int] = dict(block_tiles(shape, budget, of_tiles))
    k, h, w = (block[dim] for dim in "khw")
    groups = groups_inside(shape, budget)
    words = least_params(shape, arch, budget) + groups * k * h * w * len(streamed & {"output", "residual"})
    if "ifmap" in streamed:
        channels = channels_of_block(shape, groups, k)
        # Under an outermost loop over c two slices of a tile's channels may do (SPACE-11).
        if form.order[0] == "c":
            channels = np.minimum(channels, 2 * of_tiles.c)
        rows = np.minimum(shape.ih, reach_of(h, sizes.r, window.stride[0], window.dilation[0]))
        columns = np.minimum(shape.iw, reach_of(w, sizes.s, window.stride[1], window.dilation[1]))
        words = words + channels * rows * columns
    slices = (1 if budget.tight else 2) * np.minimum(of_tiles.k, k) * of_tiles.c * sizes.r * sizes.s
    return words + np.minimum(shape.weight_words, slices)


def reach_of(outputs: PerPlan | int, taps: int, stride: int, dilation: int) -> PerPlan | int:
    """`reach`, of arrays too."""
    return (outputs - 1) * stride + (taps - 1) * dilation + 1
