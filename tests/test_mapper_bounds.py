"""The bounds of the mapper's search are below the model, on random points, plans and rooms."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from math import inf, prod

import numpy as np
import pytest
from examples import SEED, examples
from nest_cases import layer_of
from searches import of_whole_space
from test_conv_grid import unmapped
from test_dataflows import draw
from test_mapper_search import with_pong

from cnncc.arch.model import Arch, load_arch
from cnncc.certificate.least_costs import streamed_least
from cnncc.certificate.whole_space import engines_least
from cnncc.mapper import combinations
from cnncc.mapper.arrays import NEVER, transfer_cycles
from cnncc.mapper.block_plans import candidates, in_blocks, in_one_block
from cnncc.mapper.block_sizes import least_words
from cnncc.mapper.block_times import BlockTimes
from cnncc.mapper.blocks import Blocks, plan_bounds
from cnncc.mapper.bound import Bound, Durations, LoopPart
from cnncc.mapper.combinations import Combinations, combinations_below
from cnncc.mapper.costs import array_energy
from cnncc.mapper.prices import NOTHING
from cnncc.mapper.search import search
from cnncc.mapper.space import FORMS, BlockPlan, Numbers, Point, block_distributed, forms_of, mapping_of, numbers, point
from cnncc.mapper.tables import table
from cnncc.mapper.tiles import Tiles, tiles_in_time, tiles_of
from cnncc.mapper.transfer_bound import TrafficOf, TransferBound, cycles_about, streamed_cycles
from cnncc.mapping.mapping import Sizes
from cnncc.model.energy import energy
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_cycles, layer_schedule
from cnncc.model.layer_shape import GlbBudget, LayerShape, buffer_words
from cnncc.model.legal import fits_register_files, is_legal
from cnncc.model.operand_traffic import operand_traffic
from cnncc.model.routes import Nest
from cnncc.model.timed_program import ARRAY, LOAD, busy_cycles
from cnncc.passes._scheduling.glb_words import stage_sizes
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.window import Window

EXAMPLES = examples(40)
POINTS, PLANS = 4, 4
MOVING = GlbBudget(65536, frozenset({"ifmap", "output"}))


def check(
    shape: LayerShape, arch: Arch, rng: np.random.Generator, seen: Counter[str], exact: dict[str, list[bool]]
) -> None:
    """seen: how often there was what. exact: whether terms of bounds are equal to the model's, not only below."""
    everything = numbers(shape, arch)
    form = forms_of(shape)[rng.integers(len(forms_of(shape)))]
    residual = bool(rng.random() < 0.5)
    streamed = frozenset(name for name in ("ifmap", "output", *["residual"] * residual) if rng.random() < 0.5)
    found = combinations_below(everything, form, 1 << 39, bool(streamed))
    words = shape.weight_words + shape.channels * shape.ih * shape.iw + prod((*vars(shape.sizes).values(),)[:2])
    tight = bool(rng.random() < 0.4)
    budget = GlbBudget(int(words * rng.choice([0.1, 0.4, 1.5])), streamed, residual, tight)
    in_plans = bool(streamed) or tight  # else there is but one plan
    tiles = tiles_in_time(everything, found.indices)
    steps = everything.most_steps
    of_tiles = form, tiles, found.least, found.cycles
    traffic = TrafficOf(TransferBound(shape, arch, budget, steps), *of_tiles)
    beyond = np.nonzero(~everything.fits[found.indices[:, 2], 0])[0]  # more words of the image than ping has
    most = POINTS if in_plans else 4 * POINTS
    some = [*rng.permutation(len(found.cycles))[:most], *rng.permutation(beyond)[:most]]
    for i in some:
        assert traffic.traffic.floor <= traffic.least(int(i), 1 << 60), (shape, arch, budget, i)
        at = point(everything, form, found.indices[int(i)].tolist())
        bound = Bound(Durations(shape, arch, residual), at)
        if not in_plans:
            plan = BlockPlan(shape.tiled_together, shape.sizes.h, shape.sizes.w)
            least = bound.cycles(int(found.cycles[int(i)]))
            slices = [each for each in candidates(bound, budget, 1 << 60) if each[1].weights]
            seen["slices"] += len(slices)
            plans, everywhere = [(max(least, int(found.least[int(i)])), plan), *slices], 0
        else:
            plans = list(islice(candidates(bound, budget, 1 << 60), 200))
            compute = int(found.cycles[int(i)])
            everywhere = bound.in_blocks(compute) if streamed else bound.array(compute)
            plans = [plans[int(j)] for j in rng.permutation(len(plans))[:PLANS]]
        for least, plan in plans:
            mapping = mapping_of(shape, arch, at, plan)
            if in_plans:
                assert (least, plan) in candidates(bound, budget, least + 1)
            if not is_legal(shape, mapping, residual):
                seen["not legal"] += 1
                continue
            if not fits_register_files(shape, arch, mapping):
                assert streamed, (shape, arch, at)  # else points for which there is none are never bounded
                seen["no room"] += 1
                continue
            schedule = layer_schedule(LayerPlan("", shape, mapping, residual, PREFETCHED), arch)
            cycles, partial = schedule.cycles(arch), Nest(shape, mapping).has_partial_sums()
            assert least <= cycles, (shape, arch, budget, at, plan, least, cycles)
            if in_plans:
                counts_as_the_model(bound, budget, plan, LayerPlan("", shape, mapping, residual, PREFETCHED))
            if buffer_words(shape, arch, mapping, partial) <= budget.words:
                assert traffic.least(int(i), 1 << 60) <= cycles, (shape, arch, budget, at, plan)
                limited = TrafficOf(TransferBound(shape, arch, budget, steps), *of_tiles)
                assert limited.least(int(i), cycles + 1) <= cycles, (shape, arch, budget, at, plan)
                if in_plans:
                    assert (least, plan) in candidates(bound, budget, least + 1, limited.cells(int(i)))
                assert streamed_cycles(shape, arch, budget) <= cycles, (shape, arch, budget, at, plan)
                seen["fits"] += 1
            if in_plans:
                assert everywhere <= cycles, (shape, arch, budget, at, plan)
                needs = stage_sizes(shape, arch, mapping)
                assert buffer_words(shape, arch, mapping, partial) == sum(needs.values()), (shape, arch, at, plan)
                needs.pop("sums", None)  # these are looked at when a mapping is run
                assert sum(needs.values()) <= budget.words, (needs, shape.sizes, budget, at, plan, shape)
                seen["partial"] += partial
                assert int(found.least[int(i)]) <= cycles, (shape, arch, budget, at, plan)
                seen["one buffer"] += tight and 1 in dict(plan.streamed).values()
                seen["shuffled"] += shape.shuffle > 1 and "output" in streamed
            elif not plan.weights:
                assert engines_least(schedule.nodes, arch) <= cycles, (shape, arch, at)
                _, loads, computes, commits = busy_cycles(schedule.nodes)
                assert int(found.cycles[int(i)]) <= computes, (shape, arch, at)
                # Tiles of k that lanes with sums of their own do not divide take longer (LEGAL-6).
                assert int(found.cycles[int(i)]) == computes or at.own_lanes > 1, (shape, arch, at)
                exact["loads"].append(bound.loads() == loads)
                if not partial:
                    exact["commits"].append(bound.commits() == commits - 1)  # the settings of the units
                    if not arch.sequencer.overlap:  # descriptors and their steps
                        exact["in turn"].append(cycles - 24 <= bound.in_turn(computes))
            seen["moving" if streamed else "resident"] += 1
            seen["one slice"] += tight and plan.weights > 0 and plan.weight_buffers == 1
            seen["params in slices"] += plan.params_in_slices
            seen["beyond ping"] += i in beyond
            seen["residual"] += "residual" in streamed
            seen["in turn"] += not (streamed or arch.sequencer.overlap)
            seen["own lanes"] += at.own_lanes > 1
            seen["windows in lanes"] += max(at.lanes[1:]) > 1


