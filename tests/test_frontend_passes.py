"""Each pass on the graph: what it computes before and after, through onnxruntime.

Passes that only remove or evaluate nodes give the same bits. Folding batch normalisation reorders
float arithmetic: relative to the largest output, 1e-5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from frontend_models import context, model, op_types, random_inputs, rewritten, saved
from hypothesis import given
from hypothesis import strategies as st

from cnncc.dialects.onnx import NodeOp
from cnncc.dialects.weights import ConstantOp
from cnncc.eval.onnx import Evaluator, evaluate
from cnncc.frontend.export_onnx import export_onnx
from cnncc.frontend.import_onnx import import_onnx
from cnncc.main_function import main_function
from cnncc.passes._onnx.normalisation import Normalisation
from cnncc.passes.onnx_dead_code import OnnxDeadCodePass
from cnncc.passes.onnx_fold_affine import OnnxFoldAffinePass
from cnncc.passes.onnx_fold_batch_norm import OnnxFoldBatchNormPass
from cnncc.passes.onnx_fold_constants import OnnxFoldConstantsPass
from cnncc.passes.onnx_fold_functions import OnnxFoldFunctionsPass
from cnncc.passes.onnx_fold_pad import OnnxFoldPadPass
from cnncc.passes.onnx_fold_transpose import OnnxFoldTransposePass
from cnncc.passes.onnx_remove_identity import OnnxRemoveIdentityPass
from cnncc.passes.onnx_split_prelu import OnnxSplitPreluPass
from cnncc.passes.onnx_split_sum import OnnxSplitSumPass
from cnncc.universe import PASSES

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_frontend_passes_are_registered() -> None:
    names = [
        "dead-code",
        "fold-affine",
        "fold-batch-norm",
        "fold-constants",
        "fold-functions",
        "fold-pad",
        "fold-transpose",
        "remove-identity",
        "split-prelu",
        "split-sum",
    ]
    assert {f"onnx-{name}" for name in names} <= set(PASSES)
    assert all(PASSES[f"onnx-{name}"]().name == f"onnx-{name}" for name in names)


CONV_BN = """g (float[2, 3, 7, 5] x) => (float[2, 6, P, Q] y) {{
  c = Conv <group = {group}, strides = [2, 1], pads = [0, 1, 2, 1]> (x, w{bias})
  y = BatchNormalization <epsilon = 0.01> (c, s, t, m, v)
}}"""


def statistics(k: int) -> dict[str, np.ndarray]:
    return {"s": normal(k), "t": normal(k), "m": normal(k), "v": np.abs(normal(k)) + np.float32(0.01)}


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_frontend_pass_fold_batch_norm_into_conv(group: int, bias: bool, tmp_path: Path) -> None:
    text = CONV_BN.format(group=group, bias=", b" if bias else "")
    arrays = {"w": normal(6, 3 // group, 3, 2), **statistics(6)} | ({"b": normal(6)} if bias else {})
    module = rewritten(model(text, **arrays), tmp_path, OnnxFoldBatchNormPass(), tolerance=1e-5)
    assert op_types(module) == ["Conv"]


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_frontend_pass_fold_batch_norm_into_transposed_conv(group: int, bias: bool, tmp_path: Path) -> None:
    text = f"""g (float[2, 3, 7, 5] x) => (float[2, 6, 9, 6] y) {{
      c = ConvTranspose <group = {group}> (x, w{", b" if bias else ""})
      y = BatchNormalization <epsilon = 0.01> (c, s, t, m, v)
    }}"""
    arrays = {"w": normal(3, 6 // group, 3, 2), **statistics(6)} | ({"b": normal(6)} if bias else {})
    module = rewritten(model(text, **arrays), tmp_path, OnnxFoldBatchNormPass(), tolerance=1e-5)
    assert op_types(module) == ["ConvTranspose"] + ["BatchNormalization"] * (group > 1)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias_shape", [(5,), (1, 5), (3, 5), (3, 1), (), None])
def test_frontend_pass_fold_batch_norm_into_gemm(transposed: int, bias_shape, tmp_path: Path) -> None:
    bias = "" if bias_shape is None else ", b"
    text = f"""g (float[7, 3] x) => (float[3, 5] y) {{
      c = Gemm <alpha = 1.5, beta = 0.25, transA = 1, transB = {transposed}> (x, w{bias})
      y = BatchNormalization (c, s, t, m, v)
    }}"""
    arrays = {"w": normal(5, 7) if transposed else normal(7, 5), **statistics(5)}
    arrays |= {} if bias_shape is None else {"b": normal(*bias_shape)}
    module = rewritten(model(text, **arrays), tmp_path, OnnxFoldBatchNormPass(), tolerance=1e-5)
    assert op_types(module) == ["Gemm"]


@given(st.integers(1, 4), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_frontend_pass_fold_batch_norm_formula(k: int, axis: int, seed: int) -> None:
    """The pure function against the definition, on weights of any axis order, within two f32 roundings."""
    rng = np.random.default_rng(seed)
    scale, shift, mean, bias = rng.standard_normal((4, k)).astype(np.float32)
    normalisation = Normalisation(scale, shift, mean, rng.random(k, np.float32), 1e-3)
    weights = np.moveaxis(rng.standard_normal((k, 3, 2)).astype(np.float32), 0, axis)
    folded, moved = normalisation.fold(weights, axis, bias)
    columns = np.moveaxis(weights, axis, 0).reshape(k, 6).astype(np.float64)
    x = rng.standard_normal(6)
    want = (columns @ x + bias - mean) / np.sqrt(normalisation.variance + np.float64(1e-3)) * scale + shift
    got = np.moveaxis(folded, axis, 0).reshape(k, 6).astype(np.float64) @ x + moved
    size = np.abs(np.moveaxis(folded, axis, 0).reshape(k, 6)) @ np.abs(x) + np.abs(moved) + 1
    assert folded.dtype == moved.dtype == np.float32 and folded.shape == weights.shape
    assert (np.abs(got - want) <= 2**-23 * size).all()


def test_frontend_pass_fold_batch_norm_leaves_what_it_cannot_fold(tmp_path: Path) -> None:
    text = """g (float[1, 3, 7, 5] x, float[3, 3, 3, 3] r)
      => (float[1, 3, 7, 5] a, float[1, 3, 5, 3] b, float[1, 3, 5, 3] c, float[1, 3, 5, 3] d) {
      a = BatchNormalization (x, s, t, m, v)
      p = Conv (x, r)
      b = BatchNormalization (p, s, t, m, v)
      c = Conv (x, w)
      d = BatchNormalization (c, s, t, m, v)
    }"""
    proto = model(text, w=normal(3, 3, 3, 3), **statistics(3))
    module = rewritten(proto, tmp_path, OnnxFoldBatchNormPass())
    assert op_types(module).count("BatchNormalization") == 3


@pytest.mark.parametrize(
    "step",
    ["Mul (c, k)", "Mul (k, c)", "Add (c, k)", "Sum (k, c)", "Sub (c, k)", "Sub (k, c)", "Div (c, k)"],
)
@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), (1,), ()])
def test_frontend_pass_fold_affine_into_conv(step: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    text = f"g (float[2, 3, 7, 5] x) => (float[2, 6, P, Q] y) {{ c = Conv (x, w, b) y = {step} }}"
    arrays = {"w": normal(6, 3, 3, 2), "b": normal(6), "k": normal(*shape) + np.float32(3)}
    passes = OnnxFoldAffinePass(), OnnxFoldBatchNormPass()
    module = rewritten(model(text, **arrays), tmp_path, *passes, tolerance=1e-5)
    assert op_types(module) == ["Conv"]


def test_frontend_pass_fold_affine_chain_is_one_normalisation(tmp_path: Path) -> None:
    """As densenet has it: the normalisation, then its scale and shift, between a Concat and a Relu."""
    text = """g (float[2, 3, 7, 5] x) => (float[2, 6, 7, 5] y) {
      i = Concat <axis = 1> (x, x)
      n = BatchNormalization <epsilon = 0.01> (i, s, t, m, v)
      a = Unsqueeze (k, axes)  p = Mul (n, a)
      b = Unsqueeze (l, axes)  q = Add (p, b)
      r = Sub (one, q)  z = Div (r, k2)
      y = Relu (z)
    }"""
    arrays = {**statistics(6), "k": normal(6), "l": normal(6), "axes": np.int64([1, 2]), "one": np.float32(1)}
    arrays["k2"] = normal(1, 6, 1, 1) + np.float32(3)
    passes = OnnxFoldConstantsPass(), OnnxFoldAffinePass(), OnnxFoldBatchNormPass(), OnnxDeadCodePass()
    module = rewritten(model(text, **arrays), tmp_path, *passes, tolerance=1e-5)
    assert op_types(module) == ["Concat", "BatchNormalization", "Relu"]


def test_frontend_pass_fold_affine_matmul_becomes_gemm(tmp_path: Path) -> None:
    text = "g (float[3, 7] x) => (float[3, 5] y) { m = MatMul (x, w) a = Add (b, m) y = Mul (a, k) }"
    passes = OnnxFoldAffinePass(), OnnxFoldBatchNormPass()
    proto = model(text, w=normal(7, 5), b=normal(5), k=normal())
    module = rewritten(proto, tmp_path, *passes, tolerance=1e-5)
    assert op_types(module) == ["Gemm"]


def test_frontend_pass_fold_affine_difference_is_a_sum(tmp_path: Path) -> None:
    """As a denoiser has it, which takes the noise that it finds off the image."""
    text = """g (float[2, 3, 7, 5] x) => (float[2, 3, 7, 5] y) {
      c = Conv <pads = [1, 1, 1, 1]> (x, w)
      y = Sub (x, c)
    }"""
    passes = OnnxFoldAffinePass(), OnnxFoldBatchNormPass()
    module = rewritten(model(text, w=normal(3, 3, 3, 3)), tmp_path, *passes, tolerance=1e-5)
    assert op_types(module) == ["Conv", "Add"]


@pytest.mark.parametrize("other", ["float[1, 3, 1] z", "double[2, 3, 4] z"])
def test_frontend_pass_fold_affine_leaves_differences(other: str, tmp_path: Path) -> None:
    """Of two shapes, and of numbers that are not f32."""
    kind = other.partition("[")[0]
    text = f"g ({kind}[2, 3, 4] x, {other}) => ({kind}[2, 3, 4] y) {{ y = Sub (x, z) }}"
    ctx = context()
    module = import_onnx(saved(model(text), tmp_path), ctx)
    OnnxFoldAffinePass().apply(ctx, module)
    assert op_types(module) == ["Sub"]


def test_frontend_pass_fold_affine_leaves(tmp_path: Path) -> None:
    """Constants inside a channel or under a fraction, results larger than x, stacks of matrices, no channels."""
    text = """g (float[2, 3, 4] x, float[3] v, float[1, 1] z) =>
      (float[2, 3, 4] a, float[2, 3, 4] b, float[3] c, float[3, 5] d, float[2, 3, 5] e, float[2, 3, 4] f) {
      a = Mul (x, w)
      b = Div (k, x)
      c = Add (v, k)
      d = Mul (z, u)
      m = MatMul (x, t)
      e = BatchNormalization (m, k3, k3, k3, k3)
      f = Div (x, zero)
    }"""
    arrays = {"w": normal(3, 4), "k": np.float32(2), "u": normal(3, 5), "t": normal(4, 5)}
    arrays |= {"k3": np.float32([1, 2, 3]), "zero": np.float32([[[1], [0], [1]]])}
    ctx = context()
    module = import_onnx(saved(model(text, **arrays), tmp_path), ctx)
    types = op_types(module)
    for one in (OnnxFoldAffinePass(), OnnxFoldBatchNormPass()):
        one.apply(ctx, module)
    assert op_types(module) == types


def test_frontend_pass_fold_affine_value_between_is_used(tmp_path: Path) -> None:
    text = """g (float[2, 3, 4] x) => (float[2, 3, 4] y, float[2, 3, 4] z) {
      a = Mul (x, k) y = Relu (a) z = Add (a, l) }"""
    module = rewritten(model(text, k=normal(3, 1), l=normal()), tmp_path, OnnxFoldAffinePass(), tolerance=1e-6)
    assert op_types(module) == ["BatchNormalization", "Relu", "BatchNormalization"]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        ("Conv <pads = [1, 1, 0, 2], group = 3> (d, w, b)", (6, 1, 2, 3)),
        ("Conv (d, w)", (6, 3, 2, 3)),
        ("ConvTranspose <group = 3> (d, w, b)", (3, 2, 2, 3)),
        ("MatMul (d, w)", (5, 6)),
    ],
)
def test_frontend_pass_fold_batch_norm_one_factor_into_layer_after(
    layer: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """The last step of a hard swish: x * clip(x + 3) / 6, of which both factors were computed."""
    text = f"""g (float[2, 3, 7, 5] x, float[2, 3, 7, 5] z) => (float[2, K, P, Q] y) {{
      m = Mul (x, z)
      d = Div (m, six)
      y = {layer}
    }}"""
    passes = OnnxFoldAffinePass(), OnnxFoldBatchNormPass()
    arrays = {"w": normal(*shape), "b": normal(6), "six": np.float32(6)}
    module = rewritten(model(text, **arrays), tmp_path, *passes, tolerance=1e-5)
    assert op_types(module) == ["Mul", layer.split()[0]]


def test_frontend_pass_fold_batch_norm_one_factor_into_all_users(tmp_path: Path) -> None:
    text = """g (float[2, 3] x) => (float[2, 6] y, float[2, 4] z) {
      r = Relu (x)
      d = Mul (r, k)
      y = Gemm <alpha = 1.5, beta = 0.25> (d, w, b)
      z = Gemm <transB = 1> (d, v)
    }"""
    passes = OnnxFoldAffinePass(), OnnxFoldBatchNormPass()
    arrays = {"w": normal(3, 6), "v": normal(4, 3), "b": normal(6), "k": np.float32([-0.25])}
    module = rewritten(model(text, **arrays), tmp_path, *passes, tolerance=1e-5)
    assert op_types(module) == ["Relu", "Gemm", "Gemm"]


@pytest.mark.parametrize(
    ("step", "users"),
    [
        ("Mul (r, k)", "y = Conv (d, w) z = Relu (d)"),
        ("Mul (r, differ)", "y = Conv (d, w) z = Relu (y)"),
        ("Add (r, k)", "y = Conv (d, w) z = Relu (y)"),
        ("Mul (r, large)", "y = Conv (d, w) z = Relu (y)"),
        ("Mul (r, k)", "y = Conv (d, v) z = Relu (y)"),
        ("Mul (r, k)", "y = Conv (v, d) z = Relu (y)"),
    ],
)
def test_frontend_pass_fold_batch_norm_leaves_before_a_layer(step: str, users: str, tmp_path: Path) -> None:
    """Other users, several factors, an offset, factors that f32 has not, weights known only at run time."""
    text = f"""g (float[3, 3, 2, 2] x, float[3, 3, 2, 2] v) => (float[A, B, C, D] y, float[E, F, G, H] z) {{
      r = Relu (x)
      d = {step}
      {users} }}"""
    arrays = {"w": 1e10 * normal(3, 3, 2, 2), "k": np.float32(3), "large": np.float32(1e30)}
    arrays["differ"] = np.float32([[[1]], [[1]], [[2]]])
    ctx = context()
    module = import_onnx(saved(model(text, **arrays), tmp_path), ctx)
    for one in (OnnxFoldAffinePass(), OnnxFoldBatchNormPass()):
        one.apply(ctx, module)
    assert op_types(module).count("BatchNormalization") == 1


@pytest.mark.parametrize(
    ("nodes", "arrays"),
    [
        ("c = Conv (x, w) y = BatchNormalization <epsilon = 0.0> (c, s, t, m, v)", {"v": np.float32([1, 0, 2])}),
        ("c = BatchNormalization <epsilon = 0.0> (x, s, v, v, v) y = Conv (c, w)", {"v": np.float32([0, 0, 0])}),
    ],
    ids=["behind a layer", "before one"],
)
def test_frontend_pass_fold_batch_norm_leaves_what_has_no_factor(
    nodes: str, arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """A variance of 0, and no epsilon; in onnxruntime, too, it is infinite."""
    text = f"g (float[1, 3, 7, 5] x) => (float[1, 3, 7, 5] y) {{ {nodes} }}"
    arrays = {"w": normal(3, 3, 1, 1), **statistics(3), "s": np.ones(3, np.float32), **arrays}
    ctx = context()
    module = import_onnx(saved(model(text, **arrays), tmp_path), ctx)
    before = op_types(module)
    OnnxFoldBatchNormPass().apply(ctx, module)
    assert op_types(module) == before


@pytest.mark.parametrize(
    ("factors", "inside"),
    [((1e-15, 1e22, 1e22), "1e44"), ((1e30, 1e-25, 1e-25), "1e-50"), ((1e-30, 10.0, 1e37), "1e38 * w")],
)
def test_frontend_pass_folds_leave_what_f32_has_not(factors: Sequence[float], inside: str, tmp_path: Path) -> None:
    """Each value is one of f32, the product of two constants is none: 0 or infinite."""
    text = """g (float[2, 3, 7, 5] x) => (float[2, 3, 7, 5] y) {
      a = Mul (x, k0)  r = Relu (a)  c = Conv (r, w)  y = Mul (c, k2) }"""
    if "w" not in inside:
        text = text.replace("Conv (r, w)", "Mul (r, k1)")
    arrays = {f"k{i}": np.float32(factor) for i, factor in enumerate(factors)}
    arrays["w"] = np.full((3, 3, 1, 1), 40, np.float32)
    module = rewritten(model(text, **arrays), tmp_path, OnnxFoldAffinePass(), OnnxFoldBatchNormPass(), tolerance=1e-5)
    assert op_types(module)[-1] == "BatchNormalization"


WRITTEN = {
    "s = Sigmoid (x) y = Mul (s, x)": "QuickGelu",
    "d = Div (x, root) e = Erf (d) a = Add (e, one) m = Mul (x, a) y = Mul (m, half)": "Gelu",
    "d = Mul (x, by) e = Erf (d) a = Add (one, e) h = Mul (half, a) y = Mul (h, x)": "Gelu",
    "h = Mul (x, half) d = Div (x, root) e = Erf (d) a = Add (e, one) y = Mul (h, a)": "Gelu",
    "s = Softplus (x) t = Tanh (s) y = Mul (x, t)": "Mish",
    "a = Add (x, three) c = Clip (a, zero, six) m = Mul (x, c) y = Div (m, six)": "HardSwish",
    "a = Add (three, x) c = Clip (a, zero, six) m = Mul (c, x) y = Mul (m, sixth)": "HardSwish",
    "a = Add (x, three) c = Clip (a, zero, six) d = Div (c, six) y = Mul (x, d)": "HardSwish",
    "a = Add (x, three) c = Clip (a, zero, six) d = Mul (sixth, c) y = Mul (d, x)": "HardSwish",
    "m = Mul (x, sixth) a = Add (m, half) c = Clip (a, zero, one) y = Mul (x, c)": "HardSwish",
}
NUMBERS = {"one": 1, "half": 0.5, "root": 2**0.5, "by": 2**-0.5, "zero": 0, "three": 3, "six": 6, "sixth": 1 / 6}


def of_numbers(body: str, opset: int = 18) -> onnx.ModelProto:
    text, names = f"g (float[2, 3, 7, 5] x) => (float[2, 3, 7, 5] y) {{ {body} }}", re.findall(r"\w+", body)
    return model(text, opset, **{name: np.float32(number) for name, number in NUMBERS.items() if name in names})


@pytest.mark.parametrize("body", WRITTEN)
def test_frontend_pass_fold_functions(body: str, tmp_path: Path) -> None:
    module = rewritten(of_numbers(body), tmp_path, OnnxFoldFunctionsPass(), tolerance=1e-6)
    assert op_types(module) == [WRITTEN[body]]


@pytest.mark.parametrize("body", WRITTEN)
def test_frontend_pass_fold_functions_leaves_other_numbers(body: str, tmp_path: Path) -> None:
    proto = of_numbers(body)
    for constant in proto.graph.initializer:
        meant = constant.SerializeToString()
        number = onnx.numpy_helper.from_array(np.float32(NUMBERS[constant.name] + 0.01), constant.name)
        constant.CopyFrom(number)
        assert len(op_types(rewritten(proto, tmp_path, OnnxFoldFunctionsPass()))) > 1, constant.name
        constant.ParseFromString(meant)


@pytest.mark.parametrize(("written", "opset"), [("Mish", 17), ("HardSwish", 13)])
def test_frontend_pass_fold_functions_leaves_what_the_opset_has_not(written: str, opset: int, tmp_path: Path) -> None:
    for body, name in WRITTEN.items():
        if name == written:
            assert len(op_types(rewritten(of_numbers(body, opset), tmp_path, OnnxFoldFunctionsPass()))) > 1


@pytest.mark.parametrize("dims", [(2, 3), (2, 3, 4), (1, 3, 4, 5)])
@pytest.mark.parametrize("slopes", [[0.25, 0.0, 1.0], [-7.0, 0.5, -0.125], [-3.0]])
def test_frontend_pass_split_prelu(dims: Sequence[int], slopes: list[float], tmp_path: Path) -> None:
    text = f"g (float{[*dims]} x) => (float{[*dims]} y) {{ y = PRelu (x, s) }}"
    array = np.array(slopes, np.float32).reshape(-1, *[1] * (len(dims) - 2))
    module = rewritten(model(text, s=array), tmp_path, OnnxSplitPreluPass(), tolerance=1e-6)
    assert op_types(module) == ["Mul", "Relu", "Mul", "Add"]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_frontend_pass_split_sum(count: int, tmp_path: Path) -> None:
    names = "abcde"[:count]
    inputs = ", ".join(f"float[2, 3] {name}" for name in names)
    text = f"g ({inputs}) => (float[2, 3] y) {{ s = Sum ({', '.join(names)}) y = Relu (s) }}"
    module = rewritten(model(text), tmp_path, OnnxSplitSumPass())
    assert op_types(module) == ["Sum"] * (count - 1) + ["Relu"]


def test_frontend_pass_split_sum_leaves_broadcast_sums(tmp_path: Path) -> None:
    text = "g (float[2, 3] a, float[3] b, float[2, 1] c) => (float[2, 3] y) { y = Sum (a, b, c) }"
    assert op_types(rewritten(model(text), tmp_path, OnnxSplitSumPass())) == ["Sum"]


def test_frontend_pass_remove_identity_takes_idle_casts(tmp_path: Path) -> None:
    text = """g (float[2, 3] x) => (float[2, 3] y) {
      a = Cast <to = 1> (x) b = Relu (a) c = Cast <to = 11> (b) y = Cast <to = 1> (c) }"""
    module = rewritten(model(text), tmp_path, OnnxRemoveIdentityPass())
    assert op_types(module) == ["Relu", "Cast", "Cast"]


def test_frontend_pass_fold_constants(tmp_path: Path) -> None:
    text = """g (float[2, 3, 5] x) => (float[P, Q] y, float[7, 5] z) {
      n = Shape <start = 0, end = 1> (x)
      f = ConstantOfShape <value = float[1] {0.5}> (shape)
      i = Identity (w)
      u = Transpose (i)
      a, b = Split <axis = 1> (u, parts)
      z = Add (f, b)
      r = Concat <axis = 0> (n, minus)
      y = Reshape (x, r)
    }"""
    arrays = {"shape": np.int64([7, 5]), "w": normal(7, 7), "parts": np.int64([2, 5]), "minus": np.int64([-1])}
    module = rewritten(model(text, **arrays), tmp_path, OnnxFoldConstantsPass(), OnnxDeadCodePass())
    assert op_types(module) == ["Reshape"]
    assert [tuple(t.get_shape()) for t in main_function(module).function_type.outputs] == [(2, 15), (7, 5)]


def test_frontend_pass_fold_constants_leaves(tmp_path: Path) -> None:
    text = """g (float[3] x) => (float[3] y, float[300] big) {
      e = RandomUniform <shape = [3]> ()
      z = Mul (e, zero)
      t = StringNormalizer (s)
      i = If (c) <
        then_branch = a () => (float[3] p) { p = Neg(w) },
        else_branch = b () => (float[3] q) { q = Neg(w) } >
      o = Sum (x, z, i)
      y = Relu (o)
      big = Expand (w1, n)
      q = SequenceConstruct (w)
    }"""
    arrays = {
        "zero": np.float32(0), "c": np.array(True), "w": normal(3), "w1": normal(1), "n": np.int64([300]),
    }  # fmt: skip
    proto = model(text, **arrays)
    proto.graph.initializer.append(onnx.helper.make_tensor("s", onnx.TensorProto.STRING, [1], [b"A"]))
    proto.graph.output.pop()
    proto.graph.output.append(onnx.helper.make_tensor_value_info("big", 1, [300]))
    ctx = context()
    module = import_onnx(saved(proto, tmp_path), ctx)
    OnnxFoldConstantsPass(max_bytes=1000).apply(ctx, module)
    kept = ["Constant", "RandomUniform", "Mul", "StringNormalizer", "If", "Sum", "Relu", "Expand", "SequenceConstruct"]
    assert op_types(module) == kept
    OnnxFoldConstantsPass(max_bytes=1200).apply(ctx, module)
    assert op_types(module) == [name for name in kept if name != "Expand"]


def test_frontend_pass_remove_identity(tmp_path: Path) -> None:
    text = """g (float[3, 5] x) => (float[3, 5] y, float[3, 5] z, bool[3, 5] mask, float[3, 5] u) {
      i = Identity (x)
      r = Relu (i)
      y = Dropout (r)
      z, mask = Dropout (i)
      u = Identity (x)
    }"""
    ctx = context()
    module = import_onnx(saved(model(text), tmp_path), ctx)
    inputs = random_inputs(module)
    before = evaluate(module, ctx.weights, inputs)
    OnnxRemoveIdentityPass().apply(ctx, module)
    module.verify()
    assert op_types(module) == ["Relu", "Dropout"]
    after = evaluate(module, ctx.weights, inputs)
    assert list(after) == ["y", "z", "mask", "u"]
    for name, want in before.items():
        np.testing.assert_array_equal(after[name], want, strict=True)


PAD = """g (float[1, 2, 7, 5] x) => (float[1, 3, P, Q] y) {{
  p = Pad {attributes} (x{operands})
  y = Conv <strides = [2, 1], pads = [1, 0, 2, 1], dilations = [1, 2]> (p, w)
}}"""


@pytest.mark.parametrize(
    "opset, attributes, operands",
    [
        (7, "<pads = [0, 0, 3, 1, 0, 0, 0, 2], value = 0.0>", ""),
        (11, "", ", all"),
        (13, '<mode = "constant">', ", all, zero"),
        (18, "", ", some, zero, axes"),
        (18, "", ", some, , axes"),
    ],
)
def test_frontend_pass_fold_pad_into_conv(opset: int, attributes: str, operands: str, tmp_path: Path) -> None:
    known = {
        "all": np.int64([0, 0, 3, 1, 0, 0, 0, 2]),
        "some": np.int64([1, 3, 2, 0]),
        "axes": np.int64([-1, 2]),
        "zero": np.float32(0),
    }
    arrays = {name: array for name, array in known.items() if f" {name}" in operands}
    proto = model(PAD.format(attributes=attributes, operands=operands), opset, w=normal(3, 2, 3, 2), **arrays)
    module = rewritten(proto, tmp_path, OnnxFoldPadPass(), tolerance=1e-6)
    assert op_types(module) == ["Conv"]
    (conv,) = [op for op in module.walk() if isinstance(op, NodeOp)]
    assert conv.ints_attr("pads", ()) == (4, 1, 2, 3)


@pytest.mark.parametrize(
    ("row", "product", "kept"),
    [
        ("Flatten (t)", "MatMul (r, w)", []),
        ("Reshape (t, rows)", "MatMul (r, w)", []),
        ("Reshape (t, images)", "Gemm (r, w, b)", []),
        ("Flatten (t)", "Gemm <transB = 1, alpha = 0.5> (r, v)", []),
        # a side is copied, images become rows, the row is the right operand, another reader
        ("Reshape (t, copied)", "MatMul (r, u)", ["Transpose"]),
        ("Flatten <axis = 2> (t)", "MatMul (r, u)", ["Transpose"]),
        ("Flatten (t)", "MatMul (z, r)", ["Transpose"]),
        ("Flatten (t)", "Add (r, r)", ["Transpose"]),
    ],
)
def test_frontend_pass_fold_transpose(row: str, product: str, kept: list[str], tmp_path: Path) -> None:
    nodes = f"t = Transpose <perm = [0, 2, 3, 1]> (x) r = {row} y = {product}"
    known = {
        "rows": np.int64([-1, 60]), "images": np.int64([0, -1]), "copied": np.int64([-1, 0]),
        "w": normal(60, 7), "v": normal(7, 60), "b": normal(7), "z": normal(3, 2),
        "u": normal(5 if "copied" in row else 12, 7),
    }  # fmt: skip
    arrays = {name: array for name, array in known.items() if name in re.findall(r"\w+", nodes)}
    text = f"g (float[2, 3, 5, 4] x) => (float[P, Q] y) {{ {nodes} }}"
    module = rewritten(model(text, 13, **arrays), tmp_path, OnnxFoldTransposePass(), tolerance=1e-5)
    assert op_types(module) == [*kept, row.split()[0], product.split()[0]]


STEPS = "c = QuantizeLinear (t, s, z) d = DequantizeLinear (c, s, z)"


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ("r = Flatten (t) q = QuantizeLinear (r, s, z)", "Flatten QuantizeLinear"),
        (f"{STEPS} r = Reshape (d, rows) q = QuantizeLinear (r, s, z)", "Reshape QuantizeLinear"),
        ("c = QuantizeLinear (x, s, z) u = Transpose <perm = [0, 2, 3, 1]> (c) q = Flatten (u)",
         "QuantizeLinear Flatten"),
        # other codes in between, read as others, a scale for each word, another reader
        (f"{STEPS} r = Flatten (d) q = QuantizeLinear (r, p, z)",
         "Transpose QuantizeLinear DequantizeLinear Flatten QuantizeLinear"),
        ("c = QuantizeLinear (t, s, z) d = DequantizeLinear (c, p, z) r = Flatten (d) q = QuantizeLinear (r, s, z)",
         "Transpose QuantizeLinear DequantizeLinear Flatten QuantizeLinear"),
        ("r = Flatten (t) q = QuantizeLinear <axis = 1> (r, ps, zs)", "Transpose Flatten QuantizeLinear"),
        (f"{STEPS} r = Flatten (d) q = QuantizeLinear (r, s, z) o = Identity (c)",
         "Transpose QuantizeLinear DequantizeLinear Flatten QuantizeLinear Identity"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("product", "weights"),
    [("QLinearMatMul", "w, vs, vz, ys, z"), ("com.microsoft.QGemm <transB = 1>", "v, vs, vz, , ys, z")],
)
def test_frontend_pass_fold_transpose_of_codes(
    product: str, weights: str, rows: str, kept: str, tmp_path: Path
) -> None:
    turned = "" if "u =" in rows else "t = Transpose <perm = [0, 2, 3, 1]> (x)"
    nodes = f"{turned} {rows} y = {product} (q, p, z, {weights})"
    bytes_ = RNG.integers(-128, 128, (60, 7)).astype(np.int8)
    known = {
        "rows": np.int64([-1, 60]), "w": bytes_, "v": bytes_.T.copy(),
        "z": np.uint8(120), "zs": np.full(60, 120, np.uint8),
        "s": np.float32(0.02), "p": np.float32(0.03), "ps": RNG.uniform(0.01, 0.03, 60).astype(np.float32),
        "vs": RNG.uniform(0.01, 0.03, 7).astype(np.float32), "vz": np.arange(7, dtype=np.int8), "ys": np.float32(0.3),
    }  # fmt: skip
    arrays = {name: array for name, array in known.items() if name in re.findall(r"\w+", nodes)}
    outputs = "uint8[2, 7] y" + (", uint8[P, Q, R, S] o" if "o =" in rows else "")
    text = f"g (float[2, 3, 5, 4] x) => ({outputs}) {{ {nodes} }}"
    proto = model(text, 13, ("com.microsoft",), **arrays)
    module = rewritten(proto, tmp_path, OnnxFoldTransposePass())
    assert op_types(module) == [*kept.split(), re.findall(r"\w+", product.removeprefix("com.microsoft."))[0]]


@pytest.mark.parametrize(
    "pool, folded",
    [
        ("AveragePool <kernel_shape = [4, 3], strides = [1, 2]>", True),
        ("AveragePool <kernel_shape = [5, 4], pads = [1, 0, 0, 1], count_include_pad = 1>", True),
        ("AveragePool <kernel_shape = [5, 4], pads = [1, 0, 0, 1]>", False),
        ("AveragePool <kernel_shape = [4, 3], strides = [2, 2], ceil_mode = 1>", False),
        ("AveragePool <kernel_shape = [3, 3]>", False),
        ("MaxPool <kernel_shape = [4, 3]>", False),
    ],
)
def test_frontend_pass_fold_pad_into_pool(pool: str, folded: bool, tmp_path: Path) -> None:
    text = f"g (float[1, 2, 7, 5] x) => (float[1, 2, P, Q] y) {{ p = Pad (x, pads) y = {pool} (p) }}"
    proto = model(text, pads=np.int64([0, 0, 3, 1, 0, 0, 0, 2]))
    module = rewritten(proto, tmp_path, OnnxFoldPadPass(), tolerance=1e-6)
    assert ("Pad" not in op_types(module)) == folded


@pytest.mark.parametrize(
    "before, pool, folded",
    [
        ("Relu (x)", "<kernel_shape = [4, 3], strides = [2, 2]>", True),
        ("Relu (x)", "<kernel_shape = [5, 4], pads = [1, 0, 0, 1]>", True),
        ("Clip (x, least)", "<kernel_shape = [4, 3]>", True),
        ("Clip (x, below)", "<kernel_shape = [4, 3]>", False),
        ("Clip (x, )", "<kernel_shape = [4, 3]>", False),
        ("Relu (x)", "<kernel_shape = [3, 3]>", False),
        ("Relu (x)", "<kernel_shape = [4, 3], dilations = [2, 1]>", False),
        ("Relu (x)", "<kernel_shape = [4, 3], strides = [2, 2], ceil_mode = 1>", False),
        ("Neg (x)", "<kernel_shape = [4, 3]>", False),
    ],
)
def test_frontend_pass_fold_pad_into_maximum(before: str, pool: str, folded: bool, tmp_path: Path) -> None:
    text = f"""g (float[1, 2, 7, 5] x) => (float[1, 2, P, Q] y) {{
      r = {before} p = Pad (r, pads) y = MaxPool {pool} (p)
    }}"""
    known = {"least": np.float32(0), "below": np.float32(-1)}
    arrays = {name: bound for name, bound in known.items() if name in before}
    proto = model(text, pads=np.int64([0, 0, 3, 1, 0, 0, 0, 2]), **arrays)
    module = rewritten(proto, tmp_path, OnnxFoldPadPass())
    assert ("Pad" not in op_types(module)) == folded


@pytest.mark.parametrize(
    "before, after, folded",
    [
        ("s, z", "s, z", True),
        ("s, z", "s, other", False),
        ("s, other", "s, other", False),
        ("t, z", "s, z", False),
        ("s", "s", False),
    ],
)
def test_frontend_pass_fold_pad_of_codes(before: str, after: str, folded: bool, tmp_path: Path) -> None:
    """onnxruntime's quantiser puts a pair of conversions around each Pad."""
    text = f"""g (float[1, 2, 7, 5] x) => (uint8[1, 3, P, Q] y) {{
      c = QuantizeLinear (x, {before}) f = DequantizeLinear (c, {before})
      p = Pad (f, pads) q = QuantizeLinear (p, {after})
      y = QLinearConv <pads = [1, 0, 0, 1]> (q, s, z, w, u, v, r, z)
    }}"""
    known = {
        "s": np.float32(0.02), "t": np.float32(0.01), "z": np.uint8(9), "other": np.uint8(8),
        "w": RNG.integers(-128, 128, (3, 2, 3, 2)).astype(np.int8), "u": np.float32(0.02), "v": np.int8(0),
        "r": np.float32(0.2), "pads": np.int64([0, 0, 3, 1, 0, 0, 0, 2]),
    }  # fmt: skip
    arrays = {name: array for name, array in known.items() if name in re.findall(r"\w+", text)}
    proto = model(text, 13, **arrays)
    module = rewritten(proto, tmp_path, OnnxFoldPadPass(), OnnxDeadCodePass())
    assert op_types(module)[-1] == "QLinearConv"
    assert ("Pad" not in op_types(module)) == folded


