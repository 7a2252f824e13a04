"""Critical paths to the times of a program, and the causes that they charge idle cycles to (CAUSE-1 to CAUSE-6).

The *mark* is the end of the last macro-instruction, or of the last wait that names the array. Only what a path does
behind the mark is ever charged. Of that, what lies before the sequencer's time needs no order: the next interval that
is charged ends later. So a path is

    before the sequencer's time   a `Root`: cycles by cause, and where the path begins
    from then on                  `Moment`s, each with the one before it

A piece of program continues the paths that cross its start. Each of its roots adds cycles to one of these paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

SEQUENCER, FILL, DRAIN = "sequencer", "fill", "drain"
DRAM_CAUSES = tuple(
    f"dram_{what}_{moved}" for what in ("bandwidth", "latency") for moved in ("weights", "activations", "results")
)
FILES = ("weight_file", "ifmap_file", "psum_file")
WORK = ("glb_port", "row_bus", "write_port", "output_units", "column_bus")  # of loads and commits
CAUSES = (*DRAM_CAUSES, *WORK, SEQUENCER, *FILES, FILL, DRAIN)
CHANNEL_CAUSES = ("channel_in", "channel_out")  # of programs of several cores (CAUSE-7)

# How an idle interval ends: before a macro-instruction, before one whose psum half was free last, with a wait.
MACRO, PSUM_HALF, WAIT = "macro", "psum half", "wait"
BEHIND_WAIT = "behind a wait"  # where a path begins, if the mark is the end of a wait


class Moment(int):
    """A time with its path: `cause` was active from `since` on; with no `since` the path begins.

    origin: the start of the path: the number of a root, a register file whose half the last macro-instruction gave when
    it ended, or empty. Moments of states are unique (`CauseClock`), so equal ones are the same.
    """

    since: int | None
    cause: str
    origin: int | str

    def __new__(cls, time: int, since: int | None = None, cause: str = "", origin: int | str = "") -> Moment:
        moment = super().__new__(cls, time)
        moment.since, moment.cause, moment.origin = since, cause, origin
        return moment

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


Moments = dict[tuple[int, int | None, str, int | str], Moment]  # those of the states of a program, by their fields


def delayed(time: int, cause: str, cycles: int) -> int:
    """The time so many cycles later, with `cause` active in between."""
    if not cycles:
        return time
    since = time.since if isinstance(time, Moment) and time.cause == cause else time
    return Moment(time + cycles, since, cause)


class Root(NamedTuple):
    """The part of a path between the mark and the sequencer's time: cycles by cause.

    base: the root of the piece's start that it continues; else None, and `origin` says where it begins.
    """

    base: int | None
    origin: str
    cycles: Mapping[str, int]


class Charge(NamedTuple):
    """Cycles of an idle interval that began before a piece: the layer that they count for, its end, its path."""

    owner: int
    ending: str
    root: Root


class Paths(NamedTuple):
    """What a piece does to paths: the first charge, if its interval began before; the roots at the end."""

    opening: Charge | None
    roots: Sequence[Root]


def rebased(roots: Sequence[Root], root: Root) -> Root:
    """A root of a piece that starts with `roots`."""
    if root.base is None:
        return root
    base = roots[root.base]
    cycles = dict(base.cycles)
    for cause, count in root.cycles.items():
        cycles[cause] = cycles.get(cause, 0) + count
    return Root(base.base, base.origin, cycles)


def roots_after(roots: Sequence[Root], step: Sequence[Root], times: int) -> Sequence[Root]:
    """The roots after a piece has run so many times, each time from the state that it starts from."""
    for bit in range(times.bit_length()):
        # Each turn doubles `step`: it is the piece once, then twice, then four times.
        step = [rebased(step, root) for root in step] if bit else step
        roots = [rebased(roots, root) for root in step] if times >> bit & 1 else roots
    return roots


def cycles_by_cause(root: Root, ending: str) -> Mapping[str, int]:
    """The causes of an idle interval, from the cycles on its path (CAUSE-4, CAUSE-5)."""
    origin, other = root.origin, ""
    if origin == BEHIND_WAIT:
        other = "" if ending == WAIT else FILL
    elif ending == WAIT:
        other = DRAIN
    elif origin in FILES and (origin != "psum_file" or ending == PSUM_HALF):
        other = origin
    if not other:
        return root.cycles
    # CAUSE-7: waits for other cores keep their causes, as those for DRAM do.
    taken = WORK if other in FILES else (*WORK, SEQUENCER)
    cycles = {cause: count for cause, count in root.cycles.items() if cause not in taken}
    return {**cycles, other: sum(root.cycles.values()) - sum(cycles.values())}
