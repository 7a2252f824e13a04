"""How many multiply-accumulates a network takes, so that the array's share of them can be stated."""

from __future__ import annotations

import math

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import SSAValue

from cnncc.dialects.onnx import NodeOp
from cnncc.frontend.microsoft_ops import MICROSOFT

WEIGHTS_AT = {
    "Conv": 1,
    "Gemm": 1,
    "MatMul": 1,
    "BatchNormalization": 1,
    "QLinearConv": 3,
    "QLinearMatMul": 3,
    "QGemm": 3,
}


def _shape(value: SSAValue) -> tuple[int, ...]:
    match value.type:
        case TensorType() as tensor_type:
            return tensor_type.get_shape()
        case _:
            return (0,)


def node_macs(node: NodeOp) -> int:
    """MACs of a Conv, Gemm, MatMul, quantised or not, or BatchNormalization, for the batch that its types say.

    0 where shapes are unknown.

    Each result takes one MAC per weight of its channel (Conv), or per element of the summed dimension; one where
    it is normalised. Any other node has none.
    """
    kind = node.op_type.data if node.domain is None or node.domain.data == MICROSOFT else ""
    at = WEIGHTS_AT.get(kind)
    if at is None:
        return 0
    shapes = [_shape(value) for value in (*node.own_operands[:1], *node.own_operands[at : at + 1], *node.results)]
    if len(shapes) != 3 or any(size < 1 for shape in shapes for size in shape):
        return 0
    x, weights, result = shapes
    match kind:
        case "Conv" | "QLinearConv":
            terms = math.prod(weights[1:])
        case "BatchNormalization":
            terms = 1
        case "Gemm" | "QGemm":
            terms = x[0] if node.int_attr("transA", 0) else x[-1]
        case _:
            terms = x[-1]
    return math.prod(result) * terms


def module_macs(module: ModuleOp) -> int:
    """MACs of all nodes of an `onnx` module."""
    return sum(node_macs(op) for op in module.walk() if isinstance(op, NodeOp))
