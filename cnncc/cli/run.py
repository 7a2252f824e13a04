"""`cnncc run`."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from cnncc.cli.options import FILE, output_option
from cnncc.util.progress import progress_line
from cnncc.util.terminal import NAME, Column, fitted, table


@click.command("run")
@click.argument("binary", type=FILE)
@click.option("--input", "inputs", type=FILE, help="Inputs (.npz by tensor name); default: random.")
@output_option("Write the outputs there (.npz by tensor name).")
@click.option("--stats", type=FILE, help="Write all counters there, as JSON.")
def command(binary: Path, inputs: Path | None, output: Path | None, stats: Path | None) -> None:
    """Run BINARY.cnb from its instructions alone, counting cycles and words.

    \b
    cnncc run lenet.cnb --input images.npz --output logits.npz --stats counters.json
    """
    from cnncc.binary.container import load
    from cnncc.binary.counters import program_stats
    from cnncc.binary.run import count_images, inputs_of, random_inputs, run
    from cnncc.util.files import check_writable, write_atomically
    from cnncc.util.npz import npz_bytes, read_npz

    gc.freeze()  # the modules just imported: going through them again and again took a fifth of the run (2026-11)
    check_writable(output, stats)
    loaded = load(binary)
    names = [tensor.name for tensor in inputs_of(loaded)]
    data = random_inputs(loaded) if inputs is None else read_npz(inputs, names)
    images = count_images(loaded, data)
    with progress_line() as progress:
        progress("counting cycles and words")
        counters = program_stats(loaded, causes=stats is not None)
        results = run(loaded, data, progress)
    if output is not None:
        write_atomically(output, npz_bytes(results))
    if stats is not None:
        write_atomically(stats, (json.dumps(counters, indent=1) + "\n").encode())
    if inputs is None:
        click.echo("cnncc: no --input: ran one image of seeded random numbers", err=True)
    batch = max((tensor.shape[0] for tensor in inputs_of(loaded) if tensor.shape), default=1)
    array = f"{loaded.arch.name} ({loaded.arch.rows} x {loaded.arch.cols} PEs)"
    click.echo(f"{binary.name}: {images * batch} image(s) through {array}")
    click.echo(fitted(stats_text(counters, batch)))
    for name, values in results.items():
        click.echo(f"output {name} {list(values.shape)}" + (f" -> {output}" if output else ""))


def stats_text(counters: Mapping[str, Any], batch: int = 1) -> Iterator[str]:
    """A table of the layers and the totals, of a program that takes `batch` images at a time."""
    layers = {label: layer for label, layer in counters["layers"].items() if layer["cycles"]["total"]}
    rows = [
        [
            label,
            f"{layer['cycles']['total']:,}",
            f"{layer['cycles']['compute']:,}",
            f"{layer['macs']:,}",
            f"{100 * layer['utilisation']['total']:.1f} %",
        ]
        for label, layer in [*layers.items(), ("total", counters)]
    ]
    yield from table([Column("layer", NAME), "cycles", "compute", "MACs", "utilisation"], rows)
    each = "image" if batch == 1 else f"batch of {batch} images"
    yield f"  cycles and MACs are per {each}"
