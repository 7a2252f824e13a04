"""Hypothesis strategies for small networks as ONNX models, legal and broken, and for the arrays that they go to.

A network grows value by value: an operator is drawn, its operands among the values that there are (the latest first, so
that graphs are deep when they shrink), its attributes such that ONNX allows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hypothesis import assume, reject
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from qlinear_cases import MICROSOFT

from cnncc.arch.model import parse_arch
from cnncc.errors import Refusal
from cnncc.passes._dataflows import AUTO, DATAFLOWS
from cnncc.passes._os_plan import NoRoom
from cnncc.pipeline import Compilation, Settings, import_model

Draw = Callable[[Any], Any]
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

    draw: Draw
    rng: np.random.Generator
    dims: dict[str, Dims] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def number(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def one(self, choices: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    def yes(self) -> bool:
        return self.draw(st.booleans())

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
        return name

    def outputs(self) -> list[str]:
        """What nothing reads, and perhaps a value that something does; no inputs."""
        made = [name for name in self.dims if name not in self.inputs]
        read = {name for node in self.nodes for name in node.input}
        found = [name for name in made if name not in read]
        inner = [name for name in made if name in read]
        return found + ([self.one(inner)] if inner and self.number(0, 4) == 4 else [])

    def model(self, kinds: dict[str, int] | None = None) -> onnx.ModelProto:
        """kinds: element types where they are not f32."""
        kinds = kinds or {}
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info(x, kinds.get(x, TensorProto.FLOAT), self.dims[x]) for x in self.inputs],
            [helper.make_tensor_value_info(y, kinds.get(y, TensorProto.FLOAT), self.dims[y]) for y in self.outputs()],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
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


def _window(graph: Graph, x: str, ceil: bool = False, **limits: Any) -> tuple[Dims, dict[str, Any]]:
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


def _convolution(graph: Graph) -> tuple[str, Dims, Dims, dict[str, Any]]:
    """The input, the shapes of weights and result, and the attributes."""
    x = graph.value(4)
    n, c, *_ = graph.dims[x]
    group, k = _groups(graph, c)
    image, attributes = _window(graph, x, dilated=True, most_pad=3)
    return x, (k, c // group, *attributes["kernel_shape"]), (n, k, *image), {"group": group, **attributes}


def _conv(graph: Graph) -> None:
    x, shape, dims, attributes = _convolution(graph)
    inputs = [x, graph.constant(graph.normal(shape, 1 / math.sqrt(math.prod(shape[1:]))))]
    if graph.yes():
        inputs.append(graph.constant(graph.normal(shape[:1])))
    graph.add("Conv", inputs, dims, **attributes)


def _max_pool(graph: Graph) -> None:
    x = graph.value(4)
    image, attributes = _window(graph, x, ceil=graph.yes(), dilated=True)
    graph.add("MaxPool", [x], graph.dims[x][:2] + image, **attributes)


def _average_pool(graph: Graph) -> None:
    x = graph.value(4)
    image, attributes = _window(graph, x, ceil=graph.yes(), dilated=False)  # ONNX has dilations from opset 19 on
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
    n, c, h, w = graph.dims[x]
    groups = graph.one([each for each in range(1, c + 1) if c % each == 0])
    split = graph.add("Reshape", [x, graph.constant(np.array([n, groups, c // groups, h, w]))], ())
    moved = graph.add("Transpose", [split], (), perm=[0, 2, 1, 3, 4])
    graph.add("Reshape", [moved, graph.constant(np.array([n, c, h, w]))], (n, c, h, w))
    del graph.dims[split], graph.dims[moved]


def _pad(graph: Graph) -> None:
    x = graph.value(4)
    n, c, h, w = graph.dims[x]
    top, left, bottom, right = (graph.number(0, 2) for _ in range(4))
    pads = graph.constant(np.array([0, 0, top, left, 0, 0, bottom, right]))
    graph.add("Pad", [x, pads], (n, c, h + top + bottom, w + left + right))


# -- operators on anything ---------------------------------------------------------------------------------------------


def _activation(graph: Graph) -> None:
    x = graph.value()
    match graph.one(["Relu", "Clip", "LeakyRelu", "PRelu", "Identity", "Dropout"]):
        case "Clip":
            lo, hi = graph.one([(0, 6), (-1, 1), (0.25, 0.75), (None, 1), (-0.5, None)])
            bounds = ["" if bound is None else graph.constant(np.float32(bound)) for bound in (lo, hi)]
            graph.add("Clip", [x, *bounds], graph.dims[x])
        case "LeakyRelu":
            graph.add("LeakyRelu", [x], graph.dims[x], alpha=graph.one([0.1, 0.01, -0.5, 1.0]))
        case "PRelu":
            graph.add("PRelu", [x, graph.constant(np.array([0.25], np.float32))], graph.dims[x])
        case op:
            graph.add(op, [x], graph.dims[x])


def _sum(graph: Graph) -> None:
    x = graph.value()
    others = [graph.alike(x) for _ in range(graph.one([1, 1, 0, 2, 3]))]
    graph.add("Add" if len(others) == 1 and graph.yes() else "Sum", [x, *others], graph.dims[x])


def _concat(graph: Graph) -> None:
    x = graph.value()
    others = [graph.alike(x, lambda dims: (dims[0], *dims[2:])) for _ in range(graph.number(1, 3))]
    channels = sum(graph.dims[name][1] for name in (x, *others))
    n, _, *rest = graph.dims[x]
    if len(rest) == 0 or channels <= MOST_CHANNELS:
        graph.add("Concat", [x, *others], (n, channels, *rest), axis=graph.one([1, -1 - len(rest)]))


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
    match graph.one(["Sigmoid", "Tanh", "Softmax", "LRN", "Mul"]):
        case "Softmax":
            graph.add("Softmax", [x], graph.dims[x], axis=1)
        case "LRN" if len(graph.dims[x]) == 4:
            graph.add("LRN", [x], graph.dims[x], size=3, alpha=0.1)
        case "Mul":
            graph.add("Mul", [x, graph.alike(x)], graph.dims[x])
        case "Tanh":
            graph.add("Tanh", [x], graph.dims[x])
        case _:
            graph.add("Sigmoid", [x], graph.dims[x])


ON_IMAGES = (
    _conv, _conv, _conv, _max_pool, _average_pool, _global_pool, _reduce_mean, _batch_norm, _shuffle, _shuffle, _pad,
)  # fmt: skip
ON_MATRICES = (_matrix, _matrix)
ON_ANY = (_concat, _concat, _activation, _activation, _sum, _sum, _affine, _flat, _on_host)


@st.composite
def networks(draw: Draw, most_nodes: int = 8) -> Network:
    """Float networks of up to about `most_nodes` nodes, images of up to 13 x 13 in up to 9 channels."""
    graph = Graph(draw, np.random.default_rng(draw(st.integers(0, 999))))
    batch = graph.one([1, 1, 2, 3])
    for i in range(graph.one([1, 1, 1, 2, 3])):
        image = (graph.number(1, 9), graph.number(1, 13), graph.number(1, 13))
        if i and graph.yes():
            image = graph.dims["x0"][1:]
        dims = (batch, image[0] * image[1]) if i == 0 and graph.number(0, 9) == 9 else (batch, *image)
        graph.dims[f"x{i}"] = dims
        graph.inputs.append(f"x{i}")
    nodes = graph.number(1, most_nodes)
    while len(graph.nodes) < nodes:
        ranks = {len(dims) for dims in graph.dims.values()}
        usable = [*ON_ANY, *(ON_IMAGES if 4 in ranks else ()), *(ON_MATRICES if 2 in ranks else ())]
        graph.one(usable)(graph)
    feeds = {name: graph.normal((2 * batch, *graph.dims[name][1:])) for name in graph.inputs}
    return Network(graph.model(), feeds)


# -- networks that are quantised already -------------------------------------------------------------------------------


@dataclass
class Codes(Graph):
    """A graph of codes. steps: the names of scale and zero point of each value; kind: uint8 or int8."""

    kind: type[np.generic] = np.uint8
    steps: dict[str, tuple[str, str]] = field(default_factory=dict)

    def integers(self, dims: Dims, kind: type[np.generic] | None = None) -> np.ndarray:
        info = np.iinfo(kind or self.kind)
        return self.rng.integers(info.min, info.max, dims, endpoint=True).astype(kind or self.kind)

    def step(self, scale: float) -> tuple[str, str]:
        info = np.iinfo(self.kind)
        zero = self.one([0, 113, 3, 127]) + int(info.min)
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
    x, shape, dims, attributes = _convolution(graph)
    step = graph.step(graph.one([0.05, 0.2, 1.0]))
    inputs = [x, *graph.steps[x], *_weights(graph, shape, shape[0]), *step]
    if graph.yes():
        inputs.append(graph.constant(graph.rng.integers(-5000, 5000, shape[0]).astype(np.int32)))
    graph.code("QLinearConv", inputs, dims, step, **attributes)


def _quantised_sum(graph: Codes) -> None:
    x = graph.value()
    y, step = graph.alike(x), graph.step(graph.one([0.05, 0.2, 1.0]))
    inputs = [x, *graph.steps[x], y, *graph.steps[y], *step]
    graph.code("QLinearAdd", inputs, graph.dims[x], step, domain=MICROSOFT)


def _quantised_mean(graph: Codes) -> None:
    x = graph.value(4)
    step = graph.step(0.03)
    inputs = [x, *graph.steps[x], *step]
    graph.code("QLinearGlobalAveragePool", inputs, (*graph.dims[x][:2], 1, 1), step, domain=MICROSOFT)


def _quantised_pool(graph: Codes) -> None:
    x = graph.value(4)
    image, attributes = _window(graph, x, ceil=graph.yes(), dilated=True)
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


QUANTISED_IMAGES = (_quantised_conv, _quantised_conv, _quantised_mean, _quantised_pool)
QUANTISED = (_quantised_sum, _quantised_sum, _quantised_matrix, _quantised_concat)


@st.composite
def quantised_networks(draw: Draw, most_nodes: int = 6) -> Network:
    """Networks of onnxruntime's integer operators, bytes in and out."""
    graph = Codes(draw, np.random.default_rng(draw(st.integers(0, 999))))
    graph.kind = graph.one([np.uint8, np.int8])
    batch = graph.one([1, 1, 2])
    graph.dims["x"], graph.inputs = (batch, graph.number(1, 6), graph.number(1, 11), graph.number(1, 11)), ["x"]
    graph.steps["x"] = graph.step(0.04)
    nodes = graph.number(1, most_nodes)
    while len(graph.nodes) < nodes:
        images = any(len(dims) == 4 for dims in graph.dims.values())
        graph.one([*(QUANTISED_IMAGES if images else ()), *QUANTISED])(graph)
    kinds = dict.fromkeys(graph.dims, helper.np_dtype_to_tensor_dtype(np.dtype(graph.kind)))
    return Network(graph.model(kinds), {"x": graph.integers((2 * batch, *graph.dims["x"][1:]))}, exact=True)


