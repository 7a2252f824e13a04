"""Whole networks in standard dialects: the integers of onnxruntime and of the nests; plain xDSL reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from drawn import quantised_networks
from examples import examples
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from nest_cases import standard
from random_graphs import Network
from standard_ir import Program
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import load_arch
from cnncc.context import CompilerContext
from cnncc.driver.pipeline import Settings, import_model
from cnncc.errors import Refusal
from cnncc.eval import cnn, nest

pytestmark = pytest.mark.usefixtures("short_searches")

ROOT = Path(__file__).parent.parent
# xdsl-opt as it is where cnncc is not installed.
PLAIN_XDSL_OPT = """
import importlib.metadata, sys
found = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **by: [plugin for plugin in found(**by) if plugin.name != "cnncc"]
sys.modules["cnncc"] = None
from xdsl.tools.xdsl_opt import main
main()
"""


@pytest.fixture(scope="module")
def lenet() -> tuple[CompilerContext, ModuleOp]:
    """LeNet with int8 codes, mapped to an array."""
    settings = Settings(load_arch("spatial-8x8"), "spatial-8x8", 16)
    compilation = import_model(ROOT / "samples" / "models" / "lenet_qoperator_s8_pc.onnx", 1, settings)
    compilation.run("nest")
    return compilation.ctx, compilation.module


def test_scf_lenet_is_onnxruntime(lenet: tuple[CompilerContext, ModuleOp]) -> None:
    import onnxruntime

    ctx, module = lenet
    text = standard(ctx, module)
    image = {"input": np.load(ROOT / "samples" / "inputs" / "digits_test.npz")["input"][:1]}
    found = Program(text).run(*cnn.quantise_inputs(module, image))
    session = onnxruntime.InferenceSession(ROOT / "samples" / "models" / "lenet_qoperator_s8_pc.onnx")
    (want,) = session.run(None, image)
    np.testing.assert_array_equal(cnn.dequantise_outputs(module, found)["logits"], want)


def test_scf_is_read_by_plain_xdsl_opt(lenet: tuple[CompilerContext, ModuleOp], tmp_path: Path) -> None:
    text = standard(*lenet)
    path = tmp_path / "lenet.mlir"
    path.write_text(f"{text}\n")
    command = [sys.executable, "-c", PLAIN_XDSL_OPT, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == text.strip()
    path.write_text(str(lenet[1]))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode != 0, "a plain xdsl-opt does not know nest.layer"


@settings(max_examples=examples(5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(quantised_networks(4), st.sampled_from(["spatial-4x4", "spatial-8x8", "seed-4x4"]))
def test_scf_networks_are_their_nests(tmp_path: Path, net: Network, array: str) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(net.model.SerializeToString())
    arch = load_arch(array)
    compilation = import_model(model, None, Settings(arch, array, arch.operand_bits))
    try:
        compilation.run("nest")
    except Refusal:
        reject()  # of other tests
    try:
        text = standard(compilation.ctx, compilation.module)
    except Refusal as refusal:
        assert any(op.name == "cnn.host" for op in compilation.module.walk()), refusal
        reject()
    one = {name: values[: len(values) // 2] for name, values in net.feeds.items()}
    inputs = cnn.quantise_inputs(compilation.module, one)
    want, _ = nest.evaluate(compilation.module, compilation.ctx.weights, inputs)
    for found, wanted in zip(Program(text).run(*inputs), want, strict=True):
        np.testing.assert_array_equal(found, wanted)
