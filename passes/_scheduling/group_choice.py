"""Which layers of a network run as groups, stripe by stripe (docs/groups.md, "The choice"). No pass.

1. Candidates: layers that follow each other, of which only the last result is read outside, and heights of stripes.
2. Figures: the cycles of each candidate by the model, its cost, and what it takes of the GLB.
3. Paths: dynamic programming over the layers. A path goes on if no other one has fewer cycles and costs less.
4. The best paths are run as whole networks, beside the network without groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from cnncc.dialects import nest
from cnncc.dialects._groups import KINDS, STREAMED
from cnncc.dialects.nest import LayerOp, Loop, Stage, reads_of_values
from cnncc.errors import Refusal
from cnncc.mapper.cached_search import SearchTask, searched
from cnncc.mapper.objective import Figures
from cnncc.mapper.prices import cost_of
from cnncc.mapper.transfer_bound import NEVER
from cnncc.model.group_steps import waits_for_weights
from cnncc.model.layer_shape import GlbBudget
from cnncc.model.program_schedule import program_cycles
from cnncc.passes._scheduling.candidates import Candidates
from cnncc.passes._scheduling.layer_groups import LayerGroup, heights, with_rings
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.network_program import copies_cost, network_parts, part_label
from cnncc.passes._scheduling.network_values import Network
from cnncc.passes._scheduling.prefetch import lifetimes
from cnncc.passes._scheduling.smaller_budgets import choice_of
from cnncc.passes._scheduling.stripes import stripe_shape, striped
from cnncc.passes.array_allocate import fits

MOST_UNITS = 6  # of a group: layers, or residual blocks
MOST_HEIGHTS = 2  # of stripes: the highest that fit
MOST_PATHS = 64  # to a layer
MOST_EXACT = 10  # networks that are run

Mappings = Mapping[LayerOp, nest.Mapping]
MappingT = TypeVar("MappingT")


@dataclass(frozen=True)
class Candidate:
    """A group, from layer number `first` to number `last` of a network, with its cycles and its cost."""

    first: int
    last: int
    group: LayerGroup
    figures: Figures


class GroupSearch:
    """The groups that a mapped network may have. mappings: of its layers without groups."""

    def __init__(self, network: Network, mappings: Mappings, candidates: Candidates) -> None:
        self.network, self.mappings = network, mappings
        self.candidates, self.arch = candidates, candidates.arch
        streamed = [
            (network.operands(layer)[operand], operand)
            for layer, mapping in mappings.items()
            for operand in STREAMED
            if operand in mapping.stages_in("glb")
        ]
        self.in_dram = {root for root, _ in streamed}
        self.resident = [value for value in network.values if value.root not in self.in_dram]

    def candidates_of_all(self) -> list[Candidate]:
        """All groups that the array can run, with their figures."""
        shapes = [(run, rows) for run in self._runs() for rows in self._heights(run)]
        tasks = [
            self._task(layer, each)
            for (first, last), rows in shapes
            for layer, each in self._stripes(first, last, rows)
        ]
        self.candidates.search_tasks(tasks)
        return [each for run, rows in shapes for each in self._candidates(*run, rows)]

    # -- runs of layers ----------------------------------------------------------------------------------------------

    def _runs(self) -> Iterator[tuple[int, int]]:
        """First and last number of layers that may be a group."""
        for first in range(len(self.network.layers)):
            units = 0
            for last in range(first, len(self.network.layers)):
                run = self.network.layers[first : last + 1]
                if not self._may_be_grouped(run) or units == MOST_UNITS:
                    break
                if all(use.operation in run for layer in run[:-1] for use in layer.result.uses):
                    units += 1
                    if last > first and any(self.network.root(layer.result) in self.in_dram for layer in run[:-1]):
                        yield first, last

    def _may_be_grouped(self, run: Sequence[LayerOp]) -> bool:
        """Whether layers follow each other, and the last one is of a kind that groups have, and is searched for."""
        last, number = run[-1], self.network.number
        return (
            number[last] - number[run[0]] == len(run) - 1
            and last.kind.data in KINDS
            and not last.steps.data.per_position
            and self.candidates.is_searched(last)
            and sum(map(self._weight_words, run)) < self.arch.glb.words
        )

    def _weight_words(self, layer: LayerOp) -> int:
        shape = layer_shape(layer)
        return shape.weight_words + shape.params * self.arch.words_per_param * shape.sizes.k

    # -- stripes -----------------------------------------------------------------------------------------------------

    def _heights(self, run: tuple[int, int]) -> Iterator[int]:
        """Rows of a stripe of the last layer: the highest that fit, of those that divide the height."""
        first, last = run
        layers, count = self.network.layers[first : last + 1], 0
        height = layers[-1].sizes.data.h
        for rows in (rows for rows in range(height - 1, 0, -1) if height % rows == 0):
            try:
                stripes = heights(layers, rows)
            except Refusal:
                return
            if all(each < layer.sizes.data.h for each, layer in zip(stripes, layers, strict=True)):
                nests = [self._nest(layer, layers, each, None) for layer, each in zip(layers, stripes, strict=True)]
                if sum(map(self._weight_words, layers)) + self._words(with_rings(layers, nests)) <= self.arch.glb.words:
                    yield rows
                    count += 1
            if count == MOST_HEIGHTS:
                return

    def _stripes(self, first: int, last: int, rows: int) -> list[tuple[LayerOp, int]]:
        layers = self.network.layers[first : last + 1]
        return list(zip(layers, heights(layers, rows), strict=True))

    def _words(self, group: LayerGroup) -> int:
        """GLB words of a group, and of the values that are resident while it runs."""
        numbers = [self.network.number[layer] for layer in group.layers]
        rings = {self.network.root(layer.result) for layer in group.layers[:-1]}
        beside = (
            value.words
            for value in self.resident
            if value.root not in rings and value.first <= max(numbers) and value.last >= min(numbers)
        )
        return sum(group.words(self.arch).values()) + sum(beside)

    def _nest(self, layer: LayerOp, layers: Sequence[LayerOp], rows: int, nest_: nest.Mapping | None) -> nest.Mapping:
        """The nest of a layer in a group, around that of a stripe; None for that of its buffers alone."""
        inside = {read.operand for read in reads_of_values(layer, [each.result for each in layers])} | (
            {"output"} if layer is not layers[-1] else set[str]()
        )
        streamed = [operand for operand in self.mappings[layer].stages_in("glb") if operand not in inside]
        if nest_ is not None:
            return striped(layer, nest_, rows, streamed, None)
        around = (*((Loop("n"),) if layer.sizes.data.n > 1 else ()), Loop("h", rows))
        stages = [Stage(operand, "glb", len(around), 2) for operand in STREAMED if operand in streamed]
        return nest.Mapping(around, tuple(stages))

    def _task(self, layer: LayerOp, rows: int) -> SearchTask:
        """The search for the mappings of a stripe, whose operands all lie in the GLB."""
        budget = GlbBudget(self.arch.glb.words, residual=layer.residual is not None)
        shape, form = stripe_shape(layer_shape(layer), rows), self.candidates.form(layer)
        return SearchTask(shape, self.arch, budget, form, prices=self.candidates.prices)

    # -- figures -----------------------------------------------------------------------------------------------------

    def _candidates(self, first: int, last: int, rows: int) -> Iterator[Candidate]:
        """The group of these layers in stripes of so many rows, if the array can run it, and with a useful slack."""
        nests = self._nests(first, last, rows)
        if nests is None:
            return
        layers, costs = self.network.layers[first : last + 1], self.candidates.prices.costs
        cost = sum(
            cost_of(layer_shape(layer), mapping, self.arch, layer.residual is not None, costs)
            for layer, mapping in zip(layers, nests, strict=True)
        )
        slack = [0] * len(layers)
        best = with_rings(layers, nests)
        if not self._fits(best) or not _is_legal(best):
            return
        cycles = least = self._cycles(best)
        yield Candidate(first, last, best, Figures(cycles, cost))
        for number in range(1, len(layers)):
            slack[number] = 1
            other = with_rings(layers, nests, slack)
            if best.plans[number].reads and self._fits(other) and (longer := self._cycles(other)) < cycles:
                best, cycles = other, longer
            else:
                slack[number] = 0
        if cycles < least:
            yield Candidate(first, last, best, Figures(cycles, cost))

    def _nests(self, first: int, last: int, rows: int) -> list[nest.Mapping] | None:
        """The nests of layers in stripes of so many rows; None where one has none with its weights in the GLB."""
        layers, nests = self.network.layers[first : last + 1], list[nest.Mapping]()
        for layer, each in self._stripes(first, last, rows):
            task = self._task(layer, each)
            result = searched(task.shape, self.arch, task.budget, task.dataflow, prices=task.prices)
            if result is None or any(stage.depth for stage in result.mapping.stages if stage.memory == "glb"):
                return None
            nests.append(self._nest(layer, layers, each, result.mapping))
        return nests

    def _fits(self, group: LayerGroup) -> bool:
        return self._words(group) <= self.arch.glb.words

    def _cycles(self, group: LayerGroup) -> int:
        """Cycles of a group by itself."""
        return program_cycles([group.plan()], self.arch)[0].total


def _is_legal(group: LayerGroup) -> bool:
    """Whether `nest-to-array` has a program for a group."""
    staged = [plan.mapping.stages_in("glb") for plan in group.plans]
    if any(sum(operand in each for each in staged) > 1 for operand in STREAMED):
        return False
    for layer, plan, each in zip(group.layers, group.plans, staged, strict=True):
        rings = {read.operand for read in plan.reads} | ({"output"} if plan.keeps else set[str]())
        if "ifmap" in each and "residual" in rings:
            return False  # its first load would wait for a transfer, and for a layer
        if "residual" in each and "output" in rings:
            return False  # its last commit would free a buffer, and give a token to a layer
        if layer.residual is not None and plan.sizes.n > 1 and len({"residual", "output"} & each.keys()) == 1:
            return False  # a commit has one start for both
    try:
        waits_for_weights(group.plans)
    except Refusal:
        return False
    return True


def with_groups(
    mappings: Mapping[LayerOp, MappingT], groups: Sequence[LayerGroup]
) -> dict[LayerOp, MappingT | nest.Mapping]:
    """The mappings of a network's layers, with those of groups in place of others."""
    return {**mappings, **{layer: each for group in groups for layer, each in group.mappings.items()}}


