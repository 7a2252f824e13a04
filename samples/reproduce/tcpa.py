"""Reproduce the figures of "Efficient Mapping of CNNs onto Tightly Coupled Processor Arrays" (Heidorn et al., 2019).

One line for each figure that the paper states, and four values:

- paper: the paper's own
- calculus: what its equations give (`Convention.PAPER`)
- corrected: what they give when corrected (`Convention.CORRECTED`)
- measured: what the interpreter counts for programs with the same mapping (`tcpa_programs.py`)

docs/tcpa.md explains the differences. The network is the trained MNIST net without its fully connected layer, which the
paper leaves to a processor. The array has 16 PEs with two lanes at 50 MHz: the preset `tcpa-4x4`, with a core for each
layer. As in the paper, macro-instructions take no cycles but their multiplications, unless a
line says 3 + 1, as of the preset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import click
from tcpa_programs import MODEL, InTurn, SideBySide, compiled_in_turn, compiled_side_by_side, in_turn, side_by_side

from cnncc.driver.pipeline import NESTS
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.mapping.channels import Region
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
    layer_memory,
    layer_parallel,
    parallel_memory,
    stored_inputs,
)
from cnncc.tcpa.chain_layer import ChainLayer, chain_layers
from cnncc.tcpa.pixel_times import first_frame, scattered_latency
from cnncc.util.terminal import TEXT, Column, fitted, table

T = TypeVar("T")
ARRAY = Tcpa(lanes=2, clock_hz=50_000_000)
FILTERS_IN_LANES = replace(ARRAY, filters_in_lanes=True)
SMALL, LARGE = (4, 1, 8, 1, 2), (4, 1, 12, 1, 2)  # PEs of Fig. 6 on 4x4 PEs, and of Table 1 on 4x5
FPS = 100
PRESETS = ("tcpa-4x4", "tcpa-4x5")

# The PEs of each layer: rows, columns, and where they are.
ON_SMALL = (Region(2, 2, 2, 0), Region(1, 1, 2, 2), Region(2, 4, 0, 0), Region(1, 1, 3, 2), Region(2, 1, 2, 3))
ON_LARGE = (Region(1, 4, 3, 0), Region(1, 1, 3, 4), Region(3, 4, 0, 0), Region(1, 1, 2, 4), Region(2, 1, 0, 4))
KEEPS_ON_LARGE = (4, 4, 2, 3)  # with the fewest rows the cores wait for each other
ON_SIX = (Region(1, 1, 2, 0), Region(1, 1, 3, 0), Region(1, 2, 0, 0), Region(1, 1, 2, 1), Region(1, 1, 3, 1))
ON_FIVE = (*ON_SIX[:2], Region(1, 1, 0, 0), *ON_SIX[3:])
# Layer by layer on all PEs. 24 channels take as long on 12 PEs as on 16: each PE has two of them.
ONE, TWELVE, ALL = Region(1, 1, 0, 0), Region(4, 3, 0, 0), Region(4, 4, 0, 0)

Value = int | float | str
Pair = tuple[Value, Value]  # as printed, corrected


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, in three conventions, and measured. An empty cell has none. note: why they differ."""

    where: str
    what: str
    unit: str
    paper: Value
    calculus: Value
    corrected: Value
    measured: Value
    note: str = ""


@dataclass(frozen=True)
class Programs:
    """What the interpreter counts.

    - small, large, six, five: side by side, with the paper's numbers of PEs
    - one_by_one: with the PEs of Fig. 6; pools_on_one: with 16 PEs, but pools on one, as Eq. 4 is printed
    - pools_on_all: with 16 PEs; idle_lanes: with filters in idle lanes, too
    - mapped: with the compiler's mappings, on both presets
    - fastest, fewest: with the compiler's choice of cores, for the most frames and for `FPS`; None if not asked for
    """

    small: SideBySide
    large: SideBySide
    six: SideBySide
    five: SideBySide
    one_by_one: InTurn
    pools_on_one: InTurn
    pools_on_all: InTurn
    idle_lanes: InTurn
    mapped: tuple[InTurn, InTurn]
    fastest: SideBySide | None = None
    fewest: SideBySide | None = None


