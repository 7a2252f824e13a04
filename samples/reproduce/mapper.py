"""Reproduce what the mapper reaches on well-known networks: cycles and utilisation, beside what structure allows.

Networks are those of `samples/models.py`, up to their last convolution, quantised with random images. Each is compiled
for every array as one program, whose counters are predicted by the cost model and counted by the interpreter on its
binary: all must be equal.

- Utilisation: MACs / (multipliers * cycles). *compute* takes the cycles of macro-instructions, *total* those of the
  whole program, from the first word of the DMA to the last commit.
- Bound of a layer (`structure.py`): no mapping can be above. It counts the words that do not fit the GLB, too.
- Bound of a network (`whole_values.py`): for all programs whose layers run one after the other, and whose values lie in
  the GLB as a whole or not at all.

Arrays are the presets spatial-8x8, spatial-16x16, seed-8x8, and seed-16x16, which is seed-8x8 with more PEs; --glb is
the size of their global buffers. Seconds of the search are CPU seconds, those of child processes included.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import click
from structure import Bound, Shape, bound, shape_of, through_dram
from whole_values import fewest_cycles, network_of
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import Arch, arch_text, load_arch
from cnncc.binary.counters import program_stats
from cnncc.dialects.nest import LayerOp, mapping_of
from cnncc.driver.build import binary_of
from cnncc.driver.pipeline import ASSIGN, NONE, TO_PROGRAMS, Compilation
from cnncc.driver.program_parts import predicted_counters, prefetched_operands
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.mapping.text import text
from cnncc.passes._scheduling.dataflows import AUTO
from cnncc.passes._scheduling.nest_layers import label_of
from cnncc.util.progress import Progress, progress_line
from cnncc.util.terminal import NAME, TEXT, Column, fitted, table

MODELS = Path(__file__).resolve().parents[1] / "models.py"
NETWORKS = ("alexnet", "vgg16", "resnet20", "light-resnet50", "mobilenet")
PRESETS = {
    "spatial-8x8": ("spatial-8x8", 8),
    "spatial-16x16": ("spatial-16x16", 16),
    "seed-8x8": ("seed-8x8", 8),
    "seed-16x16": ("seed-8x8", 16),
}
GLB_KIB = (128, 2048)
WANTED = {"compute": 0.97, "total": 0.92}  # of utilisation, where loads and commits overlap with computing


@dataclass(frozen=True)
class Layer:
    """A layer with MACs: its cycles, what they are at least, and how it was mapped."""

    label: str
    macs: int
    compute: int
    total: int
    least_compute: int
    least_total: int
    depthwise: bool
    mapping: str


@dataclass(frozen=True)
class Run:
    """A network on an array: cycles of its program, what they are at least, CPU seconds of the search."""

    network: str
    array: str
    glb_kib: int
    overlaps: bool
    multipliers: int
    macs: int
    compute: int
    total: int
    least_compute: int
    least_total: int
    search_s: float
    layers: tuple[Layer, ...]

    def utilisation(self, cycles: int) -> float:
        """Of the multipliers, if the network took so many cycles."""
        return self.macs / (self.multipliers * cycles)


def array(name: str, glb_kib: int) -> Arch:
    """An array by name, with a global buffer of this size."""
    preset, side = PRESETS[name]
    arch = load_arch(preset)
    glb = replace(arch.glb, words=glb_kib * 1024 * 8 // arch.operand_bits)
    return replace(arch, name=name, rows=side, cols=side, glb=glb)


def quantised(name: str, image_size: int | None, folder: Path) -> Compilation:
    """A network as loop nests that are not mapped yet. Raises Refusal as models.py does."""
    size = ("--image-size", str(image_size)) if image_size else ()
    command = (sys.executable, str(MODELS), name, "--features", "-o", str(folder / "net.onnx"), *size)
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise Refusal(made.stderr.strip().splitlines()[-1])
    compilation = start_compilation(folder / "net.onnx", CompileOptions("spatial-8x8", slack=0.0, groups=NONE))
    compilation.run_before(ASSIGN)
    return compilation


def cpu_seconds() -> float:
    """Of this process and the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def run(network: str, start: Compilation, arch: Arch, glb_kib: int, dataflow: str, folder: Path) -> Run:
    """Map and compile a network for an array. Raises Refusal where prediction and count, or a bound, do not hold."""
    file = folder / "array.toml"
    file.write_text(arch_text(arch))
    module = start.module.clone()
    module.attributes.pop("cnncc.arch", None)  # of the array that it was quantised for
    settings = replace(start.settings, arch=arch, arch_source=str(file), dataflow=dataflow)
    compilation = Compilation(start.ctx, module, settings)
    search_s, mapped, prefetched = 0.0, module, dict[str, frozenset[str]]()
    for step in compilation.remaining():
        if step.name == TO_PROGRAMS:
            mapped = compilation.module.clone()
        before = cpu_seconds()
        compilation.step(step)
        if step.name == ASSIGN:
            search_s = cpu_seconds() - before
        elif step.name == "array-prefetch":
            prefetched = prefetched_operands(compilation.module)
    where = f"{network} on {arch.name}"
    counted = program_stats(binary_of(compilation))
    if wrong := difference(predicted_counters(mapped, arch, prefetched), counted):
        raise Refusal(f"{where}: predicted and counted differ in {wrong}")
    return as_run(where, network, glb_kib, arch, mapped, counted, search_s)


