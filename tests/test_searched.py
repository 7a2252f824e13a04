"""Searches that are kept on disk, and done in other processes: results are those of the search, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_cases import SAMPLES, done
from searches import SHORT, SHORT_FRONTS, search_with
from test_repository import MODULES, imports

from cnncc.arch.model import Arch, Energy, load_arch
from cnncc.certificate.certificate import certificate
from cnncc.driver.check import check
from cnncc.driver.sources import CompileOptions
from cnncc.estimate.mapped_program import of_model
from cnncc.mapper import cached_search, search_processes
from cnncc.mapper.cached_search import search_ahead, searched
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.objective import Objective
from cnncc.mapper.search import Result, search
from cnncc.mapping.mapping import Sizes
from cnncc.model.layer_schedule import LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.util import disk_cache
from cnncc.util.progress import Progress, silent
from cnncc.window import Window

ROOT = Path(__file__).parent.parent
ARCH = load_arch("spatial-4x4")
SAME = Window((3, 3), (1, 1), (1, 1, 1, 1))


def conv(k: int, c: int, side: int) -> LayerShape:
    return LayerShape("mac", Sizes(1, k, c, side, side, 3, 3), SAME, 2, side, side)


SHAPE = conv(5, 3, 7)
ROOM = GlbBudget(ARCH.glb.words)
TASKS = [SearchTask(conv(k, c, 7), ARCH, ROOM) for k, c in ((5, 3), (4, 4), (7, 2), (1, 1), (5, 2), (6, 3))]
NONE = SearchTask(SHAPE, ARCH, GlbBudget(20))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, and an empty memory."""
    monkeypatch.setenv(disk_cache.FOLDER, str(tmp_path / "kept"))
    forget()
    return tmp_path / "kept"


def forget() -> None:
    vars(cached_search)["_found"].clear()


def here(task: SearchTask) -> Result | None:
    return cached_search.searched(task)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[LayerShape]:
    """The shapes that are searched for from now on in this process."""
    found, once = list[LayerShape](), SearchTask.search

    def counting(task: SearchTask) -> Result | None:
        found.append(task.shape)
        return once(task)

    monkeypatch.setattr(SearchTask, "search", counting)
    return found


# -- on disk -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [(), ("ifmap",), ("ifmap", "output")])
def test_a_first_layer_is_searched_as_its_weights_come(streamed: tuple[str, ...]) -> None:
    """CHAIN-1. With 1,728 weights in DRAM; all of them have room."""
    shape, budget = conv(24, 8, 14), GlbBudget(6000, frozenset(streamed))
    task = SearchTask(shape, ARCH, budget, effort=SHORT)
    usual, first = task.search(), replace(task, budget=replace(budget, prefetched=False)).search()
    assert usual and first
    late = [layer_cycles(LayerPlan("", shape, each.mapping), ARCH) for each in (usual, first)]
    assert usual.cycles < first.cycles == late[1] < late[0]


def test_searched_finds_on_disk_what_it_found_before(folder: Path, counted: list[LayerShape]) -> None:
    tasks = [*TASKS, NONE]
    wanted = [search(task.shape, task.arch, task.budget) for task in tasks]
    assert wanted[-1] is None and None not in wanted[:-1]
    assert [here(task) for task in tasks] == wanted
    assert len(counted) == len(tasks) == len(list(folder.iterdir()))
    forget()
    assert [here(task) for task in tasks] == wanted
    assert len(counted) == len(tasks)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def changed(file: Path) -> None:
    """One digit of a number that nothing else checks."""
    text = file.read_text()
    cycles = json.loads(text)["value"]["cycles"]
    file.write_text(text.replace(f'"cycles": {cycles}', f'"cycles": {cycles + 1}'))


def of_another(file: Path) -> None:
    here(TASKS[1])
    (other,) = (each for each in file.parent.iterdir() if each != file)
    file.write_bytes(other.read_bytes())


def says(**values: object) -> Callable[[Path], None]:
    """A file that is whole, of a value that is none of this layer's."""

    def write(file: Path) -> None:
        disk_cache.write(file.stem, json.loads(file.read_text())["value"] | values)

    return write


DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": lambda file: file.write_bytes(b"") and None,
    "cut": cut,
    "no JSON": lambda file: file.write_bytes(b"\xff{") and None,
    "other JSON": lambda file: file.write_text("[1]") and None,
    "deep JSON": lambda file: file.write_text("[" * 100_000) and None,
    "one digit": changed,
    "of another layer": of_another,
    "no mapping": says(mapping="k > k > k"),
    "no text": says(mapping=5),
    "a mapping of another layer": says(mapping="h':8 > [k||@rows] > c > h > w > r > s"),
    "an operand that the layer has not": says(mapping="residual@glb > n > k > c > h > w > r > s"),
    "no number": says(cycles="5"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_searched_ignores_and_mends_a_wrong_file(
    damage: Callable[[Path], None], folder: Path, counted: list[LayerShape]
) -> None:
    wanted = here(TASKS[0])
    (file,) = folder.iterdir()
    good = file.read_bytes()
    damage(file)
    assert file.read_bytes() != good
    forget()
    counted.clear()
    assert here(TASKS[0]) == wanted
    assert counted == [TASKS[0].shape]
    assert file.read_bytes() == good


@pytest.mark.parametrize("where", ["off", "a file", "in a file", "nul\0"])
def test_searched_works_without_a_folder(
    where: str, tmp_path: Path, counted: list[LayerShape], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("")
    path = {"off": "off", "a file": str(tmp_path / "a file"), "in a file": str(tmp_path / "a file" / "kept")}.get(where)
    if path is None:
        monkeypatch.setattr(disk_cache, "folder", lambda: Path(where))
    else:
        monkeypatch.setenv(disk_cache.FOLDER, path)
    for _ in range(2):
        forget()
        assert here(TASKS[0]) == search(TASKS[0].shape, ARCH, ROOM)
    assert len(counted) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]
    assert (tmp_path / "a file").read_text() == ""


def test_searched_writes_nothing_where_it_may_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a disk is full half-way: no file, and nothing unfinished."""

    def full(*_: object) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert here(TASKS[0]) == search(TASKS[0].shape, ARCH, ROOM)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({disk_cache.FOLDER: "/x"}, "/x"),
        ({disk_cache.FOLDER: "off", "XDG_CACHE_HOME": "/cache"}, None),
        ({disk_cache.FOLDER: "", "XDG_CACHE_HOME": "/cache"}, "/cache/cnncc"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/cnncc"),
        ({"XDG_CACHE_HOME": "not/absolute"}, "/home/u/.cache/cnncc"),
        ({}, "/home/u/.cache/cnncc"),
    ],
)
def test_kept_folder(variables: dict[str, str], wanted: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (disk_cache.FOLDER, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/u"} | variables).items():
        monkeypatch.setenv(name, value)
    assert disk_cache.folder() == (Path(wanted) if wanted else None)


def test_searched_programs_are_the_same_with_and_without(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search_with(monkeypatch, SHORT)
    model, binaries = SAMPLES / "models" / "lenet_qoperator_u8.onnx", list[bytes]()
    for number, where in enumerate((str(folder), str(folder), "off")):
        monkeypatch.setenv(disk_cache.FOLDER, where)
        forget()
        done("compile", model, "--batch", 1, "--dataflow", "auto", "-o", tmp_path / f"{number}.cnb")
        binaries.append((tmp_path / f"{number}.cnb").read_bytes())
    assert binaries[0] == binaries[1] == binaries[2]


# -- what a result depends on ------------------------------------------------------------------------------------------


def key(task: SearchTask) -> str:
    return vars(cached_search)["_key"](task)


def test_searched_tells_everything_apart_that_a_search_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS[0]
    wider: Arch = replace(ARCH, bus=replace(ARCH.bus, burst_words=ARCH.bus.burst_words + 1))
    others = [
        replace(task, shape=replace(SHAPE, params=1)),
        replace(task, shape=replace(SHAPE, sizes=replace(SHAPE.sizes, k=6))),
        replace(task, shape=replace(SHAPE, window=replace(SAME, dilation=(1, 2)))),
        replace(task, arch=wider),
        replace(task, budget=replace(ROOM, words=ROOM.words - 1)),
        replace(task, budget=replace(ROOM, streamed=frozenset({"ifmap", "output"}))),
        replace(task, budget=replace(ROOM, residual=True)),
        replace(task, budget=replace(ROOM, tight=True)),
        replace(task, budget=replace(ROOM, prefetched=False)),
        replace(task, dataflow="ws"),
        replace(task, effort=SHORT),
    ]
    keys = {key(each) for each in (task, *others)}
    assert len(keys) == len(others) + 1
    monkeypatch.setattr(cached_search, "sources", lambda: "of tomorrow")
    assert key(task) not in keys


def test_searched_does_not_tell_apart_what_no_search_sees() -> None:
    """Names, energies, and the values of padding and zero points."""
    cheap = replace(ARCH, name="other", energy=Energy(mac=3.0))
    shape = replace(SHAPE, window=replace(SAME, fill=7, zero=7))
    assert SearchTask(shape, cheap, ROOM) == SearchTask(SHAPE, ARCH, ROOM)
    assert search(shape, cheap, ROOM) == search(SHAPE, ARCH, ROOM)


def test_searched_depends_on_all_sources_of_a_search() -> None:
    seen, todo = set[str](), ["cnncc.mapper.search"]
    while todo:
        if (name := todo.pop()) in seen:
            continue
        seen.add(name)
        found = imports(MODULES[name].read_text())
        todo += [each if each in MODULES else each.rpartition(".")[0] for each in found]
    package = ROOT / "cnncc"
    covered = {path.resolve() for pattern in cached_search.SOURCES for path in package.glob(pattern)}
    assert {MODULES[name].resolve() for name in seen - {"cnncc"}} <= covered
    assert len(seen) > 10 and package / "driver" / "pipeline.py" not in covered


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes are started without waiting to see whether it takes long."""
    monkeypatch.setattr(cached_search, "ALONE_S", -1.0)


@pytest.mark.usefixtures("at_once")
def test_searched_side_by_side_is_as_alone(folder: Path, counted: list[LayerShape]) -> None:
    said: list[str] = []
    search_ahead([*TASKS, NONE, *TASKS], lambda what, *_: said.append(what), 2)
    assert counted == []
    assert said == [f"{n} of 7 mappings" for n in range(1, 8)]
    beside = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert [here(task) for task in TASKS] == [search(task.shape, task.arch, task.budget) for task in TASKS]
    forget()
    for path in folder.iterdir():
        path.unlink()
    search_ahead([*TASKS, NONE], lambda what, *_: said.append(what), 1)
    assert len(counted) == 7
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == beside
    search_ahead([*TASKS, NONE], lambda what, *_: said.append(what), 2)
    assert len(said) == 14, "there was nothing left to do"


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("processes", [1, 2])
def test_searches_that_nobody_wants_any_more_are_not_done(processes: int, folder: Path) -> None:
    told = list[SearchTask]()

    def goes_on(task: SearchTask, result: Result | None) -> bool:
        assert result == here(task)
        told.append(task)
        return len(told) != 2

    assert not search_ahead(TASKS, silent, processes, goes_on)
    assert len(told) == 2 and len([*folder.iterdir()]) < len(TASKS)
    assert search_ahead(told, silent, processes, lambda task, result: True)
    told.clear()
    assert search_ahead(TASKS[:1], silent, processes, goes_on) and told == TASKS[:1]


@pytest.mark.usefixtures("at_once")
def test_searched_keeps_its_processes(folder: Path, counted: list[LayerShape]) -> None:
    """One that ended is replaced."""
    search_ahead(TASKS[:2], silent, 2)
    first, second = search_processes._started(2)
    search_ahead(TASKS[2:4], silent, 2)
    assert search_processes._started(2) == [first, second] and counted == []
    first.kill()
    first.wait()
    search_ahead(TASKS[4:], silent, 2)
    kept, new = search_processes._started(2)
    assert kept is second and new is not first and counted == []


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("command", ["import os; os.abort()", "import sys; sys.stdin.read(1); sys.exit()", "1 +"])
def test_searched_goes_on_without_processes_that_end(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_processes, "WORKER", command)
    search_ahead(TASKS, silent, 2)
    forget()
    assert [here(task) for task in TASKS] == [search(task.shape, task.arch, task.budget) for task in TASKS]


@pytest.mark.usefixtures("at_once")
def test_searched_goes_on_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(ROOT / "no" / "python"))
    search_ahead(TASKS[:2], silent, 2)
    assert here(TASKS[1]) == search(TASKS[1].shape, ARCH, ROOM)


