"""The PE and psum that computed a wrong result, by the reuses of the PE sets in a layer's program."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp

from cnncc.arch.model import Arch
from cnncc.dialects import array as A
from cnncc.dialects.weights import arrays_of
from cnncc.eval._array_rules import ArrayState, addresses
from cnncc.eval._places import TensorPart, position
from cnncc.numerics import Ints
from cnncc.weights import WeightStore


@dataclass(frozen=True)
class LocatedReuse:
    """The PE sets at work on one tile, from the first macro-instruction to the commit.

    - loops: the loops' indices
    - first: the number of the first result
    - shape: of the results, [rows, columns, pixels, lines, channels]
    """

    loops: dict[str, int]
    commit: A.Commit
    first: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Location:
    """The place of wrong results: `wrong` of `reuses` reuses have some; number, loops, PE and psum of the first."""

    wrong: int
    reuses: int
    number: int
    loops: dict[str, int]
    pe: tuple[int, int]
    psum: int

    def __str__(self) -> str:
        tile = ", ".join(f"{name} = {index}" for name, index in self.loops.items())
        return (
            f"wrong in {self.wrong:,} of {self.reuses:,} reuses of the PE sets, first in reuse {self.number}"
            f"{f' ({tile})' if tile else ''}, PE {self.pe[0]},{self.pe[1]}, psum {self.psum}"
        )


def locate(
    module: ModuleOp, store: WeightStore, arch: Arch, value: str, wrong: npt.NDArray[np.bool_]
) -> Location | None:
    """The place where the layer of `value` computed its `wrong` results; None if no PE or commit computed them.

    module: PE-set programs. wrong: a mask shaped like the layer's output, for one image or several batches.
    """
    layer = next((op for op in module.ops if isinstance(op, A.LayerOp) and op.value.data == value), None)
    if layer is None:
        return None
    machine = _Numbering(arch, 1, arrays_of(module, store), A.tensors_of(module))
    machine.start_layer(layer)
    for op in layer.body.block.ops:
        machine.run(op)
    return machine.location(wrong)


class _Numbering(ArrayState):
    """A machine that writes numbers instead of results, and moves them out of the buffers in the GLB."""

    located: list[LocatedReuse]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.located = []

    def with_tokens(self, tokens: A.Tokens, rule: Callable[[], None]) -> None:
        """Run the rule without tokens: other layers may have given the first ones."""
        rule()

    def load(self, load: A.Load) -> None:
        """Do nothing: numbers do not depend on operands."""

    def mac(self, mac: A.Mac) -> None:
        """Do nothing: numbers do not depend on operands."""

    def dma(self, dma: A.Dma) -> None:
        """Run transfers out of buffers alone."""
        if dma.direction == A.Direction.OUT:
            super().dma(dma)

    def commit(self, commit: A.Commit) -> None:
        """Number the results, in the order of rows, columns, pixels, lines and channels."""
        view, target = self._view(commit.view)
        address, _ = position(commit.place, commit.start, commit.pattern).address(view, self.loops)
        first = self.located[-1].first + int(np.prod(self.located[-1].shape)) if self.located else 0
        loops = {name: index for name, (index, _) in self.loops.running.items()}
        self.located.append(LocatedReuse(loops, commit, first, address.shape))
        target.write(address, (first + np.arange(address.size).reshape(address.shape))[None])
        self.result = view.tensor

    def numbers(self, tensor: A.Tensor) -> Ints:
        """The number of each result in a tensor; -1 for a word without one."""
        at, words = addresses(tensor), self.words[tensor.name]
        whole, start = (words.whole, words.offset) if isinstance(words, TensorPart) else (words, 0)
        return np.where(whole.written[at + start], whole.words[0, at + start], -1)

    def location(self, wrong: npt.NDArray[np.bool_]) -> Location | None:
        """The place of the first of the wrong results."""
        if not self.result:
            return None
        numbers = self.numbers(self.tensor(self.result))
        # The mask may be of several batches, the numbers are of one.
        where = wrong.reshape(-1, numbers.size).any(axis=0)
        bad = numbers[where & (numbers >= 0)]
        if not bad.size or self.located[0].commit.source != A.Source.PSUM:
            return None
        starts = [reuse.first for reuse in self.located]
        number = bisect_right(starts, first := int(bad.min())) - 1
        reuse = self.located[number]
        row, col, z, j, i = (int(n) for n in np.unravel_index(first - reuse.first, reuse.shape))
        place, slots = reuse.commit.place, reuse.commit.psum
        psum = slots.base + z * slots.pixel + j * slots.tap + i * slots.channel
        count = len({bisect_right(starts, int(name)) for name in np.unique(bad)})
        return Location(count, len(starts), number, reuse.loops, (place.row0 + row, place.col0 + col), psum)
