"""ONNX node attributes as IR attributes, and back, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    BytesAttr,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    f32,
    i64,
)
from xdsl.ir import Attribute

from cnncc.dialects.onnx import ProtoAttr, raw_text, text_attr
from cnncc.dialects.weights import RefAttr
from cnncc.errors import Refusal
from cnncc.weights import Array, WeightStore

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

STANDARD_DOMAIN = ("", "ai.onnx")  # two names of it
IDENTITY_OPSET = 13  # for a model that imports only other domains, where Identity nodes are added


def numpy_array(tensor: TensorProto, owner: str) -> Array | None:
    """The array in `tensor`; None for a type that plain numpy does not have (strings, bf16, f8, 4-bit, complex).

    Raises: Refusal, with `owner`, for data that does not fill the shape.
    """
    from onnx import numpy_helper

    try:
        array = numpy_helper.to_array(tensor)
    except KeyError as error:
        raise Refusal(f"{owner}: unknown element type {tensor.data_type}") from error
    except (ValueError, TypeError, OSError) as error:
        raise Refusal(f"{owner}: its data does not fit shape {list(tensor.dims)}: {error}") from error
    return array if array.dtype.isbuiltin == 1 and array.dtype.kind in "biuf" else None


def attribute_graphs(proto: AttributeProto) -> Sequence[GraphProto]:
    """The sub-graphs in an ONNX attribute."""
    return (*proto.graphs, *([proto.g] if proto.HasField("g") else []))


def node_graphs(node: NodeProto) -> list[GraphProto]:
    """The sub-graphs in the attributes of an ONNX node."""
    return [graph for attribute in node.attribute for graph in attribute_graphs(attribute)]


def attribute_from_proto(proto: AttributeProto, store: WeightStore) -> Attribute:
    """The IR attribute for `proto`; a `#onnx.proto` if no other form is exact and unambiguous."""
    from onnx import AttributeProto

    match proto.type:
        case _ if proto.ref_attr_name:
            pass
        case AttributeProto.INT:
            return IntegerAttr(proto.i, i64)
        case AttributeProto.FLOAT if proto.f == proto.f:  # a NaN never equals itself
            return FloatAttr(proto.f, f32)
        case AttributeProto.STRING:
            return text_attr(proto.s)
        case AttributeProto.INTS:
            return DenseArrayBase.from_list(i64, list(proto.ints))
        # An empty list would not tell floats from strings.
        case AttributeProto.FLOATS if proto.floats and not np.isnan(proto.floats).any():
            return ArrayAttr([FloatAttr(value, f32) for value in proto.floats])
        case AttributeProto.STRINGS if proto.strings:
            return ArrayAttr([text_attr(value) for value in proto.strings])
        case AttributeProto.TENSOR:
            array = numpy_array(proto.t, f"attribute '{proto.name}'")
            if array is not None and array.ndim:  # the store does not tell a scalar from a vector of one
                return RefAttr.to(array, store)
        case _:
            pass
    return ProtoAttr.pack(proto.SerializeToString(deterministic=True), store)


def attribute_to_proto(name: str, attribute: Attribute, store: WeightStore) -> AttributeProto:
    """The ONNX attribute `name` of an IR attribute. Raises Refusal for an attribute without an ONNX equivalent."""
    from onnx import AttributeProto, numpy_helper

    proto = AttributeProto(name=name)
    match attribute:
        case IntegerAttr(value=integer):
            proto.type, proto.i = AttributeProto.INT, integer.data
        case FloatAttr(value=number):
            proto.type, proto.f = AttributeProto.FLOAT, number.data
        case StringAttr() | BytesAttr():
            proto.type, proto.s = AttributeProto.STRING, raw_text(attribute)
        case DenseArrayBase(elt_type=IntegerType()):
            proto.type = AttributeProto.INTS
            proto.ints.extend(cast("DenseArrayBase[IntegerType]", attribute).get_values())
        case RefAttr():
            proto.type = AttributeProto.TENSOR
            proto.t.CopyFrom(numpy_helper.from_array(store[attribute.key.data]))
        case ProtoAttr():
            return _unpacked(name, attribute, store)
        case ArrayAttr():
            _fill_list(proto, list(attribute))
        case _:
            raise Refusal(f"attribute '{name}' has no ONNX equivalent: {attribute}")
    return proto


def _fill_list(proto: AttributeProto, items: list[Attribute]) -> None:
    from onnx import AttributeProto

    floats = [item.value.data for item in items if isinstance(item, FloatAttr)]
    if items and len(floats) == len(items):
        proto.type = AttributeProto.FLOATS
        proto.floats.extend(floats)
    else:
        proto.type = AttributeProto.STRINGS
        proto.strings.extend(raw_text(item) for item in items)


def _unpacked(name: str, attribute: ProtoAttr, store: WeightStore) -> AttributeProto:
    from google.protobuf.message import DecodeError
    from onnx import AttributeProto

    try:
        proto = AttributeProto.FromString(attribute.unpack(store))
    except DecodeError as error:
        raise Refusal(f"attribute '{name}' does not hold an AttributeProto: {error}") from error
    proto.name = name
    return proto
