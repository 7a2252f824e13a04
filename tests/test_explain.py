"""`cnncc estimate --explain`: what it says of other mappings and other arrays is what the interpreter counts there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from cli_cases import CALIBRATION, LENET, build, done, noise, save
from onnx import helper, numpy_helper

from cnncc.arch.model import Arch, arch_text, load_arch
from cnncc.dialects.array import LayerOp, RepeatOp
from cnncc.driver.sources import CompileOptions
from cnncc.estimate.array_changes import variations
from cnncc.estimate.explain import as_text
from cnncc.estimate.explain_group import explain_group
from cnncc.estimate.layer_limits import COMPUTE, LIMITS, MOVED, cause_text, limit_of, limit_sentences, limits, sentence
from cnncc.estimate.mapped_program import Program, of_model
from cnncc.explore.array_grid import with_config

pytestmark = pytest.mark.usefixtures("short_searches")

LENET_OPTIONS = ("--batch", 1, "--calibrate", CALIBRATION)
AUTO, OS = ("--dataflow", "auto"), ("--dataflow", "os")
# A mapping of c2 whose macro-instructions take less time than what they need of words.
C2 = "h':2 > w':2 > [k':4||4@rows h''||2@rows k''||4@cols w''||2@cols] > c':3 > r':3 > {s > c'' > r''}"


def estimated(*args: object) -> dict[str, Any]:
    """`cnncc estimate ARGS --json`."""
    return json.loads(done("estimate", *args, "--json").stdout)


def lenet(
    arch: str = "spatial-8x8", schedule: Path | None = None, dataflow: str | None = None, slack: float | None = None
) -> Program:
    """LeNet on an array."""
    options = CompileOptions(arch, None, CALIBRATION, 1, schedule, dataflow, slack=slack)
    return of_model(LENET, options)[0]


def test_explain_limits_are_as_documented() -> None:
    """LIMIT-1 has every cause, with its keys and its change of the mapping."""
    text = (Path(__file__).parents[1] / "docs" / "estimate.md").read_text()
    rows = re.findall(r"^  \| (`[^|]*`) \| ([^|]*) \| ([^|]*) \|$", text, re.MULTILINE)
    rows = [(re.findall(r"`([\w.]+)`", cause), re.findall(r"`([\w.]+)`", keys), how) for cause, keys, how in rows]
    found = {cause: (tuple(keys), how) for causes, keys, how in rows for cause in causes if cause in LIMITS}
    assert found == {cause: (limit.keys, limit.mapping) for cause, limit in LIMITS.items() if cause != COMPUTE}


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A schedule for LeNet."""
    (tmp_path / "given.toml").write_text(f'[c2]\nmapping = "{C2}"\n')
    return tmp_path / "given.toml"


def counted(folder: Path, model: tuple[object, ...], arch: Arch, mappings: Mapping[str, str]) -> dict[str, Any]:
    """What a run on an array counts of a model whose layers are mapped like that."""
    (folder / "array.toml").write_text(arch_text(arch))
    entries = [f'["{label}"]\nmapping = "{mapping}"\n' for label, mapping in mappings.items()]
    (folder / "mine.toml").write_text("".join(entries))
    given = ("--arch", folder / "array.toml", "--schedule", folder / "mine.toml")
    done("compile", *model, *given, "-o", folder / "net.cnb")
    done("run", folder / "net.cnb", "--stats", folder / "stats.json")
    return json.loads((folder / "stats.json").read_text())


