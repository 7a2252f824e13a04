"""Layers side by side on cores, with the nests of their stripes: plans, words in the GLB, the op. No pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Block, SSAValue
from xdsl.ir import Region as IrRegion
from xdsl.rewriter import InsertPoint, Rewriter

from cnncc.arch.model import Arch
from cnncc.dialects.nest import ChannelOp, CoresOp, LayerOp, RegionAttr, YieldOp, image_shape, reads_of_values
from cnncc.errors import plural
from cnncc.mapping.channels import (
    BUFFERS,
    Channel,
    Link,
    Reader,
    Region,
    buffers,
    channel_problem,
    image_tokens,
    regions_problem,
)
from cnncc.mapping.liveness import CoreChainData, liveness_problem, longer_channels
from cnncc.model.cores_plan import CoresPlan, cores_plan
from cnncc.passes._scheduling.core_parts import CorePart
from cnncc.passes._scheduling.layer_groups import LayerGroup, group_op, ring_words
from cnncc.passes._scheduling.nest_layers import label_of
from cnncc.passes._scheduling.schedule_file import GivenCore

Bank = tuple[str, str]  # the engine that reads a bank, and the engine that writes it (CORE-5)
DMA = "dma"


@dataclass(frozen=True)
class CorePlan:
    """A core: its PEs, its layers, and these stripe by stripe."""

    region: Region
    part: CorePart
    group: LayerGroup

    @property
    def label(self) -> str:
        """The names of its layers: `pool1..conv2`, or `conv0`."""
        return span(self.part.labels)

    def readers(self, value: SSAValue, number: int = 0) -> tuple[Reader, ...]:
        """How its layers read a value of the graph, which is number `number` of those before it."""
        entry = self.part.block.args[self.part.entries.index(value)]
        reads = [(at, reads_of_values(layer, [entry])) for at, layer in enumerate(self.group.layers)]
        return tuple(Reader(at, replace(read, producer=number)) for at, own in reads for read in own)


def span(labels: Sequence[str]) -> str:
    """What stands for some layers in a row: the first and the last."""
    return labels[0] if len(labels) == 1 else f"{labels[0]}..{labels[-1]}"


@dataclass(frozen=True)
class CoreChain:
    """Cores in the order of the layers. keeps: rows of all channels, in the order of the cores that write them."""

    cores: tuple[CorePlan, ...]
    keeps: tuple[int, ...]
    lag: int = 1

    @classmethod
    def with_fewest_rows(cls, cores: Sequence[CorePlan], lag: int = 1) -> CoreChain:
        """With channels of the fewest rows with which the cores go on."""
        chain = cls(tuple(cores), (0,) * sum(len(core.part.leaving) for core in cores[:-1]), lag)
        chain = replace(chain, keeps=tuple(min(each.least, each.height) for each in chain.channels))
        # CHANNEL-5: a single channel of the fewest rows between two cores always goes on.
        if any(len(link.channels) > 1 for link in chain.as_data.links):
            chain = chain._alive()
        return chain

    def _alive(self) -> CoreChain:
        """With more rows, where channels between the same two cores need these."""
        chain = self.as_data
        if not chain.stuck():
            return self
        if longer := longer_channels(chain):
            chain = chain.with_keeps(*longer[0])
        else:
            # No single channel frees the cores. With all rows they go on; then each has as few as the others allow.
            least = {each.label: each.keeps for each in chain.channels}
            for channel in chain.channels:
                chain = chain.with_keeps(channel.label, channel.height)
            for label, rows in least.items():
                low, high = rows, next(each.height for each in chain.channels if each.label == label)
                while low < high:
                    middle = (low + high) // 2
                    low, high = (middle + 1, high) if chain.with_keeps(label, middle).stuck() else (low, middle)
                chain = chain.with_keeps(label, high)
        return replace(self, keeps=tuple(channel.keeps for channel in chain.channels))

    @property
    def options(self) -> list[GivenCore]:
        """The cores as a schedule file has them, with the delays that are the best.

        Channels between the same two cores have one number of rows there.
        """
        keeps, given = iter(self.keeps), list[GivenCore]()
        for core in self.cores:
            region = core.region
            place = f"{region.rows}x{region.cols}@{region.row0},{region.col0}"
            behind = max((next(keeps) for _ in core.part.leaving), default=0)  # nothing leaves the last core
            given.append(GivenCore(tuple(core.part.labels), place, core.group.plans[-1].rows, (), behind))
        return given

    @cached_property
    def as_data(self) -> CoreChainData:
        """As plain data."""
        links, keeps, plans = list[Link](), iter(self.keeps), [core.group.plans for core in self.cores]
        for core, behind in pairwise(self.cores):
            writers = [number for number, plan in enumerate(core.group.plans) if plan.leaves]
            channels = [
                Channel(
                    core.group.plans[writer].label, core.group.plans, writer, behind.group.plans,
                    behind.readers(value, number), next(keeps),
                )
                for number, (writer, value) in enumerate(zip(writers, core.part.leaving, strict=True))
            ]  # fmt: skip
            links.append(Link(tuple(channels)))
        image = self.cores[0].part.entries[0]
        tokens = image_tokens(plans[0], self.cores[0].readers(image), image_shape(image.type)[2])
        return CoreChainData(plans, links, tokens)

    @property
    def channels(self) -> list[Channel]:
        """The channels as plain data."""
        return self.as_data.channels

    def plan(self) -> CoresPlan:
        """As the cost model takes it."""
        (image,) = self.cores[0].part.entries
        return cores_plan(
            span([core.label for core in self.cores]),
            self.lag,
            [(core.group.plan(), core.region) for core in self.cores],
            self.cores[0].readers(image),
            self.as_data.links,
            _words(image),
            _words(self.cores[-1].group.layers[-1].result),
            image_shape(image.type)[2],
        )

    def problem(self, arch: Arch) -> str | None:
        """What keeps an array from running the chain; None if nothing does."""
        regions = [(core.label, core.region) for core in self.cores]
        remedy = "a smaller lag, " * (self.lag > BUFFERS) + "fewer rows in stripes or channels, or a larger GLB"
        return (
            regions_in_array_problem(regions, arch)
            or next(filter(None, map(channel_problem, self.channels)), None)
            or liveness_problem(self.as_data)
            or self.banks_problem(arch, remedy)
        )

    def bank_words(self, arch: Arch) -> dict[Bank, dict[str, int]]:
        """The words that an engine reads and another one writes, by these two, then by name."""
        engines = [(f"load {number}", f"commit {number}") for number in range(1, len(self.cores) + 1)]
        words: dict[Bank, dict[str, int]] = {}

        def add(reader: str, writer: str, what: str, size: int) -> None:
            if size:
                words.setdefault((reader, writer), {})[what] = size

        add(engines[0][0], DMA, "images", buffers(self.lag) * _words(self.cores[0].part.entries[0]))
        for core, (load, commit) in zip(self.cores, engines, strict=True):
            group = core.group
            for layer, plan, sizes in zip(group.layers, group.plans, group.buffers(arch), strict=True):
                add(load, DMA, f"{plan.label} weights", sizes.get("weight", 0))
                add(commit, DMA, f"{plan.label} params", sizes.get("params", 0))
                add(commit, commit, f"{plan.label} sums", sizes.get("sums", 0))
                reader = commit if _is_residual(layer) else load
                add(reader, commit, f"{plan.label} ring", ring_words(plan))
        for (_, commit), (load, _), link in zip(engines, engines[1:], self.as_data.links, strict=False):
            for channel in link.channels:
                sizes = channel.producer.sizes
                add(load, commit, f"{channel.label} channel", channel.ring * sizes.w * sizes.k)
        add(DMA, engines[-1][1], "results", buffers(self.lag) * _words(self.cores[-1].group.layers[-1].result))
        return words

    def banks(self, arch: Arch) -> int:
        """The banks that all tensors take."""
        size = arch.glb.bank_words
        return sum(-(-sum(words.values()) // size) for words in self.bank_words(arch).values())

    def banks_problem(self, arch: Arch, remedy: str) -> str | None:
        """If tensors take more banks than there are, which ones take the most words; and the remedy."""
        size, pools = arch.glb.bank_words, self.bank_words(arch)
        if (needed := self.banks(arch)) <= arch.glb.banks:
            return None
        total = sum(sum(words.values()) for words in pools.values())
        most = sorted(((words, name) for pool in pools.values() for name, words in pool.items()), reverse=True)[:3]
        largest = ", ".join(f"{name} {words:,}" for words, name in most)
        return (
            f"{total:,} words of the GLB in {needed:,} banks of {size:,} words, {arch.name} has {arch.glb.banks} "
            f"(glb.banks, CORE-5), glb.words = {arch.glb.words:,}; the largest are {largest}: {remedy}"
        )


def _words(value: SSAValue) -> int:
    """Words of a value of one image."""
    _, channels, rows, cols = image_shape(value.type)
    return channels * rows * cols


def _is_residual(layer: LayerOp) -> bool:
    """Whether the commit engine reads the result of a layer: another layer has it as its residual."""
    return any(isinstance(op := use.operation, LayerOp) and op.residual is layer.result for use in layer.result.uses)


def regions_in_array_problem(regions: Sequence[tuple[str, Region]], arch: Arch) -> str | None:
    """Which cores do not fit the array, or share too many buses, by their labels; None if none do."""
    if len(regions) + 1 > arch.cores.most:
        return (
            f"{plural(len(regions), 'core')} with PEs and one for the DRAM, {arch.name} has {arch.cores.most} "
            f"(cores.most, CORE-1): {'more layers on a core, or ' if arch.cores.most > 1 else ''}another array"
        )
    for label, region in regions:
        if region.row0 + region.rows > arch.rows or region.col0 + region.cols > arch.cols:
            return f"core {label} has {region}, {arch.name} has {arch.rows} x {arch.cols} (CORE-1)"
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
    """Puts `nest.cores` in the place of the layers. It stands where the last one stood."""
    originals = [layer for core in chain.cores for layer in core.part.originals if layer]
    last, inside = originals[-1], Block()
    cores = CoresOp.create(
        properties={"label": StringAttr(span([label_of(layer) for layer in originals]))}
        | {"lag": IntegerAttr(chain.lag, i64)},
        result_types=[last.result.type],
        regions=[IrRegion(inside)],
    )
    Rewriter.insert_op(cores, InsertPoint.after(last))
    last.result.replace_all_uses_with(cores.outputs[0])
    values, links = {value: value for value in chain.cores[0].part.entries}, iter(chain.as_data.links)
    for core in chain.cores:
        part, link = core.part, next(links, None)
        for argument, value in zip(part.block.args, part.entries, strict=True):
            argument.replace_all_uses_with(values[value])
        group = group_op(core.label, core.group)
        group.place = RegionAttr(core.region)
        # `group_op` has put it into the block of the part.
        group.detach()
        inside.add_op(group)
        if link is None:
            inside.add_op(YieldOp.create(operands=[group.outputs[0]]))
            break
        for value, output, channel in zip(part.leaving, group.outputs, link.channels, strict=True):
            properties = {"label": StringAttr(channel.label), "keeps": IntegerAttr(channel.keeps, i64)}
            op = ChannelOp.create(operands=[output], properties=properties, result_types=[output.type])
            inside.add_op(op)
            values[value] = op.result
    for layer in reversed(originals):
        Rewriter.erase_op(layer)
    return cores
