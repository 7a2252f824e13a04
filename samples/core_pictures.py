"""Draw layers side by side for docs/cores.md: PEs of each layer, the pipeline over time, storage between layers.

The network is the trained MNIST net on `tcpa-4x4`, on three cores, as Figs. 4 to 7 of Heidorn et al. draw theirs.
Times are those of the interpreter, rows that wait are those of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pictures import GREY, INK, PALE, PAPER, Picture

from cnncc.arch.model import Arch
from cnncc.binary.container import Binary
from cnncc.driver.build import binary_of
from cnncc.driver.pipeline import CORES, Step
from cnncc.driver.program_parts import program_parts
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.machine.cores.core_times import EngineRun, simulate_cores
from cnncc.machine.cores.programs import cores_of
from cnncc.model.cores_plan import CoresPlan
from cnncc.model.cores_schedule import PredictedFrames, predicted_frames
from cnncc.passes.nest_cores import NestCoresPass

ROOT = Path(__file__).resolve().parents[1]
MODEL, ARRAY = ROOT / "samples/models/mnist.onnx", "tcpa-4x4"
LAYERS, PLACES, KEEPS = "conv0;pool1,conv2;pool3,conv4", "1x2@3,0;3x4@0,0;1x2@3,2", (7, 7)
FRAMES, STEADY = 4, 16  # frames that are drawn; those after which a frame is one of steady state
FILLS = ("#ddf4ff", "#ffd8b5", "#dafbe1")
OF_FRAMES = ("#0969da", "#bc4c00", "#1a7f37", "#8250df")
CELL, LEFT, WIDTH = 64, 150, 810


@dataclass(frozen=True)
class Example:
    """The network on cores: its plan, its program, and its times."""

    arch: Arch
    plan: CoresPlan
    binary: Binary
    times: PredictedFrames

    @property
    def names(self) -> list[str]:
        """The cores with PEs, by their layers."""
        return [group.label for group in self.plan.groups]


def example() -> Example:
    """Compiled, without a search for cores."""
    compilation = start_compilation(MODEL, CompileOptions(ARRAY, batch=1, parallel="layers"))
    compilation.run_before(CORES)
    NestCoresPass(LAYERS, PLACES, keeps=KEEPS, arch=ARRAY).apply(compilation.ctx, compilation.module)
    parts = program_parts(compilation.module, {})
    for name in ("nest-to-array", "array-prefetch", "array-allocate"):
        compilation.step(Step("array", name, f'arch="{ARRAY}"'))
    compilation.step(Step("isa", "array-to-isa"))
    plan = next(part for part in parts if isinstance(part, CoresPlan))
    arch = compilation.settings.arch
    return Example(arch, plan, binary_of(compilation), predicted_frames(plan, arch, STEADY))


def pes(case: Example) -> Picture:
    """Which PEs compute which layers, and how much of a frame's cycles they are busy."""
    picture = Picture(1000, 320, "Layers side by side: the PEs of each core")
    for row in range(case.arch.rows):
        for col in range(case.arch.cols):
            picture.box(40 + col * CELL, 30 + row * CELL, CELL - 4, CELL - 4, PALE)
    for fill, region in zip(FILLS, case.plan.regions, strict=True):
        for row in range(region.row0, region.row0 + region.rows):
            for col in range(region.col0, region.col0 + region.cols):
                picture.box(40 + col * CELL, 30 + row * CELL, CELL - 4, CELL - 4, fill)
                picture.text(70 + col * CELL, 64 + row * CELL, f"{row},{col}", 12, GREY, "middle")
    period = case.times.period
    assert period
    for number, (name, fill, region, core) in enumerate(
        zip(case.names, FILLS, case.plan.regions, case.times.cores[1:], strict=True)
    ):
        y, busy = 50 + 56 * number, core.compute // case.times.frames
        picture.box(340, y, 20, 20, fill)
        picture.text(372, y + 15, f"core {number + 1}: {name.replace('..', ' to ')}", 14, INK, bold=True)
        said = f"{region.rows} x {region.cols} PEs, busy for {busy:,} cycles of a frame"
        picture.text(372, y + 34, said, 13, GREY)
    each = period.cycles // period.frames
    picture.text(340, 240, f"A frame leaves every {each:,} cycles. Core 0 has the DMA and no PEs.", 13, GREY)
    return picture


