"""docs/arch.md: up to date, and true of the presets and of what the reader of architecture files takes."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from cli_cases import done

from cnncc.arch.manual import manual
from cnncc.arch.model import PRESETS, _cbrain, arch_from_table, arch_text, array_title, load_arch, parse_arch
from cnncc.errors import Refusal

PAGE = Path(__file__).parents[1] / "docs" / "arch.md"
# Columns of families, smaller ones first.
SIZES = {
    "seed": ["4x4", "6x6", "8x8"],
    "spatial": ["4x4", "8x8", "16x16"],
    "tcpa": ["4x4", "4x5"],
    "cbrain": ["16-16", "32-32"],
}
ROW = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)


def rows() -> dict[tuple[str, str], list[str]]:
    """By table (empty outside all) and key: unit, range, default, meaning, then what the presets have."""
    found: dict[tuple[str, str], list[str]] = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        table = re.match(r"\[(\w+)\]", section)
        found |= {(table[1] if table else "", key): cells.split(" | ") for key, cells in ROW.findall(section)}
    return found


def in_toml(value: object) -> str:
    if isinstance(value, list):
        return json.dumps(value)
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def flat(table: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """The keys of a file as `rows` has them."""
    inner = {(name, key): value for name, t in table.items() if isinstance(t, dict) for key, value in t.items()}
    return inner | {("", key): value for key, value in table.items() if not isinstance(value, dict)}


def changed(table: str, key: str, value: object) -> dict[str, Any]:
    """A preset with another value of one key."""
    arch = asdict(load_arch("spatial-4x4"))
    (arch[table] if table else arch)[key] = value
    return arch


def test_arch_manual_is_up_to_date() -> None:
    assert PAGE.read_text() == manual(), "run `python -m cnncc.arch.manual > docs/arch.md`"


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.toml")))
def test_arch_manual_has_what_the_presets_say(preset: str) -> None:
    family, _, size = preset.partition("-")
    column, place = list(SIZES).index(family), SIZES[family].index(size)
    says = flat(tomllib.loads((PRESETS / f"{preset}.toml").read_text()))
    for at, (_, _, default, _, *families) in rows().items():
        shown = families[column].split(", ")
        assert shown[place if len(shown) > 1 else 0] == (in_toml(says[at]) if at in says else default), at


@pytest.mark.parametrize("preset", ["cbrain-16-16", "cbrain-32-32"])
def test_arch_cbrain_presets_are_what_their_names_derive(preset: str) -> None:
    """The files of Table 3 are those that any other T_in-T_out is made by."""
    assert _cbrain(preset) == load_arch(preset)


def test_arch_cbrain_of_any_size() -> None:
    """Numbers by hand: 16-64 has two PEs in a row, whose bus brings a burst for each."""
    arch = load_arch("cbrain-8-24")
    assert (arch.name, arch.rows, arch.cols, arch.pe.lanes, arch.clock_mhz) == ("cbrain-8-24", 24, 1, 8, 1000)
    assert (arch.glb.words_per_cycle, arch.bus.burst_words, arch.commit.units_per_column) == (192, 8, 24)
    wide = load_arch("cbrain-16-64")
    assert (wide.rows, wide.cols, wide.bus.burst_words, wide.commit.units_per_column) == (32, 2, 32, 32)
    assert wide.glb.words_per_cycle == 1024 and wide.pe.weight_words == 512
    assert parse_arch(arch_text(arch), "shown") == arch


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cbrain-16-0", "no rectangle of at most 32 x 32 PEs has 0 PEs"),
        ("cbrain-16-37", "has 37 PEs: give a T_out that fills one"),
        ("cbrain-65-16", r"cbrain-65-16 \[pe\]: lanes = 65 is outside 1 to 64"),
        ("cbrain-0-16", r"cbrain-0-16 \[pe\]: weight_words = 0 is outside 1 to 65536"),
    ],
)
def test_arch_cbrain_refuses_sizes(name: str, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        load_arch(name)


def test_arch_manual_names_every_key() -> None:
    assert set(rows()) == set(flat(asdict(load_arch("spatial-4x4"))))


@pytest.mark.parametrize(("table", "key"), [at for at, cells in rows().items() if " to " in cells[1]])
def test_arch_manual_ranges_are_those_of_the_reader(table: str, key: str) -> None:
    least, most = map(json.loads, rows()[table, key][1].split(" to "))
    for value in (least, most):
        arch = asdict(arch_from_table(changed(table, key, value), "file"))
        assert (arch[table] if table else arch)[key] == value
    for value in (least - 1, most + 1):
        with pytest.raises(Refusal, match=rf"{key} = {value} is outside {least} to {most}"):
            arch_from_table(changed(table, key, value), "file")


@pytest.mark.parametrize(
    ("rate", "words", "cycles"), [(8, 8, 1), (2.0, 2, 1), (2.5, 5, 2), (0.3, 3, 10), (0.001, 1, 1000)]
)
def test_arch_rates_are_exact(rate: float, words: int, cycles: int) -> None:
    arch = arch_from_table(changed("dram", "words_per_cycle", rate), "file")
    assert (arch.dram.rate_words, arch.dram.rate_cycles) == (words, cycles)
    assert parse_arch(arch_text(arch), "shown") == arch
    assert repr(arch.dram) == f"Dram(words_per_cycle={rate:g}, latency_cycles=64)"  # digests keep theirs


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (2.0625, "2.0625 has more than 3 decimals"),
        (0.0009, "0.0009 is outside 0.001 to"),
        (float("nan"), "nan is outside"),
        (float("inf"), "inf is outside"),
        (True, "is a number, not true"),
    ],
)
def test_arch_refuses_other_rates(rate: float, message: str) -> None:
    with pytest.raises(Refusal, match=rf"file \[dram\]: words_per_cycle .*{message}"):
        arch_from_table(changed("dram", "words_per_cycle", rate), "file")


def test_arch_show_all_has_every_key(tmp_path: Path) -> None:
    """Of the page's least file: what it leaves out has the defaults of the table."""
    given = re.findall(r"^```toml least.toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "least.toml").write_text(given)
    said = done("arch", "show", tmp_path / "least.toml", "--all").stdout
    shown, says = flat(tomllib.loads(said)), flat(tomllib.loads(given))
    assert {at: in_toml(value) for at, value in shown.items()} == {
        at: in_toml(says[at]) if at in says else default for at, (_, _, default, *_) in rows().items()
    }


def test_operators_for_the_host_are_a_list_of_names() -> None:
    assert load_arch("tcpa-4x4").cores.host == ("Gemm",)
    assert parse_arch(arch_text(load_arch("tcpa-4x4")), "file") == load_arch("tcpa-4x4")
    for wrong in ("Gemm", [1], 3):
        with pytest.raises(Refusal, match="host is a list of names"):
            arch_from_table(changed("cores", "host", wrong), "file")


def test_lane_sums_are_said_only_where_they_are_on() -> None:
    """The texts and titles of all other arrays stay as they were before there was such a key."""
    preset = load_arch("spatial-4x4")
    assert "lane_sums" not in arch_text(preset) + repr(preset)
    banks = replace(preset, pe=replace(preset.pe, lanes=2, lane_sums=True))
    assert "lane_sums = true" in arch_text(banks)
    assert parse_arch(arch_text(banks), "file") == banks
    assert (
        len({array_title(arch) for arch in (preset, banks, replace(banks, pe=replace(banks.pe, lane_sums=False)))}) == 3
    )


def test_lane_sums_need_equal_banks() -> None:
    table = changed("pe", "lane_sums", True)
    table["pe"] |= {"lanes": 3, "psum_words": 16}
    with pytest.raises(Refusal, match=r"file \[pe\]: .* psum_words = 16 is no multiple of lanes = 3: 15 is one"):
        arch_from_table(table, "file")
    assert arch_from_table(changed("pe", "lane_sums", True), "file").pe.lane_sums
