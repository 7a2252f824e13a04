"""What groups of layers change in networks: cycles, DRAM words, energy, and the time of the search.

    python benchmarks/groups.py [--network mnist …] [--array spatial-8x8 …] [--aim fastest …] [-o rows.txt]

| aim | options | a network is worse with groups |
|---|---|---|
| fastest | `--slack 0` | with more cycles |
| default | none | with more than (1 + slack) times the fewest cycles, or with more energy than a network within these |
| energy, edp, words | `--objective` | with more of it |

The fewest cycles are those of `fastest`, if it comes before. A process of its own maps the network for each row:
without groups, and then with them. It keeps what it finds, so that the CPU s of both together are at least those of the
search with groups. A row is `slow` if they are more than twice those without groups. The last line counts what is worse
or slow, and the exit code is 1 if there is some. `-o` adds the rows to a file, and leaves out those that it has. All
sizes are those of `samples/models.py`, with a batch of 1.

With `CNNCC_CACHE=FOLDER` searches are kept from row to row. Figures are the same, but CPU s say nothing then.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from objectives import ROOT, cpu_seconds, model, on_one_core

from cnncc.arch.model import preset_names
from cnncc.driver.pipeline import ASSIGN, AUTO, NONE, Compilation
from cnncc.driver.program_parts import mapped_parts
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.mapper.objective import SLACK
from cnncc.model.energy import with_energy
from cnncc.model.program_counts import program_counts
from cnncc.util import disk_cache

MADE = ("mobilenet", "resnet50", "alexnet", "vgg16", "light-squeezenet", "light-shufflenet", "light-inception-v1")
SAMPLES = tuple(sorted(file.stem for file in (ROOT / "samples" / "models").glob("*.onnx")))
OPTIONS = {"vgg16": ("--features",), "light-vgg19": ("--features",)}
AIMS = {"fastest": ("cycles", 0.0), "default": ("cycles", None)} | {
    aim: (aim, None) for aim in ("energy", "edp", "words")
}
MOST_CPU = 2.0  # times the seconds without groups
FEW_SECONDS = 2.0  # below which times are those of starting
NO_PROGRAM = "the array has no program"
FORK = get_context("fork")


class Run(NamedTuple):
    """What the cost model says of a network, and CPU seconds."""

    cycles: int
    words: int
    energy: float
    seconds: float


def run(start: Compilation, arch: str, aim: str, groups: str) -> Run:
    """A quantised network with or without groups. Raises Refusal."""
    (objective, slack), before = AIMS[aim], cpu_seconds()
    settings = CompileOptions(arch, objective=objective, slack=slack, groups=groups).settings()
    parts = mapped_parts(Compilation(start.ctx, start.module.clone(), settings))
    counters = with_energy(program_counts(parts, settings.arch, causes=False), settings.arch.energy)
    words = counters["words"]["dram_read"] + counters["words"]["dram_write"]
    return Run(counters["cycles"]["total"], words, counters["energy"]["total"], cpu_seconds() - before)


def without_and_with(start: Compilation, arch: str, aim: str) -> tuple[Run, Run] | None:
    """Both runs, in a process of its own; None if the network is refused."""
    receive, send = FORK.Pipe(duplex=False)

    def measure() -> None:
        on_one_core()
        none = run(start, arch, aim, NONE)
        auto = run(start, arch, aim, AUTO)
        send.send((none, auto._replace(seconds=none.seconds + auto.seconds)))

    process = FORK.Process(target=measure)
    process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        return None
    finally:
        process.join()


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


def rows(name: str, arch: str, aims: list[str], folder: Path) -> Iterator[str]:
    """A row for each aim."""
    fewest, file = sys.maxsize, model(name, OPTIONS.get(name, ()), folder)
    start = start_compilation(file, CompileOptions(arch, batch=1))
    try:
        start.run_before(ASSIGN)
    except Refusal:  # as it is for this array without groups
        yield from (f"{name:28} {arch:14} {aim:8} {NO_PROGRAM}" for aim in aims)
        return
    for aim in aims:
        label = f"{name:28} {arch:14} {aim:8}"
        if (runs := without_and_with(start, arch, aim)) is None:
            yield f"{label} refused"
            continue
        none, auto = runs
        fewest = min(fewest, none.cycles, auto.cycles)
        cells = [cell(what, getattr(none, what), getattr(auto, what)) for what in Run._fields[:3]]
        cells.append(f"{none.seconds:.1f} {auto.seconds:.1f} s ({auto.seconds / none.seconds:.2f})")
        yield f"{label} {'  '.join(cells)} {' '.join(faults(none, auto, aim, fewest))}".rstrip()


def main() -> None:
    """Print a row for each network, array and aim, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="*", default=[*SAMPLES, *MADE])
    parser.add_argument("--array", nargs="*", default=preset_names())
    parser.add_argument("--aim", nargs="*", default=["fastest", "default", "energy"], choices=AIMS)
    parser.add_argument("-o", "--output", type=Path, help="a file to add rows to")
    given = parser.parse_args()
    os.environ.setdefault(disk_cache.FOLDER, disk_cache.OFF)
    known = given.output.read_text().splitlines() if given.output and given.output.exists() else []
    have = {tuple(line.split()[:3]) for line in known}
    with tempfile.TemporaryDirectory() as folder:
        for name in given.network:
            for arch in given.array:
                todo = [aim for aim in given.aim if (name, arch, aim) not in have]
                for line in rows(name, arch, todo, Path(folder)) if todo else ():
                    known.append(line)
                    print(line, flush=True)
                    if given.output:
                        with given.output.open("a") as file:
                            file.write(f"{line}\n")
    wrong = sum(line.endswith(("worse", "slow", "refused")) for line in known)
    print(f"{len(known)} rows: {wrong or 'nothing'} worse with groups")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
