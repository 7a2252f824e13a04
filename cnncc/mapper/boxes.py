"""Boxes that fit the register files of a PE. A box is what a PE does in one macro-instruction. No IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice, product
from math import prod

from cnncc.arch.model import Arch
from cnncc.mapper.tables import even_parts
from cnncc.model.layer_shape import LayerShape
from cnncc.model.register_files import most_channels, positions, psum_slots, shared_columns

MOST = 40_000  # boxes that are looked at
FEW = (32, 16, 10, 7, 5, 4)  # numbers of each of the seven dimensions: with 4 there are 16,384 boxes at most
Box = tuple[int, ...]


def boxes(shape: LayerShape, arch: Arch) -> tuple[list[Box], bool]:
    """The boxes, and whether some are left out.

    A box is (k, w, h, c, r, s, lanes c, lanes r, lanes s, own lanes, words, loaded, passed). The first six are its
    indices. Own lanes are over k (MAC-7). `loaded` says whether it fits if all columns of the image are loaded,
    `passed` whether it fits if neighbours pass some on (MAC-6).

    Parts of c, r and s are always as equal as may be. If there are more than `MOST` boxes, so are those of k, w and h,
    and each dimension has a few numbers (`FEW`).
    """
    listed = list(islice(_boxes(shape, arch, 0), MOST + 1))
    if len(listed) <= MOST:
        return listed, False
    tries = (list(islice(_boxes(shape, arch, few), MOST + 1)) for few in FEW)
    return next(listed for listed in tries if len(listed) <= MOST), True


def _numbers(extent: int, most: int, few: int) -> Sequence[int]:
    """Indices of k, w or h in the box: all numbers up to `most`, or a few."""
    return _some(even_parts(extent, most), few) if few else range(1, min(extent, most) + 1)


def _some(listed: Sequence[int], few: int) -> Sequence[int]:
    """`few` of the numbers, with the first and the last; all of them if there are no more, or if `few` is 0."""
    if not few or len(listed) <= few:
        return listed
    return [listed[i * (len(listed) - 1) // (few - 1)] for i in range(few)]


def _boxes(shape: LayerShape, arch: Arch, few: int) -> Iterator[Box]:
    """The boxes with at most `few` numbers of each dimension; 0: all boxes."""
    sizes, pe, window = shape.sizes, arch.pe, shape.window
    most_lanes = pe.lanes if shape.is_mac else 1
    image_words = pe.ifmap_words
    # Each loop goes up to the number that fits if the dimensions inside have single indices.
    for k in _numbers(shape.tiled_together, min(pe.psum_words, pe.weight_words if shape.is_mac else image_words), few):
        if shape.channelwise:
            image_words = pe.ifmap_words // k
        for w in _numbers(sizes.w, min(pe.max_pixels, pe.psum_words // k, image_words), few):
            rows = min(pe.max_pixels // w, pe.psum_words // (k * w), image_words // w)
            for h in _numbers(sizes.h, rows, few) if has_rows(shape) else (1,):
                own = _own_lanes(arch, k, w * h)
                for r in _some(even_parts(sizes.r, sizes.r), few):
                    for s in _some(even_parts(sizes.s, sizes.s), few):
                        image = positions(w, s, window.stride[1], window.dilation[1])[0]
                        image *= positions(h, r, window.stride[0], window.dilation[0])[0]
                        whole = pe.ifmap_words // (image * (k if shape.channelwise else 1))
                        in_turn = pe.pong_words and shared_columns(shape, arch, s, w)
                        extent = {"k": k, "w": w, "r": r, "s": s}
                        passed = most_channels(shape, arch, extent) if in_turn else whole
                        most = max(whole, passed)
                        if shape.is_mac:
                            most = min(most, pe.weight_words // (k * r * s))
                        if shape.channelwise:
                            most = min(most, 1)
                        apart = w > 1 and window.stride[1] % window.dilation[1] > 0
                        for c in _some(even_parts(sizes.c, most), few):
                            # Columns of a kernel that lie apart are a counter of their own, of three (LEGAL-4).
                            if apart and s > 1 and r * (1 if shape.channelwise else c) > 1 and k > 1:
                                continue
                            words = image * c * (k if shape.channelwise else 1)
                            words += k * c * r * s * shape.is_mac
                            channels = _lanes(sizes.c, c, 1 if shape.channelwise else most_lanes)
                            for lanes in _some(channels, few):
                                fits = c <= whole, c <= (passed if lanes == 1 else whole)
                                if any(fits):
                                    yield k, w, h, c, r, s, lanes, 1, 1, 1, words, *fits
                            together = c <= whole and _window_lanes((c, r, s), most_lanes, apart)
                            # SPACE-3: the window is on lanes only if that takes more of them than channels alone do.
                            if together and prod(together) > channels[-1]:
                                yield k, w, h, c, r, s, *together, 1, words, True, True
                            fits = c <= whole, c <= passed
                            if own > 1 and any(fits):
                                yield k, w, h, c, r, s, 1, 1, 1, own, words, *fits


def has_rows(shape: LayerShape) -> bool:
    """Whether a box may have several h."""
    return shape.sizes.r == shape.sizes.s == 1 and not shape.channelwise


def _own_lanes(arch: Arch, k: int, pixels: int) -> int:
    """Output channels at a time, each with a sum of its own: all of the box, or as many as a PE has lanes (LEGAL-6)."""
    lanes = min(arch.pe.lanes, k)
    fits = arch.pe.lane_sums and k % lanes == 0 and psum_slots(arch, {"k": k, "w": pixels}, lanes) <= arch.pe.psum_words
    return lanes if fits else 1


@lru_cache(maxsize=4096)
def _window_lanes(box: tuple[int, int, int], most: int, apart: bool) -> tuple[int, ...]:
    """Lanes over c, r and s that take all indices of some of them, taps among them: the most up to `most` (LEGAL-6).

    apart: columns of a kernel lie apart, and have no common step with others.
    """
    every = (tuple(lanes) for lanes in product(*((1, size) for size in box)))
    few = (lanes for lanes in every if prod(lanes) <= most and not (apart and 1 < lanes[2] < prod(lanes)))
    return max((lanes for lanes in few if max(lanes[1:]) > 1), key=lambda lanes: (prod(lanes), *lanes), default=())


@lru_cache(maxsize=4096)
def _lanes(channels: int, c: int, most: int) -> tuple[int, ...]:
    """Products over c at a time, up to `most`: all boxes of c divide into them, or the last is a single step (LEGAL-6).

    The rest of the channels is in the last box.
    """
    rest = channels % c
    divide = (lanes for lanes in range(1, min(most, c) + 1) if c % lanes == 0)
    return tuple(lanes for lanes in divide if rest % lanes == 0 or rest < lanes)
