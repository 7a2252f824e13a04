"""Operators on integers: every point of a grid equals onnxruntime's result in every bit, on `cnn` and from the binary.

Expected results are files (make_qlinear_golden.py), compared here with plain numpy again, and then each with what cnncc
makes of it: many nodes are one network, with inputs and outputs of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from examples import FACTOR, examples
from qlinear_cases import (
    FACTORS,
    MICROSOFT,
    Case,
    add_cases,
    average_cases,
    constant_cases,
    conv_cases,
    expected,
    feeds_of,
    leaky_cases,
    matrix_cases,
    mean_cases,
    model_of,
    pairwise,
    product_cases,
    sigmoid_cases,
)

from cnncc.arch.model import PRESETS, load_arch
from cnncc.binary.container import from_bytes, to_bytes
from cnncc.binary.isa_module import build_binary
from cnncc.binary.run import run
from cnncc.dialects.weights import GlobalOp, constant_array
from cnncc.driver.pipeline import Compilation, Settings, Step, new_context
from cnncc.errors import Refusal, Refusals
from cnncc.eval import cnn
from cnncc.frontend.import_onnx import module_of
from cnncc.frontend.infer_shapes import infer_shapes
from cnncc.passes._onnx.placement import place_nodes
from cnncc.weights import WeightStore

pytestmark = pytest.mark.usefixtures("short_searches")

DATA = Path(__file__).parent / "data"
OPERATORS = {
    "conv": conv_cases, "matrix": matrix_cases, "mean": mean_cases, "average": average_cases, "add": add_cases,
    "leaky": leaky_cases, "constant": constant_cases, "product": product_cases,
    "sigmoid": sigmoid_cases,
}  # fmt: skip
# Averages whose f32 sums onnxruntime may round to several codes: most have an even count, and scales alike.
AVERAGES_ON_HOST = (0, 1, 14, 16, 17, 24, 25, 41, 48, 49, 56, 57, 60, 64, 65, 73, 81, 88, 104, 112, 113, 118)
CHUNK = 25  # nodes of one network
CONVS_IN_BINARIES = 300  # all pairs and some random points; the others stop at the `cnn` level
ALL_PAIRS = 2  # the first networks of convolutions


@cache
def cases(name: str) -> list[Case]:
    return OPERATORS[name]()


@cache
def golden(name: str) -> list[Any]:
    """The results of all cases."""
    with np.load(DATA / f"qlinear_{name}.npz") as file:
        parts = np.split(file["codes"], np.cumsum(file["sizes"])[:-1])
    return [part.view(case.result) for part, case in zip(parts, cases(name), strict=True)]


@pytest.mark.parametrize("name", OPERATORS)
def test_qlinear_golden_results_are_those_of_the_definition(name: str) -> None:
    with np.load(DATA / f"qlinear_{name}.npz") as file:
        drawn = file["drawn"]
    for number, (case, want) in enumerate(zip(cases(name), golden(name), strict=True)):
        data = b"".join(np.asarray(a).tobytes() for a in (*case.fed.values(), *case.constants.values()))
        assert crc32(data) == drawn[number], f"case {number} is not drawn as it was: numpy's generator has changed"
        assert np.array_equal(expected(case).ravel(), want), number


def test_qlinear_conv_grid_has_every_pair() -> None:
    points = pairwise()
    for (a, many), (b, values) in combinations(FACTORS.items(), 2):
        assert len({(point[a], point[b]) for point in points}) == len(many) * len(values), (a, b)


def test_qlinear_conv_results_are_of_all_kinds() -> None:
    """Saturated on both sides, and not."""
    results = golden("conv")
    inside = [((r > np.iinfo(r.dtype).min) & (r < np.iinfo(r.dtype).max)).mean() for r in results]
    assert min(inside) == 0
    assert np.mean([share > 0.9 for share in inside]) > 0.25
    for end in ("min", "max"):
        assert sum((r == getattr(np.iinfo(r.dtype), end)).any() for r in results) > 300
    assert sum(len(np.unique(r)) > 3 for r in results) > 1000


def compiled(
    network: dict[str, Case], arch: str, batch: int | None, level: str
) -> tuple[Compilation, list[dict[str, Any]]]:
    """The instructions of a network, and what the `cnn` level makes of it."""
    settings = Settings(load_arch(arch), arch, load_arch(arch).operand_bits)
    ctx, refusals = new_context(), Refusals()
    model = infer_shapes(model_of(network, batch), strict=False)
    compilation = Compilation(ctx, module_of(model, ctx.weights, refusals), settings)
    refusals.raise_any()
    outputs: list[dict[str, Any]] = []

    def look(step: Step, module: Any) -> None:
        if step.name == "cnn-legalize":
            integers = cnn.quantise_inputs(module, feeds_of(network))
            outputs.append(cnn.dequantise_outputs(module, cnn.evaluate(module, ctx.weights, integers)[0]))
            assert "cnn.host" not in {op.name for op in module.walk()}

    compilation.run(level, [look])
    assert not compilation.warnings
    return compilation, outputs


def multipliers(module: Any, store: WeightStore) -> dict[str, Any]:
    """The scales of all layers by label."""
    found = {op.sym_name.data: constant_array(op, store) for op in module.walk() if isinstance(op, GlobalOp)}
    return {name.removesuffix(".q"): array for name, array in found.items() if name.endswith(".q")}


def test_qlinear_multipliers_are_rounded_in_the_order_of_onnxruntime() -> None:
    """x * w / y: another order changes the last bit, and one result in a million."""
    network = {f"conv{i}": cases("conv")[i] for i in range(200)}
    compilation, _ = compiled(network, "spatial-8x8", None, "cnn")
    found = multipliers(compilation.module, compilation.ctx.weights)
    differ = 0
    for name, case in network.items():
        c = case.constants
        want = np.broadcast_to(c["xs"] * c["ws"] / c["ys"], found[name].shape)
        assert np.array_equal(found[name], want), name
        differ += not np.array_equal(want, np.broadcast_to(c["ws"] * (c["xs"] / c["ys"]), want.shape))
    assert differ > 10


def check(
    name: str, numbers: Sequence[int], arch: str = "spatial-8x8", batch: int | None = None, level: str = "isa"
) -> None:
    network = {f"{name}{i}": cases(name)[i] for i in numbers}
    compilation, outputs = compiled(network, arch, batch, level)
    if level == "isa":
        binary = build_binary(compilation.module, compilation.ctx.weights, compilation.settings.arch)
        outputs.append(run(from_bytes(to_bytes(binary)), feeds_of(network)))
    assert outputs
    for found in outputs:
        for i in numbers:
            got, want = found[f"{name}{i}"], golden(name)[i]
            assert got.dtype == want.dtype
            assert np.array_equal(got.ravel(), want), (name, i, cases(name)[i])


def chunks(name: str) -> list[range]:
    """The numbers of the cases; to draw these takes longer than to read how many they are.

    A usual run has those of all pairs, and of the others, which are random, every fourth network.
    """
    with np.load(DATA / f"qlinear_{name}.npz") as file:
        count = len(file["sizes"])
    every = [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]
    return every if FACTOR > 1 else [*every[:ALL_PAIRS], *every[ALL_PAIRS::4]]


@pytest.mark.parametrize("numbers", chunks("conv"), ids=str)
def test_qlinear_conv_grid(numbers: range) -> None:
    check("conv", numbers, level="isa" if numbers.start < CONVS_IN_BINARIES else "cnn")


@pytest.mark.parametrize("numbers", chunks("matrix"), ids=str)
def test_qlinear_matmul_and_gemm(numbers: range) -> None:
    check("matrix", numbers)


@pytest.mark.parametrize("numbers", chunks("mean"), ids=str)
def test_qlinear_global_average_pool(numbers: range) -> None:
    check("mean", numbers)


@pytest.mark.parametrize("numbers", chunks("average"), ids=str)
def test_qlinear_average_pool(numbers: range) -> None:
    check("average", [number for number in numbers if number not in AVERAGES_ON_HOST])


def test_qlinear_average_pool_stays_on_the_host_where_sums_may_round_otherwise() -> None:
    reasons = reasons_of({f"average{number}": case for number, case in enumerate(cases("average"))})
    assert set(reasons) == {f"average{number}" for number in AVERAGES_ON_HOST}
    assert all(
        re.fullmatch(r"its f32 sums of \d+ values may be rounded to another code than the array's", reason)
        for reason in reasons.values()
    )


def reasons_of(network: dict[str, Case]) -> dict[str, str]:
    """The nodes on the host by name, with the reason."""
    ctx = new_context()
    module = module_of(infer_shapes(model_of(network), strict=False), ctx.weights, Refusals())
    return {node.node_name.data: reason for node, reason in place_nodes(module, ctx.weights).reasons.items()}


@pytest.mark.parametrize("number", range(8))
def test_qlinear_add_all_pairs_of_codes(number: int) -> None:
    check("add", range(number, number + 1), batch=1)


@pytest.mark.parametrize("number", range(8))
def test_qlinear_mul_all_pairs_of_codes(number: int) -> None:
    check("product", range(number, number + 1), batch=1)


@pytest.mark.parametrize("numbers", chunks("leaky"), ids=str)
def test_qlinear_leaky_relu(numbers: range) -> None:
    check("leaky", numbers)


@pytest.mark.parametrize("numbers", chunks("sigmoid"), ids=str)
def test_qlinear_sigmoid(numbers: range) -> None:
    check("sigmoid", numbers)


@pytest.mark.parametrize("numbers", chunks("constant"), ids=str)
def test_qlinear_mul_and_add_of_constants(numbers: range) -> None:
    check("constant", numbers)


def test_qlinear_mul_and_add_stay_on_the_host_where_integers_do_not_give_their_codes() -> None:
    """Of x * 1.5 + 1, onnxruntime rounds halves to even after it has added the zero point 1."""
    steps = {f"{name}s": np.float32(0.5 if name == "c" else 1) for name in "xcy"}
    steps |= {f"{name}z": np.uint8(name == "y") for name in "xcy"}
    x = np.arange(256).astype(np.uint8).reshape(1, 2, 16, 8)
    varied = {"c": np.arange(8).astype(np.uint8), **steps}
    inputs = ("x", "xs", "xz", "c", "cs", "cz", "ys", "yz")
    cases = {
        "halves": Case("QLinearMul", {"x": x}, {"c": np.uint8(3), **steps}, inputs, np.uint8, domain=MICROSOFT),
        "varied": Case("QLinearMul", {"x": x}, varied, inputs, np.uint8, domain=MICROSOFT),
        "varied sum": Case("QLinearAdd", {"x": x}, varied, inputs, np.uint8, domain=MICROSOFT),
        "shapes": Case("QLinearMul", {"x": x, "c": x[:, :, :1]}, steps, inputs, np.uint8, domain=MICROSOFT),
    }
    assert reasons_of(cases) == {
        "halves": "no integer weights and biases give its result for each code",
        "varied": "input 3 differs inside a channel",
        "varied sum": "input 3 differs inside a channel",
        "shapes": "the shapes (1, 2, 16, 8) and (1, 2, 1, 8) differ by more than one pixel a channel",
    }


@pytest.mark.parametrize(("x_scale", "y_scale"), [(1e-30, 1e30), (1e-20, 1e20), (1e30, 1e-30)])
def test_qlinear_scales_without_a_normal_multiplier_stay_on_the_host(x_scale: float, y_scale: float) -> None:
    """Their quotients are 0, a subnormal number and infinity: the output units have no such scales."""
    x, of_codes = np.zeros((1, 2, 4, 4), np.uint8), {"xz": np.uint8(0), "yz": np.uint8(0)}
    scales = {"xs": np.float32(x_scale), "ys": np.float32(y_scale)}

    def case(op: str, **attributes: Any) -> Case:
        inputs = ("x", "xs", "xz", "ys", "yz")
        return Case(op, {"x": x}, scales | of_codes, inputs, np.uint8, attributes, domain=MICROSOFT)

    assert reasons_of(
        {
            "mean": case("QLinearGlobalAveragePool"),
            "average": case("QLinearAveragePool", kernel_shape=(2, 2)),
            "leaky": case("QLinearLeakyRelu"),
        }
    ) == {
        "mean": "its scales lie too far apart for f32",
        "average": "its f32 sums of 4 values may be rounded to another code than the array's",
        "leaky": "no factor gives its result for each code",
    }


# -- words of one byte -------------------------------------------------------------------------------------------------

REFUSED_IN_BYTES = (2,)  # sums of two


@pytest.fixture(scope="module")
def bytes_array(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An array whose words are bytes: unsigned codes are kept less 128."""
    path = tmp_path_factory.mktemp("arch") / "bytes.toml"
    text = (PRESETS / "spatial-4x4.toml").read_text()
    path.write_text(text.replace("operand_bits = 16", "operand_bits = 8"))
    return str(path)


