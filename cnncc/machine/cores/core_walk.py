"""Cores that go on in turns, each up to its next instruction that uses a token of another core (CORE-6).

Values, times and races walk through a program of cores in this way. A core waits before an instruction whose token
nobody has given yet. Each semaphore has one giver and one taker (CORE-4), so the order of turns changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from cnncc.arch.model import LOOP_REGISTERS
from cnncc.isa.table import Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.cores.programs import Core, Semaphore, Wiring, tokens_of
from cnncc.machine.program import ALL_LOOPS, Leaf, LoopNode, Node, holds
from cnncc.machine.traps import Trap

T = TypeVar("T")


class CoreWait(NamedTuple):
    """A core that waits at an instruction for a token of core `giver`."""

    core: int
    leaf: Leaf
    giver: int


class SharedUse(NamedTuple):
    """The shared semaphores that an instruction takes from and gives to at some time."""

    taken: Sequence[Semaphore]
    given: Sequence[Semaphore]

    @classmethod
    def of(cls, instruction: Instruction, core: int, wiring: Wiring) -> SharedUse:
        """Of an instruction of a core."""
        taken, given = ([(core, number) for number in tokens_of(instruction, each)] for each in ("take", "give"))
        return cls([one for one in taken if one in wiring.sources], [one for one in given if one in wiring.shared])


class Deadlock(Trap):
    """No core can go on: those that wait."""

    def __init__(
        self, index: int, address: int, instruction: Instruction, happened: str, waits: Sequence[CoreWait]
    ) -> None:
        super().__init__(index, address, instruction, happened)
        self.waits = waits


class SharedTokens(Generic[T]):
    """The tokens at the ends of routes, the oldest first. T: what is known of a token, such as its time."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        # A taker's own signals come before all other tokens, whenever these arrive (CORE-4).
        self._own = {semaphore: deque[tuple[T, int]]() for semaphore in wiring.shared}
        self._arrived = {semaphore: deque[tuple[T, int]]() for semaphore in wiring.shared}

    def give(self, semaphore: Semaphore, own: T, routed: T, count: int = 1) -> None:
        """Give tokens to a semaphore, or by its routes. own, routed: what is known of them here, and there."""
        if semaphore not in self.wiring.routes:
            self._own[semaphore].append((own, count))
            return
        for target in self.wiring.routes[semaphore]:
            self._arrived[target].append((routed, count))

    def each(self, semaphore: Semaphore) -> list[tuple[T, int]]:
        """The tokens that nobody has taken yet, in runs."""
        return [*self._own[semaphore], *self._arrived[semaphore]]

    def change(self, changed: Callable[[T], T]) -> None:
        """Change what is known of all tokens."""
        for queues in (self._own, self._arrived):
            for semaphore, queue in queues.items():
                queues[semaphore] = deque([(changed(token), count) for token, count in queue])

    def is_there(self, semaphore: Semaphore) -> bool:
        """Whether a token can be taken."""
        return bool(self._own[semaphore] or self._arrived[semaphore])

    def take(self, semaphore: Semaphore) -> T:
        """The oldest token."""
        queue = self._own[semaphore] or self._arrived[semaphore]
        token, count = queue.popleft()
        if count > 1:
            queue.appendleft((token, count - 1))
        return token


