"""How many multiply-accumulates a network takes, so that the array's share of them can be stated."""

from __future__ import annotations

import math

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import SSAValue

from cnncc.dialects.onnx import NodeOp


def _shape(value: SSAValue) -> tuple[int, ...]:
    match value.type:
        case TensorType() as tensor_type:
            return tensor_type.get_shape()
        case _:
            return (0,)


def node_macs(node: NodeOp) -> int:
    """MACs of a Conv, Gemm or MatMul, for the batch that its types say; 0 for any other node or unknown shapes.

    Each result takes one MAC per weight of its channel (Conv), or per element of the summed dimension.
    """
    shapes = [_shape(value) for value in (*node.own_operands[:2], *node.results)]
    known = len(shapes) == 3 and all(size > 0 for shape in shapes for size in shape)
    if not node.is_op("Conv", "Gemm", "MatMul") or not known:
        return 0
    x, weights, result = shapes
    match node.op_type.data:
        case "Conv":
            terms = math.prod(weights[1:])
        case "Gemm":
            terms = x[0] if node.int_attr("transA", 0) else x[-1]
        case _:
            terms = x[-1]
    return math.prod(result) * terms


def module_macs(module: ModuleOp) -> int:
    """MACs of all nodes of an `onnx` module."""
    return sum(node_macs(op) for op in module.walk() if isinstance(op, NodeOp))
