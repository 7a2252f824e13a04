"""Rules of the cost model by hand, each at its limit: what is legal, what register files hold, what engines take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import gcd

import pytest

from cnncc.arch.model import Arch, load_arch
from cnncc.mapping.groups import GroupLayer
from cnncc.mapping.mapping import Loop, Mapping, Sizes, Stage
from cnncc.model.group_bounds import least_group_words
from cnncc.model.group_schedule import group_plan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.layer_shape import LayerShape, lines_touched, slices
from cnncc.model.legal import fits_register_files, is_legal
from cnncc.model.occupancy import Engines, SpatialLoop, distinct, transfer
from cnncc.model.register_files import (
    file_words,
    held_extents,
    ifmap_layout,
    macro_words,
    most_channels,
    passes_columns,
    positions,
    shared_columns,
)
from cnncc.window import Window

PRESET = load_arch("spatial-8x8")
CONV = LayerShape("mac", Sizes(2, 12, 6, 9, 8, 3, 3), Window((3, 3)), 2, 11, 10)
KEPT = tuple(Loop(dim, keep=True) for dim in "wscrk")


def arch_with(**words: int) -> Arch:
    """Register files, and links to the neighbours."""
    return replace(PRESET, pe=replace(PRESET.pe, **words), links=replace(PRESET.links, n2n=True))


# -- legal -------------------------------------------------------------------------------------------------------------


def staged(*stages: tuple[str, int, int]) -> tuple[Stage, ...]:
    """Stages in the GLB: operand, depth, buffers."""
    return tuple(Stage(operand, "glb", depth, buffers) for operand, depth, buffers in stages)


def legal(
    loops: Sequence[Loop], *stages: tuple[str, int, int], residual: bool = False, shuffle: int = 1, images: int = 2
) -> bool:
    shape = replace(CONV, shuffle=shuffle, sizes=replace(CONV.sizes, n=images))
    return is_legal(shape, Mapping((*loops, *KEPT), staged(*stages)), residual)


def test_two_buffers_alternate() -> None:
    """The body of the loop over w has as many blocks as there are rows in an iteration of the loop around it."""
    for rows in ((3, 3, 3), (5, 4), (8, 1), (7, 2), (6, 3), (4, 4, 1), (2, 2, 2, 2, 1)):
        loops = (Loop("h", rows[0]), Loop("w", 2), Loop("h"))
        assert legal(loops, ("output", 3, 2)) == (len({size % 2 for size in rows}) == 1), rows
        assert legal(loops, ("output", 3, 1))
        assert legal(loops[:2], ("output", 2, 2))  # a block in each iteration


def test_iterations_in_space_are_blocks_of_one_iteration() -> None:
    """Two of 8 columns on each PE: PEs are no iterations, so that nothing alternates with them."""
    assert legal((Loop("h", 5), Loop("w", 2, "cols"), Loop("h")), ("ifmap", 3, 2))
    assert not legal((Loop("h", 5), Loop("w", 2), Loop("h")), ("ifmap", 3, 2))


def test_a_residual_or_an_output_alone_has_one_start() -> None:
    rows = (Loop("n"), Loop("h", 3))
    both, output = (("residual", 2, 2), ("output", 2, 2)), (("output", 2, 2),)
    assert legal(rows, *both, residual=True)
    assert legal(rows, *output)
    assert not legal(rows, *output, residual=True)
    assert not legal(rows, ("residual", 2, 2), residual=True)
    # Of one image: a loop over rows does not count, one over channels does.
    channels = (Loop("k", 4), *rows[1:])
    assert legal(rows[1:], ("output", 1, 2), residual=True, images=1)
    assert not legal(channels, ("output", 2, 2), residual=True, images=1)
    assert legal(channels, ("output", 2, 1), residual=True, images=1)
    # Nor does another operand come into two buffers inside such a loop; outside of it, it may.
    assert not legal(channels, ("ifmap", 1, 2), ("output", 2, 1), residual=True)
    assert legal((Loop("h", 3), Loop("k", 4)), ("ifmap", 1, 2), ("output", 2, 1), residual=True, images=1)
    assert not legal(rows[1:], ("output", 1, 1), residual=True)  # a block of two images


def test_blocks_of_shuffled_channels_have_all_groups() -> None:
    assert not legal((Loop("k", 6), Loop("h", 3)), ("output", 1, 1), shuffle=2)
    assert legal((Loop("h", 3), Loop("k", 6)), ("output", 1, 1), shuffle=2)
    assert legal((Loop("k", 6), Loop("h", 3)), ("output", 1, 1), shuffle=1)
    assert legal((Loop("k", 6), Loop("h", 3)), ("ifmap", 1, 1), shuffle=2)


# -- register files ----------------------------------------------------------------------------------------------------


def test_positions_are_those_that_windows_touch() -> None:
    for outputs, taps, stride, dilation in product(range(1, 5), repeat=4):
        touched = {o * stride + t * dilation for o in range(outputs) for t in range(taps)}
        count, step = positions(outputs, taps, stride, dilation)
        assert count == max(touched) // step + 1, (outputs, taps, stride, dilation)
        assert step == gcd(*touched) or len(touched) == 1


ONE_IMAGE = replace(CONV, sizes=replace(CONV.sizes, n=1))


def test_each_position_of_the_image_has_one_slot() -> None:
    """Outputs and taps that touch the same row and column find the same slot; no two positions share one."""
    for stride, dilation, own in product(product((1, 2), (1, 3)), product((1, 2), (1, 3)), (False, True)):
        window = Window((3, 3), stride, dilation=dilation, group=12 if own else 1)
        shape = replace(CONV, window=window)
        for h, w, r, s in product((1, 3), (1, 2), (1, 3), (1, 2)):
            held = {"n": 2, "k": 3, "c": 1 if own else 2, "h": h, "w": w, "r": r, "s": s}
            layout = ifmap_layout(shape, held, 1000, "wscrk")
            slots = dict[tuple[int, ...], set[int]]()
            for n, k, c, y, x, i, j in product(*(range(held[dim]) for dim in "nkchwrs")):
                place = (n, k * own + c, y * stride[0] + i * dilation[0], x * stride[1] + j * dilation[1])
                each = zip("nkchwrs", (n, k, c, y, x, i, j), strict=True)
                slots.setdefault(place, set()).add(sum(layout.step(dim) * index for dim, index in each))
            used = sorted(slot for some in slots.values() for slot in some)
            assert len(used) == len(set(used)) == len(slots), (stride, dilation, held)
            assert used[0] == 0 and used[-1] == layout.words - 1, (stride, dilation, held)


BOX = (Loop("k", 4), Loop("h"), Loop("w", 2, "cols"), Loop("k"), Loop("c", 3), Loop("w"), *KEPT)


def words_of(arch: Arch, *depths: tuple[str, int]) -> dict[str, int]:
    return file_words(ONE_IMAGE, arch, BOX, tuple(Stage(operand, "rf", depth, 2) for operand, depth in depths))


def test_register_files_hold_what_runs_inside_their_stage() -> None:
    """A box of 3 channels and 3 x 3 taps for one output. Outside of it run k 4, h, w 2 on columns, k, c 3, w."""
    arch = arch_with()
    alone = {"psum_words": 1, "weight_words": 27, "ifmap_words": 27}
    assert words_of(arch, ("weight", 6), ("ifmap", 6)) == alone
    assert words_of(arch, ("weight", 4), ("ifmap", 6)) == {**alone, "weight_words": 2 * 27}  # all six channels
    assert words_of(arch, ("weight", 3), ("ifmap", 6)) == {**alone, "weight_words": 4 * 2 * 27}
    assert words_of(arch, ("weight", 6), ("ifmap", 5)) == {**alone, "ifmap_words": 3 * 3 * 4}  # both columns
    assert words_of(arch, ("weight", 6), ("ifmap", 3)) == {**alone, "ifmap_words": 6 * 3 * 4}
    assert words_of(arch, ("weight", 6), ("ifmap", 1)) == {**alone, "ifmap_words": 6 * 11 * 4}
    assert words_of(arch, ("weight", 6), ("ifmap", 0)) == {**alone, "ifmap_words": 6 * 11 * 4}
    assert held_extents(CONV, BOX[:6], 1) == {"n": 2, "k": 4, "c": 6, "h": 9, "w": 2, "r": 3, "s": 3}
    pool = replace(CONV, kind="max", window=Window((3, 3), group=12), sizes=replace(CONV.sizes, c=1))
    loops, stages = (Loop("k", 2), *KEPT), (Stage("ifmap", "rf", 1, 2),)
    held = {"psum_words": 2 * 2 * 9 * 8, "ifmap_words": 10 * 2 * 2 * 11}
    assert file_words(pool, arch, loops, stages) == held


PONG = (Loop("k"), Loop("h"), Loop("w", 1, "cols"), *KEPT)  # of each PE: 6 channels of 3 x 3, a column at a time
RF = (Stage("weight", "rf", 1, 2), Stage("ifmap", "rf", 3, 2))


def test_ping_pong_and_the_virtual_neighbour_have_their_own_limits() -> None:
    """A window of 3 columns of 18 words: neighbours pass two of them, one is loaded."""
    arch = arch_with(pong_words=18)
    each = {"psum_words": 1, "weight_words": 54, "ifmap_words": 18, "pong_words": 18, "virtual_words": 36}
    assert file_words(ONE_IMAGE, arch, PONG, RF) == each
    mapping = Mapping(PONG, RF)
    fitting = arch_with(**each)
    assert fits_register_files(ONE_IMAGE, fitting, mapping)
    for name, words in each.items():
        assert not fits_register_files(ONE_IMAGE, arch_with(**{**each, name: words - 1}), mapping), name
    assert fits_register_files(ONE_IMAGE, arch_with(**{**each, "pong_words": 0, "psum_words": 0}), mapping)  # no pong


def test_columns_are_passed_where_neighbours_have_their_own_half() -> None:
    arch, loops = arch_with(pong_words=9), list(PONG)
    assert passes_columns(CONV, arch, loops, RF)
    assert not passes_columns(CONV, replace(arch, links=replace(arch.links, n2n=False)), loops, RF)
    assert not passes_columns(CONV, arch, loops, (Stage("ifmap", "rf", 2, 2),))
    assert passes_columns(CONV, arch, loops, (Stage("ifmap", "glb", 2, 2), Stage("weight", "rf", 0, 2)))
    assert passes_columns(CONV, arch, [Loop("k", 1, "cols"), *loops], (Stage("ifmap", "rf", 4, 2),))
    behind = [*loops[:2], Loop("w", 1, "cols"), Loop("k", 1, "cols"), *KEPT]
    assert not passes_columns(CONV, arch, behind, (Stage("ifmap", "rf", 4, 2),))
    wide = [*loops[:2], Loop("w", 2, "cols"), *KEPT]
    assert not passes_columns(CONV, arch, wide, RF)  # turns are of single pixels
    assert passes_columns(CONV, arch_with(), wide, RF)
    lanes = [*loops[:3], *KEPT[:3], Loop("c", 1, "lanes", keep=True)]
    assert not passes_columns(CONV, arch, lanes, RF)
    assert not passes_columns(CONV, arch, [*loops[:3], *KEPT[::-1]], RF)  # another order


def test_the_last_columns_of_a_window_are_shared() -> None:
    arch, wide = arch_with(), replace(CONV, window=Window((3, 3), (1, 2)))
    assert [shared_columns(CONV, arch, s, z) for s, z in ((3, 1), (3, 2), (2, 1), (1, 1))] == [2, 2, 1, 0]
    assert [shared_columns(wide, arch, s, z) for s, z in ((3, 1), (2, 1), (1, 1))] == [1, 0, 0]
    assert shared_columns(replace(CONV, window=Window((3, 3), dilation=(1, 2))), arch, 3, 1) == 0
    assert shared_columns(replace(CONV, window=Window((3, 3), dilation=(2, 1))), arch, 3, 1) == 2
    pong = arch_with(pong_words=1)
    assert [shared_columns(CONV, pong, 3, z) for z in (1, 2)] == [2, 0]


def test_as_many_channels_as_every_register_file_holds() -> None:
    """Two outputs of three in a row, 3 x 3 taps: a channel has 2 x 9 weights, and 3 rows of 5 columns."""
    extent = {"n": 1, "k": 2, "c": 1, "h": 1, "w": 3, "r": 3, "s": 3}
    assert macro_words(CONV, arch_with(), extent) == {"psum_words": 6, "weight_words": 18, "ifmap_words": 15}
    # Three pixels of two channels: with sums of their own on four lanes, each pixel but the last one has four banks.
    assert [macro_words(CONV, arch_with(lanes=4), extent, *own)["psum_words"] for own in ((), (4,))] == [6, 10]
    limits = {"psum_words": 6, "weight_words": 4 * 18, "ifmap_words": 4 * 15}
    assert most_channels(CONV, arch_with(**limits), {**extent, "c": 5}) == 4
    assert most_channels(CONV, arch_with(**{**limits, "weight_words": 71}), extent) == 3
    assert most_channels(CONV, arch_with(**{**limits, "ifmap_words": 59}), extent) == 3
    assert most_channels(CONV, arch_with(**{**limits, "psum_words": 5}), extent) == 0
    depthwise = replace(CONV, sizes=replace(CONV.sizes, c=1), window=Window((3, 3), group=12))
    assert most_channels(depthwise, arch_with(weight_words=999, ifmap_words=999, psum_words=99), extent) == 1


# -- engines -----------------------------------------------------------------------------------------------------------


def test_distinct_positions() -> None:
    moves = [[("y", 3, 1), ("y", 2, 1), ("x", 4, 2)], [("y", 3, 2), ("y", 2, 3)], [("y", 2, 4), ("y", 4, 1)], []]
    for each in [*moves, [("y", 3, 0), ("x", 1, 5), ("x", 2, 5)], [("y", 3, 1), ("y", 3, 1), ("y", 2, 6)]]:
        axes = sorted({axis for axis, _, _ in each})
        places = {
            tuple(sum(i * step for i, (a, _, step) in zip(at, each, strict=True) if a == axis) for axis in axes)
            for at in product(*(range(count) for _, count, _ in each))
        }
        assert distinct(each) == len(places), each


BUS = replace(
    PRESET,
    glb=replace(PRESET.glb, words_per_cycle=4),
    bus=replace(PRESET.bus, burst_words=2, latency_cycles=3),
    dram=replace(PRESET.dram, words_per_cycle=8, latency_cycles=50),
    commit=replace(PRESET.commit, units_per_column=1, latency_cycles=6),
    operand_bits=16,
    psum_bits=32,
)


@pytest.mark.parametrize(
    ("words", "sides", "work"),
    [
        # 9 words for each of 4 x 2 PEs with other channels, 4 words a cycle
        (9, (SpatialLoop("k", 1, 4, "rows"), SpatialLoop("k", 4, 2, "cols")), ("glb_port", 18)),
        # others have the same: 5 bursts of 2 words for each of 2 columns
        (9, (SpatialLoop("h", 1, 4, "rows"), SpatialLoop("c", 1, 2, "cols")), ("row_bus", 10)),
        (9, (SpatialLoop("h", 1, 4, "rows"), SpatialLoop("w", 1, 2, "cols")), ("write_port", 9)),
        (8, (SpatialLoop("r", 1, 2, "rows"), SpatialLoop("s", 1, 2, "rows")), ("glb_port", 8)),
        (1, (), ("glb_port", 1)),
    ],
)
def test_loads_of_weights(words: int, sides: tuple[SpatialLoop, ...], work: tuple[str, int]) -> None:
    task = Engines(CONV, BUS).weights(words, sides, (), ())
    assert (task.busy, task.latency, task.work) == (work[1], 3, (work,))


def test_a_wide_write_port_takes_several_words() -> None:
    """9 words for 4 x 2 PEs that share them: 9 cycles by one word, 5 by the buses of 2 words if the port takes 3."""
    wide = replace(BUS, pe=replace(BUS.pe, words_per_cycle=3))
    sides = (SpatialLoop("h", 1, 4, "rows"), SpatialLoop("w", 1, 2, "cols"))
    assert Engines(CONV, wide).weights(9, sides, (), ()).work == (("row_bus", 5),)
    wide = replace(wide, bus=replace(BUS.bus, burst_words=9), glb=replace(BUS.glb, words_per_cycle=9))
    assert Engines(CONV, wide).weights(10, sides, (), ()).work == (("write_port", 4),)


@pytest.mark.parametrize(
    ("words", "sides", "work"),
    [
        # 3 rows and 2 taps touch 4 rows; 2 columns beside each other
        (
            10,
            (SpatialLoop("h", 1, 3, "rows"), SpatialLoop("r", 1, 2, "rows"), SpatialLoop("w", 1, 2, "cols")),
            ("glb_port", 20),
        ),
        (10, (SpatialLoop("k", 1, 8, "rows"), SpatialLoop("k", 8, 2, "cols")), ("write_port", 10)),  # the same channels
        (10, (SpatialLoop("c", 1, 2, "rows"), SpatialLoop("w", 2, 4, "cols")), ("glb_port", 20)),
        (2, (SpatialLoop("k", 6, 2, "rows"), SpatialLoop("w", 1, 3, "cols")), ("row_bus", 3)),
    ],
)
def test_loads_of_the_image(words: int, sides: tuple[SpatialLoop, ...], work: tuple[str, int]) -> None:
    task = Engines(CONV, BUS).ifmap(words, sides, (), ())
    assert (task.busy, task.latency, task.work) == (work[1], 3, (work,))


def test_loads_of_an_image_with_strides_and_dilations() -> None:
    """3 outputs 2 rows apart with 2 taps are 6 rows; 2 columns with 2 taps 2 apart are 4."""
    strided = replace(CONV, window=Window((3, 3), (2, 1), dilation=(1, 2)))
    rows, cols = (
        (SpatialLoop("h", 1, 3, "rows"), SpatialLoop("r", 1, 2, "rows")),
        (SpatialLoop("w", 1, 2, "cols"), SpatialLoop("s", 1, 2, "cols")),
    )
    assert Engines(strided, BUS).ifmap(4, (*rows, *cols), (), ()).work == (("glb_port", 24),)
    assert Engines(strided, BUS).ifmap(4, cols[:1], (), ()).work == (("row_bus", 4),)  # 2 x 2 bursts, 4 words


def test_groups_read_channels_of_their_own() -> None:
    grouped = replace(CONV, window=Window((3, 3), group=2))
    task = Engines(grouped, BUS).ifmap(6, (SpatialLoop("k", 6, 2, "rows"),), (), ())
    assert task.work == (("write_port", 6),)  # 2 x 6 words, 4 in a cycle
    task = Engines(grouped, BUS).ifmap(6, (SpatialLoop("k", 6, 2, "rows"), SpatialLoop("w", 1, 3, "rows")), (), ())
    assert task.work == (("glb_port", 9),)
    task = Engines(grouped, BUS).ifmap(6, (SpatialLoop("k", 3, 2, "rows"), SpatialLoop("w", 1, 3, "rows")), (), ())
    assert task.work == (("write_port", 6),)  # of one group


def test_commits_and_transfers() -> None:
    """A psum is two words; a channel has as many parameters as the layer has, of two words."""
    engines, per_channel = Engines(CONV, BUS), CONV.params * BUS.words_per_param
    plain = engines.commit(24, 8, 0, 0, False, False, (), ())
    assert (plain.busy, plain.latency, plain.work) == (6, 6, (("glb_port", 6), ("column_bus", 0)))
    assert engines.commit(24, 4, 0, 3, False, False, (), ()).busy == 6 + 3
    assert engines.commit(24, 4, 0, 3, False, False, (), ()).work == (("output_units", 6), ("column_bus", 3))
    assert engines.commit(24, 8, 0, 0, False, True, (), ()).busy == 2 * 24 // 4
    assert engines.commit(24, 8, 0, 0, True, False, (), ()).busy == (1 + 2 * 2) * 24 // 4
    assert engines.commit(24, 8, 4, 0, False, False, (), ()).busy == 6 + per_channel
    assert engines.stream(24, False, (), ()).busy == (2 * 24 + per_channel) // 4
    assert engines.stream(24, True, (), ()).busy == (3 * 24 + per_channel) // 4
    wide = replace(BUS, glb=replace(BUS.glb, words_per_cycle=64))
    assert Engines(CONV, wide).stream(24, False, (), ()).work[0] == ("output_units", 3)  # of all 8 columns
    assert engines.macro(7, (), ()).busy == BUS.pe.start_cycles + 7 + BUS.pe.finish_cycles
    moved = transfer("results", 17, BUS)
    assert (moved.busy, moved.latency, moved.work) == (3, 50, (("dram_bandwidth_results", 3),))
    assert transfer("weights", 16, BUS).busy == 2


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "touched"),
    [
        ((4, 3, 1, 1, 1, 4), 4),  # padding on both sides is no line
        ((4, 3, 2, 1, 0, 10), 9),  # windows overlap in a line; the last one is read by none
        ((4, 2, 3, 1, 1, 9), 6),  # lines 0, 2, 3, 5, 6, 8
        ((3, 2, 1, 3, 0, 6), 6),  # taps 3 apart: 0 to 2, and 3 to 5
        ((2, 2, 1, 3, 0, 5), 4),  # lines 0, 1, 3, 4
    ],
)
def test_lines_that_windows_touch(lines: tuple[int, int, int, int, int, int], touched: int) -> None:
    assert lines_touched(*lines) == touched


def test_a_group_brings_each_word_that_windows_touch_once() -> None:
    """Weights, and of each of two channels rows 0, 1, 3 and 4 of 7, columns 0, 2, 3, 4, 5 and 7 of 9."""
    window = Window((2, 2), (3, 2), dilation=(1, 3))
    shape = LayerShape("mac", Sizes(1, 3, 2, 2, 3, 2, 2), window, 2, 7, 9)
    mapping = Mapping((Loop("h", 1),), (Stage("ifmap", "glb", 1), Stage("weight", "glb", 1)))
    plan = group_plan("a", [LayerPlan("a", shape, mapping)], [GroupLayer("a", "mac", shape.sizes, mapping, 0)])
    assert least_group_words(plan, PRESET) == 3 * 2 * 2 * 2 + 2 * 4 * 6


# -- slices inside blocks ----------------------------------------------------------------------------------------------


def test_slices_inside_blocks_of_two_outputs() -> None:
    """Stages with two buffers, one loop in time inside the block; loops in space do not count (GLB-3)."""
    loops = (Loop("h", 3), Loop("c", 3), Loop("k", 4, "cols"), Loop("w", 4), *KEPT)

    def sliced(output: int, *stages: tuple[str, int, int]) -> tuple[list[int], int]:
        return slices(Mapping(loops, staged(*sorted([("output", 1, output), *stages], key=lambda stage: stage[1]))))

    assert sliced(2, ("weight", 2, 2)) == ([2], 1)
    assert sliced(2, ("weight", 3, 2), ("ifmap", 2, 2)) == ([2, 3], 1)
    for others in ([("weight", 2, 1)], [("weight", 4, 2)], [("weight", 1, 2)], [("weight", 0, 2)], []):
        assert sliced(2, *others) == ([], -1), others
    assert sliced(1, ("weight", 2, 2)) == ([], -1)
