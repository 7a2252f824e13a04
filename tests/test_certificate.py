"""Certificates of mappings are checked without the search, and what is wrong in them is found."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_cases import SAMPLES, refused, save
from frontend_models import model
from searches import SHORT, search_with
from test_conv_groups import array_file
from test_glb_blocks import branches, image_for
from test_objectives import ARCH, tasks

from cnncc.arch.model import Energy, arch_text, load_arch
from cnncc.certificate.certificate import COSTS, certificate, check
from cnncc.certificate.least_costs import least_energy, least_words, prices_of, streamed_least
from cnncc.driver.sources import CompileOptions
from cnncc.errors import Refusal
from cnncc.mapper import block_plans, bound, chain, front, least_cost, search, space
from cnncc.mapper.objective import Objective
from cnncc.mapping.mapping import Sizes
from cnncc.mapping.text import parse
from cnncc.model.layer_schedule import layer_cycles, plan_in
from cnncc.model.layer_shape import GlbBudget, LayerShape
from cnncc.passes._scheduling import residency
from cnncc.passes._scheduling.glb_words import glb_words
from cnncc.util.progress import silent
from cnncc.window import Window

LENET = SAMPLES / "models" / "lenet_qoperator_u8.onnx"
Json = dict[str, Any]


def options(model: Path, arch: str) -> CompileOptions:
    return CompileOptions(arch, batch=1 if model == LENET else None)


def written(model: Path, arch: str, file: Path) -> Json:
    found = certificate(model, options(model, arch), silent)
    file.write_text(json.dumps(found))
    return found


def checked(model: Path, arch: str, file: Path) -> list[list[str]]:
    return list(check(model, file, options(model, arch), silent))


@pytest.fixture
def without_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the search has fails when it is called."""

    def called(*_: object, **__: object) -> None:
        raise AssertionError("code of the search was called")

    for module in (block_plans, bound, chain, front, least_cost, search, space):
        for name, value in vars(module).items():
            if inspect.getmodule(value) is module and callable(value):
                monkeypatch.setattr(module, name, called)


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """All values are resident: then each layer is proven."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residency, "END_PART", 0)
        return written(LENET, "spatial-4x4", tmp_path_factory.mktemp("lenet") / "lenet.json")


@pytest.mark.usefixtures("without_search")
def test_certificate_is_checked_without_the_search(lenet: Json, tmp_path: Path) -> None:
    (tmp_path / "lenet.json").write_text(json.dumps(lenet))
    lines = checked(LENET, "spatial-4x4", tmp_path / "lenet.json")
    assert len(lines) == len(lenet["layers"]) > 4
    assert all("the best of the layer alone" in line for line, _, _ in lines)
    assert all(layer["proven"] for layer in lenet["layers"])
    for (_, _, line), layer in zip(lines, lenet["layers"], strict=True):
        energy = layer["costs"]["energy"]
        if energy["proven"]:
            assert energy["cost"] == energy["least"] and line.endswith(": the best of the layer alone")
            continue
        (most,) = re.findall(r": at most ([\d.]+) % above the best$", line)
        assert 0 <= float(most) - 100 * (energy["cost"] - energy["least"]) / energy["least"] < 0.1


def test_certificate_proves_energies_that_float_sums_round(tmp_path: Path) -> None:
    """By these prices the bound of one pool is rounded up, that of the other one down; both are the mapping's cost."""
    files = dict.fromkeys((f"{name}_{way}" for name in ("weight", "ifmap", "psum") for way in ("read", "write")), 8.2)
    links = dict.fromkeys(("bus", "n2n", "south"), 6.2)
    memories = {"glb_read": 2.5, "glb_write": 2.5, "dram_read": 8.0, "dram_write": 8.0}
    arch = tmp_path / "prices.toml"
    energy = Energy("pJ", 8.2, **files, **links, **memories)
    arch.write_text(arch_text(replace(load_arch("spatial-8x8"), energy=energy)))
    found = written(LENET, str(arch), tmp_path / "lenet.json")
    pools = [layer["costs"]["energy"] for layer in found["layers"] if layer["kind"] == "max"]
    assert len(pools) == 2 and all(pool["proven"] and pool["cost"] == pool["least"] for pool in pools), pools
    checked(LENET, str(arch), tmp_path / "lenet.json")


