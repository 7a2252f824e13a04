"""samples/reproduce/fusion.py: words of groups that follow from shapes, on small images and by short searches."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import fusion
import pytest
from click.testing import CliRunner

from cnncc.driver.prove import claim_of_model
from cnncc.proof.claim import Claim
from cnncc.util.progress import silent

pytestmark = pytest.mark.usefixtures("short_searches")
SIDE = 16  # of VGG-19's image


def test_a_group_moves_its_image_and_its_result_once() -> None:
    (run,) = fusion.reproduce(["vgg19-conv3_1"], [2048], SIDE, silent)
    plain, _, group = run.cases
    pixels = SIDE * SIDE
    # Each layer's image and result: of conv1_1 and conv1_2, pool1, conv2_1 and conv2_2, pool2, conv3_1.
    by_layer = (3 + 64) + (64 + 64) + (64 + 16) + (16 + 32) + (32 + 32) + (32 + 8) + (8 + 16)
    assert run.layer_by_layer == pixels * by_layer
    assert group.groups == ("conv1_1..conv3_1",) and group.activations == pixels * (3 + 16)
    # Rings with delays in rows, the image's one stripe longer; the results in two buffers.
    rows = {3: 10, 64: 6 + 4}
    rings = sum(SIDE * channels * count for channels, count in rows.items())
    rings += SIDE // 2 * (64 * 4 + 128 * (4 + 2)) + SIDE // 4 * (128 * 3 + 256 * 2)
    assert group.ring_words == rings and plain.ring_words == 0


def test_strips_read_what_they_share_twice() -> None:
    """FSRCNN on 70 x 120 pixels in strips of 60 columns: a result depends on 10 columns to each side."""
    (run,) = fusion.reproduce(["fsrcnn"], [128], 70, silent)
    *_, group = run.cases
    assert group.groups == ("feature..last in 2 strips",)
    assert group.activations == 70 * (2 * (60 + 10) + 120)
    # Rings: of the image, of feature, of five maps of 12 channels, of expand; two buffers of a row of results.
    rows = [(1, 70, 6), (56, 68, 1), *((12, cols, 3) for cols in (68, 67, 66, 65)), (12, 64, 1), (56, 64, 9)]
    assert group.ring_words == sum(k * cols * keeps for k, cols, keeps in rows) + 2 * 60


def test_fusion_prints_json() -> None:
    result = CliRunner().invoke(fusion.main, ["--network", "mnist", "--glb", "128", "--json"])
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout)
    assert [case["name"] for case in run["cases"]] == [
        "without groups",
        "fewest words without groups",
        "with groups",
    ]
    assert all(case["dram_words"] >= case["activations"] > 0 for case in run["cases"])


def test_programs_with_groups_are_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner().invoke(fusion.main, ["--network", "mnist", "--glb", "128", "--prove"])
    assert run.exit_code == 0, run.output
    (bits,) = re.findall(
        r"proven with groups, but for an error of at most 2\^-([\d.]+); no two engines race", run.stdout
    )
    assert float(bits) >= 50

    def swapped(*given: Any) -> Claim:
        """Two weights change places."""
        claim = claim_of_model(*given)
        (place, words), *others = claim.binary.weights
        order = [1, 0, *range(2, words.size)]
        return replace(claim, binary=replace(claim.binary, weights=[(place, words.flat[order]), *others]))

    monkeypatch.setattr(fusion, "claim_of_model", swapped)
    run = CliRunner().invoke(fusion.main, ["--network", "mnist", "--glb", "128", "--prove"])
    assert run.exit_code == 1 and "mnist.onnx is not proven: " in run.stderr
