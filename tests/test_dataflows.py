"""Random mappings of any dataflow: loops in any order, sums in the PE or not, operands held for any number of loops.

Outputs of the binary are compared with brute force (conv_grid_cases.py), those of the `array` level too. Mappings that
the lowering refuses are counted by their reason, and are a minority. CNNCC_EXAMPLES=1000 draws that many.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conv_grid_cases import Case, case_of, filled
from test_conv_grid import lowered, result_and_cycles, unmapped

from cnncc.arch.model import Arch, parse_arch
from cnncc.dialects._mapping_text import text as text_of
from cnncc.dialects.nest import (
    DIMS,
    LayerOp,
    Loop,
    Mapping,
    MappingAttr,
    Stage,
    extents,
    mapping_problem,
    operands,
)
from cnncc.errors import Refusal
from cnncc.passes._layer_shape import LayerShape
from cnncc.passes._nest_layers import layer_shape
from cnncc.passes._register_files import file_words

EXAMPLES = int(os.environ.get("CNNCC_EXAMPLES", "60"))
SEED = int(os.environ.get("CNNCC_SEED", "0"))
PARTS = 4
Random = np.random.Generator

# What a mapping may meet that keeps the rules of mappings: each says so.
REASONS = {
    "counters": "a macro-instruction has 3",
    "unrolled": "a body of the program for each",
    "uneven": "that do not take equal parts",
    "not beside": "do not lie beside each other",
    "order on rows": "come last: sums go to the next row",
    "extents of a commit": "a commit has three extents",
    "extents of a load": "a load has four extents",
    "groups": "inside the loops over groups",
    "loops": "loops",
    "descriptors": "descriptors",
}


def random_case(rng: Random) -> Case:
    """A small layer with room in its PEs and in the GLB."""
    pinned = {"kind": "mac", "files": rng.choice(["large"] * 5 + ["pong", "small"])}
    while True:
        point = filled(pinned, lambda _, values: values[rng.integers(len(values))])
        case = replace(case_of({**point, "glb": 1 << 18}, int(rng.integers(9))), n=int(rng.integers(1, 4)))
        if case.macs < 20_000:
            return case


def arch_text(case: Case) -> str:
    return case.arch_text().replace("[links]", "[links]\n            south = true")


def tiles(rng: Random, extent: int, share: float) -> list[int]:
    """Steps of loops over tiles of an extent; half of them divide it."""
    found: list[int] = []
    while extent > 1 and rng.random() < share:
        divisors = [size for size in range(1, extent) if extent % size == 0]
        extent = int(rng.choice(divisors)) if rng.random() < 0.5 else int(rng.integers(1, extent))
        found.append(extent)
    return found


def random_loops(rng: Random, shape: LayerShape) -> list[Loop]:
    """Loops in any order, and a box of up to three of any dimensions but n."""
    sizes = shape.sizes
    chains = {dim: tiles(rng, sizes.of(dim), 0.4) for dim in DIMS}
    if shape.tiled_together < sizes.k:
        chains["k"] = [shape.tiled_together, *tiles(rng, shape.tiled_together, 0.4)]
    inner = {dim: chain[-1] if chain else sizes.of(dim) for dim, chain in chains.items()}
    box = [dim for dim, size in inner.items() if size > 1 and rng.random() < (0.1 if dim == "n" else 0.5)]
    rng.shuffle(box)
    if rng.random() < 0.5:  # more often one that three counters can run
        box = [dim for dim in ("wksr" if shape.channelwise else "wscrk") if dim in box]
    for dim, size in inner.items():
        if size > 1 and dim not in box:
            chains[dim].append(1)
    loops: list[Loop] = []
    queues = [[Loop(dim, step) for step in chains[dim]] for dim in DIMS]
    while left := [chain for chain in queues if chain]:
        loops.append(left[rng.integers(len(left))].pop(0))
    return [*loops, *(Loop(dim, keep=True) for dim in box)]


def in_space(rng: Random, shape: LayerShape, arch: Arch, loops: list[Loop]) -> list[Loop]:
    """Some loops on rows or columns, at most two on each; sums down the columns, the innermost on rows."""
    left, used, result = {"rows": arch.rows, "cols": arch.cols}, Counter[str](), list[Loop]()
    summed = False
    for loop, extent in zip(loops, extents(shape.sizes, tuple(loops)), strict=True):
        axis = str(rng.choice(["", "rows", "cols"]))
        count = -(-extent // loop.step)
        sums = loop.dim in "crs"
        fits = axis and not loop.keep and 1 < count <= left[axis] and used[axis] < 2
        if fits and not (sums and axis == "cols") and not (summed and not sums and axis == "rows"):
            left[axis], used[axis] = left[axis] // count, used[axis] + 1
            summed = summed or sums
            result.append(Loop(loop.dim, loop.step, axis))
        else:
            result.append(loop)
    return result


def random_stages(rng: Random, loops: list[Loop], arch: Arch) -> list[Stage]:
    """Register files are filled right around the box, or further outside; weights and params are in the GLB before."""
    box = next((depth for depth, loop in enumerate(loops) if loop.keep), len(loops))
    depths = {operand: box if rng.random() < 0.4 else int(rng.integers(box + 1)) for operand in ("weight", "ifmap")}
    depths[str(rng.choice(["weight", "ifmap"]))] = box
    halves = {"weight": arch.pe.weight_halves, "ifmap": arch.pe.ifmap_halves}
    rf = [Stage(operand, "rf", depth, halves[operand]) for operand, depth in depths.items()]
    return [Stage("weight", "glb", 0), Stage("params", "glb", 0), *sorted(rf, key=lambda stage: stage.depth)]


def random_mapping(rng: Random, shape: LayerShape, arch: Arch, has_params: bool) -> Mapping:
    while True:
        loops = in_space(rng, shape, arch, random_loops(rng, shape))
        stages = [stage for stage in random_stages(rng, loops, arch) if has_params or stage.operand != "params"]
        words = file_words(shape, arch, loops, stages)
        if all(words[key] <= getattr(arch.pe, key) for key in words):
            return Mapping(tuple(loops), tuple(stages))


def check(rng: Random, folder: Path, seen: Counter[str]) -> None:
    """Draw a layer, an array and a mapping, run it, and compare."""
    case = random_case(rng)
    arch = parse_arch(arch_text(case), "drawn")
    (folder / "array.toml").write_text(arch_text(case))
    module, ctx = unmapped(case)
    layer = next(op for op in module.walk() if isinstance(op, LayerOp))
    shape = layer_shape(layer)
    mapping = random_mapping(rng, shape, arch, "params" in operands(layer))
    assert mapping_problem(mapping, shape.sizes, operands(layer)) is None
    layer.mapping = MappingAttr(mapping)
    try:
        lowered(module, ctx, str(folder / "array.toml"))
    except Refusal as refusal:
        why = next((name for name, text in REASONS.items() if text in str(refusal)), None)
        assert why, (str(refusal), case, mapping)
        seen[why] += 1
        return
    result, _ = result_and_cycles(case, module, ctx, arch)
    assert np.array_equal(result, case.expected), (case, text_of(mapping, shape.sizes))
    seen["run"] += 1


@pytest.mark.parametrize("part", range(PARTS))
def test_random_dataflows(part: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([SEED, part])
    count = -(-EXAMPLES // PARTS)
    seen: Counter[str] = Counter()
    while seen["run"] < count:
        check(rng, tmp_path, seen)
    print(seen)
