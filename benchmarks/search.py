"""How the search for a layer's mapping grows with the layer: CPU seconds, as ratios to those of the smallest.

    python benchmarks/search.py [--arch spatial-16x16] [--glb KIB]

One layer, 3 x 3 with 32 input and 32 output channels of 14 x 14, of which pixels, output channels, input channels, or
both grow to 64 times as many MACs. Each search is in a process of its own, so that none finds what another has found.
The layer's image and results lie in the GLB, or move through it block by block. Of the largest it says how many
candidates were bounded, how many run on the model, and whether what was found is proven to be the best.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from cnncc.arch.model import load_arch
from cnncc.dialects._layers import Window
from cnncc.dialects.nest import Sizes
from cnncc.mapper.blocks import Room
from cnncc.mapper.layer_shape import LayerShape
from cnncc.mapper.search import search

SCALES = (1, 4, 16, 64)  # squares
GROWN = ("pixels", "output channels", "input channels", "channels")
SIDE, CHANNELS, TAPS = 14, 32, 3
MOVING = {"in the GLB": frozenset[str](), "moving": frozenset({"ifmap", "output"})}


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
    found = search(shape, arch, Room(glb_words, MOVING[where]))
    seconds = time.process_time() - start
    if found is None:
        return seconds, "no room"
    proven = "proven" if found.least >= found.cycles else f"within {found.cycles / found.least - 1:.2%}"
    return seconds, f"{found.bounded:,} bounded, {found.run:,} run, {proven}"


def main() -> None:
    """Print a table for each place of the operands."""
    parser = argparse.ArgumentParser(description="How the search for a layer's mapping grows with the layer.")
    parser.add_argument("--arch", default="spatial-16x16", help="preset or TOML file (default: %(default)s)")
    parser.add_argument("--glb", type=int, default=2048, help="KiB of the GLB (default: %(default)s)")
    options = parser.parse_args()
    words = options.glb * 1024 * 8 // load_arch(options.arch).operand_bits
    apart = multiprocessing.get_context("spawn")
    print(f"{options.arch}, GLB {options.glb} KiB; CPU s, and times those of the smallest")
    for where in MOVING:
        print(f"operands {where}")
        print(f"  {'grown':<16}" + "".join(f"{f'x {scale}':>18}" for scale in SCALES) + "   the largest")
        for grown in GROWN:
            found = [
                pool.submit(searched, options.arch, words, where, grown, scale).result()
                for scale in SCALES
                for pool in [ProcessPoolExecutor(1, apart)]
            ]
            cells = (f"{seconds:8.2f} s {seconds / found[0][0]:6.1f} x" for seconds, _ in found)
            print(f"  {grown:<16}" + "".join(f"{cell:>18}" for cell in cells) + f"   {found[-1][1]}", flush=True)


if __name__ == "__main__":
    main()
