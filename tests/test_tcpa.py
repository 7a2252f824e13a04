"""cnncc/tcpa: the calculus of Heidorn et al. against numbers computed apart from it, and against a simulation.

`tests/data/tcpa.json` has the paper's numbers and those recomputed from its equations by an independent program.
`simulated` moves single pixels, by the definition of a window alone. It knows neither the equations nor `pixel_times`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, product
from math import inf
from pathlib import Path
from typing import Any

import pytest
from cnn_ir import parse
from examples import examples
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.passes._onnx.windows import position_counts
from cnncc.tcpa.calculus import (
    CORRECTED,
    PAPER,
    Convention,
    Tcpa,
    best_pes,
    fewest_pes,
    frames_per_second,
    layer_by_layer,
    layer_memory,
    layer_parallel,
    parallel_memory,
    pixel_cycles,
    receptive_fields,
    stored_inputs,
)
from cnncc.tcpa.chain_layer import ChainLayer, chain_layers
from cnncc.tcpa.pixel_times import first_frame, full_rate_rings, last_uses, least_ring, peak, scattered_latency
from cnncc.window import Window

Chain = Sequence[ChainLayer]
ROOT = Path(__file__).parent.parent
GOLDEN: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "tcpa.json").read_text())
PES = (4, 1, 8, 1, 2)
ARRAY = Tcpa()
THROTTLED, NATIVE = (54, 216, 324, 1296, 1296), (54, 48, 324, 48, 864)


def golden_layer(row: dict[str, Any]) -> ChainLayer:
    weighted = row["name"].startswith("Conv")
    pad = (row["K"] - 1) // 2 if weighted else 0
    window = Window((row["K"],) * 2, (row["S"],) * 2, (pad,) * 4)
    outputs = row["M"] if weighted else row["N"]
    return ChainLayer(row["name"], (row["R"], row["C"]), row["N"], outputs, window, weighted)


NET = [golden_layer(row) for row in GOLDEN["layers"]]


# The paper's network


def test_tcpa_sizes_of_the_network() -> None:
    assert [layer.results for layer in NET] == [(row["out"],) * 2 for row in GOLDEN["layers"]]
    assert [layer.weights for layer in NET] == [row["weights"] for row in GOLDEN["layers"]]
    assert [layer.pixels * layer.weights for layer in NET] == [row["macs"] for row in GOLDEN["layers"]]


@pytest.mark.parametrize("name", ["fig7", "layer_parallel_2"])
def test_tcpa_layer_parallel_as_printed(name: str) -> None:
    want = GOLDEN[name]
    result = layer_parallel(NET, want["P"], ARRAY, PAPER)
    assert result.native == [step["z_out_raw"] for step in want["steps"]]
    assert result.supplied == [step["z_in"] for step in want["steps"]]
    assert result.matched == want["z_out"] and result.waits == [step["wait_states"] for step in want["steps"]]
    assert (result.intervals, result.starts, result.latencies) == (want["Z"], want["t"], want["L_i"])
    assert (result.latency, result.period) == (want["L"], max(want["L_i"]))
    assert float(frames_per_second(result.period, ARRAY)) == want["fps"]
    assert best_pes(NET, sum(want["P"]), ARRAY, PAPER) == want["P"]


def test_tcpa_layer_by_layer() -> None:
    """Table 1's second column is Eq. 4 with two corrections: all PEs pool, and Conv0's second lane takes filters."""
    assert layer_by_layer(NET, PES, ARRAY, PAPER) == GOLDEN["layer_by_layer_1"]
    want, whole = GOLDEN["layer_by_layer_2"], [16] * 5
    assert sum(layer_by_layer(NET, whole, ARRAY, PAPER)) == want["eq4"]
    lanes = layer_by_layer(NET, whole, Tcpa(filters_in_lanes=True), CORRECTED)
    assert lanes == [cycles for _, cycles in want["convention"].values()] and sum(lanes) == want["stated"]
    assert sum(layer_by_layer(NET, whole, ARRAY, CORRECTED)) == want["stated"] + 784 * 9  # Conv0 takes two turns


def test_tcpa_memory() -> None:
    rows, totals = GOLDEN["memory"], GOLDEN["memory_totals"]
    assert receptive_fields(NET) == [(side, side) for side in GOLDEN["receptive_fields"]]
    assert [layer_memory(layer, PAPER) for layer in NET] == [row["eq14_M1"] for row in rows]
    assert [layer_memory(layer, CORRECTED) for layer in NET] == [row["eq14"] for row in rows]
    assert stored_inputs(NET, PES, ARRAY, PAPER) == [row["inter"] for row in rows]
    assert parallel_memory(NET, PES, ARRAY, PAPER) == totals["eq15"]
    assert totals["eq15"] + stored_inputs(NET, PES, ARRAY, PAPER)[0] == totals["eq15_with_conv0"]


def test_tcpa_fewest_pes() -> None:
    want = [row["P"] for row in GOLDEN["min_pes_100fps"]]
    for convention in Convention:
        assert fewest_pes(NET, 100, ARRAY, convention) == want
        assert frame_rate(want, convention) == 196.8 and frame_rate([1] * 5, convention) == 98.4


def frame_rate(pes: Sequence[int], convention: Convention) -> float:
    return round(float(frames_per_second(layer_parallel(NET, pes, ARRAY, convention).period, ARRAY)), 1)


@pytest.mark.parametrize("by_windows", [False, True])
@pytest.mark.parametrize(("speed", "services"), [("throttled", THROTTLED), ("native", NATIVE)])
def test_tcpa_dependences(speed: str, services: Sequence[int], by_windows: bool) -> None:
    name = f"{speed}, {'window' if by_windows else 'raster'} order"
    first, want = first_frame(NET, services, by_windows), GOLDEN["simulation"][name]
    assert first.ends == want["ends"] and first.ends[-1] == want["latency"]
    uses = [last_uses(*each) for each in zip(NET[1:], first.written[:-1], first.written[1:], strict=True)]
    alive = [peak(*each) for each in zip(first.written[:-1], uses, strict=True)]
    assert alive == want["live_pixels"]
    assert [count * layer.inputs for count, layer in zip(alive, NET[1:], strict=True)] == want["live_bytes"]
    assert scattered_latency(NET, services, by_windows) == GOLDEN["simulation_scatter"][name]


def test_tcpa_uneven_chain_as_printed() -> None:
    """By hand: a kernel smaller than its stride needs K² new pixels, and rows and columns have strides of their own."""
    layers = [
        ChainLayer("first", (6, 7), 2, 3, Window((3, 3), pad=(1, 1, 1, 1))),
        ChainLayer("sub", (6, 7), 3, 2, Window((1, 1), stride=(2, 3))),
        ChainLayer("last", (3, 3), 2, 1, Window((3, 3), stride=(2, 2), pad=(1, 1, 1, 1))),
    ]
    result = layer_parallel(layers, [1, 1, 1], ARRAY, PAPER)
    assert (result.native, result.supplied, result.matched) == ([27, 4, 9], [0, 27, 4 * 27], [27, 27, 108])
    assert (result.latencies, result.latency) == ([42 * 27, 9 * 27, 4 * 108], 27 + 108 + 432)
    assert receptive_fields(layers) == [(5 + 2, 7 + 2), (3 * 2 + 1 - 2, 3 * 3 + 1 - 3), (3, 3)]
    assert stored_inputs(layers, [1, 1, 1], ARRAY, PAPER) == [(7 - 1) * 7 * 2, (5 - 2) * 7 * 3, (3 - 2) * 3 * 2]


def test_tcpa_corrections_of_the_network() -> None:
    """Against the simulation: dependences move the latency, back-pressure slows Conv0 and Pool1, the period stays."""
    result = layer_parallel(NET, PES, ARRAY, CORRECTED)
    assert (result.latency, result.period) == (GOLDEN["simulation"]["native, raster order"]["latency"], 63_504)
    assert result.matched == [81, 324, 324, 1296, 1296] and result.waits == [27, 276, 0, 1248, 432]
    rings = full_rate_rings(NET, result.native)
    flowing = simulated(NET, result.native, rings, 4)
    assert [worker.peak for worker in flowing[:-1]] == rings[1:]
    ends = frame_ends(flowing)
    assert ends[0] == result.latency and ends[3] - ends[2] == result.period
    slower = frame_ends(simulated(NET, result.native, [0, *map(least_ring, NET[1:])], 4))
    assert slower[0] == 85_986 and slower[3] - slower[2] == 73_080  # docs/tcpa.md
    assert best_pes(NET, 16, ARRAY, CORRECTED) == [3, 1, 8, 1, 3]  # as fast as the paper's, with less latency


# A simulation of pixels


@dataclass
class Worker:
    """A layer that computes pixel by pixel, and the ring behind it, whose places are taken and given back in turn.

    needs: of each output pixel, the input pixels. reads: of each output pixel, how often it will still be read.
    A finished pixel that finds no place in the ring waits in the worker.
    """

    cycles: int
    size: int
    needs: list[list[int]]
    reads: list[int]
    room: float
    state: str = "idle"
    end: int = 0
    starts: list[int] = field(default_factory=list[int])
    written: list[int] = field(default_factory=list[int])
    freed: int = 0
    peak: int = 0

    def step(self, before: Worker | None, now: int) -> bool:
        """Do one thing at this time, if there is one to do."""
        at = len(self.written)
        if self.state == "idle" and at < len(self.needs):
            if before and not all(pixel < len(before.written) for pixel in self.needs[at]):
                return False
            self.starts.append(now)
            self.state, self.end = "working", now + self.cycles
        elif self.state == "working" and self.end <= now:
            if before:
                for pixel in self.needs[at]:
                    before.reads[pixel] -= 1
                before.give_back()
            self.state = "done"
        elif self.state == "done" and at - self.freed < self.room:
            self.written.append(now)
            self.give_back()
            self.state = "idle"
        else:
            return False
        return True

    def give_back(self) -> None:
        while self.freed < len(self.written) and not self.reads[self.freed]:
            self.freed += 1


def window_pixels(layer: ChainLayer, row: int, col: int) -> Iterator[int]:
    """The pixels of the image, numbered in raster order, that an output pixel reads."""
    window, (rows, cols) = layer.window, layer.image
    for r, c in product(range(window.kernel[0]), range(window.kernel[1])):
        y = row * window.stride[0] + r * window.dilation[0] - window.pad[0]
        x = col * window.stride[1] + c * window.dilation[1] - window.pad[1]
        if 0 <= y < rows and 0 <= x < cols:
            yield y * cols + x


def simulated(layers: Chain, services: Sequence[int], rings: Sequence[float], frames: int) -> list[Worker]:
    """Frames through the chain, until nothing moves any more. rings[i] is between layers i - 1 and i, in pixels."""
    workers = list[Worker]()
    for layer, cycles, room in zip(layers, services, [*rings[1:], inf], strict=True):
        (rows, cols), pixels = layer.results, layer.image[0] * layer.image[1]
        needs = [
            [frame * pixels + pixel for pixel in window_pixels(layer, row, col)]
            for frame, row, col in product(range(frames), range(rows), range(cols))
        ]
        if workers:
            for pixel in chain.from_iterable(needs):
                workers[-1].reads[pixel] += 1
        workers.append(Worker(cycles, rows * cols, needs, [0] * len(needs), room))
    now = 0
    while True:
        while any(worker.step(before, now) for before, worker in zip([None, *workers], workers, strict=False)):
            pass
        for worker in workers:
            worker.peak = max(worker.peak, len(worker.written) - worker.freed)
        pending = [worker.end for worker in workers if worker.state == "working"]
        if not pending:
            return workers
        now = min(pending)


def finished(workers: Sequence[Worker]) -> bool:
    """Whether all pixels of all frames are written; if not, layers wait for each other."""
    return all(len(worker.written) == len(worker.needs) for worker in workers)


def frame_ends(workers: Sequence[Worker]) -> list[int]:
    """When each frame has left the chain."""
    return workers[-1].written[workers[-1].size - 1 :: workers[-1].size]


# Drawn chains


@st.composite
def chains(draw: Callable[[Any], Any], most_layers: int = 4) -> Chain:
    """Convolutions, depthwise ones, pools and a last fully connected layer, on images of at most 7 x 7."""
    image, channels = (draw(st.integers(1, 7)), draw(st.integers(1, 7))), draw(st.integers(1, 5))
    layers = list[ChainLayer]()
    for at in range(draw(st.integers(1, most_layers))):
        kind = draw(st.sampled_from(["conv", "conv", "pool", "depthwise", "full"]))
        if kind == "full":
            window = Window(image)
        else:
            kernel, stride, dilation = (tuple(draw(st.integers(1, most)) for _ in "hw") for most in (3, 3, 2))
            spans = [(taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True)]
            pad = tuple(draw(st.integers(0, spans[side % 2] - 1)) for side in range(4))
            window = Window(kernel, stride, pad, dilation, channels if kind == "depthwise" else 1)
        outputs = channels if kind in ("pool", "depthwise") else draw(st.integers(1, 9))
        assume(min(window.output(*image)) > 0)
        # A layer that reads padding alone does not wait for the one before it; no pool of a network does.
        assume(all(max(counts) > 0 for counts in position_counts(window, image, (0, 0, 0, 0))))
        layers.append(ChainLayer(f"{kind}{at}", image, channels, outputs, window, kind != "pool"))
        image, channels = layers[-1].results, outputs
    return layers


arrays = st.builds(Tcpa, st.integers(1, 3), st.booleans(), st.just(1_000_000))
conventions = st.sampled_from(Convention)


@st.composite
def mapped(draw: Callable[[Any], Any]) -> tuple[Chain, list[int], Tcpa]:
    layers = draw(chains())
    return layers, [draw(st.integers(1, 6)) for _ in layers], draw(arrays)


@settings(max_examples=examples(60))
@given(mapped())
def test_tcpa_latency_and_period_are_those_of_a_simulation(case: tuple[Chain, list[int], Tcpa]) -> None:
    layers, pes, array = case
    result = layer_parallel(layers, pes, array, CORRECTED)
    alone = simulated(layers, result.native, [inf] * len(layers), 1)
    assert [worker.starts[0] for worker in alone] == result.starts
    assert frame_ends(alone) == [result.latency]
    assert [worker.written[-1] - worker.starts[0] for worker in alone] == result.latencies

    rings = full_rate_rings(layers, result.native)
    assert stored_inputs(layers, pes, array, CORRECTED) == [
        pixels * layer.inputs for pixels, layer in zip(rings, layers, strict=True)
    ]
    flowing = simulated(layers, result.native, rings, len(layers) + 3)
    ends = frame_ends(flowing)
    assert ends[-1] - ends[-2] == result.period and ends[0] >= result.latency
    assert all(worker.peak <= room for worker, room in zip(flowing, rings[1:], strict=False))


FLAT = ChainLayer("flat", (2, 5), 1, 1, Window((3, 3), pad=(1, 1, 1, 1)))


@settings(max_examples=examples(60))
@given(chains())
@example([FLAT, FLAT])  # both rows of windows read the first pixel
def test_tcpa_least_rings_are_least(layers: Chain) -> None:
    rings, frames = [0, *map(least_ring, layers[1:])], 3
    services = [1 + at for at in range(len(layers))]
    assert finished(simulated(layers, services, rings, frames))
    assert all(map(int.__le__, rings, full_rate_rings(layers, services)))
    for at in range(1, len(layers)):
        small = [*rings[:at], rings[at] - 1, *rings[at + 1 :]]
        assert not finished(simulated(layers, services, small, frames))


@settings(max_examples=examples(100))
@given(mapped(), st.data())
def test_tcpa_more_pes_never_harm(case: tuple[Chain, list[int], Tcpa], data: st.DataObject) -> None:
    layers, pes, array = case
    at = data.draw(st.integers(0, len(layers) - 1))
    more = [*pes[:at], pes[at] + data.draw(st.integers(1, 3)), *pes[at + 1 :]]
    before, after = (layer_parallel(layers, each, array, CORRECTED) for each in (pes, more))
    assert after.period <= before.period and after.latency <= before.latency
    assert before.period <= layer_parallel(layers, pes, array, PAPER).period


@settings(max_examples=examples(100))
@given(chains(), arrays, conventions, st.fractions(1, 100_000, max_denominator=7))
def test_tcpa_fewest_pes_are_fewest(layers: Chain, array: Tcpa, convention: Convention, fps: Fraction) -> None:
    limit = Fraction(array.clock_hz) / fps

    def cycles(layer: ChainLayer, pes: int) -> int:
        return layer.pixels * pixel_cycles(layer, pes, array, convention)

    able = [[pes for pes in range(1, 10) if cycles(layer, pes) <= limit] for layer in layers]  # of up to 9 channels
    if not all(able):
        with pytest.raises(Refusal, match=r"frames a second, limit [\d,.]+ with any PEs"):
            fewest_pes(layers, fps, array, convention)
        return
    pes = fewest_pes(layers, fps, array, convention)
    assert pes == [min(each) for each in able]
    if convention is CORRECTED:
        assert frames_per_second(layer_parallel(layers, pes, array, CORRECTED).period, array) >= fps


WIDE = ChainLayer("wide", (5, 5), 2, 7, Window((3, 3), pad=(1, 1, 1, 1)))
HALF = ChainLayer("half", (5, 5), 7, 9, Window((3, 3), stride=(2, 2), pad=(1, 1, 1, 1)))


@settings(max_examples=examples(60))
@given(chains(3), arrays, conventions, st.integers(0, 5))
@example([WIDE, HALF], ARRAY, PAPER, 2)  # as printed, wide keeps half waiting for 36 pixels of its 25
def test_tcpa_best_pes_are_best(layers: Chain, array: Tcpa, convention: Convention, spare: int) -> None:
    total = len(layers) + spare
    pes = best_pes(layers, total, array, convention)
    every = [each for each in product(range(1, spare + 2), repeat=len(layers)) if sum(each) <= total]
    assert tuple(pes) in every
    periods = [layer_parallel(layers, each, array, convention).period for each in every]
    assert layer_parallel(layers, pes, array, convention).period == min(periods)


# Layers from networks


def test_tcpa_layers_of_an_onnx_model() -> None:
    """The trained MNIST net has the paper's layers, and its fully connected one reads the whole image."""
    compilation = start_compilation(ROOT / "samples" / "models" / "mnist.onnx", CompileOptions("spatial-4x4", batch=1))
    compilation.run_before("cnn-to-nest")
    *layers, last = chain_layers(compilation.module)
    plain = [replace(layer, name=layer.name.title(), window=replace(layer.window, fill=0)) for layer in layers]
    assert plain == NET
    assert (last.name, last.image, last.results, last.window.kernel) == ("fc", (7, 7), (1, 1), (7, 7))
    assert (last.inputs, last.outputs, last.weights) == (16, 10, 7840)
    result = layer_parallel([*layers, last], [*PES, 1], ARRAY, CORRECTED)
    assert result.latency == 77_208 + 10 * 8 * 49 and result.period == 63_504


