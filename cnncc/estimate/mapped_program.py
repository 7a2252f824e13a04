"""Where an estimate starts: at a model, at IR that was dumped on the way, or at a binary; never at instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from cnncc.arch.model import Arch
from cnncc.dialects.nest import LayerOp
from cnncc.driver.array_share import ArrayShare, host_text, hosted_by
from cnncc.driver.ir_files import dump_file
from cnncc.driver.pipeline import ASSIGN, Compilation, beside_cores, mark_host_operators
from cnncc.driver.program_parts import mapped_parts
from cnncc.driver.sources import CompileOptions, start_before_programs
from cnncc.errors import Refusal, one_line
from cnncc.estimate.mapped_network import MappedNetwork
from cnncc.mapping.mapping import Mapping
from cnncc.model.cores_counts import all_counts
from cnncc.model.cores_plan import CoresPlan
from cnncc.model.energy import with_energy
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.plan_json import program_from_json
from cnncc.model.program_schedule import Part, with_drains
from cnncc.passes._scheduling.decision import Decision
from cnncc.passes._scheduling.group_choice import GroupChoice
from cnncc.passes._scheduling.group_report import GroupReport, group_report
from cnncc.passes._scheduling.layer_groups import LayerGroup
from cnncc.passes.nest_assign_mapping import NestAssignMappingPass
from cnncc.util.progress import Progress, silent


@dataclass(frozen=True)
class Program:
    """A network on an array, mapped.

    - network: the layers behind `parts`; None where there is only a binary
    - chosen: what is known of groups that were chosen for it
    - hosted: what the host computes, and why
    """

    source: str
    arch: Arch
    parts: Sequence[Part]
    network: MappedNetwork | None
    chosen: GroupReport | None = None
    hosted: Sequence[str] = ()

    def layers(self) -> dict[str, LayerPlan]:
        """The layers by label, in order."""
        return {part.label: part for part in with_drains(self.parts) if isinstance(part, LayerPlan)}

    def groups(self) -> dict[str, GroupPlan]:
        """The groups by label, in order."""
        return {part.label: part for part in with_drains(self.parts) if isinstance(part, GroupPlan)}

    @property
    def cores(self) -> CoresPlan | None:
        """The layers side by side; None where there are none."""
        return next((part for part in self.parts if isinstance(part, CoresPlan)), None)

    @property
    def host(self) -> list[str]:
        """What the host computes, and why: a line for each segment."""
        return [one_line(reason) for reason in self.hosted]

    def not_counted(self) -> Iterator[str]:
        """What the host does, of which no figure says anything."""
        yield from (f"on the host, not in these figures: {what}" for what in host_text(self.hosted))

    def counters(self, arch: Arch | None = None, frames: int = 1) -> dict[str, Any]:
        """What `run --stats` would count, of so many frames; or on another array, with the same mappings."""
        array = arch or self.arch
        return with_energy(all_counts(self.parts, array, frames=frames), array.energy)


def of_binary(path: Path) -> Program:
    """The program of a binary, from the plan in its metadata alone. Raises Refusal where there is none."""
    from cnncc.binary.container import load

    binary = load(path)
    if "plan" not in binary.metadata:
        raise Refusal(
            f"{path}: its metadata has no plan, the layers with their mappings: it was compiled from IR below the "
            f"nest level, or edited; estimate the model, or IR from before nest-to-array"
        )
    try:
        parts = program_from_json(binary.metadata["plan"])
    except Refusal as refusal:
        raise Refusal(f"{path}: manifest.json: {refusal}") from refusal
    host = binary.metadata.get("host")
    hosted = tuple(map(str, cast("list[object]", host))) if isinstance(host, list) else ()
    return Program(path.name, binary.arch, parts, None, hosted=hosted)


def of_model(source: Path, options: CompileOptions, progress: Progress = silent) -> tuple[Program, Compilation]:
    """The program of an ONNX file or of dumped IR, and its compilation. Raises Refusal as `compile` does."""
    compilation = start_before_programs(source, options, progress)
    return _program(source, compilation), compilation


def _program(source: Path, compilation: Compilation) -> Program:
    # All levels are run through to their ends. A step with a defect gets its name when the model is compiled.
    compilation.verify_each = compilation.edited is not None
    if compilation.settings.parallel:
        share = ArrayShare()
        parts = mapped_parts(compilation, [share])
        return Program(source.name, compilation.settings.arch, parts, None, hosted=share.hosted)
    unmapped = compilation.awaits(ASSIGN)
    choice = map_layers(compilation)
    # The steps that `mapped_parts` runs take the layers apart, so the network is a copy.
    func, groups, alone = _cloned(compilation.module, choice)
    report = group_report(choice) if choice else None
    parts, array = mapped_parts(compilation), compilation.settings.arch
    given, ctx = compilation.settings, compilation.ctx
    mapper = NestAssignMappingPass(
        given.arch_source, given.schedule, given.dataflow, objective=given.objective.name, slack=given.objective.slack
    )
    candidates = partial(mapper.candidates, ctx) if unmapped else None
    network = MappedNetwork(func, array, parts, candidates, groups, alone)
    return Program(source.name, array, parts, network, report, hosted_by(func))


def on_one_core(source: Path, options: CompileOptions, progress: Progress) -> Program | Refusal | None:
    """The program of an ONNX file with layers one after the other, or why there is none.

    The host computes what it does beside cores, so that both have the same layers. A schedule with cores has nothing
    else (`read_schedule`), so it is left out. IR gives None: its layers may be on cores already.
    """
    if dump_file(source).suffix == ".mlir":
        return None
    try:
        in_turn = replace(options, parallel=None, fps=None, schedule=None)
        compilation = start_before_programs(source, in_turn, progress)
        mark_host_operators(compilation.module, beside_cores(compilation.settings.arch))
        return _program(source, compilation)
    except Refusal as refusal:
        return refusal


def _cloned(module: ModuleOp, choice: GroupChoice | None) -> tuple[FuncOp, list[LayerGroup], dict[LayerOp, Mapping]]:
    """A copy of the network, the groups of its layers, and the mappings that these would have without groups."""
    func, copy = (next(op for op in each.ops if isinstance(op, FuncOp)) for each in (module, module.clone()))
    layers = [[op for op in each.walk() if isinstance(op, LayerOp)] for each in (func, copy)]
    cloned = dict(zip(*layers, strict=True))
    if choice is None:
        return copy, [], {}
    groups, alone = choice.groups, choice.one_by_one.mappings
    own = [replace(group, layers=tuple(map(cloned.__getitem__, group.layers))) for group in groups]
    return copy, own, {cloned[layer]: alone[layer] for group in groups for layer in group.layers}


def map_layers(compilation: Compilation) -> GroupChoice | None:
    """Run the steps up to `nest-assign-mapping`, if it is to come. Returns the choice of groups, if there was one."""
    decisions = list[Decision]()
    compilation.ctx.decided = decisions.append
    if compilation.awaits(ASSIGN):
        compilation.run_through(ASSIGN)
    return decisions[-1].choice if decisions else None
