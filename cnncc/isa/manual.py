"""docs/isa.md from the instruction table: `python -m cnncc.isa.manual` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cnncc.arch.model import LOOP_REGISTERS
from cnncc.errors import plural
from cnncc.isa.assembly import parse_instruction
from cnncc.isa.codec import encode
from cnncc.isa.fields import Field
from cnncc.isa.table import MESSAGES, OPCODE, SPECS, Spec

_EXAMPLE = "step id=1 loop=2 by=y*-2"


def _words(line: str) -> str:
    """The words of an instruction in assembly."""
    return ", ".join(f"`{word:08x}`" for word in encode(parse_instruction(line)))


_HEAD = f"""# Instructions

Generated from the instruction table (`cnncc/isa/table.py`) by `python -m cnncc.isa.manual`; do not edit. What the
instructions do is [machine.md](machine.md), whose rules are cited by their labels ([rules.md](rules.md)).

A program is a sequence of instructions of a fixed number of 32-bit words each. Bits are counted from 0, the least
significant; `{OPCODE.msb}..{OPCODE.lsb}` of word 0 is the opcode. Bits without a field are reserved and zero.
A binary holds the words in little-endian order.

## Kinds of fields

| kind | bits | in assembly |
|---|---|---|
| uint | unsigned | `12` |
| count | unsigned, at least 1, stored as it is | `12` |
| int | two's complement | `-3` |
| hex | unsigned; an f32 by its bits | `0x3f800000` |
| term | the two most significant bits are an axis (0 lin, 1 k, 2 y, 3 x), the others a step in two's complement (DESC-2) | `y*-2` |
| when | bit {LOOP_REGISTERS} enables a condition, bits {LOOP_REGISTERS - 1}..0 are a mask of loop registers (PROG-2); 0 is never | `never`, `always`, `0+2` |
| enum | the number of a name | `ifmap` |

In assembly an instruction is its name and its fields as `name=value`. A field may be left out at its default: 0, 1 for
a count, `never`, `lin*0`, the first name. Example: the words of `{_EXAMPLE}` are {_words(_EXAMPLE)}.
`cnncc disasm` prints the hex number of each instruction's first word. The words themselves are in `program.bin` of the
[binary](ladder.md#isa-instructions).

## Summary

| opcode | instruction | words | engine | what it does |
|---|---|---|---|---|
"""  # noqa: E501


_MESSAGES = f"""
# Messages

A row bus delivers messages to PEs, in the fields of the thesis ([machine.md](machine.md#messages)). The load engine and
the sequencer form them when an instruction runs. No binary holds any. `cnncc messages FILE.cnb` shows a program's.
Bits `{OPCODE.msb}..{OPCODE.lsb}` of word 0 are the *type of command*.

"""


def _kind(field: Field) -> str:
    if field.kind == "enum":
        return "enum: " + ", ".join(f"{number} {name}" for number, name in enumerate(field.names))
    return "count" if field.kind == "uint" and field.least == 1 else field.kind


def _bits(field: Field) -> str:
    return str(field.msb) if field.msb == field.lsb else f"{field.msb}..{field.lsb}"


def _section(spec: Spec) -> Iterator[str]:
    words = plural(spec.words, "word")
    yield f"## {spec.name}\n"
    code = "Type of command" if spec in MESSAGES else "Opcode"
    yield f"{code} {spec.opcode}, {words}, {spec.engine}: {spec.meaning}.\n"
    if not spec.fields:
        return
    yield "| word | bits | field | kind | meaning |"
    yield "|---|---|---|---|---|"
    for field in sorted(spec.fields, key=lambda field: (field.word, -field.msb)):
        yield f"| {field.word} | {_bits(field)} | `{field.name}` | {_kind(field)} | {field.meaning} |"
    yield ""


def _sections(specs: Iterable[Spec]) -> str:
    return "\n".join(line for spec in specs for line in _section(spec)).rstrip() + "\n"


def manual() -> str:
    """The page, in Markdown."""
    rows = [f"| {s.opcode} | [{s.name}](#{s.name}) | {s.words} | {s.engine} | {s.meaning} |\n" for s in SPECS]
    return _HEAD + "".join(rows) + "\n" + _sections(SPECS) + _MESSAGES + _sections(MESSAGES)


if __name__ == "__main__":
    print(manual(), end="")
