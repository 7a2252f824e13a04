"""Random networks of float operators between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from choices import Choice
from onnx import helper
from random_graphs import Dims, Graph, Network, window

BOUNDS = ((0, 6), (-1, 1), (0.3, 0.9), (0.3, 0.9), (None, 0.5), (-0.25, None), (4, 9), (-9, -4), (0, 0))


@dataclass
class Qdq(Graph):
    """A graph whose values are dequantised codes. steps: scale, zero point and type of the codes of each value."""

    kind: type[np.integer[Any]] = np.uint8
    steps: dict[str, tuple[float, int]] = field(default_factory=dict)

    def step(self, scale: float) -> tuple[float, int]:
        """A scale with a zero point, often at an end of the codes."""
        info = np.iinfo(self.kind)
        return scale, int(info.min) + self.one([0, 0, 255, 128, 128, 113, 3])

    def names(self, step: tuple[float, int]) -> list[str]:
        return [self.constant(np.float32(step[0])), self.constant(self.kind(step[1]))]

    def quantised(self, x: str, step: tuple[float, int]) -> str:
        """`x`, quantised and dequantised by `step`; nothing else is to read `x`."""
        dims = self.dims[x]
        names = self.names(step)
        codes = self.add("QuantizeLinear", [x, *names], dims)
        result = self.add("DequantizeLinear", [codes, *names], dims)
        for hidden in (x, codes):
            del self.dims[hidden]
        self.steps[result] = step
        return result

    def layer(self, op: str, inputs: Sequence[str], dims: Dims, scale: float, **attributes: Any) -> str:
        """An operator, perhaps a Relu or Clip of its result, and the result's codes."""
        x = self.add(op, inputs, dims, **attributes)
        if self.number(0, 2) == 2:
            x = self.hide(x, _clamped(self, x))
        return self.quantised(x, self.step(scale))

    def hide(self, x: str, result: str) -> str:
        """`result`, where `x` is to be read by nothing else."""
        del self.dims[x]
        return result


def _clamped(graph: Qdq, x: str) -> str:
    if graph.yes():
        return graph.add("Relu", [x], graph.dims[x])
    bounds = ["" if bound is None else graph.constant(np.float32(bound)) for bound in graph.one(BOUNDS)]
    return graph.add("Clip", [x, *bounds], graph.dims[x])


def _weights(graph: Qdq, dims: Dims, axis: int, gain: float) -> tuple[str, np.ndarray]:
    """Dequantised weights, and their scale or scales."""
    kinds: list[type[np.integer[Any]]] = [np.int8, np.int8, graph.kind]
    kind = graph.one(kinds)
    info = np.iinfo(kind)
    codes = graph.rng.integers(info.min, info.max, dims, endpoint=True).astype(kind)
    size = (dims[axis],) if graph.yes() else ()
    scales = (graph.rng.uniform(0.5, 1, size) * gain / 74).astype(np.float32)
    zero = np.full(size, 0 if kind == np.int8 else 128, kind)
    names = [graph.constant(each) for each in (codes, scales, zero)]
    weights = graph.add("DequantizeLinear", names, dims, **({"axis": axis} if size else {}))
    del graph.dims[weights]
    return weights, scales


def _bias(graph: Qdq, x: str, scales: np.ndarray, k: int) -> list[str]:
    """None, floats, or codes in steps of the sums."""
    match graph.one(["none", "floats", "codes"]):
        case "none":
            return []
        case "floats":
            return [graph.constant(graph.normal((k,)))]
        case _:
            steps = (np.float32(graph.steps[x][0]) * scales * np.ones(k)).astype(np.float32)
            codes = np.rint(graph.normal((k,)) / steps).astype(np.int32)
            name = graph.add("DequantizeLinear", [graph.constant(codes), graph.constant(steps)], (k,), axis=0)
            return [graph.hide(name, name)]


