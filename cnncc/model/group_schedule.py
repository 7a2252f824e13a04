"""The program of a group as records of a timeline, from its layers' shapes and mappings alone. No IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cnncc.arch.model import Arch
from cnncc.dialects._groups import GroupLayer
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.group_steps import GroupBody, Section, StripeTokens, first_runs, group_bodies, waits_for_weights
from cnncc.model.layer_schedule import LayerPlan, LayerSchedule, ScheduleWalk
from cnncc.model.layer_shape import whole
from cnncc.model.loop_walk import At
from cnncc.model.timed_program import ARRAY, COMMIT, DMA, LOAD, SETTINGS, Node, Wait, repeat


@dataclass(frozen=True)
class GroupPlan:
    """A group: its layers as plans of their own, and their delays and rings. drains: as of a `LayerPlan`."""

    label: str
    layers: tuple[LayerPlan, ...]
    group: tuple[GroupLayer, ...]
    drains: bool = True

    @property
    def first(self) -> LayerPlan:
        """The layer that runs first."""
        return self.layers[first_runs(self.group)[0]]


def group_plan(label: str, plans: Sequence[LayerPlan], group: Sequence[GroupLayer]) -> GroupPlan:
    """The plan of a group, in which each layer knows what of its operands lies in rings."""
    rings = [
        frozenset({read.operand for read in layer.reads} | ({"output"} if layer.keeps else set[str]()))
        for layer in group
    ]
    layers = [replace(plan, rings=kept) for plan, kept in zip(plans, rings, strict=True)]
    return GroupPlan(label, tuple(layers), tuple(group))


def group_schedule(plan: GroupPlan, arch: Arch, full: Semaphore = Semaphore.FULL) -> LayerSchedule:
    """The program of a group that `nest-to-array` accepts. full: the semaphore of its weights."""
    streams = any("output" in layer.mapping.stages_in("glb") for layer in plan.layers)
    wait = Wait((LOAD, ARRAY, COMMIT, *((DMA,) if plan.drains and streams else ())))
    return LayerSchedule((*_GroupWalk(plan, arch, full).nodes(), wait), ())


class _GroupWalk:
    """One group; the fields are fixed at the start."""

    def __init__(self, plan: GroupPlan, arch: Arch, full: Semaphore) -> None:
        self.group, self.order = plan.group, first_runs(plan.group)
        self.depth, self.images = plan.group[0].depth, plan.group[0].sizes.n
        self.waits = waits_for_weights(plan.group)
        self.walks = [
            ScheduleWalk(layer, arch, full if waits else Semaphore.NONE)
            for layer, waits in zip(plan.layers, self.waits, strict=True)
        ]
        self.prefetches = [bool(walk.transfers.depths) for walk in self.walks]
        self.bodies = group_bodies(plan.group, self.prefetches)

    def nodes(self) -> list[Node]:
        """The program without its `sync`."""
        pieces = [(self.images, True)] if self.depth == 1 or not any(self.prefetches) else []
        pieces = pieces or [(self.images - 1, False), (1, True)]
        # The descriptors of a layer are known when all its stripes have been walked through.
        walked = [self._image(number, *piece) for number, piece in enumerate(pieces)]
        heads: list[Node] = []
        for number in sorted(self.order, key=lambda number: self.waits[number]):
            firsts = self.walks[number].head()
            heads += [self.walks[number].views(), *firsts] if firsts else []
        images = [self._with_views(image) for image in walked]
        if self.depth == 1:
            return [*heads, *images[0]]
        loops = zip(pieces, images, strict=True)
        return [*heads, *(repeat(count, 1, tuple(image)) for (count, _), image in loops)]

    def _with_views(self, image: list[tuple[int, list[tuple[int, list[Node]]]]]) -> list[Node]:
        """The bodies of an image as loops; each section begins with descriptors and settings."""
        result: list[Node] = []
        for steps, sections in image:
            body = [node for layer, nodes in sections for node in (self.walks[layer].views(), SETTINGS, *nodes)]
            result.append(repeat(steps, 1 << self.depth - 1, tuple(body)))
        return result

    def _image(self, number: int, count: int, is_last: bool) -> list[tuple[int, list[tuple[int, list[Node]]]]]:
        """(steps, sections) of each body in a piece of the images; a section: (layer, its nodes)."""
        bit = 1 if self.depth > 1 else 0
        masks = bit * (count > 1), bit * (number > 0), bit * (not is_last)
        return [
            (body.steps, [(section.layer, self._section(body, section, masks)) for section in body.sections])
            for body in self.bodies
        ]

    def _section(self, body: GroupBody, section: Section, masks: tuple[int, int, int]) -> list[Node]:
        layer, bit = self.group[section.layer], 1 << self.depth - 1
        repeated, past_first, before_last = masks
        rows = section.following or (layer.stripe_rows(0) if repeated or before_last else 0)
        following = {self.depth: self._at(section.layer, rows)} if self.prefetches[section.layer] and rows else {}
        at = self._at(section.layer, section.rows)._replace(
            repeated=repeated | bit * (body.steps > 1),
            past_first=past_first | bit * (section.stripe > 0),
            before_last=before_last | bit * (section.stripe + body.steps < layer.stripes),
            following=following,
        )
        return self.walks[section.layer].section(at, StripeTokens(self.depth, section.takes, section.gives))

    def _at(self, number: int, rows: int) -> At:
        return At({**whole(self.walks[number].shape.sizes), "n": 1, "h": rows})
