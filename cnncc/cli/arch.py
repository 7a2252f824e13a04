"""`cnncc arch`."""

from __future__ import annotations

from pathlib import Path

import click


@click.group("arch")
def command() -> None:
    """The arrays that come with cnncc; any of them is a start for a file of one's own."""


@command.command("list")
def list_presets() -> None:
    """List the presets."""
    from cnncc.arch.model import load_arch, preset_names

    for name in sorted(preset_names(), key=lambda n: (load_arch(n).rows, n)):
        a = load_arch(name)
        click.echo(f"{name:<16} {a.rows} x {a.cols} PEs, {a.operand_bits}-bit operands, GLB {a.glb.words:,} words")


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Print an array's file.

    \b
    cnncc arch show spatial-8x8 > mine.toml
    """
    from cnncc.arch.model import PRESETS, load_arch, preset_names

    load_arch(name)
    path = PRESETS / f"{name}.toml" if name in preset_names() else Path(name)
    click.echo(path.read_text(), nl=False)
