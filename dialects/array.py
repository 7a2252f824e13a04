"""PE-set programs: what each set of PEs is told, with tensors by name and loops by name.

An `array.layer` holds the program of one layer: `array.repeat` loops around loads, macro-instructions and commits.
Every op is one machine instruction (a view is a descriptor and its steps). Its clauses are the fields of
docs/machine.md; `_clauses.py` describes their notation. `array-allocate` adds where tensors lie, `array-to-isa`
encodes. The rules cited are those of docs/machine.md.

    array.tensor conv1.w.glb, memory glb, words 1024
    array.layer "conv1" computes "relu1" {
      array.view w, tensor conv1.w.glb, steps [lin+9*c2]
      array.repeat c2, count 3 {
        array.load weight, view w, place rows 8 cols 8 set 4x1, pattern [2 by lin+18, 3 by lin+1], open always
        array.mac mac, place rows 8 cols 8 set 4x1, taps 9, clear [c2], send [c2]
      }
      array.commit y, place rows 8 cols 8 set 4x1 y+1*row
    }

A program of several cores has an `array.core` for each, in the order of their numbers: its routes, its signals, its
layers. Core 0 has all transfers and host segments (CORE-1). Cores share the tensors.

    array.core dram {
      array.route semaphore 4, core 1, to 4
      array.signal semaphore 5, count 2
      array.layer "frames" computes "conv1" {
        array.view image.dram, tensor image, width 64, frames, steps [y+i0]
        array.repeat i0, count 2, frames { array.dma in, image.dram, … take 5 give 4 … }
      }
    }
    array.core conv1, rows 1, cols 2, row0 3 { … array.layer "conv1" computes "" { … } }
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from math import prod

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.builtin import UnitAttr as Mark
from xdsl.ir import Dialect, Operation
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from cnncc.array_instructions import AXES as AXES
from cnncc.array_instructions import Axis as Axis
from cnncc.array_instructions import Commit as Commit
from cnncc.array_instructions import Condition
from cnncc.array_instructions import CorePlace as CorePlace
from cnncc.array_instructions import Direction as Direction
from cnncc.array_instructions import Dma as Dma
from cnncc.array_instructions import Engine as Engine
from cnncc.array_instructions import Extent as Extent
from cnncc.array_instructions import Host as Host
from cnncc.array_instructions import IndexTerm as IndexTerm
from cnncc.array_instructions import Load as Load
from cnncc.array_instructions import LoadKind as LoadKind
from cnncc.array_instructions import LoopTerm as LoopTerm
from cnncc.array_instructions import Mac as Mac
from cnncc.array_instructions import Memory as Memory
from cnncc.array_instructions import Names as Names
from cnncc.array_instructions import Place as Place
from cnncc.array_instructions import Repeat as Repeat
from cnncc.array_instructions import Role as Role
from cnncc.array_instructions import Signal as Signal
from cnncc.array_instructions import Slots as Slots
from cnncc.array_instructions import Source as Source
from cnncc.array_instructions import Start as Start
from cnncc.array_instructions import Sync as Sync
from cnncc.array_instructions import Tensor as Tensor
from cnncc.array_instructions import TokenRoute as TokenRoute
from cnncc.array_instructions import Tokens as Tokens
from cnncc.array_instructions import Unit as Unit
from cnncc.array_instructions import View as View
from cnncc.dialects._clauses import Clauses, clauses_attr
from cnncc.dialects._core_tokens import SEMAPHORES, CoreTokens, cores_problems
from cnncc.dialects._records import field_types
from cnncc.dialects._verifiers import use_simple_verifiers
from cnncc.dialects.weights import RefAttr
from cnncc.mapping.channels import Region

TensorAttr = clauses_attr("array.tensor_record", Tensor)
ViewAttr = clauses_attr("array.view_record", View)
DmaAttr = clauses_attr("array.dma_record", Dma)
LoadAttr = clauses_attr("array.load_record", Load)
MacAttr = clauses_attr("array.mac_record", Mac)
UnitAttr = clauses_attr("array.unit_record", Unit)
CommitAttr = clauses_attr("array.commit_record", Commit)
HostAttr = clauses_attr("array.host_record", Host)
SyncAttr = clauses_attr("array.sync_record", Sync)
SignalAttr = clauses_attr("array.signal_record", Signal)
RepeatAttr = clauses_attr("array.repeat_record", Repeat)
CoreAttr = clauses_attr("array.core_record", CorePlace)
RouteAttr = clauses_attr("array.route_record", TokenRoute)


class _RecordOp(IRDLOperation):
    """An operation that is one record, printed as its clauses."""

    custom_directives = (Clauses,)
    assembly_format = "custom<Clauses>($record) attr-dict"


@irdl_op_definition
class TensorOp(_RecordOp):
    """A tensor, at the head of the module: `array.tensor x, memory glb, words 192`."""

    name = "array.tensor"
    record = prop_def(TensorAttr)

    def verify_(self) -> None:
        """What it is part of exists, and it has the words of its shape."""
        tensor = self.record.data
        if tensor.shape and tensor.memory != "host" and (min(tensor.shape) < 0 or prod(tensor.shape) != tensor.words):
            raise VerifyException(f"tensor {tensor.name}: {tensor.words} words are not its shape {list(tensor.shape)}")
        if tensor.part_of and tensor.part_of not in tensors_of(self.parent_op()):
            raise VerifyException(f"tensor {tensor.name} is part of {tensor.part_of}, which does not exist")


@irdl_op_definition
class LayerOp(IRDLOperation):
    """The program of one layer (or of the network's loads and stores), in program order.

    prefetched: its first weights and parameters are to come while the layer before runs.
    """

    name = "array.layer"
    label = prop_def(StringAttr)
    value = prop_def(StringAttr)
    prefetched = opt_prop_def(Mark)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "$label `computes` $value (`prefetched` $prefetched^)? attr-dict-with-keyword $body"

    def verify_(self) -> None:
        """Views, tensors, loops and semaphores resolve. The message has all that do not."""
        if problems := list(dict.fromkeys(_problems(self))):
            raise VerifyException(f"layer {self.label.data}: {'; '.join(problems)}")


@irdl_op_definition
class RepeatOp(_RecordOp):
    """`array.repeat c2, count 3 { … }`: a hardware loop with its name."""

    name = "array.repeat"
    record = prop_def(RepeatAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "custom<Clauses>($record) attr-dict-with-keyword $body"


@irdl_op_definition
class ViewOp(_RecordOp):
    """A descriptor and its steps (DESC-1)."""

    name = "array.view"
    record = prop_def(ViewAttr)


@irdl_op_definition
class DmaOp(_RecordOp):
    """A DMA transfer (DMA-1)."""

    name = "array.dma"
    record = prop_def(DmaAttr)


@irdl_op_definition
class LoadOp(_RecordOp):
    """A load into register files (LOAD-1)."""

    name = "array.load"
    record = prop_def(LoadAttr)


@irdl_op_definition
class MacOp(_RecordOp):
    """A macro-instruction (MAC-1)."""

    name = "array.mac"
    record = prop_def(MacAttr)


@irdl_op_definition
class UnitOp(_RecordOp):
    """The output units' settings (COMMIT-2)."""

    name = "array.unit"
    record = prop_def(UnitAttr)


@irdl_op_definition
class CommitOp(_RecordOp):
    """A commit (COMMIT-1)."""

    name = "array.commit"
    record = prop_def(CommitAttr)


@irdl_op_definition
class SyncOp(_RecordOp):
    """Wait until these engines are idle (PROG-4): `array.sync [load, array, commit]`."""

    name = "array.sync"
    record = prop_def(SyncAttr)


@irdl_op_definition
class SignalOp(_RecordOp):
    """Give tokens to a semaphore (TOKEN-4): `array.signal semaphore 1, count 2`."""

    name = "array.signal"
    record = prop_def(SignalAttr)


@irdl_op_definition
class HostOp(_RecordOp):
    """A host segment: the model that it runs (PROG-4)."""

    name = "array.host"
    model = prop_def(RefAttr)
    record = prop_def(HostAttr)
    assembly_format = "custom<Clauses>($record) `model` $model attr-dict"

    def verify_(self) -> None:
        """Its tensors exist."""
        names, tensors = (*self.record.data.inputs, *self.record.data.outputs), tensors_of(self.parent_op())
        if unknown := [name for name in names if name not in tensors]:
            raise VerifyException(f"array.host: there is no tensor {', '.join(unknown)}")


@irdl_op_definition
class RouteOp(_RecordOp):
    """Where tokens go that the core gives (CORE-3): `array.route semaphore 7, core 2, to 4`."""

    name = "array.route"
    record = prop_def(RouteAttr)


@irdl_op_definition
class CoreOp(_RecordOp):
    """A core: its PEs and its program (CORE-1, CORE-2): `array.core conv1, rows 1, cols 2, row0 3 { … }`."""

    name = "array.core"
    record = prop_def(CoreAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "custom<Clauses>($record) attr-dict-with-keyword $body"

    def verify_(self) -> None:
        """What stands in it and where. The last core also checks what all have together."""
        cores = cores_of(self.parent_op())
        problems = list(_core_problems(self, cores.index(self)))
        if cores[-1] is self and not problems:
            problems = cores_problems([_tokens_of_core(core) for core in cores])
        if problems:
            raise VerifyException(f"core {self.record.data.label}: {'; '.join(problems)}")


def loops_around(op: Operation) -> dict[str, int]:
    """The iterations of each loop around `op`, by name, outermost first."""
    around: list[Repeat] = []
    parent = op.parent_op()
    while isinstance(parent, RepeatOp):
        around.append(parent.record.data)
        parent = parent.parent_op()
    return {repeat.loop: repeat.count for repeat in reversed(around)}


def _with_loops(op: Operation, around: tuple[str, ...] = ()) -> Iterator[tuple[Operation, tuple[str, ...]]]:
    """The operations in `op`, in order, each with the names of the loops around it."""
    for inner in op.regions[0].block.ops if op.regions else ():
        yield inner, around
        if isinstance(inner, RepeatOp):
            yield from _with_loops(inner, (*around, inner.record.data.loop))


def tensors_of(module: Operation | None) -> dict[str, Tensor]:
    """The tensors at the head of a module, by name; of a core, those of its module."""
    if isinstance(module, CoreOp):
        return tensors_of(module.parent_op())
    blocks = [block for region in module.regions for block in region.blocks] if module else []
    # Each layer's verifier asks: `isinstance` of what is no tensor takes ten times as long.
    return {op.record.data.name: op.record.data for block in blocks for op in block.ops if type(op) is TensorOp}


def cores_of(module: Operation | None) -> list[CoreOp]:
    """The cores of a module; none where it is a program without."""
    blocks = [block for region in module.regions for block in region.blocks] if module else []
    return [op for block in blocks for op in block.ops if isinstance(op, CoreOp)]


def tokens_in(op: Operation) -> Iterator[tuple[Operation, Tokens]]:
    """The operations in `op` that take or give tokens, with these; a signal gives."""
    for inner in op.walk():
        if type(inner) is DmaOp or type(inner) is LoadOp or type(inner) is CommitOp:
            yield inner, inner.record.data.tokens
        elif type(inner) is SignalOp:
            yield inner, Tokens(give=inner.record.data.semaphore)


def _problems(layer: LayerOp) -> Iterator[str]:
    """What the operations of a layer name that does not exist. A view stands before its use."""
    tensors, views, inside = tensors_of(layer.parent_op()), set[str](), list(_with_loops(layer))
    loops = {op.record.data.loop for op, _ in inside if isinstance(op, RepeatOp)}
    for op, around in inside:
        if isinstance(op, RepeatOp) and op.record.data.frames and not isinstance(layer.parent_op(), CoreOp):
            yield f"loop {op.record.data.loop} runs over frames, which only cores have (CORE-8)"
        if isinstance(op, ViewOp):
            view = op.record.data
            views.add(view.name)
            if view.frames and view.tensor in tensors and tensors[view.tensor].memory != "dram":
                yield f"view {view.name} is over frames, but its tensor does not lie in DRAM (CORE-8)"
            if view.tensor not in tensors:
                yield f"view {view.name}: there is no tensor {view.tensor}"
            # A view stands at the head of the layer, before the loops that step it. So any loop of the layer will do.
            yield from (f"view {view.name}: there is no loop {t.loop}" for t in view.steps if t.loop not in loops)
            continue
        names, conditions = _names(op)
        yield from (f"{op.name}: there is no view {name} before it" for name in names if name not in views)
        yield from (
            f"{op.name}: a condition names loop {name}, which is not around it"
            for name in conditions
            if name not in around
        )
    yield from _commit_problems(op.record.data for op, _ in inside if isinstance(op, UnitOp | CommitOp))
    yield from _semaphore_problems(layer)


def _commit_problems(records: Iterable[Unit | Commit]) -> Iterator[str]:
    """Commits that lack a view of what they read: the number of a view that is not named is that of another one."""
    # COMMIT-3: before the first unit psums pass as they are.
    unit = Unit()
    for record in records:
        if isinstance(record, Unit):
            unit = record
            continue
        reads = {"params": unit.bias or unit.scale, "residual": unit.factors, "operand": record.source == Source.GLB}
        lacking = [name for name, is_read in reads.items() if is_read and not getattr(record, name)]
        yield from (f"array.commit to {record.view}: it reads {name}, and names no view of them" for name in lacking)


def _semaphore_problems(layer: LayerOp) -> Iterator[str]:
    """Semaphores that the machine does not have, and those that no operation of the module gives a token (TOKEN-4).

    Tokens of cores come from other cores, too: `cores_problems` looks for those.
    """
    inside = list(tokens_in(layer))
    given = {tokens.give for _, tokens in inside}
    # The giver is mostly the layer itself or one beside it. To look at all layers for each would take quadratic time.
    others = _nearest_first(layer)
    while not given.issuperset(tokens.take for _, tokens in inside if tokens.take) and (other := next(others, None)):
        given |= {tokens.give for _, tokens in tokens_in(other)}
    for op, tokens in inside:
        for number in (tokens.take, tokens.give):
            if not 0 <= number <= SEMAPHORES:
                yield f"{op.name}: there is no semaphore {number}: they are 1 to {SEMAPHORES}"
        if 0 < tokens.take <= SEMAPHORES and tokens.take not in given and not isinstance(layer.parent_op(), CoreOp):
            yield f"{op.name}: nothing gives semaphore {tokens.take} a token"


def _nearest_first(layer: LayerOp) -> Iterator[Operation]:
    """The other operations of the block of a layer: those before it, then those behind it."""
    op: Operation | None = layer
    while op := op.prev_op:
        yield op
    op = layer
    while op := op.next_op:
        yield op


_ROUTES_FIRST = (RouteOp, SignalOp, LayerOp | HostOp)  # what stands in a core, in this order


def _core_problems(core: CoreOp, number: int) -> Iterator[str]:
    """What is wrong with a core by itself (CORE-1, CORE-3, CORE-8)."""
    place, inside = core.record.data, list(core.body.block.ops)
    ranks = [next((rank for rank, kind in enumerate(_ROUTES_FIRST) if isinstance(op, kind)), -1) for op in inside]
    if -1 in ranks or ranks != sorted(ranks):
        yield "a core is routes, then signals, then layers (and host segments)"
    if number and min(place.rows, place.cols) < 1:
        yield "only core 0 may have no PEs (CORE-1)"
    for op in core.walk():
        if isinstance(op, DmaOp | HostOp) and number:
            yield f"{op.name}: core 0 alone has the dma engine and the host (CORE-1)"
        if isinstance(op, LoadOp | MacOp | UnitOp | CommitOp) and not place.rows:
            yield f"{op.name}: the core has no PEs (CORE-1)"
        if isinstance(op, RepeatOp) and op.record.data.frames and not isinstance(op.parent_op(), LayerOp):
            yield f"loop {op.record.data.loop} runs over frames inside another loop (CORE-8)"


_ENGINES: dict[type[Operation], str] = {DmaOp: "dma", LoadOp: "load", CommitOp: "commit"}


def _tokens_of_core(core: CoreOp) -> CoreTokens:
    """Who gives and takes what in a core."""
    place, inside = core.record.data, list(core.body.block.ops)
    gives, takes = dict[int, set[str]](), dict[int, set[str]]()
    for op in inside:
        for use, tokens in tokens_in(op):
            engine = _ENGINES.get(type(use), "")
            if tokens.give:
                gives.setdefault(tokens.give, set()).add(engine)
            if tokens.take:
                takes.setdefault(tokens.take, set()).add(engine)
    records = [op.record.data for op in inside if isinstance(op, RouteOp)]
    routes = [(route.semaphore, route.core, route.to) for route in records]
    region = Region(place.rows, place.cols, place.row0, place.col0)
    return CoreTokens(place.label, region, routes, gives, takes)


@cache
def _condition_fields(record: type) -> list[str]:
    """The fields of a record that are conditions."""
    return [name for name, hint in field_types(record).items() if hint == Condition]


def _names(op: Operation) -> tuple[list[str], list[str]]:
    """The views and the loops of conditions that an operation names."""
    match op:
        case DmaOp():
            views = [op.record.data.dram, op.record.data.glb]
        case LoadOp():
            views = [op.record.data.view]
        case CommitOp(record=record):
            commit = record.data
            views = [commit.view, commit.operand, commit.residual, commit.params, commit.sums]
        case MacOp():
            views = []
        case _:
            return [], []
    record = op.record.data
    conditions: list[Condition] = [getattr(record, name) for name in _condition_fields(type(record))]
    if not isinstance(record, Mac):
        # A condition counts only with a semaphore: its default, always, names no loop.
        tokens = record.tokens
        conditions += [tokens.take_when if tokens.take else (), tokens.give_when if tokens.give else ()]
    return [view for view in views if view], [name for names in conditions for name in names or ()]


ARRAY = Dialect(
    "array",
    [
        TensorOp,
        LayerOp,
        RepeatOp,
        ViewOp,
        DmaOp,
        LoadOp,
        MacOp,
        UnitOp,
        CommitOp,
        SyncOp,
        SignalOp,
        HostOp,
        CoreOp,
        RouteOp,
    ],
    [
        TensorAttr,
        ViewAttr,
        DmaAttr,
        LoadAttr,
        MacAttr,
        UnitAttr,
        CommitAttr,
        HostAttr,
        RepeatAttr,
        SignalAttr,
        SyncAttr,
        CoreAttr,
        RouteAttr,
    ],
)
use_simple_verifiers(ARRAY)
