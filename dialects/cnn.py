"""Quantised layers: integers only, one op a layer.

A freshly quantised layer is a chain of small ops: `cnn.conv` gives 32-bit sums, `cnn.bias` adds,
`cnn.requant` scales to the operand type, `cnn.clamp` and `cnn.lookup` are activations, `cnn.add` is a residual sum,
`cnn.mul` a product.
`cnn-fuse-epilogue` gathers such a chain into the epilogue of the op that computes the sums, which is
what the array's output units do in one go. Weights, biases and scales are `weights.global` symbols.

The arithmetic of an epilogue is `cnncc.numerics.Epilogue`; shapes are n c h w as in ONNX.

Every op has a `label`, from the ONNX node that it came from. A fused op keeps the label of its first
part, and has in `until` the label of its last part, whose value it computes. So the same key names the
same integers before and after any pass, at every level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    SymbolRefAttr,
    TensorType,
    UnitAttr,
)
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
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

from cnncc.dialects._cnn_records import ELEMENTS as ELEMENTS
from cnncc.dialects._cnn_records import Quant as Quant
from cnncc.dialects._cnn_records import Range as Range
from cnncc.dialects._cnn_records import Steps as Steps
from cnncc.dialects._records import RecordAttr
from cnncc.dialects._verifiers import use_simple_verifiers
from cnncc.dialects.weights import RefAttr
from cnncc.window import Window


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


SCHEME = "cnn.scheme"  # attribute of a conv: the name of its parallel scheme, by `cnn-choose-scheme`


def shape(value_type: Attribute) -> tuple[int, ...]:
    """The shape of a tensor type."""
    assert isinstance(value_type, TensorType)
    return value_type.get_shape()


def quants_of(attrs: ArrayAttr[Any] | None, count: int) -> list[Quant | None]:
    """The scales of so many arguments or results of `main`; None for what only the host reads or writes."""
    quants = [entry.data.get(QuantAttr.name) for entry in attrs] if attrs else [None] * count
    return [attr.data if isinstance(attr, QuantAttr) else None for attr in quants]


def is_per_channel(residual: SSAValue | None, result: SSAValue) -> bool:
    """Whether a residual has one pixel, which all results of an image's channel read: n k 1 1 of n k h w."""
    return residual is not None and shape(residual.type) != shape(result.type)


def check_residual(name: str, residual: SSAValue | None, result: SSAValue) -> None:
    """Raises VerifyException for a residual of another shape than the result's, and than one pixel a channel."""
    if is_per_channel(residual, result) and residual is not None:
        wanted = shape(result.type)
        if len(wanted) != 4 or shape(residual.type) != (*wanted[:2], 1, 1):
            raise VerifyException(f"{name}: the residual has the shape of the result, or one pixel a channel")


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
    if (op.residual is not None) != bool(op.steps and op.steps.data.factors):
        raise VerifyException(f"{op.name}: a residual and its factors go together")
    check_residual(op.name, op.residual, op.result)
    check_shuffle(op.name, op.steps.data.shuffle if op.steps else 1, op.result.type)


class _WindowOp(IRDLOperation):
    """An operation over windows of its operand, with an epilogue."""

    x = operand_def(TensorType)
    residual = opt_operand_def(TensorType)
    window = prop_def(WindowAttr)
    steps = opt_prop_def(StepsAttr)
    label = opt_prop_def(StringAttr)
    until = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class ConvOp(_WindowOp):
    """sum[n, k, h, w] = Σ_{c, r, s} (x[n, g * C + c, h * sh + r * dh - top, w * sw + s * dw - left] - zero) * weights[k, c, r, s],
    g = k // (K / group), then the epilogue. Source: ONNX Conv-11 and Gemm-11 (as 1x1) on integers.

        %1 = cnn.conv %0 weights @conv1.w window <kernel = [3, 3]> then <bias = "conv1.b", scale = "conv1.q">
             : tensor<1x3x8x8xi16> -> tensor<1x16x6x6xi16>
    """  # noqa: E501

    name = "cnn.conv"
    weights = prop_def(SymbolRefAttr)
    assembly_format = (
        "$x (`residual` $residual^ `:` type($residual))? `weights` $weights `window` $window (`then` $steps^)? "
        "(`label` $label^)? (`until` $until^)? attr-dict `:` type($x) `->` type($result)"
    )

    def verify_(self) -> None:
        _check_window(self, shape(self.result.type)[1])
        group = self.window.data.group
        if shape(self.x.type)[1] % group or shape(self.result.type)[1] % group:
            raise VerifyException(f"cnn.conv: channels are not a multiple of group {group}")
        into = self.steps.data.shuffle if self.steps else 1
        if not self.may_shuffle(into):
            raise VerifyException(
                f"cnn.conv: the results of {group} groups are not shuffled in {into}: a cnn.shuffle is"
            )

    def may_shuffle(self, groups: int) -> bool:
        """Does one loop over output channels step evenly through the operand and through results that are shuffled?

        It does if both have the same groups, or if one of them has a single group, or groups of one channel.
        """
        own, channels = self.window.data.group, shape(self.result.type)[1]
        return own in (1, groups, channels) or groups in (1, channels)

    def macs(self) -> int:
        """Multiply-accumulates, those on padding included."""
        window = self.window.data
        channels = shape(self.x.type)[1] // window.group
        return math.prod((*shape(self.result.type), channels, *window.kernel))


