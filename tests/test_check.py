"""`cnncc check`: all findings at once, by name; it finds something blocking exactly where `compile` refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from cli_cases import CALIBRATION, DIGITS, SAMPLES, build, conv_model, done, invoke, noise, save, snapshot
from examples import examples
from onnx import helper
from test_cli_bad_input import MODELS
from test_cli_models import CASES, REFUSED
from test_cli_verify import network

from cnncc.arch.model import PRESETS
from cnncc.binary.container import load
from cnncc.binary.counters import program_stats
from cnncc.driver.check import SCHEMA, check
from cnncc.driver.sources import CompileOptions
from cnncc.errors import SEVERITIES, Finding, Refusal, Refusals
from cnncc.isa.table import BY_NAME
from cnncc.passes._onnx.windows import MOST_SIDE
from cnncc.util import terminal

pytestmark = pytest.mark.usefixtures("short_searches")

node: Any = helper.make_node
PRESET = (PRESETS / "spatial-8x8.toml").read_text()


def array_file(folder: Path, **sizes: int) -> Path:
    """The preset with other numbers; of `words` the GLB's."""
    text = PRESET
    for name, size in sizes.items():
        head, tail = text[: text.index("[glb]")], text[text.index("[glb]") :]
        pattern = rf"\b{name} = \d+"
        text = (
            head + re.sub(pattern, f"{name} = {size}", tail)
            if name == "words"
            else re.sub(pattern, f"{name} = {size}", head) + tail
        )
    path = folder / "array.toml"
    path.write_text(text)
    return path


def blocking(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "blocking"]


def many_problems() -> onnx.ModelProto:
    """A symbolic batch, weights that are NaN, a long kernel row, a wide pool, and an operator of nobody's."""
    damaged = noise(1, 5, 3, 3, 3)
    damaged[1, 2, 0, 1] = np.nan
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="damaged", pads=[1, 1, 1, 1]),
        node("Conv", ["a", "w2"], ["b"], name="long", pads=[0, 6, 0, 6]),
        node("GlobalAveragePool", ["b"], ["p"], name="wide"),
        node("Conv", ["b", "w3"], ["c"], name="short"),
    ]
    arrays = {"w1": damaged, "w2": noise(2, 4, 5, 1, 13), "w3": noise(3, 2, 4, 1, 1)}
    model = build(nodes, {"x": ("N", 3, 19, 17)}, ["p", "c"], arrays)
    model.graph.node.append(node("Whirl", ["c"], ["y"], name="whirl", domain="no.such"))
    model.graph.output[1].name = "y"
    model.opset_import.append(helper.make_opsetid("no.such", 1))
    return model


def test_check_finds_all_of_several_problems(tmp_path: Path) -> None:
    path = save(many_problems(), tmp_path / "net.onnx")
    arch = array_file(tmp_path, ifmap_words=12, words=20, psum_bits=16)
    before = snapshot(tmp_path)
    result = invoke("check", path, "--arch", arch, "--json")
    assert (result.exit_code, snapshot(tmp_path)) == (1, before)
    found = json.loads(result.stdout)
    stopping = [f for f in found["findings"] if f["severity"] == "blocking"]
    budgets = {f["where"]: f["value"] for f in stopping if f["resource"] == "glb.words"}
    assert set(budgets) == {"damaged", "long", "wide"}
    assert all(f["limit"] == 20 < f["value"] < 400 for f in stopping if f["resource"] == "glb.words")
    assert {(f["where"], f["resource"], f["value"], f["limit"]) for f in stopping if f["resource"] != "glb.words"} == {
        ("initializer 'w1'", "", None, None),
        ("Whirl node 'whirl'", "", None, None),
        ("wide", "psum_bits", 19 * 17 * 127, (1 << 15) - 1),
    }  # fmt: skip


def test_check_of_weights_without_model_or_array(tmp_path: Path) -> None:
    for args, where in ((["none.onnx"], ""), ([save(conv_model(), tmp_path / "n.onnx"), "--arch", "none"], "--arch")):
        result = invoke("check", *args, "--json")
        (finding,) = json.loads(result.stdout)["findings"]
        assert (result.exit_code, finding["severity"], finding["where"]) == (1, "blocking", where)
        assert "none" in finding["what"]


