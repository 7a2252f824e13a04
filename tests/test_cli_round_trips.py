"""The same file however one comes to it; and a binary that says no more than it must runs the same."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_cli_models as models
from cli_cases import DIGITS, LENET, SAMPLES, conv_model, done, invoke, noise, refused, save
from onnx import ModelProto
from xdsl.parser import Parser

from cnncc.binary.container import MANIFEST, PROGRAM, Binary, digest, from_bytes, load, pack, to_bytes
from cnncc.driver.ir_files import ir_text
from cnncc.driver.pipeline import new_context

pytestmark = pytest.mark.usefixtures("short_searches")

CALIBRATION = SAMPLES / "inputs" / "digits_calibration.npz"
Made = tuple[Path, list[object]]


FOLDERS = ["conv_model", "lenet", "host_in_the_middle", "names_as_cnncc_makes_them", "weird_names"]


@pytest.fixture(scope="module", params=FOLDERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A folder with net.onnx, net.cnb, net.s, the IR after every step and x.npz; the model's options."""
    folder = tmp_path_factory.mktemp(request.param)
    options: list[object] = []
    if request.param == "lenet":
        (folder / "net.onnx").write_bytes(LENET.read_bytes())
        options = ["--batch", 1, "--calibrate", CALIBRATION]
        with np.load(DIGITS) as digits:
            data = {"input": digits["input"][:5]}
    else:
        model: ModelProto = conv_model() if request.param == "conv_model" else getattr(models, request.param)()
        save(model, folder / "net.onnx")
        shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
        data = {name: noise(i, 3 * n, *rest) for i, (name, (n, *rest)) in enumerate(shapes.items())}
    np.savez(folder / "x.npz", **data)
    done("compile", folder / "net.onnx", *options, "-o", folder / "net.cnb", "--dump-dir", folder / "ir")
    done("disasm", folder / "net.cnb", "-o", folder / "net.s")
    return folder, options


def same_machine(one: Binary, two: Binary) -> bool:
    """Equal programs, weights, tensors, segments and arrays."""
    same = [(name, array.dtype, array.tobytes()) for name, array in one.weights]
    same = same == [(name, array.dtype, array.tobytes()) for name, array in two.weights]
    rest = [(b.tensors, b.segments, b.arch) for b in (one, two)]
    return same and rest[0] == rest[1] and np.array_equal(one.program, two.program)


def run(binary: Path, folder: Path, inputs: Path | None = None) -> tuple[bytes, dict[str, Any]]:
    """The file of outputs, and the counters."""
    y, s = folder / "y.npz", folder / "s.json"
    done("run", binary, "--input", inputs or folder / "x.npz", "--output", y, "--stats", s)
    return y.read_bytes(), json.loads(s.read_text())


def test_cli_compiles_twice_the_same(made: Made, tmp_path: Path) -> None:
    folder, options = made
    done("compile", folder / "net.onnx", *options, "-o", tmp_path / "again.cnb")
    assert (tmp_path / "again.cnb").read_bytes() == (folder / "net.cnb").read_bytes()


def test_cli_compiles_on_from_every_step(made: Made, tmp_path: Path) -> None:
    """Of each network every third one, of another first."""
    folder, options = made
    whole = load(folder / "net.cnb")
    calibrate = options[-2:] if options else []  # what was imported needs no --batch any more
    dumps = sorted((folder / "ir").glob("*.mlir"))
    assert len(dumps) > 15
    for dump in dumps[FOLDERS.index(folder.name[:-1]) % 3 :: 3]:
        done("compile", "--from", dump, *calibrate, "-o", tmp_path / "on.cnb")
        assert same_machine(load(tmp_path / "on.cnb"), whole), dump


