"""Turns transposed convolutions into convolutions, whose results are the output's pixels in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, product

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, f32, i64
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp
from cnncc.frontend.export_onnx import opset_imports
from cnncc.main_function import main_function
from cnncc.numerics import Floats
from cnncc.passes._onnx.layers import is_tensor_of
from cnncc.passes._onnx.normalisation import constant_f32
from cnncc.passes._onnx.replacement import NodeNames, Replacement, activations, dims_of, ints
from cnncc.weights import Array, WeightStore

LEAST_OPSET = 5  # Reshape takes the shape as an input


@dataclass(frozen=True)
class _Axis:
    """Rows or columns of a transposed convolution.

    Output pixel o is the sum over taps t of x[(o + pad - dilation * t) / stride] * w[t], where that is a whole number.
    So those with equal phases a = (o + pad) mod stride use the same taps, a + stride * u, and are a convolution:

        y[m, a] = sum over u of x[m - u] * w[a + stride * u]

    - size, out: pixels of input and output
    - first: the first m that is computed; pixels before `pad` are cut off
    - count: how many m are computed
    """

    size: int
    out: int
    taps: int
    stride: int
    dilation: int
    pad: int

    @property
    def is_convolution(self) -> bool:
        """Whether each phase is a convolution: it has taps, and these are equally far apart."""
        return self.stride <= self.taps and 1 in (self.stride, self.dilation)

    def taps_of(self, phase: int) -> Sequence[int]:
        """The taps of a phase, in the order of a convolution: the last first."""
        return range(phase, self.taps, self.stride)[::-1]

    @property
    def phases(self) -> list[list[int]]:
        """The phases, those together that have equally many taps."""
        return [[*group] for _, group in groupby(range(self.stride), lambda phase: len(self.taps_of(phase)))]

    def before(self, phase: int) -> int:
        """Padding before the input of the convolution for a phase."""
        return (len(self.taps_of(phase)) - 1) * self.dilation - self.first

    @property
    def after(self) -> int:
        """Padding behind it."""
        return self.first + self.count - self.size

    @property
    def first(self) -> int:
        # At the first pixel that is not cut off, or earlier: no phase may have negative padding (`before`).
        return min(self.pad // self.stride, min(len(self.taps_of(a)) - 1 for a in range(self.stride)) * self.dilation)

    @property
    def count(self) -> int:
        # Up to the last pixel of the output, or later: no padding behind the input may be negative (`after`).
        return max(-(-(self.pad + self.out) // self.stride), self.size) - self.first

    @property
    def cut(self) -> tuple[int, int]:
        """From which pixel to which the output is, of count * stride."""
        start = self.pad - self.first * self.stride
        return start, start + self.out


def _axes(op: NodeOp, taps: Sequence[int]) -> list[_Axis] | None:
    """Rows and columns of a ConvTranspose; None where its attributes leave open what it computes."""
    sizes, outs = dims_of(op.operands[0])[2:], dims_of(op.results[0])[2:]
    strides, dilations = op.ints_attr("strides", (1, 1)), op.ints_attr("dilations", (1, 1))
    extra, both = op.ints_attr("output_padding", (0, 0)), op.ints_attr("pads", (0, 0, 0, 0))
    auto, is_sized = op.str_attr("auto_pad", "NOTSET"), "output_shape" in op.attributes
    if [*map(len, (strides, dilations, extra, both))] != [2, 2, 2, 4] or min(*strides, *dilations) < 1:
        return None
    spans = [(count - 1) * step + 1 for count, step in zip(taps, dilations, strict=True)]
    full = [(n - 1) * step + span + more for n, step, span, more in zip(sizes, strides, spans, extra, strict=True)]
    totals = [whole - out for whole, out in zip(full, outs, strict=True)]
    if auto not in ("NOTSET", "VALID") or is_sized:
        # Of 5 rows, stride 2, output_padding 1 and auto_pad SAME, ONNX's inference makes 11 rows, onnxruntime 10.
        if any(extra) or min(totals) < 0:
            return None
        # As in ONNX, the larger half is before the image unless auto_pad is SAME_UPPER, also for output_shape alone.
        pads = [total // 2 if auto == "SAME_UPPER" else total - total // 2 for total in totals]
    else:
        both = both if auto == "NOTSET" else (0, 0, 0, 0)
        pads = both[:2]
        if [a + b for a, b in zip(pads, both[2:], strict=True)] != totals or min(both) < 0:
            return None
    axes = [_Axis(*each) for each in zip(sizes, outs, taps, strides, dilations, pads, strict=True)]
    return axes if all(axis.is_convolution for axis in axes) else None


@dataclass(frozen=True)
class _Split:
    """Puts convolutions and moves of pixels in the place of a ConvTranspose and the activations after it.

    axes: rows and columns.
    """

    new: Replacement
    axes: Sequence[_Axis]
    opset: int

    def rewrite(self, weights: Floats, bias: Floats) -> None:
        """weights: g c k r s, with c and k those of a group. bias: for all output channels."""
        phases = product(*(axis.phases for axis in self.axes))
        parts = [self.activated(self.convolution(each, weights, bias)) for each in phases]
        self.new.finish(self.in_turn(parts, len(bias)))

    def convolution(self, phases: Sequence[Sequence[int]], weights: Floats, bias: Floats) -> SSAValue:
        """n (k a b) h w: the pixels of these phases, a of rows and b of columns."""
        both = list(zip(self.axes, phases, strict=True))
        rows, cols = (np.array([axis.taps_of(phase) for phase in of_axis]) for axis, of_axis in both)
        every = weights[..., rows[:, :, None, None], cols[None, None]]  # g c k a r b s
        kernels = every.transpose(0, 2, 3, 5, 1, 4, 6).reshape(-1, weights.shape[1], rows.shape[1], cols.shape[1])
        biases = np.repeat(bias, len(rows) * len(cols))
        constants = [self.new.constant(array) for array in (kernels, biases)]
        before, after = [axis.before(of_axis[0]) for axis, of_axis in both], [axis.after for axis in self.axes]
        attributes = {
            "pads": ints([*before, *after]),
            "dilations": ints([axis.dilation for axis in self.axes]),
            "group": IntegerAttr(len(weights), i64),
        }
        old = self.new.nodes[0]
        image = old.operands[0]
        dims = (dims_of(image)[0], len(kernels), *(axis.count for axis in self.axes))
        return self.new.node("Conv", [image, *constants], dims, attributes, old)

    def activated(self, value: SSAValue) -> SSAValue:
        """The result of the activations on `value`."""
        for each in self.new.nodes[1:]:
            value = self.new.again(each, value, each.operands[1:])
        return value

    def in_turn(self, parts: Sequence[SSAValue], k: int) -> SSAValue:
        """n k h w: the pixels of all phases, each in its place."""
        n, _, h, w = dims_of(parts[0])
        (a, b), value = (axis.stride for axis in self.axes), parts[0]
        if len(parts) > 1:
            dims, channels = (n, k * a * b, h, w), {"axis": IntegerAttr(1, i64)}
            value = self.new.node("Concat", parts, dims, channels)
            value = self.new.node("Gather", [value, self.new.constant(_order(self.axes, k))], dims, channels)
        if a * b > 1:
            value = self.new.reshaped(value, (n, k, a, b, h, w))
            value = self.new.node("Transpose", [value], (n, k, h, a, w, b), {"perm": ints([0, 1, 4, 2, 5, 3])})
            value = self.new.reshaped(value, (n, k, h * a, w * b))
        rows, cols = (axis.cut for axis in self.axes)
        if (rows, cols) == ((0, h * a), (0, w * b)):
            return value
        return self.new.sliced(value, {2: rows, 3: cols}, self.opset)


def _order(axes: Sequence[_Axis], k: int) -> Array:
    """Where each of the channels k a b is among those of the convolutions for all phases, one after the other."""
    strides, start = [axis.stride for axis in axes], 0
    order = np.zeros((k, *strides), np.int64)
    for rows, cols in product(*(axis.phases for axis in axes)):
        count = k * len(rows) * len(cols)
        order[:, rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1] = (start + np.arange(count)).reshape(k, len(rows), -1)
        start += count
    return order.reshape(-1)


def _rewrite(op: NodeOp, store: WeightStore, names: NodeNames, opset: int) -> None:
    """Replace `op` by convolutions, if it is a ConvTranspose of images with constant weights."""
    if not op.is_op("ConvTranspose") or len(op.operands) < 2:
        return
    image, weights, group = op.operands[0], constant_f32(op.operand(1), store), op.int_attr("group", 1)
    if not (is_tensor_of(image, f32) and is_tensor_of(op.results[0], f32)) or weights is None or group < 1:
        return
    if weights.ndim != 4 or len(dims_of(image)) != 4 or dims_of(image)[1] != len(weights) or len(weights) % group:
        return
    channels, axes = weights.shape[1] * group, _axes(op, weights.shape[2:])
    bias = constant_f32(op.operand(2), store) if op.operand(2) else np.zeros(channels, np.float32)
    if axes is None or bias is None or bias.shape != (channels,):
        return
    new = Replacement([op, *activations(op)], store, names)
    _Split(new, axes, opset).rewrite(weights.reshape(group, -1, *weights.shape[1:]), bias)


@dataclass(frozen=True)
class OnnxConvTransposePass(ModulePass):
    """Let convolutions compute what a ConvTranspose does: one for all output pixels that use the same taps.

    Why: the array has no transposed convolution. With stride s, output pixels s apart use the same taps, and are a
    convolution of the input. Its channels are the s * s pixels, which a Transpose puts in their places, on the host.
    A kernel of 2x2 and stride 2 is one convolution of 1x1 with four times the channels:

        %0 = onnx.node "ConvTranspose"(%x, %w) {strides = [2, 2]} : (tensor<1x8x5x7xf32>, …) -> tensor<1x3x10x14xf32>

    becomes

        %1 = onnx.node "Conv"(%x, %w', %b') : (tensor<1x8x5x7xf32>, …) -> tensor<1x12x5x7xf32>
        %2 = onnx.node "Reshape"(%1, …)            : … -> tensor<1x3x2x2x5x7xf32>
        %3 = onnx.node "Transpose"(%2) {perm = …}  : … -> tensor<1x3x5x2x7x2xf32>
        %0 = onnx.node "Reshape"(%3, …)            : … -> tensor<1x3x10x14xf32>

    Where the stride does not divide the kernel, pixels differ in how many taps they use: a kernel of 3x3 and stride 2
    gives four convolutions, of 2x2, 2x1, 1x2 and 1x1. Pixels of the border that pads take away are computed, and cut
    off. Relu, LeakyRelu, Clip and PRelu come before the pixels change places.

    A node stays if its weights are computed, if its kernel is smaller than its stride, or if an axis has a dilation
    beside a stride.
    """

    name = "onnx-conv-transpose"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place; unused constants stay for onnx-dead-code."""
        opset, block = opset_imports(op)[""], main_function(op).body.block
        names = NodeNames(block)
        for node in list(block.ops):
            if isinstance(node, NodeOp) and opset >= LEAST_OPSET:
                _rewrite(node, weights_of(ctx), names, opset)
