"""Strips that are alike run as the images of one group: values at every level, counters, words, proofs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples import SEED, examples
from group_cases import PRESETS, Chain, random_chain, tensor, turn
from test_column_strips import at_nest, computed, mapped, ops
from test_group_programs import REFUSED, checked, claim_of, program_of, raced, without
from xdsl.dialects.builtin import IntegerAttr, TensorType, i16, i64
from xdsl.ir import Block, SSAValue

from cnncc.dialects._columns import ColumnsOp, JoinOp, columns_of
from cnncc.dialects.array import ViewAttr, ViewOp
from cnncc.dialects.nest import GroupOp
from cnncc.driver.pipeline import TO_PROGRAMS
from cnncc.driver.program_parts import program_parts
from cnncc.errors import Refusal
from cnncc.machine.races import races
from cnncc.machine.traps import Trap
from cnncc.model.glb_tokens import Semaphore
from cnncc.model.program_counts import program_counts
from cnncc.passes._scheduling import residency
from cnncc.passes._scheduling.residency import END_PART
from cnncc.passes.nest_group import NestGroupPass
from cnncc.proof.proof import prove

pytestmark = pytest.mark.usefixtures("short_searches")


def block(layers: int = 2, sum_in: int = -1) -> Chain:
    """So many 3x3 convolutions on 7 x 17. Layer number `sum_in` adds what it reads."""
    rng, dims = np.random.default_rng(SEED), (1, 3, 7, 17)
    chain = Chain(rng.integers(-60, 60, dims).astype(np.int64), dims=[dims] * (layers + 1))
    chain.arrays["f"] = np.array([1, 0.5, 0], np.float32)
    for number in range(layers):
        chain.arrays[f"w{number}"] = rng.integers(-9, 10, (3, 3, 3, 3)).astype(np.int16)
        chain.arrays[f"s{number}"] = rng.uniform(0.02, 0.2, (3,)).astype(np.float32)
        then, residual = f'scale = "s{number}", clamp = [-120, 120]', ""
        if number == sum_in:
            then, residual = then + ', factors = "f", add_clamp = [-99, 99]', f" residual %v{number} : {tensor(dims)}"
        chain.lines.append(
            f"%v{number + 1} = cnn.conv %v{number}{residual} weights @w{number} window <kernel = [3, 3], "
            f'pad = [1, 1, 1, 1]> then <{then}> label "l{number}" : {tensor(dims)} -> {tensor(dims)}'
        )
    return chain


BOTH = NestGroupPass(("l0", "l1"), 1, columns=3)


def test_strips_that_are_alike_are_one_group() -> None:
    """Six strips of 17 columns: the first and the last are at the border. Columns 3 to 5 read 1 to 7 of the image."""
    ctx, module = at_nest(block(), BOTH)
    groups = ops(module, GroupOp)
    assert [group.label.data for group in groups] == ["l0..l1@0", "l0..l1@1-4", "l0..l1@5"]
    assert [[(layer.sizes.data.n, layer.sizes.data.w) for layer in group.layers()] for group in groups] == [
        [(1, 4), (1, 3)],
        [(4, 5), (4, 3)],
        [(1, 3), (1, 2)],
    ]
    assert [(op.first.value.data, op.apart) for op in ops(module, ColumnsOp) if op.every] == [(1, 3)]
    assert np.array_equal(computed(ctx, module, block()), block().result())


def test_a_single_strip_counts_for_no_distance() -> None:
    """Strips every 4 columns of one that is written as every 3: they are 4 columns apart, not 7."""
    whole = Block(arg_types=[TensorType(i16, [1, 1, 3, 20])]).args[0]

    def columns(value: SSAValue, first: int, every: int, images: int, width: int) -> SSAValue:
        properties = {"first": IntegerAttr(first, i64), "every": IntegerAttr(every, i64)}
        op = ColumnsOp.create(
            operands=[value], properties=properties, result_types=[TensorType(i16, [images, 1, 3, width])]
        )
        op.verify()
        return op.results[0]

    assert columns_of(columns(columns(whole, 2, 3, 1, 18), 1, 4, 3, 4)) == (whole, 3, 4)


@pytest.mark.parametrize("change", ["first", "every"])
def test_where_strips_lie_counts(change: str) -> None:
    ctx, module = at_nest(block(), BOTH)
    (op,) = (op for op in ops(module, ColumnsOp) if op.every)
    setattr(op, change, IntegerAttr(getattr(op, change).value.data - 1, i64))
    module.verify()
    assert not np.array_equal(computed(ctx, module, block()), block().result())


def test_the_order_of_strips_counts() -> None:
    """Two joined values of the same type, of which one has four strips."""
    ctx, module = at_nest(block(), replace(BOTH, columns=1))
    (join,) = ops(module, JoinOp)
    labels = [group.label.data for group in ops(module, GroupOp)]
    assert labels == [f"l0..l1@{at}" for at in ("0", "1", "2-14", "15", "16")]
    first, second, third, *others = join.operands
    join.operands = [first, third, second, *others]
    module.verify()
    assert not np.array_equal(computed(ctx, module, block()), block().result())


@pytest.mark.parametrize(
    ("layers", "sum_in", "arch", "streamed", "rolled"),
    [
        (2, -1, "spatial-8x8", True, True),
        (2, 0, "spatial-4x4", False, False),  # the image is resident, and a ring holds the sums
        (2, 1, "seed-4x4", False, True),
        (3, -1, "spatial-4x4", False, True),  # l2 reads the result of the group in the GLB
        (3, 1, "spatial-4x4", False, False),
    ],
)
def test_programs_of_strips(
    layers: int, sum_in: int, arch: str, streamed: bool, rolled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit has one start: where a residual or a result alone lies in a whole value, each strip is a group."""
    monkeypatch.setattr(residency, "END_PART", END_PART if streamed else 0)
    chain = block(layers, sum_in)
    compilation = mapped(chain, arch, BOTH)
    assert any(op.every for op in ops(compilation.module, ColumnsOp)) == rolled
    checked(compilation, chain)
    assert raced(compilation, chain, program_of(compilation)) == []
    assert prove(claim_of(compilation, chain), 30.0).failures == []


