"""Emits ops of the `cnn` dialect one by one, with a table of the emitted values. No pass: for `onnx-to-cnn`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from xdsl.dialects.builtin import IntegerType, ModuleOp, StringAttr, SymbolRefAttr, TensorType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from cnncc.dialects.cnn import (
    AddOp,
    BiasOp,
    ConvOp,
    PoolOp,
    Quant,
    QuantAttr,
    RequantOp,
    ReshapeOp,
    Steps,
    StepsAttr,
    WindowAttr,
    element_bits,
    shape,
)
from cnncc.dialects.onnx import NodeOp
from cnncc.dialects.weights import GlobalOp, new_global
from cnncc.errors import Refusal
from cnncc.numerics import Floats, Ints, integer_range
from cnncc.passes._onnx.calibration import Scale, scale_of, take_ranges
from cnncc.passes._onnx.codes import are_normal, codes_of
from cnncc.passes._onnx.functions import FunctionLayer
from cnncc.passes._onnx.labels import Labels
from cnncc.passes._onnx.placement import place_nodes
from cnncc.passes._onnx.scale_groups import leaky_after
from cnncc.weights import Array, WeightStore
from cnncc.window import Window

Dims = tuple[int, ...]


def image_dims(dims: Dims) -> Dims:
    """n c h w for a tensor of any rank, in the same order of elements."""
    padded = dims + (1,) * (4 - len(dims))
    return (*padded[:3], int(np.prod(padded[3:])))


def base_of(value: SSAValue) -> SSAValue:
    """The value that `value` is a reshape of, or `value` itself."""
    # One step is enough: no reshape is made of a reshape.
    return value.owner.x if isinstance(value.owner, ReshapeOp) else value


class CnnBuilder:
    """The `cnn` form of an `onnx` module while it is built. Keys of its tables are values of the `onnx` graph."""

    def __init__(self, module: ModuleOp, store: WeightStore, operand_bits: int, psum_bits: int) -> None:
        self.module = module
        self.store = store
        self.operand_bits = operand_bits
        self.psum_bits = psum_bits
        # Tensors have integers of 8 or 16 bits. Operands of other widths keep to their own range by their scales.
        self.operand = IntegerType(8 if operand_bits <= 8 else 16)
        self.psum = IntegerType(psum_bits)
        self.placement = place_nodes(module, store)
        self.ranges = take_ranges(module)
        self.names = Labels()
        nodes = [op for op in self.placement.block.ops if isinstance(op, NodeOp)]
        self.labels = {node: self.names.of(node, index) for index, node in enumerate(nodes)}
        self.order = {node: index for index, node in enumerate(nodes)}
        self.values: dict[SSAValue, SSAValue] = {}
        self.scales: dict[SSAValue, Scale] = {}
        self.weight_scales: dict[NodeOp, Floats] = {}  # f32[k]
        self.narrowed: dict[NodeOp, int] = {}  # channels with coarser weights than operands allow, so that psums fit
        self.coarser: dict[SSAValue, float] = {}  # by how much a scale is, for kinks of a function
        self.entries_apart: dict[NodeOp, int] = {}  # integers from one entry of a function's table to the next
        self.globals: list[GlobalOp] = []
        self.block = Block()

    def emit(
        self,
        kind: type[Operation],
        operands: Sequence[SSAValue],
        element: Attribute,
        dims: Dims,
        label: str,
        properties: Mapping[str, Attribute],
    ) -> SSAValue:
        """Append an op with one result, a tensor of `element`s."""
        named = {**properties, "label": StringAttr(label)}
        op = kind.create(operands=operands, properties=named, result_types=[TensorType(element, dims)])
        self.block.add_op(op)
        return op.results[0]

    def symbol(self, name: str, array: Array) -> str:
        """Keep `array` under the symbol `name`."""
        self.globals.append(new_global(name, array, self.store))
        return name

    def scale(self, value: SSAValue, name: str) -> Scale:
        """Give `value` its scale, from the model or from calibration. Raises Refusal if there is none."""
        codes = codes_of(value.type) or self.placement.known(value)
        self.scales[value] = scale_of(codes, self.operand_bits) if codes else self.calibrated(value, name)
        return self.scales[value]

    def calibrated(self, value: SSAValue, name: str) -> Scale:
        """The scale chosen by calibration. Raises Refusal if there is none, or if it is for wider integers."""
        known = self.ranges.get(self.placement.last(value))
        if known is None:
            raise Refusal(f"'{name}' has no calibrated range (#cnn.range): calibrate the model first")
        limit = integer_range(self.operand_bits)[1]
        if known.top > limit:
            fits = f"operands of {self.operand_bits} bits reach ±{limit}"
            raise Refusal(f"'{name}' is calibrated for ±{known.top}, {fits}: calibrate again, before onnx-to-cnn")
        return self._with_kinks(value, Scale.of(known))

    def _with_kinks(self, value: SSAValue, scale: Scale) -> Scale:
        """A scale at which the table of a function of `value` has entries at its kinks; it may be a little coarser.

        That of the function's result then is as much coarser, so that no more results saturate. A concatenation has one
        scale for all its operands, whoever reads it.
        """
        if self.placement.groups.is_joined(value):
            return scale
        owner, uses = value.owner, self.placement.last(value).uses
        if isinstance(owner, NodeOp) and isinstance(self.placement.layers.get(owner), FunctionLayer):
            by = self.coarser.get(self.placement.root(owner.operands[0]), 1.0)
            scale = replace(scale, scale=scale.scale * by)
        readers = (self.placement.layers.get(use.operation) for use in uses if isinstance(use.operation, NodeOp))
        if (reader := next((layer for layer in readers if isinstance(layer, FunctionLayer)), None)) is None:
            return scale
        finer, scale = scale, reader.operand(scale)
        self.coarser[self.placement.root(value)] = scale.scale / finer.scale
        return scale

    def quant(self, value: SSAValue) -> QuantAttr:
        if value not in self.scales:
            return QuantAttr(Quant(0.0))
        codes = codes_of(value.type)
        return self.scales[value].attr(codes.element if codes else "float32")

    def reshape(self, source: SSAValue, dims: Dims, label: str) -> SSAValue:
        if shape(source.type) == dims:
            return source
        return self.emit(ReshapeOp, [source], self.operand, dims, label, {})

    def shaped(self, value: SSAValue, dims: Dims, label: str) -> SSAValue:
        """The lowered `value` with shape `dims`, past any reshape of it."""
        return self.reshape(base_of(self.values[value]), dims, label)

    def image(self, value: SSAValue, label: str) -> SSAValue:
        """The lowered `value` with any four dims, for elementwise ops."""
        source = base_of(self.values[value])
        return source if len(shape(source.type)) == 4 else self.nchw(value, label)

    def nchw(self, value: SSAValue, label: str) -> SSAValue:
        """The lowered `value` with its own dims as n c h w; missing ones are 1."""
        return self.shaped(value, image_dims(shape(value.type)), label)

    def products(self, source: SSAValue, weights: Ints, window: Window, label: str) -> SSAValue:
        """The sums of a convolution of an image with weights [k, c / group, r, s], which must fit words."""
        element = np.int8 if self.operand.width.data == 8 else np.int16
        symbol = SymbolRefAttr(self.symbol(f"{label}.w", weights.astype(element)))
        n, _, ih, iw = shape(source.type)
        properties = {"weights": symbol, "window": WindowAttr(window)}
        return self.emit(ConvOp, [source], self.psum, (n, len(weights), *window.output(ih, iw)), label, properties)

    def pooled(self, kind: str, source: SSAValue, window: Window, element: IntegerType, label: str) -> SSAValue:
        """The maxima, or the sums, over the windows of an image."""
        n, k, ih, iw = shape(source.type)
        properties = {"kind": StringAttr(kind), "window": WindowAttr(window)}
        return self.emit(PoolOp, [source], element, (n, k, *window.output(ih, iw)), label, properties)

    def bias(self, sums: SSAValue, bias: Ints, label: str) -> SSAValue:
        symbol = SymbolRefAttr(self.symbol(f"{label}.b", bias.astype(np.int32)))
        return self.emit(BiasOp, [sums], self.psum, shape(sums.type), f"{label}.bias", {"bias": symbol})

    def requant(
        self,
        sums: SSAValue,
        multipliers: Floats,
        y_scale: Scale,
        label: str,
        final: str = "",
        slope: float = 1.0,
        clamp: tuple[int, int] | None = None,
    ) -> SSAValue:
        """A requantisation by multipliers f32[k], or f32[h, w].

        final: the label of the result, by default `label`.requant. clamp: (least, greatest), by default the scale's.
        """
        scale, per_position = self.symbol(f"{label}.q", checked(multipliers, label)), multipliers.ndim == 2
        clamp = clamp or y_scale.clamp
        steps = Steps(scale=scale, per_position=per_position, zero=y_scale.zero, clamp=clamp, slope=slope)
        final = final or f"{label}.requant"
        return self.emit(RequantOp, [sums], self.operand, shape(sums.type), final, {"by": StepsAttr(steps)})

    def finish(self, sums: SSAValue, multipliers: Floats, y: SSAValue, label: str) -> SSAValue:
        """The requantised result `y` of sums. A LeakyRelu after it is included, so that its product is rounded once."""
        if (leaky := leaky_after(y, self.placement.layers)) is None:
            return self.requant(sums, multipliers, self.scales[y], label)
        node, layer = leaky
        return self.requant(sums, multipliers, self.scales[y], label, self.labels[node], layer.slope)

    def pool(self, kind: str, x: SSAValue, window: Window, element: IntegerType, label: str) -> SSAValue:
        # Padding never is a maximum. In a sum it is the zero point, which is taken off again: the real number 0.
        if kind == "max":
            window = replace(window, fill=integer_range(element_bits(self.values[x].type))[0])
        else:
            window = replace(window, fill=self.scales[x].zero, zero=self.scales[x].zero)
        return self.pooled(kind, self.shaped(x, shape(x.type), f"{label}.in"), window, element, label)

    def sum_of_two(self, values: Sequence[SSAValue], factors: Floats, y: Scale, dims: Dims, label: str) -> SSAValue:
        """The rounded sum of two `values` of equal shape `dims` by factors f32[3]."""
        sources = self.images(values, dims, label)
        steps = Steps(factors=self.symbol(f"{label}.q", factors), add_clamp=y.clamp)
        return self.emit(AddOp, sources, self.operand, shape(sources[0].type), label, {"steps": StepsAttr(steps)})

    def images(self, values: Sequence[SSAValue], dims: Dims, label: str) -> list[SSAValue]:
        """The lowered `values` with four dims: the same, if all have shape `dims`; one may have one pixel a channel."""
        names = [f"{label}.in", f"{label}.in2"]
        if len({shape(value.type) for value in values}) > 1:
            return [self.nchw(value, name) for value, name in zip(values, names, strict=True)]
        sources = [self.image(value, name) for value, name in zip(values, names, strict=True)]
        # Images that are flattened before they are added are added as images: a reshape between a convolution and the
        # sum would keep the sum out of the convolution's epilogue.
        if len({shape(source.type) for source in sources}) == 1:
            return sources
        return [self.shaped(value, image_dims(dims), name) for value, name in zip(values, names, strict=True)]


def checked(multipliers: Floats, label: str) -> Floats:
    """`multipliers`, if they are normal numbers. Raises Refusal if not."""
    if not are_normal(multipliers):
        raise Refusal(f"'{label}': the ranges of its input, weights and result lie too far apart for f32 scales")
    return multipliers
