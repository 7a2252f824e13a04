"""Where the sums of a layer's mapping stay in their PEs, and where they are partial. No IR.

Sums stay while nothing but loops over c, r, s runs, on the same PEs (a *section*). A commit follows; where loops over
c, r, s are outside it, its sums are partial, and the GLB adds them up (docs/machine.md, COMMIT-5).
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from cnncc.dialects.array import Names
from cnncc.mapping.mapping import REDUCTION_DIMS, Loop, Mapping, Sizes, rest_sets
from cnncc.model.layer_shape import Extents, LayerShape, stage_block, whole
from cnncc.passes._programs.layer_records import ActivationLayout, LoopPieces, Piece, split


class SumConditions(NamedTuple):
    """When partial sums begin and when they are complete."""

    fresh: Names | None
    final: Names | None


class Sections:
    """The sections of a layer whose loops outside the box are `outer`, over how many sets each spreads its rest."""

    def __init__(self, shape: LayerShape, outer: Sequence[Loop], sets: Sequence[int]) -> None:
        self.shape, self.outer, self.sets = shape, outer, sets

    def uniform(self, depth: int, extent: Map[str, int]) -> bool:
        """Whether loops in space inside `depth` use the same PEs, with equal parts, in all iterations around them."""
        extent = dict(extent)
        for i, loop in enumerate(self.outer[depth:], depth):
            # Also a loop in time around one in space: 10 rows in tiles of 4 on 4 PEs end with a tile of 2 on 2 PEs.
            spread = loop.on or any(inner.on and inner.dim == loop.dim for inner in self.outer[i + 1 :])
            (_, size, _), *rest = split(extent[loop.dim], loop.step, self.sets[i])
            if spread and rest:
                return False
            extent[loop.dim] = size
        return True

    def opens(self, depth: int, extent: Map[str, int]) -> bool:
        """Whether a section begins at the body of the loop at `depth` - 1."""
        inner = self.outer[depth:]
        if inner and (inner[0].on or inner[0].dim not in REDUCTION_DIMS):
            return False  # as far inside as may be
        left = dict(extent)
        for loop in inner:
            if left[loop.dim] > loop.step and not loop.on and loop.dim not in REDUCTION_DIMS:
                return False
            left[loop.dim] = min(loop.step, left[loop.dim])
        return self.uniform(depth, extent)

    def ends(self, loops: LoopPieces, pieces: Sequence[Piece]) -> SumConditions | None:
        """When the partial sums of a section begin and are complete, `pieces` around it; None where none are."""
        around = [piece for piece in pieces if self.outer[piece.loop].dim in REDUCTION_DIMS]
        if all(piece.first and piece.last and piece.count == 1 for piece in around):
            return None
        return SumConditions(loops.first(around), loops.last(around))

    def partial(self, depth: int, extent: Extents, around: bool, seen: set[tuple[object, ...]]) -> bool:
        """Whether a section from `depth` on has partial sums; around: whether a loop over c, r, s outside it runs."""
        if self.opens(depth, extent):
            return around
        if depth == len(self.outer) or (key := (depth, around, *extent.values())) in seen:
            return False
        seen.add(key)
        loop = self.outer[depth]
        pieces = split(extent[loop.dim], loop.step, self.sets[depth])
        many = loop.dim in REDUCTION_DIMS and (len(pieces) > 1 or (not loop.on and pieces[0][0] > 1))
        return any(self.partial(depth + 1, {**extent, loop.dim: size}, around or many, seen) for _, size, _ in pieces)


def layout_of_sums(sizes: Sizes, output: ActivationLayout) -> ActivationLayout:
    """Where partial sums lie: as results do (COMMIT-5).

    Where columns of results lie apart, those of sums follow each other, unless images lie between each other's words.
    """
    is_apart = output.column > 1 and (sizes.n == 1 or output.image >= sizes.k * sizes.h * sizes.w)
    return replace(output, pitch=sizes.w, column=0) if is_apart else output


def partial_sums(shape: LayerShape, mapping: Mapping, output: ActivationLayout) -> int:
    """How many partial sums lie in the GLB at a time: one for each place of a result there; 0 where there are none.

    output: where results lie as a whole.
    """
    if not has_partial_sums(shape, mapping.loops):
        return 0
    if output.ring:
        return output.ring * shape.sizes.w * shape.sizes.k
    if stage := mapping.glb_stages.get("output"):
        return stage_block(shape, mapping.loops, stage).words
    # In a part of another tensor rows are `pitch` apart, and the last one ends with its own words.
    sums, sizes = layout_of_sums(shape.sizes, output), shape.sizes
    rows, pitch, column = sizes.k * sizes.h, max(sums.pitch, sizes.w), max(sums.column, 1)
    return (sizes.n - 1) * (sums.image or rows * pitch) + (rows - 1) * pitch + (sizes.w - 1) * column + 1


def has_partial_sums(shape: LayerShape, loops: Sequence[Loop]) -> bool:
    """Whether sums leave their PEs before they are complete, in some iteration."""
    outer = [loop for loop in loops if not loop.keep]
    sections = Sections(shape, outer, rest_sets(shape.sizes, tuple(loops), shape.tiled_together))
    return shape.is_mac and sections.partial(0, whole(shape.sizes), around=False, seen=set())
