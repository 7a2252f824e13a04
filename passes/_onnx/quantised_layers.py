"""Reads nodes of a quantised model, in integers and with the model's own scales. No pass.

A *code* is an integer of the model, a signed or unsigned byte. Sources: ONNX QuantizeLinear, DequantizeLinear,
QLinearConv, QLinearMatMul; com.microsoft QGemm, QLinearAdd, QLinearMul, QLinearLeakyRelu, QLinearSigmoid,
QLinearAveragePool, QLinearGlobalAveragePool as onnxruntime computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import Attribute, SSAValue

from cnncc.dialects.cnn import shape
from cnncc.dialects.onnx import NodeOp
from cnncc.dialects.weights import ConstantOp
from cnncc.frontend.microsoft_ops import MICROSOFT
from cnncc.numerics import Floats, Ints, residual_add, saturate
from cnncc.passes._onnx.codes import (
    BYTES,
    MOST_AVERAGED,
    SIGNED,
    Codes,
    are_normal,
    averaging,
    codes_of,
    product_factor,
    products_by_codes,
    require_normal,
    rescaling,
)
from cnncc.passes._onnx.functions import CodeFunctionLayer, model_of
from cnncc.passes._onnx.layers import (
    ON_INTEGERS,
    READERS,
    Layer,
    PoolLayer,
    Reader,
    constant_input,
    read_layer,
    read_with,
    require_shapes,
)
from cnncc.passes._onnx.windows import StaysOnHost, read_window, require
from cnncc.weights import Array, WeightStore
from cnncc.window import Window

Elements = tuple[Attribute, ...]
REALS: Elements = (f32,)


@dataclass(frozen=True)
class QuantizeLayer:
    """Reals to codes: sat(rne(real / scale) + zero)."""

    y: Codes


@dataclass(frozen=True)
class DequantizeLayer:
    """Codes to reals: (code - zero) * scale."""

    x: Codes


@dataclass(frozen=True, eq=False)
class SumLayer:
    """sat(rne(f32(sum) * multiplier[k]) + zero of y) with sum = Σ (x - zero of x) * weights[k] + bias[k].

    weights: int64[k, c / group, r, s] less their zero points; None for a sum over each channel, whose multiplier
    divides by the window. A matrix product is a 1x1 convolution, a LeakyRelu a sum over one pixel. multipliers: f32[k],
    or f32[h, w]. slope: of negative products with the multiplier.
    """

    window: Window
    weights: Ints | None
    bias: Ints
    multipliers: Floats
    x: Codes
    y: Codes
    slope: float = 1.0


@dataclass(frozen=True)
class SumOfTwoLayer:
    """sat(rne(fma(a, ra, fma(b, rb, fixed)))).

    ra = a.scale / y.scale, rb = b.scale / y.scale, fixed = y.zero - (ra * a.zero + rb * b.zero).
    """

    a: Codes
    b: Codes
    y: Codes

    def factors(self) -> Floats:
        """ra, rb, fixed: each f32 operation rounded, as onnxruntime does it."""
        scale = np.float32(self.y.scale)
        ra, rb = np.float32(self.a.scale) / scale, np.float32(self.b.scale) / scale
        moved = ra * np.float32(self.a.zero) + rb * np.float32(self.b.zero)
        return np.array([ra, rb, np.float32(self.y.zero) - moved], np.float32)


@dataclass(frozen=True)
class ProductLayer:
    """sat(rne((a - a.zero) * (b - b.zero) * (a.scale * b.scale / y.scale) + y.zero))."""

    a: Codes
    b: Codes
    y: Codes


QuantisedLayer = QuantizeLayer | DequantizeLayer | SumLayer | SumOfTwoLayer | ProductLayer | CodeFunctionLayer
AnyLayer = Layer | QuantisedLayer


def read_any_layer(node: NodeOp, store: WeightStore) -> AnyLayer:
    """The layer of `node`, in reals or in codes. Raises StaysOnHost, with the reason, if the array cannot run it."""
    domain = node.domain.data if node.domain else ""
    if (known := QUANTISED_READERS.get((domain, node.op_type.data))) is not None:
        read, inputs, results = known
        return read_with(read, node, store, inputs, results)
    shared = ON_INTEGERS.get(node.op_type.data)
    if not domain and shared is not None and node.operands and codes_of(node.operands[0].type):
        return read_with(shared, node, store, BYTES, BYTES)
    return read_layer(node, store)


def conversion_codes(node: NodeOp, store: WeightStore) -> Codes | None:
    """What a QuantizeLinear or DequantizeLinear writes or reads; None if it has several scales, or no bytes."""
    try:
        layer = read_any_layer(node, store)
    except StaysOnHost:
        return None
    assert isinstance(layer, QuantizeLayer | DequantizeLayer)
    return layer.y if isinstance(layer, QuantizeLayer) else layer.x


def _scales(node: NodeOp, index: int, store: WeightStore) -> Floats:
    """Input `index` as scales f32[1] or f32[k]."""
    array = constant_input(node, index, store)
    if array is None or array.dtype != np.float32 or array.ndim > 1 or not array.size:
        raise StaysOnHost(f"input {index} is not an f32 scale, or one for each channel")
    require(are_normal(array), f"input {index} has scales that are no normal positive numbers")
    return array.reshape(-1)


def _zeros(node: NodeOp, index: int, element: Attribute, store: WeightStore) -> Ints:
    """Input `index` as zero points int64[1] or int64[k] of codes of type `element`; 0 if it is omitted."""
    array = constant_input(node, index, store)
    if array is None:
        return np.zeros(1, np.int64)
    is_theirs = _element(node.operands[index]) == element
    require(is_theirs and array.ndim <= 1 and array.size > 0, f"input {index} is no zero point of {element}")
    return array.reshape(-1).astype(np.int64)


def _element(value: SSAValue) -> Attribute:
    return cast("TensorType[Attribute]", value.type).element_type


def _codes(node: NodeOp, value: SSAValue, scale: int, store: WeightStore) -> Codes:
    """The codes of `value`, an operand or the result of `node`; `scale` is the input with their scale."""
    require(codes_of(value.type) is not None, f"a quantised tensor is {value.type}, not of bytes")
    scales, zeros = _scales(node, scale, store), _zeros(node, scale + 1, _element(value), store)
    require(scales.size == zeros.size == 1, f"input {scale} scales an activation channel by channel")
    return Codes(_element(value) == SIGNED, float(scales[0]), int(zeros[0]))


def _quantize(node: NodeOp, store: WeightStore) -> QuantisedLayer:
    """To int8 or uint8. One constant scale and zero point, no block_size."""
    require("block_size" not in node.attributes or not node.int_attr("block_size", 0), "it has a block_size")
    y = _codes(node, node.results[0], 1, store)
    require(node.int_attr("precision", 1) == 1, "it divides in another precision than f32")
    return QuantizeLayer(y)


def _dequantize(node: NodeOp, store: WeightStore) -> QuantisedLayer:
    """From int8 or uint8. One constant scale and zero point; constants may have them for each channel."""
    return DequantizeLayer(_codes(node, node.operands[0], 1, store))


def _weights(node: NodeOp, index: int, rank: int, store: WeightStore) -> Array:
    array = constant_input(node, index, store)
    if array is None or array.dtype.type not in (np.int8, np.uint8) or array.ndim != rank or not array.size:
        raise StaysOnHost(f"input {index} is not a constant of bytes of rank {rank}")
    return array


def _centred(weights: Array, zeros: Ints) -> Ints:
    """Weights [k, …] less their zero points: one, or one for each k."""
    require(zeros.size in (1, len(weights)), f"there are {zeros.size} zero points for {len(weights)} channels")
    return weights.astype(np.int64) - zeros.reshape(-1, *[1] * (weights.ndim - 1))


def _bias(node: NodeOp, index: int, dims: tuple[int, ...], store: WeightStore) -> Ints:
    """Input `index` as it is added to a result of `dims`, [n, k] or [k], or zeros: int64[k]."""
    array = constant_input(node, index, store)
    if array is None:
        return np.zeros(dims[-1], np.int64)
    require(array.dtype == np.int32, f"input {index} is {array.dtype}, a bias is int32")
    rows = np.broadcast_to(array, dims).reshape(-1, dims[-1])
    require(bool((rows == rows[0]).all()), f"input {index} differs from row to row")
    return rows[0].astype(np.int64)


def _multipliers(x: Floats, weights: Floats, y: float, channels: int) -> Floats:
    """x * weights / y for each channel, in this order in f32."""
    require(weights.size in (1, channels), f"there are {weights.size} weight scales for {channels} channels")
    with np.errstate(over="ignore", under="ignore"):
        multipliers = np.broadcast_to(x * weights / np.float32(y), (channels,)).astype(np.float32)
    require_normal(multipliers)
    return multipliers


def _conv(node: NodeOp, store: WeightStore) -> QuantisedLayer:
    """As Conv, on int8 or uint8. Weights have one scale, or one for each output channel."""
    weights = _weights(node, 3, 4, store)
    channels, group = len(weights), node.int_attr("group", 1)
    x, y = _codes(node, node.operands[0], 1, store), _codes(node, node.results[0], 6, store)
    window = read_window(node, weights.shape[2:], group)
    inputs = shape(node.operands[0].type)[1]
    require(weights.shape[1] * group == inputs, "weights and input differ in channels")
    require(channels % group == 0, f"{channels} output channels are not a multiple of group = {group}")
    # `_bias` broadcasts, as QGemm does; here each channel has a bias of its own.
    bias, given = _bias(node, 8, (channels,), store), node.operand(8)
    require(given is None or shape(given.type) == (channels,), f"input 8 is no bias of {channels} channels")
    centred = _centred(weights, _zeros(node, 5, _element(node.operands[3]), store))
    multipliers = _multipliers(np.array([x.scale], np.float32), _scales(node, 4, store), y.scale, channels)
    return SumLayer(window, centred, bias, multipliers, x, y)


def _matrix(node: NodeOp, weights: Array, bias: Ints, y: Codes, alpha: float, store: WeightStore) -> SumLayer:
    """A matrix product with weights [k, c]; inputs 1, 2 quantise the first operand, 4, 5 the weights."""
    rank = len(shape(node.operands[0].type))
    require(rank == 2, f"input 0 has rank {rank}, not 2")
    x = _codes(node, node.operands[0], 1, store)
    centred = _centred(weights, _zeros(node, 5, _element(node.operands[3]), store))[:, :, None, None]
    scale = np.array([alpha], np.float32) * np.float32(x.scale)
    scales = _multipliers(scale, _scales(node, 4, store), y.scale, len(weights))
    return SumLayer(Window((1, 1)), np.ascontiguousarray(centred), bias, scales, x, y)


def _matmul(node: NodeOp, store: WeightStore) -> QuantisedLayer:
    """As MatMul, on int8 or uint8. Weights have one scale, or one for each output channel."""
    weights = _weights(node, 3, 2, store).T
    y = _codes(node, node.results[0], 6, store)
    return _matrix(node, weights, np.zeros(len(weights), np.int64), y, 1.0, store)


def _gemm(node: NodeOp, store: WeightStore) -> QuantisedLayer:
    """As Gemm, on int8 or uint8, with a quantised result."""
    require(not node.int_attr("transA", 0), "transA = 1")
    require(node.operand(7) is not None, "its result is float (no y_scale)")
    weights = _weights(node, 3, 2, store)
    weights = weights if node.int_attr("transB", 0) else weights.T
    y = _codes(node, node.results[0], 7, store)
    bias = _bias(node, 6, (shape(node.results[0].type)[0], len(weights)), store)
    steps = [constant_input(node, index, store) for index in (4, 5)]
    shapes = {array.shape for array in steps if array is not None}
    require(len(shapes) == 1, "inputs 4 and 5, scale and zero point of the weights, differ in shape")
    return _matrix(node, weights, bias, y, node.float_attr("alpha", 1.0), store)


def _binary_codes(node: NodeOp, store: WeightStore) -> tuple[Codes, Codes, Codes]:
    """The codes of both operands and of the result of QLinearAdd or QLinearMul."""
    require(len(node.own_operands) > 3, f"it has {len(node.own_operands)} inputs")
    a, b, y = node.operands[0], node.operands[3], node.results[0]
    vectors = [index for index in (1, 2, 4, 5, 6, 7) if (step := node.operand(index)) and shape(step.type)]
    require(not vectors, f"inputs {vectors} are no scalars")
    return _codes(node, a, 1, store), _codes(node, b, 4, store), _codes(node, y, 6, store)


def _add(node: NodeOp, store: WeightStore) -> QuantisedLayer:
    """Two inputs of one shape, or one and a constant for each channel, int8 or uint8. Scales are scalars."""
    layer = SumOfTwoLayer(*_binary_codes(node, store))
    factors = layer.factors()
    require(bool(np.isfinite(factors).all()), "its scales lie too far apart for f32")
    if isinstance(node.operands[3].owner, ConstantOp):
        constants = _by_channel(node, store)
        wanted = residual_add(layer.a.every, constants[:, None], factors, *layer.y.range)
        slopes, offsets = (
            np.full(len(constants), factors[0]),
            (constants - layer.b.zero).astype(np.float32) * factors[1],
        )
        return _by_codes(layer.a, layer.y, slopes, offsets, wanted)
    shapes = _shapes(node)
    require(len(set(shapes)) == 1, f"the shapes {shapes[0]} and {shapes[1]} differ")
    return layer


def _shapes(node: NodeOp) -> list[tuple[int, ...]]:
    """The shapes of both operands and of the result of QLinearAdd or QLinearMul."""
    return [shape(value.type) for value in (node.operands[0], node.operands[3], node.results[0])]


def _mul(node: NodeOp, store: WeightStore) -> QuantisedLayer:
    """Two inputs of one shape, or n c h w and n c 1 1, or one and a constant for each channel. Scales are scalars."""
    a, b, y = _binary_codes(node, store)
    if not isinstance(node.operands[3].owner, ConstantOp):
        require_shapes(*_shapes(node))
        require_normal(np.array([product_factor(a.scale, b.scale, y.scale)]))
        return ProductLayer(a, b, y)
    factors = _by_channel(node, store) - b.zero
    a_scale, b_scale = (np.array([codes.scale], np.float32) for codes in (a, b))
    scale = _multipliers(a_scale, b_scale, y.scale, channels=1)
    products = (a.every - a.zero) * factors[:, None]
    # onnxruntime adds the zero point before it rounds.
    wanted = saturate(np.rint(products.astype(np.float32) * scale + np.float32(y.zero)), *y.range)
    slopes = factors.astype(np.float32) * scale
    return _by_codes(a, y, slopes, np.zeros_like(slopes), wanted)


def _by_codes(x: Codes, y: Codes, slopes: Floats, offsets: Floats, wanted: Ints) -> SumLayer:
    """`products_by_codes` as a sum over one pixel."""
    weights, bias, multipliers = products_by_codes(x, y, slopes, offsets, wanted)
    return SumLayer(Window((1, 1), group=len(slopes)), weights[:, None, None, None], bias, multipliers, x, y)


def _by_channel(node: NodeOp, store: WeightStore) -> Ints:
    """Input 3, a constant: int64[c]."""
    dims, array = shape(node.results[0].type), constant_input(node, 3, store)
    require(shape(node.operands[0].type) == dims and len(dims) > 1, f"input 0 is no n c h w of the result's {dims}")
    assert array is not None
    channels = np.moveaxis(np.broadcast_to(array, dims), 1, 0)
    values = channels.reshape(len(channels), -1)
    require(bool((values == values[:, :1]).all()), "input 3 differs inside a channel")
    return values[:, 0].astype(np.int64)


def _average_pool(node: NodeOp, store: WeightStore) -> QuantisedLayer:
    """As AveragePool, on int8 or uint8, where no rounding of f32 sums changes a code. channels_last is 0."""
    require(not node.int_attr("channels_last", 0), "channels_last = 1")
    x, y = _codes(node, node.operands[0], 1, store), _codes(node, node.results[0], 3, store)
    pool = READERS["AveragePool"](node, store)
    assert isinstance(pool, PoolLayer)
    # With ceil_mode, AveragePool counts less padding than this operator.
    counted = node.int_attr("count_include_pad", 0) == 1
    counts = np.full((1, 1), np.prod(pool.window.kernel)) if counted else np.outer(pool.rows, pool.cols)
    require(counts.max() <= MOST_AVERAGED, f"means of {counts.max()} values: more than {MOST_AVERAGED} are not proved")
    _, channels, *sizes = shape(node.results[0].type)
    multipliers = np.zeros(counts.shape, np.float32)
    for count in np.unique(counts):
        multiplier = averaging(x, y, int(count))
        if multiplier is None:
            raise StaysOnHost(f"its f32 sums of {count} values may be rounded to another code than the array's")
        multipliers[counts == count] = multiplier
    each = np.resize(multipliers, channels) if counts.size == 1 else np.broadcast_to(multipliers, sizes).copy()
    return SumLayer(pool.window, None, np.zeros(channels, np.int64), each, x, y)


def _global_average_pool(node: NodeOp, store: WeightStore) -> QuantisedLayer:
    """Input n c h w, int8 or uint8. channels_last is 0."""
    require(not node.int_attr("channels_last", 0), "channels_last = 1")
    x, y = _codes(node, node.operands[0], 1, store), _codes(node, node.results[0], 3, store)
    _, channels, *sizes = shape(node.operands[0].type)
    window = read_window(node, tuple(sizes))
    with np.errstate(over="ignore", under="ignore"):
        multiplier = np.float32(x.scale) / (np.float32(y.scale) * np.float32(np.prod(sizes)))
    multipliers = np.full(channels, multiplier, np.float32)
    require_normal(multipliers)
    return SumLayer(window, None, np.zeros(channels, np.int64), multipliers, x, y)


def _leaky_relu(node: NodeOp, store: WeightStore) -> QuantisedLayer:
    """int8 or uint8. One factor, and alpha, give onnxruntime's result for each code."""
    x, y = _codes(node, node.operands[0], 1, store), _codes(node, node.results[0], 3, store)
    alpha = float(np.float32(node.float_attr("alpha", 0.01)))
    require(np.isfinite(alpha), f"alpha = {alpha}")
    multiplier = rescaling(x, y, alpha)
    if multiplier is None:
        raise StaysOnHost("no factor gives its result for each code")
    channels = (*shape(node.operands[0].type), 1, 1)[1]  # of n c h w
    multipliers = np.full(channels, multiplier, np.float32)
    return SumLayer(Window((1, 1)), None, np.zeros(channels, np.int64), multipliers, x, y, alpha)


