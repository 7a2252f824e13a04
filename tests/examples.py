"""How many examples the drawn tests try, how many cases of large grids run, and which ones: the two knobs of them all.

    pytest tests/test_reuse.py                                     the same examples in every run
    CNNCC_EXAMPLES=10 pytest tests/test_reuse.py                   ten times as many, and whole grids
    CNNCC_EXAMPLES=10 CNNCC_SEED=7 pytest tests/test_reuse.py      other ones

`make test-long` does the last of these for all drawn tests, with a new seed each time, and prints the seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from hypothesis import core, settings
from hypothesis.internal.entropy import deterministic_PRNG

FACTOR = float(os.environ.get("CNNCC_EXAMPLES", "1"))
SEED = int(os.environ.get("CNNCC_SEED", "0"))
OF_HYPOTHESIS = 100  # where a test does not say how many

T = TypeVar("T")


def examples(number: int) -> int:
    """How many examples a test tries that tries `number` in a usual run."""
    return max(1, round(number * FACTOR))


def covering(cases: Iterable[T], values: Callable[[T], Iterable[object]]) -> list[T]:
    """Cases with each value of each parameter that one of `cases` has: 5 of 3 x 4 x 5. In a long run all of them."""
    every = list(cases)
    if FACTOR > 1:
        return every
    has = [set(enumerate(map(repr, values(case)))) for case in every]
    left, chosen = set[object]().union(*has), list[int]()
    while left:
        chosen.append(max(range(len(every)), key=lambda number: len(has[number] & left)))
        left -= has[chosen[-1]]
    return [every[number] for number in sorted(chosen)]


def tell_hypothesis() -> None:
    """Without a seed, what fails here fails everywhere; with one, what fails once fails again."""
    settings.register_profile(
        "cnncc", max_examples=examples(OF_HYPOTHESIS), deadline=None, derandomize=not SEED, database=None
    )
    settings.load_profile("cnncc")
    core.global_force_seed = SEED or None
    with deterministic_PRNG():  # the first time collects garbage: in the midst of tests there is a second's worth
        pass
