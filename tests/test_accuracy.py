"""What `verify` says of accuracy: every value against float, the layer that loses most, and a limit on outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cli_cases import CALIBRATION, DIGITS, SAMPLES, build, done, invoke, noise, save
from onnx import helper

from cnncc.driver.accuracy import LayerAccuracy, greatest_drop, sqnr_db
from cnncc.driver.verify import SCHEMA

pytestmark = pytest.mark.usefixtures("short_searches")

node: Any = helper.make_node
FOUR = ("--images", 4)


def verified(path: Path, *options: object) -> dict[str, Any]:
    return json.loads(done("verify", path, "--json", *options).stdout)


def branches() -> onnx.ModelProto:
    """Two convolutions read the input, one of them through the host; their sum goes on."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], name="a", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["r"], name="r"),
        node("Sin", ["x"], ["t"], name="t"),
        node("Conv", ["t", "w2"], ["b"], name="b", pads=[0, 1, 2, 1]),
        node("Add", ["r", "b"], ["s"], name="s"),
        node("Flatten", ["s"], ["f"], name="f"),
        node("Gemm", ["f", "w3"], ["y"], name="y"),
    ]
    arrays = {"w1": noise(1, 5, 3, 3, 3), "b1": noise(2, 5), "w2": noise(3, 5, 3, 3, 3), "w3": noise(4, 5 * 7 * 9, 11)}
    return build(nodes, {"x": (1, 3, 7, 9)}, ["y", "r"], arrays)


def test_accuracy_of_every_value(tmp_path: Path) -> None:
    """Against onnxruntime, the integers read from IR that is dumped and run apart."""
    path = save(branches(), tmp_path / "net.onnx")
    images = {"x": noise(9, 4, 3, 7, 9)}
    np.savez(tmp_path / "in.npz", **images)
    found = verified(path, "--input", tmp_path / "in.npz", *FOUR)
    layers = {layer["label"]: layer for layer in found["layers"]}
    # What is fused has no value of its own: `a` goes into its Relu, `b` into the sum; `f` is `s` in another shape.
    assert list(layers) == ["input x", "r", "t", "s", "y.requant"]
    outputs = {each["output"]: each for each in found["outputs"]}
    assert layers["y.requant"]["sqnr_db"] == pytest.approx(outputs["y"]["sqnr_db"], abs=1e-3)
    assert layers["r"]["sqnr_db"] == pytest.approx(outputs["r"]["sqnr_db"], abs=1e-3)
    (scale,) = re.findall(r"cnn.quant = #cnn.quant<scale = ([\d.e-]+)", done("compile", path, "--emit", "cnn").stdout)[
        :1
    ]
    rounded = np.clip(np.rint(images["x"] / np.float32(scale)), -32767, 32767) * float(scale)
    error = 10 * np.log10(np.square(images["x"]).sum() / np.square(rounded - images["x"]).sum())
    assert layers["input x"]["sqnr_db"] == pytest.approx(error, abs=1e-2)


def test_accuracy_drop_is_from_the_worst_input(tmp_path: Path) -> None:
    found = verified(save(branches(), tmp_path / "net.onnx"))
    db = {layer["label"]: layer["sqnr_db"] for layer in found["layers"]}
    drops = {layer["label"]: layer["drop_db"] for layer in found["layers"]}
    assert drops == {
        "input x": 0,
        "r": pytest.approx(db["input x"] - db["r"]),
        "t": pytest.approx(db["input x"] - db["t"]),
        "s": pytest.approx(min(db["r"], db["t"]) - db["s"]),
        "y.requant": pytest.approx(db["s"] - db["y.requant"]),
    }
    assert found["loses_most"] == max(drops, key=lambda label: drops[label])


