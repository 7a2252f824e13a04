"""The programs of cores as records of a timeline, from their groups' shapes and mappings alone. No IR.

Core 0 brings weights and images, and takes results away; the other cores run a group each, frame after frame.
`core_steps.py` has their tokens. docs/model.md has the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from cnncc.arch.model import Arch, core_arch
from cnncc.mapping.channels import Channel
from cnncc.model.core_steps import core_routes, first_tokens, weight_semaphores
from cnncc.model.cores_plan import CoresPlan
from cnncc.model.cores_timeline import RESULT, Period, TimedCore, cores_cycles, note_of
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.group_schedule import CoreSchedule, core_schedule
from cnncc.model.layer_schedule import ChannelNotes
from cnncc.model.occupancy import transfer
from cnncc.model.program_schedule import DESCRIPTORS_OF_TRANSFER
from cnncc.model.timed_program import (
    ALWAYS,
    ARRAY,
    COMMIT,
    DMA,
    ENGINES,
    HALVES,
    LOAD,
    Node,
    PredictedCycles,
    SequencerCycles,
    Task,
    TimedLoop,
    TimedSignal,
    Token,
    Wait,
    repeat,
)
from cnncc.model.timeline import Timeline, TimelineMachine, idle_state, predicted_cycles

OF_FRAMES = 8  # descriptors of images and results, on both sides, each with a step from frame to frame
WAIT_FOR_ALL = Wait(tuple(range(len(ENGINES))), 0)  # `halt`


@dataclass(frozen=True)
class PredictedFrames:
    """The times of layers side by side, in a run of so many frames.

    - cores: core 0 and the cores of groups
    - of_dma: what core 0 does first, `weights`, and then, `frames`
    - first: cycles until the results of the first frame are in DRAM
    - period: (cycles, frames) in steady state; None if the run is too short for one to show
    - peaks: by channel, the most rows that are written and not yet read
    """

    cores: Sequence[PredictedCycles]
    of_dma: Mapping[str, PredictedCycles]
    frames: int
    total: int
    first: int
    period: Period | None
    peaks: Sequence[int]


def cores_schedule(plan: CoresPlan, arch: Arch, frames: int, hosts: tuple[int, int]) -> list[TimedCore]:
    """The program of each core, for so many frames. hosts: segments of the host before and behind."""
    groups = list[CoreSchedule]()
    archs = [core_arch(arch, region.rows, region.cols) for region in plan.regions]
    notes = list(_notes(plan))
    for number, (ends, own) in enumerate(zip(plan.chain.ends, archs, strict=True)):
        groups.append(core_schedule(plan.of_frames(number), own, ends, notes[number], frames))
    routes = core_routes([group.waits for group in groups])
    tokens = first_tokens(plan.chain.links, plan.lag)
    bodies = [_dma(plan, groups, arch, frames, hosts)]
    bodies += [(group.frames, Wait((LOAD, ARRAY, COMMIT))) for group in groups]
    queues = [[RESULT], *([queue for own in each for queue in own if queue] for each in notes)]
    cores = list[TimedCore]()
    for own, own_routes, own_tokens, body, noted in zip([arch, *archs], routes, tokens, bodies, queues, strict=True):
        signals = [TimedSignal(HALVES + semaphore, count) for semaphore, count in own_tokens.items()]
        program = (SequencerCycles(1 + len(own_routes)), *signals, *body, WAIT_FOR_ALL)
        targets = dict[int, list[tuple[int, int]]]()
        for route in own_routes:
            targets.setdefault(HALVES + route.semaphore, []).append((route.core, HALVES + route.to))
        cores.append(TimedCore(program, TimelineMachine.of(own), targets, bool(cores), noted))
    return cores


def _notes(plan: CoresPlan) -> Iterator[list[ChannelNotes]]:
    """What is noted of the layers of each group: when they read channels and write them."""
    for number, group in enumerate(plan.groups):
        reading = {reader.layer for reader in plan.reads[number]} if number else set[int]()
        writing = {channel.layer for channel in plan.channels if channel.group == number}
        yield [
            ChannelNotes(note_of(at, "ifmap") if at in reading else 0, note_of(at, "output") if at in writing else 0)
            for at in range(len(group.group))
        ]


def _dma(
    plan: CoresPlan, groups: Sequence[CoreSchedule], arch: Arch, frames: int, hosts: tuple[int, int]
) -> tuple[Node, ...]:
    """What core 0 does: weights and params of all groups, then images in and results out."""
    nodes = list[Node](_hosts(hosts[0]))
    for group, semaphore in zip(groups, weight_semaphores(len(groups)), strict=True):
        for transfers in group.transfers:
            # A core has one semaphore for its weights, which core 0 gives by a number of its own.
            own = [task._replace(gives=tuple(Token(HALVES + semaphore) for _ in task.gives)) for task in transfers]
            nodes += [SequencerCycles(DESCRIPTORS_OF_TRANSFER * len(own)), *own]
    image = transfer("activations", plan.image, arch, Semaphore.INPUT_FREE, Semaphore.IFMAP_FULL)
    result = transfer("results", plan.result, arch, Semaphore.OUTPUT_FULL, Semaphore.OUTPUT_FREE)
    result = result._replace(gives=(*result.gives, Token(RESULT, ALWAYS)))
    loop = repeat(frames + plan.lag, 1, (image, result), over_frames=True)
    return (*nodes, SequencerCycles(OF_FRAMES), loop, Wait((DMA,)), *_hosts(hosts[1]))


def _hosts(segments: int) -> Iterator[Node]:
    return (Wait(tuple(range(len(ENGINES)))) for _ in range(segments))


def predicted_frames(
    plan: CoresPlan, arch: Arch, frames: int, causes: bool = False, hosts: tuple[int, int] = (0, 0)
) -> PredictedFrames:
    """The times of a run of so many frames. causes: with stalls by cause, which takes longer."""
    cores = cores_schedule(plan, arch, frames, hosts)
    timed = cores_cycles(cores, arch.cores.latency_cycles, causes)
    peaks = [
        most_waiting(
            channel,
            timed.noted[number, note_of(channel.writer, "output")],
            {reader.layer: timed.noted[number + 1, note_of(reader.layer, "ifmap")] for reader in channel.readers},
        )
        for number, link in enumerate(plan.chain.links, 1)
        for channel in link.channels
    ]
    return PredictedFrames(
        timed.cores,
        _of_dma(cores[0], timed.cores[0]),
        frames,
        timed.total,
        # The first `lag` iterations of core 0 take no result away (CHANNEL-6).
        timed.noted[0, RESULT][plan.lag],
        timed.period,
        peaks,
    )


def _of_dma(core: TimedCore, whole: PredictedCycles) -> dict[str, PredictedCycles]:
    """The cycles of core 0 until all weights are on their way, and those behind."""
    # The descriptors right before the loop are those of the frames.
    before = core.nodes[: next(at for at, node in enumerate(core.nodes) if isinstance(node, TimedLoop)) - 1]
    if not any(isinstance(node, Task) for node in before):
        return {"frames": whole}
    weights = predicted_cycles(before, Timeline(core.machine, before).run(idle_state(core.machine)).now, {})
    rest = replace(whole, total=whole.total - weights.total, dma=whole.dma - weights.dma)
    return {"weights": weights, "frames": rest}


def most_waiting(channel: Channel, written: Sequence[int], read: Mapping[int, Sequence[int]]) -> int:
    """The most rows of a channel that are written and not yet read (COST-18).

    written, read: when the last commit of each stripe of its producer is done, and the last load of each of its
    readers, frame after frame. A step of the consumers is done with rows when its last reader is. In one cycle rows
    are read first.
    """
    producer, changes = channel.producer, list[tuple[int, int, int]]()
    for at, time in enumerate(written):
        stripe = at % producer.stripes.count
        changes.append((time, 1, producer.stripes.rows_of(stripe)))
    before = 0
    steps = {step: (number, rows) for (step, number), rows in channel.done}  # by the last reader of each
    for step, (number, rows) in steps.items():
        layer = channel.behind[number]
        times = read[number][step - layer.delay :: layer.stripes.count]
        changes += [(time, 0, before - rows) for time in times]
        before = rows
    return max(accumulate((rows for _, _, rows in sorted(changes)), initial=0))
