"""The counters of a binary's program, as `run --stats` writes them."""

from __future__ import annotations

from typing import Any

from cnncc.binary.container import Binary
from cnncc.binary.modules import layers
from cnncc.machine.stats import stats
from cnncc.model.energy import with_energy


def program_stats(binary: Binary, causes: bool = True, frames: int = 1) -> dict[str, Any]:
    """All counters of a run of the program, with energy; also by layer, if the metadata lists layers.

    causes: with stalls by cause, which takes longer. frames: of the run (CORE-8).
    """
    named = [(layer.label, layer.first) for layer, _ in layers(binary)]
    constant_words = sum(array.size for _, array in binary.weights)
    counters = stats(
        binary.instructions, binary.arch, named, causes=causes, constant_words=constant_words, frames=frames
    )
    return with_energy(counters, binary.arch.energy)
