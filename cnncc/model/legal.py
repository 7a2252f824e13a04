"""Legality of a mapping beyond its space: enough loop registers, two buffers that alternate. No IR."""

from __future__ import annotations

from functools import cache

from cnncc.arch.model import LOOP_REGISTERS, Arch
from cnncc.dialects._mapping import DIMS, Mapping
from cnncc.model.layer_shape import LayerShape
from cnncc.model.register_files import file_words
from cnncc.model.routes import Nest


def is_legal(shape: LayerShape, mapping: Mapping, residual: bool) -> bool:
    """Whether a mapping of the space has a register for each loop, and two buffers only if they alternate.

    If one of residual and output is streamed and the other is not, a commit has one start position for both. Then no
    block of the image and no slice of weights is prefetched across an iteration of a loop over n or k.
    """
    staged = mapping.glb_stages
    outside = mapping.loops[: staged["output"].depth] if "output" in staged else ()
    if shape.shuffle > 1 and any(loop.dim == "k" for loop in outside):  # a block's results belong to all groups
        return False
    if residual and ("residual" in staged) != ("output" in staged):
        alone = staged["residual" if "residual" in staged else "output"]
        doubled = max((stage.depth for stage in staged.values() if stage.buffers > 1), default=0)
        outer = [loop for loop in mapping.loops if not loop.keep]
        if any(loop.dim in "nk" for loop in outer[:doubled]) or (alone.buffers > 1 and shape.sizes.n > 1):
            return False
    if sum(not (loop.on or loop.keep) for loop in mapping.loops) > LOOP_REGISTERS:
        return False
    turns = {stage.depth for stage in staged.values() if stage.buffers > 1}
    return all(alternates(shape, mapping, depth) for depth in turns)


def fits_register_files(shape: LayerShape, arch: Arch, mapping: Mapping) -> bool:
    """Whether a mapping of the space fits the register files. With ping and pong, this depends on its blocks too."""
    if not arch.pe.pong_words:
        return True
    words = file_words(shape, arch, mapping.loops, mapping.stages)
    return all(needed <= getattr(arch.pe, key) for key, needed in words.items())


def alternates(shape: LayerShape, mapping: Mapping, staged: int) -> bool:
    """Whether the blocks inside `staged` loops alternate between two buffers.

    A loop's `step` fixes the buffer in which an iteration begins. So all unrolled copies of the loop's body must have
    an even number of blocks, or all an odd one.
    """
    nest, parities = Nest(shape, mapping), dict[int, set[int]]()

    @cache
    def blocks(depth: int, extents: tuple[int, ...]) -> int:
        """Blocks in the loops from `depth` on."""
        if depth == staged:
            return 1
        loop, total = nest.outer[depth], 0
        place = DIMS.index(loop.dim)
        for count, size, _ in nest.pieces(depth, extents[place]):
            inner = blocks(depth + 1, (*extents[:place], size, *extents[place + 1 :]))
            if count > 1 and not loop.on:
                parities.setdefault(depth, set()).add(inner % 2)
            total += inner if loop.on else count * inner
        return total

    blocks(0, tuple(shape.sizes.of(dim) for dim in DIMS))
    return all(len(of_loop) == 1 for of_loop in parities.values())
