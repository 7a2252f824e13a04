"""Sums on their way to the output units, for the evaluator of `array`: down columns (COMMIT-6), in parts (COMMIT-5).

The evaluators of `cnn` and `nest` take the range of sums from here, and nothing else.
"""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation

from cnncc.arch.model import Arch
from cnncc.dialects import array as A
from cnncc.errors import Refusal
from cnncc.eval._places import TensorPart, Words
from cnncc.numerics import Ints, integer_range

DEFAULT_PSUM_BITS = 32  # of hand-written IR without `cnn.psum_bits`
MOST_PSUM_BITS = 63  # that evaluators add up: a sum and its bias fit 64 bits


def psum_range(module: Operation) -> tuple[int, int]:
    """The least and the greatest sum, by the attribute `cnn.psum_bits` of the module. Raises Refusal."""
    attribute = module.attributes.get("cnn.psum_bits")
    bits = attribute.value.data if isinstance(attribute, IntegerAttr) else DEFAULT_PSUM_BITS
    if not 2 <= bits <= MOST_PSUM_BITS:
        raise Refusal(f"cnn.psum_bits = {bits} is outside 2 to {MOST_PSUM_BITS}")
    return integer_range(bits)


def added_south(place: A.Place, sums: Ints, arch: Arch) -> Ints:
    """The sums [images, rows, cols, …] of each set's rows, added one after the other from the north; one row a set."""
    if place.rows % min(place.set_rows, place.rows) or place.row.step:
        raise Refusal("sets whose rows are added up are whole, and their results do not depend on the row")
    if not arch.links.south:
        raise Refusal(f"{arch.name} has no links for psums to the south")
    rows = min(place.set_rows, place.rows)
    low, high = integer_range(arch.psum_bits)
    totals = sums[:, ::rows].copy()
    for row in range(1, rows):
        totals += sums[:, row::rows]
        if totals.min() < low or totals.max() > high:
            raise Refusal(
                f"a psum of {totals.min()}..{totals.max()} does not fit {arch.psum_bits} bits on its way south"
            )
    return totals


def south_rows(place: A.Place) -> A.Place:
    """The PEs that results come from: one row of each set."""
    return A.Place(
        place.rows // min(place.set_rows, place.rows), place.cols, place.row0, place.col0, 1, place.set_cols,
        place.row, place.row_set, place.col, place.col_set,
    )  # fmt: skip


def accumulated(words: Words | TensorPart, address: Ints, sums: Ints, ends: tuple[bool, bool], arch: Arch) -> Ints:
    """The sums plus the partial sums of a tensor at `address`; the total is kept there.

    address: in partial sums, not words. ends: (fresh, final). Fresh sums read nothing there, final ones keep nothing.
    """
    fresh, final = ends
    if np.unique(address).size < address.size:
        raise Refusal("two partial sums lie in one place")
    if not fresh:
        sums = sums + _read(words, address, arch)
    low, high = integer_range(arch.sum_bits)
    if sums.min() < low or sums.max() > high:
        raise Refusal(f"a partial sum of {sums.min()}..{sums.max()} does not fit {arch.sum_bits} bits")
    if not final:
        _keep(words, address, sums, arch)
    return sums


def _read(words: Words | TensorPart, address: Ints, arch: Arch) -> Ints:
    """The partial sums from their words, the least significant one first; the last one has the sign (MEM-1)."""
    total, bits, last = np.zeros((), np.int64), arch.operand_bits, arch.words_per_sum - 1
    for part in range(last + 1):
        word = words.read(address * (last + 1) + part)
        total = total + ((word if part == last else word % (1 << bits)) << bits * part)
    return total


def _keep(words: Words | TensorPart, address: Ints, sums: Ints, arch: Arch) -> None:
    bits = arch.operand_bits
    for part in range(arch.words_per_sum):
        word = (sums >> bits * part) % (1 << bits)
        words.write(address * arch.words_per_sum + part, np.where(word >= 1 << bits - 1, word - (1 << bits), word))


def check_width(values: Ints, bits: int) -> None:
    """Raises Refusal for a value outside an integer of `bits`."""
    low, high = integer_range(bits)
    if values.size and (values.min() < low or values.max() > high):
        raise Refusal(f"values {values.min()}..{values.max()} do not fit {bits} bits")
