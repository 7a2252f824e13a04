"""Products of two values: on the output units, fused with the layer before, equal at every level, and proven."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cli_cases import build, done, invoke, noise, refused, save
from onnx import helper

from cnncc.arch.model import PRESETS
from cnncc.binary.container import load
from cnncc.binary.isa_module import disassembly

pytestmark = pytest.mark.usefixtures("short_searches")

IMAGE = (2, 6, 9, 7)
NETWORKS = {
    "of two convolutions": ["a", "b"],
    "of a value and the value that it is made of": ["a", "x"],
    "of a value with itself": ["a", "a"],
    "of two inputs": ["x", "z"],
}


def network(factors: list[str]) -> onnx.ModelProto:
    """Two convolutions, a product, and a convolution of it."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "v"], ["a"], name="a", pads=[1, 1, 1, 1]),
        node("Conv", ["a", "w"], ["b"], name="b"),
        node("Mul", factors, ["p"], name="p"),
        node("Relu", ["p"], ["r"], name="r"),
        node("Conv", ["r", "w"], ["y"], name="y"),
    ]
    inputs = dict.fromkeys(("x", "z")[: 1 + ("z" in factors)], IMAGE)
    arrays = {"v": noise(1, 6, 6, 3, 3) / 5, "w": noise(2, 6, 6, 1, 1)}
    return build([each for each in nodes if each.output[0] != "b" or "b" in factors], inputs, ["y"], arrays)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "in.npz"
    np.savez(path, x=noise(3, *IMAGE), z=noise(4, *IMAGE))
    return path


