"""The networks of the onnx package, with random weights in place of its constant ones.

`onnx/backend/test/data/light` holds well-known networks as graphs only: every weight is a ConstantOfShape node of
0.02, a few are short initializers. Here each becomes a seeded initializer, by what it is for, and a Softmax at the end
goes: it would hide differences between logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx.backend.test
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from networks.plain import BRANCH_SCALE
from networks.seeded import IR_VERSION, Network, Weight, about, he, shapes_of, small

FOLDER = Path(onnx.backend.test.__file__).parent / "data" / "light"


def build(name: str, size: int) -> Network:
    """The network of `light_NAME.onnx` for square images of `size` pixels.

    The input keeps its name; the output has the name of what fed the Softmax.
    """
    model = ModelProto.FromString((FOLDER / f"light_{name}.onnx").read_bytes())
    old = model.graph
    shapes = _weight_shapes(old)
    nodes = [node for node in old.node if node.op_type not in ("ConstantOfShape", "Softmax")]
    image = next(info for info in old.input if info.name not in {tensor.name for tensor in old.initializer})
    for dim in image.type.tensor_type.shape.dim[2:]:
        dim.dim_value = size
    targets = [_any_row(tensor) for tensor in _reshape_targets(old)]
    graph = helper.make_graph(nodes, f"light-{name}", [image], [ValueInfoProto(name=nodes[-1].output[0])], targets)
    model.graph.CopyFrom(graph)
    model.ir_version = IR_VERSION
    readers = _readers(nodes)
    weights = tuple(_weight(weight, shape, readers) for weight, shape in shapes.items())
    return _with_output_shape(_with_fitting_rows(Network(model, weights)))


def _weight_shapes(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    """The float constants that a node reads: initializers, and ConstantOfShape nodes of an initializer."""
    read = {name for node in graph.node for name in node.input}
    arrays = {tensor.name: tensor for tensor in graph.initializer}
    made = {
        node.output[0]: tuple(int(size) for size in numpy_helper.to_array(arrays[node.input[0]]))
        for node in graph.node
        if node.op_type == "ConstantOfShape"
    }
    stored = {name: tuple(t.dims) for name, t in arrays.items() if t.data_type == TensorProto.FLOAT}
    return {name: shape for name, shape in (made | stored).items() if name in read}


def _reshape_targets(graph: GraphProto) -> list[TensorProto]:
    """The shapes that Reshape nodes ask for."""
    names = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    return [tensor for tensor in graph.initializer if tensor.name in names]


def _any_row(target: TensorProto) -> TensorProto:
    """A row of one image, for maps of any size: [1, 9216] becomes [1, -1]. Other shapes stay."""
    array = numpy_helper.to_array(target)
    one_row = array.shape == (2,) and array[0] == 1
    return numpy_helper.from_array(array * [1, 0] - [0, 1], target.name) if one_row else target


Readers = Mapping[str, Sequence[tuple[NodeProto, int]]]  # of a value: the nodes, and as which of their inputs


def _readers(nodes: Sequence[NodeProto]) -> Readers:
    readers = dict[str, list[tuple[NodeProto, int]]]()
    for node in nodes:
        for index, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, index))
    return readers


def _use(name: str, readers: Readers) -> tuple[NodeProto, int]:
    """The only node that reads a value, past changes of shape, and as which of its inputs."""
    node, index = readers[name][0]
    if node.op_type in ("Unsqueeze", "Reshape") and index == 0:
        return _use(node.output[0], readers)
    return node, index


def _weight(name: str, shape: tuple[int, ...], readers: Readers) -> Weight:
    """What a constant is to be, by the node that reads it."""
    node, index = _use(name, readers)
    match node.op_type, index:
        case "Conv", 1:
            return he(name, shape)
        case "Gemm", 1:  # [k, c], or [1, 1, k, c] before a Reshape
            return replace(he(name, shape[-2:]), shape=shape)
        case "BatchNormalization", 1:
            summed = any(reader.op_type == "Sum" for reader, _ in readers.get(node.output[0], ()))
            return about(BRANCH_SCALE if summed else 1.0, name, shape)
        case ("BatchNormalization", 4) | ("Mul", _):
            return about(1.0, name, shape)
        case ("BatchNormalization", 2 | 3) | ("Conv" | "Gemm", 2) | ("Add", _):
            return small(name, shape)
        case _:
            raise ValueError(f"constant '{name}' is input {index} of a {node.op_type}: nothing is known of its values")


def _with_fitting_rows(network: Network) -> Network:
    """The first Gemm after a flattened map takes rows of the map's size, which depends on that of the image."""
    shapes = shapes_of(network.inferred().graph)
    rows = {n.input[1]: shapes[n.input[0]] for n in network.model.graph.node if n.op_type == "Gemm"}

    def fitting(weight: Weight) -> Weight:
        known = weight.name in rows and rows[weight.name][-1] > 0
        return he(weight.name, (weight.shape[0], rows[weight.name][-1])) if known else weight

    return replace(network, weights=tuple(map(fitting, network.weights)))


def _with_output_shape(network: Network) -> Network:
    output = network.model.graph.output[0]
    shape = shapes_of(network.inferred().graph)[output.name]
    output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, shape))
    return network
