"""Loop nests to PE-set programs.

Each layer becomes an `array.layer`; each value a tensor in the GLB; inputs and outputs of the network, and what host
segments read or write, tensors in DRAM that are copied in and out. Between layers the program waits until loads,
macro-instructions and commits are done (*thin*, rule T5).

    %1 = nest.layer "mac" %0 weights @conv1.w …    array.tensor <name = "conv1.glb", memory = "glb", …>
                                              ->   array.layer "conv1" computes "relu1" { array.view … }

Mappings are output stationary here: sums stay in their PE until they are complete. What each layer's program is made
of is in `_layer_program.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from cnncc.arch.model import Arch, load_arch
from cnncc.context import weights_of
from cnncc.dialects import array as A
from cnncc.dialects.cnn import HostOp, QuantAttr, ReshapeOp, shape, value_key
from cnncc.dialects.nest import LayerOp, mapping_of
from cnncc.dialects.onnx import text
from cnncc.dialects.weights import GlobalOp, RefAttr, constant_array, tensor_type
from cnncc.errors import Refusal
from cnncc.passes._layer_program import layer_program, stream_program
from cnncc.passes._layer_records import FREE, Body, Layer, Node, Tensors
from cnncc.weights import Array, WeightStore

FULL = (2, 3)  # semaphores of arrived weights, in turn: those of the next layer may arrive during this one

_OPS: dict[type, tuple[type[Operation], type]] = {
    A.View: (A.ViewOp, A.ViewAttr),
    A.Dma: (A.DmaOp, A.DmaAttr),
    A.Load: (A.LoadOp, A.LoadAttr),
    A.Mac: (A.MacOp, A.MacAttr),
    A.Unit: (A.UnitOp, A.UnitAttr),
    A.Commit: (A.CommitOp, A.CommitAttr),
    A.Tensor: (A.TensorOp, A.TensorAttr),
    A.Signal: (A.SignalOp, A.SignalAttr),
}


def _op(record: object) -> Operation:
    op, attr = _OPS[type(record)]
    return op.create(properties={"record": attr(record)})


def _node_op(node: Node) -> Operation:
    if not isinstance(node, Body):
        return _op(node)
    body = Region(Block([_node_op(inner) for inner in node.nodes]))
    return A.RepeatOp.create(properties={"record": A.RepeatAttr(node.repeat)}, regions=[body])


def _layer_op(label: str, value: str, ops: Sequence[Operation], engines: Sequence[str]) -> Operation:
    """A layer that ends when these engines are idle."""
    names = {"label": StringAttr(label), "value": StringAttr(value)}
    sync = A.SyncOp.create(properties={"engines": ArrayAttr([StringAttr(name) for name in engines])})
    return A.LayerOp.create(properties=names, regions=[Region(Block([*ops, sync]))])


def param_words(arrays: Sequence[Array], operand_bits: int) -> Array:
    """The parameters of the output units as words: for each channel its bias, then its scale (rules W1, C2).

    arrays: 32-bit arrays of one value a channel. Returns operand words of shape [k, words of a channel].
    """
    columns = np.stack([np.ascontiguousarray(a).view(np.uint32) for a in arrays], axis=1)
    words = columns.astype("<u4").view(np.dtype(f"<i{operand_bits // 8}"))
    return words.reshape(len(columns), -1)


@dataclass
class _Lowering:
    """The module being built."""

    arch: Arch
    store: WeightStore
    weights: dict[str, Operation]
    tensors: list[A.Tensor] = field(default_factory=list[A.Tensor])
    new_weights: list[Operation] = field(default_factory=list[Operation])
    program: list[Operation] = field(default_factory=list[Operation])
    glb: dict[SSAValue, str] = field(default_factory=dict[SSAValue, str])
    dram: dict[SSAValue, str] = field(default_factory=dict[SSAValue, str])
    in_dram: dict[str, str] = field(default_factory=dict[str, str])
    taken: set[str] = field(default_factory=set[str])

    def array(self, name: str) -> Array:
        """The array of a weights.global. Raises Refusal where there is none of that name."""
        if name not in self.weights:
            raise Refusal(f"there is no weights.global @{name}")
        return constant_array(self.weights[name], self.store)

    def tensor(self, tensor: A.Tensor) -> str:
        """Declare a tensor and return its name: another one than said where the network's interface has that."""
        name = tensor.name
        while tensor.role in ("value", "weight") and name in self.taken:
            name += "'"
        self.taken.add(name)
        self.tensors.append(replace(tensor, name=name))
        return name

    def value(self, name: str, value: SSAValue) -> None:
        """Give a value its tensor in the GLB."""
        words = prod(shape(value.type))
        self.glb[value] = self.tensor(A.Tensor(f"{name}.glb", "glb", words, shape(value.type)))

    def exchange(self, name: str, value: SSAValue, role: str, quant: QuantAttr) -> str:
        """Give a value a tensor in DRAM, with its scale."""
        words, q = prod(shape(value.type)), quant.data
        self.dram[value] = self.tensor(A.Tensor(name, "dram", words, shape(value.type), role, q.scale, q.zero, q.clamp))
        return self.dram[value]

    def on_host(self, name: str, value: SSAValue, role: str) -> str:
        """Give a value that has no integers a tensor in the host's memory."""
        dims = shape(value.type)
        self.dram[value] = self.tensor(A.Tensor(name, "host", prod(dims), dims, role))
        return self.dram[value]

    def copy(self, direction: str, label: str, values: Sequence[SSAValue]) -> None:
        """A layer that moves values between their tensors in DRAM and in the GLB."""
        self.move(direction, label, [(self.dram[value], value) for value in values])

    def move(self, direction: str, label: str, values: Sequence[tuple[str, SSAValue]]) -> None:
        """A layer that moves values between these tensors in DRAM and theirs in the GLB."""
        ops: list[Operation] = []
        for i, (tensor, value) in enumerate(values):
            dram, glb = f"dram{i}", f"glb{i}"
            ops += [_op(A.View(dram, tensor)), _op(A.View(glb, self.glb[value]))]
            ops.append(_op(A.Dma(direction, dram, glb, prod(shape(value.type)))))
        if values:
            self.program.append(_layer_op(label, "", ops, ["dma"]))

    def layer(self, op: LayerOp) -> None:
        """One layer: its output tensor, its weights in DRAM and GLB, its program."""
        key, label = value_key(op), op.label.data if op.label else ""
        self.value(key or label, op.result)
        plain = self._plain(op, label)
        nodes = stream_program(plain) if plain.kind == "copy" else layer_program(plain, self.arch)
        ops = [_node_op(node) for node in nodes]
        self.program.append(_layer_op(label, key or label, ops, ["load", "array", "commit"]))

    def _plain(self, op: LayerOp, label: str) -> Layer:
        steps = op.steps.data
        _, channels, ih, iw = (*shape(op.ifmap.type), 1, 1)[:4]
        params, per_channel = self._params(label, op)
        tensors = Tensors(
            self.glb[op.ifmap],
            self.glb[op.result],
            residual=self.glb[op.residual] if op.residual else "",
            params=params,
            params_glb=self._glb_copy(params, op, "params"),
            **self._weight(op),
        )
        unit = A.Unit(bool(steps.bias), bool(steps.scale), steps.zero, steps.clamp, steps.factors, steps.add_clamp)
        return Layer(
            label, op.kind.data, op.sizes.data, op.window.data, mapping_of(op), tensors, channels, ih, iw,
            per_channel, unit, FULL[len(self.program) % 2],
        )  # fmt: skip

    def _weight(self, op: LayerOp) -> dict[str, str]:
        if op.weights is None:
            return {}
        name = op.weights.root_reference.data
        return {"weight": self._dram_weight(name), "weight_glb": self._glb_copy(name, op, "weight")}

    def _params(self, label: str, op: LayerOp) -> tuple[str, int]:
        """The tensor of a layer's biases and scales, and the words of one channel."""
        names = [name for name in (op.steps.data.bias, op.steps.data.scale) if name]
        if not names:
            return "", 0
        words = param_words([self.array(name) for name in names], self.arch.operand_bits)
        name = f"{label}.params"
        ref = {"value": RefAttr(StringAttr(self.store.add(words))), "type": tensor_type(words)}
        self.new_weights.append(GlobalOp.create(properties={"sym_name": StringAttr(name), **ref}))
        self.weights[name] = self.new_weights[-1]
        return self._dram_weight(name), words.shape[1]

    def _dram_weight(self, name: str) -> str:
        """The DRAM tensor of a weight, declared once however many layers use it."""
        if name not in self.in_dram:
            array = self.array(name)
            bits = self.arch.operand_bits
            if array.dtype.itemsize * 8 > bits:
                raise Refusal(f"weights {name} are {array.dtype}: this array's operands have {bits} bits")
            # Narrower operands travel as whole words (W1).
            words = array.astype(np.dtype(f"int{bits}"))
            self.weights[name].properties["value"] = RefAttr(StringAttr(self.store.add(words)))
            self.weights[name].properties["type"] = tensor_type(words)
            self.in_dram[name] = self.tensor(A.Tensor(name, "dram", array.size, array.shape, "weight"))
            self.weights[name].properties["sym_name"] = StringAttr(self.in_dram[name])
        return self.in_dram[name]

    def _glb_copy(self, name: str, op: LayerOp, operand: str) -> str:
        """The GLB buffer of a weight: whole, or as many slices of output channels as its stage says."""
        stages = [s for s in mapping_of(op).stages if s.operand == operand and s.memory == "glb"]
        if not name or not stages:
            return ""
        loops = mapping_of(op).loops[: stages[0].depth]
        k = next((loop.step for loop in reversed(loops) if loop.dim == "k"), op.sizes.data.k)
        words = self.array(name).size // op.sizes.data.k * k * stages[0].buffers
        return self.tensor(A.Tensor(f"{name}.glb", "glb", words))

    def host(self, op: HostOp) -> None:
        """A host segment between layers: its operands out to DRAM, its results back."""
        fresh = [value for value in op.inputs if value not in self.dram]
        label = op.label.data if op.label else "host"
        for value, quant in zip(op.inputs, op.input_quants, strict=True):
            if value not in self.dram:
                self.exchange(self.glb[value].removesuffix(".glb"), value, "value", quant)
        self.copy("out", f"{label} operands", fresh)
        outputs = [
            self._host_result(f"{label}.{i}", value, quant)
            for i, (value, quant) in enumerate(zip(op.outputs, op.output_quants, strict=True))
        ]
        record = A.HostAttr(A.Host(tuple(self.dram[value] for value in op.inputs), tuple(outputs)))
        self.program.append(A.HostOp.create(properties={"model": op.model, "record": record}))
        self.copy("in", f"{label} results", [value for value in op.outputs if value in self.glb])

    def _host_result(self, name: str, value: SSAValue, quant: QuantAttr) -> str:
        if quant.data.scale == 0.0:
            returned = next((use for use in value.uses if isinstance(use.operation, ReturnOp)), None)
            if returned is None:
                return self.on_host(name, value, "value")
            names = _names(cast("FuncOp", returned.operation.parent_op()).res_attrs)
            return self.on_host(names[returned.index], value, "output")
        self.value(name, value)
        return self.exchange(name, value, "value", quant)


