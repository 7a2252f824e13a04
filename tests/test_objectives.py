"""Objectives: fronts of layers, chains over fronts, residents by schedule, lower bounds of words and energy."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace
from functools import cache
from itertools import product
from math import inf, prod
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from cli_cases import CALIBRATION, SAMPLES, build, done, noise, refused, save
from examples import SEED, examples
from onnx import helper, numpy_helper
from onnx.utils import extract_model
from random_search import case_of
from searches import SHORT_FRONTS, forget, search_with

from cnncc.arch.model import Arch, Energy, arch_text, load_arch
from cnncc.driver.program_parts import mapped_parts
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.errors import Refusal
from cnncc.mapper import layer_search
from cnncc.mapper.arrays import ILLEGAL, stable_order
from cnncc.mapper.bound import ideal_cycles
from cnncc.mapper.chain import LayerChoice, best_choices
from cnncc.mapper.combinations import combinations_below
from cnncc.mapper.costs import array_energy, cost_of
from cnncc.mapper.effort import USUAL, Effort
from cnncc.mapper.layer_search import SearchTask
from cnncc.mapper.least_cost import least_cost
from cnncc.mapper.objective import FAR, SLACK, Figures, Objective
from cnncc.mapper.prices import DRAM_WORDS, NOTHING, Prices
from cnncc.mapper.search import Result
from cnncc.mapper.space import BlockPlan, forms_of, mapping_of, numbers, point
from cnncc.mapper.tradeoffs import Tradeoff
from cnncc.mapping.mapping import Mapping, Sizes
from cnncc.mapping.text import parse
from cnncc.model.energy import energy
from cnncc.model.layer_schedule import PREFETCHED, LayerPlan, layer_cycles
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.model.legal import is_legal
from cnncc.model.operand_traffic import operand_traffic
from cnncc.model.program_counts import program_counts
from cnncc.passes._scheduling import decision
from cnncc.passes._scheduling.schedule_file import read_schedule
from cnncc.util import disk_cache
from cnncc.window import Window

ARCH = load_arch("spatial-8x8")
C2 = LayerShape("mac", Sizes(1, 16, 6, 10, 10, 5, 5), Window((5, 5)), 2, 14, 14)
CONV = LayerShape("mac", Sizes(1, 128, 128, 28, 28, 3, 3), Window((3, 3), pad=(1,) * 4), 2, 28, 28)
STREAMED = frozenset({"ifmap", "output"})


def convolution(k: int, c: int, side: int, taps: int, stride: int = 1) -> LayerShape:
    """A convolution of an image of side x side, padded to its own size."""
    outputs = -(-side // stride)
    window = Window((taps, taps), (stride, stride), (taps // 2,) * 4)
    return LayerShape("mac", Sizes(1, k, c, outputs, outputs, taps, taps), window, 2, side, side)


def test_objective_table() -> None:
    """The best network of five by hand."""
    networks = [Figures(1000, 90.0), Figures(1004, 80.0), Figures(1006, 50.0), Figures(1500, 40.0), Figures(3000, 39.0)]
    best = {
        ("cycles", 0.0): 0,
        ("cycles", 0.005): 1,
        ("cycles", 0.01): 2,
        ("cycles", 0.5): 3,
        ("energy", 0.005): 4,
        ("words", 0.005): 4,
        ("edp", 0.005): 2,  # 90,000, 80,320, 50,300, 60,000, 117,000
    }
    for (name, slack), number in best.items():
        assert Objective(name, slack).best(networks) == number, name
    assert Objective("cycles").best([Figures(10, 5.0), Figures(9, 5.0)]) == 1
    assert Objective("cycles", 0.1).best([Figures(110, 4.0), Figures(105, 5.0)], 100) == 0
    assert Objective("cycles", 0.1).best([Figures(110, 4.0), Figures(105, 5.0)], 99) == 1


def test_slack_finds_no_faster_network(tmp_path: Path) -> None:
    """A slower mapping of `a` leaves the GLB room for the weights of `b`, which come in time then."""
    weights = {"wa": noise(0, 64, 16, 3, 3), "wb": noise(1, 64, 64, 1, 1), "wc": noise(2, 64, 64, 1, 1)}
    layers = [
        helper.make_node("Conv", ["x", "wa"], ["a"], name="a", pads=[1] * 4),
        helper.make_node("Conv", ["a", "wb"], ["b"], name="b"),
        helper.make_node("Conv", ["b", "wc"], ["c"], name="c"),
    ]
    model = save(build(layers, {"x": (1, 16, 6, 6)}, ["c"], weights), tmp_path / "net.onnx")
    arch = replace(ARCH, glb=replace(ARCH.glb, words=13209), dram=replace(ARCH.dram, words_per_cycle=2))
    (array := tmp_path / "array.toml").write_text(arch_text(arch))

    def cycles(slack: float) -> int:
        compilation = start_compilation(model, CompileOptions(str(array), slack=slack, groups="none"))
        return program_counts(mapped_parts(compilation), arch)["cycles"]["total"]

    assert cycles(0.0) <= cycles(0.001) <= cycles(0.005)


@pytest.mark.parametrize(("name", "slack"), [("cycle", 0.0), ("cycles", -0.1), ("cycles", 11.0), ("edp", float("nan"))])
def test_objectives_that_are_none(name: str, slack: float) -> None:
    with pytest.raises(Refusal, match="did you mean 'cycles'|from 0 to 10"):
        Objective(name, slack)


def test_limits_of_cycles() -> None:
    usual = Objective("cycles", SLACK).prices(ARCH).limits
    assert usual == pytest.approx((1.05, 1.02, 1.01, 1.005, 1.002, 1.0005, 1.0))
    assert Objective("cycles", 0.0).prices(ARCH).limits == usual
    limits = Objective("cycles", 0.01).prices(ARCH).limits
    assert limits == pytest.approx((1.1, 1.04, 1.02, 1.01, 1.004, 1.001, 1.0))
    assert Objective("energy", 0.01).prices(ARCH).limits == FAR


def test_least_words_by_hand() -> None:
    """BOUND-20: of c2 weights and parameters; of a layer whose weights do not fit beside a block, those again."""
    assert least_cost(C2, ARCH, GlbBudget(4000), DRAM_WORDS) == 2400 + 64
    small = convolution(4, 4, 4, 1)  # 16 weights, 16 words of parameters, images of 64 words
    everything = 16 + 16 + 2 * 64
    assert least_cost(small, ARCH, GlbBudget(200, STREAMED), DRAM_WORDS) == everything
    # With 40 words: 16 weights, a block of one row of 4 channels in and out is 32 words more than fit beside 16 + 16,
    # but one of a single pixel is 8: blocks may be as small as that, and weights come once.
    assert least_cost(small, ARCH, GlbBudget(40, STREAMED), DRAM_WORDS) == everything


def test_least_energy_by_hand() -> None:
    """BOUND-21 with one price at a time."""
    budget, sizes = GlbBudget(4000), C2.sizes
    operations = sizes.k * sizes.c * sizes.h * sizes.w * sizes.r * sizes.s
    image, results = 6 * 14 * 14, 16 * 10 * 10
    words = {
        "mac": operations, "weight_read": operations, "ifmap_read": operations, "psum_write": operations,
        "psum_read": operations + results, "weight_write": 2400, "ifmap_write": image, "bus": 2400 + image,
        "glb_read": 2400 + image, "glb_write": 2464 + results, "dram_read": 2464, "dram_write": 0,
    }  # fmt: skip
    for name, count in words.items():
        assert least_cost(C2, ARCH, budget, replace(NOTHING, **{name: 1.0})) == count, name


@pytest.mark.parametrize(("stride", "lines"), [(1, 13), (2, 7), (3, 9)])
def test_words_between_windows_need_not_come(stride: int, lines: int) -> None:
    """Taps 2 apart touch every second row and column of 13 by a stride of 2, and all but 4 by one of 3."""
    outputs = 8 // stride + 1
    window = Window((3, 3), (stride, stride), dilation=(2, 2))
    shape = LayerShape("mac", Sizes(1, 1, 1, outputs, outputs, 3, 3), window, 2, 13, 13)
    budget, costs = GlbBudget(4000), replace(NOTHING, bus=1.0)
    least, best = least_cost(shape, ARCH, budget, costs), SearchTask(shape, ARCH, budget).search()
    assert least == 9 + lines**2
    assert best and cost_of(shape, best.mapping, ARCH, False, costs) >= least


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("preset", ["seed-4x4", "spatial-4x4"])
def test_estimates_of_energy_are_what_is_counted(preset: str, stride: int) -> None:
    """`array_energy` is exact for each event between GLB and PEs, where three things hold.

    Tiles have no rest, windows no padding, and no PEs on a diagonal share rows of the image.
    """
    arch = load_arch(preset)
    padded = convolution(8, 8, 7 * stride + 3, 3, stride)
    sizes = replace(padded.sizes, h=8, w=8)
    shape = replace(padded, sizes=sizes, window=replace(padded.window, pad=(0, 0, 0, 0)))
    all_numbers, whole, rng = numbers(shape, arch), BlockPlan(8, 8, 8), np.random.default_rng(SEED)
    events = [each.name for each in fields(Energy) if each.name not in ("unit", "dram_read", "dram_write")]
    price, equal = {event: replace(NOTHING, **{event: 1.0}) for event in events}, Counter[str]()
    for form in forms_of(shape):
        every = rng.permutation(combinations_below(all_numbers, form, ILLEGAL).indices)[: examples(400)]
        estimates = {event: array_energy(all_numbers, form, every, price[event], False) for event in events}
        for number, indices in enumerate(every.tolist()):
            at = point(all_numbers, form, indices)
            tiles = {dim: prod(at.chain(dim, sizes.of(dim))[:3]) for dim in "khwcrs"}
            mapping = mapping_of(shape, arch, at, whole)
            has_rest, on_diagonal = any(sizes.of(dim) % tile for dim, tile in tiles.items()), at.rows[3] > 1
            if has_rest or on_diagonal or not is_legal(shape, mapping, False):
                continue
            counters = operand_traffic(shape, mapping, arch, residual=False).counters()
            counters["words"]["glb_write"] -= counters["words"]["dram_read"]  # which count for plans
            for event in events:
                counted = energy(counters, price[event])["total"]
                assert counted == pytest.approx(estimates[event][number], rel=1e-12), (event, at)
                equal[event] += counted > 0
    rare = ("n2n", "south")
    assert min(equal[event] for event in events if event not in rare) > 20 and max(equal[event] for event in rare) > 20


def tasks() -> list[SearchTask]:
    """Layers with resident and streamed operands, strides, padding, and weights that do not fit."""
    shapes = [C2, convolution(32, 16, 14, 3), convolution(64, 64, 7, 1), convolution(24, 8, 16, 5, 2)]
    budgets = [GlbBudget(8192), GlbBudget(2048, STREAMED), GlbBudget(4096, frozenset({"output"}))]
    effort = replace(USUAL, local_starts=1)  # what is said of fronts holds for those of any search
    return [SearchTask(shape, ARCH, budget, effort=effort) for shape, budget in product(shapes, budgets)]


@cache
def plain_search(task: SearchTask) -> Result | None:
    """The result without a front."""
    return task.search()


@pytest.mark.parametrize("name", ["cycles", "energy", "words"])
def test_fronts_are_what_the_model_counts(name: str) -> None:
    """Each is cheaper and slower than the next one; the last is the fastest. None is below the bound."""
    longer = 0
    for task in tasks() if name == "words" else tasks()[::2]:  # each layer, each budget
        prices = Objective(name).prices(ARCH)
        result = replace(task, prices=prices).search()
        if result is None:
            continue
        each, residual = result.front, task.budget.residual
        plain = plain_search(task)
        assert plain and plain.least <= each[-1].cycles <= plain.cycles  # a front never beats what is proven
        assert (each[-1].mapping, each[-1].cycles) == (result.mapping, result.cycles)
        assert all(a.cost < b.cost and a.cycles > b.cycles for a, b in zip(each, each[1:], strict=False))
        assert each[0].cycles <= prices.limits[0] * each[-1].cycles + 1
        for mapping, cycles, cost in each:
            counters = operand_traffic(task.shape, mapping, ARCH, residual).counters()
            words = counters["words"]["dram_read"] + counters["words"]["dram_write"]
            assert cost == (words if name == "words" else energy(counters, ARCH.energy)["total"])
            assert layer_cycles(LayerPlan("", task.shape, mapping, residual, PREFETCHED), ARCH) == cycles
            budget = replace(task.budget, tight=result.tight)
            assert cost >= least_cost(task.shape, ARCH, budget, prices.costs)
        longer += len(each) > 1
    assert longer >= 3


def test_a_front_saves_most_words() -> None:
    """A layer whose multipliers are busy all the time: its fastest mapping has eight times the words that it needs."""
    budget, prices = GlbBudget(65536, STREAMED), Objective("cycles").prices(ARCH)
    result = SearchTask(CONV, ARCH, budget, prices=prices).search()
    assert result
    words = [cost_of(CONV, each.mapping, ARCH, False, DRAM_WORDS) for each in result.front]
    within = [count for count, each in zip(words, result.front, strict=True) if each.cycles <= 1.005 * result.cycles]
    assert min(within) < words[-1] / 4 and min(within) < 3 * least_cost(CONV, ARCH, budget, DRAM_WORDS)


@pytest.mark.parametrize(
    ("preset", "shape"), [("seed-6x6", (17, 3, 9, 3)), ("spatial-4x4", (6, 6, 9, 1)), ("spatial-8x8", (10, 6, 7, 3))]
)
def test_a_front_looks_at_slow_points_unless_cycles_are_the_objective(
    preset: str, shape: tuple[int, int, int, int]
) -> None:
    """FRONT-1. Small layers are far above the ideal cycles: near these alone they take 7 to 13 % more energy."""
    arch = load_arch(preset)
    prices, budget = Objective("energy").prices(arch), GlbBudget(8192)
    assert prices.wide and not Objective("cycles").prices(arch).wide
    wide, near = (
        SearchTask(convolution(*shape), arch, budget, prices=each).search()
        for each in (prices, prices._replace(wide=False))
    )
    assert wide and near and wide.front[0].cost < 0.95 * near.front[0].cost


def test_only_layers_far_from_the_ideal_have_the_second_look() -> None:
    """FRONT-1. Without the second look for any layer a small one takes more energy; CONV takes the same with it."""
    small, arch = convolution(10, 6, 7, 3), load_arch("spatial-8x8")
    costs = list[float]()
    for task in (SearchTask(small, arch, GlbBudget(8192)), SearchTask(CONV, ARCH, GlbBudget(65536, STREAMED))):
        prices = Objective("energy").prices(task.arch)
        usual, near, far = (
            replace(task, prices=prices, effort=replace(USUAL, front_far=each)).search()
            for each in (USUAL.front_far, inf, 0.0)
        )
        assert usual and near and far
        is_far = usual.front[-1].cycles > USUAL.front_far * ideal_cycles(task.shape, task.arch)
        assert usual.front == (far if is_far else near).front
        costs.append(usual.front[0].cost / near.front[0].cost)
    assert costs[0] < 0.95 and costs[1] == 1


@pytest.mark.parametrize("most", [1, 5, 1 << 20, 1 << 61])
def test_a_stable_order_is_that_of_argsort(most: int) -> None:
    """Keys of 2^61 and places have no room in 64 bits together."""
    rng = np.random.default_rng(SEED)
    for count in (0, 1, 2, 1000):
        keys = rng.integers(0, most, count, endpoint=True)
        assert stable_order(keys).tolist() == np.argsort(keys, kind="stable").tolist()


def test_a_search_goes_on_where_much_less_may_do() -> None:
    """The first search of this layer ends after few points, 23 % above what its space has (`Effort.gap`)."""
    shape, budget = convolution(16, 4, 16, 5), GlbBudget(600, STREAMED)
    task = SearchTask(shape, load_arch("spatial-4x4"), budget, effort=Effort(local_runs=0))
    short, usual = replace(task, effort=Effort(gap=1e9, local_runs=0)).search(), task.search()
    assert short and usual and usual.least <= usual.cycles < 0.9 * short.cycles


BOX = "weight@rf*2 > ifmap@rf*2 > {w'' > s > c'' > r > k''}"
MAPPINGS = (
    f"weight@glb > params@glb > k':4 > h':4 > h''||4@rows > w':4 > c':4 > {BOX}",
    f"params@glb > k':4 > weight@glb*2 > h':4 > h''||4@rows > w':4 > c':4 > {BOX}",
    f"weight@glb > params@glb > k':2 > h':4 > h''||4@rows > w':1 > c':2 > {BOX}",
)


@pytest.mark.parametrize("seed", range(8))
def test_a_chain_over_fronts_is_the_best_of_all_combinations(seed: int) -> None:
    """Choices with random costs; cycles are those of layers by themselves, so that they add up."""
    rng, small = np.random.default_rng(seed), load_arch("spatial-4x4")
    layers = list[list[LayerChoice]]()
    for _ in range(4):
        shape = LayerShape(
            "mac", Sizes(1, 16, int(rng.integers(1, 4)) * 4, 4, 4, 3, 3), Window((3, 3), pad=(1,) * 4), 2, 4, 4
        )
        plans = [LayerPlan("", shape, parse(text, shape.sizes)) for text in MAPPINGS]
        layers.append([LayerChoice(plan, 10, 0, float(rng.integers(1, 1000))) for plan in plans])

    def figures(numbers: tuple[int, ...]) -> Figures:
        chosen = [layer[number] for layer, number in zip(layers, numbers, strict=True)]
        plans = [choice.plan for choice in chosen if choice.plan]
        return Figures(sum(layer_cycles(plan, small) for plan in plans), sum(choice.cost for choice in chosen))

    every = [figures(numbers) for numbers in product(range(3), repeat=4)]
    fewest = min(each.cycles for each in every)
    # The slack may count from the cycles of another network.
    aims = [
        ("cycles", 0.0, inf),
        ("cycles", 0.3, inf),
        ("cycles", 0.3, 0.8 * fewest),
        ("energy", 0, inf),
        ("edp", 0, inf),
    ]
    for name, slack, known in aims:
        objective = Objective(name, slack)
        numbers, chosen, least, fastest = best_choices(
            layers, [1] * 4, [0] * 4, objective, small, lambda each: figures(tuple(each)).cycles, known
        )
        best = every[objective.best(every, known)]
        assert figures(tuple(fastest)).cycles == least == fewest
        assert name != "cycles" or chosen.cycles <= max((1 + slack) * min(known, fewest), best.cycles)
        assert chosen == figures(tuple(numbers)) and chosen.cost <= 1.05 * best.cost, (name, chosen, best)


def counters(model: str, arch: Arch | None = None, **options: object) -> dict[str, object]:
    """Predicted."""
    given = CompileOptions("spatial-8x8", batch=1, calibrate=CALIBRATION, **options)  # pyright: ignore[reportArgumentType]
    compilation = start_compilation(SAMPLES / "models" / f"{model}.onnx", given)
    return program_counts(mapped_parts(compilation), arch or ARCH, causes=False)


def test_objectives_of_a_network() -> None:
    """The MNIST net moves 121,456 words in the fewest cycles, and 17,786 in half a percent more."""

    def of(**options: object) -> tuple[int, float, int]:
        counts = counters("mnist", **options)
        words: dict[str, int] = counts["words"]  # pyright: ignore[reportAssignmentType]
        cycles: dict[str, int] = counts["cycles"]  # pyright: ignore[reportAssignmentType]
        return cycles["total"], energy(counts, Energy())["total"], words["dram_read"] + words["dram_write"]

    fewest, usual, least_energy, words = of(slack=0.0), of(), of(objective="energy"), of(objective="words")
    assert fewest[0] <= usual[0] <= 1.005 * fewest[0] and usual[2] <= 20_000 < fewest[2]
    assert least_energy[1] <= usual[1] < fewest[1] / 2
    assert words[2] <= min(usual[2], least_energy[2])


def test_values_for_few_words_are_tried_by_cycles_where_a_network_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small GLB, 500 cycles to DRAM: with the values that are estimated to wait the least it takes more cycles."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13]> g (float[1,1,15,12] x) => (float[1,2,8,10] y) {
            a = Conv <pads = [0,3,1,0]> (x, v)
            l = LeakyRelu <alpha = 0.1> (a)
            b = Conv <pads = [0,0,2,0], strides = [2,1]> (l, w)
            r = Relu (b)
            s = Add (r, r)
            y = Relu (s)
        }"""
    )
    for name, dims in ("v", (12, 1, 2, 5)), ("w", (2, 12, 3, 2)):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(dims, np.float32), name))
    pe = replace(ARCH.pe, weight_words=50, ifmap_words=110, psum_words=30, ifmap_halves=1, lanes=4)
    arch = replace(
        ARCH, rows=3, cols=9, pe=replace(pe, start_cycles=1, finish_cycles=0), psum_bits=40,
        glb=replace(ARCH.glb, words=533, words_per_cycle=2),
        dram=replace(ARCH.dram, words_per_cycle=3, latency_cycles=500),
        commit=replace(ARCH.commit, units_per_column=4, latency_cycles=20),
        links=replace(ARCH.links, n2n=False, south=False),
    )  # fmt: skip
    net, file = save(model, tmp_path / "net.onnx"), tmp_path / "small.toml"
    file.write_text(arch_text(arch))
    search_with(monkeypatch, SHORT_FRONTS)
    cycles = list[int]()
    for waits in (decision.WAITS, inf):
        monkeypatch.setattr(decision, "WAITS", waits)
        cycles.append(json.loads(done("estimate", net, "--arch", file, "--json").stdout)["cycles"]["total"])
    assert cycles[0] < 0.97 * cycles[1]