def test_cli_emitted_ir_compiles_on(made: Made, tmp_path: Path) -> None:
    folder, options = made
    whole = load(folder / "net.cnb")
    for level in ("onnx", "cnn", "nest", "array", "isa"):
        out = tmp_path / f"{level}.mlir"
        done("compile", folder / "net.onnx", *options, "--emit", level, "-o", out)
        assert done("compile", folder / "net.onnx", *options, "--emit", level).stdout == out.read_text()
        assert done("compile", "--from", out, "--emit", level).stdout == out.read_text()  # nothing is left to do
        done("compile", "--from", out, "-o", tmp_path / "on.cnb")
        assert same_machine(load(tmp_path / "on.cnb"), whole), level
    said = refused("compile", "--from", tmp_path / "nest.mlir", "--emit", "cnn")
    assert "nest.mlir: its level is nest already, which is below cnn: give --emit nest" in said
    said = done("opt", tmp_path / "cnn.mlir", "-p", "onnx-to-cnn").stderr
    assert "onnx-to-cnn: nothing to do: the module is lowered already" in said


def test_cli_disassembly_assembles_to_the_same(made: Made, tmp_path: Path) -> None:
    folder, options = made
    done("asm", folder / "net.s", "--data", folder / "net.cnb", "-o", tmp_path / "same.cnb")
    assert (tmp_path / "same.cnb").read_bytes() == (folder / "net.cnb").read_bytes()
    done("compile", folder / "net.onnx", *options, "--emit", "asm", "-o", tmp_path / "net.s")
    assert (tmp_path / "net.s").read_bytes() == (folder / "net.s").read_bytes()


def test_cli_comments_stay_with_what_they_are_of(made: Made, tmp_path: Path) -> None:
    """A descriptor of another place loses its comment, which would name the tensor at the old one."""
    folder, _ = made
    lines = (folder / "net.s").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if re.match(r" *desc .*base=", line))
    bare = re.sub(r"base=(\d+)", lambda m: f"base={int(m[1]) + 1}", lines[at].partition(";")[0].rstrip())
    (tmp_path / "edited.s").write_text("\n".join([*lines[:at], bare, *lines[at + 1 :]]))
    done("asm", tmp_path / "edited.s", "--data", folder / "net.cnb", "-o", tmp_path / "edited.cnb")
    done("disasm", tmp_path / "edited.cnb", "-o", tmp_path / "again.s")
    again = (tmp_path / "again.s").read_text().splitlines()
    assert again[at] == f"{bare}  ; {lines[at].partition(';')[2].split()[0]}"
    assert [*again[:at], *again[at + 1 :]] == [*lines[:at], *lines[at + 1 :]]
    done("asm", tmp_path / "again.s", "--data", tmp_path / "edited.cnb", "-o", tmp_path / "again.cnb")
    assert (tmp_path / "again.cnb").read_bytes() == (tmp_path / "edited.cnb").read_bytes()


