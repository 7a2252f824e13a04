"""Reproduce the figures of "C-Brain: A Deep Learning Accelerator that Tames the Diversity of CNNs through Adaptive
Data-level Parallelization" (Song et al., DAC 2016).

One line for each figure that the paper states, and what the formulas of `cnncc.cbrain` give, with the assumption behind
it. The paper states results, and hardly a formula: most lines depend on an assumption. docs/cbrain.md explains them.

The layers are those of the networks of `samples/models.py`, read from their graphs alone, without weights. The first
layers are also compiled and run, in two schemes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import chain, product
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

import click
import numpy as np
from cbrain_programs import ProgramCycles, program_cycles
from onnx import helper

from cnncc.cbrain.convolution import Convolution
from cnncc.cbrain.kernel_partition import partition, window_ranges
from cnncc.cbrain.scheme_choice import adaptive, choose, faster_scheme
from cnncc.cbrain.schemes import (
    CBrain,
    Counting,
    Packing,
    Rate,
    Scheme,
    accesses,
    improvement,
    layer_cycles,
    network_cycles,
    pe_energy,
    percent_saved,
    unroll_factor,
    unrolled_load_cycles,
)
from cnncc.dialects._layers import Window
from cnncc.errors import Refusal
from cnncc.util.convention import CORRECTED, PAPER
from cnncc.util.terminal import TEXT, Column, fitted, table
from cnncc.weights import Array

SMALL = CBrain(16, 16)
WIDTHS = (SMALL, CBrain(32, 32))
FIG_7 = (Scheme.INTER, Scheme.PARTITION)
WEIGHT_RATE = 16  # words a cycle
WEIGHTS_FIRST = f"weights come before use, {WEIGHT_RATE} words a cycle"
COUNTING = Counting()
"""Of 16 ways to count accesses, the one closest to the paper's four figures."""

Layers = Sequence[Convolution]
Networks = Mapping[str, Layers]
Value = int | float | str


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, and what the formulas give. note: the assumption, or why they differ."""

    where: str
    what: str
    unit: str
    paper: Value | None
    calculus: Value
    note: str = ""


@dataclass(frozen=True)
class Beaten:
    """A layer for which another scheme takes fewer cycles than the one that Algorithm 2 chooses."""

    network: str
    width: str
    layer: str
    chosen: str
    cycles: int
    better: str
    better_cycles: int


@dataclass(frozen=True)
class Source:
    """A network of the paper: its name in `samples/models.py`, and the size of its image.

    ceil: pools round their sizes up, as in the published model. The graph of the onnx package rounds down.
    stated: milliseconds of Table 4, at 16-16 and 32-32.
    """

    sample: str
    size: int
    stated: tuple[float, float]
    ceil: bool = False


SOURCES = {
    "AlexNet": Source("light-alexnet", 227, (2.83, 0.91)),
    "GoogLeNet": Source("light-inception-v1", 224, (6.69, 2.04), ceil=True),
    "VGG-19": Source("light-vgg19", 224, (77.51, 20.41)),
    "NiN": Source("nin", 224, (6.72, 2.05)),
}


def layers_of(source: Source) -> list[Convolution]:
    """The convolutions of a network, named after their weights."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from networks import SAMPLES
    from networks.features import features
    from networks.seeded import shapes_of

    network = features(SAMPLES[source.sample].build(source.size))
    if source.ceil:
        for node in network.model.graph.node:
            if node.op_type == "MaxPool":
                node.attribute.append(helper.make_attribute("ceil_mode", 1))
    graph, layers = network.inferred().graph, list[Convolution]()
    shapes = shapes_of(graph)
    for node in graph.node:
        if node.op_type == "Conv":
            given: dict[str, Any] = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            kernel, stride, pad = (tuple(given[name]) for name in ("kernel_shape", "strides", "pads"))
            (_, inputs, rows, cols), name = shapes[node.input[0]], node.input[1].removesuffix("_w_0")
            window = Window(kernel, stride, pad, group=given.get("group", 1))
            outputs = shapes[node.output[0]][1]
            layers.append(Convolution(name.removesuffix(".weight"), (rows, cols), inputs, outputs, window))
    return layers


