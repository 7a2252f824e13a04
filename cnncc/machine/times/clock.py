"""The machine's times at one moment of a program, relative to an origin, and what they become.

Rules: TIME-1 to TIME-4, TIME-6. What `cause_clock.py` adds are the causes of idle cycles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.machine.instruction_sizes import UnitSettings
from cnncc.machine.times.durations import Occupancy
from cnncc.machine.times.paths import Paths
from cnncc.machine.times.tasks import ARRAY, ENGINES, HALVES, QUEUES, EngineTask, free_halves, partner, queue_name

# Tokens that a semaphore holds at most: it is a 16-bit counter (TOKEN-4).
MOST_TOKENS = (1 << 16) - 1
_MANY_RUNS = 16  # a queue of so many runs of tokens is merged: runs of equal times become one

# Counters by (owner, name): the owner is the layer whose instruction they are charged to.
Key = tuple[int, str]
Runs = tuple[tuple[int, int], ...]


class Fault(Exception):
    """An instruction's fault in time; the simulation turns it into a trap."""


class State(NamedTuple):
    """The part of the past that the rest of a program depends on. Times are relative to the sequencer's, at least 0.

    Attributes:
        starts   by engine: the starts of its last queue_depth instructions
        free     by engine: when it is free
        done     by engine: when its last instruction is done
        tokens   by queue: runs of (time, tokens)
        held     by queue of halves: 1 from the time when a half is taken until it is given
        unit     the output units' settings
        roots    the number of paths that cross this moment (`paths.py`), if times have paths
    """

    starts: tuple[tuple[int, ...], ...]
    free: tuple[int, ...]
    done: tuple[int, ...]
    tokens: tuple[Runs, ...]
    held: tuple[int, ...]
    unit: UnitSettings
    roots: int = 0


class Effect(NamedTuple):
    """The effect of a piece of program on a state: cycles of the sequencer, the state after it, counts; on paths."""

    elapsed: int
    state: State
    counts: Mapping[Key, int]
    paths: Paths | None = None


def start_state(arch: Arch) -> State:
    """All engines idle, all halves free."""
    idle = (0,) * len(ENGINES)
    tokens: list[Runs] = [()] * QUEUES
    for queue, halves in free_halves(arch).items():
        tokens[queue] = ((0, halves),)
    depth = arch.sequencer.queue_depth
    starts, held = ((0,) * depth,) * len(ENGINES), (0,) * len(HALVES)
    return State(starts, idle, idle, tuple(tokens), held, UnitSettings(), roots=1)