def best_groups(network: Network, mappings: Mappings, fewest: int, candidates: Candidates) -> list[LayerGroup]:
    """The groups with which a mapped network is the best by the objective; none where it is better without.

    fewest: cycles that some mapping of the network without groups takes.
    """
    arch, costs, objective = candidates.arch, candidates.prices.costs, candidates.objective
    plans = {
        layer: choice_of(layer, mapping, arch).plan if candidates.is_searched(layer) else None
        for layer, mapping in mappings.items()
    }
    parts = network_parts(network, arch, mappings, plans)
    whole, by_label = program_cycles(parts, arch)
    own = {
        layer: cost_of(layer_shape(layer), mapping, arch, layer.residual is not None, costs)
        for layer, mapping in mappings.items()
    }
    alone = {
        layer: Figures(by_label[part_label(network, layer)].total if plans[layer] else 0, own[layer])
        for layer in network.layers
    }
    groups = GroupSearch(network, mappings, candidates).candidates_of_all()
    ways = paths([alone[layer] for layer in network.layers], groups)
    more = whole.total - sum(each.cycles for each in alone.values())
    copied = copies_cost(network, mappings, costs)
    exact: dict[tuple[Candidate, ...], Figures] = {(): Figures(whole.total, sum(own.values()) + copied)}

    def run(groups: Sequence[LayerGroup]) -> int:
        nests = with_groups(mappings, groups)
        grouped = Network(network.func, [group.layers for group in groups])
        if not fits(list(lifetimes(grouped, arch, nests, groups).values()), arch.glb.words):
            return NEVER
        return program_cycles(network_parts(grouped, arch, nests, plans, groups), arch)[0].total

    every = {path.groups: Figures(path.cycles + more, path.cost + copied) for path in ways} | exact
    while True:
        best = list(every)[objective.best(list(every.values()), fewest)]
        if best not in exact and len(exact) > MOST_EXACT:
            best = list(exact)[objective.best(list(exact.values()), fewest)]
        if best in exact:
            return [each.group for each in best]
        exact[best] = every[best] = every[best]._replace(cycles=run([each.group for each in best]))


