"""Reproduce the figures of "C-Brain: A Deep Learning Accelerator that Tames the Diversity of CNNs through Adaptive
Data-level Parallelization" (Song et al., DAC 2016).

One line for each figure that the paper states, and what the formulas of `cnncc.cbrain` give, with the assumption behind
it. The paper states results, and hardly a formula: most lines depend on an assumption. docs/cbrain.md explains them.

The layers are those of the networks of `samples/models.py`, read from their graphs alone, without weights. Networks, or
their first layers, are also compiled for the paper's array and run: the column of programs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from fractions import Fraction
from functools import partial
from itertools import chain, product
from math import prod
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click
from cbrain_networks import LATE_NIN, SOURCES, VARIANTS, alone, layers_of, network_of, write_sample
from cbrain_programs import Mapped, Program, Task, mapped, program, same

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
from cnncc.errors import Refusal
from cnncc.proof.proof_text import error_text
from cnncc.util.convention import CORRECTED, PAPER
from cnncc.util.terminal import TEXT, Column, fitted, table
from cnncc.weights import Array

if TYPE_CHECKING:
    from networks.seeded import Network

SMALL = CBrain(16, 16)
WIDTHS = (SMALL, CBrain(32, 32))
ZHANG = CBrain(7, 64)
FIG_9_HZ = 100_000_000
FIRST, ALL, ONNX = "conv1", "all", "onnx"  # what is compiled of a network
MEANS = (28.04, 27.96)  # of Table 5
SPLIT_FROM = 0.03  # of a difference between formulas and program
WEIGHT_RATE = 16  # words a cycle
WEIGHTS_FIRST = f"weights come before use, {WEIGHT_RATE} words a cycle"
COUNTING = Counting()
"""Of 16 ways to count accesses, the one closest to the paper's four figures."""

