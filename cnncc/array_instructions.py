"""What ops of the `array` dialect hold: the fields of instructions, with tensors and loops by name. No IR.

The rules cited are those of docs/machine.md.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args

from cnncc.arch.operations import MacOperation
from cnncc.numerics import INT32, SEGMENTS

MOST_SHIFT = 15  # of a table: the field of `unit` has four bits

Axis = Literal["lin", "k", "y", "x"]
AXES: tuple[Axis, ...] = get_args(Axis)
Memory = Literal["dram", "glb", "host"]
Role = Literal["input", "output", "weight", "value"]

Names = tuple[str, ...]

Condition = tuple[str, ...] | None
"""Never (None), always (no name), or where the loops of these names are in their first (last) iteration (PROG-2)."""


class Direction(StrEnum):
    """Where a transfer goes: into the GLB, or out of it."""

    IN = "in"
    OUT = "out"


class LoadKind(StrEnum):
    """The register file that a load fills."""

    WEIGHT = "weight"
    IFMAP = "ifmap"


class Source(StrEnum):
    """Where a commit reads."""

    PSUM = "psum"
    GLB = "glb"


class Engine(StrEnum):
    """What runs side by side in an array."""

    DMA = "dma"
    LOAD = "load"
    ARRAY = "array"
    COMMIT = "commit"


@dataclass(frozen=True)
class IndexTerm:
    """`step` on an axis (lin words, k channels, y rows, x columns) for each unit of an index (DESC-2)."""

    axis: Axis = "lin"
    step: int = 0


@dataclass(frozen=True)
class LoopTerm:
    """The term of a loop, by the loop's name (DESC-1)."""

    loop: str
    axis: Axis
    step: int


@dataclass(frozen=True)
class Extent:
    """`n` steps of a pattern, each a term (DESC-2)."""

    n: int = 1
    axis: Axis = "lin"
    step: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"an extent is at least 1, not {self.n}")


@dataclass(frozen=True)
class Place:
    """The active PEs, their sets (DESC-4), and the terms of a PE's place (DESC-2)."""

    rows: int = 1
    cols: int = 1
    row0: int = 0
    col0: int = 0
    set_rows: int = 1
    set_cols: int = 1
    row: IndexTerm = IndexTerm()
    row_set: IndexTerm = IndexTerm()
    col: IndexTerm = IndexTerm()
    col_set: IndexTerm = IndexTerm()

    def __post_init__(self) -> None:
        if min(self.rows, self.cols, self.set_rows, self.set_cols) < 1:
            raise ValueError("a place has at least one row and one column, a set too")


@dataclass(frozen=True)
class Start:
    """Where a position starts (DESC-2)."""

    offset: int = 0
    channel: int = 0
    y: int = 0
    x: int = 0


@dataclass(frozen=True)
class Slots:
    """Slots of a register file for counters: base + z*pixel + j*tap + i*channel + l*lane.

    Rules: MAC-1, COMMIT-1: taps or lines.

    Only a mac's slots step by lanes, its psums by 1 (MAC-7) or not at all.
    """

    base: int = 0
    pixel: int = 0
    tap: int = 0
    channel: int = 0
    lane: int = 0


@dataclass(frozen=True)
class Tokens:
    """Semaphores of an instruction (TOKEN-4): numbers (0: none), the loops that must be first (take) or last (give)."""

    take: int = 0
    give: int = 0
    take_when: Names = ()
    give_when: Names = ()


