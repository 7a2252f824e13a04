"""Quantised operators by the thousand: how cases are drawn, their ONNX nodes, and their results by plain numpy.

A case is drawn from its number, so that only results need to be kept: tests/data/qlinear_*.npz, which
tests/make_qlinear_golden.py wrote with onnxruntime. Nothing of cnncc takes part here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

MICROSOFT = "com.microsoft"
RANDOM_CONVS = 2000
Array = Any

FACTORS: Mapping[str, Sequence[Any]] = {
    "channels": (False, True),  # a scale for each output channel
    "bias": (False, True),
    "x_zero": ("zero", "some", "least", "most"),
    "w_zero": ("zero", "some", "least", "most", "channels"),
    "y_zero": ("zero", "some", "least", "most"),
    "types": ("uuu", "usu", "sss", "suu", "sus", "uus", "uss", "ssu"),  # of x, w, y
    "pads": ((0, 0, 0, 0), (1, 1, 1, 1), (0, 2, 1, 0)),
    "stride": ((1, 1), (2, 2), (1, 3)),
    "dilation": ((1, 1), (2, 2), (3, 1)),
    "group": (1, 2, 4),
    "saturates": (False, True),
}
# What onnxruntime has a QLinearConv for.
ONNXRUNTIME_HAS = ("uuu", "usu", "sss")


def bounds(kind: str) -> tuple[int, int]:
    return (0, 255) if kind == "u" else (-128, 127)


def dtype(kind: str) -> type[np.generic]:
    return np.uint8 if kind == "u" else np.int8


@dataclass(frozen=True)
class Case:
    """A node with all its inputs; `x` are those that are fed. zeros, scales as the operator has them."""

    op: str
    fed: dict[str, Array]
    constants: dict[str, Array]
    inputs: tuple[str, ...]
    result: type[np.generic]
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""

    def node(self, name: str) -> onnx.NodeProto:
        names = [f"{name}.{each}" if each else "" for each in self.inputs]
        return helper.make_node(self.op, names, [name], name=name, domain=self.domain, **self.attributes)


def zero_point(rng: np.random.Generator, kind: str, how: str, channels: int = 1) -> Array:
    lo, hi = bounds(kind)
    match how:
        case "zero":
            return dtype(kind)(0)
        case "least":
            return dtype(kind)(lo)
        case "most":
            return dtype(kind)(hi)
        case "channels":
            return rng.integers(lo, hi + 1, channels).astype(dtype(kind))
        case _:
            return dtype(kind)(rng.integers(lo, hi + 1))


def scale(rng: np.random.Generator, size: int | None = None) -> Array:
    """Powers of two half the time: products then lie exactly between two integers often."""
    found = 2.0 ** rng.integers(-9, -3, size) * (1 if rng.random() < 0.5 else rng.uniform(0.5, 2, size))
    return np.float32(found) if size is None else found.astype(np.float32)


def conv_case(number: int, point: Mapping[str, Any]) -> Case:
    rng = np.random.default_rng([1, number])
    x_kind, w_kind, y_kind = point["types"]
    group = point["group"]
    per_group = 1 if group == 4 else int(rng.integers(1, 4))
    k = group * int(rng.integers(1, 3))
    kernel = tuple(int(size) for size in rng.integers(1, 4, 2))
    spans = [d * (size - 1) + 1 for d, size in zip(point["dilation"], kernel, strict=True)]
    pads = point["pads"]
    ih, iw = (int(max(span - pads[i] - pads[i + 2], 1) + rng.integers(0, 4)) for i, span in enumerate(spans))
    x = rng.integers(*bounds(x_kind), (1, per_group * group, ih, iw), endpoint=True).astype(dtype(x_kind))
    w = rng.integers(*bounds(w_kind), (k, per_group, *kernel), endpoint=True).astype(dtype(w_kind))
    if rng.random() < 0.2:  # the greatest sums
        x[...], w[...] = bounds(x_kind)[rng.integers(2)], bounds(w_kind)[rng.integers(2)]
    xs, ws = scale(rng), scale(rng, k) if point["channels"] else scale(rng)
    constants: dict[str, Array] = {"xs": xs, "w": w, "ws": ws}
    constants["xz"] = zero_point(rng, x_kind, point["x_zero"])
    constants["wz"] = zero_point(rng, w_kind, point["w_zero"], k)
    constants["yz"] = zero_point(rng, y_kind, point["y_zero"])
    inputs = ("x", "xs", "xz", "w", "ws", "wz", "ys", "yz", *(["b"] if point["bias"] else []))
    attributes = {"group": group, "pads": pads, "strides": point["stride"], "dilations": point["dilation"]}
    case = Case("QLinearConv", {"x": x}, constants, inputs, dtype(y_kind), attributes)
    sums = conv_sums(case)
    if point["bias"]:
        most = int(np.abs(sums).max()) + 1
        constants["b"] = rng.integers(-most, most, k, endpoint=True).astype(np.int32)
        sums = sums + np.reshape(constants["b"], (-1, 1, 1))
    reals = np.abs(sums * np.reshape(ws, (-1, 1, 1))) * xs
    constants["ys"] = result_scale(rng, reals, 1500 if point["saturates"] else 110)
    return case


def result_scale(rng: np.random.Generator, reals: Array, top: int) -> Array:
    """A scale at which the greatest of `reals` is about `top`; a power of two half the time."""
    finest = max(float(np.max(reals)), 2.0**-8) / top
    return np.float32(2.0 ** np.ceil(np.log2(finest)) if rng.random() < 0.5 else finest)


def pairwise() -> list[dict[str, Any]]:
    """Points in which any two factors take any two of their values together, chosen greedily."""
    rng = np.random.default_rng(0)
    left = {
        (a, va, b, vb)
        for a, b in combinations(FACTORS, 2)
        for va in range(len(FACTORS[a]))
        for vb in range(len(FACTORS[b]))
    }
    points: list[dict[str, Any]] = []
    while left:
        start = min(left)
        tries = [{name: int(rng.integers(len(values))) for name, values in FACTORS.items()} for _ in range(30)]
        for each in tries:
            each[start[0]], each[start[2]] = start[1], start[3]
        best = max(tries, key=lambda each: len(left & pairs(each)))
        left -= pairs(best)
        points.append({name: FACTORS[name][index] for name, index in best.items()})
    return points


def pairs(point: Mapping[str, int]) -> set[tuple[str, int, str, int]]:
    return {(a, point[a], b, point[b]) for a, b in combinations(FACTORS, 2)}


def conv_cases() -> list[Case]:
    points = pairwise()
    rng = np.random.default_rng(1)
    for _ in range(RANDOM_CONVS):
        point = {name: values[rng.integers(len(values))] for name, values in FACTORS.items()}
        if rng.random() < 0.7:
            point["types"] = ONNXRUNTIME_HAS[rng.integers(3)]
        if rng.random() < 0.5:
            point |= {"y_zero": "some", "saturates": False}
        points.append(point)
    return [conv_case(number, point) for number, point in enumerate(points)]


def matrix_cases() -> list[Case]:
    """QLinearMatMul and QGemm by turns."""
    return [matrix_case(number) for number in range(240)]


def matrix_case(number: int) -> Case:
    rng = np.random.default_rng([2, number])
    x_kind, w_kind, y_kind = ONNXRUNTIME_HAS[number // 2 % 3]
    n, c, k = (int(size) for size in rng.integers(1, 9, 3))
    zeros = ("zero", "some", "least", "most")
    by_channel = bool(rng.integers(2))
    x = rng.integers(*bounds(x_kind), (n, c), endpoint=True).astype(dtype(x_kind))
    w = rng.integers(*bounds(w_kind), (c, k), endpoint=True).astype(dtype(w_kind))
    xs, ws = scale(rng), scale(rng, k) if by_channel else scale(rng)
    wz = zero_point(rng, w_kind, zeros[rng.integers(4)])
    constants: dict[str, Array] = {"xs": xs, "w": w, "ws": ws, "wz": np.full(k, wz) if by_channel else wz}
    constants["xz"] = zero_point(rng, x_kind, zeros[rng.integers(4)])
    reals = np.abs((x.astype(np.int64) - int(constants["xz"])) @ (w.astype(np.int64) - int(wz)) * ws) * xs
    constants["ys"] = result_scale(rng, reals, 1500 if rng.random() < 0.2 else 110)
    constants["yz"] = zero_point(rng, y_kind, zeros[rng.integers(4)])
    if number % 2:
        inputs = ("x", "xs", "xz", "w", "ws", "wz", "ys", "yz")
        return Case("QLinearMatMul", {"x": x}, constants, inputs, dtype(y_kind))
    has_bias, transposed = bool(rng.integers(2)), int(rng.integers(2))
    if has_bias:
        constants["b"] = rng.integers(-20000, 20000, k).astype(np.int32)
    if transposed:
        constants["w"] = np.ascontiguousarray(w.T)
    inputs = ("x", "xs", "xz", "w", "ws", "wz", "b" if has_bias else "", "ys", "yz")
    alpha = float(rng.choice([1.0, 1.0, 0.75]))
    return Case(
        "QGemm", {"x": x}, constants, inputs, dtype(y_kind), {"transB": transposed, "alpha": alpha}, domain=MICROSOFT
    )


def mean_cases() -> list[Case]:
    return [mean_case(number) for number in range(120)]


def mean_case(number: int) -> Case:
    rng = np.random.default_rng([3, number])
    kind = "us"[number % 2]
    zeros = ("zero", "some", "least", "most")
    size = (1, int(rng.integers(1, 6)), *(int(each) for each in rng.integers(1, 8, 2)))
    x = rng.integers(*bounds(kind), size, endpoint=True).astype(dtype(kind))
    constants: dict[str, Array] = {"xs": scale(rng)}
    constants["ys"] = constants["xs"] if rng.random() < 0.3 else np.float32(constants["xs"] * rng.uniform(0.5, 3))
    constants["xz"] = zero_point(rng, kind, zeros[rng.integers(4)])
    constants["yz"] = zero_point(rng, kind, zeros[rng.integers(4)])
    inputs = ("x", "xs", "xz", "ys", "yz")
    return Case("QLinearGlobalAveragePool", {"x": x}, constants, inputs, dtype(kind), domain=MICROSOFT)


def average_cases() -> list[Case]:
    return [average_case(number) for number in range(120)]


def average_case(number: int) -> Case:
    """Pads that count or do not; scales alike (every fourth), or a few steps apart."""
    rng = np.random.default_rng([6, number])
    kind = "us"[number % 2]
    kernel, strides = (tuple(int(each) for each in rng.integers(1, 4, 2)) for _ in range(2))
    pads = [int(rng.integers(0, kernel[axis % 2])) for axis in range(4)]
    size = (1, int(rng.integers(1, 9)), *(int(each) for each in rng.integers(4, 15, 2)))
    x = rng.integers(*bounds(kind), size, endpoint=True).astype(dtype(kind))
    constants: dict[str, Array] = {"xs": np.float32(rng.uniform(0.003, 0.1))}
    ratio = 1 if number // 2 % 4 == 0 else rng.uniform(0.5, 1.2)
    constants["ys"] = np.float32(constants["xs"] * ratio)
    constants["xz"], constants["yz"] = (zero_point(rng, kind, ("zero", "some")[rng.integers(2)]) for _ in range(2))
    attributes = {
        "kernel_shape": kernel, "strides": strides, "pads": pads, "count_include_pad": int(rng.integers(2)),
        "ceil_mode": int(rng.integers(2)),
    }  # fmt: skip
    inputs = ("x", "xs", "xz", "ys", "yz")
    return Case("QLinearAveragePool", {"x": x}, constants, inputs, dtype(kind), attributes, domain=MICROSOFT)


def add_cases() -> list[Case]:
    """All pairs of codes."""
    return [pair_case("QLinearAdd", 4, number) for number in range(8)]


def product_cases() -> list[Case]:
    """All pairs of codes."""
    return [pair_case("QLinearMul", 8, number) for number in range(8)]


def pair_case(op: str, seed: int, number: int) -> Case:
    rng = np.random.default_rng([seed, number])
    kind = "us"[number % 2]
    codes = np.arange(bounds(kind)[0], bounds(kind)[1] + 1).astype(dtype(kind))
    fed = {"a": np.repeat(codes, 256).reshape(256, 1, 16, 16), "b": np.tile(codes, 256).reshape(256, 1, 16, 16)}
    constants: dict[str, Array] = {"as": scale(rng), "bs": scale(rng), "ys": scale(rng)}
    zeros = ("zero", "some", "some", "least")
    for name in ("az", "bz", "yz"):
        constants[name] = zero_point(rng, kind, zeros[number // 2])
    if op == "QLinearMul":
        constants["ys"] = np.float32(constants["as"] * constants["bs"] * rng.uniform(30, 200))
    return Case(op, fed, constants, ("a", "as", "az", "b", "bs", "bz", "ys", "yz"), dtype(kind), domain=MICROSOFT)


def constant_cases() -> list[Case]:
    """QLinearMul and QLinearAdd by turns, with a constant for each channel or for all."""
    return [constant_case(number) for number in range(80)]


def constant_case(number: int) -> Case:
    rng = np.random.default_rng([7, number])
    kind = "us"[number // 2 % 2]
    k, side = int(rng.integers(1, 9)), 16
    codes = np.arange(bounds(kind)[0], bounds(kind)[1] + 1).astype(dtype(kind))
    x = np.broadcast_to(codes.reshape(side, side), (1, k, side, side))
    constant = ((1, k, 1, 1), (k, 1, 1), (1,), ())[rng.integers(4)]
    if rng.random() < 0.3:
        x, constant = np.broadcast_to(codes[:, None], (256, k)), ((1, k), (k,), (1, 1))[rng.integers(3)]
    constants: dict[str, Array] = {
        "c": rng.integers(*bounds(kind), constant, endpoint=True).astype(dtype(kind)),
        **{f"{name}s": np.float32(rng.uniform(0.003, 0.1)) for name in "xcy"},
        **{f"{name}z": zero_point(rng, kind, ("zero", "some", "least")[rng.integers(3)]) for name in "xcy"},
    }
    if number % 2 == 0:
        constants["ys"] = np.float32(constants["xs"] * constants["cs"] * rng.uniform(30, 200))
    inputs = ("x", "xs", "xz", "c", "cs", "cz", "ys", "yz")
    op = "QLinearAdd" if number % 2 else "QLinearMul"
    return Case(op, {"x": np.ascontiguousarray(x)}, constants, inputs, dtype(kind), domain=MICROSOFT)


def all_codes(rng: np.random.Generator, kind: str) -> Array:
    """In any order, in a tensor of any rank."""
    size = ((1, 256), (256, 1), (2, 4, 32), (1, 2, 8, 16), (256,))[rng.integers(5)]
    codes = rng.permutation(np.arange(bounds(kind)[0], bounds(kind)[1] + 1))
    return codes.astype(dtype(kind)).reshape(size)


def leaky_cases() -> list[Case]:
    return [leaky_case(number) for number in range(60)]


def leaky_case(number: int) -> Case:
    """All codes, in a tensor of any rank."""
    rng = np.random.default_rng([5, number])
    kind = "us"[number % 2]
    fed = {"x": all_codes(rng, kind)}
    constants: dict[str, Array] = {"xs": scale(rng)}
    constants["ys"] = np.float32(constants["xs"] * (0.5 if rng.random() < 0.3 else rng.uniform(0.3, 1.5)))
    constants["xz"], constants["yz"] = (zero_point(rng, kind, ("zero", "some")[rng.integers(2)]) for _ in range(2))
    alpha = float(np.float32(rng.choice([0.01, 0.1, 0.25, 0.3, 0.5])))
    inputs = ("x", "xs", "xz", "ys", "yz")
    return Case("QLinearLeakyRelu", fed, constants, inputs, dtype(kind), {"alpha": alpha}, domain=MICROSOFT)


def sigmoid_cases() -> list[Case]:
    return [sigmoid_case(number) for number in range(50)]


def sigmoid_case(number: int) -> Case:
    """All codes, in a tensor of any rank: of reals whose Sigmoids are near 0.5, or all that there are."""
    rng = np.random.default_rng([8, number])
    kind = "us"[number % 2]
    fed = {"x": all_codes(rng, kind)}
    constants: dict[str, Array] = {"xs": np.float32(rng.choice([0.01, 0.05, 0.2]) * rng.uniform(0.5, 1.5))}
    constants["ys"] = np.float32(1 / 256 if rng.random() < 0.5 else rng.uniform(0.002, 0.02))
    constants["xz"], constants["yz"] = (zero_point(rng, kind, ("zero", "some", "least")[rng.integers(3)]) for _ in "xy")
    return Case("QLinearSigmoid", fed, constants, ("x", "xs", "xz", "ys", "yz"), dtype(kind), domain=MICROSOFT)


# -- as ONNX -----------------------------------------------------------------------------------------------------------


def model_of(cases: Mapping[str, Case], batch: int | None = None) -> onnx.ModelProto:
    """One graph of all these nodes, each named and with inputs of its own; `batch` instead of the fed leading dim."""

    def value(name: str, array: Array) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, kind, (batch or array.shape[0], *array.shape[1:]))

    graph = helper.make_graph(
        [case.node(name) for name, case in cases.items()],
        "quantised",
        [value(f"{name}.{each}", array) for name, case in cases.items() for each, array in case.fed.items()],
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(case.result)), None)
            for name, case in cases.items()
        ],
        [
            numpy_helper.from_array(np.asarray(array), f"{name}.{each}")
            for name, case in cases.items()
            for each, array in case.constants.items()
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def feeds_of(cases: Mapping[str, Case]) -> dict[str, Array]:
    return {f"{name}.{each}": array for name, case in cases.items() for each, array in case.fed.items()}


def has_onnxruntime(case: Case) -> bool:
    """Has onnxruntime a kernel for these types?"""
    if case.op != "QLinearConv":
        return True
    kinds = [case.fed["x"].dtype, case.constants["w"].dtype, np.dtype(case.result)]
    return "".join(kind.kind.replace("i", "s") for kind in kinds) in ONNXRUNTIME_HAS


# -- by plain numpy ----------------------------------------------------------------------------------------------------


def expected(case: Case) -> Array:
    """What the operator's definition gives."""
    c = case.constants
    match case.op:
        case "QLinearConv":
            sums = conv_sums(case)
            if "b" in c:
                sums = sums + c["b"].astype(np.int64)[:, None, None]
            scales = c["xs"] * c["ws"] / c["ys"]
            return rescaled(case, sums, np.reshape(scales, (-1, 1, 1)))
        case "QLinearMatMul" | "QGemm":
            w = c["w"].T if case.attributes.get("transB") else c["w"]
            sums = (case.fed["x"].astype(np.int64) - int(c["xz"])) @ (w.astype(np.int64) - c["wz"].astype(np.int64))
            sums = sums + (c["b"].astype(np.int64) if "b" in c else 0)
            return rescaled(case, sums, np.float32(case.attributes.get("alpha", 1)) * c["xs"] * c["ws"] / c["ys"])
        case "QLinearGlobalAveragePool":
            x = case.fed["x"].astype(np.int64) - int(c["xz"])
            count = np.float32(x.shape[2] * x.shape[3])
            return rescaled(case, x.sum(axis=(2, 3), keepdims=True), c["xs"] / (c["ys"] * count))
        case "QLinearAveragePool":
            return averaged(case)
        case "QLinearLeakyRelu":
            reals = (case.fed["x"].astype(np.int64) - int(c["xz"])).astype(np.float32) * c["xs"]
            reals = np.where(reals < 0, reals * np.float32(case.attributes["alpha"]), reals)
            return quantised(case, reals / c["ys"])
        case "QLinearSigmoid":
            reals = (case.fed["x"].astype(np.int64) - int(c["xz"])).astype(np.float32) * c["xs"]
            return quantised(case, (1 / (1 + np.exp(-reals.astype(np.float64)))).astype(np.float32) / c["ys"])
        case "QLinearMul" if "b" in case.fed:
            a, b = (case.fed[name].astype(np.int64) - int(c[f"{name}z"]) for name in "ab")
            return quantised(case, (a * b).astype(np.float32) * (c["as"] * c["bs"] / c["ys"]) + np.float32(c["yz"]), 0)
        case "QLinearMul":
            factors = by_channel(case, c["c"].astype(np.int64) - int(c["cz"]))
            products = (case.fed["x"].astype(np.int64) - int(c["xz"])) * factors
            return quantised(case, products.astype(np.float32) * (c["xs"] * c["cs"] / c["ys"]) + np.float32(c["yz"]), 0)
        case "QLinearAdd" if "c" in c:
            return added_constant(case)
        case _:
            return added(case)


