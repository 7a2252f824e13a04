"""Quantised layers: integers only, one op a layer.

A freshly quantised layer is a chain of small ops: `cnn.conv` gives 32-bit sums, `cnn.bias` adds,
`cnn.requant` scales to the operand type, `cnn.clamp` is an activation, `cnn.add` a residual sum.
`cnn-fuse-epilogue` gathers such a chain into the epilogue of the op that computes the sums, which is
what the array's output units do in one go. Weights, biases and scales are `weights.global` symbols.

The arithmetic of an epilogue is `cnncc.numerics.Epilogue`; shapes are n c h w as in ONNX.

Every op has a `label`, from the ONNX node that it came from. A fused op keeps the label of its first
part and says in `until` the label of its last, whose value it computes: the same key names the same
integers before and after any pass, at every level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, IntegerType, StringAttr, SymbolRefAttr, TensorType
from xdsl.ir import Attribute, Dialect, Operation
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from cnncc.dialects._records import RecordAttr
from cnncc.dialects.weights import RefAttr


@dataclass(frozen=True)
class Window:
    """A sliding window: ONNX's kernel_shape, strides, pads (top left bottom right), dilations and group.

    `fill` is delivered for positions outside the image; `zero` is subtracted from every value (the
    input's zero point, so that for a convolution fill equals zero).
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    pad: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    group: int = 1
    fill: int = 0
    zero: int = 0

    def __post_init__(self) -> None:
        sizes = (len(self.kernel), len(self.stride), len(self.pad), len(self.dilation))
        if sizes != (2, 2, 4, 2):
            raise ValueError(f"kernel, stride, pad, dilation need 2, 2, 4, 2 numbers, not {sizes}")
        if min(*self.kernel, *self.stride, *self.dilation, self.group) < 1 or min(self.pad) < 0:
            raise ValueError("kernel, stride, dilation and group are at least 1, pads at least 0")

    @property
    def spans(self) -> tuple[int, int]:
        """Rows and columns from the first to the last of a window: dilation * (kernel - 1) + 1."""
        rows, cols = (d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))
        return rows, cols

    def output(self, ih: int, iw: int) -> tuple[int, int]:
        """oh, ow for an input of ih x iw: floor((i + pads - span) / stride) + 1."""
        top, left, bottom, right = self.pad
        spans = self.spans
        return (
            (ih + top + bottom - spans[0]) // self.stride[0] + 1,
            (iw + left + right - spans[1]) // self.stride[1] + 1,
        )


def _check_clamp(clamp: tuple[int, ...]) -> None:
    if len(clamp) != 2 or clamp[0] > clamp[1]:
        raise ValueError(f"{list(clamp)} is no range")


@dataclass(frozen=True)
class Steps:
    """What happens to a sum on its way out: names of weights for `cnncc.numerics.Epilogue`.

    bias: i32[k]. scale: f32[k]. factors: f32[3] (a, b, fixed) of the residual add. An empty name means
    that the step is absent.
    """

    bias: str = ""
    scale: str = ""
    zero: int = 0
    clamp: tuple[int, ...] = (-(1 << 31), (1 << 31) - 1)
    factors: str = ""
    add_clamp: tuple[int, ...] = (-(1 << 31), (1 << 31) - 1)

    def __post_init__(self) -> None:
        _check_clamp(self.clamp)
        _check_clamp(self.add_clamp)


@dataclass(frozen=True)
class Quant:
    """How integers stand for reals: real = (integer - zero) * scale.

    clamp: the range that quantising saturates to, where it is narrower than the tensor's integers
    (the proof that no psum overflows counts on it). Scale 0 stands for a tensor that is not quantised.
    """

    scale: float
    zero: int = 0
    clamp: tuple[int, ...] = (-(1 << 31), (1 << 31) - 1)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise ValueError(f"scale is {self.scale}, it must be a finite number of at least 0")
        _check_clamp(self.clamp)


@dataclass(frozen=True)
class Range:
    """Calibrated values of a real tensor: all in lo..hi, to be quantised to the integers -top..top."""

    lo: float
    hi: float
    top: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lo) and math.isfinite(self.hi) and self.lo <= self.hi):
            raise ValueError(f"lo = {self.lo} and hi = {self.hi} are no range")
        if self.top < 1:
            raise ValueError(f"top is {self.top}, it must be at least 1")


