"""Resize, Upsample and DepthToSpace: concatenations of pixels in turn, and their values are onnxruntime's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import noise
from frontend_models import context, model, op_types, rewritten, saved
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from cnncc.context import CompilerContext
from cnncc.driver.pipeline import mark_host_operators
from cnncc.eval.onnx import evaluate
from cnncc.frontend.export_onnx import export_onnx
from cnncc.frontend.import_onnx import import_onnx
from cnncc.frontend.node_macs import module_macs
from cnncc.passes.onnx_pixels_in_turn import OnnxPixelsInTurnPass

IN_TURN = ["Concat", "DepthToSpace"]
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def text(body: str, size: str = "1, 2, 5, 4", element: str = "float") -> str:
    return f"g ({element}[{size}] x) => ({element}[N, K, P, Q] y) {{ {body} }}"


def imported(proto: onnx.ModelProto, folder: Path) -> tuple[ModuleOp, CompilerContext]:
    return import_onnx(saved(proto, folder), ctx := context()), ctx


def operators(body: str, folder: Path, opset: int = 19, size: str = "2, 4, 5, 7", **arrays: object) -> list[str]:
    """The operators after the pass, whose values are onnxruntime's."""
    proto = model(text(body, size), opset, **arrays)
    return op_types(rewritten(proto, folder, OnnxPixelsInTurnPass(), tolerance=1e-5))


def scales(*factors: float) -> dict[str, Any]:
    return {"s": np.float32([1, 1, *factors])}


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_resize_is_rewritten_where_it_repeats_pixels(
    coordinates: str, rounding: str, step: int, tmp_path: Path
) -> None:
    modes = f'coordinate_transformation_mode = "{coordinates}", nearest_mode = "{rounding}"'
    proto = model(text(f"y = Resize <{modes}> (x, r, s)"), 19, r=np.float32([0] * 4 + [1] * 4), **scales(step, step))
    (module, ctx), x = imported(proto, tmp_path), noise(1, 1, 2, 5, 4)
    before = evaluate(module, ctx.weights, {"x": x})["y"]
    OnnxPixelsInTurnPass().apply(ctx, module)
    np.testing.assert_array_equal(evaluate(module, ctx.weights, {"x": x})["y"], before)
    repeats = np.array_equal(before, x.repeat(step, 2).repeat(step, 3)) and coordinates != "tf_crop_and_resize"
    assert op_types(module) == (IN_TURN if repeats else ["Resize"])


@pytest.mark.parametrize("opset", [11, 12, 13, 18, 19])
def test_sizes_and_scales(opset: int, tmp_path: Path) -> None:
    none = {"e": np.float32([])}
    assert operators("y = Resize (x, e, s)", tmp_path, opset, **none, **scales(2, 2)) == IN_TURN
    assert operators("y = Resize (x, e, e, z)", tmp_path, opset, **none, z=np.int64([2, 4, 15, 21])) == IN_TURN
    assert operators("y = Resize (x, e, e, z)", tmp_path, opset, **none, z=np.int64([2, 4, 15, 14])) == ["Resize"]


def test_axes(tmp_path: Path) -> None:
    axes = "axes = [3, 2]"
    assert operators(f"y = Resize <{axes}> (x, , s)", tmp_path, s=np.float32([2, 2])) == IN_TURN
    assert operators(f"y = Resize <{axes}> (x, , , s)", tmp_path, s=np.int64([14, 10])) == IN_TURN
    assert operators("y = Resize <axes = [3]> (x, , s)", tmp_path, s=np.float32([2])) == ["Resize"]
    policy = f'{axes}, keep_aspect_ratio_policy = "not_larger"'
    assert operators(f"y = Resize <{policy}> (x, , , s)", tmp_path, s=np.int64([14, 10])) == ["Resize"]


def test_before_the_modes_of_resize(tmp_path: Path) -> None:
    assert operators("y = Resize (x, s)", tmp_path, 10, **scales(3, 3)) == IN_TURN
    assert operators("y = Upsample (x, s)", tmp_path, 9, **scales(2, 2)) == IN_TURN
    assert operators("y = Upsample <scales = [1.0, 1.0, 2.0, 2.0]> (x)", tmp_path, 7) == IN_TURN
    assert operators("y = Upsample <scales = [1.0, 1.0, 2.0, 3.0]> (x)", tmp_path, 7) == ["Upsample"]
    assert operators('y = Upsample <mode = "linear"> (x, s)', tmp_path, 9, **scales(2, 2)) == ["Upsample"]


