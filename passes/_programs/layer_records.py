"""A layer to be programmed and the nodes of its program, as plain records: no IR."""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from cnncc.dialects import array as A
from cnncc.mapping.mapping import Loop, Mapping, even_sets
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.group_steps import StripeTokens
from cnncc.model.layer_shape import LayerShape
from cnncc.model.register_files import Layout

Record = A.View | A.Dma | A.Load | A.Mac | A.Unit | A.Commit


@dataclass(frozen=True)
class Body:
    """A hardware loop and what it repeats."""

    repeat: A.Repeat
    nodes: tuple[Node, ...]


Node = Record | Body


class AxisStep(NamedTuple):
    """`step` on an axis for every `per` indices of a dimension, `rest` for each index below that.

    Channels that are shuffled in groups of `per` go one on (step) from group to group, and as many as there are
    groups (rest) from channel to channel.
    """

    axis: A.Axis
    step: int
    per: int = 1
    rest: int = 0

    def of(self, indices: int) -> int:
        """The step for so many indices: periods of `per`, or a part of one.

        >>> AxisStep("k", 3, 4).of(8), AxisStep("k", 3, 4).of(2), AxisStep("k", 1, 4, 5).of(2)
        (6, 0, 10)
        """
        if indices > self.per and indices % self.per:
            raise ValueError(f"a step by {indices} crosses a period of {self.per} on axis {self.axis}")
        return indices // self.per * self.step + indices % self.per * self.rest


Coordinates = Map[str, AxisStep]  # by dimension


@dataclass(frozen=True)
class Operand:
    """Where the words of an operand are. A buffer holds what the loops inside the `depth` outermost need at a time.

    Rows and columns are those of the image wherever the words lie; the rest is counted from the buffer's start.
    """

    coordinates: Coordinates
    depth: int = 0

    def counts(self, loop: int, dim: str) -> bool:
        """Whether a position in the operand depends on loop number `loop`, which runs over `dim`."""
        return dim in self.coordinates and (loop >= self.depth or self.coordinates[dim].axis in ("y", "x"))


@dataclass(frozen=True)
class ActivationLayout:
    """Where an activation lies as a whole: a tensor, and the words from an image, channel or row to the next.

    Attributes:
        ring   the rows of its ring; 0 if all rows have their place
        wrap   the words of its circle of images; 0 without one
        pixel  whether it has one pixel a channel, which is read for all rows and columns
        column the words from column to column; 0 if they follow each other
    """

    tensor: str
    image: int
    plane: int
    pitch: int
    ring: int = 0
    wrap: int = 0
    pixel: bool = False
    column: int = 0


@dataclass(frozen=True)
class Tensors:
    """The tensors of a layer. buffers: the tensors in the GLB that stages fill, by operand. Others are resident."""

    ifmap: ActivationLayout
    output: ActivationLayout
    residual: ActivationLayout | None = None
    weight: str = ""
    params: str = ""
    buffers: Map[str, str] = field(default_factory=dict[str, str])

    def homes(self) -> dict[str, ActivationLayout]:
        """Where the activations lie, by operand."""
        homes = {"ifmap": self.ifmap, "residual": self.residual, "output": self.output}
        return {operand: home for operand, home in homes.items() if home is not None}


@dataclass(frozen=True)
class ProgramLayer:
    """What `layer_program` needs to know: the nest.layer as plain data.

    Attributes:
        words_per_channel   words of the biases and scales of one channel, or of one position
        full                the semaphore for weights that have arrived in the GLB
        in_group            whether the layer is one of a group
    """

    label: str
    shape: LayerShape
    mapping: Mapping
    tensors: Tensors
    words_per_channel: int
    unit: A.Unit
    full: Semaphore
    in_group: bool = False


@dataclass(frozen=True)
class Piece:
    """Where a walk is in one loop: its loop number, index of its first iteration, iterations, first or last piece.

    less: indices by which it begins earlier than there, because the first iteration is a smaller one.
    """

    loop: int
    base: int
    count: int
    first: bool
    last: bool
    less: int = 0


