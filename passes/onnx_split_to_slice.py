"""Turns a Split of channels into slices."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp
from cnncc.frontend.export_onnx import opset_imports
from cnncc.main_function import main_function
from cnncc.passes._onnx.placement import hosted_operators
from cnncc.passes._onnx.replacement import NodeNames, Replacement
from cnncc.passes.onnx_fold_constants import static_shape

RANKS = 2, 3, 4  # of images; the channels are axis 1


def _channels(node: NodeOp) -> list[int] | None:
    """The channels of each result of a Split of channels; None for any other node, and for unknown shapes."""
    shapes = [static_shape(value) for value in (*node.operands[:1], *node.results)]
    known = [dims for dims in shapes if dims is not None and len(dims) in RANKS]
    if not node.is_op("Split") or len(known) < len(shapes):
        return None
    (_, whole, *_), *parts = known
    axis = node.int_attr("axis", 0)
    channels = [dims[1] for dims in parts]
    return channels if axis in (1, 1 - len(known[0])) and sum(channels) == whole else None


@dataclass(frozen=True)
class OnnxSplitToSlicePass(ModulePass):
    """Turn a Split of channels into a Slice for each result.

    Why: a layer reads some channels of a value where the whole value lies, and a node on the array has one result.

        %0, %1 = onnx.node "Split"(%x) {axis = 1}   ->   %0 = onnx.node "Slice"(%x, …)
                                                         %1 = onnx.node "Slice"(%x, …)

    A Split of another axis stays, as does one of more than four dims, or if the array file has Split on the host.
    """

    name = "onnx-split-to-slice"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place; unused constants and slices stay for onnx-dead-code."""
        opset, block = opset_imports(op)[""], main_function(op).body.block
        names = NodeNames(block)
        for node in list(block.ops) if "Split" not in hosted_operators(op) else ():
            if isinstance(node, NodeOp) and (channels := _channels(node)):
                new, ends = Replacement([node], weights_of(ctx), names), accumulate(channels, initial=0)
                new.finish(*(new.sliced(node.operands[0], {1: bounds}, opset) for bounds in pairwise(ends)))
