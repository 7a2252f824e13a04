"""What is being done and the time left, on one line of a terminal; nothing on a pipe."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol, TextIO

BASIS_S = 1.0  # seconds of work from which its speed is known


class Progress(Protocol):
    """Is told what is being done, and how many of `total` units of work are done, in any unit."""

    def __call__(self, what: str, done: float = 0, total: float = 0, /) -> None: ...


def silent(what: str, done: float = 0, total: float = 0, /) -> None:
    """Says nothing."""


class ProgressLine:
    """The line. It says the time left once some work of the same total was done."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.clock = stream, clock
        self.done = self.total = 0.0
        self.first, self.start = 0.0, clock()

    def __call__(self, what: str, done: float = 0, total: float = 0, /) -> None:
        """Show it."""
        now = self.clock()
        if total != self.total or done < self.done:  # other work: nothing is known of its speed
            self.first, self.start = done, now
        self.done, self.total = done, total
        took, new = now - self.start, done - self.first
        known = new > 0 and took >= BASIS_S and done < total
        self._write(f"{what}, {duration(took / new * (total - done))} left" if known else what)

    def _write(self, text: str) -> None:
        # Some terminals say that they have 0 columns.
        width = os.get_terminal_size(self.stream.fileno()).columns or 80
        # A column stays free: a full line moves the cursor of some terminals to the next one, where `\r` would begin.
        self.stream.write(f"\r\033[K{text[: width - 1]}")
        self.stream.flush()


def duration(seconds: float) -> str:
    """About how long: `40 s`, `3 min`, `2.5 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


@contextmanager
def progress_line() -> Generator[Progress]:
    """A line that is gone when the work has ended, well or not; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield silent
        return
    line = ProgressLine(sys.stderr)
    try:
        yield line
    finally:
        line("")
