"""Models of unusual form through `compile` and `run`: the outputs are the integer reference's, and `verify` agrees."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_cases import build, conv_model, done, noise, refused, save
from onnx import helper

from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.eval.cnn import dequantise_outputs, evaluate, quantise_inputs

pytestmark = pytest.mark.usefixtures("short_searches")

Case = Callable[[], onnx.ModelProto]
node: Any = helper.make_node


def only_host() -> onnx.ModelProto:
    return build([node("Softmax", ["x"], ["y"], axis=-1)], {"x": (1, 7)}, ["y"])


def only_host_two_outputs() -> onnx.ModelProto:
    return build([node("Softmax", ["x"], ["y"]), node("Sin", ["y"], ["z"])], {"x": (1, 3, 5)}, ["z", "y"])


def host_reads_one_value_in_two_shapes() -> onnx.ModelProto:
    nodes = [
        node("Flatten", ["x"], ["f"], name="flat"),
        node("Softmax", ["f"], ["y"], name="softmax", axis=1),
        node("Sin", ["x"], ["z"], name="sin"),
    ]
    return build(nodes, {"x": (1, 3, 5, 4)}, ["y", "z"])


def host_in_the_middle() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="a", pads=[1, 2, 0, 1]),
        node("LRN", ["a"], ["b"], name="lrn", size=3),
        node("Conv", ["b", "w2"], ["c"], name="c", strides=[2, 1]),
        node("Sin", ["c"], ["d"], name="sin"),
        node("Conv", ["d", "w3"], ["y"], name="y"),
    ]
    arrays = {"w1": noise(1, 5, 3, 3, 3), "w2": noise(2, 7, 5, 3, 2), "w3": noise(3, 2, 7, 1, 1)}
    return build(nodes, {"x": (1, 3, 9, 7)}, ["y"], arrays)


def host_reads_two_values() -> onnx.ModelProto:
    """The host takes a value that the array goes on with, and its own input; it gives two."""
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="a"),
        node("Conv", ["a", "w2"], ["b"], name="b"),
        node("Mul", ["a", "b"], ["m"], name="m"),
        node("Sin", ["b"], ["s"], name="s"),
        node("Add", ["m", "s"], ["t"], name="t"),
        node("Add", ["t", "a"], ["y"], name="y"),
    ]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y", "m"], {"w1": noise(1, 5, 3, 3, 3), "w2": noise(2, 5, 5, 1, 1)})


def host_at_the_end() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a"),
        node("Flatten", ["a"], ["f"], name="f"),
        node("Gemm", ["f", "g", "b"], ["l"], name="l", transB=1),
        node("Softmax", ["l"], ["y"], name="softmax"),
    ]
    arrays = {"w": noise(1, 5, 2, 3, 3), "g": noise(2, 11, 5 * 3 * 5), "b": noise(3, 11)}
    return build(nodes, {"x": (1, 2, 5, 7)}, ["y"], arrays)


def host_at_the_start() -> onnx.ModelProto:
    nodes = [node("Sin", ["x"], ["t"], name="t"), node("Conv", ["t", "w"], ["y"], name="y")]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y"], {"w": noise(1, 5, 3, 3, 3)})


def two_inputs_added() -> onnx.ModelProto:
    return build([node("Add", ["x", "z"], ["y"], name="y")], {"x": (1, 3, 5, 7), "z": (1, 3, 5, 7)}, ["y"])


def an_input_added_to_itself() -> onnx.ModelProto:
    return build([node("Add", ["x", "x"], ["y"], name="y")], {"x": (1, 3, 5, 7)}, ["y"])


def two_outputs() -> onnx.ModelProto:
    """One output from the middle, which another layer reads too."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], name="a"),
        node("Relu", ["a"], ["r"], name="r"),
        node("Conv", ["r", "w2"], ["y"], name="y"),
    ]
    arrays = {"w1": noise(1, 5, 3, 3, 3), "b1": noise(2, 5), "w2": noise(3, 7, 5, 3, 3)}
    return build(nodes, {"x": (1, 3, 9, 7)}, ["r", "y"], arrays)