def _names(attrs: ArrayAttr[DictionaryAttr] | None) -> list[str]:
    return [text(attr.data["onnx.name"]) for attr in attrs or ()]


def _quants(attrs: ArrayAttr[DictionaryAttr] | None) -> list[QuantAttr | None]:
    """None for what only the host reads or writes."""
    return [cast("QuantAttr | None", attr.data.get("cnn.quant")) for attr in attrs or ()]


def _lower(func: FuncOp, lowering: _Lowering) -> None:
    names, quants = _names(func.arg_attrs), _quants(func.arg_attrs)
    lowering.taken |= {*names, *_names(func.res_attrs)}
    for name, quant, arg in zip(names, quants, func.args, strict=True):
        if quant is None:
            lowering.on_host(name, arg, "input")
        else:
            lowering.exchange(name, arg, "input", quant)
            lowering.value(name, arg)
    lowering.copy("in", "inputs", [arg for arg in func.args if arg in lowering.glb])
    for op in func.body.block.ops:
        match op:
            case LayerOp():
                lowering.layer(op)
            case ReshapeOp():
                lowering.glb[op.result] = lowering.glb[op.x]
            case HostOp():
                lowering.host(op)
            case ReturnOp():
                _outputs(func, op, lowering)
            case _:
                raise Refusal(f"nest-to-array: {op.name} is no loop nest; lower it first")


