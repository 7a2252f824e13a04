"""All counters of layers side by side, by the keys of docs/stats.md. No IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from cnncc.arch.model import Arch, core_arch
from cnncc.mapping.channels import Region
from cnncc.model.cores_plan import CoresPlan
from cnncc.model.cores_schedule import predicted_frames
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.operand_traffic import operand_traffic
from cnncc.model.program_counts import (
    FILES,
    NOTHING,
    Counts,
    added,
    busy_pe_cycles,
    counters_of,
    fetched,
    group_peaks,
    program_counts,
    stored,
)
from cnncc.model.program_schedule import HostPart, Part, total


def all_counts(parts: Sequence[Part], arch: Arch, causes: bool = True, frames: int = 1) -> Counts:
    """The counters of a program; also of its layers, and of its cores where it has several.

    frames: images that follow each other through cores. causes: see `program_cycles`.
    """
    plans = [part for part in parts if isinstance(part, CoresPlan)]
    return cores_counts(plans[0], parts, arch, causes, frames) if plans else program_counts(parts, arch, causes)


def cores_counts(plan: CoresPlan, parts: Sequence[Part], arch: Arch, causes: bool, frames: int) -> Counts:
    """The counters of cores that run for so many frames."""
    at = parts.index(plan)
    hosts = tuple(sum(isinstance(part, HostPart) for part in side) for side in (parts[:at], parts[at + 1 :]))
    timed = predicted_frames(plan, arch, frames, causes, (hosts[0], hosts[1]))
    archs = [core_arch(arch, 0, 0), *(core_arch(arch, region.rows, region.cols) for region in plan.regions)]
    words = [_group(group, own, frames) for group, own in zip(plan.groups, archs[1:], strict=True)]
    weights = sum(fetch["words"]["dram_read"] for _, fetch in words)
    of_dma = {
        "weights": added([NOTHING, fetched(weights)]),
        "frames": added([NOTHING, fetched(plan.image * frames), stored(plan.result * frames)]),
    }
    counts = [added(of_dma.values()), *(own for own, _ in words)]
    for own, cycles, core in zip(counts, timed.cores, archs, strict=True):
        own["idle_pe_cycles"] += cycles.compute * core.rows * core.cols
    peaks: list[dict[str, int]] = [dict.fromkeys(FILES, 0), *map(group_peaks, plan.groups, archs[1:])]
    cores = [counters_of(*each) for each in zip(timed.cores, counts, peaks, archs, strict=True)]
    regions = [Region(0, 0), *plan.regions]
    highest = {file: max(peak[file] for peak in peaks) for file in FILES}
    # The cores run side by side: their total is that of the longest one.
    together = replace(total(timed.cores), total=timed.total)
    whole = counters_of(together, added(counts), highest, arch)
    computing = sum(own.compute * core.rows * core.cols for own, core in zip(timed.cores, archs, strict=True))
    whole["utilisation"]["compute"] = whole["macs"] / (computing * arch.pe.lanes) if computing else 0.0
    layers = {
        label: counters_of(cycles, of_dma[label], peaks[0], archs[0])
        for label, cycles in timed.of_dma.items()
    }  # fmt: skip
    layers |= {group.label: core for group, core in zip(plan.groups, cores[1:], strict=True)}
    period = timed.period
    return {
        **whole,
        "frames": {"count": frames, "first": timed.first, "period": period._asdict() if period else None},
        "channels": [
            {"from": channel.group + 1, "to": channel.group + 2, "rows": rows}
            for channel, rows in zip(plan.channels, timed.peaks, strict=True)
        ],
        "cores": [{**vars(region), **core} for region, core in zip(regions, cores, strict=True)],
        "layers": layers,
    }


def _group(plan: GroupPlan, arch: Arch, frames: int) -> tuple[Counts, Counts]:
    """What a core counts in so many frames, and what core 0 brings for it once. Its cycles of PEs are still missing."""
    counts, busy, brought = [NOTHING], 0, list[Counts]()
    for layer in plan.layers:
        traffic = operand_traffic(layer.shape, layer.mapping, arch, layer.residual, layer.first)
        busy += busy_pe_cycles(layer, arch, traffic)
        counts.append(traffic.counters())
        brought.append(fetched(traffic.of("dram_read")))
    own = _times(added(counts), frames)
    there = added([fetched(0), *brought])
    # The counters of a layer have its weights, in each frame. Core 0 brings them, once.
    own = added([own, _times(there, -frames), {"idle_pe_cycles": -busy * frames}])
    return own, there


def _times(counts: Counts, times: int) -> Counts:
    scaled: Counts = {}
    for key, value in counts.items():
        scaled[key] = _times(cast("Counts", value), times) if isinstance(value, dict) else value * times
    return scaled
