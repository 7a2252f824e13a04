"""The atomic schedule of a PE as text: a table of cycles for each macro-instruction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from cnncc.arch.operations import MacOperation
from cnncc.eval.atomic import Atom, Reuse, Word
from cnncc.util.terminal import TEXT, Column, table

WORDS_A_LINE = 9


def schedule_text(label: str, pe: tuple[int, int], reuses: Sequence[Reuse]) -> Iterator[str]:
    """The lines of a PE's (row, column) macro-instructions in a layer."""
    for reuse in reuses:
        around = ", ".join(f"{name} = {index}" for name, index in reuse.loops.items())
        yield f"{label}, PE {pe[0]},{pe[1]}, macro-instruction {reuse.number}" + (f" ({around})" if around else "")
        for kind, letter in (("ifmap", "I"), ("weight", "W")):
            if words := [_name(letter, word) for word in reuse.loaded.get(kind, [])]:
                shown = words if len(words) <= WORDS_A_LINE else [*words[: WORDS_A_LINE - 2], "…", words[-1]]
                yield f"  load {kind:<6}  {len(words)}: {' '.join(shown)}"
        rows = [(str(atom.cycle), *_columns(reuse, atom)) for atom in reuse.atoms]
        yield from table(["cycle", Column("west n2n", TEXT), Column("PE", TEXT), Column("east n2n", TEXT)], rows)
        if reuse.sends:
            yield f"  send   {' '.join(_sum(reuse, slot) for slot in sorted(reuse.sums))}"


def _columns(reuse: Reuse, atom: Atom) -> tuple[str, str, str]:
    """The texts of the west link, the PE and the east link."""
    sign = _sign(reuse.op)
    terms = [_name("I", x) + (f" * {_name('W', w)}" if w else "") for x, w in atom.terms]
    sums = enumerate(terms) if atom.own else [(0, " + ".join(terms))]
    does = "; ".join(f"{_sum(reuse, atom.psum + lane)} {sign} {added}" for lane, added in sums)
    west = f"send {_name('I', atom.sent)}" if atom.sent else ""
    east = f"receive {_name('I', atom.received)}" if atom.received else ""
    return west, does, f"{east} (virtual)" if atom.source == "virtual" else east


def _sum(reuse: Reuse, slot: int) -> str:
    """The output in a psum slot, or that it is part of."""
    return _name("O", reuse.sums.get(slot, Word())) + (" (part)" if reuse.part else "")


def _sign(operation: MacOperation) -> str:
    match operation:
        case MacOperation.MAX:
            return "max="
        case MacOperation.MAC | MacOperation.ADD:
            return "+="
        case _:
            assert_never(operation)


def _name(letter: str, word: Word) -> str:
    """I[c,h,w], W[k,c,r,s], O[k,h,w]; a later image than the first has n in front; 0 in the padding.

    >>> _name("I", Word("x", (0, 2, 5, 5))), _name("I", Word())
    ('I[2,5,5]', '0')
    """
    if not word.tensor:
        return "0"
    at = word.at[1:] if letter != "W" and len(word.at) > 1 and not word.at[0] else word.at
    return f"{letter}[{','.join(map(str, at))}]"
