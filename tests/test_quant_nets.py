"""The sample networks, calibrated on their training images, against float onnxruntime; and calibration itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cnn_ir import imported
from frontend_models import model, saved
from onnx import helper
from xdsl.dialects.builtin import IntegerAttr, ModuleOp

from cnncc.context import CompilerContext
from cnncc.dialects.cnn import ConvOp
from cnncc.dialects.onnx import NodeOp
from cnncc.driver.calibrate import calibrate
from cnncc.errors import Refusal
from cnncc.eval.cnn import dequantise_outputs, evaluate, quantise_inputs
from cnncc.eval.onnx import evaluate as evaluate_float
from cnncc.frontend.import_onnx import import_onnx
from cnncc.frontend.node_macs import node_macs
from cnncc.passes._onnx.calibration import take_ranges
from cnncc.passes.cnn_fuse_epilogue import CnnFuseEpiloguePass
from cnncc.passes.onnx_to_cnn import OnnxToCnnPass

SAMPLES = Path(__file__).parents[1] / "samples"
MACS = {"lenet": 416520, "mnist": 1362592}


@pytest.fixture(scope="module")
def digits() -> dict[str, np.ndarray]:
    inputs = SAMPLES / "inputs"
    with np.load(inputs / "digits_test.npz") as test, np.load(inputs / "digits_calibration.npz") as calibration:
        return {"x": test["input"], "y": test["label"], "xtr": calibration["input"]}


def load(net: str, batch: int) -> tuple[ModuleOp, CompilerContext]:
    ctx = CompilerContext()
    return import_onnx(SAMPLES / "models" / f"{net}.onnx", ctx, batch=batch), ctx


def float_logits(net: str, x: np.ndarray) -> np.ndarray:
    module, ctx = load(net, len(x))
    return evaluate_float(module, ctx.weights, {"input": x})["logits"]


def quantised(net: str, digits: dict[str, np.ndarray], bits: int, batch: int = 1) -> tuple[ModuleOp, CompilerContext]:
    module, ctx = load(net, batch)
    assert calibrate(module, ctx.weights, {"input": digits["xtr"]}, bits, 32) == []
    OnnxToCnnPass(bits).apply(ctx, module)
    module.verify()
    return module, ctx


@pytest.mark.parametrize("net", ["lenet", "mnist"])
@pytest.mark.parametrize(("bits", "decibels"), [(16, 70), (8, 35)])
def test_quant_nets_are_near_the_float_results(net: str, bits: int, decibels: float, digits) -> None:
    module, ctx = quantised(net, digits, bits)
    outputs, _ = evaluate(module, ctx.weights, quantise_inputs(module, {"input": digits["x"]}))
    got = dequantise_outputs(module, outputs)["logits"]
    want = float_logits(net, digits["x"])
    assert got.shape == want.shape == (360, 10)
    assert 10 * np.log10(np.square(want).sum() / np.square(want - got).sum()) > decibels
    accuracies = [(logits.argmax(axis=1) == digits["y"]).mean() for logits in (want, got)]
    assert accuracies[1] >= accuracies[0] - 0.01


@pytest.mark.parametrize("net", ["lenet", "mnist"])
def test_quant_nets_worst_inputs_overflow_no_psum(net: str, digits) -> None:
    """Inputs at the limits, with every sign pattern that a channel's weights ask for, in every conv."""
    module, ctx = quantised(net, digits, 16)
    top = int(quantise_inputs(module, {"input": np.full((1, 1, 28, 28), 1e9, np.float32)})[0].max())
    rng = np.random.default_rng(0)
    for _ in range(3):
        evaluate(module, ctx.weights, [np.where(rng.random((8, 1, 28, 28)) < 0.5, -top, top)])


