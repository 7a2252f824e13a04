"""The textbook's dataflows: words against those that a PE with such registers needs, counted step by step elsewhere."""

from __future__ import annotations

import json
import runpy

import dataflows
import pytest
from cli_cases import CALIBRATION, LENET, SAMPLES
from click.testing import CliRunner, Result

from cnncc.passes._scheduling.dataflows import DATAFLOWS

# Of the layer with N = 2, K = 4, C = 3, 6 x 6 outputs, 3 x 3 kernel: PEs; words of weights and image that the PEs read,
# equal ones of a step once; how often sums leave them. Counted by executing the book's loops one step at a time with
# the boxed operand in a cache, but for what the PEs here keep beyond it: an output tile's image while its channels k
# run (14.11, 14.15), and sums while r and s (14.10, 14.14) or c (14.12) run.
TILE, OUTPUTS = 2 * 3 * 9 * 36, 2 * 4 * 36
WANTED = {
    "14.8": (6, 108, 7776, 864),
    "14.9": (12, 108, 1944, 288),
    "14.10": (6, 216, 720, OUTPUTS),
    "14.11": (6, 216, TILE, 288),
    "14.12": (18, 216, 1536, OUTPUTS),
    "14.13": (12, 108, 1944, 288),
    "14.14": (18, 216, 720, OUTPUTS),
    "14.15": (6, 216, TILE, 288),
    "14.16": (24, 216, 1944, 288),
    "14.17": (216, 108, 384, 288),
}


TEXTBOOK = runpy.run_path(str(SAMPLES / "reproduce" / "dataflows.py"))["main"]  # another file has its name, too


def textbook(*options: str) -> Result:
    """`reproduce/dataflows.py`."""
    return CliRunner().invoke(TEXTBOOK, options)


def test_the_textbooks_mappings_read_what_the_book_says() -> None:
    runs = json.loads(textbook("--json").stdout)
    found = {
        run["equation"]: tuple(run[key] for key in ("pes", "weight_reads", "ifmap_reads", "write_backs"))
        for run in runs
    }
    assert found == WANTED
    macs = 2 * 4 * 3 * 36 * 9
    for run in runs:
        assert run["utilisation"] == pytest.approx(macs / (run["compute"] * 9 * 24))
        assert run["compute"] >= -(-macs // run["pes"])


def test_a_network_under_every_dataflow() -> None:
    result = CliRunner().invoke(dataflows.main, [str(LENET), "--calibrate", str(CALIBRATION), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found) == ["own", *DATAFLOWS, "mix"] and found.keys() >= {"os", "ws", "is", "rs", "nlr"}
    assert len({counted["macs"] for counted in found.values()}) == 1
    cycles = {name: counted["cycles"]["total"] for name, counted in found.items()}
    assert cycles.pop("own") <= min(cycles.values())  # the best form of the network may be that of each of its layers
    assert len(set(cycles.values())) == len(cycles), cycles
    words = {name: counted["operands"]["bus"]["weight"] for name, counted in found.items()}
    assert words["ws"] < words["nlr"]
    *table, last = dataflows.as_text(found)
    assert len(table) == 1 + len(found) and last == "the outputs are the same, to the bit"


def test_an_array_that_is_too_small_is_refused() -> None:
    done = textbook("--arch", "spatial-16x16")
    assert done.exit_code == 1 and "pe.ifmap_words 60, limit 48" in done.stderr
