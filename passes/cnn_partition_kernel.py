"""Makes convolutions of stride 1 of convolutions with a stride: kernel partition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr, TensorType, i64
from xdsl.ir import Attribute
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from cnncc.cbrain.convolution import Convolution, convolution_of
from cnncc.cbrain.kernel_partition import Partition, partition, small_windows
from cnncc.cbrain.schemes import Scheme
from cnncc.context import note, weights_of
from cnncc.dialects.cnn import SCHEME, ConvOp, Steps, StepsAttr, WindowAttr, element_bits, shape, value_key
from cnncc.dialects.weights import GlobalOp, constant_array, new_global
from cnncc.errors import Refusal
from cnncc.numerics import integer_range
from cnncc.passes._onnx.labels import free_name
from cnncc.weights import Array, WeightStore
from cnncc.window import Window


@dataclass(frozen=True)
class CnnPartitionKernelPass(ModulePass):
    """Partitions kernels into pieces that are as large as the stride ([CBRAIN-3](cbrain.md#schemes)).

    A kernel of k x k with stride s, filled up with zeros, is g x g pieces of s x s, g = ⌈k / s⌉. So the layer is a
    convolution of g x g with stride 1 over the small windows of s x s of its image. Each word of a small window is a
    channel:

        %1 = cnn.conv %0 weights @c.w window <kernel = [11, 11], stride = [4, 4]> then <…> label "c"
             : tensor<1x3x227x227xi16> -> tensor<1x96x55x55xi16>
        ->
        %1 = cnn.conv %0 weights @c.cut.w window <kernel = [4, 4], stride = [4, 4], pad = [0, 0, 1, 1], group = 3>
             then <…> label "c.cut" : tensor<1x3x227x227xi16> -> tensor<1x48x57x57xi16>
        %2 = cnn.conv %1 weights @c.pieces window <kernel = [3, 3]> then <…> label "c"
             : tensor<1x48x57x57xi16> -> tensor<1x96x55x55xi16>

    The first op only moves words: each of its kernels has a single 1. A zero point is added again as a bias, so that
    the words stay as they are.

    Why one convolution, and not g x g of them (2026-11): the sums of all pieces must be added before they are scaled.
    No layer gives sums to another one, but a layer keeps them from piece to piece. Algorithm 1 is then an order of
    loops, r and s outside. Every dataflow has an order of its own, and every one can use the channels.

    `layers` are the labels of the layers to partition. Without it, these are all that `cnn-choose-scheme` marked. A
    layer of stride 1 has this form already and stays: a note says so if it was named.
    """

    name = "cnn-partition-kernel"

    layers: tuple[str, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the layers in `op`."""
        rewriter, chosen = _PartRewriter(op, weights_of(ctx)), self._chosen(op)
        if not chosen:
            note(ctx, f"{self.name}: no layer is marked for kernel partition, and none is named")
        for conv in chosen:
            label = convolution_of(conv).name
            if conv.window.data.stride != (1, 1):
                rewriter.rewrite(conv)
            elif self.layers:
                note(ctx, f"{self.name}: {label}: stride 1, its pieces are single weights: it stays")

    def _chosen(self, module: ModuleOp) -> list[ConvOp]:
        convs = [op for op in module.walk() if isinstance(op, ConvOp)]
        if not self.layers:
            marked = StringAttr(Scheme.PARTITION.value)
            return [op for op in convs if op.attributes.get(SCHEME) == marked]
        named = {convolution_of(op).name: op for op in convs}
        for label in self.layers:
            if label not in named:
                known = ", ".join(named) or "none"
                raise Refusal(f"{self.name}: layer '{label}' is no convolution of the network: these are: {known}")
        return [named[label] for label in dict.fromkeys(self.layers)]


class _PartRewriter:
    """Rewrites convolutions of a module, and the arrays of its symbols."""

    def __init__(self, module: ModuleOp, store: WeightStore) -> None:
        self.module, self.store = module, store
        self.globals = {op.sym_name.data: op for op in module.ops if isinstance(op, GlobalOp)}
        self.labels = {key for op in module.walk() if (key := value_key(op)) is not None}

    def rewrite(self, conv: ConvOp) -> None:
        """Put an op that cuts the image, and the convolution over its results, in the place of `conv`."""
        layer = convolution_of(conv)
        parts = partition(layer)
        cut = self._cut(conv, layer, parts)
        window = replace(layer.window, kernel=parts.grid, stride=(1, 1), pad=(0, 0, 0, 0))
        changed = {"weights": SymbolRefAttr(self._pieces(conv, parts)), "window": WindowAttr(window)}
        whole = ConvOp.create(
            operands=[cut.result, *conv.operands[1:]],
            properties=conv.properties | changed,
            attributes=dict(conv.attributes),
            result_types=[conv.result.type],
        )
        self._count(cut.macs() + whole.macs() - conv.macs())
        Rewriter.insert_op(cut, InsertPoint.before(conv))
        Rewriter.replace_op(conv, whole)
        self._drop(conv.weights.root_reference.data)

    def _cut(self, conv: ConvOp, layer: Convolution, parts: Partition) -> ConvOp:
        """Small windows of the image, padding included: channel (c * s + y) * s + x is the word at y, x of map c."""
        label, old = free_name(f"{layer.name}.cut", self.labels), layer.window
        top, left = old.pad[:2]
        (rows, cols), frames = layer.image, shape(conv.x.type)[0]
        bottom, right = max(0, parts.image[0] - top - rows), max(0, parts.image[1] - left - cols)
        window = Window(parts.side, parts.side, (top, left, bottom, right), (1, 1), layer.inputs, old.fill, old.zero)
        dims = (frames, layer.inputs * parts.taps, *parts.windows)
        # Kernel number y * s + x of each map has its 1 at y, x.
        ones = np.tile(np.eye(parts.taps), (layer.inputs, 1)).reshape(dims[1], 1, *parts.side)
        bits = element_bits(conv.x.type)
        bias = self._symbol(f"{label}.b", np.full(dims[1], old.zero, np.int32)) if old.zero else ""
        properties: dict[str, Attribute] = {
            "weights": SymbolRefAttr(self._symbol(f"{label}.w", ones.astype(self._weights(conv).dtype))),
            "window": WindowAttr(window),
            "steps": StepsAttr(Steps(bias=bias, clamp=integer_range(bits))),
            "label": StringAttr(label),
        }
        element = cast("TensorType[Attribute]", conv.x.type).element_type
        return ConvOp.create(operands=[conv.x], properties=properties, result_types=[TensorType(element, dims)])

    def _pieces(self, conv: ConvOp, parts: Partition) -> str:
        """The symbol of the weights, cut as the image is. Zeros fill the last pieces of rows and columns."""
        weights = self._weights(conv)
        missing = (size - have for size, have in zip(parts.kernel, weights.shape[2:], strict=True))
        filled = np.pad(weights, ((0, 0), (0, 0), *((0, zeros) for zeros in missing)))
        return self._symbol(f"{conv.weights.root_reference.data}.pieces", small_windows(filled, parts.side))

    def _weights(self, conv: ConvOp) -> Array:
        name = conv.weights.root_reference.data
        if name not in self.globals:
            raise Refusal(f"{convolution_of(conv).name}: there is no weights.global @{name}")
        return constant_array(self.globals[name], self.store)

    def _count(self, more: int) -> None:
        """Add to the network's MACs, which `compile` prints."""
        if isinstance(total := self.module.attributes.get("cnn.macs_total"), IntegerAttr):
            macs = cast("IntegerAttr[Any]", total).value.data + more
            self.module.attributes["cnn.macs_total"] = IntegerAttr(macs, i64)

    def _symbol(self, wanted: str, array: Array) -> str:
        name = free_name(wanted, set(self.globals))
        op = new_global(name, array, self.store)
        self.module.body.block.insert_op_before(op, next(iter(self.module.ops)))
        self.globals[name] = op
        return name

    def _drop(self, symbol: str) -> None:
        """Remove weights that no convolution reads any more."""
        if not any(op.weights.root_reference.data == symbol for op in self.module.walk() if isinstance(op, ConvOp)):
            Rewriter.erase_op(self.globals.pop(symbol))
