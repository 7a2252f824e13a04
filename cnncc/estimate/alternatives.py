"""The best mapping of each dataflow for a layer, within its GLB budget, and why the chosen one is better."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose

from cnncc.arch.model import Arch
from cnncc.errors import Refusal
from cnncc.estimate.cycle_breakdown import CycleBreakdown, cycle_breakdown, difference
from cnncc.estimate.mapped_network import MappedNetwork, mapping_in
from cnncc.mapper.cached_search import search_ahead, searched
from cnncc.mapper.costs import cost_of
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.least_cost import least_cost
from cnncc.mapper.prices import DRAM_WORDS
from cnncc.mapper.space import forms_of
from cnncc.mapping.text import text
from cnncc.model.layer_schedule import LayerPlan, plan_in
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling.dataflows import SCHEMES, TEXTS
from cnncc.passes._scheduling.glb_words import stage_sizes
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.schedule_file import MappingText
from cnncc.passes._scheduling.written_mappings import written_mapping
from cnncc.util.progress import Progress
from cnncc.util.terminal import amount

MOST_BUDGETS = 64  # times a layer's budget: how far a mapping is looked for, to say what it would take
CHOSEN = "this is the chosen mapping"


@dataclass(frozen=True)
class RunnerUp:
    """The best mapping of a dataflow, as text, beside the chosen one.

    - cycles, spent: the cycles of the layer alone, and their breakdown.
    - more: the cycles beyond the chosen mapping's.
    - least: a lower bound of the cycles of this dataflow.
    - why: the reason that it was not chosen; the only field if no mapping fits.
    """

    dataflow: str
    why: str
    mapping: str = ""
    cycles: int = 0
    more: int = 0
    least: int = 0
    spent: dict[str, int] | None = None


@dataclass(frozen=True)
class CostBound:
    """The cost of the chosen mapping, and the least that any mapping of the space has (BOUND-20, BOUND-21)."""

    chosen: float
    least: float


@dataclass(frozen=True)
class DataflowComparison:
    """The chosen mapping, alone, and the best of each dataflow within the same GLB budget, in words.

    costs: the chosen mapping's DRAM words and energy (`dram_words`, `energy`).
    """

    budget: int
    streamed: tuple[str, ...]
    cycles: int
    spent: dict[str, int]
    costs: dict[str, CostBound]
    dataflows: tuple[RunnerUp, ...]


def compare_dataflows(network: MappedNetwork, label: str, progress: Progress) -> DataflowComparison | None:
    """The chosen mapping of a layer beside the others; None for a layer that does not use PEs.

    All are searched within the GLB budget that the chosen one was searched in. Where a step of a PE adds up several
    products, C-Brain's schemes stand with them, in the layer's whole budget.
    """
    layer, budget = network.layer(label), network.taken(label)
    shape, arch = layer_shape(layer), network.arch
    if shape.kind == "copy":
        return None
    chosen = plan_in(budget, shape, mapping_in(layer))
    counts, names = cycle_breakdown(chosen, arch), dict.fromkeys(form.name for form in forms_of(shape))
    search_ahead([SearchTask(shape, arch, budget, name) for name in names], progress)
    runners_up = tuple(_runner_up(chosen, counts, arch, budget, name) for name in names)
    own = network.budget(label)
    if shape.most_products(arch) > 1:
        runners_up += tuple(_scheme(chosen, counts, arch, own, name) for name in SCHEMES)
    bounds = {
        name: _bounded(cost_of(shape, chosen.mapping, arch, own.residual, costs), least_cost(shape, arch, own, costs))
        for name, costs in (("dram_words", DRAM_WORDS), ("energy", arch.energy))
    }
    streamed = tuple(sorted(budget.streamed))
    return DataflowComparison(budget.words, streamed, counts.total, counts.cycles, bounds, runners_up)


def _bounded(chosen: float, least: float) -> CostBound:
    """Both add up prices in orders of their own, so that equal sums may differ by rounding."""
    return CostBound(chosen, chosen if isclose(chosen, least) else least)


def _runner_up(chosen: LayerPlan, counts: CycleBreakdown, arch: Arch, budget: GlbBudget, name: str) -> RunnerUp:
    best = searched(SearchTask(chosen.shape, arch, budget, name))
    if best is None:
        return RunnerUp(name, _no_mapping(chosen.shape, arch, budget, name))
    return _mapped(replace(chosen, mapping=best.mapping), chosen, counts, arch, name, best.least)


def _scheme(chosen: LayerPlan, counts: CycleBreakdown, arch: Arch, budget: GlbBudget, name: str) -> RunnerUp:
    """A scheme of C-Brain: its text, completed."""
    try:
        written = MappingText(TEXTS[name].text(chosen.shape, arch))
        own = replace(chosen, mapping=written_mapping(chosen.shape, arch, budget, written))
    except Refusal as refusal:
        return RunnerUp(name, str(refusal))
    return _mapped(own, chosen, counts, arch, name)


def _mapped(
    own: LayerPlan, chosen: LayerPlan, counts: CycleBreakdown, arch: Arch, name: str, least: int | None = None
) -> RunnerUp:
    """A mapping beside the chosen one. least: None for a single mapping, which takes what it takes."""
    spent = cycle_breakdown(own, arch)
    more = spent.total - counts.total
    costs = (cost_of(own.shape, each.mapping, arch, own.residual, arch.energy) for each in (own, chosen))
    reason = difference(spent, counts) if more > 0 else _dearer(more, *costs)
    reason = CHOSEN if own.mapping == chosen.mapping else reason
    least = spent.total if least is None else least
    return RunnerUp(name, reason, text(own.mapping, own.shape.sizes), spent.total, more, least, spent.cycles)


def _dearer(more: int, own: float, chosen: float) -> str:
    """Why a mapping that is no slower was not chosen, from its energy and the chosen one's."""
    if own == chosen and not more:
        return "as quick, with as much energy: one of them is taken"
    quick = f"{-more:,} fewer cycles" if more else "as quick"
    if not chosen:
        return f"{quick}, its energy is {amount(own)}, not 0"
    change = 100 * (own / chosen - 1)
    return f"{quick}, its energy is {abs(change):.1f} % {'lower' if change < 0 else 'higher'}"


def _no_mapping(shape: LayerShape, arch: Arch, budget: GlbBudget, name: str) -> str:
    """Why the search returns no mapping within this budget."""
    words = budget.words
    while words < MOST_BUDGETS * budget.words:
        words *= 2
        if best := searched(SearchTask(shape, arch, replace(budget, words=words), name)):
            sizes = stage_sizes(shape, arch, best.mapping)
            largest = max(sizes, key=lambda operand: sizes[operand])
            operand = "partial sums" if largest == "sums" else largest
            needs = f"the first that does takes {sum(sizes.values()):,}, {sizes[largest]:,} of them for {operand}"
            return f"none found that fits {budget.words:,} words of the GLB: {needs}"
    return f"none found that fits {budget.words:,} words of the GLB, nor {words:,}"
