"""Leaves cnncc's dialects: a network of nests as loops over memory, in standard dialects alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import cast

from xdsl.context import Context
from xdsl.dialects import memref
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    StringAttr,
    TensorType,
    UnitAttr,
    f32,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from cnncc.context import weights_of
from cnncc.dialects.cnn import ConcatOp, HostOp, ReshapeOp, SliceOp, shape, value_key
from cnncc.dialects.nest import GroupOp, LayerOp
from cnncc.dialects.weights import GlobalOp, constant_array, tensor_type
from cnncc.errors import Refusal, refusals_of
from cnncc.main_function import main_function, output_names, returned
from cnncc.passes._standard.layer_nest import StandardNest
from cnncc.passes._standard.limits import check_layer, check_parameters, integer_tensor, sum_type
from cnncc.passes._standard.ops import Buffer, Emitter, Index, Span, named
from cnncc.weights import WeightStore

WIDEST = IntegerType(64)
Place = tuple[int, ...]  # n k h w


@dataclass(frozen=True)
class NestToScfPass(ModulePass):
    """Lowers nests, scheduled or not, to `scf`, `memref`, `arith`, `math` and `func`.

    Why: other tools can then read, run and compile a mapping.

        %1 = nest.layer "mac" %0 weights @w … { nest.for k step 2 { nest.par k on rows { … nest.mac } } }
        ->
        scf.for %k = %c0 to %c5 step %c2 { %end = arith.minsi …  scf.parallel (%k_1) = (%k) to (%end) … { … } }

    `@main` takes a memref for each input, then one for each output, which it fills. Weights become `memref.global`.
    Values are the integers of the network; the scales of inputs and outputs are dropped.
    """

    name = "nest-to-scf"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place. Raises Refusal, with op and layer, for an op that standard dialects cannot express."""
        store = weights_of(ctx)
        main = main_function(op)
        with refusals_of(self.name):
            _check_module(op, main)
            lowered = _StandardNetwork(op, main, store).main
            globals_ = [_global(inner, store) for inner in op.ops if isinstance(inner, GlobalOp)]
        for inner in list(op.ops):
            Rewriter.erase_op(inner)
        op.body.block.add_ops([*globals_, lowered])
        # Attributes with a dialect's name before the dot are cnncc's: other tools do not know them.
        for name in [name for name in op.attributes if "." in name]:
            del op.attributes[name]


def _check_module(module: ModuleOp, main: FuncOp) -> None:
    """Raises Refusal for an op that this pass never lowers."""
    for op in module.ops:
        if op is not main and not isinstance(op, GlobalOp):
            raise Refusal(f"{op.name} stands beside @main: only weights.global may")
    for op in main.body.block.ops:
        if isinstance(op, HostOp):
            raise Refusal(f"'{_key(op)}' runs on the host ({op.reason.data}), which loops of integers do not")


def _key(op: Operation) -> str:
    return value_key(op) or "(no label)"


