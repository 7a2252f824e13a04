"""Places in the GLB: the packing against one that looks at every word, and the messages where there is no place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from array_cases import module
from examples import SEED, examples

from cnncc.dialects.array import TensorAttr, TensorOp
from cnncc.errors import Refusal
from cnncc.passes._programs.glb_packing import TRIES, Lifetime, first_fit, fits, numbered, pack
from cnncc.passes.array_allocate import allocate


def meet(one: Lifetime, other: Lifetime) -> bool:
    return not (set(range(one.first, one.last + 1)).isdisjoint(range(other.first, other.last + 1)))


def slowly_placed(lifetimes: Sequence[Lifetime]) -> dict[str, int]:
    """Each at the lowest word from which on all are free."""
    starts = dict[str, int]()
    for i, each in enumerate(lifetimes):
        taken = {
            word
            for other in lifetimes[:i]
            if meet(each, other)
            for word in range(starts[other.name], starts[other.name] + other.words)
        }
        starts[each.name] = next(at for at in range(999) if taken.isdisjoint(range(at, at + each.words)))
    return starts


def slowly_packed(lifetimes: Sequence[Lifetime]) -> tuple[int, dict[str, int]]:
    """What never meets is packed apart: steps that no lifetime crosses part the others."""
    needed, starts = 0, dict[str, int]()
    left = list(lifetimes)
    while left:
        group = left[:1]
        while more := [each for each in left if each not in group and any(meet(each, other) for other in group)]:
            group += more
        words, places = slowly_packed_group([each for each in left if each in group])
        needed, starts = max(needed, words), starts | places
        left = [each for each in left if each not in group]
    return needed, starts


def slowly_packed_group(lifetimes: Sequence[Lifetime]) -> tuple[int, dict[str, int]]:
    """The largest first, then the longest first; what lies highest goes first the next time."""
    by_size = sorted(lifetimes, key=lambda each: (-each.words, each.first, each.last))
    found = list[tuple[int, dict[str, int]]]()
    for order in (by_size, sorted(by_size, key=lambda each: each.first - each.last)):
        again = list(order)
        for _ in range(TRIES):
            at = slowly_placed(again)
            ends = {each.name: at[each.name] + each.words for each in again}
            found.append((max(ends.values()), at))
            highest = next(each for each in again if ends[each.name] == found[-1][0])
            again = [highest, *(each for each in again if each is not highest)]
    least = min(words for words, _ in found)
    return next(each for each in found if each[0] == least)


def drawn(rng: random.Random) -> list[Lifetime]:
    each = [(rng.randrange(1, 7), rng.randrange(9), rng.randrange(4)) for _ in range(rng.randrange(1, 9))]
    return [Lifetime(f"t{i}", words, first, first + more) for i, (words, first, more) in enumerate(each)]


def test_packing_is_what_one_does_that_looks_at_every_word() -> None:
    rng, needs_tries = random.Random(SEED), 0
    for _ in range(examples(120)):
        some = drawn(rng)
        assert first_fit(some) == slowly_placed(some), some
        needed, at = pack(some)
        live = max(sum(each.words for each in some if each.first <= i <= each.last) for i in range(13))
        slow, slow_at = slowly_packed(numbered(some))
        assert needed == slow >= live and at == slow_at, some
        assert fits(some, needed) and not fits(some, needed - 1), some
        by_size = sorted(some, key=lambda each: -each.words)
        needs_tries += needed < max(slowly_placed(by_size)[each.name] + each.words for each in by_size)
    assert needs_tries > 3
    assert pack([]) == (0, {}) and fits([], 0)


def test_packing_goes_on_where_there_is_little_room() -> None:
    each = (
        (6, 6, 9), (3, 7, 7), (4, 6, 7), (6, 8, 9), (6, 7, 7), (7, 2, 2), (5, 5, 7), (7, 4, 4), (5, 4, 7), (6, 1, 4),
        (7, 4, 6),
    )  # fmt: skip
    some = [Lifetime(str(number), *life) for number, life in enumerate(each)]
    assert not fits(some, 29) and pack(some)[0] == pack(some, 30)[0] == 30
    needed, at = pack(some, 29)
    assert needed == 29 == max(at[each.name] + each.words for each in some)
    for a, b in ((a, b) for a in some for b in some if a.name < b.name and meet(a, b)):
        assert at[a.name] + a.words <= at[b.name] or at[b.name] + b.words <= at[a.name]
    assert pack(some, 1)[0] == 30  # no packing has room


def test_numbers_of_steps_say_who_meets_and_nothing_else() -> None:
    rng = random.Random(SEED + 1)
    for _ in range(examples(120)):
        some = drawn(rng)
        steps = numbered(some)
        for a, b in ((a, b) for a in range(len(some)) for b in range(len(some))):
            assert meet(some[a], some[b]) == meet(steps[a], steps[b]), some
        # A step for each lifetime that begins behind another's end: no step can be left out.
        assert sorted({each.first for each in steps}) == list(range(1 + max(each.last for each in steps))), some
        apart = [each._replace(first=3 * each.first + 1, last=3 * each.last + 2) for each in some]
        assert numbered(apart) == steps == numbered(steps), some


TENSORS = """
array.tensor a, memory glb, words 30
array.tensor b, memory glb, words 20
array.tensor part, memory glb, words 5, part_of b, offset 7
array.tensor c, memory glb, words 25
array.tensor unused, memory glb, words 1000
"""


def layers(*views: str) -> list[str]:
    """A layer for each, with views on these tensors."""
    return [
        f'array.layer "{name}" computes "{name}" {{'
        + " ".join(f"array.view v{i}, tensor {name}" for i, name in enumerate(each.split()))
        + " }"
        for name, each in zip("pqr", views, strict=False)
    ]


def test_tensors_live_from_their_first_view_to_their_last() -> None:
    """By hand: a and b are needed in p, b and c in r; a is the largest, then c, which does not meet it."""
    program, _ = module(TENSORS, *layers("a b", "b", "c part"))
    placed = allocate(program, 50)
    assert placed.items() >= {"a": 0, "b": 30, "part": 37, "c": 0}.items() and "unused" not in placed
    with pytest.raises(
        Refusal, match="layer p: its tensors and those kept for later take 50 words, .* = 49; .* is 50:"
    ):
        allocate(program, 49)
    with pytest.raises(Refusal, match="array-allocate: 2 problems") as refusal:
        allocate(program, 44)
    assert [(each.where, each.value, each.limit) for each in refusal.value.findings] == [("p", 50, 44), ("r", 45, 44)]


def test_gaps_between_what_meets_may_be_too_small() -> None:
    """At most 8 words are needed at a time, and no order that is tried finds a place for all in them."""
    some = [(2, 3, 5), (3, 2, 2), (1, 2, 3), (3, 4, 5), (3, 2, 4)]
    lifetimes = [Lifetime(str(i), *each) for i, each in enumerate(some)]
    assert not fits(lifetimes, 8) and fits(lifetimes, 9) and pack(lifetimes)[0] == 9


def test_what_the_verifier_does_not_see_is_refused() -> None:
    parts = "".join(f"array.tensor {a}, memory glb, words 4, part_of {b}\n" for a, b in ("de", "ef", "fe"))
    program, _ = module(parts, *layers("d"))
    with pytest.raises(Refusal, match="tensor 'f' is part of 'e', which does not exist, or of itself"):
        allocate(program, 50)
    program, _ = module()
    (weights,) = (op for op in program.ops if isinstance(op, TensorOp) and op.record.data.name == "conv1.w")
    weights.record = TensorAttr(replace(weights.record.data, words=71))
    with pytest.raises(Refusal, match="tensor conv1.w: 71 words, its weights have 72"):
        allocate(program, 999)
