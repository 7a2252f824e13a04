"""What a certificate has of groups: what each takes by itself, and lower bounds. No code of the search."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from cnncc.arch.model import Arch
from cnncc.dialects.nest import LayerOp, reads_of_values
from cnncc.errors import Refusal
from cnncc.mapping.groups import GroupLayer
from cnncc.mapping.strips import split_strip, strip_count
from cnncc.model.group_bounds import least_group_cycles, least_group_words
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.plan_json import from_json
from cnncc.model.program_counts import program_counts
from cnncc.passes._scheduling.column_strips import may_roll, split_columns
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape
from cnncc.passes._scheduling.stripes import kind_in_group

Json = dict[str, Any]


def figures(plan: GroupPlan, arch: Arch) -> Json:
    """What a group takes by itself, and the least that any group of its layers takes."""
    counts = program_counts([plan], arch, causes=False)
    words = counts["words"]
    return {
        "cycles": counts["cycles"]["total"],
        "least": least_group_cycles(plan, arch),
        "words": words["dram_read"] + words["dram_write"],
        "least_words": least_group_words(plan, arch),
    }


def read_groups(entries: Sequence[Json]) -> list[GroupPlan]:
    """The plans of entries. Raises ValueError and others for what is none."""
    plans = from_json(entries)
    if not all(isinstance(plan, GroupPlan) for plan in plans):
        raise ValueError("it is no group")
    return cast("list[GroupPlan]", plans)


def split_into_strips(plans: Sequence[GroupPlan], layers: Mapping[str, LayerOp]) -> dict[str, LayerOp]:
    """The layers of all strips, by label; those of the model are cut as groups of strips say. Raises Refusal."""
    groups, made = defaultdict[str, list[GroupPlan]](list), dict[str, LayerOp]()
    for plan in plans:
        name, strip = split_strip(plan.label)
        if strip:
            groups[name].append(plan)
    for name, strips in groups.items():
        given = {split_strip(layer.label)[0]: layer for layer in strips[0].layers}
        if missing := [label for label in given if label not in layers]:
            raise Refusal(f"group {name}: the model has no layer '{missing[0]}'")
        whole = [layers[label] for label in given]
        stages = {layers[label]: layer.mapping.glb_stages for label, layer in given.items()}
        rolled = any(strip_count(plan.label) > 1 for plan in strips)
        if rolled and not may_roll(whole, stages):
            raise Refusal(f"group {name}: its strips are no images of one group")
        for _, strip in split_columns(whole, strips[0].layers[-1].shape.sizes.w, rolled):
            made |= {label_of(layer): layer for layer in strip}
    return made


def checked_group(plan: GroupPlan, entry: Json, layers: Mapping[str, LayerOp], arch: Arch) -> str:
    """The line of a group. layers: by label, those of strips too. Raises Refusal for what is not as the entry says."""
    for own, layer in plan.plans:
        if layer is not None:
            _check_layer(own, layer, plan, layers)
    for name, figure in figures(plan, arch).items():
        if entry[name] != figure:
            raise Refusal(f"its {name} are {figure:,}, not {entry[name]}")
    cycles, least, words = (f"{entry[name]:,}" for name in ("cycles", "least", "words"))
    return (
        f"  group {plan.label}: {cycles} cycles, no group of these layers below {least}; {words} DRAM words, none "
        f"below {entry['least_words']:,}: {'proven' if cycles == least else 'not proven'} to be the best"
    )


def _check_layer(own: GroupLayer, layer: LayerPlan, plan: GroupPlan, layers: Mapping[str, LayerOp]) -> None:
    """A layer of a group is one of the model's, and reads what it does there. Raises Refusal."""
    op = layers.get(layer.label)
    shape = op and replace(layer_shape(op), kind=kind_in_group(op))
    if op is None or layer.shape != shape or layer.residual != (op.residual is not None):
        raise Refusal(f"the model has no layer '{layer.label}' such as this")
    made = [layers[each.label].result for each in plan.group if not each.is_load and each.label in layers]
    names = [each.label for each in plan.group if not each.is_load and each.label in layers]
    reads = {(names[read.producer], read.operand): read for read in reads_of_values(op, made)}
    given = {(plan.group[read.producer].label, read.operand): read for read in own.reads}
    loads = {each.label for each in plan.group if each.is_load}
    # Loads have numbers in the plan and none in the model, so producers are compared by label, in the keys.
    inside = {key: read for key, read in given.items() if key[0] not in loads}
    if inside.keys() != reads.keys() or any(
        vars(read) | {"producer": 0} != vars(reads[key]) | {"producer": 0} for key, read in inside.items()
    ):
        raise Refusal(f"layer '{layer.label}' reads other values in the model")