def test_check_prints_lines_in_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(many_problems(), tmp_path / "net.onnx")
    arch = array_file(tmp_path, words=20)
    monkeypatch.setattr(terminal, "terminal_width", lambda: 400)
    lines = invoke("check", path, "--arch", arch).stdout.splitlines()
    start = lines.index("blocking") + 1
    group = lines[start : lines.index("costly")]
    assert [line.split("  ")[1] for line in group] == [
        "initializer 'w1'", "Whirl node 'whirl'", "damaged", "long", "wide",
    ]  # fmt: skip
    texts = ("contains NaN", "operator domain", "buffers of", "buffers of", "buffers of")
    assert len({line.index(text) for line, text in zip(group, texts, strict=True)}) == 1
    assert re.fullmatch(r".*net.onnx does not compile: 5 blocking, \d+ costly, \d+ notes?", lines[-1])


def test_check_of_a_model_that_computes_nothing(tmp_path: Path) -> None:
    """No layer is left to be counted."""
    model = conv_model()
    del model.graph.output[:]
    assert not agree(save(model, tmp_path / "net.onnx"), tmp_path)


def test_check_compile_says_all_that_a_step_refuses(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="one", pads=[0, 6, 0, 6]),
        node("Conv", ["a", "w2"], ["b"], name="fits"),
        node("Conv", ["b", "w3"], ["y"], name="two", pads=[0, 7, 0, 7]),
    ]
    arrays = {"w1": noise(1, 4, 3, 1, 13), "w2": noise(2, 5, 4, 3, 3), "w3": noise(3, 2, 5, 1, 15)}
    path = save(build(nodes, {"x": (1, 3, 9, 7)}, ["y"], arrays), tmp_path / "net.onnx")
    result = invoke("compile", path, "--arch", array_file(tmp_path, words=20), "-o", tmp_path / "net.cnb")
    assert result.exit_code == 1 and result.stdout == "" and not (tmp_path / "net.cnb").exists()
    summary, *lines = result.stderr.splitlines()
    assert summary == "cnncc: nest-assign-mapping: 3 problems"
    assert [line.split()[:2] for line in lines] == [[name, "glb.words"] for name in ("one", "fits", "two")]


# -- check and compile -------------------------------------------------------------------------------------------------


def agree(path: Path, folder: Path, *options: object) -> bool:
    """Whether a model compiles, which `check` must know."""
    compiled = invoke("compile", path, "-o", folder / "out.cnb", *options)
    checked = invoke("check", path, "--json", *options)
    assert compiled.exit_code in (0, 1), compiled.stderr
    assert checked.exit_code == compiled.exit_code, (compiled.stderr, checked.stdout, checked.stderr)
    assert json.loads(checked.stdout)["compiles"] == (compiled.exit_code == 0)
    return compiled.exit_code == 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_check_agrees_with_compile_on_models_of_unusual_form(case: Any, tmp_path: Path) -> None:
    """All of them compile (tests/test_cli_models.py)."""
    done("check", save(case(), tmp_path / "net.onnx"))


def test_check_agrees_with_compile_on_what_is_refused(tmp_path: Path) -> None:
    for model, _ in REFUSED:
        assert not agree(save(model, tmp_path / "net.onnx"), tmp_path)
    for content, _ in MODELS.values():
        (tmp_path / "bad.onnx").write_bytes(content)
        assert not agree(tmp_path / "bad.onnx", tmp_path)


def test_check_agrees_with_compile_on_the_samples(tmp_path: Path) -> None:
    """Of each network; of each kind of quantised model. That all of them compile other tests see."""
    names = ("mnist", "resnet20", *(path.stem for path in (SAMPLES / "models").glob("lenet*.onnx")), "depthwise")
    for name in names:
        done("check", SAMPLES / "models" / f"{name}.onnx", "--batch", 1, "--calibrate", CALIBRATION)
    mnist = SAMPLES / "models" / "mnist.onnx"
    assert not agree(mnist, tmp_path, "--batch", 1, "--calibrate", tmp_path / "none.npz")


