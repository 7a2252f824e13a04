"""PE-set programs: what each set of PEs is told, with tensors by name and loops by name.

An `array.layer` holds the program of one layer: `array.repeat` loops around loads, macro-instructions and commits.
Every op is one machine instruction (a view is a descriptor and its steps), with the fields of docs/machine.md in
records; what is missing is where things lie: `array-allocate` adds that, `array-to-isa` encodes. The rules cited
are those of docs/machine.md.

    array.tensor <name = "conv1", memory = "glb", words = 1024, shape = [1, 16, 8, 8]>
    array.layer "conv1" computes "relu1" {
      array.view <name = "w", tensor = "conv1.w.glb", steps = [{loop = "c2", axis = "lin", step = 9}]>
      array.repeat <loop = "c2", count = 3> {
        array.load <kind = "weight", view = "w", …, open = [], close = []>
        array.mac <op = "mac", …, clear = ["c2"], send = ["c2"]>
      }
      array.commit <view = "y", …>
    }
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Dialect, Operation
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.traits import NoTerminator

from cnncc.dialects._records import RecordAttr
from cnncc.dialects.weights import RefAttr

AXES = ("lin", "k", "y", "x")

# A condition (P2): None never holds, () always, ("h1", "c3") when these loops are in their first (last) iteration.
Names = tuple[str, ...]


def _axis(axis: str) -> None:
    if axis not in AXES:
        raise ValueError(f"axis is one of {', '.join(AXES)}, not {axis}")


@dataclass(frozen=True)
class Term:
    """`step` on an axis (lin words, k channels, y rows, x columns) for each unit of an index (D2)."""

    axis: str = "lin"
    step: int = 0

    def __post_init__(self) -> None:
        _axis(self.axis)


@dataclass(frozen=True)
class LoopTerm:
    """The term of a loop, by the loop's name (D1)."""

    loop: str
    axis: str
    step: int

    def __post_init__(self) -> None:
        _axis(self.axis)


@dataclass(frozen=True)
class Extent:
    """`n` steps of a pattern, each a term (D2)."""

    n: int = 1
    axis: str = "lin"
    step: int = 0

    def __post_init__(self) -> None:
        _axis(self.axis)
        if self.n < 1:
            raise ValueError(f"an extent is at least 1, not {self.n}")


@dataclass(frozen=True)
class Place:
    """The active PEs, their sets (D4), and the terms of a PE's place (D2)."""

    rows: int = 1
    cols: int = 1
    row0: int = 0
    col0: int = 0
    set_rows: int = 1
    set_cols: int = 1
    row: Term = Term()
    row_set: Term = Term()
    col: Term = Term()
    col_set: Term = Term()

    def __post_init__(self) -> None:
        if min(self.rows, self.cols, self.set_rows, self.set_cols) < 1:
            raise ValueError("a place has at least one row and one column, a set too")


@dataclass(frozen=True)
class Start:
    """Where a position starts (D2)."""

    offset: int = 0
    channel: int = 0
    y: int = 0
    x: int = 0


@dataclass(frozen=True)
class Slots:
    """Slots of a register file for the counters of a macro-instruction: base + z*pixel + j*tap + i*channel (A1)."""

    base: int = 0
    pixel: int = 0
    tap: int = 0
    channel: int = 0


@dataclass(frozen=True)
class Tokens:
    """Semaphores of an instruction (T4): numbers (0: none), the loops that must be first (take) or last (give)."""

    take: int = 0
    give: int = 0
    take_when: Names = ()
    give_when: Names = ()


@dataclass(frozen=True)
class Tensor:
    """An array in DRAM or the GLB: `words` words from `at` (-1: not allocated).

    role: input | output | weight | value. Inputs, outputs and what the host reads or writes lie in DRAM and say how
    integers, within clamp, stand for reals: real = (integer - zero) * scale. A float output of the host lies in
    memory `host`.
    """

    name: str
    memory: str
    words: int
    shape: tuple[int, ...] = ()
    role: str = "value"
    scale: float = 0.0
    zero: int = 0
    clamp: tuple[int, ...] = (-(1 << 31), (1 << 31) - 1)
    at: int = -1

    def __post_init__(self) -> None:
        if self.memory not in ("dram", "glb", "host") or self.role not in ("input", "output", "weight", "value"):
            raise ValueError(f"tensor {self.name}: no memory {self.memory} or no role {self.role}")


