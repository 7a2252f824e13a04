"""The search for the output-stationary mapping of a layer: tiles, and for each of them plans. No IR.

What a tile and a plan are, and what they take: `os_tiles.py`, `os_plan.py`. Candidates are tried in the order of the
cycles that they take at least, until no other one can be better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.dialects.nest import Loop, Mapping, Stage
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling.os_plan import (
    BLOCK,
    NOTHING_FITS,
    SLICE,
    WHOLE,
    OsPlan,
    divides,
    glb_too_small,
    glb_words,
    in_full,
    is_small,
    mapping_of,
    moved_words,
    one_pitch,
    those_running,
    whole_plan,
)
from cnncc.passes._scheduling.os_tiles import Tile, array_cycles, best_tile, good_tiles, loaded_words

TILES = 12  # of those that are good for the array, the ones for which blocks are tried
MOST_WORDS = (1 << 16) - 1  # that a commit streams from one channel (a field's width)
LEAST = Tile(ph=1, pw=1, kr=1, kc=1, p=1, q=1, taps=1)  # fits wherever anything does


@lru_cache(maxsize=4096)
def os_mapping(shape: LayerShape, arch: Arch, budget: GlbBudget) -> Mapping:
    """The mapping that takes the array the fewest cycles, and moves little. Raises Refusal where none fits.

    Why blocks come second: they decide how long the DMA is busy, which waits for the array as the array waits for it.
    """
    tile = best_tile(shape, arch)
    if not budget.streamed:
        resident = [mapping_of(shape, arch, tile, plan) for plan in _resident_plans(shape, tile)]
        small = [mapping for mapping in resident if is_small(shape, arch, mapping)]
        for mapping in (*small, resident[-1]):
            if glb_words(shape, arch, mapping) <= budget.words:
                return mapping
    return least_cycles(shape, arch, budget)


class _Candidate(NamedTuple):
    """A tile and a plan: the cycles that they take at least, their number, and the cycles of the array."""

    least: int
    number: int
    array: int
    tile: Tile
    plan: OsPlan


def least_cycles(shape: LayerShape, arch: Arch, budget: GlbBudget) -> Mapping:
    """The candidate that takes the array and the DMA the fewest cycles together, of these the first. Raises NoRoom."""
    best: tuple[int, int] | None = None
    found: Mapping | None = None
    words = NOTHING_FITS
    for each in sorted(_candidates(shape, arch, budget)):
        if best and each[:2] > best:
            break  # neither this one nor any after it is better
        mapping = in_full(shape, arch, each.tile, each.plan, budget.streamed)
        if not divides(shape, mapping, budget) or not one_pitch(shape, mapping):
            continue
        words = min(words, needed := glb_words(shape, arch, mapping))
        if needed <= budget.words:
            cost = each.array + _transfer_cycles(moved_words(shape, arch, mapping), arch), each.number
            if best is None or cost < best:
                best, found = cost, mapping_of(shape, arch, each.tile, each.plan, budget.streamed)
    if found is None:
        raise glb_too_small(arch, budget, words)
    return found


def _candidates(shape: LayerShape, arch: Arch, budget: GlbBudget) -> Iterator[_Candidate]:
    number = count()
    for tile in tiles_tried(shape, arch):
        counts = {min(tile.q, c) for c in (shape.sizes.c, *_slices(tile.q, shape.sizes.c))}
        array = {q: array_cycles(shape, arch, replace(tile, q=q)) for q in counts}
        for plan in plans_tried(shape, tile, bool(budget.streamed)):
            cycles = array[min(tile.q, plan.c)]
            least = cycles + _transfer_cycles(_least_words(shape, budget, tile, plan), arch)
            yield _Candidate(least, next(number), cycles, tile, plan)


def _least_words(shape: LayerShape, budget: GlbBudget, tile: Tile, plan: OsPlan) -> int:
    """Words that a mapping moves at least: results and residual, and the weights as often as they are fetched anew."""
    s, times = shape.sizes, 1
    if plan.weights == SLICE:
        times = -(-s.h // tile.ph) * -(-s.w // (tile.pw * tile.z))
    elif plan.weights == BLOCK and not plan.k_outside:
        times = -(-s.h // plan.h) * -(-s.w // plan.w)
    if plan.weights == WHOLE and shape.weight_words > budget.words:
        return NOTHING_FITS  # but it says what would do
    return times * shape.weight_words + len(budget.streamed & {"output", "residual"}) * s.n * s.k * s.h * s.w


def _transfer_cycles(words: int, arch: Arch) -> int:
    return -(-words // arch.dram.words_per_cycle)


# -- what is tried -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def tiles_tried(shape: LayerShape, arch: Arch) -> Sequence[Tile]:
    """Good tiles; good ones of fewer sums a PE, for which blocks may be smaller; and the least one."""
    sums = [arch.pe.psum_words, *(few for few in (4, 1) if few < arch.pe.psum_words)]
    arches = [replace(arch, pe=replace(arch.pe, psum_words=words)) for words in sums]
    return [*dict.fromkeys(tile for each in arches for tile in _few_tiles(shape, each)), LEAST]


def _few_tiles(shape: LayerShape, arch: Arch) -> Sequence[Tile]:
    """Good tiles that differ in what a block must hold."""

    def cost(tile: Tile) -> tuple[int, ...]:
        return (array_cycles(shape, arch, tile), loaded_words(shape, tile), *vars(tile).values())

    best: dict[tuple[int, int, int], tuple[tuple[int, ...], Tile]] = {}
    for tile in good_tiles(shape, arch, 8 * TILES):
        key = (tile.kr * tile.kc * tile.p, tile.ph, tile.pw * tile.z)
        best[key] = min(best.get(key, (cost(tile), tile)), (cost(tile), tile), key=lambda each: each[0])
    return [tile for _, tile in sorted(best.values(), key=lambda each: each[0])[:TILES]]


def _resident_plans(shape: LayerShape, tile: Tile) -> Iterator[OsPlan]:
    """Weights whole, by group, by tile."""
    everything = whole_plan(shape)
    yield everything
    if shape.per_position and not shape.is_mac:
        return  # there is nothing that would come by channels
    if shape.tiled_together < shape.sizes.k:
        yield replace(everything, weights=BLOCK, buffers=2)
    if (k := tile.kr * tile.kc * tile.p) < shape.tiled_together:
        yield replace(everything, k=k, weights=BLOCK, buffers=2)


def _multiples(step: int, extent: int) -> list[int]:
    """`extent` and some multiples of `step` below it, from the largest."""
    times, found = 1, [extent]
    while step * times < extent:
        found.append(step * times)
        times *= 2
    return sorted(set(found), reverse=True)


def _slices(step: int, extent: int) -> list[int]:
    """Some multiples of `step` below `extent`, and parts of `step`, from the largest."""
    parts = [step >> shift for shift in range(1, step.bit_length())]
    return [*_multiples(step, extent)[1:], *parts]


def plans_tried(shape: LayerShape, tile: Tile, streamed: bool) -> Iterator[OsPlan]:
    """All plans that are tried, those with few blocks first."""
    sizes = shape.sizes
    heights = _multiples(tile.ph, sizes.h) if streamed else [sizes.h]
    widths = _multiples(tile.pw * tile.z, sizes.w) if streamed else [sizes.w]
    slices = _slices(tile.q, sizes.c) if shape.is_mac and not shape.channelwise else []
    for k in _multiples(tile.kr * tile.kc * tile.p, shape.tiled_together):
        for h in heights:
            for w in widths if h <= tile.ph else widths[:1]:  # rows are cut before columns
                for k_outside in (True, False) if streamed else (True,):
                    yield OsPlan(k, h, w, sizes.c, k_outside)
                    if k < sizes.k or shape.per_position:
                        yield OsPlan(k, h, w, sizes.c, k_outside, BLOCK)
                    if k_outside:
                        yield from (OsPlan(k, h, w, c, k_outside, SLICE) for c in slices)


# -- elementwise layers ------------------------------------------------------------------------------------------------


def copy_mapping(shape: LayerShape, arch: Arch, budget: GlbBudget) -> Mapping | None:
    """The blocks of an elementwise layer: whole channels, or rows of one; None where all operands lie in the GLB.

    Raises Refusal where not even one row of each fits.
    """
    if not budget.streamed:
        return None
    sizes = shape.sizes
    most = min(budget.words // len(budget.streamed), MOST_WORDS)
    blocks = [(k, sizes.h) for k in range(sizes.k, 0, -1)] + [(1, h) for h in range(sizes.h, 0, -1)]
    for k, h in blocks:
        if k * h * sizes.w <= most and sizes.k % k == 0 and sizes.h % h == 0:
            steps = [Loop("n"), Loop("k", k), Loop("h", h)]
            inner = [Loop("k"), Loop("h"), Loop("w")]
            running = those_running(shape, [*steps, *inner])
            depth = sum(loop is not None for loop in running[: len(steps)])
            stages = tuple(Stage(operand, "glb", depth) for operand in sorted(budget.streamed))
            return Mapping(tuple(loop for loop in running if loop is not None), stages)
    raise glb_too_small(arch, budget, len(budget.streamed) * sizes.w)