Layers = Sequence[Convolution]
Networks = Mapping[str, Layers]
Value = int | float | str
Say = Callable[[str], None]  # is told of each program that is done


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, what the formulas give, and what programs take; None where they were not run.

    note: the assumption, or why they differ.
    """

    where: str
    what: str
    unit: str
    paper: Value | None
    calculus: Value
    note: str = ""
    program: Value | None = None


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


def width(array: CBrain) -> str:
    """T_in-T_out."""
    return f"{array.tin}-{array.tout}"


class Plan(Enum):
    """Which scheme each layer of a program has. The inter-kernel one is the improved one, if it is not the original."""

    ORIGINAL = "inter-kernel, original"
    INTER = "inter-kernel"
    INTRA = "intra-kernel"
    PARTITION = "kernel partition"
    ADAP_1 = "adaptive, original"
    ADAP_2 = "adaptive"

    def schemes(self, layers: Layers, tin: int) -> list[Scheme]:
        """The scheme of each layer."""
        match self:
            case Plan.ADAP_1 | Plan.ADAP_2:
                return adaptive(layers, tin, improved=self is Plan.ADAP_2)
            case Plan.ORIGINAL:
                return [Scheme.INTER] * len(layers)
            case Plan.INTER:
                return [Scheme.IMPROVED] * len(layers)
            case Plan.INTRA:
                return [Scheme.UNROLLED] * len(layers)
            case Plan.PARTITION:
                return [Scheme.PARTITION] * len(layers)


@dataclass(frozen=True)
class Measured:
    """A program that ran, for the preset of an array.

    - layers: FIRST or ALL
    - formula: cycles of its convolutions
    - weights: cycles in which weights come before they are used, of which only formulas of whole networks know
    """

    network: str
    layers: str
    width: str
    plan: str
    formula: int
    weights: int
    program: Program

    @property
    def expected(self) -> int:
        """All cycles of the formulas."""
        return self.formula + self.weights

    def parts(self) -> dict[str, int]:
        """What the program has more than the formulas, in cycles by cause."""
        program = self.program
        computing = {
            "other steps": program.convolving - self.formula,
            "small windows": program.cutting,
            "pools": program.others,
        }
        return {**computing, **program.stalls, "no weights first": -self.weights}


OF_LAYERS = {FIRST: (Plan.INTER, Plan.INTRA, Plan.PARTITION), ALL: (Plan.INTER, Plan.ADAP_2)}


def _total(program: Program) -> int:
    return program.total


def _on_chip(program: Program) -> int:
    return program.on_chip


class Programs:
    """Programs that ran, by what they are."""

    def __init__(self, measured: Iterable[Measured]) -> None:
        self.programs = {(each.network, each.layers, each.width, each.plan): each.program for each in measured}

    def of(self, names: Iterable[str], layers: str, arrays: Iterable[CBrain], plan: Plan) -> list[Program] | None:
        """The programs of these networks on these arrays; None if one of them was not run."""
        keys = [(name, layers, width(array), plan.value) for name, array in product(names, arrays)]
        return [self.programs[key] for key in keys] if all(key in self.programs for key in keys) else None

    def times(
        self, names: Iterable[str], layers: str, base: Plan, plan: Plan, what: Callable[[Program], int] = _total
    ) -> list[float] | None:
        """How many times as long the programs of `base` take, on both arrays."""
        names = list(names)
        slow, fast = (self.of(names, layers, WIDTHS, each) for each in (base, plan))
        if slow is None or fast is None:
            return None
        return [what(one) / what(other) for one, other in zip(slow, fast, strict=True)]

    def faster(self, name: str, layers: str, base: tuple[CBrain, Plan], other: tuple[CBrain, Plan]) -> float | None:
        """How many times as long the program on one array takes as that on another one."""
        slow, fast = (self.of([name], layers, [array], plan) for array, plan in (base, other))
        return ratio(slow[0].total, fast[0].total) if slow and fast else None

    def saved(
        self, names: Iterable[str], arrays: Iterable[CBrain], base: Plan, plan: Plan, what: Callable[[Program], Rate]
    ) -> float | None:
        """The mean of what programs of whole networks save, in percent."""
        names, arrays = list(names), list(arrays)
        much, little = (self.of(names, ALL, arrays, each) for each in (base, plan))
        if much is None or little is None:
            return None
        return rounded(mean(percent_saved(what(x), what(y)) for x, y in zip(little, much, strict=True)))


def figures(networks: Networks, variants: Networks, programs: Programs) -> Iterator[Figure]:
    """All figures, in the paper's order."""
    yield from formulas(networks)
    yield from first_layers(networks, programs)
    yield from whole_networks(networks, programs)
    yield from against_zhang(networks["AlexNet"], programs)
    yield from table_4({**networks, **variants}, programs)
    yield from table_5({**networks, **variants}, programs)
    yield from traffic(networks, programs)


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


def first_layers(networks: Networks, programs: Programs) -> Iterator[Figure]:
    """Fig. 7: the first layer of each network, in both widths."""
    cases = [(layers[0], array) for layers in networks.values() for array in WIDTHS]

    def times(scheme: Scheme, packing: Packing = Packing.PIECES) -> list[int]:
        return [layer_cycles(layer, scheme, replace(array, packing=packing)) for layer, array in cases]

    inter, unrolled, parts = times(Scheme.INTER), times(Scheme.UNROLLED), times(Scheme.PARTITION)
    pixels = average(inter, times(Scheme.PARTITION, Packing.PIXELS))
    note = f"mean of both widths; pieces of one map share an operation; if neighbouring pixels do, {pixels}"
    counted = average_of(programs.times(networks, FIRST, Plan.INTER, Plan.PARTITION))
    on_chip = average_of(programs.times(networks, FIRST, Plan.INTER, Plan.PARTITION, _on_chip))
    note += f". Programs wait for DRAM; without that they gain {on_chip}" if on_chip else ""
    yield Figure("Fig. 7", "partition over inter, Conv1", "times", 5.8, average(inter, parts), note, counted)
    loaded = [time + unrolled_load_cycles(*case) for time, case in zip(unrolled, cases, strict=True)]
    note = (
        "loads of unrolled data take as long as the computation, and are not hidden; with T_in words a cycle, as in "
        f"Table 3, {average(loaded, parts)}; without loads {average(unrolled, parts)}"
    )
    gain = average([2 * time for time in unrolled], parts)
    counted = average_of(programs.times(networks, FIRST, Plan.INTRA, Plan.PARTITION))
    yield Figure("Fig. 7", "partition over intra, Conv1", "times", 2.1, gain, note, counted)
    vgg = networks["VGG-19"][0]
    few = [ratio(*times) for *times, (layer, _) in zip(inter, parts, cases, strict=True) if layer is not vgg]
    note = "Conv1 of AlexNet, GoogLeNet and NiN, both widths"
    gains = programs.times([name for name in networks if name != "VGG-19"], FIRST, Plan.INTER, Plan.PARTITION)
    counted = None if gains is None else _ends(gains)
    yield Figure("Abstract", "speed-up of some layers", "times", "4.0 to 8.3", _ends(few), note, counted)


