"""Reproduce the figures of "Efficient Mapping of CNNs onto Tightly Coupled Processor Arrays" (Heidorn et al., 2019).

One line for each figure that the paper states, and three values: the paper's own, what its equations give
(`Convention.PAPER`), and what they give when corrected (`Convention.CORRECTED`). docs/tcpa.md explains the differences.
The network is the trained MNIST net without its fully connected layer, which the paper leaves to a processor. The array
has 16 PEs with two lanes at 50 MHz.

The last lines are no figures of the calculus. They are what the interpreter counts on the presets `tcpa-4x4` and
`tcpa-4x5`: for the whole network, layer by layer; and for the paper's mappings, with a core for each layer and
`cores.most` = 6.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import click

from cnncc.arch.model import arch_text, load_arch
from cnncc.binary.counters import program_stats
from cnncc.driver.build import binary_of, compiled
from cnncc.driver.pipeline import CORES, Step
from cnncc.driver.program_parts import program_parts
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.machine.cores.core_times import simulate_cores
from cnncc.machine.cores.programs import cores_of
from cnncc.model.cores_plan import CoresPlan
from cnncc.passes.nest_cores import NestCoresPass
from cnncc.tcpa.calculus import (
    CORRECTED,
    PAPER,
    Convention,
    LayerParallel,
    Rate,
    Tcpa,
    best_pes,
    fewest_pes,
    frames_per_second,
    layer_by_layer,
    layer_parallel,
    stored_inputs,
)
from cnncc.tcpa.chain_layer import ChainLayer, chain_layers
from cnncc.tcpa.pixel_times import first_frame, scattered_latency
from cnncc.util.terminal import TEXT, Column, fitted, table

T = TypeVar("T")
SAMPLES = Path(__file__).resolve().parents[1]
MODEL = SAMPLES / "models" / "mnist.onnx"
ARRAY = Tcpa(lanes=2, clock_hz=50_000_000)
FILTERS_IN_LANES = replace(ARRAY, filters_in_lanes=True)
SMALL, LARGE = (4, 1, 8, 1, 2), (4, 1, 12, 1, 2)  # PEs of Fig. 6 on 4x4 PEs, and of Table 1 on 4x5
FPS = 100
PRESETS = ("tcpa-4x4", "tcpa-4x5")

SIDE_BY_SIDE = (  # a core for each layer: PEs by layer, and where they are
    ("tcpa-4x4", SMALL, "2x2@2,0;1x1@2,2;2x4@0,0;1x1@3,2;2x1@2,3"),
    ("tcpa-4x5", LARGE, "1x4@3,0;1x1@3,4;3x4@0,0;1x1@2,4;2x1@0,4"),
)
CORES_OF_PAPER, FRAMES = 6, 16  # one for the DRAM, five for layers; frames of a run

Value = int | float | str
Pair = tuple[Value, Value]  # as printed, corrected


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, in three conventions. note: why they differ."""

    where: str
    what: str
    unit: str
    paper: Value
    calculus: Value
    corrected: Value
    note: str = ""


@dataclass(frozen=True)
class Measured:
    """What the interpreter counts for the whole network, one layer after the other, on an array."""

    array: str
    cycles: int
    fps: float


@dataclass(frozen=True)
class MeasuredCores:
    """What the interpreter counts with a core for each layer: cycles of a frame, of the first one; bytes that wait."""

    array: str
    pes: tuple[int, ...]
    cycles: int
    fps: float
    first: int
    stored: tuple[int, ...]


def layers() -> list[ChainLayer]:
    """The convolutions and pools of the network."""
    compilation = start_compilation(MODEL, CompileOptions(PRESETS[0], batch=1))
    compilation.run_before("cnn-to-nest")
    return [layer for layer in chain_layers(compilation.module) if layer.results != (1, 1)]


def figures(net: Sequence[ChainLayer]) -> Iterator[Figure]:
    """All figures, in the paper's order."""
    printed, real = in_both(lambda convention: layer_parallel(net, SMALL, ARRAY, convention))
    yield from fig_7(net, printed, real)
    yield from table_1(net, printed, real)
    yield from storage(net)
    yield from section_7(net)
    printed_pes, real_pes = in_both(lambda convention: pes_text(best_pes(net, sum(SMALL), ARRAY, convention)))
    note = "15 PEs reach as many frames a second; the corrected latency gains more from a third PE of conv4"
    yield Figure("Fig. 6", "PEs for 16 in all", "PEs", pes_text(SMALL), printed_pes, real_pes, note)


def in_both(value: Callable[[Convention], T]) -> tuple[T, T]:
    """A value as printed, and corrected."""
    return value(PAPER), value(CORRECTED)


