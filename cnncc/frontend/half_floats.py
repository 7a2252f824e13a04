"""Models of 16-bit floats as models of f32, which has all values of f16."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from cnncc.frontend.graph_limits import graphs, node_tensors, tensors
from cnncc.frontend.onnx_attrs import numpy_array

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto, TypeProto

TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "softmax_precision")  # of nodes; an element type is an int there


def widen_halves(model: ModelProto) -> bool:
    """Make f16 in all types and constants of `model` f32. Whether there was any.

    Operators round to f16 no more: `Cast` to f16 becomes one to f32.

    Raises: Refusal, for a constant whose data does not fill its shape.
    """
    from onnx import TensorProto

    inner = list(graphs(model.graph))
    in_functions = [node for function in model.functions for node in function.node]
    constants = (*tensors(model.graph), *chain.from_iterable(map(node_tensors, in_functions)))
    widened = [_widen_tensor(tensor) for tensor in constants]
    for graph in inner:
        for value in (*graph.input, *graph.output, *graph.value_info):
            widened.append(_widen_type(value.type))
    for node in (*chain.from_iterable(graph.node for graph in inner), *in_functions):
        for attribute in node.attribute:
            if attribute.name in TYPE_ATTRIBUTES and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.FLOAT
                widened.append(True)
    return any(widened)


def _widen_tensor(tensor: TensorProto) -> bool:
    from onnx import TensorProto, numpy_helper

    if tensor.data_type != TensorProto.FLOAT16:
        return False
    array = numpy_array(tensor, f"tensor '{tensor.name}'")
    assert array is not None
    tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))
    return True


def _widen_type(type_: TypeProto) -> bool:
    """Make the elements of a tensor f32, also in a sequence, a map or an optional."""
    from onnx import TensorProto

    match kind := type_.WhichOneof("value"):
        case "tensor_type" | "sparse_tensor_type":
            elements = getattr(type_, kind)
            halves = elements.elem_type == TensorProto.FLOAT16
            if halves:
                elements.elem_type = TensorProto.FLOAT
            return halves
        case "sequence_type" | "optional_type":
            return _widen_type(getattr(type_, kind).elem_type)
        case "map_type":
            return _widen_type(type_.map_type.value_type)
        case _:
            return False
