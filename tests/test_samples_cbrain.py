"""samples/reproduce/cbrain.py: every figure that the paper states, and what the formulas make of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbrain
import numpy as np
import pytest
from cbrain_networks import LATE_NIN, SOURCES, VARIANTS, Source, layers_of, network_of
from cbrain_programs import Program
from click.testing import CliRunner

from cnncc.errors import Refusal

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
    "NiN, late pool, 16-16": (6.72, 6.713),
    "NiN, late pool, 32-32": (2.05, 2.048),
    "PE energy saved by adap-1, AlexNet": (47.77, 47.84),
    "PE energy saved by adap-2, AlexNet": (47.71, 47.79),
    "PE energy saved by adap-1, GoogLeNet": (31.48, 31.52),
    "PE energy saved by adap-2, GoogLeNet": (31.40, 31.44),
    "PE energy saved by adap-1, VGG-19": (3.00, 3.0),
    "PE energy saved by adap-2, VGG-19": (2.89, 2.89),
    "PE energy saved by adap-1, NiN": (29.91, 36.77),
    "PE energy saved by adap-2, NiN": (29.84, 36.7),
    "PE energy saved by adap-1, NiN, late pool": (29.91, 29.97),
    "PE energy saved by adap-2, NiN, late pool": (29.84, 29.89),
    "adap-2 below adap-1, mean": (90.13, 89.48),
    "adap-2 below intra, mean": (73.7, 76.11),
    "adap-2 below inter, VGG-19": (93.8, 92.26),
    "adap-2 below intra, VGG-19": (77.6, 75.3),
}


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    result = CliRunner().invoke(cbrain.main, ["--network", "AlexNet", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_cbrain_figures(printed: dict[str, Any]) -> None:
    rows = {row["what"]: (row["paper"], row["calculus"]) for row in printed["figures"]}
    assert rows == FIGURES and len(printed["figures"]) == len(rows)


def test_cbrain_times_are_within_3_percent_but_of_the_published_nin(printed: dict[str, Any]) -> None:
    for row in printed["figures"]:
        if row["where"] == "Table 4":
            off = abs(row["calculus"] / row["paper"] - 1)
            assert 0.2 < off < 0.3 if row["what"] in ("NiN, 16-16", "NiN, 32-32") else off < 0.03


def test_cbrain_layers_are_the_papers() -> None:
    """The shapes of all 90 convolutions, from the graphs of samples/models.py."""
    for name, golden in NETWORKS.items():
        want = [
            (row["X"], row["Din"], row["Dout"], row["k"], row["s"], row["pad"], row["groups"], row["out"])
            for row in GOLDEN["networks"][golden]
        ]
        layers = layers_of(network_of(SOURCES[name]))
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


def test_cbrain_moves_a_pool_behind_a_convolution() -> None:
    """Only conv4 sees larger maps; the network's order and its results are whole."""
    published = layers_of(network_of(replace(VARIANTS[LATE_NIN], late="")))
    graph = network_of(VARIANTS[LATE_NIN])
    moved = layers_of(graph)
    assert [(x.name, x.image) for x in moved if x not in published] == [("conv4", (13, 13))]
    assert [x.name for x in moved] == [x.name for x in published]
    names = [node.name or node.output[0] for node in graph.model.graph.node]
    assert names.index("conv4") < names.index("pool3") < names.index("cccp7")


def sum_of(program: dict[str, Any]) -> int:
    """All cycles of a program."""
    return sum(program[key] for key in ("convolving", "cutting", "others")) + sum(program["stalls"].values())


def test_cbrain_first_layers(printed: dict[str, Any]) -> None:
    """PEs convolve for the formula's cycles, to the last one, in 9 rectangles of taps for 8 (DATAFLOW-6) of intra.

    The energy of one program is counted by hand. Of the default `[energy]`, all parts in PEs weigh 1.
    """
    rows = {(row["width"], row["plan"]): row for row in printed["measured"]}
    golden = {row["width"]: row for row in GOLDEN["conv1"] if row["net"] == "Alexnet"}
    zhang, ours = GOLDEN["fig9"]["zhang_7_64"], GOLDEN["fig9"]["16-28"]["cycles"]
    golden |= {"7-64": {"inter": zhang[0]}, "16-28": {"pieces": ours[0]}}
    assert len(rows) == len(printed["measured"]) == 8 and {row["network"] for row in rows.values()} == {"AlexNet"}
    for (width, plan), row in rows.items():
        program = row["program"]
        formula = golden[width][{"inter-kernel": "inter", "intra-kernel": "intra", "kernel partition": "pieces"}[plan]]
        convolving = {"16-16": 490_050, "32-32": 163_350}[width] if plan == "intra-kernel" else formula
        tin, tout = map(int, width.split("-"))
        assert program["products"] == (program["convolving"] + program["cutting"]) * tin * tout
        assert (row["formula"], row["weights"], program["convolving"]) == (formula, 0, convolving)
        assert (program["cutting"] > 0) == (plan == "kernel partition") and program["others"] == 0
    by_figure = {row["what"]: row["program"] for row in printed["figures"]}
    by_hand = 3 * 105_415_200  # products, and a word from each register file for each of them
    by_hand += 34_848 + 16 * 3_025 * 363 * 6  # weights into the PEs, and each window into all 16, for 6 turns
    by_hand += 2 * 16 * 2_196_150 + 290_400  # a sum from and into a psum file in each step, and each result from there
    assert rows["16-16", "inter-kernel"]["program"]["pe_energy"] == by_hand
    slow, fast = (sum_of(rows[key]["program"]) for key in (("7-64", "inter-kernel"), ("16-28", "kernel partition")))
    assert by_figure["adap-16-28 over Zhang-7-64, Conv1"] == round(slow / fast, 2)
    assert by_figure["partition over inter, Conv1"] is None  # three networks did not run
    assert by_figure["AlexNet, 16-16"] is None


