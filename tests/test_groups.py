"""Groups of layers at the nest level: values, and that no smaller delay or ring gives them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples import SEED, examples
from group_cases import Chain, random_chain
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64

from cnncc.context import CompilerContext
from cnncc.dialects.nest import GroupOp, group_layers
from cnncc.driver.pipeline import new_context
from cnncc.errors import Refusal
from cnncc.eval import nest
from cnncc.mapping.groups import GroupLayer, RowRead, group_problem, least_ring
from cnncc.mapping.mapping import Loop, Mapping, Sizes
from cnncc.passes._scheduling.stripes import with_least_delays, with_least_rings, with_least_rows
from cnncc.passes.cnn_to_nest import CnnToNestPass
from cnncc.passes.nest_group import NestGroupPass

EXAMPLES = examples(30)


def grouped(
    chain: Chain, rows: int, layers: list[str], rowwise: bool, slack: int = 0
) -> tuple[CompilerContext, ModuleOp]:
    """The chain at the nest level, some of its layers in a group. Raises Refusal."""
    ctx = new_context()
    module = chain.module(ctx)
    CnnToNestPass().apply(ctx, module)
    NestGroupPass(tuple(layers), rows, rowwise=rowwise).apply(ctx, module)
    if slack:
        group = group_of(module)
        for number, (layer, plan) in enumerate(zip(group.layers(), group_layers(group), strict=True)):
            layer.delay = IntegerAttr(plan.delay + slack * number, i64)
            if layer.keeps is not None:
                layer.keeps = IntegerAttr(layer.sizes.data.h, i64)
    module.verify()
    return ctx, module


def group_of(module: ModuleOp) -> GroupOp:
    return next(op for op in module.walk() if isinstance(op, GroupOp))


def drawn(number: int) -> tuple[Chain, int, list[str], bool, int]:
    """A chain, rows of a stripe, a run of its layers, whether delays are in rows, and slack."""
    rng = np.random.default_rng([SEED, number])
    chain = random_chain(rng, most_images=3)
    first = int(rng.integers(0, len(chain.lines) - 1))
    end = int(rng.integers(first + 2, len(chain.lines) + 1))
    rows, slack, rowwise = int(rng.integers(1, 5)), int(rng.integers(0, 2)), bool(rng.integers(0, 2))
    return chain, min(rows, chain.dims[end][2]), chain.labels[first:end], rowwise, slack


def computed(ctx: CompilerContext, module: ModuleOp, chain: Chain) -> np.ndarray:
    return nest.evaluate(module, ctx.weights, [chain.x])[0][0]


@pytest.mark.parametrize("number", range(EXAMPLES))
def test_a_group_computes_what_its_layers_do(number: int) -> None:
    chain, rows, layers, rowwise, slack = drawn(number)
    try:
        ctx, module = grouped(chain, rows, layers, rowwise, slack)
    except Refusal as refusal:
        assert "leave one of them out" in str(refusal) or "is read by" in str(refusal) or "no later" in str(refusal)
        return
    assert np.array_equal(computed(ctx, module, chain), chain.result())


@pytest.mark.parametrize("number", range(EXAMPLES))
def test_no_smaller_delay_or_ring_does(number: int) -> None:
    """The rules ask for no more than running the stripes shows to be needed."""
    chain, rows, layers, rowwise, _ = drawn(number)
    try:
        ctx, module = grouped(chain, rows, layers, rowwise)
    except Refusal:
        return
    group = group_of(module)
    plans = group_layers(group)
    for number, (layer, plan) in enumerate(zip(group.layers(), plans, strict=True)):
        reads = [(other, read) for other in plans for read in other.reads if read.producer == number]
        fewest = max(
            (least_ring(other.stripes, read, plan.stripes, other.delay - plan.delay) for other, read in reads),
            default=0,
        )
        assert plan.keeps == fewest or rowwise  # rounded up where every second row is read
        if layer.keeps is not None and fewest > 1:
            layer.keeps = IntegerAttr(fewest - 1, i64)
            assert "(GROUP-3)" in str(group_problem(group_layers(group)))
            # Of the rows of a stripe, which are written together, no window may read the first ones.
            if fewest > plan.stripes.most_rows:
                assert "has left its ring" in _refused(group, ctx, module, chain)
            layer.keeps = IntegerAttr(plan.keeps, i64)
        if plan.delay:
            layer.delay = IntegerAttr(plan.delay - 1, i64)
            refused = _refused(group, ctx, module, chain)
            layer.delay = IntegerAttr(plan.delay, i64)
            assert "(GROUP-2)" in refused and "not computed yet" in refused


def _refused(group: GroupOp, ctx: CompilerContext, module: ModuleOp, chain: Chain) -> str:
    """What the rules and the evaluator say of a group."""
    problem = group_problem(group_layers(group))
    with pytest.raises(Refusal) as refusal:
        computed(ctx, module, chain)
    return f"{problem}; {refusal.value}"


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_ring_of_which_every_second_row_is_read_has_an_even_number_of_rows(rows: int) -> None:
    """`nest-to-array` refuses others. A late reader needs an odd number where first stripes are shorter."""
    nests = [Mapping((Loop("h", step),)) for step in (2 * rows, rows)]
    first = GroupLayer("first", "mac", Sizes(1, 1, 1, 13, 4, 1, 1), nests[0], 0)
    reads = (RowRead(0, "ifmap", extent=1, stride=2),)
    second = GroupLayer("second", "mac", Sizes(1, 1, 1, 7, 2, 1, 1), nests[1], 0, reads=reads, leaves=True)
    plans = with_least_rows([first, second])
    plans[1] = replace(plans[1], delay=plans[1].delay + 1)
    least = least_ring(plans[1].stripes, reads[0], plans[0].stripes, plans[1].delay - plans[0].delay)
    kept, last = with_least_rings(plans, [1, 2])
    assert (kept.keeps, last.keeps) == (least + 1, 0) and least == 4 * rows - 1


def test_a_ring_has_a_slot_for_each_row_of_a_stripe():
    """Rows 0 and 1 are written together. A window of one row in one row of padding reads row 1 alone."""
    around = (Sizes(1, 1, 1, 2, 4, 1, 1), Mapping((Loop("h", 2),))), (Sizes(1, 1, 1, 2, 4, 1, 1), Mapping((Loop("h"),)))
    reads = (RowRead(0, "ifmap", extent=1, stride=2, pad=1),)
    first, second = (GroupLayer(name, "mac", *each, 0) for name, each in zip("ab", around, strict=True))
    kept, _ = with_least_rings(with_least_delays([first, replace(second, reads=reads, leaves=True)]), [1, 1])
    assert kept.keeps == 2


def test_a_refusal_that_is_passed_on_can_be_printed():
    """An array that is no preset: the refusal was its own cause, and its lines had no end."""
    ctx = new_context()
    chain = drawn(0)[0]
    module = chain.module(ctx)
    CnnToNestPass().apply(ctx, module)
    module.attributes["cnncc.arch"] = StringAttr("other (4 x 4 PEs, #00000000)")
    with pytest.raises(Refusal) as raised:
        NestGroupPass(tuple(chain.labels[:2])).apply(ctx, module)
    assert raised.value.lines == [
        "nest-group: the layers are mapped to other (4 x 4 PEs, #00000000), which is no preset: arch=FILE"
    ]
