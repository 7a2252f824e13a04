"""How long the command line takes to compile the samples, cold: a process of its own for each run.

    python benchmarks/compile.py [RUNS]

Seconds of `cnncc compile`, the best of a few runs, beside those of a process that only imports what any compiler on
xDSL and ONNX must import, and the ratio of the two.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
IMPORTS = (sys.executable, "-c", "import xdsl.dialects.builtin, numpy, onnx")
RUNS = 5
TARGET_S = {"lenet": 3.0}


def seconds(command: Sequence[str], folder: Path, runs: int) -> float:
    """The best of `runs` runs of a process."""
    durations: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        durations.append(time.perf_counter() - start)
    return min(durations)


def compile_command(sample: str) -> tuple[str, ...]:
    """`cnncc compile` of a sample with its calibration data."""
    model, data = SAMPLES / f"models/{sample}.onnx", SAMPLES / "inputs/digits_calibration.npz"
    return (sys.executable, "-m", "cnncc", "compile", str(model), "--batch", "1", "--calibrate", str(data))


def main(runs: int) -> None:
    """Print a row for each sample."""
    with tempfile.TemporaryDirectory() as folder:
        imports = seconds(IMPORTS, Path(folder), runs)
        print(f"{'imports alone':<16} {imports:6.2f} s")
        for sample in ("lenet", "mnist"):
            duration = seconds(compile_command(sample), Path(folder), runs)
            target = f", at most {TARGET_S[sample]} s wanted" if sample in TARGET_S else ""
            print(f"{'compile ' + sample:<16} {duration:6.2f} s, {duration / imports:.1f} times the imports{target}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=int, default=RUNS, help="of each command (default: %(default)s)")
    main(parser.parse_args().runs)
