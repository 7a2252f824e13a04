"""Emits the `cnn` ops of layers that are floats in the model. No pass: for `onnx-to-cnn`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import SSAValue

from cnncc.dialects.cnn import ClampOp, ConcatOp, LookupOp, MulOp, ShuffleOp, SliceOp, Steps, StepsAttr, shape
from cnncc.dialects.onnx import NodeOp
from cnncc.errors import Finding, Refusal, refusals_of
from cnncc.numerics import Floats, integer_range
from cnncc.passes._onnx.builder import CnnBuilder, checked, image_dims
from cnncc.passes._onnx.calibration import Scale
from cnncc.passes._onnx.codes import product_factor
from cnncc.passes._onnx.functions import FunctionLayer, function_table
from cnncc.passes._onnx.layers import ClampLayer, ConvLayer, PixelsLayer, PoolLayer, ShuffleLayer, SliceLayer
from cnncc.quant.split import narrowed_channels, psum_need, quantise_layer
from cnncc.window import Window


def lower_conv(builder: CnnBuilder, node: NodeOp, layer: ConvLayer, label: str) -> SSAValue:
    """A convolution or matrix product. Raises Refusal if its scales leave the range of f32."""
    x, y = node.operands[0], node.results[0]
    source, x_scale = builder.nchw(x, f"{label}.in"), builder.scales[x]
    bits = builder.operand_bits, builder.psum_bits
    with refusals_of(f"'{label}'"):
        ints = quantise_layer(layer.weights, layer.bias, x_scale.scale, x_scale.reach, *bits)
    builder.weight_scales[node] = ints.scale
    builder.narrowed[node] = narrowed_channels(layer.weights, ints, builder.operand_bits)
    assert psum_need(ints, x_scale.reach).max() <= integer_range(builder.psum_bits)[1]
    window = replace(layer.window, fill=x_scale.zero, zero=x_scale.zero)
    sums = builder.products(source, ints.weights, window, label)
    if ints.bias.any():
        sums = builder.bias(sums, ints.bias, label)
    with np.errstate(over="ignore"):  # see `checked`
        multipliers = np.float32(x_scale.scale) * ints.scale / np.float32(builder.scales[y].scale)
    return builder.finish(sums, multipliers, y, label)


def lower_add(builder: CnnBuilder, node: NodeOp, label: str) -> SSAValue:
    """The sum of two activations, each rescaled to the result's scale."""
    # A cnn.add can be fused only with the op of its `x`. So x is the operand computed last, with no other reader.
    x, residual = sorted(
        node.operands, key=lambda value: (_is_whole(value, node), _readiness(builder, value)), reverse=True
    )
    y = builder.scales[node.results[0]]
    with np.errstate(over="ignore", invalid="ignore"):  # see `checked`
        ratios = [np.float32(builder.scales[value].scale) / np.float32(y.scale) for value in (x, residual)]
        moved = sum(ratio * builder.scales[value].zero for ratio, value in zip(ratios, (x, residual), strict=True))
    # y = sum of ratio * (x - its zero) + zero of y: `fixed` has all that no x is in.
    factors = np.append(checked(np.array(ratios, np.float32), label), np.float32(y.zero - moved))
    return builder.sum_of_two([x, residual], factors, y, shape(node.results[0].type), label)


def lower_mul(builder: CnnBuilder, node: NodeOp, label: str) -> SSAValue:
    """The product of two activations, rescaled to the result's scale."""
    a, b, y = (builder.scales[value] for value in (*node.operands, node.results[0]))
    operands, factor = zip(node.operands, (a, b), strict=True), product_factor(a.scale, b.scale, y.scale)
    return multiplied(builder, node, operands, factor, y, label)


