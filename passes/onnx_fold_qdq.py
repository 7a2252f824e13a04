"""Folds float operators between DequantizeLinear and QuantizeLinear into operators on integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint, Rewriter

from cnncc.context import weights_of
from cnncc.dialects.cnn import shape
from cnncc.dialects.onnx import NodeOp, constant_operand, new_constant
from cnncc.frontend.export_onnx import opset_imports
from cnncc.frontend.microsoft_ops import MICROSOFT
from cnncc.numerics import INT32, quantise
from cnncc.passes._onnx.codes import Codes, codes_of
from cnncc.passes._onnx.layers import ClampLayer, StaysOnHost, read_layer
from cnncc.passes._onnx.replacement import import_microsoft
from cnncc.passes.onnx_fold_constants import fold_node
from cnncc.weights import Array, WeightStore

CLIP_OF_BYTES_OPSET = 12  # before, ONNX's Clip takes floats alone


@dataclass(frozen=True)
class Quantised:
    """A tensor of integers with the scale and zero point of its DequantizeLinear or QuantizeLinear."""

    codes: SSAValue
    scale: SSAValue
    zero: SSAValue | None
    axis: int

    def is_scalar(self) -> bool:
        """Whether the whole tensor has one scale."""
        return isinstance(self.scale.type, TensorType) and int(np.prod(shape(self.scale.type))) == 1


def with_scale(node: NodeOp, codes: SSAValue) -> Quantised | None:
    """`codes` with their scale from `node`, a QuantizeLinear or DequantizeLinear; None for blocks of scales."""
    if node.int_attr("block_size", 0) or len(node.own_operands) < 2:
        return None
    return Quantised(codes, node.operands[1], node.operand(2), node.int_attr("axis", 1))


@dataclass
class _Match:
    """One operator between its DequantizeLinear and its QuantizeLinear."""

    node: NodeOp
    y: Quantised
    store: WeightStore

    def operand(self, index: int) -> Quantised | None:
        """Operand `index`, if a DequantizeLinear computes it."""
        value = self.node.operand(index)
        made = value.owner if value is not None else None
        if not isinstance(made, NodeOp) or not made.is_op("DequantizeLinear"):
            return None
        return with_scale(made, made.operands[0])

    def array(self, value: SSAValue | None) -> Array | None:
        """The array of a constant."""
        return constant_operand(value, self.store)

    def scalar(self, step: SSAValue | Array) -> SSAValue | Array | None:
        """A scale or zero point without axes, as QLinearAdd takes it; None for a computed one with axes."""
        if isinstance(step, SSAValue) and not shape(step.type):
            return step
        array = self.array(step) if isinstance(step, SSAValue) else step
        return None if array is None or array.size != 1 else array.reshape(())

    def activation(self, index: int) -> Quantised | None:
        """Operand `index`, if it is computed, has the type of the result, and has one scale."""
        operand = self.operand(index)
        if operand is None or not operand.is_scalar() or self.array(operand.codes) is not None:
            return None
        # Of other types onnxruntime has neither products nor sums: those of x, w, y are uuu, usu or sss (u: uint8).
        return operand if codes_of(operand.codes.type) == codes_of(self.y.codes.type) else None

    def weights(self, index: int, axis: int) -> Quantised | None:
        """Operand `index`, if it is constant bytes with one scale, or one for each index of `axis`."""
        operand = self.operand(index)
        if operand is None or codes_of(operand.codes.type) is None:
            return None
        if any(self.array(value) is None for value in (operand.codes, operand.scale)):
            return None
        rank = len(shape(operand.codes.type))
        return operand if operand.is_scalar() or operand.axis % rank == axis else None

    def bias(self, index: int, x: Quantised, w: Quantised) -> Array | None:
        """Operand `index` in steps of x.scale * w.scale, int32[k]; None if it is computed or does not fit."""
        value = self.node.operand(index)
        reals = self.reals(index) if value is not None else None
        x_scale, w_scale = self.array(x.scale), self.array(w.scale)
        if reals is None or x_scale is None or w_scale is None:
            return None
        if w_scale.size > 1 and reals.size != w_scale.size:
            return None
        steps = (x_scale.reshape(-1) * w_scale.reshape(-1)).astype(np.float32).astype(np.float64)
        codes = np.rint(reals.reshape(-1) / steps)
        return codes.astype(np.int32) if np.abs(codes).max(initial=0) <= INT32[1] else None

    def reals(self, index: int) -> Array | None:
        """Operand `index` as f64, if it is constant: floats, or the codes of a DequantizeLinear."""
        operand = self.operand(index)
        if operand is None:
            array = self.array(self.node.operand(index))
            return None if array is None else array.astype(np.float64)
        codes, scale = self.array(operand.codes), self.array(operand.scale)
        zero = np.zeros(1) if operand.zero is None else self.array(operand.zero)
        if codes is None or scale is None or zero is None or zero.any() or scale.size not in (1, codes.size):
            return None
        return codes.reshape(-1).astype(np.float64) * scale.reshape(-1).astype(np.float64)


# An operand is a value, or an array that becomes a constant.
Operands = Sequence[SSAValue | Array]
Rule = Callable[[_Match], "tuple[str, Operands] | None"]
PREFIX = "QLinear"  # of the names that onnxruntime gives to operators of one or two operands


def _three(part: Quantised) -> list[SSAValue | Array]:
    """Codes, scale, zero point."""
    return [part.codes, *_two(part)]


def _two(part: Quantised) -> list[SSAValue | Array]:
    """Scale, zero point; a missing zero point is 0 of the codes' type, in the scale's shape, as QGemm needs it."""
    codes = codes_of(part.codes.type)
    zero: Array = np.zeros(shape(part.scale.type), np.int8 if codes and codes.signed else np.uint8)
    return [part.scale, zero if part.zero is None else part.zero]


def _conv(match: _Match) -> tuple[str, Operands] | None:
    x, w = match.activation(0), match.weights(1, axis=0)
    if x is None or w is None or _mixes_signs(x, w):
        return None
    operands = [*_three(x), *_three(w), *_two(match.y)]
    if match.node.operand(2) is None:
        return "QLinearConv", operands
    bias = match.bias(2, x, w)
    return None if bias is None else ("QLinearConv", [*operands, bias])


def _mixes_signs(x: Quantised, w: Quantised) -> bool:
    """Whether activations are signed and weights unsigned, a product that onnxruntime does not have."""
    return (codes_of(x.codes.type), codes_of(w.codes.type)) == (Codes(signed=True), Codes(signed=False))


def _gemm(match: _Match) -> tuple[str, Operands] | None:
    node = match.node
    plain = node.float_attr("alpha", 1) == node.float_attr("beta", 1) == 1 and not node.int_attr("transA", 0)
    axis = 0 if node.int_attr("transB", 0) else 1
    x, w = match.activation(0), match.weights(1, axis)
    if not plain or x is None or w is None or _mixes_signs(x, w):
        return None
    if node.operand(2) is None:
        bias: Array | None = np.zeros(shape(w.codes.type)[axis], np.int32)
    else:
        bias = match.bias(2, x, w)
    if bias is None or bias.size != shape(w.codes.type)[axis]:
        return None
    return "QGemm", [*_three(x), *_three(w), bias, *_two(match.y)]


def _matmul(match: _Match) -> tuple[str, Operands] | None:
    x, w = match.activation(0), match.weights(1, axis=1)
    if x is None or w is None or len(shape(w.codes.type)) != 2 or _mixes_signs(x, w):
        return None
    return "QLinearMatMul", [*_three(x), *_three(w), *_two(match.y)]


def _of_two(match: _Match) -> tuple[str, Operands] | None:
    a, b = match.activation(0), match.activation(1)
    if a is None or b is None:
        return None
    # Of a sum with one pixel a channel, onnxruntime does not say which operand it adds first.
    if shape(a.codes.type) != shape(b.codes.type) and not match.node.is_op("Mul"):
        return None
    scalars = [match.scalar(each) for part in (a, b, match.y) for each in _two(part)]
    steps = [each for each in scalars if each is not None]
    name = PREFIX + match.node.op_type.data
    return (name, [a.codes, *steps[:2], b.codes, *steps[2:]]) if len(steps) == len(scalars) else None


def _of_one(match: _Match) -> tuple[str, Operands] | None:
    x = match.activation(0)
    return None if x is None else (PREFIX + match.node.op_type.data, [*_three(x), *_two(match.y)])


_RULES: dict[str, Rule] = {
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Add": _of_two,
    "Mul": _of_two,
    "GlobalAveragePool": _of_one,
    "LeakyRelu": _of_one,
}
_ONNX_OWN = ("QLinearConv", "QLinearMatMul")


def _sole_reader_of(value: SSAValue) -> NodeOp | None:
    """The node that computes `value`, if `value` has a single reader."""
    owner = value.owner
    return owner if isinstance(owner, NodeOp) and value.has_one_use() else None


@dataclass(frozen=True)
class _FoldQdq(RewritePattern):
    store: WeightStore
    opset: int

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: NodeOp, rewriter: PatternRewriter, /) -> None:
        y = with_scale(op, op.results[0]) if op.is_op("QuantizeLinear") else None
        node = _sole_reader_of(op.operands[0]) if y is not None else None
        if y is None or node is None or not y.is_scalar() or codes_of(y.codes.type) is None:
            return
        bounds = None
        if node.is_op("Relu", "Clip"):
            bounds = self.bounds(node, y)
            node = _sole_reader_of(node.operands[0])
            if bounds is None or node is None:
                return
        rule = _RULES.get(node.op_type.data) if node.domain is None else None
        integer_node = rule(_Match(node, y, self.store)) if rule else None
        if integer_node is not None:
            self.replace(op, node, integer_node, bounds, rewriter)

    def bounds(self, node: NodeOp, y: Quantised) -> tuple[int, int] | None:
        """The least and the greatest code that a Relu or Clip leaves; None if unknown."""
        try:
            layer = read_layer(node, self.store)
        except StaysOnHost:
            return None
        scale = constant_operand(y.scale, self.store)
        zero = np.zeros(()) if y.zero is None else constant_operand(y.zero, self.store)
        codes = codes_of(y.codes.type)
        if not isinstance(layer, ClampLayer) or scale is None or zero is None or codes is None:
            return None
        reals = np.array([layer.lo, layer.hi], np.float32)
        lo, hi = quantise(reals, float(scale.reshape(())), int(zero.reshape(())), *codes.range)
        return (int(lo), int(hi)) if (lo, hi) == codes.range or self.opset >= CLIP_OF_BYTES_OPSET else None

    def replace(
        self,
        op: NodeOp,
        node: NodeOp,
        integer_node: tuple[str, Operands],
        bounds: tuple[int, int] | None,
        rewriter: PatternRewriter,
    ) -> None:
        """Replace `op` by the operator on integers, followed by a Clip of codes if `bounds` cut some off."""
        op_type, operands = integer_node
        clamp = cast("NodeOp", op.operands[0].owner)  # `node` itself without a clamp
        codes = codes_of(op.results[0].type)
        attributes = dict(node.attributes) if op_type in ("QLinearConv", "QLinearLeakyRelu") else {}
        if op_type == "QGemm" and "transB" in node.attributes:
            attributes["transB"] = node.attributes["transB"]
        inner = self.node(op_type, operands, op, node.node_name, attributes, rewriter)
        if bounds is not None and codes is not None and bounds != codes.range:
            element = np.int8 if codes.signed else np.uint8
            limits = [np.array(bound, element) for bound in bounds]
            inner = self.node("Clip", [inner.results[0], *limits], op, clamp.node_name, {}, rewriter)
        if op.output_names is not None:
            inner.properties["outputs"] = op.output_names
        inner.results[0].name_hint = op.results[0].name_hint
        rewriter.replace(op, [], [inner.results[0]])
        # The reader first; without a clamp both are one node.
        for dead in dict.fromkeys((clamp, node)):
            rewriter.erase(dead)

    def node(
        self,
        op_type: str,
        operands: Operands,
        like: NodeOp,
        name: Attribute | None,
        attributes: dict[str, Attribute],
        rewriter: PatternRewriter,
    ) -> NodeOp:
        """A new node before `like`, with the type of its result; arrays among the operands become constants."""
        values: list[SSAValue] = []
        for operand in operands:
            if isinstance(operand, SSAValue):
                values.append(operand)
            else:
                rewriter.insert(constant := new_constant(operand, self.store, None), InsertPoint.before(like))
                values.append(constant.result)
        properties: dict[str, Attribute] = {"op_type": StringAttr(op_type)}
        if op_type not in (*_ONNX_OWN, "Clip"):
            properties["domain"] = StringAttr(MICROSOFT)
        if name is not None:
            properties["node_name"] = name
        made = NodeOp.create(
            operands=values, result_types=[like.results[0].type], properties=properties, attributes=attributes
        )
        rewriter.insert(made, InsertPoint.before(like))
        return made


@dataclass(frozen=True)
class OnnxFoldQdqPass(ModulePass):
    """Conv, Gemm, MatMul, Add, LeakyRelu, GlobalAveragePool between DequantizeLinear and QuantizeLinear work on codes.

        %1 = onnx.node "DequantizeLinear"(%x, %xs, %xz)      %2 = onnx.node "DequantizeLinear"(%w, %ws, %wz)
        %3 = onnx.node "Conv"(%1, %2)
        %4 = onnx.node "Relu"(%3)
        %5 = onnx.node "QuantizeLinear"(%4, %ys, %yz)
                            ->   %5 = onnx.node "QLinearConv"(%x, %xs, %xz, %w, %ws, %wz, %ys, %yz)

    A Relu or Clip becomes a Clip of codes, or disappears if codes cannot exceed it. A bias is rounded to the steps of
    the sums. Other nodes between codes (MaxPool, Reshape, Relu alone) are not rewritten: the array runs them on codes.

    Why: such a model is meant to run on integers. onnxruntime does so or computes in floats, depending on its
    optimisation level. Floats are rounded differently, so some results may differ by a step of their scale.
    At the end, constants that are still dequantised become floats, for layers that stay in floats.
    """

    name = "onnx-fold-qdq"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite in place."""
        store = weights_of(ctx)
        pattern = _FoldQdq(store, opset_imports(op)[""])
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
        nodes = [node for node in op.walk() if isinstance(node, NodeOp)]
        if any(node.domain is not None and node.domain.data == MICROSOFT for node in nodes):
            import_microsoft(op)
        for node in nodes:
            if not node.is_op("DequantizeLinear"):
                continue
            if any(result.uses for result in node.results):
                fold_node(node, op, store)
            else:  # Its reader would not be the only one of the codes.
                Rewriter.erase_op(node)
