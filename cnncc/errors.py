"""The one error class for what a user can mend, what it finds, and how messages are said."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

MESSAGE_LIMIT = 480  # characters
SEVERITIES = ("blocking", "costly", "note")

Number = int | float | str | None


@dataclass(frozen=True)
class Finding:
    """One thing about a model that its user should know.

    - severity: "blocking" stops a compilation, "costly" costs time or accuracy, "note" does neither
    - where: the node, layer, tensor or option, by name
    - resource: an attribute or a resource; `value` is what it has, `limit` what it may have, None without one
    - help: the remedy; empty where there is none
    - excerpt: lines that show the place in the user's text
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
        """What it is, and what would help."""
        return one_line(f"{self.what}: {self.help}" if self.help else self.what)


def _shown(number: Number) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.1f}" if isinstance(number, float) else str(number)


def aligned(findings: Sequence[Finding]) -> list[str]:
    """One line each: where, resource with value and limit, what and help, in columns; below it its excerpt."""
    rows = [(one_line(finding.where), finding.numbers, finding.text) for finding in findings]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True) if width).rstrip() for row in rows
    )
    return [part for line, finding in zip(lines, findings, strict=True) for part in (line, *finding.excerpt)]


class Refusal(Exception):
    """The input cannot be taken: one message that names the thing, the limit, the value and what would help.

    The command line prints it on one line, or where several things are wrong on one line and one for each of them,
    and exits with code 1. Everything else that escapes is a defect of cnncc (exit code 3).
    """

    def __init__(self, message: str, *findings: Finding) -> None:
        super().__init__(message)
        self._findings = findings

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, in parts: those of the refusal that this one was raised from, where it has none itself."""
        return self._own() or (Finding(str(self)),)

    def _own(self) -> tuple[Finding, ...]:
        cause = self.__cause__
        return self._findings or (cause._own() if isinstance(cause, Refusal) else ())

    @property
    def lines(self) -> list[str]:
        """The message; below it, where there are several findings, one line for each."""
        parts = self.findings
        below = aligned(parts) if len(parts) > 1 else [line for part in parts for line in part.excerpt]
        return [one_line(str(self)), *(f"  {line}" for line in below)]


class Refusals:
    """Collects what is wrong with many things, to say all of it at once.

    for layer in layers:
        with refusals.kept(layer.name):
            lower(layer)
    refusals.raise_any()
    """

    def __init__(self) -> None:
        self.found: list[Refusal] = []
        self.notes: list[Finding] = []  # what was assumed, and refuses nothing
        self._findings: list[Finding] = []

    @contextmanager
    def kept(self, where: str = "") -> Generator[None]:
        """Keep a Refusal that is raised inside; `where` is the place of findings that name none."""
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
        """All that was found, in order."""
        return tuple(self._findings)

    def raise_any(self, about: str = "") -> None:
        """Raise what was kept: a single Refusal as it is, several as one `about` something. Raises Refusal."""
        if len(self.found) == 1:
            first = self.found[0]
            raise Refusal(str(first), *self.findings) from first
        if self.found:
            raise Refusal(f"{about}{': ' if about else ''}{len(self.findings)} problems", *self.findings)


def one_line(message: str, limit: int = MESSAGE_LIMIT) -> str:
    """`message` on one line of at most `limit` characters: of a longer one, its beginning and its end."""
    line = " ".join(message.split())
    half = limit // 2 - 2
    return line if len(line) <= limit else f"{line[:half]} … {line[-half:]}"


def hint(name: str, known: Iterable[str]) -> str:
    """Which of the known names was meant, or what they all are."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(names) or 'none'}"
