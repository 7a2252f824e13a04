"""The words that mappings take of the GLB, and the refusals where it has too few. No IR."""

from __future__ import annotations

from dataclasses import replace

from cnncc.arch.model import Arch
from cnncc.errors import Finding, Refusal
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_shape import GlbBudget, LayerShape, buffer_sizes, inside, stage_words, whole
from cnncc.passes._programs.layer_sums import has_partial_sums

SMALL = 4  # what fits in this part of the GLB is small
NOTHING_FITS = 1 << 62


class GlbTooSmall(Refusal):
    """The GLB does not have what a layer needs: `words` words would do."""

    def __init__(self, message: str, words: int, *findings: Finding) -> None:
        super().__init__(message, *findings)
        self.words = words


class StaysOut(Refusal):
    """A layer's mapping stages `operand` in the GLB, which lies there as a whole: it is to lie in DRAM."""

    def __init__(self, operand: str, where: str = "") -> None:
        """The message begins with `where`."""
        what, help_ = f"its {operand} lies in the GLB as a whole", f"leave out {operand}@glb"
        super().__init__(f"{where}{what}: {help_}", Finding(what, help=help_))
        self.operand = operand


def buffers_too_large(arch: Arch, budget: GlbBudget, least: int, smaller: str = "") -> GlbTooSmall:
    """A layer's smallest buffers have `least` words, more than values leave free.

    smaller: what of a given mapping would make these smaller.
    """
    resident = arch.glb.words - budget.words
    beside = f" beside values of {resident} words" if resident else ""
    return glb_too_small(arch, f"buffers of {least} words{beside}", resident + least, smaller)


def glb_too_small(arch: Arch, content: str, words: int, smaller: str = "", where: str = "") -> GlbTooSmall:
    """glb.words is too small for some content: so many words would do, or `smaller`."""
    at, instead = f"'{where}': " if where else "", f"; or {smaller}" if smaller else ""
    return GlbTooSmall(
        f"{at}glb.words = {arch.glb.words} of {arch.name} is too small for {content}: {words} would do{instead}",
        words,
        Finding(
            f"{content} do not fit",
            where=where,
            resource="glb.words",
            value=words,
            limit=arch.glb.words,
            help=f"{smaller}{', or ' if smaller else ''}an array with glb.words of {words} or more",
        ),
    )


def stage_sizes(shape: LayerShape, arch: Arch, mapping: Mapping) -> dict[str, int]:
    """Words of the buffers that the stages of a mapping fill in the GLB, by operand, and of its partial sums."""
    return buffer_sizes(shape, arch, mapping, has_partial_sums(shape, mapping.loops))


def glb_words(shape: LayerShape, arch: Arch, mapping: Mapping) -> int:
    """Words of all of these."""
    return sum(stage_sizes(shape, arch, mapping).values())


def moved_words(shape: LayerShape, arch: Arch, mapping: Mapping) -> int:
    """Words between DRAM and GLB, those of blocks at borders counted as of whole ones."""
    params, total = shape.params * arch.words_per_param, 0
    for stage in mapping.glb_stages.values():
        times, left = 1, whole(shape.sizes)
        for loop in mapping.loops[: stage.depth]:
            if not loop.on and loop.step < left[loop.dim]:
                times *= -(-left[loop.dim] // loop.step)
                left[loop.dim] = loop.step
        # `stage_words` counts all buffers, and a transfer fills one.
        total += times * stage_words(shape, mapping.loops, stage, params) // stage.buffers
    return total


def is_small(shape: LayerShape, arch: Arch, mapping: Mapping) -> bool:
    """Whether a set of buffers takes a small part of the GLB."""
    single = Mapping(mapping.loops, tuple(replace(stage, buffers=1) for stage in mapping.stages))
    return glb_words(shape, arch, single) * SMALL <= arch.glb.words


def divides(shape: LayerShape, mapping: Mapping, budget: GlbBudget) -> bool:
    """Where only one of output and residual moves, blocks of channels are equal: a commit has one start for both."""
    streamed = budget.streamed & {"output", "residual"}
    if not budget.residual or len(streamed) != 1:
        return True
    (operand,), extent = streamed, shape.sizes.k
    for loop in (loop for loop in mapping.loops[: mapping.glb_stages[operand].depth] if loop.dim == "k"):
        if extent % loop.step:
            return False
        extent = loop.step
    return True


def one_pitch(shape: LayerShape, mapping: Mapping) -> bool:
    """Where params are per position, output and params have as many columns: a commit has one step for both."""
    if not shape.per_position:
        return True
    depth = {operand: stage.depth for operand, stage in mapping.glb_stages.items()}
    cols = {inside(shape.sizes, mapping.loops[: depth.get(operand, 0)])["w"] for operand in ("output", "params")}
    return len(cols) == 1
