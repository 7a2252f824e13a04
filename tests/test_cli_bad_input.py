"""Bad models, arrays, options and places to write: one clear line on stderr, exit code 1, and nothing written."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from cli_cases import LENET, build, conv_model, done, invoke, noise, refuses, save, snapshot
from onnx import helper

from cnncc.arch.model import PRESETS

pytestmark = pytest.mark.usefixtures("short_searches")

CNNCC = (sys.executable, "-m", "cnncc")
PRESET = (PRESETS / "spatial-8x8.toml").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a model, whose content must not change."""
    save(conv_model(), tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


# -- models ------------------------------------------------------------------------------------------------------------


def not_finite() -> bytes:
    weights = noise(1, 5, 3, 3, 3)
    weights[1, 2, 0, 1] = np.nan
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="c")]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y"], {"w": weights}).SerializeToString()


def symbolic() -> bytes:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="c")]
    return build(nodes, {"x": ("N", 3, 5, 7)}, ["y"], {"w": noise(1, 5, 3, 3, 3)}).SerializeToString()


WHOLE = conv_model().SerializeToString()
MODELS = {
    "text": (b"this is not ONNX\n", "not an ONNX model"),
    "empty": (b"", "not an ONNX model"),
    "truncated": (WHOLE[: len(WHOLE) * 2 // 3], "not an ONNX model, or truncated"),
    "zip": (b"PK\x05\x06" + bytes(18), "not an ONNX model"),
    "NaN": (not_finite(), "'w' contains NaN"),
}


@pytest.mark.parametrize("command", ["compile", "verify"])
@pytest.mark.parametrize("name", MODELS)
def test_cli_bad_model(command: str, name: str, folder: Path) -> None:
    content, message = MODELS[name]
    (folder / "bad.onnx").write_bytes(content)
    said = refuses(folder, command, "bad.onnx")
    assert message in said
    assert "bad.onnx" in said


@pytest.mark.parametrize("command", ["compile", "verify"])
def test_cli_model_that_is_no_file(command: str, folder: Path) -> None:
    assert "missing.onnx" in refuses(folder, command, "missing.onnx")
    assert str(folder) in refuses(folder, command, folder)
    assert "missing.cnb" in refuses(folder, "run", "missing.cnb")
    assert "missing.cnb" in refuses(folder, "disasm", "missing.cnb")
    assert str(folder) in refuses(folder, "run", folder)


def test_cli_every_prefix_of_a_model_is_refused_or_whole(folder: Path) -> None:
    """A prefix may be a smaller model; none may crash."""
    for length in range(0, len(WHOLE), 97):
        (folder / "bad.onnx").write_bytes(WHOLE[:length])
        assert invoke("compile", "bad.onnx", "--emit", "onnx").exit_code in (0, 1)


def test_cli_wrong_usage(folder: Path) -> None:
    before = snapshot(folder)
    for args in (
        ["compile"],
        ["compile", "net.onnx", "--from", "x.mlir"],
        ["compile", "net.onnx", "--precision", "int4"],
        ["compile", "net.onnx", "--batch", "0"],
        ["compile", "net.onnx", "--emit", "rtl"],
        ["verify"],
        ["run"],
        ["asm", "x.s"],
        ["nonsense"],
        ["arch", "show"],
    ):
        result = invoke(*args)
        assert result.exit_code == 2, args
        assert "Traceback" not in result.stderr
    assert snapshot(folder) == before


def test_cli_batch_that_does_not_fit(folder: Path) -> None:
    done("compile", "net.onnx", "--batch", 1, "-o", "out.cnb")
    (folder / "symbolic.onnx").write_bytes(symbolic())
    done("compile", "symbolic.onnx", "--batch", 3, "-o", "out.cnb")
    note = "cnncc: note: input 'x': dim 0 is symbolic ('N') and taken as 1: --batch N gives another size\n"
    assert done("compile", "symbolic.onnx", "-o", "one.cnb").stderr.startswith(note)
    assert "batch" in refuses(folder, "compile", "net.onnx", "--batch", 2)


def test_cli_int16_on_an_8_bit_array(folder: Path) -> None:
    Path("a8.toml").write_text(PRESET.replace("operand_bits = 16", "operand_bits = 8"))
    said = refuses(folder, "compile", "net.onnx", "--arch", "a8.toml", "--precision", "int16")
    assert "--precision int16" in said
    assert "8 bits" in said


# -- arrays ------------------------------------------------------------------------------------------------------------

ARRAYS = (
    ("rows = 8", "rows = 0", "rows = 0 is outside 1 to 32"),
    ("rows = 8", "rows = -3", "rows = -3 is outside 1 to 32"),
    ("rows = 8", "rows = 33", "rows = 33 is outside 1 to 32"),
    ("rows = 8", "rows = 8.0", "rows is a whole number, not 8.0"),
    ("rows = 8", 'rows = "8"', "rows is a whole number, not '8'"),
    ("rows = 8", "rows = true", "rows is a whole number, not true"),
    ("rows = 8", "rows = [8]", "rows is a whole number"),
    ("rows = 8", "row = 8", "unknown key 'row'; did you mean 'rows'?"),
    ("rows = 8", "", "key 'rows' is missing"),
    ("rows = 8", "rows = 8\nlanes = 2", "unknown key 'lanes'"),
    ("rows = 8", "rows = 8\nrows = 9", "not TOML"),
    ("operand_bits = 16", "operand_bits = 12", "operand_bits is 8 or 16, not 12"),
    ("psum_bits = 32", "psum_bits = 49", "psum_bits = 49 is outside 16 to 48"),
    ("weight_words = 112", "weight_words = 0", "[pe]: weight_words = 0"),
    ("weight_words = 112", "", "[pe]: key 'weight_words' is missing"),
    ("words = 65536", "words = 1e6", "[glb]: words is a whole number"),
    ("[glb]", "[global]", "unknown key 'global'"),
    (PRESET, 'name = "x"\nrows = 8\ncols = 8\npe = 3', "[pe] must be a table"),
    ("n2n = true", "n2n = 1", "[links]: n2n is true or false, not 1"),
    ('name = "spatial-8x8"', "name = 2020-01-01", "name is a text, not 2020-01-01"),
    ('name = "spatial-8x8"', r'name = "a\u001b[31m"', r"name is a text of printable characters, not 'a\x1b[31m'"),
    ('name = "spatial-8x8"', 'name = " "', "name is a text of printable characters, not ' '"),
    (PRESET, "rows 8", "not TOML"),
    (PRESET, "", "key 'name' is missing"),
    (PRESET, "\0", "not TOML"),
)


@pytest.mark.parametrize(("old", "new", "message"), ARRAYS, ids=[message for *_, message in ARRAYS])
def test_cli_bad_array(old: str, new: str, message: str, folder: Path) -> None:
    assert old in PRESET
    Path("mine.toml").write_text(PRESET.replace(old, new))
    for command in (["compile", "net.onnx", "--arch"], ["verify", "net.onnx", "--arch"], ["arch", "show"]):
        said = refuses(folder, *command, "mine.toml")
        assert message in said
        assert "mine.toml" in said


def test_cli_array_with_a_byte_order_mark(folder: Path) -> None:
    Path("mine.toml").write_bytes(b"\xef\xbb\xbf" + PRESET.encode())
    assert "rows = 8" in done("arch", "show", "mine.toml").stdout


def test_cli_array_that_is_no_file(folder: Path) -> None:
    Path("latin.toml").write_bytes(b'name = "\xe4"\n')
    for name in ("missing.toml", "spatial-9x9", folder, "latin.toml", "../spatial-8x8"):
        said = refuses(folder, "compile", "net.onnx", "--arch", name)
        assert "no array" in said
        assert "spatial-8x8" in said


def test_cli_array_file_of_any_name(folder: Path) -> None:
    done("compile", "net.onnx", "-o", "right.cnb")
    for name in ("with space.toml", 'quo"te.toml', "back\\slash.toml", "brace}{,=.toml", "ünï.toml", "new\nline.toml"):
        Path(name).write_text(PRESET)
        done("compile", "net.onnx", "--arch", name, "-o", "out.cnb")
        assert Path("out.cnb").read_bytes() == Path("right.cnb").read_bytes()


# Resource, a size that is too small, one that would do.
SMALL = (("glb.words", 20, 48),)


@pytest.mark.usefixtures("longer_searches")
@pytest.mark.parametrize(("resource", "size", "least"), SMALL)
def test_cli_array_too_small(resource: str, size: int, least: int, folder: Path) -> None:
    """The message names the resource, its size and one that would do: that does, and here one word less does not."""
    key = resource.partition(".")[2]
    part = {"pe": 0, "glb": PRESET.index("[glb]")}[resource.partition(".")[0]]

    def with_size(words: int) -> str:
        Path("mine.toml").write_text(
            PRESET[:part] + re.sub(rf"\b{key} = \d+", f"{key} = {words}", PRESET[part:], count=1)
        )
        return "mine.toml"

    said = refuses(folder, "compile", "net.onnx", "--arch", with_size(size), "-o", "out.cnb")
    assert f"{resource} = {size}" in said or re.search(rf"{resource} \d+, limit {size}\b", said), said
    assert re.search(rf"\b{least} (or more|would do)", said), said
    assert "c1" in said or "c2" in said
    refuses(folder, "compile", "net.onnx", "--arch", with_size(least - 1), "-o", "out.cnb")
    done("compile", "net.onnx", "--arch", with_size(least), "-o", "out.cnb")


# -- where to write ----------------------------------------------------------------------------------------------------


@pytest.fixture
def places(folder: Path) -> dict[str, str]:
    """Places that cannot be written, with what must be said of them."""
    done("compile", "net.onnx", "-o", "net.cnb")
    done("disasm", "net.cnb", "-o", "net.s")
    Path("kept").write_text("precious")
    Path("kept").chmod(0o444)
    Path("locked").mkdir(mode=0o555)
    return {
        "kept": "read-only",
        "locked/x": "read-only",
        "locked/deep/x": "read-only",
        ".": "folder",
        "kept/x": "no folder",
    }


@pytest.mark.parametrize(
    "command",
    [
        ["compile", "net.onnx", "-o"],
        ["compile", "net.onnx", "--emit", "nest", "-o"],
        ["compile", "net.onnx", "--emit", "asm", "-o"],
        ["compile", "net.onnx", "--dump-dir", "dump", "-o"],
        ["run", "net.cnb", "--output"],
        ["run", "net.cnb", "--stats"],
        ["run", "net.cnb", "--output", "y.npz", "--stats"],
        ["disasm", "net.cnb", "-o"],
        ["asm", "net.s", "--data", "net.cnb", "-o"],
    ],
    ids=" ".join,
)
def test_cli_place_that_cannot_be_written(command: list[str], folder: Path, places: dict[str, str]) -> None:
    for place, message in places.items():
        assert message in refuses(folder, *command, place)
    assert Path("kept").read_text() == "precious"


def test_cli_dump_dir_that_cannot_be_written(folder: Path, places: dict[str, str]) -> None:
    for place in ("kept", "locked", "locked/deep", "kept/deep"):
        said = refuses(folder, "compile", "net.onnx", "--dump-dir", place)
        assert "--dump-dir" in said


def test_cli_weights_beside_ir_never_overwrite_data(folder: Path) -> None:
    np.savez("images.npz", x=noise(1, 1, 3, 11, 7))
    said = refuses(folder, "compile", "net.onnx", "--emit", "cnn", "-o", "images.mlir")
    assert "images.npz" in said


def test_cli_an_output_is_replaced_whole(folder: Path) -> None:
    Path("net.cnb").write_text("old")
    done("compile", "net.onnx")
    whole = Path("net.cnb").read_bytes()
    Path("bad.onnx").write_bytes(WHOLE[:50])
    refuses(folder, "compile", "bad.onnx", "-o", "net.cnb")
    assert Path("net.cnb").read_bytes() == whole


# -- the process itself ------------------------------------------------------------------------------------------------


def test_cli_process_says_one_line(folder: Path) -> None:
    args = [*CNNCC, "compile", "missing.onnx"]
    found = subprocess.run(args, capture_output=True, text=True, cwd=folder, check=False, timeout=60)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("cnncc: missing.onnx")
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("target", "code", "said"), [("/dev/full", 1, "cannot be written: No space left"), ("", 0, "")]
)
def test_cli_process_with_a_full_or_closed_output(target: str, code: int, said: str, folder: Path) -> None:
    script = f'"$@" >{target or "&-"}'
    found = subprocess.run(
        ["sh", "-c", script, "sh", *CNNCC, "arch", "show", "spatial-8x8"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr.count("\n")) == (code, code), found.stderr
    assert said in found.stderr


@pytest.mark.parametrize("command", [
    ("compile", str(LENET), "--batch", "1", "--dataflow", "rs", "--emit", "asm"),
    ("opt", "long.mlir"),  # it fills a buffer before all is printed
])  # fmt: skip
def test_cli_process_with_a_closed_pipe(command: Sequence[str], folder: Path) -> None:
    (folder / "long.mlir").write_text("".join(f"func.func @f{i}() {{ func.return }}\n" for i in range(400)))
    with subprocess.Popen(
        [*CNNCC, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # long before anything is printed
        assert process.stderr.read() == ""
