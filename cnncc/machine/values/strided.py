"""Addresses that step evenly: words of a memory as a strided view instead of a list of addresses.

Most instructions of a network step by the same words from index to index of each axis. Their words are a view of the
memory, and no address is listed. Uneven addresses (a wrap in the middle, ragged PE sets) have no such form: `even`
returns None, and `addresses.py` lists them. Both forms mean the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cnncc.isa.fields import AXES, FieldTerm
from cnncc.isa.table import Instruction
from cnncc.machine.values.addresses import FAR, PE_AXES, Descriptor, Grid, Index, Ints, Mask, position

Word = TypeVar("Word", bound=np.generic)


@dataclass(frozen=True)
class Strided:
    """The addresses start + Σ step * index, the index of each axis running from 0 to its size - 1."""

    start: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of addresses, repeated ones included."""
        return prod(self.sizes)

    @cached_property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest address."""
        low = high = self.start
        for size, step in zip(self.sizes, self.steps, strict=True):
            if step > 0:
                high += (size - 1) * step
            else:
                low += (size - 1) * step
        return low, high

    @property
    def distinct(self) -> bool:
        """Whether each step is longer than the reach of all smaller ones: then no address occurs twice."""
        reach = 0
        for step, size in sorted((abs(step), size) for size, step in zip(self.sizes, self.steps, strict=True)):
            if size > 1 and step <= reach:
                return False
            reach += (size - 1) * step
        return True

    @property
    def in_order(self) -> bool:
        """Whether the addresses are 0, 1, 2, … as they are listed."""
        expected = self.size
        for size, step in zip(self.sizes, self.steps, strict=True):
            expected //= size
            if size > 1 and step != expected:
                return False
        return self.start == 0

    def compact(self) -> Strided:
        """The same addresses in the same order, each axis' repetitions left out, in as few axes as possible."""
        axes = list[tuple[int, int]]()
        for size, step in zip(self.sizes, self.steps, strict=True):
            if size == 1 or step == 0:
                continue
            if axes and axes[-1][1] == size * step:
                axes[-1] = axes[-1][0] * size, step
            else:
                axes.append((size, step))
        return Strided(self.start, tuple(size for size, _ in axes), tuple(step for _, step in axes))

    def listed(self) -> Ints:
        """The addresses, index by index: [*sizes]; those farther than FAR, which no memory has, as FAR."""
        far = max(map(abs, self.ends)) >= FAR
        indices = np.ix_(*(np.arange(size, dtype=object if far else np.int64) for size in self.sizes))
        start = self.start if far else np.int64(self.start)
        listed = np.asarray(sum((step * i for step, i in zip(self.steps, indices, strict=True)), start))
        return np.clip(listed, -FAR, FAR).astype(np.int64) if far else listed

    def of(self, words: npt.NDArray[Word]) -> npt.NDArray[Word]:
        """The view [lead…, *sizes] of an array [lead…, address]. Raises ValueError for addresses outside."""
        low, high = self.ends
        if low < 0 or high >= words.shape[-1]:
            raise ValueError(f"addresses {low}..{high} are not in 0..{words.shape[-1] - 1}")
        sizes, steps = (*words.shape[:-1], *self.sizes), tuple(step * words.strides[-1] for step in self.steps)
        strides = (*words.strides[:-1], *steps)
        if words.flags.c_contiguous:  # several times as quick
            return np.ndarray(sizes, words.dtype, words, self.start * words.itemsize, strides)
        return np.lib.stride_tricks.as_strided(words[..., self.start :], sizes, strides)


