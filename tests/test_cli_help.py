"""What `--help` says: every command has examples that work, and an option is called the same in all commands."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from cli_cases import build, done, noise, save
from onnx import helper
from xdsl.xdsl_opt_main import xDSLOptMain

from cnncc.cli.main import main

pytestmark = pytest.mark.usefixtures("short_searches")


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands by what is typed."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")


COMMANDS = dict(commands(main))


def examples(command: click.Command) -> list[str]:
    """The lines of its help that can be typed, without what stands beside them."""
    lines = re.findall(r"^ *(cnncc .*)$", command.help or "", re.MULTILINE)
    return [re.split(r" {3,}", line)[0] for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that examples name, and the first load of the binary in place of theirs."""
    folder = tmp_path_factory.mktemp("examples")
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["c"], "conv1", strides=[2, 2], pads=[1, 0, 2, 2]),
        node("Conv", ["c", "w2"], ["y"], "conv2", pads=[1, 1, 1, 1]),
    ]
    arrays = {"w1": noise(1, 5, 3, 3, 3), "w2": noise(3, 4, 5, 3, 3)}
    save(build(nodes, {"x": (1, 3, 11, 7)}, ["y"], arrays), folder / "net.onnx")
    np.savez(folder / "images.npz", x=noise(4, 4, 3, 11, 7))
    (folder / "mine.toml").write_text(done("arch", "show", "spatial-8x8").stdout)
    (folder / "schedule.toml").write_text("[conv2]\ntof = 2\n")
    done("compile", folder / "net.onnx", "-o", folder / "net.cnb", "--dump-dir", folder / "ir")
    (folder / "lenet.cnb").write_bytes((folder / "net.cnb").read_bytes())
    (nest,) = (folder / "ir").glob("*-cnn-to-nest.mlir")
    (folder / "net.mlir").write_text(nest.read_text())
    (folder / "weights.npz").write_bytes((folder / "ir" / "weights.npz").read_bytes())
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_work(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    given = examples(COMMANDS[name])
    assert given, name
    load = re.findall(r"^([0-9a-f]{4}) load", done("messages", "lenet.cnb").stdout, re.MULTILINE)[0]
    for line in given:
        words = [word.replace("00c2", load) for word in shlex.split(line)[1:]]
        done(*(words[: words.index(">")] if ">" in words else words))


def test_options_are_called_the_same_in_all_commands() -> None:
    """A name has one short form and one kind of value; the options of commands that compile are the same objects."""
    kinds = dict[str, set[tuple[object, ...]]]()
    for command in COMMANDS.values():
        for option in command.params:
            if isinstance(option, click.Option):
                kind = (type(option.type).__name__, option.is_flag, *option.opts)
                kinds.setdefault(max(option.opts, key=len), set()).add(kind)
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}
    assert {"--output", "--json", "--layer", "--arch", "--schedule", "--dataflow", "--input", "--batch"} <= kinds.keys()


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_of_opt_has_its_examples_and_the_options_of_xdsl(option: str) -> None:
    said = done("opt", option).stdout
    assert said.startswith("usage: cnncc opt [FILE.mlir | MODEL.onnx] [-p PASSES] [-o OUT.mlir] [OPTION]...\n")
    assert COMMANDS["opt"].help and all(f"\n{line}" in said for line in examples(COMMANDS["opt"]))
    xDSLOptMain(args=[]).register_all_arguments(parser := argparse.ArgumentParser("opt"))
    options, of_xdsl = (set(re.findall(r"(?<!\S)--?[a-z-]+", text)) for text in (said, parser.format_help()))
    assert {"-t", "--shrink"} < of_xdsl <= options and "--batch" in options
    assert "apply-pdl" not in said and len(said.splitlines()) < 80  # xDSL lists 160 passes here
