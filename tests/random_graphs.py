"""Small random networks as ONNX models, from any source of choices.

A network grows value by value: an operator is drawn, its operands among the values that there are (the latest first, so
that graphs are deep when they shrink), its attributes such that ONNX allows them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from choices import Choice
from onnx import TensorProto, helper, numpy_helper
from qlinear_cases import MICROSOFT

T = TypeVar("T")
Dims = tuple[int, ...]

MOST_ELEMENTS = 1200  # of a value's image that anything reads, if there are smaller ones
MOST_CHANNELS = 18  # of a concatenation


@dataclass(frozen=True)
class Network:
    """A model with inputs for some batches of it. exact: it is quantised already."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    exact: bool = False


@dataclass
class Graph:
    """A graph that grows; `dims` of the values so far, inputs among them."""

    choice: Choice
    rng: np.random.Generator
    dims: dict[str, Dims] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)  # values that are outputs, whatever reads them
    pooled: dict[str, Dims] = field(default_factory=dict)  # by pools of ceil_mode

    def number(self, least: int, most: int) -> int:
        return self.choice.integer(least, most)

    def one(self, choices: Sequence[T]) -> T:
        return self.choice.one(choices)

    def yes(self) -> bool:
        return self.choice.yes()

    def value(self, rank: int = 0) -> str:
        """A value of some rank (0: any)."""
        found = [name for name in reversed(self.dims) if rank in (0, len(self.dims[name]))]
        return self.one([name for name in found if math.prod(self.dims[name][1:]) <= MOST_ELEMENTS] or found)

    def alike(self, name: str, dims: Callable[[Dims], Dims] = lambda dims: dims) -> str:
        """A value of the same dims as `name`, perhaps itself."""
        wanted = dims(self.dims[name])
        return self.one([other for other in reversed(self.dims) if dims(self.dims[other]) == wanted])

    def normal(self, dims: Dims, deviation: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal(dims) * deviation).astype(np.float32)

    def constant(self, array: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def add(self, op: str, inputs: Sequence[str], dims: Dims, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op.lower()}{len(self.nodes)}", **attributes))
        self.dims[name] = dims
        if "ceil_mode" in attributes:
            self.pooled[name] = dims
        return name

    def outputs(self) -> list[str]:
        """What nothing reads, what is shown, and perhaps a value that something reads; no inputs."""
        made = [name for name in self.dims if name not in self.inputs]
        read = {name for node in self.nodes for name in node.input}
        found = [name for name in made if name not in read or name in self.shown]
        inner = [name for name in made if name not in found]
        return found + ([self.one(inner)] if inner and self.number(0, 4) == 4 else [])

    def model(self, kinds: dict[str, int] | None = None) -> onnx.ModelProto:
        """kinds: element types where they are not f32.

        Pools of ceil_mode have their types: ONNX's inference finds too many windows for some of them, and onnxruntime
        does not load a model with a reader that these do not fit. With another type it leaves open what there are.
        """
        kinds = kinds or {}

        def types(names: Sequence[str], dims: dict[str, Dims]) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(x, kinds.get(x, TensorProto.FLOAT), dims[x]) for x in names]

        graph = helper.make_graph(
            self.nodes,
            "random",
            types(self.inputs, self.dims),
            types(self.outputs(), self.dims),
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
            value_info=types([*self.pooled], self.pooled),
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


# -- operators on images -----------------------------------------------------------------------------------------------


def _axis(graph: Graph, size: int, dilated: bool, most_pad: int | None = None) -> tuple[int, int, int, int, int]:
    """Kernel, stride, dilation and pads of one axis; a window fits. Pads are below the kernel's size, or `most_pad`."""
    kernel = graph.one([3, 1, 2, 5, 7, 4, 6])
    dilation = graph.one([1, 1, 2, 3]) if dilated else 1
    span = (kernel - 1) * dilation + 1
    most = kernel - 1 if most_pad is None else most_pad
    before, after = graph.number(0, min(most, 3)), graph.number(0, min(most, 3))
    if span > size + before + after:
        kernel, dilation, before, after = min(kernel, size), 1, 0, 0
    return kernel, graph.one([1, 2, 3, 4]), dilation, before, after


def window(graph: Graph, x: str, ceil: bool = False, **limits: Any) -> tuple[Dims, dict[str, Any]]:
    """Rows and columns of the result, and attributes."""
    sizes = graph.dims[x][2:]
    axes = [_axis(graph, size, **limits) for size in sizes]
    kernel, stride, dilation, before, after = zip(*axes, strict=True)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride}
    if dilation != (1, 1):
        attributes["dilations"] = dilation
    auto = graph.one(["", "", "", "SAME_UPPER", "SAME_LOWER", "VALID"]) if dilation == (1, 1) and not ceil else ""
    if any(s > span for s, span in zip(stride, spans, strict=True)):
        auto = ""  # onnxruntime finds a negative padding then
    if auto.startswith("SAME"):
        return tuple(-(-size // s) for size, s in zip(sizes, stride, strict=True)), attributes | {"auto_pad": auto}
    if auto and all(span <= size for span, size in zip(spans, sizes, strict=True)):
        dims = tuple((size - span) // s + 1 for size, span, s in zip(sizes, spans, stride, strict=True))
        return dims, attributes | {"auto_pad": auto}
    if any((*before, *after)):
        attributes["pads"] = (*before, *after)
    if ceil:
        attributes["ceil_mode"] = 1
    dims = []
    for size, span, s, b, a in zip(sizes, spans, stride, before, after, strict=True):
        last = (size + b + a - span + (s - 1 if ceil else 0)) // s
        dims.append(last + 1 - (ceil and last * s >= size + b))  # no window begins in the padding at the end
    return tuple(dims), attributes


def _groups(graph: Graph, channels: int) -> tuple[int, int]:
    """Groups, and output channels."""
    group = graph.one([1, 1, channels, *(each for each in range(2, channels) if channels % each == 0)])
    return group, group * graph.number(1, max(1, min(9 // group, 9)))


def convolution(graph: Graph, x: str = "") -> tuple[str, Dims, Dims, dict[str, Any]]:
    """The input, `x` if given, the shapes of weights and result, and the attributes."""
    x = x or graph.value(4)
    n, c, *_ = graph.dims[x]
    group, k = _groups(graph, c)
    image, attributes = window(graph, x, dilated=True, most_pad=3)
    return x, (k, c // group, *attributes["kernel_shape"]), (n, k, *image), {"group": group, **attributes}


def _conv(graph: Graph, x: str = "") -> None:
    x, shape, dims, attributes = convolution(graph, x)
    inputs = [x, graph.constant(graph.normal(shape, 1 / math.sqrt(math.prod(shape[1:]))))]
    if graph.yes():
        inputs.append(graph.constant(graph.normal(shape[:1])))
    graph.add("Conv", inputs, dims, **attributes)


def _max_pool(graph: Graph) -> None:
    x = graph.value(4)
    image, attributes = window(graph, x, ceil=graph.yes(), dilated=True)
    graph.add("MaxPool", [x], graph.dims[x][:2] + image, **attributes)


def _average_pool(graph: Graph) -> None:
    x = graph.value(4)
    image, attributes = window(graph, x, ceil=graph.yes(), dilated=False)  # ONNX has dilations from opset 19 on
    graph.add("AveragePool", [x], graph.dims[x][:2] + image, count_include_pad=graph.number(0, 1), **attributes)


def _global_pool(graph: Graph) -> None:
    x = graph.value(4)
    graph.add(graph.one(["GlobalAveragePool", "GlobalMaxPool"]), [x], (*graph.dims[x][:2], 1, 1))


def _reduce_mean(graph: Graph) -> None:
    x = graph.value(4)
    axes = graph.one([(2, 3), (2,), (-1,), (-2, -1)])
    kept = [axis not in {each % 4 for each in axes} for axis in range(4)]
    if graph.yes() or sum(kept) == 3:
        dims = tuple(size if keep else 1 for size, keep in zip(graph.dims[x], kept, strict=True))
        graph.add("ReduceMean", [x], dims, axes=axes, keepdims=1)
    else:
        graph.add("ReduceMean", [x], graph.dims[x][:2], axes=axes, keepdims=0)


def _batch_norm(graph: Graph) -> None:
    x = graph.value(4)
    c = graph.dims[x][1]
    arrays = [graph.normal((c,)), graph.normal((c,)), graph.normal((c,)), graph.normal((c,)) ** 2 + np.float32(0.5)]
    graph.add("BatchNormalization", [x, *map(graph.constant, arrays)], graph.dims[x])


def _affine(graph: Graph) -> None:
    x = graph.value()
    dims = graph.dims[x]
    by_channel = (dims[1], 1, 1) if len(dims) == 4 else (dims[1],)
    factor = graph.rng.uniform(0.5, 2, graph.one([by_channel, (), (1,) * len(dims)])).astype(np.float32)
    op = graph.one(["Mul", "Add", "Sub", "Div"])
    operands = [x, graph.constant(factor * np.float32(graph.one([1, -1])))]
    graph.add(op, operands[::-1] if op != "Div" and graph.yes() else operands, dims)


def _shuffle(graph: Graph) -> None:
    x = graph.value(4)
    c = graph.dims[x][1]
    shuffle(graph, x, graph.one([each for each in range(1, c + 1) if c % each == 0]))


def shuffle(graph: Graph, x: str, groups: int) -> str:
    """The channels of `groups` by turns."""
    n, c, h, w = graph.dims[x]
    split = graph.add("Reshape", [x, graph.constant(np.array([n, groups, c // groups, h, w]))], ())
    moved = graph.add("Transpose", [split], (), perm=[0, 2, 1, 3, 4])
    result = graph.add("Reshape", [moved, graph.constant(np.array([n, c, h, w]))], (n, c, h, w))
    del graph.dims[split], graph.dims[moved]
    return result


def _pixels(graph: Graph) -> None:
    """The pixels of several values in turn, or of the channels of one."""
    x, block = graph.value(4), graph.one([2, 2, 3])
    n, c, h, w = graph.dims[x]
    count = block**2
    if c * h * w * count > MOST_ELEMENTS:
        return
    if c % count or graph.yes():
        others = [graph.alike(x) for _ in range(count - 1)]
        c *= count
        x = graph.add("Concat", [x, *others], (n, c, h, w), axis=1)
    dims = (n, c // count, h * block, w * block)
    graph.add("DepthToSpace", [x], dims, blocksize=block, mode=graph.one(["DCR", "DCR", "CRD"]))


def _pad(graph: Graph) -> None:
    x = graph.value(4)
    n, c, h, w = graph.dims[x]
    top, left, bottom, right = (graph.number(0, 2) for _ in range(4))
    pads = graph.constant(np.array([0, 0, top, left, 0, 0, bottom, right]))
    graph.add("Pad", [x, pads], (n, c, h + top + bottom, w + left + right))


def _shortcut(graph: Graph) -> None:
    """Every n-th row or column, more channels, or both."""
    dims = [*graph.dims[x := graph.value(4)]]
    if graph.yes():
        axis, step = graph.number(2, 3), graph.number(2, 3)
        bounds = [graph.constant(np.array([number])) for number in (0, 2**31 - 1, axis, step)]
        dims[axis] = -(-dims[axis] // step)
        x = graph.add("Slice", [x, *bounds], tuple(dims))
    if graph.yes() and dims[1] <= MOST_CHANNELS:
        first, last = graph.number(0, 2), graph.number(0, 2)
        dims[1] += first + last
        graph.add("Pad", [x, graph.constant(np.array([0, first, 0, 0, 0, last, 0, 0]))], tuple(dims))


# -- operators on anything ---------------------------------------------------------------------------------------------


def _activation(graph: Graph) -> None:
    x = graph.value()
    match graph.one(["Relu", "Clip", "LeakyRelu", "PRelu", "HardSigmoid", "HardSwish", "Identity", "Dropout"]):
        case "Clip":
            lo, hi = graph.one([(0, 6), (-1, 1), (0.25, 0.75), (None, 1), (-0.5, None)])
            bounds = ["" if bound is None else graph.constant(np.float32(bound)) for bound in (lo, hi)]
            graph.add("Clip", [x, *bounds], graph.dims[x])
        case "LeakyRelu":
            graph.add("LeakyRelu", [x], graph.dims[x], alpha=graph.one([0.1, 0.01, -0.5, 1.0]))
        case "PRelu":
            channels = graph.dims[x][1] if len(graph.dims[x]) > 1 and graph.yes() else 1
            slopes = [graph.one([0.25, 0.0, 1.0, -0.5, -1.5]) for _ in range(channels)] if channels > 1 else [0.25]
            array = np.array(slopes, np.float32).reshape(-1, *[1] * (len(graph.dims[x]) - 2))
            graph.add("PRelu", [x, graph.constant(array)], graph.dims[x])
        case op:
            graph.add(op, [x], graph.dims[x])


def _function(graph: Graph) -> None:
    """A function of single numbers that the output units have tables for."""
    x = graph.value()
    dims = graph.dims[x]
    match graph.one(["Sigmoid", "Tanh", "SiLU", "GELU", "hard swish", "Elu", "Softplus", "Gelu", "QuickGelu"]):
        case "GELU":
            _written(graph, x, ("Div", 2**0.5), ("Erf",), ("Add", 1), ("Mul", x), ("Mul", 0.5))
        case "hard swish":
            _written(
                graph, x, ("Add", 3), ("Clip", 0, 6), *graph.one([(("Mul", x), ("Div", 6)), (("Div", 6), ("Mul", x))])
            )
        case "SiLU":
            gate = graph.add("Sigmoid", [x], dims)
            graph.add("Mul", [x, gate][:: graph.one([1, -1])], dims)
            if graph.yes():  # nothing else is to read it
                del graph.dims[gate]
        case "Elu":
            graph.add("Elu", [x], dims, alpha=graph.one([1.0, 0.5]))
        case "Gelu" | "QuickGelu" as op:
            graph.add(op, [x], dims, domain=MICROSOFT)
        case op:
            graph.add(op, [x], dims)


def _written(graph: Graph, x: str, *nodes: tuple[str | float, ...]) -> None:
    """Nodes one after the other, as exporters write a function: operators, and further operands."""
    value, between = x, list[str]()
    for op, *others in nodes:
        operands = [each if isinstance(each, str) else graph.constant(np.float32(each)) for each in others]
        value = graph.add(str(op), [value, *operands], graph.dims[x])
        between.append(value)
    for name in between[:-1] if graph.yes() else ():  # nothing else is to read them
        del graph.dims[name]


def _sum(graph: Graph) -> None:
    x = graph.value()
    others = [graph.alike(x) for _ in range(graph.one([1, 1, 0, 2, 3]))]
    graph.add("Add" if len(others) == 1 and graph.yes() else "Sum", [x, *others], graph.dims[x])


def _product(graph: Graph) -> None:
    x = graph.value()
    graph.add("Mul", [x, graph.alike(x)], graph.dims[x])


def _gate(graph: Graph) -> None:
    """A product or sum with one pixel a channel, perhaps the Sigmoid of a mean."""
    x = graph.value(4)
    pixels = graph.add("GlobalAveragePool", [x], (*graph.dims[x][:2], 1, 1))
    if graph.yes():
        pixels = graph.add("Sigmoid", [pixels], graph.dims[pixels])
    graph.add(graph.one(["Mul", "Mul", "Add"]), [x, pixels][:: graph.one([1, -1])], graph.dims[x])


def _concat(graph: Graph) -> None:
    x = graph.value()
    others = [graph.alike(x, lambda dims: (dims[0], *dims[2:])) for _ in range(graph.number(1, 3))]
    channels = sum(graph.dims[name][1] for name in (x, *others))
    n, _, *rest = graph.dims[x]
    if len(rest) == 0 or channels <= MOST_CHANNELS:
        whole = graph.add("Concat", [x, *others], (n, channels, *rest), axis=graph.one([1, -1 - len(rest)]))
        if len(rest) == 2 and all(graph.dims[name] == graph.dims[x] for name in others):
            shuffle(graph, whole, 1 + len(others))


def _slice(graph: Graph) -> None:
    """Some of the channels."""
    n, c, *rest = graph.dims[x := graph.value()]
    first, end = sorted((graph.number(0, c), graph.number(0, c)))
    if first < end and len(rest) < 3:
        bounds = [graph.constant(np.array([number])) for number in (first, end, 1)]
        graph.add("Slice", [x, *bounds], (n, end - first, *rest))


def _flat(graph: Graph) -> None:
    x = graph.value()
    n, *rest = graph.dims[x]
    size = math.prod(rest)
    match graph.one(["Flatten", "Reshape", "image"]):
        case "Flatten":
            graph.add("Flatten", [x], (n, size))
        case "Reshape":
            graph.add("Reshape", [x, graph.constant(np.array([0, -1]))], (n, size))
        case _:
            c = graph.one([each for each in range(1, 10) if size % each == 0])
            dims = (n, c, size // c, 1) if graph.yes() else (n, c, 1, size // c)
            graph.add("Reshape", [x, graph.constant(np.array(dims))], dims)


def _matrix(graph: Graph) -> None:
    n, c = graph.dims[x := graph.value(2)]
    k = graph.number(1, 9)
    w = graph.normal((c, k), 1 / math.sqrt(c))
    if graph.yes():
        graph.add("MatMul", [x, graph.constant(w)], (n, k))
        return
    inputs, attributes = [x], {}
    if graph.yes():
        attributes["transB"], w = 1, w.T
    inputs.append(graph.constant(np.ascontiguousarray(w)))
    if graph.yes():
        inputs.append(graph.constant(graph.normal(graph.one([(k,), (1, k), (1,), ()]))))
        attributes["beta"] = graph.one([1.0, 0.5])
    graph.add("Gemm", inputs, (n, k), alpha=graph.one([1.0, 0.75]), **attributes)


def _on_host(graph: Graph) -> None:
    x = graph.value()
    match graph.one(["Atan", "Asinh", "Softmax", "LRN"]):
        case "Softmax":
            graph.add("Softmax", [x], graph.dims[x], axis=1)
        case "LRN" if len(graph.dims[x]) == 4:
            graph.add("LRN", [x], graph.dims[x], size=3, alpha=0.1)
        case "Asinh":
            graph.add("Asinh", [x], graph.dims[x])
        case _:
            graph.add("Atan", [x], graph.dims[x])


def _squares(graph: Graph) -> None:
    """A convolution whose channels are the pixels of squares of an image."""
    images = {name: dims for name, dims in reversed(graph.dims.items()) if len(dims) == 4}
    squares = [
        (name, step)
        for (name, (_, c, h, w)), step in itertools.product(images.items(), (2, 3))
        if h % step == w % step == 0 and c * step**2 <= MOST_CHANNELS
    ]
    if not squares:
        return
    x, step = graph.one(squares)
    n, c, h, w = graph.dims[x]
    dims = (n, c * step**2, h // step, w // step)
    match graph.one(["SpaceToDepth", "SpaceToDepth", "Slice", "Transpose"]):
        case "SpaceToDepth":
            parts = list[str]()
            moved = graph.add("SpaceToDepth", [x], dims, blocksize=step)
        case "Slice":
            parts = [_every_nth(graph, x, at, step) for at in np.ndindex(step, step)]
            moved = graph.add("Concat", parts, dims, axis=1)
        case _:
            split = graph.constant(np.array([n, c, h // step, step, w // step, step]))
            perm = [0, *graph.one([(1, 3, 5), (3, 5, 1)]), 2, 4]
            parts = [graph.add("Reshape", [x, split], ())]
            parts.append(graph.add("Transpose", parts, (), perm=perm))
            moved = graph.add("Reshape", [parts[-1], graph.constant(np.array(dims))], dims)
    for part in parts:
        del graph.dims[part]
    _conv(graph, moved)


def _every_nth(graph: Graph, x: str, first: Sequence[int], step: int) -> str:
    """Every n-th row and column from the first ones on."""
    bounds = [graph.constant(np.array(numbers)) for numbers in (first, (2**31 - 1,) * 2, (2, 3), (step,) * 2)]
    return graph.add("Slice", [x, *bounds], ())


ON_IMAGES = (
    _conv, _conv, _conv, _max_pool, _average_pool, _global_pool, _reduce_mean, _batch_norm, _shuffle, _shuffle, _pad,
    _shortcut, _gate, _pixels, _squares,
)  # fmt: skip
ON_MATRICES = (_matrix, _matrix)
ON_ANY = (
    _concat, _concat, _slice, _activation, _activation, _function, _function, _sum, _sum, _product, _affine, _flat,
    _on_host,
)  # fmt: skip


def add_inputs(graph: Graph, side: int = 13) -> int:
    """One to three inputs, images of up to `side` rows and columns; the batch size."""
    batch = graph.one([1, 1, 2, 3])
    for i in range(graph.one([1, 1, 1, 2, 3])):
        image = (graph.number(1, 9), graph.number(1, side), graph.number(1, side))
        if i and graph.yes():
            image = graph.dims["x0"][1:]
        dims = (batch, image[0] * image[1]) if i == 0 and graph.number(0, 9) == 9 else (batch, *image)
        graph.dims[f"x{i}"] = dims
        graph.inputs.append(f"x{i}")
    return batch


def grow(graph: Graph, nodes: int) -> None:
    """Add operators until there are at least so many nodes."""
    while len(graph.nodes) < nodes:
        ranks = {len(dims) for dims in graph.dims.values()}
        usable = [*ON_ANY, *(ON_IMAGES if 4 in ranks else ()), *(ON_MATRICES if 2 in ranks else ())]
        graph.one(usable)(graph)


def float_network(choice: Choice, most_nodes: int = 8) -> Network:
    """Float networks of up to about `most_nodes` nodes, images of up to 13 x 13 in up to 9 channels."""
    graph = Graph(choice, np.random.default_rng(choice.integer(0, 999)))
    batch = add_inputs(graph)
    grow(graph, graph.number(1, most_nodes))
    feeds = {name: graph.normal((2 * batch, *graph.dims[name][1:])) for name in graph.inputs}
    return Network(graph.model(), feeds)
