"""Sums on their way to the output units: down a column of a set (rule C6), and in parts in the GLB (rule C5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cnncc.arch.model import Arch
from cnncc.isa.fields import Term
from cnncc.isa.table import Instruction
from cnncc.machine.durations import EXTENTS
from cnncc.machine.memory import Memory
from cnncc.machine.outputs import params_of_words, place_of
from cnncc.machine.positions import PE_AXES, Descriptor, Grid, Index, Ints
from cnncc.machine.regfile import Fault
from cnncc.machine.strided import Strided
from cnncc.numerics import integer_range

ROWS = 1 - PE_AXES - len(EXTENTS)  # of [image, block…, *grid, *pattern], the axis of rows within a set


def reduced(inst: Instruction, grid: Grid, sums: Ints, arch: Arch) -> tuple[Grid, Ints]:
    """The psums [image, block…, *grid, *pattern] of a set's rows added from north to south, and their PEs (C6).

    Raises Fault where there are no links, sets are not whole, and where a sum leaves the width of a psum on its way.
    """
    if not arch.links.south:
        raise Fault("this array has no links for psums to the south")
    if inst.text("source") == "glb":
        raise Fault("streamed words come from no rows that could be added up")
    if grid.rows != grid.set_rows or inst.term("row").step:
        raise Fault("sets whose rows are added up are whole, and their results do not depend on the row")
    shape = (*sums.shape[: ROWS - 1], *grid.shape, *sums.shape[-len(EXTENTS) :])
    totals = np.cumsum(np.broadcast_to(sums, shape), axis=ROWS)
    low, high = integer_range(arch.psum_bits)
    if totals.min() < low or totals.max() > high:
        raise Fault(f"a psum leaves {arch.psum_bits} bits on its way south")
    south = replace(grid, rows=1, set_rows=1)
    return south, np.take(totals, [-1], axis=ROWS)


def accumulated(
    inst: Instruction,
    grid: Grid,
    loops: Sequence[Index],
    pattern: Sequence[tuple[int, Term]],
    sums: Ints,
    glb: Memory,
    descriptor: Descriptor,
    arch: Arch,
    ends: tuple[bool, bool],
) -> Ints:
    """`sums` plus what the GLB has of them, unless they are fresh; unless they are final they go back there (C5).

    ends: whether fresh, whether final. Raises Fault for a place outside the tensor, and for a sum that leaves 32 bits.
    """
    fresh, final = ends
    place = place_of(inst, grid, loops, pattern, replace(descriptor, base=0), "partial sums lie outside their tensor")
    listed = place.listed() if isinstance(place, Strided) else place
    full = np.broadcast_shapes(listed.shape, sums.shape[1:])
    words = arch.words_per_param
    at = descriptor.base + words * np.broadcast_to(listed, full)[..., None] + np.arange(words)
    if np.unique(at).size < at.size:
        raise Fault("two partial sums lie in one place")
    sums = np.broadcast_to(sums, (sums.shape[0], *full))
    if not fresh:
        sums = sums + params_of_words(glb.read(at).astype(np.int64), arch.operand_bits)
    low, high = integer_range(32)
    if sums.min() < low or sums.max() > high:
        raise Fault(f"a partial sum of {int(sums.min())}..{int(sums.max())} leaves 32 bits")
    if not final:
        glb.write(at, _words(sums, arch.operand_bits))
    return sums


def _words(sums: Ints, bits: int) -> Ints:
    """The words [..., word] of signed 32-bit quantities, the least significant first (W1)."""
    parts = (sums[..., None] >> (bits * np.arange(32 // bits))) & ((1 << bits) - 1)
    return parts - ((parts >> (bits - 1)) << bits)
