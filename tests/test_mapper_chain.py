"""Which of several mappings each layer of a chain gets: compared with all combinations, and worth its while."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from cli_cases import SAMPLES, build, done, noise, save
from onnx import helper
from searches import SHORT_FRONTS, search_with

from cnncc.arch.model import Arch, arch_text, load_arch
from cnncc.binary.container import load
from cnncc.binary.counters import program_stats
from cnncc.driver.program_parts import mapped_parts
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.mapper.chain import BestPath, LayerChoice, best_choices
from cnncc.mapper.effort import Effort
from cnncc.mapper.objective import Figures, Objective
from cnncc.mapping.mapping import Sizes
from cnncc.mapping.text import parse
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan
from cnncc.model.layer_shape import LayerShape
from cnncc.model.program_counts import program_counts
from cnncc.model.program_schedule import program_cycles
from cnncc.passes._scheduling import decision, residency, smaller_budgets
from cnncc.passes._scheduling.candidates import Candidates, WantedMapping
from cnncc.passes._scheduling.smaller_budgets import LayerCandidates, choice_of
from cnncc.window import Window

ARCH = load_arch("spatial-4x4")
_PRESET = load_arch("spatial-16x16")
WIDE = replace(_PRESET, glb=replace(_PRESET.glb, words=1 << 20))
BOX = "weight@rf*2 > ifmap@rf*2 > {w'' > s > c'' > r > k''}"
MAPPINGS = (
    f"weight@glb > params@glb > k':4 > h':4 > h''||4@rows > w':4 > c':4 > {BOX}",
    f"params@glb > k':4 > weight@glb*2 > h':4 > h''||4@rows > w':4 > c':4 > {BOX}",  # weights in slices
    f"weight@glb > params@glb > k':2 > h':4 > h''||4@rows > w':1 > c':2 > {BOX}",  # slow
)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks are compared that differ in what the chain makes of mappings: all are found by searches as short."""
    search_with(monkeypatch, SHORT_FRONTS)


def layer(number: random.Random) -> list[LayerChoice]:
    """A layer of 4 rows, and what it may have of these mappings: of more or fewer words than they have in fact."""
    shape = LayerShape("mac", Sizes(1, 16, 4 * number.randint(1, 4), 4, 4, 3, 3), Window((3, 3), pad=(1,) * 4), 2, 4, 4)
    choices: list[LayerChoice] = []
    for mapping in number.sample(MAPPINGS, number.randint(1, 3)):
        words = number.randint(1, 1000)
        plan = LayerPlan("", shape, parse(mapping, shape.sizes), prefetched=PREFETCHED)
        choices.append(LayerChoice(plan, words + number.randint(0, 1000), words))
    return choices


def cycles(*chain: LayerChoice, budget: int) -> int:
    """Of a program of layers; what comes first of the first of them takes no time."""
    plans: list[LayerPlan] = []
    for number, choice in enumerate(chain):
        assert choice.plan is not None
        fits = number and choice.prefetched_words + chain[number - 1].words <= budget
        plans.append(replace(choice.plan, label=str(number), prefetched=PREFETCHED if fits else frozenset()))
    return program_cycles(plans, ARCH)[0].total


@pytest.mark.parametrize("seed", range(10))
def test_chain_is_the_best_of_all_combinations(seed: int) -> None:
    number = random.Random(seed)
    layers, budget = [layer(number) for _ in range(number.randint(1, 5))], number.randint(500, 3000)

    def chosen(numbers: Sequence[int]) -> list[LayerChoice]:
        return [choices[i] for choices, i in zip(layers, numbers, strict=True)]

    def run(numbers: Sequence[int]) -> int:
        return cycles(*chosen(numbers), budget=budget)

    fewest = Objective("cycles", 0.0)
    every = [len(each) for each in layers]
    best, figures, known, _ = best_choices(layers, every, [budget] * len(layers), fewest, ARCH, run)
    least = min(cycles(*chain, budget=budget) for chain in product(*layers))
    assert least <= run(best) <= 1.002 * least  # neighbours but one hardly matter
    if len(layers) > 1:
        assert figures.cycles == known == run(best)


def resnet(monkeypatch: pytest.MonkeyPatch, first_only: bool) -> int:
    """Cycles of ResNet-20, predicted; first_only: each layer with the mapping that is best for itself."""
    if first_only:
        monkeypatch.setattr(
            decision,
            "best_choices",
            lambda layers, *_: BestPath([0] * len(layers), Figures(0, 0.0), 0, [0] * len(layers)),
        )
    model = SAMPLES / "models" / "resnet20_qoperator_u8.onnx"
    compilation = start_compilation(model, CompileOptions("spatial-16x16", batch=1, dataflow="auto", slack=0.0))
    return program_counts(mapped_parts(compilation), compilation.settings.arch)["cycles"]["total"]


