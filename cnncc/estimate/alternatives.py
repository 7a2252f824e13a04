"""The best mapping of each dataflow for a layer, in the room that it has, and why the chosen one is better."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cnncc.arch.model import Arch
from cnncc.dialects._mapping_text import text
from cnncc.estimate.cycle_breakdown import Spent, spent, why
from cnncc.estimate.mapped_network import MappedNetwork, mapping_in
from cnncc.mapper.cached_search import SearchTask, search_ahead, searched
from cnncc.mapper.space import forms_of
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling.glb_words import stage_sizes
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.util.progress import Progress

MOST_ROOM = 64  # times the room that a layer has: how far a mapping is looked for, to say what it would take
CHOSEN = "this is the chosen mapping"
AS_QUICK = "as quick: of the quickest one is taken"


@dataclass(frozen=True)
class RunnerUp:
    """The best mapping of a dataflow, as text, beside the chosen one.

    - cycles: of the layer alone. spent: what they go to. more: than those of the chosen mapping
    - least: no mapping of this dataflow takes fewer cycles
    - why: the reason that it was not chosen. It is all there is where no mapping fits
    """

    dataflow: str
    why: str
    mapping: str = ""
    cycles: int = 0
    more: int = 0
    least: int = 0
    spent: dict[str, int] | None = None


@dataclass(frozen=True)
class Compared:
    """The chosen mapping, alone, and the best of each dataflow in as much room, so many words of the GLB."""

    budget: int
    streamed: tuple[str, ...]
    cycles: int
    spent: dict[str, int]
    dataflows: tuple[RunnerUp, ...]


def compared(network: MappedNetwork, label: str, progress: Progress) -> Compared | None:
    """The chosen mapping of a layer beside the others; None for a layer that does not use PEs.

    In the room that its mapping was chosen for.
    """
    layer, budget = network.layer(label), network.taken(label)
    shape, arch = layer_shape(layer), network.arch
    if shape.kind == "copy":
        return None
    chosen = LayerPlan("", shape, mapping_in(layer), budget.residual, PREFETCHED)
    counts, names = spent(chosen, arch), dict.fromkeys(form.name for form in forms_of(shape))
    search_ahead([SearchTask(shape, arch, budget, name) for name in names], progress)
    found = tuple(_runner_up(chosen, counts, arch, budget, name) for name in names)
    return Compared(budget.words, tuple(sorted(budget.streamed)), counts.total, counts.cycles, found)


def _runner_up(chosen: LayerPlan, counts: Spent, arch: Arch, budget: GlbBudget, name: str) -> RunnerUp:
    found = searched(chosen.shape, arch, budget, name)
    if found is None:
        return RunnerUp(name, _no_mapping(chosen.shape, arch, budget, name))
    own = spent(replace(chosen, mapping=found.mapping), arch)
    more = own.total - counts.total
    reason = CHOSEN if found.mapping == chosen.mapping else why(own, counts) if more else AS_QUICK
    return RunnerUp(
        name, reason, text(found.mapping, chosen.shape.sizes), own.total, more, found.least, own.cycles
    )  # fmt: skip


def _no_mapping(shape: LayerShape, arch: Arch, budget: GlbBudget, name: str) -> str:
    """Why the search finds none in this room."""
    words = budget.words
    while words < MOST_ROOM * budget.words:
        words *= 2
        if found := searched(shape, arch, replace(budget, words=words), name):
            sizes = stage_sizes(shape, arch, found.mapping)
            most = max(sizes, key=lambda operand: sizes[operand])
            what = "partial sums" if most == "sums" else most
            needs = f"the first that does takes {sum(sizes.values()):,}, {sizes[most]:,} of them for {what}"
            return f"none found that fits {budget.words:,} words of the GLB: {needs}"
    return f"none found that fits {budget.words:,} words of the GLB, nor {words:,}"
