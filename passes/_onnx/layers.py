"""Reads an ONNX node as a layer of the array, or gives the reason why it stays on the host.

No pass: `onnx-to-cnn` lowers the layers, and calibration measures them. Source: the ONNX operators named below, all
opsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.ir import Attribute, SSAValue

from cnncc.dialects.cnn import shape
from cnncc.dialects.onnx import NodeOp, ValueType, constant_operand
from cnncc.dialects.weights import ConstantOp
from cnncc.errors import Refusal
from cnncc.frontend.export_onnx import opset_imports
from cnncc.frontend.microsoft_ops import MICROSOFT, OWN_FUNCTIONS
from cnncc.frontend.onnx_types import UNKNOWN
from cnncc.numerics import Floats
from cnncc.passes._onnx.functions import FunctionLayer, read_function
from cnncc.passes._onnx.normalisation import read_normalisation
from cnncc.passes._onnx.windows import (
    StaysOnHost,
    image_sizes,
    position_counts,
    read_pads,
    read_window,
    require,
    require_sides,
)
from cnncc.weights import Array, WeightStore
from cnncc.window import Window

Dims = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ConvLayer:
    """Conv, Gemm or MatMul: weights f32[k, c / group, r, s], bias f32[k]; a matrix product is a 1x1 convolution.

    A batch normalisation is a depthwise 1x1 convolution.
    """

    window: Window
    weights: Floats
    bias: Floats


@dataclass(frozen=True)
class PoolLayer:
    """MaxPool ("max"), AveragePool or ReduceMean ("sum": mean at h, w = sum / (rows[h] * cols[w])).

    rows, cols: a single number if it is the same for all h, all w.
    """

    kind: str
    window: Window
    rows: Dims = (1,)
    cols: Dims = (1,)


@dataclass(frozen=True)
class AddLayer:
    """The sum of two activations."""


@dataclass(frozen=True)
class MulLayer:
    """The product of two activations, element by element."""


@dataclass(frozen=True)
class ClampLayer:
    """Relu or Clip to the reals lo..hi."""

    lo: float
    hi: float


@dataclass(frozen=True)
class LeakyLayer:
    """LeakyRelu: x * slope for negative x, else x."""

    slope: float


@dataclass(frozen=True)
class ReshapeLayer:
    """The same numbers in the same order under another shape."""


@dataclass(frozen=True)
class ConcatLayer:
    """All inputs one after the other, along the channels."""


@dataclass(frozen=True)
class SliceLayer:
    """So many channels, from `first` on."""

    first: int
    channels: int


@dataclass(frozen=True)
class ShuffleLayer:
    """Channel shuffle: channels in `groups` groups, the first of each group, the second of each, and so on."""

    groups: int


@dataclass(frozen=True)
class PixelsLayer:
    """Channels in `block` * `block` parts, one after the other, as the pixels of larger images in turn.

    Pixel h * block + i, w * block + j of the result is pixel h, w of part i * block + j. by_channel: the pixels of each
    channel follow each other first, not the channels of each part.
    """

    block: int
    by_channel: bool = False


Layer = (
    ConvLayer
    | PoolLayer
    | AddLayer
    | MulLayer
    | ClampLayer
    | LeakyLayer
    | FunctionLayer
    | ReshapeLayer
    | ConcatLayer
    | SliceLayer
    | ShuffleLayer
    | PixelsLayer
)
SHUFFLE = (0, 2, 1, 3, 4)  # of n g c/g h w
MOST_BLOCK = 8  # of DepthToSpace: each of blocksize * blocksize parts is a layer, or a copy
# Functions of single numbers that a table is near to. Softsign, which bends too much around 0, is none.
FUNCTIONS = (
    "Sigmoid", "Tanh", "Elu", "Selu", "Celu", "Softplus", "Erf", "Gelu", "Mish", "HardSigmoid", "HardSwish",
)  # fmt: skip
# Why a node stays that a pass takes away otherwise.
LEFT = {
    "Pad": "it is not folded: it pads other than zeros around rows and columns, or not a Conv or pool alone",
    "ConvTranspose": "it is no convolution: its weights are no f32 constants, its kernel is smaller than its stride, "
    "or it has a dilation beside a stride",
}
T = TypeVar("T")
Reader = Callable[[NodeOp, WeightStore], T]


def read_layer(node: NodeOp, store: WeightStore) -> Layer:
    """The layer of `node`. Raises StaysOnHost, with the reason, if the array cannot run it."""
    readers = READERS if node.domain is None else OWN_READERS if node.domain.data == MICROSOFT else {}
    if (read := readers.get(node.op_type.data)) is None:
        raise StaysOnHost(LEFT.get(node.op_type.data, "the array has no such operator"))
    return read_with(read, node, store)


def read_with(
    read: Reader[T],
    node: NodeOp,
    store: WeightStore,
    inputs: Sequence[Attribute] = (f32,),
    results: Sequence[Attribute] = (f32,),
) -> T:
    """The layer that `read` makes of `node`. inputs, results: legal element types of the first input and the result.

    Raises: StaysOnHost.
    """
    if not node.operands or not node.results:
        raise StaysOnHost("it has no inputs or no results")
    _require_tensor(node.operands[0], "input 0", inputs)
    _require_tensor(node.results[0], "the result", results)
    for value, what in ((node.operands[0], "input 0"), (node.results[0], "the result")):
        # Rows and columns, the last dims behind n and c; of n g c/g h w, too.
        require_sides(shape(value.type)[2:][-2:], what)
    if isinstance(node.operands[0].owner, ConstantOp):
        raise StaysOnHost("input 0 is constant")
    if any(result.first_use for result in node.results[1:]):
        raise StaysOnHost("it has more than one result")
    try:
        return read(node, store)
    # ValueError: arrays that numpy does not broadcast, such as QGemm's bias of shape [1, 1, 4] to [1, 4].
    except (Refusal, ValueError) as error:
        raise StaysOnHost(str(error)) from error


def is_tensor_of(value: SSAValue, element_type: Attribute) -> bool:
    """Whether `value` is a tensor of `element_type` with a known shape that is not empty."""
    kind = value.type
    return isinstance(kind, TensorType) and kind.element_type == element_type and min(kind.get_shape(), default=1) > 0


def _require_tensor(value: SSAValue, what: str, elements: Sequence[Attribute] = (f32,)) -> None:
    kind, wanted = value.type, " or ".join(str(element) for element in elements)
    if isinstance(kind, TensorType) and is_tensor_of(value, kind.element_type):
        # Without the shape, so that many nodes have one reason.
        require(kind.element_type in elements, f"{what} has elements of type {kind.element_type}, not {wanted}")
    else:
        raise StaysOnHost(f"{what} is {_named_type(value)}, not a tensor of {wanted} of known shape")


def _named_type(value: SSAValue) -> str:
    """As a user knows it: shapes are unknown behind operators that ONNX has no rules for."""
    match value.type:
        case TensorType() as tensor_type:
            return str(tensor_type)
        case ValueType(spec=spec) if value.type != UNKNOWN:
            return spec.data
        case _:
            return "of unknown shape"


def constant_input(node: NodeOp, index: int, store: WeightStore) -> Array | None:
    """Input `index` as an array; None if it is omitted. Raises StaysOnHost if it is computed."""
    value = node.operand(index)
    array = constant_operand(value, store)
    if array is None and value is not None:
        raise StaysOnHost(f"input {index} is computed, not constant")
    return array


def _weights(node: NodeOp, index: int, rank: int, store: WeightStore) -> Floats:
    array = constant_input(node, index, store)
    if array is None or array.dtype != np.float32 or array.ndim != rank or not array.size:
        raise StaysOnHost(f"input {index} is not an f32 constant of rank {rank}")
    require(bool(np.isfinite(array).all()), f"input {index} has values that are not finite")
    return array


def _conv(node: NodeOp, store: WeightStore) -> Layer:
    """Input n c h w. Weights and bias are constant. Any strides, dilations, group and pads from 0."""
    weights = _weights(node, 1, 4, store)
    channels = weights.shape[0]
    bias = np.zeros(channels, np.float32) if node.operand(2) is None else _weights(node, 2, 1, store)
    window = read_window(node, weights.shape[2:], node.int_attr("group", 1))
    require(weights.shape[1] * window.group == shape(node.operands[0].type)[1], "weights and input differ in channels")
    require(channels % window.group == 0, f"{channels} output channels are not a multiple of group = {window.group}")
    require(bias.shape == (channels,), "the bias does not have one value per channel")
    return ConvLayer(window, weights, bias)


def _matrix(weights: Floats, bias: Floats) -> ConvLayer:
    return ConvLayer(Window((1, 1)), np.ascontiguousarray(weights[:, :, None, None]), bias)


def _gemm(node: NodeOp, store: WeightStore) -> Layer:
    """Input 0 of rank 2, not transposed. Inputs 1 and 2 are constant, input 2 the same in all rows."""
    require(not node.int_attr("transA", 0), "transA = 1")
    weights = _weights(node, 1, 2, store)
    weights = weights if node.int_attr("transB", 0) else weights.T
    rows, channels = shape(node.results[0].type)
    addend = constant_input(node, 2, store)
    beta = np.float32(node.float_attr("beta", 1))
    offset = np.zeros((), np.float32) if addend is None else (addend * beta).astype(np.float32)
    biases: Floats = np.zeros((rows, channels), np.float32) + offset
    require(bool((biases == biases[0]).all()), "input 2 differs from row to row")
    bias: Floats = biases[0]
    return _matrix(weights * np.float32(node.float_attr("alpha", 1)), bias)


def _matmul(node: NodeOp, store: WeightStore) -> Layer:
    """Input 0 of rank 2, input 1 constant of rank 2."""
    rank = len(shape(node.operands[0].type))
    require(rank == 2, f"input 0 has rank {rank}, not 2")
    weights = _weights(node, 1, 2, store)
    return _matrix(weights.T, np.zeros(int(weights.shape[1]), np.float32))


def _batch_normalisation(node: NodeOp, store: WeightStore) -> Layer:
    """Rank 2 to 4, in inference, with constants for each channel."""
    module = node.get_toplevel_object()
    assert isinstance(module, ModuleOp)
    normalisation = read_normalisation(node, opset_imports(module)[""], store)
    if normalisation is None:
        raise StaysOnHost("it is no normalisation in inference with f32 constants")
    dims = shape(node.operands[0].type)
    require(2 <= len(dims) <= 4 and normalisation.scale.shape == (dims[1],), f"input 0 has shape {dims}, not n c h w")
    weights, bias = normalisation.fold(np.ones((dims[1], 1, 1, 1), np.float32), 0, np.zeros((), np.float32))
    require(bool(np.isfinite(weights).all() and np.isfinite(bias).all()), "its factors are not finite")
    return ConvLayer(Window((1, 1), group=dims[1]), weights, bias)


def _max_pool(node: NodeOp, store: WeightStore) -> Layer:
    """Input n c h w. Any strides, dilations, pads from 0 and ceil_mode. Every window has a position in the image."""
    window = read_window(node, node.ints_attr("kernel_shape", ()))
    _pool_counts(window, image_sizes(node))
    return PoolLayer("max", window)


def _pool_counts(window: Window, sizes: tuple[int, int], pads: tuple[int, ...] = (0, 0, 0, 0)) -> tuple[Dims, Dims]:
    """`position_counts`. Raises StaysOnHost if a window has no position inside."""
    rows, cols = position_counts(window, sizes, pads)
    require(min(*rows, *cols) > 0, f"pads = {list(window.pad)} leave windows without input")
    return rows, cols


def _global_max_pool(node: NodeOp, store: WeightStore) -> Layer:
    """Input n c h w."""
    return PoolLayer("max", read_window(node, image_sizes(node)))


def _average_pool(node: NodeOp, store: WeightStore) -> Layer:
    """Input n c h w. Any strides, dilations, pads from 0 and ceil_mode. Every window has a position in the image."""
    window, sizes = read_window(node, node.ints_attr("kernel_shape", ())), image_sizes(node)
    counted = node.int_attr("count_include_pad", 0) == 1
    # Positions of a ceil_mode window beyond the pads never count.
    pads = read_pads(node, window.spans, window.stride) if counted else (0, 0, 0, 0)
    rows, cols = (side if len(set(side)) > 1 else side[:1] for side in _pool_counts(window, sizes, pads))
    return PoolLayer("sum", window, rows, cols)


def _global_average_pool(node: NodeOp, store: WeightStore) -> Layer:
    """Input n c h w."""
    rows, cols = image_sizes(node)
    return PoolLayer("sum", read_window(node, (rows, cols)), (rows,), (cols,))


def _reduce_mean(node: NodeOp, store: WeightStore) -> Layer:
    """Input n c h w. Axes h, w or both: an attribute before opset 18, a constant input from then on."""
    given = constant_input(node, 1, store)
    axes = node.ints_attr("axes", ()) if given is None else tuple(int(axis) for axis in given.flat)
    sizes = image_sizes(node)
    reduced = {axis % 4 for axis in axes}
    require(bool(reduced) and reduced <= {2, 3}, f"axes = {list(axes)}: the array has means over h and w")
    kernel = tuple(size if axis in reduced else 1 for axis, size in enumerate(sizes, 2))
    return PoolLayer("sum", Window(kernel), kernel[:1], kernel[1:])


def _require_two(node: NodeOp) -> None:
    """Two computed inputs of one shape, or one of them with one pixel a channel."""
    require(len(node.operands) == 2, f"it has {len(node.operands)} inputs, not 2")
    _require_tensor(node.operands[1], "input 1")
    require(not isinstance(node.operands[1].owner, ConstantOp), "input 1 is constant")
    shapes = [shape(value.type) for value in (*node.operands, node.results[0])]
    require_shapes(*shapes)


def require_shapes(a: Dims, b: Dims, y: Dims) -> None:
    """Raise StaysOnHost unless operands have the result's shape, or one of them one pixel a channel: n c 1 1, n c 1."""
    pixel = (*y[:2], 1, 1)[: len(y)] if len(y) <= len("nchw") else y
    require({a, b} <= {y, pixel} and y in (a, b), f"the shapes {a} and {b} differ by more than one pixel a channel")


