"""Several images (LOCAL-5): mappings of the tall image run, as predicted, and weights come once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from cli_cases import done, noise
from conv_grid_cases import Case as Layer
from examples import SEED, examples
from frontend_models import model, saved
from nest_cases import layer_of
from random_search import Case
from test_conv_grid import lowered, unmapped
from test_random_search import check

from cnncc.arch.model import load_arch
from cnncc.certificate.least_costs import least_words
from cnncc.dialects.nest import MappingAttr
from cnncc.errors import Refusal
from cnncc.mapper.effort import USUAL
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.least_cost import least_cost
from cnncc.mapper.objective import Objective
from cnncc.mapper.prices import DRAM_WORDS
from cnncc.mapper.several_images import images_inside, of_images, tall_image
from cnncc.mapping.mapping import Mapping
from cnncc.mapping.text import parse
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.legal import can_run
from cnncc.passes._scheduling.nest_layers import layer_shape

pytestmark = pytest.mark.usefixtures("short_searches")

SIZES, GLB = (2, 3, 5, 8, 13), (60, 300, 2048)


def case_of(layer: Layer, words: int, rng: Random, streamed: frozenset[str] = frozenset()) -> Case:
    preset = load_arch("spatial-4x4")
    rows, cols = rng.choice(((2, 2), (3, 2), (4, 4)))
    # Resident values of any number of images have room; the budget is of buffers.
    arch = replace(preset, name="drawn", rows=rows, cols=cols, glb=replace(preset.glb, words=1 << 15))
    return Case("drawn", layer_shape(layer_of(unmapped(layer)[0])), arch, GlbBudget(words, streamed))


KERNELS = {
    "1x1": {"kernel": (1, 1), "image": (4, 5), "k": 12, "c": 8},
    "3x3": {"kernel": (3, 3), "image": (5, 4), "pad": "same", "k": 8, "c": 6},
    "stride": {"kernel": (3, 2), "stride": (2, 1), "image": (7, 5), "k": 8, "c": 4},
    "groups": {"kernel": (3, 3), "image": (5, 5), "group": "two", "k": 4, "c": 4},
    "depthwise": {"kernel": (3, 3), "image": (6, 6), "pad": "same", "group": "each", "k": 12, "c": 1},
    "max": {"kernel": (2, 2), "stride": (2, 2), "image": (6, 6), "kind": "max", "k": 12},
    "line": {"kernel": (1, 1), "image": (1, 5), "k": 12, "c": 8},  # images in a box, too
    "product": {"kernel": (1, 1), "image": (1, 1), "k": 24, "c": 16},
}
PLACES = (frozenset[str](), frozenset({"output"}), frozenset({"ifmap", "output"}))


@pytest.mark.parametrize("number", range(examples(3)))
@pytest.mark.parametrize("name", KERNELS)
def test_mappings_of_drawn_layers_run(name: str, number: int, tmp_path: Path) -> None:
    """Those of the front, too: by cycles, and by energy."""
    rng = Random(f"{SEED} {name} {number}")
    layer = Layer(**KERNELS[name], n=rng.choice(SIZES[:4]), seed=number)
    case = case_of(layer, rng.choice(GLB), rng, PLACES[number % len(PLACES)])
    result = SearchTask(case.shape, case.arch, case.budget, prices=Objective("energy").prices(case.arch)).search()
    if result is None:
        return
    assert result.front[-1].mapping == result.mapping
    assert [each.cycles for each in result.front] == sorted((each.cycles for each in result.front), reverse=True)
    assert [each.cost for each in result.front] == sorted(each.cost for each in result.front)
    for each in dict.fromkeys(one.mapping for one in result.front):
        check(layer, case, each, tmp_path)


@pytest.mark.parametrize(
    "written",
    [
        "params@glb > k':4 > output@glb*2 > c':2 > weight@glb*2 > ifmap@glb*2 > n > h > [k''||4@cols] > weight@rf*2 > "
        "ifmap@rf*2 > {w > s > c'' > r}",
        "weight@glb > params@glb > n':2 > h':2 > output@glb*2 > ifmap@glb*2 > n'' > h'' > [k':4||2@cols "
        "c':2||2@rows] > weight@rf*2 > ifmap@rf*2 > {w > s > c'' > r > k''}",
        "weight@glb > params@glb > h':2 > ifmap@glb > k':4 > output@glb > n > h'' > [k''||4@cols "
        "c':2||2@rows] > weight@rf*2 > ifmap@rf*2 > {w > s > c'' > r}",
        "weight@glb > params@glb > n':4 > output@glb*2 > ifmap@glb*2 > n'' > h > [k':4||2@cols c':2||2@rows] > "
        "weight@rf*2 > ifmap@rf*2 > {w > s > c'' > r > k''}",
    ],
)
def test_blocks_of_several_images_run(written: str, tmp_path: Path) -> None:
    """In DRAM the parts of images lie apart: each has a transfer. The last block of images may be smaller."""
    layer = Layer(image=(5, 4), pad="same", k=8, c=4, n=5)
    case = case_of(layer, 4096, Random(1), frozenset({"ifmap", "output"}))
    check(layer, replace(case, arch=load_arch("spatial-4x4")), parse(written, case.shape.sizes), tmp_path)


def test_rows_are_computed_together() -> None:
    """With a GLB that weights do not fit, each row fetches them otherwise."""
    layer = product(n=16, k=24, c=24)
    case = replace(case_of(layer, 300, Random(2)), arch=load_arch("spatial-4x4"))
    task = SearchTask(case.shape, case.arch, case.budget)
    together, apart = task.search(), replace(task, together=False).search()
    assert together and apart and 4 * together.cycles < apart.cycles
    assert together.mapping.loops[0].dim != "n" and apart.mapping.loops[0].dim == "n"
    assert together.least <= together.cycles and apart.least <= apart.cycles


def test_weights_come_once_for_images_together() -> None:
    """A layer like ResNet-50's last ones: ifmap and output of four images are streamed, and weights do not fit."""
    layer = Layer(image=(7, 7), pad="same", n=4, k=64, c=64)
    case = replace(case_of(layer, 16_000, Random(2), PLACES[2]), arch=load_arch("spatial-4x4"))
    task = SearchTask(case.shape, case.arch, case.budget, prices=Objective("words").prices(case.arch))
    together, apart = task.search(), replace(task, together=False).search()
    assert together and apart
    assert together.front[0].cost + 2 * case.shape.weight_words < apart.front[0].cost
    assert least_words(case.shape, case.arch, case.budget) <= together.front[0].cost
    assert least_cost(case.shape, case.arch, case.budget, DRAM_WORDS) <= together.front[0].cost