@dataclass(frozen=True)
class View:
    """A descriptor (D1): how loops and instructions of this layer address a tensor."""

    name: str
    tensor: str
    height: int = 0
    width: int = 0
    pitch: int = 0
    plane: int = 0
    fill: int = 0
    zero: int = 0
    wrap: int = 0
    steps: tuple[LoopTerm, ...] = ()


@dataclass(frozen=True)
class Dma:
    """Copy `count` blocks of `words` words (X1)."""

    direction: str
    dram: str
    glb: str
    words: int
    count: int = 1
    dram_offset: int = 0
    glb_offset: int = 0
    dram_step: int = 0
    glb_step: int = 0
    tokens: Tokens = Tokens()


@dataclass(frozen=True)
class Load:
    """Fill the open half of the active PEs (L1); `kind` is weight or ifmap."""

    kind: str
    view: str
    place: Place
    start: Start
    pattern: tuple[Extent, ...]
    slot: int = 0
    edge: bool = False
    open: Names | None = None
    close: Names | None = None
    tokens: Tokens = Tokens()

    def __post_init__(self) -> None:
        if len(self.pattern) > 4:
            raise ValueError("a load has at most four extents")


@dataclass(frozen=True)
class Mac:
    """A macro-instruction (A1); `op` is mac, max or add."""

    op: str
    place: Place
    pixels: int = 1
    taps: int = 1
    step_range: int = 1
    data_reuse: int = 0
    n2n_slot: int = 0
    ifmap: Slots = Slots()
    weight: Slots = Slots()
    psum: Slots = Slots()
    clear: Names | None = None
    send: Names | None = None
    take_weight: Names | None = None
    give_weight: Names | None = None
    take_ifmap: Names | None = None
    give_ifmap: Names | None = None


@dataclass(frozen=True)
class Unit:
    """The output units' settings (C2); `factors` names the f32[3] (a, b, fixed) of a residual add."""

    bias: bool = False
    scale: bool = False
    zero: int = 0
    clamp: tuple[int, ...] = (-(1 << 31), (1 << 31) - 1)
    factors: str = ""
    add_clamp: tuple[int, ...] = (-(1 << 31), (1 << 31) - 1)


@dataclass(frozen=True)
class Commit:
    """Psums (or, with source glb, the words of `operand`) through the output units to `view` (C1)."""

    view: str
    place: Place
    start: Start = Start()
    source: str = "psum"
    operand: str = ""
    residual: str = ""
    params: str = ""
    param: int = 0
    pixels: Extent = Extent()
    channels: Extent = Extent()
    psum: Slots = Slots()
    tokens: Tokens = Tokens()


@dataclass(frozen=True)
class Host:
    """A host segment: the tensors that it reads and writes, in the order of its model's inputs and outputs."""

    inputs: Names
    outputs: Names


@irdl_attr_definition
class TensorAttr(RecordAttr[Tensor]):
    """A tensor record."""

    name = "array.tensor_record"


@irdl_attr_definition
class ViewAttr(RecordAttr[View]):
    """A view record."""

    name = "array.view_record"


@irdl_attr_definition
class DmaAttr(RecordAttr[Dma]):
    """A DMA record."""

    name = "array.dma_record"


@irdl_attr_definition
class LoadAttr(RecordAttr[Load]):
    """A load record."""

    name = "array.load_record"


@irdl_attr_definition
class MacAttr(RecordAttr[Mac]):
    """A macro-instruction record."""

    name = "array.mac_record"


@irdl_attr_definition
class UnitAttr(RecordAttr[Unit]):
    """An output unit record."""

    name = "array.unit_record"


