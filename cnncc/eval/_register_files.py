"""Register files of the PEs for the evaluator of `array`: halves and tokens (MEM-4, MEM-5, TOKEN-1 to TOKEN-3)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cnncc.arch.model import Pe
from cnncc.dialects.array import Mac
from cnncc.errors import Refusal
from cnncc.numerics import Ints

Mask = npt.NDArray[np.bool_]


@dataclass
class FileHalf:
    """One half of every PE.

    - words: int64[images, rows, cols, slots]
    - full: a mask [rows, cols, slots]
    - loads, edges: the slots that loads filled, without and with `edge`
    """

    words: Ints
    full: Mask
    loads: set[int] = field(default_factory=set[int])
    edges: set[int] = field(default_factory=set[int])

    def clear(self) -> None:
        """Make all slots empty."""
        self.full[...] = False
        self.loads, self.edges = set(), set()

    def fill(self, pes: tuple[slice, slice], slot: int, values: Ints) -> None:
        """Fill slots from `slot` on of all PEs of a rectangle; values [images, rows, cols, n]."""
        slots = slice(slot, slot + values.shape[-1])
        self.words[(slice(None), *pes, slots)] = values
        self.full[(*pes, slots)] = True

    def put(self, pes: tuple[slice, slice], slots: Ints, values: Ints, where: Mask) -> None:
        """Fill `slots` [n] of the PEs chosen by `where` [rows, cols] in a rectangle; values [images, chosen PEs, n]."""
        row, col = (start.start + index[:, None] for start, index in zip(pes, np.nonzero(where), strict=True))
        self.words[:, row, col, slots] = values
        self.full[row, col, slots] = True

    def read(self, pes: tuple[slice, slice], slots: Ints, name: str) -> Ints:
        """`slots` [any] of a rectangle of PEs, [images, rows, cols, any]. Raises Refusal for an empty slot (MEM-5)."""
        if slots.min() < 0 or slots.max() >= self.words.shape[-1]:
            raise Refusal(f"{name} slots {slots.min()}..{slots.max()} are not in a half of {self.words.shape[-1]}")
        if not self.full[pes][..., slots].all():
            raise Refusal(f"a {name} slot is read that is empty")
        return self.words[(slice(None), *pes)][..., slots]


def check_banks(mac: Mac, pe: Pe) -> None:
    """Check that the psums of lane l all lie in bank l, where each lane has its own (MAC-7). Raises Refusal."""
    if not mac.psum.lane:
        return
    if not pe.lane_sums:
        raise Refusal("psum +lane: this array has no lane_sums")
    psum = mac.psum
    for name, step in (("base", psum.base), ("pixel", psum.pixel), ("tap", psum.tap), ("channel", psum.channel)):
        if step % pe.lanes:
            raise Refusal(f"psum {name} = {step} is no multiple of the {pe.lanes} lanes of a PE")


@dataclass
class RegisterFile:
    """`halves` halves of `slots` words, which are filled and used in turn.

    - free: the number of halves that may be opened
    - filling: the half that a load (of psums: a clearing mac) has opened
    - full: the halves that were closed, the oldest first
    - using: the half that a mac (of psums: a commit) has taken
    - spare: halves that were given back: no more have memory than were ever in use together
    """

    name: str
    halves: int
    slots: int
    shape: tuple[int, int, int]
    free: int = 0
    filling: FileHalf | None = None
    full: deque[FileHalf] = field(default_factory=deque[FileHalf])
    using: FileHalf | None = None
    spare: list[FileHalf] = field(default_factory=list[FileHalf])

    def __post_init__(self) -> None:
        self.free = self.halves

    def _empty(self) -> FileHalf:
        return FileHalf(
            np.zeros((*self.shape, self.slots), np.int64), np.zeros((*self.shape[1:], self.slots), np.bool_)
        )

    def open(self) -> FileHalf:
        """Take a free half, all its slots empty."""
        if self.filling is not None:
            raise Refusal(f"a {self.name} half is opened before the one being filled is closed")
        if self.free == 0:
            raise Refusal(f"no {self.name} half is free")
        self.free -= 1
        self.filling = self.spare.pop() if self.spare else self._empty()
        self.filling.clear()
        return self.filling

    def opened(self) -> FileHalf:
        """The half being filled."""
        if self.filling is None:
            raise Refusal(f"no {self.name} half is open")
        return self.filling

    def close(self) -> None:
        """Give the half being filled as full."""
        self.full.append(self.opened())
        self.filling = None

    def take(self) -> FileHalf:
        """Take the next full half to read it."""
        if self.using is not None:
            raise Refusal(f"a {self.name} half is taken before the one in use is given back")
        if not self.full:
            raise Refusal(f"no {self.name} half is full")
        self.using = self.full.popleft()
        return self.using

    def taken(self) -> FileHalf:
        """The half in use."""
        if self.using is None:
            raise Refusal(f"no {self.name} half is in use")
        return self.using

    def give(self) -> None:
        """Give the half in use back as free."""
        self.spare.append(self.taken())
        self.using = None
        self.free += 1