def output_before_its_relu() -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w"], ["a"], name="a"), node("Relu", ["a"], ["r"], name="r")]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["a", "r"], {"w": noise(1, 5, 3, 3, 3)})


def input_returned() -> onnx.ModelProto:
    nodes = [node("Identity", ["x"], ["same"], name="same"), node("Conv", ["x", "w"], ["y"], name="y")]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["same", "y"], {"w": noise(1, 5, 3, 3, 3)})


def one_value_twice_an_output() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w"], ["y"], name="y"),
        node("Identity", ["y"], ["z"], name="z"),
        node("Flatten", ["y"], ["f"], name="f"),
    ]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y", "z", "f"], {"w": noise(1, 5, 3, 3, 3)})


def residual_used_three_times() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="a"),
        node("Conv", ["a", "w2"], ["b"], name="b", pads=[1, 1, 1, 1]),
        node("Add", ["b", "a"], ["s1"], name="s1"),
        node("Relu", ["s1"], ["r"], name="r"),
        node("Add", ["r", "a"], ["s2"], name="s2"),
        node("Add", ["a", "s2"], ["y"], name="y"),
    ]
    return build(nodes, {"x": (1, 3, 9, 7)}, ["y"], {"w1": noise(1, 5, 3, 3, 3), "w2": noise(2, 5, 5, 3, 3)})


def gemm_without_bias() -> onnx.ModelProto:
    return build([node("Gemm", ["x", "w"], ["y"], name="y", alpha=0.5)], {"x": (1, 13)}, ["y"], {"w": noise(1, 13, 17)})


def matmul_of_a_batch() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["a"], name="a"), node("Add", ["a", "b"], ["y"], name="y")]
    return build(nodes, {"x": (3, 13)}, ["y"], {"w": noise(1, 13, 5), "b": noise(2, 5)})


def static_batch_of_three() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a", strides=[2, 1]),
        node("MaxPool", ["a"], ["m"], name="m", kernel_shape=[2, 3]),
        node("Flatten", ["m"], ["f"], name="f"),
        node("Gemm", ["f", "g"], ["y"], name="y"),
    ]
    return build(nodes, {"x": (3, 2, 9, 7)}, ["y"], {"w": noise(1, 5, 2, 3, 3), "g": noise(2, 5 * 3 * 3, 7)})


def static_batch_and_host() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a"),
        node("LRN", ["a"], ["l"], name="l", size=3),
        node("Conv", ["l", "v"], ["y"], name="y"),
    ]
    return build(nodes, {"x": (3, 2, 5, 7)}, ["y"], {"w": noise(1, 5, 2, 3, 3), "v": noise(2, 3, 5, 1, 1)})


