"""Emits the `cnn` ops of layers that are integers in the model. No pass: part of `onnx-to-cnn`'s builder.

A word wider than a byte holds a code unchanged. A word of 8 bits holds an unsigned code less 128, and its zero point
less 128: differences stay equal, and so does every sum of a convolution. Only sums and products of two values are
rounded with the zero point of the result in them, so `word_factors` and `word_factor` try all pairs there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from xdsl.ir import SSAValue

from cnncc.dialects.cnn import shape
from cnncc.dialects.onnx import NodeOp
from cnncc.errors import Refusal
from cnncc.numerics import Floats, Ints, integer_range, residual_add, residual_multiply
from cnncc.passes._onnx.builder import CnnBuilder
from cnncc.passes._onnx.calibration import Scale, scale_of
from cnncc.passes._onnx.codes import BYTE_BITS, product_factor, rescaling, with_neighbours
from cnncc.passes._onnx.layer_lowering import multiplied
from cnncc.passes._onnx.quantised_layers import ProductLayer, QuantizeLayer, SumLayer, SumOfTwoLayer
from cnncc.window import Window


def lower_sum(builder: CnnBuilder, node: NodeOp, layer: SumLayer, label: str) -> SSAValue:
    """A convolution, matrix product or global average in the model's own integers.

    Raises: Refusal, if a sum may exceed a psum, or a weight less its zero point an operand.
    """
    x, y = (scale_of(codes, builder.operand_bits) for codes in (layer.x, layer.y))
    window = replace(layer.window, fill=x.zero, zero=x.zero)
    _check_psums(layer, x.reach, builder.psum_bits, label)
    source = builder.nchw(node.operands[0], f"{label}.in")
    if layer.weights is None:
        sums = builder.pooled("sum", source, window, builder.psum, label)
    else:
        _check_words(layer.weights, builder.operand.width.data, label)
        sums = builder.products(source, layer.weights, window, label)
    if layer.bias.any():
        sums = builder.bias(sums, layer.bias, label)
    return builder.requant(sums, layer.multipliers, y, label, slope=layer.slope)


def _check_psums(layer: SumLayer, reach: int, psum_bits: int, label: str) -> None:
    """Check that no order of additions exceeds a psum. Raises Refusal, with the first channel that may."""
    limit = integer_range(psum_bits)[1]
    taps = np.prod(layer.window.kernel)
    sizes = np.full(len(layer.bias), taps) if layer.weights is None else np.abs(layer.weights).sum(axis=(1, 2, 3))
    need = sizes * reach + np.abs(layer.bias)
    if need.max() > limit:
        k = int(need.argmax())
        raise Refusal(
            f"'{label}': the sums of channel {k} may reach {need[k]}, psums of {psum_bits} bits hold {limit}: "
            f"an array with wider psums is needed"
        )


def _check_words(weights: Ints, operand_bits: int, label: str) -> None:
    """Check that each weight fits a word. Raises Refusal, with the first channel that does not."""
    lo, hi = integer_range(operand_bits)
    if weights.min() < lo or weights.max() > hi:
        k = int(np.argmax((weights < lo).any(axis=(1, 2, 3)) | (weights > hi).any(axis=(1, 2, 3))))
        raise Refusal(f"'{label}': weights of channel {k} less their zero point exceed {lo}..{hi}: use wider operands")


def lower_quantize(builder: CnnBuilder, node: NodeOp, layer: QuantizeLayer, label: str) -> SSAValue:
    """Reals to codes: the same words; or a requantisation of other codes, on a pooling over one pixel."""
    x = node.operands[0]
    held, wanted = builder.scales[x], scale_of(layer.y, builder.operand_bits)
    if held == wanted:
        return builder.values[x]
    codes = builder.placement.known(x)
    multiplier = rescaling(codes, layer.y) if codes else None
    assert multiplier is not None, "placed on the array without a way to do it"
    source = builder.image(x, f"{label}.in")
    channels = shape(source.type)[1]
    words = builder.pooled("max", source, Window((1, 1)), builder.operand, label)
    # The pooling passes words on as they are; the multiplier is for words less their zero point.
    if held.zero:
        words = builder.bias(words, np.full(channels, -held.zero), label)
    return builder.requant(words, np.full(channels, multiplier, np.float32), wanted, label)


def lower_sum_of_two(builder: CnnBuilder, node: NodeOp, layer: SumOfTwoLayer, label: str) -> SSAValue:
    """A residual sum in the model's own integers. Raises Refusal if words would be rounded differently from codes."""
    a, b, y = (scale_of(codes, builder.operand_bits) for codes in (layer.a, layer.b, layer.y))
    factors = word_factors(layer, a, b, y)
    if factors is None:
        raise _rounded_otherwise(label)
    x, residual = (node.operands[index] for index in (0, 3))
    return builder.sum_of_two([x, residual], factors, y, shape(node.results[0].type), label)


def lower_product(builder: CnnBuilder, node: NodeOp, layer: ProductLayer, label: str) -> SSAValue:
    """A product in the model's own integers. Raises Refusal if words would be rounded differently from codes."""
    a, b, y = (scale_of(codes, builder.operand_bits) for codes in (layer.a, layer.b, layer.y))
    factor = word_factor(layer, y)
    if factor is None:
        raise _rounded_otherwise(label)
    return multiplied(builder, node, [(node.operands[0], a), (node.operands[3], b)], factor, y, label)


def _rounded_otherwise(label: str) -> Refusal:
    return Refusal(f"'{label}': unsigned codes kept in {BYTE_BITS} bits would be rounded otherwise: use wider operands")


def word_factor(layer: ProductLayer, y: Scale) -> np.float32 | None:
    """The factor with which products of words are `layer`'s products of codes for all pairs; None if f32 has none.

    Products are the same, but the zero point of words is another, and is added before they are rounded.
    """
    factor = product_factor(layer.a.scale, layer.b.scale, layer.y.scale)
    if y.zero == layer.y.zero:
        return factor
    products = np.unique(np.multiply.outer(layer.a.every - layer.a.zero, layer.b.every - layer.b.zero))
    one = np.ones(1, np.int64)
    wanted = residual_multiply(products, one, np.array([factor, 0, layer.y.zero], np.float32), *layer.y.range)
    for candidate in with_neighbours(factor):
        got = residual_multiply(products, one, np.array([candidate, 0, y.zero], np.float32), *y.clamp)
        if (got - y.zero == wanted - layer.y.zero).all():
            return candidate
    return None


def word_factors(layer: SumOfTwoLayer, a: Scale, b: Scale, y: Scale) -> Floats | None:
    """Factors with which the sum of words equals `layer`'s sum of codes for all pairs; None if f32 has none."""
    factors = layer.factors()
    codes = layer.a.every[:, None], layer.b.every
    shifts = [layer.a.zero - a.zero, layer.b.zero - b.zero, layer.y.zero - y.zero]
    if not any(shifts):
        return factors
    wanted = residual_add(*codes, factors, *layer.y.range) - shifts[2]
    exact = factors.astype(np.float64)
    fixed = np.float32(exact[2] + exact[0] * shifts[0] + exact[1] * shifts[1] - shifts[2])
    # `fixed` is rounded to f32, so that a result at a half may round the other way. A neighbour of it may do.
    for candidate in with_neighbours(fixed):
        moved = np.array([factors[0], factors[1], candidate], np.float32)
        got = residual_add(codes[0] - shifts[0], codes[1] - shifts[1], moved, *y.clamp)
        if (got == wanted).all():
            return moved
    return None
