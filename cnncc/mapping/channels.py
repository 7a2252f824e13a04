"""Channels between cores: rings of rows with the tokens around them. No IR.

A core runs its layers as a group, frame after frame. Some of them read channels, stripe by stripe; layers of the core
before write these. The ring of a channel holds up to `keeps` rows. docs/cores.md has the rules.

Row y of frame f is number `f * height + y` of all rows that pass through a channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import NamedTuple

from cnncc.mapping.groups import GroupLayer, Point, RowRead, points_of

BUFFERS = 2  # of images, and of results, at least


def buffers(lag: int) -> int:
    """The buffers of images, and of results, where results leave `lag` frames behind.

    >>> buffers(1), buffers(5)
    (2, 5)
    """
    return max(BUFFERS, lag)


@dataclass(frozen=True)
class Region:
    """The PEs of a core: so many rows and columns of the array, from a row and a column on."""

    rows: int
    cols: int
    row0: int = 0
    col0: int = 0

    def __str__(self) -> str:
        return f"{self.rows} x {self.cols} PEs from {self.row0},{self.col0} on"

    def meets(self, other: Region) -> bool:
        """Whether both have a PE in common.

        >>> Region(1, 2).meets(Region(2, 2, col0=1)), Region(1, 2).meets(Region(2, 2, col0=2))
        (True, False)
        """
        rows = self.row0 < other.row0 + other.rows and other.row0 < self.row0 + self.rows
        return rows and self.col0 < other.col0 + other.cols and other.col0 < self.col0 + self.cols


class EndTokens(NamedTuple):
    """The points of a frame that take a token at one end of a link, and the points that give it at the other end."""

    takes: frozenset[Point]
    gives: frozenset[Point]


class CoreEnds(NamedTuple):
    """The points of a core that take and give tokens of what it reads, and of what it writes."""

    reads: EndTokens
    writes: EndTokens


class Reader(NamedTuple):
    """A layer, by its number in its group, and how it reads what comes from outside of the group."""

    layer: int
    read: RowRead


@dataclass(frozen=True)
class Channel:
    """The rows of a result on their way from a core to the next one. before, behind: the layers of both.

    writer: the number of the layer that computes the rows. keeps: rows that are written and not yet read at most.
    """

    label: str
    before: Sequence[GroupLayer]
    writer: int
    behind: Sequence[GroupLayer]
    readers: tuple[Reader, ...]
    keeps: int

    @property
    def producer(self) -> GroupLayer:
        """The layer that computes the rows."""
        return self.before[self.writer]

    @property
    def height(self) -> int:
        """Rows of a frame."""
        return self.producer.sizes.h

    @property
    def ring(self) -> int:
        """Rows of the ring: the fewest that hold `keeps` and divide the height.

        Each frame then begins in slot 0. Example: 3 of 14 rows take a ring of 7. A window of one row with a stride
        skips rows; a ring of some rows then has a whole number of strides.
        """
        reads = [reader.read for reader in self.readers]
        apart = lcm(*(read.stride for read in reads if read.extent == 1 and not read.pad))
        rings = (rows for rows in range(self.keeps, self.height) if self.height % rows == rows % apart == 0)
        return next(rings, self.height)

    def point(self, stripe: int) -> Point:
        """Where the producer computes a stripe."""
        return stripe + self.producer.delay, self.writer

    @cached_property
    def reading(self) -> list[tuple[Point, int]]:
        """The points that read rows, in program order, with the last stripe that each one needs: -1 for none."""
        reads = {reader.layer: reader.read for reader in self.readers}
        return [
            (point, self.behind[point[1]].stripes.needs(reads[point[1]], stripe, self.producer.stripes))
            for point, stripe in points_of(self.behind)
            if point[1] in reads
        ]

    @cached_property
    def _lows(self) -> list[int]:
        """Of each point, the first row that is still read from then on; the height if there is none."""
        reads = {reader.layer: reader.read for reader in self.readers}
        lows, least = list[int](), self.height
        for (step, number), _ in reversed(self.reading):
            layer = self.behind[number]
            low, end = layer.stripes.reads(reads[number], step - layer.delay, self.height)
            least = min(least, low) if end > low else least
            lows.append(least)
        return lows[::-1]

    @property
    def done(self) -> list[tuple[Point, int]]:
        """How many rows of a frame are done with after each point that reads some: no later one reads them."""
        return [(point, rows) for (point, _), rows in zip(self.reading, (*self._lows[1:], self.height), strict=True)]

    @cached_property
    def least(self) -> int:
        """The fewest rows with which the cores go on, if there is no other channel between them: at least a stripe, and

            max over points x of the consumers of   end of the producer's stripe that x needs - first row that is read

        Example: a 3x3 window with padding 1 reads rows 4, 5 and 6 for row 5. With stripes of one row it needs 7 - 4.
        """
        ends = (
            (self.producer.stripes.start(last + 1), low)
            for (_, last), low in zip(self.reading, self._lows, strict=True)
        )
        return max(self.producer.stripes.most_rows, *(end - low for end, low in ends))

    def last_reader(self, gone: int, frame: int = 0) -> tuple[int, Point]:
        """(frame, point) of the last reader of a row before row number `gone`."""
        if gone <= 0:
            return self.last_reader(gone + self.height, frame - 1)
        reads = [point for (point, _), low in zip(self.reading, self._lows, strict=True) if low < gone]
        if not reads:  # the first rows of the frame are read by nothing
            return self.last_reader(self.height, frame - 1)
        return frame, reads[-1]


@dataclass(frozen=True)
class Link:
    """All channels from a core to the next one. Their rows share tokens, as all engines work in program order."""

    channels: tuple[Channel, ...]

    @cached_property
    def full(self) -> EndTokens:
        """Which points of the consumers wait for rows, and which of the producers say that they are there.

        A point waits only for a later stripe than those before it have waited for.
        """
        takes, gives, waited = set[Point](), set[Point](), (-1, -1)
        reads = [(at, channel.point(last)) for channel in self.channels for at, last in channel.reading if last >= 0]
        for point, needed in sorted(reads):
            if needed > waited:
                takes.add(point)
                gives.add(needed)
                waited = needed
        return EndTokens(frozenset(takes), frozenset(gives))

    @cached_property
    def free(self) -> EndTokens:
        """Which points of the producers wait for slots, and which of the consumers say that these are read."""
        return EndTokens(
            frozenset(point for point, _, _ in self._waits), frozenset(reader for _, _, reader in self._waits)
        )

    @property
    def primed(self) -> int:
        """The tokens for free slots before the first frame: one for each wait for a frame before."""
        return sum(frame < 0 for _, frame, _ in self._waits)

    @cached_property
    def _waits(self) -> list[tuple[Point, int, Point]]:
        """(point of a producer, frame, point of a consumer): the first waits in a frame for the second one.

        frame: 0 for the same, -1 for the frame before.
        """
        writes = sorted(
            (channel.point(stripe), channel.last_reader(channel.producer.stripes.start(stripe + 1) - channel.keeps))
            for channel in self.channels
            for stripe in range(channel.producer.stripes.count)
        )
        frame, reader = max(last for _, last in writes)
        # The frame before has waited for its latest reader. Tokens come in order, so that this covers all earlier ones.
        waited, waits = (frame - 1, reader), list[tuple[Point, int, Point]]()
        for point, last in writes:
            if last > waited:
                waits.append((point, *last))
                waited = last
        return waits


def image_tokens(layers: Sequence[GroupLayer], readers: Sequence[Reader], height: int) -> EndTokens:
    """The tokens of an image of `height` rows, which comes before its first reader and is free after its last."""
    reads, points = {reader.layer: reader.read for reader in readers}, list[Point]()
    for point, stripe in points_of(layers):
        if (read := reads.get(point[1])) is not None:
            low, end = layers[point[1]].stripes.reads(read, stripe, height)
            points += [point] if end > low else []
    return EndTokens(frozenset(points[:1]), frozenset(points[-1:]))


def result_tokens(layers: Sequence[GroupLayer]) -> EndTokens:
    """Of the last core: a buffer is free before its result's first stripe, and the result is there after the last."""
    number, layer = next((number, layer) for number, layer in enumerate(layers) if layer.leaves)
    first, last = (layer.delay, number), (layer.delay + layer.stripes.count - 1, number)
    return EndTokens(frozenset({first}), frozenset({last}))


