"""cnncc.numerics against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cnncc.errors import Refusal
from cnncc.numerics import (
    INT32,
    SEGMENTS,
    Epilogue,
    Table,
    dequantise,
    fma32,
    integer_range,
    quantise,
    requantise,
    residual_add,
    saturate,
)
from cnncc.passes._onnx.calibration import Scale

F32 = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**60), max_value=2.0**60)


def round_to_f32(exact: Fraction) -> float:
    """`exact` to 24 bits, half to even; within the normal range or zero, as all our numbers are."""
    if exact == 0:
        return 0.0
    exponent = math.frexp(float(exact))[1]
    unit = Fraction(2) ** max(exponent - 24, -149)
    rounded = float(round(exact / unit) * unit)  # round() of a Fraction is half to even
    # float(exact) may have rounded up to the next power of two: then the unit above is too coarse.
    finer = Fraction(2) ** max(exponent - 25, -149)
    return float(round(exact / finer) * finer) if abs(exact) < Fraction(2) ** (exponent - 1) else rounded


@given(F32, F32, F32)
@example(1.0 + 2.0**-23, 1.0 + 2.0**-23, -1.0)  # cancellation: the product's low bits decide
@example(1.0 + 2.0**-12, 1.0 + 2.0**-12, 2.0**-25)  # a tie, broken by the addend
@example(1.0 + 2.0**-12, 1.0 - 2.0**-12, 2.0**-60)
@example(3.0, 2.0**24 + 2, -3.0 * 2.0**24)  # total cancellation of the leading part
@example(1.0, 2.0**24 + 2.0, 1.0)  # ties to even, downwards and upwards
@example(1.0, 2.0**24, 1.0)
@example(2.0**24 + 2, 1.0, 2.0**-40)
@example(-(2.0**24 + 2), 1.0, -1.0)
def test_quant_numerics_fma32_rounds_once(a: float, b: float, c: float) -> None:
    got = fma32(np.float32([a]), np.float32([b]), np.float32([c]))[0]
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0 or abs(exact) >= Fraction(2) ** -126:
        assert float(got) == round_to_f32(exact)


def test_quant_numerics_fma32_differs_from_two_roundings() -> None:
    """The product has a bit below f64's last: plain f64 arithmetic would round the tie to even."""
    a = b = np.float32([1 + 2.0**-12])
    c = np.float32([2.0**-70])
    plain = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
    assert fma32(a, b, c)[0] == np.float32(1 + 2.0**-11 + 2.0**-23) != plain[0]
    assert fma32(-a, b, -c)[0] == -fma32(a, b, c)[0]


@pytest.mark.parametrize(("acc", "expected"), [(1, 0), (3, 2), (5, 2), (7, 4), (-1, 0), (-3, -2), (-5, -2), (-7, -4)])
def test_quant_numerics_requantise_ties_to_even(acc: int, expected: int) -> None:
    assert requantise(np.array([acc]), np.float32([0.5]), 0, -128, 127)[0] == expected
    assert requantise(np.array([acc]), np.float32([0.5]), 3, -128, 127)[0] == expected + 3


def test_quant_numerics_requantise_rounds_the_sum_to_24_bits_first() -> None:
    acc = np.array([2**24 + 1, 2**31 - 1, -(2**31)])
    assert requantise(acc, np.float32([1.0]), 0, *integer_range(32)).tolist() == [2**24, 2**31 - 1, -(2**31)]
    assert requantise(acc, np.float32([2.0**-16]), 0, *integer_range(16)).tolist() == [256, 32767, -32768]


def test_quant_numerics_requantise_saturates_beyond_f32() -> None:
    acc = np.array([200, 0, -200])
    assert requantise(acc, np.float32([3e38]), 0, -128, 127).tolist() == [127, 0, -128]
    assert requantise(acc, np.float32([1e38]), 0, -128, 127, slope=1e38).tolist() == [127, 0, -128]


@given(st.integers(-(2**31), 2**31 - 1), st.floats(2.0**-30, 2.0**10, width=32), st.integers(-128, 127))
def test_quant_numerics_requantise_is_its_formula(acc: int, scale: float, zero: int) -> None:
    product = round_to_f32(Fraction(round_to_f32(Fraction(acc))) * Fraction(scale))
    want = min(max(round(Fraction(product)) + zero, -128), 127)
    assert requantise(np.array([acc]), np.float32([scale]), zero, -128, 127)[0] == want


