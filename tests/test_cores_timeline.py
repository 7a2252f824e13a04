"""The model's timeline of several cores, compared with the interpreter's clock on programs by hand (docs/model.md)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from core_cases import PAPER, ProgramWriter, chain
from examples import examples
from test_core_runs import SMALL

from cnncc.arch.model import Arch, Bus, Cores, Dram, OutputUnits, Sequencer
from cnncc.isa.assembly import assemble
from cnncc.isa.table import RUN_BY_ENGINES
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.cores.core_times import simulate_cores
from cnncc.machine.cores.programs import Core, cores_of, wiring_of
from cnncc.machine.program import LoopNode
from cnncc.machine.program import Node as ProgramNode
from cnncc.machine.times.durations import UnitSettings, occupancy
from cnncc.machine.times.tasks import task_of
from cnncc.machine.times.times import waits_for
from cnncc.model.cores_timeline import RESULT, TimedCore, cores_cycles
from cnncc.model.layer_schedule import machine
from cnncc.model.timed_program import HALVES, Node, Own, Task, TimedSignal, Token, Wait, repeat


class Records:
    """The records of a core's program. Durations are the interpreter's; when things happen is for the model to say."""

    def __init__(self, core: Core, routed: Sequence[int]) -> None:
        self.core, self.routed, self.unit = core, routed, UnitSettings()

    def nodes(self, nodes: Sequence[ProgramNode]) -> tuple[Node, ...]:
        return tuple(self.node(node) for node in nodes)

    def node(self, node: ProgramNode) -> Node:
        if isinstance(node, LoopNode):
            body = self.nodes(node.body)
            return repeat(node.count, 1 << node.register, body, bool(node.head.instruction.number("frames")))
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
                return Own(1)
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
        TimedCore(Records(core, ()).nodes(core.tree), machine(core.arch), routes[at], core.arch.rows > 0)
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


def random_case(seed: int) -> tuple[str, Arch, int]:
    """A chain on a random array, with loops and waits between its instructions; and its lag."""
    r = random.Random(seed)
    pe = replace(
        PAPER.pe, start_cycles=r.randint(0, 4), finish_cycles=r.randint(0, 2), weight_halves=r.randint(1, 3),
        ifmap_halves=r.randint(1, 3), psum_halves=r.randint(1, 3),
    )  # fmt: skip
    arch = replace(
        PAPER, pe=pe, dram=Dram(r.randint(1, 9), r.randint(0, 90)), bus=Bus(r.randint(1, 10), r.randint(0, 5)),
        commit=OutputUnits(r.randint(1, 3), r.randint(0, 9)), sequencer=Sequencer(r.randint(1, 6), r.random() < 0.8),
        cores=Cores(8, r.randint(0, 8), 3, r.choice([0, 1, 10, 300])),
    )  # fmt: skip
    layers, lag = chain(*SMALL), r.choice([0, 1, 2])
    for layer in layers[1:]:
        layer.entries = r.randint(3 if layer.kind == "conv" else 1, layer.entries)
    before = {
        "end": "sync load=1 array=1 commit=1",
        "load": "loop count=3\ndesc id=9\nend",
        "mac": "loop count=2\nsync\nend",
    }
    lines = [
        line if r.random() < 0.8 else f"{before.get(line.split()[0], '')}\n{line}"
        for line in ProgramWriter(layers, arch, lag).text().splitlines()
    ]
    return "\n".join(lines), arch, lag


@pytest.mark.parametrize("seed", range(examples(4)))
def test_cycles_and_causes_are_the_interpreters(seed: int) -> None:
    text, arch, lag = random_case(seed)
    for frames in (1, 2, 7, 40):
        compare(text, arch, frames, lag)