@pytest.mark.parametrize(
    "nodes, kind, folded",
    [
        ("c = QuantizeLinear (x, s, least) f = DequantizeLinear (c, s, least) p = Pad (f, pads) "
         "q = QuantizeLinear (p, s, least) d = DequantizeLinear (q, s, least) y = MaxPool {} (d)", "float", True),
        # codes of numbers below zero, another scale at one of the conversions, codes with a sign
        ("c = QuantizeLinear (x, s, z) f = DequantizeLinear (c, s, z) p = Pad (f, pads) "
         "q = QuantizeLinear (p, s, z) d = DequantizeLinear (q, s, z) y = MaxPool {} (d)", "float", False),
        ("c = QuantizeLinear (x, s, least) f = DequantizeLinear (c, s, least) p = Pad (f, pads) "
         "q = QuantizeLinear (p, s, least) d = DequantizeLinear (q, t, least) y = MaxPool {} (d)", "float", False),
        ("c = QuantizeLinear (x, s, least) f = DequantizeLinear (c, s, least) p = Pad (f, pads) "
         "q = QuantizeLinear (p, t, least) d = DequantizeLinear (q, s, least) y = MaxPool {} (d)", "float", False),
        ("c = QuantizeLinear (x, s, least) p = Pad (c, pads) y = MaxPool {} (p)", "int8", False),
        ("c = QuantizeLinear (x, s, u) p = Pad (c, pads) y = MaxPool {} (p)", "uint8", True),
    ],
)  # fmt: skip
def test_frontend_pass_fold_pad_into_maximum_of_codes(nodes: str, kind: str, folded: bool, tmp_path: Path) -> None:
    pool = "<kernel_shape = [4, 3], strides = [2, 2]>"
    text = f"g (float[1, 2, 7, 5] x) => ({kind}[1, 2, P, Q] y) {{ {nodes.format(pool)} }}"
    known = {
        "s": np.float32(0.02), "t": np.float32(0.01), "least": np.int8(-128), "z": np.int8(3), "u": np.uint8(0),
        "pads": np.int64([0, 0, 3, 1, 0, 0, 0, 2]),
    }  # fmt: skip
    arrays = {name: array for name, array in known.items() if name in re.findall(r"\w+", nodes)}
    module = rewritten(model(text, 13, **arrays), tmp_path, OnnxFoldPadPass(), OnnxDeadCodePass())
    assert op_types(module)[-1] == "MaxPool"
    assert ("Pad" not in op_types(module)) == folded


