"""samples/reproduce/tcpa.py: every figure that the paper states, by its equations and by programs.

The figures are those of the table that docs/tcpa.md prints: one run serves the page and these tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import tcpa
import tcpa_programs
from click.testing import CliRunner
from documents import Checkout, follow

from cnncc.errors import Refusal
from cnncc.eval import cnn

# Stated by the paper, by its equations, corrected, and measured. The numbers are written down here, not computed.
# An empty text is a cell without a figure.
NAMES = ("conv0", "pool1", "conv2", "pool3", "conv4")
ALONE, WAITS = (54, 48, 324, 48, 864), (54, 216, 324, 1296, 1296)
Z, T, L = (0, 216, 216, 1296, 1296), (0, 216, 432, 1728, 3024), (42336, 42336, 63504, 63504, 63504)
BY_LAYER = {
    "z of {}, alone": ((54, 48, 324, "", ""), ALONE, ALONE, ALONE),
    "z of {}, with waits": (WAITS, WAITS, (81, 324, 324, 1296, 1296), (81, 324, 324, 1296, 1296)),
    "Z of {}": (Z, Z, (0, 1620, 3180, 5184, 9768), (0, 3334, 5089, 9330, 9816)),
    "t of {}": (T, T, (0, 1620, 4800, 9984, 19752), (0, 3334, 8423, 17753, 27569)),
    "L of {}": (L, L, (42336, 40764, 63504, 58368, 57456), (59775, 58940, 63504, 55020, 57456)),
}
FIGURES = [
    ("layer by layer (1), latency", 159_936, 159_936, 159_936, 173_195),
    ("  of them multiplying", 159_936, 159_936, 159_936, 159_936),
    ("  throughput", 312.6, 312.6, 312.6, 288.7),
    ("layer by layer (2), latency", 55_664, 73_500, 62_720, 66_126),
    ("  of them multiplying", 55_664, 73_500, 62_720, 62_720),
    ("  throughput", 898.2, 680.3, 797.2, 756.1),
    ("  pools on one PE, as printed", "", 73_500, "", 73_500),
    ("(2), filters in idle lanes, latency", 55_664, 66_444, 55_664, 59_070),
    ("  of them multiplying", 55_664, 66_444, 55_664, 55_664),
    ("  throughput", 898.2, 752.5, 898.2, 846.5),
    ("layer-parallel (1), latency", 66_528, 66_528, 77_208, 85_025),
    ("  with the wait states of Fig. 7", 66_528, 66_528, 85_428, "no waits"),
    ("  with scattered pixels", 66_528, 66_528, 70_710, "no scatter"),
    ("  with weights and transfers", "", "", "", 88_109),
    ("layer-parallel (1), period", 63_504, 63_504, 63_504, 63_504),
    ("  throughput", 787.4, 787.4, 787.4, 787.4),
    ("  period, 3 + 1 cycles", "", "", "", 63_840),
    ("  throughput, 3 + 1 cycles", "", "", "", 783.2),
    ("layer-parallel (2), latency", 44_496, 44_496, 57_120, 63_230),
    ("layer-parallel (2), period", "", 42_336, 42_336, 42_336),
    ("  throughput", 1_181.0, 1_181.0, 1_181.0, 1_181.0),
    ("  period, 3 + 1 cycles", "", "", "", 42_672),
    ("  throughput, 3 + 1 cycles", "", "", "", 1_171.7),
    ("input of pool1", 24, 24, 720, 1_344),
    ("input of conv2", 2_352, 2_352, 888, 1_008),
    ("input of pool3", 24, 24, 384, 672),
    ("input of conv4", 336, 336, 456, 504),
    ("layer by layer, the largest layer", "", 19_816, 23_520, ""),
    ("layers side by side", "", 11_592, 11_304, 12_384),
    ("PEs for 100 fps", 6, 6, 6, 6),
    ("  their throughput", 100, 196.8, 196.8, 196.8),
    ("  throughput of 5 PEs", "below 100", 98.4, 98.4, 98.4),
    ("  the compiler's choice", "", "", "", "--all"),
    ("  its throughput", "", "", "", "--all"),
    ("PEs for 16 in all", "4 1 8 1 2", "4 1 8 1 2", "3 1 8 1 3", "--all"),
    ("  their throughput", 787.4, 787.4, 787.4, "--all"),
]
MAPPED = "(2), compiler's mappings, "  # lines of searches
MACS, FC_MACS = 1_362_592, 7_840
COLUMNS = ("paper", "calculus", "corrected", "measured")


class Line(NamedTuple):
    """A line of the table: what it is of, and its cells."""

    what: str
    unit: str
    cells: tuple[str, ...]


def lines_of(text: str) -> Iterator[Line]:
    """The lines of the table in what docs/tcpa.md prints; notes have no unit. Each cell ends where its column does."""
    table = text[text.index("Heidorn et al.") :].splitlines()[1:]
    ends = [table[0].index(name) + len(name) for name in COLUMNS]
    for line in table[1:]:
        first = re.split(r"\s{2,}", line[: ends[0]].strip())
        words = first if line[ends[0] - 1 : ends[0]].strip() == "" else first[:-1]
        if len(words) > 1:
            spans = zip((line[: ends[0]].rindex(words[-1]) + len(words[-1]), *ends), ends, strict=False)
            yield Line(*words[-2:], tuple(line[start:end].strip() for start, end in spans))


@pytest.fixture(scope="module")
def printed(server: str, tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    return list(lines_of(follow("docs/tcpa.md", Checkout.copied(tmp_path_factory.mktemp("tcpa"), server))))


def searched(rows: list[Line]) -> list[int]:
    """Where the lines of the compiler's mappings are: three for each preset."""
    starts = [at for at, row in enumerate(rows) if row.what.startswith(MAPPED)]
    return [at + more for at in starts for more in range(3)]


