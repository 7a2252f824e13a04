"""Bad binaries, arrays of inputs, IR and assembly: one clear line on stderr, exit code 1, and nothing written."""

from __future__ import annotations

import io
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import LENET, build, done, invoke, noise, refused, refuses, save, write_conv_files
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from cnncc.passes.cnn_fuse_epilogue import CnnFuseEpiloguePass

pytestmark = pytest.mark.usefixtures("short_searches")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its binary, its assembly, its IR after every step, and good inputs."""
    folder = tmp_path_factory.mktemp("made")
    write_conv_files(folder)
    np.savez(folder / "x.npz", x=noise(1, 2, 3, 11, 7))
    done("run", folder / "net.cnb", "--input", folder / "x.npz")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the working folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- binaries ----------------------------------------------------------------------------------------------------------


def zipped(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


FOREIGN = {"text": b"not a binary", "empty": b"", "zip": zipped(readme=b"hello"), "pickle": pickle.dumps([1, 2])}


@pytest.mark.parametrize("kind", [*FOREIGN, "npz", "onnx", "truncated"])
def test_cli_foreign_binary(kind: str, folder: Path) -> None:
    others = {"npz": Path("x.npz"), "onnx": Path("net.onnx")}
    content = FOREIGN.get(kind) or others.get(kind, Path("net.cnb")).read_bytes()
    Path("bad.cnb").write_bytes(FOREIGN[kind] if kind in FOREIGN else content[:-7] if kind == "truncated" else content)
    for args in (
        ["run", "bad.cnb", "--output", "y.npz", "--stats", "s.json"],
        ["disasm", "bad.cnb", "-o", "bad.s"],
        ["asm", "net.s", "--data", "bad.cnb", "-o", "new.cnb"],
    ):
        assert "bad.cnb" in refuses(folder, *args)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_cli_binary_with_one_wrong_byte(made: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray((made / "net.cnb").read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    (tmp_path / "bad.cnb").write_bytes(content)
    assert "bad.cnb" in refused("run", tmp_path / "bad.cnb")


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_cli_truncated_binary(keep: float, folder: Path) -> None:
    whole = Path("net.cnb").read_bytes()
    Path("bad.cnb").write_bytes(whole[: int(keep * len(whole))])
    assert "bad.cnb" in refuses(folder, "run", "bad.cnb")


# -- arrays of inputs --------------------------------------------------------------------------------------------------


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def huge() -> bytes:
    """An array that says it has 2^60 numbers."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,), }\n"
    return zipped(**{"x.npy": b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header})


