"""Layers of every kind under each of the five dataflows, from the words of the program, against brute force.

The arrays have few PEs and small files.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_cases import CALIBRATION, DIGITS, LENET, done
from conv_grid_cases import Case, case_of, filled
from examples import SEED, examples
from test_conv_grid import lowered, result_and_cycles, unmapped
from test_mapping_notation import EQUATIONS

from cnncc.arch.model import parse_arch
from cnncc.errors import Refusal
from cnncc.passes._scheduling.dataflows import AUTO, DATAFLOWS
from cnncc.passes.nest_assign_mapping import NestAssignMappingPass
from cnncc.util.npz import npz_bytes

pytestmark = pytest.mark.usefixtures("short_searches")

EXAMPLES = examples(4)
PARTS = 2
# What a drawn array may be too small for; on the list below nothing is.
TOO_SMALL = ("glb.words", "in equal blocks", "loops", "a PE is to hold more words", "descriptors")

LAYERS = {
    "conv": Case(c=5, k=10, image=(11, 10), pad="same"),
    "conv, batch": Case(c=3, k=6, image=(7, 9), n=3, pad="asymmetric"),
    "conv 5 x 5": Case(kernel=(5, 5), c=4, k=7, image=(12, 11)),
    "depthwise": Case(c=1, k=9, group="each", image=(9, 9), pad="same"),
    "depthwise, strided": Case(c=1, k=6, group="each", image=(11, 12), stride=(2, 2)),
    "depthwise, two outputs each": Case(c=1, k=5, group="pairs", image=(7, 7)),
    "a group for each output": Case(c=5, k=6, group="each", image=(8, 7)),
    "1 x 1": Case(kernel=(1, 1), c=12, k=20, image=(6, 7)),
    "1 x 1, strided": Case(kernel=(1, 1), c=9, k=8, image=(9, 9), stride=(2, 2)),
    "strided": Case(c=4, k=8, image=(13, 12), stride=(2, 2), pad="same"),
    "strided 2, 1": Case(kernel=(5, 3), c=2, k=5, image=(13, 9), stride=(2, 1)),
    "dilated": Case(c=3, k=4, image=(11, 11), dilation=(2, 2)),
    "two groups": Case(c=4, k=5, group="two", image=(8, 8), pad="same"),
    "three groups": Case(kernel=(1, 1), c=3, k=4, group="three", image=(5, 6)),
    "fully connected": Case(kernel=(1, 1), c=60, k=33, image=(1, 1)),
    "fully connected, batch": Case(kernel=(1, 1), c=37, k=10, image=(1, 1), n=4),
    "whole image": Case(kernel=(6, 5), c=4, k=9, image=(6, 5)),
}


def run(case: Case, folder: Path, dataflow: str | None, mapping: str | None = None) -> tuple[np.ndarray, int]:
    """What the layer's program computes under a dataflow or a mapping, and its macro-instructions' cycles."""
    text = case.arch_text().replace("[links]", "[links]\n            south = true")
    file = folder / "array.toml"
    file.write_text(text)
    module, ctx = unmapped(case)
    NestAssignMappingPass(str(file), None, dataflow or AUTO, mapping).apply(ctx, module)
    lowered(module, ctx, str(file))
    result, cycles = result_and_cycles(case, module, ctx, parse_arch(text, "drawn"))
    return result, cycles.compute


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_under_every_dataflow(layer: str, tmp_path: Path) -> None:
    case = replace(LAYERS[layer], glb=1 << 16)
    busy: dict[str, int] = {}
    for name in DATAFLOWS:
        result, busy[name] = run(case, tmp_path, name)
        np.testing.assert_array_equal(result, case.expected, name)
    others = (busy[name] for name in DATAFLOWS if not name.startswith("int"))  # those want lanes, or a large GLB
    assert busy["nlr"] == max(others), "a macro-instruction of one product a PE takes the longest"


@pytest.mark.parametrize("number", EQUATIONS)
def test_the_textbooks_mappings_run(number: str, tmp_path: Path) -> None:
    case = Case(c=4, k=7, image=(11, 10), n=2, array=(4, 6), pad="same")
    result, _ = run(case, tmp_path, None, EQUATIONS[number][0])
    np.testing.assert_array_equal(result, case.expected)


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_layers_and_arrays(part: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([SEED, part])
    seen: Counter[str] = Counter()
    while sum(seen[name] for name in DATAFLOWS) < 5 * EXAMPLES // PARTS:
        pinned = {"kind": "mac", "files": rng.choice(["large", "large", "small", "pong"])}
        case = case_of({**filled(pinned, lambda _, values: values[rng.integers(len(values))]), "glb": 1 << 18}, 1)
        if case.macs > 15_000:
            continue
        if rng.random() < 0.5:  # a GLB through which something must move
            case = replace(case, glb=int(rng.uniform(0.6, 1.2) * case.glb_words))
        for name in DATAFLOWS:
            try:
                result, _ = run(case, tmp_path, name)
            except Refusal as refusal:
                assert any(why in str(refusal) for why in TOO_SMALL), (name, case, str(refusal))
                seen[f"{name} refused"] += 1
                continue
            np.testing.assert_array_equal(result, case.expected, f"{name} {case}")
            seen[name] += 1
    assert 3 * sum(count for name, count in seen.items() if "refused" in name) < sum(
        seen[name] for name in DATAFLOWS
    ), seen


MIX = """
["c1"]
dataflow = "is"
["c2"]
dataflow = "rs"
["f1"]
dataflow = "nlr"
["f2"]
p = 2
"""


def test_a_network_under_each_dataflow_and_a_mix(tmp_path: Path) -> None:
    (tmp_path / "one.npz").write_bytes(npz_bytes({"input": np.load(DIGITS)["input"][:1]}))
    (tmp_path / "mix.toml").write_text(MIX)
    mix = ("--schedule", tmp_path / "mix.toml")
    outputs: set[bytes] = set()
    programs: set[str] = set()
    some = ("os", "rs", "nlr", "inter")  # of layers, all: test_every_layer_under_every_dataflow
    for options in ((), *(("--dataflow", name) for name in some), mix, (*mix, "--dataflow", "ws")):
        done("compile", LENET, "--batch", 1, "--calibrate", CALIBRATION, "-o", tmp_path / "a.cnb", *options)
        done("run", tmp_path / "a.cnb", "--input", tmp_path / "one.npz", "--output", tmp_path / "y.npz")
        outputs.add((tmp_path / "y.npz").read_bytes())
        programs.add(done("disasm", tmp_path / "a.cnb").stdout)
    assert len(outputs) == 1 and len(programs) == 3 + len(some)
    said = done("verify", LENET, "--batch", 1, "--dataflow", "ws").stdout
    assert re.search(r"^all \d+ steps agree \(calibration changes no value\)$", said, re.MULTILINE)
    assert done("check", LENET, "--batch", 1, "--dataflow", "is", *mix).exit_code == 0
