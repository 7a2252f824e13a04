"""The mappings of all layers of a network, in one line of steps. No pass: for `nest-assign-mapping`.

1. Resident values: `residency.py` says which values lie in the GLB, and so what GLB budget each layer has.
2. Candidates: `candidates.py` gives each layer a mapping for its budget, `smaller_budgets.py` more of them.
3. Chain: `cnncc/mapper/chain.py` takes one candidate a layer, such that the network is the best by the objective.
4. Groups: `group_choice.py` says which layers run stripe by stripe together, if groups are wanted. Then step 3 is done
   again for the other layers: groups change the fewest cycles, and so what the slack allows.
5. Prefetching: `prefetch.py` says whose first weights come while the layer before runs.

Where step 2 finds a layer no mapping, or the buffers of step 3 have no place, step 1 is done again with one resident
value less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Map
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from xdsl.dialects.func import FuncOp

from cnncc.arch.model import Arch
from cnncc.dialects.cnn import value_key
from cnncc.dialects.nest import LayerOp, mapping_of
from cnncc.errors import Refusal, Refusals
from cnncc.mapper.arrays import NEVER, transfer_cycles
from cnncc.mapper.bound import ideal_cycles
from cnncc.mapper.chain import best_choices
from cnncc.mapper.objective import Figures
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._programs.glb_packing import Lifetime, pack
from cnncc.passes._scheduling.candidates import Candidates, WantedMapping, label
from cnncc.passes._scheduling.glb_words import GlbTooSmall, StaysOut, glb_too_small, stage_sizes
from cnncc.passes._scheduling.group_choice import GroupChoice, with_groups
from cnncc.passes._scheduling.layer_groups import LayerGroup
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape
from cnncc.passes._scheduling.network_program import copies_cost, network_cycles
from cnncc.passes._scheduling.network_values import Network, Value
from cnncc.passes._scheduling.prefetch import prefetched_layers, resident_values
from cnncc.passes._scheduling.residency import (
    WAITS,
    all_fit,
    ends_streamed,
    glb_budgets,
    resident_choices,
    without_largest,
)
from cnncc.passes._scheduling.schedule_file import RESIDENT
from cnncc.passes._scheduling.smaller_budgets import LayerCandidates, choice_of, try_smaller_budgets

Mappings = dict[LayerOp, Mapping | None]  # None: the nest that the layer has


@dataclass(frozen=True)
class Decision:
    """A mapping for every layer, the layers whose first weights are prefetched, and the groups if these were chosen.

    places: whether the results of a layer stay in the GLB, where a schedule may say so. crowded: see `_is_crowded`.
    """

    mappings: Mappings
    prefetched: Sequence[LayerOp]
    choice: GroupChoice | None = None
    places: Map[LayerOp, bool] = field(default_factory=dict["LayerOp", bool])
    crowded: bool = False

    @property
    def groups(self) -> Sequence[LayerGroup]:
        """Layers that run together."""
        return self.choice.groups if self.choice else ()


def decide(func: FuncOp, candidates: Candidates) -> Decision:
    """Mappings such that what is in the GLB at a time fits. Raises Refusal naming a layer."""
    network = Network(func)
    streamed = _place_outputs(network, candidates)
    while True:
        values = [value for value in network.values if value not in streamed]
        try:
            mapped = _with_residents(network, values, candidates)
        except _StreamedByMapping as given:
            streamed.append(given.value)
            continue
        nests = _nests(mapped.mappings)
        choice = GroupChoice(network, nests, mapped.fewest, candidates) if candidates.groups else None
        if choice and choice.chosen:
            _settle(network, mapped, choice, candidates)
        groups, beside = (choice.groups, choice.beside.mappings) if choice else ([], nests)
        # None stays None: the layer keeps the nest that it has.
        others = {layer: mapping and beside[layer] for layer, mapping in mapped.mappings.items()}
        mappings = with_groups(others, groups)
        grouped = Network(func, [group.layers for group in groups])
        prefetched = prefetched_layers(grouped, candidates.arch, _nests(mappings), groups)
        crowded = _is_crowded(network, resident_values(grouped, _nests(mappings)), grouped, candidates.arch)
        return Decision(mappings, prefetched, choice, _places(grouped, _nests(mappings)), crowded)


def _is_crowded(network: Network, resident: Iterable[Value], grouped: Network, arch: Arch) -> bool:
    """Whether the resident values would not fit together with those that lie in rings, if these lay there as a whole.

    grouped: the network with its groups, whose values are without those in rings.
    """
    kept, apart = {value.root for value in resident}, {value.root for value in grouped.values}
    return not all_fit(network, [each for each in network.values if each.root in kept or each.root not in apart], arch)


def _places(network: Network, mappings: Map[LayerOp, Mapping]) -> dict[LayerOp, bool]:
    """For layers whose results may lie in the GLB or in DRAM: whether they lie in the GLB. Rings are in neither."""
    moving = {value.root for value in network.values if value.may_move}
    there = {value.root for value in resident_values(network, mappings)}
    roots = {layer: network.operands(layer)["output"] for layer in network.layers}
    return {layer: root in there for layer, root in roots.items() if root in moving}


def _place_outputs(network: Network, candidates: Candidates) -> list[Value]:
    """The values that the schedule streams. Its resident values may not be streamed from here on. Raises Refusal."""
    streamed, refusals = list[Value](), Refusals()
    for layer in network.layers:
        place = candidates.schedule.outputs.get(label(layer) or "")
        for number, value in enumerate(network.values):
            if not place or value.root is not network.operands(layer)["output"]:
                continue
            if place == RESIDENT:
                network.values[number] = replace(value, may_move=False)
            elif value.may_move:
                streamed.append(value)
            else:
                what = "its results cannot be streamed: the host reads them in the GLB, or they are a part of others"
                refusals.add(Refusal(f"{candidates.name}: layer '{label_of(layer)}': {what}"), label_of(layer))
    refusals.raise_any(candidates.name)
    return streamed


def _nests(mappings: Mappings) -> dict[LayerOp, Mapping]:
    """The mappings, with those that layers have as nests."""
    return {layer: mapping or mapping_of(layer) for layer, mapping in mappings.items()}


class _Mapped(NamedTuple):
    """Mappings with some values resident, as `_Chain` has them, and what was tried."""

    resident: Sequence[Value]
    mappings: Mappings
    figures: Figures
    fewest: int
    fastest: Mappings
    tried: Sequence[LayerCandidates]


def _with_residents(network: Network, values: Sequence[Value], candidates: Candidates) -> _Mapped:
    """Mappings with as many of these values resident as fit, the best of a few choices by the objective."""
    # A given mapping says where its operands lie: they are not exchanged, and some have to be resident.
    given = [layer for layer in network.layers if not candidates.is_searched(layer)]
    fixed = {root for layer in given for root in network.operands(layer).values()}
    kept = {network.operands(layer).get(operand) for layer in given for operand in candidates.keeps(layer)}
    free = [value for value in values if value.root not in fixed]
    wanted = [value for value in values if value.root in kept]
    choices = list[_Mapped]()
    if all_fit(network, values, candidates.arch):
        with suppress(_GlbOverflow):
            choices.append(_mappings(network, values, candidates))
    if not choices:
        for resident in resident_choices(network, values, free, wanted, candidates.arch):
            if choices and not _may_be_worth(choices[0], network, candidates):
                break
            with suppress(_NoBetter):
                choices.append(_fitting(network, resident, candidates, choices))
    first = _best(choices, candidates)
    for resident in ends_streamed(network, first.resident, free, candidates.arch, first.figures.cycles):
        with suppress(GlbTooSmall, _NoBetter):
            choices.append(_fitting(network, resident, candidates, choices))
    best = _best(choices, candidates)
    return best._replace(fewest=min(each.fewest for each in choices))


def _may_be_worth(known: _Mapped, network: Network, candidates: Candidates) -> bool:
    """Whether another choice of resident values is looked at: by cycles, if the network waits for long with these.

    Where nothing overlaps (TIME-6) every network waits.
    """
    if candidates.objective.name != "cycles":
        return True
    least = _least_cycles(network.layers, candidates.arch)
    return candidates.arch.sequencer.overlap and known.figures.cycles > WAITS * least


def _least_cycles(layers: Iterable[LayerOp], arch: Arch) -> int:
    """Cycles of layers one by one at least: of their products and results, or of their weights from DRAM."""
    shapes = [layer_shape(layer) for layer in layers if layer.kind.data != "copy"]
    return sum(max(ideal_cycles(each, arch), transfer_cycles(each.weight_words, arch.dram)) for each in shapes)


def _best(choices: Sequence[_Mapped], candidates: Candidates) -> _Mapped:
    """The best by the objective. The slack counts from the fewest cycles that are known with any of these residents."""
    fewest = min(each.fewest for each in choices)
    return choices[candidates.objective.best([each.figures for each in choices], fewest)]


def _fitting(network: Network, resident: Sequence[Value], candidates: Candidates, others: Sequence[_Mapped]) -> _Mapped:
    """Mappings with these values resident, or as many of them as fit.

    others: with other residents. Raises Refusal, and _NoBetter as `_mappings` does.
    """
    while True:
        try:
            return _mappings(network, resident, candidates, others)
        except _GlbOverflow as overflow:
            fewer = without_largest(resident, overflow.number)
            if fewer is None:
                raise overflow.refusal from overflow
            resident = fewer


class _NoBetter(Exception):
    """With these residents no network is better than one with others."""


def _mappings(
    network: Network, resident: Sequence[Value], candidates: Candidates, others: Sequence[_Mapped] = ()
) -> _Mapped:
    """Mappings with exactly these values resident.

    others: with other residents. The search ends where no network with these can be better (CHAIN-4).

    Raises _GlbOverflow, _StreamedByMapping, _NoBetter, Refusal.
    """
    budgets = dict(glb_budgets(network, resident, candidates.arch))
    _check_layers(network, resident, budgets, candidates)
    cycles = sum(ideal_cycles(layer_shape(layer), candidates.arch) for layer in budgets if layer.kind.data != "copy")
    copies, known = copies_cost(network, resident, candidates.prices.costs), [each.figures for each in others]

    def may_win(cost: float) -> bool:
        return candidates.objective.may_be_better(Figures(cycles, cost + copies), known)

    if not candidates.search_ahead([WantedMapping(*each) for each in budgets.items()], may_win):
        raise _NoBetter
    tried = [_first_candidates(*each, candidates) for each in budgets.items()]
    try_smaller_budgets(tried, candidates)
    chain = _best_chain(network, tried, candidates)
    _check_places(network, resident, chain.mappings, candidates.arch)
    return _Mapped(resident, *chain, tried)


# -- candidates --------------------------------------------------------------------------------------------------------


def _first_candidates(layer: LayerOp, budget: GlbBudget, candidates: Candidates) -> LayerCandidates:
    """The best mapping of a layer in its budget, and cheaper ones."""
    fastest, *cheaper = candidates.front(layer, budget)
    return LayerCandidates(layer, budget, [fastest], [each for each in cheaper if each])


def _check_layers(
    network: Network, resident: Sequence[Value], budgets: Map[LayerOp, GlbBudget], candidates: Candidates
) -> None:
    """Raise what keeps layers from having a mapping, of all of them together. No search has been done then."""
    refusals, failed = Refusals(), list[tuple[LayerOp, GlbTooSmall]]()
    for layer, budget in budgets.items():
        try:
            candidates.check(layer, budget)
        except GlbTooSmall as refusal:
            failed.append((layer, refusal))
        except StaysOut as refusal:
            root = network.operands(layer)[refusal.operand]
            value = next(value for value in resident if value.root is root)
            if value.may_move:
                raise _StreamedByMapping(value) from refusal
            refusals.add(refusal, label_of(layer))
        except Refusal as refusal:
            refusals.add(refusal, label_of(layer))
    refusals.raise_any("nest-assign-mapping")
    if failed:
        findings = [replace(finding, where=label_of(layer)) for layer, each in failed for finding in each.findings]
        # The tightest says what would do for all.
        layer, tightest = max(failed, key=lambda each: each[1].words)
        message = str(tightest) if len(findings) == 1 else f"nest-assign-mapping: {len(findings)} problems"
        raise _GlbOverflow(network.number[layer], GlbTooSmall(message, tightest.words, *findings))


class _StreamedByMapping(Exception):
    """A given mapping stages a value in the GLB: so it lies in DRAM."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


