"""The part of a network that ends with its last convolution."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, NodeProto, TensorProto, helper

from cnncc.errors import Refusal
from networks.seeded import Network, shapes_of

BELONGS = ("BatchNormalization", "Relu", "LeakyRelu", "Clip", "Add", "Sum")  # to the convolution that it follows


def features(network: Network) -> Network:
    """The network up to its last convolution, whose batch norm, activation and residual sum are included.

    What follows goes: pools, means, classifiers. Where convolutions end in parallel branches, the network goes on to
    where these come together. Raises Refusal where there is no convolution, or branches do not come together.
    """
    graph = network.model.graph
    made_by = {name: node for node in graph.node for name in node.output}
    convs = [node for node in graph.node if node.op_type == "Conv"]
    if not convs:
        raise Refusal(f"{graph.name}: has no convolution, so no features")
    value = convs[-1].output[0]
    while True:
        missing = [conv for conv in convs if conv.output[0] not in _behind(value, made_by)]
        readers = [node for node in graph.node if value in node.input]
        if len(readers) != 1 or not (missing or readers[0].op_type in BELONGS):
            break
        value = readers[0].output[0]
    if missing:
        raise Refusal(f"{graph.name}: no value depends on all convolutions, '{value}' not on '{missing[0].name}'")
    return _up_to(network, value, _behind(value, made_by))


def _behind(value: str, made_by: Mapping[str, NodeProto]) -> set[str]:
    """All values that a value depends on, and itself."""
    values, todo = set[str](), [value]
    while todo:
        name = todo.pop()
        if name not in values:
            values.add(name)
            todo += made_by[name].input if name in made_by else ()
    return values


def _up_to(network: Network, value: str, needed: set[str]) -> Network:
    old, shape = network.model.graph, shapes_of(network.inferred().graph)[value]
    nodes = [node for node in old.node if needed.intersection(node.output)]
    output = helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)
    image = [tensor for tensor in old.input if tensor.name in needed]
    constants = [tensor for tensor in old.initializer if tensor.name in needed]
    model = ModelProto()
    model.CopyFrom(network.model)
    model.graph.CopyFrom(helper.make_graph(nodes, f"{old.name}-features", image, [output], constants))
    return Network(model, tuple(weight for weight in network.weights if weight.name in needed))
