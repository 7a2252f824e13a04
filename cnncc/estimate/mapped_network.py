"""A mapped network at the nest level: each layer's GLB budget, and the program with another mapping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as Map
from dataclasses import dataclass, field, replace
from itertools import pairwise

from xdsl.dialects.func import FuncOp

from cnncc.arch.model import Arch
from cnncc.dialects import nest
from cnncc.dialects.nest import LayerOp
from cnncc.mapping.mapping import Mapping
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.layer_shape import GlbBudget
from cnncc.model.program_schedule import Part
from cnncc.passes._scheduling.candidates import Candidates
from cnncc.passes._scheduling.glb_words import glb_words
from cnncc.passes._scheduling.layer_groups import LayerGroup
from cnncc.passes._scheduling.nest_layers import goal_of, label_of, layer_shape
from cnncc.passes._scheduling.network_values import Network
from cnncc.passes._scheduling.prefetch import prefetched_layers
from cnncc.passes._scheduling.residency import glb_budgets
from cnncc.passes._scheduling.smaller_budgets import prefetchable

EMPTY: Map[LayerOp, Mapping] = {}
Streamed = Map[LayerOp, frozenset[str]]  # the operands of each layer that move through the GLB


def streamed(func: FuncOp, alone: Map[LayerOp, Mapping] = EMPTY) -> Streamed:
    """What the mappings of a network's layers stream. alone: those that layers in groups would have without groups."""
    network = Network(func)
    return {
        layer: frozenset(
            stage.operand
            for stage in (alone.get(layer) or mapping_in(layer)).stages
            if stage.memory == "glb" and stage.operand in network.operands(layer)
        )
        for layer in network.layers
    }


def budgets(func: FuncOp, arch: Arch, moves: Streamed) -> dict[LayerOp, GlbBudget]:
    """The GLB words for each layer's buffers, beside the network's resident values."""
    network = Network(func)
    outside = {network.operands(layer)[operand] for layer, some in moves.items() for operand in some}
    resident = [value for value in network.values if value.root not in outside]
    return dict(glb_budgets(network, resident, arch))


def mapping_in(layer: LayerOp) -> Mapping:
    """What is chosen for a layer, or what its nest is."""
    return goal_of(layer) or nest.mapping_of(layer)


@dataclass(frozen=True)
class MappedNetwork:
    """The layers of a module, and `parts` of its program.

    - candidates: the layers' mappings, on this array or another one. None if the layers were mapped before.
    - groups: the chosen groups of layers
    - alone: the mappings that layers in groups would have without groups
    """

    func: FuncOp
    arch: Arch
    parts: Sequence[Part]
    candidates: Callable[[Arch], Candidates] | None
    groups: Sequence[LayerGroup] = ()
    alone: Map[LayerOp, Mapping] = field(default_factory=dict[LayerOp, Mapping])

    def layer(self, label: str) -> LayerOp:
        """The layer of this label."""
        return next(op for op in self.func.walk() if isinstance(op, LayerOp) and label_of(op) == label)

    def budget(self, label: str) -> GlbBudget:
        """The GLB words for a layer's buffers. Mappings are searched for as if there were no groups."""
        return budgets(self.func, self.arch, streamed(self.func, self.alone))[self.layer(label)]

    def taken(self, label: str) -> GlbBudget:
        """The budget of the layer's mapping: the layer's own, or the mapping's words if it was chosen for fewer."""
        layer, budget = self.layer(label), self.budget(label)
        mapping, candidates = mapping_in(layer), self.candidates and self.candidates(self.arch)
        # A mapping that is not of the front in the layer's own budget was chosen for fewer words (CHAIN-1).
        if not candidates or not candidates.is_searched(layer) or mapping in candidates.front(layer, budget):
            return budget
        return replace(budget, words=glb_words(layer_shape(layer), self.arch, mapping))

    def with_mapping(self, label: str, mapping: Mapping, arch: Arch) -> list[Part]:
        """The program on an array with another mapping of a layer. The other layers keep theirs.

        Weights are prefetched if the GLB has space for them under these mappings. Behind a group that a schedule names,
        they are prefetched if the program does so.
        """
        layers = [op for op in self.func.walk() if isinstance(op, LayerOp)]
        mappings = {op: mapping if label_of(op) == label else mapping_in(op) for op in layers}
        network = Network(self.func, [group.layers for group in self.groups])
        prefetched = {label_of(op) for op in prefetched_layers(network, arch, mappings, self.groups)}
        by_label = {label_of(op): each for op, each in mappings.items()}
        prefetched -= {
            part.label
            for before, part in pairwise(self.parts if not self.groups else ())
            if isinstance(before, GroupPlan) and isinstance(part, LayerPlan) and not part.prefetched
        }

        def plan(part: LayerPlan) -> LayerPlan:
            own = by_label[part.label]
            first = frozenset(prefetchable(own)) if part.label in prefetched else frozenset[str]()
            return replace(part, mapping=own, prefetched=first)

        return [plan(part) if isinstance(part, LayerPlan) else part for part in self.parts]
