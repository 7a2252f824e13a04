"""The words, steps, operations and results of an instruction, from its fields, the `unit` in force and the array."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.isa.fields import AXES, FieldTerm
from cnncc.isa.table import Instruction

Offset = tuple[int, int, int, int]  # along lin, k, y and x (DESC-2)


class UnitSettings(NamedTuple):
    """The settings of the output units that make a commit read more words (COMMIT-2, COMMIT-3)."""

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


def is_last(index: int, count: int, set_size: int) -> bool:
    """Whether a row (column) of a rectangle's `count` is the last of its set, which may be cut short (DESC-4)."""
    return index % set_size == set_size - 1 or index == count - 1


@lru_cache(maxsize=1024)
def _offsets(count: int, set_size: int, inner: FieldTerm, sets: FieldTerm, edge: bool) -> dict[int, Offset]:
    offsets: dict[int, Offset] = {}
    for index in range(count):
        if not edge or is_last(index, count, set_size):
            at: dict[str, int] = dict.fromkeys(AXES, 0)
            at[inner.axis] += inner.step * (index % set_size)
            at[sets.axis] += sets.step * (index // set_size)
            offsets[index] = (at["lin"], at["k"], at["y"], at["x"])
    return offsets


def load_offsets(inst: Instruction) -> tuple[dict[int, Offset], dict[int, Offset]]:
    """The offsets that the rows and the columns of a load's rectangle add to a position, by number.

    Rows and columns without part in the load (LOAD-1, `edge`) have none.
    """
    row, row_set, col, col_set = (inst.term(name) for name in ("row", "row_set", "col", "col_set"))
    rows = _offsets(inst.number("rows"), inst.number("set_rows"), row, row_set, edge=False)
    return rows, _offsets(inst.number("cols"), inst.number("set_cols"), col, col_set, bool(inst.number("edge")))


@lru_cache(maxsize=1024)
def _sums(rows: frozenset[Offset], cols: frozenset[Offset]) -> frozenset[Offset]:
    return frozenset((a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]) for a in rows for b in cols)


def load_positions(inst: Instruction) -> tuple[frozenset[Offset], int]:
    """The distinct positions of a load's PEs, less its start, and how many of them a row of PEs has (LOAD-2)."""
    rows, cols = (frozenset(offsets.values()) for offsets in load_offsets(inst))
    return _sums(rows, cols), len(cols)


def load_words(inst: Instruction) -> int:
    """Words that a load gives one PE."""
    return prod(inst.extents)


def mac_steps(inst: Instruction) -> int:
    """Steps of a macro-instruction: its max iteration."""
    return inst.number("pixels") * inst.number("taps") * inst.number("step_range")


def mac_operations(inst: Instruction) -> int:
    """Multiply-accumulates (max, add) of one PE in a macro-instruction: as many a step as it uses lanes."""
    return mac_steps(inst) * inst.number("lanes")


def step_sums(inst: Instruction) -> int:
    """Psums that a step of a macro-instruction adds to: one, or one of each lane (MAC-7)."""
    return inst.number("lanes") if inst.number("psum_l") else 1


def result_rows(inst: Instruction) -> tuple[int, int]:
    """Rows of results of a commit, and rows of a set: a set whose rows are added up has one row (COMMIT-6)."""
    rows, set_rows = inst.number("rows"), inst.number("set_rows")
    return (ceil_div(rows, set_rows), 1) if inst.number("reduce") else (rows, set_rows)


def commit_results(inst: Instruction) -> int:
    """Results of a commit: one for each psum of its pattern in each of its PEs, or of the south ones of each set."""
    return result_rows(inst)[0] * inst.number("cols") * prod(inst.extents)


def _distinct(count: int, set_size: int, inner: bool, sets: bool) -> int:
    """Distinct rows (columns) among `count`. inner, sets: whether the index within a set, that of the set, matters."""
    if inner and sets:
        return count
    return min(count, set_size) if inner else ceil_div(count, set_size) if sets else 1


def commit_params(inst: Instruction, unit: UnitSettings, arch: Arch) -> int:
    """Words of parameters that a commit reads, once for each distinct channel (COMMIT-3)."""

    def matters(term: FieldTerm) -> bool:
        return term.axis == "k" and term.step != 0

    channels = _distinct(*result_rows(inst), matters(inst.term("row")), matters(inst.term("row_set")))
    cols = inst.number("cols"), inst.number("set_cols")
    channels *= _distinct(*cols, matters(inst.term("col")), matters(inst.term("col_set")))
    for extent, term in inst.pattern:
        if matters(term):
            channels *= extent
    return (unit.bias + unit.scale) * arch.words_per_param * channels


def commit_reads(inst: Instruction, unit: UnitSettings, arch: Arch) -> int:
    """GLB words that a commit reads: the streamed operand, the residual, the parameters."""
    streams = (inst.text("source") == "glb") + unit.residual
    return streams * commit_results(inst) + commit_params(inst, unit, arch)


def dma_words(inst: Instruction) -> int:
    """Words of a DMA transfer, those that are not copied counted (DMA-2)."""
    return prod(inst.number(name) for name in ("count", "rows", "words"))