def counts_as_the_model(bound: Bound, budget: GlbBudget, plan: BlockPlan, layer: LayerPlan) -> None:
    """What the bounds of a plan are made of is not only below the model: cycles of the array and words are equal."""
    shape, arch = bound.shape, bound.arch
    every = Blocks(shape, arch, budget, tiles_of(shape, bound.at))
    sides = [side.sizes.tolist().index(size) for side, size in zip((every.k, every.h, every.w), plan[:3], strict=True)]
    ifmap = 2 if plan.slices else dict(plan.streamed).get("ifmap", 1) - 1
    cell = tuple(np.array([i]) for i in (*sides, not plan.k_outside, ifmap))
    blocks = Blocks(shape, arch, budget, tiles_of(shape, bound.at), cell)
    times = BlockTimes(blocks, bound)
    assert int(times.compute[0]) == busy_cycles(layer_schedule(layer, arch).nodes)[ARRAY], (shape, bound.at, plan)


def with_wide_windows(rng: np.random.Generator) -> LayerShape:
    """A layer of which neighbours share columns."""
    k, c, h, w, r, s = (int(rng.integers(least, 7)) for least in (1, 1, 1, 1, 1, 2))
    stride = int(rng.integers(1, 3)), int(rng.integers(1, s))
    sides = ((size - 1) * step + taps for size, step, taps in zip((h, w), stride, (r, s), strict=True))
    return LayerShape("mac", Sizes(1, k, c, h, w, r, s), Window((r, s), stride), 2, *sides)


