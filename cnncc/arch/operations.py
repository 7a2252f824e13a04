"""The operations of a macro-instruction on its operands (MAC-1): field `op` of the instruction table."""

from __future__ import annotations

from enum import StrEnum


class MacOperation(StrEnum):
    """The operations of `mac`. Every implementation matches all of them, so a new one is a type error there."""

    MAC = "mac"  # psum += ifmap * weight
    MAX = "max"  # psum = max(psum, ifmap)
    ADD = "add"  # psum += ifmap
