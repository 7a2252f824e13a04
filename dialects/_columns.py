"""Strips of columns in the `nest` dialect: some columns of a value, and values side by side. Nothing is moved for them.

    %1 = nest.columns %0 from 4 : tensor<1x3x8x20xi16> -> tensor<1x3x8x9xi16>
    …
    %9 = nest.join %7, %8 label "conv2" : (tensor<1x4x8x10xi16>, tensor<1x4x8x10xi16>) -> tensor<1x4x8x20xi16>

Strips that are alike are the images of one value:

    %2 = nest.columns %0 from 3 every 4 : tensor<1x3x8x20xi16> -> tensor<3x3x8x6xi16>

Layers on the array read such columns where the whole value lies, and write theirs into the whole result. docs/groups.md
says what strips are for. What belongs to strip 3 of the layer conv1 is called conv1@3, of strips 1 to 14 conv1@1-14.
"""

from __future__ import annotations

import re
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
        return self.every.value.data if self.every is not None else 0

    def verify_(self) -> None:
        whole, own, first = shape(self.x.type), shape(self.result.type), self.first.value.data
        images = 1 if self.every is not None else own[0]
        if len(whole) != 4 or whole[:3] != (images, *own[1:3]):
            raise VerifyException(f"nest.columns: {whole} and {own} are not n c h w with other columns alone")
        if self.every is not None and self.apart < 1:
            raise VerifyException(f"nest.columns: strips every {self.apart} columns: 1 or more")
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


def strip_name(name: str, strip: int, count: int) -> str:
    """What belongs to a strip, or to so many from this one on, by the name of what is split into strips.

    >>> strip_name("conv1", 0, 1), strip_name("conv1", 1, 14)
    ('conv1@0', 'conv1@1-14')
    """
    return f"{name}@{strip}" if count == 1 else f"{name}@{strip}-{strip + count - 1}"


def split_strip(name: str) -> tuple[str, str]:
    """The reverse: the name, and "@3" of a strip.

    >>> split_strip("conv1@3"), split_strip("conv1@1-14"), split_strip("conv1")
    (('conv1', '@3'), ('conv1', '@1-14'), ('conv1', ''))
    """
    match = re.search(r"@\d{1,9}(-\d{1,9})?$", name)
    return (name[: match.start()], match[0]) if match else (name, "")


def strip_count(name: str) -> int:
    """How many strips a name is of: 1 of what is in no strips.

    >>> strip_count("conv1@3"), strip_count("conv1@1-14")
    (1, 14)
    """
    return len(_numbers(name)) or 1


def is_of_strip(name: str, strip: str) -> bool:
    """Whether a name is that of a strip, or of several strips with this one.

    >>> is_of_strip("conv1@1-14", "conv1@3"), is_of_strip("conv1@1-14", "conv1@0")
    (True, False)
    """
    numbers, same = _numbers(strip), split_strip(name)[0] == split_strip(strip)[0]
    return name == strip or (same and len(numbers) == 1 and numbers[0] in _numbers(name))


def is_meant(name: str, given: str) -> bool:
    """Whether a name is the one that a user gave, or of a strip of that, or of several strips with that one.

    >>> [is_meant(name, given) for name, given in (("conv1@3", "conv1"), ("conv1@1-14", "conv1@3"), ("conv1", "conv"))]
    [True, True, False]
    """
    return is_of_strip(name, given) or split_strip(name)[0] == given


def _numbers(name: str) -> range:
    """The numbers of the strips that a name is of."""
    _, strips = split_strip(name)
    first, _, last = strips[1:].partition("-")
    return range(int(first), int(last or first) + 1) if strips else range(0)


class ColumnsPart(NamedTuple):
    """Columns of a value: the first one, and how many columns strips are apart, 0 for a single strip."""

    whole: SSAValue
    first: int = 0
    apart: int = 0


def columns_of(value: SSAValue, known: Container[SSAValue] = ()) -> ColumnsPart:
    """What `value` is columns of; no further up than the first value that is `known`."""
    part = ColumnsPart(value)
    while part.whole not in known and isinstance(op := part.whole.owner, ColumnsOp):
        part = ColumnsPart(op.x, part.first + op.first.value.data, part.apart + op.apart)
    return part
