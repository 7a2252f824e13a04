"""The order of a graph's nodes: ONNX wants each after those that it reads, onnxruntime and some converters do not."""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from cnncc.errors import Refusal
from cnncc.frontend.graph_limits import node_label
from cnncc.frontend.onnx_attrs import node_graphs

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


def sort_nodes(graph: GraphProto) -> bool:
    """Put each node of `graph` after those that it reads; of two nodes that may be next, the file's first is.

    Returns: whether nodes were moved
    Raises: Refusal, for nodes that wait for each other in a circle
    """
    producer = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    waits_for = [
        {producer[name] for name in (*node.input, *captured_names(node)) if name in producer} for node in graph.node
    ]
    if all(max(needs, default=-1) < index for index, needs in enumerate(waits_for)):
        return False
    readers = defaultdict[int, list[int]](list)
    for index, needs in enumerate(waits_for):
        for need in needs:
            readers[need].append(index)
    # In ascending order, and so a heap already.
    ready, order = [index for index, needs in enumerate(waits_for) if not needs], list[int]()
    while ready:
        order.append(index := heappop(ready))
        for reader in readers[index]:
            waits_for[reader].remove(index)
            if not waits_for[reader]:
                heappush(ready, reader)
    if len(order) < len(graph.node):
        circle = ", ".join(node_label(graph.node[index], index) for index in _circle(waits_for))
        raise Refusal(f"nodes wait for each other's results in a circle: {circle}")
    nodes = [graph.node[index] for index in order]
    moved = type(graph)(node=nodes)  # copies
    del graph.node[:]
    graph.node.extend(moved.node)
    return True


def _circle(waits_for: list[set[int]]) -> list[int]:
    """Nodes of which each waits for the next, and the last for the first."""
    node, path = next(index for index, needs in enumerate(waits_for) if needs), dict[int, int]()
    while node not in path:
        path[node] = len(path)
        node = min(waits_for[node])
    return list(path)[path[node] :]


def captured_names(node: NodeProto) -> list[str]:
    """Outer values that graphs in the attributes of `node` use by name, in order of first use."""
    free: dict[str, None] = {}
    for graph in node_graphs(node):
        free |= dict.fromkeys(_free_names(graph))
    return list(free)


def _free_names(graph: GraphProto) -> list[str]:
    defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    defined |= {sparse.values.name for sparse in graph.sparse_initializer}
    free: dict[str, None] = {}
    for node in graph.node:
        used = [*filter(None, node.input), *captured_names(node)]
        free |= dict.fromkeys(name for name in used if name not in defined)
        defined |= set(node.output)
    free |= dict.fromkeys(output.name for output in graph.output if output.name not in defined)
    return list(free)
