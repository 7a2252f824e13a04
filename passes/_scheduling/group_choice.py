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

from xdsl.dialects.func import ReturnOp
from xdsl.ir import SSAValue

from cnncc.dialects import nest
from cnncc.dialects._groups import KINDS, STREAMED
from cnncc.dialects.nest import LayerOp, Loop, Stage
from cnncc.errors import Refusal
from cnncc.mapper.cached_search import SearchTask, searched
from cnncc.mapper.objective import Figures
from cnncc.mapper.prices import cost_of
from cnncc.mapper.transfer_bound import NEVER
from cnncc.model.layer_shape import GlbBudget
from cnncc.model.program_schedule import program_cycles
from cnncc.model.timed_program import PredictedCycles
from cnncc.passes._scheduling.candidates import Candidates
from cnncc.passes._scheduling.layer_groups import LayerGroup, heights, inside, with_rings
from cnncc.passes._scheduling.loaded_inputs import loaded_values
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape
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


class Form(NamedTuple):
    """A way to run layers `first` to `last` in stripes of `rows` rows of the last one.

    loaded: the values that come row by row. rowwise: delays are in rows.
    """

    first: int
    last: int
    rows: int
    loaded: tuple[SSAValue, ...]
    rowwise: bool


class GroupSearch:
    """The groups that a mapped network may have. mappings: of its layers without groups."""

    def __init__(self, network: Network, mappings: Mappings, candidates: Candidates) -> None:
        self.network, self.mappings = network, mappings
        self.candidates, self.arch = candidates, candidates.arch
        self.costs = candidates.prices.costs
        streamed = [
            (network.operands(layer)[operand], operand)
            for layer, mapping in mappings.items()
            for operand in STREAMED
            if operand in mapping.stages_in("glb")
        ]
        self.in_dram = {root for root, _ in streamed}
        self.resident = [value for value in network.values if value.root not in self.in_dram]
        self.copied = {value.root: value for value in network.copied_in(self.resident)}

    def candidates_of_all(self) -> list[Candidate]:
        """All groups that the array can run, with their figures."""
        forms = [form for run in self.runs() for form in self._forms(*run)]
        stripes = ((layer, rows) for form in forms for layer, rows in zip(*self._stripes(form), strict=True))
        self.candidates.search_tasks([self._task(layer, rows) for layer, rows in stripes])
        return [each for form in forms for each in self._candidates(form)]

    # -- runs of layers ----------------------------------------------------------------------------------------------

    def runs(self) -> Iterator[tuple[int, int]]:
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
            and sum(map(self.weight_words, run)) < self.arch.glb.words
        )

    def weight_words(self, layer: LayerOp) -> int:
        """Words of a layer's weights and params, which all lie in the GLB while its group runs."""
        shape = layer_shape(layer)
        return shape.weight_words + shape.params * self.arch.words_per_param * shape.sizes.k

    # -- forms of a group --------------------------------------------------------------------------------------------

    def _forms(self, first: int, last: int) -> Iterator[Form]:
        """The highest stripes that fit, by blocks and by loads; those that fit only with delays in rows."""
        layers = self.network.layers[first : last + 1]
        for by_loads in (True, False):
            found = list[Form]()
            for rows in self.heights(first, last):
                loaded = next(loaded_values(layers, rows, self.mappings)) if by_loads else []
                form = Form(first, last, rows, tuple(loaded), False)
                if by_loads and not (loaded and all(map(self._may_be_loaded, loaded))):
                    continue
                if self._room(form) >= 0:
                    found.append(form)
                elif not found and self._room(rowwise := form._replace(rowwise=True)) >= 0:
                    found.append(rowwise)
                if sum(not each.rowwise for each in found) == MOST_HEIGHTS:
                    break
            yield from found

    def _may_be_loaded(self, value: SSAValue) -> bool:
        """Whether a value lies in DRAM, or could."""
        root = self.network.root(value)
        return root in self.in_dram or any(each.root is root and each.may_move for each in self.network.values)

    def heights(self, first: int, last: int) -> Iterator[int]:
        """Rows of a stripe of the last layer: those that divide its height, the highest first."""
        layers = self.network.layers[first : last + 1]
        height = layers[-1].sizes.data.h
        for rows in (rows for rows in range(height - 1, 0, -1) if height % rows == 0):
            try:
                stripes = heights(layers, rows)
            except Refusal:
                return
            if all(each < layer.sizes.data.h for each, layer in zip(stripes, layers, strict=True)):
                yield rows

    def _stripes(self, form: Form) -> tuple[list[LayerOp], list[int]]:
        """The layers, and rows of a stripe of each."""
        layers = self.network.layers[form.first : form.last + 1]
        return layers, heights(layers, form.rows)

    def _room(self, form: Form) -> int:
        """GLB words that are left by rings, buffers and weights of a group, by a bound: below 0 it does not fit."""
        return self.arch.glb.words - sum(self.parts_in_glb(form).values())

    def parts_in_glb(self, form: Form) -> dict[str, int]:
        """What is in the GLB at least while a group of this form runs, in words by name."""
        layers, rows = self._stripes(form)
        nests = [self._nest(layer, form, each, None) for layer, each in zip(layers, rows, strict=True)]
        group = with_rings(layers, nests, form.loaded, rowwise=form.rowwise)
        weights = {f"{label_of(layer)} weights": self.weight_words(layer) for layer in layers}
        return {**group.words(self.arch), **weights, "resident values": self._words_beside(group)}

    def _words_beside(self, group: LayerGroup) -> int:
        """GLB words of the values that are resident while a group runs, and are not its own."""
        numbers = [self.network.number[layer] for layer in group.layers]
        own = {self.network.root(layer.result) for layer in group.layers[:-1]}
        own |= {self.network.root(value) for value in group.loaded}
        own |= {self.network.root(group.layers[-1].result)} if self._is_result(group.layers[-1]) else set[SSAValue]()
        return sum(
            value.words
            for value in self.resident
            if value.root not in own and value.first <= max(numbers) and value.last >= min(numbers)
        )

    def _is_result(self, layer: LayerOp) -> bool:
        """Whether the network's user alone reads what a layer computes: in a group it leaves stripe by stripe."""
        return all(isinstance(use.operation, ReturnOp) for use in layer.result.uses)

    def _nest(self, layer: LayerOp, form: Form, rows: int, nest_: nest.Mapping | None) -> nest.Mapping:
        """The nest of a layer in a group, around that of a stripe; None for that of its buffers alone."""
        layers = self.network.layers[form.first : form.last + 1]
        streamed = set(self.mappings[layer].stages_in("glb")) | ({"output"} if self._is_result(layer) else set[str]())
        streamed = streamed - inside(layer, layers, form.loaded)
        if nest_ is not None:
            return striped(layer, nest_, rows, streamed, None)
        around = (*((Loop("n"),) if layer.sizes.data.n > 1 else ()), Loop("h", rows))
        stages = [Stage(operand, "glb", len(around), 2) for operand in STREAMED if operand in streamed]
        return nest.Mapping(around, tuple(stages))

    def _task(self, layer: LayerOp, rows: int) -> SearchTask:
        """The search for the mappings of a stripe, whose operands all lie in the GLB."""
        budget = GlbBudget(self.arch.glb.words, residual=layer.residual is not None)
        shape, dataflow = stripe_shape(layer_shape(layer), rows), self.candidates.form(layer)
        return SearchTask(shape, self.arch, budget, dataflow, prices=self.candidates.prices)

    # -- figures -----------------------------------------------------------------------------------------------------

    def _candidates(self, form: Form) -> Iterator[Candidate]:
        """The group of this form, if the array can run it, and with a useful slack."""
        if (nests := self._nests(form)) is None:
            return
        layers = self.network.layers[form.first : form.last + 1]
        best = with_rings(layers, nests, form.loaded, rowwise=form.rowwise)
        if not self._fits(best) or not _is_legal(best):
            return
        cost, slack = best.cost(self.arch, self.costs), [0] * len(layers)
        cycles = least = self._cycles(best)
        yield self._candidate(form, best, cycles, cost)
        for number in range(1, len(layers) if not form.rowwise else 0):
            slack[number] = 1
            other = with_rings(layers, nests, form.loaded, slack)
            if (
                best.of_layers[number].reads
                and self._fits(other)
                and _is_legal(other)
                and (longer := self._cycles(other)) < cycles
            ):
                best, cycles = other, longer
            else:
                slack[number] = 0
        if cycles < least:
            yield self._candidate(form, best, cycles, cost)

    def _candidate(self, form: Form, group: LayerGroup, cycles: int, cost: float) -> Candidate:
        """A candidate; what it loads is not copied to the GLB before the first layer."""
        words = sum(self.copied[root].words for root in map(self.network.root, group.loaded) if root in self.copied)
        saved = words * (self.costs.dram_read + self.costs.glb_write)
        fewer = words // self.arch.dram.words_per_cycle
        return Candidate(form.first, form.last, group, Figures(cycles - fewer, cost - saved))

    def _nests(self, form: Form) -> list[nest.Mapping] | None:
        """The nests of layers in stripes; None where one has none with its weights in the GLB."""
        nests = list[nest.Mapping]()
        for layer, rows in zip(*self._stripes(form), strict=True):
            task = self._task(layer, rows)
            result = searched(task.shape, self.arch, task.budget, task.dataflow, prices=task.prices)
            if result is None or any(stage.depth for stage in result.mapping.stages if stage.memory == "glb"):
                return None
            nests.append(self._nest(layer, form, rows, result.mapping))
        return nests

    def _fits(self, group: LayerGroup) -> bool:
        return sum(group.words(self.arch).values()) + self._words_beside(group) <= self.arch.glb.words

    def _cycles(self, group: LayerGroup) -> int:
        """Cycles of a group by itself."""
        return program_cycles([group.plan()], self.arch)[0].total


