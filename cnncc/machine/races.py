"""Races for words of the GLB: two accesses that no token, `sync` or queue orders.

Rules: PROG-3 to PROG-5, TOKEN-1 to TOKEN-5.

Values follow program order (PROG-5), so a token too few changes none of them. Here each instruction *knows* which
others are done when it starts, whatever the times are:

| it knows | because |
|---|---|
| what the instruction before it on its engine knew | engines work in program order |
| what the giver of a token that it takes knew, and the giver | tokens are given when an instruction is done |
| what the sequencer knew when it decoded it | it starts later |

The sequencer knows the engines that a `sync` waited for. A full queue tells it what the instruction `queue_depth`
places before knew when it started (TIME-1). Where two engines access one word, and one of them writes it, the later
access in program order must know the earlier one. An engine orders its own accesses: they have one latency.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from cnncc.arch.model import Arch
from cnncc.isa.table import Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.accesses import AccessStep, AccessWalk
from cnncc.machine.program import Leaf, build_tree
from cnncc.machine.times.loop_texts import waits_for
from cnncc.machine.times.tasks import (
    ENGINES,
    QUEUES,
    EngineTask,
    EngineToken,
    free_halves,
    queue_name,
    queue_of,
    task_of,
)
from cnncc.machine.values.memory import OutOfRange, Place, ends, fill
from cnncc.machine.values.regfile import HalfFault
from cnncc.machine.values.strided import Strided

MOST_RACES = 5  # to be listed
MOST_STEPS = 1 << 24  # instructions, as often as they run (PROG-6)

Known = tuple[int, ...]  # by engine of all cores: how many of its instructions are done


@dataclass(frozen=True)
class Race:
    """An instruction that may use a word of the GLB before an earlier one has written (read) it."""

    early: Leaf
    late: Leaf
    word: int
    is_write: bool
    cores: tuple[int, int] | None = None  # of both, in a program of cores

    def __str__(self) -> str:
        early, late = self.early.instruction.spec.engine, self.late.instruction.spec.engine
        if self.cores is not None:
            early, late = f"{early} of core {self.cores[0]}", f"{late} of core {self.cores[1]}"
        verb = "written" if self.is_write else "read"
        return (
            f"instruction {self.late.index} ({late}) may use GLB word {self.word} "
            f"before instruction {self.early.index} ({early}) has {verb} it: a token or a sync is missing"
        )


def _joined(one: Known, other: Known) -> Known:
    return one if one is other or one == other else tuple(map(max, one, other))


class TokenOrder:
    """What the sequencer and the engines of a core know. base: the number of its first engine among all."""

    def __init__(self, arch: Arch, cores: int = 1, number: int = 0) -> None:
        nothing: Known = tuple([0] * (cores * len(ENGINES)))
        self.base = number * len(ENGINES)
        self.sequencer, self.overlap = nothing, arch.sequencer.overlap
        self.issued = [0] * len(ENGINES)
        self.started: list[Known] = [nothing] * len(ENGINES)  # by engine: what its last instruction knew
        self.queued = [deque[Known](maxlen=arch.sequencer.queue_depth) for _ in ENGINES]
        self.tokens = [deque[tuple[Known, int]]() for _ in range(QUEUES)]
        for queue, halves in free_halves(arch).items():
            self.tokens[queue].append((nothing, halves))

    def wait(self, engines: Sequence[int]) -> None:
        """The sequencer waits until engines are idle (PROG-4)."""
        for engine in engines:
            self.sequencer = _joined(self.sequencer, self._with(self.started[engine], engine))

    def signal(self, queue: int, count: int) -> None:
        """The sequencer gives tokens (TOKEN-4)."""
        self.tokens[queue].append((self.sequencer, count))

    def start(self, engine: int, taken: Sequence[EngineToken]) -> Known:
        """What an instruction knows that takes some tokens. Raises HalfFault for a token that never comes."""
        if not self.overlap:
            self.wait(range(len(ENGINES)))
        queue = self.queued[engine]
        if len(queue) == queue.maxlen:
            self.sequencer = _joined(self.sequencer, queue[0])
        known = _joined(self.sequencer, self.started[engine])
        for token in taken:
            known = _joined(known, self._take(token.queue))
        queue.append(known)
        self.started[engine] = known
        self.issued[engine] += 1
        return known

    def give(self, engine: int, given: Sequence[EngineToken]) -> None:
        """The instruction that was started last on an engine is done."""
        for token in given:
            self.tokens[token.queue].append((self._with(self.started[engine], engine), 1))

    def _with(self, known: Known, engine: int) -> Known:
        """What is known once all instructions of an engine so far are done."""
        at = self.base + engine
        return (*known[:at], self.issued[engine], *known[at + 1 :])

    def _take(self, queue: int) -> Known:
        tokens = self.tokens[queue]
        if not tokens:
            raise HalfFault(f"deadlock: no {queue_name(queue)} will ever come")
        known, count = tokens.popleft()
        if count > 1:
            tokens.appendleft((known, count - 1))
        return known


class LastUses:
    """By engine and word of the GLB: the number of the engine's last instruction that wrote it, that read it."""

    def __init__(self, arch: Arch, cores: int = 1) -> None:
        self.cores = cores
        self.leaves: list[list[Leaf]] = [[] for _ in range(cores * len(ENGINES))]
        self.words = arch.glb.words
        self.written, self.read = ([np.zeros(self.words, np.int32) for _ in self.leaves] for _ in range(2))
        # The greatest of each engine's numbers: most engines only read or only write, some do neither.
        self.last_write, self.last_read = [0] * len(self.leaves), [0] * len(self.leaves)

    def races(self, step: AccessStep, engine: int, known: Known) -> Iterator[Race]:
        """The races of an instruction with earlier ones of other engines. Raises OutOfRange."""
        if not (places := (*step.reads, *step.writes)):
            return
        for place in places:
            low, high = ends(place) if place.size else (0, 0)
            if low < 0 or high >= self.words:
                raise OutOfRange(f"glb address {low if low < 0 else high} is not one of {self.words} words")
        for other, is_known in enumerate(known):
            if other == engine:
                continue
            # An engine works in order: whoever knows its last use of a word knows all earlier ones.
            if self.last_write[other] > is_known:
                yield from self._races(step, places, engine, other, is_known, is_write=True)
            if self.last_read[other] > is_known and step.writes:
                yield from self._races(step, step.writes, engine, other, is_known, is_write=False)

    def _races(
        self, step: AccessStep, places: Sequence[Place], engine: int, other: int, is_known: int, *, is_write: bool
    ) -> Iterator[Race]:
        """The races with writes (reads) of one other engine."""
        last = (self.written if is_write else self.read)[other]
        for place in places:
            if (race := _race(place, last, is_known)) is not None:
                word, number = race
                cores = (other // len(ENGINES), engine // len(ENGINES)) if self.cores > 1 else None
                yield Race(self.leaves[other][number - 1], step.leaf, word, is_write, cores)

    def note(self, step: AccessStep, engine: int) -> None:
        """Note the accesses of an instruction."""
        self.leaves[engine].append(step.leaf)
        # The first use has number 1, so 0 says that the engine has never used a word.
        number = len(self.leaves[engine])
        for places, last, latest in (
            (step.reads, self.read[engine], self.last_read),
            (step.writes, self.written[engine], self.last_write),
        ):
            for place in places:
                fill(last, place, number)
                latest[engine] = number


def _race(place: Place, last: np.ndarray, known: int) -> tuple[int, int] | None:
    """The first word of a place whose last access is not known, and the number of that access."""
    numbers = place.of(last) if isinstance(place, Strided) else last[place]
    if not numbers.size or int(np.maximum.reduce(numbers, axis=None)) <= known:
        return None
    at = np.flatnonzero(numbers.ravel() > known)[0]
    listed = place.listed() if isinstance(place, Strided) else place
    return int(listed.ravel()[at]), int(numbers.ravel()[at])


def races(instructions: Sequence[Instruction], arch: Arch) -> tuple[list[Race], int]:
    """The races of a program, the first ones in program order; and the number of instructions that run.

    A pair of instructions counts once.

    Raises: Trap, for a token that never comes, an address that is none, or too many instructions.
    """
    order, check = TokenOrder(arch), RaceCheck(LastUses(arch))
    for step in AccessWalk(arch).walk(build_tree(instructions)):
        check.add(step, order)
        if check.is_enough:
            break
    return check.races, check.steps


class RaceCheck:
    """The races seen so far, a pair of instructions once, and the number of instructions that ran."""

    def __init__(self, words: LastUses) -> None:
        self.words, self.steps = words, 0
        self._by_pair: dict[tuple[int, int], Race] = {}
        self._tasks: dict[int, EngineTask] = {}

    @property
    def races(self) -> list[Race]:
        """In the order in which they were seen."""
        return list(self._by_pair.values())

    @property
    def is_enough(self) -> bool:
        """Whether more races need not be listed."""
        return len(self._by_pair) >= MOST_RACES

    def add(self, step: AccessStep, order: TokenOrder) -> None:
        """Let an instruction run. Raises Trap."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise step.leaf.trap(f"the race check's limit of {MOST_STEPS} instructions is exceeded")
        try:
            for race in self._checked(step, order):
                self._by_pair.setdefault((race.early.index, race.late.index), race)
        except (HalfFault, OutOfRange, IndexError) as fault:
            raise step.leaf.trap(str(fault)) from fault

    def _checked(self, step: AccessStep, order: TokenOrder) -> Iterator[Race]:
        inst = step.leaf.instruction
        match kind := inst.spec.kind:
            case Kind.SYNC:
                order.wait(waits_for(inst))
            case Kind.HOST | Kind.HALT:
                order.wait(range(len(ENGINES)))
            case Kind.SIGNAL:
                order.signal(queue_of(inst.number("semaphore")), inst.number("count"))
            case Kind.DESC | Kind.STEP | Kind.CORE | Kind.ROUTE:
                pass
            case Kind.LOOP | Kind.END:
                raise AssertionError(f"{kind} is no leaf of a program's tree")
            case Kind.DMA | Kind.LOAD | Kind.MAC | Kind.UNIT | Kind.TABLE | Kind.COMMIT:
                task = self._task(step.leaf)
                known = order.start(task.engine, [token for token in task.takes if not token.mask & ~step.first])
                yield from self.words.races(step, order.base + task.engine, known)
                self.words.note(step, order.base + task.engine)
                order.give(task.engine, [token for token in task.gives if not token.mask & ~step.last])
            case _:
                assert_never(kind)

    def _task(self, leaf: Leaf) -> EngineTask:
        if (task := self._tasks.get(leaf.index)) is None:
            task = self._tasks[leaf.index] = task_of(leaf.instruction)
        return task