@given(
    st.integers(-32768, 32767),
    st.integers(-32768, 32767),
    st.floats(2.0**-10, 8.0, width=32),
    st.floats(2.0**-10, 8.0, width=32),
)
@example(1, 1, 0.25, 0.25)
@example(3, 0, 0.5, 1.0)
def test_quant_numerics_residual_add_is_its_formula(v: int, r: int, a: float, b: float) -> None:
    inner = round_to_f32(Fraction(r) * Fraction(b))
    want = round(Fraction(round_to_f32(Fraction(v) * Fraction(a) + Fraction(inner))))
    got = residual_add(np.array([v]), np.array([r]), np.float32([a, b, 0]), -32768, 32767)
    assert got[0] == min(max(want, -32768), 32767)


@given(
    st.integers(-32768, 32767),
    st.integers(-32768, 32767),
    st.floats(2.0**-30, 8.0, width=32),
    st.integers(-128, 255),
    st.integers(-128, 255),
)
@example(3, 1, 0.5, 0, 1)  # 1.5 + 1: the tie goes to 2, and is one only with the addend
@example(4097, 4099, 2.0**-24, 0, 0)  # a product of 25 bits, which f32 rounds
def test_quant_numerics_residual_multiply_is_its_formula(v: int, r: int, a: float, b: int, fixed: int) -> None:
    product = round_to_f32(Fraction(v * (r - b)))
    scaled = round_to_f32(Fraction(product) * Fraction(a))
    want = round(Fraction(round_to_f32(Fraction(scaled) + fixed)))
    epilogue = Epilogue(factors=np.float32([a, b, fixed]), multiply=True, add_clamp=(-32768, 32767))
    assert epilogue.apply(np.array([v]), slice(None), np.array([r]))[0] == min(max(want, -32768), 32767)


def on_the_line(entries: list[int], shift: int, lo: int, v: int) -> int:
    """The exact point between two entries, to the nearest integer, the greater of two."""
    place = min(max(Fraction(v - lo, 2**shift), Fraction(0)), Fraction(SEGMENTS))
    left, right = entries[math.floor(place)], entries[math.ceil(place)]
    return math.floor(left + (right - left) * (place - math.floor(place)) + Fraction(1, 2))


@pytest.mark.parametrize("shift", range(16))
@pytest.mark.parametrize("lo", [-(2**31), -32768, -5, 0, 2**31 - 2**23])
def test_quant_numerics_table_is_its_formula(shift: int, lo: int) -> None:
    """Integers at, beside and between all entries, and beyond both ends; entries anywhere in 16 bits."""
    rng = np.random.default_rng([shift, lo % 2**32])
    entries = rng.choice([-32768, 32767, -1, 0, 1, *rng.integers(-32768, 32768, 20).tolist()], SEGMENTS + 1)
    at = lo + (np.arange(SEGMENTS + 1) << shift)
    v = np.concatenate([at - 1, at, at + 1, at + rng.integers(0, 1 << shift, len(at)), INT32])
    v = v[(v >= INT32[0]) & (v <= INT32[1])]
    want = [on_the_line(entries.tolist(), shift, lo, each) for each in v.tolist()]
    assert Table(entries, shift).values(v, lo).tolist() == want


def test_quant_numerics_table_of_extremes() -> None:
    """The greatest steps, both ways: half of an odd sum goes up."""
    entries = np.array([32767, -32768] * 128 + [32767])
    assert Table(entries, 15).values(np.array([0, 1, 2, 1 << 14, (1 << 15) - 1, 1 << 15]), 0).tolist() == [
        32767, 32765, 32763, 0, -32766, -32768,
    ]  # fmt: skip
    assert Table(entries, 1).values(np.array([0, 1, 2, 3, 511, 512, 513]), 0).tolist() == [
        32767, 0, -32768, 0, 0, 32767, 32767,
    ]  # fmt: skip


def test_quant_numerics_table_by_hand() -> None:
    """The examples of `Table` and of COMMIT-7."""
    entries = np.array([10, 20, -7, *[0] * 252, 5, 2])
    assert Table(entries, 2).values(np.arange(5), 0).tolist() == [10, 13, 15, 18, 20]
    v = np.array([-9, -8, -7, -6, -5, -4, -3, -1, 0, 1012, 1013, 1016, 1017])
    assert Table(entries, 2).values(v, -8).tolist() == [10, 10, 13, 15, 18, 20, 13, 0, -7, 5, 4, 2, 2]


