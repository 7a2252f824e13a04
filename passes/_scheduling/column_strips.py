"""Layers in strips of columns: each strip computes some columns of the last result, by layers of its own. No pass.

A strip's layers are those of the group on fewer columns. They read the columns that theirs need and have padding only
where the image ends. Columns that two strips need are computed by both. Strips that are alike are one group, which runs
them as its images (GROUP-13).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Mapping as Map
from dataclasses import replace
from typing import NamedTuple

from xdsl.dialects.builtin import IntegerAttr, StringAttr, TensorType, i64
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from cnncc.dialects.cnn import WindowAttr, shape, value_key
from cnncc.dialects.nest import ColumnsOp, JoinOp, LayerOp, SizesAttr, build_nest, image_shape, mapping_of
from cnncc.errors import Refusal
from cnncc.mapping.mapping import Loop, Mapping, Sizes
from cnncc.mapping.strips import strip_name
from cnncc.model.layer_shape import LayerShape
from cnncc.passes._scheduling.layer_groups import ring_operands
from cnncc.passes._scheduling.nest_layers import label_of
from cnncc.window import Window


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


def strip_shape(shape: LayerShape, own: Columns, width: int, count: int) -> LayerShape:
    """A layer on some columns of its result alone, in so many strips. width: columns of the whole ifmap."""
    read = columns_read(shape.window, own, width)
    return replace(
        shape,
        sizes=strip_sizes(shape.sizes, own, count),
        window=strip_window(shape.window, own, width),
        iw=read.end - read.first,
    )


def strips(width: int, columns: int) -> list[Columns]:
    """The strips of a result, `columns` columns each; the last one may have fewer."""
    return [Columns(first, min(width, first + columns)) for first in range(0, width, columns)]


class StripRun(NamedTuple):
    """Strips `number` … `number + length - 1`, which are alike.

    needed: the columns of each value for the first of them. apart: columns from strip to strip.
    """

    number: int
    length: int
    needed: dict[SSAValue, Columns]
    apart: dict[SSAValue, int]


def strip_runs(layers: Sequence[LayerOp], columns: int, rolled: bool) -> list[StripRun]:
    """The strips of so many columns of the last result. rolled: equal strips run as one. Raises Refusal."""
    width, runs = image_shape(layers[-1].result.type)[3], list[StripRun]()
    for number, own in enumerate(strips(width, columns)):
        needed = columns_needed(layers, number, own)
        last = runs[-1] if runs and rolled else None
        apart = _apart(layers, last.needed, needed, number - last.number) if last else {}
        # The second strip of a run says how far strips are apart, and all others are as far.
        if last and apart and last.apart in ({}, apart):
            runs[-1] = StripRun(last.number, last.length + 1, last.needed, apart)
        else:
            runs.append(StripRun(number, 1, needed, {}))
    return runs


def _apart(
    layers: Sequence[LayerOp], one: dict[SSAValue, Columns], other: dict[SSAValue, Columns], strips_between: int
) -> dict[SSAValue, int]:
    """How far the columns of two strips are apart, from strip to strip; {} where the strips are not alike."""
    apart = {value: (other[value].first - own.first) // strips_between for value, own in one.items()}
    same_extents = all(
        other[value] == Columns(own.first + strips_between * apart[value], own.end + strips_between * apart[value])
        for value, own in one.items()
    )
    windows = ((layer.window.data, layer.result, image_shape(layer.ifmap.type)[3]) for layer in layers)
    same_windows = all(
        strip_window(window, one[result], width) == strip_window(window, other[result], width)
        for window, result, width in windows
    )
    # With the same padding, columns further right read columns further right: no distance is 0.
    return apart if same_extents and same_windows else {}


def may_roll(layers: Sequence[LayerOp], streamed: Map[LayerOp, Collection[str]]) -> bool:
    """Whether strips that are alike may run as images of one group. streamed: operands that have buffers in the GLB.

    There is one image. A commit has one start for its results and its residual. So both lie in the whole values in the
    GLB, as far apart from strip to strip, or none does.
    """
    for layer in layers:
        outside = {"residual", "output"} - ring_operands(layer, layers) - {*streamed[layer]}
        if layer.sizes.data.n > 1 or (layer.residual is not None and len(outside) == 1):
            return False
    return True


def split_columns(layers: Sequence[LayerOp], columns: int, rolled: bool) -> list[tuple[StripRun, list[LayerOp]]]:
    """Put layers for each strip of `columns` columns of the last result, and what joins them, in the place of `layers`.

    rolled: see `strip_runs`. Returns the layers of each run of strips, in their order. Raises Refusal.
    """
    last = layers[-1]
    for layer in layers:
        if len(shape(layer.result.type)) != 4:
            raise Refusal(f"layer '{label_of(layer)}' has no columns: leave out columns")
        if layer.steps.data.per_position:
            raise Refusal(f"layer '{label_of(layer)}' has a scale for each position: leave it out of the group")
    parts = list[tuple[StripRun, list[LayerOp]]]()
    for run in strip_runs(layers, columns, rolled):
        strip = _Strip(run, last)
        parts.append((run, [strip.layer(layer) for layer in layers]))
    label = {"label": StringAttr(key)} if (key := value_key(last)) else {}
    join = JoinOp.create(
        operands=[part[-1].result for _, part in parts], properties=dict(label), result_types=[last.result.type]
    )
    Rewriter.insert_op(join, InsertPoint.before(last))
    last.result.replace_all_uses_with(join.result)
    for layer in reversed(layers):
        Rewriter.erase_op(layer)
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
    """Strips that are being built: layers with one image for each of them, before the layer `last`."""

    def __init__(self, run: StripRun, last: LayerOp) -> None:
        self.run, self.last = run, last
        self.values = dict[SSAValue, SSAValue]()  # with the columns that are needed, by the whole value

    def layer(self, whole: LayerOp) -> LayerOp:
        """A layer of the strips."""
        own, count = self.run.needed[whole.result], self.run.length
        window = strip_window(whole.window.data, own, image_shape(whole.ifmap.type)[3])
        operands = [self._columns(value, read) for value, read in _reads(whole, own, self.run.number)]
        properties = {
            "sizes": SizesAttr(strip_sizes(whole.sizes.data, own, count)),
            "window": WindowAttr(window),
            **{name: self._named(label) for name, label in (("label", whole.label), ("until", whole.until)) if label},
        }
        strip = LayerOp.create(
            operands=operands,
            properties={**whole.properties, **properties},
            result_types=[self._type(whole.result, own)],
            regions=[build_nest(narrowed(mapping_of(whole), own.end - own.first, count))],
        )
        Rewriter.insert_op(strip, InsertPoint.before(self.last))
        self.values[whole.result] = strip.result
        return strip

    def _named(self, name: StringAttr) -> StringAttr:
        return StringAttr(strip_name(name.data, self.run.number, self.run.length))

    def _columns(self, whole: SSAValue, read: Columns) -> SSAValue:
        """Columns of a value: of those that the strips have of it."""
        needed = self.run.needed[whole]
        if whole not in self.values:
            self.values[whole] = self._taken(whole, needed, 0, self.run.apart.get(whole, 0))
        return self._taken(self.values[whole], read, needed.first)

    def _taken(self, value: SSAValue, columns: Columns, before: int, apart: int = 0) -> SSAValue:
        """Columns of a value that itself begins at column `before`. apart: from strip to strip, of one image."""
        if columns.end - columns.first == image_shape(value.type)[3]:
            return value
        first = IntegerAttr(columns.first - before, i64)
        op = ColumnsOp.create(
            operands=[value],
            properties={"first": first, **({"every": IntegerAttr(apart, i64)} if apart else {})},
            result_types=[self._type(value, columns)],
        )
        Rewriter.insert_op(op, InsertPoint.before(self.last))
        return op.result

    def _type(self, value: SSAValue, columns: Columns) -> TensorType:
        """The type of some columns of a value, in all strips."""
        assert isinstance(value.type, TensorType)
        images, channels, rows, _ = image_shape(value.type)
        images = images if self.run.length == 1 else self.run.length
        return TensorType(value.type.element_type, [images, channels, rows, columns.end - columns.first])


def strip_sizes(sizes: Sizes, own: Columns, count: int) -> Sizes:
    """The sizes of a layer in strips: its columns, and an image for each of several strips."""
    return replace(sizes, w=own.end - own.first, n=sizes.n if count == 1 else count)


def narrowed(mapping: Mapping, columns: int, count: int) -> Mapping:
    """The nest on fewer columns, in a loop over several strips. Loops over columns that run once then are left out."""
    loops, runs, extent = list[Loop](), list[bool](), columns
    for loop in mapping.loops:
        own = replace(loop, step=min(loop.step, columns)) if loop.dim == "w" else loop
        runs.append(loop.dim != "w" or own.step < extent)
        extent = own.step if loop.dim == "w" else extent
        loops += [own] * runs[-1]
    stages = [replace(stage, depth=sum(runs[: stage.depth])) for stage in mapping.stages]
    if count == 1:
        return Mapping(tuple(loops), tuple(stages))
    # Weights and params stay outside of the loop over strips: they come once for all of these (GROUP-13).
    stages = [replace(stage, depth=stage.depth + (stage.memory == "rf" or stage.depth > 0)) for stage in stages]
    return Mapping((Loop("n"), *loops), tuple(stages))