def by_channel(case: Case, constant: Array) -> Array:
    return np.broadcast_to(constant, case.fed["x"].shape)


def added_constant(case: Case) -> Array:
    c = case.constants
    ra, rb = c["xs"] / c["ys"], c["cs"] / c["ys"]
    fixed = np.float32(c["yz"]) - (ra * np.float32(c["xz"]) + rb * np.float32(c["cz"]))
    pairs = zip(case.fed["x"].flat, by_channel(case, c["c"]).flat, strict=True)
    sums = np.array([fused(int(x), ra, fused(int(constant), rb, fixed)) for x, constant in pairs], np.float32)
    return quantised(case, sums, 0).reshape(case.fed["x"].shape)


def conv_sums(case: Case) -> Array:
    """Σ (x - xz)(w - wz), tap by tap."""
    c, group = case.constants, case.attributes["group"]
    top, left, bottom, right = case.attributes["pads"]
    x = case.fed["x"].astype(np.int64) - int(c["xz"])
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    w = c["w"].astype(np.int64) - np.reshape(c["wz"], (-1, 1, 1, 1)).astype(np.int64)
    (sy, sx), (dy, dx) = case.attributes["strides"], case.attributes["dilations"]
    k, per_group, r, s = w.shape
    h = (x.shape[2] - dy * (r - 1) - 1) // sy + 1
    width = (x.shape[3] - dx * (s - 1) - 1) // sx + 1
    sums = np.zeros((1, k, h, width), np.int64)
    for channel in range(k):
        first = channel // (k // group) * per_group
        for i in range(r):
            for j in range(s):
                seen = x[:, first : first + per_group, i * dy :, j * dx :][
                    :, :, : (h - 1) * sy + 1 : sy, : (width - 1) * sx + 1 : sx
                ]
                sums[:, channel] += (seen * w[channel, :, i, j][:, None, None]).sum(axis=1)
    return sums


