"""Cycles that the sequencer spends on setting up descriptors: a `desc` for each, a `step` for each loop that moves it.

An operand has one descriptor (rule DESC-1) for the whole of it, and one more for its buffer if it is staged. Weights
and params are always staged. No IR.
"""

from __future__ import annotations

from collections.abc import Mapping as Map

from cnncc.dialects._mapping import OUTPUT_DIMS, Loop, Stage
from cnncc.model.layer_shape import LayerShape
from cnncc.model.loop_walk import WalkOrder

RINGS = "hwrs"  # dimensions of rows and columns, which count through the whole image even in a buffer


def own_cycles(shape: LayerShape, order: WalkOrder, staged: Map[str, Stage], residual: bool, partial: bool) -> int:
    """All `desc` and `step` of a layer."""
    outer = order.nest.outer
    timed = [(depth, loop) for depth, loop in enumerate(outer) if not loop.on and depth not in order.unrolled]

    def moved(operand: str, depths: range, rings: str = "") -> int:
        """Loops that move a descriptor: of those at `depths` all that the operand depends on, of `rings` all others."""
        return sum((depth in depths or loop.dim in rings) and _moves(shape, operand, loop) for depth, loop in timed)

    total, everywhere = 0, range(len(outer))
    for operand in _operands(shape, staged, residual):
        stage = staged.get(operand)
        if stage is None:
            there = 1 + moved(operand, everywhere)
        else:
            turns = order.turns(stage.depth) if stage.buffers > 1 else 0
            by_rows = operand in ("ifmap", "residual") or (operand == "output" and not shape.per_position)
            there = 1 + turns + moved(operand, range(stage.depth, len(outer)), RINGS if by_rows else "")
            total += 1 + moved(operand, range(stage.depth))
        total += there * (1 + (partial and operand == "output"))  # partial sums lie as the output does
    return total


def _operands(shape: LayerShape, staged: Map[str, Stage], residual: bool) -> list[str]:
    return ["ifmap", "output", *(["residual"] if residual else []), *(staged.keys() & {"weight", "params"})]


def _moves(shape: LayerShape, operand: str, loop: Loop) -> bool:
    """Whether an iteration of a loop moves on in an operand: one over k inside a group does not in the ifmap."""
    if operand == "ifmap":
        return loop.dim != "k" or loop.step >= shape.group
    own = {"weight": "kcrs", "params": "hw" if shape.per_position else "k"}
    return loop.dim in own.get(operand, OUTPUT_DIMS)
