"""Transposed convolutions: convolutions compute them, and their values are onnxruntime's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from cli_cases import noise
from frontend_models import context, model, on_array, op_types, rewritten, saved
from hypothesis import assume, given
from hypothesis import strategies as st

from cnncc.dialects.onnx import NodeOp
from cnncc.frontend.import_onnx import import_onnx
from cnncc.frontend.node_macs import module_macs
from cnncc.passes import onnx_conv_transpose
from cnncc.passes._onnx.layers import StaysOnHost, read_layer
from cnncc.passes.onnx_conv_transpose import OnnxConvTransposePass

pytestmark = pytest.mark.usefixtures("short_searches")

# Attributes of a ConvTranspose of x, f32[2, 4, 5, 7], and how many convolutions compute it.
IN_TURN = {
    "as a U-Net": ((2, 2), "strides = [2, 2]", 4),
    "as a DCGAN": ((4, 4), "strides = [2, 2], pads = [1, 1, 1, 1]", 4),
    "as a style transfer": ((3, 3), "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]", 4),
    "as FSRCNN": ((9, 9), "strides = [3, 3], pads = [4, 4, 4, 4], output_padding = [2, 2]", 9),
    "SAME_UPPER": ((3, 5), 'strides = [2, 2], auto_pad = "SAME_UPPER"', 4),
    "SAME_LOWER": ((3, 5), 'strides = [2, 2], auto_pad = "SAME_LOWER"', 4),
    "VALID": ((3, 3), 'strides = [3, 3], auto_pad = "VALID"', 9),
    "as many as there may be": ((8, 8), "strides = [8, 8]", 64),
}
MOVED = {
    "no stride": ((3, 2), "pads = [1, 0, 1, 0]", 1),
    "dilated": ((3, 2), "dilations = [2, 3]", 1),
    "strides that differ": ((5, 4), "strides = [2, 3], pads = [3, 1, 2, 4]", 4),
    "odd rows and columns": ((3, 3), "strides = [2, 2], pads = [1, 1, 1, 1]", 4),
    "odd columns": ((3, 3), "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 0]", 4),
    "more padding than a phase has taps": ((5, 5), "strides = [2, 2], pads = [4, 4, 4, 4]", 4),
    "more padding before than a pixel has taps": ((2, 2), "strides = [2, 2], pads = [2, 2, 0, 0]", 1),
    "more padding behind than a pixel has taps": ((2, 2), "strides = [2, 2], pads = [0, 0, 0, 2]", 1),
    "output_shape": ((4, 4), "strides = [2, 2], output_shape = [11, 14]", 1),
    "too many": ((9, 9), "strides = [9, 9]", 1),
}


def convolutions(body: str, folder: Path, opset: int = 17, **arrays: object) -> list[str]:
    """The operators after the pass, whose values are onnxruntime's."""
    text = f"g (float[2, 4, 5, 7] x) => (float[N, K, P, Q] y) {{ {body} }}"
    proto = model(text, opset=opset, **arrays)
    return op_types(rewritten(proto, folder, OnnxConvTransposePass(), tolerance=1e-5))


@pytest.mark.parametrize("name", [*IN_TURN, *MOVED])
def test_convolutions_compute_it(name: str, tmp_path: Path) -> None:
    kernel, attributes, count = (IN_TURN | MOVED)[name]
    body = f"y = ConvTranspose <{attributes}> (x, w, b)"
    operators = convolutions(body, tmp_path, w=noise(1, 4, 3, *kernel), b=noise(2, 3))
    assert operators.count("Conv") == count and "ConvTranspose" not in operators
    assert (operators[count:] == ["Concat", "DepthToSpace"]) == (name in IN_TURN)
    assert convolutions(body.replace(">", ", group = 2>"), tmp_path, w=noise(1, 4, 3, *kernel), b=noise(2, 6))


