"""Rounding, saturation and requantisation, stated once and used by every level.

The output stage of the machine, for one value of output channel k (all of f32 rounded to 24 bits,
rne = round half to even, sat = clamp to lo..hi):

    v = acc + bias[k]
    p = f32(v) * scale[k]                                        with a requantisation; or scale[h, w]
    v = sat(rne(p < 0 ? p * slope : p) + zero)
    v = (table[i] * (2^shift - f) + table[i + 1] * f + half) >> shift              with a table
    v = sat(rne(fma(v, a, fma(residual, b, fixed))))             with a residual that is added
    v = sat(rne(v * (residual - b) * a + fixed))                 with a residual that is multiplied

The product with slope is rounded to f32 as well, and so is each step of the last line. i is (v - lo) >> shift, f the
bits below it, half 2^shift / 2 (`Table`). Source: ONNX QLinearConv and com.microsoft QLinearAdd and QLinearMul as
onnxruntime computes them; ONNX LeakyRelu.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cnncc.errors import Refusal

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def integer_range(bits: int, signed: bool = True) -> tuple[int, int]:
    """The least and the greatest integer of a width: `integer_range(8) == (-128, 127)`."""
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


INT32 = integer_range(32)


def saturate(rounded: npt.NDArray[np.floating], lo: int, hi: int) -> Ints:
    """Clamp integral floats to lo..hi. NaN, which no integer input can give, becomes lo."""
    clamped = np.clip(rounded.astype(np.float64), lo, hi)
    unknown = np.isnan(clamped)
    return np.asarray(np.where(unknown, lo, clamped) if unknown.any() else clamped).astype(np.int64)


def quantise(x: npt.NDArray[np.floating], scale: float, zero: int, lo: int, hi: int) -> Ints:
    """sat(rne(x / scale) + zero), the division in f32 as ONNX QuantizeLinear does it; infinite quotients saturate."""
    with np.errstate(over="ignore"):
        quotient = np.rint(x.astype(np.float32) / np.float32(scale))
    return saturate(quotient.astype(np.float64) + zero, lo, hi)


def dequantise(q: Ints, scale: float, zero: int) -> Floats:
    """(q - zero) * scale in f32; products beyond it are infinite."""
    with np.errstate(over="ignore"):
        return (q - zero).astype(np.float32) * np.float32(scale)


def requantise(acc: Ints, scale: Floats, zero: int, lo: int, hi: int, slope: float = 1.0) -> Ints:
    """sat(rne(f32(acc) * scale) + zero), negative products times `slope`; `scale` broadcasts against `acc`.

    Products beyond f32 are infinite, and saturate.
    """
    with np.errstate(over="ignore"):
        product = acc.astype(np.float32) * scale
        if slope != 1:
            product = np.where(product < 0, product * np.float32(slope), product)
    return saturate(np.rint(product).astype(np.float64) + zero, lo, hi)


def fma32(a: Floats, b: Floats, c: Floats) -> Floats:
    """f32(a * b + c) with one rounding.

    The product of two f32 is exact in f64. Its sum with c is rounded to odd in f64, so that the second rounding, to
    f32, gives the result of rounding the exact value (Boldo and Melquiond, 2008).
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    # `total` is the nearest f64. Where it is inexact and even, its odd neighbour lies in the direction of the error.
    # The bits of neighbours differ by 1, and those of the one farther from zero are greater.
    bits = total.view(np.int64)
    inexact_even = (error != 0) & (bits & 1 == 0)
    away_from_zero = (error > 0) == (total > 0)
    odd = np.where(inexact_even, bits + np.where(away_from_zero, 1, -1), bits)
    return odd.view(np.float64).astype(np.float32)


def residual_add(v: Ints, residual: Ints, factors: Floats, lo: int, hi: int) -> Ints:
    """sat(rne(fma(v, a, fma(residual, b, fixed)))) with `factors` = (a, b, fixed) in f32."""
    a, b, fixed = (np.asarray(factor, np.float32) for factor in factors)
    inner = fma32(residual.astype(np.float32), b, fixed)
    return saturate(np.rint(fma32(v.astype(np.float32), a, inner)), lo, hi)


def residual_multiply(v: Ints, residual: Ints, factors: Floats, lo: int, hi: int) -> Ints:
    """sat(rne(v * (residual - b) * a + fixed)) with `factors` = (a, b, fixed), each step rounded to f32."""
    a, b, fixed = (np.asarray(factor, np.float32) for factor in factors)
    with np.errstate(over="ignore", invalid="ignore"):  # factors may be any bits
        product = v.astype(np.float32) * (residual.astype(np.float32) - b) * a
        return saturate(np.rint(product + fixed), lo, hi)


SEGMENTS = 256  # of a table: it has one entry more


@dataclass(frozen=True)
class Table:
    """A function of integers by its values at every 2^shift-th one: `entries` i64[257]. Between them it is linear.

    The value of v is that of lo + d, with d = clamp(v - lo, 0, 256 * 2^shift). With shift 0 it is entries[d]. Example:
    with lo = 0 and shift 2, entries 10 and 20 at 0 and 4 give 10, 13, 15, 18 for 0 to 3.
    """

    entries: Ints
    shift: int = 0

    @classmethod
    def of(cls, entries: npt.NDArray[Any], shift: int) -> Table:
        """A table by an array of a model. Raises Refusal unless it is i16[257]."""
        if entries.dtype != np.int16 or entries.shape != (SEGMENTS + 1,):
            raise Refusal(f"a table is int16[{SEGMENTS + 1}], not {entries.dtype}{list(entries.shape)}")
        return cls(entries.astype(np.int64), shift)

    def values(self, v: Ints, lo: int) -> Ints:
        """The values of integers. lo: the integer of the first entry."""
        distance = np.clip(v - lo, 0, SEGMENTS << self.shift)
        first = np.minimum(distance >> self.shift, SEGMENTS - 1)
        beyond = distance - (first << self.shift)
        sums = self.entries[first] * ((1 << self.shift) - beyond) + self.entries[first + 1] * beyond
        return np.asarray(sums + (1 << self.shift >> 1) >> self.shift)


@dataclass(frozen=True)
class Epilogue:
    """The output unit's function of a sum: the steps of this module's docstring.

    Attributes:
        bias         i32[k], or None
        scale        f32[k], or any array that broadcasts against the results; None: no requantisation
        clamp        the range after the requantisation, or of the sum itself
        table        a function of what the clamp leaves, from its least integer on, or None
        factors      f32[3] of a residual, or None
        multiply     whether the residual is multiplied, not added
        add_clamp    the range after the residual
        slope        f32 of a LeakyRelu, which needs a scale; 1: none
    """

    bias: Ints | None = None
    scale: Floats | None = None
    zero: int = 0
    clamp: tuple[int, int] = INT32
    factors: Floats | None = None
    multiply: bool = False
    add_clamp: tuple[int, int] = INT32
    slope: float = 1.0
    table: Table | None = None

    def apply(self, acc: Ints, k: npt.NDArray[np.intp] | slice, residual: Ints | None = None) -> Ints:
        """The results of sums `acc`. k: an index of their output channels that broadcasts against `acc`."""
        v = acc if self.bias is None else acc + self.bias[k]
        if self.scale is None:
            v = np.clip(v, *self.clamp)
        else:
            v = requantise(v, self.scale[k], self.zero, *self.clamp, self.slope)
        if self.table is not None:
            v = self.table.values(v, self.clamp[0])
        if self.factors is None:
            return v
        assert residual is not None
        combined = residual_multiply if self.multiply else residual_add
        return combined(v, residual, self.factors, *self.add_clamp)