def width(array: CBrain) -> str:
    """T_in-T_out."""
    return f"{array.tin}-{array.tout}"


def figures(networks: Networks) -> Iterator[Figure]:
    """All figures, in the paper's order."""
    yield from formulas(networks)
    yield from first_layers(networks)
    yield from whole_networks(networks)
    yield from against_zhang(networks["AlexNet"])
    yield from table_4(networks)
    yield from table_5(networks)
    yield from traffic(networks)


def formulas(networks: Networks) -> Iterator[Figure]:
    """Eqs. 1 and 2, Algorithm 1, Section 4.2.2."""
    (conv1, conv2, conv3), vgg = networks["AlexNet"][:3], networks["VGG-19"]
    most, with_padding = (rounded(unroll_factor(layer.padded(), PAPER)) for layer in (conv2, conv3))
    yield Figure("Eq. 1", "largest T of Fig. 3", "times", 18.9, most, "conv2 of AlexNet, padding in the map")
    note = f"conv3 of AlexNet, padding not in the map; with it, T is {with_padding}: no one convention gives both ends"
    yield Figure("Eq. 1", "smallest T of Fig. 3", "times", 9, rounded(unroll_factor(conv3, CORRECTED)), note)
    parts = partition(conv1)
    pieces = f"{parts.pieces} of {parts.side[0]}x{parts.side[1]}"
    yield Figure("Eq. 2", "pieces of AlexNet's conv1", "", "9 of 4x4", pieces)
    (_, printed), (_, corrected) = (window_ranges(conv1, convention)[1] for convention in (PAPER, CORRECTED))
    note = f"piece 2 moves one column, not a row; Algorithm 1 as printed moves neither, and ends at {printed}"
    yield Figure("Sec. 4.2.1", "last small window of piece 2", "", "(56, 56)", str(corrected), note)
    layer = next(layer for layer in vgg if layer.name == "conv3_2")
    (stores, loads), (added, saved) = (improvement(layer, SMALL, convention) for convention in (PAPER, CORRECTED))
    note = f"conv3_2 of VGG-19; corrected {ratio(saved, added)} for an access, as stored sums are read again"
    yield Figure("Sec. 4.2.2", "loads saved for a store, 16-16", "", 16, ratio(loads, stores), note)
    words = max(layer.pixels * layer.outputs for layer in vgg)
    both = max(layer.pixels * layer.outputs + prod(layer.image) * layer.inputs for layer in vgg)
    note = f"results of conv1_2, in 16-bit words; with the maps that it reads, {megabytes(both)} MB"
    yield Figure("Sec. 5.2", "largest layer of VGG-19", "MB", 8, megabytes(words), note)


def first_layers(networks: Networks) -> Iterator[Figure]:
    """Fig. 7: the first layer of each network, in both widths."""
    cases = [(layers[0], array) for layers in networks.values() for array in WIDTHS]

    def times(scheme: Scheme, packing: Packing = Packing.PIECES) -> list[int]:
        return [layer_cycles(layer, scheme, replace(array, packing=packing)) for layer, array in cases]

    inter, unrolled, parts = times(Scheme.INTER), times(Scheme.UNROLLED), times(Scheme.PARTITION)
    pixels = average(inter, times(Scheme.PARTITION, Packing.PIXELS))
    note = f"mean of both widths; pieces of one map share an operation; if neighbouring pixels do, {pixels}"
    yield Figure("Fig. 7", "partition over inter, Conv1", "times", 5.8, average(inter, parts), note)
    loaded = [time + unrolled_load_cycles(*case) for time, case in zip(unrolled, cases, strict=True)]
    note = (
        "loads of unrolled data take as long as the computation, and are not hidden; with T_in words a cycle, as in "
        f"Table 3, {average(loaded, parts)}; without loads {average(unrolled, parts)}"
    )
    gain = average([2 * time for time in unrolled], parts)
    yield Figure("Fig. 7", "partition over intra, Conv1", "times", 2.1, gain, note)
    vgg = networks["VGG-19"][0]
    few = [ratio(*times) for *times, (layer, _) in zip(inter, parts, cases, strict=True) if layer is not vgg]
    note, ends = "Conv1 of AlexNet, GoogLeNet and NiN, both widths", f"{min(few)} to {max(few)}"
    yield Figure("Abstract", "speed-up of some layers", "times", "4.0 to 8.3", ends, note)


