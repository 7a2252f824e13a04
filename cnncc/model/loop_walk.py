"""The positions of a walk through the loops of a mapping, and the order of its pieces. No IR.

A *block* is the content of a stage's buffer in the GLB at a time. With two buffers the next block is prefetched while
the current one is in use. So a loop outside such a stage is *peeled*: its last full tile is a piece of its own. Earlier
tiles prefetch the next block of the same loop. The last tile prefetches the first block of the rest of the program. An
*opened* loop has its first tile peeled too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

from cnncc.model.layer_shape import Extents
from cnncc.model.occupancy import SpatialLoop
from cnncc.model.routes import Nest

MOST_BODIES = 256  # unrolled copies of peeled loops at most: the limit of a program's growth

Piece = tuple[int, int]  # iterations, indices of each


class WalkPosition(NamedTuple):
    """A position: indices left of each dimension, PEs side by side, and masks of the loops around (loop i is 1 << i).

    Attributes:
        repeated    mask of loops with more than one iteration in this piece
        past_first  mask of loops past their first piece
        before_last mask of loops before their last piece
        section     the depth from which on sums stay in the PEs, -1 outside
        following   the next block of each stage after this piece, by the stage's depth
    """

    extent: Extents
    sides: tuple[SpatialLoop, ...] = ()
    repeated: int = 0
    past_first: int = 0
    before_last: int = 0
    section: int = -1
    following: Mapping[int, WalkPosition] = MappingProxyType({})

    def first(self, depth: int) -> int | None:
        """The loops whose first iteration makes all loops from `depth` on be in their first; None if none can."""
        return None if self.past_first >> depth else self.repeated >> depth << depth

    def last(self, depth: int) -> int | None:
        """The loops whose last iteration makes all loops from `depth` on be in their last; None if none can."""
        return None if self.before_last >> depth else self.repeated >> depth << depth


class WalkOrder:
    """The order of the pieces of a nest's loops.

    - unrolled: the loops with one piece for each iteration
    - peeled: the number of outermost loops that are peeled
    - opened: the number of the opened loop among them, or -1
    """

    def __init__(self, nest: Nest, unrolled: Set[int], peeled: int, opened: int = -1) -> None:
        self.nest, self.unrolled, self.peeled, self.opened = nest, unrolled, peeled, opened
        self.pieces = cache(partial(_pieces, nest, unrolled, peeled, opened))

    def inside(self, at: WalkPosition, depth: int, pieces: Sequence[Piece], number: int) -> WalkPosition:
        """The position in one of the pieces of the next loop."""
        loop, bit, (count, size) = self.nest.outer[depth], 1 << depth, pieces[number]
        return WalkPosition(
            {**at.extent, loop.dim: size},
            (*at.sides, SpatialLoop(loop.dim, size, count, loop.on)) if loop.on else at.sides,
            at.repeated | bit if count > 1 and not loop.on else at.repeated,
            at.past_first | bit if number else at.past_first,
            at.before_last | bit if number < len(pieces) - 1 else at.before_last,
            at.section,
            at.following,
        )

    def first(self, at: WalkPosition, depth: int, stage_depth: int) -> WalkPosition:
        """The first block of a stage at `stage_depth` from a position at `depth` on."""
        for number in range(depth, stage_depth):
            at = self.inside(at, number, self.pieces(number, at.extent[self.nest.outer[number].dim]), 0)
        return at

    def bodies(self, at: WalkPosition, depth: int, stage_depths: Sequence[int]) -> list[tuple[int, WalkPosition]]:
        """(iterations, position) of each piece of the next loop, with the next blocks of stages at `stage_depths`."""
        pieces = self.pieces(depth, at.extent[self.nest.outer[depth].dim])
        bodies = [(count, self.inside(at, depth, pieces, number)) for number, (count, _) in enumerate(pieces)]
        inner = [stage for stage in stage_depths if stage > depth]
        if not inner:
            return bodies
        result: list[tuple[int, WalkPosition]] = []
        for (count, body), following in zip(bodies, [*(body for _, body in bodies[1:]), None], strict=True):
            # Where blocks are prefetched, the last full tile is a piece of its own. So its like follows a longer piece.
            after = body if count > 1 and not self.nest.outer[depth].on else following
            # Behind the last piece comes what follows the loops around, which `at` knows.
            nexts = {stage: self.first(after, depth + 1, stage) for stage in inner} if after else {}
            result.append((count, body._replace(following={**at.following, **nexts})))
        return result

    def bodies_of(self, at: WalkPosition, depth: int, stage_depth: int) -> int:
        """The number of copies, in a program, of the body inside the loops from `depth` to `stage_depth`."""
        if depth == stage_depth:
            return 1
        return sum(self.bodies_of(inner, depth + 1, stage_depth) for _, inner in self.bodies(at, depth, ()))

    def turns(self, stage_depth: int) -> int:
        """The number of loops in time that alternate a stage's buffers: those outside it with a piece that runs."""
        return sum(
            any(count > 1 for route in self.nest.routes(loop.dim, depth) for count, _ in self.pieces(depth, route.held))
            for depth, loop in enumerate(self.nest.outer[:stage_depth])
            if not loop.on
        )


def _pieces(nest: Nest, unrolled: Set[int], peeled: int, opened: int, depth: int, extent: int) -> list[Piece]:
    """The pieces of a loop over `extent` indices, in program order."""
    pieces = [(count, size) for count, size, _ in nest.pieces(depth, extent)]
    if nest.outer[depth].on:
        return pieces
    if depth in unrolled:
        return [(1, size) for count, size in pieces for _ in range(count)]
    if depth < peeled:
        pieces = [piece for count, size in pieces for piece in ((count - 1, size), (1, size))]
    if depth == opened:
        (count, size), *rest = pieces
        pieces = [(min(count, 1), size), (count - 1, size), *rest]
    return [piece for piece in pieces if piece[0] > 0]
