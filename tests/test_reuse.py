"""Reads and writes by analysis are those that the interpreter counts: random mappings, and networks as compiled."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_os_mappings as os_mappings
from cli_cases import LENET, SAMPLES, done, refused, save
from conv_grid_cases import Case
from drawn import compiled_at_random
from examples import SEED, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_cases import layer_of
from test_conv_grid import unmapped
from test_conv_groups import array_file
from test_dataflows import arch_text, random_case, random_mapping
from test_glb_blocks import branches, image_for
from textbook_dataflows import textbook
from xdsl.dialects.builtin import StringAttr

from cnncc.arch.model import load_arch, parse_arch
from cnncc.binary.container import Binary
from cnncc.binary.counters import program_stats
from cnncc.binary.isa_module import build_binary, layers
from cnncc.dialects.nest import GroupOp, LayerOp, MappingAttr, mapping_of, operands
from cnncc.driver.pipeline import ASSIGN, DONE, TO_PROGRAMS, Compilation, Settings
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.estimate.operand_reuse import analyse
from cnncc.isa.codec import encode_program
from cnncc.machine.traps import Trap
from cnncc.mapping.mapping import Mapping, Sizes, Stage, mapping_problem
from cnncc.mapping.text import parse
from cnncc.mapping.text import text as text_of
from cnncc.model.layer_shape import LayerShape
from cnncc.model.operand_traffic import operand_traffic
from cnncc.model.routes import RouteTerm, count_inside
from cnncc.model.stationary import name_of
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

EXAMPLES = examples(24)
PARTS = 4
Random = np.random.Generator


def test_inside_counts_one_by_one() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(300):
        terms = [RouteTerm(int(rng.integers(1, 6)), int(rng.integers(1, 8))) for _ in range(rng.integers(5))]
        start, limit = int(rng.integers(-12, 4)), int(rng.integers(1, 30))
        counts = [term.n for term in terms]
        steps = np.array([term.step for term in terms])
        at = [start + int((np.array(index) * steps).sum()) for index in np.ndindex(*counts)]
        assert count_inside(start, limit, terms) == sum(0 <= each < limit for each in at)


def test_inside_of_a_large_image_is_quick() -> None:
    """A walk over the positions would take an hour."""
    rows = [RouteTerm(1 << 20, 1 << 10), RouteTerm(1 << 10, 1), RouteTerm(3, 1)]
    assert count_inside(-1, 1 << 30, rows) == 3 * (1 << 30) - 2


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


def counted(binary: Binary) -> dict[str, dict[str, Any]]:
    """What `run --stats` counts of each layer, but for cycles and peaks."""
    found = program_stats(binary)["layers"]
    keys = ("macs", "max", "add", "words", "operands", "rf")
    return {label: {key: layer[key] for key in keys} for label, layer in found.items()}


def check_layers(compilation: Compilation) -> Counter[str]:
    """Compile on; the counts of every layer are those of the analysis. Returns how many there are of each kind.

    Without array-prefetch, which lets a layer before fetch the weights. Raises Refusal as the lowering does.
    """
    arch, mapped = compilation.settings.arch, dict[str, tuple[LayerShape, Mapping, bool]]()
    for step in compilation.remaining():
        if step.name == TO_PROGRAMS:
            for op in compilation.module.walk():
                if isinstance(op, LayerOp) and not isinstance(op.parent_op(), GroupOp):  # a group counts as one
                    mapped[label_of(op)] = layer_shape(op), mapping_of(op), op.residual is not None
        if step.name != "array-prefetch":
            compilation.step(step)
    counters = counted(build_binary(compilation.module, compilation.ctx.weights, arch, {}))
    for label, (shape, mapping, residual) in mapped.items():
        assert operand_traffic(shape, mapping, arch, residual).counters() == counters[label], label
    return Counter(shape.kind for shape, _, _ in mapped.values())


def check_mapping(case: Case, arch: str, mapping: Mapping, folder: Path) -> None:
    """The same of a layer with this mapping."""
    (folder / "array.toml").write_text(arch)
    module, ctx = unmapped(case)
    layer_of(module).mapping = MappingAttr(mapping)
    module.attributes[DONE] = StringAttr(ASSIGN)
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
    rng, left = np.random.default_rng([SEED, part]), -(-EXAMPLES // PARTS)
    while left:
        case = os_mappings.random_case(rng)
        shape, arch = layer_shape(layer_of(unmapped(case)[0])), parse_arch(case.arch_text(), "drawn")
        plan = os_mappings.random_plan(rng, shape)
        if shape.channelwise:
            plan = replace(plan, c=shape.sizes.c)
        mapping = os_mappings.nest_of(shape, arch, os_mappings.random_tile(rng, shape, arch), plan)
        try:
            check_mapping(case, case.arch_text(), mapping, tmp_path)
        except Refusal as refusal:
            assert "the array has 8" in str(refusal)  # loop registers
            continue
        left -= 1


@pytest.mark.parametrize(
    "mapping",
    [
        # Kernel rows outside the block of the image: it is fetched anew, where they move it to.
        "r > ifmap@glb > k > [h':3||2@rows w||5@cols] > h'' > weight@rf*2 > ifmap@rf*2 > {s > c}",
        "h':2 > r':2 > ifmap@glb > r'' > k > [h''||2@rows w||5@cols] > weight@rf*2 > ifmap@rf*2 > {s > c}",
        # Diagonals: r and h on one side, on both, with a stride between them.
        "k > [h':3||2@rows r||3@rows w||5@cols] > h'' > weight@rf*2 > ifmap@rf*2 > {s > c}",
        "k > c > [r||3@rows h||5@cols] > weight@rf*2 > w > ifmap@rf*2 > {s}",
        # Weights for the whole layer, sums of some channels in the GLB.
        "weight@rf*2 > c > [h||5@rows w||5@cols] > k > ifmap@rf*2 > {s > r}",
    ],
)
def test_reuse_of_mappings_by_hand(mapping: str, tmp_path: Path) -> None:
    for more in ({}, {"stride": (2, 1), "image": (11, 7)}, {"dilation": (2, 1), "image": (9, 7)}, {"n": 2}):
        case = replace(Case(c=3, k=4, image=(7, 7), array=(6, 8), glb=1 << 18), **more)
        sizes = layer_shape(layer_of(unmapped(case)[0])).sizes
        text = mapping if case.n == 1 else f"n > {mapping}"
        check_mapping(case, arch_text(case), parse(f"weight@glb > params@glb > {text}", sizes), tmp_path)


@pytest.mark.parametrize(
    ("model", "arch", "batch"),
    [
        ("lenet", "spatial-8x8", 1),
        ("lenet_qoperator_u8", "seed-4x4", 2),
        ("resnet20_qoperator_u8", "spatial-16x16", 1),
        ("depthwise_qdq_s8_pc", "spatial-4x4", 1),
    ],
)
def test_reuse_of_networks(model: str, arch: str, batch: int) -> None:
    check_layers(start_compilation(SAMPLES / "models" / f"{model}.onnx", CompileOptions(arch, batch=batch)))


@pytest.mark.parametrize("words", [240, 700, 1500])
def test_reuse_of_a_network_that_moves_through_the_glb(words: int, tmp_path: Path) -> None:
    """Blocks of image, residual and output; sums of two tensors, pools."""
    arch = array_file(tmp_path, "4x4", glb_words=words)
    kinds = check_layers(
        start_compilation(save(branches(image_for(words)), tmp_path / "net.onnx"), CompileOptions(str(arch)))
    )
    assert {"mac", "max", "add"} <= set(kinds)


@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_reuse_of_random_networks(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any layer under any dataflow: shuffles, parameters of positions, elementwise ones, a GLB that just does."""
    compiled_at_random(data, tmp_path_factory.getbasetemp(), check_layers)


