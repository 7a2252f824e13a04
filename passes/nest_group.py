"""Puts layers into a group that runs stripe by stripe."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from cnncc.arch.model import Arch
from cnncc.dialects.cnn import ConcatOp, HostOp, is_per_channel
from cnncc.dialects.nest import GroupOp, LayerOp, image_shape, mapping_of, operands
from cnncc.errors import Refusal, plural, refusals_of
from cnncc.main_function import main_function
from cnncc.mapping.groups import group_problem
from cnncc.mapping.mapping import Mapping, mapping_problem
from cnncc.mapping.strips import strip_name
from cnncc.passes._programs.array_mark import mark_of, marked_array
from cnncc.passes._scheduling.column_strips import may_roll, split_columns
from cnncc.passes._scheduling.glb_words import stage_sizes
from cnncc.passes._scheduling.group_choice import with_groups
from cnncc.passes._scheduling.group_search import is_result
from cnncc.passes._scheduling.layer_groups import (
    GROUPS,
    LayerGroup,
    check_stripe,
    group_op,
    groups_of,
    heights,
    ring_operands,
    ring_words,
    with_rings,
)
from cnncc.passes._scheduling.loaded_inputs import loaded_values
from cnncc.passes._scheduling.nest_layers import chosen_layers, label_of, layer_shape, listed, rows_apart
from cnncc.passes._scheduling.network_values import Network
from cnncc.passes._scheduling.prefetch import prefetched_layers
from cnncc.passes._scheduling.schedule_file import GivenGroup, read_schedule
from cnncc.passes._scheduling.smaller_budgets import prefetchable
from cnncc.passes._scheduling.stripes import striped, with_least_rings


@dataclass(frozen=True)
class NestGroupPass(ModulePass):
    """Puts the layers called `layers` into a group, in stripes of `rows` rows of the last one.

    Why: the rows between the layers then lie in rings in the global buffer, and never go to DRAM (docs/groups.md). With
    `layers="conv1,conv2" rows=2`:

        %1 = nest.layer "mac" %0 … label "conv1" … { … }
        %2 = nest.layer "mac" %1 … label "conv2" … { … }
        ->
        %2 = nest.group "conv1..conv2" : tensor<…> {
          %3 = nest.layer "mac" %0 … label "conv1" delay 0 keeps 5 … { nest.for h step 2 { … } }
          %4 = nest.layer "mac" %3 … label "conv2" delay 1 … { nest.for h step 2 { … } }
          nest.yield %4 : tensor<…>
        }

    Without `layers` the groups are made that `nest-assign-mapping` has chosen, and with `schedule=FILE` all of a
    schedule file (docs/schedule.md).

    `delays`: how many stripes each layer runs behind the first one. `keeps`: the rows of each layer's ring, 0 for none.
    Without them both are the least. A nest that runs stripe by stripe already keeps its loops. A nest without stages
    gets a loop over stripes around it. Any other is replaced by the best mapping of a stripe on the array that the
    layers are mapped to. An array of a file needs `arch`. `rowwise`: first stripes have fewer rows than others, so that
    rings are smaller. `columns`: the layers run in strips of so many columns of the last one. Columns that two strips
    need are computed by both. Strips that are alike are the images of one group. An input whose rows would come from
    DRAM again and again comes by `nest.load`, row by row, but not with `loads=false`. `single`: stripes of the result
    leave from one buffer, not from two in turn.

    An elementwise layer becomes a sum of one pixel: `"copy"` -> `"add"`. Illegal are concatenations and slices between
    the layers, results that others read, too, and residuals of one pixel a channel.
    """

    name = "nest-group"

    layers: tuple[str, ...] = ()
    rows: int = 1
    delays: tuple[int, ...] = ()
    keeps: tuple[int, ...] = ()
    rowwise: bool = False
    columns: int = 0
    loads: bool = True
    single: bool = False
    schedule: str | None = None
    arch: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        if self.layers and self.schedule is not None:
            raise Refusal("nest-group: give either layers or a schedule")
        if self.layers:
            self._apply(op)
            return
        chosen = [self._of(group) for group in _chosen(op)]
        given = [self._of(group) for group in (read_schedule(self.schedule).groups if self.schedule else ())]
        if given and mark_of(op):
            _prefetch(op, [each._plan(op) for each in (*chosen, *given)], marked_array(op, self.arch, self.name))
        for each in (*chosen, *given):
            each._apply(op)

    def _of(self, group: GivenGroup) -> NestGroupPass:
        """The pass that makes this group."""
        options = {field.name: getattr(group, field.name) for field in fields(group)}
        return replace(self, schedule=None, **options | {"loads": self.loads and group.loads})

    def _apply(self, op: ModuleOp) -> None:
        """Make one group."""
        first = _first(op)
        self._make(op)
        # Where the first layer has moved into the group, nothing runs before the next one.
        if (now := _first(op)) is not first and isinstance(now, LayerOp):
            now.prefetched = None

    def _make(self, op: ModuleOp) -> None:
        with self._named():
            layers, arch, places = self._members(op)
            parts = self._strips(layers, arch, places) if self._has_strips(layers) else []
            for part in parts or [replace(self._planned(layers, arch, places, layers), label=self._label)]:
                _build(part, arch)

    def _plan(self, op: ModuleOp) -> LayerGroup:
        """The group, which is not made yet."""
        with self._named():
            layers, arch, places = self._members(op)
            if not self._has_strips(layers):
                return self._planned(layers, arch, places, layers)
            copied, *_ = self._members(op.clone())
            strips = self._strips(copied, arch, places)
            # What comes for the next layer comes in the last strip.
            return replace(strips[-1], layers=tuple(layers), strips=tuple(strips))

    def _has_strips(self, layers: Sequence[LayerOp]) -> bool:
        return 0 < self.columns < image_shape(layers[-1].result.type)[3]

    def _strips(self, layers: Sequence[LayerOp], arch: Arch | None, places: Sequence[int]) -> list[LayerGroup]:
        """The group of each strip, or of strips that are alike. Their layers take the place of those of all columns."""
        rolled = may_roll(layers, {layer: _streamed(layer, layers) for layer in layers})
        strips, plans = split_columns(layers, self.columns, rolled), list[LayerGroup]()
        everywhere = [layer for _, strip in strips for layer in strip]
        for run, strip in strips:
            with refusals_of(f"strip {run.number}"):
                planned = self._planned(strip, arch, places, everywhere)
                plans.append(replace(planned, label=strip_name(self._label, run.number, run.length)))
        return plans

    @property
    def _labels(self) -> list[str]:
        return [name for name in listed(self.layers) if name]

    @property
    def _label(self) -> str:
        # `layers=","` has no label.
        return "..".join([*self._labels[:1], *self._labels[-1:]])

    @contextmanager
    def _named(self) -> Generator[None]:
        """Refusals name the group."""
        try:
            yield
        except Refusal as refusal:
            if str(refusal).startswith(self.name):
                raise
            raise Refusal(f"{self.name}: group '{self._label}': {refusal}") from refusal

    def _members(self, op: ModuleOp) -> tuple[list[LayerOp], Arch | None, list[int]]:
        """The layers in the order of the program, the array, and the place of each layer in the options."""
        labels = self._labels
        self._check(labels)
        layers = _in_order(op, labels)
        self._check_sizes(layers[-1])
        arch = marked_array(op, self.arch, self.name) if self.arch or mark_of(op) else None
        return layers, arch, [labels.index(label_of(layer)) for layer in layers]

    def _check(self, labels: Sequence[str]) -> None:
        if len(set(labels)) < max(2, len(labels)):
            raise Refusal(f"{plural(len(set(labels)), 'layer')}: a group has two or more, each once")
        for name, numbers in (("delays", self.delays), ("keeps", self.keeps)):
            if len(numbers) not in (0, len(labels)):
                raise Refusal(
                    f"{name} has {len(numbers)} numbers for {len(labels)} layers: one for each, or leave it out"
                )

    def _check_sizes(self, last: LayerOp) -> None:
        """Stripes and strips are parts of the last layer's result. Raises Refusal."""
        check_stripe(self.rows, last)
        *_, width = image_shape(last.result.type)
        if not 0 <= self.columns <= width:
            raise Refusal(
                f"strips of {self.columns} columns: columns is 1 to {width}, all of the last layer, "
                f"'{label_of(last)}', or 0 for no strips"
            )

    def _planned(
        self, layers: Sequence[LayerOp], arch: Arch | None, numbers: Sequence[int], others: Sequence[LayerOp]
    ) -> LayerGroup:
        """The group, with a load if one is good. Raises Refusal.

        numbers: the place of each layer in the options. others: the layers of all strips.
        """
        nests = {layer: mapping_of(layer) for layer in layers}
        for loaded in loaded_values(layers, self.rows, nests, others) if self.loads else [list[SSAValue]()]:
            try:
                group = self._group(layers, loaded, arch, numbers)
                # Partial sums may have no room beside the rings. There are mappings without them.
                if arch is not None and not _fits(group, arch):
                    group = self._group(layers, loaded, arch, numbers, sums=False)
                if problem := group_problem(group.plans):
                    given = " and ".join(name for name in ("delays", "keeps") if getattr(self, name))
                    raise Refusal(f"{problem}: leave out {given} for the least" if given else problem)
                group.check()
                if arch is not None:
                    _check_glb(group, arch)
            except Refusal:
                if loaded:
                    continue  # by blocks, then
                raise
            return group
        raise AssertionError("the last choice loads nothing")

    def _group(
        self,
        layers: Sequence[LayerOp],
        loaded: Sequence[SSAValue],
        arch: Arch | None,
        numbers: Sequence[int],
        sums: bool = True,
    ) -> LayerGroup:
        """The group, its layers with their new nests, delays and rings. sums: see `stripe_task`. Raises Refusal."""
        rows, nests = heights(layers, self.rows, loaded)[len(loaded) :], list[Mapping]()
        for layer, own in zip(layers, rows, strict=True):
            with refusals_of(f"layer '{label_of(layer)}'"):
                streamed = _streamed(layer, layers, loaded)
                nests.append(striped(layer, mapping_of(layer), own, streamed, arch, self.single, sums))
                if problem := mapping_problem(nests[-1], layer.sizes.data, operands(layer)):
                    raise Refusal(problem)
        group = with_rings(layers, nests, loaded, rowwise=self.rowwise)
        plans, first = list(group.plans), len(loaded)
        if self.delays:
            ahead = min(plan.delay for plan in plans[first:])  # how far loads run ahead of the first layer
            plans[first:] = [
                replace(plan, delay=self.delays[at] + ahead) for plan, at in zip(plans[first:], numbers, strict=True)
            ]
            plans = with_least_rings(plans, [*[1] * first, *map(rows_apart, layers)])
        if self.keeps:
            plans[first:] = [
                replace(plan, keeps=self.keeps[at]) for plan, at in zip(plans[first:], numbers, strict=True)
            ]
        return replace(group, plans=tuple(plans))


