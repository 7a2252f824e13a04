"""Whole programs cost what their mapped layers say: every counter of `run --stats`, of the program and each layer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import SAMPLES, noise, save
from drawn import compiled_at_random
from examples import SEED, examples
from frontend_models import model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_cases import Case, layer_of
from searches import SHORT_FRONTS, search_with
from test_conv_grid import unmapped
from test_conv_groups import array_file
from test_dataflows import Drawn, arch_toml, draw
from test_glb_blocks import branches, image_for
from test_glb_buffers import BATCH, CONV, COPIES, GROUPS, MAPPINGS, OF_GROUPS, POOLS, TILE, Sum, slices_before_slices
from test_pool_positions import pool
from xdsl.dialects.builtin import StringAttr

from cnncc.arch.model import load_arch
from cnncc.binary.container import Binary
from cnncc.binary.counters import program_stats
from cnncc.binary.isa_module import build_binary
from cnncc.dialects.nest import MappingAttr
from cnncc.driver.pipeline import ASSIGN, DONE, TO_PROGRAMS, Compilation, Settings, new_context
from cnncc.driver.program_parts import Prefetched, plan_of, predicted_counters, prefetched_operands
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.isa.codec import encode_program
from cnncc.machine.traps import Trap
from cnncc.mapping.mapping import Mapping, Sizes
from cnncc.mapping.text import parse
from cnncc.model.layer_schedule import layer_counts, layer_cycles
from cnncc.passes._scheduling import residency
from cnncc.passes._scheduling.dataflows import DATAFLOWS
from cnncc.passes._scheduling.nest_layers import label_of
from cnncc.passes._scheduling.residency import END_PART
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

ROOT = Path(__file__).parents[1]
PARTS = 2
EXAMPLES = examples(24)


def binary(compilation: Compilation) -> Binary:
    """What was compiled."""
    return build_binary(compilation.module, compilation.ctx.weights, compilation.settings.arch, {})


def check(compilation: Compilation, mapping: Mapping | None = None) -> tuple[dict[str, Any], Prefetched]:
    """Compile on, perhaps by a mapping; all counters are as predicted. Returns them, and the prefetched operands.

    Raises Refusal as the lowering does.
    """
    arch, mapped, prefetched = compilation.settings.arch, None, dict[str, frozenset[str]]()
    for step in compilation.remaining():
        if step.name == TO_PROGRAMS:
            mapped = compilation.module.clone()
        compilation.step(step)
        if step.name == ASSIGN and mapping is not None:
            layer = layer_of(compilation.module)
            layer.mapping, layer.prefetched = MappingAttr(mapping), None
        if step.name == "array-prefetch":
            prefetched = prefetched_operands(compilation.module)
    assert mapped is not None
    said = predicted_counters(mapped, arch, prefetched)
    counted = program_stats(binary(compilation))
    assert list(said["layers"]) == list(counted["layers"])
    for label, layer in counted["layers"].items():
        assert said["layers"][label] == layer, label
    assert said == counted
    return said, prefetched


@pytest.mark.parametrize(
    ("model", "arch", "batch", "dataflow"),
    [
        ("lenet", "spatial-8x8", 1, None),
        ("lenet_qoperator_u8", "seed-4x4", 2, None),
        ("resnet20", "spatial-8x8", 1, None),
        ("resnet20_qoperator_u8", "spatial-16x16", 1, None),
        ("depthwise_qdq_s8_pc", "spatial-4x4", 2, "ws"),
        ("depthwise", "seed-8x8", 1, None),
        *(("lenet", "spatial-8x8", 1, name) for name in DATAFLOWS if "inter" not in name),
        ("lenet", "cbrain-16-16", 1, "inter-data"),
        ("resnet20", "spatial-16x16", 1, "rs"),
    ],
)
def test_predict_networks(model: str, arch: str, batch: int, dataflow: str | None) -> None:
    check(start_compilation(SAMPLES / "models" / f"{model}.onnx", CompileOptions(arch, batch=batch, dataflow=dataflow)))


@pytest.mark.parametrize("words", [240, 700, 1500])
def test_predict_a_network_that_moves_through_the_glb(words: int, tmp_path: Path) -> None:
    """Blocks of image, residual and output; sums of two tensors, pools."""
    arch = array_file(tmp_path, "4x4", glb_words=words)
    check(start_compilation(save(branches(image_for(words)), tmp_path / "net.onnx"), CompileOptions(str(arch))))


@pytest.mark.parametrize(("outside", "channels"), [("n > h':2", 4), ("n > h':2", 3), ("h':2 > n", 4), ("n > h':4", 2)])
def test_predict_slices_that_come_ahead_behind_slices(outside: str, channels: int, tmp_path: Path) -> None:
    check(slices_before_slices(outside, channels, tmp_path))


def test_predict_weights_that_come_behind_blocks_of_several_images(tmp_path: Path) -> None:
    """Only the first transfer of such a block of results waits for these. The others bring nothing, either."""
    text = """g (float[3, 16, 8, 8] x) => (float[3, 8, 4, 4] y) {
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        y = Conv <kernel_shape = [1, 1]> (p, w)
    }"""
    network = model(text, w=noise(1, 8, 16, 1, 1))
    for node, name in zip(network.graph.node, ("pool", "conv"), strict=True):
        node.name = name
    schedule = tmp_path / "schedule.toml"
    blocks = "h':2 > ifmap@glb*2 > k':8 > output@glb*2 > n > h'' > k''||4@cols > ifmap@rf*2 > {w > k''' > s > r}"
    schedule.write_text(f'["pool"]\nmapping = "{blocks}"\n')
    arch = array_file(tmp_path, "4x4", glb_words=4096)
    options = CompileOptions(str(arch), schedule=str(schedule))
    _, prefetched = check(start_compilation(save(network, tmp_path / "net.onnx"), options))
    assert "weight" in prefetched["conv"]


def test_predict_images_that_were_pixels(tmp_path: Path) -> None:
    """The product of rows is one image. The sum of its pixels, as two images, has no gap between these."""
    text = "g (float[2, 3, 1, 3] x) => (float[2, 3, 1, 1] y) { a = MatMul (x, w) t = Sin (a) y = Add (t, a) }"
    path = save(model(text, w=noise(1, 3, 1)), tmp_path / "net.onnx")
    check(start_compilation(path, CompileOptions("spatial-4x4")))


def test_predict_images_of_channels_that_are_interleaved(tmp_path: Path) -> None:
    """They have no gaps: channels of the other value lie between those of an image, too. One transfer is enough."""
    text = """g (float[3, 4, 4, 4] x) => (float[3, 8, 4, 4] y) {
        a = Conv <kernel_shape = [1, 1]> (x, w)
        b = Conv <kernel_shape = [1, 1]> (x, v)
        c = Concat <axis = 1> (a, b)
        d = Reshape (c, five)
        e = Transpose <perm = [0, 2, 1, 3, 4]> (d)
        f = Reshape (e, four)
        y = MaxPool <kernel_shape = [1, 1]> (f)
    }"""
    weights = {"w": noise(1, 4, 4, 1, 1), "v": noise(2, 4, 4, 1, 1)}
    network = model(text, **weights, five=np.array([3, 2, 4, 4, 4]), four=np.array([3, 8, 4, 4]))
    for node in network.graph.node:
        node.name = node.output[0]
    schedule = tmp_path / "schedule.toml"
    blocks = "h':2 > ifmap@glb > output@glb*2 > n > h'' > k||4@cols > ifmap@rf*2 > {w > c}"
    schedule.write_text(f'["a"]\nmapping = "{blocks}"\n')
    options = CompileOptions(str(array_file(tmp_path, "4x4", glb_words=4096)), schedule=str(schedule))
    check(start_compilation(save(network, tmp_path / "net.onnx"), options))


def check_mapping(drawn: Drawn, folder: Path) -> None:
    """The same of one layer; alone it takes as long as there."""
    module, ctx = unmapped(drawn.case)
    layer = layer_of(module)
    layer.mapping = MappingAttr(drawn.mapping)
    module.attributes[DONE] = StringAttr(ASSIGN)
    (folder / "array.toml").write_text(arch_toml(drawn.arch))
    counts, prefetched = check(
        Compilation(ctx, module, Settings(drawn.arch, str(folder / "array.toml"), drawn.case.bits))
    )
    label = label_of(layer)
    cycles = counts["layers"][label]["cycles"]
    alone = replace(plan_of(layer, prefetched.get(label, frozenset())), mapping=drawn.mapping)
    said = asdict(layer_counts(alone, drawn.arch))
    assert layer_cycles(alone, drawn.arch) == said["total"] == cycles["total"]
    stall, counted = said.pop("stall"), cycles.pop("stall")
    assert said == cycles
    # The array waits from the start of the program on, before the layer, too.
    before = list(counts["layers"].values())[: list(counts["layers"]).index(label)]
    more = [counted[cause] - cycles for cause, cycles in stall.items()]
    assert min(more) >= 0 and sum(more) == sum(layer["cycles"]["total"] for layer in before)


@pytest.mark.parametrize("part", range(PARTS))
def test_predict_random_mappings(part: int, tmp_path: Path) -> None:
    """Of any dataflow, stages in the GLB anywhere, with one or two buffers."""
    rng, seen = np.random.default_rng([SEED, part]), Counter[str]()
    while seen["counted"] < -(-EXAMPLES // PARTS):
        drawn = draw(rng)
        try:
            check_mapping(drawn, tmp_path)
        except Refusal:
            seen["refused"] += 1
            continue
        except AssertionError as error:
            raise AssertionError(repr(drawn)) from error
        stages = [stage for stage in drawn.mapping.stages if stage.depth and stage.memory == "glb"]
        seen.update(["counted", *(f"{stage.operand}*{stage.buffers}" for stage in stages)])
    wanted = [f"{operand}*{buffers}" for operand in ("weight", "ifmap", "output") for buffers in (1, 2)]
    assert all(seen[each] for each in wanted) or EXAMPLES < 400, seen


def check_blocks(case: Case, mapping: str, folder: Path) -> None:
    arch, ctx = array_file(folder, "4x4"), new_context()
    sizes = Sizes(case.n, case.k, case.c, *case.window.output(*case.image), *case.window.kernel)
    chosen = Settings(load_arch(str(arch)), str(arch), 16)
    check(Compilation(ctx, case.network(ctx), chosen), parse(mapping, sizes))


@pytest.mark.parametrize("name", MAPPINGS)
def test_predict_blocks(name: str, tmp_path: Path) -> None:
    """Of every operand, in one buffer and in two."""
    check_blocks(CONV, MAPPINGS[name], tmp_path)
    once, _, rest = MAPPINGS[name].partition("h'")
    if name in BATCH:
        check_blocks(replace(CONV, n=3), f"{once}n > h'{rest}", tmp_path)


def test_predict_blocks_of_groups(tmp_path: Path) -> None:
    check_blocks(replace(OF_GROUPS, n=2), GROUPS, tmp_path)


@pytest.mark.parametrize("name", COPIES)
def test_predict_elementwise_layers(name: str, tmp_path: Path) -> None:
    for images in (1, 3):
        case = Sum("copy", images, 6, 1, (8, 5), Window((1, 1), group=6))
        check_blocks(case, COPIES[name] if images == 1 else f"n > {COPIES[name]}", tmp_path)


@pytest.mark.parametrize("name", POOLS)
def test_predict_params_of_positions(name: str, tmp_path: Path) -> None:
    once = "" if "params" in POOLS[name] else "params@glb > "
    mapping = f"{once}n > h':2 > {POOLS[name]} > {TILE} > k > ifmap@rf*2 > {{s > r}}"
    check_blocks(pool(5, (7, 6), (3, 3), pad=(1, 1, 1, 1), n=2), mapping, tmp_path)


@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_predict_random_networks(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any layer, dataflow, objective: shuffles, parameters of positions, host segments, a GLB that just does.

    Inputs and results are streamed where that is better.
    """
    with pytest.MonkeyPatch.context() as patch:
        search_with(patch, SHORT_FRONTS)
        patch.setattr(residency, "END_PART", END_PART)
        compiled_at_random(data, tmp_path_factory.getbasetemp(), check)


