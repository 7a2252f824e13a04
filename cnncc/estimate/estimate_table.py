"""The table of an estimate, and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from cnncc.arch.model import Arch
from cnncc.binary.counters_text import a_second
from cnncc.driver import group_text
from cnncc.estimate.layer_limits import limit_sentences, limits
from cnncc.estimate.mapped_program import Program
from cnncc.estimate.roofline import roofline, words_meanwhile
from cnncc.mapping.groups import GroupLayer
from cnncc.mapping.text import text
from cnncc.model.group_schedule import GroupPlan
from cnncc.model.layer_schedule import LayerPlan
from cnncc.model.operand_traffic import operand_traffic
from cnncc.model.stationary import name_of
from cnncc.util.terminal import NAME, TEXT, Column, amount, table

LIMITS = {"pes": "PEs", "dram": "DRAM", "glb_load": "GLB loads", "glb_commit": "GLB commits"}
COLUMNS = (
    Column("layer", NAME),
    Column("cycles"),
    Column("utilisation"),
    Column("in compute", drop=7),
    Column("DRAM words", drop=2),
    Column("GLB words", drop=3),
    Column("energy", drop=4),
    Column("lowest roof", TEXT, drop=5),
    Column("allows", drop=6),
    Column("reached", drop=1),
)


def as_json(program: Program) -> dict[str, Any]:
    """The keys of `run --stats` and `roofline`; of each layer that is mapped also `limit` and what its mapping is."""
    counters, plans, groups = program.counters(), program.layers(), program.groups()
    limited = limits(program.parts, program.arch, counters["layers"])
    layers = {
        label: layer
        | (_mapped(plans[label], layer, program.arch, limited[label]) if label in plans else {})
        | (_grouped(groups[label], limited[label]) if label in groups else {})
        for label, layer in counters["layers"].items()
    }
    about = {"source": program.source, "arch": program.arch.name, "clock_mhz": program.arch.clock_mhz}
    whole = _roofs(counters, counters["cycles"]["total"], program.arch)
    chosen = {"groups": asdict(program.chosen)} if program.chosen else {}
    return {**about, **counters, "roofline": whole, "layers": layers, **chosen, "host": program.host}


def _grouped(plan: GroupPlan, limit: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a group, and of its layers and loads in it."""
    return {"limit": limit, "members": {own.label: _member(own, layer) for own, layer in plan.plans}}


def _member(own: GroupLayer, layer: LayerPlan | None) -> dict[str, Any]:
    """A layer or a load of a group: rows of its stripes, of the first one and of its ring; delay in stripes."""
    in_group = {"rows": own.rows, "first": own.stripes.head, "delay": own.delay, "keeps": own.keeps, "kind": own.kind}
    if layer is None:
        return in_group
    shape, mapping = layer.shape, layer.mapping
    return {**in_group, "dataflow": name_of(shape, mapping), "mapping": text(mapping, shape.sizes)}


def _mapped(plan: LayerPlan, layer: Mapping[str, Any], arch: Arch, limit: Mapping[str, Any]) -> dict[str, Any]:
    shape = plan.shape
    own = operand_traffic(shape, plan.mapping, arch, plan.residual).counters()
    own["words"] |= words_meanwhile(plan, arch, own["words"])
    return {
        "roofline": _roofs(own, layer["cycles"]["total"], arch),
        "limit": limit,
        "kind": shape.kind,
        "dataflow": "PEs idle" if shape.kind == "copy" else name_of(shape, plan.mapping),
        "mapping": text(plan.mapping, shape.sizes),
    }


def _roofs(counters: Mapping[str, Any], cycles: int, arch: Arch) -> dict[str, Any] | None:
    roofs = roofline(counters, arch)
    return roofs.as_json(cycles) if roofs else None


def as_text(estimate: Mapping[str, Any], program: Program) -> Iterator[str]:
    """Tables of what each layer takes and of the mappings; what limits the layers that lose the most cycles."""
    arch = program.arch
    used = {label: layer for label, layer in estimate["layers"].items() if layer["cycles"]["total"]}
    array = f"{arch.name} ({arch.rows} x {arch.cols} PEs)"
    yield f"{program.source} on {array}, predicted; unit of energy: {arch.energy.unit}"
    yield from table(COLUMNS, [_row(label, layer) for label, layer in [*used.items(), ("total", estimate)]])
    if rate := a_second(estimate["cycles"]["total"], arch.clock_mhz):
        yield f"  the array does it all {rate}"
    yield from program.not_counted()
    yield ""
    mapped = [
        (name, each["dataflow"], each["mapping"])
        for label, layer in used.items()
        for name, each in layer.get("members", {label: layer}).items()
        if "mapping" in each
    ]
    yield from table([Column("layer", NAME), Column("dataflow", TEXT), Column("mapping", TEXT)], mapped)
    yield ""
    yield from limit_sentences(estimate["layers"])
    if program.chosen:
        yield ""
        yield from group_text.as_text(program.chosen)


def _row(label: str, layer: Mapping[str, Any]) -> list[str]:
    words, roofs = layer["words"], layer.get("roofline")
    used = (percent(layer["utilisation"][name]) if layer["macs"] else "" for name in ("total", "compute"))
    moved = (words[f"{memory}_read"] + words[f"{memory}_write"] for memory in ("dram", "glb"))
    return [
        label,
        f"{layer['cycles']['total']:,}",
        *used,
        *(f"{count:,}" for count in moved),
        amount(layer["energy"]["total"]),
        *((LIMITS[roofs["limit"]], *map(percent, (roofs["attainable"], roofs["reached"]))) if roofs else [""] * 3),
    ]


def percent(share: float) -> str:
    """As it is printed."""
    return f"{100 * share:.1f} %"
