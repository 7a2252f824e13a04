"""How fast the interpreter is: ResNet-20 and layers of VGG-16 on one image, LeNet's convolutions on many.

    python benchmarks/interpreter.py [IMAGES]

| what runs | figures |
|---|---|
| a loaded network on one image | ms for the values of all words, for the cycles, for the traffic |
| | MACs a second for the values, and for all three (as `cnncc run` does) |
| a convolution of LeNet on IMAGES images | MACs a second, beside numpy's float64 matrix product of equally many MACs |
 The best of a few runs, in one process; all times are CPU times.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from cnncc.api import Binary, CompileOptions, compile_model
from cnncc.arch.model import PRESETS
from cnncc.binary.container import from_bytes, to_bytes
from cnncc.binary.isa_module import layers
from cnncc.binary.run import Machine, inputs_of
from cnncc.binary.run import run as run_values
from cnncc.machine.program import build_tree
from cnncc.machine.times.times import simulate
from cnncc.machine.traffic.counts import count_traffic
from cnncc.machine.values.interpreter import Interpreter
from cnncc.util.npz import read_npz
from cnncc.util.terminal import NAME, Column, fitted, table
from cnncc.weights import Array

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
VGG_LAYERS = ((64, 56), (128, 28), (256, 14))  # channels in and out, rows and columns
VGG_GLB_WORDS = 1 << 20  # input, output and weights of each at once
RUNS = 5
LEAST_MACS = 100_000  # of one image, of LeNet's layers that are shown


def compiled(model: Path, name: str, calibration: Mapping[str, Array]) -> Binary:
    """A network for a named array, quantised on calibration data, as it comes out of its file."""
    return from_bytes(to_bytes(compile_model(model, CompileOptions(name, batch=1), calibration)))


def seconds(work: Callable[[], object]) -> float:
    """How much CPU time one call takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def best(work: Callable[[], object]) -> float:
    """The least of a few measurements."""
    return min(seconds(work) for _ in range(RUNS))


# -- one image ---------------------------------------------------------------------------------------------------------


def convolution(channels: int, size: int) -> bytes:
    """The ONNX file of one convolution of 3x3 with its ReLU, with seeded weights."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((channels, channels, 3, 3)) / np.sqrt(9 * channels)
    constants = [("weights", weights.astype(np.float32)), ("bias", rng.standard_normal(channels).astype(np.float32))]
    nodes = [
        helper.make_node("Conv", ["image", "weights", "bias"], ["sums"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["sums"], ["result"], name="relu"),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, size, size])
        for name in ("image", "result")
    )
    arrays = [numpy_helper.from_array(array, name) for name, array in constants]
    graph = helper.make_graph(nodes, "layer", [x], [y], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return model.SerializeToString()


def networks(folder: Path) -> dict[str, tuple[Binary, Array]]:
    """By name: ResNet-20 and the layers, each with one random image."""
    from networks import SAMPLES as NETWORKS

    preset, big = (PRESETS / "spatial-16x16.toml").read_text(), folder / "large-16x16.toml"
    preset = preset.replace('"spatial-16x16"', '"large-16x16"')
    big.write_text(preset.replace("words = 65536", f"words = {VGG_GLB_WORDS}"))
    cases = [("resnet20", "spatial-8x8", 3, 32)]
    NETWORKS["resnet20"].build(32).write(folder / "resnet20.onnx", 0)
    for channels, size in VGG_LAYERS:
        name = f"3x3 {channels}-{channels} {size}x{size}"
        (folder / f"{name}.onnx").write_bytes(convolution(channels, size))
        cases.append((name, str(big), channels, size))
    cases_by_name: dict[str, tuple[Binary, Array]] = {}
    for name, arch, channels, size in cases:
        image = np.random.default_rng(1).standard_normal((1, channels, size, size)).astype(np.float32)
        cases_by_name[name] = compiled(folder / f"{name}.onnx", arch, {"image": image}), image
    return cases_by_name


def show_one_image() -> None:
    """Measure and print networks on one image."""
    with tempfile.TemporaryDirectory() as folder:
        cases = networks(Path(folder))
    gc.freeze()  # as `cnncc run` does
    print(f"one image, the best of {RUNS} runs")
    rows = list[list[str]]()
    for name, (binary, image) in cases.items():
        starts = [(layer.label, layer.first) for layer, _ in layers(binary)]
        tree, arch = build_tree(binary.instructions), binary.arch
        parts = [
            best(lambda b=binary, i=image: run_values(b, {"image": i})),
            best(lambda t=tree, a=arch, s=starts: simulate(t, a, s)),
            best(lambda t=tree, a=arch, s=starts: count_traffic(t, a, s)),
        ]
        macs = count_traffic(tree, arch).whole.macs
        values, cycles, traffic = (1e3 * part for part in parts)
        speeds = macs / parts[0] / 1e6, macs / sum(parts) / 1e6
        spent = (f"{part:.1f}" for part in (values, cycles, traffic))
        rows.append([name, arch.name, f"{macs:,}", *spent, *(f"{speed:.0f}" for speed in speeds)])
    heads = ("MACs", "values ms", "cycles ms", "traffic ms", "values MMAC/s", "all MMAC/s")
    print(fitted(table([Column("network", NAME), Column("array", NAME, drop=1), *heads], rows, indent=0)))


# -- many images -------------------------------------------------------------------------------------------------------


def seconds_by_layer(binary: Binary, images: Array) -> dict[str, float]:
    """Seconds of each layer's instructions."""
    machine = Machine(binary, len(images))
    machine.take(inputs_of(binary)[0], images)
    ends = {layer.first + layer.count: layer.label for layer, _ in layers(binary)}
    durations: dict[str, float] = {}
    start = time.process_time()

    def watch(index: int, interpreter: Interpreter) -> None:
        nonlocal start
        if index in ends:
            durations[ends[index]] = time.process_time() - start
            start = time.process_time()

    machine.run(watch)
    return durations


