"""`cnncc estimate` says what `run --stats` counts, of models, of IR and of binaries, and never reads instructions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import CALIBRATION, LENET, build, done, invoke, noise, refused
from cli_cases import save as save_model
from drawn import compiled_at_random
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from test_group_programs import network_file
from textbook_dataflows import TEXTBOOK

from cnncc.binary.container import load, save
from cnncc.binary.counters import program_stats
from cnncc.driver.pipeline import TO_PROGRAMS, Compilation
from cnncc.driver.program_parts import prefetched_operands, program_parts
from cnncc.estimate.estimate_table import as_json as as_json_of
from cnncc.estimate.layer_limits import LIMITS
from cnncc.estimate.mapped_program import Program
from cnncc.estimate.what_if import read_changes
from cnncc.explore.array_grid import with_config
from cnncc.isa.assembly import assemble
from cnncc.isa.codec import encode_program
from cnncc.model.plan_json import as_json, from_json

pytestmark = pytest.mark.usefixtures("short_searches")

LENET_OPTIONS = ("--batch", 1, "--calibrate", CALIBRATION)
Source = tuple[object, ...]  # what `estimate` takes
MORE = ("kind", "dataflow", "mapping", "roofline", "limit")  # beside the keys of `run --stats`


def estimated(*args: object) -> dict[str, Any]:
    """`cnncc estimate ARGS --json`."""
    return json.loads(done("estimate", *args, "--json").stdout)


def run(binary: Path) -> dict[str, Any]:
    """What `run --stats` counts."""
    stats = binary.with_suffix(".json")
    done("run", binary, "--stats", stats)
    return json.loads(stats.read_text())


def of_run(estimate: dict[str, Any]) -> dict[str, Any]:
    """The part that `run --stats` has, too."""
    layers = {label: {k: v for k, v in layer.items() if k not in MORE} for label, layer in estimate["layers"].items()}
    more = ("source", "arch", "clock_mhz", "roofline", "explain", "host")
    rest = {key: value for key, value in estimate.items() if key not in more}
    return rest | {"layers": layers}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("lenet", ("--arch", "seed-4x4")),
        ("resnet20", ("--arch", "spatial-16x16", "--dataflow", "ws")),
        ("depthwise_qdq_s8_pc", ()),
    ],
)
def test_estimate_is_what_run_counts(model: str, options: tuple[str, ...], tmp_path: Path) -> None:
    source = (network_file(model, tmp_path), "--batch", 1)
    done("compile", *source, *options, "-o", tmp_path / "net.cnb", "--dump-dir", tmp_path / "ir")
    counted = run(tmp_path / "net.cnb")
    estimate = estimated(*source, *options)
    assert of_run(estimate) == counted
    roofs = [layer["roofline"] for layer in (estimate, *estimate["layers"].values()) if layer.get("roofline")]
    assert len(roofs) > 4 and max(each["reached"] for each in roofs) <= 1  # ROOF-3
    arch = options[:2] if "--arch" in options else ()
    for dump in ("cnn-to-nest", "nest-assign-mapping", "nest-stage"):
        flow = options[2:] if dump == "cnn-to-nest" else ()
        again = estimated(tmp_path / "ir" / dump, *arch, *flow)
        assert again == estimate | {"source": dump}
    assert estimated(tmp_path / "net.cnb") == estimate | {"source": "net.cnb"}


def with_one_tap_less(binary: Path, folder: Path) -> Path:
    """The assembly of `binary`, with another trip count in its first macro-instruction."""
    done("disasm", binary, "-o", folder / "net.s")
    text = (folder / "net.s").read_text()
    planted = re.sub(r"( mac .* taps=)(\d+)", lambda mac: mac[1] + str(int(mac[2]) - 1), text, count=1)
    assert planted != text
    (folder / "planted.s").write_text(planted)
    return folder / "planted.s"


@pytest.mark.parametrize("times", [0.001, 1000])
def test_estimate_does_not_depend_on_values(times: float, tmp_path: Path) -> None:
    with np.load(CALIBRATION) as samples:
        np.savez(tmp_path / "samples.npz", **{name: samples[name] * np.float32(times) for name in samples})
    scaled = estimated(LENET, "--batch", 1, "--calibrate", tmp_path / "samples.npz")
    assert scaled == estimated(LENET, *LENET_OPTIONS) == estimated(LENET, "--batch", 1)


def test_estimate_does_not_read_instructions(tmp_path: Path) -> None:
    """A trip count is planted in the program: what is counted changes, what is predicted does not."""
    net, other = tmp_path / "net.cnb", tmp_path / "planted.cnb"
    done("compile", LENET, *LENET_OPTIONS, "-o", net)
    program = encode_program(assemble(with_one_tap_less(net, tmp_path).read_text()))
    save(replace(load(net), program=program), other)
    counted, said = run(other), estimated(other)
    assert of_run(said) == run(net) != counted


def test_estimate_of_an_assembled_program(tmp_path: Path) -> None:
    """The plan is that of the compiled program: `asm` keeps it for that program alone."""
    net, other = tmp_path / "net.cnb", tmp_path / "planted.cnb"
    done("compile", LENET, *LENET_OPTIONS, "-o", net)
    changed = with_one_tap_less(net, tmp_path)
    same = done("asm", tmp_path / "net.s", "--data", net, "-o", tmp_path / "same.cnb")
    assert not same.stderr and (tmp_path / "same.cnb").read_bytes() == net.read_bytes()
    note = f"cnncc: note: {other} has no plan for `estimate`, as its program is not that of {net}\n"
    assert done("asm", changed, "--data", net, "-o", other).stderr == note
    assert "planted.cnb: its metadata has no plan" in refused("estimate", other)
    assert set(load(net).metadata) - set(load(other).metadata) == {"plan"}
    assert not done("asm", tmp_path / "net.s", "--data", other, "-o", tmp_path / "back.cnb").stderr


def test_estimate_check_counters(tmp_path: Path) -> None:
    """What is predicted is compared with what the interpreter counts, counter by counter."""
    net, other = tmp_path / "net.cnb", tmp_path / "planted.cnb"
    done("compile", LENET, *LENET_OPTIONS, "-o", net)
    said = done("estimate", net, "--check-counters").stdout
    counters = run(net)
    assert said == f"net.cnb: all {len(list(leaves(counters))):,} counters are as predicted\n"
    program = encode_program(assemble(with_one_tap_less(net, tmp_path).read_text()))
    save(replace(load(net), program=program), other)
    found = refused("estimate", other, "--check-counters")
    predicted, counted = dict(leaves(counters)), dict(leaves(run(other)))
    differ = [name for name, value in counted.items() if predicted[name] != value]
    assert found.startswith(f"cnncc: planted.cnb: {len(differ)} of {len(counted)} counters are not as predicted: ")
    first = f"{differ[0]} {counted[differ[0]]:,}, predicted {predicted[differ[0]]:,}"
    assert first in found
    for more in (("--json",), ("--explain", "c1"), ("--front",)):
        assert invoke("estimate", net, "--check-counters", *more).exit_code == 2
    assert invoke("estimate", LENET, "--check-counters").exit_code == 2


def leaves(counters: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The counters by name, a dot between a key and one inside it."""
    if not isinstance(counters, dict):
        yield name, counters
        return
    for key, value in counters.items():
        yield from leaves(value, f"{name}.{key}" if name else key)