def fig_7(net: Sequence[ChainLayer], printed: LayerParallel, real: LayerParallel) -> Iterator[Figure]:
    """Cycles of a pixel, intervals, start times and latencies of the layers."""
    columns = (
        ("z", "Eqs. 6, 9", "cycles a pixel", (54, 216, 324, 1296, 1296), printed.matched, real.matched),
        ("Z", "Eq. 10", "cycles from start to start", (0, 216, 216, 1296, 1296), printed.intervals, real.intervals),
        ("t", "Eq. 11", "cycle of the start", (0, 216, 432, 1728, 3024), printed.starts, real.starts),
        ("L", "Eq. 11", "cycles", (42336, 42336, 63504, 63504, 63504), printed.latencies, real.latencies),
    )
    notes = {
        "z": "Eq. 9 slows a layer that is faster than the one before it. With frames in flight, all keep the slowest "
        "one's pace: back-pressure slows conv0 and pool1, too.",
        "Z": "Eq. 10 starts a layer after F pixels. The first window is complete in its last row: the second one of a "
        "padded 3x3 window and of a pool.",
        "L": "The first frame. Layers behind conv2 run at their own speed and wait for pixels.",
    }
    for letter, where, unit, paper, calculus, corrected in columns:
        for layer, stated, as_printed, value in zip(net, paper, calculus, corrected, strict=True):
            note = notes.get(letter, "") if layer is net[-1] else ""
            yield Figure(where, f"{letter} of {layer.name}", unit, stated, number(as_printed), number(value), note)


def table_1(net: Sequence[ChainLayer], printed: LayerParallel, real: LayerParallel) -> Iterator[Figure]:
    """Latency and throughput, layer by layer and layer-parallel."""
    every = [16] * len(net)
    note = (
        "55,664 does not follow from Eq. 4. Corrected, pools use all PEs. With filters in idle lanes, too, "
        "conv0 takes half as long, which gives the paper's figure."
    )
    yield from one_by_one("layer by layer (1)", (159_936, 312.6), net, SMALL, ARRAY)
    yield from one_by_one("layer by layer (2)", (55_664, 898.2), net, every, ARRAY)
    yield from one_by_one("  (2), filters in idle lanes", (55_664, 898.2), net, every, FILTERS_IN_LANES, note)

    waiting = first_frame(net, [int(z) for z in printed.matched]).ends[-1]
    scattered = number(scattered_latency(net, printed.native))
    note = (
        "A pixel waits for all pixels that it depends on, so each layer runs a row behind the one before it, not a "
        "pixel. Corrected, there are no wait states but those for pixels. Section 5.3 multiplies a pixel into all its "
        "sums when it arrives (scatter): less work is left after the last pixel."
    )
    yield Figure("Table 1", "layer-parallel (1), latency", "cycles", 66_528, printed.latency, real.latency)
    yield Figure("Fig. 7", "  with the wait states of Fig. 7", "cycles", 66_528, printed.latency, waiting)
    yield Figure("Sec. 5.3", "  with scattered pixels", "cycles", 66_528, printed.latency, scattered, note)
    yield Figure("Eq. 13", "layer-parallel (1), period", "cycles", 63_504, printed.period, real.period)
    yield throughput("layer-parallel (1)", 787.4, printed, real)

    printed, real = in_both(lambda convention: layer_parallel(net, LARGE, ARRAY, convention))
    yield Figure("Table 1", "layer-parallel (2), latency", "cycles", 44_496, printed.latency, real.latency)
    yield throughput("layer-parallel (2)", 1_181.0, printed, real)


def one_by_one(
    what: str, paper: Pair, net: Sequence[ChainLayer], pes: Sequence[int], array: Tcpa, note: str = ""
) -> Iterator[Figure]:
    """Latency and throughput, one layer after the other."""
    printed, real = in_both(lambda convention: sum(layer_by_layer(net, pes, array, convention)))
    yield Figure("Table 1", f"{what}, latency", "cycles", paper[0], printed, real)
    yield Figure("Table 1", f"{what}, throughput", "fps", paper[1], fps(printed), fps(real), note)


def throughput(what: str, paper: float, printed: LayerParallel, real: LayerParallel) -> Figure:
    """Frames a second, all layers at once."""
    return Figure("Table 1", f"{what}, throughput", "fps", paper, fps(printed.period), fps(real.period))


def storage(net: Sequence[ChainLayer]) -> Iterator[Figure]:
    """Bytes between the layers, with 8-bit words."""
    note = (
        "Eq. 16 keeps the rows of the receptive field of all later layers; those of the own kernel suffice. Eq. 17 has "
        "one pixel of a pool, which needs a row and two pixels, as pixels come row by row. Corrected: the rings that "
        "keep the period."
    )
    printed, real = in_both(lambda convention: stored_inputs(net, SMALL, ARRAY, convention))
    for layer, paper, *sizes in zip(net[1:], (24, 2352, 24, 336), printed[1:], real[1:], strict=True):
        where, last = "Eq. 16" if layer.weighted else "Eq. 17", note if layer is net[-1] else ""
        yield Figure(where, f"input of {layer.name}", "bytes", paper, sizes[0], sizes[1], last)


