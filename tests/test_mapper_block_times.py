"""The bounds of blocks, by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby, product
from math import prod
from typing import Any

import numpy as np
import pytest
from test_mapper_search import array

from cnncc.arch.model import Arch, load_arch
from cnncc.mapper.block_plans import candidates, plan_at
from cnncc.mapper.block_times import BlockTimes
from cnncc.mapper.block_transfers import BlockTransfers
from cnncc.mapper.blocks import Blocks
from cnncc.mapper.bound import Bound, Durations
from cnncc.mapper.search import search
from cnncc.mapper.space import FORMS, Point, forms_of, mapping_of
from cnncc.mapper.tiles import Tiles, tiles_of
from cnncc.mapper.transfer_bound import TransferBound, cycles_about
from cnncc.mapping.mapping import Sizes
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.window import Window

ARCH = load_arch("spatial-16x16")
MOVING = GlbBudget(65536, frozenset({"ifmap", "output"}))
WITH_RESIDUAL = GlbBudget(65536, frozenset({"ifmap", "output", "residual"}), residual=True)
BESIDE = (("ifmap", 2), ("output", 2), ("residual", 2))
GAP = 4 + 1 + 48 + 1  # of commits, one cycle, 3 x 16 words for a PE, of the bus
COMPUTE = 512 * 128 * 28 * 28 // 256 + 4 * 1096  # 1,096 macro-instructions


def pointwise(k: int, c: int, side: int) -> LayerShape:
    return LayerShape("mac", Sizes(1, k, c, side, side, 1, 1), Window((1, 1)), 2, side, side)


def depthwise(channels: int, side: int) -> LayerShape:
    window = Window((3, 3), pad=(1, 1, 1, 1), group=channels)
    return LayerShape("mac", Sizes(1, channels, 1, side, side, 3, 3), window, 2, side, side)


def at_point(order: str, rows: tuple[int, ...], cols: tuple[int, ...], box: tuple[int, ...]) -> Point:
    form = next(form for form in FORMS if form.order == order)
    return Point(form, rows, cols, box)


def least_and_cycles(
    shape: LayerShape, at: Point, budget: GlbBudget, arch: Arch = ARCH, **wanted: object
) -> tuple[int, int]:
    """The bound of the plan with what is wanted that comes first, and what the model says."""
    for least, plan in candidates(Bound(Durations(shape, arch, budget.residual), at), budget, 1 << 60):
        if wanted.items() <= plan._asdict().items():
            mapping = mapping_of(shape, arch, at, plan)
            return least, layer_cycles(LayerPlan("", shape, mapping, budget.residual, PREFETCHED), arch)
    raise LookupError(wanted)


def rules(shape: LayerShape, at: Point, budget: GlbBudget, arch: Arch = ARCH, **wanted: object) -> dict[str, float]:
    """What each rule says of that plan, as the sum of the bound does not show a rule that says too little."""
    bound = Bound(Durations(shape, arch, budget.residual), at)
    plan = next(plan for _, plan in candidates(bound, budget, 1 << 60) if wanted.items() <= plan._asdict().items())
    tiles = tiles_of(shape, at)
    every = Blocks(shape, arch, budget, tiles)
    sides = [side.sizes.tolist().index(size) for side, size in zip((every.k, every.h, every.w), plan[:3], strict=True)]
    ifmap = 2 if plan.slices else dict(plan.streamed).get("ifmap", 1) - 1
    blocks = Blocks(shape, arch, budget, tiles, tuple(np.array([i]) for i in (*sides, not plan.k_outside, ifmap)))
    times = BlockTimes(blocks, bound)
    transfers = BlockTransfers(times)
    staged = ((stage, blocks.buffers(stage)) for stage in blocks.stages())
    stage, buffers = next(each for each in staged if each[1].fit.all() and plan_at(blocks, 0, *each) == plan)
    said = {name: getattr(transfers, name)(stage) for name in OF_STAGE}
    said |= {name: getattr(times, name)() for name in ("waits", "residual_comes", "buffers_of_results", "loading")}
    said |= {"in_one_buffer": transfers.in_one_buffer(stage, buffers), "refills": times.refills}
    said |= {"dma": blocks.transfers(stage.words - stage.buffer), "compute": times.compute}
    said |= {"macros": times.macros, "commits": times.commits, "committing": times.committing()}
    said |= {"beside_array": transfers.beside_array(stage, buffers), "array": times.array()}
    return {name: float(np.broadcast_to(value, (1,))[0]) for name, value in said.items()}


OF_STAGE = (
    "first_results", "last_iteration", "third_slices", "behind_weights", "behind_image", "small_blocks", "in_turn"
)  # fmt: skip


def test_blocks_begin_with_weights_that_take_longer_than_what_there_is_to_do() -> None:
    """By hand: 8 x 6 x 14 macro-instructions, 64 full blocks of 5 rows and 3 columns, all but each fourth of which come
    behind another. 64 words for each PE take 512 cycles, 48 of the image 48, and one to arrive: meanwhile there are two
    macro-instructions of 196.
    """
    at, streamed = at_point("kcrs|WhwI", (1, 1, 16, 1), (16, 1, 1), (4, 3, 1, 16, 1, 1)), (("ifmap", 2), ("output", 2))
    least, cycles = least_and_cycles(
        pointwise(512, 256, 14), at, MOVING, k=64, h=5, w=3, k_outside=True, streamed=streamed
    )
    compute = 512 * 256 * 196 // 256 + 4 * 8 * 6 * 14
    assert compute + 48 * (512 + 48 + 1 - 2 * 196) <= least <= cycles
    said = rules(pointwise(512, 256, 14), at, MOVING, k=64, h=5, w=3, k_outside=True, streamed=streamed)
    assert said["waits"] == 48 * (512 + 48 + 1 - 2 * 196)
    # 5 + 5 + 4 rows of 3 + 3 + 3 + 3 + 2 columns are 14 x 5 tiles of one row, of 64 channels.
    assert said["macros"] == said["commits"] == 8 * 14 * 5
    assert said["compute"] == 512 * 256 * 196 // 256 + 4 * 8 * 14 * 5
    # A result a cycle from each of 16 columns; 16 rows add up in each commit.
    assert said["committing"] == 512 * 196 // 16 + 15 * said["commits"]


@pytest.mark.parametrize(
    ("bus", "port", "image"), [(18, 64, 16 * 18), (2, 64, 16 * 4 * 18 // 2), (18, 8, 16 * 16 * 18 // 8)]
)
def test_blocks_load_windows_into_pes_over_buses_through_the_port(bus: int, port: int, image: int) -> None:
    """By hand: 4 blocks of 4 x 4 outputs, 8 channels, two for each macro-instruction. 4 x 4 PEs have an output of two
    channels, and load 2 x 9 words for it: a PE, a bus for 4 PEs, or the port for 16. The weights come for each block.
    """
    arch = replace(ARCH, bus=replace(ARCH.bus, burst_words=bus), glb=replace(ARCH.glb, words_per_cycle=port))
    at = at_point("kcrs|WhwI", (1, 4, 1, 1), (1, 1, 4), (2, 1, 1, 1, 3, 3))
    said = rules(depthwise(8, 8), at, MOVING, arch, k=8, h=4, w=4)
    assert said["macros"] == 4 * 4
    assert said["loading"] == 4 * 4 * 18 + image
    least, cycles = least_and_cycles(depthwise(8, 8), at, MOVING, arch, k=8, h=4, w=4)
    assert said["loading"] < least <= cycles


@pytest.mark.parametrize("pong_words", [0, 64])
def test_buses_have_a_column_once_that_neighbours_pass_on(pong_words: int) -> None:
    """By hand: of 3 columns of 3 words the 4 PEs of a row load one each, and the last one two more."""
    pe = replace(ARCH.pe, pong_words=pong_words, virtual_words=pong_words)
    arch = replace(ARCH, pe=pe, bus=replace(ARCH.bus, burst_words=1))
    at = at_point("kcrs|WhwI", (1, 4, 1, 1), (1, 1, 4), (2, 1, 1, 1, 3, 3))
    shape = LayerShape("mac", Sizes(1, 8, 4, 8, 8, 3, 3), Window((3, 3), pad=(1, 1, 1, 1)), 2, 8, 8)
    said = rules(shape, at, MOVING, arch, k=8, h=4, w=4)
    assert said["macros"] == 4 * 4 * 4
    assert said["loading"] == 4 * 4 * 4 * 18 + 64 * (4 + 2) * 3


def test_one_buffer_of_the_image_is_filled_behind_the_results_of_its_block() -> None:
    """By hand: 5 blocks of 88 channels and one of 72. In front of the array comes an image, behind it go results; in
    between, five times, results, then the next image, with the latencies of a commit and of the DMA.
    """
    shape = depthwise(512, 14)
    form = next(form for form in forms_of(shape) if form.name == "os")
    at = Point(form, (1, 4, 1, 3), (8, 2, 1), (1, 14, 1, 1, 1, 3))
    least, cycles = least_and_cycles(shape, at, MOVING, k=88, h=14, w=14, streamed=(("ifmap", 1), ("output", 2)))
    compute = 512 * 14 * 14 * 9 // 256
    assert compute + 2 * 512 * 196 // 8 + 5 * (4 + 64) <= least <= cycles < 1.05 * least
    said = rules(shape, at, MOVING, k=88, h=14, w=14, streamed=(("ifmap", 1), ("output", 2)))
    assert said["refills"] == (2 * 512 - 88 - 72) * 196 // 8 + 5 * (4 + 64)


def test_residuals_wait_until_the_results_of_two_blocks_before_have_left() -> None:
    """By hand: of 10 x 7 x 14 blocks all but two wait for a latency, in which nothing else comes."""
    shape = pointwise(256, 64, 56)
    form = next(form for form in forms_of(shape) if form.name == "os")
    at = Point(form, (1, 4, 4, 1), (4, 1, 4), (7, 1, 2, 16, 1, 1))
    budget = GlbBudget(847_872, frozenset({"output", "residual"}), residual=True)
    least, cycles = least_and_cycles(shape, at, budget, k=28, h=8, w=4, weight_buffers=1)
    assert 2 * 256 * 56 * 56 // 8 + 978 * 64 <= least <= cycles < 1.01 * least
    said = rules(shape, at, budget, k=28, h=8, w=4, weight_buffers=1)
    assert said["dma"] == 2 * 256 * 56 * 56 // 8 + 978 * 64
    # A first block and a last one of 28 and of 4 channels; a latency each.
    assert said["beside_array"] == said["dma"] + 64 + (2 + 2 + 2 + 1 + 4)


def test_the_first_commit_waits_for_its_residual() -> None:
    """By hand: 84 x 16 x 16 words and a latency are 2,752 cycles. There are two macro-instructions of 7 x 2 x 16 + 4
    meanwhile, and 188 cycles in front of them: 4 + 3 instructions, 112 weights for 16 places, 32 words and one.
    """
    shape = pointwise(256, 64, 56)
    at = at_point("khw|crsWI", (1, 4, 4, 1), (4, 1, 4), (7, 1, 2, 16, 1, 1))
    budget = GlbBudget(847_872, frozenset({"output", "residual"}), residual=True)
    least, cycles = least_and_cycles(shape, at, budget, k=84, h=16, w=16, k_outside=True)
    compute = 256 * 64 * 56 * 56 // 256 + 4 * 10 * 7 * 14
    assert compute + 188 + 2752 - 2 * 228 - 188 <= least <= cycles
    said = rules(shape, at, budget, k=84, h=16, w=16, k_outside=True)
    assert said["residual_comes"] == 2752 - 2 * 228 - 188


def test_results_go_through_two_buffers() -> None:
    """By hand: 72 blocks have 50,176 results, 16 of which are committed in a cycle, and 8 go to DRAM."""
    shape, budget = depthwise(64, 28), GlbBudget(80_000, frozenset({"output"}))
    at = at_point("khw|crsWI", (1, 5, 1, 3), (8, 2, 1), (1, 10, 1, 1, 1, 3))
    least, cycles = least_and_cycles(shape, at, budget, k=8, h=10, w=10)
    halves = (50_176 // 16 + 72 * 4 + 50_176 // 8 + 72 * 64) // 2
    assert halves <= least <= cycles
    head = 2 + 2 + 2 + 1 + 3  # descriptors of image, results, weights, parameters; a unit; loops over k, h and w
    assert rules(shape, at, budget, k=8, h=10, w=10)["buffers_of_results"] == head + halves


@pytest.mark.parametrize("streamed", [{"ifmap"}, {"ifmap", "output"}])
def test_small_blocks_wait_for_the_latency_of_dram(streamed: set[str]) -> None:
    """A pool of 2 x 2: by hand 64 x 112 x 112 / 32 blocks of 128 words of the image, or of 32 results."""
    shape = LayerShape("max", Sizes(1, 64, 1, 112, 112, 2, 2), Window((2, 2), (2, 2), group=64), 0, 224, 224)
    at = Point(forms_of(shape)[0], (1, 16, 1, 1), (1, 1, 1), (1, 2, 1, 1, 2, 2))
    arch, budget = load_arch("cbrain-16-16"), GlbBudget(700_000, frozenset(streamed))
    least, cycles = least_and_cycles(shape, at, budget, arch, k=1, h=16, w=2)
    assert (200_704 + 25_088 * 64) // 2 <= least <= cycles < 1.3 * least
    found = search(shape, arch, budget)
    assert found is not None and found.cycles < 300_000  # the best blocks of 128 words take 940,822


def test_sums_stay_in_register_files_until_they_are_committed() -> None:
    """By hand: 64 x 14 x 144 times 19 macro-instructions of 3 steps, the last of 2, and a commit of as many cycles for
    each, with a latency of 4 behind it. There are two halves.
    """
    shape = LayerShape("mac", Sizes(1, 256, 256, 56, 56, 3, 3), Window((3, 3), pad=(1, 1, 1, 1)), 2, 56, 56)
    at = at_point("hwcrs|IkW", (4, 4, 1, 1), (1, 1, 1), (1, 3, 1, 16, 1, 1))
    at = replace(at, lanes=(16, 1, 1))
    arch, budget = load_arch("cbrain-16-16"), GlbBudget(772_096, frozenset({"output"}))
    least, cycles = least_and_cycles(shape, at, budget, arch, k=8, h=4, w=56)
    steps = 64 * 14 * 144 * 56
    assert (2 * steps + 64 * 14 * 144 * 19 * 4) // 2 <= least <= cycles < 1.01 * least
    whole = Bound(Durations(shape, arch, residual=False), at)
    assert whole.sums(steps) == (2 * steps + 64 * 14 * 144 * 19 * 4) // 2


def test_a_rest_of_taps_that_fewer_pes_add_up_is_committed_by_itself() -> None:
    """Three rows of taps on two rows of PEs have two commits for each result, on three rows of PEs one."""
    shape, budget = depthwise(64, 28), GlbBudget(80_000, frozenset({"output"}))
    cases = ((1, 7, 1, 2), 14, (4, 28, 14), 2 * 16 * 2), ((1, 4, 1, 3), 10, (8, 16, 10), 16 * 2 * 3)
    for rows, box, (k, h, w), commits in cases:
        at = at_point("khw|crsWI", rows, (4, 4, 1), (1, box, 1, 1, 1, 3))
        said = rules(shape, at, budget, k=k, h=h, w=w)
        assert said["commits"] == commits
        least, cycles = least_and_cycles(shape, at, budget, k=k, h=h, w=w)
        assert said["committing"] < least <= cycles < 1.2 * least


def test_nothing_leaves_before_the_first_block_of_results_is_there() -> None:
    """By hand: 18 of 32 channels are 6 x 2 x 28 macro-instructions of 3 channels, 4 columns and 3 taps. Meanwhile no
    more than the second slice of weights comes; behind it all results go out.
    """
    shape = depthwise(32, 112)
    form = next(form for form in forms_of(shape) if form.order.endswith("WI"))
    at = Point(form, (1, 4, 1, 3), (1, 16, 1), (3, 4, 1, 1, 1, 3))
    budget = GlbBudget(647_168, frozenset({"output"}))
    least, cycles = least_and_cycles(shape, at, budget, k=18, h=112, w=112, weight_buffers=2)
    assert int(9 + 13_440 - 126 / 8 + 64 + (401_408 + 126) // 8) == 63_688 <= least <= cycles < 1.05 * least
    assert rules(shape, at, budget, k=18, h=112, w=112, weight_buffers=2)["first_results"] == 13_440 - 126 / 8 + 64


def test_short_ends_of_loops_leave_little_time_for_the_next_load() -> None:
    """By hand: 16 channels of each PE are 5 + 5 + 5 + 1. While the last one is worked on, 3 x 16 + 4 cycles, come the
    80 weights of 64 PEs, in 160 + 1: at least in front of 200 of the blocks that come behind others in their row.
    """
    at = at_point("hwcrs|IkW", (1, 2, 8, 1), (8, 2, 1), (5, 3, 1, 16, 1, 1))
    least, cycles = least_and_cycles(pointwise(512, 128, 28), at, WITH_RESIDUAL, k=128, h=4, w=3, k_outside=True)
    assert COMPUTE + 200 * (161 - 52) <= least <= cycles < 1.2 * least


def test_small_blocks_at_the_ends_of_rows_leave_little_time() -> None:
    """By hand: 28 columns are 9 x 3 + 1. The first block of a row waits for results and residuals of 1,536 words, its
    own image of 1,536, two latencies, a gap: 758 cycles, and the last one of the row before takes 4 x 68. 24 rows are
    whole; the second blocks behind two of them wait for weights, too.
    """
    at = at_point("kcrs|WhwI", (1, 2, 8, 1), (8, 2, 1), (4, 3, 1, 16, 1, 1))
    least, cycles = least_and_cycles(pointwise(512, 128, 28), at, WITH_RESIDUAL, k=128, h=4, w=3, k_outside=True)
    second = 192 + 192 + 512 // 8 + 2048 + 2 * 64 + GAP
    waits = 22 * (3 * 192 + 2 * 64 + GAP - 272) + 2 * (second - 784)
    assert COMPUTE + waits <= least <= cycles < 1.1 * least
    said = rules(pointwise(512, 128, 28), at, WITH_RESIDUAL, k=128, h=4, w=3, k_outside=True)
    assert said["behind_weights"] == waits and said["third_slices"] == 0


def test_slices_wait_for_residuals() -> None:
    """By hand: third slices of 384 words come behind results and residuals of 1,536 words and two latencies. There are
    two slices of 196 cycles to work on. Of 252 full blocks 8 do not count, and two wait for 16,384 weights behind small
    results.
    """
    at = at_point("ckrs|WhwI", (8, 1, 2, 1), (4, 1, 4), (4, 1, 3, 16, 1, 1))
    shape = pointwise(512, 128, 28)
    least, cycles = least_and_cycles(shape, at, WITH_RESIDUAL, k=128, h=3, w=4, k_outside=True, slices=True)
    waits = 242 * (2 * 192 + 48 + 2 * 64 + 4 - 2 * 196) + 2 * (192 + 48 + 64 + 2048 + 2 * 64 + 4 - 2 * 196)
    assert COMPUTE + waits <= least <= cycles < 1.3 * least
    assert rules(shape, at, WITH_RESIDUAL, k=128, h=3, w=4, k_outside=True, slices=True)["third_slices"] == waits


def test_second_blocks_of_the_image_wait_for_weights() -> None:
    """By hand: for 14 of 16 slices of 64 channels results of 1,792 words go out, then 64 x 256 weights come in, and the
    second block of the image, of 7,168 words: while the array works on the first one, 2 x 4 x 196 + 2 x 132 cycles.
    """
    at = at_point("kcrs|WhwI", (1, 2, 8, 1), (16, 1, 1), (4, 3, 1, 16, 1, 1))
    least, cycles = least_and_cycles(pointwise(1024, 256, 14), at, MOVING, k=64, h=2, w=14, weights=3)
    waits = 14 * (224 + 2048 + 896 + 64 + GAP - 1832)
    assert 205_184 + waits <= least <= cycles < 1.03 * least
    said = rules(pointwise(1024, 256, 14), at, MOVING, k=64, h=2, w=14, weights=3)
    assert said["behind_weights"] == waits


def test_weights_take_longer_than_a_small_last_block() -> None:
    """By hand: 14 rows are 4 x 3 + 2. All weights come for the last two rows, too, but for two slices of 1,024 cycles,
    and their results go out: 3,584 cycles. The array works for 1/7 of all its cycles on them.
    """
    at = at_point("ckrs|WhwI", (1, 1, 16, 1), (8, 1, 2), (4, 1, 3, 16, 1, 1))
    shape = pointwise(1024, 256, 14)
    least, cycles = least_and_cycles(shape, at, MOVING, k=128, h=3, w=14, k_outside=False, weights=7)
    assert 205_184 * 6 // 7 + 30 * 1024 + 3584 - 2 * 1344 <= least <= cycles < 1.05 * least


def test_the_residual_behind_the_next_block_may_be_smaller() -> None:
    """Rows of 12 blocks of 6 channels and one of 3, six times: the residual of the last one comes sooner."""
    arch = array(4, 4, (64, 6, 5), lanes=4, pong=(8, 2))
    pe = replace(arch.pe, weight_halves=1, ifmap_halves=1, psum_halves=1)
    arch = replace(arch, pe=pe, dram=replace(arch.dram, words_per_cycle=3, latency_cycles=17))
    arch = replace(arch, glb=replace(arch.glb, words_per_cycle=2))
    shape = LayerShape("mac", Sizes(3, 75, 1, 2, 2, 1, 1), Window((1, 1)), 0, 2, 2)
    budget = GlbBudget(121, frozenset({"output", "residual"}), residual=True)
    at = at_point("kcrs|WhwI", (3, 1, 1, 1), (1, 2, 1), (1, 1, 1, 1, 1, 1))
    plans = candidates(Bound(Durations(shape, arch, residual=True), at), budget, 1 << 60)
    least, plan = next(each for each in plans if each[1][:5] == (6, 2, 1, False, 6))
    layer = LayerPlan("", shape, mapping_of(shape, arch, at, plan), residual=True, prefetched=PREFETCHED)
    assert 0.9 * 3154 < least <= layer_cycles(layer, arch) == 3154


def test_weights_take_longer_than_small_blocks() -> None:
    """By hand: 13 rows are 5 + 5 + 3, 13 columns 4 + 4 + 4 + 1. For the one column of 5 rows come 128 x 384 x 9
    weights, too, but for two slices of 16 channels, and as many that PEs hold; there are 24 x 5 x 3 macro-instructions.
    """
    shape = LayerShape("mac", Sizes(1, 384, 384, 13, 13, 3, 3), Window((3, 3), pad=(1, 1, 1, 1)), 2, 13, 13)
    at, arch = at_point("ckrs|WhwI", (4, 1, 2, 1), (8, 1, 1), (4, 4, 1, 8, 1, 3)), load_arch("spatial-8x8")
    least, cycles = least_and_cycles(shape, at, MOVING, arch, k=128, h=5, w=4, k_outside=True, weights=6, slices=True)
    compute, column = 384 * 384 * 9 * 169 // 64 + 4 * 3 * 24 * 13 * 4 * 3, 128 * 5 * 384 * 9 // 64 + 4 * 24 * 5 * 3
    waits = 3 * 2 * (20 * 128 * 16 * 9 // 8 - column)
    assert compute + waits <= least <= cycles < 1.05 * least
    said = rules(shape, at, MOVING, arch, k=128, h=5, w=4, k_outside=True, weights=6, slices=True)
    assert said["small_blocks"] == waits


def test_the_image_of_all_pes_comes_through_one_port() -> None:
    """By hand: 28 rows are 12 + 12 + 4. While the last 4 are worked on, 5 x 16 + 4 cycles, come 128 channels of 12 x 4
    pixels for the next 12, 32 words in a cycle, and one to arrive: in front of 343 of 357 full blocks.
    """
    at = at_point("kcrs|WhwI", (2, 1, 8, 1), (1, 4, 4), (5, 1, 3, 16, 1, 1))
    least, cycles = least_and_cycles(pointwise(512, 128, 28), at, WITH_RESIDUAL, k=10, h=28, w=4, streamed=BESIDE)
    assert 205_072 + 343 * (192 + 1 - 84) <= least <= cycles < 1.1 * least
    said = rules(pointwise(512, 128, 28), at, WITH_RESIDUAL, k=10, h=28, w=4, streamed=BESIDE)
    assert said["waits"] == 343 * (192 + 1 - 84)


def test_weights_wait_for_the_next_block_of_the_image() -> None:
    """By hand: 9 blocks of 3 columns, all of 512 channels in turn. Behind the last results of the first, 32 x 28 x 3,
    comes the third, and then 32 x 128 weights, while the array works on 32 channels; and so on, seven times.
    """
    at = at_point("kcrs|WhwI", (1, 2, 8, 1), (8, 2, 1), (4, 3, 1, 16, 1, 1))
    least, cycles = least_and_cycles(pointwise(512, 128, 28), at, WITH_RESIDUAL, k=32, h=28, w=3, k_outside=False)
    comes, block = (32 * 84 + 128 * 84 + 32 * 128) // 8 + 64 + GAP, 7 * (3 * 64 + 4)
    assert 205_184 + 7 * (comes - block) <= least <= cycles < 1.05 * least
    said = rules(pointwise(512, 128, 28), at, WITH_RESIDUAL, k=32, h=28, w=3, k_outside=False)
    assert said["behind_image"] == 7 * (comes - block)


def test_what_has_one_buffer_waits_until_it_is_free() -> None:
    """By hand: 72 blocks of results leave one after the other, while PEs hold two macro-instructions of 34 cycles; four
    slices of 32,768 weights come one after the other, while PEs hold two of 452.
    """
    at = at_point("khw|crsWI", (1, 5, 1, 3), (8, 2, 1), (1, 10, 1, 1, 1, 3))
    budget, one = GlbBudget(1_500, frozenset({"output"}), tight=True), (("output", 1),)
    least, cycles = least_and_cycles(depthwise(64, 28), at, budget, k=8, h=10, w=10, streamed=one)
    assert 2304 + (50_176 - 512) // 8 + 71 * (64 - 2 * 34) == 2304 + 5924 <= least <= cycles
    assert rules(depthwise(64, 28), at, budget, k=8, h=10, w=10, streamed=one)["in_one_buffer"] == 5924
    at = at_point("khw|crsWI", (1, 1, 16, 1), (16, 1, 1), (4, 7, 1, 16, 1, 1))
    least, cycles = least_and_cycles(pointwise(256, 512, 7), at, GlbBudget(40_000, tight=True), weight_buffers=1)
    assert 25_312 + 3 * 4096 + 3 * (64 - 2 * 452) == 25_312 + 9768 <= least <= cycles
    tight = GlbBudget(40_000, tight=True)
    assert rules(pointwise(256, 512, 7), at, tight, weight_buffers=1)["in_one_buffer"] == 9768


def test_groups_of_shuffled_channels_share_the_image() -> None:
    """A streamed block of results has both groups of channels, for which its image comes once."""
    shape = replace(pointwise(64, 32, 8), shuffle=2)
    blocks = Blocks(shape, ARCH, MOVING, Tiles(FORMS[0], 16, 1, 8, 32))
    assert (blocks.moved_image == 32 * 8 * 8).all() and blocks.image.max() == 32 * 8 * 8


def test_slices_are_of_one_group() -> None:
    """By hand: weights of a group are for half of the work of a block of both, those of 8 of 16 channels for a quarter.
    Those that are of 16 of the 32 results of a group, too, are for an eighth.
    """
    shape = LayerShape("mac", Sizes(1, 64, 16, 8, 8, 3, 3), Window((3, 3), pad=(1,) * 4, group=2), 2, 8, 8, shuffle=2)
    blocks = Blocks(shape, ARCH, MOVING, Tiles(SLICED, 16, 1, 8, 8))
    assert [np.max(stage.part) for stage in blocks.stages() if stage.part is not None] == [1 / 2, 1 / 4, 1 / 8]


SLICED = next(form for form in FORMS if form.order == "ckrs|WhwI")


def test_sums_that_are_added_up_in_the_glb_are_committed_for_each_slice() -> None:
    """By hand: for 16 slices of 32 channels two words of all sums are read and written, and one of a result."""
    traffic = TransferBound(pointwise(256, 512, 28), ARCH, GlbBudget(1 << 20, MOVING.streamed))
    blocks = Blocks(traffic.shape, ARCH, traffic.budget, Tiles(SLICED, 64, 7, 4, 32))
    sides = zip((blocks.k, blocks.h, blocks.w), (256, 14, 28), strict=True)
    plan = (*(side.sizes.tolist().index(size) for side, size in sides), 0, 1)
    cycles = np.broadcast_to(traffic.of_plans(blocks, np.zeros(1)), blocks.shaped)[plan]
    assert cycles == 256 * 28 * 28 * 16 * (1 + 2 * 2) // 32


def test_slices_of_all_channels_are_no_slices() -> None:
    """Of tiles that are looked at together, some of which have them all."""
    channels: Any = np.array([[256], [512]])
    plan = tuple(np.array([number]) for number in (0, 1, 0, 0, 2))  # all channels and columns, some rows
    blocks = Blocks(pointwise(256, 512, 28), ARCH, MOVING, Tiles(SLICED, 64, 7, 4, channels), plan)
    assert blocks.legal.tolist() == [[True], [False]]


def cut(size: int, step: int) -> list[int]:
    return [step] * (size // step) + [size % step] * (size % step > 0)


@pytest.mark.parametrize("streamed", [{"ifmap", "output"}, {"ifmap", "output", "residual"}, {"output"}, {"ifmap"}])
def test_blocks_are_those_that_a_walk_over_them_meets(streamed: set[str]) -> None:
    """All sizes, both orders, one buffer or two: blocks, words, full blocks one after the other, the last iteration."""
    shape = LayerShape("mac", Sizes(2, 6, 4, 5, 4, 3, 2), Window((3, 2), (2, 1)), 2, 11, 5)
    budget = GlbBudget(300, frozenset(streamed), residual="residual" in streamed)
    blocks = Blocks(shape, ARCH, budget, Tiles(FORMS[0], 1, 1, 1, 4))
    values = {
        name: np.broadcast_to(getattr(blocks, name), blocks.shaped)
        for name in ("results", "full", "images", "moved_image", "image", "outputs", "last_results", "outer_trips")
        + ("moved", "share_of_last", "in_a_row", "legal", "least_words")
    }  # fmt: skip
    values["fetched"] = np.broadcast_to(blocks.fetched(blocks.moved_image), blocks.shaped)
    seen = 0
    for cell in zip(*np.nonzero(values["legal"]), strict=True):
        k, h, w = (int(side.sizes[at]) for side, at in zip((blocks.k, blocks.h, blocks.w), cell[:3], strict=True))
        sides = [cut(6, k), cut(5, h), cut(4, w)]
        order = [0, 1, 2] if cell[3] == 0 else [1, 2, 0]
        walk = [
            tuple(at[order.index(dim)] for dim in range(3))
            for at in product(*(list(enumerate(sides[dim])) for dim in order))
        ]
        sizes = [tuple(size for _, size in each) for each in walk]
        images = [each[1:] for i, each in enumerate(walk) if i == 0 or walk[i - 1][1:] != each[1:]]
        if len(sides[1]) * len(sides[2]) == 1 and cell[3] == 0:
            images = images * len(sides[0])  # a block for each of k, though it is the same

        def words(rows: int, cols: int) -> int:
            return 4 * (11 if rows == 5 else 2 * rows + 1) * (5 if cols == 4 else cols + 1)

        of_images = [words(rows[1], cols[1]) for rows, cols in images]
        is_full = [size == (k, h, w) for size in sizes]
        runs = [len(list(some)) for full, some in groupby(is_full) if full]
        # Blocks of k inside one block of the image are looked at as one iteration.
        outermost = next((dim for dim in order if len(sides[dim]) > 1 and (dim or cell[3] == 0)), 2)
        last = [size for each, size in zip(walk, sizes, strict=True) if each[outermost][0] == len(sides[outermost]) - 1]
        has_image = "ifmap" in streamed
        moved = 2 * sum(of_images) * has_image
        free = 300 - int(values["least_words"][cell])
        once = cell[3] == 0 and k * 4 * 6 <= free
        weights = 144 if free >= 144 else 144 * (1 if once else len(sides[1]) * len(sides[2]))
        results = 240 * len(streamed & {"output", "residual"})
        assert {name: value[cell] for name, value in values.items() if name not in ("legal", "least_words")} == {
            "results": 2 * len(walk),
            "full": 2 * sum(is_full),
            "images": 2 * len(images),
            "moved_image": moved,
            "image": words(h, w) * has_image,
            "outputs": k * h * w,
            "last_results": prod(sizes[-1]),
            "outer_trips": len(sides[outermost]),
            "moved": moved + results,
            "share_of_last": sum(map(prod, last)) / 120,
            "in_a_row": min(runs),
            "fetched": moved + weights + blocks.params + 240 * ("residual" in streamed),
        }, (k, h, w, cell)
        seen += 1
    assert seen > 20


def test_reloads_of_weights_wait_by_hand() -> None:
    """4 words of weights for 256 PEs take 32 cycles, a pixel of 16 channels one, and one more to arrive. Meanwhile two
    macro-instructions are done, of 4 + 4 cycles each: in front of three of four loads of weights.
    """
    at = at_point("kcrs|WhwI", (1, 1, 16, 1), (16, 1, 1), (4, 1, 1, 1, 1, 1))
    bound = Bound(Durations(pointwise(256, 16, 8), ARCH, residual=False), at)
    assert bound.waits == 3 * (32 + 1 + 1 + 1 - 2 * (4 + 4))
    rows = at_point("kcrs|WhwI", (1, 1, 16, 1), (16, 1, 1), (4, 8, 1, 1, 1, 1))  # two of 4 x 8 + 4 cycles
    assert Bound(Durations(pointwise(256, 16, 8), ARCH, residual=False), rows).waits == 0
    # Two pixels: PEs hold both, and none is queued in front of the next weights.
    two = LayerShape("mac", Sizes(1, 256, 16, 1, 2, 1, 1), Window((1, 1)), 2, 1, 2)
    assert Bound(Durations(two, ARCH, residual=False), at).waits == 0
    # PEs hold four pixels of rows of two: two of the last row, two of the one before.
    small = LayerShape("mac", Sizes(1, 256, 16, 4, 2, 1, 1), Window((1, 1)), 2, 4, 2)
    arch = replace(ARCH, pe=replace(ARCH.pe, ifmap_halves=4))
    assert Bound(Durations(small, arch, residual=False), at).waits == 3 * (32 + 1 + 1 + 1 - 4 * (4 + 4))


def test_partial_sums_are_committed_with_each_macro_instruction() -> None:
    """32 x 2 tiles of channels; blocks of 7 rows are 3 + 3 + 1, 14 columns are 7 x 2. Blocks of 3 rows leave 2: then
    commits count as if each sum were committed once.
    """
    at, shape = at_point("ckrs|WhwI", (1, 1, 16, 1), (8, 1, 2), (4, 1, 3, 16, 1, 1)), pointwise(1024, 512, 14)
    for rows, tiles, again in ((7, 2 * 3, 2), (3, 5, 1)):
        said = rules(shape, at, GlbBudget(1 << 20, MOVING.streamed), k=128, h=rows, w=14, k_outside=False)
        assert said["macros"] == 32 * 2 * tiles * 7
        assert said["commits"] == 32 * tiles * 7 * again


def test_buffers_become_one_in_their_order() -> None:
    """In a tight budget: two of all if they fit, then one of the residual, of output, of weights (SPACE-13)."""
    shape, seen = LayerShape("mac", Sizes(1, 8, 4, 4, 4, 3, 3), Window((3, 3)), 2, 6, 6), Counter[tuple[float, int]]()
    for names, words in product((("output", "residual"), ("output", "ifmap"), ()), range(150, 700, 37)):
        budget = GlbBudget(words, frozenset(names), residual="residual" in names, tight=True)
        blocks = Blocks(shape, ARCH, budget, Tiles(FORMS[0], 2, 1, 1, 4))
        params = shape.params * ARCH.words_per_param * 8
        for stage in blocks.stages():
            made = blocks.buffers(stage)
            each = (stage.buffers, stage.buffer, made.results, made.weights, made.params_in_slices, made.fit)
            sizes = (blocks.most_results, blocks.results_words, blocks.images_words, blocks.sums, blocks.legal)
            rows = (np.broadcast_to(value, blocks.shaped).ravel() for value in (*each, *sizes, stage.k))
            for two, slice_, results, weights, in_slices, fit, most, one, image, sums, is_legal, k in zip(
                *rows, strict=True
            ):
                room = words - image - sums
                tries = [(most, two), *[(1.5, two)] * int(most > 1 and "residual" in names), (1, two), (1, 1)]

                def needed(count: float, of_weights: int, with_params: int, each: int, one: float = one) -> float:
                    return with_params + count * one + of_weights * each

                wanted, with_params, each_slice = False, params, slice_
                if stage.with_params:
                    larger = slice_ + params // 8 * k
                    wanted = needed(1, 1, params, slice_) > room or (
                        needed(0, two, params, slice_) > room >= needed(0, two, 0, larger)
                    )
                    with_params, each_slice = (0, larger) if wanted else (params, slice_)
                    assert in_slices == wanted
                count, of_weights = next((t for t in tries if needed(*t, with_params, each_slice) <= room), tries[-1])
                assert (results, weights) == (count, of_weights), (names, words)
                fits = needed(count, of_weights, with_params, each_slice) <= room
                is_slice = stage.part is None or slice_ < shape.weight_words
                assert fit == (is_legal and is_slice and fits), (names, words)
                seen[(float(count), int(of_weights))] += bool(fit)
    assert len(seen) >= 5 and seen[(1.5, 2)] and seen[(1.0, 1)] and seen[(2.0, 2)], seen


def test_tiles_that_lanes_do_not_divide() -> None:
    """Of 7 channels 4 take two steps on two lanes with sums of their own, and 3 take three (LEGAL-6)."""
    shape = LayerShape("mac", Sizes(1, 7, 1, 4, 4, 3, 3), Window((3, 3)), 2, 6, 6)
    arch = replace(ARCH, pe=replace(ARCH.pe, lanes=2, lane_sums=True))
    at = at_point("khw|crsWI", (1, 1, 1, 1), (1, 1, 1), (4, 4, 1, 1, 3, 3))
    at = replace(at, own_lanes=2)
    plan = {"k": 7, "h": 4, "w": 4}
    of_row = (2 + 3) * 4 * 9
    overhead = 2 * (arch.pe.start_cycles + arch.pe.finish_cycles)
    assert rules(shape, at, MOVING, arch, **plan)["compute"] == 4 * (of_row + overhead)
    least, cycles = least_and_cycles(shape, at, MOVING, arch, **plan)
    assert 4 * (of_row + overhead) < least <= cycles


def test_the_first_block_of_a_row_of_two_waits() -> None:
    """By hand, with four words a cycle from DRAM: 13 columns are 7 + 6. The first block of a row waits for results,
    residuals and its image, 3,584 words each, two latencies and a gap. The array works on the block before for
    128 x 128 x 24 / 256 cycles, and 4 for each of 4 x 2 macro-instructions. Of each of four blocks of channels all full
    rows count but the first: 13 rows are 4 + 4 + 4 + 1.
    """
    arch = replace(ARCH, dram=replace(ARCH.dram, words_per_cycle=4))
    at = at_point("kcrs|WhwI", (1, 2, 8, 1), (8, 2, 1), (4, 3, 1, 16, 1, 1))
    budget = replace(WITH_RESIDUAL, words=1 << 18)
    said = rules(pointwise(512, 128, 13), at, budget, arch, k=128, h=4, w=7, k_outside=True, weights=0, streamed=BESIDE)
    assert said["behind_weights"] == 4 * 2 * (3 * 3584 // 4 + 2 * 64 + GAP - 1536 - 4 * 8)


@pytest.mark.parametrize(("rows_of_c", "waits"), [(4, 242 * 2780 + 2 * 18_140), (6, 0)])
def test_third_slices_are_counted_where_two_are_no_more_than_the_block(rows_of_c: int, waits: int) -> None:
    """By hand, with a word a cycle from DRAM: halves of 768 words come behind 3 x 1,536 words, as in
    `test_slices_wait_for_residuals`. Of slices of 3/4 of the channels there is no third one.
    """
    arch = replace(ARCH, dram=replace(ARCH.dram, words_per_cycle=1))
    at = at_point("ckrs|WhwI", (2, 1, rows_of_c, 1), (4, 1, 4), (4, 1, 3, 16, 1, 1))
    said = rules(pointwise(512, 128, 28), at, WITH_RESIDUAL, arch, k=128, h=3, w=4, k_outside=True, slices=True)
    assert said["third_slices"] == waits


def test_weights_that_come_for_each_block_of_the_image_leave_one_macro_instruction() -> None:
    """By hand: blocks of 80 channels are two of 40, which PEs hold. A load of 80 words for 64 PEs takes 160 cycles and
    one to arrive; the last macro-instruction takes 16 x 5 + 4. There are 4 x 7 x 28 tiles of the image, in 4 x 7 x 7
    blocks, all but the first behind a full one.
    """
    at = at_point("hwcrs|IkW", (1, 2, 8, 1), (8, 2, 1), (5, 1, 1, 16, 1, 1))
    said = rules(pointwise(320, 128, 28), at, MOVING, k=80, h=4, w=4, k_outside=True)
    assert said["waits"] == (4 * 7 * 28 - 1) * (160 + 1 - 80 - 4)


@pytest.mark.parametrize(
    ("order", "rows", "cols", "box", "wanted"),
    [
        ("ckrs|WhwI", (1, 1, 16, 1), (8, 1, 2), (4, 1, 3, 16, 1, 1), {"k": 128, "h": 3, "w": 14, "k_outside": False}),
        ("ckrs|WhwI", (8, 1, 2, 1), (4, 1, 4), (4, 1, 3, 16, 1, 1), {"k": 128, "h": 3, "w": 4, "slices": True}),
        ("kcrs|WhwI", (1, 2, 8, 1), (8, 2, 1), (4, 3, 1, 16, 1, 1), {"k": 128, "h": 4, "w": 3, "k_outside": True}),
        ("kcrs|WhwI", (1, 2, 8, 1), (8, 2, 1), (4, 3, 1, 16, 1, 1), {"k": 32, "h": 14, "w": 3, "k_outside": False}),
    ],
)
def test_what_is_said_of_two_images(
    order: str, rows: tuple[int, ...], cols: tuple[int, ...], box: tuple[int, ...], wanted: dict[str, object]
) -> None:
    """Of both together it is twice as much; of the first results, and of the last iteration, it is the same."""
    one, at = pointwise(512, 128, 14), at_point(order, rows, cols, box)
    two = replace(one, sizes=replace(one.sizes, n=2))
    for streamed in ({"ifmap", "output"}, {"ifmap", "output", "residual"}):
        budget = GlbBudget(1 << 17, frozenset(streamed), residual="residual" in streamed)
        plans = candidates(Bound(Durations(one, ARCH, budget.residual), at), budget, 1 << 60)
        plan = next(plan for _, plan in plans if wanted.items() <= plan._asdict().items())._asdict()
        of_one, of_two = (rules(shape, at, budget, **plan) for shape in (one, two))
        for name in ("compute", "macros", "commits", "committing", "loading", "small_blocks"):
            assert of_two[name] == 2 * of_one[name], name
        assert of_two["first_results"] == of_one["first_results"] > 0
        assert of_two["last_iteration"] == of_one["last_iteration"]


@pytest.mark.parametrize(("words", "image"), [(3, 4 * 64), (4, 2 * 64), (5, 64)])
def test_the_least_transfers_of_any_tiles_by_hand(words: int, image: int) -> None:
    """A block of one pixel has a result or two, and two buffers of one channel of the image, which comes again for each
    block of channels; with five words it has all four channels in one buffer, and all results of its pixel in turn.
    Each block has a latency: 256 or 128 of the image, or 64 of results.
    """
    shape, budget = replace(pointwise(4, 4, 4), params=0), GlbBudget(words, MOVING.streamed)
    at_once = replace(ARCH, dram=replace(ARCH.dram, latency_cycles=0))
    assert TransferBound(shape, at_once, budget).floor == (image + 64) // 8
    assert TransferBound(shape, ARCH, budget).floor == (image + image * 8 * 64) // 8 // 2


def test_weights_come_in_slices_of_channels_that_a_loop_has_inside() -> None:
    """The loop over c inside those in space is a place for their stage only if PEs and boxes do not take all of c."""
    for taken, places in ((8, 4), (16, 3)):
        blocks = Blocks(pointwise(64, 16, 8), ARCH, MOVING, Tiles(FORMS[0], 16, 1, 8, taken))
        assert FORMS[0].order == "khw|crsWI" and len(list(blocks.stages())) == places


def test_estimates_of_channelwise_layers_have_blocks_of_four_channels() -> None:
    """By hand: 4 words of parameters and 9 weights for each of 64 channels, and two buffers of four images."""
    words = 64 * (4 + 9) + 2 * 4 * 64
    once, at_once = 64 * 64 // 8, replace(ARCH, dram=replace(ARCH.dram, latency_cycles=0))
    assert cycles_about(depthwise(64, 8), at_once, GlbBudget(words, frozenset({"ifmap"}))) == once
    assert cycles_about(depthwise(64, 8), at_once, GlbBudget(words - 1, frozenset({"ifmap"}))) > once
    # With a latency for each of 16 blocks; less room is never estimated to take fewer cycles.
    all_ = [cycles_about(depthwise(64, 8), ARCH, GlbBudget(64 * (13 + 2 * n), frozenset({"ifmap"}))) for n in (3, 4, 8)]
    assert all_ == sorted(all_, reverse=True) and all_[1] == (once + 16 * 64) // 2
