"""The mathematics of the scheduling passes: mappings to mappings, without IR.

Those of the pipeline come twice: `tile`, `permute`, `unroll` and `add_stage` take what a user gives by hand. `tile_as`
and so on read the same options off a goal, the mapping that was decided for the layer, and call them.
All raise Refusal where the request makes no sense, saying why. None changes what a layer computes: sums do not depend
on the order of their terms, and every index is visited once (rule NEST-1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping as Map
from collections.abc import Sequence
from dataclasses import replace

from cnncc.errors import Refusal
from cnncc.mapping.mapping import AXES, LANES, MEMORIES, OPERANDS, Loop, Mapping, Sizes, Stage, extents, without_single

CANONICAL = ("n", "k", "h", "w", "c", "r", "s")


class Missing(Refusal):
    """A layer has no loop or operand of the name that an option gives; others may have it."""


def canonical(sizes: Sizes) -> Mapping:
    """One loop in time for each dimension of more than one index, in the order n k h w c r s."""
    return Mapping(tuple(Loop(dim) for dim in CANONICAL if sizes.of(dim) > 1))


def over(loops: Sequence[Loop], dim: str) -> list[int]:
    """The depths of the loops over `dim`, from outside."""
    return [depth for depth, loop in enumerate(loops) if loop.dim == dim]


def _steps(mapping: Mapping) -> dict[str, list[int]]:
    return {dim: [mapping.loops[depth].step for depth in over(mapping.loops, dim)] for dim in CANONICAL}


def find(mapping: Mapping, dim: str, number: int | None = None) -> int:
    """The depth of the loop over `dim` with a number: 1 is the outermost; None is the innermost.

    Raises Missing where there is none.
    """
    depths = over(mapping.loops, dim)
    if not depths:
        dims = ", ".join(dict.fromkeys(loop.dim for loop in mapping.loops)) or "none"
        raise Missing(f"there is no loop over {dim}, there are {dims}")
    number = len(depths) if number is None else number
    if not 1 <= number <= len(depths):
        raise Missing(f"there is no loop {number} over {dim}: it has {len(depths)} (1 is the outermost)")
    return depths[number - 1]


def split(mapping: Mapping, sizes: Sizes, depth: int, size: int) -> Mapping:
    """The loop at `depth` as two: one over tiles of `size`, directly inside it the rest, which keeps axis and box.

    Loop k on cols split by 4: k step 4 in time, k on cols. That is a fold: 4 PEs do what took a PE for each index.
    """
    loop, extent = mapping.loops[depth], extents(sizes, mapping.loops)[depth]
    if not loop.step < size < extent:
        steps = f"steps by {loop.step} in an extent of {extent}"
        raise Refusal(f"a tile of {size} does not split loop {loop.dim}, which {steps}")
    loops = (*mapping.loops[:depth], replace(loop, step=size, on=""), *mapping.loops[depth:])
    inside = (replace(stage, depth=stage.depth + (stage.depth > depth)) for stage in mapping.stages)
    return Mapping(loops, tuple(inside))


def merged(mapping: Mapping, depth: int) -> Mapping:
    """The loop at `depth` and the one directly inside it, over the same dimension, as one: the inverse of `split`."""
    outer, inner = mapping.loops[depth], next(iter(mapping.loops[depth + 1 :]), None)
    if inner is None or inner.dim != outer.dim:
        between = f"loop {inner.dim} is" if inner else "there is none"
        raise Refusal(f"no loop over {outer.dim} stands directly inside this one, {between}: nest-permute first")
    _check_between(mapping, depth, depth + 1, f"the loops over {outer.dim}")
    if outer.on and outer.on != inner.on:
        there = f"on {inner.on}" if inner.on else "in time"
        raise Refusal(f"the outer loop over {outer.dim} runs on {outer.on}, the inner {there}: no one loop does both")
    loops = (*mapping.loops[:depth], *mapping.loops[depth + 1 :])
    return Mapping(loops, tuple(replace(stage, depth=stage.depth - (stage.depth > depth)) for stage in mapping.stages))


def interchange(mapping: Mapping, one: int, other: int) -> Mapping:
    """The loops at two depths in each other's place, with their axes."""
    outer, inner = sorted((one, other))
    loops = list(mapping.loops)
    names = f"loops {loops[outer].dim} and {loops[inner].dim}"
    if outer == inner:
        raise Refusal(f"{names} are the same loop")
    _check_between(mapping, outer, inner, names)
    loops[outer], loops[inner] = loops[inner], loops[outer]
    for dim in dict.fromkeys((loops[outer].dim, loops[inner].dim)):
        before, after = ([loop.step for loop in each if loop.dim == dim] for each in (mapping.loops, loops))
        if before != after:
            raise Refusal(f"tiles stay around what they are tiles of: loops {dim} would step by {after}")
    return Mapping(tuple(loops), mapping.stages)


