"""Blocks in which a layer's operands move through the GLB, and its weights: their words, for points with equal tiles.

All sizes of blocks, in both orders, in one buffer or two, are looked at together, as arrays. No IR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cnncc.arch.model import Arch
from cnncc.mapper.bound import up
from cnncc.mapper.layer_shape import LayerShape, reach
from cnncc.mapper.space import Form, Numbers, Point, shared, steps_of

Counts = npt.NDArray[np.int64]
AXES = 5  # of the arrays: sizes of k, h and w, the order, buffers of the ifmap


@dataclass(frozen=True)
class Room:
    """Words of the GLB for the buffers of a layer; which of ifmap, residual and output do not lie there as a whole.

    residual: whether there is one.
    """

    words: int
    moving: frozenset[str] = frozenset()
    residual: bool = False


def least_words(shape: LayerShape, arch: Arch, room: Room) -> int:
    """Words that buffers take at least in any mapping: of one output, its window, and the weights of one product."""
    sizes, window = shape.sizes, shape.window
    words = shape.params * arch.words_per_param * (sizes.h * sizes.w if shape.per_position else sizes.k)
    words += sizes.r * sizes.s * shape.is_mac + sum(operand in room.moving for operand in ("output", "residual"))
    if "ifmap" in room.moving:
        sides = zip((sizes.r, sizes.s), (sizes.h, sizes.w), (shape.ih, shape.iw), window.dilation, strict=True)
        words += sizes.c * prod(whole if n == 1 else reach(1, taps, 1, step) for taps, n, whole, step in sides)
    return words


class Tiles(NamedTuple):
    """What blocks depend on of a point: its form, tiles in time (1 of what PEs share out), loops in space, and whether
    sums are partial.
    """

    form: Form
    k: int
    h: int
    w: int
    c: int
    spaces: int
    partial: bool


def tiles_of(shape: LayerShape, at: Point, partial: bool) -> Tiles:
    """Of a point."""
    extent = {dim: shape.sizes.of(dim) for dim in "hwc"} | {"k": shape.tiled_together}
    tile = {dim: 1 if shared(at.form, dim) else steps_of(at.chain(dim, extent[dim]), extent[dim])[0] for dim in "khwc"}
    spaces = sum(count > 1 for count in at.rows[:2]) + sum(count > 1 for count in at.cols)
    return Tiles(at.form, tile["k"], tile["h"], tile["w"], tile["c"], spaces, partial)


def tiles_in_time(found: Numbers, form: Form, which: Counts) -> Counts:
    """Of combinations: tiles in time of k h w c, 1 of what PEs share out. Shape (combinations, 4)."""
    sizes, (row, col, box) = found.shape.sizes, which.T
    rows, cols, boxes = found.rows[row], found.cols[col], found.boxes[box]
    tiles = {
        "k": np.minimum(rows[:, 0] * cols[:, 0] * boxes[:, 0], found.shape.tiled_together),
        "h": np.minimum(rows[:, 1] * cols[:, 1] * boxes[:, 2], sizes.h),
        "w": np.minimum(cols[:, 2] * boxes[:, 1], sizes.w),
        "c": np.minimum(rows[:, 2] * boxes[:, 3], sizes.c),
    }
    return np.column_stack([np.ones_like(tile) if shared(form, dim) else tile for dim, tile in tiles.items()])


class Side(NamedTuple):
    """Blocks of one dimension: sizes that are tried, how many blocks of each, the last one's size."""

    sizes: Counts
    number: Counts
    last: Counts


