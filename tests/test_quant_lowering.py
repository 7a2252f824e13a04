"""onnx -> cnn, layer by layer: what comes out is near the float result, and what cannot be done is on the host."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cnn_ir import imported
from onnx import helper
from xdsl.dialects.builtin import StringAttr

from cnncc.dialects.cnn import ClampOp, ConvOp, HostOp, PoolOp, Range
from cnncc.driver.calibrate import calibrate
from cnncc.errors import Refusal
from cnncc.eval.cnn import dequantise_outputs, evaluate, quantise_inputs
from cnncc.eval.onnx import evaluate as evaluate_float
from cnncc.main_function import main_arguments, returned
from cnncc.passes._onnx.calibration import write_ranges
from cnncc.passes.cnn_fuse_epilogue import CnnFuseEpiloguePass
from cnncc.passes.cnn_legalize import CnnLegalizePass
from cnncc.passes.onnx_to_cnn import OnnxToCnnPass

RNG = np.random.default_rng(20)  # for what is drawn while tests are collected, in a fixed order
X = {"x": (2, 3, 9, 7)}
BATCHES = 8


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


W = {"w": normal(5, 3, 3, 2), "b": normal(5)}
node = helper.make_node


def conv(result: str = "y", **attributes):
    return node("Conv", ["x", "w", "b"], [result], name=f"/{result}/Conv", **attributes)


def decibels(want: np.ndarray, got: np.ndarray) -> float:
    noise = np.square(want.astype(np.float64) - got).sum()
    return float(10 * np.log10(np.square(want.astype(np.float64)).sum() / noise)) if noise else float("inf")


def lowered(nodes, inputs, outputs, arrays, opset: int = 17, bits: int = 16, psum_bits: int = 32):
    """The module before and after, and the real results of both on the data it was calibrated with."""
    module, ctx = imported(nodes, inputs, outputs, arrays, opset)
    rng = np.random.default_rng(21)  # the same for each test, whichever process runs it
    data = {
        name: rng.standard_normal((BATCHES * shape[0], *shape[1:])).astype(np.float32) for name, shape in inputs.items()
    }
    parts = [{name: np.split(array, BATCHES)[i] for name, array in data.items()} for i in range(BATCHES)]
    runs = [evaluate_float(module, ctx.weights, part) for part in parts]
    want = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
    assert calibrate(module, ctx.weights, data, bits, psum_bits) == []
    OnnxToCnnPass(bits, psum_bits).apply(ctx, module)
    module.verify()
    integers = quantise_inputs(module, data)
    results, trace = evaluate(module, ctx.weights, integers)
    CnnFuseEpiloguePass().apply(ctx, module)
    CnnLegalizePass().apply(ctx, module)
    module.verify()
    fused, fused_trace = evaluate(module, ctx.weights, integers)
    assert all(np.array_equal(a, b) for a, b in zip(results, fused, strict=True))
    # Copies of operands of a concatenation are new.
    assert all(np.array_equal(trace[key], fused_trace[key]) for key in fused_trace if ".copy" not in key)
    return module, want, dequantise_outputs(module, results)


def hosts(module) -> list[HostOp]:
    return [op for op in module.walk() if isinstance(op, HostOp)]


ON_ARRAY = {
    "conv": ([conv()], W),
    "conv without bias": ([node("Conv", ["x", "w"], ["y"])], W),
    "conv with pads and strides": ([conv(pads=[2, 0, 1, 1], strides=[2, 3])], W),
    "conv with SAME_UPPER": ([conv(auto_pad="SAME_UPPER", strides=[2, 2])], W),
    "conv with SAME_LOWER": ([conv(auto_pad="SAME_LOWER", strides=[2, 2])], W),
    "conv with VALID": ([conv(auto_pad="VALID")], W),
    "conv and relu": ([conv("c"), node("Relu", ["c"], ["y"])], W),
    "conv and relu6": (
        [conv("c"), node("Clip", ["c", "lo", "hi"], ["y"])],
        {**W, "lo": np.float32(0), "hi": np.float32(6)},
    ),
    "clip above only": ([node("Clip", ["x", "", "hi"], ["y"])], {"hi": np.float32(0.7)}),
    "conv and leaky relu": ([conv("c"), node("LeakyRelu", ["c"], ["y"], alpha=0.1)], W),
    "leaky relu of sums of sums": (
        [
            conv("c", auto_pad="SAME_UPPER"),
            node("LeakyRelu", ["c"], ["l"]),
            node("Conv", ["x", "v"], ["d"]),
            node("LeakyRelu", ["d"], ["m"], alpha=-0.3),
            node("Add", ["m", "l"], ["a"]),
            node("LeakyRelu", ["a"], ["y"], alpha=0.75),
        ],
        {**W, "v": normal(5, 3, 1, 1)},
    ),
    "leaky relu beside other readers": (
        [conv("c"), node("LeakyRelu", ["c"], ["l"], alpha=0.25), node("Add", ["l", "c"], ["y"])],
        W,
    ),
    "leaky relu of an average": (
        [node("AveragePool", ["x"], ["p"], kernel_shape=[3, 2]), node("PRelu", ["p", "s"], ["y"])],
        {"s": np.float32([0.2])},
    ),
    "leaky relu of two dims": (
        [node("Flatten", ["x"], ["f"]), node("LeakyRelu", ["f"], ["l"], alpha=0.5), node("Gemm", ["l", "g"], ["y"])],
        {"g": normal(189, 5)},
    ),
    "max pool": ([node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 2, 1])], {}),
    "max pool, ceil_mode that adds nothing": (
        [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)],
        {},
    ),
    "max pool, ceil_mode that adds windows": (
        [node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)],
        {},
    ),
    "max pool, ceil_mode with pads and gaps": (
        [
            node(
                "MaxPool",
                ["x"],
                ["y"],
                kernel_shape=[2, 3],
                strides=[4, 2],
                pads=[0, 1, 1, 0],
                dilations=[2, 1],
                ceil_mode=1,
            )
        ],
        {},
    ),
    "max pool, ceil_mode whose last window would begin in the padding": (
        [node("MaxPool", ["x"], ["y"], kernel_shape=[2, 1], strides=[3, 1], pads=[0, 0, 1, 0], ceil_mode=1)],
        {},
    ),
    "max pool, ceil_mode and VALID": (
        [node("MaxPool", ["x"], ["y"], kernel_shape=[2, 3], strides=[2, 2], auto_pad="VALID", ceil_mode=1)],
        {},
    ),
    "max pool, ceil_mode and SAME_LOWER": (
        [node("MaxPool", ["x"], ["y"], kernel_shape=[2, 3], strides=[2, 2], auto_pad="SAME_LOWER", ceil_mode=1)],
        {},
    ),
    "global max pool": ([node("GlobalMaxPool", ["x"], ["y"])], {}),
    "average pool, all windows in the same corner": (
        [node("AveragePool", ["x"], ["y"], kernel_shape=[10, 8], pads=[0, 0, 1, 1])],
        {},
    ),
    "average pool, pads as wide as the stride": (
        [node("AveragePool", ["x"], ["y"], kernel_shape=[3, 5], strides=[8, 6], pads=[1, 2, 1, 2])],
        {},
    ),
    "average pool that counts pads but not what ceil_mode adds": (
        [
            node(
                "AveragePool",
                ["x"],
                ["y"],
                kernel_shape=[12, 9],
                strides=[5, 5],
                pads=[1, 0, 1, 1],
                count_include_pad=1,
                ceil_mode=1,
            )
        ],
        {},
    ),
    "average pool, ceil_mode over one side": (
        [node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)],
        {},
    ),
    "average pool that leaves out pads": (
        [node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], pads=[0, 1, 0, 0])],
        {},
    ),
    "leaky relu of an average that leaves out pads": (
        [node("AveragePool", ["x"], ["p"], kernel_shape=[3, 3], pads=[1] * 4), node("LeakyRelu", ["p"], ["y"])],
        {},
    ),
    "batch normalisation": (
        [node("BatchNormalization", ["x", "s", "t", "m", "v"], ["y"], epsilon=0.25)],
        {"s": normal(3), "t": normal(3), "m": normal(3), "v": normal(3) ** 2},
    ),
    "batch normalisation of two dims and a relu": (
        [
            node("Flatten", ["x"], ["f"]),
            node("BatchNormalization", ["f", "s", "t", "m", "v"], ["n"]),
            node("Relu", ["n"], ["y"]),
        ],
        {"s": normal(189), "t": normal(189), "m": normal(189), "v": normal(189) ** 2 + np.float32(0.1)},
    ),
    "mean of rows and columns": ([node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)], {}),
    "mean of columns": ([node("ReduceMean", ["x"], ["y"], axes=[-1])], {}),
    "transpose of a column": (
        [node("GlobalAveragePool", ["x"], ["p"]), node("Transpose", ["p"], ["y"], perm=[0, 2, 3, 1])],
        {},
    ),
    "average pool": ([node("AveragePool", ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2])], {}),
    "average pool that counts pads": (
        [node("AveragePool", ["x"], ["y"], kernel_shape=[3, 2], pads=[1, 0, 2, 1], count_include_pad=1)],
        {},
    ),
    "global average pool": ([node("GlobalAveragePool", ["x"], ["y"])], {}),
    "flatten and gemm": (
        [node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "g", "b"], ["y"], transB=1, alpha=0.5, beta=2.0)],
        {"g": normal(5, 189), "b": normal(1, 5)},
    ),
    "gemm, scalar bias, relu, gemm": (
        [
            node("Reshape", ["x", "s"], ["f"]),
            node("Gemm", ["f", "g", "b"], ["m"]),
            node("Relu", ["m"], ["r"]),
            node("Gemm", ["r", "h"], ["y"]),
        ],
        {"s": np.array([2, -1]), "g": normal(189, 5), "b": normal(), "h": normal(5, 4)},
    ),
    "matmul": ([node("Flatten", ["x"], ["f"]), node("MatMul", ["f", "g"], ["y"])], {"g": normal(189, 5)}),
    "add of an input to itself": ([node("Add", ["x", "x"], ["y"])], {}),
    "residual add with relu": (
        [
            conv("c", auto_pad="SAME_UPPER"),
            node("Conv", ["x", "v"], ["d"]),
            node("Add", ["d", "c"], ["a"]),
            node("Relu", ["a"], ["y"]),
        ],
        {**W, "v": normal(5, 3, 1, 1)},
    ),
    "add in two dims": (
        [
            node("Flatten", ["x"], ["f"]),
            node("Gemm", ["f", "g"], ["m"]),
            node("Gemm", ["f", "h"], ["o"]),
            node("Add", ["m", "o"], ["y"]),
        ],
        {"g": normal(189, 5), "h": normal(189, 5)},
    ),
    "relu of a flattened image": ([node("Flatten", ["x"], ["f"]), node("Relu", ["f"], ["y"])], {}),
    "squeeze": (
        [node("GlobalAveragePool", ["x"], ["p"]), node("Squeeze", ["p", "axes"], ["y"])],
        {"axes": np.array([2, 3])},
    ),
}


@pytest.mark.parametrize("name", ON_ARRAY)
def test_quant_lowering_16_bits_are_near_the_float_result(name: str) -> None:
    nodes, arrays = ON_ARRAY[name]
    module, want, got = lowered(nodes, X, ["y"], arrays)
    assert not hosts(module)
    assert got["y"].shape == want["y"].shape
    assert decibels(want["y"], got["y"]) > 70


@pytest.mark.parametrize("name", ON_ARRAY)
def test_quant_lowering_8_bits_are_near_the_float_result(name: str) -> None:
    nodes, arrays = ON_ARRAY[name]
    module, want, got = lowered(nodes, X, ["y"], arrays, bits=8)
    assert not hosts(module)
    assert decibels(want["y"], got["y"]) > 25


def test_quant_lowering_residual_is_fused_into_the_last_sum() -> None:
    """Of two convs that only an Add reads, the later one takes the Add, in whichever order it names them."""
    nodes, arrays = ON_ARRAY["residual add with relu"]
    for names in (["d", "c"], ["c", "d"]):
        module, _, _ = lowered([*nodes[:2], node("Add", names, ["a"]), nodes[3]], X, ["y"], arrays)
        ops = [op for op in module.walk() if op.name.startswith("cnn.")]
        assert [type(op) for op in ops] == [ConvOp, ConvOp]
        assert ops[1].residual is ops[0].result


def test_quant_lowering_leaky_relu_is_part_of_the_last_sum() -> None:
    nodes, arrays = ON_ARRAY["leaky relu of sums of sums"]
    module, _, _ = lowered(nodes, X, ["y"], arrays)
    ops = [op for op in module.walk() if isinstance(op, ConvOp | PoolOp)]
    assert [(type(op), op.steps.data.slope) for op in ops] == [
        (ConvOp, np.float32(0.01)), (ConvOp, np.float32(-0.3)), (PoolOp, 0.75),
    ]  # fmt: skip
    assert ops[1].residual is ops[0].result


def test_quant_lowering_48_bit_psums_keep_more() -> None:
    nodes, arrays = ON_ARRAY["flatten and gemm"]
    _, want, narrow = lowered(nodes, X, ["y"], arrays)
    _, want48, wide = lowered(nodes, X, ["y"], arrays, psum_bits=48)
    assert decibels(want48["y"], wide["y"]) > decibels(want["y"], narrow["y"]) + 3


def test_quant_lowering_clip_before_opset_11() -> None:
    nodes = [conv("c"), node("Clip", ["c"], ["y"], min=-0.5, max=1.5)]
    module, want, got = lowered(nodes, X, ["y"], W, opset=10)
    assert not hosts(module)
    assert decibels(want["y"], got["y"]) > 70
    assert got["y"].min() > -0.501


ON_HOST = {
    "computed weights": ([node("Conv", ["x", "x"], ["y"])], {}, "input 1 is not|input 1 is computed"),
    "slope beyond 1": ([node("LeakyRelu", ["x"], ["y"], alpha=1.5)], {}, "the slope 1.5 is not within -1 to 1"),
    "slopes by channel": (
        [node("PRelu", ["x", "s"], ["y"])],
        {"s": normal(3, 1, 1)},
        "its slopes differ: the output units have one",
    ),
    "mean over channels": (
        [node("ReduceMean", ["x"], ["y"], axes=[1, 2])],
        {},
        r"axes = \[1, 2\]: the array has means over h and w",
    ),
    "transpose": (
        [node("Transpose", ["x"], ["y"], perm=[0, 2, 3, 1])],
        {},
        r"perm = \[0, 2, 3, 1\] changes the order of the elements",
    ),
    "normalisation that trains": (
        [node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y", "m", "v"], training_mode=1)],
        {"s": np.ones(3, np.float32)},
        "it is no normalisation in inference",
    ),
    "broadcast add": ([node("Add", ["x", "c"], ["y"])], {"c": normal(3, 1, 1)}, "input 1 is constant"),
    "transA": (
        [node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "g"], ["y"], transA=1)],
        {"g": normal(2, 5)},
        "transA",
    ),
    "no such operator": ([node("Sin", ["x"], ["y"], name="s")], {}, "Sin node 's': the array has no such"),
    "other padding than zeros": (
        [node("Pad", ["x", "pads"], ["p"], name="p", mode="reflect"), node("Relu", ["p"], ["y"])],
        {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
        "Pad node 'p': it is not folded: it pads other than zeros around rows and columns, or not a Conv",
    ),
    "bias by row": (
        [node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "g", "b"], ["y"])],
        {"g": normal(189, 5), "b": normal(2, 1)},
        "input 2 differs from row to row",
    ),
}


@pytest.mark.parametrize("name", ON_HOST)
def test_quant_lowering_the_rest_is_on_the_host_with_the_reason(name: str) -> None:
    nodes, arrays, reason = ON_HOST[name]
    x = {"x": (3, 3, 9, 7)} if name == "computed weights" else X
    module, want, got = lowered(nodes, x, ["y"], arrays)
    (host,) = hosts(module)
    assert re.search(reason, host.reason.data)
    # Nothing is quantised on the way where the array has no part in it.
    assert decibels(want["y"], got["y"]) > (70 if name == "transA" or "row" in reason else 140)


# Functions of single numbers: by operator, the opset from which on ONNX has it, and attributes.
FUNCTIONS: dict[str, tuple[int, dict[str, float]]] = {
    "Sigmoid": (13, {}), "Tanh": (13, {}), "Elu": (7, {"alpha": 0.5}), "Selu": (7, {}), "Celu": (12, {"alpha": 2.0}),
    "Softplus": (7, {}), "Erf": (13, {}), "Gelu": (20, {}), "Mish": (18, {}),
    "HardSigmoid": (7, {}), "HardSwish": (14, {}),
}  # fmt: skip
# It has a kink between two entries.
LESS_DB = {"HardSwish": 60}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_quant_lowering_functions_are_tables(function: str) -> None:
    """Of what a layer computes. Those of the host's results stay there if the host reads them, too."""
    opset, attributes = FUNCTIONS[function]
    nodes = [
        conv("c"),
        node(function, ["c"], ["y"], name="f", **attributes),
        node("Sin", ["y"], ["s"], name="s"),
        node(function, ["s"], ["g"], name="g", **attributes),
        node("Cos", ["g"], ["z"], name="t"),
    ]
    module, want, got = lowered(nodes, X, ["y", "z"], W, opset=opset)
    (host,) = hosts(module)
    assert f"{function} node 'g': it stands between host nodes" in host.reason.data and "'f'" not in host.reason.data
    (layer,) = (op for op in module.walk() if isinstance(op, ConvOp))
    assert layer.steps.data.table
    assert decibels(want["y"], got["y"]) > LESS_DB.get(function, 70)


