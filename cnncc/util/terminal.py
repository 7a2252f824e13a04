"""Tables and lines that fit the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

PIPE_WIDTH = 120  # characters of a line where no terminal says how many
NUMBER, NAME, TEXT = "number", "name", "text"
LEAST = {NAME: 12, TEXT: 20}  # characters that such a column keeps
GAP = "  "
NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    - kind: `NUMBER` is aligned to the right and printed whole, `NAME` is shortened in its middle, `TEXT` is folded.
    - drop: the order in which columns are left out if they do not fit, the greatest first. 0 is never left out.
    """

    head: str = ""
    kind: str = NUMBER
    drop: int = 0

    def least(self, cells: Sequence[str]) -> int:
        """The fewest characters that show it: heads and texts are folded at blanks."""
        widest = max(map(len, cells), default=0)
        return max([min(widest, LEAST.get(self.kind, widest)), *map(len, self.head.split())])

    def folded(self, cell: str, width: int) -> list[str]:
        """A cell on lines of this width."""
        if len(cell) > width and self.kind == NAME:
            end = width // 2
            cell = f"{cell[: width - end - 1]}…{cell[-end:]}"
        return wrap(cell, width, break_on_hyphens=False)

    @property
    def align(self) -> str:
        """The alignment of its cells, as a format has it."""
        return ">" if self.kind == NUMBER else "<"


def amount(number: float) -> str:
    """A count, or an energy in any unit: whole from 100 on, else of three digits.

    >>> amount(12345.6), amount(0), amount(0.01234)
    ('12,346', '0', '0.0123')
    """
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"


def terminal_width() -> int:
    """Characters of a line: of the terminal, or always the same on a pipe, whatever COLUMNS says."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: it was closed before cnncc started
    return shutil.get_terminal_size((PIPE_WIDTH, 0)).columns if is_terminal else PIPE_WIDTH


def table(columns: Sequence[Column | str], rows: Iterable[Sequence[str] | str], indent: int = 2) -> list[str]:
    """The lines of a table that fits the terminal.

    columns: a string is the head of a column of numbers. rows: cells, or a line of its own below the row before it.

    Columns without head and content are left out. If the table is too wide, heads and texts are folded and names are
    shortened. If it is still too wide, columns are dropped, and a last line names them.
    """
    rows = list(rows)
    cells = [row for row in rows if not isinstance(row, str)]
    given = [Column(column) if isinstance(column, str) else column for column in columns]
    filled = [at for at, column in enumerate(given) if column.head or any(row[at] for row in cells)]
    whole = {at: max(map(len, [given[at].head, *(row[at] for row in cells)])) for at in filled}
    least = {at: given[at].least([row[at] for row in cells]) for at in filled}
    room = terminal_width() - indent
    shown = list(filled)
    while _total(least[at] for at in shown) > room and (able := [at for at in shown if given[at].drop]):
        shown.remove(max(able, key=lambda at: given[at].drop))
    widths = {at: whole[at] for at in shown}
    while _total(widths.values()) > room and (able := [at for at in shown if widths[at] > least[at]]):
        # The widest gives up a character at a time: long columns end equally wide.
        widths[max(able, key=lambda at: widths[at])] -= 1

    def lines_of(row: Sequence[str], *, at_bottom: bool = False) -> Iterator[str]:
        parts = [given[at].folded(row[at], widths[at]) for at in shown]
        height = max(map(len, parts), default=0)
        columns = [[""] * (height - len(part)) * at_bottom + part for part in parts]
        for line in zip_longest(*columns, fillvalue=""):
            padded = (f"{part:{given[at].align}{widths[at]}}" for at, part in zip(shown, line, strict=True))
            yield (" " * indent + GAP.join(padded)).rstrip()

    lines = list(lines_of([column.head for column in given], at_bottom=True))
    for row in rows:
        lines += folded(" " * indent + row) if isinstance(row, str) else lines_of(row)
    if dropped := [given[at].head for at in filled if at not in shown]:
        lines += folded(f"{' ' * indent}no room in {terminal_width()} columns for: {', '.join(dropped)}")
    return [line for line in lines if line]


def _total(widths: Iterable[int]) -> int:
    """The width of a line of such columns."""
    return sum(width + len(GAP) for width in widths) - len(GAP)


def folded(line: str) -> list[str]:
    """A line on as many lines as it needs; all but the first have four blanks more in front. `3 %` stays together."""
    if len(line) <= terminal_width():
        return [line]
    behind = " " * (len(line) - len(line.lstrip()) + 4)
    kept = line.replace(" %", f"{NO_BREAK}%")
    parts = wrap(kept, terminal_width(), subsequent_indent=behind, break_on_hyphens=False)
    return [part.replace(f"{NO_BREAK}%", " %") for part in parts]


def fitted(lines: Iterable[str]) -> str:
    """Lines as one text that fits the terminal."""
    return "\n".join(part for line in lines for part in folded(line))