def test_cbrain_programs_are_those_of_the_document() -> None:
    """docs/cbrain.md says how many there are; no two are the same."""
    for layers, count in ((cbrain.FIRST, 26), (cbrain.ALL, 33)):
        found = [(name, cbrain.width(array), plan) for name, array, plan in cbrain.cases(layers)]
        assert len(found) == len(set(found)) == count


@pytest.fixture(scope="module")
def small() -> list[cbrain.Measured]:
    """AlexNet for images of 67 pixels, at 16-16."""
    plans = [cbrain.Plan.INTER, cbrain.Plan.ADAP_1, cbrain.Plan.ADAP_2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cbrain, "cases", lambda _: [("AlexNet", cbrain.SMALL, plan) for plan in plans])
        return list(
            cbrain.measured({"AlexNet": network_of(Source("light-alexnet", 67, (0, 0)))}, ["AlexNet"], "all", print)
        )


def test_cbrain_whole_networks(small: list[cbrain.Measured]) -> None:
    """Convolutions take the formula's cycles; all others are named; improved inter-kernel moves fewer words."""
    inter, original, improved = small
    for each in small:
        assert each.program.convolving == each.formula < each.program.total
        assert sum(each.parts().values()) == each.program.total - each.expected
        assert each.parts()["no weights first"] == -each.weights < 0 < each.program.others
    assert inter.program.cutting == 0 < improved.program.cutting == original.program.cutting
    assert original.program.added == 2 * 96 * 15 * 15  # conv1 stores 3 sums for each result
    assert improved.program.added == inter.program.added + original.program.added > original.program.added
    assert improved.program.total < inter.program.total and improved.program.words < original.program.words
    programs = cbrain.Programs(small)
    saved = programs.saved(["AlexNet"], [cbrain.SMALL], cbrain.Plan.ADAP_1, cbrain.Plan.ADAP_2, lambda run: run.words)
    assert saved == round(100 * (1 - improved.program.words / original.program.words), 2)
    assert programs.times(["AlexNet"], "all", cbrain.Plan.INTER, cbrain.Plan.ADAP_2) is None  # nothing ran at 32-32


def test_cbrain_refuses_unlike_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([np.zeros(2), np.zeros(2), np.array([0.0, 1.0])])
    monkeypatch.setattr(cbrain, "program", lambda _, **__: (Program(1, 0, 0, {}, 0, 256, 0, 0.0), {"y": next(results)}))
    with pytest.raises(Refusal, match="AlexNet, conv1, 16-16, kernel partition: gives other outputs"):
        list(cbrain.measured({"AlexNet": network_of(SOURCES["AlexNet"])}, ["AlexNet"], "conv1", print))


def test_cbrain_prints_a_table() -> None:
    """Every figure on a line of its own, with what it misses by, and the beaten layers below."""
    networks, late = ({name: layers_of(network_of(of[name])) for name in of} for of in (SOURCES, VARIANTS))
    runs = [
        cbrain.Measured(
            "NiN", "all", "16-16", "inter-kernel", 1000, 10, Program(1000, 0, 12, {"fill": 8}, 0, 256_000, 0, 3e6)
        ),
        cbrain.Measured(
            "NiN",
            "all",
            "16-16",
            "adaptive",
            400,
            10,
            Program(400, 60, 12, {"row_bus": 30, "fill": 0}, 0, 117_760, 7, 2e6),
        ),
    ]
    figures = list(cbrain.figures(networks, late, cbrain.Programs(runs)))
    result = cbrain.Result(figures, list(cbrain.beaten(networks)), 180, runs)
    lines = "\n".join(cbrain.as_text(result)).splitlines()
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    for row in result.figures:
        values = [row.where, row.what.strip(), row.unit, cbrain.shown(row.paper), cbrain.shown(row.calculus)]
        assert [value for value in [*values, cbrain.off(row), cbrain.shown(row.program)] if value] in cells
    assert ["Table 4", "NiN, 16-16", "ms", "6.72", "4.849", "-27.8 %", "0.001"] in cells
    assert "Algorithm 2 does not choose the fastest scheme in 8 of 180 cases:" in lines
    assert ["NiN", "32-32", "conv1", "kernel partition", "131,220", "intra-kernel, unrolled", "104,976"] in cells
    assert ["NiN", "16-16", "inter-kernel", "1,010", "1,000", "1,020", "+1.0 %", "3"] in cells
    assert ["NiN", "16-16", "adaptive", "410", "400", "502", "+22.4 %", "2"] in cells
    split = "small windows +60, pools +12, row_bus +30, no weights first -10, others +0"
    assert lines[-1].strip() == split
