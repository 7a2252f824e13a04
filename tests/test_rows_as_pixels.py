"""Matrix products of several rows (LOCAL-5): their mappings run, as predicted, and take far fewer cycles."""

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
from test_conv_grid import unmapped
from test_random_search import check

from cnncc.arch.model import load_arch
from cnncc.mapper import layer_search
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.objective import Objective
from cnncc.mapper.rows_as_pixels import as_image, of_rows
from cnncc.mapping.text import parse, text
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling.nest_layers import layer_shape

pytestmark = pytest.mark.usefixtures("short_searches")

SIZES, GLB = (2, 3, 5, 8, 13), (60, 300, 2048)


def case_of(layer: Layer, words: int, rng: Random) -> Case:
    preset = load_arch("spatial-4x4")
    rows, cols = rng.choice(((2, 2), (3, 2), (4, 4)))
    arch = replace(preset, name="drawn", rows=rows, cols=cols, glb=replace(preset.glb, words=4096))
    return Case("drawn", layer_shape(layer_of(unmapped(layer)[0])), arch, GlbBudget(words))


@pytest.mark.parametrize("number", range(examples(10)))
def test_mappings_of_drawn_products_run(number: int, tmp_path: Path) -> None:
    """Those of the front, too: by cycles, and by energy."""
    rng = Random(f"{SEED} {number}")
    n, k, c = (rng.choice(SIZES) for _ in range(3))
    layer = Layer(kernel=(1, 1), image=(1, 1), n=n, k=3 * k, c=2 * c, seed=number)
    case = case_of(layer, rng.choice(GLB), rng)
    result = SearchTask(case.shape, case.arch, case.budget, prices=Objective("energy").prices(case.arch)).search()
    assert result and result.front[-1].mapping == result.mapping
    assert [each.cycles for each in result.front] == sorted((each.cycles for each in result.front), reverse=True)
    assert [each.cost for each in result.front] == sorted(each.cost for each in result.front)
    for each in dict.fromkeys((result.front[0].mapping, result.mapping)):
        check(layer, case, each, tmp_path)


def test_rows_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GLB that weights do not fit, each row fetches them otherwise."""
    layer = Layer(kernel=(1, 1), image=(1, 1), n=16, k=24, c=24)
    case = replace(case_of(layer, 300, Random(2)), arch=load_arch("spatial-4x4"))
    task = SearchTask(case.shape, case.arch, case.budget)
    together = task.search()
    monkeypatch.setattr(layer_search, "as_image", lambda shape, budget: None)
    apart = task.search()
    assert together and apart and 4 * together.cycles < apart.cycles
    assert together.mapping.loops[0].dim != "n" and apart.mapping.loops[0].dim == "n"
    assert together.least <= together.cycles and apart.least <= apart.cycles


def test_a_mapping_of_the_image_is_one_of_the_rows() -> None:
    image, rows = shape_of(Layer(kernel=(1, 1), image=(1, 6), k=8, c=4)), shape_of(product())
    written = "weight@glb > params@glb > k':4 > [c':2||2@rows w':3||2@cols] > weight@rf > ifmap@rf > {w'' > c''}"
    mapping = parse(written, image.sizes)
    turned = text(of_rows(mapping), rows.sizes)
    assert turned == "weight@glb > params@glb > k:4 > [c':2||2@rows n':3||2@cols] > weight@rf > ifmap@rf > {n'' > c''}"
    assert as_image(rows, GlbBudget(1000)) == image


def product(**changes: object) -> Layer:
    return replace(Layer(kernel=(1, 1), image=(1, 1), n=6, k=8, c=4), **changes)


def shape_of(layer: Layer) -> LayerShape:
    return layer_shape(layer_of(unmapped(layer)[0]))


@pytest.mark.parametrize(
    "layer",
    [
        product(n=1),
        product(image=(1, 2)),
        product(group="two"),
        product(kernel=(1, 2), pad="same"),
        product(kind="max"),
    ],
)
def test_other_layers_have_no_such_image(layer: Layer) -> None:
    assert as_image(shape_of(layer), GlbBudget(1000)) is None


def test_streamed_rows_come_one_by_one() -> None:
    assert as_image(shape_of(product()), GlbBudget(1000, frozenset({"ifmap"}))) is None


def test_a_certificate_says_no_more_than_a_bound(tmp_path: Path) -> None:
    """What it looks at otherwise has no such mappings."""
    path = saved(model("g (float[6, 8] x) => (float[6, 5] y) { y = MatMul (x, w) }", w=noise(1, 8, 5)), tmp_path)
    done("estimate", path, "--arch", "spatial-4x4", "--certificate", tmp_path / "c.json")
    (entry,) = json.loads((tmp_path / "c.json").read_text())["layers"]
    assert entry["least"] <= 6 * 8 * 5 / 16 < entry["cycles"] and not entry["proven"]
    text = done("estimate", path, "--arch", "spatial-4x4", "--check-certificate", tmp_path / "c.json").stdout
    assert "by products and streamed words" in text
