"""How long an engine is busy with an instruction, from its fields, the `unit` in force and the array alone."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.isa.fields import Term
from cnncc.isa.table import Instruction

# Of a commit's pattern, the slowest first: field `pixels`, term `pixel_term` (C1).
EXTENTS = ("pixel", "line", "channel")


class Occupancy(NamedTuple):
    """Cycles that an instruction occupies its engine, and cycles from then until it is done (Z2)."""

    busy: int
    latency: int


class Part(NamedTuple):
    """PEs of one side of a rectangle: indices within their set and numbers of the set, both as [from, to)."""

    inner: tuple[int, int]
    sets: tuple[int, int]

    @property
    def size(self) -> int:
        """PEs."""
        return (self.inner[1] - self.inner[0]) * (self.sets[1] - self.sets[0])


class UnitSettings(NamedTuple):
    """What of the output units' settings makes a commit read more words (C2, C3)."""

    bias: bool = False
    scale: bool = False
    residual: bool = False

    @classmethod
    def of(cls, unit: Instruction) -> UnitSettings:
        """The settings of a `unit` instruction."""
        return cls(bool(unit.number("bias")), bool(unit.number("scale")), bool(unit.number("residual")))


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def distinct_parts(count: int, set_size: int, inner: bool, sets: bool, edge: bool = False) -> list[Part]:
    """One of each kind of a rectangle's `count` rows (columns), in sets of `set_size`, the last one maybe cut short.

    Two are of one kind when they agree in what matters: the index within the set (`inner`), the set (`sets`).
    edge: only the last of each set takes part (L1).
    """
    whole, rest = divmod(count, set_size)
    numbers = (0, whole + (rest > 0)) if sets else (0, 1)
    if not inner:
        return [Part((0, 1), numbers)]
    if not sets and not edge:
        return [Part((0, min(count, set_size)), (0, 1))]
    parts: list[Part] = []
    if whole:
        parts.append(Part((set_size - 1 if edge else 0, set_size), (0, whole) if sets else (0, 1)))
    if rest:
        parts.append(Part((rest - 1 if edge else 0, rest), (whole, whole + 1)))
    return parts


def place_parts(
    inst: Instruction, matters: Callable[[Term], bool], edge: bool = False
) -> tuple[list[Part], list[Part]]:
    """The distinct rows and the distinct columns of an instruction's PEs, going by the terms that `matters` selects."""
    row, row_set, col, col_set = (matters(inst.term(name)) for name in ("row", "row_set", "col", "col_set"))
    sides = result_rows(inst) if inst.spec.name == "commit" else (inst.number("rows"), inst.number("set_rows"))
    rows = distinct_parts(*sides, row, row_set)
    return rows, distinct_parts(inst.number("cols"), inst.number("set_cols"), col, col_set, edge)


def load_parts(inst: Instruction) -> tuple[list[Part], list[Part]]:
    """The PEs of a load that differ in their words (L2): rows, columns."""
    return place_parts(inst, lambda term: term.step != 0, bool(inst.number("edge")))


def load_words(inst: Instruction) -> int:
    """Words that a load gives one PE."""
    return prod(inst.number(f"extent{i}") for i in range(4))


def load_occupancy(inst: Instruction, arch: Arch) -> Occupancy:
    """Rule L2."""
    rows, cols = (sum(part.size for part in parts) for parts in load_parts(inst))
    words = load_words(inst)
    port = ceil_div(words * rows * cols, arch.glb.words_per_cycle)
    return Occupancy(max(port, cols * ceil_div(words, arch.bus.burst_words), words), arch.bus.latency_cycles)


def mac_steps(inst: Instruction) -> int:
    """Multiply-accumulates of one PE in a macro-instruction: its max iteration."""
    return inst.number("pixels") * inst.number("taps") * inst.number("step_range")


def mac_occupancy(inst: Instruction, arch: Arch) -> Occupancy:
    """Rule A4."""
    return Occupancy(arch.pe.start_cycles + mac_steps(inst) + arch.pe.finish_cycles, 0)


def result_rows(inst: Instruction) -> tuple[int, int]:
    """Rows of PEs that a commit has results of, and those of a set: one for each set whose rows are added up (C6)."""
    rows, set_rows = inst.number("rows"), inst.number("set_rows")
    return (ceil_div(rows, set_rows), 1) if inst.number("reduce") else (rows, set_rows)


def commit_results(inst: Instruction) -> int:
    """Results of a commit: one for each psum of its pattern in each of its PEs, or of the south ones of each set."""
    return result_rows(inst)[0] * inst.number("cols") * prod(inst.number(f"{extent}s") for extent in EXTENTS)


def commit_params(inst: Instruction, unit: UnitSettings, arch: Arch) -> int:
    """Words of parameters that a commit reads: those of each distinct channel once (C3)."""

    def matters(term: Term) -> bool:
        return term.axis == "k" and term.step != 0

    channels = prod(sum(part.size for part in parts) for parts in place_parts(inst, matters))
    for extent in EXTENTS:
        if matters(inst.term(f"{extent}_term")):
            channels *= inst.number(f"{extent}s")
    return (unit.bias + unit.scale) * arch.words_per_param * channels


def commit_reads(inst: Instruction, unit: UnitSettings, arch: Arch) -> int:
    """GLB words that a commit reads: the streamed operand, the residual, the parameters."""
    streams = (inst.text("source") == "glb") + unit.residual
    return streams * commit_results(inst) + commit_params(inst, unit, arch)


def commit_occupancy(inst: Instruction, unit: UnitSettings, arch: Arch) -> Occupancy:
    """Rule C3."""
    results = commit_results(inst)
    cols = arch.cols if inst.text("source") == "glb" else inst.number("cols")
    sums = 2 * arch.words_per_param * results if inst.number("partial") else 0  # both ways, whether needed or not
    words = results + sums + commit_reads(inst, unit, arch)
    units = ceil_div(results, cols * arch.commit.units_per_column)
    hops = inst.number("set_rows") - 1 if inst.number("reduce") else 0
    return Occupancy(max(units, ceil_div(words, arch.glb.words_per_cycle)) + hops, arch.commit.latency_cycles)


def dma_words(inst: Instruction) -> int:
    """Words of a DMA transfer, those that are not copied counted (X2)."""
    return prod(inst.number(name) for name in ("count", "rows", "words"))


def dma_occupancy(inst: Instruction, arch: Arch) -> Occupancy:
    """Rule X2."""
    return Occupancy(ceil_div(dma_words(inst), arch.dram.words_per_cycle), arch.dram.latency_cycles)


def occupancy(inst: Instruction, unit: UnitSettings, arch: Arch) -> Occupancy:
    """Occupancy of any instruction that an engine runs; `unit` is what the last `unit` instruction set (C2)."""
    match inst.spec.name:
        case "dma":
            return dma_occupancy(inst, arch)
        case "load":
            return load_occupancy(inst, arch)
        case "mac":
            return mac_occupancy(inst, arch)
        case "commit":
            return commit_occupancy(inst, unit, arch)
        case name:
            assert name == "unit", name
            return Occupancy(1, 0)
