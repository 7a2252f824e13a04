"""Turns HardSigmoid into operators of the array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, f32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp, node_of
from cnncc.frontend.export_onnx import opset_imports
from cnncc.main_function import main_function
from cnncc.passes._onnx.layers import is_tensor_of
from cnncc.passes._onnx.placement import hosted_operators
from cnncc.passes._onnx.replacement import NodeNames, Replacement, dims_of
from cnncc.passes.onnx_fold_constants import static_shape

RANKS = 2, 3, 4  # of images and rows: a product and a sum by constants are normalisations then
CLIP_BY_INPUTS = 11  # from this opset on, Clip takes its bounds as inputs


def _clipped_line(new: Replacement, node: NodeOp, opset: int) -> SSAValue:
    """min(max(x * alpha + beta, 0), 1)."""
    x, line = node.operands[0], (node.float_attr("alpha", 0.2), node.float_attr("beta", 0.5))
    dims, numbers = dims_of(x), [new.constant(np.array(each, np.float32)) for each in (*line, 0, 1)]
    total = new.node("Add", [new.node("Mul", [x, numbers[0]], dims), numbers[1]], dims)
    if opset < CLIP_BY_INPUTS:
        return new.node("Clip", [total], dims, {"min": FloatAttr(0.0, f32), "max": FloatAttr(1.0, f32)}, node)
    return new.node("Clip", [total, *numbers[2:]], dims, old=node)


@dataclass(frozen=True)
class OnnxHardToClipPass(ModulePass):
    """Turn HardSigmoid into a product, a sum and a Clip.

    Why: `onnx-fold-affine` makes one layer of a product and a sum by constants, or a part of the layer before, of which
    the Clip is a step. It is exact; a table has lines that pass by the kinks.

        %0 = onnx.node "HardSigmoid"(%x)   ->   %1 = onnx.node "Mul"(%x, %alpha)
                                                %2 = onnx.node "Add"(%1, %beta)
                                                %0 = onnx.node "Clip"(%2, %zero, %one)

    A node stays that is of other numbers than f32, of other than two to four dims, or that the array file has on the
    host. So does one between conversions of codes, for which a table has the model's own results.
    """

    name = "onnx-hard-to-clip"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        opset, block, store = opset_imports(op)[""], main_function(op).body.block, weights_of(ctx)
        names = NodeNames(block)
        if "HardSigmoid" in hosted_operators(op):
            return
        for node in list(block.ops):
            if not isinstance(node, NodeOp) or not node.is_op("HardSigmoid"):
                continue
            x, dims = node.operands[0], static_shape(node.operands[0])
            of_codes = node_of(x, "DequantizeLinear") is not None
            if is_tensor_of(x, f32) and dims is not None and len(dims) in RANKS and not of_codes:
                new = Replacement([node], store, names)
                new.finish(_clipped_line(new, node, opset))