def whole_networks(networks: Networks) -> Iterator[Figure]:
    """Fig. 8: adaptive over inter-kernel."""
    for rate, how, indent in ((WEIGHT_RATE, WEIGHTS_FIRST, ""), (0, "weights cost no time", "  ")):
        inter, chosen = dict[str, list[Rate]](), dict[str, list[Rate]]()
        for name, layers in networks.items():
            same = [Scheme.INTER] * len(layers)
            inter[name] = [network_cycles(layers, same, array, rate) for array in WIDTHS]
            chosen[name] = [network_cycles(layers, adaptive(layers, array.tin), array, rate) for array in WIDTHS]
        alexnet = average(inter["AlexNet"], chosen["AlexNet"])
        every = average(chain(*inter.values()), chain(*chosen.values()))
        yield Figure("Fig. 8", f"{indent}adaptive over inter, AlexNet", "times", 1.83, alexnet)
        yield Figure("Fig. 8", f"{indent}adaptive over inter, mean", "times", 1.43, every, f"both widths; {how}")


def against_zhang(layers: Layers) -> Iterator[Figure]:
    """Fig. 9: against an accelerator with T_in = 7 and T_out = 64."""
    zhang = [layer_cycles(layer, Scheme.INTER, CBrain(7, 64)) for layer in layers]
    for tout, first, stated in ((28, 2.22, 1.20), (24, None, 1.06), (32, None, 1.45)):
        array = CBrain(16, tout)
        ours = [layer_cycles(*each, array) for each in zip(layers, adaptive(layers, 16), strict=True)]
        what = f"adap-{width(array)} over Zhang-7-64"
        if first:
            yield Figure("Fig. 9", f"{what}, Conv1", "times", first, ratio(zhang[0], ours[0]))
        note = "AlexNet; Zhang et al. as inter-kernel with 7-64, no weights" if tout == 32 else ""
        yield Figure("Fig. 9", what, "times", stated, ratio(sum(zhang), sum(ours)), note)


def table_4(networks: Networks) -> Iterator[Figure]:
    """Times of the adaptive schemes."""
    for name, layers in networks.items():
        note = f"Algorithm 2; pieces of one map share an operation; {WEIGHTS_FIRST}"
        if name == "NiN":
            implied = round((6.72 - 2.05) * 1e6 / (1 / 256 - 1 / 1024) / 1e6)
            macs = sum(layer.macs for layer in layers) / 1e6
            note = (
                f"the gap is unexplained. The two stated times imply {implied:,} M MACs, with all multipliers busy and "
                f"a fixed rest. The published NiN has {macs:,.0f} M: the paper's may be another one"
            )
        for at, array in enumerate(WIDTHS):
            stated = SOURCES[name].stated[at]
            ms = float(network_cycles(layers, adaptive(layers, array.tin), array, WEIGHT_RATE)) * 1e3 / array.clock_hz
            what, last = f"{name}, {width(array)}", at == len(WIDTHS) - 1 and name in ("VGG-19", "NiN")
            yield Figure("Table 4", what, "ms", stated, round(ms, 3), note if last else "")


