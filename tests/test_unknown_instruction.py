"""A new row of the instruction table that nobody implements is an error wherever instructions are run or counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from array_cases import arch_2x2, inputs, module
from xdsl.parser import Parser

from cnncc.errors import Refusal
from cnncc.eval.array import evaluate
from cnncc.isa.table import (
    ADDRESSING,
    BY_NAME,
    CHANGING_SETTINGS,
    MOVING_WORDS,
    RUN_BY_ENGINES,
    SPECS,
    Instruction,
    InstructionKind,
    Spec,
    instruction,
)
from cnncc.machine.instruction_sizes import UnitSettings
from cnncc.machine.program import build_tree
from cnncc.machine.races import races
from cnncc.machine.times.durations import occupancy
from cnncc.machine.times.tasks import ENGINES, task_of
from cnncc.machine.times.times import simulate
from cnncc.machine.traffic.counts import count_traffic
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.memory import Memory
from cnncc.machine.values.work_limit import work_of

ARCH = arch_2x2()
# Instructions of engines that move no words, and change no settings on which words or cycles depend.
NEITHER = {InstructionKind.TABLE}


def run_values(program: Sequence[Instruction]) -> None:
    Interpreter(ARCH, Memory("dram", 10, 1), lambda segment, memory: None).run(build_tree(program))


RUNS: dict[str, Callable[[Sequence[Instruction]], object]] = {
    "values": run_values,
    "times": lambda program: simulate(build_tree(program), ARCH),
    "traffic": lambda program: count_traffic(build_tree(program), ARCH),
    "races": lambda program: races(program, ARCH),
}
COUNTS: dict[str, Callable[[Instruction], object]] = {
    "task": task_of,
    "occupancy": lambda inst: occupancy(inst, UnitSettings(), ARCH),
    "work": work_of,
}


def unknown(engine: str) -> Instruction:
    return Instruction(Spec("nobody", 40, engine, 1, "nobody implements this", ()), {})


def test_unknown_instruction_kinds_are_those_of_the_table() -> None:
    assert [spec.kind for spec in SPECS] == [InstructionKind(spec.name) for spec in SPECS]
    assert set(BY_NAME) == set(InstructionKind)
    assert set(RUN_BY_ENGINES) == {spec.kind for spec in SPECS if spec.engine in ENGINES}
    kinds = set(MOVING_WORDS) | set(CHANGING_SETTINGS)
    assert kinds | NEITHER == set(RUN_BY_ENGINES) | {"desc", "step"} and not kinds & NEITHER
    assert set(ADDRESSING) == kinds - {"mac"}  # a mac's words are in the PEs


@pytest.mark.parametrize("engine", ["sequencer", "array"])
@pytest.mark.parametrize("iterations", [0, 1, 3])
@pytest.mark.parametrize("run", RUNS)
def test_unknown_instruction_is_not_run(run: str, iterations: int, engine: str) -> None:
    around = [instruction("loop", count=iterations)] if iterations else []
    ends = [instruction("end")] if iterations else []
    RUNS[run]([*around, instruction("sync"), *ends, instruction("halt")])
    with pytest.raises(ValueError, match="'nobody' is not a valid InstructionKind"):
        RUNS[run]([*around, unknown(engine), *ends, instruction("halt")])


@pytest.mark.parametrize("count", COUNTS)
def test_unknown_instruction_is_not_counted(count: str) -> None:
    COUNTS[count](instruction("dma", words=3))
    with pytest.raises(ValueError, match="'nobody' is not a valid InstructionKind"):
        COUNTS[count](unknown("array"))


def test_unknown_op_of_a_program_is_refused() -> None:
    program, ctx = module()
    evaluate(program, ctx.weights, ARCH, inputs())
    other = Parser(ctx, "func.func @main() { func.return }").parse_module()
    for op in list(other.ops):
        op.detach()
        program.body.block.add_op(op)
    with pytest.raises(Refusal, match="op func.func does not belong to the array level"):
        evaluate(program, ctx.weights, ARCH, inputs())