def fits_bytes(case: Case) -> bool:
    """Are all weights bytes, less their zero points?"""
    if "w" not in case.constants:
        return True
    weights, zeros = (case.constants[name].astype(np.int64) for name in ("w", "wz"))
    centred = weights - (np.reshape(zeros, (-1, 1, 1, 1)) if case.op == "QLinearConv" else zeros.flat[0])
    return bool(centred.min() >= -128 and centred.max() <= 127)


@pytest.mark.parametrize("name", ["conv", "matrix", "mean", "average", "leaky", "constant", "sigmoid"])
def test_qlinear_in_words_of_bytes(name: str, bytes_array: str) -> None:
    on_host = AVERAGES_ON_HOST if name == "average" else ()
    fitting = [number for number, case in enumerate(cases(name)) if fits_bytes(case) and number not in on_host]
    for first in range(0, examples(30), 30):
        check(name, fitting[first : first + 30], bytes_array)
    if name in ("conv", "matrix"):
        beyond = next(number for number, case in enumerate(cases(name)) if not fits_bytes(case))
        with pytest.raises(Refusal, match="less their zero point exceed -128..127: use wider operands"):
            check(name, [beyond], bytes_array)


@pytest.mark.parametrize("number", range(8))
def test_qlinear_add_in_words_of_bytes(number: int, bytes_array: str) -> None:
    """Products of unsigned codes less 128 are rounded otherwise: exact for all pairs, or refused."""
    try:
        check("add", [number], bytes_array, batch=1)
    except Refusal as refusal:
        assert number in REFUSED_IN_BYTES
        assert "unsigned codes kept in 8 bits would be rounded otherwise: use wider operands" in str(refusal)
    else:
        assert number not in REFUSED_IN_BYTES


