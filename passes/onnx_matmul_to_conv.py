"""Turns products of stacked matrices by one matrix into convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp
from cnncc.frontend.export_onnx import opset_imports
from cnncc.main_function import main_function
from cnncc.passes._onnx.layers import is_tensor_of
from cnncc.passes._onnx.normalisation import constant_f32
from cnncc.passes._onnx.replacement import NodeNames, Replacement, activations, dims_of, ints
from cnncc.passes._onnx.windows import MOST_SIDE
from cnncc.weights import Array, WeightStore

LEAST_OPSET = 7  # before, an Add broadcasts by an attribute; Reshape takes the shape as an input


def _rewrite(op: NodeOp, store: WeightStore, names: NodeNames, images: dict[SSAValue, SSAValue]) -> None:
    """Replace `op` and the bias and activations after it, if it is a MatMul of rank 3 or more by a constant matrix.

    images: those that were turned into matrices, to which the new one is added. They need not be turned back.
    """
    if not op.is_op("MatMul") or len(op.operands) != 2:
        return
    stack, weights = op.operands[0], constant_f32(op.operands[1], store)
    if not (is_tensor_of(stack, f32) and is_tensor_of(op.results[0], f32)) or weights is None or weights.ndim != 2:
        return
    dims, (c, k) = dims_of(stack), weights.shape
    if len(dims) < 3 or dims[-1] != c or dims_of(op.results[0]) != (*dims[:-1], k):
        return
    after, rows = list(_after(op, store, k)), prod(dims[:-1])
    new = Replacement([op, *(node for node, _ in after)], store, names)
    # Instructions count only so many columns: more pixels are a row for each matrix.
    image = (1, rows) if rows <= MOST_SIDE else (rows // dims[-2], dims[-2])
    value = images.get(stack)
    if value is None:
        value = new.reshaped(stack, (1, *image, c))
        value = new.node("Transpose", [value], (1, c, *image), {"perm": ints([0, 3, 1, 2])})
    value = new.node("Conv", [value, new.constant(weights.T[:, :, None, None])], (1, k, *image), old=op)
    for node, bias in after:
        others = node.operands[1:] if bias is None else [new.constant(bias[:, None, None])]
        value = new.again(node, value, others)
    turned = new.node("Transpose", [value], (1, *image, k), {"perm": ints([0, 2, 3, 1])})
    result = new.reshaped(turned, (*dims[:-1], k))
    images[result] = value
    new.finish(result)


def _after(op: NodeOp, store: WeightStore, k: int) -> Iterator[tuple[NodeOp, Array | None]]:
    """The sum of a bias after `op` with that bias, f32[k]; then activations."""
    use = op.results[0].get_user_of_unique_use()
    if isinstance(use, NodeOp) and use.is_op("Add") and use.results[0].type == op.results[0].type:
        biases = [constant_f32(value, store) for value in use.operands]
        for bias in biases:
            if bias is not None and bias.size == k and bias.shape[-1:] == (k,):
                yield use, bias.reshape(k)
                op = use
    yield from ((node, None) for node in activations(op))


@dataclass(frozen=True)
class OnnxMatmulToConvPass(ModulePass):
    """Let a convolution of 1x1 compute a MatMul of stacked matrices by one constant matrix.

    Why: all rows are multiplied by the same weights, as the pixels of an image are. Rows of a matrix of rank 2 would be
    images, and a block with a part of the channels has a transfer for each image (LEGAL-5).

        %0 = onnx.node "MatMul"(%x, %w) : (tensor<1x40x120xf32>, tensor<120x96xf32>) -> tensor<1x40x96xf32>

    becomes

        %1 = onnx.node "Reshape"(%x, …)            : … -> tensor<1x1x40x120xf32>
        %2 = onnx.node "Transpose"(%1) {perm = …}  : … -> tensor<1x120x1x40xf32>
        %3 = onnx.node "Conv"(%2, %weights)        : … -> tensor<1x96x1x40xf32>
        %4 = onnx.node "Transpose"(%3) {perm = …}  : … -> tensor<1x1x40x96xf32>
        %0 = onnx.node "Reshape"(%4, …)            : … -> tensor<1x40x96xf32>

    The host turns the matrices. Bias, Relu, LeakyRelu, Clip and PRelu after the product come before they turn back.
    """

    name = "onnx-matmul-to-conv"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place; matrices that nothing reads any more stay for onnx-dead-code."""
        block = main_function(op).body.block
        names, images = NodeNames(block), dict[SSAValue, SSAValue]()
        for node in list(block.ops):
            if isinstance(node, NodeOp) and opset_imports(op)[""] >= LEAST_OPSET:
                _rewrite(node, weights_of(ctx), names, images)