@pytest.mark.parametrize("net", ["lenet", "mnist"])
def test_quant_nets_fusion_and_batches_change_nothing(net: str, digits) -> None:
    module, ctx = quantised(net, digits, 16)
    x = quantise_inputs(module, {"input": digits["x"][:15]})
    want, trace = evaluate(module, ctx.weights, x)
    CnnFuseEpiloguePass().apply(ctx, module)
    got, fused = evaluate(module, ctx.weights, x)
    assert np.array_equal(got[0], want[0])
    assert all(np.array_equal(fused[key], trace[key]) for key in fused)
    assert "relu2" in fused
    five, ctx5 = quantised(net, digits, 16, batch=5)
    assert np.array_equal(evaluate(five, ctx5.weights, x)[0][0], want[0])


def test_quant_nets_compile_the_same_twice(digits) -> None:
    (first, one), (second, two) = (quantised("lenet", digits, 16) for _ in range(2))
    assert str(first) == str(second)
    assert len(one.weights) == len(two.weights)


@pytest.mark.parametrize("net", ["lenet", "mnist"])
def test_quant_nets_macs(net: str, digits) -> None:
    module, _ = quantised(net, digits, 16)
    total = module.attributes["cnn.macs_total"]
    assert isinstance(total, IntegerAttr)
    convs = [op for op in module.walk() if isinstance(op, ConvOp)]
    assert total.value.data == sum(op.macs() for op in convs) == MACS[net]


def test_quant_macs_of_nodes() -> None:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], group=2, strides=[2, 1]),
        node("Flatten", ["c"], ["f"]),
        node("Gemm", ["f", "g"], ["m"], transB=1),
        node("MatMul", ["m", "h"], ["y"]),
        node("Relu", ["y"], ["r"]),
        node("BatchNormalization", ["r", "k", "k", "k", "k"], ["z"]),
        node("ConvTranspose", ["x", "t"], ["u"], group=2, strides=[2, 1], pads=[1, 0, 0, 1]),
    ]
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in {"w": (6, 2, 3, 2), "g": (5, 180), "h": (5, 7), "k": (7,), "t": (4, 5, 3, 2)}.items()
    }
    module, _ = imported(nodes, {"x": (3, 4, 11, 7)}, ["z", "u"], arrays)
    found = [node_macs(op) for op in module.walk() if isinstance(op, NodeOp)]
    assert found == [3 * 6 * 5 * 6 * 2 * 3 * 2, 0, 3 * 5 * 180, 3 * 7 * 5, 0, 3 * 7, 3 * 4 * 11 * 7 * 5 * 3 * 2]


def test_quant_macs_of_integer_nodes(tmp_path: Path) -> None:
    """With 0 for these nodes, a network whose convolutions all ran on the host had 100 % of its MACs on the array."""
    text = """g (uint8[2, 3, 8, 8] x, float[2, 4] s) => (int32[2, 6, 6, 6] y, int32[2, 5] z) {
        y = ConvInteger(x, w)
        q, scale, zero = DynamicQuantizeLinear(s)
        z = MatMulInteger(q, v, zero)
    }"""
    arrays = {"w": np.ones((6, 3, 3, 3), np.int8), "v": np.ones((4, 5), np.int8)}
    module = import_onnx(saved(model(text, **arrays), tmp_path), CompilerContext())
    macs = [node_macs(op) for op in module.walk() if isinstance(op, NodeOp)]
    assert macs == [2 * 6 * 6 * 6 * 3 * 3 * 3, 0, 2 * 5 * 4]


def test_quant_macs_of_codes_by_constants(tmp_path: Path) -> None:
    """A product with a constant is a MAC, as in a normalisation; one of two computed values is none."""
    text = """g (uint8[2, 3, 8, 8] x) => (uint8[2, 3, 8, 8] y) {
        a = com.microsoft.QLinearMul (x, s, z, k, s, z, s, z)
        b = com.microsoft.QLinearAdd (a, s, z, k, s, z, s, z)
        c = com.microsoft.QLinearMul (b, s, z, x, s, z, s, z)
        y = com.microsoft.QLinearAdd (c, s, z, x, s, z, s, z)
    }"""
    arrays = {"k": np.ones((3, 1, 1), np.uint8), "s": np.float32(0.5), "z": np.uint8(7)}
    module = import_onnx(saved(model(text, domains=("com.microsoft",), **arrays), tmp_path), CompilerContext())
    macs = [node_macs(op) for op in module.walk() if isinstance(op, NodeOp)]
    assert macs == [2 * 3 * 8 * 8, 2 * 3 * 8 * 8, 0, 0]


