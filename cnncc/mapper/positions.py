"""Where a walk through the loops of a mapping is. No IR."""

from __future__ import annotations

from dataclasses import dataclass

from cnncc.mapper.layer_shape import Extents
from cnncc.mapper.occupancy import Side


@dataclass(frozen=True, slots=True)
class At:
    """Indices that are left of each dimension, PEs side by side, and the loops around; loop i is bit 1 << i.

    runs: loops that run more than once here; late: those that are not in their first piece; early: not in their last.
    section: the depth from which on sums stay in the PEs; -1 outside.
    """

    extent: Extents
    sides: tuple[Side, ...] = ()
    runs: int = 0
    late: int = 0
    early: int = 0
    section: int = -1

    def first(self, depth: int) -> int | None:
        """The loops from `depth` on that must be in their first iteration for all of them to be; None: they are not."""
        return None if self.late >> depth else self.runs >> depth << depth

    def last(self, depth: int) -> int | None:
        """Likewise, in their last."""
        return None if self.early >> depth else self.runs >> depth << depth
