"""Random float networks at the edges: what a fuzzer draws beside the operators of random_graphs.py.

Channel shuffles after grouped convolutions, activations that no layer can take in, values that are read by several
nodes, bounds outside of what is clipped, and inputs of degenerate ranges.
"""

from __future__ import annotations

import math

import numpy as np
from choices import Choice
from random_graphs import MOST_ELEMENTS, Graph, Network, add_inputs, grow, shuffle

SIDE = 8  # of an image, at most
SHUFFLED = (4, 6, 8, 12)  # channels of a shuffle
BOUNDS = (
    (0, 6), (-1, 1), (0.25, 0.75), (0.25, 0.75), (None, 1), (-0.5, None), (5, 9), (-9, -5), (-0.01, 0.01), (0.3, 0.9),
    (0, 0), (2, None), (None, -2),
)  # fmt: skip
SLOPES = (0.01, 0.01, 0.1, 0.25, 0.5, -0.5, 1.0)


def _divisors(channels: int) -> list[int]:
    """Without 1 and `channels`."""
    return [each for each in range(2, channels) if channels % each == 0]


def _small(graph: Graph, rank: int = 0, elements: int = MOST_ELEMENTS) -> str:
    """A value of at most `elements` an image, or any."""
    found = [x for x, dims in reversed(graph.dims.items()) if rank in (0, len(dims))]
    return graph.one([x for x in found if math.prod(graph.dims[x][1:]) <= elements] or found)


