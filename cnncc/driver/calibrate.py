"""Calibration: runs the float graph over sample inputs and writes the range of every value on the IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import cast

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.ir import Attribute, SSAValue

from cnncc.dialects.cnn import Range, shape
from cnncc.dialects.onnx import NodeOp
from cnncc.dialects.weights import element_dtype
from cnncc.errors import Refusal, Refusals, plural, refusals_of
from cnncc.eval.cnn import joined, windows
from cnncc.eval.onnx import Evaluator
from cnncc.main_function import input_names, main_arguments, main_function, returned
from cnncc.numerics import Ints
from cnncc.passes._onnx.builder import image_dims
from cnncc.passes._onnx.calibration import Scale, write_ranges
from cnncc.passes._onnx.layers import ConvLayer, PoolLayer, is_tensor_of
from cnncc.passes._onnx.placement import Placement, place_nodes
from cnncc.passes._onnx.quantised_lowering import scale_of
from cnncc.passes._onnx.scale_groups import saturates_at_reader
from cnncc.quant.split import Doubles, MeasuredUse, choose_top
from cnncc.util.npz import array_of, noise
from cnncc.weights import Array, WeightStore
from cnncc.window import Window

SAMPLE_LIMIT = 100  # samples that are run, of any number given
RANDOM_VALUES = 100_000  # random values are enough to see the range of each layer's results
POSITION_LIMIT = 256  # output positions measured per layer
CHANNEL_LIMIT = 64  # output channels measured per layer

RANDOM_INPUTS = "calibrated with random inputs: useful values need samples (--calibrate X.npz); cycles do not"

Feeds = dict[str, Array]


def calibrate(
    module: ModuleOp,
    store: WeightStore,
    data: Mapping[str, Array] | None,
    operand_bits: int,
    psum_bits: int,
    seed: int = 0,
) -> list[str]:
    """Write `cnn.range` and `cnn.ranges` on an `onnx` module; returns warnings.

    data: samples by input name, along the leading dim; None: they are drawn. Values that share integers get one
    `top`, chosen by measured error. A quantised model needs no ranges. It is run once if the host has a part, to refuse
    a model that onnxruntime cannot run.
    Raises: Refusal, for data that is not finite or differs from the inputs in name, shape or type; for a model that
    cannot run.
    """
    placement = place_nodes(module, store)
    names = input_names(module)
    types = {name: value.type for name, value in zip(names, main_arguments(module), strict=True)}
    rng = np.random.default_rng(seed)
    feeds = _random_feeds(types, rng) if data is None else _feeds(types, data)
    if not placement.needs_ranges:
        if placement.reasons:
            Evaluator(module, store, returned(module)).run(feeds[0])
        useless = data is not None and placement.layers
        return ["the calibration data has no effect: the model is quantised already"] if useless else []
    seen = _Observed(placement, rng, max(1, POSITION_LIMIT // len(feeds)))
    session = Evaluator(module, store, seen.observed)
    for feed in feeds:
        seen.record(session.run(feed))
    ranges = seen.ranges(operand_bits, psum_bits)
    write_ranges(module, ranges)
    if data is None:
        return [RANDOM_INPUTS, *_vanishing(ranges)]
    return [*_saturated(module, store, seen.beyond(ranges, operand_bits), feeds), *_vanishing(ranges)]


def assume_ranges(module: ModuleOp, top: int) -> None:
    """Write ranges on an `onnx` module without running it: all values have integers within -top..top.

    For what depends on no value, as cycles.
    """
    block = main_function(module).body.block
    values = [*block.args, *(result for op in block.ops for result in op.results)]
    write_ranges(module, dict.fromkeys(values, Range(-1.0, 1.0, top)))


def samples(module: ModuleOp, data: Mapping[str, Array] | None, images: int, seed: int = 0) -> Feeds:
    """The first `images` samples, in whole batches, that `calibrate` uses for the same arguments."""
    types = dict(zip(input_names(module), (value.type for value in main_arguments(module)), strict=True))
    feeds = _random_feeds(types, np.random.default_rng(seed)) if data is None else _feeds(types, data)
    batch = max((_batch(shape(kind)) for kind in types.values()), default=1)
    chosen = feeds[: -(-images // batch)]
    return {name: joined([feed[name] for feed in chosen]) for name in types}


def _saturated(
    module: ModuleOp, store: WeightStore, beyond: Mapping[SSAValue, Scale], feeds: Sequence[Feeds]
) -> list[str]:
    """Warnings for the values `beyond` their scales, with the share that saturates."""
    if not beyond:
        return []
    session = Evaluator(module, store, list(beyond))
    shares = [
        [scale.outside(array) for array, scale in zip(session.run(feed), beyond.values(), strict=True)]
        for feed in feeds
    ]
    warnings: list[str] = []
    for value, share in zip(beyond, np.mean(shares, axis=0), strict=True):
        lo, hi = beyond[value].limits
        outside = f"{100 * share:.3g} % of its values lie outside {lo:.4g}..{hi:.4g}"
        warnings.append(f"calibration data saturates at {_place(value)}: {outside}")
    return warnings


def _vanishing(ranges: Mapping[SSAValue, Range]) -> list[str]:
    """A warning for values that are too small for a scale, though not all 0."""
    greatest = {value: max(abs(known.lo), abs(known.hi)) for value, known in ranges.items()}
    tiny = [value for value, most in greatest.items() if most and not Scale.of(ranges[value]).integer(most)]
    if not tiny:
        return []
    others = f" and {plural(len(tiny) - 1, 'other value')}" if tiny[1:] else ""
    most = f"no value is above {greatest[tiny[0]]:.3g}, so all integers are 0"
    return [f"values are too small at {_place(tiny[0])}{others}: {most}: scale the weights or the inputs"]


def _place(value: SSAValue) -> str:
    return value.owner.label() if isinstance(value.owner, NodeOp) else f"input '{value.name_hint}'"


def _batch(dims: tuple[int, ...]) -> int:
    return dims[0] if dims else 1


def _random_feeds(types: Mapping[str, Attribute], rng: np.random.Generator) -> list[Feeds]:
    """Seeded inputs: N(0, 1) for floats, any values for bytes, and zeros for other types. Small ones up to ten times.

    Bytes are mostly images. Wider integers may be positions, of which few lie inside a tensor.
    """
    largest = max((_batch(shape(kind)) for kind in types.values()), default=1)
    values = max((prod(shape(kind)) for kind in types.values()), default=1)
    rounds = min(10, max(1, SAMPLE_LIMIT // max(1, largest)), max(1, RANDOM_VALUES // max(1, values)))
    return [{name: _random(kind, rng) for name, kind in types.items()} for _ in range(rounds)]


def _random(kind: Attribute, rng: np.random.Generator) -> Array:
    dtype = _dtype(kind)
    if dtype.kind == "f":
        return noise(shape(kind), "float32", rng).astype(dtype)
    return noise(shape(kind), dtype.name, rng) if dtype.name in ("int8", "uint8") else np.zeros(shape(kind), dtype)


def _dtype(kind: Attribute) -> np.dtype[np.generic]:
    try:
        return element_dtype(cast("TensorType[Attribute]", kind).element_type)
    except (KeyError, AttributeError) as error:
        raise Refusal(f"inputs of type {kind} cannot be calibrated") from error


def _feeds(types: Mapping[str, Attribute], data: Mapping[str, Array]) -> list[Feeds]:
    """`data` cut into batches; the last one is filled up from the start. Raises Refusal for data that does not fit."""
    counts, arrays = set[int](), dict[str, Array]()
    refusals = Refusals()
    for name, kind in types.items():
        with refusals.kept(f"input '{name}'"):
            arrays[name] = _in_type(_given(data, name), _dtype(kind))
            counts.add(_sample_count(name, kind, arrays[name]))
    refusals.raise_any("calibration data")
    if len(counts) > 1:
        raise Refusal(f"calibration data: the inputs have different numbers of batches: {sorted(counts)}")
    return [
        {name: _part(arrays[name], shape(kind), index) for name, kind in types.items()}
        for index in range(max(counts, default=1))
    ]


def _given(data: Mapping[str, Array], name: str) -> Array:
    with refusals_of("calibration data"):
        return array_of(data, name)


def _in_type(array: Array, dtype: np.dtype[np.generic]) -> Array:
    """Reals of another precision are rounded, as `run` does with them."""
    if not array.dtype.kind == dtype.kind == "f":
        return array
    with np.errstate(over="ignore"):  # what is too large is infinite then, and refused
        return array.astype(dtype, copy=False)


def _sample_count(name: str, kind: Attribute, array: Array) -> int:
    """The number of batches in `array`, of whose samples at most `SAMPLE_LIMIT` are used. Raises Refusal."""
    dims, dtype = shape(kind), _dtype(kind)
    if array.dtype != dtype:
        raise Refusal(f"calibration data: '{name}' has type {array.dtype}, the input has {dtype}")
    if array.ndim != len(dims) or array.shape[1:] != dims[1:] or not array.size:
        wanted = ", ".join(["1 or more", *map(str, dims[1:])]) if dims else ""
        raise Refusal(f"calibration data: '{name}' has shape {list(array.shape)}, expected [{wanted}]")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise Refusal(f"calibration data: '{name}' has values that are not finite (NaN or infinity)")
    samples = min(len(array) if array.ndim else 1, max(SAMPLE_LIMIT, _batch(dims)))
    return -(-samples // _batch(dims))


def _part(array: Array, dims: tuple[int, ...], index: int) -> Array:
    if not dims:
        return array
    return array[np.arange(index * dims[0], (index + 1) * dims[0]) % len(array)]


def _rows(layer: ConvLayer, channels: Ints) -> Doubles:
    """The weights [len(channels), c·r·s] of these output channels for all input channels: 0 for other groups'."""
    k, *terms = layer.weights.shape
    rows = np.zeros((len(channels), layer.window.group, prod(terms)))
    own = channels // (k // layer.window.group)
    rows[np.arange(len(channels)), own] = layer.weights[channels].reshape(len(channels), -1)
    return rows.reshape(len(channels), -1)


