"""Sums on their way to the output units: down a column of a set (COMMIT-6), and partial sums in the GLB (COMMIT-5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cnncc.arch.model import Arch
from cnncc.isa.table import EXTENTS, Instruction
from cnncc.machine.values.addresses import PE_AXES, Descriptor, Grid, Index, Ints
from cnncc.machine.values.arithmetic import Arithmetic, last
from cnncc.machine.values.memory import Memory, Place
from cnncc.machine.values.output_units import place_of
from cnncc.machine.values.regfile import HalfFault
from cnncc.machine.values.strided import Strided
from cnncc.machine.values.vectorised import OrderMatters

ROWS = 1 - PE_AXES - len(EXTENTS)  # the axis of rows within a set, in [image, block…, *grid, *pattern]


def reduced(inst: Instruction, grid: Grid, sums: Ints, arithmetic: Arithmetic) -> tuple[Grid, Ints]:
    """The psums [image, block…, *grid, *pattern] of a set's rows added from north to south, and their PEs (COMMIT-6).

    Raises: HalfFault, if there are no links, if a set is cut short, or if a sum leaves the width of a psum on its way.
    """
    if not arithmetic.arch.links.south:
        raise HalfFault("this array has no links for psums to the south")
    if inst.text("source") == "glb":
        raise HalfFault("streamed words come from no rows that could be added up")
    if grid.rows != grid.set_rows or inst.term("row").step:
        raise HalfFault("sets whose rows are added up are whole, and their results do not depend on the row")
    shape = (*sums.shape[: ROWS - 1], *grid.shape, *sums.shape[-len(EXTENTS) :])
    return grid.south, arithmetic.south(np.broadcast_to(sums, shape), ROWS)


@dataclass(frozen=True)
class SummedAxes:
    """The axes of a block whose iterations share one place of partial sums, because they do not move the place.

    - outer: the outer axes; each of their iterations starts new sums.
    - summed: the inner axes; sums are added up along them.
    - fresh: the first iteration of `summed` has no sum in the GLB yet.
    - final: the last iteration of `summed` completes the sums.
    """

    outer: tuple[int, ...]
    summed: tuple[int, ...]
    fresh: bool
    final: bool

    @classmethod
    def of(cls, still: Sequence[int], fresh: frozenset[int] | None, final: frozenset[int] | None) -> SummedAxes:
        """The turns of a block.

        - still: the axes that do not move the place, from the outermost on
        - fresh, final: the axes whose first, last iteration the condition asks for; None if it never holds

        Raises: OrderMatters, if a condition holds in other iterations than the first or last one of a sum.
        """
        begins = len(still) - len(fresh) if fresh is not None else 0
        turns = cls(tuple(still[:begins]), tuple(still[begins:]), fresh is not None, final is not None)
        if any(axes is not None and axes != frozenset(turns.summed) for axes in (fresh, final)):
            raise OrderMatters
        return turns


@dataclass(frozen=True)
class Accumulated:
    """Partial sums after the commits of a block: [image, block…, *grid, *pattern], summed axes of size 1.

    - place: their words in the GLB
    - kept: the values to be stored there, if any
    - read: whether earlier sums were read there
    """

    sums: Ints
    turns: SummedAxes
    place: Place
    kept: Ints | None
    read: bool


def accumulated(
    inst: Instruction,
    grid: Grid,
    loops: Sequence[Index],
    sums: Ints,
    glb: Memory,
    descriptor: Descriptor,
    arithmetic: Arithmetic,
    counts: Mapping[int, int],
    ends: tuple[frozenset[int] | None, frozenset[int] | None],
) -> Accumulated:
    """total = sums + (0 if fresh else the partial sums in the GLB); unless final, the total is kept there (COMMIT-5).

    - counts: iterations by axis of the block that the commit is in
    - ends: the axes that `fresh` and `final` ask for; None for a condition that does not hold

    Raises:
    - HalfFault, for a place outside the tensor, two sums in one place, or a sum that leaves `sum_bits`.
    - OrderMatters, if the iterations must run one by one.
    """
    axes = sums.ndim - 1 - PE_AXES - len(inst.extents)
    side = replace(descriptor, base=0)
    place = _padded(place_of(inst, grid, loops, side, "partial sums lie outside their tensor"), sums.ndim - 1)
    full = (*(counts.get(axis, 1) for axis in range(axes)), *grid.shape, *inst.extents)
    values = np.broadcast_to(sums, np.broadcast_shapes(sums.shape, full))
    still = [axis for axis in sorted(counts) if not _moves(place, axis)]
    turns = SummedAxes.of(still, *ends)
    at = _words_at(
        place, tuple(1 if axis in still else n for axis, n in enumerate(full)), descriptor.base, arithmetic.arch
    )
    before: Ints = np.zeros((1,) * sums.ndim, np.int64)
    if not turns.fresh:
        before = arithmetic.sums_of_words(glb.read(at).astype(np.int64))
    along = tuple(1 + axis for axis in turns.summed)
    total, before_last = arithmetic.partial(before, values, along)
    # The commit that completes a sum does not store it: the GLB keeps the sum before that.
    kept = last(before_last if turns.final else total, tuple(1 + axis for axis in turns.outer))
    stored = not turns.final or bool(along)  # a sum that is complete at once never was in the GLB
    return Accumulated(total, turns, at, arithmetic.words_of_sums(kept) if stored else None, not turns.fresh)


def _padded(place: Place, axes: int) -> Place:
    """A place with at least `axes` axes."""
    if isinstance(place, Strided):
        ones = axes - len(place.sizes)
        return replace(place, sizes=(*[1] * ones, *place.sizes), steps=(*[0] * ones, *place.steps))
    return place.reshape(*[1] * (axes - place.ndim), *place.shape)


def _moves(place: Place, axis: int) -> bool:
    """Whether a place depends on an axis."""
    if isinstance(place, Strided):
        return place.sizes[axis] > 1 and place.steps[axis] != 0
    return bool((place != place.take([0], axis)).any())


def _words_at(place: Place, shape: tuple[int, ...], base: int, arch: Arch) -> Place:
    """The words [*shape, word] of the partial sums at places of a `shape`. Raises HalfFault for two in one place."""
    words = arch.words_per_sum
    if isinstance(place, Strided):
        sizes = tuple(min(size, n) for size, n in zip(place.sizes, shape, strict=True))
        steps = (*(words * step for step in place.steps), 1)
        at = Strided(base + words * place.start, (*sizes, words), steps)
        if sizes == shape and at.distinct:
            return at
        listed = replace(place, sizes=sizes).listed()
    else:
        listed = place[tuple(slice(n) for n in shape)]
    listed = np.broadcast_to(listed, shape)
    if np.unique(listed).size < listed.size:
        raise HalfFault("two partial sums lie in one place")
    return base + words * listed[..., None] + np.arange(words)
