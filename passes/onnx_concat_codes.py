"""Lets concatenations join codes, which are quantised before and not behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, TensorType, f32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp, node_of
from cnncc.frontend.export_onnx import opset_imports
from cnncc.frontend.microsoft_ops import MICROSOFT
from cnncc.main_function import main_function
from cnncc.passes._onnx.codes import codes_of
from cnncc.passes._onnx.replacement import NodeNames, Replacement, dims_of
from cnncc.passes.onnx_fold_constants import static_shape
from cnncc.passes.onnx_fold_qdq import with_scale
from cnncc.weights import WeightStore

QUANTIZE_OPSET = 10  # has QuantizeLinear and DequantizeLinear


def _rewrite(node: NodeOp, store: WeightStore, names: NodeNames) -> None:
    """Replace `node`, if it is a QuantizeLinear behind a Concat, or a QLinearConcat."""
    if node.op_type.data == "QLinearConcat" and node.domain == StringAttr(MICROSOFT):
        _split(node, store, names)
    elif (concat := _quantised_next(node)) and _is_known([*concat.operands, *node.results]):
        new = Replacement([concat, node], store, names)
        _join(new, concat, concat.operands, node.operands[1:], node.attributes)


def _quantised_next(node: NodeOp) -> NodeOp | None:
    """The Concat that a QuantizeLinear with one scale alone reads."""
    if not node.is_op("QuantizeLinear") or not node.operands[0].has_one_use():
        return None
    y = with_scale(node, node.results[0])
    return node_of(node.operands[0], "Concat") if y is not None and y.is_scalar() else None


def _split(node: NodeOp, store: WeightStore, names: NodeNames) -> None:
    scale, parts = node.operands[:2], [node.operands[at : at + 3] for at in range(2, len(node.operands), 3)]
    if parts and len(parts[-1]) == 3 and _is_known([*(part[0] for part in parts), *node.results]):
        new = Replacement([node], store, names)
        reals = [new.node("DequantizeLinear", part, dims_of(part[0]), element=f32) for part in parts]
        _join(new, node, reals, scale, {})


def _is_known(values: Sequence[SSAValue]) -> bool:
    """Whether the shapes are known, and the last value is of codes."""
    return all(static_shape(value) is not None for value in values) and codes_of(values[-1].type) is not None


def _join(
    new: Replacement, concat: NodeOp, reals: Sequence[SSAValue], scale: Sequence[SSAValue],
    attributes: dict[str, Attribute],
) -> None:  # fmt: skip
    """Quantise each operand, and concatenate."""
    last = new.nodes[-1].results[0]
    assert isinstance(last.type, TensorType)
    element = last.type.element_type
    codes = [
        new.node("QuantizeLinear", [value, *scale], dims_of(value), attributes, element=element) for value in reals
    ]
    axis = IntegerAttr(concat.int_attr("axis", 1), i64)
    new.finish(new.node("Concat", codes, dims_of(last), {"axis": axis}, concat))


@dataclass(frozen=True)
class OnnxConcatCodesPass(ModulePass):
    """Quantise the operands of a concatenation, where its result is quantised next.

    Why: the model has the operands in different scales, and a concatenation on the array moves integers of one. Each
    operand is dequantised and quantised by itself then, which the array does in one step where one factor does it.

        %2 = onnx.node "Concat"(%0, %1)            ->   %0' = onnx.node "QuantizeLinear"(%0, %s, %z)
        %3 = onnx.node "QuantizeLinear"(%2, %s, %z)     %1' = onnx.node "QuantizeLinear"(%1, %s, %z)
                                                        %3 = onnx.node "Concat"(%0', %1')

    onnxruntime's QLinearConcat becomes the same, with a DequantizeLinear before each QuantizeLinear. A concatenation
    that others read, too, stays.
    """

    name = "onnx-concat-codes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        block = main_function(op).body.block
        names = NodeNames(block)
        for node in list(block.ops) if opset_imports(op)[""] >= QUANTIZE_OPSET else ():
            if isinstance(node, NodeOp) and node.operands and node.results:
                _rewrite(node, weights_of(ctx), names)
