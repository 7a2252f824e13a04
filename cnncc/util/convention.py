"""How the formulas of a paper are taken."""

from __future__ import annotations

from enum import Enum


class Convention(Enum):
    """Whether the equations are taken as printed, or corrected."""

    PAPER = "paper"
    CORRECTED = "corrected"


PAPER, CORRECTED = Convention.PAPER, Convention.CORRECTED
