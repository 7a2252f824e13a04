"""Which layers of a network run as groups, stripe by stripe (docs/groups.md, "The choice"). No pass.

1. Candidates: layers that follow each other, of which only the last result is read outside, and heights of stripes.
2. First figures: the cycles and the cost of each candidate by the model, with mappings of a short search.
3. Paths: dynamic programming over the layers. A path goes on if no other one has fewer cycles and costs less.
4. Searches: the candidates of the best paths are searched for in full, until the best paths have no others.
5. The best paths are run as whole networks, beside the network without groups.

Then `decision.py` maps the other layers anew, and `settle` takes the best of what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as Map
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple, TypeVar

from cnncc.arch.model import Energy
from cnncc.dialects.nest import LayerOp
from cnncc.mapper.arrays import NEVER
from cnncc.mapper.costs import cost_of
from cnncc.mapper.objective import Figures
from cnncc.mapping.mapping import Mapping
from cnncc.model.timed_program import PredictedCycles
from cnncc.passes._scheduling.candidates import Candidates
from cnncc.passes._scheduling.group_search import Candidate, GroupForm, GroupSearch, Mappings
from cnncc.passes._scheduling.layer_groups import LayerGroup
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.network_program import copies_cost, network_cycles, part_label
from cnncc.passes._scheduling.network_values import Network
from cnncc.passes._scheduling.prefetch import resident_values
from cnncc.passes._scheduling.smaller_budgets import choice_of

MOST_PATHS = 64  # to a layer
MOST_EXACT = 10  # networks that are run
MOST_SEARCHES = 8  # for the groups of the best paths
MOST_FASTEST = 3  # of these, for the fewest cycles

MappingT = TypeVar("MappingT")


def with_groups(mappings: Map[LayerOp, MappingT], groups: Sequence[LayerGroup]) -> dict[LayerOp, MappingT | Mapping]:
    """The mappings of a network's layers, with those of groups in place of others."""
    return {**mappings, **{layer: each for group in groups for layer, each in group.mappings.items()}}


class MappedLayers:
    """The layers of a network with mappings, run one by one: their plans, and what each costs."""

    def __init__(self, mappings: Mappings, candidates: Candidates) -> None:
        self.mappings, self.arch = mappings, candidates.arch
        self.plans = {
            layer: choice_of(layer, mapping, self.arch).plan if candidates.is_searched(layer) else None
            for layer, mapping in mappings.items()
        }
        self._costs = dict[Energy, dict[LayerOp, float]]()

    def costs(self, costs: Energy) -> dict[LayerOp, float]:
        """What each layer costs by itself."""
        if costs not in self._costs:
            self._costs[costs] = {
                layer: cost_of(layer_shape(layer), mapping, self.arch, layer.residual is not None, costs)
                for layer, mapping in self.mappings.items()
            }
        return self._costs[costs]


