"""Evaluates nodes whose inputs are all constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, NoneType, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from cnncc.context import weights_of
from cnncc.dialects.onnx import AbsentOp, NodeOp, new_constant
from cnncc.dialects.weights import ConstantOp, element_dtype
from cnncc.errors import Refusal
from cnncc.frontend.export_onnx import export_nodes, has_graphs
from cnncc.frontend.microsoft_ops import MICROSOFT
from cnncc.frontend.onnx_types import ir_type
from cnncc.frontend.run_onnx import OnnxSession
from cnncc.main_function import main_function
from cnncc.passes._onnx.random_nodes import RANDOM_OPS
from cnncc.weights import Array, WeightStore

if TYPE_CHECKING:
    from onnx import ModelProto


def static_shape(value: SSAValue) -> tuple[int, ...] | None:
    """The shape of a tensor; None if any dim is open."""
    return type_shape(value.type)


def type_shape(value_type: Attribute) -> tuple[int, ...] | None:
    """The shape of a tensor type; None for another type, or if any dim is open."""
    if not isinstance(value_type, TensorType):
        return None
    shape = value_type.get_shape()
    return None if DYNAMIC_INDEX in shape else shape


@dataclass(frozen=True)
class OnnxFoldConstantsPass(ModulePass):
    """Replace nodes with constant inputs, and Shape of a known shape, by their results from onnxruntime.

    Why: exporters leave reshapes, transposes and fills of weights to run time. Not folded:

    - random operators, and operators that onnxruntime does not have
    - nodes with sub-graphs: a loop may not end
    - results larger than `max_bytes`, or of types that numpy does not have
    - DequantizeLinear, which `onnx-fold-qdq` needs

        %0 = onnx.node "ConstantOfShape"(%shape) {value = …}   ->   %0 = weights.constant : tensor<64x3x7x7xf32> = …
    """

    name = "onnx-fold-constants"
    max_bytes: int = 1 << 30

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place, in one walk: the operands of a node are folded, and typed, before it."""
        store = weights_of(ctx)
        for node in [inner for inner in op.walk() if isinstance(inner, NodeOp)]:
            arrays = None if node.is_op("DequantizeLinear") else self.evaluated(node, op, store)
            if arrays is not None:
                _replace(node, arrays, store)
            elif not all(static_shape(value) is not None for value in _outputs(node)) and not node.capture_count:
                _refine_types(node, op, store)
        main_function(op).update_function_type()

    def evaluated(self, node: NodeOp, module: ModuleOp, store: WeightStore) -> list[Array] | None:
        """The results of `node`, or None if it stays."""
        shape = static_shape(node.operands[0]) if node.is_op("Shape") else None
        if shape is not None:
            start, end = node.int_attr("start", 0), node.int_attr("end", len(shape))
            return [np.array(shape[start:end], np.int64)]
        if not all(isinstance(value.owner, ConstantOp | AbsentOp) for value in node.operands):
            return None
        # Local functions may be random inside. Remaining Constant nodes have types that numpy does not.
        if node.domain is not None and node.domain.data != MICROSOFT:
            return None
        if node.is_op(*RANDOM_OPS, "Constant") or has_graphs(node, store):
            return None
        return self.run(node, module, store)

    def run(self, node: NodeOp, module: ModuleOp, store: WeightStore) -> list[Array] | None:
        model = export_nodes([node], [], _outputs(node), module, store)
        if not all(self.fits(value_type) for value_type in _inferred_types(model)):
            return None
        try:
            results = OnnxSession(model).run({})
        except Refusal:  # an operator that onnxruntime does not have
            return None
        return results if all(map(_is_plain, results)) else None

    def fits(self, value_type: Attribute) -> bool:
        """Whether the value is small enough. An open size passes: it depends on the data of constants in the file."""
        shape = type_shape(value_type)
        if shape is None:
            return True
        try:
            element = element_dtype(cast("TensorType[Attribute]", value_type).element_type)
        except KeyError:
            return False
        return math.prod(shape) * element.itemsize <= self.max_bytes


def fold_node(node: NodeOp, module: ModuleOp, store: WeightStore) -> None:
    """Replace one node of `module` by constants, if possible."""
    arrays = OnnxFoldConstantsPass().evaluated(node, module, store)
    if arrays is not None:
        _replace(node, arrays, store)


def _is_plain(value: object) -> bool:
    """Whether `value` is an array of a type that the weight store holds: no sequence, no strings."""
    return isinstance(value, np.ndarray) and cast("Array", value).dtype.kind in "biuf"


def _outputs(node: NodeOp) -> list[SSAValue]:
    return [value for value in node.results if not isinstance(value.type, NoneType)]


def _inferred_types(model: ModelProto) -> list[Attribute]:
    from onnx import shape_inference

    for output in model.graph.output:
        if output.type.HasField("tensor_type"):  # a wrong claim of the file would win
            output.type.tensor_type.ClearField("shape")
    inferred = shape_inference.infer_shapes(model, data_prop=True)
    return [ir_type(output.type) for output in inferred.graph.output]


def _replace(node: NodeOp, arrays: Sequence[Array], store: WeightStore) -> None:
    names = node.output_names.data if node.output_names else [None] * len(node.results)
    named = [(value, name) for value, name in zip(node.results, names, strict=True) if value in _outputs(node)]
    for (value, name), array in zip(named, arrays, strict=True):
        constant = new_constant(array, store, name)
        constant.result.name_hint = value.name_hint
        Rewriter.insert_op(constant, InsertPoint.before(node))
        value.replace_all_uses_with(constant.result)
    Rewriter.erase_op(node)


def _refine_types(node: NodeOp, module: ModuleOp, store: WeightStore) -> None:
    """Infer the types of `node`'s results anew, from the refined types of its operands."""
    constants = ConstantOp | AbsentOp
    inputs = [value for value in dict.fromkeys(node.operands) if not isinstance(value.owner, constants)]
    model = export_nodes([node], inputs, _outputs(node), module, store)
    for value, value_type in zip(_outputs(node), _inferred_types(model), strict=True):
        if type_shape(value_type) is not None and value_type != value.type:
            Rewriter.replace_value_with_new_type(value, value_type)