def _add(node: NodeOp, store: WeightStore) -> Layer:
    """Two computed inputs of one shape, or n c h w and n c 1 1."""
    _require_two(node)
    return AddLayer()


def _mul(node: NodeOp, store: WeightStore) -> Layer:
    """Two computed inputs of one shape, or n c h w and n c 1 1."""
    _require_two(node)
    return MulLayer()


def _relu(node: NodeOp, store: WeightStore) -> Layer:
    """Any shape."""
    return ClampLayer(0.0, float("inf"))


def _bound(node: NodeOp, name: str, index: int, default: float, store: WeightStore) -> float:
    """A bound of Clip: an attribute before opset 11, an input from then on."""
    array = constant_input(node, index, store)
    return node.float_attr(name, default) if array is None else float(array.reshape(()))


def _clip(node: NodeOp, store: WeightStore) -> Layer:
    """Constant bounds: attributes before opset 11, inputs from then on."""
    lo = _bound(node, "min", 1, float("-inf"), store)
    hi = _bound(node, "max", 2, float("inf"), store)
    require(lo <= hi, f"min = {lo} and max = {hi} are no range")
    return ClampLayer(lo, hi)


def _leaky(slope: float) -> Layer:
    require(abs(slope) <= 1, f"the slope {slope} is not within -1 to 1: the result may not have the input's scale")
    return LeakyLayer(float(np.float32(slope)))


