"""The mappings of Heidorn et al. as programs of the trained MNIST net: what `tcpa.py` has in its column `measured`.

A layer has a rectangle of PEs. Its output channels are spread over the PEs, and the lanes of a PE multiply two input
channels (Algorithm 3), or the channels of a pool. Side by side each layer has a core of its own. In turn one core runs
all layers, each of them on its PEs. No search takes part, but for what the compiler chooses itself.

Every program computes digits. The logits must be those of numpy on the quantised network, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cnncc.arch.model import Arch, arch_text, load_arch
from cnncc.binary.container import Binary
from cnncc.binary.counters import program_stats
from cnncc.binary.run import run
from cnncc.driver.build import binary_of
from cnncc.driver.pipeline import ASSIGN, CORES, NESTS, STAGE, Compilation, Step
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.eval import cnn
from cnncc.machine.cores.core_times import EngineRuns, simulate_cores
from cnncc.machine.cores.programs import cores_of
from cnncc.mapping.channels import Region
from cnncc.tcpa.chain_layer import ChainLayer
from cnncc.weights import Array

SAMPLES = Path(__file__).resolve().parents[1]
MODEL = SAMPLES / "models" / "mnist.onnx"
CALIBRATION, TEST = (SAMPLES / "inputs" / f"digits_{name}.npz" for name in ("calibration", "test"))
CORES_OF_PAPER = 6  # one for the DRAM, five for layers
FRAMES, DIGITS = 16, 2  # frames of a run whose times are counted, and of one whose values are compared
FULLY_CONNECTED = '["fc"]\nmapping = "k > c\' > weight@rf*2 > ifmap@rf*3 > {c\'\'}"\n'
BY_HAND = (ASSIGN, "nest-tile", "nest-permute", "nest-unroll", STAGE)


def paper_array(preset: str) -> Arch:
    """A preset with a core for each layer. As the paper counts, macro-instructions are multiplications alone."""
    arch = load_arch(preset)
    pe = replace(arch.pe, start_cycles=0, finish_cycles=0)
    return replace(arch, pe=pe, cores=replace(arch.cores, most=CORES_OF_PAPER))


@dataclass(frozen=True)
class SideBySide:
    """What the interpreter counts with layers on cores of their own.

    - computing: by core, cycles of a frame in which its PEs multiply
    - starts, ends: by core, of its multiplications for the first frame, from the start of the first core's on
    - first: cycles until the results of the first frame are in DRAM, with those for weights
    - period: cycles of a frame in steady state
    - preset_period: the same with the preset's cycles around macro-instructions
    - waiting: by channel, the most rows that wait
    - pes: by core
    """

    computing: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    first: int
    period: int
    preset_period: int
    waiting: Sequence[int]
    pes: Sequence[int]


@dataclass(frozen=True)
class InTurn:
    """What the interpreter counts for a frame with one layer after the other.

    - computing: cycles of the chain's layers in which PEs multiply
    - latency: all their cycles, until the last result is in the global buffer
    - network: with the fully connected layer and all transfers
    """

    computing: int
    latency: int
    network: int


def side_by_side(
    net: Sequence[ChainLayer], preset: str, regions: Sequence[Region], keeps: Sequence[int] = ()
) -> SideBySide:
    """The layers of a chain on PEs of their own; the fully connected layer is left to the host.

    keeps: rows of the channels; without it the fewest.
    """
    with TemporaryDirectory() as folder:
        path, schedule = _written(Path(folder), paper_array(preset), _mappings(net, regions))
        compilation = start_compilation(MODEL, CompileOptions(path, calibrate=CALIBRATION, batch=1, parallel="layers"))
        logits = _logits(compilation)
        compilation.run_before(CORES)
        for name in BY_HAND:
            options = f'arch="{path}" schedule="{schedule}"' if name == ASSIGN else ""
            compilation.step(Step("nest", name, options))
        names = ";".join(layer.name for layer in net)
        places = ";".join(f"{own.rows}x{own.cols}@{own.row0},{own.col0}" for own in regions)
        rows = f" keeps={','.join(map(str, keeps))}" if keeps else ""
        compilation.step(Step("nest", CORES, f'cores="{names}" places="{places}"{rows} arch="{path}"'))
        return _counted(compilation, logits)


def in_turn(
    net: Sequence[ChainLayer], preset: str, regions: Sequence[Region], *, filters_in_lanes: bool = False
) -> InTurn:
    """One layer after the other, each on its PEs. filters_in_lanes: where a layer has one input channel."""
    with TemporaryDirectory() as folder:
        text = _mappings(net, regions, filters_in_lanes=filters_in_lanes) + FULLY_CONNECTED
        path, schedule = _written(Path(folder), paper_array(preset), text)
        return _counted_in_turn(net, CompileOptions(path, schedule=schedule, groups="none"))


def compiled_in_turn(net: Sequence[ChainLayer], preset: str) -> InTurn:
    """One layer after the other, with the compiler's mappings."""
    return _counted_in_turn(net, CompileOptions(preset, objective="cycles"))


