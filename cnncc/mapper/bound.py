"""What a mapping of the search's space takes at least: the engines' own times, and what cannot overlap.

Bounds follow from the sizes of the bodies of a nest, by rules MAC-4, LOAD-2, COMMIT-3, COMMIT-6 and DMA-2 of
docs/machine.md. They are below the cycles of `timeline.py` for every mapping; docs/mapper.md says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cnncc.arch.model import Arch
from cnncc.dialects._mapping import even_sets
from cnncc.mapper.space import Chain, Point, shared, steps_of
from cnncc.mapper.tiles import tiles_of
from cnncc.model.layer_shape import LayerShape
from cnncc.model.register_files import positions, shared_columns


class Way(NamedTuple):
    """One way through the loops over a dimension: trips in time, PEs on rows and columns, indices in the box.

    pieces: the same trips without the loops in time that stand inside those in space (1 for each piece in space).
    """

    trips: int
    rows: int
    cols: int
    held: int
    pieces: int


@lru_cache(maxsize=1 << 14)
def ways(extent: int, chain: Chain, spread: bool, block: int = 0) -> tuple[Way, ...]:
    """All of them, in the order in which they are gone. block: what the loops are made for, if that is more."""
    rows, cols, _, share = chain
    time, on_rows, on_cols = steps_of(chain, block or extent)
    loops = [(on_rows, "rows")] * (rows > 1) + [(on_cols, "cols")] * (cols > 1)
    loops = [*loops, (time, "time")] if share else [(time, "time"), *loops]
    innermost = max((i for i, loop in enumerate(loops) if loop[1] != "time"), default=-1) if spread else -1
    found: list[Way] = []

    def walk(i: int, extent: int, around: int, way: Way) -> None:
        if i == len(loops):
            found.append(way._replace(held=extent))
            return
        step, axis = loops[i]
        sets = max(1, around // step) if i == innermost else 1
        full, rest = divmod(extent, step)
        parts = [(full, step)] * (full > 0)
        if rest:
            count = even_sets(rest, sets)
            parts.append((count, rest // count))
        for number, (count, size) in enumerate(parts):
            inner = min(around, step)
            if axis == "time":
                pieces = way.pieces * ((number == 0) if share else count)
                walk(i + 1, size, inner, Way(way.trips * count, way.rows, way.cols, 0, pieces))
            elif axis == "rows":
                walk(i + 1, size, inner, Way(way.trips, way.rows * count, way.cols, 0, way.pieces))
            else:
                walk(i + 1, size, inner, Way(way.trips, way.rows, way.cols * count, 0, way.pieces))

    walk(0, extent, block or extent, Way(1, 1, 1, 0, 1))
    return tuple(found)


def last_held(ways: Sequence[Way], count: int) -> int:
    """Indices that the box holds in the last trips, so many of them or all."""
    return sum([way.held for way in ways for _ in range(min(way.trips, count))][::-1][:count])


def up(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def ideal_cycles(shape: LayerShape, arch: Arch) -> int:
    """All multipliers busy all the time, or all output units."""
    sizes, units = shape.sizes, arch.cols * arch.commit.units_per_column
    macs, results = prod(vars(sizes).values()), sizes.n * sizes.k * sizes.h * sizes.w
    return max(macs // (arch.rows * arch.cols * arch.pe.lanes), results // min(units, arch.glb.words_per_cycle))


class Durations:
    """How long loads and commits take, of one layer."""

    def __init__(self, shape: LayerShape, arch: Arch, residual: bool) -> None:
        self.shape, self.arch, self.residual = shape, arch, residual
        self.weight_load = cache(self._weight_load)
        self.ifmap_load = cache(self._ifmap_load)
        self.commit = cache(self._commit)

    def load(self, words: int, places: int, in_row: int) -> int:
        """Rule LOAD-2."""
        arch = self.arch
        return max(up(words * places, arch.glb.words_per_cycle), in_row * up(words, arch.bus.burst_words), words)

    def _weight_load(self, k: Way, c: Way, r: Way, s: Way) -> int:
        """Of one load of weights."""
        return self.load(k.held * c.held * r.held * s.held, k.rows * k.cols * c.rows * r.rows, k.cols)

    def _ifmap_load(self, k: Way, h: Way, w: Way, c: Way, r: Way, s: Way, lanes: int, tiled: bool) -> int:
        """Of one load of the ifmap, at least: neighbours pass on what they can. tiled: h is, and not shared out."""
        window, shape = self.shape.window, self.shape
        rows = positions(h.held, r.held, window.stride[0], window.dilation[0])[0]
        columns = positions(w.held, s.held, window.stride[1], window.dilation[1])[0]
        down = {i * h.held * h.cols * window.stride[0] + j * r.held * window.dilation[0]
                for i in range(h.rows) for j in range(r.rows)}  # fmt: skip
        ys = len({a + b * h.held * window.stride[0] for a in down for b in range(h.cols)})
        if not tiled:  # sums of any steps are at least so many
            ys = h.rows * h.cols + r.rows - 1
        channels = c.held * (k.held if shape.channelwise else 1)
        own = (k.rows, k.cols) if shape.channelwise else (1, 1)
        places, in_row = ys * c.rows * w.cols * own[0] * own[1], h.cols * w.cols * own[1]
        whole = self.load(rows * columns * channels, places, in_row)
        passed = shared_columns(shape, self.arch, s.held, w.held) if w.cols > 1 and lanes == 1 else 0
        if not passed:
            return whole
        fresh = self.load(rows * (columns - passed) * channels, places, in_row)
        edge = self.load(rows * passed * channels, places // w.cols, in_row // w.cols)
        return min(whole, fresh + edge)

    def _commit(self, k: Way, h: Way, w: Way, c: Way, r: Way, partial: bool) -> int:
        """Of one commit (COMMIT-3, COMMIT-6)."""
        arch, shape = self.arch, self.shape
        together, cols = c.rows * r.rows, k.cols * h.cols * w.cols
        sums = k.held * h.held * w.held
        results = k.rows * h.rows * cols * sums
        channels = 0 if shape.per_position else k.rows * k.cols * k.held
        words = results * (1 + self.residual + 2 * arch.words_per_sum * partial)
        words += shape.params * arch.words_per_param * channels
        units = up(results, cols * arch.commit.units_per_column)
        return max(units, up(words, arch.glb.words_per_cycle)) + together - 1


class Bound:
    """The bounds of one point of a layer; `durations` are those of the layer."""

    def __init__(self, durations: Durations, at: Point) -> None:
        self.durations, self.at = durations, at
        self.shape, self.arch, self.residual = durations.shape, durations.arch, durations.residual
        sizes = self.shape.sizes
        self.extent = {dim: sizes.of(dim) for dim in "khwcrs"} | {"k": self.shape.tiled_together}
        self.ways = {dim: ways(self.extent[dim], at.chain(dim, self.extent[dim]), dim == "k") for dim in "khwcrs"}
        self.times = sizes.n * (sizes.k // self.shape.tiled_together)

    def _ifmap(self, *ways: Way) -> int:
        return self.durations.ifmap_load(*ways, self.at.lanes, not shared(self.at.form, "h"))

    def _weight(self, k: Way, _h: Way, _w: Way, c: Way, r: Way, s: Way) -> int:
        return self.durations.weight_load(k, c, r, s) if self.shape.is_mac else 0

    # -- all of a layer --------------------------------------------------------------------------------------------

    @cached_property
    def adds_up(self) -> dict[str, bool]:
        """Of c, r and s, whether sums are added up in the GLB where its loop in time runs."""
        return tiles_of(self.shape, self.at).adds_up(self.extent)

    @cached_property
    def partial(self) -> bool:
        """Whether sums are partial."""
        return any(adds_up and self.trips(dim) > 1 for dim, adds_up in self.adds_up.items())

    def trips(self, dim: str) -> int:
        """Iterations in time over a dimension."""
        return sum(way.trips for way in self.ways[dim])

    def _corner(self, which: int) -> list[Way]:
        return [self.ways[dim][which] for dim in "khwcrs"]

    def views(self) -> int:
        """Instructions in front of the first transfer, at least: descriptors, the unit."""
        shape = self.shape
        return 2 + 2 * shape.is_mac + 2 * bool(shape.params) + self.residual + 1

    @cached_property
    def head(self) -> int:
        """Instructions in front of the first load, at least: these and loops."""
        return self.views() + sum(any(way.trips > 1 for way in self.ways[dim]) for dim in "khwcrs")

    @cached_property
    def _first(self) -> int:
        """Cycles of the first load of the ifmap, until it is there."""
        return self._ifmap(*self._corner(0)) + self.arch.bus.latency_cycles

    @cached_property
    def start(self) -> int:
        """Cycles until the first macro-instruction starts: the layer's head and the first loads."""
        return self.head + self._weight(*self._corner(0)) + self._first

    def fill(self, comes: Any) -> Any:
        """The same where the first block comes meanwhile, which the load of the ifmap waits for, not that of weights.

        comes: what that takes.
        """
        return np.maximum(self.start, self.views() + comes + self._first)

    @cached_property
    def drain(self) -> int:
        """Cycles from the end of the last macro-instruction to that of the layer."""
        k, h, w, c, r, _ = self._corner(-1)
        return self.durations.commit(k, h, w, c, r, self.partial) + self.arch.commit.latency_cycles + 1

    def between(self) -> int:
        """Cycles between the last macro-instruction of a block and the first of the one that waits for it, at least."""
        return self._first + self.arch.commit.latency_cycles + 1

    def loads(self, more: int = 0) -> int:
        """Cycles in which the load engine is busy, at least. more: cycles that each load takes beside its own."""
        k_, h_, w_, c_, r_, s_ = (self.ways[dim] for dim in "khwcrs")
        inside = self.at.form.order.split("|")[1]
        weights = 0
        if self.shape.is_mac:
            visits = prod(
                sum(_visits(way, inside.index("W"), inside, dim) for way in ways)
                for dim, ways in (("h", h_), ("w", w_))
            )
            weights = visits * sum(
                k.trips * c.trips * r.trips * s.trips * (self.durations.weight_load(k, c, r, s) + more)
                for k in k_ for c in c_ for r in r_ for s in s_
            )  # fmt: skip
        at = inside.index("I")
        own = [(k, _visits(k, at, inside, "k")) for k in k_]
        if not self.shape.channelwise:
            own = [(k_[0], sum(visits for _, visits in own))]
        ifmap = sum(
            visits * h.trips * w.trips * c.trips * r.trips * s.trips * (self._ifmap(k, h, w, c, r, s) + more)
            for k, visits in own for h in h_ for w in w_ for c in c_ for r in r_ for s in s_
        )  # fmt: skip
        return self.times * (weights + ifmap)

    def commits(self, more: int = 0) -> int:
        """Cycles in which the output units are busy. more: cycles that each commit takes beside its own."""
        k_, h_, w_ = (self.ways[dim] for dim in "khw")
        c_, r_, s_ = (self.ways[dim] if self.adds_up[dim] else (self.ways[dim][0]._replace(trips=1),) for dim in "crs")
        each = sum(
            k.trips * h.trips * w.trips * c.trips * r.trips
            * (self.durations.commit(k, h, w, c, r, self.partial) + more)
            for k in k_ for h in h_ for w in w_ for c in c_ for r in r_
        )  # fmt: skip
        return self.times * each * sum(way.trips for way in s_)

    @cached_property
    def first_last(self) -> tuple[int, int]:
        """Steps of the first and the last macro-instruction, with their overhead."""
        over = self.arch.pe.start_cycles + self.arch.pe.finish_cycles
        found = [prod(way.held for way in self._corner(which)) // self.at.lanes + over for which in (0, -1)]
        return found[0], found[1]

    def halves(self, operand: str) -> int:
        """How many loads of weights (W) or ifmap (I) PEs hold."""
        return self.arch.pe.weight_halves if operand == "W" else self.arch.pe.ifmap_halves

    @cached_property
    def waits(self) -> int:
        """Cycles that the array waits at least for the stationary operand: the one of W and I that comes first.

        PEs hold `halves` loads of the other operand. The stationary one's next load is queued behind the last of these.
        For each load but the first the array waits at least for the greatest of 0 and

            load(stationary) + load(other) + last load(other) + latency - cycles of the last `halves` macro-instructions
            load(other) + latency - cycles of the last `halves - 1` macro-instructions

        The first line needs more than `halves` macro-instructions from load to load: others would count twice.
        """
        first, *inner = (each for each in self.at.form.order.split("|")[1] if each in "khwWI")
        inner = [dim for dim in inner if dim in "khw"]
        between = [dim for dim in inner if self.trips(dim) > 1]
        halves, trips = self.halves("I" if first == "W" else "W"), prod(map(self.trips, between))
        if not between or trips < halves or any(sum(way.pieces for way in self.ways[dim]) > 1 for dim in inner):
            return 0
        full, last = self._corner(0), self._corner(-1)
        own, latency = (self._weight if first == "I" else self._ifmap), self.arch.bus.latency_cycles
        both = self._weight(*full) + self._ifmap(*full) + own(*last) + latency - self._done(full, between[-1], halves)
        alone = own(*full) + latency - self._done(full, between[-1], halves - 1)
        steps = self.times * prod(self.ways[dim][0].trips for dim in "khwcrs" if dim not in inner)
        return max(0, steps - 1) * max(0, both if trips > halves else 0, alone)

    def _done(self, full: list[Way], dim: str, count: int) -> int:
        """Cycles of so many macro-instructions at the end of a loop."""
        ways = self.ways[dim]
        held = last_held(ways, count) + max(0, count - self.trips(dim)) * ways[0].held
        done = held * prod(way.held for way in full) // self.at.lanes // ways[0].held
        return done + count * (self.arch.pe.start_cycles + self.arch.pe.finish_cycles)

    @cached_property
    def engines(self) -> int:
        """The layer's cycles at least, by the times of the load engine and of the output units alone."""
        first, last = self.first_last
        loads = self.head + self.loads() + self.arch.bus.latency_cycles + last + self.drain
        return max(loads, self.start + first + self.commits() + self.arch.commit.latency_cycles + 1)

    def cycles(self, compute: int) -> int:
        """The layer's cycles at least, `compute` of which are its macro-instructions'."""
        if not self.arch.sequencer.overlap:  # TIME-6: each instruction is decoded when the one before it is done
            macros = self.times * prod(sum(way.trips for way in ways) for ways in self.ways.values())
            loads = self.loads(1 + self.arch.bus.latency_cycles)
            return self.head + macros + compute + loads + self.commits(1 + self.arch.commit.latency_cycles)
        return max(self.array(compute), self.engines)

    @cached_property
    def depends_on_blocks(self) -> bool:
        """Whether what PEs load does."""
        return any(self.at.chain(dim, 1)[3] for dim in "khw")

    def in_blocks(self, compute: int) -> int:
        """The layer's cycles at least in any blocks, of array, loads and commits."""
        if self.depends_on_blocks:
            return self.views() + compute + 1
        return max(self.start + compute + 1, self.engines)

    def array(self, compute: int) -> int:
        """The layer's cycles at least, by the array alone."""
        return self.start + compute + self.waits + self.drain


def _visits(way: Way, stage: int, inside: str, dim: str) -> int:
    """How often a stage that stands at this place behind the loops in space is come to along a way."""
    loop = inside.find(dim)
    return way.pieces if loop > stage else way.trips