class _StandardNetwork:
    """`@main` on memory."""

    def __init__(self, module: ModuleOp, main: FuncOp, store: WeightStore) -> None:
        self.psum, self.store = sum_type(module), store
        self.globals = {op.sym_name.data: op for op in module.ops if isinstance(op, GlobalOp)}
        inputs = [(value.name_hint or f"input_{i}", value) for i, value in enumerate(main.body.block.args)]
        outputs = list(zip(output_names(module), returned(module), strict=True))
        types = [_memory(f"'{name}'", value.type) for name, value in (*inputs, *outputs)]
        block = Block(arg_types=types)
        for argument, (name, _) in zip(block.args, (*inputs, *outputs), strict=True):
            named(argument, name)
        self.emit = Emitter(block)
        self.allocated: list[SSAValue] = []
        self.values: dict[SSAValue, SSAValue] = dict(zip((value for _, value in inputs), block.args, strict=False))
        for op in main.body.block.ops:
            if not isinstance(op, ReturnOp):
                self.values[op.results[0]] = self.lowered(op)
        for (_, value), argument in zip(outputs, block.args[len(inputs) :], strict=True):
            # A value may be an input, or several outputs: all outputs are copies.
            self.emit.do(memref.CopyOp(self.values[value], argument))
        for value in self.allocated:
            self.emit.do(memref.DeallocOp.get(value))
        self.emit.do(ReturnOp())
        self.main = FuncOp("main", (types, []), Region(block))

    def lowered(self, op: Operation) -> SSAValue:
        """The memref with the result of `op`. Raises Refusal, with the op's name."""
        with refusals_of(f"'{_key(op)}'"):
            match op:
                case LayerOp():
                    return self.layer(op)
                case ReshapeOp():
                    return self.reshape(op)
                case SliceOp():
                    return self.slice(op)
                case ConcatOp():
                    return self.concat(op)
                case GroupOp():
                    raise Refusal("groups are not lowered to standard dialects: leave out nest-group")
                case _:
                    raise Refusal(f"{op.name} does not belong to the nest level: cnn-to-nest must run first")

    def layer(self, layer: LayerOp) -> SSAValue:
        """The loops of a layer."""
        steps = layer.steps.data
        symbols = {"bias": steps.bias, "scale": steps.scale, "factors": steps.factors, "table": steps.table}
        if layer.weights is not None:
            symbols["weight"] = layer.weights.root_reference.data
        arrays = {name: self.constant(symbol) for name, symbol in symbols.items() if symbol}
        types = {name: op.type for name, op in arrays.items()}
        check_parameters(layer, types, self.psum)
        check_layer(layer, self.psum, constant_array(arrays["table"], self.store) if steps.table else None)
        operands = {"ifmap": self.values[layer.ifmap]}
        if layer.residual is not None:
            operands["residual"] = self.values[layer.residual]
        for name, kind in types.items():
            operation = memref.GetGlobalOp(symbols[name], MemRefType(kind.element_type, kind.get_shape()))
            operands[name] = named(self.emit.add(operation), symbols[name])
        operands["output"] = self.result(layer)
        StandardNest(self.emit, layer, operands, self.psum)
        return operands["output"]

    def constant(self, symbol: str) -> GlobalOp:
        """A weight. Raises Refusal."""
        if symbol not in self.globals:
            raise Refusal(f"there is no weights.global @{symbol}")
        return self.globals[symbol]

    def result(self, op: LayerOp | SliceOp | ConcatOp) -> SSAValue:
        """Memory for the result of `op`."""
        kind = _memory("the result", op.result.type)
        memory = self.emit.alloc(kind.get_shape(), kind.element_type, value_key(op) or "")
        self.allocated.append(memory)
        return memory

    def reshape(self, op: ReshapeOp) -> SSAValue:
        """The same memory under another shape."""
        kind = _memory("the result", op.result.type)
        sizes = kind.get_shape()
        strides = [prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
        return self.emit.add(memref.ReinterpretCastOp.from_dynamic(self.values[op.x], [0], sizes, strides, kind))

    def concat(self, op: ConcatOp) -> SSAValue:
        """The operands, copied to their places in the result."""
        memory = self.result(op)
        for value, (first, apart) in zip(op.inputs, _places(op), strict=True):
            self.copy(Buffer(self.values[value]), Buffer(memory, _from(*first)), shape(value.type), apart)
        return memory

    def slice(self, op: SliceOp) -> SSAValue:
        """A copy of some channels."""
        memory = self.result(op)
        self.copy(Buffer(self.values[op.x], _from(0, op.first.value.data, 0, 0)), Buffer(memory), shape(op.result.type))
        return memory

    def copy(self, source: Buffer, target: Buffer, dims: Place, apart: Place = (1, 1, 1, 1)) -> None:
        """Loops that copy so many elements. apart: how far the target's elements lie apart in each dimension."""
        with self.emit.loops([Span.whole(size) for size in dims], "nkhw"[: len(dims)]) as at:
            self.emit.store(self.emit.load(source, at), target, [i * step for i, step in zip(at, apart, strict=False)])


def _places(op: ConcatOp) -> Iterator[tuple[Place, Place]]:
    """For each operand: its first element in the result, and how far the next ones lie apart in each dimension."""
    channels = 0
    for number, value in enumerate(op.inputs):
        if op.pixels is not None:
            yield (0, 0, *divmod(number, op.pixels[1])), (1, 1, *op.pixels)
        elif op.interleaved is not None:
            yield (0, number, 0, 0), (1, len(op.inputs), 1, 1)
        else:
            yield (0, channels, 0, 0), (1, 1, 1, 1)
            channels += shape(value.type)[1]


def _from(*first: int) -> tuple[Index, ...]:
    """The elements of a buffer from one on."""
    return tuple(Index(offset=-index) for index in first)


def _memory(what: str, kind: Attribute) -> MemRefType[Attribute]:
    """The memref for a tensor of integers. Raises Refusal."""
    assert isinstance(kind, TensorType)
    return MemRefType(integer_tensor(what, kind, WIDEST), kind.get_shape())


def _global(op: GlobalOp, store: WeightStore) -> memref.GlobalOp:
    """A weight with its numbers. Raises Refusal for numbers of another type."""
    name, kind = op.sym_name.data, op.type
    value = op.value
    if not isinstance(value, DenseIntOrFPElementsAttr):
        array = constant_array(op, store)
        if tensor_type(array) != kind:
            raise Refusal(f"@{name} is {kind}, its array is {tensor_type(array)}")
        if kind.element_type != f32:
            integer_tensor(f"@{name}", kind, WIDEST)
        numbers = cast("TensorType[IntegerType]", kind)  # or f32: from_list takes both, its types one at a time
        value = DenseIntOrFPElementsAttr.from_list(numbers, array.ravel().tolist())
    memory = MemRefType(kind.element_type, kind.get_shape())
    return memref.GlobalOp.get(StringAttr(name), memory, value, constant=UnitAttr())
