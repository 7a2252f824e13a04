"""The space of mappings that the search covers: its points, how they are mapped, and what the array does for each.

A point is a form, which says in which order loops run, and numbers; docs/mapper.md states the space, rule by rule. All
numbers of a layer are combined, as arrays; only those whose macro-instructions take few enough cycles become points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cnncc.arch.model import Arch
from cnncc.dialects._mapping import Loop, Mapping, Stage
from cnncc.mapper.boxes import boxes
from cnncc.mapper.layer_shape import LayerShape
from cnncc.mapper.register_files import MACHINE_ORDER
from cnncc.mapper.tables import Table, table

Counts = npt.NDArray[np.int64]

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


def forms_of(shape: LayerShape) -> tuple[Form, ...]:
    """The forms of a layer's mappings."""
    return POOLS if not shape.is_mac else CHANNELWISE if shape.channelwise else FORMS


@dataclass(frozen=True)
class Point:
    """A mapping of the array: PEs of each dimension on rows and columns, indices of each in the box, lanes over c."""

    form: Form
    rows: tuple[int, int, int, int]
    cols: tuple[int, int, int]
    box: tuple[int, int, int, int, int, int]
    lanes: int

    def chain(self, dim: str, extent: int) -> Chain:
        """PEs on rows and columns, indices in the box, and whether PEs share the dimension out."""
        rows = self.rows[ROW_DIMS.index(dim)] if dim in ROW_DIMS else 1
        cols = self.cols[COL_DIMS.index(dim)] if dim in COL_DIMS else 1
        return rows, cols, min(self.box[BOX_DIMS.index(dim)], extent), shared(self.form, dim)


def shared(form: Form, dim: str) -> bool:
    """Whether the dimension's loop over tiles stands inside those in space."""
    return dim in form.order.split("|")[1] and dim in "khw"


