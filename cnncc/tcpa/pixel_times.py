"""When the pixels of a chain exist, if each waits for the pixels that it depends on: rules TCPA-6 to TCPA-8.

Layer i computes its output pixels one after the other, `services[i]` cycles each, in one of two orders:

- raster: row by row.
- windows: window by window of the next layer, where its stride is above 1; else raster.

Without limits on storage a pixel starts when the pixel before it has ended and its inputs exist. So the q-th pixel of
a layer ends at the maximum over p ≤ q of `ready(p) + (q - p + 1) · service`: a running maximum of
`ready(p) - p · service`. No pixel is stepped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cnncc.tcpa.chain_layer import ChainLayer
from cnncc.window import Window

Times: TypeAlias = npt.NDArray[np.int64]  # [frame, row, column] of an image


@dataclass(frozen=True)
class FirstFrame:
    """Of each layer: when its first pixel starts and its last one ends, in cycles. written: the end of every pixel."""

    starts: list[int]
    ends: list[int]
    written: list[Times]


def first_frame(layers: Sequence[ChainLayer], services: Sequence[int], by_windows: bool = False) -> FirstFrame:
    """The first frame, whose image is there from cycle 0 on, with as much storage as it takes (TCPA-6).

    >>> conv = ChainLayer("conv", (2, 2), 1, 1, Window((3, 3), pad=(1, 1, 1, 1)))
    >>> first_frame([conv, conv], [5, 5]).ends  # the second one's first window has all four pixels
    [20, 40]
    """
    image = np.zeros((1, *layers[0].image), np.int64)
    written = _written(layers, services, image, by_windows)
    starts = [int(each.min()) - service for each, service in zip(written, services, strict=True)]
    return FirstFrame(starts, [int(each.max()) for each in written], written)


def scattered_latency(layers: Sequence[ChainLayer], services: Sequence[int], by_windows: bool = False) -> Fraction:
    """Cycles of the first frame where each pixel, once it arrives, is multiplied into all its sums (Section 5.3).

    A layer works off F_i input pixels (Eq. 7) in a service time, in the order of their arrival. An output exists when
    all its inputs are worked off.

    >>> conv = ChainLayer("conv", (2, 2), 1, 1, Window((3, 3), pad=(1, 1, 1, 1)))
    >>> scattered_latency([conv, conv], [5, 5])
    Fraction(40, 1)
    """
    fresh = [min(layer.taps, layer.window.stride[0] * layer.window.stride[1]) for layer in layers]
    scale = lcm(*fresh)  # ticks of a cycle
    arrived = np.zeros((1, *layers[0].image), np.int64)
    worked = arrived
    order = _order(layers[0].image, layers[1].window if by_windows and len(layers) > 1 else None)
    for at, layer in enumerate(layers):
        # In the order of arrival; pixels that arrive together, in the order of computation.
        turn = order[np.argsort(arrived.reshape(-1)[order], kind="stable")]
        worked = _in_turn(arrived, turn, services[at] * scale // fresh[at])
        arrived = _window_maximum(layer, worked)
        order = _output_order(layers, at, by_windows)
    return Fraction(int(worked.max()), scale)


def full_rate_rings(layers: Sequence[ChainLayer], services: Sequence[int]) -> list[int]:
    """Pixels stored between layers i - 1 and i that keep the period (TCPA-8); [0] is 0: the image comes from outside.

    The first layer is paced at the period, all others work at their own speed. A ring has as many places as pixels are
    alive then. So the paced schedule never waits for a place, and a schedule without pace is never later.
    Every layer repeats its times after one frame more than the layer before it: `len(layers) + 2` frames have the peak.

    >>> conv = ChainLayer("conv", (4, 4), 1, 1, Window((3, 3), pad=(1, 1, 1, 1)))
    >>> full_rate_rings([conv, conv], [5, 5])
    [0, 11]
    """
    period = max(layer.pixels * service for layer, service in zip(layers, services, strict=True))
    first, frames = layers[0], len(layers) + 2
    paced = np.arange(frames * first.pixels) * period // first.pixels
    written = [_in_turn(paced.reshape(frames, *first.results), _order(first.results, None), services[0])]
    written += _written(layers[1:], services[1:], written[0], by_windows=False)
    rings = [0]
    for layer, given, done in zip(layers[1:], written[:-1], written[1:], strict=True):
        freed = np.maximum.accumulate(last_uses(layer, given, done).reshape(-1))  # in turn
        rings.append(max(1, peak(given, freed)))
    return rings


def least_ring(layer: ChainLayer) -> int:
    """Pixels of the input that must be stored at once, or no output ever starts: those from the first to the last one
    of a window, in raster order (TCPA-7).

    >>> least_ring(ChainLayer("conv", (14, 14), 24, 24, Window((3, 3), pad=(1, 1, 1, 1))))
    31
    """
    order = np.arange(layer.image[0] * layer.image[1]).reshape(1, *layer.image)
    last = _window_maximum(layer, order).reshape(-1)  # 0 of a window of padding alone: it needs nothing
    first = order.size - 1 - _window_maximum(layer, order.size - 1 - order).reshape(-1)
    later = np.minimum.accumulate(first[::-1])[::-1]  # the first one that a window, or any after it, reads
    return max(1, int(np.max(last - later)) + 1)


def last_uses(layer: ChainLayer, given: Times, done: Times) -> Times:
    """When each input pixel is needed no more; one that no window reads, when it is written.

    given: when the input pixels are written; done: when the output pixels end.
    """
    window = layer.window
    top, left, bottom, right = window.pad
    padded = np.pad(given, ((0, 0), (top, bottom), (left, right)))
    # The taps are views of one array, which takes the maximum over all windows that read a pixel.
    for part in _taps(layer, padded):
        np.maximum(part, done, out=part)
    return padded[:, top : top + layer.image[0], left : left + layer.image[1]]


def peak(written: npt.NDArray[np.int64], freed: npt.NDArray[np.int64]) -> int:
    """The most pixels alive at once. A pixel may take the place of one that is freed in the same cycle."""
    births, deaths = np.sort(written, axis=None), np.sort(freed, axis=None)
    return int(np.max(np.arange(1, births.size + 1) - np.searchsorted(deaths, births, side="right")))


def _written(layers: Sequence[ChainLayer], services: Sequence[int], image: Times, by_windows: bool) -> list[Times]:
    """When the output pixels of each layer end. image: when the pixels exist that the first one reads."""
    written = list[Times]()
    for at, layer in enumerate(layers):
        ready = _window_maximum(layer, written[-1] if written else image)
        written.append(_in_turn(ready, _output_order(layers, at, by_windows), services[at]))
    return written


def _in_turn(ready: Times, order: npt.NDArray[np.int64], service: int) -> Times:
    """When pixels end that one server takes in this order, each frame after the one before it."""
    frames = ready.reshape(len(ready), -1)[:, order].reshape(-1)
    turn = np.arange(frames.size)
    ends = np.maximum.accumulate(frames - service * turn) + service * (turn + 1)
    result = np.empty((len(ready), order.size), np.int64)
    result[:, order] = ends.reshape(len(ready), -1)
    return result.reshape(ready.shape)


def _order(size: tuple[int, int], window: Window | None) -> npt.NDArray[np.int64]:
    """The positions of an image in raster order, or stride by stride of a window that reads it."""
    rows, cols = (axis.reshape(-1) for axis in np.indices(size))
    if window is None:
        return np.arange(rows.size)
    down, right = window.stride
    return np.lexsort((cols % right, rows % down, cols // right, rows // down))


def _output_order(layers: Sequence[ChainLayer], at: int, by_windows: bool) -> npt.NDArray[np.int64]:
    reader = layers[at + 1].window if by_windows and at + 1 < len(layers) else None
    return _order(layers[at].results, reader)


def _taps(layer: ChainLayer, padded: Times) -> list[Times]:
    """Of a padded image, for each tap of the window the pixels that it reads: views [frame, row, column]."""
    (down, right), (kernel_rows, kernel_cols) = layer.window.stride, layer.window.kernel
    rows, cols = ((count - 1) * step + 1 for count, step in zip(layer.results, (down, right), strict=True))
    tops = [row * layer.window.dilation[0] for row in range(kernel_rows)]
    lefts = [col * layer.window.dilation[1] for col in range(kernel_cols)]
    return [padded[:, top : top + rows : down, left : left + cols : right] for top in tops for left in lefts]


def _window_maximum(layer: ChainLayer, image: Times) -> Times:
    """Of each window the greatest of its pixels; padding counts as 0."""
    top, left, bottom, right = layer.window.pad
    return np.maximum.reduce(_taps(layer, np.pad(image, ((0, 0), (top, bottom), (left, right)))))
