"""Shortcuts without weights: strided Slices and Pads of channels run on the array, with the values of onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_cases import done, noise
from frontend_models import model, on_array, op_types, rewritten, saved

from cnncc.dialects.onnx import NodeOp
from cnncc.passes.onnx_pad_to_conv import OnnxPadToConvPass

pytestmark = pytest.mark.usefixtures("short_searches")

# Bodies from x, f32[2, 3, 5, 8]: the operators after the pass, and the strides of the Conv.
TWICE = "s = Slice (x, zero, end, rows, two) t = Slice (s, zero, end, cols, three)"
BODIES = {
    "channels alone": ("p = Pad (x, both) y = Add (p, p)", ["Conv", "Add"], (1, 1)),
    "every second row": (
        "s = Slice (x, zero, end, rows, two) p = Pad (s, after) y = Relu (p)", ["Conv", "Relu"], (2, 1),
    ),
    "rows, then columns": (f"{TWICE} p = Pad (t, both) y = Relu (p)", ["Conv", "Relu"], (2, 3)),
    "a pool of single pixels": (
        "m = MaxPool <kernel_shape = [1, 1], strides = [3, 2]> (x) p = Pad (m, both) y = Relu (p)",
        ["Conv", "Relu"], (3, 2),
    ),
    "a pool between": (
        "s = Slice (x, zero, end, rows, two) m = MaxPool <kernel_shape = [2, 2]> (s) p = Pad (m, both) y = Relu (p)",
        ["Slice", "MaxPool", "Conv", "Relu"], (1, 1),
    ),
    "rows that others read": (
        "s = Slice (x, zero, end, rows, two) p = Pad (s, both) q = Relu (s) y = Concat <axis = 1> (p, q)",
        ["Slice", "Conv", "Relu", "Concat"], (1, 1),
    ),
    "from the second row on": (
        "s = Slice (x, one, end, rows, two) p = Pad (s, both) y = Relu (p)", ["Slice", "Conv", "Relu"], (1, 1),
    ),
    "rows, too": ("p = Pad (x, row) y = Relu (p)", ["Pad", "Relu"], None),
    "channels less": ("p = Pad (x, less) y = Relu (p)", ["Pad", "Relu"], None),
    "ones": ("p = Pad (x, both, unit) y = Relu (p)", ["Pad", "Relu"], None),
    "computed": ("a = Abs (both) p = Pad (x, a) y = Relu (p)", ["Abs", "Pad", "Relu"], None),
    "for the host": ("p = Pad (x, both) y = Sinh (p)", ["Pad", "Sinh"], None),
    "a result of the network": ("y = Pad (x, both)", ["Pad"], None),
}  # fmt: skip
ARRAYS = {
    "both": np.array([0, 1, 0, 0, 0, 2, 0, 0]), "after": np.array([0, 0, 0, 0, 0, 4, 0, 0]),
    "row": np.array([0, 1, 1, 0, 0, 0, 0, 0]), "less": np.array([0, 1, 0, 0, 0, -1, 0, 0]), "unit": np.float32(1),
    "zero": np.array([0]), "one": np.array([1]), "end": np.array([2**63 - 1]), "rows": np.array([2]),
    "cols": np.array([-1]), "two": np.array([2]), "three": np.array([3]),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_convolution_adds_channels(name: str, tmp_path: Path) -> None:
    body, operators, strides = BODIES[name]
    graph = f"g (float[2, 3, 5, 8] x) => (float[N, C, H, W] y) {{ {body} }}"
    module = rewritten(model(graph, **ARRAYS), tmp_path, OnnxPadToConvPass())
    assert op_types(module) == operators
    convs = [op for op in module.walk() if isinstance(op, NodeOp) and op.is_op("Conv")]
    assert [conv.ints_attr("strides", ()) for conv in convs] == ([] if strides is None else [strides])


NET = f"""g (float[1, 2, 9, 8] x) => (float[1, 6, 5, 3] y) {{
  x1 = Conv <kernel_shape = [1, 1]> (x, w0) {TWICE.replace("(x,", "(x1,")} p = Pad (t, both)
  a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 3]> (x1, w1) b = Add (a, p) y = Relu (b)
}}"""
WEIGHTS = {"w0": noise(1, 3, 2, 1, 1), "w1": noise(2, 6, 3, 3, 3)}


def test_a_shortcut_of_zeros_runs_on_the_array(tmp_path: Path) -> None:
    path = saved(model(NET, **ARRAYS, **WEIGHTS), tmp_path)
    segments, decibels = on_array(path, {"x": noise(3, 3, 2, 9, 8)})
    assert not segments and decibels > 60
    done("verify", path, "--prove")


# Strided slices of f32[1, 4, 6, 9] between layers: bounds, result, and the reason where the host computes them.
SLICES = {
    "every second row": ("zero, end, rows, two", (1, 4, 3, 9), None),
    "every third column": ("zero, end, cols, three", (1, 4, 6, 3), None),
    "from the second row on": (
        "one, end, rows, two",
        (1, 4, 3, 9),
        "steps = [1, 1, 2, 1]: the array reads channels that",
    ),
    "not to the end": ("zero, short, rows, two", (1, 4, 2, 9), "steps = [1, 1, 2, 1]"),
    "every second channel": ("zero, end, chans, two", (1, 2, 6, 9), "steps = [1, 2, 1, 1]"),
    "from the last row on": ("last, start, rows, back", (1, 4, 6, 9), "steps = [1, 1, -1, 1]"),
}


@pytest.mark.parametrize("name", SLICES)
def test_strided_slices(name: str, tmp_path: Path) -> None:
    bounds, dims, reason = SLICES[name]
    sizes = ", ".join(map(str, dims))
    graph = (
        f"g (float[1, 4, 6, 9] x) => (float[{sizes}] y) {{ a = Conv <kernel_shape = [1, 1]> (x, w) "
        f"s = Slice (a, {bounds}) y = Relu (s) }}"
    )
    more = {"short": np.array([4]), "chans": np.array([1]), "last": np.array([-1]), "start": np.array([-(2**62)])}
    path = saved(model(graph, w=noise(1, 4, 4, 1, 1), back=np.array([-1]), **more, **ARRAYS), tmp_path)
    segments, decibels = on_array(path, {"x": noise(2, 2, 4, 6, 9)})
    assert decibels > 60 and bool(segments) == (reason is not None)
    assert (reason or "") in done("check", path).stdout.replace("\n" + " " * 51, " ")
    done("verify", path)