def with_shuffled_channels(shape: LayerShape, rng: np.random.Generator) -> LayerShape:
    """The layer, half of the time with shuffled output channels, in the groups that it has if it has some."""
    few = shape.window.group == 1 or shape.channelwise
    groups = int(rng.choice([2, 3])) if few else shape.window.group
    shuffled = shape.is_mac and shape.sizes.k % groups == 0 and rng.random() < 0.5
    return replace(shape, shuffle=groups) if shuffled else shape


def test_bounds_are_below_the_model() -> None:
    rng, seen, exact = np.random.default_rng(SEED), Counter[str](), defaultdict[str, list[bool]](list)
    for number in range(EXAMPLES):
        drawn = draw(rng)
        overlap = replace(drawn.arch.sequencer, overlap=number % 2 > 0)
        arch = replace(drawn.arch, glb=replace(drawn.arch.glb, words=1 << 20), sequencer=overlap)
        arch = replace(arch, pe=replace(arch.pe, words_per_cycle=(1, 1, 4)[number % 3]))
        arch = replace(arch, dram=replace(arch.dram, words_per_cycle=(3, 0.3, 2.5, 3, 3)[number % 5]))
        if number % 3:
            check(with_shuffled_channels(layer_shape(layer_of(unmapped(drawn.case)[0])), rng), arch, rng, seen, exact)
        else:
            check(with_wide_windows(rng), with_pong(arch, rng), rng, seen, exact)
    assert seen["fits"] > EXAMPLES / 4 and seen["beyond ping"] > EXAMPLES / 8, seen
    assert seen["moving"] > EXAMPLES / 4 and seen["resident"] > EXAMPLES / 8, seen
    assert seen["slices"] > EXAMPLES and seen["one buffer"] > EXAMPLES / 4 and seen["one slice"] > EXAMPLES / 8, seen
    shares = {name: (sum(each), len(each)) for name, each in exact.items()}
    assert all(equal >= 0.7 * number for equal, number in shares.values()) and shares["loads"], shares
    assert seen["in turn"] > EXAMPLES / 40 and seen["residual"] > EXAMPLES / 20 and seen["shuffled"], seen
    assert seen["partial"] > EXAMPLES / 10, seen


def test_plans_of_a_layer_in_one_block() -> None:
    """One by one they are those of the arrays. The array's bound is that of the point, which may be higher."""
    rng, seen = np.random.default_rng(SEED), Counter[str]()
    for number in range(EXAMPLES):
        drawn = draw(rng)
        overlap, dram = replace(drawn.arch.sequencer, overlap=True), drawn.arch.dram
        arch = replace(drawn.arch, sequencer=overlap, dram=replace(dram, words_per_cycle=(0.05, 0.2, 1)[number % 3]))
        shape = with_shuffled_channels(layer_shape(layer_of(unmapped(drawn.case)[0])), rng)
        form = forms_of(shape)[rng.integers(len(forms_of(shape)))]
        every = combinations_below(numbers(shape, arch), form, 1 << 39, cut=False)
        budget = GlbBudget(int(shape.weight_words * rng.choice([0.7, 1.5])) + 400)
        for i in rng.permutation(len(every.cycles))[: 2 * POINTS]:
            bound = Bound(Durations(shape, arch, residual=False), point(numbers(shape, arch), form, every.indices[i]))
            assert bound.compute == every.cycles[i] or bound.at.own_lanes > 1, (shape, arch, bound.at)
            array, plans = bound.cycles(bound.compute), in_one_block(bound, budget, NEVER)
            of_arrays = {plan: least for least, plan in in_blocks(bound, budget, NEVER)}
            of_first = [
                {plan: least for least, plan in each(bound, replace(budget, prefetched=False), NEVER)}
                for each in (in_one_block, in_blocks)
            ]
            for least, plan in plans:
                assert least == max(of_arrays[plan], array), (shape, arch, bound.at, plan)
                assert least - of_first[0][plan] == of_arrays[plan] - of_first[1][plan], (shape, arch, bound.at, plan)
                seen[f"waits at {plan.weights}" if least > array else "array"] += 1
                del of_arrays[plan]
            assert not of_arrays, (shape, arch, bound.at)
    assert seen["array"] > EXAMPLES and all(seen[f"waits at {place}"] for place in (3, 6, 7, 8)), seen