@dataclass(frozen=True)
class EvenPositions:
    """Positions that step evenly, along each axis on one of lin, k, y, x.

    start, steps: in words, rows, columns.
    """

    sizes: tuple[int, ...]
    start: tuple[int, int, int]
    steps: tuple[tuple[int, int, int], ...]

    def reach(self, unit: int) -> range:
        """The range from the least to the greatest of the words (unit 0), rows (1) or columns (2)."""
        low, high = Strided(self.start[unit], self.sizes, tuple(step[unit] for step in self.steps)).ends
        return range(low, high + 1)

    def inside(self, descriptor: Descriptor) -> bool:
        """Whether all rows and columns are inside the bounds, if there are any (DESC-3)."""
        if not descriptor.height:
            return True
        y, x = self.reach(1), self.reach(2)
        return y.start >= 0 and x.start >= 0 and y.stop <= descriptor.height and x.stop <= descriptor.width

    def addresses(self, descriptor: Descriptor) -> Strided | None:
        """The addresses of the positions; None if a ring breaks their steps."""
        lin, y, x = self.start
        pitch, column = descriptor.pitch, descriptor.column
        for unit, ring, words in ((1, descriptor.ring_y, pitch), (2, descriptor.ring_x, column)):
            if not ring:
                continue
            reach = self.reach(unit)
            if reach[0] // ring != reach[-1] // ring:
                return None
            # All rows (columns) are in one turn of the ring, which is then a constant.
            lin -= reach[0] // ring * ring * words
        steps = tuple(lin + y * pitch + x * column for lin, y, x in self.steps)
        return Strided(lin + y * pitch + x * column, self.sizes, steps)


def params(inst: Instruction, grid: Grid, loops: Sequence[Index], descriptor: Descriptor, words: int) -> Strided | None:
    """The first words of a commit's parameters, `words` words a channel, if they step evenly, else None (COMMIT-2)."""
    # COMMIT-2: channels lie `words` apart, and of the loops the linear steps alone count.
    channels = replace(descriptor, plane=words, steps={key: term for key, term in descriptor.steps.items() if key[1]})
    block = _block_axes(loops)
    walk = _AddressWalk(channels, [1] * (block + PE_AXES + len(inst.pattern)), ("k",))
    walk.start[0] = inst.number("param") * words
    if not (walk.loops(loops) and walk.pes(inst, grid, block)):
        return None
    walk.pattern(inst.pattern)
    return Strided(
        descriptor.base + walk.start[0] + walk.start[1], tuple(walk.sizes), tuple(s for s, _, _ in walk.steps)
    )


def even(inst: Instruction, grid: Grid, loops: Sequence[Index], descriptor: Descriptor) -> EvenPositions | None:
    """The positions [block…, *PE axes, *pattern] of an instruction if they step evenly, else None (DESC-2, DESC-4)."""
    block = _block_axes(loops)
    walk = _AddressWalk(descriptor, [1] * (block + PE_AXES + len(inst.pattern)))
    walk.start = [inst.number("offset"), inst.number("channel") * descriptor.plane, inst.number("y"), inst.number("x")]
    if not (walk.loops(loops) and walk.pes(inst, grid, block)):
        return None
    walk.pattern(inst.pattern)
    return walk.positions()


def addresses_of(
    inst: Instruction, grid: Grid, loops: Sequence[Index], descriptor: Descriptor
) -> tuple[Strided | Ints, Mask | None]:
    """The addresses [block…, *PE axes, *pattern] of an instruction, and a mask of those inside the bounds.

    Without a mask, all are inside (DESC-2 to DESC-4).
    """
    where = even(inst, grid, loops, descriptor)
    if where is not None and where.inside(descriptor) and (addresses := where.addresses(descriptor)) is not None:
        return addresses, None
    return position(inst, grid, loops).address(descriptor)


def even_from(
    start: Sequence[int], loops: Sequence[Index], pattern: Sequence[tuple[int, FieldTerm]], descriptor: Descriptor
) -> EvenPositions | None:
    """The positions [*pattern] from start (lin, k, y, x) on, without PEs, if they step evenly, else None."""
    walk = _AddressWalk(descriptor, [1] * len(pattern))
    walk.start = [start[0], start[1] * descriptor.plane, *start[2:]]
    if not walk.loops(loops):
        return None
    walk.pattern(pattern)
    return walk.positions()


