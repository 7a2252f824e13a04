"""Output-stationary mappings that are good ones: for tests that walk through the tiles of a mapping, and only these.

A tile is the best for the array of all there are (`numbered_nest.py` says what its numbers are); blocks around it are
tried in the order of the cycles that they take at least. It knows the times of macro-instructions and transfers alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import Arch
from cnncc.context import CompilerContext
from cnncc.dialects.nest import LayerOp, Mapping, even_sets
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.register_files import most_channels
from cnncc.passes._scheduling.assignment import assign
from cnncc.passes._scheduling.candidates import Candidates
from cnncc.passes._scheduling.elementwise_blocks import copy_mapping
from cnncc.passes._scheduling.glb_words import (
    NOTHING_FITS,
    divides,
    glb_too_small,
    glb_words,
    is_small,
    moved_words,
    one_pitch,
)
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.numbered_nest import (
    BLOCK,
    SLICE,
    WHOLE,
    OsPlan,
    Tile,
    kernel_columns,
    mapping_of,
)

Counts = npt.NDArray[np.int64]

PIXELS = (1,)  # choices of z; 1 suits every stride and dilation
FEW_CHANNELS = 64  # up to here every p is tried, above only those that split k evenly
TILES = 12  # of those that are good for the array, the ones for which blocks are tried
LEAST = Tile(ph=1, pw=1, kr=1, kc=1, p=1, q=1, taps=1)  # fits wherever anything does


class OutputStationary(Candidates):
    """The mappings of this module for all layers."""

    def is_searched(self, layer: LayerOp) -> bool:
        return False

    def _mapping(self, layer: LayerOp, budget: GlbBudget) -> Mapping | None:
        best = copy_mapping if layer.kind.data == "copy" else os_mapping
        return best(layer_shape(layer), self.arch, budget)


def map_output_stationary(module: ModuleOp, arch: Arch) -> None:
    """Give all layers these mappings."""
    assign(module, None, OutputStationary("output-stationary", arch, {}, CompilerContext()))


def whole_plan(shape: LayerShape) -> OsPlan:
    """No blocks: everything is in the GLB for the whole layer."""
    return OsPlan(shape.tiled_together, shape.sizes.h, shape.sizes.w, shape.sizes.c)


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
        mapping = mapping_of(shape, arch, each.tile, each.plan, budget.streamed)
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
    number = itertools.count()
    for tile in tiles_tried(shape, arch):
        counts = {min(tile.q, c) for c in (shape.sizes.c, *_slices(tile.q, shape.sizes.c))}
        array = {q: array_cycles(shape, arch, replace(tile, q=q)) for q in counts}
        for plan in plans_tried(shape, tile, bool(budget.streamed)):
            cycles = array[min(tile.q, plan.c)]
            least = cycles + _transfer_cycles(_words_at_least(shape, budget, tile, plan), arch)
            yield _Candidate(least, next(number), cycles, tile, plan)


def _words_at_least(shape: LayerShape, budget: GlbBudget, tile: Tile, plan: OsPlan) -> int:
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


# -- tiles ---


@lru_cache(maxsize=4096)
def best_tile(layer: LayerShape, arch: Arch) -> Tile:
    """The tile with the fewest array cycles; of these the one that loads the fewest words; then the smallest."""
    return min(
        good_tiles(layer, arch, 1),
        key=lambda tile: (array_cycles(layer, arch, tile), loaded_words(layer, tile), *vars(tile).values()),
    )


def good_tiles(layer: LayerShape, arch: Arch, most: int) -> list[Tile]:
    """The `most` tiles with the fewest array cycles, and all that have as few as the last of them."""
    return [tile for z in PIXELS for tile in _fastest(layer, arch, z, most)]


def _fastest(layer: LayerShape, arch: Arch, z: int, most: int) -> Iterator[Tile]:
    """The tiles of z pixels with the fewest cycles, but for reductions that only load more."""
    reductions = [(p, list(_reductions(layer, arch, p, z))) for p in _channel_choices(layer, arch, z)]
    reductions = [(p, choices) for p, choices in reductions if choices]
    rows = [(ph, kr) for ph in range(1, min(layer.sizes.h, arch.rows) + 1) for kr in range(1, arch.rows // ph + 1)]
    cols = [(pw, kc) for pw in range(1, min(layer.sizes.w, arch.cols) + 1) for kc in range(1, arch.cols // pw + 1)]
    if not reductions:
        return
    cycles = _all_cycles(layer, arch, z, rows, cols, [(p, *choices[0]) for p, choices in reductions])
    last = np.partition(cycles, min(most, cycles.size) - 1, axis=None)[min(most, cycles.size) - 1]
    for row, col, channel in np.argwhere(cycles <= last).tolist():
        (ph, kr), (pw, kc), (p, choices) = rows[row], cols[col], reductions[channel]
        for q, taps in choices:
            yield Tile(ph, pw, kr, kc, p, q, taps, z)


def _channel_choices(layer: LayerShape, arch: Arch, z: int) -> list[int]:
    most = min(layer.tiled_together, arch.pe.psum_words // z)
    even = {-(-layer.tiled_together // parts) for parts in range(1, FEW_CHANNELS + 1)}
    return list(range(1, min(most, FEW_CHANNELS) + 1)) + sorted(p for p in even if FEW_CHANNELS < p <= most)


def _reductions(layer: LayerShape, arch: Arch, p: int, z: int) -> Iterator[tuple[int, int]]:
    """The (q, taps) that fit with p channels and z pixels and need the fewest loads; none where none fits."""
    sizes, kept = layer.sizes, kernel_columns(layer, arch)
    fitting: list[tuple[int, int, int]] = []
    for taps in range(1, sizes.r + 1):
        budget = most_channels(layer, arch, {"k": p, "w": z, "r": taps, "s": kept})
        if budget >= 1:
            loads = -(-sizes.c // min(budget, sizes.c))
            fitting.append((loads * -(-sizes.r // taps), -(-sizes.c // loads), taps))
    fewest = min(fitting, default=(0,))[0]
    return ((q, taps) for count, q, taps in fitting if count == fewest)


def _all_cycles(
    layer: LayerShape,
    arch: Arch,
    z: int,
    rows: list[tuple[int, int]],
    cols: list[tuple[int, int]],
    choices: list[tuple[int, int, int]],
) -> Counts:
    """`array_cycles` for every combination of (ph, kr), (pw, kc) and (p, q, taps)."""
    ph, kr = np.array(rows).T[:, :, None, None]
    pw, kc = np.array(cols).T[:, None, :, None]
    p, q, taps = np.array(choices).T[:, None, None, :]
    return _cycles(layer, arch, ph, pw, kr, kc, p, q, taps, z)


@lru_cache(maxsize=1 << 16)
def array_cycles(layer: LayerShape, arch: Arch, tile: Tile) -> int:
    """Cycles of all macro-instructions of the layer, those of remainders included (rule MAC-4)."""
    t = tile
    return int(_cycles(layer, arch, t.ph, t.pw, t.kr, t.kc, t.p, t.q, t.taps, t.z))


def _cycles(
    layer: LayerShape, arch: Arch, ph: Any, pw: Any, kr: Any, kc: Any, p: Any, q: Any, taps: Any, z: int
) -> Any:
    """Bodies of the loops over different dimensions combine freely, so counts and sums of extents multiply."""
    sizes = layer.sizes
    k_count, k_sum = bodies(sizes.k, _channel_loops(layer, kr, kc, p))
    h_count, _ = bodies(sizes.h, [(ph, 0), (1, 1)])
    w_count, w_sum = bodies(sizes.w, [(pw * z, 0), (z, 1)])
    c_count, c_sum = bodies(sizes.c, [(q, 0)])
    r_count, r_sum = bodies(sizes.r, [(taps, 0)])
    s_count, s_sum = bodies(sizes.s, [(kernel_columns(layer, arch), 0)])
    macros = sizes.n * h_count * k_count * w_count * c_count * r_count * s_count
    steps = sizes.n * h_count * k_sum * w_sum * c_sum * r_sum * s_sum
    return (arch.pe.start_cycles + arch.pe.finish_cycles) * macros + steps


def _channel_loops(layer: LayerShape, kr: Any, kc: Any, p: Any) -> list[tuple[Any, Any]]:
    """The loops over k, as `bodies` takes them.

    Sets that share a rest are those of the innermost loop in space that runs: beside each other, or below if there is
    one on a row.
    """
    most = _least(kr * kc * p, layer.tiled_together)
    row = _least(kc * p, most)
    beside = row > p
    sets = beside * (row // p) + (1 - beside) * (most // p)
    return [(layer.tiled_together, 0), (kr * kc * p, 0), (kc * p, 1), (p, sets)]


def _least(a: Any, b: Any) -> Any:
    """The lesser of two numbers, or of each two of two arrays."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)


