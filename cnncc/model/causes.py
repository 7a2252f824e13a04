"""The causes of the array's idle cycles, from the records of a program (CAUSE-1 to CAUSE-6 of docs/machine.md). No IR.

A time is a `Point`: when, and the path to it, the latest piece first. Pieces are cycles with their cause, so a path
says the same wherever a loop's iteration begins. A path ends at the *mark*, the end of the last macro-instruction or
wait of the array, as nothing before is charged any more. Where the mark lies before an iteration, its paths go on in
numbered *roots*, which are cycles by cause and no part of the state. COST-13 of docs/model.md has an example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from cnncc.model.timed_program import (
    ALL,
    ARRAY,
    CAUSES,
    CHANNEL_CAUSES,
    IFMAP_FREE,
    PSUM_FREE,
    PSUM_FULL,
    WEIGHT_FREE,
    Node,
    SequencerCycles,
    Task,
    TimedLoop,
    TimedSignal,
    Wait,
)
from cnncc.model.timeline import TimelineMachine, TimelineState

Path: TypeAlias = "tuple[str, int, Path] | int | str"  # a piece and what is before; a root; a register file, or ""
Point = tuple[int, Path]
Cycles = Mapping[str, int]

_PAST: Point = (0, "")
_FILES = {WEIGHT_FREE: "weight_file", IFMAP_FREE: "ifmap_file", PSUM_FULL: "psum_file"}
_WORK = ("glb_port", "row_bus", "write_port", "output_units", "column_bus")
_WAIT = "wait"  # how an interval ends; or where its paths begin


class CauseRoot(NamedTuple):
    """Cycles of a path from the mark on, behind those of a root of the start (`base`); without base `origin` counts."""

    base: int
    origin: str
    cycles: Cycles


class CauseState(NamedTuple):
    """Points from the sequencer's time on, as those of `TimelineState`, and how many roots their paths have."""

    starts: tuple[tuple[Point, ...], ...]
    free: tuple[Point, ...]
    done: tuple[Point, ...]
    tokens: tuple[tuple[Point, ...], ...]
    roots: int


class CauseEffect(NamedTuple):
    """The effect of a piece.

    - opening: how an idle interval from before the piece ends, and its path (`CauseRoot`)
    - elapsed: its cycles
    - mark: of its last mark how much later than its end it is, and how an interval begins there; None without one
    """

    state: CauseState
    stalls: Cycles
    opening: tuple[str, CauseRoot] | None
    roots: Sequence[CauseRoot]
    elapsed: int
    mark: tuple[int, str] | None


def _plus(cycles: Cycles, more: Cycles, times: int = 1) -> Cycles:
    return {cause: cycles.get(cause, 0) + times * more.get(cause, 0) for cause in {**cycles, **more}}


def _prolonged(roots: Sequence[CauseRoot], root: CauseRoot) -> CauseRoot:
    """A root with the cycles of its base, one of `roots`: it goes back as far as that one does."""
    if root.base < 0:
        return root
    base = roots[root.base]
    return CauseRoot(base.base, base.origin, _plus(base.cycles, root.cycles))


def _after(point: Point, cause: str, cycles: int) -> Point:
    """The point so many cycles later, for which the path has a piece more."""
    time, path = point
    # Pieces of one cause in a row are one: a path has one form, so that states recur.
    if isinstance(path, tuple) and path[0] == cause:
        return time + cycles, (cause, path[1] + cycles, path[2])
    return (time + cycles, (cause, cycles, path)) if cycles else point


def _latest(points: Sequence[Point]) -> Point:
    """The first of the latest."""
    return max(points, key=itemgetter(0))


def _charged(cycles: Cycles, origin: str, ending: str) -> Cycles:
    """CAUSE-4, CAUSE-5. ending: of a wait, or the register file whose half a macro-instruction came last by."""
    if origin == _WAIT or ending == _WAIT:
        kept = [cause for cause in cycles if cause.startswith("dram") or cause in CHANNEL_CAUSES]
        other = "fill" if origin == _WAIT else "drain"
        # CAUSE-4: from wait to wait, as in elementwise layers, cycles keep their causes.
        if origin == ending:
            return cycles
    elif origin and (origin != "psum_file" or ending == origin):
        kept, other = [cause for cause in cycles if cause not in _WORK], origin
    else:
        return cycles
    same = {cause: cycles[cause] for cause in kept}
    return {**same, other: sum(cycles.values()) - sum(same.values())}


