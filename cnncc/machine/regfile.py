"""Register files of the PEs: halves, what is in their slots, and macro-instructions on them (rules T1-T3, W5, A1-A3).

Arrays have axes [image, block loops…, set by rows, row, set by columns, column, slot]; an axis of size 1 holds what is
equal along it. Values are float64, in which every operand, product and sum of this machine is exact (below 2^53).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from cnncc.machine.positions import PE_AXES, Grid, Ints

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Fault(Exception):
    """A trap of the PEs; the message says which operand and why. The interpreter adds where."""


@dataclass
class Half:
    """One half: `data` [image, block…, *grid, slot] and which slots of which PEs are filled [*grid, slot]."""

    grid: Grid
    data: Values
    filled: Mask

    @classmethod
    def empty(cls, grid: Grid, axes: int) -> Half:
        """A half without slots, in a block of `axes` loops."""
        return cls(grid, np.zeros((1,) * (1 + axes + PE_AXES) + (0,)), np.zeros((1,) * PE_AXES + (0,), np.bool_))

    def copy(self) -> Half:
        """A half that shares nothing with this one."""
        return Half(self.grid, self.data.copy(), self.filled.copy())

    def spread(self) -> None:
        """Give every PE its own copy and forget the sets, so that any rectangle can be compared with any other."""
        lead = self.data.shape[: -PE_AXES - 1]
        row0, col0, rows, cols = self.grid.rectangle
        before, after = (*self.grid.shape, self.data.shape[-1]), (1, rows, 1, cols, self.data.shape[-1])
        self.data = np.broadcast_to(self.data, (*lead, *before)).reshape(*lead, *after)
        self.filled = np.broadcast_to(self.filled, before).reshape(after)
        self.grid = Grid(row0, col0, 1, rows, 1, cols, rows, cols)

    def window(self, grid: Grid, operand: str) -> Half:
        """The part of this half under `grid`. Raises Fault where an active PE has none of it."""
        if grid == self.grid:
            return self
        part = Half(self.grid, self.data, self.filled)
        part.spread()
        row, col = grid.row0 - self.grid.row0, grid.col0 - self.grid.col0
        _, _, rows, cols = grid.rectangle
        if min(row, col) < 0 or row + rows > part.grid.rows or col + cols > part.grid.cols:
            raise Fault(f"PEs outside rows {self.grid.row0}.., columns {self.grid.col0}.. have no {operand}")
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
        self.data = np.broadcast_to(self.data, (*lead, *self.data.shape[-PE_AXES - 1 :])).copy()
        self.filled = self.filled.copy()
        self.data[..., row : row + rows, :, col : col + cols, :] = part.data
        self.filled[:, row : row + rows, :, col : col + cols, :] = part.filled

    def put(self, slot: int, values: Values, edge: bool) -> None:
        """Fill slots from `slot` on with values [image, block…, *grid or 1s, n]; `edge`: of the last columns only.

        The values' axis of columns then has those, or size 1.
        """
        count, before = values.shape[-1], self.data.shape[-1]
        if before == slot == 0 and not edge:
            self.data, self.filled = values, np.ones((1,) * PE_AXES + (count,), np.bool_)
            return
        pes = (1, 1, 1, self.grid.cols) if edge else (1,) * PE_AXES
        value_lead = (*values.shape[:-2], 1) if edge else values.shape[:-1]
        lead = np.broadcast_shapes(self.data.shape[:-1], value_lead, pes)
        columns = self.grid.last_columns if edge else slice(None)
        data = np.zeros((*lead, max(before, slot + count)))
        data[..., :before] = self.data
        data[..., columns, slot : slot + count] = values
        filled = np.zeros((*np.broadcast_shapes(self.filled.shape[:-1], pes), data.shape[-1]), np.bool_)
        filled[..., :before] = self.filled
        filled[..., columns, slot : slot + count] = True
        self.data, self.filled = data, filled

    def grow(self, slots: int) -> None:
        """Have at least `slots` slots, the new ones empty."""
        if (more := slots - self.data.shape[-1]) > 0:
            self.data = np.concatenate([self.data, np.zeros((*self.data.shape[:-1], more))], axis=-1)
            self.filled = np.concatenate([self.filled, np.zeros((*self.filled.shape[:-1], more), np.bool_)], axis=-1)

    def read(self, slots: Ints, operand: str) -> Values:
        """The values of `slots` [*any] as [image, block…, *grid, *any]. Raises Fault for an empty slot (W5)."""
        low, high = int(slots.min()), int(slots.max())
        if low < 0 or high >= self.data.shape[-1]:
            raise Fault(f"{operand} slot {low if low < 0 else high} is read but empty")
        if not self.filled.all():
            full: Mask = np.asarray(self.filled.reshape(-1, self.filled.shape[-1]).all(axis=0))
            if not full[slots].all():
                raise Fault(f"{operand} slot {int(slots[~full[slots]].flat[0])} is read but empty in some PE")
        flat = slots.ravel()
        step = int(flat[1] - flat[0]) if flat.size > 1 else 1
        if step > 0 and bool((np.diff(flat) == step).all()):
            taken = self.data[..., int(flat[0]) : int(flat[-1]) + 1 : step]
        else:
            taken = np.take(self.data, flat, axis=-1)
        return taken.reshape(*self.data.shape[:-1], *slots.shape)

    def shift_west(self, slot: int, reuse: int) -> None:
        """n2n: every PE but the last column of its set takes slots from its east neighbour (A3). Raises Fault."""
        self.grow(slot + reuse)
        self._own_columns()
        takers = np.setdiff1d(np.arange(self.grid.cols), self.grid.last_columns)
        run = max(slot, 1)
        for start in range(0, reuse, run):  # what the neighbour received itself travels on in the next run
            end = min(start + run, reuse)
            if not self.filled[..., takers + 1, start:end].all():
                raise Fault("ifmap words are sent to the west neighbour from empty slots")
            self.data[..., takers, slot + start : slot + end] = self.data[..., takers + 1, start:end]
            self.filled[..., takers, slot + start : slot + end] = True

    def _own_columns(self) -> None:
        """Have an entry for every column, in arrays that nothing else shares."""
        shape = (*self.data.shape[:-2], self.grid.cols, self.data.shape[-1])
        if self.data.shape != shape or not self.data.flags.writeable:
            self.data = np.broadcast_to(self.data, shape).copy()
        self.filled = np.broadcast_to(self.filled, (*self.filled.shape[:-2], *shape[-2:])).copy()


@dataclass
class Halves:
    """The halves of an operand's register file: one being filled, those full, the one in use."""

    opened: Half | None = None
    full: list[Half] = field(default_factory=list[Half])
    current: Half | None = None

    def held(self) -> list[Half]:
        """Every half that holds something."""
        return [half for half in (self.opened, *self.full, self.current) if half is not None]


