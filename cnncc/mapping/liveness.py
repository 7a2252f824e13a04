"""Whether the cores of a chain go on for ever: a walk over their tokens, without times. No IR.

Each core runs its stripes in program order, image after image. A stripe takes its tokens before its first load and
gives its own after its last commit. Programs only take and give, so that one order of the cores tells for all: a core
that can go on still can after any other has.

Core 0 brings an image and takes away its result. With a `lag` it has brought so many images more, and has buffers for
them and for their results. No core needs anything of a later image to come to the end of one. So all lags go on if one
does, and the walk has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cnncc.mapping.channels import Channel, CoreEnds, EndTokens, Link, result_tokens
from cnncc.mapping.groups import GroupLayer, points_of

FRAMES = 2  # that are walked: the first one has primed tokens, the second one waits for slots of the first
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
        programs = [self._dma(), *map(self._core, range(len(self.groups)))]
        there = Counter({(SPACE, IMAGE): 1, (SPACE, RESULT): 1})
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
    def _dma() -> Iterator[Turn]:
        for _ in range(FRAMES):
            yield [(SPACE, IMAGE)], [(ROWS, IMAGE)]
            yield [(ROWS, RESULT)], [(SPACE, RESULT)]

    def _core(self, number: int) -> Iterator[Turn]:
        """The stripes of a core that take or give tokens."""
        reads, writes = self.ends[number]
        source, target = number - 1 if number else IMAGE, number if number < len(self.links) else RESULT
        turns = list[Turn]()
        for point, _ in points_of(self.groups[number]):
            takes = [(ROWS, source)] * (point in reads.takes) + [(SPACE, target)] * (point in writes.takes)
            gives = [(SPACE, source)] * (point in reads.gives) + [(ROWS, target)] * (point in writes.gives)
            turns += [(takes, gives)] if takes or gives else []
        for _ in range(FRAMES):
            yield from turns


def liveness_problem(chain: CoreChainData) -> str | None:
    """Why the cores wait for ever, and what would do; None if they go on."""
    if not (stuck := chain.stuck()):
        return None
    remedies = [f"{channel} keeps {rows} would do" for channel, rows in longer_channels(chain)]
    remedy = remedies[0] if remedies else "more rows in several channels do"
    return f"all cores wait for ever: {', '.join(stuck)}: {remedy} (CHANNEL-5)"


def longer_channels(chain: CoreChainData) -> list[tuple[str, int]]:
    """The channels of which more rows alone would do, the fewest more words first, and these rows."""
    choices = list[tuple[int, str, int]]()
    for channel in chain.channels:
        low, high = channel.keeps, channel.height
        if low == high or chain.with_keeps(channel.label, high).stuck():
            continue
        # Halving finds the fewest rows, as cores that go on with some rows go on with more.
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if chain.with_keeps(channel.label, middle).stuck() else (low, middle)
        sizes = channel.producer.sizes
        choices.append(((high - channel.keeps) * sizes.w * sizes.k, channel.label, high))
    return [(label, rows) for _, label, rows in sorted(choices)]
