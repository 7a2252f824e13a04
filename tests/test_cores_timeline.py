"""The model's timeline of several cores, compared with the interpreter's clock on programs by hand (docs/model.md)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from core_cases import random_case
from examples import examples

from cnncc.arch.model import Arch
from cnncc.isa.assembly import assemble
from cnncc.isa.table import RUN_BY_ENGINES
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.cores.core_times import simulate_cores
from cnncc.machine.cores.programs import Core, cores_of, wiring_of
from cnncc.machine.instruction_sizes import UnitSettings
from cnncc.machine.program import LoopNode
from cnncc.machine.program import Node as ProgramNode
from cnncc.machine.times.durations import occupancy
from cnncc.machine.times.tasks import task_of
from cnncc.machine.times.times import waits_for
from cnncc.model.cores_timeline import RESULT, TimedCore, cores_cycles
from cnncc.model.timed_program import HALVES, Node, SequencerCycles, Task, TimedSignal, Token, Wait, repeat
from cnncc.model.timeline import TimelineMachine


class Records:
    """The records of a core's program. Durations are the interpreter's; when things happen is for the model to say."""

    def __init__(self, core: Core, routed: Sequence[int]) -> None:
        self.core, self.routed, self.unit = core, routed, UnitSettings()

    def nodes(self, nodes: Sequence[ProgramNode]) -> tuple[Node, ...]:
        return tuple(self.node(node) for node in nodes)

    def node(self, node: ProgramNode) -> Node:
        if isinstance(node, LoopNode):
            body = self.nodes(node.body)
            return repeat(node.count, 1 << node.register, body, node.over_frames)
        inst = node.instruction
        match inst.spec.kind:
            case Kind.SYNC:
                return Wait(tuple(waits_for(inst)), 1)
            case Kind.HALT:
                return Wait((0, 1, 2, 3), 0)
            case Kind.SIGNAL:
                return TimedSignal(HALVES + inst.number("semaphore"), inst.number("count"))
            case Kind.UNIT:
                self.unit = UnitSettings.of(inst)
            case kind if kind not in RUN_BY_ENGINES:
                return SequencerCycles(1)
            case _:
                pass
        task, taken = task_of(inst), occupancy(inst, self.unit, self.core.arch)
        takes, gives = (
            tuple(Token(t.queue + (t.queue >= HALVES), t.mask) for t in some) for some in (task.takes, task.gives)
        )
        if inst.spec.name == "dma" and inst.text("direction") == "out":
            gives = (*gives, Token(RESULT))
        return Task(task.engine, taken.busy, taken.latency, takes, gives, taken.work, taken.late)


def timed_cores(text: str, arch: Arch, frames: int) -> list[TimedCore]:
    cores = cores_of(assemble(text), arch, frames)
    routes: list[dict[int, list[tuple[int, int]]]] = [{} for _ in cores]
    for (core, semaphore), targets in wiring_of(cores).routes.items():
        routes[core][HALVES + semaphore] = [(to, HALVES + number) for to, number in targets]
    return [
        TimedCore(Records(core, ()).nodes(core.tree), TimelineMachine.of(core.arch), routes[at], core.arch.rows > 0)
        for at, core in enumerate(cores)
    ]


def compare(text: str, arch: Arch, frames: int, lag: int) -> None:
    """Both the clock with causes and the one without are the interpreter's."""
    counted = simulate_cores(cores_of(assemble(text), arch, frames), causes=True)
    for with_causes in (True, False):
        predicted = cores_cycles(timed_cores(text, arch, frames), arch.cores.latency_cycles, with_causes)
        assert predicted.total == max(core.cycles.total for core in counted.cores)
        assert predicted.period == counted.frames.period
        assert predicted.noted[0, RESULT][lag] == counted.frames.first
        for own, core in zip(predicted.cores, counted.cores, strict=True):
            assert {**vars(own), "stall": {}} == {**vars(core.cycles), "stall": {}}
            assert own.stall == (core.cycles.stall if with_causes else {})


@pytest.mark.parametrize("seed", range(examples(4)))
def test_cycles_and_causes_are_the_interpreters(seed: int) -> None:
    text, arch, lag = random_case(seed)
    for frames in (1, 2, 7, 40):
        compare(text, arch, frames, lag)
