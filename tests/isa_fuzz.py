"""Program words that no compiler wrote: random ones, and real ones with mistakes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cnncc.arch.model import LOOP_REGISTERS
from cnncc.isa.codec import Words, encode_program
from cnncc.isa.fields import AXES, Field, FieldTerm, Value
from cnncc.isa.table import OPCODE, SPECS, Instruction, Spec, instruction

BODY = [spec for spec in SPECS if spec.name not in ("halt", "loop", "end", "core", "route")]
# They use no semaphores.
QUIET = [spec for spec in BODY if spec.name in ("sync", "desc", "step", "unit", "table", "mac")]
STRANGE = [0, 1, 2, 0xFF, 0x100, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


@dataclass
class Garbler:
    """A source of words; the same for the same seed."""

    random: random.Random

    def words(self) -> Words:
        """Up to 40 words, most programs beginning with a known opcode."""
        words = [self.random.getrandbits(32) for _ in range(self.random.randint(1, 40))]
        if self.random.random() < 0.9:
            spec = self.random.choice(SPECS)
            words[0] = words[0] & (1 << OPCODE.lsb) - 1 | spec.opcode << OPCODE.lsb
        return np.array(words, np.uint32)

    def program(self, before: Sequence[Instruction] = ()) -> Words:
        """Instructions of the table with random fields, in random loops, after those that make their operands."""
        depth, body = 0, list(before)
        for _ in range(self.random.randint(1, 10)):
            turn = self.random.random()
            if turn < 0.15 and depth < LOOP_REGISTERS:
                body.append(self.instance(SPECS[1]))
                depth += 1
            elif turn < 0.25 and depth:
                body.append(instruction("end"))
                depth -= 1
            else:
                body.append(self.instance(self.random.choice(BODY)))
        return encode_program([*body, *[instruction("end")] * depth, instruction("halt")])

    def cores(self) -> list[Instruction]:
        """Up to three cores with regions and routes that are likely to be legal."""
        r, parts, count = self.random, list[Instruction](), self.random.randint(1, 3)
        for number in range(count):
            size = r.choice([0, 1, 1, 2]) if number else r.choice([0, 0, 1])
            place = {"row0": number if size else 0, "rows": size, "cols": size}
            parts.append(instruction("core", **place))
            for _ in range(r.choice([0, 0, 1, 2])):
                to = {"core": r.randrange(count + r.choice([0, 0, 1])), "to": r.randint(1, 2)}
                parts.append(instruction("route", semaphore=r.randint(1, 2), **to))
            over_frames = r.random() < 0.5
            parts += [instruction("loop", frames=1, count=r.choice([1, 1, 2]))] * over_frames
            parts += [self.instance(r.choice(BODY if r.random() < 0.1 else QUIET)) for _ in range(r.randint(0, 3))]
            parts += [instruction("end")] * over_frames
            parts.append(instruction("halt"))
        return parts

    def instance(self, spec: Spec) -> Instruction:
        """An instruction: as many fields at their defaults as make it likely to do something."""
        strange = self.random.choice([0.0, 0.02, 0.3])
        return instruction(spec.name, **{f.name: self.value(f, strange) for f in spec.fields})

    def value(self, field: Field, strange: float) -> Value:
        """A legal value of a field."""
        r = self.random
        if r.random() < strange:
            return field.from_bits(self.legal_bits(field))
        match field.kind:
            case "when":
                return r.choice([None, (), (), (0,), (0, 1)])
            case "term":
                return FieldTerm(r.choice(AXES), r.choice([0, 0, 0, 1, 1, 2, -1, 5]))
            case "enum":
                return r.choice(field.names)
            case _:
                return max(field.least, min(r.choice([0, 0, 1, 1, 2, 3, 4, 9]), (1 << field.bits - 1) - 1))

    def legal_bits(self, field: Field) -> int:
        """Bits of a value that may be as large as its field."""
        r, most = self.random, (1 << field.bits) - 1
        match field.kind:
            case "when":
                return r.getrandbits(LOOP_REGISTERS) | 1 << LOOP_REGISTERS
            case "enum":
                return r.randrange(len(field.names))
            case _:
                choices = [most, most >> 1, (most >> 1) + 1, r.randint(0, most), r.randint(0, most) >> r.randint(0, 31)]
                return max(field.least, r.choice(choices))

    def mistaken(self, words: Words) -> Words:
        """A program with up to three mistakes."""
        changed = [int(word) for word in words]
        for _ in range(self.random.choice([1, 1, 2, 3])):
            self.mistake(changed)
        return np.array(changed, np.uint32)

    def mistake(self, words: list[int]) -> None:
        """Change, copy, swap, drop or add something."""
        r = self.random
        at, other = r.randrange(len(words)), r.randrange(len(words))
        match r.choice(["flip"] * 6 + ["strange", "random", "copy", "swap", "drop", "add", "move"]):
            case "flip":
                words[at] ^= 1 << r.randrange(32)
            case "strange":
                words[at] = r.choice(STRANGE)
            case "random":
                words[at] = r.getrandbits(32)
            case "copy":
                words[at] = words[other]
            case "swap":
                words[at], words[other] = words[other], words[at]
            case "drop":
                del words[at : at + r.choice([1, 1, 2, 14, 17, 19])]
            case "add":
                words.insert(at, r.choice([r.getrandbits(32), r.choice(STRANGE), words[other]]))
            case _:
                words[at:at] = words[other : other + r.choice([1, 8, 14, 17, 19])]
        if not words:
            words.append(0)