@pytest.mark.parametrize("arch", ["spatial-8x8", "seed-4x4", "cbrain-16-16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_product_is_on_the_array_and_equal_at_every_level(name: str, arch: str, samples: Path, tmp_path: Path) -> None:
    path, options = save(network(NETWORKS[name]), tmp_path / "net.onnx"), ("--arch", arch)
    given = tmp_path / "in.npz"
    with np.load(samples) as file:
        np.savez(given, **{each: file[each] for each in ("x", "z")[: 1 + ("z" in NETWORKS[name])]})
    said = done("verify", path, *options, "--calibrate", given, "--input", given).stdout
    assert "steps agree" in said
    done("compile", path, *options, "--calibrate", given, "-o", tmp_path / "net.cnb")
    assert "counters are as predicted" in done("estimate", tmp_path / "net.cnb", "--check-counters").stdout
    done("run", tmp_path / "net.cnb", "--input", given, "--output", tmp_path / "out.npz")
    with np.load(given) as file, np.load(tmp_path / "out.npz") as out:
        want = by_numpy(NETWORKS[name], {each: file[each].astype(np.float64) for each in file.files})
        assert 20 * np.log10(np.abs(want).max() / np.abs(out["y"] - want).max()) > 50  # dB, of 15 bits
    units = [line for line in disassembly(load(tmp_path / "net.cnb")).splitlines() if line.startswith("unit")]
    assert sum("multiply=1" in line for line in units) == 1
    assert "b" not in NETWORKS[name] or len(units) == 3  # the product is a step of the convolution before it


def by_numpy(factors: list[str], values: dict[str, Any]) -> Any:
    """The network in float64."""
    v, w = (noise(1, 6, 6, 3, 3) / 5).astype(np.float64), noise(2, 6, 6, 1, 1)[:, :, 0, 0].astype(np.float64)
    padded = np.pad(values["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    values["a"] = np.einsum("nchwrs,kcrs->nkhw", windows, v)
    values["b"] = np.einsum("nchw,kc->nkhw", values["a"], w)
    product = values[factors[0]] * values[factors[1]]
    return np.einsum("nchw,kc->nkhw", np.maximum(product, 0), w)


@pytest.mark.parametrize("name", NETWORKS)
def test_product_is_proven_and_an_error_in_it_is_not(name: str, tmp_path: Path) -> None:
    path = save(network(NETWORKS[name]), tmp_path / "net.onnx")
    done("compile", path, "-o", tmp_path / "net.cnb")
    assert "proven for all inputs" in done("verify", tmp_path / "net.cnb", "--prove", "--model", path).stdout
    text = disassembly(load(tmp_path / "net.cnb"))
    for before, after in ("multiply=1", "multiply=0"), ("multiply=1", "multiply=1 factor_b=0x3f800000"):
        assert text.count(before) == 1
        (tmp_path / "wrong.s").write_text(text.replace(before, after))
        done("asm", tmp_path / "wrong.s", "--data", tmp_path / "net.cnb", "-o", tmp_path / "wrong.cnb")
        result = invoke("verify", tmp_path / "wrong.cnb", "--prove", "--model", path)
        assert result.exit_code == 3 and "results differ" in result.stdout + result.stderr


# -- one pixel a channel -----------------------------------------------------------------------------------------------

GATED = {
    "Mul": {"op": "Mul"},
    "Mul, the pixel first": {"op": "Mul", "first": True},
    "Add": {"op": "Add"},
    "Mul of one image": {"op": "Mul", "images": 1, "side": 11},
}


def gated(op: str, first: bool = False, images: int = 2, side: int = 9) -> onnx.ModelProto:
    """A squeeze and excitation: a value times (or plus) what its means say of its channels."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "v"], ["a"], name="a", pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["a"], ["m"], name="m"),
        node("Conv", ["m", "w"], ["s"], name="s"),
        node(op, ["s", "a"] if first else ["a", "s"], ["p"], name="p"),
        node("Conv", ["p", "w"], ["y"], name="y"),
    ]
    arrays = {"v": noise(1, 6, 6, 3, 3) / 5, "w": noise(2, 6, 6, 1, 1)}
    return build(nodes, {"x": (images, 6, side, side - 2)}, ["y"], arrays)


def gated_by_numpy(op: str, x: Any) -> Any:
    v, w = (noise(1, 6, 6, 3, 3) / 5).astype(np.float64), noise(2, 6, 6, 1, 1)[:, :, 0, 0].astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))
    a = np.einsum("nchwrs,kcrs->nkhw", windows, v)
    pixels = np.einsum("nc,kc->nk", a.mean(axis=(2, 3)), w)[:, :, None, None]
    return np.einsum("nchw,kc->nkhw", a * pixels if op == "Mul" else a + pixels, w)


@pytest.fixture(scope="module")
def small_array(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images stream through its GLB, pixels stay there."""
    path = tmp_path_factory.mktemp("arch") / "small.toml"
    text = (PRESETS / "spatial-4x4.toml").read_text()
    path.write_text(re.sub(r"(\[glb\][^\[]*?words = )\d+", r"\g<1>400", text))
    return path


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("arch", ["spatial-8x8", "small"])
def test_product_with_one_pixel_a_channel(name: str, arch: str, small_array: Path, tmp_path: Path) -> None:
    options = ("--arch", small_array if arch == "small" else arch)
    model, given, binary = gated(**GATED[name]), tmp_path / "in.npz", tmp_path / "net.cnb"
    path = save(model, tmp_path / "net.onnx")
    np.savez(given, x=noise(3, *(dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim)))
    assert "steps agree" in done("verify", path, *options, "--calibrate", given, "--input", given).stdout
    done("compile", path, *options, "--calibrate", given, "-o", binary)
    assert not load(binary).metadata.get("host")
    assert "counters are as predicted" in done("estimate", binary, "--check-counters").stdout
    done("run", binary, "--input", given, "--output", tmp_path / "out.npz")
    with np.load(given) as file, np.load(tmp_path / "out.npz") as out:
        want = gated_by_numpy(GATED[name]["op"], file["x"].astype(np.float64))
        assert 20 * np.log10(np.abs(want).max() / np.abs(out["y"] - want).max()) > 50
    assert (
        "proven for all inputs"
        in done("verify", binary, "--prove", "--model", path, *options, "--calibrate", given).stdout
    )
    text = disassembly(load(binary))
    assert text.count("ring_y=1 ring_x=1") == 1
    (tmp_path / "wrong.s").write_text(text.replace("ring_y=1 ring_x=1", "ring_y=1"))
    done("asm", tmp_path / "wrong.s", "--data", binary, "-o", tmp_path / "wrong.cnb")
    proving = ("--prove", "--model", path, *options, "--calibrate", given)
    assert "is not proven: p: " in invoke("verify", tmp_path / "wrong.cnb", *proving).stderr


def test_product_with_an_input_of_one_pixel_is_a_step_of_the_layer_before(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], name="a", pads=[1, 1, 1, 1]),
        helper.make_node("Mul", ["z", "a"], ["y"], name="p"),
    ]
    model = build(nodes, {"x": IMAGE, "z": (2, 6, 1, 1)}, ["y"], {"v": noise(1, 6, 6, 3, 3)})
    done("compile", save(model, tmp_path / "net.onnx"), "-o", tmp_path / "net.cnb")
    text = disassembly(load(tmp_path / "net.cnb"))
    assert sum(line.startswith("unit") for line in text.splitlines()) == 1 and "multiply=1" in text


def test_product_with_one_pixel_a_channel_is_called_like_the_step_behind_it(tmp_path: Path) -> None:
    model = gated("Mul")
    model.graph.node[-1].input[0] = "r"
    model.graph.node.insert(4, helper.make_node("Relu", ["p"], ["r"], name="r"))
    assert "steps agree" in done("verify", save(model, tmp_path / "net.onnx")).stdout


def test_product_of_lines_with_one_number_a_channel_is_one_layer(tmp_path: Path) -> None:
    model = build([helper.make_node("Mul", ["z", "x"], ["y"], name="p")], {"x": (2, 6, 9), "z": (2, 6, 1)}, ["y"])
    path = save(model, tmp_path / "net.onnx")
    assert "steps agree" in done("verify", path).stdout
    done("compile", path, "-o", tmp_path / "net.cnb")
    assert not load(tmp_path / "net.cnb").metadata.get("host")


def test_product_with_other_shapes_stays_on_the_host(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["s"], name="s", axes=[1]),
        helper.make_node("Mul", ["x", "s"], ["p"], name="p"),
        helper.make_node("Conv", ["p", "w"], ["y"], name="y"),
    ]
    path = save(build(nodes, {"x": IMAGE}, ["y"], {"w": noise(2, 6, 6, 1, 1)}), tmp_path / "net.onnx")
    said = " ".join(done("compile", path, "-o", tmp_path / "net.cnb").stdout.split())
    assert "the shapes (2, 6, 9, 7) and (2, 1, 9, 7) differ by more than one pixel a channel" in said


def test_product_with_one_pixel_a_channel_is_in_no_group_and_on_no_cores(tmp_path: Path) -> None:
    path, schedule = save(gated("Mul", images=1), tmp_path / "net.onnx"), tmp_path / "s.toml"
    schedule.write_text('[[group]]\nlayers = ["p", "y"]\nrows = 1\n')
    said = refused("compile", path, "--schedule", schedule, "-o", tmp_path / "net.cnb")
    assert "layer 'p' has a residual of one pixel a channel, which has no rows for a ring" in said
    said = refused("compile", path, "--arch", "tcpa-4x4", "--parallel", "layers", "-o", tmp_path / "net.cnb")
    assert "layer 'p' has a residual of one pixel a channel" in said and "cores.host" in said
    mapping = "residual@glb > [k:2||2@rows h||3@cols] > ifmap@rf > {w}"
    schedule.write_text(f'["p"]\nmapping = "{mapping}"\n')
    said = refused("compile", path, "--schedule", schedule, "-o", tmp_path / "net.cnb")
    assert "residual" in said


@pytest.mark.parametrize(("op", "opset"), [("HardSwish", 17), ("HardSigmoid", 17), ("HardSigmoid", 9)])
def test_hard_activations_are_a_step_of_the_layer_before(op: str, opset: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], name="a", pads=[1, 1, 1, 1]),
        helper.make_node(op, ["a"], ["b"], name="b", **({"alpha": 0.3} if op == "HardSigmoid" else {})),
        helper.make_node("Conv", ["b", "w"], ["y"], name="y"),
    ]
    arrays = {"v": noise(1, 6, 6, 3, 3) / 5, "w": noise(2, 6, 6, 1, 1)}
    model = build(nodes, {"x": IMAGE}, ["y"], arrays)
    model.opset_import[0].version = opset
    path, given = save(model, tmp_path / "net.onnx"), tmp_path / "in.npz"
    np.savez(given, x=3 * noise(3, *IMAGE))
    done("compile", path, "--calibrate", given, "-o", tmp_path / "net.cnb")
    done("run", tmp_path / "net.cnb", "--input", given, "--output", tmp_path / "out.npz")
    with np.load(given) as file, np.load(tmp_path / "out.npz") as out:
        want = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": file["x"]})[0]
        assert 20 * np.log10(np.abs(want).max() / np.abs(out["y"] - want).max()) > 60
    assert "steps agree" in done("verify", path, "--calibrate", given, "--input", given).stdout
    binary = load(tmp_path / "net.cnb")
    assert not binary.metadata.get("host")
    units = sum(line.startswith("unit") for line in disassembly(binary).splitlines())
    assert units == 2  # all of it is a step of the convolution
