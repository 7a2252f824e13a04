"""Host segments: parts of a network that stay ONNX models. Their inputs and outputs have the binary's tensor names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from cnncc.errors import Refusal
from cnncc.frontend.onnx_attrs import IDENTITY_OPSET, STANDARD_DOMAIN
from cnncc.frontend.run_onnx import OnnxSession
from cnncc.weights import Array

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

RunModel = Callable[[bytes, Sequence[Array]], Sequence[Array]]
"""A model as bytes and its inputs in order -> its outputs in order."""


def read_model(model: bytes) -> ModelProto:
    """The ONNX model of a segment. Raises Refusal."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    try:
        return ModelProto.FromString(model)
    except DecodeError as error:
        raise Refusal("a host segment does not hold an ONNX model") from error


def run_on_host(model: bytes, inputs: Sequence[Array]) -> Sequence[Array]:
    """Run a host segment with onnxruntime, on numbers of any type, in the segment's own shapes.

    A tensor may be read in another shape than it was written in.
    Raises: Refusal, for a model that does not load or run.
    """
    from onnx import helper

    proto = read_model(model)
    feeds = zip(proto.graph.input, inputs, strict=True)
    types = ((v, helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type), array) for v, array in feeds)
    return OnnxSession(proto).run({v.name: _shaped(v, array.astype(kind, copy=False)) for v, kind, array in types})


def _shaped(value: ValueInfoProto, array: Array) -> Array:
    """`array` in the shape of an input, if it has as many elements."""
    dims = _dims(value)
    return array.reshape(dims) if math.prod(dims) == array.size else array


def interface(model: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """The inputs and the outputs of a segment in order, each with its element type in numpy's name.

    Raises: Refusal, for bytes that are no model.
    """
    graph = read_model(model).graph
    return _types(graph.input), _types(graph.output)


def _types(values: Iterable[ValueInfoProto]) -> dict[str, str]:
    from onnx import helper

    types: dict[str, str] = {}
    for value in values:
        try:
            types[value.name] = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
        except KeyError as error:
            raise Refusal(f"'{value.name}' of a host segment has no type") from error
    return types


def name_after_tensors(model: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """The model with inputs and outputs renamed, in order; two inputs of one name become one.

    Inner names get a prefix, so that no two names collide. Identity nodes join them to the tensors' names; a tensor
    that is read in several shapes gets Reshape nodes. The result is deterministic.
    Raises: Refusal, for other numbers of inputs or outputs.
    """
    from onnx import compose, helper

    proto = read_model(model)
    sizes = (len(proto.graph.input), len(proto.graph.output))
    if sizes != (len(inputs), len(outputs)):
        raise Refusal(
            f"a host segment has {sizes} inputs and outputs, its tensors are {len(inputs)} and {len(outputs)}"
        )
    prefix = "segment/"
    while any(name.startswith(prefix) for name in (*inputs, *outputs)):
        prefix = f"_{prefix}"
    graph = proto.graph
    # By itself `add_prefix_graph` leaves the old names of initializers in the branches of an If.
    names = {initializer.name: prefix + initializer.name for initializer in graph.initializer}
    compose.add_prefix_graph(graph, prefix, inplace=True, name_map=names)
    given = dict(zip(inputs, graph.input, strict=True))  # the last of several inputs of one name
    before = [_joined(graph, name, given[name], value) for name, value in zip(inputs, graph.input, strict=True)]
    after = [
        helper.make_node("Identity", [value.name], [name]) for name, value in zip(outputs, graph.output, strict=True)
    ]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    _rename(graph.input, inputs)
    _rename(graph.output, outputs)
    if not any(opset.domain in STANDARD_DOMAIN for opset in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid("", IDENTITY_OPSET))
    return proto.SerializeToString(deterministic=True)


def _dims(value: ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _joined(graph: GraphProto, name: str, given: ValueInfoProto, value: ValueInfoProto) -> NodeProto:
    """The node that computes `value` from the input `name`, which has the shape of `given`."""
    from onnx import TensorProto, helper

    if _dims(given) == _dims(value):
        return helper.make_node("Identity", [name], [value.name])
    shape = f"{value.name}/shape"
    graph.initializer.append(helper.make_tensor(shape, TensorProto.INT64, [len(_dims(value))], _dims(value)))
    return helper.make_node("Reshape", [name, shape], [value.name])


def _rename(values: Any, names: Sequence[str]) -> None:
    """Rename graph inputs or outputs; of two with one name, the last remains."""
    renamed: dict[str, ValueInfoProto] = {}
    for name, value in zip(names, values, strict=True):
        renamed[name] = deepcopy(value)
        renamed[name].name = name
    del values[:]
    values.extend(renamed.values())