def test_tcpa_figures(printed: list[Line]) -> None:
    by_layer = [
        (what.format(name), *values)
        for what, columns in BY_LAYER.items()
        for name, *values in zip(NAMES, *columns, strict=True)
    ]
    wanted = [(what.strip(), *map(tcpa.shown, cells)) for what, *cells in (*by_layer, *FIGURES)]
    left_out = searched(printed)
    assert [(row.what, *row.cells) for at, row in enumerate(printed) if at not in left_out] == wanted


def test_tcpa_measures_the_compilers_mappings(printed: list[Line]) -> None:
    """No run has more products a cycle than the array. The mapper has more choice than Eq. 4, and lanes have sums of
    their own: below what the paper says of its two columns with 16 PEs, 55,664 and 63,504.
    """
    rows = [printed[at] for at in searched(printed)]
    assert [row.what.removeprefix(MAPPED) for row in rows[::3]] == ["tcpa-4x4", "tcpa-4x5"]
    assert [row.unit for row in rows] == ["cycles", "cycles", "fps"] * 2
    measured = [float(row.cells[-1].replace(",", "")) for row in rows]
    (small, small_all, rate), (large, large_all, _) = measured[:3], measured[3:]
    assert (MACS - FC_MACS) / 32 <= small < 55_664 and (MACS - FC_MACS) / 40 <= large < small
    assert small < small_all and large < large_all and rate == round(50_000_000 / small_all, 1)


def test_tcpa_prints_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows as in the table, with all that is known of each."""
    rows = [tcpa.Figure("Eq. 1", "one", "cycles", 1_000, 2.5, "", "none", "why")]
    asked = list[bool]()
    monkeypatch.setattr(tcpa, "programs", lambda net, *, choose: asked.append(choose))
    monkeypatch.setattr(tcpa, "figures", lambda net, ran: iter(rows))
    for options in ([], ["--all"]):
        result = CliRunner().invoke(tcpa.main, ["--json", *options], catch_exceptions=False)
        (found,) = json.loads(result.stdout)["figures"]
        assert tcpa.Figure(**found) == rows[0]
    assert asked == [False, True]


def test_tcpa_refuses_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose logits are not those of the network measures nothing."""
    right = cnn.evaluate
    monkeypatch.setattr(cnn, "evaluate", lambda *given: ([-each for each in right(*given)[0]], {}))
    net = tcpa.layers()
    with pytest.raises(Refusal, match="output 'logits' of the program on tcpa-4x4 differs from that of the network"):
        tcpa_programs.in_turn(net, "tcpa-4x4", tcpa.ON_SMALL)


def test_tcpa_prints_a_table() -> None:
    """Every figure is on a line of its own, and a note is below its line."""
    rows = [
        tcpa.Figure("Eq. 1", "one", "cycles", 1_000, 2.5, "", "none", "why"),
        tcpa.Figure("", "two", "fps", "", "", "", "--all"),
    ]
    lines = "\n".join(tcpa.as_text(rows)).splitlines()
    assert [re.split(r"\s{2,}", line.strip()) for line in lines[1:]] == [
        ["paper", "calculus", "corrected", "measured"],
        ["Eq. 1", "one", "cycles", "1,000", "2.5", "none"],
        ["why"],
        ["two", "fps", "--all"],
        ["--all: the search for cores takes a minute or less; it runs with this option"],
    ]
