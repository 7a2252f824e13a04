"""Layers side by side, as the cost model knows them: groups on cores, channels between them. No IR."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from cnncc.dialects._channels import Channel, Region
from cnncc.dialects._groups import Read
from cnncc.model.core_steps import channel_ends, over_frames
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.group_steps import ChannelEnds


@dataclass(frozen=True)
class ChannelPlan:
    """A channel: at most `keeps` rows are written and not yet read."""

    label: str
    keeps: int


@dataclass(frozen=True)
class CoresPlan:
    """Groups that run at once, frame after frame: number i on core i + 1, with its PEs. docs/cores.md has the rules.

    - reads: how the first layer of each group reads the image, or the channel before it
    - channels: number i leads from group i to group i + 1
    - lag: frames by which results leave behind the images that come
    - image, result: words of a frame
    - height: rows of the image
    """

    label: str
    lag: int
    groups: tuple[GroupPlan, ...]
    regions: tuple[Region, ...]
    reads: tuple[Read, ...]
    channels: tuple[ChannelPlan, ...]
    image: int
    result: int
    height: int

    @cached_property
    def rings(self) -> list[Channel]:
        """The channels with the layers at their ends."""
        ends = zip(self.channels, self.groups[:-1], self.groups[1:], self.reads[1:], strict=True)
        return [Channel(own.label, one.group[-1], other.group[0], read, own.keeps) for own, one, other, read in ends]

    @cached_property
    def ends(self) -> list[ChannelEnds]:
        """The tokens of the two channels of each group."""
        return channel_ends([plan.group for plan in self.groups], self.rings, self.reads[0], self.height)

    def of_frames(self, number: int) -> GroupPlan:
        """Group number `number` with a loop over frames around it, and with what of it lies in rings of channels."""
        plan = self.groups[number]
        group = over_frames(plan.group)
        layers = [
            replace(layer, shape=replace(layer.shape, sizes=own.sizes), mapping=own.mapping)
            for layer, own in zip(plan.layers, group, strict=True)
        ]
        if number > 0:
            layers[0] = replace(layers[0], rings=layers[0].rings | {"ifmap"})
        if number < len(self.groups) - 1:
            layers[-1] = replace(layers[-1], rings=layers[-1].rings | {"output"})
        return replace(plan, layers=tuple(layers), group=tuple(group))


def problem(plan: CoresPlan) -> str | None:
    """What makes a plan none; None if nothing does."""
    if not plan.groups or len(plan.regions) != len(plan.groups) or len(plan.channels) != len(plan.groups) - 1:
        return "cores are groups with their PEs, and a channel between neighbours"
    if any(keeps.keeps < 1 for keeps in plan.channels) or plan.lag < 1 or min(plan.image, plan.result, plan.height) < 1:
        return "lag, keeps and words of frames are positive"
    if any(layer.sizes.n > 1 or layer.is_load for group in plan.groups for layer in group.group):
        return "layers of cores have one image, and load no rows"
    return None