@pytest.mark.parametrize("dataflow", ["os", "rs"])
def test_predict_sees_a_wrong_trip_count(dataflow: str) -> None:
    """Every loop of a program, run once more than the mapping of its layer says, takes other cycles."""
    compilation = start_compilation(
        SAMPLES / "models" / "lenet.onnx", CompileOptions("spatial-8x8", batch=1, dataflow=dataflow)
    )
    said, _ = check(compilation)
    right, seen = binary(compilation), 0
    for at, inst in enumerate(right.instructions):
        if inst.spec.name == "loop":
            wrong = list(right.instructions)
            wrong[at] = replace(inst, values={**inst.values, "count": inst.number("count") + 1})
            with suppress(Trap):  # a deadlock: a token that comes once is taken twice
                counted = program_stats(replace(right, program=encode_program(wrong)))
                assert counted["cycles"] != said["cycles"], at
                seen += 1
    assert seen >= 8


def test_predict_needs_neither_program_nor_ir() -> None:
    """What is said is not taken from what it is compared with, and processes that search start quickly."""
    folders = (ROOT / "cnncc" / "model", ROOT / "cnncc" / "mapper")
    for path in (path for folder in folders for path in folder.glob("*.py")):
        assert not re.search(r"(from|import) (cnncc\.(machine|isa|eval|passes)|xdsl)", path.read_text()), path
    script = "import sys, cnncc.model.program_counts\nassert not [name for name in sys.modules if 'xdsl' in name]"
    assert not subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode
