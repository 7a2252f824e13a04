"""Places in the GLB: the packing against one that looks at every word, and the messages where there is no place."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from array_cases import module
from drawn import compiled_at_random
from examples import SEED, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from xdsl.dialects.func import FuncOp

from cnncc.arch.model import Glb, load_arch
from cnncc.dialects.array import TensorAttr, TensorOp
from cnncc.dialects.nest import LayerOp, mapping_of
from cnncc.driver.pipeline import NONE, Compilation, Settings, import_model
from cnncc.errors import Refusal
from cnncc.passes._programs.glb_packing import TRIES, Lifetime, first_fit, fits, numbered, pack
from cnncc.passes._scheduling.network_values import Network
from cnncc.passes._scheduling.prefetch import _before, lifetimes, resident_values
from cnncc.passes._scheduling.smaller_budgets import prefetchable
from cnncc.passes.array_allocate import _lifetimes, allocate


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


@pytest.mark.usefixtures("short_searches")
@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_the_mapper_packs_is_what_the_program_has(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """As many words, needed at the same time: then what has a place for the mapper has one in the program."""
    compiled_at_random(data, tmp_path_factory.getbasetemp(), check_lifetimes)


@pytest.mark.usefixtures("short_searches")
def test_partial_sums_of_a_part_have_the_gaps_of_its_images(tmp_path: Path) -> None:
    """They lie as the results do: two images of a channel of 2, sums of two words."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13]> g (float[2,18,1,1] x) => (float[2,2,1,1] y) {
            [a] a = Conv (x, w)
            [y] y = Concat <axis = 1> (a, a)
        }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 18, 1, 1), np.float32), "w"))
    onnx.save(model, tmp_path / "net.onnx")
    mapping = "weight@glb > params@glb > c':6 > weight@rf > n > ifmap@rf > {c''}"
    (tmp_path / "given.toml").write_text(f'[a]\nmapping = "{mapping}"\n')
    settings = Settings(load_arch("spatial-4x4"), "spatial-4x4", 16, schedule=str(tmp_path / "given.toml"))
    compilation = import_model(tmp_path / "net.onnx", None, settings)
    check_lifetimes(compilation)
    sizes = {op.record.data.name: op.record.data.words for op in compilation.module.ops if isinstance(op, TensorOp)}
    assert sizes["a.sums.glb"] == (2 + 1) * 2


def check_lifetimes(compilation: Compilation) -> None:
    compilation.settings = replace(compilation.settings, groups=NONE)
    compilation.run_before("nest-to-array")
    func = next(op for op in compilation.module.walk() if isinstance(op, FuncOp))
    network, mappings = Network(func), {op: mapping_of(op) for op in func.walk() if isinstance(op, LayerOp)}
    mapped = lifetimes(network, compilation.settings.arch, mappings, [])
    in_glb = {value.root for value in resident_values(network, mappings)}
    for layer, mapping in mappings.items():
        if layer.prefetched is not None and (before := _before(network, layer, in_glb)) is not None:
            names = [f"{operand} {network.number[layer]}" for operand in prefetchable(mapping)]
            mapped |= {name: mapped[name]._replace(first=before) for name in names}
    compilation.run_before("array-allocate")
    records = [op.record.data for op in compilation.module.ops if isinstance(op, TensorOp)]
    programmed = _lifetimes(compilation.module, {record.name: record for record in records})
    assert in_steps(mapped.values()) == in_steps(programmed)


def in_steps(lifetimes: Iterable[Lifetime]) -> list[tuple[int, int, int]]:
    return sorted(
        (words, first, last) for _, words, first, last in numbered([each for each in lifetimes if each.words])
    )


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
    placed = allocate(program, Glb(50, 1))
    assert placed.items() >= {"a": 0, "b": 30, "part": 37, "c": 0}.items() and "unused" not in placed
    with pytest.raises(
        Refusal, match="layer p: its tensors and those kept for later take 50 words, .* = 49; .* is 50:"
    ):
        allocate(program, Glb(49, 1))
    with pytest.raises(Refusal, match="array-allocate: 2 problems") as refusal:
        allocate(program, Glb(44, 1))
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
        allocate(program, Glb(50, 1))
    program, _ = module()
    (weights,) = (op for op in program.ops if isinstance(op, TensorOp) and op.record.data.name == "conv1.w")
    weights.record = TensorAttr(replace(weights.record.data, words=71))
    with pytest.raises(Refusal, match="tensor conv1.w: 71 words, its weights have 72"):
        allocate(program, Glb(999, 1))
