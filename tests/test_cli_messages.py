"""Messages and warnings of options that do not go together, and of files of another model."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cli_cases import CALIBRATION, LENET, SAMPLES, conv_model, done, invoke, noise, refused, save
from test_cli_models import host_in_the_middle

from cnncc.binary.container import load
from cnncc.binary.isa_module import layers
from cnncc.driver.check import check
from cnncc.driver.sources import CompileOptions
from cnncc.mapping.mapping import Loop

pytestmark = pytest.mark.usefixtures("short_searches")


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the binary, its program as text, and the IR after every step."""
    folder = tmp_path_factory.mktemp("lenet")
    options = ["--batch", 1, "--calibrate", CALIBRATION]
    done("compile", LENET, *options, "-o", folder / "lenet.cnb", "--dump-dir", folder / "ir")
    done("disasm", folder / "lenet.cnb", "-o", folder / "lenet.s")
    return folder


def test_cli_from_warns_of_calibration_that_comes_too_late(tmp_path: Path) -> None:
    model, data = save(conv_model(), tmp_path / "net.onnx"), tmp_path / "data.npz"
    np.savez(data, x=noise(1, 2, 3, 11, 7))
    done("compile", model, "-o", tmp_path / "net.cnb", "--dump-dir", tmp_path / "ir")
    for path in sorted((tmp_path / "ir").glob("*.mlir")):
        result = done("compile", "--from", path, "--calibrate", data, "-o", tmp_path / "net.cnb")
        late = "cnn." in path.read_text()
        assert ("has no effect" in result.stderr) == late, path.name


def test_cli_from_prints_what_compile_prints_of_the_host(tmp_path: Path) -> None:
    path = save(host_in_the_middle(), tmp_path / "net.onnx")
    whole = done("compile", path, "-o", tmp_path / "net.cnb", "--dump-dir", tmp_path / "ir").stdout
    wanted = re.findall(r"^  (?:MACs|host) .*", whole, re.MULTILINE)
    assert len(wanted) == 3  # the MACs and two segments
    labels = [layer.label for layer, _ in layers(load(tmp_path / "net.cnb"))]
    moved = [label for label in labels if label.endswith((" operands", " results"))]
    assert moved == ["lrn operands", "lrn results", "sin operands", "sin results"]
    for dump in sorted((tmp_path / "ir").glob("*.mlir")):
        said = done("compile", "--from", dump, "-o", tmp_path / "on.cnb").stdout
        knows = "func.func" in dump.read_text()
        assert re.findall(r"^  (?:MACs|host) .*", said, re.MULTILINE) == (wanted if knows else []), dump.name


def test_cli_compile_warns_of_loops_that_a_mapping_replaces(lenet: Path, tmp_path: Path) -> None:
    """`compile` and `estimate` say it of loops by hand, and of no dump as it is."""
    by_hand, order = tmp_path / "by_hand.mlir", 'nest-permute{order="c,k,h,w,r,s" layer=c2}'
    done("opt", lenet / "ir" / "cnn-to-nest", "-p", order, "-o", by_hand)
    for command in (("compile", "--from", by_hand, "-o", tmp_path / "net.cnb"), ("estimate", by_hand)):
        (said,) = done(*command).stderr.splitlines()
        assert said.startswith("cnncc: warning: nest-assign-mapping: c2: its loops are not those of cnn-to-nest")
    done("disasm", tmp_path / "net.cnb", "-o", tmp_path / "net.s")
    assert (tmp_path / "net.s").read_text() == (lenet / "lenet.s").read_text()
    for dump in ("cnn-to-nest", "nest-assign-mapping", "nest-stage"):
        assert not done("compile", "--from", lenet / "ir" / dump, "-o", tmp_path / "net.cnb").stderr


