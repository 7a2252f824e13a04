"""What groups of layers change in networks: cycles, DRAM words, energy, and the time of the search.

    python benchmarks/groups.py [--network mnist …] [--array spatial-8x8 …] [--aim fastest …]

| aim | options | a network is worse with groups |
|---|---|---|
| fastest | `--slack 0` | with more cycles |
| default | none | with more than (1 + slack) times the fewest cycles, or with more energy than a network within these |
| energy, edp, words | `--objective` | with more of it |

The fewest cycles are those of `fastest`, if it comes before. CPU s are those of `estimate` with nothing kept. A row is
`slow` if groups take more than twice the time. The last line counts what is worse or slow, and the exit code is 1 if
there is some. All sizes are those of `samples/models.py`, with a batch of 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from objectives import cpu_seconds, model

from cnncc.arch.model import preset_names
from cnncc.mapper.objective import SLACK
from cnncc.util import disk_cache

MADE = ("mobilenet", "resnet50", "alexnet", "vgg16", "light-squeezenet", "light-shufflenet", "light-inception-v1")
SAMPLES = ("mnist", "lenet", "depthwise", "resnet20")
OPTIONS = {"vgg16": ("--features",)}
AIMS = {"fastest": ("--slack", "0"), "default": ()} | {aim: ("--objective", aim) for aim in ("energy", "edp", "words")}
MOST_CPU = 2.0  # times the seconds without groups
FEW_SECONDS = 2.0  # below which times are those of starting


class Run(NamedTuple):
    """What an estimate says of a network, and its CPU seconds."""

    cycles: int
    words: int
    energy: float
    seconds: float


def run(file: Path, arch: str, aim: str, groups: str) -> Run | None:
    """A network with or without groups; None where it is refused."""
    options = ["--arch", arch, "--batch", "1", *AIMS[aim], "--groups", groups, "--json"]
    start = cpu_seconds()
    command = [sys.executable, "-m", "cnncc", "estimate", str(file), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {disk_cache.FOLDER: "off"})
    if done.returncode:
        print(f"{file.stem} {arch} {groups}: {done.stderr.strip().splitlines()[-1]}")
        return None
    counters = json.loads(done.stdout)
    words = counters["words"]["dram_read"] + counters["words"]["dram_write"]
    return Run(counters["cycles"]["total"], words, counters["energy"]["total"], cpu_seconds() - start)


def faults(none: Run, auto: Run, aim: str, fewest: int) -> Iterator[str]:
    """What is worse with groups."""
    fewest = min(fewest, none.cycles, auto.cycles)
    most = fewest * (1 + SLACK)
    match aim:
        case "fastest":
            worse = auto.cycles > none.cycles
        case "default":
            worse = auto.cycles > most or (none.cycles <= most and auto.energy > none.energy)
        case "energy":
            worse = auto.energy > none.energy
        case "edp":
            worse = auto.energy * auto.cycles > none.energy * none.cycles
        case _:
            worse = auto.words > none.words
    if worse:
        yield "worse"
    if auto.seconds > max(FEW_SECONDS, MOST_CPU * none.seconds):
        yield "slow"


def cell(name: str, none: float, auto: float) -> str:
    """A figure without and with groups."""
    return f"{name} {none:,.0f} {auto:,.0f} ({100 * (auto / none - 1):+.2f} %)"


def main() -> None:
    """Print a row for each network, array and aim, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="*", default=[*SAMPLES, *MADE])
    parser.add_argument("--array", nargs="*", default=preset_names())
    parser.add_argument("--aim", nargs="*", default=["fastest", "default", "energy"], choices=AIMS)
    given = parser.parse_args()
    rows, wrong, slowest = 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name in given.network:
            file = model(name, OPTIONS.get(name, ()), Path(folder))
            for arch in given.array:
                fewest = sys.maxsize
                for aim in given.aim:
                    none, auto = (run(file, arch, aim, groups) for groups in ("none", "auto"))
                    rows += 1
                    if none is None or auto is None:
                        wrong += none is not None
                        continue
                    fewest, ratio = min(fewest, none.cycles, auto.cycles), auto.seconds / none.seconds
                    found = [*faults(none, auto, aim, fewest)]
                    wrong, slowest = wrong + bool(found), max(slowest, ratio)
                    cells = [cell(what, getattr(none, what), getattr(auto, what)) for what in Run._fields[:3]]
                    cells.append(f"{none.seconds:.1f} {auto.seconds:.1f} s ({ratio:.2f})")
                    print(f"{name:20} {arch:14} {aim:8} {'  '.join(cells)} {' '.join(found)}".rstrip(), flush=True)
    print(f"{rows} rows: {wrong or 'nothing'} worse with groups; the search takes up to {slowest:.2f} times as long")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
