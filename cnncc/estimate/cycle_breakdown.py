"""What the cycles of a layer go to, and why one mapping takes more of them than another. By the model of cycles alone.

All cycles of a layer by itself (`layer_counts`) are one of these:

    steps     the array is busy with steps: more of them where PEs idle
    start     it starts and finishes macro-instructions
    dma       it waits, and would not if the DMA took no time
    load, commit, issue, drain   it waits for loads (weights, ifmap), for psums that commits take, for the sequencer to
              bring an instruction, and for the end of the layer, if the DMA takes no time

So differences between two mappings add up to the difference of their cycles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cnncc.arch.model import Arch
from cnncc.model.layer_schedule import LayerPlan, layer_counts, layer_schedule
from cnncc.model.operand_traffic import moved
from cnncc.model.timed_program import PredictedCycles

ENDLESS = 1 << 40  # words a cycle


@dataclass(frozen=True)
class Spent:
    """Cycles of a layer by itself, by what they go to; and of how much there was that took them.

    - macros: macro-instructions
    - loads, commits: cycles in which these engines are busy
    - words: that the DMA moves meanwhile, without the prefetched ones
    - partial: words of partial sums that commits read and write in the GLB
    """

    cycles: dict[str, int]
    macros: int
    loads: int
    commits: int
    words: int
    partial: int

    @property
    def total(self) -> int:
        """All cycles."""
        return sum(self.cycles.values())


def spent(plan: LayerPlan, arch: Arch) -> Spent:
    """Of a layer that is mapped."""
    pe, dram = arch.pe, arch.dram
    real = layer_counts(plan, arch)
    over = pe.start_cycles + pe.finish_cycles
    bare = layer_counts(plan, replace(arch, pe=replace(pe, start_cycles=0, finish_cycles=0)))
    quick = replace(arch, dram=replace(dram, words_per_cycle=ENDLESS, latency_cycles=0))
    rest = layer_counts(plan, quick)
    cycles = {"steps": bare.compute, "start": real.compute - bare.compute, "dma": real.total - rest.total}
    words = moved(plan.shape, plan.mapping, arch, plan.residual).counters()
    ahead = sum(fetch.words for fetch in layer_schedule(plan, arch).ahead)
    return Spent(
        cycles | _waits(rest),
        (real.compute - bare.compute) // over if over else 0,
        real.load,
        real.commit,
        words["words"]["dram_read"] + words["words"]["dram_write"] - ahead,
        words["operands"]["glb_read"]["sums"] + words["operands"]["glb_write"]["sums"],
    )


def _waits(counts: PredictedCycles) -> dict[str, int]:
    stall = counts.stall
    return {"load": stall["weights"] + stall["ifmap"], "commit": stall["psum"]} | {
        name: stall[name] for name in ("issue", "drain")
    }


def why(other: Spent, chosen: Spent) -> str:
    """What makes the most of the difference, if `other` takes more cycles; or fewer."""
    sign = 1 if other.total > chosen.total else -1
    most = max(other.cycles, key=lambda name: sign * (other.cycles[name] - chosen.cycles[name]))
    count = abs(other.cycles[most] - chosen.cycles[most])

    def than(one: int, two: int, what: str) -> str:
        return f", {what.format(f'{one:,}')}, not {two:,}" if sign * one > sign * two else ""

    match most:
        case "steps":
            says = f"of steps: {'more' if sign > 0 else 'fewer'} PEs, or multipliers of a PE, idle"
        case "start":
            says = "to start and finish macro-instructions" + than(other.macros, chosen.macros, "{} of them")
        case "dma":
            says = "of waiting for the DMA" + than(other.words, chosen.words, "which moves {} words meanwhile")
        case "load":
            says = "of waiting for loads" + than(other.loads, chosen.loads, "which take {} cycles")
        case "commit":
            says = "of waiting for commits" + than(other.commits, chosen.commits, "which take {} cycles")
            says += than(other.partial, chosen.partial, "with {} words of partial sums")
        case "issue":
            says = "of waiting for the sequencer to bring instructions"
        case _:
            says = "from the last macro-instruction to the end of the layer"
    return f"{count:,} cycle{'s' * (count != 1)} {'more' if sign > 0 else 'fewer'} {says}"
