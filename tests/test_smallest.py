"""SPACE-15: the mapping of a layer with the fewest words of the GLB. It runs, and no search finds a smaller one."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path

import pytest
from random_search import LAYERS as SHAPES
from random_search import Case
from searches import FEWEST, search_with
from test_random_search import LAYERS, STREAMED, check, tiny

from cnncc.arch.model import load_arch
from cnncc.mapper.cached_search import searched
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.search import search
from cnncc.mapper.smallest import has_mapping, may_have_mapping, smallest
from cnncc.mapper.space import forms_of
from cnncc.mapping.mapping import Sizes
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.window import Window

ARRAY = load_arch("seed-4x4")
SMALL = {
    "conv1": LayerShape("mac", Sizes(1, 6, 8, 4, 4, 1, 1), Window((1, 1)), 2, 4, 4),
    "conv3": LayerShape("mac", Sizes(1, 4, 3, 5, 5, 3, 3), Window((3, 3), pad=(1, 1, 1, 1)), 2, 5, 5),
    "groups": LayerShape("mac", Sizes(1, 4, 2, 4, 4, 3, 3), Window((3, 3), pad=(1, 1, 1, 1), group=2), 2, 4, 4),
    "shuffled": LayerShape(
        "mac", Sizes(1, 4, 2, 4, 4, 3, 3), Window((3, 3), pad=(1, 1, 1, 1), group=2), 2, 4, 4, shuffle=2
    ),
    "depthwise": LayerShape("mac", Sizes(1, 4, 1, 5, 5, 3, 3), Window((3, 3), pad=(1, 1, 1, 1), group=4), 2, 5, 5),
    "images": LayerShape("mac", Sizes(2, 3, 2, 4, 4, 3, 3), Window((3, 3), pad=(1, 1, 1, 1)), 2, 4, 4),
    "fc": LayerShape("mac", Sizes(1, 10, 12, 1, 1, 1, 1), Window((1, 1)), 2, 1, 1),
    "pool": LayerShape("max", Sizes(1, 3, 1, 4, 4, 2, 2), Window((2, 2), (2, 2), group=3), 0, 8, 8),
    "position": LayerShape("mac", Sizes(1, 5, 3, 4, 2, 2, 1), Window((2, 1)), 2, 5, 2, per_position=True),
    "mean": LayerShape("add", Sizes(1, 3, 1, 1, 1, 4, 4), Window((4, 4), group=3), 2, 4, 4),
}


def streamed_sets(residual: bool) -> list[frozenset[str]]:
    operands = ("ifmap", "output", *["residual"] * residual)
    return [frozenset(each) for each in chain(*(combinations(operands, n) for n in range(len(operands) + 1)))]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_no_search_finds_a_smaller_one(name: str, residual: bool) -> None:
    """In a budget of one word less neither space has a mapping of the form, but for one with fewer partial sums."""
    shape = SMALL[name]
    for streamed in streamed_sets(residual and shape.is_mac):
        for dataflow in {form.name for form in forms_of(shape)}:
            small = smallest(shape, ARRAY, GlbBudget(0, streamed, residual), dataflow)
            assert small, (streamed, dataflow)
            room = GlbBudget(small.words, streamed, residual)
            less = replace(room, words=small.words - 1)
            assert has_mapping(shape, ARRAY, room, dataflow) and not has_mapping(shape, ARRAY, less, dataflow)
            for tight in (False, True):
                found = search(shape, ARRAY, replace(less, tight=tight), dataflow, effort=FEWEST)
                assert not found or may_have_mapping(shape, ARRAY, less, dataflow), streamed


def test_one_with_fewer_partial_sums_is_searched_for() -> None:
    """Parameters by position keep blocks from cutting w. Both columns at a time need no partial sums.

    42 words then do: 32 of params, 2 weights, and two buffers of 2 rows of 2 columns. The smallest mapping has 46.
    """
    shape, streamed = SMALL["position"], frozenset({"ifmap"})
    small = smallest(shape, ARRAY, GlbBudget(0, streamed))
    assert small
    less = [GlbBudget(words, streamed) for words in range(small.words - 12, small.words)]
    mapped = [searched(SearchTask(shape, ARRAY, budget)) is not None for budget in less]
    assert mapped == [budget.words >= 42 for budget in less] and small.words == 46
    may = [may_have_mapping(shape, ARRAY, budget) for budget in less]
    assert not may[0] and all(may[number] for number, each in enumerate(mapped) if each)


@pytest.mark.parametrize("name", ["conv3", "shuffled", "depthwise", "fc", "pool"])
def test_a_search_finds_one_where_there_is_room(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    search_with(monkeypatch, FEWEST)
    shape = SMALL[name]
    for streamed in streamed_sets(False):
        small = smallest(shape, ARRAY, GlbBudget(0, streamed))
        assert small
        for words in range(small.words - 2, small.words + 3):
            found = searched(SearchTask(shape, ARRAY, GlbBudget(words, streamed)))
            assert (found is not None) == (words >= small.words), (streamed, words)
            assert found is None or found.least <= found.cycles


@pytest.mark.parametrize("where", STREAMED)
@pytest.mark.parametrize("name", LAYERS)
def test_it_computes_the_right_values(name: str, where: str, tmp_path: Path) -> None:
    case = tiny(name, STREAMED[where])
    small = smallest(case.shape, case.arch, case.budget)
    assert small
    check(LAYERS[name], case, small.mapping, tmp_path)


@pytest.mark.parametrize("name", SHAPES)
def test_the_lowering_takes_it(name: str) -> None:
    """Layers of the random search, in budgets of as many words: its buffers are as large as it says."""
    shape, arch, residual = SHAPES[name], load_arch("spatial-8x8"), name.endswith("residual")
    for streamed in streamed_sets(residual):
        small = smallest(shape, arch, GlbBudget(0, streamed, residual))
        assert small
        case = Case(name, shape, arch, GlbBudget(small.words, streamed, residual))
        assert case.cycles(small.mapping), (streamed, small)
        assert not replace(case, budget=replace(case.budget, words=small.words - 1)).cycles(small.mapping)
