"""Kinds of instruction fields: conversions between a value, its bits and its text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cnncc.arch.model import LOOP_REGISTERS

AXES = ("lin", "k", "y", "x")


class FieldTerm(NamedTuple):
    """An index's contribution to a position: `step` on an axis (linear words, channel, y, x)."""

    axis: str = "lin"
    step: int = 0


# A condition: None never holds, () always, (0, 2) when loop registers 0 and 2 are in their first (last) iteration.
When = tuple[int, ...] | None
Value = int | str | FieldTerm | When


@dataclass(frozen=True)
class Field:
    """Bits msb..lsb of 32-bit word `word` of an instruction.

    Kinds and their bits:
        uint    unsigned
        int     two's complement
        hex     unsigned, written in hexadecimal
        term    2 bits of axis, the rest a signed step
        when    enable bit, then one bit for each loop register
        enum    an index into `names`
    """

    name: str
    word: int
    msb: int
    lsb: int
    kind: str
    meaning: str
    least: int = 0
    names: tuple[str, ...] = ()

    @cached_property
    def bits(self) -> int:
        """Width in bits."""
        return self.msb - self.lsb + 1

    @cached_property
    def mask(self) -> int:
        """A one for each bit: the greatest unsigned value."""
        return (1 << self.bits) - 1

    @cached_property
    def default(self) -> Value:
        """The value of a field that the assembly leaves out."""
        match self.kind:
            case "term":
                return FieldTerm()
            case "when":
                return None
            case "enum":
                return self.names[0]
            case _:
                return self.least

    @cached_property
    def default_bits(self) -> int:
        """The unsigned bits of that value."""
        return self.to_bits(self.default)

    @cached_property
    def _limits(self) -> tuple[int, int]:
        """The least and the greatest number."""
        signed = self.kind == "int"
        return -(1 << self.bits - 1) if signed else self.least, (1 << self.bits - signed) - 1

    def to_bits(self, value: Value) -> int:
        """The unsigned bits of `value`. Raises ValueError naming the field, the value and the limit."""
        if self.kind in ("uint", "hex", "int") and isinstance(value, int):
            return self._number_bits(value)
        match self.kind, value:
            case "term", FieldTerm(axis, step):
                # Two bits are the axis. The other bits - 2 are a signed step, below 2^(bits - 3).
                half = 1 << self.bits - 3
                if axis not in AXES or not -half <= step < half:
                    raise ValueError(f"{self.name}: {axis}*{step} is not an axis of {AXES} and a step of ±{half}")
                return AXES.index(axis) << self.bits - 2 | step & (half * 2 - 1)
            case "when", None:
                return 0
            case "when", tuple(loops):
                if not set(loops) <= set(range(LOOP_REGISTERS)):
                    raise ValueError(f"{self.name}: loops {loops} are not all below {LOOP_REGISTERS}")
                return 1 << LOOP_REGISTERS | sum(1 << int(loop) for loop in set(loops))
            case "enum", str(name):
                if name not in self.names:
                    raise ValueError(f"{self.name}: '{name}' is none of {', '.join(self.names)}")
                return self.names.index(name)
            case _:
                raise ValueError(f"{self.name}: {value!r} is no {self.kind}")

    def _number_bits(self, number: int) -> int:
        low, high = self._limits
        if not low <= number <= high:
            raise ValueError(f"{self.name}: {number} is outside {low}..{high}")
        return number & self.mask

    def from_bits(self, bits: int) -> Value:
        """The value of unsigned `bits`. Raises ValueError for bits without meaning."""
        match self.kind:
            case "term":
                step_bits = self.bits - 2
                step = bits & ((1 << step_bits) - 1)
                signed = step - (1 << step_bits) if step >> step_bits - 1 else step
                return FieldTerm(AXES[bits >> step_bits], signed)
            case "when":
                loops = tuple(loop for loop in range(LOOP_REGISTERS) if bits >> loop & 1)
                if bits >> LOOP_REGISTERS:
                    return loops
                if loops:
                    raise ValueError(f"{self.name}: a loop mask without the enable bit")
                return None
            case "enum":
                if bits >= len(self.names):
                    raise ValueError(f"{self.name}: {bits} is outside 0..{len(self.names) - 1}")
                return self.names[bits]
            case "int":
                return bits - (1 << self.bits) if bits >> self.bits - 1 else bits
            case _:
                if bits < self.least:
                    raise ValueError(f"{self.name}: {bits} is less than {self.least}")
                return bits

    def to_text(self, value: Value) -> str:
        """The value in assembly: 12, 0x3f800000, y*-2, always, 0+2, weight."""
        match value:
            case FieldTerm(axis, step):
                return f"{axis}*{step}"
            case None:
                return "never"
            case tuple(loops):
                return "+".join(str(loop) for loop in loops) or "always"
            case str():
                return value
            case _:
                return f"{value:#010x}" if self.kind == "hex" else str(value)

    def from_text(self, text: str) -> Value:
        """The value of an assembly text. Raises ValueError."""
        match self.kind:
            case "term":
                if not (term := re.fullmatch(r"(\w+)\*(-?\d+)", text)):
                    raise ValueError(f"{self.name}: '{text}' is no term such as y*2")
                return FieldTerm(term[1], int(term[2]))
            case "when":
                if text in ("never", "always"):
                    return None if text == "never" else ()
                if not re.fullmatch(r"\d(\+\d)*", text):
                    raise ValueError(f"{self.name}: '{text}' is neither never, always nor loops such as 0+2")
                return tuple(sorted({int(loop) for loop in text.split("+")}))
            case "enum":
                return text
            case _:
                try:
                    return int(text, 0)
                except ValueError as error:
                    raise ValueError(f"{self.name}: '{text}' is no number") from error
