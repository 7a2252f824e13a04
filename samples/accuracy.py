"""How many test digits the sample networks recognise: as floats by onnxruntime, and as integers on the array.

    python samples/accuracy.py              # every network that train.py made
    python samples/accuracy.py depthwise    # one

Each is compiled with 16-bit and with 8-bit operands, and its binary runs the first 100 test images.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in cnncc/cli/main.py, before numpy is there

import numpy as np

from cnncc.binary.container import Binary
from cnncc.binary.counters import program_stats
from cnncc.binary.modules import build_binary
from cnncc.binary.run import run
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.frontend.load_onnx import load_onnx
from cnncc.frontend.run_onnx import OnnxSession
from cnncc.util.npz import read_npz
from cnncc.weights import Array

SAMPLES = Path(__file__).resolve().parent
ARRAY = "spatial-8x8"
IMAGES = 100
NETWORKS = ["depthwise", "lenet", "mnist", "resnet20"]


def compiled(model: Path, precision: str) -> Binary:
    """The binary of a model, quantised on the calibration images."""
    compilation = start_compilation(
        model, CompileOptions(ARRAY, precision=precision, calibrate=SAMPLES / "inputs/digits_calibration.npz", batch=1)
    )
    compilation.run()
    return build_binary(compilation.module, compilation.ctx.weights, compilation.settings.arch)


def row(model: Path, images: Array, labels: Array) -> str:
    """A row of the table: MACs of one image, and shares of images that are classified as labelled."""

    def share(logits: Array) -> str:
        return f"{100 * float((logits.argmax(axis=1) == labels).mean()):6.1f} %"

    floats = share(np.asarray(OnnxSession(load_onnx(model, batch=len(images))).run({"input": images})[0]))
    binaries = [compiled(model, precision) for precision in ("int16", "int8")]
    integers = [share(run(binary, {"input": images})["logits"]) for binary in binaries]
    return f"{model.stem:<12}{program_stats(binaries[0])['macs']:>12,}  {'  '.join([floats, *integers])}"


def main(names: list[str]) -> None:
    """Print the table."""
    test = read_npz(SAMPLES / "inputs/digits_test.npz", ["input", "label"])
    print(f"{'network':<12}{'MACs':>12}  {'float':>8}  {'int16':>8}  {'int8':>8}")
    for name in names or NETWORKS:
        print(row(SAMPLES / f"models/{name}.onnx", test["input"][:IMAGES], test["label"][:IMAGES]))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Refusal as refusal:
        sys.exit(f"accuracy.py: {refusal}")