def test_reuse_takes_no_longer_for_larger_images() -> None:
    """A walk over the tiles of this one would not end."""
    side = 1 << 20
    shape = LayerShape("mac", Sizes(1, 64, 64, side, side, 3, 3), Window((3, 3), pad=(1, 1, 1, 1)), 2, side, side)
    loops = "k > h':21 > [h'':3||7@rows w':7||8@cols] > h''' > w'' > c"
    text = f"weight@glb > params@glb > {loops} > weight@rf > ifmap@rf > {{s > r}}"
    words = operand_traffic(shape, parse(text, shape.sizes), load_arch("spatial-8x8"), residual=False)
    assert words.steps == side * side * 64 * 64 * 9


def test_reuse_of_what_is_fetched_ahead_is_the_same_in_all() -> None:
    """array-prefetch gives transfers of weights to the layer before."""
    _, rows, _ = analyse(LENET, CompileOptions("spatial-8x8", batch=1))
    compilation = start_compilation(LENET, CompileOptions("spatial-8x8", batch=1))
    compilation.run()
    binary = build_binary(compilation.module, compilation.ctx.weights, compilation.settings.arch, {})
    image, logits = 28 * 28, 10
    words = program_stats(binary)["words"]
    assert words["dram_read"] == image + sum(row.traffic.of("dram_read") for row in rows)
    assert words["glb_write"] == image + sum(row.traffic.of("glb_write") for row in rows)
    assert words["glb_read"] == logits + sum(row.traffic.of("glb_read") for row in rows)


