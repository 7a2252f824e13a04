"""Compares what is predicted of a binary with what its program counts: cycles, operations, words, energy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from cnncc.binary.container import load
from cnncc.binary.counters import program_stats
from cnncc.errors import Refusal
from cnncc.estimate.mapped_program import of_binary
from cnncc.util.nested import leaves

NAMED = 3  # counters that a refusal names
FRAMES = 16  # of a run of cores


def check_counters(path: Path) -> str:
    """A line that says how many counters agree. Raises Refusal with those that differ.

    The plan in the metadata is what predicts, without instructions. The instructions are what is counted, without the
    plan.
    """
    program = of_binary(path)
    frames = FRAMES if program.cores else 1
    predicted = _by_name(program.counters(frames=frames))
    counted = _by_name(program_stats(load(path), frames=frames))
    differ = [name for name in counted | predicted if counted.get(name) != predicted.get(name)]
    if differ:
        first, more = differ[:NAMED], "; …" if len(differ) > NAMED else ""
        named = (f"{name} {_shown(counted.get(name))}, predicted {_shown(predicted.get(name))}" for name in first)
        shown = "; ".join(named) + more
        raise Refusal(f"{path.name}: {len(differ):,} of {len(counted):,} counters are not as predicted: {shown}")
    return f"{path.name}: all {len(counted):,} counters are as predicted"


def _by_name(counters: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in lists is named by its number."""

    def named(value: object) -> object:
        return (
            {str(at): each for at, each in enumerate(cast("list[object]", value))} if isinstance(value, list) else value
        )

    return dict(leaves({key: named(value) for key, value in counters.items()}))


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else "none"
