"""A network at the nest level whose layers are mapped: what room each has, and the program with another mapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.func import FuncOp

from cnncc.arch.model import Arch
from cnncc.dialects import nest
from cnncc.dialects.nest import LayerOp
from cnncc.mapper.blocks import Room
from cnncc.mapper.layer_schedule import LayerPlan
from cnncc.mapper.program_schedule import Part
from cnncc.passes._ahead import layers_ahead
from cnncc.passes._less_room import come_first
from cnncc.passes._nest_layers import goal_of, label_of, layer_shape
from cnncc.passes._os_plan import glb_words
from cnncc.passes._residency import Network
from cnncc.passes.nest_schedule_os import Choice

Moving = Mapping[LayerOp, frozenset[str]]  # the operands of each layer that move through the GLB


def moving(func: FuncOp) -> Moving:
    """By the mappings of a network's layers."""
    network = Network(func)
    return {
        layer: frozenset(
            stage.operand
            for stage in mapping_in(layer).stages
            if stage.memory == "glb" and stage.operand in network.operands(layer)
        )
        for layer in network.layers
    }


def rooms(func: FuncOp, arch: Arch, moves: Moving) -> dict[LayerOp, Room]:
    """What each layer of a network has for its buffers in the GLB beside the values that do not move."""
    network = Network(func)
    outside = {network.operands(layer)[operand] for layer, some in moves.items() for operand in some}
    resident = [value for value in network.values if value.root not in outside]
    found: dict[LayerOp, Room] = {}
    for layer in network.layers:
        number = network.number[layer]
        words = arch.glb.words - sum(each.words for each in resident if each.first <= number <= each.last)
        found[layer] = Room(words, moves[layer], layer.residual is not None)
    return found


def mapping_in(layer: LayerOp) -> nest.Mapping:
    """What is chosen for a layer, or what its nest is."""
    return goal_of(layer) or nest.mapping_of(layer)


@dataclass(frozen=True)
class MappedNetwork:
    """The layers of a module, and `parts` of its program.

    choice: how they are mapped, to this array or another one; None where they were mapped before.
    """

    func: FuncOp
    arch: Arch
    parts: Sequence[Part]
    choice: Callable[[Arch], Choice] | None

    def layer(self, label: str) -> LayerOp:
        """The one of this label."""
        return next(op for op in self.func.walk() if isinstance(op, LayerOp) and label_of(op) == label)

    def room(self, label: str) -> Room:
        """What a layer has for its buffers."""
        return rooms(self.func, self.arch, moving(self.func))[self.layer(label)]

    def taken(self, label: str) -> Room:
        """The same; or what the layer's mapping takes of it, where it was chosen for less: others are quicker then."""
        layer, room = self.layer(label), self.room(label)
        mapping, choice = mapping_in(layer), self.choice and self.choice(self.arch)
        if not choice or not choice.free(layer) or choice(layer, room) == mapping:
            return room
        return replace(room, words=glb_words(layer_shape(layer), self.arch, mapping))

    def with_mapping(self, label: str, mapping: nest.Mapping, arch: Arch) -> list[Part]:
        """The program on an array with another mapping of a layer: the others keep theirs; what comes ahead does so
        where there is room for it then.
        """
        layers = [op for op in self.func.walk() if isinstance(op, LayerOp)]
        mappings = {op: mapping if label_of(op) == label else mapping_in(op) for op in layers}
        ahead = {label_of(op) for op in layers_ahead(self.func, arch, mappings)}
        by_label = {label_of(op): each for op, each in mappings.items()}

        def plan(part: LayerPlan) -> LayerPlan:
            own = by_label[part.label]
            first = frozenset(come_first(own)) if part.label in ahead else frozenset[str]()
            return replace(part, mapping=own, ahead=first)

        return [plan(part) if isinstance(part, LayerPlan) else part for part in self.parts]