def test_quant_lowering_contiguous_host_nodes_are_one_segment() -> None:
    nodes = [
        conv("c"),
        node("Sin", ["c"], ["s"], name="s"),
        node("Relu", ["s"], ["r"], name="r"),  # free on the array, but that would cost two conversions
        node("Max", ["r", "c"], ["m"], name="m"),
        node("Conv", ["m", "v"], ["d"], name="/d/Conv"),
        node("Softmax", ["d"], ["y"], name="soft", axis=1),
        node("Cos", ["x"], ["z"], name="cos"),
    ]
    module, want, got = lowered(nodes, X, ["y", "z", "d"], {**W, "v": normal(4, 5, 1, 1)})
    first, second = hosts(module)
    assert first.reason.data == (
        "Sin node 's': the array has no such operator; Relu node 'r': it stands between host nodes; "
        "Max node 'm': the array has no such operator; Cos node 'cos': the array has no such operator"
    )
    assert [quant.data.scale > 0 for quant in first.output_quants] == [True, False]
    assert second.label == StringAttr("soft")
    assert [quant.data.scale > 0 for quant in second.output_quants] == [False]
    assert min(decibels(want[name], got[name]) for name in want) > 60


def test_quant_lowering_a_reshape_is_in_the_segment_that_reads_it() -> None:
    """Its operand is there long before; a segment of its own would move it to the host and back."""
    nodes = [
        conv("c"),
        node("Reshape", ["c", "flat"], ["r"], name="r"),
        node("Sin", ["c"], ["t"], name="t"),
        node("Conv", ["t", "v"], ["d"], name="/d/Conv"),
        node("Reshape", ["d", "flat"], ["e"], name="e"),
        node("Max", ["r", "e"], ["y"], name="m"),
    ]
    module, want, got = lowered(nodes, X, ["y"], {**W, "v": normal(5, 5, 1, 1), "flat": np.array([0, 5, -1])})
    first, second = hosts(module)
    assert first.reason.data == "Sin node 't': the array has no such operator"
    assert second.reason.data == "Max node 'm': the array has no such operator"
    assert (len(first.outputs), len(second.inputs)) == (1, 2)
    assert decibels(want["y"], got["y"]) > 60


