"""Runs every `tests/filecheck/**/*.mlir` in-process: its `// RUN:` lines, through cnncc opt and filecheck.

Two orders of magnitude faster than a process a line; `test_filecheck_lit` runs a few as LLVM users do.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options
from filecheck.parser import Parser

from cnncc.driver.opt_main import run_opt
from cnncc.errors import Refusal

FOLDER = Path(__file__).parent / "filecheck"
FILES = sorted(FOLDER.rglob("*.mlir"))
RUN_LINE = re.compile(r"^//\s*RUN:\s*(.*)", re.MULTILINE)


def run_opt_text(args: list[str], refused: bool, notes: bool) -> str:
    """What `cnncc opt` prints, with its notes if wanted; with `refused`, the message of the refusal that must come."""
    stdout = io.StringIO()
    errors = contextlib.redirect_stderr(stdout) if notes else contextlib.nullcontext()
    with contextlib.redirect_stdout(stdout), errors:
        if not refused:
            run_opt(args)
            return stdout.getvalue()
        with pytest.raises(Refusal) as refusal:
            run_opt(args)
    return stdout.getvalue() + f"cnncc: {refusal.value}\n"


def check_run_line(line: str, file: Path) -> None:
    """Run `[not] cnncc opt … [2>&1] [| filecheck …]` for `file`."""
    commands: list[list[str]] = [[]]
    for token in shlex.split(line.replace("%s", shlex.quote(str(file)))):
        if token == "|":
            commands.append([])
        elif token != "2>&1":
            commands[-1].append(token)
    refused = commands[0][0] == "not"
    tool = commands[0][1:] if refused else commands[0]
    assert tool[:2] == ["cnncc", "opt"], f"{file}: cannot run {line}"
    output = run_opt_text(tool[2:], refused, "2>&1" in line)
    for command in commands[1:]:
        assert command[0] == "filecheck", f"{file}: cannot run {line}"
        options = parse_argv_options(command)
        code = Matcher(options, FInput("-", output), Parser.from_opts(options)).run()
        assert code == 0, f"{line}\nprinted\n{output}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER)))
def test_filecheck_file(file: Path) -> None:
    lines = RUN_LINE.findall(file.read_text())
    assert lines, f"{file} has no RUN line"
    for line in lines:
        check_run_line(line, file)


def test_filecheck_finds_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "wrong.mlir"
    file.write_text("// RUN: cnncc opt %s | filecheck %s\n// CHECK: no such line\nfunc.func @f() {func.return}\n")
    with pytest.raises(AssertionError, match="printed"):
        test_filecheck_file(file)


def test_filecheck_finds_notes(tmp_path: Path) -> None:
    file = tmp_path / "note.mlir"
    check = "filecheck %s\n// CHECK: nest-normalise: nothing to do\nfunc.func @f() {func.return}\n"
    file.write_text(f"// RUN: cnncc opt %s -p nest-normalise 2>&1 | {check}")
    test_filecheck_file(file)
    file.write_text(f"// RUN: cnncc opt %s -p nest-normalise | {check}")
    with pytest.raises(AssertionError, match="printed"):
        test_filecheck_file(file)


def test_filecheck_lit() -> None:
    some = [FOLDER / "dialects" / "onnx.mlir", FOLDER / "passes" / "onnx_dead_code.mlir"]
    binaries = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        [str(binaries / "lit"), "-q", *map(str, some)], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
