"""The prices of events by which mappings are compared. No IR."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import NamedTuple

from cnncc.arch.model import Energy

NOTHING = Energy("words", *(0.0 for _ in fields(Energy)[1:]))
DRAM_WORDS = replace(NOTHING, dram_read=1.0, dram_write=1.0)


class Prices(NamedTuple):
    """What a search for cheaper mappings depends on.

    - costs: the energy of each event; the cost of a mapping is their sum
    - limits: of a layer's cycles, as multiples of its fewest, in descending order
    - wide: whether slow points, and the space of tight budgets, are looked at in any case (FRONT-1)
    """

    costs: Energy
    limits: tuple[float, ...]
    wide: bool