def table_5(networks: Networks) -> Iterator[Figure]:
    """PE energy that the adaptive schemes save, with neighbouring pixels packed."""
    stated = {"AlexNet": (47.77, 47.71), "GoogLeNet": (31.48, 31.40), "VGG-19": (3.00, 2.89), "NiN": (None, None)}
    for (name, layers), improved in product(networks.items(), (False, True)):
        saved = list[float]()
        for array in (replace(array, packing=Packing.PIXELS) for array in WIDTHS):
            energy = sum(
                pe_energy(*each, array) for each in zip(layers, adaptive(layers, array.tin, improved), strict=True)
            )
            saved.append(percent_saved(energy, sum(pe_energy(layer, Scheme.INTER, array) for layer in layers)))
        note = ""
        if name == "NiN" and improved:
            note = (
                "PEs take as much energy in each cycle; neighbouring pixels share an operation; mean of both widths. "
                f"An add-and-store takes {SMALL.adder} of a multiplication: fitted. The paper leaves NiN out; its "
                "means of 4 networks imply 29.91 and 29.84"
            )
        what = f"PE energy saved by adap-{2 if improved else 1}, {name}"
        yield Figure("Table 5", what, "%", stated[name][improved], round(mean(saved), 2), note)


def traffic(networks: Networks) -> Iterator[Figure]:
    """Fig. 10: accesses to buffers at 16-16."""

    def words(layers: Layers, schemes: Sequence[Scheme]) -> int:
        return sum(accesses(*each, SMALL, COUNTING).total for each in zip(layers, schemes, strict=True))

    def saved(base: Callable[[Layers], Sequence[Scheme]], *names: str) -> float:
        return round(
            mean(
                percent_saved(words(layers, adaptive(layers, SMALL.tin, improved=True)), words(layers, base(layers)))
                for layers in (networks[name] for name in names)
            ),
            2,
        )

    def original(layers: Layers) -> Sequence[Scheme]:
        return adaptive(layers, SMALL.tin)

    def inter(layers: Layers) -> Sequence[Scheme]:
        return [Scheme.INTER] * len(layers)

    def intra(layers: Layers) -> Sequence[Scheme]:
        return [Scheme.UNROLLED] * len(layers)

    note = (
        "16-16, in words. Of 16 ways to count, the closest one: add-and-store reads, too; data come in lines of T_in "
        "words; intra and partition store a sum for each input map"
    )
    yield Figure("Fig. 10", "adap-2 below adap-1, mean", "%", 90.13, saved(original, *networks))
    yield Figure("Fig. 10", "adap-2 below intra, mean", "%", 73.7, saved(intra, *networks))
    yield Figure("Fig. 10", "adap-2 below inter, VGG-19", "%", 93.8, saved(inter, "VGG-19"))
    yield Figure("Fig. 10", "adap-2 below intra, VGG-19", "%", 77.6, saved(intra, "VGG-19"), note)


def rounded(value: Rate) -> float:
    """Two decimals."""
    return round(float(value), 2)


def ratio(value: Rate, base: Rate) -> float:
    """A quotient, with two decimals."""
    return rounded(Fraction(value) / base)


def average(values: Iterable[Rate], bases: Iterable[Rate]) -> float:
    """The mean of quotients, with two decimals."""
    return rounded(mean(Fraction(value) / base for value, base in zip(values, bases, strict=True)))


def megabytes(words: int) -> float:
    """10^6 bytes, of 16-bit words."""
    return rounded(Fraction(2 * words, 10**6))


def beaten(networks: Networks) -> Iterator[Beaten]:
    """All layers for which Algorithm 2 does not choose the fastest scheme."""
    for (name, layers), array in product(networks.items(), WIDTHS):
        for layer in layers:
            if (better := faster_scheme(layer, array)) is not None:
                chosen = choose(layer, array.tin).scheme
                cycles = (layer_cycles(layer, scheme, array) for scheme in (chosen, better))
                yield Beaten(name, width(array), layer.name, chosen.value, next(cycles), better.value, next(cycles))


@dataclass(frozen=True)
class Measured:
    """The first layer of a network, compiled for the preset of an array: the formula's cycles, and the program's."""

    network: str
    width: str
    scheme: str
    formula: int
    program: ProgramCycles


