"""The search for output-stationary mappings against a walk over the loops, and against all tiles there are."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given, settings
from nest_cases import SCHEDULE, Case, arches, cases, context, layer_of
from output_stationary import array_cycles, best_tile, bodies, loaded_words, os_mapping, whole_plan

from cnncc.arch.model import Arch, load_arch
from cnncc.dialects.cnn import Window
from cnncc.dialects.nest import Loop, Mapping, MappingAttr, Sizes, Stage, mapping_problem
from cnncc.eval.nest import LayerRun
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling.numbered_nest import Tile, kernel_columns, mapping_of
from cnncc.passes.cnn_to_nest import CnnToNestPass

ARCH = load_arch("spatial-8x8")
ROOM = GlbBudget(ARCH.glb.words)


def layer_on(kind: str, sizes: Sizes, window: Window, params: int) -> LayerShape:
    """The layer on the smallest image that its windows need."""
    pads = (window.pad[0] + window.pad[2], window.pad[1] + window.pad[3])
    ih, iw = (
        (outputs - 1) * stride + span - pad
        for outputs, stride, span, pad in zip((sizes.h, sizes.w), window.stride, window.spans, pads, strict=True)
    )
    return LayerShape(kind, sizes, window, params, ih, iw)


RESNET = layer_on("mac", Sizes(1, 64, 64, 8, 8, 3, 3), Window((3, 3), pad=(1, 1, 1, 1)), 2)


def layer_for(case: Case) -> LayerShape:
    h, w = case.window.output(*case.image)
    sizes = Sizes(case.n, case.k, case.c, h, w, *case.window.kernel)
    window = case.window if case.kind == "mac" else replace(case.window, group=case.k)
    return layer_on(case.kind, sizes, window, int(case.kind != "max"))


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


def fits(layer: LayerShape, arch: Arch, tile: Tile) -> bool:
    words = kernel_columns(layer, arch) * tile.q * tile.taps
    weights = tile.p * words if layer.is_mac else 0
    ifmap = tile.p * words if layer.channelwise else words
    if layer.channelwise and tile.q > 1:
        return False
    return weights <= arch.pe.weight_words and ifmap <= arch.pe.ifmap_words and tile.p <= arch.pe.psum_words


def all_tiles(layer: LayerShape, arch: Arch) -> list[Tile]:
    s = layer.sizes
    ranges = [range(1, most + 1) for most in (s.h, s.w, arch.rows, arch.cols, layer.tiled_together, s.c, s.r)]
    tiles = (Tile(*numbers) for numbers in itertools.product(*ranges))
    return [
        tile
        for tile in tiles
        if tile.ph * tile.kr <= arch.rows and tile.pw * tile.kc <= arch.cols and fits(layer, arch, tile)
    ]


@settings(max_examples=examples(150))
@given(cases(groups=True), arches())
def test_nest_os_cycles_are_those_of_a_walk(case: Case, arch: Arch) -> None:
    layer = layer_for(case)
    tile = best_tile(layer, arch)
    mapping = mapping_of(layer, arch, tile, whole_plan(layer))
    operands = {"ifmap"} | ({"weight"} if layer.is_mac else set()) | ({"params"} if layer.params else set())
    assert mapping_problem(mapping, layer.sizes, operands) is None
    assert fits(layer, arch, tile)
    assert array_cycles(layer, arch, tile) == walked_cycles(layer, arch, mapping)


@pytest.mark.parametrize(
    "layer",
    [
        layer_on("mac", Sizes(1, 5, 3, 7, 5, 3, 2), Window((3, 2), (1, 2)), 1),
        layer_on("mac", Sizes(2, 7, 2, 3, 3, 2, 3), Window((2, 3), (2, 1), dilation=(2, 1)), 0),
        layer_on("max", Sizes(1, 7, 1, 5, 3, 3, 3), Window((3, 3), (2, 2), group=7), 0),
        layer_on("mac", Sizes(1, 11, 13, 1, 1, 1, 1), Window((1, 1)), 2),
        layer_on("mac", Sizes(1, 10, 3, 5, 3, 2, 3), Window((2, 3), group=2), 1),
        layer_on("mac", Sizes(1, 7, 1, 5, 3, 3, 3), Window((3, 3), group=7), 1),
        layer_on("mac", Sizes(1, 5, 2, 3, 4, 3, 2), Window((3, 2), group=5), 1),
    ],
)
def test_nest_os_finds_the_best_of_all_tiles(layer: LayerShape) -> None:
    pe = replace(ARCH.pe, weight_words=17, ifmap_words=11, psum_words=4)
    arch = replace(ARCH, rows=3, cols=4, pe=pe)

    def cost(tile: Tile) -> tuple[int, ...]:
        walked = walked_cycles(layer, arch, mapping_of(layer, arch, tile, whole_plan(layer)))
        return (walked, loaded_words(layer, tile), *vars(tile).values())

    assert cost(best_tile(layer, arch)) == min(map(cost, all_tiles(layer, arch)))


@settings(max_examples=examples(25))
@given(cases(groups=True), arches())
def test_nest_os_runs_and_words_are_those_of_the_evaluator(case: Case, arch: Arch) -> None:
    layer = layer_for(case)
    tile = best_tile(layer, arch)
    ctx = context()
    module = case.module(ctx)
    CnnToNestPass().apply(ctx, module)
    layer_of(module).mapping = MappingAttr(mapping_of(layer, arch, tile, whole_plan(layer)))
    for each in SCHEDULE:
        each.apply(ctx, module)
    run = LayerRun(layer_of(module), {"w": case.weights, "b": case.bias}, case.x)
    loops = mapping_of(layer, arch, tile, whole_plan(layer)).loops
    macros = walk(dict(vars(layer.sizes)), loops, sets_of_rest(layer, loops))
    assert sum(run.runs.values()) == sum(macros.values())
    assert max(run.runs) <= arch.rows * arch.cols
    slices = [(words, operand) for operand, memory, words in run.fetched if memory == "rf"]
    assert max((words for words, operand in slices if operand == "weight"), default=0) <= arch.pe.weight_words
    has_gaps = layer.channelwise and layer.sizes.c > 1
    if case.window.dilation == (1, 1) and not has_gaps:  # else the slice has the rows or channels between, too
        assert max(words for words, operand in slices if operand == "ifmap") <= arch.pe.ifmap_words


def test_nest_os_counts_remainders_in_time_and_space() -> None:
    # 23 by 8 in time; of 8 in space by 3: two at once, then the rest of 2; the last 7: two at once, then 1.
    assert bodies(23, [(8, 0), (3, 1)]) == (2 * 2 + 2, 2 * (3 + 2) + (3 + 1))
    # Two sets share the rest of 2; four would share 4 of 6 x 5 + 4 channels.
    assert bodies(23, [(8, 0), (3, 2)]) == (2 * 2 + 2, 2 * (3 + 1) + (3 + 1))
    assert bodies(34, [(5, 4)]) == (2, 5 + 1)
    assert bodies(35, [(6, 4)]) == (2, 6 + 5)  # 5 sets would, 4 do not


def test_nest_os_loads_distinct_words() -> None:
    # One channel for 2 x 2 outputs of a 3 x 3 kernel: 4 x 4 positions for each of two runs of k, and all weights.
    layer = layer_on("mac", Sizes(1, 4, 5, 2, 2, 3, 3), Window((3, 3)), 0)
    assert loaded_words(layer, Tile(2, 2, 1, 1, 2, 1, 3)) == 2 * 5 * 4 * 4 + 4 * 5 * 9
    # Stride 4 leaves no overlap, and rows are loaded one at a time.
    apart = replace(layer, window=Window((3, 3), (4, 4)))
    assert loaded_words(apart, Tile(2, 2, 1, 1, 4, 1, 1)) == 5 * (2 * 3) * (2 * 3) + 4 * 5 * 9


def test_nest_os_loads_distinct_words_of_groups() -> None:
    # Each channel on its own: 4 x 4 positions for each, once, and all weights, once for a tile of h and w.
    depthwise = layer_on("mac", Sizes(1, 4, 1, 2, 2, 3, 3), Window((3, 3), group=4), 0)
    assert loaded_words(depthwise, Tile(2, 2, 1, 1, 3, 1, 3)) == 4 * 4 * 4 + 4 * 9
    # Two groups of 3 channels by 2: two runs of k for each, over 5 input channels.
    grouped = layer_on("mac", Sizes(1, 6, 5, 2, 2, 3, 3), Window((3, 3), group=2), 0)
    assert loaded_words(grouped, Tile(2, 2, 1, 1, 2, 1, 3)) == 4 * 5 * 4 * 4 + 6 * 5 * 9


def test_nest_os_slices_the_weights_of_groups_that_are_large() -> None:
    """A slice is a group where that takes a quarter of the buffer, else a tile of a group."""
    layer = layer_on("mac", Sizes(1, 64, 16, 9, 9, 1, 1), Window((1, 1), group=2), 0)
    for words, depth in ((4 * 1024, 0), (4 * 1024 - 1, 1), (4 * 512, 1), (4 * 512 - 1, 2)):
        pe = replace(ARCH.pe, psum_words=4)
        arch = replace(ARCH, rows=2, cols=2, glb=replace(ARCH.glb, words=words), pe=pe)
        mapping = os_mapping(layer, arch, GlbBudget(arch.glb.words))
        assert [(loop.dim, loop.on) for loop in mapping.loops[:2]] == [("k", ""), ("k", "")]
        assert mapping.stages[0].depth == depth


def test_nest_os_mapping_of_a_layer_by_hand() -> None:
    mapping = os_mapping(RESNET, ARCH, ROOM)
    assert mapping == Mapping(
        (
            *(Loop("k", 6), Loop("h", 1, "rows"), Loop("w", 1, "cols"), Loop("c", 2)),
            *(Loop("s", keep=True), Loop("c", keep=True), Loop("r", keep=True), Loop("k", keep=True)),
        ),
        (
            *(Stage("weight", "glb", 1, 2), Stage("params", "glb", 1, 2)),
            *(Stage("weight", "rf", 4, 2), Stage("ifmap", "rf", 4, 2)),
        ),
    )
    # 10 runs of 6 channels and one of 4, each 32 times 2 input channels; a pixel takes 9 taps.
    assert array_cycles(RESNET, ARCH, best_tile(RESNET, ARCH)) == 32 * (10 * (4 + 9 * 2 * 6) + 4 + 9 * 2 * 4)


@pytest.mark.parametrize(("words", "depth", "buffers"), [(4 * 640, 0, 1), (4 * 640 - 1, 1, 2)])
def test_nest_os_keeps_weights_that_take_a_quarter_of_the_glb(words: int, depth: int, buffers: int) -> None:
    # 32 * 16 weights, 32 * 2 * 2 of parameters
    layer = layer_on("mac", Sizes(1, 32, 16, 9, 9, 1, 1), Window((1, 1)), 2)
    pe = replace(ARCH.pe, psum_words=4)
    arch = replace(ARCH, rows=2, cols=2, glb=replace(ARCH.glb, words=words), pe=pe)
    stages = os_mapping(layer, arch, GlbBudget(arch.glb.words)).stages
    assert stages[:2] == (Stage("weight", "glb", depth, buffers), Stage("params", "glb", depth, buffers))


@pytest.mark.parametrize(("field", "words", "columns"), [("ifmap_words", 2, 2), ("weight_words", 1, 1)])
def test_nest_os_splits_kernel_rows_that_are_too_long(field: str, words: int, columns: int) -> None:
    arch = replace(ARCH, pe=replace(ARCH.pe, **{field: words}))
    mapping = os_mapping(RESNET, arch, ROOM)
    assert [loop.step for loop in mapping.loops if loop.dim == "s"] == ([2, 1] if columns == 2 else [1])
    assert array_cycles(RESNET, arch, best_tile(RESNET, arch)) == walked_cycles(RESNET, arch, mapping)
