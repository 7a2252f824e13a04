"""Emits the `cnn` ops of sums of two, means, concatenations, shuffles and activations. No pass: for `onnx-to-cnn`."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import SSAValue

from cnncc.dialects.cnn import AddOp, ConcatOp, ShuffleOp, Steps, StepsAttr, Window, shape
from cnncc.dialects.onnx import NodeOp
from cnncc.errors import Finding, Refusal
from cnncc.numerics import Floats, integer_range
from cnncc.passes._calibration import Scale
from cnncc.passes._onnx_layers import PoolLayer, ShuffleLayer

if TYPE_CHECKING:
    from cnncc.passes._quantise import Lowering


def lower_add(lowering: Lowering, node: NodeOp, label: str) -> SSAValue:
    """The sum of two activations, each rescaled to the result's scale."""
    # Only `x` of a cnn.add can be fused with it: the operand that is computed last, and for it alone.
    x, residual = sorted(node.operands, key=lambda value: _readiness(lowering, value), reverse=True)
    sources, y = lowering.images([x, residual], shape(node.results[0].type), label), lowering.scales[node.results[0]]
    ratios = [np.float32(lowering.scales[value].scale) / np.float32(y.scale) for value in (x, residual)]
    moved = sum(ratio * lowering.scales[value].zero for ratio, value in zip(ratios, (x, residual), strict=True))
    factors = np.append(checked(np.array(ratios, np.float32), label), np.float32(y.zero - moved))
    steps = Steps(factors=lowering.symbol(f"{label}.q", factors), add_clamp=y.clamp)
    return lowering.emit(AddOp, sources, lowering.operand, shape(sources[0].type), label, {"steps": StepsAttr(steps)})


def _readiness(lowering: Lowering, value: SSAValue) -> int:
    """The position of the node that computes `value`; -1 where it cannot be fused with its reader."""
    node = value.owner
    if value.has_one_use() and isinstance(node, NodeOp) and node in lowering.placement.layers:
        return lowering.order[node]
    return -1


def lower_concat(lowering: Lowering, node: NodeOp, label: str) -> SSAValue:
    """The operands, those of another scale requantised, along the channels of images."""
    y = lowering.scale(node.results[0], label)
    sources = [_scaled(lowering, value, y, label) for value in node.operands]
    n, _, h, w = shape(sources[0].type)
    dims = (n, sum(shape(source.type)[1] for source in sources), h, w)
    return lowering.emit(ConcatOp, sources, lowering.operand, dims, label, {})


def _scaled(lowering: Lowering, value: SSAValue, y: Scale, label: str) -> SSAValue:
    image = lowering.nchw(value, lowering.names.free(f"{label}.in"))
    x = lowering.scales[value]
    if x == y:
        return image
    label = lowering.names.free(f"{label}.copy")
    return lowering.requant(_less_zero(lowering, image, x, label), _ratios(image, x, y), y, label)


def lower_activation(
    lowering: Lowering, node: NodeOp, label: str, bounds: tuple[float, float] = (-inf, inf), slope: float = 1.0
) -> SSAValue:
    """A Relu, Clip or LeakyRelu whose result has a scale of its own: its operand's integers, requantised."""
    x, y = lowering.scales[node.operands[0]], lowering.scale(node.results[0], label)
    image = lowering.image(node.operands[0], f"{label}.in")
    words = _less_zero(lowering, image, x, label)
    return lowering.requant(words, _ratios(image, x, y), y, label, label, slope, y.within(*bounds))


def _less_zero(lowering: Lowering, image: SSAValue, x: Scale, label: str) -> SSAValue:
    """The integers of `image` less their zero point: what can be requantised."""
    if x.zero == 0:
        return image
    return lowering.pooled("sum", image, Window((1, 1), fill=x.zero, zero=x.zero), lowering.psum, f"{label}.sum")


def _ratios(image: SSAValue, x: Scale, y: Scale) -> Floats:
    """By how much the integers of `image` change from one scale to another, f32[k]."""
    return np.full(shape(image.type)[1], np.float32(x.scale) / np.float32(y.scale))


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
    return lowering.finish(sums, np.full((h, w), multipliers, np.float32), y, label)


def lower_shuffle(lowering: Lowering, node: NodeOp, layer: ShuffleLayer, label: str) -> SSAValue:
    """A Transpose of n g c/g h w as a shuffle of the channels of n c h w."""
    n, groups, each, h, w = shape(node.operands[0].type)
    dims = (n, groups * each, h, w)
    source = lowering.shaped(node.operands[0], dims, f"{label}.in")
    return lowering.emit(ShuffleOp, [source], lowering.operand, dims, label, {"groups": IntegerAttr(layer.groups, i64)})


def checked(multipliers: Floats, label: str) -> Floats:
    """`multipliers`, if they are normal numbers. Raises Refusal where not."""
    if not np.isfinite(multipliers).all() or (multipliers < np.finfo(np.float32).tiny).any():
        raise Refusal(f"'{label}': the ranges of its input, weights and result lie too far apart for f32 scales")
    return multipliers
