"""`cnncc arch`."""

from __future__ import annotations

from pathlib import Path

import click

from cnncc.util.terminal import NAME, Column, fitted, table


@click.group("arch")
def command() -> None:
    """List the arrays that come with cnncc, or print one: a start for a file of your own.

    \b
    cnncc arch list
    """


@command.command("list")
def list_presets() -> None:
    """List the presets.

    \b
    cnncc arch list
    """
    from cnncc.arch.model import load_arch, preset_names

    arrays = sorted(map(load_arch, preset_names()), key=lambda arch: (arch.rows, arch.name))
    rows = [(a.name, f"{a.rows} x {a.cols}", str(a.operand_bits), f"{a.glb.words:,}") for a in arrays]
    click.echo(fitted(table([Column("preset", NAME), "PEs", "operand bits", "GLB words"], rows, indent=0)))


@command.command("show")
@click.argument("name", metavar="NAME|FILE")
@click.option("--all", "all_keys", is_flag=True, help="Print all keys: of those that are left out, the defaults.")
def show(name: str, all_keys: bool) -> None:
    """Print the file of a preset; or check FILE, and print it.

    \b
    cnncc arch show spatial-8x8 > mine.toml
    cnncc arch show cbrain-8-24 > mine.toml
    cnncc arch show mine.toml --all
    """
    from cnncc.arch.model import PRESETS, arch_text, is_cbrain, load_arch, preset_names

    arch = load_arch(name)
    path = PRESETS / f"{name}.toml" if name in preset_names() else Path(name)
    made = all_keys or is_cbrain(name)
    click.echo(arch_text(arch, all_keys=all_keys) if made else path.read_text(), nl=False)
