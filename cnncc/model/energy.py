"""Energy of a program or a layer: Σ counter * energy per event, as the architecture file gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cnncc.arch.model import Energy


def energy(counters: Mapping[str, Any], costs: Energy) -> dict[str, float]:
    """Energy by component in `costs.unit`, and their sum as `total`.

    counters: `macs`, `max`, `add`, `words` and `rf` of docs/stats.md, counted or predicted. Parts without a counter
    (output units, sequencer, clock, leakage) cost nothing.
    """
    rf, words = counters["rf"], counters["words"]
    parts = {
        "mac": (counters["macs"] + counters["max"] + counters["add"]) * costs.mac,
        "weight_rf": rf["weight"]["read"] * costs.weight_read + rf["weight"]["write"] * costs.weight_write,
        "ifmap_rf": rf["ifmap"]["read"] * costs.ifmap_read + rf["ifmap"]["write"] * costs.ifmap_write,
        "psum_rf": rf["psum"]["read"] * costs.psum_read + rf["psum"]["write"] * costs.psum_write,
        "links": words["n2n"] * costs.n2n + words["psum_link"] * costs.south,
        "bus": words["bus"] * costs.bus,
        "glb": words["glb_read"] * costs.glb_read + words["glb_write"] * costs.glb_write,
        "dram": words["dram_read"] * costs.dram_read + words["dram_write"] * costs.dram_write,
    }
    return {"total": sum(parts.values()), **parts}


def with_energy(stats: Mapping[str, Any], costs: Energy) -> dict[str, Any]:
    """Counters of a program with `energy`, and those of its layers, and of its cores if it has some, with theirs."""
    layers = {label: {**layer, "energy": energy(layer, costs)} for label, layer in stats["layers"].items()}
    cores = [{**core, "energy": energy(core, costs)} for core in stats.get("cores", ())]
    return {**stats, "energy": energy(stats, costs), **({"cores": cores} if cores else {}), "layers": layers}
