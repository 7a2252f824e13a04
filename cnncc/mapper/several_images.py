"""Layers of several images: mappings whose loops over them stand where those of the space do not (LOCAL-5). No IR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cnncc.mapper.space import without_single_trips
from cnncc.mapping.mapping import Loop, Mapping, Sizes
from cnncc.model.layer_shape import LayerShape


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


def images_inside(mapping: Mapping, sizes: Sizes) -> Iterator[Mapping]:
    """The mapping with its loop over n further in, at all places from weight@rf to ifmap@rf: slices come once for all.

    n > h':4 > k':8 > weight@rf*2 > ifmap@rf*2 > …        h':4 > k':8 > weight@rf*2 > n > ifmap@rf*2 > …
    """
    numbers = [number for number, loop in enumerate(mapping.loops) if loop.dim == "n"]
    files = {stage.operand: at for at, stage in enumerate(mapping.stages) if stage.memory == "rf"}
    if len(numbers) != 1 or len(files) < 2 or mapping.stages[files["weight"]].depth <= numbers[0]:
        return
    number, weight = numbers[0], files["weight"]
    loops = [*mapping.loops[:number], *mapping.loops[number + 1 :]]
    stages = [replace(stage, depth=stage.depth - (stage.depth > number)) for stage in mapping.stages]
    for place in range(stages[weight].depth, stages[files["ifmap"]].depth + 1):
        # Of stages in one place those behind the weights' move inside the loop over n.
        depths = [
            each.depth + (each.depth > place or (each.depth == place and at > weight)) for at, each in enumerate(stages)
        ]
        moved = [replace(stage, depth=depth) for stage, depth in zip(stages, depths, strict=True)]
        yield without_single_trips([*loops[:place], mapping.loops[number], *loops[place:]], moved, sizes)
