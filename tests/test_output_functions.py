"""Requantisation, clamps, slopes and residual adds of compiled networks: the least and greatest sum of every result.

The other side is `exact_functions.py`: whole numbers, no float.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import exact_functions as exact
import numpy as np
import pytest
from examples import SEED, examples

from cnncc.arch.model import load_arch
from cnncc.driver.pipeline import Settings, import_model
from cnncc.eval import cnn
from cnncc.numerics import Epilogue, integer_range

MODELS = Path(__file__).resolve().parents[1] / "samples" / "models"
NETWORKS = {
    "16 bits": ("mnist", 16),
    "8 bits": ("mnist", 8),
    "residuals of 16 bits": ("resnet20", 16),
    "residuals of 8 bits": ("resnet20", 8),
    "codes with zero points": ("resnet20_qoperator_u8", 16),
}
SUM_BITS = 32
CHANNELS = examples(4)  # of each network, drawn
PAIRS = examples(10_000)  # of 16 bits for each residual add, besides those at the ends


@cache
def epilogues(network: str) -> list[Epilogue]:
    """The functions of all layers of a network."""
    name, bits = NETWORKS[network]
    compilation = import_model(MODELS / f"{name}.onnx", 1, Settings(load_arch("spatial-8x8"), "spatial-8x8", bits))
    compilation.run("cnn")
    made = list[Epilogue]()

    def recorded(**settings: Any) -> Epilogue:
        made.append(Epilogue(**settings))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cnn, "Epilogue", recorded)
        inputs = cnn.main_function(compilation.module).body.block.args
        zeros = [np.zeros(value.type.get_shape(), np.int64) for value in inputs]
        cnn.evaluate(compilation.module, compilation.ctx.weights, zeros)
    return made


def channel(epilogue: Epilogue, k: int) -> tuple[int, float]:
    """Bias and scale of a channel."""
    assert epilogue.scale is not None
    return 0 if epilogue.bias is None else int(epilogue.bias[k]), float(epilogue.scale[k])


def check(epilogue: Epilogue, k: int) -> int:
    """Of each result the least and the greatest sum, and their neighbours; returns the number of sums."""
    (bias, scale), lo, hi = channel(epilogue, k), *epilogue.clamp
    settings = bias, scale, epilogue.zero, epilogue.clamp, epilogue.slope
    least = exact.least_sums(np.arange(lo, hi + 1), *settings, SUM_BITS)
    sums = np.unique(np.clip(np.concatenate([least - 2, least - 1, least, least + 1]), *integer_range(SUM_BITS)))
    got = replace(epilogue, factors=None).apply(sums[:, None], np.array([k]))[:, 0]
    want = exact.requantised(sums, *settings)
    wrong = np.nonzero(got != want)[0]
    assert not len(wrong), f"channel {k}, sum {sums[wrong[0]]}: {got[wrong[0]]}, not {want[wrong[0]]}"
    assert want[0] == lo or sums[0] == integer_range(SUM_BITS)[0]
    return len(sums)


@pytest.mark.parametrize("network", NETWORKS)
def test_every_result_of_a_requantisation(network: str) -> None:
    rng, sums = np.random.default_rng(SEED), 0
    of_channels = [(each, k) for each in epilogues(network) if each.scale is not None for k in range(len(each.scale))]
    for number in rng.permutation(len(of_channels))[:CHANNELS]:
        sums += check(*of_channels[number])
    assert sums > 100 * CHANNELS


@pytest.mark.parametrize("slope", [0.01, 0.25, 1 / 3, 0.9])
def test_every_result_with_a_slope(slope: float) -> None:
    for scale in (2.0**-9, 0.0123, 1.7):
        epilogue = Epilogue(scale=np.float32([scale]), zero=-3, clamp=(-4096, 4095), slope=float(np.float32(slope)))
        check(epilogue, 0)


@pytest.mark.parametrize("network", ["residuals of 8 bits", "codes with zero points"])
def test_all_pairs_of_a_residual_add_of_8_bits(network: str) -> None:
    pairs = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))
    adds = [each for each in epilogues(network) if each.factors is not None]
    assert len(adds) == 9
    for epilogue in adds[::4]:
        check_add(epilogue, *(np.ravel(each) for each in pairs))


def test_pairs_of_a_residual_add_of_16_bits() -> None:
    rng, (lo, hi) = np.random.default_rng(SEED), integer_range(16)
    ends = np.array([lo, lo + 1, -1, 0, 1, hi - 1, hi])
    for epilogue in (each for each in epilogues("residuals of 16 bits") if each.factors is not None):
        drawn = rng.integers(lo, hi, (2, PAIRS), endpoint=True)
        v, residual = (np.concatenate([a, np.ravel(b)]) for a, b in zip(drawn, np.meshgrid(ends, ends), strict=True))
        check_add(epilogue, v, residual)


# a, the zero point of the residual, and that of the result.
PRODUCTS = [(0.0123, 0, 0), (1 / 3, -5, 7), (2**-7, 128, -128)]


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("factors", PRODUCTS)
def test_pairs_of_a_product(factors: tuple[float, float, float], bits: int) -> None:
    lo, hi = clamp = integer_range(bits)
    if bits == 8:
        v, residual = (np.ravel(each) for each in np.meshgrid(np.arange(lo, hi + 1), np.arange(lo, hi + 1)))
    else:
        v, residual = np.random.default_rng(SEED).integers(lo, hi, (2, PAIRS), endpoint=True)
    numbers = np.float32(factors)
    got = Epilogue(factors=numbers, multiply=True, add_clamp=clamp).apply(v, slice(None), residual)
    a, b, fixed = map(float, numbers)
    assert np.array_equal(got, exact.multiplied(v, residual, (a, b, fixed), clamp))


def check_add(epilogue: Epilogue, v: exact.Ints, residual: exact.Ints) -> None:
    """The sums of v and residual, as they are behind a requantisation."""
    assert epilogue.factors is not None
    a, b, fixed = (float(factor) for factor in epilogue.factors)
    alone = Epilogue(clamp=(-(1 << 31), (1 << 31) - 1), factors=epilogue.factors, add_clamp=epilogue.add_clamp)
    got = alone.apply(v, slice(None), residual)
    assert np.array_equal(got, exact.added(v, residual, (a, b, fixed), epilogue.add_clamp))


def test_a_sum_off_by_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rounding of ties away from zero, or of the sum before it is a float, is another function."""
    from cnncc import numerics

    def away(x: np.ndarray) -> np.ndarray:
        return np.trunc(x + np.copysign(0.5, x))

    epilogue = Epilogue(scale=np.float32([0.5]), clamp=(-64, 63))
    check(epilogue, 0)
    monkeypatch.setattr(numerics.np, "rint", away)
    with pytest.raises(AssertionError, match="channel 0, sum"):
        check(epilogue, 0)
