"""The exact cycles of a program of nested records (`timed_program.py`). No IR.

Times are max-plus linear (docs/machine.md, TIME-1 to TIME-6). The cycles of a loop's iteration depend on the conditions
that hold in it and on a *state*: the times at which its engines and queues become free, relative to the sequencer's
time. An earlier time delays nothing and counts as zero. Queues bound how far engines lag behind the sequencer, so
states recur. Iterations between two occurrences of a state are multiplied instead of repeated, and an iteration with
inner loops is remembered by its state. docs/model.md says more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.model.timed_program import (
    ALL,
    ARRAY,
    COMMIT,
    DMA,
    ENGINES,
    IFMAP_FREE,
    LOAD,
    PSUM_FREE,
    QUEUES,
    WEIGHT_FREE,
    Node,
    PredictedCycles,
    SequencerCycles,
    Task,
    TimedLoop,
    TimedSignal,
    Token,
    Wait,
    busy_cycles,
)


class TimelineMachine(NamedTuple):
    """The properties of an array that times depend on: depth of the engines' queues, halves, overlap of engines."""

    queue_depth: int
    halves: tuple[int, int, int]
    overlap: bool = True

    @classmethod
    def of(cls, arch: Arch) -> TimelineMachine:
        """Those of an array."""
        halves = arch.pe.weight_halves, arch.pe.ifmap_halves, arch.pe.psum_halves
        return cls(arch.sequencer.queue_depth, halves, arch.sequencer.overlap)


class TimelineState(NamedTuple):
    """Times relative to the sequencer's, at least 0.

    starts: by engine, the starts of as many last tasks as its queue holds. tokens: by queue, the tokens' times.
    """

    starts: tuple[tuple[int, ...], ...]
    free: tuple[int, ...]
    done: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]


def idle_state(machine: TimelineMachine) -> TimelineState:
    """All engines idle, all halves free, no other tokens."""
    engines = range(len(ENGINES))
    tokens: list[tuple[int, ...]] = [()] * QUEUES
    for queue, halves in zip((WEIGHT_FREE, IFMAP_FREE, PSUM_FREE), machine.halves, strict=True):
        tokens[queue] = (0,) * halves
    idle = tuple(0 for _ in engines)
    return TimelineState(tuple((0,) * machine.queue_depth for _ in engines), idle, idle, tuple(tokens))


FREE, DONE, STARTS = range(3)  # among the times of an engine


def _place(engine: int) -> int:
    """Where an engine's times are in those of a clock."""
    return engine - len(ENGINES)


Times = tuple[int, ...]  # the times of an iteration's engines and queues, then the number of tokens of each queue


class _TimelineChange(NamedTuple):
    """The effect of an iteration: cycles, and the times at its end."""

    elapsed: int
    times: Times


_LOOP = SequencerCycles(1)  # the instruction in front of a loop's body

# A node in known iterations of the loops around it: its engine's place in `TimelineClock.times` (0 for other nodes
# than tasks), busy cycles, latency, the queues whose tokens it takes and gives, the masks of these loops, the node.
_Step = tuple[int, int, int, Sequence[int], Sequence[int], int, int, Node]


class _Body(NamedTuple):
    """A loop's body under fixed conditions.

    - places: those of the times that it uses
    - innermost: whether it has tasks alone; then running it costs less than remembering its effect
    - known: the effects so far, by times
    """

    steps: list[_Step]
    places: tuple[int, ...]
    innermost: bool
    known: dict[Times, _TimelineChange]


class _Inside(NamedTuple):
    """The engines and tokens of a loop's body. Conditions of tokens name this loop and outer ones.

    - nodes: the body as `_inlined` returns it
    - bodies: by whether each token is taken or given
    - of_masks: by the masks of loops in their first, last iteration
    """

    nodes: list[Node]
    engines: tuple[int, ...]
    takes: tuple[Token, ...]
    gives: tuple[Token, ...]
    bodies: dict[tuple[bool, ...], _Body]
    of_masks: dict[tuple[int, int], _Body]


def _outside(tokens: Sequence[Token], bit: int) -> list[Token]:
    """The tokens of a loop, as outer loops see them: without the loop's own condition."""
    return [Token(token.queue, token.when & ~bit) if token.when & bit else token for token in tokens]