# -- numbers -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def unrollings(most: int, dims: str, limits: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """PEs of each dimension on an axis of `most`: at most two of them have more than one, none more than its limit."""
    found = {(1,) * len(dims)}
    for one, other in combinations(range(len(dims)), 2):
        for a in range(1, min(most, limits[one]) + 1):
            for b in range(1, min(most // a, limits[other]) + 1):
                each = [1] * len(dims)
                each[one], each[other] = a, b
                found.add(tuple(each))
    if len(dims) == 1:
        found |= {(a,) for a in range(1, min(most, limits[0]) + 1)}
    return tuple(sorted(found))


# -- what the array does -----------------------------------------------------------------------------------------------


class Numbers(NamedTuple):
    """All combinations of a layer: unrollings of rows and columns; boxes, and the words that a PE holds for each.

    some: whether there are more boxes than are looked at.
    """

    rows: Counts
    cols: Counts
    boxes: Counts
    words: Counts
    some: bool
    shape: LayerShape
    arch: Arch


@lru_cache(maxsize=256)
def numbers(shape: LayerShape, arch: Arch) -> Numbers:
    """Of a layer on an array."""
    s, group = shape.sizes, shape.tiled_together
    south = arch.links.south and shape.kind != "max"
    c_limit = s.c if south and not shape.channelwise else 1
    rows = unrollings(arch.rows, ROW_DIMS, (group, s.h, c_limit, s.r if south else 1))
    cols = unrollings(arch.cols, COL_DIMS, (group, s.h, s.w))
    found, some = boxes(shape, arch)
    *box, words = np.array(found).T
    return Numbers(np.array(rows), np.array(cols), np.array(box).T, words, some, shape, arch)


class _Tables(NamedTuple):
    k: Table
    h: Table
    w: Table
    c: Table
    r: Table
    s: Table


def _tables(found: Numbers, form: Form, cut: bool) -> _Tables:
    sizes = found.shape.sizes
    p, z, zh, q, taps, cols, _ = (tuple(np.unique(column).tolist()) for column in found.boxes.T)
    rows_k, rows_h, rows_c, rows_r = found.rows.max(axis=0).tolist()
    cols_k, cols_h, cols_w = found.cols.max(axis=0).tolist()
    return _Tables(
        table(found.shape.tiled_together, rows_k, cols_k, p, True, shared(form, "k"), False, cut),
        table(sizes.h, rows_h, cols_h, zh, False, shared(form, "h"), False, cut),
        table(sizes.w, 1, cols_w, z, False, shared(form, "w"), False, cut),
        table(sizes.c, rows_c, 1, q, False, False, True),
        table(sizes.r, rows_r, 1, taps, False, False, True),
        table(sizes.s, 1, 1, cols, False, False, True),
    )


class Found(NamedTuple):
    """Combinations of one form: numbers of unrollings and box, cycles of the macro-instructions.

    least: what the layer takes at least, by them, by loads and by commits. In this order. beyond: where there is none,
    the least of what was looked at, by all of these.
    """

    form: Form
    which: Counts
    cycles: Counts
    least: Counts
    beyond: int


def combinations_below(found: Numbers, form: Form, limit: int, cut: bool = False) -> Found:
    """The combinations of a form that take less than `limit` cycles, by macro-instructions, loads and commits.

    cut: in blocks that may be cut; then the cycles are those of the blocks for which they are fewest, or below.
    """
    shape, arch, t = found.shape, found.arch, _tables(found, form, cut)
    first = found.words
    times = shape.sizes.n * (shape.sizes.k // shape.tiled_together)
    overhead = arch.pe.start_cycles + arch.pe.finish_cycles
    results = times * prod((shape.tiled_together, shape.sizes.h, shape.sizes.w))
    port, units = arch.glb.words_per_cycle, arch.commit.units_per_column
    p, z, zh, q, taps, cols, lanes = found.boxes.T
    least = float(times) * (
        t.k.held.min(2)[found.rows[:, 0][:, None], found.cols[:, 0]].astype(float)
        * t.h.held.min(2)[found.rows[:, 1][:, None], found.cols[:, 1]]
        * t.w.held.min(2)[1, found.cols[:, 2]]
        * t.c.held.min(2)[found.rows[:, 2], 1][:, None]
        * t.r.held.min(2)[found.rows[:, 3], 1][:, None]
        * shape.sizes.s
        / int(lanes.max())
    )
    which: list[Counts] = []
    cycles: list[Counts] = []
    beyond = [float(least.min())] if least.min() >= limit else []
    for row, col in np.argwhere(least < limit).tolist():
        (rk, rh, rc, rr), (ck, ch, cw) = found.rows[row].tolist(), found.cols[col].tolist()
        parts = (
            t.k.of(rk, ck, p), t.h.of(rh, ch, zh), t.w.of(1, cw, z), t.c.of(rc, 1, q), t.r.of(rr, 1, taps),
            t.s.of(1, 1, cols),
        )  # fmt: skip
        macros, steps = np.full(len(p), float(times)), times / lanes
        for trips, held in parts:
            macros, steps = macros * trips, steps * held
        total = overhead * macros + steps
        loads = times * _loaded(found, form, parts, (rk, rh, rc, rr), (ck, ch, cw))
        if arch.sequencer.overlap:
            least_here = np.maximum(total + first, np.maximum(loads, results / min(port, ck * ch * cw * units)))
        else:
            rest = _in_turn(found, form, (rk, rh, rc, rr), (ck, ch, cw), parts, cut)
            least_here = total + loads + macros + times * rest
        good = np.nonzero(least_here < limit)[0]
        if not len(good):
            beyond.append(float(least_here.min()))
        else:
            which.append(np.column_stack([np.full(len(good), row), np.full(len(good), col), good]))
            cycles.append(np.rint(np.stack([total[good], least_here[good]])).astype(np.int64))
    if not which:
        none = np.zeros(0, np.int64)
        return Found(form, np.zeros((0, 3), np.int64), none, none, int(min(beyond)))
    everything, (all_cycles, least_of_all) = np.concatenate(which), np.concatenate(cycles, axis=1)
    order = np.argsort(least_of_all, kind="stable")
    return Found(form, everything[order], all_cycles[order], least_of_all[order], limit)


def _loaded(
    found: Numbers, form: Form, parts: Sequence[tuple[Any, Any]], rows: Sequence[int], cols: Sequence[int]
) -> Any:
    """Cycles in which loads are busy, at least: a PE takes a word a cycle, a row a burst, the GLB gives some (L2).

    Weights come once where they stay over h and w, the ifmap where over k.
    """
    shape, sizes, arch = found.shape, found.shape.sizes, found.arch
    (k_trips, k_held), (h_trips, h_held), (w_trips, w_held), (_, c_held), (_, r_held), (s_trips, _) = parts
    own = shape.channelwise
    again = k_held if own else 1.0 if form.name == "is" else k_trips
    z, s_part, lanes = found.boxes[:, 1], found.boxes[:, 5], found.boxes[:, 6]
    # In w windows overlap, in h they do only where they are of one row. Of a box each window but the first has columns
    # of its own, so many as the stride if taps are as many.
    fewest = sizes.s - (s_trips - 1) * s_part  # taps of a part
    fresh = s_trips * (np.minimum(shape.window.stride[1], fewest) if shape.window.dilation[1] == 1 else 1)
    held = again * (h_held if sizes.r == 1 else h_trips) * c_held * r_held
    ifmap = held * (fresh * (w_held - w_trips) + sizes.s * w_trips)
    # Of the columns that neighbours pass on there come as many as the stride; PEs together have all outputs.
    shared = arch.links.n2n and not own and cols[2] > 1
    first = np.where(shared & (lanes == 1), min(sizes.s, shape.window.stride[1]), sizes.s)
    columns = sizes.w * (fresh * (1 - 1 / z) + first / z)
    distinct = (shape.tiled_together if own else again) * sizes.c * _distinct_rows(shape, rows, cols) * columns
    in_row = (shape.tiled_together / rows[0] if own else again) * sizes.h / rows[1] * c_held * r_held * columns
    port = arch.glb.words_per_cycle
    ifmap = np.maximum(np.maximum(ifmap, in_row / arch.bus.burst_words), distinct / port)
    if not shape.is_mac:
        return ifmap
    once = 1.0 if form.name == "ws" else h_trips * w_trips
    words = k_held * c_held * r_held * parts[5][1] * once
    all_words = shape.tiled_together * sizes.c * sizes.r * sizes.s * once
    return ifmap + np.maximum(words, all_words / port)


def _distinct_rows(shape: LayerShape, rows: Sequence[int], cols: Sequence[int]) -> float:
    """Rows of the image that come for all outputs, at least: PEs on a diagonal share them."""
    sizes, stride = shape.sizes, shape.window.stride[0]
    outputs, taps = rows[1] * cols[1], rows[3]
    apart = min(stride, taps) if taps == sizes.r and shape.window.dilation[0] == 1 else 1
    return sizes.h / outputs * (sizes.r / taps) * ((outputs - 1) * (apart if taps > 1 else 1) + taps)


def _in_turn(
    found: Numbers, form: Form, rows: Sequence[int], cols: Sequence[int], parts: Sequence[tuple[Any, Any]], cut: bool
) -> Any:
    """Cycles of commits, and before and after these and loads, where nothing overlaps (Z6), at least."""
    shape, sizes, arch, (p, z, zh) = found.shape, found.shape.sizes, found.arch, found.boxes.T[:3]
    k, h, w, c, r, s = (trips for trips, _ in parts)
    loads = (1.0 if form.name == "is" else k) * h * w * c * r * s
    if shape.is_mac:
        loads = loads + k * c * r * s * (1.0 if form.name == "ws" else h * w)
    # Sums are partial where loops over c, r, s stand outside others in time.
    outer = 1.0 if cut or form.name == "os" else c * r * s
    held = {"is": -(-shape.tiled_together // (rows[0] * cols[0])) > p,
            "ws": (-(-sizes.h // (rows[1] * cols[1])) > zh) | (-(-sizes.w // cols[2]) > z)}  # fmt: skip
    partial = (outer > 1) & held.get(form.name, False)
    times = np.where(partial, outer, 1)
    words = (1 + 2 * arch.words_per_param * partial) / arch.glb.words_per_cycle
    busy = np.maximum(words, 1 / (prod(cols) * arch.commit.units_per_column))
    busy = busy * shape.tiled_together * sizes.h * sizes.w
    each = 1 + arch.commit.latency_cycles + rows[2] * rows[3] - 1
    return loads * (1 + arch.bus.latency_cycles) + times * (busy + k * h * w * each)


def point(found: Numbers, form: Form, which: Sequence[int]) -> Point:
    """The point of a combination."""
    row, col, box = which
    *extents, lanes = found.boxes[box].tolist()
    rows, cols = found.rows[row].tolist(), found.cols[col].tolist()
    return Point(form, tuple(rows), tuple(cols), tuple(extents), lanes)


# -- the mapping -------------------------------------------------------------------------------------------------------


def steps_of(chain: Chain, extent: int) -> tuple[int, int, int]:
    """Steps of a dimension's loop over tiles in time, of those on rows and on columns."""
    rows, cols, box, share = chain
    if share:
        on_rows = -(-extent // rows)
        return box, on_rows, -(-on_rows // cols)
    return min(rows * cols * box, extent), min(cols * box, extent), box


class Plan(NamedTuple):
    """Blocks of k, h and w around the loops of a point, in this order or with k inside; and what is staged in the GLB.

    weights: before which loop they come, in how many buffers; 0: once, before all. moving: buffers of the operands
    that do not lie in the GLB. slices: whether the ifmap moves in slices of c, inside the point's outermost loop.
    """

    k: int
    h: int
    w: int
    k_outside: bool = True
    weights: int = 0
    weight_buffers: int = 1
    moving: tuple[tuple[str, int], ...] = ()
    slices: bool = False


def mapping_of(shape: LayerShape, arch: Arch, at: Point, plan: Plan) -> Mapping:
    """The mapping of a point, with its stages. Loops that would run once are left out."""
    pixels = [Loop("h", plan.h), Loop("w", plan.w)]
    blocks = [Loop("k", plan.k), *pixels] if plan.k_outside else [*pixels, Loop("k", plan.k)]
    extent = {dim: shape.sizes.of(dim) for dim in BOX_DIMS} | {"k": plan.k, "h": plan.h, "w": plan.w}
    outer = [Loop("n"), Loop("k", shape.tiled_together), *blocks]
    loops, staged = _loops(shape, at, extent)
    stages = [(("weight", "ifmap")["WI".index(each)], "rf", len(outer) + depth) for each, depth in staged.items()]
    of_ifmap = 6 if plan.slices else 5 if plan.k_outside or shape.channelwise else 4
    stages += [(operand, "glb", of_ifmap if operand == "ifmap" else 5) for operand, _ in plan.moving]
    if shape.is_mac:
        stages.append(("weight", "glb", plan.weights))
    if shape.params:
        stages.append(("params", "glb", 0))
    return _clipped(shape, arch, [*outer, *loops], stages, plan)


def _clipped(
    shape: LayerShape, arch: Arch, loops: Sequence[Loop], stages: Sequence[tuple[str, str, int]], plan: Plan
) -> Mapping:
    left = dict(vars(shape.sizes))
    running: list[Loop | None] = []
    for loop in loops:
        step = min(loop.step, left[loop.dim])
        running.append(Loop(loop.dim, step, loop.on, loop.keep) if step < left[loop.dim] else None)
        left[loop.dim] = step
    halves = {"weight": arch.pe.weight_halves, "ifmap": arch.pe.ifmap_halves}
    in_glb = {"weight": plan.weight_buffers, **dict(plan.moving)}
    found: list[Stage] = []
    for operand, memory, place in stages:
        depth = sum(loop is not None for loop in running[:place])
        buffers = halves[operand] if memory == "rf" else in_glb.get(operand, 1)
        found.append(Stage(operand, memory, depth, buffers))
    found.sort(key=lambda stage: (stage.depth, stage.memory, stage.operand == "ifmap"))
    return Mapping(tuple(loop for loop in running if loop is not None), tuple(found))


def _loops(shape: LayerShape, at: Point, extent: dict[str, int]) -> tuple[list[Loop], dict[str, int]]:
    """The loops of a point inside its blocks, and before which of them weights and ifmap come to the PEs (W, I)."""
    steps = {dim: steps_of(at.chain(dim, extent[dim]), extent[dim]) for dim in BOX_DIMS}
    before, inside = at.form.order.split("|")
    summed = [Loop(dim, steps[dim][1], "rows") for dim in "cr" if at.rows[ROW_DIMS.index(dim)] > 1]
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
    if at.lanes > 1 and at.box[2] == 1:
        order = "wsrck"  # all that lanes do not take of c is one counter with r and s
    kept = [Loop(dim, keep=True) for dim in order]
    if at.lanes == 1:
        return kept
    place = next(i for i, loop in enumerate(kept) if loop.dim == "c")
    return [*kept[:place], Loop("c", at.lanes, keep=True), *kept[place + 1 :], Loop("c", 1, "lanes", keep=True)]
