"""Groups of layers that run stripe by stripe: which rows a stripe reads, and the rules that a group keeps. No IR.

A group runs in steps. At step i a layer runs stripe `i - delay` of its rows, if it has this stripe; the layers of a
step run in the order written. A result that layers of the group read lies in a ring of `keeps` rows: row y in slot
`y mod keeps`. docs/groups.md has the rules GROUP-1 to GROUP-4, which `group_problems` checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from cnncc.mapping.mapping import Loop, Mapping, Sizes

KINDS = ("mac", "max", "add")  # of layers in groups: elementwise ones read in the commit engine
LOAD = "load"  # the kind of what brings rows from DRAM into a ring
STREAMED = ("ifmap", "residual", "output")

Point = tuple[int, int]  # a step, and the number of a layer that has a stripe in it


@dataclass(frozen=True)
class RowRead:
    """How a layer reads the rows of the result of layer number `producer`, as its `operand`.

    extent: rows of a window, the dilated kernel. pad: rows of padding above.
    """

    producer: int
    operand: str
    extent: int = 1
    stride: int = 1
    pad: int = 0

    def rows(self, first: int, count: int, height: int) -> tuple[int, int]:
        """First row and end of what output rows `first` … `first + count - 1` read of `height` rows.

        >>> RowRead(0, "ifmap", extent=3, stride=2, pad=1).rows(0, 2, 8)
        (0, 4)
        """
        low = max(0, first * self.stride - self.pad)
        return low, max(low, min(height, (first + count - 1) * self.stride + self.extent - self.pad))


@dataclass(frozen=True)
class Stripes:
    """The rows of a result, so many at a time. head: rows of the first stripe. The last one may be smaller."""

    height: int
    rows: int
    head: int

    @property
    def count(self) -> int:
        """How many stripes an image has."""
        return self.of_row(self.height - 1) + 1

    def start(self, stripe: int) -> int:
        """The first row of a stripe, or where one would begin after the last."""
        return min(self.height, self.head + (stripe - 1) * self.rows) if stripe > 0 else 0

    def rows_of(self, stripe: int) -> int:
        """Rows of a stripe, 0 of one that there is not."""
        return self.start(stripe + 1) - self.start(stripe) if stripe >= 0 else 0

    @property
    def most_rows(self) -> int:
        """Rows of the largest stripe. They are written together, so that a ring has a slot for each of them."""
        return max(self.rows_of(0), self.rows_of(1))

    def of_row(self, row: int) -> int:
        """The stripe that a row is in."""
        return (row - self.head) // self.rows + 1 if row >= self.head else 0

    def reads(self, read: RowRead, stripe: int, height: int) -> tuple[int, int]:
        """First row and end of what a stripe reads of `height` rows."""
        return read.rows(self.start(stripe), self.rows_of(stripe), height)

    def needs(self, read: RowRead, stripe: int, producer: Stripes) -> int:
        """The last stripe of the producer that a stripe reads; -1 where it reads none."""
        low, end = self.reads(read, stripe, producer.height)
        return producer.of_row(end - 1) if end > low else -1


@dataclass(frozen=True)
class GroupLayer:
    """A layer of a group. keeps: rows of its result's ring, 0 without one. leaves: whether the group yields its result.

    first: rows of the first stripe, 0 for as many as others have. reads: the results of layers before it in the group.
    A layer of kind load computes nothing: its result are the rows of a value in DRAM, of k channels.
    """

    label: str
    kind: str
    sizes: Sizes
    mapping: Mapping
    delay: int
    keeps: int = 0
    reads: tuple[RowRead, ...] = ()
    leaves: bool = False
    first: int = 0

    @property
    def depth(self) -> int:
        """The loops around a stripe: one over n where there are several images, and one over h."""
        return 2 if self.sizes.n > 1 else 1

    @property
    def is_load(self) -> bool:
        """Whether it brings rows from DRAM and computes nothing."""
        return self.kind == LOAD

    @property
    def around(self) -> tuple[Loop, ...]:
        """These loops."""
        return self.mapping.loops[: self.depth]

    @cached_property
    def rows(self) -> int:
        """Rows of a stripe."""
        return self.around[-1].step

    @cached_property
    def stripes(self) -> Stripes:
        """How its rows are cut."""
        return Stripes(self.sizes.h, self.rows, self.first or self.rows)


def load_of_rows(
    label: str, shape: tuple[int, int, int, int], rows: int, delay: int = 0, keeps: int = 0, first: int = 0
) -> GroupLayer:
    """What brings the rows of a value of the shape n k h w from DRAM, so many for a stripe."""
    n, k, h, w = shape
    around = (*((Loop("n"),) if n > 1 else ()), Loop("h", rows))
    return GroupLayer(label, LOAD, Sizes(n, k, 1, h, w, 1, 1), Mapping(around), delay, keeps, first=first)


def without_unread_rows(layers: Sequence[GroupLayer]) -> list[GroupLayer]:
    """The layers, loads without the last rows of their value that no window touches."""
    result = list(layers)
    for layer in layers:
        for read in layer.reads:
            if (load := layers[read.producer]).is_load:
                _, end = read.rows(0, layer.sizes.h, load.sizes.h)
                # Several layers may read the load: the last row that any of them touches counts.
                known = result[read.producer].sizes.h if result[read.producer] is not load else 1
                result[read.producer] = replace(load, sizes=replace(load.sizes, h=max(known, end)))
    return result


def points_of(layers: Sequence[GroupLayer]) -> Iterator[tuple[Point, int]]:
    """All stripes of an image in program order: where they are, and their numbers."""
    for step in range(max(layer.delay + layer.stripes.count for layer in layers)):
        for number, layer in enumerate(layers):
            if 0 <= (stripe := step - layer.delay) < layer.stripes.count:
                yield (step, number), stripe


@lru_cache(maxsize=1024)  # a search for groups asks for few, often
def least_lag(consumer: Stripes, read: RowRead, producer: Stripes) -> int:
    """How many stripes the consumer runs behind the producer at least, so that all rows that it reads are there."""
    return max(0, *(consumer.needs(read, stripe, producer) - stripe for stripe in range(consumer.count)))


@lru_cache(maxsize=1024)
def least_ring(consumer: Stripes, read: RowRead, producer: Stripes, lag: int) -> int:
    """Rows of the ring, so that the producer, `lag` stripes ahead, overwrites no row that the consumer still reads."""
    least = producer.most_rows
    for stripe in range(consumer.count):
        low, end = consumer.reads(read, stripe, producer.height)
        if end > low:
            least = max(least, producer.start(stripe + lag + 1) - low)
    return least


def group_problem(layers: Sequence[GroupLayer]) -> str | None:
    """Which rule the layers of a group break first; None where they break none."""
    return next(group_problems(layers), None)


def group_problems(layers: Sequence[GroupLayer]) -> Iterator[str]:
    """All rules that the layers of a group break. Wrong loops come first, and alone: the other rules build on them."""
    wrong = [problem for layer in layers for problem in _loop_problems(layer, layers[0])]
    yield from wrong or [problem for layer in layers for problem in _layer_problems(layer, layers)]


def _loop_problems(layer: GroupLayer, first: GroupLayer) -> Iterator[str]:
    dims, around = "nh"[-layer.depth :], layer.around
    if layer.kind not in (*KINDS, LOAD):
        yield f"layer {layer.label} is of kind {layer.kind}, layers of a group are {', '.join(KINDS)} (GROUP-1)"
    if layer.sizes.n != first.sizes.n:
        yield f"layer {layer.label} has {layer.sizes.n} images, layer {first.label} {first.sizes.n} (GROUP-1)"
    if "".join(loop.dim for loop in around) != dims or any(loop.on or loop.keep for loop in around):
        yield f"layer {layer.label}: its outermost loops run over {' '.join(dims)}, in time (GROUP-1)"
    elif not 0 <= layer.first <= layer.rows:
        limit = f"more than the others' {layer.rows}" if layer.first > 0 else "fewer than none"
        rows = f"its first stripe has {layer.first} rows, {limit}"
        yield f"layer {layer.label}: {rows} (GROUP-1)"
    elif layer.depth > 1 and around[0].step > 1:
        yield f"layer {layer.label}: its loop over n takes {around[0].step} images at a time, not one (GROUP-1)"


def _layer_problems(layer: GroupLayer, layers: Sequence[GroupLayer]) -> Iterator[str]:
    is_read = any(layers[read.producer] is layer for other in layers for read in other.reads)
    most = sum(each.stripes.count for each in layers)
    if not 0 <= layer.delay <= most:
        yield f"layer {layer.label}: delay {layer.delay} is not in 0 to {most}, the stripes of all layers (GROUP-2)"
    if is_read and layer.leaves:
        why = "a ring has its last rows alone"
        yield f"the result of layer {layer.label} is read in the group and leaves it: {why} (GROUP-3)"
    if not is_read and not layer.leaves:
        yield f"nothing reads the result of layer {layer.label} (GROUP-3)"
    if bool(layer.keeps) != is_read or layer.keeps > layer.sizes.h:
        most = f"1 to {layer.sizes.h} rows" if is_read else "no ring, as no layer of the group reads it"
        yield f"layer {layer.label}: keeps {layer.keeps}: its result has {most} (GROUP-3)"
    for read in layer.reads:
        yield from _edge_problems(layer, read, layers[read.producer])
    yield from _stage_problems(layer, is_read)


def _edge_problems(layer: GroupLayer, read: RowRead, producer: GroupLayer) -> Iterator[str]:
    edge = f"layer {layer.label}, which reads {producer.label}"
    if (rows := min(producer.sizes.h, read.stride * layer.rows)) != producer.rows:
        yield (
            f"{edge}: stripes of {layer.rows} rows with stride {read.stride} take stripes of {rows} rows, "
            f"not {producer.rows} (GROUP-1)"
        )
    if layer.delay < (least := producer.delay + least_lag(layer.stripes, read, producer.stripes)):
        yield f"{edge}: delay {layer.delay}, the least is {least} (GROUP-2)"
    # The rows of the ring follow from the delay: a wrong one is reported by itself.
    elif producer.keeps and producer.keeps < (
        least := least_ring(layer.stripes, read, producer.stripes, layer.delay - producer.delay)
    ):
        yield f"{edge}: {producer.label} keeps {producer.keeps} rows, the fewest are {least} (GROUP-3)"


def _stage_problems(layer: GroupLayer, is_read: bool) -> Iterator[str]:
    inner = {read.operand for read in layer.reads} | ({"output"} if is_read else set[str]())
    for stage in layer.mapping.stages:
        what = f"layer {layer.label}: stage {stage.operand} in {stage.memory}"
        if stage.memory == "glb" and stage.operand in ("ifmap", "residual") and layer.first % layer.rows:
            yield f"{what}: stripes that come from DRAM are of one size, the first one has {layer.first} rows (GROUP-4)"
        if stage.memory == "rf" and stage.depth < layer.depth:
            yield f"{what} stands outside the loop over stripes: sections of other layers come between (GROUP-4)"
        elif stage.memory == "glb" and stage.operand in inner:
            yield f"{what}: the value lies in a ring (GROUP-4)"
        elif stage.memory == "glb" and stage.operand in STREAMED and stage.depth != layer.depth:
            yield f"{what} stands at depth {stage.depth}: a block is a stripe, at depth {layer.depth} (GROUP-4)"
        elif stage.memory == "glb" and stage.operand not in STREAMED and stage.depth:
            yield f"{what} stands at depth {stage.depth}: it comes once, outside all loops (GROUP-4)"
