"""An estimate as an HTML page that stands alone: bars of cycles, energy and words, a roofline, and every layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, floor, log2
from typing import Any, NamedTuple

from cnncc.binary.counters_text import a_second
from cnncc.estimate.estimate_table import percent
from cnncc.estimate.layer_limits import COMPUTE, LIMITS, cause_text, charged, sentence
from cnncc.estimate.mapped_program import Program
from cnncc.mapping.mapping import Mapping as LayerMapping
from cnncc.mapping.mapping import Sizes, extents
from cnncc.model.layer_schedule import LayerPlan
from cnncc.util.terminal import amount

Values = dict[str, float]

# The causes of stalls (CAUSE-2), by what is waited for.
WAITS = {
    "DRAM": tuple(cause for cause in LIMITS if cause.startswith("dram_")),
    "loads": ("glb_port", "row_bus", "write_port"),
    "commits": ("output_units", "column_bus"),
    "register files": ("weight_file", "ifmap_file", "psum_file"),
    "sequencer": ("sequencer",),
    "fill and drain": ("fill", "drain"),
}
ENERGY = {
    "operations": ("mac",),
    "register files": ("weight_rf", "ifmap_rf", "psum_rf"),
    "buses and links": ("bus", "links"),
    "GLB": ("glb",),
    "DRAM": ("dram",),
}
WIDTH, HEIGHT = 640, 320  # of the roofline
AROUND = 3  # powers of 2 that it shows at least: beside the ridge, and below the peak


class BarPart(NamedTuple):
    """A piece of a bar. share: of the longest bar, in percent."""

    name: str
    share: float
    text: str


class Bar(NamedTuple):
    """A layer's bar in a chart, and its sum as text. number: of the layer, for links."""

    label: str
    number: int
    parts: list[BarPart]
    total: str


class Chart(NamedTuple):
    """Bars of all layers. legend: the names of parts that some bar has."""

    title: str
    about: str
    legend: list[str]
    bars: list[Bar]


class Dot(NamedTuple):
    """A layer in the roofline's picture."""

    x: float
    y: float
    number: int
    text: str


class RooflinePicture(NamedTuple):
    """What each layer reaches under the roofs of PEs and DRAM. Axes are logarithmic, with a tick for each power of 2.

    - line: the roofs, as the points of a polyline
    - across, up: places and texts of ticks: operations a DRAM word, operations a cycle
    - without: layers that move no words while they run
    """

    line: str
    points: list[Dot]
    across: list[tuple[float, str]]
    up: list[tuple[float, str]]
    without: int


