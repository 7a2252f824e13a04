"""The lowering of `onnx-to-cnn`: emits the `cnn` ops for the layers of a placement. No pass."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.rewriter import Rewriter

from cnncc.dialects.cnn import ClampOp, HostOp, ReshapeOp, shape
from cnncc.dialects.onnx import NodeOp, text_attr
from cnncc.dialects.weights import RefAttr
from cnncc.errors import Refusals
from cnncc.frontend.export_onnx import export_nodes
from cnncc.frontend.node_macs import module_macs
from cnncc.main_function import input_names, main_arguments, main_function, output_names, returned
from cnncc.passes._onnx.builder import CnnBuilder
from cnncc.passes._onnx.calibration import Scale
from cnncc.passes._onnx.functions import FunctionLayer
from cnncc.passes._onnx.layer_lowering import (
    lower_activation,
    lower_add,
    lower_clamp,
    lower_concat,
    lower_conv,
    lower_function,
    lower_mean,
    lower_mul,
    lower_pixels,
    lower_shuffle,
    lower_slice,
)
from cnncc.passes._onnx.layers import (
    AddLayer,
    ClampLayer,
    ConcatLayer,
    ConvLayer,
    LeakyLayer,
    MulLayer,
    PixelsLayer,
    PoolLayer,
    ReshapeLayer,
    ShuffleLayer,
    SliceLayer,
)
from cnncc.passes._onnx.placement import HostSegment, segments, stages
from cnncc.passes._onnx.quantised_layers import (
    AnyLayer,
    DequantizeLayer,
    ProductLayer,
    QuantizeLayer,
    SumLayer,
    SumOfTwoLayer,
)
from cnncc.passes._onnx.quantised_lowering import lower_product, lower_quantize, lower_sum, lower_sum_of_two
from cnncc.passes._onnx.scale_groups import moves_integers
from cnncc.weights import WeightStore


def lower(module: ModuleOp, store: WeightStore, operand_bits: int, psum_bits: int) -> CnnBuilder:
    """Replace an `onnx` module by its `cnn` form, stage by stage; returns the builder with its tables.

    Raises: Refusal, with all faults at once.
    """
    builder = CnnBuilder(module, store, operand_bits, psum_bits)
    for value in main_arguments(module):
        _lower_argument(builder, value)
    stage, hosts = stages(builder.placement), segments(builder.placement)
    refusals = Refusals()
    # What the host computes in a stage is read by layers of later stages alone (`placement.py`).
    for level in range(1 + max([0, *stage.values()])):
        for node, layer in builder.placement.layers.items():
            if stage[node] == level:
                label, value = builder.labels[node], node.results[0]
                with refusals.kept(label):
                    result = _lower_layer(builder, node, layer, label)
                    builder.values[value] = builder.reshape(result, shape(value.type), f"{label}.out")
                _stand_in(builder, value)
        if level in hosts:
            _lower_host(builder, hosts[level])
    refusals.raise_any("onnx-to-cnn")
    _replace(builder)
    return builder


def _stand_in(builder: CnnBuilder, value: SSAValue) -> None:
    """Give the result of a refused layer a placeholder, so that later layers are checked too."""
    if value not in builder.values:
        builder.values[value] = builder.emit(ClampOp, [], builder.operand, shape(value.type), "", {})
        builder.scales.setdefault(value, Scale(1.0, -1, 1))


def _lower_argument(builder: CnnBuilder, value: SSAValue) -> None:
    quantised = builder.placement.is_quantised(value)
    new_type = TensorType(builder.operand, shape(value.type)) if quantised else value.type
    argument = builder.block.insert_arg(new_type, len(builder.block.args))
    argument.name_hint = value.name_hint
    builder.values[value] = argument
    if quantised:
        builder.scale(value, value.name_hint or "input")


def _lower_layer(builder: CnnBuilder, node: NodeOp, layer: AnyLayer, label: str) -> SSAValue:
    """The result of `node`, not yet in the graph's shape."""
    x, y, keeps = node.operands[0], node.results[0], node in builder.placement.scale_keepers
    # The scale of the result. Activations that have one of their own are done here.
    match layer:
        case ConcatLayer():
            return lower_concat(builder, node, label)
        case ClampLayer() if not keeps:
            return lower_activation(builder, node, label, (layer.lo, layer.hi))
        case LeakyLayer() if not keeps:
            return lower_activation(builder, node, label, slope=layer.slope)
        case _ if moves_integers(layer):
            builder.scales[y] = builder.scales[x]
        case _:
            builder.scale(y, label)
    match layer:
        case ConvLayer():
            return lower_conv(builder, node, layer, label)
        case PoolLayer(kind="sum"):
            return lower_mean(builder, node, layer, label)
        case AddLayer():
            return lower_add(builder, node, label)
        case MulLayer():
            return lower_mul(builder, node, label)
        case SumLayer():
            return lower_sum(builder, node, layer, label)
        case SumOfTwoLayer():
            return lower_sum_of_two(builder, node, layer, label)
        case ProductLayer():
            return lower_product(builder, node, layer, label)
        case FunctionLayer():
            return lower_function(builder, node, layer, label)
        case QuantizeLayer():
            return lower_quantize(builder, node, layer, label)
        case DequantizeLayer() | LeakyLayer():  # the same integers: reals of codes; or part of the sum before
            return builder.values[x]
        case PoolLayer():
            return builder.pool("max", x, layer.window, builder.operand, label)
        case ClampLayer():
            return lower_clamp(builder, x, layer, label)
        case SliceLayer():
            return lower_slice(builder, node, layer, label)
        case ShuffleLayer():
            return lower_shuffle(builder, node, layer, label)
        case PixelsLayer():
            return lower_pixels(builder, node, layer, label)
        case ReshapeLayer():
            return builder.shaped(x, shape(y.type), label)


