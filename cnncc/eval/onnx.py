"""Runs IR of the `onnx` dialect: exports it and runs the model in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Attribute, SSAValue

from cnncc.dialects.onnx import NodeOp
from cnncc.dialects.weights import element_dtype
from cnncc.errors import Refusal
from cnncc.frontend.export_onnx import export_nodes, export_onnx
from cnncc.frontend.run_onnx import OnnxSession
from cnncc.main_function import input_names, main_arguments, main_function, output_names
from cnncc.weights import Array, WeightStore


class Evaluator:
    """Computes some values of the graph for many inputs, with one session of onnxruntime."""

    def __init__(self, module: ModuleOp, store: WeightStore, values: Sequence[SSAValue]) -> None:
        """`values`: arguments, constants or node results of `@main`. Raises Refusal as `export_nodes`."""
        nodes = [op for op in main_function(module).body.block.ops if isinstance(op, NodeOp)]
        arguments = main_arguments(module)
        model = export_nodes(nodes, arguments, values, module, store)
        self._types = dict(zip(input_names(module), (value.type for value in arguments), strict=True))
        self._session = OnnxSession(model)

    def run(self, inputs: Mapping[str, Array]) -> list[Any]:
        """The values for `inputs` (by graph input name): arrays, or lists of arrays for sequences.

        Raises: Refusal, for an input that is missing, unknown, or of another type or shape than the graph's.
        """
        return self._session.run(checked_inputs(self._types, inputs))


def checked_inputs(types: Mapping[str, Attribute], inputs: Mapping[str, Array]) -> dict[str, Any]:
    """`inputs` after a check against the graph's input `types`. Raises Refusal, with the input's name."""
    for name in inputs:
        if name not in types:
            raise Refusal(f"'{name}' is not an input of the graph: it has {', '.join(types) or 'none'}")
    for name in types:
        if name not in inputs:
            raise Refusal(f"input '{name}' is missing")
    return {name: _checked(name, types[name], value) for name, value in inputs.items()}


def _checked(name: str, value_type: Attribute, value: Array) -> Any:
    if not isinstance(value_type, TensorType):
        return value
    array = np.asarray(value)
    if array.shape != value_type.get_shape():
        raise Refusal(f"input '{name}' has shape {list(array.shape)}, expected {list(value_type.get_shape())}")
    try:
        dtype = element_dtype(value_type.element_type)
    except KeyError:  # onnxruntime checks the types that numpy lacks
        return array
    if array.dtype != dtype:
        raise Refusal(f"input '{name}' has type {array.dtype}, expected {dtype}")
    return array


def evaluate(module: ModuleOp, store: WeightStore, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """The outputs of the graph by name. Raises Refusal as `Evaluator.run`."""
    types = dict(zip(input_names(module), (value.type for value in main_arguments(module)), strict=True))
    results = OnnxSession(export_onnx(module, store)).run(checked_inputs(types, inputs))
    return dict(zip(output_names(module), results, strict=True))
