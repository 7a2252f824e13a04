"""`cnncc estimate --html` draws what `--json` says, on a page that stands alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli_cases import LENET, conv_model, done, invoke, refused, save

from cnncc.estimate.layer_limits import COMPUTE, LIMITS
from cnncc.estimate.page import ENERGY, WAITS, nest_lines
from cnncc.mapping.mapping import Sizes
from cnncc.mapping.text import parse

pytestmark = pytest.mark.usefixtures("short_searches")

GROUP = '[[group]]\nlayers = ["c1", "pool1"]\nrows = 2\n'
CASES = {
    "alone": ("--batch", 1, "--groups", "none"),
    "group": ("--batch", 1),
    "small": ("--batch", 1, "--groups", "none", "--arch", "seed-4x4"),
}


@pytest.fixture(scope="module", params=CASES)
def drawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    """A page, as HTML that is well-formed XML, too, and the JSON of the same estimate."""
    folder, options = tmp_path_factory.mktemp("page"), CASES[request.param]
    (folder / "groups.toml").write_text(GROUP)
    groups = ("--schedule", folder / "groups.toml") if request.param == "group" else ()
    said = done("estimate", LENET, *options, *groups, "--json", "--html", folder / "pages" / "lenet.html")
    return ElementTree.parse(folder / "pages" / "lenet.html").getroot(), json.loads(said.stdout)


def texts(element: Any) -> list[str]:
    return ["".join(each.itertext()).strip() for each in element]


def bars(page: Any, chart: int) -> Iterator[tuple[str, list[tuple[str, float, int]], int]]:
    """Of each bar of a chart the layer, the name, percents and figure of its parts, and the sum that is printed."""
    grid = page.findall(".//div[@class='bars']")[chart]
    for link, bar, total in zip(grid[::3], grid[1::3], grid[2::3], strict=True):
        parts = list[tuple[str, float, int]]()
        for part in bar:
            width = re.fullmatch(r"width: ([\d.]+)%", part.get("style"))
            title = re.fullmatch(rf"{re.escape(link.text)}: (.*) ([\d,.]+) \([\d.]+ %\)", part.get("title"))
            assert width and title and part.get("class") == title[1].replace(" ", "-")
            parts.append((title[1], float(width[1]), round(float(title[2].replace(",", "")))))
        yield link.text, parts, int(total.text.replace(",", ""))


def test_page_draws_cycles_energy_and_words(drawn: tuple[Any, dict[str, Any]]) -> None:
    page, estimate = drawn
    figures = [
        {label: layer["cycles"][COMPUTE] + sum(layer["cycles"]["stall"].values()) for label, layer in each}
        for each in [estimate["layers"].items()]
    ]
    figures += [{label: round(layer["energy"]["total"]) for label, layer in estimate["layers"].items()}]
    moved = ("dram_read", "dram_write")
    figures += [{label: sum(map(layer["words"].get, moved)) for label, layer in estimate["layers"].items()}]
    for chart, totals in enumerate(figures):
        longest = max(totals.values())
        drawn_bars = list(bars(page, chart))
        assert {label: total for label, _, total in drawn_bars} == {label: n for label, n in totals.items() if n}
        for _, parts, total in drawn_bars:
            assert sum(width for _, width, _ in parts) == pytest.approx(100 * total / longest, abs=0.01)
            assert sum(figure for _, _, figure in parts) == pytest.approx(total, abs=len(parts))


def test_page_divides_cycles_by_what_the_array_does(drawn: tuple[Any, dict[str, Any]]) -> None:
    page, estimate = drawn
    for label, parts, _ in bars(page, 0):
        layer = estimate["layers"][label]
        shares = {name: figure for name, _, figure in parts}
        busy = shares.pop("operations", 0) + shares.pop("some PEs idle", 0)
        assert busy == pytest.approx(layer["cycles"][COMPUTE], abs=1)
        waits = {cause: count for cause, count in layer["cycles"]["stall"].items() if count}
        assert shares == {
            name: total for name, causes in WAITS.items() if (total := sum(waits.get(cause, 0) for cause in causes))
        }


def test_page_puts_each_cause_and_each_energy_in_one_part(drawn: tuple[Any, dict[str, Any]]) -> None:
    _, estimate = drawn
    causes = [cause for each in WAITS.values() for cause in each]
    assert sorted([*causes, COMPUTE]) == sorted(LIMITS) and set(causes) == {*estimate["cycles"]["stall"]}
    assert sorted(["total", *(name for each in ENERGY.values() for name in each)]) == sorted(estimate["energy"])


def test_page_says_figures_and_layers(drawn: tuple[Any, dict[str, Any]]) -> None:
    page, estimate = drawn
    tiles = texts(page.findall(".//div[@class='tiles']/div/b"))
    words = estimate["words"]["dram_read"] + estimate["words"]["dram_write"]
    assert {f"{estimate['cycles']['total']:,}", f"{words:,}"} <= {*tiles}
    layers = {label: layer for label, layer in estimate["layers"].items() if layer["cycles"]["total"]}
    assert texts(page.findall(".//details/summary/span[1]")) == [*layers]
    for details, layer in zip(page.findall(".//details"), layers.values(), strict=True):
        said = " ".join(details.itertext())
        assert f"{layer['cycles']['total']:,} cycles" in said
        assert all(f"{count:,}" in said for count in layer["words"].values() if count)
        for member in layer.get("members", {}).values():
            assert member.get("mapping", member["kind"]) in said
        if "mapping" in layer:
            loops = [line for line in said.splitlines() if re.match(r" *(for|par|stage) ", line)]
            assert len(loops) == len(re.findall(r"@(?:glb|rf)|\b[nkchwrs]'*(?=[:| >}\]]|$)", layer["mapping"]))
    links = {link.get("href") for link in page.findall(".//a")}
    assert links <= {f"#{each.get('id')}" for each in page.iter() if each.get("id")}


def test_page_draws_layers_under_their_roofs(drawn: tuple[Any, dict[str, Any]]) -> None:
    page, estimate = drawn
    points = page.findall(".//circle")
    moving = {
        label: layer["roofline"]
        for label, layer in estimate["layers"].items()
        if layer.get("roofline") and "dram" in layer["roofline"]["roofs"]
    }
    assert len(points) == len(moving)
    if not moving:
        assert page.find(".//svg") is None
        return
    roof = [tuple(map(float, point.split(","))) for point in page.find(".//polyline").get("points").split()]
    (left, low), (ridge, peak), (right, _) = roof
    for point, (label, each) in zip(points, moving.items(), strict=True):
        x, y = (float(point.get(key)) for key in ("cx", "cy"))
        assert point.find("title").text.startswith(f"{label}: ") and left <= x <= right
        allowed = peak if x >= ridge else low + (peak - low) * (x - left) / (ridge - left)
        assert y >= allowed - 0.2, (label, each)  # ROOF-3; y grows downwards


def test_page_stands_alone_and_escapes_names(tmp_path: Path) -> None:
    model = conv_model()
    evil = "<script>alert(1)<!--&\"'"
    for node in model.graph.node:
        node.name += evil
    path = save(model, tmp_path / f"{evil}.onnx")
    for target in "a.html", "b.html":
        done("estimate", path, "--html", tmp_path / target)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    page = ElementTree.parse(tmp_path / "a.html").getroot()
    used = {each.tag for each in page.iter()}
    assert "details" in used and not used & {"script", "link", "img", "iframe"}
    attributes = {key for each in page.iter() for key in each.attrib}
    assert not [key for key in attributes if key.startswith("on") or key == "src"]
    assert "http" not in (tmp_path / "a.html").read_text() and f"{evil}.onnx on spatial-8x8" in texts(page[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--explain", "c1"), "--html is of the whole estimate: it goes with neither --explain nor --what-if"),
        (("--front",), "--front goes with no other output, and with no objective: it has several"),
        (("--check-certificate", "x.json"), "--check-certificate goes with no other output"),
    ],
)
def test_page_goes_with_no_other_question(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = invoke("estimate", LENET, "--batch", 1, "--html", page, *options)
    assert result.exit_code == 2 and message in result.stderr and not page.exists()


def test_page_of_layers_side_by_side_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    said = refused("estimate", LENET, "--batch", 1, "--arch", "tcpa-4x4", "--parallel", "layers", "--html", page)
    assert "--html works for layers one after the other alone" in said and not page.exists()


def test_page_never_replaces_the_model(tmp_path: Path) -> None:
    path = save(conv_model(), tmp_path / "net.onnx")
    model = path.read_bytes()
    assert "net.onnx" in refused("estimate", path, "--html", path)
    assert path.read_bytes() == model


def test_mappings_are_nests_of_loops() -> None:
    sizes = Sizes(1, 8, 3, 14, 14, 3, 3)
    text = "weight@glb > h':4 > ifmap@glb*2 > [k||8@cols h''||4@rows] > weight@rf*2 > ifmap@rf*2 > {w > s > c > r}"
    assert list(nest_lines(parse(text, sizes), sizes)) == [
        "stage weight in glb",
        "for h step 4: 4 times",
        "  stage ifmap in glb buffers 2",
        "  par k on cols: 8 times",
        "    par h on rows: 4 times",
        "      stage weight in rf buffers 2",
        "      stage ifmap in rf buffers 2",
        "      for w keep: 14 times",
        "        for s keep: 3 times",
        "          for c keep: 3 times",
        "            for r keep: 3 times",
    ]