def test_bounds_of_plans_are_those_of_the_tile() -> None:
    """Tiles with blocks of equal sizes have the same plans; those in slices of c depend on the tile's channels, too."""
    rng, seen = np.random.default_rng(SEED), Counter[str]()
    for _ in range(EXAMPLES):
        drawn = draw(rng)
        shape = with_shuffled_channels(layer_shape(layer_of(unmapped(drawn.case)[0])), rng)
        residual, tight = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
        streamed = frozenset(name for name in ("ifmap", "output", *["residual"] * residual) if rng.random() < 0.7)
        budget = GlbBudget(int(rng.integers(100, 4000)), streamed, residual, tight)
        for form in forms_of(shape):
            extents = shape.tiled_together, shape.sizes.h, shape.sizes.w, shape.sizes.c
            tiles = Tiles(form, *(int(rng.integers(1, extent + 1)) for extent in extents))
            blocks = Blocks(shape, drawn.arch, budget, tiles)
            there = np.broadcast_to(blocks.legal & (blocks.least_words <= budget.words), blocks.shaped)
            cycles = np.maximum(blocks.transfers(0), blocks.round_trips)
            every = (
                np.nonzero(there),
                *(np.broadcast_to(each, blocks.shaped)[there] for each in (cycles, blocks.fetched(blocks.moved_image))),
            )
            for one, other in zip(plan_bounds(shape, drawn.arch, budget, tiles), every, strict=True):
                assert np.array_equal(one, other), (shape, drawn.arch, budget, tiles)
            seen["plans"] += len(every[1]) > 1
            seen["sliced"] += bool((every[0][4] == 2).any())
    assert seen["plans"] > EXAMPLES and seen["sliced"] > EXAMPLES / 16, seen


@pytest.mark.parametrize(("rate", "cycles"), [(8, 1), (2.5, 4), (0.3, 36)])
def test_transfers_at_rates_with_decimals(rate: float, cycles: int) -> None:
    """11 words by hand, and a block of 64 words in its one buffer (BOUND-22)."""
    arch = load_arch("spatial-4x4")
    arch = replace(arch, dram=replace(arch.dram, words_per_cycle=rate, latency_cycles=0))
    assert transfer_cycles(11, arch.dram) == cycles
    shape = LayerShape("mac", Sizes(1, 4, 4, 4, 4, 1, 1), Window((1, 1)), 2, 4, 4)
    form = next(form for form in forms_of(shape) if form.order.startswith("hwk"))
    for streamed in ("ifmap", "output"):
        blocks = Blocks(shape, arch, GlbBudget(1 << 16, frozenset({streamed})), Tiles(form, 4, 4, 4, 4))
        assert blocks.round_trips.max() == 64 / rate, streamed


def test_slices_of_weights_come_for_each_tile() -> None:
    """Blocks of 2 of 3 rows and of 4 of 7 columns: 21 tiles of one pixel, not 4 blocks of 8."""
    shape = LayerShape("mac", Sizes(1, 1, 64, 3, 7, 1, 1), Window((1, 1)), 2, 3, 7)
    preset = load_arch("spatial-4x4")
    arch = replace(preset, sequencer=replace(preset.sequencer, overlap=False))
    form = next(form for form in forms_of(shape) if form.order.startswith("hwk"))
    at = Point(form, (1, 1, 1, 1), (1, 1, 1), (1, 1, 1, 2, 1, 1))
    seen = 0
    for least, plan in candidates(
        Bound(Durations(shape, arch, False), at), GlbBudget(364, frozenset({"output"})), 1 << 60
    ):
        if is_legal(shape, mapping := mapping_of(shape, arch, at, plan), False):
            assert least <= layer_cycles(LayerPlan("", shape, mapping, prefetched=PREFETCHED), arch), plan
            seen += plan.weights > 7
    assert seen > 4


def test_weights_that_the_glb_has_no_room_for_come_while_the_layer_runs() -> None:
    """ResNet-50's fc: all of its weights but those that the GLB holds before it starts."""
    shape = LayerShape("mac", Sizes(1, 1000, 2048, 1, 1, 1, 1), Window((1, 1)), 2, 1, 1)
    arch = load_arch("spatial-8x8")
    assert streamed_cycles(shape, arch, GlbBudget(62_488)) == (2_048_000 - 62_488) // 8 == 248_189
    assert streamed_cycles(shape, arch, GlbBudget(62_488, frozenset({"output"}))) == (2_048_000 - 61_488) // 8
    assert streamed_cycles(shape, arch, GlbBudget(2_048_000)) == 0


