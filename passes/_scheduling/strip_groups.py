"""A group of layers in strips of columns, as the choice of groups plans it (GROUP-12). No pass.

`column_strips.py` makes the layers of strips; here are the plans that `nest-group` then has of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from cnncc.dialects._groups import GroupLayer
from cnncc.dialects.nest import image_shape, strip_name
from cnncc.passes._scheduling.column_strips import Columns, columns_needed, narrowed, strip_shape, strips
from cnncc.passes._scheduling.layer_groups import LayerGroup


def in_strips(group: LayerGroup, columns: int) -> LayerGroup:
    """The group in strips of so many columns of the last result. Raises Refusal."""
    width = image_shape(group.layers[-1].result.type)[3]
    parts = (_strip(group, number, own) for number, own in enumerate(strips(width, columns)))
    return replace(group, strips=tuple(parts))


def alike(group: LayerGroup) -> Iterator[tuple[LayerGroup, int]]:
    """The strips of a group, or itself: one of each size, and how many there are of it."""
    sizes = Counter((part.shapes, tuple(load.sizes for load in part.loads)) for part in group.parts)
    first = {(part.shapes, tuple(load.sizes for load in part.loads)): part for part in reversed(group.parts)}
    return ((first[size], count) for size, count in sizes.items())


def _strip(group: LayerGroup, number: int, own: Columns) -> LayerGroup:
    """One strip. Its rows, delays and rings are those of all columns."""
    needed, loads = columns_needed(group.layers, number, own), len(group.loaded)
    names = [_name_of_load(plan.label, number) for plan in group.loads]
    names += [strip_name(plan.label, number) for plan in group.of_layers]
    values = [*group.loaded, *(layer.result for layer in group.layers)]
    plans = [
        _narrow(replace(plan, label=name), needed[value])
        for plan, name, value in zip(group.plans, names, values, strict=True)
    ]
    shapes = [
        strip_shape(shape, needed[layer.result], image_shape(layer.ifmap.type)[3])
        for layer, shape in zip(group.layers, group.shapes, strict=True)
    ]
    assert len(plans) == loads + len(shapes)
    return replace(group, label=strip_name(group.label, number), shapes=tuple(shapes), plans=tuple(plans))


def _narrow(plan: GroupLayer, own: Columns) -> GroupLayer:
    """A layer or a load on some columns."""
    columns = own.end - own.first
    return replace(plan, sizes=replace(plan.sizes, w=columns), mapping=narrowed(plan.mapping, columns))


def _name_of_load(label: str, number: int) -> str:
    """As `load_label` names what the layer of a strip reads: `conv1.ifmap` -> `conv1@0.ifmap`."""
    layer, _, operand = label.rpartition(".")
    return f"{strip_name(layer, number)}.{operand}"
