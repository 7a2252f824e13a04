"""Removes nodes that return their input unchanged: Identity, Cast to the input's type, and Dropout in inference."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp
from cnncc.frontend.export_onnx import opset_imports
from cnncc.passes._onnx.random_nodes import is_dropout_in_inference
from cnncc.weights import WeightStore


@dataclass(frozen=True)
class _Remove(RewritePattern):
    opset: int
    store: WeightStore

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: NodeOp, rewriter: PatternRewriter, /) -> None:
        source = op.operand(0)
        idle = op.is_op("Identity", "Cast") or is_dropout_in_inference(op, self.opset, self.store)
        if source is None or not idle:
            return
        # A Cast to another type is not idle; behind an operator of unknown shape, the input may lack the result's.
        if source.type != op.results[0].type:
            return
        # A mask with a reader has no other source, so the node stays.
        if any(result.uses for result in op.results[1:]):
            return
        op.results[0].replace_all_uses_with(source)
        rewriter.erase(op)


@dataclass(frozen=True)
class OnnxRemoveIdentityPass(ModulePass):
    """Replace the output of Identity, of Cast to the input's type, and of Dropout in inference, by the input.

    Why: they hide the producer of a value from patterns that match its reader. A Dropout stays if it is in training
    mode or if its mask has a reader.

        %0 = onnx.node "Conv"(%x, %w)           %0 = onnx.node "Conv"(%x, %w)
        %1 = onnx.node "Dropout"(%0)       ->   %2 = onnx.node "Relu"(%0)
        %2 = onnx.node "Relu"(%1)
    """

    name = "onnx-remove-identity"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        pattern = _Remove(opset_imports(op)[""], weights_of(ctx))
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
