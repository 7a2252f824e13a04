"""The output unit's functions of one value in exact integer arithmetic, which shares nothing with cnncc.numerics.

A float is n · 2^e with whole n; arrays have one e for each element, or one for all. int64 has room, as noted.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
BITS = 24  # of a float's n
ROOM = 62


def parts(number: float) -> tuple[int, int]:
    """n and e of a float, |n| < 2^24."""
    fraction, exponent = math.frexp(number)
    n = int(fraction * 2**BITS)
    assert n * 2.0 ** (exponent - BITS) == number, f"{number} is no f32"
    return n, exponent - BITS


def lengths(n: Ints) -> Ints:
    """Bits of |n|."""
    left, bits = np.abs(n), np.zeros(n.shape, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        is_long = left >> step > 0
        bits += step * is_long
        left = np.where(is_long, left >> step, left)
    return bits + (left > 0)


def shifted(n: Ints, right: Ints) -> Ints:
    """n / 2^right, half to even. right: 0 to 62."""
    down = n >> right
    rest = n - (down << right)
    half = np.where(right > 0, np.int64(1) << np.maximum(right - 1, 0), 1)
    up = (right > 0) & ((rest > half) | ((rest == half) & (down & 1 == 1)))
    return down + up


def to_float(n: Ints, e: Ints | int) -> tuple[Ints, Ints]:
    """n · 2^e with at most 24 bits of n, half to even."""
    right = np.maximum(lengths(n) - BITS, 0)
    return shifted(n, right), e + right


def to_integer(n: Ints, e: Ints, lo: int, hi: int) -> Ints:
    """n · 2^e to a whole number, half to even, within lo to hi: of at most 32 bits."""
    near = shifted(n, np.minimum(np.maximum(-e, 0), ROOM))
    is_large = (e > 0) & (lengths(n) + e > 40)
    whole = np.where(e > 0, n << np.clip(e, 0, 40 - np.minimum(lengths(n), 40)), near)
    return np.clip(np.where(is_large, np.where(n > 0, hi, lo), whole), lo, hi)


def requantised(sums: Ints, bias: int, scale: float, zero: int, clamp: tuple[int, int], slope: float = 1.0) -> Ints:
    """sat(rne(f32(f32(f32(sum + bias) · scale) · slope)) + zero), slope where negative. sums: of at most 40 bits."""
    (m, e), (ms, es) = parts(scale), parts(slope)
    n, left = to_float(sums + bias, 0)
    n, left = to_float(n * m, left + e)  # 24 + 24 bits
    if slope != 1:
        sloped, of_sloped = to_float(n * ms, left + es)
        n, left = np.where(n < 0, sloped, n), np.where(n < 0, of_sloped, left)
    lo, hi = clamp
    return np.clip(to_integer(n, left, lo - zero, hi - zero) + zero, lo, hi)


def least_sums(
    results: Ints, bias: int, scale: float, zero: int, clamp: tuple[int, int], slope: float, bits: int
) -> Ints:
    """Of each result the least sum of `bits` bits that gives it or more, by halving; scale and slope are positive."""
    low, high = np.full(results.shape, -(1 << bits - 1)), np.full(results.shape, 1 << bits - 1)
    for _ in range(bits + 1):
        middle = (low + high) >> 1
        enough = requantised(middle, bias, scale, zero, clamp, slope) >= results
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
        low = np.minimum(low, high)
    return high


def added(v: Ints, residual: Ints, factors: tuple[float, float, float], clamp: tuple[int, int]) -> Ints:
    """sat(rne(f32(v · a + f32(residual · b + fixed)))), with one rounding of each sum: on Python's integers."""
    (a, ea), (b, eb), (f, ef) = map(parts, factors)
    inner_e = min(eb, ef)
    inner = residual.astype(object) * (b << eb - inner_e) + (f << ef - inner_e)
    small = [_rounded(int(n), inner_e) for n in inner.ravel()]
    outer_e = min(ea, *(e for _, e in small))
    sums = [int(x) * (a << ea - outer_e) + (n << e - outer_e) for x, (n, e) in zip(v.ravel(), small, strict=True)]
    return np.array([_whole(*_rounded(n, outer_e), *clamp) for n in sums]).reshape(v.shape)


def multiplied(v: Ints, residual: Ints, factors: tuple[float, float, float], clamp: tuple[int, int]) -> Ints:
    """sat(rne(f32(f32(f32(v · f32(residual - b)) · a) + fixed))): on Python's integers. v: of at most 24 bits."""
    (a, ea), (b, eb), (f, ef) = map(parts, factors)
    results = list[int]()
    for x, y in zip(v.ravel(), residual.ravel(), strict=True):
        other, e = _sum_of((int(y), 0), (-b, eb))
        product, e = _rounded(int(x) * other, e)
        product, e = _rounded(product * a, e + ea)
        results.append(_whole(*_sum_of((product, e), (f, ef)), *clamp))
    return np.array(results).reshape(v.shape)


def _sum_of(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """f32(one + other)."""
    least = min(one[1], other[1])
    return _rounded(sum(n << e - least for n, e in (one, other)), least)


def _rounded(n: int, e: int) -> tuple[int, int]:
    right = max(0, abs(n).bit_length() - BITS)
    return _halved(n, right), e + right


def _halved(n: int, right: int) -> int:
    down, rest = n >> right, n & ((1 << right) - 1)
    half = 1 << right >> 1
    return down + (right > 0 and (rest > half or (rest == half and down & 1)))


def _whole(n: int, e: int, lo: int, hi: int) -> int:
    return min(max(n << e if e >= 0 else _halved(n, -e), lo), hi)
