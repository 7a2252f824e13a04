"""What `cnncc explore` does and prints."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from cnncc.arch.model import load_arch
from cnncc.errors import Refusal, hint
from cnncc.explore.evaluate import MEASURES
from cnncc.explore.pareto import as_csv, as_text
from cnncc.explore.run import Options, explore
from cnncc.explore.vary import read_vary
from cnncc.files import write_atomically


def explore_command(
    model: Path, vary: Sequence[str], arch: str, precision: str | None, calibrate: Path | None, batch: int | None,
    schedule: Path | None, dataflow: str | None, out: Path | None, jobs: int | None, objectives: Sequence[str],
    progress: Callable[[str], None],
) -> None:  # fmt: skip
    """`cnncc explore`."""
    objectives = list(dict.fromkeys(objectives)) or MEASURES[:3]
    if unknown := [name for name in objectives if name not in MEASURES]:
        raise Refusal(f"--objective {unknown[0]}: {hint(unknown[0], MEASURES)}")
    varied = read_vary(vary, load_arch(arch))
    out = out or Path(f"{model.stem}.explore.jsonl")
    if out.suffix != ".jsonl":
        out = out / "explore.jsonl"
    options = Options(model, arch, precision, calibrate, batch, schedule, dataflow)
    start, results = explore(options, varied, out, jobs or os.cpu_count() or 1, progress)
    progress("")
    for warning in dict.fromkeys(start.warnings):
        click.echo(f"cnncc: warning: {warning}", err=True)
    table = out.with_suffix(".csv")
    write_atomically(table, as_csv(results, objectives))
    click.echo("\n".join(as_text(results, objectives, start.settings.arch.energy.unit)))
    click.echo(f"all of them: {out}, {table}")
