"""Which mapping each layer is assigned: a given one, or the best that is found. No pass: for `nest-assign-mapping`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping as Map
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp

from cnncc.arch.model import Arch
from cnncc.context import CompilerContext
from cnncc.dialects.nest import LayerOp, Mapping, MappingAttr, mapping_of, operands
from cnncc.errors import Finding, Refusal, Refusals, hint, one_line
from cnncc.mapper.blocks import least_words
from cnncc.mapper.cached_search import SearchTask, search_ahead, searched
from cnncc.mapper.search import AHEAD
from cnncc.mapper.space import forms_of
from cnncc.model.layer_schedule import LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._onnx.labels import tidy
from cnncc.passes._scheduling.dataflows import TEXTS
from cnncc.passes._scheduling.nest_layers import chosen_layers, label_of, layer_shape
from cnncc.passes._scheduling.os_given import given_mapping, violations
from cnncc.passes._scheduling.os_plan import GlbTooSmall, StaysOut, glb_too_small
from cnncc.passes._scheduling.os_search import copy_mapping, os_mapping
from cnncc.passes._scheduling.os_written import written_mapping, written_violations
from cnncc.passes._scheduling.prefetch import layers_ahead
from cnncc.passes._scheduling.residency import choose_mappings
from cnncc.passes._scheduling.schedule_file import Entry, Given, Named, Written
from cnncc.passes._scheduling.smaller_budgets import Wanted

Schedule = Map[str, Entry]  # by the labels of layers
FAR = 2  # times the cycles that a search has shown to be needed: from there on other mappings are compared
MOST_DOUBLINGS = 12  # of the GLB words for which a mapping of some form is looked for, to say what would do
OPERATORS = ("Conv", "Gemm", "MatMul")  # of the ONNX nodes that have weights


def assign(module: ModuleOp, label: str | None, choice: Assigner) -> None:
    """Write a mapping on every layer, or on the one called `label`, which then has the whole GLB for its buffers.

    Raises Refusal for all in the schedule that is not legal, or for all layers that do not fit.
    """
    name, arch = choice.name, choice.arch
    if choice.schedule or choice.others:
        _check(chosen_layers(module, None if choice.schedule else label), choice)
    func = next((f for f in module.ops if isinstance(f, FuncOp)), None)
    ahead: Sequence[LayerOp] = ()
    if func is not None and label is None:
        chosen = choose_mappings(func, arch, choice)
        ahead = layers_ahead(func, arch, {layer: found or mapping_of(layer) for layer, found in chosen.items()})
    else:
        refusals, chosen = Refusals(), dict[LayerOp, Mapping | None]()
        for layer in chosen_layers(module, label):
            with refusals.kept(label_of(layer)):
                chosen[layer] = choice(layer, GlbBudget(arch.glb.words))
        refusals.raise_any(name)
    for layer, found in chosen.items():
        layer.mapping = MappingAttr(found) if found else None
        layer.ahead = UnitAttr() if layer in ahead else None


def _check(layers: Sequence[LayerOp], choice: Assigner) -> None:
    """Raises Refusal with every layer that there is not, and every number that breaks a limit."""
    labels = [label for layer in layers if (label := _label(layer)) is not None]
    found: list[Finding] = []
    for label in choice.schedule:
        if label not in labels:
            found.append(Finding("there is no such layer on the array", where=label, help=_which(label, labels)))
        for layer in (layer for layer in layers if _label(layer) == label):
            found += [replace(each, where=label) for each in choice.violations(layer)]
    for layer in (layer for layer in layers if _label(layer) not in choice.schedule):
        found += [replace(each, where=label_of(layer)) for each in choice.violations(layer)]
    refusals = Refusals()
    for finding in found:
        says = f"{finding.numbers}: {finding.text}" if finding.resource else finding.text
        finding = replace(finding, where=one_line(finding.where, 80))
        refusals.add(Refusal(f"{choice.name}: layer '{finding.where}': {says}", finding))
    refusals.raise_any(f"{choice.name}: the schedule")


def _label(layer: LayerOp) -> str | None:
    return layer.label.data if layer.label else None


def _which(name: str, known: Sequence[str]) -> str:
    """The label of the layer that is made of the ONNX node `name`, or one that looks like it."""
    of_node = [label for operator in OPERATORS if (label := tidy(name, operator)) != name and label in known]
    return f"that node's label is '{of_node[0]}'" if of_node else hint(name, known)


@dataclass(frozen=True)
class Assigner:
    """How the mapping of one layer is chosen: as `schedule` says, by label, else the one that takes `arch` the fewest
    cycles.

    - name: of the pass, for messages
    - context: its progress, and how many processes a search may use
    - others: the mapping of layers with weights that the schedule does not name; None: the best of all
    """

    name: str
    arch: Arch
    schedule: Schedule
    context: CompilerContext
    others: Written | Named | None = None

    def given(self, layer: LayerOp) -> Entry | None:
        """What is said of a layer's mapping; None for the best of all."""
        entry = self.schedule.get(_label(layer) or "", self.others if layer.weights is not None else None)
        if isinstance(entry, Named) and layer.weights and (text := TEXTS.get(entry.dataflow)):
            return Written(text.text(layer_shape(layer), self.arch))
        return entry

    def form(self, layer: LayerOp) -> str:
        """The form of mappings that are searched for a layer; "" for all.

        A layer that has no mappings of the form is mapped by all: depthwise ones have none that is input stationary, as
        each input word meets the weights of a single channel.
        """
        given = self.given(layer)
        forms = {form.name for form in forms_of(layer_shape(layer))}
        return given.dataflow if isinstance(given, Named) and given.dataflow in forms else ""

    def violations(self, layer: LayerOp) -> list[Finding]:
        """What of it is not legal."""
        match given := self.given(layer):
            case Written():
                return written_violations(layer_shape(layer), self.arch, given, operands(layer))
            case Given():
                return violations(layer_shape(layer), self.arch, given, layer.residual is not None)
            case Named() if layer.weights is None:
                what = "dataflows are for convolutions and fully connected layers, this is none"
                return [Finding(what, help="leave it out: the compiler maps it")]
            case Named() | None:
                return []

    def __call__(self, layer: LayerOp, budget: GlbBudget) -> Mapping | None:
        """The mapping of `layer`; None for its own nest. Raises Refusal (GlbTooSmall).

        Where the search finds none, or a slower one, it is output stationary.
        """
        try:
            return self._mapping(layer, budget)
        except GlbTooSmall as refusal:
            raise self._named(layer, refusal) from refusal
        except StaysOut:
            raise
        except Refusal as refusal:
            raise Refusal(f"{self.name}: layer '{label_of(layer)}': {refusal}") from refusal

    def _named(self, layer: LayerOp, refusal: GlbTooSmall) -> GlbTooSmall:
        return GlbTooSmall(f"{self.name}: layer '{label_of(layer)}': {refusal}", refusal.words, *refusal.findings)

    def _mapping(self, layer: LayerOp, budget: GlbBudget) -> Mapping | None:
        shape, given = layer_shape(layer), self.given(layer)
        if isinstance(given, Written):
            return written_mapping(shape, self.arch, budget, given)
        if isinstance(given, Given):
            return given_mapping(shape, self.arch, budget, given)
        if layer.kind.data == "copy":
            return copy_mapping(shape, self.arch, budget)
        form = self.form(layer)
        found = searched(shape, self.arch, budget, form)
        if form in ("ws", "is"):
            if found is None:
                raise glb_too_small(self.arch, budget, max(least_words(shape, self.arch, budget), budget.words + 1))
            return found.mapping
        if found is None:
            return os_mapping(shape, self.arch, budget)
        if self.arch.sequencer.overlap and found.cycles <= FAR * found.least:
            return found.mapping
        with suppress(Refusal):  # where nothing overlaps one buffer of weights may do; or the search ended too early
            other = os_mapping(shape, self.arch, budget)
            plan = LayerPlan("", shape, other, budget.residual, AHEAD)
            if layer_cycles(plan, self.arch) < found.cycles:
                return other
        return found.mapping

    def free(self, layer: LayerOp) -> bool:
        """Whether the layer's mapping is searched for: it depends on the GLB budget."""
        return not isinstance(self.given(layer), Written | Given)

    def below(self, layer: LayerOp, budget: GlbBudget, cycles: int, quick: bool) -> Mapping | None:
        """A mapping of a free layer that takes fewer cycles than these; of an elementwise one the best. None if none is
        found."""
        shape = layer_shape(layer)
        if layer.kind.data == "copy":
            with suppress(Refusal):
                return copy_mapping(shape, self.arch, budget)
            return None
        found = searched(shape, self.arch, budget, self.form(layer), cycles, quick)
        return found.mapping if found else None

    def refused(self, layer: LayerOp, budget: GlbBudget, refusal: GlbTooSmall) -> GlbTooSmall:
        """The same with the fewest words for which a mapping is found; output stationary ones may need more."""
        if not self.free(layer) or layer.kind.data == "copy":
            return refusal
        shape, form = layer_shape(layer), self.form(layer)
        resident = self.arch.glb.words - budget.words

        def fits(words: int) -> bool:
            return bool(searched(shape, self.arch, replace(budget, words=words), form))

        most = refusal.words - resident
        if form in ("ws", "is"):  # the refusal has a lower bound
            enough = (most << shift for shift in range(MOST_DOUBLINGS))
            most = next((words for words in enough if fits(words)), 0)
            if not most:
                what, help_ = f"no mapping of the form {form} is found", "dataflow auto"
                none = GlbTooSmall(f"{what}: {help_}", refusal.words, Finding(what, help=help_))
                return self._named(layer, none)
        sizes = range(max(least_words(shape, self.arch, budget), budget.words + 1), most)
        words = bisect_left(sizes, True, key=fits)
        least = sizes[words] if words < len(sizes) else most
        if least == refusal.words - resident:
            return refusal
        return self._named(layer, glb_too_small(self.arch, budget, least))

    def soon(self, wanted: Sequence[Wanted]) -> None:
        """Do searches side by side."""
        free = [each for each in wanted if self.free(each.layer) and each.layer.kind.data != "copy"]
        tasks = [
            SearchTask(layer_shape(layer), self.arch, budget, self.form(layer), below, quick)
            for layer, budget, below, quick in free
        ]
        search_ahead(tasks, self._progress, self.context.processes)

    def _progress(self, done: str) -> None:
        self.context.progress(f"{self.name}: {done}")
