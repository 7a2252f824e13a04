"""Where a walk through the loops of a mapping is, and in which order it comes to their pieces. No IR.

What a stage in the GLB holds at a time is a *block*. With two buffers the next block is fetched while the present one
is in use. So a loop outside such a stage is *peeled*: its last full tile is a piece of its own. What is fetched before
that tile is the next block of the same loop; what is fetched in it is the first block of what follows in the program.
Of a loop that is *opened* the first tile is a piece of its own, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from cnncc.model.layer_shape import Extents
from cnncc.model.occupancy import Side
from cnncc.model.routes import Nest

MOST_BODIES = 256  # of unrolled or peeled loops: what a program may grow by

Piece = tuple[int, int]  # iterations, indices of each


class At(NamedTuple):
    """Indices that are left of each dimension, PEs side by side, and sets of the loops around: loop i is bit 1 << i.

    - runs: loops with more than one iteration in this piece
    - late: loops that are not in their first piece
    - early: loops that are not in their last piece
    - section: the depth from which on sums stay in the PEs; -1 outside
    - following: by the depth of a stage in the GLB: its next block after this piece; none at the end
    """

    extent: Extents
    sides: tuple[Side, ...] = ()
    runs: int = 0
    late: int = 0
    early: int = 0
    section: int = -1
    following: Mapping[int, At] = MappingProxyType({})

    def first(self, depth: int) -> int | None:
        """The loops from `depth` on that must be in their first iteration for all of them to be; None: they are not."""
        return None if self.late >> depth else self.runs >> depth << depth

    def last(self, depth: int) -> int | None:
        """Likewise, in their last."""
        return None if self.early >> depth else self.runs >> depth << depth


class WalkOrder:
    """The pieces of a nest's loops: `unrolled` ones have one for each iteration, `peeled` ones are the outermost.

    opened: one of the latter, or -1.
    """

    def __init__(self, nest: Nest, unrolled: Set[int], peeled: int, opened: int = -1) -> None:
        self.nest, self.unrolled, self.peeled, self.opened = nest, unrolled, peeled, opened
        self.pieces = cache(self._pieces)

    def _pieces(self, depth: int, extent: int) -> list[Piece]:
        """The pieces of a loop over so many indices, in program order."""
        found = [(count, size) for count, size, _ in self.nest.pieces(depth, extent)]
        if self.nest.outer[depth].on:
            return found
        if depth in self.unrolled:
            return [(1, size) for count, size in found for _ in range(count)]
        if depth < self.peeled:
            found = [piece for count, size in found for piece in ((count - 1, size), (1, size))]
        if depth == self.opened:
            (count, size), *rest = found
            found = [(min(count, 1), size), (count - 1, size), *rest]
        return [piece for piece in found if piece[0] > 0]

    def inside(self, at: At, depth: int, pieces: Sequence[Piece], number: int) -> At:
        """The position in one of the pieces of the next loop."""
        loop, bit, (count, size) = self.nest.outer[depth], 1 << depth, pieces[number]
        return At(
            {**at.extent, loop.dim: size},
            (*at.sides, Side(loop.dim, size, count, loop.on)) if loop.on else at.sides,
            at.runs | bit if count > 1 and not loop.on else at.runs,
            at.late | bit if number else at.late,
            at.early | bit if number < len(pieces) - 1 else at.early,
            at.section,
            at.following,
        )

    def first(self, at: At, depth: int, staged: int) -> At:
        """The first block of a stage at depth `staged` from a position at `depth` on."""
        for number in range(depth, staged):
            at = self.inside(at, number, self.pieces(number, at.extent[self.nest.outer[number].dim]), 0)
        return at

    def bodies(self, at: At, depth: int, staged: Sequence[int]) -> list[tuple[int, At]]:
        """Iterations and positions of the next loop's pieces, which say what follows for stages at depths `staged`."""
        pieces = self.pieces(depth, at.extent[self.nest.outer[depth].dim])
        found = [(count, self.inside(at, depth, pieces, number)) for number, (count, _) in enumerate(pieces)]
        inner = [each for each in staged if each > depth]
        if not inner:
            return found
        result: list[tuple[int, At]] = []
        for number, (count, here) in enumerate(found):
            runs = here if count > 1 and not self.nest.outer[depth].on else None
            after = runs or (found[number + 1][1] if number + 1 < len(found) else None)
            nexts = {each: self.first(after, depth + 1, each) for each in inner} if after else {}
            result.append((count, here._replace(following={**at.following, **nexts})))
        return result

    def bodies_of(self, at: At, depth: int, staged: int) -> int:
        """How many positions the loops from `depth` to `staged` have in a program."""
        if depth == staged:
            return 1
        return sum(self.bodies_of(inner, depth + 1, staged) for _, inner in self.bodies(at, depth, ()))

    def turns(self, staged: int) -> int:
        """Loops in time that step from buffer to buffer of a stage: those outside it that run, in some piece."""
        return sum(
            any(count > 1 for route in self.nest.routes(loop.dim, depth) for count, _ in self.pieces(depth, route.held))
            for depth, loop in enumerate(self.nest.outer[:staged])
            if not loop.on
        )