def compiled_side_by_side(preset: str, fps: int | None = None) -> SideBySide:
    """Cores of the compiler's choice: with the most frames a second, or with the fewest PEs for `fps`."""
    options = CompileOptions(preset, calibrate=CALIBRATION, batch=1, parallel="layers", fps=fps)
    compilation = start_compilation(MODEL, options)
    return _counted(compilation, _logits(compilation))


def mapping(layer: ChainLayer, region: Region, *, filters_in_lanes: bool = False) -> str:
    """Row by row, output channels over PEs. The PEs get the same words of the image, and keep their sums."""
    own = layer.outputs // (region.rows * region.cols)
    beside = f"[k':{own * region.cols}||{region.rows}@rows k'':{own}||{region.cols}@cols] > k'''"
    if not layer.weighted:
        return f"h > w' > {beside} > ifmap@rf*3 > {{w'' > k'''' > s > r > k'''''||2@lanes}}"
    words = "weight@rf*2 > ifmap@rf*3"
    if layer.inputs > 1:
        return f"h > {beside} > c' > r > {words} > {{w > s > c'' > k'''' > c'''||2@lanes}}"
    return f"h > w' > {beside} > {words} > {{w'' > s > r > k''''{'||2@lanes' if filters_in_lanes else ''}}}"


def _mappings(net: Sequence[ChainLayer], regions: Sequence[Region], *, filters_in_lanes: bool = False) -> str:
    """A schedule file."""
    texts = (mapping(*each, filters_in_lanes=filters_in_lanes) for each in zip(net, regions, strict=True))
    return "".join(f'["{layer.name}"]\nmapping = "{text}"\n' for layer, text in zip(net, texts, strict=True))


def _written(folder: Path, arch: Arch, schedule: str) -> tuple[str, Path]:
    array, mappings = folder / "array.toml", folder / "mappings.toml"
    array.write_text(arch_text(arch))
    mappings.write_text(schedule)
    return str(array), mappings


def _digits() -> dict[str, Array]:
    return {"input": np.load(TEST)["input"][:DIGITS]}


def _logits(compilation: Compilation) -> Mapping[str, Array]:
    """The network's outputs for digits, by numpy, once it is quantised."""
    compilation.run_before(NESTS)
    module, store = compilation.module, compilation.ctx.weights
    outputs, _ = cnn.evaluate(module, store, cnn.quantise_inputs(module, _digits()))
    return cnn.dequantise_outputs(module, outputs)


def _run(compilation: Compilation, logits: Mapping[str, Array]) -> Binary:
    """The binary, whose outputs are equal to these. Raises Refusal."""
    compilation.run()
    binary = binary_of(compilation)
    outputs = run(binary, _digits())
    for name, values in logits.items():
        if not np.array_equal(outputs[name], values):
            raise Refusal(f"output '{name}' of the program on {binary.arch.name} differs from that of the network")
    return binary


def _counted(compilation: Compilation, logits: Mapping[str, Array]) -> SideBySide:
    """From a network on cores."""
    binary = _run(compilation, logits)
    preset = replace(binary, arch=replace(binary.arch, pe=load_arch(binary.arch.name).pe))
    stats, of_preset = (program_stats(each, causes=False, frames=FRAMES) for each in (binary, preset))
    timeline = EngineRuns(range(len(binary.instructions)))
    simulate_cores(cores_of(binary.instructions, binary.arch, 1), timeline=timeline)
    cores = [(number, core) for number, core in enumerate(stats["cores"]) if core["rows"]]
    computing = [each for each in timeline.runs if each.engine == "array"]
    of_cores = [[each for each in computing if each.core == number] for number, _ in cores]
    zero = of_cores[0][0].start
    return SideBySide(
        [core["cycles"]["compute"] // FRAMES for _, core in cores],
        [own[0].start - zero for own in of_cores],
        [own[-1].end - zero for own in of_cores],
        stats["frames"]["first"],
        _period(stats),
        _period(of_preset),
        [channel["rows"] for channel in stats["channels"]],
        [core["rows"] * core["cols"] for _, core in cores],
    )


def _period(stats: Mapping[str, Any]) -> int:
    """Cycles of a frame in steady state. Raises Refusal where the run is too short for one."""
    period = stats["frames"]["period"]
    if period is None:
        raise Refusal(f"{FRAMES} frames are too few for a steady state")
    return period["cycles"] // period["frames"]


def _counted_in_turn(net: Sequence[ChainLayer], options: CompileOptions) -> InTurn:
    compilation = start_compilation(MODEL, replace(options, calibrate=CALIBRATION, batch=1))
    stats = program_stats(_run(compilation, _logits(compilation)))
    cycles = [stats["layers"][layer.name]["cycles"] for layer in net]
    computing, latency = (sum(each[key] for each in cycles) for key in ("compute", "total"))
    return InTurn(computing, latency, stats["cycles"]["total"])