@pytest.mark.parametrize("name", IN_TURN)
def test_pixels_in_turn_take_no_more_macs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, attributes, _ = IN_TURN[name]
    text = f"g (float[2, 4, 5, 7] x) => (float[N, K, P, Q] y) {{ y = ConvTranspose <{attributes}> (x, w) }}"
    proto = model(text, w=noise(1, 4, 3, *kernel))
    in_turn = module_macs(rewritten(proto, tmp_path, OnnxConvTransposePass(), tolerance=1e-5))
    monkeypatch.setattr(onnx_conv_transpose, "MOST_BLOCK", 1)
    assert 0 < in_turn <= module_macs(rewritten(proto, tmp_path, OnnxConvTransposePass(), tolerance=1e-5))


def test_what_stays(tmp_path: Path) -> None:
    weights = noise(1, 4, 3, 2, 2)
    dilated = "y = ConvTranspose <strides = [2, 2], dilations = [2, 1]> (x, w)"
    assert convolutions(dilated, tmp_path, w=weights) == ["ConvTranspose"]
    small = "y = ConvTranspose <strides = [1, 3], output_padding = [0, 1]> (x, w)"
    assert convolutions(small, tmp_path, w=weights) == ["ConvTranspose"]
    assert convolutions("v = Neg (w) y = ConvTranspose (x, v)", tmp_path, w=weights) == ["Neg", "ConvTranspose"]


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize(
    ("pads", "count", "last"),
    [
        ([1, 0, 0, 0], 4, ["Concat", "DepthToSpace"]),
        ([1, 0, 0, 1], 2, ["Concat", "Gather", "Reshape", "Transpose", "Reshape", "Slice"]),
    ],
)
def test_activations_come_before_the_pixels_change_places(
    pads: list[int], count: int, last: list[str], opset: int, tmp_path: Path
) -> None:
    clip = "d = Clip <min = -1.0, max = 3.0> (c)" if opset < 11 else "d = Clip (c, lo, hi)"
    body = f"""a = ConvTranspose <strides = [2, 2], pads = {pads}> (x, w)
      c = LeakyRelu <alpha = 0.25> (a) {clip} e = PRelu (d, s) y = Tanh (e)"""
    arrays = {"w": noise(1, 4, 3, 3, 2), "s": np.float32([[[0.5]]]), "lo": np.float32(-1), "hi": np.float32(3)}
    operators = convolutions(body, tmp_path, opset, **arrays)
    assert operators == [*["Conv", "LeakyRelu", "Clip", "PRelu"] * count, *last, "Tanh"]


def test_activations_with_other_readers_stay_behind(tmp_path: Path) -> None:
    body = "a = ConvTranspose <strides = [2, 2]> (x, w) b = Relu (a) y = Add (a, b)"
    operators = convolutions(body, tmp_path, w=noise(1, 4, 3, 2, 2))
    assert operators == [*["Conv"] * 4, "Concat", "DepthToSpace", "Relu", "Add"]


AXES = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(0, 4), st.integers(0, 4), st.integers(0, 2))


