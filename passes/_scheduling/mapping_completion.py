"""What the loops of a mapping in the notation leave out, for a layer and an array: axes, PEs, tile sizes. No IR.

The rules, MAP-2 to MAP-5 and MAP-9, are in docs/mapping.md. The stages that a text leaves out are for
`written_mappings.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Map
from dataclasses import replace
from functools import lru_cache
from itertools import groupby, product
from math import prod

from cnncc.arch.model import Arch
from cnncc.mapping.mapping import AXES, DIMS, LANES, REDUCTION_DIMS, Mapping
from cnncc.mapping.notation import Item, LoopItem, NotationError, read
from cnncc.mapping.text import mapping_from
from cnncc.model.layer_shape import LayerShape
from cnncc.model.register_files import macro_words

Part = Sequence[int]  # loops, by their number in a text
Sizes = Map[str, int]  # of tiles, by dimension
OUTPUTS = "nhw"


def completions(text: str, shape: LayerShape, arch: Arch) -> Iterator[Mapping]:
    """All loops of a mapping, with the stages that the text says, for each size of blocks that may be tried.

    The largest comes first (rule MAP-9). Raises NotationError saying what to write.
    """
    terms = _Terms(text, shape, arch)
    choices = product(*[terms.blocks(i) for i in terms.open_blocks()])
    for sizes in sorted(choices, key=lambda sizes: -prod(sizes)):
        yield _completed(text, shape, arch, sizes)


@lru_cache(maxsize=4096)
def _completed(text: str, shape: LayerShape, arch: Arch, blocks: tuple[int, ...]) -> Mapping:
    terms = _Terms(text, shape, arch)
    return terms.completed(dict(zip(terms.open_blocks(), blocks, strict=True)))


class _Terms:
    """The loops of a text, outermost first, with axes, and with a loop over groups where the layer has some."""

    def __init__(self, text: str, shape: LayerShape, arch: Arch) -> None:
        self.text, self.shape, self.arch = text, shape, arch
        self.items = read(text)
        self._add_groups()
        self.terms = [item for item in self.items if isinstance(item, LoopItem)]
        self.over = {dim: [i for i, term in enumerate(self.terms) if term.dim == dim] for dim in DIMS}
        self._choose_axes()

    def _refuse(self, i: int, message: str) -> NotationError:
        return NotationError(message, self.text, *self.terms[i].place)

    def _inner(self, i: int) -> int | None:
        """The next loop inside loop i over its dimension."""
        return next((each for each in self.over[self.terms[i].dim] if each > i), None)

    # -- groups (MAP-10) --------------------------------------------------------------------------------------------

    def _add_groups(self) -> None:
        """A loop over groups of output channels, around all but loops in time over n, h, w, where none is written."""
        together = self.shape.tiled_together
        first = next((item for item in self.items if isinstance(item, LoopItem) and item.dim == "k"), None)
        if together == self.shape.sizes.k or first is None:
            return
        if first.step and first.step % together == 0:
            return  # it goes from group to group
        place = next(
            place
            for place, item in enumerate(self.items)
            if isinstance(item, LoopItem) and (item.dim not in OUTPUTS or item.level or item.keep)
        )
        self.items = (*self.items[:place], LoopItem("k", together), *self.items[place:])

    # -- axes (MAP-2) -----------------------------------------------------------------------------------------------

    def _choose_axes(self) -> None:
        """Rows and columns for the loops in space, where none of them has an axis."""
        space = [i for i, term in enumerate(self.terms) if term.level and term.axis != LANES]
        missing = [i for i in space if not self.terms[i].axis]
        if not missing:
            return
        if len(missing) < len(space):
            raise self._refuse(missing[0], self._axis_of(missing[0], "others have one"))
        levels = [list(run) for _, run in groupby(space, lambda i: self.terms[i].level)]
        sizes = [len(level) for level in levels]
        if len(levels) == 2 and 1 in sizes:
            self._put(levels)
        elif len(levels) <= 2 and max(sizes) <= 2:
            for level in levels:
                self._put([[i] for i in level])
        else:
            raise self._refuse(missing[0], self._axis_of(missing[0], "so many loops have no order on two axes"))

    def _axis_of(self, i: int, why: str) -> str:
        name = self.text[slice(*self.terms[i].place)]
        return f"write the axis of {name}, {name}||@rows or {name}||@cols: {why}"

    def _put(self, parts: Sequence[Part]) -> None:
        """The first part on rows, the second on columns; but sums go down columns, so that c, r and s are on rows."""
        sums = [any(self.terms[i].dim in REDUCTION_DIMS for i in part) for part in parts]
        for part, axis in zip(parts[::-1] if sums == [False, True] else parts, AXES, strict=False):
            for i in part:
                self.terms[i] = replace(self.terms[i], axis=axis)

    # -- blocks (MAP-9) ---------------------------------------------------------------------------------------------

    def open_blocks(self) -> list[int]:
        """Loops in time whose tile size neither a loop in space nor the box says."""
        return [i for i, term in enumerate(self.terms) if not (term.step or term.level or term.keep or self._says(i))]

    def _says(self, i: int) -> bool:
        """Whether what is inside loop i says its tile size: nothing is, the box, or PEs that take a tile at once."""
        inner = self._inner(i)
        if inner is None or self.terms[inner].keep:
            return True
        return bool(self.terms[inner].level) and not self._shares_out(inner)

    def _shares_out(self, i: int) -> bool:
        """Whether a loop in space gives each PE one part of the dimension, which a loop in time inside goes through."""
        inner = self._inner(i)
        term = self.terms[i]
        return inner is not None and not term.step and not (self.terms[inner].level or self.terms[inner].keep)

    def blocks(self, i: int) -> list[int]:
        """All of what is there, its half, a quarter …"""
        most = self._most(i, {})
        return sorted({-(-most // (1 << shift)) for shift in range(most.bit_length() + 1)}, reverse=True)

    def _most(self, i: int, steps: Map[int, int]) -> int:
        """What loop i goes over at most: the nearest step around it that is known, or the layer's size."""
        outer = [self.terms[each].step or steps.get(each) for each in self.over[self.terms[i].dim] if each < i]
        return next((step for step in reversed(outer) if step), self.shape.sizes.of(self.terms[i].dim))

    # -- the rest ------------------------------------------------------------------------------------------------

    def completed(self, blocks: Map[int, int]) -> Mapping:
        """The mapping with these blocks whose macro-instructions take the fewest cycles (MAP-5)."""
        best: tuple[tuple[int, ...], list[LoopItem]] | None = None
        for box in self._boxes(blocks):
            terms = self._with(box, blocks)
            cost = self._cost(terms)
            best = min(best or (cost, terms), (cost, terms), key=lambda each: each[0])
        assert best is not None
        left = iter(best[1])
        items: list[Item] = [next(left) if isinstance(item, LoopItem) else item for item in self.items]
        return mapping_from(items, self.text, self.shape.sizes)

    def _boxes(self, blocks: Map[int, int]) -> Iterator[Sizes]:
        """Sizes of the tiles in the box that are left out, for which the register files have room (MAP-5)."""
        fixed, open_ = dict.fromkeys(map(str, DIMS), 1), dict[str, list[int]]()
        for dim, loops in self.over.items():
            if loops and self.terms[loops[-1]].keep:
                first = next(i for i in loops if self.terms[i].keep)
                around = max((i for i in loops if i < first), default=None)
                fixed[dim] = self._most(first, blocks)
                if around is not None and not self.terms[around].step and around not in blocks:
                    open_[dim] = self._tiles(dim, self._most(around, blocks))
                    # A dimension without a size yet counts with its least: no combination that fits is left out.
                    fixed[dim] = open_[dim][-1]
        yield from self._fitting(fixed, open_)

    def _tiles(self, dim: str, most: int) -> list[int]:
        """The sizes of a tile, at most `most`, the largest first.

        | the dimension is | sizes |
        |---|---|
        | on lanes | multiples of the lanes; the rest is a multiple, too, or smaller than the lanes |
        | on lanes beside others, all of a tile | ⌈most/1⌉, ⌈most/2⌉, … |
        | c, r or s in space | divisors of `most`, because all PEs of a column add to each sum |
        | any other | ⌈most/1⌉, ⌈most/2⌉, … |
        """
        lane = next((term for term in self.terms if term.axis == LANES and term.dim == dim), None)
        if lane and not self._takes_tile(dim):
            lanes = lane.pes or self.arch.pe.lanes
            sizes = (size for size in range(most, 0, -1) if size % lanes == 0)
            return [size for size in sizes if (most % size) % lanes == 0 or most % size < lanes] or [most]
        in_space = any(self.terms[i].level and self.terms[i].axis != LANES for i in self.over[dim])
        if dim in REDUCTION_DIMS and in_space:
            return [size for size in range(most, 0, -1) if most % size == 0]
        return sorted({-(-most // count) for count in range(1, most + 1)}, reverse=True)

    def _takes_tile(self, dim: str) -> bool:
        """Whether the loop on lanes over a dimension, one of several, takes a whole tile: nothing says how much."""
        kept = [self.terms[i] for i in self.over[dim] if self.terms[i].keep]
        several = sum(term.axis == LANES for term in self.terms) > 1
        return several and len(kept) == 1 and kept[0].axis == LANES and kept[0].pes is None

    def _lanes(self, box: Sizes) -> dict[str, int]:
        """Lanes of each dimension: as written, or for all its indices, as far as inner loops leave lanes (MAP-3)."""
        on_lanes = [term for term in self.terms if term.axis == LANES]
        left = self.arch.pe.lanes // prod(term.pes or 1 for term in on_lanes)
        lanes = dict[str, int]()
        for term in reversed(on_lanes):
            most = box[term.dim] if term.keep else self.shape.sizes.of(term.dim)
            lanes[term.dim] = term.pes or min(max(left, 1), most)
            # Lanes that are written have been taken off before.
            left //= lanes[term.dim] if term.pes is None else 1
        return lanes

    def _fitting(self, sizes: dict[str, int], open_: Map[str, list[int]]) -> Iterator[Sizes]:
        """All combinations that fit; where nothing does, the least."""
        if not open_:
            yield sizes
            return
        (dim, choices), *rest = open_.items()
        for size in choices:
            if size == choices[-1] or self._fits({**sizes, dim: size}):
                yield from self._fitting({**sizes, dim: size}, dict(rest))

    def _fits(self, box: Sizes) -> bool:
        lanes = self._lanes(box)
        if any(lanes[dim] < box[dim] for dim in lanes if self._takes_tile(dim)):
            return False
        words = macro_words(self.shape, self.arch, dict(box), lanes.get("k", 1))
        few = prod(box[dim] for dim in OUTPUTS) <= self.arch.pe.max_pixels
        return few and all(needed <= getattr(self.arch.pe, key) for key, needed in words.items())

    def _with(self, box: Sizes, blocks: Map[int, int]) -> list[LoopItem]:
        """The loops with PEs and tile sizes (MAP-3, MAP-4), from the innermost outwards."""
        terms = list(self.terms)
        lanes = self._lanes(box)
        left = {axis: int(getattr(self.arch.pe if axis == LANES else self.arch, axis)) for axis in AXES}
        for term in terms:
            if term.level:
                left[term.axis] //= term.pes or 1
        for i in reversed(range(len(terms))):
            term, inner, most = terms[i], self._inner(i), self._most(i, blocks)
            step, pes = term.step or blocks.get(i), term.pes
            if step is None and self._shares_out(i):
                pes = pes or min(max(left[term.axis], 1), most)
                step = -(-most // pes)
            elif step is None and inner is not None:
                # MAP-5 around the box, else MAP-4: what the PEs of the loop inside take at once.
                boxed = terms[inner].keep and not term.keep
                step = min(box[term.dim] if boxed else (terms[inner].pes or 1) * _step(terms[inner]), most)
            if term.axis == LANES:
                pes = lanes[term.dim]
            elif term.level and term.pes is None:
                pes = min(max(left[term.axis], 1), -(-most // (step or 1)))
                left[term.axis] //= pes
            terms[i] = replace(term, step=step, pes=pes)
        return terms

    def _cost(self, terms: Sequence[LoopItem]) -> tuple[int, ...]:
        """The order of MAP-5: cycles of all macro-instructions, parts of the kernel, copies of loop bodies, parts of a
        sum, macro-instructions.
        """
        by_dim = {
            dim: _rounds(
                self.shape.sizes.of(dim), tuple((_step(terms[i]), terms[i].pes or 0, terms[i].keep) for i in of)
            )
            for dim, of in self.over.items()
        }
        times, macs, bodies = (prod(each) for each in zip(*by_dim.values(), strict=True))
        parts = by_dim["r"][0] * by_dim["s"][0]
        cycles = macs + times * (self.arch.pe.start_cycles + self.arch.pe.finish_cycles)
        return cycles, parts, bodies, self._parts_of_sums(terms), times

    def _parts_of_sums(self, terms: Sequence[LoopItem]) -> int:
        """Parts of a sum that the GLB adds up (LEGAL-2): trips of loops over c, r and s around others in time."""
        timed = [term for term in terms if not (term.level or term.keep)]
        # LEGAL-2: of these, the ones around the box leave sums in the PEs.
        while timed and timed[-1].dim in REDUCTION_DIMS:
            timed.pop()
        parts = 1
        for dim in REDUCTION_DIMS:
            inner = min((_step(term) for term in timed if term.dim == dim), default=self.shape.sizes.of(dim))
            parts *= -(-self.shape.sizes.of(dim) // inner)
        return parts


def _step(term: LoopItem) -> int:
    return term.step or 1


@lru_cache(maxsize=1 << 16)
def _rounds(extent: int, loops: tuple[tuple[int, int, bool], ...]) -> tuple[int, int, int]:
    """What one dimension contributes to a layer: (trips, sum of the extents of all trips, copies of loop bodies).

    loops: (step, PEs or 0, whether it is in the box), from outside.
    """
    if not loops or loops[0][2]:
        lanes = max((pes for _, pes, _ in loops), default=0)
        return 1, -(-extent // max(lanes, 1)), 1
    (step, pes, _), *inner = loops
    if pes and pes * step < extent:  # folded
        return _rounds(extent, ((pes * step, 0, False), *loops))
    whole, rest = divmod(extent, step)
    pieces = [(1 if pes else whole, step)] * (whole > 0) + [(1, rest)] * (rest > 0)
    rounds = [(times, *_rounds(size, tuple(inner))) for times, size in pieces]
    return (
        sum(times * each for times, each, _, _ in rounds),
        sum(times * macs for times, _, macs, _ in rounds),
        sum(bodies for *_, bodies in rounds),
    )
