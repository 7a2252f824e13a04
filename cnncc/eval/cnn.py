"""Runs IR of the `cnn` dialect on integers: the reference that every level below must equal.

All sums are exact, and each is checked to fit a psum. The leading dim of the inputs may be any multiple of the type's:
the network runs on that number of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from xdsl.dialects.builtin import IntegerType, ModuleOp, SymbolRefAttr, TensorType
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from cnncc.dialects.cnn import (
    BiasOp,
    ClampOp,
    ConcatOp,
    ConvOp,
    ElementwiseOp,
    HostOp,
    LookupOp,
    PoolOp,
    Quant,
    RequantOp,
    ReshapeOp,
    ShuffleOp,
    SliceOp,
    Steps,
    element_bits,
    quants_of,
    shape,
    value_key,
)
from cnncc.dialects.weights import arrays_of
from cnncc.errors import Refusal, refusals_of
from cnncc.eval._sums import psum_range
from cnncc.frontend.segments import RunModel, run_on_host
from cnncc.main_function import input_names, main_function, output_names
from cnncc.numerics import Epilogue, Ints, Table, dequantise, integer_range, quantise
from cnncc.weights import Array, WeightStore
from cnncc.window import Window

EXACT_LIMIT = 1 << 53  # of integers in float64
MOST_TERMS = 1 << 24  # copied from windows at a time

NOTHING: Mapping[SSAValue, Array] = {}
Integer = TypeVar("Integer", bound=np.integer[Any])
Numbers = npt.NDArray[Any]  # integers, or reals where a layer of reals is evaluated


def windows(x: Numbers, window: Window) -> Numbers:
    """All windows of x [n, c, ih, iw], less its zero point: a read-only view [n, c, h, w, r, s]."""
    top, left, bottom, right = window.pad
    if any(window.pad):
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=window.fill)
    spans = [d * (k - 1) + 1 for d, k in zip(window.dilation, window.kernel, strict=True)]
    view = sliding_window_view(x - window.zero if window.zero else x, spans, axis=(2, 3))
    return view[:, :, :: window.stride[0], :: window.stride[1], :: window.dilation[0], :: window.dilation[1]]


def convolution(x: Numbers, weights: Numbers, window: Window, kind: type[np.generic] = np.float64) -> Numbers:
    """The sums [n, k, h, w] of a convolution, computed as `kind`: x [n, c, ih, iw], weights [k, c / group, r, s]."""
    patches = windows(x, window)
    rows = max(1, MOST_TERMS * patches.shape[2] // patches.size)
    parts = [patches[:, :, y : y + rows] for y in range(0, patches.shape[2], rows)]
    return np.concatenate([_sums(part, weights, window.group, kind) for part in parts], axis=2)


def _sums(patches: Numbers, weights: Numbers, group: int, kind: type[np.generic]) -> Numbers:
    """The sums [n, k, h, w] of windows [n, c, h, w, r, s]."""
    n, _, h, w = patches.shape[:4]
    terms = weights[0].size
    columns = patches.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, group, terms)
    rows = weights.reshape(group, -1, terms)
    products = [columns[:, g].astype(kind) @ rows[g].astype(kind).T for g in range(group)]
    return np.concatenate(products, axis=1).reshape(n, h, w, -1).transpose(0, 3, 1, 2)


def conv_sums(x: Ints, weights: Ints, window: Window) -> Ints:
    """The sums int64[n, k, h, w] of a convolution of integers, exactly; shapes as of `convolution`."""
    # Padding is an input, too.
    input_reach = max(int(np.abs(x - window.zero).max(initial=0)), abs(window.fill - window.zero))
    largest = input_reach * int(np.abs(weights).max(initial=0)) * weights[0].size
    # float64 has a fast matrix product, and is as exact while nothing reaches 2^53.
    kind = np.float64 if largest < EXACT_LIMIT else np.int64
    return convolution(x, weights, window, kind).astype(np.int64)


def pool_values(x: Numbers, window: Window, kind: str) -> Numbers:
    """The maxima or sums [n, c, h, w] over all windows of x [n, c, ih, iw]."""
    view = windows(x, window)
    return view.max(axis=(4, 5)) if kind == "max" else view.sum(axis=(4, 5))


def shuffle_channels(x: npt.NDArray[Integer], groups: int) -> npt.NDArray[Integer]:
    """x [n, c, …] with shuffled channels: channel j * groups + g of the result is channel g * (c / groups) + j of x."""
    n, channels, *rest = x.shape
    return x.reshape(n, groups, channels // groups, *rest).swapaxes(1, 2).reshape(x.shape)


def concatenated(op: ConcatOp, parts: Sequence[npt.NDArray[Integer]]) -> npt.NDArray[Integer]:
    """The result of a concatenation of `parts` [n, k, …]."""
    if op.pixels is not None:
        return pixels_in_turn(parts, *op.pixels)
    return shuffle_channels(np.concatenate(parts, axis=1), 1 if op.interleaved is None else len(parts))


def pixels_in_turn(parts: Sequence[Numbers], rows: int, cols: int) -> Numbers:
    """The pixels of `parts` [n, k, h, w] in turn: part i * cols + j has h * rows + i, w * cols + j."""
    n, k, h, w = parts[0].shape
    pixels = np.stack(parts).reshape(rows, cols, n, k, h, w)
    return pixels.transpose(2, 3, 4, 0, 5, 1).reshape(n, k, h * rows, w * cols)


class _CnnRun:
    def __init__(self, module: ModuleOp, store: WeightStore, host: RunModel) -> None:
        self.symbols = arrays_of(module, store)
        self.store = store
        self.host = host
        self.psum_range = psum_range(module)
        self.values: dict[SSAValue, Array] = {}

    def scale(self, steps: Steps, op: Operation, dims: tuple[int, ...]) -> Array:
        """The scale f32[k] of results of these dims; f32[h, w] where each position has its own."""
        scale = array_of(self.symbols, steps.scale, op)
        if steps.per_position and scale.shape != dims[2:]:
            what = f"@{steps.scale} has shape {scale.shape}, not one scale per position of {dims}"
            raise Refusal(f"{name_of(op)}: {what}")
        return scale

    def checked(self, sums: Ints, op: Operation) -> Ints:
        """`sums`, if all fit a psum. Raises Refusal, with op and channel, if not."""
        lo, hi = self.psum_range
        if sums.size and (sums.min() < lo or sums.max() > hi):
            where = np.argwhere((sums < lo) | (sums > hi))[0]
            value = sums[tuple(where)]
            raise Refusal(f"{name_of(op)}: the sum {value} of channel {where[1]} exceeds the psum range {lo}..{hi}")
        return sums

    def finish(self, sums: Ints, steps: Steps, op: Operation, residual: SSAValue | None) -> Ints:
        """The results of sums [n, k, h, w] after their epilogue. Raises Refusal for a sum that overflows a psum."""
        epilogue = Epilogue(
            bias=array_of(self.symbols, steps.bias, op).astype(np.int64) if steps.bias else None,
            scale=self.scale(steps, op, sums.shape) if steps.scale else None,
            zero=steps.zero,
            # Without a clamp, a psum of more than 32 bits must keep its range.
            clamp=steps.clamp if steps.clamp != Steps().clamp else self.psum_range,
            factors=array_of(self.symbols, steps.factors, op) if steps.factors else None,
            multiply=steps.multiply,
            add_clamp=steps.add_clamp,
            slope=steps.slope,
            table=table_of(self.symbols, steps, op),
        )
        self.checked(sums, op)
        channels = np.expand_dims(np.arange(int(sums.shape[1]), dtype=np.intp), tuple(range(1, sums.ndim - 1)))
        if epilogue.bias is not None:
            self.checked(sums + epilogue.bias[channels], op)
        at = slice(None) if steps.per_position else channels
        results = epilogue.apply(sums, at, None if residual is None else self.values[residual])
        return shuffle_channels(results, steps.shuffle)

    def results(self, op: Operation, given: Mapping[SSAValue, Array]) -> list[Array]:
        """The results of `op`. A host segment whose results are all `given` is not run."""
        if isinstance(op, HostOp) and all(value in given for value in op.results):
            return [given[value] for value in op.results]
        return self.op(op)

    def op(self, op: Operation) -> list[Array]:
        """The results of `op`."""
        match op:
            case HostOp():
                return self.segment(op)
            case ConvOp():
                weights = array_of(self.symbols, _name(op.weights), op).astype(np.int64)
                sums = conv_sums(self.values[op.x], weights, op.window.data)
                return [self.finish(sums, op.steps.data if op.steps else Steps(), op, op.residual)]
            case PoolOp():
                sums = pool_values(self.values[op.x], op.window.data, op.kind.data)
                return [self.finish(sums, op.steps.data if op.steps else Steps(), op, op.residual)]
            case ElementwiseOp():
                return [self.finish(self.values[op.x], op.steps.data, op, op.residual)]
            case BiasOp():
                return [self.finish(self.values[op.x], Steps(bias=_name(op.bias)), op, None)]
            case RequantOp():
                return [self.finish(self.values[op.x], op.by.data, op, None)]
            case LookupOp():
                return [self.finish(self.values[op.x], op.by.data, op, None)]
            case ClampOp():
                return [np.clip(self.values[op.x], op.by.data.clamp[0], op.by.data.clamp[1])]
            case ConcatOp():
                return [concatenated(op, [self.values[value] for value in op.inputs])]
            case SliceOp():
                first = op.first.value.data
                return [self.values[op.x][:, first : first + shape(op.result.type)[1]]]
            case ShuffleOp():
                return [shuffle_channels(self.values[op.x], op.groups.value.data)]
            case ReshapeOp():
                dims = shape(op.result.type)
                batches = self.values[op.x].size // max(1, int(np.prod(dims)))
                return [self.values[op.x].reshape(batches * dims[0], *dims[1:])]
            case _:
                raise Refusal(f"op {op.name} does not belong to the cnn level")

    def segment(self, op: HostOp) -> list[Array]:
        """A host segment, batch by batch."""
        inputs = [
            _real(self.values[value], quant.data) for value, quant in zip(op.inputs, op.input_quants, strict=True)
        ]
        dims = [shape(value.type) for value in op.inputs]
        batches = max([x.size // max(1, prod(sizes)) for x, sizes in zip(inputs, dims, strict=True)], default=1)
        parts = [x.reshape(batches, *sizes) for x, sizes in zip(inputs, dims, strict=True)]
        model = self.store[op.model.key.data].tobytes()
        results = [self.host(model, [part[i] for part in parts]) for i in range(batches)]
        whole = [joined(part) for part in zip(*results, strict=True)]
        quants = zip(whole, op.outputs, op.output_quants, strict=True)
        return [_integers(result, quant.data, value.type) for result, value, quant in quants]


def joined(batches: Sequence[Array]) -> Array:
    """The values of several batches, concatenated along the leading dim; scalars become a vector."""
    return np.concatenate([np.atleast_1d(array) for array in batches]) if len(batches) > 1 else batches[0]


def returned_batches(op: ReturnOp, values: Sequence[Array], inputs: Sequence[tuple[SSAValue, Array]]) -> list[Array]:
    """The outputs of a network for some batches of `inputs`; constant outputs are repeated for each batch."""
    batches = max([array.size // max(1, prod(shape(value.type))) for value, array in inputs], default=1)

    def is_of_one(value: Array, dims: Sequence[int]) -> bool:
        """By the elements; of none by the leading dim."""
        return value.size == prod(dims) and (value.size > 0 or value.shape[:1] == tuple(dims[:1]))

    each = zip(values, (shape(value.type) for value in op.operands), strict=True)
    return [joined([value] * batches) if is_of_one(value, dims) else value for value, dims in each]


def _name(symbol: SymbolRefAttr) -> str:
    return symbol.root_reference.data


def name_of(op: Operation) -> str:
    """As messages name an op: `cnn.conv 'conv1'`."""
    return f"{op.name} '{value_key(op) or ''}'"


def array_of(symbols: Mapping[str, Array], name: str, op: Operation) -> Array:
    """The array of a symbol that `op` reads. Raises Refusal for one that is missing."""
    if name not in symbols:
        raise Refusal(f"{name_of(op)}: there is no weights.global @{name}")
    return symbols[name]


def table_of(symbols: Mapping[str, Array], steps: Steps, op: Operation) -> Table | None:
    """The table of an epilogue. Raises Refusal for one that is missing, or has another size or type."""
    if not steps.table:
        return None
    entries = array_of(symbols, steps.table, op)
    with refusals_of(f"{name_of(op)}: @{steps.table}"):
        return Table.of(entries, steps.shift)


def _real(values: Array, quant: Quant) -> Array:
    return dequantise(values, quant.scale, quant.zero).astype(quant.element, copy=False) if quant.scale else values


def _integers(values: Array, quant: Quant, value_type: Attribute) -> Array:
    if not quant.scale:
        return values
    lo, hi = integer_range(element_bits(value_type))
    return quantise(values, quant.scale, quant.zero, max(lo, quant.clamp[0]), min(hi, quant.clamp[1]))


def evaluate(
    module: ModuleOp,
    store: WeightStore,
    inputs: Sequence[Array],
    host: RunModel = run_on_host,
    given: Mapping[SSAValue, Array] = NOTHING,
) -> tuple[list[Array], dict[str, Ints]]:
    """The outputs for integer `inputs` (in the order of `@main`), and every value that has a key, by that key.

    given: values that replace computed ones for their readers.
    Raises: Refusal, for a sum that overflows a psum (with op and channel), inputs that do not fit the types, or an op
    of another level.
    """
    func = main_function(module)
    run = _CnnRun(module, store, host)
    for value, array in zip(func.body.block.args, inputs, strict=True):
        run.values[value] = _checked_input(array, value)
    trace: dict[str, Ints] = {}
    for op in func.body.block.ops:
        if isinstance(op, ReturnOp):
            taken = [(value, run.values[value]) for value in func.body.block.args]
            return returned_batches(op, [run.values[value] for value in op.operands], taken), trace
        results = run.results(op, given)
        run.values.update({value: given.get(value, result) for value, result in zip(op.results, results, strict=True)})
        trace.update(_traced(op, results))
    raise Refusal("@main does not end with func.return")


def _traced(op: Operation, results: Sequence[Array]) -> Iterator[tuple[str, Ints]]:
    """The integer results of `op` by key: a segment with several numbers them."""
    key = value_key(op)
    for index, result in enumerate(results):
        if key is not None and result.dtype == np.int64:
            yield (key if len(results) == 1 else f"{key}.{index}", result)


def _checked_input(array: Array, value: SSAValue) -> Array:
    dims, name = shape(value.type), value.name_hint or "input"
    is_batched = array.ndim == len(dims) and array.shape[1:] == dims[1:] and array.size > 0
    is_batched |= not dims and array.ndim == 1 and array.size > 0  # scalars of several batches
    if not is_batched or (dims and array.shape[0] % dims[0]):
        raise Refusal(f"input '{name}' has shape {list(array.shape)}, expected {list(dims)}, or several such batches")
    is_integer = isinstance(cast("TensorType[Attribute]", value.type).element_type, IntegerType)
    if not is_integer or array.dtype.kind != "i":
        return array
    lo, hi = integer_range(element_bits(value.type))
    if array.min() < lo or array.max() > hi:
        raise Refusal(f"input '{name}' has values outside {lo}..{hi}")
    return array.astype(np.int64)


def quantise_inputs(module: ModuleOp, inputs: Mapping[str, Array]) -> list[Array]:
    """Real `inputs` by name as the integers of `@main`'s arguments, in order. Raises Refusal for a missing one."""
    func = main_function(module)
    names, args = input_names(module), func.body.block.args
    if missing := [name for name in names if name not in inputs]:
        raise Refusal(f"input '{missing[0]}' is missing: there are {', '.join(inputs) or 'none'}")
    quants = quants_of(func.arg_attrs, len(names))
    return [
        _integers(inputs[name], quant or Quant(0.0), arg.type)
        for name, quant, arg in zip(names, quants, args, strict=True)
    ]


def dequantise_outputs(module: ModuleOp, outputs: Sequence[Array]) -> dict[str, Array]:
    """The integer `outputs` of `@main` as real numbers, by name."""
    quants = quants_of(main_function(module).res_attrs, len(outputs))
    reals = [_real(output, quant or Quant(0.0)) for output, quant in zip(outputs, quants, strict=True)]
    return dict(zip(output_names(module), reals, strict=True))
