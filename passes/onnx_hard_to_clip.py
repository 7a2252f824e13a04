"""Turns HardSigmoid and HardSwish into operators of the array."""

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


def _slope_and_offset(node: NodeOp) -> tuple[float, float]:
    """Those of the line that HardSigmoid and HardSwish clip to 0..1."""
    if node.is_op("HardSwish"):
        return 1 / 6, 0.5
    return node.float_attr("alpha", 0.2), node.float_attr("beta", 0.5)


def _clipped_line(new: Replacement, node: NodeOp, opset: int) -> SSAValue:
    """min(max(x * slope + offset, 0), 1), called like `node` if that is all of it."""
    x, old = node.operands[0], node if node.is_op("HardSigmoid") else None
    dims, numbers = dims_of(x), [new.constant(np.array(each, np.float32)) for each in (*_slope_and_offset(node), 0, 1)]
    line = new.node("Add", [new.node("Mul", [x, numbers[0]], dims), numbers[1]], dims)
    if opset < CLIP_BY_INPUTS:
        return new.node("Clip", [line], dims, {"min": FloatAttr(0.0, f32), "max": FloatAttr(1.0, f32)}, old)
    return new.node("Clip", [line, *numbers[2:]], dims, old=old)


@dataclass(frozen=True)
class OnnxHardToClipPass(ModulePass):
    """Turn HardSigmoid into a product, a sum and a Clip, and HardSwish into its input times these.

    Why: the array has no such operators, but `onnx-fold-affine` makes one layer of a product and a sum by constants, of
    which the Clip is a step. So is the product with the input.

        %0 = onnx.node "HardSwish"(%x)   ->   %1 = onnx.node "Mul"(%x, %sixth)
                                              %2 = onnx.node "Add"(%1, %half)
                                              %3 = onnx.node "Clip"(%2, %zero, %one)
                                              %0 = onnx.node "Mul"(%x, %3)

    A node stays that is of other numbers than f32, of other than two to four dims, or that the array file has on the
    host. So does one between conversions of codes, for which a table has the model's own results.
    """

    name = "onnx-hard-to-clip"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        opset, block, store = opset_imports(op)[""], main_function(op).body.block, weights_of(ctx)
        hosted, names = hosted_operators(op), NodeNames(block)
        for node in list(block.ops):
            if not isinstance(node, NodeOp) or not node.is_op(*{"HardSigmoid", "HardSwish"} - hosted):
                continue
            x, dims = node.operands[0], static_shape(node.operands[0])
            of_codes = node_of(x, "DequantizeLinear") is not None
            if is_tensor_of(x, f32) and dims is not None and len(dims) in RANKS and not of_codes:
                new = Replacement([node], store, names)
                clipped = _clipped_line(new, node, opset)
                new.finish(new.node("Mul", [x, clipped], dims, old=node) if node.is_op("HardSwish") else clipped)
