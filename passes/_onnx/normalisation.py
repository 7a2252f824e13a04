"""Batch normalisation: its formula, and its reader from a node. No pass: passes on `onnx` use it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from cnncc.dialects.onnx import NodeOp, constant_operand
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
        """The factor of x: f64[k]; not finite where there is none, as for a variance of 0 and no epsilon."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.scale / np.sqrt(self.variance.astype(np.float64) + self.epsilon)

    def offset(self, bias: Array) -> Array:
        """The constant term of y for an input x + `bias`: f64[k]; not finite where the factor is not."""
        with np.errstate(invalid="ignore"):
            return (bias.astype(np.float64) - self.mean) * self.factor() + self.shift

    def fold(self, weights: Array, axis: int, bias: Array) -> tuple[Array, Array]:
        """Weights and bias of `y(x * weights + bias)`; `axis` of `weights` is the output channel.

        In f64, rounded to f32 once: weights' = weights * factor, bias' = (bias - mean) * factor + shift.
        `bias` broadcasts with f32[k]. What is too large, or has no factor, is not finite.
        """
        per_channel = self.factor().reshape([-1 if index == axis else 1 for index in range(weights.ndim)])
        with np.errstate(over="ignore", invalid="ignore"):
            return (weights * per_channel).astype(np.float32), self.offset(bias).astype(np.float32)


def constant_f32(value: SSAValue | None, store: WeightStore) -> Array | None:
    """The array of an f32 constant, else None; other types would need another rounding."""
    array = constant_operand(value, store)
    return array if array is not None and array.dtype == np.float32 else None


def read_normalisation(op: NodeOp, opset: int, store: WeightStore) -> Normalisation | None:
    """The normalisation of `op`; None for another op, training, or arrays that are not constant f32."""
    if not op.is_op("BatchNormalization") or len(op.results) != 1:
        return None  # more outputs are statistics, which only training has
    flag = "is_test" if opset < 7 else "training_mode"
    inference = op.int_attr(flag, 0) == (1 if opset < 7 else 0)
    if not inference or op.int_attr("spatial", 1) != 1:
        return None  # spatial = 0: one factor per pixel, not per channel
    scale, shift, mean, variance = (constant_f32(op.operand(index), store) for index in range(1, 5))
    if scale is None or shift is None or mean is None or variance is None:
        return None
    return Normalisation(scale, shift, mean, variance, op.float_attr("epsilon", 1e-5))
