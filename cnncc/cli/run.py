"""`cnncc run`."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import click

from cnncc.cli.options import FILE, output_option
from cnncc.errors import Refusal, plural
from cnncc.util.progress import progress_line
from cnncc.util.terminal import fitted


@click.command("run")
@click.argument("binary", type=FILE)
@click.option("--input", "inputs", type=FILE, help="Inputs (.npz by tensor name); default: random.")
@output_option("Write the outputs there (.npz by tensor name).")
@click.option(
    "--frames", type=click.IntRange(1, 65535), metavar="N", help="With a program over frames: run N images in flight."
)
@click.option("--timeline", type=FILE, help="Write when each instruction runs there, as a JSON trace.")
@click.option("--layer", "labels", multiple=True, help="A layer of the timeline (repeat it for more); default: all.")
@click.option("--stats", type=FILE, help="Write all counters there, as JSON.")
def command(
    binary: Path,
    inputs: Path | None,
    output: Path | None,
    frames: int | None,
    timeline: Path | None,
    labels: tuple[str, ...],
    stats: Path | None,
) -> None:
    """Run BINARY.cnb from its instructions alone, counting cycles and words.

    \b
    cnncc run lenet.cnb --input images.npz --output logits.npz --stats counters.json
    """
    from cnncc.binary.container import load
    from cnncc.binary.counters import program_stats, program_timeline
    from cnncc.binary.counters_text import counters_text
    from cnncc.binary.run import count_images, first_images, inputs_of, random_inputs, run
    from cnncc.machine.cores.programs import has_frames
    from cnncc.util.files import check_writable, write_atomically
    from cnncc.util.npz import npz_bytes, read_npz

    if labels and timeline is None:
        raise click.UsageError("--layer is for --timeline: without it nothing is written about single layers")
    gc.freeze()  # the modules just imported: going through them again and again took a fifth of the run (2026-11)
    check_writable(output, stats, timeline, inputs=(binary, inputs))
    loaded = load(binary)
    names = [tensor.name for tensor in inputs_of(loaded)]
    over_frames = has_frames(loaded.instructions)
    if frames is not None and not over_frames:
        raise Refusal(f"{binary}: the program takes image by image, no frames in flight: leave out --frames")
    data = random_inputs(loaded, images=frames or 1) if inputs is None else read_npz(inputs, names)
    data = data if frames is None else first_images(loaded, data, frames)
    images = count_images(loaded, data)
    with progress_line() as progress:
        progress("counting cycles and words")
        counters = program_stats(loaded, causes=stats is not None or over_frames, frames=images if over_frames else 1)
        trace = program_timeline(loaded, images if over_frames else 1, labels) if timeline else None
        results = run(loaded, data, progress)
    if output is not None:
        write_atomically(output, npz_bytes(results))
    if stats is not None:
        write_atomically(stats, (json.dumps(counters, indent=1) + "\n").encode())
    if timeline is not None:
        write_atomically(timeline, (json.dumps(trace) + "\n").encode())
    if inputs is None:
        what = "one image" if images == 1 else f"{images} images"
        click.echo(f"cnncc: no --input: ran {what} of seeded random numbers", err=True)
    batch = max((tensor.shape[0] for tensor in inputs_of(loaded) if tensor.shape), default=1)
    array = f"{loaded.arch.name} ({loaded.arch.rows} x {loaded.arch.cols} PEs)"
    click.echo(f"{binary.name}: {plural(images * batch, 'image')} through {array}")
    click.echo(fitted(counters_text(counters, batch, loaded.arch.clock_mhz)))
    for name, values in results.items():
        click.echo(f"output {name} {list(values.shape)}" + (f" -> {output}" if output else ""))
