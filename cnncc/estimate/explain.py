"""Why a layer takes as long as it does, and which number of the array would help most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from cnncc.estimate.alternatives import CHOSEN, compare_dataflows
from cnncc.estimate.array_changes import changes
from cnncc.estimate.estimate_table import LIMITS, percent
from cnncc.estimate.layer_limits import cause_text, charged, sentence
from cnncc.estimate.mapped_program import Program
from cnncc.explore.array_grid import Value
from cnncc.model.layer_schedule import LayerPlan
from cnncc.util.progress import Progress
from cnncc.util.terminal import amount

COSTS = {"dram_words": "DRAM words", "energy": "energy"}
BUSY = {"compute": "array", "load": "loads", "commit": "commits", "dma": "DMA"}  # the engines, by their counters


def explain_layer(program: Program, label: str, progress: Progress) -> dict[str, Any]:
    """What `--json` has of it: the best of each dataflow, the changes of the array that make it faster."""
    comparison = compare_dataflows(program.network, label, progress) if program.network else None
    helps = [asdict(change) for change in changes(program, label, progress)]
    return {"layer": label, "compared": asdict(comparison) if comparison else None, "changes": helps}


def as_text(estimate: Mapping[str, Any], plan: LayerPlan) -> Iterator[str]:
    """The layer's mapping, what is busy and waits, its roofs, and the changes that help most.

    estimate: with what `explain_layer` returns as `explain`.
    """
    explanation = estimate["explain"]
    layer = estimate["layers"][explanation["layer"]]
    total = layer["cycles"]["total"]
    sizes = " ".join(f"{dim} {size}" for dim, size in vars(plan.shape.sizes).items())
    yield f"{plan.label}  {layer['kind']}, {sizes}: {layer['dataflow']}"
    yield f"  {layer['mapping']}"
    yield from busy_and_limit(plan.label, layer)
    if roofs := layer["roofline"]:
        yield f"  roofs, operations a cycle: PEs {roofs['peak']:,}; " + "; ".join(
            f"{LIMITS[name]} {roof['intensity'] * roof['words_per_cycle']:,.1f} "
            f"({roof['intensity']:,.1f} a word, ridge at {roof['ridge']:,.1f})"
            for name, roof in roofs["roofs"].items()
        )
        yield f"  lowest: {LIMITS[roofs['limit']]}, of which it reaches {percent(roofs['reached'])}"
    if explanation["compared"]:
        for name, cost in explanation["compared"]["costs"].items():
            least = f"no mapping of the space in its GLB budget has fewer than {amount(cost['least'])}"
            beyond = ": this one is beyond the space" if cost["chosen"] < cost["least"] else ""
            yield f"  {COSTS[name]}: {amount(cost['chosen'])}; {least}{beyond}"
        yield from _dataflows(explanation["compared"])
    yield "  on another array, the other layers mapped as they are:"
    for change in explanation["changes"]:
        own, whole = change["layer"] / total - 1, change["program"] / estimate["cycles"]["total"] - 1
        tried = f"{change['key']} {_said(change['was'])} -> {_said(change['value'])}"
        yield f"    {tried}: {change['layer']:,} cycles ({100 * own:+.1f} %), the network {100 * whole:+.1f} %"
    if not explanation["changes"]:
        yield "    no key of the array, changed alone, makes it faster"


def busy_and_limit(label: str, layer: Mapping[str, Any]) -> Iterator[str]:
    """The cycles of a layer or a group, what is busy, what the array waits for, and what limits it."""
    total = layer["cycles"]["total"]
    busy = ", ".join(f"{name} {_part(layer['cycles'][key], total)}" for key, name in BUSY.items())
    yield f"  {total:,} cycles; busy: {busy}"
    stalls = sorted(layer["cycles"]["stall"].items(), key=lambda stall: -stall[1])
    whole = charged(layer["cycles"])
    waits = ", ".join(f"{cause_text(cause)} {_part(count, whole)}" for cause, count in stalls if count)
    since = "" if whole == total else f" (of {whole:,} cycles, with a wait that began before the layer)"
    yield f"  the array waits for: {waits or 'nothing'}{since}"
    yield f"  {sentence(label, layer)}"


def _dataflows(compared: Mapping[str, Any]) -> Iterator[str]:
    """The best mapping of each dataflow, and why it was not chosen."""
    streamed = f", {' and '.join(compared['streamed'])} streamed" if compared["streamed"] else ""
    budget = f"in {compared['budget']:,} words of the GLB{streamed}"
    yield f"  alone it takes {compared['cycles']:,} cycles; the best of each dataflow {budget}:"
    for runner_up in compared["dataflows"]:
        more = _more(runner_up["more"], compared["cycles"])
        cycles = f"{runner_up['cycles']:,} cycles ({more}): " if runner_up["mapping"] else ""
        yield f"    {runner_up['dataflow']}  {cycles}{runner_up['why']}"
        if runner_up["mapping"] and runner_up["why"] != CHOSEN:
            yield f"      {runner_up['mapping']}"
    if all(runner_up["more"] > 0 for runner_up in compared["dataflows"] if runner_up["mapping"]):
        yield "    the chosen mapping is none of them: a schedule or further tries gave it"


def _more(more: int, cycles: int) -> str:
    return f"{more:+,}, {100 * more / cycles:+.1f} %" if more else "+0"


def _said(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:,}"


def _part(count: int, total: int) -> str:
    return f"{count:,} ({percent(count / total)})" if total else f"{count:,}"
