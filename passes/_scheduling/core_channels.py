"""The rows of channels between cores, and how far results leave behind: for the most frames in a time. No pass.

A channel of the fewest rows goes on, but its cores wait for each other. While the chain takes more cycles for a frame
than its busiest core, the channel gets more rows whose producer waits most, as far as the GLB has space.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cnncc.arch.model import Arch
from cnncc.model.cores_schedule import PredictedFrames, predicted_frames
from cnncc.passes._scheduling.core_chain import CoreChain
from cnncc.util.progress import Progress

FRAMES = 24  # of a run that the model makes
MOST_RUNS = 24  # of the model


@dataclass(frozen=True)
class TimedChain:
    """A chain, and what the model says of it."""

    chain: CoreChain
    frames: PredictedFrames

    @property
    def cycles(self) -> float:
        """From frame to frame, in steady state if the run shows one."""
        if (period := self.frames.period) is not None:
            return period.cycles / period.frames
        return (self.frames.total - self.frames.first) / (self.frames.frames - 1)

    @property
    def waits(self) -> list[int]:
        """The cycles that the core before each channel waits for space."""
        # Core 0 has no PEs, and behind the last core there is no channel.
        stalls = [core.stall.get("channel_out", 0) for core in self.frames.cores[1:]]
        links = self.chain.as_data.links
        return [stall for stall, link in zip(stalls, links, strict=False) for _ in link.channels]


def timed(chain: CoreChain, arch: Arch) -> TimedChain:
    """What the model says of a chain."""
    return TimedChain(chain, predicted_frames(chain.plan(), arch, FRAMES, causes=True))


def with_space(chain: CoreChain, busiest: int, arch: Arch, progress: Progress) -> TimedChain:
    """The chain with more rows of channels, or results that leave later, where that takes fewer cycles.

    busiest: cycles of the busiest core by itself.
    """
    # All rows that the rings have anyway.
    best = timed(replace(chain, keeps=tuple(channel.ring for channel in chain.channels)), arch)
    runs = 1
    while best.cycles > busiest and runs < MOST_RUNS:
        better: TimedChain | None = None
        for other in _more(best):
            if other.problem(arch) is None and runs < MOST_RUNS:
                progress(f"cores: {best.cycles:,.0f} cycles a frame")
                run, runs = timed(other, arch), runs + 1
                if run.cycles < best.cycles:
                    better = run
                    break
        if better is None:
            break
        best = better
    return best


def _more(best: TimedChain) -> Iterator[CoreChain]:
    """The chain with more rows of one channel, that first whose producer waits most; then with a longer lag."""
    chain = best.chain
    waits = best.waits
    for at in sorted(range(len(chain.keeps)), key=lambda at: -waits[at]):
        channel = chain.channels[at]
        if channel.keeps < channel.height:
            # Up to the next number of rows that a ring may have: the GLB has all of them then.
            longer = replace(channel, keeps=channel.keeps + 1).ring
            yield replace(chain, keeps=(*chain.keeps[:at], longer, *chain.keeps[at + 1 :]))
    yield replace(chain, lag=chain.lag + 1)
