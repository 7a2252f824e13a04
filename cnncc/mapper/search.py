"""The search for the mapping of a layer with the fewest cycles: exact, best bound first. No IR.

1. `space.py` enumerates points, `combinations.py` keeps those whose macro-instructions take few enough cycles.
2. `block_plans.py` gives each point all its plans for the GLB, `bound.py` a lower bound of each.
3. `layer_schedule.py`, the model, runs candidates in the order of their bounds, until no bound is below the best.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, count

import numpy as np

from cnncc.arch.model import Arch
from cnncc.mapper.arrays import ALL, NEVER
from cnncc.mapper.block_plans import candidates
from cnncc.mapper.block_sizes import least_words, least_words_of
from cnncc.mapper.blocks import Cells
from cnncc.mapper.bound import Bound, Durations, cycle_limit, ideal_cycles
from cnncc.mapper.combinations import Combinations, found_below
from cnncc.mapper.effort import USUAL, Effort
from cnncc.mapper.space import BlockPlan, Form, Numbers, Point, forms_of, mapping_of, numbers, point
from cnncc.mapper.tradeoffs import Tradeoff
from cnncc.mapper.transfer_bound import TrafficOf, TransferBound, streamed_cycles
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_schedule import layer_cycles, plan_in
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.legal import fits_glb, fits_register_files, is_legal


@dataclass(frozen=True)
class Result:
    """The best mapping that was found, its cycles, and what is known of all others.

    - least: no mapping of the space takes fewer cycles. If least = cycles, none of them is better than this one.
    - bounded: the number of candidates with a bound
    - run: the number of candidates that were run on the model
    - tight: whether the mapping was found in a tight budget (SPACE-13)
    - front: this mapping and cheaper ones (`front.py`), the cheapest first. It is empty if no cheaper one was searched.
    - others: the next best ones, for a local search (LOCAL-4)
    """

    mapping: Mapping
    cycles: int
    least: int = 0
    run: int = 0
    bounded: int = 0
    tight: bool = False
    front: tuple[Tradeoff, ...] = ()
    others: tuple[tuple[Mapping, int], ...] = field(default=(), compare=False)


def best_of(results: Sequence[Result]) -> Result:
    """The fastest result, the first of equal ones. Behind its `others` come the mappings of the other results."""
    best = min(results, key=lambda result: result.cycles)
    own = {best.mapping, *(mapping for mapping, _ in best.others)}
    mappings = {mapping: cycles for each in results for mapping, cycles in ((each.mapping, each.cycles), *each.others)}
    rest = [other for other in mappings.items() if other[0] not in own]
    return replace(best, others=(*best.others, *sorted(rest, key=lambda other: other[1])))


class _Search:
    """One search, as it goes on: the best so far, and candidates that may be better, the least bound first."""

    def __init__(
        self, shape: LayerShape, arch: Arch, budget: GlbBudget, below: int, quick: bool, effort: Effort
    ) -> None:
        self.shape, self.arch, self.budget, self.effort = shape, arch, budget, effort
        self.durations = Durations(shape, arch, budget.residual)
        self.best: Result | None = None
        self.limit = below
        self.quick = quick
        self.exact = below == NEVER and not budget.streamed  # then it goes on as long as anything can be won
        self.less = effort.less if quick or below < NEVER else 1
        self.heap: list[tuple[int, int, Point, BlockPlan | None, _Plans]] = []
        self.number, self.bounded, self.left_out = count(), 0, NEVER
        self.runs, self.in_vain = 0, 0  # in vain: the last ones, for which there was room, but none was better
        self.points = 0  # that have a plan whose bound is below the best
        self.others = 0  # what points take at least that were not added
        self.seen, self.families = set[Mapping](), set[_Family]()
        self.of_point = Counter[Point]()  # runs since one of the point was the best
        self.above = defaultdict[object, list[float]](list)  # cycles of a kind's candidates over their bounds, in order
        self.later: list[tuple[int, int, Point, BlockPlan]] = []
        self.fastest = defaultdict[object, list[tuple[int, int, Mapping]]](list)  # of a kind: cycles, run, mapping
        sizes = shape.sizes
        left = budget.words - shape.weight_words - shape.param_words(arch)
        whole = BlockPlan(shape.tiled_together, sizes.h, sizes.w)
        self.is_square = rows_are_columns(shape)
        self.most_points = effort.streamed_points if budget.streamed else effort.points
        self.most_tiles = effort.streamed_tiles if budget.streamed else effort.tiles
        nothing_comes = not budget.streamed and budget.prefetched
        self.whole = whole if nothing_comes and left >= 0 else None  # then there is no other plan
        self.sums_fit = left >= arch.words_per_sum * shape.results

    def add(self, least: int, compute: int, at: Point, cells: Cells | None) -> None:
        """All candidates of a point that may be better than the best, which take at least so many cycles.

        cells: no other plans may be.
        """
        bound = Bound(self.durations, at)
        if self.whole is None or self.sums_fit or not bound.partial:
            self.push(next(self.number), at, self.plans(bound, least, compute, cells))

    def plans(self, bound: Bound, least: int, compute: int, cells: Cells | None) -> _Plans:
        """All candidates of a point with their bounds; first a quick bound of all of them, without a plan."""
        yield max(least, bound.in_blocks(compute) if self.budget.streamed else bound.array(compute)), None
        if self.whole is not None:
            yield bound.cycles(compute), self.whole
        else:
            yield from candidates(bound, self.budget, self.limit, cells)

    def dive(self, least: int, compute: int, at: Point, cells: Cells) -> None:
        """Run the first plan of a point at once: below its cycles there are fewer others."""
        for bound, plan in self.plans(Bound(self.durations, at), least, compute, cells):
            if plan is not None:
                self.run(bound, at, plan)
                break

    def push(self, number: int, at: Point, plans: _Plans) -> bool:
        """The first of some candidates, which are in the order of their bounds."""
        if (first := next(plans, None)) and first[0] < self.limit:
            bound, plan = first
            self.bounded += 1
            heapq.heappush(self.heap, (bound, number, at, plan, plans))
            return True
        return False

    def lowest(self, most: int = NEVER) -> int:
        """The least bound of the candidates that are left. Above `most` it may be the quick bound of a point."""
        while self.heap and self.heap[0][3] is None and self.heap[0][0] <= most:
            _, number, at, _, plans = heapq.heappop(self.heap)
            self.bounded -= 1  # its plans are counted one by one
            self.points += self.push(number, at, plans)
        return self.heap[0][0] if self.heap else NEVER

    def until(self, least: int, runs: int = 0) -> None:
        """Run the candidates on the model whose bound is not above `least`, and the next ones until so many were."""
        self.others = least
        while not self.is_over():
            most = self.limit - 1 if self.runs < runs else min(least, self.limit - 1)
            if self.lowest(most) > most:
                break
            bound, _, at, plan, others = heapq.heappop(self.heap)
            assert plan is not None
            if self.is_put_off(bound, at):
                self.later.append((bound, next(self.number), at, plan))
                self.left_out = min(self.left_out, bound)  # no other plan of the point has a lower bound
                continue
            self.push(next(self.number), at, others)
            self.run(bound, at, plan)

    def rest(self) -> None:
        """Run all that are left."""
        if not self.is_over():
            self.until(NEVER)
        most = self.effort.runs - self.runs if self.exact else self.effort.twins
        for number, (bound, _, at, plan) in enumerate(sorted(self.later)):
            if number >= most:
                self.left_out = min(self.left_out, bound)
                break
            if bound < self.limit:
                self.run(bound, at, plan, last=True)

    def run(self, bound: int, at: Point, plan: BlockPlan, last: bool = False) -> None:
        """Run a candidate on the model. One that looks like an earlier one is put off until `last`."""
        mapping = mapping_of(self.shape, self.arch, at, plan)
        if mapping in self.seen:
            return  # forms are the same where loops that differ in place run once
        family = _family(mapping, self.is_square)
        if not last and family in self.families:
            self.later.append((bound, next(self.number), at, plan))
            return
        if not is_legal(self.shape, mapping, self.budget.residual):
            return
        if self.whole is None and not fits_register_files(self.shape, self.arch, mapping):
            return
        self.seen.add(mapping)
        self.families.add(family)
        self.of_point[at] += 1
        self.runs += 1
        if not fits_glb(self.shape, self.arch, mapping, self.budget.words):
            return  # bounds know of those partial sums alone that there are in any case
        cycles = layer_cycles(plan_in(self.budget, self.shape, mapping), self.arch)
        insort(self.above[at.kind], cycles / bound)
        insort(self.fastest[at.kind], (cycles, self.runs, mapping))
        del self.fastest[at.kind][self.effort.local_alike :]
        if cycles < self.limit:
            self.limit = 0 if self.effort.first else cycles
            self.best, self.in_vain = Result(mapping, cycles), 0
            self.of_point[at] = 0
            # Once there is a mapping, a search that was cut short (`less`) goes on as long as others do.
            if not self.quick:
                self.less = 1
        else:
            self.in_vain += 1

    def is_put_off(self, bound: int, at: Point) -> bool:
        """Whether a candidate is put off, unless the search is exact: the point had its runs, or this one is not
        expected below the best. As many runs of its kind as `alike`, the nearest to their bounds, say what to expect:
        the nearest, less the range of all of them.
        """
        if self.exact:
            return False
        above, alike = self.above[at.kind], self.effort.alike
        in_vain = len(above) >= alike and bound * (2 * above[0] - above[alike - 1]) >= self.limit
        return in_vain or self.of_point[at] >= self.effort.one_point

    def has_enough(self, points: int) -> bool:
        """Whether enough points were looked at, so many now; where something moves, enough that may be better."""
        most = self.most_points // self.less
        return points >= most if not self.budget.streamed else self.points >= most or points >= 3 * most

    def is_over(self) -> bool:
        """Whether enough have been run; unless the search is exact, none was better for long, or little can be won."""
        if self.exact:
            return self.runs >= self.effort.runs
        if self.in_vain >= self.effort.patience:
            return True
        if self.runs < self.effort.few_runs // self.less:
            return False
        least = min(self.others, self.heap[0][0] if self.heap else NEVER)
        return (self.limit - least) * self.effort.little <= self.limit

    def least(self) -> int:
        """The least bound of all candidates that were not run."""
        return min(self.lowest(), self.left_out)


def rows_are_columns(shape: LayerShape) -> bool:
    """Whether rows and columns of a layer's image and windows are alike."""
    sizes, window = shape.sizes, shape.window
    sides = (sizes.h, sizes.r, shape.ih) == (sizes.w, sizes.s, shape.iw)
    return sides and all(down == across for down, across in (window.stride, window.dilation))


