"""The arrays of the mapper: their types, and the axes of those that many functions share."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cnncc.arch.model import Dram

Counts = npt.NDArray[np.int64]
"""Whole numbers."""

Flags = npt.NDArray[np.bool_]
"""A yes or no each."""

Amounts = npt.NDArray[np.integer | np.floating]
"""Numbers, whole or not."""

PerPlan = Amounts
"""One number for each plan of a point (`Blocks`).

- axes `[K, H, W, order, buffering]`: sizes of blocks of k, h and w, order of blocks, buffers of the ifmap
- axes `[plan]` for some of these plans (`Blocks.cells`)
- axes `[tile, plan]` for several tiles at once

An axis along which all numbers are equal may have length 1.
"""

NEVER = 1 << 60
"""Cycles of what has no mapping."""

ILLEGAL = 1 << 40
"""Trips of an illegal combination, and so its cycles at least."""

ALL = ILLEGAL >> 1
"""More cycles than any layer takes, and fewer than an illegal combination takes."""

NONE: PerPlan = np.zeros(1, np.int64)
"""No cycles, in any plan."""

Words = TypeVar("Words", int, PerPlan, PerPlan | int)


def transfer_cycles(words: Words, dram: Dram) -> Words:
    """⌊D(words)⌋ of docs/mapper.md: the cycles of transfers at least, whatever their number."""
    return words * dram.rate_cycles // dram.rate_words


def stable_order(keys: Counts) -> Counts:
    """The stable `argsort` of keys from 0 on. It sorts values where these have room for places: four times as fast.

    >>> stable_order(np.array([5, 3, 5, 3])).tolist()
    [1, 3, 0, 2]
    """
    count = len(keys)
    if int(keys.max(initial=0)) >= (1 << 62) // max(count, 1):
        return np.argsort(keys, kind="stable")
    return np.sort(keys * count + np.arange(count)) % max(count, 1)
