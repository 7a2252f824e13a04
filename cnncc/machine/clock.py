"""The machine's times at one moment of a program, relative to an origin, and what they become (rules Z1 to Z4)."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.machine.durations import Occupancy, UnitSettings
from cnncc.machine.tasks import ARRAY, ENGINES, HALVES, QUEUES, Task, partner, queue_name

# Tokens that a semaphore holds at most: it is a 16-bit counter (T4).
MOST_TOKENS = (1 << 16) - 1

# Counters by (owner, name): the owner is the layer whose instruction they are charged to.
Key = tuple[int, str]
Runs = tuple[tuple[int, int], ...]


class Fault(Exception):
    """What an instruction cannot do; the simulation makes it a trap."""


class State(NamedTuple):
    """What the rest of a program can see: times relative to the sequencer's, earlier ones as 0; halves held; settings.

    starts: of each engine's last queue_depth instructions; tokens: runs of (time, tokens) of each queue.
    """

    starts: tuple[tuple[int, ...], ...]
    free: tuple[int, ...]
    done: tuple[int, ...]
    tokens: tuple[Runs, ...]
    held: tuple[int, ...]
    unit: UnitSettings


class Effect(NamedTuple):
    """What a piece of program does from a state: cycles of the sequencer, the state after it, counts.

    The array is accounted for up to `mark`, relative to the sequencer's time at the end. How long it has been idle at
    the start is not part of a state; those cycles are charged to `absorber` (None: the piece leaves them open).
    """

    elapsed: int
    state: State
    counts: Counter[Key]
    absorber: Key | None
    mark: int


def start_state(arch: Arch) -> State:
    """All engines idle, all halves free."""
    idle = (0,) * len(ENGINES)
    tokens: list[Runs] = [()] * QUEUES
    for queue, halves in zip(
        (0, 2, 4), (arch.pe.weight_halves, arch.pe.ifmap_halves, arch.pe.psum_halves), strict=True
    ):
        tokens[queue] = ((0, halves),)
    depth = arch.sequencer.queue_depth
    return State(((0,) * depth,) * len(ENGINES), idle, idle, tuple(tokens), (0,) * len(HALVES), UnitSettings())


class Clock:
    """The machine's times, from `state` at time 0 on."""

    def __init__(self, state: State, overlap: bool) -> None:
        self.now = 0
        self.overlap = overlap
        self.mark = max(0, state.free[ARRAY])
        self.counts: Counter[Key] = Counter()
        self.absorber: Key | None = None
        self.thaw(state)

    def thaw(self, state: State) -> None:
        """Take over `state`, its times counted from now."""
        now = self.now
        self.unit = state.unit
        self._starts = [deque([now + time for time in times], len(times)) for times in state.starts]
        self._free = [now + time for time in state.free]
        self._done = [now + time for time in state.done]
        self._tokens: list[deque[tuple[int, int]]] = [
            deque([(now + time, count) for time, count in runs] if runs else ()) for runs in state.tokens
        ]
        self._held = list(state.held)

    def freeze(self) -> State:
        """The state at this moment."""
        now = self.now

        def relative(times: list[int] | deque[int]) -> tuple[int, ...]:
            return tuple([time - now if time > now else 0 for time in times])

        starts = tuple(relative(times) for times in self._starts)
        tokens = tuple([_merged(runs, now) if runs else () for runs in self._tokens])
        return State(starts, relative(self._free), relative(self._done), tokens, tuple(self._held), self.unit)

    def effect(self) -> Effect:
        """What has happened since time 0."""
        return Effect(self.now, self.freeze(), self.counts, self.absorber, self.mark - self.now)

    def apply(self, effect: Effect, times: int = 1) -> State:
        """Let `effect` happen, `times` times over (then it ends in the state that it starts from).

        Returns the state after it, which the caller hands on: to the next effect, or to `thaw`.
        """
        for key, count in effect.counts.items():
            self.counts[key] += count * times
        if effect.absorber:
            idle = max(0, self.now - self.mark) + (times - 1) * max(0, -effect.mark)
            self._charge(effect.absorber, idle)
            self.mark = self.now + times * effect.elapsed + effect.mark
        self.now += times * effect.elapsed
        return effect.state

    def _charge(self, key: Key, idle: int) -> None:
        self.counts[key] += idle
        self.absorber = self.absorber or key

    def tick(self, owner: int, cycles: int = 1) -> None:
        """The sequencer spends cycles on an instruction of `owner`."""
        self.now += cycles
        self.counts[owner, "total"] += cycles

    def wait(self, owner: int, engines: list[int], cycles: int) -> None:
        """The sequencer waits until engines are done, then spends `cycles`; the array's idle cycles drain (P4, Z3)."""
        idle_at = max([self.now, *(self._done[engine] for engine in engines)])
        self.tick(owner, idle_at - self.now + cycles)
        if ARRAY in engines:
            self._charge((owner, "drain"), self.now - self.mark)
            self.mark = self.now

    def issue(self, owner: int, task: Task, took: Occupancy, first: int, last: int) -> None:
        """Decode an instruction for an engine and settle when it runs (Z1, Z2). Raises Fault.

        first, last: masks of the loop registers that are in their first, last iteration.
        """
        engine = task.engine
        if not self.overlap:  # Z6
            self.tick(owner, max([0, *(done - self.now for done in self._done)]))
        self.tick(owner, max(0, self._starts[engine][0] - self.now) + 1)
        arrivals = [(self._take(token.queue), token.file) for token in task.takes if not token.mask & ~first]
        start = max([self.now, self._free[engine], *(time for time, _ in arrivals)])
        self._starts[engine].append(start)
        end = self._free[engine] = start + took.busy
        done = end + took.latency
        self._done[engine] = max(self._done[engine], done)
        for token in task.gives:
            if not token.mask & ~last:
                self.give(token.queue, done)
        self.counts[owner, ENGINES[engine]] += took.busy
        if engine == ARRAY:
            cause = next((file for time, file in arrivals if time == start), "issue")
            self._charge((owner, cause), start - self.mark)
            self.mark = end

    def _take(self, queue: int) -> int:
        """The time of the oldest token of a queue."""
        runs = self._tokens[queue]
        if not runs:
            raise Fault(f"deadlock: no {queue_name(queue)} will ever come")
        time, count = runs.popleft()
        if count > 1:
            runs.appendleft((time, count - 1))
        if queue < len(HALVES):
            if self._held[queue]:
                raise Fault(f"takes a {queue_name(queue)} while it still holds one")
            self._held[queue] = 1
        return time

    def give(self, queue: int, time: int, tokens: int = 1) -> None:
        """Add tokens to a queue. Raises Fault where it would hold more than the machine has."""
        if queue < len(HALVES):
            if not self._held[partner(queue)]:
                raise Fault(f"gives a {queue_name(queue)} but holds none")
            self._held[partner(queue)] = 0
        elif sum(count for _, count in self._tokens[queue]) + tokens > MOST_TOKENS:
            raise Fault(f"a semaphore holds at most {MOST_TOKENS} tokens, not one more {queue_name(queue)}")
        self._tokens[queue].append((time, tokens))


def _merged(runs: deque[tuple[int, int]], now: int) -> Runs:
    """Runs of tokens relative to now, those of equal times as one."""
    merged: list[tuple[int, int]] = []
    for time, count in runs:
        time = time - now if time > now else 0
        if merged and merged[-1][0] == time:
            merged[-1] = (time, merged[-1][1] + count)
        else:
            merged.append((time, count))
    return tuple(merged)
