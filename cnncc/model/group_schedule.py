"""The program of a group as records of a timeline, from its layers' shapes and mappings alone. No IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.mapping.channels import CoreEnds
from cnncc.mapping.groups import GroupLayer
from cnncc.model.core_steps import waits_on_core
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.group_steps import GroupBody, Section, first_runs, group_bodies, transfer_order, waits_for_weights
from cnncc.model.layer_schedule import ChannelNotes, LayerPlan, LayerSchedule, ScheduleWalk
from cnncc.model.layer_shape import whole
from cnncc.model.loop_walk import WalkPosition
from cnncc.model.occupancy import transfer
from cnncc.model.timed_program import (
    ARRAY,
    COMMIT,
    DMA,
    LOAD,
    Node,
    SequencerCycles,
    Task,
    TimedLoop,
    Wait,
    repeat,
    settings,
)

OF_LOAD = 4  # descriptors in DRAM and of the ring, each with a step from stripe to stripe


@dataclass(frozen=True)
class GroupPlan:
    """A group: those of its layers that compute as plans of their own, and all in `group`. drains: see `LayerPlan`."""

    label: str
    layers: tuple[LayerPlan, ...]
    group: tuple[GroupLayer, ...]
    drains: bool = True

    @property
    def plans(self) -> Iterator[tuple[GroupLayer, LayerPlan | None]]:
        """All layers, with None for the plan of a load."""
        plans = iter(self.layers)
        return ((layer, None if layer.is_load else next(plans)) for layer in self.group)

    @property
    def begins_with_transfers(self) -> bool:
        """Whether all that it writes to the GLB waits for a transfer of activations."""
        _, first = list(self.plans)[first_runs(self.group)[0]]
        return first is None or not first.mapping.glb_stages.keys().isdisjoint({"ifmap", "residual"})


def group_plan(label: str, plans: Sequence[LayerPlan], group: Sequence[GroupLayer]) -> GroupPlan:
    """The plan of a group, in which each layer knows what of its operands lies in rings. plans: of all but loads."""
    rings = [
        frozenset({read.operand for read in layer.reads} | ({"output"} if layer.keeps else set[str]()))
        for layer in group
        if not layer.is_load
    ]
    firsts = [layer.first for layer in group if not layer.is_load]
    layers = [replace(plan, rings=kept, first=first) for plan, kept, first in zip(plans, rings, firsts, strict=True)]
    return GroupPlan(label, tuple(layers), tuple(group))


def group_schedule(plan: GroupPlan, arch: Arch, full: Semaphore) -> LayerSchedule:
    """The program of a group that `nest-to-array` accepts. full: the semaphore of its weights."""
    streams = any("output" in layer.mapping.glb_stages for layer in plan.layers)
    wait = Wait((LOAD, ARRAY, COMMIT, *((DMA,) if plan.drains and streams else ())))
    return LayerSchedule((*_GroupWalk(plan, arch, full).nodes(), wait), ())


def bodies_of(plan: GroupPlan, arch: Arch) -> tuple[GroupBody, ...]:
    """The bodies of one image of a group (GROUP-5)."""
    return _GroupWalk(plan, arch, Semaphore.FULL).bodies


class CoreSchedule(NamedTuple):
    """The program of a group on a core: what core 0 brings for it, layer by layer, and its loop over frames.

    waits: whether it waits for weights.
    """

    transfers: tuple[tuple[Task, ...], ...]
    frames: TimedLoop
    waits: bool


def core_schedule(
    plan: GroupPlan, arch: Arch, ends: CoreEnds, notes: Sequence[ChannelNotes], frames: int
) -> CoreSchedule:
    """The program of a group of layers over frames, of which there are so many. arch: as the core sees it."""
    walk = _GroupWalk(plan, arch, Semaphore.FULL, ends, notes)
    loop = walk.frames(frames)
    return CoreSchedule(tuple(walk.heads()), loop, any(walk.waits))


def core_alone(plan: GroupPlan, arch: Arch) -> tuple[Node, ...]:
    """The program of a group on a core as if it had no channels: images lie in the GLB, and there is space for results.

    Its transfers come first, by a DMA of its own.
    """
    walk = _GroupWalk(plan, arch, Semaphore.FULL, on_core=True)
    return (*walk.nodes(), Wait((LOAD, ARRAY, COMMIT)))


class _GroupWalk:
    """One group; the fields are fixed at the start.

    on_core: whether it runs on a core. ends: its tokens there, if it has channels. notes: of its layers.
    """

    def __init__(
        self,
        plan: GroupPlan,
        arch: Arch,
        full: Semaphore,
        ends: CoreEnds | None = None,
        notes: Sequence[ChannelNotes] = (),
        on_core: bool = False,
    ) -> None:
        self.group = plan.group
        self.depth, self.images = plan.group[0].depth, plan.group[0].sizes.n
        self.waits = waits_on_core(plan.group) if on_core or ends is not None else waits_for_weights(plan.group)
        self.arch, self.walks = arch, dict[int, ScheduleWalk]()
        for number, ((_, layer), waits) in enumerate(zip(plan.plans, self.waits, strict=True)):
            if layer is not None:
                self.walks[number] = ScheduleWalk(layer, arch, full if waits else Semaphore.NONE)
        self.prefetches = [
            number in self.walks and bool(self.walks[number].transfers.depths) for number in range(len(plan.group))
        ]
        self.bodies = group_bodies(plan.group, self.prefetches, ends)
        for number, own in enumerate(notes):
            self.walks[number].notes = own

    def frames(self, count: int) -> TimedLoop:
        """The loop over so many frames."""
        image = self._image(0, self.images, True)
        return repeat(count, 1, tuple(self._with_views(image)), over_frames=True)

    def heads(self) -> list[tuple[Task, ...]]:
        """The first transfers of each layer that has some."""
        return [tuple(self.walks[number].head()) for number in self._heads()]

    def _heads(self) -> list[int]:
        """The layers that begin with transfers, in their order."""
        order = transfer_order(self.group, self.waits, self.prefetches)
        return [number for number in order if self.walks[number].head()]

    def nodes(self) -> list[Node]:
        """The program without its `sync`."""
        # At the end of the last image no stripe is left to prefetch: it is a piece of its own then.
        pieces = [(self.images, True)] if self.depth == 1 or not any(self.prefetches) else []
        pieces = pieces or [(self.images - 1, False), (1, True)]
        # The descriptors of a layer are known when all its stripes have been walked through.
        walked = [self._image(number, *piece) for number, piece in enumerate(pieces)]
        heads = [node for number in self._heads() for node in (self.walks[number].views(), *self.walks[number].head())]
        images = [self._with_views(image) for image in walked]
        if self.depth == 1:
            return [*heads, *images[0]]
        loops = zip(pieces, images, strict=True)
        return [*heads, *(repeat(count, 1, tuple(image)) for (count, _), image in loops)]

    def _with_views(self, image: list[list[list[Node]]]) -> list[Node]:
        """The bodies of an image as loops; each section begins with descriptors and settings."""
        result: list[Node] = []
        for body, sections in zip(self.bodies, image, strict=True):
            own = zip(body.sections, sections, strict=True)
            nodes = [node for section, rest in own for node in (*self._set(section.layer), *rest)]
            result.append(repeat(body.steps, 1 << self.depth - 1, tuple(nodes)))
        return result

    def _set(self, number: int) -> list[Node]:
        """The descriptors and settings of a section."""
        if number in self.walks:
            return [self.walks[number].views(), *settings(self.walks[number].shape.table)]
        return [SequencerCycles(OF_LOAD + self.depth - 1)]  # a step from image to image in DRAM

    def _image(self, number: int, count: int, is_last: bool) -> list[list[list[Node]]]:
        """The nodes of each body's sections in a piece of the images."""
        bit = 1 if self.depth > 1 else 0
        masks = bit * (count > 1), bit * (number > 0), bit * (not is_last)
        return [[self._section(body, section, masks) for section in body.sections] for body in self.bodies]

    def _section(self, body: GroupBody, section: Section, masks: tuple[int, int, int]) -> list[Node]:
        layer, bit = self.group[section.layer], 1 << self.depth - 1
        if layer.is_load:
            words, tokens = layer.sizes.k * section.rows * layer.sizes.w, section.tokens
            return [transfer("activations", words, self.arch, tokens.takes, tokens.gives)]
        repeated, past_first, before_last = masks
        # Behind the last stripe of an image comes the first one of the next image.
        rows = section.following or (layer.stripes.rows_of(0) if repeated or before_last else 0)
        following = {self.depth: self._at(section.layer, rows)} if self.prefetches[section.layer] and rows else {}
        at = self._at(section.layer, section.rows)._replace(
            repeated=repeated | bit * (body.steps > 1),
            past_first=past_first | bit * (section.stripe > 0),
            before_last=before_last | bit * (section.stripe + body.steps < layer.stripes.count),
            following=following,
        )
        return self.walks[section.layer].section(at, section.tokens)

    def _at(self, number: int, rows: int) -> WalkPosition:
        return WalkPosition({**whole(self.walks[number].shape.sizes), "n": 1, "h": rows})
