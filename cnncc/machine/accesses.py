"""The words of the GLB that each instruction reads and writes, in program order (DESC-2, DESC-3, COMMIT-5, DMA-1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np

from cnncc.arch.model import LOOP_REGISTERS, Arch
from cnncc.isa.table import ADDRESSING, Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.program import ALL_LOOPS, Leaf, Node, holds
from cnncc.machine.values.addresses import Descriptor, Grid, position
from cnncc.machine.values.memory import OutOfRange, Place
from cnncc.machine.values.output_units import OutputUnit, pattern_of, place_of
from cnncc.machine.values.regfile import HalfFault
from cnncc.machine.values.strided import even
from cnncc.machine.values.transfer_addresses import sides


@dataclass(frozen=True)
class AccessStep:
    """An instruction when it is decoded. first, last: masks of the loop registers in their first, last iteration."""

    leaf: Leaf
    first: int
    last: int
    reads: Sequence[Place] = ()
    writes: Sequence[Place] = ()


@dataclass
class AccessWalk:
    """The state of the sequencer that addresses depend on."""

    arch: Arch
    descriptors: list[Descriptor] = field(default_factory=lambda: [Descriptor() for _ in range(16)])
    index: list[int] = field(default_factory=lambda: [0] * LOOP_REGISTERS)
    unit: OutputUnit = field(default_factory=OutputUnit)

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
        inst, reads, writes = leaf.instruction, list[Place](), list[Place]()
        kind = inst.spec.kind
        if kind not in ADDRESSING:
            return AccessStep(leaf, first, last)
        match kind:
            case Kind.DESC:
                self.descriptors[inst.number("id")] = Descriptor.of(inst)
            case Kind.STEP:
                term = inst.term("by")
                self.descriptors[inst.number("id")].steps[inst.number("loop"), term.axis == "lin"] = term
            case Kind.UNIT:
                self.unit = OutputUnit.of(inst)
            case Kind.DMA:
                (writes if inst.text("direction") == "in" else reads).append(self._transfer(inst))
            case Kind.LOAD:
                reads.append(self._load(inst))
            case Kind.COMMIT:
                self._commit(inst, first, last, reads, writes)
            case _:
                assert_never(kind)
        return AccessStep(leaf, first, last, reads, writes)

    def _transfer(self, inst: Instruction) -> Place:
        return sides(inst, self.index, self.descriptors, self.arch.glb.words)[1]

    def _load(self, inst: Instruction) -> Place:
        """The words inside the bounds: padding is not read."""
        whole = Grid.of(inst, inst.number("set_rows"), inst.number("set_cols"))
        grid, descriptor = replace(whole, edge=bool(inst.number("edge"))), self.descriptors[inst.number("desc")]
        pattern = [(inst.number(f"extent{i}"), inst.term(f"term{i}")) for i in range(4)]
        where = even(inst, grid, self.index, pattern, descriptor)
        unbounded = where is not None and (not descriptor.height or where.inside(descriptor.height, descriptor.width))
        if where is not None and unbounded and (addresses := where.addresses(descriptor)) is not None:
            return addresses
        address, inside = position(inst, grid, self.index, pattern).address(descriptor)
        return address if inside is None else address[inside]

    def _commit(self, inst: Instruction, first: int, last: int, reads: list[Place], writes: list[Place]) -> None:
        grid = Grid.of(inst, inst.number("set_rows"), inst.number("set_cols"))
        grid = replace(grid, rows=1, set_rows=1) if inst.number("reduce") else grid
        if inst.text("source") == "glb":
            reads.append(self._place(inst, grid, self.descriptors[inst.number("operand")]))
        if inst.number("partial"):
            at = self._sums(inst, grid)
            if not holds(inst.when("fresh"), first):
                reads.append(at)
            if not holds(inst.when("final"), last):
                writes.append(at)
                return
        writes.append(self._place(inst, grid, self.descriptors[inst.number("desc")]))
        if self.unit.epilogue.factors is not None:
            reads.append(self._place(inst, grid, self.descriptors[inst.number("residual")]))
        if self.unit.params:
            params = self.descriptors[inst.number("params")]
            words = self.arch.words_per_param
            reads.append(self.unit.param_address(inst, grid, pattern_of(inst), params, self.index, words))

    def _place(self, inst: Instruction, grid: Grid, descriptor: Descriptor) -> Place:
        return place_of(inst, grid, self.index, pattern_of(inst), descriptor, "a word lies outside its tensor")

    def _sums(self, inst: Instruction, grid: Grid) -> Place:
        """The words of partial sums (COMMIT-5)."""
        descriptor, words = self.descriptors[inst.number("sums")], self.arch.words_per_sum
        place = self._place(inst, grid, replace(descriptor, base=0))
        listed = place if isinstance(place, np.ndarray) else place.listed()
        return descriptor.base + words * listed[..., None] + np.arange(words)
