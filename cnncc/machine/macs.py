"""The arithmetic of a macro-instruction (rules A1, A2): three counters over slots of three register files."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from string import ascii_letters

import numpy as np

from cnncc.arch.model import Arch
from cnncc.isa.table import Instruction
from cnncc.machine.blocks import OrderMatters
from cnncc.machine.positions import Ints
from cnncc.machine.regfile import Fault, Half, Sums, Values, multiply
from cnncc.numerics import integer_range

MOST_STEPS = 1 << 24
COUNTERS = ("pixels", "taps", "step_range")  # z, j, i


def accumulate(
    inst: Instruction, sums: Sums, ifmap: Half, weight: Half | None, reduced: Mapping[int, int], arch: Arch
) -> None:
    """Add (or take the greatest of) all products (or words) of a macro-instruction into its psums.

    reduced: array axes of block loops that are summed over, with their iterations. Raises Fault for a slot that is
    empty or outside, and for a sum that leaves the psum's width at any step (A2); OrderMatters where the block loops
    must run one by one to tell.
    """
    if (pixels := inst.number("pixels")) > arch.pe.max_pixels:
        raise Fault(f"{pixels} pixels are more than max_pixels = {arch.pe.max_pixels}")
    if prod(inst.number(counter) for counter in COUNTERS) > MOST_STEPS:
        raise Fault(f"pixels * taps * step_range is more than the {MOST_STEPS} of this interpreter")
    psum = _slots(inst, "psum")
    if int(psum.min()) < 0 or int(psum.max()) >= arch.pe.psum_words:
        raise Fault(f"psum slots {psum.min()}..{psum.max()} are not in the {arch.pe.psum_words} of a half")
    sums.grow(int(psum.max()) + 1)
    x = _operand(inst, ifmap, "ifmap")
    w = None if weight is None else _operand(inst, weight, "weight")
    if not _at_once(inst, psum, sums, x, w, reduced, arch):
        if reduced:
            raise OrderMatters
        _one_by_one(inst, psum, sums, x, w, arch)


def check_arrival(inst: Instruction, any_taker: bool) -> None:
    """The neighbour's words arrive while the macro-instruction runs, and before they are used (A3). Raises Fault."""
    reuse, steps = inst.number("data_reuse"), inst.number("pixels") * inst.number("taps")
    if reuse > steps:
        raise Fault(f"data_reuse {reuse} is more than the pixel steps")
    slots = _slots(inst, "ifmap").reshape(steps, -1)
    word = slots - inst.number("n2n_slot")  # word k moves in pixel step k
    early = (word >= 0) & (word < reuse) & (word >= np.arange(steps)[:, None])
    if any_taker and early.any():
        raise Fault(f"ifmap slot {int(slots[early][0])} is used before its word arrives from the neighbour")


def _slots(inst: Instruction, name: str) -> Ints:
    """Slots [pixel, tap, channel] of an operand (A1)."""
    z, j, i = np.ix_(*(np.arange(inst.number(counter)) for counter in COUNTERS))
    steps = [inst.number(f"{name}_{counter}") for counter in "zji"]
    return np.asarray(inst.number(f"{name}_slot") + z * steps[0] + j * steps[1] + i * steps[2])


def _operand(inst: Instruction, half: Half, name: str) -> Values:
    """[image, block…, *grid, pixel, tap, channel], of size 1 along pixels or channels that it does not step by."""
    z, i = (slice(None) if inst.number(f"{name}_{counter}") else slice(0, 1) for counter in "zi")
    return half.read(_slots(inst, name)[z, :, i], name)


def _at_once(
    inst: Instruction, psum: Ints, sums: Sums, x: Values, w: Values | None, reduced: Mapping[int, int], arch: Arch
) -> bool:
    """Do all steps in one array expression; False, and nothing done, where that cannot be or might hide an overflow."""
    own = psum[:, 0]
    if inst.number("psum_j") or np.unique(own).size < own.size:
        return False  # taps, pixels or channels share a psum
    if inst.text("op") == "max":
        taken = x.max(axis=-2).max(axis=tuple(reduced), keepdims=True)
        sums.raise_to(own, np.broadcast_to(taken, (*taken.shape[:-2], *own.shape)))
        return True
    added, bound = _products(x, w, reduced) if w is not None else _words(x, reduced)
    before = sums.half.data, sums.bound
    sums.add(own, np.broadcast_to(added, (*added.shape[:-2], *own.shape)), bound)
    if float(sums.bound.max()) <= integer_range(arch.psum_bits)[1]:
        return True
    sums.half.data, sums.bound = before
    return False


def _products(x: Values, w: Values, reduced: Mapping[int, int]) -> tuple[Values, Values]:
    """The sums of products, and a bound on the magnitude of any part of them: max |x| * Σ |w|."""
    axes = tuple(reduced)
    neither = prod(n for axis, n in reduced.items() if x.shape[axis] == w.shape[axis] == 1)
    if x.shape[-1] == w.shape[-3] == 1:
        added = multiply(x[..., 0], w[..., 0, :, :], frozenset(axes)) * neither
    else:
        added = _elementwise(x, w, frozenset(axes)) * neither
    repeats = prod(n for axis, n in reduced.items() if w.shape[axis] == 1)
    magnitude: Values = np.abs(w).sum(axis=-2).sum(axis=axes, keepdims=True)
    return added, np.asarray(magnitude * (float(np.abs(x).max()) * repeats))


def _elementwise(x: Values, w: Values, reduced: frozenset[int]) -> Values:
    """Σ over the taps and the `reduced` axes of x * w, those axes (but not that of the taps) left with size 1."""
    axes, taps = ascii_letters[: x.ndim], x.ndim - 2
    kept = "".join(letter for axis, letter in enumerate(axes) if axis != taps and axis not in reduced)
    added: Values = np.einsum(f"{axes},{axes}->{kept}", x, w)
    return np.expand_dims(added, tuple(sorted(reduced)))


def _words(x: Values, reduced: Mapping[int, int]) -> tuple[Values, Values]:
    """The sums of words, and a bound on the magnitude of any part of them."""
    repeats = prod(n for axis, n in reduced.items() if x.shape[axis] == 1)
    added: Values = x.sum(axis=-2).sum(axis=tuple(reduced), keepdims=True) * repeats
    terms = prod(reduced.values()) * x.shape[-2]
    return added, np.full((1,) * added.ndim, float(np.abs(x).max()) * terms)


def _one_by_one(inst: Instruction, psum: Ints, sums: Sums, x: Values, w: Values | None, arch: Arch) -> None:
    """The steps in the order of the counters, each sum checked against the width of a psum (A2)."""
    low, high = integer_range(arch.psum_bits)
    for z, j, i in np.ndindex(psum.shape):
        word = _at(x, z, j, i) if w is None else _at(x, z, j, i) * _at(w, z, j, i)
        slot = psum[z, j, i].reshape(1)
        if inst.text("op") == "max":
            sums.raise_to(slot, word[..., None])
            continue
        sums.add(slot, word[..., None], np.zeros((1,) * (word.ndim + 1)))
        total = sums.half.data[..., int(slot[0])]
        if total.min() < low or total.max() > high:
            raise Fault(f"psum {int(slot[0])} leaves {arch.psum_bits} bits at pixel {z}, tap {j}, channel {i}")
    sums.bound = np.abs(sums.half.data).max(axis=0, keepdims=True)


def _at(values: Values, z: int, j: int, i: int) -> Values:
    return values[..., min(z, values.shape[-3] - 1), j, min(i, values.shape[-1] - 1)]
