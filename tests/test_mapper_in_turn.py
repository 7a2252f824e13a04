"""The mapper on arrays of which nothing overlaps, and whose ifmap halves are ping and pong (rule MAC-6)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conv_grid_cases import Case as ConvCase
from nest_cases import Case, layer_of, lowered
from test_conv_grid import unmapped
from test_mapper_search import array, fits_register_files, plans, points

from cnncc.arch.model import Arch, load_arch
from cnncc.certificate import whole_space
from cnncc.context import CompilerContext
from cnncc.mapper.block_plans import candidates
from cnncc.mapper.bound import Bound, Durations
from cnncc.mapper.combinations import combinations_below
from cnncc.mapper.search import search
from cnncc.mapper.space import forms_of, mapping_of, numbers, point
from cnncc.mapping.mapping import Mapping, Sizes
from cnncc.mapping.text import parse
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.register_files import file_words
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes.nest_assign_mapping import NestAssignMappingPass
from cnncc.window import Window

ARRAY = load_arch("seed-4x4")
ROOM = GlbBudget(1 << 20)
ALL = 1 << 38
BY_HAND = (
    "weight@glb > params@glb > c':3 > weight@rf > h':8 > w':4 > [k':8||2@cols h''||8@rows w''||4@cols] > "
    "ifmap@rf > {s > c'' > r > k''}"
)


def layer(k: int, c: int, side: int, taps: int = 3, stride: int = 1, width: int = 0) -> LayerShape:
    window, width = Window((taps, taps), (stride, stride), pad=(taps // 2,) * 4), width or side
    return LayerShape("mac", Sizes(1, k, c, side, width, taps, taps), window, 2, side * stride, width * stride)


def cycles(shape: LayerShape, mapping: Mapping, arch: Arch = ARRAY) -> int:
    return layer_cycles(LayerPlan("", shape, mapping, False, PREFETCHED), arch)


def beyond_ping(shape: LayerShape, mapping: Mapping, arch: Arch = ARRAY) -> bool:
    """Whether there are more words of the image than ping has."""
    words = file_words(shape, arch, mapping.loops, mapping.stages)
    return words["ifmap_words"] + words.get("virtual_words", 0) > arch.pe.ifmap_words


def test_what_the_search_returns_fits() -> None:
    """With these blocks a quicker mapping has more words than ping, pong and FIFO, which nothing passes on."""
    shape = LayerShape("mac", Sizes(1, 2, 6, 1, 3, 1, 4), Window((1, 4)), 2, 1, 6)
    pe = replace(ARRAY.pe, ifmap_words=7, pong_words=1, virtual_words=6)
    arch = replace(ARRAY, rows=2, pe=pe, glb=replace(ARRAY.glb, words_per_cycle=1))
    found = search(shape, arch, GlbBudget(90, frozenset({"output"})))
    assert found is not None
    words = file_words(shape, arch, found.mapping.loops, found.mapping.stages)
    assert all(each <= getattr(arch.pe, key) for key, each in words.items()), words


@pytest.mark.parametrize(
    ("shape", "mapping"),
    [
        (layer(4, 6, 4), "[h||4@rows w||4@cols] > c':3 > weight@rf > ifmap@rf > {s > c'' > r > k}"),
        (layer(2, 3, 4), "[h||4@rows w||4@cols] > weight@rf > ifmap@rf > {s > c > r > k}"),
        (layer(8, 6, 8), "h':4 > w':4 > [h''||4@rows w''||4@cols] > c':3 > weight@rf > ifmap@rf > {s > c'' > r > k}"),
        (layer(5, 4, 7, 5), "h':4 > w':4 > [h''||4@rows w''||4@cols] > c > weight@rf > ifmap@rf > {s > r > k}"),
        (
            layer(7, 5, 5, 3, 2),
            "k':4 > h > w':3 > [k''||4@rows w''||3@cols] > c':2 > weight@rf > ifmap@rf > {s > c'' > r}",
        ),
    ],
)
def test_nothing_output_stationary_is_quicker(shape: LayerShape, mapping: str) -> None:
    """Where all fits: ping and pong are in the space of the search, too. The mappings are good ones by hand."""
    found = search(shape, ARRAY, ROOM)
    assert found is not None and found.least == found.cycles
    assert found.cycles <= cycles(shape, parse(f"weight@glb > params@glb > {mapping}", shape.sizes))


def test_ping_and_pong_win() -> None:
    """A layer of ResNet-20: with them no more cycles than by hand, without them many more."""
    shape, arch = layer(16, 16, 32), load_arch("seed-8x8")
    found = search(shape, arch, ROOM)
    assert found is not None and found.least == found.cycles and beyond_ping(shape, found.mapping)
    assert found.cycles <= cycles(shape, parse(BY_HAND, shape.sizes), arch)
    none = search(shape, replace(arch, pe=replace(arch.pe, pong_words=0, virtual_words=0)), ROOM)
    assert none is not None and none.cycles > 1.2 * found.cycles


@pytest.mark.parametrize(
    ("k", "c", "side", "words", "is_tight", "by_hand"),
    [
        (
            *(8, 1, 5, 48, True),
            "k':4 > weight@glb > params@glb > h':2 > w':2 > [k'':2||2@rows h''||2@rows k'''||2@cols w''||2@cols] > "
            "weight@rf > ifmap@rf > {s > r}",
        ),
        (
            *(8, 6, 8, 100_000, False),
            "weight@glb > params@glb > h':4 > w':4 > [h''||4@rows w''||4@cols] > c':3 > weight@rf > ifmap@rf > "
            "{s > c'' > r > k}",
        ),
    ],
)
def test_what_is_taken_is_the_quicker(k: int, c: int, side: int, words: int, is_tight: bool, by_hand: str) -> None:
    """Slices of weights have two buffers, of which nothing overlaps makes no use: one has larger slices (SPACE-13)."""
    case = Case("mac", 1, k, c, (side, side), Window((3, 3), pad=(1, 1, 1, 1)))
    layer = layer_of(lowered(case)[1])
    shape, budget = layer_shape(layer), GlbBudget(words)
    found = search(shape, ARRAY, budget)
    assert found is not None and found.least == found.cycles  # it came to its end: nothing of the space is quicker
    written = cycles(shape, parse(by_hand, shape.sizes))
    chosen = NestAssignMappingPass(ARRAY.name).candidates(CompilerContext(), ARRAY).best(layer, budget)
    assert chosen is not None and cycles(shape, chosen) <= min(written, found.cycles)
    assert (cycles(shape, chosen) < found.cycles) == is_tight


ARRAYS = [(4, 3, 6), (6, 1, 2), (3, 8, 8), (5, 2, 24)]


@pytest.mark.parametrize("lane_sums", [False, True])
@pytest.mark.parametrize(("ping", "pong", "virtual"), ARRAYS)
@pytest.mark.parametrize("shape", [layer(3, 4, 5), layer(4, 3, 4, 5, 2, width=2)])
def test_the_check_of_certificates_has_the_same_points(
    shape: LayerShape, ping: int, pong: int, virtual: int, lane_sums: bool
) -> None:
    """It counts SPACE-1 to SPACE-5 once more, with no code of the search."""
    pe = replace(ARRAY.pe, ifmap_words=ping, pong_words=pong, virtual_words=virtual, weight_words=40, lanes=2)
    pe = replace(pe, max_pixels=2, psum_words=4 if lane_sums else 3, lane_sums=lane_sums)
    arch = replace(ARRAY, rows=2, cols=4, pe=pe)
    everything = numbers(shape, arch)
    points = set[object]()
    for form in forms_of(shape):
        for which in combinations_below(everything, form, ALL).indices.tolist():
            at = point(everything, form, which)
            k, w, h, c, r, s = at.box
            points.add((form.order, at.rows, at.cols, (k, h, w, c, r, s), at.lanes, at.own_lanes))
    again = set(map(tuple, whole_space.below(shape, arch, ALL)))
    assert points == again and len(points) > 100
    assert lane_sums == any(own_lanes > 1 for *_, own_lanes in again)


def comes_in_parts(mapping: Mapping) -> bool:
    """Whether two buffers of weights, if there are, hold parts of them (SPACE-12)."""
    stage = next(stage for stage in mapping.stages if (stage.operand, stage.memory) == ("weight", "glb"))
    return stage.buffers == 1 or any(loop.dim in "kc" for loop in mapping.loops[: stage.depth])


def test_all_mappings_with_room_in_some_blocks_are_looked_at() -> None:
    """What neighbours do may depend on the size of blocks."""
    case, streamed = ConvCase(k=4, c=2, kernel=(1, 3), image=(1, 4)), frozenset({"ifmap", "output"})
    arch = array(1, 4, (6, 2, 2), pong=(2, 2))
    shape = layer_shape(layer_of(unmapped(case)[0]))
    everything, looked_at = numbers(shape, arch), set[Mapping]()
    for form in forms_of(shape):
        for which in combinations_below(everything, form, ALL, cut=True).indices.tolist():
            bound = Bound(Durations(shape, arch, False), point(everything, form, which))
            found = candidates(bound, replace(ROOM, streamed=streamed), ALL)
            looked_at |= {mapping_of(shape, arch, bound.at, plan) for _, plan in found}
    there = [(at, each) for at in points(case, arch) for (each,) in plans(case, arch, at, streamed)]
    with_budget = {each for at, each in there if fits_register_files(case, arch, at, each)}
    in_space = {each for each in with_budget if comes_in_parts(each)}
    assert in_space <= looked_at and any(beyond_ping(shape, each, arch) for each in with_budget)


def test_a_better_mapping_with_ping_and_pong_is_found_by_the_check() -> None:
    shape = layer(4, 4, 8)
    best = search(shape, ARRAY, ROOM)
    none = search(shape, replace(ARRAY, pe=replace(ARRAY.pe, pong_words=0, virtual_words=0)), ROOM)
    assert best is not None and none is not None and best.cycles < none.cycles
    assert whole_space.look(shape, ARRAY, False, ROOM.words, best.cycles).better is None
    better = whole_space.look(shape, ARRAY, False, ROOM.words, best.cycles + 1).better
    assert better is not None and better[1] == best.cycles and beyond_ping(shape, better[0])
