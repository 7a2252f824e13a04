"""Whether a mapping can be a program: PEs, loop registers, register files, GLB words, tokens, buffers. No IR."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

from cnncc.arch.model import LOOP_REGISTERS, Arch
from cnncc.errors import Refusal
from cnncc.mapping.mapping import AXES, DIMS, LANES, REDUCTION_DIMS, Loop, Mapping, extents
from cnncc.model.layer_shape import MOST_IMAGES, LayerShape, buffer_words, inside, stage_block, whole
from cnncc.model.loop_walk import MOST_BODIES, WalkOrder, WalkPosition
from cnncc.model.register_files import file_words, held_extents
from cnncc.model.routes import Nest


def is_legal(shape: LayerShape, mapping: Mapping, residual: bool) -> bool:
    """Whether a mapping of the space has a register for each loop, and two buffers only if they alternate.

    If one of residual and output is streamed and the other is not, a commit has one start position for both. Then no
    block of the image and no slice of weights is prefetched across an iteration of a loop over n or k. Blocks of k are
    equal, and have one image.

    If neither is streamed, and their images lie at different distances, loops over n only step through views: in time,
    in equal parts, outside what PEs hold, and without blocks that are prefetched across their iterations.
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
        if inside(shape.sizes, mapping.loops[: alone.depth])["n"] > 1:
            return False
        blocks = [shape.sizes.k, *(loop.step for loop in mapping.loops[: alone.depth] if loop.dim == "k")]
        if any(extent % step for extent, step in pairwise(blocks)):
            return False
    if (
        shape.residual_apart
        and not {"residual", "output"} & staged.keys()
        and not _steps_through_images(shape, mapping)
    ):
        return False
    if sum(not (loop.on or loop.keep) for loop in mapping.loops) > LOOP_REGISTERS:
        return False
    turns = {stage.depth for stage in staged.values() if stage.buffers > 1}
    return all(alternates(shape, mapping, depth) for depth in turns)


def _steps_through_images(shape: LayerShape, mapping: Mapping) -> bool:
    """Whether every commit starts in the first image, and loops over n move the views of residual and output."""
    over = [(number, loop) for number, loop in enumerate(mapping.loops) if loop.dim == "n"]
    doubled = max((stage.depth for stage in mapping.glb_stages.values() if stage.buffers > 1), default=0)
    held = mapping.file_depths.get("ifmap", 0)
    parts = [shape.sizes.n, *(loop.step for _, loop in over)]
    if any(loop.on or loop.keep or not doubled <= number < held for number, loop in over):
        return False
    return not any(extent % step for extent, step in pairwise(parts))


def can_run(shape: LayerShape, arch: Arch, mapping: Mapping, residual: bool) -> bool:
    """Whether any mapping can be a program, in a GLB that is large enough."""
    places = has_tokens(mapping) and has_place_of_params(shape, mapping)
    orders = is_legal(shape, mapping, residual) and places and has_few_bodies(shape, mapping)
    few = has_few_transfers(shape, mapping)
    return orders and few and fits_array(shape, arch, mapping) and loads_are_even(shape, mapping)


def fits_register_files(shape: LayerShape, arch: Arch, mapping: Mapping) -> bool:
    """Whether a mapping of the space fits the register files. With ping and pong, this depends on its blocks too."""
    return not arch.pe.pong_words or fits_array(shape, arch, mapping)


def fits_array(shape: LayerShape, arch: Arch, mapping: Mapping) -> bool:
    """Whether any mapping has no more PEs than there are, fits their register files, and has few enough pixels."""
    counts, most = loops_in_space(shape, mapping), {"rows": arch.rows, "cols": arch.cols, LANES: arch.pe.lanes}
    if any(prod(count for loop, count in counts if loop.on == axis) > most[axis] for axis in AXES):
        return False
    outer = [loop for loop in mapping.loops if not loop.keep]
    held = held_extents(shape, outer, len(outer))
    words = file_words(shape, arch, mapping.loops, mapping.stages)
    return held["h"] * held["w"] <= arch.pe.max_pixels and all(words[key] <= getattr(arch.pe, key) for key in words)


def fits_glb(shape: LayerShape, arch: Arch, mapping: Mapping, words: int) -> bool:
    """Whether all buffers, and the partial sums if there are any, take at most so many words."""
    return buffer_words(shape, arch, mapping, Nest(shape, mapping).has_partial_sums()) <= words


