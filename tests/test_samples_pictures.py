"""samples/pictures.py: the pictures of docs/ are what the code draws, from the array and the layer that it is given."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import core_pictures
import pictures
import tcpa

from cnncc.arch.model import load_arch
from cnncc.tcpa.calculus import CORRECTED, layer_memory

TARGET = Path(__file__).parents[1] / "docs" / "pictures"


def test_pictures_are_those_of_the_code() -> None:
    drawn = pictures.pictures()
    assert {path.name: path.read_text() for path in TARGET.iterdir()} == drawn


def test_the_machine_is_that_of_the_arch_file() -> None:
    arch = load_arch("spatial-4x4")
    text = pictures.machine(replace(arch, glb=replace(arch.glb, words=12345))).svg()
    assert text.count(">PE</text>") == 16 and "12,345 words" in text
    n2n = replace(arch, links=replace(arch.links, n2n=False))
    assert pictures.machine(n2n).svg().count("<polygon") == text.count("<polygon") - 16


def test_the_bars_of_a_timeline_are_in_order_and_as_long_as_counted() -> None:
    binary = pictures.compiled()
    recorder = pictures.Recorder(binary)
    assert recorder.elapsed == pictures.program_stats(binary)["cycles"]["total"]
    for engine in pictures.COLOURS:
        bars = [bar for bar in recorder.bars if bar.engine == engine]
        assert bars and all(one.end <= two.start for one, two in zip(bars, bars[1:], strict=False))


def test_the_words_of_layers_in_turn_are_those_of_the_calculus() -> None:
    """Eq. 14 from the shapes of layers; the picture has them from the plan of the program."""
    words = core_pictures.layer_words(core_pictures.example(core_pictures.KEEPS))
    in_turn = [each.weights + each.input + each.result for each in words]
    assert in_turn == [layer_memory(layer, CORRECTED) for layer in tcpa.layers()]


def test_no_text_leaves_its_picture() -> None:
    """A letter takes at most 0.62 of its size, in any of the fonts named."""
    for path in sorted(TARGET.iterdir()):
        text = path.read_text()
        (width, height) = map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', text)[0])
        for x, y, size, anchor, said in re.findall(
            r'<text x="(\d+)" y="(\d+)" font-size="(\d+)" fill="[^"]*" text-anchor="(\w+)"[^>]*>([^<]*)<', text
        ):
            reach = 0.62 * int(size) * len(said) * {"start": 1, "middle": 0.5, "end": 0}[anchor]
            assert int(x) + reach <= width and int(y) < height, f"{path.name}: {said}"
