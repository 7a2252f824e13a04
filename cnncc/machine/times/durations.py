"""The cycles that an instruction occupies its engine, from its fields, the `unit` in force and the array alone."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from cnncc.arch.model import Arch
from cnncc.isa.table import RUN_BY_ENGINES, Instruction
from cnncc.isa.table import InstructionKind as Kind
from cnncc.machine.instruction_sizes import (
    UnitSettings,
    ceil_div,
    commit_reads,
    commit_results,
    dma_words,
    load_positions,
    load_words,
    mac_steps,
)


class Occupancy(NamedTuple):
    """Cycles that an instruction occupies its engine, and cycles from then until it is done (TIME-2).

    work: the busy cycles by cause, in order; late: the cause of the latency (CAUSE-2). A macro-instruction has none.
    """

    busy: int
    latency: int
    work: tuple[tuple[str, int], ...] = ()
    late: str = ""


def load_occupancy(inst: Instruction, arch: Arch) -> Occupancy:
    """Rule LOAD-2."""
    positions, in_row = load_positions(inst)
    words = load_words(inst)
    terms = {
        "glb_port": ceil_div(words * len(positions), arch.glb.words_per_cycle),
        "row_bus": in_row * ceil_div(words, arch.bus.burst_words),
        "write_port": ceil_div(words, arch.pe.words_per_cycle),
    }
    # CAUSE-2: of terms that are equally long `max` takes the first.
    cause = max(terms, key=terms.__getitem__)
    return Occupancy(terms[cause], arch.bus.latency_cycles, ((cause, terms[cause]),), "row_bus")


def mac_occupancy(inst: Instruction, arch: Arch) -> Occupancy:
    """Rule MAC-4."""
    return Occupancy(arch.pe.start_cycles + mac_steps(inst) + arch.pe.finish_cycles, 0)


def commit_occupancy(inst: Instruction, unit: UnitSettings, arch: Arch) -> Occupancy:
    """Rule COMMIT-3."""
    results = commit_results(inst)
    # COMMIT-3: a stream uses the output units of all columns.
    cols = arch.cols if inst.text("source") == "glb" else inst.number("cols")
    sums = 2 * arch.words_per_sum * results if inst.number("partial") else 0  # both ways, whether needed or not
    words = results + sums + commit_reads(inst, unit, arch)
    terms = {
        "output_units": ceil_div(results, cols * arch.commit.units_per_column),
        "glb_port": ceil_div(words, arch.glb.words_per_cycle),
    }
    cause = max(terms, key=terms.__getitem__)
    hops = inst.number("set_rows") - 1 if inst.number("reduce") else 0
    work = (cause, terms[cause]), ("column_bus", hops)
    return Occupancy(terms[cause] + hops, arch.commit.latency_cycles, work, "output_units")


def dma_occupancy(inst: Instruction, arch: Arch, constant: bool) -> Occupancy:
    """Rule DMA-2. constant: it moves weights or parameters."""
    busy = ceil_div(dma_words(inst) * arch.dram.rate_cycles, arch.dram.rate_words)
    moved = "results" if inst.text("direction") == "out" else "weights" if constant else "activations"
    return Occupancy(busy, arch.dram.latency_cycles, ((f"dram_bandwidth_{moved}", busy),), f"dram_latency_{moved}")


def occupancy(inst: Instruction, unit: UnitSettings, arch: Arch, constant: bool = False) -> Occupancy:
    """Occupancy of any instruction that an engine runs.

    unit: the settings by the last `unit` instruction (COMMIT-2). constant: see `dma_occupancy`.
    """
    kind = inst.spec.kind
    if kind not in RUN_BY_ENGINES:
        raise AssertionError(f"no engine runs {kind}")
    match kind:
        case Kind.DMA:
            return dma_occupancy(inst, arch, constant)
        case Kind.LOAD:
            return load_occupancy(inst, arch)
        case Kind.MAC:
            return mac_occupancy(inst, arch)
        case Kind.COMMIT:
            return commit_occupancy(inst, unit, arch)
        case Kind.UNIT | Kind.TABLE:
            return Occupancy(1, 0, (("output_units", 1),))
        case _:
            assert_never(kind)
