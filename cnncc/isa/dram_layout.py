"""The places of arrays in DRAM, on which the compiler and every reader of a binary agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def dram_layout(words: Sequence[int]) -> list[int]:
    """The first word of each array, one after the other (rule MEM-2).

    >>> dram_layout([3, 4, 5])
    [0, 3, 7]
    """
    return list(accumulate(words, initial=0))[: len(words)]