def _conv(graph: Graph, x: str, k: int, group: int) -> str:
    """A convolution that keeps rows and columns."""
    n, c, h, w = graph.dims[x]
    size = graph.one([1, 1, 3])
    weights = graph.normal((k, c // group, size, size), 1 / math.sqrt(c // group * size**2))
    inputs = [x, graph.constant(weights)]
    if graph.yes():
        inputs.append(graph.constant(graph.normal((k,))))
    return graph.add("Conv", inputs, (n, k, h, w), group=group, pads=[size // 2] * 4)


def _grouped_shuffle(graph: Graph) -> None:
    """A grouped convolution, perhaps one more operator, and a shuffle with other groups."""
    x = _small(graph, 4, 400)
    if not _divisors(graph.dims[x][1]):
        x = _conv(graph, x, graph.one(SHUFFLED), 1)
    group = graph.one(_divisors(graph.dims[x][1]))
    x = _conv(graph, x, graph.one([k for k in SHUFFLED if k % group == 0 and k > group] or [2 * group]), group)
    between = graph.one(["", "", "Relu", "activation", "MaxPool"])
    if between == "MaxPool":
        n, c, h, w = graph.dims[x]
        size = min(2, h, w)
        x = graph.add("MaxPool", [x], (n, c, h - size + 1, w - size + 1), kernel_shape=[size, size])
    elif between == "Relu":
        x = graph.add("Relu", [x], graph.dims[x])
    elif between:
        x = activation(graph, x)
    divisors = _divisors(graph.dims[x][1])
    shuffle(graph, x, graph.one([each for each in divisors if each != group] or divisors))


def activation(graph: Graph, x: str) -> str:
    """LeakyRelu, PRelu, Clip or Relu of `x`."""
    dims = graph.dims[x]
    match graph.one(["LeakyRelu", "PRelu", "Clip", "Relu"]):
        case "LeakyRelu":
            return graph.add("LeakyRelu", [x], dims, alpha=graph.one(SLOPES))
        case "PRelu":
            return graph.add("PRelu", [x, graph.constant(np.array([graph.one(SLOPES)], np.float32))], dims)
        case "Clip":
            bounds = ["" if bound is None else graph.constant(np.float32(bound)) for bound in graph.one(BOUNDS)]
            return graph.add("Clip", [x, *bounds], dims)
        case _:
            return graph.add("Relu", [x], dims)


def _max_pool(graph: Graph, x: str) -> str:
    if len(graph.dims[x]) != 4:
        return activation(graph, x)
    n, c, h, w = graph.dims[x]
    kernel = [min(3, h), min(2, w)]
    return graph.add("MaxPool", [x], (n, c, h - kernel[0] + 1, w - kernel[1] + 1), kernel_shape=kernel)


def _unfused(graph: Graph) -> None:
    """An activation of what gives it no sums: of an Add, an input, a host's result, a MaxPool or another activation."""
    x = _small(graph)
    match graph.one(["Add", "Add", "input", "host", "MaxPool", "activation", "any"]):
        case "Add":
            x = graph.add("Add", [x, graph.alike(x)], graph.dims[x])
        case "input":
            x = graph.one(graph.inputs)
        case "host":
            x = graph.add(graph.one(["Atan", "Asinh"]), [x], graph.dims[x])
        case "MaxPool":
            x = _max_pool(graph, x)
        case "activation":
            x = activation(graph, x)
        case _:
            pass
    activation(graph, x)
    if x not in graph.inputs and graph.number(0, 2) == 2:
        graph.shown.append(x)


def _shared(graph: Graph) -> None:
    """Activations of a value that is read otherwise, too: a convolution's result, or a sum."""
    if graph.yes():
        x = graph.one(graph.inputs)
        shared = graph.add("Add", [x, graph.alike(x)], graph.dims[x])
    else:
        shared = _offset_conv(graph)
    for _ in range(graph.number(1, 2)):
        activation(graph, shared)
    graph.shown.append(shared)


def _offset_conv(graph: Graph) -> str:
    """A 1x1 convolution whose results are often of one sign."""
    x = _small(graph, 4, 400)
    n, c, h, w = graph.dims[x]
    weights = graph.normal((k := graph.number(1, 6), c, 1, 1), 1 / math.sqrt(c))
    offset = graph.one([0, 0, -3, 3])
    bias = graph.normal((k,)) + np.float32(offset)
    return graph.add("Conv", [x, graph.constant(weights), graph.constant(bias)], (n, k, h, w))


def _large_sums(graph: Graph) -> None:
    """A convolution whose products are alike, so that sums of integers come near to what a psum holds."""
    x = _small(graph, 4, 400)
    n, c, h, w = graph.dims[x]
    x = graph.add("Relu", [x], graph.dims[x]) if graph.yes() else x
    weights = graph.constant(np.abs(graph.normal((graph.number(1, 4), c, 3, 3))) + np.float32(1))
    k = len(graph.constants[weights])
    graph.add("Conv", [x, weights], (n, k, h, w), pads=[1, 1, 1, 1])


ODD = (_grouped_shuffle, _unfused, _unfused, _shared, _large_sums)


def _fed(graph: Graph, images: int, dims: tuple[int, ...]) -> np.ndarray:
    """Values of an input: mostly normal, else of a degenerate range."""
    x = graph.normal((images, *dims))
    match graph.one(["normal", "normal", "normal", "tiny", "constant", "negative", "negative", "offset", "large"]):
        case "tiny":
            return np.clip(x * np.float32(0.04), -0.1, 0.1)
        case "constant":
            return np.full_like(x, graph.one([0, 1, -0.3]))
        case "negative":
            return np.minimum(x - np.float32(1.5), np.float32(0.004)) if graph.yes() else -(np.abs(x) ** 3)
        case "offset":
            return x + np.float32(graph.one([20, -100]))
        case "large":
            return x * np.float32(1000)
        case _:
            return x


def odd_network(choice: Choice, most_nodes: int = 7) -> Network:
    """A float network of ordinary operators and at least one part that is odd."""
    graph = Graph(choice, np.random.default_rng(choice.integer(0, 1 << 30)))
    batch = add_inputs(graph, SIDE)
    if not any(len(graph.dims[x]) == 4 for x in graph.inputs):
        graph.dims["x9"] = (batch, 4, 5, 5)
        graph.inputs.append("x9")
    grow(graph, graph.number(0, most_nodes - 3))
    for _ in range(graph.one([1, 1, 2])):
        graph.one(ODD)(graph)
    grow(graph, len(graph.nodes) + graph.one([0, 0, 1, 2]))
    feeds = {name: _fed(graph, 2 * batch, graph.dims[name][1:]) for name in graph.inputs}
    return Network(graph.model(), feeds)
