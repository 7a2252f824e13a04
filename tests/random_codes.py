"""Random networks of onnxruntime's integer operators, bytes in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from choices import Choice
from onnx import helper
from qlinear_cases import MICROSOFT
from random_graphs import Dims, Graph, Network, convolution, shuffle, window


@dataclass
class Codes(Graph):
    """A graph of codes. steps: the names of scale and zero point of each value; kind: uint8 or int8."""

    kind: type[np.integer[Any]] = np.uint8
    zeros: tuple[int, ...] = (0, 113, 3, 127)  # zero points, less the least code
    steps: dict[str, tuple[str, str]] = field(default_factory=dict)

    def integers(self, dims: Dims, kind: type[np.integer[Any]] | None = None) -> np.ndarray:
        info = np.iinfo(kind or self.kind)
        return self.rng.integers(info.min, info.max, dims, endpoint=True).astype(kind or self.kind)

    def step(self, scale: float) -> tuple[str, str]:
        info = np.iinfo(self.kind)
        zero = self.one(self.zeros) + int(info.min)
        return self.constant(np.float32(scale)), self.constant(self.kind(zero))

    def code(self, op: str, inputs: Sequence[str], dims: Dims, step: tuple[str, str], **attributes: Any) -> str:
        name = self.add(op, inputs, dims, **attributes)
        self.steps[name] = step
        return name


def _weights(graph: Codes, dims: Dims, channels: int) -> list[str]:
    """Weights (signed), their scale or scales and their zero point."""
    scales = graph.rng.uniform(0.005, 0.02, channels if graph.yes() else ()).astype(np.float32)
    # onnxruntime has uint8 x uint8, uint8 x int8 and int8 x int8; one zero point for each scale.
    zero = np.zeros(np.shape(scales), np.int8) + np.int8(graph.one([0, 0, -3]))
    return [graph.constant(each) for each in (graph.integers(dims, np.int8), scales, zero)]


def _quantised_conv(graph: Codes) -> None:
    x, shape, dims, attributes = convolution(graph)
    step = graph.step(graph.one([0.05, 0.2, 1.0]))
    inputs = [x, *graph.steps[x], *_weights(graph, shape, shape[0]), *step]
    if graph.yes():
        inputs.append(graph.constant(graph.rng.integers(-5000, 5000, shape[0]).astype(np.int32)))
    graph.code("QLinearConv", inputs, dims, step, **attributes)


def _of_two(graph: Codes, op: str, x: str, y: str, dims: Dims) -> None:
    step = graph.step(graph.one([0.05, 0.2, 1.0]))
    inputs = [x, *graph.steps[x], y, *graph.steps[y], *step]
    graph.code(op, inputs, dims, step, domain=MICROSOFT)


def _quantised_sum(graph: Codes) -> None:
    x = graph.value()
    _of_two(graph, graph.one(["QLinearAdd", "QLinearMul"]), x, graph.alike(x), graph.dims[x])


def _mean_of(graph: Codes, x: str) -> str:
    step = graph.step(0.03)
    inputs = [x, *graph.steps[x], *step]
    return graph.code("QLinearGlobalAveragePool", inputs, (*graph.dims[x][:2], 1, 1), step, domain=MICROSOFT)


def _quantised_mean(graph: Codes) -> None:
    _mean_of(graph, graph.value(4))


def _quantised_gate(graph: Codes) -> None:
    """A product with one pixel a channel."""
    x = graph.value(4)
    first, second = (x, _mean_of(graph, x))[:: graph.one([1, -1])]
    _of_two(graph, "QLinearMul", first, second, graph.dims[x])


def _leaky_codes(graph: Codes) -> None:
    x, step = graph.value(), graph.step(graph.one([0.02, 0.05]))
    alpha = graph.one([0.01, 0.1, 0.25])
    graph.code("QLinearLeakyRelu", [x, *graph.steps[x], *step], graph.dims[x], step, alpha=alpha, domain=MICROSOFT)


def _sigmoid_of_codes(graph: Codes) -> None:
    x, step = graph.value(), graph.step(graph.one([1 / 256, 0.02]))
    graph.code("QLinearSigmoid", [x, *graph.steps[x], *step], graph.dims[x], step, domain=MICROSOFT)


def _average_of_codes(graph: Codes) -> None:
    x, step = graph.value(4), graph.step(graph.one([0.03, 0.043]))
    image, attributes = window(graph, x, ceil=graph.yes(), dilated=False)
    attributes["count_include_pad"] = graph.number(0, 1)
    inputs = [x, *graph.steps[x], *step]
    graph.code("QLinearAveragePool", inputs, graph.dims[x][:2] + image, step, domain=MICROSOFT, **attributes)


def _codes_by_constants(graph: Codes) -> None:
    x, step, of_constant = graph.value(), graph.step(0.0517), graph.step(0.0093)
    dims = (graph.dims[x][1], *[1] * (len(graph.dims[x]) - 2))
    constant = graph.constant(graph.integers(graph.one([dims, (1,)])))
    inputs = [x, *graph.steps[x], constant, *of_constant, *step]
    graph.code(graph.one(["QLinearMul", "QLinearAdd"]), inputs, graph.dims[x], step, domain=MICROSOFT)


def _quantised_pool(graph: Codes) -> None:
    x = graph.value(4)
    image, attributes = window(graph, x, ceil=graph.yes(), dilated=True)
    graph.code("MaxPool", [x], graph.dims[x][:2] + image, graph.steps[x], **attributes)


def _quantised_matrix(graph: Codes) -> None:
    x = graph.value()
    n, *rest = graph.dims[x]
    if len(rest) > 1:
        x = graph.code("Flatten", [x], (n, math.prod(rest)), graph.steps[x])
    k, step, c = graph.number(1, 9), graph.step(graph.one([0.2, 1.0])), math.prod(rest)
    weights = _weights(graph, (c, k), k)
    if graph.yes():
        graph.code("QLinearMatMul", [x, *graph.steps[x], *weights, *step], (n, k), step)
    else:
        bias = graph.constant(graph.rng.integers(-5000, 5000, k).astype(np.int32)) if graph.yes() else ""
        graph.code("QGemm", [x, *graph.steps[x], *weights, bias, *step], (n, k), step, domain=MICROSOFT)


def _quantised_concat(graph: Codes) -> None:
    x = graph.value()
    n, c, *rest = graph.dims[x]
    graph.code("Concat", [x, x], (n, 2 * c, *rest), graph.steps[x], axis=1)


def _clip_of_codes(graph: Codes) -> None:
    x = graph.value()
    if graph.kind == np.int8 and graph.yes():
        graph.code("Relu", [x], graph.dims[x], graph.steps[x])
        return
    info = np.iinfo(graph.kind)
    lo, hi = sorted(graph.number(int(info.min), int(info.max)) for _ in range(2))
    bounds = [graph.constant(graph.kind(bound)) for bound in (lo, hi)]
    graph.code("Clip", [x, *bounds], graph.dims[x], graph.steps[x])


def _shuffled_codes(graph: Codes) -> None:
    """A grouped QLinearConv, and a shuffle of its channels."""
    x = graph.value(4)
    n, c, h, w = graph.dims[x]
    group = graph.one([each for each in range(1, c + 1) if c % each == 0])
    k = graph.one([each for each in (4, 6, 8, 12) if each % group == 0] or [2 * group])
    step = graph.step(graph.one([0.05, 0.2, 1.0]))
    inputs = [x, *graph.steps[x], *_weights(graph, (k, c // group, 1, 1), k), *step]
    y = graph.code("QLinearConv", inputs, (n, k, h, w), step, group=group)
    result = shuffle(graph, y, graph.one([each for each in range(1, k + 1) if k % each == 0]))
    graph.steps[result] = step


QUANTISED_IMAGES = (_quantised_conv, _quantised_conv, _quantised_mean, _quantised_pool, _quantised_gate)
QUANTISED = (_quantised_sum, _quantised_sum, _quantised_matrix, _quantised_concat)


def quantised_network(choice: Choice, most_nodes: int = 6, odd: bool = False) -> Network:
    """A network of onnxruntime's integer operators, bytes in and out; odd: with what few networks have."""
    graph = Codes(choice, np.random.default_rng(choice.integer(0, 999)))
    kinds: tuple[type[np.integer[Any]], ...] = (np.uint8, np.int8)
    graph.kind = graph.one(kinds)
    if odd:
        graph.zeros = (0, 113, 3, 128, 255)
    batch = graph.one([1, 1, 2])
    graph.dims["x"], graph.inputs = (batch, graph.number(1, 6), graph.number(1, 11), graph.number(1, 11)), ["x"]
    graph.steps["x"] = graph.step(0.04)
    nodes = graph.number(1, most_nodes)
    while len(graph.nodes) < nodes:
        images = any(len(dims) == 4 for dims in graph.dims.values())
        more = (_clip_of_codes, _leaky_codes, _sigmoid_of_codes, _codes_by_constants) if odd else ()
        more += (_shuffled_codes, _average_of_codes) if odd and images else ()
        graph.one([*(QUANTISED_IMAGES if images else ()), *QUANTISED, *more])(graph)
    types = dict.fromkeys(graph.dims, helper.np_dtype_to_tensor_dtype(np.dtype(graph.kind)))
    return Network(graph.model(types), {"x": graph.integers((2 * batch, *graph.dims["x"][1:]))}, exact=True)


def odd_quantised_network(choice: Choice) -> Network:
    """As a fuzzer draws it: zero points at the ends of the codes, Clips of codes, and shuffles."""
    return quantised_network(choice, odd=True)
