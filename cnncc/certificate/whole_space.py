"""A check that no mapping of the mapper's space takes fewer cycles than claimed, without any code of the search.

The space of docs/mapper.md is enumerated once more. A point is excluded by the first of three tests, cheap ones first:

1. Its macro-instructions alone take too long. A walk through the loops counts them, dimension by dimension.
2. One engine alone takes too long. The tasks of the program's records are added up for each engine.
3. Its cycles by the model are too many.
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
from cnncc.mapping.mapping import Loop, Mapping, Stage, even_sets
from cnncc.model.layer_schedule import LayerPlan, layer_cycles, layer_schedule
from cnncc.model.layer_shape import LayerShape
from cnncc.model.timed_program import ARRAY, COMMIT, LOAD, Node, SequencerCycles, Task, TimedLoop, busy_cycles
from cnncc.passes._scheduling.glb_words import glb_words

Counts = npt.NDArray[np.int64]
PREFETCHED = frozenset({"weight", "params"})
FORMS = ("khw|crsWI", "hkw|crsWI", "hwk|crsWI", "kcrs|WhwI", "ckrs|WhwI", "hwcrs|IkW")
CHANNELWISE, POOLS = FORMS[:4], ("khw|rsI", "hkw|rsI", "hwk|rsI")
DIMS, ON_ROWS, ON_COLS = "khwcrs", "khcr", "khw"


class SpacePoint(NamedTuple):
    """A form and its numbers: PEs of `khcr` on rows, of `khw` on columns, indices of `khwcrs` in the box, lanes.

    lanes are over c, r and s, own over k.
    """

    form: str
    rows: tuple[int, ...]
    cols: tuple[int, ...]
    box: tuple[int, ...]
    lanes: tuple[int, ...]
    own: int

    def of(self, dim: str) -> tuple[int, int, int]:
        """PEs on rows, on columns, indices in the box."""
        rows = self.rows[ON_ROWS.index(dim)] if dim in ON_ROWS else 1
        return rows, self.cols[ON_COLS.index(dim)] if dim in ON_COLS else 1, self.box[DIMS.index(dim)]


@dataclass(frozen=True)
class SpaceCheck:
    """The result of a check: points enumerated, run; a better mapping with its cycles, if any."""

    combinations: int
    run: int
    better: tuple[Mapping, int] | None = None


def forms(shape: LayerShape) -> Sequence[str]:
    """SPACE-1."""
    return POOLS if not shape.is_mac else CHANNELWISE if shape.channelwise else FORMS


def extents(shape: LayerShape) -> dict[str, int]:
    """The mapped extent of each dimension; k has that of a group."""
    return {dim: shape.sizes.of(dim) for dim in DIMS} | {"k": shape.tiled_together}


def equal_parts(extent: int) -> list[int]:
    """⌈n/1⌉, ⌈n/2⌉, …"""
    return sorted({-(-extent // count) for count in range(1, extent + 1)})


def unrolled(most: int, limits: Sequence[int]) -> list[tuple[int, ...]]:
    """SPACE-2: PEs on an axis."""
    numbers = [(1,) * len(limits)]
    for i, limit in enumerate(limits):
        numbers += [
            (*pes[:i], count, *pes[i + 1 :])
            for pes in numbers
            for count in range(2, min(limit, most // prod(pes)) + 1)
            if sum(one > 1 for one in pes) < 2
        ]
    return numbers


def boxes(shape: LayerShape, arch: Arch) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int, int]]:
    """SPACE-3 and SPACE-4: (indices of k h w c r s in a box, lanes over c r s, over k, words of a PE for the box)."""
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
                    ping_pong = _fits_ping_pong(shape, arch, w, s, c * r)
                    if (ifmap > pe.ifmap_words and not ping_pong) or weights > pe.weight_words:
                        break
                    most_lanes = 1 if own or ifmap > pe.ifmap_words else min(pe.lanes, c)
                    rest = size["c"] % c
                    divide = [n for n in range(1, most_lanes + 1) if c % n == 0 and (rest < n or rest % n == 0)]
                    windows = list(window_lanes(shape, arch, w, (c, r, s))) if ifmap <= pe.ifmap_words else []
                    most = max((prod(lanes) for lanes in windows), default=0)
                    listed: list[tuple[int, ...]] = [(lanes, 1, 1) for lanes in divide]
                    if most > divide[-1]:
                        listed.append(max(lanes for lanes in windows if prod(lanes) == most))
                    for lanes in listed:
                        yield (k, h, w, c, r, s), lanes, 1, ifmap + weights
                    over_k, slots = min(k, pe.lanes), h * w * -(-k // pe.lanes) * pe.lanes
                    if pe.lane_sums and over_k > 1 and k % over_k == 0 and slots <= pe.psum_words:
                        yield (k, h, w, c, r, s), (1, 1, 1), over_k, ifmap + weights


def window_lanes(shape: LayerShape, arch: Arch, w: int, box: tuple[int, int, int]) -> Iterator[tuple[int, ...]]:
    """SPACE-3: lanes over c, r and s, each 1 or the box's, where taps are among them."""
    for taken in product((False, True), repeat=3):
        lanes = tuple(size if whole else 1 for size, whole in zip(box, taken, strict=True))
        columns_apart = w > 1 and shape.window.dilation[1] > gcd(shape.window.dilation[1], shape.window.stride[1])
        together = lanes[2] > 1 and lanes[0] * lanes[1] > 1
        if shape.is_mac and lanes[1:] != (1, 1) and prod(lanes) <= arch.pe.lanes and not (columns_apart and together):
            yield lanes


