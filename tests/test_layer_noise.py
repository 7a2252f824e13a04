"""Each layer by itself against float: no alarm where numbers are only rounded, one with its cause elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import build, done, invoke, noise, save
from onnx import helper
from xdsl.ir import SSAValue

from cnncc.arch.model import PRESETS
from cnncc.driver.layer_noise import LIMIT
from cnncc.passes._onnx.builder import CnnBuilder
from cnncc.passes._onnx.calibration import Scale
from cnncc.passes._onnx.functions import FunctionLayer, FunctionTable, function_table
from cnncc.passes._onnx.placement import Placement
from cnncc.passes._onnx.scale_groups import moves_integers

pytestmark = pytest.mark.usefixtures("short_searches")

node: Any = helper.make_node


def data(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "x.npz", **arrays)
    return folder / "x.npz"


def verified(model: onnx.ModelProto, folder: Path, x: np.ndarray, *options: object, code: int = 0) -> dict[str, Any]:
    """What `verify --json` says, with the exit code, of data that the model is calibrated with."""
    path = data(folder, x=x)
    args = ["--calibrate", path, "--input", path, "--images", len(x), "--arch", "spatial-4x4", *options]
    result = invoke("verify", save(model, folder / "net.onnx"), "--json", *args)
    assert result.exit_code == code, (result.stderr, result.exception)
    return {**json.loads(result.stdout), "stderr": result.stderr}


def everything() -> onnx.ModelProto:
    """A network with all kinds of layers, and with values of all that calibration treats in a way of its own."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4, name="c1"),
        node("LeakyRelu", ["c1"], ["l1"], alpha=0.1, name="l1"),
        node("MaxPool", ["l1"], ["m1"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, name="m1"),
        node("Conv", ["m1", "w2"], ["c2"], group=2, pads=[1] * 4, name="c2"),
        node("Add", ["c2", "m1"], ["a"], name="a"),
        node("LeakyRelu", ["a"], ["l2"], alpha=-0.5, name="l2"),
        node("Relu", ["a"], ["r"], name="r"),
        node("Sigmoid", ["r"], ["g"], name="g"),
        node("Sin", ["g"], ["h"], name="h"),
        node("Concat", ["l2", "r", "h"], ["cat"], axis=1, name="cat"),
        node("Reshape", ["cat", "five"], ["f"], name="f"),
        node("Transpose", ["f"], ["t"], perm=[0, 2, 1, 3, 4], name="t"),
        node("Reshape", ["t", "four"], ["s"], name="s"),
        node("AveragePool", ["s"], ["p"], kernel_shape=[2, 2], pads=[1, 0, 0, 1], name="p"),
        node("BatchNormalization", ["p", "u", "v", "v", "u"], ["n"], name="n"),
        node("Flatten", ["n"], ["flat"], name="flat"),
        node("Gemm", ["flat", "w3", "b3"], ["y"], name="y"),
    ]
    arrays = {
        **{"w1": noise(1, 6, 3, 3, 3), "b1": noise(2, 6), "w2": noise(3, 6, 3, 3, 3), "w3": noise(4, 18 * 4 * 3, 5)},
        **{"b3": noise(5, 5), "u": np.abs(noise(6, 18)) + 1, "v": noise(7, 18)},
        **{"five": np.array([1, 3, 6, 4, 3]), "four": np.array([1, 18, 4, 3])},
    }
    return build(nodes, {"x": (1, 3, 7, 5)}, ["y", "l2"], arrays)


@pytest.mark.parametrize("precision", ["int16", "int8"])
def test_layer_noise_explains_what_is_only_rounded(precision: str, tmp_path: Path) -> None:
    found = verified(everything(), tmp_path, noise(9, 4, 3, 7, 5), "--precision", precision)["noises"]
    labels = ["input x", "m1", "c2.requant", "l2", "g", "t", "p.requant", "n.requant", "y.requant"]
    assert [each["label"] for each in found if each["label"] in labels] == labels
    assert all(0.05 < each["error"] / each["noise"] <= LIMIT and not each["cause"] for each in found)
    printed = done("verify", tmp_path / "net.onnx", "--arch", "spatial-4x4").stdout
    assert "by itself no layer errs by more than 4 times its noise: at most " in printed


# What follows a Tanh in its layer.
AFTER = {
    "nothing": node("Relu", ["s"], ["y"], name="y"),
    "a pool": node("MaxPool", ["s"], ["y"], kernel_shape=[2, 2], name="y"),
    "a clip": node("Clip", ["s", "lo", "hi"], ["y"], name="y"),
}


def tanh(after: str) -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w"], ["c"], name="c"), node("Tanh", ["c"], ["s"], name="s"), AFTER[after]]
    bounds = {"lo": np.float32(0.25), "hi": np.float32(0.75)} if after == "a clip" else {}
    return build(nodes, {"x": (1, 3, 7, 6)}, ["y"], {"w": noise(1, 4, 3, 3, 3), **bounds})


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("size", [1, 60])
def test_layer_noise_of_lines_between_entries(size: int, after: str, tmp_path: Path) -> None:
    """A Tanh bends the most near 1 and -1: a line is off by more than a step there."""
    found = verified(tanh(after), tmp_path, np.float32(size) * noise(4, 4, 3, 7, 6))["noises"]
    assert all(each["error"] <= LIMIT * each["noise"] and not each["cause"] for each in found)


