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

    - channels: number i leads from group i to group i + 1
    - lag: frames by which results leave behind the images that come
    - image, result: words of a frame
    """

    label: str
    lag: int
    groups: tuple[GroupPlan, ...]
    regions: tuple[Region, ...]
    channels: tuple[ChannelPlan, ...]
    image: int
    result: int

    @cached_property
    def rings(self) -> list[Channel]:
        """The channels with the layers at their ends."""
        ends = zip(self.channels, self.groups[:-1], self.groups[1:], strict=True)
        return [
            Channel(own.label, one.group[-1], other.group[0], reads_from_outside(other), own.keeps)
            for own, one, other in ends
        ]

    @cached_property
    def ends(self) -> list[ChannelEnds]:
        """The tokens of the two channels of each group."""
        layers, first = [plan.group for plan in self.groups], self.groups[0]
        return channel_ends(layers, self.rings, reads_from_outside(first), first.layers[0].shape.ih)

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


def reads_from_outside(plan: GroupPlan) -> Read:
    """How the first layer of a group reads the image, or the channel before it."""
    window, kernel = plan.layers[0].shape.window, plan.layers[0].shape.sizes.r
    return Read(0, "ifmap", (kernel - 1) * window.dilation[0] + 1, window.stride[0], window.pad[0])


def problem(plan: CoresPlan) -> str | None:
    """What makes a plan none; None if nothing does."""
    if not plan.groups or len(plan.regions) != len(plan.groups) or len(plan.channels) != len(plan.groups) - 1:
        return "cores are groups with their PEs, and a channel between neighbours"
    if any(keeps.keeps < 1 for keeps in plan.channels) or plan.lag < 1 or min(plan.image, plan.result) < 1:
        return "lag, keeps and words of frames are positive"
    if any(layer.sizes.n > 1 or layer.is_load for group in plan.groups for layer in group.group):
        return "layers of cores have one image, and load no rows"
    return None
