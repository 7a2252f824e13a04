"""How fast the interpreter of values is: LeNet's convolutions, beside a bare matrix product of as many MACs.

    python benchmarks/interpreter.py [IMAGES]

For each convolution: MACs of the array for all images, MACs a second, and the share of the speed at which numpy
multiplies float64 matrices of the same MACs in the same run. The best of a few runs, in one process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cnncc.inputs import read_npz
from cnncc.isa.codec import decode_program
from cnncc.machine.container import Binary
from cnncc.machine.modules import build_binary, layers
from cnncc.machine.program import build_tree
from cnncc.machine.run import Machine, inputs_of
from cnncc.machine.traffic import count_traffic
from cnncc.machine.values import Interpreter
from cnncc.pipeline import Settings, import_model
from cnncc.weights import Array

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
ARRAY = "spatial-8x8"
RUNS = 5
LEAST_MACS = 100_000  # of one image, of the layers that are shown


def compiled() -> Binary:
    """LeNet for the array, quantised on the samples' calibration data."""
    from cnncc.arch.model import load_arch

    arch = load_arch(ARRAY)
    data = read_npz(SAMPLES / "inputs/digits_calibration.npz", ["input"])
    compilation = import_model(SAMPLES / "models/lenet.onnx", 1, Settings(arch, ARRAY, arch.operand_bits, data))
    compilation.run()
    return build_binary(compilation.module, compilation.ctx.weights, arch)


def seconds_by_layer(binary: Binary, images: Array) -> dict[str, float]:
    """Seconds of each layer's instructions."""
    machine = Machine(binary, len(images))
    machine.take(inputs_of(binary)[0], images)
    ends = {layer.first + layer.count: layer.label for layer, _ in layers(binary)}
    seconds: dict[str, float] = {}
    start = time.perf_counter()

    def watch(index: int, interpreter: Interpreter) -> None:
        nonlocal start
        if index in ends:
            seconds[ends[index]] = time.perf_counter() - start
            start = time.perf_counter()

    machine.run(watch)
    return seconds


def best(measure: Callable[[], float]) -> float:
    """The least of a few measurements."""
    return min(measure() for _ in range(RUNS))


def matmul_seconds(macs: int) -> float:
    """A product of float64 matrices with an inner size of 64 and an outer one of 16."""
    rows = macs // (64 * 16)
    left, right = np.ones((rows, 64)), np.ones((64, 16))
    start = time.perf_counter()
    _ = left @ right
    return time.perf_counter() - start


def main(count: int) -> None:
    """Measure and print."""
    binary = compiled()
    images = read_npz(SAMPLES / "inputs/digits_test.npz", ["input"])["input"][:count]
    starts = [(layer.label, layer.first) for layer, _ in layers(binary)]
    macs = {
        label: traffic.macs
        for label, traffic in count_traffic(
            build_tree(decode_program(binary.program)), binary.arch, starts
        ).layers.items()
    }
    runs = [seconds_by_layer(binary, images) for _ in range(RUNS)]
    print(f"{len(images)} images on {ARRAY}, the best of {RUNS} runs")
    print(f"{'layer':<8}{'MACs':>14}{'ms':>9}{'MMAC/s':>10}{'matmul MMAC/s':>16}{'ratio':>8}")
    for label in [label for label, _ in starts if macs[label] >= LEAST_MACS]:
        total, seconds = macs[label] * len(images), min(run[label] for run in runs)
        bare = best(lambda total=total: matmul_seconds(total))
        speeds = total / seconds / 1e6, total / bare / 1e6
        print(f"{label:<8}{total:>14,}{seconds * 1e3:>9.1f}{speeds[0]:>10.0f}{speeds[1]:>16.0f}{bare / seconds:>8.3f}")


if __name__ == "__main__":
    if "OPENBLAS_NUM_THREADS" not in os.environ:  # as `cnncc` sets it, before numpy starts its threads
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
