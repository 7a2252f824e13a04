"""Random images of a network's data and constants, modulo a prime: what both sides of a proof compute with.

A proof (docs/proof.md) replaces integers by residues. The program and the network must then use the same residue for
the same thing: an input, a word of a weight, the pair of bounds of a clamp, the bits of a float constant. Here they are
drawn, each by its name alone, whatever the order in which they are asked for. Nothing is computed with them here.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from cnncc.numerics import INT32, Ints

PRIME = 32_749  # the greatest below 2^15: a residue is a word of 16 bits
LEAST_CONSTANT = 2  # constants are neither 0 nor 1, so that none of them leaves a value as it is
CHOICES = PRIME - LEAST_CONSTANT  # the fewest values among which anything is drawn
MAXIMUM_START = 10_007  # what a maximum starts from, which is not what a sum starts from

Residues = npt.NDArray[np.int16]


def clamps(stage: str, bounds: tuple[int, ...]) -> bool:
    """Whether a clamp may change a word. One to all integers of 32 bits does not: it is what layers without one have.

    The second clamp, behind a residual, is always drawn.
    """
    return stage != "clamp" or bounds != INT32


@dataclass(frozen=True)
class Draws:
    """`count` independent draws; two with the same seed are equal. The first axis of each array is that of draws."""

    seed: int
    count: int
    _constants: dict[tuple[object, ...], Ints] = field(default_factory=dict[tuple[object, ...], Ints])

    def words(self, name: str, *shape: int) -> Residues:
        """Residues [draw, *shape] of the words of an input, a weight or a host segment's result."""
        generator, size = self._generator("words", name), self.count * prod(shape)
        # Four words of 15 bits from one of 64 take a quarter of the time. Those beyond the prime are drawn again.
        drawn = generator.integers(0, 1 << 64, -(-size // 4), np.uint64).view(np.uint16)[:size] & (1 << 15) - 1
        while (again := np.flatnonzero(drawn >= PRIME)).size:
            drawn[again] = generator.integers(0, 1 << 15, again.size, np.uint16)
        return drawn.view(np.int16).reshape(self.count, *shape) - PRIME // 2

    def clamp(self, stage: str, bounds: tuple[int, ...]) -> tuple[Ints, Ints]:
        """The factor and the addend [draw] of a clamp: v becomes factor * v + addend."""
        if not clamps(stage, bounds):
            return np.ones(self.count, np.int64), np.zeros(self.count, np.int64)
        return self._constant(stage, "factor", *bounds), self._constant(stage, "addend", *bounds)

    def real(self, field_name: str, value: float | np.floating) -> Ints:
        """The residue [draw] of an f32 of a field of `unit`, by its bits."""
        (bits,) = struct.unpack("<I", struct.pack("<f", float(value)))
        return self._constant(field_name, bits)

    def table(self, entries: Ints, shift: int) -> tuple[Ints, Ints]:
        """The factor and the addend [draw] of a table: v becomes factor * v + addend."""
        name = "table", shift, *entries.tolist()
        return self._constant("factor", *name), self._constant("addend", *name)

    def maximum(self) -> Ints:
        """The factor [draw] of each element of a maximum."""
        return self._constant("maximum")

    def _constant(self, *name: object) -> Ints:
        if name not in self._constants:
            drawn = self._generator("constant", *name).integers(LEAST_CONSTANT, PRIME, self.count)
            self._constants[name] = drawn.astype(np.int64)
        return self._constants[name]

    def _generator(self, *name: object) -> np.random.Generator:
        digest = hashlib.sha256(repr((self.seed, *name)).encode()).digest()
        return np.random.default_rng(np.frombuffer(digest, np.uint32))
