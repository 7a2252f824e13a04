"""Memories and addresses for the evaluator of the `array` dialect (rules MEM-3, DESC-1 to DESC-4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from cnncc.dialects import array as A
from cnncc.errors import Refusal
from cnncc.eval._register_files import Mask
from cnncc.numerics import Ints


def addresses(tensor: A.Tensor) -> Ints:
    """The words of a tensor in order, counted from its first one; a part of another has gaps between them."""
    if not tensor.part_of or not tensor.shape:
        return np.arange(tensor.words)
    dims = (*tensor.shape, 1, 1)[:4]
    plane, pitch = tensor.plane or dims[2] * dims[3], tensor.pitch or dims[3]
    steps = (tensor.image or dims[1] * plane, plane, pitch, tensor.column or 1)
    return np.ravel(sum(np.ix_(*(step * np.arange(size) for step, size in zip(steps, dims, strict=True)))))


@dataclass
class Words:
    """The words of one tensor, int64[images, words], and a mask of the words written so far.

    rivals: tensors at the same places, each with its distance; a write to this tensor destroys their words.
    in_use: whether any word is written. Of the many rivals in a GLB few are in use at a time.
    """

    name: str
    words: Ints
    written: Mask
    rivals: list[tuple[Words, int]] = field(default_factory=lambda: list[tuple["Words", int]]())
    in_use: bool = False

    def share(self, other: Words, distance: int) -> None:
        """Say that `other` begins `distance` words after this tensor."""
        # Only tensors that overlap are rivals. Word a of this one is word a - distance of the other.
        if distance < self.written.size and -distance < other.written.size:
            self.rivals.append((other, -distance))
            other.rivals.append((self, distance))

    @classmethod
    def empty(cls, tensor: A.Tensor, images: int) -> Words:
        """No word written."""
        return cls(tensor.name, np.zeros((images, tensor.words), np.int64), np.zeros(tensor.words, np.bool_))

    def _check(self, address: Ints) -> None:
        if address.size and (address.min() < 0 or address.max() >= self.written.size):
            raise Refusal(
                f"words {address.min()}..{address.max()} of tensor {self.name} do not exist, it has {self.written.size}"
            )

    def read(self, address: Ints) -> Ints:
        """[images, *address.shape]."""
        self._check(address)
        if not self.written[address].all():
            raise Refusal(f"a word of tensor {self.name} is read that was never written, or that another took")
        return self.words[:, address]

    def write(self, address: Ints, values: Ints) -> None:
        """Store values [images, *address.shape]."""
        self._check(address)
        self.words[:, address] = values
        self.written[address] = True
        self.in_use = self.in_use or address.size > 0
        for rival, distance in self.rivals:
            if rival.in_use:
                rival._lose(address + distance)

    def _lose(self, address: Ints) -> None:
        """Forget the words at `address`, which may lie outside."""
        inside = address[(address >= 0) & (address < self.written.size)]
        if inside.size:
            self.written[inside] = False
            self.in_use = bool(self.written.any())


@dataclass
class TensorPart:
    """A tensor that is part of another: `size` words of `whole` from word `offset` on."""

    whole: Words
    offset: int
    size: int

    def _inside(self, address: Ints) -> Ints:
        if address.size and (address.min() < 0 or address.max() >= self.size):
            raise Refusal(f"words {address.min()}..{address.max()} of a part of {self.whole.name} do not exist")
        return address + self.offset

    def read(self, address: Ints) -> Ints:
        """[images, *address.shape]."""
        return self.whole.read(self._inside(address))

    def write(self, address: Ints, values: Ints) -> None:
        """Store values [images, *address.shape]."""
        self.whole.write(self._inside(address), values)


@dataclass(frozen=True)
class LoopIndices:
    """The loops that are running: index and count by name (PROG-2)."""

    running: Mapping[str, tuple[int, int]]

    def _index(self, name: str) -> tuple[int, int]:
        if name not in self.running:
            raise Refusal(f"loop {name} is not around this op; there are {', '.join(self.running) or 'none'}")
        return self.running[name]

    def first(self, names: A.Names | None) -> bool:
        """Whether all these loops are in their first iteration."""
        return names is not None and all(self._index(name)[0] == 0 for name in names)

    def last(self, names: A.Names | None) -> bool:
        """Whether all these loops are in their last iteration."""
        return names is not None and all(index == count - 1 for index, count in map(self._index, names))

    def sums(self, view: A.View) -> dict[str, int]:
        """The terms of a view's loops on each axis; a loop that is not running has index 0."""
        total: dict[str, int] = dict.fromkeys(A.AXES, 0)
        for term in view.steps:
            total[term.axis] += term.step * self.running.get(term.loop, (0, 1))[0]
        return total


