"""What a choice of groups gains, the nearest alternative of each group, and what did not fit, as figures. No pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cnncc.errors import plural
from cnncc.mapper.arrays import transfer_cycles
from cnncc.mapper.objective import Figures
from cnncc.mapper.prices import DRAM_WORDS
from cnncc.passes._scheduling.group_choice import GroupChoice
from cnncc.passes._scheduling.group_search import Candidate, GroupForm, is_closed, is_result
from cnncc.passes._scheduling.layer_groups import LayerGroup, ring_words

MOST_TRIED = 4  # alternatives of a group that are run until one fits


@dataclass(frozen=True)
class Costs:
    """Cycles, words from and to DRAM, and energy."""

    cycles: int
    dram_words: int
    energy: float


@dataclass(frozen=True)
class Alternative:
    """Another group in place of a chosen one, and the costs of the network with it."""

    group: str
    form: str
    network: Costs


@dataclass(frozen=True)
class ChosenGroup:
    """A group: its layers one by one in the network without groups, together in that with all chosen groups."""

    group: str
    form: str
    alone: Costs
    together: Costs
    nearest: Alternative | None


@dataclass(frozen=True)
class UnfitGroup:
    """Layers that are no group because what they need of the GLB does not fit: the least that was found.

    - ring, rows, ring_words: the largest ring
    - weights: words of weights and params
    - resident: words of values that are in the GLB meanwhile
    - needed: words of all of these, and of buffers
    - missing: words that the GLB has too few
    """

    group: str
    form: str
    ring: str
    rows: int
    ring_words: int
    weights: int
    resident: int
    needed: int
    missing: int


@dataclass(frozen=True)
class GroupReport:
    """What the network takes without groups and with the chosen ones, these groups, and layers that did not fit."""

    alone: Costs
    network: Costs
    groups: tuple[ChosenGroup, ...]
    unfit: tuple[UnfitGroup, ...]


def group_report(choice: GroupChoice) -> GroupReport | None:
    """The report of a choice; None where there is nothing to say."""
    chosen = tuple(_chosen(choice)) if choice.chosen else ()
    unfit = tuple(sorted(_unfit(choice), key=lambda each: each.missing))
    if not chosen and not unfit:
        return None
    return GroupReport(_costs(choice, []), _costs(choice, choice.groups), chosen, unfit)


def _costs(choice: GroupChoice, groups: Sequence[LayerGroup]) -> Costs:
    """What the network takes with these groups."""
    cycles = choice.figures(groups).cycles
    return Costs(cycles, round(choice.cost(groups, DRAM_WORDS)), choice.cost(groups, choice.arch.energy))


def _chosen(choice: GroupChoice) -> Iterator[ChosenGroup]:
    cycles, alone = choice.run(choice.groups), choice.cycles_alone()
    assert cycles is not None
    words, energy = (choice.one_by_one.costs(costs) for costs in (DRAM_WORDS, choice.arch.energy))
    for each in choice.chosen:
        group = each.group
        own = [(alone[layer], words[layer], energy[layer]) for layer in group.layers]
        before = Costs(*(round(sum(figures)) for figures in zip(*own, strict=True)))
        copied = _copied(choice, group)
        before = Costs(*(sum(pair) for pair in zip(vars(before).values(), vars(copied).values(), strict=True)))
        after = Costs(
            sum(cycles[1][part.label].total for part in group.parts),
            round(group.cost(choice.arch, DRAM_WORDS)),
            group.cost(choice.arch, choice.arch.energy),
        )
        yield ChosenGroup(group.label, form_of(group), before, after, _nearest(choice, each))


def _copied(choice: GroupChoice, group: LayerGroup) -> Costs:
    """The copies that a group saves: of an input that it loads row by row, of a result that leaves by stripes."""
    search, network, arch = choice.search, choice.network, choice.arch
    loaded = {network.root(value) for value in group.loaded}
    into = sum(value.words for root, value in search.copied.items() if root in loaded)
    results = [value for value in network.copied_out(search.resident) if is_result(group.layers[-1].result)]
    out = sum(value.words for value in results if value.root is network.root(group.layers[-1].result))
    energy = into * (arch.energy.dram_read + arch.energy.glb_write)
    energy += out * (arch.energy.glb_read + arch.energy.dram_write)
    return Costs(transfer_cycles(into + out, arch.dram), into + out, energy)


def form_of(group: LayerGroup) -> str:
    """How a group runs, in words."""
    options = group.options
    columns = f" in strips of {plural(options.columns, 'column')}" if options.columns else ""
    loads = "".join(f", {load.label} row by row" for load in group.loads)
    delays = f", delays {' '.join(map(str, options.delays))}" if options.delays else ""
    rowwise, single = ", delays in rows" * options.rowwise, ", results in one buffer" * options.single
    return f"{stripes_of(options.rows)}{columns}{loads}{delays}{rowwise}{single}"


def stripes_of(rows: int) -> str:
    """In words."""
    return f"stripes of {plural(rows, 'row')}"


def _nearest(choice: GroupChoice, chosen: Candidate) -> Alternative | None:
    """The best of the candidates that have layers of a chosen one, on the exact model, without groups that it meets."""
    alone, now = choice.alone(), choice.figures([])

    def meets(one: Candidate, other: Candidate) -> bool:
        return one.form.first <= other.form.last and other.form.first <= one.form.last

    def with_other(each: Candidate) -> list[Candidate]:
        """The groups of the network with it."""
        kept = [other for other in choice.chosen if not meets(other, chosen) and not meets(other, each)]
        return sorted([*kept, each], key=lambda group: group.form.first)

    def guess(groups: Sequence[Candidate]) -> Figures:
        """What the network takes with these groups, about."""
        figures = [alone[layer] for each in groups for layer in each.group.layers]
        saved = [sum(column) for column in zip(*figures, strict=True)]
        taken = [sum(column) for column in zip(*(each.figures for each in groups), strict=True)]
        return Figures(round(now.cycles - saved[0] + taken[0]), now.cost - saved[1] + taken[1])

    left = [with_other(each) for each in choice.found if each is not chosen and meets(each, chosen)]
    for _ in range(min(MOST_TRIED, len(left))):
        best = left.pop(choice.objective.best([guess(groups) for groups in left], choice.fewest))
        groups = [each.group for each in best]
        other = next(each.group for each in best if meets(each, chosen))
        if choice.run(groups) is not None:
            return Alternative(other.label, form_of(other), _costs(choice, groups))
    return None


def _unfit(choice: GroupChoice) -> Iterator[UnfitGroup]:
    """For each result that goes to DRAM between two layers, and in no candidate, the least that these need."""
    search, layers = choice.search, choice.network.layers
    covered = {layer for each in choice.found for layer in each.group.layers[:-1]}
    seen = set[tuple[int, int]]()
    for first, layer in enumerate(layers):
        if choice.network.root(layer.result) not in search.in_dram or layer in covered:
            continue
        if (run := _shortest(choice, first)) and run not in seen and (form := search.smallest(*run)):
            seen.add(run)
            if (unfit := _unfit_group(choice, form)).missing > 0:
                yield unfit


def _shortest(choice: GroupChoice, first: int) -> tuple[int, int] | None:
    """The fewest layers from `first` on that could be a group, if all fitted."""
    layers = choice.network.layers
    for last in range(first, len(layers)):
        run = layers[first : last + 1]
        if not choice.search.may_follow(run):
            return None
        if last > first and is_closed(run):
            return first, last
    return None


def _unfit_group(choice: GroupChoice, form: GroupForm) -> UnfitGroup:
    search, group = choice.search, choice.search.outline(form)
    ring, weights, beside = max(group.plans, key=ring_words), search.weights(group.layers), search.words_beside(group)
    needed = sum(group.words(choice.arch).values()) + weights + beside
    return UnfitGroup(
        group.label, form_of(group), ring.label, ring.keeps, ring_words(ring), weights, beside, needed,
        needed - choice.arch.glb.words,
    )  # fmt: skip