def test_frontend_pass_fold_pad_leaves_positions_of_maxima(tmp_path: Path) -> None:
    text = """g (float[1, 2, 7, 5] x) => (float[1, 2, P, Q] y, int64[1, 2, R, S] o) {
      r = Relu (x) p = Pad (r, pads) y, o = MaxPool <kernel_shape = [4, 3]> (p)
    }"""
    module = rewritten(model(text, pads=np.int64([0, 0, 3, 1, 0, 0, 0, 2])), tmp_path, OnnxFoldPadPass())
    assert op_types(module) == ["Relu", "Pad", "MaxPool"]


@pytest.mark.parametrize("mode, value", [("constant", 1.0), ("reflect", 0.0), ("edge", 0.0)])
def test_frontend_pass_fold_pad_leaves_other_padding(mode: str, value: float, tmp_path: Path) -> None:
    text = PAD.format(attributes=f'<mode = "{mode}">', operands=", all, value")
    arrays = {"all": np.int64([0, 0, 3, 1, 0, 0, 0, 2]), "value": np.float32(value)}
    module = rewritten(model(text, w=normal(3, 2, 3, 2), **arrays), tmp_path, OnnxFoldPadPass())
    assert op_types(module) == ["Pad", "Conv"]


def test_frontend_pass_dead_code(tmp_path: Path) -> None:
    text = """g (float[3] x) => (float[3] y) {
      a = Add (x, w) b = Neg (a) y = Relu (x) c = RandomNormal <shape = [3]> ()
    }"""
    module = rewritten(model(text, w=normal(3)), tmp_path, OnnxDeadCodePass())
    assert op_types(module) == ["Relu"]
    assert not any(isinstance(op, ConstantOp) for op in module.walk())


