"""The counters of a binary's program, as `run --stats` writes them."""

from __future__ import annotations

from typing import Any

from cnncc.binary.container import Binary
from cnncc.binary.modules import layers
from cnncc.machine.stats import stats
from cnncc.model.energy import with_energy


def program_stats(binary: Binary) -> dict[str, Any]:
    """All counters of a run of the program, with energy; also by layer, if the metadata lists layers."""
    named = [(layer.label, layer.first) for layer, _ in layers(binary)]
    return with_energy(stats(binary.instructions, binary.arch, named), binary.arch.energy)