def test_cli_many_images_run_as_one_by_one(made: Made, tmp_path: Path) -> None:
    folder, _ = made
    together, counters = run(folder / "net.cnb", folder)
    (tmp_path / "all.npz").write_bytes(together)
    with np.load(folder / "x.npz") as data, np.load(tmp_path / "all.npz") as wanted:
        sizes = {tensor.name: tensor.shape[0] for tensor in load(folder / "net.cnb").tensors if tensor.role == "input"}
        images = max(len(data[name]) // size for name, size in sizes.items())
        assert images > 2
        for i in range(images):
            np.savez(tmp_path / "x.npz", **{name: data[name][i * n : (i + 1) * n] for name, n in sizes.items()})
            alone, again = run(folder / "net.cnb", tmp_path)
            assert again == counters
            (tmp_path / "one.npz").write_bytes(alone)
            with np.load(tmp_path / "one.npz") as got:
                for name in wanted.files:
                    n = len(wanted[name]) // images
                    assert np.array_equal(got[name], wanted[name][i * n : (i + 1) * n]), name


# -- what is only said -------------------------------------------------------------------------------------------------


def members(binary: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(binary) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_cli_run_needs_no_metadata(made: Made, tmp_path: Path) -> None:
    """Only the format's version, the array and the tensors are left: outputs and counters are the same."""
    folder, _ = made
    parts = members(folder / "net.cnb")
    manifest = json.loads(parts[MANIFEST])
    assert {"members", "compiler", "model", "layers", "comments", "buffers", "segments"} < manifest.keys()
    bare = {key: manifest[key] for key in ("format", "arch", "tensors")}
    parts[MANIFEST] = (json.dumps(bare, indent=1, ensure_ascii=False) + "\n").encode()
    (tmp_path / "bare.cnb").write_bytes(pack(parts))
    (outputs, counters), (wanted, all_counters) = run(tmp_path / "bare.cnb", folder), run(folder / "net.cnb", folder)
    assert outputs == wanted
    assert all_counters.pop("layers")
    counters.pop("layers", None)
    assert counters == all_counters
    done("disasm", tmp_path / "bare.cnb")


# -- what is not only said ---------------------------------------------------------------------------------------------


def planted(folder: Path, edit: Callable[[str], str], to: Path) -> Path:
    """The binary with an edited program."""
    text = (folder / "net.s").read_text()
    assert edit(text) != text
    (to / "edited.s").write_text(edit(text))
    done("asm", to / "edited.s", "--data", folder / "net.cnb", "-o", to / "edited.cnb")
    return to / "edited.cnb"


def observed(binary: Path, folder: Path) -> tuple[bytes, Mapping[str, Any]] | str:
    result = invoke(
        "run", binary, "--input", folder / "x.npz", "--output", folder / "y.npz", "--stats", folder / "s.json"
    )
    if result.exit_code:
        assert result.exit_code == 1
        return result.stderr
    return (folder / "y.npz").read_bytes(), json.loads((folder / "s.json").read_text())


@pytest.mark.parametrize("by", [-1, 1])
def test_cli_a_wrong_trip_count_shows(by: int, made: Made, tmp_path: Path) -> None:
    """In the counters or in the outputs, or as a trap; the metadata still says what was meant."""
    folder, _ = made
    wanted = observed(folder / "net.cnb", folder)
    assert not isinstance(wanted, str)
    for loop in list(re.finditer(r"loop count=(\d+)", (folder / "net.s").read_text()))[:3]:

        def edit(text: str, loop: re.Match[str] = loop) -> str:
            return text[: loop.start()] + f"loop count={int(loop[1]) + by}" + text[loop.end() :]

        assert observed(planted(folder, edit, tmp_path), folder) != wanted


def test_cli_counters_come_from_the_instructions(made: Made, tmp_path: Path) -> None:
    """The binary is what it was but for one word of its program, and its digest."""
    folder, _ = made
    binary = planted(
        folder, lambda text: re.sub(r"\bwords=(\d+)", lambda m: f"words={int(m[1]) - 1}", text, count=1), tmp_path
    )
    one, two = members(folder / "net.cnb"), members(binary)
    assert {name for name in one if one[name] != two[name]} == {MANIFEST, PROGRAM}
    assert json.loads(two[MANIFEST])["members"][PROGRAM] == digest(two[PROGRAM])
    assert observed(binary, folder) != observed(folder / "net.cnb", folder)
    assert from_bytes(to_bytes(load(binary))).metadata == load(binary).metadata


def test_cli_dumps_have_short_lines_and_read_back(made: Made) -> None:
    """Strings stay whole, and at the isa level instructions do."""
    folder, _ = made
    dumps = sorted((folder / "ir").glob("*.mlir"))
    assert len(dumps) > 20
    for dump in dumps:
        text = dump.read_text()
        wide = [re.sub(r'"(\\.|[^"\\])*"', "", line.strip()) for line in text.splitlines() if len(line) > 160]
        assert dump.stem.endswith("array-to-isa") or not any(" " in rest for rest in wide), dump
        assert ir_text(Parser(new_context(), text).parse_module()) == text, dump
