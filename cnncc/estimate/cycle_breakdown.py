"""The use of a layer's cycles, and why one mapping takes more cycles than another. By the model of cycles alone.

All cycles of a layer by itself (`layer_counts`) are one of these:

    steps     the array is busy with steps: more of them where PEs idle
    start     it starts and finishes macro-instructions
    others    stalls by cause (CAUSE-2)

So differences between two mappings add up to the difference of their cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnncc.arch.model import Arch
from cnncc.estimate.layer_limits import cause_text
from cnncc.model.layer_schedule import LayerPlan, layer_counts, layer_schedule
from cnncc.model.operand_traffic import operand_traffic
from cnncc.model.timed_program import ARRAY, Node, Task, TimedLoop


@dataclass(frozen=True)
class CycleBreakdown:
    """Cycles of a layer by itself, by their use, with the counts behind them.

    - macros: macro-instructions
    - words: that the DMA moves meanwhile, without the prefetched ones
    - partial: words of partial sums that commits read and write in the GLB
    """

    cycles: dict[str, int]
    macros: int
    words: int
    partial: int

    @property
    def total(self) -> int:
        """All cycles."""
        return sum(self.cycles.values())


def cycle_breakdown(plan: LayerPlan, arch: Arch) -> CycleBreakdown:
    """The breakdown of a mapped layer."""
    counts, schedule = layer_counts(plan, arch), layer_schedule(plan, arch)
    macros = _macros(schedule.nodes)
    start = macros * (arch.pe.start_cycles + arch.pe.finish_cycles)
    words = operand_traffic(plan.shape, plan.mapping, arch, plan.residual).counters()
    return CycleBreakdown(
        {"steps": counts.compute - start, "start": start, **counts.stall},
        macros,
        words["words"]["dram_read"] + words["words"]["dram_write"] - sum(fetch.words for fetch in schedule.prefetched),
        words["operands"]["glb_read"]["sums"] + words["operands"]["glb_write"]["sums"],
    )


def _macros(nodes: Sequence[Node]) -> int:
    return sum(
        node.count * _macros(node.body)
        if isinstance(node, TimedLoop)
        else isinstance(node, Task) and node.engine == ARRAY
        for node in nodes
    )


def difference(other: CycleBreakdown, chosen: CycleBreakdown) -> str:
    """The largest part of the difference in cycles between `other` and `chosen`, as text."""
    sign = 1 if other.total > chosen.total else -1
    most = max(other.cycles, key=lambda name: sign * (other.cycles[name] - chosen.cycles[name]))
    count = abs(other.cycles[most] - chosen.cycles[most])

    def than(one: int, two: int, template: str) -> str:
        return f", {template.format(f'{one:,}')}, not {two:,}" if sign * one > sign * two else ""

    match most:
        case "steps":
            reason = f"of steps: {'more' if sign > 0 else 'fewer'} PEs, or multipliers of a PE, idle"
        case "start":
            reason = "to start and finish macro-instructions" + than(other.macros, chosen.macros, "{} of them")
        case cause:
            reason = f"of waiting for {cause_text(cause)}"
            if cause.startswith("dram"):
                reason += than(other.words, chosen.words, "the DMA moves {} words meanwhile")
            if cause in ("output_units", "psum_file"):
                reason += than(other.partial, chosen.partial, "with {} words of partial sums")
    return f"{count:,} cycle{'s' * (count != 1)} {'more' if sign > 0 else 'fewer'} {reason}"