def _conv(graph: Qdq) -> None:
    x = graph.value(4)
    n, c, *_ = graph.dims[x]
    group = graph.one([1, 1, *(each for each in range(1, c + 1) if c % each == 0)])
    k = group * graph.number(1, max(1, 6 // group))
    image, attributes = window(graph, x, dilated=True, most_pad=3)
    dims = (k, c // group, *attributes["kernel_shape"])
    weights, scales = _weights(graph, dims, 0, 1 / math.sqrt(math.prod(dims[1:])))
    inputs = [x, weights, *_bias(graph, x, scales, k)]
    graph.layer("Conv", inputs, (n, k, *image), graph.one([0.02, 0.03, 0.1]), group=group, **attributes)


def _gemm(graph: Qdq) -> None:
    x = graph.value()
    n, *rest = graph.dims[x]
    c = math.prod(rest)
    if len(rest) > 1:
        step = graph.steps[x]
        x = graph.add("Flatten", [x], (n, c))
        graph.steps[x] = step
    k, transposed = graph.number(1, 7), graph.number(0, 1)
    dims = (k, c) if transposed else (c, k)
    weights, scales = _weights(graph, dims, 1 - transposed, 1 / math.sqrt(c))
    if not transposed and graph.yes():
        graph.layer("MatMul", [x, weights], (n, k), 0.03)
    else:
        inputs = [x, weights, *_bias(graph, x, scales, k)]
        graph.layer("Gemm", inputs, (n, k), 0.03, transB=transposed)


def _of_two(graph: Qdq) -> None:
    x = graph.value()
    graph.layer(graph.one(["Add", "Mul"]), [x, graph.alike(x)], graph.dims[x], graph.one([0.03, 0.05]))


def _gate(graph: Qdq) -> None:
    """A product or sum with one pixel a channel."""
    x = graph.value(4)
    pixels = graph.layer("GlobalAveragePool", [x], (*graph.dims[x][:2], 1, 1), 0.02)
    graph.layer(graph.one(["Mul", "Add"]), [x, pixels][:: graph.one([1, -1])], graph.dims[x], 0.03)


def _pool(graph: Qdq) -> None:
    """MaxPool keeps scale and zero point, usually."""
    x = graph.value(4)
    image, attributes = window(graph, x, ceil=graph.yes(), dilated=True)
    result = graph.add("MaxPool", [x], graph.dims[x][:2] + image, **attributes)
    graph.quantised(result, graph.steps[x] if graph.number(0, 3) else graph.step(0.02))


def _mean(graph: Qdq) -> None:
    x = graph.value(4)
    if graph.yes():
        graph.layer("GlobalAveragePool", [x], (*graph.dims[x][:2], 1, 1), 0.02)
        return
    image, attributes = window(graph, x, dilated=False)
    counted = graph.number(0, 1)
    graph.layer("AveragePool", [x], graph.dims[x][:2] + image, 0.02, count_include_pad=counted, **attributes)


def _clip(graph: Qdq) -> None:
    """Of codes, under their own step or another."""
    x = graph.value()
    graph.quantised(_clamped(graph, x), graph.steps[x] if graph.yes() else graph.step(graph.one([0.01, 0.02])))


def _function(graph: Qdq) -> None:
    x = graph.value()
    graph.layer(graph.one(["Sigmoid", "Tanh"]), [x], graph.dims[x], graph.one([1 / 256, 1 / 128, 0.02]))


def _concat(graph: Qdq) -> None:
    x = graph.value()
    y = graph.alike(x, lambda dims: (dims[0], *dims[2:]))
    n, c, *rest = graph.dims[x]
    result = graph.add("Concat", [x, y], (n, c + graph.dims[y][1], *rest), axis=1)
    graph.quantised(result, graph.steps[x] if graph.yes() else graph.step(0.03))


ON_IMAGES = (_conv, _conv, _conv, _pool, _mean, _mean, _gate)
ON_ANY = (_gemm, _of_two, _clip, _clip, _clip, _concat, _function, _function)


def qdq_network(choice: Choice, most_layers: int = 4) -> Network:
    """A network of dequantised codes; it takes and gives floats or bytes."""
    graph = Qdq(choice, np.random.default_rng(choice.integer(0, 1 << 30)))
    kinds: tuple[type[np.integer[Any]], ...] = (np.uint8, np.int8)
    graph.kind = graph.one(kinds)
    batch = graph.one([1, 1, 2])
    dims = (batch, graph.number(1, 6), graph.number(1, 9), graph.number(1, 9))
    graph.inputs, graph.dims["x"] = ["x"], dims
    bytes_in, step = graph.yes(), graph.step(graph.one([0.01, 0.02, 0.03]))
    if bytes_in:
        first = graph.add("DequantizeLinear", ["x", *graph.names(step)], dims)
        graph.steps[first] = step
        del graph.dims["x"]
    else:
        graph.quantised("x", step)
    for _ in range(graph.number(1, most_layers)):
        images = any(len(each) == 4 for each in graph.dims.values())
        graph.one([*ON_ANY, *(ON_IMAGES if images else ())])(graph)
    graph.dims["x"] = dims
    types = _element_types(graph, bytes_in)
    info = np.iinfo(graph.kind)
    shape = (2 * batch, *dims[1:])
    fed = graph.rng.integers(info.min, info.max, shape, endpoint=True).astype(graph.kind)
    return Network(graph.model(types), {"x": fed if bytes_in else graph.normal(shape)})


def _element_types(graph: Qdq, bytes_in: bool) -> dict[str, int]:
    """Of the input and of outputs that are codes: the last DequantizeLinear is left out half the time."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(graph.kind))
    kinds: dict[str, int] = {"x": code} if bytes_in else {}
    last = graph.nodes[-1]
    if last.op_type == "DequantizeLinear" and graph.nodes[-2].op_type == "QuantizeLinear" and graph.yes():
        graph.nodes.pop()
        codes = graph.nodes[-1].output[0]
        graph.dims[codes] = graph.dims.pop(last.output[0])
        kinds[codes] = code
    return kinds
