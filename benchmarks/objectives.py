"""DRAM words and energy of networks by the default objective, beside the fewest cycles and the fewest words.

    python benchmarks/objectives.py [--network mnist …]

| column | what it is |
|---|---|
| fewest cycles, their words | `--slack 0` |
| cycles, words, energy | by default: at most half a percent more cycles |
| fewest words | no mappings of the space move fewer, given which values are resident (BOUND-20) |
| CPU s | of `cnncc estimate` with nothing kept |

Layers run one by one (`--groups none`): groups.py compares. All sizes are those of `samples/models.py`, with a batch of
1; the MNIST net is the sample.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from cnncc.arch.model import load_arch
from cnncc.driver.pipeline import NONE
from cnncc.driver.sources import CompileOptions
from cnncc.estimate.mapped_network import budgets, streamed
from cnncc.estimate.mapped_program import of_model
from cnncc.mapper.least_cost import least_cost
from cnncc.mapper.prices import DRAM_WORDS
from cnncc.model.energy import energy
from cnncc.model.program_schedule import CopyPart
from cnncc.passes._scheduling.nest_layers import layer_shape
from cnncc.util import disk_cache
from cnncc.util.terminal import NAME, Column, fitted, table

ROOT = Path(__file__).resolve().parents[1]
CASES = (
    ("vgg16", ("--features",), "spatial-8x8"),
    ("resnet50", (), "spatial-8x8"),
    ("resnet50", (), "spatial-16x16"),
    ("mobilenet", (), "spatial-8x8"),
    ("alexnet", (), "spatial-8x8"),
    ("mnist", (), "spatial-8x8"),
)
HEADS = ("fewest cycles", "their words", "cycles", "words", "energy", "fewest words", "CPU s")


def model(name: str, options: tuple[str, ...], folder: Path) -> Path:
    """The ONNX file of a network."""
    sample, made = ROOT / "samples" / "models" / f"{name}.onnx", folder / f"{name}.onnx"
    if sample.exists():
        return sample
    if not made.exists():
        command = [sys.executable, str(ROOT / "samples" / "models.py"), name, *options, "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True)
    return made


def on_one_core() -> None:
    """Searches start no other processes from now on: `cpu_seconds` would not count those that still run."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def cpu_seconds() -> float:
    """Of this process and of all that it has waited for."""
    return sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def row(file: Path, arch: str) -> list[str]:
    """The figures of a network on an array."""
    cells = list[str]()
    for slack in (0.0, None):
        start = cpu_seconds()
        program, _ = of_model(file, CompileOptions(arch, batch=1, slack=slack, groups=NONE))
        counts, took = program.counters(), cpu_seconds() - start
        words = counts["words"]["dram_read"] + counts["words"]["dram_write"]
        cells += [f"{counts['cycles']['total']:,}", f"{words:,}"]
        if slack is None:
            assert program.network
            func = program.network.func
            least = float(sum(sum(part.words) for part in program.parts if isinstance(part, CopyPart)))
            for layer, budget in budgets(func, program.arch, streamed(func)).items():
                least += least_cost(layer_shape(layer), program.arch, budget, DRAM_WORDS)
            cells += [f"{energy(counts, load_arch(arch).energy)['total']:,.0f}", f"{least:,.0f}", f"{took:.1f}"]
    return cells


def main() -> None:
    """Print a row for each network and array."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="*", default=[], help="only these")
    wanted = parser.parse_args().network
    os.environ[disk_cache.FOLDER] = "off"
    on_one_core()
    rows = list[list[str]]()
    with tempfile.TemporaryDirectory() as folder:
        for name, options, arch in CASES:
            if not wanted or name in wanted:
                rows.append([name, arch, *row(model(name, options, Path(folder)), arch)])
    print(fitted(table([Column("network", NAME), Column("array", NAME), *HEADS], rows, indent=0)))


if __name__ == "__main__":
    main()
