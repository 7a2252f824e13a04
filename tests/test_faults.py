"""Commands that are killed, or write the same file at once, leave whole files or none, and no wrong cache."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from cli_cases import save
from command_server import SHORT_SEARCHES, Command
from examples import SEED, examples
from test_bombs import model, node

from cnncc.util import files
from cnncc.util.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
KILLS = examples(1)  # of each command


Start = Callable[..., Command]


@pytest.fixture(scope="module")
def started(server: str) -> Start:
    """Starts a command in a folder, with a cache of its own. It is forked: what is killed is its work, not imports.

    `explore` searches as usual, because the processes that it starts do. It uses none for a single array that is left.
    """

    def start(folder: Path, *args: object) -> Command:
        environment = {**os.environ, "CNNCC_CACHE": str(folder / "cache")}
        environment |= {SHORT_SEARCHES: "1"} if args[0] != "explore" else {}
        return Command(server, ROOT, [*map(str, args)], folder, environment)

    return start


CORES = "--arch", "tcpa-4x4", "--parallel", "layers"
PARTITION = "--arch", "cbrain-16-16", "--partition", "auto"
MakeCommand = Callable[[Path, Path], tuple[object, ...]]
OF_CORES: Mapping[str, MakeCommand] = {
    "cores": lambda given, output: ("compile", given / "two.onnx", *CORES, "-o", output),
    "frames": lambda given, output: ("run", given / "two.cnb", "--frames", 3, "--timeline", output),
}
WITH_CORES = KILLS > 1  # their searches take seconds
COMMANDS: Mapping[str, MakeCommand] = {
    "compile": lambda given, output: ("compile", given / "net.onnx", "-o", output),
    "run": lambda given, output: ("run", given / "net.cnb", "-o", output),
    "explore": lambda given, output: ("explore", given / "net.onnx", "--vary", "rows=2,4", "-o", output),
    "partition": lambda given, output: ("compile", given / "two.onnx", *PARTITION, "-o", output),
    **(OF_CORES if WITH_CORES else {}),
}


@pytest.fixture(scope="module")
def given(started: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    pool = node("MaxPool", ["x"], ["y"], name="pool", kernel_shape=[2, 2])
    save(model([pool], (1, 2, 3, 3)), folder / "net.onnx")
    first = node("Conv", ["x", "w"], ["a"], name="conv")
    second = node("MaxPool", ["a"], ["y"], name="pool", kernel_shape=[2, 2], strides=[2, 2])
    save(model([first, second]), folder / "two.onnx")
    assert started(folder, "compile", folder / "net.onnx", "-o", folder / "net.cnb").wait() == 0
    if WITH_CORES:
        assert started(folder, "compile", folder / "two.onnx", *CORES, "-o", folder / "two.cnb").wait() == 0
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_command_leaves_a_whole_file_or_none(
    command: str, started: Start, given: Path, tmp_path: Path
) -> None:
    """The next one, with the cache that the killed ones left, writes what one that was never disturbed does.

    An exploration adds row by row, and the next one goes on.
    """
    make, whole, killed = COMMANDS[command], tmp_path / "whole" / "x.jsonl", tmp_path / "killed"
    start = time.monotonic()
    assert started(tmp_path, *make(given, whole)).wait() == 0
    seconds, rng = time.monotonic() - start, random.Random(SEED)
    killed.mkdir()
    for _ in range(KILLS):
        process = started(killed, *make(given, killed / "x.jsonl"))
        time.sleep(seconds * rng.random())
        process.kill()
        process.wait()
        output = killed / "x.jsonl"
        assert command == "explore" or not output.exists() or output.read_bytes() == whole.read_bytes()
    assert started(killed, *make(given, killed / "x.jsonl")).wait() == 0
    assert (killed / "x.jsonl").read_bytes() == whole.read_bytes()


def test_processes_that_write_one_file_at_once(started: Start, given: Path, tmp_path: Path) -> None:
    """Also the same entries of a cache."""
    output = tmp_path / "net.cnb"
    processes = [started(tmp_path, "compile", given / "net.onnx", "-o", output) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert output.read_bytes() == (given / "net.cnb").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "net.cnb"]


def test_a_file_is_never_seen_in_parts(tmp_path: Path) -> None:
    """Two writers by turns: each has an unfinished file of its own."""
    path = tmp_path / "file"

    def pieces() -> Iterator[bytes]:
        yield b"first "
        write_atomically(path, b"second")
        assert path.read_bytes() == b"second"
        yield b"last"

    write_atomically(path, pieces())
    assert path.read_bytes() == b"first last"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_file_that_another_process_finishes_meanwhile_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed, and gone when it is looked at."""
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([folder / ".unfinished-file-1"]))
    write_atomically(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_what_a_killed_writer_left_is_removed_later(tmp_path: Path) -> None:
    old, new, others = (tmp_path / f".unfinished-{name}" for name in ("file-1", "file-2", "files-3"))
    for path in (old, new, others):
        path.write_bytes(b"part")
    for path in (old, others):
        os.utime(path, (0, time.time() - files.OLD_S - 1))
    write_atomically(tmp_path / "file", b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "file", new, others])
