"""Reads an ONNX node as a layer of the array, or says why it has to stay on the host.

No pass: `onnx-to-cnn` lowers what is read here, and calibration measures it. Sources: ONNX operators of the
names below, all opsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import Attribute, SSAValue

from cnncc.dialects.cnn import Window, shape
from cnncc.dialects.onnx import NodeOp
from cnncc.dialects.weights import ConstantOp, constant_array
from cnncc.errors import Refusal
from cnncc.numerics import Floats
from cnncc.weights import Array, WeightStore


class StaysOnHost(Exception):
    """Why the array cannot do a node."""


@dataclass(frozen=True, eq=False)
class ConvLayer:
    """Conv, Gemm or MatMul: weights f32[k, c / group, r, s], bias f32[k]; a matrix product is a 1x1 convolution."""

    window: Window
    weights: Floats
    bias: Floats


@dataclass(frozen=True)
class PoolLayer:
    """MaxPool ("max"), AveragePool or GlobalAveragePool ("sum": the mean is the sum over r·s)."""

    kind: str
    window: Window


@dataclass(frozen=True)
class AddLayer:
    """The sum of two activations."""


@dataclass(frozen=True)
class ClampLayer:
    """Relu or Clip to the reals lo..hi."""

    lo: float
    hi: float


@dataclass(frozen=True)
class ReshapeLayer:
    """The same numbers in the same order under another shape."""


Layer = ConvLayer | PoolLayer | AddLayer | ClampLayer | ReshapeLayer


def read_layer(node: NodeOp, store: WeightStore) -> Layer:
    """The layer that `node` is. Raises StaysOnHost with the reason where the array cannot do it."""
    read = _READERS.get(node.op_type.data) if node.domain is None else None
    if read is None:
        raise StaysOnHost("the array has no such operator")
    if not node.operands or not node.results:
        raise StaysOnHost("it has no inputs or no results")
    _require_tensor(node.operands[0], "input 0")
    _require_tensor(node.results[0], "the result")
    if isinstance(node.operands[0].owner, ConstantOp):
        raise StaysOnHost("input 0 is constant")
    if any(result.first_use for result in node.results[1:]):
        raise StaysOnHost("it has more than one result")
    try:
        return read(node, store)
    except (Refusal, ValueError) as error:
        raise StaysOnHost(str(error)) from error


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise StaysOnHost(reason)


def is_tensor_of(value: SSAValue, element_type: Attribute) -> bool:
    """Is `value` a tensor of `element_type` whose shape is known and not empty?"""
    match value.type:
        case TensorType() as tensor_type:
            known = all(size > 0 for size in tensor_type.get_shape())
            return known and tensor_type.element_type == element_type
        case _:
            return False


def _require_tensor(value: SSAValue, what: str) -> None:
    _require(is_tensor_of(value, f32), f"{what} is {value.type}, not an f32 tensor of known shape")


def _constant(node: NodeOp, index: int, store: WeightStore) -> Array | None:
    """Input `index` as an array, None where it is left out. Raises StaysOnHost where it is computed."""
    value = node.operand(index)
    if value is None:
        return None
    if not isinstance(value.owner, ConstantOp):
        raise StaysOnHost(f"input {index} is computed, not constant")
    return constant_array(value.owner, store).reshape(shape(value.type))


def _weights(node: NodeOp, index: int, rank: int, store: WeightStore) -> Floats:
    array = _constant(node, index, store)
    if array is None or array.dtype != np.float32 or array.ndim != rank or not array.size:
        raise StaysOnHost(f"input {index} is not an f32 constant of rank {rank}")
    _require(bool(np.isfinite(array).all()), f"input {index} has values that are not finite")
    return array


def _pads(node: NodeOp, spans: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """top left bottom right, from `pads` or `auto_pad`. spans: rows and columns from a window's first to its last."""
    auto = node.str_attr("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return node.ints_attr("pads", (0, 0, 0, 0))
    if auto == "VALID":
        return (0, 0, 0, 0)
    _require(auto in ("SAME_UPPER", "SAME_LOWER"), f"auto_pad = {auto}")
    sizes = shape(node.operands[0].type)[2:]
    axes = zip(sizes, spans, stride, strict=True)
    totals = [max((-(-size // step) - 1) * step + span - size, 0) for size, span, step in axes]
    less = tuple(total // 2 for total in totals)
    more = tuple(total - half for total, half in zip(totals, less, strict=True))
    return less + more if auto == "SAME_UPPER" else more + less


def _window(node: NodeOp, kernel: tuple[int, ...], group: int = 1) -> Window:
    _require(len(shape(node.operands[0].type)) == 4, f"input 0 has rank {len(shape(node.operands[0].type))}, not 4")
    stride, dilation = node.ints_attr("strides", (1, 1)), node.ints_attr("dilations", (1, 1))
    unpadded = Window(kernel, stride, dilation=dilation, group=group)
    window = replace(unpadded, pad=_pads(node, unpadded.spans, stride))
    found, ours = shape(node.results[0].type)[2:], window.output(*shape(node.operands[0].type)[2:])
    if found != ours:  # a ceil_mode that adds no window is harmless
        cause = "ceil_mode = 1: " if node.int_attr("ceil_mode", 0) else ""
        raise StaysOnHost(f"{cause}the result is {found[0]}x{found[1]}, whole windows give {ours[0]}x{ours[1]}")
    return window


def _conv(node: NodeOp, store: WeightStore) -> Layer:
    weights = _weights(node, 1, 4, store)
    channels = weights.shape[0]
    bias = np.zeros(channels, np.float32) if node.operand(2) is None else _weights(node, 2, 1, store)
    window = _window(node, weights.shape[2:], node.int_attr("group", 1))
    _require(weights.shape[1] * window.group == shape(node.operands[0].type)[1], "weights and input differ in channels")
    _require(channels % window.group == 0, f"{channels} output channels are not a multiple of group = {window.group}")
    _require(bias.shape == (channels,), "the bias does not have one value per channel")
    return ConvLayer(window, weights, bias)


def _matrix(weights: Floats, bias: Floats) -> ConvLayer:
    return ConvLayer(Window((1, 1)), np.ascontiguousarray(weights[:, :, None, None]), bias)


def _gemm(node: NodeOp, store: WeightStore) -> Layer:
    _require(not node.int_attr("transA", 0), "transA = 1")
    weights = _weights(node, 1, 2, store)
    weights = weights if node.int_attr("transB", 0) else weights.T
    rows, channels = shape(node.results[0].type)
    addend = _constant(node, 2, store)
    beta = np.float32(node.float_attr("beta", 1))
    offset = np.zeros((), np.float32) if addend is None else (addend * beta).astype(np.float32)
    biases: Floats = np.zeros((rows, channels), np.float32) + offset
    _require(bool((biases == biases[0]).all()), "input 2 differs from row to row")
    bias: Floats = biases[0]
    return _matrix(weights * np.float32(node.float_attr("alpha", 1)), bias)


def _matmul(node: NodeOp, store: WeightStore) -> Layer:
    rank = len(shape(node.operands[0].type))
    _require(rank == 2, f"input 0 has rank {rank}, not 2")
    weights = _weights(node, 1, 2, store)
    return _matrix(weights.T, np.zeros(int(weights.shape[1]), np.float32))


def _max_pool(node: NodeOp, store: WeightStore) -> Layer:
    kernel = node.ints_attr("kernel_shape", ())
    window = _window(node, kernel)
    _require(
        _covers(window, shape(node.operands[0].type)[2:]), f"pads = {list(window.pad)} leave windows without input"
    )
    return PoolLayer("max", window)


def _covers(window: Window, sizes: tuple[int, ...]) -> bool:
    """Has every window at least one position inside an image of these sizes?"""

    def touched(axis: int, output: int) -> range:
        first = output * window.stride[axis] - window.pad[axis]
        return range(first, first + window.spans[axis], window.dilation[axis])

    return all(
        any(0 <= position < sizes[axis] for position in touched(axis, output))
        for axis, outputs in enumerate(window.output(*sizes))
        for output in range(outputs)
    )


def _average_pool(node: NodeOp, store: WeightStore) -> Layer:
    window = _window(node, node.ints_attr("kernel_shape", ()))
    counted = node.int_attr("count_include_pad", 0) == 1
    _require(counted or not any(window.pad), f"pads = {list(window.pad)} with count_include_pad = 0")
    return PoolLayer("sum", window)


def _global_average_pool(node: NodeOp, store: WeightStore) -> Layer:
    _, _, *sizes = shape(node.operands[0].type)
    return PoolLayer("sum", _window(node, tuple(sizes)))


def _add(node: NodeOp, store: WeightStore) -> Layer:
    _require(len(node.operands) == 2, f"it has {len(node.operands)} inputs, not 2")
    _require_tensor(node.operands[1], "input 1")
    _require(not isinstance(node.operands[1].owner, ConstantOp), "input 1 is constant")
    shapes = [shape(value.type) for value in (*node.operands, node.results[0])]
    _require(len(set(shapes)) == 1, f"the shapes {shapes[0]} and {shapes[1]} differ")
    return AddLayer()


def _relu(node: NodeOp, store: WeightStore) -> Layer:
    return ClampLayer(0.0, float("inf"))


def _bound(node: NodeOp, name: str, index: int, default: float, store: WeightStore) -> float:
    """A bound of Clip: an attribute before opset 11, an input from then on."""
    array = _constant(node, index, store)
    return node.float_attr(name, default) if array is None else float(array.reshape(()))


def _clip(node: NodeOp, store: WeightStore) -> Layer:
    lo = _bound(node, "min", 1, float("-inf"), store)
    hi = _bound(node, "max", 2, float("inf"), store)
    _require(lo <= hi, f"min = {lo} and max = {hi} are no range")
    return ClampLayer(lo, hi)


def _reshape(node: NodeOp, store: WeightStore) -> Layer:
    _constant(node, 1, store)
    sizes = [int(np.prod(shape(value.type))) for value in (node.operands[0], node.results[0])]
    _require(sizes[0] == sizes[1], "input and result differ in size")
    return ReshapeLayer()


_READERS: dict[str, Callable[[NodeOp, WeightStore], Layer]] = {
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "Add": _add,
    "Sum": _add,
    "Relu": _relu,
    "Clip": _clip,
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Identity": _reshape,
}