@irdl_attr_definition
class WindowAttr(RecordAttr[Window]):
    """A sliding window: `#cnn.window<kernel = [3, 3], pad = [1, 1, 1, 1]>`."""

    name = "cnn.window"


@irdl_attr_definition
class StepsAttr(RecordAttr[Steps]):
    """An epilogue: `#cnn.steps<bias = "conv1.b", scale = "conv1.q", clamp = [0, 32767]>`."""

    name = "cnn.steps"


@irdl_attr_definition
class QuantAttr(RecordAttr[Quant]):
    """Scale and zero point of a tensor, on arguments and results of `main` and on `cnn.host`."""

    name = "cnn.quant"


@irdl_attr_definition
class RangeAttr(RecordAttr[Range]):
    """Calibrated range of a tensor, on nodes (`cnn.ranges`, one per result) and arguments of an `onnx` graph."""

    name = "cnn.range"


def shape(value_type: Attribute) -> tuple[int, ...]:
    """The shape of a tensor type."""
    assert isinstance(value_type, TensorType)
    return value_type.get_shape()


def value_key(op: Operation) -> str | None:
    """The name of the value that `op` computes, the same at every level; None where it has none."""
    for name in ("until", "label"):
        if isinstance(label := op.properties.get(name), StringAttr):
            return label.data
    return None


def _check_window(op: ConvOp | PoolOp, channels: int) -> None:
    if len(shape(op.x.type)) != 4:
        raise VerifyException(f"{op.name}: the operand has shape {shape(op.x.type)}, not n c h w")
    n, _, ih, iw = shape(op.x.type)
    want = (n, channels, *op.window.data.output(ih, iw))
    if shape(op.result.type) != want:
        raise VerifyException(f"{op.name}: result is {shape(op.result.type)}, the window gives {want}")


@irdl_op_definition
class ConvOp(IRDLOperation):
    """sum[n, k, h, w] = Σ_{c, r, s} (x[n, g * C + c, h * sh + r * dh - top, w * sw + s * dw - left] - zero) * weights[k, c, r, s],
    g = k // (K / group), then the epilogue. Source: ONNX Conv-11 and Gemm-11 (as 1x1) on integers.

        %1 = cnn.conv %0 weights @conv1.w window <kernel = [3, 3]> then <bias = "conv1.b", scale = "conv1.q">
             : tensor<1x3x8x8xi16> -> tensor<1x16x6x6xi16>
    """  # noqa: E501

    name = "cnn.conv"
    x = operand_def(TensorType)
    residual = opt_operand_def(TensorType)
    weights = prop_def(SymbolRefAttr)
    window = prop_def(WindowAttr)
    steps = opt_prop_def(StepsAttr)
    label = opt_prop_def(StringAttr)
    until = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = (
        "$x (`residual` $residual^ `:` type($residual))? `weights` $weights `window` $window (`then` $steps^)? "
        "(`label` $label^)? (`until` $until^)? attr-dict `:` type($x) `->` type($result)"
    )

    def verify_(self) -> None:
        _check_window(self, shape(self.result.type)[1])
        group = self.window.data.group
        if shape(self.x.type)[1] % group or shape(self.result.type)[1] % group:
            raise VerifyException(f"cnn.conv: channels are not a multiple of group {group}")

    def macs(self) -> int:
        """Multiply-accumulates, those on padding included."""
        window = self.window.data
        channels = shape(self.x.type)[1] // window.group
        return math.prod((*shape(self.result.type), channels, *window.kernel))


@irdl_op_definition
class PoolOp(IRDLOperation):
    """out[n, k, h, w] = max or sum over r, s of x[n, k, h * sh + r * dh - top, w * sw + s * dw - left], then epilogue.

    Source: ONNX MaxPool-12, AveragePool-19 (the division is the epilogue's scale), GlobalAveragePool-1.
    """

    name = "cnn.pool"
    x = operand_def(TensorType)
    residual = opt_operand_def(TensorType)
    kind = prop_def(StringAttr)
    window = prop_def(WindowAttr)
    steps = opt_prop_def(StepsAttr)
    label = opt_prop_def(StringAttr)
    until = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = (
        "$kind $x (`residual` $residual^ `:` type($residual))? `window` $window (`then` $steps^)? "
        "(`label` $label^)? (`until` $until^)? attr-dict `:` type($x) `->` type($result)"
    )

    def verify_(self) -> None:
        if self.kind.data not in ("max", "sum"):
            raise VerifyException(f"cnn.pool: kind is max or sum, not {self.kind.data}")
        _check_window(self, shape(self.x.type)[1])


