"""Programs as nested records of the facts that times depend on. No IR, no instructions.

A program is a sequence of

    Task              an engine's instruction: its duration, the tokens that it takes and gives
    SequencerCycles   cycles of the sequencer: `desc`, `step`
    TimedSignal       tokens that the sequencer gives
    Wait              the sequencer waits until engines are idle, as in `sync`
    TimedLoop         a hardware loop around a sequence
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
SEMAPHORES = 15  # numbered from 1 (TOKEN-4)
QUEUES = HALVES + SEMAPHORES + 1
ALWAYS = 0  # the condition of no loop
ALL = -1  # the mask of all loops: outside of them, all count as in their first and last iteration (PROG-2)

CAUSES = (  # of idle cycles of the array (CAUSE-1 to CAUSE-6)
    "dram_bandwidth_weights", "dram_bandwidth_activations", "dram_bandwidth_results",
    "dram_latency_weights", "dram_latency_activations", "dram_latency_results",
    "glb_port", "row_bus", "write_port", "output_units", "column_bus", "sequencer",
    "weight_file", "ifmap_file", "psum_file", "fill", "drain",
)  # fmt: skip
CHANNEL_CAUSES = ("channel_in", "channel_out")  # of a core that waits for another one (CAUSE-7)


class Token(NamedTuple):
    """A token of a queue, taken (given) when all loops of the mask `when` are in their first (last) iteration."""

    queue: int
    when: int = ALWAYS


class Task(NamedTuple):
    """An instruction of an engine. busy: cycles on the engine. latency: further cycles until it is done.

    work: the busy cycles by cause. late: the cause of the latency. A macro-instruction has neither.
    """

    engine: int
    busy: int
    latency: int = 0
    takes: tuple[Token, ...] = ()
    gives: tuple[Token, ...] = ()
    work: tuple[tuple[str, int], ...] = ()
    late: str = ""


SETTINGS = Task(COMMIT, 1, work=(("output_units", 1),))  # of the output units


def settings(table: bool) -> list[Task]:
    """Those of a layer. table: whether it has one, which comes in eight parts (COMMIT-7)."""
    return [SETTINGS] * (9 if table else 1)


class SequencerCycles(NamedTuple):
    """Cycles that the sequencer spends by itself."""

    cycles: int


class TimedSignal(NamedTuple):
    """A cycle of the sequencer that adds tokens to a queue."""

    queue: int
    tokens: int


class Wait(NamedTuple):
    """A wait of the sequencer until these engines are idle, plus `cycles`."""

    engines: tuple[int, ...]
    cycles: int = 1


# Loops are equal if they are one: a body's hash does not walk through the loops inside. `repeat` makes equal ones one.
@dataclass(frozen=True, eq=False)
class TimedLoop:
    """A loop.

    - bit: its bit in the masks of conditions; 0 if it runs once, and no condition names it
    - over_frames: whether it has an iteration for each frame (CORE-8)
    - known: cached results of timelines for its body, by machine
    """

    count: int
    bit: int
    body: tuple[Node, ...]
    over_frames: bool = False
    known: dict[object, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Loops that differ in their counts alone share what is known of their iterations.
        object.__setattr__(self, "known", _known(self.bit, self.body))


@lru_cache(maxsize=1 << 11)
def repeat(count: int, bit: int, body: tuple[Node, ...], over_frames: bool = False) -> TimedLoop:
    """The unique loop of these fields. Equal loops are frequent, in one program and across mappings of a layer."""
    return TimedLoop(count, bit, body, over_frames)


@lru_cache(maxsize=1 << 11)
def _known(_bit: int, _body: tuple[Node, ...]) -> dict[object, Any]:
    return {}


Node = Task | SequencerCycles | TimedSignal | Wait | TimedLoop


@dataclass(frozen=True)
class PredictedCycles:
    """Counted cycles by the keys of docs/stats.md: compute and the stalls, if they are known, add up to total."""

    total: int
    compute: int
    load: int
    commit: int
    dma: int
    stall: Mapping[str, int]


def busy_cycles(nodes: Sequence[Node]) -> list[int]:
    """Cycles that each engine is busy in a program."""
    busy = [0] * len(ENGINES)
    for node in nodes:
        if isinstance(node, Task):
            busy[node.engine] += node.busy
        elif isinstance(node, TimedLoop):
            for engine, cycles in enumerate(busy_cycles(node.body)):
                busy[engine] += node.count * cycles
    return busy