@dataclass(frozen=True)
class Coordinates:
    """An instruction's positions. terms: by axis, [row, column, pattern…]. ends: by axis, the least and greatest."""

    offset: int
    terms: Mapping[str, Ints]
    ends: Mapping[str, tuple[int, int]]
    _known: dict[tuple[int, ...], Ints] = field(default_factory=dict[tuple[int, ...], Ints])

    def address(self, view: A.View, loops: LoopIndices) -> tuple[Ints, Mask | None]:
        """Word addresses in the view's tensor (DESC-2), and a mask of those in bounds (DESC-3); None: all are."""
        loop = loops.sums(view)
        linear = self.offset + loop["lin"]
        if view.wrap:
            linear %= view.wrap
        linear += loop["k"] * view.plane
        column = view.column or 1
        # A ring wraps rows (columns) with the terms of loops in them, so these cannot be left out of what is known.
        if view.ring_y or view.ring_x:
            y, x = self.terms["y"] + loop["y"], self.terms["x"] + loop["x"]
            y, x = y % view.ring_y if view.ring_y else y, x % view.ring_x if view.ring_x else x
            address = self._without_loops(view.plane, 0, 0) + (linear + y * view.pitch + x * column)
        else:
            linear += loop["y"] * view.pitch + loop["x"] * column
            address = self._without_loops(view.plane, view.pitch, column) + linear
        return address, self._inside(view, loop) if view.height else None

    def _without_loops(self, *steps: int) -> Ints:
        """The part of addresses that no loop changes. steps: words from channel to channel, row to row, column …"""
        if steps not in self._known:
            k, y, x = (self.terms[axis] * step for axis, step in zip("kyx", steps, strict=True))
            self._known[steps] = self.terms["lin"] + k + y + x
        return self._known[steps]

    def _inside(self, view: A.View, loop: Mapping[str, int]) -> Mask | None:
        mask: Mask | None = None
        for axis, size in (("y", view.height), ("x", view.width)):
            first, last = self.ends[axis]
            if first + loop[axis] < 0 or last + loop[axis] >= size:
                index = self.terms[axis] + loop[axis]
                within = (index >= 0) & (index < size)
                mask = within if mask is None else mask & within
        return mask


def _axes(count: int, number: int, of: int) -> Ints:
    """0 … count - 1 along axis `number` of `of`."""
    return np.arange(count).reshape([-1 if axis == number else 1 for axis in range(of)])


@lru_cache(maxsize=128)
def position(place: A.Place, start: A.Start, pattern: tuple[A.Extent, ...]) -> Coordinates:
    """The positions of a load or commit: its start, the terms of its PEs and of its pattern (DESC-2, DESC-4)."""
    axes = 2 + len(pattern)
    shape = (place.rows, place.cols, *(extent.n for extent in pattern))
    rows, cols = _axes(place.rows, 0, axes), _axes(place.cols, 1, axes)
    indices = [
        (place.row, rows % place.set_rows),
        (place.row_set, rows // place.set_rows),
        (place.col, cols % place.set_cols),
        (place.col_set, cols // place.set_cols),
    ]
    starts = {"lin": 0, "k": start.channel, "y": start.y, "x": start.x}
    terms = {axis: np.full(shape, starts[axis], np.int64) for axis in A.AXES}
    for term, index in indices:
        terms[term.axis] += term.step * index
    for number, extent in enumerate(pattern):
        terms[extent.axis] += extent.step * _axes(extent.n, 2 + number, axes)
    ends = {axis: (int(term.min()), int(term.max())) for axis, term in terms.items()}
    return Coordinates(start.offset, terms, ends)


@lru_cache(maxsize=1024)
def slots(of: A.Slots, counts: tuple[int, ...]) -> Ints:
    """The slots [z, j, i] of three counters (MAC-1, COMMIT-1), or [z, j, i, l] of four."""
    steps = (of.pixel, of.tap, of.channel, of.lane)
    return of.base + np.tensordot(steps[: len(counts)], np.indices(counts), axes=1)


def last_columns(place: A.Place) -> Mask:
    """A mask of the columns of a rectangle that are the last of their set."""
    cols = np.arange(place.cols)
    return (cols % place.set_cols == place.set_cols - 1) | (cols == place.cols - 1)


def rectangle(place: A.Place, rows: int, cols: int) -> tuple[slice, slice]:
    """The active PEs. Raises Refusal for PEs outside an array of `rows` x `cols`."""
    if place.row0 < 0 or place.col0 < 0 or place.row0 + place.rows > rows or place.col0 + place.cols > cols:
        raise Refusal(
            f"{place.rows} x {place.cols} PEs from row {place.row0}, column {place.col0} on are not on an array of "
            f"{rows} x {cols}"
        )
    return slice(place.row0, place.row0 + place.rows), slice(place.col0, place.col0 + place.cols)
