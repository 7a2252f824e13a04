"""Compares what is predicted of a binary with what its program counts: cycles, operations, words, energy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from cnncc.binary.container import load
from cnncc.binary.counters import program_stats
from cnncc.errors import Refusal
from cnncc.estimate.mapped_program import of_binary

NAMED = 3  # counters that a refusal names


def check_counters(path: Path) -> str:
    """A line that says how many counters agree. Raises Refusal with those that differ.

    The plan in the metadata is what predicts, without instructions. The instructions are what is counted, without the
    plan.
    """
    predicted = dict(leaves(of_binary(path).counters()))
    counted = dict(leaves(program_stats(load(path))))
    differ = [name for name in counted | predicted if counted.get(name) != predicted.get(name)]
    if differ:
        named = (f"{name} {_shown(counted.get(name))}, predicted {_shown(predicted.get(name))}" for name in differ)
        more = "; …" if len(differ) > NAMED else ""
        shown = "; ".join(text for text, _ in zip(named, range(NAMED), strict=False)) + more
        raise Refusal(f"{path.name}: {len(differ):,} of {len(counted):,} counters are not as predicted: {shown}")
    return f"{path.name}: all {len(counted):,} counters are as predicted"


def leaves(counters: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The counters by name, with a dot between a key and one inside it: `layers.c1.cycles.total`."""
    for key, value in counters.items():
        if isinstance(value, Mapping):
            yield from leaves(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else "none"
