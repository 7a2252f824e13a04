"""`cnncc explore`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cnncc.cli.options import FILE, compile_options, output_option, print_remarks
from cnncc.errors import Refusal, hint
from cnncc.util import processors
from cnncc.util.progress import progress_line
from cnncc.util.terminal import fitted

if TYPE_CHECKING:
    from cnncc.driver.sources import CompileOptions


@click.command("explore")
@click.argument("model", type=FILE)
@click.option(
    "--vary",
    multiple=True,
    required=True,
    metavar="KEY=VALUES",
    help="rows=4,8 or pe.psum_words=8:32:8 or arch=seed-8x8,my.toml …",
)
@output_option("The results: a .jsonl file or a folder; default: MODEL.explore.jsonl here.", or_folder=True)
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Processes; default: as many as processors.")
@click.option("--measure", "measures", multiple=True, metavar="NAME", help="To be minimised; several may be given.")
@click.option(
    "--energy-exponent",
    "exponent",
    type=click.FloatRange(0, 2),
    default=0.0,
    metavar="P",
    help="Energies of a memory that varies grow with its words to this power (0: they stay); 0.5 suits SRAM.",
)
@compile_options
def command(
    model: Path, vary: Sequence[str], options: CompileOptions, output: Path | None, jobs: int | None,
    measures: Sequence[str], exponent: float,
) -> None:  # fmt: skip
    """Say what MODEL.onnx takes on every array that --vary spans, with --arch for all other keys, and which are best.

    --vary arch=… compares whole arrays: presets, and files.

    Measures are cycles, energy, multipliers, memory_bits and dram_words; default: the first three. On each array the
    network is optimised for each of cycles, energy and dram_words among them, or for --objective alone. Each result is
    added to a file at once. After an interruption the same command goes on from there.

    \b
    cnncc explore net.onnx --vary rows=4,8 --vary cols=4:12:4 --vary links.south=true,false
    cnncc explore net.onnx --vary arch=spatial-8x8,seed-8x8 -o presets
    cnncc explore net.onnx --vary glb.words=16384,65536 --energy-exponent 0.5 -o glb
    """
    from cnncc.arch.model import load_arch
    from cnncc.explore.array_grid import read_vary
    from cnncc.explore.evaluate import MEASURES
    from cnncc.explore.exploration import explore
    from cnncc.explore.pareto import as_csv, as_text
    from cnncc.util.files import write_atomically

    measures = list(dict.fromkeys(measures)) or MEASURES[:3]
    if unknown := [name for name in measures if name not in MEASURES]:
        raise Refusal(f"--measure {unknown[0]}: {hint(unknown[0], MEASURES)}")
    varied = read_vary(vary, load_arch(options.arch))
    output = output or Path(f"{model.stem}.explore.jsonl")
    if output.suffix != ".jsonl":
        if output.suffix and not output.is_dir():
            raise Refusal(f"--output {output}: give a .jsonl file, beside which the .csv file is written, or a folder")
        output = output / "explore.jsonl"
    with progress_line() as progress:
        processes = jobs or processors.usable()
        start, results = explore(model, options, varied, measures, output, processes, progress, exponent)
    print_remarks(start, values=False)
    table = output.with_suffix(".csv")
    write_atomically(table, as_csv(results, measures))
    click.echo(fitted(as_text(results, measures, start.settings.arch.energy.unit)))
    click.echo(f"all of them: {output}, {table}")
    if all("refused" in result for result in results):
        raise Refusal("none of the arrays can run the network")
