"""DepthToSpace from ONNX to loop nests: the pixels of several values in turn, which are moved, not computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_cases import build, done, save
from cnn_ir import imported
from frontend_models import run_file
from onnx import helper, numpy_helper
from test_quant_concat import integers, lowered_again, to_nest
from test_quant_lowering import X, decibels, hosts, lowered, normal

from cnncc.arch.model import load_arch
from cnncc.dialects.cnn import ConcatOp, PoolOp
from cnncc.driver.pipeline import Settings, import_model
from cnncc.eval import cnn, nest
from cnncc.passes._onnx.placement import place_nodes

pytestmark = pytest.mark.usefixtures("short_searches")

node = helper.make_node
W = {
    "w8": normal(8, 3, 3, 3),
    "w9": normal(9, 3, 1, 1),
    "w81": normal(81, 3, 1, 1),
    **{f"v{i}": normal(2, 3, 3, 3) for i in range(9)},
}


def conv(result: str, weights: str) -> onnx.NodeProto:
    return node("Conv", ["x", weights], [result], name=result, auto_pad="SAME_UPPER")


def up(value: str, block: int, result: str = "y", **attributes: object) -> onnx.NodeProto:
    return node("DepthToSpace", [value], [result], name=result, blocksize=block, **attributes)


def parts(count: int) -> list[onnx.NodeProto]:
    """Convolutions, and a concatenation `c` of them."""
    names = [f"p{i}" for i in range(count)]
    return [
        *(conv(name, f"v{i}") for i, name in enumerate(names)),
        node("Concat", names, ["c"], name="c", axis=1),
    ]


# Nodes; how many copies cnn-legalize makes, of how many concatenations.
CASES = {
    "of a concatenation": ([*parts(4), up("c", 2)], 0, 1),
    "of a concatenation, three by three": ([*parts(9), up("c", 3, mode="DCR")], 0, 1),
    "of convolutions with a Relu each": (
        [*(conv(f"p{i}", f"v{i}") for i in range(4)), *(node("Relu", [f"p{i}"], [f"r{i}"]) for i in range(4)),
         node("Concat", ["r0", "r1", "r2", "r3"], ["c"], axis=1), up("c", 2)],
        0,
        1,
    ),
    "before a Relu and a layer": (
        [*parts(4), up("c", 2, "u"), node("Relu", ["u"], ["r"]), node("MaxPool", ["r"], ["y"], kernel_shape=[3, 3])],
        0,
        1,
    ),
    "of one convolution": ([conv("c", "w8"), up("c", 2)], 4, 1),
    "of one convolution and its Relu, three by three": (
        [conv("c", "w9"), node("Relu", ["c"], ["r"]), up("r", 3)], 9, 1,
    ),
    "of each channel": ([conv("c", "w8"), up("c", 2, mode="CRD")], 4, 1),
    "of each channel, of two convolutions behind pools": (
        [conv("a", "w8"), conv("b", "w8"), node("Concat", ["a", "b"], ["c"], axis=1),
         node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2]), up("m", 2, mode="CRD")], 4, 2,
    ),
    "of an input": ([node("Concat", ["x"] * 4, ["c"], axis=1), up("c", 2)], 4, 1),
    "of a concatenation that others read": (
        [*parts(4), up("c", 2), node("MaxPool", ["c"], ["z"], kernel_shape=[2, 2])], 4, 2,
    ),
    "of other parts than the operands": (
        [conv("a", "w8"), conv("b", "w8"), node("Concat", ["a", "b"], ["c"], axis=1), up("c", 2)], 4, 2,
    ),
    "of what is an operand three times": (
        [conv("a", "v0"), conv("b", "v1"), node("Concat", ["a", "b", "a", "a"], ["c"], axis=1), up("c", 2)], 3, 1,
    ),
    "as an operand of a concatenation": (
        [*parts(4), up("c", 2, "u"), *(conv(f"q{i}", f"v{i}") for i in range(4)),
         node("Concat", ["q0", "q1", "q2", "q3"], ["d"], axis=1), up("d", 2, "v"),
         node("Concat", ["u", "v"], ["e"], axis=1), node("MaxPool", ["e"], ["y"], kernel_shape=[2, 2])],
        0,
        3,
    ),
    "of pixels in turn": (
        [*parts(4), up("c", 2, "u"), node("Concat", ["u"] * 4, ["d"], axis=1), up("d", 2)], 4, 2,
    ),
    "one by one, which moves nothing": ([conv("c", "w8"), up("c", 1)], 0, 0),
}  # fmt: skip


def used(nodes: list[onnx.NodeProto]) -> dict[str, np.ndarray]:
    return {key: array for key, array in W.items() if any(key in each.input for each in nodes)}


@pytest.mark.parametrize("name", CASES)
def test_pixels_in_turn_are_onnxruntimes(name: str) -> None:
    nodes, copies, concatenations = CASES[name]
    outputs = [value for value in "yz" if any(value in each.output for each in nodes)]
    module, want, got = lowered(nodes, X, outputs, used(nodes))
    assert not hosts(module)
    assert all(decibels(want[each], got[each]) > 60 for each in outputs)
    labels = [op.label.data for op in module.walk() if isinstance(op, PoolOp) and op.label]
    assert sum(".copy" in label for label in labels) == copies
    assert sum(isinstance(op, ConcatOp) for op in module.walk()) == concatenations


@pytest.mark.parametrize("name", CASES)
def test_pixels_in_turn_of_nests_are_those_of_the_cnn_level(name: str) -> None:
    nodes = CASES[name][0]
    module, ctx = lowered_again(nodes, used(nodes))
    inputs = integers(module)
    want, trace = cnn.evaluate(module, ctx.weights, inputs)
    to_nest(ctx, module)
    got, keyed = nest.evaluate(module, ctx.weights, inputs)
    assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))
    assert keyed.keys() == trace.keys() and all(np.array_equal(keyed[key], trace[key]) for key in trace)


def test_pixels_in_turn_share_a_scale() -> None:
    nodes = CASES["before a Relu and a layer"][0]
    module, ctx = imported(nodes, X, ["y"], used(nodes))
    placement = place_nodes(module, ctx.weights)
    results = {node.node_name.data: node.results[0] for node in placement.layers if node.node_name}
    assert len({placement.root(results[name]) for name in ("p0", "p1", "p2", "p3", "c", "u")}) == 1


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([conv("c", "w81"), up("c", 9)], "blocksize = 9: the array takes up to 8 * 8 values in turn"),
        (
            [conv("c", "w8"), node("Sin", ["c"], ["s"]), up("s", 2, "u"), node("Relu", ["u"], ["r"]),
             node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2])],
            "'u': the host computes the pixels that it puts in turn",
        ),
        ([node("Sin", ["x"], ["s"]), node("Concat", ["s"] * 4, ["c"], axis=1), up("c", 2)],
         "'y': the host computes the pixels that it puts in turn"),
    ],
)  # fmt: skip
def test_pixels_in_turn_that_stay_on_the_host(nodes: list[onnx.NodeProto], reason: str) -> None:
    module, want, got = lowered(nodes, X, ["y"], used(nodes))
    assert reason in "; ".join(host.reason.data for host in hosts(module))
    assert decibels(want["y"], got["y"]) > 60


@pytest.mark.parametrize("words", [65536, 900])
@pytest.mark.parametrize("name", CASES)
def test_pixels_in_turn_verify(name: str, words: int, tmp_path: Path) -> None:
    """Every level computes what the one before does, by itself no layer errs, and counters are as predicted."""
    nodes = CASES[name][0]
    outputs = [value for value in "yz" if any(value in each.output for each in nodes)]
    net, arch = save(build(nodes, X, outputs, used(nodes)), tmp_path / "net.onnx"), tmp_path / "mine.toml"
    arch.write_text(done("arch", "show", "spatial-8x8").stdout.replace("words = 65536", f"words = {words}"))
    said = done("verify", net, "--arch", arch, "--images", 2, "--min-sqnr", 40).stdout
    assert "by itself no layer errs by more than 4 times its noise" in said
    done("compile", net, "--arch", arch, "-o", tmp_path / "net.cnb")
    done("estimate", tmp_path / "net.cnb", "--check-counters")


STEPS = {"s": np.float32(0.02), "z": np.int8(3), "t": np.float32(0.03), "wz": np.int8(0)}


def dequantised(value: str, result: str, step: str = "s") -> onnx.NodeProto:
    return node("DequantizeLinear", [value, step, "z"], [result], name=result)


def quantised(value: str, result: str, step: str = "s") -> onnx.NodeProto:
    return node("QuantizeLinear", [value, step, "z"], [result], name=result)


def of_codes(result: str) -> onnx.NodeProto:
    """A convolution of the codes q."""
    steps = ["q", "s", "z", f"w{result}", "s", "wz", "s", "z"]
    return node("QLinearConv", steps, [result], name=result, auto_pad="SAME_UPPER")


CONVS = [of_codes(f"p{i}") for i in range(4)]
REALS = [dequantised(f"p{i}", f"r{i}") for i in range(4)]
OF_REALS = node("Concat", [f"r{i}" for i in range(4)], ["c"], name="c", axis=1)
CODES = {
    "dequantised after a concatenation of codes": [
        *CONVS, node("Concat", [f"p{i}" for i in range(4)], ["k"], axis=1), dequantised("k", "c"), up("c", 2, "u"),
        quantised("u", "y"),
    ],
    "dequantised before a concatenation": [*CONVS, *REALS, OF_REALS, up("c", 2, "u"), quantised("u", "y")],
    "codes between the concatenation and the pixels": [
        *CONVS, *REALS, OF_REALS, quantised("c", "k"), dequantised("k", "d"), up("d", 2, "u"), quantised("u", "y"),
    ],
    "of another scale behind": [*CONVS, *REALS, OF_REALS, up("c", 2, "u"), quantised("u", "y", "t")],
    "of one convolution": [of_codes("p"), dequantised("p", "c"), up("c", 2, "u"), quantised("u", "y")],
    "of each channel": [of_codes("p"), dequantised("p", "c"), up("c", 2, "u", mode="CRD"), quantised("u", "y")],
}  # fmt: skip


@pytest.mark.parametrize("name", CODES)
def test_pixels_in_turn_of_codes_are_onnxruntimes(name: str, tmp_path: Path) -> None:
    """Each code, of networks whose integers are the model's own."""
    weights = {f"wp{i}": (2, 3, 3, 3) for i in range(4)} | {"wp": (8, 3, 3, 3)}
    rng = np.random.default_rng(4)
    arrays = STEPS | {key: rng.integers(-128, 128, dims).astype(np.int8) for key, dims in weights.items()}
    nodes = CODES[name]
    constants = [
        numpy_helper.from_array(array, key) for key, array in arrays.items() if any(key in n.input for n in nodes)
    ]
    q = helper.make_tensor_value_info("q", onnx.TensorProto.INT8, (1, 3, 5, 4))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.INT8, (1, 2, 10, 8))
    graph = helper.make_graph(nodes, "codes", [q], [y], constants)
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    compilation = import_model(path, 1, Settings(load_arch("spatial-8x8"), "spatial-8x8", 16))
    compilation.run("cnn")
    module, store = compilation.module, compilation.ctx.weights
    assert not hosts(module) and any(isinstance(op, ConcatOp) and op.pixels == (2, 2) for op in module.walk())
    feeds = {"q": rng.integers(-128, 128, (1, 3, 5, 4)).astype(np.int8)}
    results, _ = cnn.evaluate(module, store, cnn.quantise_inputs(module, feeds))
    (want,) = run_file(path, feeds)
    assert np.array_equal(cnn.dequantise_outputs(module, results)["y"], want)


def test_pixels_in_turn_beside_cores_are_the_hosts(tmp_path: Path) -> None:
    nodes = CASES["of one convolution"][0]
    net = save(build(nodes, {"x": (1, 3, 9, 7)}, ["y"], used(nodes)), tmp_path / "net.onnx")
    said = done("check", net, "--arch", "tcpa-4x4", "--parallel", "layers").stdout
    assert "layers run side by side, which have one result, not several to put in turn" in " ".join(said.split())
    done("verify", net, "--arch", "tcpa-4x4", "--parallel", "layers")
