"""What the structure of an array allows of a layer at most: cycles that no mapping can be below.

An exhaustive loop over how a layer's dimensions are unrolled on rows and columns, with the largest boxes that fit the
register files (docs/machine.md). It knows only the layer's sizes and the array's numbers, and shares nothing with the
mapper. A bound need not be reachable, because it ignores that engines wait for each other.

If nothing overlaps (TIME-6), all instructions add up, each with a cycle to be decoded and its latency (TIME-1, TIME-2).
Then the number of loaded words counts, too. Take a mapping that is a nest of loops (docs/mapping.md), and its PE with
the most steps:

1. Sums stay in a PE for the outputs of one box, k * h * w, while loops over c, r, s alone run around it (LEGAL-2), say
   for `taps` of the PE's. Then they are committed. If taps are left, they are partial sums (COMMIT-5): each output is
   committed ceil(all taps / taps) times.
2. A PE holds of the weights, or of the image, what some innermost loops need (LEGAL-3). The operand is *inner* if these
   loops are among those of 1. It is *outer* if they contain all loops of 1.
3. Inner weights: each loaded word is used for the h * w outputs of the box only. Outer weights: a PE holds the taps of
   all k at a time, hence k * taps <= weight_words.
4. Inner image: a PE loads the words that the windows of h * w outputs touch. Each word is used for the k of the box
   only, or for one k if channels have images of their own. Outer image: a PE holds the words for all taps during
   several macro-instructions. Pong and FIFO serve one at a time (MAC-6), hence taps <= ifmap_words.
5. If both are outer, the inner loops need one of the two. The image: its words are used for at most weight_words / taps
   channels, those of the held weights. The weights: they are used for at most the outputs of the held image.
6. A load of w words takes at least w cycles (LOAD-2). Neighbours save no words: all PEs read the same slots (MAC-1),
   and the last PE of a set loads all of its slots (MAC-3, MEM-5), in two loads if ping does not hold them. All loads
   together take at least as long as the GLB's port needs for each word once.

Boxes are of one image: bounds are for programs of one image, or for mappings that keep to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from typing import Any

import numpy as np

from cnncc.arch.model import Arch
from cnncc.dialects.nest import LayerOp

DIMS = "kchwrs"
SUMMED, OUTPUTS = "crs", "khw"


@dataclass(frozen=True)
class Shape:
    """A layer of a kind (mac, max, add, copy); k and c are those of one of `groups` groups.

    own: each of the k channels has its own image: depthwise convolutions and pools, which are one group here.
    """

    kind: str
    groups: int
    k: int
    c: int
    h: int
    w: int
    r: int
    s: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    own: bool
    residual: bool
    images: int

    @property
    def results(self) -> int:
        """Words of the output."""
        return self.images * self.groups * self.k * self.h * self.w

    @property
    def operations(self) -> int:
        """MACs, maxima or additions."""
        return self.results * self.c * self.r * self.s

    @property
    def weights(self) -> int:
        """Words of the weights."""
        return self.groups * self.k * self.c * self.r * self.s if self.kind == "mac" else 0

    @property
    def depthwise(self) -> bool:
        """Whether it is a convolution whose every output channel has its own input channel."""
        return self.own and self.kind == "mac"


def shape_of(layer: LayerOp) -> Shape:
    """The shape of a layer at the nest level."""
    sizes, window, kind = layer.sizes.data, layer.window.data, layer.kind.data
    own = kind != "mac" or 1 < window.group == sizes.k
    groups = 1 if own else window.group
    numbers = (sizes.k // groups, sizes.c, sizes.h, sizes.w, sizes.r, sizes.s)
    stride, dilation = (window.stride[0], window.stride[-1]), (window.dilation[0], window.dilation[-1])
    return Shape(kind, groups, *numbers, stride, dilation, own, layer.residual is not None, sizes.n)


@dataclass(frozen=True)
class Bound:
    """The fewest cycles of a layer's macro-instructions, and of the layer."""

    compute: int
    total: int


