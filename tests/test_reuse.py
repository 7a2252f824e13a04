"""Reads and writes by analysis are those that the interpreter counts: random mappings, and networks as compiled.

CNNCC_EXAMPLES=1000 draws that many mappings.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_os_mappings as os_mappings
from cli_cases import SAMPLES, save
from conv_grid_cases import Case
from nest_cases import layer_of
from reuse_cases import analysed, counted
from test_conv_grid import unmapped
from test_conv_groups import array_file
from test_dataflows import arch_text, random_case, random_mapping
from test_glb_blocks import branches
from xdsl.dialects.builtin import StringAttr

from cnncc.arch.model import parse_arch
from cnncc.dialects._mapping_text import text as text_of
from cnncc.dialects.nest import LayerOp, Mapping, MappingAttr, Stage, mapping_of, mapping_problem, operands
from cnncc.errors import Refusal
from cnncc.machine.modules import build_binary, layers
from cnncc.machine.program import build_tree
from cnncc.mapper.reuse import moved
from cnncc.mapper.routes import Term, inside
from cnncc.passes._layer_shape import LayerShape
from cnncc.passes._nest_layers import label_of, layer_shape
from cnncc.passes._os_plan import mapping_of as plan_mapping
from cnncc.pipeline import DONE, SCHEDULE, TO_PROGRAMS, Compilation, Settings
from cnncc.starts import start_compilation

EXAMPLES = int(os.environ.get("CNNCC_EXAMPLES", "60"))
SEED = int(os.environ.get("CNNCC_SEED", "0"))
PARTS = 4
Random = np.random.Generator


def test_inside_counts_one_by_one() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(300):
        terms = [Term(int(rng.integers(1, 6)), int(rng.integers(1, 8))) for _ in range(rng.integers(5))]
        start, limit = int(rng.integers(-12, 4)), int(rng.integers(1, 30))
        counts = [term.n for term in terms]
        steps = np.array([term.step for term in terms])
        at = [start + int((np.array(index) * steps).sum()) for index in np.ndindex(*counts)]
        assert inside(start, limit, terms) == sum(0 <= each < limit for each in at)


def test_inside_of_a_large_image_is_quick() -> None:
    """A walk over the positions would take an hour."""
    rows = [Term(1 << 20, 1 << 10), Term(1 << 10, 1), Term(3, 1)]
    assert inside(-1, 1 << 30, rows) == 3 * (1 << 30) - 2


def in_glb(rng: Random, mapping: Mapping) -> Mapping:
    """Stages in the GLB anywhere outside those in register files; activations in half of the mappings."""
    rf = {stage.operand: stage.depth for stage in mapping.stages if stage.memory == "rf"}
    timed = next((depth for depth, loop in enumerate(mapping.loops) if loop.on or loop.keep), len(mapping.loops))
    block, glb = int(rng.integers(timed + 1)), dict[str, int]()
    for operand in (stage.operand for stage in mapping.stages if stage.memory == "glb"):
        glb[operand] = int(rng.integers(rf.get(operand, timed) + 1)) if rng.random() < 0.5 else 0
    for operand in ("ifmap", "output"):
        if rng.random() < 0.5:
            glb[operand] = min(block, rf.get(operand, block))
    stages = [*(Stage(operand, "glb", depth) for operand, depth in glb.items()), *mapping.stages]
    stages = [stage for stage in stages if stage.memory == "rf" or stage.depth == glb[stage.operand]]
    unique = dict.fromkeys(stages)
    return Mapping(mapping.loops, tuple(sorted(unique, key=lambda stage: (stage.depth, stage.memory == "rf"))))


def check_layers(compilation: Compilation) -> Counter[str]:
    """Compile on; the counts of every layer are those of the analysis. Returns how many there are of each kind.

    Without array-prefetch, which lets a layer before fetch the weights. Raises Refusal as the lowering does.
    """
    arch, mapped = compilation.settings.arch, dict[str, tuple[LayerShape, Mapping, bool]]()
    for step in compilation.remaining():
        if step.name == TO_PROGRAMS:
            for op in compilation.module.walk():
                if isinstance(op, LayerOp):
                    mapped[label_of(op)] = layer_shape(op), mapping_of(op), "residual" in operands(op)
        if step.name != "array-prefetch":
            compilation.step(step)
    binary = build_binary(compilation.module, compilation.ctx.weights, arch, {})
    tree = build_tree(binary.instructions)
    for layer, _ in layers(binary):
        if layer.label in mapped:
            shape, mapping, residual = mapped[layer.label]
            words = counted(tree, arch, layer.first, layer.first + layer.count)
            assert analysed(moved(shape, mapping, arch, residual)) == words, layer.label
    assert mapped.keys() <= {layer.label for layer, _ in layers(binary)}
    return Counter(shape.kind for shape, _, _ in mapped.values())


def check_mapping(case: Case, arch: str, mapping: Mapping, folder: Path) -> None:
    """The same of a layer with this mapping."""
    (folder / "array.toml").write_text(arch)
    module, ctx = unmapped(case)
    layer_of(module).mapping = MappingAttr(mapping)
    module.attributes[DONE] = StringAttr(SCHEDULE)
    check_layers(Compilation(ctx, module, Settings(parse_arch(arch, "drawn"), str(folder / "array.toml"), case.bits)))


@pytest.mark.parametrize("part", range(PARTS))
def test_reuse_of_random_dataflows(part: int, tmp_path: Path) -> None:
    rng, seen = np.random.default_rng([SEED, part]), Counter[str]()
    while seen["counted"] < -(-EXAMPLES // PARTS):
        case = random_case(rng)
        layer, arch = layer_of(unmapped(case)[0]), parse_arch(arch_text(case), "drawn")
        shape = layer_shape(layer)
        mapping = random_mapping(rng, shape, arch, "params" in operands(layer))
        if rng.random() < 0.5:
            mapping = in_glb(rng, mapping)
        if mapping_problem(mapping, shape.sizes, operands(layer)):
            seen["broken"] += 1
            continue
        try:
            check_mapping(case, arch_text(case), mapping, tmp_path)
        except Refusal:
            seen["refused"] += 1
            continue
        except AssertionError as error:
            raise AssertionError(f"{case}\n{text_of(mapping, shape.sizes)}") from error
        seen["counted"] += 1
        seen.update(
            f"{stage.operand} {stage.memory}" for stage in mapping.stages if stage.depth and stage.memory == "glb"
        )
    print(seen)


@pytest.mark.parametrize("part", range(PARTS))
def test_reuse_of_random_output_stationary_mappings(part: int, tmp_path: Path) -> None:
    """Pools among them, and columns that neighbours pass on."""
    rng = np.random.default_rng([SEED, part])
    for _ in range(-(-EXAMPLES // PARTS)):
        case = os_mappings.random_case(rng)
        shape, arch = layer_shape(layer_of(unmapped(case)[0])), parse_arch(case.arch_text(), "drawn")
        plan = os_mappings.random_plan(rng, shape)
        if shape.channelwise:
            plan = replace(plan, c=shape.sizes.c)
        mapping = plan_mapping(shape, arch, os_mappings.random_tile(rng, shape, arch), plan)
        check_mapping(case, case.arch_text(), mapping, tmp_path)


@pytest.mark.parametrize(
    ("model", "arch", "batch"),
    [
        ("lenet", "spatial-8x8", 1),
        ("lenet_qoperator_u8", "seed-4x4", 2),
        ("resnet20", "spatial-8x8", 1),
        ("resnet20_qoperator_u8", "spatial-16x16", 1),
        ("depthwise_qdq_s8_pc", "spatial-4x4", 1),
    ],
)
def test_reuse_of_networks(model: str, arch: str, batch: int) -> None:
    check_layers(start_compilation(SAMPLES / "models" / f"{model}.onnx", arch, None, None, batch))


@pytest.mark.parametrize("words", [240, 700, 1500])
def test_reuse_of_a_network_that_moves_through_the_glb(words: int, tmp_path: Path) -> None:
    """Blocks of image, residual and output; sums of two tensors, pools."""
    arch = array_file(tmp_path, "4x4", glb_words=words)
    kinds = check_layers(start_compilation(save(branches(), tmp_path / "net.onnx"), str(arch), None, None, None))
    assert {"mac", "max", "add"} <= set(kinds)


def test_reuse_sees_a_wrong_trip_count() -> None:
    """Every loop of a layer's program, run once more than its mapping says, moves other words."""
    compilation = start_compilation(SAMPLES / "models" / "lenet.onnx", "spatial-8x8", None, None, 1)
    compilation.run("nest")
    op = next(op for op in compilation.module.walk() if isinstance(op, LayerOp) and label_of(op) == "c2")
    words = analysed(moved(layer_shape(op), mapping_of(op), compilation.settings.arch))
    compilation.step(next(step for step in compilation.remaining() if step.name == TO_PROGRAMS))
    compilation.module.attributes[DONE] = StringAttr("array-prefetch")
    compilation.run()
    binary = build_binary(compilation.module, compilation.ctx.weights, compilation.settings.arch, {})
    layer = next(layer for layer, _ in layers(binary) if layer.label == "c2")
    first, end = layer.first, layer.first + layer.count
    assert counted(build_tree(binary.instructions), binary.arch, first, end) == words
    loops = [at for at in range(first, end) if binary.instructions[at].spec.name == "loop"]
    assert len(loops) > 2
    for at in loops:
        program = list(binary.instructions)
        program[at] = replace(program[at], values={**program[at].values, "count": program[at].number("count") + 1})
        assert counted(build_tree(program), binary.arch, first, end) != words, at


def test_reuse_sees_no_program() -> None:
    """What it says is not taken from what it is compared with."""
    for path in (Path(__file__).parents[1] / "cnncc" / "mapper").glob("*.py"):
        assert not re.search(r"(from|import) (cnncc\.(machine|isa|eval)|xdsl)", path.read_text()), path
