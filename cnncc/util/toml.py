"""TOML from users: texts and files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from cnncc.errors import Refusal

MOST_BYTES = 1 << 20  # of a file
# The time that a key takes grows with the square of its parts.
# This search itself takes linear time: possessive quantifiers (`++`) give back nothing that they have matched.
_LONG_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){32}""")


def read_text(path: Path) -> str:
    """The text of a file. Raises OSError, ValueError (no text, or a NUL in the name), or Refusal for a large file."""
    with path.open("rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Refusal(f"{path}: has more than {MOST_BYTES:,} bytes, the limit of a TOML file")
    return data.decode("utf-8-sig")  # editors of Windows begin a file with a mark


def read_toml(text: str, where: str) -> dict[str, object]:
    """The tables of TOML text. Raises Refusal, which begins with `where`."""
    if _LONG_KEY.search(text):
        raise Refusal(f"{where}: a key has more than 32 parts between dots")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise Refusal(f"{where}: not TOML that can be read: nested too deeply") from error
    except ValueError as error:  # TOML's own, and integers of thousands of digits
        raise Refusal(f"{where}: not TOML: {error}") from error
