"""The groups that a mapped network may have, with their figures: steps 1, 2 and 4 of `group_choice.py`. No pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as Map
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

from xdsl.dialects.func import ReturnOp
from xdsl.ir import SSAValue

from cnncc.dialects.cnn import is_per_channel, shape
from cnncc.dialects.nest import JoinOp, LayerOp, image_shape, reads_of_values
from cnncc.errors import Refusal
from cnncc.mapper.arrays import transfer_cycles
from cnncc.mapper.cached_search import searched
from cnncc.mapper.costs import cost_of
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.objective import Figures
from cnncc.mapper.prices import DRAM_WORDS
from cnncc.mapping.groups import KINDS, STREAMED
from cnncc.mapping.mapping import Loop, Mapping
from cnncc.model.group_bounds import least_group_cycles
from cnncc.model.layer_shape import LayerShape
from cnncc.model.program_schedule import program_cycles
from cnncc.passes._scheduling import schedule_file
from cnncc.passes._scheduling.candidates import Candidates, label
from cnncc.passes._scheduling.layer_groups import LayerGroup, heights, ring_operands, with_rings
from cnncc.passes._scheduling.loaded_inputs import loaded_values
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.passes._scheduling.network_values import Network
from cnncc.passes._scheduling.strip_groups import alike, in_strips
from cnncc.passes._scheduling.stripes import kind_in_group, stripe_task, striped, whole_mapping

MOST_UNITS = 6  # of a group: layers, or residual blocks
MOST_HEIGHTS = 2  # of stripes: the highest that fit
# Of all partial sums that layers may have: with less room, mappings with sums are not tried. With 0 ResNet-50 takes
# 2.4 % less energy on `cbrain-32-32`, and its search on `cbrain-16-16` more than twice as long as without groups.
SHARE_OF_SUMS = 0.5
MOST_WIDTHS = 2  # of strips: the widest that fit, and the widest that are all alike

Mappings = Map[LayerOp, Mapping]


class GroupForm(NamedTuple):
    """A way to run layers `first` to `last` in stripes of `rows` rows of the last one.

    - loaded: the values that come row by row
    - rowwise: delays are in rows
    - single: the result leaves from one buffer
    - columns: of a strip of the last result, 0 for all in one group
    """

    first: int
    last: int
    rows: int
    loaded: tuple[SSAValue, ...]
    rowwise: bool = False
    single: bool = False
    columns: int = 0


@dataclass(frozen=True)
class Candidate:
    """A group of this form, with its cycles and its cost."""

    form: GroupForm
    group: LayerGroup
    figures: Figures


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
            if operand in mapping.glb_stages
        ]
        self.in_dram = {root for root, _ in streamed}
        self._outlines = dict[GroupForm, LayerGroup]()
        self.resident = [value for value in network.values if value.root not in self.in_dram]
        self.copied = {value.root: value for value in network.copied_in(self.resident)}

    def candidates_of_all(self) -> list[Candidate]:
        """All groups of all columns that the array can run, with their first figures."""
        return self.searched((form for forms in self._whole.values() for form in forms), first=True)

    def strips(self) -> list[Candidate]:
        """Groups in strips of the other layers, with the least that they can take: nothing is searched for yet."""
        forms = (form for run, whole in self._whole.items() if not whole for form in self._strip_forms(*run))
        return [self._least(form) for form in forms]

    def searched(self, forms: Iterable[GroupForm], first: bool = False) -> list[Candidate]:
        """The groups of these forms that the array can run, with their figures. first: see `_tasks`.

        They have partial sums in the GLB where these may have room, else none. Of the groups of ResNet-50 on
        `cbrain-16-16`, three of four had no room for the sums of the fastest mappings. On `seed-4x4` mappings without
        sums in the GLB take up to 30 % more cycles (2026-11).
        """
        possible = [form for form in forms if _is_legal(self.outline(form))]
        with_sums = self._figured([form for form in possible if self._may_have_sums(form)], True, first)
        others = set(possible) - {each.form for each in with_sums}
        return with_sums + self._figured([form for form in possible if form in others], False, first)

    def _figured(self, forms: Sequence[GroupForm], sums: bool, first: bool) -> list[Candidate]:
        tasks = {form: self._tasks(form, sums, first) for form in forms}
        self.candidates.search_tasks([task for each in tasks.values() for task in each])
        return [each for form, own in tasks.items() for each in self._candidates(form, own)]

    def _may_have_sums(self, form: GroupForm) -> bool:
        """Whether there may be room for the partial sums of some layers of a group."""
        return self._room(form) >= SHARE_OF_SUMS * self.outline(form).most_sums(self.arch)

    # -- runs of layers ----------------------------------------------------------------------------------------------

    def runs(self) -> Iterator[tuple[int, int]]:
        """First and last number of layers that may be a group."""
        for first in range(len(self.network.layers)):
            units = 0
            for last in range(first, len(self.network.layers)):
                run = self.network.layers[first : last + 1]
                if not self.may_follow(run) or units == MOST_UNITS or self.weights(run) >= self.arch.glb.words:
                    break
                if is_closed(run):
                    units += 1
                    # Without a result in DRAM between the layers a group would save no transfer.
                    if last > first and any(self.network.root(layer.result) in self.in_dram for layer in run[:-1]):
                        yield first, last

    def may_follow(self, run: Sequence[LayerOp]) -> bool:
        """Whether layers follow each other, and the last one is of a kind that groups have, and is searched for.

        What the schedule has streamed goes to DRAM, not into a ring.
        """
        last, number, outputs = run[-1], self.network.number, self.candidates.schedule.outputs
        return (
            number[last] - number[run[0]] == len(run) - 1
            and kind_in_group(last) in KINDS
            and not last.steps.data.per_position
            and not is_per_channel(last.residual, last.result)
            and self.candidates.is_searched(last)
            and not any(outputs.get(label(layer) or "") == schedule_file.STREAMED for layer in run[:-1])
            and (not is_result(last.result) or self._may_stream(last.result))
        )

    def weights(self, run: Sequence[LayerOp]) -> int:
        """Words of their weights and params, which all lie in the GLB while a group runs."""
        return sum(shape.weight_words + shape.param_words(self.arch) for shape in map(layer_shape, run))

    # -- forms of a group --------------------------------------------------------------------------------------------

    @cached_property
    def _whole(self) -> dict[tuple[int, int], list[GroupForm]]:
        """The forms of all columns that fit, for each run of layers that may be a group."""
        return {run: [*self._whole_forms(*run)] for run in self.runs()}

    def _whole_forms(self, first: int, last: int) -> Iterator[GroupForm]:
        """The highest stripes that fit, by blocks and by loads; those that fit only with less."""
        layers = self.network.layers[first : last + 1]
        if self.weights(layers) + self.words_of_a_row(layers) > self.arch.glb.words:
            return
        for by_loads in (True, False):
            kept = list[GroupForm]()
            for rows in self.heights(first, last):
                form = GroupForm(first, last, rows, self._loaded(layers, rows) if by_loads else ())
                if by_loads and not form.loaded:
                    continue
                if self._room(form) >= 0:
                    kept.append(form)
                elif not kept:
                    # Higher than all that fit as they are: these may fit with delays in rows, or with results in one
                    # buffer.
                    smaller = (form._replace(rowwise=True), form._replace(single=True))
                    kept += [each for each in smaller if self._room(each) >= 0]
                if sum(not each.rowwise and not each.single for each in kept) == MOST_HEIGHTS:
                    break
            yield from kept

    def words_of_a_row(self, layers: Sequence[LayerOp]) -> int:
        """GLB words of the rows that one row of each layer reads, and of a row that leaves: no stripes take fewer."""
        results, words = {layer.result for layer in layers[:-1]}, dict[SSAValue, int]()
        for layer in layers:
            values = [layer.ifmap, *([layer.residual] if layer.residual else [])]
            for read in reads_of_values(layer, values):
                value = values[read.producer]
                _, channels, height, width = image_shape(value.type)
                low, end = read.rows(layer.sizes.data.h // 2, 1, height)
                if value in results or self.network.root(value) in self.in_dram:
                    columns = layer_shape(layer).iw if read.operand == "ifmap" else width
                    words[value] = max(words.get(value, 0), (end - low) * channels * columns)
        last = layers[-1]
        leaves = self.network.root(last.result) in self.in_dram or is_result(last.result)
        return sum(words.values()) + leaves * last.sizes.data.k * last.sizes.data.w

    def _strip_forms(self, first: int, last: int) -> Iterator[GroupForm]:
        """The lowest stripes in the widest strips that fit: these compute the fewest columns twice.

        Strips come as long as they may save words: each group of them brings all weights and params anew.
        """
        layers, rows = self.network.layers[first : last + 1], [*self.heights(first, last)][-1:]
        if not rows or any(len(shape(layer.result.type)) < 4 for layer in layers):
            return
        width, weights, kept = layers[-1].sizes.data.w, self.weights(layers), list[GroupForm]()
        form = GroupForm(first, last, rows[0], self._loaded(layers, rows[0]))
        whole, room = self.outline(form), self.arch.glb.words - weights
        room -= self.words_beside(whole)
        least = -(-sum(whole.words(self.arch).values()) // room) if room > 0 else width + 1
        moved = self._words_one_by_one(layers)
        for count in range(max(2, least), width + 1 if 2 * weights <= moved else 0):
            columns = -(-width // count)
            equal = width % columns == 0
            # No strips of one width are so many: 10 columns in 6 strips of 2 are 5, which were looked at before.
            if (kept and not equal) or -(-width // columns) < count:
                continue
            with suppress(Refusal):
                strips = in_strips(whole, columns)
                if len(strips.parts) * weights <= moved and sum(strips.words(self.arch).values()) <= room:
                    kept.append(form._replace(columns=columns))
            if len(kept) == MOST_WIDTHS or (kept and equal):
                break
        yield from kept

    def _words_one_by_one(self, layers: Sequence[LayerOp]) -> float:
        """Words that these layers move to and from DRAM without groups."""
        return sum(
            cost_of(layer_shape(layer), self.mappings[layer], self.arch, layer.residual is not None, DRAM_WORDS)
            for layer in layers
        )

    def _loaded(self, layers: Sequence[LayerOp], rows: int) -> tuple[SSAValue, ...]:
        """The values that `nest-group` would have come row by row."""
        loaded = next(loaded_values(layers, rows, self.mappings))
        return tuple(loaded) if all(map(self._may_stream, loaded)) else ()

    def _may_stream(self, value: SSAValue) -> bool:
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
                return  # strides make stripes differ, so that those of other heights do, too
            if all(each < layer.sizes.data.h for each, layer in zip(stripes, layers, strict=True)):
                yield rows

    def _stripes(self, form: GroupForm) -> Iterator[tuple[LayerOp, int, LayerShape]]:
        """Each layer with the rows of its stripe, and its shape to the mapper: that of the widest strip."""
        layers = self.network.layers[form.first : form.last + 1]
        widest = max(self.outline(form).parts, key=lambda part: sum(shape.sizes.w for shape in part.shapes))
        return zip(layers, heights(layers, form.rows), widest.shapes, strict=True)

    def _room(self, form: GroupForm) -> int:
        """A bound of the GLB words that rings, buffers and weights of a group leave; it does not fit below 0."""
        group = self.outline(form)
        needed = sum(group.words(self.arch).values()) + self.weights(group.layers) + self.words_beside(group)
        return self.arch.glb.words - needed

    def smallest(self, first: int, last: int) -> GroupForm | None:
        """The form of these layers with the fewest GLB words; None without stripes."""
        layers, rows = self.network.layers[first : last + 1], [*self.heights(first, last)][-1:]
        forms = [
            GroupForm(first, last, least, loaded, rowwise, single)
            for least in rows
            for loaded in dict.fromkeys([self._loaded(layers, least), ()])
            for rowwise, single in product((False, True), repeat=2)
        ]
        return max(forms, key=self._room, default=None)

    def outline(self, form: GroupForm) -> LayerGroup:
        """The group of this form with rings and buffers alone."""
        if form not in self._outlines:
            whole = form._replace(columns=0)
            self._outlines[form] = in_strips(self.outline(whole), form.columns) if form.columns else self._rings(form)
        return self._outlines[form]

    def _rings(self, form: GroupForm) -> LayerGroup:
        layers = self.network.layers[form.first : form.last + 1]
        rows = heights(layers, form.rows)
        nests = [self._nest(layer, form, each, Mapping(())) for layer, each in zip(layers, rows, strict=True)]
        return with_rings(layers, nests, form.loaded, rowwise=form.rowwise)

    def words_beside(self, group: LayerGroup) -> int:
        """GLB words of the values that are resident while a group runs, and are not its own."""
        numbers = [self.network.number[layer] for layer in group.layers]
        # Results between its layers are in rings, and what it loads or leaves to the user comes and goes by stripes.
        own = {self.network.root(layer.result) for layer in group.layers[:-1]}
        own |= {self.network.root(value) for value in group.loaded}
        last = group.layers[-1].result
        own |= {self.network.root(last)} if is_result(last) else set[SSAValue]()
        return sum(
            value.words
            for value in self.resident
            if value.root not in own and value.first <= max(numbers) and value.last >= min(numbers)
        )

    def _nest(self, layer: LayerOp, form: GroupForm, rows: int, nest: Mapping) -> Mapping:
        """The nest of a layer in a group, around that of a stripe; around an empty one it has its buffers alone."""
        layers = self.network.layers[form.first : form.last + 1]
        streamed = set(self.mappings[layer].glb_stages) | ({"output"} if is_result(layer.result) else set[str]())
        streamed = streamed - ring_operands(layer, layers, form.loaded)
        return striped(layer, nest, rows, streamed, None, form.single)

    def _tasks(self, form: GroupForm, sums: bool, first: bool) -> list[SearchTask]:
        """The searches for the mappings of stripes. sums: see `stripe_task`.

        first: they take less time. Else, of mappings that are equally fast, that which costs least is taken.
        """
        tasks = [
            stripe_task(shape, rows, self.arch, layer.residual is not None, self.candidates.form(layer), sums)
            for layer, rows, shape in self._stripes(form)
        ]
        if first:
            return [replace(task, effort=task.effort.of_draft()) for task in tasks]
        return [replace(task, prices=self.candidates.prices._replace(limits=(1.0,))) for task in tasks]

    # -- figures -----------------------------------------------------------------------------------------------------

    def _candidates(self, form: GroupForm, tasks: Sequence[SearchTask]) -> Iterator[Candidate]:
        """The group of this form, if the array can run it, and with a useful slack."""
        if (nests := self._nests(form, tasks)) is None:
            return
        layers = self.network.layers[form.first : form.last + 1]
        best = self._group(form, nests)
        if not self._fits(best) or not _is_legal(best):
            return
        # A slack makes rings longer, which move no more words: the cost stays.
        cost, slack = best.cost(self.arch, self.costs), [0] * len(layers)
        cycles = least = self._cycles(best)
        yield self._candidate(form, best, cycles, cost)
        # A spare stripe for one layer after the other, each kept if the group then takes fewer cycles.
        for number in range(1, 0 if form.rowwise or form.columns else len(layers)):
            slack[number] = 1
            other = self._group(form, nests, slack)
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

    def _group(self, form: GroupForm, nests: Sequence[Mapping], slack: Sequence[int] = ()) -> LayerGroup:
        """The group of this form. slack: see `with_rings`."""
        layers = self.network.layers[form.first : form.last + 1]
        group = with_rings(layers, nests, form.loaded, slack, form.rowwise)
        return in_strips(group, form.columns) if form.columns else group

    def _candidate(self, form: GroupForm, group: LayerGroup, cycles: int, cost: float) -> Candidate:
        """A candidate; what it loads is not copied to the GLB before the first layer."""
        words = sum(self.copied[root].words for root in map(self.network.root, group.loaded) if root in self.copied)
        saved = words * (self.costs.dram_read + self.costs.glb_write)
        fewer = transfer_cycles(words, self.arch.dram)
        return Candidate(form, group, Figures(cycles - fewer, cost - saved))

    def _least(self, form: GroupForm) -> Candidate:
        """A group in strips with a lower bound of its cycles and its cost, whatever the mappings of stripes are."""
        group, cycles, cost = self.outline(form), 0, 0.0
        for part, count in alike(group):
            cycles += count * least_group_cycles(part.plan(), self.arch)
            cost += count * part.least_cost(self.arch, self.costs)
        return self._candidate(form, group, cycles, cost)

    def _nests(self, form: GroupForm, tasks: Sequence[SearchTask]) -> list[Mapping] | None:
        """The nests of layers in stripes; None where one has none with its weights in the GLB."""
        nests = list[Mapping]()
        for (layer, rows, _), task in zip(self._stripes(form), tasks, strict=True):
            mapping = whole_mapping(searched(task))
            if mapping is None:
                return None
            if task.shape.sizes.w < layer.sizes.data.w:
                mapping = _in_loop(mapping, Loop("w", task.shape.sizes.w))
            nests.append(self._nest(layer, form, rows, mapping))
        return nests

    def _fits(self, group: LayerGroup) -> bool:
        return sum(group.words(self.arch).values()) + self.words_beside(group) <= self.arch.glb.words

    def _cycles(self, group: LayerGroup) -> int:
        """Cycles of a group by itself, of strips one after the other."""
        return sum(count * program_cycles([part.plan()], self.arch)[0].total for part, count in alike(group))


def is_result(value: SSAValue) -> bool:
    """Whether the network's user alone reads what a layer computes: in a group it leaves stripe by stripe."""
    ops = [use.operation for use in value.uses]
    return all(isinstance(op, ReturnOp) or (isinstance(op, JoinOp) and is_result(op.result)) for op in ops)


def is_closed(run: Sequence[LayerOp]) -> bool:
    """Whether only the last result is read outside."""
    return all(use.operation in run for layer in run[:-1] for use in layer.result.uses)


def _in_loop(mapping: Mapping, loop: Loop) -> Mapping:
    """A nest that runs once for each of some columns. Weights and params still come once."""
    stages = [stage if stage.memory == "glb" else replace(stage, depth=stage.depth + 1) for stage in mapping.stages]
    return Mapping((loop, *mapping.loops), tuple(sorted(stages, key=lambda stage: stage.depth)))


def _is_legal(group: LayerGroup) -> bool:
    """Whether the array has a program for a group."""
    try:
        group.check()
    except Refusal:
        return False
    return True