def _fits_ping_pong(shape: LayerShape, arch: Arch, w: int, s: int, column: int) -> bool | None:
    """SPACE-4: whether ping, pong and FIFO fit a box. column: words of a column. None if no column is passed on."""
    pe, own = arch.pe, shape.window.stride[1]
    if not (pe.pong_words and arch.links.n2n) or shape.channelwise or shape.window.dilation[1] > 1 or w > 1 or s <= own:
        return None
    passed = s - own
    limits = (own, pe.ifmap_words), (min(own, passed), pe.pong_words), (passed, pe.virtual_words)
    return all(columns * column <= words for columns, words in limits)


def _fits_ifmap(shape: LayerShape, arch: Arch, at: SpacePoint) -> bool:
    """SPACE-4: whether a PE's ifmap file fits the image of a point of SPACE-1 to SPACE-3 and SPACE-5."""
    size, (_, h, w, c, r, s) = extents(shape), at.box
    before, inside = at.form.split("|")
    loop_steps = {dim: steps(dim in _sharing(at.form), dim, size[dim], *at.of(dim)) or (1, 1, 1) for dim in "kw"}
    cols = [dim for dim, pes in zip(ON_COLS, at.cols, strict=True) if pes > 1]
    beside = len(cols) < 2 or (cols[-1] == "w" and ("w" in before or loop_steps["w"][2] == 1))
    anew = inside[0] != "I" or loop_steps["k"][2] == at.box[0]  # nothing runs between its loads and macro-instructions
    ping_pong = _fits_ping_pong(shape, arch, w, s, c * r) if beside and anew and prod(at.lanes) == 1 else None
    if ping_pong is not None:
        return ping_pong
    image = _held(h, r, shape.window.stride[0], shape.window.dilation[0])
    image *= _held(w, s, shape.window.stride[1], shape.window.dilation[1]) * c
    return image * (at.box[0] if shape.channelwise else 1) <= arch.pe.ifmap_words


def _held(outputs: int, taps: int, stride: int, dilation: int) -> int:
    # The rows (columns) that windows touch lie `step` apart. Example: stride 2 and dilation 4 leave out every second
    # one.
    step = dilation if outputs == 1 else stride if taps == 1 else gcd(stride, dilation)
    return ((outputs - 1) * stride + (taps - 1) * dilation) // step + 1


# -- macro-instructions, dimension by dimension ------------------------------------------------------------------------