@dataclass
class Sums:
    """A psum half. All its slots hold `least` from the start (0, or the least integer for max).

    scope: the block axes whose every iteration has a half of its own; the others of the block are summed over.
    bound: [image or 1, block…, *grid or 1s, slot], at least the magnitude of every sum so far.
    """

    half: Half
    least: float
    scope: frozenset[int]
    bound: Values

    @classmethod
    def fresh(cls, grid: Grid, axes: int, least: float, scope: frozenset[int]) -> Sums:
        """A half after `clear`."""
        half = Half.empty(grid, axes)
        return cls(half, least, scope, half.data)

    def grow(self, slots: int) -> None:
        """Have at least `slots` slots."""
        if (more := slots - self.half.data.shape[-1]) <= 0:
            return
        self.half.grow(slots)
        self.half.data[..., -more:] = self.least
        self.half.filled[..., -more:] = True
        self.bound = np.concatenate([self.bound, np.full((*self.bound.shape[:-1], more), -self.least)], axis=-1)

    def add(self, slots: Ints, amount: Values, bound: Values) -> None:
        """Add `amount` [image, block…, *grid, *slots] to `slots`, every slot named once."""
        self.half.data = _into(self.half.data, slots, amount, np.add)
        self.bound = _into(
            self.bound, slots, np.broadcast_to(bound, (*bound.shape[: -slots.ndim], *slots.shape)), np.add
        )

    def raise_to(self, slots: Ints, values: Values) -> None:
        """Replace the sums by the greater of each and `values`; their bound is then unknown."""
        self.half.data = _into(self.half.data, slots, values, np.maximum)
        self.bound = np.full((*[1] * (self.bound.ndim - 1), self.bound.shape[-1]), np.inf)


def _into(data: Values, slots: Ints, values: Values, combine: np.ufunc) -> Values:
    """A copy of `data` [lead…, slot] with `values` [lead…, *slots] combined into its slots; leading axes broadcast."""
    flat = values.reshape(*values.shape[: values.ndim - slots.ndim], -1)
    lead = np.broadcast_shapes(data.shape[:-1], flat.shape[:-1])
    where = slots.ravel()
    if where.size == data.shape[-1] and bool((where == np.arange(where.size)).all()):
        return combine(data, flat)
    result = np.broadcast_to(data, (*lead, data.shape[-1])).copy()
    result[..., where] = combine(result[..., where], flat)
    return result


def multiply(x: Values, w: Values, reduced: frozenset[int]) -> Values:
    """Σ over the taps and the `reduced` axes of x[…, z, j] * w[…, j, i], as […, z, i] with reduced axes of size 1.

    Leading axes broadcast. Each is one of four kinds, which turns the sum into a matrix product: only x varies
    (rows), only w varies (columns), both vary (stacked matrices), or it is summed over.
    """
    lead = x.ndim - 2
    for axis in reduced:  # summing first where only one varies is the same sum
        if x.shape[axis] == 1 < w.shape[axis]:
            w = w.sum(axis, keepdims=True)
        elif w.shape[axis] == 1 < x.shape[axis]:
            x = x.sum(axis, keepdims=True)
    free = [axis for axis in range(lead) if axis not in reduced]
    summed = sorted(reduced)
    stacked = [axis for axis in free if x.shape[axis] > 1 and w.shape[axis] > 1]
    columns = [axis for axis in free if x.shape[axis] == 1 and w.shape[axis] > 1]
    rows = [axis for axis in free if axis not in stacked and axis not in columns]
    stack_shape = [x.shape[axis] for axis in stacked]
    row_shape = [*(x.shape[axis] for axis in rows), x.shape[-2]]
    column_shape = [*(w.shape[axis] for axis in columns), w.shape[-1]]
    inner = prod(x.shape[axis] for axis in summed) * x.shape[-1]
    left = x.transpose(*stacked, *rows, lead, *columns, *summed, lead + 1)
    right = w.transpose(*stacked, *summed, lead, *columns, lead + 1, *rows)
    product = np.matmul(
        left.reshape(*stack_shape, prod(row_shape), inner), right.reshape(*stack_shape, inner, prod(column_shape))
    )
    order = [*stacked, *rows, -2, *columns, -1]
    product = product.reshape(*stack_shape, *row_shape, *column_shape)
    result = product.transpose([order.index(axis) for axis in [*free, -2, -1]])
    return np.expand_dims(result, tuple(summed))