def test_accuracy_drop_from_an_exact_input_is_finite(tmp_path: Path) -> None:
    """Zeros and ones are no error; the result of the first convolution is the most accurate one that has some."""
    nodes = [node("Conv", ["x", "w"], ["a"], name="conv"), node("Conv", ["a", "v"], ["y"], name="last")]
    arrays = {"w": noise(1, 5, 3, 3, 3), "v": noise(2, 4, 5, 3, 3)}
    path = save(build(nodes, {"x": (1, 3, 7, 9)}, ["y"], arrays), tmp_path / "net.onnx")
    np.savez(tmp_path / "x.npz", x=(noise(3, 2, 3, 7, 9) > 0).astype(np.float32))
    found = verified(path, "--calibrate", tmp_path / "x.npz", "--input", tmp_path / "x.npz")
    layers = {layer["label"]: layer for layer in found["layers"]}
    first, last = layers["conv.requant"], layers["last.requant"]
    assert layers["input x"]["sqnr_db"] is None and first["drop_db"] == 0
    assert last["drop_db"] == pytest.approx(first["sqnr_db"] - last["sqnr_db"])
    assert found["loses_most"] in ("conv.requant", "last.requant")


@pytest.mark.parametrize("operator", ["LeakyRelu", "PRelu"])
def test_accuracy_of_a_leaky_that_is_fused(operator: str, tmp_path: Path) -> None:
    """The integers that the convolution and its LeakyRelu have in common are the result of the LeakyRelu."""
    leaky = {
        "LeakyRelu": node("LeakyRelu", ["a"], ["y"], name="leaky", alpha=0.1),
        "PRelu": node("PRelu", ["a", "slope"], ["y"], name="leaky"),
    }
    nodes = [node("Conv", ["x", "w"], ["a"], name="conv", pads=[1, 1, 1, 1]), leaky[operator]]
    arrays = {"w": noise(1, 5, 3, 3, 3), **({"slope": np.full((1,), 0.1, np.float32)} if operator == "PRelu" else {})}
    found = verified(save(build(nodes, {"x": (1, 3, 7, 9)}, ["y"], arrays), tmp_path / "net.onnx"))
    (output,) = found["outputs"]
    source, layer = found["layers"]
    assert source["label"] == "input x" and layer["sqnr_db"] == pytest.approx(output["sqnr_db"], abs=1e-3)
    assert layer["drop_db"] == pytest.approx(source["sqnr_db"] - layer["sqnr_db"])


def test_accuracy_names_the_layer_that_is_coarse(tmp_path: Path) -> None:
    """One channel is a million times the others: the scale of its result leaves them nothing."""
    wide = noise(2, 7, 5, 3, 3)
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="fine", pads=[1, 1, 1, 1]),
        node("Conv", ["a", "w2"], ["b"], name="coarse", pads=[1, 1, 1, 1]),
        node("Conv", ["b", "w3"], ["c"], name="after", pads=[1, 1, 1, 1]),
    ]
    last = noise(3, 4, 7, 3, 3)
    wide[6] *= 1e6
    last[:, 6] = 0
    model = build(nodes, {"x": (1, 3, 9, 7)}, ["c"], {"w1": noise(1, 5, 3, 3, 3), "w2": wide, "w3": last})
    path = save(model, tmp_path / "net.onnx")
    found = verified(path)
    assert found["loses_most"] == "after.requant"  # the small channels, all that it reads, are lost before it
    assert "\nafter.requant loses most: " in invoke("verify", path).stdout


def test_accuracy_at_least(tmp_path: Path) -> None:
    path = SAMPLES / "models" / "lenet.onnx"
    options = ["--batch", 1, "--calibrate", CALIBRATION, "--input", DIGITS]
    found = verified(path, *options)
    (reached,) = [each["sqnr_db"] for each in found["outputs"]]
    done("verify", path, *options, "--min-sqnr", reached - 0.1)
    result = invoke("verify", path, *options, "--min-sqnr", reached + 0.1)
    assert result.exit_code == 1 and "all" in result.stdout.splitlines()[-1]
    assert invoke("verify", path, *options, "--min-sqnr", "nan").exit_code == 1
    label = re.escape(found["loses_most"])
    (line,) = result.stderr.splitlines()
    assert re.fullmatch(rf"cnncc: output '.*': SQNR {reached:.1f} dB, --min-sqnr .*: {label} loses most, .* dB", line)


def test_accuracy_prints_the_worst_or_all(tmp_path: Path) -> None:
    path = save(branches(), tmp_path / "net.onnx")
    few, every = done("verify", path).stdout.splitlines(), done("verify", path, "--layers").stdout.splitlines()
    at = [next(i for i, line in enumerate(lines) if "SQNR dB" in line) for lines in (few, every)]
    end = [next(i for i, line in enumerate(lines) if "loses most" in line) for lines in (few, every)]
    drops = [float(line.split()[-1]) for line in few[at[0] + 1 : end[0]]]
    assert len(drops) == 3 and drops == sorted(drops, reverse=True)
    assert [line.split("  ")[1] for line in every[at[1] + 1 : end[1]]] == ["input x", "r", "t", "s", "y.requant"]