def test_layer_noise_finds_a_table_that_begins_an_entry_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(layer: FunctionLayer, x: Scale, y: Scale) -> FunctionTable:
        table = function_table(layer, x, y)
        return replace(table, entries=np.roll(table.entries, 1))

    monkeypatch.setattr("cnncc.passes._onnx.layer_lowering.function_table", late)
    found = verified(tanh("a pool"), tmp_path, noise(4, 4, 3, 7, 6), code=4)["noises"]
    assert [each["label"] for each in found if each["cause"]] == ["y"]


def test_layer_noise_of_rounding_all_one_way(tmp_path: Path) -> None:
    """Equal values and equal weights are all rounded the same way: errors add up, and so does the noise."""
    arrays = {"w": np.full((1, 8, 3, 3), 0.3, np.float32)}
    model = build([node("Conv", ["x", "w"], ["y"])], {"x": (1, 8, 6, 6)}, ["y"], arrays)
    x = np.full((2, 8, 6, 6), 0.7, np.float32)
    x[0, 0, 0, 0] = 1
    found = verified(model, tmp_path, x, "--precision", "int8")["noises"]
    assert all(each["error"] <= LIMIT * each["noise"] for each in found)


def test_layer_noise_of_inputs_beyond_the_calibrated_range(tmp_path: Path) -> None:
    """They saturate, which is said, and is no defect."""
    nodes = [node("Conv", ["x", "w"], ["c"], name="c"), node("Relu", ["c"], ["y"], name="y")]
    model = save(build(nodes, {"x": (1, 3, 7, 5)}, ["y"], {"w": noise(1, 4, 3, 3, 3)}), tmp_path / "net.onnx")
    few = data(tmp_path, x=noise(2, 2, 3, 7, 5)).rename(tmp_path / "few.npz")
    x = noise(2, 2, 3, 7, 5)
    x[1, 2, 3, :3] = 9
    printed = done("verify", model, "--calibrate", few, "--input", data(tmp_path, x=x), "--images", 2).stdout
    assert "1.43 % of input x saturates: calibrate with data like these inputs" in printed
    assert "saturates" not in done("verify", model, "--calibrate", few, "--input", few, "--images", 2).stdout


def _last_of_all(placement: Placement, value: SSAValue) -> SSAValue:
    """As `Placement.last`, but past every LeakyRelu, whatever it reads."""
    while (use := value.get_user_of_unique_use()) in placement.layers and moves_integers(placement.layers[use]):
        value = use.results[0]
    return value


def test_layer_noise_finds_an_operand_in_the_scale_of_its_leaky_relu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node("Add", ["x", "x"], ["a"], name="a"), node("LeakyRelu", ["a"], ["y"], alpha=0.1, name="y")]
    model, x = build(nodes, {"x": (1, 3, 7, 5)}, ["y"], {}), noise(1, 2, 3, 7, 5) * np.float32(0.1) - 4
    assert verified(model, tmp_path, x)["agrees"]
    monkeypatch.setattr(Placement, "last", _last_of_all)
    found = verified(model, tmp_path, x, code=4)
    assert found["agrees"]  # all levels have the same wrong scale
    causes = {each["label"]: each["cause"] for each in found["noises"]}
    assert causes["a"].startswith("its result is saturated: 100 % of the values lie outside ")
    assert causes["y"].startswith("operand 'a' is saturated: 100 % of the values lie outside ")
    assert "warning: calibration data saturates at Add node 'a': 100 % of its values lie outside " in found["stderr"]
    assert "cnncc: layer 'a' errs by " in found["stderr"] and "; 1 more" in found["stderr"]


def test_layer_noise_finds_a_coarse_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated = CnnBuilder.calibrated

    def coarse(self: CnnBuilder, value: SSAValue, name: str) -> Scale:
        scale = calibrated(self, value, name)
        return Scale(scale.scale * 8, scale.lo, scale.hi) if name == "c" else scale

    nodes = [node("Conv", ["x", "w"], ["c"], name="c"), node("Conv", ["c", "v"], ["y"], name="y")]
    arrays = {"w": noise(1, 4, 3, 3, 3), "v": noise(2, 4, 4, 1, 1)}
    model, x = build(nodes, {"x": (1, 3, 7, 5)}, ["y"], arrays), noise(3, 2, 3, 7, 5)
    assert verified(model, tmp_path, x)["agrees"]
    monkeypatch.setattr(CnnBuilder, "calibrated", coarse)
    found = verified(model, tmp_path, x, code=4)["noises"]
    assert [each["label"] for each in found if each["cause"]] == ["c.requant"]
    assert found[1]["cause"].startswith("its scale is coarse: a step of ")