def tile(mapping: Mapping, sizes: Sizes, tiles: Sequence[tuple[str, int]]) -> Mapping:
    """Split for each (dim, size) the outermost loop over dim whose step is below size; the loops over tiles around all.

    Loops k, h, w with h tiled by 4 and w by 2: k, h step 4, w step 2, h, w.
    """
    if twice := [dim for dim, count in Counter(dim for dim, _ in tiles).items() if count > 1]:
        raise Refusal(f"dimension {twice[0]} is named twice: a tile of a tile is a nest-tile of its own")
    outer: list[int] = []
    for dim, size in tiles:
        find(mapping, dim)  # a layer without such a loop is another case than a size that is too small
        depth = next((depth for depth in over(mapping.loops, dim) if mapping.loops[depth].step < size), None)
        if depth is None:
            raise Refusal(f"no loop over {dim} has a step below {size}")
        if on := mapping.loops[depth].on:
            raise Refusal(f"loop {dim} runs on {on}: tile before nest-unroll, or fold it with nest-split")
        mapping = split(mapping, sizes, depth, size)
        # The new loop pushes those that stand inside it one further in.
        outer = [*(each + (each > depth) for each in outer), depth]
    first = min(outer, default=0)
    for depth, (dim, _) in zip(outer, tiles, strict=True):
        _check_between(mapping, first, depth, f"the loops over tiles of {mapping.loops[first].dim} and {dim}")
    moved = [mapping.loops[depth] for depth in outer]
    rest = [loop for depth, loop in enumerate(mapping.loops) if depth not in outer]
    return Mapping((*rest[:first], *moved, *rest[first:]), mapping.stages)


def tile_as(mapping: Mapping, sizes: Sizes, goal: Mapping) -> Mapping:
    """`tile` with the tiles of `goal`: first those of the largest size over each dimension, then those inside them."""
    have, want = _steps(mapping), _steps(goal)
    dims = [dim for dim in CANONICAL if have[dim] != want[dim]]
    for dim in dims:
        if have[dim] != [1]:
            steps = f"loops {dim} step by {have[dim]}, the mapping's by {want[dim]}"
            raise Refusal(f"{steps}: loops by hand are for a dump after nest-unroll")
    for level in range(max((len(want[dim]) - 1 for dim in dims), default=0)):
        tiles = [(dim, want[dim][level]) for dim in dims if level < len(want[dim]) - 1]
        mapping = tile(mapping, sizes, tiles)
    return mapping


def permute(mapping: Mapping, order: Sequence[str]) -> Mapping:
    """The loops in `order`; its j-th mention of a dimension is the j-th loop over it from outside."""
    if mapping.stages:
        raise Refusal("loops around stages stay where they are: permute before nest-stage")
    for dim in dict.fromkeys(order):
        find(mapping, dim)  # a layer without such a loop is another case than a wrong order
    loops = mapping.loops
    if Counter(order) != Counter(loop.dim for loop in loops):
        raise Refusal(
            f"order {','.join(order)} must name each of the loops {','.join(loop.dim for loop in loops)} once"
        )
    left = {dim: iter([loops[depth] for depth in over(loops, dim)]) for dim in set(order)}
    return Mapping(tuple(next(left[dim]) for dim in order))


