"""What the loops of a mapping in the notation leave out, for a layer and an array: axes, PEs, tile sizes. No IR.

The rules, P2 to P5, are in docs/mapping.md. The stages that a text leaves out are for `_os_written.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from cnncc.arch.model import Arch
from cnncc.dialects._mapping import AXES, REDUCTION_DIMS
from cnncc.dialects._mapping_text import mapping_from
from cnncc.dialects._notation import Item, NotationError, Term, read
from cnncc.dialects.nest import Loop, Mapping
from cnncc.passes._layer_shape import LayerShape, inside
from cnncc.passes._register_files import macro_words

Part = Sequence[int]  # loops, by their number in a text


def completed_loops(text: str, shape: LayerShape, arch: Arch) -> Mapping:
    """All loops of a mapping, with the stages that the text says. Raises NotationError saying what to write."""
    completion = _Completion(text, shape, arch)
    completion.choose_axes()
    completion.choose_pes()
    completion.choose_steps()
    return completion.mapping()


class _Completion:
    """The loops of a text, outermost first, which become complete one step after the other."""

    def __init__(self, text: str, shape: LayerShape, arch: Arch) -> None:
        self.text, self.shape, self.arch = text, shape, arch
        self.items = read(text)
        self.terms = [item for item in self.items if isinstance(item, Term)]
        self.pes_chosen: list[int] = []

    def mapping(self) -> Mapping:
        """The mapping of all that is known by now."""
        terms = iter(self.terms)
        items: list[Item] = [next(terms) if isinstance(item, Term) else item for item in self.items]
        return mapping_from(items, self.text, self.shape.sizes)

    def _name(self, i: int) -> str:
        return self.text[slice(*self.terms[i].place)]

    def _refuse(self, i: int, message: str) -> NotationError:
        return NotationError(message, self.text, *self.terms[i].place)

    def _over(self, dim: str) -> list[int]:
        return [i for i, term in enumerate(self.terms) if term.dim == dim]

    def _step(self, i: int) -> int | None:
        """The step of a loop; of the innermost over its dimension it need not be said."""
        return self.terms[i].step or (1 if self._over(self.terms[i].dim)[-1] == i else None)

    def _extent(self, i: int) -> int | None:
        """How many indices a loop goes over, if that is known."""
        outer = [each for each in self._over(self.terms[i].dim) if each < i]
        return self.terms[outer[-1]].step if outer else self.shape.sizes.of(self.terms[i].dim)

    # -- axes (P2) -----------------------------------------------------------------------------------------------

    def choose_axes(self) -> None:
        """Rows and columns for the loops in space, where none of them has an axis."""
        space = [i for i, term in enumerate(self.terms) if term.level]
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
        return f"write the axis of {self._name(i)}, {self._name(i)}||@rows or {self._name(i)}||@cols: {why}"

    def _put(self, parts: list[Part]) -> None:
        """The first part on rows, the second on columns; but sums go down columns, so that c, r and s are on rows."""
        sums = [any(self.terms[i].dim in REDUCTION_DIMS for i in part) for part in parts]
        for part, axis in zip(parts[::-1] if sums == [False, True] else parts, AXES, strict=False):
            for i in part:
                self.terms[i] = replace(self.terms[i], axis=axis)

    # -- PEs (P3) ------------------------------------------------------------------------------------------------

    def choose_pes(self) -> None:
        """Loops on an axis without a number of PEs get what is left of it, the inner ones first."""
        for axis in AXES:
            loops = [i for i, term in enumerate(self.terms) if term.axis == axis]
            left = int(getattr(self.arch, axis))
            for i in loops:
                left //= self.terms[i].pes or 1
            for i in (i for i in reversed(loops) if self.terms[i].pes is None):
                pes = min(max(left, 1), -(-self._most(i) // (self._step(i) or 1)))
                left //= pes
                self.terms[i] = replace(self.terms[i], pes=pes)
                self.pes_chosen.append(i)

    def _most(self, i: int) -> int:
        """What a loop goes over at most: the nearest step around it that is known, or the layer's size."""
        steps = [self.terms[each].step for each in self._over(self.terms[i].dim) if each < i]
        return next((step for step in reversed(steps) if step), self.shape.sizes.of(self.terms[i].dim))

    # -- tile sizes (P4, P5) -------------------------------------------------------------------------------------

    def choose_steps(self) -> None:
        """Tiles that the loops in space take at once; or that fill the box; and no more PEs than these leave work."""
        while any(self._set_step(i) for i in self._open()):
            pass
        if unknown := self._open():
            self._fill_box(unknown)
            while any(self._set_step(i) for i in self._open()):
                pass
        for i in self.pes_chosen:
            extent, step = self._extent(i), self._step(i)
            assert extent is not None and step is not None
            self.terms[i] = replace(self.terms[i], pes=min(self.terms[i].pes or 1, -(-extent // step)))

    def _open(self) -> list[int]:
        return [i for i in range(len(self.terms)) if self._step(i) is None]

    def _set_step(self, i: int) -> bool:
        """Give loop i its step, if its own PEs or those of the loop inside it say it."""
        term, extent = self.terms[i], self._extent(i)
        inner = next(each for each in self._over(term.dim) if each > i)
        step = self._step(inner)
        if term.level and extent is not None:
            self.terms[i] = replace(term, step=-(-extent // (term.pes or 1)))
        elif not term.level and self.terms[inner].level and step is not None:
            self.terms[i] = replace(term, step=min((self.terms[inner].pes or 1) * step, self._most(i)))
        return self.terms[i].step is not None

    def _fill_box(self, unknown: Sequence[int]) -> None:
        """The largest tile for which a macro-instruction finds room, where a single one in the box is open."""
        i, *more = unknown
        inner = next(each for each in self._over(self.terms[i].dim) if each > i)
        names = " and ".join(map(self._name, unknown))
        if more or not self.terms[inner].keep:
            raise self._refuse(i, f"neither PEs nor the box say the tile size of {names}: write {self._name(i)}:N")
        term = self.terms[i]
        for step in range(min(self._most(i), self._group(term.dim)), 0, -1):
            self.terms[i] = replace(term, step=step)
            if self._fits() or step == 1:
                return

    def _group(self, dim: str) -> int:
        return self.shape.tiled_together if dim == "k" else self.shape.sizes.of(dim)

    def _fits(self) -> bool:
        outer = [Loop(term.dim, self._step(i) or 1) for i, term in enumerate(self.terms) if not term.keep]
        words = macro_words(self.shape, self.arch, inside(self.shape.sizes, outer))
        return all(needed <= getattr(self.arch.pe, key) for key, needed in words.items())