def _is_legal(group: LayerGroup) -> bool:
    """Whether the array has a program for a group."""
    try:
        group.check()
    except Refusal:
        return False
    return True


def with_groups(
    mappings: Mapping[LayerOp, MappingT], groups: Sequence[LayerGroup]
) -> dict[LayerOp, MappingT | nest.Mapping]:
    """The mappings of a network's layers, with those of groups in place of others."""
    return {**mappings, **{layer: each for group in groups for layer, each in group.mappings.items()}}


class GroupChoice:
    """Groups for a mapped network: the best by the objective, and what was found on the way.

    fewest: cycles that some mapping of the network without groups takes.
    """

    def __init__(self, network: Network, mappings: Mappings, fewest: int, candidates: Candidates) -> None:
        self.network, self.mappings, self.arch = network, mappings, candidates.arch
        self.costs, self.objective, self.fewest = candidates.prices.costs, candidates.objective, fewest
        self.plans = {
            layer: choice_of(layer, mapping, self.arch).plan if candidates.is_searched(layer) else None
            for layer, mapping in mappings.items()
        }
        self.own = {
            layer: cost_of(layer_shape(layer), mapping, self.arch, layer.residual is not None, self.costs)
            for layer, mapping in mappings.items()
        }
        self.search = GroupSearch(network, mappings, candidates)
        self.found = self.search.candidates_of_all()
        self.chosen: tuple[Candidate, ...] = self._best() if self.found else ()

    @property
    def groups(self) -> list[LayerGroup]:
        """The chosen groups."""
        return [each.group for each in self.chosen]

    def run(self, groups: Sequence[LayerGroup]) -> tuple[PredictedCycles, dict[str, PredictedCycles]] | None:
        """The cycles of the network with these groups, and of its parts; None where they do not fit the GLB."""
        nests = with_groups(self.mappings, groups)
        grouped = Network(self.network.func, [group.layers for group in groups])
        if groups and not fits(list(lifetimes(grouped, self.arch, nests, groups).values()), self.arch.glb.words):
            return None
        return program_cycles(network_parts(grouped, self.arch, nests, self.plans, groups), self.arch)

    def figures(self, groups: Sequence[LayerGroup]) -> Figures:
        """The cycles and the cost of the network with these groups."""
        nests = with_groups(self.mappings, groups)
        grouped = Network(self.network.func, [group.layers for group in groups])
        cost = sum(cost for layer, cost in self.own.items() if not any(layer in group.layers for group in groups))
        cost += sum(group.cost(self.arch, self.costs) for group in groups)
        cycles = self.run(groups)
        return Figures(cycles[0].total if cycles else NEVER, cost + copies_cost(grouped, nests, self.costs))

    def alone(self) -> dict[LayerOp, Figures]:
        """The cycles and the cost of each layer in the network without groups."""
        cycles = self.run([])
        assert cycles is not None
        return {
            layer: Figures(cycles[1][part_label(self.network, layer)].total if self.plans[layer] else 0, self.own[layer])
            for layer in self.network.layers
        }

    def _best(self) -> tuple[Candidate, ...]:
        """The best of the paths, on the exact model."""
        alone = self.alone()
        ways = paths([alone[layer] for layer in self.network.layers], self.found)
        whole = self.figures([])
        more = [own - sum(each) for own, each in zip(whole, zip(*alone.values(), strict=True), strict=True)]
        exact: dict[tuple[Candidate, ...], Figures] = {(): whole}
        every = {path.groups: Figures(path.cycles + int(more[0]), path.cost + more[1]) for path in ways} | exact
        while True:
            best = list(every)[self.objective.best(list(every.values()), self.fewest)]
            if best not in exact and len(exact) > MOST_EXACT:
                best = list(exact)[self.objective.best(list(exact.values()), self.fewest)]
            if best in exact:
                return best
            exact[best] = every[best] = self.figures([each.group for each in best])


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