def test_a_factor_of_one_goes(tmp_path: Path) -> None:
    assert operators("a = Resize (x, , s) y = Neg (a)", tmp_path, **scales(1, 1)) == ["Neg"]
    align = 'a = Resize <coordinate_transformation_mode = "align_corners"> (x, , s) y = Neg (a)'
    assert operators(align, tmp_path, size="2, 3, 1, 1", **scales(1, 1)) == ["Neg"]


def test_resizes_that_stay(tmp_path: Path) -> None:
    for factors in ((2, 3), (1, 2), (2.1, 2.1), (0.5, 0.5), (9, 9)):
        assert operators("y = Resize (x, , s)", tmp_path, **scales(*factors)) == ["Resize"]
    assert operators('y = Resize <mode = "linear"> (x, , s)', tmp_path, **scales(2, 2)) == ["Resize"]
    assert operators("y = Resize (x, , s)", tmp_path, s=np.float32([1, 2, 2, 2])) == ["Resize"]
    assert operators("t = Abs (s) y = Resize (x, , t)", tmp_path, **scales(2, 2)) == ["Abs", "Resize"]
    lines = "g (float[2, 4, 5] x) => (float[N, K, P] y) { y = Resize (x, , s) }"
    assert op_types(rewritten(model(lines, s=np.float32([1, 1, 2])), tmp_path, OnnxPixelsInTurnPass())) == ["Resize"]


def test_an_operator_of_the_host_stays(tmp_path: Path) -> None:
    body = "a = Conv (x, w) b = DepthToSpace <blocksize = 2> (a) y = Resize (b, , s)"
    module, ctx = imported(model(text(body), w=noise(1, 4, 2, 1, 1), **scales(2, 2)), tmp_path)
    mark_host_operators(module, ["Resize", "DepthToSpace"])
    OnnxPixelsInTurnPass().apply(ctx, module)
    assert op_types(module) == ["Conv", "DepthToSpace", "Resize"]


@pytest.mark.parametrize(("element", "opset", "expected"), [
    ("int8", 10, ["Resize"]), ("int8", 11, IN_TURN), ("uint8", 19, IN_TURN), ("int32", 19, ["Resize"]),
])  # fmt: skip
def test_codes(element: str, opset: int, expected: list[str], tmp_path: Path) -> None:
    operands = "x, s" if opset == 10 else "x, e, s"
    body, empty = text(f"y = Resize ({operands})", "1, 2, 3, 4", element), np.float32([])
    module, ctx = imported(model(body, opset, e=empty, **scales(2, 2)), tmp_path)
    x = np.arange(24, dtype=element).reshape(1, 2, 3, 4)
    OnnxPixelsInTurnPass().apply(ctx, module)
    assert op_types(module) == expected
    np.testing.assert_array_equal(evaluate(module, ctx.weights, {"x": x})["y"], x.repeat(2, 2).repeat(2, 3))


def test_between_conversions_of_codes(tmp_path: Path) -> None:
    body = """a = QuantizeLinear (x, q, z) b = DequantizeLinear (a, q, z) c = Resize (b, , s)
      d = QuantizeLinear (c, q, z) y = DequantizeLinear (d, q, z)"""
    names = operators(body, tmp_path, q=np.float32(0.02), z=np.int8(3), **scales(2, 2))
    assert names == ["QuantizeLinear", "DequantizeLinear", *IN_TURN, "QuantizeLinear", "DequantizeLinear"]