def loops_in_space(shape: LayerShape, mapping: Mapping) -> list[tuple[Loop, int]]:
    """The loops in space, and the iterations of each, a rest counted as one."""
    around = zip(extents(shape.sizes, mapping.loops), mapping.loops, strict=True)
    return [(loop, -(-extent // loop.step)) for extent, loop in around if loop.on]


def has_tokens(mapping: Mapping) -> bool:
    """Whether the tokens of the GLB can order the blocks of any mapping: their stages stand where these expect them.

    - weights and ifmap come into the GLB outside the place where they come into register files (NEST-3)
    - residual and output stand at one place, or else residual and ifmap. The residual has no more buffers.
    - the ifmap has two buffers inside the blocks of the output
    - inside a loop over c, r or s loads say that its buffers are free: it has two, and no output is inside
    """
    staged = mapping.glb_stages
    if any(staged[operand].depth > depth for operand, depth in mapping.file_depths.items() if operand in staged):
        return False
    ifmap, residual, output = (staged.get(operand) for operand in ("ifmap", "residual", "output"))
    beside = output or ifmap
    if residual and beside and (residual.depth != beside.depth or residual.buffers > beside.buffers):
        return False
    if ifmap is None or (ifmap.buffers > 1 and (output is None or ifmap.depth > output.depth)):
        return True
    around = mapping.loops[: ifmap.depth]
    return not (any(loop.dim in REDUCTION_DIMS for loop in around) or (output and ifmap.depth > output.depth))


def has_place_of_params(shape: LayerShape, mapping: Mapping) -> bool:
    """Whether parameters stand in the GLB where their tokens, and positions in the output, expect them (LEGAL-5).

    - slices come with and as those of weights, if there are any. Nothing is streamed, and no channels are shuffled.
    - per position they may come with the blocks that are streamed, as the ifmap does, if there are no weights
    - per position they have the columns of the output's blocks, and steps of h and w around these divide each other
    """
    staged = mapping.glb_stages
    params, weight, output = (staged.get(operand) for operand in ("params", "weight", "output"))
    streamed = [staged[operand] for operand in ("ifmap", "residual", "output") if operand in staged]
    if params is None:
        return True
    if not shape.per_position:
        alike = weight is None or (weight.depth, weight.buffers) == (params.depth, params.buffers)
        return not params.depth or (not streamed and shape.shuffle == 1 and alike)
    if params.depth and (weight or any(stage.depth != params.depth for stage in streamed)):
        return False
    if params.depth and (ifmap := staged.get("ifmap")) and ifmap.buffers != params.buffers:
        return False
    outside = mapping.loops[: output.depth if output else 0]
    columns = (inside(shape.sizes, loops)["w"] for loops in (outside, mapping.loops[: params.depth]))
    steps = {dim: [loop.step for loop in outside if loop.dim == dim] for dim in "hw"}
    divide = all(step % each[-1] == 0 for each in steps.values() for step in each)
    return divide and len(set(columns)) == 1


def loads_are_even(shape: LayerShape, mapping: Mapping) -> bool:
    """Whether loads outside loops in space bring all PEs equal parts."""
    nest = Nest(shape, mapping)
    try:
        for depth, dim in product(set(mapping.file_depths.values()), DIMS):
            nest.spread(dim, depth)
    except Refusal:
        return False
    return True


def has_few_bodies(shape: LayerShape, mapping: Mapping) -> bool:
    """Whether loops that are peeled around two buffers take few enough copies of loop bodies."""
    stages = mapping.glb_stages.values()
    # GLB-3: nothing is peeled for a block that leaves.
    peeled = max((stage.depth for stage in stages if stage.buffers > 1 and stage.operand != "output"), default=0)
    # LEGAL-3: no search tries a mapping in which a loop in time steps through what PEs hold. So none is unrolled.
    order = WalkOrder(Nest(shape, mapping), frozenset(), peeled)
    return order.bodies_of(WalkPosition(whole(shape.sizes)), 0, peeled) <= MOST_BODIES


def has_few_transfers(shape: LayerShape, mapping: Mapping) -> bool:
    """Whether no block has parts of more images than it may have transfers."""
    activations = (stage for operand, stage in mapping.glb_stages.items() if operand not in ("weight", "params"))
    blocks = ((stage.operand, stage_block(shape, mapping.loops, stage)) for stage in activations)
    return all(block.transfers(shape.channels_of(operand)) <= MOST_IMAGES for operand, block in blocks)


def alternates(shape: LayerShape, mapping: Mapping, stage_depth: int) -> bool:
    """Whether the blocks inside `stage_depth` loops alternate between two buffers.

    A loop's `step` fixes the buffer in which an iteration begins. So all unrolled copies of the loop's body must have
    an even number of blocks, or all an odd one.
    """
    blocks = _Blocks(Nest(shape, mapping), stage_depth)
    blocks.count(0, tuple(shape.sizes.of(dim) for dim in DIMS))
    return all(len(of_loop) == 1 for of_loop in blocks.parities.values())


class _Blocks:
    """The blocks in the loops outside `stage_depth`, and whether an iteration of each loop has an odd number."""

    def __init__(self, nest: Nest, stage_depth: int) -> None:
        self.nest, self.stage_depth = nest, stage_depth
        self.parities: dict[int, set[int]] = {}
        self.known: dict[tuple[int, ...], int] = {}

    def count(self, depth: int, extents: tuple[int, ...]) -> int:
        """Blocks in the loops from `depth` on."""
        if depth == self.stage_depth:
            return 1
        if (key := (depth, *extents)) in self.known:
            return self.known[key]
        loop, total = self.nest.outer[depth], 0
        place = DIMS.index(loop.dim)
        for count, size, _ in self.nest.pieces(depth, extents[place]):
            inner = self.count(depth + 1, (*extents[:place], size, *extents[place + 1 :]))
            if count > 1 and not loop.on:
                self.parities.setdefault(depth, set()).add(inner % 2)
            # A piece of a loop in space is one block, for all its PEs (GLB-1).
            total += inner if loop.on else count * inner
        self.known[key] = total
        return total
