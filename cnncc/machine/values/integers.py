"""The arithmetic of programs: integers of the array's widths. A value that does not fit is a trap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from cnncc.arch.operations import MacOperation
from cnncc.machine.mac_operations import keeps_greatest
from cnncc.machine.values.addresses import Ints
from cnncc.machine.values.arithmetic import Arithmetic, last
from cnncc.machine.values.output_units import OutputUnit
from cnncc.machine.values.products import bound, bounds, dot, greatest_words, sum_of_words, sums_of_products
from cnncc.machine.values.regfile import HalfFault, PsumHalf, Values, Words
from cnncc.machine.values.strided import Strided
from cnncc.numerics import integer_range


class Integers(Arithmetic):
    """Integers: the machine of docs/machine.md."""

    def operands(self, words: Words, zero: int) -> Words:
        low, high = integer_range(self.arch.operand_bits + 1)
        least, most = int(words.min()) - zero, int(words.max()) - zero
        if least < low or most > high:
            raise HalfFault(f"an operand less its zero point {zero} is outside {low}..{high}")
        return less_zero(words, zero)

    def start(self, operation: MacOperation) -> float:
        return float(integer_range(self.arch.psum_bits)[0]) if keeps_greatest(operation) else 0.0

    def add(
        self,
        operation: MacOperation,
        sums: PsumHalf,
        slots: Strided,
        x: Words,
        w: Words | None,
        reduced: Mapping[int, int],
    ) -> bool:
        if keeps_greatest(operation):
            sums.raise_to(slots, greatest_words(x, reduced))
            return True
        before = sums.half.data, sums.bound
        if w is None:
            added = sum_of_words(x, reduced)
            sums.add(slots, added, np.full((1,) * added.ndim, bound(x, w, reduced)))
        else:
            sums.add(slots, sums_of_products(x, w, reduced), bounds(x, w, reduced))
        if float(sums.bound.max()) <= integer_range(self.arch.psum_bits)[1]:
            return True
        sums.half.data, sums.bound = before
        return False

    def step(self, operation: MacOperation, sums: PsumHalf, slot: Strided, x: Values, w: Values | None) -> bool:
        if keeps_greatest(operation):
            sums.raise_to(slot, dot(x, w)[..., None])
            return True
        # No bound is kept here: `measure` takes it from the sums when all steps are done.
        sums.add(slot, dot(x, w)[..., None], np.zeros((1,) * x.ndim))
        low, high = integer_range(self.arch.psum_bits)
        total = sums.half.data[..., slot.start]
        return bool(total.min() >= low and total.max() <= high)

    def south(self, psums: Ints, axis: int) -> Ints:
        low, high = integer_range(self.arch.psum_bits)
        # This bound on all running sums mostly spares the cumulative sum.
        if max(-int(psums.min()), int(psums.max())) * psums.shape[axis] <= high:
            return psums.sum(axis=axis, keepdims=True)
        totals = np.cumsum(psums, axis=axis)
        if totals.min() < low or totals.max() > high:
            raise HalfFault(f"a psum leaves {self.arch.psum_bits} bits on its way south")
        return np.take(totals, [-1], axis=axis)

    def partial(self, before: Ints, psums: Ints, along: Sequence[int]) -> tuple[Ints, Ints]:
        _check_width(before, psums, tuple(along), self.arch.sum_bits)
        total = before + psums.sum(axis=tuple(along), keepdims=True)
        return total, total - last(psums, along)

    def sums_of_words(self, words: Ints) -> Ints:
        return integers_of_words(words, self.arch.operand_bits)

    def words_of_sums(self, sums: Ints) -> Ints:
        bits = self.arch.operand_bits
        parts = (sums[..., None] >> (bits * np.arange(self.arch.words_per_sum))) & ((1 << bits) - 1)
        # Words are signed.
        return parts - ((parts >> (bits - 1)) << bits)

    def results(self, unit: OutputUnit, sums: Ints, params: Ints | None, residual: Ints | None) -> Ints:
        bits = self.arch.operand_bits
        epilogue = unit.epilogue if params is None else unit.function(integers_of_words(params, bits))
        with np.errstate(over="ignore", invalid="ignore"):  # a scale may be any bits
            results = epilogue.apply(sums, slice(None), residual)
        # COMMIT-4: the bounds of a clamp have 32 bits, so what is clamped need not fit a word.
        low, high = integer_range(bits)
        if results.min() < low or results.max() > high:
            raise HalfFault(f"a result of {int(results.min())}..{int(results.max())} does not fit a word")
        return results


def less_zero(words: Words, zero: int) -> Words:
    """Words less their zero point, in as few bits as hold all."""
    if not zero:
        return words
    least, most = int(words.min()) - zero, int(words.max()) - zero
    fits = np.iinfo(np.int16).min <= least and most <= np.iinfo(np.int16).max
    return np.subtract(words, zero, dtype=np.int32).astype(np.int16 if fits else np.int32)


def integers_of_words(words: Ints, operand_bits: int) -> Ints:
    """Signed integers of up to 63 bits from their words [..., word], the least significant first (MEM-1)."""
    shift = np.asarray(operand_bits * np.arange(words.shape[-1]), np.int64)
    low = (words[..., :-1] & np.int64((1 << operand_bits) - 1)) << shift[:-1]
    return np.asarray(low.sum(axis=-1), np.int64) + (words[..., -1] << shift[-1])


def _check_width(before: Ints, values: Ints, along: tuple[int, ...], bits: int) -> None:
    """Check every running sum of `values` along the axes `along`, in order. Raises HalfFault beyond `bits`."""
    low, high = integer_range(bits)
    terms, most = prod(values.shape[axis] for axis in along), max(int(values.max()), -int(values.min()))
    if max(int(before.max()), -int(before.min())) + terms * most <= high:
        return
    running = np.cumsum(_in_order(values, along), axis=-1) + _in_order(before, along)
    if running.min() < low or running.max() > high:
        raise HalfFault(f"a partial sum of {int(running.min())}..{int(running.max())} leaves {bits} bits")


def _in_order(values: Ints, along: tuple[int, ...]) -> Ints:
    """Values with the axes `along` merged into one, the last."""
    moved = np.moveaxis(values, along, range(-len(along), 0))
    return moved.reshape(*moved.shape[: moved.ndim - len(along)], prod(values.shape[axis] for axis in along))
