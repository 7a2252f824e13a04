"""The shape of a layer as mappings see it, and the buffers of its stages in the GLB. No IR.

A stage holds the words that the loops inside it need: some channels, rows and columns of an image or an output. A
buffer of R rows, fewer than the image has, is a ring: row y lies at y mod R (rule DESC-2), and columns likewise. So the
rest of a program uses positions in the image alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from cnncc.arch.model import Arch
from cnncc.mapping.mapping import Loop, Mapping, Sizes, Stage, channel_periods, is_channelwise, tiled_together
from cnncc.window import Window

Extents = dict[str, int]
MOST_BLOCKS = (1 << 16) - 1  # channels of images that a transfer has (`count` of `dma`)
MOST_IMAGES = 64  # of which a buffer has a part of the channels: each has a transfer of its own


@dataclass(frozen=True)
class GlbBudget:
    """The words of the GLB that the buffers of a layer may take.

    - streamed: the operands among ifmap, residual and output that lie in DRAM and pass through the GLB block by block.
      The others are resident, outside of `words`.
    - residual: whether the layer reads one.
    - tight: whether one buffer may stand where two do not fit, and parameters may come in slices (SPACE-13).
    - prefetched: whether the first weights and parameters are there when the layer starts. Those of a network's first
      layer are not.
    """

    words: int
    streamed: frozenset[str] = frozenset()
    residual: bool = False
    tight: bool = False
    prefetched: bool = True


@dataclass(frozen=True)
class LayerShape:
    """A layer of a kind (mac, max, add, copy) on an image of ih x iw.

    - params: parameters (bias, scale) of each output channel; with per_position, of each output position
    - shuffle: the number of groups in which output channels are shuffled
    - image: words from an image of the output to the next where it is part of a larger value; 0 where it is not
    - residual_apart: whether images of residual and output lie at different distances: PEs commit to one at a time
    - table: whether the output units have one
    """

    kind: str
    sizes: Sizes
    window: Window
    params: int
    ih: int
    iw: int
    shuffle: int = 1
    per_position: bool = False
    image: int = 0
    residual_apart: bool = False
    table: bool = False

    @cached_property
    def is_mac(self) -> bool:
        """Whether there are weights."""
        return self.kind == "mac"

    @cached_property
    def weight_words(self) -> int:
        """Words of all weights."""
        return self.sizes.k * self.sizes.c * self.sizes.r * self.sizes.s if self.is_mac else 0

    def param_words(self, arch: Arch) -> int:
        """Words of all parameters."""
        sizes = self.sizes
        return self.params * arch.words_per_param * (sizes.h * sizes.w if self.per_position else sizes.k)

    @cached_property
    def operations(self) -> int:
        """MACs of all PEs, or whatever operation the kind has."""
        return prod(vars(self.sizes).values())

    @cached_property
    def results(self) -> int:
        """Words of the output."""
        return self.sizes.n * self.sizes.k * self.sizes.h * self.sizes.w

    def operands(self, residual: bool) -> set[str]:
        """The operands of a layer with this shape. residual: whether it reads one."""
        has = {"weight": self.is_mac, "params": self.params > 0, "residual": residual}
        return {"ifmap", "output", *(name for name, there in has.items() if there)}

    @cached_property
    def channelwise(self) -> bool:
        """Whether each output channel has input channels of its own: pools, and as many groups as output channels."""
        return is_channelwise(self.kind, self.sizes, self.window.group)

    def most_lanes(self, arch: Arch) -> int:
        """The most lanes of a PE that the layer can use: all where lanes have sums of their own (MAC-7)."""
        return arch.pe.lanes if arch.pe.lane_sums else self.most_products(arch)

    def most_products(self, arch: Arch) -> int:
        """The most products of a PE that lanes add up in a step: those of a sum. A pool has none."""
        return min(arch.pe.lanes, self.sizes.c * self.sizes.r * self.sizes.s) if self.is_mac else 1

    def busy_cycles(self, arch: Arch) -> int:
        """Cycles of the layer at least: all PEs, with all lanes that it can use, always work."""
        return -(-self.operations // (arch.rows * arch.cols * self.most_lanes(arch)))

    @cached_property
    def group(self) -> int:
        """Output channels of a group."""
        return self.sizes.k // self.window.group

    @cached_property
    def channels(self) -> int:
        """Channels of the image."""
        return self.sizes.c * self.window.group

    def channels_of(self, operand: str) -> int:
        """Channels of an activation (ifmap, residual, output)."""
        return self.channels if operand == "ifmap" else self.sizes.k

    @property
    def periods(self) -> dict[str, int]:
        """Output channels after which an operand's positions start anew (`channel_periods`)."""
        return channel_periods(self.kind, self.sizes, self.window.group, self.shuffle)

    @cached_property
    def tiled_together(self) -> int:
        """How many output channels may be tiled together: those of the smallest period, or all."""
        return tiled_together(self.kind, self.sizes, self.window.group, self.shuffle)


