"""Products of stacked matrices: convolutions compute them, and their values are onnxruntime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_cases import noise
from frontend_models import model, on_array, op_types, rewritten, saved

from cnncc.dialects.onnx import NodeOp
from cnncc.passes.onnx_matmul_to_conv import OnnxMatmulToConvPass

pytestmark = pytest.mark.usefixtures("short_searches")

# Bodies from x, f32[2, 5, 3, 4], and the operators after the pass but those that turn matrices.
BODIES = {
    "alone": ("y = MatMul (x, w)", ["Conv"]),
    "a bias and activations": (
        "a = MatMul (x, w) b = Add (bias, a) c = Relu (b) y = Tanh (c)", ["Conv", "Add", "Relu", "turned", "Tanh"],
    ),
    "a bias of rank 3": ("a = MatMul (x, w) y = Add (a, deep)", ["Conv", "Add"]),
    "a bias of each row": ("a = MatMul (x, w) y = Add (a, rows)", ["Conv", "turned", "Add"]),
    "a sum of rank 5": ("a = MatMul (x, w) y = Add (a, five)", ["Conv", "turned", "Add"]),
    "a residual": ("a = MatMul (x, w) b = MatMul (x, w) y = Add (a, b)", ["Conv", "turned", "Conv", "turned", "Add"]),
    "two in turn": ("a = MatMul (x, w) b = Relu (a) y = MatMul (b, u)", ["Conv", "Relu", "turned", "conv", "turned"]),
    "two readers": ("a = MatMul (x, w) b = Relu (a) y = Add (a, b)", ["Conv", "turned", "Relu", "Add"]),
    "a stack of weights": ("y = MatMul (x, stack)", ["MatMul"]),
    "computed weights": ("v = Neg (w) y = MatMul (x, v)", ["Neg", "MatMul"]),
    "weights before": ("y = MatMul (w, x)", ["MatMul"]),
    "a vector": ("y = MatMul (x, vector)", ["MatMul"]),
}  # fmt: skip
ARRAYS = {
    "w": noise(1, 4, 3), "u": noise(8, 3, 5), "bias": noise(2, 3), "deep": noise(3, 1, 1, 3), "rows": noise(4, 3, 1),
    "five": noise(5, 1, 1, 1, 1, 3), "stack": noise(6, 5, 4, 6), "vector": noise(7, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_convolution_computes_it(name: str, tmp_path: Path) -> None:
    body, operators = BODIES[name]
    outputs = {"a vector": "float[N, P, Q] y", "a sum of rank 5": "float[L, N, P, Q, R] y"}
    graph = f"g (float[2, 5, 3, 4] x) => ({outputs.get(name, 'float[N, P, Q, R] y')}) {{ {body} }}"
    module = rewritten(model(graph, **ARRAYS), tmp_path, OnnxMatmulToConvPass(), tolerance=1e-5)
    left = " ".join(op_types(module))
    expected = " ".join(operators).replace("Conv", "Reshape Transpose Conv")
    if "Conv" in operators and "turned" not in operators:
        expected += " turned"
    assert left == expected.replace("turned", "Transpose Reshape").replace("conv", "Conv")  # it reads the image


def test_more_rows_than_an_image_has_columns(tmp_path: Path) -> None:
    graph = "g (float[3, 11000, 2] x) => (float[3, 11000, 1] y) { y = MatMul (x, w) }"
    proto = model(graph, w=noise(1, 2, 1))
    module = rewritten(proto, tmp_path, OnnxMatmulToConvPass(), tolerance=1e-5)
    (conv,) = [op for op in module.walk() if isinstance(op, NodeOp) and op.is_op("Conv")]
    assert conv.results[0].type.get_shape() == (1, 1, 3, 11000)


NET = """g (float[1, 3, 4, 9] x) => (float[1, 9, 5] y) {
  a = Conv <kernel_shape = [4, 3], pads = [0, 1, 0, 1]> (x, w1) r = Relu (a) s = Squeeze (r, rows)
  t = Transpose <perm = [0, 2, 1]> (s)
  m = MatMul (t, w2) n = Add (m, b2) q = Relu (n) y = MatMul (q, w3)
}"""
WEIGHTS = {
    "w1": noise(1, 6, 3, 4, 3), "rows": np.array([2]), "w2": noise(2, 6, 8), "b2": noise(3, 8), "w3": noise(4, 8, 5),
}  # fmt: skip


def test_a_recogniser_of_text_is_on_the_array(tmp_path: Path) -> None:
    path, data = saved(model(NET, **WEIGHTS), tmp_path), {"x": noise(9, 20, 3, 4, 9)}
    segments, decibels = on_array(path, data)
    assert not any(b"MatMul" in segment or b"Gemm" in segment for segment in segments)
    assert decibels > 60
