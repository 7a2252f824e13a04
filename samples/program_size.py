"""How small programs are: their bytes against the atomic operations that they unfold to.

    python samples/program_size.py lenet.cnb resnet20.cnb

An atomic operation is one cycle of one PE: a multiply-accumulate, a maximum or a sum; a word loaded into a register
file; a word taken from the east neighbour. All are counted in the binary's program words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path

import click

from cnncc.binary.container import Binary, load
from cnncc.errors import Refusal
from cnncc.isa.table import Instruction
from cnncc.machine.program import LoopNode, Node, build_tree
from cnncc.util.terminal import NAME, Column, fitted, table

COLUMNS = ("program bytes", "instructions", "MACs, max, add", "loads", "n2n", "operations a byte")


def atomic(inst: Instruction) -> dict[str, int]:
    """The atomic operations of one instruction, each time that it runs."""

    def product(*names: str) -> int:
        return prod(inst.number(name) for name in names)

    if inst.spec.name == "load":
        words = product("extent0", "extent1", "extent2", "extent3")
        cols = last_columns(inst) if inst.number("edge") else inst.number("cols")
        return {"loads": words * inst.number("rows") * cols}
    if inst.spec.name == "mac":
        neighbours = inst.number("cols") - last_columns(inst)
        steps = product("rows", "cols", "pixels", "taps", "step_range", "lanes")
        return {"MACs, max, add": steps, "n2n": product("rows", "data_reuse") * neighbours}
    return {}


def last_columns(inst: Instruction) -> int:
    """How many columns are the last one of their set."""
    return -(-inst.number("cols") // inst.number("set_cols"))


def unfolded(nodes: Sequence[Node]) -> Counter[str]:
    """The atomic operations of a program, all iterations counted."""
    operations: Counter[str] = Counter()
    for node in nodes:
        inner = unfolded(node.body) if isinstance(node, LoopNode) else atomic(node.instruction)
        for kind, count in inner.items():
            operations[kind] += count * (node.count if isinstance(node, LoopNode) else 1)
    return operations


def row(binary: Binary) -> list[str]:
    """One line of the table."""
    operations, program_bytes = unfolded(build_tree(binary.instructions)), binary.program.nbytes
    numbers = [
        program_bytes,
        len(binary.instructions),
        *(operations[kind] for kind in ("MACs, max, add", "loads", "n2n")),
    ]
    return [*(f"{number:,}" for number in numbers), f"{operations.total() / program_bytes:,.1f}"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("binaries", nargs=-1, required=True, type=click.Path(path_type=Path))
def main(binaries: tuple[Path, ...]) -> None:
    """Print a table of the programs of BINARIES (.cnb).

    \b
    python samples/program_size.py lenet.cnb resnet20.cnb
    """
    try:
        rows = [(path.stem, *row(load(path))) for path in binaries]
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    click.echo(fitted(table([Column("binary", NAME), *COLUMNS], rows, indent=0)))


if __name__ == "__main__":
    main()