def test_estimate_roofline_of_a_layer(tmp_path: Path) -> None:
    """By hand: c2 of LeNet, 16 x 6 channels, 5 x 5, 10 x 10 outputs; f1.

    The weights and parameters of c2 come during the layers before, so DRAM is no roof (ROOF-3).
    """
    (tmp_path / "c2.toml").write_text(f'[c2]\nmapping = "{TEXTBOOK["os"].mapping}"')
    found = estimated(LENET, *LENET_OPTIONS, "--schedule", tmp_path / "c2.toml")
    layer = found["layers"]["c2"]
    roofs, operations = layer["roofline"], 16 * 6 * 25 * 100
    assert (roofs["operations"], roofs["peak"]) == (operations, 64)
    words = {"glb_commit": 1600 + layer["operands"]["glb_read"]["params"]}
    words["glb_load"] = sum(layer["operands"]["glb_read"][name] for name in ("weight", "ifmap"))
    assert roofs["roofs"].keys() == words.keys()
    for name, count in words.items():
        roof = roofs["roofs"][name]
        assert (roof["words"], roof["words_per_cycle"]) == (count, 32)
        assert roof["intensity"] == operations / count and roof["ridge"] == 64 / 32
    assert (roofs["limit"], roofs["attainable"]) == ("pes", 1.0)
    assert roofs["reached"] == layer["utilisation"]["total"]
    full = found["layers"]["f1"]["roofline"]  # a fully connected layer needs every weight once
    assert (
        full["limit"] == "dram" and full["attainable"] * 64 == 8 * full["operations"] / full["roofs"]["dram"]["words"]
    )
    assert full["reached"] == pytest.approx(
        full["roofs"]["dram"]["words"] / 8 / found["layers"]["f1"]["cycles"]["total"]
    )
    assert found["layers"]["inputs"].get("roofline") is None


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_estimate_no_layer_does_better_than_its_roof(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """ROOF-3, of random networks, whose operands are prefetched and streamed."""

    def check(compilation: Compilation) -> None:
        for step in compilation.remaining():
            if step.name == TO_PROGRAMS:
                mapped = compilation.module.clone()
            compilation.step(step)
            if step.name == "array-prefetch":
                parts = program_parts(mapped, prefetched_operands(compilation.module))
        estimate = as_json_of(Program("", compilation.settings.arch, parts, None))
        for layer in estimate["layers"].values():
            assert not layer.get("roofline") or layer["roofline"]["reached"] <= 1

    compiled_at_random(data, tmp_path_factory.getbasetemp(), check)


@pytest.fixture(scope="module")
def unchanged(short_searches: None, tmp_path_factory: pytest.TempPathFactory) -> dict[Source, dict[str, Any]]:
    """LeNet, as a binary and as a model, with the estimates of both."""
    net = tmp_path_factory.mktemp("unchanged") / "net.cnb"
    done("compile", LENET, *LENET_OPTIONS, "-o", net)
    sources: list[Source] = [(net,), (LENET, *LENET_OPTIONS)]
    return {source: estimated(*source) for source in sources}


@pytest.mark.parametrize(
    "changes",
    [
        {"dram.words_per_cycle": 12.8, "dram.latency_cycles": 3},
        {"glb.words_per_cycle": 1, "bus.burst_words": 1, "bus.latency_cycles": 9},
        {"pe.weight_halves": 1, "pe.ifmap_halves": 3, "pe.psum_halves": 1, "pe.start_cycles": 7, "pe.finish_cycles": 0},
        {"sequencer.queue_depth": 1, "commit.units_per_column": 4, "commit.latency_cycles": 0, "pe.words_per_cycle": 2},
        {"sequencer.overlap": "false"},
    ],
)
def test_estimate_what_if_is_a_run_of_the_program_on_the_changed_array(
    changes: dict[str, Any], unchanged: dict[Source, dict[str, Any]]
) -> None:
    (net,), _ = unchanged
    binary, values = load(net), {key: value != "false" and value for key, value in changes.items()}
    counted = program_stats(replace(binary, arch=with_config(binary.arch, values)))
    options = [word for key, value in changes.items() for word in ("--what-if", f"{key}={value}")]
    for source, before in unchanged.items():
        found = estimated(*source, *options)
        said = found.pop("what_if")
        assert said["changed"] == values and said["cycles"] == counted["cycles"] != found["cycles"]
        assert said["layers"] == {label: layer["cycles"] for label, layer in counted["layers"].items()}
        assert found | {"source": ""} == before | {"source": ""}
    text = done("estimate", net, *options).stdout
    assert f"  total  {found['cycles']['total']:,}  {counted['cycles']['total']:,}  " in re.sub(" +", "  ", text)


def test_estimate_what_if_takes_the_keys_that_lift_limits() -> None:
    keys = {key for cause in LIMITS.values() for key in cause.keys}
    assert read_changes([f"{key}=1" for key in keys]).keys() == keys


def test_estimate_what_if_refuses(tmp_path: Path) -> None:
    for text, says in (
        ("rows=16", "--what-if rows=16: programs depend on rows, so the mappings cannot be kept; `cnncc explore"),
        ("pe.weight_words=9", "programs depend on pe.weight_words"),
        ("dram.words_per_cycle", "is not KEY=VALUE, for example dram.words_per_cycle=16"),
        ("dram.words_per_cycle=fast", "'fast' is no number, true or false"),
        ("dram.words_per_cycle=8,16", "takes one value, `cnncc explore --vary dram.words_per_cycle=8,16` several"),
        ("dram.words_per_cycle=0", "--what-if [dram]: words_per_cycle = 0 is outside 0.001 to"),
        ("dram.bandwidth=7", "--what-if [dram]: "),
        ("foo.bar=16", "--what-if: the architecture file has no table [foo]"),
        ("clock_mhz=100", "--what-if clock_mhz=100: cycles do not depend on clock_mhz"),
        (
            "cores.latency_cycles=3",
            "cores.latency_cycles is of layers side by side (docs/cores.md): change it in a file",
        ),
        ("cores.most=99", "--what-if [cores]: most = 99 is outside 1 to"),
    ):
        assert says in refused("estimate", LENET, *LENET_OPTIONS, "--what-if", text)
    twice = ("--what-if", "dram.words_per_cycle=9", "--what-if", "dram.words_per_cycle=8")
    assert "dram.words_per_cycle is changed already" in refused("estimate", LENET, *LENET_OPTIONS, *twice)
    both = ("--explain", "c1", "--what-if", "dram.words_per_cycle=9")
    assert invoke("estimate", LENET, *both).exit_code == 2


def test_estimate_refuses(tmp_path: Path) -> None:
    net = tmp_path / "net.cnb"
    done("compile", LENET, *LENET_OPTIONS, "-o", net, "--dump-dir", tmp_path / "ir")
    assert "there is no layer 'c9'; layers: c1, pool1" in refused("estimate", net, "--explain", "c9")
    assert "was lowered beyond nest-to-array" in refused("estimate", tmp_path / "ir" / "array-prefetch")
    done("compile", "--from", tmp_path / "ir" / "array-prefetch", "-o", tmp_path / "low.cnb")
    assert "low.cnb: its metadata has no plan" in refused("estimate", tmp_path / "low.cnb")
    binary = load(net)
    assert json.loads(json.dumps(as_json(from_json(binary.metadata["plan"])))) == binary.metadata["plan"]
    layer = next(entry for entry in binary.metadata["plan"] if "layer" in entry)
    alone = layer | {"prefetched": []}
    for plan, message in (
        ({}, "plan: is no list"),
        ([3], "plan: entry 0 is no part"),
        ([{key: layer[key] for key in layer if key != "prefetched"}], "plans of other versions"),
        ([layer | {"mapping": "k'"}], "entry 0 is no part"),
        ([layer | {"sizes": {"n": 1}}], "entry 0 is no part"),
        ([layer | {"mapping": "residual@glb > " + layer["mapping"]}], "no such operand"),
        ([layer | {"prefetched": ["weight"]}], "entry 0 is prefetched, but no part of the program runs"),
        (
            [{"host": True}, layer | {"prefetched": ["params"]}],
            "entry 1 is prefetched, but no part of the program runs",
        ),
        ([alone, alone], f"entry 1 is called '{layer['layer']}', which is no name of its own"),
        ([alone | {"layer": ""}], "entry 0 is called '', which is no name of its own"),
        ([{"copy": "inputs", "direction": "up", "words": [3]}], "entry 0 is no part"),
        ([{"copy": "inputs", "direction": "in", "words": [10**400]}], "a number of 1,099,511,627,776 or more"),
        ([layer | {"shuffle": 1000}], "6 channels of 1 groups, 1000 of them shuffled"),
        ([layer | {"shuffle": 0}], "6 channels of 1 groups, 0 of them shuffled"),
        ([layer | {"params": -1}], "params -1, ih 28, iw 28 and image 0 are at least 0"),
        ([layer | {"ih": -1}], "ih -1, iw 28"),
        ([layer | {"iw": -28}], "iw -28 and"),
        ([layer | {"image": -784}], "image -784 are at least 0"),
        ([layer | {"window": layer["window"] | {"group": 1000}}], "6 channels of 1000 groups, 1 of them shuffled"),
        ([layer | {"window": layer["window"] | {"stride": [10**400, 1]}}], "a number of 1,099,511,627,776 or more"),
        ([layer | {"sizes": layer["sizes"] | {"h": 10**9}}], "1,000,000,000 indices, the limit is 16,777,216"),
        ([layer | {"prefetched": ["x"]}], "x is prefetched: params and weight may be"),
        ([alone | {"kind": "min"}], "no layer is of kind 'min': they are mac, max, add, copy"),
        ([alone | {"mapping": "params@glb > weight@glb > k > h > w > c > r > s"}], "a mapping without ifmap@rf"),
        ([alone | {"mapping": "params@glb > weight@glb > ifmap@rf > {k > h > w > c > r > s}"}], "without weight@rf"),
        ([alone | {"mapping": "params@glb > weight@rf > ifmap@rf > {k > h > w > c > r > s}"}], "without weight@glb"),
        (
            [alone | {"mapping": "weight@glb > k':3 > params@glb > h > w > weight@rf > ifmap@rf > {k'' > c > r > s}"}],
            "no tokens order the stages of weight@glb > k':3 > params@glb",
        ),
    ):
        save(replace(binary, metadata=binary.metadata | {"plan": plan}), tmp_path / "other.cnb")
        assert message in refused("estimate", tmp_path / "other.cnb")


@pytest.mark.parametrize("command", ["estimate", "reuse"])
def test_counts_run_no_network_without_samples(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list[object]()
    monkeypatch.setattr("cnncc.driver.calibrate.Evaluator.run", lambda self, feed: runs.append(feed))
    done(command, LENET, "--batch", 1)
    assert not runs


def test_estimate_names_what_the_host_computes(tmp_path: Path) -> None:
    """EST-3: under the table of a model and of its binary, and as JSON."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], name="c"), helper.make_node("Sin", ["a"], ["y"], name="s")]
    graph = build(nodes, {"x": (1, 3, 6, 6)}, ["y"], {"w": noise(1, 4, 3, 3, 3)})
    model, binary = save_model(graph, tmp_path / "net.onnx"), tmp_path / "net.cnb"
    done("compile", model, "-o", binary, "--dump-dir", tmp_path / "ir")
    reason = "Sin node 's': the array has no such operator"
    for source in (model, binary, tmp_path / "ir" / "cnn-to-nest", tmp_path / "ir" / "nest-stage"):
        assert f"on the host, not in these figures: {reason}" in " ".join(done("estimate", source).stdout.split())
        assert estimated(source)["host"] == [reason]
    assert estimated(LENET, *LENET_OPTIONS)["host"] == []