@pytest.mark.parametrize("preset", ["spatial-8x8", "spatial-4x4"])
def test_residents_that_cannot_win_are_given_up(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CHAIN-4. Fewer searches lead to the same network: the first four layers of the MNIST net."""
    model = str(tmp_path / "net.onnx")
    extract_model(str(SAMPLES / "models" / "mnist.onnx"), model, ["input"], ["/pool3/MaxPool_output_0"])
    search_with(monkeypatch, SHORT_FRONTS)
    monkeypatch.setattr(disk_cache, "folder", lambda: None)
    arch = load_arch(preset)
    arch, search, file = replace(arch, glb=replace(arch.glb, words=4096)), SearchTask.search, tmp_path / "small.toml"
    file.write_text(arch_text(arch))
    given = CompileOptions(str(file), batch=1, calibrate=CALIBRATION, objective="energy")
    searches, networks, found = Counter[bool](), list[object](), dict[SearchTask, Result | None]()
    for is_given_up in (True, False):

        def counted(
            task: SearchTask, fastest: Result | None = None, *, is_given_up: bool = is_given_up
        ) -> Result | None:
            searches[is_given_up] += 1
            if task not in found:
                found[task] = search(task, fastest)
            return found[task]

        forget()
        with monkeypatch.context() as patch:
            patch.setattr(SearchTask, "search", counted)
            if not is_given_up:
                patch.setattr(Objective, "may_be_better", lambda *_: True)
            compilation = start_compilation(Path(model), given)
            networks.append(program_counts(mapped_parts(compilation), arch, causes=False))
    assert networks[0] == networks[1] and searches[True] < searches[False]


@pytest.mark.parametrize("objective", ["cycles", "energy", "edp", "words"])
def test_objectives_predict_what_runs(objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of each objective, and its values."""
    search_with(monkeypatch, SHORT_FRONTS)
    binary, stats = tmp_path / "net.cnb", tmp_path / "stats.json"
    model = SAMPLES / "models" / "lenet.onnx"
    shared = ("--batch", 1, "--calibrate", CALIBRATION, "--objective", objective)
    done("compile", model, *shared, "-o", binary)
    assert "steps agree" in done("verify", model, *shared).stdout
    done("run", binary, "--stats", stats)
    counted, predicted = json.loads(stats.read_text()), json.loads(done("estimate", binary, "--json").stdout)
    assert all(predicted[key] == counted[key] for key in counted if key != "layers")


def test_options_come_before_the_objective_of_a_schedule(tmp_path: Path) -> None:
    """Also the default one."""
    schedule = tmp_path / "map.toml"
    schedule.write_text('objective = "words"\nslack = 0.02\n')
    model = SAMPLES / "models" / "mnist.onnx"

    def cycles(*options: object) -> int:
        given = ("estimate", model, "--batch", 1, "--calibrate", CALIBRATION, *options, "--json")
        return json.loads(done(*given).stdout)["cycles"]["total"]

    usual, words = cycles(), cycles("--schedule", schedule)
    assert usual == cycles("--schedule", schedule, "--objective", "cycles", "--slack", SLACK) != words
    assert words == cycles("--objective", "words")


def test_schedule_says_objective_and_residents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search_with(monkeypatch, SHORT_FRONTS)
    schedule = tmp_path / "map.toml"
    schedule.write_text('objective = "words"\nslack = 0.02\n["c1"]\noutput = "streamed"\n["c2"]\noutput = "resident"\n')
    read = read_schedule(str(schedule))
    assert (read.objective, read.outputs) == (Objective("words", 0.02), {"c1": "streamed", "c2": "resident"})
    assert not read.entries
    arguments = (SAMPLES / "models" / "lenet.onnx", "--batch", 1, "--calibrate", CALIBRATION, "--schedule", schedule)
    done("compile", *arguments, "-o", tmp_path / "net.cnb", "--dump-dir", tmp_path / "ir")
    text = " ".join(next((tmp_path / "ir").glob("*-nest-assign-mapping.mlir")).read_text().split())
    mappings = {part.split('"')[0]: part.split('mapping "')[0] for part in text.split('label "')[1:]}
    before_c1 = text.split('label "c1"')[0].rpartition('mapping "')[2]
    assert "output@glb" in before_c1 and mappings
    assert "output@glb" not in text.split('label "c2"')[0].rpartition('mapping "')[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('objective = "speed"', "there is no objective 'speed'"),
        ("objective = 1", 'an objective is a text, a slack a number: objective = "energy", slack = 0.01'),
        ("slack = true", "an objective is a text, a slack a number"),
        ("slack = -1", "the slack is a share of the fewest cycles from 0 to 10, not -1"),
        (f"slack = 1{'0' * 400}", "the slack is a share of the fewest cycles from 0 to 10, not 1000000000000 …"),
        ('["c1"]\noutput = "gone"', 'expected "resident" or "streamed"'),
        ('["c9"]\noutput = "resident"', "there is no such layer"),
    ],
)
def test_schedules_with_wrong_objectives(text: str, said: str, tmp_path: Path) -> None:
    schedule = tmp_path / "map.toml"
    schedule.write_text(text)
    model = SAMPLES / "models" / "lenet.onnx"
    assert said in refused("estimate", model, "--batch", 1, "--schedule", schedule)