# -- arrays ------------------------------------------------------------------------------------------------------------


@st.composite
def arrays(draw: Draw) -> dict[str, Any]:
    """The numbers of an array's file: usually such that a row of a kernel fits its register files."""

    def number(least: int, most: int) -> int:
        return draw(st.integers(least, most))

    small = number(0, 9) == 9  # a row of a kernel may not fit
    bits = draw(st.sampled_from([16, 16, 8]))
    return {
        "rows": number(1, 8),
        "cols": number(1, 8),
        "operand_bits": bits,
        "psum_bits": draw(st.sampled_from([32, 32, 32, 48, 40, 26])),
        "pe": {
            "weight_words": number(1, 7) if small else number(7, 150),
            "ifmap_words": number(1, 25) if small else number(25, 60),
            "psum_words": number(1, 16),
            "weight_halves": draw(st.sampled_from([2, 1, 3])),
            "ifmap_halves": draw(st.sampled_from([2, 1, 3])),
            "psum_halves": draw(st.sampled_from([2, 1, 3])),
            "max_pixels": draw(st.sampled_from([16, 1, 3])),
            "pong_words": draw(st.sampled_from([0, 0, 12])),
            "virtual_words": draw(st.sampled_from([0, 4, 24])),
        },
        "glb": {"words": draw(glb_words()), "words_per_cycle": number(1, 9)},
        "dram": {"words_per_cycle": number(1, 9), "latency_cycles": number(0, 70)},
        "bus": {"burst_words": number(1, 10), "latency_cycles": number(0, 3)},
        "commit": {"units_per_column": number(1, 3), "latency_cycles": number(0, 5)},
        "links": {"n2n": draw(st.booleans())},
        "sequencer": {"queue_depth": number(1, 5), "overlap": draw(st.sampled_from([True, True, False]))},
    }


