"""Mappings as texts that say all of them, one to one. docs/mapping.md describes the notation.

    text(mapping, sizes)    h':2 > weight@glb > [k'||4@rows h''||2@rows] > c > weight@rf*2 > ifmap@rf*2 > {s > r > k''}
    text(mapping)           h':2 > weight@glb > [k'||@rows h''||@rows] > …

`parse` reads both: `parse(text(m, sizes), sizes) == m`. How often a loop runs follows from the sizes, so that it is
written for the reader; with fewer PEs than that, the loop is folded.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from collections.abc import Sequence
from itertools import groupby

from cnncc.mapping.mapping import DIMS, Loop, Mapping, Sizes, Stage, extents
from cnncc.mapping.notation import FetchItem, Item, LoopItem, NotationError, canonical_text, read


def text(mapping: Mapping, sizes: Sizes | None = None, unicode: bool = False) -> str:
    """The canonical text of a mapping: in ASCII or with the textbook's signs, with the PEs of loops where sizes are."""
    return canonical_text(items_of(mapping, sizes), unicode)


def items_of(mapping: Mapping, sizes: Sizes | None) -> tuple[Item, ...]:
    """The loops and stages of a mapping as they are written; loops in space with nothing between them are one level."""
    loops, items = mapping.loops, list[Item]()
    counts = (
        [-(-extent // loop.step) for extent, loop in zip(extents(sizes, loops), loops, strict=True)] if sizes else []
    )
    last = {loop.dim: depth for depth, loop in enumerate(loops)}
    level = 0
    for depth in range(len(loops) + 1):
        items += [
            FetchItem(stage.operand, stage.memory, stage.buffers) for stage in mapping.stages if stage.depth == depth
        ]
        if depth == len(loops):
            return tuple(items)
        loop, before = loops[depth], items[-1] if items else None
        if loop.on and not (isinstance(before, LoopItem) and before.level):
            level += 1
        step = None if loop.step == 1 and last[loop.dim] == depth else loop.step
        pes = counts[depth] if loop.on and counts else None
        items.append(LoopItem(loop.dim, step, level if loop.on else 0, pes, loop.on, loop.keep))
    raise AssertionError


def parse(text: str, sizes: Sizes | None) -> Mapping:
    """The mapping that a text says all of. Raises NotationError, also where it leaves out an axis or a tile size.

    A loop with fewer PEs than iterations is folded: a loop in time over these runs around its level.
    """
    return mapping_from(read(text), text, sizes)


def mapping_from(items: Sequence[Item], text: str, sizes: Sizes | None) -> Mapping:
    """The mapping that these items say all of; `text` is what they were read from. Raises NotationError."""
    extent: dict[str, int | None] = {dim: sizes.of(dim) if sizes else None for dim in DIMS}
    last = {item.dim: item for item in items if isinstance(item, LoopItem)}
    loops, stages = list[Loop](), list[Stage]()
    for level, run in groupby(items, key=lambda item: item.level if isinstance(item, LoopItem) else 0):
        together = list(run)
        if level:
            # A fold changes no extent for what follows: a loop over its dimension, with a smaller step, is inside.
            loops += _folds([item for item in together if isinstance(item, LoopItem)], extent, text)
        for item in together:
            if isinstance(item, FetchItem):
                stages.append(Stage(item.operand, item.memory, len(loops), item.buffers))
                continue
            if item.step is None and item is not last[item.dim]:
                name = text[slice(*item.place)]
                raise NotationError(f"{name} has loops inside it: write its tile size, {name}:N", text, *item.place)
            if item.level and not item.axis:
                name = text[slice(*item.place)]
                raise NotationError(f"write the axis of {name}, {name}||@rows or {name}||@cols", text, *item.place)
            loops.append(Loop(item.dim, item.step or 1, item.axis, item.keep))
            extent[item.dim] = _inside(extent[item.dim], item.step or 1)
    return Mapping(tuple(loops), tuple(stages))


def _folds(level: Sequence[LoopItem], extent: Map[str, int | None], text: str) -> list[Loop]:
    """Loops in time around a level for those of its loops that have fewer PEs than iterations."""
    folds, seen = list[Loop](), dict[str, int | None]()
    for term in level:
        around, step = seen.get(term.dim, extent[term.dim]), term.step or 1
        name = text[slice(*term.place)]
        if term.pes is not None and around is None:
            raise NotationError(f"how often {name} runs is not known here: leave out {term.pes}", text, *term.place)
        count = -(-around // step) if around is not None else 0
        if term.pes is not None and term.pes > count:
            message = f"{name} runs {count} times here, on {count} PEs: write {name}||{count}, or no number"
            raise NotationError(message, text, *term.place)
        if term.pes is not None and term.pes < count:
            # The fold would stand outside the other loop, but it is to cut that loop's tile.
            if term.dim in seen:
                message = (
                    f"{name} runs {count} times inside the other loop over {term.dim} of its level, on {term.pes} PEs"
                )
                raise NotationError(f"{message}: write '>' between them", text, *term.place)
            folds.append(Loop(term.dim, term.pes * step, keep=term.keep))
        seen[term.dim] = _inside(around, step)
    return folds


def _inside(extent: int | None, step: int) -> int | None:
    """How many indices one iteration has; steps that rise, against rule NEST-1, take no more than there are."""
    return step if extent is None else min(extent, step)