def _sigmoid(node: NodeOp, store: WeightStore) -> QuantisedLayer:
    """Any shape, int8 or uint8. A table has the result for each code."""
    x, y = _codes(node, node.operands[0], 1, store), _codes(node, node.results[0], 3, store)
    return CodeFunctionLayer(model_of(node, store).SerializeToString(deterministic=True), x, y)


# By domain and operator: the reader, and the element types of the first input and the result.
QUANTISED_READERS: dict[tuple[str, str], tuple[Reader[QuantisedLayer], Elements, Elements]] = {
    ("", "QuantizeLinear"): (_quantize, REALS, BYTES),
    ("", "DequantizeLinear"): (_dequantize, BYTES, REALS),
    ("", "QLinearConv"): (_conv, BYTES, BYTES),
    ("", "QLinearMatMul"): (_matmul, BYTES, BYTES),
    (MICROSOFT, "QuantizeLinear"): (_quantize, REALS, BYTES),
    (MICROSOFT, "DequantizeLinear"): (_dequantize, BYTES, REALS),
    (MICROSOFT, "QGemm"): (_gemm, BYTES, BYTES),
    (MICROSOFT, "QLinearAdd"): (_add, BYTES, BYTES),
    (MICROSOFT, "QLinearMul"): (_mul, BYTES, BYTES),
    (MICROSOFT, "QLinearLeakyRelu"): (_leaky_relu, BYTES, BYTES),
    (MICROSOFT, "QLinearSigmoid"): (_sigmoid, BYTES, BYTES),
    (MICROSOFT, "QLinearAveragePool"): (_average_pool, BYTES, BYTES),
    (MICROSOFT, "QLinearGlobalAveragePool"): (_global_average_pool, BYTES, BYTES),
}