@pytest.mark.usefixtures("at_once")
def test_searched_says_what_failed_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(TASKS[0], shape=replace(SHAPE, kind="mac", sizes="none"))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(disk_cache, "key_of", lambda *_: "0")
    with pytest.raises(AttributeError):
        search_ahead([broken, TASKS[1]], silent, 2)


def script(text: str, *args: object, **options: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", text, *map(str, args)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, **options)


LARGE = """
from cnncc.mapper import cached_search, layer_search
from cnncc.arch.model import load_arch
from cnncc.window import Window
from cnncc.mapping.mapping import Sizes
from cnncc.mapper.effort import Effort
from cnncc.model.layer_schedule import LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget, LayerShape

cached_search.ALONE_S = -1.0
arch, streamed = load_arch("spatial-8x8"), frozenset({"ifmap", "output"})
window = Window((3, 3), (1, 1), (1, 1, 1, 1))
"""


def test_searched_by_many_processes_at_once(folder: Path) -> None:
    """All find the same, whoever comes first; every file is whole."""
    text = (
        LARGE
        + """
shapes = [LayerShape("mac", Sizes(1, k, 3, 4, 4, 1, 1), Window((1, 1)), 2, 4, 4) for k in range(1, 5)]
layer_search.USUAL = Effort(more=1)
tasks = [layer_search.SearchTask(shape, arch, GlbBudget(4096, streamed)) for shape in shapes]
cached_search.search_ahead(tasks, lambda *_: None, 1)
print([cached_search.searched(task) for task in tasks])
"""
    )
    running = [script(text) for _ in range(3)]
    said = {process.communicate(timeout=100)[0] for process in running}
    assert len(said) == 1 and said.pop().count("Result(") == 4
    files = sorted(folder.iterdir())
    assert len(files) == 4 and all(disk_cache.read(file.stem) for file in files)
    assert script(text).communicate(timeout=100)[0].count("Result(") == 4


def test_searched_ends_all_processes_on_an_interrupt(folder: Path) -> None:
    """As Ctrl-C: every process of the group gets the signal, those that search ignore it and are ended."""
    text = (
        LARGE
        + """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what runs in its background ignore it
shapes = [LayerShape("mac", Sizes(1, k, 512, 56, 56, 3, 3), window, 2, 56, 56) for k in range(256, 300)]
tasks = [layer_search.SearchTask(shape, arch, GlbBudget(65536, streamed)) for shape in shapes]
cached_search.search_ahead(tasks, lambda what, *_: print(what, flush=True), 2)
"""
    )
    process = script(text, start_new_session=True, stderr=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == "1 of 44 mappings\n"
    os.killpg(process.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=100)[1]
    assert process.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert 1 <= len(list(folder.iterdir())) < 44


LENET, DIGITS = SAMPLES / "models" / "lenet.onnx", SAMPLES / "inputs" / "digits_calibration.npz"
SAY: dict[str, Callable[[Progress], object]] = {
    "estimate": lambda say: of_model(LENET, CompileOptions("spatial-4x4", calibrate=DIGITS, batch=1), say),
    "certificate": lambda say: certificate(LENET, CompileOptions("spatial-4x4", calibrate=DIGITS, batch=1), say),
    "check": lambda say: check(LENET, CompileOptions("spatial-4x4", calibrate=DIGITS, batch=1), say),
}


@pytest.mark.parametrize("command", SAY)
def test_commands_say_how_far_searches_are(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    search_with(monkeypatch, SHORT_FRONTS)
    said: list[str] = []
    SAY[command](lambda what, *_: said.append(what))
    assert "nest-assign-mapping: 7 of 7 mappings" in said


def test_searched_processes_start_light() -> None:
    heavy = "{'xdsl', 'onnx', 'onnxruntime', 'click'}"
    text = f"import sys, cnncc.mapper.cached_search; print(*sorted({heavy} & {{*sys.modules}}))"
    assert script(text).communicate(timeout=100)[0] == "\n"


def test_a_search_with_a_front_leaves_the_one_without() -> None:
    """A front may have a faster mapping. The result without it is the same, whichever was searched first."""
    task = SearchTask(conv(8, 8, 10), ARCH, GlbBudget(900, frozenset({"ifmap", "output"})))
    fresh = task.search()
    with_front = searched(replace(task, prices=Objective().prices(ARCH)))
    assert fresh and with_front and with_front.cycles < fresh.cycles
    assert searched(task) == fresh
    forget()
    assert searched(task) == fresh  # from disk
