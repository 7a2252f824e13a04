"""Turns multiplications and additions by constants per channel into one batch normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, StringAttr, f32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern

from cnncc.context import weights_of
from cnncc.dialects.onnx import NodeOp, constant_operand, new_constant
from cnncc.frontend.export_onnx import opset_imports
from cnncc.passes._onnx.layers import is_tensor_of
from cnncc.passes._onnx.normalisation import constant_f32, read_normalisation
from cnncc.passes.onnx_fold_constants import static_shape
from cnncc.weights import Array, WeightStore

Doubles = npt.NDArray[np.float64]
LEAST_OPSET = 7  # before, constants broadcast by an attribute, not by their shape


@dataclass(frozen=True, eq=False)
class Affine:
    """y = x * factor + offset, one of each per channel: f64[c]."""

    factor: Doubles
    offset: Doubles

    def after(self, first: Affine) -> Affine:
        """`first`, then this."""
        return Affine(first.factor * self.factor, first.offset * self.factor + self.offset)

    def arrays(self) -> tuple[Array, ...]:
        """Scale, shift, mean and variance of the equivalent normalisation: f32[c]."""
        with np.errstate(over="ignore"):  # see `is_in_f32`
            rounded = self.factor.astype(np.float32), self.offset.astype(np.float32)
        return (*rounded, np.zeros(len(self.factor), np.float32), np.ones(len(self.factor), np.float32))

    def is_in_f32(self) -> bool:
        """Whether f32 has the factors and offsets: none is too large, and no factor too small."""
        factor, offset, *_ = self.arrays()
        return bool(np.isfinite(offset).all() and np.allclose(factor, self.factor, rtol=1e-6, atol=0))


def channel_values(array: Array, dims: tuple[int, ...]) -> Doubles | None:
    """The values f64[c] of `array` by channel (axis 1), broadcast to `dims`; None if a channel has several.

    >>> channel_values(np.array([[[2.0]], [[3.0]]]), (1, 2, 5, 7))
    array([2., 3.])
    >>> channel_values(np.array([2.0, 3.0]), (1, 2, 5, 2)) is None
    True
    """
    if array.ndim > len(dims):
        return None
    sizes = (1,) * (len(dims) - array.ndim) + array.shape
    if any(size not in (1, want) for size, want in zip(sizes, dims, strict=True)):
        return None
    aligned = array.reshape(sizes)
    first = aligned[(slice(1), slice(None), *(slice(1) for _ in dims[2:]))]
    return np.resize(first, dims[1]).astype(np.float64) if (aligned == first).all() else None


def constant_affine(op_type: str, constant: Doubles, comes_first: bool) -> Affine | None:
    """The affine function of Mul, Add, Sub or Div with a constant per channel; None if it is not affine."""
    one, zero = np.ones_like(constant), np.zeros_like(constant)
    match op_type, comes_first:
        case "Mul", _:
            return Affine(constant, zero)
        case "Add" | "Sum", _:
            return Affine(one, constant)
        case "Sub", False:
            return Affine(one, -constant)
        case "Sub", True:
            return Affine(-one, constant)
        case "Div", False if constant.all():
            return Affine(1 / constant, zero)
        case _:
            return None  # a constant over x


@dataclass(frozen=True)
class _FoldAffine(RewritePattern):
    opset: int
    store: WeightStore

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: NodeOp, rewriter: PatternRewriter, /) -> None:
        if self.is_difference(op):
            self.add_negative(op, rewriter)
            return
        if (operand_and_function := self.affine(op)) is None:
            return
        x, affine = operand_and_function
        before = x.owner
        first = self.normalisation(before, len(affine.factor)) if isinstance(before, NodeOp) else None
        # Another user needs the value between.
        if first is not None and x.has_one_use() and (both := affine.after(first)).is_in_f32():
            assert isinstance(before, NodeOp)
            self.replace(op, before.operands[0], both, rewriter)
            rewriter.erase(before)
        else:
            self.replace(op, x, affine, rewriter)

    def is_difference(self, op: NodeOp) -> bool:
        """Whether `op` is the difference of two computed images or rows of one shape."""
        if not op.is_op("Sub") or len(op.operands) != 2 or op.operands[0].type != op.operands[1].type:
            return False
        computed = all(constant_operand(value, self.store) is None for value in op.operands)
        dims = static_shape(op.operands[0])
        return computed and is_tensor_of(op.operands[0], f32) and dims is not None and 2 <= len(dims) <= 4

    def add_negative(self, op: NodeOp, rewriter: PatternRewriter) -> None:
        """Let a sum with the negative of its second operand take the place of a difference."""
        x = op.operands[1]
        ones = np.ones(cast("tuple[int, ...]", static_shape(x))[1])
        constants = [new_constant(array, self.store, None) for array in Affine(-ones, 0 * ones).arrays()]
        negative = NodeOp.create(
            operands=[x, *(constant.result for constant in constants)],
            result_types=[x.type],
            attributes={"epsilon": FloatAttr(0.0, f32)},
            properties={"op_type": StringAttr("BatchNormalization")},
        )
        rewriter.insert([*constants, negative])
        op.operands[1] = negative.results[0]
        op.properties["op_type"] = StringAttr("Add")
        rewriter.notify_op_modified(op)

    def affine(self, op: NodeOp) -> tuple[SSAValue, Affine] | None:
        """(x, function): the operand of `op` and its affine function; None if `op` is not affine per channel."""
        if not op.is_op("Mul", "Add", "Sum", "Sub", "Div") or len(op.operands) != 2:
            return None
        arrays = [constant_f32(value, self.store) for value in op.operands]
        if (arrays[0] is None) == (arrays[1] is None):
            return None  # two tensors; or two constants, which are onnx-fold-constants' work
        comes_first = arrays[0] is not None
        x, array = (op.operands[1], arrays[0]) if comes_first else (op.operands[0], arrays[1])
        dims = static_shape(x)
        # Normalisation needs channels. It keeps the shape, as does a constant that `channel_values` takes.
        if array is None or dims is None or len(dims) < 2:
            return None
        values = channel_values(array, dims)
        affine = None if values is None else constant_affine(op.op_type.data, values, comes_first)
        return (x, affine) if affine is not None and affine.is_in_f32() else None

    def normalisation(self, op: NodeOp, channels: int) -> Affine | None:
        """The affine function of `op`, if it is a normalisation."""
        normalisation = read_normalisation(op, self.opset, self.store)
        if normalisation is None or normalisation.scale.shape != (channels,):
            return None
        return Affine(normalisation.factor(), normalisation.offset(np.zeros((), np.float32)))

    def replace(self, op: NodeOp, x: SSAValue, affine: Affine, rewriter: PatternRewriter) -> None:
        """Replace `op` by the normalisation of `x` with function `affine`."""
        constants = [new_constant(array, self.store, None) for array in affine.arrays()]
        node = NodeOp.create(
            operands=[x, *(constant.result for constant in constants)],
            result_types=[op.results[0].type],
            attributes={**op.attributes, "epsilon": FloatAttr(0.0, f32)},
            properties={**op.properties, "op_type": StringAttr("BatchNormalization")},
        )
        rewriter.replace(op, [*constants, node])


@dataclass(frozen=True)
class OnnxFoldAffinePass(ModulePass):
    """Turn Mul, Add, Sub and Div by a constant per channel, or a scalar, into BatchNormalization, a chain into one.

    Why: `onnx-fold-batch-norm` then folds them into the weights of the layer before, and a remaining one is one layer
    of the array. Old exporters write a normalisation's scale and shift as a Mul and an Add after it. Not folded: a
    constant that differs inside a channel, a division of a constant, and what makes factors beyond f32. The difference
    of two computed tensors of one shape becomes a sum, with the second one times -1.

        %0 = onnx.node "BatchNormalization"(%x, …)
        %1 = onnx.node "Mul"(%0, %m)
        %2 = onnx.node "Add"(%1, %a)          ->   %2 = onnx.node "BatchNormalization"(%x, %f, %o, %zeros, %ones)

    In f64, rounded to f32 at each node: y = x * f + o.
    """

    name = "onnx-fold-affine"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place; unused constants stay for onnx-dead-code."""
        if (opset := opset_imports(op)[""]) >= LEAST_OPSET:
            PatternRewriteWalker(_FoldAffine(opset, weights_of(ctx)), apply_recursively=False).rewrite_module(op)