def _ends(values: Sequence[float]) -> str:
    return f"{rounded(min(values))} to {rounded(max(values))}"


def whole_networks(networks: Networks, programs: Programs) -> Iterator[Figure]:
    """Fig. 8: adaptive over inter-kernel."""
    for rate, how, indent in ((WEIGHT_RATE, WEIGHTS_FIRST, ""), (0, "weights cost no time", "  ")):
        inter, chosen = dict[str, list[Rate]](), dict[str, list[Rate]]()
        for name, layers in networks.items():
            same = [Scheme.INTER] * len(layers)
            inter[name] = [network_cycles(layers, same, array, rate) for array in WIDTHS]
            chosen[name] = [network_cycles(layers, adaptive(layers, array.tin), array, rate) for array in WIDTHS]
        alexnet = average(inter["AlexNet"], chosen["AlexNet"])
        every = average(chain(*inter.values()), chain(*chosen.values()))
        gains = (
            average_of(programs.times(names, ALL, Plan.INTER, Plan.ADAP_2)) if rate else None
            for names in (["AlexNet"], networks)
        )
        note = f"both widths; {how}"
        yield Figure("Fig. 8", f"{indent}adaptive over inter, AlexNet", "times", 1.83, alexnet, program=next(gains))
        yield Figure("Fig. 8", f"{indent}adaptive over inter, mean", "times", 1.43, every, note, next(gains))


def against_zhang(layers: Layers, programs: Programs) -> Iterator[Figure]:
    """Fig. 9: against an accelerator with T_in = 7 and T_out = 64."""
    zhang = [layer_cycles(layer, Scheme.INTER, ZHANG) for layer in layers]
    for tout, first, stated in ((28, 2.22, 1.20), (24, None, 1.06), (32, None, 1.45)):
        array = CBrain(16, tout)
        ours = [layer_cycles(*each, array) for each in zip(layers, adaptive(layers, 16), strict=True)]
        what = f"adap-{width(array)} over Zhang-7-64"
        if first:
            counted = programs.faster("AlexNet", FIRST, (ZHANG, Plan.INTER), (array, Plan.PARTITION))
            yield Figure("Fig. 9", f"{what}, Conv1", "times", first, ratio(zhang[0], ours[0]), program=counted)
        note = ""
        if tout == 32:
            times = " and ".join(f"{sum(cycles) / FIG_9_HZ * 1e3:.2f}" for cycles in (zhang, ours))
            note = f"AlexNet; Zhang et al. as inter-kernel with 7-64, no weights. At 100 MHz both take {times} ms"
        counted = programs.faster("AlexNet", ALL, (ZHANG, Plan.INTER), (array, Plan.ADAP_2))
        yield Figure("Fig. 9", what, "times", stated, ratio(sum(zhang), sum(ours)), note, counted)


def table_4(networks: Networks, programs: Programs) -> Iterator[Figure]:
    """Times of the adaptive schemes."""
    for name, layers in networks.items():
        note = f"Algorithm 2; pieces of one map share an operation; {WEIGHTS_FIRST}" if name == "VGG-19" else ""
        macs = sum(layer.macs for layer in layers) / 1e6
        if name == "NiN":
            implied = round((6.72 - 2.05) * 1e6 / (1 / 256 - 1 / 1024) / 1e6)
            note = (
                f"as published, {macs:,.0f} M MACs. The two stated times imply {implied:,} M, with all multipliers "
                "busy and a fixed rest"
            )
        if name == LATE_NIN:
            note = (
                f"227 pixels as of AlexNet, and the third pool behind conv4, not before it: {macs:,.0f} M MACs. A "
                "guess, which also gives the implied figures of Table 5"
            )
        for at, array in enumerate(WIDTHS):
            stated = (SOURCES | VARIANTS)[name].stated[at]
            ms = float(network_cycles(layers, adaptive(layers, array.tin), array, WEIGHT_RATE)) * 1e3 / array.clock_hz
            what, last = f"{name}, {width(array)}", at == len(WIDTHS) - 1
            run = programs.of([name], ALL, [array], Plan.ADAP_2)
            counted = round(run[0].total * 1e3 / array.clock_hz, 3) if run else None
            yield Figure("Table 4", what, "ms", stated, round(ms, 3), note if last else "", counted)


