"""cnncc/cbrain: the schemes of C-Brain against numbers computed apart from it, and against brute force.

`tests/data/cbrain.json` has the paper's numbers and those recomputed by an independent program. `operations` groups the
products of a layer into operations, one by one, by what the paper says of each scheme. It knows no formula.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from cnn_ir import parse
from examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cnncc.cbrain.convolution import Convolution, convolutions
from cnncc.cbrain.kernel_partition import partition, small_windows, window_ranges
from cnncc.cbrain.memory_order import lines_read, order_cycles
from cnncc.cbrain.scheme_choice import StoredOrder, adaptive, choose, faster_scheme, plan, stored_order, wanted_order
from cnncc.cbrain.schemes import (
    Accesses,
    CBrain,
    Counting,
    Packing,
    Scheme,
    accesses,
    ideal_cycles,
    improvement,
    layer_cycles,
    network_cycles,
    pe_energy,
    percent_saved,
    unroll_factor,
    unrolled_load_cycles,
)
from cnncc.errors import Refusal
from cnncc.eval.cnn import convolution as sums_of
from cnncc.util.convention import CORRECTED, PAPER
from cnncc.window import Window

ROOT = Path(__file__).parent.parent
GOLDEN: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "cbrain.json").read_text())
INTER, IMPROVED, UNROLLED, SLIDING, PARTITION = Scheme
SCHEMES = {"inter": INTER, "intra": UNROLLED, "partition": PARTITION}
NAMES = SCHEMES | {"intra": SLIDING}  # of Algorithm 2
PACKINGS = {"pieces": Packing.PIECES, "maps": Packing.MAPS, "pixels": Packing.PIXELS, "single": Packing.SINGLE}
SMALL, LARGE = CBrain(16, 16), CBrain(32, 32)


def golden_layer(row: dict[str, Any]) -> Convolution:
    window = Window((row["k"],) * 2, (row["s"],) * 2, (row["pad"],) * 4, group=row["groups"])
    return Convolution(row["name"], (row["X"],) * 2, row["Din"], row["Dout"], window)


NETS = {name: [golden_layer(row) for row in rows] for name, rows in GOLDEN["networks"].items()}
TABLE_4 = ("Alexnet", "Googlenet", "VGG19", "NiN")


# The paper's networks


@pytest.mark.parametrize("net", NETS)
def test_cbrain_sizes(net: str) -> None:
    for layer, row in zip(NETS[net], GOLDEN["networks"][net], strict=True):
        assert (layer.results, layer.macs, layer.weights) == ((row["out"],) * 2, row["macs"], row["weights"])


@pytest.mark.parametrize(("net", "array"), [*product(NETS, (SMALL, LARGE))])
def test_cbrain_cycles_of_layers(net: str, array: CBrain) -> None:
    rows = GOLDEN["layer_cycles"][f"{net} {array.tin}-{array.tout}"]
    for layer, row in zip(NETS[net], rows, strict=True):
        assert {name: layer_cycles(layer, scheme, array) for name, scheme in SCHEMES.items()} == {
            name: row[name] for name in SCHEMES
        }
        assert layer_cycles(layer, choose(layer, array.tin).scheme, array) == row["adaptive"]
        assert layer_cycles(layer, IMPROVED, array) == row["inter"]


def test_cbrain_times_of_networks() -> None:
    for row in GOLDEN["cycle_models"]:
        tin, tout = map(int, row["width"].split("-"))
        layers, array = NETS[row["net"]], CBrain(tin, tout)
        for name, scheme in SCHEMES.items():
            assert network_cycles(layers, [scheme] * len(layers), array) == round(row[name] * 1e6)
        for name, packing in PACKINGS.items():
            packed = CBrain(tin, tout, packing=packing)
            assert network_cycles(layers, adaptive(layers, tin), packed) == round(row[f"adap_{name}"] * 1e6)
        with_weights = network_cycles(layers, adaptive(layers, tin), array, 16)
        assert float(with_weights) == pytest.approx(row["adap_weights16"] * 1e6, abs=1e-3)
        ideal = sum(ideal_cycles(layer, array) for layer in layers)
        assert float(ideal) == pytest.approx(row["ideal_ms"] * 1e6, abs=1e-3)


def test_cbrain_first_layers() -> None:
    for row in GOLDEN["conv1"]:
        tin, tout = map(int, row["width"].split("-"))
        layer = NETS[row["net"]][0]
        for name in ("pieces", "maps", "pixels"):
            assert layer_cycles(layer, PARTITION, CBrain(tin, tout, packing=PACKINGS[name])) == row[name]
        assert float(unrolled_load_cycles(layer, CBrain(tin, tout))) == row["unrolled_load"]


def test_cbrain_unrolling() -> None:
    """Eq. 1: no one convention gives both ends of Fig. 3, 9 and 18.9."""
    layers = NETS["Alexnet"] + [NETS["Googlenet"][at] for at in (0, 1, 2, 5, 7)]
    for layer, row in zip(layers, GOLDEN["unroll_factors"], strict=True):
        assert float(unroll_factor(layer, PAPER)) == row["unpadded"]
        assert float(unroll_factor(layer.padded(), PAPER)) == row["padded"]
        assert float(unroll_factor(layer, CORRECTED)) == row["padded_over_raw"]
    assert (layers[1].name, int(10 * unroll_factor(layers[1].padded(), PAPER))) == ("conv2", 189)


def test_cbrain_partitions() -> None:
    for row in GOLDEN["partitions"]:
        layer = Convolution("conv", (row["X"],) * 2, 3, 4, Window((row["k"],) * 2, (row["s"],) * 2))
        cut = partition(layer)
        assert (layer.results, cut.grid, cut.side, cut.pieces) == (
            (row["out"],) * 2,
            (row["g"],) * 2,
            (row["ks"],) * 2,
            row["pieces"],
        )
        assert cut.image == (row["padded_side"],) * 2
        assert prod(cut.kernel) / layer.taps == pytest.approx(row["mac_overhead"])
        ranges = window_ranges(layer, CORRECTED)
        first, second, last = ranges[0], ranges[min(1, len(ranges) - 1)], ranges[-1]
        want = [row["first"], row["second"], row["last"]]
        assert [[list(place) for place in each] for each in (first, second, last)] == want


@pytest.mark.parametrize(("net", "tin"), [*product(NETS, (16, 32))])
def test_cbrain_algorithm_2(net: str, tin: int) -> None:
    for (chosen, order), row in zip(plan(NETS[net], tin), GOLDEN["plans"][f"{net} {tin}"], strict=True):
        assert (chosen.scheme, order.value) == (NAMES[row["scheme"]], row["store"])
        assert str(row["Din"]) in chosen.reason


def test_cbrain_algorithm_2_is_beaten_in_8_of_180_cases() -> None:
    beaten, cases = list[dict[str, Any]](), 0
    for net, array in product(TABLE_4, (SMALL, LARGE)):
        for layer in NETS[net]:
            cases += 1
            if (better := faster_scheme(layer, array)) is not None:
                chosen = choose(layer, array.tin).scheme
                beaten.append(
                    {
                        "net": net,
                        "width": f"{array.tin}-{array.tout}",
                        "layer": layer.name,
                        "chosen": next(name for name, scheme in NAMES.items() if scheme is chosen),
                        "cycles": layer_cycles(layer, chosen, array),
                        "better": next(name for name, scheme in SCHEMES.items() if scheme is better),
                        "better_cycles": layer_cycles(layer, better, array),
                    }
                )
    assert beaten == GOLDEN["algorithm2_beaten"] and (len(beaten), cases) == (8, 180)


def test_cbrain_fig_9() -> None:
    net, want = NETS["Alexnet"], GOLDEN["fig9"]
    assert [layer_cycles(layer, INTER, CBrain(7, 64)) for layer in net] == want["zhang_7_64"]
    for tout in (24, 28, 32):
        schemes = adaptive(net, 16)
        cycles = [layer_cycles(*each, CBrain(16, tout)) for each in zip(net, schemes, strict=True)]
        assert cycles == want[f"16-{tout}"]["cycles"]


def test_cbrain_traffic() -> None:
    """All 16 ways to count, of each scheme and network."""
    for row in GOLDEN["traffic"]:
        tin, tout = map(int, row["width"].split("-"))
        counting = Counting(bool(row["psum_read"]), row["aligned"], row["per_map"])
        for net, want in row["words"].items():
            layers = NETS[net]
            schemes = {name: [scheme] * len(layers) for name, scheme in SCHEMES.items()}
            schemes |= {"adap-1": adaptive(layers, tin), "adap-2": adaptive(layers, tin, improved=True)}
            for name, chosen in schemes.items():
                array = CBrain(tin, tout)
                words = [accesses(*each, array, counting).total for each in zip(layers, chosen, strict=True)]
                assert sum(words) == want[name], (row["width"], counting, net, name)


def test_cbrain_energy_is_that_of_cycles() -> None:
    """Table 5's column adap-1 is the cycles that are saved; the adders of adap-2 cost the rest of 0.06 to 0.11."""
    for name, packing in PACKINGS.items():
        for net, want in zip(TABLE_4, GOLDEN["saved_cycles"][name], strict=True):
            saved = list[float]()
            for array in (CBrain(16, 16, packing=packing), CBrain(32, 32, packing=packing)):
                layers = NETS[net]
                base = sum(pe_energy(layer, INTER, array) for layer in layers)
                chosen = zip(layers, adaptive(layers, array.tin), strict=True)
                saved.append(percent_saved(sum(pe_energy(*each, array) for each in chosen), base))
            assert round(sum(saved) / 2, 2) == want
    conv3 = NETS["Alexnet"][2]
    assert pe_energy(conv3, IMPROVED, SMALL) / pe_energy(conv3, INTER, SMALL) == 1 + SMALL.adder / 16