POOL = "window <kernel = [2, 2], stride = [2, 2]>"


def network(body: str) -> str:
    result = "tensor<1x4x2x2xi16>"
    return f"func.func @main(%x: tensor<1x4x4x4xi16>) -> {result} {{ {body} func.return %y : {result} }}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            network(
                f'%a = cnn.pool "max" %x {POOL} label "a" : tensor<1x4x4x4xi16> -> tensor<1x4x2x2xi16> '
                f'%y = cnn.pool "max" %x {POOL} label "b" : tensor<1x4x4x4xi16> -> tensor<1x4x2x2xi16>'
            ),
            "b: does not read the value before it alone: a chain has no branches",
        ),
        (
            network(
                f'%a = cnn.pool "max" %x {POOL} label "a" : tensor<1x4x4x4xi16> -> tensor<1x4x2x2xi16> '
                '%y = cnn.shuffle %a groups 2 label "s" : tensor<1x4x2x2xi16> -> tensor<1x4x2x2xi16>'
            ),
            "s: cnn.shuffle is no layer of a chain: convolutions, pools and reshapes are",
        ),
        (
            network(
                f'%a = cnn.pool "max" %x {POOL} label "a" : tensor<1x4x4x4xi16> -> tensor<1x4x2x2xi16> '
                '%b = cnn.reshape %a label "r" : tensor<1x4x2x2xi16> -> tensor<1x16x1x1xi16> '
                '%c = cnn.pool "max" %b window <kernel = [1, 1]> label "c" '
                ": tensor<1x16x1x1xi16> -> tensor<1x16x1x1xi16> "
                '%y = cnn.reshape %c label "y" : tensor<1x16x1x1xi16> -> tensor<1x4x2x2xi16>'
            ),
            "c: reads (16, 1, 1) (channels, rows, columns), a gives (4, 2, 2): make them equal",
        ),
    ],
)
def test_tcpa_other_networks_are_refused(text: str, message: str) -> None:
    with pytest.raises(Refusal) as refused:
        chain_layers(parse(text)[0])
    assert str(refused.value) == message


