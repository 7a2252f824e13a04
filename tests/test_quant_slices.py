"""Slices of channels from ONNX to binaries: layers read them where the whole value lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_cases import build, done, refused, save
from cnn_ir import parse
from onnx import helper
from test_quant_concat import SHAPES, SHUFFLED, V, concat, same, to_nest
from test_quant_lowering import X, hosts, lowered, normal

from cnncc.dialects.array import ARRAY
from cnncc.errors import Refusal
from cnncc.eval.cnn import evaluate
from cnncc.passes.nest_to_array import NestToArrayPass

pytestmark = pytest.mark.usefixtures("short_searches")

node = helper.make_node
W = {"w6": normal(6, 3, 3, 3), "w2": normal(4, 2, 1, 1), "w4": normal(5, 4, 3, 3)}
IMAGE = node("Conv", ["x", "w6"], ["a"], name="a", auto_pad="SAME_UPPER")  # 2 6 9 7


POOL = node("MaxPool", ["b"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)


def split(value: str, sizes: str = "2.4", results: tuple[str, ...] = ("b", "c"), axis: int = 1):
    return node("Split", [value, sizes], [*results], name="split", axis=axis)


def cut(value: str, start: str, end: str, axis: str, *steps: str, result: str = "b"):
    return node("Slice", [value, start, end, axis, *steps], [result], name="cut")


CONVS = [node("Conv", ["b", "w2"], ["d"]), node("Conv", ["c", "w4"], ["e"], auto_pad="SAME_UPPER")]
SIZES = {
    "1.2": np.array([1, 2]),
    "2.4": np.array([2, 4]),
    "3.3": np.array([3, 3]),
    "1.2.3": np.array([1, 2, 3]),
    **{f"{i}": np.array([i]) for i in (-4, 0, 1, 2, 3, 99)},
}

CASES = {
    "a split, and layers of its parts": ([IMAGE, split("a"), *CONVS, concat(["d", "e"])], 2, 0),
    "a split by its last axes but two": (
        [IMAGE, split("a", axis=-3), *CONVS, node("Relu", ["e"], ["r"]), concat(["d", "r"])],
        2,
        0,
    ),
    "channels of the input": ([cut("x", "1", "99", "1"), node("Conv", ["b", "w2"], ["y"])], 1, 0),
    "a slice to the last channel but some": (
        [IMAGE, cut("a", "0", "-4", "1"), node("Conv", ["b", "w2"], ["y"])],
        1,
        0,
    ),
    "the unit of a network of shuffles": (
        [
            IMAGE,
            split("a", "3.3"),
            node("Conv", ["c", "v3"], ["d"]),
            node("Relu", ["d"], ["e"]),
            concat(["b", "e"], "c2"),
            *(
                helper.make_node(
                    n.op_type,
                    ["c2" if v == "c" else v for v in n.input],
                    n.output,
                    name=n.name,
                    **({"perm": [0, 2, 1, 3, 4]} if n.op_type == "Transpose" else {}),
                )
                for n in SHUFFLED
            ),
            node("MaxPool", ["s"], ["y"], kernel_shape=[2, 2]),
        ],
        2,
        1,
    ),
    "parts of a concatenation, across its operands": (
        [
            IMAGE,
            same("k"),
            concat(["a", "k"], "l"),
            cut("l", "3", "99", "1"),
            node("MaxPool", ["b"], ["y"], kernel_shape=[3, 3]),
        ],
        1,
        0,
    ),
    "all parts again, beside layers of one": (
        [IMAGE, split("a"), CONVS[1], concat(["b", "c", "e", "b"])],
        2,
        1,
    ),
    "all parts twice": ([IMAGE, split("a"), concat(["b", "c", "b", "c"])], 0, 1),
    "two parts of three": (
        [
            IMAGE, split("a", "1.2.3", ("b", "c", "d")), node("Conv", ["d", "v3"], ["e"]), concat(["c", "d", "e"]),
        ],
        2,
        1,
    ),
    "a sum of two parts": ([IMAGE, split("a", "3.3"), node("Add", ["b", "c"], ["y"])], 2, 0),
    "a part made flat": (
        [IMAGE, cut("a", "2", "99", "1"), node("Flatten", ["b"], ["f"]), node("Gemm", ["f", "g"], ["y"])],
        1,
        0,
    ),
    "a part that is read as one image": (
        [
            IMAGE,
            cut("a", "2", "99", "1"),
            node("Reshape", ["b", "one"], ["r"]),
            node("MaxPool", ["r"], ["y"], kernel_shape=[1, 1]),
        ],
        1,
        1,
    ),
    "a slice of a slice": (
        [IMAGE, cut("a", "1", "99", "1"), node("Slice", ["b", "1", "3", "1"], ["c"]), node("Conv", ["c", "w2"], ["y"])],
        2,
        0,
    ),
    "a part that the host reads, too": (
        [
            IMAGE, cut("a", "2", "99", "1"), node("Relu", ["b"], ["c"]), node("Sin", ["b"], ["d"]),
            node("Mul", ["c", "d"], ["y"]),
        ],
        1,
        1,
    ),
}  # fmt: skip
ARRAYS = {**V, **W, **SIZES, **SHAPES, "v3": normal(3, 3, 1, 1), "g": normal(252, 5), "one": np.array([1, -1, 9, 7])}


def used(nodes: list[onnx.NodeProto]) -> dict[str, np.ndarray]:
    return {name: array for name, array in ARRAYS.items() if any(name in each.input for each in nodes)}


def saved(name: str, folder: Path) -> Path:
    """The model of a case."""
    nodes, arrays = CASES[name][0], used(CASES[name][0])
    graph = helper.make_graph(
        nodes,
        "slices",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, X["x"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, key) for key, array in arrays.items()],
    )
    path = folder / "slices.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


@pytest.mark.parametrize("name", CASES)
def test_quant_slices_are_read_in_place(name: str, tmp_path: Path) -> None:
    text = done("compile", saved(name, tmp_path), "--emit", "cnn").stdout
    assert (text.count("= cnn.slice "), text.count("copy")) == CASES[name][1:]


@pytest.mark.parametrize("words", [65536, 900])
@pytest.mark.parametrize("name", CASES)
def test_quant_slices_verify(name: str, words: int, tmp_path: Path) -> None:
    """Every level computes what the one before does, near the model's own result; counters are as predicted."""
    model, arch = saved(name, tmp_path), tmp_path / "mine.toml"
    arch.write_text(done("arch", "show", "spatial-8x8").stdout.replace("words = 65536", f"words = {words}"))
    done("verify", model, "--arch", arch, "--images", 2, "--min-sqnr", 40)
    done("compile", model, "--arch", arch, "-o", tmp_path / "net.cnb")
    done("estimate", tmp_path / "net.cnb", "--check-counters")


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([IMAGE, cut("a", "1", "99", "2"), node("Relu", ["b"], ["y"])], "it cuts axes [2], not channels alone"),
        ([IMAGE, cut("a", "0", "99", "1", "2"), node("Relu", ["b"], ["y"])], "steps = [1, 2, 1, 1]: the array reads"),
        ([IMAGE, cut("a", "1", "99", "1"), node("Sin", ["b"], ["y"])], "no layer reads its result"),
        ([node("Sin", ["x"], ["a"]), cut("a", "1", "99", "1"), node("Conv", ["b", "w2"], ["y"])],
         "the host computes what it slices"),
    ],
)  # fmt: skip
def test_quant_slices_that_stay_on_the_host(nodes: list[onnx.NodeProto], reason: str) -> None:
    module, _, _ = lowered(nodes, X, ["y"], used(nodes))
    assert reason in "; ".join(host.reason.data for host in hosts(module))


