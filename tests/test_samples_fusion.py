"""samples/reproduce/fusion.py: words of groups that follow from shapes, on small images and by short searches."""

from __future__ import annotations

import json
from pathlib import Path

import fusion
import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner
from networks import SAMPLES

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


def test_strips_put_together_are_the_whole(tmp_path: Path) -> None:
    """Three strips of 40 columns of an image with 80, in floats."""
    strips, rows = fusion.Strips(columns=40, image=80, reach=10), 14
    sessions: dict[int, onnxruntime.InferenceSession] = {}
    for columns in (strips.columns, strips.image):
        SAMPLES["fsrcnn"].build(rows, columns).write(tmp_path / "net.onnx", 0)
        sessions[columns] = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((1, 1, rows, strips.image)).astype(np.float32)

    def run(columns: int, first: int) -> np.ndarray:
        return np.asarray(sessions[columns].run(None, {"image": x[..., first : first + columns]})[0])

    parts, done = list[np.ndarray](), 0
    for _ in range(strips.count):
        first = min(max(0, done - strips.reach), strips.image - strips.columns)
        end = first + strips.columns
        kept = end if end == strips.image else end - strips.reach
        parts.append(run(strips.columns, first)[..., done - first : kept - first])
        done = kept
    assert done == strips.image
    np.testing.assert_allclose(np.concatenate(parts, axis=-1), run(strips.image, 0), rtol=1e-4, atol=1e-5)


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
