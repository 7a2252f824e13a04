"""The measures of a network on one array."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnncc.arch.model import Arch
from cnncc.driver.program_parts import mapped_parts
from cnncc.driver.sources import CompileOptions, resume
from cnncc.model.energy import energy
from cnncc.model.program_counts import program_counts

MEASURES = ("cycles", "energy", "multipliers", "memory_bits", "dram_words")  # to be minimised
OBJECTIVE_OF = {"cycles": "cycles", "energy": "energy", "dram_words": "words"}
"""What a network is optimised for, so that a measure is small; the others are the array's."""
ALSO = ("macs", "utilisation")  # for reading: neither says that an array is better


def evaluate(nest: Path, options: CompileOptions) -> dict[str, float]:
    """`MEASURES` and `ALSO` of a network on an array, by the cost model, which agrees with the interpreter on all.

    nest: the file of the network's loop nests, not mapped yet. Raises: Refusal, if the array cannot run the network.
    """
    compilation = resume(nest, options)
    compilation.edited = None  # the exploration has written it
    compilation.ctx.processes = 1  # an exploration runs many such processes
    array = compilation.settings.arch
    return measures_of(program_counts(mapped_parts(compilation), array, causes=False), array)


def measures_of(counters: Mapping[str, Any], arch: Arch) -> dict[str, float]:
    """`MEASURES` and `ALSO` from a program's counters (docs/stats.md) and the array's size."""
    words = counters["words"]
    return {
        "cycles": counters["cycles"]["total"],
        "energy": energy(counters, arch.energy)["total"],
        "multipliers": arch.rows * arch.cols * arch.pe.lanes,
        "memory_bits": memory_bits(arch),
        "dram_words": words["dram_read"] + words["dram_write"],
        "macs": counters["macs"],
        "utilisation": counters["utilisation"]["total"],
    }


def memory_bits(arch: Arch) -> int:
    """Bits of the GLB, of all register files, and of the FIFOs of virtual neighbours (docs/machine.md: Ports)."""
    # DESC-3: registers of operands are a bit wider than words, as a zero point is subtracted.
    pe, operand = arch.pe, arch.operand_bits + 1
    halves = pe.weight_halves * pe.weight_words + pe.ifmap_halves * (pe.ifmap_words + pe.pong_words)
    psums = pe.psum_halves * pe.psum_words * arch.psum_bits
    return arch.rows * arch.cols * ((halves + pe.virtual_words) * operand + psums) + arch.glb.words * arch.operand_bits
