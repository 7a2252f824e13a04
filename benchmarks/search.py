"""How the search for a layer's mapping grows with the layer: CPU seconds, as ratios to those of the smallest.

    python benchmarks/search.py [--arch spatial-16x16] [--glb KIB] [--network NAME …]

One layer, 3 x 3 with 32 input and 32 output channels of 14 x 14, of which pixels, output channels, input channels, or
both grow to 64 times as many MACs. Each search is in a process of its own, so that none finds what another has found.
The layer's image and results are resident in the GLB, or streamed through it block by block. The largest layer has the
number of bounded candidates, the number of those run on the model, and whether the result is proven to be the best.

--network times all searches of a network of `samples/models.py`, up to its last convolution, instead:
`nest-assign-mapping` runs with an empty folder of kept mappings, and again with the mappings that it kept.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from cnncc.arch.model import Arch, arch_text, load_arch
from cnncc.driver.pipeline import ASSIGN
from cnncc.driver.sources import CompileOptions, resume, start_compilation
from cnncc.mapper.search import search
from cnncc.mapping.mapping import Sizes
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.util import disk_cache
from cnncc.util.terminal import NAME, TEXT, Column, fitted, table
from cnncc.window import Window

MODELS = Path(__file__).resolve().parents[1] / "samples" / "models.py"
SCALES = (1, 4, 16, 64)  # squares
GROWN = ("pixels", "output channels", "input channels", "channels")
SIDE, CHANNELS, TAPS = 14, 32, 3
STREAMED = {"resident": frozenset[str](), "streamed": frozenset({"ifmap", "output"})}


def layer(grown: str, scale: int) -> LayerShape:
    """The layer with `scale` times as many MACs, of its own size for a scale of 1."""
    root = round(scale**0.5)
    side, k, c = {
        "pixels": (root, 1, 1),
        "output channels": (1, scale, 1),
        "input channels": (1, 1, scale),
        "channels": (1, root, root),
    }[grown]
    side, k, c = side * SIDE, k * CHANNELS, c * CHANNELS
    window = Window((TAPS, TAPS), (1, 1), (1, 1, 1, 1), (1, 1))
    return LayerShape("mac", Sizes(1, k, c, side, side, TAPS, TAPS), window, 2, side, side)


def searched(arch_name: str, glb_words: int, where: str, grown: str, scale: int) -> tuple[float, str]:
    """CPU seconds of one search, and what came of it."""
    arch = load_arch(arch_name)
    arch = replace(arch, glb=replace(arch.glb, words=glb_words))
    shape = layer(grown, scale)
    start = time.process_time()
    result = search(shape, arch, GlbBudget(glb_words, STREAMED[where]))
    seconds = time.process_time() - start
    if result is None:
        return seconds, "exceeds the GLB"
    proven = "proven" if result.least >= result.cycles else f"within {result.cycles / result.least - 1:.2%}"
    return seconds, f"{result.bounded:,} bounded, {result.run:,} run, {proven}"


def nests(name: str, folder: Path) -> Path:
    """A network as loop nests that are not mapped yet, its weights beside them."""
    model = folder / f"{name}.onnx"
    subprocess.run([sys.executable, str(MODELS), name, "--features", "-o", str(model)], check=True, capture_output=True)
    compilation = start_compilation(model, CompileOptions("spatial-8x8"))
    compilation.run_before(ASSIGN)
    nest = folder / f"{name}.mlir"
    nest.write_text(str(compilation.module))
    (folder / "weights.npz").write_bytes(compilation.ctx.weights.to_bytes())
    return nest


def cpu_s() -> float:
    """Of this process and the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def mapped(nest: Path, array: Path, folder: Path) -> tuple[float, float]:
    """CPU seconds and seconds of mapping a network, with what is kept in a folder."""
    os.environ[disk_cache.FOLDER] = str(folder)
    compilation = resume(nest, CompileOptions(str(array)))
    (step,) = [step for step in compilation.remaining() if step.name == ASSIGN]
    begin = cpu_s(), time.monotonic()
    compilation.step(step)
    return cpu_s() - begin[0], time.monotonic() - begin[1]


def networks(names: list[str], arch: Arch) -> None:
    """Print a row for each network, every figure from a process of its own."""
    apart = multiprocessing.get_context("spawn")
    rows = list[list[str]]()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            nest, array = nests(name, Path(folder)), Path(folder) / "array.toml"
            array.write_text(arch_text(arch))
            durations: list[tuple[float, float]] = []
            for _ in range(2):
                with ProcessPoolExecutor(1, apart) as pool:
                    durations.append(pool.submit(mapped, nest, array, Path(folder) / "kept").result())
        rows.append([name, *(f"{cpu:.2f} CPU s in {seconds:.2f} s" for cpu, seconds in durations)])
    print(fitted(table([Column("network", NAME), "nothing kept", "all kept"], rows)))


def main() -> None:
    """Print a table for each place of the operands, or one of networks."""
    parser = argparse.ArgumentParser(description="How the search for a layer's mapping grows with the layer.")
    parser.add_argument("--arch", default="spatial-16x16", help="preset or TOML file (default: %(default)s)")
    parser.add_argument("--glb", type=int, default=2048, help="KiB of the GLB (default: %(default)s)")
    parser.add_argument("--network", action="append", help="as models.py has it; may be given several times")
    options = parser.parse_args()
    arch = load_arch(options.arch)
    words = options.glb * 1024 * 8 // arch.operand_bits
    if options.network:
        print(f"{options.arch}, GLB {options.glb} KiB")
        networks(options.network, replace(arch, glb=replace(arch.glb, words=words)))
        return
    apart = multiprocessing.get_context("spawn")
    print(f"{options.arch}, GLB {options.glb} KiB; CPU s, and times those of the smallest")
    for where in STREAMED:
        print(f"operands {where}")
        rows = list[list[str]]()
        for grown in GROWN:
            searches = [
                pool.submit(searched, options.arch, words, where, grown, scale).result()
                for scale in SCALES
                for pool in [ProcessPoolExecutor(1, apart)]
            ]
            rows.append([grown, *(f"{s:.2f} s, {s / searches[0][0]:.1f} x" for s, _ in searches), searches[-1][1]])
        scales = (f"{scale} times the MACs" for scale in SCALES)
        print(fitted(table([Column("grown", NAME), *scales, Column("the largest", TEXT)], rows)), flush=True)


if __name__ == "__main__":
    main()