@irdl_op_definition
class PoolOp(_WindowOp):
    """out[n, k, h, w] = max or sum over r, s of x[n, k, h * sh + r * dh - top, w * sw + s * dw - left], then epilogue.

    Source: ONNX MaxPool-12, AveragePool-19 (the division is the epilogue's scale), GlobalAveragePool-1.
    """

    name = "cnn.pool"
    kind = prop_def(StringAttr)
    assembly_format = (
        "$kind $x (`residual` $residual^ `:` type($residual))? `window` $window (`then` $steps^)? "
        "(`label` $label^)? (`until` $until^)? attr-dict `:` type($x) `->` type($result)"
    )

    def verify_(self) -> None:
        if self.kind.data not in ("max", "sum"):
            raise VerifyException(f"cnn.pool: kind is max or sum, not {self.kind.data}")
        _check_window(self, shape(self.x.type)[1])


class ElementwiseOp(IRDLOperation):
    """An operation on a value and a residual, word by word: an epilogue with nothing before the residual."""

    MULTIPLIES: ClassVar[bool]
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
        steps = self.steps.data
        if not steps.factors or steps.multiply != self.MULTIPLIES:
            what = "that is multiplied" if self.MULTIPLIES else "that is added"
            raise VerifyException(f"{self.name}: the epilogue needs factors of a residual {what}")
        if steps.bias or steps.scale or steps.table:
            raise VerifyException(f"{self.name}: the epilogue has no bias, no scale and no table, only factors")
        if shape(self.x.type) != shape(self.result.type):
            raise VerifyException(f"{self.name}: the first operand and the result have one shape")
        check_residual(self.name, self.residual, self.result)


@irdl_op_definition
class AddOp(ElementwiseOp):
    """out = sat(rne(fma(x, a, fma(residual, b, fixed)))), the factors a, b, fixed being those of the epilogue.

    Source: com.microsoft QLinearAdd.
    """

    name = "cnn.add"
    MULTIPLIES: ClassVar[bool] = False


@irdl_op_definition
class MulOp(ElementwiseOp):
    """out = sat(rne(x * (residual - b) * a + fixed)), the factors a, b, fixed being those of the epilogue.

    The zero point of x is 0, that of the residual is b. Source: com.microsoft QLinearMul.
    """

    name = "cnn.mul"
    MULTIPLIES: ClassVar[bool] = True


class _UnaryOp(IRDLOperation):
    """An operation on one tensor."""

    x = operand_def(TensorType)
    label = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class BiasOp(_UnaryOp):
    """out[n, k, …] = sum[n, k, …] + bias[k], in 32 bits."""

    name = "cnn.bias"
    bias = prop_def(SymbolRefAttr)
    assembly_format = "$x $bias (`label` $label^)? attr-dict `:` type($x) `->` type($result)"


@irdl_op_definition
class RequantOp(_UnaryOp):
    """out = clamp(rne(p) + zero), p = f32(sum) * scale[k], times slope where p < 0; all of them those of `by`.

    Source: ONNX QLinearConv-10, LeakyRelu-16.
    """

    name = "cnn.requant"
    by = prop_def(StepsAttr)
    assembly_format = "$x `by` $by (`label` $label^)? attr-dict `:` type($x) `->` type($result)"