@pytest.mark.parametrize(
    ("tall", "images"),
    [
        # whole images
        ("h':6 > k':4 > h'' > [k''||4@cols] > weight@rf > ifmap@rf > {w > c}",
         "n > k':4 > h > k''||4@cols > weight@rf > ifmap@rf > {w > c}"),
        # two images, and three rows of each
        ("k':4 > h':12 > h'':3 > [k''||4@cols h'''||3@rows] > weight@rf > ifmap@rf > {w > c}",
         "k':4 > n':2 > n'' > h':3 > [k''||4@cols h''||3@rows] > weight@rf > ifmap@rf > {w > c}"),
        # stages outside and inside
        ("k':4 > ifmap@glb*2 > h':3 > output@glb > [k''||4@cols h''||3@rows] > weight@rf > ifmap@rf > {w > c}",
         "k':4 > ifmap@glb*2 > n > h':3 > output@glb > [k''||4@cols h''||3@rows] > weight@rf > ifmap@rf > {w > c}"),
        # the rest of an image is a smaller tile
        ("k > h':4 > h''||4@rows > weight@rf > ifmap@rf > {w > c}",
         "k > n > h':4 > h''||4@rows > weight@rf > ifmap@rf > {w > c}"),
        # rows of two images: in a tile, side by side, in a box
        ("k > h':8 > h''||8@rows > weight@rf > ifmap@rf > {w > c}", None),
        ("k > h':3||8@rows > weight@rf > ifmap@rf > {h'' > w > c}", None),
        ("k > w > weight@rf > ifmap@rf > {h > c}", None),
    ],
)  # fmt: skip
def test_a_mapping_of_the_tall_image(tall: str, images: str | None) -> None:
    """Four images of 6 rows."""
    shape = shape_of(Layer(kernel=(1, 1), image=(6, 5), n=4, k=8, c=4))
    image = tall_image(shape)
    assert image and (image.sizes.n, image.sizes.h, image.ih) == (1, 24, 24)
    mapping = of_images(parse(tall, image.sizes), shape.sizes)
    assert mapping == (images and parse(images, shape.sizes))


def test_a_row_of_a_product_is_an_image() -> None:
    rows = shape_of(product())
    image = tall_image(rows)
    assert image
    tall = parse("[c':2||2@rows h':3||2@cols] > weight@rf > ifmap@rf > {h'' > c''}", image.sizes)
    images = parse("[c':2||2@rows n':3||2@cols] > weight@rf > ifmap@rf > {n'' > c''}", rows.sizes)
    assert of_images(tall, rows.sizes) == images