def _chosen(module: ModuleOp) -> list[GivenGroup]:
    """The groups that the module lists in `nest.groups`, which it loses. Raises Refusal for what is no such list."""
    attribute = module.attributes.pop(GROUPS, None)
    try:
        return [] if attribute is None else groups_of(attribute)
    except ValueError as wrong:
        raise Refusal(f"nest-group: {GROUPS}: {wrong}") from wrong


def _prefetch(op: ModuleOp, groups: Sequence[LayerGroup], arch: Arch) -> None:
    """Choose anew whose weights are prefetched: `nest-assign-mapping` does not know the groups of a file."""
    network = Network(main_function(op), [group.layers for group in groups])
    nests = with_groups({layer: mapping_of(layer) for layer in network.layers}, groups)
    prefetched = prefetched_layers(network, arch, nests, groups)
    for layer in network.layers:
        layer.prefetched = UnitAttr() if layer in prefetched else None


def _streamed(layer: LayerOp, layers: Sequence[LayerOp], loaded: Sequence[SSAValue] = ()) -> set[str]:
    """The operands of a layer that come and go through buffers: those streamed before, and results of the network."""
    before = mapping_of(layer)
    leaves = {"output"} if before.stages and is_result(layer.result) else set[str]()
    return (set(before.glb_stages) | leaves) - ring_operands(layer, layers, loaded)