def glb_words() -> st.SearchStrategy[int]:
    """Large, so small that something moves, and too small: the refusal then says what would do."""
    return st.one_of(st.just(65536), st.integers(300, 4000), st.integers(1, 300), st.integers(1, 300))


def as_toml(array: dict[str, Any]) -> str:
    """An array's file."""

    def said(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else repr(value)

    lines = ['name = "random"']
    for name, value in array.items():
        text = f"{{ {', '.join(f'{k} = {said(v)}' for k, v in value.items())} }}" if isinstance(value, dict) else value
        lines.append(f"{name} = {text}")
    return "\n".join(lines) + "\n"


def compiled_at_random(data: st.DataObject, folder: Path, check: Callable[[Compilation], object]) -> None:
    """`check` of a compilation that has not begun: any network under any dataflow, for a GLB that just does."""
    net, array = data.draw(networks()), data.draw(arrays())
    dataflow = data.draw(st.sampled_from([None, AUTO, *DATAFLOWS]))
    array["links"] = {**array["links"], "south": True}
    (folder / "net.onnx").write_bytes(net.model.SerializeToString())
    try:
        for _ in range(20):
            (folder / "array.toml").write_text(as_toml(array))
            arch = parse_arch(as_toml(array), "drawn")
            chosen = Settings(arch, str(folder / "array.toml"), arch.operand_bits, net.feeds, None, dataflow)
            try:
                check(import_model(folder / "net.onnx", None, chosen))
                return
            except NoRoom as refusal:
                array = {**array, "glb": {**array["glb"], "words": refusal.words}}
    except Refusal:
        reject()


# -- broken models -----------------------------------------------------------------------------------------------------


@dataclass
class Wrench:
    """What breaks a model, in place."""

    draw: Draw
    model: onnx.ModelProto

    def one(self, choices: Sequence[Any]) -> Any:
        assume(choices)
        return self.draw(st.sampled_from(choices))

    @property
    def graph(self) -> onnx.GraphProto:
        return self.model.graph

    def node(self) -> onnx.NodeProto:
        return self.one(list(self.graph.node))

    def tensor(self) -> onnx.TensorProto:
        """A constant, or where there is none one that nothing reads."""
        if not self.graph.initializer:
            self.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "unread"))
        return self.one(list(self.graph.initializer))

    def dim(self) -> Any:
        """A dim of an input or an output."""
        value = self.one([*self.graph.input, *self.graph.output])
        return self.one(list(value.type.tensor_type.shape.dim))