def _leaky_relu(node: NodeOp, store: WeightStore) -> Layer:
    """alpha from -1 to 1."""
    return _leaky(node.float_attr("alpha", 0.01))


def _prelu(node: NodeOp, store: WeightStore) -> Layer:
    """One constant slope for all channels, from -1 to 1. `onnx-split-prelu` takes others up to 1."""
    slopes = constant_input(node, 1, store)
    if slopes is None or slopes.size == 0 or not (slopes == slopes.flat[0]).all():
        raise StaysOnHost(
            "its slopes differ: the output units have one, and onnx-split-prelu splits one up to 1 for each channel"
        )
    require(shape(node.operands[0].type) == shape(node.results[0].type), "input 1 is broadcast beyond input 0")
    return _leaky(float(slopes.flat[0]))


def _transpose(node: NodeOp, store: WeightStore) -> Layer:
    """Orders that move no element, and the channel shuffle of n g c/g h w."""
    dims = shape(node.operands[0].type)
    order = node.ints_attr("perm", tuple(reversed(range(len(dims)))))
    moved = [axis for axis in order if dims[axis] != 1]
    if moved == sorted(moved):
        return ReshapeLayer()
    require(order == SHUFFLE, f"perm = {list(order)} changes the order of the elements, and is no channel shuffle")
    return ShuffleLayer(dims[1])


