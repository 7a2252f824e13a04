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
from cnncc.passes._onnx.layers import MOST_BLOCK, is_tensor_of
from cnncc.passes._onnx.normalisation import constant_f32
from cnncc.passes._onnx.pixels import activated, in_turn
from cnncc.passes._onnx.placement import hosted_operators
from cnncc.passes._onnx.replacement import NodeNames, Replacement, activations, dims_of, ints
from cnncc.weights import Array, WeightStore

LEAST_OPSET = 5  # Reshape takes the shape as an input


@dataclass(frozen=True)
class _Axis:
    """Rows or columns of a transposed convolution.

    Output pixel o is the sum over taps t of x[(o + pad - dilation * t) / stride] * w[t], where that is a whole number.
    So those with equal phases a = (o + pad) mod stride use the same taps, a + stride * u, and are a convolution:

        y[m, a] = sum over u of x[m - u] * w[a + stride * u]

    size, out: pixels of input and output.
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
    def parts(self) -> list[_Phases]:
        """The parts of all phases, one for those that have equally many taps."""
        together = groupby(range(self.stride), lambda phase: len(self.taps_of(phase)))
        return [_Phases(self, [*phases], self.first, self.count) for _, phases in together]

    @property
    def pixels(self) -> list[_Phases]:
        """A part for output pixels i, i + stride and so on, for each i below the stride."""
        return [self._pixels_from(i) for i in range(self.stride)]

    def _pixels_from(self, i: int) -> _Phases:
        first, phase = divmod(i + self.pad, self.stride)
        return _Phases(self, [phase], first, self.out // self.stride)

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


@dataclass(frozen=True)
class _Phases:
    """What one convolution computes of an axis: y[m, a] of phases a that have equally many taps.

    first, count: from which m on, and of how many.
    """

    axis: _Axis
    phases: Sequence[int]
    first: int
    count: int

    @property
    def taps(self) -> list[Sequence[int]]:
        """The taps of each phase."""
        return [self.axis.taps_of(phase) for phase in self.phases]

    @property
    def before(self) -> int:
        """Padding before the input."""
        return (len(self.taps[0]) - 1) * self.axis.dilation - self.first

    @property
    def after(self) -> int:
        """Padding behind it."""
        return self.first + self.count - self.axis.size


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
class _SplitKernel:
    """Puts convolutions and moves of pixels in the place of a ConvTranspose and the activations after it.

    - axes: rows and columns
    - may_turn: whether the array may put pixels in turn
    """

    new: Replacement
    axes: Sequence[_Axis]
    opset: int
    may_turn: bool

    def rewrite(self, weights: Floats, bias: Floats) -> None:
        """weights: g c k r s, with c and k those of a group. bias: for all output channels."""
        step = self.step
        parts = product(*(axis.pixels if step else axis.parts for axis in self.axes))
        values = [activated(self.new, self.convolution(each, weights, bias), self.new.nodes[1:]) for each in parts]
        self.new.finish(in_turn(self.new, values, step) if step else self.moved(values, len(bias)))

    @property
    def step(self) -> int | None:
        """The stride of both axes, if a convolution for each pixel of a square computes the output and no more."""
        stride = self.axes[0].stride
        pads = [pad for axis in self.axes for part in axis.pixels for pad in (part.before, part.after)]
        whole = all(axis.stride == stride and axis.out % stride == 0 for axis in self.axes)
        return stride if self.may_turn and whole and min(pads) >= 0 and 1 < stride <= MOST_BLOCK else None

    def convolution(self, parts: Sequence[_Phases], weights: Floats, bias: Floats) -> SSAValue:
        """n (k a b) h w: the pixels of these phases, a of rows and b of columns."""
        rows, cols = (np.array(part.taps) for part in parts)
        every = weights[..., rows[:, :, None, None], cols[None, None]]  # g c k a r b s
        kernels = every.transpose(0, 2, 3, 5, 1, 4, 6).reshape(-1, weights.shape[1], rows.shape[1], cols.shape[1])
        biases = np.repeat(bias, len(rows) * len(cols))
        constants = [self.new.constant(array) for array in (kernels, biases)]
        attributes = {
            "pads": ints([*(part.before for part in parts), *(part.after for part in parts)]),
            "dilations": ints([axis.dilation for axis in self.axes]),
            "group": IntegerAttr(len(weights), i64),
        }
        old = self.new.nodes[0]
        image = old.operands[0]
        dims = (dims_of(image)[0], len(kernels), *(part.count for part in parts))
        return self.new.node("Conv", [image, *constants], dims, attributes, old)

    def moved(self, parts: Sequence[SSAValue], k: int) -> SSAValue:
        """n k h w: the pixels of all phases, each moved to its place."""
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
    for rows, cols in product(*([part.phases for part in axis.parts] for axis in axes)):
        count = k * len(rows) * len(cols)
        order[:, rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1] = (start + np.arange(count)).reshape(k, len(rows), -1)
        start += count
    return order.reshape(-1)


def _rewrite(op: NodeOp, store: WeightStore, names: NodeNames, opset: int, may_turn: bool) -> None:
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
    _SplitKernel(new, axes, opset, may_turn).rewrite(weights.reshape(group, -1, *weights.shape[1:]), bias)


@dataclass(frozen=True)
class OnnxConvTransposePass(ModulePass):
    """Let convolutions compute what a ConvTranspose does: one for all output pixels that use the same taps.

    Why: the array has no transposed convolution. With stride s, output pixels s apart use the same taps, and are a
    convolution of the input. So s * s convolutions compute the pixels of each square of s by s, which a DepthToSpace of
    their concatenation puts in turn. A kernel of 4x4, stride 2 and pads of 1 are four convolutions of 2x2:

        %0 = onnx.node "ConvTranspose"(%x, %w) {strides = [2, 2], pads = [1, 1, 1, 1]}
            : (tensor<1x8x5x7xf32>, tensor<8x3x4x4xf32>) -> tensor<1x3x10x14xf32>

    becomes

        %1 = onnx.node "Conv"(%x, %w1, %b) {pads = [1, 1, 0, 0]} : … -> tensor<1x3x5x7xf32>
        %2 = onnx.node "Conv"(%x, %w2, %b) {pads = [1, 0, 0, 1]} : … -> tensor<1x3x5x7xf32>
        %3 = onnx.node "Conv"(%x, %w3, %b) {pads = [0, 1, 1, 0]} : … -> tensor<1x3x5x7xf32>
        %4 = onnx.node "Conv"(%x, %w4, %b) {pads = [0, 0, 1, 1]} : … -> tensor<1x3x5x7xf32>
        %5 = onnx.node "Concat"(%1, %2, %3, %4) {axis = 1}      : … -> tensor<1x12x5x7xf32>
        %0 = onnx.node "DepthToSpace"(%5) {blocksize = 2}       : … -> tensor<1x3x10x14xf32>

    Other nodes leave the pixels to the host. Their strides differ or are above 8, or do not divide the output's rows
    and columns. Or their pads take more than some convolution gives, or the host has DepthToSpace. Pixels that use
    equally many taps are the channels of one convolution then, and pixels beyond the output are cut off. So a kernel of
    2x2 with strides of 1 and 2 is one convolution with twice the channels:

        %1 = onnx.node "Conv"(%x, %w', %b') : (tensor<1x8x5x7xf32>, …) -> tensor<1x6x6x7xf32>
        %2 = onnx.node "Reshape"(%1, …)            : … -> tensor<1x3x1x2x6x7xf32>
        %3 = onnx.node "Transpose"(%2) {perm = …}  : … -> tensor<1x3x6x1x7x2xf32>
        %0 = onnx.node "Reshape"(%3, …)            : … -> tensor<1x3x6x14xf32>

    Relu, LeakyRelu, Clip and PRelu come before the pixels change places.

    A node stays if its weights are computed, if its kernel is smaller than its stride, or if an axis has a dilation
    beside a stride.
    """

    name = "onnx-conv-transpose"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place; unused constants stay for onnx-dead-code."""
        opset, block = opset_imports(op)[""], main_function(op).body.block
        names, may_turn = NodeNames(block), "DepthToSpace" not in hosted_operators(op)
        for node in list(block.ops):
            if isinstance(node, NodeOp) and opset >= LEAST_OPSET:
                _rewrite(node, weights_of(ctx), names, opset, may_turn)
