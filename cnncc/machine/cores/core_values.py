"""The values of several cores: an interpreter each, on the same memories (CORE-6)."""

from __future__ import annotations

from collections.abc import Sequence

from cnncc.machine.cores.core_walk import CoreWalk, SharedTokens
from cnncc.machine.cores.programs import Core, Semaphore
from cnncc.machine.program import Leaf, LoopNode, Node
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.regfile import HalfFault
from cnncc.machine.values.work_limit import PER_INSTRUCTION


class CoreValues(CoreWalk[None]):
    """A core that computes. interpreter: with the core's own array; the memories are those of all cores."""

    def __init__(self, core: Core, tokens: SharedTokens[None], interpreter: Interpreter) -> None:
        super().__init__(core, tokens)
        self.interpreter = interpreter

    def run_node(self, node: Node) -> None:
        self.interpreter.run([node])

    def begin_loop(self, loop: LoopNode) -> None:
        self.interpreter.count[loop.register] = loop.count

    def begin_iteration(self, loop: LoopNode) -> None:
        self.interpreter.index[loop.register] = self.index[loop.register]
        try:
            # PROG-6: the interpreter counts the iterations of its own loops, and this one is the walk's.
            self.interpreter.work.spend(PER_INSTRUCTION)
        except HalfFault as fault:
            raise loop.head.trap(str(fault)) from fault

    def end_loop(self, loop: LoopNode) -> None:
        self.interpreter.index[loop.register], self.interpreter.count[loop.register] = 0, 1

    def use_tokens(self, leaf: Leaf, taken: Sequence[Semaphore], given: Sequence[Semaphore]) -> None:
        for semaphore in taken:
            self.tokens.take(semaphore)
        self.interpreter.run([leaf])
        for semaphore in given:
            inst = leaf.instruction
            self.tokens.give(semaphore, None, None, inst.number("count") if inst.spec.name == "signal" else 1)
