"""The cycles for which loads, macro-instructions, commits and transfers occupy their engines, from sizes. No IR.

The rules are LOAD-2, MAC-4, COMMIT-3, COMMIT-6 and DMA-2 of docs/machine.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import product
from math import prod
from typing import NamedTuple

from cnncc.arch.model import Arch
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.layer_shape import LayerShape
from cnncc.model.timed_program import ALWAYS, ARRAY, COMMIT, DMA, HALVES, LOAD, Task, Token

Tokens = tuple[Token, ...]


class SpatialLoop(NamedTuple):
    """`pes` PEs side by side on rows or columns; neighbours are `step` indices of dimension `dim` apart."""

    dim: str
    step: int
    pes: int
    on: str


SpatialLoops = tuple[SpatialLoop, ...]


def sums(terms: Iterable[tuple[int, int]]) -> set[int]:
    """The different sums of terms (count, step), each 0, step, … (count - 1) step: positions among PEs."""
    ranges = [range(0, count * step, step) if step else (0,) for count, step in terms]
    return {sum(offsets) for offsets in product(*ranges)}


def distinct(moves: Iterable[tuple[str, int, int]]) -> int:
    """Distinct positions of PEs. A move (axis, count, step): `count` PEs, `step` apart on the axis (rule LOAD-2).

    >>> distinct([("y", 3, 1), ("y", 2, 1), ("x", 4, 2)])
    16
    """
    axes: dict[str, list[tuple[int, int]]] = {}
    for axis, count, step in moves:
        if count > 1 and step:
            axes.setdefault(axis, []).append((count, step))
    return prod(terms[0][0] if len(terms) == 1 else len(sums(terms)) for terms in axes.values())


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def load_work(arch: Arch, words: int, positions: int, in_row: int) -> tuple[str, int]:
    """LOAD-2. What a load takes longest for, and its cycles.

    words: for each of `positions` groups of PEs, of which `in_row` are in one row.
    """
    port = ceil_div(words * positions, arch.glb.words_per_cycle)
    bus = in_row * ceil_div(words, arch.bus.burst_words)
    write = ceil_div(words, arch.pe.words_per_cycle)
    # CAUSE-2: of equal terms the port is the first, then the buses.
    if port >= max(bus, write):
        return "glb_port", port
    return ("row_bus", bus) if bus >= write else ("write_port", write)


class _Loads:
    """What the loads of one layer take on one array."""

    def __init__(self, shape: LayerShape, arch: Arch) -> None:
        self.shape, self.arch = shape, arch
        window = shape.window
        self._moves = {
            "n": ("lin", 1),
            "c": ("channel", 1),
            "h": ("y", window.stride[0]),
            "r": ("y", window.dilation[0]),
            "w": ("x", window.stride[1]),
            "s": ("x", window.dilation[1]),
        }

    def _ifmap_move(self, side: SpatialLoop) -> tuple[str, int, int]:
        """The distance of PEs in the image, as a move. Output channels of one group read the same input channels."""
        if side.dim == "k":
            return "channel", side.pes, side.step // self.shape.group * self.shape.sizes.c
        axis, step = self._moves[side.dim]
        return axis, side.pes, side.step * step

    def weights(self, words: int, sides: SpatialLoops) -> tuple[str, int]:
        """PEs with different k, c, r or s have different weights; all others share them."""
        rows = cols = 1
        for side in sides:
            if side.dim in "kcrs":
                rows, cols = (rows, cols * side.pes) if side.on == "cols" else (rows * side.pes, cols)
        return load_work(self.arch, words, rows * cols, cols)

    def ifmap(self, words: int, sides: SpatialLoops) -> tuple[str, int]:
        moves = [(side.on, self._ifmap_move(side)) for side in sides]
        in_row = distinct(move for on, move in moves if on == "cols")
        return load_work(self.arch, words, distinct(move for _, move in moves), in_row)


class Engines:
    """The tasks of one layer's instructions on one array."""

    def __init__(self, shape: LayerShape, arch: Arch) -> None:
        self.shape, self.arch = shape, arch
        self.words_per_channel = shape.params * arch.words_per_param
        loads = _Loads(shape, arch)
        self._weights, self._ifmap = cache(loads.weights), cache(loads.ifmap)  # they are often alike

    def weights(self, words: int, sides: SpatialLoops, takes: Tokens, gives: Tokens) -> Task:
        """A load of so many weights a PE."""
        return self._task(self._weights(words, sides), takes, gives)

    def ifmap(self, words: int, sides: SpatialLoops, takes: Tokens, gives: Tokens) -> Task:
        """A load of so many words of the image a PE."""
        return self._task(self._ifmap(words, sides), takes, gives)

    def _task(self, work: tuple[str, int], takes: Tokens, gives: Tokens) -> Task:
        return Task(LOAD, work[1], self.arch.bus.latency_cycles, takes, gives, (work,), "row_bus")

    def macro(self, steps: int, takes: Tokens, gives: Tokens) -> Task:
        """MAC-4."""
        return Task(ARRAY, self.arch.pe.start_cycles + steps + self.arch.pe.finish_cycles, 0, takes, gives)

    def commit(
        self, results: int, cols: int, params: int, hops: int, partial: bool, residual: bool, takes: Tokens,
        gives: Tokens,
    ) -> Task:  # fmt: skip
        """A commit (COMMIT-3, COMMIT-6). params: channels whose parameters it reads. hops: links that sums cross."""
        words = results * (1 + residual + 2 * self.arch.words_per_sum * partial) + params * self.words_per_channel
        units = ceil_div(results, cols * self.arch.commit.units_per_column)
        return self._commit(units, words, hops, takes, gives)

    def _commit(self, units: int, words: int, hops: int, takes: Tokens, gives: Tokens) -> Task:
        port = ceil_div(words, self.arch.glb.words_per_cycle)
        # CAUSE-2: of equal terms the units are the first.
        work = (("glb_port", port) if port > units else ("output_units", units)), ("column_bus", hops)
        return Task(
            COMMIT, max(units, port) + hops, self.arch.commit.latency_cycles, takes, gives, work, "output_units"
        )  # fmt: skip

    def stream(self, results: int, residual: bool, takes: Tokens, gives: Tokens) -> Task:
        """A commit of GLB words instead of psums (COMMIT-3): they use the output units of all columns."""
        # All indices of a stream are on the linear axis: it reads the parameters of one channel (COMMIT-3).
        words = results * (2 + residual) + self.words_per_channel
        units = ceil_div(results, self.arch.cols * self.arch.commit.units_per_column)
        return self._commit(units, words, 0, takes, gives)


def transfer(
    moved: str, words: int, arch: Arch, take: Semaphore = Semaphore.NONE, give: Semaphore = Semaphore.NONE
) -> Task:
    """DMA-2. moved: weights (with parameters), activations or results."""
    busy, latency = ceil_div(words * arch.dram.rate_cycles, arch.dram.rate_words), arch.dram.latency_cycles
    work, late = ((f"dram_bandwidth_{moved}", busy),), f"dram_latency_{moved}"
    return Task(DMA, busy, latency, tokens_of(take), tokens_of(give), work, late)


def tokens_of(semaphore: Semaphore, when: int | None = ALWAYS) -> Tokens:
    """One token under a condition; none without a semaphore, or if the condition never holds (None)."""
    return (Token(HALVES + semaphore, when),) if semaphore and when is not None else ()
