"""The output-stationary mapping of a layer: a tile for the array, and blocks around it for the GLB. No IR.

All loops, outermost first; a loop that would run once is left out:

    time    n, k                 steps 1 and K/g: an image, a group of output channels
            k, h, w  or h, w, k  steps kb, hb, wb: a block, what the GLB holds of the operands that do not lie there
            k, h, w              a tile (`os_tiles.py`)
    space   k, h, k, w           …
    time    c                    step cb: a slice of the weights
            c, r, s              …
    kept    …

What does not lie in the GLB as a whole moves through it: the ifmap is staged inside the loops over blocks that it
depends on, residual and output inside all of them. Weights and parameters are there for the whole layer where they are
a small part of the GLB, else for a block of channels at a time. Where not even a block fits, weights come in slices,
anew for every tile, and only parameters stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cnncc.arch.model import Arch
from cnncc.dialects.nest import Loop, Mapping, Stage
from cnncc.errors import Finding, Refusal
from cnncc.model.layer_shape import GlbBudget, LayerShape, buffer_sizes, inside, stage_words, whole
from cnncc.model.register_files import MACHINE_ORDER
from cnncc.passes._programs.layer_sums import has_partial_sums
from cnncc.passes._scheduling.os_tiles import Tile, kernel_columns

SMALL = 4  # what fits in this part of the GLB is small
NOTHING_FITS = 1 << 62

WHOLE, BLOCK, SLICE = "whole", "block", "slice"


class GlbTooSmall(Refusal):
    """The GLB does not have what a layer needs: `words` words would do."""

    def __init__(self, message: str, words: int, *findings: Finding) -> None:
        super().__init__(message, *findings)
        self.words = words


class StaysOut(Refusal):
    """A layer's mapping stages `operand` in the GLB, which lies there as a whole: it is to lie in DRAM."""

    def __init__(self, operand: str) -> None:
        what, help_ = f"its {operand} lies in the GLB as a whole", f"leave out {operand}@glb"
        super().__init__(f"{what}: {help_}", Finding(what, help=help_))
        self.operand = operand


@dataclass(frozen=True)
class OsPlan:
    """Steps of the loops over blocks and slices, their order, and how weights are staged, in how many buffers."""

    k: int
    h: int
    w: int
    c: int
    k_outside: bool = True
    weights: str = WHOLE
    buffers: int = 1


def glb_too_small(arch: Arch, budget: GlbBudget, least: int, smaller: str = "") -> GlbTooSmall:
    """glb.words is too small; the smallest that would do has what lies there already, and the smallest buffers.

    smaller: what of a given mapping would make these smaller.
    """
    resident = arch.glb.words - budget.words
    what, need = f"buffers of {least} words and values of {resident} words do not fit", resident + least
    return GlbTooSmall(
        f"glb.words = {arch.glb.words} of {arch.name} is too small for buffers of {least} words beside values of "
        f"{resident} words: the smallest that would do is {need}{f'; or {smaller}' if smaller else ''}",
        need,
        Finding(
            what,
            resource="glb.words",
            value=need,
            limit=arch.glb.words,
            help=f"{smaller}{', or ' if smaller else ''}an array with glb.words of at least {need}",
        ),
    )


# -- the mapping -------------------------------------------------------------------------------------------------------


def whole_plan(shape: LayerShape) -> OsPlan:
    """No blocks: everything is in the GLB for the whole layer."""
    return OsPlan(shape.tiled_together, shape.sizes.h, shape.sizes.w, shape.sizes.c)


def mapping_of(
    shape: LayerShape,
    arch: Arch,
    tile: Tile,
    plan: OsPlan,
    streamed: frozenset[str] = frozenset(),
    columns: int | None = None,
) -> Mapping:
    """The mapping in the form that the module's docstring shows, with its stages; `columns` of a kernel at a time."""
    running = those_running(shape, _all_loops(shape, tile, plan, columns or kernel_columns(shape, arch)))
    loops = tuple(loop for loop in running if loop is not None)

    def depth(place: int) -> int:
        return sum(loop is not None for loop in running[:place])

    places = _places(shape, plan, streamed)
    glb = [Stage(operand, "glb", depth(place), plan.buffers if depth(place) and operand in ("weight", "params") else 1)
           for operand, place in places]  # fmt: skip
    box = sum(not loop.keep for loop in loops)
    weight = [Stage("weight", "rf", box, arch.pe.weight_halves)] if shape.is_mac else []
    rf = [*weight, Stage("ifmap", "rf", box, arch.pe.ifmap_halves)]
    return Mapping(loops, (*sorted(glb, key=lambda stage: stage.depth), *rf))


def in_full(shape: LayerShape, arch: Arch, tile: Tile, plan: OsPlan, streamed: frozenset[str]) -> Mapping:
    """As `mapping_of`, for the words of its buffers: loops that run once are there, stages in register files are not.

    All stages have one buffer. It is quick: thousands are tried for a layer.
    """
    places = sorted(_places(shape, plan, streamed), key=lambda each: each[1])
    stages = tuple(Stage(operand, "glb", place) for operand, place in places)
    return Mapping(_all_loops(shape, tile, plan, kernel_columns(shape, arch)), stages)


