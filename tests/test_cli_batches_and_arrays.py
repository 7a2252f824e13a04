"""What the command line says of programs that take several images, and of arrays that bear one name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_cases import build, done, invoke, noise, refused, save
from onnx import helper

pytestmark = pytest.mark.usefixtures("short_searches")

CONV = [helper.make_node("Conv", ["x", "w"], ["y"], name="c1", pads=[1, 0, 1, 2], kernel_shape=[3, 3])]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_cli_counts_of_a_batch_are_said_to_be_of_a_batch(folder: Path) -> None:
    arrays = {"w": noise(1, 5, 3, 3, 3)}
    for batch in (1, 3):
        save(build(CONV, {"x": (batch, 3, 7, 5)}, ["y"], arrays), folder / f"net{batch}.onnx")
        done("compile", f"net{batch}.onnx")
    np.savez(folder / "x.npz", x=noise(2, 6, 3, 7, 5))
    one, three = (done("run", f"net{batch}.cnb", "--input", "x.npz").stdout for batch in (1, 3))
    assert "net1.cnb: 6 images through spatial-8x8 (8 x 8 PEs)" in one
    assert "are per image\n" in one
    assert "net3.cnb: 6 images through spatial-8x8 (8 x 8 PEs)" in three
    assert "are per batch of 3 images\n" in three
    arch = done("arch", "show", "spatial-8x8").stdout.replace("rows = 8", "rows = 8\nclock_mhz = 150")
    (folder / "clock.toml").write_text(arch)
    done("compile", "net3.onnx", "--arch", "clock.toml")
    estimate = json.loads(done("estimate", "net3.cnb", "--json").stdout)
    assert estimate["clock_mhz"] == 150
    rate = f"{150e6 / estimate['cycles']['total']:,.1f} times a second at 150 MHz\n"
    assert f"are per batch of 3 images; the array does it {rate}" in done("run", "net3.cnb").stdout
    assert f"  the array does it all {rate}" in done("estimate", "net3.cnb").stdout
    np.savez(folder / "four.npz", x=noise(2, 4, 3, 7, 5))
    said = refused("run", "net3.cnb", "--input", "four.npz")
    assert "input 'x' has shape [4, 3, 7, 5], expected [3 or a multiple, 3, 7, 5]" in said


def test_cli_run_prints_what_it_counts(folder: Path) -> None:
    """The utilisation in the table is that of all cycles, stalls included."""
    save(build(CONV, {"x": (1, 3, 7, 5)}, ["y"], {"w": noise(1, 5, 3, 3, 3)}), folder / "net.onnx")
    done("compile", "net.onnx")
    lines = done("run", "net.cnb", "--stats", "stats.json").stdout.splitlines()
    counted = json.loads((folder / "stats.json").read_text())
    for label, stats in (*counted["layers"].items(), ("total", counted)):
        if stats["macs"]:
            (line,) = [line for line in lines if line.split()[:1] == [label]]
            assert f" {stats['cycles']['total']:,} " in line and f" {100 * stats['utilisation']['total']:.1f} %" in line
            assert stats["utilisation"]["total"] < stats["utilisation"]["compute"]


def test_cli_from_needs_the_array_that_the_ir_was_mapped_to(folder: Path) -> None:
    """Also where another array has its name."""
    save(build(CONV, {"x": (1, 3, 7, 5)}, ["y"], {"w": noise(1, 5, 3, 3, 3)}), folder / "net.onnx")
    text = done("arch", "show", "spatial-4x4").stdout
    (folder / "mine.toml").write_text(text)
    (folder / "other.toml").write_text(text.replace("rows = 4", "rows = 3"))
    done("compile", "net.onnx", "--arch", "mine.toml", "--dump-dir", "ir")
    done("compile", "--from", "ir/nest-permute", "--arch", "mine.toml", "-o", "same.cnb")
    done("compile", "--from", "ir/nest-permute", "--arch", "spatial-4x4", "-o", "same.cnb")
    message = refused("compile", "--from", "ir/nest-permute", "--arch", "other.toml", "-o", "not.cnb")
    assert "was mapped to spatial-4x4 (4 x 4 PEs, #" in message
    assert "not to spatial-4x4 (3 x 4 PEs, #" in message
    assert not (folder / "not.cnb").exists()
    assert done("compile", "--from", "ir/cnn-fuse-epilogue", "--arch", "other.toml", "-o", "other.cnb")


def test_cli_dumps_are_named_by_their_step(folder: Path) -> None:
    """Whatever its number; a name that none has, or several have, is a file's."""
    save(build(CONV, {"x": (1, 3, 7, 5)}, ["y"], {"w": noise(1, 5, 3, 3, 3)}), folder / "net.onnx")
    done("compile", "net.onnx", "--dump-dir", "ir", "-o", "net.cnb")
    done("compile", "--from", "ir/nest-permute", "--emit", "asm", "-o", "same.s")
    done("disasm", "net.cnb", "-o", "net.s")
    assert Path("same.s").read_text() == Path("net.s").read_text()
    assert "nest.layer" in done("opt", "ir/nest-permute").stdout
    Path("ir/99-nest-permute.mlir").write_text("")
    for name, message in (
        ("nest-permute", "there are two or more dumps of this step"),
        ("nest-permutes", "no dump of step 'nest-permutes': did you mean 'nest-permute'"),
    ):
        assert f"ir/{name}: {message}" in refused("compile", "--from", f"ir/{name}", "-o", "same.cnb")


def test_cli_a_dump_has_its_batch(folder: Path) -> None:
    (folder / "x.mlir").write_text("builtin.module {}\n")
    result = invoke("compile", "--from", "x.mlir", "--batch", "2")
    assert result.exit_code == 2
    assert "--batch has no effect" in result.stderr
