"""The tiles of output-stationary mappings: how the array is used, by an exhaustive search. No IR.

The loops of a mapping that a tile decides on, outermost first:

    time    k, h, w                              steps kr*kc*p, ph, pw*z: what the array holds at a time
    space   k on rows, h on rows                 kr sets of kc*p channels, of ph PEs
            k on cols, w on cols                 kc sets of p channels, of pw PEs
    time    c, r, s                              steps q, taps, S: what a half of the register files holds
    kept    [w] s c r k  (or [w] k s r, below)   z pixels, S columns, q channels, taps kernel rows, p sums of a PE

The loops around them are those of `os_plan.py`, among them one over groups of output channels (step K/g).

Every PE computes p channels of z neighbouring pixels, and its sums stay until they are complete. A loop whose step
does not divide its extent runs the rest as a body of its own. That body follows in time, also of a loop in space.
Channels that are left over are spread over sets (`dialects/_mapping.py`).

A half of a PE's files holds z*p sums, p*q*taps*S weights, and the ifmap (`cnncc/model/register_files.py`). S is all
kernel columns, or an even part of them where a row does not fit (`kernel_columns`).

Pools and depthwise convolutions are *channelwise*: every output channel has input channels of its own. There is no loop
over groups then; c is not kept (q = 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cnncc.arch.model import Arch
from cnncc.dialects.nest import even_sets
from cnncc.model.layer_shape import LayerShape
from cnncc.model.register_files import most_channels

Counts = npt.NDArray[np.int64]

PIXELS = (1,)  # choices of z; 1 suits every stride and dilation
FEW_CHANNELS = 64  # up to here every p is tried, above only those that split k evenly


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


@lru_cache(maxsize=4096)
def kernel_columns(layer: LayerShape, arch: Arch) -> int:
    """Kernel columns of a macro-instruction: all, or an even part where a row is too long for the files of a PE."""
    even = dict.fromkeys(-(-layer.sizes.s // parts) for parts in range(1, layer.sizes.s + 1))
    return next(s for s in even if most_channels(layer, arch, {"k": 1, "w": 1, "r": 1, "s": s}))


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
