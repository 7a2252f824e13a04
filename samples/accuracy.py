"""How many test digits the sample networks recognise: as floats by onnxruntime, and as integers on the array.

    python samples/accuracy.py              # every network that train.py made
    python samples/accuracy.py depthwise    # one

Each is compiled with 16-bit and with 8-bit operands, and its binary runs the first 100 test images.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in cnncc/cli/main.py, before numpy is there

import numpy as np

from cnncc.api import CompileOptions, Refusal, compile_model, program_stats, run
from cnncc.driver.sources import start_compilation
from cnncc.frontend.load_onnx import load_onnx
from cnncc.frontend.node_macs import module_macs
from cnncc.frontend.run_onnx import OnnxSession
from cnncc.util.npz import read_npz
from cnncc.util.progress import progress_line
from cnncc.util.terminal import NAME, Column, table
from cnncc.weights import Array

SAMPLES = Path(__file__).resolve().parent
ARRAY = "spatial-8x8"
IMAGES = 100
NETWORKS = ["depthwise", "lenet", "mnist", "resnet20"]


def macs(model: Path) -> int:
    """Of one image."""
    return module_macs(start_compilation(model, CompileOptions(ARRAY, batch=1)).module)


def row(model: Path, images: Array, labels: Array) -> list[str]:
    """A row of the table: MACs of one image, and shares of images that are classified as labelled."""

    def share(logits: Array) -> str:
        return f"{100 * float((logits.argmax(axis=1) == labels).mean()):.1f} %"

    floats = share(np.asarray(OnnxSession(load_onnx(model, batch=len(images))).run({"input": images})[0]))
    options = CompileOptions(ARRAY, calibrate=SAMPLES / "inputs/digits_calibration.npz", batch=1)
    binaries = [compile_model(model, replace(options, precision=precision)) for precision in ("int16", "int8")]
    integers = [share(run(binary, {"input": images})["logits"]) for binary in binaries]
    return [model.stem, f"{program_stats(binaries[0])['macs']:,}", floats, *integers]


def main(names: list[str]) -> None:
    """Print the table."""
    test = read_npz(SAMPLES / "inputs/digits_test.npz", ["input", "label"])
    images, labels = test["input"][:IMAGES], test["label"][:IMAGES]
    models = [SAMPLES / f"models/{name}.onnx" for name in names or NETWORKS]
    with progress_line() as progress:
        *work, total = accumulate(map(macs, models), initial=0)
        rows = list[list[str]]()
        for model, done in zip(models, work, strict=True):
            progress(model.stem, done, total)
            rows.append(row(model, images, labels))
    print("\n".join(table([Column("network", NAME), "MACs", "float", "int16", "int8"], rows, indent=0)))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Refusal as refusal:
        sys.exit(f"accuracy.py: {refusal}")