def difference(one: Any, other: Any, where: str = "") -> str:
    """The first entry in which two tables differ, with both values; empty where none does."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return "" if one == other else f"{where[1:]}: {one} and {other}"
    first, second = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
    differences = (difference(first.get(key), second.get(key), f"{where}/{key}") for key in {**first, **second})
    return next(filter(None, differences), "")


def as_run(
    where: str, network: str, glb_kib: int, arch: Arch, mapped: ModuleOp, counted: Mapping[str, Any], search_s: float
) -> Run:
    """What was counted, with its bounds."""
    ops = [op for op in mapped.walk() if isinstance(op, LayerOp)]
    shapes = {label_of(op): shape_of(op) for op in ops}
    least = {label: _bound(shape, arch) for label, shape in shapes.items()}
    layers: list[Layer] = []
    for op in ops:
        label, own = label_of(op), counted["layers"][label_of(op)]
        layer_bound = least[label]
        if own["cycles"]["compute"] < layer_bound.compute or own["cycles"]["total"] < layer_bound.total:
            raise Refusal(f"{where}: layer '{label}' takes {own['cycles']}, below its bound {layer_bound}")
        if own["macs"]:
            cycles = (own["cycles"]["compute"], own["cycles"]["total"], layer_bound.compute, layer_bound.total)
            mapping = text(mapping_of(op), op.sizes.data)
            layers.append(Layer(label, own["macs"], *cycles, shapes[label].depthwise, mapping))
    bounds = _least(mapped, [shapes[label_of(op)] for op in ops], arch)
    if counted["cycles"]["total"] < bounds.total:
        raise Refusal(f"{where}: takes {counted['cycles']['total']} cycles, below its bound {bounds.total}")
    cycles = (counted["cycles"]["compute"], counted["cycles"]["total"], bounds.compute, bounds.total)
    multipliers = arch.rows * arch.cols * arch.pe.lanes
    overlaps = arch.sequencer.overlap
    return Run(network, arch.name, glb_kib, overlaps, multipliers, counted["macs"], *cycles, search_s, tuple(layers))


def _of_array(shape: Shape, arch: Arch) -> Bound:
    """Of a layer, by the array alone, which does not depend on the size of the GLB: it is computed once for all."""
    return bound(shape, replace(arch, glb=replace(arch.glb, words=1)))


def _bound(shape: Shape, arch: Arch) -> Bound:
    """Of a layer, by the array and by the words that have to pass through the DMA."""
    least, dma = _of_array(shape, arch), through_dram(shape, arch)
    return replace(least, total=max(least.total, dma) if arch.sequencer.overlap else least.total + dma)  # TIME-6


def _least(module: ModuleOp, shapes: Sequence[Shape], arch: Arch) -> Bound:
    """Of a network, by its layers, its values, and the weights on their way from DRAM (DMA-2)."""
    layers = [_bound(shape, arch) for shape in shapes]
    kept = fewest_cycles(*network_of(module, [_of_array(shape, arch).total for shape in shapes]), arch)
    total = max(kept, sum(layer.total for layer in layers))
    weights = sum(shape.weights for shape in shapes) * arch.dram.rate_cycles // arch.dram.rate_words
    total = max(total, weights) if arch.sequencer.overlap else total + weights  # TIME-6
    return Bound(sum(layer.compute for layer in layers), total)


# -- text --------------------------------------------------------------------------------------------------------------


def _percent(part: float) -> str:
    return f"{100 * part:.2f} %"


NOTE = (
    "bound: what the array's structure and the size of its GLB allow at most; of a network: with layers one after the "
    "other, and each value in the GLB as a whole or in DRAM; search: CPU seconds of choosing mappings",
    "wanted: where loads and commits overlap with computing",
)


COLUMNS = (
    Column("array", NAME),
    "GLB KiB",
    "cycles",
    "compute",
    "bound",
    "total",
    "bound",
    Column("of bound", drop=2),
    Column("search CPU s", drop=1),
    Column("wanted", TEXT, drop=3),
)


def as_text(runs: Sequence[Run], layers: bool) -> Iterator[str]:
    """A table to read, of one network."""
    depthwise = any(layer.depthwise for layer in runs[0].layers)
    yield f"{runs[0].network}: {len(runs[0].layers)} convolutions, {runs[0].macs:,} MACs"
    rows = list[list[str] | str]()
    for run in runs:
        compute, total = run.utilisation(run.compute), run.utilisation(run.total)
        bounds = run.utilisation(run.least_compute), run.utilisation(run.least_total)
        cells = map(_percent, (compute, bounds[0], total, bounds[1], total / bounds[1]))
        array, met = [run.array, str(run.glb_kib), f"{run.total:,}"], _met(run, depthwise)
        rows.append([*array, *cells, f"{run.search_s:.1f}", met])
        rows += [f"  {_depthwise(run)}"] if depthwise else []
    yield from table(COLUMNS, rows)
    for run in runs if layers else ():
        yield from _layers(run)
    yield ""


def _met(run: Run, depthwise: bool) -> str:
    """Whether a run is as good as wanted: by fixed limits, or near the bound where there are depthwise layers."""
    if not run.overlaps:
        return "-"
    if depthwise:
        share, limit = run.least_total / run.total, WANTED["compute"]
        return f"total >= {limit} of bound: {'met' if share >= limit else 'MISSED'}"
    utilisation = {"compute": run.utilisation(run.compute), "total": run.utilisation(run.total)}
    return ", ".join(f"{k} >= {most}: {'met' if utilisation[k] >= most else 'MISSED'}" for k, most in WANTED.items())


def _depthwise(run: Run) -> str:
    own = [layer for layer in run.layers if layer.depthwise]
    macs, total, least = (sum(getattr(layer, key) for layer in own) for key in ("macs", "total", "least_total"))
    most, reached = macs / (run.multipliers * least), macs / (run.multipliers * total)
    return f"its {len(own)} depthwise layers: at most {_percent(most)}, reached {_percent(reached)}"


def _layers(run: Run) -> Iterator[str]:
    yield f"  {run.array}, GLB {run.glb_kib} KiB"
    rows = list[list[str]]()
    for layer in run.layers:
        cycles = (layer.compute, layer.least_compute, layer.total, layer.least_total)
        shares = (_percent(layer.macs / (run.multipliers * count)) for count in cycles)
        rows.append([layer.label, f"{layer.macs:,}", f"{layer.total:,}", *shares])
    yield from table([Column("layer", NAME), "MACs", "cycles", "compute", "bound", "total", "bound"], rows, indent=4)
    mappings = [(layer.label, layer.mapping) for layer in run.layers]
    yield from table([Column("layer", NAME), Column("mapping", TEXT)], mappings, indent=4)


# -- command -----------------------------------------------------------------------------------------------------------


def reproduce(
    network: str, arrays: Sequence[str], glbs: Sequence[int], image_size: int | None, dataflow: str, progress: Progress
) -> Iterator[Run]:
    """A network on all arrays; it is quantised once. Raises Refusal."""
    with tempfile.TemporaryDirectory() as name:
        start = quantised(network, image_size, Path(name))
        for i, kib in enumerate(glbs):
            for j, preset in enumerate(arrays):
                progress(f"{network} on {preset}, GLB {kib} KiB", i * len(arrays) + j, len(glbs) * len(arrays))
                yield run(network, start, array(preset, kib), kib, dataflow, Path(name))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--network", "networks", multiple=True, help=f"As models.py has it [{', '.join(NETWORKS)}].")
@click.option("--array", "arrays", multiple=True, type=click.Choice(list(PRESETS)), help="[all]")
@click.option("--glb", "glbs", multiple=True, type=click.IntRange(min=1), help="KiB of the global buffer [128, 2048]")
@click.option("--image-size", type=click.IntRange(min=1), help="Of all networks [each network's own].")
@click.option("--dataflow", default=AUTO, show_default=True, help="As of `cnncc compile`.")
@click.option("--layers", is_flag=True, help="Print each layer, too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def main(
    networks: tuple[str, ...],
    arrays: tuple[str, ...],
    glbs: tuple[int, ...],
    image_size: int | None,
    dataflow: str,
    layers: bool,
    as_json: bool,
) -> None:
    """Reproduce what the mapper reaches on well-known networks, beside what the structure of the array allows.

    Each option that names networks, arrays or sizes may be given several times.

    \b
    python samples/reproduce/mapper.py
    python samples/reproduce/mapper.py --network resnet20 --array spatial-16x16 --glb 128 --layers
    python samples/reproduce/mapper.py --json > mapper.json
    """
    runs: list[Run] = []
    try:
        for network in networks or NETWORKS:
            with progress_line() as progress:
                sizes = (glbs or GLB_KIB, image_size)
                own = list(reproduce(network, arrays or list(PRESETS), *sizes, dataflow, progress))
            runs += own
            if not as_json:
                click.echo(fitted(as_text(own, layers)))
    except Refusal as refusal:
        raise click.ClickException(str(refusal)) from refusal
    click.echo(json.dumps([asdict(run) for run in runs], indent=1) if as_json else fitted(NOTE))


if __name__ == "__main__":
    main()
