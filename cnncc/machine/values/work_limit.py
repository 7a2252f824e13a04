"""A limit on an interpreter's work: it bounds the time of programs whose loops do not (rule PROG-6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from cnncc.isa.table import MOVING_WORDS, Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.instruction_sizes import commit_results, dma_words, load_words, mac_operations
from cnncc.machine.values.regfile import HalfFault

# The fixed cost of an instruction, in words or operations of array work that take as long.
PER_INSTRUCTION = 1 << 13
DEFAULT_LIMIT = 1 << 50
_MOST = 1 << 40  # the work of one instruction at most; an instruction with more traps by itself


@dataclass
class WorkLimit:
    """Words moved and operations done so far; each instruction and iteration adds PER_INSTRUCTION."""

    limit: int = DEFAULT_LIMIT
    done: int = 0

    def spend(self, amount: int) -> None:
        """Account for work that is about to be done. Raises HalfFault beyond the limit."""
        self.done += amount
        if self.done > self.limit:
            raise HalfFault(f"the interpreter's limit of {self.limit} words and operations is exceeded")


def work_of(inst: Instruction) -> int:
    """The words or operations of one instruction, padding and words that PEs share included."""
    kind = inst.spec.kind
    if kind not in MOVING_WORDS:
        return 0
    match kind:
        case Kind.LOAD:
            work = load_words(inst) * inst.number("rows") * inst.number("cols")
        case Kind.MAC:
            work = mac_operations(inst) * inst.number("rows") * inst.number("cols")
        case Kind.COMMIT:
            work = commit_results(inst)
        case Kind.DMA:
            work = dma_words(inst)
        case _:
            assert_never(kind)
    return min(work, _MOST)
