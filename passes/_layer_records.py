"""A layer to be programmed and the nodes of its program, as plain records: no IR."""

from __future__ import annotations

from collections.abc import Mapping as Map
from dataclasses import dataclass

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
