"""Chooses an output-stationary mapping for every layer."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from cnncc.arch.model import Arch, load_arch
from cnncc.dialects.nest import LayerOp, Mapping, MappingAttr
from cnncc.errors import Refusal, Refusals
from cnncc.passes._nest_layers import chosen_layers, label_of, layer_shape
from cnncc.passes._os_plan import NoRoom, Room, copy_mapping, os_mapping
from cnncc.passes._residency import choose_mappings


@dataclass(frozen=True)
class NestScheduleOsPass(ModulePass):
    """Writes the output-stationary mapping for `arch` (a preset or a TOML file) that takes the array the fewest cycles.

        nest.layer "mac" … then <…> { … }   ->   nest.layer "mac" … then <…> mapping <loops = […], stages = […]> { … }

    Sums stay in their PE, so that partial sums never travel. `nest-tile`, `nest-permute`, `nest-unroll` and
    `nest-stage` then bring the nest into that form. Elementwise layers ("copy") stream past the array and get no
    mapping.
    Of a grouped convolution one group is mapped, in a loop over them, unless a group is a single output channel: those
    are channelwise, as pools are.
    """

    name = "nest-schedule-os"

    arch: str
    layer: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        schedule(op, load_arch(self.arch), self.layer)


def schedule(module: ModuleOp, arch: Arch, label: str | None = None) -> None:
    """Write a mapping on every layer, or on the one called `label`, which then has the whole GLB for its buffers.

    Raises Refusal for all that do not fit.
    """
    func = next((f for f in module.ops if isinstance(f, FuncOp)), None)
    if func is not None and label is None:
        chosen = choose_mappings(func, arch, lambda layer, room: chosen_mapping(layer, arch, room))
    else:
        refusals, chosen = Refusals(), dict[LayerOp, Mapping | None]()
        for layer in chosen_layers(module, label):
            with refusals.kept(label_of(layer)):
                chosen[layer] = chosen_mapping(layer, arch, Room(arch.glb.words))
        refusals.raise_any(NestScheduleOsPass.name)
    for layer, mapping in chosen.items():
        layer.mapping = MappingAttr(mapping) if mapping else None


def chosen_mapping(layer: LayerOp, arch: Arch, room: Room) -> Mapping | None:
    """The mapping of `layer` that takes `arch` the fewest cycles; None for its own nest. Raises Refusal (NoRoom)."""
    try:
        choose = copy_mapping if layer.kind.data == "copy" else os_mapping
        return choose(layer_shape(layer), arch, room)
    except NoRoom as refusal:
        raise NoRoom(f"nest-schedule-os: layer '{label_of(layer)}': {refusal}", refusal.words) from refusal
    except Refusal as refusal:
        raise Refusal(f"nest-schedule-os: layer '{label_of(layer)}': {refusal}") from refusal
