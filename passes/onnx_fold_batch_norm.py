"""Folds batch normalisation into the convolution or matrix product before it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp, constant_operand, new_constant
from cnncc.dialects.weights import ConstantOp
from cnncc.frontend.export_onnx import opset_imports
from cnncc.weights import Array, WeightStore


@dataclass(frozen=True)
class Normalisation:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift, one of each per channel: f32[k]."""

    scale: Array
    shift: Array
    mean: Array
    variance: Array
    epsilon: float

    def factor(self) -> Array:
        """What x is multiplied by: f64[k]."""
        return self.scale / np.sqrt(self.variance.astype(np.float64) + self.epsilon)

    def fold(self, weights: Array, axis: int, bias: Array) -> tuple[Array, Array]:
        """Weights and bias of `y(x * weights + bias)`; `axis` of `weights` is the output channel.

        In f64, rounded to f32 once: weights' = weights * factor, bias' = (bias - mean) * factor + shift.
        `bias` broadcasts with f32[k].
        """
        factor = self.factor()
        per_channel = factor.reshape([-1 if index == axis else 1 for index in range(weights.ndim)])
        moved = (bias.astype(np.float64) - self.mean) * factor + self.shift
        return (weights * per_channel).astype(np.float32), moved.astype(np.float32)


@dataclass(frozen=True)
class _Fold(RewritePattern):
    opset: int
    store: WeightStore

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: NodeOp, rewriter: PatternRewriter, /) -> None:
        normalisation = self.normalisation(op)
        source = op.operand(0)
        if normalisation is None or source is None or not isinstance(layer := source.owner, NodeOp):
            return
        # Another user of the layer needs its value before normalisation.
        if not layer.is_op("Conv", "Gemm") or source.uses.get_length() != 1:
            return
        weights, bias = self.constant(layer.operand(1)), self.bias(layer)
        # Weights computed at run time cannot be scaled here; before opset 7 Gemm broadcast only if told so.
        if weights is None or bias is None or "broadcast" in layer.attributes:
            return
        axis = 1 if layer.is_op("Gemm") and not layer.int_attr("transB", 0) else 0
        # A mistyped model: leave it for onnxruntime to complain about.
        if normalisation.scale.shape != (weights.shape[axis],):
            return
        new_weights, new_bias = normalisation.fold(weights, axis, bias)
        self.replace(op, layer, (new_weights, new_bias), rewriter)

    def normalisation(self, op: NodeOp) -> Normalisation | None:
        """What `op` does per channel; None where it is no batch normalisation in inference with constants."""
        if not op.is_op("BatchNormalization") or len(op.results) != 1:
            return None  # more outputs are statistics, which only training has
        flag = "is_test" if self.opset < 7 else "training_mode"
        inference = op.int_attr(flag, 0) == (1 if self.opset < 7 else 0)
        if not inference or op.int_attr("spatial", 1) != 1:
            return None  # spatial = 0: one factor per pixel, not per channel
        scale, shift, mean, variance = (self.constant(op.operand(index)) for index in range(1, 5))
        if scale is None or shift is None or mean is None or variance is None:
            return None
        return Normalisation(scale, shift, mean, variance, op.float_attr("epsilon", 1e-5))

    def constant(self, value: SSAValue | None) -> Array | None:
        """The array of an f32 constant; other types would need another rounding."""
        array = constant_operand(value, self.store)
        return array if array is not None and array.dtype == np.float32 else None

    def bias(self, layer: NodeOp) -> Array | None:
        """The bias of `layer` as it is added, zero where it has none; None where it is not constant."""
        if layer.operand(2) is None:
            return np.zeros((), np.float32)
        bias = self.constant(layer.operand(2))
        beta = layer.float_attr("beta", 1.0) if layer.is_op("Gemm") else 1.0
        return None if bias is None else bias * np.float64(beta)

    def replace(self, op: NodeOp, layer: NodeOp, arrays: tuple[Array, Array], rewriter: PatternRewriter) -> None:
        """Put the layer with new `arrays` in the place of `op`, whose value it then computes."""
        old = [value.owner for value in layer.own_operands[1:3]]
        names = [owner.attributes.get("onnx.name") if isinstance(owner, ConstantOp) else None for owner in old]
        constants = [new_constant(array, self.store, name) for array, name in zip_longest(arrays, names)]
        properties = {name: value for name, value in layer.properties.items() if name != "outputs"}
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
    """Fold BatchNormalization in inference form into the constant weights of a Conv or Gemm before it.

    Why: the array multiplies by the weights anyway; scaled weights and another bias make the
    normalisation free. Not where the layer has another use, where any of the arrays is not a constant
    f32, or where there is no layer before: such a normalisation stays.

        %0 = onnx.node "Conv"(%x, %w, %b)
        %1 = onnx.node "BatchNormalization"(%0, …)   ->   %1 = onnx.node "Conv"(%x, %w', %b')

    In f64, rounded once to f32: w' = w * f, b' = (b - mean) * f + shift, f = scale / sqrt(variance + epsilon).
    """

    name = "onnx-fold-batch-norm"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place; unused constants stay for onnx-dead-code."""
        pattern = _Fold(opset_imports(op)[""], weights_of(ctx))
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
