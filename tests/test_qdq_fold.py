"""Float operators between DequantizeLinear and QuantizeLinear: which fold, and what they compute then.

What a folded model gives is compared with onnxruntime on the model as it was: never more than one step apart, as
onnxruntime rounds in floats there. The integers of the folded operators have tests of their own (test_qlinear_grid.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import done, save
from frontend_models import run_file
from onnx import TensorProto, helper, numpy_helper

from cnncc.dialects.onnx import NodeOp, constant_operand
from cnncc.driver.pipeline import new_context
from cnncc.eval.onnx import evaluate
from cnncc.frontend.import_onnx import import_onnx
from cnncc.main_function import main_function
from cnncc.passes.onnx_dead_code import OnnxDeadCodePass
from cnncc.passes.onnx_fold_constants import OnnxFoldConstantsPass
from cnncc.passes.onnx_fold_qdq import OnnxFoldQdqPass

pytestmark = pytest.mark.usefixtures("short_searches")

node = helper.make_node
RNG = np.random.default_rng(0)
CONSTANTS: dict[str, Any] = {
    **{"sx": np.float32(0.05), "zx": np.int8(-20), "sy": np.float32(0.4), "zy": np.int8(-9), "ux": np.uint8(100)},
    **{"ls": np.float32(-3.3), "hs": np.float32(6), "lo": np.float32(-1.23), "hi": np.float32(2.34)},
    "w": RNG.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8),
    "sw": RNG.uniform(0.01, 0.03, 4).astype(np.float32),
    "zw": np.zeros(4, np.int8),
    "b": RNG.integers(-3000, 3000, 4).astype(np.int32),
    "b8": np.int8([-100, 3, 50, 127]),
    "fb": RNG.standard_normal(4).astype(np.float32),
    "fw": RNG.standard_normal((4, 3, 3, 3)).astype(np.float32),
    "m": RNG.integers(-128, 128, (3, 4)).astype(np.int8),
    "mt": RNG.integers(-128, 128, (4, 3)).astype(np.int8),
    "one": np.float32(0.02),
    **{"ones": np.float32([0.02]), "zys": np.int8([-9]), "sys": np.float32([0.4])},
    "big": np.array([(1 << 31) - 1, -(1 << 31) + 1, 16777217, 5], np.int32),
    "words": RNG.integers(-9, 9, (4, 3, 3, 3)).astype(np.int32),
}
CONSTANTS["sb"] = CONSTANTS["sx"] * CONSTANTS["sw"]
IMAGE, ROWS = (1, 3, 7, 6), (5, 3)


def dequantise(name: str, scale: str, zero: str | None, result: str, **attributes: Any) -> Any:
    return node("DequantizeLinear", [name, scale, *([zero] if zero else [])], [result], name=f"d{result}", **attributes)


QUANTISE_X = node("QuantizeLinear", ["x", "sx", "zx"], ["q"], name="q")
X = [QUANTISE_X, dequantise("q", "sx", "zx", "a")]
W = dequantise("w", "sw", "zw", "dw", axis=0)
B = dequantise("b", "sb", None, "db", axis=0)


def quantise_y(value: str) -> list[Any]:
    return [node("QuantizeLinear", [value, "sy", "zy"], ["r"], name="r"), dequantise("r", "sy", "zy", "y")]


def conv(*more: str, weights: str = "dw", result: str = "c") -> Any:
    return node("Conv", ["a", weights, *more], [result], name="conv", pads=[1, 0, 2, 1], strides=[2, 1])


# Nodes, shape of x, and the operators from `q` to `r`.
FOLDS: dict[str, tuple[list[Any], tuple[int, ...], list[str]]] = {
    "conv": ([*X, W, conv(), *quantise_y("c")], IMAGE, ["QLinearConv"]),
    "bias": ([*X, W, B, conv("db"), *quantise_y("c")], IMAGE, ["QLinearConv"]),
    "bias of floats": ([*X, W, conv("fb"), *quantise_y("c")], IMAGE, ["QLinearConv"]),
    "relu": ([*X, W, conv(), node("Relu", ["c"], ["e"]), *quantise_y("e")], IMAGE, ["QLinearConv", "Clip"]),
    "clip": ([*X, W, conv(), node("Clip", ["c", "ls", "hs"], ["e"]), *quantise_y("e")], IMAGE, ["QLinearConv", "Clip"]),
    "weights quantised in the model": (
        [
            *X,
            node("QuantizeLinear", ["fw", "sw", "zw"], ["wq"], axis=0),
            dequantise("wq", "sw", "zw", "dw", axis=0),
            conv(),
            *quantise_y("c"),
        ],
        IMAGE,
        ["QLinearConv"],
    ),
    "gemm": (
        [*X, dequantise("m", "sw", "zw", "dm", axis=1), node("Gemm", ["a", "dm", "fb"], ["c"]), *quantise_y("c")],
        ROWS,
        ["QGemm"],
    ),
    "gemm, transposed": (
        [*X, dequantise("mt", "sw", "zw", "dm", axis=0), B, node("Gemm", ["a", "dm", "db"], ["c"], transB=1),
         *quantise_y("c")],
        ROWS,
        ["QGemm"],
    ),
    "gemm, no zero points": (
        [*X, dequantise("m", "sw", None, "dm", axis=1), node("Gemm", ["a", "dm", "fb"], ["c"]), *quantise_y("c")],
        ROWS,
        ["QGemm"],
    ),
    "matmul": (
        [*X, dequantise("m", "one", None, "dm"), node("MatMul", ["a", "dm"], ["c"]), *quantise_y("c")],
        ROWS,
        ["QLinearMatMul"],
    ),
    "add": (
        [*X, dequantise("q", "one", "zy", "e"), node("Add", ["a", "e"], ["c"]), *quantise_y("c")],
        IMAGE,
        ["QLinearAdd"],
    ),
    "mul": (
        [*X, dequantise("q", "one", "zy", "e"), node("Mul", ["a", "e"], ["c"]), *quantise_y("c")],
        IMAGE,
        ["QLinearMul"],
    ),
    "add, vectors of one scale": (
        [
            *X,
            dequantise("q", "ones", "zys", "e"),
            node("Add", ["a", "e"], ["c"]),
            node("QuantizeLinear", ["c", "sys", "zys"], ["r"]),
            dequantise("r", "sys", "zys", "y"),
        ],
        IMAGE,
        ["QLinearAdd"],
    ),
    "mean": ([*X, node("GlobalAveragePool", ["a"], ["c"]), *quantise_y("c")], IMAGE, ["QLinearGlobalAveragePool"]),
    "leaky": ([*X, node("LeakyRelu", ["a"], ["c"], alpha=0.2), *quantise_y("c")], IMAGE, ["QLinearLeakyRelu"]),
}  # fmt: skip

# Nodes that stay as they are, and why.
STAYS: dict[str, tuple[list[Any], tuple[int, ...]]] = {
    "scales of another axis": (
        [*X, dequantise("mt", "sw", "zw", "dm", axis=0), node("Gemm", ["a", "dm"], ["c"], transB=0), *quantise_y("c")],
        (5, 4),
    ),
    "alpha": (
        [*X, dequantise("m", "sw", "zw", "dm", axis=1), node("Gemm", ["a", "dm"], ["c"], alpha=0.5), *quantise_y("c")],
        ROWS,
    ),
    "read as floats too": ([*X, W, conv(), *quantise_y("c"), node("Relu", ["c"], ["z"])], IMAGE),
    "another type of result": (
        [*X, W, conv(), node("QuantizeLinear", ["c", "sy", "ux"], ["r"]), dequantise("r", "sy", "ux", "y")],
        IMAGE,
    ),
    "weights in floats": ([*X, conv(weights="fw"), *quantise_y("c")], IMAGE),
    "a zero point of the bias that is computed": (
        [
            *X, W,
            node("ReduceMin", ["x"], ["least"], keepdims=0), node("Cast", ["least"], ["zb"], to=TensorProto.INT8),
            dequantise("b8", "one", "zb", "db"), conv("db"), *quantise_y("c"),
        ],
        IMAGE,
    ),
    "another function between": ([*X, W, conv(), node("Tanh", ["c"], ["e"]), *quantise_y("e")], IMAGE),
}  # fmt: skip


def saved(nodes: list[Any], shape: tuple[int, ...], path: Path) -> Path:
    used = dict.fromkeys(name for each in nodes for name in each.input)
    outputs = [name for name in ("y", "z", "mean") if any(name in each.output for each in nodes)]
    rank = 2 if len(shape) == 2 else 4
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name in outputs],
        [numpy_helper.from_array(np.asarray(CONSTANTS[name]), name) for name in used if name in CONSTANTS],
    )
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )
    return path


def folded(path: Path, x: Any) -> tuple[list[str], Any]:
    """The operators that are left, and the output y."""
    ctx = new_context()
    module = import_onnx(path, ctx)
    for each in (OnnxFoldConstantsPass(), OnnxFoldQdqPass(), OnnxDeadCodePass()):
        each.apply(ctx, module)
        module.verify()
    operators = [op.op_type.data for op in main_function(module).body.block.ops if isinstance(op, NodeOp)]
    return operators, evaluate(module, ctx.weights, {"x": x})["y"]


def inputs(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(1).uniform(-6, 7, shape).astype(np.float32)


@pytest.mark.parametrize("case", FOLDS)
def test_qdq_folds(case: str, tmp_path: Path) -> None:
    nodes, shape, between = FOLDS[case]
    path, x = saved(nodes, shape, tmp_path / "net.onnx"), inputs(shape)
    operators, got = folded(path, x)
    assert operators == ["QuantizeLinear", *between, "DequantizeLinear"]
    (want,) = run_file(path, {"x": x})
    assert len(np.unique(want)) >= 3
    assert np.abs(got - want).max() <= 1.001 * CONSTANTS["sy"]
    assert np.mean(got != want) < 0.1


@pytest.mark.parametrize("case", STAYS)
def test_qdq_stays(case: str, tmp_path: Path) -> None:
    nodes, shape = STAYS[case]
    path, x = saved(nodes, shape, tmp_path / "net.onnx"), inputs(shape)
    operators, got = folded(path, x)
    assert not any(name.startswith("QL") or name == "QGemm" for name in operators)
    assert np.array_equal(got, run_file(path, {"x": x})[0])


def test_qdq_a_bias_in_steps_of_the_sums_stays_to_the_last_bit(tmp_path: Path) -> None:
    """2^31 - 1 has more bits than f32."""
    nodes = [*X, W, dequantise("big", "sb", None, "db", axis=0), conv("db"), *quantise_y("c")]
    ctx = new_context()
    module = import_onnx(saved(nodes, IMAGE, tmp_path / "net.onnx"), ctx)
    OnnxFoldQdqPass().apply(ctx, module)
    made = next(op for op in module.walk() if isinstance(op, NodeOp) and op.is_op("QLinearConv"))
    assert constant_operand(made.operand(8), ctx.weights).tolist() == CONSTANTS["big"].tolist()


def test_qdq_codes_of_32_bits_are_no_weights(tmp_path: Path) -> None:
    nodes = [*X, dequantise("words", "one", None, "dw"), conv(), *quantise_y("c")]
    path, x = saved(nodes, IMAGE, tmp_path / "net.onnx"), inputs(IMAGE)
    operators, got = folded(path, x)
    assert "QLinearConv" not in operators
    assert np.array_equal(got, run_file(path, {"x": x})[0])


def test_fold_may_differ_by_a_step_of_small_outputs(tmp_path: Path) -> None:
    """A mean of 2.5 codes is rounded to even in integers; 1 code of 5 is 20 % of the largest output."""
    nodes = [
        dequantise("x", "s3", "zero", "a"), node("GlobalAveragePool", ["a"], ["m"]),
        node("QuantizeLinear", ["m", "s2", "zero"], ["q"]), dequantise("q", "s2", "zero", "y"),
    ]  # fmt: skip
    arrays = {"s3": np.float32(0.03), "s2": np.float32(0.02), "zero": np.uint8(0)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 4, 3, 2))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, 1, 1))],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = [[[0, 1], [1, 0], [4, 0]], [[4, 4], [4, 4], [4, 2]], [[1, 4], [4, 4], [0, 1]], [[2, 1], [4, 3], [2, 0]]]
    np.savez(tmp_path / "x.npz", x=np.uint8([x]))
    done("verify", save(model, tmp_path / "net.onnx"), "--input", tmp_path / "x.npz", "--images", 1)


def test_dequantised_values_that_host_and_array_read_keep_their_codes(tmp_path: Path) -> None:
    """The bounds of the Clip lie between codes, so that the host computes it; the mean is the array's."""
    clip = node("Clip", ["y", "lo", "hi"], ["z"])
    mean = node("AveragePool", ["y"], ["mean"], kernel_shape=[2, 2])
    path, x = (
        saved([QUANTISE_X, dequantise("q", "sx", "zx", "y"), clip, mean], IMAGE, tmp_path / "net.onnx"),
        inputs(IMAGE),
    )
    np.savez(tmp_path / "x.npz", x=x)
    done("compile", path, "--calibrate", tmp_path / "x.npz", "--precision", "int8", "-o", tmp_path / "net.cnb")
    done("run", tmp_path / "net.cnb", "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz")
    y, z, *_ = run_file(path, {"x": x})
    with np.load(tmp_path / "y.npz") as got:
        assert np.array_equal(got["y"], y)
        assert np.array_equal(got["z"], z)
