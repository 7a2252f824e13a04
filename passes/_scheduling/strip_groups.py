"""A group of layers in strips of columns, as the choice of groups plans it (GROUP-12). No pass.

`column_strips.py` makes the layers of strips; here are the plans that `nest-group` then has of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cnncc.dialects.nest import image_shape
from cnncc.mapping.groups import GroupLayer
from cnncc.mapping.strips import strip_name
from cnncc.passes._scheduling.column_strips import (
    Columns,
    StripRun,
    may_roll,
    narrowed,
    strip_runs,
    strip_shape,
    strip_sizes,
)
from cnncc.passes._scheduling.layer_groups import LayerGroup


def in_strips(group: LayerGroup, columns: int) -> LayerGroup:
    """The group in strips of so many columns of the last result. Raises Refusal."""
    streamed = {layer: mapping.glb_stages for layer, mapping in group.mappings.items()}
    runs = strip_runs(group.layers, columns, may_roll(group.layers, streamed))
    return replace(group, strips=tuple(_strips(group, run) for run in runs))


def alike(group: LayerGroup) -> Iterator[tuple[LayerGroup, int]]:
    """The strips of a group, or itself: one of each size, and how many there are of it."""
    by_size = dict[object, list[LayerGroup]]()
    for part in group.parts:
        # Strips of equal shapes take equally long, wherever they lie.
        by_size.setdefault((part.shapes, tuple(load.sizes for load in part.loads)), []).append(part)
    return ((parts[0], len(parts)) for parts in by_size.values())


def _strips(group: LayerGroup, run: StripRun) -> LayerGroup:
    """The group of strips that are alike. Its rows, delays and rings are those of all columns."""

    def named(name: str) -> str:
        return strip_name(name, run.number, run.length)

    names = [_name_of_load(plan.label, named) for plan in group.loads] + [named(plan.label) for plan in group.of_layers]
    values = [*group.loaded, *(layer.result for layer in group.layers)]
    plans = [
        _narrow(replace(plan, label=name), run.needed[value], run.length)
        for plan, name, value in zip(group.plans, names, values, strict=True)
    ]
    shapes = [
        strip_shape(shape, run.needed[layer.result], image_shape(layer.ifmap.type)[3], run.length)
        for layer, shape in zip(group.layers, group.shapes, strict=True)
    ]
    return replace(group, label=named(group.label), shapes=tuple(shapes), plans=tuple(plans))


def _narrow(plan: GroupLayer, own: Columns, count: int) -> GroupLayer:
    """A layer or a load on some columns."""
    sizes, columns = strip_sizes(plan.sizes, own, count), own.end - own.first
    return replace(plan, sizes=sizes, mapping=narrowed(plan.mapping, columns, count))


def _name_of_load(label: str, named: Callable[[str], str]) -> str:
    """As `load_label` names what the layer of a strip reads: `conv1.ifmap` -> `conv1@0.ifmap`."""
    layer, _, operand = label.rpartition(".")
    return f"{named(layer)}.{operand}"