@irdl_op_definition
class ClampOp(_UnaryOp):
    """out = min(max(x, lo), hi) with `by` = (lo, hi) as its clamp: Relu and Clip on integers."""

    name = "cnn.clamp"
    by = prop_def(StepsAttr)
    assembly_format = "$x `by` $by (`label` $label^)? attr-dict `:` type($x) `->` type($result)"


@irdl_op_definition
class LookupOp(_UnaryOp):
    """out = the value of a table for min(max(x, lo), hi), with `by` = (lo, hi) as its clamp (`cnncc.numerics.Table`).

        %1 = cnn.lookup %0 by <clamp = [-32767, 32767], table = "y.t", shift = 8> label "y" : tensor<1x4x3x3xi16> -> …

    Source: ONNX Sigmoid-13, Tanh-13 and the other functions of single numbers.
    """

    name = "cnn.lookup"
    by = prop_def(StepsAttr)
    assembly_format = "$x `by` $by (`label` $label^)? attr-dict `:` type($x) `->` type($result)"

    def verify_(self) -> None:
        by = self.by.data
        if not by.table or by != Steps(clamp=by.clamp, table=by.table, shift=by.shift):
            raise VerifyException("cnn.lookup: it has a clamp, a table and its shift, and nothing else")


@irdl_op_definition
class ReshapeOp(_UnaryOp):
    """The same integers in the same order under another shape: Flatten and Reshape cost nothing on the array."""

    name = "cnn.reshape"
    assembly_format = "$x (`label` $label^)? attr-dict `:` type($x) `->` type($result)"

    def verify_(self) -> None:
        if math.prod(shape(self.x.type)) != math.prod(shape(self.result.type)):
            raise VerifyException("cnn.reshape: operand and result differ in size")


@irdl_op_definition
class SliceOp(_UnaryOp):
    """Some channels of a value: result[n, k, …] = x[n, first + k, …].

    Nothing is moved: on the array a layer reads them where the whole value lies.

        %1 = cnn.slice %0 from 8 label "right" : tensor<1x12x3x3xi16> -> tensor<1x4x3x3xi16>

    Source: ONNX Slice-13 with axes = [1].
    """

    name = "cnn.slice"
    first = prop_def(IntegerAttr[I64])
    assembly_format = "$x `from` $first (`label` $label^)? attr-dict `:` type($x) `->` type($result)"

    def verify_(self) -> None:
        whole, own, first = shape(self.x.type), shape(self.result.type), self.first.value.data
        if not 2 <= len(whole) <= 4 or len(own) != len(whole) or (own[0], *own[2:]) != (whole[0], *whole[2:]):
            raise VerifyException(f"cnn.slice: {whole} and {own} are not n c … with other channels alone")
        if not 0 <= first < first + own[1] <= whole[1]:
            raise VerifyException(
                f"cnn.slice: channels {first} to {first + own[1] - 1} of a value that has channels 0 to {whole[1] - 1}"
            )


