"""Blocks: loops that run at once, as array axes, instead of one iteration after the other.

A loop nest may become a block if the order of its iterations cannot matter:

1. Every half is filled, used and given back within one iteration, except psums that the innermost loops accumulate.
2. The block writes no GLB word that it reads, except partial sums by the commit that adds to them (`partial_sums.py`).
3. No word is written twice. Where an iteration ends with transfers to DRAM, it may write those of the ones before.

`independent` decides the first from conditions and scopes alone. `LoopBlock.check_order` checks the others after the
block has run, when its addresses are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple, assert_never

import numpy as np

from cnncc.isa.fields import When
from cnncc.isa.table import MOVING_WORDS, Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.instruction_sizes import ceil_div, commit_results, dma_words, load_words, step_sums
from cnncc.machine.mac_operations import keeps_greatest, operands_of
from cnncc.machine.program import Leaf, LoopNode, Node, leaves
from cnncc.machine.values.addresses import Descriptor, Index, Ints, Mask
from cnncc.machine.values.loop_fetches import FetchedWords, WordReader, leading_fetches
from cnncc.machine.values.loop_stores import IterationWrites, by_iteration, is_still, trailing_stores
from cnncc.machine.values.memory import Memory, Place, fill, overlap, reach
from cnncc.machine.values.regfile import Words
from cnncc.machine.values.strided import Strided
from cnncc.machine.values.transfer_addresses import sides

Registers = tuple[int, ...]

_LEAST_COPY = 1 << 10  # words; a smaller copy of a transfer's words costs as much, so it counts as much

_RUNNABLE = (Kind.LOAD, Kind.MAC, Kind.COMMIT)  # others change settings or wait, in program order
_CONDITIONS = ("open", "close", "take_weight", "give_weight", "take_ifmap", "give_ifmap", "clear", "send")


def depth(node: Node) -> int:
    """The depth of a node's loops; loops with one iteration do not count."""
    if not isinstance(node, LoopNode):
        return 0
    return (node.count > 1) + max((depth(inner) for inner in node.body), default=0)


