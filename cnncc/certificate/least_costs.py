"""Bounds of DRAM words, energy and, with streamed operands, cycles (PROOF-2, PROOF-3). No code of the search."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from cnncc.arch.model import Arch, Energy
from cnncc.model.layer_shape import GlbBudget, LayerShape


def least_words(shape: LayerShape, arch: Arch, budget: GlbBudget) -> int:
    """No mapping of the space has fewer words from and to DRAM."""
    comes, leaves = _words(shape, arch, budget)
    return comes + leaves


def least_energy(shape: LayerShape, arch: Arch, budget: GlbBudget) -> float:
    """No mapping of the space takes less energy, by the array's prices."""
    s, prices, (comes, leaves) = shape.sizes, arch.energy, _words(shape, arch, budget)
    steps, results = s.n * s.k * s.c * s.h * s.w * s.r * s.s, s.n * s.k * s.h * s.w
    per_step = prices.mac + prices.ifmap_read + prices.weight_read * shape.is_mac
    # Lanes that add up their products share a psum: at best all of them, or all terms of a sum.
    per_psum_step = (prices.psum_read + prices.psum_write) / (
        min(arch.pe.lanes, s.c * s.r * s.s) if shape.is_mac else 1
    )
    per_result = prices.psum_read + prices.glb_write + prices.glb_read * budget.residual
    into_array = prices.glb_read + prices.bus
    return (
        comes * (prices.dram_read + prices.glb_write)
        + leaves * (prices.dram_write + prices.glb_read)
        + steps * (per_step + per_psum_step)
        + results * per_result
        + shape.weight_words * (into_array + prices.weight_write)
        + s.n * shape.channels * _touched(shape, 0) * _touched(shape, 1) * (into_array + prices.ifmap_write)
    )


def _touched(shape: LayerShape, axis: int) -> int:
    """Rows (columns) of the image that windows touch; those of the padding are none."""
    outputs, taps, whole = _side(shape, axis)
    stride, dilation, pad = shape.window.stride[axis], shape.window.dilation[axis], shape.window.pad[axis]
    firsts = range(-pad, outputs * stride - pad, stride)
    return len({first + tap * dilation for first in firsts for tap in range(taps)} & {*range(whole)})


def _side(shape: LayerShape, axis: int) -> tuple[int, int, int]:
    """Rows (columns) of results, of the kernel and of the image."""
    s = shape.sizes
    return ((s.h, s.r, shape.ih), (s.w, s.s, shape.iw))[axis]


def streamed_least(shape: LayerShape, arch: Arch, streamed: frozenset[str], budget: int) -> int:
    """A lower bound of the cycles with streamed operands: max(all PEs busy in all cycles, DMA of the fewest words).

    The fewest words are taken over all blocks of the image that fit. Weights come once, except the part that double
    buffers keep.
    """
    s = shape.sizes
    summed = s.c * s.r * s.s if shape.is_mac else 1
    # MAC-7: with lane_sums, lanes may have output channels of their own. Else all of them share a sum.
    lanes = arch.pe.lanes if arch.pe.lane_sums else min(arch.pe.lanes, summed)
    array = -(-s.n * s.k * s.c * s.h * s.w * s.r * s.s // (arch.rows * arch.cols * lanes))
    results = s.n * s.k * s.h * s.w * len(streamed & {"output", "residual"})
    moved, weights = list[int](), shape.weight_words
    for _, block, image in _blocks(shape, streamed):
        if (free := budget - block) >= 0:
            moved.append(image + (weights - free // 2 if weights > free else 0))
    return max(array, -(-(results + min(moved)) * arch.dram.rate_cycles // arch.dram.rate_words))


def prices_of(objective: str, arch: Arch) -> Energy:
    """The prices by which a certificate of this objective counts."""
    if objective == "energy":
        return arch.energy
    free = dict.fromkeys((name for name in vars(arch.energy) if name != "unit"), 0.0)
    return Energy("words", **free | {"dram_read": 1.0, "dram_write": 1.0})


def _words(shape: LayerShape, arch: Arch, budget: GlbBudget) -> tuple[int, int]:
    """Words from DRAM and to it: the fewest over all blocks of the image that fit with one buffer each."""
    s, streamed = shape.sizes, budget.streamed
    results, owners = s.n * s.k * s.h * s.w, s.h * s.w if shape.per_position else s.k
    always = results * ("residual" in streamed) + shape.params * arch.words_per_param * owners
    return always + min(_moved(shape, budget)), results * ("output" in streamed)


def _moved(shape: LayerShape, budget: GlbBudget) -> Iterator[int]:
    """Words of ifmap and weights for each size of blocks, of one image or of the same rows of all (LOCAL-5)."""
    s, streamed = shape.sizes, budget.streamed
    if not streamed:
        yield shape.weight_words
        return
    of_channel = s.c * s.r * s.s * shape.is_mac  # weights of an output channel
    for of_image, block, image in _blocks(shape, streamed):
        if (free := budget.words - block) < of_channel and shape.weight_words > free:
            if free >= 0:  # slices of weights inside a channel: they come for each block
                yield image + shape.weight_words * of_image
        elif shape.weight_words <= free:
            yield image + shape.weight_words
        else:
            k_blocks = -(-shape.tiled_together // (free // of_channel))
            image_again = image * (1 if shape.channelwise else k_blocks)
            yield min(image + shape.weight_words * of_image, image_again + shape.weight_words)


def _blocks(shape: LayerShape, streamed: frozenset[str]) -> Iterator[tuple[int, int, int]]:
    """For each size of blocks of the image: how many there are, the words of the buffers, and all words of the ifmap.

    The ifmap has one buffer, for a channel where it may come in slices of channels. Blocks of residual and output may
    be smaller, inside those of the ifmap (LOCAL-2): their buffers count a result each.
    """
    s = shape.sizes
    results = len(streamed & {"output", "residual"})
    if "ifmap" not in streamed:
        yield 1, results, 0
        return
    channels = s.c if shape.channelwise else 1
    heights, widths = ([_lines(shape, axis, size) for size in range(1, (s.h, s.w)[axis] + 1)] for axis in (0, 1))
    for (h, (rows, all_rows)), (w, (cols, all_cols)) in product(enumerate(heights, 1), enumerate(widths, 1)):
        of_image = -(-s.h // h) * -(-s.w // w)
        yield of_image, results + channels * rows * cols, s.n * shape.channels * all_rows * all_cols


def _lines(shape: LayerShape, axis: int, size: int) -> tuple[int, int]:
    """Rows (columns) of one block's image with its padding, and those inside the image that all blocks need."""
    window, (outputs, taps, whole) = shape.window, _side(shape, axis)
    if size == outputs:
        return whole, whole
    stride, span = window.stride[axis], (taps - 1) * window.dilation[axis] + 1
    inside = 0
    for first in range(0, outputs, size):
        start = first * stride - window.pad[axis]
        end = start + (min(size, outputs - first) - 1) * stride + span
        inside += max(0, min(end, whole) - max(start, 0))
    return min(whole, (size - 1) * stride + span), inside
