"""The local search beyond the mapper's space (LOCAL-1): what it reaches runs, as predicted, and has fewer cycles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from examples import SEED, examples
from random_search import LAYERS as SHAPES
from random_search import Case, case_of
from test_random_search import LAYERS, STREAMED, check, start_of, tiny

from cnncc.arch.model import load_arch
from cnncc.mapper import layer_search
from cnncc.mapper.arrays import ALL, NEVER
from cnncc.mapper.effort import USUAL, Effort
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.local_search import LocalSearch, improved, neighbours, weights_kept
from cnncc.mapper.search import Result, best_of, search
from cnncc.mapping.mapping import Mapping, Sizes, mapping_problem
from cnncc.mapping.text import parse, text
from cnncc.model.layer_shape import GlbBudget
from cnncc.model.operand_traffic import operand_traffic

RUN, DRAWN, STEPS = examples(8), examples(6), 2
FEW = Effort(streamed_points=4, streamed_tiles=40, runs=4, patience=3, more=1)

# The mapper's mapping of a layer in its space, its cycles, those behind one or two moves, and what these do.
IMPROVED = {
    "conv1_64.8x8": (
        "params@glb > k':32 > weight@glb > w > output@glb > ifmap@glb*2 > h':4 > c':16 > [c'':2||8@rows k'':4||8@cols] "
        "> weight@rf*2 > ifmap@rf*2 > {h'' > c''' > k'''}",
        2587,
        2461,
        "the output's blocks are smaller than the ifmap's",
    ),
    "dw3_prime.8x8": (
        "weight@glb > params@glb > k':2 > output@glb > ifmap@glb*2 > h':7 > [k''||2@rows h''||7@cols r||3@rows] > "
        "weight@rf*2 > ifmap@rf*2 > {w > s}",
        1154,
        935,
        "a new loop over w cuts these",
    ),
    "conv3_s2.8x8": (
        "params@glb > k':8 > w':3 > output@glb*2 > c':2 > weight@glb*2 > ifmap@glb*2 > [h':2||4@rows c''||2@rows "
        "k'':2||4@cols h''||2@cols] > weight@rf*2 > ifmap@rf*2 > {w'' > s > r > k'''}",
        1858,
        1725,
        "they are larger",
    ),
    "conv1_few.8x8": (
        "weight@glb > params@glb > w':3 > output@glb*2 > c':4 > ifmap@glb*2 > [h':8||2@rows c''||4@rows h''||8@cols] > "
        "weight@rf*2 > ifmap@rf*2 > {w'' > k}",
        699,
        606,
        "a loop takes larger steps",
    ),
    "one_pixel.8x8": (
        "k':4 > weight@glb*2 > params@glb*2 > [k''||4@cols c':4||6@rows] > weight@rf*2 > ifmap@rf*2 > {c''}",
        540,
        520,
        "the ifmap does not wait for slices of weights",
    ),
}


def small(name: str) -> Case:
    """A layer of the random search by its name, in the small GLB."""
    layer, array = name.split(".")
    return case_of(layer, array, is_large=False)


def local(case: Case) -> LocalSearch:
    return LocalSearch(case.shape, case.arch, case.budget)


def reached(case: Case, mapping: Mapping) -> list[Mapping]:
    """What one move leads to that is legal and fits."""
    others = dict.fromkeys(neighbours(mapping, case.shape))
    return [other for other in others if other != mapping and local(case).cycles(other) < NEVER]


@pytest.mark.parametrize("name", IMPROVED)
def test_a_mapping_is_improved(name: str) -> None:
    """The lowering takes the better mapping, too, and the model says the same cycles."""
    case, (written, cycles, fewer, why) = small(name), IMPROVED[name]
    mapping = parse(written, case.shape.sizes)
    assert case.cycles(mapping) == cycles
    better = improved(case.shape, case.arch, case.budget, Result(mapping, cycles, least=cycles - 1), USUAL)
    assert better.cycles <= fewer, f"{why}: {text(better.mapping, case.shape.sizes)}"
    assert case.cycles(better.mapping) == better.cycles == better.least
    one = improved(case.shape, case.arch, case.budget, Result(mapping, cycles), replace(USUAL, local_runs=0))
    assert one == Result(mapping, cycles)


def test_several_mappings_are_improved() -> None:
    """The best one leads nowhere, the same with other blocks outside does."""
    case, inside = small("dw3_8.4x4"), "weight@rf*2 > w'':3 > ifmap@rf*2 > {w''' > s > r}"
    stages = "output@glb*2 > ifmap@glb*2 > [k'':2||2@rows h''||2@rows k'''||2@cols w':7||2@cols]"
    first, second = (
        parse(f"weight@glb > params@glb > {blocks} > {stages} > {inside}", case.shape.sizes)
        for blocks in ("k':4 > h':2", "h':2 > k':4")
    )
    known = Result(first, 1600, others=((second, 1600),))
    assert case.cycles(first) == case.cycles(second) == known.cycles
    one, two = (improved(case.shape, case.arch, case.budget, known, USUAL, starts).cycles for starts in (1, 2))
    assert one == 1600 and two <= 1320


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize("name", LAYERS)
def test_what_a_move_leads_to_runs_as_predicted(name: str, tmp_path: Path) -> None:
    """Some neighbours of some neighbours: values as by brute force, cycles as the model says."""
    case, rng = tiny(name, STREAMED["streamed"]), Random(SEED)
    mapping = start_of(case)
    for _ in range(STEPS):
        others = reached(case, mapping)
        for other in rng.sample(others, min(RUN, len(others))):
            assert case.cycles(other) == local(case).cycles(other)
            check(LAYERS[name], case, other, tmp_path)
        mapping = rng.choice(others)


@pytest.mark.parametrize("number", range(DRAWN))
def test_what_fits_is_lowered(number: int) -> None:
    """The rules of the local search (`legal.py`) refuse all that the lowering refuses, for operands that are drawn."""
    rng = Random(f"{SEED} {number}")
    layer, preset = rng.choice([*SHAPES]), rng.choice(["seed-4x4", "spatial-8x8", "cbrain-16-16", "tcpa-4x4"])
    shape, is_pool = SHAPES[layer], not SHAPES[layer].is_mac
    operands = ["ifmap", "output", *(["residual"] if not is_pool and rng.random() < 0.5 else [])]
    streamed = frozenset(rng.sample(operands, rng.randint(1, len(operands))))
    if not is_pool and rng.random() < 0.3:
        shape = replace(shape, sizes=replace(shape.sizes, n=2))
    needs = shape.weight_words + shape.results + shape.channels * shape.ih * shape.iw
    budget = GlbBudget(needs // rng.choice((2, 4)), streamed, "residual" in operands, tight=rng.random() < 0.5)
    case = Case(layer, shape, load_arch(preset), budget)
    best = search(shape, case.arch, budget, effort=FEW)
    mapping = best and best.mapping
    for _ in range(STEPS if mapping else 0):
        assert mapping
        others = reached(case, mapping)
        for other in others:
            cycles = local(case).cycles(other)
            assert case.cycles(other) == cycles, text(other, shape.sizes)
            assert local(case).is_below(other, cycles + 1) and not local(case).is_below(other, cycles)
        mapping = rng.choice([mapping, *others])


def test_moves_keep_what_loops_and_stages_need() -> None:
    """Loops over images stay outside, groups of channels whole, and new loops outside stages in register files."""
    case = small("conv3_groups.8x8")
    shape = replace(case.shape, sizes=replace(case.shape.sizes, n=2))
    box = "weight@rf*2 > ifmap@rf*2 > {w'' > s > r > c > k''}"
    mapping = parse(f"weight@glb > params@glb > n > k':4 > w':4 > h > ifmap@glb > output@glb > {box}", shape.sizes)
    others = [other for other in neighbours(mapping, shape) if other != mapping]
    assert all(not mapping_problem(other, shape.sizes, {"weight", "params", "ifmap", "output"}) for other in others)
    assert {other.loops[:2] for other in others} == {mapping.loops[:2]}
    assert min(stage.depth for other in others for stage in other.stages if stage.operand in ("ifmap", "output")) == 1


def test_parameters_of_blocks_stay_with_them() -> None:
    """Blocks of a pool that bring parameters for each position are left as they are; others are improved."""
    case = small("sum3_s2.2x2")
    written = (
        "h':4 > params@glb*2 > output@glb*2 > ifmap@glb*2 > [h'':2||2@rows h'''||2@cols] > r > ifmap@rf*2 > {w > k > s}"
    )
    by_position = replace(case.shape, per_position=True)
    slow = Result(parse(written, case.shape.sizes), ALL)
    assert improved(by_position, case.arch, case.budget, slow, USUAL) is slow
    slow = Result(parse(written.replace("h':4 > params@glb*2", "params@glb > h':4"), case.shape.sizes), ALL)
    assert improved(case.shape, case.arch, case.budget, slow, USUAL).cycles < ALL


def test_what_follows_parameters_per_position_is_lowered() -> None:
    """Where all of them lie in the GLB, blocks of the output keep all columns."""
    case = small("sum3_s2.2x2")
    case = replace(case, shape=replace(case.shape, per_position=True), budget=replace(case.budget, words=1 << 16))
    blocks = "params@glb > h':4 > output@glb*2 > ifmap@glb*2 > [h''||2@rows k':4||2@cols] > r"
    mapping = parse(f"{blocks} > ifmap@rf*2 > {{w > k'' > s}}", case.shape.sizes)
    others = reached(case, mapping)
    assert others and all(case.cycles(other) == local(case).cycles(other) for other in others)
    outside = {
        other: [loop.dim for loop in other.loops[: other.glb_stages["output"].depth]]
        for other in neighbours(mapping, case.shape)
    }
    cut = {other for other, dims in outside.items() if "w" in dims}
    assert cut and not cut & {*others}


@pytest.mark.parametrize(
    ("stages", "fits"),
    [
        ("c':9||2@rows > weight@rf*2 > ifmap@rf*2", True),
        ("ifmap@rf*2 > c':9||2@rows > weight@rf*2", False),
    ],
)
def test_loads_bring_equal_parts(stages: str, fits: bool) -> None:
    """Of 17 input channels the second row has 8: the ifmap comes inside this loop."""
    case = case_of("conv1_prime", "4x4", is_large=True)
    mapping = parse(f"weight@glb > params@glb > h > w':4 > k':4 > {stages} > {{w'' > c'' > k''}}", case.shape.sizes)
    assert (local(case).cycles(mapping) < NEVER) == fits


def test_lanes_stay_full() -> None:
    """A loop around lanes takes no other steps."""
    shape = small("conv3_8.8x8").shape
    box = "weight@rf*2 > ifmap@rf*2 > {w'' > s > r > k > c'':2 > c'''||2@lanes}"
    mapping = parse(f"weight@glb > params@glb > c':4 > w':4 > h > ifmap@glb*2 > {box}", shape.sizes)
    assert {loop.step for other in neighbours(mapping, shape) for loop in other.loops if loop.dim == "c"} == {4, 2, 1}


def test_the_mappings_of_all_searches_are_starts() -> None:
    """Those of the search that found the best come first. No mapping comes twice."""
    shape = small("conv3_8.8x8").shape
    a, b, c, d, e = (
        parse(f"weight@glb > params@glb > h:{step} > weight@rf > ifmap@rf", shape.sizes) for step in "12347"
    )
    slow, fast = Result(a, 9, others=((b, 10), (c, 11))), Result(d, 8, least=7, others=((e, 12), (b, 10)))
    assert best_of([slow, fast]) == fast and best_of([slow, fast]).others == ((e, 12), (b, 10), (a, 9), (c, 11))
    assert best_of([slow, replace(slow, least=1)]).least == 0  # the first of equal ones


def test_a_mapping_of_another_search_leads_to_fewer_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    case = small("conv1_few.4x4")
    task = SearchTask(case.shape, case.arch, case.budget, effort=USUAL)
    of_all = task.search()
    monkeypatch.setattr(layer_search, "best_of", lambda results: min(results, key=lambda result: result.cycles))
    of_one = task.search()
    assert of_all and of_one and of_all.cycles < 0.95 * of_one.cycles


def test_a_longer_search_looks_below_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[int, Effort]]()

    def searched(*given: object, effort: Effort) -> Result | None:
        result = search(*given, effort=effort)
        seen.append((given[4] if len(given) > 4 else NEVER, effort))
        return result

    monkeypatch.setattr(layer_search, "search", searched)
    case = small("conv3_s2.8x8")
    result = SearchTask(case.shape, case.arch, case.budget, effort=replace(FEW, local_runs=0)).search()
    *others, (below, effort) = seen
    assert result and result.cycles <= below < NEVER and effort == replace(FEW, local_runs=0).longer()
    assert {below for below, _ in others} == {NEVER}


@pytest.mark.parametrize(("words", "points"), [(700, 20), (240, 50)])
def test_a_tight_budget_has_fewer_points_where_a_mapping_is_known(
    words: int, points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the budget itself has room for none, as that of 240 words."""
    seen = list[tuple[bool, int]]()

    def searched(*given: object, effort: Effort) -> Result | None:
        (budget,) = (each for each in given if isinstance(each, GlbBudget))
        seen.append((budget.tight, effort.points))
        return search(*given, effort=effort)

    monkeypatch.setattr(layer_search, "search", searched)
    case, effort = small("conv3_deep.8x8"), replace(FEW, points=50, tight_points=20, local_runs=0)
    assert SearchTask(case.shape, case.arch, GlbBudget(words), effort=effort).search()
    assert set(seen) == {(False, 50), (True, points)}


