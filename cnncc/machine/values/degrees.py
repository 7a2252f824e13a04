"""The degrees of the polynomials that `Residues` computes with: bounds, not below the true ones (docs/proof.md).

A word is a bound on its degree: 1 for what is drawn, 0 for padding. A sum has the greatest degree of its terms, a
product the sum of both. So a wrong program has a bound too, whatever it multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cnncc.arch.model import Arch
from cnncc.arch.operations import MacOperation
from cnncc.draws import clamps
from cnncc.machine.mac_operations import keeps_greatest
from cnncc.machine.values.addresses import Ints
from cnncc.machine.values.arithmetic import Arithmetic
from cnncc.machine.values.output_units import OutputUnit
from cnncc.machine.values.products import greatest_words
from cnncc.machine.values.regfile import HalfFault, PsumHalf, Values, Words
from cnncc.machine.values.strided import Strided

MOST = (1 << 15) - 1  # that a word holds


class Degrees(Arithmetic):
    """Degrees: addition is the maximum, multiplication is addition. greatest: of all results so far, at least 1."""

    def __init__(self, arch: Arch) -> None:
        super().__init__(arch)
        self.greatest = 1

    def padding(self, fill: int) -> int:
        return 0

    def operands(self, words: Words, zero: int) -> Words:
        return words

    def start(self, operation: MacOperation) -> float:
        return 0.0

    def add(
        self,
        operation: MacOperation,
        sums: PsumHalf,
        slots: Strided,
        x: Words,
        w: Words | None,
        reduced: Mapping[int, int],
    ) -> bool:
        # The greatest x and the greatest w of a psum may meet in no product: the bound is then not tight.
        degree = greatest_words(x, reduced).astype(np.float64)
        if w is not None:
            degree = degree + greatest_words(w, reduced)
        sums.raise_to(slots, degree + keeps_greatest(operation))
        return True

    def step(self, operation: MacOperation, sums: PsumHalf, slot: Strided, x: Values, w: Values | None) -> bool:
        degree = (x if w is None else x + w).max(axis=-1)
        sums.raise_to(slot, degree[..., None] + keeps_greatest(operation))
        return True

    def south(self, psums: Ints, axis: int) -> Ints:
        return psums.max(axis=axis, keepdims=True)

    def partial(self, before: Ints, psums: Ints, along: Sequence[int]) -> tuple[Ints, Ints]:
        degree = np.maximum(before, psums.max(axis=tuple(along), keepdims=True))
        return degree, degree

    def sums_of_words(self, words: Ints) -> Ints:
        return words.max(axis=-1)

    def words_of_sums(self, sums: Ints) -> Ints:
        return np.repeat(_checked(sums)[..., None], self.arch.words_per_sum, axis=-1)

    def results(self, unit: OutputUnit, sums: Ints, params: Ints | None, residual: Ints | None) -> Ints:
        epilogue = unit.epilogue
        of_params = np.zeros((1,) * (sums.ndim + 1), np.int64) if params is None else self.sums_of_words(params)
        degree = np.maximum(sums, of_params[..., 0]) if unit.bias else sums
        if unit.scale:
            # A slope other than 1 is drawn, so it is one more factor.
            degree = degree + of_params[..., -1] + (epilogue.slope != 1)
        degree = degree + clamps("clamp", epilogue.clamp) + (epilogue.table is not None)  # a factor each
        if epilogue.factors is not None:
            assert residual is not None
            # Of a product, one operand is the residual less a number that is drawn. Either way there are two factors
            # more: the first number of `factors`, and that of the second clamp.
            degree = (degree + np.maximum(residual, 1) if epilogue.multiply else np.maximum(degree, residual)) + 2
        self.greatest = max(self.greatest, int(degree.max()))
        return _checked(degree)


def _checked(degrees: Ints) -> Ints:
    if degrees.max() > MOST:
        raise HalfFault(f"a degree of {int(degrees.max())} is more than {MOST}: no proof by residues is possible")
    return degrees
