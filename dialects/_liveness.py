"""Whether the cores of a chain go on for ever: a walk over their tokens, without times. No IR.

Each core runs its stripes in program order, image after image. A stripe takes its tokens before its first load and
gives its own after its last commit. Core 0 brings an image, then takes away the result of the image `lag` before. It
has two buffers for images and two for results. Programs only take and give, so that one order of the cores tells for
all: a core that can go on still can after any other has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cnncc.dialects._channels import BUFFERS, Channel, CoreEnds, EndTokens, Link, result_tokens
from cnncc.dialects._groups import GroupLayer, points_of

WARM = 3  # frames that are walked beyond those that core 0 brings ahead of results
IMAGE, RESULT = -1, -2  # beside the numbers of links

Token = tuple[str, int]  # what is there, of an image, a result or a link
Turn = tuple[list[Token], list[Token]]  # takes, gives
ROWS, SPACE = "rows", "space"


@dataclass(frozen=True)
class CoreChainData:
    """The cores of a chain as plain data. links: number i leads from group i to group i + 1. image: its tokens."""

    groups: Sequence[Sequence[GroupLayer]]
    links: Sequence[Link]
    image: EndTokens
    lag: int

    @property
    def channels(self) -> list[Channel]:
        """All channels."""
        return [channel for link in self.links for channel in link.channels]

    @cached_property
    def ends(self) -> list[CoreEnds]:
        """The tokens at both ends of each core."""
        reads = [self.image, *(EndTokens(link.full.takes, link.free.gives) for link in self.links)]
        writes = [EndTokens(link.free.takes, link.full.gives) for link in self.links]
        return [CoreEnds(*ends) for ends in zip(reads, (*writes, result_tokens(self.groups[-1])), strict=True)]

    def with_keeps(self, label: str, rows: int) -> CoreChainData:
        """With so many rows in a channel."""
        links = [
            Link(tuple(replace(each, keeps=rows) if each.label == label else each for each in link.channels))
            for link in self.links
        ]
        return replace(self, links=links)

    def stuck(self) -> list[str]:
        """What each core waits for when no core can go on, core 0 first; nothing if all come to their ends."""
        # The chain holds less than a frame in each core and link: no longer lag goes on.
        lag = min(self.lag, 2 * BUFFERS + len(self.groups) + len(self.links))
        frames = lag + WARM
        programs = [self._dma(frames, lag), *(self._core(number, frames) for number in range(len(self.groups)))]
        there = Counter({(SPACE, IMAGE): BUFFERS, (SPACE, RESULT): BUFFERS})
        there.update({(SPACE, number): link.primed for number, link in enumerate(self.links)})
        waiting = [next(program, None) for program in programs]
        moved = True
        while moved:
            moved = False
            for number, program in enumerate(programs):
                while (turn := waiting[number]) is not None and all(there[token] for token in turn[0]):
                    there.subtract(turn[0])
                    there.update(turn[1])
                    waiting[number], moved = next(program, None), True
        missing = (next((t for t in turn[0] if not there[t]), None) if turn else None for turn in waiting)
        return [f"{self._core_name(at)} for {self._token_name(token)}" for at, token in enumerate(missing) if token]

    def _core_name(self, number: int) -> str:
        group = self.groups[number - 1]
        names = [group[0].label, group[-1].label][: len(group)]
        return f"core {'..'.join(names)}" if number else "core 0"

    def _token_name(self, token: Token) -> str:
        kind, number = token
        if number < 0:
            return f"{kind} of {'an image' if number == IMAGE else 'a result'}"
        return f"{kind} of {' or '.join(channel.label for channel in self.links[number].channels)}"

    @staticmethod
    def _dma(frames: int, lag: int) -> Iterator[Turn]:
        for frame in range(frames + lag):
            if frame < frames:
                yield [(SPACE, IMAGE)], [(ROWS, IMAGE)]
            if frame >= lag:
                yield [(ROWS, RESULT)], [(SPACE, RESULT)]

    def _core(self, number: int, frames: int) -> Iterator[Turn]:
        """The stripes of a core that take or give tokens."""
        reads, writes = self.ends[number]
        source, target = number - 1 if number else IMAGE, number if number < len(self.links) else RESULT
        turns = list[Turn]()
        for point, _ in points_of(self.groups[number]):
            takes = [(ROWS, source)] * (point in reads.takes) + [(SPACE, target)] * (point in writes.takes)
            gives = [(SPACE, source)] * (point in reads.gives) + [(ROWS, target)] * (point in writes.gives)
            turns += [(takes, gives)] if takes or gives else []
        for _ in range(frames):
            yield from turns


def liveness_problem(chain: CoreChainData) -> str | None:
    """Why the cores wait for ever, and what would do; None if they go on."""
    if not (stuck := chain.stuck()):
        return None
    less = 0
    while not replace(chain, lag=less + 1).stuck():
        less += 1
    remedies = [f"lag {less} would do"] if less else []
    remedies += [f"{channel} keeps {rows} would do" for channel, rows in longer_channels(chain)][:1]
    remedies = remedies or ["more rows in several channels do"]
    return f"lag {chain.lag}: all cores wait for ever: {', '.join(stuck)}: {', or '.join(remedies)} (CHANNEL-5)"


def longer_channels(chain: CoreChainData) -> list[tuple[str, int]]:
    """The channels of which more rows alone would do, the fewest more words first, and these rows."""
    choices = list[tuple[int, str, int]]()
    for channel in chain.channels:
        low, high = channel.keeps, channel.height
        if low == high or chain.with_keeps(channel.label, high).stuck():
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if chain.with_keeps(channel.label, middle).stuck() else (low, middle)
        sizes = channel.producer.sizes
        choices.append(((high - channel.keeps) * sizes.w * sizes.k, channel.label, high))
    return [(label, rows) for _, label, rows in sorted(choices)]
