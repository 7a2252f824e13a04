"""cnncc.quant.split: the proof that no psum overflows, on the integers themselves, and the choice of top."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from cnncc.quant.split import (
    MeasuredUse,
    activation_scale,
    candidate_tops,
    choose_top,
    measured_error,
    psum_need,
    quantise_layer,
)


def worst_sums(weights: np.ndarray, bias: np.ndarray, top: int) -> list[int]:
    """By channel, the greatest magnitude of any partial sum for inputs within ±top, in Python integers.

    The adversary feeds ±top by the weight's sign, so that all products have the sign of the bias.
    """
    found = []
    for row, offset in zip(weights.reshape(len(weights), -1).tolist(), bias.tolist(), strict=True):
        sign = -1 if offset < 0 else 1
        inputs = [sign * (top if weight >= 0 else -top) for weight in row]
        total = sum(weight * x for weight, x in zip(row, inputs, strict=True)) + offset
        assert abs(total) >= abs(offset)
        found.append(abs(total))
    return found


@pytest.mark.parametrize("top", [127, 2047, 32767])
@pytest.mark.parametrize("bias_size", [0.0, 1.0, 1e6])
def test_quant_split_worst_input_fits_the_psum(top: int, bias_size: float) -> None:
    """4608 products (512 channels, 3x3) of 16 bits each: the case that overflows without care."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((7, 512, 3, 3)) * 10.0 ** np.arange(-3, 4)[:, None, None, None]
    bias = bias_size * rng.standard_normal(7)
    layer = quantise_layer(weights, bias, activation_scale(3.0, top), top, 16, 32)
    worst = worst_sums(layer.weights, layer.bias, top)
    assert max(worst) <= 2**31 - 1
    assert np.abs(layer.weights).max() <= 32767
    assert psum_need(layer, top).tolist() == worst
    # As fine as the budget allows: some limit is nearly reached in every channel.
    used = np.maximum(np.array(worst) / (2**31 - 1), np.abs(layer.weights).reshape(7, -1).max(axis=1) / 32767)
    assert used.min() > 0.98


@settings(max_examples=examples(60))
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.integers(1, 700),
    st.integers(2, 16),
    st.integers(12, 48),
    st.floats(-40, 20),
    st.floats(-40, 20),
)
def test_quant_split_any_layer_fits(
    seed: int, k: int, terms: int, operand_bits: int, psum_bits: int, size: float, bias_size: float
) -> None:
    rng = np.random.default_rng(seed)
    weights = (rng.standard_normal((k, terms)) * 2.0**size).astype(np.float32)
    weights[0] = 0
    bias = (rng.standard_normal(k) * 2.0**bias_size).astype(np.float32)
    top = candidate_tops(operand_bits)[-1]
    layer = quantise_layer(weights, bias, activation_scale(1.0, top), top, operand_bits, psum_bits)
    assert max(worst_sums(layer.weights, layer.bias, top)) <= 2 ** (psum_bits - 1) - 1
    assert np.abs(layer.weights).max() <= 2 ** (operand_bits - 1) - 1
    assert np.abs(layer.bias).max() <= 2**31 - 1
    assert (layer.scale > 0).all()
    assert np.isfinite(layer.scale).all()


def test_quant_split_integers_stand_for_the_reals() -> None:
    rng = np.random.default_rng(2)
    weights, bias = rng.standard_normal((5, 3, 3, 3)), rng.standard_normal(5)
    scale = activation_scale(4.0, 1023)
    layer = quantise_layer(weights, bias, scale, 1023, 16, 32)
    real = layer.weights * layer.scale[:, None, None, None].astype(np.float64)
    assert np.abs(real - weights).max() <= layer.scale.max() / 2 * 1.0001
    assert np.abs(layer.bias * layer.scale.astype(np.float64) * scale - bias).max() <= layer.scale.max() * scale


def test_quant_split_the_sign_of_a_bias_does_not_matter() -> None:
    """A negative bias takes as much of the psum as a positive one: scales are the same to the last bit."""
    rng = np.random.default_rng(4)
    weights, bias = rng.standard_normal((5, 3, 3, 3)), 20 + rng.random(5)
    up, down = (quantise_layer(weights, sign * bias, activation_scale(4.0, 1023), 1023, 16, 24) for sign in (1, -1))
    assert (up.scale == down.scale).all() and (up.bias == -down.bias).all() and (up.weights == down.weights).all()


def test_quant_split_zero_channels_and_ranges() -> None:
    weights = np.zeros((3, 2, 1, 1))
    weights[1] = 0.5
    layer = quantise_layer(weights, np.array([0.0, 0.0, 2.0]), activation_scale(0.0, 127), 127, 8, 32)
    assert activation_scale(0.0, 127) == 1
    assert layer.scale[0] == 1
    assert not layer.weights[[0, 2]].any()
    assert np.isclose(layer.bias[2] * layer.scale[2], 2.0)


def test_quant_split_int8_is_the_same_code_with_one_candidate() -> None:
    assert candidate_tops(8) == [127]
    assert candidate_tops(16)[0], candidate_tops(16)[-1] == (32767, 127)
    assert choose_top(1.0, [], 8, 32) == 127
    assert choose_top(1.0, [], 16, 32) == 32767


def test_quant_split_balances_bits_where_there_are_many_products() -> None:
    """4608 products: neither 16-bit inputs nor 16-bit weights, but something between, beat both."""
    rng = np.random.default_rng(3)
    patches = np.abs(rng.standard_normal((64, 4608)))
    use = MeasuredUse(patches, rng.standard_normal((8, 4608)), np.zeros(8))
    absmax = float(patches.max())
    top = choose_top(absmax, [use], 16, 32)
    assert 127 < top < 32767
    errors = {candidate: measured_error(use, absmax, candidate, 16, 32) for candidate in candidate_tops(16)}
    assert errors[top] == min(errors.values())
    assert errors[top] < errors[32767] / 4
    assert errors[top] < errors[127] / 4
    # 48-bit psums leave room for all 16 bits.
    assert choose_top(absmax, [use], 16, 48) == 32767


def test_quant_split_pool_sums_limit_top() -> None:
    """A mean over so many pixels that ±32767 each would overflow the psum."""
    use = MeasuredUse(np.random.default_rng(4).random((99, 7)), terms=70000)
    assert choose_top(1.0, [use], 16, 32) == 16383
