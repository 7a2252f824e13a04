"""Instructions and messages to 32-bit words and back, expanding the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from cnncc.arch.model import LOOP_REGISTERS
from cnncc.errors import Refusal, plural
from cnncc.isa.table import BY_NAME, BY_OPCODE, OPCODE, Instruction, InstructionKind, Spec, Value

Words = npt.NDArray[np.uint32]


def encode(instruction: Instruction) -> list[int]:
    """The words of one instruction."""
    spec = instruction.spec
    words, defaults = spec.default_words[:], spec.defaults
    for field in spec.fields:
        if (value := instruction.values[field.name]) != defaults[field.name]:
            # The words have the default's bits already: the difference turns them into the value's.
            words[field.word] ^= (field.to_bits(value) ^ field.default_bits) << field.lsb
    return words


def encode_program(program: Iterable[Instruction]) -> Words:
    """The words of a program: uint32[words]."""
    return np.array([word for instruction in program for word in encode(instruction)], np.uint32)


def _decode_one(spec: Spec, words: Sequence[int]) -> Instruction:
    values: dict[str, Value] = {}
    for field in spec.fields:
        bits = words[field.word] >> field.lsb & field.mask
        values[field.name] = field.default if bits == field.default_bits else field.from_bits(bits)
    for at, (word, reserved) in enumerate(zip(words, spec.reserved, strict=True)):
        if word & reserved:
            raise ValueError(f"reserved bits {word & reserved:#010x} of word {at} are set")
    return Instruction(spec, values)


def decode_program(words: Words) -> list[Instruction]:
    """The instructions of a program. Raises Refusal with the word offset of an illegal instruction."""
    plain = [int(word) for word in words]
    program: list[Instruction] = []
    at = 0
    while at < len(plain):
        spec = BY_OPCODE.get(plain[at] >> OPCODE.lsb)
        if spec is None:
            raise Refusal(f"word {at:#06x}: {plain[at]:#010x} has no known opcode")
        if at + spec.words > len(plain):
            raise Refusal(f"word {at:#06x}: {spec.name} takes {plural(spec.words, 'word')}, {len(plain) - at} are left")
        try:
            program.append(_decode_one(spec, plain[at : at + spec.words]))
        except ValueError as error:
            raise Refusal(f"word {at:#06x}: {spec.name}: {error}") from error
        at += spec.words
    check_structure(program)
    return program


def begins_with_core(words: Words) -> bool:
    """Whether the first of a program's words is that of `core`."""
    return int(words[0]) >> OPCODE.lsb == BY_NAME["core"].opcode


def has_cores(program: Sequence[Instruction]) -> bool:
    """Whether the program begins with `core`: it has several cores, or one with some of the PEs (CORE-2)."""
    return bool(program) and program[0].spec.kind is InstructionKind.CORE


def check_structure(program: Sequence[Instruction]) -> None:
    """Check that loops are closed and at most 8 deep, and where halt and core stand (PROG-1, PROG-2, CORE-2).

    Raises: Refusal.
    """
    cores, depth, begins = has_cores(program), 0, True
    for at, instruction in enumerate(program):
        name = instruction.spec.name
        depth += (name == "loop") - (name == "end")
        if not 0 <= depth <= LOOP_REGISTERS:
            raise Refusal(f"instruction {at}: {'end without loop' if depth < 0 else 'loops nest deeper than 8'}")
        if cores:
            _check_core(at, name, begins, depth)
        elif (name == "halt") != (at == len(program) - 1):
            raise Refusal(f"instruction {at}: halt must be the last instruction, and only that")
        elif name in ("core", "route") or (name in ("loop", "desc") and instruction.number("frames")):
            what = f"{name} with frames=1" if name in ("loop", "desc") else name
            raise Refusal(f"instruction {at}: {what} needs a program whose first instruction is core")
        begins = name == "halt"
    if depth or not program:
        raise Refusal("the program is empty" if not program else f"{plural(depth, 'loop')} without end")
    if not begins:
        raise Refusal(f"instruction {len(program) - 1}: the last core's program does not end with halt")


def _check_core(at: int, name: str, begins: bool, depth: int) -> None:
    """Check an instruction of a program with cores. begins: whether a core's program begins here. Raises Refusal."""
    if begins != (name == "core"):
        raise Refusal(f"instruction {at}: {'after halt comes core' if begins else 'core stands behind halt alone'}")
    if name == "halt" and depth:
        raise Refusal(f"instruction {at}: halt in {plural(depth, 'loop')} without end")


def encode_message(head: Instruction, input_data: Sequence[int]) -> Words:
    """The words of a message: its head, then one word of two's complement for each word of input data."""
    payload = [word & 0xFFFFFFFF for word in input_data]
    assert len(payload) == (head.number("input_words") if "input_words" in head.values else 0)
    return np.array([*encode(head), *payload], np.uint32)
