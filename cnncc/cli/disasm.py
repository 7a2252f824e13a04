"""`cnncc disasm`."""

from __future__ import annotations

from pathlib import Path

import click

from cnncc.cli.options import FILE, output_option, write_text


@click.command("disasm")
@click.argument("binary", type=FILE)
@output_option("Write there instead of to the terminal.")
def command(binary: Path, output: Path | None) -> None:
    """Print the program of BINARY.cnb as assembly, with the layer of each part as a comment.

    \b
    cnncc disasm lenet.cnb -o lenet.s
    """
    from cnncc.binary.container import load
    from cnncc.binary.isa_module import disassembly
    from cnncc.util.files import check_writable

    check_writable(output, inputs=(binary,))
    write_text(output, disassembly(load(binary)))
