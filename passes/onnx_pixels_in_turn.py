"""Turns what scales images up into concatenations, whose pixels a DepthToSpace puts in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp
from cnncc.frontend.export_onnx import opset_imports
from cnncc.main_function import main_function
from cnncc.passes._onnx.codes import codes_of
from cnncc.passes._onnx.layers import MOST_BLOCK, is_tensor_of
from cnncc.passes._onnx.normalisation import constant_f32
from cnncc.passes._onnx.pixels import activated, in_turn
from cnncc.passes._onnx.placement import hosted_operators
from cnncc.passes._onnx.replacement import NodeNames, Replacement, activations, dims_of
from cnncc.passes._onnx.resizing import repeats
from cnncc.passes.onnx_fold_constants import static_shape
from cnncc.weights import WeightStore

BYTES_OPSET = 11  # before, onnxruntime's DepthToSpace takes floats alone


@dataclass(frozen=True)
class _ToSpace:
    """Nodes that make pixels of channels: a DepthToSpace, or a Transpose between two Reshapes.

    - step: how many rows and columns become of each
    - mode: DCR where the channels are (step, step, k), CRD where they are (k, step, step)
    """

    nodes: Sequence[NodeOp]
    step: int
    mode: str

    def channels(self, count: int, group: int) -> npt.NDArray[np.int64] | None:
        """Which of `count` channels of a convolution become each of the step * step pixels.

        None where there are too many pixels, or where pixels have unequal shares of the convolution's groups.
        """
        pixels = self.step**2
        if not 1 < self.step <= MOST_BLOCK or count % (pixels * group):
            return None
        every = np.arange(count)
        channels = every.reshape(pixels, -1) if self.mode == "DCR" else every.reshape(-1, pixels).T
        groups = np.repeat(np.arange(group), count // pixels // group)
        return channels if (channels // (count // group) == groups).all() else None


def _moves(value: SSAValue) -> _ToSpace | None:
    """The nodes which alone read `value`, and make pixels of its channels."""
    nodes = _readers(value)
    kinds = [node.op_type.data for node in nodes]
    if kinds[:1] == ["DepthToSpace"]:
        step, mode = nodes[0].int_attr("blocksize", 1), nodes[0].str_attr("mode", "DCR")
        return _ToSpace(nodes[:1], step, mode) if mode in ("DCR", "CRD") else None
    return _transposed(value, nodes) if kinds == ["Reshape", "Transpose", "Reshape"] else None


def _readers(value: SSAValue) -> list[NodeOp]:
    """Up to three nodes after `value`, each of which alone reads the one before it."""
    nodes: list[NodeOp] = []
    while len(nodes) < 3:
        use = value.get_user_of_unique_use()
        if not isinstance(use, NodeOp) or use.domain is not None or use.operands[0] is not value:
            break
        nodes.append(use)
        value = use.results[0]
    return nodes


def _transposed(value: SSAValue, nodes: Sequence[NodeOp]) -> _ToSpace | None:
    """A Reshape, a Transpose and a Reshape, as PyTorch writes them for a PixelShuffle."""
    (n, c, h, w), split, result = dims_of(value), static_shape(nodes[0].results[0]), static_shape(nodes[2].results[0])
    if split is None or result is None or len(result) != len("nchw"):
        return None
    step = result[2] // h
    k = c // max(step, 1) ** 2
    order = nodes[1].ints_attr("perm", ())
    if result != (n, k, h * step, w * step):
        return None
    if split == (n, k, step, step, h, w) and order == (0, 1, 4, 2, 5, 3):
        return _ToSpace(nodes, step, "CRD")
    if split == (n, step, step, k, h, w) and order == (0, 3, 4, 1, 5, 2):
        return _ToSpace(nodes, step, "DCR")
    return None


@dataclass(frozen=True)
class _PixelRewriter:
    """Rewrites nodes. hosted: operators that stay on the host."""

    opset: int
    store: WeightStore
    names: NodeNames
    hosted: set[str]

    def rewrite(self, node: NodeOp) -> None:
        """Replace `node`, if it is a Resize or Upsample that repeats pixels, or a Conv before a DepthToSpace."""
        if node.is_op(*{"Resize", "Upsample"} - self.hosted):
            self.repeat(node)
        elif node.is_op("Conv") and is_tensor_of(node.results[0], f32) and len(dims_of(node.results[0])) == len("nchw"):
            self.split(node)

    def repeat(self, node: NodeOp) -> None:
        """Replace a Resize or Upsample by so many of its operand, with their pixels in turn, or by its operand."""
        image, step = node.operands[0], repeats(node, self.opset, self.store)
        of_bytes = codes_of(image.type) is not None and self.opset >= BYTES_OPSET
        if step is None or step > MOST_BLOCK or not (of_bytes or is_tensor_of(image, f32)):
            return
        new = Replacement([node], self.store, self.names)
        new.finish(in_turn(new, [image] * step**2, step, node) if step > 1 else image)

    def split(self, conv: NodeOp) -> None:
        """Replace a Conv before a DepthToSpace by one Conv for each pixel."""
        before = [conv, *activations(conv)]
        moves = _moves(before[-1].results[0])
        weights, bias = constant_f32(conv.operand(1), self.store), constant_f32(conv.operand(2), self.store)
        if moves is None or weights is None or (bias is None and conv.operand(2) is not None):
            return
        channels = moves.channels(len(weights), conv.int_attr("group", 1))
        if channels is None or self.hosted & {node.op_type.data for node in moves.nodes}:
            return
        behind = [*activations(moves.nodes[-1])]
        new = Replacement([*before, *moves.nodes, *behind], self.store, self.names)
        n, _, h, w = dims_of(conv.results[0])
        parts: list[SSAValue] = []
        for of_pixel in channels:
            constants = [new.constant(array[of_pixel]) for array in (weights, bias) if array is not None]
            dims = (n, len(of_pixel), h, w)
            part = new.node("Conv", [conv.operands[0], *constants], dims, conv.attributes, conv)
            parts.append(activated(new, part, [*before[1:], *behind]))
        new.finish(in_turn(new, parts, moves.step, moves.nodes[-1]))


@dataclass(frozen=True)
class OnnxPixelsInTurnPass(ModulePass):
    """Make a DepthToSpace of a concatenation of what scales images up: Resize, Upsample, and a Conv's DepthToSpace.

    Why: the array writes the pixels of several images in turn. A Resize or Upsample that repeats each pixel, in squares
    of b by b, has the same image b * b times:

        %0 = onnx.node "Resize"(%x, %none, %scales)   ->   %1 = onnx.node "Concat"(%x, %x, %x, %x) {axis = 1}
                                                           %0 = onnx.node "DepthToSpace"(%1) {blocksize = 2}

    A Conv whose channels become pixels is one Conv for each of the b * b pixels of a square, with the filters of that
    pixel. PyTorch writes its PixelShuffle as such a DepthToSpace, or as a Transpose between two Reshapes:

        %1 = onnx.node "Conv"(%x, %w)                 ->   %1 = onnx.node "Conv"(%x, %w1)
        %0 = onnx.node "DepthToSpace"(%1)                  %2 = onnx.node "Conv"(%x, %w2)
                 {blocksize = 2, mode = "CRD"}             %3 = onnx.node "Conv"(%x, %w3)
                                                           %4 = onnx.node "Conv"(%x, %w4)
                                                           %5 = onnx.node "Concat"(%1, %2, %3, %4) {axis = 1}
                                                           %0 = onnx.node "DepthToSpace"(%5) {blocksize = 2}

    Relu, LeakyRelu, Clip and PRelu before and after the DepthToSpace come before the concatenation. A Resize by 1 goes.

    A Resize or Upsample stays whose factors are computed, differ between rows and columns, are not whole or are above
    8, or which does not repeat pixels. Which pixels its modes take is computed as onnxruntime does it. A Conv stays
    whose weights are computed, of whose groups a pixel has unequal shares, or whose result others read. So does a node
    that the array file has on the host, and all of them where DepthToSpace is there.
    """

    name = "onnx-pixels-in-turn"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place; unused constants stay for onnx-dead-code."""
        hosted, block, store = hosted_operators(op), main_function(op).body.block, weights_of(ctx)
        if "DepthToSpace" in hosted:
            return
        rewriter = _PixelRewriter(opset_imports(op)[""], store, NodeNames(block), hosted)
        for node in list(block.ops):
            if isinstance(node, NodeOp):
                rewriter.rewrite(node)
