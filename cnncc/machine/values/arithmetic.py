"""The arithmetic of the machine: what its words and psums are. Instructions, memories and traffic know nothing of it.

| arithmetic | words and psums are | what it is for |
|---|---|---|
| `Integers` | integers of `operand_bits`, `psum_bits`; what does not fit is a trap | the values of a program |
| `Residues` | residues modulo a prime, which stand for polynomials | proofs (docs/proof.md) |
| `Degrees` | bounds of the degrees of these polynomials | the error probability of a proof |

Each rule of a number is a method. Arrays have the axes that their caller says; the first one is always the images'.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from cnncc.arch.model import Arch
from cnncc.arch.operations import MacOperation
from cnncc.machine.values.addresses import Ints
from cnncc.machine.values.output_units import OutputUnit
from cnncc.machine.values.regfile import PsumHalf, Values, Words
from cnncc.machine.values.strided import Strided


def last(values: Ints, axes: Sequence[int]) -> Ints:
    """The last along `axes`, which keep size 1."""
    return values[tuple(slice(-1, None) if axis in axes else slice(None) for axis in range(values.ndim))]


class Arithmetic(ABC):
    """The rules of numbers of an array."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch

    # -- operands (DESC-3) -----------------------------------------------------------------------------------------

    def padding(self, fill: int) -> int:
        """The word that stands outside an image."""
        return fill

    @abstractmethod
    def operands(self, words: Words, zero: int) -> Words:
        """Words less their zero point. Raises HalfFault for a value that does not fit an operand."""

    # -- macro-instructions (MAC-1, MAC-2) -------------------------------------------------------------------------

    @abstractmethod
    def start(self, operation: MacOperation) -> float:
        """A psum after `clear` (TOKEN-3)."""

    @abstractmethod
    def add(
        self,
        operation: MacOperation,
        sums: PsumHalf,
        slots: Strided,
        x: Words,
        w: Words | None,
        reduced: Mapping[int, int],
    ) -> bool:
        """Do all steps at once. False, with nothing done, if only single steps can show whether a psum overflows.

        - slots: the psums [pixel, channel], each named once; [pixel, channel, lane] with lanes among the channels of
          x and w (MAC-7)
        - x, w: the operands [image, block…, *grid, pixel, tap, lane, channel]
        - reduced: iterations of the block loops to be summed over, by array axis
        """

    @abstractmethod
    def step(self, operation: MacOperation, sums: PsumHalf, slot: Strided, x: Values, w: Values | None) -> bool:
        """Do one step on one psum; x, w: [image, block…, *grid, lane]. False if the psum leaves its width."""

    # -- sums on their way to the output units (COMMIT-1, COMMIT-5, COMMIT-6) --------------------------------------

    def psums(self, values: Values) -> Ints:
        """Psums as a commit takes them from their register file."""
        return values.astype(np.int64)

    @abstractmethod
    def south(self, psums: Ints, axis: int) -> Ints:
        """Psums added up along the axis of rows, which keeps size 1. Raises HalfFault for one that does not fit."""

    @abstractmethod
    def partial(self, before: Ints, psums: Ints, along: Sequence[int]) -> tuple[Ints, Ints]:
        """The partial sums with `psums` added along some axes, which keep size 1; and those before the last of these.

        Raises: HalfFault, for a running sum that leaves `sum_bits`.
        """

    @abstractmethod
    def sums_of_words(self, words: Ints) -> Ints:
        """Partial sums from their words [..., word] (MEM-1)."""

    @abstractmethod
    def words_of_sums(self, sums: Ints) -> Ints:
        """The words [..., word] of partial sums (MEM-1)."""

    # -- output units (COMMIT-2) -----------------------------------------------------------------------------------

    @abstractmethod
    def results(self, unit: OutputUnit, sums: Ints, params: Ints | None, residual: Ints | None) -> Ints:
        """What the output units make of sums. Raises HalfFault for a result that does not fit a word.

        params: the words [..., parameter, word] of each sum's parameters
        """
