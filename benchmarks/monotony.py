"""Whether more memory, wider ports or more bandwidth ever give more cycles: networks of one random layer.

    python benchmarks/monotony.py [--layers 100] [--images 4] [--seed 0] [--key glb.words …]

Each network is compiled for arrays that differ in one value, `--slack 0`. A chain is a layer with all values of a key.
Cycles should not rise along it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cnncc.arch.model import Arch, arch_text, load_arch
from cnncc.driver.sources import CompileOptions
from cnncc.errors import Refusal
from cnncc.estimate.mapped_program import of_model
from cnncc.util import disk_cache

ARRAYS = ("spatial-4x4", "spatial-8x8")
SHARES = (0.1, 0.25, 0.5, 1.0, 2.0)  # of the words of ifmap, weights and output, for the GLB
CHAINS: Mapping[str, Sequence[int]] = {
    "glb.words": (),
    "glb.words_per_cycle": (1, 2, 4, 8),
    "dram.words_per_cycle": (1, 2, 4, 8),
}


def layer(rng: Random, images: int) -> tuple[onnx.ModelProto, int]:
    """A convolution, depthwise or not, and the words of its ifmap, weights and output."""
    c, k, taps, stride = rng.randint(1, 48), rng.randint(1, 64), rng.choice((1, 3, 3, 5)), rng.choice((1, 1, 2))
    h, w = rng.randint(taps, 28), rng.randint(taps, 28)
    group = c if (depthwise := rng.random() < 0.25) else 1
    k = c if depthwise else k
    weights = np.random.default_rng(rng.randrange(1 << 32)).normal(size=(k, c // group, taps, taps)).astype(np.float32)
    pads = [taps // 2] * 4
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], name="conv", kernel_shape=[taps] * 2, strides=[stride] * 2, pads=pads, group=group
    )
    value = helper.make_tensor_value_info
    out = [(size + 2 * (taps // 2) - taps) // stride + 1 for size in (h, w)]
    x, y = [images, c, h, w], [images, k, *out]
    graph = helper.make_graph(
        [node], "layer", [value("x", TensorProto.FLOAT, x)], [value("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, prod(x) + weights.size + prod(y)


def arrays(base: Arch, key: str, words: int) -> Iterator[tuple[int, Arch]]:
    """The arrays of a chain, each with its value of the key. The GLB holds half of the layer where it does not vary."""
    table, name = key.split(".")
    values = CHAINS[key] or [int(share * words) + 64 for share in SHARES]
    half = replace(base, glb=replace(base.glb, words=words // 2 + 64))
    for value in values:
        yield value, replace(half, name="array", **{table: replace(getattr(half, table), **{name: value})})


def cycles(file: Path, arch: Arch, folder: Path) -> int | None:
    """Of the network by itself; None where the array has no room for it."""
    (toml := folder / "array.toml").write_text(arch_text(arch))
    try:
        program, _ = of_model(file, CompileOptions(arch=str(toml), slack=0.0, groups="none"))
    except Refusal:
        return None
    return program.counters()["cycles"]["total"]


def main() -> None:
    """Print each rise, and for each key how many chains have one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--images", type=int, default=1, help="of each layer (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--key", nargs="*", choices=CHAINS, default=[*CHAINS])
    given = parser.parse_args()
    os.environ[disk_cache.FOLDER] = "off"
    rises: dict[str, list[float]] = {key: [] for key in given.key}
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name), Path(name) / "layer.onnx"
        for number in range(given.layers):
            rng = Random(f"{given.seed} {number}")
            model, words = layer(rng, given.images)
            base = load_arch(rng.choice(ARRAYS))
            onnx.save(model, file)
            for key in given.key:
                chain = [(value, cycles(file, arch, folder)) for value, arch in arrays(base, key, words)]
                there = [(value, count) for value, count in chain if count is not None]
                rise = max([0.0, *(after / before - 1 for (_, before), (_, after) in pairwise(there))])
                rises[key].append(rise)
                if rise > 0:
                    row = "  ".join(f"{value}: {count:,}" for value, count in there)
                    print(f"layer {number:3} {base.name:12} {key:22} {100 * rise:6.2f} %  {row}", flush=True)
    for key, each in rises.items():
        some = sorted(rise for rise in each if rise > 0)
        above = sum(rise > 0.01 for rise in some)
        print(f"{key}: {len(some)} of {len(each)} chains rise, {above} by more than 1 %, at most {max(each):.2%}")


if __name__ == "__main__":
    main()
