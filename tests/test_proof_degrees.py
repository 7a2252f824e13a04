"""Degrees of a proof's polynomials, by finite differences; and residues of an operation of each kind, by hand.

Along a line, draw t is base + t * direction in everything that is drawn. A polynomial of degree d of these is one of
degree d in t: its differences of order d + 1 are 0 everywhere, those of order d are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from pathlib import Path

import numpy as np
import pytest
from cli_cases import SAMPLES, save
from test_products import network as network_of_products
from test_proof import claim_after
from test_proof import network as network

from cnncc.arch.model import load_arch
from cnncc.binary.run import outputs_of
from cnncc.draws import PRIME, Draws, Residues
from cnncc.driver.prove import claim_of_model
from cnncc.driver.sources import CompileOptions
from cnncc.eval.cnn_residues import evaluate
from cnncc.machine.values import residues
from cnncc.machine.values.degrees import Degrees
from cnncc.machine.values.regfile import HalfFault
from cnncc.numerics import Ints
from cnncc.proof.claim import Claim
from cnncc.proof.program_run import ProgramRun, degree_run
from cnncc.proof.weight_words import WeightWords

pytestmark = pytest.mark.usefixtures("short_searches")


@dataclass(frozen=True)
class Line(Draws):
    """Draws on a line: number t is base + t * direction."""

    def words(self, name: str, *shape: int) -> Residues:
        base, direction = (Draws(seed, 1).words(name, *shape).astype(np.int64) for seed in (1, 2))
        steps = np.arange(self.count).reshape(-1, *[1] * len(shape))
        return ((base + steps * direction + PRIME // 2) % PRIME - PRIME // 2).astype(np.int16)

    def _constant(self, *name: object) -> Ints:
        base, direction = (Draws(seed, 1)._constant(*name) for seed in (1, 2))
        return (base + np.arange(self.count) * direction) % PRIME


def differences(values: np.ndarray, order: int) -> np.ndarray:
    """Differences of an order along the first axis, modulo the prime."""
    signs = [(-1) ** (order - i) * comb(order, i) for i in range(order + 1)]
    exact = sum(sign * values[i].astype(object) for i, sign in enumerate(signs))
    return np.asarray(exact % PRIME, np.int64)


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product of two convolutions, one of them of the other."""
    return save(network_of_products(["a", "b"]), tmp_path_factory.mktemp("products") / "net.onnx")


@pytest.fixture(scope="module")
def with_tables(network: Path) -> Claim:
    """Tables behind a clamp, alone and before a residual."""
    return claim_after(network, lambda module: None, tables=True)


def claim_of(given: Path | Claim) -> Claim:
    return given if isinstance(given, Claim) else claim_of_model(given, CompileOptions())


@pytest.mark.parametrize("name", ["network", "products", "with_tables"])
def test_degrees_of_a_network(name: str, request: pytest.FixtureRequest) -> None:
    """All sums of this network have terms of the greatest degree, so that the bounds are tight."""
    claim = claim_of(request.getfixturevalue(name))
    line = Line(0, 24)
    for key, known in evaluate(claim.module, claim.store, 16, line).values.items():
        assert known.degree < line.count - 1, key
        assert not differences(known.residues, known.degree + 1).any(), key
        assert differences(known.residues, known.degree).any(), key


def test_degrees_behind_fresh_words(products: Path) -> None:
    """The first convolution has degree 4: image, weights, scale, clamp. Its fresh words have degree 1."""
    claim, line = claim_of_model(products, CompileOptions()), Line(0, 24)
    whole = evaluate(claim.module, claim.store, 16, line)
    first, *later = whole.values
    fresh = evaluate(claim.module, claim.store, 16, line, fresh=[first])
    assert [*fresh.fresh] == [first] and fresh.values[first].degree == 4
    assert (fresh.values[first].residues == whole.values[first].residues).all()
    for key in later:
        assert 1 < fresh.values[key].degree < whole.values[key].degree, key
        assert not differences(fresh.values[key].residues, fresh.values[key].degree + 1).any(), key
        assert differences(fresh.values[key].residues, fresh.values[key].degree).any(), key


@pytest.mark.parametrize("name", ["network", "products", "with_tables", "lenet_qdq_s8_pc"])
def test_degrees_of_a_program(name: str, request: pytest.FixtureRequest) -> None:
    if name.startswith("lenet"):
        claim = claim_of_model(SAMPLES / "models" / f"{name}.onnx", CompileOptions(batch=1))
    else:
        claim = claim_of(request.getfixturevalue(name))
    degrees = Degrees(claim.binary.arch)
    degree_run(claim.binary, degrees).run()
    line = Line(0, degrees.greatest + 2)
    run = on_line(claim, line)
    run.run()
    (tensor,) = outputs_of(claim.binary)
    words = run.integers(tensor).reshape(line.count, -1)
    assert not differences(words, degrees.greatest + 1).any()
    assert differences(words, degrees.greatest).any()


def on_line(claim: Claim, line: Draws) -> ProgramRun:
    """The program on a line."""
    weights, arithmetic = WeightWords(claim), residues.Residues(claim.binary.arch, line)
    shapes = {tensor.name: tensor.shape for tensor in claim.binary.tensors}
    return ProgramRun(
        claim.binary, line.count, arithmetic, lambda name: weights.drawn(name, line),
        lambda name: line.words(f"input {name}", *shapes[name]), lambda number, run: None,
    )  # fmt: skip


def test_words_of_partial_sums() -> None:
    """Each word matters, whatever the number of words; all together they are the sum."""
    for bits, words in ((8, 4), (8, 5), (16, 2), (16, 3)):
        weights = np.array([pow(2, bits * i, PRIME) for i in range(words)])
        parts = residues._parts_of_one(weights)
        assert int((parts * weights).sum()) % PRIME == 1
        assert all(part % PRIME for part in parts)


def test_residues_are_residues() -> None:
    values = np.array([0, 1, PRIME // 2, PRIME // 2 + 1, PRIME - 1, PRIME, -PRIME, -1, 1 << 45, -(1 << 45) + 3], float)
    got = residues.residues(values)
    assert np.abs(got).max() <= PRIME // 2 + 1
    assert [int(g - v) % PRIME for g, v in zip(got, values, strict=True)] == [0] * len(values)


def test_a_degree_that_no_word_holds() -> None:
    degrees = Degrees(load_arch("spatial-8x8"))
    assert degrees.words_of_sums(np.array([32767])).tolist() == [[32767, 32767]]
    with pytest.raises(HalfFault, match="a degree of 32768 is more than 32767"):
        degrees.words_of_sums(np.array([32768]))