class TimelineClock:
    """The times of a machine as a program runs.

    - now: the sequencer's, from the clock's first state on
    - times: by queue, the tokens' times; then by engine, when it is free, when it is done, and the starts of as many
      last tasks as its queue holds. Engines have negative places: the tokens of cores have more queues.
    """

    __slots__ = ("now", "times")

    def __init__(self, state: TimelineState) -> None:
        engines = zip(state.free, state.done, state.starts, strict=True)
        self.now, self.times = 0, [*map(list, state.tokens), *([free, done, *starts] for free, done, starts in engines)]

    def read(self, body: _Body) -> Times:
        """The times of a body's queues and engines, relative to now."""
        now, each, times = self.now, [self.times[place] for place in body.places], list[int]()
        for some in each:
            times += some
        # Without their numbers, other queues with the same times in a row would look alike.
        return (*[time - now if time > now else 0 for time in times], *map(len, each))

    def write(self, body: _Body, times: Times) -> None:
        """Set the times of a body's queues and engines; the inverse of `read`."""
        now, at = self.now, 0
        later = [time + now for time in times]
        for place, count in zip(body.places, times[-len(body.places) :], strict=True):
            self.times[place] = later[at : at + count]
            at += count

    def state(self) -> TimelineState:
        """The state now."""
        left = [tuple([max(0, time - self.now) for time in times]) for times in self.times]
        tokens, engines = left[: _place(0)], left[_place(0) :]
        free, done, *starts = zip(*engines, strict=True)
        return TimelineState(tuple(zip(*starts, strict=True)), free, done, tuple(tokens))

    def delay(self, cycles: int) -> None:
        """Let time pass in which nothing happens but what has happened so far."""
        self.now += cycles
        self.times = [[time + cycles for time in times] for times in self.times]

    def move(self, body: _Body, now: int, times: Times) -> None:
        """Advance to a later cycle, with the times of the body's engines and queues then."""
        if now > self.now:
            self.now = now
            self.write(body, times)


