"""When the tasks of a program happen: its cycles, exactly, from nested records alone. No IR, no instructions.

A program is a sequence of

    Task     what an engine does: for how long, and the tokens that it takes and gives
    Own      cycles of the sequencer: `desc`, `step`, a host segment
    Signal   tokens that the sequencer gives
    Wait     the sequencer until engines are idle, as in `sync`
    Repeat   a hardware loop around a sequence

Times are max-plus linear (docs/machine.md, Z1 to Z6). What an iteration of a loop takes depends on what is in its first
or last iteration and on the times at its start, counted from the sequencer's; what is earlier than that cannot hold
anything up any more and counts as zero. Such a state recurs, as engines run ahead only so far; iterations from one
occurrence to the next are multiplied, and each is remembered by its state. docs/model.md says more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ENGINES = ("dma", "load", "array", "commit")
DMA, LOAD, ARRAY, COMMIT = range(len(ENGINES))

# Queues of tokens: halves of the register files, free and full (T1 to T3); semaphores follow (T4).
WEIGHT_FREE, WEIGHT_FULL, IFMAP_FREE, IFMAP_FULL, PSUM_FREE, PSUM_FULL = range(6)
HALVES = 6
SEMAPHORES = 15
ALWAYS = 0  # the condition of no loop
ALL = -1  # what no loop runs around is in its first and last iteration (P2)

STALLS = ("weights", "ifmap", "psum", "issue", "drain")
ISSUE, DRAIN = 3, 4
_CAUSE = {WEIGHT_FULL: 0, IFMAP_FULL: 1, PSUM_FREE: 2}  # of what a macro-instruction waits for, in the order of Z3


class Token(NamedTuple):
    """A token of a queue, taken (given) when all loops of the mask `when` are in their first (last) iteration."""

    queue: int
    when: int = ALWAYS


class Task(NamedTuple):
    """An instruction of an engine: cycles that it occupies it, and from then until it is done."""

    engine: int
    busy: int
    latency: int = 0
    takes: tuple[Token, ...] = ()
    gives: tuple[Token, ...] = ()


class Own(NamedTuple):
    """Cycles that the sequencer spends by itself."""

    cycles: int


class Signal(NamedTuple):
    """A cycle of the sequencer; then there are so many tokens more."""

    queue: int
    tokens: int


class Wait(NamedTuple):
    """The sequencer until these engines are idle, and some cycles more."""

    engines: tuple[int, ...]
    cycles: int = 1


@dataclass(frozen=True, eq=False)
class Repeat:
    """A loop, `bit` in the masks of conditions."""

    count: int
    bit: int
    body: tuple[Node, ...]


Node = Task | Own | Signal | Wait | Repeat


@dataclass(frozen=True)
class Cycles:
    """Counted cycles by the keys of docs/stats.md: compute and the stalls add up to total."""

    total: int = 0
    compute: int = 0
    load: int = 0
    commit: int = 0
    dma: int = 0
    stall: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(STALLS, 0))


class Machine(NamedTuple):
    """What of an array times depend on beside the tasks: queues of the engines, halves, whether engines overlap."""

    queue_depth: int
    halves: tuple[int, int, int]
    overlap: bool = True


class State(NamedTuple):
    """Times from the sequencer's on, earlier ones as 0.

    starts: of the last tasks of each engine, as many as its queue holds; tokens: of each queue the times.
    """

    starts: tuple[tuple[int, ...], ...]
    free: tuple[int, ...]
    done: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]


class Effect(NamedTuple):
    """What a piece of program does from a state.

    mark: until when the array is accounted for, from the end on. How long it was idle before the piece is not known in
    it; that is charged to stall number `open` (-1: the piece has no task of the array and leaves it to what follows).
    """

    elapsed: int
    state: State
    stalls: tuple[int, ...]
    open: int
    mark: int


def idle_state(machine: Machine) -> State:
    """All engines idle, all halves free, no other tokens."""
    engines = range(len(ENGINES))
    tokens: list[tuple[int, ...]] = [()] * (HALVES + SEMAPHORES + 1)
    for queue, halves in zip((WEIGHT_FREE, IFMAP_FREE, PSUM_FREE), machine.halves, strict=True):
        tokens[queue] = (0,) * halves
    idle = tuple(0 for _ in engines)
    return State(tuple((0,) * machine.queue_depth for _ in engines), idle, idle, tuple(tokens))


def relative(times: Sequence[int], now: int) -> tuple[int, ...]:
    """Times from `now` on."""
    return tuple([time - now if time > now else 0 for time in times])


class Timeline:
    """Runs programs for one array; what it knows of an iteration holds as long as the program's records do."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._plain: dict[tuple[int, int, int], list[tuple[int, ...] | Node]] = {}
        self._mentions: dict[int, tuple[int, int]] = {}
        self._known: dict[tuple[int, int, int, State], Effect] = {}

    def run(self, program: Sequence[Node], state: State | None = None) -> Effect:
        """A program from a state, without one from an idle machine. Raises LookupError where a token never comes."""
        return self._sequence(tuple(program), ALL, ALL, state or idle_state(self.machine))

    # -- what is the same for all states -------------------------------------------------------------------------

    def _mentioned(self, loop: Repeat) -> tuple[int, int]:
        """Masks of the loops whose first, last iterations matter inside a loop."""
        if (found := self._mentions.get(id(loop))) is None:
            first = last = 0
            for node in loop.body:
                if isinstance(node, Repeat):
                    inner = self._mentioned(node)
                    first, last = first | inner[0], last | inner[1]
                elif isinstance(node, Task):
                    for token in node.takes:
                        first |= token.when
                    for token in node.gives:
                        last |= token.when
            found = self._mentions[id(loop)] = first, last
        return found

    # -- running -------------------------------------------------------------------------------------------------

    def _iteration(self, loop: Repeat, first: int, last: int, state: State) -> Effect:
        in_first, in_last = self._mentioned(loop)
        key = (id(loop), first & in_first, last & in_last, state)
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self._sequence(loop.body, first, last, state)
        return known

    def _loop(self, loop: Repeat, first: int, last: int, state: State) -> Effect:
        """P2: the first iteration, those between, the last."""
        bit, count = loop.bit, loop.count
        done = _Sum(state)
        done.add(self._iteration(loop, first | bit, last | bit if count == 1 else last & ~bit, state))
        if count > 2:
            self._between(loop, first & ~bit, last & ~bit, count - 2, done)
        if count > 1:
            done.add(self._iteration(loop, first & ~bit, last | bit, done.state))
        return done.effect()

    def _between(self, loop: Repeat, first: int, last: int, count: int, done: _Sum) -> None:
        """So many iterations alike: one by one until a state returns, then all periods at once."""
        met: dict[State, int] = {}
        effects: list[Effect] = []
        while len(effects) < count and done.state not in met:
            met[done.state] = len(effects)
            effects.append(self._iteration(loop, first, last, done.state))
            done.add(effects[-1])
        left = count - len(effects)
        if not left:
            return
        period = effects[met[done.state] :]
        times, rest = divmod(left, len(period))
        if times:
            whole = _Sum(done.state)
            for effect in period:
                whole.add(effect)
            done.add(whole.effect(), times)
        for effect in period[:rest]:
            done.add(effect)

    def _sequence(self, nodes: tuple[Node, ...], first: int, last: int, state: State) -> Effect:
        """One node after the other. Times count from the state that was taken over last."""
        depth, overlap = self.machine.queue_depth, self.machine.overlap
        total, stalls, charged = 0, [0] * len(STALLS), -1
        starts: list[list[int]]
        free: list[int]
        done: list[int]
        tokens: list[list[int]]
        starts, free, done, tokens = _thaw(state)
        now: int = 0
        mark: int = free[ARRAY]
        for node in nodes:
            if isinstance(node, Task):
                engine, busy, latency, takes, gives = node
                queued = starts[engine]
                now = max(now if overlap else max(now, *done), queued[-depth]) + 1  # Z1, Z6
                start, cause = max(now, free[engine]), ISSUE  # Z2
                for queue, when in takes:
                    if not when & ~first:
                        arrived = _take(tokens, queue)
                        if arrived > start or (arrived == start and cause == ISSUE):
                            start, cause = arrived, _CAUSE.get(queue, ISSUE)
                queued.append(start)
                free[engine] = end = start + busy
                finished = end + latency
                if finished > done[engine]:
                    done[engine] = finished
                for queue, when in gives:
                    if not when & ~last:
                        tokens[queue].append(finished)
                if engine == ARRAY:
                    stalls[cause] += start - mark
                    if charged < 0:
                        charged = cause
                    mark = end
            elif isinstance(node, Repeat):
                now += 1  # `loop`
                here = _freeze(starts, free, done, tokens, now, depth)
                effect = self._loop(node, first, last, here)
                if effect.open >= 0:
                    stalls[effect.open] += max(0, now - mark)
                    charged = effect.open if charged < 0 else charged
                    mark = now + effect.elapsed + effect.mark
                for cause, cycles in enumerate(effect.stalls):
                    stalls[cause] += cycles
                now += effect.elapsed
                total, mark, now = total + now, mark - now, 0
                starts, free, done, tokens = _thaw(effect.state)
            elif isinstance(node, Own):
                now += node.cycles
            elif isinstance(node, Signal):
                now += 1
                tokens[node.queue] += [now] * node.tokens
            else:
                now = max([now, *(done[engine] for engine in node.engines)]) + node.cycles  # P4
                if ARRAY in node.engines:
                    stalls[DRAIN] += now - mark
                    charged = DRAIN if charged < 0 else charged
                    mark = now
        end_state = _freeze(starts, free, done, tokens, now, depth)
        return Effect(total + now, end_state, tuple(stalls), charged, mark - now)


