"""Traps: faults of a program at run time."""

from __future__ import annotations

from cnncc.errors import Refusal
from cnncc.isa.assembly import format_instruction
from cnncc.isa.table import Instruction


class Trap(Refusal):
    """A program's fault: where (number of the instruction, its first word), the instruction, and what happened."""

    def __init__(self, index: int, address: int, instruction: Instruction, happened: str) -> None:
        super().__init__(f"instruction {index} (word {address:#06x}): {happened}: {format_instruction(instruction)}")
        self.index = index
        self.address = address
        self.instruction = instruction
        self.happened = happened
