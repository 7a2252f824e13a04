"""How many frames prove a program over frames for all numbers of frames.

The number of an iteration over frames matters in three places:

- conditions: it is the first or the last one
- transfers: it selects the row of DRAM
- linear steps: it selects the place in a circle of words (`wrap`)

Circles come round after a number of frames, their *period*. The frames of a proof are a first one, a whole period, the
iterations that a loop runs more than others, and a last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm

from cnncc.errors import Refusal
from cnncc.isa.table import Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.cores.programs import has_frames

ENDS = 2  # the first and the last frame
MOST = 64


def frames_to_prove(instructions: Sequence[Instruction]) -> int:
    """The frames in which a program is proven; 1 for one that takes image by image. Raises Refusal for too many."""
    if not has_frames(instructions):
        return 1
    wraps, period, more = dict[int, int](), 1, 0
    for inst in instructions:
        match inst.spec.kind:
            case Kind.LOOP if inst.number("frames"):
                more = max(more, inst.number("count") - 1)
            case Kind.DESC:
                wraps[inst.number("id")] = inst.number("wrap")
            case Kind.STEP:
                by, wrap = inst.term("by"), wraps.get(inst.number("id"), 0)
                # CORE-8: a loop over frames stands in no other loop, so its register is 0.
                if by.axis == "lin" and inst.number("loop") == 0 and wrap:
                    period = lcm(period, wrap // gcd(wrap, by.step))
            case _:
                pass
    if (frames := ENDS + more + period) > MOST:
        raise Refusal(
            f"a proof would take {frames} frames, as circles of words come round so late; the limit is {MOST}"
        )
    return frames
