"""A local search beyond the space: from a mapping on to faster ones with other blocks in the GLB (LOCAL-1). No IR.

The space has blocks of one size for all operands that are streamed. Here their stages move one by one, and the loops
around these change. The ifmap may come into register files before weights. Loops in space, and the stages of weights
and parameters, stay as they are. Beside it, weights of a cheap mapping may stay in register files for longer (LOCAL-6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, prod

from cnncc.arch.model import Arch
from cnncc.mapper.arrays import NEVER
from cnncc.mapper.effort import Effort
from cnncc.mapper.search import Result
from cnncc.mapper.space import without_single_trips
from cnncc.mapping.mapping import DIMS, LANES, REDUCTION_DIMS, Loop, Mapping, Sizes, Stage, extents
from cnncc.model.layer_schedule import layer_cycles, plan_in
from cnncc.model.layer_shape import GlbBudget, LayerShape, inside
from cnncc.model.legal import can_run, fits_glb, loops_in_space
from cnncc.model.routes import Nest

RESULTS, IMAGE = frozenset({"residual", "output"}), frozenset({"ifmap"})  # operands whose stages move together
NEAR = 2  # other steps of a loop that are looked at, below its own and above
PARTS = (2, 3, 4)  # into so many a new loop cuts what is around it
TILES = (2, 4)  # or it takes so many of the tiles inside


def improved(shape: LayerShape, arch: Arch, budget: GlbBudget, best: Result, effort: Effort, starts: int = 1) -> Result:
    """The best result, or one with fewer cycles. Its `least` is that of the space, and at most its cycles.

    starts: the number of mappings from which to go on: the best and the next ones.
    """
    params = best.mapping.glb_stages.get("params")
    if shape.per_position and params and params.depth:  # they come with the blocks
        return best
    search, mapping, cycles = LocalSearch(shape, arch, budget), best.mapping, best.cycles
    for start in ((mapping, cycles), *best.others)[:starts]:
        if search.runs >= effort.local_runs:
            break
        end = search.descended(*start)
        mapping, cycles = min((mapping, cycles), end, key=lambda each: each[1])
    return replace(best, mapping=mapping, cycles=cycles, least=min(best.least, cycles), run=best.run + search.runs)


class LocalSearch:
    """The cycles of mappings in a budget, each run once."""

    def __init__(self, shape: LayerShape, arch: Arch, budget: GlbBudget) -> None:
        self.shape, self.arch, self.budget = shape, arch, budget
        self.known, self.runs = dict[Mapping, int](), 0

    def cycles(self, mapping: Mapping) -> int:
        """`NEVER` for a mapping that is illegal, or does not fit."""
        if mapping not in self.known:
            self.known[mapping] = self._run(mapping) if self._fits(mapping) else NEVER
        return self.known[mapping]

    def descended(self, mapping: Mapping, cycles: int) -> tuple[Mapping, int]:
        """Where moves lead of which each takes fewer cycles, the first that is found."""
        while other := next((each for each in neighbours(mapping, self.shape) if self.is_below(each, cycles)), None):
            mapping, cycles = other, self.cycles(other)
        return mapping, cycles

    def is_below(self, mapping: Mapping, cycles: int) -> bool:
        """Whether a mapping takes fewer cycles. It is not run if its macro-instructions alone take as many."""
        return self._busy_cycles(mapping) < cycles and self.cycles(mapping) < cycles

    def _busy_cycles(self, mapping: Mapping) -> int:
        """Cycles of all macro-instructions at least: their start and finish, and the operations shared by all PEs."""
        pe, nest = self.arch.pe, Nest(self.shape, mapping)
        pes = prod(count for _, count in loops_in_space(self.shape, mapping))
        return nest.trips(DIMS, len(nest.outer)) * (pe.start_cycles + pe.finish_cycles) + self.shape.operations // pes

    def _fits(self, mapping: Mapping) -> bool:
        runs = can_run(self.shape, self.arch, mapping, self.budget.residual)
        return runs and fits_glb(self.shape, self.arch, mapping, self.budget.words)

    def _run(self, mapping: Mapping) -> int:
        self.runs += 1
        return layer_cycles(plan_in(self.budget, self.shape, mapping), self.arch)


def neighbours(mapping: Mapping, shape: LayerShape) -> Iterator[Mapping]:
    """The mappings that one move leads to. Some are illegal.

    Example, with ifmap and output streamed: h':4 > w':8 > output@glb*2 > ifmap@glb*2 > …

        a stage moves      h':4 > output@glb > w':8 > ifmap@glb*2 > …
        the ifmap first    … > ifmap@rf*2 > k||4@cols > weight@rf*2 > {…}
        a loop's step      h':4 > w':7 > output@glb*2 > ifmap@glb*2 > …
        a loop more        h':4 > w':16 > output@glb*2 > w'':8 > ifmap@glb*2 > …
    """
    blocks = next((depth for depth, loop in enumerate(mapping.loops) if loop.on or loop.keep), len(mapping.loops))
    dims = "hw" if shape.periods else "khw"
    yield from _stages_moved(mapping, blocks, shape.sizes)
    yield from _image_first(mapping, shape.sizes)
    yield from _steps_changed(mapping, blocks, dims + "c", shape.sizes)
    yield from _loops_added(mapping, dims, shape.sizes)


def _stages_moved(mapping: Mapping, blocks: int, sizes: Sizes) -> Iterator[Mapping]:
    """A stage stands elsewhere among the loops in time outside those in space, or has another number of buffers."""
    outputs = next((depth for depth in range(blocks) if mapping.loops[depth].dim in REDUCTION_DIMS), blocks)
    images = sum(loop.dim == "n" for loop in mapping.loops)  # outermost: blocks are of single images
    for moved, last in (RESULTS, outputs), (IMAGE, blocks):
        if not moved & mapping.glb_stages.keys():
            continue
        for depth, buffers in product(range(images, last + 1), (1, 2)):
            yield without_single_trips(mapping.loops, [
                replace(stage, depth=depth, buffers=buffers) if _is_of(stage, moved) else stage
                for stage in mapping.stages
            ], sizes)  # fmt: skip


def _image_first(mapping: Mapping, sizes: Sizes) -> Iterator[Mapping]:
    """The ifmap comes to PEs outside loops in space that weights come right inside of: then it does not wait for them.

    Their order in one place is fixed: weights, ifmap.
    """
    depths = mapping.file_depths
    outside = depth = depths["ifmap"]
    while outside and mapping.loops[outside - 1].on:
        outside -= 1
    if depths.get("weight") == depth:
        yield _filled_at(mapping, "ifmap", outside, sizes)


def weights_kept(mapping: Mapping, sizes: Sizes) -> Mapping | None:
    """The mapping with its weights in register files for all loops in which they serve again (LOCAL-6).

    These are loops in time over images, rows and columns. None if there is none right around the weights, or if the
    ifmap is outside of them: loops in space stand outside of one of both. Example:

        k':16 > weight@glb*2 > w':2 > ifmap@glb*2 > [c:8||4@rows k'':4||4@cols] > weight@rf*2 > …
        k':16 > weight@glb*2 > weight@rf*2 > w':2 > ifmap@glb*2 > [c:8||4@rows k'':4||4@cols] > …
    """
    inside, slices = mapping.file_depths.get("weight", 0), mapping.glb_stages.get("weight")
    outside = inside
    for depth in range(inside - 1, slices.depth - 1 if slices else -1, -1):
        loop = mapping.loops[depth]
        if not loop.on and loop.dim not in "nhw":
            break
        outside = outside if loop.on else depth
    if outside == inside or mapping.file_depths["ifmap"] < inside:
        return None
    return _filled_at(mapping, "weight", outside, sizes)


def _filled_at(mapping: Mapping, operand: str, depth: int, sizes: Sizes) -> Mapping:
    """The mapping with an operand's register files filled inside so many loops."""
    return without_single_trips(mapping.loops, [
        replace(stage, depth=depth) if (stage.operand, stage.memory) == (operand, "rf") else stage
        for stage in mapping.stages
    ], sizes)  # fmt: skip


