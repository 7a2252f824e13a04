"""Which layers run on which PEs, where layers run side by side: the choice of `nest-cores`. No pass.

1. *Units.* The layers may be cut where a single value leads from the layers before to those behind. Ways to cut whose
   weights, rings and channels are beyond the GLB with any nests are left out.
2. *Combinations.* Consecutive units make a core, with a rectangle of PEs; the rectangles fit the array, parted by cuts
   from edge to edge. A core takes at least its operations / (PEs x lanes) cycles for a frame.
3. *Figures.* The combinations with the least bound come first. The model runs each core by itself (`core_mapping.py`).
   The best is that whose busiest core takes the fewest cycles; or, for a rate, that with the fewest PEs.
4. *Stripes.* The busiest core gets stripes of more rows while that takes it fewer cycles.
5. *Channels.* The model runs all cores together; channels get rows (`core_channels.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations, islice, pairwise, product
from math import floor, prod
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.dialects.nest import LayerOp
from cnncc.errors import Refusal
from cnncc.mapping.channels import Region
from cnncc.passes._scheduling.core_chain import CoreChain, CorePlan, regions_in_array_problem
from cnncc.passes._scheduling.core_channels import TimedChain, with_space
from cnncc.passes._scheduling.core_mapping import CoreLayers, core_layers, fewest_words
from cnncc.passes._scheduling.core_parts import LayerGraph
from cnncc.util.progress import Progress

SPARE = 0.7  # of the largest bound: cores with a lower one have PEs to spare
MOST_TUPLES = 5000  # rectangles of the cores of one cut that are looked at for one bound
PATIENCE = 24  # combinations that were in vain before the search ends
MOST_ROWS = 8  # of a stripe
NO_SPACE = (
    "no other cores take fewer banks; a larger GLB, more banks of it, or layers one after the other "
    "(without --parallel)"
)
MOST_PACKINGS = 64  # ways to lay rectangles on the array

Shape = tuple[int, int]  # rows and columns of PEs
Cut = tuple[int, ...]  # the first unit of each core
Way = tuple[tuple[int, Region], ...]  # rectangles by number, with their places


class Combination(NamedTuple):
    """Cores with their rectangles. bound: no core with these takes fewer cycles for a frame than the busiest so has."""

    bound: int
    pes: int
    cut: Cut
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class ChosenCores:
    """A chain, and the cycles of each core from frame to frame if nothing keeps it waiting."""

    chain: CoreChain
    periods: tuple[int, ...]

    @property
    def period(self) -> int:
        """Of the busiest core."""
        return max(self.periods)


def cuts_of(graph: LayerGraph) -> list[int]:
    """The first layers of units, by number: behind them, layers read one value of those before."""
    return [at for at in range(len(graph.layers)) if len(graph.across(at)) == 1]


class CoreSearch:
    """The combinations of a chain of layers on an array."""

    def __init__(self, graph: LayerGraph, arch: Arch, progress: Progress) -> None:
        self.graph, self.arch, self.progress = graph, arch, progress
        self.cuts = [*cuts_of(graph), len(graph.layers)]  # the layers at which units begin, and the end
        self.units = [graph.layers[first:end] for first, end in pairwise(self.cuts)]
        self.work = [sum(map(self._work, unit)) for unit in self.units]
        self.all_shapes = list(product(range(1, arch.rows + 1), range(1, arch.cols + 1)))
        self.known: dict[tuple[int, int, Shape, int], CoreLayers | None] = {}
        self.refusal: Refusal | None = None

    def _work(self, layer: LayerOp) -> int:
        """Cycles of a layer on a PE that is never idle."""
        return -(-prod(layer.sizes.data.of(dim) for dim in "nkchwrs") // self.arch.pe.lanes)

    # -- results ---------------------------------------------------------------------------------------------------

    def fastest(self) -> TimedChain:
        """The chain that takes the fewest cycles from frame to frame. Raises Refusal where no core runs."""
        choice = self._least_busy()
        return with_space(choice.chain, choice.period, self.arch, self.progress)

    def _least_busy(self) -> ChosenCores:
        """The choice whose busiest core takes the fewest cycles. Raises Refusal where no core runs."""
        best: ChosenCores | None = None
        in_vain = 0
        for combination in self._by_bound():
            if best is not None and (combination.bound >= best.period or in_vain >= PATIENCE):
                break
            other = self._choice(combination, best.period if best else None)
            in_vain += 1
            if other is not None:
                best, in_vain = other, 0
        return self._refined(best)

    def fewest_pes(self, fps: float) -> TimedChain:
        """The chain with the fewest PEs that does so many frames a second. Raises Refusal for none."""
        clock = self.arch.clock_mhz * 10**6
        period = int(clock / fps)
        for combination in sorted(self._within(period), key=lambda each: (each.pes, each.bound)):
            choice = self._choice(combination, period + 1)
            if choice is not None:
                timed = with_space(choice.chain, period, self.arch, self.progress)
                if timed.cycles <= period:
                    return timed
        best = self.fastest().cycles
        raise Refusal(
            f"{self.arch.name} has no cores that do {fps:,g} frames a second, one in {period:,} cycles: the fewest "
            f"cycles that were found are {best:,.0f}: ask for {floor(clock / best):,} or less, or take a larger array"
        )

    def _refined(self, best: ChosenCores | None) -> ChosenCores:
        if best is None:
            raise self.refusal or Refusal(f"no rectangles of PEs of {self.arch.name} fit the layers")
        while (better := self._with_more_rows(best)) is not None:
            best = better
        return best

    def _with_more_rows(self, choice: ChosenCores) -> ChosenCores | None:
        """With higher stripes of the busiest core, if that is better."""
        at = choice.periods.index(choice.period)
        core = choice.chain.cores[at]
        layers, shape = [layer for layer in core.part.originals if layer], (core.region.rows, core.region.cols)
        first = next(n for n, unit in enumerate(self.units) if unit[0] is layers[0])
        end = next(n for n, unit in enumerate(self.units) if unit[-1] is layers[-1]) + 1
        now, height = core.group.plans[-1].rows, layers[-1].sizes.data.h
        for rows in range(now + 1, min(MOST_ROWS, height) + 1):
            run = self._core(first, end, shape, rows)
            if run is None or run.period >= choice.period:
                continue
            plans = [*choice.chain.cores]
            plans[at] = CorePlan(core.region, run.part, run.group)
            chain = CoreChain.with_fewest_rows(plans)
            if chain.problem(self.arch) is None:
                periods = [*choice.periods]
                periods[at] = run.period
                return ChosenCores(chain, tuple(periods))
        return None

    # -- combinations ----------------------------------------------------------------------------------------------

    @cached_property
    def _cuts(self) -> dict[Cut, list[int]]:
        """The ways to cut the chain into cores that the GLB may have space for, with the work of each core.

        Raises Refusal where there are none.
        """
        smallest, cuts, beyond = cache(self._smallest), dict[Cut, list[int]](), list[tuple[int, str]]()
        # Core 0 has the DMA, and no PEs.
        for cores in range(1, min(len(self.units), self.arch.cores.most - 1) + 1):
            for rest in combinations(range(1, len(self.units)), cores - 1):
                parts = list(pairwise((0, *rest, len(self.units))))
                try:
                    chain = CoreChain.with_fewest_rows([smallest(*part) for part in parts])
                except Refusal as refusal:
                    self.refusal = refusal
                    continue
                if problem := chain.banks_problem(self.arch, NO_SPACE):
                    beyond.append((chain.banks(self.arch), problem))
                else:
                    cuts[0, *rest] = [sum(self.work[first:end]) for first, end in parts]
        if not cuts and beyond:
            raise Refusal(min(beyond)[1])
        return cuts

    def _smallest(self, first: int, end: int) -> CorePlan:
        """Units `first` … `end` - 1 with the fewest words."""
        part = self.graph.part(self.cuts[first], self.cuts[end])
        return CorePlan(Region(1, 1), part, fewest_words(part))

    def _by_bound(self) -> Iterator[Combination]:
        """All combinations, the least bound first."""
        areas = {rows * cols for rows, cols in self.all_shapes}
        bounds = sorted({-(-work // area) for works in self._cuts.values() for work in works for area in areas})
        for bound in bounds:
            # Those of lower bounds have come before.
            yield from sorted(each for each in self._within(bound) if each.bound == bound)

    def _within(self, bound: int) -> Iterator[Combination]:
        for cut, works in self._cuts.items():
            yield from self._of_bound(cut, works, bound)

    def _of_bound(self, cut: Cut, works: Sequence[int], bound: int) -> Iterator[Combination]:
        """The combinations of a cut with rectangles that are not much larger than the bound asks for."""
        choices = list[list[Shape]]()
        for work in works:
            enough = [shape for shape in self.all_shapes if -(-work // prod(shape)) <= bound]
            least = min((prod(shape) for shape in enough), default=0)
            # Larger ones than the least may lie better beside others, but have to be at work for 70 % of the bound.
            choices.append([s for s in enough if prod(s) <= least or -(-work // prod(s)) >= SPARE * bound])
        total = self.arch.rows * self.arch.cols
        if sum(min(map(prod, shapes), default=total + 1) for shapes in choices) > total:
            return
        for shapes in islice(product(*choices), MOST_TUPLES):
            pes = sum(map(prod, shapes))
            if pes <= total and places_of(shapes, self.arch) is not None:
                most = max(-(-work // prod(shape)) for work, shape in zip(works, shapes, strict=True))
                yield Combination(most, pes, cut, shapes)

    # -- figures ---------------------------------------------------------------------------------------------------

    def _choice(self, combination: Combination, below: int | None) -> ChosenCores | None:
        """The chain of a combination, if it runs, and all its cores take fewer cycles than `below`."""
        places, cut = places_of(combination.shapes, self.arch), combination.cut
        assert places is not None
        parts = list(zip(cut, (*cut[1:], len(self.units)), combination.shapes, strict=True))
        runs = dict[int, CoreLayers]()
        # The core with the most work for its PEs is the first that takes too long.
        for at in sorted(range(len(parts)), key=lambda at: -self._cuts[cut][at] / prod(combination.shapes[at])):
            run = self._core(*parts[at], 1)
            if run is None or (below is not None and run.period >= below):
                return None
            runs[at] = run
        plans = [CorePlan(place, runs[at].part, runs[at].group) for at, place in enumerate(places)]
        chain = CoreChain.with_fewest_rows(plans)
        if problem := chain.problem(self.arch):
            self.refusal = Refusal(problem)
            return None
        return ChosenCores(chain, tuple(runs[at].period for at in range(len(runs))))

    def _core(self, first: int, end: int, shape: Shape, rows: int) -> CoreLayers | None:
        """Units `first` … `end` - 1 on a rectangle of PEs; None where they do not run there."""
        key = (first, end, shape, rows)
        if key not in self.known:
            part = self.graph.part(self.cuts[first], self.cuts[end])
            self.progress(f"{part.labels[0]} on {shape[0]} x {shape[1]} PEs")
            try:
                self.known[key] = core_layers(part, Region(*shape), rows, self.arch)
            except Refusal as refusal:
                self.known[key], self.refusal = None, refusal
        return self.known[key]


class _Ways:
    """Ways to lay rectangles on an array, each once. They are kept, and found only as far as they are asked for."""

    def __init__(self, ways: Iterator[Way]) -> None:
        self._more, self._kept, self._seen = ways, list[Way](), set[Way]()

    def __iter__(self) -> Iterator[Way]:
        at = 0
        while at < len(self._kept) or self._finds_another():
            yield self._kept[at]
            at += 1

    def _finds_another(self) -> bool:
        for way in self._more:
            if way not in self._seen:
                self._seen.add(way)
                self._kept.append(way)
                return True
        return False


@cache
def _cuts_of(shapes: frozenset[tuple[int, Shape]], rows: int, cols: int) -> _Ways:
    """Ways to lay numbered rectangles on so many rows and columns, parted by cuts from edge to edge."""
    return _Ways(_cuts(shapes, rows, cols))


def _cuts(shapes: frozenset[tuple[int, Shape]], rows: int, cols: int) -> Iterator[Way]:
    """The same, some several times."""
    if any(height > rows or width > cols for _, (height, width) in shapes):
        return
    if len(shapes) == 1:
        ((number, shape),) = shapes
        yield ((number, Region(*shape)),)
        return
    if sum(prod(shape) for _, shape in shapes) > rows * cols:
        return
    ordered, ways = sorted(shapes), 0
    for count in range(1, len(ordered)):
        for part in map(frozenset, combinations(ordered, count)):
            for way in _parted(part, shapes - part, rows, cols):
                yield way
                ways += 1
            if ways >= MOST_PACKINGS:
                return


def _parted(
    one: frozenset[tuple[int, Shape]], two: frozenset[tuple[int, Shape]], rows: int, cols: int
) -> Iterator[Way]:
    """All ways with a cut between two parts."""
    for row in range(1, rows):
        yield from _joined(_cuts_of(one, row, cols), _cuts_of(two, rows - row, cols), row, 0)
    for col in range(1, cols):
        yield from _joined(_cuts_of(one, rows, col), _cuts_of(two, rows, cols - col), 0, col)


def _joined(one: _Ways, two: _Ways, row: int, col: int) -> Iterator[Way]:
    """All ways of one part beside those of another, which begins at a row and a column."""
    for first in one:
        for second in two:
            moved = ((at, replace(place, row0=place.row0 + row, col0=place.col0 + col)) for at, place in second)
            yield tuple(sorted((*first, *moved)))


@cache
def places_of(shapes: tuple[Shape, ...], arch: Arch) -> tuple[Region, ...] | None:
    """Places for the rectangles, with at most as many cores in a row or column as buses; None if there are none."""
    heights, widths = (sum(sizes) for sizes in zip(*shapes, strict=True))
    if heights > arch.cores.buses * arch.rows or widths > arch.cores.buses * arch.cols:
        return None  # some row or column would have more cores than buses, wherever they lie
    for way in _cuts_of(frozenset(enumerate(shapes)), arch.rows, arch.cols):
        places = [place for _, place in way]
        if regions_in_array_problem([(str(number), place) for number, place in enumerate(places)], arch) is None:
            return tuple(places)
    return None
