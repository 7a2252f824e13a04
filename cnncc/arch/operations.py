"""What a macro-instruction does with its operands (MAC-1): field `op` of the instruction table."""

from __future__ import annotations

from enum import StrEnum


class MacOperation(StrEnum):
    """The operations of `mac`. Whoever implements them matches all of them, so that a new one is an error there."""

    MAC = "mac"  # psum += ifmap * weight
    MAX = "max"  # psum = max(psum, ifmap)
    ADD = "add"  # psum += ifmap