def test_certificate_of_words_and_energy(lenet: Json, tmp_path: Path) -> None:
    """What is wrong about them is found: costs, bounds, mappings, what is missing."""
    file = tmp_path / "wrong.json"
    assert all(layer["costs"]["words"]["proven"] for layer in lenet["layers"])
    proven = {layer["kind"] for layer in lenet["layers"] if layer["costs"]["energy"]["proven"]}
    assert proven == {"max"}  # of sums the bound is not reached
    layer = next(number for number, layer in enumerate(lenet["layers"]) if layer["kind"] == "mac")

    def refused_as(message: str, name: str, **changes: object) -> None:
        wrong = json.loads(json.dumps(lenet))
        wrong["layers"][layer]["costs"][name] |= changes
        file.write_text(json.dumps(wrong))
        with pytest.raises(Refusal, match=message):
            checked(LENET, "spatial-4x4", file)

    words, energy = (lenet["layers"][layer]["costs"][name] for name in ("words", "energy"))
    refused_as("its mapping for words costs", "words", cost=words["cost"] - 1, least=words["least"] - 1)
    refused_as("some mapping may cost", "words", least=words["least"] + 1, proven=False)
    refused_as("some mapping may cost", "energy", least=energy["least"] + 1)
    refused_as("said to be proven", "energy", proven=True)
    refused_as("its mapping for energy costs", "energy", mapping=lenet["layers"][layer]["mapping"])
    refused_as("some mapping may cost", "energy", least=-1)
    refused_as("no certificate", "energy", least=None)
    refused_as("no certificate: layer", "energy", least=10**400)
    refused_as("no certificate: NaN is no number", "energy", least=float("nan"))
    refused_as("no certificate|no part of a program", "words", mapping="k > nonsense")
    without = json.loads(json.dumps(lenet))
    del without["layers"][layer]["costs"]["words"]["least"]
    file.write_text(json.dumps(without))
    with pytest.raises(Refusal, match="no certificate: layer '.*': there is no 'least'$"):
        checked(LENET, "spatial-4x4", file)


def test_least_costs_hold_for_all_fronts() -> None:
    """The bounds of the checker are not above those of the mapper, and these not above what is known (test_fronts)."""
    for task in tasks():
        for name in ("words", "energy"):
            prices = Objective(name).prices(task.arch)
            assert replace(prices_of(name, ARCH), unit="") == replace(prices.costs, unit="")
            least = COSTS[name](task.shape, ARCH, task.budget)
            known = least_cost.least_cost(task.shape, ARCH, task.budget, prices.costs)
            assert least <= known * (1 + 1e-12)
            assert least > 0.5 * known


@pytest.mark.parametrize(("stride", "lines"), [(1, 9), (2, 5), (3, 8)])
def test_least_energy_counts_each_pixel_that_a_window_touches(stride: int, lines: int) -> None:
    """Three taps 2 apart, padding 2: by a stride of 1 all 9 rows, by one of 2 the even ones.

    By a stride of 3 the windows are at rows -2, 0, 2; 1, 3, 5; 4, 6, 8: all but -2, which is padding, and 7.
    """
    outputs = 8 // stride + 1
    window = Window((3, 3), (stride, stride), (2, 2, 2, 2), (2, 2), group=2)
    shape = LayerShape("max", Sizes(1, 2, 1, outputs, outputs, 3, 3), window, 0, 9, 9)
    free = dict.fromkeys((name for name in vars(ARCH.energy) if name != "unit"), 0.0)
    arch = replace(ARCH, energy=Energy("", **free | {"ifmap_write": 1.0}))
    assert least_energy(shape, arch, GlbBudget(4000)) == 2 * lines**2


