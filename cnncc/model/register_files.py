"""The content of the register files of a PE, and its slots. No IR.

A half holds the ifmap (weights) of all indices that loops in time inside its stage run over; loops in space spread the
rest over PEs. Words are stored in the order of the box (the loops inside the PE): indices of its innermost loop are
neighbours. If an ifmap half is ping and pong (rule MAC-6), columns that the east neighbour's window shares pass through
its alternating buffers.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.array_instructions import AXES, Extent
from cnncc.mapping.mapping import OUTPUT_DIMS, Loop, Stage
from cnncc.model.layer_shape import Extents, LayerShape, inside

MACHINE_ORDER = {False: "wscrk", True: "wksr"}  # of a box, by whether a layer is channelwise


def lanes_order(lanes: str) -> str:
    """The order of a box whose lanes take several dimensions: their words lie together in both register files.

    >>> lanes_order("sr"), lanes_order("cr")
    ('wkcsr', 'wkscr')
    """
    return "wk" + "".join(sorted("scr", key=lambda dim: dim in lanes))


def indexed_by(shape: LayerShape, operand: str) -> str:
    """The dimensions that the words of weights or ifmap depend on."""
    return {"weight": "kcrs", "ifmap": "nkchwrs" if shape.channelwise else "nchwrs"}.get(operand, "")


class Axis(NamedTuple):
    """One axis of an operand in a half. extent: its words in a load. steps: words from index to index, by dimension."""

    extent: Extent
    steps: Map[str, int]


@dataclass(frozen=True)
class Layout:
    """The axes of an operand in a half, outermost first."""

    axes: tuple[Axis, ...]

    @property
    def pattern(self) -> tuple[Extent, ...]:
        """The pattern of a load."""
        return tuple(axis.extent for axis in self.axes)

    @property
    def words(self) -> int:
        """Slots that it takes."""
        return prod(axis.extent.n for axis in self.axes)

    def step(self, dim: str) -> int:
        """Slots from an index of a dimension to the next one; 0 if the operand does not depend on the dimension."""
        inner = 1
        for axis in reversed(self.axes):
            if dim in axis.steps:
                return axis.steps[dim] * inner
            inner *= axis.extent.n
        return 0


def positions(outputs: int, taps: int, stride: int, dilation: int) -> tuple[int, int]:
    """(count, step): the rows (columns) of the image that `outputs` windows of `taps` taps need, at equal steps.

    >>> positions(1, 3, 1, 2), positions(3, 1, 2, 1), positions(3, 3, 2, 1)
    ((3, 2), (3, 2), (7, 1))
    """
    # One output touches lines `dilation` apart, one tap lines `stride` apart, several of both multiples of the gcd.
    step = dilation if outputs == 1 else stride if taps == 1 else gcd(stride, dilation)
    return ((outputs - 1) * stride + (taps - 1) * dilation) // step + 1, step


def ifmap_layout(shape: LayerShape, held: Extents, image: int, box: str) -> Layout:
    """The ifmap of the indices `held`. image: words from image to image. box: the dimensions of the loops in the PE."""
    own = {dim: held.get(dim, 1) for dim in "nkchwrs"}
    channels = [Axis(Extent(own["k"], "k", shape.sizes.c), {"k": 1})] if shape.channelwise else []
    if not shape.channelwise or own["c"] > 1:
        channels.append(Axis(Extent(own["c"], "k", 1), {"c": 1}))
    sides: list[Axis] = []
    for axis, (name, out, tap) in enumerate(zip(AXES[2:], "hw", "rs", strict=True)):
        stride, dilation = shape.window.stride[axis], shape.window.dilation[axis]
        count, step = positions(own[out], own[tap], stride, dilation)
        # Of a single output, or tap, the step in lines may be less than `step`. It is not used then.
        sides.append(Axis(Extent(count, name, step), {out: max(1, stride // step), tap: max(1, dilation // step)}))
    images = [Axis(Extent(own["n"], "lin", image), {"n": 1})] if own["n"] > 1 else []
    return _in_order([*images, *channels, *sides], box, MACHINE_ORDER[shape.channelwise])


def ifmap_words(shape: LayerShape, held: Extents) -> tuple[int, int]:
    """Columns of the image that the indices `held` need, and the words of one, as in the layout."""
    rows, columns = (
        positions(held.get(out, 1), held[tap], shape.window.stride[axis], shape.window.dilation[axis])[0]
        for axis, (out, tap) in enumerate(("hr", "ws"))
    )
    return columns, held.get("n", 1) * held["c"] * (held["k"] if shape.channelwise else 1) * rows


def weight_layout(shape: LayerShape, held: Extents, steps: Map[str, int], box: str) -> Layout:
    """The weights of the indices `held`. steps: words in the GLB from index to index, by dimension."""
    dims = "krs" if shape.channelwise and held["c"] == 1 else "kcrs"
    axes = [Axis(Extent(held[dim], "lin", steps[dim]), {dim: 1}) for dim in dims]
    return _in_order(axes, box, MACHINE_ORDER[shape.channelwise])


def _in_order(axes: Sequence[Axis], box: str, order: str) -> Layout:
    """The layout of the axes, sorted so that inner loops of the box step along inner axes."""
    order = order if is_in_order(box, order) else box
    # What the box does not step through, as images, stands outermost: `rfind` gives -1.
    return Layout(tuple(sorted(axes, key=lambda axis: max(order.rfind(dim) for dim in axis.steps))))


def is_in_order(box: str, order: str) -> bool:
    """Whether the loops of a box are a subsequence of `order`.

    >>> is_in_order("wck", "wscrk"), is_in_order("kc", "wscrk"), is_in_order("h", "wscrk")
    (True, False, False)
    """
    return box == "".join(dim for dim in order if dim in box)


def lanes_used(kept: Sequence[Loop], dim: str, held: int) -> int:
    """The number of the `held` indices of a dimension that a PE's lanes take at a time, by the loops of the box.

    Output channels that are no multiple of the lanes run on one lane (LEGAL-6).
    """
    over = [loop for loop in kept if loop.dim == dim]
    if not any(loop.on for loop in over):
        return 1
    count = min([held, *(loop.step for loop in over if not loop.on)])
    return 1 if dim == "k" and held % count else count


def channel_slots(arch: Arch, channels: int, lanes: int) -> int:
    """Psum slots from pixel to pixel: those of the channels, or of whole rows of banks if lanes have them (MAC-7)."""
    return channels if lanes == 1 else -(-channels // arch.pe.lanes) * arch.pe.lanes


def psum_slots(arch: Arch, extent: Extents, lanes: int = 1) -> int:
    """The psum slots of a box, up to the last one; lanes: those over output channels."""
    pixels, channels = prod(extent.get(dim, 1) for dim in OUTPUT_DIMS if dim != "k"), extent.get("k", 1)
    return (pixels - 1) * channel_slots(arch, channels, lanes) + channels


def held_extents(shape: LayerShape, outer: Sequence[Loop], depth: int) -> Extents:
    """The indices that a PE holds of an operand whose stage is inside `depth` of the loops outside the box."""
    extent = inside(shape.sizes, outer[:depth])
    for loop in (loop for loop in outer[depth:] if loop.on):
        extent[loop.dim] = min(loop.step, extent[loop.dim])
    return extent


def passes_columns(shape: LayerShape, arch: Arch, loops: Sequence[Loop], stages: Sequence[Stage]) -> bool:
    """Whether PEs may receive columns of the image from their east neighbours.

    Each macro-instruction then has its own half. The innermost loop on columns runs over w in steps of a
    macro-instruction's pixels, or each PE is a set by itself.
    """
    outer = [loop for loop in loops if not loop.keep]
    box = "".join(loop.dim for loop in loops if loop.keep)
    cols = [loop for loop in outer if loop.on == "cols"]
    ends = all(stage.depth == len(outer) for stage in stages if (stage.operand, stage.memory) == ("ifmap", "rf"))
    pixels = [loop for loop in outer if loop.dim == "w"]
    alone = len(cols) < 2 or (cols[-1].dim == "w" and pixels[-1] is cols[-1])
    if any(loop.on for loop in loops if loop.keep and loop.dim != "k"):
        return False  # with lanes over taps, the steps are too few for the neighbour's words to arrive
    if arch.pe.pong_words and held_extents(shape, outer, len(outer))["w"] > 1:
        return False  # turns are of single pixels; a rest of one pixel has no space reserved either
    # MAC-3: passed words fill one run of slots. So columns are outermost in a half, as in the machine's order.
    return arch.links.n2n and ends and alone and is_in_order(box, MACHINE_ORDER[shape.channelwise])


def shared_columns(shape: LayerShape, arch: Arch, s: int, z: int) -> int:
    """The number of columns, the last ones, that a neighbour can pass on: one run of slots, never dilated columns."""
    shares = arch.links.n2n and not shape.channelwise and shape.window.dilation[1] == 1
    return max(0, s - shape.window.stride[1]) if shares and (z == 1 or not arch.pe.pong_words) else 0


def file_words(shape: LayerShape, arch: Arch, loops: Sequence[Loop], stages: Sequence[Stage]) -> dict[str, int]:
    """Register-file words that a PE needs for a mapping, by the key of `arch.pe` that limits them."""
    outer = [loop for loop in loops if not loop.keep]
    depth = {stage.operand: stage.depth for stage in stages if stage.memory == "rf"}
    box = held_extents(shape, outer, len(outer))
    weight = held_extents(shape, outer, depth.get("weight", len(outer)))
    ifmap = held_extents(shape, outer, depth.get("ifmap", len(outer)))
    psums = psum_slots(arch, box, lanes_used([loop for loop in loops if loop.keep], "k", box["k"]))
    return _words(shape, arch, psums, weight, ifmap, passes_columns(shape, arch, loops, stages))


def macro_words(shape: LayerShape, arch: Arch, extent: Extents, lanes: int = 1) -> dict[str, int]:
    """The register-file words of one macro-instruction of this extent that shares no words with others.

    lanes: those over output channels.
    """
    return _words(shape, arch, psum_slots(arch, extent, lanes), extent, extent, passes=True)


def _words(shape: LayerShape, arch: Arch, psums: int, weight: Extents, ifmap: Extents, passes: bool) -> dict[str, int]:
    words = {"psum_words": psums}
    if shape.is_mac:
        words["weight_words"] = prod(weight[dim] for dim in "kcrs")
    columns, column = ifmap_words(shape, ifmap)
    shared = shared_columns(shape, arch, ifmap["s"], ifmap["w"]) if passes else 0
    if not (arch.pe.pong_words and shared):
        return words | {"ifmap_words": columns * column}
    # MAC-6: words go to ping and pong in turns, each of as many words as a PE loads. The FIFO has the passed ones.
    turn = (columns - shared) * column
    return words | {
        "ifmap_words": turn,
        "pong_words": min(turn, shared * column),
        "virtual_words": shared * column,
    }


def most_channels(shape: LayerShape, arch: Arch, extent: Extents) -> int:
    """The most input channels of a macro-instruction of this extent that fit the register files; 0 if none do."""
    words = macro_words(shape, arch, {**extent, "c": 1})
    # All numbers of words but that of psums grow with the input channels.
    if words.pop("psum_words") > arch.pe.psum_words:
        return 0
    most = min(int(getattr(arch.pe, key)) // per_channel for key, per_channel in words.items())
    return min(most, 1) if shape.channelwise else most
