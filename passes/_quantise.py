"""The lowering of `onnx-to-cnn`: emits the `cnn` ops for the layers of a placement. No pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    TensorType,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from cnncc.dialects.cnn import (
    BiasOp,
    ClampOp,
    ConvOp,
    HostOp,
    PoolOp,
    Quant,
    QuantAttr,
    RequantOp,
    ReshapeOp,
    Steps,
    StepsAttr,
    Window,
    WindowAttr,
    element_bits,
    shape,
)
from cnncc.dialects.onnx import NodeOp, text_attr
from cnncc.dialects.weights import GlobalOp, RefAttr, tensor_type
from cnncc.errors import Refusal, Refusals
from cnncc.frontend.export_onnx import export_nodes, input_names, main_arguments, main_function, output_names, returned
from cnncc.frontend.macs import module_macs
from cnncc.numerics import Floats, Ints, integer_range
from cnncc.passes._calibration import Scale, take_ranges
from cnncc.passes._integer_lowering import lower_quantize, lower_sum, lower_sum_of_two, scale_of
from cnncc.passes._labels import Labels
from cnncc.passes._layer_lowering import checked, lower_activation, lower_add, lower_concat, lower_mean, lower_shuffle
from cnncc.passes._onnx_layers import (
    AddLayer,
    ClampLayer,
    ConcatLayer,
    ConvLayer,
    LeakyLayer,
    PoolLayer,
    ReshapeLayer,
    ShuffleLayer,
)
from cnncc.passes._placement import Segment, place, segments, stages
from cnncc.passes._quantised_layers import (
    AnyLayer,
    DequantizeLayer,
    QuantizeLayer,
    SumLayer,
    SumOfTwoLayer,
    codes_of,
)
from cnncc.passes._scale_groups import leaky_after
from cnncc.quant.split import narrowed_channels, psum_need, quantise_layer
from cnncc.weights import Array, WeightStore

Dims = tuple[int, ...]


def image_dims(dims: Dims) -> Dims:
    """n c h w for a tensor of any rank, in the same order of elements."""
    padded = dims + (1,) * (4 - len(dims))
    return (*padded[:3], int(np.prod(padded[3:])))


def base_of(value: SSAValue) -> SSAValue:
    """What `value` is a reshape of, or itself."""
    return value.owner.x if isinstance(value.owner, ReshapeOp) else value


class Lowering:
    """Replaces an `onnx` module by its `cnn` form. `values`, `scales` and the like are of the old graph."""

    def __init__(self, module: ModuleOp, store: WeightStore, operand_bits: int, psum_bits: int) -> None:
        self.module = module
        self.store = store
        self.operand_bits = operand_bits
        self.psum_bits = psum_bits
        self.operand = IntegerType(8 if operand_bits <= 8 else 16)
        self.psum = IntegerType(psum_bits)
        self.placement = place(module, store)
        self.ranges = take_ranges(module)
        self.names = Labels()
        nodes = [op for op in self.placement.block.ops if isinstance(op, NodeOp)]
        self.labels = {node: self.names.of(node, index) for index, node in enumerate(nodes)}
        self.order = {node: index for index, node in enumerate(nodes)}
        self.values: dict[SSAValue, SSAValue] = {}
        self.scales: dict[SSAValue, Scale] = {}
        self.weight_scales: dict[NodeOp, Floats] = {}  # f32[k]
        self.narrowed: dict[NodeOp, int] = {}  # channels with coarser weights than operands allow, for their psums
        self.globals: list[GlobalOp] = []
        self.block = Block()

    def run(self) -> None:
        """Lower stage by stage, then put the new function in the place of the old one."""
        for value in main_arguments(self.module):
            self.argument(value)
        stage, hosts = stages(self.placement), segments(self.placement)
        refusals = Refusals()
        for level in range(1 + max([0, *stage.values()])):
            for node, layer in self.placement.layers.items():
                if stage[node] == level:
                    with refusals.kept(self.labels[node]):
                        result = self.layer(node, layer, self.labels[node])
                        dims = shape(node.results[0].type)
                        self.values[node.results[0]] = self.reshape(result, dims, f"{self.labels[node]}.out")
                    self.stand_in(node.results[0])
            if level in hosts:
                self.host(hosts[level])
        refusals.raise_any("onnx-to-cnn")
        self.replace()

    def stand_in(self, value: SSAValue) -> None:
        """What the layers after one that was refused read, so that these can be looked at, too."""
        if value not in self.values:
            self.values[value] = self.emit(ClampOp, [], self.operand, shape(value.type), "", {})
            self.scales.setdefault(value, Scale(1.0, -1, 1))

    # Building blocks.

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
        ref = RefAttr(StringAttr(self.store.add(array)))
        properties = {"sym_name": StringAttr(name), "value": ref, "type": tensor_type(array)}
        self.globals.append(GlobalOp.create(properties=properties))
        return name

    def scale(self, value: SSAValue, name: str) -> Scale:
        """Give `value` its scale: that of the model, or that of calibration. Raises Refusal where it has none."""
        codes = codes_of(value.type) or self.placement.known(value)
        self.scales[value] = scale_of(codes, self.operand_bits) if codes else self.calibrated(value, name)
        return self.scales[value]

    def calibrated(self, value: SSAValue, name: str) -> Scale:
        """The scale that calibration chose. Raises Refusal where it did not, or for other integers."""
        found = self.ranges.get(self.placement.last(value))
        if found is None:
            raise Refusal(f"'{name}' has no calibrated range (#cnn.range): calibrate the model first")
        limit = integer_range(self.operand_bits)[1]
        if found.top > limit:
            raise Refusal(
                f"'{name}' is calibrated for ±{found.top}, operands of {self.operand_bits} bits reach ±{limit}"
            )
        return Scale.of(found)

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
        """The lowered `value` with any four dims, for what works element by element."""
        source = base_of(self.values[value])
        return source if len(shape(source.type)) == 4 else self.nchw(value, label)

    def nchw(self, value: SSAValue, label: str) -> SSAValue:
        """The lowered `value` with its own dims as n c h w; those that it lacks are 1."""
        return self.shaped(value, image_dims(shape(value.type)), label)

    def products(self, source: SSAValue, weights: Ints, window: Window, label: str) -> SSAValue:
        """The sums of a convolution of an image with weights [k, c / group, r, s], which are words."""
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

    # The graph.

    def argument(self, value: SSAValue) -> None:
        quantised = self.placement.is_quantised(value)
        new_type = TensorType(self.operand, shape(value.type)) if quantised else value.type
        argument = self.block.insert_arg(new_type, len(self.block.args))
        argument.name_hint = value.name_hint
        self.values[value] = argument
        if quantised:
            self.scale(value, value.name_hint or "input")

    def layer(self, node: NodeOp, layer: AnyLayer, label: str) -> SSAValue:
        """The result of `node`, not yet in the graph's shape."""
        x, y = node.operands[0], node.results[0]
        match layer:
            case ConvLayer():
                self.scale(y, label)
                return self.conv(node, layer, label)
            case PoolLayer(kind="sum"):
                self.scale(y, label)
                return lower_mean(self, node, layer, label)
            case AddLayer():
                self.scale(y, label)
                return lower_add(self, node, label)
            case SumLayer():
                self.scale(y, label)
                return lower_sum(self, node, layer, label)
            case SumOfTwoLayer():
                self.scale(y, label)
                return lower_sum_of_two(self, node, layer, label)
            case QuantizeLayer():
                self.scale(y, label)
                return lower_quantize(self, node, layer, label)
            case DequantizeLayer():  # the same integers, as the numbers that they stand for
                self.scale(y, label)
                return self.values[x]
            case ConcatLayer():
                return lower_concat(self, node, label)
            case ClampLayer() if node not in self.placement.keeping:
                return lower_activation(self, node, label, (layer.lo, layer.hi))
            case LeakyLayer() if node not in self.placement.keeping:
                return lower_activation(self, node, label, slope=layer.slope)
            case _:
                self.scales[y] = self.scales[x]
        match layer:
            case PoolLayer():
                return self.pool("max", x, layer.window, self.operand, label)
            case ClampLayer():
                return self.clamp(x, layer, label)
            case LeakyLayer():  # it is computed with the sum that it reads
                return self.values[x]
            case ShuffleLayer():
                return lower_shuffle(self, node, layer, label)
            case ReshapeLayer():
                return self.shaped(x, shape(y.type), label)

    def conv(self, node: NodeOp, layer: ConvLayer, label: str) -> SSAValue:
        x, y = node.operands[0], node.results[0]
        source, x_scale = self.nchw(x, f"{label}.in"), self.scales[x]
        bits = self.operand_bits, self.psum_bits
        try:
            ints = quantise_layer(layer.weights, layer.bias, x_scale.scale, x_scale.reach, *bits)
        except Refusal as refusal:
            raise Refusal(f"'{label}': {refusal}") from refusal
        self.weight_scales[node] = ints.scale
        self.narrowed[node] = narrowed_channels(layer.weights, ints, self.operand_bits)
        assert psum_need(ints, x_scale.reach).max() <= integer_range(self.psum_bits)[1]
        window = replace(layer.window, fill=x_scale.zero, zero=x_scale.zero)
        sums = self.products(source, ints.weights, window, label)
        if ints.bias.any():
            sums = self.bias(sums, ints.bias, label)
        multipliers = np.float32(x_scale.scale) * ints.scale / np.float32(self.scales[y].scale)
        return self.finish(sums, multipliers, y, label)

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
        """A requantisation by multipliers f32[k], or f32[h, w]; `final` is the label of its result.

        clamp: the least and the greatest result, if not those of the scale.
        """
        scale, per_position = self.symbol(f"{label}.q", checked(multipliers, label)), multipliers.ndim == 2
        clamp = clamp or y_scale.clamp
        steps = Steps(scale=scale, per_position=per_position, zero=y_scale.zero, clamp=clamp, slope=slope)
        final = final or f"{label}.requant"
        return self.emit(RequantOp, [sums], self.operand, shape(sums.type), final, {"by": StepsAttr(steps)})

    def finish(self, sums: SSAValue, multipliers: Floats, y: SSAValue, label: str) -> SSAValue:
        """The result `y` of some sums; at once that of a LeakyRelu after it, so that its product is rounded once."""
        if (leaky := leaky_after(y, self.placement.layers)) is None:
            return self.requant(sums, multipliers, self.scales[y], label)
        node, layer = leaky
        return self.requant(sums, multipliers, self.scales[y], label, self.labels[node], layer.slope)

    def pool(self, kind: str, x: SSAValue, window: Window, element: IntegerType, label: str) -> SSAValue:
        if kind == "max":
            window = replace(window, fill=integer_range(element_bits(self.values[x].type))[0])
        else:
            window = replace(window, fill=self.scales[x].zero, zero=self.scales[x].zero)
        return self.pooled(kind, self.shaped(x, shape(x.type), f"{label}.in"), window, element, label)

    def clamp(self, x: SSAValue, layer: ClampLayer, label: str) -> SSAValue:
        source, steps = self.image(x, f"{label}.in"), Steps(clamp=self.scales[x].within(layer.lo, layer.hi))
        return self.emit(ClampOp, [source], self.operand, shape(source.type), label, {"by": StepsAttr(steps)})

    def images(self, values: Sequence[SSAValue], dims: Dims, label: str) -> list[SSAValue]:
        """The lowered `values` of equal shape `dims`, with the same four dims."""
        names = [f"{label}.in", f"{label}.in2"]
        sources = [self.image(value, name) for value, name in zip(values, names, strict=True)]
        if len({shape(source.type) for source in sources}) == 1:
            return sources
        return [self.shaped(value, image_dims(dims), name) for value, name in zip(values, names, strict=True)]

    def host(self, segment: Segment) -> None:
        """A segment as ONNX bytes in the weight store."""
        model = export_nodes(segment.nodes, segment.inputs, segment.outputs, self.module, self.store)
        data = np.frombuffer(model.SerializeToString(deterministic=True), np.uint8)
        label = self.labels[segment.nodes[-1]] if segment.nodes else self.names.free("constants")
        for value in segment.outputs:
            if self.placement.is_quantised(value):
                self.scale(value, label)
        properties: dict[str, Attribute] = {
            "model": RefAttr(StringAttr(self.store.add(data))),
            "reason": StringAttr(segment.reason.encode("ascii", "backslashreplace").decode()),
            "label": StringAttr(label),
            "input_quants": ArrayAttr([self.quant(value) for value in segment.inputs]),
            "output_quants": ArrayAttr([self.quant(value) for value in segment.outputs]),
        }
        op = HostOp.create(
            operands=[self.values[value] for value in segment.inputs],
            properties=properties,
            result_types=[self.host_type(value) for value in segment.outputs],
        )
        self.block.add_op(op)
        self.values.update(zip(segment.outputs, op.results, strict=True))

    def host_type(self, value: SSAValue) -> Attribute:
        return TensorType(self.operand, shape(value.type)) if value in self.scales else value.type

    def replace(self) -> None:
        """Put the new function and its weights into the module."""
        results = [self.values[value] for value in returned(self.module)]
        self.block.add_op(ReturnOp(*results))
        for op in reversed(list(self.block.ops)):
            if isinstance(op, ReshapeOp) and op.result.first_use is None:
                op.detach()
                op.erase()
        func = FuncOp(
            "main",
            FunctionType.from_lists(self.block.arg_types, [result.type for result in results]),
            Region(self.block),
            arg_attrs=self.named(input_names(self.module), main_arguments(self.module)),
            res_attrs=self.named(output_names(self.module), returned(self.module)),
        )
        counted = module_macs(self.module)
        main_function(self.module).detach()
        self.module.body.block.add_ops([*self.globals, func])
        self.module.attributes = {
            "cnn.macs_total": IntegerAttr(counted, i64),
            "cnn.operand_bits": IntegerAttr(self.operand_bits, i64),
            "cnn.psum_bits": IntegerAttr(self.psum_bits, i64),
        }

    def named(self, names: Iterable[str], values: Iterable[SSAValue]) -> ArrayAttr[DictionaryAttr]:
        """`onnx.name`, and `cnn.quant` where there are integers."""
        return ArrayAttr(
            [
                DictionaryAttr(
                    {"onnx.name": text_attr(name)} | ({"cnn.quant": self.quant(value)} if value in self.scales else {})
                )
                for name, value in zip(names, values, strict=True)
            ]
        )
