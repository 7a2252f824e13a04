"""JSON of files that anyone may have written."""

import json
from math import isfinite
from typing import Any


def parse(written: str | bytes) -> Any:
    """The value of a text. Its numbers are finite: Python's own reader takes NaN, Infinity and 1e999, too.

    Raises: ValueError; RecursionError for a text that is nested too deeply.
    """
    return json.loads(written, parse_constant=_number, parse_float=_number)


def _number(written: str) -> float:
    if not isfinite(number := float(written)):
        raise ValueError(f"{written} is no number")
    return number