def _outputs(func: FuncOp, op: ReturnOp, lowering: _Lowering) -> None:
    names, quants = _names(func.res_attrs), _quants(func.res_attrs)
    moved: list[tuple[str, SSAValue]] = []
    for name, quant, value in zip(names, quants, op.arguments, strict=True):
        if quant is not None:
            moved.append((lowering.exchange(name, value, "output", quant), value))
        elif lowering.dram[value] != name:
            raise Refusal(
                f"output '{name}' is the same as '{lowering.dram[value]}', which only the host reads or computes: "
                f"leave it out of the model's outputs"
            )
    lowering.move("out", "outputs", moved)
    # The order of outputs is the network's, whenever they were declared.
    lowering.tensors.sort(key=lambda tensor: names.index(tensor.name) if tensor.role == "output" else -1)


@dataclass(frozen=True)
class NestToArrayPass(ModulePass):
    """Lower every nest.layer to the program of its PE sets; see the module's docstring."""

    name = "nest-to-array"
    arch: str = "spatial-8x8"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace `main` by tensors and layers."""
        func = next((f for f in op.ops if isinstance(f, FuncOp)), None)
        if func is None:
            return  # nothing to lower: the module is at the array level already
        globals_ = {g.sym_name.data: g for g in op.ops if isinstance(g, GlobalOp)}
        lowering = _Lowering(load_arch(self.arch), weights_of(ctx), dict(globals_))
        _lower(func, lowering)
        func.detach()
        func.erase()
        slices = [t for t in lowering.program for s in t.walk() if isinstance(s, A.DmaOp) and s.record.data.tokens.take]
        prime = [_layer_op("semaphores", "", [_op(A.Signal(FREE, 2))], ["dma"])] if slices else []
        op.body.block.add_ops([*lowering.new_weights, *(_op(t) for t in lowering.tensors), *prime, *lowering.program])
