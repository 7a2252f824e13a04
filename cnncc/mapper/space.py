"""The space of mappings that the search covers: its points, how they are mapped, and what the array does for each.

A point is a form, which says in which order loops run, and numbers; docs/mapper.md states the space, rule by rule. All
numbers of a layer are combined (`combinations.py`); only those that take few enough cycles become points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, lru_cache
from itertools import combinations
from math import prod
from typing import NamedTuple

import numpy as np

from cnncc.arch.model import Arch, Dram, Glb, Links, Pe
from cnncc.mapper.arrays import Counts, Flags
from cnncc.mapper.boxes import boxes, has_rows
from cnncc.mapping.mapping import Loop, Mapping, Sizes, Stage, without_single
from cnncc.model.layer_shape import LayerShape
from cnncc.model.register_files import MACHINE_ORDER, lanes_order

Chain = tuple[int, int, int, bool]
"""PEs of a dimension on rows and on columns, indices in the box, and whether PEs share the dimension out."""

ROW_DIMS, COL_DIMS = "khcr", "khw"
BOX_DIMS = ("k", "w", "h", "c", "r", "s")


class Form(NamedTuple):
    """An order of loops: time loops over tiles, `|` where those in space stand, W and I where weights and ifmap are
    staged in register files. Dimensions that stand behind `|` are shared out among the PEs, the others tiled.
    """

    name: str
    order: str


FORMS = (
    Form("os", "khw|crsWI"),
    Form("os", "hkw|crsWI"),
    Form("os", "hwk|crsWI"),
    Form("ws", "kcrs|WhwI"),
    Form("ws", "ckrs|WhwI"),
    Form("is", "hwcrs|IkW"),
)
CHANNELWISE = (FORMS[0], FORMS[1], FORMS[2], Form("ws", "kcrs|WhwI"))
POOLS = (Form("os", "khw|rsI"), Form("os", "hkw|rsI"), Form("os", "hwk|rsI"))


def forms_of(shape: LayerShape, dataflow: str = "") -> tuple[Form, ...]:
    """The forms of a layer's mappings. dataflow: those with this name alone."""
    forms = POOLS if not shape.is_mac else CHANNELWISE if shape.channelwise else FORMS
    return tuple(form for form in forms if dataflow in ("", form.name))


def form_of_all_blocks(shape: LayerShape) -> Form:
    """A form that has the blocks of all others: its ifmap may come in slices of c, too."""
    forms = forms_of(shape)
    return next((form for form in forms if form.order.startswith("c")), forms[0])