def test_quant_lowering_shapes_are_computed_inside_segments() -> None:
    """An int64 value never crosses: its node is repeated in each segment that needs it."""
    nodes = [
        node("Shape", ["x"], ["shape"], name="shape"),
        node("ReduceMin", ["x"], ["mean"], axes=[3], name="mean"),
        node("Expand", ["mean", "shape"], ["e"], name="expand"),
        node("Conv", ["e", "w", "b"], ["c"], name="/c/Conv", auto_pad="SAME_UPPER"),
        node("Conv", ["c", "v"], ["d"], name="/d/Conv"),
        node("Reshape", ["d", "shape"], ["y"], name="reshape"),
    ]
    module, want, got = lowered(nodes, X, ["y"], {**W, "v": normal(3, 5, 1, 1)})
    assert [host.reason.data for host in hosts(module)] == [
        "Shape node 'shape': the array has no such operator; ReduceMin node 'mean': the array has no such operator; "
        "Expand node 'expand': the array has no such operator",
        "Shape node 'shape': the array has no such operator; Reshape node 'reshape': input 1 is computed, not constant",
    ]
    assert decibels(want["y"], got["y"]) > 60


def test_quant_lowering_mean_with_axes_as_an_input() -> None:
    for axes in ([2, 3], [-1, -2]):
        nodes = [node("ReduceMean", ["x", "axes"], ["y"])]
        module, want, got = lowered(nodes, X, ["y"], {"axes": np.array(axes)}, opset=18)
        assert not hosts(module)
        assert decibels(want["y"], got["y"]) > 70


