"""The program of a group: which stripes run in which loop, and the tokens between its layers. No IR.

The steps of a group are cut into *bodies*. All steps of a body run the same layers, on stripes of the same sizes, with
the same tokens, so that a body is one hardware loop. Long groups have a prologue, a steady state and an epilogue.

Tokens (GROUP-7). Each engine works in program order. So a load that waits for one stripe waits for all stripes before
it. It takes a token only if it needs a later stripe than any load before it has waited for. Tokens are then taken in
the order in which they are given: one semaphore does for all layers (TOKEN-4). Another one does for rows that come from
DRAM. No token frees a slot of a ring that layers write (GROUP-8). One frees the slots that come from DRAM (GROUP-10).

The lowering (`passes/_programs/group_program.py`) and the cost model share these bodies, as they do `glb_tokens.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from cnncc.errors import Refusal
from cnncc.mapping.channels import CoreEnds
from cnncc.mapping.groups import STREAMED, GroupLayer, Point, RowRead, points_of
from cnncc.model.glb_tokens import GlbTokens, Semaphore

NEVER: Point = (-1, -1)


class StripeTokens(NamedTuple):
    """The tokens of a stripe: what its first load takes and its last commit gives, of rows from DRAM the transfer.

    - depth: of the loops around it
    - frees: what the last load of the ifmap gives
    - space: what the first commit takes
    """

    depth: int
    takes: Semaphore = Semaphore.NONE
    gives: Semaphore = Semaphore.NONE
    frees: Semaphore = Semaphore.NONE
    space: Semaphore = Semaphore.NONE


class Section(NamedTuple):
    """A stripe of layer number `layer` in the first step of a body. following: rows of the next stripe, 0 after all."""

    layer: int
    stripe: int
    rows: int
    following: int
    tokens: StripeTokens


class GroupBody(NamedTuple):
    """Steps of a group that are alike; in each the stripes are one further."""

    steps: int
    sections: tuple[Section, ...]


def group_bodies(
    layers: Sequence[GroupLayer], prefetches: Sequence[bool], ends: CoreEnds | None = None
) -> tuple[GroupBody, ...]:
    """The bodies of one image. prefetches: the layers that fetch their next stripe from DRAM, of a known size.

    ends: the tokens of what a core reads and writes. Raises Refusal for tokens that no load or commit has room for.
    """
    return _bodies(tuple(layers), tuple(prefetches), ends)


@lru_cache(maxsize=64)  # checks, the cost model and the lowering ask for the bodies of the same group
def _bodies(
    layers: tuple[GroupLayer, ...], prefetches: tuple[bool, ...], ends: CoreEnds | None
) -> tuple[GroupBody, ...]:
    tokens, steps = _StripeTokens(layers, ends).tokens(), list[tuple[Section, ...]]()
    for _, points in groupby(points_of(layers), lambda each: each[0][0]):
        sections = list[Section]()
        for (step, number), stripe in points:
            layer = layers[number]
            own = tokens.get((step, number), StripeTokens(layer.depth))
            sections.append(
                Section(number, stripe, layer.stripes.rows_of(stripe), layer.stripes.rows_of(stripe + 1), own)
            )
        steps.append(tuple(sections))

    def signature(sections: tuple[Section, ...]) -> list[Section]:
        """What the steps of a body have in common."""
        return [
            each._replace(
                # Stripes behind a smaller first one do not lie where they would behind a full one.
                stripe=int(each.stripe > 0 and layers[each.layer].first > 0),
                following=each.following * prefetches[each.layer],
            )
            for each in sections
        ]

    bodies = [list(run) for _, run in groupby(steps, signature)]
    return tuple(GroupBody(len(body), body[0]) for body in bodies)


class _StripeTokens:
    """The tokens of all stripes of an image, by step and layer."""

    def __init__(self, layers: Sequence[GroupLayer], ends: CoreEnds | None) -> None:
        self.layers, self.ends = layers, ends
        self.taken, self.given = dict[Point, Semaphore](), dict[Point, Semaphore]()
        self.freed, self.space = dict[Point, Semaphore](), dict[Point, Semaphore]()

    def tokens(self) -> dict[Point, StripeTokens]:
        self._full()
        loads = [number for number, layer in enumerate(self.layers) if layer.is_load]
        # The transfers of two would take each other's tokens, of ROWS_FREE.
        if len(loads) > 1:
            names = " and ".join(self.layers[number].label for number in loads)
            raise Refusal(f"{names} come from DRAM into rings: one value of a group does")
        for number in loads:
            self._free(number)
        if self.ends is not None:
            self._channels(self.ends)
        self._check()
        none, depth = Semaphore.NONE, self.layers[0].depth
        kinds = self.taken, self.given, self.freed, self.space
        points = {point for kind in kinds for point in kind}
        return {point: StripeTokens(depth, *(kind.get(point, none) for kind in kinds)) for point in points}

    def _channels(self, ends: CoreEnds) -> None:
        """CHANNEL-4: loads take rows and free slots, commits take slots and give rows."""
        self.taken |= dict.fromkeys(ends.reads.takes, Semaphore.IFMAP_FULL)
        self.freed |= dict.fromkeys(ends.reads.gives, Semaphore.IFMAP_FREE)
        self.space |= dict.fromkeys(ends.writes.takes, Semaphore.OUTPUT_FREE)
        self.given |= dict.fromkeys(ends.writes.gives, Semaphore.OUTPUT_FULL)

    def _points(self) -> Iterator[tuple[Point, GroupLayer, int]]:
        """All stripes in program order: where they are, their layer, their number."""
        return ((point, self.layers[point[1]], stripe) for point, stripe in points_of(self.layers))

    def _waiting(self, layer: GroupLayer) -> tuple[RowRead, ...]:
        """The reads for whose rows the first load of a stripe waits.

        On a core a layer whose ifmap comes from outside waits for that alone. Its residual comes from commits of the
        same core, which do these before its own.
        """
        alone = self.ends is not None and not any(read.operand == "ifmap" for read in layer.reads)
        return () if alone else layer.reads

    def _full(self) -> None:
        """The first loads that wait for a stripe, or for rows from DRAM, and the events that they wait for."""
        waited: dict[Semaphore, Point] = {Semaphore.STRIPE_FULL: NEVER, Semaphore.ROWS_FULL: NEVER}
        for point, layer, stripe in self._points():
            needed = dict(waited)
            for read in self._waiting(layer):
                producer = self.layers[read.producer]
                full = Semaphore.ROWS_FULL if producer.is_load else Semaphore.STRIPE_FULL
                if (last := layer.stripes.needs(read, stripe, producer.stripes)) >= 0:
                    # Stripes are done in the order of their points: the latest that is needed covers the others.
                    needed[full] = max(needed[full], (last + producer.delay, read.producer))
            for full in (full for full in waited if needed[full] > waited[full]):
                if point in self.taken:
                    raise Refusal(
                        f"layer {layer.label}: its first load waits for a layer of its group, and for rows from DRAM: "
                        f"it can for one"
                    )
                self.taken[point], self.given[needed[full]] = full, full
            waited = needed

    def _free(self, number: int) -> None:
        """Which transfers wait for slots to be free, and which loads or commits say so.

        The first transfer of an image waits for the last read of the image before.
        """
        load, reads = self.layers[number], list[tuple[int, Point]]()  # the first row that is read, where
        for point, layer, stripe in self._points():
            rows = [layer.stripes.reads(read, stripe, load.sizes.h) for read in layer.reads if read.producer == number]
            if lows := [low for low, end in rows if end > low]:
                reads.append((min(lows), point))
        if not reads:
            raise Refusal(f"no layer of the group reads a row of {load.label}")
        self.taken[load.delay, number], frees = Semaphore.ROWS_FREE, [max(point for _, point in reads)]
        reads.sort(reverse=True)
        needed = waited = NEVER
        for stripe in range(1, load.stripes.count):
            gone = load.stripes.start(stripe + 1) - load.keeps  # rows before this one are overwritten
            while reads and reads[-1][0] < gone:
                needed = max(needed, reads.pop()[1])
            if needed > waited:
                self.taken[stripe + load.delay, number], waited = Semaphore.ROWS_FREE, needed
                frees.append(needed)
        self._give_free(load, number, frees)

    def _check(self) -> None:
        """A load takes one token and a commit gives one. Raises Refusal."""
        for point in self.taken.keys() | self.given.keys():
            layer = self.layers[point[1]]
            tokens = GlbTokens(layer.mapping.glb_stages, Semaphore.NONE)
            if layer.is_load:
                continue
            if point in self.taken and tokens.of_ifmap_load()[1]:
                raise Refusal(
                    f"layer {layer.label}: its first load waits for a layer of its group, and for a transfer: it can "
                    f"for one"
                )
            if point in self.given and tokens.given_by_commit()[1]:
                raise Refusal(
                    f"layer {layer.label}: its commits free a buffer, and give a token to its group: stage its ifmap "
                    f"in two buffers"
                )

    def _give_free(self, load: GroupLayer, number: int, frees: Sequence[Point]) -> None:
        """Loads say that rows are read; commits do where a layer reads these as a residual."""
        residual = {
            at
            for at, layer in enumerate(self.layers)
            for read in layer.reads
            if read.producer == number and read.operand == "residual"
        }
        for point in frees:
            if not residual:
                self.freed[point] = Semaphore.ROWS_FREE
            elif point[1] in residual and point not in self.given:
                self.given[point] = Semaphore.ROWS_FREE
            else:
                raise Refusal(
                    f"{load.label} lies in a ring and is read as a residual, too: the last layer that reads it, "
                    f"{self.layers[point[1]].label}, has no commit that can say so"
                )


def check_stages(layers: Sequence[GroupLayer], residuals: Sequence[bool]) -> None:
    """Raises Refusal for stages of a group that the array has no program for. residuals: whether layers have one.

    Stages of several layers would take tokens of one semaphore in another order than they are given.
    """
    for operand in STREAMED:
        staged = [layer.label for layer in layers if operand in layer.mapping.glb_stages]
        if len(staged) > 1:
            raise Refusal(f"layers {' and '.join(staged)} stage {operand} in glb: one layer of a group does")
    for layer, has_residual in zip(layers, residuals, strict=True):
        # A ring that holds all rows lies as a value outside of rings does.
        rings = {read.operand for read in layer.reads if _wraps(layers[read.producer])}
        outside = {"residual", "output"} - rings - ({"output"} if _wraps(layer) else set[str]())
        staged = layer.mapping.glb_stages.keys()
        if has_residual and layer.sizes.n > 1 and len(outside) == 2 and len(outside & staged) == 1:
            raise Refusal(
                f"layer {layer.label}: of residual and output its {min(outside - staged)} alone is resident, and there "
                f"are {layer.sizes.n} images: stage both in glb"
            )
    waits_for_weights(layers)


def _wraps(layer: GroupLayer) -> bool:
    """Whether a layer's result lies in a ring of fewer rows than it has."""
    return 0 < layer.keeps < layer.sizes.h


