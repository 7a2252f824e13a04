"""When the tasks of a program happen: its cycles, exactly, from nested records (`records.py`). No IR, no instructions.

Times are max-plus linear (docs/machine.md, Z1 to Z6). What an iteration of a loop takes depends on what is in its first
or last iteration and on the times at its start, counted from the sequencer's; what is earlier than that cannot hold
anything up any more and counts as zero. Such a state recurs, as engines run ahead only so far; iterations from one
occurrence to the next are multiplied, and each is remembered by its state. docs/model.md says more.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from cnncc.mapper.records import (
    ALL,
    ALWAYS,
    ARRAY,
    COMMIT,
    DMA,
    DRAIN,
    ENGINES,
    HALVES,
    IFMAP_FREE,
    IFMAP_FULL,
    ISSUE,
    LOAD,
    PSUM_FREE,
    SEMAPHORES,
    STALLS,
    WEIGHT_FREE,
    WEIGHT_FULL,
    Cycles,
    Node,
    Own,
    Repeat,
    Signal,
    Task,
    Wait,
    busy_cycles,
    queues,
)

_CAUSE = {WEIGHT_FULL: 0, IFMAP_FULL: 1, PSUM_FREE: 2}  # of what a macro-instruction waits for, in the order of Z3


class Machine(NamedTuple):
    """What of an array times depend on beside the tasks: queues of the engines, halves, whether engines overlap."""

    queue_depth: int
    halves: tuple[int, int, int]
    overlap: bool = True


Masks = tuple[int, ...]


class State(NamedTuple):
    """Times from the sequencer's on, earlier ones as 0.

    starts: of the last tasks of each engine, as many as its queue holds; tokens: of each queue the times.
    """

    starts: tuple[tuple[int, ...], ...]
    free: tuple[int, ...]
    done: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]


class Effect(NamedTuple):
    """What a piece of program does from a state: cycles, the state at its end (`_Layout` says how), stalls.

    mark: until when the array is accounted for, from the end on. How long it was idle before the piece is not known in
    it; that is charged to stall number `open` (-1: the piece has no task of the array and leaves it to what follows).
    """

    elapsed: int
    state: tuple[int, ...]
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


class Timeline:
    """Runs one program on one array, from any state; what it knows of an iteration holds for all of them."""

    def __init__(self, machine: Machine, program: Sequence[Node]) -> None:
        self.machine, self.program = machine, tuple(program)
        self._queues = sorted(queues(self.program))
        self._mentions: dict[int, tuple[Masks, Masks]] = {}
        self._contexts: dict[tuple[int, int, int], Hashable] = {}
        self._resolved: dict[Hashable, list[_Step]] = {}
        self._known: dict[tuple[Hashable, tuple[int, ...]], Effect] = {}

    def run(self, state: State) -> Effect:
        """The program from a state. Raises LookupError where a token never comes."""
        return self._sequence(self._steps(self.program, ALL, ALL), self._flat(state))

    def after(self, state: State, effect: Effect) -> State:
        """The state behind the program, which had this effect from `state` on."""
        starts, free, done, tokens = self._thaw(effect.state)
        others = [[max(0, time - effect.elapsed) for time in times] for times in state.tokens]
        for queue in self._queues:
            others[queue] = tokens[queue]
        return State(tuple(map(tuple, starts)), tuple(free), tuple(done), tuple(map(tuple, others)))

    # -- states as one row of numbers: times, then how many tokens there are of each queue -----------------------

    def _flat(self, state: State) -> tuple[int, ...]:
        starts, free, done, tokens = state
        return self._freeze([list(times) for times in starts], [*free], [*done], [list(each) for each in tokens], 0)

    def _freeze(
        self, starts: list[list[int]], free: list[int], done: list[int], tokens: list[list[int]], now: int
    ) -> tuple[int, ...]:
        depth, queues = self.machine.queue_depth, self._queues
        times = [*free, *done]
        for each in starts:
            times += each[-depth:]
        for queue in queues:
            times += tokens[queue]
        return (*[time - now if time > now else 0 for time in times], *[len(tokens[queue]) for queue in queues])

    def _thaw(self, state: tuple[int, ...]) -> tuple[list[list[int]], list[int], list[int], list[list[int]]]:
        """Starts by engine, ends, when done, tokens by queue."""
        engines, depth, queues = len(ENGINES), self.machine.queue_depth, self._queues
        at = 2 * engines
        starts: list[list[int]] = []
        for _ in range(engines):
            starts.append([*state[at : at + depth]])
            at += depth
        tokens: list[list[int]] = [[]] * (HALVES + SEMAPHORES + 1)
        for queue, count in zip(queues, state[len(state) - len(queues) :], strict=True):
            tokens[queue] = [*state[at : at + count]]
            at += count
        return starts, [*state[:engines]], [*state[engines : 2 * engines]], tokens

    # -- what is the same for all states -------------------------------------------------------------------------

    def _mentioned(self, loop: Repeat) -> tuple[Masks, Masks]:
        """The conditions inside a loop, as masks of it and the loops around it: of tokens taken, given."""
        if (found := self._mentions.get(id(loop))) is None:
            first, last = set[int](), set[int]()
            for node in loop.body:
                if isinstance(node, Repeat):
                    inner = self._mentioned(node)
                    first |= {mask & ~node.bit for mask in inner[0]}
                    last |= {mask & ~node.bit for mask in inner[1]}
                elif isinstance(node, Task):
                    first |= {token.when for token in node.takes}
                    last |= {token.when for token in node.gives}
            found = self._mentions[id(loop)] = tuple(first - {ALWAYS}), tuple(last - {ALWAYS})
        return found

    def _context(self, loop: Repeat, first: int, last: int) -> Hashable:
        """The same for all iterations of a loop in which the same conditions hold."""
        where = id(loop), first, last
        if (found := self._contexts.get(where)) is None:
            firsts, lasts = self._mentioned(loop)
            holds = [not mask & ~first for mask in firsts] + [not mask & ~last for mask in lasts]
            found = self._contexts[where] = (id(loop), *holds)
        return found

    def _steps(self, nodes: tuple[Node, ...], first: int, last: int) -> list[_Step]:
        """A sequence whose conditions are known."""
        found: list[_Step] = []
        for node in nodes:
            if isinstance(node, Task):
                takes = [(queue, _CAUSE.get(queue, ISSUE)) for queue, when in node.takes if not when & ~first]
                gives = [queue for queue, when in node.gives if not when & ~last]
                found.append(_Step(node.engine, node.busy, node.latency, tuple(takes), tuple(gives), first, last, node))
            else:
                found.append(_Step(-1, 0, 0, (), (), first, last, node))
        return found

    # -- running -------------------------------------------------------------------------------------------------

    def _iteration(self, loop: Repeat, first: int, last: int, state: tuple[int, ...]) -> Effect:
        where = self._context(loop, first, last)
        key = where, state
        if (known := self._known.get(key)) is None:
            if (steps := self._resolved.get(where)) is None:
                steps = self._resolved[where] = self._steps(loop.body, first, last)
            known = self._known[key] = self._sequence(steps, state)
        return known

    def _loop(self, loop: Repeat, first: int, last: int, state: tuple[int, ...]) -> Effect:
        """P2: the first iteration, those between, the last."""
        bit, count = loop.bit, loop.count
        if count == 1:
            return self._iteration(loop, first | bit, last | bit, state)
        done = _Sum(state)
        done.add(self._iteration(loop, first | bit, last & ~bit, state))
        if count > 2:
            self._between(loop, first & ~bit, last & ~bit, count - 2, done)
        done.add(self._iteration(loop, first & ~bit, last | bit, done.state))
        return done.effect()

    def _between(self, loop: Repeat, first: int, last: int, count: int, done: _Sum) -> None:
        """So many iterations alike: one by one until a state returns, then all periods at once."""
        met: dict[tuple[int, ...], int] = {}
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

    def _sequence(self, steps: list[_Step], state: tuple[int, ...]) -> Effect:
        """One step after the other. Times count from the state that was taken over last."""
        depth, overlap = self.machine.queue_depth, self.machine.overlap
        total, stalls, charged = 0, [0] * len(STALLS), -1
        starts: list[list[int]]
        free: list[int]
        done: list[int]
        tokens: list[list[int]]
        starts, free, done, tokens = self._thaw(state)
        now: int = 0
        mark: int = free[ARRAY]
        for engine, busy, latency, takes, gives, first, last, node in steps:
            if engine >= 0:
                queued = starts[engine]
                now = max(now if overlap else max(now, *done), queued[-depth]) + 1  # Z1, Z6
                start, cause = max(now, free[engine]), ISSUE  # Z2
                for queue, why in takes:
                    arrived = tokens[queue].pop(0)
                    if arrived > start or (arrived == start and cause == ISSUE):
                        start, cause = arrived, why
                queued.append(start)
                free[engine] = end = start + busy
                finished = end + latency
                if finished > done[engine]:
                    done[engine] = finished
                for queue in gives:
                    tokens[queue].append(finished)
                if engine == ARRAY:
                    stalls[cause] += start - mark
                    if charged < 0:
                        charged = cause
                    mark = end
            elif isinstance(node, Repeat):
                now += 1  # `loop`
                effect = self._loop(node, first, last, self._freeze(starts, free, done, tokens, now))
                if effect.open >= 0:
                    stalls[effect.open] += max(0, now - mark)
                    charged = effect.open if charged < 0 else charged
                    mark = now + effect.elapsed + effect.mark
                stalls = [own + more for own, more in zip(stalls, effect.stalls, strict=True)]
                now += effect.elapsed
                total, mark, now = total + now, mark - now, 0
                starts, free, done, tokens = self._thaw(effect.state)
            elif isinstance(node, Own):
                now += node.cycles
            elif isinstance(node, Signal):
                now += 1
                tokens[node.queue] += [now] * node.tokens
            elif isinstance(node, Wait):
                now = max([now, *(done[engine] for engine in node.engines)]) + node.cycles  # P4
                if ARRAY in node.engines:
                    stalls[DRAIN] += now - mark
                    charged = DRAIN if charged < 0 else charged
                    mark = now
        return Effect(total + now, self._freeze(starts, free, done, tokens, now), tuple(stalls), charged, mark - now)


class _Step(NamedTuple):
    """A node in known iterations of the loops around it: of a task the tokens that it takes, each with the stall that
    it may cause, and gives; engine -1: anything else.
    """

    engine: int
    busy: int
    latency: int
    takes: tuple[tuple[int, int], ...]
    gives: tuple[int, ...]
    first: int
    last: int
    node: Node


class _Sum:
    """Effects one after the other, from a state on."""

    def __init__(self, state: tuple[int, ...]) -> None:
        self.state, self.elapsed, self.stalls, self.open = state, 0, [0] * len(STALLS), -1
        self.mark = state[ARRAY]  # from the end on

    def add(self, effect: Effect, times: int = 1) -> None:
        """An effect, `times` times over; then it ends in the state that it starts from."""
        self.stalls = [own + times * more for own, more in zip(self.stalls, effect.stalls, strict=True)]
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


def cycles(nodes: Sequence[Node], effect: Effect) -> Cycles:
    """The counters of a piece of program that takes a wait of the array to end in."""
    engines = busy_cycles(nodes)
    stall = dict[str, int](zip(STALLS, effect.stalls, strict=True))
    return Cycles(effect.elapsed, engines[ARRAY], engines[LOAD], engines[COMMIT], engines[DMA], stall)