@dataclass
class LoopBlock:
    """Loops that run at once: the places read so far, and the values to write when all iterations have run.

    Attributes:
        axes         the number of block axes of arrays, one for each loop
        register     the outermost loop's
        iterations   the outermost loop's
        fetched      the words that these iterations fetch
        sources      the words of DRAM that they fetch
        stores       the places in DRAM and GLB of what each of them stores, if they store
        reads        a superset of all other places read
        scope        the axes of the loops around the current instruction
        counts       iterations by axis
        axis_of      axes by register
    """

    axes: int
    register: int
    iterations: range
    fetched: list[FetchedWords] = field(default_factory=list[FetchedWords])
    sources: list[Place] = field(default_factory=list[Place])
    stores: list[list[tuple[Place, Place]]] = field(default_factory=list[list[tuple[Place, Place]]])
    reads: list[Place] = field(default_factory=list[Place])
    writes: list[tuple[Place, Ints]] = field(default_factory=list[tuple[Place, Ints]])
    scope: tuple[int, ...] = ()
    counts: dict[int, int] = field(default_factory=dict[int, int])
    axis_of: dict[int, int] = field(default_factory=dict[int, int])

    def places(
        self, transfers: Sequence[Leaf], loops: list[Index], descriptors: Sequence[Descriptor], most: int
    ) -> list[list[tuple[Place, Place]]]:
        """The places in DRAM and GLB of transfers, by iteration; parameters as of `fetch` and `sides`."""
        each: list[list[tuple[Place, Place]]] = []
        for i in self.iterations if transfers else ():
            loops[self.register] = i
            each.append([sides(leaf.instruction, loops, descriptors, most) for leaf in transfers])
        return each

    def fetch(
        self,
        transfers: Sequence[Leaf],
        loops: list[Index],
        descriptors: Sequence[Descriptor],
        memories: tuple[Memory, Memory],
        most: int,
    ) -> None:
        """Do the transfers of all iterations, from memories[0] to memories[1], and keep a version for each iteration.

        loops: the index of each register; the one of the block's outermost loop is overwritten.
        Raises: HalfFault, OutOfRange; TooMany, before anything is done, if more than `most` elements would be kept.
        """
        dram, glb = memories
        places = self.places(transfers, loops, descriptors, glb.words)
        self.sources = [source for iteration in places for source, _ in iteration]
        for number, leaf in enumerate(transfers):
            side = descriptors[leaf.instruction.number("glb")]
            self.fetched.append(FetchedWords.of(glb, side, [iteration[number][1] for iteration in places]))
        kept = sum(part.before.words for part in self.fetched) * glb.images  # of each iteration
        if kept * len(places) > most:
            self.fetched.clear()
            raise TooMany(most // kept)
        for iteration in places:
            for source, target in iteration:
                glb.write_in_order(target, dram.read(source))
            for part in self.fetched:
                part.keep(glb)

    def read(self, read: WordReader, memory: Memory, loops: Sequence[Index], descriptor: Descriptor) -> Words:
        """The words that `read` finds in all iterations (PROG-5): in each iteration's fetched version, or in memory."""
        for part in self.fetched:
            # `is`: the transfer's own descriptor reaches exactly its words. Any other one is judged by its addresses.
            if part.side is descriptor:
                return part.read(read, self.register, self.iterations, loops)
        taken = read(memory, loops, descriptor)
        for part in self.fetched:
            # Of another descriptor, all words have to be fetched ones: for any other word `part.read` raises
            # OutOfRange.
            if part.touches(taken.reads):
                return replace(part, side=descriptor).read(read, self.register, self.iterations, loops)
        self.reads.extend(taken.reads)
        return taken.words

    def write(self, dram: Memory, glb: Memory) -> None:
        """Write what the iterations write, and store what they store, in their order.

        Raises: OrderMatters before, as `check_order` does. OutOfRange for a word that an iteration stores: what the
        iterations before it did may be done again.
        """
        written = by_iteration(self.writes, len(self.stores)) if self.stores else [self.writes]
        self.check_order(glb.words, written)
        for writes, stores in zip(written, self.stores or [[]], strict=True):
            for place, values in writes:
                glb.write(place, values)
            for target, source in stores:
                dram.write_in_order(target, glb.read(source))

    def check_order(self, words: int, written: Sequence[IterationWrites]) -> None:
        """Raises OrderMatters if one of `words` words is both written and read or fetched, or written twice at once.

        Also if DRAM words are both fetched and stored, or if an iteration stores words that are not of its own time.
        """
        places, stored = [place for place, _ in self.writes], [near for each in self.stores for _, near in each]
        # The GLB holds fetched words as the last iteration has them, so no iteration may store or overwrite them.
        if any(fetched.touches([*places, *stored]) for fetched in self.fetched):
            raise OrderMatters
        # A still place gets its values after all iterations (`by_iteration`), too late for the stores of the earlier
        # ones.
        if overlap(stored, [place for place in places if is_still(place, len(self.stores))]):
            raise OrderMatters
        # All fetches were done before the first store.
        if overlap(self.sources, [far for each in self.stores for far, _ in each]):
            raise OrderMatters
        # The usual case needs no masks of the whole GLB.
        if overlap(self.reads, places) and (_mask(words, self.reads) & _mask(words, places)).any():
            raise OrderMatters
        for at_once in ([place for place, _ in writes] for writes in written):
            if len(at_once) == 1 and isinstance(place := at_once[0], Strided) and place.distinct:
                continue
            # Fewer words than values: a word was written twice.
            if int(_reached(at_once).sum()) != sum(place.size for place in at_once):
                raise OrderMatters


def _mask(words: int, places: Sequence[Place]) -> Mask:
    """Of `words` words those at some places."""
    mask = np.zeros(words, np.bool_)
    for place in places:
        fill(mask, place, True)
    return mask


def _reached(places: Sequence[Place]) -> Mask:
    """Of the words from the least to the greatest address of places those at them."""
    low, high = reach(places)
    moved = [replace(at, start=at.start - low) if isinstance(at, Strided) else at - low for at in places]
    return _mask(high - low + 1, moved)


def find(
    block: LoopBlock | None, read: WordReader, memory: Memory, loops: Sequence[Index], descriptor: Descriptor
) -> Words:
    """The words that `read` finds in a memory; in a block, those of all iterations (PROG-5)."""
    if block is not None:
        return block.read(read, memory, loops, descriptor)
    return read(memory, loops, descriptor).words


@dataclass
class _File:
    """One register file: the scopes in which its halves were opened."""

    opened: Registers | None = None
    full: list[Registers] = field(default_factory=list[Registers])
    current: Registers | None = None

    def mentions(self, register: int) -> bool:
        halves = [self.opened, self.current, *self.full]
        return any(half is not None and register in half for half in halves)


class FilesBefore(NamedTuple):
    """What register files hold before a loop: whether a half is in use, and how many full ones wait.

    psum: whether a half is in use. No other half may be full or partly filled.
    """

    weight: tuple[bool, int]
    ifmap: tuple[bool, int]
    psum: bool


class OrderMatters(Exception):
    """A block reads what it writes, writes a word twice, or might overflow a psum: its loop runs one by one."""


class TooMany(Exception):
    """A block has too many iterations for what it keeps; `fits` of them may do."""

    def __init__(self, fits: int) -> None:
        super().__init__(fits)
        self.fits = fits


class _Dependent(Exception):
    """The iterations depend on each other, or on instructions before the loop."""


class _Order:
    """A walk through a block's instructions. It follows each half by its scope, the loops inside which it was opened.

    not_first, not_last: registers of loops around the block outside their first, last iteration.
    """

    def __init__(self, files: FilesBefore, not_first: set[int], not_last: set[int]) -> None:
        self.not_first, self.not_last = not_first, not_last
        self.files = {
            name: _File(full=[()] * waiting, current=() if in_use else None)
            for name, in_use, waiting in (("weight", *files.weight), ("ifmap", *files.ifmap))
        }
        self.psum = _File(current=() if files.psum else None)

    def _first(self, when: When, scope: Registers) -> Registers | None:
        return _scope(when, scope, self.not_first)

    def _last(self, when: When, scope: Registers) -> Registers | None:
        return _scope(when, scope, self.not_last)

    def walk(self, loop: LoopNode, scope: Registers) -> None:
        inner = (*scope, loop.register) if loop.count > 1 else scope
        for node in loop.body:
            if isinstance(node, LoopNode):
                self.walk(node, inner)
            else:
                self._step(node.instruction, inner)
        # A half of one iteration must not outlive it: another iteration would use it.
        if any(file.mentions(loop.register) for file in (*self.files.values(), self.psum)):
            raise _Dependent

    def _step(self, inst: Instruction, scope: Registers) -> None:
        match inst.spec.kind:
            case Kind.LOAD:
                self._load(inst, scope)
            case Kind.MAC:
                self._mac(inst, scope)
            case Kind.DMA:
                pass  # a transfer that the iteration begins or ends with: done before or after the block
            case Kind.COMMIT:
                # A commit takes the half of its own iteration, or the order matters.
                if inst.text("source") == "psum" and (not self.psum.full or self.psum.full.pop(0) != scope):
                    raise _Dependent
            case _:
                raise _Dependent

    def _load(self, inst: Instruction, scope: Registers) -> None:
        file = self.files[inst.text("kind")]
        opens, closes = self._first(inst.when("open"), scope), self._last(inst.when("close"), scope)
        file.opened = scope if opens is not None else file.opened
        if file.opened != scope or opens not in (None, scope) or closes not in (None, scope):
            raise _Dependent
        if closes is not None:
            file.full.append(scope)
            file.opened = None

    def _mac(self, inst: Instruction, scope: Registers) -> None:
        for name in operands_of(inst.operation()):
            taken = self._first(inst.when(f"take_{name}"), scope)
            given = self._last(inst.when(f"give_{name}"), scope)
            used = _used_scope(self.files[name], taken, given)
            if name == "ifmap" and inst.number("data_reuse") and used != scope:
                raise _Dependent  # neighbours change the half, and the next iteration would see the change
        fresh = self._first(inst.when("clear"), scope)
        if fresh is not None:
            self.psum.current = fresh
        # The half may be of this iteration or of one around it: then the iterations in between add up in it.
        if self.psum.current is None or scope[: len(self.psum.current)] != self.psum.current:
            raise _Dependent
        sent = self._last(inst.when("send"), scope)
        if sent is not None:
            if sent != self.psum.current:
                raise _Dependent
            self.psum.full.append(sent)
            self.psum.current = None


def _used_scope(file: _File, taken: Registers | None, given: Registers | None) -> Registers:
    """The scope of the half that a macro-instruction takes, uses and gives."""
    if taken is not None:
        if not file.full or file.full.pop(0) != taken:
            raise _Dependent
        file.current = taken
    used = file.current
    if used is None or given not in (None, used):
        raise _Dependent
    if given is not None:
        file.current = None
    return used


def _scope(when: When, scope: Registers, not_now: set[int]) -> Registers | None:
    """The loops in each of whose iterations a condition holds once; None if it never holds.

    not_now: loops around the block that do not fulfil the condition. Loops that run once, or not at all, always do
    (PROG-2). Only a condition on the innermost loops of the block holds once per iteration of the others, in order.
    """
    if when is None or not_now.intersection(when):
        return None
    inner = set(when).intersection(scope)
    outer = scope[: len(scope) - len(inner)]
    if inner.intersection(outer):
        raise _Dependent
    return outer


def independent(loop: LoopNode, files: FilesBefore, not_first: set[int], not_last: set[int]) -> bool:
    """Whether the loop's iterations use the register files independently.

    - files: what the register files hold before the loop
    - not_first, not_last: the registers of loops around it that are past their first, before their last iteration.
    """
    first, last = len(leading_fetches(loop)), len(trailing_stores(loop))
    instructions = [leaf.instruction for leaf in leaves(loop.body)][first:]
    instructions = instructions[: len(instructions) - last]
    if not instructions or any(inst.spec.kind not in _RUNNABLE for inst in instructions):
        return False
    if len({keeps_greatest(inst.operation()) for inst in instructions if inst.spec.kind is Kind.MAC}) > 1:
        return False  # sums and greatest values alternate, which one array expression cannot do
    try:
        _Order(files, not_first, not_last).walk(loop, ())
    except _Dependent:
        return False
    return True


def divisible(loop: LoopNode) -> bool:
    """Whether a part of the loop's iterations can be a block: no condition asks for its first or last iteration."""
    for leaf in leaves(loop.body):
        conditions = (leaf.instruction.when(name) for name in _CONDITIONS if name in leaf.instruction.values)
        if any(loop.register in when for when in conditions if when):
            return False
    return True


def largest_array(loop: LoopNode, iterations: int, descriptors: Sequence[Descriptor]) -> int:
    """Elements, per image, of the largest array of a block of `iterations` of the loop."""
    return max(_arrays(loop.body, ((loop.register, iterations),), descriptors))


def _arrays(
    nodes: Sequence[Node], around: tuple[tuple[int, int], ...], descriptors: Sequence[Descriptor]
) -> Iterator[int]:
    """Elements, per image, of each array of a block. around: (register, iterations) of the block's loops around."""
    for node in nodes:
        if isinstance(node, LoopNode):
            yield from _arrays(node.body, (*around, (node.register, node.count)), descriptors)
        else:
            yield _array(node.instruction, around, descriptors)
    yield around[-1][1]  # the loop's indices


def _array(inst: Instruction, around: tuple[tuple[int, int], ...], descriptors: Sequence[Descriptor]) -> int:
    kind, still = inst.spec.kind, set[int]()  # the registers of loops that do not make the array larger
    assert kind in MOVING_WORDS
    match kind:
        case Kind.DMA:
            size = max(_LEAST_COPY, dma_words(inst))
        case Kind.LOAD:
            steps = descriptors[inst.number("desc")].steps
            still = dict(around).keys() - {register for (register, _), term in steps.items() if term.step}
            size = prod(_distinct(inst, axis) for axis in ("row", "col")) * load_words(inst)
        case Kind.MAC:
            # Psums that live through all iterations of a loop have no axis for it.
            still = {*(inst.when("clear") or ())}
            size = prod(inst.number(name) for name in ("rows", "cols", "pixels", "step_range")) * step_sums(inst)
        case Kind.COMMIT:
            size = commit_results(inst)
        case _:
            assert_never(kind)
    return size * prod(count for register, count in around if register not in still)


def _distinct(inst: Instruction, axis: str) -> int:
    """The rows or columns of PEs that may get different words from a load (DESC-2, DESC-4)."""
    pes, in_set = inst.number(f"{axis}s"), inst.number(f"set_{axis}s")
    within = min(pes, in_set) if inst.term(axis).step else 1
    return within * (ceil_div(pes, in_set) if inst.term(f"{axis}_set").step else 1)