class CoreWalk(ABC, Generic[T]):
    """One core's way through its program. `go_on` leads to the next instruction that uses shared tokens.

    Attributes:
        index        of each loop that is walked through, by register
        first, last  masks of the loop registers in their first, last iteration
        at           the instruction that is next
        wanted       the semaphores that it takes from
        frames       the loop over frames in which the core is
        at_frame     whether an iteration over frames is about to begin
    """

    def __init__(self, core: Core, tokens: SharedTokens[T], seen: Container[int] = ()) -> None:
        """seen: the instructions that have to be seen each time."""
        self.core, self.tokens, self._seen = core, tokens, seen
        uses = {leaf.index: SharedUse.of(leaf.instruction, core.number, tokens.wiring) for leaf, _ in core.leaves}
        self._uses = {index: use for index, use in uses.items() if use.taken or use.given}
        self.index = [0] * LOOP_REGISTERS
        self.first = self.last = ALL_LOOPS
        self.at: Leaf | None = None
        self.frames: LoopNode | None = None
        self.at_frame = False
        self.wanted: Sequence[Semaphore] = ()
        self.ended = False
        self._walked = frozenset(self._walked_loops(core.tree))
        self._steps = self._nodes(core.tree)

    # -- what a kind of walk does ------------------------------------------------------------------------------------

    @abstractmethod
    def run_node(self, node: Node) -> None:
        """Run a node that uses no shared token."""

    @abstractmethod
    def begin_loop(self, loop: LoopNode) -> None:
        """Enter a loop that is walked through."""

    @abstractmethod
    def begin_iteration(self, loop: LoopNode) -> None:
        """Begin an iteration of such a loop."""

    @abstractmethod
    def end_loop(self, loop: LoopNode) -> None:
        """Leave such a loop."""

    @abstractmethod
    def use_tokens(self, leaf: Leaf, taken: Sequence[Semaphore], given: Sequence[Semaphore]) -> None:
        """Run an instruction that takes and gives shared tokens."""

    # -- the walk ----------------------------------------------------------------------------------------------------

    @property
    def can_go_on(self) -> bool:
        """Whether the core's program has not ended, and no token is missing."""
        return not self.ended and all(map(self.tokens.is_there, self.wanted))

    def go_on(self) -> None:
        """Go on up to the next instruction that uses shared tokens, or to the end."""
        # The walk yields None at each stop; `self` stands for its end.
        self.ended = next(self._steps, self) is self

    def _walked_loops(self, nodes: Sequence[Node]) -> Iterator[int]:
        """The loops that are walked through, by the number of `loop`: over frames, or with what has to be seen."""
        for node in nodes:
            if isinstance(node, LoopNode):
                inner = [*self._walked_loops(node.body)]
                yield from inner
                leaves = (each for each in node.body if isinstance(each, Leaf))
                if inner or node.over_frames or any(map(self._is_seen, leaves)):
                    yield node.first

    def _is_seen(self, leaf: Leaf) -> bool:
        inst = leaf.instruction
        if leaf.index in self._seen:
            return True
        # Transfers to DRAM are seen, as `CoreTimes` notes when the results of each frame are there.
        return leaf.index in self._uses or (inst.spec.kind is Kind.DMA and inst.text("direction") == "out")

    def _nodes(self, nodes: Sequence[Node]) -> Iterator[None]:
        for node in nodes:
            if isinstance(node, LoopNode) and node.first in self._walked:
                yield from self._loop(node)
            elif isinstance(node, Leaf) and (use := self._uses.get(node.index)):
                yield from self._leaf(node, use)
            else:
                self.run_node(node)

    def _loop(self, loop: LoopNode) -> Iterator[None]:
        bit, register, around = 1 << loop.register, loop.register, (self.first, self.last)
        self.begin_loop(loop)
        self.index[register] = 0
        self.frames = loop if loop.over_frames else self.frames
        # No `for`: `core_times._skip` moves the index on while the core stands at a `yield`.
        while self.index[register] < loop.count:
            if loop.over_frames:
                self.at_frame = True
                yield
                self.at_frame = False
            i = self.index[register]
            self.first = self.first | bit if i == 0 else self.first & ~bit
            self.last = self.last | bit if i == loop.count - 1 else self.last & ~bit
            self.begin_iteration(loop)
            yield from self._nodes(loop.body)
            self.index[register] += 1
        self.index[register], (self.first, self.last) = 0, around
        self.frames = None if loop.over_frames else self.frames
        self.end_loop(loop)

    def _leaf(self, leaf: Leaf, use: SharedUse) -> Iterator[None]:
        inst, (taken, given) = leaf.instruction, use
        taken = taken if taken and holds(inst.when("take_when"), self.first) else ()
        given = given if inst.spec.kind is Kind.SIGNAL or (given and holds(inst.when("give_when"), self.last)) else ()
        self.at, self.wanted = leaf, taken
        yield
        self.at, self.wanted = None, ()
        self.use_tokens(leaf, taken, given)


Pick = Callable[[Sequence[CoreWalk[T]]], CoreWalk[T]]


def run_together(walks: Sequence[CoreWalk[T]], pick: Pick[T] | None = None) -> None:
    """Let all cores run to their ends. pick: chooses the next one of those that can go on, by default the first.

    Raises: Trap, of the first waiting core, if no core can go on. It names all of them.
    """
    run_frame(walks, None, pick)
    check_ended(walks)


def run_frame(walks: Sequence[CoreWalk[T]], leader: CoreWalk[T] | None, pick: Pick[T] | None) -> None:
    """Let all cores run as far as they can while the leader does not begin another iteration over frames."""
    while ready := [walk for walk in walks if walk.can_go_on and not (walk is leader and walk.at_frame)]:
        (pick(ready) if pick else ready[0]).go_on()


def check_ended(walks: Sequence[CoreWalk[T]]) -> None:
    """Raises Trap, of the first waiting core, if there is one. It names all of them."""
    waiting = [(walk, walk.at) for walk in walks if walk.at is not None]
    if waiting:
        each = [f"core {w.core.number} at instruction {leaf.index} ({_wants(w, leaf)})" for w, leaf in waiting]
        first = waiting[0][1]
        raise Deadlock(
            first.index,
            first.address,
            first.instruction,
            f"deadlock: no core can go on: {', '.join(each)} (CORE-6)",
            [CoreWait(walk.core.number, leaf, _giver(walk)) for walk, leaf in waiting],
        )


def _giver(walk: CoreWalk[T]) -> int:
    """The core whose token a core waits for."""
    # CORE-4: a semaphore at the end of a route has one source, and an instruction takes of one semaphore at most.
    (wanted,) = walk.wanted
    ((giver, _),) = walk.tokens.wiring.sources[wanted]
    return giver


def _wants(walk: CoreWalk[T], leaf: Leaf) -> str:
    numbers = [str(number) for _, number in walk.wanted]
    return f"{leaf.instruction.spec.name} waits for semaphore {', '.join(numbers)}"
