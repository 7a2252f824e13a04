"""samples/reproduce/tcpa.py: every figure that the paper states, and what the equations make of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import tcpa
from click.testing import CliRunner

pytestmark = pytest.mark.usefixtures("short_searches")

# Stated by the paper, by its equations, and corrected. The numbers are written down here, not computed.
BY_LAYER = {
    "z": ((54, 216, 324, 1296, 1296), (81, 324, 324, 1296, 1296)),
    "Z": ((0, 216, 216, 1296, 1296), (0, 1620, 3180, 5184, 9768)),
    "t": ((0, 216, 432, 1728, 3024), (0, 1620, 4800, 9984, 19752)),
    "L": ((42336, 42336, 63504, 63504, 63504), (42336, 40764, 63504, 58368, 57456)),
}
FIGURES = {
    "layer by layer (1), latency": (159_936, 159_936, 159_936),
    "layer by layer (1), throughput": (312.6, 312.6, 312.6),
    "layer by layer (2), latency": (55_664, 73_500, 62_720),
    "layer by layer (2), throughput": (898.2, 680.3, 797.2),
    "(2), filters in idle lanes, latency": (55_664, 66_444, 55_664),
    "(2), filters in idle lanes, throughput": (898.2, 752.5, 898.2),
    "layer-parallel (1), latency": (66_528, 66_528, 77_208),
    "with the wait states of Fig. 7": (66_528, 66_528, 85_428),
    "with scattered pixels": (66_528, 66_528, 70_710),
    "layer-parallel (1), period": (63_504, 63_504, 63_504),
    "layer-parallel (1), throughput": (787.4, 787.4, 787.4),
    "layer-parallel (2), latency": (44_496, 44_496, 57_120),
    "layer-parallel (2), throughput": (1_181.0, 1_181.0, 1_181.0),
    "input of pool1": (24, 24, 720),
    "input of conv2": (2_352, 2_352, 888),
    "input of pool3": (24, 24, 384),
    "input of conv4": (336, 336, 456),
    "PEs for 100 fps": (6, 6, 6),
    "their throughput": (100, 196.8, 196.8),
    "throughput of 5 PEs": ("below 100", 98.4, 98.4),
    "PEs for 16 in all": ("4 1 8 1 2", "4 1 8 1 2", "3 1 8 1 3"),
}
MACS = 1_362_592  # with those of the fully connected layer


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    result = CliRunner().invoke(tcpa.main, ["--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_tcpa_figures(printed: dict[str, Any]) -> None:
    rows = {row["what"].strip(): (row["paper"], row["calculus"], row["corrected"]) for row in printed["figures"]}
    names = ("conv0", "pool1", "conv2", "pool3", "conv4")
    by_layer = {
        f"{letter} of {name}": (stated, stated, corrected)
        for letter, values in BY_LAYER.items()
        for name, stated, corrected in zip(names, *values, strict=True)
    }
    assert rows == by_layer | FIGURES and len(printed["figures"]) == len(rows)


def test_tcpa_measured(printed: dict[str, Any]) -> None:
    """No run has more products a cycle than the array. The mapper has more choice than Eq. 4, and lanes have sums of
    their own: below what the paper says of its two columns with 16 PEs, 55,664 and 63,504.
    """
    small, large = printed["measured"]
    assert [small["array"], large["array"]] == ["tcpa-4x4", "tcpa-4x5"]
    assert MACS / 32 <= small["cycles"] < 55_664 and MACS / 40 <= large["cycles"] < small["cycles"]
    assert small["fps"] == round(50_000_000 / small["cycles"], 1)


def test_tcpa_measured_on_cores(printed: dict[str, Any]) -> None:
    """The slowest layer's operations bound a frame; start and finish of macro-instructions add less than 1 %."""
    small, large = printed["measured_cores"]
    for own, bound in ((small, 63_504), (large, 42_336)):
        assert bound <= own["cycles"] < 1.01 * bound < own["first"]
        assert own["fps"] == round(50_000_000 / own["cycles"], 1)
        assert own["stored"] == [2 * 672, 3 * 336, 2 * 336, 3 * 168]  # the fewest rows: of pools 2, of convolutions 3


def test_tcpa_prints_a_table() -> None:
    """Every figure on a line of its own; the measured one, of the caller's, at the end."""
    rows = list(tcpa.figures(tcpa.layers()))
    lines = "\n".join(tcpa.as_text(rows, [tcpa.Measured("some array", 60_000, 833.3)])).splitlines()
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    for row in rows:
        assert [
            row.where,
            row.what.strip(),
            row.unit,
            *map(tcpa.shown, (row.paper, row.calculus, row.corrected)),
        ] in cells
    assert lines[-1] == (
        "  measured on some array, layer by layer, Fc and transfers included: 60,000 cycles, 833.3 fps"
    )
