"""Cores side by side at the nest level: values in any order of the cores, and when the cores wait for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from core_chains import CoreCase, core_case
from examples import SEED, examples
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.utils.exceptions import VerifyException

from cnncc.dialects.nest import chain_of
from cnncc.errors import Refusal
from cnncc.eval import nest
from cnncc.mapping.channels import Channel, Link, Reader, image_tokens
from cnncc.mapping.groups import GroupLayer, RowRead, least_lag
from cnncc.mapping.liveness import CoreChainData, liveness_problem
from cnncc.mapping.mapping import Loop, Mapping, Sizes

Order = Callable[[Sequence[int]], int]


def orders(number: int) -> list[Order]:
    """The first core that can go on, the last one, any."""
    rng = np.random.default_rng([SEED, number])
    return [lambda ready: ready[0], lambda ready: ready[-1], lambda ready: int(rng.choice(ready))]


def computed(case: CoreCase, order: Order) -> np.ndarray:
    return nest.evaluate(case.module, case.ctx.weights, [case.frames], order=order)[0][0]


@pytest.mark.parametrize("number", range(examples(8)))
def test_cores_compute_what_their_layers_do_in_any_order(number: int) -> None:
    case = core_case(number, SEED)
    case.module.verify()
    wanted = case.result()
    for order in orders(number):
        assert np.array_equal(computed(case, order), wanted)


@pytest.mark.parametrize("number", range(examples(8)))
def test_a_channel_of_one_row_less_is_refused_and_does_not_run(number: int) -> None:
    case = core_case(number, SEED, more=0)
    for op in case.cores.channels():
        keeps = op.keeps.value.data
        if keeps == 1:
            continue
        op.keeps = IntegerAttr(keeps - 1, i64)
        fewest, others = rf"keeps {keeps - 1} rows, the fewest are {keeps}", rf"{op.label.data} keeps {keeps} would do"
        with pytest.raises(VerifyException, match=f"{fewest}|{others}"):
            case.module.verify()
        with pytest.raises(Refusal, match="deadlock"):
            computed(case, orders(number)[-1])
        op.keeps = IntegerAttr(keeps, i64)
    case.module.verify()


@pytest.mark.parametrize("number", range(examples(8)))
def test_cores_go_on_with_every_lag(number: int) -> None:
    case = core_case(number, SEED)
    lag = 3 + number % 4
    case.cores.lag = IntegerAttr(lag, i64)
    case.frames = np.concatenate([case.frames] * (2 + lag))
    case.module.verify()
    for order in orders(number):
        assert np.array_equal(computed(case, order), case.result())


def plain_chain(rng: np.random.Generator) -> CoreChainData:
    """Two to five cores of one or two layers each, with channels of the fewest rows."""
    height, groups, reads = int(rng.integers(3, 24)), list[list[GroupLayer]](), list[RowRead]()
    image = height
    for core in range(int(rng.integers(2, 6))):
        stripe, group = int(rng.integers(1, 4)), list[GroupLayer]()
        for number in range(int(rng.integers(1, 3))):
            extent, stride = int(rng.integers(1, min(5, height) + 1)), int(rng.integers(1, 4))
            read = RowRead(number - 1, "ifmap", extent, stride, int(rng.integers(0, extent)))
            results = (height + 2 * read.pad - extent) // stride + 1
            plain = GroupLayer(
                f"{core}.{number}", "mac", Sizes(1, 1, 1, results, 1, 1, 1), Mapping((Loop("h", stripe),)), 0
            )
            if group:
                lag = least_lag(plain.stripes, read, group[-1].stripes) + int(rng.integers(0, 2))
                group.append(replace(plain, delay=lag, reads=(read,)))
            else:
                reads.append(replace(read, producer=0))
                group.append(plain)
            height = results
        group[-1] = replace(group[-1], leaves=True)
        groups.append(group)
    pairs = zip(groups, groups[1:], reads[1:], strict=False)
    whole = [
        Channel(one[-1].label, one, len(one) - 1, two, (Reader(0, read),), one[-1].sizes.h) for one, two, read in pairs
    ]
    links = [Link((replace(channel, keeps=channel.least),)) for channel in whole]
    return CoreChainData(groups, links, image_tokens(groups[0], [Reader(0, reads[0])], image))


@pytest.mark.parametrize("number", range(examples(80)))
def test_the_fewest_rows_of_every_channel_are_exactly_those_with_which_the_chain_goes_on(number: int) -> None:
    chain = plain_chain(np.random.default_rng([SEED, number]))
    if not all(link.full.takes for link in chain.links):
        return  # a channel of which no row is read is refused
    assert liveness_problem(chain) is None
    for channel in chain.channels:
        if channel.least > 1:
            assert chain.with_keeps(channel.label, channel.least - 1).stuck()


def test_a_token_too_many_is_noticed_where_a_row_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer runs ahead, and the reader finds a later row in the slot."""
    cases = (core_case(number, SEED, more=0) for number in range(40))
    chains = ((case, chain_of(case.cores).channels) for case in cases)
    case = next(case for case, channels in chains if channels and all(each.ring == each.keeps for each in channels))
    primed = Link.primed.fget
    monkeypatch.setattr(Link, "primed", property(lambda link: primed(link) + 1))
    with pytest.raises(Refusal, match="has left its ring|row .* is not computed yet"):
        computed(case, min)


def test_two_channels_between_cores_may_need_more_rows_than_each_alone() -> None:
    """Row 0 of b needs row 2 of a. Before that comes row 2 of v, of which row 1 is not read yet."""

    def plain(label: str, leaves: bool = True) -> GroupLayer:
        return GroupLayer(label, "mac", Sizes(1, 1, 1, 8, 1, 1, 1), Mapping((Loop("h", 1),)), 0, leaves=leaves)

    before, behind = [plain("v"), plain("a")], [plain("copy", False), plain("b")]
    readers = (Reader(0, RowRead(0, "ifmap")),), (Reader(1, RowRead(1, "ifmap", 5, 1, 2)),)
    whole = [Channel(before[at].label, before, at, behind, readers[at], 8) for at in range(2)]
    link = Link(tuple(replace(channel, keeps=channel.least) for channel in whole))
    chain = CoreChainData([before, behind], [link], image_tokens(before, [Reader(0, RowRead(0, "ifmap"))], 8))
    assert [channel.keeps for channel in chain.channels] == [1, 5]
    problem = liveness_problem(chain)
    assert problem and "core v..a for space of v or a" in problem and ": v keeps 2 would do (CHANNEL-5)" in problem
    assert liveness_problem(chain.with_keeps("v", 2)) is None