@irdl_op_definition
class ConcatOp(IRDLOperation):
    """The operands one after the other along the channels: result[n, k0 + k, …] = operand[n, k, …].

    k0 is the number of channels of the operands before it. All integers have one scale, so that nothing is
    computed: on the array each operand is written into its place in the result.

        %3 = cnn.concat %0, %1, %2 label "cat" : (tensor<1x4x3x3xi16>, …) -> tensor<1x12x3x3xi16>

    Interleaved, with G operands: result[n, k * G + g, …] = operand g[n, k, …], as a channel shuffle by G puts them.

        %3 = cnn.concat %0, %1, %2 interleaved label "cat" : (tensor<1x4x3x3xi16>, …) -> tensor<1x12x3x3xi16>

    In pixels a by b, with a * b operands, these are the pixels in turn:
    result[n, k, h * a + i, w * b + j] = operand (i * b + j)[n, k, h, w].

        %4 = cnn.concat %0, %1, %2, %3 pixels 2 by 2 label "up" : (tensor<1x4x3x5xi16>, …) -> tensor<1x4x6x10xi16>

    Source: ONNX Concat-13 with axis = 1; ShuffleNet V2 (Ma et al., 2018) shuffles a concatenation of two halves;
    ONNX DepthToSpace-13, with mode = DCR, of a concatenation.
    """

    name = "cnn.concat"
    inputs = var_operand_def(TensorType)
    interleaved = opt_prop_def(UnitAttr)
    rows = opt_prop_def(IntegerAttr[I64])
    cols = opt_prop_def(IntegerAttr[I64])
    label = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = (
        "$inputs (`interleaved` $interleaved^)? (`pixels` $rows^ `by` $cols)? (`label` $label^)? attr-dict `:` "
        "`(` type($inputs) `)` `->` type($result)"
    )

    @property
    def pixels(self) -> tuple[int, int] | None:
        """How many rows and columns of operands are in turn; None where channels follow each other or interleave."""
        return (self.rows.value.data, self.cols.value.data) if self.rows and self.cols else None

    def verify_(self) -> None:
        shapes = [shape(value.type) for value in self.inputs]
        whole = shape(self.result.type)
        if self.rows or self.cols:
            self._verify_pixels(shapes, whole)
            return
        if not shapes or not 2 <= len(whole) <= 4:
            raise VerifyException(f"cnn.concat: {len(shapes)} operands make {whole}, not n c, n c h or n c h w")
        rest = {(len(dims), dims[:1], dims[2:]) for dims in (*shapes, whole)}
        if len(rest) > 1 or sum(dims[1] for dims in shapes) != whole[1]:
            raise VerifyException(f"cnn.concat: the shapes {shapes} along dim 1 do not make {whole}")
        if self.interleaved is not None and len(set(shapes)) > 1:
            raise VerifyException(f"cnn.concat: the shapes {shapes} differ, so that their channels do not interleave")

    def _verify_pixels(self, shapes: Sequence[tuple[int, ...]], whole: tuple[int, ...]) -> None:
        if self.pixels is None or self.interleaved is not None or min(self.pixels) < 1:
            raise VerifyException(
                "cnn.concat: pixels in turn are R by C, both at least 1, and do not interleave channels"
            )
        rows, cols = self.pixels
        n, k, h, w = shapes[0] if shapes and len(shapes[0]) == 4 else (0, 0, 0, 0)
        if len(shapes) != rows * cols or {*shapes} != {(n, k, h, w)} or whole != (n, k, h * rows, w * cols):
            raise VerifyException(
                f"cnn.concat: the shapes {shapes} are no {rows} * {cols} operands that make {whole}, pixel by pixel"
            )


@irdl_op_definition
class ShuffleOp(_UnaryOp):
    """Channel shuffle: result channel j * G + g is operand channel g * (C / G) + j, for G groups of C / G channels.

        %1 = cnn.shuffle %0 groups 3 label "s" : tensor<1x6x4x5xi16> -> tensor<1x6x4x5xi16>

    Source: ONNX Transpose-13 of n g c/g h w by (0, 2, 1, 3, 4); ShuffleNet (Zhang et al., 2018).
    """

    name = "cnn.shuffle"
    groups = prop_def(IntegerAttr[I64])
    assembly_format = "$x `groups` $groups (`label` $label^)? attr-dict `:` type($x) `->` type($result)"

    def verify_(self) -> None:
        check_shuffle("cnn.shuffle", self.groups.value.data, self.x.type)
        if self.x.type != self.result.type:
            raise VerifyException("cnn.shuffle: operand and result have one type")


def check_shuffle(name: str, groups: int, value_type: Attribute) -> None:
    """Raises VerifyException unless the channels of a tensor make so many groups of one size."""
    dims = shape(value_type)
    if groups < 1 or len(dims) < 2 or dims[1] % groups:
        raise VerifyException(f"{name}: {dims} has no channels that make {groups} equal groups")


def shuffled(channel: int, channels: int, groups: int) -> int:
    """Where a shuffle of `channels` in `groups` puts a channel.

    >>> [shuffled(k, 6, 2) for k in range(6)]
    [0, 2, 4, 1, 3, 5]
    """
    group_size = channels // groups
    return channel % group_size * groups + channel // group_size


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
    [
        ConvOp, PoolOp, AddOp, MulOp, BiasOp, RequantOp, ClampOp, LookupOp, ReshapeOp, SliceOp, ConcatOp, ShuffleOp,
        HostOp,
    ],
    [WindowAttr, StepsAttr, QuantAttr, RangeAttr],
)  # fmt: skip
use_simple_verifiers(CNN)