def _concat(node: NodeOp, store: WeightStore) -> Layer:
    """Computed inputs of rank 2 or 4, along the channels."""
    dims = shape(node.operands[0].type)
    axis = node.int_attr("axis", 1)
    require(axis in (1, 1 - len(dims)), f"axis = {axis}: the array concatenates channels")
    require(len(dims) in (2, 4), f"input 0 has rank {len(dims)}, not 2 or 4")
    for index, value in enumerate(node.operands):
        require(not isinstance(value.owner, ConstantOp), f"input {index} is constant")
        kind = cast("TensorType[Attribute]", node.operands[0].type).element_type
        _require_tensor(value, f"input {index}", (kind,))
    return ConcatLayer()


def _slice(node: NodeOp, store: WeightStore) -> Layer:
    """Channels of rank 2 to 4, or every n-th row and column from the first one on. Bounds are constant."""
    dims = shape(node.operands[0].type)
    require(2 <= len(dims) <= 4, f"input 0 has rank {len(dims)}, not 2 to 4")
    kept = kept_by_slice(node, dims, store)
    if any(indices.step != 1 for indices in kept.values()):
        return _subsampling(kept, dims)
    others = [axis for axis, indices in kept.items() if axis != 1 and len(indices) < dims[axis]]
    require(not others, f"it cuts axes {others}, not channels alone")
    channels = kept.get(1, range(dims[1]))
    return SliceLayer(channels.start, len(channels))