class Clock:
    """The machine's times, from `state` on.

    Times count from the moment at which a state was last taken over, `past` cycles after the clock began. A state's
    times are then the clock's own. A state is taken over only when the next instruction needs it.
    """

    def __init__(self, state: State, overlap: bool) -> None:
        self.past = self.now = 0
        self.counts = Counter[Key]()
        self._overlap = overlap
        self._state: State | None = state  # the state at this moment, if known
        self._stale = True  # whether _starts … _held are older than the state
        self.unit = state.unit

    @property
    def elapsed(self) -> int:
        """Cycles since the clock began."""
        return self.past + self.now

    def _go_on(self) -> None:
        """Make ready for times to change."""
        if self._stale and self._state is not None:
            self._take_over(self._state)
        self._state, self._stale = None, False

    def _take_over(self, state: State) -> None:
        self.past, self.now = self.past + self.now, 0
        self._starts, self._free, self._done = list(state.starts), list(state.free), list(state.done)
        self._tokens, self._held, self.unit = list(state.tokens), list(state.held), state.unit

    def set_unit(self, unit: UnitSettings) -> None:
        """The output units' settings from now on (COMMIT-2)."""
        if self._state is not None:
            self._go_on()
        self.unit = unit

    def freeze(self) -> State:
        """The state at this moment."""
        if self._state is None:
            starts = tuple([self._relative(times) for times in self._starts])
            tokens = tuple([self._merged(runs) if runs else () for runs in self._tokens])
            times = self._relative(self._free), self._relative(self._done)
            self._state = State(starts, *times, tokens, tuple(self._held), self.unit)
        return self._state

    def effect(self) -> Effect:
        """The effect of everything since the clock began."""
        return Effect(self.elapsed, self.freeze(), self.counts)

    def all_counts(self) -> Mapping[Key, int]:
        """All counts of a clock that began with the program."""
        return self.counts

    def apply(self, effect: Effect, times: int = 1, owner: int = 0) -> None:
        """Let `effect` happen `times` times; an effect that repeats must end in the state that it starts from.

        owner: the offset to the effect's own owners.
        """
        for (whose, name), count in effect.counts.items():
            self.counts[whose + owner, name] += count * times
        self.now += times * effect.elapsed
        self._state, self._stale, self.unit = effect.state, True, effect.state.unit

    def tick(self, owner: int, cycles: int = 1) -> None:
        """The sequencer spends cycles on an instruction of `owner`."""
        if self._state is not None:
            self._go_on()
        self._go_to(owner, self.now, cycles)

    def _go_to(self, owner: int, time: int, cycles: int) -> None:
        """The sequencer waits until a time, then spends cycles."""
        before, self.now = self.now, self._later(time, cycles)
        self.counts[owner, "total"] += self.now - before

    def wait(self, owner: int, engines: tuple[int, ...], cycles: int) -> None:
        """The sequencer waits until engines are done, then spends `cycles` (PROG-4)."""
        if self._state is not None:
            self._go_on()
        self._go_to(owner, max([self.now, *(self._done[engine] for engine in engines)]), cycles)
        if ARRAY in engines:
            self._array_waited(owner)

    def issue(self, owner: int, task: EngineTask, took: Occupancy, first: int, last: int) -> None:
        """Decode an instruction for an engine and settle when it runs (TIME-1, TIME-2). Raises Fault.

        first, last: masks of the loop registers that are in their first, last iteration.
        """
        if self._state is not None:
            self._go_on()
        engine, starts = task.engine, self._starts
        decoded = self.now if self._overlap else max(self.now, *self._done)  # TIME-6
        # The queue has a free entry once the instruction `queue_depth` before this one has started.
        self._go_to(owner, max(decoded, starts[engine][0]), 1)
        # CAUSE-1: of equal times the first determines the start, and `max` takes the first. So the order is tokens,
        # engine, decoding.
        arrived = [self._take(token.queue) for token in task.takes if not token.mask & ~first]
        start = max(*arrived, self._free[engine], self.now)
        starts[engine] = (*starts[engine][1:], start)
        end, done = self._ends(start, took)
        self._free[engine] = end
        # An instruction without latency (`unit`) may be done before the one in front of it.
        self._done[engine] = max(self._done[engine], done)
        for token in task.gives:
            if not token.mask & ~last:
                self.give(token.queue, done)
        self.counts[owner, ENGINES[engine]] += took.busy
        if engine == ARRAY:
            self._array_ran(owner, start, end)

    def _take(self, queue: int) -> int:
        """The time of the oldest token of a queue."""
        runs = self._tokens[queue]
        if not runs:
            raise Fault(f"deadlock: no {queue_name(queue)} will ever come")
        time, count = runs[0]
        self._tokens[queue] = runs[1:] if count == 1 else ((time, count - 1), *runs[1:])
        if queue < len(HALVES):
            if self._held[queue]:
                raise Fault(f"takes a {queue_name(queue)} while it still holds one")
            self._held[queue] = 1
        return time

    def signal(self, owner: int, queue: int, tokens: int) -> None:
        """The sequencer spends a cycle on giving tokens to a semaphore (TIME-1). Raises Fault."""
        self.tick(owner)
        self.give(queue, self.now, tokens)

    def give(self, queue: int, time: int, tokens: int = 1) -> None:
        """Add tokens to a queue. Raises Fault for more tokens than the queue holds, or a half that was not taken."""
        runs = self._tokens[queue]
        if queue < len(HALVES):
            if not self._held[partner(queue)]:
                raise Fault(f"gives a {queue_name(queue)} but holds none")
            self._held[partner(queue)] = 0
        elif sum([count for _, count in runs]) + tokens > MOST_TOKENS:
            raise Fault(f"a semaphore holds at most {MOST_TOKENS} tokens, not one more {queue_name(queue)}")
        if len(runs) >= _MANY_RUNS:
            # Times that have passed are alike for whoever waits: they become one run, so a queue stays short.
            runs = merged([(time if time > self.now else 0, count) for time, count in runs])
        self._tokens[queue] = (*runs, (time, tokens))

    # -- tokens of other cores (CORE-3, CORE-7) ----------------------------------------------------------------------

    def put(self, queue: int, time: int, cause: str) -> None:
        """Add a token that arrives at a time since the clock began, to be taken at once. cause: of waiting for it."""
        self._go_on()
        self._tokens[queue] = (*self._tokens[queue], (time - self.past, 1))

    def pull(self, queue: int) -> Runs:
        """Take away the tokens of a queue that were just given, with their times since the clock began."""
        runs = self._tokens[queue]
        self._tokens[queue] = ()
        return tuple([(int(self.past + time), count) for time, count in runs])

    def delay(self, cycles: int, counts: Mapping[Key, int], times: int) -> None:
        """Let so many cycles pass, in which `counts` are counted so many times and all times move along."""
        self.past += cycles
        for key, count in counts.items():
            self.counts[key] += count * times

    def open_interval(self) -> Hashable:
        """What counts of the past depend on, beside the state, at a moment that was frozen."""
        return ()

    def last_run(self, engine: str) -> tuple[int, int]:
        """When the last instruction of an engine starts and when it leaves the engine, since the clock began."""
        number = ENGINES.index(engine)
        return int(self.past + self._starts[number][-1]), int(self.past + self._free[number])

    def last_done(self, engine: str) -> int:
        """When the last instruction of an engine is done, since the clock began."""
        return int(self.past + self._done[ENGINES.index(engine)])

    # -- what a clock with paths has otherwise -------------------------------------------------------------------

    def _later(self, time: int, cycles: int) -> int:
        """The sequencer spends cycles from a time on."""
        return time + cycles

    def _ends(self, start: int, took: Occupancy) -> tuple[int, int]:
        """When an instruction leaves its engine, and when it is done."""
        end = start + took.busy
        return end, end + took.latency

    def _array_ran(self, owner: int, start: int, end: int) -> None:
        """A macro-instruction runs."""

    def _array_waited(self, owner: int) -> None:
        """The sequencer has waited for the array."""

    def _relative(self, times: Sequence[int]) -> tuple[int, ...]:
        now = self.now
        return tuple([time - now if time > now else 0 for time in times])

    def _merged(self, runs: Runs) -> Runs:
        """Runs of tokens relative to now, those of equal times as one."""
        now = self.now
        if len(runs) == 1:
            ((time, count),) = runs
            return ((time - now if time > now else 0, count),)
        return merged([(time - now if time > now else 0, count) for time, count in runs])


def merged(runs: Sequence[tuple[int, int]]) -> Runs:
    """Runs of tokens, neighbours of equal times as one."""
    kept: list[tuple[int, int]] = []
    for time, count in runs:
        if kept and kept[-1][0] == time:
            kept[-1] = (time, kept[-1][1] + count)
        else:
            kept.append((time, count))
    return tuple(kept)
