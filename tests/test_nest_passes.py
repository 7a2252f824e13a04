"""Refusals that end a pass, layers that need a file of their own, and the mathematics of the passes alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from nest_cases import SCHEDULE, Case, context, layer_of, lowered
from xdsl.parser import Parser

from cnncc.dialects.nest import MappingAttr, mapping_of
from cnncc.errors import Refusal
from cnncc.mapping.mapping import Loop, Mapping, Sizes, Stage, extents
from cnncc.passes._scheduling.rewrites import (
    add_stage,
    canonical,
    permute,
    permute_as,
    stage_as,
    tile,
    tile_as,
    unroll,
    unroll_as,
)
from cnncc.passes.cnn_to_nest import CnnToNestPass
from cnncc.passes.nest_assign_mapping import NestAssignMappingPass
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

SIZES = Sizes(1, 10, 3, 7, 5, 1, 2)

UNFUSED = [
    ('cnn.conv %x weights @w window <kernel = [1, 1]> label "c1" : tensor<1x3x5x7xi16> -> tensor<1x4x5x7xi32>',
     r"'c1' \(cnn.conv\) leaves sums without a way out \('then'\): cnn-fuse-epilogue and cnn-legalize must run first"),
    ('cnn.pool "sum" %x window <kernel = [5, 7]> label "p1" : tensor<1x3x5x7xi16> -> tensor<1x3x1x1xi32>',
     r"'p1' \(cnn.pool\) leaves sums without a way out"),
    ('cnn.bias %x @b label "b1" : tensor<1x3x5x7xi16> -> tensor<1x3x5x7xi16>',
     r"'b1' \(cnn.bias\) is a step of its own: cnn-fuse-epilogue and cnn-legalize must run first"),
    ('cnn.requant %x by <scale = "q"> label "q1" : tensor<1x3x5x7xi16> -> tensor<1x3x5x7xi16>',
     r"'q1' \(cnn.requant\) is a step of its own"),
    ('cnn.clamp %x by <clamp = [0, 9]> label "r1" : tensor<1x3x5x7xi16> -> tensor<1x3x5x7xi16>',
     r"'r1' \(cnn.clamp\) is a step of its own"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "message"), UNFUSED)
def test_nest_lowering_refuses_what_is_not_fused(op: str, message: str) -> None:
    ctx = context()
    good = 'cnn.pool "max" %x window <kernel = [1, 1]> label "m" : tensor<1x3x5x7xi16> -> tensor<1x3x5x7xi16>'
    text = f"func.func @main(%x: tensor<1x3x5x7xi16>) {{ %0 = {good}\n %1 = {op}\n func.return }}"
    module = Parser(ctx, text).parse_module()
    before = str(module)
    with pytest.raises(Refusal, match=f"cnn-to-nest: {message}"):
        CnnToNestPass().apply(ctx, module)
    assert str(module) == before, "refused before anything is changed"


def test_nest_lowering_refuses_five_dims() -> None:
    ctx = context()
    kind = "tensor<1x2x3x4x5xi16>"
    op = f'cnn.add %x residual %x : {kind} then <factors = "f"> label "a" : {kind} -> {kind}'
    module = Parser(ctx, f"func.func @main(%x: {kind}) {{ %0 = {op}\n func.return }}").parse_module()
    with pytest.raises(Refusal, match="'a' .cnn.add. has 5 dims, at most 4 fit"):
        CnnToNestPass().apply(ctx, module)


def scheduled(case: Case, arch: str) -> Mapping:
    ctx = context()
    module = case.module(ctx)
    CnnToNestPass().apply(ctx, module)
    NestAssignMappingPass(arch, dataflow="os").apply(ctx, module)
    return layer_of(module).mapping.data


def test_nest_schedule_takes_a_file_and_splits_what_is_too_long(tmp_path: Path) -> None:
    from cnncc.arch.model import PRESETS

    text = (PRESETS / "spatial-4x4.toml").read_text()
    file = tmp_path / "mine.toml"
    case = Case("mac", 1, 5, 3, (9, 9), Window((7, 5), (2, 1), (3, 0, 0, 1)))
    file.write_text(text)
    assert scheduled(case, str(file)) == scheduled(case, "spatial-4x4")
    file.write_text(text.replace("ifmap_words = 48", "ifmap_words = 4"))
    assert [loop.step for loop in scheduled(case, str(file)).loops if loop.dim == "s"] == [2, 1]


def test_nest_schedule_maps_one_group_in_a_loop_over_them() -> None:
    loops = scheduled(Case("mac", 1, 6, 3, (5, 5), Window((3, 3), group=2)), "seed-4x4").loops
    assert (loops[0], [loop.dim for loop in loops if loop.keep]) == (Loop("k", 3), ["s", "c", "r", "k"])


def test_nest_schedule_maps_groups_of_one_channel_side_by_side() -> None:
    loops = scheduled(Case("mac", 1, 6, 2, (5, 5), Window((3, 3), group=6)), "seed-4x4").loops
    assert Loop("c") in loops
    assert [loop.dim for loop in loops if loop.keep] == ["k", "s"]


def test_nest_canonical_leaves_out_dims_of_one_index() -> None:
    assert [loop.dim for loop in canonical(SIZES).loops] == ["k", "h", "w", "c", "s"]


def test_nest_tile_splits_the_loop_that_size_fits() -> None:
    once = tile(canonical(SIZES), SIZES, [("k", 4)])
    assert [(loop.dim, loop.step) for loop in once.loops[:3]] == [("k", 4), ("k", 1), ("h", 1)]
    assert extents(SIZES, tile(once, SIZES, [("k", 2)]).loops)[:3] == (10, 4, 2)
    assert extents(SIZES, tile(once, SIZES, [("k", 7)]).loops)[:3] == (10, 7, 4)
    for size in (0, 1, 4, 10, 11):
        with pytest.raises(Refusal, match="over k has a step below|does not split loop k"):
            tile(once, SIZES, [("k", size)])


def test_nest_passes_reach_any_goal_from_the_canonical_nest() -> None:
    goal = Mapping(
        (
            Loop("w", 2),
            Loop("k", 3, "rows"),
            Loop("h", 1, "cols"),
            Loop("c"),
            Loop("w"),
            Loop("s", keep=True),
            Loop("k", keep=True),
        ),
        (Stage("ifmap", "glb", 0), Stage("ifmap", "rf", 5, 2)),
    )
    mapping = unroll_as(permute_as(tile_as(canonical(SIZES), SIZES, goal), goal), goal)
    assert stage_as(mapping, goal) == goal
    outside = Mapping(goal.loops, (Stage("weight", "rf", 1, 2), *goal.stages[1:]))  # of a stage inside loops in space
    assert stage_as(mapping, outside) == outside
    by_hand = tile(tile(canonical(SIZES), SIZES, [("w", 2)]), SIZES, [("k", 3)])
    by_hand = permute(by_hand, ["w", "k", "h", "c", "w", "s", "k"])
    by_hand = unroll(unroll(by_hand, "k", "rows", 1), "h", "cols")
    assert add_stage(add_stage(by_hand, Stage("ifmap", "rf", 5, 2)), Stage("ifmap", "glb", 0)) == goal


def test_loops_of_a_mapping_that_run_once_are_left_out() -> None:
    case = Case("mac", 1, 4, 3, (6, 5), Window((3, 3)))
    ctx, module = lowered(case)
    layer = layer_of(module)
    plain = canonical(layer.sizes.data)
    layer.mapping = MappingAttr(Mapping((Loop("n"), Loop("h", layer.sizes.data.h), *plain.loops)))
    for step in SCHEDULE:
        step.apply(ctx, module)
    assert mapping_of(layer_of(module)) == plain