def test_quant_lowering_no_window_begins_in_the_padding_at_the_end() -> None:
    """ONNX 1.16 says so from opset 22 on; before, its shape inference has a window more than onnxruntime."""
    pool = node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1)
    module, want, got = lowered([pool], X, ["y"], {}, opset=22)
    assert not hosts(module)
    assert got["y"].shape == (16, 3, 5, 4)
    assert decibels(want["y"], got["y"]) > 70


def test_quant_lowering_a_normalisation_between_host_nodes_stays_there() -> None:
    nodes = [
        node("Sin", ["x"], ["s"], name="s"),
        node("BatchNormalization", ["s", "k", "k", "k", "k"], ["n"], name="n"),
        node("Cos", ["n"], ["y"], name="y"),
    ]
    module, _, _ = lowered(nodes, X, ["y"], {"k": np.ones(3, np.float32)})
    (host,) = hosts(module)
    assert "BatchNormalization node 'n': it stands between host nodes" in host.reason.data


def test_quant_lowering_a_relu_beside_other_readers_stays_an_op() -> None:
    nodes = [
        conv("c"),
        node("Relu", ["c"], ["r"], name="r"),
        node("Conv", ["c", "v"], ["y"]),
        node("Conv", ["r", "v"], ["z"]),
    ]
    module, want, got = lowered(nodes, X, ["y", "z"], {**W, "v": normal(4, 5, 1, 1)})
    assert not any(isinstance(op, ClampOp) for op in module.walk())
    (pool,) = (op for op in module.walk() if isinstance(op, PoolOp))
    assert pool.window.data.kernel == (1, 1)
    assert pool.label == StringAttr("r")
    assert min(decibels(want[name], got[name]) for name in want) > 60


