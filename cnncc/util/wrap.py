"""IR text of limited width."""

from __future__ import annotations

import re

LIMIT = 160  # columns of a line
DEEPER = "    "  # what the continuation of a line is indented by
PIECE = re.compile(r'"(?:\\.|[^"\\])*"|->|.')


def wrapped(text: str, width: int = LIMIT) -> str:
    """IR text with no line of more than `width` columns, but for strings: they stay whole.

    A long line breaks at a space in its second half, and continues indented. The best place is outside all brackets,
    then behind a comma, then the last. A string and the word before it count as in brackets.
    """
    return "\n".join(part for line in text.split("\n") for part in _parts(line, width))


def _parts(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())] + DEEPER
    parts: list[str] = []
    while len(line) > width and (places := _places(line, width)):
        # Where a string is longer than a line, the first space behind it has to do.
        fitting = [place for place in places if place[2] <= width] or places[:1]
        late = [place for place in fitting if place[2] > width // 2] or fitting
        *_, at = min(late, key=lambda place: (*place[:2], -place[2]))
        parts.append(line[:at])
        line = indent + line[at + 1 :]
    return [*parts, line]


def _places(line: str, width: int) -> list[tuple[int, bool, int]]:
    """The spaces outside strings up to the first behind `width`: brackets around, whether no comma before, column."""
    places: list[tuple[int, bool, int]] = []
    depth = 0
    for piece in PIECE.finditer(line, len(line) - len(line.lstrip())):
        depth += (piece[0] in "([{<") - (piece[0] in ")]}>")
        at = piece.start()
        if piece[0] == " ":
            no_comma = line[at - 1] != ","
            places.append((depth + (no_comma and line[at + 1] == '"'), no_comma, at))
            if at > width:  # a constant may have a million columns, so no line is read to its end each time
                break
    return places