class Path(NamedTuple):
    """The groups of the first layers of a network, and their cycles and cost."""

    cycles: int
    cost: float
    groups: tuple[Candidate, ...] = ()


def paths(alone: Sequence[Figures], candidates: Iterable[Candidate]) -> list[Path]:
    """The front of ways to cut layers into groups and single layers, those with the fewest cycles first."""
    ending: dict[int, list[Candidate]] = {}
    for each in candidates:
        ending.setdefault(each.last, []).append(each)
    ends = [[Path(0, 0.0)]]
    for number, single in enumerate(alone):
        ways = [Path(path.cycles + single.cycles, path.cost + single.cost, path.groups) for path in ends[-1]]
        for each in ending.get(number, []):
            cycles, cost = each.figures
            ways += [Path(path.cycles + cycles, path.cost + cost, (*path.groups, each)) for path in ends[each.first]]
        ends.append(_undominated(ways))
    return ends[-1]


def _undominated(ways: Sequence[Path]) -> list[Path]:
    result = list[Path]()
    for path in sorted(ways, key=lambda path: path[:2]):
        if not result or path.cost < result[-1].cost:
            result.append(path)
    every = max(1.0, (len(result) - 1) / (MOST_PATHS - 1))
    return [result[round(number * every)] for number in range(min(len(result), MOST_PATHS))]
