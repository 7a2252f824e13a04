"""`cnncc messages`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from cnncc.cli.options import FILE
from cnncc.util.terminal import fitted


@click.command("messages")
@click.argument("binary", type=FILE)
@click.option("--at", metavar="ADDRESS", help="Only the load or mac at this program word, with its data.")
@click.option("--input", "inputs", type=FILE, help="Inputs (.npz by tensor name) for --at; default: random.")
def command(binary: Path, at: str | None, inputs: Path | None) -> None:
    """Print what the row buses deliver to PEs for each load and mac of BINARY.cnb, field by field.

    \b
    cnncc messages lenet.cnb
    cnncc messages lenet.cnb --at 00c2                    runs the program up to there
    """
    from cnncc.binary.container import load
    from cnncc.binary.message_listing import at_instruction, listing
    from cnncc.binary.run import inputs_of
    from cnncc.util.npz import read_npz

    if at is None and inputs is not None:
        raise click.UsageError("--input is for --at: without it nothing is run")
    loaded = load(binary)
    if at is None:
        click.echo(fitted(listing(loaded)))
        return
    if not re.fullmatch(r"[0-9a-fA-F]{1,8}", at):
        raise click.UsageError(f"--at is an address as the disassembly prints it, such as 00c2, not '{at}'")
    data = None if inputs is None else read_npz(inputs, [tensor.name for tensor in inputs_of(loaded)])
    lines = list(at_instruction(loaded, int(at, 16), data))
    if inputs is None:
        click.echo("cnncc: no --input: ran one image of seeded random numbers", err=True)
    click.echo(fitted(lines))
