"""The mappings that a layer may have in a GLB budget: a given one, or those that the mapper finds. No pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.context import CompilerContext
from cnncc.dialects.nest import LayerOp, operands
from cnncc.errors import Finding, Refusal
from cnncc.mapper.arrays import NEVER
from cnncc.mapper.cached_search import search_ahead, searched
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.least_cost import least_cost
from cnncc.mapper.objective import Objective
from cnncc.mapper.prices import Prices
from cnncc.mapper.search import Result
from cnncc.mapper.search_processes import GoesOn
from cnncc.mapper.smallest import has_mapping, smallest
from cnncc.mapper.space import forms_of
from cnncc.mapping.mapping import Mapping
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling.dataflows import AUTO, TEXTS
from cnncc.passes._scheduling.elementwise_blocks import copy_mapping
from cnncc.passes._scheduling.glb_words import GlbTooSmall, StaysOut, buffers_too_large
from cnncc.passes._scheduling.nest_layers import label_of, layer_shape
from cnncc.passes._scheduling.schedule_file import DataflowName, Entry, LayerNumbers, MappingText, Schedule
from cnncc.passes._scheduling.schedule_numbers import given_mapping, violations
from cnncc.passes._scheduling.written_mappings import kept_resident, written_mapping, written_violations

NO_LIMIT = 1 << 62  # of the words of a budget


class WantedMapping(NamedTuple):
    """A mapping of a layer in a GLB budget, with fewer than `below` cycles. quick: not searched as long as others."""

    layer: LayerOp
    budget: GlbBudget
    below: int = NEVER
    quick: bool = False


def label(layer: LayerOp) -> str | None:
    """The label by which a schedule names the layer."""
    return layer.label.data if layer.label else None


@dataclass(frozen=True)
class Candidates:
    """The mappings that a layer may have on `arch`: what `schedule` gives by label, else what the mapper finds.

    - name: the name of the pass, for messages
    - context: the progress of the pass, and the number of processes that a search may use
    - others: what the layers with weights get that the schedule does not name. None: the best mapping of all
    - objective: what the network is optimised for
    - groups: whether layers may run in groups
    """

    name: str
    arch: Arch
    schedule: Schedule
    context: CompilerContext
    others: MappingText | DataflowName | None = None
    objective: Objective = Objective()
    groups: bool = False

    @property
    def prices(self) -> Prices:
        """Those of the objective."""
        return self.objective.prices(self.arch)

    def given(self, layer: LayerOp) -> Entry | None:
        """What is said of a layer's mapping; None for the best of all."""
        entry = self.schedule.entries.get(label(layer) or "", self.others if layer.weights is not None else None)
        if isinstance(entry, DataflowName) and layer.weights and (text := TEXTS.get(entry.dataflow)):
            return MappingText(text.text(layer_shape(layer), self.arch))
        return entry

    def form(self, layer: LayerOp) -> str:
        """The name of the forms that are searched for a layer; "" for all forms.

        A layer without mappings of the form is mapped by all forms. Example: a depthwise layer has none that is input
        stationary, because each input word meets the weights of a single channel.
        """
        given = self.given(layer)
        forms = {form.name for form in forms_of(layer_shape(layer))}
        return given.dataflow if isinstance(given, DataflowName) and given.dataflow in forms else ""

    def violations(self, layer: LayerOp) -> list[Finding]:
        """What of it is not legal."""
        match given := self.given(layer):
            case MappingText():
                return written_violations(layer_shape(layer), self.arch, given, operands(layer))
            case LayerNumbers():
                return violations(layer_shape(layer), self.arch, given, layer.residual is not None)
            case DataflowName() if layer.weights is None:
                what = "dataflows are for convolutions and fully connected layers, this is none"
                return [Finding(what, help="leave it out: the compiler maps it")]
            case DataflowName() | None:
                return []

    def best(self, layer: LayerOp, budget: GlbBudget) -> Mapping | None:
        """The fastest mapping of `layer` in this GLB budget; None for its own nest. Raises Refusal (GlbTooSmall)."""
        return self.front(layer, budget)[0]

    def front(self, layer: LayerOp, budget: GlbBudget) -> list[Mapping | None]:
        """The fastest mapping of `layer` in this GLB budget, then cheaper ones. Raises as `best` does."""
        with self._named(layer):
            return self._front(layer, budget)

    def check(self, layer: LayerOp, budget: GlbBudget) -> None:
        """Raise what `front` would raise. A search is done only where it may find what `has_mapping` does not know."""
        with self._named(layer):
            self._check(layer, budget)

    @contextmanager
    def _named(self, layer: LayerOp) -> Generator[None]:
        """Refusals name the layer."""
        where = f"{self.name}: layer '{label_of(layer)}': "
        try:
            yield
        except GlbTooSmall as refusal:
            raise GlbTooSmall(f"{where}{refusal}", refusal.words, *refusal.findings) from refusal
        except StaysOut as refusal:
            raise StaysOut(refusal.operand, where) from refusal
        except Refusal as refusal:
            raise Refusal(f"{where}{refusal}") from refusal

    def _check(self, layer: LayerOp, budget: GlbBudget) -> None:
        is_searched = self.is_searched(layer) and layer.kind.data != "copy"
        if not (is_searched and has_mapping(layer_shape(layer), self.arch, budget, self.form(layer))):
            self._front(layer, budget)

    def _front(self, layer: LayerOp, budget: GlbBudget) -> list[Mapping | None]:
        shape, given = layer_shape(layer), self.given(layer)
        if isinstance(given, MappingText):
            return [self._written(layer, shape, budget, given)]
        if isinstance(given, LayerNumbers):
            return [given_mapping(shape, self.arch, budget, given)]
        if layer.kind.data == "copy":
            return [copy_mapping(shape, self.arch, budget)]
        if front := self._searched(WantedMapping(layer, budget)):
            return [*front]
        form = self.form(layer)
        if small := smallest(shape, self.arch, budget, form):
            raise buffers_too_large(self.arch, budget, small.words)
        what, help_ = f"no mapping of the form {form or AUTO} can run on {self.arch.name}", "dataflow auto"
        raise Refusal(f"{what}: {help_}", Finding(what, help=help_))

    def _written(self, layer: LayerOp, shape: LayerShape, budget: GlbBudget, given: MappingText) -> Mapping:
        """A given mapping. In a group it may have room though it has none alone: `nest-group` says so."""
        try:
            return written_mapping(shape, self.arch, budget, given)
        except GlbTooSmall:
            is_grouped = any(label(layer) in group.layers for group in self.schedule.groups)
            if not is_grouped or budget.words < self.arch.glb.words:  # less may be resident
                raise
            return written_mapping(shape, self.arch, replace(budget, words=NO_LIMIT), given)

    def is_searched(self, layer: LayerOp) -> bool:
        """Whether the layer's mapping is searched for. Then it depends on the GLB budget."""
        return not isinstance(self.given(layer), MappingText | LayerNumbers)

    def keeps(self, layer: LayerOp) -> list[str]:
        """The operands that a given mapping has resident."""
        given = self.given(layer)
        return kept_resident(layer_shape(layer), self.arch, given) if isinstance(given, MappingText) else []

    def faster(self, wanted: WantedMapping) -> list[Mapping]:
        """The mapping that is wanted, and cheaper ones; or none. Of an elementwise layer the best one alone."""
        if wanted.layer.kind.data == "copy":
            with suppress(Refusal):
                mapping = copy_mapping(layer_shape(wanted.layer), self.arch, wanted.budget)
                return [mapping] if mapping else []
            return []
        return self._searched(wanted)

    def _task(self, wanted: WantedMapping) -> SearchTask:
        layer, budget, below, quick = wanted
        return SearchTask(layer_shape(layer), self.arch, budget, self.form(layer), below, quick, prices=self.prices)

    def _searched(self, wanted: WantedMapping) -> list[Mapping]:
        """The front of a search, the fastest mapping first; or none."""
        result = searched(self._task(wanted))
        return [each.mapping for each in reversed(result.front)] if result else []

    def search_ahead(self, wanted: Sequence[WantedMapping], may_win: Callable[[float], bool] | None = None) -> bool:
        """Search for all of these side by side; `best` and `faster` then find the results in memory.

        may_win: whether a network may be the best whose layers cost at least so much together. If not, False is
        returned, and some results may not be there.
        """
        searches = (each for each in wanted if self.is_searched(each.layer) and each.layer.kind.data != "copy")
        tasks = list(map(self._task, searches))
        if may_win is None:
            return self.search_tasks(tasks)
        costs, times = self.prices.costs, Counter(tasks)
        # Layers that are alike have one search, whose cost counts for each of them.
        least = {task: least_cost(task.shape, task.arch, task.budget, costs) for task in times}

        def goes_on(task: SearchTask, result: Result | None) -> bool:
            least[task] = result.front[0].cost if result else least[task]
            return may_win(sum(cost * times[each] for each, cost in least.items()))

        # CHAIN-4: the dearest first, as their costs say soonest that no network wins.
        return self.search_tasks(sorted(times, key=least.__getitem__, reverse=True), goes_on)

    def search_tasks(self, tasks: Sequence[SearchTask], goes_on: GoesOn = lambda task, result: True) -> bool:
        """Do these searches side by side. goes_on: as for `cached_search.search_ahead`."""
        return search_ahead(tasks, self._progress, self.context.processes, goes_on)

    def _progress(self, what: str, done: float = 0, total: float = 0, /) -> None:
        self.context.progress(f"{self.name}: {what}", done, total)
