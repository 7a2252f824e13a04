"""The search for blocks skips what cannot be better: it finds what a search through all that is tried finds.

That one is written here; of the passes it has what is tried, in which order, and the cycles of a tile
(test_nest_os_mapping.py has these from a walk). Words are counted afresh. CNNCC_EXAMPLES=500 draws that many layers.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from math import ceil, prod

import numpy as np
import pytest

from cnncc.arch.model import Arch, load_arch
from cnncc.dialects.cnn import Window
from cnncc.dialects.nest import DIMS, Mapping, Sizes, Stage
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling.os_plan import GlbTooSmall, divides, mapping_of, one_pitch
from cnncc.passes._scheduling.os_search import least_cycles, plans_tried, tiles_tried
from cnncc.passes._scheduling.os_tiles import array_cycles

LAYERS = int(os.environ.get("CNNCC_EXAMPLES", "80"))
SEED = int(os.environ.get("CNNCC_SEED", "0"))
LARGE = load_arch("spatial-8x8")
Random = np.random.Generator


def random_layer(rng: Random) -> LayerShape:
    """Convolutions, also grouped, depthwise, shuffled or with params for each position; pools."""

    def of(*values: int) -> int:
        return int(rng.choice(values))

    kind = str(rng.choice(["mac", "mac", "mac", "max"]))
    r, s, c, n = of(1, 2, 3), of(1, 3), of(1, 3, 8), of(1, 1, 2)
    each, groups = of(1, 2, 4, 6), of(1, 1, 2, 4)
    window = Window((r, s), (of(1, 2), of(1, 2, 4)), dilation=(of(1, 2), 1), group=groups)
    if kind == "max":
        each, c, window = 1, 1, replace(window, group=groups)
    h, w = of(1, 4, 7, 9), of(1, 3, 5, 8)
    ih = (h - 1) * window.stride[0] + (r - 1) * window.dilation[0] + 1
    iw = (w - 1) * window.stride[1] + (s - 1) * window.dilation[1] + 1
    k = groups * each
    per_position = kind == "max" and rng.random() < 0.5 or groups == 1 and rng.random() < 0.1
    params = of(1, 2) if kind == "mac" or per_position else 0
    shuffle = of(1, groups) if kind == "mac" else 1
    return LayerShape(kind, Sizes(n, k, c, h, w, r, s), window, params, ih, iw, shuffle, bool(per_position))


def random_arch(rng: Random) -> Arch:
    pe = replace(LARGE.pe, weight_words=int(rng.choice([9, 24])), ifmap_words=9, psum_words=int(rng.choice([2, 6])))
    dram = replace(LARGE.dram, words_per_cycle=int(rng.choice([1, 3])))
    return replace(LARGE, rows=int(rng.choice([2, 3])), cols=int(rng.choice([2, 4])), pe=pe, dram=dram)


def random_budget(rng: Random, shape: LayerShape) -> GlbBudget:
    """For next to nothing, for a part of the layer, for all of it."""
    residual = bool(rng.random() < 0.4)
    operands = ["ifmap", "output", *(["residual"] if residual else [])]
    streamed = frozenset(operand for operand in operands if rng.random() < 0.7)
    s = shape.sizes
    most = s.n * (s.k * s.c * s.r * s.s + shape.channels * shape.ih * shape.iw + 2 * s.k * s.h * s.w)
    return GlbBudget(int(most * rng.choice([0.02, 0.1, 0.2, 0.4, 0.7, 1.2])), streamed, residual)


def block_words(shape: LayerShape, arch: Arch, mapping: Mapping, stage: Stage) -> int:
    """Words of one buffer of a stage."""
    step = dict(vars(shape.sizes))
    for loop in mapping.loops[: stage.depth]:
        if not (loop.on and loop.dim == "k"):  # weights inside loops in space are those of all PEs
            step[loop.dim] = min(step[loop.dim], loop.step)
    n, k, c, h, w, r, s = (step[dim] for dim in DIMS)
    sizes, window = shape.sizes, shape.window
    if stage.operand == "weight":
        return k * c * sizes.r * sizes.s
    if stage.operand == "params":
        return (h * w if shape.per_position else k) * shape.params * (32 // arch.operand_bits)
    if stage.operand != "ifmap":
        return n * k * h * w
    rows = shape.ih if h == sizes.h else (h - 1) * window.stride[0] + (sizes.r - 1) * window.dilation[0] + 1
    cols = shape.iw if w == sizes.w else (w - 1) * window.stride[1] + (sizes.s - 1) * window.dilation[1] + 1
    per_group = sizes.k // window.group
    channels = k * sizes.c if shape.channelwise else c * max(1, k // per_group)
    return n * channels * rows * cols


def fetches(shape: LayerShape, mapping: Mapping, stage: Stage) -> int:
    """How often a stage is filled: the iterations of the loops in time around it."""
    left = dict(vars(shape.sizes))
    counts = []
    for loop in (loop for loop in mapping.loops[: stage.depth] if not loop.on):
        counts.append(ceil(left[loop.dim] / loop.step))
        left[loop.dim] = loop.step
    return prod(counts)


def search(shape: LayerShape, arch: Arch, budget: GlbBudget) -> tuple[Mapping | None, int]:
    """The first of the mappings that take the fewest cycles, none skipped; and the fewest words that one needs."""
    costs: list[tuple[int, int, Mapping]] = []
    least = 1 << 62
    for tile in tiles_tried(shape, arch):
        for plan in plans_tried(shape, tile, bool(budget.streamed)):
            mapping = mapping_of(shape, arch, tile, plan, budget.streamed)
            if not divides(shape, mapping, budget) or not one_pitch(shape, mapping):
                continue
            words = [(stage, block_words(shape, arch, mapping, stage)) for stage in mapping.stages]
            words = [(stage, each) for stage, each in words if stage.memory == "glb"]
            needed = sum(each * stage.buffers for stage, each in words)
            least = min(least, needed)
            if needed <= budget.words:
                moved = sum(each * fetches(shape, mapping, stage) for stage, each in words)
                array = array_cycles(shape, arch, replace(tile, q=min(tile.q, plan.c)))
                costs.append((array + ceil(moved / arch.dram.words_per_cycle), len(costs), mapping))
    return (min(costs, key=lambda cost: cost[:2])[2] if costs else None), least


@pytest.mark.parametrize("part", range(4))
def test_os_search_finds_what_a_search_without_skipping_finds(part: int) -> None:
    rng = np.random.default_rng([SEED, part])
    seen: Counter[bool] = Counter()
    for _ in range(LAYERS // 4):
        shape, arch = random_layer(rng), random_arch(rng)
        budget = random_budget(rng, shape)
        wanted, least = search(shape, arch, budget)
        seen[wanted is None] += 1
        if wanted is None:
            with pytest.raises(GlbTooSmall) as refused:
                least_cycles(shape, arch, budget)
            assert refused.value.words == least + arch.glb.words - budget.words, (shape, arch, budget)
        else:
            assert least_cycles(shape, arch, budget) == wanted, (shape, arch, budget)
    assert seen[True] and seen[False], seen
