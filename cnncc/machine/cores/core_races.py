"""Races of engines of several cores: no token orders two accesses to a word of the GLB (CORE-6).

What an instruction knows is that of `races.py`, of the engines of all cores. A token of another core tells what its
giver knew.
"""

from __future__ import annotations

from collections.abc import Sequence

from cnncc.arch.model import Arch
from cnncc.isa.table import Instruction
from cnncc.machine.accesses import AccessWalk
from cnncc.machine.cores.core_walk import CoreWalk, SharedTokens, run_together
from cnncc.machine.cores.programs import Core, Semaphore, cores_of, wiring_of
from cnncc.machine.program import Leaf, LoopNode, Node
from cnncc.machine.races import MOST_RACES, Known, LastUses, Race, RaceCheck, TokenOrder
from cnncc.machine.times.tasks import queue_of


class CoreRaces(CoreWalk[Known]):
    """A core whose accesses are noted. A token is what its giver knew."""

    def __init__(self, core: Core, tokens: SharedTokens[Known], order: TokenOrder, check: RaceCheck) -> None:
        super().__init__(core, tokens)
        self.order, self.check = order, check
        self.access = AccessWalk(core.arch)

    def run_node(self, node: Node) -> None:
        for step in self.access.walk([node], self.first, self.last):
            self.check.add(step, self.order)

    def begin_loop(self, loop: LoopNode) -> None:
        pass

    def begin_iteration(self, loop: LoopNode) -> None:
        self.access.index[loop.register] = self.index[loop.register]

    def end_loop(self, loop: LoopNode) -> None:
        self.access.index[loop.register] = 0

    def use_tokens(self, leaf: Leaf, taken: Sequence[Semaphore], given: Sequence[Semaphore]) -> None:
        for semaphore in taken:
            self.order.tokens[queue_of(semaphore[1])].append((self.tokens.take(semaphore), 1))
        # Tokens of other cores pass through the core's own queues: put there before, and taken away behind, the
        # instruction.
        self.run_node(leaf)
        for semaphore in given:
            queue = self.order.tokens[queue_of(semaphore[1])]
            for known, count in queue:
                self.tokens.give(semaphore, known, known, count)
            queue.clear()


def core_races(instructions: Sequence[Instruction], arch: Arch, frames: int) -> tuple[list[Race], int]:
    """The races of a program of cores that ran to its end, with so many frames; and the number of instructions.

    Raises: Trap, for a token that never comes, an address that is none, or too many instructions.
    """
    cores = cores_of(instructions, arch, frames)
    tokens, check = SharedTokens[Known](wiring_of(cores)), RaceCheck(LastUses(arch, len(cores)))
    run_together([CoreRaces(c, tokens, TokenOrder(c.arch, len(cores), c.number), check) for c in cores])
    return check.races[:MOST_RACES], check.steps
