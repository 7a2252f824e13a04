"""A program as a tree of loops and instructions, decoded once for times, traffic and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cnncc.arch.model import LOOP_REGISTERS
from cnncc.errors import Refusal
from cnncc.isa.codec import check_structure, has_cores
from cnncc.isa.fields import When
from cnncc.isa.table import Instruction, InstructionKind
from cnncc.machine.traps import Trap

# Loop registers as bits of a mask. A register that no running loop uses counts as in its first and its last
# iteration (PROG-2), so a program starts with all of them set.
ALL_LOOPS = (1 << LOOP_REGISTERS) - 1


@dataclass(frozen=True)
class Leaf:
    """One instruction that is no loop: its number in the program and the offset of its first word."""

    index: int
    address: int
    instruction: Instruction

    def trap(self, happened: str) -> Trap:
        """The trap that this instruction runs into."""
        return Trap(self.index, self.address, self.instruction, happened)


@dataclass(frozen=True)
class LoopNode:
    """`loop count … end` (PROG-2).

    head: the `loop` instruction. last: the number of the `end`. register: the loop's register, equal to its depth.
    count: iterations.
    """

    head: Leaf
    last: int
    register: int
    body: tuple[Node, ...]
    count: int

    @property
    def first(self) -> int:
        """The number of the `loop` instruction."""
        return self.head.index

    @property
    def over_frames(self) -> bool:
        """Whether it runs over frames (CORE-8)."""
        return bool(self.head.instruction.number("frames"))


Node = LoopNode | Leaf


def leaves(nodes: Sequence[Node]) -> Iterator[Leaf]:
    """The instructions but loops and ends, in program order."""
    for node in nodes:
        if isinstance(node, LoopNode):
            yield from leaves(node.body)
        else:
            yield node


def first_transfers(nodes: Iterable[Node], direction: str) -> list[Leaf]:
    """The transfers in a direction that come before all other nodes."""
    transfers: list[Leaf] = []
    for node in nodes:
        if not isinstance(node, Leaf) or node.instruction.spec.kind is not InstructionKind.DMA:
            break
        if node.instruction.text("direction") != direction:
            break
        transfers.append(node)
    return transfers


def build_tree(instructions: Sequence[Instruction]) -> list[Node]:
    """The tree of a program without `core`, `halt` its last leaf.

    Raises: Refusal, for a program that is none (PROG-1, PROG-2) or has cores: `cores/programs.py` has a tree for each.
    """
    check_structure(instructions)
    if has_cores(instructions):
        raise Refusal("a program of cores is not one list of instructions: this is for programs without core")
    return tree_of(instructions)


def tree_of(instructions: Sequence[Instruction], first: int = 0, address: int = 0, frames: int = 1) -> list[Node]:
    """The tree of instructions whose structure was checked.

    first, address: the first instruction's number and word in the program. frames: of the run (CORE-8).
    """
    bodies: list[list[Node]] = [[]]
    heads: list[Leaf] = []
    for index, instruction in enumerate(instructions, first):
        leaf = Leaf(index, address, instruction)
        # CORE-8: of a descriptor over frames the height is the number of frames.
        if instruction.spec.kind is InstructionKind.DESC and instruction.number("frames"):
            leaf = Leaf(index, address, replace(instruction, values={**instruction.values, "height": frames}))
        match instruction.spec.name:
            case "loop":
                heads.append(leaf)
                bodies.append([])
            case "end":
                body = tuple(bodies.pop())
                head = heads.pop()
                bodies[-1].append(LoopNode(head, index, len(heads), body, iterations(head.instruction, frames)))
            case _:
                bodies[-1].append(leaf)
        address += instruction.spec.words
    return bodies[0]


def iterations(loop: Instruction, frames: int) -> int:
    """The iterations of a `loop` in a run of so many frames (PROG-2, CORE-8)."""
    return loop.number("count") + (frames - 1) * loop.number("frames")


def mask_of(when: When) -> int | None:
    """A condition's loop registers as a mask; None if it never holds."""
    return None if when is None else sum(1 << loop for loop in when)


def holds(when: When, loops: int) -> bool:
    """Whether a condition holds while the loop registers of mask `loops` are in their first (last) iteration.

    Rules: PROG-2.
    """
    mask = mask_of(when)
    return mask is not None and not mask & ~loops
