"""Instructions to 32-bit words and back, expanding the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from cnncc.errors import Refusal
from cnncc.isa.fields import LOOP_REGISTERS
from cnncc.isa.table import BY_OPCODE, OPCODE, Instruction, Spec, Value

Words = npt.NDArray[np.uint32]


def encode(instruction: Instruction) -> list[int]:
    """The words of one instruction."""
    spec = instruction.spec
    words = [0] * spec.words
    words[0] = spec.opcode << OPCODE.lsb
    for field in spec.fields:
        words[field.word] |= field.to_bits(instruction.values[field.name]) << field.lsb
    return words


def encode_program(program: Iterable[Instruction]) -> Words:
    """The words of a program: uint32[words]."""
    return np.array([word for instruction in program for word in encode(instruction)], np.uint32)


def _decode_one(spec: Spec, words: Sequence[int]) -> Instruction:
    values: dict[str, Value] = {}
    known = [0] * spec.words
    known[0] = OPCODE_MASK
    for field in spec.fields:
        mask = (1 << field.bits) - 1
        values[field.name] = field.from_bits(words[field.word] >> field.lsb & mask)
        known[field.word] |= mask << field.lsb
    for at, (word, used) in enumerate(zip(words, known, strict=True)):
        if word & ~used:
            raise ValueError(f"reserved bits {word & ~used:#010x} of word {at} are set")
    return Instruction(spec, values)


OPCODE_MASK = ((1 << OPCODE.bits) - 1) << OPCODE.lsb


def decode_program(words: Words) -> list[Instruction]:
    """The instructions of a program. Raises Refusal with the word offset of what is illegal."""
    plain = [int(word) for word in words]
    program: list[Instruction] = []
    at = 0
    while at < len(plain):
        spec = BY_OPCODE.get(plain[at] >> OPCODE.lsb)
        if spec is None:
            raise Refusal(f"word {at:#06x}: {plain[at]:#010x} has no known opcode")
        if at + spec.words > len(plain):
            raise Refusal(f"word {at:#06x}: {spec.name} takes {spec.words} words, {len(plain) - at} are left")
        try:
            program.append(_decode_one(spec, plain[at : at + spec.words]))
        except ValueError as error:
            raise Refusal(f"word {at:#06x}: {spec.name}: {error}") from error
        at += spec.words
    check_structure(program)
    return program


def check_structure(program: Sequence[Instruction]) -> None:
    """Loops are closed and at most 8 deep; halt stands once, at the end (P1, P2). Raises Refusal."""
    depth = 0
    for at, instruction in enumerate(program):
        name = instruction.spec.name
        depth += (name == "loop") - (name == "end")
        if not 0 <= depth <= LOOP_REGISTERS:
            raise Refusal(f"instruction {at}: {'end without loop' if depth < 0 else 'loops nest deeper than 8'}")
        if (name == "halt") != (at == len(program) - 1):
            raise Refusal(f"instruction {at}: halt must be the last instruction, and only that")
    if depth or not program:
        raise Refusal("the program is empty" if not program else f"{depth} loop(s) without end")
