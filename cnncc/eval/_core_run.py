"""A `nest.cores`, run on integers: cores that go on by tokens, in any order, with channels between them.

Core 0 brings images and takes results away, with `buffers(lag)` each. Each slot of a ring knows its image and row. So
a token too many or a channel too small is noticed where a row is read, or where no core can go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from xdsl.ir import SSAValue

from cnncc.dialects.nest import CoresOp, chain_of, image_shape
from cnncc.errors import Refusal, refusals_of
from cnncc.eval._group_run import FrameRing, GroupRun
from cnncc.eval._lanes import Ints
from cnncc.mapping.channels import buffers
from cnncc.weights import Array

Order = Callable[[Sequence[int]], int]  # of the numbers of the cores that can go on, the one that does
IMAGE, RESULT = "image", "result"


def first_ready(ready: Sequence[int]) -> int:
    """The first of the cores that can go on."""
    return ready[0]


class _Turn(NamedTuple):
    """What a core does next: what it takes, does and gives. Tokens are of `full` or free slots of a named ring."""

    takes: Sequence[str]
    act: Callable[[], None]
    gives: Sequence[str]


def _full(name: str) -> str:
    return f"rows of {name}"


def _free(name: str) -> str:
    return f"space for {name}"


class CoresRun:
    """Cores side by side, run. The images of all batches are frames."""

    def __init__(
        self, cores: CoresOp, symbols: Mapping[str, Array], values: Mapping[SSAValue, Ints], order: Order
    ) -> None:
        """values: the integers of what stands before. Raises Refusal for a deadlock, or a row that is gone."""
        self.cores, self.chain = cores, chain_of(cores)
        entry = cores.image
        self.images = values[entry].reshape(-1, *image_shape(entry.type)[1:])
        frames = len(self.images)
        self.buffers = buffers(cores.lag.value.data)
        image, result = (self._circle(name, value) for name, value in ((IMAGE, entry), (RESULT, cores.outputs[0])))
        self.outputs = np.zeros((frames, *image_shape(cores.outputs[0].type)[1:]), np.int64)
        self.groups, sources, channels = list[GroupRun](), {entry: image}, iter(self.chain.channels)
        for group in cores.groups():
            behind = [(op, next(channels)) for op in cores.channels_behind(group)]
            targets = [(op, FrameRing(channel.label, op.value, channel.ring)) for op, channel in behind]
            outside = {group.inside_of(op.value): ring for op, ring in targets} | sources
            outside |= {} if targets else {group.yielded()[0]: result}
            self.groups.append(GroupRun(group, symbols, outside, 1, frames))
            sources = {op.result: ring for op, ring in targets}
        # Before the first frame all buffers are free. A ring has a token for each wait for a frame before the first
        # one.
        self.tokens = Counter({_free(IMAGE): self.buffers, _free(RESULT): self.buffers})
        self.tokens.update({_free(self._link(number)): link.primed for number, link in enumerate(self.chain.links)})
        programs = [self._dma(image, result), *(self._core(number) for number in range(len(self.groups)))]
        with refusals_of(f"nest.cores '{cores.label.data}'"):
            self._run(programs, order)

    def _run(self, programs: Sequence[Iterator[_Turn]], order: Order) -> None:
        waiting = {number: turn for number, program in enumerate(programs) if (turn := next(program, None))}
        while waiting:
            ready = [number for number, turn in waiting.items() if not self._missing(turn)]
            if not ready:
                labels = ["core 0", *(f"core {group.label.data}" for group in self.cores.groups())]
                what = (f"{labels[number]} waits for {self._missing(turn)}" for number, turn in waiting.items())
                raise Refusal(f"deadlock: {', '.join(what)}")
            number = order(ready)
            turn = waiting.pop(number)
            self.tokens.subtract(turn.takes)
            turn.act()
            self.tokens.update(turn.gives)
            if (following := next(programs[number], None)) is not None:
                waiting[number] = following

    def _missing(self, turn: _Turn) -> str | None:
        return next((token for token in turn.takes if not self.tokens[token]), None)

    def _dma(self, image: FrameRing, result: FrameRing) -> Iterator[_Turn]:
        """Core 0: the image of a frame, and the result of the frame `lag` before."""
        frames, lag = len(self.images), self.cores.lag.value.data

        def bring(frame: int) -> None:
            image.write(frame, 0, self.images[frame][None])

        def leave(frame: int) -> None:
            self.outputs[frame] = result.read(frame, 0, result.height)[0]

        for frame in range(frames + lag):
            if frame < frames:
                yield _Turn([_free(IMAGE)], partial(bring, frame), [_full(IMAGE)])
            if frame >= lag:
                yield _Turn([_full(RESULT)], partial(leave, frame - lag), [_free(RESULT)])

    def _circle(self, name: str, value: SSAValue) -> FrameRing:
        return FrameRing(name, value, self.buffers * image_shape(value.type)[2])

    def _link(self, number: int) -> str:
        """What a link carries, by name. Before the first core that is the image, behind the last one the result."""
        if number < 0 or number == len(self.chain.links):
            return IMAGE if number < 0 else RESULT
        return " and ".join(channel.label for channel in self.chain.links[number].channels)

    def _core(self, number: int) -> Iterator[_Turn]:
        """The stripes of a core. A stripe takes its tokens before it reads, and gives its own when it is written."""
        run, (reads, writes) = self.groups[number], self.chain.ends[number]
        source, target = self._link(number - 1), self._link(number)
        for section in run.sections():
            _, member, stripe = section
            point = stripe + member.delay, run.members.index(member)
            takes = [_full(source)] * (point in reads.takes) + [_free(target)] * (point in writes.takes)
            gives = [_free(source)] * (point in reads.gives) + [_full(target)] * (point in writes.gives)
            yield _Turn(takes, partial(run.run, section), gives)

    def results(self) -> list[Ints]:
        """The results of all frames."""
        return [self.outputs.reshape(len(self.outputs), *self.cores.outputs[0].type.get_shape()[1:])]

    def trace(self) -> dict[str, Ints]:
        """All rows of every layer that has a key, by that key."""
        return {key: rows for group in self.groups for key, rows in group.trace().items()}
