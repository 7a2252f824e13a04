"""Loop nests to PE-set programs.

Each layer becomes an `array.layer`, each value a tensor in the GLB. Inputs and outputs of the network, and what host
segments read or write, become tensors in DRAM that are copied in and out. A layer's final `sync` waits for loads,
macro-instructions and commits (*thin*, rule TOKEN-5). It also waits for the DMA if the layer stages its output, unless
the next layer stages its ifmap or residual: its first transfer is queued behind then.

    %1 = nest.layer "mac" %0 weights @conv1.w …    array.tensor conv1.glb, memory glb, …
                                              ->   array.layer "conv1" computes "relu1" { array.view … }

What each layer's program is made of is in `layer_program.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from cnncc.arch.model import Arch
from cnncc.context import weights_of
from cnncc.dialects import array as A
from cnncc.dialects.cnn import (
    ConcatOp,
    HostOp,
    Quant,
    QuantAttr,
    ReshapeOp,
    SliceOp,
    is_per_channel,
    quants_of,
    shape,
    value_key,
)
from cnncc.dialects.nest import (
    ColumnsOp,
    CoresOp,
    GroupOp,
    JoinOp,
    LayerOp,
    LoadOp,
    columns_of,
    group_layers,
    image_shape,
    mapping_of,
)
from cnncc.dialects.onnx import text
from cnncc.dialects.weights import GlobalOp
from cnncc.errors import Refusal, Refusals
from cnncc.mapping.groups import GroupLayer
from cnncc.mapping.strips import split_strip
from cnncc.model.glb_tokens import FULL_IN_TURN, PRIMED, Semaphore
from cnncc.model.group_steps import first_runs, last_run
from cnncc.model.layer_shape import stage_words
from cnncc.model.program_schedule import MOST_COPIES
from cnncc.passes._onnx.labels import OTHERS
from cnncc.passes._programs.array_mark import marked_array
from cnncc.passes._programs.array_ops import COMPUTING, core_ops, layer_op, node_op, record_op
from cnncc.passes._programs.core_program import ChainProgram
from cnncc.passes._programs.dram_weights import DramWeights
from cnncc.passes._programs.group_program import group_program
from cnncc.passes._programs.layer_program import layer_program
from cnncc.passes._programs.layer_records import ActivationLayout, ProgramLayer, Tensors
from cnncc.passes._programs.layer_sums import partial_sums
from cnncc.passes._programs.loaded_rows import LoadedRows
from cnncc.passes._programs.stream_program import stream_program
from cnncc.passes._programs.tensors import ArrayTensors, is_read_in_glb, no_scale, source, staged, uses
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape, rows_apart


def _in_group(layer: ProgramLayer) -> ProgramLayer:
    return replace(layer, unit=replace(layer.unit, layer=layer.label), in_group=True)


@dataclass
class _Lowering:
    """The module being built."""

    arch: Arch
    weights: DramWeights
    func: FuncOp
    tensors: ArrayTensors
    program: list[Operation] = field(default_factory=list[Operation])
    drained: A.LayerOp | None = None  # the layer just before, if its last transfers bring results to DRAM
    rings: dict[SSAValue, ActivationLayout] = field(default_factory=dict[SSAValue, ActivationLayout])
    leaving: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])  # results of groups, by value
    chain: ChainProgram | None = None  # the cores with PEs
    labels: set[str] = field(default_factory=lambda: {*OTHERS})  # of rows of tables

    def __post_init__(self) -> None:
        outputs = self.func.function_type.outputs
        self.names = _names(self.func.arg_attrs, len(self.func.args), "arguments")
        self.result_names = _names(self.func.res_attrs, len(outputs), "results")

    def copy(self, direction: A.Direction, label: str, values: Sequence[SSAValue]) -> None:
        """A layer that moves values between their tensors in DRAM and in the GLB."""
        self.move(direction, label, [(self.tensors.tensor("dram", value), value) for value in values])

    def move(self, direction: A.Direction, label: str, values: Sequence[tuple[str, SSAValue]]) -> None:
        """A layer that moves values between these tensors in DRAM and theirs in the GLB, or several of them."""
        if len(values) > MOST_COPIES:  # each takes two of a layer's 16 descriptors, and prefetched operands four
            self.move(direction, label, values[:MOST_COPIES])
            self.move(direction, f"more {label}", values[MOST_COPIES:])
            return
        if values and any(isinstance(op, CoresOp) for op in self.func.body.block.ops):
            names = ", ".join(tensor for tensor, _ in values)
            raise Refusal(
                f"{label}: {names} would be copied between DRAM and the GLB, image by image: beside nest.cores a value "
                f"is read by the first core, or by the host at one scale"
            )
        ops: list[Operation] = []
        for i, (tensor, value) in enumerate(values):
            dram, glb, home = f"dram{i}", f"glb{i}", self.tensors.home("glb", value)
            _, _, rows, cols = image_shape(value.type)
            if home.plane != rows * cols:
                raise Refusal(
                    f"{label}: {home.tensor} is interleaved with others, so that it is not moved as a whole; "
                    f"cnn-legalize copies such parts"
                )
            words = prod(shape(value.type))
            images = 1 if home.image == prod(shape(value.type)[1:]) else shape(value.type)[0]
            steps = (0, 0) if images == 1 else (words // images, home.image)
            ops += [record_op(A.View(dram, tensor)), record_op(A.View(glb, home.tensor))]
            dma = A.Dma(direction, dram, glb, words // images, images, dram_step=steps[0], glb_step=steps[1])
            ops.append(record_op(dma))
        if values:
            self.drained = None  # one engine does both, one after the other
            self.program.append(layer_op(label, "", ops, (A.Engine.DMA,)))

    def _row(self, label: str) -> None:
        """Note a row of tables. Raises Refusal for a name that tells it from no other row."""
        if not label:
            raise Refusal("a layer has the label '', which names no row of tables: give it a label of its own")
        if label in self.labels:
            raise Refusal(f"two rows of tables would be called '{label}': give each layer a label of its own")
        self.labels.add(label)

    def layer(self, op: LayerOp) -> None:
        """One layer: its output tensor, its weights in DRAM and GLB, its program."""
        key, label = value_key(op), label_of(op)
        streams = "output" in staged(op)
        self.tensors.place("dram" if streams else "glb", op.result, key or label)
        self._row(label)
        programmed = self._program_layer(op, label)
        nodes = stream_program(programmed) if programmed.shape.kind == "copy" else layer_program(programmed, self.arch)
        ops = [node_op(node) for node in nodes]
        if not staged(op) & {"ifmap", "residual"}:
            self.finish()
        layer = layer_op(label, key or label, ops, COMPUTING, op.prefetched)
        self.drained = layer if streams else None
        self.program.append(layer)

    def group(self, op: GroupOp) -> None:
        """A group: the tensors of its rings and of what leaves it, its program. It is one layer of the program."""
        members, plans, label = op.members(), group_layers(op), op.label.data
        self._row(label)
        layers = op.layers()
        self.leaving |= dict(zip(op.yielded(), op.outputs, strict=True))
        for layer, plan in zip(members, plans, strict=True):
            name = value_key(layer) or plan.label
            if plan.keeps:
                self.rings[layer.result] = self.tensors.ring(f"{name}.ring", plan, plan.keeps)
            elif isinstance(layer, LayerOp):
                memory = "dram" if "output" in staged(layer) else "glb"
                self.tensors.place(memory, self.leaving[layer.result], name)
        programs = [
            self._loaded(member) if isinstance(member, LoadOp) else _in_group(self._program_layer(member, plan.label))
            for member, plan in zip(members, plans, strict=True)
        ]
        ops = [node_op(node) for node in group_program(programs, plans, self.arch)]
        first = members[first_runs(plans)[0]]
        if isinstance(first, LayerOp) and not staged(first) & {"ifmap", "residual"}:
            self.finish()
        last = members[last_run(plans)]
        value = (value_key(last) or label) if last.result in self.leaving else ""
        program = layer_op(label, value, ops, COMPUTING)
        self.drained = program if any("output" in staged(layer) for layer in layers) else None
        self.program.append(program)

    def cores(self, op: CoresOp) -> None:
        """Layers side by side: what core 0 does for them, and the programs of the other cores."""
        chain = ChainProgram(op, self.tensors, self.rings, self._program_layer, self.arch)
        if chain.weights:
            self.program.append(layer_op("weights", "", list(map(node_op, chain.weights)), ()))
        self.program.append(layer_op("frames", chain.value, list(map(node_op, chain.frames)), (A.Engine.DMA,)))
        self.chain = chain

    def _loaded(self, op: LoadOp) -> LoadedRows:
        if not self.tensors.lies_in("dram", op.value):
            raise Refusal(f"{op.label.data} does not lie in DRAM, but is loaded row by row")
        _, *sides = image_shape(op.value.type)
        return LoadedRows(self.tensors.home("dram", op.value), self.rings[op.result], *sides)

    def finish(self) -> None:
        """Have the layer just before wait for its results to be in DRAM."""
        sync = self.drained.body.block.last_op if self.drained else None
        if isinstance(sync, A.SyncOp):
            sync.record = A.SyncAttr(A.Sync((*COMPUTING, A.Engine.DMA)))

    def _program_layer(self, op: LayerOp, label: str, on_core: GroupLayer | None = None) -> ProgramLayer:
        """A layer to be programmed, as plain data. on_core: as it runs over frames, if it does."""
        steps = op.steps.data
        params, per_channel = self.weights.params(label, op)
        staged_operands = staged(op)
        ifmap = self._home(label, "ifmap", op.ifmap, staged_operands)
        tensors = Tensors(
            _every_row(rows_apart(op), ifmap, label),
            self._home(label, "output", op.result, staged_operands),
            self._residual(label, op, staged_operands) if op.residual else None,
            self.weights.of_layer(label, op),
            params,
        )
        unit = A.Unit(
            bool(steps.bias),
            bool(steps.scale),
            steps.zero,
            steps.clamp,
            steps.factors,
            steps.multiply,
            steps.add_clamp,
            steps.slope,
            steps.table,
            steps.shift,
        )
        # Neighbouring layers have different semaphores: prefetched weights do not count for the current layer.
        full = FULL_IN_TURN[len(self.program) % 2]
        layer = ProgramLayer(label, layer_shape(op), mapping_of(op), tensors, per_channel, unit, full)
        if on_core:
            shape = replace(layer.shape, sizes=on_core.sizes)
            layer = _in_group(replace(layer, shape=shape, mapping=on_core.mapping, full=Semaphore.FULL))
        return replace(layer, tensors=replace(tensors, buffers=self._buffers(layer)))

    def _residual(self, label: str, op: LayerOp, staged_operands: set[str]) -> ActivationLayout:
        assert op.residual is not None
        home = self._home(label, "residual", op.residual, staged_operands)
        return replace(home, pixel=True) if is_per_channel(op.residual, op.result) else home

    def _home(self, label: str, operand: str, value: SSAValue, staged_operands: set[str]) -> ActivationLayout:
        part = columns_of(value, self.rings)
        if part.whole in self.rings:
            return self.tensors.part(self.rings[part.whole], part.first, "columns")
        value = self.leaving.get(value, value)
        memory, says = ("dram", "staged in glb") if operand in staged_operands else ("glb", "not staged in glb")
        if not self.tensors.lies_in(memory, value):
            raise Refusal(f"layer {label}: its {operand} does not lie in {memory.upper()}, but is {says}")
        return self.tensors.home(memory, value)

    def _buffers(self, layer: ProgramLayer) -> dict[str, str]:
        """The buffers in the GLB that the layer's stages fill, and that of its partial sums."""
        _, strip = split_strip(layer.label)
        of = {"weight": layer.tensors.weight + strip, "params": layer.tensors.params + strip}
        buffers: dict[str, str] = {}
        for operand, stage in layer.mapping.glb_stages.items():
            name = of.get(operand, f"{layer.label}.{operand}")
            words = stage_words(layer.shape, layer.mapping.loops, stage, layer.words_per_channel)
            buffers[operand] = self.tensors.declare(A.Tensor(f"{name}.glb", "glb", words))
        if sums := partial_sums(layer.shape, layer.mapping, layer.tensors.output):
            words = self.arch.words_per_sum * sums
            buffers["sums"] = self.tensors.declare(A.Tensor(f"{layer.label}.sums.glb", "glb", words))
        return buffers

    def host(self, op: HostOp) -> None:
        """A host segment between layers: its operands out to DRAM, its results back."""
        label = op.label.data if op.label else "host"
        fresh: list[tuple[str, SSAValue]] = []
        read = [
            self._host_operand(label, value, quant.data, fresh)
            for value, quant in zip(op.inputs, op.input_quants, strict=True)
        ]
        self.move(A.Direction.OUT, f"{label} operands", fresh)
        outputs = [
            self._host_result(f"{label}.{i}", value, quant)
            for i, (value, quant) in enumerate(zip(op.outputs, op.output_quants, strict=True))
        ]
        record, self.drained = A.HostAttr(A.Host(tuple(read), tuple(outputs))), None  # the host waits for all engines
        self.program.append(A.HostOp.create(properties={"model": op.model, "record": record}))
        self.copy(
            A.Direction.IN, f"{label} results", [value for value in op.outputs if self.tensors.lies_in("glb", value)]
        )

    def _host_operand(self, label: str, value: SSAValue, quant: Quant, fresh: list[tuple[str, SSAValue]]) -> str:
        """The tensor from which a segment reads a value by a scale; `fresh` ones are to be copied from the GLB."""
        if name := self.tensors.exchanged.get((source(value), quant)):
            return name
        if self.tensors.lies_in("glb", value):
            name = self.tensors.tensor("glb", value).removesuffix(".glb")
            fresh.append((self.tensors.exchange(value, name, "value", quant), value))
            return fresh[-1][0]
        tensor = self.tensors.declared[self.tensors.tensor("dram", value)]
        of_its_own = tensor.role == "value" and not tensor.part_of and tensor.words == prod(shape(value.type))
        if tensor.memory == "dram" and not of_its_own:
            raise Refusal(f"{label}: its operand {tensor.name} is no tensor of its own in DRAM")
        if tensor.memory == "dram":
            self.tensors.rescale(value, quant)
        return tensor.name

    def _host_result(self, name: str, value: SSAValue, quant: QuantAttr) -> str:
        if quant.data.scale == 0.0:
            returned = next((use for use in value.uses if isinstance(use.operation, ReturnOp)), None)
            if returned is None:
                return self.tensors.on_host(value, name, "value")
            return self.tensors.on_host(value, self.result_names[returned.index], "output")
        self.place_in_glb(name, value, quant.data)
        return self.tensors.exchange(value, name, "value", quant.data)

    def place_in_glb(self, name: str, value: SSAValue, quant: Quant) -> None:
        """Give a value that lies in DRAM by a scale a tensor in the GLB too, where anything reads it there."""
        if any(is_read_in_glb(use, quant) for use in uses(value)):
            self.tensors.place("glb", value, name)

    def outputs(self) -> None:
        """Bring the network's outputs to their tensors."""
        quants, moved = quants_of(self.func.res_attrs, len(self.result_names)), list[tuple[str, SSAValue]]()
        returned = cast("ReturnOp", self.func.body.block.last_op)
        for name, quant, value in zip(self.result_names, quants, returned.arguments, strict=True):
            if self.tensors.lies_in("glb", value):
                if quant is None:
                    raise no_scale(name)
                moved.append((self.tensors.exchange(value, name, "output", quant), value))
            elif (there := self.tensors.tensor("dram", value)) != name:
                raise Refusal(
                    f"output '{name}' is the same as '{there}', which only the host reads or computes: "
                    f"leave it out of the model's outputs"
                )
        self.move(A.Direction.OUT, "outputs", moved)