def test_a_search_is_improved_where_its_bound_is_far() -> None:
    """Not a search for a dataflow, which has its form. `least` stays that of the space."""
    case = small("conv3_s2.8x8")
    task = SearchTask(case.shape, case.arch, case.budget, effort=replace(FEW, local_runs=0))
    in_space, further = task.search(), replace(task, effort=FEW).search()
    assert in_space and further and further.cycles < 0.97 * in_space.cycles
    assert further.least == in_space.least and further.run > in_space.run
    one = replace(task, effort=replace(FEW, local_starts=1)).search()
    assert one and one.run < further.run
    near = replace(task, effort=replace(FEW, local_gap=in_space.cycles / in_space.least)).search()
    assert near == in_space and not further.others
    names = replace(task, dataflow="os"), replace(task, dataflow="os", effort=FEW)
    results = [each.search() for each in names]
    assert results[0] and results[0] == results[1]


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("n > k':2 > h':2 > w':4 > [c:2||2@rows h''||2@cols] > weight@rf > ifmap@rf > {w'' > k''}", "n > k':2"),
        ("n > h':2 > k':2||2@cols > w':4 > [c:2||2@rows] > weight@rf > ifmap@rf > {w'' > h'' > k''}", ""),
        ("h':2 > weight@glb*2 > w':4 > c:2||2@rows > weight@rf > ifmap@rf > {w'' > h'' > k}", "h':2 > weight@glb*2"),
        ("h':2 > c':2 > [h''||2@rows] > weight@rf > ifmap@rf > {w > c'' > k}", None),
        ("c:2||2@rows > h':4||2@cols > weight@rf > ifmap@rf > {w > h'' > k}", None),
        ("h':2 > ifmap@rf > w':4 > k':2||2@cols > weight@rf > {w'' > h'' > k''}", None),
        ("weight@glb > params@glb > ifmap@rf > {n > k > h > w}", None),
    ],
)  # fmt: skip
def test_weights_serve_in_loops_over_images_rows_and_columns(written: str, kept: str | None) -> None:
    """In those alone, and not outside their slices in the GLB. A loop in space is passed with one in time around it."""
    sizes = Sizes(n=2, k=4, c=4, h=8, w=8, r=1, s=1)
    mapping = parse(written, sizes)
    other = weights_kept(mapping, sizes)
    assert (other and text(other, sizes).partition("weight@rf")[0].removesuffix(" > ")) == kept
    assert other is None or replace(other, stages=()) == replace(mapping, stages=())


