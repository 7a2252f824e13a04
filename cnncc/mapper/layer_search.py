"""The search for a layer's mapping: which spaces are searched one after the other, how long, and what improves. No IR.

1. The fastest mapping. A network's first layer has one longer search (CHAIN-1). The others have up to six:

   | search | where |
   |---|---|
   | in the budget | always |
   | of each form by itself | forms may have used up the runs of others (BOUND-8) |
   | in a tight budget | the best is far from the bound (SPACE-13) |
   | a longer one | much less may do (BOUND-6) |
   | a local one | the best is a little above the bound (LOCAL-1) |
   | of one tall image, and with images further in | it has several images (LOCAL-5) |

2. With prices: the front of cheaper mappings (FRONT-1), and these with weights that stay in PEs (LOCAL-6).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from cnncc.arch.model import Arch, counted_arch
from cnncc.mapper.arrays import NEVER
from cnncc.mapper.bound import ideal_cycles
from cnncc.mapper.costs import cost_of
from cnncc.mapper.effort import USUAL, Effort
from cnncc.mapper.front import front
from cnncc.mapper.least_cost import least_cost
from cnncc.mapper.local_search import improved, weights_kept
from cnncc.mapper.prices import NOTHING, Prices
from cnncc.mapper.search import Result, best_of, search
from cnncc.mapper.several_images import images_inside, of_images, tall_image
from cnncc.mapper.smallest import may_have_mapping, smallest
from cnncc.mapper.space import forms_of
from cnncc.mapper.tradeoffs import Tradeoff, tradeoffs, undominated
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_schedule import layer_cycles, plan_in
from cnncc.model.layer_shape import GlbBudget, LayerShape


@dataclass(frozen=True)
class SearchTask:
    """What `search` is asked for, without what no result depends on.

    - prices: those of the front, None for none
    - together: whether several images may be computed together (LOCAL-5)
    """

    shape: LayerShape
    arch: Arch
    budget: GlbBudget
    dataflow: str = ""
    below: int = NEVER
    quick: bool = False
    effort: Effort = field(default_factory=lambda: USUAL)
    prices: Prices | None = None
    together: bool = True

    def __post_init__(self) -> None:
        window = replace(self.shape.window, fill=0, zero=0)  # values, which the mapper knows nothing of
        object.__setattr__(self, "shape", replace(self.shape, window=window))
        object.__setattr__(self, "arch", counted_arch(self.arch))

    def search(self, fastest: Result | None = None) -> Result | None:
        """Its result, with the front by its prices. A faster mapping that the front has is the best then.

        fastest: the result without prices, if it is known.
        """
        if self.prices is None:
            best = self._fastest()
            # `others` are not kept on the disk: a result is the same from there.
            return best and replace(best, others=())
        best = fastest or replace(self, prices=None).search()
        if best is None:
            return None
        shape, arch, costs = self.shape, self.arch, self.prices.costs
        cost = cost_of(shape, best.mapping, arch, self.budget.residual, costs)
        # FRONT-1: with a streamed operand the front is in the space of tight budgets, unless cycles are the objective.
        tight = best.tight or (self.prices.wide and bool(self.budget.streamed))
        each = self._front(tight, (Tradeoff(best.mapping, best.cycles, cost),), self.prices)
        if self.budget.streamed and not tight:
            far = self.effort.front_gap * least_cost(shape, arch, self.budget, costs)
            each = self._front(True, each, self.prices) if each[0].cost > far else each
        if self._may_keep_weights:
            kept = [weights_kept(one.mapping, shape.sizes) for one in each]
            each = undominated([*each, *tradeoffs(shape, arch, self.budget, kept, costs)])
        if tall := self._tall():
            of_tall, sizes = tall.search(), shape.sizes
            mappings = [of_images(one.mapping, sizes) for one in (of_tall.front if of_tall else ())]
            mappings += self._with_images_inside(one.mapping for one in each)
            each = undominated([*each, *tradeoffs(shape, arch, self.budget, mappings, costs)])
        last = each[-1]
        least = min(best.least, last.cycles)
        return replace(best, mapping=last.mapping, cycles=last.cycles, least=least, front=each)

    def _front(self, tight: bool, known: tuple[Tradeoff, ...], prices: Prices) -> tuple[Tradeoff, ...]:
        budget = replace(self.budget, tight=tight)
        return front(self.shape, self.arch, budget, known, prices, self.dataflow, self.effort)

    def _fastest(self) -> Result | None:
        """The fastest mapping."""
        # CHAIN-1: one of many searches in smaller budgets. It is short, and may find nothing.
        if self.below < NEVER:
            return search(self.shape, self.arch, self.budget, self.dataflow, self.below, self.quick, self.effort)
        if not may_have_mapping(self.shape, self.arch, self.budget, self.dataflow):
            return None
        effort = self.effort if self.budget.prefetched else self.effort.of_first_layer()  # CHAIN-1
        best = replace(self, effort=effort)._with_second_tries() or self._smallest()
        tall = self._tall()
        return self._with_images(best, tall._fastest()) if best and tall else best

    def _tall(self) -> SearchTask | None:
        """The search for the layer of one tall image (LOCAL-5)."""
        tall = tall_image(self.shape) if self.together else None
        return tall and replace(self, shape=tall)

    def _with_images(self, best: Result, of_tall: Result | None) -> Result:
        """The best result, or a faster mapping of the tall image, or one with images further in (LOCAL-5)."""
        sizes, costed = self.shape.sizes, partial(tradeoffs, self.shape, self.arch, self.budget, costs=NOTHING)
        own = [best.mapping, *(other for other, _ in best.others[: self.effort.images])]
        each = list(costed(self._with_images_inside(own)))
        if of_tall:
            mappings = [of_tall.mapping, *(other for other, _ in of_tall.others)]
            # The fastest of the tall image come first: the first that can be a program of the images is taken.
            each += islice(costed(of_images(mapping, sizes) for mapping in mappings), 1)
        other = min(each, key=lambda one: one.cycles, default=None)
        if other is None or other.cycles >= best.cycles:
            return best
        least, run = min(best.least, other.cycles), best.run + (of_tall.run if of_tall else 0)
        return replace(best, mapping=other.mapping, cycles=other.cycles, least=least, run=run, others=())

    def _with_images_inside(self, mappings: Iterable[Mapping]) -> list[Mapping]:
        """These mappings with images further in (LOCAL-5), if weights may stay."""
        if not self._may_keep_weights:
            return []
        return [inside for mapping in mappings for inside in images_inside(mapping, self.shape.sizes)]

    @property
    def _may_keep_weights(self) -> bool:
        """Whether the dataflow is one whose weights stay in register files, or any."""
        return self.dataflow in ("", "ws")

    def _smallest(self) -> Result | None:
        """SPACE-15: the smallest mapping, if it has room."""
        small = smallest(self.shape, self.arch, self.budget, self.dataflow)
        if small is None or small.words > self.budget.words:
            return None
        cycles = layer_cycles(plan_in(self.budget, self.shape, small.mapping), self.arch)
        return Result(small.mapping, cycles, min(cycles, ideal_cycles(self.shape, self.arch)), run=1, tight=True)

    def _with_second_tries(self) -> Result | None:
        """The search goes on where much less may do (`Effort.gap`)."""
        best = self._in_both_budgets()
        if best is None or self.effort.first or self._has_everything():
            return best
        best = self._longer(best) if self.budget.streamed and self._is_far(best) else best
        if self.dataflow or best.cycles <= self.effort.local_gap * best.least:
            return best
        # LOCAL-4: from many mappings where much less may do, or where a first layer waits for its weights.
        starts = 1 if self.budget.prefetched and not self._is_far(best) else self.effort.local_starts
        return improved(self.shape, self.arch, self.budget, best, self.effort, starts)

    def _longer(self, best: Result) -> Result:
        """The best of a longer search, which looks at what may be faster alone."""
        budget, effort = replace(self.budget, tight=best.tight), self.effort.longer()
        again = search(self.shape, self.arch, budget, self.dataflow, best.cycles, effort=effort)
        if again is None:
            return best
        faster = best_of((best, replace(again, tight=best.tight)))
        return replace(faster, least=min(best.least, faster.cycles))

    def _in_both_budgets(self) -> Result | None:
        """SPACE-13: a tight budget is searched, too, if nothing has room or far fewer cycles may do."""
        best = self._in(self.budget)
        if self._has_everything() or (best and (self.effort.first or self._is_near(best))):
            return best
        again = replace(self, effort=self.effort.of_tight()) if best else self
        tight = again._in(replace(self.budget, tight=True))
        results = [result for result in (best, tight and replace(tight, tight=True)) if result]
        return replace(best_of(results), least=min(result.least for result in results)) if results else None

    def _in(self, budget: GlbBudget) -> Result | None:
        """The best in a budget: of each form by itself where a search of all finds too little (BOUND-8)."""
        best = search(self.shape, self.arch, budget, self.dataflow, effort=self.effort)
        if self.dataflow or (best and not self._mixes_forms(best)):
            return best
        names = dict.fromkeys(form.name for form in forms_of(self.shape))
        each = filter(None, (search(self.shape, self.arch, budget, name, effort=self.effort) for name in names))
        if best:
            return replace(best_of((best, *each)), least=best.least)
        if not (results := list(islice(each, 1) if self.effort.first else each)):
            return None
        # A search of one form knows no bound of the others.
        best = best_of(results)
        return replace(best, least=min(best.cycles, ideal_cycles(self.shape, self.arch)))

    def _mixes_forms(self, best: Result) -> bool:
        """Whether a form's candidates may have used up the runs of others: if less may do."""
        if self.effort.first:
            return False
        if self.budget.streamed:
            return self._is_far(best)
        has_lanes = self.shape.most_products(self.arch) >= self.effort.form_lanes
        return has_lanes and best.cycles > self.effort.form_gap * best.least

    def _has_everything(self) -> bool:
        """Whether all weights and parameters lie in the GLB when the layer starts, and nothing is streamed."""
        return (
            not self.budget.streamed
            and self.budget.prefetched
            and self.shape.weight_words + self.shape.param_words(self.arch) <= self.budget.words
        )

    def _is_far(self, best: Result) -> bool:
        """Whether far fewer cycles may do."""
        return best.cycles > max(self.effort.gap * best.least, best.least + self.effort.few_cycles)

    def _is_near(self, best: Result) -> bool:
        # SPACE-13: where nothing overlaps, the tight budget is searched in any case.
        return self.arch.sequencer.overlap and best.cycles <= self.effort.gap * best.least
