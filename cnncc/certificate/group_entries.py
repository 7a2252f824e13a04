"""What a certificate has of groups: what each takes by itself, and lower bounds. No code of the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cnncc.arch.model import Arch
from cnncc.dialects._groups import GroupLayer
from cnncc.dialects.nest import LayerOp, reads_of_values
from cnncc.errors import Refusal
from cnncc.model.group_bounds import least_group_cycles, least_group_words
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.plan_json import as_json, from_json
from cnncc.model.program_counts import program_counts
from cnncc.passes._scheduling.nest_layers import layer_shape

Json = dict[str, Any]


def group_entries(plans: Sequence[GroupPlan], arch: Arch) -> list[Json]:
    """An entry for each group."""
    return [as_json([plan])[0] | figures(plan, arch) for plan in plans]


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


def checked_group(entry: Json, layers: Mapping[str, LayerOp], arch: Arch) -> str:
    """The line of a group. Raises Refusal for what is not as the entry says, ValueError and others for what is none."""
    (plan,) = from_json([entry])
    if not isinstance(plan, GroupPlan):
        raise ValueError("it is no group")
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
    if op is None or layer.shape != layer_shape(op) or layer.residual != (op.residual is not None):
        raise Refusal(f"the model has no layer '{layer.label}' such as this")
    made = [layers[each.label].result for each in plan.group if not each.is_load and each.label in layers]
    names = [each.label for each in plan.group if not each.is_load and each.label in layers]
    reads = {(names[read.producer], read.operand): read for read in reads_of_values(op, made)}
    given = {(plan.group[read.producer].label, read.operand): read for read in own.reads}
    loads = {each.label for each in plan.group if each.is_load}
    inside = {key: read for key, read in given.items() if key[0] not in loads}
    if inside.keys() != reads.keys() or any(
        vars(read) | {"producer": 0} != vars(reads[key]) | {"producer": 0} for key, read in inside.items()
    ):
        raise Refusal(f"layer '{layer.label}' reads other values in the model")
