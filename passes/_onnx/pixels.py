"""Puts the pixels of several images in turn. No pass: passes on `onnx` use it.

Source: ONNX DepthToSpace-13 with mode = DCR, which is all that it does before opset 11.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import SSAValue

from cnncc.dialects.onnx import NodeOp
from cnncc.passes._onnx.replacement import Replacement, dims_of


def activated(new: Replacement, value: SSAValue, nodes: Sequence[NodeOp]) -> SSAValue:
    """What the activations `nodes` make of `value`, one after the other."""
    for node in nodes:
        value = new.again(node, value, node.operands[1:])
    return value


def in_turn(new: Replacement, parts: Sequence[SSAValue], step: int, old: NodeOp | None = None) -> SSAValue:
    """n k h w: of each square of step * step pixels, pixel (i, j) is that of part i * step + j.

    old: the node with the name of the last new one (`Replacement.node`).
    """
    n, k, h, w = dims_of(parts[0])
    every = new.node("Concat", parts, (n, k * len(parts), h, w), {"axis": IntegerAttr(1, i64)})
    blocksize = {"blocksize": IntegerAttr(step, i64)}
    return new.node("DepthToSpace", [every], (n, k, h * step, w * step), blocksize, old)
