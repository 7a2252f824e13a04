"""What a loop's iterations fetch into the GLB first, kept so that they can run at once (rules PROG-5, DMA-1).

A loop that begins with transfers from DRAM fills the same words of the GLB again and again. As a block, all of its
iterations read them at once, and each must find what it would have found alone. So the transfers of all iterations are
done before, in order, and the words that they reach are kept as each iteration finds them. That is exact as long as
the block writes none of these words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cnncc.isa.table import Instruction
from cnncc.machine.program import Leaf, LoopNode
from cnncc.machine.values.addresses import Descriptor, Index
from cnncc.machine.values.delivery import Delivered
from cnncc.machine.values.memory import Memory, Place, ends
from cnncc.machine.values.regfile import Words

Read = Callable[[Memory, Sequence[Index], Descriptor], Delivered]


def fetches(loop: LoopNode) -> list[Leaf]:
    """The transfers from DRAM that each iteration of a loop begins with."""
    found: list[Leaf] = []
    for node in loop.body:
        if not isinstance(node, Leaf) or not _fetches(node.instruction):
            break
        found.append(node)
    return found


def _fetches(inst: Instruction) -> bool:
    return inst.spec.name == "dma" and inst.text("direction") == "in"


@dataclass(frozen=True)
class Fetched:
    """The words of a memory from address `low` on that one transfer reaches in the iterations of a loop.

    side: the descriptor that it goes by. before: these words before the loop. versions: in each iteration, after all
    its transfers.
    """

    side: Descriptor
    low: int
    before: Memory
    versions: list[Memory]

    @classmethod
    def of(cls, memory: Memory, side: Descriptor, places: Sequence[Place]) -> Fetched:
        """What a transfer to `places`, one for each iteration, will reach. Raises OutOfRange."""
        for place in places:
            memory.check(place)
        reach = [ends(place) for place in places if place.size]
        low, high = min((low for low, _ in reach), default=0), max((high for _, high in reach), default=-1)
        return cls(side, low, memory.part(low, high + 1), [])

    def keep(self, memory: Memory) -> None:
        """Keep the words as they are now, for the next iteration that has none."""
        self.versions.append(memory.part(self.low, self.low + self.before.words))

    def touches(self, places: Sequence[Place]) -> bool:
        """Whether some of the words may be at one of the places."""
        reach = (ends(place) for place in places if place.size)
        return any(low < self.low + self.before.words and high >= self.low for low, high in reach)

    def read(self, read: Read, register: int, iterations: range, loops: Sequence[Index]) -> Words:
        """What `read` finds by the descriptor in each iteration, along the first axis after the images'.

        Where the loop's index is one number, only what it finds in that iteration.

        Raises OutOfRange for words that are not among these.
        """
        at, found = replace(self.side, base=self.side.base - self.low), list[Words]()
        for i, version in zip(iterations, self.versions, strict=True):
            if isinstance(loops[register], int) and loops[register] != i:
                continue
            found.append(read(version, [*loops[:register], i, *loops[register + 1 :]], at).words)
        return np.concatenate(np.broadcast_arrays(*found), axis=1)
