"""Words that a loop's iterations fetch into the GLB first, kept so that the iterations can run at once (PROG-5, DMA-1).

A loop that begins with transfers from DRAM fills the same words of the GLB again and again. As a block, all its
iterations read at once, and each must read the words that it would have read alone. So the transfers of all iterations
are done first, in order, and a version of these words is kept for each iteration. The result is exact as long as the
block writes none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cnncc.machine.program import Leaf, LoopNode, first_transfers
from cnncc.machine.values.addresses import Descriptor, Index
from cnncc.machine.values.delivery import Delivered
from cnncc.machine.values.memory import Memory, Place, ends, reach
from cnncc.machine.values.regfile import Words

WordReader = Callable[[Memory, Sequence[Index], Descriptor], Delivered]


def leading_fetches(loop: LoopNode) -> list[Leaf]:
    """The transfers from DRAM that each iteration of a loop begins with."""
    return first_transfers(loop.body, "in")


@dataclass(frozen=True)
class FetchedWords:
    """The words of a memory, from address `low` on, that one transfer reaches in the iterations of a loop.

    - side: the transfer's descriptor
    - before: the words before the loop
    - versions: by iteration, the words after all its transfers
    """

    side: Descriptor
    low: int
    before: Memory
    versions: list[Memory]

    @classmethod
    def of(cls, memory: Memory, side: Descriptor, places: Sequence[Place]) -> FetchedWords:
        """The words that a transfer to `places`, one for each iteration, will reach. Raises OutOfRange."""
        for place in places:
            memory.check(place)
        low, high = reach(places)
        return cls(side, low, memory.part(low, high + 1), [])

    def keep(self, memory: Memory) -> None:
        """Add the words as they are now, as the version of the next iteration."""
        self.versions.append(memory.part(self.low, self.low + self.before.words))

    def touches(self, places: Sequence[Place]) -> bool:
        """Whether one of the places may overlap the words."""
        each = (ends(place) for place in places if place.size)
        return any(low < self.low + self.before.words and high >= self.low for low, high in each)

    def read(self, read: WordReader, register: int, iterations: range, loops: Sequence[Index]) -> Words:
        """The words that `read` finds by the descriptor in each iteration, along the first axis after the images'.

        A loop whose index is one number is in that iteration alone.
        Raises: OutOfRange, for other words than these.
        """
        at, parts = replace(self.side, base=self.side.base - self.low), list[Words]()
        for i, version in zip(iterations, self.versions, strict=True):
            if isinstance(loops[register], int) and loops[register] != i:
                continue
            parts.append(read(version, [*loops[:register], i, *loops[register + 1 :]], at).words)
        # A version has all images, or one if they agree in it.
        return np.concatenate(np.broadcast_arrays(*parts), axis=1)
