"""Symmetric quantisation, and the split of a psum's bits between activations and weights.

Zero points are 0. An activation tensor whose calibrated values reach ±absmax has the integers -top..top
and scale = HEADROOM · absmax / top. The weights of output channel k get the finest scale for which

    |w| <= 2^(operand_bits-1) - 1   and   Σ|w|·top + |bias| <= 2^(psum_bits-1) - 1,   bias scale = x_scale·w_scale[k]

so no order of additions can overflow a psum. A larger top leaves fewer bits for the weights. `choose_top` takes the
candidate top = 2^(b-1) - 1 with the least measured error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cnncc.errors import Refusal
from cnncc.numerics import Floats, Ints, integer_range

Doubles = npt.NDArray[np.float64]

# Calibration sees a hundred samples; values beyond their range saturate. On the sample nets, 1 loses 37 dB
# of a 16-bit network's accuracy, 1.25 nothing, and 2 another 2 dB (2026-11: 37, 74 and 72 dB).
HEADROOM = 1.25
LEAST_BITS = 8  # of the smallest candidate for `top`
BIAS_LIMIT = (1 << 31) - 1  # a bias is a parameter of 32 bits (MEM-1)
NARROWED = 1.001  # a larger ratio of scales is no rounding
LEAST_SCALE, MOST_SCALE = 2.0**-100, 2.0**100  # products of scales beyond would leave the range of f32


@dataclass(frozen=True, eq=False)
class QuantisedLayer:
    """Integers of a layer: weights int64[k, …] and bias int64[k]; real weight = weights · scale[k] (f32[k])."""

    weights: Ints
    bias: Ints
    scale: Floats


@dataclass(frozen=True, eq=False)
class MeasuredUse:
    """A layer that reads an activation tensor, for measuring: patches f64[p, i], weights f64[k, i], bias f64[k].

    A layer without weights adds, compares or passes on its inputs. terms: the number of inputs that a psum sums up.
    """

    patches: Doubles
    weights: Doubles | None = None
    bias: Doubles | None = None
    terms: int = 1

    @cached_property
    def results(self) -> Doubles:
        """What the layer computes of its patches, f64[p, k]; the patches where it has no weights."""
        if self.weights is None or self.bias is None:
            return self.patches
        return self.patches @ self.weights.T + self.bias


def activation_scale(absmax: float, top: int) -> float:
    """HEADROOM · absmax / top, exactly an f32; 1 for a tensor of zeros, or too small to have a scale."""
    scale = float(np.float32(HEADROOM * absmax / top))
    return scale if scale >= LEAST_SCALE else 1.0


def psum_need(layer: QuantisedLayer, top: int) -> Ints:
    """The greatest magnitude of any partial sum, by channel: Σ|w|·top + |bias|, an int64[k]."""
    return np.abs(_rows(layer.weights)).sum(axis=1) * top + np.abs(layer.bias)


def _rows(weights: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return weights.reshape(weights.shape[0], -1)


def quantise_layer(
    weights: npt.NDArray[np.floating],
    bias: npt.NDArray[np.floating],
    x_scale: float,
    top: int,
    operand_bits: int,
    psum_bits: int,
) -> QuantisedLayer:
    """The integers of `weights` [k, …] and `bias` [k] for inputs within -top..top, as fine as the psum allows.

    Raises: Refusal, for scales beyond the range of f32.
    """
    limits = _Limits(integer_range(operand_bits)[1], integer_range(psum_bits)[1], top)
    rows = _rows(weights).astype(np.float64)
    shift = bias.astype(np.float64) / x_scale
    scale = limits.first_scale(rows, shift)
    integers, offsets = np.rint(rows / scale[:, None]), np.rint(shift / scale)
    # Rounding may push a channel over its limits: coarsen those until the final integers fit. The extra 0.01 % keeps
    # f32 rounding from undoing a step.
    while (over := limits.excess(integers, offsets)).max(initial=0) > 1:
        (bad,) = np.nonzero(over > 1)
        scale[bad] *= (over[bad] * 1.0001).astype(np.float32)
        integers[bad], offsets[bad] = np.rint(rows[bad] / scale[bad, None]), np.rint(shift[bad] / scale[bad])
    return QuantisedLayer(integers.astype(np.int64).reshape(weights.shape), offsets.astype(np.int64), scale)


def narrowed_channels(weights: npt.NDArray[np.floating], layer: QuantisedLayer, operand_bits: int) -> int:
    """The number of channels whose weights [k, …] have a coarser scale than their magnitude needs, for psum or bias."""
    finest = np.abs(_rows(weights)).max(axis=1, initial=0) / integer_range(operand_bits)[1]
    return int((layer.scale > np.maximum(finest * NARROWED, LEAST_SCALE)).sum())


@dataclass(frozen=True)
class _Limits:
    """The greatest |weight|, |psum| and |input|."""

    weight: int
    psum: int
    top: int

    def first_scale(self, rows: Doubles, shift: Doubles) -> Floats:
        """The scales f32[k] that would suffice without rounding."""
        finest = self.excess(rows, shift)
        if (largest := float(finest.max(initial=0))) > MOST_SCALE:
            raise Refusal(f"weights and bias need a scale of {largest:.1e}, f32 arithmetic allows {MOST_SCALE:.1e}")
        return np.where(finest == 0, 1, np.maximum(finest, LEAST_SCALE)).astype(np.float32)

    def excess(self, rows: Doubles, shift: Doubles) -> Doubles:
        """Each channel's largest ratio of a need to its limit; at most 1 if all limits hold.

        Of integers below 2^53 the comparison with 1 is exact.
        """
        size, offset = np.abs(rows), np.abs(shift)
        needs = [
            size.max(axis=1, initial=0) / self.weight,
            (size.sum(axis=1) * self.top + offset) / self.psum,
            offset / BIAS_LIMIT,
        ]
        return np.max(needs, axis=0)


def measured_error(use: MeasuredUse, absmax: float, top: int, operand_bits: int, psum_bits: int) -> float:
    """Mean square error of the output over its mean square, on the patches; inf if the layer has no integers."""
    if use.terms * top > integer_range(psum_bits)[1]:
        return float("inf")
    scale = activation_scale(absmax, top)
    integers = use.patches / scale
    np.clip(np.rint(integers, out=integers), -top, top, out=integers)
    if use.weights is None or use.bias is None:
        return _relative(integers * scale, use.results)
    try:
        layer = quantise_layer(use.weights, use.bias, scale, top, operand_bits, psum_bits)
    except Refusal:
        return float("inf")
    sums = integers @ layer.weights.T.astype(np.float64) + layer.bias
    return _relative(sums * (scale * layer.scale.astype(np.float64)), use.results)


def _relative(got: Doubles, want: Doubles) -> float:
    power = float(np.square(want).sum())
    return float(np.square(got - want).sum()) / power if power else 0.0


def candidate_tops(operand_bits: int) -> list[int]:
    """The candidates for `top`, the largest first."""
    return [integer_range(bits)[1] for bits in range(operand_bits, min(LEAST_BITS, operand_bits) - 1, -1)]


def choose_top(absmax: float, uses: Sequence[MeasuredUse], operand_bits: int, psum_bits: int) -> int:
    """The top with the least sum of measured errors over all `uses` of a tensor; the largest among equals."""

    def error(top: int) -> float:
        return sum(measured_error(use, absmax, top, operand_bits, psum_bits) for use in uses)

    candidates = candidate_tops(operand_bits)
    return candidates[0] if len(candidates) == 1 else min(candidates, key=error)