def multiplied(
    builder: CnnBuilder, node: NodeOp, operands: Iterable[tuple[SSAValue, Scale]], factor: np.float32, y: Scale,
    label: str,
) -> SSAValue:  # fmt: skip
    """The products of two values less their zero points, times `factor`, at scale y."""
    # The `x` of a cnn.mul has no zero point. It alone may be fused with the op that computes it, as that of a cnn.add.
    (x, x_scale), (residual, scale) = sorted(
        operands,
        key=lambda each: (_is_whole(each[0], node), each[1].zero == 0, _readiness(builder, each[0])),
        reverse=True,
    )
    image, other = builder.images([x, residual], shape(node.results[0].type), label)
    factors = np.append(checked(np.array([factor]), label), np.array([scale.zero, y.zero], np.float32))
    steps = Steps(factors=builder.symbol(f"{label}.q", factors), multiply=True, add_clamp=y.clamp)
    sources = [_less_zero(builder, image, x_scale, label), other]
    return builder.emit(MulOp, sources, builder.operand, shape(image.type), label, {"steps": StepsAttr(steps)})


def _is_whole(value: SSAValue, node: NodeOp) -> bool:
    """Whether an operand has a pixel for each of the result, and not one for each channel."""
    return shape(value.type) == shape(node.results[0].type)


def _readiness(builder: CnnBuilder, value: SSAValue) -> int:
    """The position of the node that computes `value`; -1 if it cannot be fused with its reader."""
    node = value.owner
    if value.has_one_use() and isinstance(node, NodeOp) and node in builder.placement.layers:
        return builder.order[node]
    return -1


def lower_concat(builder: CnnBuilder, node: NodeOp, label: str) -> SSAValue:
    """The operands joined along the channels of images; operands of another scale are requantised."""
    y = builder.scale(node.results[0], label)
    sources = [_scaled(builder, value, y, label) for value in node.operands]
    n, _, h, w = shape(sources[0].type)
    dims = (n, sum(shape(source.type)[1] for source in sources), h, w)
    return builder.emit(ConcatOp, sources, builder.operand, dims, label, {})


def lower_slice(builder: CnnBuilder, node: NodeOp, layer: SliceLayer, label: str) -> SSAValue:
    """Some channels of an image."""
    source, dims = builder.nchw(node.operands[0], f"{label}.in"), image_dims(shape(node.results[0].type))
    return builder.emit(SliceOp, [source], builder.operand, dims, label, {"first": IntegerAttr(layer.first, i64)})


def lower_pixels(builder: CnnBuilder, node: NodeOp, layer: PixelsLayer, label: str) -> SSAValue:
    """Parts of the channels of an image, with their pixels in turn."""
    source, side = builder.nchw(node.operands[0], f"{label}.in"), IntegerAttr(layer.block, i64)
    n, k, h, w = shape(node.results[0].type)
    part = n, k, h // layer.block, w // layer.block
    if layer.by_channel and k > 1:
        shuffled, groups = builder.names.free(f"{label}.shuffle"), {"groups": IntegerAttr(k, i64)}
        source = builder.emit(ShuffleOp, [source], builder.operand, shape(source.type), shuffled, groups)
    parts = [
        builder.emit(
            SliceOp, [source], builder.operand, part, builder.names.free(f"{label}.part{index}"),
            {"first": IntegerAttr(index * k, i64)},
        )
        for index in range(layer.block**2)
    ]  # fmt: skip
    return builder.emit(ConcatOp, parts, builder.operand, (n, k, h, w), label, {"rows": side, "cols": side})


def _scaled(builder: CnnBuilder, value: SSAValue, y: Scale, label: str) -> SSAValue:
    image = builder.nchw(value, builder.names.free(f"{label}.in"))
    x = builder.scales[value]
    if x == y:
        return image
    label = builder.names.free(f"{label}.copy")
    return builder.requant(_less_zero(builder, image, x, label), _ratios(image, x, y), y, label)


def lower_activation(
    builder: CnnBuilder, node: NodeOp, label: str, bounds: tuple[float, float] = (-inf, inf), slope: float = 1.0
) -> SSAValue:
    """A Relu, Clip or LeakyRelu with a scale of its own, as a requantisation of its operand's integers."""
    x, y = builder.scales[node.operands[0]], builder.scale(node.results[0], label)
    image = builder.image(node.operands[0], f"{label}.in")
    words = _less_zero(builder, image, x, label)
    return builder.requant(words, _ratios(image, x, y), y, label, label, slope, y.within(*bounds))


