"""Makes one node of a SiLU."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, f32
from xdsl.passes import ModulePass

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp, node_of
from cnncc.frontend.microsoft_ops import MICROSOFT
from cnncc.main_function import main_function
from cnncc.passes._onnx.layers import is_tensor_of
from cnncc.passes._onnx.placement import hosted_operators
from cnncc.passes._onnx.replacement import NodeNames, Replacement, dims_of, import_microsoft


def _sigmoid_of(product: NodeOp) -> NodeOp | None:
    """The Sigmoid of a product x * Sigmoid(x) of f32, which nothing else reads."""
    if len(product.operands) != 2:
        return None
    for x, gate in (tuple(product.operands), tuple(reversed(product.operands))):
        sigmoid = node_of(gate, "Sigmoid")
        if sigmoid and sigmoid.operands[0] is x and is_tensor_of(x, f32) and gate.has_one_use():
            return sigmoid
    return None


@dataclass(frozen=True)
class OnnxFoldSiluPass(ModulePass):
    """Turn a number times its Sigmoid into a QuickGelu of onnxruntime's, x / (1 + exp(-alpha * x)) with alpha = 1.

    Why: it is a function of a single number, which the output units look up in a table (COMMIT-7). As a product it
    would be a layer more, of two rounded factors.

        %0 = onnx.node "Sigmoid"(%x)   ->   %1 = onnx.node "QuickGelu" domain "com.microsoft"(%x) {alpha = 1.0 : f32}
        %1 = onnx.node "Mul"(%x, %0)

    A Sigmoid with other readers stays, and so do both where the array file has one of them on the host.
    """

    name = "onnx-fold-silu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        block, hosted = main_function(op).body.block, hosted_operators(op)
        names = NodeNames(block)
        for node in list(block.ops):
            if not isinstance(node, NodeOp) or not node.is_op("Mul") or hosted & {"Mul", "Sigmoid"}:
                continue
            if (sigmoid := _sigmoid_of(node)) is not None:
                import_microsoft(op)
                new, x = Replacement([sigmoid, node], weights_of(ctx), names), sigmoid.operands[0]
                alpha = {"alpha": FloatAttr(1.0, f32)}
                new.finish(new.node("QuickGelu", [x], dims_of(x), alpha, node, domain=MICROSOFT))
