"""Channels between cores: which stripes wait for which, and how few rows do (docs/cores.md, CHANNEL-2 to CHANNEL-4)."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnncc.mapping.channels import Channel, Link, Reader, Region, channel_problem, regions_problem
from cnncc.mapping.groups import GroupLayer, Point, RowRead
from cnncc.mapping.mapping import Loop, Mapping, Sizes
from tests.examples import examples


def layer(label: str, height: int, rows: int) -> GroupLayer:
    return GroupLayer(label, "mac", Sizes(1, 1, 1, height, 1, 1, 1), Mapping((Loop("h", rows),)), 0)


def link_of(channel: Channel) -> Link:
    return Link((channel,))


def stripes(points: frozenset[Point]) -> frozenset[int]:
    """Of layers without delays."""
    return frozenset(step for step, _ in points)


def channel(height: int, read: RowRead, keeps: int, rows: int = 1, of_consumer: int = 1) -> Channel:
    results = (height + 2 * read.pad - read.extent) // read.stride + 1
    before, behind = [layer("a", height, rows)], [layer("b", results, of_consumer)]
    return Channel("a", before, 0, behind, (Reader(0, read),), keeps)


def runs(link: Channel, frames: int = 3) -> bool:
    """Whether both cores come to their ends, with all rows there that are read, and none overwritten before."""
    space, tokens = link.keeps, link_of(link)
    full, free = 0, tokens.primed
    takes_full, gives_full = map(stripes, tokens.full)
    takes_free, gives_free = map(stripes, tokens.free)
    consumer, read = link.behind[0], link.readers[0].read
    ring: dict[int, tuple[int, int]] = {}
    writer = deque((f, s) for f in range(frames) for s in range(link.producer.stripes.count))
    reader = deque((f, s) for f in range(frames) for s in range(consumer.stripes.count))
    read_up_to = 0
    while True:
        moved = False
        while writer and (writer[0][1] not in takes_free or free):
            frame, stripe = writer.popleft()
            free -= stripe in takes_free
            first = link.producer.stripes.start(stripe)
            for row in range(first, first + link.producer.stripes.rows_of(stripe)):
                assert frame * link.height + row - space < read_up_to or row < 0, (
                    "a row is overwritten that is read later"
                )
                ring[row % link.ring] = frame, row
            full += stripe in gives_full
            moved = True
        while reader and (reader[0][1] not in takes_full or full):
            frame, stripe = reader.popleft()
            full -= stripe in takes_full
            low, end = consumer.stripes.reads(read, stripe, link.height)
            for row in range(low, end):
                assert ring.get(row % link.ring) == (frame, row), "a row is read that is not there"
            last = stripe == consumer.stripes.count - 1
            following = consumer.stripes.reads(read, stripe + 1, link.height)[0]
            read_up_to = (frame + 1) * link.height if last else max(read_up_to, frame * link.height + following)
            free += stripe in gives_free
            moved = True
        if not moved:
            return not writer and not reader


def test_a_window_of_three_rows():
    """The example of CHANNEL-3 and CHANNEL-4."""
    link = channel(14, RowRead(0, "ifmap", 3, 1, 1), 3)
    tokens = link_of(link)
    assert (link.least, link.ring, tokens.primed) == (3, 7, 2)
    assert (*map(stripes, tokens.full),) == (frozenset(range(13)), frozenset(range(1, 14)))
    assert stripes(tokens.free.takes) == frozenset(range(14)) - {2}
    assert stripes(tokens.free.gives) == frozenset(range(14)) - {0}


def test_a_pool_takes_a_token_for_two_rows():
    link = channel(28, RowRead(0, "ifmap", 2, 2), 4, rows=2)
    assert (link.least, link.ring, link_of(link).primed) == (2, 4, 2)
    assert (*map(stripes, link_of(link).full),) == (frozenset(range(14)), frozenset(range(14)))


def test_a_ring_has_a_slot_for_each_row_of_a_stripe():
    """Rows 0 and 1 are written together, then 2 and 3. A window in a row of padding reads rows 1 and 3 alone."""
    link = channel(5, RowRead(0, "ifmap", 1, 2, 1), 2, rows=2)
    assert (link.least, link.ring) == (2, 5) and channel_problem(link) is None
    assert "keeps 1 rows, the fewest are 2" in (channel_problem(replace(link, keeps=1)) or "")


def test_what_is_refused():
    link = channel(7, RowRead(0, "ifmap", 3, 1, 1), 2)
    assert "keeps 2 rows, the fewest are 3" in (channel_problem(link) or "")
    assert "holds 1 to 7 rows" in (channel_problem(replace(link, keeps=8)) or "")
    assert channel_problem(replace(link, keeps=3)) is None
    nothing = Channel("a", [layer("a", 1, 1)], 0, [layer("b", 1, 1)], (Reader(0, RowRead(0, "ifmap", 1, 2, 1)),), 1)
    assert "nothing reads a row" in (channel_problem(nothing) or "")
    for none in (Region(0, 2), Region(2, 0), Region(1, 1, -1), Region(1, 1, 0, -1)):
        assert "it has 1 row and 1 column or more, from 0,0 on" in (regions_problem([("a", none)]) or "")
    assert "both have PE 1,1" in (regions_problem([("a", Region(2, 2)), ("b", Region(2, 2, 1, 1))]) or "")


@given(
    height=st.integers(1, 17), extent=st.integers(1, 5), stride=st.integers(1, 3), pad=st.integers(0, 3),
    rows=st.integers(1, 4), of_consumer=st.integers(1, 4), more=st.integers(0, 4),
)  # fmt: skip
@settings(max_examples=examples(300))
def test_the_fewest_rows_run_and_one_less_does_not(height, extent, stride, pad, rows, of_consumer, more):
    if height + 2 * pad < extent:
        return
    link = channel(height, RowRead(0, "ifmap", extent, stride, min(pad, extent - 1)), height, rows, of_consumer)
    if channel_problem(link):
        pytest.fail(channel_problem(link))
    least = link.least
    assert runs(replace(link, keeps=min(height, least + more)))
    if least > 1:
        assert not runs(replace(link, keeps=least - 1))