def test_quant_calibrate_without_data_warns_and_is_seeded() -> None:
    texts = []
    for seed in (0, 0, 1):
        module, ctx = load("lenet", 1)
        (warning,) = calibrate(module, ctx.weights, None, 16, 32, seed=seed)
        assert "random inputs" in warning
        texts.append(str(module))
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(("element", "ends"), [("uint8", (0, 255)), ("int8", (-128, 127))])
def test_quant_calibrate_without_data_draws_bytes(element: str, ends: tuple[int, int], tmp_path: Path) -> None:
    """Of an image of zeros y had no range, so that all its values saturated."""
    text = f"g ({element}[1, 1, 32, 32] x) => (float[1, 1, 32, 32] y) {{ f = Cast<to = 1>(x) y = Conv(f, w) }}"
    ctx = CompilerContext()
    module = import_onnx(saved(model(text, w=np.ones((1, 1, 1, 1), np.float32)), tmp_path), ctx)
    assert len(calibrate(module, ctx.weights, None, 16, 32)) == 1
    assert [(found.lo, found.hi) for found in take_ranges(module).values()][-1] == ends


def test_quant_calibrate_writes_what_it_saw() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    module, ctx = imported([node], {"x": (2, 3)}, ["y"], {})
    data = np.float32([[1, 0, 2], [0, -7, 0], [3, 5, 0.5]])  # the second batch is filled up from the start
    calibrate(module, ctx.weights, {"x": data}, 16, 32)
    assert [(r.lo, r.hi) for r in take_ranges(module).values()] == [(-7, 5), (0, 5)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": np.zeros((4, 1, 28, 28), np.float32), "y": np.zeros(4)}, "input 'input' is missing, there is x, y"),
        (
            {"input": np.zeros((4, 28, 28), np.float32)},
            r"'input' has shape \[4, 28, 28\], expected \[1 or more, 1, 28, 28\]",
        ),
        ({"input": np.zeros((0, 1, 28, 28), np.float32)}, r"shape \[0, 1, 28, 28\]"),
        ({"input": np.zeros((4, 1, 28, 28), np.int64)}, "'input' has type int64, the input has float32"),
        ({"input": np.full((4, 1, 28, 28), 1e300)}, "'input' has values that are not finite"),
        ({"input": np.full((4, 1, 28, 28), np.nan, np.float32)}, "'input' has values that are not finite"),
        ({"input": np.full((4, 1, 28, 28), 1e38, np.float32)}, "gives values that are not finite"),
    ],
)
def test_quant_calibrate_refuses_data_that_does_not_fit(data: dict[str, np.ndarray], message: str) -> None:
    module, ctx = load("lenet", 1)
    with pytest.raises(Refusal, match=message):
        calibrate(module, ctx.weights, data, 16, 32)


def test_quant_calibrate_rounds_reals_of_another_precision() -> None:
    data = np.random.default_rng(0).normal(size=(4, 1, 28, 28))
    modules = list[str]()
    for array in (data, data.astype(np.float32)):
        module, ctx = load("lenet", 1)
        calibrate(module, ctx.weights, {"input": array}, 16, 32)
        modules.append(str(module))
    assert modules[0] == modules[1]


def test_quant_calibrate_several_inputs_need_equal_counts() -> None:
    module, ctx = imported([helper.make_node("Add", ["a", "b"], ["y"])], {"a": (1, 2), "b": (1, 2)}, ["y"], {})
    data = {"a": np.ones((3, 2), np.float32), "b": np.ones((4, 2), np.float32)}
    with pytest.raises(Refusal, match=r"different numbers of batches: \[3, 4\]"):
        calibrate(module, ctx.weights, data, 16, 32)