def test_quant_lowering_inputs_outputs_and_constants_passed_through() -> None:
    module, want, got = lowered([conv()], X, ["y", "x"], W)
    assert decibels(want["x"], got["x"]) > 70
    module, want, got = lowered([node("Identity", ["k"], ["y"])], {"x": (1, 2)}, ["y"], {"k": normal(4, 3)})
    assert np.array_equal(want["y"][:4], got["y"][:4])


def test_quant_lowering_results_of_other_types_have_no_range() -> None:
    """A node with integers beside its reals: indices of a MaxPool that nothing reads, those of a TopK."""
    pool = node("MaxPool", ["x"], ["p", "i"], kernel_shape=[2, 2])
    top = node("TopK", ["p", "two"], ["t", "j"], axis=3)
    arrays = {"two": np.array([2]), "w": normal(4, 3, 1, 1)}
    module, want, got = lowered([pool, top, node("Conv", ["t", "w"], ["y"])], X, ["y"], arrays)
    assert [op.reason.data for op in hosts(module)] == ["TopK node 't': the array has no such operator"]
    assert decibels(want["y"], got["y"]) > 60


def test_quant_lowering_needs_ranges_that_fit() -> None:
    module, ctx = imported([conv()], X, ["y"], W)
    with pytest.raises(Refusal, match="'x' has no calibrated range"):
        OnnxToCnnPass().apply(ctx, module)
    calibrate(module, ctx.weights, None, 16, 32)
    with pytest.raises(Refusal, match="operands of 8 bits reach ±127: calibrate again"):
        OnnxToCnnPass(8).apply(ctx, module)
    with pytest.raises(Refusal, match="operand-bits = 17"):
        OnnxToCnnPass(17).apply(ctx, module)