def test_quant_slices_evaluate_to_their_formula() -> None:
    module, ctx = parse("""
    func.func @main(%x: tensor<1x6x2x3xi16>) -> tensor<1x3x2x3xi16> {
      %s = cnn.slice %x from 2 label "s" : tensor<1x6x2x3xi16> -> tensor<1x3x2x3xi16>
      func.return %s : tensor<1x3x2x3xi16>
    }""")
    x = np.random.default_rng(3).integers(-99, 99, (4, 6, 2, 3))
    (part,), trace = evaluate(module, ctx.weights, [x])
    assert np.array_equal(part, x[:, 2:5]) and np.array_equal(trace["s"], part)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("""%c = cnn.concat %s, %p label "c" : (tensor<2x3x2x3xi16>, tensor<2x3x2x3xi16>) -> tensor<2x6x2x3xi16>
            %y = cnn.pool "max" %c window <kernel = [1, 1]> label "y" : tensor<2x6x2x3xi16> -> tensor<2x6x2x3xi16>""",
         "'c' has a slice as operand; cnn-legalize copies such operands"),
        ("""%r = cnn.reshape %s : tensor<2x3x2x3xi16> -> tensor<1x6x2x3xi16>
            %y = cnn.pool "max" %r window <kernel = [1, 1]> label "y" : tensor<1x6x2x3xi16> -> tensor<1x6x2x3xi16>""",
         "'s' is read as 2 and 1 images, as other channels lie between them; cnn-legalize copies such slices"),
        ("""%y = cnn.slice %p from 1 label "y" : tensor<2x3x2x3xi16> -> tensor<2x1x2x3xi16>""",
         "'y' is channels of a tensor, which host and user cannot read; cnn-legalize copies them"),
    ],
)  # fmt: skip
def test_quant_slices_that_cannot_be_addressed_are_refused(body: str, problem: str) -> None:
    """IR that cnn-legalize has not seen."""
    dims = body.rsplit("-> ", 1)[1].strip()
    module, ctx = parse(f"""
    func.func @main(%x: tensor<2x6x2x3xi16> {{onnx.name = "x", cnn.quant = #cnn.quant<scale = 1.0>}})
        -> ({dims} {{onnx.name = "z", cnn.quant = #cnn.quant<scale = 1.0>}}) {{
      %s = cnn.slice %x from 2 label "s" : tensor<2x6x2x3xi16> -> tensor<2x3x2x3xi16>
      %p = cnn.pool "max" %s window <kernel = [1, 1]> label "p" : tensor<2x3x2x3xi16> -> tensor<2x3x2x3xi16>
      {body}
      func.return %y : {dims}
    }}""")
    ctx.load_dialect(ARRAY)
    with pytest.raises(Refusal) as refusal:
        to_nest(ctx, module)
        NestToArrayPass("spatial-8x8").apply(ctx, module)
    assert problem in str(refusal.value)


