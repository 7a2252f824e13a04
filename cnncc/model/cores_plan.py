"""Layers side by side, as the cost model knows them: groups on cores, channels between them. No IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cnncc.mapping.channels import Channel, Link, Reader, Region, image_tokens
from cnncc.mapping.liveness import CoreChainData, liveness_problem
from cnncc.model.core_steps import over_frames
from cnncc.model.group_schedule import GroupPlan


@dataclass(frozen=True)
class ChannelPlan:
    """A channel behind group number `group`, of the result of its layer number `layer`.

    keeps: rows that are written and not yet read at most.
    """

    label: str
    keeps: int
    group: int
    layer: int


@dataclass(frozen=True)
class CoresPlan:
    """Groups that run at once, frame after frame: number i on core i + 1, with its PEs. docs/cores.md has the rules.

    - reads: of each group, the layers that read the image or a channel, and how.
    - channels: those behind the first group, then those behind the second one, …
    - lag: results leave so many frames after their images come.
    - image, result: words of a frame.
    - height: rows of the image.
    """

    label: str
    lag: int
    groups: tuple[GroupPlan, ...]
    regions: tuple[Region, ...]
    reads: tuple[tuple[Reader, ...], ...]
    channels: tuple[ChannelPlan, ...]
    image: int
    result: int
    height: int

    @cached_property
    def chain(self) -> CoreChainData:
        """The cores with what leads from each to the next one."""
        groups = [plan.group for plan in self.groups]
        links = [self._link(number) for number in range(len(groups) - 1)]
        return CoreChainData(groups, links, image_tokens(groups[0], self.reads[0], self.height))

    def _link(self, number: int) -> Link:
        before, behind, channels = self.groups[number].group, self.groups[number + 1].group, list[Channel]()
        for at, own in enumerate(each for each in self.channels if each.group == number):
            readers = tuple(reader for reader in self.reads[number + 1] if reader.read.producer == at)
            channels.append(Channel(own.label, before, own.layer, behind, readers, own.keeps))
        return Link(tuple(channels))

    def of_frames(self, number: int) -> GroupPlan:
        """Group number `number` with a loop over frames around it, and with what of it lies in rings of channels."""
        plan = self.groups[number]
        group = over_frames(plan.group)
        layers = [
            replace(layer, shape=replace(layer.shape, sizes=own.sizes), mapping=own.mapping)
            for layer, own in zip(plan.layers, group, strict=True)
        ]
        reading = [reader.layer for reader in self.reads[number]] if number > 0 else []
        writing = [channel.layer for channel in self.channels if channel.group == number]
        for operand, numbers in (("ifmap", reading), ("output", writing)):
            for at in numbers:
                layers[at] = replace(layers[at], rings=layers[at].rings | {operand})
        return replace(plan, layers=tuple(layers), group=tuple(group))


def cores_plan(
    label: str,
    lag: int,
    cores: Sequence[tuple[GroupPlan, Region]],
    image_readers: Sequence[Reader],
    links: Sequence[Link],
    image: int,
    result: int,
    height: int,
) -> CoresPlan:
    """The plan of cores with these links between them. image_readers: of the first core. The rest as in the plan."""
    reads = [tuple(reader for channel in link.channels for reader in channel.readers) for link in links]
    channels = tuple(
        ChannelPlan(channel.label, channel.keeps, number, channel.writer)
        for number, link in enumerate(links)
        for channel in link.channels
    )
    groups, regions = tuple(group for group, _ in cores), tuple(region for _, region in cores)
    return CoresPlan(label, lag, groups, regions, (tuple(image_readers), *reads), channels, image, result, height)


def problem(plan: CoresPlan) -> str | None:
    """What makes a plan none; None if nothing does."""
    if not plan.groups or not len(plan.regions) == len(plan.groups) == len(plan.reads):
        return "cores are groups with their PEs, and with what they read"
    for at, (group, reads) in enumerate(zip(plan.groups, plan.reads, strict=True)):
        entries = sum(channel.group == at - 1 for channel in plan.channels) if at else 1
        if {reader.read.producer for reader in reads} != {*range(entries)} or not entries:
            return f"layers of {group.label} read the image, or all channels before it"
        numbers = [reader.layer for reader in reads] + [each.layer for each in plan.channels if each.group == at]
        if not all(0 <= number < len(group.group) for number in numbers):
            return f"a channel names a layer that {group.label} does not have"
    if any(keeps.keeps < 1 for keeps in plan.channels) or plan.lag < 1 or min(plan.image, plan.result, plan.height) < 1:
        return "lag, keeps and words of frames are positive"
    if any(layer.sizes.n > 1 or layer.is_load for group in plan.groups for layer in group.group):
        return "layers of cores have one image, and load no rows"
    return liveness_problem(plan.chain)
