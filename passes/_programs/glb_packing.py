"""Places of tensors in the GLB: those that are needed at the same time share no word. No pass.

`array-allocate` places the tensors of a program by it. The choice of mappings asks what has a place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

TRIES = 16  # of an order; ResNet-20 with 65,216 of 65,536 words in use needs 7


class Lifetime(NamedTuple):
    """`words` words that are needed from layer number `first` to layer number `last`."""

    name: str
    words: int
    first: int
    last: int


def numbered(lifetimes: Sequence[Lifetime]) -> list[Lifetime]:
    """The same lifetimes, counted in steps: one begins with each lifetime that begins after another one's end.

    Two lifetimes meet in the same cases as before. Layers at which none begins or ends do not count. So the mapper,
    which numbers all ops, and `array-allocate`, which numbers layers and copies, pack in the same way.
    """
    ends, steps = sorted(each.last for each in lifetimes), list[int]()
    for first in sorted(each.first for each in lifetimes):
        # What was there at the last step has ended in part: this one does not meet all of it, and begins a new step.
        if not steps or ends[bisect_left(ends, steps[-1])] < first:
            steps.append(first)
    return [
        Lifetime(name, words, bisect_right(steps, first) - 1, bisect_right(steps, last) - 1)
        for name, words, first, last in lifetimes
    ]


def first_fit(lifetimes: Sequence[Lifetime]) -> dict[str, int]:
    """A first word for each name, in the order given, so that no two which meet overlap."""
    placed = list[tuple[int, int, int, int]]()  # start, end, first, last; by start
    starts = dict[str, int]()
    for name, words, first, last in lifetimes:
        at = 0
        # By start: the first gap that is large enough is the lowest one.
        for start, end, begins, ends in placed:
            if begins <= last and first <= ends:
                if start >= at + words:
                    break
                at = max(at, end)
        insort(placed, (at, at + words, first, last))
        starts[name] = at
    return starts


def pack(lifetimes: Sequence[Lifetime]) -> tuple[int, dict[str, int]]:
    """The fewest words found that hold all, and a first word for each name."""
    needed, places = 0, dict[str, int]()
    for group in _apart(lifetimes):
        words, starts = _pack(group)
        needed, places = max(needed, words), places | starts
    return needed, places


def fits(lifetimes: Sequence[Lifetime], words: int) -> bool:
    """Whether `pack` finds a place for all in so many words."""
    return _live(lifetimes) <= words and all(_fits(group, words) for group in _apart(lifetimes))


def _apart(lifetimes: Sequence[Lifetime]) -> list[tuple[Lifetime, ...]]:
    """Groups such that no lifetime of one meets one of another. Each has the order of `lifetimes`."""
    begins, end = list[int](), None
    for first, last in sorted((each.first, each.last) for each in lifetimes):
        if end is None or first > end:
            begins.append(first)
            end = last
        end = max(end, last)
    groups = [list[Lifetime]() for _ in begins]
    for each in lifetimes:
        groups[bisect_right(begins, each.first) - 1].append(each)
    return [*map(tuple, groups)]


def _live(lifetimes: Sequence[Lifetime]) -> int:
    """The most words that are needed at the same time."""
    changes = defaultdict[int, int](int)
    for each in lifetimes:
        changes[each.first] += each.words
        changes[each.last + 1] -= each.words
    return max(accumulate(changes[number] for number in sorted(changes)), default=0)


def _pack(group: tuple[Lifetime, ...]) -> tuple[int, dict[str, int]]:
    least, best = _live(group), (-1, dict[str, int]())
    for packed in _packed(group):
        best = packed if best[0] < 0 else min(best, packed, key=itemgetter(0))
        if best[0] == least:
            break
    return best


@lru_cache(maxsize=4096)
def _fits(group: tuple[Lifetime, ...], words: int) -> bool:
    """The mapper asks for many networks that differ in few layers."""
    return any(needed <= words for needed, _ in _packed(group))


def _packed(group: Sequence[Lifetime]) -> Iterator[tuple[int, dict[str, int]]]:
    """Tried are the largest first, as they fit least easily, and those first that are needed longest.

    Then what lies highest goes first, again and again.
    Source: Pisarchyk and Lee, Efficient memory management for deep neural net inference, 2020 (greedy by size).
    """
    by_size = sorted(numbered(group), key=lambda tensor: (-tensor.words, tensor.first, tensor.last))
    for order in (by_size, sorted(by_size, key=lambda tensor: tensor.first - tensor.last)):
        for _ in range(TRIES):
            at = first_fit(order)
            ends = [at[tensor.name] + tensor.words for tensor in order]
            needed = max(ends)
            yield needed, at
            order.insert(0, order.pop(ends.index(needed)))