class _Observed:
    """The least and greatest of every float value, and patches of each layer's inputs."""

    def __init__(self, placement: Placement, rng: np.random.Generator, positions: int) -> None:
        self.placement = placement
        self.rng = rng
        self.positions = positions
        reals = [value for value in placement.values if is_tensor_of(value, f32)]
        self.values: list[SSAValue] = [value for value in reals if placement.known(value) is None]
        # Also what the array takes from outside in scales of the model's own: whether it saturates.
        taken = [value for value in reals if value.owner not in placement.layers and placement.is_quantised(value)]
        self.observed = list(dict.fromkeys([*self.values, *taken]))
        self.lo = dict.fromkeys(self.observed, float("inf"))
        self.hi = dict.fromkeys(self.observed, float("-inf"))
        self.readers = {value: list(self._readers(value)) for value in self.observed}
        self.patches: dict[tuple[NodeOp, SSAValue], list[Doubles]] = {}

    def record(self, arrays: Sequence[Array]) -> None:
        """Add the values of one batch. Raises Refusal for a value that is not finite."""
        for value, array in zip(self.observed, arrays, strict=True):
            if not np.isfinite(array).all():
                owner = value.owner.label() if isinstance(value.owner, NodeOp) else "an input"
                raise Refusal(f"calibration: {owner} gives values that are not finite (NaN or infinity)")
            self.lo[value] = min(self.lo[value], float(array.min()))
            self.hi[value] = max(self.hi[value], float(array.max()))
            for node in self.readers[value]:
                self.patches.setdefault((node, value), []).append(self.sample(node, array))

    def _readers(self, value: SSAValue) -> Iterator[NodeOp]:
        """The layers whose error the scale of `value` causes."""
        if self.placement.known(value) is not None:
            return
        for node in dict.fromkeys(use.operation for use in value.uses):
            layer = self.placement.layers.get(node) if isinstance(node, NodeOp) else None
            if layer is not None and node not in self.placement.scale_keepers:
                yield cast(NodeOp, node)

    def sample(self, node: NodeOp, array: Array) -> Doubles:
        """Patches [p, i] of `array`, an operand of `node`."""
        layer = self.placement.layers[node]
        window = layer.window if isinstance(layer, ConvLayer) else Window((1, 1))
        view = windows(array.reshape(image_dims(array.shape)), window).transpose(0, 2, 3, 1, 4, 5)
        count = view.shape[0] * view.shape[1] * view.shape[2]
        chosen = np.sort(self.rng.permutation(count)[: self.positions])
        n, h, w = np.unravel_index(chosen, view.shape[:3])
        return view[n, h, w].reshape(len(chosen), -1).astype(np.float64)

    def use(self, node: NodeOp, value: SSAValue) -> MeasuredUse:
        """The samples of `node`'s operand `value`, as `choose_top` measures them."""
        patches = np.concatenate(self.patches[node, value])
        match self.placement.layers[node]:
            case ConvLayer() as layer:
                channels = np.arange(0, len(layer.bias), -(-len(layer.bias) // CHANNEL_LIMIT))
                return MeasuredUse(patches, _rows(layer, channels), layer.bias[channels].astype(np.float64))
            case PoolLayer() as layer:
                return MeasuredUse(patches, terms=layer.window.kernel[0] * layer.window.kernel[1])
            case _:
                return MeasuredUse(patches)

    def ranges(self, operand_bits: int, psum_bits: int) -> dict[SSAValue, Range]:
        """The ranges of all values; values that share integers have one top."""
        uses: dict[SSAValue, list[MeasuredUse]] = {value: [] for value in self.values}
        for node, value in self.patches:
            uses[self.placement.root(value)].append(self.use(node, value))
        of_root: dict[SSAValue, Range] = {}
        for root in dict.fromkeys(self.placement.root(value) for value in self.values):
            lo, hi = self.extremes(root)
            of_root[root] = Range(lo, hi, choose_top(max(abs(lo), abs(hi)), uses[root], operand_bits, psum_bits))
        return {value: self.range(value, of_root[self.placement.root(value)]) for value in self.values}

    def beyond(self, ranges: Mapping[SSAValue, Range], operand_bits: int) -> dict[SSAValue, Scale]:
        """The scales of the values on the array that go beyond them, except values without a range of their own."""
        exceeded: dict[SSAValue, Scale] = {}
        for value in self.observed:
            codes, made = self.placement.known(value), self.placement.last(self.placement.root(value))
            scale = scale_of(codes, operand_bits) if codes else Scale.of(ranges[made])
            extremes = np.array([self.lo[value], self.hi[value]])
            if self.placement.is_quantised(value) and not saturates_at_reader(value, self.placement.layers):
                exceeded |= {value: scale} if scale.outside(extremes) else {}
        return exceeded

    def extremes(self, value: SSAValue) -> tuple[float, float]:
        """The least and greatest of all values that share integers with `value`."""
        last = [self.placement.last(maker) for maker in self.placement.groups.makers(value)]
        return min(self.lo[maker] for maker in last), max(self.hi[maker] for maker in last)

    def range(self, value: SSAValue, group: Range) -> Range:
        """The range of `value`. A concatenation and its inputs have the group's range, as they share one scale."""
        joined = self.placement.groups.is_joined(value)
        return group if joined else Range(self.lo[value], self.hi[value], group.top)