@dataclass(frozen=True)
class Tensor:
    """An array in DRAM or the GLB: `words` words from `at` (-1: not allocated).

    role: input | output | weight | value. Inputs, outputs and tensors of the host lie in DRAM. Their integers, within
    clamp, stand for reals: real = (integer - zero) * scale. Tensors between layers have scale 1. A float output of the
    host lies in memory `host`. element: the type of the reals for users and host.

    Of a program over frames, a tensor in DRAM has as many words in the record of each frame (CORE-8).

    A tensor may be part of another (a concatenation): from word `offset` of that one on, with `image` words from
    image to image (0: they follow each other). It then has no place of its own. A part may be some columns of an image:
    then `plane`, `pitch` and `column` words lie from channel to channel, from row to row and from column to column (0:
    they follow each other).
    """

    name: str
    memory: Memory
    words: int
    shape: tuple[int, ...] = ()
    role: Role = "value"
    scale: float = 0.0
    zero: int = 0
    clamp: tuple[int, int] = INT32
    at: int = -1
    element: str = "float32"
    part_of: str = ""
    offset: int = 0
    image: int = 0
    plane: int = 0
    pitch: int = 0
    column: int = 0

    def __post_init__(self) -> None:
        if self.memory not in get_args(Memory) or self.role not in get_args(Role):
            raise ValueError(f"tensor {self.name}: no memory {self.memory} or no role {self.role}")
        words = 0 if self.memory == "host" else self.words  # the host's values may have any shape
        steps = self.offset, self.image, self.plane, self.pitch, self.column
        if self.at < -1 or min(words, *steps) < 0:
            raise ValueError(f"tensor {self.name}: words, places and steps are not negative")
        if max(steps) >= 1 << 32:
            raise ValueError(f"tensor {self.name}: offset, image, plane, pitch and column are of 32 bits, as addresses")
        if max(map(abs, (self.zero, *self.clamp))) > 1 << 31:
            raise ValueError(f"tensor {self.name}: zero {self.zero} and clamp {list(self.clamp)} are of 32 bits")

    @property
    def in_record(self) -> bool:
        """Whether it has words of its own in the record of a frame: it lies in DRAM, and is no weight."""
        return self.memory == "dram" and self.role != "weight" and not self.part_of


@dataclass(frozen=True)
class View:
    """A descriptor (DESC-1): how loops and instructions of this layer address a tensor.

    column: words from column to column; 0 is 1.
    frames: a row is the tensor in the record of a frame (CORE-8); height and pitch follow from that.
    """

    name: str
    tensor: str
    height: int = 0
    width: int = 0
    pitch: int = 0
    plane: int = 0
    fill: int = 0
    zero: int = 0
    wrap: int = 0
    ring_y: int = 0
    ring_x: int = 0
    column: int = 0
    frames: bool = False
    steps: tuple[LoopTerm, ...] = ()

    def __post_init__(self) -> None:
        if self.frames and (self.height or self.pitch):
            raise ValueError(f"view {self.name}: height and pitch of a view over frames follow from the tensors")


@dataclass(frozen=True)
class Dma:
    """Copy `count` blocks of `rows` rows of `words` words, from row y and column x on (DMA-1)."""

    direction: Direction
    dram: str
    glb: str
    words: int
    count: int = 1
    dram_offset: int = 0
    glb_offset: int = 0
    dram_step: int = 0
    glb_step: int = 0
    rows: int = 1
    y: int = 0
    x: int = 0
    tokens: Tokens = Tokens()


@dataclass(frozen=True)
class Load:
    """Fill the open half of the active PEs (LOAD-1); `kind` is weight or ifmap."""

    kind: LoadKind
    view: str
    place: Place = Place()
    start: Start = Start()
    pattern: tuple[Extent, ...] = ()
    slot: int = 0
    edge: bool = False
    open: Condition = None
    close: Condition = None
    tokens: Tokens = Tokens()

    def __post_init__(self) -> None:
        if len(self.pattern) > 4:
            raise ValueError("a load has at most four extents")


@dataclass(frozen=True)
class Mac:
    """A macro-instruction (MAC-1); `op` is mac, max or add.

    A step of a mac adds up the products of `lanes` lanes, or each lane has a psum of its own (psum +lane, MAC-7).
    """

    op: MacOperation
    place: Place = Place()
    pixels: int = 1
    taps: int = 1
    step_range: int = 1
    lanes: int = 1
    data_reuse: int = 0
    n2n_slot: int = 0
    ifmap: Slots = Slots()
    weight: Slots = Slots()
    psum: Slots = Slots()
    clear: Condition = None
    send: Condition = None
    take_weight: Condition = None
    give_weight: Condition = None
    take_ifmap: Condition = None
    give_ifmap: Condition = None

    def __post_init__(self) -> None:
        if self.psum.lane not in (0, 1):
            raise ValueError(f"psum: lane = {self.psum.lane}: lanes add up (0), or lane l has psum slot + l (1)")
        if self.lanes < 1 or (self.lanes > 1 and self.op != "mac" and not self.psum.lane):
            raise ValueError(f"a {self.op} of {self.lanes} lanes: only a mac adds up lanes, others have a psum each")


