"""Channels between cores: rings of rows with the tokens around them. No IR.

A core runs its layers as a group, frame after frame. Its first layer reads a channel, stripe by stripe; the layer
before on another core writes it. The ring of a channel holds up to `keeps` rows. docs/cores.md has the rules.

Row y of frame f is number `f * height + y` of all rows that pass through a channel. A stripe *reads up to* a row if it
reads that row or an earlier one that no earlier stripe is done with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cnncc.dialects._groups import GroupLayer, Read, stripe_needed

BUFFERS = 2  # of images, and of results


@dataclass(frozen=True)
class Region:
    """The PEs of a core: so many rows and columns of the array, from a row and a column on."""

    rows: int
    cols: int
    row0: int = 0
    col0: int = 0

    def meets(self, other: Region) -> bool:
        """Whether both have a PE in common.

        >>> Region(1, 2).meets(Region(2, 2, col0=1)), Region(1, 2).meets(Region(2, 2, col0=2))
        (True, False)
        """
        rows = self.row0 < other.row0 + other.rows and other.row0 < self.row0 + self.rows
        return rows and self.col0 < other.col0 + other.cols and other.col0 < self.col0 + self.cols


class EndTokens(NamedTuple):
    """The stripes of a frame that take a token of one end of a channel, and those that give one at its other end."""

    takes: frozenset[int]
    gives: frozenset[int]


@dataclass(frozen=True)
class Channel:
    """The rows of `producer`'s result on their way to `consumer`, which reads them as `read` says.

    keeps: rows that are written and not yet read at most.
    """

    label: str
    producer: GroupLayer
    consumer: GroupLayer
    read: Read
    keeps: int

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
        apart = self.read.stride if self.read.extent == 1 and not self.read.pad else 1
        rings = (rows for rows in range(self.keeps, self.height) if self.height % rows == rows % apart == 0)
        return next(rings, self.height)

    @cached_property
    def _lows(self) -> list[int]:
        """The first row that each stripe of the consumer, or one after it, reads; the height where none does."""
        lows, least = list[int](), self.height
        for stripe in reversed(range(self.consumer.stripes)):
            low, end = self.consumer.reads_of_stripe(self.read, stripe, self.height)
            least = min(least, low) if end > low else least
            lows.append(least)
        return lows[::-1]

    def read_after(self, stripe: int) -> int:
        """The rows of a frame that are done with after a stripe of the consumer: no later one reads them."""
        return self._lows[stripe + 1] if stripe + 1 < len(self._lows) else self.height

    @cached_property
    def _needed(self) -> list[int]:
        """The last stripe of the producer that each stripe of the consumer needs, -1 for none."""
        stripes = range(self.consumer.stripes)
        return [stripe_needed(self.consumer, self.read, self.producer, stripe) for stripe in stripes]

    @cached_property
    def least(self) -> int:
        """The fewest rows with which the cores go on.

            max over stripes s of the consumer of   end of the producer's stripe that s needs - first row that s reads

        Example: a 3x3 window with padding 1 reads rows 4, 5 and 6 for row 5. With stripes of one row it needs 7 - 4.
        """
        ends = ((self.producer.start(needed + 1), low) for needed, low in zip(self._needed, self._lows, strict=True))
        return max(1, *(end - low for end, low in ends))

    @cached_property
    def full(self) -> EndTokens:
        """Which stripes of the consumer wait for rows, and which of the producer say that they are there.

        A stripe waits only for a later stripe than those before it have waited for.
        """
        takes, gives, waited = set[int](), set[int](), -1
        for stripe, needed in enumerate(self._needed):
            if needed > waited:
                takes.add(stripe)
                gives.add(needed)
                waited = needed
        return EndTokens(frozenset(takes), frozenset(gives))

    @cached_property
    def free(self) -> EndTokens:
        """Which stripes of the producer wait for slots, and which of the consumer say that these are read."""
        waits = list(self._waits())
        return EndTokens(frozenset(at for at, _, _ in waits), frozenset(stripe for _, _, stripe in waits))

    @cached_property
    def primed(self) -> int:
        """The tokens for free slots before the first frame: one for each wait for a frame before."""
        return sum(frame < 0 for _, frame, _ in self._waits())

    def _waits(self) -> Iterator[tuple[int, int, int]]:
        """(stripe of the producer, frame, stripe of the consumer): the first waits in a frame for the second one.

        frame: 0 for the same, -1 for the frame before.
        """
        waited = self._slot_reader(self.height - self.keeps, 0)
        waited = waited[0] - 1, waited[1]  # what the last stripe of the frame before has waited for
        for stripe in range(self.producer.stripes):
            gone = self.producer.start(stripe + 1) - self.keeps  # rows before this one are overwritten
            frame, reader = self._slot_reader(gone, 0)
            if (frame, reader) > waited:
                yield stripe, frame, reader
                waited = frame, reader

    def _slot_reader(self, gone: int, frame: int) -> tuple[int, int]:
        """(frame, stripe) of the consumer that reads a row before row number `gone` last."""
        if gone <= 0:
            return self._slot_reader(gone + self.height, frame - 1)
        reads = [stripe for stripe, low in enumerate(self._lows) if low < gone]
        if not reads:  # the first rows of the frame are read by nothing
            return self._slot_reader(self.height, frame - 1)
        return frame, reads[-1]


def channel_problem(channel: Channel) -> str | None:
    """What is wrong with a channel; None if nothing is."""
    if not 0 < channel.keeps <= channel.height:
        return f"channel {channel.label}: keeps {channel.keeps}: it holds 1 to {channel.height} rows (CHANNEL-2)"
    if not channel.full.takes:
        return f"channel {channel.label}: {channel.consumer.label} reads no row of it (CHANNEL-2)"
    if channel.keeps < channel.least:
        return (
            f"channel {channel.label}: keeps {channel.keeps} rows, the fewest are {channel.least}: with fewer, "
            f"{channel.consumer.label} waits for rows for which {channel.producer.label} has no slot (CHANNEL-3)"
        )
    return None


def regions_problem(regions: Sequence[tuple[str, Region]]) -> str | None:
    """Which two cores have a PE in common, by their labels; None if no two have."""
    for number, (label, region) in enumerate(regions):
        for other_label, other in regions[:number]:
            if region.meets(other):
                row, col = max(region.row0, other.row0), max(region.col0, other.col0)
                return f"cores {other_label} and {label} both have PE {row},{col} (CHANNEL-1)"
    return None