@given(st.lists(st.integers(-70000, 70000), min_size=1, max_size=5), st.integers(0, 15), st.integers(-300, 300))
def test_quant_numerics_table_comes_after_the_clamp_and_before_a_residual(v: list[int], shift: int, lo: int) -> None:
    entries = np.random.default_rng(shift).integers(-32768, 32768, SEGMENTS + 1)
    clamp = (lo, lo + (100 << shift))
    epilogue = Epilogue(clamp=clamp, table=Table(entries, shift), factors=np.float32([1, 2, 0]))
    want = [on_the_line(entries.tolist(), shift, lo, min(max(each, clamp[0]), clamp[1])) + 2 * 21 for each in v]
    assert epilogue.apply(np.array(v), slice(None), np.full(len(v), 21)).tolist() == want


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        (np.zeros(256, np.int16), r"int16\[256\]"),
        (np.zeros((1, 257), np.int16), r"int16\[1, 257\]"),
        (np.zeros(257, np.int32), r"int32\[257\]"),
        (np.zeros(257, np.uint16), r"uint16\[257\]"),
    ],
)
def test_quant_numerics_table_of_another_shape_is_refused(entries: np.ndarray, what: str) -> None:
    with pytest.raises(Refusal, match=rf"a table is int16\[257\], not {what}"):
        Table.of(entries, 0)


def test_quant_numerics_nan_and_infinity_saturate() -> None:
    assert saturate(np.array([np.nan, np.inf, -np.inf, 0.0]), -5, 9).tolist() == [-5, 9, -5, 0]
    assert quantise(np.float32([np.inf, -np.inf, 2.5, 3.5]), 1.0, 0, -7, 7).tolist() == [7, -7, 2, 4]


@given(
    st.integers(-(2**31), 2**31 - 1), st.floats(2.0**-30, 2.0**10, width=32), st.floats(-2.0, 2.0, width=32),
    st.integers(-128, 127),
)  # fmt: skip
@example(-3, 0.5, float(np.float32(1 / 3)), 0)  # -0.5 exactly once the product is rounded: the tie goes to 0
def test_quant_numerics_slope_is_its_formula(acc: int, scale: float, slope: float, zero: int) -> None:
    product = round_to_f32(Fraction(round_to_f32(Fraction(acc))) * Fraction(scale))
    product = round_to_f32(Fraction(product) * Fraction(slope)) if product < 0 else product
    want = min(max(round(Fraction(product)) + zero, -128), 127)
    epilogue = Epilogue(scale=np.float32([scale]), zero=zero, clamp=(-128, 127), slope=slope)
    assert epilogue.apply(np.array([acc]), slice(None))[0] == want


def test_quant_numerics_epilogue_steps_in_order() -> None:
    epilogue = Epilogue(
        bias=np.array([10, -10]),
        scale=np.float32([0.5, 0.25]),
        zero=1,
        clamp=(-3, 7),
        factors=np.float32([2.0, 1.0, 0.5]),
        add_clamp=(0, 15),
    )
    acc = np.array([[4, 3], [-4, 100]])
    got = epilogue.apply(acc, np.arange(2), np.array([[0, -1], [3, 4]]))
    # k=0: (4+10)/2+1 = 8 -> 7, 2*7 + 0 + .5 -> 14; (-4+10)/2+1 = 4, 8+3+.5 -> 12 (tie to even)
    # k=1: (3-10)/4 = -1.75 -> -2 + 1 = -1, -2-1+.5 -> -2 -> 0; 22.5 -> 22+1 -> 7, 14+4+.5 -> 18 -> 15
    assert got.tolist() == [[14, 0], [12, 15]]


@pytest.mark.filterwarnings("error")
def test_quant_numerics_huge_values_saturate_without_a_warning() -> None:
    values = np.array([3e38, -3e38, np.inf, -np.inf], np.float32)
    assert quantise(values, 1e-3, 0, -128, 127).tolist() == [127, -128, 127, -128]
    assert dequantise(np.array([127, -128, 1]), 3e36, 0).tolist() == [np.inf, -np.inf, np.float32(3e36)]
    assert Scale(1e-30, -128, 127).integer(3e38) == 127


def test_quant_numerics_clamps_what_is_no_number_and_bounds_in_the_wrong_order() -> None:
    """COMMIT-2: 0 times infinity is add_lo, 1 times infinity add_hi; with lo above hi every number is hi."""
    v = np.array([0, 1, -1])
    none = np.zeros(3, np.int64)
    factors = np.array([math.inf, 0, 0], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        assert residual_add(v, none, factors, -50, 60).tolist() == [-50, 60, -50]
    assert saturate(np.array([0.0, 5.0, 100.0, math.nan]), 7, 3).tolist() == [3, 3, 3, 7]
    for bounds, wanted in (((-100, 100), [0, 1, -1]), ((7, 3), [3, 3, 3])):
        assert Epilogue(clamp=bounds).apply(v, slice(None)).tolist() == wanted
