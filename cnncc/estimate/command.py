"""What `cnncc estimate` does and prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click

from cnncc.errors import Refusal
from cnncc.estimate import certificate, explain, table
from cnncc.estimate.program import of_binary, of_model
from cnncc.files import check_writable, write_atomically


def estimate_command(
    source: Path, explained: str | None, as_json: bool, certified: Path | None, progress: Callable[[str], None],
    given: Collection[str], **options: Any,
) -> None:  # fmt: skip
    """`cnncc estimate`. options: those that `compile` has, too; given: the names of those that were given."""
    check_writable(certified)
    if source.suffix == ".cnb":
        if given:
            raise click.UsageError(f"--{min(given)} has no effect: a binary is mapped, to an array of its own")
        if certified:
            raise click.UsageError("--certificate is of a model: a binary is mapped")
        program, warnings = of_binary(source), list[str]()
    else:
        program, warnings = of_model(source, progress=progress, **options)
    if explained is not None and explained not in (labels := list(program.layers())):
        raise Refusal(f"there is no layer '{explained}'; layers: {', '.join(labels) or 'none'}")
    estimate = table.as_json(program)
    if explained is not None:
        estimate["explain"] = explain.explained(program, explained, progress)
    if certified:
        proof = json.dumps(certificate.certificate(source, progress, **options), indent=1)
        write_atomically(certified, f"{proof}\n".encode())
    if as_json:
        text = json.dumps(estimate, indent=1)
    elif explained is not None:
        text = "\n".join(explain.as_text(estimate, program.layers()[explained]))
    else:
        text = "\n".join(table.as_text(estimate, program))
    progress("")
    for warning in warnings:
        click.echo(f"cnncc: warning: {warning}", err=True)
    click.echo(text)


def check_command(source: Path, file: Path, progress: Callable[[str], None], **options: Any) -> None:
    """`cnncc estimate --check-certificate`. Raises Refusal for what is not as the certificate says."""
    lines = list(certificate.check(source, file, progress, **options))
    progress("")
    click.echo(f"{file.name}: all of its {len(lines)} layers are as it says")
    for line in lines:
        click.echo(line)