def test_bounds_of_streamed_layers_hold_beyond_the_space() -> None:
    """A channel of the image stays, blocks of results go: no block of both fits, and padding does not move.

    The window of 7 x 7 touches all 14 x 14 pixels and 6 on each side. Image and results are 4 (196 + 400) words.
    """
    shape = LayerShape("max", Sizes(1, 4, 1, 20, 20, 7, 7), Window((7, 7), pad=(6,) * 4, group=4), 0, 14, 14)
    arch, budget = load_arch("spatial-16x16"), GlbBudget(400, frozenset({"ifmap", "output"}))
    loops = "k > ifmap@glb > w':8 > output@glb > [h':4||5@rows h''||4@cols w'':2||4@cols] > r > ifmap@rf*2 > {w''' > s}"
    mapping = parse(loops, shape.sizes)
    assert glb_words(shape, arch, mapping) == 196 + 8 * 20 <= budget.words
    assert least_words(shape, arch, budget) == 4 * (196 + 400)
    slow = replace(arch, dram=replace(arch.dram, words_per_cycle=1, latency_cycles=0))
    least = streamed_least(shape, slow, budget.streamed, budget.words)
    assert least == 4 * (196 + 400) < layer_cycles(plan_in(budget, shape, mapping), slow)


@pytest.mark.parametrize("number", range(4))
def test_certificate_that_is_wrong_is_refused(number: int, lenet: Json, tmp_path: Path) -> None:
    wrong = json.loads(json.dumps(lenet))
    layer = wrong["layers"][2]
    cycles, label, file = layer["cycles"], layer["layer"], tmp_path / "wrong.json"
    says = [
        f"takes {cycles:,} cycles, not {cycles - 1:,}",
        f"a mapping takes {cycles:,} cycles, fewer than {cycles + 1:,}",
        f"its GLB budget is {layer['budget']} words, not {layer['budget'] - 1}",
        "its bound of -1 cycles is negative",
    ]
    layer |= [
        {"cycles": cycles - 1}, {"least": cycles + 1, "proven": False}, {"budget": layer["budget"] - 1},
        {"least": -1, "proven": False},
    ][number]  # fmt: skip
    file.write_text(json.dumps(wrong))
    with pytest.raises(Refusal) as refused:
        checked(LENET, "spatial-4x4", file)
    assert f"layer '{label}'" in str(refused.value) and says[number] in str(refused.value)


@pytest.mark.parametrize("key", ["bounded", "run"])
@pytest.mark.parametrize("count", [-2, 1.5, "7", True, None])
def test_certificate_of_a_count_that_is_none_is_refused(key: str, count: object, lenet: Json, tmp_path: Path) -> None:
    """How many mappings the search bounded and ran: the check does not count them again."""
    wrong, file = json.loads(json.dumps(lenet)), tmp_path / "wrong.json"
    wrong["layers"][0][key] = count
    file.write_text(json.dumps(wrong))
    with pytest.raises(Refusal, match=f"its '{key}' is {count!r}, no whole number of at least 0$"):
        checked(LENET, "spatial-4x4", file)


def test_certificate_of_a_worse_mapping_is_refused(lenet: Json, tmp_path: Path) -> None:
    """Its cycles are right, and that it is the best is not."""
    wrong, file = json.loads(json.dumps(lenet)), tmp_path / "wrong.json"
    layer = next(layer for layer in wrong["layers"] if layer["kind"] == "mac")
    layer["mapping"] = "weight@glb > params@glb > n > k > h > w > c > r > s > weight@rf*2 > ifmap@rf*2"
    with pytest.raises(Refusal, match=r"takes [\d,]+ cycles, not") as refused:
        file.write_text(json.dumps(wrong))
        checked(LENET, "spatial-4x4", file)
    found = int(str(refused.value).split("takes ")[1].split(" cycles")[0].replace(",", ""))
    layer |= {"cycles": found, "least": found}
    file.write_text(json.dumps(wrong))
    with pytest.raises(Refusal, match="a mapping takes"):
        checked(LENET, "spatial-4x4", file)