def table_5(networks: Networks, programs: Programs) -> Iterator[Figure]:
    """PE energy that the adaptive schemes save, with neighbouring pixels packed."""
    stated = {"AlexNet": (47.77, 47.71), "GoogLeNet": (31.48, 31.40), "VGG-19": (3.00, 2.89)}
    implied = [round(4 * MEANS[improved] - sum(each[improved] for each in stated.values()), 2) for improved in (0, 1)]
    for (name, layers), improved in product(networks.items(), (False, True)):
        saved = list[float]()
        for array in (replace(array, packing=Packing.PIXELS) for array in WIDTHS):
            energy = sum(
                pe_energy(*each, array) for each in zip(layers, adaptive(layers, array.tin, improved), strict=True)
            )
            saved.append(percent_saved(energy, sum(pe_energy(layer, Scheme.INTER, array) for layer in layers)))
        note = ""
        if name == LATE_NIN and improved:
            note = (
                "PEs take as much energy in each cycle; neighbouring pixels share an operation; mean of both widths. "
                f"An add-and-store takes {SMALL.adder} of a multiplication: fitted. The paper leaves NiN out; its "
                f"means of 4 networks, {MEANS[0]} and {MEANS[1]}, imply these figures. Programs pack pieces of one map"
            )
        what = f"PE energy saved by adap-{2 if improved else 1}, {name}"
        counted = programs.saved([name], WIDTHS, Plan.INTER, Plan.ADAP_2, _with_adders if improved else _products)
        yield Figure("Table 5", what, "%", stated.get(name, implied)[improved], round(mean(saved), 2), note, counted)


def _products(program: Program) -> int:
    return program.products


def _with_adders(program: Program) -> Rate:
    return program.products + SMALL.adder * program.added


def traffic(networks: Networks, programs: Programs) -> Iterator[Figure]:
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

    def counted(base: Plan, *names: str) -> float | None:
        return programs.saved(names, [SMALL], base, Plan.ADAP_2, lambda program: program.words)

    note = (
        "16-16, in words. Of 16 ways to count, the closest one: add-and-store reads, too; data come in lines of T_in "
        "words; intra and partition store a sum for each input map"
    )
    lines: list[tuple[str, float, Callable[[Layers], Sequence[Scheme]], Plan, Sequence[str], str]] = [
        ("adap-2 below adap-1, mean", 90.13, original, Plan.ADAP_1, list(networks), ""),
        ("adap-2 below intra, mean", 73.7, intra, Plan.INTRA, list(networks), ""),
        ("adap-2 below inter, VGG-19", 93.8, inter, Plan.ORIGINAL, ["VGG-19"], ""),
        ("adap-2 below intra, VGG-19", 77.6, intra, Plan.INTRA, ["VGG-19"], note),
    ]
    for what, stated, base, plan, names, text in lines:
        yield Figure("Fig. 10", what, "%", stated, saved(base, *names), text, counted(plan, *names))


def rounded(value: Rate | float) -> float:
    """Two decimals."""
    return round(float(value), 2)


def ratio(value: Rate, base: Rate) -> float:
    """A quotient, with two decimals."""
    return rounded(Fraction(value) / base)


def average(values: Iterable[Rate], bases: Iterable[Rate]) -> float:
    """The mean of quotients, with two decimals."""
    return rounded(mean(Fraction(value) / base for value, base in zip(values, bases, strict=True)))


def average_of(values: Sequence[float] | None) -> float | None:
    """The mean, with two decimals; None of programs that were not run."""
    return None if values is None else rounded(mean(values))


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