def steps(shared: bool, dim: str, extent: int, rows: int, cols: int, box: int) -> tuple[int, int, int] | None:
    """SPACE-5: the steps of the loops in time, on rows, on columns. None if another point has the same mapping.

    shared: whether the dimension is block-distributed.
    """
    if shared:
        on_rows = -(-extent // rows)
        on_cols = -(-on_rows // cols)
        legal = -(-extent // on_rows) == rows and -(-on_rows // on_cols) == cols and box <= on_cols
        return (box, on_rows, on_cols) if legal else None
    if (rows - 1) * cols * box >= extent or (cols - 1) * box >= extent or box > extent:
        return None
    # SPACE-5: a box that is smaller by one would need as few tiles. -⌈a / b⌉ is a // -b.
    if dim in "cr" and rows > 1 and box > 1 and extent // -(rows * box) == extent // -(rows * (box - 1)):
        return None
    return rows * cols * box, cols * box, box


@cache
def counted(shared: bool, dim: str, extent: int, rows: int, cols: int, box: int) -> tuple[int, int] | None:
    """(trips, held): times that the loops over a dimension reach the box, and the sum of the indices that it holds."""
    all_steps = steps(shared, dim, extent, rows, cols, box)
    if all_steps is None:
        return None
    time, on_rows, on_cols = all_steps
    space = [(on_rows, "rows")] * (rows > 1) + [(on_cols, "cols")] * (cols > 1)
    loops = [*space, (time, "")] if shared else [(time, ""), *space]
    pieces, around = [extent], extent
    for step, axis in loops:
        after = list[int]()
        # docs/model.md: the rest of the innermost loop over k in space is spread over as many sets as share it evenly.
        sets = around // min(step, around) if dim == "k" and (step, axis) in space[-1:] else 1
        for piece in pieces:
            # The iterations of a loop in space run at once. A smaller rest runs behind them.
            whole, rest = divmod(piece, step)
            after += [step] * (min(whole, 1) if axis else whole)
            after += [rest // even_sets(rest, sets)] * (1 if axis else even_sets(rest, sets)) if rest else []
        pieces, around = after, min(around, step)
    return len(pieces), sum(pieces)


def below(shape: LayerShape, arch: Arch, limit: int) -> Iterator[SpacePoint]:
    """The points whose macro-instructions, first loads and last commit may take fewer cycles than `limit`.

    These follow each other even with overlap of engines (TIME-6).
    """
    # SPACE-2: psums that go south are added, so parts of a maximum cannot lie on rows (COMMIT-6).
    size, summed = extents(shape), arch.links.south and shape.kind != "max"
    c_rows = size["c"] if summed and not shape.channelwise else 1
    rows = unrolled(arch.rows, (size["k"], size["h"], c_rows, size["r"] if summed else 1))
    cols = unrolled(arch.cols, (size["k"], size["h"], size["w"]))
    legal = list(boxes(shape, arch))
    if not legal:
        return
    box, summed_lanes, over_k, words = map(np.array, zip(*legal, strict=True))
    times = shape.sizes.n * (shape.sizes.k // shape.tiled_together)
    over = arch.pe.start_cycles + arch.pe.finish_cycles
    # 3: at least a cycle each to decode the first load, to commit, and for the `sync` at the end.
    ends = words // arch.pe.words_per_cycle + arch.bus.latency_cycles + arch.commit.latency_cycles + 3
    most_lanes = int((summed_lanes.prod(axis=1) * over_k).max())
    held_sizes = {dim: tuple(sorted(set(box[:, i].tolist()))) for i, dim in enumerate(DIMS)}
    for shared in dict.fromkeys(_sharing(form) for form in forms(shape)):

        def of(dim: str, on_rows: int, on_cols: int, shared: str = shared) -> tuple[Counts, Counts, int]:
            return _columns(dim in shared, dim, size[dim], on_rows, on_cols, held_sizes[dim])

        # Of each dimension the fewest indices that any box leaves one after the other on these PEs. At best all lanes
        # divide their product.
        fewest: Any = float(times) / most_lanes * prod(
            _over(dim, [[of(dim, r, c)[2] for c in _numbers(dim, ON_COLS, cols)] for r in _numbers(dim, ON_ROWS, rows)],
                  rows, cols) for dim in DIMS
        )  # fmt: skip
        for r, c in [(rows[int(i)], cols[int(j)]) for i, j in np.argwhere(fewest < limit)]:
            pes = {dim: (r[ON_ROWS.index(dim)] if dim in ON_ROWS else 1, c[ON_COLS.index(dim)] if dim in ON_COLS else 1)
                   for dim in DIMS}  # fmt: skip
            parts = {dim: of(dim, *pes[dim]) for dim in DIMS}
            macros, done = np.full(len(box), times), np.full(len(box), times)
            for i, dim in enumerate(DIMS):
                trips, held = parts[dim][0][box[:, i]], parts[dim][1][box[:, i]]
                by = summed_lanes[:, "crs".index(dim)] if dim in "crs" else 1
                # What lanes take as a whole is one step, a smaller rest too.
                macros, done = macros * trips, done * (np.where(by == box[:, i], trips, -(-held // by)) * (held > 0))
            # SPACE-5: R · b divides r of a pool, which is not put together from parts.
            legal_box = (done > 0) & (shape.is_mac | (size["r"] % (pes["r"][0] * box[:, DIMS.index("r")]) == 0))
            for at in np.nonzero(legal_box & (over * macros + done // over_k + ends < limit))[0].tolist():
                for form in (form for form in forms(shape) if _sharing(form) == shared):
                    lanes = tuple(summed_lanes[at].tolist())
                    point = SpacePoint(form, r, c, tuple(box[at].tolist()), lanes, int(over_k[at]))
                    if not arch.pe.pong_words or _fits_ifmap(shape, arch, point):
                        yield point


def _numbers(dim: str, dims: str, axis: Sequence[tuple[int, ...]]) -> range:
    """Numbers of PEs that a dimension may have on an axis."""
    return range(1, 1 + (max(pes[dims.index(dim)] for pes in axis) if dim in dims else 1))


def _over(dim: str, least: list[list[int]], rows: Sequence[tuple[int, ...]], cols: Sequence[tuple[int, ...]]) -> Any:
    """[rows, cols]: a dimension's numbers, given by its own PEs, for all choices of PEs on rows and columns."""
    on_rows = [pes[ON_ROWS.index(dim)] - 1 if dim in ON_ROWS else 0 for pes in rows]
    on_cols = [pes[ON_COLS.index(dim)] - 1 if dim in ON_COLS else 0 for pes in cols]
    return np.array(least, float)[np.ix_(on_rows, on_cols)]


def _sharing(form: str) -> str:
    """The block-distributed dimensions of a form."""
    return "".join(dim for dim in "khw" if dim in form.split("|")[1])


@cache
def _columns(
    shared: bool, dim: str, extent: int, rows: int, cols: int, sizes: tuple[int, ...]
) -> tuple[Counts, Counts, int]:
    """(trips, held, least): `counted` by the size of the box, 0 if there is none; the least held."""
    trips, held = np.zeros(max(sizes) + 1, np.int64), np.zeros(max(sizes) + 1, np.int64)
    for box in sizes:
        if counts := counted(shared, dim, extent, rows, cols, box):
            trips[box], held[box] = counts
    some = held[held > 0]
    return trips, held, int(some.min()) if len(some) else 1 << 40


# -- the mapping -------------------------------------------------------------------------------------------------------


def mapping_of(shape: LayerShape, arch: Arch, at: SpacePoint) -> Mapping:
    """The mapping of a point with all operands in the GLB (SPACE-6 to SPACE-9)."""
    size = extents(shape)
    step = {dim: steps(dim in _sharing(at.form), dim, size[dim], *at.of(dim)) or (1, 1, 1) for dim in DIMS}
    before, inside = at.form.split("|")
    late = "r" in inside
    sums = [Loop(dim, step[dim][1], "rows") for dim in "cr" if at.of(dim)[0] > 1]
    loops = [Loop("n"), Loop("k", shape.tiled_together), *(Loop(dim, step[dim][0]) for dim in before)]
    loops += [Loop(dim, step[dim][1], "rows") for dim in "kh" if at.of(dim)[0] > 1]
    loops += [] if late else sums
    loops += [Loop(dim, step[dim][2], "cols") for dim in "khw" if at.of(dim)[1] > 1]
    places = dict[str, int]()
    for letter in inside:  # a stage, W or I, or a loop
        if letter in "WI":
            loops += sums if late and not places else []
            places[letter] = len(loops)
        else:
            loops.append(Loop(letter, step[letter][0]))
    taken = {dim: lanes for dim, lanes in zip("kcrs", (at.own, *at.lanes), strict=True) if lanes > 1}
    if "r" in taken or "s" in taken:  # taps stand last
        kept = "wk" + "".join(dim for dim in "scr" if dim not in taken) + "".join(dim for dim in "scr" if dim in taken)
    else:
        kept = "hwck" if at.of("h")[2] > 1 else "wsrck" if "c" in taken else "wksr" if shape.channelwise else "wscrk"
    loops += [Loop(dim, taken.get(dim, 1), keep=True) for dim in kept]
    loops += [Loop(dim, 1, "lanes", keep=True) for dim in kept if dim in taken]
    left, running, depths = dict(vars(shape.sizes)), list[Loop](), [0]
    for loop in loops:  # loops with one iteration are left out
        if (now := min(loop.step, left[loop.dim])) < left[loop.dim]:
            running.append(replace(loop, step=now))
        left[loop.dim] = now
        depths.append(len(running))
    stages = [Stage("weight", "glb", 0)] if shape.is_mac else []
    stages += [Stage("params", "glb", 0)] if shape.params else []
    stages += [Stage("weight", "rf", depths[places["W"]], arch.pe.weight_halves)] if shape.is_mac else []
    stages.append(Stage("ifmap", "rf", depths[places["I"]], arch.pe.ifmap_halves))
    return Mapping(tuple(running), tuple(sorted(stages, key=lambda stage: (stage.depth, stage.operand == "ifmap"))))


# -- bounds from records -----------------------------------------------------------------------------------------------


def _tasks(nodes: Sequence[Node]) -> Iterator[Node]:
    """Instructions in the order of the first iteration of each loop; a loop's own cycle comes before its body."""
    for node in nodes:
        if isinstance(node, TimedLoop):
            yield SequencerCycles(1)
            yield from _tasks(node.body)
        else:
            yield node


def engines_least(nodes: Sequence[Node], arch: Arch) -> int:
    """A lower bound of a layer's cycles from the busy times of its engines: order of starts, but no waiting."""
    busy = busy_cycles(nodes)
    if not arch.sequencer.overlap:
        return sum(busy)
    head, first = 0, 0
    for node in _tasks(nodes):
        if isinstance(node, SequencerCycles) and not first:
            head += node.cycles
        if isinstance(node, Task) and node.engine == LOAD:
            first += node.busy
        if isinstance(node, Task) and node.engine == ARRAY:
            break
    tail = arch.commit.latency_cycles + 1
    commits = [node.busy for node in _tasks(nodes) if isinstance(node, Task) and node.engine == COMMIT]
    last = commits[-1] if commits else 0
    array = head + first + arch.bus.latency_cycles + busy[ARRAY] + last + tail
    loads = head + busy[LOAD] + arch.bus.latency_cycles + last + tail
    return max(array, loads, head + first + arch.bus.latency_cycles + busy[COMMIT] + tail)


def look(shape: LayerShape, arch: Arch, residual: bool, budget: int, least: int) -> SpaceCheck:
    """A search for a mapping with all operands in the GLB that takes fewer cycles than `least`.

    budget: words of the GLB for weights, parameters and partial sums.
    """
    points = run = 0
    if least <= prod(vars(shape.sizes).values()) // (arch.rows * arch.cols * arch.pe.lanes):
        return SpaceCheck(0, 0)  # no mapping beats busy multipliers; a large layer has too many boxes
    for at in below(shape, arch, least):
        points += 1
        mapping = mapping_of(shape, arch, at)
        plan = LayerPlan("", shape, mapping, residual, PREFETCHED)
        if sum(not (loop.on or loop.keep) for loop in mapping.loops) > LOOP_REGISTERS:
            continue  # the machine has too few loop registers, the only limit of mappings without double buffers
        if engines_least(layer_schedule(plan, arch).nodes, arch) >= least:
            continue
        if glb_words(shape, arch, mapping) > budget:
            continue
        run += 1
        if (cycles := layer_cycles(plan, arch)) < least:
            return SpaceCheck(points, run, (mapping, cycles))
    return SpaceCheck(points, run)


# -- where operands move -----------------------------------------------------------------------------------------------


def is_enumerated(shape: LayerShape, arch: Arch, budget: int) -> bool:
    """Whether `look` has all mappings of a layer if no activation is streamed.

    All weights and parameters fit the GLB then (SPACE-12). Several images have others (LOCAL-5).
    """
    sizes = shape.sizes
    owners = sizes.h * sizes.w if shape.per_position else sizes.k
    is_alone = sizes.n == 1 or shape.per_position
    return is_alone and shape.weight_words + shape.params * arch.words_per_param * owners <= budget
