"""A clock that charges each idle cycle of the array to its cause (CAUSE-1 to CAUSE-6).

Its times are `Moment`s. `max` takes the first of equal arguments, so the clock's order of arguments is that of CAUSE-1.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from cnncc.machine.times.clock import Clock, Effect, Key, Runs, State, merged
from cnncc.machine.times.durations import Occupancy
from cnncc.machine.times.paths import (
    BEHIND_WAIT,
    MACRO,
    PSUM_HALF,
    SEQUENCER,
    WAIT,
    Charge,
    Moment,
    Moments,
    Paths,
    Root,
    cycles_by_cause,
    delayed,
    rebased,
    roots_after,
)
from cnncc.machine.times.tasks import ARRAY, IFMAP_FREE, PSUM_FREE, PSUM_FULL, WEIGHT_FREE

# The halves that a macro-instruction gives when it ends, by queue. A path of an instruction that waits for one begins
# there (CAUSE-5).
_GIVEN = {WEIGHT_FREE: "weight_file", IFMAP_FREE: "ifmap_file", PSUM_FULL: "psum_file"}


class CauseClock(Clock):
    """The times from `state` on, with their paths. moments: those of all states of the program."""

    def __init__(self, state: State, overlap: bool, moments: Moments) -> None:
        super().__init__(state, overlap)
        self._moments = moments
        self._opening: Charge | None = None
        self._roots_of_state: Sequence[Root] = [Root(number, "", {}) for number in range(state.roots)]

    def _take_over(self, state: State) -> None:
        super()._take_over(state)
        self.now, self._mark, self._begin = Moment(0, origin=0), int(self._free[ARRAY]), ""
        self._roots, self._free_psums = self._roots_of_state, None

    # -- times ---------------------------------------------------------------------------------------------------

    def _later(self, time: int, cycles: int) -> int:
        return delayed(time, SEQUENCER, cycles)

    def _ends(self, start: int, took: Occupancy) -> tuple[int, int]:
        end = start
        for cause, cycles in took.work:
            end = delayed(end, cause, cycles)
        return (end, delayed(end, took.late, took.latency)) if took.work else super()._ends(start, took)

    def _take(self, queue: int) -> int:
        time = super()._take(queue)
        if queue == PSUM_FREE:
            self._free_psums = time
        return Moment(time, origin=_GIVEN[queue]) if queue in _GIVEN else time

    def put(self, queue: int, time: int, cause: str) -> None:
        super().put(queue, time, cause)
        ((time, _),) = self._tokens[queue]
        # The token was there before the array fell idle, so no idle cycle is spent on it.
        if time <= self._mark:
            return
        since = int(self._mark)
        if not since:  # the mark lies before this clock's times: all paths to now are as long
            base = self._roots[0]
            origin = BEHIND_WAIT if base.origin == BEHIND_WAIT else ""
            self._roots = [*self._roots, Root(base.base, origin, {cause: sum(base.cycles.values())})]
            since = Moment(0, origin=len(self._roots) - 1)
        self._tokens[queue] = ((Moment(time, since, cause), 1),)

    def open_interval(self) -> Hashable:
        return tuple([(root.base, root.origin, tuple(sorted(root.cycles.items()))) for root in self._roots_of_state])

    # -- charges -------------------------------------------------------------------------------------------------

    def _array_ran(self, owner: int, start: int, end: int) -> None:
        # `is`: several moments may have this time. The start is the one whose path it continues.
        self._charge(owner, PSUM_HALF if start is self._free_psums else MACRO, self._root(start, start))
        self._mark, self._begin = end, ""

    def _array_waited(self, owner: int) -> None:
        self._charge(owner, WAIT, self._root(self.now, self.now))
        self._mark, self._begin = int(self.now), BEHIND_WAIT

    def _root(self, time: int, until: int) -> Root:
        """The path to a time, between the mark and `until`."""
        cycles: dict[str, int] = {}
        while time > self._mark:
            assert isinstance(time, Moment) and time.since is not None
            if time.since < until:
                count = min(time, until) - max(time.since, self._mark)
                cycles[time.cause] = cycles.get(time.cause, 0) + count
            time = time.since
        if not self._mark:  # the interval began before the state
            assert isinstance(time, Moment) and isinstance(time.origin, int)
            return rebased(self._roots, Root(time.origin, "", cycles))
        return Root(None, self._begin or self._origin(time), cycles)

    def _origin(self, time: int) -> str:
        """The register file of a half that the last macro-instruction gave, if it did so at this time."""
        return str(time.origin) if isinstance(time, Moment) and int(time) == self._mark else ""

    def _charge(self, owner: int, ending: str, root: Root, times: int = 1) -> None:
        if root.base is not None:
            assert self._opening is None
            self._opening = Charge(owner, ending, root)
            return
        for cause, cycles in cycles_by_cause(root, ending).items():
            self.counts[owner, cause] += cycles * times

    # -- states and effects --------------------------------------------------------------------------------------

    def freeze(self) -> State:
        if self._state is not None:
            return self._state
        self._new_roots, self._crossing = list[Root](), dict[tuple[int, str], int]()
        if self._mark <= self.now:
            # Root 0 is the path to the sequencer's time itself: `_take_over` continues it.
            self._number_of_root(self.now)
        self._state = super().freeze()._replace(roots=len(self._new_roots))
        self._roots_of_state = self._new_roots
        return self._state

    def _relative(self, times: Sequence[int]) -> tuple[int, ...]:
        return tuple([self._from_now_on(time) for time in times])

    def _merged(self, runs: Runs) -> Runs:
        return merged([(self._from_now_on(time), count) for time, count in runs])

    def _from_now_on(self, time: int) -> int:
        """A time relative to now, with what its path does behind now and the mark."""
        now, mark, pieces = self.now, self._mark, list[Moment]()
        while time > max(now, mark):
            assert isinstance(time, Moment) and time.since is not None
            pieces.append(time)
            time = time.since
        # Nothing before the mark is ever charged, so the path begins there.
        if mark > now:
            origin = self._origin(time)
            relative = mark - now if pieces else max(0, time - now)
            point = self._unique(Moment(relative, origin=origin)) if origin else relative
        else:
            point = self._unique(Moment(0, origin=self._number_of_root(pieces[-1]))) if pieces else 0
        for piece in reversed(pieces):
            point = self._unique(delayed(point, piece.cause, piece - now - point))
        return point

    def _unique(self, time: int) -> int:
        """The one moment of a state that is such."""
        if not isinstance(time, Moment):
            return time
        return self._moments.setdefault((int(time), time.since, time.cause, time.origin), time)

    def _number_of_root(self, time: int) -> int:
        """The number of the root of a path that comes to now, or crosses it, on its way to a time."""
        assert isinstance(time, Moment)
        # Pieces that began together for one cause are the same path up to now, however late they end.
        key = (id(time.since), time.cause)
        if (number := self._crossing.get(key)) is None:
            number = self._crossing[key] = len(self._new_roots)
            self._new_roots.append(self._root(time, self.now))
        return number

    def effect(self) -> Effect:
        effect = super().effect()
        return effect._replace(paths=Paths(self._opening, self._roots_of_state))

    def apply(self, effect: Effect, times: int = 1, owner: int = 0) -> None:
        assert effect.paths and self._state is not None
        opening, roots = effect.paths
        if opening:
            self._charge(opening.owner + owner, opening.ending, rebased(self._roots_of_state, opening.root))
            # The first time, the interval began before the effect; then, in the effect itself as it ran the time
            # before.
            if times > 1:
                self._charge(opening.owner + owner, opening.ending, rebased(roots, opening.root), times - 1)
        super().apply(effect, times, owner)
        self._roots_of_state = roots_after(self._roots_of_state, roots, times)

    def all_counts(self) -> Mapping[Key, int]:
        if opening := self._opening:
            self._opening = None
            # CAUSE-4: an interval that begins with the program is one behind a wait.
            self._charge(opening.owner, opening.ending, opening.root._replace(base=None, origin=BEHIND_WAIT))
        return self.counts