def test_layer_noise_finds_a_wrong_bias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bias = CnnBuilder.bias
    monkeypatch.setattr(CnnBuilder, "bias", lambda self, sums, values, label: bias(self, sums, values // 2, label))
    model = build(
        [node("Conv", ["x", "w", "b"], ["y"])],
        {"x": (1, 3, 7, 5)},
        ["y"],
        {"w": noise(1, 4, 3, 3, 3), "b": noise(2, 4)},
    )
    found = verified(model, tmp_path, noise(3, 2, 3, 7, 5), code=4)["noises"]
    assert [each["cause"] for each in found] == ["", "no rounding explains it"]


def test_layer_noise_names_narrowed_sums(tmp_path: Path) -> None:
    """Sums of 24 bits hold 4 x 9 products of 16 x 16 bits only with coarse weights: said, and no error."""
    nodes, arrays = [node("Conv", ["x", "w"], ["y"], name="y")], {"w": noise(1, 4, 4, 3, 3)}
    arch = tmp_path / "narrow.toml"
    arch.write_text((PRESETS / "spatial-4x4.toml").read_text().replace("psum_bits = 32", "psum_bits = 24"))
    path = save(build(nodes, {"x": (1, 4, 7, 5)}, ["y"], arrays), tmp_path / "net.onnx")
    printed = done("verify", path, "--arch", arch).stdout
    assert "psums narrow the weights of y (4 channels)" in printed


def test_layer_noise_names_the_first_of_many_narrowed_sums(tmp_path: Path) -> None:
    """All of them with --layers."""
    nodes = [node("Conv", ["x", "w"], [f"y{at}"], name=f"y{at}") for at in range(7)]
    arch = tmp_path / "narrow.toml"
    arch.write_text((PRESETS / "spatial-4x4.toml").read_text().replace("psum_bits = 32", "psum_bits = 24"))
    outputs, arrays = [f"y{at}" for at in range(7)], {"w": noise(1, 4, 4, 3, 3)}
    path = save(build(nodes, {"x": (1, 4, 7, 5)}, outputs, arrays), tmp_path / "net.onnx")
    names = [f"y{at} (4 channels)" for at in range(7)]
    printed = " ".join(done("verify", path, "--arch", arch).stdout.split())
    assert f"psums narrow the weights of {', '.join(names[:5])} and 2 more" in printed
    printed = " ".join(done("verify", path, "--arch", arch, "--layers").stdout.split())
    assert f"psums narrow the weights of {', '.join(names)}" in printed


def test_values_that_are_too_small_for_a_scale(tmp_path: Path) -> None:
    """The warning names the first of them, not those that are zeros."""
    nodes = [node("Conv", ["x", "w"], ["y"], name="y"), node("Conv", ["x", "zeros"], ["z"], name="z")]
    arrays = {"w": noise(1, 3, 3, 1, 1), "zeros": np.zeros((3, 3, 1, 1), np.float32)}
    model = save(build(nodes, {"x": (1, 3, 4, 4)}, ["y", "z"], arrays), tmp_path / "net.onnx")
    x = noise(2, 2, 3, 4, 4)
    for factor, is_tiny in ((1e-20, False), (1e-30, True)):
        inputs = data(tmp_path, x=(x / np.abs(x).max() * factor).astype(np.float32))
        warning = done("compile", model, "-o", tmp_path / "net.cnb", "--calibrate", inputs).stderr
        says = "values are too small at input 'x' and 1 other value: no value is above 1e-30, so all integers are 0"
        assert (says in warning) == is_tiny


def test_layer_noise_calibration_data_beyond_what_the_model_states(tmp_path: Path) -> None:
    """The model quantises an input that a convolution of floats reads after: data beyond its codes saturates."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Conv", ["d", "w"], ["y"], name="y"),
    ]  # fmt: skip
    arrays = {"s": np.float32(0.01), "z": np.int8(0), "w": noise(1, 4, 3, 3, 3)}
    model = save(build(nodes, {"x": (1, 3, 7, 5)}, ["y"], arrays), tmp_path / "net.onnx")
    x = np.zeros((2, 3, 7, 5), np.float32)
    x[0, 0, 0, 0], x[1, 2, :3, 0] = 1.27, -2
    result = done("compile", model, "-o", tmp_path / "net.cnb", "--calibrate", data(tmp_path, x=x))
    assert (
        "warning: calibration data saturates at input 'x': 1.43 % of its values lie outside -1.28..1.27"
        in result.stderr
    )
    x[1] = 0
    assert (
        "saturates" not in done("compile", model, "-o", tmp_path / "net.cnb", "--calibrate", data(tmp_path, x=x)).stderr
    )


def test_layer_noise_of_a_value_in_two_shapes(tmp_path: Path) -> None:
    """A Flatten of a value with other readers is that value: it is compared once."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="c"), node("Relu", ["c"], ["r"], name="r"),
        node("Flatten", ["r"], ["y"], name="y"), node("MaxPool", ["r"], ["z"], kernel_shape=[2, 2], name="z"),
    ]  # fmt: skip
    model = build(nodes, {"x": (1, 3, 7, 5)}, ["y", "z"], {"w": noise(1, 4, 3, 3, 3)})
    found = verified(model, tmp_path, noise(2, 2, 3, 7, 5))["noises"]
    assert [each["label"] for each in found] == ["input x", "r", "z"]
