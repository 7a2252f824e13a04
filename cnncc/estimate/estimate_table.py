"""The table of an estimate, and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cnncc.arch.model import Arch
from cnncc.dialects._mapping_text import text
from cnncc.estimate.mapped_program import Program
from cnncc.estimate.roofline import roofline
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.operand_traffic import moved
from cnncc.model.stationary import name_of

LIMITS = {"pes": "PEs", "dram": "DRAM", "glb_load": "GLB loads", "glb_commit": "GLB commits"}
LEFT = (0, 1, 8, 11)  # columns of text


def as_json(program: Program) -> dict[str, Any]:
    """The keys of `run --stats`, `roofline`, and of each layer that is mapped also `kind`, `dataflow`, `mapping`."""
    counters, plans = program.counters(), program.layers()
    layers = {
        label: {**layer, **(_mapped(plans[label], layer["cycles"]["total"], program.arch) if label in plans else {})}
        for label, layer in counters["layers"].items()
    }
    about = {"source": program.source, "arch": program.arch.name}
    whole = _roofs(counters, counters["cycles"]["total"], program.arch)
    return {**about, **counters, "roofline": whole, "layers": layers}


def _mapped(plan: LayerPlan, cycles: int, arch: Arch) -> dict[str, Any]:
    shape = plan.shape
    own = moved(shape, plan.mapping, arch, plan.residual).counters()
    return {
        "roofline": _roofs(own, cycles, arch),
        "kind": shape.kind,
        "dataflow": "PEs idle" if shape.kind == "copy" else name_of(shape, plan.mapping),
        "mapping": text(plan.mapping, shape.sizes),
    }


def _roofs(counters: Mapping[str, Any], cycles: int, arch: Arch) -> dict[str, Any] | None:
    roofs = roofline(counters, arch)
    return roofs.as_json(cycles) if roofs else None


def as_text(estimate: Mapping[str, Any], program: Program) -> Iterator[str]:
    """A line for each layer, and the total."""
    arch = program.arch
    energy = f"energy [{arch.energy.unit}]"
    heads = ["layer", "dataflow", "cycles", "compute", "total", "DRAM words", "GLB words", energy]
    rows = [[*heads, "lowest roof", "allows", "reached", "mapping"]]
    used = {label: layer for label, layer in estimate["layers"].items() if layer["cycles"]["total"]}
    rows += [_row(label, layer) for label, layer in [*used.items(), ("total", estimate)]]
    yield f"{program.source} on {arch.name} ({arch.rows} x {arch.cols} PEs), predicted"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:<{width}}" if number in LEFT else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def _row(label: str, layer: Mapping[str, Any]) -> list[str]:
    words, roofs = layer["words"], layer.get("roofline")
    used = (percent(layer["utilisation"][name]) if layer["macs"] else "" for name in ("compute", "total"))
    moved = (words[f"{memory}_read"] + words[f"{memory}_write"] for memory in ("dram", "glb"))
    return [
        label,
        layer.get("dataflow", ""),
        f"{layer['cycles']['total']:,}",
        *used,
        *(f"{count:,}" for count in moved),
        f"{layer['energy']['total']:,.0f}",
        *((LIMITS[roofs["limit"]], *map(percent, (roofs["attainable"], roofs["reached"]))) if roofs else [""] * 3),
        layer.get("mapping", ""),
    ]


def percent(share: float) -> str:
    """As it is printed."""
    return f"{100 * share:.1f} %"
