"""The records of the `cnn` dialect: epilogues, scales and ranges, as plain dataclasses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cnncc.array_instructions import check_slope, check_table
from cnncc.numerics import INT32


def _check_clamp(clamp: tuple[int, ...]) -> None:
    if len(clamp) != 2 or clamp[0] > clamp[1]:
        raise ValueError(f"{list(clamp)} is no range")
    for limit in clamp:
        _check_int32(limit)


def _check_int32(integer: int) -> None:
    if not INT32[0] <= integer <= INT32[1]:
        raise ValueError(f"{integer:,} is no integer of 32 bits: zero points and clamps are")


@dataclass(frozen=True)
class Steps:
    """What happens to a sum on its way out: names of weights for `cnncc.numerics.Epilogue`.

    | field | value | absent |
    |---|---|---|
    | bias | i32[k] | "" |
    | scale | f32[k] | "" |
    | scale, with per_position | f32[h, w], equal for all channels; no bias, no residual | |
    | factors | f32[3] of the residual: a, b, fixed | "" |
    | multiply | whether the residual is multiplied, not added | false |
    | slope | f32, of negative products with the scale (LeakyRelu) | 1 |
    | shuffle | the groups of a last channel shuffle (`cnn.shuffle`) | 1 |
    | table | i16[257], of the clamped (`cnncc.numerics.Table`) | "" |
    | shift | of the table: it has an entry for every 2^shift-th integer of the clamp | 0 |
    """

    bias: str = ""
    scale: str = ""
    per_position: bool = False
    zero: int = 0
    clamp: tuple[int, int] = INT32
    factors: str = ""
    multiply: bool = False
    add_clamp: tuple[int, int] = INT32
    slope: float = 1.0
    shuffle: int = 1
    table: str = ""
    shift: int = 0

    def __post_init__(self) -> None:
        _check_clamp(self.clamp)
        _check_clamp(self.add_clamp)
        _check_int32(self.zero)
        check_slope(self.slope)
        check_table(self.table, self.shift, self.clamp)
        if self.multiply and not self.factors:
            raise ValueError("a residual is multiplied by factors: there are none")
        if self.shuffle != 1 and self.factors:
            raise ValueError("a residual's channels are not shuffled: no shuffle after it")
        if self.slope != 1 and not self.scale:
            raise ValueError("a slope is of the products with a scale: there is none")
        if self.per_position and (self.bias or self.factors or not self.scale):
            raise ValueError("per_position needs a scale, no bias before it and no residual after it")


ELEMENTS = ("float32", "int8", "uint8")


@dataclass(frozen=True)
class Quant:
    """How integers stand for reals: real = (integer - zero) * scale.

    clamp: the range that quantising saturates to, where it is narrower than the tensor's integers
    (the proof that no psum overflows counts on it). Scale 0 stands for a tensor that is not quantised.
    element: the type in which reals go in and out; bytes are whole numbers of a model that is quantised already.
    """

    scale: float
    zero: int = 0
    clamp: tuple[int, int] = INT32
    element: str = "float32"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise ValueError(f"scale is {self.scale}, it must be a finite number of at least 0")
        if self.element not in ELEMENTS:
            raise ValueError(f"element is {self.element}, it must be one of {', '.join(ELEMENTS)}")
        _check_clamp(self.clamp)
        _check_int32(self.zero)


@dataclass(frozen=True)
class Range:
    """Calibrated values of a real tensor: all in lo..hi, to be quantised to the integers -top..top."""

    lo: float
    hi: float
    top: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lo) and math.isfinite(self.hi) and self.lo <= self.hi):
            raise ValueError(f"lo = {self.lo} and hi = {self.hi} are no range")
        if self.top < 1:
            raise ValueError(f"top is {self.top}, it must be at least 1")
