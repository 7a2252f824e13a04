"""`cnncc check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cnncc.cli.options import FILE, compile_options, json_option, parallel_options
from cnncc.util.progress import progress_line
from cnncc.util.terminal import fitted

if TYPE_CHECKING:
    from cnncc.driver.sources import CompileOptions


@click.command("check")
@click.argument("model", type=FILE)
@json_option("the findings")
@compile_options
@parallel_options
def command(model: Path, options: CompileOptions, as_json: bool) -> None:
    """Say all that is wrong with MODEL.onnx, what costs time or accuracy, and what was folded; writes nothing.

    \b
    cnncc check net.onnx --arch mine.toml
    cnncc check net.onnx --arch tcpa-4x4 --parallel layers

    Exit code 1 if anything stops `compile`.
    """
    from cnncc.driver import check

    with progress_line() as progress:
        findings = check.check(model, options, progress)
    text = json.dumps(check.as_json(findings, model, str(options.arch)), indent=1) if as_json else ""
    click.echo(text or fitted(check.as_text(findings, model)))
    if check.count(findings)["blocking"]:
        raise SystemExit(1)
