"""Addresses of instructions: descriptors, places of PEs and patterns, as broadcasting index arrays.

Rules: DESC-1 to DESC-4.

Index arrays have axes [loops of the block…, set by rows, row, set by columns, column, pattern…]. An axis on which
nothing depends has size 1: multicast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cnncc.arch.model import DESCRIPTORS
from cnncc.isa.fields import AXES, FieldTerm
from cnncc.isa.table import Instruction, InstructionKind

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Index = int | Ints

PE_AXES = 4
FAR = 1 << 59  # beyond any memory, and so far below 2^63 that sums and small multiples do not overflow


@dataclass
class Descriptor:
    """A descriptor as `desc` and `step` set it; steps by loop register, linear or not (DESC-1)."""

    base: int = 0
    height: int = 0
    width: int = 0
    pitch: int = 0
    plane: int = 0
    fill: int = 0
    zero: int = 0
    wrap: int = 0
    ring_y: int = 0
    ring_x: int = 0
    column: int = 1
    steps: dict[tuple[int, bool], FieldTerm] = field(default_factory=dict[tuple[int, bool], FieldTerm])

    @classmethod
    def of(cls, desc: Instruction) -> Descriptor:
        """The descriptor that a `desc` instruction sets."""
        bounds = (desc.number("height"), desc.number("width"), desc.number("pitch"), desc.number("plane"))
        wraps = (desc.number("wrap"), desc.number("ring_y"), desc.number("ring_x"))
        return cls(
            desc.number("base"), *bounds, desc.number("fill"), desc.number("zero"), *wraps, desc.number("column") or 1
        )

    def linear(self, offset: Index, loops: Sequence[Index]) -> Index:
        """base + (offset + linear terms of the loops) mod wrap (DESC-2)."""
        total = offset
        for (register, linear), term in self.steps.items():
            if linear and register < len(loops):
                total = total + term.step * loops[register]
        return self.base + (total % self.wrap if self.wrap else total)

    def place(self, loops: Sequence[int]) -> tuple[int, int, int, int]:
        """All that addresses depend on of the loops: their words, within a turn of `wrap`, channels, rows, columns."""
        sums: dict[str, int] = dict.fromkeys(AXES, 0)
        for (register, _), term in self.steps.items():
            if register < len(loops):
                sums[term.axis] += term.step * loops[register]
        words = sums["lin"] % self.wrap if self.wrap else sums["lin"]
        return words, sums["k"], sums["y"], sums["x"]

    def in_image(self, y: Index, x: Index) -> Index:
        """The offset of row y and column x within an image, in words (DESC-2)."""
        y, x = y % self.ring_y if self.ring_y else y, x % self.ring_x if self.ring_x else x
        return y * self.pitch + x * self.column


class Descriptors(list[Descriptor]):
    """All descriptors of a sequencer, by number."""

    def __init__(self) -> None:
        super().__init__(Descriptor() for _ in range(DESCRIPTORS))

    def set(self, inst: Instruction) -> None:
        """Run a `desc` or a `step`; all other instructions leave the descriptors as they are."""
        if inst.spec.kind is InstructionKind.DESC:
            self[inst.number("id")] = Descriptor.of(inst)
        elif inst.spec.kind is InstructionKind.STEP:
            term = inst.term("by")
            self[inst.number("id")].steps[inst.number("loop"), term.axis == "lin"] = term


@dataclass(frozen=True)
class Grid:
    """The active PEs as sets x rows x sets x columns (DESC-4); a side on which a set is cut short has one set.

    set_rows, set_cols: PEs of a whole set on each side. edge: only the last column of each set (LOAD-1).
    """

    row0: int
    col0: int
    row_sets: int
    rows: int
    col_sets: int
    cols: int
    set_rows: int
    set_cols: int
    edge: bool = False

    @classmethod
    def of(cls, inst: Instruction, set_rows: int) -> Grid:
        """The grid of an instruction's rectangle."""
        rows, cols = inst.number("rows"), inst.number("cols")
        set_rows, set_cols = min(set_rows, rows), min(inst.number("set_cols"), cols)
        # A side with a set that is cut short has no two axes of one size: it is one axis, along which `_pe_indices`
        # divides.
        row_sets = rows // set_rows if rows % set_rows == 0 else 1
        col_sets = cols // set_cols if cols % set_cols == 0 else 1
        row0, col0 = inst.number("row0"), inst.number("col0")
        return cls(row0, col0, row_sets, rows // row_sets, col_sets, cols // col_sets, set_rows, set_cols)

    @classmethod
    def of_load(cls, load: Instruction) -> Grid:
        """The PEs that a load gives words to (LOAD-1)."""
        return replace(cls.of(load, load.number("set_rows")), edge=bool(load.number("edge")))

    @classmethod
    def of_results(cls, commit: Instruction) -> Grid:
        """The PEs that a commit has results of (COMMIT-1, COMMIT-6)."""
        grid = cls.of(commit, commit.number("set_rows"))
        return grid.south if commit.number("reduce") else grid

    @property
    def south(self) -> Grid:
        """The PEs in which psums arrive that are added up along the columns of sets (COMMIT-6)."""
        return replace(self, rows=1, set_rows=1)

    @property
    def last_columns(self) -> list[int]:
        """The last column of each set, counted along the axis of columns; the last set may be cut short."""
        return [col for col in range(self.cols) if col % self.set_cols == self.set_cols - 1 or col == self.cols - 1]

    @property
    def columns(self) -> list[int]:
        """The columns that take part, counted along the axis of columns."""
        return self.last_columns if self.edge else list(range(self.cols))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Sizes of the four PE axes."""
        return (self.row_sets, self.rows, self.col_sets, len(self.columns))

    @property
    def rectangle(self) -> tuple[int, int, int, int]:
        """row0, col0, rows, columns, whatever the sets."""
        return (self.row0, self.col0, self.row_sets * self.rows, self.col_sets * self.cols)

    @property
    def text(self) -> str:
        """The rectangle, as messages have it."""
        row0, col0, rows, cols = self.rectangle
        return f"rows {row0}..{row0 + rows - 1}, columns {col0}..{col0 + cols - 1}"


def axis_index(count: int, axis: int, axes: int) -> Ints:
    """0 … count - 1 along `axis` of `axes` axes."""
    return np.arange(count).reshape([count if i == axis else 1 for i in range(axes)])


def _pe_indices(grid: Grid, after: int) -> list[tuple[str, Ints]]:
    """The indices of the terms row, row_set, col, col_set, on the four PE axes before `after` pattern axes."""
    row, row_set = axis_index(grid.rows, 1, 4), axis_index(grid.row_sets, 0, 4)
    col, col_set = np.array(grid.columns).reshape(1, 1, 1, -1), axis_index(grid.col_sets, 2, 4)
    pairs = [
        ("row", row % grid.set_rows),
        ("row_set", row_set if grid.rows == grid.set_rows else row // grid.set_rows),
        ("col", col % grid.set_cols),
        ("col_set", col_set if grid.cols == grid.set_cols else col // grid.set_cols),
    ]
    return [(name, index.reshape(*index.shape, *[1] * after)) for name, index in pairs]


@dataclass(frozen=True)
class IndexArrays:
    """An instruction's position. offset, terms: words and lin, k, y, x without the loops'. loops: their indices."""

    loops: Sequence[Index]
    offset: int
    terms: dict[str, Index]

    def address(self, descriptor: Descriptor) -> tuple[Ints, Mask | None]:
        """Word addresses, and a mask of those inside the bounds; None if all are (DESC-2, DESC-3)."""
        axis = self._axes(descriptor)
        # Words have no factor, so only these three products may leave 64 bits.
        steps = {"k": descriptor.plane, "y": descriptor.pitch, "x": descriptor.column}
        far = sum(_greatest(axis[name]) * step for name, step in steps.items())
        if far >= FAR:  # products beyond 64 bits, which might lead back to an address that there is
            axis = {name: np.asarray(index, object) for name, index in axis.items()}
        linear = descriptor.linear(self.offset, self.loops)
        rest = axis["lin"] + axis["k"] * descriptor.plane
        y, x = axis["y"], axis["x"]
        exact = linear + rest + descriptor.in_image(y, x)
        address = np.asarray(exact if far < FAR else np.clip(exact, -FAR, FAR), np.int64)
        if descriptor.height == 0:
            return address, None
        y_inside = (np.asarray(y) >= 0) & (np.asarray(y) < descriptor.height)
        x_inside = (np.asarray(x) >= 0) & (np.asarray(x) < descriptor.width)
        if y_inside.all() and x_inside.all():
            return address, None
        return address, np.broadcast_to(y_inside & x_inside, address.shape)

    def first_outside(self, descriptor: Descriptor) -> tuple[int, int]:
        """Row and column of the first position outside the bounds; there is one."""
        axis = self._axes(descriptor)
        y, x = np.broadcast_arrays(axis["y"], axis["x"])
        inside = (y >= 0) & (y < descriptor.height) & (x >= 0) & (x < descriptor.width)
        first = int(np.argmin(inside))
        return int(y.flat[first]), int(x.flat[first])

    def _axes(self, descriptor: Descriptor) -> dict[str, Index]:
        """Linear words, channel, row and column, with the descriptor's steps other than linear ones."""
        axis: dict[str, Index] = dict(self.terms)
        for (register, linear), term in descriptor.steps.items():
            if not linear and register < len(self.loops):
                axis[term.axis] = axis[term.axis] + term.step * self.loops[register]
        return axis


def _greatest(index: Index) -> int:
    """The greatest magnitude of an index."""
    array = np.asarray(index)
    return max(int(array.max()), -int(array.min()))


def position(inst: Instruction, grid: Grid, loops: Sequence[Index]) -> IndexArrays:
    """The position of a load or a commit.

    loops: by register, its index, as an int or on the block axes; PE and pattern axes are added here.
    """
    after = len(inst.pattern)
    terms: dict[str, Index] = dict.fromkeys(AXES, 0)
    terms["lin"] = np.zeros((1,) * after, np.int64)
    terms["k"], terms["y"], terms["x"] = inst.number("channel"), inst.number("y"), inst.number("x")
    for name, index in _pe_indices(grid, after):
        term = inst.term(name)
        if term.step:
            terms[term.axis] = terms[term.axis] + term.step * index
    for i, (extent, term) in enumerate(inst.pattern):
        if extent > 1:
            terms[term.axis] = terms[term.axis] + term.step * axis_index(extent, i, after)
    return IndexArrays([on_block(loop, PE_AXES + after) for loop in loops], inst.number("offset"), terms)


def on_block(loop: Index, after: int) -> Index:
    """A loop's index with `after` further axes."""
    return loop if isinstance(loop, int) else loop.reshape(*loop.shape, *[1] * after)