def test_check_of_calibration_data_and_operands_that_do_not_fit(tmp_path: Path) -> None:
    path = save(conv_model(), tmp_path / "net.onnx")
    narrow = tmp_path / "narrow.toml"
    narrow.write_text(PRESET.replace("operand_bits = 16", "operand_bits = 8"))
    bad = {
        "name": {"z": noise(1, 1, 3, 11, 7)},
        "shape": {"x": noise(1, 1, 3, 11, 8)},
        "NaN": {"x": noise(1, 1, 3, 11, 7) * np.nan},
    }
    for arrays in bad.values():
        np.savez(tmp_path / "data.npz", **arrays)
        options = ["--calibrate", tmp_path / "data.npz", "--arch", narrow, "--precision", "int16"]
        assert not agree(path, tmp_path, *options[:2])
        result = invoke("check", path, "--json", *options)
        found = [f for f in json.loads(result.stdout)["findings"] if f["severity"] == "blocking"]
        assert [f["where"] for f in found][0] == "--precision" and len(found) == 2


def random_model(rng: np.random.Generator) -> onnx.ModelProto:
    """One to three layers; in some a kernel row, a weight or an input that cannot be taken."""
    channels, nodes, arrays = int(rng.integers(1, 9)), [], {}
    value, (h, w) = "x", (int(rng.integers(9, 16)), int(rng.integers(9, 16)))
    dims: list[int | str] = ["N" if rng.random() < 0.1 else 1, channels, h, w]
    for i in range(rng.integers(1, 4)):
        match rng.integers(5):
            case 0:
                nodes.append(node("MaxPool", [value], [f"v{i}"], name=f"n{i}", kernel_shape=[2, 2], pads=[1, 1, 0, 0]))
            case 1:
                nodes.append(node("GlobalAveragePool", [value], [f"v{i}"], name=f"n{i}"))
            case 2:
                nodes.append(node(["Sin", "Sigmoid"][rng.integers(2)], [value], [f"v{i}"], name=f"n{i}"))
            case _:
                k, s = int(rng.integers(1, 9)), int(rng.choice([1, 3, 3, 7]))
                nodes.append(node("Conv", [value, f"w{i}"], [f"v{i}"], name=f"n{i}", pads=[1, s // 2, 1, s // 2]))
                arrays[f"w{i}"] = rng.standard_normal((k, channels, 3, s)).astype(np.float32)
                arrays[f"w{i}"][0, 0, 0, 0] *= np.nan if rng.random() < 0.05 else 1
                channels = k
        value = f"v{i}"
    return build(nodes, {"x": dims}, [value], arrays)


NETWORKS = examples(8)  # of a part


@pytest.mark.parametrize("part", range(2))
def test_check_agrees_with_compile_on_random_models(part: int, tmp_path: Path) -> None:
    rng, outcomes = np.random.default_rng(part), []
    for _ in range(NETWORKS):
        sizes = {
            "ifmap_words": rng.choice([3, 12, 64]),
            "words": rng.choice([60, 2000, 65536]),
            "psum_bits": rng.choice([16, 32]),
        }
        arch = array_file(tmp_path, **{name: int(size) for name, size in sizes.items()})
        path = save(random_model(rng), tmp_path / "net.onnx")
        outcomes.append(agree(path, tmp_path, "--arch", arch))
    assert {True, False} == set(outcomes)


# -- what things cost --------------------------------------------------------------------------------------------------


def test_check_predicts_the_cycles_of_the_array(tmp_path: Path) -> None:
    """Those that the interpreter counts, of macro-instructions of layers that leave PEs idle, and of the program."""
    arch = array_file(tmp_path, rows=14, cols=15)
    for path in (save(network(), tmp_path / "net.onnx"), SAMPLES / "models" / "mnist.onnx"):
        findings = check(path, CompileOptions(str(arch), batch=1 if path.name == "mnist.onnx" else None))
        done(
            "compile",
            path,
            "--arch",
            arch,
            "-o",
            tmp_path / "net.cnb",
            *(["--batch", 1] if path.name == "mnist.onnx" else []),
        )
        counters = program_stats(load(tmp_path / "net.cnb"))
        layers = {label: c for label, c in counters["layers"].items() if c["macs"] or c["max"] or c["add"]}
        used = {
            label: 100 * (c["macs"] + c["max"] + c["add"]) / (c["cycles"]["compute"] * 14 * 15)
            for label, c in layers.items()
        }
        (cycles,) = [f.value for f in findings if f.resource == "cycles"]
        assert cycles == counters["cycles"]["total"]
        idle = {f.where: f.value for f in findings if f.resource == "% of PEs used"}
        assert idle == {label: pytest.approx(value) for label, value in used.items() if value < 50}
        assert idle


def test_check_names_the_cause_of_idle_pes(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="thin"),
        node("Conv", ["z", "w2"], ["b"], name="grouped", group=16),
        node("GlobalAveragePool", ["b"], ["p"], name="pool"),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w3"], ["y"], name="few"),
    ]
    arrays = {"w1": noise(1, 2, 1, 1, 1), "w2": noise(2, 32, 4, 3, 3), "w3": noise(3, 32, 10)}
    path = save(build(nodes, {"x": (1, 1, 8, 8), "z": (1, 64, 5, 5)}, ["a", "y"], arrays), tmp_path / "net.onnx")
    causes = {
        f.where: f.what for f in check(path, CompileOptions("spatial-8x8", slack=0.0)) if f.resource == "% of PEs used"
    }
    assert causes["thin"].startswith("macro-instructions of 2 steps take 4 cycles more: 1 x 1x1 terms a sum")
    assert causes["grouped"].startswith("2 x 3x3 outputs (k x h x w) of a group for 64 PEs: too few")
    assert causes["few"].startswith("macro-instructions of 4 steps take 4 cycles more: 32 x 1x1 terms a sum")


def test_check_counts_the_lanes_that_operations_can_use(tmp_path: Path) -> None:
    """On 16 PEs of 16 lanes: sums of 3 terms leave 13 lanes idle, and a pool does one operation a PE (ROOF-1)."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="thin"),
        node("MaxPool", ["a"], ["y"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    path = save(build(nodes, {"x": (1, 3, 32, 32)}, ["y"], {"w": noise(1, 32, 3, 1, 1)}), tmp_path / "net.onnx")
    idle = [f for f in check(path, CompileOptions("cbrain-16-16")) if f.resource == "% of PEs used"]
    assert [(finding.where, finding.value) for finding in idle] == [("thin", 100 * 3 / 16)]
    assert idle[0].what.startswith("3 of the 16 lanes of a PE work: 3 x 1x1 terms a sum (c x r x s) (")


def test_check_leaves_out_elementwise_layers_of_the_array_s_cycles(tmp_path: Path) -> None:
    """A sum that moves in blocks has a mapping, but no PE works for it: all cycles of the array are of the pool."""
    nodes = [
        node("MaxPool", ["x"], ["a"], name="pool", kernel_shape=[1, 1]),
        node("Sum", ["x", "z", "x"], ["y"], name="sum"),
    ]
    path = save(build(nodes, dict.fromkeys(("x", "z"), (1, 1, 30, 11)), ["a", "y"]), tmp_path / "net.onnx")
    options = CompileOptions(str(array_file(tmp_path, words=300)), groups="none")
    found = {finding.where: finding for finding in check(path, options) if finding.resource == "% of PEs used"}
    assert [*found] == ["pool"] and found["pool"].what.endswith(" (100.0 % of the array's cycles)")


def test_check_notes_idle_pes_of_few_cycles(tmp_path: Path) -> None:
    """Three outputs of 16 terms leave most of 64 PEs idle, in a thousandth of the array's cycles."""
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="large", pads=[1, 1, 1, 1]),
        node("GlobalMaxPool", ["a"], ["p"], name="pool"),
        node("Conv", ["p", "w2"], ["y"], name="few"),
    ]
    arrays = {"w1": noise(1, 16, 16, 3, 3), "w2": noise(2, 3, 16, 1, 1)}
    path = save(build(nodes, {"x": (1, 16, 32, 32)}, ["y"], arrays), tmp_path / "net.onnx")
    findings = {
        each.where: each for each in check(path, CompileOptions("spatial-8x8")) if each.resource == "% of PEs used"
    }
    assert (findings["few"].severity, findings["few"].what) == ("note", "less than 1 % of the array's cycles")
    assert findings["few"].value < 50