def _block_axes(loops: Sequence[Index]) -> int:
    return max((loop.ndim for loop in loops if not isinstance(loop, int)), default=0)


class _AddressWalk:
    """Collects the sizes and steps of axes, one after the other.

    counted: the axes of memory on which the terms of PEs and pattern count.
    """

    def __init__(self, descriptor: Descriptor, sizes: list[int], counted: Sequence[str] = AXES) -> None:
        self.descriptor, self.sizes, self.counted = descriptor, sizes, counted
        self.steps = [(0, 0, 0)] * len(sizes)
        self.start = [0, 0, 0, 0]  # lin, k, y, x

    def positions(self) -> EvenPositions:
        """The positions of all axes so far."""
        lin, k, y, x = self.start
        return EvenPositions(tuple(self.sizes), (self.descriptor.base + lin + k, y, x), tuple(self.steps))

    def pattern(self, pattern: Sequence[tuple[int, FieldTerm]]) -> None:
        """Add the pattern, the last axes."""
        for axis, (extent, term) in enumerate(pattern, len(self.sizes) - len(pattern)):
            if term.axis in self.counted:
                self.along(axis, extent, term)

    def along(self, axis: int, size: int, term: FieldTerm, first: int = 0) -> None:
        """Add a term of an index that runs from `first` on along an axis; a loop's index may have several terms."""
        self.shift(term, first)
        self.sizes[axis] = size
        lin, y, x = self.steps[axis]
        match term.axis:
            case "lin":
                self.steps[axis] = (lin + term.step, y, x)
            case "k":
                self.steps[axis] = (lin + term.step * self.descriptor.plane, y, x)
            case "y":
                self.steps[axis] = (lin, y + term.step, x)
            case _:
                self.steps[axis] = (lin, y, x + term.step)

    def shift(self, term: FieldTerm, index: int) -> None:
        """Add a term of a constant index."""
        self.start[AXES.index(term.axis)] += index * term.step * (self.descriptor.plane if term.axis == "k" else 1)

    def loops(self, loops: Sequence[Index]) -> bool:
        """Add the loops around; False if a wrap breaks the steps of a loop that is an array axis."""
        linear = range(self.start[0], self.start[0] + 1)
        for (register, _), term in self.descriptor.steps.items():
            if register >= len(loops) or not term.step:
                continue
            loop = loops[register]
            if isinstance(loop, int):
                count, first = 1, loop
                self.shift(term, first)
            else:
                count, first = loop.size, int(loop.flat[0])
                self.along(loop.shape.index(count), count, term, first)
            if term.axis == "lin":
                ends = sorted((first * term.step, (first + count - 1) * term.step))
                linear = range(linear.start + ends[0], linear.stop + ends[1])
        return self._wrapped(linear)

    def _wrapped(self, linear: range) -> bool:
        wrap = self.descriptor.wrap
        if not wrap:
            return True
        # If all positions are in one turn, the wrap is a constant and the addresses remain even.
        turn = linear.start // wrap
        self.start[0] -= turn * wrap
        return (linear.stop - 1) // wrap == turn

    def pes(self, inst: Instruction, grid: Grid, block: int) -> bool:
        """Add the rows and columns of PEs; False if a set is cut short."""
        row, row_set, col, col_set = (inst.term(name) for name in ("row", "row_set", "col", "col_set"))
        if grid.rows != grid.set_rows and (row.step or row_set.step):
            return False
        if grid.cols != grid.set_cols and (col.step or col_set.step):
            return False
        counts = (grid.row_sets, grid.rows, grid.col_sets, len(grid.columns))
        for axis, (size, term) in enumerate(zip(counts, (row_set, row, col_set, col), strict=True), block):
            if term.step and term.axis in self.counted:
                # Sets are whole here, so with `edge` the axis of columns has one index: the set's last column.
                self.along(axis, size, term, grid.columns[0] if axis == block + 3 else 0)
        return True