# What PyTorch makes of a PixelShuffle, and TensorFlow of depth_to_space.
SHUFFLES = {
    "CRD": 'y = DepthToSpace <blocksize = 2, mode = "CRD"> (a)',
    "DCR": "y = DepthToSpace <blocksize = 2> (a)",
    "CRD by a Transpose": "b = Reshape (a, v) c = Transpose <perm = [0, 1, 4, 2, 5, 3]> (b) y = Reshape (c, u)",
    "DCR by a Transpose": "b = Reshape (a, d) c = Transpose <perm = [0, 3, 4, 1, 5, 2]> (b) y = Reshape (c, u)",
}
SHAPES = {
    "v": np.int64([2, 3, 2, 2, 5, 7]), "d": np.int64([2, 2, 2, 3, 5, 7]), "u": np.int64([2, 3, 10, 14]),
}  # fmt: skip


@pytest.mark.parametrize("name", SHUFFLES)
def test_a_convolution_for_each_pixel(name: str, tmp_path: Path) -> None:
    arrays = {"w": noise(1, 12, 4, 3, 3), "k": noise(2, 12), **SHAPES}
    for conv in (
        "Conv <pads = [1, 1, 1, 1]> (x, w, k)",
        'Conv <auto_pad = "SAME_UPPER", kernel_shape = [3, 3]> (x, w)',
    ):
        names = operators(f"a = {conv} {SHUFFLES[name]}", tmp_path, **arrays)
        assert names == ["Conv"] * 4 + IN_TURN


def test_macs_stay(tmp_path: Path) -> None:
    body = 'a = Conv <strides = [2, 1]> (x, w) y = DepthToSpace <blocksize = 2, mode = "CRD"> (a)'
    proto = model(text(body), w=noise(1, 12, 2, 3, 3))
    macs = module_macs(rewritten(proto, tmp_path))
    assert module_macs(rewritten(proto, tmp_path, OnnxPixelsInTurnPass(), tolerance=1e-5)) == macs > 0


@pytest.mark.parametrize("opset", [10, 13])
def test_activations_before_and_behind(opset: int, tmp_path: Path) -> None:
    body = """a = Conv (x, w) b = LeakyRelu <alpha = 0.25> (a) c = DepthToSpace <blocksize = 2> (b)
      d = PRelu (c, p) e = Relu (d) y = Tanh (e)"""
    one = ["Conv", "LeakyRelu", "PRelu", "Relu"]
    arrays = {"w": noise(1, 12, 4, 1, 1), "p": np.float32([[[0.5]]])}
    assert operators(body, tmp_path, opset, **arrays) == [*one * 4, *IN_TURN, "Tanh"]
    by_channel = body.replace("(c, p)", "(c, q)")
    names = operators(by_channel, tmp_path, opset, q=noise(4, 3, 1, 1), **arrays)
    assert names == [*one[:2] * 4, *IN_TURN, "PRelu", "Relu", "Tanh"]


def test_one_after_the_other(tmp_path: Path) -> None:
    body = """a = Conv (x, w) b = DepthToSpace <blocksize = 2, mode = "CRD"> (a) c = Relu (b)
      d = Conv (c, v) e = DepthToSpace <blocksize = 2, mode = "CRD"> (d) y = Resize (e, , s)"""
    names = operators(body, tmp_path, w=noise(1, 8, 4, 1, 1), v=noise(2, 8, 2, 3, 3), **scales(2, 2))
    assert names == [*["Conv", "Relu"] * 4, *IN_TURN, *["Conv"] * 4, *IN_TURN, *IN_TURN]


