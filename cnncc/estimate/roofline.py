"""The rooflines of a layer: what multipliers, DRAM and the ports of the GLB would let it do at most.

ROOF-1  The roof of the PEs is their operations a cycle: multipliers, or PEs where operations are not
        multiplications.
ROOF-2  That of a memory or port is its words a cycle times the operations for each word that moves there.
ROOF-3  The lowest roof limits. A layer is left of the ridge of a memory where that one's roof is below the PEs'.
        Words of DRAM count that move while the layer runs: not prefetched ones, nor results that leave afterwards.
        So no layer does better than its roof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cnncc.arch.model import Arch
from cnncc.model.layer_schedule import LayerPlan, layer_schedule
from cnncc.model.layer_shape import stage_block


@dataclass(frozen=True)
class Roof:
    """A memory or port. intensity: operations for each of `words`; at the ridge it would keep up with the PEs."""

    words: int
    words_per_cycle: float
    intensity: float
    ridge: float

    @property
    def operations_per_cycle(self) -> float:
        """The roof."""
        return self.intensity * self.words_per_cycle


@dataclass(frozen=True)
class Roofline:
    """What limits a layer. peak: operations a cycle of the PEs; roofs: of memories and ports."""

    operations: int
    peak: int
    roofs: dict[str, Roof]

    @property
    def limit(self) -> str:
        """The name of the lowest roof; `pes` where none is below the PEs'."""
        lowest = min(self.roofs, key=lambda name: self.roofs[name].operations_per_cycle, default="pes")
        return lowest if lowest != "pes" and self.roofs[lowest].operations_per_cycle < self.peak else "pes"

    @property
    def attainable(self) -> float:
        """The lowest roof over the peak."""
        return 1.0 if self.limit == "pes" else self.roofs[self.limit].operations_per_cycle / self.peak

    def as_json(self, cycles: int) -> dict[str, Any]:
        """All of it, and which share of the lowest roof the layer reaches in so many cycles."""
        return {
            "operations": self.operations,
            "peak": self.peak,
            "roofs": {name: asdict(roof) for name, roof in self.roofs.items()},
            "limit": self.limit,
            "attainable": self.attainable,
            "reached": self.operations / (cycles * self.peak * self.attainable),
        }


def roofline(counters: Mapping[str, Any], arch: Arch) -> Roofline | None:
    """That of a layer or program with these operations and words (keys of docs/stats.md); None where the PEs idle."""
    if not (operations := counters["macs"] or counters["max"] + counters["add"]):
        return None
    # MAC-7: with lane_sums, maxima and sums use all lanes of a PE, too.
    peak = arch.rows * arch.cols * (arch.pe.lanes if counters["macs"] or arch.pe.lane_sums else 1)
    words, read, write = counters["words"], counters["operands"]["glb_read"], counters["operands"]["glb_write"]
    committed = (read[name] for name in ("params", "residual", "operand", "sums"))
    moved = {
        "dram": (words["dram_read"] + words["dram_write"], arch.dram.words_per_cycle),
        "glb_load": (read["weight"] + read["ifmap"], arch.glb.words_per_cycle),
        "glb_commit": (sum(committed) + write["results"] + write["sums"], arch.glb.words_per_cycle),
    }
    roofs = {name: Roof(count, rate, operations / count, peak / rate) for name, (count, rate) in moved.items() if count}
    return Roofline(operations, peak, roofs)


def words_meanwhile(plan: LayerPlan, arch: Arch, words: Mapping[str, int]) -> dict[str, int]:
    """The words between DRAM and GLB that certainly move while the layer runs.

    Prefetched operands move before. If the layer does not wait for the DMA at its end (COST-1), one block of results
    for each buffer may move after it.
    """
    prefetched = sum(fetch.words for fetch in layer_schedule(plan, arch).prefetched)
    stage = next((stage for stage in plan.mapping.stages if (stage.operand, stage.memory) == ("output", "glb")), None)
    behind = 0
    if stage and not plan.drains:
        behind = stage.buffers * stage_block(plan.shape, plan.mapping.loops, stage).words
    return {
        "dram_read": max(0, words["dram_read"] - prefetched),
        "dram_write": max(0, words["dram_write"] - behind),
    }
