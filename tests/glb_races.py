"""Finds races for words of the GLB: with times and addresses from two plain machines, both written from the docs.

Values follow program order (rule PROG-5), so that a token too few changes none of them. Here each access has a time: an
instruction reads from its start to its end, and writes until it is done. Of two accesses to one word, one of them a
write, the earlier one in program order must be over when the later one starts. Accesses of one engine are in its order.
`cnncc/machine/races.py` needs no times; it must see all that is seen here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from plain_machine import Place, PlainMachine, check
from test_machine_times import Plain, Point
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import Arch
from cnncc.context import CompilerContext
from cnncc.dialects.array import TensorOp
from cnncc.dialects.weights import GlobalOp, constant_array
from cnncc.isa.fields import FieldTerm
from cnncc.isa.table import Instruction
from cnncc.machine.races import races as ordered_races

NAMES = ("dma", "load", "mac", "unit", "commit")
Words = np.ndarray  # addresses, or what is added to them
Terms = list[tuple[FieldTerm, np.ndarray]]  # with the index of each position
NONE = np.zeros(0, np.int64)


def grid(*sizes: int) -> np.ndarray:
    """The indices of all positions, axis by axis."""
    return np.indices(sizes).reshape(len(sizes), -1)


def added(terms: Terms) -> list[Words]:
    """What terms add on each axis."""
    moves = dict.fromkeys(("lin", "k", "y", "x"), np.zeros_like(terms[0][1]))
    for (axis, step), at in terms:
        moves[axis] = moves[axis] + step * at
    return list(moves.values())


def several(first: Words, count: int) -> Words:
    """The words from each of some on."""
    return (first[:, None] + np.arange(count)).ravel()


class Accesses(PlainMachine):
    """A machine that notes the words of the GLB that each instruction of an engine reads and writes.

    No address depends on a value: it has none, but knows what was written. All words of an instruction are found at
    once, and kept for when it comes back. test_races.py compares them with the plain machine's, which go one by one.
    """

    def __init__(self, arch: Arch, dram: list[int]) -> None:
        super().__init__(arch, dram)
        self.log: list[tuple[Instruction, Words, Words]] = []
        self.written = np.zeros(arch.glb.words, bool)
        self.moves: dict[int, list[Words]] = {}  # what the terms of an instruction add on each axis
        self.known: dict[tuple[object, ...], tuple[Words, Words]] = {}

    def note(self, inst: Instruction, descriptors: Sequence[str], *state: object) -> None:
        """By descriptors that loops move, and the state that else says what an instruction does."""
        key = (id(inst), *(self.shape(inst.number(name)) for name in descriptors), *state)
        if key not in self.known:
            read, written = (np.unique(np.concatenate([NONE, *each])) for each in self.uses(inst))
            for words in (read, written):
                check(not words.size or (words[0] >= 0 and words[-1] < len(self.written)), "GLB has no such word")
            self.known[key] = read, written
        read, written = self.known[key]
        check(bool(self.written[read].all()), "a GLB word that was never written")
        self.written[written] = True
        self.log.append((inst, read, written))

    def do_dma(self, inst: Instruction) -> None:
        self.note(inst, ("dram", "glb"))

    def do_load(self, inst: Instruction) -> None:
        self.note(inst, ("desc",))

    def do_mac(self, inst: Instruction) -> None:
        self.log.append((inst, NONE, NONE))

    def do_unit(self, inst: Instruction) -> None:
        super().do_unit(inst)
        self.log.append((inst, NONE, NONE))

    def do_commit(self, inst: Instruction) -> None:
        is_fresh, is_final = self.holds(inst.when("fresh"), last=False), self.holds(inst.when("final"), last=True)
        self.note(inst, ("desc", "params", "sums", "residual", "operand"), id(self.unit), is_fresh, is_final)

    def uses(self, inst: Instruction) -> tuple[list[Words], list[Words]]:
        """The words that are read, and that are written."""
        match inst.spec.name:
            case "dma":
                return self.of_dma(inst)
            case "load":
                return [self.words(inst, "desc", self.load_moves(inst))], []
            case _:
                return self.of_commit(inst)

    def words(self, inst: Instruction, name: str, moves: list[Words]) -> Words:
        """The addresses of those that are inside the bounds (DESC-1 to DESC-4)."""
        words, inside = self.addresses(inst.number(name), self.start(inst), moves)
        return words[inside]

    def addresses(self, desc: int, start: dict[str, int], moves: list[Words]) -> tuple[Words, np.ndarray]:
        """The word addresses of all positions, and which are inside the bounds."""
        base, wrap, plane, pitch, height, width, ring_y, ring_x, linear, *loops = self.shape(desc)
        lin, k, y, x = moves
        k, y, x = k + loops[0] + start["channel"], y + loops[1] + start["y"], x + loops[2] + start["x"]
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width) if height else np.ones_like(y, bool)
        linear += start["offset"]
        at = base + (linear % wrap if wrap else linear) + lin + k * plane
        return at + (y % ring_y if ring_y else y) * pitch + (x % ring_x if ring_x else x), inside

    def of_pes(self, inst: Instruction, places: Sequence[Place], extents: Sequence[int]) -> tuple[Terms, np.ndarray]:
        """What moves from PE to PE; the other indices of all positions."""
        at, *others = grid(len(places), *extents)
        indices = np.array(places).reshape(-1, 6).T[2:]
        names = ("row", "row_set", "col", "col_set")
        return [(inst.term(name), index[at]) for name, index in zip(names, indices, strict=True)], np.array(others)

    def of_dma(self, inst: Instruction) -> tuple[list[Words], list[Words]]:  # DMA-1
        blocks, rows, across = grid(*(inst.number(name) for name in ("count", "rows", "words")))
        sides = list[tuple[Words, np.ndarray]]()
        for side in ("dram", "glb"):
            start = {"channel": 0, "y": inst.number("y"), "x": inst.number("x")}
            start["offset"] = inst.number(f"{side}_offset")
            step = FieldTerm("lin", inst.number(f"{side}_step"))
            moves = added([(FieldTerm("y", 1), rows), (FieldTerm("x", 1), across), (step, blocks)])
            sides.append(self.addresses(inst.number(side), start, moves))
        (dram, inside), (glb, _) = sides
        dram, glb = dram[inside], glb[inside]
        check(bool(((dram >= 0) & (dram < len(self.dram))).all()), "DRAM has no such word")
        return ([], [glb]) if inst.text("direction") == "in" else ([glb], [])

    def load_moves(self, inst: Instruction) -> list[Words]:  # LOAD-1, LOAD-2
        if id(inst) not in self.moves:
            places = self.places(inst, inst.number("set_rows"))
            takers = [place for place in places if not inst.number("edge") or self.is_last(inst, place)]
            terms, indices = self.of_pes(inst, takers, [inst.number(f"extent{i}") for i in range(4)])
            self.moves[id(inst)] = added([*terms, *((inst.term(f"term{i}"), at) for i, at in enumerate(indices))])
        return self.moves[id(inst)]

    def commit_moves(self, inst: Instruction) -> list[Words]:  # COMMIT-1, COMMIT-6
        if id(inst) not in self.moves:
            places = self.places(inst, inst.number("set_rows"))
            heads = [place for place in places if not inst.number("reduce") or place[2] == 0]
            names = ("pixel", "line", "channel")
            terms, indices = self.of_pes(inst, heads, [inst.number(f"{name}s") for name in names])
            along = [(inst.term(f"{name}_term"), at) for name, at in zip(names, indices, strict=True)]
            self.moves[id(inst)] = added([*terms, *along])
        return self.moves[id(inst)]

    def of_commit(self, inst: Instruction) -> tuple[list[Words], list[Words]]:
        reads, is_partial = list[Words](), inst.number("partial") > 0
        if inst.text("source") != "psum":
            reads.append(self.inside(inst, "operand"))
        sums = self.sums(inst) if is_partial else NONE
        if is_partial and not self.holds(inst.when("fresh"), last=False):
            reads.append(sums)
        if is_partial and not self.holds(inst.when("final"), last=True):
            writes = sums
        else:
            reads += self.read_by_unit(inst)
            writes = self.inside(inst, "desc")
        check(len(np.unique(writes)) == writes.size, "a word is written twice")
        return reads, [writes]

    def inside(self, inst: Instruction, name: str) -> Words:
        """Addresses of which none is outside the bounds (COMMIT-4)."""
        moves = self.commit_moves(inst)
        words = self.words(inst, name, moves)
        check(words.size == moves[0].size, f"{name} outside its bounds")
        return words

    def sums(self, inst: Instruction) -> Words:  # COMMIT-5
        each, base = -(-max(32, self.arch.psum_bits) // self.arch.operand_bits), self.field(inst.number("sums"), "base")
        return several(base + (self.inside(inst, "sums") - base) * each, each)

    def read_by_unit(self, inst: Instruction) -> list[Words]:  # COMMIT-2
        """Parameters and the residual."""
        unit = self.unit
        if unit is None:
            return []
        words = 32 // self.arch.operand_bits * (unit.number("bias") + unit.number("scale"))
        channels = self.commit_moves(inst)[1]
        params = self.circular(inst.number("params"), inst.number("param") * words) + channels * words
        residual = [self.inside(inst, "residual")] if unit.number("residual") else []
        return [several(params, words), *residual]


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


def accesses(program: Sequence[Instruction], arch: Arch, dram: list[int]) -> Iterator[tuple[str, Window, Words, Words]]:
    """Engine, times, words read and words written of each instruction, in program order."""
    machine, clock = Accesses(arch, dram), Windows(list(program), arch)
    machine.run(program)
    clock.run()
    for (inst, reads, writes), window in zip(machine.log, clock.log, strict=True):
        yield inst.spec.engine, window, reads, writes


def races(program: Sequence[Instruction], arch: Arch, dram: list[int]) -> list[str]:
    """What goes wrong, in program order."""
    engines = ("dma", "load", "commit")
    read = {engine: np.zeros(arch.glb.words, np.int64) for engine in engines}  # when the last read of a word ends
    written = {engine: np.zeros(arch.glb.words, np.int64) for engine in engines}  # when the last write of it is done
    found: list[str] = []
    for number, (engine, window, reads, writes) in enumerate(accesses(program, arch, dram)):
        for other in (other for other in engines if other != engine and reads.size + writes.size):
            for words in (reads, writes):
                for word in words[written[other][words] > window.start]:
                    found.append(f"{engine} {number} uses word {word} at {window.start}, before {other} has written it")
            for word in writes[read[other][writes] > window.start]:
                found.append(f"{engine} {number} writes word {word} at {window.start}, before {other} has read it")
        if engine in engines:  # all others use no words
            read[engine][reads], written[engine][writes] = window.end, window.done
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