def test_cbrain_improvement() -> None:
    """Section 4.2.2: as printed, D_in / T_in loads are saved for a store. Corrected, against the accesses."""
    layer = next(layer for layer in NETS["VGG19"] if layer.name == "conv3_2")
    stores, loads = improvement(layer, SMALL, PAPER)
    assert loads == stores * Fraction(layer.depth, 16)
    added, saved = improvement(layer, SMALL, CORRECTED)
    before, after = (accesses(layer, scheme, SMALL, Counting()) for scheme in (INTER, IMPROVED))
    assert (after.sums - before.sums, before.weights - after.weights) == (added, 16 * saved)


# Against brute force

T = TypeVar("T")
Product = tuple[int, int, int, int, int]  # output pixel, piece, input map, place in a small window or kernel, kernel


def batched(things: Iterable[T], most: int) -> Iterator[tuple[T, ...]]:
    every = list(things)
    return (tuple(every[at : at + most]) for at in range(0, len(every), most))


def operations(layer: Convolution, scheme: Scheme, array: CBrain) -> Iterator[tuple[Product, ...]]:
    """The products of each operation of T_out PEs, of the first kernel alone: what fits T_in, by what the scheme says.

    Products on the zeros of a partitioned kernel are products, too.
    """
    pixels, maps, taps = range(layer.pixels), range(layer.depth), range(layer.taps)
    turns = layer.window.group * len(list(batched(range(layer.kernels), array.tout)))
    for turn in range(turns):
        match scheme:
            case Scheme.INTER | Scheme.IMPROVED:
                for pixel, tap in product(pixels, taps):
                    yield from batched(((pixel, 0, at, tap, turn) for at in maps), array.tin)
            case Scheme.UNROLLED | Scheme.SLIDING:
                for pixel, at in product(pixels, maps):
                    yield from batched(((pixel, 0, at, tap, turn) for tap in taps), array.tin)
            case Scheme.PARTITION:
                yield from partition_operations(layer, array, turn)


