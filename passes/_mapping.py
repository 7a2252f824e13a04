"""The mathematics of the scheduling passes: mappings to mappings, without IR.

Each transformation comes twice: as one asks for it by hand, and `…_as` a goal, the mapping that a
layer is to reach. All raise Refusal where the request makes no sense, saying why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from cnncc.dialects.nest import Loop, Mapping, Sizes, Stage, extents
from cnncc.errors import Refusal

CANONICAL = ("n", "k", "h", "w", "c", "r", "s")


def canonical(sizes: Sizes) -> Mapping:
    """One loop in time for each dimension of more than one index, in the order n k h w c r s."""
    return Mapping(tuple(Loop(dim) for dim in CANONICAL if sizes.of(dim) > 1))


def over(loops: Sequence[Loop], dim: str) -> list[int]:
    """The depths of the loops over `dim`, from outside."""
    return [depth for depth, loop in enumerate(loops) if loop.dim == dim]


def _steps(mapping: Mapping) -> dict[str, list[int]]:
    return {dim: [mapping.loops[depth].step for depth in over(mapping.loops, dim)] for dim in CANONICAL}


def tile(mapping: Mapping, sizes: Sizes, dim: str, size: int) -> Mapping:
    """Split the outermost loop over `dim` whose step is below `size`: tiles of `size`, directly inside them the loop.

    Loops k and h with k tiled by 16: k step 16, k, h.
    """
    candidates = [depth for depth in over(mapping.loops, dim) if mapping.loops[depth].step < size]
    if not candidates:
        raise Refusal(f"no loop over {dim} has a step below {size}")
    depth = candidates[0]
    loop, extent = mapping.loops[depth], extents(sizes, mapping.loops)[depth]
    if size >= extent:
        raise Refusal(f"a tile of {size} does not split loop {dim}, whose extent is {extent}")
    if loop.on:
        raise Refusal(f"loop {dim} runs on {loop.on}: tile before nest-unroll")
    loops = (*mapping.loops[:depth], replace(loop, step=size), *mapping.loops[depth:])
    inside = (replace(stage, depth=stage.depth + (stage.depth > depth)) for stage in mapping.stages)
    return Mapping(loops, tuple(inside))


def tile_as(mapping: Mapping, goal: Mapping) -> Mapping:
    """Split every loop into those of `goal` over its dimension, in the order of the loops that there are."""
    have, want = _steps(mapping), _steps(goal)
    split: list[Loop] = []
    for loop in mapping.loops:
        if have[loop.dim] == want[loop.dim]:
            split.append(loop)
        elif have[loop.dim] == [1] and not mapping.stages and not loop.on:
            split.extend(Loop(loop.dim, step) for step in want[loop.dim])
        else:
            raise Refusal(f"loops {loop.dim} step by {have[loop.dim]}, the mapping's by {want[loop.dim]}")
    missing = (Loop(dim, step) for dim in CANONICAL if not have[dim] for step in want[dim])
    return Mapping((*split, *missing), mapping.stages)


def permute(mapping: Mapping, order: Sequence[str]) -> Mapping:
    """The loops in `order`; its j-th mention of a dimension is the j-th loop over it from outside."""
    if mapping.stages:
        raise Refusal("loops around stages stay where they are: permute before nest-stage")
    loops = mapping.loops
    if Counter(order) != Counter(loop.dim for loop in loops):
        raise Refusal(
            f"order {','.join(order)} must name each of the loops {','.join(loop.dim for loop in loops)} once"
        )
    left = {dim: iter([loops[depth] for depth in over(loops, dim)]) for dim in set(order)}
    return Mapping(tuple(next(left[dim]) for dim in order))


def permute_as(mapping: Mapping, goal: Mapping) -> Mapping:
    """The loops in the order of `goal`."""
    _check_tiles(mapping, goal)
    order = [loop.dim for loop in goal.loops]
    return mapping if order == [loop.dim for loop in mapping.loops] else permute(mapping, order)


def unroll(mapping: Mapping, dim: str, axis: str, which: int | None = None) -> Mapping:
    """The loop over `dim` on `axis`: the `which`-th from outside, 1 being the outermost; None the innermost."""
    depths = over(mapping.loops, dim)
    if axis not in ("rows", "cols"):
        raise Refusal(f"the array has rows and cols, not '{axis}'")
    if not depths:
        raise Refusal(f"there is no loop over {dim}")
    number = len(depths) if which is None else which
    if not 1 <= number <= len(depths):
        raise Refusal(f"there is no loop {number} over {dim}: it has {len(depths)} (1 is the outermost)")
    depth = depths[number - 1]
    loop = mapping.loops[depth]
    if loop.on or loop.keep:
        raise Refusal(f"loop {dim} {f'is on {loop.on} already' if loop.on else 'is kept in the PE'}")
    return Mapping(_with(mapping.loops, depth, replace(loop, on=axis)), mapping.stages)


def unroll_as(mapping: Mapping, goal: Mapping) -> Mapping:
    """Every loop on the axis that its counterpart in `goal` is on: the j-th over a dimension is that of the j-th."""
    _check_tiles(mapping, goal)
    loops = mapping.loops
    for dim in CANONICAL:
        for depth, want in zip(over(loops, dim), over(goal.loops, dim), strict=True):
            loops = _with(loops, depth, replace(loops[depth], on=goal.loops[want].on))
    return Mapping(loops, mapping.stages)


def add_stage(mapping: Mapping, stage: Stage) -> Mapping:
    """The mapping with `stage`, after those at its depth. Loops inside all stages in rf become the kept ones."""
    if not 0 <= stage.depth <= len(mapping.loops):
        raise Refusal(f"depth {stage.depth} is not in 0 to {len(mapping.loops)}, the number of loops")
    stages = tuple(sorted((*mapping.stages, stage), key=lambda stage: stage.depth))
    box = max((stage.depth for stage in stages if stage.memory == "rf"), default=len(mapping.loops))
    if on := [loop for loop in mapping.loops[box:] if loop.on]:
        raise Refusal(f"loop {on[0].dim} on {on[0].on} would be inside all stages in rf, where loops are kept")
    loops = tuple(replace(loop, keep=depth >= box) for depth, loop in enumerate(mapping.loops))
    return Mapping(loops, stages)


def stage_as(mapping: Mapping, goal: Mapping) -> Mapping:
    """`goal`, where `mapping` has its loops already and no stage that it lacks."""
    if [replace(loop, keep=False) for loop in mapping.loops] != [replace(loop, keep=False) for loop in goal.loops]:
        raise Refusal("the loops are not those of the mapping: nest-tile, nest-permute and nest-unroll must run first")
    if unknown := set(mapping.stages) - set(goal.stages):
        first = min(unknown, key=mapping.stages.index)
        raise Refusal(f"stage {first.operand} in {first.memory} at depth {first.depth} is not in the mapping")
    return goal


def _with(loops: tuple[Loop, ...], depth: int, loop: Loop) -> tuple[Loop, ...]:
    return (*loops[:depth], loop, *loops[depth + 1 :])


def _check_tiles(mapping: Mapping, goal: Mapping) -> None:
    have, want = _steps(mapping), _steps(goal)
    if wrong := [dim for dim in CANONICAL if have[dim] != want[dim]]:
        dim = wrong[0]
        raise Refusal(f"loops {dim} step by {have[dim]}, the mapping's by {want[dim]}: nest-tile must run first")
