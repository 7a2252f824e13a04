"""ONNX operators in float64 by plain numpy: a reference that shares nothing with cnncc nor with onnxruntime.

Floats are computed in float64 throughout. Codes are integers: their operators round and saturate as ONNX says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray
Attributes = Mapping[str, Any]
Operator = Callable[[Sequence[Any], Attributes], Array]
Hook = Callable[[str, Array], Array]


def unchanged(_: str, value: Array) -> Array:
    """The hook that does nothing."""
    return value


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Array], hook: Hook = unchanged) -> dict[str, Array]:
    """All values of a graph by name, for one batch. hook: what replaces an input or result before it is read."""
    values = {tensor.name: _wide(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    values |= {name: hook(name, _wide(array)) for name, array in feeds.items()}
    for node in model.graph.node:
        result = apply(node, [values[name] if name else None for name in node.input])
        values[node.output[0]] = hook(node.output[0], result)
    return values


def apply(node: onnx.NodeProto, inputs: Sequence[Any]) -> Array:
    """The result of one node."""
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return OPERATORS[node.op_type]([None if each is None else _wide(each) for each in inputs], attributes)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


# -- windows -----------------------------------------------------------------------------------------------------------


def _pads(sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int], attributes: Attributes) -> list[int]:
    """Before and after rows and columns, as ONNX orders them."""
    auto = attributes.get("auto_pad", b"NOTSET").decode()
    if not auto.startswith("SAME"):
        return [0, 0, 0, 0] if auto == "VALID" else list(attributes.get("pads", (0, 0, 0, 0)))
    totals = [
        max(0, (-(-size // stride) - 1) * stride + span - size)
        for size, span, stride in zip(sizes, spans, strides, strict=True)
    ]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*small, *large] if auto == "SAME_UPPER" else [*large, *small]


def _windows(x: Array, kernel: Sequence[int], attributes: Attributes, fill: float) -> tuple[Array, Array, Array]:
    """Windows [n, c, oh, ow, r, s] of an image; which of their elements are in the image, and in it or its pads."""
    strides, dilations = attributes.get("strides", (1, 1)), attributes.get("dilations", (1, 1))
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    sizes = x.shape[2:]
    pads = _pads(sizes, spans, strides, attributes)
    counts: list[int] = []
    more: list[int] = []  # rows and columns beyond the pads, which windows of ceil_mode reach
    for size, span, stride, before, after in zip(sizes, spans, strides, pads[:2], pads[2:], strict=True):
        steps = size + before + after - span
        last = -(-steps // stride) if attributes.get("ceil_mode") else steps // stride
        if attributes.get("ceil_mode") and last * stride >= size + before:
            last -= 1
        counts.append(last + 1)
        more.append(max(0, last * stride + span - (size + before + after)))

    def cut(array: Array, fill: float, beyond: float) -> Array:
        inner = [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]
        array = np.pad(array, inner, constant_values=fill)
        array = np.pad(array, [(0, 0), (0, 0), (0, more[0]), (0, more[1])], constant_values=beyond)
        view = np.lib.stride_tricks.sliding_window_view(array, spans, (2, 3))
        view = view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
        return view[:, :, : counts[0], : counts[1]]

    ones = np.ones((1, 1, *sizes))
    return cut(x, fill, fill), cut(ones, 0, 0), cut(ones, 1, 0)


def _conv(x: Array, w: Array, attributes: Attributes) -> Array:
    """Without bias; pads are 0."""
    group = attributes.get("group", 1)
    view, _, _ = _windows(x, w.shape[2:], attributes, 0)
    n, _, oh, ow, r, s = view.shape
    view = view.reshape(n, group, -1, oh, ow, r, s)
    weights = w.reshape(group, -1, *w.shape[1:])
    return np.einsum("ngchwrs,gkcrs->ngkhw", view, weights).reshape(n, len(w), oh, ow)


def _conv_float(inputs: Sequence[Any], attributes: Attributes) -> Array:
    sums = _conv(inputs[0], inputs[1], attributes)
    return sums + inputs[2][:, None, None] if len(inputs) > 2 and inputs[2] is not None else sums


def _max_pool(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x = inputs[0]
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return _windows(x, attributes["kernel_shape"], attributes, least)[0].max(axis=(4, 5))


def _average_pool(inputs: Sequence[Any], attributes: Attributes) -> Array:
    view, inside, padded = _windows(inputs[0], attributes["kernel_shape"], attributes, 0)
    counted = padded if attributes.get("count_include_pad") else inside
    return view.sum(axis=(4, 5)) / counted.sum(axis=(4, 5))


def _pad(inputs: Sequence[Any], attributes: Attributes) -> Array:
    pads = inputs[1].reshape(2, -1).T
    return np.pad(inputs[0], [tuple(int(each) for each in row) for row in pads])


# -- others ------------------------------------------------------------------------------------------------------------


def _batch_norm(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x = inputs[0]
    scale, bias, mean, variance = (each.reshape(-1, *[1] * (x.ndim - 2)) for each in inputs[1:5])
    return (x - mean) / np.sqrt(variance + attributes.get("epsilon", 1e-5)) * scale + bias


def _clip(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, bounds = inputs[0], [*inputs[1:], None, None]
    x = x if bounds[0] is None else np.maximum(x, bounds[0])
    return x if bounds[1] is None else np.minimum(x, bounds[1])


def _leaky(x: Array, slope: Any) -> Array:
    return np.where(x < 0, x * slope, x)


def _sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(x / 2)


def _elu(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x = inputs[0]
    return np.where(x < 0, attributes.get("alpha", 1.0) * np.expm1(np.minimum(x, 0)), x)


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _gelu(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return inputs[0] * 0.5 * (1 + _erf(inputs[0] / math.sqrt(2)))


def _quick_gelu(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return inputs[0] * _sigmoid(attributes.get("alpha", 1.702) * inputs[0])


def _reshape(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, wanted = inputs[:2]
    return x.reshape([x.shape[i] if size == 0 else int(size) for i, size in enumerate(wanted)])


def _slice(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, starts, ends, axes, *steps = inputs
    for start, end, axis, step in zip(starts, ends, axes, *(steps or [[1] * len(starts)]), strict=True):
        x = x.take(range(*slice(start, end, step).indices(x.shape[axis])), axis)
    return x


def _gemm(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, w = inputs[:2]
    product = attributes.get("alpha", 1) * (x @ (w.T if attributes.get("transB") else w))
    return product + attributes.get("beta", 1) * inputs[2] if len(inputs) > 2 and inputs[2] is not None else product


def _softmax(inputs: Sequence[Any], attributes: Attributes) -> Array:
    axis = attributes.get("axis", -1)
    power = np.exp(inputs[0] - inputs[0].max(axis=axis, keepdims=True))
    return power / power.sum(axis=axis, keepdims=True)


def _lrn(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, size = inputs[0], attributes["size"]
    squares = np.pad(x**2, [(0, 0), ((size - 1) // 2, size // 2), (0, 0), (0, 0)])
    total = np.sum([squares[:, i : i + x.shape[1]] for i in range(size)], axis=0)
    factor = attributes.get("bias", 1.0) + attributes.get("alpha", 1e-4) / size * total
    return x / factor ** attributes.get("beta", 0.75)


def _sum(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return np.sum(inputs, axis=0) if len({x.shape for x in inputs}) == 1 else inputs[0] + inputs[1]


def _reduce_mean(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return inputs[0].mean(axis=tuple(attributes["axes"]), keepdims=bool(attributes.get("keepdims", 1)))


# -- codes -------------------------------------------------------------------------------------------------------------


def _spread(factor: Any, rank: int, axis: int) -> Array:
    """A scale or zero point, for one axis where it has several values."""
    array = np.asarray(factor)
    return array.reshape(()) if array.size == 1 else array.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def _codes(reals: Array, scale: Any, zero: Any, axis: int = 1) -> Array:
    """sat(rne(reals / scale) + zero)."""
    kind = zero.dtype if zero is not None else np.dtype(np.uint8)
    offset = 0 if zero is None else _spread(zero, reals.ndim, axis).astype(np.float64)
    info = np.iinfo(kind)
    return np.clip(np.rint(reals / _spread(scale, reals.ndim, axis)) + offset, info.min, info.max).astype(kind)


def _reals(codes: Array, scale: Any, zero: Any, axis: int = 1) -> Array:
    """(codes - zero) * scale."""
    offset = 0 if zero is None else _spread(zero, codes.ndim, axis).astype(np.float64)
    return (codes.astype(np.float64) - offset) * _spread(scale, codes.ndim, axis)


def _quantize(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return _codes(inputs[0], inputs[1], (*inputs, None)[2], attributes.get("axis", 1))


def _dequantize(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return _reals(inputs[0], inputs[1], (*inputs, None)[2], attributes.get("axis", 1))


def _qlinear_conv(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, w = _reals(*inputs[:3]), _reals(*inputs[3:6], axis=0)
    sums = _conv(x, w, attributes)
    if len(inputs) > 8:
        sums = sums + (inputs[8] * inputs[1] * np.reshape(inputs[4], -1))[:, None, None]
    return _codes(sums, *inputs[6:8])


def _qlinear_matmul(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return _codes(_reals(*inputs[:3]) @ _reals(*inputs[3:6]), *inputs[6:8])


def _qgemm(inputs: Sequence[Any], attributes: Attributes) -> Array:
    transposed = attributes.get("transB", 0)
    x, w = _reals(*inputs[:3]), _reals(*inputs[3:6], axis=0 if transposed else 1)
    sums = x @ (w.T if transposed else w)
    if inputs[6] is not None:
        sums = sums + inputs[6] * inputs[1] * np.reshape(inputs[4], -1)
    return _codes(sums * attributes.get("alpha", 1.0), *inputs[7:9])


def _qlinear_add(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return _codes(_reals(*inputs[:3]) + _reals(*inputs[3:6]), *inputs[6:8])


def _qlinear_mul(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return _codes(_reals(*inputs[:3]) * _reals(*inputs[3:6]), *inputs[6:8])


def _qlinear_leaky(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return _codes(_leaky(_reals(*inputs[:3]), attributes.get("alpha", 0.01)), *inputs[3:5])


def _qlinear_sigmoid(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return _codes(_sigmoid(_reals(*inputs[:3])), *inputs[3:5])


def _qlinear_average(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """As AveragePool; padding that counts does so in every window."""
    view, inside, _ = _windows(_reals(*inputs[:3]), attributes["kernel_shape"], attributes, 0)
    counts = np.prod(attributes["kernel_shape"]) if attributes.get("count_include_pad") else inside.sum(axis=(4, 5))
    return _codes(view.sum(axis=(4, 5)) / counts, *inputs[3:5])


def _qlinear_mean(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return _codes(_reals(*inputs[:3]).mean(axis=(2, 3), keepdims=True), *inputs[3:5])


def _depth_to_space(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """DCR: the channels of a pixel follow each other; CRD: the pixels of a channel do."""
    x, side = inputs[0], attributes["blocksize"]
    n, every, h, w = x.shape
    channels = every // side**2
    result = np.empty((n, channels, h * side, w * side), x.dtype)
    for at, (row, col) in enumerate(np.ndindex(side, side)):
        follow = attributes.get("mode", b"DCR") == b"DCR"
        part = x[:, at * channels : (at + 1) * channels] if follow else x[:, at :: side**2]
        result[:, :, row::side, col::side] = part
    return result


def _space_to_depth(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x, side = inputs[0], attributes["blocksize"]
    return np.concatenate([x[:, :, row::side, col::side] for row, col in np.ndindex(side, side)], axis=1)


OPERATORS: dict[str, Operator] = {
    "Conv": _conv_float,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda inputs, _: inputs[0].mean(axis=(2, 3), keepdims=True),
    "GlobalMaxPool": lambda inputs, _: inputs[0].max(axis=(2, 3), keepdims=True),
    "ReduceMean": _reduce_mean,
    "BatchNormalization": _batch_norm,
    "Pad": _pad,
    "Add": _sum,
    "Sum": _sum,
    "Sub": lambda inputs, _: inputs[0] - inputs[1],
    "Mul": lambda inputs, _: inputs[0] * inputs[1],
    "Div": lambda inputs, _: inputs[0] / inputs[1],
    "Relu": lambda inputs, _: np.maximum(inputs[0], 0),
    "Clip": _clip,
    "LeakyRelu": lambda inputs, attributes: _leaky(inputs[0], attributes.get("alpha", 0.01)),
    "PRelu": lambda inputs, _: _leaky(inputs[0], inputs[1]),
    "HardSigmoid": lambda inputs, _: np.clip(0.2 * inputs[0] + 0.5, 0, 1),
    "HardSwish": lambda inputs, _: inputs[0] * np.clip(inputs[0] / 6 + 0.5, 0, 1),
    "Sigmoid": lambda inputs, _: _sigmoid(inputs[0]),
    "Tanh": lambda inputs, _: np.tanh(inputs[0]),
    "Elu": _elu,
    "Softplus": lambda inputs, _: np.logaddexp(0, inputs[0]),
    "Erf": lambda inputs, _: _erf(inputs[0]),
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "Atan": lambda inputs, _: np.arctan(inputs[0]),
    "Asinh": lambda inputs, _: np.arcsinh(inputs[0]),
    "Softmax": _softmax,
    "LRN": _lrn,
    "Identity": lambda inputs, _: inputs[0],
    "Dropout": lambda inputs, _: inputs[0],
    "Reshape": _reshape,
    "Flatten": lambda inputs, _: inputs[0].reshape(len(inputs[0]), -1),
    "Slice": _slice,
    "Transpose": lambda inputs, attributes: inputs[0].transpose(attributes["perm"]),
    "Concat": lambda inputs, attributes: np.concatenate(inputs, attributes["axis"]),
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "MatMul": lambda inputs, _: inputs[0] @ inputs[1],
    "Gemm": _gemm,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QGemm": _qgemm,
    "QLinearAdd": _qlinear_add,
    "QLinearMul": _qlinear_mul,
    "QLinearLeakyRelu": _qlinear_leaky,
    "QLinearSigmoid": _qlinear_sigmoid,
    "QLinearAveragePool": _qlinear_average,
    "QLinearGlobalAveragePool": _qlinear_mean,
}