def test_a_slack_beside_the_objective_of_a_schedule_is_refused(tmp_path: Path) -> None:
    schedule = tmp_path / "map.toml"
    schedule.write_text('objective = "energy"')
    estimate = ("estimate", SAMPLES / "models" / "lenet.onnx", "--schedule", schedule, "--slack", 0.1)
    assert f"{schedule}: a slack is a share of the cycles: it has no effect with" in refused(*estimate)


@pytest.mark.parametrize("objective", ["cycles", "energy", "edp", "words"])
def test_fronts_look_for_less_energy_and_fewer_words_in_the_space_of_tight_budgets(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FRONT-1, where an operand is streamed."""
    looked_at = list[bool]()
    usual = SearchTask._front

    def front(self: SearchTask, tight: bool, known: tuple[Tradeoff, ...], prices: Prices) -> tuple[Tradeoff, ...]:
        looked_at.append(tight)
        return usual(self, tight, known, prices)

    monkeypatch.setattr(SearchTask, "_front", front)
    task = next(task for task in tasks() if task.budget.streamed)
    prices = Objective(objective).prices(task.arch)
    result = replace(task, prices=prices, effort=replace(USUAL, front_gap=inf)).search()
    assert result and not result.tight and looked_at == [objective != "cycles"]


@pytest.mark.parametrize(("layer", "array"), [("conv1_16", "8x8"), ("conv3_8", "8x8"), ("conv3_rgb", "4x4")])
def test_weights_that_stay_take_less_energy(layer: str, array: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOCAL-6: 3 % less, in as many cycles."""
    case = case_of(layer, array, is_large=False)
    task = SearchTask(case.shape, case.arch, case.budget, prices=Objective().prices(case.arch))
    with_them, calls = task.search(), list[Mapping]()

    def none(mapping: Mapping, sizes: Sizes) -> None:
        calls.append(mapping)

    monkeypatch.setattr(layer_search, "weights_kept", none)
    without = task.search()
    assert with_them and without and calls
    limit = (1 + SLACK) * without.cycles
    least, usual = (min(one.cost for one in each.front if one.cycles <= limit) for each in (with_them, without))
    assert least < 0.97 * usual and with_them.cycles <= without.cycles


def test_a_dataflow_that_keeps_other_operands_has_no_weights_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    case, asked = case_of("conv3_rgb", "4x4", is_large=False), list[str]()
    task = SearchTask(case.shape, case.arch, case.budget, prices=Objective().prices(case.arch))
    for dataflow in ("os", "is", "ws", ""):
        monkeypatch.setattr(layer_search, "weights_kept", lambda *_, name=dataflow: asked.append(name))
        assert replace(task, dataflow=dataflow).search(), dataflow
    assert {*asked} == {"ws", ""}
