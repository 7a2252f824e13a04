"""The automatic choice of groups: programs of drawn networks, and what is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import SEED, examples
from group_cases import Chain, random_chain
from test_group_programs import checked, program_of, raced

from cnncc.arch.model import PRESETS, load_arch
from cnncc.dialects._groups import GroupLayer
from cnncc.dialects.nest import GroupOp, group_layers
from cnncc.driver.pipeline import AUTO, NONE, TO_PROGRAMS, Compilation, Settings, new_context
from cnncc.driver.program_parts import predicted_counters
from cnncc.errors import Refusal
from cnncc.mapper.objective import OBJECTIVES, Objective
from cnncc.passes._scheduling import decision
from cnncc.passes._scheduling.group_choice import Candidate, GroupChoice
from cnncc.passes._scheduling.layer_groups import LayerGroup

PRESET_NAMES = ("spatial-4x4", "spatial-8x8", "spatial-16x16", "seed-4x4", "seed-8x8")


def small_array(number: int, rng: np.random.Generator, chain: Chain, folder: Path) -> str:
    """A file of a preset whose GLB is about as large as the largest value of a network, so that values are streamed."""
    name = PRESET_NAMES[number % len(PRESET_NAMES)]
    text = (PRESETS / f"{name}.toml").read_text().replace(f"words = {load_arch(name).glb.words} ", "words = {} ", 1)
    file = folder / f"{number}.toml"
    largest = max(prod(dims) for dims in chain.dims)
    file.write_text(text.format(200 + int(largest * rng.uniform(0.5, 1.2))))
    return str(file)


def compiled(chain: Chain, arch: str, groups: str, objective: Objective) -> Compilation:
    """The chain up to `nest-to-array`. Raises Refusal."""
    ctx = new_context()
    settings = Settings(load_arch(arch), arch, 16, objective=objective, groups=groups)
    compilation = Compilation(ctx, chain.module(ctx), settings)
    compilation.run_before(TO_PROGRAMS)
    return compilation


def drawn_auto(number: int, folder: Path) -> tuple[Compilation, Chain] | None:
    """A drawn network with the chosen groups, before `nest-to-array`; None where it does not fit the GLB."""
    rng = np.random.default_rng([SEED, 31, number])
    chain = random_chain(rng, most_layers=7, most_rows=31, most_images=3, most_cols=16)
    arch = small_array(number, rng, chain, folder)
    objective = Objective(OBJECTIVES[number % len(OBJECTIVES)], [0.0, 0.005, 0.1][number % 3])
    try:
        compiled(chain, arch, NONE, objective)
    except Refusal:
        return None
    return compiled(chain, arch, AUTO, objective), chain


class AnyGroups(GroupChoice):
    """Groups that may be chosen, better or not: of the candidates, in a random order, those that fit beside others."""

    def _best(self) -> tuple[Candidate, ...]:
        rng, chosen = np.random.default_rng([SEED, len(self.found)]), list[Candidate]()
        for each in (self.found[int(number)] for number in rng.permutation(len(self.found))):
            others = sorted([*chosen, each], key=lambda other: other.first)
            apart = all(before.last < after.first for before, after in pairwise(others))
            if apart and self.run([other.group for other in others]) is not None:
                chosen = others
        return tuple(chosen)


def made_as_planned(compilation: Compilation, groups: Sequence[LayerGroup]) -> bool:
    """Whether `nest-group` has made just the groups that were chosen: loads, stripes, delays and rings."""
    made = [group_layers(op) for op in compilation.module.walk() if isinstance(op, GroupOp)]

    def figures(plans: Sequence[GroupLayer]) -> list[object]:
        return [(plan.label, plan.kind, plan.rows, plan.first, plan.delay, plan.keeps, plan.sizes) for plan in plans]

    return list(map(figures, made)) == [figures(group.plans) for group in groups]


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize("kind", [GroupChoice, AnyGroups])
def test_drawn_networks_with_groups(kind: type[GroupChoice], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen ones, and any that may be chosen: exact at every level, as predicted, without a race."""
    choices, groups, loads = list[GroupChoice](), 0, 0

    def choose(*given: Any) -> GroupChoice:
        choices.append(kind(*given))
        return choices[-1]

    monkeypatch.setattr(decision, "GroupChoice", choose)
    for number in range(examples(5)):
        if compilation := drawn_auto(number, tmp_path):
            chosen = choices[-1].groups
            groups, loads = groups + len(chosen), loads + sum(len(group.loads) for group in chosen)
            assert made_as_planned(compilation[0], chosen), number
            checked(*compilation)
            assert not chosen or raced(*compilation, program_of(compilation[0])) == [], number
    print(kind.__name__, groups, loads)
    assert groups or kind is GroupChoice


@pytest.mark.parametrize("name", ["cycles", "energy", "words"])
def test_groups_are_never_worse(name: str, tmp_path: Path) -> None:
    """By the objective, with no slack."""
    for number in range(examples(1)):
        rng = np.random.default_rng([SEED, 32, number])
        chain = random_chain(rng, most_layers=6)
        arch = small_array(number, rng, chain, tmp_path)
        with_groups, without = (
            predicted_counters(compiled(chain, arch, groups, Objective(name, 0.0)).module, load_arch(arch), {})
            for groups in (AUTO, NONE)
        )
        match name:
            case "cycles":
                assert with_groups["cycles"]["total"] <= without["cycles"]["total"]
            case "energy":
                assert with_groups["energy"]["total"] <= without["energy"]["total"]
            case _:
                moved = [words["words"]["dram_read"] + words["words"]["dram_write"] for words in (with_groups, without)]
                assert moved[0] <= moved[1]
