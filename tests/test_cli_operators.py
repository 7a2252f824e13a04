"""Operators of real networks, from ONNX to the binary: on the array, near float onnxruntime, all levels agreeing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import build, done, noise, save
from frontend_models import run_file
from onnx import helper

pytestmark = pytest.mark.usefixtures("short_searches")

node: Any = helper.make_node


def statistics(seed: int, channels: int, prefix: str) -> dict[str, Any]:
    """Inputs of a BatchNormalization: scale, shift, mean, variance."""
    arrays = [noise(seed + i, channels) for i in range(4)]
    arrays[3] = np.abs(arrays[3]) + np.float32(0.1)
    return dict(zip((f"{prefix}{letter}" for letter in "stmv"), arrays, strict=True))


def normalisation_after_a_pool() -> onnx.ModelProto:
    """As exporters of old write it, with nothing before that it could go into; then a Relu, then a Conv."""
    nodes = [
        node("MaxPool", ["x"], ["p"], name="p", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("BatchNormalization", ["p", "ns", "nt", "nm", "nv"], ["n"], name="n"),
        node("Unsqueeze", ["k", "axes"], ["k1"], name="k1"),
        node("Mul", ["n", "k1"], ["m"], name="m"),
        node("Unsqueeze", ["l", "axes"], ["l1"], name="l1"),
        node("Add", ["m", "l1"], ["a"], name="a"),
        node("Relu", ["a"], ["r"], name="r"),
        node("Conv", ["r", "w"], ["y"], name="y"),
    ]
    arrays = {**statistics(1, 5, "n"), "k": noise(5, 5), "l": noise(6, 5), "w": noise(7, 3, 5, 2, 2)}
    return build(nodes, {"x": (1, 5, 11, 7)}, ["y"], {**arrays, "axes": np.int64([1, 2])})


def constants_before_and_after() -> onnx.ModelProto:
    """An input made standard by Sub and Div, constants after a Conv and a MatMul, a scalar before the output."""
    nodes = [
        node("Sub", ["x", "mean"], ["s"], name="s"),
        node("Div", ["s", "std"], ["d"], name="d"),
        node("Conv", ["d", "w"], ["c"], name="c", strides=[2, 1]),
        node("Mul", ["k", "c"], ["m"], name="m"),
        node("ReduceMean", ["m"], ["g"], name="g", axes=[-2, -1], keepdims=0),
        node("MatMul", ["g", "v"], ["f"], name="f"),
        node("Add", ["f", "b"], ["a"], name="a"),
        node("Relu", ["a"], ["r"], name="r"),
        node("Sub", ["one", "r"], ["y"], name="y"),
    ]
    arrays = {"mean": noise(1, 3, 1, 1), "std": np.abs(noise(2, 3, 1, 1)) + np.float32(0.5), "k": noise(3, 1, 5, 1, 1)}
    arrays |= {"w": noise(4, 5, 3, 3, 2), "v": noise(5, 5, 7), "b": noise(6, 7), "one": np.float32(1)}
    return build(nodes, {"x": (1, 3, 9, 7)}, ["y"], arrays)


def sums_of_many() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="a", pads=[1, 1, 1, 1]),
        node("Conv", ["x", "w2"], ["b"], name="b"),
        node("Sum", ["a", "x", "b", "x"], ["s"], name="s"),
        node("Relu", ["s"], ["r"], name="r"),
        node("Sum", ["r", "b", "a"], ["y"], name="y"),
    ]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y"], {"w1": noise(1, 3, 3, 3, 3), "w2": noise(2, 3, 3, 1, 1)})


def pools_over_the_edge() -> onnx.ModelProto:
    nodes = [
        node("MaxPool", ["x"], ["p"], name="p", kernel_shape=[3, 2], strides=[2, 3], pads=[1, 0, 0, 1], ceil_mode=1),
        node("Conv", ["p", "w"], ["c"], name="c", pads=[0, 1, 1, 0]),
        node("AveragePool", ["c"], ["a"], name="a", kernel_shape=[3, 3], pads=[1, 2, 0, 1], count_include_pad=1),
        node(
            "AveragePool", ["a"], ["m"], name="m", kernel_shape=[9, 10], strides=[2, 2], pads=[2, 1, 1, 2], ceil_mode=1
        ),
        node("Transpose", ["m"], ["t"], name="t", perm=[0, 2, 3, 1]),
        node("Reshape", ["t", "s"], ["f"], name="f"),
        node("Gemm", ["f", "g"], ["y"], name="y"),
        node("GlobalMaxPool", ["a"], ["z"], name="z"),
    ]
    arrays = {"w": noise(1, 5, 3, 2, 2), "s": np.int64([1, -1]), "g": noise(2, 5, 4)}
    return build(nodes, {"x": (1, 3, 11, 16)}, ["y", "z"], arrays)


def leaky_relus() -> onnx.ModelProto:
    """Between conv and residual; of a sum, which is a layer of its own; before the output."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c"], name="c", pads=[1, 1, 1, 1]),
        node("LeakyRelu", ["c"], ["l"], name="l", alpha=0.1),
        node("Conv", ["l", "w2"], ["d"], name="d", pads=[1, 0, 1, 0]),
        node("LeakyRelu", ["d"], ["m"], name="m", alpha=0.3),
        node("Add", ["m", "l"], ["a"], name="a"),
        node("LeakyRelu", ["a"], ["n"], name="n", alpha=0.5),
        node("Conv", ["n", "w3"], ["e"], name="e", strides=[2, 2]),
        node("LeakyRelu", ["e"], ["y"], name="y"),
    ]
    arrays = {"w1": noise(1, 5, 3, 3, 3), "b1": noise(2, 5), "w2": noise(3, 5, 5, 3, 1), "w3": noise(4, 7, 5, 2, 2)}
    return build(nodes, {"x": (1, 3, 9, 7)}, ["y"], arrays)