def section_7(net: Sequence[ChainLayer]) -> Iterator[Figure]:
    """The fewest PEs for a frame rate, and the rate that they reach."""
    printed, real = in_both(lambda convention: fewest_pes(net, FPS, ARRAY, convention))
    yield Figure("Sec. 7", f"PEs for {FPS} fps", "PEs", 6, sum(printed), sum(real))
    yield Figure("Sec. 7", "  their throughput", "fps", FPS, rate(net, printed, PAPER), rate(net, real, CORRECTED))
    printed_rate, real_rate = in_both(lambda convention: rate(net, [1] * len(net), convention))
    note = "Five PEs, one a layer, miss 100 fps by little. The sixth doubles the rate."
    yield Figure("Sec. 7", "  throughput of 5 PEs", "fps", f"below {FPS}", printed_rate, real_rate, note)


def rate(net: Sequence[ChainLayer], pes: Sequence[int], convention: Convention) -> float:
    """Frames a second, layer-parallel."""
    return fps(layer_parallel(net, pes, ARRAY, convention).period)


def fps(cycles: int) -> float:
    """Frames a second, as the paper rounds them."""
    return round(float(frames_per_second(cycles, ARRAY)), 1)


def pes_text(pes: Sequence[int]) -> str:
    """PEs by layer."""
    return " ".join(map(str, pes))


def number(value: Rate) -> int | float:
    """A whole number, or one with a decimal."""
    return int(value) if value == int(value) else round(float(value), 1)


def measured(array: str) -> Measured:
    """The whole network, compiled for an array, and run."""
    images = SAMPLES / "inputs" / "digits_calibration.npz"
    binary = compiled(MODEL, CompileOptions(array, calibrate=images, batch=1, objective="cycles"))
    cycles = program_stats(binary)["cycles"]["total"]
    return Measured(array, cycles, fps(cycles))


def side_by_side(array: str, pes: tuple[int, ...], places: str) -> MeasuredCores:
    """The convolutions and pools on cores of their own, with the fewest rows in channels; Fc on the host."""
    preset = load_arch(array)
    arch = replace(preset, cores=replace(preset.cores, most=CORES_OF_PAPER))
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{array}.toml"
        path.write_text(arch_text(arch))
        compilation = start_compilation(MODEL, CompileOptions(str(path), batch=1, parallel="layers"))
        compilation.run_before(CORES)
        names = ";".join(layer.name for layer in layers())
        NestCoresPass(names, places, arch=str(path)).apply(compilation.ctx, compilation.module)
        (plan,) = (part for part in program_parts(compilation.module, {}) if isinstance(part, CoresPlan))
        for name in ("nest-to-array", "array-prefetch", "array-allocate"):
            compilation.step(Step("array", name, f'arch="{path}"'))
        compilation.step(Step("isa", "array-to-isa"))
        binary = binary_of(compilation)
    counted = simulate_cores(cores_of(binary.instructions, arch, FRAMES))
    assert counted.frames.period
    cycles, frames = counted.frames.period
    rows = [ring.producer.sizes.k * ring.producer.sizes.w for ring in plan.rings]
    stored = tuple(words * most for words, most in zip(rows, counted.rings.values(), strict=True))
    return MeasuredCores(array, pes, cycles // frames, fps(cycles // frames), counted.frames.first, stored)


def as_text(rows: Sequence[Figure], runs: Sequence[Measured], cores: Sequence[MeasuredCores] = ()) -> Iterator[str]:
    """The table, with notes below the lines that they explain."""
    cells = list[list[str] | str]()
    for row in rows:
        values = (shown(value) for value in (row.paper, row.calculus, row.corrected))
        cells.append([row.where, row.what, row.unit, *values])
        if row.note:
            cells.append(f"      {row.note}")
    yield "Heidorn et al.: the MNIST net without Fc on 16 PEs, two lanes, 50 MHz"
    columns = [Column("", TEXT), Column("", TEXT), Column("", TEXT), "paper", "calculus", "corrected"]
    yield from table(columns, cells)
    for run in runs:
        cost = f"{run.cycles:,} cycles, {run.fps:,.1f} fps"
        yield f"  measured on {run.array}, layer by layer, Fc and transfers included: {cost}"
    for own in cores:
        cost = f"{own.cycles:,} cycles, {own.fps:,.1f} fps; first frame {own.first:,}"
        yield f"  measured on {own.array}, cores of {pes_text(own.pes)} PEs: {cost}"
        yield f"      bytes that wait between layers at most: {', '.join(f'{count:,}' for count in own.stored)}"


def shown(value: Value) -> str:
    """A value as a cell has it."""
    return f"{value:,}" if isinstance(value, int | float) else value


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def main(as_json: bool) -> None:
    """Reproduce the figures of Heidorn et al., one line each: the paper's, the calculus, the calculus corrected.

    \b
    python samples/reproduce/tcpa.py
    python samples/reproduce/tcpa.py --json > tcpa.json
    """
    try:
        rows, runs = list(figures(layers())), [measured(array) for array in PRESETS]
        cores = [side_by_side(*case) for case in SIDE_BY_SIDE]
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    result = {"figures": rows, "measured": runs, "measured_cores": cores}
    printed = {key: [asdict(each) for each in values] for key, values in result.items()}
    click.echo(json.dumps(printed, indent=1) if as_json else fitted(as_text(rows, runs, cores)))


if __name__ == "__main__":
    main()