@pytest.mark.parametrize(
    ("weights", "bias", "x", "message"),
    [
        (1e-20, 0, 1, None),
        (1e-38, 1e38, 1e-20, "need a scale of"),
        (1e-38, 0, 1e-20, "too far apart"),
        (1e20, 0, 1e-43, "too far apart"),
    ],
)
def test_quant_lowering_scales_beyond_f32_are_refused(weights: float, bias: float, x: float, message: str) -> None:
    arrays = {"w": W["w"] * np.float32(weights), "b": W["b"] * np.float32(bias)}
    module, ctx = imported([conv()], X, ["y"], arrays)
    calibrate(module, ctx.weights, {"x": normal(2, 3, 9, 7) * np.float32(x)}, 16, 32)
    if message is None:
        OnnxToCnnPass().apply(ctx, module)
        return
    with pytest.raises(Refusal, match=f"'y': .*{message}"):
        OnnxToCnnPass().apply(ctx, module)


@pytest.mark.parametrize("op", ["Add", "GlobalAveragePool"])
def test_quant_lowering_ranges_too_far_apart_for_f32_are_refused(op: str) -> None:
    module, ctx = imported([node(op, ["x"] * (1 + (op == "Add")), ["y"], name="y")], X, ["y"], {})
    (y,) = returned(module)
    (x,) = main_arguments(module)
    write_ranges(module, {x: Range(-1e30, 1e30, 127), y: Range(-1e-20, 1e-20, 127)})
    with pytest.raises(Refusal, match="'y': .*too far apart"):
        OnnxToCnnPass().apply(ctx, module)


