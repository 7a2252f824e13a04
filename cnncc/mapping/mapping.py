"""Mappings of a layer: its loops and stages in plain Python, and the rules that they keep.

`mapping_problem` checks the rules; `nest.layer` holds nothing that breaks one.

The rules NEST-1 to NEST-6 are in docs/mapping.md.

What a step leaves over of an extent is a smaller tile. It runs after the whole tiles, also where these run side by
side. In the innermost loop over k in space the rest is spread evenly over as many sets as divide it (`rest_sets`). If
there are enough sets, each gets one channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

OPERANDS = ("weight", "ifmap", "params", "residual", "output")
IN_REGISTER_FILES = ("weight", "ifmap")
OF_OUTPUTS = ("params", "residual", "output")
MEMORIES = ("glb", "rf")
AXES = ("rows", "cols", "lanes")
LANES = "lanes"
DIMS = ("n", "k", "c", "h", "w", "r", "s")
OUTPUT_DIMS = "nkhw"
REDUCTION_DIMS = frozenset("crs")
MOST = (1 << 31) - 1  # of a number in a mapping's text


@dataclass(frozen=True)
class Sizes:
    """The layer's size in each dimension; c counts the input channels of one group."""

    n: int
    k: int
    c: int
    h: int
    w: int
    r: int
    s: int

    def __post_init__(self) -> None:
        if min(self.of(dim) for dim in DIMS) < 1:
            raise ValueError("every size is at least 1")

    def of(self, dim: str) -> int:
        """The size of dimension `dim`."""
        return cast("int", getattr(self, dim))


class Malformed(ValueError):
    """A loop, stage or mapping has a number or a name that none can have."""


@dataclass(frozen=True)
class Loop:
    """One loop of a mapping: `step` iterations of `dim` at a time, in time or on an axis of the array."""

    dim: str
    step: int = 1
    on: str = ""
    keep: bool = False

    def __post_init__(self) -> None:
        if self.dim not in DIMS:
            raise Malformed(f"no dimension '{self.dim}': they are {', '.join(DIMS)}")
        if self.on not in ("", *AXES):
            raise Malformed(f"loop {self.dim}: no axis '{self.on}': they are {', '.join(AXES)}")
        if self.step < 1:
            raise Malformed(f"loop {self.dim}: no step {self.step}: it is at least 1")
        if self.on and self.keep and self.on != LANES:
            raise Malformed(f"loop {self.dim}: a kept loop runs in time, or on lanes")


@dataclass(frozen=True)
class Stage:
    """A fetch of `operand` into `memory`, inside the `depth` outermost loops of the mapping, around the others.

    Of the output it is the reverse: what the loops inside compute is gathered in `memory` and leaves it when they are
    done. An operand, or the output, without a stage in the GLB is resident there.
    """

    operand: str
    memory: str
    depth: int
    buffers: int = 1

    def __post_init__(self) -> None:
        if self.operand not in OPERANDS or self.memory not in MEMORIES or not 1 <= self.buffers <= MOST:
            are = f"of {', '.join(OPERANDS)}, in {' or '.join(MEMORIES)}, with 1 buffer or more, at most {MOST:,}"
            raise Malformed(f"{self.operand} in {self.memory} buffers {self.buffers} is no stage: they are {are}")
        if self.depth < 0:
            raise Malformed(f"a stage inside {self.depth} loops is no stage")


@dataclass(frozen=True)
class Mapping:
    """The nest that the scheduling passes are to reach: all loops, outermost first, and all stages from outside."""

    loops: tuple[Loop, ...]
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        depth = 0
        for stage in self.stages:
            if not depth <= stage.depth <= len(self.loops):
                what, where = f"stage {stage.operand} in {stage.memory}", f"{depth} to {len(self.loops)}"
                raise Malformed(f"{what}: depth {stage.depth} is not in {where} (stages are listed from outside)")
            depth = stage.depth

    @property
    def glb_stages(self) -> dict[str, Stage]:
        """The stages in the GLB, by operand."""
        return {stage.operand: stage for stage in self.stages if stage.memory == "glb"}

    @property
    def file_depths(self) -> dict[str, int]:
        """The depths of the stages in register files, by operand."""
        return {stage.operand: stage.depth for stage in self.stages if stage.memory == "rf"}


def extents(sizes: Sizes, loops: Sequence[Loop]) -> tuple[int, ...]:
    """The extent of each loop: the step of the nearest loop over its dimension around it, or the size."""
    current = {dim: sizes.of(dim) for dim in DIMS}
    result: list[int] = []
    for loop in loops:
        result.append(current[loop.dim])
        # Steps that rise are refused elsewhere (NEST-1). Here they take no more than there is.
        current[loop.dim] = min(loop.step, current[loop.dim])
    return tuple(result)


def without_single(
    loops: Sequence[Loop],
    stages: Iterable[Stage],
    sizes: Sizes,
    order: Callable[[Stage], Any] = attrgetter("depth"),
) -> Mapping:
    """A mapping without the loops that run once, its stages in order. The depth of a stage counts these loops, too."""
    runs = [loop.step < extent for loop, extent in zip(loops, extents(sizes, loops), strict=True)]
    placed = [Stage(stage.operand, stage.memory, sum(runs[: stage.depth]), stage.buffers) for stage in stages]
    return Mapping(tuple(loop for loop, run in zip(loops, runs, strict=True) if run), tuple(sorted(placed, key=order)))


