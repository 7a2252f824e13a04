"""The fewest DRAM words and the least energy of a layer (PROOF-3), without any code of the search."""

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
        + s.n * shape.channels * (into_array + prices.ifmap_write)  # a pixel of each channel, at least
    )


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
    """Words of ifmap and weights for each size of blocks."""
    s, streamed = shape.sizes, budget.streamed
    if not streamed:
        yield shape.weight_words
        return
    of_channel = s.c * s.r * s.s * shape.is_mac  # weights of an output channel
    of_position = ("output" in streamed) + ("residual" in streamed)
    heights, widths = ([_lines(shape, axis, size) for size in range(1, (s.h, s.w)[axis] + 1)] for axis in (0, 1))
    for (h, (rows, all_rows)), (w, (cols, all_cols)) in product(enumerate(heights, 1), enumerate(widths, 1)):
        block, image = h * w * of_position, 0
        if "ifmap" in streamed:
            block += (s.c if shape.channelwise else 1) * rows * cols  # slices of one channel, else
            image = s.n * shape.channels * all_rows * all_cols
        if (free := budget.words - block) < of_channel and shape.weight_words > free:
            if free >= 0:  # slices of weights inside a channel: they come for each block
                yield image + shape.weight_words * s.n * -(-s.h // h) * -(-s.w // w)
        elif shape.weight_words <= free:
            yield image + shape.weight_words
        else:
            of_image = -(-s.h // h) * -(-s.w // w)
            k_blocks = -(-shape.tiled_together // (free // of_channel))
            image_again = image * (1 if shape.channelwise else k_blocks)
            yield min(image + shape.weight_words * s.n * of_image, image_again + shape.weight_words * s.n)


def _lines(shape: LayerShape, axis: int, size: int) -> tuple[int, int]:
    """Rows (columns) of one block's image with its padding, and those inside the image that all blocks need."""
    s, window = shape.sizes, shape.window
    outputs, taps, whole = ((s.h, s.r, shape.ih), (s.w, s.s, shape.iw))[axis]
    if size == outputs:
        return whole, whole
    stride, span = window.stride[axis], (taps - 1) * window.dilation[axis] + 1
    inside = 0
    for first in range(0, outputs, size):
        start = first * stride - window.pad[axis]
        end = start + (min(size, outputs - first) - 1) * stride + span
        inside += max(0, min(end, whole) - max(start, 0))
    return (size - 1) * stride + span, inside
