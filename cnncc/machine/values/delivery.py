"""The words of a load (DESC-2, DESC-3): a view of memory, a view of a padded copy, or words address by address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from cnncc.isa.table import Instruction
from cnncc.machine.values.addresses import Descriptor, Grid, Index, position
from cnncc.machine.values.arithmetic import Arithmetic
from cnncc.machine.values.memory import Memory, Place
from cnncc.machine.values.regfile import HalfFault, Words
from cnncc.machine.values.strided import EvenPositions, Strided, even

_MOST_COPIED = 8  # words of a copy for each delivered word; beyond, a list of addresses is quicker
_MOST_TURNS = 1 << 10  # turns of rings; beyond, a list of addresses is quicker


@dataclass(frozen=True)
class Delivered:
    """Words [images or 1, block…, *grid or 1s, *pattern], and places that cover all addresses read."""

    words: Words
    reads: list[Place]


def with_axes(words: Words, axes: int) -> Words:
    """Words [image, …] with `axes` axes; missing ones are inserted after the first."""
    return words.reshape(words.shape[0], *[1] * (axes - words.ndim), *words.shape[1:])


def deliver(
    memory: Memory,
    inst: Instruction,
    grid: Grid,
    loops: Sequence[Index],
    descriptor: Descriptor,
    arithmetic: Arithmetic,
) -> Delivered:
    """The words of a load, less their zero point. Raises HalfFault, OutOfRange."""
    where = even(inst, grid, loops, descriptor)
    evenly = None if where is None else _evenly(memory, where, descriptor, arithmetic)
    if evenly is not None:
        return evenly
    address, inside = position(inst, grid, loops).address(descriptor)
    words: Words = memory.read(address, inside)
    read = address if inside is None else address[inside]
    if inside is not None:
        words = np.where(inside, words, np.int16(arithmetic.padding(descriptor.fill)))
    # A `fill` has 16 bits. On an array of 8-bit operands it may not fit even without a zero point.
    if descriptor.zero or inside is not None:
        words = arithmetic.operands(words, descriptor.zero)
    return Delivered(np.broadcast_to(words, (*words.shape[:-4], *inst.extents)), [read])


def _evenly(memory: Memory, where: EvenPositions, descriptor: Descriptor, arithmetic: Arithmetic) -> Delivered | None:
    """The words at even positions; None if only a list of addresses can tell them, or whether they trap."""
    # To subtract a zero point takes a copy anyway. This one holds each word once, however many PEs get it.
    if descriptor.zero or not where.inside(descriptor) or (place := where.addresses(descriptor)) is None:
        return _copied(memory, where, descriptor, arithmetic)
    words = memory.view(place)
    return None if words is None else Delivered(words, [place])


def _copied(memory: Memory, where: EvenPositions, descriptor: Descriptor, arithmetic: Arithmetic) -> Delivered | None:
    """The words from a padded copy [images or 1, *linear axes, row, column] of all rows and columns reached.

    None if the copy would be too large, if a word has no view, or if a word does not fit (that none may ask for).
    """
    y, x = where.reach(1), where.reach(2)
    axes = [axis for axis, step in enumerate(where.steps) if step[0]]
    sizes = tuple(where.sizes[axis] for axis in axes)
    if prod(sizes) * len(y) * len(x) > _MOST_COPIED * prod(where.sizes):
        return None
    # n neighbouring rows lie in n / ring + 2 turns at most.
    turns = prod(len(reach) // ring + 2 for reach, ring in ((y, descriptor.ring_y), (x, descriptor.ring_x)) if ring)
    if turns > _MOST_TURNS:
        return None
    copy = np.full((memory.images, *sizes, len(y), len(x)), arithmetic.padding(descriptor.fill), np.int16)
    reads: list[Place] = []
    bounded = descriptor.height > 0
    for rows, row in _runs(y, descriptor.height if bounded else None, descriptor.ring_y):
        for cols, col in _runs(x, descriptor.width if bounded else None, descriptor.ring_x):
            start = where.start[0] + row * descriptor.pitch + col * descriptor.column
            steps = (*(where.steps[axis][0] for axis in axes), descriptor.pitch, descriptor.column)
            place = Strided(start, (*sizes, len(rows), len(cols)), steps)
            if (words := memory.view(place)) is None:
                return None
            copy[..., rows.start - y.start : rows.stop - y.start, cols.start - x.start : cols.stop - x.start] = words
            reads.append(place)
    try:
        less = arithmetic.operands(copy, descriptor.zero)
    except HalfFault:
        return None
    return Delivered(_again(less, where, axes, (y, x)), reads)


def _runs(reach: range, limit: int | None, ring: int) -> Iterator[tuple[range, int]]:
    """The rows (columns) of `reach` inside the limit, cut at each turn of the ring, and where each run starts in it."""
    start, stop = (reach.start, reach.stop) if limit is None else (max(reach.start, 0), min(reach.stop, limit))
    while start < stop:
        end = min(stop, (start // ring + 1) * ring) if ring else stop
        yield range(start, end), start % ring if ring else start
        start = end


def _again(copy: Words, where: EvenPositions, axes: list[int], reach: tuple[range, range]) -> Words:
    """The view [images, *where.sizes] of a copy that holds every word once."""
    pitch = copy.shape[-1]
    steps = [y * pitch + x for _, y, x in where.steps]
    for number, axis in enumerate(axes):
        steps[axis] += copy.strides[1 + number] // copy.itemsize
    start = (where.start[1] - reach[0].start) * pitch + where.start[2] - reach[1].start
    return Strided(start, where.sizes, tuple(steps)).of(copy.reshape(copy.shape[0], -1))
