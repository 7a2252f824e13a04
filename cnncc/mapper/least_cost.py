"""The least words and the least energy of a layer, over all mappings of the space. No IR."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from cnncc.arch.model import Arch, Energy
from cnncc.mapper.arrays import Amounts
from cnncc.mapper.block_sizes import BlockSizes
from cnncc.mapper.blocks import Blocks
from cnncc.mapper.costs import dram_energy
from cnncc.mapper.space import form_of_all_blocks
from cnncc.mapper.tiles import Tiles
from cnncc.model.layer_shape import GlbBudget, LayerShape, image_words, reach


@lru_cache(maxsize=1024)
def least_cost(shape: LayerShape, arch: Arch, budget: GlbBudget, costs: Energy) -> float:
    """BOUND-20 and BOUND-21. No mapping of the space costs less: words from and to DRAM, and the array.

    array ≥ operations · (mac + ifmap read + weight read) + operations / lanes · (psum read + psum write)
            + words of image and weights · (GLB read + bus + register file write) + results · (psum read + GLB write)
            + residual · GLB read
    """
    operations, results = float(shape.operations), float(shape.results)
    cost = dram_cost(shape, arch, budget, costs) + results * costs.glb_write
    cost += results * costs.glb_read * budget.residual
    if shape.kind == "copy":
        return cost + results * costs.glb_read
    operation = costs.mac + costs.ifmap_read + costs.weight_read * shape.is_mac
    steps = operations / shape.most_products(arch)
    cost += operations * operation + steps * (costs.psum_read + costs.psum_write) + results * costs.psum_read
    cost += shape.weight_words * (costs.glb_read + costs.bus + costs.weight_write)
    return cost + image_words(shape) * (costs.glb_read + costs.bus + costs.ifmap_write)


def _inside(shape: LayerShape, axis: int, side: BlockSizes) -> tuple[Amounts, Amounts]:
    """Rows (columns) of the image that all blocks need, by their size: without padding, and with it."""
    sizes, window = shape.sizes, shape.window
    outputs, taps, whole = ((sizes.h, sizes.r, shape.ih), (sizes.w, sizes.s, shape.iw))[axis]
    stride, dilation, pad = window.stride[axis], window.dilation[axis], window.pad[axis]
    inside, needed = list[int](), list[int]()
    for size in side.sizes.tolist():
        lines = list[tuple[int, int]]()  # of a block: the first, and the one behind the last
        for first in range(0, outputs, size):
            start = first * stride - pad
            lines.append((start, start + reach(min(size, outputs - first), taps, stride, dilation)))
        is_cut = size < outputs
        inside.append(sum(max(0, min(end, whole) - max(start, 0)) for start, end in lines) if is_cut else whole)
        needed.append(sum(end - start for start, end in lines) if is_cut else whole)
    return np.array(inside), np.array(needed)


@lru_cache(maxsize=1024)
def dram_cost(shape: LayerShape, arch: Arch, budget: GlbBudget, costs: Energy) -> float:
    """BOUND-20. min over blocks that fit: words that come (`Blocks.fetched`), and results.

    Blocks may have any size, as those of tiles of one index have.
    """
    blocks = Blocks(shape, arch, replace(budget, tight=True), Tiles(form_of_all_blocks(shape), 1, 1, 1, 1))
    image = blocks.moved_image
    if "ifmap" in budget.streamed:
        (h, of_h), (w, of_w) = _inside(shape, 0, blocks.h), _inside(shape, 1, blocks.w)
        # What moves has the padding, which takes time. As words it does not count (DMA-2).
        image = np.multiply(image, (h / of_h)[blocks.hh] * (w / of_w)[blocks.ww])
    there = blocks.legal & (blocks.least_words <= budget.words)
    fetched = float(np.where(there, blocks.fetched(image), np.inf).min())
    return dram_energy(shape, budget.streamed, fetched, costs)
