"""The loops and stages that tiles and blocks in numbers mean: output stationary, always in this order. No IR.

All loops, outermost first; a loop that would run once is left out:

    time    n, k                 steps 1 and K/g: an image, a group of output channels
            k, h, w  or h, w, k  steps kb, hb, wb: a block, what the GLB holds of the operands that are streamed
            k, h, w              steps kr*kc*p, ph, pw*z: what the array holds at a time
    space   k, h on rows         kr sets of kc*p channels, of ph PEs
            k, w on columns      kc sets of p channels, of pw PEs
    time    c                    step cb: a slice of the weights
            c, r, s              steps q, taps, S: what a half of the register files holds
    kept    [w] s c r k  (or [w] k s r, below)   z pixels, S columns, q channels, taps kernel rows, p sums of a PE

What is not resident is streamed: the ifmap is staged inside the loops over blocks that it depends on, residual and
output inside all of them. Weights and parameters come as a whole, or for a block of channels, or weights in slices.

Pools and depthwise convolutions are *channelwise*: every output channel has input channels of its own. There is no loop
over groups then; c is not kept (q = 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cnncc.arch.model import Arch
from cnncc.mapper.space import StagePlace
from cnncc.mapping.mapping import Loop, Mapping, Stage
from cnncc.model.layer_shape import LayerShape
from cnncc.model.register_files import MACHINE_ORDER, most_channels

WHOLE, BLOCK, SLICE = "whole", "block", "slice"
IN_SLICE = StagePlace.IN_BLOCK + 8  # inside three loops over tiles, four in space, and that over slices of c


@dataclass(frozen=True)
class Tile:
    """The numbers of a mapping, as the module's docstring names them."""

    ph: int
    pw: int
    kr: int
    kc: int
    p: int
    q: int
    taps: int
    z: int = 1


@dataclass(frozen=True)
class OutputStationaryPlan:
    """Steps of the loops over blocks and slices, their order, and how weights are staged, in how many buffers."""

    k: int
    h: int
    w: int
    c: int
    k_outside: bool = True
    weights: str = WHOLE
    buffers: int = 1


@lru_cache(maxsize=4096)
def kernel_columns(layer: LayerShape, arch: Arch) -> int:
    """Kernel columns of a macro-instruction: all, or an even part where a row is too long for the files of a PE."""
    even = dict.fromkeys(-(-layer.sizes.s // parts) for parts in range(1, layer.sizes.s + 1))
    return next(s for s in even if most_channels(layer, arch, {"k": 1, "w": 1, "r": 1, "s": s}))


def mapping_of(
    shape: LayerShape,
    arch: Arch,
    tile: Tile,
    plan: OutputStationaryPlan,
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


def _all_loops(shape: LayerShape, tile: Tile, plan: OutputStationaryPlan, columns: int) -> tuple[Loop, ...]:
    """All loops of the module's docstring, with those that run once."""
    t, channels, pixels = tile, [Loop("k", plan.k)], [Loop("h", plan.h), Loop("w", plan.w)]
    blocks = channels + pixels if plan.k_outside else pixels + channels
    tiles = [Loop("k", t.kr * t.kc * t.p), Loop("h", t.ph), Loop("w", t.pw * t.z)]
    space = [Loop("k", t.kc * t.p, "rows"), Loop("h", 1, "rows"), Loop("k", t.p, "cols"), Loop("w", t.z, "cols")]
    slices, reduction = [Loop("c", plan.c)], [Loop("c", t.q), Loop("r", t.taps), Loop("s", columns)]
    kept = [Loop(dim, keep=True) for dim in MACHINE_ORDER[shape.channelwise]]
    outer = [Loop("n"), Loop("k", shape.tiled_together), *blocks]
    if shape.shuffle > 1:  # what a block gives belongs to all groups
        outer = [Loop("n"), *pixels, Loop("k", shape.tiled_together), *channels]
    return (*outer, *tiles, *space, *slices, *reduction, *kept)


def those_running(shape: LayerShape, loops: Sequence[Loop]) -> list[Loop | None]:
    """`loops` with None for those that run once."""
    left = dict(vars(shape.sizes))
    running: list[Loop | None] = []
    for loop in loops:
        runs = loop.step < left[loop.dim]
        running.append(loop if runs else None)
        left[loop.dim] = min(loop.step, left[loop.dim])
    return running


def _places(shape: LayerShape, plan: OutputStationaryPlan, streamed: frozenset[str]) -> list[tuple[str, int]]:
    """What is staged in the GLB, and inside how many of the loops that may run."""
    block = StagePlace.IN_BLOCK
    # Blocks of channels inside those of rows and columns read the same part of the image.
    ifmap = block if plan.k_outside or shape.channelwise else StagePlace.IN_IMAGE_BLOCK
    # A residual without an output comes where the ifmap does: `LayerTransfers` has tokens for nothing else.
    results = block if "output" in streamed or "ifmap" not in streamed else ifmap
    if shape.shuffle > 1:
        ifmap = results = StagePlace.IN_SHUFFLED_BLOCK
    of_block = StagePlace.IN_K_BLOCK if plan.k_outside and shape.shuffle == 1 else block
    weights = {WHOLE: StagePlace.OUTSIDE, BLOCK: of_block, SLICE: IN_SLICE}[plan.weights]
    places = {"ifmap": ifmap, "residual": results, "output": results}
    staged: list[tuple[str, int]] = [
        (operand, places[operand]) for operand in ("residual", "ifmap", "output") if operand in streamed
    ]
    if shape.is_mac:
        staged.append(("weight", weights))
    if shape.params and shape.per_position:
        sliced = plan.weights == BLOCK and bool(streamed) and not shape.is_mac
        staged.append(("params", results if sliced else StagePlace.OUTSIDE))
    elif shape.params:
        # `LayerTransfers` refuses slices of params beside streamed operands, and shuffled.
        sliced = plan.weights == BLOCK and not streamed and shape.shuffle == 1
        staged.append(("params", weights if sliced else StagePlace.OUTSIDE))
    return staged
