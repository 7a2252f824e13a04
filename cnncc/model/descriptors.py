"""The sequencer's cycles for descriptors: a `desc` for each, and a `step` for each loop that moves it.

An operand has one descriptor (rule DESC-1) of its whole tensor, and one more of its buffer if it is staged. Weights and
params are always staged. No IR.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Set

from cnncc.mapping.mapping import OUTPUT_DIMS, Loop, Stage
from cnncc.model.layer_shape import LayerShape
from cnncc.model.loop_walk import WalkOrder

RINGS = "hwrs"  # dimensions of rows and columns, which count through the whole image even in a buffer


def descriptor_cycles(
    shape: LayerShape,
    order: WalkOrder,
    staged: Map[str, Stage],
    residual: bool,
    partial: bool,
    kept: Set[str],
) -> int:
    """The number of `desc` and `step` instructions of a layer, one cycle each.

    staged: the stages in the GLB, by operand. partial: whether the layer has partial sums, which need a descriptor too.
    kept: the operands in rings of a group, where all images lie in one place.
    """
    outer = order.nest.outer
    timed = [(depth, loop) for depth, loop in enumerate(outer) if not loop.on and depth not in order.unrolled]

    def moved(operand: str, depths: range, rings: str = "") -> int:
        """Loops that move a descriptor: they index the operand, and are at `depths` or over a dimension of `rings`."""
        return sum(
            (depth in depths or loop.dim in rings)
            and _moves(shape, operand, loop)
            and not (operand in kept and loop.dim == "n")
            for depth, loop in timed
        )

    total, everywhere = 0, range(len(outer))
    for operand in ("ifmap", "output", *(("residual",) if residual else ()), *(staged.keys() & {"weight", "params"})):
        stage = staged.get(operand)
        if stage is None:
            instructions = 1 + moved(operand, everywhere)
        else:
            turns = order.turns(stage.depth) if stage.buffers > 1 else 0
            # By position, positions are on the output's channel axis, which counts through the buffer alone (COMMIT-2).
            by_rows = operand in ("ifmap", "residual") or (operand == "output" and not shape.per_position)
            instructions = 1 + turns + moved(operand, range(stage.depth, len(outer)), RINGS if by_rows else "")
            total += 1 + moved(operand, range(stage.depth))
        total += instructions * (1 + (partial and operand == "output"))  # partial sums have the output's layout
    return total


def _moves(shape: LayerShape, operand: str, loop: Loop) -> bool:
    """Whether a loop moves an operand's position. A loop over k inside one group does not move the ifmap's."""
    if operand == "ifmap":
        return loop.dim != "k" or loop.step >= shape.group
    own = {"weight": "kcrs", "params": "hw" if shape.per_position else "k"}
    return loop.dim in own.get(operand, OUTPUT_DIMS)
