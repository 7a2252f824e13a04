"""`cnncc asm`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from cnncc.cli.options import FILE, output_option
from cnncc.errors import Refusal

TEXT_LIMIT_BYTES = 1 << 28


@click.command("asm")
@click.argument("source", type=FILE)
@output_option("The binary to write.", required=True)
@click.option("--data", type=FILE, required=True, help="Binary that gives array, weights and tensors.")
def command(source: Path, output: Path, data: Path) -> None:
    """Assemble SOURCE.s into a binary with the weights and tensors of another.

    \b
    cnncc disasm lenet.cnb -o lenet.s
    cnncc asm lenet.s --data lenet.cnb -o same.cnb

    `run` computes values in program order, so that it does not notice a missing token. `verify same.cnb --prove --model
    lenet.onnx` does, with the options that lenet.cnb was compiled with.
    """
    import numpy as np

    from cnncc.binary.container import from_bytes, load, to_bytes
    from cnncc.binary.isa_module import check_names, kept_comments
    from cnncc.isa.assembly import assemble
    from cnncc.isa.codec import decode_program, encode_program
    from cnncc.util.files import check_writable, read_bytes, write_atomically

    check_writable(output, inputs=(source,))
    try:
        text = read_bytes(source, TEXT_LIMIT_BYTES, "the limit of assembly is 256 MiB").decode()
    except UnicodeDecodeError as error:
        raise Refusal(f"{source}: is no text") from error
    binary = load(data)
    try:
        instructions = assemble(text)
        program = encode_program(instructions)
        stale = set[str]() if np.array_equal(program, binary.program) else {"plan"}
        if len(instructions) != len(decode_program(binary.program)):  # what is said of them by number no longer fits
            stale |= {"layers", "comments"}
        metadata = {key: value for key, value in binary.metadata.items() if key not in stale}
        if "comments" in metadata:
            metadata["comments"] = kept_comments(binary, instructions)
        content = to_bytes(dataclasses.replace(binary, program=program, metadata=metadata))
        from_bytes(content)  # what no one could load is not written
        check_names(text, binary)
    except Refusal as refusal:
        raise Refusal(f"{source}: {refusal}") from refusal
    write_atomically(output, content)
    click.echo(f"{source} -> {output}, {program.nbytes:,} bytes of program")
    if "plan" in binary.metadata and "plan" not in metadata:
        note = f"{output} has no plan for `estimate`, as its program is not that of {data}"
        click.echo(f"cnncc: note: {note}", err=True)