def is_channelwise(kind: str, sizes: Sizes, groups: int) -> bool:
    """Whether each output channel has input channels of its own: pools, and as many groups as output channels."""
    return kind != "mac" or 1 < groups == sizes.k


def channel_periods(kind: str, sizes: Sizes, groups: int, shuffle: int) -> dict[str, int]:
    """Output channels after which an operand's positions start anew, by operand; no entry where they never do.

    Channel k reads the input channels of group k // period, and a shuffle by S groups moves it to
    k % period * S + k // period. A loop over k is one step through such positions if its step is a multiple of the
    period, or if it runs inside one period.

    >>> channel_periods("mac", Sizes(1, 12, 3, 4, 4, 1, 1), groups=2, shuffle=3)
    {'ifmap': 6, 'output': 4}
    """
    grouped = groups > 1 and not is_channelwise(kind, sizes, groups)
    return ({"ifmap": sizes.k // groups} if grouped else {}) | ({"output": sizes.k // shuffle} if shuffle > 1 else {})


def tiled_together(kind: str, sizes: Sizes, groups: int, shuffle: int) -> int:
    """How many output channels may be tiled together: those of the smallest period, or all."""
    return min(channel_periods(kind, sizes, groups, shuffle).values(), default=sizes.k)


def rest_sets(sizes: Sizes, loops: tuple[Loop, ...], together: int) -> tuple[int, ...]:
    """Over how many sets, at most, the rest of each loop is spread: 1 but for the innermost over k in space.

    together: how many output channels may be side by side in any number, those of a group. A loop that goes from group
    to group keeps its rest together.
    """
    innermost = max((i for i, loop in enumerate(loops) if loop.on not in ("", LANES) and loop.dim == "k"), default=-1)
    sets = [1] * len(loops)
    if innermost >= 0 and (extent := extents(sizes, loops)[innermost]) <= together:
        sets[innermost] = extent // loops[innermost].step
    return tuple(sets)


def even_sets(rest: int, sets: int) -> int:
    """The most sets, not above `sets`, that share `rest` channels evenly.

    >>> even_sets(3, 4), even_sets(4, 3), even_sets(5, 4)
    (3, 2, 1)
    """
    return max(count for count in range(1, min(rest, sets) + 1) if rest % count == 0)


def mapping_problem(mapping: Mapping, sizes: Sizes, operands: Set[str]) -> str | None:
    """Which of the rules `mapping` breaks for a layer with these sizes and operands; None where it breaks none."""
    return next(mapping_problems(mapping, sizes, operands), None)


def mapping_problems(mapping: Mapping, sizes: Sizes, operands: Set[str]) -> Iterator[str]:
    """All of them."""
    loops = mapping.loops
    yield from _loop_problems(sizes, loops)
    box = max((stage.depth for stage in mapping.stages if stage.memory == "rf"), default=len(loops))
    if wrong := [loop.dim for depth, loop in enumerate(loops) if loop.keep != (depth >= box)]:
        yield f"of loop {wrong[0]}: exactly the loops inside all stages in rf are kept (NEST-2)"
    seen: set[tuple[str, str]] = set()
    for stage in mapping.stages:
        what = f"stage {stage.operand} in {stage.memory}"
        around = loops[: stage.depth]
        if stage.operand not in operands or (stage.memory == "rf" and stage.operand not in IN_REGISTER_FILES):
            yield f"{what}: the layer has no such operand there (NEST-3)"
        if (stage.operand, stage.memory) in seen or (stage.memory == "glb" and (stage.operand, "rf") in seen):
            yield f"{what}: stands inside another of the same operand in this memory or nearer to the PE (NEST-3)"
        seen.add((stage.operand, stage.memory))
        # A slice of weights inside loops in space is that of all their PEs.
        if stage.memory == "glb" and stage.operand != "weight" and any(loop.on for loop in around):
            yield f"{what}: stands inside a loop in space (NEST-4)"
        if stage.operand in OF_OUTPUTS and any(loop.dim in REDUCTION_DIMS for loop in around):
            yield f"{what}: stands inside a loop over c, r or s (NEST-5)"


def _loop_problems(sizes: Sizes, loops: tuple[Loop, ...]) -> Iterator[str]:
    space = [loop for loop in loops if loop.on]
    lanes = "".join(loop.dim for loop in space if loop.on == LANES)
    if lanes and "".join(loop.dim for loop in space)[-len(lanes) :] != lanes:
        yield f"loop {lanes[0]} on lanes: it stands inside all loops on other axes (NEST-6)"
    if lanes and lanes != "k" and not (set(lanes) <= REDUCTION_DIMS and len(set(lanes)) == len(lanes)):
        yield f"loops {lanes} on lanes: there is one over k, or one each over some of c, r, s (NEST-6)"
    current = {dim: sizes.of(dim) for dim in DIMS}
    for loop in loops:
        if loop.step > current[loop.dim]:
            yield f"loop {loop.dim} steps by {loop.step} in an extent of {current[loop.dim]} (NEST-1)"
        current[loop.dim] = loop.step
    if left := [dim for dim, step in current.items() if step != 1]:
        yield f"no loop runs over single indices of {', '.join(left)}: add one without a step inside (NEST-1)"
