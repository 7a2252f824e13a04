"""benchmarks/random_search.py: what it counts as a mapping runs, computes the right values and takes those cycles."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
from conv_grid_cases import Case as Layer
from examples import SEED, examples
from nest_cases import layer_of
from random_search import Case, Draft, Row, anneal, case_of, summary
from test_conv_grid import instructions_of, lowered, result_of, unmapped
from test_dataflows import arch_toml

from cnncc.arch.model import load_arch
from cnncc.dialects.isa import LayerOp
from cnncc.dialects.nest import MappingAttr
from cnncc.driver.program_parts import plan_of
from cnncc.machine.times.times import simulate
from cnncc.mapper.cached_search import searched
from cnncc.mapper.effort import Effort
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapping.mapping import Mapping
from cnncc.mapping.text import parse
from cnncc.model.layer_schedule import layer_cycles
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._scheduling.nest_layers import layer_shape

pytestmark = pytest.mark.usefixtures("short_searches")

LAYERS = {
    "conv": Layer(k=4, c=3, image=(5, 6), pad="same"),
    "stride": Layer(k=3, c=4, image=(7, 5), stride=(2, 1)),
    "depthwise": Layer(k=4, c=1, group="each", image=(5, 5)),
    "pool": Layer(kind="max", k=3, image=(5, 6), kernel=(2, 2)),
}
STREAMED = {"resident": frozenset[str](), "streamed": frozenset({"ifmap", "output"})}
MOVES, STEPS = examples(30), examples(80)  # checked by running them; of an annealing


def tiny(name: str, streamed: frozenset[str]) -> Case:
    preset = load_arch("spatial-4x4")
    arch = replace(preset, name="tiny", rows=2, cols=2, glb=replace(preset.glb, words=2048))
    return Case(name, layer_shape(layer_of(unmapped(LAYERS[name])[0])), arch, GlbBudget(400, streamed))


def start_of(case: Case) -> Mapping:
    result = searched(SearchTask(case.shape, case.arch, case.budget))
    assert result
    assert case.cycles(result.mapping) == result.cycles
    return result.mapping


def check(layer: Layer, case: Case, mapping: Mapping, folder: Path) -> None:
    """The compiler takes a mapping. The layer's cycles are as predicted, its values as by brute force."""
    module, ctx = unmapped(layer)
    op = layer_of(module)
    op.mapping, plan = MappingAttr(mapping), replace(plan_of(op), mapping=mapping)
    (folder / "array.toml").write_text(arch_toml(case.arch))
    lowered(module, ctx, str(folder / "array.toml"), is_verified=False)
    tree = instructions_of(module)
    assert np.array_equal(result_of(tree, layer, module, ctx, case.arch), layer.expected)
    layers = [(op.record.data.label, op.record.data.first) for op in module.ops if isinstance(op, LayerOp)]
    timed = simulate(tree, case.arch, layers)
    assert timed.layers["layer"].total == layer_cycles(plan, case.arch)


@pytest.mark.parametrize("where", STREAMED)
@pytest.mark.parametrize("name", LAYERS)
def test_a_move_makes_a_mapping_that_runs_or_is_rejected(name: str, where: str, tmp_path: Path) -> None:
    """Every mapping with cycles is run."""
    case, rng, seen = tiny(name, STREAMED[where]), Random(SEED), Counter[bool]()
    start = mapping = start_of(case)
    for _ in range(MOVES):
        draft = Draft(mapping, case.shape.sizes, rng)
        draft.change()
        changed = draft.mapping()
        is_mapping = case.cycles(changed) is not None
        seen[is_mapping] += changed != mapping
        if is_mapping and changed != mapping:
            check(LAYERS[name], case, changed, tmp_path)
            mapping = rng.choice((changed, start))
    assert min(seen[False], seen[True]) > MOVES / 20, seen


def test_annealing_never_loses() -> None:
    """From a slow mapping it comes below that; from the mapper's, never above. A seed gives the same moves."""
    case = tiny("conv", STREAMED["streamed"])
    start = start_of(case)
    slow = parse(
        "weight@glb > params@glb > h > w > k > ifmap@glb > output@glb > weight@rf*2 > ifmap@rf*2 > {s > c > r}",
        case.shape.sizes,
    )
    for mapping, least in ((slow, 0.5), (start, 0.0)):
        first = case.cycles(mapping)
        assert first
        best = [cycles for _, cycles in islice(anneal(case, mapping, Random(1)), STEPS)]
        assert best == sorted(best, reverse=True)
        assert best[-1] <= (1 - least) * first
        assert best == [cycles for _, cycles in islice(anneal(case, mapping, Random(1)), STEPS)]


@pytest.mark.parametrize(
    ("layer", "array", "is_large", "written"),
    [
        # 64 channels on three rows: no number of channels a row divides them.
        ("fc_64_10", "3x2", True, "weight@glb > params@glb > k':5||2@cols > c':9 > c'':3||3@rows > weight@rf*2 > "
         "ifmap@rf*2 > {c''' > k''}"),
        # Two slices of weights have room because parameters come with them.
        ("one_pixel", "4x4", False, "k':4 > weight@glb*2 > params@glb*2 > [k''||4@cols c':6||4@rows] > weight@rf*2 > "
         "ifmap@rf*2 > {c''}"),
        # Two buffers of output have room because residual has one.
        ("conv3_residual", "8x8", False, "weight@glb > params@glb > h':4 > w':4 > output@glb*2 > residual@glb > c':4 > "
         "ifmap@glb*2 > [h'':2||2@rows c''||4@rows k':2||4@cols h'''||2@cols] > weight@rf*2 > ifmap@rf*2 > "
         "{w'' > s > r > k''}"),
    ],
)  # fmt: skip
def test_the_mapper_finds_what_a_random_search_found(layer: str, array: str, is_large: bool, written: str) -> None:
    """Each of these took 20 to 25 % fewer cycles than the mapper's before its kind of mapping was in the space."""
    case = case_of(layer, array, is_large)
    result, cycles = (
        SearchTask(case.shape, case.arch, case.budget, effort=Effort()).search(),
        case.cycles(parse(written, case.shape.sizes)),
    )
    assert result and cycles and result.cycles <= cycles


def test_pools_have_channels_of_their_own() -> None:
    for layer in ("max2", "sum3_s2"):
        shape = case_of(layer, "4x4", is_large=True).shape
        assert shape.channelwise
        assert shape.channels == shape.sizes.k


def test_summary() -> None:
    streamed, resident = case_of("conv5_s2", "4x4", is_large=False), case_of("conv5_s2", "4x4", is_large=True)
    rows = [Row(streamed, 100, 79), Row(streamed, 100, 97), Row(streamed, 100, 99), Row(resident, 1000, 981)]
    assert list(summary(rows)) == [
        "streamed: of 3 improve 2 by more than 2%, 1 by more than 20%",
        "resident: of 1 improve 0 by more than 2%, 0 by more than 20%",
    ]
