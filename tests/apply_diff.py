"""Applies a change that a document shows: `python tests/apply_diff.py FILE <<END` with the lines of a diff.

Lines that start with a space are there already, `-` goes, `+` comes. There are no line numbers: what is there already
stands in the file exactly once. `@@` begins another change of the same file.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def applied(text: str, diff: str) -> str:
    """The text after the changes."""
    for hunk in re.split(r"^@@\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        # An editor may have taken the space of an empty line.
        marked = [(line[:1].strip() or " ", line[1:] or "\n") for line in lines]
        old, new = ("".join(line for mark, line in marked if mark != without) for without in "+-")
        if text.count(old) != 1:
            raise ValueError(f"stands there {text.count(old)} times, not once; a page quotes it: change both:\n{old}")
        text = text.replace(old, new)
    return text


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(applied(path.read_text(), sys.stdin.read()))