def _all_loops(shape: LayerShape, tile: Tile, plan: OsPlan, columns: int) -> tuple[Loop, ...]:
    """Those that the module's docstring shows, also where they run once."""
    t, channels, pixels = tile, [_loop("k", plan.k)], [_loop("h", plan.h), _loop("w", plan.w)]
    blocks = channels + pixels if plan.k_outside else pixels + channels
    tiles = [_loop("k", t.kr * t.kc * t.p), _loop("h", t.ph), _loop("w", t.pw * t.z)]
    space = [_loop("k", t.kc * t.p, "rows"), _loop("h", 1, "rows"), _loop("k", t.p, "cols"), _loop("w", t.z, "cols")]
    slices, reduction = [_loop("c", plan.c)], [_loop("c", t.q), _loop("r", t.taps), _loop("s", columns)]
    kept = [_loop(dim, keep=True) for dim in MACHINE_ORDER[shape.channelwise]]
    outer = [_loop("n"), _loop("k", shape.tiled_together), *blocks]
    if shape.shuffle > 1:  # what a block gives belongs to all groups
        outer = [_loop("n"), *pixels, _loop("k", shape.tiled_together), *channels]
    return (*outer, *tiles, *space, *slices, *reduction, *kept)


_loop = lru_cache(maxsize=1 << 14)(Loop)  # mappings that are tried have few different ones


def those_running(shape: LayerShape, loops: Sequence[Loop]) -> list[Loop | None]:
    """`loops` with None for those that run once."""
    left = dict(vars(shape.sizes))
    running: list[Loop | None] = []
    for loop in loops:
        runs = loop.step < left[loop.dim]
        running.append(loop if runs else None)
        left[loop.dim] = min(loop.step, left[loop.dim])
    return running


def _places(shape: LayerShape, plan: OsPlan, streamed: frozenset[str]) -> list[tuple[str, int]]:
    """What is staged in the GLB, and inside how many of the loops that may run."""
    block, slices = 5, 13
    ifmap = block if plan.k_outside or shape.channelwise else block - 1
    results = block if "output" in streamed or "ifmap" not in streamed else ifmap
    if shape.shuffle > 1:
        ifmap = results = 3
    weights = {WHOLE: 0, BLOCK: 3 if plan.k_outside and shape.shuffle == 1 else block, SLICE: slices}[plan.weights]
    places = {"ifmap": ifmap, "residual": results, "output": results}
    found = [(operand, places[operand]) for operand in ("residual", "ifmap", "output") if operand in streamed]
    if shape.is_mac:
        found.append(("weight", weights))
    if shape.params and shape.per_position:
        sliced = plan.weights == BLOCK and bool(streamed) and not shape.is_mac
        found.append(("params", results if sliced else 0))
    elif shape.params:
        sliced = plan.weights == BLOCK and not streamed and shape.shuffle == 1
        found.append(("params", weights if sliced else 0))
    return found


# -- what a mapping takes ----------------------------------------------------------------------------------------------


def _stages(mapping: Mapping) -> list[Stage]:
    return [stage for stage in mapping.stages if stage.memory == "glb"]


def stage_sizes(shape: LayerShape, arch: Arch, mapping: Mapping) -> dict[str, int]:
    """Words of the buffers that the stages of a mapping fill in the GLB, by operand, and of its partial sums."""
    return buffer_sizes(shape, arch, mapping, has_partial_sums(shape, mapping.loops))


def glb_words(shape: LayerShape, arch: Arch, mapping: Mapping) -> int:
    """Words of all of these."""
    return sum(stage_sizes(shape, arch, mapping).values())


def moved_words(shape: LayerShape, arch: Arch, mapping: Mapping) -> int:
    """Words between DRAM and GLB, those of blocks at borders counted as of whole ones."""
    params, total = shape.params * arch.words_per_param, 0
    for stage in _stages(mapping):
        times, left = 1, whole(shape.sizes)
        for loop in mapping.loops[: stage.depth]:
            if not loop.on and loop.step < left[loop.dim]:
                times *= -(-left[loop.dim] // loop.step)
                left[loop.dim] = loop.step
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
    stage = next(stage for stage in _stages(mapping) if stage.operand in streamed)
    extent = shape.sizes.k
    for loop in (loop for loop in mapping.loops[: stage.depth] if loop.dim == "k"):
        if extent % loop.step:
            return False
        extent = loop.step
    return True


def one_pitch(shape: LayerShape, mapping: Mapping) -> bool:
    """Where params are per position, output and params have as many columns: a commit has one step for both."""
    if not shape.per_position:
        return True
    depth = {stage.operand: stage.depth for stage in _stages(mapping)}
    cols = {inside(shape.sizes, mapping.loops[: depth.get(operand, 0)])["w"] for operand in ("output", "params")}
    return len(cols) == 1
