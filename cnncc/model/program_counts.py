"""All counters of a program and of its layers, by the keys of docs/stats.md. No IR."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import prod
from typing import Any, cast

from cnncc.arch.model import Arch
from cnncc.mapping.mapping import DIMS
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.layer_schedule import LayerPlan, layer_schedule
from cnncc.model.operand_traffic import KINDS, OperandTraffic, operand_traffic
from cnncc.model.program_schedule import CopyPart, Part, program_cycles
from cnncc.model.register_files import file_words
from cnncc.model.routes import Nest
from cnncc.model.timed_program import PredictedCycles

Counts = dict[str, Any]

FILES = ("weight", "ifmap", "psum")
NOTHING: Counts = {
    **dict.fromkeys(KINDS, 0),
    "idle_pe_cycles": 0,
    "words": dict.fromkeys(("dram_read", "dram_write", "glb_read", "glb_write", "bus", "n2n", "psum_link"), 0),
    "operands": {
        "glb_read": dict.fromkeys(("weight", "ifmap", "params", "residual", "operand", "sums", "dma"), 0),
        "glb_write": dict.fromkeys(("results", "sums", "dma"), 0),
        "bus": dict.fromkeys(("weight", "ifmap"), 0),
    },
    "rf": {file: dict.fromkeys(("read", "write"), 0) for file in FILES},
}


def program_counts(parts: Sequence[Part], arch: Arch, causes: bool = True) -> Counts:
    """The counters of a program, and under `layers` those of its layers by label; causes: see `program_cycles`."""
    whole, cycles = program_cycles(parts, arch, causes)
    counts = dict.fromkeys(cycles, NOTHING)
    peaks: dict[str, dict[str, int]] = {label: {} for label in cycles}
    for part, after in pairwise([*parts, None]):
        if isinstance(part, CopyPart):
            counts[part.label] = _copied(part)
        elif isinstance(part, LayerPlan):
            own = _layer(part, arch, cycles[part.label])
            # Prefetched words count where their transfers stand, in the layer before.
            counts[part.label] = added([own, fetched(-_prefetched_words(part, arch))])
            peaks[part.label] = file_peaks(part, arch)
        elif isinstance(part, GroupPlan):
            counts[part.label] = _group(part, arch, cycles[part.label])
            peaks[part.label] = group_peaks(part, arch)
        if isinstance(part, CopyPart | LayerPlan | GroupPlan) and isinstance(after, LayerPlan):
            counts[part.label] = added([counts[part.label], fetched(_prefetched_words(after, arch))])
    layers = {label: counters_of(cycles[label], counts[label], peaks[label], arch) for label in cycles}
    highest: dict[str, int] = {file: max((peak.get(file, 0) for peak in peaks.values()), default=0) for file in FILES}
    return {**counters_of(whole, added([NOTHING, *counts.values()]), highest, arch), "layers": layers}


def group_peaks(plan: GroupPlan, arch: Arch) -> dict[str, int]:
    """The most words that a PE of any layer of a group holds in each register file."""
    peaks = [file_peaks(layer, arch) for layer in plan.layers]
    return {file: max(peak[file] for peak in peaks) for file in FILES}


def counters_of(cycles: PredictedCycles, counts: Counts, peaks: dict[str, int], arch: Arch) -> Counts:
    """All counters by their keys, of a piece of program on PEs of an array. peaks: slots by register file."""
    multipliers, macs = arch.rows * arch.cols * arch.pe.lanes, counts["macs"]
    busy = {"compute": cycles.compute * multipliers, "total": cycles.total * multipliers}
    return {
        "cycles": asdict(cycles),
        **{name: counts[name] for name in KINDS},
        "idle_pe_cycles": counts["idle_pe_cycles"],
        "utilisation": {name: macs / most if most else 0.0 for name, most in busy.items()},
        **{name: counts[name] for name in ("words", "operands", "rf")},
        "rf_peak": {file: peaks.get(file, 0) for file in FILES},
    }


def _layer(plan: LayerPlan, arch: Arch, cycles: PredictedCycles) -> Counts:
    words = operand_traffic(plan.shape, plan.mapping, arch, plan.residual)
    return {**words.counters(), "idle_pe_cycles": _idle(plan, arch, words, cycles.compute)}


def _group(plan: GroupPlan, arch: Arch, cycles: PredictedCycles) -> Counts:
    """The layers of a group count together: at most times several of them are under way."""
    words = [operand_traffic(layer.shape, layer.mapping, arch, layer.residual, layer.first) for layer in plan.layers]
    busy = sum(busy_pe_cycles(layer, arch, own) for layer, own in zip(plan.layers, words, strict=True))
    idle = cycles.compute * arch.rows * arch.cols - busy
    loads = [fetched(prod(layer.sizes.of(dim) for dim in "nkhw")) for layer in plan.group if layer.is_load]
    return {**added([*(own.counters() for own in words), *loads]), "idle_pe_cycles": idle}


def _idle(plan: LayerPlan, arch: Arch, words: OperandTraffic, compute: int) -> int:
    """Cycles of PEs outside a macro-instruction's rectangle: cycles of all PEs minus those of its PEs (MAC-4)."""
    return 0 if plan.shape.kind == "copy" else compute * arch.rows * arch.cols - busy_pe_cycles(plan, arch, words)


def busy_pe_cycles(plan: LayerPlan, arch: Arch, words: OperandTraffic) -> int:
    """Cycles of PEs inside."""
    nest = Nest(plan.shape, plan.mapping, plan.first)
    around = (arch.pe.start_cycles + arch.pe.finish_cycles) * nest.visits(DIMS, len(nest.outer))
    return around + words.steps


def file_peaks(plan: LayerPlan, arch: Arch) -> dict[str, int]:
    """The most slots in use, by register file; ping and pong are added up (MAC-6)."""
    if plan.shape.kind == "copy":
        return {}
    words = file_words(plan.shape, arch, plan.mapping.loops, plan.mapping.stages)
    ifmap = words["ifmap_words"] + words.get("pong_words", 0)
    return {"weight": words.get("weight_words", 0), "ifmap": ifmap, "psum": words["psum_words"]}


def _prefetched_words(plan: LayerPlan, arch: Arch) -> int:
    """The layer's words that are prefetched in the layer before."""
    return sum(fetch.words for fetch in layer_schedule(plan, arch).prefetched) if plan.prefetched else 0


def fetched(words: int) -> Counts:
    """Words that the DMA brings from DRAM."""
    return {"words": {"dram_read": words, "glb_write": words}, "operands": {"glb_write": {"dma": words}}}


def _copied(part: CopyPart) -> Counts:
    words = sum(part.words)
    return added([NOTHING, fetched(words) if part.direction == "in" else stored(words)])


def stored(words: int) -> Counts:
    """Words that the DMA takes away to DRAM."""
    return {"words": {"dram_write": words, "glb_read": words}, "operands": {"glb_read": {"dma": words}}}


def added(counts: Iterable[Counts]) -> Counts:
    """The sums of all counters, by key."""
    total: Counts = {}
    for part in counts:
        for key, value in part.items():
            total[key] = (
                added([total.get(key, {}), cast("Counts", value)])
                if isinstance(value, dict)
                else total.get(key, 0) + value
            )
    return total