@pytest.mark.parametrize("operator", ["Slice", "Split"])
def test_quant_slices_of_an_input_are_for_the_host_where_layers_run_side_by_side(operator: str, tmp_path: Path) -> None:
    conv = node("Conv", ["c", "w2"], ["d"], name="d")
    nodes = [split("x", "1.2"), conv, node("MaxPool", ["d"], ["y"], kernel_shape=[2, 2])]
    net, arch = save(build(nodes, {"x": (1, 3, 9, 7)}, ["y"], used(nodes)), tmp_path / "net.onnx"), tmp_path / "a.toml"
    said = refused("compile", net, "--arch", "tcpa-4x4", "--parallel", "layers")
    assert "layer 'd' reads some channels of a value: the host can compute the Slice or Split (cores.host)" in said
    arch.write_text(done("arch", "show", "tcpa-4x4").stdout.replace('["Gemm"]', f'["{operator}"]'))
    assert f"has {operator} on the host" in done("check", net, "--arch", arch, "--parallel", "layers").stdout
    done("verify", net, "--arch", arch, "--parallel", "layers")


RESIDUALS = {
    "of a concatenation": [
        node("MaxPool", ["x"], ["p"], name="p", kernel_shape=[1, 3], pads=[0, 1] * 2),
        node("Add", ["p", "x"], ["s"]),
        node("Concat", ["x", "s"], ["y"], axis=1),
    ],
    "of channels": [
        split("x", "3.3"),
        node("Conv", ["c", "v3"], ["p"], name="p"),
        node("Add", ["p", "b"], ["y"]),
    ],
}


def residual_net(name: str, folder: Path) -> Path:
    """Three images of a sum, and those of its residual, which are at another distance of each other."""
    nodes = RESIDUALS[name]
    return save(build(nodes, {"x": (3, 6, 1, 3)}, ["y"], used(nodes)), folder / "net.onnx")


@pytest.mark.parametrize("name", RESIDUALS)
def test_quant_slices_and_parts_are_added_image_by_image(name: str, tmp_path: Path) -> None:
    """A commit has one start for results and residual. Loops over images move their views."""
    done("verify", residual_net(name, tmp_path))


@pytest.mark.parametrize("mapping", ["n||@rows > k||@cols > ifmap@rf > {w > s}", "k||@cols > ifmap@rf > {n > w > s}"])
def test_quant_slices_and_parts_are_not_added_with_images_side_by_side(mapping: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f'["p"]\nmapping = "{mapping}"\n')
    said = refused("compile", residual_net("of a concatenation", tmp_path), "--schedule", tmp_path / "mine.toml")
    assert "layer p: images of residual and output lie at different distances" in said
