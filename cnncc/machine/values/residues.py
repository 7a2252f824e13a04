"""The arithmetic of proofs: residues modulo a prime, several draws at once along the axis of images (docs/proof.md).

Every operation has an image that is a polynomial of what was drawn:

| operation | image |
|---|---|
| sum, product | the same, modulo the prime |
| maximum of x_1 … x_n | MAXIMUM_START + Σ factor * x_i |
| scale, slope, factors of a residual | products with the residues that stand for them; nothing is rounded |
| clamp to lo … hi | factor * v + addend, both drawn for this pair of bounds; 1 and 0 for all of 32 bits |
| words of a partial sum s | c_i * s, with Σ c_i * 2^(i * operand_bits) = 1 |

Nothing overflows. Psums are exact float64 up to 2^52, and become residues again when they are committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cnncc.arch.model import Arch
from cnncc.arch.operations import MacOperation
from cnncc.draws import MAXIMUM_START, PRIME, Draws
from cnncc.machine.mac_operations import keeps_greatest
from cnncc.machine.values.addresses import Ints
from cnncc.machine.values.arithmetic import Arithmetic, last
from cnncc.machine.values.integers import less_zero
from cnncc.machine.values.output_units import OutputUnit
from cnncc.machine.values.products import bound, dot, sum_of_words, sums_of_products
from cnncc.machine.values.regfile import PsumHalf, Values, Words
from cnncc.machine.values.strided import Strided

EXACT = float(1 << 52)  # of integers in float64, and a bit less


class Residues(Arithmetic):
    """Residues of least magnitude; `draws` stand for the constants of instructions."""

    def __init__(self, arch: Arch, draws: Draws) -> None:
        super().__init__(arch)
        self.draws = draws
        self._weights = np.array([pow(2, arch.operand_bits * i, PRIME) for i in range(64)], np.int64)
        self._parts = _parts_of_one(self._weights[: arch.words_per_sum])

    def operands(self, words: Words, zero: int) -> Words:
        return less_zero(words, zero)

    def start(self, operation: MacOperation) -> float:
        return float(MAXIMUM_START) if keeps_greatest(operation) else 0.0

    def add(
        self,
        operation: MacOperation,
        sums: PsumHalf,
        slots: Strided,
        x: Words,
        w: Words | None,
        reduced: Mapping[int, int],
    ) -> bool:
        if (most := bound(x, w, reduced)) > EXACT:
            return False
        added = sum_of_words(x, reduced) if w is None else sums_of_products(x, w, reduced)
        if keeps_greatest(operation):
            # A residue is at most PRIME / 2 in magnitude and the factor below PRIME, so no product reaches PRIME².
            added, most = residues(added) * _by_image(self.draws.maximum(), added.ndim), float(PRIME * PRIME)
        # Sums become residues again only where they might leave the exact integers.
        if float(sums.bound.max()) + most > EXACT:
            sums.half.data = residues(sums.half.data)
            sums.measure()
        sums.add(slots, added, np.full((1,) * added.ndim, most))
        return True

    def step(self, operation: MacOperation, sums: PsumHalf, slot: Strided, x: Values, w: Values | None) -> bool:
        added = residues(dot(x, w))
        if keeps_greatest(operation):
            added = residues(added * _by_image(self.draws.maximum(), added.ndim))
        sums.add(slot, added[..., None], np.zeros((1,) * x.ndim))
        sums.half.data = residues(sums.half.data)
        return True

    def psums(self, values: Values) -> Ints:
        return residues(values).astype(np.int64)

    def south(self, psums: Ints, axis: int) -> Ints:
        return _integers(psums.sum(axis=axis, keepdims=True))

    def partial(self, before: Ints, psums: Ints, along: Sequence[int]) -> tuple[Ints, Ints]:
        total = before + psums.sum(axis=tuple(along), keepdims=True)
        return _integers(total), _integers(total - last(psums, along))

    def sums_of_words(self, words: Ints) -> Ints:
        return _integers(words @ self._weights[: words.shape[-1]])

    def words_of_sums(self, sums: Ints) -> Ints:
        return _integers(sums[..., None] * self._parts)

    def results(self, unit: OutputUnit, sums: Ints, params: Ints | None, residual: Ints | None) -> Ints:
        epilogue, draws = unit.epilogue, self.draws
        numbers = np.zeros((1,) * (sums.ndim + 1), np.int64) if params is None else self.sums_of_words(params)
        v = sums + numbers[..., 0] if unit.bias else sums
        if unit.scale:
            v = _integers(v * numbers[..., -1])
            if epilogue.slope != 1:
                v = _integers(v * _by_image(draws.real("slope", epilogue.slope), v.ndim))
            v = v + epilogue.zero
        v = self._clamped(v, "clamp", epilogue.clamp)
        if epilogue.table is not None:
            v = _scaled(v, draws.table(epilogue.table.entries, epilogue.table.shift))
        if epilogue.factors is None:
            return v
        assert residual is not None
        names = ("factor_a", "factor_b", "fixed")
        a, b, fixed = (
            _by_image(draws.real(name, real), v.ndim) for name, real in zip(names, epilogue.factors, strict=True)
        )
        combined = _integers(v * _integers(residual - b)) * a if epilogue.multiply else a * v + b * residual
        return self._clamped(combined + fixed, "add_clamp", epilogue.add_clamp)

    def _clamped(self, v: Ints, stage: str, bounds: tuple[int, int]) -> Ints:
        return _scaled(v, self.draws.clamp(stage, bounds))


def _scaled(v: Ints, drawn: tuple[Ints, Ints]) -> Ints:
    """v times a factor [draw], plus an addend [draw]."""
    factor, addend = (_by_image(each, v.ndim) for each in drawn)
    return _integers(_integers(v) * factor + addend)


def _by_image(drawn: Ints, axes: int) -> Ints:
    """What is drawn along the first of `axes` axes."""
    return drawn.reshape(-1, *[1] * (axes - 1))


def residues(values: npt.NDArray[np.float64]) -> Values:
    """The residues of least magnitude of integers below 2^52. Fewer passes than `np.remainder`."""
    return values - PRIME * np.rint(values * (1.0 / PRIME))


def _integers(values: Ints) -> Ints:
    return residues(values.astype(np.float64)).astype(np.int64)


def _parts_of_one(weights: Ints) -> Ints:
    """Residues c_i, none of them 0, with Σ c_i * weights_i = 1."""
    rest = np.arange(2, 1 + len(weights), dtype=np.int64)
    parts = np.concatenate([[(1 - int((rest * weights[1:]).sum())) % PRIME], rest])
    assert parts.all() and (parts @ weights) % PRIME == 1
    return parts
