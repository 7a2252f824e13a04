"""No mapping of the mapper's space takes fewer cycles than is said: shown with no code of the search.

The space of docs/mapper.md is enumerated once more. Three tests exclude a combination of numbers, the cheap ones first:

1. Its macro-instructions alone take too long. A walk through the loops counts them, dimension by dimension.
2. An engine alone takes too long. The tasks of the program's records are added up for each engine.
3. The model says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cnncc.arch.model import LOOP_REGISTERS, Arch
from cnncc.dialects._mapping import Loop, Mapping, Stage, even_sets
from cnncc.model.layer_schedule import LayerPlan, layer_cycles, layer_schedule
from cnncc.model.layer_shape import LayerShape
from cnncc.model.timed_program import ARRAY, COMMIT, LOAD, Node, Own, Task, TimedLoop, busy_cycles
from cnncc.passes._scheduling.glb_words import glb_words

Counts = npt.NDArray[np.int64]
AHEAD = frozenset({"weight", "params"})
FORMS = ("khw|crsWI", "hkw|crsWI", "hwk|crsWI", "kcrs|WhwI", "ckrs|WhwI", "hwcrs|IkW")
CHANNELWISE, POOLS = FORMS[:4], ("khw|rsI", "hkw|rsI", "hwk|rsI")
DIMS, ON_ROWS, ON_COLS = "khwcrs", "khcr", "khw"


class SpacePoint(NamedTuple):
    """A form and its numbers: PEs of `khcr` on rows, of `khw` on columns, indices of `khwcrs` in the box, lanes."""

    form: str
    rows: tuple[int, ...]
    cols: tuple[int, ...]
    box: tuple[int, ...]
    lanes: int

    def of(self, dim: str) -> tuple[int, int, int]:
        """PEs on rows, on columns, indices in the box."""
        rows = self.rows[ON_ROWS.index(dim)] if dim in ON_ROWS else 1
        return rows, self.cols[ON_COLS.index(dim)] if dim in ON_COLS else 1, self.box[DIMS.index(dim)]


@dataclass(frozen=True)
class Seen:
    """What was looked at: combinations, those written down as records, those run; what takes too few cycles, if any."""

    combinations: int
    written: int
    run: int
    better: tuple[Mapping, int] | None = None


def forms(shape: LayerShape) -> Sequence[str]:
    """SPACE-1."""
    return POOLS if not shape.is_mac else CHANNELWISE if shape.channelwise else FORMS


def extents(shape: LayerShape) -> dict[str, int]:
    """What is mapped of each dimension: of k a group."""
    return {dim: shape.sizes.of(dim) for dim in DIMS} | {"k": shape.tiled_together}


def equal_parts(extent: int) -> list[int]:
    """⌈n/1⌉, ⌈n/2⌉, …"""
    return sorted({-(-extent // count) for count in range(1, extent + 1)})


def unrolled(most: int, limits: Sequence[int]) -> list[tuple[int, ...]]:
    """SPACE-2: PEs on an axis."""
    found = [(1,) * len(limits)]
    for i, limit in enumerate(limits):
        found += [
            (*each[:i], count, *each[i + 1 :])
            for each in found
            for count in range(2, min(limit, most // prod(each)) + 1)
            if sum(one > 1 for one in each) < 2
        ]
    return found


def boxes(shape: LayerShape, arch: Arch) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """SPACE-3 and SPACE-4: indices of k h w c r s in a box, lanes, words that a PE holds for it."""
    size, pe, window, own = extents(shape), arch.pe, shape.window, shape.channelwise
    tall = size["r"] == size["s"] == 1 and not own
    for r, s, h in product(equal_parts(size["r"]), equal_parts(size["s"]), range(1, size["h"] + 1 if tall else 2)):
        for w in range(1, min(size["w"], pe.max_pixels // h) + 1):
            image = prod(
                _held(out, taps, window.stride[i], window.dilation[i]) for i, (out, taps) in enumerate(((h, r), (w, s)))
            )
            for k in range(1, min(size["k"], pe.psum_words // (h * w)) + 1):
                for c in [1] if own else equal_parts(size["c"]):
                    ifmap, weights = image * c * (k if own else 1), k * c * r * s * shape.is_mac
                    in_turn = _in_turn(shape, arch, w, s, c * r)
                    if (ifmap > pe.ifmap_words and not in_turn) or weights > pe.weight_words:
                        break
                    most_lanes = 1 if own or ifmap > pe.ifmap_words else min(pe.lanes, c)
                    for lanes in range(1, most_lanes + 1):
                        if c % lanes == size["c"] % c % lanes == 0:
                            yield (k, h, w, c, r, s), lanes, ifmap + weights


def _in_turn(shape: LayerShape, arch: Arch, w: int, s: int, column: int) -> bool | None:
    """SPACE-4: whether ping, pong and FIFO have room for a box with columns of so many words; None: none is passed."""
    pe, own = arch.pe, shape.window.stride[1]
    if not (pe.pong_words and arch.links.n2n) or shape.channelwise or shape.window.dilation[1] > 1 or w > 1 or s <= own:
        return None
    passed = s - own
    limits = (own, pe.ifmap_words), (min(own, passed), pe.pong_words), (passed, pe.virtual_words)
    return all(columns * column <= words for columns, words in limits)


def _has_room(shape: LayerShape, arch: Arch, at: SpacePoint) -> bool:
    """SPACE-4: whether a PE has room for the image of a point of SPACE-1 to SPACE-3 and SPACE-5."""
    size, (_, h, w, c, r, s) = extents(shape), at.box
    before, inside = at.form.split("|")
    there = {dim: steps(at.form, dim, size[dim], *at.of(dim)) or (1, 1, 1) for dim in "kw"}
    cols = [dim for dim, pes in zip(ON_COLS, at.cols, strict=True) if pes > 1]
    beside = len(cols) < 2 or (cols[-1] == "w" and ("w" in before or there["w"][2] == 1))
    anew = inside[0] != "I" or there["k"][2] == at.box[0]  # nothing runs between its loads and macro-instructions
    in_turn = _in_turn(shape, arch, w, s, c * r) if beside and anew and at.lanes == 1 else None
    if in_turn is not None:
        return in_turn
    image = _held(h, r, shape.window.stride[0], shape.window.dilation[0])
    image *= _held(w, s, shape.window.stride[1], shape.window.dilation[1]) * c
    return image * (at.box[0] if shape.channelwise else 1) <= arch.pe.ifmap_words


def _held(outputs: int, taps: int, stride: int, dilation: int) -> int:
    step = dilation if outputs == 1 else stride if taps == 1 else gcd(stride, dilation)
    return ((outputs - 1) * stride + (taps - 1) * dilation) // step + 1


# -- macro-instructions, dimension by dimension ------------------------------------------------------------------------


def steps(form: str, dim: str, extent: int, rows: int, cols: int, box: int) -> tuple[int, int, int] | None:
    """SPACE-5: of the loops in time, on rows, on columns. None where they make no mapping of their own."""
    if dim in "khw" and dim in form.split("|")[1]:
        on_rows = -(-extent // rows)
        on_cols = -(-on_rows // cols)
        legal = -(-extent // on_rows) == rows and -(-on_rows // on_cols) == cols and box <= on_cols
        return (box, on_rows, on_cols) if legal else None
    if (rows - 1) * cols * box >= extent or (cols - 1) * box >= extent or box > extent:
        return None
    if dim in "cr" and rows > 1 and extent % (rows * box):
        return None
    return rows * cols * box, cols * box, box


@cache
def counted(shared: bool, dim: str, extent: int, rows: int, cols: int, box: int) -> tuple[int, int] | None:
    """How often the loops over a dimension come to the box one after the other, and the sum of what it then holds."""
    found = steps("|" + dim if shared else dim + "|", dim, extent, rows, cols, box)
    if found is None:
        return None
    time, on_rows, on_cols = found
    space = [(on_rows, "rows")] * (rows > 1) + [(on_cols, "cols")] * (cols > 1)
    loops = [*space, (time, "")] if shared else [(time, ""), *space]
    pieces, around = [extent], extent
    for step, axis in loops:
        after = list[int]()
        last = axis and step == [step for step, on in loops if on][-1] and axis == [on for _, on in loops if on][-1]
        sets = around // min(step, around) if dim == "k" and last else 1
        for piece in pieces:
            whole, rest = divmod(piece, step)
            after += [step] * (min(whole, 1) if axis else whole)
            after += [rest // even_sets(rest, sets)] * (1 if axis else even_sets(rest, sets)) if rest else []
        pieces, around = after, min(around, step)
    return len(pieces), sum(pieces)


def below(shape: LayerShape, arch: Arch, limit: int) -> Iterator[SpacePoint]:
    """The points whose macro-instructions, first loads and last commit may take fewer cycles than `limit`.

    With overlap (TIME-6) these follow each other; without, all words of loads do.
    """
    size, summed = extents(shape), arch.links.south and shape.kind != "max"
    c_rows = size["c"] if summed and not shape.channelwise else 1
    rows = unrolled(arch.rows, (size["k"], size["h"], c_rows, size["r"] if summed else 1))
    cols = unrolled(arch.cols, (size["k"], size["h"], size["w"]))
    found = list(boxes(shape, arch))
    if not found:
        return
    box, lanes, words = (np.array(each) for each in zip(*found, strict=True))
    times = shape.sizes.n * (shape.sizes.k // shape.tiled_together)
    over = arch.pe.start_cycles + arch.pe.finish_cycles
    ends = words + arch.bus.latency_cycles + arch.commit.latency_cycles + 3
    most_lanes = int(lanes.max())
    held_sizes = {dim: tuple(sorted(set(box[:, i].tolist()))) for i, dim in enumerate(DIMS)}
    for which in dict.fromkeys(_sharing(form) for form in forms(shape)):

        def of(dim: str, on_rows: int, on_cols: int, which: str = which) -> tuple[Counts, Counts, int]:
            return _columns(dim in which, dim, size[dim], on_rows, on_cols, held_sizes[dim])

        fewest: Any = float(times) / most_lanes * prod(
            _over(dim, [[of(dim, r, c)[2] for c in _numbers(dim, ON_COLS, cols)] for r in _numbers(dim, ON_ROWS, rows)],
                  rows, cols) for dim in DIMS
        )  # fmt: skip
        for r, c in [(rows[int(i)], cols[int(j)]) for i, j in np.argwhere(fewest < limit)]:
            pes = {dim: (r[ON_ROWS.index(dim)] if dim in ON_ROWS else 1, c[ON_COLS.index(dim)] if dim in ON_COLS else 1)
                   for dim in DIMS}  # fmt: skip
            parts = {dim: of(dim, *pes[dim]) for dim in DIMS}
            macros, held = np.full(len(box), times), np.full(len(box), times)
            for i, dim in enumerate(DIMS):
                macros, held = macros * parts[dim][0][box[:, i]], held * parts[dim][1][box[:, i]]
            for at in np.nonzero((held > 0) & (over * macros + held // lanes + ends < limit))[0].tolist():
                for form in (form for form in forms(shape) if _sharing(form) == which):
                    point = SpacePoint(form, r, c, tuple(box[at].tolist()), int(lanes[at]))
                    if not arch.pe.pong_words or _has_room(shape, arch, point):
                        yield point


def _numbers(dim: str, dims: str, axis: Sequence[tuple[int, ...]]) -> range:
    """Numbers of PEs that a dimension may have on an axis."""
    return range(1, 1 + (max(each[dims.index(dim)] for each in axis) if dim in dims else 1))


def _over(dim: str, least: list[list[int]], rows: Sequence[tuple[int, ...]], cols: Sequence[tuple[int, ...]]) -> Any:
    """The numbers of a dimension by its PEs on rows and columns, for all rows and columns."""
    on_rows = [each[ON_ROWS.index(dim)] - 1 if dim in ON_ROWS else 0 for each in rows]
    on_cols = [each[ON_COLS.index(dim)] - 1 if dim in ON_COLS else 0 for each in cols]
    return np.array(least, float)[np.ix_(on_rows, on_cols)]


def _sharing(form: str) -> str:
    """The dimensions that are shared out."""
    return "".join(dim for dim in "khw" if dim in form.split("|")[1])


@cache
def _columns(
    shared: bool, dim: str, extent: int, rows: int, cols: int, sizes: tuple[int, ...]
) -> tuple[Counts, Counts, int]:
    """`counted` by the size of the box, 0 where there is none; the least sum."""
    trips, held = np.zeros(max(sizes) + 1, np.int64), np.zeros(max(sizes) + 1, np.int64)
    for box in sizes:
        if found := counted(shared, dim, extent, rows, cols, box):
            trips[box], held[box] = found
    some = held[held > 0]
    return trips, held, int(some.min()) if len(some) else 1 << 40


# -- the mapping -------------------------------------------------------------------------------------------------------


def mapping_of(shape: LayerShape, arch: Arch, at: SpacePoint) -> Mapping:
    """SPACE-6 to SPACE-9, everything being in the GLB."""
    size = extents(shape)
    step = {dim: steps(at.form, dim, size[dim], *at.of(dim)) or (1, 1, 1) for dim in DIMS}
    before, inside = at.form.split("|")
    late = "r" in inside
    sums = [Loop(dim, step[dim][1], "rows") for dim in "cr" if at.of(dim)[0] > 1]
    loops = [Loop("n"), Loop("k", shape.tiled_together), *(Loop(dim, step[dim][0]) for dim in before)]
    loops += [Loop(dim, step[dim][1], "rows") for dim in "kh" if at.of(dim)[0] > 1]
    loops += [] if late else sums
    loops += [Loop(dim, step[dim][2], "cols") for dim in "khw" if at.of(dim)[1] > 1]
    places = dict[str, int]()
    for each in inside:
        if each in "WI":
            loops += sums if late and not places else []
            places[each] = len(loops)
        else:
            loops.append(Loop(each, step[each][0]))
    many = at.lanes > 1
    kept = "hwck" if at.of("h")[2] > 1 else "wsrck" if many else "wksr" if shape.channelwise else "wscrk"
    loops += [Loop(dim, at.lanes if dim == "c" else 1, keep=True) for dim in kept]
    loops += [Loop("c", 1, "lanes", keep=True)] if many else []
    left, there, depths = dict(vars(shape.sizes)), list[Loop](), [0]
    for loop in loops:
        if (now := min(loop.step, left[loop.dim])) < left[loop.dim]:
            there.append(replace(loop, step=now))
        left[loop.dim] = now
        depths.append(len(there))
    stages = [Stage("weight", "glb", 0)] if shape.is_mac else []
    stages += [Stage("params", "glb", 0)] if shape.params else []
    stages += [Stage("weight", "rf", depths[places["W"]], arch.pe.weight_halves)] if shape.is_mac else []
    stages.append(Stage("ifmap", "rf", depths[places["I"]], arch.pe.ifmap_halves))
    return Mapping(tuple(there), tuple(sorted(stages, key=lambda stage: (stage.depth, stage.operand == "ifmap"))))


# -- bounds from records -----------------------------------------------------------------------------------------------


def _tasks(nodes: Sequence[Node]) -> Iterator[Node]:
    """Instructions in the order of the first iteration of each loop; before those of a loop its own cycle."""
    for node in nodes:
        if isinstance(node, TimedLoop):
            yield Own(1)
            yield from _tasks(node.body)
        else:
            yield node


def engines_least(nodes: Sequence[Node], arch: Arch) -> int:
    """Cycles of a layer at least, by the times of its engines: what starts behind what, and no waiting."""
    busy = busy_cycles(nodes)
    if not arch.sequencer.overlap:
        return sum(busy)
    head, first = 0, 0
    for node in _tasks(nodes):
        if isinstance(node, Own) and not first:
            head += node.cycles
        if isinstance(node, Task) and node.engine == LOAD:
            first += node.busy
        if isinstance(node, Task) and node.engine == ARRAY:
            break
    tail = arch.commit.latency_cycles + 1
    last = next((node.busy for node in reversed(_flat(nodes)) if isinstance(node, Task) and node.engine == COMMIT), 0)
    array = head + first + arch.bus.latency_cycles + busy[ARRAY] + last + tail
    loads = head + busy[LOAD] + arch.bus.latency_cycles + last + tail
    return max(array, loads, head + first + arch.bus.latency_cycles + busy[COMMIT] + tail)


def _flat(nodes: Sequence[Node]) -> list[Node]:
    return list(_tasks(nodes))


def look(shape: LayerShape, arch: Arch, residual: bool, budget: int, least: int) -> Seen:
    """Whether some mapping takes fewer cycles than `least`, everything being in the GLB: that one, if any.

    room: words of the GLB for weights, parameters and partial sums.
    """
    points = written = run = 0
    if least <= prod(vars(shape.sizes).values()) // (arch.rows * arch.cols * arch.pe.lanes):
        return Seen(0, 0, 0)  # all multipliers, busy all the time; boxes may be too many to be counted
    for at in below(shape, arch, least):
        points += 1
        mapping = mapping_of(shape, arch, at)
        plan = LayerPlan("", shape, mapping, residual, AHEAD)
        if sum(not (loop.on or loop.keep) for loop in mapping.loops) > LOOP_REGISTERS:
            continue  # the machine cannot run it: as nothing is staged in two buffers, only loops can be too many
        written += 1
        if engines_least(layer_schedule(plan, arch).nodes, arch) >= least:
            continue
        if glb_words(shape, arch, mapping) > budget:
            continue
        run += 1
        if (cycles := layer_cycles(plan, arch)) < least:
            return Seen(points, written, run, (mapping, cycles))
    return Seen(points, written, run)


# -- where operands move -----------------------------------------------------------------------------------------------


def stays(shape: LayerShape, arch: Arch, budget: int) -> bool:
    """Whether all weights and parameters fit, so that they are in the GLB as a whole if nothing else moves.

    Rules: SPACE-12.
    """
    each = shape.sizes.h * shape.sizes.w if shape.per_position else shape.sizes.k
    return shape.weight_words + shape.params * arch.words_per_param * each <= budget


def streamed_least(shape: LayerShape, arch: Arch, streamed: frozenset[str], budget: int) -> int:
    """Cycles at least where operands move: all PEs busy in all cycles; or the words of the DMA, over all blocks.

    Of blocks those that fit the room with one buffer each, the ifmap's of one channel where slices may come. Weights
    come once, but for what two buffers hold of them.
    """
    s = shape.sizes
    products = s.n * s.k * s.c * s.h * s.w * s.r * s.s
    lanes = 1 if shape.channelwise else arch.pe.lanes
    array = -(-products // (arch.rows * arch.cols * lanes))
    outputs = s.n * s.k * s.h * s.w
    always = outputs * (("output" in streamed) + ("residual" in streamed))
    least = 1 << 60
    for h, w in product(range(1, s.h + 1), range(1, s.w + 1)):
        rows, all_rows = _image(shape, 0, h)
        cols, all_cols = _image(shape, 1, w)
        block = h * w * (("output" in streamed) + ("residual" in streamed))
        words = always
        if "ifmap" in streamed:
            block += (s.c if shape.channelwise else 1) * rows * cols
            words += s.n * shape.channels * all_rows * all_cols
        if block > budget:
            continue
        if shape.weight_words > budget - block:
            words += shape.weight_words - (budget - block) // 2
        least = min(least, words)
    return max(array, -(-least // arch.dram.words_per_cycle))


def _image(shape: LayerShape, axis: int, block: int) -> tuple[int, int]:
    """Rows (columns) of the image of a block, and those of all blocks."""
    s, window = shape.sizes, shape.window
    extent, taps, whole = ((s.h, s.r, shape.ih), (s.w, s.s, shape.iw))[axis]
    if block == extent:
        return whole, whole

    def needs(outputs: int) -> int:
        return (outputs - 1) * window.stride[axis] + (taps - 1) * window.dilation[axis] + 1 if outputs else 0

    return needs(block), extent // block * needs(block) + needs(extent % block)