def lower_function(builder: CnnBuilder, node: NodeOp, layer: FunctionLayer, label: str) -> SSAValue:
    """A function of single numbers as a table."""
    x, y = builder.scales[node.operands[0]], builder.scales[node.results[0]]
    table = function_table(layer, x, y)
    builder.entries_apart[node] = 1 << table.shift
    source = builder.image(node.operands[0], f"{label}.in")
    symbol = builder.symbol(f"{label}.t", table.entries.astype(np.int16))
    steps = Steps(clamp=table.clamp, table=symbol, shift=table.shift)
    return builder.emit(LookupOp, [source], builder.operand, shape(source.type), label, {"by": StepsAttr(steps)})


def _less_zero(builder: CnnBuilder, image: SSAValue, x: Scale, label: str) -> SSAValue:
    """The integers of `image` less their zero point, so that they can be requantised."""
    if x.zero == 0:
        return image
    # A sum, as a word less its zero point may have a bit more than a word.
    return builder.pooled("sum", image, Window((1, 1), fill=x.zero, zero=x.zero), builder.psum, f"{label}.sum")


def _ratios(image: SSAValue, x: Scale, y: Scale) -> Floats:
    """The factors f32[k] from the integers of `image` at scale x to integers at scale y."""
    with np.errstate(all="ignore"):  # scales that lie too far apart are refused later: see `checked`
        return np.full(shape(image.type)[1], np.float32(x.scale) / np.float32(y.scale))


def lower_mean(builder: CnnBuilder, node: NodeOp, layer: PoolLayer, label: str) -> SSAValue:
    """A mean as a sum with its scale divided by the count, which may differ from position to position.

    Raises: Refusal, if the sum may exceed a psum.
    """
    x, y = node.operands[0], node.results[0]
    count, x_scale = int(np.prod(layer.window.kernel)), builder.scales[x]
    if (most := count * x_scale.reach) > (limit := integer_range(builder.psum_bits)[1]):
        what, help_ = f"{count} values of ±{x_scale.reach} may exceed a psum", "a smaller window, or more psum_bits"
        raise Refusal(
            f"'{label}': {what} of {builder.psum_bits} bits: {help_}",
            Finding(what, where=label, resource="psum_bits", value=most, limit=limit, help=help_),
        )
    sums = builder.pool("sum", x, layer.window, builder.psum, label)
    counts = np.outer(layer.rows, layer.cols).astype(np.float32)
    with np.errstate(over="ignore"):  # see `checked`
        multipliers = np.float32(x_scale.scale) / (np.float32(builder.scales[y].scale) * counts)
    _, k, h, w = shape(sums.type)
    if multipliers.size == 1:
        return builder.finish(sums, np.full(k, multipliers[0, 0]), y, label)
    return builder.finish(sums, np.full((h, w), multipliers, np.float32), y, label)


def lower_shuffle(builder: CnnBuilder, node: NodeOp, layer: ShuffleLayer, label: str) -> SSAValue:
    """A Transpose of n g c/g h w as a shuffle of the channels of n c h w."""
    n, groups, members, h, w = shape(node.operands[0].type)
    dims = (n, groups * members, h, w)
    source = builder.shaped(node.operands[0], dims, f"{label}.in")
    return builder.emit(ShuffleOp, [source], builder.operand, dims, label, {"groups": IntegerAttr(layer.groups, i64)})


def lower_clamp(builder: CnnBuilder, x: SSAValue, layer: ClampLayer, label: str) -> SSAValue:
    """A Relu or Clip with its operand's scale."""
    source, steps = builder.image(x, f"{label}.in"), Steps(clamp=builder.scales[x].within(layer.lo, layer.hi))
    return builder.emit(ClampOp, [source], builder.operand, shape(source.type), label, {"by": StepsAttr(steps)})
