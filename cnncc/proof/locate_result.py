"""The instruction and the PE that wrote a word: a program runs again, on numbers of results instead of values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from cnncc.arch.model import Arch
from cnncc.arch.operations import MacOperation
from cnncc.binary.container import Binary
from cnncc.isa.codec import has_cores
from cnncc.isa.table import Instruction, InstructionKind
from cnncc.machine.cores.core_walk import run_together
from cnncc.machine.program import LoopNode, build_tree
from cnncc.machine.values.addresses import Grid, Ints
from cnncc.machine.values.degrees import Degrees
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.output_units import OutputUnit
from cnncc.machine.values.regfile import PsumHalf, Words
from cnncc.machine.values.strided import Strided
from cnncc.proof.program_run import ProgramRun, degree_run

DIGIT_BITS = 14  # of the digits of a number: each is a word of an image of its own
DIGITS = 3
FIRST = 2 << DIGIT_BITS * (DIGITS - 1)  # above what words hold that no commit has written

TensorReader = Callable[[ProgramRun], Ints]  # a tensor's words, [draw * batch, …]


@dataclass(frozen=True)
class _Commit:
    """A commit that was done: its loops' indices, the number of its first result, their shape [*grid, *pattern]."""

    inst: Instruction
    loops: tuple[int, ...]
    first: int
    grid: Grid

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.grid.shape, *self.inst.extents)

    def pe(self, number: int) -> tuple[int, int]:
        """The PE of a result; of psums added up along a column, the last one."""
        row_set, row, col_set, col, *_ = np.unravel_index(number - self.first, self.shape)
        rows = self.inst.number("set_rows") if self.inst.number("reduce") else self.grid.rows
        last = rows - 1 if self.inst.number("reduce") else int(row)
        return self.grid.row0 + int(row_set) * rows + last, self.grid.col0 + int(col_set) * self.grid.cols + int(col)


class _Numbers(Degrees):
    """Results are numbers, in the order of commits, as digits along the axis of images. Nothing else is computed."""

    def __init__(self, arch: Arch) -> None:
        super().__init__(arch)
        self.commits: list[_Commit] = []

    def add(
        self,
        operation: MacOperation,
        sums: PsumHalf,
        slots: Strided,
        x: Words,
        w: Words | None,
        reduced: Mapping[int, int],
    ) -> bool:
        return True

    def results(self, unit: OutputUnit, sums: Ints, params: Ints | None, residual: Ints | None) -> Ints:
        commit = self.commits[-1]
        numbers = commit.first + np.arange(prod(commit.shape)).reshape(commit.shape)
        return np.stack([numbers >> DIGIT_BITS * digit & (1 << DIGIT_BITS) - 1 for digit in range(DIGITS)])

    def begin(self, rule: Callable[[Instruction], None], interpreter: Interpreter, inst: Instruction) -> None:
        """Run a commit, whose results get the next numbers."""
        before = self.commits[-1] if self.commits else None
        first = before.first + prod(before.shape) if before else FIRST
        loops = tuple(int(i) for i, count in zip(interpreter.index, interpreter.count, strict=True) if count > 1)
        self.commits.append(_Commit(inst, loops, first, Grid.of_results(inst)))
        rule(inst)


def _number(interpreter: Interpreter, numbers: _Numbers) -> None:
    """Have an interpreter number the results of its commits."""
    interpreter.block_elements = 0  # one by one, so that each commit has its own loops
    if (rule := interpreter.rules[InstructionKind.COMMIT]) is not None:
        interpreter.rules[InstructionKind.COMMIT] = partial(numbers.begin, rule, interpreter)


def locate_result(binary: Binary, end: int, read: TensorReader, frames: int) -> str:
    """The commit that wrote a word, when the instructions before number `end` are done; of cores, all of them.

    read: the word, as [digit] of its images.
    """
    numbers = _Numbers(binary.arch)
    run = degree_run(binary, numbers, DIGITS, frames)
    if has_cores(binary.instructions):
        cores = run.cores()
        for core in cores:
            _number(core.interpreter, numbers)
        run_together(cores)
    else:
        interpreter = run.interpreter()
        _number(interpreter, numbers)
        for node in build_tree(binary.instructions):
            if (node.first if isinstance(node, LoopNode) else node.index) >= end:
                break
            interpreter.run([node])
    number = sum(int(digit) << DIGIT_BITS * place for place, digit in enumerate(read(run)))
    if number < FIRST:
        return "no commit wrote it"
    commit = numbers.commits[bisect_right([each.first for each in numbers.commits], number) - 1]
    # `is`: other instructions of the program may be equal.
    index = next(i for i, inst in enumerate(binary.instructions) if inst is commit.inst)
    loops = f", iteration {', '.join(map(str, commit.loops))}" if commit.loops else ""
    pe = ", PE {},{}".format(*commit.pe(number)) if commit.inst.text("source") == "psum" else ""
    return f"written by instruction {index}{loops}{pe}"