KEPT = {
    "conv": "h':3 > w':3 > output@glb*2 > ifmap@glb*2 > k':2||2@cols > weight@rf*2 > h'' > ifmap@rf*2 > "
    "{w'' > s > c > r > k''}",
    "stride": "h':2 > output@glb*2 > ifmap@glb*2 > c':2||2@rows > weight@rf*2 > h'' > ifmap@rf*2 > "
    "{w > s > c'' > r > k}",
    "depthwise": "k':2 > h':2 > output@glb*2 > ifmap@glb*2 > k''||2@cols > weight@rf*2 > h'' > ifmap@rf*2 > "
    "{w > s > r}",
}


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize("name", KEPT)
def test_weights_that_stay_give_the_same_values(name: str, tmp_path: Path) -> None:
    """Values as by brute force, cycles as the model says, and fewer loads of weights."""
    case = tiny(name, STREAMED["streamed"])
    mapping = parse(f"weight@glb > params@glb > {KEPT[name]}", case.shape.sizes)
    kept = weights_kept(mapping, case.shape.sizes)
    assert kept
    loaded = list[int]()
    for each in (mapping, kept):
        check(LAYERS[name], case, each, tmp_path)
        loaded.append(operand_traffic(case.shape, each, case.arch, False).counters()["operands"]["bus"]["weight"])
    assert 2 * loaded[1] <= loaded[0]
