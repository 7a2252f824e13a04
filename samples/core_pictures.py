"""Draw layers side by side for docs/cores.md: PEs of each core, the pipeline over time, storage of each layer.

The network is the trained MNIST net on `tcpa-4x4`, on three cores, as Figs. 4 to 7 of Heidorn et al. draw theirs.
Times are those of the interpreter, words are those of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pictures import GREY, INK, PALE, PAPER, Picture

from cnncc.arch.model import Arch
from cnncc.binary.container import Binary
from cnncc.driver.build import binary_of
from cnncc.driver.pipeline import CORES, Step
from cnncc.driver.program_parts import program_parts
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.machine.cores.core_times import CoresTimes, EngineRun, EngineRuns, simulate_cores
from cnncc.machine.cores.programs import cores_of
from cnncc.model.cores_plan import CoresPlan

ROOT = Path(__file__).resolve().parents[1]
MODEL, ARRAY = ROOT / "samples/models/mnist.onnx", "tcpa-4x4"
LAYERS, PLACES, KEEPS = "conv0;pool1,conv2;pool3,conv4", "1x2@3,0;3x4@0,0;1x2@3,2", (7, 7)
FRAMES, STEADY = 4, 16  # frames that are drawn; those after which a frame is one of steady state
BUFFERS = 2  # of images, and of results

# Neighbours differ in grey, too.
FILLS = ("#ddf4ff", "#ffb77c", "#7bc98f")
OF_FRAMES = (("#0a3069", PAPER), ("#ffb77c", INK), ("#1a7f37", PAPER), ("#d8b9ff", INK))  # the bar, the text in it
WEIGHTS, INPUT, RESULT = "#0a3069", "#ffb77c", "#ddf4ff"
CELL, LEFT, WIDTH = 64, 160, 810


@dataclass(frozen=True)
class Example:
    """The network on cores: its plan, its program, and its times."""

    arch: Arch
    plan: CoresPlan
    binary: Binary

    @property
    def names(self) -> list[str]:
        """The cores with PEs, by their layers."""
        return [", ".join(layer.label for layer in group.layers) for group in self.plan.groups]

    def times(self, frames: int, timeline: EngineRuns | None = None) -> CoresTimes:
        """A run of so many frames."""
        cores = cores_of(self.binary.instructions, self.arch, frames)
        return simulate_cores(cores, causes=timeline is None, timeline=timeline)

    @property
    def period(self) -> int:
        """Cycles of a frame in steady state."""
        period = self.times(STEADY).frames.period
        assert period
        return period[0] // period[1]


@cache
def example(keeps: tuple[int, ...] = ()) -> Example:
    """A program whose channels have so many rows, the fewest for (). No search for cores takes part."""
    compilation = start_compilation(MODEL, CompileOptions(ARRAY, batch=1, parallel="layers"))
    compilation.run_before(CORES)
    rows = f" keeps={','.join(map(str, keeps))}" if keeps else ""
    compilation.step(Step("nest", CORES, f'cores="{LAYERS}" places="{PLACES}"{rows} arch={ARRAY}'))
    (plan,) = (part for part in program_parts(compilation.module, {}) if isinstance(part, CoresPlan))
    compilation.run()
    return Example(compilation.settings.arch, plan, binary_of(compilation))


def pes(case: Example) -> Picture:
    """Which PEs compute which layers, and how much of a frame's cycles they are busy."""
    picture = Picture(1000, 330, "Layers side by side: the PEs of each core")
    left, top = 90, 46
    for row in range(case.arch.rows):
        picture.text(left - 12, top + 36 + row * CELL, f"row {row}", 12, GREY, "end")
        for col in range(case.arch.cols):
            picture.box(left + col * CELL, top + row * CELL, CELL - 4, CELL - 4, PALE)
    for col in range(case.arch.cols):
        picture.text(left + 30 + col * CELL, top - 12, f"column {col}", 12, GREY, "middle")
    times, period = case.times(STEADY), case.period
    for number, (name, fill, region) in enumerate(zip(case.names, FILLS, case.plan.regions, strict=True), 1):
        for row in range(region.row0, region.row0 + region.rows):
            for col in range(region.col0, region.col0 + region.cols):
                picture.box(left + col * CELL, top + row * CELL, CELL - 4, CELL - 4, fill)
                picture.text(left + 30 + col * CELL, top + 35 + row * CELL, f"core {number}", 13, INK, "middle")
        y, busy = 62 + 56 * (number - 1), times.cores[number].cycles.compute // STEADY
        picture.box(400, y, 20, 20, fill)
        picture.text(432, y + 15, f"core {number}: {name}", 14, INK, bold=True)
        share = f"busy for {busy:,} of {period:,} cycles of a frame ({100 * busy / period:.0f} %)"
        picture.text(432, y + 34, f"{region.rows} x {region.cols} PEs, {share}", 13, GREY)
    picture.text(400, 250, f"A frame leaves every {period:,} cycles. Core 0 has the DMA and no PEs.", 13, GREY)
    return picture


