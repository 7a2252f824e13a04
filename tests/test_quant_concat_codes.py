"""Concatenations of codes in different scales: on the array, each code is onnxruntime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_cases import done
from frontend_models import run_file
from onnx import helper, numpy_helper

pytestmark = pytest.mark.usefixtures("short_searches")

node = helper.make_node
SCALES = {"a": (0.0131, 3), "b": (0.0251, -7), "y": (0.0207, 1)}
QDQ = [
    node("DequantizeLinear", ["a", "a.s", "a.z"], ["a.r"], name="a.d"),
    node("DequantizeLinear", ["b", "b.s", "b.z"], ["b.r"], name="b.d"),
    node("Concat", ["a.r", "b.r", "a.r"], ["r"], name="cat", axis=-3),
    node("QuantizeLinear", ["r", "y.s", "y.z"], ["c"], name="q"),
]
OPERATOR = [
    node(
        "QLinearConcat", ["y.s", "y.z", "a", "a.s", "a.z", "b", "b.s", "b.z", "a", "a.s", "a.z"], ["c"], name="cat",
        axis=1, domain="com.microsoft",
    )
]  # fmt: skip
POOL = node("MaxPool", ["c"], ["y"], name="pool", kernel_shape=[1, 1])


@pytest.mark.parametrize("nodes", [QDQ, OPERATOR], ids=["qdq", "qoperator"])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_quant_concat_codes_are_onnxruntimes(nodes: list[onnx.NodeProto], kind: str, tmp_path: Path) -> None:
    """All codes of both inputs, whose scales are not the result's."""
    element, low = (onnx.TensorProto.INT8, -128) if kind == "int8" else (onnx.TensorProto.UINT8, 0)
    constants = [
        numpy_helper.from_array(array, f"{name}.{what}")
        for name, (scale, zero) in SCALES.items()
        for what, array in (("s", np.float32(scale)), ("z", np.array(zero % 128, kind)))
    ]
    dims = {"a": (1, 1, 16, 16), "b": (1, 1, 16, 16), "y": (1, 3, 16, 16)}
    values = {name: helper.make_tensor_value_info(name, element, shape) for name, shape in dims.items()}
    graph = helper.make_graph([*nodes, POOL], "codes", [values["a"], values["b"]], [values["y"]], constants)
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    net, feeds, binary = tmp_path / "net.onnx", tmp_path / "x.npz", tmp_path / "net.cnb"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), net)
    codes = np.arange(low, low + 256).astype(kind).reshape(dims["a"])
    np.savez(feeds, a=codes, b=codes[..., ::-1])
    assert "on the host" not in done("check", net).stdout
    done("compile", net, "-o", binary)
    done("run", binary, "--input", feeds, "--output", tmp_path / "y.npz")
    (wanted,) = run_file(net, {"a": codes, "b": codes[..., ::-1]})
    assert np.array_equal(np.load(tmp_path / "y.npz")["y"], wanted)