class GroupChoice:
    """Groups for a mapped network: the best by the objective, and what was found on the way.

    - fewest: cycles that some mapping of the network without groups takes
    - fastest: the groups with the fewest cycles
    - one_by_one: the layers without groups
    - beside: with their mappings beside groups; of the layers in groups as without
    """

    def __init__(self, network: Network, mappings: Mappings, fewest: int, candidates: Candidates) -> None:
        self.network, self.arch, self.candidates = network, candidates.arch, candidates
        self.costs, self.objective, self.fewest = candidates.prices.costs, candidates.objective, fewest
        self.one_by_one = self.beside = MappedLayers(mappings, candidates)
        self.search = GroupSearch(network, mappings, candidates)
        self.found = self._searched()
        self.fastest: tuple[Candidate, ...] = ()
        self.chosen: tuple[Candidate, ...] = self._best() if self.found else ()

    @property
    def groups(self) -> list[LayerGroup]:
        """The chosen groups."""
        return [each.group for each in self.chosen]

    def run(
        self, groups: Sequence[LayerGroup], layers: MappedLayers | None = None
    ) -> tuple[PredictedCycles, dict[str, PredictedCycles]] | None:
        """The cycles of the network with these groups, and of each part; None if the groups do not fit the GLB.

        layers: those beside the groups, None for the ones that were found.
        """
        grouped, layers = Network(self.network.func, [group.layers for group in groups]), layers or self._layers(groups)
        return network_cycles(grouped, self.arch, with_groups(layers.mappings, groups), layers.plans, groups)

    def _layers(self, groups: Sequence[LayerGroup]) -> MappedLayers:
        return self.beside if groups else self.one_by_one

    def cost(self, groups: Sequence[LayerGroup], costs: Energy, layers: MappedLayers | None = None) -> float:
        """What the network costs with these groups. layers: see `run`."""
        layers = layers or self._layers(groups)
        nests = with_groups(layers.mappings, groups)
        grouped = {layer for group in groups for layer in group.layers}
        cost = sum(cost for layer, cost in layers.costs(costs).items() if layer not in grouped)
        cost += sum(group.cost(self.arch, costs) for group in groups)
        network = Network(self.network.func, [group.layers for group in groups])
        return cost + copies_cost(network, resident_values(network, nests), costs)

    def figures(self, groups: Sequence[LayerGroup], layers: MappedLayers | None = None) -> Figures:
        """The cycles and the cost of the network with these groups. layers: see `run`."""
        cycles = self.run(groups, layers)
        return Figures(cycles[0].total if cycles else NEVER, self.cost(groups, self.costs, layers))

    def fewest_cycles(self, mappings: Mappings) -> int:
        """Cycles of the network with its fastest groups, and these mappings beside them."""
        groups = [each.group for each in self.fastest]
        return self.figures(groups, MappedLayers(mappings, self.candidates)).cycles

    def cycles_alone(self) -> dict[LayerOp, int]:
        """The cycles of each layer in the network without groups."""
        cycles = self.run([])
        assert cycles is not None
        total = {label: each.total for label, each in cycles[1].items()}
        return {
            layer: total[part_label(self.network, layer)] if self.one_by_one.plans[layer] else 0
            for layer in self.network.layers
        }

    def alone(self) -> dict[LayerOp, Figures]:
        """The cycles and the cost of each layer in the network without groups."""
        own = self.one_by_one.costs(self.costs)
        return {layer: Figures(cycles, own[layer]) for layer, cycles in self.cycles_alone().items()}

    def _searched(self) -> list[Candidate]:
        """Groups with figures. Those of the best paths are searched for in full, until the best paths have no others.

        Groups of all columns have first figures, those in strips are guessed. What searched strips take beyond their
        guesses in the mean, others are guessed to take beyond theirs. Where cycles alone count, a last search is for
        those of the best path with the least of it: without it MobileNet takes 0.4 % more cycles on 16 x 16 PEs. With
        the least in all searches FSRCNN takes 2.5 times the search without groups (2026-11).
        """
        groups = self.search.candidates_of_all()
        possible: dict[GroupForm, Candidate] = {each.form: each for each in self._guessed(self.search.strips())}
        full, beyond = set[GroupForm](), list[tuple[float, float]]()
        alone = [*self.alone().values()] if groups or possible else []

        def search(of_all: Callable[[Iterable[float]], float]) -> bool:
            """The groups of the best paths, if there are others than those that were searched for."""
            cycles, cost = map(of_all, zip(*beyond or [(1.0, 1.0)], strict=True))
            guesses = [
                replace(each, figures=Figures(round(each.figures.cycles * cycles), each.figures.cost * cost))
                for each in possible.values()
            ]
            ways = paths(alone, [*groups, *guesses])
            best = ways[self.objective.best([Figures(*path[:2]) for path in ways], self.fewest)].groups
            fastest = ways[0].groups if self.objective.name == "cycles" else ()  # the slack counts from it
            wanted = [form for form in dict.fromkeys(each.form for each in best + fastest) if form not in full]
            more = self.search.searched(wanted)
            beyond.extend(_times(each.figures, possible[each.form].figures) for each in more if each.form in possible)
            anew = {each.form for each in more}
            groups[:] = [*(each for each in groups if each.form not in anew), *more]
            full.update(wanted)
            for form in wanted:
                possible.pop(form, None)
            return bool(wanted)

        searches = 0
        while searches < MOST_SEARCHES and search(fmean):
            searches += 1
        if self.objective.name == "cycles" and not self.objective.slack:
            search(min)
        return groups

    def _guessed(self, strips: Sequence[Candidate]) -> list[Candidate]:
        """Groups in strips with bounds, with guesses: the array takes as long for an operation as without groups.

        A bound alone is too low where a layer does not fill the array. Such strips would be searched for in vain.
        """
        run = self.run([]) if strips else None
        if run is None:
            return []
        guessed = list[Candidate]()
        for each in strips:
            cycles = 0
            for number, layer in enumerate(each.group.layers):
                operations = sum(part.shapes[number].operations for part in each.group.parts)
                busy = run[1][part_label(self.network, layer)].compute
                cycles += busy * operations // layer_shape(layer).operations
            guessed.append(replace(each, figures=Figures(max(cycles, each.figures.cycles), each.figures.cost)))
        return guessed

    def _best(self) -> tuple[Candidate, ...]:
        """The best of the paths, on the exact model."""
        alone = self.alone()
        ways = paths([alone[layer] for layer in self.network.layers], self.found)
        whole = self.figures([])
        # What the network takes beyond its layers one by one, as copies at its ends, is taken for the same with groups.
        more = [own - sum(each) for own, each in zip(whole, zip(*alone.values(), strict=True), strict=True)]
        exact: dict[tuple[Candidate, ...], Figures] = {(): whole}
        every = {path.groups: Figures(path.cycles + int(more[0]), path.cost + more[1]) for path in ways} | exact

        def run(groups: tuple[Candidate, ...]) -> None:
            exact[groups] = every[groups] = self.figures([each.group for each in groups])

        while (fastest := min(every, key=every.__getitem__)) not in exact and len(exact) <= MOST_FASTEST:
            run(fastest)  # the slack counts from what a network takes, not from an estimate
        self.fastest = min(exact, key=exact.__getitem__)
        while True:
            best = list(every)[self.objective.best(list(every.values()), self.fewest)]
            # Enough networks have been run: the best of these is taken, whatever the estimates promise.
            if best not in exact and len(exact) > MOST_EXACT:
                best = list(exact)[self.objective.best(list(exact.values()), self.fewest)]
            if best in exact:
                return best
            run(best)

    def settle(self, others: Sequence[tuple[tuple[Candidate, ...], Mappings]], fewest: int) -> None:
        """Take the best network: without groups, with those chosen, or with other groups and mappings beside them.

        fewest: cycles that some network takes.
        """
        networks = [((), self.beside), (self.chosen, self.beside)]
        networks += [(groups, MappedLayers(mappings, self.candidates)) for groups, mappings in others]
        figures = [self.figures([each.group for each in groups], layers) for groups, layers in networks]
        self.chosen, self.beside = networks[self.objective.best(figures, min(fewest, self.fewest))]


