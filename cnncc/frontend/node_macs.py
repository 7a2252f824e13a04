"""Multiply-accumulates of a network's nodes, so that the array's share of them can be stated."""

from __future__ import annotations

import math

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import SSAValue

from cnncc.dialects.onnx import NodeOp
from cnncc.dialects.weights import ConstantOp
from cnncc.frontend.microsoft_ops import MICROSOFT

WEIGHTS_AT = {
    "Conv": 1,
    "ConvTranspose": 1,
    "Gemm": 1,
    "MatMul": 1,
    "BatchNormalization": 1,
    "ConvInteger": 1,
    "MatMulInteger": 1,
    "QLinearConv": 3,
    "QLinearMatMul": 3,
    "QGemm": 3,
    "QLinearMul": 3,
    "QLinearAdd": 3,
}


def _shape(value: SSAValue) -> tuple[int, ...]:
    return value.type.get_shape() if isinstance(value.type, TensorType) else (0,)


def node_macs(node: NodeOp) -> int:
    """MACs of a node, for the batch of its types; 0 for unknown shapes.

    By operator, with `results` the number of results:
        Conv, quantised or not           results * weights of a channel
        ConvTranspose                    input words * weights of an input channel
        Gemm, MatMul, quantised or not   results * size of the summed dimension
        BatchNormalization               results
        QLinearMul, QLinearAdd           results, by a constant alone
        any other node                   0
    """
    kind = node.op_type.data if node.domain is None or node.domain.data == MICROSOFT else ""
    at = WEIGHTS_AT.get(kind)
    if at is None:
        return 0
    shapes = [_shape(value) for value in (*node.own_operands[:1], *node.own_operands[at : at + 1], *node.results)]
    # Other than three: an operand is missing, or there are several results.
    if len(shapes) != 3 or any(size < 1 for shape in shapes for size in shape):
        return 0
    x, weights, result = shapes
    match kind:
        case "Conv" | "ConvInteger" | "QLinearConv":
            terms = math.prod(weights[1:])
        case "ConvTranspose":
            return math.prod(x) * math.prod(weights[1:])  # its first dimension are the input channels
        case "BatchNormalization":
            terms = 1
        case "QLinearMul" | "QLinearAdd":
            terms = int(isinstance(node.own_operands[at].owner, ConstantOp))
        case "Gemm" | "QGemm":
            terms = x[0] if node.int_attr("transA", 0) else x[-1]
        case _:
            terms = x[-1]
    return math.prod(result) * terms


def module_macs(module: ModuleOp) -> int:
    """MACs of all nodes of an `onnx` module."""
    return sum(node_macs(op) for op in module.walk() if isinstance(op, NodeOp))