def pipeline(cases: Sequence[Example]) -> Picture:
    """When the PEs of each core work on each of some frames, for channels of several sizes."""
    timelines = [EngineRuns(range(len(case.binary.instructions))) for case in cases]
    for case, timeline in zip(cases, timelines, strict=True):
        case.times(FRAMES, timeline)
    end = max(run.end for timeline in timelines for run in timeline.runs)
    height = 40 + 62 * len(cases[0].names)
    picture = Picture(1000, 70 + height * len(cases), f"Layers side by side: when each core computes, {FRAMES} frames")
    for number, (case, timeline) in enumerate(zip(cases, timelines, strict=True)):
        y = 24 + height * number
        rows = " and ".join(dict.fromkeys(str(channel.keeps) for channel in case.plan.channels))
        picture.text(24, y, f"Channels of {rows} rows: a frame leaves every {case.period:,} cycles", 14, INK, bold=True)
        _panel(picture, y + 14, case, timeline.runs, end)
    y = 22 + height * len(cases)
    for cycle in range(0, end + 1, 50_000):
        picture.path([(_at(cycle, end), y - 12), (_at(cycle, end), y - 6)], arrow=False)
        picture.text(_at(cycle, end), y + 8, f"{cycle:,}", 12, GREY, "middle")
    picture.text(24, y + 8, "cycle", 12, GREY)
    said = "Pale: the PEs wait, for rows of the core before or for space in the channel behind. The shares are of"
    picture.text(24, y + 32, f"{said} the core's cycles.", 13, GREY)
    return picture


def _panel(picture: Picture, top: int, case: Example, runs: Sequence[EngineRun], end: int) -> None:
    """The cores of a program, a bar each."""
    times = case.times(FRAMES)
    for number, name in enumerate(case.names, 1):
        y, cycles = top + 62 * (number - 1), times.cores[number].cycles
        shares = [cycles.compute, cycles.stall["channel_in"], cycles.stall["channel_out"]]
        busy, rows, space = (f"{100 * share / cycles.total:.0f} %" for share in shares)
        picture.text(24, y + 14, name, 14, INK, bold=True)
        picture.lines(24, y + 30, [f"busy {busy}", f"rows {rows}, space {space}"], 11)
        picture.box(LEFT, y, WIDTH, 46, PALE, PALE)
        own = [run for run in runs if run.core == number and run.engine == "array"]
        each = len(own) // FRAMES
        for frame, (fill, ink) in enumerate(OF_FRAMES):
            spans = _together(own[frame * each : (frame + 1) * each], end // WIDTH // 2)
            for first, last in spans:
                picture.box(_at(first, end), y, max(1, _at(last, end) - _at(first, end)), 46, fill, fill, round=0)
            first, last = max(spans, key=lambda span: span[1] - span[0])
            picture.text(_at((first + last) // 2, end), y + 28, f"frame {frame}", 13, ink, "middle", bold=True)


def _at(cycle: int, end: int) -> int:
    return LEFT + cycle * WIDTH // end


def _together(runs: Sequence[EngineRun], gap: int) -> list[tuple[int, int]]:
    """First and last cycle of runs with gaps that are too short to draw."""
    spans = list[tuple[int, int]]()
    for run in runs:
        if spans and run.start - spans[-1][1] <= gap:
            spans[-1] = spans[-1][0], run.end
        else:
            spans.append((run.start, run.end))
    return spans


@dataclass(frozen=True)
class LayerWords:
    """Words that a layer needs: weights, all of its input and result, and what is stored of these side by side."""

    label: str
    weights: int
    input: int
    result: int
    stored: int
    where: str
    leaving: int


def layer_words(case: Example) -> list[LayerWords]:
    """Of each layer."""
    found, source = list[LayerWords](), (case.plan.image, BUFFERS * case.plan.image, "two images")
    for number, group in enumerate(case.plan.groups):
        for layer in group.group:
            sizes = layer.sizes
            row, weighted = sizes.k * sizes.w, layer.kind == "mac"
            weights = sizes.k * sizes.c * sizes.r * sizes.s if weighted else 0
            leaving = BUFFERS * case.plan.result if layer.leaves and number == len(case.plan.groups) - 1 else 0
            found.append(LayerWords(layer.label, weights, source[0], row * sizes.h, *source[1:], leaving))
            rows, kind = layer.keeps, "ring"
            if not rows and number < len(case.plan.channels):
                rows, kind = case.plan.channels[number].keeps, "channel"
            source = row * sizes.h, row * rows, f"{kind} of {rows} of {sizes.h} rows"
    return found


def storage(case: Example) -> Picture:
    """Words of each layer: layer by layer (Eq. 14), and side by side."""
    words = layer_words(case)
    most = max(each.weights + each.input + each.result for each in words)
    picture = Picture(1000, 80 + 58 * len(words), "Layers side by side: words of each layer")
    for at, (fill, what) in enumerate(((WEIGHTS, "weights"), (INPUT, "input"), (RESULT, "result"))):
        picture.box(LEFT + 110 * at, 14, 16, 16, fill)
        picture.text(LEFT + 24 + 110 * at, 27, what)
    for number, each in enumerate(words):
        y = 52 + 58 * number
        picture.text(24, y + 25, each.label, 14, INK, bold=True)
        bars = (
            ("in turn", (each.weights, each.input, each.result), ""),
            ("side by side", (each.weights, each.stored, each.leaving), each.where),
        )
        for at, (mode, parts, where) in enumerate(bars):
            x, top = LEFT, y + 22 * at
            picture.text(LEFT - 10, top + 14, mode, 12, GREY, "end")
            for size, fill in zip(parts, (WEIGHTS, INPUT, RESULT), strict=True):
                if size:
                    picture.box(x, top, max(2, 520 * size // most), 18, fill, round=0)
                    x += max(2, 520 * size // most)
            said = f"{sum(parts):,} words" + (f": {where}" if where else "")
            picture.text(x + 8, top + 14, said, 12, GREY)
    together = sum(each.weights + each.stored + each.leaving for each in words)
    said = f"In turn the largest layer counts: {most:,} words. Side by side all layers do: {together:,} words."
    picture.text(24, picture.height - 16, said, 13, GREY)
    return picture


def drawings() -> dict[str, Picture]:
    """All pictures by name."""
    case, least = example(KEEPS), example()
    return {"cores-pes": pes(case), "cores-pipeline": pipeline([case, least]), "cores-storage": storage(case)}
