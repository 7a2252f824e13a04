"""Addresses that step evenly, against the same addresses listed."""

from __future__ import annotations

import random

import numpy as np
import pytest
from test_machine_values import Writer, random_arch

from cnncc.isa.assembly import assemble
from cnncc.machine.program import LoopNode, build_tree
from cnncc.machine.values.addresses import Descriptors, Grid, axis_index, position
from cnncc.machine.values.loop_blocks import FilesBefore, LoopBlock, OrderMatters, independent
from cnncc.machine.values.memory import Memory
from cnncc.machine.values.strided import Strided, even


@pytest.mark.parametrize("seed", range(200))
def test_strided(seed: int) -> None:
    r = random.Random(seed)
    sizes = tuple(r.randint(1, 4) for _ in range(r.randint(1, 4)))
    place = Strided(r.randint(40, 60), sizes, tuple(r.randint(-4, 9) for _ in sizes))
    listed = place.listed()
    plain = [
        [place.start + sum(i * step for i, step in zip(index, place.steps, strict=True))] for index in np.ndindex(sizes)
    ]
    assert listed.ravel().tolist() == [address for [address] in plain]
    assert place.ends == (listed.min(), listed.max())
    assert not place.distinct or np.unique(listed).size == place.size
    assert place.in_order == (listed.ravel().tolist() == list(range(place.size)))
    words = np.arange(3 * 200).reshape(3, 200)
    for array in (words, np.asfortranarray(words)):
        assert (place.of(array) == array[:, listed]).all()


@pytest.mark.parametrize(("start", "step"), [(-1, 1), (3, -2), (0, 5), (9, 1)])
def test_addresses_outside_have_no_view(start: int, step: int) -> None:
    for words in (np.zeros(10), np.zeros((10, 2)).T[1:]):
        with pytest.raises(ValueError, match=r"addresses .* are not in 0\.\.9"):
            Strided(start, (3,), (step,)).of(words)


def test_even_positions_are_the_listed_ones() -> None:
    """Loads, commits and their parameters of random programs, with loops as single iterations and as array axes."""
    found = 0
    for seed in range(300):
        r = random.Random(seed)
        program = Writer(r, random_arch(r)).write()
        descriptors = Descriptors()
        for inst in program:
            descriptors.set(inst)
        loops = [r.randint(0, 3) if r.random() < 0.5 else r.randint(0, 2) + axis_index(3, i, 5) for i in range(5)]
        for inst in program:
            if inst.spec.name not in ("load", "commit"):
                continue
            grid = Grid.of_load(inst) if inst.spec.name == "load" else Grid.of(inst, inst.number("set_rows"))
            descriptor = descriptors[inst.number("desc")]
            where = even(inst, grid, loops, descriptor)
            if where is None:
                continue
            found += 1
            address, inside = position(inst, grid, loops).address(descriptor)
            if (addresses := where.addresses(descriptor)) is None:
                assert descriptor.ring_y or descriptor.ring_x
                continue
            assert (address == addresses.listed()).all()  # a loop that steps by nothing has no axis in one of them
            assert (inside is None) == where.inside(descriptor)
    assert found > 300


def test_a_block_must_not_read_what_it_writes_nor_write_a_word_twice() -> None:
    def check(reads: Strided, *writes: Strided) -> None:
        results = [(place, np.zeros((1, *place.sizes), np.int64)) for place in writes]
        LoopBlock(1, 0, range(5), reads=[reads], writes=results).check_order(30, [results])

    evens, odds = Strided(10, (5,), (2,)), Strided(11, (5,), (2,))
    check(odds, evens)
    check(Strided(0, (10,), (1,)), evens)
    check(Strided(0, (10,), (1,)), evens, odds)
    before, behind = Strided(9, (2,), (1,)), Strided(18, (2,), (1,))  # with one word of the evens
    for reads, *writes in ((evens, evens), (odds, evens, evens), (before, evens), (behind, evens)):
        with pytest.raises(OrderMatters):
            check(reads, *writes)
    with pytest.raises(OrderMatters):
        check(Strided(0, (1,), (1,)), Strided(10, (2, 3), (1, 1)))


@pytest.mark.parametrize(("before", "inside", "behind"), [("in", "", "out"), ("out", "", ""), ("", "in", "")])
def test_a_loop_that_is_a_block_begins_with_fetches_and_ends_with_stores(before: str, inside: str, behind: str) -> None:
    first, between, last = (f"dma direction={way}\n" if way else "" for way in (before, inside, behind))
    ends = "take_ifmap=always give_ifmap=always clear=always send=always"
    body = f"{first}load kind=ifmap open=always close=always\n{between}mac op=add {ends}\ncommit\n{last}"
    loop, _ = build_tree(assemble(f"loop count=3\n{body}end\nhalt"))
    assert isinstance(loop, LoopNode)
    assert independent(loop, FilesBefore((False, 0), (False, 0), False), set(), set()) == bool(behind)


def test_a_view_of_a_memory_has_only_words_that_are_all_written() -> None:
    memory = Memory("glb", 40, 2)
    memory.write(np.arange(0, 40, 2), np.arange(20)[None])
    evens = Strided(0, (10,), (2,))
    assert memory.view(evens) is not None and memory.view(Strided(0, (3,), (1,))) is None
    assert memory.view(Strided(36, (3,), (2,))) is None
    memory.write(Strided(4, (2,), (2,)), np.array([[7, 8], [9, 10]]))
    assert memory.view(evens) is None  # some words differ between images
    assert memory.read(evens).tolist() == [[0, 1, 7, 8, 4, 5, 6, 7, 8, 9], [0, 1, 9, 10, 4, 5, 6, 7, 8, 9]]
    assert memory.read(Strided(4, (2,), (2,))).tolist() == [[7, 8], [9, 10]]