_Plans = Iterator[
    tuple[int, BlockPlan | None]
]  # (bound, plan); without a plan the bound is that of all plans behind it
_Family = tuple[object, ...]


def _family(mapping: Mapping, is_square: bool) -> _Family:
    """Loops in time and where stages stand among them: mappings with the same ones take much the same.

    is_square: rows and columns of the image are alike, so that h and w may change places.
    """
    loops, before = list[tuple[str, int]](), [0]
    for loop in mapping.loops:
        if not (loop.on or loop.keep):
            loops.append(("hw" if is_square and loop.dim in "hw" else loop.dim, loop.step))
            if [dim for dim, _ in loops[-2:]] == ["hw", "hw"]:
                loops[-2:] = sorted(loops[-2:])
        before.append(len(loops))
    return (*loops, *((stage.operand, stage.memory, before[stage.depth], stage.buffers) for stage in mapping.stages))


@lru_cache(maxsize=4096)
def search(
    shape: LayerShape,
    arch: Arch,
    budget: GlbBudget,
    dataflow: str = "",
    below: int = NEVER,
    quick: bool = False,
    effort: Effort = USUAL,
) -> Result | None:
    """The mapping with the fewest cycles, if these are fewer than `below`; None where there is room for none.

    dataflow: of the forms with this name alone. quick: a search that looks at a part of what others do.
    """
    if least_words(shape, arch, budget) > budget.words:
        return None
    everything, now = numbers(shape, arch), _Search(shape, arch, budget, below, quick, effort)
    beyond = NEVER
    looks = _looks(everything, now, dataflow)
    steps = everything.most_steps
    traffic = TransferBound(shape, arch, budget, steps)
    by_traffic = _ByTraffic(everything, looks, traffic, now) if now.whole is None else None
    for number, (least, compute, part, i, cells) in enumerate(by_traffic or _by_cycles(looks)):
        # Early runs lower the limit, so that fewer points are looked at. An exact search runs by bounds alone.
        now.until(least, 0 if now.exact else min(number // effort.points_a_run, effort.few_runs // now.less))
        if least >= now.limit or now.is_over() or now.has_enough(number):
            beyond = least
            break
        now.add(least, compute, point(everything, part.form, part.indices[i].tolist()), cells)
    now.rest()
    if now.best is None:
        return None
    beyond = min(beyond, by_traffic.beyond) if by_traffic else beyond
    # BOUND-6: with boxes that were not looked at, nothing but the ideal is certain.
    least = min(beyond, now.least(), ideal_cycles(shape, arch) if everything.some else NEVER)
    least = min(now.limit, max(least, streamed_cycles(shape, arch, budget)))
    others = tuple((mapping, cycles) for cycles, _, mapping in sorted(chain(*now.fastest.values()))[1:])
    return replace(now.best, least=least, run=now.runs, bounded=now.bounded, others=others)


# (bound, cycles of all macro-instructions, combinations, number of one of them, plans that may be better; None: all)
_Entry = tuple[int, int, Combinations, int, Cells | None]
_Look = tuple[list[Combinations], int]  # of all forms, what takes less than some limit; and the limit before


def _looks(everything: Numbers, search: _Search, dataflow: str) -> Iterator[_Look]:
    """All combinations, looked for in wider and wider circles."""
    shape, arch, cut = everything.shape, everything.arch, bool(search.budget.streamed)
    forms = forms_of(shape, dataflow)
    ideal, done, limits = ideal_cycles(shape, arch), 0, [*search.effort.limits]
    while done < search.limit:
        # The same for all GLB budgets, but for the last look.
        limit = cycle_limit(limits[0], ideal) if limits else min(ALL, search.limit)
        alike = {form.name: form for form in forms}  # with the same combinations
        below = {name: found_below(shape, arch, form, limit, cut) for name, form in alike.items()}
        each = [below[form.name]._replace(form=form) for form in forms]
        yield each, done
        done, found_some = limit, any(len(part.cycles) for part in each)
        if not limits:
            return
        # A look that found nothing is done again from the lowest bound of all, by the same factor.
        if found_some or (ideal := min(part.beyond for part in each)) >= ALL:
            limits.pop(0)


def _by_cycles(looks: Iterator[_Look]) -> Iterator[_Entry]:
    """All points with what they take at least, in this order."""
    for parts, done in looks:
        for least, number, i in heapq.merge(*(_entries(n, part.least.tolist(), done) for n, part in enumerate(parts))):
            yield least, int(parts[number].cycles[i]), parts[number], i, None


def _entries(number: int, least: list[int], done: int) -> Iterator[tuple[int, int, int]]:
    # What takes less was in an earlier look.
    return ((each, number, i) for i, each in enumerate(least) if each >= done)


# The next point of a tile: (bound with transfers, bound without, number of its part, its own number in the part, a
# number that no other entry has, its part, the numbers of the tile's other points, the transfers of the part)
_Waiting = tuple[int, int, int, int, int, Combinations, Iterator[int], TrafficOf]


class _ByTraffic:
    """The same points with bounds of their transfers, without points that do not fit the budget.

    beyond: the least bound of the points that were not reached, because too many tiles come before them.
    """

    def __init__(self, everything: Numbers, looks: Iterator[_Look], traffic: TransferBound, search: _Search) -> None:
        self.everything, self.looks, self.traffic, self.search, self.beyond = everything, looks, traffic, search, NEVER

    def __iter__(self) -> Iterator[_Entry]:
        waiting, number = list[_Waiting](), count()
        known, lowest = set[tuple[Form, tuple[int, ...]]](), NEVER
        for each, done in self.looks:
            parts = [part for part in map(self._with_room, each) if len(part.cycles)]
            of_parts = [TrafficOf(self.traffic, part.form, part.tiles, part.least, part.cycles) for part in parts]
            tiles = heapq.merge(*(_tiles(n, *each, done) for n, each in enumerate(zip(parts, of_parts, strict=True))))
            for first, n, i, points in tiles:
                others = max(first, self.traffic.floor)  # take at least this
                # No point that is still to come takes less than these.
                while waiting and waiting[0][0] <= others:
                    yield self._next(waiting)
                if len(known) >= self.search.most_tiles // self.search.less or others >= self.search.limit:
                    self.beyond = others
                    break
                part, traffic = parts[n], of_parts[n]
                k, h, w, c = traffic.tiles[traffic.number[i]].tolist()
                known.add((part.form, (k, h, w, c)))
                if self.search.is_square and not self.search.exact and h != w and (part.form, (k, w, h, c)) in known:
                    # Transposed, it takes much the same. It was not looked at, so that its bound counts for `least`.
                    self.search.left_out = min(self.search.left_out, first)
                    continue
                if (most := traffic.least(i, self.search.limit)) < NEVER:
                    if most < lowest:
                        lowest = most
                        at = point(self.everything, part.form, part.indices[i].tolist())
                        self.search.dive(most, int(part.cycles[i]), at, traffic.cells(i))
                    heapq.heappush(waiting, (most, first, n, i, next(number), part, iter(points), traffic))
            if self.beyond < NEVER:
                break
        while waiting:
            yield self._next(waiting)

    def _with_room(self, part: Combinations) -> Combinations:
        """In a tight budget only the points whose tiles have room: few do, so that others are not counted."""
        search = self.search
        if not search.budget.tight:
            return part
        words = least_words_of(search.shape, search.arch, search.budget, part.form, part.tiles)
        return part.some(words <= search.budget.words)

    def _next(self, waiting: list[_Waiting]) -> _Entry:
        """The first point; the next one with its tile waits in its place."""
        most, _, n, i, number, part, points, traffic = waiting[0]
        if (following := next(points, -1)) < 0:
            heapq.heappop(waiting)
        else:
            least = int(part.least[following])
            more = traffic.least(following, self.search.limit)
            heapq.heapreplace(waiting, (more, least, n, following, number, part, points, traffic))
        return most, int(part.cycles[i]), part, i, traffic.cells(i)


def _tiles(n: int, part: Combinations, traffic: TrafficOf, done: int) -> Iterator[tuple[int, int, int, list[int]]]:
    """The tiles of points that take at least `done`: what the first takes, n, this point, the others."""
    start = int(np.searchsorted(part.least, done))
    numbers = np.array(traffic.number[start:], np.int64)
    order = start + np.argsort(numbers, kind="stable")
    _, starts, sizes = np.unique(np.sort(numbers), return_index=True, return_counts=True)
    # By their first points, which take the least.
    for tile in np.argsort(order[starts]):
        first, *others = order[starts[tile] : starts[tile] + sizes[tile]].tolist()
        yield int(part.least[first]), n, first, others
