"""Hypothesis strategies for broken models: small networks that something was done to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from drawn import Draw, networks, quantised_networks
from hypothesis import assume
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper


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