class _GlbOverflow(Exception):
    """What is in the GLB while op `number` runs does not fit; or some layers have no mapping in their budgets."""

    def __init__(self, number: int, refusal: GlbTooSmall) -> None:
        super().__init__(str(refusal))
        self.number, self.refusal = number, refusal


# -- chain -------------------------------------------------------------------------------------------------------------


def _settle(network: Network, mapped: _Mapped, choice: GroupChoice, candidates: Candidates) -> None:
    """Map the layers beside the chosen groups anew, and take the best of the networks that are known then."""
    fastest = _nests(mapped.fastest)
    known = min(mapped.fewest, choice.fewest_cycles(fastest))
    chain = _best_chain(network, mapped.tried, candidates, choice.groups, known)
    others = {layer: mapping or choice.beside.mappings[layer] for layer, mapping in chain.mappings.items()}
    networks = [(choice.chosen, others), (choice.fastest, fastest)]
    choice.settle([each for each in networks if each[0]], min(known, chain.fewest))


class _Chain(NamedTuple):
    """Mappings of all layers, what the network takes, the fewest cycles that are known, and the mappings with these."""

    mappings: Mappings
    figures: Figures
    fewest: int
    fastest: Mappings


def _best_chain(
    network: Network,
    tried: Sequence[LayerCandidates],
    candidates: Candidates,
    groups: Sequence[LayerGroup] = (),
    known: float = inf,
) -> _Chain:
    """The mappings with which the network is the best by the objective.

    Given mappings are not run on the model: whether the machine can run them, `nest-to-array` says. Layers in groups
    have no mapping of their own, and the chain knows nothing of their cycles but by running the network.

    known: the fewest cycles that are known of another network.
    """
    arch, costs, striped = candidates.arch, candidates.prices.costs, with_groups({}, groups)
    network = Network(network.func, [group.layers for group in groups])
    mappings = [[None] if each.layer in striped else each.all() for each in tried]
    choices = [
        [choice_of(each.layer, mapping, arch, costs) for mapping in of_layer]
        for each, of_layer in zip(tried, mappings, strict=True)
    ]
    for each, of_layer in zip(tried, choices, strict=True):
        if not candidates.is_searched(each.layer):
            of_layer[:] = [replace(choice, plan=None) for choice in of_layer]

    def chosen(numbers: Sequence[int]) -> Mappings:
        return {each.layer: of_layer[n] for each, of_layer, n in zip(tried, mappings, numbers, strict=True)}

    def run(numbers: Sequence[int]) -> int:
        plans = {each.layer: of_layer[n].plan for each, of_layer, n in zip(tried, choices, numbers, strict=True)}
        cycles = network_cycles(network, arch, with_groups(_nests(chosen(numbers)), groups), plans, groups)
        return cycles[0].total if cycles else NEVER

    budgets, fastest = [each.budget.words for each in tried], [len(each.mappings) for each in tried]
    best = best_choices(choices, fastest, budgets, candidates.objective, arch, run, known)
    numbers, (cycles, cost) = best.numbers, best.figures
    cost += copies_cost(network, resident_values(network, with_groups(_nests(chosen(numbers)), groups)), costs)
    return _Chain(chosen(numbers), Figures(cycles, cost), best.fewest, chosen(best.fastest))


def _check_places(network: Network, resident: Iterable[Value], mappings: Mappings, arch: Arch) -> None:
    """Raises _GlbOverflow where resident values and the buffers of mappings have no places in the GLB together."""
    lifetimes = [Lifetime(f"value {i}", value.words, value.first, value.last) for i, value in enumerate(resident)]
    for layer, mapping in mappings.items():
        number = network.number[layer]
        sizes = stage_sizes(layer_shape(layer), arch, mapping) if mapping else {}
        if sum(sizes.values()) > arch.glb.words:
            continue  # its group has room for it (`Candidates`)
        for stage, words in sizes.items():
            lifetimes.append(Lifetime(f"{stage} {number}", words, number, number))
    needed, places = pack(lifetimes)
    if needed > arch.glb.words:
        over = next(life for life in lifetimes if places[life.name] + life.words > arch.glb.words)
        # What comes from outside is there before op 0: from -1 on.
        where = value_key(network.ops[max(over.first, 0)]) or "outputs"
        raise _GlbOverflow(over.first, glb_too_small(arch, "values and buffers", needed, where=where))