@irdl_op_definition
class AddOp(IRDLOperation):
    """out = sat(rne(fma(x, a, fma(residual, b, fixed)))), the factors a, b, fixed being those of the epilogue.

    Source: com.microsoft QLinearAdd. Both operands have the result's shape.
    """

    name = "cnn.add"
    x = operand_def(TensorType)
    residual = operand_def(TensorType)
    steps = prop_def(StepsAttr)
    label = opt_prop_def(StringAttr)
    until = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = (
        "$x `residual` $residual `:` type($residual) `then` $steps (`label` $label^)? (`until` $until^)? "
        "attr-dict `:` type($x) `->` type($result)"
    )

    def verify_(self) -> None:
        if not self.steps.data.factors:
            raise VerifyException("cnn.add: the epilogue needs factors")
        if not shape(self.x.type) == shape(self.residual.type) == shape(self.result.type):
            raise VerifyException("cnn.add: operands and result have one shape")


@irdl_op_definition
class BiasOp(IRDLOperation):
    """out[n, k, …] = sum[n, k, …] + bias[k], in 32 bits."""

    name = "cnn.bias"
    x = operand_def(TensorType)
    bias = prop_def(SymbolRefAttr)
    label = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x $bias (`label` $label^)? attr-dict `:` type($x) `->` type($result)"


@irdl_op_definition
class RequantOp(IRDLOperation):
    """out = clamp(rne(f32(sum) * scale[k]) + zero), the scale, zero and clamp of `by`. Source: ONNX QLinearConv-10."""

    name = "cnn.requant"
    x = operand_def(TensorType)
    by = prop_def(StepsAttr)
    label = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x `by` $by (`label` $label^)? attr-dict `:` type($x) `->` type($result)"


@irdl_op_definition
class ClampOp(IRDLOperation):
    """out = min(max(x, lo), hi) with `by` = (lo, hi) as its clamp: Relu and Clip on integers."""

    name = "cnn.clamp"
    x = operand_def(TensorType)
    by = prop_def(StepsAttr)
    label = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x `by` $by (`label` $label^)? attr-dict `:` type($x) `->` type($result)"


@irdl_op_definition
class ReshapeOp(IRDLOperation):
    """The same integers in the same order under another shape: Flatten and Reshape cost nothing on the array."""

    name = "cnn.reshape"
    x = operand_def(TensorType)
    label = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x (`label` $label^)? attr-dict `:` type($x) `->` type($result)"

    def verify_(self) -> None:
        if math.prod(shape(self.x.type)) != math.prod(shape(self.result.type)):
            raise VerifyException("cnn.reshape: operand and result differ in size")


@irdl_op_definition
class HostOp(IRDLOperation):
    """A sub-graph that stays ONNX and runs on the host, and why.

    The integers of each operand are dequantised by `input_quants` before it; its results are quantised by
    `output_quants` after it (a result with scale 0 stays float: an output of the network).
    """

    name = "cnn.host"
    inputs = var_operand_def(TensorType)
    model = prop_def(RefAttr)
    reason = prop_def(StringAttr)
    label = opt_prop_def(StringAttr)
    input_quants = prop_def(ArrayAttr[QuantAttr])
    output_quants = prop_def(ArrayAttr[QuantAttr])
    outputs = var_result_def(TensorType)
    assembly_format = (
        "`model` $model `because` $reason (`label` $label^)? "
        "`(` $inputs `)` $input_quants `->` $output_quants "
        "attr-dict `:` `(` type($inputs) `)` `->` `(` type($outputs) `)`"
    )

    def verify_(self) -> None:
        if (len(self.input_quants), len(self.output_quants)) != (len(self.inputs), len(self.outputs)):
            raise VerifyException("cnn.host: one quant for each operand and each result")


def element_bits(value_type: Attribute) -> int:
    """The width of a tensor's integers."""
    element_type = cast("TensorType[Attribute]", value_type).element_type
    return cast("IntegerType[int, Any]", element_type).width.data


CNN = Dialect(
    "cnn",
    [ConvOp, PoolOp, AddOp, BiasOp, RequantOp, ClampOp, ReshapeOp, HostOp],
    [WindowAttr, StepsAttr, QuantAttr, RangeAttr],
)
