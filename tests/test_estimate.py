"""`cnncc estimate` says what `run --stats` counts, of models, of IR and of binaries, and never reads instructions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_cases import CALIBRATION, LENET, SAMPLES, done, refused
from textbook_dataflows import TEXTBOOK

from cnncc.binary.container import load, save
from cnncc.model.plan_json import as_json, from_json

pytestmark = pytest.mark.usefixtures("short_searches")

LENET_OPTIONS = ("--batch", 1, "--calibrate", CALIBRATION)
MORE = ("kind", "dataflow", "mapping", "roofline")  # beside the keys of `run --stats`


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
    rest = {key: value for key, value in estimate.items() if key not in ("source", "arch", "roofline", "explain")}
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
    source = (SAMPLES / "models" / f"{model}.onnx", "--batch", 1)
    done("compile", *source, *options, "-o", tmp_path / "net.cnb", "--dump-dir", tmp_path / "ir")
    counted = run(tmp_path / "net.cnb")
    estimate = estimated(*source, *options)
    assert of_run(estimate) == counted
    arch = options[:2] if "--arch" in options else ()
    for dump in ("cnn-to-nest", "nest-assign-mapping", "nest-stage"):
        flow = options[2:] if dump == "cnn-to-nest" else ()
        again = estimated(tmp_path / "ir" / dump, *arch, *flow)
        assert again == estimate | {"source": dump}
    assert estimated(tmp_path / "net.cnb") == estimate | {"source": "net.cnb"}


def test_estimate_does_not_read_instructions(tmp_path: Path) -> None:
    """A trip count is planted in the program: what is counted changes, what is predicted does not."""
    done("compile", LENET, *LENET_OPTIONS, "-o", tmp_path / "net.cnb")
    done("disasm", tmp_path / "net.cnb", "-o", tmp_path / "net.s")
    text = (tmp_path / "net.s").read_text()
    planted = re.sub(r"( mac .* taps=)(\d+)", lambda mac: mac[1] + str(int(mac[2]) - 1), text, count=1)
    assert planted != text
    (tmp_path / "net.s").write_text(planted)
    done("asm", tmp_path / "net.s", "--data", tmp_path / "net.cnb", "-o", tmp_path / "planted.cnb")
    counted, said = run(tmp_path / "planted.cnb"), estimated(tmp_path / "planted.cnb")
    assert of_run(said) == run(tmp_path / "net.cnb") != counted


def test_estimate_roofline_of_a_layer(tmp_path: Path) -> None:
    """By hand: c2 of LeNet, 16 x 6 channels, 5 x 5, 10 x 10 outputs, its weights once; f1."""
    (tmp_path / "c2.toml").write_text(f'[c2]\nmapping = "{TEXTBOOK["os"].mapping}"')
    found = estimated(LENET, *LENET_OPTIONS, "--schedule", tmp_path / "c2.toml")
    layer = found["layers"]["c2"]
    roofs, operations = layer["roofline"], 16 * 6 * 25 * 100
    assert (roofs["operations"], roofs["peak"]) == (operations, 64)
    words = {"dram": 2400 + 2 * 2 * 16, "glb_commit": 1600 + layer["operands"]["glb_read"]["params"]}
    words["glb_load"] = sum(layer["operands"]["glb_read"][name] for name in ("weight", "ifmap"))
    for name, rate in (("dram", 8), ("glb_load", 32), ("glb_commit", 32)):
        roof = roofs["roofs"][name]
        assert (roof["words"], roof["words_per_cycle"]) == (words[name], rate)
        assert roof["intensity"] == operations / words[name] and roof["ridge"] == 64 / rate
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
    for plan, message in (
        ({}, "plan: is no list"),
        ([3], "plan: entry 0 is no part"),
        ([layer | {"mapping": "k'"}], "entry 0 is no part"),
        ([layer | {"sizes": {"n": 1}}], "entry 0 is no part"),
        ([layer | {"mapping": "residual@glb > " + layer["mapping"]}], "no such operand"),
        ([{"copy": "inputs", "way": "up", "words": [3]}], "entry 0 is no part"),
    ):
        save(replace(binary, metadata=binary.metadata | {"plan": plan}), tmp_path / "other.cnb")
        assert message in refused("estimate", tmp_path / "other.cnb")
