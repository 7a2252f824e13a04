"""The epilogue of a layer in standard dialects: the formulas of `cnncc.numerics`, operation by operation.

Each f32 operation rounds once, to even, and none has fast-math flags. `math.fma` rounds a * b + c once;
`math.roundeven` rounds half to even. Saturation is in f64, which holds every clamp and zero point exactly; maxnumf and
minnumf turn NaN into the lower bound, as `numerics.saturate` does.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import IndexType, IntegerType, f32, f64, i64
from xdsl.ir import SSAValue

from cnncc.dialects.cnn import Steps
from cnncc.numerics import SEGMENTS, integer_range
from cnncc.passes._standard.ops import Buffer, Emitter, Index


@dataclass(frozen=True)
class Parameters:
    """The values that the epilogue of one output reads; None for a missing step.

    factors: a, b and fixed. table: the entries.
    """

    bias: SSAValue | None
    scale: SSAValue | None
    residual: SSAValue | None
    factors: tuple[SSAValue, ...]
    table: Buffer | None = None


def finish(emit: Emitter, acc: SSAValue, steps: Steps, given: Parameters) -> SSAValue:
    """The output for a sum, in the sum's type."""
    psum = acc.type
    assert isinstance(psum, IntegerType)
    value = acc if given.bias is None else emit.add(arith.AddiOp(acc, emit.integer(given.bias, psum)))
    if given.scale is None:
        value = _clip(emit, value, steps.clamp, psum)
    else:
        product = _scaled(emit, value, given.scale, steps.slope)
        value = _saturated(emit, product, steps.zero, steps.clamp, psum)
    if given.table is not None:
        value = _looked_up(emit, value, given.table, steps, psum)
    if given.residual is None:
        return value
    a, b, fixed = given.factors
    real, residual = (emit.add(arith.SIToFPOp(each, f32)) for each in (value, given.residual))
    if steps.multiply:
        product = emit.add(arith.MulfOp(real, emit.add(arith.SubfOp(residual, b))))
        total = emit.add(arith.AddfOp(emit.add(arith.MulfOp(product, a)), fixed))
    else:
        total = emit.add(math.FmaOp(real, a, emit.add(math.FmaOp(residual, b, fixed))))
    return _saturated(emit, total, 0, steps.add_clamp, psum)


def _clip(emit: Emitter, value: SSAValue, clamp: tuple[int, ...], psum: IntegerType) -> SSAValue:
    """min(max(value, lo), hi) in integers; bounds beyond the type's own are left out."""
    least, greatest = integer_range(psum.width.data)
    if clamp[0] > least:
        value = emit.add(arith.MaxSIOp(value, emit.constant(clamp[0], psum)))
    if clamp[1] < greatest:
        value = emit.add(arith.MinSIOp(value, emit.constant(clamp[1], psum)))
    return value


def _looked_up(emit: Emitter, value: SSAValue, table: Buffer, steps: Steps, psum: IntegerType) -> SSAValue:
    """The value of a table: `cnncc.numerics.Table.values`, in 64 bits."""

    def number(integer: int) -> SSAValue:
        return emit.constant(integer, i64)

    def entry(index: SSAValue) -> SSAValue:
        at = emit.add(arith.IndexCastOp(index, IndexType()))
        return emit.integer(emit.load(table, [Index(((at, 1),))]), i64)

    step = 1 << steps.shift
    distance = emit.add(arith.SubiOp(emit.integer(value, i64), number(steps.clamp[0])))
    distance = emit.add(arith.MaxSIOp(distance, number(0)))
    distance = emit.add(arith.MinSIOp(distance, number(SEGMENTS * step)))
    first = emit.add(arith.ShRSIOp(distance, number(steps.shift)))
    first = emit.add(arith.MinSIOp(first, number(SEGMENTS - 1)))
    beyond = emit.add(arith.SubiOp(distance, emit.add(arith.MuliOp(first, number(step)))))
    lower = emit.add(arith.MuliOp(entry(first), emit.add(arith.SubiOp(number(step), beyond))))
    upper = emit.add(arith.MuliOp(entry(emit.add(arith.AddiOp(first, number(1)))), beyond))
    rounded = emit.add(arith.AddiOp(emit.add(arith.AddiOp(lower, upper)), number(step // 2)))
    return emit.integer(emit.add(arith.ShRSIOp(rounded, number(steps.shift))), psum)


def _scaled(emit: Emitter, value: SSAValue, scale: SSAValue, slope: float) -> SSAValue:
    """f32(value) * scale; a negative product times `slope`."""
    product = emit.add(arith.MulfOp(emit.add(arith.SIToFPOp(value, f32)), scale))
    if slope == 1:
        return product
    is_negative = emit.add(arith.CmpfOp(product, emit.constant(0.0, f32), "olt"))
    leaky = emit.add(arith.MulfOp(product, emit.constant(slope, f32)))
    return emit.add(arith.SelectOp(is_negative, leaky, product))


def _saturated(emit: Emitter, real: SSAValue, zero: int, clamp: tuple[int, ...], psum: IntegerType) -> SSAValue:
    """sat(rne(real) + zero) as an integer."""
    rounded = emit.add(arith.ExtFOp(emit.add(math.RoundEvenOp(real)), f64))
    if zero:
        rounded = emit.add(arith.AddfOp(rounded, emit.constant(float(zero), f64)))
    above = emit.add(arith.MaxnumfOp(rounded, emit.constant(float(clamp[0]), f64)))
    below = emit.add(arith.MinnumfOp(above, emit.constant(float(clamp[1]), f64)))
    return emit.add(arith.FPToSIOp(below, psum))