def permute_as(mapping: Mapping, goal: Mapping) -> Mapping:
    """`permute` with the order of `goal`."""
    _check_tiles(mapping, goal)
    order = [loop.dim for loop in goal.loops]
    return mapping if order == [loop.dim for loop in mapping.loops] else permute(mapping, order)


def unroll(mapping: Mapping, dim: str, axis: str, number: int | None = None) -> Mapping:
    """The loop over `dim` on `axis`: the `number`-th from outside, 1 being the outermost; None the innermost."""
    if axis not in AXES:
        raise Refusal(f"the array has {', '.join(AXES)}, not '{axis}'")
    depth = find(mapping, dim, number)
    loop = mapping.loops[depth]
    if loop.on or (loop.keep and axis != LANES):
        raise Refusal(f"loop {dim} {f'is on {loop.on} already' if loop.on else 'is kept in the PE'}")
    return Mapping((*mapping.loops[:depth], replace(loop, on=axis), *mapping.loops[depth + 1 :]), mapping.stages)


def unroll_as(mapping: Mapping, goal: Mapping) -> Mapping:
    """`unroll` with the axes of `goal`: the j-th loop over a dimension runs where the j-th of `goal` does."""
    _check_tiles(mapping, goal)
    for dim in CANONICAL:
        depths = zip(over(mapping.loops, dim), over(goal.loops, dim), strict=True)
        for number, (depth, goal_depth) in enumerate(depths, 1):
            if mapping.loops[depth].on != (axis := goal.loops[goal_depth].on):
                mapping = unroll(mapping, dim, axis, number)
    return mapping


def add_stage(mapping: Mapping, stage: Stage) -> Mapping:
    """The mapping with `stage`, after those at its depth. Loops inside all stages in rf become the kept ones."""
    if not 0 <= stage.depth <= len(mapping.loops):
        raise Refusal(f"depth {stage.depth} is not in 0 to {len(mapping.loops)}, the number of loops")
    stages = tuple(sorted((*mapping.stages, stage), key=lambda stage: stage.depth))
    box = max((stage.depth for stage in stages if stage.memory == "rf"), default=len(mapping.loops))
    if on := [loop for loop in mapping.loops[box:] if loop.on not in ("", LANES)]:
        raise Refusal(f"loop {on[0].dim} on {on[0].on} would be inside all stages in rf, where loops are kept")
    loops = tuple(replace(loop, keep=depth >= box) for depth, loop in enumerate(mapping.loops))
    return Mapping(loops, stages)


def stage_as(mapping: Mapping, goal: Mapping) -> Mapping:
    """`add_stage` with the stages of `goal` that are not there yet."""
    if [replace(loop, keep=False) for loop in mapping.loops] != [replace(loop, keep=False) for loop in goal.loops]:
        raise Refusal("the loops are not those of the mapping: nest-tile, nest-permute and nest-unroll must run first")
    if unknown := set(mapping.stages) - set(goal.stages):
        first = min(unknown, key=mapping.stages.index)
        raise Refusal(f"stage {first.operand} in {first.memory} at depth {first.depth} is not in the mapping")
    # The innermost first: it alone says which loops are kept.
    for stage in sorted(goal.stages, key=lambda stage: -stage.depth):
        if stage not in mapping.stages:
            mapping = add_stage(mapping, stage)
    return mapping


