"""onnx-to-cnn: quantises a float graph, by the ranges of calibration, and lowers it to `cnn`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, TensorType
from xdsl.dialects.func import ReturnOp
from xdsl.passes import ModulePass
from xdsl.utils.hints import isa

from cnncc.context import note, weights_of
from cnncc.dialects.onnx import AbsentOp, NodeOp
from cnncc.dialects.weights import ConstantOp
from cnncc.errors import Finding, Refusal, Refusals
from cnncc.frontend.export_onnx import opset_imports
from cnncc.frontend.input_shapes import EXAMPLE_SIZE
from cnncc.main_function import main_arguments, main_function, output_names, returned
from cnncc.passes._onnx.lowering import lower
from cnncc.passes._onnx.random_nodes import RANDOM_OPS, is_dropout_in_inference
from cnncc.weights import WeightStore

OPERAND_BITS = (2, 16)
PSUM_BITS = (8, 48)


@dataclass(frozen=True)
class OnnxToCnnPass(ModulePass):
    """Every node becomes a chain of small integer ops, or part of a `cnn.host` segment with the reason.

        %y = onnx.node "Conv" name "c1"(%x, %w, %b) {cnn.ranges = [#cnn.range<lo = -2.0, hi = 3.0, top = 127>]}

    becomes

        %1 = cnn.conv %x weights @c1.w window <kernel = [3, 3]> label "c1"                      32-bit sums
        %2 = cnn.bias %1 @c1.b label "c1.bias"
        %3 = cnn.requant %2 by <scale = "c1.q", clamp = [-127, 127]> label "c1.requant"

    Zero points are 0. A value has the scale max(|lo|, |hi|) / top of its `#cnn.range`, and integers within -top..top.
    For inputs in this range, the final integer weights and bias are proved to overflow no psum. If only a Relu or Clip
    reads a Conv or Add, the range of its result counts for both. Relu, Clip, MaxPool, Reshape, Slice and
    DepthToSpace keep the scale.

    Why no fusion here: the small ops name every intermediate value, so that each can be compared.
    """

    name = "onnx-to-cnn"

    operand_bits: int = 16
    psum_bits: int = 32

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower `op`. Raises Refusal for a missing range, a range that fits no integers, or an unsupported width."""
        for name, value, (least, most) in (
            ("operand-bits", self.operand_bits, OPERAND_BITS),
            ("psum-bits", self.psum_bits, PSUM_BITS),
        ):
            if not least <= value <= most:
                raise Refusal(f"onnx-to-cnn: {name} = {value}, it must be within {least}..{most}")
        if "cnn.macs_total" in op.attributes:
            note(ctx, "onnx-to-cnn: nothing to do: the module is lowered already")
            return
        for other in main_function(op).body.block.ops:
            if not isinstance(other, NodeOp | AbsentOp | ConstantOp | ReturnOp):
                raise Refusal(f"onnx-to-cnn: {other.name} is no node of ONNX: give IR of the onnx level")
        _check_outputs(op)
        _check_nodes(op, weights_of(ctx))
        lower(op, weights_of(ctx), self.operand_bits, self.psum_bits)


def _check_outputs(module: ModuleOp) -> None:
    """Refuse outputs of which the host would only know the size when they are computed. Raises Refusal."""
    refusals = Refusals()
    for name, value in zip(output_names(module), returned(module), strict=True):
        kind, help_ = value.type, "end the model before it"
        if isa(kind, TensorType):
            if DYNAMIC_INDEX not in (dims := kind.get_shape()):
                continue
            example = [EXAMPLE_SIZE if dim == DYNAMIC_INDEX else dim for dim in dims]
            if len(dims) > 1 and dims[0] == DYNAMIC_INDEX:
                example[0] = _batch(module)
            help_ = f"give the size, if it has one, as --shape {name}={','.join(map(str, example))}; or {help_}"
        what = f"it is {kind}, an output has a fixed size"
        refusals.add(Refusal(f"output '{name}': {what}: {help_}", Finding(what, where=f"output '{name}'", help=help_)))
    refusals.raise_any("onnx-to-cnn")


def _batch(module: ModuleOp) -> int:
    """The first size of an input; 1 without one."""
    shapes = [value.type.get_shape() for value in main_arguments(module) if isa(value.type, TensorType)]
    return next((shape[0] for shape in shapes if shape), 1)


def _check_nodes(module: ModuleOp, store: WeightStore) -> None:
    """Refuse nodes that draw random numbers: nothing of theirs could be compared. Raises Refusal."""
    refusals, opset = Refusals(), opset_imports(module)[""]
    for op in main_function(module).body.block.ops:
        if not isinstance(op, NodeOp):
            continue
        if op.is_op(*RANDOM_OPS):
            what, help_ = "it draws random numbers, other ones in each run", "make its result an input"
        elif op.is_op("Dropout") and not is_dropout_in_inference(op, opset, store):
            what, help_ = "it draws random numbers, as it is in training mode", "export the model for inference"
        else:
            continue
        refusals.add(Refusal(f"{op.label()}: {what}: {help_}", Finding(what, where=op.label(), help=help_)))
    refusals.raise_any("onnx-to-cnn")