def layers() -> list[ChainLayer]:
    """The convolutions and pools of the network."""
    compilation = start_compilation(MODEL, CompileOptions(PRESETS[0], batch=1))
    compilation.run_before(NESTS)
    return [layer for layer in chain_layers(compilation.module) if layer.results != (1, 1)]


def programs(net: Sequence[ChainLayer], *, choose: bool) -> Programs:
    """All programs, compiled and run. choose: those on cores of the compiler's choice, too."""
    small, large = PRESETS
    return Programs(
        side_by_side(net, small, ON_SMALL),
        side_by_side(net, large, ON_LARGE, KEEPS_ON_LARGE),
        side_by_side(net, small, ON_SIX),
        side_by_side(net, small, ON_FIVE),
        in_turn(net, small, ON_SMALL),
        in_turn(net, small, (TWELVE, ONE, TWELVE, ONE, ALL)),
        in_turn(net, small, (TWELVE, TWELVE, TWELVE, TWELVE, ALL)),
        in_turn(net, small, (TWELVE, TWELVE, TWELVE, TWELVE, ALL), filters_in_lanes=True),
        (compiled_in_turn(net, small), compiled_in_turn(net, large)),
        compiled_side_by_side(small) if choose else None,
        compiled_side_by_side(small, FPS) if choose else None,
    )


def figures(net: Sequence[ChainLayer], ran: Programs) -> Iterator[Figure]:
    """All figures, in the paper's order."""
    printed, real = in_both(lambda convention: layer_parallel(net, SMALL, ARRAY, convention))
    yield from fig_7(net, printed, real, ran.small)
    yield from layers_in_turn(net, ran)
    yield from layers_at_once(net, printed, real, ran)
    yield from storage(net, ran.small)
    yield from section_7(net, ran)
    yield from fig_6(net, ran)


def in_both(value: Callable[[Convention], T]) -> tuple[T, T]:
    """A value as printed, and corrected."""
    return value(PAPER), value(CORRECTED)


def fig_7(net: Sequence[ChainLayer], printed: LayerParallel, real: LayerParallel, ran: SideBySide) -> Iterator[Figure]:
    """Cycles of a pixel, intervals, start times and latencies of the layers."""
    pixels = [layer.pixels for layer in net]
    native = [cycles / count for cycles, count in zip(ran.computing, pixels, strict=True)]
    intervals = [start - before for before, start in zip((0, *ran.starts), ran.starts, strict=False)]
    latencies = [end - start for start, end in zip(ran.starts, ran.ends, strict=True)]
    alone, after_waits = "z of {}, alone", "z of {}, with waits"
    columns = (
        (alone, "Eq. 6", "cycles a pixel", (54, 48, 324, "", ""), printed.native, real.native, native),
        (after_waits, "Eqs. 6, 9", "cycles a pixel", (54, 216, 324, 1296, 1296), printed.matched, real.matched,
         [ran.period / count for count in pixels]),
        ("Z of {}", "Eq. 10", "cycles", (0, 216, 216, 1296, 1296), printed.intervals, real.intervals, intervals),
        ("t of {}", "Eq. 11", "cycle", (0, 216, 432, 1728, 3024), printed.starts, real.starts, ran.starts),
        ("L of {}", "Eq. 11", "cycles", (42336, 42336, 63504, 63504, 63504), printed.latencies, real.latencies,
         latencies),
    )  # fmt: skip
    notes = {
        alone: "Measured: cycles of a frame in which the PEs multiply, for each pixel.",
        after_waits: "Eq. 9 slows a layer that is faster than the one before it. With frames in flight, all keep the "
        "slowest one's pace: back-pressure slows conv0 and pool1, too. Measured: the period, for each pixel.",
        "Z of {}": "Eq. 10 starts a layer after F pixels. The first window is complete in its last row: the second one "
        "of a padded 3x3 window and of a pool. The program hands on whole rows.",
        "L of {}": "The first frame. Layers behind conv2 run at their own speed and wait for pixels. Measured: with "
        "the fewest rows between layers conv0 and pool1 wait for space, too.",
    }
    for what, where, unit, paper, calculus, corrected, measured in columns:
        for layer, stated, *values in zip(net, paper, calculus, corrected, measured, strict=True):
            note = notes.get(what, "") if layer is net[-1] else ""
            yield Figure(where, what.format(layer.name), unit, stated, *map(number, values), note=note)


