"""The banks of the GLB that each engine of each core reads and writes: one reader and one writer a bank (CORE-5).

The words of an instruction are taken to be all between its least and its greatest address, over all iterations of the
loops around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import assert_never

from cnncc.arch.model import LOOP_REGISTERS, Arch, Glb
from cnncc.errors import Refusal
from cnncc.isa.fields import FieldTerm
from cnncc.isa.table import ADDRESSING, CHANGING_SETTINGS, Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.cores.programs import Core
from cnncc.machine.instruction_sizes import UnitSettings
from cnncc.machine.program import Leaf, LoopNode, Node, leaves
from cnncc.machine.values.addresses import Descriptor, Descriptors

Span = tuple[int, int]  # the least and the greatest address
Terms = Sequence[tuple[FieldTerm, int]]  # each with its greatest index
READS, WRITES = "read", "written"


def check_banks(cores: Sequence[Core], arch: Arch) -> None:
    """Refuse a bank with two readers, or two writers. Raises Refusal."""
    users: dict[tuple[str, int], tuple[int, Leaf]] = {}
    words = arch.glb.bank_words
    for core in cores:
        for leaf, how, span in spans_of(core):
            for bank in banks_of(span, arch.glb):
                number, first = users.setdefault((how, bank), (core.number, leaf))
                if (number, first.instruction.spec.engine) != (core.number, leaf.instruction.spec.engine):
                    raise Refusal(
                        f"bank {bank} of the GLB, words {bank * words} to {(bank + 1) * words - 1}, is {how} by "
                        f"{_name(number, first)} and by {_name(core.number, leaf)}: a bank is {how} by one engine of "
                        f"one core (glb.banks, CORE-5): move the words of one to another bank"
                    )


def spans_of(core: Core) -> Iterator[tuple[Leaf, str, Span]]:
    """The instructions of a core that use the GLB: how, and the words between the least and the greatest address."""
    return _SpanWalk(core.arch).run(core.tree)


def banks_of(span: Span, glb: Glb) -> range:
    """The banks that the words of a span lie in."""
    words = glb.bank_words
    # An address outside the GLB is a trap of the run (MEM-3), and in no bank.
    return range(max(0, span[0]) // words, min(span[1], glb.words - 1) // words + 1)


def _name(core: int, leaf: Leaf) -> str:
    return f"core {core}, instruction {leaf.index} ({leaf.instruction.spec.name})"


@dataclass
class _SpanWalk:
    """The descriptors and output units while a program is walked through, each loop body twice at most."""

    arch: Arch
    descriptors: Descriptors = field(default_factory=Descriptors)
    unit: UnitSettings = UnitSettings()
    last: list[int] = field(default_factory=lambda: [0] * LOOP_REGISTERS)  # the greatest index of each loop

    def run(self, nodes: Sequence[Node]) -> Iterator[tuple[Leaf, str, Span]]:
        """Each instruction with how it uses words of the GLB, and which."""
        for node in nodes:
            if isinstance(node, LoopNode):
                self.last[node.register] = node.count - 1
                # What a body sets is in force when it begins anew.
                for _ in range(min(node.count, 1 + _sets(node.body))):
                    yield from self.run(node.body)
                self.last[node.register] = 0
            else:
                for how, span in self._spans(node.instruction):
                    yield node, how, span

    def _spans(self, inst: Instruction) -> Iterator[tuple[str, Span]]:
        kind = inst.spec.kind
        if kind not in ADDRESSING:
            return
        match kind:
            case Kind.DESC | Kind.STEP:
                self.descriptors.set(inst)
            case Kind.UNIT:
                self.unit = UnitSettings.of(inst)
            case Kind.DMA:
                terms = [
                    (FieldTerm("lin", inst.number("glb_step")), inst.number("count") - 1),
                    (FieldTerm("y", 1), inst.number("rows") - 1),
                    (FieldTerm("x", 1), inst.number("words") - 1),
                ]
                how = WRITES if inst.text("direction") == "in" else READS
                yield how, self._span(self._descriptor(inst, "glb"), inst, terms, "glb_offset")
            case Kind.LOAD:
                descriptor = self._descriptor(inst, "desc")
                yield READS, self._span(descriptor, inst, position_terms(inst), "offset", inside=True)
            case Kind.COMMIT:
                yield from self._commit(inst)
            case _:
                assert_never(kind)

    def _descriptor(self, inst: Instruction, name: str) -> Descriptor:
        return self.descriptors[inst.number(name)]

    def _commit(self, inst: Instruction) -> Iterator[tuple[str, Span]]:
        terms = position_terms(inst)
        yield WRITES, self._span(self._descriptor(inst, "desc"), inst, terms, "offset")
        if inst.text("source") == "glb":
            yield READS, self._span(self._descriptor(inst, "operand"), inst, terms, "offset")
        if self.unit.residual:
            yield READS, self._span(self._descriptor(inst, "residual"), inst, terms, "offset")
        if self.unit.bias or self.unit.scale:
            yield READS, self._params(inst, terms)
        if inst.number("partial"):
            descriptor, words = self._descriptor(inst, "sums"), self.arch.words_per_sum
            low, high = self._span(descriptor, inst, terms, "offset")
            # COMMIT-5: the partial sum of word base + p begins at word base + p * words.
            sums = (
                descriptor.base + words * (low - descriptor.base),
                descriptor.base + words * (high + 1 - descriptor.base) - 1,
            )
            yield READS, sums
            yield WRITES, sums

    def _params(self, inst: Instruction, terms: Terms) -> Span:
        """COMMIT-2: channels lie one after the other; loops count by their linear steps alone."""
        descriptor = self._descriptor(inst, "params")
        words = (self.unit.bias + self.unit.scale) * self.arch.words_per_param
        low, high = self._linear(descriptor, inst.number("param") * words)
        first, last = reach([(term.step, most) for term, most in terms if term.axis == "k"])
        return low + first * words, high + (last + 1) * words - 1

    def _span(self, descriptor: Descriptor, inst: Instruction, terms: Terms, offset: str, inside: bool = False) -> Span:
        """DESC-2, DMA-1. inside: only words inside the bounds are used."""
        ends = {"lin": self._linear(descriptor, inst.number(offset))}
        starts = {"k": inst.values.get("channel", 0), "y": inst.number("y"), "x": inst.number("x")}
        loops = [(term, self.last[register]) for (register, linear), term in descriptor.steps.items() if not linear]
        for axis, start in starts.items():
            assert isinstance(start, int)
            low, high = reach([(term.step, most) for term, most in (*terms, *loops) if term.axis == axis])
            ends[axis] = start + low, start + high
        more = reach([(term.step, most) for term, most in terms if term.axis == "lin"])
        # DESC-3: padding is not read, whatever the rings. So a span is cut before it is wrapped.
        if inside and descriptor.height:
            ends |= {axis: _cut(ends[axis], size) for axis, size in (("y", descriptor.height), ("x", descriptor.width))}
        ends |= {axis: _ring(ends[axis], size) for axis, size in (("y", descriptor.ring_y), ("x", descriptor.ring_x))}
        units: Mapping[str, int] = {"lin": 1, "k": descriptor.plane, "y": descriptor.pitch, "x": descriptor.column}
        low, high = (sum(units[axis] * ends[axis][side] for axis in units) + more[side] for side in (0, 1))
        return low, high

    def _linear(self, descriptor: Descriptor, offset: int) -> Span:
        """base + (offset + linear terms of the loops) mod wrap."""
        steps = [(term.step, self.last[register]) for (register, linear), term in descriptor.steps.items() if linear]
        low, high = reach(steps)
        grid = gcd(descriptor.wrap, *(step for step, most in steps if most))  # all offsets are as far apart
        low, high = _ring((offset + low, offset + high), descriptor.wrap, grid)
        return descriptor.base + low, descriptor.base + high


def _sets(nodes: Sequence[Node]) -> bool:
    """Whether nodes change descriptors or output units."""
    return any(leaf.instruction.spec.kind in CHANGING_SETTINGS for leaf in leaves(nodes))


def position_terms(inst: Instruction) -> Terms:
    """The terms of the pattern and the PEs of a load or a commit (LOAD-1, COMMIT-1, DESC-4)."""
    terms = [(term, extent - 1) for extent, term in inst.pattern]
    for side in ("row", "col"):
        count, size = inst.number(f"{side}s"), inst.number(f"set_{side}s")
        terms += [(inst.term(side), min(count, size) - 1), (inst.term(f"{side}_set"), (count - 1) // size)]
    return terms


def reach(steps: Sequence[tuple[int, int]]) -> Span:
    """The least and the greatest sum of step * index, each index from 0 to its greatest."""
    return sum(min(0, step * most) for step, most in steps), sum(max(0, step * most) for step, most in steps)


def _cut(ends: Span, size: int) -> Span:
    return max(0, min(ends[0], size - 1)), max(0, min(ends[1], size - 1))


def _ring(ends: Span, size: int, grid: int = 1) -> Span:
    """Both ends in a ring; the whole ring where its seam lies between. grid: positions lie so far apart."""
    if not size:
        return ends
    low, high = ends
    return (low % size, high % size) if low // size == high // size else (low % grid, size - grid + low % grid)
