"""PE-set programs to machine instructions, one to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import assert_never

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from cnncc.arch.model import DESCRIPTORS, LOOP_REGISTERS
from cnncc.context import weights_of
from cnncc.dialects import array as A
from cnncc.dialects import isa
from cnncc.dialects.weights import GlobalOp, RefAttr, constant_array
from cnncc.errors import Refusal, refusals_of
from cnncc.frontend.segments import name_after_tensors
from cnncc.isa.fields import FieldTerm, Value, When
from cnncc.isa.table import ENTRIES, RUN_BY_ENGINES, Instruction, instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.numerics import Table
from cnncc.passes._programs.word_bounds import check_dma, check_load
from cnncc.passes.array_allocate import check_places
from cnncc.weights import Array, WeightStore

EXTENTS = 4


def loop_registers(layer: A.LayerOp) -> dict[str, int]:
    """The register of each loop of a layer: how deep it stands (PROG-2).

    Raises Refusal where a name stands at two depths, or two names at one depth: a descriptor has one step for each
    register, whichever loop is running on it.
    """
    registers: dict[str, int] = {}
    for op in layer.walk():
        if isinstance(op, A.RepeatOp):
            name, depth = op.record.data.loop, len(A.loops_around(op))
            if registers.setdefault(name, depth) != depth:
                raise Refusal(f"loop {name} stands at depths {registers[name]} and {depth}")
    if len(set(registers.values())) < len(registers):
        raise Refusal(f"loops {', '.join(registers)} do not have one name at each depth")
    if len(registers) > LOOP_REGISTERS:
        raise Refusal(f"loops {', '.join(registers)} nest {len(registers)} deep, the array has {LOOP_REGISTERS}")
    return registers


@dataclass
class _Layer:
    """What the instructions of one layer refer to by name.

    record: words of the record of a frame (CORE-8). label: in comments. In a group, a `unit` sets that of its layer, up
    to the end of the loop around.
    """

    tensors: Mapping[str, A.Tensor]
    record: int
    factors: Callable[[str], tuple[int, ...]]
    table: Callable[[str], tuple[int, ...]]
    registers: Mapping[str, int]
    around: Mapping[str, int] = field(default_factory=dict[str, int])
    descriptors: dict[str, int] = field(default_factory=dict[str, int])
    label: str = ""
    views: dict[str, A.View] = field(default_factory=dict[str, A.View])

    def register(self, loop: str) -> int:
        if loop not in self.registers:
            raise Refusal(f"there is no loop {loop}; the layer has {', '.join(self.registers) or 'none'}")
        return self.registers[loop]

    def when(self, names: A.Names | None) -> When:
        """A condition by loop registers."""
        if names is None:
            return None
        for name in names:
            if name not in self.around:
                raise Refusal(f"a condition names loop {name}, around it are {', '.join(self.around) or 'none'}")
        return tuple(sorted({self.registers[name] for name in names}))

    def descriptor(self, view: str, memory: A.Memory = "glb") -> int:
        """The number of a view of `memory`; 0 where there is none, since the field is then not looked at."""
        if not view:
            return 0
        if view not in self.descriptors:
            raise Refusal(f"there is no view {view} before it; there are {', '.join(self.descriptors) or 'none'}")
        tensor = self.tensors[self.views[view].tensor]
        if tensor.memory != memory:
            raise Refusal(f"view {view} is on tensor {tensor.name} in {tensor.memory}, not in {memory}")
        return self.descriptors[view]

    def view(self, view: A.View) -> list[tuple[Instruction, str]]:
        """`desc`, and a `step` for each loop."""
        number = self.descriptors.setdefault(view.name, len(self.descriptors))
        if number >= DESCRIPTORS:
            raise Refusal(f"view {view.name} is one too many: the array has {DESCRIPTORS} descriptors")
        self.views[view.name] = view
        loops = [(step.loop, step.axis == "lin") for step in view.steps]
        if len(set(loops)) < len(loops):
            raise Refusal(f"view {view.name} has two steps for one loop, on the linear axis or on others")
        desc = instruction(
            "desc", id=number, base=self._base(view.tensor), height=view.height, width=view.width,
            pitch=self.record if view.frames else view.pitch, plane=view.plane, fill=view.fill, zero=view.zero,
            wrap=view.wrap, ring_y=view.ring_y, ring_x=view.ring_x, column=view.column, frames=int(view.frames),
        )  # fmt: skip
        steps = [
            (instruction("step", id=number, loop=self.register(t.loop), by=FieldTerm(t.axis, t.step)), f"by {t.loop}")
            for t in view.steps
        ]
        return [(desc, f"{view.name}: {view.tensor}"), *steps]

    def _base(self, name: str) -> int:
        if name not in self.tensors:
            raise Refusal(f"there is no tensor {name}")
        if self.tensors[name].at < 0:
            raise Refusal(f"tensor {name} has no place in a memory: run array-allocate first")
        return self.tensors[name].at

    def tokens(self, tokens: A.Tokens) -> dict[str, Value]:
        """The fields of the semaphores. A semaphore that is not used leaves its condition at the default."""
        fields: dict[str, Value] = {"take": tokens.take, "give": tokens.give}
        if tokens.take:
            fields["take_when"] = self.when(tokens.take_when)
        if tokens.give:
            fields["give_when"] = self.when(tokens.give_when)
        return fields

    def dma(self, dma: A.Dma) -> Instruction:
        return instruction(
            "dma", direction=dma.direction, dram=self.descriptor(dma.dram, "dram"), glb=self.descriptor(dma.glb),
            count=dma.count, words=dma.words, dram_offset=dma.dram_offset, glb_offset=dma.glb_offset,
            dram_step=dma.dram_step, glb_step=dma.glb_step, rows=dma.rows, y=dma.y, x=dma.x,
            **self.tokens(dma.tokens),
        )  # fmt: skip

    def load(self, load: A.Load) -> Instruction:
        # The last extent runs fastest, so missing ones are slow ones of 1.
        pattern = [A.Extent()] * (EXTENTS - len(load.pattern)) + list(load.pattern)
        extents: dict[str, Value] = {f"extent{i}": extent.n for i, extent in enumerate(pattern)}
        terms: dict[str, Value] = {f"term{i}": FieldTerm(extent.axis, extent.step) for i, extent in enumerate(pattern)}
        return instruction(
            "load", kind=load.kind, desc=self.descriptor(load.view), slot=load.slot, edge=int(load.edge),
            open=self.when(load.open), close=self.when(load.close),
            **vars(load.start), **_place(load.place), **extents, **terms, **self.tokens(load.tokens),
        )  # fmt: skip

    def mac(self, mac: A.Mac) -> Instruction:
        return instruction(
            "mac", op=mac.op, **_rectangle(mac.place), set_cols=mac.place.set_cols,
            psum_l=mac.psum.lane, pixels=mac.pixels, taps=mac.taps, step_range=mac.step_range, lanes=mac.lanes,
            data_reuse=mac.data_reuse, n2n_slot=mac.n2n_slot, ifmap_l=mac.ifmap.lane, weight_l=mac.weight.lane,
            clear=self.when(mac.clear), send=self.when(mac.send),
            take_weight=self.when(mac.take_weight), give_weight=self.when(mac.give_weight),
            take_ifmap=self.when(mac.take_ifmap), give_ifmap=self.when(mac.give_ifmap),
            **_slots("ifmap", mac.ifmap), **_slots("weight", mac.weight), **_slots("psum", mac.psum),
        )  # fmt: skip

    def unit(self, unit: A.Unit) -> Iterator[Instruction]:
        """`unit`, behind a `table` for each 32 entries of its table (COMMIT-7)."""
        factors = self.factors(unit.factors) if unit.factors else (0, 0, 0)
        entries = self.table(unit.table) if unit.table else (0,)
        for part in range(len(entries) // ENTRIES):
            own = entries[part * ENTRIES : (part + 1) * ENTRIES]
            yield instruction("table", part=part, **{f"entry{at}": entry for at, entry in enumerate(own)})
        yield instruction(
            "unit", bias=int(unit.bias), scale=int(unit.scale), residual=int(bool(unit.factors)),
            multiply=int(unit.multiply), zero=unit.zero, clamp_lo=unit.clamp[0], clamp_hi=unit.clamp[1],
            factor_a=factors[0], factor_b=factors[1], fixed=factors[2],
            add_lo=unit.add_clamp[0], add_hi=unit.add_clamp[1],
            lookup=int(bool(unit.table)), shift=unit.shift, last=entries[-1],
            leaky=int(unit.slope != 1), slope=int(np.float32(unit.slope).view(np.uint32)) if unit.slope != 1 else 0,
        )  # fmt: skip

    def commit(self, commit: A.Commit) -> Instruction:
        return instruction(
            "commit", source=commit.source, desc=self.descriptor(commit.view),
            operand=self.descriptor(commit.operand), residual=self.descriptor(commit.residual),
            params=self.descriptor(commit.params), param=commit.param,
            pixels=commit.pixels.n, pixel_term=FieldTerm(commit.pixels.axis, commit.pixels.step),
            lines=commit.lines.n, line_term=FieldTerm(commit.lines.axis, commit.lines.step),
            channels=commit.channels.n, channel_term=FieldTerm(commit.channels.axis, commit.channels.step),
            reduce=int(commit.reduce), partial=int(bool(commit.sums)), sums=self.descriptor(commit.sums),
            fresh=self.when(commit.fresh), final=self.when(commit.final),
            **_slots("psum", commit.psum),
            **vars(commit.start), **_place(commit.place), **self.tokens(commit.tokens),
        )  # fmt: skip

    def with_comment(self, inst: Instruction, views: tuple[str, ...] = ()) -> tuple[Instruction, str]:
        """An instruction of an engine with a comment: the layer, what it does for it, and how much of that."""

        def product(*names: str) -> int:
            return prod(inst.number(name) for name in names)

        tensors = [self.views[view].tensor for view in views]
        kind = inst.spec.kind
        assert kind in RUN_BY_ENGINES
        match kind:
            case Kind.DMA:
                source, target = tensors if inst.text("direction") == "in" else reversed(tensors)
                what = f"{product('count', 'rows', 'words')} words from {source} to {target}"
            case Kind.LOAD:
                whose = " from the virtual neighbour" if inst.number("edge") else ""
                words = product(*(f"extent{i}" for i in range(EXTENTS)))
                what = f"{inst.text('kind')}, {words} words a PE{whose}"
            case Kind.MAC:
                what = "psums" if inst.number("psum_l") else "products"
                of = f" of {lanes} {what}" if (lanes := inst.number("lanes")) > 1 else ""
                what = f"{product('pixels', 'taps', 'step_range')} steps{of} on {product('rows', 'cols')} PEs"
            case Kind.COMMIT:
                added = inst.number("set_rows") if inst.number("reduce") else 1
                what = f"{product('rows', 'cols', 'pixels', 'lines', 'channels') // added} results to {tensors[0]}"
            case Kind.UNIT:
                what = "output units"
            case Kind.TABLE:
                what = f"entries {(first := ENTRIES * inst.number('part'))} to {first + ENTRIES - 1} of the table"
            case _:
                assert_never(kind)
        return inst, f"{self.label}: {what}"

    def lower(self, op: Operation) -> Iterator[tuple[Instruction, str]]:
        """The instructions of `op`, each with a comment."""
        self.around = A.loops_around(op)
        match op:
            case A.ViewOp():
                yield from self.view(op.record.data)
            case A.RepeatOp():
                repeat = op.record.data
                yield instruction("loop", count=repeat.count, frames=int(repeat.frames)), repeat.loop
                whole = self.label
                for inner in op.body.block.ops:
                    yield from self.instructions(inner)
                self.label = whole
                yield instruction("end"), ""
            case A.DmaOp():
                dma = op.record.data
                yield self.with_comment(self.dma(dma), (dma.dram, dma.glb))
                check_dma(dma, self.views[dma.dram], self.views[dma.glb], self.tensors, self.around)
            case A.LoadOp():
                load = op.record.data
                yield self.with_comment(self.load(load))
                check_load(load, self.views[load.view], self.tensors, self.around)
            case A.MacOp():
                yield self.with_comment(self.mac(op.record.data))
            case A.UnitOp():
                self.label = op.record.data.layer or self.label
                yield from map(self.with_comment, self.unit(op.record.data))
            case A.CommitOp():
                yield self.with_comment(self.commit(op.record.data), (op.record.data.view,))
            case A.SignalOp():
                signal = op.record.data
                yield instruction("signal", semaphore=signal.semaphore, count=signal.count), ""
            case A.SyncOp():
                yield instruction("sync", **dict.fromkeys(op.record.data.engines, 1)), ""
            case _:
                raise Refusal(f"{op.name} is no part of a PE-set program")

    def instructions(self, op: Operation) -> Iterator[tuple[Instruction, str]]:
        """As `lower`, naming `op` when it is refused, be it by the width of a field."""
        try:
            yield from self.lower(op)
        except (Refusal, ValueError) as error:
            if isinstance(op, A.RepeatOp) and isinstance(error, Refusal):  # of an op in it, which is named
                raise
            raise Refusal(f"{op.name}: {error}") from error


def _rectangle(place: A.Place) -> dict[str, Value]:
    return {"row0": place.row0, "rows": place.rows, "col0": place.col0, "cols": place.cols}


def _place(place: A.Place) -> dict[str, Value]:
    fields = {**_rectangle(place), **vars(place)}.items()
    return {name: FieldTerm(of.axis, of.step) if isinstance(of, A.IndexTerm) else of for name, of in fields}


def _slots(operand: str, slots: A.Slots) -> dict[str, Value]:
    return {
        f"{operand}_slot": slots.base, f"{operand}_z": slots.pixel,
        f"{operand}_j": slots.tap, f"{operand}_i": slots.channel,
    }  # fmt: skip


@dataclass
class _Program:
    """The module at the machine level, as it grows."""

    module: ModuleOp
    store: WeightStore
    tensors: Mapping[str, A.Tensor]
    insts: list[isa.InstOp] = field(default_factory=list[isa.InstOp])
    layers: list[isa.LayerOp] = field(default_factory=list[isa.LayerOp])
    segments: list[isa.SegmentOp] = field(default_factory=list[isa.SegmentOp])

    @cached_property
    def frame_words(self) -> int:
        """Words of the record of a frame (CORE-8)."""
        return sum(tensor.words for tensor in self.tensors.values() if tensor.in_record)

    def factors(self, name: str) -> tuple[int, ...]:
        """The bits of three f32 factors."""
        array = self._constant(name)
        if array.dtype != np.float32 or array.shape != (3,):
            raise Refusal(f"factors {name} are {array.dtype}{list(array.shape)}, not three float32")
        return tuple(int(bits) for bits in array.view(np.uint32))

    def table(self, name: str) -> tuple[int, ...]:
        """The 257 entries of a table."""
        with refusals_of(f"@{name}"):
            return tuple(Table.of(self._constant(name), 0).entries.tolist())

    def _constant(self, name: str) -> Array:
        for op in self.module.ops:
            if isinstance(op, GlobalOp) and op.sym_name.data == name:
                return constant_array(op, self.store)
        raise Refusal(f"there is no weights.global @{name}")

    def add(self, parts: Iterable[Operation]) -> None:
        """The instructions of one sequencer, but for its `halt`."""
        for part in parts:
            match part:
                case A.LayerOp():
                    self.layer(part)
                case A.HostOp():
                    self.host(part)
                case A.RouteOp():
                    self.outside("route", vars(part.record.data))
                case A.SignalOp():
                    self.outside("signal", vars(part.record.data))
                case A.TensorOp() | GlobalOp():
                    pass
                case _:
                    raise Refusal(f"array-to-isa: {part.name} does not stand in an array.layer: nothing would run it")

    def outside(self, name: str, values: Mapping[str, Value], comment: str = "") -> None:
        """An instruction outside of all layers. Raises Refusal for a number that its field does not hold."""
        try:
            self.insts.append(isa.inst_op(instruction(name, **values), comment))
        except ValueError as error:
            raise Refusal(f"array-to-isa: {comment or f'array.{name}'}: {error}") from error

    def core(self, op: A.CoreOp) -> None:
        """The program of a core (CORE-2)."""
        label, *place = vars(op.record.data).values()
        names = ("rows", "cols", "row0", "col0")
        self.outside("core", dict(zip(names, place, strict=True)), f"core {label}")
        self.add(op.body.block.ops)
        self.halt()

    def halt(self) -> None:
        """The end of a program."""
        self.insts.append(isa.inst_op(instruction("halt")))

    def layer(self, op: A.LayerOp) -> None:
        first, label = len(self.insts), op.label.data
        with refusals_of(f"layer {label}"):
            context = _Layer(self.tensors, self.frame_words, self.factors, self.table, loop_registers(op), label=label)
            for inner in op.body.block.ops:
                for inst, comment in context.instructions(inner):
                    self.insts.append(isa.inst_op(inst, _comment(label, comment, len(self.insts) == first)))
        record = isa.Layer(label, first, len(self.insts) - first, op.value.data)
        about: dict[str, Attribute] = {k: v for k, v in op.attributes.items() if isinstance(v, StringAttr)}
        self.layers.append(isa.LayerOp.create(properties={"record": isa.LayerAttr(record)}, attributes=about))

    def host(self, op: A.HostOp) -> None:
        number, host = len(self.segments), op.record.data
        model = self.store[op.model.key.data].tobytes()
        # A binary finds the tensors of a segment by the names of its model's inputs and outputs.
        renamed = name_after_tensors(model, host.inputs, host.outputs)
        key = self.store.add(np.frombuffer(renamed, np.uint8))
        record = isa.SegmentAttr(isa.Segment(number, host.inputs, host.outputs))
        self.segments.append(isa.SegmentOp.create(properties={"record": record, "model": RefAttr(StringAttr(key))}))
        self.insts.append(isa.inst_op(instruction("host", segment=number), f"segment {number}"))


def _check_all_in_cores(module: ModuleOp) -> None:
    """Refuse what stands beside the cores of a module, and no core runs. Raises Refusal."""
    for op in module.ops:
        if not isinstance(op, A.CoreOp | A.TensorOp | GlobalOp):
            raise Refusal(f"array-to-isa: {op.name} does not stand in an array.core: nothing would run it")


def _comment(label: str, comment: str, is_first: bool) -> str:
    # The first instruction of a layer names it in any case.
    says_so = comment.startswith(f"{label}: ")
    return ": ".join(part for part in (label if is_first and not says_so else "", comment) if part)


@dataclass(frozen=True)
class ArrayToIsaPass(ModulePass):
    """Encode PE-set programs: a view becomes `desc` and its steps, a repeat `loop` and `end`, every other op its namesake.

    Loops become registers by their depth, views descriptors by their order in the layer, tensors their first word.
    Memory stays in the module; weights that no tensor holds have been folded into instructions and go. Each core becomes
    `core`, its routes and signals, its layers, and `halt`.

        array.layer "conv1" computes "relu1" {          isa.layer <label = "conv1", first = 0, count = 5, value = "relu1">
          array.view x, tensor x.glb                    isa.inst "desc id=0 base=64" comment "conv1: x: x.glb"
          array.repeat c2, count 3 {                ->  isa.inst "loop count=3" comment "c2"
            array.mac mac, …                            isa.inst "mac rows=4 …"
          } }                                           isa.inst "end"
    """  # noqa: E501

    name = "array-to-isa"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace layers and host ops by instructions and their tables."""
        tensors = A.tensors_of(op)
        check_places(op, tensors)
        program = _Program(op, weights_of(ctx), tensors)
        if cores := A.cores_of(op):
            _check_all_in_cores(op)
            for core in cores:
                program.core(core)
        else:
            program.add(op.ops)
            program.halt()
        in_dram = {tensor.name for tensor in tensors.values() if tensor.role == "weight"}
        for part in list(op.ops):
            is_folded = isinstance(part, GlobalOp) and part.sym_name.data not in in_dram
            if is_folded or isinstance(part, A.LayerOp | A.HostOp | A.CoreOp):
                Rewriter.erase_op(part)
        op.body.block.add_ops([*program.segments, *program.layers, *program.insts])