def side(extent: int, tile: int, cut: bool) -> Side:
    """All sizes of blocks of a dimension: as equal as may be, of whole tiles."""
    sizes = [extent]
    if cut:
        tiles = up(extent, tile)
        sizes = sorted({min(extent, up(tiles, parts) * tile) for parts in range(1, tiles + 1)}, reverse=True)
    found = np.array(sizes)
    number = -(-extent // found)
    return Side(found, number, extent - (number - 1) * found)


class Weights(NamedTuple):
    """A stage of weights in the GLB: before which loop, in how many buffers, words of a buffer, words that come.

    Of these the first slice comes ahead, in the layer before. part: of a block's work that is done with a slice, where
    slices come inside blocks.
    """

    place: Any
    buffers: int
    buffer: Any
    words: Any
    part: Any = None


class Blocks:
    """All blocks of k, h and w together, in both orders (the first with k outside), ifmap in one buffer and two."""

    def __init__(self, shape: LayerShape, arch: Arch, room: Room, tiles: Tiles) -> None:
        self.shape, self.arch, self.room, self.tiles = shape, arch, room, tiles
        self.k, self.h, self.w = self._sides()
        lengths = [len(each.sizes) for each in (self.k, self.h, self.w)]
        self.shaped = (*lengths, 2, 2)
        self.kk, self.hh, self.ww, order, double = (np.asarray(i) for i in np.ix_(*map(range, self.shaped)))
        self.k_outside: Any = order == 0
        self.double: Any = double == 1
        self.group = shape.tiled_together
        self._count_blocks()
        self._count_words()

    def _sides(self) -> tuple[Side, Side, Side]:
        shape, moving = self.shape, self.room.moving
        alone = self.room.residual and len(moving & {"output", "residual"}) == 1  # one start of a commit is for both
        cut = {
            "k": shape.shuffle == 1 and not alone and (shape.channelwise or "output" in moving),
            "h": True,
            "w": not shape.per_position,
        }
        extent = {"k": shape.tiled_together, "h": shape.sizes.h, "w": shape.sizes.w}
        k, h, w = (side(extent[dim], getattr(self.tiles, dim), bool(moving) and cut[dim]) for dim in "khw")
        return k, h, w

    def _count_blocks(self) -> None:
        sizes, k_blocks = self.shape.sizes, self.k.number[self.kk]
        self.of_image: Any = self.h.number[self.hh] * self.w.number[self.ww]
        # Where only one of k and the image is cut, its blocks are outside what is fetched once.
        k_cut: Any = k_blocks > 1
        image_cut: Any = self.of_image > 1
        again = k_blocks if self.shape.channelwise else np.where(self.k_outside, k_blocks, 1)
        times = sizes.n * (sizes.k // self.group)
        self.images: Any = times * self.of_image * again  # blocks of the ifmap
        self.results: Any = times * self.of_image * k_blocks
        either = image_cut & (self.k_outside | k_cut) | ~image_cut & (self.k_outside != k_cut)
        # One block needs one buffer only.
        twice = (self.images > 1) if "ifmap" in self.room.moving else np.False_
        self.legal: Any = np.broadcast_to(either & (twice | ~self.double), self.shaped)
        self.buffers = {
            operand: np.broadcast_to(1 + (self.double if operand == "ifmap" else self.results > 1), self.shaped)
            for operand in self.room.moving
        }

    def _count_words(self) -> None:
        """Of all buffers; moved in all, of the ifmap alone, of one block of it; before the first and after the last."""
        shape, sizes, moving = self.shape, self.shape.sizes, self.room.moving
        k, h, w = (side.sizes[at] for side, at in ((self.k, self.kk), (self.h, self.hh), (self.w, self.ww)))
        outputs, everything = k * h * w, sizes.n * sizes.k * sizes.h * sizes.w
        self.share: Any = outputs / everything  # of a block of results
        self.moved_image: Any = np.zeros((1,) * AXES)
        self.image: Any = self.moved_image
        if "ifmap" in moving:
            rows, cols = _image(shape, 0, self.h), _image(shape, 1, self.w)
            self.image = (k * sizes.c if shape.channelwise else sizes.c) * rows[0][self.hh] * cols[0][self.ww]
            channels = shape.channels if shape.channelwise else sizes.c * (sizes.k // self.group)
            again = 1 if shape.channelwise else np.where(self.k_outside, self.k.number[self.kk], 1)
            self.moved_image = sizes.n * channels * again * rows[1][self.hh] * cols[1][self.ww]
        results = len(moving & {"output", "residual"})
        self.moved: Any = self.moved_image + results * everything
        self.first: Any = self.image + outputs * ("residual" in moving and "ifmap" in moving)
        last = self.k.last[self.kk] * self.h.last[self.hh] * self.w.last[self.ww]
        self.last: Any = last * ("output" in moving)
        params = shape.params * self.arch.words_per_param * (sizes.h * sizes.w if shape.per_position else sizes.k)
        words: Any = params + self.buffers.get("ifmap", 0) * self.image
        for operand in moving & {"output", "residual"}:
            words = words + self.buffers[operand] * outputs
        if self.tiles.partial:
            words = words + self.arch.words_per_param * (outputs if "output" in moving else everything)
        self.words: Any = words

    def stages(self) -> Iterator[Weights]:
        """Where weights may be staged: all at once, inside the loop over blocks of k, or inside one of the point's."""
        shape, tiles, sizes = self.shape, self.tiles, self.shape.sizes
        everything, taps = shape.weight_words, sizes.r * sizes.s
        yield Weights(0, 1, everything, everything)
        if not shape.is_mac:
            return
        k_block = self.k.sizes[self.kk]
        if len(self.k.sizes) > 1 or sizes.k > shape.tiled_together:
            words = sizes.n * everything * np.where(self.k_outside, 1, self.of_image)
            part = np.where(self.k_outside, np.inf, 1)
            yield Weights(np.where(self.k_outside, 3, 5), 2, k_block * sizes.c * taps, words, part)
        cut = {"h": self.h.sizes[self.hh], "w": self.w.sizes[self.ww]}
        before, inside = tiles.form.order.split("|")
        again, k_now, c_now = sizes.n * self.of_image, k_block, sizes.c
        place = 5
        for dim in before.partition("r")[0]:
            place += 1
            if dim in "hw":
                again = again * -(-cut[dim] // getattr(tiles, dim))
                continue
            k_now, c_now = (np.minimum(k_block, tiles.k), c_now) if dim == "k" else (k_now, tiles.c)
            part = k_now / k_block * (c_now / sizes.c)
            yield Weights(place, 2, k_now * c_now * taps, everything * again, part)
        if inside.startswith("c") and tiles.c < sizes.c:
            part = k_now / k_block * (tiles.c / sizes.c)
            yield Weights(place + tiles.spaces + 1, 2, k_now * tiles.c * taps, everything * again, part)

    def refills(self) -> Any:
        """Cycles in which the array has nothing to do while the DMA fills the one buffer of the ifmap again, but for
        what PEs hold."""
        wpc, latency = self.arch.dram.words_per_cycle, self.arch.dram.latency_cycles
        again = (self.moved_image - self.image) / wpc + (self.images - 1) * latency
        return np.where(self.double | (self.images <= 1), 0, again) if "ifmap" in self.room.moving else 0

    def fits(self, stage: Weights) -> Any:
        """Plans for which there is room."""
        return self.legal & (self.words + stage.buffers * stage.buffer <= self.room.words)


def _image(shape: LayerShape, axis: int, side: Side) -> tuple[Counts, Counts]:
    """Rows (columns) of the image: that a block needs, that all blocks need one after the other."""
    size, taps, limit = ((shape.sizes.h, shape.sizes.r, shape.ih), (shape.sizes.w, shape.sizes.s, shape.iw))[axis]
    stride, dilation = shape.window.stride[axis], shape.window.dilation[axis]

    def needed(outputs: Counts) -> Counts:
        return np.where(side.sizes == size, limit, (outputs - 1) * stride + (taps - 1) * dilation + 1)

    return needed(side.sizes), needed(side.sizes) * (side.number - 1) + needed(side.last)
