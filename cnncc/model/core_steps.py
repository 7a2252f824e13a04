"""What the cores of a chain run: their groups frame after frame, and the tokens of their channels. No IR.

Core 0 has the DMA and no PEs. Core number i, from 1 on, runs group i - 1 of the chain. Each core has the same
semaphores, so that a route leads from one name to another:

    core           takes                                      gives
    0              INPUT_FREE   a buffer for an image         IFMAP_FULL   an image is there     -> first core
                   OUTPUT_FULL  a result is complete          OUTPUT_FREE  a result has left     -> last core
                                                              of `weight_semaphores`             -> each core's FULL
    1, 2, …        FULL         weights have arrived          IFMAP_FREE   slots are read        -> core before
                   IFMAP_FULL   rows are there                OUTPUT_FULL  rows are written      -> core behind
                   OUTPUT_FREE  slots are free

The program of core 0: the weights and params of all groups, one after the other; then, for each frame, the image in and
the result of the frame `lag` before out. So an image's token says that all weights are there, too, and nothing but
loads of weights waits for them.

Core 0 runs `lag` iterations more than there are frames. In the first ones it takes away no result: it has `lag` tokens
of OUTPUT_FULL at first. In exchange it gives space for `lag` results, and the last core has the other tokens of
OUTPUT_FREE. In the last iterations it brings no image, but takes INPUT_FREE all the same. So there are at least `lag`
buffers, and at least two.

The lowering and the cost model share this, as they do `group_steps.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cnncc.array_instructions import TokenRoute
from cnncc.errors import Refusal
from cnncc.mapping.channels import Link, buffers
from cnncc.mapping.groups import GroupLayer
from cnncc.mapping.mapping import Loop, Mapping
from cnncc.model.glb_tokens import S, Semaphore

FRAMES = 2  # that layers are taken to have: their loop over frames has a first, a last, and further iterations
OF_DMA = (S.IFMAP_FULL, S.INPUT_FREE, S.OUTPUT_FULL, S.OUTPUT_FREE)


def weight_semaphores(cores: int) -> list[Semaphore]:
    """The semaphores of core 0 by which it tells each core with PEs that weights have arrived. Raises Refusal."""
    others = [semaphore for semaphore in Semaphore if semaphore and semaphore not in OF_DMA]
    if cores > len(others):
        raise Refusal(f"{cores} cores with weights, core 0 has semaphores for {len(others)}: put more layers on a core")
    return others[:cores]


def first_tokens(links: Sequence[Link], lag: int) -> list[dict[Semaphore, int]]:
    """The tokens that each core has at first, by its number. links: those between cores with PEs."""
    free = [*(link.primed for link in links), buffers(lag) - lag]
    of_cores = [{S.OUTPUT_FREE: count} if count else dict[Semaphore, int]() for count in free]
    return [{S.INPUT_FREE: buffers(lag), S.OUTPUT_FULL: lag}, *of_cores]


def core_routes(with_weights: Sequence[bool]) -> list[list[TokenRoute]]:
    """The routes of each core, by its number. with_weights: of each core with PEs."""
    last, weights = len(with_weights), weight_semaphores(len(with_weights))
    of_dma = [TokenRoute(S.IFMAP_FULL, 1, S.IFMAP_FULL), TokenRoute(S.OUTPUT_FREE, last, S.OUTPUT_FREE)]
    of_dma += [TokenRoute(own, at, S.FULL) for at, own in enumerate(weights, 1) if with_weights[at - 1]]
    routes = [of_dma]
    for number in range(1, last + 1):
        before = TokenRoute(S.IFMAP_FREE, number - 1, S.OUTPUT_FREE if number > 1 else S.INPUT_FREE)
        # Behind the last core comes core 0, which takes the results away.
        behind = TokenRoute(S.OUTPUT_FULL, (number + 1) % (last + 1), S.IFMAP_FULL if number < last else S.OUTPUT_FULL)
        routes.append([before, behind])
    return routes


def waits_on_core(layers: Sequence[GroupLayer]) -> list[bool]:
    """Whether each layer of a core waits for its weights. Raises Refusal for what only a DMA could bring."""
    staged = [layer.mapping.glb_stages for layer in layers]
    for layer, stages in zip(layers, staged, strict=True):
        if others := sorted(stages.keys() - {"weight", "params"}):
            raise Refusal(
                f"layer {layer.label} stages {' and '.join(others)} in glb: on a core values come by channels and "
                f"rings, and weights and params alone by the DMA"
            )
        if inside := [operand for operand, stage in stages.items() if stage.depth]:
            raise Refusal(f"layer {layer.label} stages {inside[0]} in glb inside loops: on a core it comes once")
    return ["weight" in stages for stages in staged]


def over_frames(layers: Sequence[GroupLayer], frames: int = FRAMES) -> list[GroupLayer]:
    """The layers of a core with a loop over frames around each: as a group that runs image by image.

    frames: as many as there are buffers of results, FRAMES or more.
    """
    return [replace(layer, sizes=replace(layer.sizes, n=frames), mapping=_with_loop(layer.mapping)) for layer in layers]


def _with_loop(mapping: Mapping) -> Mapping:
    """With a loop over images around; what comes once for all of them still does."""
    stages = [stage if not stage.depth else replace(stage, depth=stage.depth + 1) for stage in mapping.stages]
    return Mapping((Loop("n"), *mapping.loops), tuple(stages))
