"""Where an estimate starts: at a model, at IR that was dumped on the way, or at a binary; never at instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from xdsl.dialects.func import FuncOp

from cnncc.arch.model import Arch
from cnncc.driver.pipeline import ASSIGN, Compilation
from cnncc.driver.program_parts import mapped_parts
from cnncc.driver.sources import CompileOptions, start_before_programs
from cnncc.errors import Refusal
from cnncc.estimate.mapped_network import MappedNetwork
from cnncc.model.energy import with_energy
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.plan_json import from_json
from cnncc.model.program_counts import program_counts
from cnncc.model.program_schedule import Part, with_drains
from cnncc.passes.nest_assign_mapping import NestAssignMappingPass
from cnncc.util.progress import Progress, silent


@dataclass(frozen=True)
class Program:
    """A network on an array, mapped. network: the layers behind `parts`; None where there is only a binary."""

    source: str
    arch: Arch
    parts: Sequence[Part]
    network: MappedNetwork | None

    def layers(self) -> dict[str, LayerPlan]:
        """The layers by label, in order."""
        return {part.label: part for part in with_drains(self.parts) if isinstance(part, LayerPlan)}

    def counters(self, arch: Arch | None = None) -> dict[str, Any]:
        """What `run --stats` would count; or on another array, with the same mappings."""
        array = arch or self.arch
        return with_energy(program_counts(self.parts, array), array.energy)


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
        parts = from_json(binary.metadata["plan"])
    except Refusal as refusal:
        raise Refusal(f"{path}: manifest.json: {refusal}") from refusal
    return Program(path.name, binary.arch, parts, None)


def of_model(source: Path, options: CompileOptions, progress: Progress = silent) -> tuple[Program, Compilation]:
    """The program of an ONNX file or of dumped IR, and its compilation. Raises Refusal as `compile` does."""
    compilation, todo = start_before_programs(source, options)
    compilation.ctx.progress = progress
    names = [step.name for step in todo]
    mapped = ASSIGN not in names
    for step in todo[: 0 if mapped else names.index(ASSIGN) + 1]:
        compilation.step(step)
    func = next(op for op in compilation.module.clone().ops if isinstance(op, FuncOp))
    parts, array = mapped_parts(compilation), compilation.settings.arch
    given, ctx = compilation.settings, compilation.ctx
    mapper = NestAssignMappingPass(given.arch_source, given.schedule, given.dataflow)
    candidates = None if mapped else partial(mapper.candidates, ctx)
    return Program(source.name, array, parts, MappedNetwork(func, array, parts, candidates)), compilation
