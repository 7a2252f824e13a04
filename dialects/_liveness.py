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

from cnncc.dialects._channels import BUFFERS, Channel, EndTokens
from cnncc.dialects._groups import GroupLayer

WARM = 3  # frames that are walked beyond those that core 0 brings ahead of results
IMAGE, RESULT = -1, -2  # beside the numbers of channels

Token = tuple[str, int]  # what is there, of an image, a result or a channel
Turn = tuple[list[Token], list[Token]]  # takes, gives
ROWS, SPACE = "rows", "space"


@dataclass(frozen=True)
class Chain:
    """The cores of a chain as plain data."""

    groups: Sequence[Sequence[GroupLayer]]
    channels: Sequence[Channel]
    lag: int

    def stuck(self) -> list[str]:
        """What each core waits for when no core can go on, core 0 first; nothing if all come to their ends."""
        # The chain holds less than a frame in each core and channel: no longer lag goes on.
        lag = min(self.lag, 2 * BUFFERS + len(self.groups) + len(self.channels))
        frames = lag + WARM
        programs = [self._dma(frames, lag), *(self._core(number, frames) for number in range(len(self.groups)))]
        there = Counter({(SPACE, IMAGE): BUFFERS, (SPACE, RESULT): BUFFERS})
        there.update({(SPACE, number): channel.primed for number, channel in enumerate(self.channels)})
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
        names = {IMAGE: "an image", RESULT: "a result"}
        return f"{kind} of {self.channels[number].label}" if number >= 0 else f"{kind} of {names[number]}"

    @staticmethod
    def _dma(frames: int, lag: int) -> Iterator[Turn]:
        for frame in range(frames + lag):
            if frame < frames:
                yield [(SPACE, IMAGE)], [(ROWS, IMAGE)]
            if frame >= lag:
                yield [(ROWS, RESULT)], [(SPACE, RESULT)]

    def _core(self, number: int, frames: int) -> Iterator[Turn]:
        """The stripes of a core that take or give tokens."""
        group, last = self.groups[number], len(self.groups) - 1
        channels, source, target = self.channels, number - 1 if number else IMAGE, number if number < last else RESULT
        reads = EndTokens(channels[source].full.takes, channels[source].free.gives) if number else _whole(group[0])
        writes = EndTokens(channels[number].free.takes, channels[number].full.gives) if number < last else None
        writes = writes or _whole(group[-1])
        turns = list[Turn]()
        for step in range(max(layer.delay + layer.stripes for layer in group)):
            for layer in group:
                stripe, takes, gives = step - layer.delay, list[Token](), list[Token]()
                if not 0 <= stripe < layer.stripes:
                    continue
                if layer is group[0]:
                    takes += [(ROWS, source)] * (stripe in reads.takes)
                    gives += [(SPACE, source)] * (stripe in reads.gives)
                if layer is group[-1]:
                    takes += [(SPACE, target)] * (stripe in writes.takes)
                    gives += [(ROWS, target)] * (stripe in writes.gives)
                turns += [(takes, gives)] if takes or gives else []
        for _ in range(frames):
            yield from turns


def _whole(layer: GroupLayer) -> EndTokens:
    """Of a layer that reads an image as a whole, or writes a result."""
    return EndTokens(frozenset({0}), frozenset({layer.stripes - 1}))


def liveness_problem(chain: Chain) -> str | None:
    """Why the cores wait for ever, and what would do; None if they go on."""
    if not (stuck := chain.stuck()):
        return None
    less = 1
    while not replace(chain, lag=less + 1).stuck():
        less += 1
    remedies = [f"lag {less} would do"]
    remedies += [f"{channel} keeps {rows} would do" for channel, rows in _longer(chain)][:1]
    return f"lag {chain.lag}: all cores wait for ever: {', '.join(stuck)}: {', or '.join(remedies)} (CHANNEL-5)"


def _longer(chain: Chain) -> list[tuple[str, int]]:
    """The channels of which more rows alone would do, the fewest more words first, and these rows."""
    choices = list[tuple[int, str, int]]()
    for at, channel in enumerate(chain.channels):
        low, high = channel.keeps, channel.height
        if low == high or _with_keeps(chain, at, high).stuck():
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _with_keeps(chain, at, middle).stuck() else (low, middle)
        sizes = channel.producer.sizes
        choices.append(((high - channel.keeps) * sizes.w * sizes.k, channel.label, high))
    return [(label, rows) for _, label, rows in sorted(choices)]


def _with_keeps(chain: Chain, at: int, rows: int) -> Chain:
    channels = [*chain.channels[:at], replace(chain.channels[at], keeps=rows), *chain.channels[at + 1 :]]
    return replace(chain, channels=channels)
