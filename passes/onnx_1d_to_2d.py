"""Turns convolutions and pools of one dimension, and what lies between them, into those of images of one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, TensorType, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from cnncc.context import weights_of
from cnncc.dialects.onnx import AbsentOp, NodeOp, constant_operand, new_constant, text_attr
from cnncc.dialects.weights import ConstantOp
from cnncc.frontend.export_onnx import opset_imports
from cnncc.frontend.microsoft_ops import MICROSOFT
from cnncc.main_function import main_function
from cnncc.passes._onnx.replacement import NodeNames, ints
from cnncc.passes.onnx_fold_constants import static_shape
from cnncc.weights import WeightStore

WINDOWS = (
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "ReduceMean",
    "QLinearConv", "QLinearAveragePool", "QLinearGlobalAveragePool",
)  # fmt: skip
# They follow an operand that has become an image, so that no Reshape stands between layers which fuse.
FOLLOWERS = (
    "BatchNormalization", "Relu", "LeakyRelu", "PRelu", "Clip", "Add", "Sum", "Mul", "Concat", "QLinearAdd",
    "QLinearMul", "QLinearLeakyRelu",
)  # fmt: skip
LEAST_OPSET = 5  # Reshape takes the shape as an input


@dataclass
class _Images:
    store: WeightStore
    names: NodeNames
    of_line: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """The image n c 1 w with the elements of a line n c w."""

    def rewrite(self, op: NodeOp) -> None:
        """Replace `op` by a node of images, if it is one of lines."""
        lines = [value for value in op.operands if not isinstance(value.owner, ConstantOp | AbsentOp)]
        if not lines or not all(map(_is_line, lines)) or any(result.uses for result in op.results[1:]):
            return
        if op.domain not in (None, StringAttr(MICROSOFT)) or op.int_attr("channels_last", 0):
            return
        follows = op.op_type.data in FOLLOWERS and any(value in self.of_line for value in lines)
        if op.op_type.data not in WINDOWS and not follows:
            return
        match op.op_type.data:
            case "ReduceMean" if self.is_mean_of_lines(op):
                self.replace(op, lines, {}, "GlobalAveragePool")
            case "Concat" if op.int_attr("axis", 1) in (1, -2):
                self.replace(op, op.operands, {"axis": IntegerAttr(1, i64)})
            case "ReduceMean" | "Concat":
                return
            case _:
                self.replace(op, op.operands, _attributes(op))

    def erase_unread(self) -> None:
        """Erase the Reshapes that only nodes read which are replaced by now."""
        for line in self.of_line:
            if isinstance(reshape := line.owner, NodeOp) and not line.uses and reshape.is_op("Reshape"):
                size = reshape.operands[1].owner
                Rewriter.erase_op(reshape)
                if isinstance(size, ConstantOp) and not size.result.uses:
                    Rewriter.erase_op(size)

    def is_mean_of_lines(self, op: NodeOp) -> bool:
        """Whether a ReduceMean takes the mean of each line: its axes are an attribute, or an input from opset 18 on."""
        axes = constant_operand(op.operand(1), self.store)
        return [axis % 3 for axis in (op.ints_attr("axes", ()) if axes is None else axes.flat)] == [2]

    def replace(
        self, op: NodeOp, operands: Sequence[SSAValue], attributes: dict[str, Attribute], op_type: str | None = None
    ) -> None:
        """Put a node of images in the place of `op`, and a Reshape of its result to the line."""
        line = op.results[0]
        element = cast("TensorType[Attribute]", line.type).element_type
        dims = cast("tuple[int, ...]", static_shape(line))
        # A ReduceMean may drop the axis of its line.
        dims = (*dims[:2], 1, *(dims[2:] or (1,)))
        node = NodeOp.create(
            operands=[self.image(value, op) for value in operands],
            result_types=[TensorType(element, dims), *(result.type for result in op.results[1:])],
            attributes=attributes,
            properties=op.properties | ({"op_type": StringAttr(op_type)} if op_type else {}),
        )
        Rewriter.insert_op(node, InsertPoint.before(op))
        back = self.reshaped(node.results[0], line.type, op)
        self.of_line[back] = node.results[0]
        Rewriter.replace_op(op, [], [back, *node.results[1:]])

    def image(self, value: SSAValue, reader: NodeOp) -> SSAValue:
        """`value` with an axis of rows before its last one. Constants of a number a channel stay, and so do scalars."""
        array = constant_operand(value, self.store)
        if array is not None:
            if array.ndim < 2:
                return value
            constant = new_constant(np.expand_dims(array, -2), self.store, None)
            Rewriter.insert_op(constant, InsertPoint.before(reader))
            return constant.result
        if isinstance(value.owner, AbsentOp):
            return value
        if value not in self.of_line:
            dims = cast("tuple[int, ...]", static_shape(value))
            element = cast("TensorType[Attribute]", value.type).element_type
            self.of_line[value] = self.reshaped(value, TensorType(element, (*dims[:2], 1, dims[2])), reader)
        return self.of_line[value]

    def reshaped(self, value: SSAValue, kind: Attribute, before: NodeOp) -> SSAValue:
        dims = cast("TensorType[Attribute]", kind).get_shape()
        constant = new_constant(np.array(dims, np.int64), self.store, None)
        properties: dict[str, Attribute] = {"op_type": StringAttr("Reshape")}
        if name := self.names.like(before, ".reshape"):
            properties["node_name"] = text_attr(name)
        reshape = NodeOp.create(operands=[value, constant.result], result_types=[kind], properties=properties)
        Rewriter.insert_op([constant, reshape], InsertPoint.before(before))
        return reshape.results[0]


def _is_line(value: SSAValue) -> bool:
    dims = static_shape(value)
    return dims is not None and len(dims) == 3 and min(dims) > 0


def _attributes(op: NodeOp) -> dict[str, Attribute]:
    """The attributes of `op`, with those of rows beside those of columns."""
    attributes = dict(op.attributes)
    of_row = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_shape": 1, "output_padding": 0}
    for name, number in of_row.items():
        if name in attributes:
            attributes[name] = ints([number, *op.ints_attr(name, ())])
    if "pads" in attributes:
        left, right = op.ints_attr("pads", ())
        attributes["pads"] = ints([0, left, 0, right])
    return attributes


@dataclass(frozen=True)
class Onnx1dTo2dPass(ModulePass):
    """Let nodes of lines n c w compute images n c 1 w: convolutions, pools, sums, products and activations after them.

    Why: the array has windows of rows and columns. A Reshape costs nothing there.

        %0 = onnx.node "Conv"(%x, %w) {pads = [1, 1]} : (tensor<1x3x64xf32>, …) -> tensor<1x8x64xf32>

    becomes

        %1 = onnx.node "Reshape"(%x, %image)
        %2 = onnx.node "Conv"(%1, %weights) {pads = [0, 1, 0, 1]} : (tensor<1x3x1x64xf32>, …) -> tensor<1x8x1x64xf32>
        %0 = onnx.node "Reshape"(%2, %line)
    """

    name = "onnx-1d-to-2d"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        if opset_imports(op)[""] < LEAST_OPSET:
            return
        block = main_function(op).body.block
        images = _Images(weights_of(ctx), NodeNames(block))
        for node in list(block.ops):
            if isinstance(node, NodeOp):
                images.rewrite(node)
        # onnx-dead-code comes too late: an unread Reshape is a second reader of a ConvTranspose, behind whose Transpose
        # the activations would stay then (`activations`).
        images.erase_unread()
