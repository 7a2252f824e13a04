"""Lanes: iterations of loops side by side in numpy, and the buffers that they read. No IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from cnncc.numerics import Ints

Values = npt.NDArray[Any]


def spread(numbers: Ints, axis: int, rank: int) -> Ints:
    """numbers[lane, …] reshaped to broadcast: its other axes begin at `axis` of `rank` axes after the lanes'."""
    inner = numbers.shape[1:]
    return numbers.reshape(numbers.shape[0], *[1] * axis, *inner, *[1] * (rank - axis - len(inner)))


@dataclass(frozen=True)
class LaneBuffer:
    """Parts of an operand: values[b, …] begin at the coordinates origin[b, axis]; lane l reads part of[l]."""

    values: Values
    origin: Ints
    of: Ints

    @staticmethod
    def whole(values: Values, origin: Sequence[int], lanes: int) -> LaneBuffer:
        """One part, for all lanes."""
        return LaneBuffer(values[None], np.array([origin], np.int64), np.zeros(lanes, np.int64))

    def read(self, *coordinates: Ints) -> Values:
        """The values at `coordinates`: an array for each axis, lanes first, that broadcast together.

        Raises IndexError where one is outside the lane's part.
        """
        rank = coordinates[0].ndim - 1
        # One place in all values is several times as quick as an index of each axis.
        place, stride = spread(self.of * prod(self.values.shape[1:]), 0, rank), self.values[0].size
        for axis, (numbers, size) in enumerate(zip(coordinates, self.values.shape[1:], strict=True)):
            inside = numbers - spread(self.origin[self.of, axis], 0, rank)
            if inside.min() < 0 or inside.max() >= size:
                raise IndexError(f"axis {axis}: {inside.min()} to {inside.max()} is outside a buffer of {size}")
            stride //= size
            place = place + inside * stride
        return self.values.reshape(-1).take(place)

    def cut(self, first: Sequence[Ints], sizes: Sequence[int]) -> LaneBuffer:
        """A copy of the slice of `sizes` that begins, in each lane, at `first`."""
        ranges = [start[:, None] + np.arange(size) for start, size in zip(first, sizes, strict=True)]
        values = self.read(*[spread(numbers, axis, len(sizes)) for axis, numbers in enumerate(ranges)])
        return LaneBuffer(values, np.stack(first, axis=1), np.arange(len(self.of)))


@dataclass(frozen=True)
class LaneBody:
    """A run of a loop's body in all lanes.

    - first: the first index of each dimension, by lane
    - extent: the number of indices from there, equal in all lanes
    - buffers: the operands that can be read
    - serial_lanes: lanes that run one after the other
    """

    first: dict[str, Ints]
    extent: dict[str, int]
    buffers: dict[str, LaneBuffer]
    serial_lanes: int

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return len(self.first["n"])

    def volume(self) -> int:
        """Values that one expression over all the inside would touch."""
        e = self.extent
        outputs, terms = e["n"] * e["h"] * e["w"], e["c"] * e["r"] * e["s"]
        return self.lanes * (outputs * terms + terms * e["k"] + outputs * e["k"])

    def iterations(self, dim: str, starts: Ints, extent: int, in_space: bool = False) -> LaneBody:
        """The iterations of a loop that begin at `starts`, as lanes, each over `extent` indices."""
        first = {name: np.repeat(index, len(starts)) for name, index in self.first.items()}
        first[dim] = first[dim] + np.tile(starts, self.lanes)
        buffers = {name: replace(buffer, of=np.repeat(buffer.of, len(starts))) for name, buffer in self.buffers.items()}
        serial_lanes = self.serial_lanes * (1 if in_space else len(starts))
        return LaneBody(first, {**self.extent, dim: extent}, buffers, serial_lanes)


@cache
def loop_indices(extent: int, steps: tuple[int, ...]) -> Ints:
    """The indices that nested loops with `steps` give to their inside, in order."""
    if not steps:
        return np.zeros(1, np.int64)
    starts = range(0, extent, steps[0])
    return np.concatenate([start + loop_indices(min(steps[0], extent - start), steps[1:]) for start in starts])