def _other_size(wrench: Wrench) -> None:
    wrench.dim().dim_value = wrench.one([0, -1, 1, 5, 17])


def _huge_size(wrench: Wrench) -> None:
    wrench.dim().dim_value = wrench.one([1 << 31, 1 << 40, (1 << 63) - 1])  # less may be run


def _symbolic_size(wrench: Wrench) -> None:
    wrench.dim().dim_param = wrench.one(["n", "?"])


def _unknown_size(wrench: Wrench) -> None:
    wrench.dim().Clear()


def _no_shape(wrench: Wrench) -> None:
    wrench.one([*wrench.graph.input, *wrench.graph.output]).type.tensor_type.ClearField("shape")


def _other_element(wrench: Wrench) -> None:
    wrench.one([*wrench.graph.input, *wrench.graph.output]).type.tensor_type.elem_type = wrench.one([0, 7, 10, 11, 99])


def _no_type(wrench: Wrench) -> None:
    wrench.one([*wrench.graph.input, *wrench.graph.output]).ClearField("type")


def _missing_constant(wrench: Wrench) -> None:
    wrench.graph.initializer.remove(wrench.tensor())


def _odd_numbers(wrench: Wrench) -> None:
    tensor = wrench.tensor()
    array = numpy_helper.to_array(tensor).copy()
    if array.dtype == np.float32 and array.size:
        array.flat[-1] = wrench.one([np.nan, np.inf, -np.inf, 3e38, 1e-45, 1e30])
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _other_integers(wrench: Wrench) -> None:
    found = [tensor for tensor in wrench.graph.initializer if tensor.data_type == TensorProto.INT64]
    if found:
        tensor = wrench.one(found)
        array = numpy_helper.to_array(tensor).copy()
        array.flat[wrench.one(range(array.size))] = wrench.one([0, -1, -2, 7, 1 << 40, -(1 << 63)])
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _constant_of_another_type(wrench: Wrench) -> None:
    tensor = wrench.tensor()
    array = numpy_helper.to_array(tensor).astype(wrench.one([np.float64, np.int64, np.float16, np.bool_, np.int8]))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _constant_of_another_shape(wrench: Wrench) -> None:
    tensor = wrench.tensor()
    array = numpy_helper.to_array(tensor)
    array = wrench.one([array[None], array.reshape(-1), array.reshape(-1)[:1], array.reshape(-1)[:0]])
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _damaged_constant(wrench: Wrench) -> None:
    tensor = wrench.tensor()
    match wrench.one(["short", "dim", "type", "none", "name"]):
        case "short":
            tensor.raw_data = tensor.raw_data[:-1]
        case "dim":
            tensor.dims.append(wrench.one([-1, 0, 3, 1 << 40]))
        case "type":
            tensor.data_type = wrench.one([0, 6, 8, 15, 99])
        case "none":
            tensor.ClearField("raw_data")
        case _:
            tensor.name = ""


