"""Mappings that users write: output-stationary ones of any form compute what brute force does, or are refused.

Loops are in any order, tiled any number of times, on any axis; stages in the GLB stand anywhere. What is left out is
completed. CNNCC_EXAMPLES=500 draws that many.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conv_grid_cases import Case, case_of, filled
from test_conv_grid import lowered, result_and_cycles, unmapped

from cnncc.arch.model import Arch, parse_arch
from cnncc.dialects._mapping import DIMS, mapping_problem
from cnncc.dialects._mapping_text import items_of
from cnncc.dialects._notation import Item, Term, spelled
from cnncc.dialects.nest import LayerOp, Loop, Mapping, Stage, extents, operands
from cnncc.errors import Refusal
from cnncc.passes._layer_shape import LayerShape
from cnncc.passes._nest_layers import layer_shape
from cnncc.passes._register_files import macro_words
from cnncc.passes.nest_schedule_os import NestScheduleOsPass

EXAMPLES = int(os.environ.get("CNNCC_EXAMPLES", "40"))
SEED = int(os.environ.get("CNNCC_SEED", "0"))
PARTS = 4
Random = np.random.Generator
# What the lowering says of forms that it does not have.
NOT_YET = (
    "limit 8: its loops in time are",
    "weights are staged in glb outside loops over k in time inside those in space",
    "at most one loop over sets and one inside a set",
    "several pixels a macro-instruction need dilation 1",
)


def random_case(rng: Random) -> Case:
    pinned = {"kind": rng.choice(["mac"] * 7 + ["max"]), "files": rng.choice(["large"] * 4 + ["pong", "small"])}
    while True:
        point = filled(pinned, lambda _, values: values[rng.integers(len(values))])
        case = case_of({**point, "glb": 1 << 18}, int(rng.integers(9)))
        if case.macs < 60_000:
            return case


def tiles(rng: Random, extent: int, share: float) -> list[int]:
    """Steps of loops over tiles of an extent."""
    found: list[int] = []
    while extent > 1 and rng.random() < share:
        extent = int(rng.integers(1, extent))
        found.append(extent)
    return found


def random_loops(rng: Random, shape: LayerShape, arch: Arch) -> list[Loop]:
    """Loops over outputs in any order, some on an axis; then reductions; then those of a box that fits."""
    sizes, order = shape.sizes, "wksr" if shape.channelwise else "wscrk"
    chains = {dim: tiles(rng, sizes.of(dim), 0.5) for dim in DIMS}
    if shape.tiled_together < sizes.k:
        chains["k"] = [shape.tiled_together, *tiles(rng, shape.tiled_together, 0.5)]
    inner = {dim: chain[-1] if chain else sizes.of(dim) for dim, chain in chains.items()}
    box = {dim: size for dim, size in inner.items() if size > 1 and dim in order and rng.random() < 0.7}
    while any(words > getattr(arch.pe, key) for key, words in macro_words(shape, arch, boxed(box)).items()):
        del box[rng.choice(list(box))]
    for dim, size in inner.items():
        if size > 1 and dim not in box:
            chains[dim].append(1)
    reductions = [Loop(dim, step) for dim in "crs" for step in chains.get(dim, ())]
    outputs = [[Loop(dim, step) for step in chains[dim]] for dim in "nkhw"]
    loops: list[Loop] = []
    while left := [chain for chain in outputs if chain]:
        loops.append(left[rng.integers(len(left))].pop(0))
    return [*on_axes(rng, shape, arch, loops), *reductions, *(Loop(dim, keep=True) for dim in order if dim in box)]


def boxed(box: dict[str, int]) -> dict[str, int]:
    return {dim: box.get(dim, 1) for dim in DIMS}


def on_axes(rng: Random, shape: LayerShape, arch: Arch, loops: list[Loop]) -> list[Loop]:
    left, result = {"rows": arch.rows, "cols": arch.cols}, list[Loop]()
    for loop, extent in zip(loops, extents(shape.sizes, tuple(loops)), strict=True):
        axis = str(rng.choice(["", "rows", "cols"]))
        count = -(-extent // loop.step)
        if axis and count <= left[axis] and count > 1 and rng.random() < 0.8:
            left[axis] //= count
            result.append(Loop(loop.dim, loop.step, axis))
        else:
            result.append(loop)
    return result


def random_stages(rng: Random, shape: LayerShape, arch: Arch, loops: list[Loop]) -> list[Stage]:
    """Those of weights, and of params where they come with them, in the GLB; or none, which leaves them out."""
    if not shape.is_mac or rng.random() < 0.4:
        return []
    box = next((depth for depth, loop in enumerate(loops) if loop.keep), len(loops))
    depth = int(rng.integers(box + 1))
    outside = loops[:depth]
    single = any(loop.on or loop.dim in "crs" for loop in outside)
    buffers = 1 if single else int(rng.integers(1, 3))
    found = [Stage("weight", "glb", depth, buffers)]
    if shape.params and not single and rng.random() < 0.5:
        found.append(Stage("params", "glb", depth, buffers))
    return found


def written(rng: Random, mapping: Mapping, shape: LayerShape) -> str:
    """The text of a mapping, with folds and run-once loops, without some of what follows."""
    items: list[Item] = list(items_of(mapping, shape.sizes))
    if rng.random() < 0.5:
        items = [Term("n", axis="", place=(0, 0)), *items] if not any(over(item, "n") for item in items) else items
    if rng.random() < 0.5:
        items = [Term(each.dim, each.step, each.level, None, each.axis, each.keep) if isinstance(each, Term) else each
                 for each in items]  # fmt: skip
    return spelled(items, bool(rng.integers(2)))


def over(item: Item, dim: str) -> bool:
    return isinstance(item, Term) and item.dim == dim


def check(rng: Random, folder: Path, seen: Counter[str]) -> None:
    """Draw a layer, an array and a text, run it, and compare."""
    case = random_case(rng)
    arch = parse_arch(case.arch_text(), "drawn")
    (folder / "array.toml").write_text(case.arch_text())
    module, ctx = unmapped(case)
    layer = next(op for op in module.walk() if isinstance(op, LayerOp))
    shape = layer_shape(layer)
    loops = random_loops(rng, shape, arch)
    mapping = Mapping(tuple(loops), tuple(random_stages(rng, shape, arch, loops)))
    text = written(rng, mapping, shape)
    (folder / "schedule.toml").write_text(f'["{layer.label.data if layer.label else ""}"]\nmapping = "{text}"\n')
    try:
        NestScheduleOsPass(str(folder / "array.toml"), schedule=str(folder / "schedule.toml")).apply(ctx, module)
        assert layer.mapping is not None
        used = layer.mapping.data
        assert used.loops == mapping.loops, (text, used)
        assert set(mapping.stages) <= set(used.stages), (text, used)
        assert mapping_problem(used, shape.sizes, operands(layer)) is None
        lowered(module, ctx, str(folder / "array.toml"))
    except Refusal as refusal:
        assert any(why in str(refusal) for why in NOT_YET), (str(refusal), case, text)
        seen["refused"] += 1
        return
    result, _ = result_and_cycles(case, module, ctx, arch)
    assert np.array_equal(result, case.expected), (case, text)
    seen["run"] += 1
    seen["in GLB"] += bool(mapping.stages)
    seen.update(f"{loop.dim} {loop.on}" for loop in loops if loop.on)


@pytest.mark.parametrize("part", range(PARTS))
def test_written_mappings_of_any_form(part: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([SEED, part])
    count = -(-EXAMPLES // PARTS)
    seen: Counter[str] = Counter()
    for _ in range(count):
        check(rng, tmp_path, seen)
    assert seen["run"] >= count // 2, seen
