"""Which words of its tensor a transfer or a load reaches, from the numbers of its op alone.

All iterations of a loop run, and all indices are independent, but for the number of a PE in its set and that of the
set. So the first word and the last one are exact, and no pixel is looked at. Where an address wraps, or bounds have
words left out, the run alone says which words are reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cnncc.dialects import array as A
from cnncc.errors import Refusal


def whole_of(tensor: A.Tensor, tensors: Mapping[str, A.Tensor]) -> tuple[A.Tensor, int]:
    """The tensor that `tensor` is a part of, or itself, and the word of it at which it begins. Raises Refusal."""
    offset, seen = 0, {tensor.name}
    while tensor.part_of:
        offset += tensor.offset
        if tensor.part_of not in tensors or tensor.part_of in seen:
            raise Refusal(f"tensor '{tensor.name}' is part of '{tensor.part_of}', which does not exist, or of itself")
        tensor = tensors[tensor.part_of]
        seen.add(tensor.name)
    return tensor, offset


@dataclass(frozen=True)
class _Positions:
    """The positions of an instruction by a view (DESC-2). extents: of its pattern, and the loops that step the view."""

    start: A.Start
    place: A.Place
    extents: tuple[A.Extent, ...]

    def ends(self, lin: int = 0, k: int = 0, y: int = 0, x: int = 0) -> tuple[int, int]:
        """The least and the greatest sum of a position's axes, each times its number."""
        times: dict[A.Axis, int] = {"lin": lin, "k": k, "y": y, "x": x}
        start, place = self.start, self.place
        low = high = lin * start.offset + k * start.channel + y * start.y + x * start.x
        for extent in self.extents:
            last = (extent.n - 1) * extent.step * times[extent.axis]
            low, high = low + min(last, 0), high + max(last, 0)
        for count, size, inside, of_set in (
            (place.rows, place.set_rows, place.row, place.row_set),
            (place.cols, place.set_cols, place.col, place.col_set),
        ):
            by, by_set = inside.step * times[inside.axis], of_set.step * times[of_set.axis]
            terms = [i % size * by + i // size * by_set for i in range(count)]
            low, high = low + min(terms), high + max(terms)
        return low, high


def _positions(
    view: A.View, loops: Mapping[str, int], start: A.Start, pattern: tuple[A.Extent, ...], place: A.Place | None = None
) -> _Positions:
    # A loop that does not run has index 0.
    steps = [A.Extent(loops[term.loop], term.axis, term.step) for term in view.steps if term.loop in loops]
    return _Positions(start, place or A.Place(), (*pattern, *steps))


def _all_inside(view: A.View, positions: _Positions) -> bool:
    """Whether the bounds of a view leave nothing out (DESC-3)."""
    if not view.height:
        return True
    (top, bottom), (left, right) = positions.ends(y=1), positions.ends(x=1)
    return top >= 0 and bottom < view.height and left >= 0 and right < view.width


def _check(view: A.View, positions: _Positions, tensors: Mapping[str, A.Tensor]) -> None:
    if view.wrap or view.ring_y or view.ring_x or view.frames:
        return
    tensor = tensors[view.tensor]
    low, high = positions.ends(1, view.plane, view.pitch, view.column or 1)
    whole, first = whole_of(tensor, tensors)
    if first + low < 0 or first + high >= whole.words:
        raise Refusal(f"words {low}..{high} of tensor {tensor.name} do not exist, it has {tensor.words}")


def check_dma(dma: A.Dma, dram: A.View, glb: A.View, tensors: Mapping[str, A.Tensor], loops: Mapping[str, int]) -> None:
    """Raises Refusal for a transfer from or to words that its tensors do not have. loops: those around it."""
    sides = list[tuple[A.View, _Positions]]()
    for view, offset, step in ((dram, dma.dram_offset, dma.dram_step), (glb, dma.glb_offset, dma.glb_step)):
        pattern = (A.Extent(dma.count, "lin", step), A.Extent(dma.rows, "y", 1), A.Extent(dma.words, "x", 1))
        sides.append((view, _positions(view, loops, A.Start(offset, 0, dma.y, dma.x), pattern)))
    # DMA-1: the bounds in DRAM hold for both sides.
    if not dram.frames and _all_inside(*sides[0]):
        for side in sides:
            _check(*side, tensors)


def check_load(load: A.Load, view: A.View, tensors: Mapping[str, A.Tensor], loops: Mapping[str, int]) -> None:
    """Raises Refusal for a load of words that its tensor does not have. loops: those around it."""
    positions = _positions(view, loops, load.start, load.pattern, load.place)
    # With `edge` some PEs read nothing, so that their positions may lie anywhere.
    if not load.edge and _all_inside(view, positions):
        _check(view, positions, tensors)