def test_frontend_passes_on_a_real_topology(tmp_path: Path) -> None:
    """DenseNet as caffe2 wrote it: 600 foldable nodes, BN with separate scales; seeded weights instead of 0.02."""
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_densenet121.onnx"
    ctx = context()
    module = import_onnx(path, ctx)
    OnnxFoldConstantsPass().apply(ctx, module)
    OnnxDeadCodePass().apply(ctx, module)
    module.verify()
    assert not {"ConstantOfShape", "Unsqueeze"} & set(op_types(module))
    randomise(module, ctx)
    convolutions = [op for op in module.walk() if isinstance(op, NodeOp) and op.is_op("Conv")]
    inputs = random_inputs(module)
    values = [op.results[0] for op in convolutions[::30]]
    before = Evaluator(module, ctx.weights, values).run(inputs)
    assert all(np.ptp(value) > 0 for value in before)
    (last,) = evaluate(module, ctx.weights, inputs).values()
    assert np.ptp(last) > 0
    normalisations = op_types(module).count("BatchNormalization")
    for one in (OnnxFoldBatchNormPass(), OnnxFoldPadPass(), OnnxRemoveIdentityPass(), OnnxDeadCodePass()):
        one.apply(ctx, module)
    module.verify()
    # The others follow a Concat or a pool.
    assert normalisations - op_types(module).count("BatchNormalization") == 59
    (after,) = evaluate(module, ctx.weights, inputs).values()
    np.testing.assert_allclose(after, last, rtol=0, atol=1e-4 * np.abs(last).max())


