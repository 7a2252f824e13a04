"""Limits of graphs. What is absurd ends in one message, before time or memory grow with it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from cnncc.errors import Finding, Refusal, Refusals
from cnncc.frontend.onnx_attrs import attribute_graphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

MOST_NODES = 50_000  # of a graph, with those of graphs in attributes
MOST_ELEMENTS = 1 << 27  # of a value: 512 MiB of f32
MOST_STEP = 1 << 20  # of a window, along one axis
MOST_TRIPS = 1_000_000  # of a Loop on the host
WINDOW = ("kernel_shape", "pads", "strides", "dilations")


def check_nodes(model: ModelProto, path: Path) -> None:
    """The number of nodes, the numbers of their windows, the trip counts of loops. Raises Refusal."""
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    if len(nodes) > MOST_NODES:
        raise _refusal(path, "the graph", "nodes", len(nodes), MOST_NODES, "split the model")
    constants = {tensor.name: tensor for graph in graphs(model.graph) for tensor in graph.initializer}
    constants |= {
        node.output[0]: node.attribute[0].t for node in nodes if node.op_type == "Constant" and node.attribute
    }
    refusals = Refusals()
    for index, node in enumerate(nodes):
        where = node_label(node, index)
        for attribute in node.attribute:
            if attribute.name in WINDOW and (largest := max(map(abs, attribute.ints), default=0)) > MOST_STEP:
                help_ = "fix it in the model"
                refusals.add(_refusal(path, where, attribute.name, largest, MOST_STEP, help_))
        if node.op_type == "Loop" and node.input and (trips := _number(constants.get(node.input[0]))) > MOST_TRIPS:
            refusals.add(_refusal(path, where, "trips", trips, MOST_TRIPS, "compute its result beforehand"))
    refusals.raise_any(str(path))


def check_values(model: ModelProto, path: Path) -> None:
    """The number of elements of each value whose shape is known. Raises Refusal for the first that has too many."""
    for value in (*model.graph.value_info, *model.graph.output):
        dims = value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()
        if (elements := prod(max(1, dim.dim_value) for dim in dims)) > MOST_ELEMENTS:
            where, help_ = f"value '{value.name}'", "a smaller image, or a smaller batch"
            raise _refusal(path, where, "elements", elements, MOST_ELEMENTS, help_)


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """`graph` and all graphs in attributes of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in attribute_graphs(attribute):
                yield from graphs(inner)


def node_label(node: NodeProto, index: int) -> str:
    """The name of node number `index` of a graph in messages."""
    name = node.name or next(iter(node.output), "")
    return f"{node.op_type} node '{name}'" if name else f"{node.op_type} node number {index}"


def _number(tensor: TensorProto | None) -> int:
    """A constant whole number; 0 where it is none."""
    from onnx import TensorProto, numpy_helper

    if tensor is None or tensor.data_type != TensorProto.INT64 or prod(tensor.dims) != 1:
        return 0
    try:
        return int(numpy_helper.to_array(tensor).reshape(-1)[0])
    except (ValueError, TypeError, IndexError):  # damaged: ONNX's checker says so
        return 0


def _refusal(path: Path, where: str, resource: str, value: int, limit: int, help_: str) -> Refusal:
    finding = Finding(f"too many {resource}", where=where, resource=resource, value=value, limit=limit, help=help_)
    return Refusal(f"{path}: {where}: {resource} {value:,}, the limit is {limit:,}: {help_}", finding)
