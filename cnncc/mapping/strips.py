"""The names of strips: what belongs to strip 3 of the layer conv1 is called conv1@3, of strips 1 to 14 conv1@1-14."""

from __future__ import annotations

import re


def strip_name(name: str, strip: int, count: int) -> str:
    """What belongs to a strip, or to so many from this one on, by the name of what is split into strips.

    >>> strip_name("conv1", 0, 1), strip_name("conv1", 1, 14)
    ('conv1@0', 'conv1@1-14')
    """
    return f"{name}@{strip}" if count == 1 else f"{name}@{strip}-{strip + count - 1}"


def split_strip(name: str) -> tuple[str, str]:
    """The reverse: the name, and "@3" of a strip.

    >>> split_strip("conv1@3"), split_strip("conv1@1-14"), split_strip("conv1")
    (('conv1', '@3'), ('conv1', '@1-14'), ('conv1', ''))
    """
    # A label is a user's. `int` raises an error for thousands of digits.
    match = re.search(r"@\d{1,9}(-\d{1,9})?$", name)
    return (name[: match.start()], match[0]) if match else (name, "")


def strip_count(name: str) -> int:
    """How many strips a name is of: 1 of what is in no strips.

    >>> strip_count("conv1@3"), strip_count("conv1@1-14")
    (1, 14)
    """
    return len(_numbers(name)) or 1


def is_of_strip(name: str, strip: str) -> bool:
    """Whether a name is that of a strip, or of several strips with this one.

    >>> is_of_strip("conv1@1-14", "conv1@3"), is_of_strip("conv1@1-14", "conv1@0")
    (True, False)
    """
    numbers, same = _numbers(strip), split_strip(name)[0] == split_strip(strip)[0]
    return name == strip or (same and len(numbers) == 1 and numbers[0] in _numbers(name))


def is_meant(name: str, given: str) -> bool:
    """Whether a user means `name` by `given`: it is the same, a strip of it, or several strips with that strip.

    >>> [is_meant(name, given) for name, given in (("conv1@3", "conv1"), ("conv1@1-14", "conv1@3"), ("conv1", "conv"))]
    [True, True, False]
    """
    return is_of_strip(name, given) or split_strip(name)[0] == given


def _numbers(name: str) -> range:
    """The numbers of the strips that a name is of."""
    _, strips = split_strip(name)
    first, _, last = strips[1:].partition("-")
    return range(int(first), int(last or first) + 1) if strips else range(0)
