"""The best mapping of each dataflow, as `cnncc estimate --explain` compares them, by whole searches."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from cli_cases import done
from searches import SHORT, search_with
from test_explain import counted, lenet, one_layer

from cnncc.arch.model import arch_text, load_arch
from cnncc.driver.sources import CompileOptions
from cnncc.estimate import alternatives
from cnncc.estimate.alternatives import compare_dataflows
from cnncc.estimate.mapped_network import mapping_in
from cnncc.estimate.mapped_program import of_model
from cnncc.explore.array_grid import with_config
from cnncc.mapper.cached_search import searched
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.search import search
from cnncc.mapping.text import text
from cnncc.passes._scheduling.nest_layers import layer_shape


@pytest.mark.parametrize(
    ("preset", "changed", "layer"),
    [
        ("spatial-4x4", {}, (5, 12, 9)),
        ("spatial-4x4", {"glb.words": 2000, "dram.words_per_cycle": 1}, (32, 32, 2)),
        ("spatial-4x4", {"glb.words": 2800}, (16, 32, 6)),
        ("seed-4x4", {}, (3, 8, 7)),
    ],
)
@pytest.mark.usefixtures("resident_ends")
def test_explain_best_of_each_dataflow_is_counted(
    preset: str,
    changed: dict[str, int],
    layer: tuple[int, int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each runs as the layer of a program; and on an array whose DMA takes no time, to speak of."""
    if "dram.words_per_cycle" in changed:  # a whole search takes 14 s; short ones wait for DRAM with the others, too
        search_with(monkeypatch, replace(SHORT, local_runs=0))  # which leads to a mapping of no dataflow
    arch = with_config(load_arch(preset), changed)
    (tmp_path / "given.toml").write_text(arch_text(arch))
    model = one_layer(tmp_path, *layer)
    program, _ = of_model(model, CompileOptions(str(tmp_path / "given.toml"), dataflow="auto", slack=0.0))
    assert program.network
    said = compare_dataflows(program.network, "c", print)
    assert said and [each.dataflow for each in said.dataflows] == ["os", "ws", "is"]
    assert said.cycles == sum(said.spent.values()) == program.counters()["layers"]["c"]["cycles"]["total"]
    assert not said.streamed and "this is the chosen mapping" in [each.why for each in said.dataflows]
    transfers = 0
    for each in said.dataflows:
        if not each.mapping:  # weights of 32 x 16 x 3 x 3 as a whole, params, partial sums of 32 x 6 x 6
            assert "glb.words" in changed and each.why == (
                "none found that fits 1,072 words of the GLB: the first that does takes 6,976, 4,608 of them for weight"
            )
            continue
        cycles = counted(tmp_path, (model,), arch, {"c": each.mapping})["layers"]["c"]["cycles"]
        spent, stall = each.spent, cycles["stall"]
        assert spent and cycles["total"] == each.cycles == each.more + said.cycles == sum(spent.values())
        assert cycles["compute"] == spent["steps"] + spent["start"]
        over = arch.pe.start_cycles + arch.pe.finish_cycles
        operations = layer[0] * layer[1] * 9 * layer[2] ** 2
        assert spent["start"] % over == 0 and spent["steps"] * arch.rows * arch.cols >= operations
        before = sum(stall.values()) + cycles["compute"] - cycles["total"]  # when the array idled, too (TIME-5)
        more = [stall[cause] - spent[cause] for cause in stall]
        assert min(more) >= 0 and sum(more) == before
        transfers += sum(spent[cause] for cause in stall if cause.startswith("dram"))
    assert (transfers > 0) == ("dram.words_per_cycle" in changed)


@pytest.mark.parametrize(("dram_words", "long"), [(8, {"f1", "f2"}), (64, {"f1"})])
@pytest.mark.usefixtures("resident_ends")
def test_explain_no_dataflow_is_quicker_than_the_best(dram_words: int, long: set[str], tmp_path: Path) -> None:
    """Where the search says that none is. With the quicker DRAM no layer waits for weights: none comes in slices.

    long: layers whose searches take most of the time, in less room and mostly without a proof.
    """
    arch = with_config(load_arch("spatial-8x8"), {"dram.words_per_cycle": dram_words})
    (tmp_path / "array.toml").write_text(arch_text(arch))
    program, ended, whole, slower = lenet(str(tmp_path / "array.toml"), dataflow="auto", slack=0.0), 0, 0, 0
    network = program.network
    assert network
    for label in program.layers().keys() - long:
        said = compare_dataflows(network, label, print)
        if said is None:
            continue
        best = searched(SearchTask(layer_shape(network.layer(label)), network.arch, network.taken(label)))
        assert best and best.cycles <= said.cycles
        if network.taken(label) == network.budget(label):  # else a quick search found it, in less room
            assert best.cycles == said.cycles
            whole += 1
        if best.least == said.cycles:
            ended += 1
            assert min(each.more for each in said.dataflows) == 0
        slower += sum(each.more > 0 for each in said.dataflows)
        for each in said.dataflows:
            assert (each.more > 0) == (" more " in each.why) and (each.more < 0) == (" fewer " in each.why)
    assert min(ended, whole) >= (4 if dram_words == 8 else 5) and slower >= (2 if dram_words == 8 else 4)


