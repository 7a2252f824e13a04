"""samples/reproduce/mapper.py: what is reached, and what is possible by numbers that follow from shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import mapper
import pytest
from click.testing import CliRunner
from networks import SAMPLES as NETWORKS
from networks.features import features
from structure import Bound, Shape, bound

from cnncc.arch.model import load_arch
from cnncc.driver.pipeline import NONE
from cnncc.errors import Refusal
from cnncc.util import terminal

QUICK = ("--dataflow", "os", "--glb", "128")  # README.md has one with the whole search


def conv(k: int, c: int, side: int, taps: int, stride: int = 1, own: bool = False) -> Shape:
    return Shape("mac", 1, k, c, side, side, taps, taps, (stride, stride), (1, 1), own, False, 1)


@pytest.mark.usefixtures("short_searches")
def test_networks_on_arrays_of_both_kinds() -> None:
    arrays = ("--array", "spatial-8x8", "--array", "seed-16x16")
    options = ("--network", "resnet20", "--image-size", "8", *QUICK, *arrays, "--json")
    found = json.loads(CliRunner().invoke(mapper.main, options, catch_exceptions=False).stdout)
    shortcuts = 32 * 16 * 4 * 4 + 64 * 32 * 2 * 2  # convolutions add their channels of zeros (onnx-pad-to-conv)
    macs = features(NETWORKS["resnet20"].build(8)).macs + shortcuts
    assert [(run["array"], run["multipliers"], run["macs"]) for run in found] == [
        ("spatial-8x8", 64, macs),
        ("seed-16x16", 256, macs),
    ]
    assert [run["overlaps"] for run in found] == [True, False]
    for run in found:
        assert len(run["layers"]) == 19 + 2 and sum(layer["macs"] for layer in run["layers"]) == macs
        assert macs / run["multipliers"] < run["least_compute"] <= run["compute"] < run["total"]
        assert run["least_compute"] <= run["least_total"] < run["total"] and run["search_s"] >= 0
        for layer in run["layers"]:
            assert layer["least_compute"] <= layer["compute"] and layer["least_total"] <= layer["total"]
            assert layer["mapping"] and not layer["depthwise"]


@pytest.mark.usefixtures("short_searches")
def test_depthwise_layers_have_a_line_of_their_own() -> None:
    options = ("--network", "mobilenet", "--image-size", "32", *QUICK, "--array", "spatial-16x16", "--layers")
    text = CliRunner().invoke(mapper.main, options, catch_exceptions=False).stdout
    assert text.startswith("mobilenet: 27 convolutions, ") and "its 13 depthwise layers: at most " in text
    rows = [line.split() for line in text.splitlines() if line.startswith("    conv") and "%" in line]
    assert len(rows) == 27 and all(float(row[3]) <= float(row[5]) for row in rows)


def test_layers_run_one_after_the_other(tmp_path: Path) -> None:
    """The bounds are of such programs. Layers of a group in strips have no cycles of their own, either."""
    assert mapper.quantised("resnet20", 8, tmp_path).settings.groups == NONE


def test_utilisation_is_wanted_where_something_overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """990,000 MACs on 100 multipliers: 0.99 of 10,000 cycles, 0.9 of 11,000."""
    monkeypatch.setattr(terminal, "terminal_width", lambda: 200)
    run = mapper.Run("net", "spatial-8x8", 128, True, 100, 990_000, 10_000, 11_000, 9_900, 9_900, 1.0, ())
    (row,) = [line for line in mapper.as_text([run], layers=False) if "spatial-8x8" in line]
    assert row.endswith("  compute >= 0.97: met, total >= 0.92: MISSED")
    alone = replace(run, array="seed-8x8", overlaps=False)
    (row,) = [line for line in mapper.as_text([alone], layers=False) if "seed-8x8" in line]
    assert row.endswith("  -")


def test_a_bound_by_hand_of_macro_instructions() -> None:
    """All of 7 channels for 16 sums are 112 steps, as many as weights in a half: 4 cycles more for each 112."""
    arch, shape = load_arch("spatial-4x4"), conv(k=16, c=7, side=16, taps=1)
    macros = shape.operations // 16 // 112
    assert shape.operations == 16 * 7 * 256
    assert bound(shape, arch).compute == shape.operations // 16 + 4 * macros == 116 * macros
    lanes = replace(arch, pe=replace(arch.pe, lanes=7))
    assert bound(shape, lanes).compute == shape.operations // 16 // 7 + 4 * macros


@pytest.mark.parametrize(("k", "c", "side"), [(5, 3, 5), (3, 10, 7), (7, 5, 3)])
def test_a_bound_by_brute_force_of_unrolling(k: int, c: int, side: int) -> None:
    """Without start and finish only what does not divide is lost: two dimensions on each axis, c on rows alone."""
    sides = [each for each in product(range(1, 5), repeat=4) if prod(each) <= 4 and sum(n > 1 for n in each) < 3]
    least = min(
        prod(-(-size // (a * b)) for size, a, b in zip((k, side, side, c), rows, cols, strict=True))
        for rows, cols in product(sides, sides)
        if cols[-1] == 1
    )
    arch = load_arch("spatial-4x4")
    shape = conv(k=k, c=c, side=side, taps=1)
    assert bound(shape, replace(arch, pe=replace(arch.pe, start_cycles=0, finish_cycles=0))).compute == least
    assert bound(shape, arch).compute > least > shape.operations // 16


def test_a_bound_by_hand_of_output_units() -> None:
    """A depthwise 3 x 3 on 16 x 16 PEs: one result a column and cycle, each of 9 MACs of 16 PEs."""
    shape = conv(k=64, c=1, side=48, taps=3, own=True)
    assert bound(shape, load_arch("spatial-16x16")).total == shape.results // 16
    eight = bound(shape, load_arch("spatial-8x8"))
    assert eight.total == eight.compute > shape.operations // 64 > shape.results // 8


def test_a_bound_by_hand_where_nothing_overlaps() -> None:
    """Then times of the engines add up (rule TIME-6)."""
    shape, arch = conv(k=16, c=12, side=16, taps=1), load_arch("seed-8x8")
    arch = replace(arch, pe=replace(arch.pe, pong_words=0, virtual_words=0))
    load, macro, commit = 1 + 1, 1 + 3 + 16 * 12 + 1, 1 + 16 * 8 + 4  # weights stay; the GLB's port is busy for longer
    tiles, words = shape.results // 64 // 16, 16 * 12 + 256 * 12
    assert bound(shape, arch).total == tiles * (load + macro + commit) + words // 32
    quick = replace(arch, glb=replace(arch.glb, words_per_cycle=1024))
    assert bound(shape, quick).total == tiles * (load + 12 + macro + commit)


def test_what_is_predicted_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, arch = mapper.quantised("resnet20", 8, tmp_path), mapper.array("spatial-8x8", 128)
    assert arch.glb.words == 65536
    right = mapper.predicted_counters
    monkeypatch.setattr(mapper, "predicted_counters", lambda *given: right(*given) | {"macs": 1})
    with pytest.raises(Refusal, match="resnet20 on spatial-8x8: predicted and counted differ in macs: 1 and 2550784"):
        mapper.run("resnet20", start, arch, 128, "os", tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(mapper, "bound", lambda *_: Bound(0, 1 << 40))
    with pytest.raises(Refusal, match=r"layer '.*' takes .*, below its bound"):
        mapper.run("resnet20", start, arch, 128, "os", tmp_path)


def test_what_models_py_refuses_is_refused() -> None:
    for options, said in (
        ("--network vgg17", "No such command 'vgg17'"),
        ("--network resnet20 --image-size 7", "7 is not in"),
    ):
        result = CliRunner().invoke(mapper.main, options.split(), catch_exceptions=False)
        assert result.exit_code == 1 and said in result.stderr and "Traceback" not in result.stderr
