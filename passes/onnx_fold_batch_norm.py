"""Folds batch normalisation into the convolution, transposed convolution or matrix product before or after it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp, new_constant, replace_constant
from cnncc.dialects.weights import ConstantOp
from cnncc.frontend.export_onnx import opset_imports
from cnncc.passes._onnx.normalisation import Normalisation, constant_f32, read_normalisation
from cnncc.passes.onnx_fold_constants import static_shape
from cnncc.weights import Array, WeightStore

LAYERS = "Conv", "ConvTranspose", "Gemm", "MatMul"


def _one_factor(normalisation: Normalisation) -> np.float64 | None:
    """The factor of all channels; None if they differ, or if something is added, as nan is to an infinite factor."""
    factor, offset = normalisation.factor(), normalisation.offset(np.zeros((), np.float32))
    return factor[0] if factor.size and (factor == factor[0]).all() and not offset.any() else None


@dataclass(frozen=True)
class _FoldIntoNext(RewritePattern):
    """One factor of all channels, without an offset, into the layers that read the result."""

    opset: int
    store: WeightStore

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: NodeOp, rewriter: PatternRewriter, /) -> None:
        normalisation = read_normalisation(op, self.opset, self.store)
        if normalisation is None or (factor := _one_factor(normalisation)) is None:
            return
        # Any other user needs the value itself.
        readers = [(use.operation, use.index) for use in op.results[0].uses]
        layers = [at for at, index in readers if index == 0 and isinstance(at, NodeOp) and at.is_op(*LAYERS)]
        arrays = [array for layer in layers if (array := self.weights(layer, factor)) is not None]
        if not readers or len(arrays) != len(readers):
            return
        for layer, array in zip(layers, arrays, strict=True):
            replace_constant(layer, 1, array, self.store)
        rewriter.replace(op, [], [op.operands[0]])

    def weights(self, layer: NodeOp, factor: np.float64) -> Array | None:
        """The weights of `layer` times `factor`; None if they are no constant, or if f32 has them not."""
        if (weights := constant_f32(layer.operand(1), self.store)) is None:
            return None
        exact = weights * factor
        with np.errstate(over="ignore"):
            rounded = exact.astype(np.float32)
        return rounded if np.allclose(rounded, exact, rtol=1e-6, atol=0) else None


@dataclass(frozen=True)
class _FoldBatchNorm(RewritePattern):
    opset: int
    store: WeightStore

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: NodeOp, rewriter: PatternRewriter, /) -> None:
        normalisation = read_normalisation(op, self.opset, self.store)
        source = op.operand(0)
        if normalisation is None or source is None or not isinstance(layer := source.owner, NodeOp):
            return
        # Another user of the layer needs its value before normalisation.
        if not layer.is_op(*LAYERS) or source.uses.get_length() != 1:
            return
        if layer.is_op("ConvTranspose") and layer.int_attr("group", 1) != 1:
            return  # its weights have only the output channels of a group
        weights, bias = constant_f32(layer.operand(1), self.store), self.bias(layer)
        # Weights computed at run time cannot be scaled here; before opset 7 Gemm broadcast only if told so.
        if weights is None or bias is None or "broadcast" in layer.attributes:
            return
        # A stack of matrices is no Gemm, which is what a MatMul with a bias becomes.
        if layer.is_op("MatMul") and (len(static_shape(layer.operands[0]) or ()), weights.ndim) != (2, 2):
            return
        # Output channels: axis 0 of a Conv and of a transposed matrix, axis 1 of a ConvTranspose and of a matrix.
        axis = 0 if layer.is_op("Conv") or layer.int_attr("transB", 0) else 1
        # A mistyped model: leave it for onnxruntime to complain about.
        if normalisation.scale.shape != (weights.shape[axis],):
            return
        new_weights, new_bias = normalisation.fold(weights, axis, bias)
        if not (np.isfinite(new_weights).all() and np.isfinite(new_bias).all()):
            return  # beyond f32, though what the network computes may not be
        self.replace(op, layer, (new_weights, new_bias), rewriter)

    def bias(self, layer: NodeOp) -> Array | None:
        """The bias of `layer` times beta, 0 without a bias; None if the bias is not constant."""
        if layer.operand(2) is None:
            return np.zeros((), np.float32)
        bias = constant_f32(layer.operand(2), self.store)
        beta = layer.float_attr("beta", 1.0) if layer.is_op("Gemm") else 1.0
        return None if bias is None else bias * np.float64(beta)

    def replace(self, op: NodeOp, layer: NodeOp, arrays: tuple[Array, Array], rewriter: PatternRewriter) -> None:
        """Replace `op` by the layer with new weights and bias, `arrays`."""
        old = [value.owner for value in layer.own_operands[1:3]]
        names = [owner.attributes.get("onnx.name") if isinstance(owner, ConstantOp) else None for owner in old]
        constants = [new_constant(array, self.store, name) for array, name in zip_longest(arrays, names)]
        properties = {name: value for name, value in layer.properties.items() if name != "outputs"}
        if layer.is_op("MatMul"):
            properties["op_type"] = StringAttr("Gemm")
        if "outputs" in op.properties:
            properties["outputs"] = op.properties["outputs"]
        folded = NodeOp.create(
            operands=[layer.operands[0], *(constant.result for constant in constants)],
            result_types=[op.results[0].type],
            attributes={name: attr for name, attr in layer.attributes.items() if name != "beta"},
            properties=properties,
        )
        rewriter.replace(op, [*constants, folded])
        rewriter.erase(layer)


@dataclass(frozen=True)
class OnnxFoldBatchNormPass(ModulePass):
    """Fold BatchNormalization in inference form into the constant weights of a Conv, Gemm or MatMul beside it.

    Why: the array multiplies by the weights anyway, so scaled weights and another bias make the normalisation free. The
    layer is the one before. A normalisation stays there if the layer has another use, if an array is not a constant
    f32, if no layer comes before, or if the weights would be beyond f32. A ConvTranspose without groups is a layer like
    a Conv. A MatMul, which has no bias, becomes a Gemm.

        %0 = onnx.node "Conv"(%x, %w, %b)
        %1 = onnx.node "BatchNormalization"(%0, …)   ->   %1 = onnx.node "Conv"(%x, %w', %b')

    In f64, rounded once to f32: w' = w * f, b' = (b - mean) * f + shift, f = scale / sqrt(variance + epsilon).

    What stays, and has one factor for all channels and no offset, goes into the layers after it, if only they read it.
    An exporter's hard swish ends so, and so does the scaling of an image. Padding, of zeros, is the same then. With
    other factors, channels would no longer be of one size when they are quantised.

        %0 = onnx.node "BatchNormalization"(%x, …)
        %1 = onnx.node "Conv"(%0, %w, %b)          ->   %1 = onnx.node "Conv"(%x, %w', %b)
    """

    name = "onnx-fold-batch-norm"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place; unused constants stay for onnx-dead-code."""
        opset, store = opset_imports(op)[""], weights_of(ctx)
        for pattern in (_FoldBatchNorm(opset, store), _FoldIntoNext(opset, store)):
            PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