def measured(networks: Networks) -> Iterator[Measured]:
    """The first layers, in two schemes, at 16-16. Raises Refusal if outputs differ between schemes."""
    for name, (layer, *_) in networks.items():
        outputs = dict[Scheme, Mapping[str, Array]]()
        for scheme in FIG_7:
            program, outputs[scheme] = program_cycles(layer, scheme, SMALL)
            yield Measured(name, width(SMALL), scheme.value, layer_cycles(layer, scheme, SMALL), program)
        one, other = outputs.values()
        if not all(np.array_equal(one[key], other[key]) for key in one):
            raise Refusal(f"{name}: {layer.name} gives other outputs with a partitioned kernel: a defect of cnncc")


@dataclass(frozen=True)
class Result:
    """All that is printed. cases: layers x widths."""

    figures: list[Figure]
    beaten: list[Beaten]
    cases: int
    measured: list[Measured]


def reproduce() -> Result:
    """All figures. Raises Refusal."""
    networks = {name: layers_of(source) for name, source in SOURCES.items()}
    cases = len(WIDTHS) * sum(map(len, networks.values()))
    return Result(list(figures(networks)), list(beaten(networks)), cases, list(measured(networks)))


def as_text(result: Result) -> Iterator[str]:
    """The tables, with notes below the lines that they explain."""
    cells = list[list[str] | str]()
    for row in result.figures:
        cells.append([row.where, row.what, row.unit, shown(row.paper), shown(row.calculus), off(row)])
        if row.note:
            cells.append(f"      {row.note}")
    yield "Song et al.: PEs of 16 or 32 multipliers, as many PEs, 1 GHz"
    columns = [Column("", TEXT), Column("", TEXT), Column("", TEXT), "paper", "calculus", "off by"]
    yield from table(columns, cells)
    yield ""
    yield f"Algorithm 2 does not choose the fastest scheme in {len(result.beaten)} of {result.cases} cases:"
    rows = [
        [each.network, each.width, each.layer, each.chosen, f"{each.cycles:,}", each.better, f"{each.better_cycles:,}"]
        for each in result.beaten
    ]
    named = [Column(title, TEXT) for title in ("network", "width", "layer", "chosen")]
    yield from table([*named, "cycles", Column("better", TEXT), "cycles"], rows)
    yield ""
    yield "Conv1 compiled for cbrain-16-16 and run, with equal outputs of both schemes:"
    rows = list[list[str]]()
    for each in result.measured:
        program = each.program
        counted = (each.formula, program.computing, program.layer, program.cutting)
        above = f"{100 * (program.total / each.formula - 1):+.1f} %"
        rows.append([each.network, each.scheme, *(f"{cycles:,}" for cycles in counted), above])
    named = [Column(title, TEXT) for title in ("network", "scheme")]
    yield from table([*named, "formula", "compute", "layer", "cutting", "both above formula"], rows)
    inter, parts = ([each for each in result.measured if each.scheme == scheme.value] for scheme in FIG_7)
    by_formula = average([each.formula for each in inter], [each.formula for each in parts])
    counted = average([each.program.total for each in inter], [each.program.total for each in parts])
    yield f"  partition over inter, mean: {by_formula} by formulas, {counted} counted"


def off(row: Figure) -> str:
    """By how much the calculus misses the paper."""
    if row.paper is None or isinstance(row.paper, str) or isinstance(row.calculus, str):
        return ""
    return f"{100 * (row.calculus / row.paper - 1):+.1f} %"


def shown(value: Value | None) -> str:
    """A value as a cell has it."""
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return f"{value:,}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def main(as_json: bool) -> None:
    """Reproduce the figures of C-Brain, one line each: the paper's, and what its schemes take by their formulas.

    \b
    python samples/reproduce/cbrain.py
    python samples/reproduce/cbrain.py --json > cbrain.json
    """
    try:
        result = reproduce()
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    click.echo(json.dumps(asdict(result), indent=1) if as_json else fitted(as_text(result)))


if __name__ == "__main__":
    main()