STAY = {
    "no convolution": "y = DepthToSpace <blocksize = 2> (x)",
    "computed weights": "a = Abs (w) b = Conv (x, a) y = DepthToSpace <blocksize = 2> (b)",
    "computed biases": "a = Abs (k) b = Conv (x, w, a) y = DepthToSpace <blocksize = 2> (b)",
    "two readers": """a = Conv (x, w) b = DepthToSpace <blocksize = 2> (a) c = DepthToSpace <blocksize = 2> (a)
      y = Add (b, c)""",
    "no pixels": "a = Conv (x, w) y = DepthToSpace <blocksize = 1> (a)",
    "a group for two pixels": "a = Conv <group = 2> (x, g2) y = DepthToSpace <blocksize = 2> (a)",
    "fewer channels than groups": 'a = Conv <group = 4> (x, g4) y = DepthToSpace <blocksize = 2, mode = "CRD"> (a)',
    "another order": """a = Conv (x, w) b = Reshape (a, v) c = Transpose <perm = [0, 2, 4, 1, 5, 3]> (b)
      y = Reshape (c, u)""",
    "another shape": """a = Conv (x, w) b = Reshape (a, v) c = Transpose <perm = [0, 1, 4, 2, 5, 3]> (b)
      y = Reshape (c, t)""",
    "three dims": "a = Conv (x, w) b = Reshape (a, l) c = Transpose <perm = [0, 2, 1]> (b) y = Reshape (c, t)",
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name: str, tmp_path: Path) -> None:
    arrays = {"w": noise(1, 12, 4, 1, 1), "k": noise(2, 12), "g2": noise(3, 12, 2, 1, 1), "g4": noise(4, 12, 1, 1, 1)}
    shapes = {"t": np.int64([2, 12, 5, 7]), "l": np.int64([2, 12, 35])}
    assert operators(STAY[name], tmp_path, **arrays, **shapes, **SHAPES) == re.findall(r"= ([A-Z]\w+)", STAY[name])


def test_channels_that_are_no_squares_stay(tmp_path: Path) -> None:
    """onnxruntime refuses such a model by itself."""
    body = "a = Conv (x, w) y = DepthToSpace <blocksize = 3> (a)"
    module, ctx = imported(model(text(body), w=noise(1, 12, 2, 1, 1)), tmp_path)
    OnnxPixelsInTurnPass().apply(ctx, module)
    assert op_types(module) == ["Conv", "DepthToSpace"]


def test_equal_shares_of_groups(tmp_path: Path) -> None:
    body = 'a = Conv <group = 2> (x, w, b) y = DepthToSpace <blocksize = 2, mode = "CRD"> (a)'
    names = operators(body, tmp_path, w=noise(1, 16, 2, 3, 3), b=noise(2, 16))
    assert names == ["Conv"] * 4 + IN_TURN


SIDES = st.tuples(st.integers(3, 6), st.integers(3, 6))


@given(
    step=st.integers(2, 3), k=st.integers(1, 3), sides=SIDES, stride=st.integers(1, 2), pad=st.integers(0, 1),
    mode=st.sampled_from(["DCR", "CRD"]), group=st.sampled_from([1, 2]),
)  # fmt: skip
def test_drawn_convolutions(
    step: int, k: int, sides: tuple[int, int], stride: int, pad: int, mode: str, group: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    channels = step**2 * k * group
    conv = f"Conv <group = {group}, strides = [{stride}, 1], pads = {[pad] * 4}> (x, w)"
    body = f'a = {conv} b = Relu (a) y = DepthToSpace <blocksize = {step}, mode = "{mode}"> (b)'
    size = ", ".join(map(str, (1, 4, *sides)))
    names = operators(body, tmp_path_factory.mktemp("drawn"), size=size, w=noise(1, channels, 4 // group, 3, 3))
    splits = group == 1 or mode == "CRD"
    assert names == ([*["Conv", "Relu"] * step**2, *IN_TURN] if splits else ["Conv", "Relu", "DepthToSpace"])


@given(
    step=st.integers(1, 8), sides=st.tuples(st.integers(1, 40), st.integers(1, 40)), opset=st.sampled_from([9, 10, 19])
)
def test_drawn_images(step: int, sides: tuple[int, int], opset: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    node = {9: "Upsample (x, s)", 10: "Resize (x, s)", 19: "Resize (x, , s)"}[opset]
    size = ", ".join(map(str, (1, 2, *sides)))
    names = operators(f"a = {node} y = Neg (a)", tmp_path_factory.mktemp("drawn"), opset, size, **scales(step, step))
    assert names == [*(IN_TURN if step > 1 else []), "Neg"]


def test_it_leaves_valid_onnx(tmp_path: Path) -> None:
    body = 'a = Conv (x, w) b = DepthToSpace <blocksize = 2, mode = "CRD"> (a) y = Resize (b, , s)'
    module, ctx = imported(model(text(body), w=noise(1, 4, 2, 1, 1), **scales(2, 2)), tmp_path)
    OnnxPixelsInTurnPass().apply(ctx, module)
    onnx.checker.check_model(export_onnx(module, ctx.weights), full_check=True)
