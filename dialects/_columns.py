"""Strips of columns in the `nest` dialect: some columns of a value, and values side by side. Nothing is moved for them.

    %1 = nest.columns %0 from 4 : tensor<1x3x8x20xi16> -> tensor<1x3x8x9xi16>
    …
    %9 = nest.join %7, %8 label "conv2" : (tensor<1x4x8x10xi16>, tensor<1x4x8x10xi16>) -> tensor<1x4x8x20xi16>

Layers on the array read such columns where the whole value lies, and write theirs into the whole result. docs/groups.md
says what strips are for. What belongs to strip 3 of the layer conv1 is called conv1@3.
"""

from __future__ import annotations

import re
from collections.abc import Container

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
    """The columns of a value from one on: result[n, c, h, w] = x[n, c, h, first + w]."""

    name = "nest.columns"
    x = operand_def(TensorType)
    first = prop_def(IntegerAttr.constr(i64))
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x `from` $first attr-dict `:` type($x) `->` type($result)"

    def verify_(self) -> None:
        whole, own, first = shape(self.x.type), shape(self.result.type), self.first.value.data
        if len(whole) != 4 or whole[:3] != own[:3]:
            raise VerifyException(f"nest.columns: {whole} and {own} are not n c h w with other columns alone")
        if not 0 <= first < first + own[3] <= whole[3]:
            raise VerifyException(
                f"nest.columns: columns {first} to {first + own[3] - 1} of a value that has columns 0 to {whole[3] - 1}"
            )


@irdl_op_definition
class JoinOp(IRDLOperation):
    """The operands side by side: result[n, c, h, w0 + w] = operand[n, c, h, w], w0 the columns of those before it."""

    name = "nest.join"
    inputs = var_operand_def(TensorType)
    label = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$inputs (`label` $label^)? attr-dict `:` `(` type($inputs) `)` `->` type($result)"

    def verify_(self) -> None:
        shapes, whole = [shape(value.type) for value in self.inputs], shape(self.result.type)
        if len(whole) != 4 or any(dims[:-1] != whole[:-1] for dims in shapes):
            raise VerifyException(f"nest.join: {shapes} and {whole} are not n c h w with other columns alone")
        if sum(dims[3] for dims in shapes) != whole[3]:
            raise VerifyException(f"nest.join: the columns of {shapes} are not the result's {whole[3]} columns")


def strip_name(name: str, strip: int) -> str:
    """What belongs to a strip, by the name of what is split into strips."""
    return f"{name}@{strip}"


def split_strip(name: str) -> tuple[str, str]:
    """The reverse: the name, and "@3" of a strip.

    >>> split_strip("conv1@3"), split_strip("conv1")
    (('conv1', '@3'), ('conv1', ''))
    """
    match = re.search(r"@\d+$", name)
    return (name[: match.start()], match[0]) if match else (name, "")


def columns_of(value: SSAValue, known: Container[SSAValue] = ()) -> tuple[SSAValue, int]:
    """The value that `value` is columns of, and the first of them; no further up than the first one that is `known`."""
    first = 0
    while value not in known and isinstance(value.owner, ColumnsOp):
        value, first = value.owner.x, first + value.owner.first.value.data
    return value, first
