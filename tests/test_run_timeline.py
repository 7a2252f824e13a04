"""`run --timeline`: when each instruction runs is what a plain clock says, and as long as the counters count."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_cases import CALIBRATION, LENET, done, invoke, refused
from core_cases import PAPER, SMALL, ProgramWriter, chain
from examples import examples
from test_machine_times import Plain, random_program, steps_of

from cnncc.arch.model import Arch
from cnncc.binary import counters
from cnncc.binary.container import load, save
from cnncc.isa.table import Instruction
from cnncc.machine.cores.core_times import EngineRun, EngineRuns, simulate_cores
from cnncc.machine.cores.programs import cores_of
from cnncc.machine.times.tasks import ENGINES

pytestmark = pytest.mark.usefixtures("short_searches")

Trace = list[dict[str, object]]


def timed(program: Sequence[Instruction], arch: Arch, instructions: Sequence[int]) -> list[EngineRun]:
    timeline = EngineRuns(frozenset(instructions))
    simulate_cores(cores_of(program, arch), timeline=timeline)
    return timeline.runs


def test_instructions_run_when_a_plain_clock_says() -> None:
    """Random programs on one core, all of their instructions and some of them."""
    compared = 0
    for seed in range(examples(40)):
        program, arch = random_program(seed)
        if steps_of(program) > 5_000:
            continue
        plain = Plain(program, arch, [])
        plain.run()
        runs = timed(program, arch, range(len(program)))
        for engine in ENGINES:
            want = [(event.at("start"), event.at("end")) for event, _ in plain.starts[engine]]
            assert [(run.start, run.end) for run in runs if run.engine == engine] == want, (seed, engine)
            compared += len(want)
        some = random.Random(seed).sample(range(len(program)), len(program) // 3)
        assert timed(program, arch, some) == [run for run in runs if run.instruction in some]
    assert compared > 1_000


def read(file: Path) -> Trace:
    return json.loads(file.read_text())["traceEvents"]


def slices_of(trace: Trace) -> dict[tuple[int, str], Trace]:
    """The slices of each thread by core and engine, which do not overlap."""
    names = {(each["pid"], each["tid"]): each["args"]["name"] for each in trace if each["name"] == "thread_name"}
    threads = {(core, name): [] for (core, _), name in names.items()}
    for each in trace:
        if each["ph"] == "X":
            threads[each["pid"], names[each["pid"], each["tid"]]].append(each)
    for own in threads.values():
        assert all(before["ts"] + before["dur"] <= after["ts"] for before, after in zip(own, own[1:], strict=False))
    return threads


def busy(slices: Trace) -> int:
    return sum(each["dur"] for each in slices)


def tracks_of(trace: Trace) -> dict[str, tuple[int, int]]:
    """First and last cycle of each layer."""
    begins, ends = ({each["id"]: each for each in trace if each["ph"] == phase} for phase in "be")
    assert begins.keys() == ends.keys()
    return {begin["name"]: (begin["ts"], ends[number]["ts"]) for number, begin in begins.items()}


def test_a_timeline_of_a_network(tmp_path: Path) -> None:
    """LeNet: slices are those of the program, layer by layer, and as long as counted. `--layer` leaves out the rest."""
    file, trace, stats = tmp_path / "lenet.cnb", tmp_path / "t.json", tmp_path / "s.json"
    done("compile", LENET, "--batch", 1, "--calibrate", CALIBRATION, "--output", file)
    done("run", file, "--timeline", trace, "--stats", stats)
    program = load(file).instructions
    counted, whole = json.loads(stats.read_text()), read(trace)
    threads = slices_of(whole)
    assert {core for core, _ in threads} == {0} and {name for _, name in threads} == set(ENGINES)
    for (_, engine), slices in threads.items():
        key = "compute" if engine == "array" else engine
        assert busy(slices) == counted["cycles"][key]
        for each in slices:
            spec = program[each["args"]["instruction"]].spec
            assert (spec.name, spec.engine) == (each["name"], engine)
        for label, layer in counted["layers"].items():
            assert busy([each for each in slices if each["args"]["layer"] == label]) == layer["cycles"][key]
    tracks = tracks_of(whole)
    for label, (begin, end) in tracks.items():
        own = [each for slices in threads.values() for each in slices if each["args"]["layer"] == label]
        assert (begin, end) == (min(e["ts"] for e in own), max(e["ts"] + e["dur"] for e in own))
    assert {"c1", "pool1", "f3"} < tracks.keys()

    done("run", file, "--timeline", trace, "--layer", "pool1", "--layer", "c2")
    part = read(trace)
    chosen = ("pool1", "c2")
    assert tracks_of(part) == {label: track for label, track in tracks.items() if label in chosen}
    for thread, slices in slices_of(part).items():
        assert slices == [each for each in threads[thread] if each["args"]["layer"] in chosen]


def test_a_timeline_of_cores(tmp_path: Path) -> None:
    """Each core has threads of its own, over all frames."""
    binary = ProgramWriter(chain(*SMALL), PAPER).binary()
    save(binary, file := tmp_path / "small.cnb")
    done("run", file, "--frames", 9, "--timeline", tmp_path / "t.json")
    threads = slices_of(read(tmp_path / "t.json"))
    cores = simulate_cores(cores_of(binary.instructions, binary.arch, 9)).cores
    assert {core for core, _ in threads} == set(range(len(cores)))
    for (core, engine), slices in threads.items():
        cycles = cores[core].cycles
        assert busy(slices) == (cycles.compute if engine == "array" else getattr(cycles, engine))
        assert slices[-1]["ts"] + slices[-1]["dur"] <= cycles.total


def test_timelines_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(ProgramWriter(chain(*SMALL), PAPER).binary(), file := tmp_path / "small.cnb")
    trace = tmp_path / "t.json"
    assert "--layer is for --timeline" in (wrong := invoke("run", file, "--layer", "conv")).stderr
    assert wrong.exit_code == 2
    assert "the program has no layer 'conv': " in refused("run", file, "--timeline", trace, "--layer", "conv")
    monkeypatch.setattr(counters, "MOST_RUNS", 100)
    assert "longer than 100 instructions: ask for single layers" in refused("run", file, "--timeline", trace)
    assert not trace.exists()
