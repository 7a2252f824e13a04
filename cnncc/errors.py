"""The one error class for what a user can mend, and how messages are said."""

from __future__ import annotations

MESSAGE_LIMIT = 480  # characters


class Refusal(Exception):
    """The input cannot be taken: one message that names the thing, the limit, the value and what would help.

    The command line prints it on one line and exits with code 1. Everything else that
    escapes is a defect of cnncc (exit code 3).
    """


def one_line(message: str, limit: int = MESSAGE_LIMIT) -> str:
    """`message` on one line of at most `limit` characters: of a longer one, its beginning and its end."""
    line = " ".join(message.split())
    half = limit // 2 - 2
    return line if len(line) <= limit else f"{line[:half]} … {line[-half:]}"