def _steps_changed(mapping: Mapping, blocks: int, dims: str, sizes: Sizes) -> Iterator[Mapping]:
    """A loop around stages takes other steps: equal parts of what is around it, or some of the tiles inside it."""
    loops, lanes = mapping.loops, {loop.dim for loop in mapping.loops if loop.on == LANES}
    for depth, (loop, extent) in enumerate(zip(loops[:blocks], extents(sizes, loops), strict=False)):
        if loop.dim not in dims or loop.dim in lanes or loop.step == 1:  # a loop over single indices stays
            continue
        inner = _tile(loops[depth + 1 :], loop.dim)
        steps = {ceil(extent / parts) for parts in range(1, extent + 1)} | {*range(inner, extent + 1, inner)}
        ordered = sorted(step for step in steps if step >= inner)
        below = [step for step in ordered if step < loop.step][-NEAR:]
        above = [step for step in ordered if step > loop.step][:NEAR]
        for step in (*below, *above):
            yield without_single_trips(
                [*loops[:depth], replace(loop, step=step), *loops[depth + 1 :]], mapping.stages, sizes
            )


def _loops_added(mapping: Mapping, dims: str, sizes: Sizes) -> Iterator[Mapping]:
    """A loop more right outside a stage, or right inside it."""
    loops = mapping.loops
    moved = [stage for stage in mapping.stages if _is_of(stage, RESULTS | IMAGE)]
    for depth, dim in product(sorted({stage.depth for stage in moved}), dims):
        extent, inner = inside(sizes, loops[:depth])[dim], _tile(loops[depth:], dim)
        steps = {ceil(extent / parts) for parts in PARTS} | {inner * tiles for tiles in TILES}
        standing = [stage for stage in moved if stage.depth == depth]
        for step in sorted(step for step in steps if inner < step < extent):
            for inside_it in (standing, *([stage] for stage in standing if len(standing) > 1), []):
                yield without_single_trips([*loops[:depth], Loop(dim, step), *loops[depth:]], [
                    replace(stage, depth=stage.depth + 1)
                    if stage.depth > depth or (stage.depth == depth and (stage.memory == "rf" or stage in inside_it))
                    else stage
                    for stage in mapping.stages
                ], sizes)  # fmt: skip


def _tile(loops: Sequence[Loop], dim: str) -> int:
    """The step of the first of these loops over a dimension, or 1."""
    return next((loop.step for loop in loops if loop.dim == dim), 1)


def _is_of(stage: Stage, operands: frozenset[str]) -> bool:
    return stage.memory == "glb" and stage.operand in operands