@dataclass(frozen=True)
class Position:
    """A position of the walk through the nest.

    Attributes:
        extent      the indices that are left of each dimension
        pieces      the pieces of the loops around
        space       the loops in space, with their PEs
        section     the depth from which on sums stay in their PEs; None before the walk reaches it
        held        the content of the register files
        following   the next block of each stage in the GLB, by the stage's depth; no entry after the last block
        stripe      the tokens of the stripe of a group that the walk is in
    """

    extent: Map[str, int]
    pieces: tuple[Piece, ...] = ()
    space: tuple[tuple[Loop, int], ...] = ()
    section: int | None = None
    held: Map[str, HeldOperand] = field(default_factory=dict[str, "HeldOperand"])
    following: Map[int, Position] = field(default_factory=dict[int, "Position"])
    stripe: StripeTokens | None = None


@dataclass(frozen=True)
class HeldOperand:
    """An operand in a half: its layout, and of the ifmap how many slots from the end come from the east neighbour."""

    layout: Layout
    reuse: int = 0


def split(extent: int, step: int, sets: int = 1) -> list[tuple[int, int, int]]:
    """(iterations, size, first index) of the pieces of a loop: full tiles, then the rest, spread over up to `sets`.

    >>> split(10, 4), split(10, 4, 2)
    ([(2, 4, 0), (1, 2, 8)], [(2, 4, 0), (2, 1, 8)])
    """
    full, rest = divmod(extent, step)
    count = even_sets(rest, sets) if rest else 0
    return ([(full, step, 0)] if full else []) + ([(count, rest // count, full * step)] if rest else [])


@dataclass(frozen=True)
class LoopPieces:
    """The loops of a program, outermost first: their names, conditions on them, and how they move through operands.

    Attributes:
        unrolled      the loops with a body for each iteration, which take no register
        by_register   whether loops are named after their registers, which the layers of a group share
    """

    loops: Sequence[Loop]
    unrolled: Set[int] = frozenset()
    by_register: bool = False

    def name(self, depth: int) -> str:
        """The name of loop number `depth`."""
        if self.by_register:
            return f"i{sum(not loop.on and at not in self.unrolled for at, loop in enumerate(self.loops[:depth]))}"
        return f"{self.loops[depth].dim}{depth}"

    def first(self, pieces: Sequence[Piece]) -> A.Names | None:
        """The condition that all these loops are in their first iteration."""
        # A loop of one iteration is in its first one at all times, and is left out.
        return tuple(self.name(p.loop) for p in pieces if p.count > 1) if all(p.first for p in pieces) else None

    def last(self, pieces: Sequence[Piece]) -> A.Names | None:
        """The condition that all these loops are in their last iteration."""
        return tuple(self.name(p.loop) for p in pieces if p.count > 1) if all(p.last for p in pieces) else None

    def start(self, operand: Operand, at: Position) -> A.Start:
        """Where the pieces at a position begin in an operand."""
        sums: dict[str, int] = dict.fromkeys(A.AXES, 0)
        for piece in at.pieces:
            loop = self.loops[piece.loop]
            if operand.counts(piece.loop, loop.dim):
                along = operand.coordinates[loop.dim]
                sums[along.axis] += piece.base * along.of(loop.step) - along.of(piece.less)
        return A.Start(sums["lin"], sums["k"], sums["y"], sums["x"])

    def steps(self, operand: Operand, outside: int | None = None) -> tuple[A.LoopTerm, ...]:
        """The terms of the loops in time (only of the `outside` outermost)."""
        return tuple(
            A.LoopTerm(self.name(i), along.axis, along.of(loop.step))
            for i, loop in enumerate(self.loops[:outside])
            if not loop.on and i not in self.unrolled and operand.counts(i, loop.dim)
            for along in [operand.coordinates[loop.dim]]
            if along.of(loop.step)
        )