def two_convolutions(folder: Path) -> Path:
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="first", pads=[1, 1, 1, 1]),
        node("Conv", ["a", "w2"], ["y"], name="second", pads=[1, 1, 1, 1]),
    ]
    arrays = {"w1": noise(1, 16, 8, 3, 3), "w2": noise(2, 8, 16, 3, 3)}
    return save(build(nodes, {"x": (1, 8, 16, 16)}, ["y"], arrays), folder / "net.onnx")


def test_check_blames_the_glb_where_outputs_would_divide(tmp_path: Path) -> None:
    """8 x 16x16 outputs fill 8 x 8 PEs; what is staged in a small GLB does not."""
    path = two_convolutions(tmp_path)
    causes = {
        f.where: f.what
        for f in check(path, CompileOptions(str(array_file(tmp_path, words=240))))
        if f.resource == "% of PEs used"
    }
    (outputs,) = re.findall(
        r"^8 x 16x16 outputs \(k x h x w\) for 64 PEs: a block in the GLB has (\d+) \(", causes["second"]
    )
    assert int(outputs) < 64
    assert not any(f.resource == "% of PEs used" for f in check(path, CompileOptions("spatial-8x8")))


def test_check_blames_no_blocks_that_have_outputs_for_all_pes(tmp_path: Path) -> None:
    """Blocks move through the GLB, but 11 rows on 8 and 5 channels on 8 are what leaves PEs idle."""
    nodes, arrays = [node("Conv", ["x", "w"], ["y"], name="odd")], {"w": noise(1, 5, 32, 3, 3)}
    path = save(build(nodes, {"x": (1, 32, 13, 13)}, ["y"], arrays), tmp_path / "net.onnx")
    arch = array_file(tmp_path, words=4_000)
    arch.write_text(arch.read_text().replace("south = true", "south = false"))
    said = {finding.where: finding.what for finding in check(path, CompileOptions(str(arch)))}
    assert said["odd"].startswith("5 x 11x11 outputs (k x h x w) for 64 PEs: do not divide evenly (")
    assert said["GLB"] == "1 of 1 layer moves activations through it in blocks"


