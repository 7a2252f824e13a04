"""Register files of the PEs: halves and their slots (TOKEN-1 to TOKEN-3, MEM-5, MAC-1 to MAC-3).

Arrays have axes [image, block loops…, set by rows, row, set by columns, column, slot]; an axis has size 1 if the values
are equal along it. Operands are int16, or int32 if one does not fit (DESC-3). Products and sums are float64: all sums
of this machine are below 2^53, hence exact. In memory, slots are the outermost axis, and the other axes keep the order
of the array they came from. Copies and matrix products then run along neighbouring words.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from cnncc.arch.model import Arch
from cnncc.isa.table import Instruction
from cnncc.machine.values.addresses import PE_AXES, Grid, Ints, Mask
from cnncc.machine.values.strided import Strided

PIXEL_CHANNEL_LANE = 3  # axes of the slots of a macro-instruction whose lanes have psums of their own (MAC-7)

Values = npt.NDArray[np.float64]
Words = npt.NDArray[np.int16 | np.int32]


class HalfFault(Exception):
    """A trap of PEs or output units. The message names the operand and the cause; the interpreter adds the place."""


def active_grid(inst: Instruction, set_rows: int, arch: Arch) -> Grid:
    """The active PEs of an instruction, in sets of `set_rows` rows (DESC-4). Raises HalfFault for PEs outside."""
    grid = Grid.of(inst, set_rows)
    row0, col0, rows, cols = grid.rectangle
    if row0 + rows > arch.rows or col0 + cols > arch.cols:
        raise HalfFault(f"{grid.text} are not all in the {arch.rows} x {arch.cols} PEs")
    return grid


@dataclass
class Half:
    """One half of a register file.

    Attributes:
        data       [image, block…, *grid, slot]
        filled     [*grid, slot], a mask
        reserved   a larger array that starts with `data`, for more slots to come; or None
        loaded     the end of the slots that loads filled
        virtual    the slots that loads with `edge` filled (MAC-6 tells them apart)
    """

    grid: Grid
    data: npt.NDArray[Any]
    filled: Mask
    reserved: npt.NDArray[Any] | None = None
    loaded: int = 0
    virtual: range = range(0)

    @classmethod
    def empty(cls, grid: Grid, axes: int, kind: type[np.number[Any]] = np.int16) -> Half:
        """A half without slots, in a block of `axes` loops."""
        ones = (1,) * PE_AXES
        return cls(grid, np.zeros((1,) * (1 + axes) + ones + (0,), kind), np.zeros((*ones, 0), np.bool_))

    def copy(self) -> Half:
        """A half that shares nothing with this one."""
        return replace(self, data=self.data.copy(), filled=self.filled.copy(), reserved=None)

    def spread(self) -> None:
        """Give every PE its own copy and forget the sets, so that any rectangle can be compared with any other."""
        lead = self.data.shape[: -PE_AXES - 1]
        row0, col0, rows, cols = self.grid.rectangle
        before, after = (*self.grid.shape, self.data.shape[-1]), (1, rows, 1, cols, self.data.shape[-1])
        self.data, self.reserved = np.broadcast_to(self.data, (*lead, *before)).reshape(*lead, *after), None
        self.filled = np.broadcast_to(self.filled, before).reshape(after)
        self.grid = Grid(row0, col0, 1, rows, 1, cols, rows, cols)

    def window(self, grid: Grid, operand: str) -> Half:
        """The part of this half under `grid`. Raises HalfFault if the half does not cover all its PEs."""
        if grid == self.grid:
            return self
        part = replace(self, reserved=None)
        part.spread()
        row, col = grid.row0 - self.grid.row0, grid.col0 - self.grid.col0
        _, _, rows, cols = grid.rectangle
        if min(row, col) < 0 or row + rows > part.grid.rows or col + cols > part.grid.cols:
            raise HalfFault(f"{grid.text} are not all among the PEs with {operand}: {self.grid.text}")
        part.data = part.data[..., row : row + rows, :, col : col + cols, :]
        part.filled = part.filled[:, row : row + rows, :, col : col + cols, :]
        lead = part.data.shape[: -PE_AXES - 1]
        part.data = part.data.reshape(*lead, *grid.shape, part.data.shape[-1])
        part.filled = part.filled.reshape(*grid.shape, part.filled.shape[-1])
        part.grid = grid
        return part

    def replace(self, part: Half) -> None:
        """Take over what has changed in `part`, a window of this half."""
        self.spread()
        self.grow(part.data.shape[-1])
        part.spread()
        row, col, rows, cols = part.grid.rectangle
        row, col = row - self.grid.row0, col - self.grid.col0
        lead = np.broadcast_shapes(self.data.shape[: -PE_AXES - 1], part.data.shape[: -PE_AXES - 1])
        self.data, self.reserved = np.broadcast_to(self.data, (*lead, *self.data.shape[-PE_AXES - 1 :])).copy(), None
        self.filled = self.filled.copy()
        self.data[..., row : row + rows, :, col : col + cols, :] = part.data
        self.filled[:, row : row + rows, :, col : col + cols, :] = part.filled

    def put(self, slot: int, words: Words, edge: bool, most: int) -> None:
        """Fill slots from `slot` on with words [image, block…, *grid or 1s, *pattern].

        - edge: fill those of each set's last column alone; the words' axis of columns has these columns, or size 1
        - most: the number of slots that the half may come to have
        """
        axes = self.data.ndim - 1
        lead, pattern = words.shape[:axes], words.shape[axes:]
        end = slot + prod(pattern)
        if edge:
            self.virtual = range(min(slot, self.virtual.start) if self.virtual else slot, max(end, self.virtual.stop))
        else:
            self.loaded = max(end, self.loaded)
        # With `edge` some columns get words and others do not, so each needs slots of its own.
        pes = (1, 1, 1, self.grid.cols) if edge else (1,) * PE_AXES
        self._reserve(
            np.broadcast_shapes(self.data.shape[:-1], (*lead[:-1], 1) if edge else lead, pes), end, most, words
        )
        self.filled = self._filled(np.broadcast_shapes(self.filled.shape[:-1], pes))
        columns = self.grid.last_columns
        if edge and len(columns) > 1:
            self.data[..., columns, slot:end] = words.reshape(*lead, end - slot)
            self.filled[..., columns, slot:end] = True
            return
        taking = slice(columns[0], columns[0] + 1) if edge else slice(None)
        steps = tuple(prod(pattern[axis + 1 :]) for axis in range(len(pattern)))
        Strided(slot, pattern, steps).of(self.data[..., taking, :])[...] = words
        self.filled[..., taking, slot:end] = True

    def _reserve(self, lead: tuple[int, ...], slots: int, most: int, like: Words) -> None:
        """Have leading axes `lead` and at least `slots` slots, with axes in memory in the order of those of `like`."""
        before, kind = self.data.shape[-1], np.promote_types(self.data.dtype, like.dtype)
        if (
            (self.data.shape[:-1], self.data.dtype) != (lead, kind)
            or self.reserved is None
            or slots > self.reserved.shape[-1]
        ):
            old = self.data
            # In the order of the words' own strides, copies into the half run through memory in long runs.
            order = sorted(range(len(lead)), key=lambda axis: (-abs(like.strides[axis]), lead[axis]))
            # Room for the whole half: its loads may fill it in many parts, and none of them copies what is there.
            reserved = np.empty((max(slots, most), *(lead[axis] for axis in order)), kind)
            self.reserved = reserved.transpose(*(1 + order.index(axis) for axis in range(len(lead))), 0)
            self.reserved[..., :before] = old
        self.data = self.reserved[..., : max(before, slots)]

    def _filled(self, lead: tuple[int, ...]) -> Mask:
        """A new mask of filled slots, with leading axes `lead` and all the slots of the data."""
        filled = np.zeros((*lead, self.data.shape[-1]), np.bool_)
        filled[..., : self.filled.shape[-1]] = self.filled
        return filled

    def grow(self, slots: int) -> None:
        """Have at least `slots` slots, the new ones empty."""
        if (more := slots - self.data.shape[-1]) <= 0:
            return
        if self.reserved is not None and slots <= self.reserved.shape[-1]:
            self.data = self.reserved[..., :slots]
        else:
            new = np.zeros((*self.data.shape[:-1], more), self.data.dtype)
            self.data, self.reserved = np.concatenate([self.data, new], axis=-1), None
        self.filled = self._filled(self.filled.shape[:-1])

    def read(self, slots: Strided, operand: str) -> npt.NDArray[Any]:
        """A view [image, block…, *grid, *slots.sizes] of slots. Raises HalfFault for an empty slot (MEM-5)."""
        low, high = slots.ends
        if low < 0 or high >= self.data.shape[-1]:
            raise HalfFault(f"{operand} slot {low if low < 0 else high} is read but empty")
        if not self.filled.all():
            full: Mask = np.asarray(self.filled.reshape(-1, self.filled.shape[-1]).all(axis=0))
            if not (read := slots.of(full)).all():
                raise HalfFault(f"{operand} slot {int(slots.listed()[~read].flat[0])} is read but empty in some PE")
        return slots.of(self.data)

    def shift_west(self, slot: int, reuse: int) -> None:
        """n2n: every PE except its set's last column takes slots from its east neighbour (MAC-3). Raises HalfFault."""
        self.grow(slot + reuse)
        self._own_columns()
        takers, senders = self._neighbours()
        # Word k comes from slot k and goes to slot `slot` + k. So `slot` words at a time have targets behind all their
        # sources.
        run = max(slot, 1)
        for start in range(0, reuse, run):  # words that the neighbour itself receives travel on in the next run
            end = min(start + run, reuse)
            if not self.filled[..., senders, start:end].all():
                raise HalfFault("ifmap words are sent to the west neighbour from empty slots")
            self.data[..., takers, slot + start : slot + end] = self.data[..., senders, start:end]
            self.filled[..., takers, slot + start : slot + end] = True

    def _neighbours(self) -> tuple[slice | Ints, slice | Ints]:
        """The columns that take words, and their east neighbours, which send them."""
        last = self.grid.last_columns
        if len(last) == 1:
            return slice(0, last[0]), slice(1, last[0] + 1)
        takers = np.setdiff1d(np.arange(self.grid.cols), last)
        return takers, takers + 1

    def _own_columns(self) -> None:
        """Have an entry for every column, in arrays that this half alone holds."""
        shape = (*self.data.shape[:-2], self.grid.cols, self.data.shape[-1])
        # What `np.broadcast_to` has made is read-only: several columns share its words.
        if self.data.shape != shape or not self.data.flags.writeable:
            self.data, self.reserved = np.broadcast_to(self.data, shape).copy(), None
        self.filled = np.broadcast_to(self.filled, (*self.filled.shape[:-2], *shape[-2:])).copy()


