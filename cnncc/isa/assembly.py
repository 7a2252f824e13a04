"""Text of programs: one instruction a line, fields by name; fields at their defaults are left out.

        loop count=3                             ; conv1 c
          load kind=weight rows=8 cols=8 …

A ';' starts a comment. `assemble(disassemble(program))` is the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from cnncc.errors import Refusal
from cnncc.isa.codec import check_structure
from cnncc.isa.fields import Value
from cnncc.isa.table import BY_NAME, Instruction, instruction


def format_instruction(inst: Instruction) -> str:
    """`name field=value …`."""
    parts = [
        f"{field.name}={field.to_text(inst.values[field.name])}"
        for field in inst.spec.fields
        if inst.values[field.name] != field.default
    ]
    return " ".join([inst.spec.name, *parts])


def disassemble(program: Sequence[Instruction], comments: Mapping[int, str] | None = None) -> str:
    """The program as text; `comments` by instruction number."""
    lines: list[str] = []
    depth = address = 0
    for at, inst in enumerate(program):
        depth -= inst.spec.name == "end"
        comment = on_one_line((comments or {}).get(at, ""))
        lines.append(f"{'  ' * depth}{format_instruction(inst)}  ; {address:04x}{' ' + comment if comment else ''}")
        depth += inst.spec.name == "loop"
        address += inst.spec.words
    return "\n".join(lines) + "\n"


def on_one_line(comment: str) -> str:
    """A comment, whose names may have ends of lines, with spaces for these.

    >>> on_one_line("x: a\\nb")
    'x: a b'
    """
    return " ".join(comment.splitlines())


@lru_cache(maxsize=8192)  # programs repeat lines; the verifier and the encoder read each
def parse_instruction(line: str) -> Instruction:
    """The instruction of a line without comment. Raises ValueError."""
    name, *parts = line.split()
    values: dict[str, Value] = {}
    fields = BY_NAME[name].by_name if name in BY_NAME else {}
    for part in parts:
        field, equals, text = part.partition("=")
        if not equals or field in values:
            raise ValueError(f"'{part}' is not field=value, or the field is given twice")
        values[field] = fields[field].from_text(text) if field in fields else text  # refused below
    return instruction(name, **values)


def assemble(text: str) -> list[Instruction]:
    """The program of an assembly text. Raises Refusal with the number of the line."""
    program: list[Instruction] = []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition(";")[0].strip()
        if not code:
            continue
        try:
            program.append(parse_instruction(code))
        except ValueError as error:
            raise Refusal(f"line {number}: {error}") from error
    check_structure(program)
    return program
