"""What one PE does cycle by cycle in a layer of a model, or of a dump of its IR."""

from __future__ import annotations

from pathlib import Path

from cnncc.dialects.nest import GroupOp, label_of
from cnncc.driver.pipeline import TO_PROGRAMS, Compilation
from cnncc.driver.sources import CompileOptions, check_in_turn, start_before_programs
from cnncc.eval.atomic import Reuse, atomic_schedule, programs
from cnncc.mapping.strips import is_meant
from cnncc.util.progress import Progress


def atoms(
    source: Path, options: CompileOptions, layer: str | None, pe: tuple[int, int], macros: range, progress: Progress
) -> tuple[Compilation, str, list[Reuse]]:
    """The compilation, the label of the layer or of its group, and these macro-instructions of a PE (row, column).

    layer: None for the first one. Raises Refusal.
    """
    compilation = start_before_programs(source, options, progress)
    check_in_turn(compilation, "atoms")
    compilation.run_before(TO_PROGRAMS)
    # `nest-to-array` makes one program of a group, under the group's label: its layers are known only before.
    groups = [
        (name, group.label.data)
        for group in compilation.module.walk()
        if isinstance(group, GroupOp)
        for name in (group.label.data, *map(label_of, group.members()))
    ]
    compilation.run_through(TO_PROGRAMS)
    module, store, arch = compilation.module, compilation.ctx.weights, compilation.settings.arch
    label = layer or next(iter(programs(module)), "")
    label = next((group for name, group in groups if is_meant(name, label)), label)
    return compilation, label, atomic_schedule(module, store, arch, label, pe, macros)