def test_check_counts_cycles_of_loads_commits_and_transfers(tmp_path: Path) -> None:
    done("compile", two_convolutions(tmp_path), "-o", tmp_path / "net.cnb")
    (found,) = [f for f in check(tmp_path / "net.onnx", CompileOptions("spatial-8x8")) if f.resource == "cycles"]
    cycles = program_stats(load(tmp_path / "net.cnb"))["cycles"]
    assert found.value == cycles["total"] > cycles["compute"]


@pytest.mark.usefixtures("resident_ends")
def test_check_and_compile_count_the_layers_that_move_in_blocks(tmp_path: Path) -> None:
    """What 6,000 words do not hold moves in blocks, 3x3x3 outputs do not; compiled on from a dump, too."""
    nodes = [
        node("Conv", ["x", "w1"], ["y"], name="large", pads=[1, 1, 1, 1]),
        node("Conv", ["z", "w2"], ["v"], name="small"),
    ]
    arrays = {"w1": noise(1, 16, 8, 3, 3), "w2": noise(2, 3, 4, 3, 3)}
    path = save(build(nodes, {"x": (1, 8, 16, 16), "z": (1, 4, 5, 5)}, ["y", "v"], arrays), tmp_path / "net.onnx")
    for words, blocks in ((6_000, 1), (40_000, 0)):
        arch, ir = array_file(tmp_path, words=words), tmp_path / str(words)
        said = [f"{blocks} of 2 layers move activations through it in blocks"] if blocks else []
        assert [f.what for f in check(path, CompileOptions(str(arch))) if f.where == "GLB"] == said
        options = ["--arch", arch, "-o", tmp_path / "net.cnb"]
        printed = [done("compile", path, "--dump-dir", ir, *options).stdout]
        dumps = [dump for dump in sorted(ir.glob("*.mlir")) if "func.func" in dump.read_text()]
        printed += [done("compile", "--from", dump, *options).stdout for dump in dumps[::4]]
        assert [re.findall("^  GLB      (.*)", text, re.MULTILINE) for text in printed] == [said] * len(printed)
        (array,) = ir.glob("*-nest-to-array.mlir")
        layers = array.read_text().split("array.layer ")[1:]
        assert sum("view output.dram" in layer or "view ifmap.dram" in layer for layer in layers) == blocks