def _lower_host(builder: CnnBuilder, segment: HostSegment) -> None:
    """A host op, with the segment as ONNX bytes in the weight store."""
    model = export_nodes(segment.nodes, segment.inputs, segment.outputs, builder.module, builder.store)
    data = np.frombuffer(model.SerializeToString(deterministic=True), np.uint8)
    label = builder.labels[segment.nodes[-1]] if segment.nodes else builder.names.free("constants")
    label = builder.names.numbered(label, len(segment.outputs))
    for value in segment.outputs:
        if builder.placement.is_quantised(value):
            builder.scale(value, label)
    # The reason has names of nodes. MLIR text reads a string beyond ASCII as bytes, which are no StringAttr.
    reason = segment.reason.encode("ascii", "backslashreplace").decode()
    properties: dict[str, Attribute] = {
        "model": RefAttr.to(data, builder.store),
        "reason": StringAttr(reason),
        "label": StringAttr(label),
        "input_quants": ArrayAttr([builder.quant(value) for value in segment.inputs]),
        "output_quants": ArrayAttr([builder.quant(value) for value in segment.outputs]),
    }
    op = HostOp.create(
        operands=[builder.values[value] for value in segment.inputs],
        properties=properties,
        result_types=[
            TensorType(builder.operand, shape(value.type)) if value in builder.scales else value.type
            for value in segment.outputs
        ],
    )
    builder.block.add_op(op)
    builder.values.update(zip(segment.outputs, op.results, strict=True))


def _replace(builder: CnnBuilder) -> None:
    """Put the new function and its weights into the module."""
    module, block = builder.module, builder.block
    results = [builder.values[value] for value in returned(module)]
    block.add_op(ReturnOp(*results))
    # Later layers read what a reshape is made of (`base_of`), so that some have no reader.
    for op in list(block.ops):
        if isinstance(op, ReshapeOp) and op.result.first_use is None:
            Rewriter.erase_op(op)
    func = FuncOp(
        "main",
        FunctionType.from_lists(block.arg_types, [result.type for result in results]),
        Region(block),
        arg_attrs=_named(builder, input_names(module), main_arguments(module)),
        res_attrs=_named(builder, output_names(module), returned(module)),
    )
    counted = module_macs(module)
    main_function(module).detach()
    module.body.block.add_ops([*builder.globals, func])
    module.attributes = {
        "cnn.macs_total": IntegerAttr(counted, i64),
        "cnn.operand_bits": IntegerAttr(builder.operand_bits, i64),
        "cnn.psum_bits": IntegerAttr(builder.psum_bits, i64),
    }


def _named(builder: CnnBuilder, names: Iterable[str], values: Iterable[SSAValue]) -> ArrayAttr[DictionaryAttr]:
    """`onnx.name` of each value, and `cnn.quant` of values that are integers."""
    quants = [{"cnn.quant": builder.quant(value)} if value in builder.scales else {} for value in values]
    pairs = zip(names, quants, strict=True)
    return ArrayAttr([DictionaryAttr({"onnx.name": text_attr(name)} | quant) for name, quant in pairs])
