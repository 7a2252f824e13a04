"""Emits the `cnn` ops of means, concatenations, channel shuffles and leaky rectifiers. No pass: for `onnx-to-cnn`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import SSAValue

from cnncc.dialects.cnn import ConcatOp, PoolOp, ShuffleOp, Window, WindowAttr, shape
from cnncc.dialects.onnx import NodeOp
from cnncc.errors import Finding, Refusal
from cnncc.numerics import integer_range
from cnncc.passes._calibration import Scale
from cnncc.passes._onnx_layers import LeakyLayer, PoolLayer, ShuffleLayer

if TYPE_CHECKING:
    from cnncc.passes._quantise import Lowering


def lower_concat(lowering: Lowering, node: NodeOp, label: str) -> SSAValue:
    """The operands, those of another scale requantised, along the channels of images."""
    y = lowering.scale(node.results[0], label)
    sources = [_scaled(lowering, value, y, label) for value in node.operands]
    n, _, h, w = shape(sources[0].type)
    dims = (n, sum(shape(source.type)[1] for source in sources), h, w)
    return lowering.emit(ConcatOp, sources, lowering.operand, dims, label, {})


def _scaled(lowering: Lowering, value: SSAValue, y: Scale, label: str) -> SSAValue:
    dims = shape(value.type)
    image = lowering.shaped(value, dims + (1,) * (4 - len(dims)), lowering.names.free(f"{label}.in"))
    x = lowering.scales[value]
    if x == y:
        return image
    label = lowering.names.free(f"{label}.copy")
    return lowering.requant(
        _one_pixel_sums(lowering, image, x, label),
        np.full(shape(image.type)[1], np.float32(x.scale) / np.float32(y.scale)),
        y,
        label,
    )


def lower_leaky(lowering: Lowering, node: NodeOp, layer: LeakyLayer, label: str) -> SSAValue:
    """What the layer before has computed already, or a sum of one pixel each with a slope."""
    x, y = node.operands[0], node.results[0]
    if lowering.placement.leaky_after(x) is not None:
        return lowering.values[x]
    sums = _one_pixel_sums(lowering, lowering.image(x, f"{label}.in"), lowering.scales[x], label)
    ones = np.ones(shape(sums.type)[1], np.float32)
    return lowering.requant(sums, ones, lowering.scales[y], label, label, layer.slope)


def lower_mean(lowering: Lowering, node: NodeOp, layer: PoolLayer, label: str) -> SSAValue:
    """A mean as a sum, its scale divided by the count, which may differ from position to position.

    Raises Refusal where the sum may exceed a psum.
    """
    x, y = node.operands[0], node.results[0]
    count, x_scale = int(np.prod(layer.window.kernel)), lowering.scales[x]
    if (most := count * x_scale.reach) > (limit := integer_range(lowering.psum_bits)[1]):
        what, help_ = f"{count} values of ±{x_scale.reach} may exceed a psum", "a smaller window, or more psum_bits"
        raise Refusal(
            f"'{label}': {what} of {lowering.psum_bits} bits: {help_}",
            Finding(what, where=label, resource="psum_bits", value=most, limit=limit, help=help_),
        )
    sums = lowering.pool("sum", x, layer.window, lowering.psum, label)
    counts = np.outer(layer.rows, layer.cols).astype(np.float32)
    multipliers = np.float32(x_scale.scale) / (np.float32(lowering.scales[y].scale) * counts)
    _, k, h, w = shape(sums.type)
    if multipliers.size == 1:
        return lowering.finish(sums, np.full(k, multipliers[0, 0]), y, label)
    return lowering.finish(sums, np.zeros((h, w), np.float32) + multipliers, y, label)


def _one_pixel_sums(lowering: Lowering, image: SSAValue, x: Scale, label: str) -> SSAValue:
    """The integers of `image` less their zero point, as sums that can be requantised."""
    window = WindowAttr(Window((1, 1), fill=x.zero, zero=x.zero))
    properties = {"kind": StringAttr("sum"), "window": window}
    return lowering.emit(PoolOp, [image], lowering.psum, shape(image.type), f"{label}.sum", properties)


def lower_shuffle(lowering: Lowering, node: NodeOp, layer: ShuffleLayer, label: str) -> SSAValue:
    """A Transpose of n g c/g h w as a shuffle of the channels of n c h w."""
    n, groups, each, h, w = shape(node.operands[0].type)
    dims = (n, groups * each, h, w)
    source = lowering.shaped(node.operands[0], dims, f"{label}.in")
    return lowering.emit(ShuffleOp, [source], lowering.operand, dims, label, {"groups": IntegerAttr(layer.groups, i64)})
