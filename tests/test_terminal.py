"""Tables fit the terminal, whatever their layers are called, and progress is said on a terminal only."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import accuracy
import click
import dataflows
import models
import numpy as np
import onnx
import os_compiler
import program_size
import pytest
from cli_cases import SAMPLES, build, done, noise, save
from click.testing import CliRunner
from command_server import SHORT_SEARCHES, add_commands
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from cnncc.util import progress, terminal
from cnncc.util.terminal import NAME, TEXT, Column, fitted, table

pytestmark = pytest.mark.usefixtures("short_searches")

FIRST, SECOND = "/backbone/layer4/layer4.2/downsample/conv1/Conv", "gpu_0/res5_2_branch2c_of_the_second_tower_1"


def long_names() -> onnx.ModelProto:
    """Convolutions that are called as exporters call them, and a pooling that no PE multiplies for."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], FIRST, strides=[2, 2], pads=[1, 0, 2, 2]),
        node("Conv", ["c1", "w2"], ["c2"], SECOND, pads=[1, 1, 1, 1]),
        node(
            "MaxPool", ["c2"], ["y"], "/backbone/layer4/layer4.2/a/pooling/that/comes/last/MaxPool", kernel_shape=[2, 2]
        ),
    ]
    return build(nodes, {"x": (1, 3, 11, 7)}, ["y"], {"w1": noise(1, 5, 3, 3, 3), "w2": noise(3, 4, 5, 3, 3)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its calibration data, its binary, and its certificate."""
    folder = tmp_path_factory.mktemp("long names")
    save(long_names(), folder / "net.onnx")
    np.savez(folder / "data.npz", x=noise(4, 4, 3, 11, 7))
    done("compile", folder / "net.onnx", "-o", folder / "net.cnb")
    done("estimate", folder / "net.onnx", "--certificate", folder / "proof.json")
    return folder


FILES = {"NET": "net.onnx", "BINARY": "net.cnb", "PROOF": "proof.json", "DATA": "data.npz"}
COMMANDS = (
    "compile NET -o OUT.cnb",
    "run BINARY",
    "estimate NET",
    "estimate BINARY",
    "estimate NET --explain gpu_0.res5_2_branch2c_of_the_second_tower_1",
    "estimate NET --check-certificate PROOF",
    "reuse NET",
    "check NET --calibrate DATA",
    "verify NET --layers",
    "explore NET --vary rows=2,4,8 --vary pe.max_pixels=8 --vary links.south=true,false -j 1 -o OUT.jsonl",
    "atoms NET --arch seed-4x4 --layer backbone.layer4.2.downsample.conv1 --pe 0,0",
    "messages BINARY",
    "arch list",
    "opt --passes",
    "opt --passes nest-tile",
)


def at_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(terminal, "terminal_width", lambda: width)


def fits(text: str, width: int) -> None:
    assert text and [line for line in text.splitlines() if len(line) > width] == []


@pytest.mark.parametrize(
    ("command", "width"),
    [(command, width) for number, command in enumerate(COMMANDS) for width in (80, (100, 120)[number % 2])],
)
def test_commands_print_no_line_that_is_too_long(
    command: str, width: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_width(monkeypatch, width)
    monkeypatch.chdir(folder)
    words = [FILES.get(word, word.replace("OUT", str(tmp_path / "out"))) for word in command.split()]
    fits(done(*words).stdout.replace(str(tmp_path), ""), width)  # which may be long, and is one word


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (models.main, ["list"]),
        (program_size.main, ["BINARY"]),
        (dataflows.main, ["NET", "--calibrate", "DATA"]),
        (os_compiler.main, ["--network", "ResNet-20", "--side", "8"]),
    ],
)
def test_samples_print_no_line_that_is_too_long(
    command: click.Command, arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_width(monkeypatch, 80)
    words = [str(folder / FILES[word]) if word in FILES else word for word in arguments]
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    fits(result.output, 80)


# -- tables ------------------------------------------------------------------------------------------------------------

COLUMNS = (Column("layer", NAME), "cycles", Column("DRAM words", drop=1), Column("mapping", TEXT, drop=2))
ROWS = ((FIRST, "1,234", "5", "k > c > h > w > r > s"), "below it", ("fc", "12", "345,678", ""))


def test_a_number_and_its_percent_sign_stay_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "terminal_width", lambda: 10)
    assert terminal.folded("  12345 12 % of it") == ["  12345", "      12 %", "      of", "      it"]


def test_a_table_that_fits_is_printed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    at_width(monkeypatch, 100)
    assert table(COLUMNS, ROWS) == [
        "  layer                                            cycles  DRAM words  mapping",
        f"  {FIRST}   1,234           5  k > c > h > w > r > s",
        "  below it",
        "  fc                                                   12     345,678",
    ]


def test_a_table_shortens_names_folds_texts_and_drops_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    at_width(monkeypatch, 55)
    assert table(COLUMNS, ROWS) == [
        "                             DRAM",
        "  layer         cycles      words  mapping",
        "  /back…1/Conv   1,234          5  k > c > h > w > r >",
        "                                   s",
        "  below it",
        "  fc                12    345,678",
    ]
    at_width(monkeypatch, 32)
    assert table(COLUMNS, ROWS) == [
        "                            DRAM",
        "  layer         cycles     words",
        "  /back…1/Conv   1,234         5",
        "  below it",
        "  fc                12   345,678",
        "  no room in 32 columns for:",
        "      mapping",
    ]


@given(
    st.lists(st.tuples(*[st.text("ab >", max_size=60)] * 2, st.integers(0, 10**9)), min_size=1, max_size=5),
    st.integers(60, 130),
)
def test_tables_fit(rows: list[tuple[str, str, int]], width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        at_width(patch, width)
        columns = [Column("name", NAME), Column("text", TEXT), "a number", Column("the same", drop=1)]
        lines = table(columns, [(name, text, f"{n:,}", f"{n:,}") for name, text, n in rows])
        assert max(map(len, lines)) <= width and fitted(lines) == "\n".join(lines)


# -- progress ----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A terminal of the width of the one that pytest makes, which is none."""

    def __init__(self) -> None:
        super().__init__()
        self.file = pty.openpty()[1]

    def fileno(self) -> int:
        return self.file


def said(*calls: tuple[float, str, float, float]) -> list[str]:
    """What is on the line after each call, which comes at a time."""
    stream, times = Terminal(), iter([0.0, *(at for at, *_ in calls)])
    line = progress.ProgressLine(stream, lambda: next(times))
    for _, what, work, total in calls:
        line(what, work, total)
    return stream.getvalue().split("\r\033[K")[1:]


def test_the_time_left_follows_from_the_work_that_was_done() -> None:
    """A quarter takes 10 s: three of them are left, then as long as the mean of two says."""
    assert said((0, "run", 0, 400), (10, "run", 100, 400), (12, "run", 200, 400)) == [
        "run", "run, 30 s left", "run, 12 s left",
    ]  # fmt: skip


def test_there_is_no_time_left_without_a_basis() -> None:
    assert said((5, "a", 0, 0), (50, "b", 0, 0)) == ["a", "b"]  # nobody knows how much there is to do
    assert said((0, "run", 0, 4), (0.5, "run", 1, 4)) == ["run", "run"]  # too short
    assert said((0, "run", 0, 4), (9, "run", 3, 4), (10, "run", 0, 8), (20, "run", 2, 8)) == [
        "run", "run, 3 s left", "run", "run, 30 s left",
    ]  # fmt: skip
    assert said((0, "run", 3, 4), (9, "run", 4, 4)) == ["run", "run"]  # done


def test_long_times_are_said_in_minutes_and_hours() -> None:
    assert [progress.duration(seconds) for seconds in (3.4, 59.4, 150, 5400)] == ["3 s", "59 s", "2 min", "1.5 h"]


@pytest.fixture(scope="module")
def commands(server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that are forked. Searches are short: what is shown is right under any mapping."""
    folder = tmp_path_factory.mktemp("commands")
    add_commands(folder, server, SAMPLES.parent)
    return os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", SHORT_SEARCHES: "1"}


def on_a_terminal(command: list[str], environment: dict[str, str]) -> str:
    """What a command says on stderr where that is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, cwd=SAMPLES.parent, env=environment)
    os.close(theirs)
    text = b"".join(iter(lambda: _read(ours), b""))
    assert process.wait() == 0, text
    return text.decode()


def _read(file: int) -> bytes:
    try:
        return os.read(file, 4096)
    except OSError:  # nobody has the other end
        return b""


PROGRAMS = {
    "run": ("cnncc", "run", "BINARY", "--input", "DATA"),
    "estimate": ("cnncc", "estimate", "NET", "--calibrate", "DATA", "--dataflow", "rs"),
    "accuracy": ("python", accuracy.__file__, "lenet"),
}
SAYS = {"run": "running, 0 %", "estimate": "onnx-fold-constants", "accuracy": "lenet"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_progress_is_on_a_terminal_and_gone_at_the_end(name: str, folder: Path, commands: dict[str, str]) -> None:
    command = [str(folder / FILES[word]) if word in FILES else word for word in PROGRAMS[name]]
    text = on_a_terminal(command, commands)
    assert f"\r\033[K{SAYS[name]}" in text and text.endswith("\r\033[K")
    silent = subprocess.run(command, capture_output=True, text=True, cwd=SAMPLES.parent, env=commands, check=True)
    assert silent.stderr == ""


def test_progress_is_gone_before_an_error_is_said(folder: Path) -> None:
    ours, theirs = pty.openpty()
    options = ("--dataflow", "rs", "--explain", "nosuch")
    command = [sys.executable, "-m", "cnncc", "estimate", str(folder / "net.onnx"), *options]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, check=False).returncode == 1
    os.close(theirs)
    text = b"".join(iter(lambda: _read(ours), b"")).decode()
    assert "onnx-fold-constants" in text and "\r\033[Kcnncc: there is no layer 'nosuch'" in text


def test_opt_without_a_file_does_not_wait_for_the_keyboard() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "cnncc", "opt"]
    opt = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=60)
    os.close(ours)
    assert (opt.returncode, opt.stderr) == (1, "cnncc: no input: give FILE.mlir or MODEL.onnx, or pipe IR in\n")
