"""Puts layers into a group that runs stripe by stripe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass

from cnncc.arch.model import Arch
from cnncc.dialects._groups import KINDS, GroupLayer, group_problem
from cnncc.dialects.cnn import HostOp
from cnncc.dialects.nest import (
    GroupOp,
    LayerOp,
    YieldOp,
    build_nest,
    mapping_of,
    mapping_problem,
    operands,
    reads_of,
)
from cnncc.errors import Refusal
from cnncc.passes._programs.array_mark import mark_of, marked_array
from cnncc.passes._scheduling.glb_words import stage_sizes
from cnncc.passes._scheduling.layer_groups import GROUPS, groups_of
from cnncc.passes._scheduling.nest_layers import chosen_layers, label_of, layer_shape, listed, rows_apart
from cnncc.passes._scheduling.schedule_file import GivenGroup, read_schedule
from cnncc.passes._scheduling.stripes import stripe_rows, striped, with_least_delays, with_least_rings


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
    Without them both are the least. A nest that runs stripe by stripe already keeps its loops. A nest without
    stages gets a loop over stripes around it. Any other is replaced by the best mapping of a stripe on the array that
    the layers are mapped to. An array of a file needs `arch`.

    Illegal are elementwise layers and concatenations between the layers, and results that others read, too.
    """

    name = "nest-group"

    layers: tuple[str, ...] = ()
    rows: int = 1
    delays: tuple[int, ...] = ()
    keeps: tuple[int, ...] = ()
    schedule: str | None = None
    arch: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        if self.layers and self.schedule is not None:
            raise Refusal("nest-group: give either layers or a schedule")
        if self.layers:
            self._apply(op)
            return
        for group in (*_chosen(op), *(read_schedule(self.schedule).groups if self.schedule else ())):
            options = {field.name: getattr(group, field.name) for field in fields(group)}
            replace(self, schedule=None, **options)._apply(op)

    def _apply(self, op: ModuleOp) -> None:
        """Make one group."""
        labels = [name for name in listed(self.layers) if name] or ["", ""]
        label = f"{labels[0]}..{labels[-1]}"
        try:
            self._check(labels)
            layers = _in_order(op, labels)
            arch = marked_array(op, self.arch, self.name) if self.arch or mark_of(op) else None
            plans = self._plans(layers, arch, [labels.index(label_of(layer)) for layer in layers])
            if arch is not None:
                _check_glb(layers, plans, arch)
            _build(label, layers, plans)
        except Refusal as refusal:
            text = str(refusal)
            raise (
                refusal if text.startswith(self.name) else Refusal(f"{self.name}: group '{label}': {text}")
            ) from refusal

    def _check(self, labels: Sequence[str]) -> None:
        if len(set(labels)) < max(2, len(labels)):
            raise Refusal(f"{len(set(labels))} layers: a group has two or more, each once")
        if self.rows < 1:
            raise Refusal(f"stripes of {self.rows} rows: rows is at least 1")
        for name, numbers in (("delays", self.delays), ("keeps", self.keeps)):
            if len(numbers) not in (0, len(labels)):
                raise Refusal(
                    f"{name} has {len(numbers)} numbers for {len(labels)} layers: one for each, or leave it out"
                )

    def _plans(self, layers: Sequence[LayerOp], arch: Arch | None, numbers: Sequence[int]) -> list[GroupLayer]:
        """The layers of the group with their new nests, delays and rings. Raises Refusal.

        numbers: the place of each layer in the options.
        """
        names, reads = [label_of(layer) for layer in layers], [reads_of(layer, layers) for layer in layers]
        rows = stripe_rows(names, [layer.sizes.data.h for layer in layers], reads, self.rows)
        plans = list[GroupLayer]()
        for number, (layer, own) in enumerate(zip(layers, reads, strict=True)):
            leaves = not any(read.producer == number for others in reads for read in others)
            inside = {read.operand for read in own} | (set[str]() if leaves else {"output"})
            before = mapping_of(layer)
            try:
                mapping = striped(layer, before, rows[number], set(before.stages_in("glb")) - inside, arch)
                if problem := mapping_problem(mapping, layer.sizes.data, operands(layer)):
                    raise Refusal(problem)
            except Refusal as refusal:
                raise Refusal(f"layer '{names[number]}': {refusal}") from refusal
            kind, sizes = layer.kind.data, layer.sizes.data
            plans.append(GroupLayer(names[number], kind, sizes, mapping, 0, reads=own, leaves=leaves))
        plans = with_least_delays(plans)
        if self.delays:
            plans = [replace(plan, delay=self.delays[at]) for plan, at in zip(plans, numbers, strict=True)]
        plans = with_least_rings(plans, [rows_apart(layer) for layer in layers])
        if self.keeps:
            plans = [replace(plan, keeps=self.keeps[at]) for plan, at in zip(plans, numbers, strict=True)]
        if problem := group_problem(plans):
            what = [name for name, given in (("delays", self.delays), ("keeps", self.keeps)) if given]
            raise Refusal(f"{problem}{f': leave out {chr(32).join(what)} for the least' if what else ''}")
        return plans