def _every_row(apart: int, home: ActivationLayout, label: str) -> ActivationLayout:
    """A value of which every row that counts is so many rows behind the one before. Raises Refusal."""
    if home.ring % apart:
        raise Refusal(
            f"layer {label} reads every {apart}. row of a ring of {home.ring}: keep a multiple of {apart} rows of it"
        )
    return replace(home, pitch=home.pitch * apart, ring=home.ring // apart)


def _names(attrs: ArrayAttr[DictionaryAttr] | None, count: int, what: str) -> list[str]:
    """The names of so many arguments or results of the function. Raises Refusal where one has none."""
    named = [attr.data.get("onnx.name") for attr in attrs or ()]
    if len(named) != count or None in named:
        help_ = 'give each {onnx.name = "…"}, and cnn.quant where the array reads or writes it'
        raise Refusal(f"nest-to-array: not all {what} of @main have a name: {help_}")
    return [text(name) for name in named if name is not None]


def _lower(lowering: _Lowering) -> None:
    func, tensors = lowering.func, lowering.tensors
    for name, quant, arg in zip(lowering.names, quants_of(func.arg_attrs, len(func.args)), func.args, strict=True):
        if quant is None:
            tensors.on_host(arg, name, "input")
        else:
            tensors.exchange(arg, name, "input", quant)
            lowering.place_in_glb(name, arg, quant)
    lowering.copy(A.Direction.IN, "inputs", [arg for arg in func.args if tensors.lies_in("glb", arg)])
    refusals = Refusals()
    for op in func.body.block.ops:
        match op:
            case LayerOp():
                with refusals.kept(label_of(op)):
                    lowering.layer(op)
            case HostOp():
                lowering.host(op)
            case ReshapeOp() | SliceOp() | ConcatOp() | ColumnsOp() | JoinOp():
                pass  # the same words under another shape, in one tensor, or some of them
            case ReturnOp():
                refusals.raise_any("nest-to-array")  # what a refused layer computes has no tensor
                lowering.outputs()
            case GroupOp():
                with refusals.kept(op.label.data):
                    lowering.group(op)
            case CoresOp():
                with refusals.kept(op.label.data):
                    lowering.cores(op)
            case _:
                raise Refusal(f"nest-to-array: {op.name} is no loop nest; lower it first")
    lowering.finish()


def _primed(program: Sequence[Operation]) -> list[Operation]:
    """A layer that gives the semaphores that transfers wait for the tokens of buffers that are free at first."""
    records = [op.record.data for layer in program for op in layer.walk() if isinstance(op, A.DmaOp | A.CommitOp)]
    taken = {record.tokens.take for record in records}
    signals = [record_op(A.Signal(semaphore, count)) for semaphore, count in PRIMED.items() if semaphore in taken]
    return [layer_op("semaphores", "", signals, (A.Engine.DMA,))] if signals else []


@dataclass(frozen=True)
class NestToArrayPass(ModulePass):
    """Lower every nest.layer to the program of its PE sets; see the module's docstring.

    arch: only for layers that are mapped to an array of a file, or mapped by hand; of another array it is refused.
    """

    name = "nest-to-array"
    arch: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace `main` by tensors and layers."""
        func = next((f for f in op.ops if isinstance(f, FuncOp)), None)
        if func is None:
            return  # nothing to lower: the module is at the array level already
        globals_ = {g.sym_name.data: g for g in op.ops if isinstance(g, GlobalOp)}
        arch, tensors = marked_array(op, self.arch, self.name), ArrayTensors(func)
        weights = DramWeights(dict(globals_), weights_of(ctx), tensors, arch.operand_bits)
        lowering = _Lowering(arch, weights, func, tensors)
        _lower(lowering)
        # The order of outputs is the network's, whenever they were declared.
        names, declared = lowering.result_names, list(tensors.declared.values())
        declared.sort(key=lambda tensor: names.index(tensor.name) if tensor.role == "output" else -1)
        Rewriter.erase_op(func)
        program = [*_primed(lowering.program), *lowering.program]
        program = core_ops(lowering.chain, lowering.program) if lowering.chain else program
        op.body.block.add_ops([*weights.new, *map(record_op, declared), *program])
