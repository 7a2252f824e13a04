"""The words of the GLB that each instruction reads and writes, in program order (DESC-2, DESC-3, COMMIT-5, DMA-1)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

import numpy as np

from cnncc.arch.model import DESCRIPTORS, LOOP_REGISTERS, Arch
from cnncc.isa.table import ADDRESSING, Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.program import ALL_LOOPS, Leaf, Node, holds
from cnncc.machine.values.addresses import Descriptor, Descriptors, Grid
from cnncc.machine.values.memory import OutOfRange, Place
from cnncc.machine.values.output_units import OutputUnit, place_of
from cnncc.machine.values.regfile import HalfFault
from cnncc.machine.values.strided import Strided, addresses_of
from cnncc.machine.values.transfer_addresses import sides

MOST_KNOWN = 1 << 14  # accesses that are kept, as loops come back to the same words
Accesses = tuple[Sequence[Place], Sequence[Place]]  # read, written


class AccessStep(NamedTuple):
    """An instruction when it is decoded. first, last: masks of the loop registers in their first, last iteration."""

    leaf: Leaf
    first: int
    last: int
    reads: Sequence[Place] = ()
    writes: Sequence[Place] = ()


@dataclass
class AccessWalk:
    """The state of the sequencer that addresses depend on.

    made: the instructions that made each descriptor, each where it ran last, and the settings of the output units (the
        last entry).
    known: accesses, by the instruction, what made its descriptors, and the places of these. They depend on no more.
    """

    arch: Arch
    descriptors: Descriptors = field(default_factory=Descriptors)
    index: list[int] = field(default_factory=lambda: [0] * LOOP_REGISTERS)
    unit: OutputUnit = field(default_factory=OutputUnit)
    made: list[tuple[int, ...]] = field(default_factory=lambda: [()] * (DESCRIPTORS + 1))
    known: dict[Hashable, Accesses] = field(default_factory=dict[Hashable, Accesses])

    def walk(self, nodes: Sequence[Node], first: int = ALL_LOOPS, last: int = ALL_LOOPS) -> Iterator[AccessStep]:
        """Every instruction that runs, `loop` and `end` apart. Raises Trap for a place that is one."""
        for node in nodes:
            if isinstance(node, Leaf):
                try:
                    step = self._step(node, first, last)
                except (HalfFault, OutOfRange, IndexError) as fault:
                    raise node.trap(str(fault)) from fault
                yield step
                continue
            bit = 1 << node.register
            for i in range(node.count):
                self.index[node.register] = i
                in_first = first | bit if i == 0 else first & ~bit
                yield from self.walk(node.body, in_first, last | bit if i == node.count - 1 else last & ~bit)
            self.index[node.register] = 0

    def _step(self, leaf: Leaf, first: int, last: int) -> AccessStep:
        inst, accesses = leaf.instruction, ((), ())
        kind = inst.spec.kind
        if kind not in ADDRESSING:
            return AccessStep(leaf, first, last)
        match kind:
            case Kind.DESC:
                self.descriptors.set(inst)
                self.made[inst.number("id")] = (leaf.index,)
            case Kind.STEP:
                self.descriptors.set(inst)
                # In the order of their last runs: a step takes the place of an earlier one of its kind (DESC-1).
                made = self.made[inst.number("id")]
                self.made[inst.number("id")] = (*(at for at in made if at != leaf.index), leaf.index)
            case Kind.UNIT:
                self.unit = OutputUnit.of(inst)
                self.made[-1] = (leaf.index,)
            case Kind.DMA:
                accesses = self._again(leaf, ["glb"], self._in_bounds(inst), lambda: self._transfer(inst))
            case Kind.LOAD:
                accesses = self._again(leaf, ["desc"], (), lambda: ((self._load(inst),), ()))
            case Kind.COMMIT:
                ends = holds(inst.when("fresh"), first), holds(inst.when("final"), last)
                accesses = self._again(leaf, self._operands(inst), ends, lambda: self._commit(inst, *ends))
            case _:
                assert_never(kind)
        return AccessStep(leaf, first, last, *accesses)

    def _again(self, leaf: Leaf, operands: Sequence[str], ends: Hashable, accesses: Callable[[], Accesses]) -> Accesses:
        """The accesses of an instruction with descriptors, computed once for each place where these are."""
        ids = [leaf.instruction.number(operand) for operand in operands]
        key = leaf.index, ends, self.made[-1], *((self.made[at], *self.descriptors[at].place(self.index)) for at in ids)
        if (known := self.known.get(key)) is None:
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            reads, writes = accesses()
            known = self.known[key] = [*map(_compact, reads)], [*map(_compact, writes)]
        return known

    def _operands(self, commit: Instruction) -> list[str]:
        """The descriptors of a commit."""
        return [
            "desc",
            *(["operand"] if commit.text("source") == "glb" else []),
            *(["sums"] if commit.number("partial") else []),
            *(["residual"] if self.unit.epilogue.factors is not None else []),
            *(["params"] if self.unit.params else []),
        ]

    def _in_bounds(self, dma: Instruction) -> Hashable:
        """What the words of a transfer depend on of its place in DRAM: rows and columns, where these have bounds."""
        descriptor = self.descriptors[dma.number("dram")]
        return (self.made[dma.number("dram")], *descriptor.place(self.index)[2:]) if descriptor.height else ()

    def _transfer(self, inst: Instruction) -> Accesses:
        place = sides(inst, self.index, self.descriptors, self.arch.glb.words)[1]
        return ((), (place,)) if inst.text("direction") == "in" else ((place,), ())

    def _load(self, inst: Instruction) -> Place:
        """The words inside the bounds: padding is not read."""
        grid, descriptor = Grid.of_load(inst), self.descriptors[inst.number("desc")]
        place, inside = addresses_of(inst, grid, self.index, descriptor)
        return place if inside is None or isinstance(place, Strided) else place[inside]

    def _commit(self, inst: Instruction, is_fresh: bool, is_final: bool) -> Accesses:
        grid, reads = Grid.of_results(inst), list[Place]()
        if inst.text("source") == "glb":
            reads.append(self._place(inst, grid, self.descriptors[inst.number("operand")]))
        if inst.number("partial"):
            at = self._sums(inst, grid)
            if not is_fresh:
                reads.append(at)
            if not is_final:
                return reads, [at]
        if self.unit.epilogue.factors is not None:
            reads.append(self._place(inst, grid, self.descriptors[inst.number("residual")]))
        if self.unit.params:
            params = self.descriptors[inst.number("params")]
            words = self.arch.words_per_param
            reads.append(self.unit.param_address(inst, grid, params, self.index, words))
        return reads, [self._place(inst, grid, self.descriptors[inst.number("desc")])]

    def _place(self, inst: Instruction, grid: Grid, descriptor: Descriptor) -> Place:
        return place_of(inst, grid, self.index, descriptor, "a word lies outside its tensor")

    def _sums(self, inst: Instruction, grid: Grid) -> Place:
        """The words of partial sums (COMMIT-5)."""
        descriptor, words = self.descriptors[inst.number("sums")], self.arch.words_per_sum
        place = self._place(inst, grid, replace(descriptor, base=0))
        if isinstance(place, Strided):
            steps = (*(words * step for step in place.steps), 1)
            return Strided(descriptor.base + words * place.start, (*place.sizes, words), steps)
        return descriptor.base + words * place[..., None] + np.arange(words)


def _compact(place: Place) -> Place:
    return place.compact() if isinstance(place, Strided) else place
