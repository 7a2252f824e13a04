"""Limits of graphs. What is absurd ends in one message, before time or memory grow with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from cnncc.errors import Finding, Refusal, Refusals
from cnncc.frontend.onnx_attrs import node_graphs

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

    Bodies = Mapping[tuple[str, str], FunctionProto]

MOST_NODES = 50_000  # of a graph, with those of graphs in attributes
MOST_ELEMENTS = 1 << 27  # of a value: 512 MiB of f32
MOST_STEP = 1 << 20  # of a window, along one axis
MOST_TRIPS = 1_000_000  # of a Loop on the host
WINDOW = ("kernel_shape", "pads", "strides", "dilations", "blocksize")
DIVISORS = ("blocksize", "group")  # ONNX's shape inference ends the process where one is 0


def check_nodes(model: ModelProto, path: Path) -> None:
    """The number of nodes, the numbers of their windows, the trip counts of loops. Raises Refusal."""
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    bodies = {(body.domain, body.name): body for body in model.functions}
    if (number := len(nodes) + (_called(nodes, bodies, {}) if bodies else 0)) > MOST_NODES:
        raise _refusal(path, "the graph", "nodes", number, MOST_NODES, "split the model")
    constants = {tensor.name: tensor for graph in graphs(model.graph) for tensor in graph.initializer}
    constants |= {
        node.output[0]: node.attribute[0].t for node in nodes if node.op_type == "Constant" and node.attribute
    }
    refusals = Refusals()
    for index, node in enumerate(nodes):
        where = node_label(node, index)
        for attribute in node.attribute:
            if attribute.name in WINDOW and (largest := max(map(abs, (*attribute.ints, attribute.i)))) > MOST_STEP:
                help_ = "fix it in the model"
                refusals.add(_refusal(path, where, attribute.name, largest, MOST_STEP, help_))
            if attribute.name in DIVISORS and attribute.i == 0:
                refusals.add(Refusal(f"{path}: {where}: {attribute.name} 0, expected at least 1"))
    for loop, trips in _loops(model.graph, constants):
        where = node_label(loop, 0)
        if trips is None:
            refusals.add(Refusal(f"{path}: {where}: it has a condition and no number of trips: give it one"))
        elif trips > MOST_TRIPS:
            refusals.add(_refusal(path, where, "trips", trips, MOST_TRIPS, "compute its result beforehand"))
    refusals.raise_any(str(path))


def _called(nodes: Iterable[NodeProto], bodies: Bodies, known: dict[tuple[str, str], int]) -> int:
    """The nodes that calls of the model's own functions stand for; few of a function that calls itself."""
    number = 0
    for node in nodes:
        key = (node.domain, node.op_type)
        if key in bodies:
            if key not in known:
                known[key] = 0
                inner = [each for one in bodies[key].node for each in _with_inner(one)]
                known[key] = len(inner) + _called(inner, bodies, known)
            number += known[key]
    return number


def _with_inner(node: NodeProto) -> Iterator[NodeProto]:
    """A node and those of its graphs."""
    yield node
    for inner in node_graphs(node):
        for graph in graphs(inner):
            yield from graph.node


def _loops(
    graph: GraphProto, constants: Mapping[str, TensorProto], outer: int = 1
) -> Iterator[tuple[NodeProto, int | None]]:
    """All loops with the trips of each and of those around it, as far as they are constants; None: only a condition."""
    for node in graph.node:
        trips = outer
        if node.op_type == "Loop":
            trips *= max(1, _number(constants.get(node.input[0]))) if node.input else 1
            yield node, trips if node.input and node.input[0] else None
        for inner in node_graphs(node):
            yield from _loops(inner, constants, trips)


def check_values(graph: GraphProto, inputs: Sequence[ValueInfoProto], path: Path) -> None:
    """The number of elements of each value whose shape is known. Raises Refusal if a value has too many.

    The refusal names the first value that is too large with a single image. If there is none, it names the largest one.

    inputs: those that a user feeds. Their leading dim is the batch.
    """
    sizes = dict[str, tuple[int, ...]]()
    for value in (*inputs, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type"):
            sizes[value.name] = tuple(max(1, dim.dim_value) for dim in value.type.tensor_type.shape.dim)
    fed = {value.name for value in inputs}
    batches = {dims[0] for name, dims in sizes.items() if name in fed and dims}

    def of_image(dims: tuple[int, ...]) -> int:
        return prod(dims[1:] if dims and dims[0] in batches else dims)

    first = next((name for name, dims in sizes.items() if of_image(dims) > MOST_ELEMENTS), "")
    name = first or max(sizes, key=lambda each: prod(sizes[each]), default="")
    if name and (elements := prod(sizes[name])) > MOST_ELEMENTS:
        help_ = "a smaller image" if first else f"a batch of at most {MOST_ELEMENTS // of_image(sizes[name]):,}"
        where = f"{'input' if name in fed else 'value'} '{name}'"
        raise _refusal(path, where, "elements", elements, MOST_ELEMENTS, help_)


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """`graph` and all graphs in attributes of its nodes."""
    yield graph
    for node in graph.node:
        for inner in node_graphs(node):
            yield from graphs(inner)


def tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """All tensors in `graph` and its inner graphs: initializers and attributes."""
    for inner in graphs(graph):
        yield from inner.initializer
        for sparse in inner.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in inner.node:
            yield from node_tensors(node)


def node_tensors(node: NodeProto) -> Iterator[TensorProto]:
    """The tensors in attributes of `node`."""
    for attribute in node.attribute:
        yield from attribute.tensors
        if attribute.HasField("t"):
            yield attribute.t


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
