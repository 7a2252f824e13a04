"""Chooses an output-stationary mapping for every layer."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.arch.model import Arch, load_arch
from cnncc.dialects.nest import LayerOp, Mapping, MappingAttr
from cnncc.errors import Refusal
from cnncc.passes._nest_layers import chosen_layers, label_of
from cnncc.passes._os_mapping import Layer, os_mapping


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
        arch = load_arch(self.arch)
        for layer in chosen_layers(op, self.layer):
            if layer.kind.data != "copy":
                layer.mapping = MappingAttr(_mapping(layer, arch))


def _mapping(layer: LayerOp, arch: Arch) -> Mapping:
    where = f"nest-schedule-os: layer '{label_of(layer)}'"
    window, steps = layer.window.data, layer.steps.data
    params = bool(steps.bias) + bool(steps.scale)
    try:
        return os_mapping(Layer(layer.kind.data, layer.sizes.data, window, params), arch)
    except Refusal as refusal:
        raise Refusal(f"{where}: {refusal}") from refusal