def _times(figures: Figures, guess: Figures) -> tuple[float, float]:
    """Cycles and cost as multiples of a guess. What a group does not copy may be more than all else that it moves."""
    cycles, cost = (own / other if other > 0 else 1.0 for own, other in zip(figures, guess, strict=True))
    return cycles, cost


class PartialGrouping(NamedTuple):
    """The groups of the first layers of a network, and their cycles and cost."""

    cycles: int
    cost: float
    groups: tuple[Candidate, ...] = ()


def paths(alone: Sequence[Figures], candidates: Iterable[Candidate]) -> list[PartialGrouping]:
    """The front of ways to cut layers into groups and single layers, those with the fewest cycles first."""
    ending: dict[int, list[Candidate]] = {}
    for each in candidates:
        ending.setdefault(each.form.last, []).append(each)
    ends = [[PartialGrouping(0, 0.0)]]
    for number, single in enumerate(alone):
        ways = [PartialGrouping(path.cycles + single.cycles, path.cost + single.cost, path.groups) for path in ends[-1]]
        for each in ending.get(number, []):
            cycles, cost = each.figures
            ways += [
                PartialGrouping(path.cycles + cycles, path.cost + cost, (*path.groups, each))
                for path in ends[each.form.first]
            ]
        ends.append(_undominated(ways))
    return ends[-1]


def _undominated(ways: Sequence[PartialGrouping]) -> list[PartialGrouping]:
    result = list[PartialGrouping]()
    for path in sorted(ways, key=lambda path: path[:2]):
        if not result or path.cost < result[-1].cost:
            result.append(path)
    # At equal distances along the front, the fastest and the cheapest among them.
    every = max(1.0, (len(result) - 1) / (MOST_PATHS - 1))
    return [result[round(number * every)] for number in range(min(len(result), MOST_PATHS))]
