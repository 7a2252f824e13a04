"""Compile a network, run the binary that was written on test images, and compare with onnxruntime: `make demo`.

Writes demo/: the binary, its assembly, and the IR after every step. Exits with 1, and the reason in one line on stderr,
if the array loses more than one point of accuracy or does less than 99 % of the MACs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from cnncc.binary.container import Binary, load, to_bytes
from cnncc.binary.counters import program_stats
from cnncc.binary.counters_text import counters_text
from cnncc.binary.isa_module import disassembly
from cnncc.binary.run import run
from cnncc.driver.build import Build
from cnncc.driver.pipeline import Dump
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.frontend.load_onnx import load_onnx
from cnncc.frontend.run_onnx import OnnxSession
from cnncc.util.files import write_atomically
from cnncc.util.npz import read_npz
from cnncc.util.progress import Progress, progress_line
from cnncc.util.terminal import fitted
from cnncc.weights import Array

MODEL = Path("samples/models/mnist.onnx")
CALIBRATION = Path("samples/inputs/digits_calibration.npz")
TEST = Path("samples/inputs/digits_test.npz")
DEMO = Path("demo")
BINARY = DEMO / "mnist.cnb"
WRITTEN = ("mnist.cnb", "mnist.s", "ir/[0-9][0-9]-*.mlir", "ir/weights.npz")  # all that is deleted first
IMAGES = 100


def compile_model(progress: Progress) -> int:
    """Compile MODEL to BINARY, and write assembly and IR beside it. The network's MACs."""
    compilation = start_compilation(
        MODEL, CompileOptions("spatial-8x8", precision="int16", calibrate=CALIBRATION, batch=1)
    )
    build = Build(compilation, MODEL)
    compilation.ctx.progress = progress
    compilation.run("isa", [build, Dump(DEMO / "ir", compilation)])
    binary = build.binary()
    write_atomically(BINARY, to_bytes(binary))
    write_atomically(BINARY.with_suffix(".s"), disassembly(binary).encode())
    return build.share.all_macs


def accuracy(binary: Binary, progress: Progress) -> tuple[float, float]:
    """The share of test images that onnxruntime, and the array, classify as labelled."""
    test = read_npz(TEST, ["input", "label"])
    images, labels = test["input"][:IMAGES], test["label"][:IMAGES]

    def share(logits: Array) -> float:
        return float((logits.argmax(axis=1) == labels).mean())

    in_float = np.asarray(OnnxSession(load_onnx(MODEL, batch=IMAGES)).run({"input": images})[0])
    return share(in_float), share(run(binary, {"input": images}, progress)["logits"])


def main() -> None:
    """Compile, run, and print what came out."""
    os.chdir(Path(__file__).resolve().parents[1])
    DEMO.mkdir(exist_ok=True)
    for pattern in WRITTEN:
        for file in DEMO.glob(pattern):
            file.unlink()
    with progress_line() as progress:
        all_macs = compile_model(progress)
        binary = load(BINARY)  # from here on, nothing but the file
        in_float, on_array = accuracy(binary, progress)
    stats = program_stats(binary)
    used, share = stats["utilisation"], stats["macs"] / all_macs

    print(f"{MODEL} on {binary.arch.name}, {binary.arch.operand_bits}-bit operands, {IMAGES} test images")
    print(f"  accuracy     float (onnxruntime) {100 * in_float:.1f} % | array {100 * on_array:.1f} %")
    print(f"  cycles       {stats['cycles']['total']:,} per image")
    print(f"  utilisation  {100 * used['compute']:.1f} % of compute cycles, {100 * used['total']:.1f} % of all")
    print(f"  MACs         {stats['macs']:,} of {all_macs:,} on the array ({100 * share:.2f} %)")
    print()
    print(fitted(counters_text(stats)))
    print(f"""
  demo/ir/        the IR after every step, and the weights
  demo/mnist.cnb  the binary ({BINARY.stat().st_size:,} bytes), which ran above
  demo/mnist.s    its instructions, disassembled

Next:
  .venv/bin/cnncc run {BINARY} --input {TEST} \\
    --output demo/logits.npz --stats demo/stats.json
  .venv/bin/cnncc verify {MODEL} --batch 1 \\
    --calibrate {CALIBRATION} --input {TEST}
  .venv/bin/cnncc compile --from demo/ir/nest-permute -o demo/again.cnb""")

    if abs(in_float - on_array) > 0.01 + 1e-9:
        sys.exit(f"demo: accuracy differs by more than 1 point: float {in_float:.2f}, array {on_array:.2f}")
    if share < 0.99:
        sys.exit(f"demo: the array does {100 * share:.2f} % of the MACs, less than 99 %")


if __name__ == "__main__":
    try:
        main()
    except Refusal as refusal:
        sys.exit(f"demo: {refusal}")
