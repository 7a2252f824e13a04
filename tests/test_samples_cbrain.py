"""samples/reproduce/cbrain.py: every figure that the paper states, and what the formulas make of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import cbrain
import pytest
from click.testing import CliRunner

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "cbrain.json").read_text())
pytestmark = pytest.mark.usefixtures("short_searches")
NETWORKS = {"AlexNet": "Alexnet", "GoogLeNet": "Googlenet", "VGG-19": "VGG19", "NiN": "NiN"}

# Stated by the paper, and by the formulas. The numbers are written down here, not computed.
FIGURES = {
    "largest T of Fig. 3": (18.9, 18.96),
    "smallest T of Fig. 3": (9, 9.0),
    "pieces of AlexNet's conv1": ("9 of 4x4", "9 of 4x4"),
    "last small window of piece 2": ("(56, 56)", "(55, 56)"),
    "loads saved for a store, 16-16": (16, 16.0),
    "largest layer of VGG-19": (8, 6.42),
    "partition over inter, Conv1": (5.8, 5.42),
    "partition over intra, Conv1": (2.1, 1.84),
    "speed-up of some layers": ("4.0 to 8.3", "4.08 to 8.17"),
    "adaptive over inter, AlexNet": (1.83, 1.84),
    "adaptive over inter, mean": (1.43, 1.43),
    "  adaptive over inter, AlexNet": (1.83, 1.95),
    "  adaptive over inter, mean": (1.43, 1.52),
    "adap-16-28 over Zhang-7-64, Conv1": (2.22, 2.24),
    "adap-16-28 over Zhang-7-64": (1.20, 1.21),
    "adap-16-24 over Zhang-7-64": (1.06, 1.07),
    "adap-16-32 over Zhang-7-64": (1.45, 1.5),
    "AlexNet, 16-16": (2.83, 2.825),
    "AlexNet, 32-32": (0.91, 0.902),
    "GoogLeNet, 16-16": (6.69, 6.718),
    "GoogLeNet, 32-32": (2.04, 1.994),
    "VGG-19, 16-16": (77.51, 77.719),
    "VGG-19, 32-32": (20.41, 20.519),
    "NiN, 16-16": (6.72, 4.849),
    "NiN, 32-32": (2.05, 1.582),
    "PE energy saved by adap-1, AlexNet": (47.77, 47.84),
    "PE energy saved by adap-2, AlexNet": (47.71, 47.79),
    "PE energy saved by adap-1, GoogLeNet": (31.48, 31.52),
    "PE energy saved by adap-2, GoogLeNet": (31.40, 31.44),
    "PE energy saved by adap-1, VGG-19": (3.00, 3.0),
    "PE energy saved by adap-2, VGG-19": (2.89, 2.89),
    "PE energy saved by adap-1, NiN": (None, 36.77),
    "PE energy saved by adap-2, NiN": (None, 36.7),
    "adap-2 below adap-1, mean": (90.13, 89.48),
    "adap-2 below intra, mean": (73.7, 76.11),
    "adap-2 below inter, VGG-19": (93.8, 92.26),
    "adap-2 below intra, VGG-19": (77.6, 75.3),
}


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    result = CliRunner().invoke(cbrain.main, ["--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_cbrain_figures(printed: dict[str, Any]) -> None:
    rows = {row["what"]: (row["paper"], row["calculus"]) for row in printed["figures"]}
    assert rows == FIGURES and len(printed["figures"]) == len(rows)


def test_cbrain_times_are_within_3_percent_but_of_nin(printed: dict[str, Any]) -> None:
    for row in printed["figures"]:
        if row["where"] == "Table 4":
            off = abs(row["calculus"] / row["paper"] - 1)
            assert 0.2 < off < 0.3 if row["what"].startswith("NiN") else off < 0.03


def test_cbrain_layers_are_the_papers() -> None:
    """The shapes of all 90 convolutions, from the graphs of samples/models.py."""
    for name, golden in NETWORKS.items():
        want = [
            (row["X"], row["Din"], row["Dout"], row["k"], row["s"], row["pad"], row["groups"], row["out"])
            for row in GOLDEN["networks"][golden]
        ]
        layers = cbrain.layers_of(cbrain.SOURCES[name])
        assert want == [
            (
                x.image[0],
                x.inputs,
                x.outputs,
                x.window.kernel[0],
                x.window.stride[0],
                x.window.pad[0],
                x.window.group,
                x.results[0],
            )
            for x in layers
        ]
        assert all(x.image[0] == x.image[1] for x in layers) and len({x.name for x in layers}) == len(layers)


def test_cbrain_beaten(printed: dict[str, Any]) -> None:
    found = [(row["width"], row["cycles"], row["better_cycles"]) for row in printed["beaten"]]
    assert found == [(row["width"], row["cycles"], row["better_cycles"]) for row in GOLDEN["algorithm2_beaten"]]
    assert len(found) == 8 and printed["cases"] == 180
    assert [row["layer"] for row in printed["beaten"]][:4] == ["conv1", "conv1", "conv2", "inception_4b/5x5"]


def test_cbrain_measured(printed: dict[str, Any]) -> None:
    """PEs multiply for the formula's cycles, to the last one; other cycles are the program's."""
    rows = printed["measured"]
    assert [(row["network"], row["scheme"]) for row in rows] == [
        (network, scheme) for network in NETWORKS for scheme in ("inter-kernel", "kernel partition")
    ]
    for row, golden in zip(rows[::2], GOLDEN["conv1"][::2], strict=True):
        assert row["formula"] == row["program"]["computing"] == golden["inter"]
    for row, golden in zip(rows[1::2], GOLDEN["conv1"][::2], strict=True):
        assert row["formula"] == row["program"]["computing"] == golden["pieces"]
        assert (row["program"]["cutting"] > 0) == (row["network"] != "VGG-19")
    assert all(row["program"]["layer"] > row["formula"] for row in rows)


def test_cbrain_prints_a_table() -> None:
    """Every figure on a line of its own, with what it misses by, and the beaten layers below."""
    networks = {name: cbrain.layers_of(source) for name, source in cbrain.SOURCES.items()}
    runs = [
        cbrain.Measured("AlexNet", "16-16", "inter-kernel", 1000, cbrain.ProgramCycles(1000, 1010, 0)),
        cbrain.Measured("AlexNet", "16-16", "kernel partition", 400, cbrain.ProgramCycles(400, 440, 60)),
    ]
    result = cbrain.Result(list(cbrain.figures(networks)), list(cbrain.beaten(networks)), 180, runs)
    lines = "\n".join(cbrain.as_text(result)).splitlines()
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    for row in result.figures:
        values = [row.where, row.what.strip(), row.unit, cbrain.shown(row.paper), cbrain.shown(row.calculus)]
        assert [value for value in [*values, cbrain.off(row)] if value] in cells
    assert ["Table 4", "NiN, 16-16", "ms", "6.72", "4.849", "-27.8 %"] in cells
    assert "Algorithm 2 does not choose the fastest scheme in 8 of 180 cases:" in lines
    assert ["NiN", "32-32", "conv1", "kernel partition", "131,220", "intra-kernel, unrolled", "104,976"] in cells
    assert ["AlexNet", "kernel partition", "400", "400", "440", "60", "+25.0 %"] in cells
    assert lines[-1] == "  partition over inter, mean: 2.5 by formulas, 2.02 counted"