def bodies(extent: Any, loops: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """How often the inside of nested loops over one dimension runs one after the other, and the sum of its extents.

    loops: (step, sets), outermost first; sets: 0 in time. All whole steps of a loop in space are one run, its rest a
    further one, spread evenly over up to so many sets. Works on arrays of extents, steps and sets too.
    """
    if not loops:
        return _least(extent, 1), extent
    (step, sets), *inside = loops
    whole, rest = extent // step, extent % step
    alone = isinstance(sets, int)
    times = whole if alone and not sets else _least(whole, 1)
    each = rest if alone and sets <= 1 else rest // _sharing(rest, sets)
    (count, total), (rest_count, rest_total) = bodies(step, inside), bodies(each, inside)
    return times * count + rest_count, times * total + rest_total


def _sharing(rest: Any, sets: Any) -> Any:
    """`even_sets` of numbers or arrays; 1 where nothing is left over."""
    if isinstance(rest, int) and isinstance(sets, int):
        return even_sets(rest, sets) if rest else 1
    return _even_sets(int(np.max(rest)), int(np.max(sets)))[rest, sets]


@lru_cache(maxsize=256)
def _even_sets(rest: int, sets: int) -> Counts:
    """`even_sets` of all rests (rows) and sets up to these, by trying all divisors; anything where there is no rest."""
    table = np.ones((rest + 1, sets + 1), np.int64)
    for count in range(2, sets + 1):
        table[:, count] = np.where(np.arange(rest + 1) % count, table[:, count - 1], count)
    return table


def loaded_words(layer: LayerShape, tile: Tile) -> int:
    """Distinct words of weights and ifmap over all loads (rule L2's D, the words that neighbours pass on included).

    Weights come once for every tile of h and w, the ifmap once for every run of the channels that share it.
    """
    sizes, window = layer.sizes, layer.window
    w_runs = _runs(sizes.w, tile.pw * tile.z, tile.z)
    h_runs = _runs(sizes.h, tile.ph, 1)
    k_runs = sizes.k if layer.channelwise else int(bodies(sizes.k, _channel_loops(layer, tile.kr, tile.kc, tile.p))[0])
    columns = sum(times * _reach(w, sizes.s, window.stride[1], window.dilation[1]) for w, times in w_runs)
    r_runs = _runs(sizes.r, tile.taps, 1)
    rows = sum(
        times * r_times * _reach(h, r, window.stride[0], window.dilation[0])
        for h, times in h_runs
        for r, r_times in r_runs
    )
    weights = layer.weight_words * sum(times for _, times in h_runs) * sum(times for _, times in w_runs)
    return sizes.n * (weights + sizes.c * k_runs * rows * columns)


def _runs(extent: int, step: int, unit: int) -> list[tuple[int, int]]:
    """(extent, times) of the runs of a tiled loop whose inside takes `unit` at a time in space."""
    rest = extent % step
    runs = [(step, extent // step), (rest - rest % unit, 1), (rest % unit, 1)]
    return [(size, times) for size, times in runs if size and times]


def _reach(outputs: int, taps: int, stride: int, dilation: int) -> int:
    """Input positions that `outputs` neighbouring windows of `taps` positions touch."""
    return len({output * stride + tap * dilation for output in range(outputs) for tap in range(taps)})