@dataclass(frozen=True)
class ActivationBlock:
    """A buffer of images, channels, rows and columns. A side with fewer rows (columns) than the image is a ring."""

    images: int
    channels: int
    rows: int
    cols: int
    all_rows: bool
    all_cols: bool

    @property
    def plane(self) -> int:
        """Words of a channel."""
        return self.rows * self.cols

    @property
    def words(self) -> int:
        """Words of all."""
        return self.images * self.channels * self.plane

    def transfers(self, channels: int, apart: bool = False) -> int:
        """The transfers that a buffer takes: one, or one for each image where DRAM has other words between.

        channels: of an image in DRAM. apart: whether there are gaps between images.
        """
        # DMA-1: the blocks of a transfer are equally far apart. Channels of several images are so if none is left out.
        together = self.channels == channels and not apart and self.images * channels <= MOST_BLOCKS
        return 1 if together else self.images

    @property
    def ring_y(self) -> int:
        """The rows of the ring; 0 without one."""
        return 0 if self.all_rows else self.rows

    @property
    def ring_x(self) -> int:
        """The columns of the ring; 0 without one."""
        return 0 if self.all_cols else self.cols


def whole(sizes: Sizes) -> Extents:
    """All indices of a layer."""
    return dict(vars(sizes))


def inside(sizes: Sizes, loops: Sequence[Loop]) -> Extents:
    """The indices of each dimension inside a full iteration of these nested loops."""
    extent = whole(sizes)
    for loop in loops:
        if loop.step < extent[loop.dim]:
            extent[loop.dim] = loop.step
    return extent


def reach(outputs: int, taps: int, stride: int, dilation: int) -> int:
    """Rows (columns) of the image from the first to the last one that `outputs` windows of `taps` taps touch."""
    return (outputs - 1) * stride + (taps - 1) * dilation + 1


def image_words(shape: LayerShape) -> int:
    """Words of the image that windows touch."""
    sizes, window = shape.sizes, shape.window
    rows = lines_touched(sizes.h, sizes.r, window.stride[0], window.dilation[0], window.pad[0], shape.ih)
    cols = lines_touched(sizes.w, sizes.s, window.stride[1], window.dilation[1], window.pad[1], shape.iw)
    return sizes.n * shape.channels * rows * cols


def lines_touched(outputs: int, taps: int, stride: int, dilation: int, pad: int, extent: int) -> int:
    """Rows (columns) of an image that windows touch. Those of the padding are none.

    >>> lines_touched(outputs=4, taps=2, stride=3, dilation=1, pad=1, extent=9)  # 0, 2, 3, 5, 6, 8
    6
    """
    touched = {at * stride - pad + tap * dilation for at in range(outputs) for tap in range(taps)}
    return sum(0 <= line < extent for line in touched)


