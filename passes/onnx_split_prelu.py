"""Turns a PRelu with a slope for each channel into operators of the array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp, node_of
from cnncc.frontend.export_onnx import opset_imports
from cnncc.main_function import main_function
from cnncc.passes._onnx.layers import is_tensor_of
from cnncc.passes._onnx.normalisation import constant_f32
from cnncc.passes._onnx.placement import hosted_operators
from cnncc.passes._onnx.replacement import NodeNames, Replacement, dims_of
from cnncc.passes.onnx_fold_affine import LEAST_OPSET, Doubles, channel_values
from cnncc.weights import WeightStore

RANKS = 2, 3, 4  # of images and rows: products by constants are normalisations then
OPERATORS = {"PRelu", "Relu", "Mul", "BatchNormalization", "Add"}  # the node, and what becomes of it


def _slopes(node: NodeOp, store: WeightStore) -> Doubles | None:
    """The slopes f64[c] of a PRelu that the output units cannot compute; None for other nodes."""
    if not node.is_op("PRelu") or len(node.operands) != 2:
        return None
    x, slopes = node.operands[0], constant_f32(node.operands[1], store)
    is_of_codes = node_of(x, "DequantizeLinear") is not None
    if slopes is None or not is_tensor_of(x, f32) or x.type != node.results[0].type or is_of_codes:
        return None
    dims = dims_of(x)
    values = channel_values(slopes, dims) if len(dims) in RANKS else None
    if values is None or not np.isfinite(values).all() or values.max() > 1:
        return None
    is_one_slope = values.min() == values.max() >= -1
    return None if is_one_slope else values


def _with_relu(new: Replacement, node: NodeOp, slopes: Doubles) -> SSAValue:
    """slope * x + max(0, (1 - slope) * x): x where x is positive, else slope * x."""
    x, dims = node.operands[0], dims_of(node.operands[0])

    def times(factors: Doubles) -> SSAValue:
        constant = factors.astype(np.float32).reshape(-1, *[1] * (len(dims) - 2))
        return new.node("Mul", [x, new.constant(constant)], dims)

    positive = new.node("Relu", [times(1 - slopes)], dims)
    return new.node("Add", [times(slopes), positive], dims, old=node)


@dataclass(frozen=True)
class OnnxSplitPreluPass(ModulePass):
    """Turn a PRelu with a slope for each channel into two products by constants, a Relu and a sum.

    Why: the output units have one slope for all channels. `onnx-fold-affine` makes layers of the products, of which the
    Relu and the sum are steps: two layers of the array instead of a node of the host between two halves of a network.

        %0 = onnx.node "PRelu"(%x, %slopes)   ->   %1 = onnx.node "Mul"(%x, %one_minus_slopes)
                                                   %2 = onnx.node "Relu"(%1)
                                                   %3 = onnx.node "Mul"(%x, %slopes)
                                                   %0 = onnx.node "Add"(%3, %2)

    y = slope * x + max(0, (1 - slope) * x), for slopes up to 1. These nodes stay:

    | with | why |
    |---|---|
    | one slope from -1 to 1 | the output units have it |
    | a slope above 1 | the formula has another sign then |
    | slopes that differ inside a channel, or are computed | no layer has them |
    | codes of a DequantizeLinear | floats between conversions stay on the host |
    | an operator on the host by the array file | the node, or what it becomes |
    """

    name = "onnx-split-prelu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        block, store = main_function(op).body.block, weights_of(ctx)
        if opset_imports(op)[""] < LEAST_OPSET or hosted_operators(op) & OPERATORS:
            return
        names = NodeNames(block)
        for node in list(block.ops):
            if isinstance(node, NodeOp) and (slopes := _slopes(node, store)) is not None:
                new = Replacement([node], store, names)
                new.finish(_with_relu(new, node, slopes))
