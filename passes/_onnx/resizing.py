"""Reads a Resize or Upsample that repeats pixels. No pass: `onnx-pixels-in-turn` uses it.

Sources: ONNX Resize-10 to Resize-19, Upsample-7 and Upsample-9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, FloatAttr

from cnncc.dialects.onnx import NodeOp, constant_operand
from cnncc.numerics import Floats
from cnncc.passes.onnx_fold_constants import static_shape
from cnncc.weights import Array, WeightStore

MODES_OPSET = 11  # from this opset on, Resize has its modes as attributes, and its scales as input 2


def repeats(node: NodeOp, opset: int, store: WeightStore) -> int | None:
    """How often a Resize or Upsample repeats each row and column of images; None where it does something else."""
    x, y = static_shape(node.operands[0]), static_shape(node.results[0])
    if x is None or y is None or len(x) != len("nchw") or min(x) < 1:
        return None
    step = y[2] // x[2]
    factors = (1, 1, step, step)
    if step < 1 or y != tuple(size * factor for size, factor in zip(x, factors, strict=True)):
        return None
    modes = node.str_attr("mode", "nearest"), node.str_attr("keep_aspect_ratio_policy", "stretch")
    scales = _scales(node, opset, store)
    # Without scales, sizes are given, which are those of the result.
    given = [factors[axis] for axis in node.ints_attr("axes", range(len(x)))] if scales else []
    if modes != ("nearest", "stretch") or scales != given:
        return None
    return step if all(_Side(size, step).is_repeated(node, opset) for size in x[2:]) else None


def _scales(node: NodeOp, opset: int, store: WeightStore) -> Sequence[float] | None:
    """The scales: none where sizes are given, None where they are computed. Before opset 9 they are an attribute."""
    listed = node.attributes.get("scales")
    if isinstance(listed, ArrayAttr):
        return [scale.value.data for scale in listed if isinstance(scale, FloatAttr)]
    value = node.operand(1 if opset < MODES_OPSET else 2)
    array = constant_operand(value, store)
    if array is None:
        return None if value is not None else []
    return [float(scale) for scale in array.flat]


@dataclass(frozen=True)
class _Side:
    """Rows or columns: `size` of them become step * size."""

    size: int
    step: int

    def is_repeated(self, node: NodeOp, opset: int) -> bool:
        """Whether pixel o of the output is pixel floor(o / step) of the input, for each o."""
        coordinates, rounding = "asymmetric", "floor"
        if opset >= MODES_OPSET:
            coordinates = node.str_attr("coordinate_transformation_mode", "half_pixel")
            rounding = node.str_attr("nearest_mode", "round_prefer_floor")
        places = self.places(coordinates)
        pixels = _rounded(rounding, places.astype(np.float64)) if places is not None else None
        wanted = np.arange(self.size * self.step) // self.step
        return pixels is not None and bool((np.clip(pixels, 0, self.size - 1) == wanted).all())

    def places(self, coordinates: str) -> Floats | None:
        """Where in the input the output's pixels lie, in f32 as onnxruntime has it; None for any other mode.

        tf_crop_and_resize is another mode: it takes a part of the image.
        """
        out = np.arange(self.size * self.step, dtype=np.float32)
        half, step = np.float32(0.5), np.float32(self.step)
        match coordinates:
            # The last two differ from the first for outputs of one pixel, and for steps that are not whole.
            case "half_pixel" | "pytorch_half_pixel" | "half_pixel_symmetric":
                return (out + half) / step - half
            case "tf_half_pixel_for_nn":
                return (out + half) / step
            case "asymmetric":
                return out / step
            case "align_corners":
                return out * np.float32(self.size - 1) / np.float32(max(len(out) - 1, 1))
            case _:
                return None


def _rounded(rounding: str, places: Array) -> Array | None:
    """The pixels next to f64 `places`; None for an unknown mode."""
    match rounding:
        case "floor":
            return np.floor(places)
        case "ceil":
            return np.ceil(places)
        case "round_prefer_floor":
            return np.ceil(places - 0.5)
        case "round_prefer_ceil":
            return np.floor(places + 0.5)
        case _:
            return None
