"""Groups with elementwise layers, which become sums of one pixel: values at every level, predicted counters, proofs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from examples import SEED, examples
from group_cases import PRESETS, Chain, random_chain, tensor
from test_column_strips import computing_the_chain, mapped
from test_group_programs import REFUSED, checked, claim_of, program_of, raced

from cnncc.arch.model import arch_text, load_arch
from cnncc.dialects.nest import GroupOp
from cnncc.driver.pipeline import AUTO, TO_PROGRAMS
from cnncc.errors import Refusal
from cnncc.passes.nest_group import NestGroupPass
from cnncc.proof.proof import prove

pytestmark = pytest.mark.usefixtures("short_searches")


def drawn(number: int) -> tuple[Chain, NestGroupPass]:
    """A chain, and a group of a run of its layers, one of them elementwise; every third in strips of columns."""
    rng = np.random.default_rng([SEED, 78, number])
    while True:
        chain = random_chain(rng, most_images=3, most_cols=9, elementwise=True)
        first = int(rng.integers(0, len(chain.lines) - 1))
        end = int(rng.integers(first + 2, len(chain.lines) + 1))
        if any("cnn.add" in line for line in chain.lines[first:end]):
            _, _, height, width = chain.dims[end]
            columns = 0 if number % 3 else min(int(rng.integers(1, 6)), width)
            rows = min(int(rng.integers(1, 5)), height)
            return chain, NestGroupPass(tuple(chain.labels[first:end]), rows, columns=columns)


@pytest.mark.parametrize("number", range(examples(12)))
def test_groups_with_elementwise_layers(number: int) -> None:
    if module := computing_the_chain(*drawn(number)):
        groups = (each for each in module.walk() if isinstance(each, GroupOp))
        assert not any("copy" in str(op.kind) for group in groups for op in group.layers())


@pytest.mark.parametrize("number", range(examples(5)))
def test_programs_with_elementwise_layers(number: int) -> None:
    chain, group = drawn(number)
    try:
        compilation = checked(mapped(chain, PRESETS[number % len(PRESETS)], group), chain)
    except Refusal as refusal:
        assert any(reason in str(refusal) for reason in REFUSED), refusal
        return
    assert raced(compilation, chain, program_of(compilation)) == []


def test_a_sum_of_two_branches() -> None:
    """l2 = (3 l0 + l1) / 4, saturated; l1 is a 3x3 convolution of l0. The proof sees a sum of other layers."""
    rng, dims = np.random.default_rng(SEED), (1, 2, 7, 6)
    chain = Chain(rng.integers(-60, 60, dims).astype(np.int64), dims=[dims] * 5)
    for number in (0, 1, 3):
        chain.arrays[f"w{number}"] = rng.integers(-9, 10, (2, 2, 3, 3)).astype(np.int16)
    chain.arrays["f2"] = np.array([0.75, 0.25, 0], np.float32)
    for number in range(4):
        op = f"cnn.conv %v{number} weights @w{number} window <kernel = [3, 3], pad = [1, 1, 1, 1]>"
        then = f'scale = "s{number}", clamp = [-100, 100]'
        if number == 2:
            op, then = f"cnn.add %v1 residual %v2 : {tensor(dims)}", 'factors = "f2", add_clamp = [-60, 60]'
        else:
            chain.arrays[f"s{number}"] = rng.uniform(0.05, 0.2, (2,)).astype(np.float32)
        chain.lines.append(f'%v{number + 1} = {op} then <{then}> label "l{number}" : {tensor(dims)} -> {tensor(dims)}')
    compilation = checked(mapped(chain, "spatial-4x4", NestGroupPass(("l0", "l1", "l2", "l3"), 1)), chain)
    claim = claim_of(compilation, chain)
    assert prove(claim, 30.0).failures == []
    wrong = replace(chain, lines=[line.replace("residual %v2", "residual %v1") for line in chain.lines])
    assert prove(replace(claim, module=wrong.module(compilation.ctx)), 1.0).failures


def residual_of_two_readers() -> Chain:
    """l1 adds l0 and the image. Both are read later, so that the sum is a layer of its own; l2 reads it."""
    rng, dims = np.random.default_rng(SEED), (1, 4, 24, 24)
    chain = Chain(rng.integers(-60, 60, dims).astype(np.int64), dims=[dims] * 4)
    chain.arrays["f1"] = np.array([0.75, 0.25, 0], np.float32)
    for number in range(3):
        op = f"cnn.conv %v{number} weights @w{number} window <kernel = [3, 3], pad = [1, 1, 1, 1]>"
        then = f'scale = "s{number}", clamp = [-100, 100]'
        if number == 1:
            op, then = f"cnn.add %v1 residual %v0 : {tensor(dims)}", 'factors = "f1", add_clamp = [-60, 60]'
        else:
            chain.arrays[f"w{number}"] = rng.integers(-9, 10, (4, 4, 3, 3)).astype(np.int16)
            chain.arrays[f"s{number}"] = rng.uniform(0.05, 0.2, (4,)).astype(np.float32)
        chain.lines.append(f'%v{number + 1} = {op} then <{then}> label "l{number}" : {tensor(dims)} -> {tensor(dims)}')
    return chain


def test_elementwise_layers_are_chosen(tmp_path: Path) -> None:
    """The sum lies in DRAM without groups, and in a ring of the chosen group, for which its best mapping is kept."""
    file = tmp_path / "small.toml"
    preset = load_arch("spatial-8x8")
    file.write_text(arch_text(replace(preset, glb=replace(preset.glb, words=3000))))
    chain = residual_of_two_readers()
    compilation = chain.compilation(str(file), groups=AUTO)
    compilation.run_before(TO_PROGRAMS)
    groups = [op for op in compilation.module.walk() if isinstance(op, GroupOp)]
    kinds = [[layer.kind.data for layer in group.layers()] for group in groups]
    assert any("add" in each for each in kinds)
    checked(compilation, chain)
    assert prove(claim_of(compilation, chain), 30.0).failures == []
