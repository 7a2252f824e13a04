"""Reproduce the textbook's dataflows: one layer under all mappings of its Equations 14.8 to 14.17, on one array.

The layer has N = 2 images, K = 4 and C = 3 channels, 6 x 6 outputs and a 3 x 3 kernel; tiles are 2 x 3 outputs. Each
mapping is compiled by `cnncc compile --schedule` and run from its binary: outputs must be the same, to the bit. Words
are those that the interpreter counts; a word that several PEs get at a time is read once.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cnncc.api import CompileOptions, Refusal, compile_model, program_stats, run
from cnncc.binary.run import random_inputs
from cnncc.util.progress import Progress, progress_line, silent
from cnncc.util.terminal import NAME, Column, fitted, table

SEED = 0
N, K, C, SIDE, TAPS = 2, 4, 3, 6, 3
ARRAY = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Equation:
    """A mapping of the book, and what it is here: with axes, tiles, and where PEs get their words."""

    kind: str
    book: str
    mapping: str


TILES = "[h':2||@rows w':3||@cols]"
ROW = "[h':2||@rows w':3||@rows]"
KERNEL, OUTPUT_TILE = "{r > s}", "{k > h'' > w''}"
FILES = "weight@rf > ifmap@rf"

EQUATIONS = {
    "14.8": Equation(
        "WS", "k ▷ c ▷ n ▷ h'∥ w'∥ h'' ▷ w'' ▷ |r ▷ s|",
        f"k > c > weight@rf > n > {TILES} > h'' > w'' > ifmap@rf > {KERNEL}",
    ),
    "14.9": Equation(
        "WS", "n ▷ k∥ c∥ h ▷ w ▷ |r ▷ s|",
        f"weight@rf > n > [k||@cols c||@rows] > h > w > ifmap@rf > {KERNEL}",
    ),
    "14.10": Equation(
        "IS", "n ▷ h'∥ w'∥ k ▷ r ▷ s ▷ |c ▷ h'' ▷ w''|",
        f"n > {TILES} > ifmap@rf > k > r > s > weight@rf > {{c > h'' > w''}}",
    ),
    "14.11": Equation(
        "OS", "n ▷ h'∥ w'∥ c ▷ r ▷ s ▷ |k ▷ h'' ▷ w''|",
        f"n > {TILES} > c > r > s > {FILES} > {OUTPUT_TILE}",
    ),
    "14.12": Equation(
        "RS", "n ▷ k ▷ c ▷ h'∥ r'∥ w ▷ s ▷ |h'' ▷ r''|",
        f"n > k > c > [h||@cols r||@rows] > {FILES} > {{w > s}}",
    ),
    "14.13": Equation(
        "WS", "n ▷ k∥ ▷ c∥ ▷ h ▷ w ▷ |r ▷ s|",
        f"weight@rf > n > k||@cols > c||@rows > h > w > ifmap@rf > {KERNEL}",
    ),
    "14.14": Equation(
        "IS", "n ▷ h'∥ w'∥ ▷ c∥ k ▷ r ▷ s ▷ |h'' ▷ w''|",
        "n > [h':2||@cols w':3||@cols] > c||@rows > ifmap@rf > k > r > s > weight@rf > {h'' > w''}",
    ),
    "14.15": Equation(
        "OS", "n ▷ h'∥ w'∥ c ▷ r ▷ s ▷ |k ▷ h'' ▷ w''|",
        f"n > [h':2||@cols w':3||@cols] > c > r > s > {FILES} > {OUTPUT_TILE}",
    ),
    "14.16": Equation(
        "OS", "n ▷ h'∥ w'∥ ▷ k∥ c ▷ r ▷ s ▷ |h'' ▷ w''|",
        f"n > {ROW} > k||@cols > c > r > s > {FILES} > {{h'' > w''}}",
    ),
    "14.17": Equation(
        "RS", "n ▷ k∥ c∥ ▷ h'∥ r'∥ w ▷ s ▷ |h'' ▷ r''|",
        "[k||@cols c||@rows] > [h||@cols r||@rows] > weight@rf > n > ifmap@rf > {w > s}",
    ),
}  # fmt: skip


COLUMNS = (
    "PEs",
    "cycles",
    "compute",
    "weights",
    "ifmap",
    Column("sums", drop=2),
    Column("write-backs", drop=1),
    "utilisation",
)


@dataclass(frozen=True)
class Run:
    """One mapping: its cycles, how busy the PEs are, and the words that move between them and the global buffer."""

    equation: str
    kind: str
    book: str
    mapping: str
    pes: int
    cycles: int
    compute: int
    utilisation: float
    weight_reads: int
    ifmap_reads: int
    sum_reads: int
    write_backs: int


def layer() -> onnx.ModelProto:
    """The layer as a network, with an image that has its border already."""
    rng = np.random.default_rng(SEED)
    weights = rng.standard_normal((K, C, TAPS, TAPS)).astype(np.float32)
    image, result = [N, C, SIDE + TAPS - 1, SIDE + TAPS - 1], [N, K, SIDE, SIDE]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "conv")],
        "dataflows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def reproduce(arch: str, progress: Progress) -> list[Run]:
    """The layer under all mappings. Raises Refusal where an array cannot run one, or outputs differ."""
    runs, outputs = list[Run](), list[np.ndarray]()
    with tempfile.TemporaryDirectory() as name:
        model, schedule = Path(name, "layer.onnx"), Path(name, "schedule.toml")
        model.write_bytes(layer().SerializeToString())
        for done, (number, equation) in enumerate(EQUATIONS.items()):
            progress(f"Equation ({number})", done, len(EQUATIONS))
            schedule.write_text(f'["conv"]\nmapping = "{equation.mapping}"\n')
            binary = compile_model(model, CompileOptions(arch, schedule=schedule), remark=silent)
            outputs.append(next(iter(run(binary, random_inputs(binary, SEED)).values())))
            if not np.array_equal(outputs[0], outputs[-1]):
                raise Refusal(f"({number}) computes other integers than ({next(iter(EQUATIONS))})")
            counted = program_stats(binary)["layers"]["conv"]
            read, written = (counted["operands"][key] for key in ("glb_read", "glb_write"))
            compute = counted["cycles"]["compute"]
            quantity = binary.arch.words_per_param
            runs.append(
                Run(
                    number,
                    equation.kind,
                    equation.book,
                    equation.mapping,
                    pes=binary.arch.rows * binary.arch.cols - counted["idle_pe_cycles"] // compute,
                    cycles=counted["cycles"]["total"],
                    compute=compute,
                    utilisation=counted["utilisation"]["compute"],
                    weight_reads=read["weight"],
                    ifmap_reads=read["ifmap"],
                    sum_reads=read["sums"] // quantity,
                    write_backs=(written["sums"] + quantity * written["results"]) // quantity,
                )
            )
    return runs


def as_text(runs: list[Run]) -> Iterator[str]:
    """Tables to read."""
    sizes = f"{N} images, {C} -> {K} channels, {SIDE} x {SIDE} outputs, {TAPS} x {TAPS} kernel"
    yield f"{sizes}; the same outputs by all mappings"
    rows = list[list[str]]()
    for result in runs:
        words = (result.weight_reads, result.ifmap_reads, result.sum_reads, result.write_backs)
        numbers = (f"{number:,}" for number in (result.pes, result.cycles, result.compute, *words))
        rows.append([result.equation, result.kind, *numbers, f"{100 * result.utilisation:.1f} %"])
    yield from table(["Eq.", Column(kind=NAME), *COLUMNS], rows)
    yield "  weights, ifmap: words that the PEs read from the global buffer, those that several get at a time once"
    yield "  sums: psums that go back to the PEs' output units; write-backs: psums and outputs that leave the PEs"
    yield ""
    for result in runs:
        yield f"  {result.equation:>5} {result.book}"
        yield f"        {result.mapping}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--arch", default=str(ARRAY), help="The array: a name or a TOML file [samples/reproduce/dataflows.toml].")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def main(arch: str, as_json: bool) -> None:
    """Reproduce the textbook's dataflows: one layer under its mappings (14.8) to (14.17), run from their binaries.

    \b
    python samples/reproduce/dataflows.py
    python samples/reproduce/dataflows.py --arch spatial-16x16
    python samples/reproduce/dataflows.py --json > dataflows.json
    """
    try:
        with progress_line() as progress:
            result = reproduce(arch, progress)
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    click.echo(json.dumps([asdict(run) for run in result], indent=1) if as_json else fitted(as_text(result)))


if __name__ == "__main__":
    main()
