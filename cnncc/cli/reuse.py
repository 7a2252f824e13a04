"""`cnncc reuse`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cnncc.cli.options import FILE, compile_options, json_option, print_remarks
from cnncc.errors import Refusal
from cnncc.util.progress import progress_line
from cnncc.util.terminal import fitted

if TYPE_CHECKING:
    from cnncc.driver.sources import CompileOptions


@click.command("reuse")
@click.argument("source", type=FILE)
@click.option("--layer", help="Only the layer, or the layers of the group, with this label.")
@json_option()
@compile_options
def command(source: Path, options: CompileOptions, layer: str | None, as_json: bool) -> None:
    """Say what each layer's operands move at each level of the array, how often words are used, and what stays where.

    By analysis of the mappings, without running anything: the words are those that `run --stats` counts. SOURCE is a
    model, or IR that was dumped before nest-to-array.

    \b
    cnncc reuse net.onnx --schedule schedule.toml --layer conv1
    """
    from cnncc.estimate import operand_reuse

    with progress_line() as progress:
        compilation, rows, report = operand_reuse.analyse(source, options, progress)
    labels = [row.label for row in rows]
    rows = [row for row in rows if layer is None or row.is_called(layer)]
    if layer is not None and not rows:
        raise Refusal(f"there is no layer '{layer}'; layers: {', '.join(labels) or 'none'}")
    if as_json:
        click.echo(json.dumps(operand_reuse.as_json(rows, source, compilation.settings.arch, report), indent=1))
    else:
        click.echo(fitted(operand_reuse.as_text(rows, report if layer is None else None)))
    print_remarks(compilation, values=False)