@dataclass(frozen=True)
class Point:
    """A mapping of the array: PEs of each dimension on rows and columns, indices of each in the box, lanes.

    - lanes: over c, r and s, whose products are added up
    - own_lanes: over k, with sums of their own (MAC-7). One of both is 1.
    """

    form: Form
    rows: tuple[int, int, int, int]
    cols: tuple[int, int, int]
    box: tuple[int, int, int, int, int, int]
    lanes: tuple[int, int, int] = (1, 1, 1)
    own_lanes: int = 1

    def chain(self, dim: str, extent: int) -> Chain:
        """PEs on rows and columns, indices in the box, and whether PEs share the dimension out."""
        rows = self.rows[ROW_DIMS.index(dim)] if dim in ROW_DIMS else 1
        cols = self.cols[COL_DIMS.index(dim)] if dim in COL_DIMS else 1
        return rows, cols, min(self.box[BOX_DIMS.index(dim)], extent), block_distributed(self.form, dim)

    @property
    def kind(self) -> object:
        """Alike for points that differ in the order of tiles, or in how PEs share them, but for PEs that add up."""
        return self.form.name, self.rows[2:], self.box, self.lanes, self.own_lanes

    @property
    def products(self) -> int:
        """Products of a step that are added up, at most."""
        return prod(self.lanes)

    def steps(self, dim: str, held: int) -> int:
        """Steps of so many indices of a dimension in a macro-instruction."""
        if dim == "k":
            return steps_in_lanes(held, self.own_lanes)
        return -(-held // self.lanes["crs".index(dim)]) if dim in "crs" else held


def steps_in_lanes(channels: int, own_lanes: int) -> int:
    """Steps of so many output channels. A tile that is no multiple of the lanes, but more, has one lane (LEGAL-6).

    >>> [steps_in_lanes(channels, 2) for channels in (1, 2, 3, 4)]
    [1, 1, 3, 2]
    """
    lanes = min(channels, own_lanes)
    return channels if channels % lanes else channels // lanes


@cache
def block_distributed(form: Form, dim: str) -> bool:
    """Whether the dimension's loop over tiles stands inside those in space."""
    return dim in form.order.split("|")[1] and dim in "khw"


# -- numbers -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def unrollings(most: int, dims: str, limits: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """PEs of each dimension on an axis of `most`: at most two of them have more than one, none more than its limit."""
    unrolled = set[tuple[int, ...]]()
    for one, other in combinations(range(len(dims)), 2):
        for a in range(1, min(most, limits[one]) + 1):
            for b in range(1, min(most // a, limits[other]) + 1):
                each = [1] * len(dims)
                each[one], each[other] = a, b
                unrolled.add(tuple(each))
    return tuple(sorted(unrolled))


class Numbers(NamedTuple):
    """All combinations of a layer: unrollings of rows and columns, and boxes with the words that a PE holds for each.

    - boxes: for each box its indices of each dimension, its lanes over c, r and s, and its lanes over k
    - fits: for each box whether register files have room if all columns are loaded, and if neighbours pass some on
    - in_box: for each dimension the numbers of indices that boxes have
    - some: whether there are more boxes than are looked at
    """

    rows: Counts
    cols: Counts
    boxes: Counts
    words: Counts
    fits: Flags
    in_box: tuple[tuple[int, ...], ...]
    some: bool
    shape: LayerShape
    arch: Arch

    @property
    def most_steps(self) -> int:
        """Steps of a macro-instruction at most."""
        return int((self.boxes[:, :6].prod(axis=1) // self.boxes[:, 6:9].prod(axis=1)).max(initial=0))


@lru_cache(maxsize=256)
def numbers(shape: LayerShape, arch: Arch) -> Numbers:
    """The unrollings and boxes of a layer on an array."""
    s, group = shape.sizes, shape.tiled_together
    south = arch.links.south and shape.kind != "max"
    c_limit = s.c if south and not shape.channelwise else 1
    rows = unrollings(arch.rows, ROW_DIMS, (group, s.h, c_limit, s.r if south else 1))
    cols = unrollings(arch.cols, COL_DIMS, (group, s.h, s.w))
    sizes = replace(s, n=1, h=s.h if has_rows(shape) else 1)  # boxes depend on no others, nor on the image
    image, pe = replace(shape, sizes=sizes, ih=0, iw=0), replace(arch.pe, start_cycles=0, finish_cycles=0)
    return Numbers(np.array(rows), np.array(cols), *box_arrays(image, pe, arch.links), shape, arch)


@lru_cache(maxsize=64)
def box_arrays(
    shape: LayerShape, pe: Pe, links: Links
) -> tuple[Counts, Counts, Flags, tuple[tuple[int, ...], ...], bool]:
    """The boxes, their words, where they fit, the numbers of each dimension, and whether some are left out.

    They depend on nothing else of an array. A choice of cores tries many sizes, and other times.
    """
    listed, some = boxes(shape, Arch("", 1, 1, pe, Glb(1, 1), Dram(1, 0), links=links))
    each = np.array(listed, order="F")  # columns are looked up one by one
    in_box = tuple(tuple(np.flatnonzero(np.bincount(column)).tolist()) for column in each.T[:6])
    return each[:, :10], each[:, 10], each[:, 11:] > 0, in_box, some


def point(everything: Numbers, form: Form, indices: Sequence[int]) -> Point:
    """The point of a combination."""
    row, col, box = indices
    *extents, lanes_c, lanes_r, lanes_s, own_lanes = everything.boxes[box].tolist()
    rows, cols = everything.rows[row].tolist(), everything.cols[col].tolist()
    return Point(form, tuple(rows), tuple(cols), tuple(extents), (lanes_c, lanes_r, lanes_s), own_lanes)


# -- the mapping -------------------------------------------------------------------------------------------------------


def steps_of(chain: Chain, extent: int) -> tuple[int, int, int]:
    """Steps of a dimension's loop over tiles in time, of those on rows and on columns."""
    rows, cols, box, share = chain
    if share:
        on_rows = -(-extent // rows)
        return box, on_rows, -(-on_rows // cols)
    return min(rows * cols * box, extent), min(cols * box, extent), box


class StagePlace(IntEnum):
    """Inside how many loops a stage stands, counting those that run once: n, groups of k, blocks, loops of the point.

    The order is n, groups, k, h, w with blocks of k outside, and n, groups, h, w, k with them inside. Blocks of
    shuffled channels have the order n, h, w, groups, k.
    """

    OUTSIDE = 0
    IN_K_BLOCK = 3
    IN_IMAGE_BLOCK = 4
    IN_BLOCK = 5
    IN_FIRST_LOOP = 6
    IN_SHUFFLED_BLOCK = IN_K_BLOCK


class BlockPlan(NamedTuple):
    """Blocks of k, h and w around the loops of a point, in this order or with k inside; and what is staged in the GLB.

    - weights: the place of their stage (`StagePlace`), and its number of buffers
    - streamed: the buffers of the streamed operands
    - slices: whether the ifmap comes in slices of c, inside the point's outermost loop
    """

    k: int
    h: int
    w: int
    k_outside: bool = True
    weights: int = StagePlace.OUTSIDE
    weight_buffers: int = 1
    streamed: tuple[tuple[str, int], ...] = ()
    slices: bool = False
    params_in_slices: bool = False


def mapping_of(shape: LayerShape, arch: Arch, at: Point, plan: BlockPlan) -> Mapping:
    """The mapping of a point, with its stages. Loops that would run once are left out."""
    pixels, channels = [Loop("h", plan.h), Loop("w", plan.w)], [Loop("k", shape.tiled_together)]
    blocks = [Loop("k", plan.k), *pixels] if plan.k_outside else [*pixels, Loop("k", plan.k)]
    shuffled = shape.shuffle > 1 and any(operand == "output" for operand, _ in plan.streamed)  # a block of all groups
    outer = [Loop("n"), *pixels, *channels, Loop("k", plan.k)] if shuffled else [Loop("n"), *channels, *blocks]
    extent = {dim: shape.sizes.of(dim) for dim in BOX_DIMS} | {"k": plan.k, "h": plan.h, "w": plan.w}
    loops, staged = _loops(shape, at, extent)
    stages = [(("weight", "ifmap")["WI".index(each)], "rf", len(outer) + depth) for each, depth in staged.items()]
    block = StagePlace.IN_SHUFFLED_BLOCK if shuffled else StagePlace.IN_BLOCK
    # Blocks of k inside use a block of the image in turn, unless each has channels of its own.
    of_image = block if plan.k_outside or shape.channelwise or shuffled else StagePlace.IN_IMAGE_BLOCK
    of_ifmap = StagePlace.IN_FIRST_LOOP if plan.slices else of_image
    stages += [(operand, "glb", of_ifmap if operand == "ifmap" else block) for operand, _ in plan.streamed]
    if shape.is_mac:
        stages.append(("weight", "glb", plan.weights))
    if shape.params:
        # Parameters by position come with the blocks, others with the slices of weights (SPACE-13).
        in_slices = block if shape.per_position else plan.weights
        stages.append(("params", "glb", in_slices if plan.params_in_slices else StagePlace.OUTSIDE))
    halves = {"weight": arch.pe.weight_halves, "ifmap": arch.pe.ifmap_halves}
    in_glb = {"weight": plan.weight_buffers, **dict(plan.streamed)}
    if plan.params_in_slices:
        in_glb["params"] = in_glb.get("ifmap", 1) if shape.per_position else plan.weight_buffers
    with_buffers = [
        Stage(operand, memory, place, (halves if memory == "rf" else in_glb).get(operand, 1))
        for operand, memory, place in stages
    ]
    return without_single_trips([*outer, *loops], with_buffers, shape.sizes)


def without_single_trips(loops: Sequence[Loop], stages: Sequence[Stage], sizes: Sizes) -> Mapping:
    """`without_single`, and the mapper's order in one place: glb outside rf (NEST-3), weights before ifmap (COST-3)."""
    return without_single(loops, stages, sizes, lambda stage: (stage.depth, stage.memory, stage.operand == "ifmap"))


def _loops(shape: LayerShape, at: Point, extent: dict[str, int]) -> tuple[list[Loop], dict[str, int]]:
    """The loops of a point inside its blocks, and before which of them weights and ifmap come to the PEs (W, I)."""
    steps = {dim: steps_of(at.chain(dim, extent[dim]), extent[dim]) for dim in BOX_DIMS}
    before, inside = at.form.order.split("|")
    # SPACE-6: these stand before the loops on columns, or right around the first of W and I.
    summed = [Loop(dim, steps[dim][1], "rows") for dim in "cr"]
    held = "c" in inside or "r" in inside  # loops over c and r in time stand inside those in space
    loops = [Loop(dim, steps[dim][0]) for dim in before]
    loops += [Loop(dim, steps[dim][1], "rows") for dim in "kh" if at.rows[ROW_DIMS.index(dim)] > 1]
    loops += [] if held else summed
    loops += [Loop(dim, steps[dim][2], "cols") for dim in COL_DIMS if at.cols[COL_DIMS.index(dim)] > 1]
    stages: dict[str, int] = {}
    for each in inside:
        if each not in "WI":
            loops.append(Loop(each, steps[each][0]))
            continue
        if not stages and held:
            loops += summed
        stages[each] = len(loops)
    return [*loops, *_box(shape, at)], stages


def _box(shape: LayerShape, at: Point) -> list[Loop]:
    order = "hwck" if at.box[2] > 1 else MACHINE_ORDER[shape.channelwise]  # rows and columns of pixels are one counter
    lanes = {dim: count for dim, count in zip("kcrs", (at.own_lanes, *at.lanes), strict=True) if count > 1}
    if "r" in lanes or "s" in lanes:
        order = lanes_order("".join(lanes))
    elif "c" in lanes and at.box[2] == 1:
        order = "wsrck"  # all that lanes do not take of c is one counter with r and s
    return [*(Loop(dim, lanes.get(dim, 1), keep=True) for dim in order),
            *(Loop(dim, 1, "lanes", keep=True) for dim in order if dim in lanes)]  # fmt: skip
