"""Cycles and energy of networks with chosen groups of layers beside those without groups, and the time of the searches.

    python benchmarks/groups.py [--network mnist …] [--array spatial-8x8 …]

| column | what it is |
|---|---|
| cycles | `--objective cycles --slack 0`: without groups, with `--groups auto` |
| energy | `--objective energy --slack 0`: the same |
| CPU s | of both estimates with nothing kept, for cycles |

A row that is worse with groups ends with `worse`, and so does the script, with exit code 1. All sizes are those of
`samples/models.py`, with a batch of 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from objectives import cpu_seconds, model

from cnncc.arch.model import preset_names
from cnncc.util import disk_cache

MADE = ("mobilenet", "resnet50", "alexnet", "vgg16", "light-squeezenet", "light-shufflenet", "light-inception-v1")
SAMPLES = ("mnist", "lenet", "depthwise", "resnet20")
OPTIONS = {"vgg16": ("--features",)}


def figures(file: Path, arch: str, objective: str, groups: str) -> tuple[float, float] | None:
    """The cycles or the energy of a network, and the CPU seconds of the estimate; None where it is refused."""
    options = ["--arch", arch, "--batch", "1", "--objective", objective, "--slack", "0", "--groups", groups, "--json"]
    start = cpu_seconds()
    command = [sys.executable, "-m", "cnncc", "estimate", str(file), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {disk_cache.FOLDER: "off"})
    if done.returncode:
        print(f"{file.stem} {arch}: {done.stderr.strip().splitlines()[-1]}")
        return None
    counters = json.loads(done.stdout)
    return (counters["cycles"] if objective == "cycles" else counters["energy"])["total"], cpu_seconds() - start


def main() -> None:
    """Print a row for each network and array."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="*", default=[*SAMPLES, *MADE])
    parser.add_argument("--array", nargs="*", default=preset_names())
    parser.add_argument("--objective", nargs="*", default=["cycles", "energy"])
    given = parser.parse_args()
    is_worse = False
    with tempfile.TemporaryDirectory() as folder:
        for name in given.network:
            file = model(name, OPTIONS.get(name, ()), Path(folder))
            for arch in given.array:
                cells = list[str]()
                for objective in given.objective:
                    both = [figures(file, arch, objective, groups) for groups in ("none", "auto")]
                    if both[0] is None or both[1] is None:
                        is_worse = is_worse or both[0] is not None
                        continue
                    (none, none_s), (auto, auto_s) = both
                    worse = auto > none
                    is_worse = is_worse or worse
                    gain = f"{100 * (auto / none - 1):+.2f} %"
                    cells.append(f"{objective} {none:,.0f} {auto:,.0f} {gain}{' worse' if worse else ''}")
                    cells.append(f"{none_s:.1f} {auto_s:.1f} s ({auto_s / none_s:.2f})")
                print(f"{name:20} {arch:14} {'  '.join(cells)}", flush=True)
    sys.exit(is_worse)


if __name__ == "__main__":
    main()
