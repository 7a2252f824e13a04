"""More candidates of layers, for smaller GLB budgets: they prefetch fewer weights, or leave space for prefetched ones.

No pass: `decision.py` chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cnncc.arch.model import Arch, Energy
from cnncc.dialects.nest import LayerOp
from cnncc.mapper.arrays import transfer_cycles
from cnncc.mapper.bound import ideal_cycles
from cnncc.mapper.chain import STREAMED_WAIT_PART, WAIT_PART, LayerChoice, added_cycles
from cnncc.mapper.costs import cost_of
from cnncc.mapper.transfer_bound import cycles_about
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._scheduling.candidates import Candidates, WantedMapping
from cnncc.passes._scheduling.glb_words import stage_sizes
from cnncc.passes._scheduling.nest_layers import layer_shape

SHARE = 8  # of the words of a layer's buffers: the part that others are to take
FIRST_SHARES = (1.3, 1.6, 2, 3, 4, 6, 8, 16)  # the same for the first layer, none of whose weights come before it
# Of a first layer's cycles: if it waits for as much beside a latency, it is searched as its weights come, too. With 20
# this would be a sixth of the time for the MNIST net on 16 x 16 PEs, and win nothing.
LONG_PART = 10


@dataclass(frozen=True)
class LayerCandidates:
    """A layer, its GLB budget, and its candidates.

    - mappings: the fastest in this budget, then the fastest in smaller ones
    - cheaper: mappings that cost less, and take more cycles
    """

    layer: LayerOp
    budget: GlbBudget
    mappings: list[Mapping | None]
    cheaper: list[Mapping]

    def add(self, front: Sequence[Mapping | None]) -> None:
        """The mappings of a front, the fastest first."""
        fastest, *others = front
        self.mappings.extend([fastest] * (fastest not in self.mappings))
        self.cheaper.extend(each for each in others if each is not None and each not in self.cheaper)

    def all(self) -> list[Mapping | None]:
        """All candidates, the fastest first."""
        return list(dict.fromkeys([*self.mappings, *self.cheaper]))


def prefetchable(mapping: Mapping) -> list[str]:
    """The operands that can be prefetched: weights and parameters that are staged once, or in two buffers."""
    stages = [stage for stage in mapping.stages if stage.memory == "glb" and stage.operand in ("weight", "params")]
    return [stage.operand for stage in stages if stage.depth == 0 or stage.buffers > 1]


def choice_of(layer: LayerOp, mapping: Mapping | None, arch: Arch, costs: Energy | None = None) -> LayerChoice:
    """A mapping of a layer as the chain sees it, with its cost if there are prices."""
    shape_, residual = layer_shape(layer), layer.residual is not None
    if mapping is None:
        return LayerChoice(None, 0, 0)
    sizes = stage_sizes(shape_, arch, mapping)
    early = sum(sizes[operand] for operand in prefetchable(mapping))
    cost = cost_of(shape_, mapping, arch, residual, costs) if costs else 0.0
    return LayerChoice(LayerPlan("", shape_, mapping, residual), sum(sizes.values()), early, cost)


def try_smaller_budgets(tried: Sequence[LayerCandidates], candidates: Candidates) -> None:
    """Try mappings with smaller GLB budgets for layers that wait for prefetched operands.

    Such an operand comes late, or has no place beside the layer before. With a smaller budget weights come in slices,
    and only the first slice is prefetched. A mapping may take as many more cycles as its layer waits now.

    Two more trials follow:

    - of the next layer, if a layer loads slices: they leave less time for its weights
    - of a layer with half of its budget, if the first trial does not win half of its wait

    Nothing is prefetched before the first layer. If it waits long, it is searched as its weights come.
    """
    seen = set[tuple[int, GlbBudget]]()
    pairs = set(range(-1, len(tried) - 1))  # by their first layer; -1: what comes before the first one
    while pairs:
        trials = [
            each
            for i in sorted(pairs)
            for each in (_wanted(tried[i], tried[i + 1], i, candidates) if i >= 0 else _of_first(tried[0], candidates))
        ]
        wanted = [(i, each) for i, each in trials if (i, each.budget) not in seen]
        seen.update((i, each.budget) for i, each in wanted)
        candidates.search_ahead([each for _, each in wanted])
        pairs.clear()
        for i, each in wanted:
            front = candidates.faster(each)
            if front and front[0] not in tried[i].mappings:
                tried[i].add(front)
                pairs |= {i - 1, i} & set(range(len(tried) - 1))


def _of_first(first: LayerCandidates, candidates: Candidates) -> Iterator[tuple[int, WantedMapping]]:
    """Candidates of the first layer that wait for fewer of its weights: these are in DRAM when it starts."""
    plan = choice_of(first.layer, first.mappings[0], candidates.arch)
    if plan.plan is None or not candidates.is_searched(first.layer):
        return
    cycles = _cycles(plan, candidates.arch)
    waits = layer_cycles(plan.plan, candidates.arch) - cycles
    if (waits - candidates.arch.dram.latency_cycles) * LONG_PART >= cycles:
        yield 0, WantedMapping(first.layer, replace(first.budget, prefetched=False))
    for words in (int(plan.words / share) for share in FIRST_SHARES if waits > cycles // WAIT_PART):
        if words:
            yield 0, WantedMapping(first.layer, replace(first.budget, words=words), cycles + waits)


def _wanted(
    before: LayerCandidates, current: LayerCandidates, i: int, candidates: Candidates
) -> Iterator[tuple[int, WantedMapping]]:
    """Further candidates for layers i and i + 1, each with the number of its layer."""
    if not (candidates.is_searched(before.layer) and candidates.is_searched(current.layer)):
        return
    arch = candidates.arch
    firsts, seconds = (
        [choice_of(each.layer, mapping, arch) for mapping in each.mappings] for each in (before, current)
    )
    first, second = firsts[0], seconds[0]
    if first.plan is None or second.plan is None:
        return
    fits = first.words + second.prefetched_words <= before.budget.words
    part = STREAMED_WAIT_PART if current.budget.streamed else WAIT_PART
    comes = transfer_cycles(second.prefetched_words, arch.dram) + arch.dram.latency_cycles
    if comes * part <= ideal_cycles(second.plan.shape, arch):
        return  # even if it waits for all of that
    alone, cycles = _cycles(first, arch), _cycles(second, arch)
    # The DMA has nothing else to do while the layer before runs, and brings all words in that time.
    if fits and not any(map(_moves, before.mappings)) and second.prefetched_words < alone * arch.dram.words_per_cycle:
        return
    # Behind the candidate of the layer before that leaves it the least time.
    waits = max(added_cycles(each, second, fits, arch) for each in firsts) - cycles
    if waits <= cycles // part:
        return
    # CHAIN-1 has a table of what is tried when.
    sizes = [second.words // SHARE]
    if fits and not _moves(before.mappings[0]):  # what comes in time, twice: two buffers
        in_time = 2 * alone * arch.dram.rate_words // arch.dram.rate_cycles
        sizes.append(min(second.words - second.prefetched_words + in_time, second.prefetched_words - 1))
    if len(seconds) > 1 and _cycles(seconds[1], arch) > cycles + waits // 2:
        sizes.append(second.words // 2)
    # CHAIN-1: the layer before leaves room for these words, or the layer itself has fewer to bring early.
    less = [(i, before, alone, before.budget.words - second.prefetched_words, False)] * (not fits)
    for number, tried, most, words, quick in [*less, *((i + 1, current, cycles, size, True) for size in sizes)]:
        budget, below = replace(tried.budget, words=words), most + waits
        hopeless = budget.streamed and cycles_about(layer_shape(tried.layer), arch, budget) >= below
        if words > 0 and not hopeless:
            yield number, WantedMapping(tried.layer, budget, below, quick)


def _cycles(choice: LayerChoice, arch: Arch) -> int:
    return layer_cycles(replace(choice.plan, prefetched=PREFETCHED), arch) if choice.plan else 0


def _moves(mapping: Mapping | None) -> bool:
    """Whether the DMA is busy while a layer runs."""
    return mapping is not None and any(stage.memory == "glb" and stage.depth for stage in mapping.stages)