def test_check_says_which_nodes_the_host_runs(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="on the array"),
        node("Conv", ["a", "w2", "s"], ["b"], name="computed bias"),
        node("Softmax", ["b"], ["y"], name="soft"),
    ]
    nodes.insert(0, node("GlobalAveragePool", ["x"], ["g"], name="g"))
    nodes.insert(1, node("Flatten", ["g"], ["t"], name="t"))
    nodes.insert(2, node("Squeeze", ["t"], ["s"], name="s"))
    arrays = {"w": noise(1, 5, 3, 3, 3), "w2": noise(2, 3, 5, 2, 2)}
    path = save(build(nodes, {"x": (1, 3, 7, 9)}, ["y"], arrays), tmp_path / "net.onnx")
    shares = {
        f.where: f.value
        for f in check(path, CompileOptions("spatial-8x8"))
        if f.resource == "% of MACs" and f.severity == "costly"
    }
    macs = 5 * 5 * 7 * 27, 3 * 4 * 6 * 20
    assert shares["Conv node 'computed bias'"] == pytest.approx(100 * macs[1] / sum(macs))
    assert shares["Softmax node 'soft'"] == 0
    (share,) = [
        f.value
        for f in check(path, CompileOptions("spatial-8x8"))
        if f.resource == "% of MACs" and f.severity == "note"
    ]
    assert share == pytest.approx(100 * macs[0] / sum(macs))


def test_check_says_what_of_unknown_shape_the_host_runs(tmp_path: Path) -> None:
    """ONNX knows the shape of no result behind an operator of another domain."""
    text = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[1, 3, 7, 9] x) => (float[a, b, c, d] y) {
          g = com.microsoft.FastGelu (x)
          y = MaxPool <kernel_shape = [2, 2]> (g)
        }"""
    found = check(save(onnx.parser.parse_model(text), tmp_path / "net.onnx"), CompileOptions("spatial-8x8"))
    (reason,) = [each.text for each in found if each.where.startswith("MaxPool")]
    assert reason == "runs on the host: input 0 is of unknown shape, not a tensor of f32 of known shape"


def test_check_says_of_what_type_the_host_runs(tmp_path: Path) -> None:
    """Whatever the shapes, so that many nodes have one line."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
        g (float[1, 3, 7, 9] x) => (float[a, b, c, d] y) {
          g = Cast <to = 11> (x)
          r = MaxPool <kernel_shape = [2, 2]> (g)
          s = MaxPool <kernel_shape = [2, 2]> (r)
          y = Cast <to = 1> (s)
        }"""
    found = check(save(onnx.parser.parse_model(text), tmp_path / "net.onnx"), CompileOptions("spatial-8x8"))
    reasons = [each.text for each in found if each.where.startswith("MaxPool")]
    assert reasons == ["runs on the host: input 0 has elements of type f64, not f32"] * 2


@pytest.mark.parametrize(
    ("shape", "op", "image"),
    [
        ((1, 1, 2, 32768), "Relu", "input 0 is 2x32768"),
        ((1, 2, 32768), "Relu", "input 0 is 32768"),
        ((1, 1, 3, 32766), "MaxPool", "input 0 with its padding is 4x32768"),
        ((1, 1, 3, 32766), "Relu", None),
        ((1, 32768), "Relu", None),
    ],
)
def test_what_has_too_many_rows_or_columns_for_instructions_is_on_the_host(
    shape: tuple[int, ...], op: str, image: str | None, tmp_path: Path
) -> None:
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 0, 1], "strides": [1, 5]} if op == "MaxPool" else {}
    path = save(build([node(op, ["x"], ["y"], name="n", **attributes)], {"x": shape}, ["y"], {}), tmp_path / "net.onnx")
    found = check(path, CompileOptions("spatial-8x8"))
    assert not [f for f in found if f.severity == "blocking"]
    hosts = [f.text for f in found if f.where == f"{op} node 'n'"]
    assert hosts == ([f"runs on the host: {image}: images have at most 32767 rows and columns"] if image else [])


def test_the_greatest_row_and_column_are_those_of_the_fields() -> None:
    fields = [f for spec in BY_NAME.values() for f in spec.fields if f.name in ("y", "x") and f.kind == "int"]
    assert {f.to_bits(MOST_SIDE) for f in fields} == {MOST_SIDE}
    for f in fields:
        with pytest.raises(ValueError, match="is outside"):
            f.to_bits(MOST_SIDE + 1)


def test_an_identity_that_gives_a_value_its_shape_stays(tmp_path: Path) -> None:
    """Behind an operator of another domain the shape of the output alone is known."""
    text = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[1, 3, 7, 9] x) => (float[1, 3, 7, 9] y) {
          g = com.microsoft.FastGelu (x)
          y = Identity (g)
        }"""
    path = save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    done("compile", path, "-o", tmp_path / "net.cnb")
    assert "[1, 3, 7, 9]" in done("run", tmp_path / "net.cnb").stdout