def keep(mapping: Mapping, dims: Sequence[str], buffers: Map[str, int]) -> Mapping:
    """The innermost loop over each of `dims`, in this order, in the box, in which nothing else is.

    buffers: how many of each operand that is then in register files, around the box.
    """
    if there := [stage for stage in mapping.stages if stage.memory == "rf"]:
        raise Refusal(f"there is a box already, inside {there[-1].operand} in rf")
    if twice := [dim for dim, count in Counter(dims).items() if count > 1]:
        raise Refusal(f"dimension {twice[0]} is named twice: the box takes the innermost loop over it")
    depths = [find(mapping, dim) for dim in dims]
    for depth in depths:
        loop = mapping.loops[depth]
        if loop.on not in ("", LANES):
            raise Refusal(f"loop {loop.dim} runs on {loop.on}: what a PE keeps it goes over in time")
        if inside := [stage for stage in mapping.stages if stage.depth > depth]:
            what = f"{inside[0].operand} in {inside[0].memory}"
            raise Refusal(f"loop {loop.dim} would leave the place around stage {what}: nest-keep before nest-stage")
    around = [loop for depth, loop in enumerate(mapping.loops) if depth not in depths]
    box = [replace(mapping.loops[depth], keep=True) for depth in depths]
    stages = [Stage(operand, "rf", len(around), count) for operand, count in buffers.items()]
    return Mapping((*around, *box), (*mapping.stages, *stages))


def normalised(mapping: Mapping, sizes: Sizes) -> Mapping:
    """The one form of all mappings that do the same in the same order.

    1. Loops that run once are left out.
    2. Loops in time over one dimension, directly around each other, are one.
    3. Neighbouring loops in space on rows come first. Loops over one dimension keep their order.
    4. Stages at one place are in the order of memories, then of operands.
    """
    mapping = without_single(mapping.loops, mapping.stages, sizes)
    depth = 0
    while depth + 1 < len(mapping.loops):
        outer, inner = mapping.loops[depth : depth + 2]
        staged = any(stage.depth == depth + 1 for stage in mapping.stages)
        if outer.dim == inner.dim and not (outer.on or inner.on or staged):
            mapping = merged(mapping, depth)
        else:
            depth += 1
    places = {stage.depth for stage in mapping.stages}
    loops, level = list[Loop](), list[Loop]()
    for depth, loop in enumerate(mapping.loops):
        # Loops in space on both sides of a stage do not change places: it would fetch for other PEs.
        if not loop.on or depth in places:
            loops += _rows_first(level)
            level = []
        (level if loop.on else loops).append(loop)
    order = [(memory, operand) for memory in MEMORIES for operand in OPERANDS]
    stages = sorted(mapping.stages, key=lambda stage: (stage.depth, order.index((stage.memory, stage.operand))))
    return Mapping((*loops, *_rows_first(level)), tuple(stages))


def _rows_first(level: Sequence[Loop]) -> list[Loop]:
    """Each time the first loop on rows, unless one on columns over its dimension is still around it."""
    left, ordered = list(level), list[Loop]()
    while left:
        rows = next((i for i, loop in enumerate(left) if loop.on == "rows"), 0)
        passes = all(loop.dim != left[rows].dim for loop in left[:rows])
        ordered.append(left.pop(rows if passes else 0))
    return ordered


def _check_between(mapping: Mapping, outer: int, inner: int, loops: str) -> None:
    """No stage stands between the loops at two depths: what it fetches would be another slice. Raises Refusal."""
    if between := [stage for stage in mapping.stages if outer < stage.depth <= inner]:
        what = f"{between[0].operand} in {between[0].memory}"
        raise Refusal(f"stage {what} stands between {loops}: what it fetches would change")


def _check_tiles(mapping: Mapping, goal: Mapping) -> None:
    have, want = _steps(mapping), _steps(goal)
    if wrong := [dim for dim in CANONICAL if have[dim] != want[dim]]:
        dim = wrong[0]
        raise Refusal(f"loops {dim} step by {have[dim]}, the mapping's by {want[dim]}: nest-tile must run first")
