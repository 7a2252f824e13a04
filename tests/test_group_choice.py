"""The automatic choice of groups: programs of drawn networks, and what is chosen."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
from examples import SEED, examples
from group_cases import Chain, random_chain
from test_group_programs import checked, program_of, raced

from cnncc.arch.model import PRESETS, load_arch
from cnncc.dialects.nest import GroupOp
from cnncc.driver.pipeline import AUTO, NONE, TO_PROGRAMS, Compilation, Settings, new_context
from cnncc.driver.program_parts import predicted_counters
from cnncc.errors import Refusal
from cnncc.mapper.objective import OBJECTIVES, Objective
from cnncc.passes._scheduling import decision
from cnncc.passes._scheduling.candidates import Candidates
from cnncc.passes._scheduling.group_choice import GroupSearch, Mappings, with_groups
from cnncc.passes._scheduling.layer_groups import LayerGroup
from cnncc.passes._scheduling.network_values import Network
from cnncc.passes._scheduling.prefetch import lifetimes
from cnncc.passes.array_allocate import fits

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


def drawn_auto(number: int, folder: Path) -> tuple[int, Compilation, Chain] | None:
    """A drawn network with the chosen groups, checked, and how many groups; None where it does not fit the GLB."""
    rng = np.random.default_rng([SEED, 31, number])
    chain = random_chain(rng, most_layers=7, most_rows=31, most_images=3, most_cols=16)
    arch = small_array(number, rng, chain, folder)
    objective = Objective(OBJECTIVES[number % len(OBJECTIVES)], [0.0, 0.005, 0.1][number % 3])
    try:
        compiled(chain, arch, NONE, objective)
    except Refusal:
        return None
    compilation = compiled(chain, arch, AUTO, objective)
    count = sum(isinstance(op, GroupOp) for op in compilation.module.walk())
    return count, checked(compilation, chain), chain


def any_groups(network: Network, mappings: Mappings, _: int, candidates: Candidates) -> list[LayerGroup]:
    """Groups that may be chosen, better or not, in place of `best_groups`."""
    chosen, end = list[LayerGroup](), 0
    for each in GroupSearch(network, mappings, candidates).candidates_of_all():
        groups = [*chosen, each.group]
        grouped = Network(network.func, [group.layers for group in groups])
        lives = lifetimes(grouped, candidates.arch, with_groups(mappings, groups), groups)
        if each.first >= end and fits(list(lives.values()), candidates.arch.glb.words):
            chosen, end = groups, each.last + 1
    return chosen


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize("is_forced", [False, True])
def test_drawn_networks_with_groups(is_forced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen ones, and any that may be chosen: exact at every level, as predicted, without a race."""
    groups = 0
    if is_forced:
        monkeypatch.setattr(decision, "best_groups", any_groups)
    for number in range(examples(5)):
        if done := drawn_auto(number, tmp_path):
            count, compilation, chain = done
            groups += count
            assert not count or raced(compilation, chain, program_of(compilation)) == []
    assert groups or not is_forced


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