def _unknown_operator(wrench: Wrench) -> None:
    wrench.node().op_type = wrench.one(["Frobnicate", "", "conv", "If", "Loop", "NonZero", "Relu", "Concat", "Sum"])


def _unknown_domain(wrench: Wrench) -> None:
    wrench.node().domain = "com.example"
    if wrench.draw(st.booleans()):
        wrench.model.opset_import.add(domain="com.example", version=1)


def _attribute(wrench: Wrench) -> tuple[onnx.NodeProto, onnx.AttributeProto | None]:
    found = [node for node in wrench.graph.node if node.attribute]
    if not found:
        return wrench.node(), None
    node = wrench.one(found)
    return node, wrench.one(list(node.attribute))


ODD_VALUES = (
    0, -1, 1 << 40, 2.5, math.nan, "text", "SAME_UPPER", [0, 0], [-1, -1], [1, 1], [3], [1, 1, 1, 1], [-1, 0, 0, 2],
    [1 << 40, 1 << 40], [1 << 62, 1], [2.5], ["a"],
)  # fmt: skip


def _odd_attribute(wrench: Wrench) -> None:
    node, attribute = _attribute(wrench)
    if attribute is not None:
        attribute.CopyFrom(helper.make_attribute(attribute.name, wrench.one(ODD_VALUES)))
    else:
        node.attribute.append(helper.make_attribute("axis", wrench.one(ODD_VALUES)))


