"""Folds another order of an image's words into the matrix product that reads the image as a row."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp, constant_operand, node_of, replace_constant
from cnncc.frontend.microsoft_ops import MICROSOFT
from cnncc.passes._onnx.quantised_layers import conversion_codes
from cnncc.passes.onnx_fold_constants import static_shape
from cnncc.weights import WeightStore

# Matrix products, and which operand is the weights.
PRODUCTS = {("", "Gemm"): 1, ("", "MatMul"): 1, ("", "QLinearMatMul"): 3, (MICROSOFT, "QGemm"): 3}


@dataclass(frozen=True)
class _FoldTranspose(RewritePattern):
    store: WeightStore

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: NodeOp, rewriter: PatternRewriter, /) -> None:
        index = PRODUCTS.get((op.domain.data if op.domain else "", op.op_type.data))
        if index is None or op.int_attr("transA", 0):
            return
        row = self.row(op.operand(0))
        turned = self.turned(row, op.operand(0)) if row else None
        weights = constant_operand(op.operand(index), self.store)
        if row is None or turned is None or weights is None or weights.ndim != 2:
            return
        sizes, order = static_shape(turned.operands[0]), turned.ints_attr("perm", ())
        if not sizes or not order or order[0] != 0 or static_shape(row.results[0]) != (sizes[0], prod(sizes[1:])):
            return
        axis = op.int_attr("transB", 0)
        # The number, in the image, of each word of the row.
        numbers = np.arange(prod(sizes[1:])).reshape(sizes[1:]).transpose([at - 1 for at in order[1:]]).ravel()
        replace_constant(op, index, np.take(weights, np.argsort(numbers), axis), self.store)
        value, row.operands[0] = row.operands[0], turned.operands[0]
        rewriter.notify_op_modified(op)
        while value is not row.operands[0]:
            dead = cast("NodeOp", value.owner)
            value = dead.operands[0]
            rewriter.erase(dead)

    def row(self, value: SSAValue | None) -> NodeOp | None:
        """The node that makes rows of images, of which `value` is the result, or its codes of one scale."""
        quantised = _only_read(value, "QuantizeLinear")
        if quantised and conversion_codes(quantised, self.store):
            value = quantised.operand(0)
        row = _only_read(value, "Flatten", "Reshape")
        return row if row and self.keeps_images(row) else None

    def keeps_images(self, row: NodeOp) -> bool:
        """Whether the result has the same shape for an image of other sides: a Reshape may copy one of them (a 0)."""
        if row.is_op("Flatten"):
            return row.int_attr("axis", 1) == 1
        dims = constant_operand(row.operand(1), self.store)
        return dims is not None and dims.size == 2 and bool(dims.flat[1])

    def turned(self, row: NodeOp, read: SSAValue | None) -> NodeOp | None:
        """The Transpose of which `row` makes rows, where the product reads `read`."""
        value, again = row.operand(0), _only_read(read, "QuantizeLinear")
        back = _only_read(value, "DequantizeLinear")
        first = _only_read(back.operand(0), "QuantizeLinear") if back else None
        if first and back and again:
            codes = {conversion_codes(node, self.store) for node in (first, back, again)}
            # To quantise again to the same codes changes nothing: the first time may be left out.
            value = first.operand(0) if len(codes) == 1 else value
        return _only_read(value, "Transpose")


def _only_read(value: SSAValue | None, *op_types: str) -> NodeOp | None:
    """The node of one of these types that computes `value`, if one operand alone reads it."""
    return node_of(value, *op_types) if value is not None and value.has_one_use() else None


@dataclass(frozen=True)
class OnnxFoldTransposePass(ModulePass):
    """Fold a Transpose of an image that a Gemm or MatMul reads as a row into the constant weights.

    Why: networks of TensorFlow have the channels of an image last. Their exporters turn it before a dense layer. The
    host would do so, between two parts of the program. The weights of the words in the image's own order are as good.

        %0 = onnx.node "Transpose"(%x) {perm = [0, 2, 3, 1]}
        %1 = onnx.node "Flatten"(%0)                            %1 = onnx.node "Flatten"(%x)
        %2 = onnx.node "MatMul"(%1, %w)                   ->    %2 = onnx.node "MatMul"(%1, %w')

    QLinearMatMul and QGemm are such products of codes. Between a Transpose and a row in floats may be a QuantizeLinear
    and a DequantizeLinear, of the codes that the product reads. The Transpose stays if anything else reads it or the
    row, if images move, or if the weights are no constant.
    """

    name = "onnx-fold-transpose"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place; unused constants stay for onnx-dead-code."""
        PatternRewriteWalker(_FoldTranspose(weights_of(ctx)), apply_recursively=False).rewrite_module(op)
