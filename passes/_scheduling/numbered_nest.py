"""The loops and stages that tiles and blocks in numbers mean: output stationary, always in this order. No IR.

All loops, outermost first; a loop that would run once is left out:

    time    n, k                 steps 1 and K/g: an image, a group of output channels
            k, h, w              steps kb, hb, wb: a block, what the GLB holds of the operands that are streamed
            k, h, w              steps kr*kc*p, ph, pw*z: what the array holds at a time
    space   k, h on rows         kr sets of kc*p channels, of ph PEs
            k, w on columns      kc sets of p channels, of pw PEs
    time    c                    step cb: a slice of the weights
            c, r, s              steps q, taps, S: what a half of the register files holds
    kept    [w] s c r k  (or [w] k s r, below)   z pixels, S columns, q channels, taps kernel rows, p sums of a PE

Ifmap, residual and output are resident, or staged inside the loops over blocks. Weights and parameters come as a whole,
or for a block of channels, or weights in slices. Where channels are shuffled, blocks have all groups: h and w stand
around the loops over k.

Pools and depthwise convolutions are *channelwise*: every output channel has input channels of its own. There is no loop
over groups then; c is not kept (q = 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnncc.arch.model import Arch
from cnncc.mapper.space import StagePlace
from cnncc.mapping.mapping import Loop, Mapping, Stage
from cnncc.model.layer_shape import LayerShape
from cnncc.model.register_files import MACHINE_ORDER

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
    """Steps of the loops over blocks and slices, and how weights are staged, in how many buffers."""

    k: int
    h: int
    w: int
    c: int
    weights: str = WHOLE
    buffers: int = 1


def mapping_of(
    shape: LayerShape,
    arch: Arch,
    tile: Tile,
    plan: OutputStationaryPlan,
    columns: int,
    streamed: frozenset[str] = frozenset(),
) -> Mapping:
    """The mapping in the form that the module's docstring shows, with its stages; `columns` of a kernel at a time."""
    running = those_running(shape, _all_loops(shape, tile, plan, columns))
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
    t, channels = tile, [Loop("k", shape.tiled_together), Loop("k", plan.k)]
    pixels = [Loop("h", plan.h), Loop("w", plan.w)]
    blocks = [*channels, *pixels] if shape.shuffle == 1 else [*pixels, *channels]
    tiles = [Loop("k", t.kr * t.kc * t.p), Loop("h", t.ph), Loop("w", t.pw * t.z)]
    space = [Loop("k", t.kc * t.p, "rows"), Loop("h", 1, "rows"), Loop("k", t.p, "cols"), Loop("w", t.z, "cols")]
    slices, reduction = [Loop("c", plan.c)], [Loop("c", t.q), Loop("r", t.taps), Loop("s", columns)]
    kept = [Loop(dim, keep=True) for dim in MACHINE_ORDER[shape.channelwise]]
    return (Loop("n"), *blocks, *tiles, *space, *slices, *reduction, *kept)


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
    block, of_channels = StagePlace.IN_BLOCK, StagePlace.IN_K_BLOCK
    if shape.shuffle > 1:
        block, of_channels = StagePlace.IN_SHUFFLED_BLOCK, StagePlace.IN_BLOCK
    weights = {WHOLE: StagePlace.OUTSIDE, BLOCK: of_channels, SLICE: IN_SLICE}[plan.weights]
    staged: list[tuple[str, int]] = [
        (operand, block) for operand in ("residual", "ifmap", "output") if operand in streamed
    ]
    if shape.is_mac:
        staged.append(("weight", weights))
    if shape.params:
        # `LayerTransfers` refuses slices of params beside streamed operands, shuffled, and per position beside weights.
        sliced = plan.weights == BLOCK and not streamed and shape.shuffle == 1 and not shape.per_position
        staged.append(("params", weights if sliced else StagePlace.OUTSIDE))
    return staged
