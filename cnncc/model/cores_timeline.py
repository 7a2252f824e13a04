"""The exact cycles of several cores: the records of each, and the tokens between them (CORE-3, CORE-7, CORE-8). No IR.

Each core has a clock of its own. A core goes on until it needs a token that no core has given yet. A token has one
giver and one taker, so the order in which cores go on changes nothing. Loops without such tokens are left to `Timeline`
or `CauseTimeline`, which remember what an iteration does.

Core 0 leads. When it is about to begin a frame and no other core can go on, all cores stand where they do in any order.
If they stand as they did before such a frame, in times relative to core 0's, then what came between comes again. The
periods but for the last frames are then multiplied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cnncc.model.causes import CauseTimeline, idle_timeline
from cnncc.model.timed_program import (
    ALL,
    CAUSES,
    CHANNEL_CAUSES,
    DMA,
    LOAD,
    QUEUES,
    Node,
    PredictedCycles,
    SequencerCycles,
    Task,
    TimedLoop,
    TimedSignal,
)
from cnncc.model.timeline import Timeline, TimelineClock, TimelineMachine, TimelineState, idle_state, predicted_cycles

RESULT = QUEUES  # a queue of no semaphore: a transfer of a frame's results gives a token to it
MANY = 1 << 62


def note_of(layer: int, operand: str) -> int:
    """The queue that tells when rows of a channel are read, `ifmap`, or written, `output`, by this layer of a core.

    A stripe's last load of such rows gives a token, and its last commit of them.
    """
    return RESULT + 1 + 2 * layer + (operand == "output")


End = tuple[int, int]  # a core and a queue of it


@dataclass(frozen=True)
class TimedCore:
    """The program of a core. idles: whether it has PEs. notes: queues of no semaphore that it gives to."""

    nodes: tuple[Node, ...]
    machine: TimelineMachine
    routes: Mapping[int, Sequence[End]] = field(default_factory=dict[int, Sequence[End]])
    idles: bool = True
    notes: Sequence[int] = (RESULT,)


class Period(NamedTuple):
    """Cycles that so many frames take, again and again."""

    cycles: int
    frames: int


@dataclass(frozen=True)
class CoresCycles:
    """The cycles of each core.

    - period: None if no state came back
    - noted: by core and queue, the times of the tokens given to queues of no semaphore. Periods that were multiplied
      are left out, as if the run had that many frames less
    """

    cores: Sequence[PredictedCycles]
    period: Period | None
    noted: Mapping[End, Sequence[int]]

    @property
    def total(self) -> int:
        """Cycles of the run: of the core that ends last."""
        return max(core.total for core in self.cores)


class _PlainClock:
    """Times without causes, from the start of the run on: it does what the walk through a core asks `CauseTimeline`."""

    stalls: Mapping[str, int] = {}

    def __init__(self, machine: TimelineMachine, start: TimelineState) -> None:
        self.timeline, self.clock = Timeline(machine, ()), TimelineClock(start)

    @property
    def elapsed(self) -> int:
        return self.clock.now

    def run(self, nodes: Sequence[Node], first: int, last: int) -> None:
        self.timeline.go_on(self.clock, nodes, first, last)

    def arrive(self, queue: int, time: int, cause: str) -> None:
        self.clock.times[queue].append(time)

    def leave(self, queue: int) -> list[int]:
        times, self.clock.times[queue] = self.clock.times[queue], []
        return times

    def standing(self) -> Hashable:
        return self.clock.state()

    def delay(self, cycles: int, idle: Mapping[str, int], times: int) -> None:
        self.clock.delay(times * cycles)


class _CoreTokens:
    """The tokens between cores that nobody has taken, by their taker, the oldest first.

    Tokens of the taker's own signals come before all others, whatever the times (CORE-4).
    """

    def __init__(self, cores: Sequence[TimedCore], latency: int) -> None:
        self.latency = latency
        self.routes = {(at, queue): to for at, core in enumerate(cores) for queue, to in core.routes.items()}
        self.targets = sorted({end for to in self.routes.values() for end in to})
        self.signalled = {end: deque[int]() for end in self.targets}
        self.arrived = {end: deque[int]() for end in self.targets}

    def give(self, end: End, time: int) -> None:
        """A token for the ends of its routes, or for the core itself."""
        if end not in self.routes:
            self.signalled[end].append(time)
        for target in self.routes.get(end, ()):
            self.arrived[target].append(time + self.latency)

    def waiting(self, end: End) -> list[int]:
        return [*self.signalled[end], *self.arrived[end]]

    def take(self, end: End) -> int:
        return (self.signalled[end] or self.arrived[end]).popleft()

    def delay(self, cycles: int) -> None:
        for queues in (self.signalled, self.arrived):
            for end, times in queues.items():
                queues[end] = deque(time + cycles for time in times)


class _Walk:
    """A core on its way.

    - frame: the number of its frame. Frames that were skipped count.
    - count: iterations of its loop over frames, 0 outside of it.
    - at_frame: whether it is about to begin a frame.
    - wanted: the queues from which the next task takes tokens.
    """

    def __init__(self, number: int, core: TimedCore, tokens: _CoreTokens, causes: bool) -> None:
        self.number, self.core, self.tokens = number, core, tokens
        start = idle_state(core.machine)
        # Behind the queues of the machine stand those of no semaphore: of results, and the notes.
        start = start._replace(tokens=(*start.tokens, *[()] * (max(core.notes, default=RESULT) + 1 - QUEUES)))
        self.clock: _PlainClock | CauseTimeline = (
            idle_timeline(core.machine, start) if causes and core.idles else _PlainClock(core.machine, start)
        )
        self.takes = {queue for at, queue in tokens.targets if at == number}
        self.gives = {*core.notes, *core.routes, *self.takes}
        self.noted = {queue: list[int]() for queue in core.notes}
        self.place, self.frame, self.count = list[int](), 0, 0
        self.at_frame, self.ended, self.skipped = False, False, 0
        self.wanted: Sequence[int] = ()
        self.known = dict[int, bool]()
        self.steps = self._nodes(core.nodes, ALL, ALL)

    # -- going on --------------------------------------------------------------------------------------------------

    @property
    def can_go_on(self) -> bool:
        return not self.ended and all(self.tokens.waiting((self.number, queue)) for queue in self.wanted)

    def go_on(self) -> None:
        """Up to the next task that takes shared tokens, the next frame, or the end."""
        # Steps are None: the walk itself stands for the end.
        self.ended = next(self.steps, self) is self

    def _nodes(self, nodes: Sequence[Node], first: int, last: int) -> Iterator[None]:
        for at, node in enumerate(nodes):
            if not self._shares(node):
                self.clock.run((node,), first, last)
                continue
            self.place.append(at)
            if isinstance(node, TimedLoop):
                yield from self._loop(node, first, last)
            else:
                if isinstance(node, Task):
                    self.wanted = [queue for queue, when in node.takes if queue in self.takes and not when & ~first]
                    # The core goes on from here when all its tokens are there (`can_go_on`).
                    if self.wanted:
                        yield
                    for queue in self.wanted:
                        self.clock.arrive(queue, self.tokens.take((self.number, queue)), _cause(node))
                    self.wanted = ()
                self.clock.run((node,), first, last)
                if isinstance(node, Task | TimedSignal):
                    self._give(node)
            self.place.pop()

    def _shares(self, node: Node) -> bool:
        """Whether a node has to be seen by itself: it uses tokens of several cores, or it runs over frames."""
        match node:
            case Task():
                return any(queue in self.takes for queue, _ in node.takes) or any(
                    q in self.gives for q, _ in node.gives
                )
            case TimedSignal():
                return node.queue in self.gives
            case TimedLoop():
                if (known := self.known.get(id(node))) is None:
                    known = self.known[id(node)] = node.over_frames or any(map(self._shares, node.body))
                return known
            case _:
                return False

    def _give(self, node: Task | TimedSignal) -> None:
        for queue in [queue for queue, _ in node.gives] if isinstance(node, Task) else [node.queue]:
            if queue in self.noted:
                self.noted[queue] += [time - self.skipped for time in self.clock.leave(queue)]
            elif queue in self.gives:
                for time in self.clock.leave(queue):
                    self.tokens.give((self.number, queue), time)

    def _loop(self, loop: TimedLoop, first: int, last: int) -> Iterator[None]:
        self.clock.run((SequencerCycles(1),), first, last)  # `loop`
        if loop.over_frames:
            yield from self._frames(loop, first, last)
            return
        for at in range(loop.count):
            self.place.append(at)
            yield from self._iteration(loop, at, first, last)
            self.place.pop()

    def _frames(self, loop: TimedLoop, first: int, last: int) -> Iterator[None]:
        self.frame, self.count = 0, loop.count
        while self.frame < self.count:
            self.at_frame = True
            yield
            self.at_frame = False
            yield from self._iteration(loop, self.frame, first, last)
            self.frame += 1
        self.frame = self.count = 0

    def _iteration(self, loop: TimedLoop, at: int, first: int, last: int) -> Iterator[None]:
        first = first | loop.bit if at == 0 else first & ~loop.bit
        last = last | loop.bit if at == loop.count - 1 else last & ~loop.bit
        return self._nodes(loop.body, first, last)

    # -- periods ---------------------------------------------------------------------------------------------------

    def standing(self, leader: _Walk) -> Hashable:
        """Where the core stands, as all that comes depends on it."""
        if self.ended:
            return ()
        frame = self.frame - leader.frame if self.count else -1, self.frame == 0, self.frame == self.count - 1
        now = self.clock.elapsed - leader.clock.elapsed
        return tuple(self.place), self.at_frame, frame, self.clock.standing(), now

    def frames_left(self) -> int:
        """Frames between this one and the last one, if it is not the first."""
        if self.ended:
            return MANY
        # The first frame and the last one have other conditions than those between: they are run, never skipped.
        return max(0, self.count - 2 - self.frame) if self.frame else 0

    def skip(self, period: Period, times: int, idle: Mapping[str, int]) -> None:
        """Let whole periods pass."""
        if not self.ended:
            self.clock.delay(period.cycles, idle, times)
            self.frame += period.frames * times
            self.skipped += period.cycles * times

    def result(self) -> PredictedCycles:
        stalls = {}
        if isinstance(self.clock, CauseTimeline):
            stalls = {name: self.clock.stalls.get(name, 0) for name in (*CAUSES, *CHANNEL_CAUSES)}
        return predicted_cycles(self.core.nodes, self.clock.elapsed, stalls)


def _cause(task: Task) -> str:
    """CAUSE-7: loads, and transfers to DRAM, wait for words; commits, and transfers from DRAM, for space."""
    brings_results = task.engine == DMA and any(queue == RESULT for queue, _ in task.gives)
    return "channel_in" if task.engine == LOAD or brings_results else "channel_out"


def cores_cycles(cores: Sequence[TimedCore], latency: int, causes: bool) -> CoresCycles:
    """The cycles of cores that run together. latency: cycles of a token to another core.

    causes: with stalls by cause, which takes longer. Raises LookupError where cores wait for each other for ever.
    """
    tokens = _CoreTokens(cores, latency)
    walks = [_Walk(number, core, tokens, causes) for number, core in enumerate(cores)]
    period = _run(walks, tokens)
    waiting = [walk for walk in walks if not walk.ended]
    if waiting:
        names = ", ".join(f"core {walk.number} at {'.'.join(map(str, walk.place))}" for walk in waiting)
        raise LookupError(f"no core can go on: {names}")
    noted = {(walk.number, queue): times for walk in walks for queue, times in walk.noted.items() if times}
    return CoresCycles([walk.result() for walk in walks], period, noted)


def _run(walks: Sequence[_Walk], tokens: _CoreTokens) -> Period | None:
    """Run all cores up to their ends. Returns the period, if a state came back."""
    leader, period = walks[0], None
    met = dict[Hashable, tuple[int, int, Sequence[Mapping[str, int]]]]()
    while True:
        while ready := [walk for walk in walks if walk.can_go_on and not (walk is leader and walk.at_frame)]:
            for walk in ready:
                walk.go_on()
        if not leader.at_frame:
            return period
        if period is None and (most := min(walk.frames_left() for walk in walks)):
            stood = tuple(walk.standing(leader) for walk in walks), _left(walks, tokens)
            now = leader.clock.elapsed, leader.frame, [walk.clock.stalls for walk in walks]
            if before := met.get(stood):
                period = Period(now[0] - before[0], now[1] - before[1])
                _skip(walks, tokens, period, most // period.frames, before[2])
            met[stood] = now
        leader.go_on()


def _left(walks: Sequence[_Walk], tokens: _CoreTokens) -> Hashable:
    """The tokens that nobody has taken, in times from the taker's on."""
    return tuple(
        (end, tuple(max(0, time - walks[end[0]].clock.elapsed) for time in tokens.waiting(end)))
        for end in tokens.targets
        if not walks[end[0]].ended
    )


def _skip(
    walks: Sequence[_Walk], tokens: _CoreTokens, period: Period, times: int, before: Sequence[Mapping[str, int]]
) -> None:
    for walk, then in zip(walks, before, strict=True):
        idle = {cause: count - then.get(cause, 0) for cause, count in walk.clock.stalls.items()}
        walk.skip(period, times, idle)
    tokens.delay(times * period.cycles)
