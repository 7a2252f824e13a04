"""Relu, Clip and LeakyRelu: where the result has its operand's scale, where one of its own, and what that is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import done, save
from cnn_ir import imported
from frontend_models import run_file
from onnx import TensorProto, helper, numpy_helper

from cnncc.dialects.onnx import NodeOp
from cnncc.driver.calibrate import calibrate
from cnncc.eval.cnn import dequantise_outputs, evaluate, quantise_inputs
from cnncc.eval.onnx import evaluate as evaluate_float
from cnncc.main_function import main_function
from cnncc.passes._onnx.placement import place_nodes
from cnncc.passes.onnx_to_cnn import OnnxToCnnPass
from cnncc.quant.split import HEADROOM

pytestmark = pytest.mark.usefixtures("short_searches")

node = helper.make_node
RNG = np.random.default_rng(23)
NORMAL = RNG.standard_normal((1, 4, 6, 6)).astype(np.float32)
CONSTANTS = {
    "w": RNG.standard_normal((5, 4, 3, 3)).astype(np.float32),
    **{"lo": np.float32(0.25), "hi": np.float32(0.75), "down": np.float32(-0.001), "up": np.float32(0.001)},
}
ONE_PIXEL = {"kernel_shape": [1, 1]}
NEAR_MINUS_4 = NORMAL * np.float32(0.1) - 4

# nodes, x, outputs with the least SQNR in dB
CASES: dict[str, tuple[list[onnx.NodeProto], np.ndarray, dict[str, float]]] = {
    "leaky after a sum": (
        [node("Add", ["x", "x"], ["a"]), node("LeakyRelu", ["a"], ["y"], alpha=0.1)], NEAR_MINUS_4, {"y": 90},
    ),
    "leaky of an input": ([node("LeakyRelu", ["x"], ["y"], alpha=0.1)], NEAR_MINUS_4, {"y": 90}),
    "leaky of a host result": (
        [node("Softplus", ["x"], ["h"]), node("Neg", ["h"], ["g"]), node("LeakyRelu", ["g"], ["y"], alpha=0.1)],
        NORMAL, {"y": 75},
    ),
    "leaky of a clip": (
        [node("Clip", ["x", "", "up"], ["c"]), node("LeakyRelu", ["c"], ["y"], alpha=0.1)], NORMAL, {"y": 65},
    ),
    "leaky of a leaky": (
        [node("Conv", ["x", "w"], ["c"]), node("LeakyRelu", ["c"], ["l"], alpha=0.1),
         node("LeakyRelu", ["l"], ["y"], alpha=0.1)],
        NORMAL, {"y": 75},
    ),
    "leaky of a shared value that is negative": (
        [node("LeakyRelu", ["x"], ["y"], alpha=0.01), node("Relu", ["x"], ["z"])], NEAR_MINUS_4, {"y": 90},
    ),
    "narrow clip of a shared value": (
        [node("Clip", ["x", "down", "up"], ["y"]), node("MaxPool", ["x"], ["z"], **ONE_PIXEL)], NORMAL,
        {"y": 90, "z": 85},
    ),
    "clip above a range": (
        [node("MaxPool", ["x"], ["m"], **ONE_PIXEL), node("Clip", ["m", "lo", "hi"], ["y"])],
        np.clip(NORMAL, -1, 1) * np.float32(0.1), {"y": 90},
    ),
    "clip above a shared range": (
        [node("MaxPool", ["x"], ["m"], **ONE_PIXEL), node("Clip", ["m", "lo", "hi"], ["y"])],
        np.clip(NORMAL, -1, 1) * np.float32(0.1), {"y": 90, "m": 85},
    ),
    "relu and leaky of one convolution": (
        [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["y"]), node("LeakyRelu", ["c"], ["z"], alpha=0.01)],
        NORMAL, {"y": 75, "z": 75, "c": 75},
    ),
    "clip of a concatenation with a small first operand": (
        [node("Relu", ["x"], ["r"]), node("Mul", ["x", "up"], ["t"]), node("Concat", ["t", "r"], ["c"], axis=1),
         node("Clip", ["c", "lo", "hi"], ["y"])],
        NORMAL, {"y": 80},
    ),
}  # fmt: skip


def decibels(want: np.ndarray, got: np.ndarray) -> float:
    noise = float(np.square(want.astype(np.float64) - got).sum())
    return 10 * float(np.log10(np.square(want.astype(np.float64)).sum() / noise)) if noise else np.inf


@pytest.mark.parametrize("name", CASES)
def test_activation_scales_are_near_the_float_result(name: str) -> None:
    nodes, x, least = CASES[name]
    module, ctx = imported(nodes, {"x": x.shape}, list(least), CONSTANTS)
    want = evaluate_float(module, ctx.weights, {"x": x})
    calibrate(module, ctx.weights, {"x": x}, 16, 32)
    OnnxToCnnPass(16, 32).apply(ctx, module)
    results, _ = evaluate(module, ctx.weights, quantise_inputs(module, {"x": x}))
    got = dequantise_outputs(module, results)
    found = {name: decibels(want[name], got[name]) for name in least}
    assert all(found[name] > least[name] for name in least), found


def keeping(nodes: list[onnx.NodeProto], outputs: list[str]) -> set[str]:
    """The results of activations that have their operand's scale."""
    module, ctx = imported(nodes, {"x": NORMAL.shape}, outputs, CONSTANTS)
    placement = place_nodes(module, ctx.weights)
    activations = [
        op for op in main_function(module).walk() if isinstance(op, NodeOp) and op in placement.scale_keepers
    ]
    kinds = ("Relu", "Clip", "LeakyRelu")
    return {op.results[0].name_hint or "" for op in activations if op.op_type.data in kinds}