class _Sum:
    """Effects one after the other, from a state on."""

    def __init__(self, state: State) -> None:
        self.state, self.elapsed, self.stalls, self.open = state, 0, [0] * len(STALLS), -1
        self.mark = state.free[ARRAY]  # from the end on

    def add(self, effect: Effect, times: int = 1) -> None:
        """An effect, `times` times over; then it ends in the state that it starts from."""
        for cause, cycles in enumerate(effect.stalls):
            self.stalls[cause] += times * cycles
        if effect.open >= 0:
            self.stalls[effect.open] += max(0, -self.mark) + (times - 1) * max(0, -effect.mark)
            self.open = effect.open if self.open < 0 else self.open
            self.mark = effect.mark
        else:
            self.mark -= times * effect.elapsed
        self.elapsed, self.state = self.elapsed + times * effect.elapsed, effect.state

    def effect(self) -> Effect:
        """All of them as one."""
        return Effect(self.elapsed, self.state, tuple(self.stalls), self.open, self.mark)


def _take(tokens: list[list[int]], queue: int) -> int:
    """The time of the oldest token of a queue. Raises LookupError where there is none."""
    if not tokens[queue]:
        raise LookupError(f"no token of queue {queue} will ever come")
    return tokens[queue].pop(0)


def _thaw(state: State) -> tuple[list[list[int]], list[int], list[int], list[list[int]]]:
    """The times of a state, to be changed."""
    starts, free, done, tokens = state
    return [list(times) for times in starts], list(free), list(done), [list(times) for times in tokens]


def _freeze(
    starts: list[list[int]], free: list[int], done: list[int], tokens: list[list[int]], now: int, depth: int
) -> State:
    return State(
        tuple([relative(times[-depth:], now) for times in starts]),
        relative(free, now),
        relative(done, now),
        tuple([relative(times, now) if times else () for times in tokens]),
    )


# -- busy cycles do not depend on times --------------------------------------------------------------------------------


def busy(nodes: Sequence[Node]) -> list[int]:
    """Cycles that each engine is busy in a program."""
    found = [0] * len(ENGINES)
    for node in nodes:
        if isinstance(node, Task):
            found[node.engine] += node.busy
        elif isinstance(node, Repeat):
            for engine, cycles in enumerate(busy(node.body)):
                found[engine] += node.count * cycles
    return found


def cycles(nodes: Sequence[Node], effect: Effect) -> Cycles:
    """The counters of a piece of program that takes a wait of the array to end in."""
    engines = busy(nodes)
    stall = dict[str, int](zip(STALLS, effect.stalls, strict=True))
    return Cycles(effect.elapsed, engines[ARRAY], engines[LOAD], engines[COMMIT], engines[DMA], stall)