def check_slope(slope: float) -> None:
    """Raises ValueError for what a word of the unit instruction does not hold."""
    try:
        held = struct.unpack("<f", struct.pack("<f", slope))[0]
    except OverflowError:
        held = math.inf
    if not (math.isfinite(held) and held == slope):
        raise ValueError(f"slope is {slope}, it must be a finite f32 (the nearest is {held})")


def check_table(table: str, shift: int, clamp: tuple[int, int]) -> None:
    """Raises ValueError for a shift without a table, and for a table that ends before the clamp."""
    if not 0 <= shift <= MOST_SHIFT or (shift and not table):
        raise ValueError(f"shift is {shift}: it is 0 to {MOST_SHIFT}, and 0 without a table")
    if table and clamp[1] - clamp[0] > SEGMENTS << shift:
        raise ValueError(
            f"table {table} has {SEGMENTS + 1} entries for every {1 << shift}-th integer, which end before the clamp "
            f"{list(clamp)}: give a greater shift or a narrower clamp"
        )


@dataclass(frozen=True)
class Unit:
    """The output units' settings (COMMIT-2).

    - factors: the name of a residual's f32[3], a b fixed. multiply: whether it is multiplied, not added
    - slope: of negative products; 1: none
    - table: the name of a function's i16[257], or empty. shift: it has one for every 2^shift-th integer
    - layer: of a group, for readers
    """

    bias: bool = False
    scale: bool = False
    zero: int = 0
    clamp: tuple[int, int] = INT32
    factors: str = ""
    multiply: bool = False
    add_clamp: tuple[int, int] = INT32
    slope: float = 1.0
    table: str = ""
    shift: int = 0
    layer: str = ""

    def __post_init__(self) -> None:
        check_slope(self.slope)
        check_table(self.table, self.shift, self.clamp)


@dataclass(frozen=True)
class Commit:
    """Psums (or, with source glb, the words of `operand`) through the output units to `view` (COMMIT-1).

    - reduce: the psums of a set's rows are added up (COMMIT-6).
    - sums: the view of partial sums in the GLB; empty without partial sums (COMMIT-5).
    - fresh: the loops in whose first iterations no partial sums exist yet.
    - final: the loops in whose last iterations the sums are complete.
    """

    view: str
    place: Place = Place()
    start: Start = Start()
    source: Source = Source.PSUM
    operand: str = ""
    residual: str = ""
    params: str = ""
    param: int = 0
    pixels: Extent = Extent()
    lines: Extent = Extent()
    channels: Extent = Extent()
    psum: Slots = Slots()
    reduce: bool = False
    sums: str = ""
    fresh: Condition = None
    final: Condition = None
    tokens: Tokens = Tokens()

    def __post_init__(self) -> None:
        if self.psum.lane:
            raise ValueError(f"psum: lane = {self.psum.lane}, but a commit has no lanes")

    @property
    def pattern(self) -> tuple[Extent, Extent, Extent]:
        """Its extents, the slowest first."""
        return self.pixels, self.lines, self.channels


@dataclass(frozen=True)
class Sync:
    """The engines that are waited for until they are idle (PROG-4)."""

    engines: tuple[Engine, ...]


@dataclass(frozen=True)
class Host:
    """A host segment: the tensors that it reads and writes, in the order of its model's inputs and outputs."""

    inputs: Names = ()
    outputs: Names = ()


@dataclass(frozen=True)
class Signal:
    """`count` tokens for a semaphore (TOKEN-4)."""

    semaphore: int
    count: int


@dataclass(frozen=True)
class Repeat:
    """A hardware loop (PROG-2): its name and its number of iterations; over frames `frames + count - 1` (CORE-8)."""

    loop: str
    count: int
    frames: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"loop {self.loop} repeats at least once, not {self.count} times")


@dataclass(frozen=True)
class CorePlace:
    """A core: its name, and its PEs in the array (CORE-1). Core 0 has none in general."""

    label: str
    rows: int = 0
    cols: int = 0
    row0: int = 0
    col0: int = 0

    def __post_init__(self) -> None:
        if min(self.rows, self.cols, self.row0, self.col0) < 0 or bool(self.rows) != bool(self.cols):
            raise ValueError(
                f"core {self.label}: {self.rows} x {self.cols} PEs from {self.row0},{self.col0} on are none"
            )


@dataclass(frozen=True)
class TokenRoute:
    """Tokens that the core gives to `semaphore` go to semaphore `to` of core number `core` instead (CORE-3)."""

    semaphore: int
    core: int
    to: int