@pytest.mark.parametrize("number", range(4))
def test_layers_with_many_weights_take_at_least_their_transfers(number: int) -> None:
    """No mapping of a small image with many weights is below: of those that fit, some are near."""
    rng, side, taps = np.random.default_rng(number), number // 2 + 1, 3 - number % 2 * 2
    window = Window((taps, taps), pad=(taps // 2,) * 4)
    shape = LayerShape("mac", Sizes(1, 48, 40, side, side, taps, taps), window, 2, side, side)
    preset = load_arch("spatial-4x4")
    arch = replace(preset, dram=replace(preset.dram, words_per_cycle=1, latency_cycles=8))
    everything, nearest = numbers(shape, arch), inf
    for form, streamed in product(forms_of(shape), (frozenset[str](), frozenset({"ifmap", "output"}))):
        budget = GlbBudget(shape.weight_words // 3, streamed, False, tight=bool(number % 2))
        least, found = (
            streamed_cycles(shape, arch, budget),
            combinations_below(everything, form, 1 << 39, bool(streamed)),
        )
        for i in rng.permutation(len(found.cycles))[:4].tolist():
            at = point(everything, form, found.indices[i].tolist())
            for _, plan in islice(candidates(Bound(Durations(shape, arch, False), at), budget, 1 << 60), 20):
                mapping = mapping_of(shape, arch, at, plan)
                partial = Nest(shape, mapping).has_partial_sums()
                fits = buffer_words(shape, arch, mapping, partial) <= budget.words
                if fits and is_legal(shape, mapping, False) and fits_register_files(shape, arch, mapping):
                    cycles = layer_cycles(LayerPlan("", shape, mapping, False, PREFETCHED), arch)
                    assert least <= cycles, (at, plan, budget)
                    nearest = min(nearest, cycles / least)
    assert nearest < 1.6, nearest


def test_rows_of_pes_that_do_not_divide_taps_add_up_fewer_sums() -> None:
    """7 rows of the kernel, two a PE, are 3 PEs with two and one with one. Its partial sums are added to no others."""
    shape = LayerShape("mac", Sizes(2, 3, 1, 2, 2, 7, 7), Window((7, 7), (4, 4)), 1, 11, 11, shuffle=3)
    preset = load_arch("spatial-4x4")
    arch = replace(preset, sequencer=replace(preset.sequencer, overlap=False))
    everything, form = numbers(shape, arch), next(form for form in forms_of(shape) if form.order.startswith("kcrs"))
    at, seen = Point(form, (1, 1, 1, 4), (1, 2, 1), (1, 1, 1, 1, 2, 3)), 0
    found = combinations_below(everything, form, 1 << 39)
    for indices, cycles, least in zip(found.indices, found.cycles, found.least, strict=True):
        if point(everything, form, indices.tolist()) == at:
            assert least <= Bound(Durations(shape, arch, False), at).cycles(int(cycles))
            seen += 1
    assert seen == 1


def test_an_image_of_which_no_window_fits_moves_in_slices() -> None:
    """One window of all channels is 576 words: slices of them fit 500, and what is always needed is below."""
    shape = LayerShape("mac", Sizes(1, 8, 64, 6, 6, 3, 3), Window((3, 3), pad=(1, 1, 1, 1)), 2, 6, 6)
    arch, streamed = load_arch("spatial-4x4"), frozenset({"ifmap", "output"})
    budget = GlbBudget(500, streamed)
    found = search(shape, arch, budget)
    assert found is not None and least_words(shape, arch, budget) <= budget.words
    (ifmap,) = (each for each in found.mapping.stages if (each.operand, each.memory) == ("ifmap", "glb"))
    assert "c" in {loop.dim for loop in found.mapping.loops[: ifmap.depth]}
    assert streamed_least(shape, arch, streamed, budget.words) <= found.least <= found.cycles


def test_the_search_of_a_layer_that_loads_and_commits_limit_ends_by_itself() -> None:
    """Each result needs nine MACs alone: of combinations with few cycles of macro-instructions most wait for others."""
    window = Window((3, 3), pad=(1, 1, 1, 1), group=128)
    shape = LayerShape("mac", Sizes(1, 128, 1, 14, 14, 3, 3), window, 2, 14, 14)
    found = search(shape, load_arch("spatial-16x16"), GlbBudget(65536))
    assert found is not None and found.least == found.cycles and found.bounded < 1000


def test_blocks_of_results_are_neither_too_small_nor_too_large() -> None:
    """All results go to DRAM, in more cycles than the array needs: each block has a latency, one is waited for."""
    window = Window((3, 3), pad=(1, 1, 1, 1), group=64)
    shape = LayerShape("mac", Sizes(1, 64, 1, 28, 28, 3, 3), window, 2, 28, 28)
    found = search(shape, load_arch("spatial-16x16"), GlbBudget(80_000, frozenset({"output"})))
    assert found is not None and found.least == 64 * 28 * 28 // 8 and found.cycles < 1.1 * found.least


def test_where_weights_alone_come_in_slices_enough_is_looked_at() -> None:
    """What all points with few cycles take at least is far below what the best takes."""
    shape = LayerShape("mac", Sizes(1, 512, 512, 7, 7, 1, 1), Window((1, 1)), 2, 7, 7)
    found = search(shape, load_arch("spatial-16x16"), GlbBudget(250_000))
    assert found is not None and found.cycles < 1.001 * found.least


def test_plans_that_are_alike_do_not_use_up_all_runs() -> None:
    """All blocks of the points with the least bounds take the same cycles: other points are run, too."""
    shape = LayerShape("mac", Sizes(1, 64, 256, 56, 56, 1, 1), Window((1, 1)), 2, 56, 56)
    found = search(shape, load_arch("spatial-16x16"), GlbBudget(245_760, frozenset({"output"})))
    assert found is not None and found.cycles < 1.02 * found.least


def test_results_do_not_hold_up_slices() -> None:
    """Image, results and weights move, the last in slices: 216,502 cycles where second slices are behind results.

    The best, 209,606 cycles, is proven, if a search goes on.
    """
    shape = LayerShape("mac", Sizes(1, 512, 512, 14, 14, 1, 1), Window((1, 1)), 2, 14, 14)
    assert (found := search(shape, load_arch("spatial-16x16"), MOVING)) and found.cycles <= 209_810
    found = of_whole_space(shape, load_arch("spatial-16x16"), MOVING)
    assert found is not None and found.least == found.cycles == 209_606


def test_few_images_fit_where_there_is_little_room() -> None:
    """One channel of the image is 784 words: 15,360 have room for some at a time, each of which comes once."""
    window = Window((3, 3), (2, 2), (1, 1, 1, 1), group=256)
    shape = LayerShape("mac", Sizes(1, 256, 1, 14, 14, 3, 3), window, 2, 28, 28)
    about = cycles_about(shape, load_arch("spatial-16x16"), GlbBudget(15_360, frozenset({"ifmap"})))
    assert about == 256 * 28 * 28 // 8


def test_columns_that_neighbours_pass_on_are_loaded_once() -> None:
    """Eight PEs side by side, each with 3 columns of 9 words, and a ping of 12: 8 of them come through a port of one
    word a cycle, and 2 more for the last PE.
    """
    shape = LayerShape("mac", Sizes(1, 1, 3, 1, 8, 3, 3), Window((3, 3), pad=(0, 1, 0, 1)), 2, 3, 8)
    preset = load_arch("seed-8x8")
    arch = replace(preset, rows=1, glb=replace(preset.glb, words_per_cycle=1))
    form = forms_of(shape)[0]
    at = Point(form, (1, 1, 1, 1), (1, 1, 8), (1, 1, 1, 3, 3, 3))
    everything = numbers(shape, arch)
    found = combinations_below(everything, form, 1 << 39)
    (compute,) = (
        int(cycles)
        for which, cycles in zip(found.indices.tolist(), found.cycles.tolist(), strict=True)
        if point(everything, form, which) == at
    )
    bound = Bound(Durations(shape, arch, False), at)
    assert bound.loads() == 27 + 9 * (8 + 2)
    mapping = mapping_of(shape, arch, at, BlockPlan(1, 1, 8))
    cycles = layer_cycles(LayerPlan("", shape, mapping, False, PREFETCHED), arch)
    assert cycles - 8 < bound.cycles(compute) <= cycles


def test_rows_that_pes_share_where_they_share_out_rows_and_taps() -> None:
    """Of 6 rows and 6 taps each half of the PEs has 3: they start at row 0, 3, 3 and 6, not all apart."""
    shape = LayerShape("mac", Sizes(1, 2, 1, 6, 6, 6, 3), Window((6, 3), (1, 2)), 2, 11, 13)
    preset = load_arch("spatial-4x4")
    arch = replace(
        preset,
        glb=replace(preset.glb, words_per_cycle=2),
        links=replace(preset.links, south=True),
        sequencer=replace(preset.sequencer, overlap=False),
    )
    form = next(form for form in forms_of(shape) if form.order == "ckrs|WhwI")
    bound = Bound(Durations(shape, arch, False), Point(form, (1, 2, 1, 2), (2, 1, 2), (1, 2, 1, 1, 3, 1)))
    nodes = layer_schedule(LayerPlan("", shape, mapping_of(shape, arch, bound.at, BlockPlan(2, 6, 6))), arch).nodes
    assert bound.loads() == busy_cycles(nodes)[LOAD]


def test_points_whose_sums_are_added_up_in_the_glb_are_left_out() -> None:
    """A layer with many such points, of which bounds of its transfers alone know nothing: 443,066 cycles with them."""
    shape = LayerShape("mac", Sizes(1, 256, 512, 28, 28, 1, 1), Window((1, 1)), 2, 28, 28)
    found = search(shape, load_arch("spatial-16x16"), MOVING)
    assert found is not None and found.cycles < 415_000


@pytest.mark.parametrize(
    ("port", "units", "rows", "what", "cycles"),
    [
        (1, 1, 1, "", 24 + 24 * 2 * 2),
        (1, 1, 1, "residual", 24 + 24 * 2 * 2 + 24),
        (1, 1, 1, "partial", 24 + 24 * 2 * 2 + 24 * 2 * 2),
        (1, 1, 1, "per position", 24),
        (1, 1, 3, "", 24 + 24 * 2 * 2 + 2),
        (256, 1, 1, "", 2 * 4),
        (256, 2, 1, "", 2 * 4 // 2),
    ],
)
def test_a_commit_takes_the_words_of_the_port_or_the_psums_of_the_units(
    port: int, units: int, rows: int, what: str, cycles: int
) -> None:
    """COMMIT-3, COMMIT-6 by hand: 2 x 3 PEs have 4 channels each. Bias, scale and partial sums have two words."""
    arch = load_arch("spatial-16x16")
    glb, commit = replace(arch.glb, words_per_cycle=port), replace(arch.commit, units_per_column=units)
    window, sizes = Window((3, 1)), Sizes(1, 24, 8, 1, 1, 3, 1)
    shape = LayerShape("mac", sizes, window, 2, 3, 1, per_position=what == "per position")
    durations = Durations(shape, replace(arch, glb=glb, commit=commit), what == "residual")
    one = LoopPart(1, 1, 1, 1, 1)
    k, r = one._replace(rows=2, cols=3, held=4), one._replace(rows=rows)
    assert durations.commit(k, one, one, one, r, what == "partial") == cycles


def test_engines_that_do_not_overlap_add_up() -> None:
    """By hand: four macro-instructions of 8 + 4 cycles, eight loads of 8 + 1, four commits of 4 + 4, all decoded."""
    shape, arch = LayerShape("mac", Sizes(1, 4, 8, 4, 4, 1, 1), Window((1, 1)), 2, 4, 4), load_arch("seed-4x4")
    form = next(form for form in forms_of(shape) if form.order == "khw|crsWI")
    bound = Bound(Durations(shape, arch, False), Point(form, (4, 1, 1, 1), (1, 4, 1), (1, 1, 1, 8, 1, 1)))
    assert bound.cycles(4 * 12) == 8 + 4 + 4 * 12 + 8 * (8 + 1 + 1) + 4 * (4 + 1 + 4) == 176
    mapping = mapping_of(shape, arch, bound.at, BlockPlan(4, 4, 4))
    assert layer_cycles(LayerPlan("", shape, mapping, False, PREFETCHED), arch) == 179


def test_blocks_of_any_size_have_the_least_trips_of_all() -> None:
    """Ten rows on four PEs: 3 + 1 trips of a block of 10, 1 of each of 4, 4 and 2; 5 leave a PE without work."""
    whole, cut = (table(10, 4, 1, (1,), False, True, False, cut) for cut in (False, True))
    assert whole.held[4, 1, 0] == 4 and cut.held[4, 1, 0] == 3


@pytest.mark.parametrize(
    ("channels", "rows", "cols", "box", "spread", "trips", "held"),
    [
        (8, 2, 1, 3, True, 2, 3 + 1),  # three and three; of the rest of two one each
        (8, 2, 1, 3, False, 2, 3 + 2),  # rests of other dimensions go to one PE
        (9, 2, 1, 3, True, 2, 3 + 3),  # two do not divide a rest of three
        (10, 4, 1, 2, True, 2, 2 + 2),  # two fill a box
        (20, 2, 2, 3, True, 3, 3 + 3 + 1),  # twelve on all PEs, six on those of a row, one on each of its columns
    ],
)
def test_bounds_spread_a_rest_of_channels(
    channels: int, rows: int, cols: int, box: int, spread: bool, trips: int, held: int
) -> None:
    """Tiles of rows * cols * box channels, PEs side by side; the rest goes to as many PE sets as divide it."""
    tiled = table(channels, rows, cols, (box,), spread, False, False)
    assert (tiled.trips[rows, cols, 0], tiled.held[rows, cols, 0]) == (trips, held)


# Of forms with one name, which have the same combinations, none with c outside: its sums are partial more often.
ORDERS = ("khw|crsWI", "hwk|crsWI", "kcrs|WhwI", "hwcrs|IkW")


def dividing(arch: Arch, most: int) -> Iterator[tuple[Numbers, Combinations, int, Bound]]:
    """Combinations whose loops divide all dimensions, with PEs that have one row and one tap of a column each."""
    rng = np.random.default_rng(SEED)
    shapes = [
        LayerShape("mac", Sizes(2, 8, 4, 4, 4, 1, 1), Window((1, 1)), 0, 4, 4),
        LayerShape("mac", Sizes(1, 4, 4, 4, 2, 3, 1), Window((3, 1), (2, 1)), 0, 9, 2),
        LayerShape("mac", Sizes(1, 4, 2, 4, 2, 3, 1), Window((3, 1), (1, 2), dilation=(2, 1)), 0, 8, 3),
        LayerShape("mac", Sizes(1, 8, 1, 4, 4, 3, 1), Window((3, 1), (1, 1), group=8), 0, 6, 4),
    ]
    for shape, form in product(shapes, [form for form in FORMS if form.order in ORDERS]):
        if form not in forms_of(shape):
            continue
        everything = numbers(shape, arch)
        found = combinations_below(everything, form, 1 << 39)
        for i in rng.permutation(len(found.cycles))[:most].tolist():
            bound = Bound(Durations(shape, arch, residual=False), point(everything, form, found.indices[i].tolist()))
            first = {dim: parts[0] for dim, parts in bound.parts.items()}
            one_row = shape.sizes.r == 1 or (first["h"].held == first["r"].held == 1)
            if one_row and all(len(parts) == 1 for parts in bound.parts.values()):
                yield everything, found, i, bound


@pytest.mark.parametrize("overlap", [True, False])
def test_bounds_of_all_combinations_are_those_of_points_whose_loops_divide(overlap: bool) -> None:
    """A word a cycle through the port: then nothing is rounded."""
    arch = load_arch("spatial-4x4")
    arch = replace(
        arch, glb=replace(arch.glb, words_per_cycle=1), sequencer=replace(arch.sequencer, overlap=overlap),
        links=replace(arch.links, n2n=False),
    )  # fmt: skip
    seen = Counter[str]()
    for everything, found, i, bound in dividing(arch, 150):
        shape, first = everything.shape, {dim: parts[0] for dim, parts in bound.parts.items()}
        # Else rows that PEs share are a bound.
        tiled = shape.window.dilation[0] == 1 and not block_distributed(found.form, "h")
        if not (tiled or first["r"].rows == 1 or first["h"].rows * first["h"].cols == 1):
            continue
        compute, least = int(found.cycles[i]), int(found.least[i])
        if not overlap:
            assert least == bound.in_turn(compute) - bound.head, (shape, bound.at)
        elif not bound.partial and first["c"].rows * first["r"].rows == 1:
            image = prod(first[dim].held for dim in ("hwck" if shape.channelwise else "hwc"))
            words = image + prod(first[dim].held for dim in "kcrs")
            assert least == max(compute + words, bound.loads(), bound.commits()), (shape, bound.at)
        else:
            continue
        seen[found.form.order] += 1
        seen["partial"] += bound.partial
    assert min(seen[order] for order in ORDERS) > 10 and (overlap or seen["partial"] > 10), seen


EVENTS = ("mac", "weight_read", "weight_write", "ifmap_read", "ifmap_write", "psum_read", "psum_write", "south", "bus")


def test_estimates_of_energy_are_the_model_s_where_loops_divide() -> None:
    """With one price at a time: operations, and words in PEs, on buses, between PEs, and at the port of the GLB."""
    arch = load_arch("spatial-4x4")
    arch = replace(arch, links=replace(arch.links, n2n=False))
    seen = Counter[str]()
    for everything, found, i, bound in dividing(arch, 30):
        shape, first = everything.shape, {dim: parts[0] for dim, parts in bound.parts.items()}
        alike = shape.window.stride[0] == shape.window.dilation[0] and not block_distributed(found.form, "h")
        if not (alike or first["r"].rows == 1 or first["h"].rows * first["h"].cols == 1):
            continue  # which rows PEs share is not counted
        mapping = mapping_of(shape, arch, bound.at, BlockPlan(shape.tiled_together, shape.sizes.h, shape.sizes.w))
        counters = operand_traffic(shape, mapping, arch, False).counters()
        beside = {"glb_read": 0, "glb_write": shape.weight_words}  # from DRAM, which count for plans
        for name in (*EVENTS, *beside):
            costs = replace(NOTHING, **{name: 1.0})
            about = array_energy(everything, found.form, found.indices[i : i + 1], costs, cut=False)
            exact = energy(counters, costs)["total"] - beside.get(name, 0)
            assert about[0] == pytest.approx(exact), (name, shape, bound.at)
        seen[found.form.order] += 1
        seen["partial"] += bound.partial
    assert min(seen[order] for order in ORDERS) > 5 and seen["partial"] > 5, seen


def test_combinations_are_the_same_if_few_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, arch = LayerShape("mac", Sizes(1, 8, 6, 5, 4, 3, 3), Window((3, 3)), 2, 7, 6), load_arch("spatial-4x4")
    everything = numbers(shape, arch)
    together = combinations_below(everything, FORMS[0], 2000)
    monkeypatch.setattr(combinations, "AT_ONCE", 5000)
    assert len(everything.rows) * len(everything.cols) * len(everything.boxes) > 10 * combinations.AT_ONCE
    in_parts = combinations_below(everything, FORMS[0], 2000)
    for one, other in zip(together[1:], in_parts[1:], strict=True):
        assert np.array_equal(one, other)
    assert len(together.cycles) > 100 and together.beyond == 2000 and (np.diff(together.least) >= 0).all()
    # Without any it is the lowest bound of all, or the fewest steps if these are too many.
    lowest = int(together.least[0])
    assert combinations_below(everything, FORMS[0], lowest).beyond == lowest
    assert combinations_below(everything, FORMS[0], 10).beyond == prod(vars(shape.sizes).values()) // 16
