"""Texts of loops: all data that the times of a program depend on. Equal texts take equal times (TIME-1 to TIME-4)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from typing import assert_never

from cnncc.arch.model import Arch
from cnncc.isa.table import Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.instruction_sizes import UnitSettings
from cnncc.machine.program import Leaf, LoopNode, Node, leaves
from cnncc.machine.times.durations import Occupancy, occupancy
from cnncc.machine.times.tasks import ENGINES, EngineTask, task_of


def waits_for(sync: Instruction) -> tuple[int, ...]:
    """The engines that a `sync` names."""
    return tuple([i for i, engine in enumerate(ENGINES) if sync.number(engine)])


def constant_transfers(tree: Sequence[Node], words: int) -> frozenset[int]:
    """The transfers, by number, of weights and parameters: those lie in the first `words` words of DRAM (CAUSE-6)."""
    constants: set[int] = set()
    bases: dict[int, int] = {}
    for leaf in leaves(tree):
        inst = leaf.instruction
        if inst.spec.kind is Kind.DESC:
            bases[inst.number("id")] = inst.number("base")
        elif inst.spec.kind is Kind.DMA and bases.get(inst.number("dram"), 0) < words:
            constants.add(leaf.index)
    return frozenset(constants)


class LoopTexts:
    """The tasks and durations of a program's instructions, and the numbers of its loops' texts.

    owner: by instruction, the layer that it counts for. constants: the transfers of weights and parameters.
    """

    def __init__(self, arch: Arch, owner: Sequence[int], constants: Set[int] = frozenset()) -> None:
        self.arch = arch
        self.owner = owner
        self.constants = constants
        self._tasks: dict[int, EngineTask] = {}
        self._occupancies: dict[tuple[int, UnitSettings], Occupancy] = {}
        self._edge_masks: dict[int, tuple[int, int]] = {}
        self._numbers: dict[tuple[int, UnitSettings], int] = {}
        self._distinct: dict[Hashable, int] = {}

    def task(self, leaf: Leaf) -> EngineTask:
        """The task of an engine's instruction."""
        if (task := self._tasks.get(leaf.index)) is None:
            task = self._tasks[leaf.index] = task_of(leaf.instruction)
        return task

    def occupancy(self, leaf: Leaf, unit: UnitSettings) -> Occupancy:
        """The occupancy of an engine's instruction."""
        key = (leaf.index, unit)
        if (known := self._occupancies.get(key)) is None:
            known = self._occupancies[key] = occupancy(leaf.instruction, unit, self.arch, leaf.index in self.constants)
        return known

    def edge_masks(self, loop: LoopNode) -> tuple[int, int]:
        """Masks of the loop registers whose first, last iterations matter inside a loop."""
        if loop.first not in self._edge_masks:
            first = last = 0
            for node in loop.body:
                if isinstance(node, LoopNode):
                    inner_first, inner_last = self.edge_masks(node)
                    first, last = first | inner_first, last | inner_last
                elif node.instruction.spec.engine in ENGINES:
                    for token in self.task(node).takes:
                        first |= token.mask
                    for token in self.task(node).gives:
                        last |= token.mask
            self._edge_masks[loop.first] = (first, last)
        return self._edge_masks[loop.first]

    def number(self, loop: LoopNode, unit: UnitSettings) -> int:
        """The number of a loop's text, from settings `unit` on. Loops of one number are the same for the clock.

        A text holds each instruction's task, occupancy and owner (less the loop's), and the registers of inner loops.
        A loop that sets up the output units has a text of its own.
        """
        key = (loop.first, unit)
        if (number := self._numbers.get(key)) is None:
            first_owner = self.owner[loop.first]
            text = tuple([self._part(node, first_owner, unit) for node in loop.body])
            number = self._numbers[key] = self._distinct.setdefault(text, len(self._distinct))
        return number

    def _part(self, node: Node, first_owner: int, unit: UnitSettings) -> Hashable:
        """One node's part of a text."""
        if isinstance(node, LoopNode):
            return self.owner[node.first] - first_owner, node.register, node.count, self.number(node, unit)
        inst, owner = node.instruction, self.owner[node.index] - first_owner
        match kind := inst.spec.kind:
            case Kind.UNIT:
                return "unit", node.index
            # They take a cycle of the sequencer, whatever they set.
            case Kind.DESC | Kind.STEP | Kind.CORE | Kind.ROUTE:
                return owner
            case Kind.HOST | Kind.HALT:
                return owner, kind
            case Kind.SYNC:
                return owner, "sync", waits_for(inst)
            case Kind.SIGNAL:
                return owner, "signal", inst.number("semaphore"), inst.number("count")
            case Kind.DMA | Kind.LOAD | Kind.MAC | Kind.TABLE | Kind.COMMIT:
                return owner, self.task(node), self.occupancy(node, unit)
            case Kind.LOOP | Kind.END:
                raise AssertionError(f"{kind} is no leaf of a program's tree")
            case _:
                assert_never(kind)
