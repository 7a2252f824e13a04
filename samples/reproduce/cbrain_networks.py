"""The networks of C-Brain's paper: those of `samples/models.py` up to their last convolution, and their layers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import GraphProto, TensorProto, helper

from cnncc.cbrain.convolution import Convolution
from cnncc.window import Window

if TYPE_CHECKING:
    from networks.seeded import Network

sys.path.append(str(Path(__file__).resolve().parents[1]))


@dataclass(frozen=True)
class Source:
    """A network of the paper: its name in `samples/models.py`, and the size of its image.

    - stated: milliseconds of Table 4, at 16-16 and 32-32
    - ceil: pools round their sizes up, as in the published model. The graph of the onnx package rounds down
    - late: a pool that goes behind the convolution that reads it, and its ReLU
    """

    sample: str
    size: int
    stated: tuple[float, float]
    ceil: bool = False
    late: str = ""


SOURCES = {
    "AlexNet": Source("light-alexnet", 227, (2.83, 0.91)),
    "GoogLeNet": Source("light-inception-v1", 224, (6.69, 2.04), ceil=True),
    "VGG-19": Source("light-vgg19", 224, (77.51, 20.41)),
    "NiN": Source("nin", 224, (6.72, 2.05)),
}
CEIL_OPSET = 10  # the first one in which a MaxPool may round up
LATE_NIN = "NiN, late pool"
VARIANTS = {LATE_NIN: Source("nin", 227, (6.72, 2.05), late="pool3")}
"""What the paper may have run as NiN: 227 pixels as of AlexNet, and the third pool behind conv4, not before it."""


def network_of(source: Source) -> Network:
    """The network, without weights."""
    from networks import SAMPLES
    from networks.features import features

    network = SAMPLES[source.sample].build(source.size)
    if source.ceil:
        network.model.opset_import[0].version = CEIL_OPSET
        for node in network.model.graph.node:
            if node.op_type == "MaxPool":
                node.attribute.append(helper.make_attribute("ceil_mode", 1))
    if source.late:
        _move_behind(network.model.graph, source.late)
    return features(network)


def write_sample(source: Source, path: Path) -> None:
    """Write the network as `samples/models.py` has it by itself, with its classifier."""
    from networks import SAMPLES

    sample = SAMPLES[source.sample]
    sample.build(sample.size).write(path, 0)


def _move_behind(graph: GraphProto, pool: str) -> None:
    """Let a pool read the ReLU of the convolution that reads it now."""
    nodes = list(graph.node)
    at = next(at for at, node in enumerate(nodes) if node.name == pool)
    moved, conv, relu, reader = nodes[at : at + 4]
    conv.input[0], moved.input[0], reader.input[0] = moved.input[0], relu.output[0], moved.output[0]
    del graph.node[:]
    graph.node.extend([*nodes[:at], conv, relu, moved, *nodes[at + 3 :]])


def layers_of(network: Network) -> list[Convolution]:
    """The convolutions of a network, named after their weights."""
    from networks.seeded import shapes_of

    graph, layers = network.inferred().graph, list[Convolution]()
    shapes = shapes_of(graph)
    for node in graph.node:
        if node.op_type == "Conv":
            given: dict[str, Any] = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            kernel, stride, pad = (tuple(given[name]) for name in ("kernel_shape", "strides", "pads"))
            (_, inputs, rows, cols), name = shapes[node.input[0]], node.input[1].removesuffix("_w_0")
            window = Window(kernel, stride, pad, group=given.get("group", 1))
            outputs = shapes[node.output[0]][1]
            layers.append(Convolution(name.removesuffix(".weight"), (rows, cols), inputs, outputs, window))
    return layers


def alone(layer: Convolution) -> Network:
    """A network of one convolution."""
    from networks.seeded import IR_VERSION, OPSET, Network, he

    window = layer.window
    given: dict[str, Any] = {"kernel_shape": window.kernel, "strides": window.stride, "pads": window.pad}
    node = helper.make_node("Conv", ["x", "conv.weight"], ["y"], "conv", **given, group=window.group)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, layer.inputs, *layer.image))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, layer.outputs, *layer.results))
    opset, graph = helper.make_opsetid("", OPSET), helper.make_graph([node], "conv", [x], [y])
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
    return Network(model, (he("conv.weight", (layer.outputs, layer.depth, *window.kernel)),))
