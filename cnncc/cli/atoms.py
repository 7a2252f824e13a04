"""`cnncc atoms`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cnncc.cli.options import FILE, Pair, compile_options, print_remarks
from cnncc.util.progress import progress_line
from cnncc.util.terminal import fitted

if TYPE_CHECKING:
    from cnncc.driver.sources import CompileOptions


@click.command("atoms")
@click.argument("source", type=FILE)
@click.option("--layer", help="A layer's label; default: the first. Layers of a group have one program.")
@click.option("--pe", type=Pair("row,col", ","), default=(0, 0), help="The PE; default: 0,0.")
@click.option("--macros", type=Pair("from:to", ":"), default=(0, 1), help="Its macro-instructions; default: 0:1.")
@compile_options
def command(
    source: Path, options: CompileOptions, layer: str | None, pe: tuple[int, int], macros: tuple[int, int]
) -> None:
    """Print what one PE does cycle by cycle: its multiply-accumulates, what it sends west and receives from the east.

    SOURCE is a model, or IR that was dumped before nest-to-array.

    \b
    cnncc atoms net.onnx --arch seed-4x4 --layer conv1 --pe 0,1 --macros 0:2
    """
    from cnncc.dialects.nest import GroupOp, label_of
    from cnncc.driver.sources import check_in_turn, start_before_programs
    from cnncc.eval.atomic import atomic_schedule, programs
    from cnncc.eval.atomic_text import schedule_text
    from cnncc.mapping.strips import is_meant

    first, end = macros
    if first >= end:
        raise click.UsageError(f"--macros {first}:{end}: the first number is below the second")
    compilation, steps = start_before_programs(source, options)
    check_in_turn(compilation, "atoms")
    with progress_line() as progress:
        compilation.ctx.progress = progress
        *before, to_programs = steps
        for step in before:
            compilation.step(step)
        groups = [
            (name, group.label.data)
            for group in compilation.module.walk()
            if isinstance(group, GroupOp)
            for name in (group.label.data, *map(label_of, group.members()))
        ]
        compilation.step(to_programs)
    module, store, arch = compilation.module, compilation.ctx.weights, compilation.settings.arch
    label = layer or next(iter(programs(module)), "")
    label = next((group for name, group in groups if is_meant(name, label)), label)
    reuses = atomic_schedule(module, store, arch, label, pe, range(first, end))
    print_remarks(compilation, values=False)
    if not reuses:
        click.echo(f"{label}: PE {pe[0]},{pe[1]} has no part in macro-instructions {first} to {end - 1}")
        return
    click.echo(fitted(schedule_text(label, pe, reuses)))