def first_runs(layers: Sequence[GroupLayer]) -> list[int]:
    """The layers in the order of their first stripes."""
    return sorted(range(len(layers)), key=lambda number: (layers[number].delay, number))


def transfer_order(layers: Sequence[GroupLayer], waits: Sequence[bool], prefetches: Sequence[bool]) -> list[int]:
    """The layers in the order of their first transfers: weights, params, first blocks. Loads have none.

    The group's first load waits for all transfers that no token announces. So layers without a token of their own
    (`waits_for_weights`) come first, of these the one with a first block last. Layers with a token follow. All weights
    have one semaphore, so they come in the order in which layers first run, with or without a first block.
    """
    runs = (number for number in first_runs(layers) if not layers[number].is_load)
    return sorted(runs, key=lambda number: (waits[number], prefetches[number] and not waits[number]))


def last_run(layers: Sequence[GroupLayer]) -> int:
    """The layer with the last stripe of all."""
    return max(range(len(layers)), key=lambda number: (layers[number].delay + layers[number].stripes.count, number))


def waits_for_weights(layers: Sequence[GroupLayer]) -> list[bool]:
    """Whether each layer has a token that says that its weights and params have come.

    Raises Refusal where no load of the group would wait for the params of a layer without weights.
    """
    staged = [layer.mapping.glb_stages for layer in layers]
    first = next(number for number in first_runs(layers) if not layers[number].is_load)
    waits = ["weight" in each for each in staged]
    comes = {"weight", "ifmap"} & staged[first].keys() or any(layers[r.producer].is_load for r in layers[first].reads)
    # No token announces params without weights. The first load has to wait for a transfer that stands behind them.
    alone = [own.label for own, each in zip(layers, staged, strict=True) if "params" in each and "weight" not in each]
    if alone and not comes:
        if "params" not in staged[first]:
            raise Refusal(
                f"layer {alone[0]}: nothing would wait for its params: it has no weights, and the group's first layer, "
                f"{layers[first].label}, waits for no transfer: begin the group with another layer"
            )
        waits[first] = True
    return waits
