"""A commit: sums through the output units to the GLB (COMMIT-1 to COMMIT-5), for all iterations of a block at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cnncc.isa.table import Instruction
from cnncc.machine.values.addresses import PE_AXES, Descriptor, Grid, Index, Ints
from cnncc.machine.values.arithmetic import Arithmetic, last
from cnncc.machine.values.delivery import Delivered, with_axes
from cnncc.machine.values.loop_blocks import LoopBlock, find
from cnncc.machine.values.memory import Memory, Place, shape_of
from cnncc.machine.values.output_units import (
    OutputUnit,
    distinct_place,
    place_of,
    place_of_shape,
)
from cnncc.machine.values.partial_sums import SummedAxes, moves, padded, words_at


@dataclass(frozen=True)
class CommitRun:
    """A commit in execution: the instruction, its PEs, the loops' indices and the machine's parts that it uses.

    Sums and results are [image, block…, *grid, *pattern].
    """

    arithmetic: Arithmetic
    glb: Memory
    descriptors: Sequence[Descriptor]
    unit: OutputUnit
    block: LoopBlock | None
    inst: Instruction
    grid: Grid
    loops: Sequence[Index]

    def _axes(self, after: int = 0) -> int:
        """The number of axes of sums, plus `after`."""
        return 1 + (self.block.axes if self.block else 0) + PE_AXES + len(self.inst.extents) + after

    def operand(self, name: str) -> Ints:
        """The words at the results' positions of the descriptor field `name`. Raises HalfFault outside its bounds."""

        def read(memory: Memory, loops: Sequence[Index], descriptor: Descriptor) -> Delivered:
            outside = f"{name} words lie outside their tensor"
            place = place_of(self.inst, self.grid, loops, descriptor, outside)
            return Delivered(with_axes(memory.read(place), self._axes()), [place])

        descriptor = self.descriptors[self.inst.number(name)]
        return find(self.block, read, self.glb, self.loops, descriptor).astype(np.int64)

    def with_partial_sums(
        self, sums: Ints, ends: tuple[frozenset[int] | None, frozenset[int] | None]
    ) -> tuple[Ints, SummedAxes]:
        """total = sums + (0 if fresh else the partial sums in the GLB); unless final, it is kept there (COMMIT-5).

        ends: the axes that `fresh` and `final` ask for; None for a condition that does not hold

        Returns the totals, with summed axes of size 1.

        Raises:
        - HalfFault, for a place outside the tensor, two sums in one place, or a sum that leaves `sum_bits`.
        - OrderMatters, if the iterations must run one by one.
        """
        counts = {axis: self.block.counts[axis] for axis in self.block.scope} if self.block else {}
        descriptor, own = self.descriptors[self.inst.number("sums")], (*self.grid.shape, *self.inst.extents)
        # COMMIT-5: p is the address less the base. `words_at` multiplies p by the words of a partial sum and adds the
        # base.
        side, outside = replace(descriptor, base=0), "partial sums lie outside their tensor"
        place = padded(place_of(self.inst, self.grid, self.loops, side, outside), sums.ndim - 1)
        full = (*(counts.get(axis, 1) for axis in range(sums.ndim - 1 - len(own))), *own)
        values = np.broadcast_to(sums, np.broadcast_shapes(sums.shape, full))
        still = [axis for axis in sorted(counts) if not moves(place, axis)]
        turns = SummedAxes.of(still, *ends)
        shape = tuple(1 if axis in still else n for axis, n in enumerate(full))
        at = words_at(place, shape, descriptor.base, self.arithmetic.arch)
        before: Ints = np.zeros((1,) * sums.ndim, np.int64)
        if not turns.fresh:
            before = self.arithmetic.sums_of_words(self.glb.read(at).astype(np.int64))
        along = tuple(1 + axis for axis in turns.summed)
        total, before_last = self.arithmetic.partial(before, values, along)
        # The commit that completes a sum does not store it: the GLB keeps the sum before that.
        # Each iteration of the outer axes begins a new sum in the same place, so the last one remains there.
        kept = last(before_last if turns.final else total, tuple(1 + axis for axis in turns.outer))
        if not turns.final or along:  # a sum that is complete at once never was in the GLB
            words = self.arithmetic.words_of_sums(kept)
            self.glb.check(at)
            self._write(at, words)
        # Nothing is stored, but the order still matters if another iteration writes the words that were read.
        elif not turns.fresh and self.block is not None:
            self.block.reads.append(at)
        return total, turns

    def at_last(self, axes: Sequence[int]) -> CommitRun:
        """The same in the last iterations along some axes of the block."""
        at = list(self.loops)
        for register, axis in self.block.axis_of.items() if self.block else ():
            if axis in axes:
                at[register] = int(np.asarray(at[register]).flat[-1])
        return replace(self, loops=at)

    def results(self, sums: Ints) -> None:
        """Store the results of sums. Raises HalfFault (COMMIT-4)."""
        result = self.descriptors[self.inst.number("desc")]
        place = place_of(self.inst, self.grid, self.loops, result, "a result lies outside its tensor")
        self.glb.check(place)
        shape = np.broadcast_shapes(shape_of(place), (*self.grid.shape, *self.inst.extents))
        # In a block, `LoopBlock.check_order` finds two results for one word, of whatever iterations.
        place = distinct_place(place, shape, self.block is None)
        residual = None if self.unit.epilogue.factors is None else self.operand("residual")
        results = self.arithmetic.results(self.unit, sums, self._params(), residual)
        full = np.broadcast_shapes(results.shape[1:], shape)
        self._write(place_of_shape(place, full), np.broadcast_to(results, (results.shape[0], *full)))

    def _params(self) -> Ints | None:
        """The words [..., parameter, word] of the parameters of each result's channel (COMMIT-2); None without any."""
        if not self.unit.params:
            return None

        def read(memory: Memory, loops: Sequence[Index], descriptor: Descriptor) -> Delivered:
            words = self.arithmetic.arch.words_per_param
            place = self.unit.param_address(self.inst, self.grid, descriptor, loops, words)
            return Delivered(with_axes(memory.read(place), self._axes(2)), [place])

        descriptor = self.descriptors[self.inst.number("params")]
        return find(self.block, read, self.glb, self.loops, descriptor).astype(np.int64)

    def _write(self, place: Place, values: Ints) -> None:
        if self.block is not None:
            self.block.writes.append((place, values))
        else:
            self.glb.write(place, values)
