"""The program of a network as records of a timeline, layer by layer, and its cycles. No IR.

A network is a sequence of parts: copies between DRAM and GLB, mapped layers, segments on the host. A layer's prefetched
transfers are in the part before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TypeGuard

from cnncc.arch.model import Arch
from cnncc.model.causes import stalls
from cnncc.model.cores_plan import CoresPlan
from cnncc.model.glb_tokens import FULL_IN_TURN
from cnncc.model.group_schedule import GroupPlan, group_schedule
from cnncc.model.layer_schedule import LayerPlan, LayerSchedule, layer_schedule
from cnncc.model.occupancy import transfer
from cnncc.model.timed_program import (
    COMMIT,
    DMA,
    ENGINES,
    SETTINGS,
    Node,
    PredictedCycles,
    SequencerCycles,
    Task,
    TimedLoop,
    TimedSignal,
    Wait,
    repeat,
)
from cnncc.model.timeline import Timeline, TimelineMachine, idle_state, predicted_cycles
from cnncc.model.transfers import PRIMED_QUEUES, Fetch

MOST_COPIES = 6  # of a part: each takes two of the 16 descriptors
DESCRIPTORS_OF_TRANSFER = 2  # of the DRAM side and of the GLB side


@dataclass(frozen=True)
class CopyPart:
    """Copies of values between DRAM and GLB. direction: `in` (to the GLB) or `out`. words: of each value."""

    label: str
    direction: str
    words: tuple[int, ...]


@dataclass(frozen=True)
class HostPart:
    """A segment that the host runs."""


Part = CopyPart | LayerPlan | GroupPlan | CoresPlan | HostPart


def copies(label: str, direction: str, words: Sequence[int]) -> list[Part]:
    """Copies of `words` words each, in parts of at most MOST_COPIES."""
    if not words:
        return []
    first = CopyPart(label, direction, tuple(words[:MOST_COPIES]))
    return [first, *copies(f"more {label}", direction, words[MOST_COPIES:])]


def program_schedule(parts: Sequence[Part], arch: Arch) -> list[tuple[str, tuple[Node, ...]]]:
    """The program, by label of the layer that each piece counts for."""
    unlabelled = (replace(part, label="") if isinstance(part, LayerPlan) else part for part in with_drains(parts))
    schedules = [_schedule(part, number % 2, arch) for number, part in enumerate(unlabelled)]
    tasks = [(*schedule.nodes, *(fetch.task for fetch in schedule.prefetched)) for schedule in schedules]
    taken = set[int]().union(*map(_taken, tasks))
    signals = [TimedSignal(queue, tokens) for queue, tokens in PRIMED_QUEUES.items() if queue in taken]
    program: list[tuple[str, tuple[Node, ...]]] = []
    if signals:
        program.append(("semaphores", (*signals, Wait((DMA,)))))
    hosts: tuple[Node, ...] = ()  # host segments before the first layer count for it, others for the layer before them
    for part, (own, after) in zip(parts, pairwise([*schedules, LayerSchedule((), ())]), strict=True):
        if not isinstance(part, HostPart):
            program.append((part.label, (*hosts, *_carrying(own.nodes, after.prefetched))))
            hosts = ()
        elif program:
            program[-1] = program[-1][0], (*program[-1][1], *own.nodes)
        else:
            hosts = (*hosts, *own.nodes)
    label, nodes = program.pop() if program else ("", hosts)
    return [*program, (label, (*nodes, Wait(tuple(range(len(ENGINES))), 0)))]  # `halt`


@lru_cache(maxsize=256)
def _schedule(part: Part, turn: int, arch: Arch) -> LayerSchedule:
    """The program of a part. A layer has no label here: a network has many equal layers."""
    match part:
        case CopyPart():
            moved = "activations" if part.direction == "in" else "results"
            head = SequencerCycles(DESCRIPTORS_OF_TRANSFER)
            copied = [node for words in part.words for node in (head, transfer(moved, words, arch))]
            return LayerSchedule((*copied, Wait((DMA,))), ())
        case HostPart():
            return LayerSchedule((Wait(tuple(range(len(ENGINES)))),), ())
        case LayerPlan():
            return layer_schedule(part, arch, FULL_IN_TURN[turn])
        case GroupPlan():
            return group_schedule(part, arch, FULL_IN_TURN[turn])
        case CoresPlan():
            raise AssertionError("each core has a program of its own (`cores_schedule.py`)")


def with_drains(parts: Sequence[Part]) -> list[Part]:
    """The parts, each layer with whether it drains where it stands."""
    return [
        replace(part, drains=_drains(follows)) if isinstance(part, LayerPlan | GroupPlan) else part
        for part, follows in zip(parts, [*parts, None][1:], strict=True)
    ]


def _drains(follows: Part | None) -> bool:
    """Whether a layer waits for the DMA at its end, as the next one could overwrite words that the DMA still reads.

    The last part waits. Copies and the host need no wait. Nor does a layer that streams its ifmap or residual: all its
    writes wait for a transfer of its own, queued behind.
    """
    if isinstance(follows, GroupPlan):
        return not follows.begins_with_transfers
    if not isinstance(follows, LayerPlan):
        return follows is None
    staged = follows.mapping.glb_stages
    return staged.keys().isdisjoint({"ifmap", "residual"})


def _carrying(nodes: tuple[Node, ...], prefetched: Sequence[Fetch]) -> tuple[Node, ...]:
    """A layer with transfers for the next one, each with two descriptors.

    `passes/array_prefetch.py` places them by the same rule in the program. tests/test_predict.py compares the counters.
    Their place is, by the first case that holds:

        both buffers would be full               behind the node that frees the first
        the layer has transfers inside loops     behind the last such loop
        otherwise                                behind the transfers at its head
    """
    if not prefetched:
        return nodes
    carried = tuple(node for fetch in prefetched for node in (SequencerCycles(DESCRIPTORS_OF_TRANSFER), fetch.task))
    head = 0
    while head < len(nodes) and (
        isinstance(nodes[head], SequencerCycles) or _is_transfer(nodes[head]) or nodes[head] == SETTINGS
    ):
        head += 1
    if any(_comes_in(node) for node in nodes[head:]):
        place = _last_that_comes_in(nodes)
    else:
        # Without first transfers this is in front of the settings of the output units, as in the pass.
        early = (i for i, node in enumerate(nodes[:head]) if isinstance(node, SequencerCycles) or _is_transfer(node))
        place = (max(early),)
    for queue in dict.fromkeys(token.queue for fetch in prefetched for token in fetch.task.takes):
        place = _where_free(nodes, place, queue)
    return _inserted(nodes, place, carried)


_Place = tuple[int, ...]  # of a node: its number, in each of the loops around it


def _last_that_comes_in(nodes: tuple[Node, ...]) -> _Place:
    last = max(at for at, node in enumerate(nodes) if _comes_in(node))
    node = nodes[last]
    # A peeled tile is a loop that runs once. The words come earlier behind the last transfers inside it.
    inner = node.body if isinstance(node, TimedLoop) and node.count == 1 else ()
    if any(isinstance(inside, TimedLoop) and _comes_in(inside) for inside in inner):
        return (last, *_last_that_comes_in(inner))
    return (last,)


def _where_free(nodes: tuple[Node, ...], place: _Place, queue: int) -> _Place:
    """The first place, from `place` on, at which one of two buffers is free: at most one token is given later."""
    while sum(_given(node, queue) for _, node in _behind(nodes, place)) > 1:
        place, node = next((at, node) for at, node in _behind(nodes, place) if _given(node, queue))
        while isinstance(node, TimedLoop) and _given(node, queue) > 1:
            at, node = next((at, inner) for at, inner in enumerate(node.body) if _given(inner, queue))
            place = (*place, at)
    return place


def _behind(nodes: tuple[Node, ...], place: _Place) -> Iterator[tuple[_Place, Node]]:
    """The nodes after a place, in the loop around it and in outer loops, with their places."""
    first, inner = place[0], nodes[place[0]]
    if len(place) > 1 and isinstance(inner, TimedLoop):
        for at, node in _behind(inner.body, place[1:]):
            yield (first, *at), node
    for at, node in enumerate(nodes[first + 1 :], first + 1):
        yield (at,), node


def _given(node: Node, queue: int) -> int:
    """Tokens that a node gives to a queue; a task in a loop counts once, because it gives in one iteration alone."""
    if isinstance(node, TimedLoop):
        return sum(_given(inner, queue) for inner in node.body)
    return sum(token.queue == queue for token in node.gives) if isinstance(node, Task) else 0


def _inserted(nodes: tuple[Node, ...], place: _Place, more: tuple[Node, ...]) -> tuple[Node, ...]:
    """`nodes` with `more` inserted behind `place`."""
    first, node = place[0], nodes[place[0]]
    if len(place) > 1 and isinstance(node, TimedLoop):
        return (
            *nodes[:first],
            repeat(node.count, node.bit, _inserted(node.body, place[1:], more)),
            *nodes[first + 1 :],
        )
    return (*nodes[: first + 1], *more, *nodes[first + 1 :])


def _comes_in(node: Node) -> bool:
    """Whether a node fetches from DRAM. All transfers but those of results do."""
    if isinstance(node, TimedLoop):
        return any(_comes_in(inner) for inner in node.body)
    return _is_transfer(node) and node.late != "dram_latency_results"


def _is_transfer(node: Node) -> TypeGuard[Task]:
    return isinstance(node, Task) and node.engine == DMA


def _taken(nodes: Sequence[Node]) -> set[int]:
    """The queues that transfers and commits take tokens from."""
    queues: set[int] = set()
    for node in nodes:
        if isinstance(node, TimedLoop):
            queues |= _taken(node.body)
        elif isinstance(node, Task) and node.engine in (DMA, COMMIT):
            queues |= {token.queue for token in node.takes}
    return queues


def program_cycles(
    parts: Sequence[Part], arch: Arch, causes: bool = False
) -> tuple[PredictedCycles, dict[str, PredictedCycles]]:
    """The cycles of a program and of its layers by label, as docs/stats.md says (rule TIME-5).

    causes: with stalls by cause, which takes longer. No caller changes the result.
    """
    return _program_cycles(tuple(parts), arch, causes)


@lru_cache(maxsize=64)  # networks with and without groups are compared again and again
def _program_cycles(
    parts: tuple[Part, ...], arch: Arch, causes: bool
) -> tuple[PredictedCycles, dict[str, PredictedCycles]]:
    array, by_label = TimelineMachine.of(arch), dict[str, PredictedCycles]()
    state = idle_state(array)
    programs = program_schedule(parts, arch)
    nothing = [dict[str, int]()] * len(programs)
    idle = stalls(array, state, [nodes for _, nodes in programs]) if causes else nothing
    for (label, nodes), stall in zip(programs, idle, strict=True):
        clock = Timeline(array, nodes).run(state)
        state, by_label[label] = clock.state(), predicted_cycles(nodes, clock.now, stall)
    whole = total(list(by_label.values()))
    by_label.pop("", None)
    return whole, by_label


def total(parts: Sequence[PredictedCycles]) -> PredictedCycles:
    """The cycles of several pieces together."""
    stall = {cause: sum(part.stall.get(cause, 0) for part in parts) for cause in parts[-1].stall}
    sums = {name: sum(getattr(part, name) for part in parts) for name in ("total", "compute", "load", "commit", "dma")}
    return PredictedCycles(**sums, stall=stall)