@pytest.mark.parametrize(("function", "bits_off"), [(None, 0.15), ("Tanh", 0.35)])
def test_check_measures_bits_that_psums_cost(function: str | None, bits_off: float, tmp_path: Path) -> None:
    """Positive weights that add up: 32 of them, or one. Their operand is the network's, or what a table gives.

    All values have one made-up range. A Tanh of it does not reach its ends.
    """
    given = "t" if function else "x"
    nodes = [node("Conv", [given, "w1"], ["a"], name="long"), node("Conv", [given, "w2"], ["y"], name="short")]
    nodes = [*([node(function, ["x"], ["t"])] if function else []), *nodes]
    arrays = {"w1": np.ones((3, 32, 5, 5), np.float32), "w2": np.eye(3, 32, dtype=np.float32).reshape(3, 32, 1, 1)}
    path = save(build(nodes, {"x": (1, 32, 9, 7)}, ["a", "y"], arrays), tmp_path / "net.onnx")
    wide = array_file(tmp_path, psum_bits=48)
    assert not [f for f in check(path, CompileOptions(str(wide))) if f.resource == "operand bits"]
    for bits in (24, 32):
        found = {
            f.where: f
            for f in check(path, CompileOptions(str(array_file(tmp_path, psum_bits=bits))))
            if f.resource == "operand bits"
        }
        inputs, weights = map(float, str(found["long"].value).split(" x "))
        # 800 equal weights and the greatest input fill the psum: 2^inputs * 2^weights * 800 / 4 = 2^(bits - 1).
        assert inputs + weights == pytest.approx(bits + 1 - np.log2(800), abs=bits_off)
        assert found["long"].limit == "16"


def test_check_says_when_calibration_is_made_up(tmp_path: Path) -> None:
    path = SAMPLES / "models" / "lenet.onnx"
    made_up = [f for f in check(path, CompileOptions(batch=1)) if f.where == "--calibrate"]
    assert [f.severity for f in made_up] == ["costly"] and "random inputs" in made_up[0].what
    assert not [f for f in check(path, CompileOptions(calibrate=DIGITS, batch=1)) if f.where == "--calibrate"]


def test_check_notes_what_was_folded(tmp_path: Path) -> None:
    found = check(save(network(), tmp_path / "net.onnx"), CompileOptions())
    notes = {f.where: f.what for f in found if f.severity == "note"}
    assert notes["onnx-fold-batch-norm"] == "folded or removed: 1 BatchNormalization"
    assert notes["onnx-fold-pad"] == "folded or removed: 1 Pad"
    assert notes["onnx-remove-identity"] == "folded or removed: 1 Identity"


# -- the form of findings ----------------------------------------------------------------------------------------------


def test_check_json_is_as_described(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "check.md").read_text()
    described = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    found = json.loads(invoke("check", save(many_problems(), tmp_path / "net.onnx"), "--json").stdout)
    assert found["schema"] == SCHEMA == 1
    assert described == set(found) | set(found["findings"][0])
    for finding in found["findings"]:
        assert finding["severity"] in SEVERITIES
        assert all(isinstance(finding[key], str) for key in ("what", "where", "resource", "help"))
        assert all(isinstance(finding[key], (int, float, str, type(None))) for key in ("value", "limit"))
    assert found["count"] == {s: sum(f["severity"] == s for f in found["findings"]) for s in SEVERITIES}


