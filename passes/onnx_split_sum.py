"""Splits a Sum of many tensors into sums of two."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern

from cnncc.dialects.onnx import NodeOp


class _SplitSum(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: NodeOp, rewriter: PatternRewriter, /) -> None:
        kinds = {value.type for value in (*op.operands, op.results[0])}
        # The intermediate types of a broadcast sum would have to be inferred first.
        if not op.is_op("Sum") or len(op.operands) == 2 or len(kinds) != 1:
            return
        total, *others = op.operands
        for addend in others[:-1]:
            part = NodeOp.create(
                operands=[total, addend],
                result_types=[total.type],
                properties={"op_type": op.op_type},  # names are taken by the last
            )
            rewriter.insert(part)
            total = part.results[0]
        if not others:
            rewriter.replace(op, [], [total])
            return
        last = NodeOp.create(
            operands=[total, others[-1]],
            result_types=[op.results[0].type],
            properties=op.properties,
            attributes=op.attributes,
        )
        rewriter.replace(op, last)


@dataclass(frozen=True)
class OnnxSplitSumPass(ModulePass):
    """Split a Sum of several tensors of one shape into a chain of sums of two, and remove a Sum of one.

    Why: the output units add one residual at a time. The pass runs before calibration, which measures each intermediate
    value. A Sum that broadcasts shapes stays.

        %0 = onnx.node "Sum"(%a, %b, %c)   ->   %1 = onnx.node "Sum"(%a, %b)
                                                %0 = onnx.node "Sum"(%1, %c)

    The order of the additions is onnxruntime's.
    """

    name = "onnx-split-sum"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        PatternRewriteWalker(_SplitSum(), apply_recursively=False).rewrite_module(op)