def test_explain_where_few_mappings_fit(tmp_path: Path) -> None:
    """Those of all dataflows at once are too many to come to one that fits; then each is searched by itself."""
    arch = with_config(load_arch("spatial-4x4"), {"glb.words": 600})
    (tmp_path / "given.toml").write_text(arch_text(arch))
    program, _ = of_model(
        one_layer(tmp_path, 16, 32, 6), CompileOptions(str(tmp_path / "given.toml"), dataflow="auto", slack=0.0)
    )
    network = program.network
    assert network and network.budget("c").streamed == {"ifmap", "output"}
    assert search(layer_shape(network.layer("c")), arch, network.budget("c")) is None
    said = compare_dataflows(network, "c", print)
    assert said and min(each.more for each in said.dataflows if each.mapping) == 0
    assert said.cycles < 16 * 32 * 9 * 36 // 16 * 1.2  # near to what all PEs take that are busy all the time


@pytest.mark.usefixtures("resident_ends", "short_searches")
def test_explain_has_the_schemes_of_c_brain(tmp_path: Path) -> None:
    """On PEs that add up several products; each as its text is mapped, or with the reason that it does not fit."""
    model = one_layer(tmp_path, 16, 20, 6)
    program, _ = of_model(model, CompileOptions("cbrain-16-16", slack=0.0))
    network = program.network
    assert network
    said = compare_dataflows(network, "c", print)
    assert said
    schemes = {each.dataflow: each for each in said.dataflows if each.dataflow.startswith("int")}
    assert list(schemes) == ["inter", "inter-weights", "inter-data", "intra", "intra-sliding"]
    for name, each in schemes.items():
        alone, _ = of_model(model, CompileOptions("cbrain-16-16", slack=0.0, dataflow=name))
        assert alone.network
        assert each.mapping, each.why
        assert each.mapping == text(mapping_in(alone.network.layer("c")), layer_shape(network.layer("c")).sizes)
        assert each.least == each.cycles == said.cycles + each.more and each.more >= 0, name
        assert each.more == 0 or re.match(r"[0-9,]+ cycles? more ", each.why)
    spatial, _ = of_model(model, CompileOptions("spatial-4x4", slack=0.0))
    assert spatial.network
    others = compare_dataflows(spatial.network, "c", print)
    assert others and [each.dataflow for each in others.dataflows] == ["os", "ws", "is"]


def test_explain_where_the_chosen_mapping_takes_no_energy(tmp_path: Path) -> None:
    """Links to the south alone have a price: sums that stay in PEs are free, others are dearer than 0."""
    arch = load_arch("spatial-8x8")
    free = {name: 0.0 for name in vars(arch.energy) if name != "unit"}
    arch = replace(arch, energy=replace(arch.energy, **free | {"south": 1.0}))
    (tmp_path / "south.toml").write_text(arch_text(arch))
    schedule = tmp_path / "given.toml"
    schedule.write_text(
        """[c]\nmapping = "weight@glb > params@glb > h||8@rows > k > w > c > weight@rf > ifmap@rf > {s > r}"\n"""
    )
    model = one_layer(tmp_path, 16, 4, 16)
    program, _ = of_model(model, CompileOptions(str(tmp_path / "south.toml"), schedule=schedule))
    assert program.network
    said = compare_dataflows(program.network, "c", print)
    assert said and said.costs["energy"].chosen == 0
    assert any(re.search(r"its energy is [\d,]+, not 0$", each.why) for each in said.dataflows)


def test_explain_of_an_energy_that_is_the_least_but_for_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prices of 0.3, added up in two orders. A mapping beyond the space takes a part less."""
    path = one_layer(tmp_path, 2, 3, 4)
    monkeypatch.setattr(alternatives, "least_cost", lambda *_: 92.7)
    for chosen, end in ((92.69999999999999, ""), (92.4, ": this one is beyond the space")):
        monkeypatch.setattr(alternatives, "cost_of", lambda *_, chosen=chosen: chosen)
        said = done("estimate", path, "--explain", "c").stdout
        assert f"  energy: {chosen:.1f}; no mapping of the space in its GLB budget has fewer than 92.7{end}\n" in said


def test_explain_says_if_a_mapping_that_is_no_slower_takes_less_energy() -> None:
    """As a front is no proof, that may be (FRONT-3)."""
    said = (
        (0, 100.0, "as quick, with as much energy: one of them is taken"),
        (0, 99.0, "as quick, its energy is 1.0 % lower"),
        (-7, 100.0, "7 fewer cycles, its energy is 0.0 % higher"),
        (-7, 103.0, "7 fewer cycles, its energy is 3.0 % higher"),
    )
    for more, own, reason in said:
        assert alternatives._dearer(more, own, 100.0) == reason