def test_chain_is_quicker_than_the_best_of_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that come late are worth a slower mapping."""
    assert resnet(monkeypatch, first_only=False) < 0.97 * resnet(monkeypatch, first_only=True)


def predicted(model: Path, arch: Arch) -> int:
    """Cycles of a network on an array."""
    array = model.with_suffix(".toml")
    array.write_text(arch_text(arch))
    compilation = start_compilation(model, CompileOptions(str(array), dataflow="auto", slack=0.0, groups="none"))
    return program_counts(mapped_parts(compilation), arch)["cycles"]["total"]


def test_layers_behind_one_with_slices_are_looked_at_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All weights fit: slices of one layer's come while the next one's should, which then has to have slices, too."""
    layers = [
        helper.make_node("MaxPool", ["x"], ["p"], name="p", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "wa"], ["a"], name="a", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Conv", ["a", "wb"], ["b"], name="b", pads=[1] * 4),
    ]
    weights = {"wa": noise(0, 64, 32, 3, 3), "wb": noise(1, 64, 64, 3, 3)}
    model = save(build(layers, {"x": (1, 32, 32, 32)}, ["b"], weights), tmp_path / "net.onnx")

    again, wanted = predicted(model, WIDE), smaller_budgets._wanted

    def once(
        before: LayerCandidates, here: LayerCandidates, i: int, candidates: Candidates
    ) -> Iterator[tuple[int, WantedMapping]]:
        first, second = (replace(each, mappings=each.mappings[:1]) for each in (before, here))
        return wanted(first, second, i, candidates)

    monkeypatch.setattr(smaller_budgets, "_wanted", once)
    assert 1.05 * again < predicted(model, WIDE)


def test_weights_come_in_slices_as_large_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All weights fit, but come late; slices for an eighth of the room are smaller than what could come in time."""
    layers = [
        helper.make_node("Conv", ["x", "wa"], ["a"], name="a", pads=[1] * 4, group=128),
        helper.make_node("Conv", ["a", "wb"], ["b"], name="b"),
    ]
    weights = {"wa": noise(0, 128, 1, 3, 3), "wb": noise(1, 512, 128, 1, 1)}
    model = save(build(layers, {"x": (1, 128, 14, 14)}, ["b"], weights), tmp_path / "net.onnx")

    in_time, wanted = predicted(model, WIDE), smaller_budgets._wanted

    def shares(
        before: LayerCandidates, here: LayerCandidates, i: int, candidates: Candidates
    ) -> Iterator[tuple[int, WantedMapping]]:
        for number, each in wanted(before, here, i, candidates):
            (words,) = {choice_of(here.layer, mapping, candidates.arch).words for mapping in here.mappings[:1]}
            if number == i or each.budget.words in (words // 8, words // 2):
                yield number, each

    monkeypatch.setattr(smaller_budgets, "_wanted", shares)
    assert 1.015 * in_time < predicted(model, WIDE)


def test_a_large_value_stays_in_place_of_a_smaller_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What `b` gives is read by `c` in less time than it takes to come from DRAM; what `a` gives is by `b` in more."""
    layers = [
        helper.make_node("Conv", ["x", "wa"], ["a"], name="a", pads=[1] * 4, group=16),
        helper.make_node("Conv", ["a", "wb"], ["b"], name="b"),
        helper.make_node("Conv", ["b", "wc"], ["c"], name="c", pads=[1] * 4, strides=[2, 2], group=32),
    ]
    weights = {"wa": noise(0, 16, 1, 3, 3), "wb": noise(1, 32, 16, 1, 1), "wc": noise(2, 32, 1, 3, 3)}
    model = save(build(layers, {"x": (1, 16, 16, 16)}, ["c"], weights), tmp_path / "net.onnx")
    arch = replace(ARCH, glb=replace(ARCH.glb, words=10_700), dram=replace(ARCH.dram, words_per_cycle=1))

    stays = predicted(model, arch)
    monkeypatch.setattr(residency, "_exchanged", lambda network, resident, free, arch: resident)
    assert 1.1 * stays < predicted(model, arch)


