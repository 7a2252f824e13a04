"""Products of uint8 and int8 by onnxruntime: exact, also where its kernel for them saturates at 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cnncc.frontend.run_onnx import OnnxSession
from cnncc.frontend.unsigned_weights import with_unsigned_weights

CHANNELS = 8
CODES = np.full((2, CHANNELS), 255, np.uint8)  # two products with weights of 127 do not fit 16 bits
WEIGHTS = np.array([[127], [-128], [1]], np.int8).repeat(CHANNELS, axis=1).T.copy()
OPSETS = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]


def model(node: onnx.NodeProto, result: int, fed: dict[str, np.ndarray], kept: dict[str, Any]) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in fed.items()
    ]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in kept.items()]
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_tensor_value_info("y", result, None)], initializer=tensors
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=9)


def kinds(changed: onnx.ModelProto) -> set[int]:
    return {tensor.data_type for tensor in changed.graph.initializer if tensor.name in changed.graph.node[-1].input}


@pytest.mark.parametrize("zero", [None, 0, -3, [5, 0, -7]])
@pytest.mark.parametrize("weights_are_fed", [False, True])
def test_unsigned_weights_of_integer_products(zero: int | list[int] | None, weights_are_fed: bool) -> None:
    fed = {"a": CODES} | ({"b": WEIGHTS} if weights_are_fed else {})
    kept: dict[str, Any] = {"za": np.uint8(1)} | ({} if weights_are_fed else {"b": WEIGHTS})
    kept |= {"b.unsigned": np.uint8(0)}  # a name that is taken
    kept |= {} if zero is None else {"zb": np.array(zero, np.int8)}
    node = helper.make_node("MatMulInteger", ["a", "b", "za", *(["zb"] if "zb" in kept else [])], ["y"])
    found = model(node, TensorProto.INT32, fed, kept)
    before = found.SerializeToString()
    want = (CODES.astype(np.int64) - 1) @ (WEIGHTS.astype(np.int64) - np.array(zero or 0))
    assert np.array_equal(OnnxSession(found).run(fed)[0], want)
    assert TensorProto.INT8 not in kinds(with_unsigned_weights(found))
    assert found.SerializeToString() == before


def test_unsigned_weights_of_integer_convolutions() -> None:
    fed, kept = {"a": CODES[:, :, None, None]}, {"za": np.uint8(1), "b": WEIGHTS.T[:, :, None, None]}
    found = model(helper.make_node("ConvInteger", ["a", "b", "za"], ["y"]), TensorProto.INT32, fed, kept)
    want = (CODES.astype(np.int64) - 1) @ WEIGHTS.astype(np.int64)
    assert np.array_equal(OnnxSession(found).run(fed)[0][:, :, 0, 0], want)
    assert TensorProto.INT8 not in kinds(with_unsigned_weights(found))


def test_unsigned_weights_that_are_given_in_place_of_a_default() -> None:
    fed = {"a": CODES, "b": WEIGHTS}
    found = model(helper.make_node("MatMulInteger", ["a", "b"], ["y"]), TensorProto.INT32, fed, {"b": 0 * WEIGHTS})
    assert np.array_equal(OnnxSession(found).run(fed)[0], CODES.astype(np.int64) @ WEIGHTS.astype(np.int64))


@pytest.mark.parametrize("op", ["QLinearConv", "QLinearMatMul", "QGemm"])
@pytest.mark.parametrize("zero", [0, 9])
def test_unsigned_weights_of_quantised_layers(op: str, zero: int) -> None:
    scale, conv = np.float32(1 / 1024), op == "QLinearConv"
    kept: dict[str, Any] = {
        "sa": scale, "za": np.uint8(2), "b": WEIGHTS.T[:, :, None, None] if conv else WEIGHTS, "sb": np.float32(1),
        "zb": np.int8(zero), "sy": np.float32(2), "zy": np.uint8(128),
    }  # fmt: skip
    names = ["a", "sa", "za", "b", "sb", "zb"] + ([""] if op == "QGemm" else []) + ["sy", "zy"]
    node = helper.make_node(op, names, ["y"], domain="com.microsoft" if op == "QGemm" else "")
    codes = CODES[:, :, None, None] if conv else CODES
    found = model(node, TensorProto.UINT8, {"a": codes}, kept)
    total = (CODES.astype(np.int64) - 2) @ (WEIGHTS.astype(np.int64) - zero)
    want = np.clip(np.rint(total / 2048) + 128, 0, 255).astype(np.uint8)
    got = OnnxSession(found).run({"a": codes})[0]
    assert np.array_equal(got.reshape(want.shape), want)
    assert TensorProto.INT8 not in kinds(with_unsigned_weights(found))


@pytest.mark.parametrize(("codes", "weights"), [(np.int8, np.int8), (np.uint8, np.uint8)])
def test_unsigned_weights_where_nothing_saturates(codes: type, weights: type) -> None:
    fed = {"a": np.ones((1, 2), codes)}
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    found = model(node, TensorProto.INT32, fed, {"b": np.ones((2, 1), weights)})
    assert with_unsigned_weights(found) is found
