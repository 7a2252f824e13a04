"""Rewrites models so that onnxruntime adds up integer products exactly on every processor.

On x86 without VNNI, its kernels for uint8 times int8 add pairs of products as 16-bit numbers, which saturate. Its
kernels for uint8 times uint8 are exact. So int8 weights of uint8 codes become uint8: 128 is added to weight and zero
point.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np

from cnncc.frontend.infer_shapes import infer_shapes

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

MORE = 128  # from the least int8 to the least uint8


# The numbers of a node's inputs: codes and their zero point, and by operator weights and their zero point.
CODES = 0, 2
WEIGHTS = {
    "QLinearConv": (3, 5),
    "QLinearMatMul": (3, 5),
    "QGemm": (3, 5),
    "ConvInteger": (1, 3),
    "MatMulInteger": (1, 3),
}


def with_unsigned_weights(model: ModelProto) -> ModelProto:
    """The same model, or an equivalent one with unsigned weights."""
    if not any(node.op_type in WEIGHTS for node in model.graph.node):
        return model
    types = _types(model)
    if not any(_saturates(node, types) for node in model.graph.node):
        return model
    changed = deepcopy(model)
    _Change(changed.graph, types).all_nodes()
    return changed


def _types(model: ModelProto) -> dict[str, int]:
    """The element types of tensors."""
    graph = infer_shapes(model, strict=False).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _saturates(node: NodeProto, types: dict[str, int]) -> bool:
    """Whether codes are uint8 and weights int8. A zero point has the type of its codes or weights."""
    from onnx import TensorProto

    if (weights := WEIGHTS.get(node.op_type)) is None:
        return False

    def kind(places: tuple[int, int]) -> int:
        names = (node.input[place] for place in places if place < len(node.input))
        return next(filter(None, (types.get(name) for name in names)), 0)

    return (kind(CODES), kind(weights)) == (TensorProto.UINT8, TensorProto.INT8)


class _Change:
    """The change of one graph."""

    def __init__(self, graph: GraphProto, types: dict[str, int]) -> None:
        self.graph, self.types = graph, types
        tensors, fed = {tensor.name: tensor for tensor in graph.initializer}, {value.name for value in graph.input}
        self.constants = {name: tensor for name, tensor in tensors.items() if name not in fed}
        self.names = {*types, *tensors, *(name for node in graph.node for name in node.output)}
        self.unsigned: dict[str, str] = {}  # unsigned name by signed name

    def all_nodes(self) -> None:
        """Change all nodes that may saturate; nodes that make weights unsigned precede them."""
        nodes: list[NodeProto] = []
        for node in self.graph.node:
            if _saturates(node, self.types):
                places = WEIGHTS[node.op_type]
                # A zero point of 0 may be left out, one of 128 may not.
                node.input.extend([""] * (max(places) + 1 - len(node.input)))
                for place in places:
                    if (name := node.input[place]) not in self.unsigned:
                        nodes += self._shifted(name)
                    node.input[place] = self.unsigned[name]
            nodes.append(node)
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def _shifted(self, name: str) -> Iterator[NodeProto]:
        """Add 128 to the value `name`, in a new constant or by the returned nodes. The empty name is a zero point 0."""
        from onnx import TensorProto, helper, numpy_helper

        unsigned = self.unsigned[name] = self._new(f"{name}.unsigned")
        if not name or name in self.constants:
            signed = numpy_helper.to_array(self.constants[name]) if name else np.zeros((), np.int8)
            array = (signed.astype(np.int16) + MORE).astype(np.uint8)
            self.graph.initializer.append(numpy_helper.from_array(array, unsigned))
            return
        wide, more, total = (self._new(f"{unsigned}.{step}") for step in ("wide", "more", "total"))
        self.graph.initializer.append(numpy_helper.from_array(np.array(MORE, np.int32), more))
        yield helper.make_node("Cast", [name], [wide], to=TensorProto.INT32)
        yield helper.make_node("Add", [wide, more], [total])
        yield helper.make_node("Cast", [total], [unsigned], to=TensorProto.UINT8)

    def _new(self, name: str) -> str:
        """A new name, `name` with marks if it is taken."""
        while name in self.names:
            name += "'"
        self.names.add(name)
        return name