def kept_by_slice(node: NodeOp, dims: Sequence[int], store: WeightStore) -> dict[int, range]:
    """What a Slice of a value of these dims keeps of its axes. Raises StaysOnHost if bounds are computed."""
    starts, ends = _bounds(node, "starts", 1, (), store), _bounds(node, "ends", 2, (), store)
    axes = _bounds(node, "axes", 3, range(len(starts)), store)
    steps = _bounds(node, "steps", 4, [1] * len(starts), store)
    cut = {axis % len(dims): slice(*bounds) for axis, *bounds in zip(axes, starts, ends, steps, strict=True)}
    # As in ONNX, bounds may count from the end, or lie beyond it.
    return {axis: range(*bounds.indices(dims[axis])) for axis, bounds in cut.items()}


def _subsampling(kept: Mapping[int, range], dims: Sequence[int]) -> Layer:
    """A pool of single pixels. It begins with the first one, and goes on to the end."""
    steps = [kept[axis].step if axis in kept else 1 for axis in range(len(dims))]
    whole = all(indices == range(0, dims[axis], indices.step) for axis, indices in kept.items())
    what = "the array reads channels that follow each other, or every n-th row and column from the first one on"
    require(len(dims) == len("nchw") and whole and steps[:2] == [1, 1], f"steps = {steps}: {what}")
    return PoolLayer("max", Window((1, 1), (steps[2], steps[3])))


def _bounds(node: NodeOp, name: str, index: int, default: Sequence[int], store: WeightStore) -> Sequence[int]:
    """Integers of Slice: an attribute before opset 10, an input from then on."""
    array = constant_input(node, index, store)
    return node.ints_attr(name, default) if array is None else [int(number) for number in array.flat]


def _depth_to_space(node: NodeOp, store: WeightStore) -> Layer:
    """blocksize up to 8."""
    block, mode, dims = node.int_attr("blocksize", 0), node.str_attr("mode", "DCR"), shape(node.operands[0].type)
    require(mode in ("DCR", "CRD"), f"mode = {mode} is neither DCR nor CRD")
    is_whole = len(dims) == len("nchw") and block > 0 and dims[1] % (block * block) == 0
    require(is_whole, f"blocksize = {block} does not divide the channels of {dims}")
    require(
        block <= MOST_BLOCK, f"blocksize = {block}: the array takes up to {MOST_BLOCK} * {MOST_BLOCK} values in turn"
    )
    return PixelsLayer(block, mode == "CRD") if block > 1 else ReshapeLayer()


def _reshape(node: NodeOp, store: WeightStore) -> Layer:
    """The elements stay in order. A shape that is an input is constant."""
    constant_input(node, 1, store)
    sizes = [int(np.prod(shape(value.type))) for value in (node.operands[0], node.results[0])]
    require(sizes[0] == sizes[1], "input and result differ in size")
    return ReshapeLayer()


# The docstrings of readers say what stays on the array: docs/operators.md has them.
READERS: dict[str, Reader[Layer]] = {
    "Conv": _conv,
    "BatchNormalization": _batch_normalisation,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "ReduceMean": _reduce_mean,
    "Add": _add,
    "Sum": _add,
    "Mul": _mul,
    "Relu": _relu,
    "Clip": _clip,
    "LeakyRelu": _leaky_relu,
    "PRelu": _prelu,
    **dict.fromkeys(FUNCTIONS, read_function),
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Identity": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "DepthToSpace": _depth_to_space,
}

# Of onnxruntime's own operators.
OWN_READERS: dict[str, Reader[Layer]] = dict.fromkeys(OWN_FUNCTIONS, read_function)

# Readers for integers too: they use shapes and attributes alone, and their layers only move or compare numbers.
ON_INTEGERS: dict[str, Reader[Layer]] = {
    name: READERS[name]
    for name in (
        "MaxPool", "Relu", "Clip", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Concat",
        "Slice", "DepthToSpace",
    )
}  # fmt: skip