@lru_cache(maxsize=1 << 11)
def _mentioned(loop: TimedLoop) -> tuple[int, int]:
    """The loops whose first, last iterations matter to the body of one."""
    first = last = 0
    for node in loop.body:
        if isinstance(node, Task):
            for token in node.takes:
                first |= token.when
            for token in node.gives:
                last |= token.when
        elif isinstance(node, TimedLoop):
            inner = _mentioned(node)
            first, last = first | inner[0], last | inner[1]
    return first, last


class CauseTimeline:
    """The points of a machine from a state on.

    since: cycles from there to the time from which points count. last_mark: as in `CauseEffect`, from there on.
    """

    def __init__(self, machine: TimelineMachine, state: CauseState) -> None:
        self.machine = machine
        self.stalls: Cycles = {}  # never changed in place
        self.opening: tuple[str, CauseRoot] | None = None
        self.since, self.last_mark = 0, (-1, "")
        self._load(state, [CauseRoot(number, "", {}) for number in range(state.roots)])

    def _load(self, state: CauseState, roots: Sequence[CauseRoot]) -> None:
        self.now: Point = (0, 0)
        self.starts, self.tokens = [list(each) for each in state.starts], [list(each) for each in state.tokens]
        self.free, self.done = list(state.free), list(state.done)
        # The array is free later than now only if a macro-instruction ends then, and its end is the mark.
        self.mark, self.origin, self.roots = state.free[ARRAY][0], "", roots
        self.at: CauseState | None = state  # until something happens

    # -- tasks -----------------------------------------------------------------------------------------------------

    def run(self, nodes: Sequence[Node], first: int, last: int) -> None:
        """One after the other; first, last: masks of the loops that are in their first, last iteration."""
        for node in nodes:
            match node:
                case Task():
                    self._task(node, first, last)
                case TimedLoop():
                    self._spend(self.now, 1)
                    if node.bit:
                        self._loop(node, first, last)
                    else:  # it runs once: its body is a part of what is around it
                        self.run(node.body, first, last)
                case SequencerCycles():
                    self._spend(self.now, node.cycles)
                case TimedSignal():
                    self._spend(self.now, 1)
                    self.tokens[node.queue] += [self.now] * node.tokens
                case Wait():
                    self._spend(_latest([self.now, *(self.done[engine] for engine in node.engines)]), node.cycles)
                    if ARRAY in node.engines:
                        self._charge(_WAIT, self._root(self.now, self.now[0]))
                        self._set_mark(self.now[0], _WAIT)

    def _set_mark(self, time: int, origin: str) -> None:
        self.mark, self.origin = time, origin
        self.last_mark = self.since + time, origin

    def _spend(self, point: Point, cycles: int) -> None:
        self.now, self.at = _after(point, "sequencer", cycles), None

    def _task(self, task: Task, first: int, last: int) -> None:
        engine = task.engine
        # Of equal times the first of a list counts (`_latest`). So both lists below have the order of CAUSE-1.
        decoded = [self.now, *([] if self.machine.overlap else self.done), self.starts[engine].pop(0)]
        self._spend(_latest(decoded), 1)
        taken = {queue: self.tokens[queue].pop(0) for queue, when in task.takes if not when & ~first}
        # CAUSE-5: a half that a macro-instruction gave has no path, as paths end there. It gets the name of its file.
        arrived = [(time, _FILES.get(queue, path)) for queue, (time, path) in taken.items()]
        start = end = _latest([*arrived, self.free[engine], self.now])
        for cause, cycles in task.work:
            end = _after(end, cause, cycles)
        if engine == ARRAY:
            by_psums = next((queue for queue, point in taken.items() if point[0] == start[0]), -1) == PSUM_FREE
            self._charge("psum_file" if by_psums else "", self._root(start, start[0]))
            end = start[0] + task.busy, ""
            self._set_mark(end[0], "")
        done = _after(end, task.late, task.latency)
        self.starts[engine].append(start)
        self.free[engine], self.done[engine] = end, _latest([self.done[engine], done])
        for queue, when in task.gives:
            if not when & ~last:
                self.tokens[queue].append(done)

    # -- tokens of other cores -------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> int:
        """Cycles of the sequencer from the state on."""
        return self.since + self.now[0]

    def arrive(self, queue: int, time: int, cause: str) -> None:
        """A token arrives. All cycles between the mark and then are charged to a cause (CAUSE-7)."""
        self._state()
        mark, origin = self.last_mark
        time, path = time - self.since, ""
        # The cycles up to the sequencer's time are a root, those behind it a piece of the path.
        if time > 0 and mark <= self.since:
            path = len(self.roots)
            self.roots = [*self.roots, CauseRoot(-1, origin, {cause: self.since - mark})]
        self.tokens[queue].append((time, (cause, time, path)) if time > 0 else _PAST)
        self.at = None

    def leave(self, queue: int) -> list[int]:
        """Take all tokens out of a queue. Returns their times from the state on."""
        points, self.tokens[queue], self.at = self.tokens[queue], [], None
        return [time + self.since for time, _ in points]

    def standing(self) -> tuple[object, ...]:
        """What all that comes depends on, the cycles charged to an open interval included."""
        roots = [(root.origin, tuple(sorted(root.cycles.items()))) for root in self.roots]
        return self._state(), tuple(roots), self.last_mark[0] - self.since

    def delay(self, cycles: int, idle: Cycles, times: int) -> None:
        """Let `times` periods pass that end in the state in which they begin, each with so many idle cycles."""
        self.last_mark = self.last_mark[0] + times * cycles, self.last_mark[1]
        self.since += times * cycles
        self.stalls = _plus(self.stalls, idle, times)

    # -- charges ---------------------------------------------------------------------------------------------------

    def _root(self, point: Point, until: int) -> CauseRoot:
        """The path to a point between the mark and `until`."""
        (time, path), cycles = point, dict[str, int]()
        while time > self.mark and isinstance(path, tuple):
            cause, count, rest = path
            between = min(time, until) - max(time - count, self.mark)
            if between > 0:
                cycles[cause] = cycles.get(cause, 0) + between
            time, path = time - count, rest
        # A mark at 0 lies before the state, or where it begins: its paths go on in the state's roots.
        if not self.mark and isinstance(path, int):
            return _prolonged(self.roots, CauseRoot(path, "", cycles))
        return CauseRoot(-1, self.origin or self._origin(time, path), cycles)

    def _origin(self, time: int, path: Path) -> str:
        return path if isinstance(path, str) and time == self.mark else ""

    def _charge(self, ending: str, root: CauseRoot, times: int = 1) -> None:
        if root.base >= 0:
            self.opening = ending, root
        else:
            self.stalls = _plus(self.stalls, _charged(root.cycles, root.origin, ending), times)

    # -- loops -----------------------------------------------------------------------------------------------------

    def _loop(self, loop: TimedLoop, first: int, last: int) -> None:
        """The first iteration, those between until a state returns, the rest of them at once, the last."""
        bit, count = loop.bit, loop.count
        self.apply(self._iteration(loop, first | bit, last | bit if count == 1 else last & ~bit))
        left, met, effects = count - 2, dict[CauseState, int](), list[CauseEffect]()
        while left > 0:
            state = self._state()
            if state in met:
                self._periods(effects[met[state] :], left)
                break
            met[state] = len(effects)
            effects.append(self._iteration(loop, first & ~bit, last & ~bit))
            self.apply(effects[-1])
            left -= 1
        if count > 1:
            self.apply(self._iteration(loop, first & ~bit, last | bit))

    def _periods(self, period: Sequence[CauseEffect], iterations: int) -> None:
        often, rest = divmod(iterations, len(period))
        if often:
            whole = CauseTimeline(self.machine, self._state())
            for effect in period:
                whole.apply(effect)
            self.apply(whole.effect(), often)
        for effect in period[:rest]:
            self.apply(effect)

    def _iteration(self, loop: TimedLoop, first: int, last: int) -> CauseEffect:
        """What an iteration does from this state on."""
        known, (in_first, in_last) = loop.known.setdefault((self.machine, "causes"), {}), _mentioned(loop)
        key = first & in_first, last & in_last, self._state()
        if key not in known:
            clock = CauseTimeline(self.machine, key[2])
            clock.run(loop.body, first, last)
            known[key] = clock.effect()
        return known[key]

    def effect(self) -> CauseEffect:
        """What has happened from the state on."""
        state, (time, origin) = self._state(), self.last_mark
        mark = (time - self.since, origin) if time >= 0 else None
        return CauseEffect(state, self.stalls, self.opening, self.roots, self.since, mark)

    def apply(self, effect: CauseEffect, times: int = 1) -> None:
        """Let a piece happen, so many times if it ends in the state that it starts from."""
        self._state()
        self.since += effect.elapsed * times
        if effect.mark:
            self.last_mark = self.since + effect.mark[0], effect.mark[1]
        roots, step = self.roots, effect.roots
        if effect.opening:
            ending, root = effect.opening
            self._charge(ending, _prolonged(roots, root))
            # The interval began before the first period. In later ones it begins in the period before, at its roots.
            if times > 1:
                self._charge(ending, _prolonged(step, root), times - 1)
        self.stalls = _plus(self.stalls, effect.stalls, times)
        # The effect of 1, 2, 4, … periods on roots is `step`: log2 of `times` passes do (COST-13).
        while times:
            if times & 1:
                roots = [_prolonged(roots, root) for root in step]
            if times := times >> 1:
                step = [_prolonged(step, root) for root in step]
        self._load(effect.state, roots)

    def _state(self) -> CauseState:
        """The state now. The clock goes on from it: times count from now on, and paths end at its roots."""
        if self.at is None:
            self.numbers, self.new_roots = dict[tuple[int, str, int], int](), list[CauseRoot]()
            # The first root is that of the sequencer's own path: `_load` gives it number 0.
            if self.mark <= self.now[0]:
                self._root_number(self.now)
            starts, tokens = (
                tuple([self._all_behind_now(each) if each else () for each in some])
                for some in (self.starts, self.tokens)
            )
            free, done = self._all_behind_now(self.free), self._all_behind_now(self.done)
            self.since += self.now[0]
            self._load(CauseState(starts, free, done, tokens, len(self.new_roots)), self.new_roots)
        assert self.at
        return self.at

    def _all_behind_now(self, points: Sequence[Point]) -> tuple[Point, ...]:
        now = self.now[0]
        return tuple([_PAST if point[0] <= now else self._behind_now(point) for point in points])

    def _behind_now(self, point: Point) -> Point:
        """What of a path that ends after now lies behind now and the mark."""
        (time, path), now, mark = point, self.now[0], self.mark
        if time <= mark:
            return time - now, self._origin(time, path)
        # The piece that crosses the limit is cut. The point at its end, `crossing`, says from where the path goes on.
        pieces, crossing, since, limit = list[tuple[str, int]](), point, time, max(now, mark)
        while since > limit:
            assert isinstance(path, tuple)
            cause, cycles, rest = path
            pieces.append((cause, min(cycles, since - limit)))
            crossing, since, path = (since, path), since - cycles, rest
        left: Path = self._origin(since, path) if mark > now else self._root_number(crossing)
        for cause, cycles in reversed(pieces):
            left = cause, cycles, left
        return time - now, left

    def _root_number(self, point: Point) -> int:
        """The number of the root of a path whose piece that ends at a point comes to now, or beyond."""
        time, path = point
        # Paths are shared, never copied, and live as long as the points that they lead to. So one object is one path.
        key = (time - path[1], path[0], id(path[2])) if isinstance(path, tuple) else (time, "", id(path))
        if key not in self.numbers:
            self.numbers[key] = len(self.new_roots)
            self.new_roots.append(self._root(point, self.now[0]))
        return self.numbers[key]


def idle_timeline(machine: TimelineMachine, start: TimelineState) -> CauseTimeline:
    """An idle machine. start: which tokens there are."""
    starts, tokens = (tuple((_PAST,) * len(each) for each in some) for some in (start.starts, start.tokens))
    idle = (_PAST,) * len(start.free)
    clock = CauseTimeline(machine, CauseState(starts, idle, idle, tokens, 1))
    # CAUSE-4: the program begins as what is behind a wait does.
    clock.roots, clock.last_mark = [CauseRoot(-1, _WAIT, {})], (0, _WAIT)
    return clock


def stalls(machine: TimelineMachine, start: TimelineState, programs: Sequence[Sequence[Node]]) -> list[dict[str, int]]:
    """The idle cycles of the array by cause, in each of some programs that follow each other from an idle machine.

    An interval counts for the program that it ends in. start: which tokens there are.
    """
    clock, by_program = idle_timeline(machine, start), list[dict[str, int]]()
    for nodes in programs:
        clock.stalls = dict.fromkeys(CAUSES, 0)
        clock.run(nodes, ALL, ALL)
        by_program.append(dict(clock.stalls))
    return by_program
