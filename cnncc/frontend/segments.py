"""Host segments: parts of a network that stay ONNX models, in the binary with tensors' names on inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cnncc.errors import Refusal
from cnncc.frontend.run_onnx import OnnxSession
from cnncc.weights import Array

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

OPSET_OF_IDENTITY = 13

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
    """Run a host segment with onnxruntime. Raises Refusal where it does not load or run."""
    proto = read_model(model)
    return OnnxSession(proto).run(dict(zip((value.name for value in proto.graph.input), inputs, strict=True)))


def interface(model: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """The inputs and the outputs of a segment, each with its element type as numpy calls it, in order.

    Raises Refusal where it is no model.
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
    """The model with inputs and outputs renamed, in order; an input that is given twice becomes one.

    The names inside get a prefix and Identity nodes join them to the tensors' names, so that no name meets another.
    Deterministic. Raises Refusal where the numbers of inputs or outputs differ.
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
    inner: Any = compose.add_prefix(proto, prefix, rename_functions=False)
    graph: GraphProto = inner.graph
    before = [
        helper.make_node("Identity", [name], [value.name]) for name, value in zip(inputs, graph.input, strict=True)
    ]
    after = [
        helper.make_node("Identity", [value.name], [name]) for name, value in zip(outputs, graph.output, strict=True)
    ]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    _rename(graph.input, inputs)
    _rename(graph.output, outputs)
    if not any(opset.domain in ("", "ai.onnx") for opset in inner.opset_import):
        inner.opset_import.append(helper.make_opsetid("", OPSET_OF_IDENTITY))
    return inner.SerializeToString(deterministic=True)


def _rename(values: Any, names: Sequence[str]) -> None:
    """Give graph inputs or outputs their names; of two with one name the last stays."""
    from onnx import ValueInfoProto

    renamed: dict[str, ValueInfoProto] = {}
    for name, value in zip(names, values, strict=True):
        renamed[name] = ValueInfoProto()
        renamed[name].CopyFrom(value)
        renamed[name].name = name
    del values[:]
    values.extend(renamed.values())
