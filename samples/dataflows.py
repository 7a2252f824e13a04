"""One network under every dataflow: cycles and traffic side by side, outputs compared bit by bit.

    python samples/dataflows.py samples/models/lenet.onnx --calibrate samples/inputs/digits_calibration.npz

own: the compiler's own mappings; mix: each layer with weights by the next dataflow in turn.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import click
import numpy as np

from cnncc.binary.container import Binary
from cnncc.binary.counters import program_stats
from cnncc.binary.run import random_inputs, run
from cnncc.driver.build import binary_of
from cnncc.driver.pipeline import ASSIGN, Compilation, Settings
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.passes._scheduling.dataflows import DATAFLOWS
from cnncc.util.progress import Progress, progress_line
from cnncc.util.terminal import NAME, Column, fitted, table

SEED = 0
WORDS = ("dram_read", "dram_write", "glb_read", "glb_write", "bus")


def mixed(own: Binary) -> str:
    """A schedule that gives each layer with weights the next dataflow in turn."""
    layers = [label for label, counted in program_stats(own)["layers"].items() if counted["macs"]]
    named = zip(layers, cycle(DATAFLOWS), strict=False)
    return "\n".join(f'[{json.dumps(label)}]\ndataflow = "{name}"' for label, name in named)


def binary(quantised: Compilation, settings: Settings) -> Binary:
    """The program of a network by these settings. quantised: the network before its layers are mapped."""
    compilation = Compilation(quantised.ctx, quantised.module.clone(), settings)
    compilation.run()
    return binary_of(compilation)


def compare(model: Path, arch: str, calibrate: Path | None, progress: Progress) -> dict[str, dict[str, Any]]:
    """The counters of a network under each dataflow. Raises Refusal where outputs differ."""
    quantised = start_compilation(model, CompileOptions(arch, calibrate=calibrate, batch=1))
    quantised.run_before(ASSIGN)
    own = binary(quantised, quantised.settings)
    inputs = random_inputs(own, SEED)
    wanted = run(own, inputs)
    counters = {"own": program_stats(own)}
    with tempfile.TemporaryDirectory() as name:
        schedule = Path(name, "mix.toml")
        schedule.write_text(mixed(own))
        names = (*DATAFLOWS, "mix")
        for done, dataflow in enumerate(names):
            progress(f"dataflow {dataflow}", done, len(names))
            change = {"schedule": str(schedule)} if dataflow == "mix" else {"dataflow": dataflow}
            other = binary(quantised, replace(quantised.settings, **change))
            outputs = run(other, inputs)
            if any(not np.array_equal(wanted[output], outputs[output]) for output in wanted):
                raise Refusal(f"{dataflow}: outputs differ from those of the compiler's own mappings")
            counters[dataflow] = program_stats(other)
    return counters


def as_text(by_dataflow: dict[str, dict[str, Any]]) -> list[str]:
    """A table to read."""
    rows = [
        [
            name,
            f"{counted['cycles']['total']:,}",
            f"{counted['cycles']['compute']:,}",
            f"{100 * counted['utilisation']['total']:.1f} %",
            *(f"{counted['words'][key]:,}" for key in WORDS),
        ]
        for name, counted in by_dataflow.items()
    ]
    words = [Column(key, drop=at) for at, key in enumerate(WORDS)]
    lines = table([Column("dataflow", NAME), "cycles", "compute", "utilisation", *words], rows, indent=0)
    return [*lines, "the outputs are the same, to the bit"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--arch", default="spatial-8x8", show_default=True, help="Array: a preset or a TOML file.")
@click.option("--calibrate", type=click.Path(path_type=Path), help="Samples of the inputs, for the scales.")
@click.option("--json", "as_json", is_flag=True, help="Print all counters as JSON.")
def main(model: Path, arch: str, calibrate: Path | None, as_json: bool) -> None:
    """Compile MODEL under each dataflow, and in a mix of them; run it; print a table of cycles and words moved.

    \b
    python samples/dataflows.py samples/models/resnet20.onnx --calibrate samples/inputs/digits_calibration.npz
    """
    try:
        with progress_line() as progress:
            by_dataflow = compare(model, arch, calibrate, progress)
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    click.echo(json.dumps(by_dataflow, indent=1) if as_json else fitted(as_text(by_dataflow)))


if __name__ == "__main__":
    main()