def averaged(case: Case) -> Array:
    """Means of f32 numbers, which are added tap by tap, and rounded each time."""
    c, attributes = case.constants, case.attributes
    reals = (case.fed["x"].astype(np.int64) - int(c["xz"])).astype(np.float32) * c["xs"]
    outputs, padding = [], [(0, 0), (0, 0)]
    for axis in (0, 1):
        size, kernel, stride = reals.shape[2 + axis], attributes["kernel_shape"][axis], attributes["strides"][axis]
        before, after = attributes["pads"][axis::2]
        room = size + before + after - kernel
        last = -(-room // stride) if attributes["ceil_mode"] else room // stride
        last -= attributes["ceil_mode"] and last * stride >= size + before
        outputs.append(last * stride + 1)
        padding.append((before, after + kernel + stride))
    total, inside = np.float32(0), 0
    for r, s in np.ndindex(*attributes["kernel_shape"]):
        at = tuple(
            slice(i, i + reach, step) for i, reach, step in zip((r, s), outputs, attributes["strides"], strict=True)
        )
        total = total + np.pad(reals, padding)[:, :, *at]
        inside = inside + np.pad(np.ones_like(reals), padding)[:, :, *at]
    count = np.float32(np.prod(attributes["kernel_shape"])) if attributes["count_include_pad"] else inside
    return quantised(case, total / count / c["ys"] + np.float32(c["yz"]), zero=0)


def rescaled(case: Case, sums: Array, scales: Array) -> Array:
    return quantised(case, sums.astype(np.float32) * np.asarray(scales, np.float32))


def quantised(case: Case, steps: Array, zero: int | None = None) -> Array:
    """Codes of f32 numbers of steps from `zero`, by default the zero point."""
    info, zero = np.iinfo(case.result), int(case.constants["yz"]) if zero is None else zero
    return np.clip(np.rint(steps).astype(np.float64) + zero, info.min, info.max).astype(case.result)


def added(case: Case) -> Array:
    """QLinearAdd; each fused multiply-add by exact integers, in units of 2^-80."""
    c, info = case.constants, np.iinfo(case.result)
    ra, rb = c["as"] / c["ys"], c["bs"] / c["ys"]
    fixed = np.float32(c["yz"]) - (ra * np.float32(c["az"]) + rb * np.float32(c["bz"]))
    codes = range(int(info.min), int(info.max) + 1)
    inner = {b: fused(b, rb, fixed) for b in codes}
    table = np.array([[fused(a, ra, inner[b]) for b in codes] for a in codes], np.float32)
    return np.clip(np.rint(table), info.min, info.max).astype(case.result).reshape(case.fed["a"].shape)


UNIT = 80


def fused(code: int, factor: np.float32, addend: np.float32) -> np.float32:
    """f32(code * factor + addend), rounded once: half to even."""
    total = code * exact(factor) + exact(addend)
    if total == 0:
        return np.float32(0)
    drop = max(abs(total).bit_length() - 24, 0)
    quotient, rest = divmod(abs(total), 1 << drop)
    half = 1 << drop >> 1
    if drop and (rest > half or (rest == half and quotient & 1)):
        quotient += 1
    return np.float32(np.ldexp(float(quotient if total > 0 else -quotient), drop - UNIT))


@cache
def exact(value: np.float32) -> int:
    """`value` in units of 2^-80."""
    mantissa, exponent = np.frexp(np.float64(value))
    whole, shift = int(mantissa * (1 << 24)), int(exponent) - 24 + UNIT
    assert shift >= 0
    return whole << shift