@given(rows=AXES, cols=AXES, group=st.sampled_from([1, 2, 4]))
def test_drawn_sizes(
    rows: tuple[int, ...], cols: tuple[int, ...], group: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Taps beyond stride - 1, stride, pads before and behind, output_padding."""
    beyond, strides, before, behind, more = zip(rows, cols, strict=True)
    taps = [stride - 1 + each for stride, each in zip(strides, beyond, strict=True)]
    sizes = [(n - 1) * s + t - a - b for n, s, t, a, b in zip((5, 7), strides, taps, before, behind, strict=True)]
    assume(min(sizes) > 0)
    more = [min(each, stride - 1) for each, stride in zip(more, strides, strict=True)]
    attributes = {"strides": strides, "pads": (*before, *behind), "output_padding": more}
    text = ", ".join(f"{name} = {list(sizes)}" for name, sizes in attributes.items())
    body = f"y = ConvTranspose <group = {group}, {text}> (x, w)"
    operators = convolutions(body, tmp_path_factory.mktemp("drawn"), w=noise(1, 4, 2, *taps))
    assert "ConvTranspose" not in operators


@dataclass(frozen=True)
class Axis:
    """Rows or columns of a drawn ConvTranspose, whose stride divides the output's."""

    size: int
    stride: int
    taps: int
    before: int
    out: int

    @property
    def behind(self) -> int:
        return (self.size - 1) * self.stride + self.taps - self.before - self.out

    def read_by(self, pixel: int) -> list[int]:
        """The pixels of the input that a pixel of the output is computed from."""
        places = [pixel + self.before - tap for tap in range(self.taps)]
        return [place // self.stride for place in places if place % self.stride == 0]

    @property
    def fits(self) -> bool:
        """Whether the first output pixels reach the first input pixel, and the last ones the last."""
        first, last = range(self.stride), range(self.out - self.stride, self.out)
        return all(min(self.read_by(pixel)) <= 0 for pixel in first) and all(
            max(self.read_by(pixel)) >= self.size - 1 for pixel in last
        )


@given(data=st.data(), stride=st.integers(2, 3))
def test_drawn_pixels_in_turn(data: st.DataObject, stride: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    axes: list[Axis] = []
    for size in (5, 7):
        taps, before = data.draw(st.integers(stride, stride + 4)), data.draw(st.integers(0, 3))
        axes.append(Axis(size, stride, taps, before, stride * data.draw(st.integers(size - 2, size + 1))))
    behind = [axis.behind for axis in axes]
    assume(min(behind) >= 0)
    pads = [*(axis.before for axis in axes), *behind]
    body = f"y = ConvTranspose <strides = {[stride] * 2}, pads = {pads}> (x, w)"
    weights = noise(1, 4, 2, *(axis.taps for axis in axes))
    operators = convolutions(body, tmp_path_factory.mktemp("drawn"), w=weights)
    assert ("DepthToSpace" in operators) == all(axis.fits for axis in axes)


def test_the_reason_why_one_is_on_the_host(tmp_path: Path) -> None:
    text = "g (float[2, 4, 5, 7] x) => (float[N, K, P, Q] y) { y = ConvTranspose <strides = [2, 3]> (x, w) }"
    path, ctx = saved(model(text, w=noise(1, 4, 3, 2, 2)), tmp_path), context()
    module = import_onnx(path, ctx)
    OnnxConvTransposePass().apply(ctx, module)
    (node,) = [op for op in module.walk() if isinstance(op, NodeOp)]
    with pytest.raises(StaysOnHost, match="its kernel is smaller than its stride"):
        read_layer(node, ctx.weights)


NET = """g (float[1, 2, 12, 16] x) => (float[1, 3, 12, 16] y) {
  a = Conv <pads = [1, 1, 1, 1]> (x, w1) r1 = Relu (a) p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
  b = Conv <pads = [1, 1, 1, 1]> (p, w2) r2 = Relu (b)
  t = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]> (r2, w3)
  n = BatchNormalization (t, s, s, s, s) r3 = Relu (n)
  c = Concat <axis = 1> (r1, r3) d = Conv (c, w4) y = ConvTranspose <pads = [1, 1, 1, 1]> (d, w5)
}"""
WEIGHTS = {
    "w1": noise(1, 4, 2, 3, 3), "w2": noise(2, 6, 4, 3, 3), "w3": noise(3, 6, 5, 3, 3), "s": np.abs(noise(4, 5)),
    "w4": noise(5, 4, 9, 1, 1), "w5": noise(6, 4, 3, 3, 3),
}  # fmt: skip


def test_a_network_that_scales_up_is_on_the_array(tmp_path: Path) -> None:
    path, data = saved(model(NET, **WEIGHTS), tmp_path), {"x": noise(9, 20, 2, 12, 16)}
    segments, decibels = on_array(path, data)
    assert not any(b"Conv" in segment or b"Normalization" in segment for segment in segments)
    assert decibels > 60