def factors_of_rows() -> onnx.ModelProto:
    """Values of rank 3, n c w, each channel with factors of its own, and one for all."""
    nodes = [
        node("BatchNormalization", ["x", "ns", "nt", "nm", "nv"], ["n"], name="n"),
        node("Relu", ["n"], ["r"], name="r"),
        node("Mul", ["r", "k"], ["m"], name="m"),
        node("Relu", ["m"], ["q"], name="q"),
        node("Mul", ["q", "half"], ["y"], name="y"),
    ]
    arrays = {**statistics(1, 5, "n"), "k": np.abs(noise(5, 5, 1)), "half": np.float32([0.5])}
    return build(nodes, {"x": (1, 5, 7)}, ["y"], arrays)


def five_dims() -> onnx.ModelProto:
    """Outputs of two images: the input's channels by pairs, and a convolution's, which is read otherwise, too."""
    nodes = [
        node("Reshape", ["x", "pairs"], ["p"], name="p"),
        node("Conv", ["x", "w"], ["c"], name="c"),
        node("Reshape", ["c", "threes"], ["t"], name="t"),
        node("Relu", ["c"], ["y"], name="y"),
    ]
    arrays = {"pairs": np.array([2, 2, 2, 5, 3]), "threes": np.array([2, 2, 3, 5, 3]), "w": noise(1, 6, 4, 1, 1)}
    return build(nodes, {"x": (2, 4, 5, 3)}, ["p", "t", "y"], arrays)


CASES: tuple[Callable[[], onnx.ModelProto], ...] = (
    normalisation_after_a_pool, constants_before_and_after, sums_of_many, pools_over_the_edge, leaky_relus,
    factors_of_rows, five_dims,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_cli_operators_run_on_the_array(case: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    path = save(case(), tmp_path / "net.onnx")
    binary, outputs, samples = tmp_path / "net.cnb", tmp_path / "out.npz", tmp_path / "in.npz"
    ((name, dims),) = [
        (i.name, [d.dim_value for d in i.type.tensor_type.shape.dim]) for i in onnx.load(path).graph.input
    ]
    data = noise(11, 6 * dims[0], *dims[1:])
    np.savez(samples, **{name: data})
    compiled = done("compile", path, "--calibrate", samples, "-o", binary)
    assert "host" not in compiled.stdout + compiled.stderr
    done("run", binary, "--input", samples, "--output", outputs)
    runs = [run_file(path, {name: part}) for part in np.split(data, 6)]
    with np.load(outputs) as got:
        for value, output in zip(zip(*runs, strict=True), onnx.load(path).graph.output, strict=True):
            want = np.concatenate(value)
            error = np.square(want.astype(np.float64) - got[output.name]).sum()
            assert 10 * np.log10(np.square(want, dtype=np.float64).sum() / error) > 65, output.name
    assert "steps agree" in done("verify", path, "--calibrate", samples, "--input", samples).stdout
