"""ONNX value types as IR types, and back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, NoneType, StringAttr, TensorType, UnrankedTensorType
from xdsl.ir import Attribute

from cnncc.dialects.onnx import ElementType, ValueType
from cnncc.dialects.weights import ELEMENT_TYPES
from cnncc.errors import Refusal

if TYPE_CHECKING:
    from onnx import TypeProto

UNKNOWN = ValueType(StringAttr("unknown"))

_OTHER_NAMES = {"float32": "float", "float64": "double"}  # those of ONNX for types of numpy, where they differ
# By ONNX's name in lower case, as in "tensor(float)".
_BUILTINS = {_OTHER_NAMES.get(name, name): kind for name, kind in ELEMENT_TYPES.items()}
_NAMES = {builtin: name for name, builtin in _BUILTINS.items()}


def element_type(data_type: int) -> Attribute:
    """The IR element type of TensorProto data type `data_type`."""
    name = _type_name(data_type)
    return _BUILTINS.get(name) or ElementType(StringAttr(name))


def _type_name(data_type: int) -> str:
    from onnx import TensorProto

    try:
        return TensorProto.DataType.Name(cast("TensorProto.DataType", data_type)).lower()
    except ValueError as error:
        raise Refusal(f"unknown element type {data_type}") from error


def _data_type(element: Attribute) -> int:
    name = element.spec.data if isinstance(element, ElementType) else _NAMES.get(element)
    if name is None:
        raise Refusal(f"element type {element} has no ONNX equivalent")
    return _named_data_type(name)


def _named_data_type(name: str) -> int:
    from onnx import TensorProto

    try:
        return TensorProto.DataType.Value(name.upper())
    except ValueError as error:
        raise Refusal(f"'{name}' is not an ONNX element type") from error


def ir_type(proto: TypeProto | None) -> Attribute:
    """The IR type for `proto`; what inference left open is dynamic, unranked or unknown."""
    if proto is None or (proto.WhichOneof("value") == "tensor_type" and proto.tensor_type.elem_type == 0):
        return UNKNOWN
    if proto.WhichOneof("value") != "tensor_type":
        return ValueType(StringAttr(_describe(proto)))
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return UnrankedTensorType(element_type(tensor.elem_type))
    known = [dim.HasField("dim_value") and dim.dim_value >= 0 for dim in tensor.shape.dim]
    shape = [dim.dim_value if ok else DYNAMIC_INDEX for ok, dim in zip(known, tensor.shape.dim, strict=True)]
    return TensorType(element_type(tensor.elem_type), shape)


def _describe(proto: TypeProto) -> str:
    """`proto` in the notation of the ONNX specification, e.g. `seq(tensor(float))`."""
    match proto.WhichOneof("value"):
        case "tensor_type":
            return f"tensor({_type_name(proto.tensor_type.elem_type)})"
        case "sparse_tensor_type":
            return f"sparse_tensor({_type_name(proto.sparse_tensor_type.elem_type)})"
        case "sequence_type":
            return f"seq({_describe(proto.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_describe(proto.optional_type.elem_type)})"
        case "map_type":
            return f"map({_type_name(proto.map_type.key_type)},{_describe(proto.map_type.value_type)})"
        case _:
            return "unknown"


def _parse_description(text: str) -> TypeProto | None:
    """The type that `_describe` wrote as `text`; None if any part of it is unknown."""
    from onnx import helper

    match = re.fullmatch(r"(\w+)\((?:(\w+),)?(.+)\)", text)
    if match is None:
        return None
    kind, key, inner = match.groups()
    if kind == "tensor":
        return helper.make_tensor_type_proto(_named_data_type(inner), None)
    if kind == "sparse_tensor":
        return helper.make_sparse_tensor_type_proto(_named_data_type(inner), None)
    element = _parse_description(inner)
    match kind:
        case _ if element is None:
            return None
        case "seq":
            return helper.make_sequence_type_proto(element)
        case "optional":
            return helper.make_optional_type_proto(element)
        case "map" if key:
            return helper.make_map_type_proto(_named_data_type(key), element)
        case _:
            return None


def type_proto(value_type: Attribute) -> TypeProto | None:
    """The ONNX type of an IR type, the inverse of `ir_type`; None for an unknown one.

    Raises Refusal for a type that ONNX does not have.
    """
    from onnx import helper

    match value_type:
        case NoneType():
            return None
        case ValueType():
            return _parse_description(value_type.spec.data)
        case UnrankedTensorType():
            return helper.make_tensor_type_proto(_data_type(value_type.element_type), None)
        case TensorType():
            dims = [None if size == DYNAMIC_INDEX else size for size in value_type.get_shape()]
            return helper.make_tensor_type_proto(_data_type(value_type.element_type), dims)
        case _:
            raise Refusal(f"type {value_type} has no ONNX equivalent")
