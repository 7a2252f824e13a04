"""Strips of columns in the `nest` dialect: some columns of a value, and values side by side. Nothing is moved for them.

    %1 = nest.columns %0 from 4 : tensor<1x3x8x20xi16> -> tensor<1x3x8x9xi16>
    …
    %9 = nest.join %7, %8 label "conv2" : (tensor<1x4x8x10xi16>, tensor<1x4x8x10xi16>) -> tensor<1x4x8x20xi16>

Strips that are alike are the images of one value:

    %2 = nest.columns %0 from 3 every 4 : tensor<1x3x8x20xi16> -> tensor<3x3x8x6xi16>

Layers on the array read such columns where the whole value lies, and write theirs into the whole result. docs/groups.md
says what strips are for.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from xdsl.dialects.builtin import IntegerAttr, StringAttr, TensorType, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from cnncc.dialects.cnn import shape


@irdl_op_definition
class ColumnsOp(IRDLOperation):
    """The columns of a value from one on: result[n, c, h, w] = x[n, c, h, first + w].

    With `every`, image n of the result is a strip of the one image of x: result[n, c, h, w] = x[0, c, h, first + n *
    every + w].
    """

    name = "nest.columns"
    x = operand_def(TensorType)
    first = prop_def(IntegerAttr.constr(i64))
    every = opt_prop_def(IntegerAttr.constr(i64))
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x `from` $first (`every` $every^)? attr-dict `:` type($x) `->` type($result)"

    @property
    def apart(self) -> int:
        """Columns from a strip to the next one; 0 for a single strip."""
        return self.every.value.data if self.every is not None and shape(self.result.type)[0] > 1 else 0

    def verify_(self) -> None:
        whole, own, first = shape(self.x.type), shape(self.result.type), self.first.value.data
        images = 1 if self.every is not None else own[0]
        if len(whole) != 4 or whole[:3] != (images, *own[1:3]):
            raise VerifyException(f"nest.columns: {whole} and {own} are not n c h w with other columns alone")
        if self.every is not None and self.every.value.data < 1:
            raise VerifyException(f"nest.columns: strips every {self.every.value.data} columns: 1 or more")
        end = first + (own[0] - images) * self.apart + own[3]
        if not 0 <= first < end <= whole[3]:
            raise VerifyException(
                f"nest.columns: columns {first} to {end - 1} of a value that has columns 0 to {whole[3] - 1}"
            )


@irdl_op_definition
class JoinOp(IRDLOperation):
    """The operands side by side: result[n, c, h, w0 + w] = operand[n, c, h, w], w0 the columns of those before it.

    Where the result has one image, an operand may have several: these lie side by side.
    """

    name = "nest.join"
    inputs = var_operand_def(TensorType)
    label = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$inputs (`label` $label^)? attr-dict `:` `(` type($inputs) `)` `->` type($result)"

    def verify_(self) -> None:
        shapes, whole = [shape(value.type) for value in self.inputs], shape(self.result.type)
        other = any(dims[1:3] != whole[1:3] or whole[0] not in (1, dims[0]) for dims in shapes)
        if len(whole) != 4 or whole[0] < 1 or other:
            raise VerifyException(f"nest.join: {shapes} and {whole} are not n c h w with other columns alone")
        if sum(dims[3] * (dims[0] if whole[0] == 1 else 1) for dims in shapes) != whole[3]:
            raise VerifyException(f"nest.join: the columns of {shapes} are not the result's {whole[3]} columns")


class ColumnsPart(NamedTuple):
    """Columns of a value: the first one, and how many columns strips are apart, 0 for a single strip."""

    whole: SSAValue
    first: int = 0
    apart: int = 0


def columns_of(value: SSAValue, known: Container[SSAValue] = ()) -> ColumnsPart:
    """What `value` is columns of; no further up than the first value that is `known`."""
    part = ColumnsPart(value)
    # Strips are taken of one image, so that a chain takes them once: of the distances all others are 0.
    while part.whole not in known and isinstance(op := part.whole.owner, ColumnsOp):
        part = ColumnsPart(op.x, part.first + op.first.value.data, part.apart + op.apart)
    return part
