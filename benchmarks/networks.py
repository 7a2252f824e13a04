"""What networks of real shapes cost: to compile, as a program, and to run, each in a process of its own.

    python benchmarks/networks.py resnet50 alexnet
    python benchmarks/networks.py mobilenet --image-size 64 --arch spatial-16x16

The names are those of `python samples/models.py list`. A network is made, calibrated on 8 images and run on one other;
the outputs are compared with float onnxruntime. Seconds are CPU seconds of the process and its children, memory is the
most that was resident. Limits that are wanted of a network at its full size, on the default array, stand below.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cnncc.util.terminal import NAME, Column, fitted, table

ROOT = Path(__file__).resolve().parent.parent
CALIBRATION_IMAGES = 8
SEEDS = {"calibration": 1, "image": 2}

# network: figure: at most
LIMITS = {
    "resnet50": {"compile CPU s": 30.0, "compile peak MB": 2500.0, "IR dumps MB": 5.0},
    "alexnet": {"program KiB": 64.0},
}
DIGITS = {"cycles": 0, "MACs": 0, "compile peak MB": 0, "run peak MB": 0, "run MMACs/s": 0}  # others: 2

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}

Figures = dict[str, float | str]


class Failed(Exception):
    """A command did not end well: what it said last."""


@dataclass(frozen=True)
class Cost:
    """What a process wrote to stdout, its CPU seconds, and the most memory that it held."""

    text: str
    cpu_s: float
    peak_mb: float


def measured(folder: Path, *command: object) -> Cost:
    """Run a Python command to its end. Raises Failed.

    A process counts what its parent held when it was started, too: this module imports nothing large.
    """
    streams = [folder / "stdout", folder / "stderr"]
    with streams[0].open("w") as out, streams[1].open("w") as err:
        process = subprocess.Popen([sys.executable, *map(str, command)], cwd=folder, stdout=out, stderr=err, env=ENV)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    said, complained = (stream.read_text() for stream in streams)
    if process.returncode:
        raise Failed((complained.splitlines() or [f"exit code {process.returncode}"])[-1])
    return Cost(said, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)


def make(folder: Path, name: str, image_size: int | None) -> None:
    """Write net.onnx, calibration.npz and image.npz."""
    script = ROOT / "samples" / "models.py"
    size = ("--image-size", image_size) if image_size else ()
    measured(folder, script, name, "-o", "net.onnx", *size)
    for data, seed in SEEDS.items():
        count = CALIBRATION_IMAGES if data == "calibration" else 1
        options = ("--count", count, "--seed", seed, *(("--size", image_size) if image_size else ()))
        measured(folder, script, "image", "--for", name, "-o", f"{data}.npz", *options)


def figures(folder: Path, name: str, image_size: int | None, arch: str, precision: str) -> Figures:
    """All figures of one network. Raises Failed."""
    make(folder, name, image_size)
    options = ("--arch", arch, "--calibrate", "calibration.npz", "--precision", precision)
    compiled = measured(folder, "-m", "cnncc", "compile", "net.onnx", "-o", "net.cnb", *options)
    measured(folder, "-m", "cnncc", "compile", "net.onnx", "-o", "dumped.cnb", "--dump-dir", "ir", *options)
    output = ("--input", "image.npz", "--output", "out.npz", "--stats", "stats.json")
    ran = measured(folder, "-m", "cnncc", "run", "net.cnb", *output)
    stats = json.loads((folder / "stats.json").read_text())
    program = re.search(r"program\s+([\d,]+) bytes", compiled.text)
    share = re.search(r"on the array \(([\d.]+) %\)", compiled.text)
    assert program and share, compiled.text
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
        sqnr_db, equal = apart.submit(compare, folder).result()
    return {
        "compile CPU s": compiled.cpu_s,
        "compile peak MB": compiled.peak_mb,
        "program KiB": int(program[1].replace(",", "")) / 1024,
        "IR dumps MB": sum(path.stat().st_size for path in (folder / "ir").glob("*.mlir")) / 1e6,
        "MACs": stats["macs"],
        "MACs on array %": float(share[1]),
        "cycles": stats["cycles"]["total"],
        "utilisation %": 100 * stats["utilisation"]["total"],
        "run CPU s": ran.cpu_s,
        "run peak MB": ran.peak_mb,
        "run MMACs/s": stats["macs"] / ran.cpu_s / 1e6,
        "SQNR dB": sqnr_db,
        "top-1": "equal" if equal else "differs",
    }


def compare(folder: Path) -> tuple[float, bool]:
    """The outputs of the run against float onnxruntime's: SQNR in dB, and is the greatest in the same place?"""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "net.onnx", providers=["CPUExecutionProvider"])
    with np.load(folder / "image.npz") as images, np.load(folder / "out.npz") as outputs:
        (name,) = outputs.files
        got = outputs[name]
        wanted = np.asarray(session.run([name], {key: images[key] for key in images.files})[0])
    noise = float(np.square(wanted - got).sum())
    sqnr_db = 10 * float(np.log10(np.square(wanted).sum() / noise)) if noise else float("inf")
    return sqnr_db, int(wanted.argmax()) == int(got.argmax())


def shown(figure: str, value: float | str) -> str:
    """A cell of the table."""
    return value if isinstance(value, str) else f"{value:,.{DIGITS.get(figure, 2)}f}"


def print_table(by_network: dict[str, Figures]) -> None:
    """A column for each network."""
    figures = next(iter(by_network.values()))
    rows = [[figure, *(shown(figure, own[figure]) for own in by_network.values())] for figure in figures]
    print(fitted(table([Column("figure", NAME), *by_network], rows, indent=0)))


def print_limits(by_network: dict[str, Figures]) -> None:
    """A line for each limit of these networks."""
    for name, limits in LIMITS.items():
        for figure, most in limits.items() if name in by_network else ():
            value = by_network[name][figure]
            assert isinstance(value, float)
            print(f"{name}: {figure} {value:,.2f}, at most {most:g} wanted: {'met' if value <= most else 'MISSED'}")


def main() -> int:
    """Measure and print; 1 where a network could not be compiled or run."""
    parser = argparse.ArgumentParser(description="What networks of real shapes cost to compile and to run.")
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help="see python samples/models.py list")
    parser.add_argument("--image-size", type=int, help="of all of them; default: each network's own")
    parser.add_argument("--arch", default="spatial-8x8", help="preset or TOML file (default: %(default)s)")
    parser.add_argument("--precision", default="int16", choices=["int8", "int16"])
    options = parser.parse_args()
    arch = str(Path(options.arch).resolve()) if Path(options.arch).is_file() else options.arch
    by_network: dict[str, Figures] = {}
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            try:
                by_network[name] = figures(Path(folder), name, options.image_size, arch, options.precision)
            except Failed as failure:
                print(f"{name}: {failure}", flush=True)
    if by_network:
        print(f"{options.precision} operands on {options.arch}")
        print_table(by_network)
        if not options.image_size and (options.arch, options.precision) == ("spatial-8x8", "int16"):
            print_limits(by_network)
    return 0 if len(by_network) == len(options.networks) else 1


if __name__ == "__main__":
    sys.exit(main())
