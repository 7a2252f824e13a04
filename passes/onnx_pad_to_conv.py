"""Turns padding with channels of zeros into a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.passes import ModulePass

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp, node_of
from cnncc.main_function import main_function
from cnncc.passes._onnx.layers import READERS, PoolLayer, StaysOnHost, is_tensor_of, read_layer
from cnncc.passes._onnx.pads import zeros_added
from cnncc.passes._onnx.placement import hosted_operators
from cnncc.passes._onnx.replacement import NodeNames, Replacement, dims_of, ints
from cnncc.passes.onnx_fold_constants import static_shape
from cnncc.weights import WeightStore

IMAGE = 4  # the rank of n c h w
CHANNELS = 1  # their axis


def _channels_added(node: NodeOp, store: WeightStore) -> tuple[int, int] | None:
    """Channels of zeros before and behind those of an image; None for any other node, and where the host reads them."""
    if not node.is_op("Pad") or not is_tensor_of(node.operands[0], f32) or static_shape(node.operands[0]) is None:
        return None
    zeros = zeros_added(node, store)
    if zeros is None or len(zeros) != 2 * IMAGE or min(zeros) < 0:
        return None
    if any(number for at, number in enumerate(zeros) if at % IMAGE != CHANNELS):
        return None
    users = [use.operation for use in node.results[0].uses]
    is_read = all(isinstance(user, NodeOp) and user.op_type.data in READERS for user in users)
    return (zeros[CHANNELS], zeros[CHANNELS + IMAGE]) if is_read and users else None


def _strided_before(node: NodeOp, store: WeightStore) -> tuple[Sequence[NodeOp], tuple[int, int]]:
    """The nodes before a Pad, each read by the next one alone, that take every n-th row and column; these strides."""
    nodes, rows, cols = list[NodeOp](), 1, 1
    while (before := node_of(node.operands[0], "Slice", "MaxPool")) and before.results[0].has_one_use():
        try:
            layer = read_layer(before, store)
        except StaysOnHost:
            break
        if not isinstance(layer, PoolLayer) or layer.window.kernel != (1, 1) or any(layer.window.pad):
            break
        rows, cols = rows * layer.window.stride[0], cols * layer.window.stride[1]
        nodes.insert(0, before)
        node = before
    return nodes, (rows, cols)


@dataclass(frozen=True)
class OnnxPadToConvPass(ModulePass):
    """Let a convolution of 1x1 add channels of zeros, and take every n-th row and column before.

    Why: so the array does what shortcuts without weights do, as in the ResNets of small images. Its weights are ones
    and zeros.

        %0 = onnx.node "Slice"(%x, …)  : (tensor<1x16x32x32xf32>, …) -> tensor<1x16x16x16xf32>
        %1 = onnx.node "Pad"(%0, %pads) : … -> tensor<1x32x16x16xf32>

    becomes

        %1 = onnx.node "Conv"(%x, %weights) {strides = [2, 2]} : (tensor<1x16x32x32xf32>, …) -> tensor<1x32x16x16xf32>

    A Pad stays that adds anything else, that nodes of the host read, or if the array file has Pad on the host.
    """

    name = "onnx-pad-to-conv"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place; unused constants stay for onnx-dead-code."""
        block, store = main_function(op).body.block, weights_of(ctx)
        names = NodeNames(block)
        for node in list(block.ops) if "Pad" not in hosted_operators(op) else ():
            if not isinstance(node, NodeOp) or (added := _channels_added(node, store)) is None:
                continue
            before, strides = _strided_before(node, store)
            new = Replacement([*before, node], store, names)
            image = new.nodes[0].operands[0]
            weights = np.pad(np.eye(dims_of(image)[1], dtype=np.float32), (added, (0, 0)))[:, :, None, None]
            attributes = {"strides": ints(strides)}
            new.finish(new.node("Conv", [image, new.constant(weights)], dims_of(node.results[0]), attributes, node))