CONV = ChainLayer("conv", (5, 5), 2, 2, Window((3, 3)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ChainLayer("a", (5, 5), 0, 2, Window((3, 3))), "a: image (5, 5), 0 inputs, 2 outputs: give 1 or more"),
        (
            lambda: ChainLayer("a", (2, 5), 2, 2, Window((3, 3))),
            "a: the window spans (3, 3) of an image of (2, 5): enlarge it",
        ),
        (
            lambda: ChainLayer("a", (5, 5), 4, 3, Window((3, 3), group=2)),
            "a: 4 inputs and 3 outputs in 2 groups: give multiples of the groups",
        ),
        (
            lambda: ChainLayer("a", (5, 5), 4, 3, Window((3, 3)), weighted=False),
            "a: a pool of 4 inputs has 3 outputs: give as many",
        ),
        (lambda: Tcpa(lanes=0), "0 lanes at 50000000 Hz: give 1 or more"),
        (lambda: receptive_fields([]), "the chain has no layers: give one or more"),
        (
            lambda: receptive_fields([CONV, CONV]),
            "conv: reads (2, 5, 5) (channels, rows, columns), conv gives (2, 3, 3): make them equal",
        ),
        (lambda: layer_parallel([CONV], [1, 1], ARRAY, PAPER), "1 layers and 2 numbers of PEs: give each layer one"),
        (lambda: layer_by_layer([CONV], [0], ARRAY, PAPER), "conv: 0 PEs: give 1 or more"),
        (lambda: fewest_pes([CONV], 0, ARRAY, PAPER), "0 frames a second: give more than 0"),
        (
            lambda: fewest_pes([CONV], 10**6, ARRAY, PAPER),
            "conv: 1,000,000.0 frames a second, limit 617,284.0 with any PEs: ask for less",
        ),
        (
            lambda: best_pes([CONV], 0, ARRAY, PAPER),
            "1 layers on 0 PEs: give each layer a PE, or run layer by layer",
        ),
    ],
)
def test_tcpa_refusals(call: Callable[[], object], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        call()
    assert str(refused.value) == message
