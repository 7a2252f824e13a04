"""Sums on their way to the output units: down a column of a set (COMMIT-6), and partial sums in the GLB (COMMIT-5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cnncc.arch.model import Arch
from cnncc.isa.table import EXTENTS, Instruction
from cnncc.machine.values.addresses import PE_AXES, Grid, Ints
from cnncc.machine.values.arithmetic import Arithmetic
from cnncc.machine.values.loop_blocks import OrderMatters
from cnncc.machine.values.memory import Place
from cnncc.machine.values.regfile import HalfFault
from cnncc.machine.values.strided import Strided

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
        # The innermost axes are those that `fresh` asks for. Without it all of them add to one sum in the GLB.
        begins = len(still) - len(fresh) if fresh is not None else 0
        turns = cls(tuple(still[:begins]), tuple(still[begins:]), fresh is not None, final is not None)
        if any(axes is not None and axes != frozenset(turns.summed) for axes in (fresh, final)):
            raise OrderMatters
        return turns


def padded(place: Place, axes: int) -> Place:
    """A place with at least `axes` axes."""
    if isinstance(place, Strided):
        ones = axes - len(place.sizes)
        return replace(place, sizes=(*[1] * ones, *place.sizes), steps=(*[0] * ones, *place.steps))
    return place.reshape(*[1] * (axes - place.ndim), *place.shape)


def moves(place: Place, axis: int) -> bool:
    """Whether a place depends on an axis."""
    if isinstance(place, Strided):
        return place.sizes[axis] > 1 and place.steps[axis] != 0
    return bool((place != place.take([0], axis)).any())


def words_at(place: Place, shape: tuple[int, ...], base: int, arch: Arch) -> Place:
    """The words [*shape, word] of the partial sums at places of a `shape`. Raises HalfFault for two in one place."""
    words = arch.words_per_sum
    if isinstance(place, Strided):
        # Iterations that share a place name it once.
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