def unnamed_nodes() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w1"], ["a"]),
        node("Conv", ["a", "w2"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("AveragePool", ["c"], ["y"], kernel_shape=[2, 3], strides=[1, 2]),
    ]
    return build(nodes, {"x": (1, 3, 9, 7)}, ["y"], {"w1": noise(1, 5, 3, 3, 3), "w2": noise(2, 7, 5, 1, 1)})


def names_as_cnncc_makes_them() -> onnx.ModelProto:
    """Inputs and outputs are called what tensors of the array would be called."""
    nodes = [
        node("Conv", ["a.glb", "w1"], ["b"], name="a"),
        node("Conv", ["b", "w2"], ["a.w"], name="a.w"),
        node("Sin", ["a.w"], ["t"], name="a.params"),
        node("Conv", ["t", "w2"], ["a.w.glb"], name="a.w.glb"),
        node("Add", ["b", "a.q"], ["a.params.0"], name="b"),
    ]
    arrays = {"w1": noise(1, 5, 3, 3, 3), "w2": noise(2, 5, 5, 1, 1)}
    inputs = {"a.glb": (1, 3, 5, 7), "a.q": (1, 5, 3, 5)}
    return build(nodes, inputs, ["a.w.glb", "a.params.0", "a.w", "b", "t"], arrays)


def host_value_for_two_segments() -> onnx.ModelProto:
    """Two segments read what the first computes and the array never sees; also an input that only they read."""
    nodes = [
        node("Sin", ["x"], ["t"], name="t"),
        node("Cos", ["t"], ["u"], name="u"),
        node("Conv", ["u", "w"], ["c"], name="c"),
        node("Mul", ["c", "t"], ["m"], name="m"),
        node("Div", ["m", "z"], ["y"], name="y"),
    ]
    inputs = {"z": (1, 3, 5, 7), "x": (1, 3, 5, 7)}
    return build(nodes, inputs, ["y"], {"w": noise(1, 3, 3, 1, 1)})


def scalar_between_segments() -> onnx.ModelProto:
    nodes = [
        node("ReduceMax", ["x"], ["m"], name="m", keepdims=0),
        node("Conv", ["x", "w"], ["c"], name="c"),
        node("Div", ["c", "m"], ["y"], name="y"),
    ]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y", "m"], {"w": noise(1, 3, 3, 1, 1)})


def int16_output() -> onnx.ModelProto:
    """Integers as wide as the array's, which yet are none of its."""
    nodes = [node("Gemm", ["x", "w"], ["a"], name="a"), node("Cast", ["a"], ["y"], name="y", to=5)]
    return build(nodes, {"x": (1, 13)}, ["y", "a"], {"w": noise(1, 13, 5)})


def weird_names() -> onnx.ModelProto:
    x, w, y = "in put/:0", "w eights/ü\\", 'ä"\n<y>'
    nodes = [
        node("Conv", [x, w], ["/a b/"], name="/model.0/conv 1/Conv"),
        node("LRN", ["/a b/"], ["値"], name="ノード", size=3),
        node("Conv", ["値", "v"], [y], name='"quoted"\nlines'),
    ]
    return build(nodes, {x: (1, 3, 5, 7)}, [y, "/a b/"], {w: noise(1, 5, 3, 3, 3), "v": noise(2, 3, 5, 1, 1)})


def one_pixel() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="a"),
        node("Conv", ["a", "w2"], ["y"], name="y", pads=[1, 1, 1, 1]),
    ]
    return build(nodes, {"x": (1, 3, 1, 1)}, ["y"], {"w1": noise(1, 5, 3, 1, 1), "w2": noise(2, 2, 5, 3, 3)})


def unused_input() -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w"], ["y"], name="y")]
    return build(nodes, {"x": (1, 3, 5, 7), "unused": (1, 4)}, ["y"], {"w": noise(1, 5, 3, 3, 3)})


def pools_with_pads() -> onnx.ModelProto:
    nodes = [
        node("AveragePool", ["x"], ["a"], name="a", kernel_shape=[3, 3], pads=[1, 0, 2, 1], count_include_pad=1),
        node("MaxPool", ["a"], ["m"], name="m", kernel_shape=[3, 2], pads=[0, 1, 2, 0], strides=[2, 1]),
        node("AveragePool", ["m"], ["y"], name="y", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    return build(nodes, {"x": (1, 5, 11, 7)}, ["y"])


def max_pool_of_negatives() -> onnx.ModelProto:
    """A pad of 0 would win against values that are all negative."""
    nodes = [
        node("Clip", ["x", "lo", "hi"], ["c"], name="c"),
        node("MaxPool", ["c"], ["y"], name="y", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y"], {"lo": np.float32(-9), "hi": np.float32(-0.5)})


def clips() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a"),
        node("Clip", ["a", "lo", "hi"], ["b"], name="b"),
        node("Add", ["b", "a"], ["s"], name="s"),
        node("Clip", ["s", "", "hi"], ["y"], name="y"),
    ]
    arrays = {"w": noise(1, 5, 3, 3, 3), "lo": np.float32(-0.75), "hi": np.float32(1.5)}
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y"], arrays)


def clip_of_two_dims() -> onnx.ModelProto:
    """A clamp that is not fused, on a tensor that is no image."""
    nodes = [
        node("Gemm", ["x", "w"], ["a"], name="a"),
        node("Relu", ["a"], ["b"], name="b"),
        node("Add", ["a", "b"], ["y"], name="y"),
        node("Relu", ["x"], ["z"], name="z"),
    ]
    return build(nodes, {"x": (3, 13)}, ["y", "z"], {"w": noise(1, 13, 5)})


def seventeen_channels() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], name="a", pads=[1, 1, 1, 1]),
        node("Conv", ["a", "w2"], ["y"], name="y", strides=[2, 2]),
    ]
    arrays = {"w1": noise(1, 17, 17, 3, 3), "b1": noise(2, 17), "w2": noise(3, 19, 17, 5, 3)}
    return build(nodes, {"x": (1, 17, 11, 7)}, ["y"], arrays)


