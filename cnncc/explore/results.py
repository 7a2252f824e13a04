"""The file of an exploration: its parameters on the first line, then a line for each evaluated array.

A line is appended by one write and is on the disk before the next begins. An interrupted exploration leaves whole
lines, and at most the beginning of a last one.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from cnncc.errors import Refusal
from cnncc.explore.array_grid import Config, config_text
from cnncc.explore.evaluate import ALSO, MEASURES
from cnncc.util import strict_json
from cnncc.util.files import check_writable, write_atomically

FORMAT = 2
Result = Mapping[str, Any]  # `config`, and either measures or `refused`, the reason


def line(value: Mapping[str, Any]) -> bytes:
    """A line of the file."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"


class Results:
    """The open file, locked against other explorations. by_key: results so far, by `config_text`."""

    def __init__(
        self, path: Path, header: Mapping[str, Any], configs: Sequence[Config], possible: Sequence[Config]
    ) -> None:
        """Open or create the file and read its results. possible: all configurations that it may have results of.

        Raises: Refusal, for a file that is locked, or is no file of this exploration.
        """
        check_writable(path)
        self.path, self.header, self.order = path, line(header), [config_text(config) for config in configs]
        self.possible = dict.fromkeys(map(config_text, possible))
        self.by_key = dict[str, Result]()
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self.file)

    def append(self, result: Result) -> None:
        """Add a result, on the disk when this returns."""
        self._write(line(result))
        self.by_key[config_text(result["config"])] = result

    def put_in_order(self) -> None:
        """Rewrite the file in the order of configurations, so that equal explorations give equal files."""
        results = (line(self.by_key[key]) for key in self.possible if key in self.by_key)
        write_atomically(self.path, [self.header, *results])

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self.file, data)
            os.fsync(self.file)
        except OSError as error:
            raise Refusal(f"{self.path}: cannot be written: {error.strerror}") from error
        if written != len(data):
            raise Refusal(f"{self.path}: cannot be written: the disk is full")

    def _lock(self) -> None:
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refusal(f"{self.path}: another exploration is writing it; give another --output") from error

    def _read(self) -> None:
        data = self.path.read_bytes()
        if self.header.startswith(data):  # empty, or ended before its first line was whole
            os.truncate(self.file, 0)
            self._write(self.header)
            return
        whole = data[: data.rfind(b"\n") + 1]
        first, *rest = whole.splitlines(keepends=True) or [b""]
        if first != self.header:
            raise Refusal(f"{self.path}: {_difference(first, self.header)}; give another --output, or delete the file")
        for number, text in enumerate(rest, 2):
            self._take(number, text)
        # A last line without its end is from an exploration that was killed while it wrote.
        os.truncate(self.file, len(whole))

    def _take(self, number: int, text: bytes) -> None:
        try:
            result = strict_json.parse(text)
            key = config_text(result["config"])
            is_refused = isinstance(result.get("refused"), str)
            if not is_refused and any(_is_no_number(result[name]) for name in (*MEASURES, *ALSO)):
                raise ValueError("a measure is no number")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Refusal(f"{self.path}: line {number} is no result; delete it to have it evaluated again") from error
        if key not in self.possible:
            raise Refusal(f"{self.path}: line {number}: {key} is no configuration of this exploration; delete the line")
        if self.by_key.setdefault(key, result) != result:
            raise Refusal(f"{self.path}: line {number}: {key} has another result before; delete one of them")


def _is_no_number(value: object) -> bool:
    return not isinstance(value, int | float) or isinstance(value, bool) or value < 0


def _difference(first: bytes, header: bytes) -> str:
    """The difference between the file's first line and `header`, as a message."""
    try:
        was: object = json.loads(first)
    except (ValueError, RecursionError):
        was = None
    if not isinstance(was, dict) or "explore" not in was:
        return "is a file, but no exploration's"
    old, new = cast("dict[str, Any]", was), cast("dict[str, Any]", json.loads(header))
    names = [name for name in new if old.get(name) != new[name]]
    return f"holds another exploration (not the same: {', '.join(names) or 'header'})"
