"""The one error class for what a user can mend."""

from __future__ import annotations


class Refusal(Exception):
    """The input cannot be taken: one message that names the thing, the limit, the value and what would help.

    The command line prints it on one line and exits with code 1. Everything else that
    escapes is a defect of cnncc (exit code 3).
    """