def pipeline(case: Example) -> Picture:
    """When the PEs of each core work on each of some frames."""
    runs = list[EngineRun]()
    simulate_cores(cores_of(case.binary.instructions, case.arch, FRAMES), timeline=runs)
    end = max(run.end for run in runs)
    cores = len(case.names)
    picture = Picture(1000, 120 + 58 * cores, f"Layers side by side: when each core computes, for {FRAMES} frames")

    def at(cycle: int) -> int:
        return LEFT + cycle * WIDTH // end

    for number, name in enumerate(case.names, 1):
        y = 24 + 58 * (number - 1)
        own = [run for run in runs if run.core == number and run.engine == "array"]
        busy = sum(run.end - run.start for run in own)
        picture.text(24, y + 18, name.replace("..", " to "), 14, INK, bold=True)
        picture.text(24, y + 34, f"busy {100 * busy / end:.0f} %", 12, GREY)
        picture.box(LEFT, y, WIDTH, 40, PALE, PALE)
        for frame in range(FRAMES):
            each = len(own) // FRAMES
            for first, last in _together(own[frame * each : (frame + 1) * each], end // WIDTH):
                colour = OF_FRAMES[frame]
                picture.box(at(first), y, max(1, at(last) - at(first)), 40, colour, colour, round=0)
    y = 24 + 58 * cores
    for cycle in range(0, end + 1, 50_000):
        picture.path([(at(cycle), y), (at(cycle), y + 6)], arrow=False)
        picture.text(at(cycle), y + 21, f"{cycle:,}", 12, GREY, "middle")
    picture.text(24, y + 21, "cycle", 12, GREY)
    for frame in range(FRAMES):
        picture.box(24 + 110 * frame, y + 44, 16, 16, OF_FRAMES[frame])
        picture.text(48 + 110 * frame, y + 57, f"frame {frame}")
    picture.text(480, y + 57, "pale: the core waits for rows, or for space in a channel", 13, GREY)
    return picture


def _together(runs: Sequence[EngineRun], gap: int) -> list[tuple[int, int]]:
    """First and last cycle of runs with gaps that are too short to draw."""
    spans = list[tuple[int, int]]()
    for run in runs:
        if spans and run.start - spans[-1][1] <= gap:
            spans[-1] = spans[-1][0], run.end
        else:
            spans.append((run.start, run.end))
    return spans


def storage(case: Example) -> Picture:
    """Words between the cores: of all rows, of the ring, and of the rows that wait at most."""
    rings, peaks = case.plan.rings, case.times.peaks
    picture = Picture(1000, 20 + 110 * len(rings), "Layers side by side: words stored between cores")
    most = max(ring.producer.sizes.k * ring.height * ring.producer.sizes.w for ring in rings)
    for number, (ring, peak) in enumerate(zip(rings, peaks, strict=True)):
        y, row = 20 + 110 * number, ring.producer.sizes.k * ring.producer.sizes.w
        picture.text(24, y + 18, f"behind {ring.label}", 14, INK, bold=True)
        picture.text(24, y + 36, f"{row:,} words a row", 12, GREY)
        for at, (rows, what, fill) in enumerate(
            (
                (ring.height, "all rows", PAPER),
                (ring.ring, "ring", FILLS[0]),
                (peak, "wait at most", FILLS[1]),
                (ring.least, "the fewest that do", FILLS[2]),
            )
        ):
            width = max(2, 500 * row * rows // most)
            picture.box(LEFT + 20, y + 22 * at, width, 18, fill)
            picture.text(LEFT + 28 + width, y + 22 * at + 14, f"{what}: {rows} rows, {row * rows:,} words", 12, GREY)
    return picture


def drawings() -> dict[str, Picture]:
    """All pictures by name."""
    case = example()
    return {"cores-pes": pes(case), "cores-pipeline": pipeline(case), "cores-storage": storage(case)}