class Timeline:
    """Runs one program on one array, from any state. Programs with the same loops share their known iterations."""

    def __init__(self, machine: TimelineMachine, program: Sequence[Node]) -> None:
        self.machine, self.program = machine, tuple(program)

    def run(self, state: TimelineState) -> TimelineClock:
        """The clock at the program's end, from a state on. Raises LookupError for a token that is never given."""
        clock = TimelineClock(state)
        self.go_on(clock, self.program, ALL, ALL)
        return clock

    def go_on(self, clock: TimelineClock, nodes: Sequence[Node], first: int, last: int) -> None:
        """Run nodes, as `run` does. first, last: masks of the loops around that are in their first, last iteration."""
        self._sequence(_steps(_inlined(nodes), first, last), clock)

    # -- what is the same for all states -------------------------------------------------------------------------

    def _inside(self, loop: TimedLoop) -> _Inside:
        """The engines and tokens of a loop's body."""
        inside: _Inside | None = loop.known.get(self.machine)
        if inside is None:
            engines, takes, gives = set[int](), set[Token](), set[Token]()
            nodes = _inlined(loop.body)
            for node in nodes:
                if isinstance(node, Task):
                    engines.add(node.engine)
                    takes.update(node.takes)
                    gives.update(node.gives)
                elif isinstance(node, TimedLoop):
                    inner = self._inside(node)
                    engines.update(inner.engines)
                    takes.update(_outside(inner.takes, node.bit))
                    gives.update(_outside(inner.gives, node.bit))
                elif isinstance(node, Wait):
                    engines.update(node.engines)
                elif isinstance(node, TimedSignal):
                    gives.add(Token(node.queue))
            # TIME-6: without overlap a task waits for all engines, so that an iteration depends on the times of all.
            used = tuple(sorted(engines)) if self.machine.overlap else tuple(range(len(ENGINES)))
            inside = _Inside(nodes, used, tuple(sorted(takes)), tuple(sorted(gives)), {}, {})
            loop.known[self.machine] = inside
        return inside

    def _body(self, loop: TimedLoop, inside: _Inside, first: int, last: int) -> _Body:
        """A loop's body; one for all iterations in which the same conditions hold."""
        if (body := inside.of_masks.get((first, last))) is None:
            takes = [not when & ~first for _, when in inside.takes]
            gives = [not when & ~last for _, when in inside.gives]
            # Many masks decide alike, and share what is known of an iteration.
            if (body := inside.bodies.get(key := (*takes, *gives))) is None:
                held = [*compress(inside.takes, takes), *compress(inside.gives, gives)]
                queues = dict.fromkeys([queue for queue, _ in held])
                places = (*queues, *map(_place, inside.engines))
                steps = _steps(inside.nodes, first, last)
                innermost = all(isinstance(node, Task) for node in inside.nodes)
                body = inside.bodies[key] = _Body(steps, places, innermost, {})
            inside.of_masks[first, last] = body
        return body

    # -- running -------------------------------------------------------------------------------------------------

    def _loop(self, loop: TimedLoop, first: int, last: int, clock: TimelineClock) -> None:
        """PROG-2: the first iteration, those between, the last."""
        bit, count, inside = loop.bit, loop.count, self._inside(loop)
        self._iteration(self._body(loop, inside, first | bit, last | bit if count == 1 else last & ~bit), clock)
        if count > 2:
            self._between(self._body(loop, inside, first & ~bit, last & ~bit), count - 2, clock)
        if count > 1:
            self._iteration(self._body(loop, inside, first & ~bit, last | bit), clock)

    def _iteration(self, body: _Body, clock: TimelineClock) -> None:
        if body.innermost:
            self._sequence(body.steps, clock)
        elif known := body.known.get(times := clock.read(body)):
            clock.move(body, clock.now + known.elapsed, known.times)
        else:
            body.known[times] = self._change(body, clock)

    def _change(self, body: _Body, clock: TimelineClock) -> _TimelineChange:
        """Run an iteration; returns its effect."""
        now = clock.now
        self._sequence(body.steps, clock)
        return _TimelineChange(clock.now - now, clock.read(body))

    def _between(self, body: _Body, count: int, clock: TimelineClock) -> None:
        """Run `count` iterations under the same conditions: one by one until times recur, then all periods at once.

        Effects that are known lead from times to times. The clock follows where an iteration has to be run.
        """
        times, now, left, met = clock.read(body), clock.now, count, dict[Times, tuple[int, int]]()
        while left:
            if times in met:
                before, then = met[times]
                often, left = divmod(left, before - left)
                now += often * (now - then)
                met.clear()  # less than a period is left
                continue
            met[times] = left, now
            if (change := body.known.get(times)) is None:
                clock.move(body, now, times)
                change = body.known[times] = self._change(body, clock)
            times, now, left = change.times, now + change.elapsed, left - 1
        clock.move(body, now, times)

    def _sequence(self, steps: list[_Step], clock: TimelineClock) -> None:
        """Run steps one after the other. This is the inner loop of every search, so the clock's times are a local."""
        overlap, times = self.machine.overlap, clock.times
        for place, busy, latency, takes, gives, first, last, node in steps:
            if place < 0:
                engine, now = times[place], clock.now
                if not overlap:  # TIME-6
                    now = max(now, *[each[DONE] for each in times[_place(0) :]])
                # The queue's oldest entry is the start of the task whose place in it this one takes.
                now = clock.now = max(now, engine.pop(STARTS)) + 1  # TIME-1
                start = max(now, engine[FREE])  # TIME-2
                for queue in takes:
                    arrived = times[queue].pop(0)
                    if arrived > start:
                        start = arrived
                engine.append(start)
                engine[FREE] = end = start + busy
                finished = end + latency
                if finished > engine[DONE]:
                    engine[DONE] = finished
                for queue in gives:
                    times[queue].append(finished)
            elif isinstance(node, TimedLoop):
                clock.now += 1  # `loop`
                self._loop(node, first, last, clock)
            elif isinstance(node, SequencerCycles):
                clock.now += node.cycles
            elif isinstance(node, TimedSignal):
                clock.now += 1
                times[node.queue] += [clock.now] * node.tokens
            elif isinstance(node, Wait):
                ended = [times[_place(engine)][DONE] for engine in node.engines]
                clock.now = max([clock.now, *ended]) + node.cycles  # PROG-4


def _inlined(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, with the bodies of loops that run once, and have no bit, in their places."""
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, TimedLoop) and not node.bit:
            result += [_LOOP, *_inlined(node.body)]
        else:
            result.append(node)
    return result


def _steps(nodes: Sequence[Node], first: int, last: int) -> list[_Step]:
    """The steps of nodes, with their conditions decided."""
    steps: list[_Step] = []
    for node in nodes:
        if isinstance(node, Task):
            engine, busy, latency, taken, given, *_ = node
            takes = [queue for queue, when in taken if not when & ~first]
            gives = [queue for queue, when in given if not when & ~last]
            steps.append((_place(engine), busy, latency, takes, gives, first, last, node))
        else:
            steps.append((0, 0, 0, (), (), first, last, node))
    return steps


def predicted_cycles(nodes: Sequence[Node], elapsed: int, stall: Mapping[str, int]) -> PredictedCycles:
    """The counters of a piece of program that takes so many cycles."""
    engines = busy_cycles(nodes)
    return PredictedCycles(elapsed, engines[ARRAY], engines[LOAD], engines[COMMIT], engines[DMA], stall)