def _in_order(module: ModuleOp, labels: Sequence[str]) -> list[LayerOp]:
    """The layers with these labels in the order of the program. Raises Refusal where they are no group."""
    chosen = [layer for label in labels for layer in chosen_layers(module, label)]
    block = chosen[0].parent_block()
    assert block is not None
    if wrong := next((layer for layer in chosen if layer.mapping), None):
        raise Refusal(
            f"layer '{label_of(wrong)}' has a mapping that is not applied yet: groups are for a dump after nest-stage"
        )
    if wrong := next((layer for layer in chosen if isinstance(layer.parent_op(), GroupOp)), None):
        raise Refusal(f"layer '{label_of(wrong)}' is in a group already: groups hold layers, name them all at once")
    if wrong := next((layer for layer in chosen if is_per_channel(layer.residual, layer.result)), None):
        raise Refusal(f"layer '{label_of(wrong)}' has a residual of one pixel a channel, which has no rows for a ring")
    order = {op: number for number, op in enumerate(block.ops)}
    layers = sorted(chosen, key=order.__getitem__)
    for layer in layers[:-1]:
        for use in layer.result.uses:
            if use.operation not in layers:
                if order.get(use.operation, len(order)) < order[layers[-1]]:
                    remedy = "name it, too" if isinstance(use.operation, LayerOp) else "end the group before it"
                    raise Refusal(
                        f"{_named(use.operation)} stands between the group's layers '{label_of(layer)}' and "
                        f"'{label_of(layers[-1])}': {remedy}"
                    )
                reader = _named(use.operation).removesuffix(",")
                raise Refusal(
                    f"the result of layer '{label_of(layer)}' is read by {reader}, too: a ring has its "
                    f"last rows alone; end the group at this layer, or begin it after it"
                )
    return layers


