"""Codes, the integers of a quantised model, and integers that give the codes of a node's f32. No pass.

onnxruntime computes some nodes in f32, and rounds to codes. The array computes them in integers where these give the
same codes for all inputs. So all inputs are tried here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import IntegerType, Signedness, TensorType
from xdsl.ir import Attribute

from cnncc.numerics import Floats, Ints, dequantise, integer_range, quantise, requantise, saturate
from cnncc.passes._onnx.windows import require

BYTE_BITS = 8
SIGNED = IntegerType(BYTE_BITS)
UNSIGNED = IntegerType(BYTE_BITS, Signedness.UNSIGNED)
BYTES: tuple[Attribute, ...] = (SIGNED, UNSIGNED)
# What `products_by_codes` tries: weights, and by which share the slope differs. Of 400 products and sums by constants,
# drawn as in the tests, 66 stay on the host with weight 127 and exact slopes alone, 15 if shares are tried, 4 if
# weights are, and none if both are.
WEIGHTS_OF_CODES = range(127, 95, -1)
SHARES = (0.0, *(sign * 2.0**exponent for exponent in range(-20, -10) for sign in (1, -1)))
MOST_BIAS = (1 << 22) - 1  # of `products_by_codes`: f32 has the sums, and psums of 24 bits hold them
MOST_AVERAGED = 256  # of so many values `averaging` tries all sums in a second or two


@dataclass(frozen=True)
class Codes:
    """The codes of a tensor: real = (code - zero) * scale."""

    signed: bool
    scale: float = 1.0
    zero: int = 0

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest code."""
        return integer_range(BYTE_BITS, self.signed)

    @property
    def every(self) -> Ints:
        """All codes, from the least on."""
        return np.arange(self.range[0], self.range[1] + 1)

    @property
    def element(self) -> str:
        """The type of a code."""
        return "int8" if self.signed else "uint8"


def codes_of(value_type: Attribute) -> Codes | None:
    """The codes of a tensor of bytes, with real = code; None for any other type."""
    element = value_type.element_type if isinstance(value_type, TensorType) else None
    return Codes(signed=element == SIGNED) if element in BYTES else None


def rescaling(x: Codes, y: Codes, slope: float = 1.0) -> np.float32 | None:
    """The f32 multiplier from (code of x - zero) to the code of y for the same real; None if there is none.

    Dequantising rounds before quantising divides, so a single product may differ: all codes are tried.
    slope: of negative reals, as in LeakyRelu.
    """
    reals = dequantise(x.every, x.scale, x.zero)
    wanted = quantise(np.where(reals < 0, reals * np.float32(slope), reals), y.scale, y.zero, *y.range)
    for multiplier in _multipliers_near(x.scale, y.scale):
        got = requantise(x.every - x.zero, np.array([multiplier], np.float32), y.zero, *y.range, slope)
        if (got == wanted).all():
            return multiplier
    return None


def _multipliers_near(x_scale: float, y_scale: float, count: int = 1) -> list[np.float32]:
    """The f32 x_scale / (y_scale * count) with its neighbours; none if the quotient is not normal."""
    with np.errstate(over="ignore", under="ignore"):
        ratio = np.float32(x_scale) / (np.float32(y_scale) * np.float32(count))
    return [*with_neighbours(ratio)] if are_normal(ratio) else []


def with_neighbours(number: np.float32) -> tuple[np.float32, ...]:
    """An f32, the next one below and the next one above: where one rounds otherwise, another may do."""
    return (number, *(np.nextafter(number, np.float32(end)) for end in (-np.inf, np.inf)))


def product_factor(a: float, b: float, y: float) -> np.float32:
    """From products of integers at scales a and b to integers at scale y, each step rounded to f32."""
    with np.errstate(all="ignore"):  # scales that lie too far apart are refused: see `are_normal`
        return np.float32(a) * np.float32(b) / np.float32(y)


def are_normal(numbers: npt.NDArray[np.float32] | np.float32) -> bool:
    """Whether all numbers are normal positive f32, as multipliers of the array are."""
    return bool((np.isfinite(numbers) & (numbers >= np.finfo(np.float32).tiny)).all())


def require_normal(multipliers: Floats) -> None:
    """Raise StaysOnHost for multipliers that the array does not have."""
    require(are_normal(multipliers), "its scales lie too far apart for f32")


@cache
def averaging(x: Codes, y: Codes, count: int) -> np.float32 | None:
    """The f32 multiplier from a sum of `count` (codes of x - zero) to the code of y for their mean; None if none is.

    onnxruntime adds dequantised codes, and rounds each sum to f32. So equal sums of codes may have several means. The
    least and the greatest of them are compared, for each sum of codes.
    """
    sums = np.arange(count * (x.range[0] - x.zero), count * (x.range[1] - x.zero) + 1)
    with np.errstate(over="ignore"):
        steps = [
            reals / np.float32(count) / np.float32(y.scale) + np.float32(y.zero) for reals in _float_sums(x, count)
        ]
    least, greatest = (saturate(np.rint(each), *y.range) for each in steps)
    for multiplier in _multipliers_near(x.scale, y.scale, count):
        got = requantise(sums, np.array([multiplier], np.float32), y.zero, *y.range)
        if (got == least).all() and (got == greatest).all():
            return multiplier
    return None


def _float_sums(x: Codes, count: int) -> tuple[Floats, Floats]:
    """The least and the greatest f32 sum of `count` dequantised codes, for each sum of codes from the least one on.

    A rounded sum grows with its operands: that of the least part is the least.
    """
    reals = dequantise(x.every, x.scale, x.zero)
    least = greatest = reals
    for _ in range(count - 1):
        size = len(least)
        parts = least, greatest
        least, greatest = (np.full(size + len(reals) - 1, sign * np.inf, np.float32) for sign in (1, -1))
        for code, real in enumerate(reals):
            at = slice(code, code + size)
            least[at] = np.minimum(least[at], parts[0] + real)
            greatest[at] = np.maximum(greatest[at], parts[1] + real)
    return least, greatest


def products_by_codes(x: Codes, y: Codes, slopes: Floats, offsets: Floats, wanted: Ints) -> tuple[Ints, Ints, Floats]:
    """Weights, biases and multipliers of each channel c that give the codes wanted[c] of all codes x.

    The codes are about (x - zero) * slopes[c] + offsets[c]. The bias is an integer: the offset is rounded to a multiple
    of slope / weight. With some weights, and slopes a little off, no code differs for it. Weights are words of a byte.
    Raises StaysOnHost where none give all codes.
    """
    codes = x.every - x.zero
    weights, bias = np.zeros((2, len(slopes)), np.int64)
    multipliers = np.ones(len(slopes), np.float32)
    left = np.arange(len(slopes))
    for share, weight in product(SHARES, WEIGHTS_OF_CODES):
        weights[left] = np.sign(slopes[left]) * weight
        multipliers[left] = np.where(slopes[left] == 0, 1, np.abs(slopes[left]) / weight * (1 + share))
        require_normal(multipliers)
        bias[left] = np.clip(np.rint(offsets[left] / multipliers[left]), -MOST_BIAS, MOST_BIAS)
        sums = codes * weights[left, None] + bias[left, None]
        left = left[(requantise(sums, multipliers[left, None], y.zero, *y.range) != wanted[left]).any(axis=1)]
    require(not left.size, "no integer weights and biases give its result for each code")
    return weights, bias, multipliers