@lru_cache(maxsize=4096)
def bound(shape: Shape, arch: Arch) -> Bound:
    """The bound of a layer on an array."""
    glb, units = arch.glb.words_per_cycle, arch.cols * arch.commit.units_per_column
    commits = max(_up(shape.results, units), _up(shape.results * (1 + shape.residual), glb))  # COMMIT-3
    if shape.kind == "copy":
        return Bound(0, commits)
    rows, cols = (_unrollings(most, dims) for most, dims in _axes(shape, arch))
    repeats = shape.images * shape.groups
    pes = (rows[:, None] * cols).reshape(-1, len(DIMS))  # of each dimension, for each way to unroll both axes
    steps = -(-np.array([getattr(shape, dim) for dim in DIMS]) // pes)  # that one PE takes
    all_steps = repeats * steps.prod(axis=1)
    boxes, overhead = _boxes(shape, arch), arch.pe.start_cycles + arch.pe.finish_cycles
    largest = int(boxes.prod(axis=1).max())
    loads_of = _Loads(shape, arch) if shape.own else None
    once = _read_once(shape) // glb

    serial = None if arch.sequencer.overlap else _Serial(shape, arch, boxes)

    def together(*engines: int) -> int:
        return max(engines) if arch.sequencer.overlap else sum(engines)  # TIME-6

    compute = total = 1 << 62
    for i in np.argsort(all_steps, kind="stable"):
        least = _up(int(all_steps[i]), arch.pe.lanes) + overhead * _up(int(all_steps[i]), largest)
        if least >= compute and together(least, commits) >= total:
            break
        macros = repeats * int((-(-steps[i] // boxes)).prod(axis=1).min())
        cycles = _up(int(all_steps[i]), arch.pe.lanes) + overhead * macros  # MAC-4
        compute = min(compute, cycles)
        if together(cycles, commits) < total:
            loads = max(once, loads_of.cycles(*pes[i, 2:].tolist())) if loads_of else once
            least = together(cycles, commits, loads)
            total = min(total, max(least, serial.cycles(steps[i])) if serial else least)
    return Bound(compute, total)


def through_dram(shape: Shape, arch: Arch) -> int:
    """Cycles of the DMA while a layer runs (DMA-2), at least, for the words that exceed the GLB.

    Layers run one after the other. The weights, the image and the residual are in the GLB when the layer before ends,
    or are streamed after that. The results are in the GLB when the layer ends, or have been streamed out.
    """
    words = _read_once(shape) + shape.results * shape.residual, shape.results
    moved = sum(max(0, needed - arch.glb.words) for needed in words)
    return moved * arch.dram.rate_cycles // arch.dram.rate_words


def _up(a: int, b: int) -> int:
    return -(-a // b)


# -- unrolling ---------------------------------------------------------------------------------------------------------


def _axes(shape: Shape, arch: Arch) -> Iterator[tuple[int, dict[str, int]]]:
    """PEs of rows and of columns, and which dimensions may be on them: sums meet on their way south only (COMMIT-6)."""
    south = arch.links.south and shape.kind != "max"
    yield arch.rows, {dim: getattr(shape, dim) for dim in OUTPUTS + SUMMED * south}
    yield arch.cols, {dim: getattr(shape, dim) for dim in OUTPUTS}


def _unrollings(most: int, dims: dict[str, int]) -> Any:
    """int[unrolling, dim]: PEs of each dimension on an axis, two dimensions at most (DESC-4: sets, and PEs in them)."""
    unrollings = {(1,) * len(DIMS)}
    for one, other in combinations(dims, 2):
        for a in range(1, min(most, dims[one]) + 1):
            for b in range(1, min(most // a, dims[other]) + 1):
                unrollings.add(tuple(a if dim == one else b if dim == other else 1 for dim in DIMS))
    return np.array(sorted(unrollings))


# -- boxes -------------------------------------------------------------------------------------------------------------


def _side(outputs: int, taps: int, stride: int, dilation: int) -> int:
    """Rows (columns) of the image that so many windows of so many taps touch."""
    return len({stride * i + dilation * j for i in range(outputs) for j in range(taps)})


def _parts(size: int, most: int) -> list[int]:
    return sorted({_up(size, count) for count in range(1, size + 1) if _up(size, count) <= most})


def _boxes(shape: Shape, arch: Arch) -> Any:
    """int[box, dim]: extents of macro-instructions that fit the register files, with the largest c."""
    pe, boxes = arch.pe, set[tuple[int, ...]]()
    taps = list(product(_parts(shape.r, shape.r), _parts(shape.s, shape.s)))
    for k in range(1, min(shape.k, pe.psum_words) + 1):
        for h in range(1, min(shape.h, pe.psum_words // k) + 1):
            for w in range(1, min(shape.w, pe.psum_words // (k * h)) + 1):
                for r, s in taps:
                    c = _most_channels(shape, arch, k, h, w, r, s)
                    if c and _counted(shape, arch, k, c, h, w, r, s):
                        boxes.add((k, c, h, w, r, s))
    return np.array(sorted(boxes))


def _most_channels(shape: Shape, arch: Arch, k: int, h: int, w: int, r: int, s: int) -> int:
    """The most input channels in a box; 0 if none fits."""
    pe, rows = arch.pe, _side(h, r, shape.stride[0], shape.dilation[0])
    columns = _side(w, s, shape.stride[1], shape.dilation[1])
    most = _budget(shape, arch, rows * (k if shape.own else 1), columns, w, s)
    if shape.kind == "mac":
        most = min(most, pe.weight_words // (k * r * s))
    return min(most, shape.c)


def _budget(shape: Shape, arch: Arch, column: int, columns: int, w: int, s: int) -> int:
    """How many times the file of the ifmap holds these words: as one memory, or as ping and pong (MAC-6)."""
    pe = arch.pe
    whole = pe.ifmap_words // (column * columns)
    passed = max(0, s - shape.stride[1]) if arch.links.n2n and shape.dilation[1] == 1 and w == 1 else 0
    if not pe.pong_words or not passed:
        return whole
    fresh = columns - passed
    in_turn = min(pe.ifmap_words // (fresh * column), pe.virtual_words // (passed * column))
    return max(whole, min(in_turn, pe.pong_words // (min(fresh, passed) * column)))


def _counted(shape: Shape, arch: Arch, k: int, c: int, h: int, w: int, r: int, s: int) -> bool:
    """Whether the three counters of a macro-instruction (MAC-1) can walk the box.

    One counter is for pixels: rows and columns are one run if windows do not overlap in a row. A second counter can
    take the rows if neither taps nor channels need it.
    """
    pixels = h * w <= arch.pe.max_pixels and (h == 1 or w == 1 or s <= shape.stride[1])
    return pixels or ((k == 1 or c * r * s == 1) and min(h, w) <= arch.pe.max_pixels)


# -- nothing overlaps --------------------------------------------------------------------------------------------------


class _Serial:
    """What a layer takes at least where nothing overlaps (TIME-6), by the argument above, for any of its boxes."""

    def __init__(self, shape: Shape, arch: Arch, boxes: Any) -> None:
        self.shape, self.arch, self.boxes = shape, arch, boxes
        self.k, _, h, w, _, _ = boxes.T
        self.once = _read_once(shape) // arch.glb.words_per_cycle
        self.pixels = h * w
        rows = _touched(shape.h, shape.r, shape.stride[0], shape.dilation[0])
        columns = _touched(shape.w, shape.s, shape.stride[1], shape.dilation[1])
        self.words = rows[h] * columns[w]  # of the image for a step of one channel
        most = arch.pe.ifmap_words  # outputs that are there at a time in one memory
        fit = ((n, m) for n in range(1, min(shape.h, most) + 1) for m in range(1, min(shape.w, most // n) + 1))
        self.fewest_words = float(min(rows[n] * columns[m] for n, m in fit))

    def cycles(self, steps: Any) -> int:
        """The least over all boxes, and over what is held; steps: of each dimension, of one PE."""
        shape, pe = self.shape, self.arch.pe
        taps, tiles = int(steps[[1, 4, 5]].prod()), -(-steps // self.boxes)
        repeats = shape.images * shape.groups
        every = repeats * int(steps.prod())
        macs, outputs = (repeats * tiles[:, dims].prod(axis=1) for dims in (range(len(DIMS)), [0, 2, 3]))

        def together(most_taps: Any, words: Any, weights: Any) -> int:
            """Where sums stay for so many taps and so many words of the image and weights are loaded."""
            passes = -(-taps // np.minimum(np.maximum(most_taps, 1), taps))
            least = np.maximum(macs, passes * outputs) * (1 + pe.start_cycles + pe.finish_cycles)  # TIME-1, MAC-4
            least = least + passes * outputs * (1 + self.arch.commit.latency_cycles) + self._commits(passes)
            return _up(every, pe.lanes) + int((least + self._loads(words, weights)).min())

        k = 1 if shape.own else self.k
        image, image_kept = every * self.words / k, every * self.fewest_words if shape.own else 0
        if shape.kind != "mac":
            return min(together(taps, image, 0), together(pe.ifmap_words, image_kept, 0))
        weights, kept_taps = every / self.pixels, pe.weight_words // self.k
        bounds = [together(taps, image, weights), together(kept_taps, image, 0)]
        bounds.append(together(pe.ifmap_words, image_kept, weights))
        for count in {_up(taps, passes) for passes in range(1, taps + 1)}:
            if count <= pe.ifmap_words and (fits := count <= kept_taps).any():
                channels = 1 if shape.own else min(shape.k, pe.weight_words // count)
                inside = np.where(fits, every * self.fewest_words / channels, 1 << 40)
                outside = np.where(fits, every * self.fewest_words * count / pe.ifmap_words, 1 << 40)
                bounds += [together(count, inside, 0), together(count, image_kept, outside)]
        return min(bounds)

    def _loads(self, image: Any, weights: Any) -> Any:
        """Cycles of loads of so many words in all (TIME-1, LOAD-2)."""
        pe, overhead = self.arch.pe, 1 + self.arch.bus.latency_cycles
        most = max(pe.ifmap_words, (pe.ifmap_words + pe.virtual_words * (pe.pong_words > 0)) / 2)
        busy = np.maximum(image + weights, self.once)
        return np.floor(busy + overhead * (image / most + weights / pe.weight_words) + 1e-6)

    def _commits(self, passes: Any) -> Any:
        """Cycles of the output units, each result being committed so many times (COMMIT-3, COMMIT-5)."""
        shape, glb = self.shape, self.arch.glb.words_per_cycle
        units = _up(shape.results, self.arch.cols * self.arch.commit.units_per_column)
        once = max(units, _up(shape.results * (1 + shape.residual), glb))
        partial = max(units, shape.results * 2 * (32 // self.arch.operand_bits) // glb)
        return np.where(passes > 1, passes * partial, once)


def _touched(outputs: int, taps: int, stride: int, dilation: int) -> Any:
    """float[n]: rows of the image for each output and tap, at least, where up to n windows are there at a time."""
    shares = [
        min(_side(n, count, stride, dilation) / (n * count) for count in range(1, taps + 1))
        for n in range(1, outputs + 1)
    ]
    return np.minimum.accumulate([1.0, *shares])


# -- loads -------------------------------------------------------------------------------------------------------------


def image_words(shape: Shape) -> int:
    """Words of the image that are read at least: each pixel that a window touches."""
    rows = _side(shape.h, shape.r, shape.stride[0], shape.dilation[0])
    columns = _side(shape.w, shape.s, shape.stride[1], shape.dilation[1])
    pad = (shape.r - 1) * shape.dilation[0], (shape.s - 1) * shape.dilation[1]  # at most so much is a border
    inside = max(1, rows - pad[0]) * max(1, columns - pad[1])
    return shape.images * (shape.k if shape.own else shape.groups * shape.c) * inside


def _read_once(shape: Shape) -> int:
    """Words that PEs read at least."""
    return shape.weights + image_words(shape)


class _Loads:
    """Cycles of the GLB's port (LOAD-2), at least, where no input channel is of use to two output channels.

    Rows that several PEs need at the same place come once, and neighbours pass on the columns that they share (MAC-3).
    """

    def __init__(self, shape: Shape, arch: Arch) -> None:
        self.shape, self.arch = shape, arch
        self.held = _held(shape, arch)
        self.known = dict[tuple[int, ...], int]()  # many ways to unroll differ in k and c alone

    def cycles(self, *pes: int) -> int:
        """With so many PEs of h, w, r and s."""
        if pes not in self.known:
            self.known[pes] = self._cycles(*pes)
        return self.known[pes]

    def _cycles(self, pes_h: int, pes_w: int, pes_r: int, pes_s: int) -> int:
        shape, (h, w, r, s, rows, columns) = self.shape, self.held
        (down, along), (step_y, step_x) = shape.stride, shape.dilation
        passed = np.maximum(0, s - along) if self.arch.links.n2n and step_x == 1 else np.zeros_like(s)
        alone = columns * _places(pes_w, pes_s, along * w, step_x * s)
        across = np.minimum(alone, (columns - passed) * pes_w + passed) / (pes_w * w)
        rows = rows * _places(pes_h, pes_r, down * h, step_y * r) / (pes_h * h)
        taps = np.ceil(shape.r / (pes_r * r)) * np.ceil(shape.s / (pes_s * s))
        words = shape.images * shape.k * shape.h * shape.w * float((across * rows * taps).min())
        return int((words + shape.weights) / self.arch.glb.words_per_cycle)


def _held(shape: Shape, arch: Arch) -> Any:
    """float[held, 6]: h w r s, rows and columns of the image, of all parts of a channel that a PE can hold."""
    most = arch.pe.ifmap_words + (arch.pe.virtual_words if arch.pe.pong_words else 0)
    parts: list[tuple[int, ...]] = []
    for r, s in product(_parts(shape.r, shape.r), _parts(shape.s, shape.s)):
        for h in range(1, shape.h + 1):
            rows = _side(h, r, shape.stride[0], shape.dilation[0])
            if rows > most:
                break
            for w in range(1, shape.w + 1):
                columns = _side(w, s, shape.stride[1], shape.dilation[1])
                if rows * columns > most:
                    break
                parts.append((h, w, r, s, rows, columns))
    return np.array(parts, float).T


def _places(outputs: int, taps: int, output_step: Any, tap_step: Any) -> Any:
    """At how many different places the PEs of so many outputs and taps begin, for arrays of steps."""
    i, j = np.arange(outputs)[:, None, None], np.arange(taps)[:, None]
    places = np.sort((i * output_step + j * tap_step).reshape(outputs * taps, -1), axis=0)
    return 1 + (np.diff(places, axis=0) > 0).sum(axis=0)