@pytest.mark.parametrize(
    ("mapping", "inside"),
    [
        # the ifmap of an image, or of a row of it, comes with the loop over images, or inside it
        ("ifmap@glb > n > k':4 > c':2 > [k''||4@cols] > weight@rf > h > ifmap@rf > {w > c''}",
         ["ifmap@glb > k':4 > c':2 > [k''||4@cols] > weight@rf > n > h > ifmap@rf > {w > c''}",
          "ifmap@glb > k':4 > c':2 > [k''||4@cols] > weight@rf > h > n > ifmap@rf > {w > c''}"]),
        # weights and ifmap come at one place
        ("n > h > k':4 > k''||4@cols > weight@rf > ifmap@rf > {w > c}",
         ["h > k':4 > k''||4@cols > weight@rf > n > ifmap@rf > {w > c}"]),
        # ifmap outside weights, images side by side, images inside already, no weights
        ("n > h > ifmap@rf > k':4 > k''||4@cols > weight@rf > {w > c}", []),
        ("n':2 > n''||2@rows > k':4 > k''||4@cols > weight@rf > ifmap@rf > {h > w > c}", []),
        ("k':4 > k''||4@cols > weight@rf > n > ifmap@rf > {h > w > c}", []),
        ("n > k':4 > k''||4@cols > ifmap@rf > {h > w > c}", []),
    ],
)  # fmt: skip
def test_images_inside_weights(mapping: str, inside: list[str]) -> None:
    sizes = shape_of(Layer(kernel=(1, 1), image=(6, 5), n=4, k=8, c=4)).sizes
    assert list(images_inside(parse(mapping, sizes), sizes)) == [parse(each, sizes) for each in inside]


def test_each_slice_of_weights_comes_once_for_all_images(tmp_path: Path) -> None:
    """Images of 11 x 11 pixels on 8 x 8 PEs: a tile of two images would have parts of both."""
    layer = Layer(kernel=(1, 1), image=(11, 11), n=3, k=13, c=17)
    case = replace(case_of(layer, 60_000, Random(2)), arch=load_arch("spatial-8x8"))
    task = SearchTask(case.shape, case.arch, case.budget, effort=USUAL)
    together, apart = task.search(), replace(task, together=False).search()
    assert together and apart and together.cycles < 0.95 * apart.cycles
    check(layer, case, together.mapping, tmp_path)
    assert has_images_inside(together.mapping) and not has_images_inside(apart.mapping)
    for dataflow in ("os", "is"):  # other operands stay
        kept = replace(task, dataflow=dataflow).search()
        assert kept and not has_images_inside(kept.mapping)


def has_images_inside(mapping: Mapping) -> bool:
    """Whether a loop over n in time stands inside weight@rf, outside the box."""
    depth = next(stage.depth for stage in mapping.stages if (stage.operand, stage.memory) == ("weight", "rf"))
    return any(loop.dim == "n" and not loop.keep for loop in mapping.loops[depth:])


def test_one_image_is_not_tall() -> None:
    one = shape_of(product(n=1))
    assert tall_image(one) is None
    assert not list(images_inside(parse("k':4 > k''||4@cols > weight@rf > ifmap@rf > {c}", one.sizes), one.sizes))
    assert tall_image(replace(shape_of(product(kind="max")), per_position=True)) is None


def test_parts_of_many_images_are_refused() -> None:
    """Each is a transfer; with all channels there is one."""
    part = "weight@glb > params@glb > k':4 > output@glb > n > k''||4@cols > weight@rf*2 > ifmap@rf*2 > {c}"
    whole = "weight@glb > params@glb > output@glb > k':4 > n > k''||4@cols > weight@rf*2 > ifmap@rf*2 > {c}"
    arch = load_arch("spatial-4x4")
    few, many = shape_of(product(n=64)), shape_of(product(n=65))
    assert can_run(few, arch, parse(part, few.sizes), residual=False)
    assert can_run(many, arch, parse(whole, many.sizes), residual=False)
    assert not can_run(many, arch, parse(part, many.sizes), residual=False)
    module, ctx = unmapped(product(n=65))
    layer_of(module).mapping = MappingAttr(parse(part, many.sizes))
    with pytest.raises(Refusal, match="4 channels of 65 images: that many transfers, more than 64: with all channels"):
        lowered(module, ctx, "spatial-4x4", is_verified=False)


def product(**changes: object) -> Layer:
    return replace(Layer(kernel=(1, 1), image=(1, 1), n=6, k=8, c=4), **changes)


def shape_of(layer: Layer) -> LayerShape:
    return layer_shape(layer_of(unmapped(layer)[0]))


def test_a_certificate_says_no_more_than_a_bound(tmp_path: Path) -> None:
    """What it looks at otherwise has no such mappings."""
    path = saved(model("g (float[6, 8] x) => (float[6, 5] y) { y = MatMul (x, w) }", w=noise(1, 8, 5)), tmp_path)
    done("estimate", path, "--arch", "spatial-4x4", "--certificate", tmp_path / "c.json")
    (entry,) = json.loads((tmp_path / "c.json").read_text())["layers"]
    assert entry["least"] <= 6 * 8 * 5 / 16 < entry["cycles"] and not entry["proven"]
    text = done("estimate", path, "--arch", "spatial-4x4", "--check-certificate", tmp_path / "c.json").stdout
    assert "by products and streamed words" in text