def as_page(estimate: Mapping[str, Any], program: Program) -> str:
    """The page of an estimate, as `as_json` of estimate_table has it. It loads nothing, and runs no scripts."""
    # jinja2 is slow to import, and escapes what models say.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = PackageLoader("cnncc.estimate", "")
    environment = Environment(
        loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    layers, arch, plans = _running(estimate), program.arch, program.layers()
    return environment.get_template("page.html").render(
        source=program.source,
        arch=arch,
        tiles=_tiles(estimate, program),
        not_counted=list(program.not_counted()),
        charts=_charts(layers, arch.energy.unit),
        roofline=_roofline(estimate, layers),
        size=(WIDTH, HEIGHT),
        layers=[_details(label, layer, plans.get(label)) for label, layer in layers.items()],
    )


def _running(estimate: Mapping[str, Any]) -> dict[str, Any]:
    """The layers, and rows around them, that take cycles."""
    return {label: layer for label, layer in estimate["layers"].items() if layer["cycles"]["total"]}


def _tiles(estimate: Mapping[str, Any], program: Program) -> Iterator[tuple[str, str]]:
    """Figures of the network and what they are."""
    cycles, words, arch = estimate["cycles"]["total"], estimate["words"], program.arch
    yield f"{cycles:,}", "cycles"
    yield percent(estimate["utilisation"]["total"]), "utilisation"
    yield f"{words['dram_read'] + words['dram_write']:,}", "DRAM words"
    yield amount(estimate["energy"]["total"]), f"energy, unit: {arch.energy.unit}"
    if rate := a_second(cycles, arch.clock_mhz):
        yield rate, f"at {arch.clock_mhz:,} MHz"


# -- bars --------------------------------------------------------------------------------------------------------------


def _charts(layers: Mapping[str, Any], unit: str) -> list[Chart]:
    return [
        _chart("Cycles", "What the array does in each layer's cycles, and what it waits for.", layers, _cycles),
        _chart("Energy", f"Unit: {unit}.", layers, lambda layer: _sums(layer["energy"], ENERGY)),
        _chart("DRAM words", "Words that move while the layer runs.", layers, _dram_words),
    ]


def _cycles(layer: Mapping[str, Any]) -> Values:
    """Cycles of operations with all PEs busy, those that idle PEs make more, and stalls."""
    cycles = layer["cycles"]
    busy = round(layer["utilisation"]["total"] * cycles["total"]) if layer["macs"] else cycles[COMPUTE]
    return {"operations": busy, "some PEs idle": cycles[COMPUTE] - busy, **_sums(cycles["stall"], WAITS)}


def _dram_words(layer: Mapping[str, Any]) -> Values:
    return {"read": layer["words"]["dram_read"], "written": layer["words"]["dram_write"]}


def _sums(values: Mapping[str, float], groups: Mapping[str, Sequence[str]]) -> Values:
    return {name: sum(values[key] for key in keys) for name, keys in groups.items()}


def _chart(title: str, about: str, layers: Mapping[str, Any], parts_of: Callable[[Mapping[str, Any]], Values]) -> Chart:
    """Bars whose parts are some figures of each layer; layers without any have none."""
    values = {label: parts_of(layer) for label, layer in layers.items()}
    longest = max((sum(each.values()) for each in values.values()), default=0)
    bars = list[Bar]()
    for number, (label, each) in enumerate(values.items()):
        if total := sum(each.values()):
            parts = [
                BarPart(name, 100 * value / longest, f"{label}: {name} {amount(value)} ({percent(value / total)})")
                for name, value in each.items()
                if value
            ]
            bars.append(Bar(label, number, parts, amount(total)))
    names = dict.fromkeys(name for each in values.values() for name in each)
    legend = [name for name in names if any(each[name] for each in values.values())]
    return Chart(title, about, legend, bars)


# -- the roofline ------------------------------------------------------------------------------------------------------


def _roofline(estimate: Mapping[str, Any], layers: Mapping[str, Any]) -> RooflinePicture | None:
    """None where no layer moves DRAM words."""
    roofs = {label: layer["roofline"] for label, layer in layers.items() if layer.get("roofline")}
    reached = {
        label: (each["roofs"]["dram"]["intensity"], each["operations"] / layers[label]["cycles"]["total"])
        for label, each in roofs.items()
        if "dram" in each["roofs"]
    }
    if not reached:
        return None
    peak, bandwidth = estimate["roofline"]["peak"], estimate["roofline"]["roofs"]["dram"]["words_per_cycle"]
    ridge = peak / bandwidth
    words, rates = zip(*reached.values(), strict=True)
    left = min(floor(log2(min(words))), floor(log2(ridge)) - AROUND)
    right = max(ceil(log2(max(words))), ceil(log2(ridge)) + AROUND)
    top = ceil(log2(peak))
    bottom = min(floor(log2(min(rates))), top - AROUND)

    def across(intensity: float) -> float:
        return round(WIDTH * (log2(intensity) - left) / (right - left), 1)

    def up(rate: float) -> float:
        return round(HEIGHT * (top - log2(rate)) / (top - bottom), 1)

    start = max(2.0**left, 2.0**bottom / bandwidth)
    line = [(across(start), up(bandwidth * start)), (across(ridge), up(peak)), (across(2.0**right), up(peak))]
    numbers = {label: number for number, label in enumerate(layers)}
    return RooflinePicture(
        " ".join(f"{x},{y}" for x, y in line),
        [
            Dot(
                across(intensity),
                up(rate),
                numbers[label],
                f"{label}: {amount(rate)} operations a cycle, {amount(intensity)} a DRAM word",
            )
            for label, (intensity, rate) in reached.items()
        ],
        [(across(2.0**power), amount(2.0**power)) for power in range(left, right + 1)],
        [(up(2.0**power), amount(2.0**power)) for power in range(bottom, top + 1)],
        len(roofs) - len(reached),
    )


# -- layers ------------------------------------------------------------------------------------------------------------


def _details(label: str, layer: Mapping[str, Any], plan: LayerPlan | None) -> dict[str, Any]:
    """What the page says of one layer, or of a group."""
    cycles = layer["cycles"]
    waits = sorted(cycles["stall"].items(), key=lambda stall: -stall[1])
    spent = {
        "the array computes": cycles[COMPUTE],
        **{f"waits for {cause_text(cause)}": count for cause, count in waits},
    }
    return {
        "label": label,
        "kind": plan
        and f"{layer['kind']}, {' '.join(f'{dim} {size}' for dim, size in vars(plan.shape.sizes).items())}",
        "dataflow": layer.get("dataflow"),
        "nest": list(nest_lines(plan.mapping, plan.shape.sizes)) if plan else [],
        "members": layer.get("members", {}),
        "limit": sentence(label, layer).removeprefix(f"{label}: ") if "limit" in layer else None,
        "cycles": f"{cycles['total']:,}",
        "utilisation": percent(layer["utilisation"]["total"]) if layer["macs"] else "",
        "tables": {
            f"of {charged(cycles):,} cycles": _amounts(spent),
            "words": _amounts(layer["words"]),
            "energy": _amounts({name: value for name, value in layer["energy"].items() if name != "total"}),
        },
    }


def _amounts(values: Mapping[str, float]) -> dict[str, str]:
    return {name.replace("_", " "): amount(value) for name, value in values.items() if value}


def nest_lines(mapping: LayerMapping, sizes: Sizes) -> Iterator[str]:
    """A mapping as a loop nest, one loop or stage a line.

    Example: weight@glb > h':4 > [k||8@cols] > … of k 8, h 14:

        stage weight in glb
        for h step 4: 4 times
          par k on cols: 8 times
            …
    """
    loops = mapping.loops
    for depth, (loop, extent) in enumerate(zip(loops, extents(sizes, loops), strict=True)):
        yield from _stages(mapping, depth)
        step = f" step {loop.step}" if loop.step > 1 else ""
        where = f" on {loop.on}" if loop.on else " keep" if loop.keep else ""
        kind = "par" if loop.on else "for"
        yield f"{'  ' * depth}{kind} {loop.dim}{step}{where}: {ceil(extent / loop.step)} times"
    yield from _stages(mapping, len(loops))


def _stages(mapping: LayerMapping, depth: int) -> Iterator[str]:
    for stage in mapping.stages:
        if stage.depth == depth:
            yield f"{'  ' * depth}stage {stage.operand} in {stage.memory}" + (
                f" buffers {stage.buffers}" if stage.buffers > 1 else ""
            )
