"""Whole programs cost what their mapped layers say: every counter of `run --stats`, of the program and each layer (R3).

CNNCC_EXAMPLES=1000 draws a quarter as many networks.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import SAMPLES, save
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from nest_cases import layer_of
from random_graphs import arrays, as_toml, networks
from test_conv_grid import unmapped
from test_conv_groups import array_file
from test_dataflows import arch_toml, draw
from test_glb_blocks import branches
from test_reuse import in_glb
from xdsl.dialects.builtin import ModuleOp, StringAttr

from cnncc.arch.model import parse_arch
from cnncc.commands import program_stats
from cnncc.dialects import array as A
from cnncc.dialects._mapping_text import text as text_of
from cnncc.dialects.nest import MappingAttr, mapping_problem
from cnncc.errors import Refusal
from cnncc.machine.modules import build_binary
from cnncc.passes._dataflows import DATAFLOWS
from cnncc.passes._os_plan import NoRoom
from cnncc.pipeline import DONE, SCHEDULE, TO_PROGRAMS, Compilation, Settings, import_model
from cnncc.predict import predict
from cnncc.starts import start_compilation

SEED = int(os.environ.get("CNNCC_SEED", "0"))
EXAMPLES = int(os.environ.get("CNNCC_EXAMPLES", "60"))


def fetched_ahead(module: ModuleOp) -> dict[str, frozenset[str]]:
    """By layer the operands that the layer before fetches for it."""
    found: dict[str, frozenset[str]] = {}
    before: A.LayerOp | None = None
    for op in module.ops:
        if isinstance(op, A.LayerOp):
            moved = [each.record.data.glb for each in before.walk() if isinstance(each, A.DmaOp)] if before else []
            found[op.label.data] = frozenset(name.removeprefix("next.") for name in moved if name.startswith("next."))
            before = op
        elif isinstance(op, A.HostOp):
            before = None
    return found


def check(compilation: Compilation) -> dict[str, Any]:
    """Compile on; all counters are as predicted. Returns them. Raises Refusal as the lowering does."""
    arch, mapped, ahead = compilation.settings.arch, None, dict[str, frozenset[str]]()
    for step in compilation.remaining():
        if step.name == TO_PROGRAMS:
            mapped = compilation.module.clone()
        compilation.step(step)
        if step.name == "array-prefetch":
            ahead = fetched_ahead(compilation.module)
    assert mapped is not None
    said = predict(mapped, arch, ahead)
    counted = program_stats(build_binary(compilation.module, compilation.ctx.weights, arch, {}))
    assert list(said["layers"]) == list(counted["layers"])
    for label, layer in counted["layers"].items():
        assert said["layers"][label] == layer, label
    assert said == counted
    return said


@pytest.mark.parametrize(
    ("model", "arch", "batch", "dataflow"),
    [
        ("lenet", "spatial-8x8", 1, None),
        ("lenet_qoperator_u8", "seed-4x4", 2, None),
        ("resnet20", "spatial-8x8", 1, None),
        ("resnet20_qoperator_u8", "spatial-16x16", 1, None),
        ("depthwise_qdq_s8_pc", "spatial-4x4", 2, "ws"),
        ("depthwise", "seed-8x8", 1, None),
        *(("lenet", "spatial-8x8", 1, name) for name in DATAFLOWS),
        ("resnet20", "spatial-16x16", 1, "rs"),
    ],
)
def test_predict_networks(model: str, arch: str, batch: int, dataflow: str | None) -> None:
    check(start_compilation(SAMPLES / "models" / f"{model}.onnx", arch, None, None, batch, None, dataflow))


@pytest.mark.parametrize("words", [240, 700, 1500])
def test_predict_a_network_that_moves_through_the_glb(words: int, tmp_path: Path) -> None:
    """Blocks of image, residual and output; sums of two tensors, pools."""
    arch = array_file(tmp_path, "4x4", glb_words=words)
    check(start_compilation(save(branches(), tmp_path / "net.onnx"), str(arch), None, None, None))


@pytest.mark.parametrize("part", range(2))
def test_predict_random_mappings(part: int, tmp_path: Path) -> None:
    """Stages in the GLB anywhere, with one or two buffers."""
    rng, seen = np.random.default_rng([SEED, part]), Counter[str]()
    while seen["counted"] < -(-EXAMPLES // 4):
        drawn = draw(rng)
        mapping = in_glb(rng, drawn.mapping)
        moves = [
            f"{stage.operand}*{stage.buffers}" for stage in mapping.stages if stage.depth and stage.memory == "glb"
        ]
        if not moves or mapping_problem(mapping, drawn.shape.sizes, drawn.operands):
            continue
        module, ctx = unmapped(drawn.case)
        layer_of(module).mapping = MappingAttr(mapping)
        module.attributes[DONE] = StringAttr(SCHEDULE)
        file = tmp_path / "array.toml"
        file.write_text(arch_toml(drawn.arch))
        try:
            check(Compilation(ctx, module, Settings(drawn.arch, str(file), drawn.case.bits)))
        except Refusal:
            seen["refused"] += 1
            continue
        except AssertionError as error:
            raise AssertionError(f"{drawn.case}\n{text_of(mapping, drawn.shape.sizes)}") from error
        seen["counted"] += 1
        seen.update(moves)
    assert all(seen[f"{operand}*1"] for operand in ("weight", "ifmap", "output")) or EXAMPLES < 60, seen


@settings(max_examples=max(15, EXAMPLES // 4), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_predict_random_networks(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any layer under any dataflow: shuffles, parameters of positions, host segments, a GLB that just does."""
    net, array, dataflow = data.draw(networks()), data.draw(arrays()), data.draw(st.sampled_from([None, *DATAFLOWS]))
    array["links"] = {**array["links"], "south": True}
    folder = tmp_path_factory.getbasetemp()
    (folder / "net.onnx").write_bytes(net.model.SerializeToString())
    try:
        for _ in range(20):
            (folder / "array.toml").write_text(as_toml(array))
            arch = parse_arch(as_toml(array), "drawn")
            chosen = Settings(arch, str(folder / "array.toml"), arch.operand_bits, net.feeds, None, dataflow)
            try:
                check(import_model(folder / "net.onnx", None, chosen))
                return
            except NoRoom as refusal:
                array = {**array, "glb": {**array["glb"], "words": refusal.words}}
    except Refusal:
        reject()