def test_certificate_that_is_damaged_is_refused(lenet: Json, tmp_path: Path) -> None:
    file = tmp_path / "wrong.json"
    for damage, says in (
        ({"groups": 5}, "its layers and groups are no lists"),
        ({"layers": [{"host": True}]}, "its layers and groups are no lists"),
        ({"groups": [{"group": "a@0", "layers": []}]}, "groups: plan: entry 0 is no part of a program"),
        ({"groups": [{"host": True}]}, "groups: it is no group"),
        ({"moves": {lenet["layers"][0]["layer"]: ["x"]}}, "moves: no layer there reads or writes 'x'"),
    ):
        file.write_text(json.dumps(lenet | damage))
        with pytest.raises(Refusal, match=says):
            checked(LENET, "spatial-4x4", file)
    with pytest.raises(Refusal, match="is a device"):
        checked(LENET, "spatial-4x4", Path("/dev/zero"))


def test_certificate_of_another_array_is_refused(lenet: Json, tmp_path: Path) -> None:
    (tmp_path / "lenet.json").write_text(json.dumps(lenet))
    with pytest.raises(Refusal, match="of another array than"):
        checked(LENET, "spatial-8x8", tmp_path / "lenet.json")


def test_certificate_of_layers_that_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search_with(monkeypatch, SHORT)
    arch, file = str(array_file(tmp_path, "4x4", glb_words=240)), tmp_path / "net.json"
    net = save(branches(image_for(240)), tmp_path / "net.onnx")
    found = written(net, arch, file)
    assert any(layer["streamed"] for layer in found["layers"])
    assert all(layer["least"] <= layer["cycles"] for layer in found["layers"])
    assert len(checked(net, arch, file)) == len(found["layers"])
    layer = next(layer for layer in found["layers"] if layer["streamed"] and not layer["proven"])
    layer |= {"least": layer["cycles"], "proven": True}
    file.write_text(json.dumps(found))
    with pytest.raises(Refusal, match=f"layer '{layer['layer']}': some mapping may take"):
        checked(net, arch, file)


def test_certificate_of_parts_of_a_concatenation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words between the images of a part are those of the whole."""
    search_with(monkeypatch, SHORT)
    text = "agraph (float[2,3,5,4] x) => (float[2,6,5,4] y) { a = Relu (x) y = Concat <axis = 1> (a, x) }"
    net, file = save(model(text), tmp_path / "net.onnx"), tmp_path / "net.json"
    found = written(net, "spatial-4x4", file)
    assert [layer["image"] for layer in found["layers"]] == [120, 120]
    assert len(checked(net, "spatial-4x4", file)) == 2


def test_no_bound_above_a_known_mapping_is_stated_or_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mapping beyond the space may take less than the bounds of the space say. It is not proven by that."""
    search_with(monkeypatch, SHORT)
    arch, file = str(array_file(tmp_path, "4x4", glb_words=240)), tmp_path / "net.json"
    net = save(branches(image_for(240)), tmp_path / "net.onnx")
    monkeypatch.setattr("cnncc.certificate.certificate.streamed_least", lambda *_: 10**9)
    for name in COSTS:
        monkeypatch.setitem(COSTS, name, lambda *_: 10**12)
    found = written(net, arch, file)
    layer = next(layer for layer in found["layers"] if layer["streamed"])
    of_costs = [cost for each in found["layers"] for cost in each["costs"].values()]
    assert all((each["least"], each["proven"]) == (0, False) for each in (layer, *of_costs))
    layer |= {"least": layer["cycles"] + 1}
    file.write_text(json.dumps(found))
    with pytest.raises(Refusal, match=f"some mapping may take {layer['cycles']:,} cycles, fewer than"):
        checked(net, arch, file)


def test_certificate_files_that_are_none(tmp_path: Path) -> None:
    """Each is refused in a line, before anything is searched."""
    estimate = ("estimate", LENET, "--batch", 1, "--arch", "spatial-4x4")
    (tmp_path / "no").touch()
    assert refused(*estimate, "--certificate", tmp_path / "no" / "x.json").endswith(f"{tmp_path}/no is no folder")
    file = tmp_path / "x.json"
    assert f"{file}: cannot be read: No such file" in refused(*estimate, "--check-certificate", file)
    for text, says in (("{}", "there is no 'layers'"), ("x", "Expecting value"), ("[" * 10**5, "maximum recursion")):
        file.write_text(text)
        assert f"{file}: no certificate: {says}" in refused(*estimate, "--check-certificate", file)
