"""In which order a program comes to the pieces of its loops, and to the blocks that its stages in the GLB hold. No IR.

What a stage holds at a time is a *block* (of weights or parameters, a slice). With two buffers blocks alternate, and
the next one is fetched while the present one is in use. So a program has to say which block is next. The last full tile
of each loop outside is *peeled* into a piece of its own. The next block is

    in the last iteration of a loop   the first block of the piece that follows
    in any other iteration            the same piece, one iteration on

The first iteration of such a loop may be peeled, too: the loop is *opened*.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cnncc.model.layer_shape import Extents
from cnncc.passes._programs.layer_records import LoopPieces, Piece, Position, split

Cut = tuple[int, int, int]  # iterations, size, first iteration


@dataclass(frozen=True)
class IterationOrder:
    """The loops of a layer of these sizes, the `peeled` outermost of them peeled; `sets` as of `split`.

    opened: the number of one of those, or -1.
    """

    loops: LoopPieces
    sizes: Map[str, int]
    sets: Sequence[int]
    peeled: int = 0
    opened: int = -1
    _counts: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])

    def cuts(self, depth: int, extent: Map[str, int]) -> list[Cut]:
        """The pieces of a loop in program order. Side by side iterations of one are at one time."""
        loop = self.loops.loops[depth]
        pieces = split(extent[loop.dim], loop.step, self.sets[depth])
        cuts = [(n, size, base // loop.step) for n, size, base in pieces]
        if loop.on:
            return cuts
        if depth in self.loops.unrolled:
            # Each iteration is a piece of its own: nothing is left to peel.
            return [(1, size, first + i) for n, size, first in cuts for i in range(n)]
        if depth < self.peeled:
            cuts = [cut for n, size, first in cuts for cut in ((n - 1, size, first), (1, size, first + n - 1))]
        if depth == self.opened:
            # A single full tile is peeled: the first cut is empty then (n = 0), and both parts of it are dropped below.
            (n, size, first), *rest = cuts
            cuts = [(min(n, 1), size, first), (n - 1, size, first + 1), *rest]
        return [cut for cut in cuts if cut[0] > 0]

    def inside(self, at: Position, number: int, on: int = 0) -> Position:
        """The position in piece `number` of the next loop inside, `on` iterations further."""
        depth = len(at.pieces)
        loop, cuts = self.loops.loops[depth], self.cuts(depth, at.extent)
        count, size, first = cuts[number]
        piece = Piece(depth, first + on, 1 if loop.on else count, number == 0, number == len(cuts) - 1)
        space = (*at.space, (replace(loop, step=size), count)) if loop.on else at.space
        return replace(at, extent={**at.extent, loop.dim: size}, pieces=(*at.pieces, piece), space=space)

    def first(self, at: Position, depth: int) -> Position:
        """The first block of a stage at `depth` from a position outside it on."""
        while len(at.pieces) < depth:
            at = self.inside(at, 0)
        return at

    def bodies(self, at: Position, staged: Sequence[int]) -> list[tuple[Cut, Position]]:
        """The pieces of the next loop inside and their positions, which say what follows for stages at these depths."""
        depth = len(at.pieces)
        cuts, result = self.cuts(depth, at.extent), list[tuple[Cut, Position]]()
        for number, cut in enumerate(cuts):
            # In the last piece, what follows is the next block of the loop around: `at.following`, or nothing.
            inner_position, after = self.inside(at, number), dict(at.following)
            for inner in (inner for inner in staged if inner > depth):
                # The last full tile is peeled, so that an iteration follows each one of a piece of several.
                if inner_position.pieces[-1].count > 1:
                    after[inner] = self.first(self.inside(at, number, on=1), inner)
                elif number + 1 < len(cuts):
                    after[inner] = self.first(self.inside(at, number + 1), inner)
            result.append((cut, replace(inner_position, following=after)))
        return result

    # -- how many ------------------------------------------------------------------------------------------------

    def blocks(self, depth: int, staged: int, extent: Map[str, int]) -> int:
        """How many blocks of a stage at depth `staged` an iteration around loop number `depth` has."""
        if depth == staged:
            return 1
        key = (depth, staged, *extent.values())
        if key not in self._counts:
            self._counts[key] = sum(
                count * self.blocks(depth + 1, staged, inner) for count, inner in self._times(depth, extent)
            )
        return self._counts[key]

    def copies(self, depth: int, staged: int, extent: Map[str, int]) -> int:
        """How many copies in the program these blocks have."""
        if depth == staged:
            return 1
        return sum(self.copies(depth + 1, staged, inner) for _, inner in self._times(depth, extent))

    def _times(self, depth: int, extent: Map[str, int]) -> list[tuple[int, Extents]]:
        loop = self.loops.loops[depth]
        return [(1 if loop.on else n, {**extent, loop.dim: size}) for n, size, _ in self.cuts(depth, extent)]

    def before(self, at: Position, staged: int) -> int:
        """How many blocks come before the first of those at a position."""
        total, extent = 0, dict(self.sizes)
        for piece in at.pieces[:staged]:
            loop, current = self.loops.loops[piece.loop], extent
            for count, size, first in self.cuts(piece.loop, current):
                if first > piece.base:
                    break
                extent = {**current, loop.dim: size}
                # PEs side by side have one block in time: a rest behind 8 of them is block 1, not 8.
                count_in_time = 1 if loop.on else count
                total += min(count_in_time, piece.base - first) * self.blocks(piece.loop + 1, staged, extent)
        return total

    def strides(self, staged: int) -> dict[int, int] | None:
        """For each passed loop, how many blocks pass from one iteration to the next; None if they would not alternate.

        A loop has one stride in all bodies of a program, which decides between two buffers: it is even in all, or odd.
        """
        strides: dict[int, set[int]] = {}
        seen: set[tuple[int, ...]] = set()

        def visit(depth: int, extent: Map[str, int]) -> None:
            if depth == staged or (key := (depth, *extent.values())) in seen:
                return
            seen.add(key)
            for count, inner in self._times(depth, extent):
                if count > 1:
                    strides.setdefault(depth, set()).add(self.blocks(depth + 1, staged, inner))
                visit(depth + 1, inner)

        visit(0, self.sizes)
        if any(len({blocks % 2 for blocks in passed}) > 1 for passed in strides.values()):
            return None
        # Two buffers come round after two blocks: of strides that are all even, or all odd, any one does.
        return {depth: max(passed) for depth, passed in strides.items()}
