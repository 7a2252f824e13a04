"""Compile a network, run the binary that was written on test images, and compare with onnxruntime: `make demo`.

Writes demo/: the binary, its assembly, and the IR after every step. Exits with 1, and one line on stderr that says
why, where the array loses more than one point of accuracy or does less than 99 % of the MACs.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np

from cnncc.commands import disassembly, print_stats, program_stats
from cnncc.errors import Refusal
from cnncc.files import write_atomically
from cnncc.frontend.load_onnx import load_onnx
from cnncc.frontend.run_onnx import OnnxSession
from cnncc.inputs import read_npz
from cnncc.machine.container import Binary, load, to_bytes
from cnncc.machine.modules import build_binary
from cnncc.machine.run import run
from cnncc.pipeline import Dump
from cnncc.report import Report
from cnncc.starts import start_compilation
from cnncc.weights import Array

MODEL = Path("samples/models/mnist.onnx")
CALIBRATION = Path("samples/inputs/digits_calibration.npz")
TEST = Path("samples/inputs/digits_test.npz")
DEMO = Path("demo")
BINARY = DEMO / "mnist.cnb"
IMAGES = 100


def compile_model() -> Report:
    """Compile MODEL to BINARY, and write assembly and IR beside it."""
    compilation = start_compilation(MODEL, "spatial-8x8", "int16", CALIBRATION, batch=1)
    report = Report()
    compilation.run("isa", [report, Dump(DEMO / "ir", compilation)])
    binary = build_binary(compilation.module, compilation.ctx.weights, compilation.settings.arch, report.about())
    write_atomically(BINARY, to_bytes(binary))
    write_atomically(BINARY.with_suffix(".s"), disassembly(binary).encode())
    return report


def accuracy(binary: Binary) -> tuple[float, float]:
    """The share of test images that onnxruntime, and the array, classify as labelled."""
    test = read_npz(TEST, ["input", "label"])
    images, labels = test["input"][:IMAGES], test["label"][:IMAGES]

    def share(logits: Array) -> float:
        return float((logits.argmax(axis=1) == labels).mean())

    in_float = np.asarray(OnnxSession(load_onnx(MODEL, batch=IMAGES)).run({"input": images})[0])
    return share(in_float), share(run(binary, {"input": images})["logits"])


def main() -> None:
    """Compile, run, and print what came out."""
    os.chdir(Path(__file__).resolve().parents[1])
    shutil.rmtree(DEMO, ignore_errors=True)
    DEMO.mkdir()
    report = compile_model()

    binary = load(BINARY)  # from here on, nothing but the file
    in_float, on_array = accuracy(binary)
    stats = program_stats(binary)
    used, share = stats["utilisation"], stats["macs"] / report.all_macs

    print(f"{MODEL} on {binary.arch.name}, {binary.arch.operand_bits}-bit operands, {IMAGES} test images")
    print(f"  accuracy     float (onnxruntime) {100 * in_float:.1f} % | array {100 * on_array:.1f} %")
    print(f"  cycles       {stats['cycles']['total']:,} an image")
    print(f"  utilisation  {100 * used['compute']:.1f} % of compute cycles, {100 * used['total']:.1f} % of all")
    print(f"  MACs         {stats['macs']:,} of {report.all_macs:,} on the array ({100 * share:.2f} %)")
    print()
    print_stats(stats)
    print(f"""
  demo/ir/        the IR after every step, and the weights
  demo/mnist.cnb  the binary ({BINARY.stat().st_size:,} bytes), which ran above
  demo/mnist.s    its instructions, disassembled

Next:
  .venv/bin/cnncc run {BINARY} --input {TEST} --output demo/logits.npz --stats demo/stats.json
  .venv/bin/cnncc verify {MODEL} --batch 1 --calibrate {CALIBRATION} --input {TEST}
  .venv/bin/cnncc compile --from demo/ir/16-nest-permute.mlir -o demo/again.cnb""")

    if abs(in_float - on_array) > 0.01 + 1e-9:
        sys.exit(f"demo: accuracy differs by more than 1 point: float {in_float:.2f}, array {on_array:.2f}")
    if share < 0.99:
        sys.exit(f"demo: the array does {100 * share:.2f} % of the MACs, less than 99 %")


if __name__ == "__main__":
    try:
        main()
    except Refusal as refusal:
        sys.exit(f"demo: {refusal}")
