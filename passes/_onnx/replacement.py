"""Makes nodes in the place of a node, and of the activations after it. No pass: several passes use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from math import prod
from typing import cast

import numpy as np
from xdsl.dialects.builtin import (
    DenseArrayBase,
    DictionaryAttr,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from cnncc.dialects.onnx import NodeOp, new_constant, text, text_attr
from cnncc.frontend.microsoft_ops import MICROSOFT
from cnncc.passes.onnx_fold_constants import static_shape
from cnncc.weights import Array, WeightStore

# They compute each number by itself, so that they may as well come before the numbers change places.
ACTIVATIONS = ("Relu", "LeakyRelu", "Clip", "PRelu")


class NodeNames:
    """The names of a network's nodes: onnxruntime wants each of them once."""

    def __init__(self, block: Block) -> None:
        self._taken = {text(op.node_name) for op in block.ops if isinstance(op, NodeOp) and op.node_name}

    def release(self, nodes: Sequence[NodeOp]) -> None:
        """Let others have the names of `nodes`."""
        self._taken -= {text(node.node_name) for node in nodes if node.node_name}

    def like(self, node: NodeOp, ending: str = "") -> str:
        """The name of `node`, or of its result, with an ending, and with a number where it is taken."""
        names = [node.node_name] if node.node_name else list(node.output_names or ())
        if not names:
            return ""
        first = text(names[0]) + ending
        numbered = (f"{first}.{number}" for number in count(2))
        name = next(name for name in chain([first], numbered) if name not in self._taken)
        self._taken.add(name)
        return name


SLICE_BY_INPUTS = 10  # from this opset on, Slice takes its bounds as inputs


@dataclass(frozen=True)
class Replacement:
    """Makes nodes in the place of `nodes`, each of which alone reads the one before it."""

    nodes: Sequence[NodeOp]
    store: WeightStore
    names: NodeNames

    def __post_init__(self) -> None:
        self.names.release(self.nodes)

    def node(
        self, op_type: str, operands: Sequence[SSAValue], dims: Sequence[int],
        attributes: Mapping[str, Attribute] = {}, old: NodeOp | None = None, element: Attribute | None = None,
        domain: str = "",
    ) -> SSAValue:  # fmt: skip
        """The result of a new node, of elements of a type: that of its first operand without one.

        It is called like `old`; without it, after the first of those that are replaced.
        """
        properties: dict[str, Attribute] = {"op_type": StringAttr(op_type)}
        if name := self.names.like(old) if old else self.names.like(self.nodes[0], f".{op_type.lower()}"):
            properties["node_name"] = text_attr(name)
        if domain:
            properties["domain"] = StringAttr(domain)
        kind = TensorType(element or cast("TensorType[Attribute]", operands[0].type).element_type, [*dims])
        node = NodeOp.create(operands=operands, result_types=[kind], attributes=attributes, properties=properties)
        # Before the last of them, and so behind all that any of them reads.
        Rewriter.insert_op(node, InsertPoint.before(self.nodes[-1]))
        return node.results[0]

    def constant(self, array: Array) -> SSAValue:
        """`array` as a new constant."""
        constant = new_constant(np.asarray(array, order="C"), self.store, None)
        Rewriter.insert_op(constant, InsertPoint.before(self.nodes[-1]))
        return constant.result

    def reshaped(self, value: SSAValue, dims: Sequence[int]) -> SSAValue:
        """`value` in another shape."""
        return self.node("Reshape", [value, self.constant(np.array(dims, np.int64))], dims)

    def sliced(self, value: SSAValue, bounds: Mapping[int, tuple[int, int]], opset: int) -> SSAValue:
        """`value` from start to end of each of these axes."""
        dims = [*dims_of(value)]
        for axis, (start, end) in bounds.items():
            dims[axis] = end - start
        starts, ends = zip(*bounds.values(), strict=True)
        numbers = {"starts": starts, "ends": ends, "axes": [*bounds]}
        if opset < SLICE_BY_INPUTS:
            return self.node("Slice", [value], dims, {name: ints(each) for name, each in numbers.items()})
        inputs = [self.constant(np.array(each, np.int64)) for each in numbers.values()]
        return self.node("Slice", [value, *inputs], dims)

    def again(self, node: NodeOp, value: SSAValue, others: Sequence[SSAValue]) -> SSAValue:
        """What `node` makes of `value` in the place of its first operand."""
        return self.node(node.op_type.data, [value, *others], dims_of(value), node.attributes, node)

    def finish(self, *values: SSAValue) -> None:
        """Put `values` in the place of the last results, and erase the nodes."""
        *first, last = self.nodes
        Rewriter.replace_op(last, [], values)
        for node in reversed(first):
            Rewriter.erase_op(node)


def activations(node: NodeOp) -> Iterator[NodeOp]:
    """The activations after `node`, each the only reader of what is before it."""
    while (use := node.results[0].get_user_of_unique_use()) and isinstance(use, NodeOp) and use.is_op(*ACTIVATIONS):
        others = [static_shape(value) for value in use.own_operands[1:] if isinstance(value.type, TensorType)]
        is_scalar = all(dims is not None and prod(dims) == 1 for dims in others)
        if use.operands[0] is not node.results[0] or use.results[0].type != node.results[0].type or not is_scalar:
            return
        yield use
        node = use


def import_microsoft(module: ModuleOp) -> None:
    """Let a model have operators of onnxruntime's own."""
    versions = module.attributes.get("onnx.opset_imports")
    if isinstance(versions, DictionaryAttr) and MICROSOFT not in versions.data:
        module.attributes["onnx.opset_imports"] = DictionaryAttr({**versions.data, MICROSOFT: IntegerAttr(1, i64)})


def dims_of(value: SSAValue) -> tuple[int, ...]:
    """The shape of `value`, which is known."""
    dims = static_shape(value)
    assert dims is not None, "the shape is known"
    return dims


def ints(numbers: Sequence[int]) -> DenseArrayBase[IntegerType]:
    """An attribute of integers."""
    return DenseArrayBase.from_list(i64, [*numbers])
