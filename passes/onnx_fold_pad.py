"""Folds padding with zeros into the convolution or pooling after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, TensorType, i64
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp, constant_operand, node_of
from cnncc.passes._onnx.codes import UNSIGNED, Codes
from cnncc.passes._onnx.layers import ClampLayer, StaysOnHost, read_layer
from cnncc.passes._onnx.pads import zeros_added
from cnncc.passes._onnx.quantised_layers import conversion_codes
from cnncc.passes._onnx.replacement import ints
from cnncc.weights import WeightStore


@dataclass(frozen=True)
class _FoldPad(RewritePattern):
    store: WeightStore

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: NodeOp, rewriter: PatternRewriter, /) -> None:
        if not op.is_op("Conv", "QLinearConv", "AveragePool", "MaxPool"):
            return
        pad = self.pad_before(op)
        if pad is None:
            return
        # A QLinearConv reads the codes of the image.
        image = cast("NodeOp", pad.operands[0].owner).operands[0] if op.is_op("QLinearConv") else pad.operands[0]
        pads = self.spatial_pads(pad)
        # With auto_pad SAME the padding would be computed from the unpadded size.
        if pads is None or op.str_attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return
        own = op.ints_attr("pads", [0] * len(pads))
        total = [a + b for a, b in zip(pads, own, strict=True)]
        if op.is_op("AveragePool") and not _fits_average(op, own, total):
            return
        if op.is_op("MaxPool") and not self.fits_maximum(op, pad, total):
            return
        op.operands[0] = image
        op.attributes["pads"] = ints(total)
        op.attributes.pop("auto_pad", None)
        if op.is_op("AveragePool"):
            op.attributes["count_include_pad"] = IntegerAttr(1, i64)
        rewriter.notify_op_modified(op)
        if not any(result.uses for result in pad.results):
            rewriter.erase(pad)

    def pad_before(self, op: NodeOp) -> NodeOp | None:
        """The Pad before a convolution or pooling. Conversions around it, all of the same codes, change nothing."""
        if op.is_op("QLinearConv"):
            between, zero = self.pad_of_codes(op.operand(0)), constant_operand(op.operand(2), self.store)
            # It pads with its own zero point.
            return between[0] if between and zero is not None and (zero == between[1].zero).all() else None
        if op.is_op("MaxPool") and (dequantize := node_of(op.operand(0), "DequantizeLinear")):
            between = self.pad_of_codes(dequantize.operand(0))
            return between[0] if between and between[1] == conversion_codes(dequantize, self.store) else None
        return node_of(op.operand(0), "Pad")

    def pad_of_codes(self, value: SSAValue | None) -> tuple[NodeOp, Codes] | None:
        """The Pad between a DequantizeLinear and the QuantizeLinear that computes `value`, both of the same codes."""
        quantize = node_of(value, "QuantizeLinear")
        pad = node_of(quantize.operand(0), "Pad") if quantize else None
        dequantize = node_of(pad.operand(0), "DequantizeLinear") if pad else None
        if quantize is None or pad is None or dequantize is None:
            return None
        codes = conversion_codes(dequantize, self.store)
        return (pad, codes) if codes and codes == conversion_codes(quantize, self.store) else None

    def spatial_pads(self, pad: NodeOp) -> list[int] | None:
        """Begins, then ends of the axes after n and c; None unless `pad` adds zeros there alone."""
        full = zeros_added(pad, self.store)
        if full is None:
            return None
        rank = len(full) // 2
        # Images or channels added, or pixels cut off (negative): no padding of a window.
        if rank < 3 or any(full[axis] for axis in (0, 1, rank, rank + 1)) or min(full) < 0:
            return None
        return full[2:rank] + full[rank + 2 :]

    def fits_maximum(self, op: NodeOp, pad: NodeOp, total: list[int]) -> bool:
        """Whether the maxima stay: the pool pads with minus infinity, and the zeros are no more than any pixel."""
        if len(op.results) > 1 or any(step != 1 for step in op.ints_attr("dilations", ())):
            return False  # a result counts positions; a window may miss the image
        return self.is_never_negative(pad.operands[0]) and _fits_window(op, total)

    def is_never_negative(self, value: SSAValue) -> bool:
        """Whether `value` has no sign, or is the result of a Relu, a Clip from 0, or such codes."""
        if isinstance(value.type, TensorType) and value.type.element_type == UNSIGNED:
            return True
        if dequantize := node_of(value, "DequantizeLinear"):
            codes = conversion_codes(dequantize, self.store)
            return codes is not None and codes.zero == codes.range[0]
        node = node_of(value, "Relu", "Clip")
        try:
            layer = read_layer(node, self.store) if node else None
        except StaysOnHost:
            return False
        return isinstance(layer, ClampLayer) and layer.lo >= 0


def _fits_average(op: NodeOp, own: tuple[int, ...], total: list[int]) -> bool:
    # Zeros added by Pad count as pixels; the pool's own padding must count as well, or not exist.
    if any(own) and not op.int_attr("count_include_pad", 0):
        return False
    return _fits_window(op, total)


def _fits_window(op: NodeOp, total: list[int]) -> bool:
    # The last window of ceil_mode may reach over the edge, and only positions on padding count.
    if op.int_attr("ceil_mode", 0):
        return False
    # onnxruntime refuses padding as large as the window.
    kernel = op.ints_attr("kernel_shape", ())
    return all(pad < size for pad, size in zip(total, kernel * 2, strict=True))


@dataclass(frozen=True)
class OnnxFoldPadPass(ModulePass):
    """Fold a Pad with constant zeros on spatial axes into the Conv, AveragePool or MaxPool that reads it.

    Why: the array pads on the fly, while a Pad node would copy the image. For AveragePool the zeros count as pixels
    (count_include_pad = 1). A MaxPool's own padding is minus infinity: it takes the Pad only after a Relu, or a Clip
    from 0, where zeros are no maximum either. A QLinearConv pads with its zero point. It and MaxPool take a Pad in
    floats between a DequantizeLinear and a QuantizeLinear of the same codes.

        %0 = onnx.node "Pad"(%x) {pads = [0, 0, 1, 2, 0, 0, 3, 4]}
        %1 = onnx.node "Conv"(%0, %w) {pads = [1, 1, 1, 1]}
                                        ->   %1 = onnx.node "Conv"(%x, %w) {pads = [2, 3, 4, 5]}
    """

    name = "onnx-fold-pad"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        PatternRewriteWalker(_FoldPad(weights_of(ctx)), apply_recursively=False).rewrite_module(op)