def channel_problem(channel: Channel) -> str | None:
    """What is wrong with a channel; None if nothing is."""
    if not 0 < channel.keeps <= channel.height:
        return f"channel {channel.label}: keeps {channel.keeps}: it holds 1 to {channel.height} rows (CHANNEL-2)"
    if all(last < 0 for _, last in channel.reading):
        return f"channel {channel.label}: nothing reads a row of it (CHANNEL-2)"
    if channel.keeps < channel.least:
        readers = " and ".join(channel.behind[reader.layer].label for reader in channel.readers)
        wait = "wait" if len(channel.readers) > 1 else "waits"
        return (
            f"channel {channel.label}: keeps {channel.keeps} rows, the fewest are {channel.least}: with fewer, "
            f"{readers} {wait} for rows for which {channel.producer.label} has no slot (CHANNEL-3)"
        )
    return None


def regions_problem(regions: Sequence[tuple[str, Region]]) -> str | None:
    """Which core has no PEs, or which two cores have one in common, by their labels; None if each has its own."""
    for number, (label, region) in enumerate(regions):
        if min(region.rows, region.cols) < 1 or min(region.row0, region.col0) < 0:
            return f"core {label} has {region}: it has 1 row and 1 column or more, from 0,0 on (CHANNEL-1)"
        for other_label, other in regions[:number]:
            if region.meets(other):
                row, col = max(region.row0, other.row0), max(region.col0, other.col0)
                return f"cores {other_label} and {label} both have PE {row},{col} (CHANNEL-1)"
    return None
