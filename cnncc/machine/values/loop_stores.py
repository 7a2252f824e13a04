"""Words that a loop's iterations store to DRAM last, so that the iterations can run at once (PROG-5, DMA-1).

A loop that ends with transfers to DRAM fills the same words of the GLB again and again. As a block, all its iterations
have their results at once. They are written in the order of the iterations, and the transfers of each one follow its
own results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cnncc.machine.program import Leaf, LoopNode, first_transfers
from cnncc.machine.values.addresses import Ints
from cnncc.machine.values.memory import Place, shape_of
from cnncc.machine.values.strided import Strided

IterationWrites = Sequence[tuple[Place, Ints]]


def trailing_stores(loop: LoopNode) -> list[Leaf]:
    """The transfers to DRAM that each iteration of a loop ends with, in order."""
    return first_transfers(reversed(loop.body), "out")[::-1]


def is_still(place: Place, iterations: int) -> bool:
    """Whether iterations of the outermost loop, the first axis, do not move a place."""
    return shape_of(place)[0] < iterations


def by_iteration(writes: Sequence[tuple[Place, Ints]], iterations: int) -> list[IterationWrites]:
    """The writes of each iteration of the outermost loop.

    writes: places [loops of the block…, …] and their values [image, *the same]. A still place has its values after all
    iterations.
    """
    parts: list[list[tuple[Place, Ints]]] = [[] for _ in range(iterations)]
    for place, values in writes:
        if is_still(place, iterations):
            parts[-1].append((place, values))
            continue
        values = np.broadcast_to(values, (values.shape[0], *shape_of(place)))
        for at, part in enumerate(parts):
            part.append((_at(place, at), values[:, at]))
    return [*parts]


def _at(place: Place, index: int) -> Place:
    """A place at one index of its first axis."""
    if isinstance(place, Strided):
        return Strided(place.start + index * place.steps[0], place.sizes[1:], place.steps[1:])
    return place[index]