@dataclass
class Halves:
    """The halves of an operand's register file: one being filled, those full, the one in use."""

    opened: Half | None = None
    full: list[Half] = field(default_factory=list[Half])
    current: Half | None = None

    def copy(self) -> Halves:
        """Halves that share nothing with these."""
        opened, current = (half.copy() if half else None for half in (self.opened, self.current))
        return Halves(opened, [half.copy() for half in self.full], current)

    def held(self) -> list[Half]:
        """Every half that holds something."""
        return [half for half in (self.opened, *self.full, self.current) if half is not None]


@dataclass
class PsumHalf:
    """A psum half. All its slots start with `least`: 0, or what a maximum starts from.

    - scope: the block axes whose iterations have their own halves; the block's other axes are summed over.
    - bound: [image or 1, block…, *grid or 1s, slot], an upper bound of the magnitude of every sum so far.
    """

    half: Half
    least: float
    scope: frozenset[int]
    bound: Values

    @classmethod
    def fresh(cls, grid: Grid, axes: int, least: float, scope: frozenset[int]) -> PsumHalf:
        """A half after `clear`."""
        half = Half.empty(grid, axes, np.float64)
        return cls(half, least, scope, half.data)

    def grow(self, slots: int) -> None:
        """Have at least `slots` slots."""
        if (more := slots - self.half.data.shape[-1]) <= 0:
            return
        self.half.grow(slots)
        self.half.data[..., -more:] = self.least
        self.half.filled[..., -more:] = True
        self.bound = np.concatenate([self.bound, np.full((*self.bound.shape[:-1], more), abs(self.least))], axis=-1)

    def add(self, slots: Strided, amount: Values, bound: Values) -> None:
        """Add `amount` [image, block…, *grid, *slots or 1s] to `slots`, every slot named once."""
        self.half.data = _into(self.half.data, slots, amount, np.add)
        self.bound = _into(self.bound, slots, bound, np.add)

    def raise_to(self, slots: Strided, values: npt.NDArray[Any]) -> None:
        """Replace the sums by the greater of each and `values`, shaped as of `add`; their bound is then unknown."""
        self.half.data = _into(self.half.data, slots, values, np.maximum)
        self.bound = np.full((*[1] * (self.bound.ndim - 1), self.bound.shape[-1]), np.inf)

    def measure(self) -> None:
        """Take the sums' own magnitudes as their bound."""
        self.bound = np.abs(self.half.data).max(axis=0, keepdims=True)


def _into(data: Values, slots: Strided, values: npt.NDArray[Any], combine: np.ufunc) -> Values:
    """A copy of `data` [lead…, slot] with `values` combined into its slots; all axes broadcast.

    values: [lead…, *slots], the last one of [pixel, channel, lane] merged with the channels'.
    """
    if len(slots.sizes) == PIXEL_CHANNEL_LANE:
        own = slots.sizes[1:] if values.shape[-1] > 1 else (1, 1)
        values = values.reshape(*values.shape[:-1], *own)
    lead = np.broadcast_shapes(data.shape[:-1], values.shape[: -len(slots.sizes)])
    if slots.size == data.shape[-1] and slots.in_order:
        return combine(data.reshape(*data.shape[:-1], *slots.sizes), values).reshape(*lead, slots.size)
    result = np.empty((*lead, data.shape[-1]), data.dtype)
    result[...] = data
    part = slots.of(result)
    combine(part, values, out=part)
    return result
