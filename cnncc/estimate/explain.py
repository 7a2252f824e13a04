"""Why a layer takes as long as it does, and which number of the array would help most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from cnncc.arch.model import Arch
from cnncc.errors import Refusal
from cnncc.estimate.program import Program
from cnncc.estimate.table import LIMITS, percent
from cnncc.explore.vary import Value, with_config
from cnncc.mapper.layer_schedule import LayerPlan

BUSY = {"compute": "array", "load": "loads", "commit": "commits", "dma": "DMA"}  # the engines, by their counters
RATES = {  # what an engine's cycles depend on, but for the mapping
    "compute": (),
    "load": ("glb.words_per_cycle", "bus.burst_words"),
    "commit": ("commit.units_per_column", "glb.words_per_cycle"),
    "dma": ("dram.words_per_cycle",),
}
KEPT = ("operand_bits", "psum_bits", "energy")  # the network would be another one, or nothing would
CHANGES_SHOWN = 3


@dataclass(frozen=True)
class Change:
    """What another value of a key makes of the cycles of a layer and of the program."""

    key: str
    was: Value
    value: Value
    layer: int
    program: int


def variations(arch: Arch) -> Iterator[tuple[str, Value, Value]]:
    """Each key with its value, and with the one to try.

    Sizes, numbers and rates twice as large, cycles that something takes half as many, links and overlap where there are
    none; as far as the architecture file allows.
    """
    for key, value in _flat(asdict(arch)):
        if key.startswith(KEPT) or isinstance(value, str):
            continue
        if isinstance(value, bool):
            tried: Value = True
        else:
            tried = value // 2 if key.endswith("_cycles") else 2 * value
        if tried != value:
            yield key, value, tried


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def changes(program: Program, label: str, progress: Callable[[str], None]) -> list[Change]:
    """Each key changed by itself, those with which the layer is faster; the fastest first."""
    now = program.counters()["layers"][label]["cycles"]["total"]
    found: list[Change] = []
    for key, was, value in variations(program.arch):
        progress(f"{label}: {key}")
        try:
            arch = with_config(program.arch, {key: value})
            there = program.counters(arch, program.on(arch))
        except Refusal:  # out of range, or the network does not fit
            continue
        cycles = there["layers"][label]["cycles"]["total"]
        if cycles < now:
            found.append(Change(key, was, value, cycles, there["cycles"]["total"]))
    return sorted(found, key=lambda change: (change.layer, change.program))


def limit(program: Program, label: str) -> tuple[str, str]:
    """The engine that is busy longest during a layer, and the key whose double would relieve it most."""
    busy = _busy(program.counters(), label)
    engine = max(busy, key=lambda name: busy[name])
    least, what = busy[engine], ""
    for key in RATES[engine]:
        table, name = key.split(".")
        arch = with_config(program.arch, {key: 2 * getattr(getattr(program.arch, table), name)})
        if (relieved := _busy(program.counters(arch), label)[engine]) < least:
            least, what = relieved, key
    return engine, what


def _busy(counters: Mapping[str, Any], label: str) -> dict[str, int]:
    return {name: counters["layers"][label]["cycles"][name] for name in BUSY}


def explained(program: Program, label: str, progress: Callable[[str], None]) -> dict[str, Any]:
    """What `--json` has of it: the limit, and the changes of the array that make the layer faster."""
    engine, what = limit(program, label)
    found = [asdict(change) for change in changes(program, label, progress)]
    return {"layer": label, "limit": {"engine": engine, "key": what}, "changes": found}


def as_text(estimate: Mapping[str, Any], plan: LayerPlan) -> Iterator[str]:
    """The layer's mapping, what is busy and waits, its roofs, and the changes that help most.

    estimate: with what `explained` found as `explain`.
    """
    found = estimate["explain"]
    layer, total = estimate["layers"][found["layer"]], estimate["layers"][found["layer"]]["cycles"]["total"]
    sizes = " ".join(f"{dim} {size}" for dim, size in vars(plan.shape.sizes).items())
    yield f"{plan.label}  {layer['kind']}, {sizes}: {layer['dataflow']}"
    yield f"  {layer['mapping']}"
    busy = ", ".join(f"{name} {_part(layer['cycles'][key], total)}" for key, name in BUSY.items())
    yield f"  {total:,} cycles; busy: {busy}"
    stalls = ", ".join(f"{name} {_part(count, total)}" for name, count in layer["cycles"]["stall"].items() if count)
    yield f"  the array waits for: {stalls or 'nothing'}"
    engine, key = found["limit"].values()
    by = f", by {key}" if key else ", one word a cycle into each PE (L2)" if engine == "load" else ""
    yield f"  limit: {BUSY[engine]}{by}"
    if roofs := layer["roofline"]:
        yield f"  roofs, operations a cycle: PEs {roofs['peak']:,}; " + "; ".join(
            f"{LIMITS[name]} {roof['intensity'] * roof['words_per_cycle']:,.1f} "
            f"({roof['intensity']:,.1f} a word, ridge at {roof['ridge']:,.1f})"
            for name, roof in roofs["roofs"].items()
        )
        yield f"  lowest: {LIMITS[roofs['limit']]}, of which it reaches {percent(roofs['reached'])}"
    for change in found["changes"][:CHANGES_SHOWN]:
        own, whole = change["layer"] / total - 1, change["program"] / estimate["cycles"]["total"] - 1
        tried = f"{change['key']} {_said(change['was'])} -> {_said(change['value'])}"
        yield f"  {tried}: {change['layer']:,} cycles ({100 * own:+.1f} %), the network {100 * whole:+.1f} %"
    if not found["changes"]:
        yield "  no key of the array, changed alone, makes it faster"


def _said(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:,}"


def _part(count: int, total: int) -> str:
    return f"{count:,} ({percent(count / total)})" if total else f"{count:,}"