def weights_used_twice() -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w"], ["a"], name="a"), node("Conv", ["a", "w"], ["y"], name="y")]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y"], {"w": noise(1, 3, 3, 2, 3)})


def grouped_and_dilated() -> onnx.ModelProto:
    """Two groups in a loop over them, kernels with gaps."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a", group=2),
        node("Conv", ["a", "v"], ["b"], name="b", dilations=[2, 2]),
        node("Conv", ["b", "u"], ["y"], name="y"),
    ]
    arrays = {"w": noise(1, 6, 2, 3, 3), "v": noise(2, 5, 6, 3, 3), "u": noise(3, 2, 5, 1, 1)}
    return build(nodes, {"x": (1, 4, 9, 11)}, ["y"], arrays)


def global_pool_and_reshape() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="a"),
        node("GlobalAveragePool", ["a"], ["p"], name="p"),
        node("Reshape", ["p", "shape"], ["f"], name="f"),
        node("MatMul", ["f", "v"], ["y"], name="y"),
    ]
    arrays = {"w": noise(1, 5, 3, 3, 3), "shape": np.array([1, -1]), "v": noise(2, 5, 7)}
    return build(nodes, {"x": (1, 3, 7, 5)}, ["y", "f"], arrays)


def constant_output() -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w"], ["y"], name="y"), node("Relu", ["k"], ["z"], name="z")]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y", "z"], {"w": noise(1, 5, 3, 3, 3), "k": noise(2, 1, 3)})


def integer_output() -> onnx.ModelProto:
    """ArgMax gives int64, which no scale describes."""
    nodes = [node("Gemm", ["x", "w"], ["a"], name="a"), node("ArgMax", ["a"], ["y"], name="y", axis=1)]
    return build(nodes, {"x": (1, 13)}, ["y", "a"], {"w": noise(1, 13, 5)})


def scalar_output() -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w"], ["a"], name="a"), node("ReduceSum", ["a"], ["y"], name="y", keepdims=0)]
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y"], {"w": noise(1, 5, 3, 3, 3)})


def long_chain_of_reshapes() -> onnx.ModelProto:
    nodes = [
        node("Flatten", ["x"], ["a"], name="a"),
        node("Reshape", ["a", "s"], ["b"], name="b"),
        node("Conv", ["b", "w"], ["c"], name="c"),
        node("Reshape", ["c", "t"], ["d"], name="d"),
        node("Relu", ["d"], ["y"], name="y"),
    ]
    arrays = {"s": np.array([1, 5, 3, 7]), "t": np.array([1, 2, -1]), "w": noise(1, 4, 5, 2, 3)}
    return build(nodes, {"x": (1, 3, 5, 7)}, ["y", "b"], arrays)


CASES: tuple[Case, ...] = (
    only_host, only_host_two_outputs, host_reads_one_value_in_two_shapes,
    host_in_the_middle, host_reads_two_values, host_at_the_end, host_at_the_start,
    two_inputs_added, an_input_added_to_itself, two_outputs, output_before_its_relu, input_returned,
    one_value_twice_an_output, residual_used_three_times, gemm_without_bias,
    matmul_of_a_batch, static_batch_of_three, static_batch_and_host, unnamed_nodes, names_as_cnncc_makes_them,
    weird_names, one_pixel, unused_input, pools_with_pads, max_pool_of_negatives, clips, clip_of_two_dims,
    seventeen_channels, weights_used_twice, grouped_and_dilated, global_pool_and_reshape, constant_output,
    integer_output, scalar_output, host_value_for_two_segments, scalar_between_segments,
    int16_output, long_chain_of_reshapes,
)  # fmt: skip


def reference(path: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    """What the quantised network computes, as real numbers."""
    compilation = start_compilation(path, CompileOptions("spatial-8x8"))
    compilation.run("cnn")
    module = compilation.module
    outputs, _ = evaluate(module, compilation.ctx.weights, quantise_inputs(module, inputs))
    return dequantise_outputs(module, outputs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_cli_models_of_unusual_form(case: Case, tmp_path: Path) -> None:
    path = save(case(), tmp_path / "net.onnx")
    binary, outputs = tmp_path / "net.cnb", tmp_path / "out.npz"
    done("compile", path, "-o", binary)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in onnx.load(path).graph.input}
    data = {name: noise(7 + i, 2 * n, *rest) for i, (name, (n, *rest)) in enumerate(shapes.items())}
    np.savez(tmp_path / "in.npz", **data)
    done("run", binary, "--input", tmp_path / "in.npz", "--output", outputs)
    wanted = reference(path, data)
    with np.load(outputs) as got:
        assert set(got.files) == set(wanted)
        for name, values in wanted.items():
            assert np.array_equal(got[name], values), name
    result = done("verify", path, "--input", tmp_path / "in.npz")
    assert "DIFFERS" not in result.stdout


def by_name() -> onnx.ModelProto:
    model = build([node("Relu", ["x"], ["y"], name="y")], {"x": (1, 3, 5, 7)}, ["y"])
    model.graph.output.append(model.graph.input[0])
    return model


def integer_input() -> onnx.ModelProto:
    model = build([node("Gather", ["w", "x"], ["y"])], {"x": (1, 3)}, ["y"], {"w": noise(1, 5, 3)})
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return model


REFUSED = (
    (
        build([node("Identity", ["x"], ["y"])], {"x": (1, 3)}, ["y"]),
        "output 'y' is the same as 'x', which only the host",
    ),
    (
        build([node("Sin", ["x"], ["a"]), node("Identity", ["a"], ["b"])], {"x": (1, 3)}, ["a", "b"]),
        "output 'a' is the same as 'b', which only the host reads or computes",
    ),
    (by_name(), "output 'x' has the name of another input or output"),
    (integer_input(), "input 'x' is tensor<1x3xi64>: export the model with inputs of f32"),
    (
        build([node("Relu", ["x"], ["y"])], {"x": ()}, ["y"]),
        "input 'x' is tensor<f32>: export the model with inputs of f32, i8 or ui8 with a leading",
    ),
    (build([node("Relu", ["x"], ["y"])], {"x": (0, 3)}, ["y"]), "input 'x'"),
    (build([node("Relu", ["x"], ["y"])], {}, ["y"], {"x": noise(1, 2, 3)}), "the model has no inputs"),
)


@pytest.mark.parametrize(("model", "message"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_cli_models_that_are_refused(model: onnx.ModelProto, message: str, tmp_path: Path) -> None:
    path = save(model, tmp_path / "net.onnx")
    assert message in refused("compile", path, "-o", tmp_path / "net.cnb")
    assert not (tmp_path / "net.cnb").exists()


def test_cli_model_without_outputs_is_refused(tmp_path: Path) -> None:
    path = save(build([node("Relu", ["x"], ["y"])], {"x": (1, 3)}, []), tmp_path / "net.onnx")
    assert "the model has no outputs" in refused("compile", path, "-o", tmp_path / "net.cnb")


def test_cli_host_reads_an_input_under_another_shape(tmp_path: Path) -> None:
    nodes = [node("Flatten", ["x"], ["f"]), node("Softmax", ["f"], ["y"], axis=1)]
    path = save(build(nodes, {"x": (1, 3, 5, 4)}, ["y"]), tmp_path / "net.onnx")
    assert "steps agree" in done("verify", path).stdout
    done("compile", path, "-o", tmp_path / "net.cnb")
    done("run", tmp_path / "net.cnb")


def test_cli_layers_with_names_of_other_rows(tmp_path: Path) -> None:
    """A layer that is called as what is no layer gets a number: counters are by label."""
    model = conv_model()
    for layer, name in zip(model.graph.node, ("semaphores", "relu", "total"), strict=True):
        layer.name = name
    binary = tmp_path / "net.cnb"
    done("compile", save(model, tmp_path / "net.onnx"), "-o", binary)
    assert "counters are as predicted" in done("estimate", binary, "--check-counters").stdout
    rows = [line.split()[0] for line in done("run", binary).stdout.splitlines() if line.startswith("  ")]
    assert {"semaphores_2", "total_2", "total"} <= {*rows}


def test_cli_one_image_whose_result_is_a_number(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("ReduceMean", ["c"], ["y"], keepdims=0)]
    path = save(build(nodes, {"x": (1, 2, 5, 4)}, ["y"], {"w": noise(1, 3, 2, 2, 2)}), tmp_path / "net.onnx")
    for images in (1, 2):
        assert "steps agree" in done("verify", path, "--images", images).stdout


def test_cli_a_network_without_layers_on_the_array(tmp_path: Path) -> None:
    path = save(only_host(), tmp_path / "net.onnx")
    said = refused("compile", path, "--arch", "tcpa-4x4", "--parallel", "layers", "-o", tmp_path / "net.cnb")
    assert "no layer runs on the array" in said
    assert "+0.0 %" in done("estimate", path, "--front").stdout


def test_cli_a_front_states_options_that_compile_takes(tmp_path: Path) -> None:
    path = save(conv_model(), tmp_path / "net.onnx")
    points = json.loads(done("estimate", path, "--front", "--json").stdout)
    assert points and all((each["slack"] is None) == (each["objective"] != "cycles") for each in points)


def test_cli_writes_no_file_that_it_reads(tmp_path: Path) -> None:
    path, binary, data = save(conv_model(), tmp_path / "net.onnx"), tmp_path / "net.cnb", tmp_path / "in.npz"
    done("compile", path, "-o", binary)
    np.savez(data, x=noise(1, 1, 3, 11, 7))
    for arguments, file in (
        (("compile", path, "-o", path), path),
        (("run", binary, "-o", binary), binary),
        (("run", binary, "--input", data, "-o", tmp_path / "." / "in.npz"), data),
        (("run", binary, "--stats", tmp_path / "out", "-o", tmp_path / "out"), tmp_path / "out"),
        (("disasm", binary, "-o", binary), binary),
    ):
        was = file.read_bytes() if file.exists() else None
        assert f"{file}: is an input, or another output" in refused(*arguments)
        assert was == (file.read_bytes() if file.exists() else None)


def test_cli_writes_where_a_link_leads(tmp_path: Path) -> None:
    path, link = save(conv_model(), tmp_path / "net.onnx"), tmp_path / "link"
    (tmp_path / "out").mkdir()
    link.symlink_to(tmp_path / "out" / "file")
    for arguments in (("compile", path), ("opt", path)):
        done(*arguments, "-o", link)
        assert link.is_symlink() and [file.name for file in (tmp_path / "out").iterdir()] == ["file"]
        (tmp_path / "out" / "file").unlink()


def test_cli_writes_weights_where_a_link_leads(tmp_path: Path) -> None:
    path, link, file = save(conv_model(), tmp_path / "net.onnx"), tmp_path / "out.npz", tmp_path / "store" / "file.npz"
    file.parent.mkdir()
    link.symlink_to(file)
    for arguments in (("compile", path, "--emit", "nest"), ("opt", path)):
        done(*arguments, "-o", tmp_path / "out.mlir")
        assert link.is_symlink() and [each.name for each in file.parent.iterdir()] == ["file.npz"]
        file.unlink()


def test_cli_writes_into_a_pipe(tmp_path: Path) -> None:
    """It stays one, as a device does."""
    path, pipe = save(conv_model(), tmp_path / "net.onnx"), tmp_path / "pipe"
    os.mkfifo(pipe)
    for arguments in (
        ("compile", path, "--emit", "asm"),
        ("opt", path, "-p", "onnx-dead-code"),
        ("compile", path),
        ("run", tmp_path / "net.cnb", "--stats"),
    ):
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # nobody waits, even if nothing is written into it
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)  # the whole output has room
        done(*arguments, *(() if "--stats" in arguments else ("-o",)), pipe)
        with os.fdopen(reader, "rb") as file:
            assert pipe.is_fifo() and len(file.read()) > 100
        done("compile", path, "-o", tmp_path / "net.cnb")