def _fits(group: LayerGroup, arch: Arch) -> bool:
    """Whether rings and buffers of a group fit the GLB, if nothing else lies there."""
    return sum(group.words(arch).values()) <= arch.glb.words


def _check_glb(group: LayerGroup, arch: Arch) -> None:
    """Raises Refusal where they do not."""
    if not _fits(group, arch):
        needed, rings = sum(group.words(arch).values()), sum(map(ring_words, group.plans))
        raise Refusal(
            f"rings of {rings} words and buffers of {needed - rings} words do not fit glb.words = {arch.glb.words}: "
            f"fewer rows, fewer layers, strips of fewer columns, or a larger array"
        )


def _named(op: Operation) -> str:
    if isinstance(op, ConcatOp):
        return "a concatenation, whose parts would lie in one ring of several producers"
    return f"layer '{label_of(op)}'" if isinstance(op, LayerOp) else f"{op.name}, which is no layer,"


def _build(planned: LayerGroup, arch: Arch | None) -> None:
    """Move the layers into a group where the last one stands."""
    group = group_op(planned.label, planned)
    follows = _next_layer(group)
    # What is prefetched stands behind the transfers at the head of the group, and lies beside its rings and buffers.
    if follows is not None and not (planned.has_head and (arch is None or _has_room(follows, planned, arch))):
        follows.prefetched = None


def _has_room(follows: LayerOp, group: LayerGroup, arch: Arch) -> bool:
    """Whether what is prefetched for a layer has a place in the GLB beside a group."""
    nest = mapping_of(follows)
    sizes = stage_sizes(layer_shape(follows), arch, nest)
    prefetched = sum(sizes[operand] for operand in prefetchable(nest))
    return sum(group.words(arch).values()) + prefetched <= arch.glb.words


def _first(module: ModuleOp) -> Operation | None:
    """What runs first."""
    return next((op for op in main_function(module).body.block.ops if isinstance(op, LayerOp | GroupOp | HostOp)), None)


def _next_layer(group: GroupOp) -> LayerOp | None:
    """The layer whose operands may be prefetched in the group."""
    op = group.next_op
    while op is not None and not isinstance(op, LayerOp | GroupOp | HostOp):
        op = op.next_op
    return op if isinstance(op, LayerOp) else None
