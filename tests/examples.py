"""How many examples the drawn tests try, and which ones: the two knobs of them all.

    pytest tests/test_reuse.py                                     the same examples in every run
    CNNCC_EXAMPLES=10 pytest tests/test_reuse.py                   ten times as many
    CNNCC_EXAMPLES=10 CNNCC_SEED=7 pytest tests/test_reuse.py      other ones

`make test-long` does the last of these for all drawn tests, with a new seed each time, and prints the seed.
"""

from __future__ import annotations

import os

from hypothesis import core, settings

FACTOR = float(os.environ.get("CNNCC_EXAMPLES", "1"))
SEED = int(os.environ.get("CNNCC_SEED", "0"))
OF_HYPOTHESIS = 100  # where a test does not say how many


def examples(number: int) -> int:
    """How many examples a test tries that tries `number` in a usual run."""
    return max(1, round(number * FACTOR))


def tell_hypothesis() -> None:
    """Without a seed, what fails here fails everywhere; with one, what fails once fails again."""
    settings.register_profile(
        "cnncc", max_examples=examples(OF_HYPOTHESIS), deadline=None, derandomize=not SEED, database=None
    )
    settings.load_profile("cnncc")
    core.global_force_seed = SEED or None
