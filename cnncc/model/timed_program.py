"""Programs as nested records, as far as their times depend on them. No IR, no instructions.

A program is a sequence of

    Task     what an engine does: for how long, and the tokens that it takes and gives
    Own      cycles of the sequencer: `desc`, `step`
    Signal   tokens that the sequencer gives
    Wait     the sequencer until engines are idle, as in `sync`
    Repeat   a hardware loop around a sequence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

ENGINES = ("dma", "load", "array", "commit")
DMA, LOAD, ARRAY, COMMIT = range(len(ENGINES))

# Queues of tokens: halves of the register files, free and full (TOKEN-1 to TOKEN-3); semaphores follow (TOKEN-4).
WEIGHT_FREE, WEIGHT_FULL, IFMAP_FREE, IFMAP_FULL, PSUM_FREE, PSUM_FULL = range(6)
HALVES = 6
SEMAPHORES = 15
QUEUES = HALVES + SEMAPHORES + 1
ALWAYS = 0  # the condition of no loop
ALL = -1  # what no loop runs around is in its first and last iteration (PROG-2)

STALLS = ("weights", "ifmap", "psum", "issue", "drain")
ISSUE, DRAIN = 3, 4


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


class TimedSignal(NamedTuple):
    """A cycle of the sequencer; then there are so many tokens more."""

    queue: int
    tokens: int


class Wait(NamedTuple):
    """The sequencer until these engines are idle, and some cycles more."""

    engines: tuple[int, ...]
    cycles: int = 1


@dataclass(frozen=True, eq=False)
class TimedLoop:
    """A loop, `bit` in the masks of conditions. known: what timelines have found out of its body, by the machine."""

    count: int
    bit: int
    body: tuple[Node, ...]
    known: dict[object, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", _known(self.bit, self.body))


@lru_cache(maxsize=1 << 11)
def repeat(count: int, bit: int, body: tuple[Node, ...]) -> TimedLoop:
    """The one such loop: programs have many alike, and so have those of other mappings of a layer."""
    return TimedLoop(count, bit, body)


@lru_cache(maxsize=1 << 11)
def _known(_bit: int, _body: tuple[Node, ...]) -> dict[object, Any]:
    return {}


Node = Task | Own | TimedSignal | Wait | TimedLoop


@dataclass(frozen=True)
class PredictedCycles:
    """Counted cycles by the keys of docs/stats.md: compute and the stalls add up to total."""

    total: int = 0
    compute: int = 0
    load: int = 0
    commit: int = 0
    dma: int = 0
    stall: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(STALLS, 0))


def busy_cycles(nodes: Sequence[Node]) -> list[int]:
    """Cycles that each engine is busy in a program."""
    found = [0] * len(ENGINES)
    for node in nodes:
        if isinstance(node, Task):
            found[node.engine] += node.busy
        elif isinstance(node, TimedLoop):
            for engine, cycles in enumerate(busy_cycles(node.body)):
                found[engine] += node.count * cycles
    return found
