"""Layers in strips of columns: each strip computes some columns of the last result, by layers of its own. No pass.

A strip's layers are those of the group on fewer columns. They read the columns that theirs need and have padding only
where the image ends. Columns that two strips need are computed by both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from xdsl.dialects.builtin import IntegerAttr, StringAttr, TensorType, i64
from xdsl.ir import Operation, SSAValue

from cnncc.dialects.cnn import Window, WindowAttr, shape, value_key
from cnncc.dialects.nest import (
    ColumnsOp,
    JoinOp,
    LayerOp,
    Loop,
    Mapping,
    SizesAttr,
    build_nest,
    image_shape,
    mapping_of,
    strip_name,
)
from cnncc.errors import Refusal
from cnncc.model.layer_shape import LayerShape
from cnncc.passes._scheduling.nest_layers import label_of


class Columns(NamedTuple):
    """Columns `first` … `end` - 1 of a value."""

    first: int
    end: int

    def joined(self, other: Columns) -> Columns:
        """The columns from the first to the last of both."""
        return Columns(min(self.first, other.first), max(self.end, other.end))


def columns_read(window: Window, own: Columns, width: int) -> Columns:
    """The columns of an ifmap that has `width` that the windows of output columns touch.

    >>> columns_read(Window((3, 3), (1, 2), (1, 1, 1, 1)), Columns(0, 2), 9)
    Columns(first=0, end=4)
    """
    low, end = _touched(window, own)
    return Columns(max(0, low), min(width, end))


def _touched(window: Window, own: Columns) -> tuple[int, int]:
    """As `columns_read`, with columns of the padding."""
    stride, left = window.stride[1], window.pad[1]
    return own.first * stride - left, (own.end - 1) * stride + window.spans[1] - left


def strip_window(window: Window, own: Columns, width: int) -> Window:
    """The window of a strip: with padding left and right only where its columns reach beyond the image."""
    low, end = _touched(window, own)
    top, _, bottom, _ = window.pad
    return replace(window, pad=(top, max(0, -low), bottom, max(0, end - width)))


def strip_shape(shape: LayerShape, own: Columns, width: int) -> LayerShape:
    """A layer on some columns of its result alone. width: columns of the whole ifmap."""
    read = columns_read(shape.window, own, width)
    return replace(
        shape,
        sizes=replace(shape.sizes, w=own.end - own.first),
        window=strip_window(shape.window, own, width),
        iw=read.end - read.first,
    )


def strips(width: int, columns: int) -> list[Columns]:
    """The strips of a result, `columns` columns each; the last one may have fewer."""
    return [Columns(first, min(width, first + columns)) for first in range(0, width, columns)]


def split_columns(layers: Sequence[LayerOp], columns: int) -> list[list[LayerOp]]:
    """Put layers for each strip of `columns` columns of the last result, and what joins them, in the place of `layers`.

    Returns the layers of each strip, in their order. Raises Refusal.
    """
    last = layers[-1]
    for layer in layers:
        if len(shape(layer.result.type)) != 4:
            raise Refusal(f"layer '{label_of(layer)}' has no columns: leave out columns")
        if layer.steps.data.per_position:
            raise Refusal(f"layer '{label_of(layer)}' has a scale for each position: leave it out of the group")
    parts = [
        _strip(layers, number, own) for number, own in enumerate(strips(image_shape(last.result.type)[3], columns))
    ]
    label = {"label": StringAttr(key)} if (key := value_key(last)) else {}
    join = JoinOp.create(
        operands=[part[-1].result for part in parts], properties=dict(label), result_types=[last.result.type]
    )
    block = last.parent_block()
    assert block is not None
    block.insert_op_before(join, last)
    last.result.replace_all_uses_with(join.result)
    for layer in reversed(layers):
        layer.detach()
        layer.erase()
    return parts


def columns_needed(layers: Sequence[LayerOp], number: int, own: Columns) -> dict[SSAValue, Columns]:
    """The columns of each value that strip `number`, of these columns of the last result, reads or computes.

    Raises Refusal.
    """
    needed: dict[SSAValue, Columns] = {layers[-1].result: own}
    for layer in reversed(layers):
        if layer.result not in needed:
            raise Refusal(f"no later layer of the group reads {label_of(layer)}: a group has one last layer")
        for value, read in _reads(layer, needed[layer.result], number):
            needed[value] = needed[value].joined(read) if value in needed else read
    return needed


def _strip(layers: Sequence[LayerOp], number: int, own: Columns) -> list[LayerOp]:
    """The layers of one strip, before the last one of `layers`. Raises Refusal."""
    needed = columns_needed(layers, number, own)
    strip = _Strip(number, needed, layers[-1])
    return [strip.layer(layer) for layer in layers]


def _reads(layer: LayerOp, own: Columns, number: int) -> list[tuple[SSAValue, Columns]]:
    """What a layer reads for its columns."""
    read = columns_read(layer.window.data, own, image_shape(layer.ifmap.type)[3])
    if read.first >= read.end:
        raise Refusal(
            f"layer '{label_of(layer)}': strip {number} of columns {own.first} to {own.end - 1} lies in the padding: "
            f"strips of more columns"
        )
    return [(layer.ifmap, read), *([(layer.residual, own)] if layer.residual else [])]


class _Strip:
    """A strip that is being built. needed: the columns of each value."""

    def __init__(self, number: int, needed: dict[SSAValue, Columns], last: LayerOp) -> None:
        self.number, self.needed, self.last = number, needed, last
        self.values = dict[SSAValue, SSAValue]()  # with the columns that are needed, by the whole value

    def layer(self, whole: LayerOp) -> LayerOp:
        """A layer of the strip."""
        own, sizes = self.needed[whole.result], whole.sizes.data
        window = strip_window(whole.window.data, own, image_shape(whole.ifmap.type)[3])
        operands = [self._columns(value, read) for value, read in _reads(whole, own, self.number)]
        properties = {
            "sizes": SizesAttr(replace(sizes, w=own.end - own.first)),
            "window": WindowAttr(window),
            **{name: self._named(label) for name, label in (("label", whole.label), ("until", whole.until)) if label},
        }
        strip = LayerOp.create(
            operands=operands,
            properties={**whole.properties, **properties},
            result_types=[_type(whole.result, own)],
            regions=[build_nest(narrowed(mapping_of(whole), own.end - own.first))],
        )
        self._insert(strip)
        self.values[whole.result] = strip.result
        return strip

    def _named(self, name: StringAttr) -> StringAttr:
        return StringAttr(strip_name(name.data, self.number))

    def _columns(self, whole: SSAValue, read: Columns) -> SSAValue:
        """Columns of a value: of those that the strip has of it."""
        if whole not in self.values:
            self.values[whole] = self._taken(whole, self.needed[whole], 0)
        return self._taken(self.values[whole], read, self.needed[whole].first)

    def _taken(self, value: SSAValue, columns: Columns, before: int) -> SSAValue:
        """Columns of a value that itself begins at column `before`."""
        if columns.end - columns.first == image_shape(value.type)[3]:
            return value
        op = ColumnsOp.create(
            operands=[value],
            properties={"first": IntegerAttr(columns.first - before, i64)},
            result_types=[_type(value, columns)],
        )
        self._insert(op)
        return op.result

    def _insert(self, op: Operation) -> None:
        block = self.last.parent_block()
        assert block is not None
        block.insert_op_before(op, self.last)


def _type(value: SSAValue, columns: Columns) -> TensorType:
    """The type of some columns of a value."""
    assert isinstance(value.type, TensorType)
    return TensorType(value.type.element_type, [*shape(value.type)[:3], columns.end - columns.first])


def narrowed(mapping: Mapping, columns: int) -> Mapping:
    """The nest on fewer columns. Loops over them that run once then are left out."""
    loops, runs, extent = list[Loop](), list[bool](), columns
    for loop in mapping.loops:
        own = replace(loop, step=min(loop.step, columns)) if loop.dim == "w" else loop
        runs.append(loop.dim != "w" or own.step < extent)
        extent = own.step if loop.dim == "w" else extent
        loops += [own] * runs[-1]
    return Mapping(tuple(loops), tuple(replace(stage, depth=sum(runs[: stage.depth])) for stage in mapping.stages))