def test_check_refusals_keep_their_parts() -> None:
    part = Finding("too wide", resource="rows", value=3, limit=2)
    refusals = Refusals()
    refusals.raise_any()
    with refusals.kept("a"):
        try:
            raise Refusal("rows = 2 is too small", part)
        except Refusal as inner:
            raise Refusal(f"layer a: {inner}") from inner
    with pytest.raises(Refusal) as single:
        refusals.raise_any("pass")
    assert single.value.lines == ["layer a: rows = 2 is too small"]
    with refusals.kept("bcd"):
        raise Refusal("no such\nthing")
    with pytest.raises(Refusal) as several:
        refusals.raise_any("pass")
    assert several.value.lines == [
        "pass: 2 problems", "  a    rows 3, limit 2  too wide", "  bcd                   no such thing",
    ]  # fmt: skip
    assert several.value.findings[0].where == "a" and part.where == ""


def test_check_and_estimate_say_the_same_numbers() -> None:
    """Of the network the cycles, of an idle layer the utilisation of its compute cycles."""
    options = (SAMPLES / "models" / "lenet.onnx", "--batch", "1", "--calibrate", CALIBRATION)
    found = json.loads(done("check", *options, "--json").stdout)["findings"]
    estimate = json.loads(done("estimate", *options, "--json").stdout)
    (cycles,) = [each for each in found if each["resource"] == "cycles"]
    assert cycles["value"] == estimate["cycles"]["total"]
    used = {name: f"{100 * share:.1f} %" for name, share in estimate["utilisation"].items()}
    assert cycles["what"] == f"predicted; utilisation {used['compute']} of compute, {used['total']} of total cycles"
    idle = {each["where"]: each["value"] for each in found if each["resource"] == "% of PEs used"}
    assert idle
    for label, share in idle.items():
        if estimate["layers"][label]["macs"]:
            assert share == pytest.approx(100 * estimate["layers"][label]["utilisation"]["compute"])


def test_what_many_host_segments_have_in_common_is_one_line(tmp_path: Path) -> None:
    """Each Sin is a segment of its own; one is with another node, whose name has the marks between reasons in it."""
    nodes, names = [], "x"
    for at in range(6):
        nodes += [
            node("Conv", [names, "w"], [f"c{at}"], name=f"c{at}"),
            node("Sin", [f"c{at}"], [f"s{at}"], name=f"s{at}"),
        ]
        names = f"s{at}"
    nodes.append(node("Cos", ["s5"], ["y"], name="a;b: 'c'"))
    net = save(build(nodes, {"x": (1, 2, 4, 4)}, ["y"], {"w": noise(1, 2, 2, 1, 1)}), tmp_path / "net.onnx")
    lines = done("compile", net, "-o", tmp_path / "net.cnb").stdout.splitlines()
    assert [line.strip() for line in lines if line.startswith("  host")] == [
        "host     6 Sin nodes: the array has no such operator: s0, s1, s2, s3, s4 and 1 more",
        "host     Cos node 'a;b: 'c'': the array has no such operator",
    ]


@pytest.mark.parametrize("number", [5, 6])
def test_what_many_places_have_in_common_is_one_line(number: int, tmp_path: Path) -> None:
    """In the text; JSON has each by itself."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["v0"], name="c")]
    nodes += [helper.make_node("Sin", [f"v{i}"], [f"v{i + 1}"], name=f"s{i}") for i in range(number)]
    net = save(build(nodes, {"x": (1, 2, 4, 4)}, [f"v{number}"], {"w": noise(1, 3, 2, 1, 1)}), tmp_path / "net.onnx")
    printed = done("check", net).stdout
    one_line = "runs on the host: the array has no such operator: s0, s1, s2, s3, s4 and 1 more"
    assert (one_line in " ".join(printed.split())) == ("6 Sin nodes" in printed) == (number == 6)
    assert printed.count("Sin node 's") == (0 if number == 6 else 5)
    compiled = " ".join(done("compile", net, "-o", tmp_path / "net.cnb").stdout.split())
    assert ("host 6 Sin nodes: the array has no such operator: s0, s1, s2, s3, s4 and 1 more" in compiled) == (
        number == 6
    )
    assert compiled.count("Sin node 's") == (0 if number == 6 else 5)
    findings = json.loads(done("check", net, "--json").stdout)
    places = [each["where"] for each in findings["findings"] if "runs on the host" in each["what"]]
    assert places == [f"Sin node 's{i}'" for i in range(number)]
    assert f"{findings['count']['costly']} costly" in printed