def _chosen(module: ModuleOp) -> list[GivenGroup]:
    """The groups that the module lists in `nest.groups`, which it loses. Raises Refusal for what is no such list."""
    attribute = module.attributes.pop(GROUPS, None)
    try:
        return [] if attribute is None else groups_of(attribute)
    except ValueError as wrong:
        raise Refusal(f"nest-group: {GROUPS}: {wrong}") from wrong


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
        raise Refusal(f"layer '{label_of(wrong)}' is in a group already")
    if wrong := next((layer for layer in chosen if layer.kind.data not in KINDS), None):
        raise Refusal(
            f"layer '{label_of(wrong)}' is elementwise ({wrong.kind.data}): groups hold convolutions, pools and fully "
            f"connected layers; end the group before it"
        )
    order = {op: number for number, op in enumerate(block.ops)}
    layers = sorted(chosen, key=order.__getitem__)
    for layer in layers[:-1]:
        for use in layer.result.uses:
            if use.operation not in layers:
                raise Refusal(
                    f"the result of layer '{label_of(layer)}' is read by {_named(use.operation)}, too: a ring has its "
                    f"last rows alone; end the group at this layer, or begin it after it"
                )
    return layers


def _check_glb(layers: Sequence[LayerOp], plans: Sequence[GroupLayer], arch: Arch) -> None:
    """Rings and buffers of a group fit the GLB, if nothing else lies there. Raises Refusal."""
    rings = sum(plan.keeps * plan.sizes.w * plan.sizes.k for plan in plans)
    buffers = 0
    for layer, plan in zip(layers, plans, strict=True):
        sizes = stage_sizes(layer_shape(layer), arch, plan.mapping)
        buffers += sum(words for name, words in sizes.items() if name != "sums")
    if rings + buffers > arch.glb.words:
        raise Refusal(
            f"rings of {rings} words and buffers of {buffers} words do not fit glb.words = {arch.glb.words}: "
            f"fewer rows, fewer layers, or a larger array"
        )


def _named(op: Operation) -> str:
    return f"layer '{label_of(op)}'" if isinstance(op, LayerOp) else f"{op.name}, which is in no group"


def _build(label: str, layers: Sequence[LayerOp], plans: Sequence[GroupLayer]) -> None:
    """Move the layers into a group where the last one stands."""
    last = layers[-1]
    inside = Block()
    group = GroupOp.create(
        properties={"label": StringAttr(label)}, result_types=[last.result.type], regions=[Region(inside)]
    )
    block = last.parent_block()
    assert block is not None
    block.insert_op_before(group, last)
    last.result.replace_all_uses_with(group.outputs[0])
    for layer, plan in zip(layers, plans, strict=True):
        layer.detach()
        layer.delay, layer.prefetched, layer.mapping = IntegerAttr(plan.delay, i64), None, None
        layer.keeps = IntegerAttr(plan.keeps, i64) if plan.keeps else None
        layer.detach_region(layer.body)
        layer.add_region(build_nest(plan.mapping))
        inside.add_op(layer)
    inside.add_op(YieldOp.create(operands=[last.result]))
    follows = _next_layer(group)
    if follows is not None and not any(plan.mapping.stages_in("glb") for plan in plans):
        follows.prefetched = None  # its transfers would stand behind those at the head of the group, which has none


def _next_layer(group: GroupOp) -> LayerOp | None:
    """The layer whose operands may be prefetched in the group."""
    op = group.next_op
    while op is not None and not isinstance(op, LayerOp | GroupOp | HostOp):
        op = op.next_op
    return op if isinstance(op, LayerOp) else None
