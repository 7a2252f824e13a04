"""Macro-instructions of mappings: how many there are and how long they take, against a walk over the loops.

Two formulas count them: `check`'s, of any mapping, and the mapper's tables, of all points of its space at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from examples import SEED, examples
from hypothesis import given, settings
from nest_cases import SCHEDULE, Case, arches, best_mapping, cases, layer_of, lowered

from cnncc.arch.model import Arch, load_arch
from cnncc.dialects.nest import MappingAttr, operands
from cnncc.driver.check_findings import array_work
from cnncc.eval.nest import LayerRun
from cnncc.mapper.combinations import combinations_below
from cnncc.mapper.space import BlockPlan, forms_of, mapping_of, numbers, point
from cnncc.mapper.tables import bodies
from cnncc.mapping.mapping import Loop, Mapping, mapping_problem
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.register_files import file_words
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

ROOM = GlbBudget(1 << 20)
ALL = 1 << 39
POINTS = 8


def shared(rest: int, sets: int) -> list[int]:
    """What each of so many sets, or fewer, gets of channels that are left over: all the same."""
    while rest % sets:
        sets -= 1
    return [rest // sets] * sets


def sets_of_rest(layer: LayerShape, loops: tuple[Loop, ...]) -> int:
    """The sets of the innermost loop over channels in space."""
    placed = [depth for depth, loop in enumerate(loops) if loop.dim == "k" and loop.on]
    around = [loop.step for loop in loops[: placed[-1]] if loop.dim == "k"] if placed else []
    return min([layer.sizes.k, *around]) // loops[placed[-1]].step if placed else 1


def walk(extent: dict[str, int], loops: tuple[Loop, ...], sets: int) -> Counter[int]:
    """Macro-instructions by the multiply-accumulates of one: every run of the kept loops, one after the other."""
    if not loops or loops[0].keep:
        terms = 1
        for size in extent.values():
            terms *= size
        return Counter([terms])
    loop, *inside = loops
    starts = range(0, extent[loop.dim], loop.step)
    runs = [min(loop.step, extent[loop.dim] - start) for start in starts]
    last = loop.on and loop.dim == "k" and not any(other.on and other.dim == "k" for other in inside)
    if last and runs[-1] < loop.step:
        runs[-1:] = shared(runs[-1], sets)
    if loop.on:  # all whole steps at once, then the rest
        runs = sorted(set(runs), reverse=True)
    found: Counter[int] = Counter()
    for run in runs:
        found += walk({**extent, loop.dim: run}, tuple(inside), sets)
    return found


def walked_cycles(layer: LayerShape, arch: Arch, mapping: Mapping) -> int:
    macros = walk(dict(vars(layer.sizes)), mapping.loops, sets_of_rest(layer, mapping.loops))
    return sum((arch.pe.start_cycles + terms + arch.pe.finish_cycles) * count for terms, count in macros.items())


@settings(max_examples=examples(50))
@given(cases(groups=True), arches())
def test_macro_cycles_of_a_mapping_are_those_of_a_walk(case: Case, arch: Arch) -> None:
    layer = layer_of(lowered(case)[1])
    shape, mapping = layer_shape(layer), best_mapping(layer, arch, ROOM)
    assert mapping_problem(mapping, shape.sizes, operands(layer)) is None
    words = file_words(shape, arch, mapping.loops, mapping.stages)
    assert all(each <= getattr(arch.pe, key) for key, each in words.items())
    assert array_work(shape, mapping, arch).cycles == walked_cycles(shape, arch, mapping)


@settings(max_examples=examples(20))
@given(cases(groups=True, small=True), arches())
def test_macro_cycles_of_all_points_are_those_of_a_walk(case: Case, arch: Arch) -> None:
    """Of each form some points: the array's cycles A are exact (step 1 of the search)."""
    arch = replace(arch, rows=min(arch.rows, 4), cols=min(arch.cols, 4))
    shape, rng = layer_shape(layer_of(lowered(case)[1])), np.random.default_rng(SEED)
    everything = numbers(shape, arch)
    for form in forms_of(shape):
        found = combinations_below(everything, form, ALL)
        for i in rng.permutation(len(found.cycles))[:POINTS].tolist():
            at = point(everything, form, found.indices[i].tolist())
            mapping = mapping_of(shape, arch, at, BlockPlan(shape.tiled_together, shape.sizes.h, shape.sizes.w))
            assert found.cycles[i] == walked_cycles(shape, arch, mapping), (shape, at)


@settings(max_examples=examples(10))
@given(cases(groups=True), arches())
def test_macro_instructions_and_words_are_those_of_the_evaluator(case: Case, arch: Arch) -> None:
    ctx, module = lowered(case)
    layer = layer_of(module)
    shape, mapping = layer_shape(layer), best_mapping(layer, arch, ROOM)
    layer.mapping = MappingAttr(mapping)
    for each in SCHEDULE:
        each.apply(ctx, module)
    run = LayerRun(layer_of(module), {"w": case.weights, "b": case.bias}, case.x)
    macros = walk(dict(vars(shape.sizes)), mapping.loops, sets_of_rest(shape, mapping.loops))
    assert sum(run.runs.values()) == sum(macros.values())
    assert max(run.runs) <= arch.rows * arch.cols
    slices = [(words, operand) for operand, memory, words in run.fetched if memory == "rf"]
    assert max((words for words, operand in slices if operand == "weight"), default=0) <= arch.pe.weight_words
    has_gaps = shape.channelwise and shape.sizes.c > 1
    if case.window.dilation == (1, 1) and not has_gaps:  # else the slice has the rows or channels between, too
        assert max(words for words, operand in slices if operand == "ifmap") <= arch.pe.ifmap_words


def counted(extent: int, *loops: tuple[int, int | None]) -> tuple[int, int]:
    """Trips of loops, and the sum of what is inside."""
    trips, held = bodies(
        np.array([extent]),
        [(np.array([step]), None if sets is None else np.array([sets])) for step, sets in loops],
    )
    return int(trips[0]), int(held[0])


def test_macro_instructions_of_remainders_in_time_and_space() -> None:
    # 23 by 8 in time; of 8 in space by 3: two at once, then the rest of 2; the last 7: two at once, then 1.
    assert counted(23, (8, None), (3, 1)) == (2 * 2 + 2, 2 * (3 + 2) + (3 + 1))
    # Two sets share the rest of 2; four would share 4 of 6 x 5 + 4 channels.
    assert counted(23, (8, None), (3, 2)) == (2 * 2 + 2, 2 * (3 + 1) + (3 + 1))
    assert counted(34, (5, 4)) == (2, 5 + 1)
    assert counted(35, (6, 4)) == (2, 6 + 5)  # 5 sets would, 4 do not


@pytest.mark.parametrize(("field", "words"), [("ifmap_words", 2), ("weight_words", 1)])
def test_macro_instructions_split_kernel_rows_that_are_too_long(field: str, words: int) -> None:
    arch = load_arch("spatial-8x8")
    arch = replace(arch, pe=replace(arch.pe, **{field: words}))
    layer = layer_of(lowered(Case("mac", 1, 64, 64, (8, 8), Window((3, 3), pad=(1, 1, 1, 1))))[1])
    mapping = best_mapping(layer, arch)
    assert 1 <= next(loop.step for loop in mapping.loops if loop.dim == "s") <= words
    assert array_work(layer_shape(layer), mapping, arch).cycles == walked_cycles(layer_shape(layer), arch, mapping)