def cases(layers: str) -> Iterator[tuple[str, CBrain, Plan]]:
    """The programs that run: networks, arrays and plans."""
    for name in SOURCES:
        for array, plan in product(WIDTHS, OF_LAYERS[layers]):
            yield name, array, plan
        if layers == FIRST and name == "AlexNet":
            yield name, ZHANG, Plan.INTER
            yield name, CBrain(16, 28), Plan.PARTITION
        if layers == ALL:
            for plan in (Plan.ADAP_1, Plan.INTRA, *([Plan.ORIGINAL] if name == "VGG-19" else [])):
                yield name, SMALL, plan
    if layers == ALL:
        yield from product(VARIANTS, WIDTHS, OF_LAYERS[ALL])
        yield "AlexNet", ZHANG, Plan.INTER
        for tout in (24, 28, 32):
            yield "AlexNet", CBrain(16, tout), Plan.ADAP_2


def measured(
    graphs: Mapping[str, Network], names: Sequence[str], layers: str, say: Say, *, proven: bool = False
) -> Iterator[Measured]:
    """Compile networks, or their first layers, and run them. Raises Refusal if programs of one give unlike outputs."""
    outputs = dict[str, Mapping[str, Array]]()
    chosen = [case for case in cases(layers) if case[0] in names]
    for number, (name, array, plan) in enumerate(chosen, 1):
        network, of = graphs[name], layers_of(graphs[name])
        if layers == FIRST:
            network, of = alone(of[0]), of[:1]
        what = f"{name}, {layers}, {width(array)}, {plan.value}"
        task = Task(network, of, plan.schemes(of, array.tin), array)
        run, result = program(task, proven=proven)
        if not same(outputs.setdefault(name, result), result):
            raise Refusal(f"{what}: gives other outputs than the program before: a defect of cnncc")
        say(f"{number} of {len(chosen)}: {what}: {run.total:,} cycles")
        formula = network_cycles(of, task.schemes, array)
        weights = 0 if layers == FIRST else sum(layer.weights for layer in of) // WEIGHT_RATE
        yield Measured(name, layers, width(array), plan.value, int(formula), weights, run)


@dataclass(frozen=True)
class Result:
    """All that is printed. cases: layers x widths."""

    figures: list[Figure]
    beaten: list[Beaten]
    cases: int
    measured: list[Measured] = field(default_factory=list[Measured])
    mapped: list[Mapped] = field(default_factory=list[Mapped])


def reproduce(programs: Sequence[str], names: Sequence[str], say: Say, *, proven: bool = False) -> Result:
    """All figures. programs: which run, FIRST, ALL or ONNX, of the networks of these names. Raises Refusal."""
    graphs = {name: network_of(source) for name, source in (SOURCES | VARIANTS).items()}
    networks, variants = ({name: layers_of(graphs[name]) for name in of} for of in (SOURCES, VARIANTS))
    count = len(WIDTHS) * sum(map(len, networks.values()))
    by_hand = [layers for layers in programs if layers != ONNX]
    runs = [each for layers in by_hand for each in measured(graphs, names, layers, say, proven=proven)]
    from_onnx = list(mapped_samples(names, say)) if ONNX in programs else []
    return Result(list(figures(networks, variants, Programs(runs))), list(beaten(networks)), count, runs, from_onnx)


def mapped_samples(names: Sequence[str], say: Say) -> Iterator[Mapped]:
    """The whole networks of `samples/models.py`, mapped by the compiler. Raises Refusal."""
    with TemporaryDirectory() as folder:
        for source in (SOURCES[name] for name in names if name in SOURCES):
            model = Path(folder) / f"{source.sample}.onnx"
            write_sample(source, model)
            each = mapped(model, SMALL)
            say(f"{each.network}, {each.width}: {each.adaptive:,} cycles, output stationary {each.stationary:,}")
            yield each