def test_reuse_command(tmp_path: Path) -> None:
    """A model and a dump of its IR, as text and as JSON; what it refuses."""
    done("compile", LENET, "--batch", 1, "-o", tmp_path / "x.cnb", "--dump-dir", tmp_path / "ir")
    dump = next((tmp_path / "ir").glob("*-nest-stage.mlir"))
    whole = json.loads(done("reuse", LENET, "--batch", 1, "--json").stdout)
    assert json.loads(done("reuse", dump, "--json").stdout)["layers"] == whole["layers"]
    assert list(whole["layers"]) == ["c1", "pool1", "c2", "pool2", "f1", "f2", "f3"]
    f1 = whole["layers"]["f1"]
    assert f1["dram"] == {"read": {"weight": 48_000, "params": 480}, "write": {}}
    assert f1["macs_per_word"]["ifmap"]["glb"] == 48_000 / f1["operands"]["glb_read"]["ifmap"]
    assert f1["dataflow"] == "output stationary"
    lines = done("reuse", dump, "--layer", "f1").stdout.splitlines()
    assert lines[0] == "f1  mac, n 1 k 120 c 400 h 1 w 1 r 1 s 1: output stationary, 48,000 operations"
    assert "there is no layer 'g'; layers: c1, pool1" in refused("reuse", dump, "--layer", "g")
    lowered = next((tmp_path / "ir").glob("*-array-prefetch.mlir"))
    assert "was lowered beyond nest-to-array" in refused("reuse", lowered)


def test_reuse_sees_a_wrong_trip_count() -> None:
    """Every loop of a layer's program, run once more than its mapping says, moves other words."""
    compilation = start_compilation(SAMPLES / "models" / "lenet.onnx", CompileOptions("spatial-8x8", batch=1))
    compilation.run("nest")
    op = next(op for op in compilation.module.walk() if isinstance(op, LayerOp) and label_of(op) == "c2")
    words = operand_traffic(layer_shape(op), mapping_of(op), compilation.settings.arch, residual=False).counters()
    compilation.step(next(step for step in compilation.remaining() if step.name == TO_PROGRAMS))
    compilation.module.attributes[DONE] = StringAttr("array-prefetch")
    compilation.run()
    binary = build_binary(compilation.module, compilation.ctx.weights, compilation.settings.arch, {})
    assert counted(binary)["c2"] == words
    layer = next(layer for layer, _ in layers(binary) if layer.label == "c2")
    loops = [at for at in range(layer.first, layer.first + layer.count) if binary.instructions[at].spec.name == "loop"]
    seen = 0
    for at in loops:
        program = list(binary.instructions)
        program[at] = replace(program[at], values={**program[at].values, "count": program[at].number("count") + 1})
        with suppress(Trap):  # a deadlock: weights that are waited for twice
            assert counted(replace(binary, program=encode_program(program)))["c2"] != words, at
            seen += 1
    assert seen >= 2


