"""Where an estimate starts: at a model, at IR that was dumped on the way, or at a binary; never at instructions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cnncc.arch.model import Arch, arch_text
from cnncc.errors import Refusal
from cnncc.mapper.energy import with_energy
from cnncc.mapper.layer_schedule import LayerPlan
from cnncc.mapper.plans import from_json
from cnncc.mapper.program_counts import program_counts
from cnncc.mapper.program_schedule import Part
from cnncc.pipeline import ARCH, SCHEDULE, Compilation
from cnncc.planned import mapped_parts
from cnncc.starts import start_before_programs


@dataclass(frozen=True)
class Program:
    """A network on an array, mapped.

    on: the parts on another array, mapped anew where the source was not mapped yet. Raises Refusal.
    """

    source: str
    arch: Arch
    parts: Sequence[Part]
    on: Callable[[Arch], Sequence[Part]]

    def layers(self) -> dict[str, LayerPlan]:
        """The layers by label, in order."""
        return {part.label: part for part in self.parts if isinstance(part, LayerPlan)}

    def counters(self, arch: Arch | None = None, parts: Sequence[Part] | None = None) -> dict[str, Any]:
        """What `run --stats` would count; of other parts, or on another array."""
        array = arch or self.arch
        return with_energy(program_counts(parts or self.parts, array), array.energy)


def of_binary(path: Path) -> Program:
    """The program of a binary, from the plan in its metadata alone. Raises Refusal where there is none."""
    from cnncc.machine.container import load

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
    return Program(path.name, binary.arch, parts, lambda _: parts)


def of_model(
    source: Path, arch: str, precision: str | None, calibrate: Path | None, batch: int | None, schedule: Path | None,
    dataflow: str | None,
) -> tuple[Program, list[str]]:  # fmt: skip
    """The program of an ONNX file or of dumped IR, and warnings. Raises Refusal as `compile` does."""
    compilation, todo = start_before_programs(source, arch, precision, calibrate, batch, schedule, dataflow)
    names = [step.name for step in todo]
    for step in todo[: names.index(SCHEDULE) if SCHEDULE in names else 0]:
        compilation.step(step)
    ctx, settings, module = compilation.ctx, compilation.settings, compilation.module.clone()

    def on(other: Arch) -> Sequence[Part]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "array.toml"
            file.write_text(arch_text(other))
            again = module.clone()
            again.attributes.pop(ARCH, None)  # what is not mapped yet belongs to none, whatever its level says
            return mapped_parts(Compilation(ctx, again, replace(settings, arch=other, arch_source=str(file))))

    return Program(source.name, settings.arch, mapped_parts(compilation), on), compilation.warnings