def test_quant_lowering_a_mean_that_may_overflow_is_refused() -> None:
    module, ctx = imported([node("GlobalAveragePool", ["x"], ["y"], name="y")], X, ["y"], {})
    calibrate(module, ctx.weights, None, 16, 32)
    with pytest.raises(Refusal, match="'y': 63 values of ±32767 may exceed a psum of 16 bits"):
        OnnxToCnnPass(16, 16).apply(ctx, module)


@pytest.mark.parametrize("mode", ["Dropout", "RandomNormalLike", "inference"])
def test_quant_lowering_refuses_nodes_that_draw_random_numbers(mode: str) -> None:
    """Such a node made a binary whose outputs were other ones in each run."""
    drawn = [node("RandomNormalLike", ["c"], ["d"], name="d")]
    dropout = [node("Dropout", ["c", "ratio", "mode"], ["d", "mask"], name="d")]
    nodes = [conv("c"), *(drawn if mode == "RandomNormalLike" else dropout), node("Relu", ["d"], ["y"])]
    arrays = W | {"ratio": np.float32(0.5), "mode": np.array(mode == "Dropout")}
    if mode == "inference":
        _, want, got = lowered(nodes, X, ["y", "mask"], arrays)
        assert decibels(want["y"], got["y"]) > 60
        return
    with pytest.raises(Refusal) as refusal:
        lowered(nodes, X, ["y"], arrays)
    assert (
        str(refusal.value)
        == {
            "Dropout": "Dropout node 'd': it draws random numbers, as it is in training mode: "
            "export the model for inference",
            "RandomNormalLike": "RandomNormalLike node 'd': it draws random numbers, other ones in each run: "
            "make its result an input",
        }[mode]
    )