def as_text(result: Result) -> Iterator[str]:
    """The tables, with notes below the lines that they explain."""
    cells = list[list[str] | str]()
    for row in result.figures:
        values = (shown(row.paper), shown(row.calculus), off(row), shown(row.program))
        cells.append([row.where, row.what, row.unit, *values])
        if row.note:
            cells.append(f"      {row.note}")
    yield "Song et al.: PEs of 16 or 32 multipliers, as many PEs, 1 GHz"
    columns = [Column("", TEXT), Column("", TEXT), Column("", TEXT), "paper", "calculus", "off by", "program"]
    yield from table(columns, cells)
    yield ""
    yield f"Algorithm 2 does not choose the fastest scheme in {len(result.beaten)} of {result.cases} cases:"
    rows = [
        [each.network, each.width, each.layer, each.chosen, f"{each.cycles:,}", each.better, f"{each.better_cycles:,}"]
        for each in result.beaten
    ]
    named = [Column(title, TEXT) for title in ("network", "width", "layer", "chosen")]
    yield from table([*named, "cycles", Column("better", TEXT), "cycles"], rows)
    for layers, what in ((FIRST, "Conv1"), (ALL, "Networks up to their last convolution")):
        if rows := [each for each in result.measured if each.layers == layers]:
            yield ""
            yield f"{what}, compiled and run, with equal outputs of all programs:"
            yield from _programs(rows)
    if result.mapped:
        yield ""
        yield "From ONNX, mapped by the compiler. Outputs are equal, the adaptive program is proven:"
        columns = [Column("network", TEXT), Column("array", TEXT), "output stationary", "adaptive", "may err"]
        yield from table(columns, [_mapped_row(each) for each in result.mapped])


def _mapped_row(each: Mapped) -> list[str]:
    return [each.network, each.width, f"{each.stationary:,}", f"{each.adaptive:,}", error_text(each.error_bits)]


def _programs(rows: Sequence[Measured]) -> Iterator[str]:
    """A line for each program. Below it what makes a difference of more than 3 %, in cycles by cause."""
    lines = list[list[str] | str]()
    for each in rows:
        above = each.program.total / each.expected - 1
        cells = (f"{cycles:,}" for cycles in (each.expected, each.program.convolving, each.program.total))
        energy = f"{each.program.pe_energy / 1e6:,.0f}"
        lines.append([each.network, each.width, each.plan, *cells, f"{100 * above:+.1f} %", energy])
        if abs(above) > SPLIT_FROM:
            parts = {cause: cycles for cause, cycles in each.parts().items() if abs(cycles) > each.expected / 1000}
            rest = sum(each.parts().values()) - sum(parts.values())
            shown = ", ".join(f"{cause} {cycles:+,}" for cause, cycles in {**parts, "others": rest}.items())
            lines.append(f"      {shown}")
        if each.program.error_bits is not None:
            lines.append(f"      proven, but for an error of at most {error_text(each.program.error_bits)}")
    named = [Column(title, TEXT) for title in ("network", "array", "schemes")]
    yield from table([*named, "formulas", "convolving", "program", "above formulas", "PE energy, M"], lines)


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
@click.option(
    "--programs",
    type=click.Choice(["none", "first", "all", "onnx"]),
    default="first",
    show_default=True,
    help="What is compiled and run: first layers, in 6 s; also all convolutions, in 4 minutes; or, from ONNX, whole "
    "networks as the compiler maps them, three of them in 5 minutes. CPU time of one core.",
)
@click.option("--prove", is_flag=True, help="Prove them, too, but for an error of 2^-50: 50 minutes for all.")
@click.option("--network", "names", type=click.Choice([*SOURCES, *VARIANTS]), multiple=True, help="Run these alone.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def main(programs: str, prove: bool, names: tuple[str, ...], as_json: bool) -> None:
    """Reproduce the figures of C-Brain, one line each: the paper's, what its schemes take by formulas, and in programs.

    \b
    python samples/reproduce/cbrain.py
    python samples/reproduce/cbrain.py --programs all --network AlexNet
    python samples/reproduce/cbrain.py --json > cbrain.json
    """
    layers = {"none": (), "first": (FIRST,), "all": (FIRST, ALL), "onnx": (ONNX,)}[programs]
    try:
        result = reproduce(layers, names or [*SOURCES, *VARIANTS], partial(click.echo, err=True), proven=prove)
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    click.echo(json.dumps(asdict(result), indent=1) if as_json else fitted(as_text(result)))


if __name__ == "__main__":
    main()
