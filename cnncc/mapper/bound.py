"""Bounds of a mapping of the space by the array, the load engine and the output units. No IR.

They follow from the sizes of the loops' bodies by the machine's rules (docs/machine.md: MAC-4, LOAD-2, COMMIT-3,
COMMIT-6). No bound is above the cycles of `timeline.py`. docs/mapper.md defines the terms, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property, lru_cache, partial
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np

from cnncc.arch.model import Arch
from cnncc.mapper.arrays import Flags, PerPlan
from cnncc.mapper.space import Chain, Point, block_distributed, steps_in_lanes, steps_of
from cnncc.mapper.tiles import tiles_of
from cnncc.mapping.mapping import even_sets
from cnncc.model.layer_shape import LayerShape
from cnncc.model.occupancy import ceil_div, load_work
from cnncc.model.register_files import positions, shared_columns

Number = TypeVar("Number", int, PerPlan)
Loops = tuple[Number, Number]  # trips over a dimension, and their steps


class LoopPart(NamedTuple):
    """A part of a dimension whose trips through the loops are alike.

    - trips: iterations in time
    - rows, cols: PEs
    - held: indices in the box
    - pieces: the trips without those of a loop in time inside the loops in space
    """

    trips: int
    rows: int
    cols: int
    held: int
    pieces: int


class LoopParts(tuple[LoopPart, ...]):
    """The parts of a dimension, in the order in which the loops reach them."""

    @cached_property
    def trips(self) -> int:
        """Iterations in time."""
        return sum(part.trips for part in self)

    @cached_property
    def pieces(self) -> int:
        """Iterations without those of a loop in time inside the loops in space."""
        return sum(part.pieces for part in self)

    @cached_property
    def has_loops(self) -> bool:
        """Whether a loop in time runs more than once."""
        return any(part.trips > 1 for part in self)


@lru_cache(maxsize=1 << 14)
def parts_of(extent: int, chain: Chain, spread: bool, block: int = 0) -> LoopParts:
    """The parts of a dimension (SPACE-5).

    block: the size for which the loops are made, if it is larger. spread: as for `table`.
    """
    rows, cols, _, share = chain
    time, on_rows, on_cols = steps_of(chain, block or extent)
    loops = [(on_rows, "rows")] * (rows > 1) + [(on_cols, "cols")] * (cols > 1)
    loops = [*loops, (time, "time")] if share else [(time, "time"), *loops]
    # COST-2: the rest of the innermost loop over k in space is spread over several sets.
    innermost = max((i for i, loop in enumerate(loops) if loop[1] != "time"), default=-1) if spread else -1
    inside = [(extent, block or extent, LoopPart(1, 1, 1, 0, 1))]
    for i, (step, axis) in enumerate(loops):
        inside = [
            # All trips of a loop in time behind the bar are one visit to what stands outside it (`pieces`).
            (size, min(around, step), _inside(part, axis, count, (not number) if share else count))
            for extent, around, part in inside
            for number, (count, size) in enumerate(_bodies(extent, step, around if i == innermost else 0))
        ]
    return LoopParts(part._replace(held=held) for held, _, part in inside)


def _bodies(extent: int, step: int, around: int) -> list[tuple[int, int]]:
    """(iterations, indices of each) of a loop's pieces. around: the extent whose rest several sets share, or 0."""
    full, rest = divmod(extent, step)
    count = even_sets(rest, max(1, around // step)) if rest else 0
    return [(full, step)] * (full > 0) + ([(count, rest // count)] if rest else [])


def _inside(part: LoopPart, axis: str, count: int, pieces: int) -> LoopPart:
    """The part inside `count` iterations of a loop in time (`pieces` of them count as such), or over so many PEs."""
    match axis:
        case "rows":
            return part._replace(rows=part.rows * count)
        case "cols":
            return part._replace(cols=part.cols * count)
        case _:
            return part._replace(trips=part.trips * count, pieces=part.pieces * pieces)


def last_steps(parts: Sequence[LoopPart], count: int, own_lanes: int = 1) -> int:
    """Steps for the indices that the box holds in the last `count` trips, or in all of fewer."""
    steps = [steps_in_lanes(part.held, own_lanes) for part in parts for _ in range(min(part.trips, count))]
    return sum(steps[::-1][:count])


def cycle_limit(times: float, cycles: int) -> int:
    """The cycles below which mappings are looked for. A few more count for layers that take only few."""
    return int(times * cycles) + 64


def ideal_cycles(shape: LayerShape, arch: Arch) -> int:
    """Cycles in which all multipliers are always busy, or all output units if that takes longer."""
    pes, units = arch.rows * arch.cols, arch.cols * arch.commit.units_per_column
    return max(shape.operations // (pes * arch.pe.lanes), shape.results // min(units, arch.glb.words_per_cycle))


def _weight_load(arch: Arch, k: LoopPart, c: LoopPart, r: LoopPart, s: LoopPart) -> int:
    """One load of weights."""
    return load_work(arch, k.held * c.held * r.held * s.held, k.rows * k.cols * c.rows * r.rows, k.cols)[1]


def _ifmap_load(
    shape: LayerShape, arch: Arch, k: LoopPart, h: LoopPart, w: LoopPart, c: LoopPart, r: LoopPart, s: LoopPart,
    lanes: int, tiled: bool,
) -> int:  # fmt: skip
    """One load of the ifmap: the cheaper of loading all columns and having neighbours pass some on (MAC-6).

    tiled: h is tiled, and not block-distributed.
    """
    window = shape.window
    rows = positions(h.held, r.held, window.stride[0], window.dilation[0])[0]
    columns = positions(w.held, s.held, window.stride[1], window.dilation[1])[0]
    # LOAD-2: the first rows of the PEs below each other. Equal ones are one position.
    down = {i * h.held * h.cols * window.stride[0] + j * r.held * window.dilation[0]
            for i in range(h.rows) for j in range(r.rows)}  # fmt: skip
    ys = len({a + b * h.held * window.stride[0] for a in down for b in range(h.cols)})
    if not tiled:  # sums of any steps are at least so many
        ys = h.rows * h.cols + r.rows - 1
    channels = c.held * (k.held if shape.channelwise else 1)
    own = (k.rows, k.cols) if shape.channelwise else (1, 1)
    places, in_row = ys * c.rows * w.cols * own[0] * own[1], h.cols * w.cols * own[1]
    whole = load_work(arch, rows * columns * channels, places, in_row)[1]
    passed = shared_columns(shape, arch, s.held, w.held) if w.cols > 1 and lanes == 1 else 0
    if not passed:
        return whole
    fresh = load_work(arch, rows * (columns - passed) * channels, places, in_row)[1]
    edge = load_work(arch, rows * passed * channels, places // w.cols, in_row // w.cols)[1]
    return min(whole, fresh + edge)


def _commit(
    shape: LayerShape, arch: Arch, residual: bool, k: LoopPart, h: LoopPart, w: LoopPart, c: LoopPart, r: LoopPart,
    partial_sums: bool,
) -> int:  # fmt: skip
    """One commit (COMMIT-3, COMMIT-6)."""
    together, cols = c.rows * r.rows, k.cols * h.cols * w.cols
    results = k.rows * h.rows * cols * k.held * h.held * w.held
    # Parameters by position are left out, which keeps the bound one.
    channels = 0 if shape.per_position else k.rows * k.cols * k.held
    words = results * (1 + residual + 2 * arch.words_per_sum * partial_sums)
    words += shape.params * arch.words_per_param * channels
    units = ceil_div(results, cols * arch.commit.units_per_column)
    return max(units, ceil_div(words, arch.glb.words_per_cycle)) + together - 1


class Durations:
    """Cycles of a layer's loads and commits, at least, given the parts of its dimensions. Each is computed once."""

    def __init__(self, shape: LayerShape, arch: Arch, residual: bool) -> None:
        self.shape, self.arch, self.residual = shape, arch, residual
        self.extent = {dim: shape.sizes.of(dim) for dim in "khwcrs"} | {"k": shape.tiled_together}
        self.weight_load = cache(partial(_weight_load, arch))
        self.ifmap_load = cache(partial(_ifmap_load, shape, arch))
        self.commit = cache(partial(_commit, shape, arch, residual))


class Bound:
    """The bounds of one point of a layer. durations: those of the layer."""

    def __init__(self, durations: Durations, at: Point) -> None:
        self.durations, self.at = durations, at
        self.shape, self.arch, self.residual = durations.shape, durations.arch, durations.residual
        sizes, self.extent = self.shape.sizes, durations.extent
        self.parts = {dim: parts_of(size, at.chain(dim, size), dim == "k") for dim, size in self.extent.items()}
        self.times = sizes.n * (sizes.k // self.extent["k"])

    # -- terms ---------------------------------------------------------------------------------------------------------

    def _ifmap(self, *parts: LoopPart) -> int:
        return self.durations.ifmap_load(*parts, self.at.products, not block_distributed(self.at.form, "h"))

    def _weight(self, k: LoopPart, _h: LoopPart, _w: LoopPart, c: LoopPart, r: LoopPart, s: LoopPart) -> int:
        return self.durations.weight_load(k, c, r, s) if self.shape.is_mac else 0

    @cached_property
    def adds_up(self) -> dict[str, Flags | bool]:
        """Whether sums are added up in the GLB where the loop in time over c, over r, over s runs."""
        return tiles_of(self.shape, self.at).adds_up(self.extent)

    @cached_property
    def partial(self) -> bool:
        """Whether sums are partial."""
        return any(self.trips(dim) > 1 and bool(self.adds_up[dim]) for dim in "crs")

    def trips(self, dim: str) -> int:
        """Iterations in time over a dimension."""
        return self.parts[dim].trips

    def _loops(self, dim: str) -> tuple[int, int]:
        """Iterations in time over a dimension, and the steps of all of them."""
        return self.trips(dim), sum(part.trips * self.at.steps(dim, part.held) for part in self.parts[dim])

    def macro_cycles(self, k: Loops[Number], h: Loops[Number], w: Loops[Number]) -> Number:
        """The cycles of all macro-instructions, given the trips over k, h and w, and their steps."""
        trips, steps = self._taps
        overhead = self.arch.pe.start_cycles + self.arch.pe.finish_cycles
        return overhead * trips * (k[0] * h[0] * w[0]) + steps * (k[1] * h[1] * w[1])

    @cached_property
    def _taps(self) -> tuple[int, int]:
        """Trips and steps of the loops over c, r and s, for all images and groups."""
        trips, steps = zip(*map(self._loops, "crs"), strict=True)
        return self.times * prod(trips), self.times * prod(steps)

    @property
    def compute(self) -> int:
        """A: cycles of all macro-instructions if the layer has one block."""
        k, h, w = map(self._loops, "khw")
        return self.macro_cycles(k, h, w)

    @cached_property
    def _first_parts(self) -> list[LoopPart]:
        return [parts[0] for parts in self.parts.values()]

    @cached_property
    def _last_parts(self) -> list[LoopPart]:
        return [parts[-1] for parts in self.parts.values()]

    def halves(self, operand: str) -> int:
        """Loads of weights (W) or ifmap (I) that PEs hold."""
        return self.arch.pe.weight_halves if operand == "W" else self.arch.pe.ifmap_halves

    @cached_property
    def descriptors(self) -> int:
        """Instructions in front of the first transfer, at least: descriptors and the unit."""
        shape = self.shape
        # Ifmap and output have one descriptor at least. Weights and parameters are staged, with two. `unit` is one.
        return 2 + 2 * shape.is_mac + 2 * bool(shape.params) + self.residual + 1

    @cached_property
    def head(self) -> int:
        """Instructions in front of the first load, at least: those and the loops."""
        return self.descriptors + sum(parts.has_loops for parts in self.parts.values())

    @cached_property
    def _first_ifmap(self) -> int:
        """Cycles of the first load of the ifmap, with its latency."""
        return self._ifmap(*self._first_parts) + self.arch.bus.latency_cycles

    @cached_property
    def fill(self) -> int:
        """Head + first load of weights + first load of the ifmap + bus latency."""
        return self.head + self._weight(*self._first_parts) + self._first_ifmap

    def fill_behind(self, comes: PerPlan) -> PerPlan:
        """That behind the first block's transfer: max(fill, descriptors + transfer + first load of the ifmap).

        comes: cycles of that transfer, which the first load of weights does not wait for.
        """
        return np.maximum(self.fill, self.descriptors + comes + self._first_ifmap)

    @cached_property
    def drain(self) -> int:
        """Cycles from the end of the last macro-instruction: last commit + its latency + 1."""
        k, h, w, c, r, _ = self._last_parts
        return self.durations.commit(k, h, w, c, r, self.partial) + self.arch.commit.latency_cycles + 1

    @cached_property
    def turn(self) -> int:
        """From a block's end to what waits for its results: commit latency + 1 + `_first_ifmap`."""
        return self._first_ifmap + self.arch.commit.latency_cycles + 1

    @cached_property
    def first_last(self) -> tuple[int, int]:
        """Cycles of the first and of the last macro-instruction (MAC-4)."""
        over = self.arch.pe.start_cycles + self.arch.pe.finish_cycles
        first, last = self._steps(self._first_parts), self._steps(self._last_parts)
        return first + over, last + over

    def _steps(self, parts: Sequence[LoopPart]) -> int:
        """Steps of a macro-instruction of these parts of all dimensions."""
        return prod(self.at.steps(dim, part.held) for dim, part in zip("khwcrs", parts, strict=True))

    # -- bounds --------------------------------------------------------------------------------------------------------

    def loads(self, more: int = 0) -> int:
        """Σ over all loads of (cycles + `more`)."""
        k_, h_, w_, c_, r_, s_ = (self.parts[dim] for dim in "khwcrs")
        inside = self.at.form.order.split("|")[1]
        weights = 0
        if self.shape.is_mac:
            at = inside.index("W")
            visits = prod(sum(_visits(part, at, inside, dim) for part in self.parts[dim]) for dim in "hw")
            weights = visits * sum(
                k.trips * c.trips * r.trips * s.trips * (self.durations.weight_load(k, c, r, s) + more)
                for k in k_ for c in c_ for r in r_ for s in s_
            )  # fmt: skip
        at = inside.index("I")
        own = [(k, _visits(k, at, inside, "k")) for k in k_]
        # The same ifmap serves all output channels: its loads are alike in all parts of k.
        if not self.shape.channelwise:
            own = [(k_[0], sum(visits for _, visits in own))]
        ifmap = sum(
            visits * h.trips * w.trips * c.trips * r.trips * s.trips * (self._ifmap(k, h, w, c, r, s) + more)
            for k, visits in own for h in h_ for w in w_ for c in c_ for r in r_ for s in s_
        )  # fmt: skip
        return self.times * (weights + ifmap)

    def commits(self, more: int = 0) -> int:
        """Σ over all commits of (cycles + `more`)."""
        cycles, count = self._commits
        return cycles + more * count

    @cached_property
    def _commits(self) -> tuple[int, int]:
        """The cycles of all commits, and how many there are."""
        k_, h_, w_ = (self.parts[dim] for dim in "khw")
        # Sums that stay in their PEs have one commit for all trips.
        c_, r_, s_ = (
            self.parts[dim] if self.adds_up[dim] else (self.parts[dim][0]._replace(trips=1),) for dim in "crs"
        )
        cycles = sum(
            k.trips * h.trips * w.trips * c.trips * r.trips * self.durations.commit(k, h, w, c, r, self.partial)
            for k in k_ for h in h_ for w in w_ for c in c_ for r in r_
        )  # fmt: skip
        times = self.times * sum(part.trips for part in s_)
        return times * cycles, times * prod(sum(part.trips for part in parts) for parts in (k_, h_, w_, c_, r_))

    def array(self, compute: int) -> int:
        """BOUND-1. fill + A + drain, with the stalls of BOUND-9. compute: A, the cycles of all macro-instructions."""
        return self.fill + compute + self.waits + self.drain

    def sums(self, compute: int) -> int:
        """BOUND-23. (A + Σ (commit + commit latency)) / `psum_halves`: a half has sums until they are committed."""
        return ceil_div(compute + self.commits(self.arch.commit.latency_cycles), self.arch.pe.psum_halves)

    @cached_property
    def engines(self) -> int:
        """BOUND-2. The larger of

        head + all loads + bus latency + last macro-instruction + drain
        fill + first macro-instruction + all commits + commit latency + 1
        """
        first, last = self.first_last
        loads = self.head + self.loads() + self.arch.bus.latency_cycles + last + self.drain
        return max(loads, self.fill + first + self.commits() + self.arch.commit.latency_cycles + 1)

    def in_turn(self, compute: int) -> int:
        """BOUND-3. head + macro-instructions + A + Σ (load + 1 + bus latency) + Σ (commit + 1 + commit latency)."""
        macros = self.times * prod(map(self.trips, self.parts))
        loads, commits = 1 + self.arch.bus.latency_cycles, 1 + self.arch.commit.latency_cycles
        return self.head + macros + compute + self.loads(loads) + self.commits(commits)

    def cycles(self, compute: int) -> int:
        """The bound of the point if it has one block: BOUND-1, BOUND-2 and BOUND-23, or BOUND-3 if nothing overlaps."""
        if not self.arch.sequencer.overlap:
            return self.in_turn(compute)
        return max(self.array(compute), self.engines, self.fill + self.sums(compute))

    @cached_property
    def depends_on_blocks(self) -> bool:
        """Whether parts of PEs depend on the blocks: k, h or w is block-distributed (BOUND-5)."""
        return any(block_distributed(self.at.form, dim) for dim in "khw")

    def in_blocks(self, compute: int) -> int:
        """The bound of the point in any blocks: BOUND-1 and BOUND-2; with BOUND-5, descriptors + A + 1."""
        return self.descriptors + compute + 1 if self.depends_on_blocks else max(self.fill + compute + 1, self.engines)

    @cached_property
    def waits(self) -> int:
        """BOUND-9. (L − 1) · max(0, both, alone), with L loads of the stationary operand: the first of W and I.

        PEs hold `halves` loads of the other operand. The last of these, before a reload of the stationary one, waits
        until all but `halves` macro-instructions are done. The array has only these to do meanwhile.

        - both: load(stationary) + load(other) + last load(other) + bus latency − cycles of the last `halves`
          macro-instructions. It needs more than `halves` of them from reload to reload.
        - alone: load(other) + bus latency − cycles of the last `halves - 1` macro-instructions. It needs `halves`.
        """
        first, inner = _stationary(self.at.form.order)
        between = [dim for dim in inner if self.trips(dim) > 1]
        halves, trips = self.halves("I" if first == "W" else "W"), prod(map(self.trips, between))
        # With rests of loops in space the runs of trips between two loads differ: nothing is said of them.
        if not between or trips < halves or any(self.parts[dim].pieces > 1 for dim in inner):
            return 0
        full, last, latency = self._first_parts, self._last_parts, self.arch.bus.latency_cycles
        other = self._weight if first == "I" else self._ifmap
        both = self._weight(*full) + self._ifmap(*full) + other(*last) + latency - self._done(between[-1], halves)
        alone = other(*full) + latency - self._done(between[-1], halves - 1)
        loads = self.times * prod(self.parts[dim][0].trips for dim in "khwcrs" if dim not in inner)
        return max(0, loads - 1) * max(0, both if trips > halves else 0, alone)

    def _done(self, dim: str, count: int) -> int:
        """Cycles of the last `count` macro-instructions of the loop over a dimension, at most."""
        parts, own_lanes = self.parts[dim], self.at.own_lanes if dim == "k" else 1
        full = steps_in_lanes(parts[0].held, own_lanes)
        steps = last_steps(parts, count, own_lanes) + max(0, count - self.trips(dim)) * full
        done = steps * self._steps(self._first_parts) // full
        return done + count * (self.arch.pe.start_cycles + self.arch.pe.finish_cycles)


@cache
def _stationary(order: str) -> tuple[str, str]:
    """The stationary operand of a form, W or I, and the loops over k, h and w in time inside its stage."""
    first, *inner = (item for item in order.split("|")[1] if item in "khwWI")
    return first, "".join(dim for dim in inner if dim in "khw")


def _visits(part: LoopPart, stage: int, inside: str, dim: str) -> int:
    """How often the loops reach a stage, at this place behind the loops in space, in a part of a dimension."""
    loop = inside.find(dim)
    return part.pieces if loop > stage else part.trips