def _new_attribute(wrench: Wrench) -> None:
    name = wrench.one(["pads", "strides", "dilations", "group", "kernel_shape", "auto_pad", "axis", "odd", "ceil_mode"])
    node = wrench.node()
    if all(attribute.name != name for attribute in node.attribute):
        node.attribute.append(helper.make_attribute(name, wrench.one(ODD_VALUES)))


def _missing_attribute(wrench: Wrench) -> None:
    node, attribute = _attribute(wrench)
    if attribute is not None:
        node.attribute.remove(attribute)


def _cycle(wrench: Wrench) -> None:
    node = wrench.node()
    node.input[0] = wrench.one(list(wrench.graph.node)).output[0]


def _other_operand(wrench: Wrench) -> None:
    node = wrench.node()
    names = [value.name for value in wrench.graph.input] + [tensor.name for tensor in wrench.graph.initializer]
    node.input[wrench.one(range(len(node.input)))] = wrench.one(["", "nowhere", *names])


def _other_operands(wrench: Wrench) -> None:
    node = wrench.node()
    if wrench.draw(st.booleans()):
        del node.input[wrench.one(range(len(node.input))) :]
    else:
        node.input.append(wrench.one([node.input[0], "", "nowhere"]))


def _second_name(wrench: Wrench) -> None:
    """Two values, constants, nodes, inputs or outputs have one name."""
    graph = wrench.graph
    match wrench.one(["value", "constant", "node", "input", "output", "input is constant"]):
        case "value":
            wrench.node().output[0] = wrench.one([graph.input[0].name, graph.node[0].output[0]])
        case "constant":
            graph.initializer.append(wrench.tensor())
        case "node":
            wrench.node().name = graph.node[0].name
        case "input":
            graph.input.append(graph.input[0])
        case "output":
            graph.output.append(graph.output[0])
        case _:
            graph.input[-1].name = wrench.tensor().name


def _empty(wrench: Wrench) -> None:
    wrench.graph.ClearField(wrench.one(["node", "input", "output", "initializer", "name"]))


def _odd_output(wrench: Wrench) -> None:
    wrench.one(list(wrench.graph.output)).name = wrench.one(["nowhere", "", wrench.graph.input[0].name])


def _odd_version(wrench: Wrench) -> None:
    if wrench.draw(st.booleans()):
        wrench.model.ir_version = wrench.one([0, 3, 99])
    else:
        wrench.model.opset_import[0].version = wrench.one([0, 1, 6, 9, 12, 21, 99])


BREAKS = (
    _other_size, _huge_size, _symbolic_size, _unknown_size, _no_shape, _other_element, _no_type, _missing_constant,
    _odd_numbers, _odd_numbers, _other_integers, _constant_of_another_type, _constant_of_another_shape,
    _damaged_constant, _unknown_operator, _unknown_domain, _odd_attribute, _odd_attribute, _new_attribute,
    _missing_attribute, _cycle, _other_operand, _other_operands, _second_name, _empty, _odd_output, _odd_version,
)  # fmt: skip


@st.composite
def broken_models(draw: Draw) -> onnx.ModelProto:
    """Small networks, float or quantised, that something was done to, once or twice: most are illegal then."""
    net = draw(st.one_of(networks(most_nodes=4), networks(most_nodes=4), quantised_networks(most_nodes=3)))
    model = onnx.ModelProto()
    model.CopyFrom(net.model)
    draw(st.sampled_from(BREAKS))(Wrench(draw, model))
    if draw(st.integers(0, 3)) == 3:
        draw(st.sampled_from(BREAKS))(Wrench(draw, model))
    return model