@pytest.mark.parametrize("name", ["lenet_qoperator_u8", "lenet_qdq_s8_pc"])
def test_accuracy_of_a_model_in_its_own_integers(name: str) -> None:
    found = verified(SAMPLES / "models" / f"{name}.onnx", "--batch", 1, "--min-sqnr", 99)
    assert found["agrees"] and found["layers"] == [] and found["loses_most"] is None


def test_accuracy_of_codes_is_that_of_the_reals_they_stand_for(tmp_path: Path) -> None:
    """The codes have no negative numbers: QuantizeLinear is the Relu. The Sin runs in floats on the host."""
    nodes = [
        node("QuantizeLinear", ["x", "step", "middle"], ["xq"]),
        node("DequantizeLinear", ["xq", "step", "middle"], ["xr"]),
        node("BatchNormalization", ["xr", "ones", "zeros", "zeros", "ones"], ["b"], name="b", epsilon=0.0),
        node("QuantizeLinear", ["b", "half", "bottom"], ["bq"]),
        node("DequantizeLinear", ["bq", "half", "bottom"], ["br"]),
        node("Sin", ["br"], ["y"], name="t"),
    ]
    arrays = {
        "step": np.float32(0.02), "middle": np.uint8(128), "half": np.float32(0.01), "bottom": np.uint8(0),
        "ones": np.ones(3, np.float32), "zeros": np.zeros(3, np.float32),
    }  # fmt: skip
    layers = verified(save(build(nodes, {"x": (1, 3, 7, 9)}, ["y"], arrays), tmp_path / "net.onnx"))["layers"]
    assert [layer["label"] for layer in layers] == ["input x", "b.requant"]
    assert all(layer["sqnr_db"] is None or layer["sqnr_db"] > 100 for layer in layers)
    assert all(layer["drop_db"] == 0 for layer in layers)


def test_accuracy_of_a_network_without_layers(tmp_path: Path) -> None:
    found = verified(save(build([node("Sin", ["x"], ["y"])], {"x": (1, 3)}, ["y"]), tmp_path / "net.onnx"))
    assert found["agrees"] and found["layers"] == found["outputs"] == []


def test_accuracy_json_is_as_described() -> None:
    text = (Path(__file__).parents[1] / "docs" / "verify.md").read_text()
    described = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    found = verified(SAMPLES / "models" / "lenet.onnx", "--batch", 1)
    assert found["schema"] == SCHEMA == 1
    parts = [found, *(found[part][0] for part in ("steps", "outputs", "layers", "noises"))]
    assert described == {key for part in parts for key in part}


def test_accuracy_numbers() -> None:
    ones = np.ones(4)
    assert sqnr_db(ones, ones / 10) == pytest.approx(20)
    assert (sqnr_db(ones, 0 * ones), sqnr_db(0 * ones, ones)) == (float("inf"), float("-inf"))
    assert greatest_drop([]) is None
    layers = [LayerAccuracy("a", 60, 0), LayerAccuracy("b", 50, 10), LayerAccuracy("c", 45, 5)]
    assert greatest_drop(layers) == layers[1]


def test_accuracy_reference_is_onnxruntime(tmp_path: Path) -> None:
    path = save(branches(), tmp_path / "net.onnx")
    images = noise(9, 4, 3, 7, 9)
    np.savez(tmp_path / "in.npz", x=images)
    done("compile", path, "-o", tmp_path / "net.cnb")
    done("run", tmp_path / "net.cnb", "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    exact = np.concatenate([session.run(["r"], {"x": images[i : i + 1]})[0] for i in range(4)])
    got = np.load(tmp_path / "out.npz")["r"]
    layers = {
        each["label"]: each["sqnr_db"] for each in verified(path, "--input", tmp_path / "in.npz", *FOUR)["layers"]
    }
    assert layers["r"] == pytest.approx(10 * np.log10(np.square(exact).sum() / np.square(got - exact).sum()), abs=1e-3)
