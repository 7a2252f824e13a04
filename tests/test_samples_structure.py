"""samples/reproduce/structure.py: where nothing overlaps no mapping that the machine runs takes fewer cycles.

Cycles are those of the layer in an encoded program, counted by the interpreter.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conv_grid_cases import Case
from nest_cases import layer_of
from structure import Shape, bound, shape_of, through_dram
from test_dataflows import draw
from test_mapper_search import Machine, array, mapping, nest, points

from cnncc.arch.model import Arch, load_arch
from cnncc.errors import Refusal
from cnncc.mapper.search import search
from cnncc.mapping.text import parse
from cnncc.model.layer_shape import GlbBudget

SEED = load_arch("seed-8x8")
POINTS = Case(k=16, c=16, kernel=(1, 1), image=(12, 12), pad="none")


def serial(arch: Arch) -> Arch:
    return replace(arch, sequencer=replace(arch.sequencer, overlap=False))


def wide(side: int, files: tuple[int, int, int], pixels: int) -> Arch:
    """A GLB and buses that no load waits for."""
    arch = serial(array(side, side, files))
    return replace(
        arch,
        pe=replace(arch.pe, max_pixels=pixels),
        glb=replace(arch.glb, words_per_cycle=32),
        bus=replace(arch.bus, burst_words=32),
        links=replace(arch.links, south=False),
    )


def least(machine: Machine) -> int:
    return bound(shape_of(layer_of(machine.module)), machine.arch).total


def total(machine: Machine, text: str) -> int:
    """Cycles by a mapping, whose weights and parameters lie in the GLB."""
    return machine.cycles(parse(f"weight@glb > params@glb > {text}", machine.shape.sizes))


# Reached but for the cycles that begin and end a layer, and descriptors.
REACHED = {
    "weights held, partial sums": (1, (16, 4, 4), 1, "k':4 > c':4 > weight@rf*2 > h > w > ifmap@rf*2 > {c'' > k''}"),
    "the same on several PEs": (
        2, (16, 4, 4), 1,
        "c':4 > [k':8||2@rows k'':4||2@cols] > weight@rf*2 > h > w > ifmap@rf*2 > {c'' > k'''}",
    ),
    "sums held": (
        2, (16, 4, 16), 8,
        "h':4 > w > [h'':2||2@rows k':8||2@cols] > c':2 > weight@rf*2 > ifmap@rf*2 > {h''' > c'' > k''}",
    ),
    "weights held, whole sums": (1, (64, 64, 4), 1, "k':4 > weight@rf*2 > h > w > ifmap@rf*2 > {c > k''}"),
}  # fmt: skip


@pytest.mark.parametrize("name", REACHED)
def test_a_bound_that_is_reached(name: str, tmp_path: Path) -> None:
    side, files, pixels, text = REACHED[name]
    machine = Machine(POINTS, wide(side, files, pixels), tmp_path)
    assert least(machine) <= total(machine, text) <= 1.03 * least(machine)


def test_a_bound_that_is_nearly_reached_on_the_array_of_the_thesis(tmp_path: Path) -> None:
    """By README.md's mapping: weights stay for an image, sums go to the GLB in parts, 18 of 27 words to neighbours."""
    machine = Machine(Case(k=16, c=16, image=(32, 32), pad="same"), SEED, tmp_path)
    text = "c':3 > weight@rf > h':8 > w':4 > [k':8||2@cols h''||8@rows w''||4@cols] > ifmap@rf > {s > c'' > r > k''}"
    assert least(machine) <= total(machine, text) <= 1.15 * least(machine)


SMALL = [
    (Case(k=3, c=2, image=(4, 4)), array(2, 2, (4, 4, 2))),
    (Case(k=4, c=6, kernel=(1, 1), image=(4, 4)), array(2, 2, (3, 2, 2))),
    (Case(k=3, c=1, group="each", image=(4, 4)), array(2, 2, (9, 9, 2))),
    (Case(kind="max", k=3, kernel=(2, 2), stride=(2, 2), image=(6, 6)), array(2, 2, (1, 4, 2))),
]


@pytest.mark.parametrize("number", range(len(SMALL)))
def test_no_mapping_of_a_space_is_below_the_bound(number: int, tmp_path: Path) -> None:
    """Of the mapper's space, drawn."""
    case, arch = SMALL[number]
    machine, counted = Machine(case, serial(arch), tmp_path), list[int]()
    tried = [mapping(nest(case, point), machine.arch) for point in points(case, machine.arch)]
    for i in np.random.default_rng(number).permutation(len(tried))[:100]:
        try:
            counted.append(machine.cycles(tried[int(i)]))
        except Refusal:
            continue
    assert len(counted) > 20 and least(machine) <= min(counted)


def test_no_mapping_of_any_form_is_below_the_bound(tmp_path: Path) -> None:
    """Random layers on random arrays: random mappings, with operands that are held in slices, and the mapper's best."""
    rng, seen = np.random.default_rng(1), 0
    for _ in range(100):
        drawn = draw(rng)
        if drawn.case.n > 1:
            continue
        machine = Machine(drawn.case, serial(drawn.arch), tmp_path)
        found, fewest = search(machine.shape, machine.arch, GlbBudget(1 << 20)), least(machine)
        assert found is None or fewest <= found.cycles, drawn
        try:
            assert fewest <= machine.cycles(drawn.mapping), drawn
        except Refusal:
            continue
        seen += 1
    assert seen > 20


def test_each_word_of_an_image_comes_once() -> None:
    """By hand: windows touch 113 rows and columns, of which two each may be a border; a port of 32 words a cycle."""
    shape = Shape("mac", 1, 64, 1, 56, 56, 3, 3, (2, 2), (1, 1), own=True, residual=False, images=1)
    assert bound(shape, load_arch("spatial-16x16")).total == (64 * 111 * 111 + 64 * 9) // 32


@pytest.mark.parametrize(
    ("kind", "residual", "glb_words", "words"),
    [
        ("mac", False, 300, (400 + 32 - 300) + (800 - 300)),
        ("mac", True, 300, (400 + 32 + 800 - 300) + (800 - 300)),
        ("copy", False, 300, (800 - 300) + (800 - 300)),
        ("mac", False, 500, 800 - 500),
        ("mac", False, 800, 0),
    ],
)
def test_what_the_glb_has_no_room_for(kind: str, residual: bool, glb_words: int, words: int) -> None:
    """By hand: an image of 4 x 10 x 10, 8 x 4 weights, 8 x 10 x 10 results; 8 words a cycle between DRAM and GLB."""
    shape = Shape(kind, 1, 8, 4, 10, 10, 1, 1, (1, 1), (1, 1), own=kind == "copy", residual=residual, images=1)
    arch = load_arch("spatial-16x16")
    assert through_dram(shape, replace(arch, glb=replace(arch.glb, words=glb_words))) == words // 8
