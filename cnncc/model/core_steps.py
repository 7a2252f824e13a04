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
the result of the frame `lag` before out. Images and results have two buffers each. So an image's token says that
all weights are there, too, and nothing but loads of weights waits for them.

The lowering and the cost model share this, as they do `group_steps.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cnncc.dialects._channels import BUFFERS as BUFFERS
from cnncc.dialects._channels import Channel, EndTokens
from cnncc.dialects._groups import GroupLayer, Read
from cnncc.dialects._mapping import Loop, Mapping
from cnncc.errors import Refusal
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.group_steps import ChannelEnds

FRAMES = 2  # that layers are taken to have: their loop over frames has a first, a last, and further iterations
OF_DMA = (Semaphore.IFMAP_FULL, Semaphore.INPUT_FREE, Semaphore.OUTPUT_FULL, Semaphore.OUTPUT_FREE)


def weight_semaphores(cores: int) -> list[Semaphore]:
    """The semaphores of core 0 by which it tells each core with PEs that weights have arrived. Raises Refusal."""
    others = [semaphore for semaphore in Semaphore if semaphore and semaphore not in OF_DMA]
    if cores > len(others):
        raise Refusal(f"{cores} cores with weights, core 0 has semaphores for {len(others)}: put more layers on a core")
    return others[:cores]


def over_frames(layers: Sequence[GroupLayer]) -> list[GroupLayer]:
    """The layers of a core with a loop over frames around each: as a group that runs image by image."""
    return [replace(layer, sizes=replace(layer.sizes, n=FRAMES), mapping=_with_loop(layer.mapping)) for layer in layers]


def _with_loop(mapping: Mapping) -> Mapping:
    """With a loop over images around; what comes once for all of them still does."""
    stages = [stage if not stage.depth else replace(stage, depth=stage.depth + 1) for stage in mapping.stages]
    return Mapping((Loop("n"), *mapping.loops), tuple(stages))


def channel_ends(
    groups: Sequence[Sequence[GroupLayer]], channels: Sequence[Channel], image: Read, height: int
) -> list[ChannelEnds]:
    """The tokens of the two channels of each group. image: how the first layer reads the image of so many rows.

    The image of a frame is there when its first stripe begins, and free when its last reader is done.
    """
    first, last = groups[0][0], groups[-1][-1]
    rows = [first.reads_of_stripe(image, stripe, height) for stripe in range(first.stripes)]
    reading = [stripe for stripe, (low, end) in enumerate(rows) if end > low]
    of_image = EndTokens(frozenset({reading[0]}), frozenset({reading[-1]}))
    of_result = EndTokens(frozenset({0}), frozenset({last.stripes - 1}))
    firsts = [of_image, *(EndTokens(channel.full.takes, channel.free.gives) for channel in channels)]
    lasts = [*(EndTokens(channel.free.takes, channel.full.gives) for channel in channels), of_result]
    return [ChannelEnds(*ends) for ends in zip(firsts, lasts, strict=True)]
