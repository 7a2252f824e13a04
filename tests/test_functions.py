"""Functions of single numbers: tables are near the functions, and those of codes are onnxruntime's, code by code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from cnn_ir import imported
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from test_quant_lowering import decibels, hosts, lowered, node, normal

from cnncc.arch.model import load_arch
from cnncc.binary.container import from_bytes, to_bytes
from cnncc.binary.isa_module import build_binary
from cnncc.binary.run import run
from cnncc.dialects.cnn import LookupOp
from cnncc.dialects.onnx import NodeOp
from cnncc.driver.pipeline import Compilation, Settings, new_context
from cnncc.errors import Refusals
from cnncc.frontend.import_onnx import module_of
from cnncc.frontend.infer_shapes import infer_shapes
from cnncc.passes._onnx.calibration import Scale
from cnncc.passes._onnx.functions import FunctionLayer, function_table, read_function
from cnncc.passes._onnx.layers import FUNCTIONS

pytestmark = pytest.mark.usefixtures("short_searches")

Reals = npt.NDArray[np.float64]
X = {"x": (2, 3, 9, 7)}


def sigmoid(x: Reals) -> Reals:
    return 1 / (1 + np.exp(-x))


def erf(x: Reals) -> Reals:
    return np.vectorize(math.erf)(x)


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
FORMULAS: dict[str, Callable[[Reals], Reals]] = {
    "Sigmoid": sigmoid,
    "Tanh": np.tanh,
    "Elu": lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
    "Selu": lambda x: SELU_GAMMA * np.where(x < 0, SELU_ALPHA * np.expm1(np.minimum(x, 0)), x),
    "Celu": lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Erf": erf,
    "Gelu": lambda x: x / 2 * (1 + erf(x / math.sqrt(2))),
    "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}


def layer_of(operator: str) -> FunctionLayer:
    module, ctx = imported([node(operator, ["x"], ["y"])], {"x": (1, 2, 3, 4)}, ["y"], {}, opset=20)
    (function,) = [op for op in module.walk() if isinstance(op, NodeOp)]
    return read_function(function, ctx.weights)


def table_values(layer: FunctionLayer, x: Scale, y: Scale) -> npt.NDArray[np.int64]:
    """The value of the table for each word of x, entry by entry and in rational numbers."""
    table = function_table(layer, x, y)
    (lo, hi), step = table.clamp, 1 << table.shift
    assert lo <= hi and hi - lo <= 256 * step and table.entries.shape == (257,)
    assert np.abs(table.entries).max() < 1 << 15
    values = []
    for word in range(x.lo, x.hi + 1):
        at, rest = divmod(min(max(word, lo), hi) - lo, step)
        behind = table.entries[at + 1] if rest else 0
        values.append(math.floor((int(table.entries[at]) * (step - rest) + int(behind) * rest) / step + 0.5))
    return np.array(values)


def test_formulas_has_every_function() -> None:
    assert set(FORMULAS) == set(FUNCTIONS)


@pytest.mark.parametrize("operator", FORMULAS)
def test_a_table_of_words_of_8_bits_has_each_value(operator: str) -> None:
    x, reals = Scale(0.05, -127, 127), np.arange(-127, 128) * float(np.float32(0.05))
    wanted = FORMULAS[operator](reals)
    y = Scale(float(np.abs(wanted).max() / 127), -127, 127)
    exact = wanted / y.scale
    values = table_values(layer_of(operator), x, y)
    assert np.abs(values - exact).max() < 0.5 + 1e-4  # f32 rounds otherwise at a tie alone


@pytest.mark.parametrize("operator", FORMULAS)
@pytest.mark.parametrize("most", [3.0, 7.0, 40.0])
def test_a_table_of_words_of_16_bits_is_near_the_function(operator: str, most: float) -> None:
    x = Scale(most / 32767, -32767, 32767)
    reals = np.arange(-32767, 32768) * x.scale
    wanted = FORMULAS[operator](reals)
    y = Scale(float(np.abs(wanted).max() / 32767), -32767, 32767)
    errors = table_values(layer_of(operator), x, y) - wanted / y.scale
    # A line over h lies h^2 / 8 * f'' beside a curve at most, and h / 4 * (change of slope) beside a kink.
    half = (1 << function_table(layer_of(operator), x, y).shift) / 2 * x.scale
    sag = np.abs((FORMULAS[operator](reals - half) + FORMULAS[operator](reals + half)) / 2 - wanted).max() / y.scale
    assert np.abs(errors).max() <= 2.4 + 1.2 * sag
    if not operator.startswith("Hard"):  # these have kinks between two entries
        assert np.sqrt(np.square(errors).mean()) <= 1.1


@settings(max_examples=examples(30))
@given(st.data())
def test_values_of_a_table_stay_within_the_words_of_the_result(data: st.DataObject) -> None:
    """So that no psum of a reader overflows, whatever the range of the result is."""
    draw = data.draw
    operator = draw(st.sampled_from(sorted(FORMULAS)))
    lo = draw(st.integers(-32768, 32000))
    x = Scale(draw(st.floats(1e-5, 1e-2)), lo, draw(st.integers(lo, min(32767, lo + 3000))), draw(st.integers(-9, 9)))
    top = draw(st.integers(1, 32767))
    y = Scale(draw(st.floats(1e-5, 1e-1)), -top, top)
    values = table_values(layer_of(operator), x, y)
    assert values.min() >= y.lo and values.max() <= y.hi
    exact = FORMULAS[operator]((np.arange(x.lo, x.hi + 1) - x.zero) * x.scale) / y.scale
    if function_table(layer_of(operator), x, y).shift == 0:
        assert np.abs(values - exact.clip(y.lo, y.hi)).max() < 0.5 + 1e-3 * max(1, top / 1000)


def test_integers_at_the_ends_with_one_value_need_no_entries() -> None:
    """A Sigmoid from -98 to 98: 0 and 1, in words of 16 bits, but for those between -11 and 11."""
    x, y = Scale(0.003, -32767, 32767), Scale(1 / 32767, -32767, 32767)
    table = function_table(layer_of("Sigmoid"), x, y)
    assert table.shift == 5 and -4000 < table.clamp[0] < -3000 and 3000 < table.clamp[1] < 4000
    assert table.entries[0] == 0 and table.entries[-1] == 32767


def test_a_kink_at_zero_has_an_entry() -> None:
    """Where the table does not begin with the first word: a Selu below -11 is that of all less."""
    x, y = Scale(5e-4, -32767, 32767), Scale(6e-4, -32767, 32767)
    table = function_table(layer_of("Selu"), x, y)
    assert table.shift == 8 and table.clamp[0] % 256 == 0 and table.clamp[0] > x.lo
    errors = table_values(layer_of("Selu"), x, y) - FORMULAS["Selu"](np.arange(-32767, 32768) * 5e-4) / 6e-4
    assert np.abs(errors).max() < 5


@pytest.mark.parametrize("most", [4.0, 7.0, 11.3, 20.0])
def test_a_hard_swish_has_entries_at_its_kinks(most: float) -> None:
    """At 3 and -3. The scale of its operand is a little coarser for that."""
    layer, wanted = layer_of("HardSwish"), Scale(most / 32767, -32767, 32767)
    x = y = layer.operand(wanted)
    assert wanted.scale <= x.scale < 1.13 * wanted.scale
    table, step = function_table(layer, x, y), 3 / x.scale
    assert table.shift >= 7 and step == round(step)
    assert all((int(kink) - table.clamp[0]) % (1 << table.shift) == 0 for kink in (step, -step))
    exact = FORMULAS["HardSwish"](np.arange(-32767, 32768) * x.scale) / y.scale
    assert np.abs(table_values(layer, x, y) - exact.clip(-32767, 32767)).max() < 4


def test_a_scale_is_not_coarser_where_kinks_are_close_or_words_have_8_bits() -> None:
    layer = layer_of("HardSwish")
    for scale in (Scale(60 / 32767, -32767, 32767), Scale(0.05, -127, 127), Scale(1e-4, -32767, 32767, zero=5)):
        assert layer.operand(scale) == scale
    assert layer_of("Tanh").operand(Scale(1e-4, -32767, 32767)) == Scale(1e-4, -32767, 32767)


def conv_and(*nodes: onnx.NodeProto) -> tuple[list[Any], dict[str, Any]]:
    convolution = node("Conv", ["x", "w", "b"], ["c"], name="c", pads=[1, 1, 0, 1])
    return [convolution, *nodes], {"w": normal(5, 3, 3, 2), "b": normal(5)}


SILU = node("Sigmoid", ["c"], ["s"]), node("Mul", ["s", "c"], ["y"])
NETWORKS = {
    **{name: conv_and(node(name, ["c"], ["y"])) for name in FUNCTIONS if not name.startswith("Hard")},
    "a function of an input": ([node("Tanh", ["x"], ["y"])], {}),
    "a function of two dims": ([node("Flatten", ["x"], ["f"]), node("Sigmoid", ["f"], ["y"])], {}),
    "a function beside other readers": conv_and(node("Tanh", ["c"], ["t"]), node("Add", ["t", "c"], ["y"])),
    "a function and a residual": conv_and(node("Tanh", ["c"], ["t"]), node("Add", ["t", "t"], ["y"])),
    "a function of a ReLU": conv_and(node("Relu", ["c"], ["r"]), node("Tanh", ["r"], ["y"])),
    "a ReLU of a function": conv_and(node("Tanh", ["c"], ["t"]), node("Relu", ["t"], ["y"])),
    "a function of a function": conv_and(node("Tanh", ["c"], ["t"]), node("Softplus", ["t"], ["y"])),
    "a function of a mean": ([node("GlobalAveragePool", ["x"], ["p"]), node("Sigmoid", ["p"], ["y"])], {}),
    "a pool of a function": conv_and(node("Tanh", ["c"], ["t"]), node("MaxPool", ["t"], ["y"], kernel_shape=[2, 2])),
    "a gate": conv_and(
        node("GlobalAveragePool", ["c"], ["p"]), node("Sigmoid", ["p"], ["g"]), node("Mul", ["c", "g"], ["y"])
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_functions_of_networks_are_near_the_float_result(name: str) -> None:
    nodes, arrays = NETWORKS[name]
    module, want, got = lowered(nodes, X, ["y"], arrays, opset=20)
    assert not hosts(module) and not [op for op in module.walk() if isinstance(op, LookupOp)]
    assert decibels(want["y"], got["y"]) > 70
    module, want, got = lowered(nodes, X, ["y"], arrays, opset=20, bits=8)
    assert decibels(want["y"], got["y"]) > 25


# -- codes -------------------------------------------------------------------------------------------------------------

CODES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}


def of_codes(nodes: list[Any], kinds: tuple[str, str], constants: dict[str, Any], opset: int = 20) -> onnx.ModelProto:
    """A network of all codes of x."""
    shapes = [
        helper.make_tensor_value_info(name, CODES[kind], (1, 4, 8, 8)) for name, kind in zip("xy", kinds, strict=True)
    ]
    arrays = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "codes", shapes[:1], shapes[1:], arrays)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def quantised(
    operator: str, kinds: tuple[str, str], zeros: tuple[int, int], scales: tuple[float, float]
) -> onnx.ModelProto:
    constants = {
        "xs": np.float32(scales[0]), "xz": np.array(zeros[0], kinds[0]),
        "ys": np.float32(scales[1]), "yz": np.array(zeros[1], kinds[1]),
    }  # fmt: skip
    if operator == "QLinearSigmoid":
        names = ["x", "xs", "xz", "ys", "yz"]
        return of_codes([node(operator, names, ["y"], domain="com.microsoft")], kinds, constants)
    nodes = [
        node("DequantizeLinear", ["x", "xs", "xz"], ["r"]), node(operator, ["r"], ["f"]),
        node("QuantizeLinear", ["f", "ys", "yz"], ["y"]),
    ]  # fmt: skip
    return of_codes(nodes, kinds, constants)


@pytest.mark.parametrize("array", ["spatial-4x4", "tcpa-4x4"])
@pytest.mark.parametrize(
    ("kinds", "zeros", "scales"),
    [
        (("uint8", "uint8"), (128, 0), (0.07, 1 / 256)),
        (("int8", "int8"), (-3, -128), (0.05, 1 / 256)),
        (("uint8", "uint8"), (0, 255), (0.031, 0.013)),
        (("int8", "int8"), (127, 5), (0.2, 0.02)),
    ],
)
@pytest.mark.parametrize("operator", ["QLinearSigmoid", *FUNCTIONS])
def test_a_function_of_codes_is_that_of_onnxruntime(
    operator: str, kinds: tuple[str, str], zeros: tuple[int, int], scales: tuple[float, float], array: str
) -> None:
    model = quantised(operator, kinds, zeros, scales)
    x = np.arange(*((0, 256) if kinds[0] == "uint8" else (-128, 128)), dtype=kinds[0]).reshape(1, 4, 8, 8)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    arch, ctx, refusals = load_arch(array), new_context(), Refusals()
    module = module_of(infer_shapes(model, strict=False), ctx.weights, refusals)
    compilation = Compilation(ctx, module, Settings(arch, array, arch.operand_bits))
    compilation.run("isa")
    assert not hosts(compilation.module)
    binary = from_bytes(to_bytes(build_binary(compilation.module, ctx.weights, arch)))
    assert np.array_equal(run(binary, {"x": x})["y"], want)
