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
    from cnncc.driver.atoms import atoms
    from cnncc.eval.atomic_text import schedule_text

    first, end = macros
    if first >= end:
        raise click.UsageError(f"--macros {first}:{end}: the first number is below the second")
    with progress_line() as progress:
        compilation, label, reuses = atoms(source, options, layer, pe, range(first, end), progress)
    print_remarks(compilation, values=False)
    if not reuses:
        click.echo(f"{label}: PE {pe[0]},{pe[1]} has no part in macro-instructions {first} to {end - 1}")
        return
    click.echo(fitted(schedule_text(label, pe, reuses)))
