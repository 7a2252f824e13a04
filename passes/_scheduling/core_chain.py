"""Layers side by side on cores, with the nests of their stripes: plans, words in the GLB, the op. No pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir import Region as IrRegion

from cnncc.arch.model import Arch
from cnncc.dialects._channels import channel_problem, regions_problem
from cnncc.dialects._liveness import Chain, liveness_problem
from cnncc.dialects.nest import (
    Channel,
    ChannelOp,
    CoresOp,
    LayerOp,
    Region,
    RegionAttr,
    YieldOp,
    image_shape,
    reads_of_values,
)
from cnncc.model.core_steps import buffers
from cnncc.model.cores_plan import ChannelPlan, CoresPlan
from cnncc.passes._scheduling.layer_groups import LayerGroup, group_op, ring_words
from cnncc.passes._scheduling.nest_layers import label_of

Bank = tuple[str, str]  # the engine that reads the words of a bank, and the one that writes them (CORE-5)
DMA = "dma"


@dataclass(frozen=True)
class CorePlan:
    """A core: its PEs, and its layers stripe by stripe."""

    region: Region
    group: LayerGroup

    @property
    def label(self) -> str:
        """The names of its layers: `pool1..conv2`, or `conv0`."""
        return span([label_of(layer) for layer in self.group.layers])


def span(labels: Sequence[str]) -> str:
    """What stands for some layers in a row: the first and the last."""
    return labels[0] if len(labels) == 1 else f"{labels[0]}..{labels[-1]}"


@dataclass(frozen=True)
class CoreChain:
    """Cores in the order of the layers. keeps: rows of the channel behind each core but the last."""

    cores: tuple[CorePlan, ...]
    keeps: tuple[int, ...]
    lag: int = 1

    @property
    def channels(self) -> list[Channel]:
        """The channels as plain data."""
        pairs = zip(pairwise(core.group for core in self.cores), self.keeps, strict=True)
        return [channel_between(*groups, keeps) for groups, keeps in pairs]

    def plan(self) -> CoresPlan:
        """As the cost model takes it."""
        groups = [core.group for core in self.cores]
        firsts = [group.layers[0] for group in groups]
        _, _, height, _ = image_shape(firsts[0].ifmap.type)
        return CoresPlan(
            span([core.label for core in self.cores]),
            self.lag,
            tuple(group.plan() for group in groups),
            tuple(core.region for core in self.cores),
            tuple(reads_of_values(first, [first.ifmap])[0] for first in firsts),
            tuple(ChannelPlan(channel.label, channel.keeps) for channel in self.channels),
            _words(firsts[0].ifmap),
            _words(groups[-1].layers[-1].result),
            height,
        )

    def problem(self, arch: Arch) -> str | None:
        """What keeps an array from running the chain; None if nothing does."""
        regions = [(core.label, core.region) for core in self.cores]
        return (
            regions_in_array_problem(regions, arch)
            or next(filter(None, map(channel_problem, self.channels)), None)
            or liveness_problem(Chain([core.group.plans for core in self.cores], self.channels, self.lag))
            or self._two_readers()
            or self._banks_problem(arch)
        )

    def _two_readers(self) -> str | None:
        """Which ring two engines would read: a bank has one reader (CORE-5)."""
        for core in self.cores:
            for layer in core.group.layers:
                if _is_residual(layer) and any(_loads(use.operation, layer) for use in layer.result.uses):
                    return (
                        f"core {core.label}: the result of layer {label_of(layer)} is read as an ifmap and as a "
                        f"residual: a load and a commit would read its bank of the GLB, one engine does (CORE-5): run "
                        f"the network layer by layer"
                    )
        return None

    def bank_words(self, arch: Arch) -> dict[Bank, dict[str, int]]:
        """The words that an engine reads and another one writes, by these two, then by name."""
        engines = [(f"load {number}", f"commit {number}") for number in range(1, len(self.cores) + 1)]
        words: dict[Bank, dict[str, int]] = {}

        def add(reader: str, writer: str, what: str, size: int) -> None:
            if size:
                words.setdefault((reader, writer), {})[what] = size

        first, last = self.cores[0].group.layers[0].ifmap, self.cores[-1].group.layers[-1].result
        add(engines[0][0], DMA, "images", buffers(self.lag) * _words(first))
        for core, (load, commit) in zip(self.cores, engines, strict=True):
            group = core.group
            for layer, plan, sizes in zip(group.layers, group.plans, group.buffers(arch), strict=True):
                add(load, DMA, f"{plan.label} weights", sizes.get("weight", 0))
                add(commit, DMA, f"{plan.label} params", sizes.get("params", 0))
                add(commit, commit, f"{plan.label} sums", sizes.get("sums", 0))
                reader = commit if _is_residual(layer) else load
                add(reader, commit, f"{plan.label} ring", ring_words(plan))
        for number, channel in enumerate(self.channels):
            sizes = channel.producer.sizes
            words_of_ring = channel.ring * sizes.w * sizes.k
            add(engines[number + 1][0], engines[number][1], f"{channel.label} channel", words_of_ring)
        add(DMA, engines[-1][1], "results", buffers(self.lag) * _words(last))
        return words

    def _banks_problem(self, arch: Arch) -> str | None:
        size, pools = arch.glb.words // arch.glb.banks, self.bank_words(arch)
        banks = {bank: -(-sum(words.values()) // size) for bank, words in pools.items()}
        if (needed := sum(banks.values())) <= arch.glb.banks:
            return None
        total = sum(sum(words.values()) for words in pools.values())
        most = sorted(((words, name) for pool in pools.values() for name, words in pool.items()), reverse=True)[:3]
        largest = ", ".join(f"{name} {words}" for words, name in most)
        return (
            f"{total} words of the GLB in {needed} banks of {size} words, {arch.name} has {arch.glb.banks} "
            f"(glb.banks, CORE-5), glb.words = {arch.glb.words}; the largest are {largest}: fewer rows in stripes or "
            f"channels, or a larger GLB"
        )


def _words(value: SSAValue) -> int:
    """Words of a value of one image."""
    _, channels, rows, cols = image_shape(value.type)
    return channels * rows * cols


def _is_residual(layer: LayerOp) -> bool:
    """Whether the commit engine reads the result of a layer: another layer has it as its residual."""
    return any(isinstance(op := use.operation, LayerOp) and op.residual is layer.result for use in layer.result.uses)


def _loads(op: Operation, layer: LayerOp) -> bool:
    return isinstance(op, LayerOp) and op.ifmap is layer.result


def channel_between(group: LayerGroup, following: LayerGroup, keeps: int = 0) -> Channel:
    """The channel between two cores; without `keeps` with the fewest rows."""
    (read,) = reads_of_values(following.layers[0], [group.layers[-1].result])
    channel = Channel(group.plans[-1].label, group.plans[-1], following.plans[0], read, keeps)
    return channel if keeps else replace(channel, keeps=min(channel.least, channel.height))


def regions_in_array_problem(regions: Sequence[tuple[str, Region]], arch: Arch) -> str | None:
    """Which cores do not fit the array, or share too many buses, by their labels; None if none do."""
    if len(regions) + 1 > arch.cores.most:
        return (
            f"{len(regions)} cores with PEs and one for the DRAM, {arch.name} has {arch.cores.most} "
            f"(cores.most, CORE-1): more layers on a core, or another array"
        )
    for label, region in regions:
        if region.row0 + region.rows > arch.rows or region.col0 + region.cols > arch.cols:
            where = f"{region.rows} x {region.cols} PEs from {region.row0},{region.col0} on"
            return f"core {label} has {where}, {arch.name} has {arch.rows} x {arch.cols} (CORE-1)"
    if problem := regions_problem(regions):
        return problem
    for axis, count in _crowded(regions):
        if count > arch.cores.buses:
            return f"{count} cores share {axis}, {arch.name} has buses for {arch.cores.buses} (cores.buses, CORE-5)"
    return None


def _crowded(regions: Sequence[tuple[str, Region]]) -> Iterator[tuple[str, int]]:
    """Each row and column of PEs with its number of cores."""
    rows = Counter(row for _, place in regions for row in range(place.row0, place.row0 + place.rows))
    cols = Counter(col for _, place in regions for col in range(place.col0, place.col0 + place.cols))
    yield from ((f"row {row}", count) for row, count in rows.items())
    yield from ((f"column {col}", count) for col, count in cols.items())


def cores_op(chain: CoreChain) -> CoresOp:
    """Moves the layers into `nest.cores`, which stands where the last one stood."""
    last, inside = chain.cores[-1].group.layers[-1], Block()
    label = span([label_of(layer) for core in chain.cores for layer in core.group.layers])
    cores = CoresOp.create(
        properties={"label": StringAttr(label), "lag": IntegerAttr(chain.lag, i64)},
        result_types=[last.result.type],
        regions=[IrRegion(inside)],
    )
    block = last.parent_block()
    assert block is not None
    block.insert_op_after(cores, last)
    last.result.replace_all_uses_with(cores.outputs[0])
    channels = [*chain.channels, None]
    for core, channel in zip(chain.cores, channels, strict=True):
        group = group_op(core.label, core.group)
        group.place = RegionAttr(core.region)
        group.detach()
        inside.add_op(group)
        if channel is None:
            inside.add_op(YieldOp.create(operands=[group.outputs[0]]))
        else:
            properties = {"label": StringAttr(channel.label), "keeps": IntegerAttr(channel.keeps, i64)}
            value = group.outputs[0]
            op = ChannelOp.create(operands=[value], properties=properties, result_types=[value.type])
            value.replace_all_uses_with(op.result)
            op.operands[0] = value
            inside.add_op(op)
    return cores
