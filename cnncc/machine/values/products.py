"""The sums of products of a block, as matrix products; sums and maxima of words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np
import numpy.typing as npt

from cnncc.machine.values.regfile import Values, Words

_MOST_PRODUCTS = 1 << 23  # the most words of one product; beyond, the taps are split in halves, to save memory


def terms(x: Words) -> Words:
    """The words of an operand with the lanes as further taps: [image, block…, *grid, pixel, tap and lane, channel]."""
    *lead, taps, lanes, channels = x.shape
    return x.reshape(*lead, taps * lanes, channels)


def greatest_words(x: Words, reduced: Mapping[int, int]) -> Words:
    """The greatest of the words of each psum, as [image, block…, *grid, pixel, channel]; `reduced` axes keep size 1."""
    return terms(x).max(axis=-2).max(axis=tuple(reduced), keepdims=True)


def sum_of_words(x: Words, reduced: Mapping[int, int]) -> Values:
    """The sums of words; shapes as of `greatest_words`."""
    # What is the same in all iterations along an axis has size 1 there, but each iteration adds it.
    repeats = prod(n for axis, n in reduced.items() if x.shape[axis] == 1)
    return terms(x).sum(axis=-2, dtype=np.float64).sum(axis=tuple(reduced), keepdims=True) * repeats


def sums_of_products(x: Words, w: Words, reduced: Mapping[int, int]) -> Values:
    """The sums of products; shapes as of `greatest_words`."""
    if max(x.size, w.size) > _MOST_PRODUCTS and (half := x.shape[-3] // 2):
        halves = slice(half), slice(half, None)
        low, high = (sums_of_products(x[..., taps, :, :], w[..., taps, :, :], reduced) for taps in halves)
        return low + high
    x, w = terms(x), terms(w)
    axes = frozenset(reduced)
    neither = prod(n for axis, n in reduced.items() if x.shape[axis] == w.shape[axis] == 1)
    # As in a convolution: all channels use the same word of the ifmap, all pixels the same weight.
    if x.shape[-1] == w.shape[-3] == 1:
        added = _multiply(x[..., 0], w[..., 0, :, :], axes)
    else:
        added = _elementwise(x.astype(np.float64), w.astype(np.float64), axes)
    return added if neither == 1 else added * neither


def bounds(x: Words, w: Words, reduced: Mapping[int, int]) -> Values:
    """A bound on the magnitude of any part of each of the sums of products: max |x| * Σ |w|."""
    if w.size > _MOST_PRODUCTS and (half := w.shape[-3] // 2):
        low, high = (bounds(x, w[..., taps, :, :], reduced) for taps in (slice(half), slice(half, None)))
        return low + high
    repeats = prod(n for axis, n in reduced.items() if w.shape[axis] == 1)
    magnitudes = np.abs(terms(w), dtype=np.float64).sum(axis=-2).sum(axis=tuple(reduced), keepdims=True)
    return magnitudes * (_greatest(x) * repeats)


def bound(x: Words, w: Words | None, reduced: Mapping[int, int]) -> float:
    """A bound on the magnitude of any part of all these sums: max |x| * max |w| * terms. Quicker than `bounds`."""
    of_terms = _greatest(x) * (1.0 if w is None else _greatest(w))
    return of_terms * x.shape[-3] * x.shape[-2] * prod(reduced.values())


def dot(x: Values, w: Values | None) -> Values:
    """The sum of the products of a step [image, block…, *grid, lane]; of the words where there are no weights."""
    return np.asarray((x if w is None else x * w).sum(axis=-1), np.float64)


def _greatest(x: Words) -> float:
    """max |x|."""
    return float(max(int(x.max()), -int(x.min())))


def _elementwise(x: Values, w: Values, reduced: frozenset[int]) -> Values:
    """Σ x * w over the taps and the `reduced` axes; the taps' axis goes, `reduced` axes keep size 1."""
    axes, taps = ascii_letters[: x.ndim], x.ndim - 2
    kept = "".join(letter for axis, letter in enumerate(axes) if axis != taps and axis not in reduced)
    added: Values = np.einsum(f"{axes},{axes}->{kept}", x, w)
    return np.expand_dims(added, tuple(sorted(reduced)))


def _multiply(x: Words, w: Words, reduced: frozenset[int]) -> Values:
    """Σ x[…, z, j] * w[…, j, i] over taps j and the `reduced` axes, as […, z, i].

    Leading axes broadcast; `reduced` axes keep size 1. Each leading axis has one of four kinds, so that the sum is a
    matrix product: rows (only x varies), columns (only w varies), stacked matrices (both vary), summed.
    """
    for axis in reduced:  # the operand that varies alone is summed first: the same sum from fewer products
        if x.shape[axis] == 1 < w.shape[axis]:
            w = w.sum(axis, keepdims=True)
        elif w.shape[axis] == 1 < x.shape[axis]:
            x = x.sum(axis, keepdims=True)
    axes = _Axes.of(x, w, reduced)
    return axes.spread(np.matmul(axes.columns_by_inner(w), axes.inner_by_rows(x)), x, w)


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

    def spread(self, product: Values, x: npt.NDArray[Any], w: npt.NDArray[Any]) -> Values:
        """[*stack, columns, rows] as [*leading axes, pixel, channel]."""
        rows = [*self.rows, self.lead]
        shape = [
            *(w.shape[axis] for axis in (*self.stacked, *self.columns, self.lead + 1)),
            *(x.shape[axis] for axis in rows),
            *(1 for _ in self.summed),
        ]
        order = [*self.stacked, *self.columns, self.lead + 1, *rows, *self.summed]
        return product.reshape(shape).transpose([order.index(axis) for axis in range(self.lead + 2)])
