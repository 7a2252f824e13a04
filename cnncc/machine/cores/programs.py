"""The programs of cores: the tree and the own array of each, and the routes between them (CORE-1 to CORE-3, CORE-8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cnncc.arch.model import Arch, core_arch
from cnncc.errors import Refusal
from cnncc.isa.codec import check_structure, has_cores
from cnncc.isa.table import Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.program import Leaf, LoopNode, Node, leaves, mask_of, tree_of

Semaphore = tuple[int, int]  # core, number
MOST_FRAMES = (1 << 16) - 1  # the height of a descriptor


@dataclass(frozen=True)
class Core:
    """A core: its number, its program as a tree, the array as its program sees it (`core_arch`)."""

    number: int
    tree: Sequence[Node]
    arch: Arch

    @property
    def head(self) -> Instruction:
        """Its `core` instruction, in a program of cores."""
        return self._leaf(0).instruction

    @property
    def region(self) -> dict[str, int]:
        """Its rectangle of PEs in the array."""
        return {name: self.head.number(name) for name in ("row0", "rows", "col0", "cols")}

    @property
    def first(self) -> int:
        """The number of its first instruction."""
        return self._leaf(0).index

    @property
    def last(self) -> int:
        """The number of its `halt`."""
        return self._leaf(-1).index

    def _leaf(self, at: int) -> Leaf:
        leaf = self.tree[at]
        assert isinstance(leaf, Leaf)  # `core` and `halt` stand in no loop
        return leaf

    @cached_property
    def leaves(self) -> Sequence[tuple[Leaf, int]]:
        """All instructions but loops and ends, in order, with the number of loops around each."""
        return list(_leaves(self.tree, 0))


def sets_descriptors(loop: LoopNode) -> bool:
    """Whether a loop of the program sets descriptors."""
    return any(leaf.instruction.spec.kind in (Kind.DESC, Kind.STEP) for leaf in leaves(loop.body))


def _leaves(nodes: Sequence[Node], depth: int) -> Iterator[tuple[Leaf, int]]:
    for node in nodes:
        if isinstance(node, LoopNode):
            yield from _leaves(node.body, depth + 1)
        else:
            yield node, depth


def has_frames(instructions: Sequence[Instruction]) -> bool:
    """Whether a program runs over frames: its images are records, one after the other (CORE-8)."""
    if not has_cores(instructions):
        return False
    return any(inst.spec.kind in (Kind.LOOP, Kind.DESC) and inst.number("frames") for inst in instructions)


def cores_of(instructions: Sequence[Instruction], arch: Arch, frames: int = 1) -> list[Core]:
    """The cores of a program, in a run of so many frames. A program without `core` is one core with all PEs.

    Raises: Refusal, for a program that is none, or too many frames.
    """
    check_structure(instructions)
    if frames > MOST_FRAMES:
        raise Refusal(f"{frames} frames, a run has at most {MOST_FRAMES} (CORE-8)")
    cores: list[Core] = []
    first = address = 0
    for at, inst in enumerate(instructions):
        if inst.spec.kind is Kind.HALT:
            part = instructions[first : at + 1]
            head = part[0]
            own = core_arch(arch, head.number("rows"), head.number("cols")) if head.spec.kind is Kind.CORE else arch
            cores.append(Core(len(cores), tree_of(part, first, address, frames), own))
            first, address = at + 1, address + sum(each.spec.words for each in part)
    return cores


@dataclass(frozen=True)
class TokenUse:
    """An instruction of a core that gives or takes tokens of a semaphore of its own. depth: loops around it."""

    core: int
    leaf: Leaf
    depth: int

    def __str__(self) -> str:
        inst = self.leaf.instruction
        return f"core {self.core}, instruction {self.leaf.index} ({inst.spec.name})"


TokenUses = Mapping[Semaphore, Sequence[TokenUse]]


@dataclass(frozen=True)
class Wiring:
    """The semaphores of all cores.

    - routes: where the tokens of a semaphore go that has routes
    - gives, takes: by a core's own number, the instructions that give and take
    """

    routes: Mapping[Semaphore, Sequence[Semaphore]]
    gives: TokenUses
    takes: TokenUses

    def targets(self, semaphore: Semaphore) -> Sequence[Semaphore]:
        """The semaphores that tokens given to one go to (CORE-3)."""
        return self.routes.get(semaphore, (semaphore,))

    @cached_property
    def sources(self) -> Mapping[Semaphore, Sequence[Semaphore]]:
        """The semaphores with a route to a semaphore."""
        sources: dict[Semaphore, list[Semaphore]] = {}
        for source, targets in self.routes.items():
            for target in targets:
                sources.setdefault(target, []).append(source)
        return sources

    @cached_property
    def shared(self) -> frozenset[Semaphore]:
        """The semaphores that a route begins or ends at: their tokens are not a core's own matter."""
        return frozenset(self.routes) | frozenset(self.sources)


def wiring_of(cores: Sequence[Core]) -> Wiring:
    """All routes of a program, and all uses of its semaphores."""
    routes: dict[Semaphore, list[Semaphore]] = {}
    gives: dict[Semaphore, list[TokenUse]] = {}
    takes: dict[Semaphore, list[TokenUse]] = {}
    for core in cores:
        for leaf, depth in core.leaves:
            inst = leaf.instruction
            if inst.spec.kind is Kind.ROUTE:
                target = (inst.number("core"), inst.number("to"))
                routes.setdefault((core.number, inst.number("semaphore")), []).append(target)
            for number in tokens_of(inst, "take"):
                takes.setdefault((core.number, number), []).append(TokenUse(core.number, leaf, depth))
            for number in tokens_of(inst, "give"):
                gives.setdefault((core.number, number), []).append(TokenUse(core.number, leaf, depth))
    return Wiring(routes, gives, takes)


def tokens_of(inst: Instruction, action: str) -> Sequence[int]:
    """The semaphore whose tokens an instruction gives (`give`) or takes (`take`) at some time, if there is one."""
    if inst.spec.kind is Kind.SIGNAL:
        return [inst.number("semaphore")] if action == "give" else []
    # Of the table's rows those with `take` and `give` use semaphores (TOKEN-4).
    if action not in inst.spec.by_name or mask_of(inst.when(f"{action}_when")) is None:
        return []
    return [inst.number(action)] if inst.number(action) else []
