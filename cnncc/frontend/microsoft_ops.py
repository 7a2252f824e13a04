"""Shapes and types of onnxruntime's own quantised operators (domain com.microsoft), which ONNX does not infer.

Each operator has a stand-in: nodes of ONNX's own operators with a result of the same shape and type. The graph with the
stand-ins is inferred, and its types are kept.

Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

MICROSOFT = "com.microsoft"
LEAST_INPUTS = 4  # of each operator but the following; ONNX's checker does not check other domains
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
OWN_FUNCTIONS = ("Gelu", "QuickGelu")  # of single numbers
FEWER_INPUTS: dict[str, int] = {**dict.fromkeys(CONVERSIONS, 2), **dict.fromkeys(OWN_FUNCTIONS, 1)}
Types = Mapping[str, int]


def _node(node: NodeProto, op_type: str, inputs: Sequence[str], *attributes: str) -> NodeProto:
    """A node of another type with these inputs and attributes, and the result of `node`."""
    from onnx import NodeProto

    kept = [attribute for attribute in node.attribute if attribute.name in attributes]
    return NodeProto(op_type=op_type, input=inputs, output=node.output[:1], attribute=kept)


def _elementwise(node: NodeProto, types: Types) -> list[NodeProto]:
    return [_node(node, "Add", [node.input[0], node.input[3]])]


def _same(node: NodeProto, types: Types) -> list[NodeProto]:
    return [_node(node, "Identity", node.input[:1])]


def _gemm(node: NodeProto, types: Types) -> list[NodeProto]:
    """The result has the type of its zero point; without one it is float."""
    from onnx import TensorProto, helper

    has_zero = len(node.input) > 8 and node.input[8] in types
    product = _node(node, "Gemm", [node.input[0], node.input[3]], "transA", "transB")
    product.output[0] += "/product"
    kind = types[node.input[8]] if has_zero else TensorProto.FLOAT
    return [product, helper.make_node("Cast", product.output[:], node.output[:1], to=kind)]


def _average_pool(node: NodeProto, types: Types) -> list[NodeProto]:
    # A MaxPool, as ONNX's AveragePool takes no integers.
    window = ("kernel_shape", "strides", "pads", "auto_pad", "ceil_mode")
    return [] if _has_channels_last(node) else [_node(node, "MaxPool", node.input[:1], *window)]


def _global_average_pool(node: NodeProto, types: Types) -> list[NodeProto]:
    return [] if _has_channels_last(node) else [_node(node, "GlobalMaxPool", node.input[:1])]


def _has_channels_last(node: NodeProto) -> bool:
    return any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)


def _concat(node: NodeProto, types: Types) -> list[NodeProto]:
    return [_node(node, "Concat", node.input[2::3], "axis")]


def _quantize(node: NodeProto, types: Types) -> list[NodeProto]:
    """The codes have the type of the zero point; without one they are bytes."""
    from onnx import TensorProto

    has_zero = len(node.input) > 2 and node.input[2]
    return _cast(node, types.get(node.input[2]) if has_zero else TensorProto.UINT8)


def _dequantize(node: NodeProto, types: Types) -> list[NodeProto]:
    return _cast(node, types.get(node.input[1]))


def _cast(node: NodeProto, kind: int | None) -> list[NodeProto]:
    """The input's shape in another type; nothing if the type is that of a computed value."""
    from onnx import helper

    return [] if kind is None else [helper.make_node("Cast", node.input[:1], node.output[:1], to=kind)]


_STAND_INS: dict[str, Callable[[NodeProto, Types], list[NodeProto]]] = {
    "QLinearAdd": _elementwise,
    "QLinearMul": _elementwise,
    "QLinearLeakyRelu": _same,
    "QLinearSigmoid": _same,
    "QLinearSoftmax": _same,
    **dict.fromkeys(OWN_FUNCTIONS, _same),
    "QGemm": _gemm,
    "QLinearAveragePool": _average_pool,
    "QLinearGlobalAveragePool": _global_average_pool,
    "QLinearConcat": _concat,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}


_WINDOW = ("auto_pad", "ceil_mode", "channels_last", "count_include_pad", "kernel_shape", "pads", "strides")
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "QLinearLeakyRelu": ("alpha",),
    "QLinearSoftmax": ("axis", "opset"),
    "QuickGelu": ("alpha",),
    "QGemm": ("alpha", "transA", "transB"),
    "QLinearAveragePool": _WINDOW,
    "QLinearGlobalAveragePool": ("channels_last",),
    "QLinearConcat": ("axis",),
    "QuantizeLinear": ("axis",),
    "DequantizeLinear": ("axis",),
}


def unknown_attribute(node: NodeProto) -> str | None:
    """An unknown attribute of one of these operators, if any; onnxruntime does not load such a model."""
    if node.domain != MICROSOFT or node.op_type not in _STAND_INS:
        return None
    known = _ATTRIBUTES.get(node.op_type, ())
    return next((attribute.name for attribute in node.attribute if attribute.name not in known), None)


def with_microsoft_types(model: ModelProto, infer: Callable[[ModelProto], ModelProto]) -> ModelProto:
    """`model` with the types of the results of these operators, and of all types that `infer` derives from them."""
    if not any(node.domain == MICROSOFT and node.op_type in _STAND_INS for node in model.graph.node):
        return model
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    stand_in = deepcopy(model)
    del stand_in.graph.node[:]
    for node in model.graph.node:
        rule = _STAND_INS.get(node.op_type) if node.domain == MICROSOFT else None
        whole = len(node.input) >= FEWER_INPUTS.get(node.op_type, LEAST_INPUTS)
        stand_in.graph.node.extend((rule(node, types) if rule and whole else []) or [node])
    inferred = infer(stand_in)
    made = {name for node in model.graph.node for name in node.output}
    typed = deepcopy(model)
    del typed.graph.value_info[:]
    typed.graph.value_info.extend(value for value in inferred.graph.value_info if value.name in made)
    del typed.graph.output[:]
    typed.graph.output.extend(inferred.graph.output)
    return typed
