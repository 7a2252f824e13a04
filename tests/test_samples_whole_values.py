"""samples/reproduce/whole_values.py: bounds by hand, and all choices of values one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from cli_cases import build, noise, save
from onnx import helper
from whole_values import Layer, Value, fewest_cycles, network_of

from cnncc.arch.model import Arch, load_arch
from cnncc.driver.sources import CompileOptions, start_compilation

ARCH = load_arch("spatial-16x16")  # 8 words a cycle between DRAM and GLB
# An image of 800 words, 1600 words between two layers, 400 results; the network's user has the first and the last.
LAYERS = [Layer(500, 800, 1600, 0, 1), Layer(100, 1600, 400, 1, 2)]
VALUES = [Value(800, -1, 0), Value(1600, 0, 1), Value(400, 1, 2)]


def with_glb(words: int, overlap: bool = True) -> Arch:
    sequencer = replace(ARCH.sequencer, overlap=overlap)
    return replace(ARCH, glb=replace(ARCH.glb, words=words), sequencer=sequencer)


@pytest.mark.parametrize(
    ("words", "overlap", "cycles"),
    [
        (3000, True, 600),  # the image comes while the first layer runs: 100 cycles; results go while the second does
        (1599, True, 500 + 200 + 50),  # 1600 words have gone by then; they come in again, and 400 go behind them
        (3000, False, 100 + 500 + 100 + 50),
        (1599, False, 100 + 500 + 200 + 200 + 100 + 50),
    ],
)
def test_by_hand(words: int, overlap: bool, cycles: int) -> None:
    assert fewest_cycles(LAYERS, VALUES, with_glb(words, overlap)) == cycles


def test_an_image_that_moves_waits_for_all_results_before_it() -> None:
    """1600 words go out in 200 cycles of a first layer that takes 10; then the array has 100 cycles of work."""
    layers = [replace(LAYERS[0], cycles=10, words=8), LAYERS[1]]
    assert fewest_cycles(layers, VALUES, with_glb(1599)) == (8 + 1600) // 8 + max(100, 1600 // 8) + 400 // 8


def one_by_one(layers: Sequence[Layer], values: Sequence[Value], arch: Arch) -> int:
    """The same for each choice of values by itself, from the first cycle to the last."""
    found: list[int] = []
    for choice in product((False, True), repeat=len(values)):
        there = [value for value, stays in zip(values, choice, strict=True) if stays]
        live = [sum(each.words for each in there if each.first <= at <= each.last) for at in range(len(layers))]
        if max(live) > arch.glb.words:
            continue
        given = sum(each.words for each in there if each.first < 0)
        array = dma = given // 8
        for layer in layers:
            image = 0 if choice[layer.image] else layer.words
            residual = 0 if layer.residual is None or choice[layer.residual] else layer.results
            results = 0 if choice[layer.output] else layer.results
            begin, moved = max(array, dma), image + residual + results
            if not arch.sequencer.overlap:
                array = dma = begin + layer.cycles + moved // 8
                continue
            array = (begin if image else array) + layer.cycles
            if image + residual:
                array = max(array, begin + (image + residual) // 8)
            if moved:
                dma = max(begin + moved // 8, array if results else 0)
        returned = sum(each.words for each in there if each.last == len(layers))
        found.append(max(array, dma) + returned // 8)
    return min(found)


@pytest.mark.parametrize("seed", range(40))
def test_all_choices_one_by_one(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 7)
    words = [8 * draw.randint(1, 200) for _ in range(count + 1)]
    last, layers = [0] * (count + 1), list[Layer]()
    for at in range(count):
        residual = draw.choice([None, *range(at)]) if at > 1 else None
        last[at] = at
        if residual is not None:
            last[residual] = max(last[residual], at)
        layers.append(Layer(draw.randint(1, 300), words[at], words[at + 1], at, at + 1, residual))
    last[count] = count
    values = [Value(size, at - 1, end) for at, (size, end) in enumerate(zip(words, last, strict=True))]
    arch = with_glb(draw.randint(1, 2 * max(words)), draw.random() < 0.8)
    assert fewest_cycles(layers, values, arch) == one_by_one(layers, values, arch)


@pytest.mark.usefixtures("short_searches")
def test_what_the_host_computes_is_there_for_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], name="c"),
        helper.make_node("Sin", ["c"], ["s"], name="s"),
        helper.make_node("Conv", ["s", "b"], ["y"], name="d"),
    ]
    weights = {"a": noise(1, 4, 4, 1, 1), "b": noise(2, 2, 4, 1, 1)}
    path = save(build(nodes, {"x": (1, 4, 8, 8)}, ["y"], weights), tmp_path / "net.onnx")
    compilation = start_compilation(path, CompileOptions("spatial-4x4"))
    compilation.run("nest")
    layers, values = network_of(compilation.module, [7, 8])
    assert sorted(values, key=lambda value: value.words) == [
        Value(0, -1, 1), Value(128, 1, 2), Value(256, -1, 0), Value(256, 0, 0)
    ]  # fmt: skip
    assert fewest_cycles(layers, values, with_glb(1)) == (256 + 256 + 128) // 8


@pytest.mark.usefixtures("short_searches")
def test_values_of_a_network(tmp_path: Path) -> None:
    """Two branches and their concatenation, which is one value: 4 x 8 x 8 words in, 3 + 5 channels between, 2 out."""
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["left"], name="left"),
        helper.make_node("Conv", ["x", "b"], ["right"], name="right"),
        helper.make_node("Concat", ["left", "right"], ["both"], name="both", axis=1),
        helper.make_node("Conv", ["both", "c"], ["y"], name="last"),
    ]
    weights = {"a": noise(1, 3, 4, 1, 1), "b": noise(2, 5, 4, 1, 1), "c": noise(3, 2, 8, 3, 3)}
    path = save(build(nodes, {"x": (1, 4, 8, 8)}, ["y"], weights), tmp_path / "net.onnx")
    compilation = start_compilation(path, CompileOptions("spatial-4x4"))
    compilation.run("nest")
    layers, values = network_of(compilation.module, [7, 8, 9])
    assert values == [Value(256, -1, 1), Value(512, 0, 2), Value(72, 2, 3)]
    inner = 8 * 6 * 6  # rows and columns that windows of 3 touch, of which two might be a border
    assert layers == [Layer(7, 256, 192, 0, 1), Layer(8, 256, 320, 0, 1), Layer(9, inner, 72, 1, 2)]
