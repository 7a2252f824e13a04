"""The opt tool and the command line: files, sidecars, one-line errors, exit codes."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from frontend_models import DATA, model, saved

from cnncc.cli.main import main
from cnncc.driver.opt_main import OptMain
from cnncc.universe import DIALECTS, PASSES


def opt(*args: object) -> Result:
    return CliRunner().invoke(main, ["opt", *map(str, args)])


def refused(*args: object) -> str:
    result = opt(*args)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("cnncc: "), result.stderr
    return result.stderr


def test_frontend_opt_writes_ir_and_weights_and_reads_them_back(tmp_path: Path) -> None:
    first, second = tmp_path / "a.mlir", tmp_path / "b.mlir"
    assert opt(DATA / "lenet.onnx", "--batch", 3, "-o", first).exit_code == 0
    with np.load(tmp_path / "a.npz") as arrays:
        assert len(arrays.files) == 10
    assert opt(first, "-p", "onnx-dead-code", "-o", second).exit_code == 0
    assert second.read_text() == first.read_text() == opt(first).stdout
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "a.npz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mlir", "a.npz", "b.mlir", "b.npz"]


def test_frontend_opt_takes_passes_on_several_lines() -> None:
    one, two = "onnx-fold-constants{max-bytes=8}", "onnx-dead-code"
    result = opt(DATA / "lenet.onnx", "-p", f"\n  {one},\n  {two}\n")
    assert result.exit_code == 0 and result.stdout == opt(DATA / "lenet.onnx", "-p", f"{one},{two}").stdout
    assert "Expected pass name" in refused(DATA / "lenet.onnx", "-p", f"{one},\n,{two}")


def test_frontend_opt_finds_the_shared_weights_file(tmp_path: Path) -> None:
    source = tmp_path / "01-import.mlir"
    opt(DATA / "lenet.onnx", "--batch", 1, "-o", source)
    (tmp_path / "01-import.npz").rename(tmp_path / "weights.npz")
    # Folding needs the arrays of the Constant inputs.
    assert opt(source, "-p", "onnx-fold-constants", "-o", tmp_path / "02.mlir").exit_code == 0
    assert (tmp_path / "02.npz").exists()


def test_frontend_opt_refuses_a_damaged_or_missing_weights_file(tmp_path: Path) -> None:
    text = model("g (float[3] x) => (float[3] y) { s = Neg(w) y = Add(x, s) }", w=np.float32([1, 2, 3]))
    file, weights = tmp_path / "m.mlir", tmp_path / "m.npz"
    assert opt(saved(text, tmp_path), "-o", file).exit_code == 0
    content = bytearray(weights.read_bytes())
    content[content.index(b"NUMPY") + 120] ^= 1  # in the array
    weights.write_bytes(content)
    assert "m.npz" in refused(file)
    weights.unlink()
    assert "was read without its weights file" in refused(file, "-p", "onnx-fold-constants")


def test_frontend_opt_refuses_with_one_line_and_writes_nothing(tmp_path: Path) -> None:
    good, out = tmp_path / "good.mlir", tmp_path / "out.mlir"
    good.write_text("func.func @f() { func.return }")
    assert "none.mlir: cannot be read: No such file" in refused(tmp_path / "none.mlir", "-o", out)
    assert "Is a directory" in refused(tmp_path, "-o", out)
    assert "expected a .mlir or .onnx file" in refused(DATA.parent / "test_filecheck.py", "-o", out)
    assert "-p: no pass 'no-such': `cnncc opt --passes` lists them" in refused(good, "-p", "no-such", "-o", out)
    assert "-p: " in refused(good, "-p", "onnx-fold-constants{bogus=1}", "-o", out)
    assert "-p: " in refused(good, "-p", "{", "-o", out)
    assert "is no folder" in refused(good, "-o", good / "folder.mlir")
    assert "onnx.opset_imports" in refused(good, "-p", "onnx-remove-identity", "-o", out)
    for text, message in {
        "func.func @f() { ! }": "bad.mlir:1:18:",
        "func.func @f(%x: i32) -> i32 { func.return }": "Expected arguments to have the same types",
        '"nobody.knows"() : () -> ()': "is not registered",
        "module {" * 3000: "bad.mlir",
        '"x.y"() {a = "\\FF\\': "bad.mlir",
    }.items():
        bad = tmp_path / "bad.mlir"
        bad.write_text(text)
        assert message in refused(bad, "-o", out)
    bad.write_bytes(b'"\xff"')
    assert "utf-8" in refused(bad, "-o", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.mlir", "good.mlir"]


def test_frontend_opt_error_does_not_print_the_module(tmp_path: Path) -> None:
    nodes = "\n".join(f'%{i + 1} = onnx.node "Relu"(%{i}) : (f32) -> f32' for i in range(300))
    bad = tmp_path / "bad.mlir"
    bad.write_text(f"func.func @f(%0: f32) -> i32 {{\n{nodes}\n func.return %300 : f32\n}}")
    message = refused(bad)
    assert "func.return" in message and len(message) < 1000


def test_frontend_opt_knows_each_dialect_and_pass_once() -> None:
    tool = OptMain([], "")
    assert set(DIALECTS) | {"func", "linalg"} <= set(tool.ctx.registered_dialect_names)
    assert set(PASSES) | {"canonicalize", "cse"} <= set(tool.available_passes)


def test_frontend_opt_works_where_cnncc_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    found = importlib.metadata.entry_points

    def without_cnncc(**select: str):
        points = found(**select)
        return importlib.metadata.EntryPoints(point for point in points if point.name != "cnncc")

    monkeypatch.setattr(importlib.metadata, "entry_points", without_cnncc)
    tool = OptMain([], "")
    assert "onnx" in tool.ctx.registered_dialect_names and "onnx-dead-code" in tool.available_passes


def test_frontend_cli_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opt(DATA / "lenet.onnx", "--batch", 1).exit_code == 0
    assert "tensor<1x1x28x28xf32>" in opt(DATA / "lenet.onnx").stdout
    assert "cnncc opt: error: unrecognized arguments: --no-such-option" in opt("--no-such-option").stderr
    assert opt("--no-such-option").exit_code == 2
    assert CliRunner().invoke(main, ["no-such-command"]).exit_code == 2
    assert opt("--help").exit_code == 0 and CliRunner().invoke(main, ["--help"]).exit_code == 0

    def broken() -> None:
        raise KeyError("a\nb")

    monkeypatch.setitem(main.commands, "broken", click.Command("broken", callback=broken))
    result = CliRunner().invoke(main, ["broken"])
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert "KeyError" in result.stderr and "defect of cnncc, please report" in result.stderr
    monkeypatch.setenv("CNNCC_TRACEBACK", "1")
    assert "Traceback" in CliRunner().invoke(main, ["broken"]).stderr