def matmul_seconds(macs: int) -> float:
    """A product of float64 matrices with an inner size of 64 and an outer one of 16."""
    rows = macs // (64 * 16)
    left, right = np.ones((rows, 64)), np.ones((64, 16))
    return seconds(lambda: left @ right)


def show_lenet(count: int) -> None:
    """Measure and print LeNet's convolutions."""
    calibration = read_npz(SAMPLES / "inputs/digits_calibration.npz", ["input"])
    binary = compiled(SAMPLES / "models/lenet.onnx", "spatial-8x8", calibration)
    images = read_npz(SAMPLES / "inputs/digits_test.npz", ["input"])["input"][:count]
    starts = [(layer.label, layer.first) for layer, _ in layers(binary)]
    traffic = count_traffic(build_tree(binary.instructions), binary.arch, starts).layers
    runs = [seconds_by_layer(binary, images) for _ in range(RUNS)]
    print(f"\n{len(images)} images of LeNet on {binary.arch.name}, the best of {RUNS} runs")
    rows = list[list[str]]()
    for label in [label for label, _ in starts if traffic[label].macs >= LEAST_MACS]:
        total, took = traffic[label].macs * len(images), min(run[label] for run in runs)
        bare = min(matmul_seconds(total) for _ in range(RUNS))
        speeds = total / took / 1e6, total / bare / 1e6
        rates = (f"{speed:.0f}" for speed in speeds)
        rows.append([label, f"{total:,}", f"{took * 1e3:.1f}", *rates, f"{bare / took:.3f}"])
    print(fitted(table([Column("layer", NAME), "MACs", "ms", "MMAC/s", "matmul MMAC/s", "ratio"], rows, indent=0)))


if __name__ == "__main__":
    if "OPENBLAS_NUM_THREADS" not in os.environ:  # as `cnncc` sets it, before numpy starts its threads
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="?", type=int, default=100, help="for LeNet (default: %(default)s)")
    images = parser.parse_args().images
    sys.path.insert(0, str(SAMPLES))
    show_one_image()
    show_lenet(images)