def randomise(module, ctx) -> None:
    """He-normal weights for the convolutions."""
    from cnncc.dialects.weights import RefAttr

    rng = np.random.default_rng(8)
    for op in module.walk():
        if isinstance(op, ConstantOp) and len(shape := op.result.type.get_shape()) == 4:
            scale = np.sqrt(2 / np.prod(shape[1:]))
            array = (rng.standard_normal(shape) * scale).astype(np.float32)
            op.properties["value"] = RefAttr.to(array, ctx.weights)


def test_frontend_export_of_a_part(tmp_path: Path) -> None:
    """A host segment: some nodes, with the values that cross its border as inputs and outputs."""
    from cnncc.frontend.export_onnx import export_nodes
    from cnncc.frontend.run_onnx import OnnxSession

    text = "g (float[3] x) => (float[3] y) { a = Relu (x) b = Add (a, w) c = Neg (b) y = Mul (c, a) }"
    ctx = context()
    module = import_onnx(saved(model(text, w=normal(3)), tmp_path), ctx)
    relu, add, neg, _ = [op for op in module.walk() if isinstance(op, NodeOp)]
    part = export_nodes([add, neg], relu.results, [neg.results[0], add.results[0]], module, ctx.weights)
    onnx.checker.check_model(part)
    assert [value.name for value in part.graph.input] == ["a"]
    assert [value.name for value in part.graph.output] == ["c", "b"]
    a = np.float32([1, 2, 3])
    c, b = OnnxSession(part).run({"a": a})
    np.testing.assert_array_equal(c, -b)
    whole = Evaluator(module, ctx.weights, [add.results[0], neg.results[0]]).run({"x": a})
    np.testing.assert_array_equal(whole, [b, c])
    assert export_onnx(module, ctx.weights).graph.output[0].name == "y"


def test_frontend_onnxruntime_is_silent(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What tf2onnx writes for a Resize, of which onnxruntime warned at each command."""
    mode = 'coordinate_transformation_mode = "tf_half_pixel_for_nn", mode = "nearest"'
    text = f"g (float[1, 3, 2, 2] x) => (float[1, 3, 4, 4] y) {{ y = Resize <{mode}> (x, , s) }}"
    module = import_onnx(saved(model(text, s=np.float32([1, 1, 2, 2])), tmp_path), ctx := context())
    assert evaluate(module, ctx.weights, {"x": normal(1, 3, 2, 2)})["y"].shape == (1, 3, 4, 4)
    assert capfd.readouterr() == ("", "")