def partition_operations(layer: Convolution, array: CBrain, turn: int) -> Iterator[tuple[Product, ...]]:
    cut = partition(layer)
    pixels, maps, pieces = range(layer.pixels), range(layer.depth), range(cut.pieces)
    queues: list[list[tuple[int, int, int]]]  # small windows that may share an operation
    match array.packing:
        case Packing.PIECES:
            queues = [[(pixel, piece, at) for piece in pieces] for pixel in pixels for at in maps]
        case Packing.MAPS:
            queues = [[(pixel, piece, at) for at in maps for piece in pieces] for pixel in pixels]
        case Packing.PIXELS:
            queues = [[(pixel, piece, at) for pixel in pixels] for piece in pieces for at in maps]
        case Packing.SINGLE:
            queues = [[window] for window in product(pixels, pieces, maps)]
    for queue in queues:
        if cut.taps > array.tin:
            for window in queue:
                yield from batched(((*window, tap, turn) for tap in range(cut.taps)), array.tin)
        else:
            for windows in batched(queue, array.tin // cut.taps):
                yield tuple((*window, tap, turn) for window in windows for tap in range(cut.taps))


@st.composite
def layers(draw: Callable[[Any], Any], dilations: int = 1) -> Convolution:
    image, group = (draw(st.integers(1, 7)), draw(st.integers(1, 7))), draw(st.integers(1, 2))
    inputs, outputs = group * draw(st.integers(1, 5)), group * draw(st.integers(1, 5))
    kernel, stride = (tuple(draw(st.integers(1, 4)) for _ in "hw") for _ in "ks")
    pad = tuple(draw(st.integers(0, 2)) for _ in range(4))
    dilation = tuple(draw(st.integers(1, dilations)) for _ in "hw")
    window = Window(kernel, stride, pad, dilation, group)
    assume(min(window.output(*image)) > 0)
    return Convolution("conv", image, inputs, outputs, window)


arrays = st.builds(CBrain, st.integers(1, 20), st.integers(1, 4), packing=st.sampled_from(Packing))


@settings(max_examples=examples(60))
@given(layers(), st.sampled_from([INTER, UNROLLED, PARTITION]), arrays)
def test_cbrain_cycles_are_operations(layer: Convolution, scheme: Scheme, array: CBrain) -> None:
    assert layer_cycles(layer, scheme, array) == sum(1 for _ in operations(layer, scheme, array))
    assert layer_cycles(layer, scheme, array) >= ideal_cycles(layer, array)


@settings(max_examples=examples(60))
@given(layers(), st.sampled_from([INTER, UNROLLED, PARTITION]), arrays)
def test_cbrain_data_are_the_words_of_operations(layer: Convolution, scheme: Scheme, array: CBrain) -> None:
    """Counted exactly, each operation of T_out PEs loads its data once; a product loads a weight for each output."""
    words = accesses(layer, scheme, array, Counting(reads=False, lines=False, each_map=False))
    all_words = sum(map(len, operations(layer, scheme, array)))
    assert words.data == all_words
    products = all_words // -(-layer.kernels // array.tout) // layer.window.group * layer.outputs
    assert words.weights == (products if scheme is INTER else products // layer.pixels)


@settings(max_examples=examples(100))
@given(layers(), st.integers(0, 2**32 - 1))
def test_cbrain_partition_computes_the_convolution(layer: Convolution, seed: int) -> None:
    """Algorithm 1, corrected: the sums over all pieces, each one from its first small window on, of integers."""
    draw, cut, groups = np.random.default_rng(seed), partition(layer), layer.window.group
    x = draw.integers(-9, 10, (2, layer.inputs, *layer.image))
    weights = draw.integers(-9, 10, (layer.outputs, layer.depth, *layer.window.kernel))
    (top, left, _, _), (rows, cols) = layer.window.pad, cut.image
    padded = np.zeros((2, layer.inputs, rows + 99, cols + 99), np.int64)
    padded[:, :, top : top + layer.image[0], left : left + layer.image[1]] = x
    data = small_windows(padded[:, :, :rows, :cols], cut.side)
    kernels = np.zeros((layer.outputs, layer.depth, *cut.kernel), np.int64)
    kernels[:, :, : weights.shape[2], : weights.shape[3]] = weights
    pieces = small_windows(kernels, cut.side)
    sums = np.zeros((2, layer.outputs, *layer.results), np.int64)
    for at, ((row, col), (last_row, last_col)) in enumerate(window_ranges(layer, CORRECTED)):
        met = data[:, :, row - 1 : last_row, col - 1 : last_col]
        piece = pieces[:, :, at // cut.grid[1], at % cut.grid[1]][:, :, None, None]
        sums += sums_of(met, piece, Window((1, 1), group=groups), np.int64)
    assert (sums == sums_of(x, weights, layer.window, np.int64)).all()


def test_cbrain_algorithm_1_as_printed_does_not() -> None:
    """All pieces of a row of the kernel meet the same small windows, and rows start at 0, where there are none."""
    layer = Convolution("conv1", (227, 227), 3, 96, Window((11, 11), stride=(4, 4)))
    printed, right = window_ranges(layer, PAPER), window_ranges(layer, CORRECTED)
    assert printed[0] == ((0, 1), (55, 55)) and printed[2] == printed[3] == ((1, 2), (56, 56))
    assert len(set(right)) == 9 > len(set(printed))


# Choices and refusals

CONV = Convolution("conv", (8, 8), 4, 6, Window((2, 2), stride=(2, 2)))
DILATED = Convolution("apart", (8, 8), 4, 6, Window((3, 3), stride=(3, 3), dilation=(2, 1)))


def test_cbrain_choices() -> None:
    """k = s slides, whatever the maps are; 1x1 does not, though k = s; as many maps as multipliers is inter-kernel."""
    one = Window((1, 1))
    assert choose(CONV, 16).scheme is SLIDING and layer_cycles(CONV, SLIDING, SMALL) == 4 * 4 * 4
    assert choose(Convolution("c", (8, 8), 16, 6, one), 16).scheme is INTER
    assert choose(Convolution("c", (8, 8), 15, 6, one), 16).scheme is PARTITION
    assert choose(Convolution("c", (8, 8), 32, 8, Window((1, 1), group=4)), 16).scheme is PARTITION
    dilated = choose(DILATED, 16)
    assert dilated.scheme is INTER
    assert dilated.reason == "4 input maps for 16 multipliers, but a dilated kernel is not partitioned"
    assert faster_scheme(DILATED, SMALL) is UNROLLED
    assert adaptive([CONV, NETS["VGG19"][3]], 16, improved=True) == [SLIDING, IMPROVED]
    assert stored_order([INTER, IMPROVED]) is StoredOrder.INTER and stored_order([INTER, SLIDING]) is StoredOrder.INTRA


def test_cbrain_accesses_by_hand() -> None:
    """conv: 4 maps, 16 pixels, 6 kernels in two turns of T_out = 4, four taps in lines of 8."""
    array = CBrain(8, 4)
    assert accesses(CONV, INTER, array, Counting()) == Accesses(2 * 16 * 4 * 8, 16 * 96, 96)
    assert accesses(CONV, IMPROVED, array, Counting()) == Accesses(2 * 16 * 4 * 8, 96, 96 * 7)
    assert accesses(CONV, SLIDING, array, Counting()) == Accesses(2 * 16 * 4 * 8, 96, 96 * 7)
    assert accesses(CONV, PARTITION, array, Counting(reads=False)) == Accesses(2 * 16 * 4 * 4, 96, 96 * 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: layer_cycles(NETS["Alexnet"][0], SLIDING, SMALL),
            "conv1: kernel (11, 11) with stride (4, 4) and dilation (1, 1): windows slide where both are equal, "
            "without dilation: unroll the data, or partition the kernel",
        ),
        (
            lambda: accesses(DILATED, PARTITION, SMALL, Counting()),
            "apart: dilation (2, 1), a kernel is partitioned without any: leave the kernel whole",
        ),
        (lambda: CBrain(0, 16), "0-16 multipliers at 1000000000 Hz: give 1 or more"),
        (lambda: choose(CONV, 0), "0 multipliers in a PE: give 1 or more"),
        (
            lambda: Convolution("c", (2, 2), 1, 1, Window((3, 3))),
            "c: the window spans (3, 3) of an image of (2, 2): enlarge it",
        ),
        (
            lambda: Convolution("c", (2, 2), 3, 2, Window((1, 1), group=2)),
            "c: 3 inputs and 2 outputs in 2 groups: give multiples of the groups",
        ),
        (
            lambda: Convolution("c", (2, 2), 0, 2, Window((1, 1))),
            "c: image (2, 2), 0 inputs, 2 outputs: give 1 or more",
        ),
    ],
)
def test_cbrain_refusals(call: Callable[[], object], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        call()
    assert str(refused.value) == message


# From a model


def module(frames: int) -> str:
    return f"""
        func.func @main(%x: tensor<{frames}x3x8x8xi16>) -> tensor<{frames}x10x1x1xi32> {{
          %a = cnn.conv %x weights @a window <kernel = [3, 3], stride = [2, 2], pad = [1, 1, 1, 1]>
               label "a" until "a.r" : tensor<{frames}x3x8x8xi16> -> tensor<{frames}x4x4x4xi16>
          %p = cnn.pool "max" %a window <kernel = [4, 4]> label "p"
               : tensor<{frames}x4x4x4xi16> -> tensor<{frames}x4x1x1xi16>
          %f = cnn.conv %p weights @f window <kernel = [1, 1]> label "f"
               : tensor<{frames}x4x1x1xi16> -> tensor<{frames}x10x1x1xi32>
          func.return %f : tensor<{frames}x10x1x1xi32>
        }}"""


def test_cbrain_layers_of_a_model() -> None:
    """Without pools and fully connected layers."""
    window = Window((3, 3), (2, 2), (1, 1, 1, 1))
    assert convolutions(parse(module(1))[0]) == [Convolution("a", (8, 8), 3, 4, window)]
    with pytest.raises(Refusal, match="a: 2 frames at once, the formulas are of 1: compile with --batch 1"):
        convolutions(parse(module(2))[0])


def lines_by_hand(layer: Convolution, scheme: Scheme, array: CBrain, order: StoredOrder, image: tuple[int, int]) -> int:
    """Lines of T_in words that hold the words of each operation, added up over all operations."""
    cut, found = partition(layer), 0
    for words in operations(layer, scheme, array):
        lines = set[int]()
        for pixel, piece, at, tap, _ in words:
            place, side = divmod(pixel, layer.results[1]), layer.window.kernel
            offset = (0, 0)
            if scheme is PARTITION:
                (u, v), side = divmod(piece, cut.grid[1]), cut.side
                offset = (u * side[0], v * side[1])
            inside = divmod(tap, side[1])
            y, x = (p * by + o + i for p, by, o, i in zip(place, layer.window.stride, offset, inside, strict=True))
            inter = (y * image[1] + x) * layer.inputs + at
            intra = (at * image[0] + y) * image[1] + x
            lines.add((inter if order is StoredOrder.INTER else intra) // array.tin)
        found += len(lines)
    return found


@settings(max_examples=examples(40))
@given(layers(), st.sampled_from([INTER, UNROLLED, PARTITION]), st.integers(1, 6), st.integers(1, 4))
def test_cbrain_lines_of_the_other_order(layer: Convolution, scheme: Scheme, tin: int, tout: int) -> None:
    """Exactly so many where maps lie apart; at least so many where the rows that a window needs share no line."""
    whole, array = layer.padded(), CBrain(tin, tout)
    cut = partition(whole)
    rows, cols = (max(sides) for sides in zip(whole.image, cut.image, strict=True))
    if scheme is INTER:
        assume(rows * cols >= tin and (rows, cols) == whole.image)
        lines = lines_by_hand(whole, scheme, array, StoredOrder.INTRA, (rows, cols))
        assert lines_read(whole, scheme, array, StoredOrder.INTRA) == lines
    else:
        assume((cols - cut.kernel[1]) * whole.inputs >= tin)
        lines = lines_by_hand(whole, scheme, array, StoredOrder.INTER, (rows, cols))
        assert layer_cycles(whole, scheme, array) <= lines_read(whole, scheme, array, StoredOrder.INTER) <= lines
    order = wanted_order(scheme)
    assert lines_read(whole, scheme, array, order) == layer_cycles(whole, scheme, array)
    assert order_cycles(whole, scheme, array, order) == 0


def test_cbrain_a_map_is_put_in_order_where_that_is_cheaper() -> None:
    """By hand: 4 maps of 5 x 5, 1 x 1 kernels, T_in = 4. A turn reads 4 lines for 1, in 25 pixels: 75 cycles more."""
    layer = Convolution("c", (5, 5), 4, 8, Window((1, 1)))
    assert order_cycles(layer, INTER, CBrain(4, 8), StoredOrder.INTRA) == 75
    assert order_cycles(layer, INTER, CBrain(4, 1), StoredOrder.INTRA) == 4 * 25  # eight turns would read 600 more
