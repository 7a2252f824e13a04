"""Networks of one dimension: the array computes them as images of one row, and their values are onnxruntime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_cases import noise
from frontend_models import context, model, on_array, random_inputs, run_file, saved

from cnncc.api import CompileOptions, compile_model, run
from cnncc.dialects.onnx import NodeOp
from cnncc.eval.onnx import evaluate
from cnncc.frontend.import_onnx import import_onnx
from cnncc.passes.onnx_1d_to_2d import Onnx1dTo2dPass
from cnncc.util.progress import silent

pytestmark = pytest.mark.usefixtures("short_searches")

# Bodies from x, f32[2, 4, 11], to y, and the operators that have to be of images.
BODIES = {
    "Conv": "y = Conv <pads = [2, 0], strides = [2], dilations = [2]> (x, w, b)",
    "grouped Conv": "y = Conv <group = 2, kernel_shape = [3]> (x, g)",
    "SAME": 'y = Conv <auto_pad = "SAME_UPPER", strides = [3]> (x, w)',
    "ConvTranspose": "y = ConvTranspose <strides = [3], pads = [1, 0], output_padding = [1]> (x, w)",
    "ConvTranspose of a size": "y = ConvTranspose <strides = [2], output_shape = [21]> (x, w)",
    "MaxPool": "y = MaxPool <kernel_shape = [3], strides = [2], pads = [1, 0], ceil_mode = 1> (x)",
    "AveragePool": "y = AveragePool <kernel_shape = [4], pads = [1, 2], count_include_pad = 1> (x)",
    "GlobalMaxPool": "y = GlobalMaxPool (x)",
    "GlobalAveragePool": "y = GlobalAveragePool (x)",
    "ReduceMean": "y = ReduceMean <axes = [-1], keepdims = 0> (x)",
    "ReduceMean that keeps its axis": "y = ReduceMean <axes = [2]> (x)",
    "BatchNormalization": "c = Conv (x, w) y = BatchNormalization (c, s, s, s, s)",
    "Relu": "c = Conv (x, w) y = Relu (c)",
    "PRelu": "c = Conv (x, w) y = PRelu (c, slope)",
    "Clip": "c = Conv (x, w) y = Clip (c, lo, hi)",
    "Add": "c = Conv <pads = [1, 1]> (x, w) d = Conv (x, one) y = Add (c, d)",
    "Add of a constant": "c = Conv (x, w) d = Add (c, row) y = Add (d, slope)",
    "Mul": "c = Conv <pads = [1, 1]> (x, w) d = Conv (x, one) y = Mul (c, d)",
    "Mul by one number a channel": "c = Conv (x, w) m = GlobalAveragePool (c) y = Mul (m, c)",
    "Mul by a constant": "c = Conv (x, w) d = Mul (c, row) y = Mul (d, slope)",
    "Concat": "c = Conv <pads = [1, 1]> (x, w) y = Concat <axis = -2> (c, x)",
}
STAY = {
    "a mean over channels": "y = ReduceMean <axes = [1]> (x)",
    "lines one after the other": "c = Conv <pads = [1, 1]> (x, w) r = Softmax (c) y = Concat <axis = 2> (r, x)",
    "indices": "y, i = MaxPool <kernel_shape = [3]> (x) j = Cast <to = 1> (i) z = Relu (j)",
    "activations alone": "r = Relu (x) y = Add (r, x)",
    "products alone": "r = Relu (x) y = Mul (r, x)",
}
ARRAYS = {
    "w": noise(1, 4, 4, 3), "g": noise(2, 4, 2, 3), "one": noise(3, 4, 4, 1), "b": noise(4, 4),
    "s": np.abs(noise(5, 4)), "slope": noise(6, 4, 1) ** 2 / 9, "row": noise(7, 9), "lo": np.float32(-1),
    "hi": np.float32(2),
}  # fmt: skip


def graph(body: str, outputs: str = "float[N, P, Q] y") -> str:
    return f"g (float[2, 4, 11] x) => ({outputs}) {{ {body} }}"


@pytest.mark.parametrize("name", [*BODIES, *STAY])
def test_lines_become_images_with_the_same_values(name: str, tmp_path: Path) -> None:
    body = BODIES.get(name) or STAY[name]
    outputs = {"ReduceMean": "float[N, P] y", "indices": "float[N, P, Q] y, float[N, P, Q] z"}
    path, ctx = saved(model(graph(body, outputs.get(name, "float[N, P, Q] y")), **ARRAYS), tmp_path), context()
    module = import_onnx(path, ctx)
    inputs = random_inputs(module)
    before = [op.op_type.data for op in module.walk() if isinstance(op, NodeOp)]
    Onnx1dTo2dPass().apply(ctx, module)
    module.verify()
    for want, got in zip(run_file(path, inputs), evaluate(module, ctx.weights, inputs).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        assert got.shape == want.shape and np.ptp(want) > 0
    nodes = [op for op in module.walk() if isinstance(op, NodeOp)]
    of_lines = [op.op_type.data for op in nodes if not op.is_op("Reshape") and len(op.results[0].type.get_shape()) < 4]
    assert of_lines == ([] if name in BODIES else before if "Conv" not in body else before[1:])
    assert all(list(op.results[0].uses) for op in nodes)


NET = """g (float[1, 2, 40] x) => (float[1, 5] y) {
  c1 = Conv <pads = [2, 2]> (x, w1, b1) n1 = BatchNormalization (c1, s, t, m, v) r1 = Relu (n1)
  p1 = MaxPool <kernel_shape = [2], strides = [2]> (r1)
  c2 = Conv <pads = [1, 1]> (p1, w2) a = Add (c2, p1) r2 = Relu (a)
  q = GlobalAveragePool (r2) f = Flatten (q) y = Gemm (f, w3)
}"""
WEIGHTS = {
    "w1": noise(1, 6, 2, 5), "b1": noise(2, 6), "s": np.abs(noise(3, 6)), "t": noise(4, 6), "m": noise(5, 6),
    "v": np.abs(noise(6, 6)) + np.float32(0.1), "w2": noise(7, 6, 6, 3), "w3": noise(8, 6, 5),
}  # fmt: skip


def test_a_network_of_lines_runs_on_the_array(tmp_path: Path) -> None:
    path, data = saved(model(NET, **WEIGHTS), tmp_path), {"x": noise(9, 30, 2, 40)}
    segments, decibels = on_array(path, data)
    assert not segments, "a node is on the host"
    assert decibels > 60


QUANTISED = """g (float[1, 2, 40] x) => (float[1, 6, 20] y) {
  q = QuantizeLinear (x, sx, zx)
  c = QLinearConv <pads = [2, 2]> (q, sx, zx, w, sw, zw, sy, zy)
  p = MaxPool <kernel_shape = [2], strides = [2]> (c)
  l = com.microsoft.QLinearLeakyRelu <alpha = 0.1> (p, sy, zy, sl, zy)
  m = com.microsoft.QLinearMul (l, sl, zy, k, sx, zx, sy, zy)
  a = com.microsoft.QLinearAdd (m, sy, zy, k, sx, zx, sy, zy)
  b = com.microsoft.QLinearAveragePool <kernel_shape = [3], pads = [1, 1]> (a, sy, zy, sl, zy)
  y = DequantizeLinear (b, sl, zy)
}"""


def test_a_quantised_network_of_lines_has_onnxruntime_s_integers(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "w": rng.integers(-127, 128, (6, 2, 5)).astype(np.int8), "sw": rng.uniform(0.01, 0.02, 6).astype(np.float32),
        "zw": np.zeros(6, np.int8), "sx": np.float32(0.02), "zx": np.uint8(120), "sy": np.float32(0.1),
        "zy": np.uint8(131), "sl": np.float32(0.0717), "k": rng.integers(0, 256, (6, 1)).astype(np.uint8),
    }  # fmt: skip
    path, data = saved(model(QUANTISED, domains=("com.microsoft",), **arrays), tmp_path), {"x": noise(9, 1, 2, 40)}
    binary = compile_model(path, CompileOptions("spatial-4x4"), data, remark=silent)
    assert not any(b"QLinear" in segment for segment in binary.segments), "a layer is on the host"
    (expected,) = run_file(path, data)
    assert np.array_equal(run(binary, data)["y"], expected) and np.ptp(expected) > 0