def layers_in_turn(net: Sequence[ChainLayer], ran: Programs) -> Iterator[Figure]:
    """Table 1: latency and throughput, layer by layer."""
    every, second = [16] * len(net), (55_664, 898.2)
    note = (
        "Latency measured: the layers wait for loads, commits and first weights. A pool on one PE waits for the PE's "
        "write port, which takes a word a cycle."
    )
    yield from one_by_one("layer by layer (1)", (159_936, 312.6), net, SMALL, ARRAY, ran.one_by_one, note)
    yield from one_by_one("layer by layer (2)", second, net, every, ARRAY, ran.pools_on_all)
    printed = sum(layer_by_layer(net, every, ARRAY, PAPER))
    yield Figure(
        "Eq. 4", "  pools on one PE, as printed", "cycles", "", printed, "", ran.pools_on_one.computing
    )  # fmt: skip
    note = (
        "55,664 does not follow from Eq. 4, which gives 73,500. Corrected, pools use all PEs. With filters in idle "
        "lanes, too, conv0 takes half as long, which gives the paper's figure."
    )
    yield from one_by_one("(2), filters in idle lanes", second, net, every, FILTERS_IN_LANES, ran.idle_lanes, note)
    for preset, run in zip(PRESETS, ran.mapped, strict=True):
        last = preset == PRESETS[-1]
        yield Figure("", f"(2), compiler's mappings, {preset}", "cycles", "", "", "", run.latency)
        yield Figure("", "  with Fc and transfers", "cycles", "", "", "", run.network)
        note = "3 + 1 cycles around each macro-instruction. Rows, columns and input channels are over PEs, too."
        yield Figure("", "  throughput with them", "fps", "", "", "", fps(run.network), note if last else "")


def one_by_one(
    what: str, paper: Pair, net: Sequence[ChainLayer], pes: Sequence[int], array: Tcpa, ran: InTurn, note: str = ""
) -> Iterator[Figure]:
    """Latency and throughput, one layer after the other."""
    printed, real = in_both(lambda convention: sum(layer_by_layer(net, pes, array, convention)))
    yield Figure("Table 1", f"{what}, latency", "cycles", paper[0], printed, real, ran.latency)
    yield Figure("", "  of them multiplying", "cycles", paper[0], printed, real, ran.computing)
    yield Figure("Table 1", "  throughput", "fps", paper[1], fps(printed), fps(real), fps(ran.latency), note)


