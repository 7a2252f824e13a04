"""The Pareto front of a layer: mappings that cost less than its fastest one, and take more cycles. No IR.

1. Points with equal tiles are looked at together, and so are tiles with blocks of equal sizes: a group.
2. Groups, then their tiles with a few plans, then the points of these are taken in the order of what they cost at
   least: the array energy of the cheapest point, and the words of the cheapest plan (`costs.py`).
3. A point with one plan is a candidate, and is run on the model.
4. The cycles that the next mapping may take fall from limit to limit, down to those of the fastest mapping.

Nothing is proven: costs are estimates where they order candidates, and exact where mappings are compared.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, count
from typing import NamedTuple

import numpy as np

from cnncc.arch.model import Arch, Energy
from cnncc.mapper.arrays import Amounts, Counts, Flags, stable_order
from cnncc.mapper.block_plans import plan_at
from cnncc.mapper.block_sizes import block_tiles
from cnncc.mapper.block_times import BlockTimes, plans_below
from cnncc.mapper.block_transfers import BlockTransfers
from cnncc.mapper.blocks import Blocks, Cells, plan_bounds, some_of
from cnncc.mapper.bound import Bound, Durations, cycle_limit, ideal_cycles
from cnncc.mapper.combinations import Combinations, found_below
from cnncc.mapper.costs import array_energy, cost_of, dram_energy, words_energy
from cnncc.mapper.effort import Effort
from cnncc.mapper.least_cost import dram_cost
from cnncc.mapper.prices import Prices
from cnncc.mapper.search import rows_are_columns
from cnncc.mapper.space import BlockPlan, Form, Point, forms_of, mapping_of, numbers, point
from cnncc.mapper.tiles import Tiles, tiles_of
from cnncc.mapper.tradeoffs import Tradeoff
from cnncc.mapper.transfer_bound import TransferBound
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_schedule import layer_cycles, plan_in
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.legal import fits_glb, fits_register_files, is_legal


class _Points(NamedTuple):
    """Points with equal tiles (indices of k h w c), the cheapest first: their fewest cycles, their array energies."""

    fewest: int
    tile: tuple[int, int, int, int]
    combinations: Combinations
    points: Counts
    array: Amounts


class _Part(NamedTuple):
    """The points of a form: per tile the least array energy and the fewest cycles, and where its points start."""

    least: Amounts
    fewest: Counts
    starts: Counts
    order: Counts
    combinations: Combinations
    array: Amounts

    def points(self, tile: int) -> _Points:
        """The points of a tile. tile: its number; a negative one counts from the end, as an index does."""
        tile %= len(self.least)
        some = self.order[self.starts[tile] : self.starts[tile + 1]]
        some = some[np.argsort(self.array[some], kind="stable")]
        k, h, w, c = self.combinations.tiles[some[0]].tolist()
        return _Points(int(self.fewest[tile]), (k, h, w, c), self.combinations, some, self.array[some])


@lru_cache(maxsize=128)
def _part(shape: LayerShape, arch: Arch, form: Form, alike: Form, limit: int, costs: Energy, cut: bool) -> _Part:
    """What takes less than a limit. alike: a form with the same combinations. cut: blocks may have any size."""
    combinations = found_below(shape, arch, alike, limit, cut)._replace(form=form)
    array = array_energy(numbers(shape, arch), form, combinations.indices, costs, cut)
    tiles, least, fewest = combinations.tiles, array, combinations.least
    number = np.asarray(np.ravel_multi_index(tuple(tiles.T[::-1]), tuple(tiles.max(axis=0, initial=0)[::-1] + 1)))
    order = stable_order(number)
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    if len(order):
        least, fewest = np.minimum.reduceat(least[order], starts), np.minimum.reduceat(fewest[order], starts)
    return _Part(least, fewest, np.append(starts, len(order)), order, combinations, array)


def _is_fewest(cycles: Counts | Amounts) -> Flags:
    """Which take fewer cycles than all before them.

    >>> _is_fewest(np.array([5, 7, 3, 3])).tolist()
    [True, False, True, False]
    """
    fewest, is_fewest = np.minimum.accumulate(cycles), np.ones(len(cycles), np.bool_)
    np.less(fewest[1:], fewest[:-1], out=is_fewest[1:])
    return is_fewest


def _places(*keys: Counts | Amounts) -> Counts:
    """The place of each among those with equal keys: 0 for the first of them.

    >>> _places(np.array([5, 5, 7, 5])).tolist()
    [0, 1, 0, 2]
    """
    order = np.lexsort(keys)
    is_first = np.any([np.diff(key[order], prepend=-1) != 0 for key in keys], axis=0)
    starts = np.flatnonzero(is_first)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return places


class _Group(NamedTuple):
    """Points whose tiles have blocks of equal sizes, and the plans with which they may cost less than the fastest.

    plans: None: not chosen yet.
    """

    members: Sequence[_Points]
    plans: Cells | None = None


class _Tile(NamedTuple):
    """Points with equal tiles, and the plans with which they may cost less than the fastest.

    - words: what the words of each plan cost at least; infinite where its buffers have no room
    - cycles: those of each plan at least, likewise
    - left: the places in `of` of the points that are not looked at yet; None before these and the plans are chosen
    """

    of: _Points
    plans: Cells
    words: Amounts
    cycles: Amounts
    left: Sequence[int] | None = None


class _Candidate(NamedTuple):
    at: Point
    plan: BlockPlan

    @property
    def kind(self) -> object:
        """Alike for mappings that wait for the same things."""
        return self.at.form, self.plan._replace(k=0, h=0, w=0)


_Entry = tuple[float, int, int, _Group | _Tile | _Candidate]  # cost and cycles at least; a number between


def front(
    shape: LayerShape, arch: Arch, budget: GlbBudget, known: Sequence[Tradeoff], prices: Prices, dataflow: str,
    effort: Effort,
) -> tuple[Tradeoff, ...]:  # fmt: skip
    """Known mappings and cheaper ones, the cheapest first. Each takes fewer cycles than the one before.

    known: the fastest mapping; cheaper ones may be in front of it. dataflow: of the forms with this name alone, "" for
    all.
    """
    if not effort.front_tiles:
        return tuple(known)
    return _Front(shape, arch, budget, known[-1], prices, effort).tradeoffs(known, dataflow)


class _Front:
    def __init__(
        self, shape: LayerShape, arch: Arch, budget: GlbBudget, fastest: Tradeoff, prices: Prices, effort: Effort
    ) -> None:
        self.shape, self.arch, self.budget, self.costs, self.effort = shape, arch, budget, prices.costs, effort
        self.durations, self.traffic = Durations(shape, arch, budget.residual), TransferBound(shape, arch, budget)
        self.numbers, self.cut, self.is_square = numbers(shape, arch), bool(budget.streamed), rows_are_columns(shape)
        self.fastest, self.wide = fastest, prices.wide
        self.above = defaultdict[object, list[float]](list)  # the cycles of mappings of a kind over their bounds
        # A mapping takes fewer cycles than the first of these.
        self.limits: list[int] = [int(limit * fastest.cycles) + 1 for limit in prices.limits]

    @property
    def limit(self) -> int:
        """The cycles below which a mapping is looked for now."""
        return self.limits[0]

    def tradeoffs(self, known: Sequence[Tradeoff], dataflow: str) -> tuple[Tradeoff, ...]:
        """The front: known mappings, and cheaper ones that were found between their cycles."""
        result, left, number, in_vain = list[Tradeoff](), deque(known), count(), 0
        seen = {each.mapping for each in known}
        heap: list[_Entry] = [(cost, next(number), least, group) for cost, least, group in self.groups(dataflow)]
        heapq.heapify(heap)
        while heap and self.limits:
            if in_vain == self.effort.front_in_vain:
                self.limits, in_vain = self.limits[1:], 0
                continue
            cost, _, least, entry = heapq.heappop(heap)
            # Entries come by their least cost: all that is left costs more than these known mappings.
            while left and left[0].cost <= cost:
                self.add(result, left.popleft())
            # The last known mapping is the fastest: nothing that costs more than it is on the front.
            if not left:
                break
            if not self.limits or least >= self.limit:
                continue
            if not isinstance(entry, _Candidate):
                for cost, least, inner in self.inside(entry):
                    heapq.heappush(heap, (cost, next(number), least, inner))
                continue
            mapping = mapping_of(self.shape, self.arch, *entry)
            if mapping in seen:
                continue
            seen.add(mapping)
            # Runs of a kind say how near to its bound another one may be: it is run if that is below the limit.
            above = self.above[entry.kind]
            if len(above) < self.effort.front_alike or least * min(above) < self.limit:
                tried = self.run(mapping)
                if tried is None:
                    continue
                above.append(tried.cycles / least)
            else:
                tried = None
            if tried is None or tried.cycles >= self.limit or tried.cost >= self.fastest.cost:
                in_vain += 1
                continue
            in_vain = 0
            self.add(result, tried)
        for each in left:
            self.add(result, each)
        return tuple(result)

    def add(self, result: list[Tradeoff], tried: Tradeoff) -> None:
        """A mapping that is known now, if it is on the front; others are to take fewer cycles."""
        if not result or tried.cycles < result[-1].cycles:
            result[:] = [*(each for each in result if each.cost < tried.cost), tried]
            self.limits = [limit for limit in self.limits if limit <= tried.cycles]

    def groups(self, dataflow: str) -> Iterator[tuple[float, int, _Group]]:
        """For each limit of cycles the tiles that cost the least, in groups, each with its cost and cycles at least.

        Of two tiles that differ by h and w exchanged, one is looked at where rows and columns are alike.
        """
        ideal, fastest = ideal_cycles(self.shape, self.arch), self.fastest.cycles
        near = cycle_limit(self.effort.front_slack, ideal)
        # FRONT-1: slow tiles are looked at, too, where the fastest mapping is slow, and cycles are not the objective.
        is_far = self.wide and fastest > self.effort.front_far * ideal
        far = max(near, cycle_limit(self.effort.front_slack, fastest)) if is_far else near
        near, far = min(near, self.limit), min(far, self.limit)
        forms = forms_of(self.shape, dataflow)
        alike = {form.name: form for form in forms}  # with the same combinations
        parts = [_part(self.shape, self.arch, form, alike[form.name], far, self.costs, self.cut) for form in forms]
        least = np.concatenate([part.least for part in parts])
        fewest = np.concatenate([part.fewest for part in parts])
        least += (words := dram_cost(self.shape, self.arch, self.budget, self.costs))
        blocks = np.concatenate([self.block_numbers(at, part) for at, part in enumerate(parts)])
        order = np.lexsort((fewest, least))
        order = order[least[order] < self.fastest.cost]
        order = order[_places(least[order], blocks[order]) < self.effort.front_equal]
        small = np.sort(order)  # of equal ones the smallest tiles first: many sizes of blocks are multiples of them
        small = small[np.argsort(least[small], kind="stable")]
        most, chosen = self.effort.front_tiles, list[int]()
        # Slow tiles are cheap by their bounds, and many of these are in vain: they do not crowd out near ones.
        for limit in dict.fromkeys(min(limit, other) for limit in self.limits for other in (near, far)):
            below = fewest < limit
            fast = order[below[order]][: most // 2]
            below[fast] = False
            chosen += [*fast.tolist(), *small[below[small]][: most - len(fast)].tolist()]
        ends = list(accumulate(len(part.least) for part in parts))
        groups, seen = defaultdict[int, list[_Points]](list), set[object]()
        for i in dict.fromkeys(chosen):
            part = bisect_right(ends, i)
            each = parts[part].points(i - ends[part])
            k, h, w, c = each.tile
            is_new = not self.is_square or (each.combinations.form, k, w, h, c) not in seen
            seen.add((each.combinations.form, *each.tile))
            if each.fewest < self.limit and is_new:
                groups[int(blocks[i])].append(each)
        for members in groups.values():
            yield min(each.array[0] for each in members) + words, min(each.fewest for each in members), _Group(members)

    def block_numbers(self, number: int, part: _Part) -> Counts:
        """A number for each tile of a part: those with blocks of equal sizes have the same."""
        tiles = part.combinations.tiles[part.order[part.starts[:-1]]]
        sizes = block_tiles(self.shape, self.budget, Tiles(part.combinations.form, *tiles.T))
        most = self.shape.sizes
        numbers = np.full(len(tiles), number)
        for dim, extent in (("k", most.k), ("h", most.h), ("w", most.w)):
            numbers = numbers * (extent + 1) + sizes[dim]
        return numbers

    def inside(self, entry: _Group | _Tile) -> Iterator[tuple[float, int, _Group | _Tile | _Candidate]]:
        """What an entry is made of, each with its cost and cycles at least."""
        if isinstance(entry, _Tile):
            return self.points(entry)
        return self.tiles(entry.members, entry.plans) if entry.plans else self.with_plans(entry.members)

    def with_plans(self, members: Sequence[_Points]) -> Iterator[tuple[float, int, _Group]]:
        """A group with its plans, if some may do."""
        tile = Tiles(members[0].combinations.form, *np.min([each.tile for each in members], axis=0).tolist())
        plans = plan_bounds(self.shape, self.arch, self.budget, tile)
        costs = dram_energy(self.shape, self.budget.streamed, plans.fetched, self.costs)
        costs = costs + min(float(each.array[0]) for each in members)
        good = (plans.cycles < self.limit) & (costs < self.fastest.cost)
        if np.any(good):
            least = min(each.fewest for each in members)
            yield float(costs[good].min()), least, _Group(members, some_of(plans.cells, good))

    def tiles(self, members: Sequence[_Points], cells: Cells) -> Iterator[tuple[float, int, _Tile]]:
        """The tiles of a group, each with its cheapest plans, and with those that take fewer cycles."""
        form = members[0].combinations.form
        sizes = np.array([each.tile for each in members])
        blocks = Blocks(self.shape, self.arch, self.budget, Tiles.of_many(form, sizes), cells)
        compute = np.array([int(each.combinations.cycles[each.points].min()) for each in members])[:, None]
        costs = np.full((len(members), len(cells[0])), np.inf)
        cycles = costs
        for stage, of_stage in self.traffic.by_stage(blocks, compute):
            own = np.where(of_stage < self.limit, words_energy(blocks, stage, self.costs), np.inf)
            cycles = np.where(own < costs, of_stage, cycles)
            costs = np.minimum(costs, own)
        least, fewest = costs.min(axis=1).tolist(), cycles.min(axis=1).tolist()
        for i, each in enumerate(members):
            if least[i] < np.inf:
                tile = _Tile(each, cells, costs[i], cycles[i])
                yield float(each.array[0]) + least[i], max(each.fewest, int(fewest[i])), tile

    def points(self, tile: _Tile) -> Iterator[tuple[float, int, _Tile | _Candidate]]:
        """The cheapest point of a tile that is left, with its plans; and the tile without it: cost, cycles at least."""
        tile = self.chosen(tile) if tile.left is None else tile
        (_, _, combinations, points, energies), left = tile.of, tile.left or ()
        for i in left[:1]:
            at = point(self.numbers, combinations.form, combinations.indices[points[i]].tolist())
            bound = Bound(self.durations, at)
            if bound.in_blocks(int(combinations.cycles[points[i]])) < self.limit:
                yield from self.candidates(bound, float(energies[i]), tile.plans)
        if len(left) > 1:
            cost, least = float(energies[left[1]] + tile.words[0]), int(combinations.least[points[left[1]]])
            yield cost, least, tile._replace(left=left[1:])

    def chosen(self, tile: _Tile) -> _Tile:
        """The tile with few plans and points: those that take fewer cycles than all cheaper ones.

        Of plans the `front_plans` cheapest are chosen, too.
        """
        of, most = tile.of, self.effort.front_plans
        order = np.argsort(tile.words, kind="stable")
        order = order[tile.words[order] < np.inf]
        some = order[_is_fewest(tile.cycles[order]) | (np.arange(len(order)) < most)][: 3 * most]
        # Points are in the order of their energy.
        is_fewer = _is_fewest(of.combinations.cycles[of.points])
        left = np.flatnonzero(is_fewer & (of.combinations.least[of.points] < self.limit)).tolist()
        return _Tile(of, some_of(tile.plans, some), tile.words[some], tile.cycles[some], left)

    def candidates(self, bound: Bound, array: float, plans: Cells) -> Iterator[tuple[float, int, _Candidate]]:
        """A point with each plan that may do: cost, cycles at least. array: what it costs in the array."""
        tiles = tiles_of(self.shape, bound.at)
        plans = plans_below(bound, self.budget, tiles, plans, self.limit)
        if not len(plans[0]):
            return
        blocks = Blocks(self.shape, self.arch, self.budget, tiles, plans)
        times = BlockTimes(blocks, bound)
        in_array, transfers = times.array(), BlockTransfers(times)
        possible = in_array < self.limit
        for stage in blocks.stages() if possible.any() else ():
            costs = array + words_energy(blocks, stage, self.costs)
            if not np.any(cheap := possible & (costs < self.fastest.cost)):
                continue
            buffers = blocks.buffers(stage)
            if not np.any(fitting := cheap & buffers.fit):
                continue
            least = np.maximum(in_array, transfers.least(stage, buffers))
            good = fitting & (least < self.limit)
            least, costs, good = (np.broadcast_to(each, blocks.shaped) for each in (least, costs, good))
            for j in np.nonzero(good)[0].tolist():
                yield float(costs[j]), int(least[j]), _Candidate(bound.at, plan_at(blocks, j, stage, buffers))

    def run(self, mapping: Mapping) -> Tradeoff | None:
        """A mapping on the model; None if it does not fit."""
        residual = self.budget.residual
        if not (is_legal(self.shape, mapping, residual) and fits_register_files(self.shape, self.arch, mapping)):
            return None
        if not fits_glb(self.shape, self.arch, mapping, self.budget.words):
            return None
        cost = cost_of(self.shape, mapping, self.arch, residual, self.costs)
        return Tradeoff(mapping, layer_cycles(plan_in(self.budget, self.shape, mapping), self.arch), cost)
