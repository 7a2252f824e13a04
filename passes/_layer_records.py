"""A layer to be programmed and the nodes of its program, as plain records: no IR."""

from __future__ import annotations

from collections.abc import Mapping as Map
from dataclasses import dataclass
from typing import NamedTuple

from cnncc.dialects import array as A
from cnncc.dialects.cnn import Window
from cnncc.dialects.nest import Loop, Mapping, Sizes

FREE = 1  # semaphore: halves of the GLB buffers of weight slices that are free

Record = A.View | A.Dma | A.Load | A.Mac | A.Unit | A.Commit


@dataclass(frozen=True)
class Body:
    """A hardware loop and what it repeats."""

    repeat: A.Repeat
    nodes: tuple[Node, ...]


Node = Record | Body


class Along(NamedTuple):
    """`step` on an axis for every `per` indices of a dimension."""

    axis: str
    step: int
    per: int = 1

    def of(self, indices: int) -> int:
        """The step for so many indices: 0 for fewer than `per`.

        >>> Along("k", 3, 4).of(8), Along("k", 3, 4).of(2)
        (6, 0)
        """
        return indices // self.per * self.step


Coordinates = dict[str, Along]  # of an operand, by dimension


def is_channelwise(kind: str, sizes: Sizes, window: Window) -> bool:
    """Whether each output channel has input channels of its own: pools, and as many groups as output channels."""
    return kind != "mac" or 1 < window.group == sizes.k


@dataclass(frozen=True)
class Tensors:
    """Names of the tensors of a layer; empty where the layer has none."""

    ifmap: str
    output: str
    residual: str = ""
    weight: str = ""
    weight_glb: str = ""
    params: str = ""
    params_glb: str = ""


@dataclass(frozen=True)
class Layer:
    """What `layer_program` needs to know: the nest.layer as plain data.

    channels: of the whole input (all groups); ih, iw: its rows and columns; params_words: words of the biases and
    scales of one channel; full: the semaphore that says that weights have arrived in the GLB.
    """

    label: str
    kind: str
    sizes: Sizes
    window: Window
    mapping: Mapping
    tensors: Tensors
    channels: int
    ih: int
    iw: int
    params_words: int
    unit: A.Unit
    full: int

    @property
    def channelwise(self) -> bool:
        """Whether output channels side by side have ifmaps side by side."""
        return is_channelwise(self.kind, self.sizes, self.window)

    @property
    def group(self) -> int:
        """Output channels of a group."""
        return self.sizes.k // self.window.group


def operand_coordinates(layer: Layer) -> tuple[Coordinates, Coordinates, Coordinates, Coordinates]:
    """Where the words of ifmap, weights, outputs and parameters are."""
    sizes, window = layer.sizes, layer.window
    taps = sizes.r * sizes.s
    ifmap = {
        "n": Along("lin", layer.channels * layer.ih * layer.iw),
        "k": Along("k", sizes.c, per=layer.group),
        "c": Along("k", 1),
        "h": Along("y", window.stride[0]),
        "r": Along("y", window.dilation[0]),
        "w": Along("x", window.stride[1]),
        "s": Along("x", window.dilation[1]),
    }
    weight = {
        "k": Along("lin", sizes.c * taps),
        "c": Along("lin", taps),
        "r": Along("lin", sizes.s),
        "s": Along("lin", 1),
    }
    output = {
        "n": Along("lin", sizes.k * sizes.h * sizes.w),
        "k": Along("k", 1),
        "h": Along("y", 1),
        "w": Along("x", 1),
    }
    return ifmap, weight, output, {"k": Along("lin", layer.params_words)}


@dataclass(frozen=True)
class Piece:
    """Where a walk is in one loop: its loop number, index of its first iteration, iterations, first or last piece."""

    loop: int
    base: int
    count: int
    first: bool
    last: bool


@dataclass(frozen=True)
class Position:
    """Where a walk through the nest is: current extents, pieces of the loops around, space loops with their PEs."""

    extent: Map[str, int]
    pieces: tuple[Piece, ...] = ()
    space: tuple[tuple[Loop, int], ...] = ()


def split(extent: int, step: int) -> list[tuple[int, int, int]]:
    """(iterations, size, first index) of the pieces of a loop: full tiles, then the remainder.

    >>> split(10, 4)
    [(2, 4, 0), (1, 2, 8)]
    """
    full, rest = divmod(extent, step)
    return ([(full, step, 0)] if full else []) + ([(1, rest, full * step)] if rest else [])