def layers_at_once(
    net: Sequence[ChainLayer], printed: LayerParallel, real: LayerParallel, ran: Programs
) -> Iterator[Figure]:
    """Table 1: latency, period and throughput, layer-parallel."""
    waiting = first_frame(net, [int(z) for z in printed.matched]).ends[-1]
    scattered = number(scattered_latency(net, printed.native))
    what, small = "layer-parallel (1)", ran.small
    yield Figure("Table 1", f"{what}, latency", "cycles", 66_528, printed.latency, real.latency, small.ends[-1])
    yield Figure("Fig. 7", "  with the wait states of Fig. 7", "cycles", 66_528, printed.latency, waiting, "no waits")
    yield Figure("Sec. 5.3", "  with scattered pixels", "cycles", 66_528, printed.latency, scattered, "no scatter")
    note = (
        "A pixel waits for all pixels that it depends on, so each layer runs a row behind the one before it, not a "
        "pixel. Corrected, there are no wait states but those for pixels. Section 5.3 multiplies a pixel into all its "
        "sums when it arrives (scatter): less work is left after the last pixel. "
        "Measured: conv2 begins when 4 rows of conv0 and 2 of pool1 are complete, and behind it come a row of pool3 "
        "and two of conv4. no waits: a full channel stops its producer, no instruction waits on purpose. no scatter: "
        "a macro-instruction reads whole windows."
    )
    yield Figure("", "  with weights and transfers", "cycles", "", "", "", small.first, note)
    yield from frame_rate(what, (63_504, 787.4), printed.period, real.period, small)

    what = "layer-parallel (2)"
    printed, real = in_both(lambda convention: layer_parallel(net, LARGE, ARRAY, convention))
    kept = ", ".join(map(str, KEEPS_ON_LARGE))
    note = f"Measured on tcpa-4x5, with channels of {kept} rows. With the fewest rows the cores wait for each other."
    latencies = printed.latency, real.latency, ran.large.ends[-1]
    yield Figure("Table 1", f"{what}, latency", "cycles", 44_496, *latencies, note=note)
    yield from frame_rate(what, ("", 1_181.0), printed.period, real.period, ran.large)


def frame_rate(what: str, paper: Pair, printed: int, real: int, ran: SideBySide) -> Iterator[Figure]:
    """Cycles of a frame, and frames a second."""
    yield Figure("Eq. 13", f"{what}, period", "cycles", paper[0], printed, real, ran.period)
    yield Figure("Table 1", "  throughput", "fps", paper[1], fps(printed), fps(real), fps(ran.period))
    yield Figure("", "  period, 3 + 1 cycles", "cycles", "", "", "", ran.preset_period)
    yield Figure("", "  throughput, 3 + 1 cycles", "fps", "", "", "", fps(ran.preset_period))


def storage(net: Sequence[ChainLayer], ran: SideBySide) -> Iterator[Figure]:
    """Bytes between the layers, with 8-bit words."""
    note = (
        "Eq. 16 keeps the rows of the receptive field of all later layers; those of the own kernel suffice. Eq. 17 has "
        "one pixel of a pool, which needs a row and two pixels, as pixels come row by row. Corrected: the rings that "
        "keep the period. Measured: the most that waits in the fewest whole rows, 2 of a pool and 3 of a convolution."
    )
    printed, real = in_both(lambda convention: stored_inputs(net, SMALL, ARRAY, convention))
    stated = (24, 2352, 24, 336)
    stored = [rows * layer.inputs * layer.image[1] for layer, rows in zip(net[1:], ran.waiting, strict=True)]
    for layer, paper, *sizes in zip(net[1:], stated, printed[1:], real[1:], stored, strict=True):
        where, last = "Eq. 16" if layer.weighted else "Eq. 17", note if layer is net[-1] else ""
        yield Figure(where, f"input of {layer.name}", "bytes", paper, *sizes, note=last)
    note = (
        "Weights with what lies between layers; the image is outside. Eq. 14 as printed has one output map of a pool. "
        "Measured: weights with what waits. Layer by layer, a program keeps what its mapping chooses to keep."
    )
    most = in_both(lambda convention: max(layer_memory(layer, convention) for layer in net))
    yield Figure("Eq. 14", "layer by layer, the largest layer", "bytes", "", *most, "")
    printed, real = in_both(lambda convention: parallel_memory(net, SMALL, ARRAY, convention))
    held = sum(layer.weights for layer in net) + sum(stored)
    yield Figure("Eq. 15", "layers side by side", "bytes", "", printed, real, held, note=note)


