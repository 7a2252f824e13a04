"""`cnncc.api` does what the commands do: the same binaries, outputs, counters, warnings and messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import CALIBRATION, DIGITS, SAMPLES, build, done, invoke, noise, refused
from cli_cases import save as save_model
from onnx import TensorProto, helper

from cnncc.api import CompileOptions, Refusal, compile_model, estimate, load, program_stats, run, save
from cnncc.arch.model import arch_text, load_arch
from cnncc.util.progress import silent
from cnncc.weights import Array

MNIST, DEPTHWISE = SAMPLES / "models" / "mnist.onnx", SAMPLES / "models" / "depthwise.onnx"
GROUP = '[[group]]\nlayers = ["conv0", "pool1"]\nrows = 2\n'
CORES = {"arch": "tcpa-4x4", "parallel": "layers", "batch": 1}


def digits(path: Path, every: int = 1) -> dict[str, Array]:
    """Images, or smaller ones of some rows and columns."""
    with np.load(path) as file:
        return {"input": file["input"][:, :, ::every, ::every]}


def small_net() -> onnx.ModelProto:
    """Layers as those of the MNIST net, which the search for cores takes ten times as long for; 7 x 7 pixels."""
    node = helper.make_node
    nodes = [
        node("Conv", ["input", "w0"], ["c0"], "conv0", pads=[1, 1, 1, 1]),
        node("MaxPool", ["c0"], ["p1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        node("Flatten", ["c2"], ["f"], "flatten"),
        node("Gemm", ["f", "w3"], ["logits"], "fc"),
    ]
    weights = {"w0": noise(1, 4, 1, 3, 3), "w2": noise(2, 3, 4, 3, 3), "w3": noise(3, 27, 10)}
    return build(nodes, {"input": ("N", 1, 7, 7)}, ["logits"], weights)


def options_of(given: dict[str, Any]) -> list[str]:
    return [word for key, value in given.items() for word in (f"--{key}", str(value))]


@pytest.fixture(autouse=True)
def _short(short_searches: None) -> None:
    """Mappings are compared with each other alone."""


@pytest.mark.parametrize("given", [{"arch": "spatial-4x4", "batch": 1, "objective": "energy"}, CORES])
def test_api_does_what_the_commands_do(given: dict[str, Any], tmp_path: Path) -> None:
    net, written = tmp_path / "net.cnb", {name: tmp_path / name for name in ("outputs.npz", "stats.json")}
    model, every = (save_model(small_net(), tmp_path / "net.onnx"), 4) if given is CORES else (MNIST, 1)
    images, calibration = {"input": digits(DIGITS, every)["input"][:3]}, digits(CALIBRATION, every)
    np.savez(tmp_path / "images.npz", **images)
    np.savez(tmp_path / "calibration.npz", **calibration)
    done("compile", model, *options_of(given), "--calibrate", tmp_path / "calibration.npz", "-o", net)
    done("run", net, "--input", tmp_path / "images.npz", "-o", written["outputs.npz"], "--stats", written["stats.json"])

    binary = compile_model(str(model), CompileOptions(**given), calibration)
    save(binary, str(tmp_path / "own.cnb"))
    assert (tmp_path / "own.cnb").read_bytes() == net.read_bytes()
    with np.load(written["outputs.npz"]) as outputs:
        assert np.array_equal(run(load(str(net)), images)["logits"], outputs["logits"])
    frames = 3 if given is CORES else 1
    assert program_stats(binary, frames=frames) == json.loads(written["stats.json"].read_text())
    for source, of_source in ((model, given), (net, dict[str, Any]())):
        said = json.loads(done("estimate", source, *options_of(of_source), "--json").stdout)
        assert json.loads(json.dumps(estimate(str(source), CompileOptions(**of_source)))) == said


def test_api_takes_calibration_from_a_file_as_well() -> None:
    of_file = CompileOptions(batch=1, calibrate=CALIBRATION)
    binaries = [compile_model(MNIST, of_file), compile_model(MNIST, CompileOptions(batch=1), digits(CALIBRATION))]
    first, second = (binary.tensors for binary in binaries)
    assert first == second != compile_model(MNIST, CompileOptions(batch=1), remark=silent).tensors


def test_api_takes_files_as_paths_and_as_texts(tmp_path: Path) -> None:
    written = {"arch": arch_text(load_arch("spatial-4x4")), "groups": GROUP, "schedule": '["conv2"]\ndataflow = "ws"\n'}
    files = {key: tmp_path / f"{key}.toml" for key in written}
    for key, text in written.items():
        files[key].write_text(text)
    texts = {key: str(path) for key, path in files.items()}
    first, second = (estimate(MNIST, CompileOptions(batch=1, **given)) for given in (files, texts))
    assert first == second and "conv0..pool1" in first["layers"]


def test_api_remarks_are_those_of_the_command(tmp_path: Path) -> None:
    said = invoke("compile", DEPTHWISE, "--batch", 1, "-o", tmp_path / "net.cnb").stderr.splitlines()
    remarks = list[str]()
    compile_model(DEPTHWISE, CompileOptions(batch=1), remark=remarks.append)
    assert [f"cnncc: {remark}" for remark in remarks] == said != []
    with pytest.warns(UserWarning, match="calibrated with random inputs") as warned:
        compile_model(DEPTHWISE, CompileOptions(batch=1))
    assert [str(each.message) for each in warned] == remarks and warned[0].filename == __file__
    steps = list[str]()
    estimate(DEPTHWISE, CompileOptions(batch=1), progress=lambda what, *_: steps.append(what))
    assert "onnx-calibrate" in steps


@pytest.mark.parametrize(
    "given, message",
    [
        ({"precision": "int4"}, "there is no precision 'int4'; there are: int8, int16"),
        ({"precision": "INT8"}, "there is no precision 'INT8'; there are: int8, int16"),
        (
            {"objective": "energy", "slack": 0.1},
            "--slack has no effect with --objective energy: it is a share of the cycles",
        ),
        ({"parallel": "cores"}, "--parallel cores: give layers, or leave it out"),
        (CORES | {"fps": 0}, "--fps 0: give the frames a second that are enough, more than 0"),
        (CORES | {"fps": -1.0}, "--fps -1.0: give the frames a second that are enough, more than 0"),
    ],
)
def test_api_refuses_values_that_no_command_takes(given: dict[str, Any], message: str) -> None:
    for does in (compile_model, estimate):
        with pytest.raises(Refusal) as refusal:
            does(MNIST, CompileOptions(**given))
        assert str(refusal.value) == message


def test_api_counts_one_frame_at_least(tmp_path: Path) -> None:
    model = save_model(small_net(), tmp_path / "net.onnx")
    binary = compile_model(model, CompileOptions(**CORES), remark=silent)
    for frames in (0, -1):
        with pytest.raises(Refusal, match=f"frames {frames}, expected at least 1"):
            program_stats(binary, frames=frames)
    with pytest.raises(Refusal, match="frames 2: the program takes image by image"):
        program_stats(compile_model(MNIST, CompileOptions(batch=1), remark=silent), frames=2)


NO_ARRAYS = (
    ([np.zeros((1, 1, 28, 28))], "inputs are arrays by name, {'input': …}, not list"),
    (np.zeros((1, 1, 28, 28)), "inputs are arrays by name, {'input': …}, not ndarray"),
    ("digits.npz", "inputs are arrays by name, {'input': …}, not str"),
    ({"input": [[0.5], [0.5, 1.0]]}, "input 'input' is no array of numpy, but list"),
    ({"input": None}, "input 'input' is no array of numpy, but NoneType"),
)


def test_api_refuses_what_are_no_arrays_by_name() -> None:
    binary = compile_model(MNIST, CompileOptions(batch=1), remark=silent)
    for given, message in NO_ARRAYS:
        arrays: Any = given
        with pytest.raises(Refusal) as refusal:
            run(binary, arrays)
        assert str(refusal.value) == message
        with pytest.raises(Refusal) as refusal:
            compile_model(MNIST, CompileOptions(batch=1), arrays)
        assert str(refusal.value) == f"calibration data: {message}"


def test_api_estimates_have_keys_that_the_page_names(tmp_path: Path) -> None:
    (groups := tmp_path / "groups.toml").write_text(GROUP)
    found = estimate(MNIST, CompileOptions(batch=1, groups=groups))
    around = found["layers"]["semaphores"].keys()
    page = (SAMPLES.parent / "docs" / "estimate.md").read_text().partition("## As JSON")[2]
    rows = [key for row in found["layers"].values() for key in row.keys() - around]
    unsaid = [key for key in (*(found.keys() - {"layers"} - around), *rows) if f"`{key}`" not in page]
    assert {"limit", "members", "mapping"} <= {*rows} and unsaid == []


def test_api_raises_what_commands_say(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as refusal:
        compile_model(tmp_path / "none.onnx")
    assert refused("compile", tmp_path / "none.onnx") == f"cnncc: {refusal.value}"
    a, b, y = (helper.make_tensor_value_info(name, TensorProto.INT16, [1, 3]) for name in "aby")
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "ints", [a, b], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "ints.onnx")
    with pytest.raises(Refusal, match="ints.onnx: 2 problems") as refusal:
        compile_model(tmp_path / "ints.onnx")
    lines = refusal.value.lines
    assert refused("compile", tmp_path / "ints.onnx").splitlines() == [f"cnncc: {lines[0]}", *lines[1:]]
    assert refusal.value.__notes__ == lines[1:] and len(lines) == 3
    binary = compile_model(MNIST, CompileOptions(batch=1), remark=silent)
    for inputs, message in (
        ({}, "input 'input' is missing, there is nothing"),
        ({"image": np.zeros(1)}, "input 'input' is missing, there is image"),
        ({"input": np.zeros((1, 1, 28))}, r"input 'input' has shape \[1, 1, 28\], expected"),
    ):
        with pytest.raises(Refusal, match=message):
            run(binary, inputs)
    with pytest.raises(Refusal, match="calibration data: input 'input' is missing, there is x"):
        compile_model(MNIST, CompileOptions(batch=1), {"x": np.zeros(1)})
    save(binary, tmp_path / "net.cnb")
    with pytest.raises(Refusal, match="net.cnb: a binary is mapped, to an array of its own: give no options"):
        estimate(tmp_path / "net.cnb", CompileOptions(batch=1))