def test_reuse_sees_no_program() -> None:
    """What it says is not taken from what it is compared with."""
    for path in (Path(__file__).parents[1] / "cnncc" / "mapper").glob("*.py"):
        assert not re.search(r"(from|import) (cnncc\.(machine|isa|eval)|xdsl)", path.read_text()), path


@cache
def before_mapping(model: str) -> Compilation:
    """A sample network whose layers have no mappings yet; it is cloned."""
    compilation = start_compilation(SAMPLES / "models" / f"{model}.onnx", CompileOptions("spatial-8x8", batch=1))
    compilation.run_before(ASSIGN)
    return compilation


@pytest.mark.parametrize(
    ("model", "name", "stationary"),
    [
        ("lenet", "os", "output stationary"),
        ("lenet", "ws", "weight stationary"),
        ("lenet", "is", "input stationary"),
        ("lenet", "rs", "row stationary"),
        ("lenet", "nlr", "no local reuse"),
        ("resnet20", "os", "output stationary"),
        ("resnet20", "rs", "row stationary"),
    ],
)
def test_reuse_derives_the_name_of_a_dataflow(model: str, name: str, stationary: str, tmp_path: Path) -> None:
    """Of every convolution that is compiled under its text; and the words are the interpreter's, of all layers."""
    before, arch = before_mapping(model), load_arch("spatial-8x8")
    layers = [op for op in before.module.walk() if isinstance(op, LayerOp) and op.kind.data == "mac"]
    texts = (f'["{label_of(op)}"]\nmapping = "{textbook(name, layer_shape(op), arch).mapping}"' for op in layers)
    (tmp_path / "texts.toml").write_text("\n".join(texts))
    settings = replace(before.settings, schedule=str(tmp_path / "texts.toml"))
    compilation = Compilation(before.ctx, before.module.clone(), settings)
    compilation.run("nest")
    names = {
        label_of(op): name_of(layer_shape(op), mapping_of(op))
        for op in compilation.module.walk()
        if isinstance(op, LayerOp) and op.kind.data == "mac" and op.sizes.data.r > 1
    }
    print(names)
    assert set(names.values()) == {stationary}
    check_layers(compilation)


def test_reuse_of_a_group_with_delays_in_rows(tmp_path: Path) -> None:
    """Its first stripes have fewer rows than the others. All layers together move what the group is counted to move."""
    grouped, binary = tmp_path / "grouped.mlir", tmp_path / "grouped.cnb"
    done("compile", SAMPLES / "models" / "mnist.onnx", "--batch", "1", "-o", binary, "--dump-dir", tmp_path / "ir")
    group = 'nest-group{layers="conv0,pool1,conv2,pool3,conv4" rows=1 rowwise=true}'
    done("opt", tmp_path / "ir" / "nest-stage", "-p", group, "-o", grouped)
    done("compile", "--from", grouped, "-o", binary)
    rows = json.loads(done("reuse", grouped, "--json").stdout)["layers"]
    of_group = json.loads(done("reuse", grouped, "--json", "--layer", "conv0..conv4").stdout)["layers"]
    assert of_group == {name: row for name, row in rows.items() if name != "fc"} and len(rows) == 6
    assert done("atoms", grouped, "--layer", "pool1").stdout.startswith("conv0..conv4, PE 0,0, macro-instruction 0")
    assert "there is no layer ''" in refused("reuse", grouped, "--layer", "")
    counted = json.loads(done("estimate", binary, "--json").stdout)["layers"]["conv0..conv4"]["words"]
    for place in ("glb_read", "bus", "n2n", "psum_link"):
        assert sum(row["words"][place] for name, row in rows.items() if name != "fc") == counted[place], place