def one_layer(folder: Path, channels: int, outputs: int, side: int) -> Path:
    """A model with a convolution of 3 x 3."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="c", pads=[1, 1, 1, 1])
    model = build([node], {"x": (1, channels, side, side)}, ["y"], {"w": noise(1, outputs, channels, 3, 3)})
    return save(model, folder / "net.onnx")


def test_explain_of_what_is_mapped(given: Path, tmp_path: Path) -> None:
    """IR has the same room for other mappings; of a binary that is not known, and mappings are kept."""
    options = (*LENET_OPTIONS, *OS, "--schedule", given)
    done("compile", LENET, *options, "-o", tmp_path / "net.cnb", "--dump-dir", tmp_path / "ir")
    whole = estimated(LENET, *options, "--explain", "c2")
    found, limit = whole["explain"], whole["layers"]["c2"]["limit"]
    assert all(each["more"] < 0 for each in found["compared"]["dataflows"])
    for dump in ("nest-assign-mapping", "nest-stage"):
        whole = estimated(tmp_path / "ir" / dump, "--explain", "c2")
        mapped = whole["explain"]
        assert mapped["compared"] == found["compared"] and whole["layers"]["c2"]["limit"] == limit
    whole = estimated(tmp_path / "net.cnb", "--explain", "c2")
    binary = whole["explain"]
    assert binary["compared"] is None and whole["layers"]["c2"]["limit"] == limit
    assert binary["changes"] == mapped["changes"]
    kept = {change["mapping"] for change in binary["changes"]}
    assert kept == {estimated(tmp_path / "net.cnb")["layers"]["c2"]["mapping"]}
    assert "the best of each dataflow" not in done("estimate", tmp_path / "net.cnb", "--explain", "c2").stdout


@pytest.mark.parametrize(("layer", "dataflow"), [("c2", AUTO), ("f1", OS)])
def test_explain_other_arrays_are_counted(layer: str, dataflow: tuple[str, ...], tmp_path: Path) -> None:
    """The layer has the mapping that is said, the others keep theirs."""
    found, base = estimated(LENET, *LENET_OPTIONS, *dataflow, "--explain", layer), load_arch("spatial-8x8")
    explained, now = found["explain"], {label: each["cycles"]["total"] for label, each in found["layers"].items()}
    mappings = {label: each["mapping"] for label, each in found["layers"].items() if each.get("mapping")}
    cycles = [change["layer"] for change in explained["changes"]]
    assert cycles == sorted(cycles) and cycles[-1] < now[layer]
    keys = [change["key"] for change in explained["changes"]]
    assert keys[0] == {"c2": "rows", "f1": "dram.words_per_cycle"}[layer]
    assert len(set(keys)) == 3 and not {"energy.mac", "operand_bits"} & set(keys)
    for change in explained["changes"]:
        arch = with_config(base, {change["key"]: change["value"]})
        there = counted(tmp_path, (LENET, *LENET_OPTIONS), arch, mappings | {layer: change["mapping"]})
        assert there["layers"][layer]["cycles"]["total"] == change["layer"]
        assert there["cycles"]["total"] == change["program"]


def test_explain_tries_more_of_what_is_had_and_less_of_what_is_waited() -> None:
    arch = load_arch("spatial-8x8")
    tried = {key: value for key, _, value in variations(arch)}
    assert tried["rows"] == 16 and tried["glb.words"] == 2 * arch.glb.words
    assert tried["dram.latency_cycles"] == arch.dram.latency_cycles // 2
    assert "name" not in tried


def test_explain_limit_is_bandwidth_where_the_dma_is_always_busy() -> None:
    """Words of the next block move while the last ones of a block are on their way."""
    stall = {f"dram_{kind}_{moved}": 0 for moved in MOVED for kind in ("bandwidth", "latency")}
    stall |= {"dram_latency_activations": 400, "dram_bandwidth_activations": 90, "write_port": 450}
    assert limit_of({"total": 1000, "compute": 60, "dma": 899, "stall": stall}) == ("write_port", 450)
    assert limit_of({"total": 1000, "compute": 60, "dma": 900, "stall": stall}) == ("dram_bandwidth_activations", 490)
    stall |= {"dram_latency_activations": 0, "dram_bandwidth_activations": 99, "dram_latency_weights": 0}
    assert limit_of({"total": 1000, "compute": 451, "dma": 900, "stall": stall}) == ("write_port", 450)
    stall |= {"dram_latency_weights": 1}
    assert limit_of({"total": 1000, "compute": 450, "dma": 900, "stall": stall}) == ("dram_bandwidth_activations", 99)


@pytest.mark.parametrize(("waits", "limit"), [(99, (COMPUTE, 850)), (100, ("write_port", 100))])
def test_explain_limit_is_the_pes_unless_a_cause_takes_a_tenth(waits: int, limit: tuple[str, int]) -> None:
    stall = {f"dram_{kind}_{moved}": 0 for moved in MOVED for kind in ("bandwidth", "latency")}
    stall |= {"write_port": waits, "row_bus": 150 - waits}
    assert limit_of({"total": 1000, "compute": 850, "dma": 0, "stall": stall}) == limit


@pytest.mark.parametrize(
    ("share", "first"), [(0.5, "a mapping that keeps more PEs busy, or a larger"), (0.9, "a larger")]
)
def test_explain_names_a_better_mapping_first_where_pes_idle(share: float, first: str) -> None:
    layer = {
        "limit": {"cause": COMPUTE, "cycles": 95, "lifted": None},
        "cycles": {"total": 100, COMPUTE: 95, "stall": {"fill": 5}},
        "macs": 1,
        "utilisation": {"compute": share},
    }
    assert f"); what helps: {first} array" in sentence("c", layer)


def test_explain_shares_are_of_all_that_a_layer_is_charged_with(tmp_path: Path) -> None:
    """The results of the host are copied into the GLB before the layer, which ends the wait for them (TIME-5)."""
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Conv", ["e", "w"], ["y"], name="c")]
    path = save(build(nodes, {"x": (1, 2, 5, 5)}, ["y"], {"w": noise(1, 3, 2, 1, 1)}), tmp_path / "net.onnx")
    cycles = estimated(path)["layers"]["c"]["cycles"]
    whole = cycles["compute"] + sum(cycles["stall"].values())
    assert whole > cycles["total"]
    text = done("estimate", path, "--explain", "c").stdout
    assert f"(of {whole:,} cycles, with a wait that began before the layer)" in " ".join(text.split())
    waits = re.search(r"the array waits for: (.*?) \(of ", " ".join(text.split()))
    assert waits and sum(float(share) for share in re.findall(r"\(([\d.]+) %\)", waits[1])) < 100
    assert f"% of {whole:,} cycles, with a wait that began before the layer); what helps" in " ".join(text.split())


def test_explain_counts_the_loops_of_a_group(tmp_path: Path) -> None:
    """GROUP-5: a layer that prefetches its stripes from DRAM has its last full one in a body of its own."""
    c1 = (
        "weight@glb > params@glb > h':2 > ifmap@glb*2 > [k':2||3@rows h''||2@rows k''||2@cols w':7||4@cols] > "
        "weight@rf*2 > w'':2 > ifmap@rf*2 > {w''' > s > r}"
    )
    schedule = tmp_path / "group.toml"
    schedule.write_text(f'[c1]\nmapping = "{c1}"\n[[group]]\nlayers = ["c1", "pool1"]\nrows = 1\nloads = false\n')
    program, compilation = of_model(LENET, CompileOptions(batch=1, schedule=schedule))
    (group,) = (op for op in compilation.module.ops if isinstance(op, LayerOp) and op.label.data == "c1..pool1")
    assert [op.record.data.count for op in group.body.block.ops if isinstance(op, RepeatOp)] == [13, 1]
    assert explain_group(program, "c1")["bodies"] == 2


def test_explain_behind_a_given_group_that_fetches_nothing(tmp_path: Path) -> None:
    """The weights of c have no place for their transfer there: no tried mapping of c has them prefetched, either.

    The chosen mapping of c has the images inside the weights (LOCAL-5), which no dataflow alone finds.
    """
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13]> g (float[3,4,8,8] x) => (float[3,8,5,5] y) {
            [l0] v = LeakyRelu (x)
            [l1] a = MaxPool <kernel_shape = [3,3]> (v)
            [l2] b = MaxPool <kernel_shape = [2,2]> (a)
            [c] y = Conv <pads = [1,1,1,1]> (b, w)
        }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 4, 3, 3), np.float32), "w"))
    (tmp_path / "group.toml").write_text('[[group]]\nlayers = ["l1", "l2"]\nrows = 1\n')
    net = (save(model, tmp_path / "net.onnx"), "--schedule", tmp_path / "group.toml")
    assert "this is the chosen mapping" in done("estimate", *net, "--explain", "l0").stdout
    assert "the chosen mapping is none of them" in done("estimate", *net, "--explain", "c").stdout


def test_explain_text(given: Path) -> None:
    found = estimated(LENET, *LENET_OPTIONS, *OS, "--schedule", given, "--explain", "c2")
    best = found["explain"]["changes"][0]
    # A load takes a cycle for each word of a PE, more than its words take through the GLB's port or a row's bus.
    layer = found["layers"]["c2"]
    limit = layer["limit"]
    assert (limit["cause"], limit["cycles"]) == ("write_port", layer["cycles"]["stall"]["write_port"])
    assert (limit["lifted"]["key"], limit["lifted"]["value"]) == ("pe.words_per_cycle", 2)
    assert limit["lifted"]["cycles"] < layer["cycles"]["total"]
    text = "\n".join(as_text(found, lenet(schedule=given, dataflow="os").layers()["c2"]))
    assert "c2: limited by the write port of register files (" in text
    for cause, cycles in layer["cycles"]["stall"].items():
        assert (f"{cause_text(cause)} {cycles:,} (" in text) == (cycles > 0)
    assert f"{best['key']} {best['was']} -> {best['value']}: {best['layer']:,} cycles (" in text
    alone = found["explain"]["compared"]
    assert f"alone it takes {alone['cycles']:,} cycles; the best of each dataflow in {alone['budget']:,} words" in text
    for each in alone["dataflows"]:
        assert f"{each['dataflow']}  {each['cycles']:,} cycles ({each['more']:+,}, " in text
        assert each["why"] in text and each["mapping"] in text


@pytest.mark.parametrize(
    ("changed", "layer", "cause", "key"),
    [
        ({"glb.words_per_cycle": 1}, "c2", "glb_port", "glb.words_per_cycle"),
        ({"bus.burst_words": 1}, "c2", "row_bus", "bus.burst_words"),
        ({"dram.words_per_cycle": 1}, "f1", "dram_bandwidth_weights", "dram.words_per_cycle"),
    ],
)
def test_explain_limit_names_the_rate(
    changed: dict[str, int], layer: str, cause: str, key: str, given: Path, tmp_path: Path
) -> None:
    """A slow port, bus or DRAM is the limit, and its double makes the layer that much faster."""
    arch = with_config(load_arch("spatial-8x8"), changed)
    (tmp_path / "array.toml").write_text(arch_text(arch))
    program = lenet(str(tmp_path / "array.toml"), given, "os")
    limit = limits(program.parts, arch, program.counters()["layers"])[layer]
    assert (limit["cause"], limit["lifted"]["key"]) == (cause, key)
    faster = program.counters(with_config(arch, {key: 2 * changed[key]}))["layers"][layer]["cycles"]["total"]
    assert limit["lifted"]["cycles"] == faster


def test_estimate_names_the_limits_of_five_layers_and_where_those_of_others_are() -> None:
    """LeNet has seven layers."""
    layers = estimated(LENET, *LENET_OPTIONS)["layers"]
    *shown, others = limit_sentences(layers)
    assert len(shown) == 5 and others == "these lose the most cycles; --explain LAYER says it of 2 other layers"
    assert len(limit_sentences({label: layers[label] for label in ("c1", "c2", "f1", "f2", "f3")})) == 5