def test_cli_asm_refuses_data_of_another_model(lenet: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.cnb"
    done("compile", save(conv_model(), tmp_path / "net.onnx"), "-o", other)
    source, target = lenet / "lenet.s", tmp_path / "out.cnb"
    said = refused("asm", source, "--data", other, "-o", target)
    assert re.search(r"lenet.s: line \d+: the data has no tensor 'input': it is of another model", said)
    moved = tmp_path / "moved.s"
    moved.write_text(
        re.sub(r"(desc .*base=)(\d+)(.*: input\.glb)", lambda m: f"{m[1]}{int(m[2]) + 1}{m[3]}", source.read_text())
    )
    said = refused("asm", moved, "--data", lenet / "lenet.cnb", "-o", target)
    assert re.search(r"'input.glb' is at word \d+ in the data, not at \d+", said)
    assert not target.exists()
    moved.write_text(re.sub(r";.*", "", moved.read_text()))  # nothing is said of the tensors: taken as it is
    done("asm", moved, "--data", lenet / "lenet.cnb", "-o", target)


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (("x",), "no dimension 'x': they are n, k, c, h, w, r, s"),
        (("k", 2, "diagonals"), "loop k: no axis 'diagonals': they are rows, cols, lanes"),
        (("k", 0), "loop k: no step 0: it is at least 1"),
    ],
)
def test_cli_mapping_says_what_is_wrong_with_a_loop(loop: tuple[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Loop(*loop)


def test_cli_says_what_a_file_of_another_kind_is(lenet: Path, tmp_path: Path) -> None:
    """One line that names the file and its kind, wherever the file is given instead of another."""
    text, dump, output = tmp_path / "README.md", lenet / "ir" / "00-import.mlir", ["-o", tmp_path / "net.cnb"]
    text.write_text("# words\n")
    (tmp_path / "net.mlir").write_bytes(LENET.read_bytes())
    assert f"{tmp_path / 'net.mlir'}: is no IR text" in refused("compile", "--from", tmp_path / "net.mlir", *output)
    for path in (text, LENET):
        assert f"{path}: expected a .mlir file" in refused("compile", "--from", path, *output)
    assert f"{LENET}: is no TOML" in refused("compile", LENET, "--arch", LENET, *output)
    assert f"{LENET}: is an ONNX model, no binary: compile it first" in refused("run", LENET)
    assert f"{dump}: is IR, no binary: compile it first" in refused("run", dump)
    for path in (text, LENET):
        said = refused("compile", LENET, "--batch", 1, "--calibrate", path, *output)
        assert said == f"cnncc: {path}: not an .npz file"


def test_cli_refuses_integers_of_odd_widths_in_ir(lenet: Path, tmp_path: Path) -> None:
    dump, changed = next((lenet / "ir").glob("00-*.mlir")), tmp_path / "net.mlir"
    assert "array<i64: " in dump.read_text()
    changed.write_text(dump.read_text().replace("array<i64: ", "array<i99: "))
    assert f"{changed}: Format not implemented for i99" in refused("opt", changed, "-p", "nest-normalise")
    assert "Format not implemented for i99" in refused("compile", "--from", changed, "-o", tmp_path / "net.cnb")


def test_cli_says_what_there_is_instead(lenet: Path, tmp_path: Path) -> None:
    """A name that is not there: the message has the nearest one, or all of them."""
    ir, output = lenet / "ir", ["-o", tmp_path / "net.cnb"]
    assert "No such command 'complie'. Did you mean 'compile'?" in invoke("complie", LENET).stderr
    said = refused("compile", "--from", ir / "nest-stages", *output)
    assert said == f"cnncc: {ir}/nest-stages: no dump of step 'nest-stages': did you mean 'nest-stage'?"
    assert "cnn-to-nest.mlir: is IR, not an ONNX model" in refused("compile", ir / "cnn-to-nest", *output)
    assert refused("compile", LENET, "--groups", "most", *output) == (
        "cnncc: --groups most: no such file: give auto, none, or a schedule file"
    )
    assert "-p: no pass 'nest-tyle': did you mean 'nest-tile'?" in refused("opt", ir / "cnn-to-nest", "-p", "nest-tyle")
    assert "-p: nest-tile has no option 'dims': did you mean 'dim'?" in refused(
        "opt", ir / "cnn-to-nest", "-p", "nest-tile{dims=h size=4}"
    )
    said = refused("atoms", ir / "cnn-to-nest", "--layer", "c2", "--macros", "100000:100001")
    assert re.search(r"layer 'c2' has (\d+) macro-instructions, counted from 0: there is no number 100000$", said)
    result = invoke("atoms", ir / "cnn-to-nest", "--layer", "c2", "--macros", "5:3")
    assert result.exit_code == 2 and "--macros 5:3: the first number is below the second" in result.stderr


def test_cli_compile_says_which_file_the_groups_are_from(lenet: Path, tmp_path: Path) -> None:
    (tmp_path / "groups.toml").write_text('[[group]]\nlayers = ["c1", "pool1"]\nrows = 2\n')
    stage, options = lenet / "ir" / "nest-stage", ["--groups", tmp_path / "groups.toml", "-o", tmp_path / "net.cnb"]
    said = done("compile", "--from", stage, *options).stdout
    assert "  groups   1 group as " in said


def test_cli_says_which_dumps_a_step_has(tmp_path: Path) -> None:
    for number in (14, 15):
        (tmp_path / f"{number}-nest-stage.mlir").write_text("builtin.module {}")
    said = refused("compile", "--from", tmp_path / "nest-stage", "-o", tmp_path / "net.cnb")
    assert said == (
        f"cnncc: {tmp_path}/nest-stage: there are two or more dumps of this step, 14-nest-stage.mlir and "
        "15-nest-stage.mlir: name one"
    )


def test_cli_warns_of_calibration_that_has_no_effect(tmp_path: Path) -> None:
    model = SAMPLES / "models" / "lenet_qoperator_u8.onnx"
    for options, said in (([], ""), (["--calibrate", CALIBRATION], "has no effect: the model is quantised already")):
        result = done("compile", model, "--batch", 1, *options, "-o", tmp_path / "net.cnb")
        assert said in result.stderr and bool(said) == bool(result.stderr)
    result = done("compile", LENET, "--batch", 1, "--calibrate", CALIBRATION, "-o", tmp_path / "net.cnb")
    assert "no effect" not in result.stderr
    found = check(model, CompileOptions(calibrate=CALIBRATION, batch=1))
    assert [f.severity for f in found if f.where == "--calibrate"] == ["note"]


def test_cli_warns_of_random_calibration_where_values_are(tmp_path: Path) -> None:
    assert "calibrated with random inputs" in done("compile", LENET, "--batch", 1, "-o", tmp_path / "net.cnb").stderr
    for command in ("estimate", "reuse", "atoms"):
        assert not done(command, LENET, "--batch", 1).stderr, command


def test_cli_messages_name_the_file_the_option_and_the_remedy(tmp_path: Path) -> None:
    model, nest = save(conv_model(), tmp_path / "net.onnx"), tmp_path / "nest.mlir"
    schedule, text = tmp_path / "fast.toml", tmp_path / "notes.md"
    schedule.write_text('objective = "speed"\n')
    text.write_text("# Notes\n")
    said = refused("compile", model, "--schedule", schedule, "-o", tmp_path / "net.cnb")
    assert said.startswith(f"cnncc: {schedule}: there is no objective 'speed'")
    for folder in (text, text / "inside"):
        said = refused("compile", model, "-o", tmp_path / "net.cnb", "--dump-dir", folder)
        assert said == f"cnncc: --dump-dir {folder}: {text} is no folder"
    done("compile", model, "--emit", "nest", "-o", nest)
    for passes, what in (
        ("nest-tile{dim=h,size=4}", "options of a pass stand with spaces between: Error parsing"),
        ("nest-tile{dim=h size=4", "a `}` is missing: Error parsing"),
        ("nest-tile{dim=h size=4 dim=w}", "nest-tile has the option 'dim' twice: give it once"),
        ('nest-normalise,nest-unroll{dim=h axis="a b" axis=rows}', "nest-unroll has the option 'axis' twice"),
        ("onnx-to-cnn{operand-bits=8 operand_bits=16}", "onnx-to-cnn has the option 'operand-bits' twice"),
        ("nest-tile{layer=/c1/Conv}", "text with other characters than letters, digits, - and _ stands in quotes"),
        ("nest-tile{size=abc}", "nest-tile: Incompatible types: given ('abc',)"),
        ("nest-assign-mapping{slack=0.1}", 'nest-assign-mapping: requires argument "arch"'),
    ):
        assert f"-p: {what}" in refused("opt", nest, "-p", passes)
    result = invoke("compile", model, "-o", f"{tmp_path / 'out'}/")
    assert result.exit_code == 2 and "is a folder: name a file in it" in result.stderr
    no_effect = "--slack has no effect with --objective energy"
    assert no_effect in refused("compile", model, "--objective", "energy", "--slack", 0.1)
    assert no_effect in invoke("check", model, "--objective", "energy", "--slack", 0.1).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fast.toml",
        "nest.mlir",
        "nest.npz",
        "net.onnx",
        "notes.md",
    ]


def test_cli_an_option_with_one_value_is_given_once() -> None:
    """click would take the last. Options that may be given several times, and flags, still may."""
    twice = invoke("estimate", LENET, "--arch", "spatial-4x4", "--arch", "spatial-8x8")
    assert twice.exit_code == 2
    assert "Error: --arch is given 2 times, but has one value\n" in twice.stderr
    valueless = invoke("estimate", LENET, "--arch")
    assert "estimate --help' for help." in valueless.stderr
    changes = ("--what-if", "bus.burst_words=1", "--what-if", "dram.words_per_cycle=4")
    done("estimate", LENET, "--batch", 1, "--json", "--json", *changes)


def test_cli_names_options_without_effect_as_they_are_written() -> None:
    for args, said in (
        (("estimate", "net.cnb", "--shape", "x=1"), "--shape has no effect: a binary is mapped"),
        (("verify", "net.onnx", "--prove", "--input", "x.npz"), "--prove runs no data: --input has no effect"),
        (("verify", "net.onnx", "--prove", "--min-sqnr", "3"), "--prove runs no data: --min-sqnr has no effect"),
    ):
        result = invoke(*args)
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_cli_edited_labels(lenet: Path, tmp_path: Path) -> None:
    """A layer without a label has one in tables. A name that two rows would have is refused."""
    dump = next((lenet / "ir").glob("*-nest-stage.mlir"))
    text, edited, binary = dump.read_text(), dump.with_name("edited.mlir"), tmp_path / "net.cnb"
    assert text.count('label "c1"') == text.count('label "c2"') == 1
    edited.write_text(text.replace('label "c1"', ""))
    done("compile", "--from", edited, "-o", binary)
    assert "counters are as predicted" in done("estimate", binary, "--check-counters").stdout
    for old, new in (('label "c1"', 'label "c2"'), ('label "c1"', 'label "total"')):
        edited.write_text(text.replace(old, new))
        assert "two rows of tables would be called" in refused("compile", "--from", edited, "-o", binary)
    edited.unlink()
