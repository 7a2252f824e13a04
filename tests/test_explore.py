"""`cnncc explore`: results are those of compile and run; whatever ends it, it goes on; what is best is the best."""

from __future__ import annotations

import csv
import fcntl
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import CALIBRATION, LENET, build, conv_model, done, invoke, noise, refused, refuses, save, snapshot
from onnx import helper
from searches import SHORT_FRONTS, search_first, search_with

from cnncc.arch.model import Arch, Energy, arch_text, load_arch, parse_arch, preset_names
from cnncc.explore.array_grid import read_vary
from cnncc.explore.evaluate import memory_bits
from cnncc.explore.pareto import pareto
from cnncc.passes._scheduling import smaller_budgets

ROOT = Path(__file__).parents[1]
MODEL = (LENET, "--batch", 1, "--calibrate", CALIBRATION, "--slack", 0)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short searches, for what is true of any mapping; of processes that `explore` starts they are as usual."""
    search_with(monkeypatch, SHORT_FRONTS)
    monkeypatch.setattr(smaller_budgets, "FIRST_SHARES", (8,))


@pytest.fixture
def shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that end at once, where mappings do not matter at all."""
    search_first(monkeypatch.setattr)


def lines(path: Path) -> list[dict[str, Any]]:
    """The results in the file of an exploration."""
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_explore_that_is_killed_goes_on(tmp_path: Path) -> None:
    # A search for each 16, as words have no price, and an evaluation for each.
    vary = ("--vary", "rows=2,8", "--vary", "energy.bus=1:16", "--objective", "words", "--dataflow", "os")
    whole, ended = tmp_path / "whole", tmp_path / "ended"
    nodes, arrays = [helper.make_node("Conv", ["x", "w"], ["y"], name="c")], {"w": noise(1, 2, 1, 1, 1)}
    model = save(build(nodes, {"x": (1, 1, 2, 2)}, ["y"], arrays), tmp_path / "net.onnx")
    printed = done("explore", model, *vary, "-j", 1, "-o", whole).stdout
    command = [sys.executable, "-m", "cnncc", "explore", str(model), *vary, "-j", "2", "-o", str(ended)]
    file = ended / "explore.jsonl"
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    while process.poll() is None and not (file.exists() and file.read_bytes().count(b"\n") > 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.communicate(timeout=60)[0] == b""  # at its end no process of its pool is left that could write there
    assert process.returncode == -signal.SIGKILL
    assert 2 <= len(lines(file)) < 32
    with file.open("ab") as torn:
        torn.write((whole / "explore.jsonl").read_bytes().splitlines()[32][:-9])
    again = done("explore", model, *vary, "-j", 2, "-o", ended).stdout
    assert again == printed.replace(str(whole), str(ended))
    assert snapshot(ended) == snapshot(whole)
    assert len(lines(file)) == 32 and {path.name for path in ended.iterdir()} == {"explore.jsonl", "explore.csv"}


@pytest.mark.usefixtures("shortest")
def test_explore_takes_results_from_the_file(tmp_path: Path) -> None:
    """They are not evaluated again: a wrong one stays."""
    file, model = tmp_path / "a.jsonl", save(conv_model(), tmp_path / "net.onnx")
    arguments = ("explore", model, "--vary", "cols=4,8", "-j", 1, "-o", file)
    done(*arguments)
    text = file.read_text()
    first = lines(file)[0]
    file.write_text(text.replace(f'"cycles": {first["cycles"]}', '"cycles": 7'))
    assert " 7 " in done(*arguments).stdout
    assert lines(file)[0]["cycles"] == 7
    file.write_text(text[: text.index("\n") // 2])  # ended while the first line was written
    done(*arguments)
    assert file.read_text() == text


@pytest.mark.usefixtures("short")
def test_explore_finds_what_compile_and_run_do(tmp_path: Path) -> None:
    file, model = tmp_path / "found.jsonl", save(conv_model(), tmp_path / "net.onnx")
    vary = ("--vary", "operand_bits=8,16", "--vary", "links.n2n=true,false", "--vary", "energy.bus=0.5")
    measures = ("--measure", "cycles", "--measure", "dram_words")
    done("explore", model, *vary, "--arch", "spatial-4x4", "-j", 1, "-o", file, *measures)
    base = load_arch("spatial-4x4")
    seen = set[int]()
    configs = itertools.product((8, 16), (True, False), ("cycles", "words"))
    for result, (bits, n2n, objective) in zip(lines(file), configs, strict=True):
        assert result["config"] == {
            "operand_bits": bits, "links.n2n": n2n, "energy.bus": 0.5, "objective": objective
        }  # fmt: skip
        arch = replace(base, operand_bits=bits, links=replace(base.links, n2n=n2n), energy=Energy(bus=0.5))
        (tmp_path / "array.toml").write_text(arch_text(arch))
        wanted = ("--arch", tmp_path / "array.toml", "--objective", objective)
        done("compile", model, *wanted, "-o", tmp_path / "net.cnb")
        done("run", tmp_path / "net.cnb", "--stats", tmp_path / "stats.json")
        stats = json.loads((tmp_path / "stats.json").read_text())
        assert result["cycles"] == stats["cycles"]["total"]
        assert result["energy"] == stats["energy"]["total"]
        assert result["dram_words"] == stats["words"]["dram_read"] + stats["words"]["dram_write"]
        assert (result["macs"], result["utilisation"]) == (stats["macs"], stats["utilisation"]["total"])
        assert result["multipliers"] == 16
        seen.add(result["dram_words"])
    assert len(seen) > 1  # operands of 8 bits have params of more words


@pytest.mark.usefixtures("shortest")
def test_energies_grow_with_memories(tmp_path: Path) -> None:
    """A quarter of the GLB has half the energy, four times the weights file has twice: with files it is the same."""
    model, base = save(conv_model(), tmp_path / "net.onnx"), load_arch("spatial-4x4")
    words = {"glb.words": base.glb.words // 4, "pe.weight_words": 4 * base.pe.weight_words}
    vary = [part for key, value in words.items() for part in ("--vary", f"{key}={value}")]
    common = ("--arch", "spatial-4x4", "--measure", "energy", "-j", 1)
    done("explore", model, *vary, *common, "--energy-exponent", 0.5, "-o", tmp_path / "grown.jsonl")
    array = replace(
        base,
        glb=replace(base.glb, words=words["glb.words"]),
        pe=replace(base.pe, weight_words=words["pe.weight_words"]),
        energy=replace(base.energy, glb_read=3.0, glb_write=3.0, weight_read=2.0, weight_write=2.0),
    )
    (tmp_path / "array.toml").write_text(arch_text(array))
    done("explore", model, "--vary", f"arch={tmp_path / 'array.toml'}", *common, "-o", tmp_path / "file.jsonl")
    (grown,), (of_file,) = lines(tmp_path / "grown.jsonl"), lines(tmp_path / "file.jsonl")
    assert grown.pop("config") == words | {"objective": "energy"} and of_file.pop("config")
    assert grown == of_file
    again = ("explore", model, *vary, *common, "-o", tmp_path / "grown.jsonl")
    assert "holds another exploration (not the same: options)" in refused(*again)


@pytest.mark.usefixtures("shortest")
def test_energies_of_an_array_that_is_named_grow_from_its_own_sizes(tmp_path: Path) -> None:
    """The energy of what is named is that of its own memories; above the range of its key it is refused."""
    model, small = save(conv_model(), tmp_path / "net.onnx"), load_arch("spatial-4x4")
    small = replace(small, glb=replace(small.glb, words=16384), energy=replace(small.energy, glb_read=30000.0))
    (tmp_path / "small.toml").write_text(arch_text(small))
    vary = ("--vary", f"arch={tmp_path / 'small.toml'}", "--vary", "glb.words=16384,65536,262144")
    file = tmp_path / "found.jsonl"
    done("explore", model, *vary, "--energy-exponent", 0.5, "--measure", "energy", "-j", 1, "-o", file)
    same, twice, refusal = lines(file)
    assert same["cycles"] == twice["cycles"] and same["energy"] < twice["energy"] < 2 * same["energy"]
    assert refusal["refused"] == "configuration [energy]: glb_read = 120000.0 is outside 0 to 65536"


@pytest.mark.usefixtures("shortest")
def test_explore_refused_configurations_are_results(tmp_path: Path) -> None:
    file, model = tmp_path / "found.jsonl", save(conv_model(), tmp_path / "net.onnx")
    vary = ("--vary", "glb.words=10,65536", "--vary", "operand_bits=8,16", "--precision", "int16")
    printed = done("explore", model, *vary, "-j", 1, "-o", file, "--measure", "memory_bits").stdout
    small, small_too, narrow, works = lines(file)
    assert small["config"] == {"glb.words": 10, "operand_bits": 8, "objective": "cycles"} and works["cycles"] > 0
    assert (
        narrow["refused"] == "--precision int16: the operands of spatial-8x8 have 8 bits"
        and "glb.words" in small_too["refused"]
        and "/" not in small_too["refused"]
    )
    assert printed.startswith("4 configurations, 3 refused; best in memory_bits: 1\n")
    reason = " ".join(small_too["refused"].split())  # lines are folded
    assert f"refused glb.words=10 operand_bits=16 objective=cycles: {reason}" in " ".join(printed.split())
    rows = list(csv.DictReader((tmp_path / "found.csv").read_text().splitlines()))
    assert [(row["pareto"], bool(row["refused"])) for row in rows] == [("0", True)] * 3 + [("1", False)]
    assert int(rows[3]["cycles"]) == works["cycles"] and rows[0]["cycles"] == ""


@pytest.mark.usefixtures("shortest")
def test_explore_of_arrays_that_are_all_refused(tmp_path: Path) -> None:
    """The files have the whole reasons, of all layers. It is no success."""
    file, names = tmp_path / "found.jsonl", ["x", *(f"value{number}" for number in range(6))]
    nodes = [helper.make_node("Conv", [a, "w"], [b], name=f"to_{b}", pads=[1] * 4) for a, b in pairwise(names)]
    model = save(build(nodes, {"x": (1, 2, 3, 3)}, names[-1:], {"w": noise(1, 2, 2, 3, 3)}), tmp_path / "net.onnx")
    result = invoke("explore", model, "--vary", "glb.words=8", "-j", 1, "-o", file, "--measure", "cycles")
    assert result.exit_code == 1 and "none of the arrays can run the network" in result.stderr
    (found,) = lines(file)
    small = load_arch("spatial-8x8")
    (tmp_path / "array.toml").write_text(arch_text(replace(small, glb=replace(small.glb, words=8))))
    said = invoke("compile", model, "--arch", tmp_path / "array.toml", "-o", tmp_path / "net.cnb").stderr
    columns = [re.split(" {2,}", line.strip()) for line in said.splitlines() if line.startswith("  ")]
    assert all(": ".join(cells) in found["refused"] for cells in columns)
    assert said.count("glb.words") > 5 and not (tmp_path / "net.cnb").exists()


def test_explore_best_are_those_that_none_is_better_than() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        points = rng.integers(0, 6, (int(rng.integers(1, 40)), 3))
        results = [{"config": {"i": i}, **dict(zip("abc", map(int, p), strict=True))} for i, p in enumerate(points)]
        worse = (points[:, None] >= points[None]).all(2) & (points[:, None] > points[None]).any(2)
        best = np.flatnonzero(~worse.any(1))
        order = sorted(best, key=lambda i: (*points[i], i))
        assert [result["config"]["i"] for result in pareto(results, "abc")] == order


def test_explore_has_equal_programs_of_an_array_once() -> None:
    configs = [{"i": i, "objective": name} for i in range(2) for name in ("cycles", "energy")]
    results = [{"config": config, "a": 1, "b": 2} for config in configs]
    assert [result["config"] for result in pareto(results, "ab")] == [configs[0], configs[2]]


def test_explore_optimises_for_what_it_ranks(tmp_path: Path) -> None:
    """Of every measure that mappings decide, the table's least is that of the network optimised for it."""
    file, model = tmp_path / "a.jsonl", save(conv_model(), tmp_path / "net.onnx")
    arguments = ("explore", model, "--vary", "rows=4", "--vary", "glb.words=600", "-j", 1, "-o", file)
    done(*arguments, "--measure", "cycles")
    assert [result["config"]["objective"] for result in lines(file)] == ["cycles"]
    done(*arguments, "--measure", "energy", "--measure", "dram_words", "--measure", "multipliers")
    assert [result["config"]["objective"] for result in lines(file)] == ["cycles", "energy", "words"]
    for objective, measure in (("cycles", "cycles"), ("energy", "energy"), ("words", "dram_words")):
        results = lines(file)
        least = min(result[measure] for result in results)
        slack = 1.005 if objective == "cycles" else 1.0
        assert next(each[measure] for each in results if each["config"]["objective"] == objective) <= slack * least
    done(*arguments[:-1], tmp_path / "b.jsonl", "--objective", "edp")
    assert [result["config"]["objective"] for result in lines(tmp_path / "b.jsonl")] == ["edp"]


def test_explore_bits_of_memory() -> None:
    assert memory_bits(load_arch("spatial-4x4")) == 16 * ((224 + 96) * 17 + 32 * 32) + 65536 * 16
    assert memory_bits(load_arch("seed-8x8")) == 64 * ((224 + 24 + 24) * 17 + 16 * 32) + 262144 * 16


@pytest.mark.parametrize("preset", preset_names())
def test_explore_writes_arrays_that_are_read_back(preset: str) -> None:
    arch = load_arch(preset)
    other: Arch = replace(arch, name='quotes " and \\ and ü', energy=Energy(unit="pJ", mac=1e-7, dram_read=12.5))
    for each in (arch, other):
        assert parse_arch(arch_text(each), "here") == each


@pytest.mark.usefixtures("shortest")
def test_explore_compares_whole_arrays(tmp_path: Path) -> None:
    """Presets and files, in the place of --arch; other keys change each of them. A file is read once."""
    mine = tmp_path / "mine.toml"
    mine.write_text(arch_text(replace(load_arch("spatial-4x4"), name="mine", rows=3)))
    vary = ("--vary", f"arch=seed-4x4,{mine}", "--vary", "cols=2,4", "--measure", "cycles", "-j", 1)
    best, _, beaten = done("explore", *MODEL, *vary, "-o", tmp_path).stdout.partition("beaten by these:\n")
    found = {(each["config"]["arch"], each["config"]["cols"]): each for each in lines(tmp_path / "explore.jsonl")}
    fewest = min(each["cycles"] for each in found.values())
    for each in found.values():
        assert f"  {each['cycles']:,}" in (best if each["cycles"] == fewest else beaten)
    assert [*found] == [("seed-4x4", 2), ("seed-4x4", 4), (str(mine), 2), (str(mine), 4)]
    for arch, file in (("seed-4x4", "seed-4x4"), (str(mine), mine)):
        alone = json.loads(done("estimate", *MODEL, "--arch", file, "--json").stdout)
        assert found[arch, 4]["cycles"] == alone["cycles"]["total"]
    mine.write_text(mine.read_text().replace("rows = 3", "rows = 2"))
    message = refused("explore", *MODEL, *vary, "-o", tmp_path)
    assert "holds another exploration (not the same: arrays)" in message
    mine.write_text(mine.read_text().replace('unit = "MAC"', 'unit = "pJ"'))
    message = refused("explore", *MODEL, *vary, "-o", tmp_path / "new.jsonl")
    assert "has energies in pJ, --arch spatial-8x8 in MAC: give arrays with one unit" in message


def test_explore_reads_values() -> None:
    base = load_arch("spatial-4x4")
    found = read_vary(["rows=4:16:4,1", " cols = 2:4", "links.n2n=false,true", "energy.mac=0.5,2"], base)
    assert found == {"rows": [4, 8, 12, 16, 1], "cols": [2, 3, 4], "links.n2n": [False, True], "energy.mac": [0.5, 2]}


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("rows", "is not KEY=VALUES"),
        ("rows=", "is not KEY=VALUES"),
        ("row=4", "--vary row: unknown key 'row'; did you mean 'rows'"),
        ("pe.rf=4", r"--vary pe.rf \[pe\]: unknown key 'rf'"),
        ("ep.rf=4", r"the architecture file has no table \[ep\]"),
        ("pe=4", "--vary pe: pe is a table: vary one of its keys: pe.weight_words, "),
        ("rows=4,99", "rows = 99 is outside 1 to 32"),
        ("rows=4.5", "rows is a whole number"),
        ("rows=many", "'many' is no number, true or false"),
        ("rows=8:4", "8:4 is no range FIRST:LAST or FIRST:LAST:STEP: the first is above the last"),
        ("rows=4:8:0", "4:8:0 is no range FIRST:LAST or FIRST:LAST:STEP: the step is 0"),
        ("rows=4,4", "4 is there twice"),
        ("links.n2n=true,1", "n2n is true or false, not 1"),
        ("rows=4\ncols = 7", "'4 cols = 7' is no number, true or false"),
        ("rows=4 # 8", "'4 # 8' is no number, true or false"),
        (f"rows=1:{'9' * 5000}", "is no range FIRST:LAST or FIRST:LAST:STEP"),
        ("rows=4:8:-1", "4:8:-1 is no range FIRST:LAST or FIRST:LAST:STEP, three whole numbers, the step from 1"),
        ("name='x'", "is no number"),
        ("glb.words=1:2000000", "1:2000000 has more than 1,000,000 values"),
        ("links.n2n=1", "n2n is true or false"),
        ("arch=seed-4x4,seed-4x4", "seed-4x4 is there twice"),
        ("arch=seed-4x4,nosuch", "no array 'nosuch': neither a readable file nor a preset"),
    ],
)
def test_explore_refuses_what_cannot_vary(vary: str, message: str, tmp_path: Path) -> None:
    said = refuses(tmp_path, "explore", *MODEL, "--vary", vary, "-o", tmp_path / "a.jsonl")
    assert re.search(message, said), said


@pytest.mark.usefixtures("shortest")
def test_explore_varies_keys_that_go_together_in_some_arrays(tmp_path: Path) -> None:
    """48 banks are none of the 32,768 words of the array, but of the other size that is varied."""
    model = save(conv_model(), tmp_path / "net.onnx")
    vary = ("--vary", "glb.banks=48", "--vary", "glb.words=32768,36864")
    done("explore", model, "--arch", "tcpa-4x4", *vary, "--measure", "cycles", "-j", 1, "-o", tmp_path / "a.jsonl")
    small, large = (json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()[1:])
    assert "words = 32768 is no multiple of banks = 48: 32784 is one" in small["refused"]
    assert large["cycles"] > 0 and large["config"]["glb.words"] == 36864


@pytest.mark.usefixtures("shortest")
def test_explore_refuses_files_of_others(tmp_path: Path) -> None:
    file, model = tmp_path / "a.jsonl", save(conv_model(), tmp_path / "net.onnx")
    arguments = ("explore", model, "--vary", "rows=4,8", "-j", 1, "-o", file)
    done(*arguments)
    (tmp_path / "a.csv").unlink()
    text = file.read_text()
    assert "(not the same: vary)" in refuses(tmp_path, *arguments, "--vary", "cols=4")
    assert "holds another exploration (not the same: options)" in refuses(tmp_path, *arguments, "--dataflow", "ws")
    assert "holds another exploration (not the same: arch)" in refuses(tmp_path, *arguments, "--arch", "spatial-4x4")
    header, first, *others = text.splitlines(keepends=True)
    second = "".join(others)
    for content, message in (
        ("my notes", "is a file, but no exploration's"),
        ("my notes\n", "is a file, but no exploration's"),
        (header + "{}\n" + second, "line 2 is no result"),
        (header + first[:-5] + "\n" + second, "line 2 is no result"),
        (header + "[" * 100_000 + "\n" + second, "line 2 is no result"),
        ("[" * 100_000 + "\n", "is a file, but no exploration's"),
        *(
            (header + first.replace('"cycles": ', f'{changed}, "was": ') + second, "line 2 is no result")
            for changed in (
                '"cycles": NaN',
                '"cycles": "x"',
                '"cycles": -1',
                '"cycles": true',
                '"x": 0',
                '"refused": 5',
            )
        ),
        (header + first.replace('"rows": 4', '"rows": 5') + second, "rows=5 objective=cycles is no configuration"),
        (
            header + first + first.replace('"cycles": ', '"cycles": 1') + second,
            "line 3: rows=4 objective=cycles has another result",
        ),
    ):
        file.write_text(content)
        assert message in refuses(tmp_path, *arguments), content
    file.write_text(text)
    with file.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another exploration is writing it" in refuses(tmp_path, *arguments)
    assert done(*arguments).stdout.startswith("4 configurations")
    missing = ("explore", tmp_path / "no.onnx", "--vary", "rows=4,8", "-o", tmp_path / "new")
    assert "no.onnx" in refuses(tmp_path, *missing)
    (tmp_path / "new").write_text("mine")
    assert "new: File exists" in refuses(tmp_path, *arguments[:-1], tmp_path / "new")
    assert "out.csv: give a .jsonl file" in refuses(tmp_path, *arguments[:-1], tmp_path / "out.csv")
    assert "--measure cycle: did you mean 'cycles'" in refused(*arguments, "--measure", "cycle")
