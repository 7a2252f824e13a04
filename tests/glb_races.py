"""Finds races for words of the GLB: with times and addresses from two plain machines, both written from the docs.

Values follow program order (rule PROG-5), so that a token too few changes none of them. Here each access has a time: an
instruction reads from its start to its end, and writes until it is done. Of two accesses to one word, one of them a
write, the earlier one in program order must be over when the later one starts. Accesses of one engine are in its order.
`cnncc/machine/races.py` needs no times; it must see all that is seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from plain_machine import PlainMachine
from test_machine_times import Plain, Point
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import Arch
from cnncc.context import CompilerContext
from cnncc.dialects.array import TensorOp
from cnncc.dialects.weights import GlobalOp, constant_array
from cnncc.isa.table import Instruction
from cnncc.machine.races import races as ordered_races

NAMES = ("dma", "load", "mac", "unit", "table", "commit")


class Accesses(PlainMachine):
    """A machine that notes the words of the GLB that each instruction of an engine reads and writes."""

    def __init__(self, arch: Arch, dram: list[int]) -> None:
        super().__init__(arch, dram)
        self.log: list[tuple[Instruction, set[int], set[int]]] = []
        for name in NAMES:
            setattr(self, f"do_{name}", partial(self.noted, getattr(self, f"do_{name}")))

    def noted(self, rule: Callable[[Instruction], None], inst: Instruction) -> None:
        self.log.append((inst, set(), set()))
        rule(inst)

    def read_glb(self, address: int) -> int:
        self.log[-1][1].add(address)
        return super().read_glb(address)

    def write_glb(self, address: int, word: int) -> None:
        self.log[-1][2].add(address)
        super().write_glb(address, word)


class Window(NamedTuple):
    """When an instruction starts, ends and is done."""

    start: int
    end: int
    done: int


class Windows(Plain):
    """A machine that notes when each instruction of an engine runs."""

    def __init__(self, program: list[Instruction], arch: Arch) -> None:
        super().__init__(program, arch, [])
        self.log: list[Window] = []

    def charge(self, number: int, end: Point, ended_by: object) -> None:
        """Causes are not asked for."""

    def step(self, at: int, inst: Instruction, firsts: list[bool], lasts: list[bool]) -> None:
        super().step(at, inst, firsts, lasts)
        if inst.spec.name in NAMES:
            event, _ = self.starts[inst.spec.engine][-1]
            self.log.append(Window(event.start, event.at("end"), event.at("done")))


def accesses(
    program: Sequence[Instruction], arch: Arch, dram: list[int]
) -> Iterator[tuple[str, Window, set[int], set[int]]]:
    """Engine, times, words read and words written of each instruction, in program order."""
    machine, clock = Accesses(arch, dram), Windows(list(program), arch)
    machine.run(program)
    clock.run()
    for (inst, reads, writes), window in zip(machine.log, clock.log, strict=True):
        yield inst.spec.engine, window, reads, writes


def races(program: Sequence[Instruction], arch: Arch, dram: list[int]) -> list[str]:
    """What goes wrong, in program order."""
    engines = ("dma", "load", "commit")
    read: dict[str, dict[int, int]] = {engine: {} for engine in engines}  # when the last read of a word ends
    written: dict[str, dict[int, int]] = {engine: {} for engine in engines}  # when the last write of a word is done
    found: list[str] = []
    for number, (engine, window, reads, writes) in enumerate(accesses(program, arch, dram)):
        others = [other for other in engines if other != engine]
        for word in reads | writes:
            for other in others:
                if written[other].get(word, 0) > window.start:
                    found.append(f"{engine} {number} uses word {word} at {window.start}, before {other} has written it")
                if word in writes and read[other].get(word, 0) > window.start:
                    found.append(f"{engine} {number} writes word {word} at {window.start}, before {other} has read it")
        if engine in engines:  # all others use no words
            read[engine].update(dict.fromkeys(reads, window.end))
            written[engine].update(dict.fromkeys(writes, window.done))
    return found


def both_races(program: Sequence[Instruction], arch: Arch, dram: list[int]) -> list[str]:
    """What goes wrong at these times, and what may go wrong at others (`cnncc/machine/races.py`)."""
    return [*races(program, arch, dram), *map(str, ordered_races(program, arch)[0])]


def dram_of(module: ModuleOp, ctx: CompilerContext, inputs: Mapping[str, np.ndarray]) -> list[int]:
    """The words of DRAM before a module runs, 0 where there are none yet."""
    tensors = [op.record.data for op in module.ops if isinstance(op, TensorOp) and op.record.data.memory == "dram"]
    arrays = {op.sym_name.data: constant_array(op, ctx.weights) for op in module.ops if isinstance(op, GlobalOp)}
    dram = [0] * max(tensor.at + tensor.words for tensor in tensors)
    for tensor in tensors:
        if (words := {**arrays, **inputs}.get(tensor.name)) is not None:
            dram[tensor.at : tensor.at + tensor.words] = words.ravel().tolist()
    return dram