def section_7(net: Sequence[ChainLayer], ran: Programs) -> Iterator[Figure]:
    """The fewest PEs for a frame rate, and the rate that they reach."""
    printed, real = in_both(lambda convention: fewest_pes(net, FPS, ARRAY, convention))
    reached = rate(net, printed, PAPER), rate(net, real, CORRECTED), fps(ran.six.period)
    yield Figure("Sec. 7", f"PEs for {FPS} fps", "PEs", 6, sum(printed), sum(real), sum(ran.six.pes))
    yield Figure("Sec. 7", "  their throughput", "fps", FPS, *reached)
    reached = *in_both(lambda convention: rate(net, [1] * len(net), convention)), fps(ran.five.period)
    note = "Five PEs, one a layer, miss 100 fps by little. The sixth doubles the rate."
    yield Figure("Sec. 7", "  throughput of 5 PEs", "fps", f"below {FPS}", *reached, note=note)
    note = "With several layers on a core, 3 + 1 cycles."
    yield Figure("", "  the compiler's choice", "PEs", "", "", "", chosen(ran.fewest, lambda own: sum(own.pes)))
    yield Figure("", "  its throughput", "fps", "", "", "", chosen(ran.fewest, lambda own: fps(own.period)), note)


def fig_6(net: Sequence[ChainLayer], ran: Programs) -> Iterator[Figure]:
    """The best PEs for each layer."""
    printed, real = in_both(lambda convention: best_pes(net, sum(SMALL), ARRAY, convention))
    rates = rate(net, printed, PAPER), rate(net, real, CORRECTED)
    best = pes_text(SMALL), pes_text(printed), pes_text(real), chosen(ran.fastest, lambda own: pes_text(own.pes))
    yield Figure("Fig. 6", "PEs for 16 in all", "PEs", *best)
    note = (
        "15 PEs reach as many frames a second; the corrected latency gains more from a third PE of conv4. Measured: "
        "PEs of the compiler's cores, each of one layer or more, 3 + 1 cycles."
    )
    yield Figure("", "  their throughput", "fps", 787.4, *rates, chosen(ran.fastest, lambda own: fps(own.period)), note)


def chosen(ran: SideBySide | None, value: Callable[[SideBySide], Value]) -> Value:
    """A cell of a program on cores of the compiler's choice."""
    return "--all" if ran is None else value(ran)


def rate(net: Sequence[ChainLayer], pes: Sequence[int], convention: Convention) -> float:
    """Frames a second, layer-parallel."""
    return fps(layer_parallel(net, pes, ARRAY, convention).period)


def fps(cycles: int) -> float:
    """Frames a second, as the paper rounds them."""
    return round(float(frames_per_second(cycles, ARRAY)), 1)


def pes_text(pes: Sequence[int]) -> str:
    """PEs by layer."""
    return " ".join(map(str, pes))


def number(value: Rate | float) -> int | float:
    """A whole number, or one with a decimal."""
    return int(value) if value == int(value) else round(float(value), 1)


def as_text(rows: Sequence[Figure]) -> Iterator[str]:
    """The table, with notes below the lines that they explain."""
    cells = list[list[str] | str]()
    for row in rows:
        values = (shown(value) for value in (row.paper, row.calculus, row.corrected, row.measured))
        cells.append([row.where, row.what, row.unit, *values])
        if row.note:
            cells.append(f"      {row.note}")
    yield "Heidorn et al.: the MNIST net without Fc on 16 PEs, two lanes, 50 MHz"
    columns = [Column("", TEXT), Column("", TEXT), Column("", TEXT), "paper", "calculus", "corrected", "measured"]
    yield from table(columns, cells)
    if any(row.measured == "--all" for row in rows):
        yield "  --all: the search for cores takes a minute or less; it runs with this option"


def shown(value: Value) -> str:
    """A value as a cell has it."""
    return f"{value:,}" if isinstance(value, int | float) else value


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--all", "choose", is_flag=True, help="Search for the best cores, too.")
def main(as_json: bool, choose: bool) -> None:
    """Reproduce the figures of Heidorn et al., one line each: the paper's, the calculus, corrected, and measured.

    \b
    python samples/reproduce/tcpa.py
    python samples/reproduce/tcpa.py --json > tcpa.json
    """
    try:
        net = layers()
        rows = list(figures(net, programs(net, choose=choose)))
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    click.echo(json.dumps({"figures": [*map(asdict, rows)]}, indent=1) if as_json else fitted(as_text(rows)))


if __name__ == "__main__":
    main()
