"""What a random graph or array is drawn from: Hypothesis (tests/drawn.py), or a seeded generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

T = TypeVar("T")


class Choice(Protocol):
    """A source of choices. The first of `choices` and the least integer are the simplest ones."""

    def integer(self, least: int, most: int) -> int:
        """An integer in least..most."""
        ...

    def one(self, choices: Sequence[T]) -> T:
        """One of `choices`."""
        ...

    def yes(self) -> bool:
        """True or false."""
        ...


class Seeded:
    """Choices that `seed` determines, all equally likely."""

    def __init__(self, *seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def integer(self, least: int, most: int) -> int:
        return int(self._rng.integers(least, most, endpoint=True))

    def one(self, choices: Sequence[T]) -> T:
        return choices[self.integer(0, len(choices) - 1)]

    def yes(self) -> bool:
        return bool(self.integer(0, 1))
