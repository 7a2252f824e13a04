"""Assigns a mapping to every layer."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from cnncc.arch.model import Arch, load_arch
from cnncc.context import CompilerContext, note, warn
from cnncc.dialects.nest import GroupOp, LayerOp, mapping_of
from cnncc.errors import Refusal, hint
from cnncc.mapping.mapping import without_single
from cnncc.mapping.notation import NotationError, read
from cnncc.passes._programs.array_mark import mark
from cnncc.passes._scheduling.assignment import assign
from cnncc.passes._scheduling.candidates import Candidates
from cnncc.passes._scheduling.dataflows import AUTO, check_dataflow
from cnncc.passes._scheduling.nest_layers import chosen_layers, label_of
from cnncc.passes._scheduling.rewrites import canonical
from cnncc.passes._scheduling.schedule_file import DataflowName, MappingText, Schedule, objective_of, read_schedule

ONE_BY_ONE = "none"  # of `groups`: layers run one after the other


@dataclass(frozen=True)
class NestAssignMappingPass(ModulePass):
    """Writes on each layer the mapping for `arch` (a preset or a TOML file) that is the best by `objective`.

    By default that is the least energy, among networks with at most (1 + `slack`) times the fewest cycles
    (docs/mapper.md, "Objectives").

        nest.layer "mac" … then <…> { … }   ->   nest.layer "mac" … then <…> mapping "h':4 > [h''||@rows …" { … }

    `nest-tile`, `nest-permute`, `nest-unroll` and `nest-stage` then bring the nest into that form. Elementwise layers
    ("copy") stream past the array and get no mapping. Of a grouped convolution one group is mapped, in a loop over
    them, unless a group is a single output channel: those are channelwise, as pools are.

    Layers that the file `schedule` names get the mapping that it gives (docs/schedule.md). The other convolutions and
    fully connected layers get that of a `dataflow` or a `mapping` in the notation, which the rules of docs/mapping.md
    complete. `auto`, the default, is the best mapping of all. `os`, `ws` and `is` are the best of that form
    (docs/mapper.md). All others, as `rs`, are texts in the notation. With `dataflow=rs arch=spatial-8x8`:

        nest.layer "mac" … { … }
        ->
        nest.layer "mac" … mapping "weight@glb > params@glb > k > c':2 > [c''||2@rows r||3@rows h||7@cols] > …" { … }

    With `groups=auto` layers run in groups, stripe by stripe, where that is better by the objective (docs/groups.md).
    Their mappings are those of stripes. The module's attribute `nest.groups` lists the groups, as options of
    `nest-group`:

        nest.groups = [{layers = ["conv1", "conv2"], rows = 2}]

    Refused is all that is wrong with a given mapping, and what the array has no PEs, links, register files or GLB for.
    With `layer` one layer is mapped, which then has the whole GLB for its buffers.

    A nest that is not that of `cnn-to-nest` gets a warning: the passes that apply the mapping do not keep its loops.
    """

    name = "nest-assign-mapping"

    arch: str
    schedule: str | None = None
    dataflow: str = AUTO
    mapping: str | None = None
    layer: str | None = None
    objective: str | None = None
    slack: float | None = None
    groups: str = ONE_BY_ONE

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        arch = load_arch(self.arch)
        if group := next((inner for inner in op.walk() if isinstance(inner, GroupOp)), None):
            why = "its layers are mapped already: nest-group is for a dump after nest-stage"
            raise Refusal(f"{self.name}: group '{group.label.data}': {why}")
        if not chosen_layers(op, self.layer):
            note(ctx, f"{self.name}: nothing to do: the module has no nest.layer")
        assign(op, self.layer, self.candidates(ctx, arch))
        if replaced := [label_of(layer) for layer in chosen_layers(op, self.layer) if _is_replaced(layer)]:
            text = "its loops are not those of cnn-to-nest, and its mapping does not keep them"
            warn(ctx, f"{self.name}: {', '.join(replaced)}: {text}: loops by hand are for a dump after nest-unroll")
        mark(op, arch)

    def candidates(self, ctx: Context, arch: Arch) -> Candidates:
        """The mappings that layers may have, on this array or another one. Raises Refusal."""
        schedule = read_schedule(self.schedule) if self.schedule else Schedule()
        objective = objective_of(self.schedule, self.objective, self.slack)
        context = ctx if isinstance(ctx, CompilerContext) else CompilerContext()
        if self.groups not in (AUTO, ONE_BY_ONE):
            raise Refusal(f"{self.name}: groups={self.groups}: {hint(self.groups, (AUTO, ONE_BY_ONE))}")
        return Candidates(self.name, arch, schedule, context, self._others(), objective, self.groups == AUTO)

    def _others(self) -> DataflowName | MappingText | None:
        try:
            check_dataflow(self.dataflow)
            if self.mapping is not None:
                read(self.mapping)
        except (NotationError, Refusal) as wrong:
            raise Refusal(f"{self.name}: {wrong}") from wrong
        if self.mapping is None:
            return None if self.dataflow == AUTO else DataflowName(self.dataflow)
        if self.dataflow != AUTO:
            raise Refusal(f"{self.name}: give either a dataflow or a mapping")
        return MappingText(self.mapping)


def _is_replaced(layer: LayerOp) -> bool:
    """Whether the nest has loops of its own, which the passes that apply the layer's mapping do not keep."""
    nest, sizes = mapping_of(layer), layer.sizes.data
    return layer.mapping is not None and without_single(nest.loops, nest.stages, sizes) != canonical(sizes)