def test_weights_come_once_for_strips_that_are_alike() -> None:
    compilation = mapped(block(), "spatial-8x8", BOTH)
    counters = program_counts(program_parts(compilation.module, {}), compilation.settings.arch)["layers"]
    read = {name: layer["words"]["dram_read"] for name, layer in counters.items() if name.startswith("l0..l1")}
    weights = 2 * (3 * 3 * 9 + 3 * 2)
    assert read == {
        name: weights + strips * 3 * 7 * columns
        for name, strips, columns in (("l0..l1@0", 1, 5), ("l0..l1@1-4", 4, 7), ("l0..l1@5", 1, 4))
    }


@pytest.mark.parametrize("tensor_name", ["x.columns1", "l1@1-4"])
def test_a_proof_finds_strips_that_lie_elsewhere(tensor_name: str) -> None:
    """The strips of the image, or of the result, 2 columns apart."""
    chain, changed = block(), 0
    wrong = mapped(chain, "spatial-4x4", BOTH)
    for step in wrong.remaining():
        wrong.step(step)
        for op in ops(wrong.module, ViewOp) if step.name == TO_PROGRAMS else []:
            if (record := op.record.data).tensor == tensor_name:
                steps = tuple(replace(each, step=2) if each.step == 3 else each for each in record.steps)
                op.record, changed = ViewAttr(replace(record, steps=steps)), changed + (steps != record.steps)
    assert changed
    assert prove(claim_of(wrong, chain), 1.0).failures


def test_every_deleted_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of stripes, of rows that have come and of rows that are read.

    The result is resident: results on their way to DRAM would order the transfers. Long queues order nothing.
    """
    monkeypatch.setattr(residency, "END_PART", 0)
    compilation = checked(mapped(block(3), "spatial-4x4", BOTH), block(3))
    program, arch, deleted = program_of(compilation), compilation.settings.arch, 0
    arch = replace(arch, sequencer=replace(arch.sequencer, queue_depth=4000))
    assert races(program, arch)[0] == []
    semaphores = (Semaphore.STRIPE_FULL, Semaphore.ROWS_FULL, Semaphore.ROWS_FREE)
    gives = [number for number, inst in enumerate(program) if inst.values.get("give") == Semaphore.ROWS_FREE]
    last = gives[-1]  # no transfer comes behind it
    for number, inst in enumerate(program):
        for side in ("take", "give"):
            if (changed := without(inst, side, semaphores=semaphores)) == inst:
                continue
            deleted += 1
            try:
                found, _ = races([*program[:number], changed, *program[number + 1 :]], arch)
            except Trap as trap:
                assert "deadlock" in str(trap)
            else:
                assert found or (number, side) == (last, "give"), f"{number}: {side} of {inst.spec.name}"
    assert deleted > 20


def drawn(number: int) -> tuple[Chain, NestGroupPass]:
    """A chain of one image, and a group of narrow strips."""
    rng = np.random.default_rng([SEED, 79, number])
    while True:
        chain = random_chain(rng, most_images=1, most_cols=24)
        first = int(rng.integers(0, len(chain.lines) - 1))
        end = int(rng.integers(first + 2, len(chain.lines) + 1))
        _, _, height, width = chain.dims[end]
        if width > 5:
            rows, rowwise = min(int(rng.integers(1, 5)), height), bool(rng.integers(0, 2))
            columns = int(rng.integers(1, 1 + width // 4))
            return chain, NestGroupPass(tuple(chain.labels[first:end]), rows, rowwise=rowwise, columns=columns)


def test_drawn_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    rolled = 0
    for number in range(examples(3)):
        monkeypatch.setattr(residency, "END_PART", END_PART if turn(number) % 2 else 0)
        chain, group = drawn(number)
        try:
            compilation = mapped(chain, PRESETS[number % len(PRESETS)], group)
            rolled += any(op.every for op in ops(compilation.module, ColumnsOp))
            checked(compilation, chain)
        except Refusal as refusal:
            assert any(reason in str(refusal) or reason in str(refusal.findings) for reason in REFUSED), refusal
            continue
        assert raced(compilation, chain, program_of(compilation)) == []
    assert rolled >= examples(3) // 4
