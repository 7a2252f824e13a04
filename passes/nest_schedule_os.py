"""Chooses an output-stationary mapping for every layer."""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from cnncc.arch.model import Arch, load_arch
from cnncc.dialects.nest import LayerOp, Mapping, MappingAttr, operands
from cnncc.errors import Finding, Refusal, Refusals, hint, one_line
from cnncc.passes._labels import tidy
from cnncc.passes._nest_layers import chosen_layers, label_of, layer_shape
from cnncc.passes._os_given import given_mapping, violations
from cnncc.passes._os_plan import NoRoom, Room
from cnncc.passes._os_search import copy_mapping, os_mapping
from cnncc.passes._os_written import written_mapping, written_violations
from cnncc.passes._residency import choose_mappings
from cnncc.passes._schedule_file import Given, Written, read_schedule

Schedule = Map[str, Given | Written]  # by the labels of layers
OPERATORS = ("Conv", "Gemm", "MatMul")  # of the ONNX nodes that have weights


@dataclass(frozen=True)
class NestScheduleOsPass(ModulePass):
    """Writes the output-stationary mapping for `arch` (a preset or a TOML file) that takes the array the fewest cycles.

        nest.layer "mac" … then <…> { … }   ->   nest.layer "mac" … then <…> mapping "h':4 > [h''||@rows …" { … }

    Sums stay in their PE, so that partial sums never travel. `nest-tile`, `nest-permute`, `nest-unroll` and
    `nest-stage` then bring the nest into that form. Elementwise layers ("copy") stream past the array and get no
    mapping.
    Of a grouped convolution one group is mapped, in a loop over them, unless a group is a single output channel: those
    are channelwise, as pools are.

    Layers that the file `schedule` names get the mapping that it gives (docs/schedule.md), or all that is wrong with it
    is refused.
    """

    name = "nest-schedule-os"

    arch: str
    layer: str | None = None
    schedule: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        choose(op, load_arch(self.arch), self.layer, read_schedule(self.schedule) if self.schedule else {})


def choose(module: ModuleOp, arch: Arch, label: str | None, schedule: Schedule) -> None:
    """Write a mapping on every layer, or on the one called `label`, which then has the whole GLB for its buffers.

    Raises Refusal for all in the schedule that is not legal, or for all layers that do not fit.
    """
    _check(chosen_layers(module, None) if schedule else (), arch, schedule)

    def mapping(layer: LayerOp, room: Room) -> Mapping | None:
        return chosen_mapping(layer, arch, room, schedule.get(_label(layer) or ""))

    func = next((f for f in module.ops if isinstance(f, FuncOp)), None)
    if func is not None and label is None:
        chosen = choose_mappings(func, arch, mapping)
    else:
        refusals, chosen = Refusals(), dict[LayerOp, Mapping | None]()
        for layer in chosen_layers(module, label):
            with refusals.kept(label_of(layer)):
                chosen[layer] = mapping(layer, Room(arch.glb.words))
        refusals.raise_any(NestScheduleOsPass.name)
    for layer, found in chosen.items():
        layer.mapping = MappingAttr(found) if found else None


def _check(layers: Sequence[LayerOp], arch: Arch, schedule: Schedule) -> None:
    """Raises Refusal with every layer that there is not, and every number that breaks a limit."""
    refusals = Refusals()
    for label, given in schedule.items():
        name, found = one_line(label, 80), list[Finding]()
        if label not in map(_label, layers):
            found.append(Finding("there is no such layer on the array", help=_which(label, layers)))
        for layer in (layer for layer in layers if _label(layer) == label):
            found += _violations(layer, arch, given)
        for finding in found:
            says = f"{finding.numbers}: {finding.text}" if finding.resource else finding.text
            message = f"{NestScheduleOsPass.name}: layer '{name}': {says}"
            refusals.add(Refusal(message, replace(finding, where=name)))
    refusals.raise_any(f"{NestScheduleOsPass.name}: the schedule")


def _violations(layer: LayerOp, arch: Arch, given: Given | Written) -> list[Finding]:
    if isinstance(given, Written):
        return written_violations(layer_shape(layer), arch, given, operands(layer))
    return violations(layer_shape(layer), arch, given, layer.residual is not None)


def _label(layer: LayerOp) -> str | None:
    return layer.label.data if layer.label else None


def _which(name: str, layers: Sequence[LayerOp]) -> str:
    """The label of the layer that is made of the ONNX node `name`, or one that looks like it."""
    known = [label for layer in layers if (label := _label(layer)) is not None]
    of_node = [label for operator in OPERATORS if (label := tidy(name, operator)) != name and label in known]
    return f"that node's label is '{of_node[0]}'" if of_node else hint(name, known)


def chosen_mapping(layer: LayerOp, arch: Arch, room: Room, given: Given | Written | None) -> Mapping | None:
    """The mapping of `layer` that is given, else the one that takes `arch` the fewest cycles; None for its own nest.

    Raises Refusal (NoRoom).
    """
    label, shape = label_of(layer), layer_shape(layer)
    try:
        if isinstance(given, Written):
            return written_mapping(shape, arch, room, given)
        if given is not None:
            return given_mapping(shape, arch, room, given)
        own = copy_mapping if layer.kind.data == "copy" else os_mapping
        return own(shape, arch, room)
    except NoRoom as refusal:
        raise NoRoom(f"nest-schedule-os: layer '{label}': {refusal}", refusal.words) from refusal
    except Refusal as refusal:
        raise Refusal(f"nest-schedule-os: layer '{label}': {refusal}") from refusal
