"""Which mappings of a layer a program can follow (cnncc/model/legal.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cnncc.arch.model import load_arch
from cnncc.isa.fields import LOOP_REGISTERS
from cnncc.mapping.mapping import Loop, Mapping, Sizes
from cnncc.mapping.text import parse
from cnncc.model.layer_shape import LayerShape
from cnncc.model.legal import fits_array, has_few_bodies, has_place_of_params, has_tokens, is_legal, loads_are_even
from cnncc.window import Window


def test_as_many_loops_in_time_as_registers_are_legal() -> None:
    """Loops in space and in the box need no register."""
    shape = LayerShape("mac", Sizes(1, 1 << LOOP_REGISTERS, 2, 4, 4, 1, 1), Window((1, 1)), 0, 4, 4)
    halved = [Loop("k", 1 << i) for i in reversed(range(LOOP_REGISTERS + 1))]
    rest = (Loop("h", 1, "rows"), Loop("c", 1, keep=True), Loop("w", 1, keep=True))
    assert is_legal(shape, Mapping((*halved[1:], *rest)), residual=False)
    assert not is_legal(shape, Mapping((*halved, *rest)), residual=False)


SHAPE = LayerShape("mac", Sizes(1, 10, 8, 12, 6, 1, 1), Window((1, 1)), 0, 12, 6)
ARRAY = load_arch("spatial-4x4")
LAST_K = "k''"
BOX = "weight@rf*2 > ifmap@rf*2 > {h > w > c > k}"


def mapped(text: str) -> Mapping:
    """A mapping of SHAPE: its loops and stages outside the box, whose loops have two marks each."""
    return parse(text, SHAPE.sizes)


@pytest.mark.parametrize(
    ("stages", "orders"),
    [
        ("h':2 > output@glb*2 > residual@glb*2 > ifmap@glb*2", True),
        ("output@glb*2 > h':2 > residual@glb*2 > ifmap@glb*2", False),
        ("h':2 > output@glb > residual@glb*2 > ifmap@glb*2", False),
        ("h':2 > output@glb*2 > residual@glb > ifmap@glb*2", True),
        ("output@glb > h':2 > ifmap@glb*2", True),
        ("output@glb > h':2 > ifmap@glb", False),
        ("ifmap@glb > h':2 > output@glb", True),
        ("h':2 > residual@glb > ifmap@glb*2", True),
        ("residual@glb > h':2 > ifmap@glb*2", False),
        ("h':2 > residual@glb*2 > ifmap@glb", False),
        ("h':2 > c':4 > ifmap@glb*2", True),
        ("h':2 > c':4 > ifmap@glb", False),
        ("h':2 > output@glb > c':4 > ifmap@glb*2", True),
    ],
)
def test_tokens_order_stages_that_stand_in_some_places(stages: str, orders: bool) -> None:
    h, c = ("h''" if "h'" in stages else "h"), ("c''" if "c'" in stages else "c")
    box = BOX.replace("h >", f"{h} >").replace("c >", f"{c} >")
    assert has_tokens(mapped(f"weight@glb > {stages} > {box}")) == orders


@pytest.mark.parametrize(
    ("mapping", "legal"),
    [
        ("weight@glb > n > BOX", True),
        ("weight@glb > n':3 > h':2 > n'' > BOX", True),
        ("weight@glb > n':4 > h':2 > n'' > BOX", False),
        ("weight@glb > n > h':2 > ifmap@glb*2 > BOX", False),
        ("weight@glb > h':2 > ifmap@glb*2 > n > BOX", True),
        ("weight@glb > n||@rows > BOX", False),
        ("weight@glb > weight@rf > ifmap@rf > {n > h > w > c > k}", False),
        ("weight@glb > weight@rf > ifmap@rf > n > {h > w > c > k}", False),
        ("weight@glb > weight@rf > n > ifmap@rf > {h > w > c > k}", True),
        ("weight@glb > residual@glb > output@glb > n||@rows > BOX", True),
    ],
)
def test_images_at_two_distances_are_committed_one_by_one(mapping: str, legal: bool) -> None:
    """Of a residual and a result in the GLB. Where all may lie side by side, each of these mappings is legal."""
    shape = replace(SHAPE, sizes=replace(SHAPE.sizes, n=6))
    box = BOX.replace("h >", "h'' >") if "h'" in mapping else BOX
    given = parse(mapping.replace("BOX", box), shape.sizes)
    assert is_legal(replace(shape, residual_apart=True), given, residual=True) == legal
    assert is_legal(shape, given, residual=True)


@pytest.mark.parametrize(
    ("stages", "legal"),
    [
        ("params@glb > weight@glb > k':4", True),
        ("k':4 > params@glb*2 > weight@glb*2", True),
        ("k':4 > params@glb > weight@glb*2", False),
        ("k':4 > params@glb*2", True),
        ("weight@glb > k':4 > params@glb*2", False),
        ("k':4 > params@glb*2 > weight@glb*2 > output@glb*2", False),
    ],
)
def test_slices_of_params_come_with_those_of_weights(stages: str, legal: bool) -> None:
    mapping, shape = mapped(f"{stages} > {BOX.replace('k', LAST_K)}"), replace(SHAPE, params=2)
    assert has_place_of_params(shape, mapping) == legal
    assert has_place_of_params(replace(shape, shuffle=2), mapping) == (legal and stages.startswith("params"))


@pytest.mark.parametrize(
    ("stages", "legal"),
    [
        ("params@glb", True),
        ("params@glb > h':4 > output@glb*2", True),
        ("params@glb > w':3 > output@glb*2", False),
        ("w':3 > params@glb*2 > output@glb*2 > ifmap@glb*2", True),
        ("w':3 > params@glb > output@glb*2 > ifmap@glb*2", False),
        ("w':3 > params@glb*2 > output@glb*2 > h':4 > ifmap@glb*2", False),
        ("h':4 > h'':3 > params@glb*2 > output@glb*2 > ifmap@glb*2", False),
        ("h':6 > h'':3 > params@glb*2 > output@glb*2 > ifmap@glb*2", True),
    ],
)
def test_params_per_position_come_with_the_blocks_of_the_output(stages: str, legal: bool) -> None:
    shape = LayerShape("add", Sizes(1, 10, 1, 12, 6, 3, 3), Window((3, 3), group=10), 2, 14, 8, per_position=True)
    w, h = (dim + "'" * (count + 1 if (count := stages.count(f"{dim}'")) else 0) for dim in "wh")
    assert has_place_of_params(shape, parse(f"{stages} > ifmap@rf*2 > {{{w} > k > s > r > {h}}}", shape.sizes)) == legal


def test_operands_come_into_the_glb_before_register_files() -> None:
    outside = "weight@glb > h':2 > ifmap@glb*2 > ifmap@rf*2 > k':2 > weight@rf*2 > {h'' > w > c > k''}"
    inside = "weight@glb > h':2 > ifmap@rf*2 > k':2 > ifmap@glb*2 > weight@rf*2 > {h'' > w > c > k''}"
    assert has_tokens(mapped(outside)) and not has_tokens(mapped(inside))


def test_few_copies_of_bodies() -> None:
    """100 is peeled into 13 sevens, one, and a rest of 2; 7 into 2, 1 and a rest: 7 copies, of three dims 343."""
    shape = LayerShape("mac", Sizes(1, 100, 2, 100, 100, 1, 1), Window((1, 1)), 0, 100, 100)
    around = "weight@glb > h':7 > w':7 > k':7 > h'':2 > w'':2 > k'':2"
    box = "weight@rf*2 > ifmap@rf*2 > {h''' > w''' > c > k'''}"
    assert has_few_bodies(shape, parse(f"{around} > ifmap@glb > {box}", shape.sizes))
    assert not has_few_bodies(shape, parse(f"{around} > ifmap@glb*2 > {box}", shape.sizes))


@pytest.mark.parametrize(
    ("loops", "fits"),
    [
        ("[h':3||4@rows k':3||4@cols] > weight@rf*2 > ifmap@rf*2 > {h'' > w > c > k''}", False),  # 18 pixels
        ("w':5 > [h':3||4@rows k':3||4@cols] > weight@rf*2 > c':3 > ifmap@rf*2 > {h'' > w'' > c'' > k''}", False),
        ("w':4 > [h':3||4@rows k':3||4@cols] > weight@rf*2 > c':4 > ifmap@rf*2 > {h'' > w'' > c'' > k''}", False),
        ("w':4 > [h':3||4@rows k':5||2@cols] > weight@rf*2 > c':4 > ifmap@rf*2 > {h'' > w'' > c'' > k''}", False),
        ("w':4 > h':4 > [h''||4@rows k':3||4@cols] > weight@rf*2 > c':4 > ifmap@rf*2 > {w'' > c'' > k''}", True),
        ("w':4 > h':5 > [h''||5@rows k':3||4@cols] > weight@rf*2 > c':4 > ifmap@rf*2 > {w'' > c'' > k''}", False),
    ],
)
def test_a_mapping_fits_an_array(loops: str, fits: bool) -> None:
    """PEs on both axes, register files, and 16 pixels of a macro-instruction."""
    assert fits_array(SHAPE, ARRAY, mapped(f"weight@glb > {loops}")) == fits


@pytest.mark.parametrize(("w", "fits"), [(5, True), (6, False)])
def test_a_macro_instruction_has_few_pixels(w: int, fits: bool) -> None:
    """Whatever psums a PE has: 3 x 5 of them are not more than 16."""
    arch = replace(ARRAY, pe=replace(ARRAY.pe, psum_words=64, ifmap_words=64))
    around, column = (f"w':{w} > ", "w''") if w < 6 else ("", "w")
    box = f"{{h'' > {column} > c'' > k''}}"
    text = f"weight@glb > {around}[h':3||4@rows k':3||4@cols] > weight@rf*2 > c':2 > ifmap@rf*2 > {box}"
    assert fits_array(SHAPE, arch, mapped(text)) == fits


@pytest.mark.parametrize(("step", "pes", "even"), [(2, 4, True), (4, 2, True), (3, 3, False)])
def test_loads_outside_loops_in_space_are_even(step: int, pes: int, even: bool) -> None:
    """Eight channels on PEs, in equal parts or not."""
    text = f"weight@glb > ifmap@rf*2 > c':{step}||{pes}@rows > weight@rf*2 > {{h > w > c'' > k}}"
    assert loads_are_even(SHAPE, mapped(text)) == even


@pytest.mark.parametrize(("step", "streamed", "legal"), [(5, "output", True), (4, "output", False), (4, "both", True)])
def test_blocks_of_one_of_residual_and_output_are_equal(step: int, streamed: str, legal: bool) -> None:
    residual = " > residual@glb" if streamed == "both" else ""
    text = f"weight@glb > k':{step} > output@glb{residual} > weight@rf*2 > ifmap@rf*2 > {{h > w > c > k''}}"
    assert is_legal(SHAPE, mapped(text), residual=True) == legal
