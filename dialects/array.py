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

from collections.abc import Iterator

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.dialects.builtin import UnitAttr as Mark
from xdsl.ir import Dialect, Operation
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from cnncc.dialects._instructions import AXES as AXES
from cnncc.dialects._instructions import Commit as Commit
from cnncc.dialects._instructions import Dma as Dma
from cnncc.dialects._instructions import Extent as Extent
from cnncc.dialects._instructions import Host as Host
from cnncc.dialects._instructions import Load as Load
from cnncc.dialects._instructions import LoopTerm as LoopTerm
from cnncc.dialects._instructions import Mac as Mac
from cnncc.dialects._instructions import Names as Names
from cnncc.dialects._instructions import Place as Place
from cnncc.dialects._instructions import Repeat as Repeat
from cnncc.dialects._instructions import Signal as Signal
from cnncc.dialects._instructions import Slots as Slots
from cnncc.dialects._instructions import Start as Start
from cnncc.dialects._instructions import Tensor as Tensor
from cnncc.dialects._instructions import Term as Term
from cnncc.dialects._instructions import Tokens as Tokens
from cnncc.dialects._instructions import Unit as Unit
from cnncc.dialects._instructions import View as View
from cnncc.dialects._records import RecordAttr
from cnncc.dialects.weights import RefAttr

ENGINES = ("dma", "load", "array", "commit")


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
    """The program of one layer (or of the network's loads and stores), in program order.

    ahead: what it fetches first of weights and parameters is to come while the layer before runs.
    """

    name = "array.layer"
    label = prop_def(StringAttr)
    value = prop_def(StringAttr)
    ahead = opt_prop_def(Mark)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "$label `computes` $value (`ahead` $ahead^)? attr-dict-with-keyword $body"

    def verify_(self) -> None:
        """Every name means something: views, tensors, loops. Says all that do not."""
        if problems := list(dict.fromkeys(_unknown_names(self))):
            raise VerifyException(f"layer {self.label.data}: {'; '.join(problems)}")


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
    """A descriptor and its steps (DESC-1)."""

    name = "array.view"
    record = prop_def(ViewAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class DmaOp(IRDLOperation):
    """A DMA transfer (DMA-1)."""

    name = "array.dma"
    record = prop_def(DmaAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class LoadOp(IRDLOperation):
    """A load into register files (LOAD-1)."""

    name = "array.load"
    record = prop_def(LoadAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class MacOp(IRDLOperation):
    """A macro-instruction (MAC-1)."""

    name = "array.mac"
    record = prop_def(MacAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class UnitOp(IRDLOperation):
    """The output units' settings (COMMIT-2)."""

    name = "array.unit"
    record = prop_def(UnitAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class CommitOp(IRDLOperation):
    """A commit (COMMIT-1)."""

    name = "array.commit"
    record = prop_def(CommitAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class SyncOp(IRDLOperation):
    """Wait until these engines are idle (PROG-4): `array.sync ["load", "array", "commit"]`."""

    name = "array.sync"
    engines = prop_def(ArrayAttr[StringAttr])
    assembly_format = "$engines attr-dict"

    def verify_(self) -> None:
        """Only engines are waited for."""
        for engine in self.engines:
            if engine.data not in ENGINES:
                raise VerifyException(f"engines are {', '.join(ENGINES)}, not {engine.data}")


@irdl_op_definition
class SignalOp(IRDLOperation):
    """Give tokens to a semaphore (TOKEN-4): `array.signal <semaphore = 1, count = 2>`."""

    name = "array.signal"
    record = prop_def(SignalAttr)
    assembly_format = "$record attr-dict"


@irdl_op_definition
class HostOp(IRDLOperation):
    """A host segment: the model that it runs (PROG-4)."""

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


def _unknown_names(layer: LayerOp) -> Iterator[str]:
    """What the operations of a layer name that is not there: of views those that stand before."""
    module = layer.parent_op()
    known = {op.record.data.name for op in module.walk() if isinstance(op, TensorOp)} if module else set[str]()
    views, loops = set[str](), {op.record.data.loop for op in layer.walk() if isinstance(op, RepeatOp)}
    for op in layer.walk():
        if isinstance(op, ViewOp):
            view = op.record.data
            views.add(view.name)
            if view.tensor not in known:
                yield f"view {view.name}: there is no tensor {view.tensor}"
            yield from (f"view {view.name}: there is no loop {t.loop}" for t in view.steps if t.loop not in loops)
            continue
        wanted, conditions = _names(op)
        around = loops_around(op)
        yield from (f"{op.name}: there is no view {name} before it" for name in wanted if name not in views)
        yield from (
            f"{op.name}: a condition names loop {name}, which is not around it"
            for name in conditions
            if name not in around
        )


def _names(op: Operation) -> tuple[list[str], list[str]]:
    """The views and the loops of conditions that an operation names."""
    match op:
        case DmaOp():
            record = op.record.data
            views, conditions = [record.dram, record.glb], [*_of_tokens(record.tokens)]
        case LoadOp():
            record = op.record.data
            views, conditions = [record.view], [record.open, record.close, *_of_tokens(record.tokens)]
        case CommitOp():
            record = op.record.data
            views = [record.view, record.operand, record.residual, record.params, record.sums]
            conditions = [record.fresh, record.final, *_of_tokens(record.tokens)]
        case MacOp():
            record, views = op.record.data, []
            conditions = [
                record.clear, record.send, record.take_weight, record.give_weight, record.take_ifmap, record.give_ifmap
            ]  # fmt: skip
        case _:
            return [], []
    return [view for view in views if view], [name for names in conditions for name in names or ()]


def _of_tokens(tokens: Tokens) -> Iterator[Names]:
    if tokens.take:
        yield tokens.take_when
    if tokens.give:
        yield tokens.give_when


ARRAY = Dialect(
    "array",
    [TensorOp, LayerOp, RepeatOp, ViewOp, DmaOp, LoadOp, MacOp, UnitOp, CommitOp, SyncOp, SignalOp, HostOp],
    [TensorAttr, ViewAttr, DmaAttr, LoadAttr, MacAttr, UnitAttr, CommitAttr, HostAttr, RepeatAttr, SignalAttr],
)
