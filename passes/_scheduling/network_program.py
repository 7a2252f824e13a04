"""What a network with chosen mappings takes: the parts of its program for the cost model, and its cost. No pass."""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence
from dataclasses import replace

from cnncc.arch.model import Arch, Energy
from cnncc.dialects.nest import LayerOp
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.program_schedule import Part, copies, program_cycles
from cnncc.model.timed_program import PredictedCycles
from cnncc.passes._programs.glb_packing import fits
from cnncc.passes._scheduling.layer_groups import LayerGroup
from cnncc.passes._scheduling.network_values import Network, Value
from cnncc.passes._scheduling.prefetch import lifetimes, prefetched_layers, resident_values
from cnncc.passes._scheduling.smaller_budgets import prefetchable

Plans = Map[LayerOp, LayerPlan | None]  # None: the model does not know the layer by itself


def network_parts(
    network: Network, arch: Arch, nests: Map[LayerOp, Mapping], plans: Plans, groups: Sequence[LayerGroup]
) -> list[Part]:
    """The parts of the program, with what has a place in the GLB early enough to be prefetched.

    network: with these groups. A layer's part is called after its number (`part_label`).
    """
    prefetched, resident = prefetched_layers(network, arch, nests, groups), resident_values(network, nests)
    parts = copies("inputs", "in", [value.words for value in network.copied_in(resident)])
    ends = {group.layers[-1]: group for group in groups}
    grouped = {layer for group in groups for layer in group.layers}
    has_head = True  # whether transfers for the next layer have a place in the part before
    for layer in network.layers:
        if group := ends.get(layer):
            parts += [part.plan() for part in group.parts]
            has_head = group.has_head
        elif layer not in grouped and (plan := plans[layer]):
            # Given mappings are not run: behind these alone, no part is there that could bring words ahead.
            ahead = frozenset(prefetchable(plan.mapping) if layer in prefetched and parts and has_head else ())
            has_head = True
            parts.append(replace(plan, label=part_label(network, layer), prefetched=ahead))
    return [*parts, *copies("outputs", "out", [value.words for value in network.copied_out(resident)])]


def network_cycles(
    network: Network, arch: Arch, nests: Map[LayerOp, Mapping], plans: Plans, groups: Sequence[LayerGroup]
) -> tuple[PredictedCycles, dict[str, PredictedCycles]] | None:
    """The cycles of the network, and of its parts by label; None where groups do not fit the GLB.

    A network of layers that the model does not know has none.
    """
    if groups and not fits(list(lifetimes(network, arch, nests, groups).values()), arch.glb.words):
        return None
    parts = network_parts(network, arch, nests, plans, groups)
    return program_cycles(parts, arch) if parts else (PredictedCycles(0, 0, 0, 0, 0, {}), {})


def part_label(network: Network, layer: LayerOp) -> str:
    """The label of a layer's part: layers need not have labels of their own."""
    return f"layer {network.number[layer]}"


def copies_cost(network: Network, resident: Sequence[Value], costs: Energy) -> float:
    """The cost of copies of resident values before the first layer and behind the last one."""
    cost = sum(value.words for value in network.copied_in(resident)) * (costs.dram_read + costs.glb_write)
    return cost + sum(value.words for value in network.copied_out(resident)) * (costs.glb_read + costs.dram_write)