GOOD = noise(1, 2, 3, 11, 7)
WITH_NAN = np.where(np.arange(GOOD.size).reshape(GOOD.shape) == 5, np.float32("nan"), GOOD)
INPUTS = {
    "wrong name": (npz(image=GOOD), "no array 'x'; it has image"),
    "wrong shape": (npz(x=GOOD[:, :, :5]), "'x' has shape [2, 3, 5, 7]"),
    "wrong rank": (npz(x=GOOD[0]), "'x' has shape [3, 11, 7]"),
    "scalar": (npz(x=np.float32(3)), "'x' has shape []"),
    "no images": (npz(x=GOOD[:0]), "'x' has shape [0, 3, 11, 7]"),
    "int64": (
        npz(x=GOOD.astype(np.int64)),
        "'x' has type int64, expected floating point numbers, as .astype('float32') gives",
    ),
    "complex": (npz(x=GOOD.astype(np.complex64)), "'x' has type complex64"),
    "text": (npz(x=np.full((1, 3, 11, 7), "a")), "'x' has type <U1"),
    "objects": (npz(x=np.array([{}, []], object)), "not an .npz file of plain arrays: it holds Python objects"),
    "NaN": (npz(x=WITH_NAN), "'x' has values that are not finite"),
    "infinity": (npz(x=np.full((1, 3, 11, 7), np.float32("inf"))), "'x' has values that are not finite"),
    "empty file": (b"", "not an .npz file"),
    "empty archive": (npz(), "no array 'x'; it has none"),
    "truncated": (npz(x=GOOD)[:-100], "not an .npz file"),
    "damaged": (npz(x=GOOD)[:300] + b"\0\1\2" + npz(x=GOOD)[303:], "not an .npz file"),
    "npy": (npy(GOOD), "a single array; expected an .npz file"),
    "pickle": (pickle.dumps({"x": 1}), "not an .npz file"),
    "text file": (b"1 2 3\n", "not an .npz file"),
    "no array inside": (zipped(x=b"hello"), "not an .npz file"),
    "huge": (huge(), "not an .npz file"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_cli_bad_inputs(name: str, folder: Path) -> None:
    content, message = INPUTS[name]
    Path("bad.npz").write_bytes(content)
    for args in (
        ["run", "net.cnb", "--output", "y.npz", "--stats", "s.json", "--input"],
        ["verify", "net.onnx", "--input"],
    ):
        assert message in refuses(folder, *args, "bad.npz")
    said = refuses(folder, "compile", "net.onnx", "--calibrate", "bad.npz")
    assert "bad.npz" in said or "calibration data" in said


def test_cli_inputs_that_are_no_file(folder: Path) -> None:
    for args in (
        ["run", "net.cnb", "--input"],
        ["verify", "net.onnx", "--input"],
        ["compile", "net.onnx", "--calibrate"],
    ):
        assert "missing.npz" in refuses(folder, *args, "missing.npz")
        assert str(folder) in refuses(folder, *args, folder)


def test_cli_double_precision_is_fine(folder: Path) -> None:
    np.savez("double.npz", x=GOOD.astype(np.float64), other=np.arange(3))
    done("run", "net.cnb", "--input", "double.npz", "--output", "y2.npz")
    done("run", "net.cnb", "--input", "x.npz", "--output", "y1.npz")
    assert Path("y1.npz").read_bytes() == Path("y2.npz").read_bytes()
    done("verify", "net.onnx", "--input", "double.npz")


# -- IR ----------------------------------------------------------------------------------------------------------------

Edit = Callable[[str], str]
IR: dict[str, tuple[Edit, str]] = {
    "text": (lambda _: "hello", "bad.mlir:1"),
    "half": (lambda text: text[: len(text) // 2], "bad.mlir"),
    "nothing": (lambda _: "", "bad.mlir"),
    "other IR": (lambda _: "builtin.module { %0 = arith.constant 3 : i32 }", ""),
    "two functions short": (lambda _: "builtin.module {}", ""),
    "unknown step": (lambda text: text.replace("cnn-legalize", "cnn-polish"), "step 'cnn-polish', which is none of"),
    "unknown op": (lambda text: text.replace("cnn.conv", "cnn.convolve"), "cnn.convolve"),
    "unknown weights": (lambda text: re.sub(r'ref<"[0-9a-f]+">', 'ref<"0000000000000000">', text), "0000000000000000"),
    "op before its operand": (
        lambda text: re.sub(r"(?s)(    %0 = .*?\n)(    %1 = .*?\n)(?=    \S)", r"\2\1", text),
        "bad.mlir: cnn.conv reads a value before it is computed: put it behind %",
    ),
    "scale 0": (
        lambda text: re.sub(r'("y", cnn.quant = #cnn.quant<scale = )[^,>]+', r"\g<1>0.0", text),
        "'y' is computed or read as integers, but its cnn.quant has the scale 0: give it a scale",
    ),
    "no name of an output": (
        lambda text: text.replace('onnx.name = "y", ', ""),
        "nest-to-array: not all results of @main have a name: give each ",
    ),
    "no scale of an input": (
        lambda text: re.sub(r'("x"), cnn.quant = [^>]+>', r"\1", text),
        "'x' is read as integers, but has no cnn.quant with a scale: give it one",
    ),
    "no scale of an output": (
        lambda text: re.sub(r'("y"), cnn.quant = [^>]+>', r"\1", text),
        "output 'y' is computed as integers, but has no cnn.quant with a scale: give it one",
    ),
    "factors without a residual": (
        lambda text: text.replace('scale = "c2.q"', 'scale = "c2.q", factors = "c2.q"'),
        "cnn.conv: a residual and its factors go together in: ",
    ),
    "does not verify": (lambda text: text.replace("window <kernel = [3, 3]", "window <kernel = [2, 3]", 1), "cnn.conv"),
}


@pytest.mark.parametrize("name", IR)
def test_cli_bad_ir(name: str, folder: Path) -> None:
    edit, message = IR[name]
    text = next(Path("ir").glob("*-cnn-legalize.mlir")).read_text()
    assert edit(text) != text
    Path("ir/bad.mlir").write_text(edit(text))
    assert message in refuses(folder, "compile", "--from", "ir/bad.mlir", "-o", "out.cnb")


@pytest.mark.parametrize("command", [("compile", "-o", "out.cnb", "--from"), ("estimate",), ("reuse",), ("atoms",)])
def test_cli_edited_ir_that_no_step_can_run_is_no_defect(
    command: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CnnFuseEpiloguePass, "apply", lambda *_: [][0])
    shutil.copy(next(Path("ir").glob("*-onnx-to-cnn.mlir")), "ir/bad.mlir")
    said = refuses(folder, *command, "ir/bad.mlir")
    assert "ir/bad.mlir: edited IR that is not consistent? step cnn-fuse-epilogue: IndexError: " in said


@pytest.mark.parametrize("command", [("compile", "-o", "out.cnb", "--from"), ("estimate",), ("reuse",), ("atoms",)])
def test_cli_ir_with_an_array_of_another_type(command: tuple[str, ...], folder: Path) -> None:
    """Four scales for five channels: the type says five, or both say four."""
    text = next(Path("ir").glob("*-onnx-to-cnn.mlir")).read_text()
    (kind, five), (other, four) = re.findall(r'@c\d\.q : tensor<((?:4|5)xf32)> = #weights\.ref<"(\w+)">', text)
    Path("ir/bad.mlir").write_text(text.replace(five, four))
    held = f"its type is tensor<{kind}>, but weight '{four}' is float32[{other[0]}]"
    assert held in refuses(folder, *command, "ir/bad.mlir")
    Path("ir/bad.mlir").write_text(text.replace(f'{kind}> = #weights.ref<"{five}', f'{other}> = #weights.ref<"{four}'))
    assert f"is float32[{other[0]}], the layer reads float32[{kind[0]}]" in refuses(folder, *command, "ir/bad.mlir")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nest.stage params in glb buffers 1", "", "layer c1: params must be staged in glb: they come from DRAM"),
        ("weights @c1.w", "weights @c2.w", "layer c1: @c2.w is int16[4, 5, 3, 3], the layer reads integers[5, "),
        ("weights @c1.w", "weights @c2.q", "layer c1: @c2.q is float32[4], the layer reads integers[5, 3, 3, 3]"),
        ('label "c2"', 'label "c1"', "two rows of tables would be called 'c1': give each layer a label of its own"),
        (
            'label "c2"',
            'label ""',
            "a layer has the label '', which names no row of tables: give it a label of its own",
        ),
        ("weights @c1.w", "weights @c3.w", "layer c1: there is no weights.global @c3.w"),
        ('bias = "c1.b"', 'bias = "c1.q"', "layer c1: @c1.q is float32[5], the layer reads int32[5]"),
    ],
)
def test_cli_ir_of_a_layer_without_what_it_reads(old: str, new: str, message: str, folder: Path) -> None:
    text = next(Path("ir").glob("*-nest-stage.mlir")).read_text()
    assert old in text
    Path("ir/bad.mlir").write_text(text.replace(old, new, 1))
    assert message in refuses(folder, "compile", "--from", "ir/bad.mlir", "-o", "out.cnb")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nest.for c {", "nest.for {", "bad.mlir:17:22: identifier expected: a dimension"),
        ("nest.mac\n", "\n", "ir/bad.mlir: its body is empty (layer 'c1') in: \"nest.for\"() <{loop = "),
        ("nest.for", "nest.par", "axis (layer 'c1') in: \"nest.par\"() <{loop = "),
        (r"    func.return .*\n", "", "nest.group nest.yield: it is missing"),
        (r"\}\n\}\n", "}\n", "expected an op or '}': the text of an op is cut, or a '}' is missing"),
        (r"\}\n\}\n", "}\n}\n}\n", "bad.mlir:63:1: the module ends above this: there is a '}' too many, or text"),
    ],
)
def test_cli_edited_ir_is_refused_with_the_place(old: str, new: str, message: str, folder: Path) -> None:
    text = next(Path("ir").glob("*-nest-stage.mlir")).read_text()
    assert re.search(old, text)
    Path("ir/bad.mlir").write_text(re.sub(old, new, text, count=1))
    assert message in refuses(folder, "compile", "--from", "ir/bad.mlir", "-o", "out.cnb")


def test_cli_edited_nodes_whose_shapes_do_not_fit(tmp_path: Path) -> None:
    """Such a pool would go to the host, and no image would run."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], name="p", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], name="f"),
        helper.make_node("Gemm", ["f", "w"], ["l"], name="fc"),
        helper.make_node("Relu", ["l"], ["y"], name="y"),
    ]
    save(build(nodes, {"x": (1, 3, 5, 5)}, ["y"], {"w": noise(1, 12, 4)}), tmp_path / "net.onnx")
    done("compile", tmp_path / "net.onnx", "-o", tmp_path / "net.cnb", "--dump-dir", tmp_path / "ir")
    for step in ("import", "onnx-calibrate"):
        text = next((tmp_path / "ir").glob(f"*-{step}.mlir")).read_text()
        assert "kernel_shape = array<i64: 2, 2>" in text
        edited = tmp_path / "ir" / "edited.mlir"
        edited.write_text(text.replace("kernel_shape = array<i64: 2, 2>", "kernel_shape = array<i64: 1, 2>"))
        said = refuses(tmp_path, "compile", "--from", edited, "-o", tmp_path / "out.cnb")
        assert f"{edited}: its shapes do not fit together: " in said
        assert "node name: fc" in said


def test_cli_edited_nodes_whose_results_are_not_of_their_types(folder: Path) -> None:
    text = next(Path("ir").glob("*-onnx-calibrate.mlir")).read_text()
    assert "pads = array<i64: 1, 1, 1, 1>" in text
    Path("ir/bad.mlir").write_text(text.replace("pads = array<i64: 1, 1, 1, 1>", "pads = array<i64: 1, 0, 1, 1>"))
    said = refuses(folder, "compile", "--from", "ir/bad.mlir", "-o", "out.cnb")
    assert "Conv node 'c2': its result is tensor<1x4x6x4xf32>, and would have the shape [1, 4, 6, 3]" in said


def test_cli_edited_ir_that_makes_no_binary(folder: Path) -> None:
    """No command could read the file, which is not written."""
    text = next(Path("ir").glob("*-array-to-isa.mlir")).read_text()
    Path("ir/bad.mlir").write_text(text.replace('  isa.inst "end"\n', "", 1))
    said = refuses(folder, "compile", "--from", "ir/bad.mlir", "-o", "out.cnb")
    assert "ir/bad.mlir: edited IR that makes no binary? 1 loop without end" in said


@pytest.mark.parametrize(
    ("step", "old", "new", "message"),
    [
        ("nest-assign-mapping", "16383]>}", "4294967296]>}", "bad.mlir:8:144: 4,294,967,296 is no integer of 32 bits"),
        ("nest-assign-mapping", "clamp = [-16383, 16383]>}", "zero = 4294967296>}", "4,294,967,296 is no integer of"),
        ("nest-assign-mapping", 'scale = "c1.q"', 'scale = "c1.q", zero = -4294967296', "-4,294,967,296 is no integer"),
        ("nest-assign-mapping", "clamp = [0,", "clamp = [-4294967296,", "bad.mlir:11:74: -4,294,967,296 is no integer"),
        ("array-allocate", "clamp [-16383, 16383]", "clamp [-16383, 4294967296]", "bad.mlir:12:3: tensor x: zero 0 "),
    ],
)  # fmt: skip
def test_cli_edited_ir_with_integers_that_do_not_fit(step: str, old: str, new: str, message: str, folder: Path) -> None:
    """The place is in the IR, not in the binary that would be made of it."""
    text = next(Path("ir").glob(f"*-{step}.mlir")).read_text()
    assert old in text
    Path("ir/bad.mlir").write_text(text.replace(old, new, 1))
    assert message in refuses(folder, "compile", "--from", "ir/bad.mlir", "-o", "out.cnb")


def test_cli_ir_without_its_weights(folder: Path) -> None:
    for source in sorted(Path("ir").glob("*.mlir")):
        shutil.copy(source, "alone.mlir")
        assert "the IR was read without its weights file" in refuses(folder, "compile", "--from", "alone.mlir")
        Path("alone.mlir").unlink()


def test_cli_ir_with_other_files(folder: Path) -> None:
    Path("bytes.mlir").write_bytes(b"\xff\xfe")
    for source in ("missing.mlir", folder, "bytes.mlir", "net.onnx", "net.cnb"):
        refuses(folder, "compile", "--from", source, "-o", "out.cnb")
    shutil.copy("x.npz", "ir/weights.npz")
    said = refuses(folder, "compile", "--from", "ir/onnx-calibrate", "-o", "out.cnb")
    assert "weights.npz" in said


def test_cli_ir_with_any_line_missing(folder: Path) -> None:
    """An edited file may be wrong in any way; it is compiled or refused."""
    for source in sorted(Path("ir").glob("*.mlir"))[7:19:2]:
        lines = source.read_text().splitlines(keepends=True)
        for number in range(0, len(lines), max(1, len(lines) // 8)):
            Path("ir/bad.mlir").write_text("".join(lines[:number] + lines[number + 1 :]))
            result = invoke("compile", "--from", "ir/bad.mlir", "-o", "out.cnb")
            assert result.exit_code in (0, 1), (source, lines[number], result.stderr)


# -- assembly ----------------------------------------------------------------------------------------------------------

ASSEMBLY: dict[str, tuple[Edit, str]] = {
    "unknown instruction": (lambda text: text.replace("  mac ", "  mca ", 1), r"line \d+"),
    "unknown field": (lambda text: text.replace("words=", "wrods=", 1), r"line \d+"),
    "number too large": (lambda text: re.sub(r"words=\d+", "words=99999999999", text, count=1), r"line \d+"),
    "no number": (lambda text: re.sub(r"words=\d+", "words=many", text, count=1), r"line \d+"),
    "twice": (lambda text: re.sub(r"(words=\d+)", r"\1 \1", text, count=1), r"line \d+"),
    "loop without end": (lambda text: text.replace("end", "", 1), "loop|end"),
    "no halt": (lambda text: re.sub(r"^halt.*\n", "", text, flags=re.MULTILINE), "halt"),
    "nothing": (lambda _: "", ""),
    "segment that is not there": (lambda text: text.replace("halt", "host segment=3\nhalt"), "segment 3"),
    "bytes": (lambda _: "\0\1\2", "line 1"),
}


@pytest.mark.parametrize("name", ASSEMBLY)
def test_cli_bad_assembly(name: str, folder: Path) -> None:
    edit, message = ASSEMBLY[name]
    text = Path("net.s").read_text()
    assert edit(text) != text
    Path("bad.s").write_text(edit(text))
    said = refuses(folder, "asm", "bad.s", "--data", "net.cnb", "-o", "new.cnb")
    assert "bad.s" in said
    assert re.search(message, said), said


def test_cli_assembly_that_is_no_file(folder: Path) -> None:
    for source in ("missing.s", folder, "net.cnb"):
        assert str(source) in refuses(folder, "asm", source, "--data", "net.cnb", "-o", "new.cnb")


def test_cli_program_that_does_nothing(folder: Path) -> None:
    """Legal, but no output is ever written."""
    Path("idle.s").write_text("halt\n")
    done("asm", "idle.s", "--data", "net.cnb", "-o", "idle.cnb")
    said = refuses(folder, "run", "idle.cnb", "--output", "y.npz")
    assert "never writes all of output 'y'" in said


def test_cli_program_that_traps(folder: Path) -> None:
    """The message names the instruction; nothing is written."""
    text = Path("net.s").read_text()
    Path("trap.s").write_text(re.sub(r"taps=\d+", "taps=4000", text, count=1))
    done("asm", "trap.s", "--data", "net.cnb", "-o", "trap.cnb")
    said = refuses(folder, "run", "trap.cnb", "--output", "y.npz", "--stats", "s.json")
    assert re.search(r"instruction \d+ \(word 0x[0-9a-f]+\)", said), said


def test_cli_long_messages_are_cut(folder: Path) -> None:
    name = "n" * 200
    assert len(refuses(folder, "compile", f"{name}/{name}/{name}.onnx")) < 500
    np.savez("long.npz", **{f"{i}{name}": np.float32(1) for i in range(9)})
    assert len(refuses(folder, "run", "net.cnb", "--input", "long.npz")) < 500


def test_cli_lenet_is_not_calibrated_by_another_net(folder: Path) -> None:
    said = refuses(folder, "compile", LENET, "--batch", 1, "--calibrate", "x.npz")
    assert "no array 'input'; it has x" in said
