"""The one error class for faults that a user can mend, its findings, and the form of messages."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

MESSAGE_LIMIT = 480  # characters
ALIKE = 5  # of places that have something in common: their names are printed, of more the first ones
SEVERITIES = ("blocking", "costly", "note")

Number = int | float | str | None


@dataclass(frozen=True)
class Finding:
    """One thing about a model that its user should know.

    Attributes:
        severity            "blocking" stops a compilation, "costly" costs time or accuracy, "note" does neither
        where               name of the node, layer, tensor or option
        resource            an attribute or a resource
        value, limit        the resource's value and its limit, None without one
        help                the remedy, empty if there is none
        excerpt             lines that show the place in the user's text
    """

    what: str
    severity: str = "blocking"
    where: str = ""
    resource: str = ""
    value: Number = None
    limit: Number = None
    help: str = ""
    excerpt: tuple[str, ...] = ()

    @property
    def numbers(self) -> str:
        """Resource, value and limit as one text: `glb.words 63, limit 20`."""
        value = "" if self.value is None else f" {_shown(self.value)}"
        limit = "" if self.limit is None else f", limit {_shown(self.limit)}"
        return f"{self.resource}{value}{limit}"

    @property
    def text(self) -> str:
        """The finding and its remedy."""
        return one_line(f"{self.what}: {self.help}" if self.help else self.what)


def plural(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def first_of(names: Sequence[str]) -> str:
    """`a, b, c, d, e and 2 more`: all names, or the first `ALIKE` of more."""
    rest = len(names) - ALIKE
    return ", ".join(names[:ALIKE]) + (f" and {rest:,} more" if rest > 0 else "")


def _shown(number: Number) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.1f}" if isinstance(number, float) else str(number)


def aligned(findings: Sequence[Finding]) -> list[str]:
    """One line for each finding, in columns: where, resource with value and limit, text. Excerpts follow their line."""
    rows = [(one_line(finding.where), finding.numbers, finding.text) for finding in findings]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True) if width).rstrip() for row in rows
    )
    return [part for line, finding in zip(lines, findings, strict=True) for part in (line, *finding.excerpt)]


class Refusal(Exception):
    """A refusal of the user's input. The message names the thing, the limit, the value and a remedy.

    The command line prints the message on one line, a further line for each of several findings, and exits with
    code 1. Any other exception that escapes is a defect of cnncc (exit code 3).
    """

    def __init__(self, message: str, *findings: Finding) -> None:
        super().__init__(message)
        self._findings = findings

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The single faults: its own findings, or else the findings of its cause, or else its message."""
        return self._own() or (Finding(str(self)),)

    def _own(self) -> tuple[Finding, ...]:
        cause = self.__cause__
        return self._findings or (cause._own() if isinstance(cause, Refusal) else ())

    @property
    def lines(self) -> list[str]:
        """The message, and one line for each of several findings."""
        parts = self.findings
        below = aligned(parts) if len(parts) > 1 else [line for part in parts for line in part.excerpt]
        return [one_line(str(self)), *(f"  {line}" for line in below)]


@contextmanager
def refusals_of(what: str) -> Generator[None]:
    """Refusals that are raised inside say what they are of: `layer 'conv1': …`."""
    try:
        yield
    except Refusal as refusal:
        raise Refusal(f"{what}: {refusal}") from refusal


class Refusals:
    """Collects refusals of many things, to report all of them at once.

    Example:
        for layer in layers:
            with refusals.kept(layer.name):
                lower(layer)
        refusals.raise_any()
    """

    def __init__(self) -> None:
        self.found: list[Refusal] = []
        self.notes: list[Finding] = []  # assumptions, which refuse nothing
        self._findings: list[Finding] = []

    @contextmanager
    def kept(self, where: str = "") -> Generator[None]:
        """Keep a Refusal that is raised inside. where: the place of findings that name none."""
        try:
            yield
        except Refusal as refusal:
            self.add(refusal, where)

    def add(self, refusal: Refusal, where: str = "") -> None:
        """Keep `refusal`, as `kept` does."""
        self.found.append(refusal)
        self._findings += [part if part.where else replace(part, where=where) for part in refusal.findings]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings so far, in order."""
        return tuple(self._findings)

    def raise_any(self, about: str = "") -> None:
        """Raise the kept refusals, if any: a single one as it is, several as one Refusal `about` something."""
        if len(self.found) == 1:
            first = self.found[0]
            # Anew, as its findings may have got a place here.
            raise Refusal(str(first), *self.findings) from first
        if self.found:
            raise Refusal(f"{about}{': ' if about else ''}{len(self.findings)} problems", *self.findings)


def one_line(message: str, limit: int = MESSAGE_LIMIT) -> str:
    """`message` on one line of at most `limit` characters; a longer one loses its middle."""
    line = " ".join(message.split())
    half = limit // 2 - 2
    return line if len(line) <= limit else f"{line[:half]} … {line[-half:]}"


def hint(name: str, known: Iterable[str]) -> str:
    """A suggestion for an unknown name: the nearest known one, or all known ones."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(names) or 'none'}"
