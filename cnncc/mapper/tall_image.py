"""Layers of several images: mappings of the layer whose one image has all their rows (LOCAL-5). No IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cnncc.arch.model import Arch, Energy
from cnncc.mapper.costs import cost_of
from cnncc.mapper.search import Tradeoff
from cnncc.mapper.space import without_single_trips
from cnncc.mapping.mapping import Loop, Mapping, Sizes
from cnncc.model.layer_schedule import layer_cycles, plan_in
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.legal import can_run, fits_glb


def tall_image(shape: LayerShape) -> LayerShape | None:
    """The layer with one image, of the rows of all images and none between. None for one image, and per_position."""
    sizes = shape.sizes
    if sizes.n == 1 or shape.per_position:
        return None
    return replace(shape, sizes=replace(sizes, n=1, h=sizes.n * sizes.h), ih=sizes.n * shape.ih)


def of_images(mapping: Mapping, sizes: Sizes) -> Mapping | None:
    """A mapping of the tall image as one of the images. Of its loops over h those with whole images are loops over n.

    The first of the others has a loop over single images around it. None if a tile, or what stands side by side, would
    have parts of two images. Example of 4 images of 6 rows, the tall one having 24:

        h':12 > k > h'':3 > …        n':2 > k > n'' > h:3 > …
    """
    loops, rows = list[Loop](), sizes.n * sizes.h
    depths = [0]
    for loop in mapping.loops:
        if loop.dim == "h" and loop.step % sizes.h == 0:
            rows, loop = loop.step, replace(loop, dim="n", step=loop.step // sizes.h)
        elif loop.dim == "h":
            if loop.step > sizes.h or (rows > sizes.h and (loop.on or loop.keep)):
                return None
            loops += [Loop("n")] if rows > sizes.h else []
            rows = loop.step
        loops.append(loop)
        depths.append(len(loops))
    stages = [replace(stage, depth=depths[stage.depth]) for stage in mapping.stages]
    return without_single_trips(loops, stages, sizes)


def tradeoffs(
    shape: LayerShape, arch: Arch, budget: GlbBudget, mappings: Sequence[Mapping], costs: Energy
) -> Iterator[Tradeoff]:
    """Cycles and costs of those mappings of the tall image that can be programs of the images."""
    for of_tall in mappings:
        mapping = of_images(of_tall, shape.sizes)
        if mapping and can_run(shape, arch, mapping, budget.residual) and fits_glb(shape, arch, mapping, budget.words):
            cycles = layer_cycles(plan_in(budget, shape, mapping), arch)
            yield Tradeoff(mapping, cycles, cost_of(shape, mapping, arch, budget.residual, costs))


def undominated(each: Sequence[Tradeoff]) -> tuple[Tradeoff, ...]:
    """The front of some mappings, the cheapest first: each takes fewer cycles than the one before."""
    front = list[Tradeoff]()
    for one in sorted(each, key=lambda one: (one.cost, one.cycles)):
        if not front or one.cycles < front[-1].cycles:
            front.append(one)
    return tuple(front)