@pytest.mark.parametrize("number", range(8))
def test_qlinear_mul_in_words_of_bytes(number: int, bytes_array: str) -> None:
    check("product", [number], bytes_array, batch=1)


# Scales and zero points of a, b and y with which codes less 128 are rounded otherwise by the quotient of the scales.
ROUNDED = {
    "another factor": ((0.050126031041145325, 0.08928032219409943, 0.8448742628097534), (136, 91, 172)),
    "no factor": ((0.019497614353895187, 0.05898820236325264, 0.1392838954925537), (7, 172, 80)),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_qlinear_mul_in_words_of_bytes_is_rounded_as_codes_or_refused(name: str, bytes_array: str) -> None:
    steps, zeros = ROUNDED[name]
    a, b = np.meshgrid(np.arange(256).astype(np.uint8), np.arange(256).astype(np.uint8), indexing="ij")
    constants = {f"{each}s": np.float32(step) for each, step in zip("aby", steps, strict=True)}
    constants |= {f"{each}z": np.uint8(zero) for each, zero in zip("aby", zeros, strict=True)}
    inputs = ("a", "as", "az", "b", "bs", "bz", "ys", "yz")
    fed = {"a": a.reshape(256, 1, 16, 16), "b": b.reshape(256, 1, 16, 16)}
    network = {"p": Case("QLinearMul", fed, constants, inputs, np.uint8, domain=MICROSOFT)}
    if name == "no factor":
        with pytest.raises(Refusal, match="unsigned codes kept in 8 bits would be rounded otherwise"):
            compiled(network, bytes_array, 1, "cnn")
        return
    compilation, outputs = compiled(network, bytes_array, 1, "cnn")
    assert np.array_equal(outputs[0]["p"], expected(network["p"]))
    factor = multipliers(compilation.module, compilation.ctx.weights)["p"][0]
    assert factor != constants["as"] * constants["bs"] / constants["ys"]