def test_a_value_moves_where_it_holds_up_the_layers_beside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What `a` gives is small; but in the room beside it the image of `a` comes again for each slice of weights."""
    convolutions = [
        helper.make_node("Conv", ["x", "wa"], ["a"], name="a", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Conv", ["a", "wb"], ["b"], name="b"),
    ]
    weights = {"wa": noise(0, 32, 64, 3, 3), "wb": noise(1, 64, 32, 1, 1)}
    model = save(build(convolutions, {"x": (1, 64, 14, 14)}, ["b"], weights), tmp_path / "net.onnx")
    arch = replace(ARCH, glb=replace(ARCH.glb, words=4500), dram=replace(ARCH.dram, words_per_cycle=1))

    moved = predicted(model, arch)
    monkeypatch.setattr(residency, "_exchanged", lambda network, resident, free, arch: resident)
    assert 1.5 * moved < predicted(model, arch)


def one_layer(folder: Path, kind: str) -> Path:
    """A network of a convolution of 16 x 28 x 28 pixels, or of a layer with 120 inputs and 84 outputs."""
    if kind == "Conv":
        node, x, w = helper.make_node(kind, ["x", "w"], ["y"], pads=[1] * 4), (1, 16, 28, 28), (8, 16, 3, 3)
    else:
        node, x, w = helper.make_node(kind, ["x", "w"], ["y"], transB=1), (1, 120), (84, 120)
    return save(build([node], {"x": x}, ["y"], {"w": noise(0, *w)}), folder / "net.onnx")


def test_inputs_and_results_that_fit_are_streamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CHAIN-3. The copies of 12,544 and 6,272 words take 1,696 and 848 of 17,086 cycles."""
    model, arch, binary = one_layer(tmp_path, "Conv"), load_arch("spatial-8x8"), tmp_path / "net.cnb"
    streamed = predicted(model, arch)
    assert "steps agree" in done("verify", model, "--arch", "spatial-8x8", "--slack", 0).stdout
    done("compile", model, "--arch", "spatial-8x8", "--slack", 0, "-o", binary)
    assert "counters are as predicted" in done("estimate", binary, "--check-counters").stdout
    assert program_stats(load(binary))["cycles"]["total"] == streamed
    monkeypatch.setattr(residency, "END_PART", 0)
    assert streamed < 0.9 * predicted(model, arch)


def test_no_larger_glb_makes_a_first_layer_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CHAIN-1. The weights take 10,080 words. (More starts of the local search find the same cycles.)"""
    search_with(monkeypatch, Effort(front_tiles=0, local_starts=1))
    model, small = one_layer(tmp_path, "Gemm"), replace(ARCH, rows=3, cols=2)
    arrays = [replace(small, glb=replace(small.glb, words=words)) for words in (3_428, 8_192, 65_536)]
    cycles = [predicted(model, arch) for arch in arrays]
    assert cycles == sorted(cycles, reverse=True)
    monkeypatch.setattr(smaller_budgets, "LONG_PART", 0)
    assert predicted(model, arrays[-1]) < 1.1 * cycles[-1]  # smaller budgets alone do nearly as well
    monkeypatch.setattr(smaller_budgets, "FIRST_SHARES", (8,))
    assert 1.1 * cycles[-1] < predicted(model, arrays[-1])


def test_results_that_take_much_of_the_glb_are_streamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CHAIN-3. 3,780 words of 14,700; the copy takes 536 cycles of about 240,000. The layer has more room without."""
    search_with(monkeypatch, Effort(front_tiles=0))
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="c", pads=[2] * 4)]
    model = save(build(nodes, {"x": (1, 37, 21, 9)}, ["y"], {"w": noise(2, 20, 37, 5, 5)}), tmp_path / "net.onnx")
    arch = replace(ARCH, glb=replace(ARCH.glb, words=14_700))
    assert predicted(model, arch) == 239_111
    monkeypatch.setattr(residency, "GLB_PART", 1)
    assert predicted(model, arch) == 241_021


def test_a_first_layer_is_mapped_with_its_weights_in_dram(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CHAIN-1. The GLB holds all weights; but the layer need not wait for all of them. The page's example."""
    search_with(monkeypatch, Effort(front_tiles=0, local_starts=1))
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="c", pads=[1] * 4, strides=[2, 2])]
    model = save(build(nodes, {"x": (1, 6, 20, 6)}, ["y"], {"w": noise(2, 50, 6, 3, 3)}), tmp_path / "net.onnx")
    preset = load_arch("spatial-8x8")
    arch = replace(preset, glb=replace(preset.glb, words=4_984))
    assert predicted(model, arch) == 2133
    monkeypatch.setattr(smaller_budgets, "_of_first", lambda *_: iter(()))
    assert predicted(model, arch) == 2017 + 357


def test_the_slack_counts_from_the_fewest_cycles_with_any_resident_values() -> None:
    """The MNIST net takes the fewest cycles with its image streamed; with it in the GLB the slack would be too long."""
    cycles = list[int]()
    for slack in (0.0, 0.005):
        options = CompileOptions("spatial-8x8", batch=1, slack=slack)
        compilation = start_compilation(SAMPLES / "models" / "mnist.onnx", options)
        cycles.append(program_counts(mapped_parts(compilation), compilation.settings.arch)["cycles"]["total"])
    assert cycles[0] < cycles[1] <= 1.005 * cycles[0]
