"""The sums of products of a block, as matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from cnncc.machine.values.regfile import Values, Words


def multiply(x: Words, w: Words, reduced: frozenset[int]) -> tuple[Values, Values]:
    """Σ x[…, z, j] * w[…, j, i] over taps j and the `reduced` axes, as […, z, i], and Σ |w| as […, 1, i].

    Leading axes broadcast; `reduced` axes keep size 1. Each leading axis has one of four kinds, so that the sum is a
    matrix product: rows (only x varies), columns (only w varies), stacked matrices (both vary), summed.
    """
    left, right = x, w
    for axis in reduced:  # the operand that varies alone is summed first: the same sum from fewer products
        if x.shape[axis] == 1 < w.shape[axis]:
            right = right.sum(axis, keepdims=True)
        elif w.shape[axis] == 1 < x.shape[axis]:
            left = left.sum(axis, keepdims=True)
    axes = _Axes.of(left, right, reduced)
    columns, rows = axes.columns_by_inner(right), axes.inner_by_rows(left)
    product = axes.spread(np.matmul(columns, rows), left, right)
    if right is not w:
        return product, np.abs(w, dtype=np.float64).sum(axis=(*reduced, w.ndim - 2), keepdims=True)
    np.abs(columns, out=columns)
    return product, axes.spread(columns.sum(axis=-1, keepdims=True), None, right)


@dataclass(frozen=True)
class _Axes:
    """The leading axes by kind. lead: their count, hence also the number of the next axis, pixels or taps."""

    lead: int
    stacked: list[int]
    columns: list[int]
    rows: list[int]
    summed: list[int]

    @classmethod
    def of(cls, x: npt.NDArray[Any], w: npt.NDArray[Any], reduced: frozenset[int]) -> _Axes:
        lead = x.ndim - 2
        free = [axis for axis in range(lead) if axis not in reduced]
        stacked = [axis for axis in free if x.shape[axis] > 1 and w.shape[axis] > 1]
        columns = [axis for axis in free if x.shape[axis] == 1 and w.shape[axis] > 1]
        rows = [axis for axis in free if axis not in stacked and axis not in columns]
        rows.sort(key=lambda axis: (-abs(x.strides[axis]), x.shape[axis]))  # as they lie: long runs
        return cls(lead, stacked, columns, rows, sorted(reduced))

    def inner_by_rows(self, x: npt.NDArray[Any]) -> Values:
        """x as [*stack, tap and summed axes, row axes and pixel]."""
        moved = x.transpose(*self.stacked, self.lead + 1, *self.summed, *self.rows, self.lead, *self.columns)
        stack = [x.shape[axis] for axis in self.stacked]
        inner = prod(x.shape[axis] for axis in self.summed) * x.shape[-1]
        return np.ascontiguousarray(moved, np.float64).reshape(*stack, inner, -1)

    def columns_by_inner(self, w: npt.NDArray[Any]) -> Values:
        """w as [*stack, column axes and channel, tap and summed axes]."""
        moved = w.transpose(*self.stacked, *self.columns, self.lead + 1, self.lead, *self.summed, *self.rows)
        stack = [w.shape[axis] for axis in self.stacked]
        inner = prod(w.shape[axis] for axis in self.summed) * w.shape[-2]
        return np.ascontiguousarray(moved, np.float64).reshape(*stack, -1, inner)

    def spread(self, product: Values, x: npt.NDArray[Any] | None, w: npt.NDArray[Any]) -> Values:
        """[*stack, columns, rows] as [*leading axes, pixel, channel], size 1 along rows and pixels without x."""
        rows = [*self.rows, self.lead]
        shape = [
            *(w.shape[axis] for axis in (*self.stacked, *self.columns, self.lead + 1)),
            *(x.shape[axis] if x is not None else 1 for axis in rows),
            *(1 for _ in self.summed),
        ]
        order = [*self.stacked, *self.columns, self.lead + 1, *rows, *self.summed]
        return product.reshape(shape).transpose([order.index(axis) for axis in range(self.lead + 2)])