def ifmap_block(shape: LayerShape, extent: Extents) -> ActivationBlock:
    """The part of the image that outputs of this extent need.

    All output rows (columns) need all of the image's, unless a loop over taps moves the block.
    """
    sizes, window = shape.sizes, shape.window
    groups = extent["k"] if shape.channelwise else max(1, extent["k"] // shape.group)
    channels = (groups - 1) * sizes.c + extent["c"]  # from the first one of the first group to the last one of the last
    all_rows, all_cols = (all(extent[dim] == sizes.of(dim) for dim in dims) for dims in ("hr", "ws"))
    # A block has whole windows: a loop over taps outside its stage moves it, and does not make it smaller.
    rows = shape.ih if all_rows else reach(extent["h"], sizes.r, window.stride[0], window.dilation[0])
    cols = shape.iw if all_cols else reach(extent["w"], sizes.s, window.stride[1], window.dilation[1])
    return ActivationBlock(extent["n"], channels, rows, cols, all_rows, all_cols)


def output_block(shape: LayerShape, extent: Extents) -> ActivationBlock:
    """The buffer of outputs, or of a residual, of this extent."""
    sizes = shape.sizes
    all_rows, all_cols = extent["h"] == sizes.h, extent["w"] == sizes.w
    return ActivationBlock(extent["n"], extent["k"], extent["h"], extent["w"], all_rows, all_cols)


def activation_block(shape: LayerShape, operand: str, extent: Extents) -> ActivationBlock:
    """The buffer of an activation (ifmap, residual, output) for outputs of this extent."""
    return ifmap_block(shape, extent) if operand == "ifmap" else output_block(shape, extent)


def stage_block(shape: LayerShape, loops: Sequence[Loop], stage: Stage) -> ActivationBlock:
    """The buffer of a stage of an activation."""
    return activation_block(shape, stage.operand, inside(shape.sizes, loops[: stage.depth]))


def slice_words(shape: LayerShape, loops: Sequence[Loop], stage: Stage, words_per_channel: int) -> int:
    """Words of a full slice of weights or params. words_per_channel: of params, or of one position."""
    # Inside loops in space a slice has the output channels of all their PEs.
    channels, sizes = inside(shape.sizes, [loop for loop in loops[: stage.depth] if not loop.on])["k"], shape.sizes
    if stage.operand == "params" and shape.per_position:
        extent = inside(sizes, loops[: stage.depth])
        return extent["h"] * extent["w"] * words_per_channel
    if stage.operand == "params":
        return channels * words_per_channel
    # LEGAL-5: a slice has all taps of its weights.
    return channels * inside(sizes, loops[: stage.depth])["c"] * sizes.r * sizes.s


def stage_words(shape: LayerShape, loops: Sequence[Loop], stage: Stage, words_per_channel: int) -> int:
    """Words of the buffers that a stage in the GLB fills."""
    if stage.operand in ("weight", "params"):
        return stage.buffers * slice_words(shape, loops, stage, words_per_channel)
    return stage.buffers * stage_block(shape, loops, stage).words


def slices(mapping: Mapping) -> tuple[list[int], int]:
    """(depths, loop): the stages that prefetch slices inside the blocks of a double-buffered output (GLB-3).

    All slices come in one loop in time; loop: its number, -1 without slices.
    """
    stages = mapping.glb_stages
    output = stages.pop("output", None)
    depths, opened = list[int](), -1
    if output is None or output.buffers == 1:
        return depths, opened
    for depth in sorted({stage.depth for stage in stages.values() if stage.buffers > 1 and stage.depth}):
        between = [loop for loop in range(output.depth, depth) if not mapping.loops[loop].on]
        if len(between) == 1:
            depths.append(depth)
            opened = between[0]
    return depths, opened


def buffer_sizes(shape: LayerShape, arch: Arch, mapping: Mapping, partial: bool) -> dict[str, int]:
    """GLB words of a mapping by operand, with all buffers of a stage; `sums` are the partial sums, if there are any."""
    staged = mapping.glb_stages
    params = shape.params * arch.words_per_param
    words = {operand: stage_words(shape, mapping.loops, stage, params) for operand, stage in staged.items()}
    if partial:
        output, image = staged.get("output"), shape.results // shape.sizes.n
        apart = max(shape.image, image)  # sums lie as far apart as results
        of_all = (shape.sizes.n - 1) * apart + image
        results = stage_block(shape, mapping.loops, output).words if output else of_all
        words["sums"] = arch.words_per_sum * results
    return words


def buffer_words(shape: LayerShape, arch: Arch, mapping: Mapping, partial: bool) -> int:
    """The sum of `buffer_sizes`."""
    return sum(buffer_sizes(shape, arch, mapping, partial).values())