@irdl_attr_definition
class CommitAttr(RecordAttr[Commit]):
    """A commit record."""

    name = "array.commit_record"


@irdl_attr_definition
class HostAttr(RecordAttr[Host]):
    """A host segment record."""

    name = "array.host_record"


@irdl_op_definition
class TensorOp(IRDLOperation):
    """A tensor, at the head of the module: `array.tensor <name = "x", memory = "glb", words = 192>`."""

    name = "array.tensor"
    record = prop_def(TensorAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class LayerOp(IRDLOperation):
    """The program of one layer (or of the network's loads and stores), in program order."""

    name = "array.layer"
    label = prop_def(StringAttr)
    value = prop_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "$label `computes` $value attr-dict-with-keyword $body"


@dataclass(frozen=True)
class Repeat:
    """A hardware loop (P2): its name and its number of iterations."""

    loop: str
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"loop {self.loop} repeats at least once, not {self.count} times")


@dataclass(frozen=True)
class Signal:
    """`count` tokens for a semaphore (T4)."""

    semaphore: int
    count: int


@irdl_attr_definition
class SignalAttr(RecordAttr[Signal]):
    """A signal record."""

    name = "array.signal_record"


@irdl_attr_definition
class RepeatAttr(RecordAttr[Repeat]):
    """A loop record."""

    name = "array.repeat_record"


@irdl_op_definition
class RepeatOp(IRDLOperation):
    """`array.repeat <loop = "c2", count = 3> { … }`: a hardware loop with its name."""

    name = "array.repeat"
    record = prop_def(RepeatAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "$record attr-dict-with-keyword $body"


@irdl_op_definition
class ViewOp(IRDLOperation):
    """A descriptor and its steps (D1)."""

    name = "array.view"
    record = prop_def(ViewAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class DmaOp(IRDLOperation):
    """A DMA transfer (X1)."""

    name = "array.dma"
    record = prop_def(DmaAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class LoadOp(IRDLOperation):
    """A load into register files (L1)."""

    name = "array.load"
    record = prop_def(LoadAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class MacOp(IRDLOperation):
    """A macro-instruction (A1)."""

    name = "array.mac"
    record = prop_def(MacAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class UnitOp(IRDLOperation):
    """The output units' settings (C2)."""

    name = "array.unit"
    record = prop_def(UnitAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class CommitOp(IRDLOperation):
    """A commit (C1)."""

    name = "array.commit"
    record = prop_def(CommitAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class SyncOp(IRDLOperation):
    """Wait until these engines are idle (P4): `array.sync ["load", "array", "commit"]`."""

    name = "array.sync"
    engines = prop_def(ArrayAttr[StringAttr])
    assembly_format = "$engines attr-dict"


@irdl_op_definition
class SignalOp(IRDLOperation):
    """Give tokens to a semaphore (T4): `array.signal <semaphore = 1, count = 2>`."""

    name = "array.signal"
    record = prop_def(SignalAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class HostOp(IRDLOperation):
    """A host segment: the model that it runs (P4)."""

    name = "array.host"
    model = prop_def(RefAttr)
    record = prop_def(HostAttr)
    assembly_format = "`model` $model $record attr-dict"


def loops_around(op: Operation) -> dict[str, int]:
    """The iterations of each loop around `op`, by name, outermost first."""
    around: list[Repeat] = []
    parent = op.parent_op()
    while isinstance(parent, RepeatOp):
        around.append(parent.record.data)
        parent = parent.parent_op()
    return {repeat.loop: repeat.count for repeat in reversed(around)}


ARRAY = Dialect(
    "array",
    [TensorOp, LayerOp, RepeatOp, ViewOp, DmaOp, LoadOp, MacOp, UnitOp, CommitOp, SyncOp, SignalOp, HostOp],
    [TensorAttr, ViewAttr, DmaAttr, LoadAttr, MacAttr, UnitAttr, CommitAttr, HostAttr, RepeatAttr, SignalAttr],
)
