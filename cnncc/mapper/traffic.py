"""What a layer takes at least by its transfers, before any mapping is looked at. No IR."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cnncc.arch.model import Arch
from cnncc.mapper.blocks import Blocks, Room, least_words
from cnncc.mapper.bound import ideal_cycles
from cnncc.mapper.layer_shape import LayerShape
from cnncc.mapper.space import forms_of
from cnncc.mapper.tiles import Tiles

NEVER = 1 << 60


class Traffic:
    """What any plan takes at least by its transfers, for all points with the same form and tiles."""

    def __init__(self, shape: LayerShape, arch: Arch, room: Room, steps: int = 0) -> None:
        """steps: of a macro-instruction, at most."""
        self.shape, self.arch, self.room = shape, arch, room
        self.held = arch.pe.ifmap_halves * (arch.pe.start_cycles + arch.pe.finish_cycles + steps)
        self.known: dict[Tiles, int] = {}

    def least(self, tiles: Tiles, least: int) -> int:
        """Cycles at least; `least`: of the array alone, for all points of which this is asked from now on."""
        overlap = self.arch.sequencer.overlap
        if tiles not in self.known:
            self.known[tiles] = self._least(tiles, least if overlap else 0)
        return self.known[tiles] + (0 if overlap else least)

    def _least(self, tiles: Tiles, least: int) -> int:
        blocks = Blocks(self.shape, self.arch, self.room, tiles)
        refills = np.maximum(0, blocks.refills() - np.maximum(blocks.images - 1, 0) * self.held)
        best = NEVER
        for stage in blocks.stages():
            words = (blocks.moved + stage.words - stage.buffer) // self.arch.dram.words_per_cycle
            cycles = np.where(blocks.fits(stage), np.maximum(words, least + refills), NEVER)
            best = min(best, int(cycles.min()))
        return best


@lru_cache(maxsize=1 << 14)
def cycles_about(shape: LayerShape, arch: Arch, room: Room) -> int:
    """Cycles of a layer, all multipliers busy, unless its transfers take longer: with tiles of a usual size.

    No bound, as other tiles may take less; NEVER where there is no room. In a millisecond, to compare rooms.
    """
    sizes = shape.sizes
    if shape.kind == "copy":
        return len(room.moving) * sizes.n * sizes.k * sizes.h * sizes.w // arch.dram.words_per_cycle
    ideal = ideal_cycles(shape, arch)
    if least_words(shape, arch, room) > room.words:
        return NEVER
    traffic = Traffic(shape, arch, room)
    k, c = min(2 * arch.cols, sizes.k), min(2 * arch.rows, sizes.c)
    tiles = (Tiles(form, k, 1, 1, c) for form in forms_of(shape))
    return min(traffic.least(each, ideal) for each in tiles)
