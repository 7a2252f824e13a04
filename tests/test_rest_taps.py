"""Loops over taps with a rest: fewer taps in the last macro-instruction of a sum, which its PEs do in the same sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_cases import build, done, save
from onnx import helper

ARRAY = """\
name = "rests"
rows = 3
cols = 3
operand_bits = 16
pe = {{ weight_words = 24, ifmap_words = 84, psum_words = 9, weight_halves = 2, ifmap_halves = 2, psum_halves = 2, \
max_pixels = 3, pong_words = {pong}, virtual_words = 24, lanes = 1 }}
glb = {{ words = 65536, words_per_cycle = 6 }}
dram = {{ words_per_cycle = 2, latency_cycles = 48 }}
bus = {{ burst_words = 9, latency_cycles = 0 }}
commit = {{ units_per_column = 2, latency_cycles = 1 }}
links = {{ n2n = true, south = true }}
sequencer = {{ queue_depth = 2, overlap = true }}
"""


@pytest.mark.parametrize("pong", [0, 16])
@pytest.mark.parametrize("dim", ["h", "k"])
def test_rest_taps_are_done_in_the_same_sets(dim: str, pong: int, tmp_path: Path) -> None:
    """Two of three taps overlap those of the next column; the one that is left over overlaps none."""
    rng = np.random.default_rng(0)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 0, 1, 0])
    arrays = {"w": rng.standard_normal((3, 2, 3, 3)).astype(np.float32)}
    model = save(build([node], {"x": (1, 2, 3, 3)}, ["y"], arrays), tmp_path / "net.onnx")
    array, schedule = tmp_path / "array.toml", tmp_path / "schedule.toml"
    array.write_text(ARRAY.format(pong=pong))
    others = "k > " if dim == "h" else "h > "
    mapping = f"{others}{dim}||3@cols > s':2 > r||3@rows > weight@rf*2 > ifmap@rf*2 > {{c > s''}}"
    schedule.write_text(f'[conv]\nmapping = "{mapping}"\n')
    said = done("verify", model, "--arch", array, "--schedule", schedule).stdout
    assert "all " in said and "steps agree" in said
