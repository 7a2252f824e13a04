"""Erases nodes and constants that nothing uses."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from cnncc.dialects.onnx import AbsentOp, NodeOp
from cnncc.dialects.weights import ConstantOp


@dataclass(frozen=True)
class OnnxDeadCodePass(ModulePass):
    """Erase ONNX nodes and `weights.constant` whose results have no use.

    No ONNX node has side effects, not even a random one. So a node without users is dead, whatever its type. Users come
    after their operands: one walk from the end erases whole dead chains.

        %0 = onnx.node "Relu"(%x)              // erased
        %1 = onnx.node "Sigmoid"(%x)      ->   %1 = onnx.node "Sigmoid"(%x)
        func.return %1                         func.return %1
    """

    name = "onnx-dead-code"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Erase in place."""
        for inner in list(op.walk(reverse=True)):
            if not isinstance(inner, NodeOp | ConstantOp | AbsentOp):
                continue
            if not any(result.uses for result in inner.results):
                Rewriter.erase_op(inner)