def test_activation_scales_where_nothing_else_reads_what_they_are_made_of() -> None:
    conv, pool = node("Conv", ["x", "w"], ["c"]), node("MaxPool", ["c"], ["m"], **ONE_PIXEL)
    assert keeping([conv, pool, node("Relu", ["m"], ["y"])], ["y"]) == {"y"}
    assert keeping([conv, pool, node("Relu", ["m"], ["y"])], ["y", "m"]) == set()
    assert keeping([conv, pool, node("Relu", ["m"], ["y"])], ["y", "c"]) == set()
    assert keeping([conv, node("LeakyRelu", ["c"], ["l"]), node("Clip", ["l", "lo"], ["y"])], ["y"]) == {"l", "y"}
    assert keeping([conv, pool, node("LeakyRelu", ["m"], ["l"]), node("Relu", ["l"], ["y"])], ["y"]) == {"y"}


def test_activation_scales_of_concatenations_need_all_operands_alone() -> None:
    nodes = [node("Relu", ["x"], ["r"]), node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
             node("Concat", ["r", "a"], ["c"], axis=1), node("Relu", ["c"], ["y"])]  # fmt: skip
    assert keeping(nodes, ["y"]) == {"y"}  # x is read twice: r has a scale of its own
    assert keeping(nodes, ["y", "a"]) == set()


def test_activation_scales_saturate_where_a_later_value_is_all_that_counts() -> None:
    """A convolution between -9 and 0.5 whose Relu follows a MaxPool has the scale of the Relu's result."""
    nodes = [node("Conv", ["x", "k"], ["c"]), node("MaxPool", ["c"], ["m"], **ONE_PIXEL), node("Relu", ["m"], ["y"])]
    x = np.linspace(-9, 0.5, 16, dtype=np.float32).reshape(1, 1, 4, 4)
    module, ctx = imported(nodes, {"x": x.shape}, ["y"], {"k": np.ones((1, 1, 1, 1), np.float32)})
    calibrate(module, ctx.weights, {"x": x}, 16, 32)
    OnnxToCnnPass(16, 32).apply(ctx, module)
    results, _ = evaluate(module, ctx.weights, quantise_inputs(module, {"x": x}))
    assert 0.999 < results[0].max() / (32767 / HEADROOM) <= 1
    assert decibels(np.maximum(x, 0), dequantise_outputs(module, results)["y"]) > 65


def test_activation_scales_between_host_and_codes_are_the_hosts() -> None:
    """What the host computes it can also clip and quantise, exactly."""
    nodes = [
        node("Sin", ["x"], ["h"]), node("Conv", ["h", "w"], ["c"]), node("Clip", ["h", "lo", "hi"], ["l"]),
        node("QuantizeLinear", ["l", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Conv", ["d", "w"], ["y"]),
    ]  # fmt: skip
    codes = {"s": np.float32(0.01), "z": np.int8(0)}
    module, ctx = imported(nodes, {"x": NORMAL.shape}, ["y", "c"], {**CONSTANTS, **codes})
    placement = place_nodes(module, ctx.weights)
    assert [op.op_type.data for op in placement.reasons] == ["Sin", "Clip", "QuantizeLinear"]


# -- codes of the model: a Clip between them or beyond them is the host's ----------------------------------------------


@pytest.mark.parametrize(
    ("zero", "lo", "hi", "wanted"),
    [
        (255, 0.3, 0.9, [30]),  # every code stands for at most 0
        (0, -0.9, -0.3, [-30]),
        (128, 0.3, 0.9, None),
        (128, 0.305, 0.9, None),
        (255, -0.3, 0.9, None),
    ],
)
def test_activation_scales_of_codes_that_a_clip_lies_beyond(
    zero: int, lo: float, hi: float, wanted: list[int] | None, tmp_path: Path
) -> None:
    """The codes step by 0.01; the result is quantised again by 0.01 with the zero point 0."""
    arrays: dict[str, Any] = {
        **{"s": np.float32(0.01), "z": np.uint8(zero), "signed": np.int8(0)},
        **{"lo": np.float32(lo), "hi": np.float32(hi)},
    }
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        node("Clip", ["a", "lo", "hi"], ["c"]),
        node("QuantizeLinear", ["c", "s", "signed"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 1, 16, 16))],
        [helper.make_tensor_value_info("y", TensorProto.INT8, (1, 1, 16, 16))],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    model = save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m")
    x = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    np.savez(tmp_path / "x.npz", x=x)
    (want,) = run_file(model, {"x": x})
    assert wanted is None or np.unique(want).tolist() == wanted
    done("compile", model, "-o", tmp_path / "m.cnb", "--arch", "spatial-4x4")
    done("run", tmp_path / "m.cnb", "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz")
    assert np.array_equal(np.load(tmp_path / "y.npz")["y"], want)
