"""Cycles of layers from shape, mapping and array alone are those that the interpreter counts, to the last (rule R3).

CNNCC_EXAMPLES=1000 draws that many mappings.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_conv_grid import instructions_of
from test_dataflows import REASONS, SEED, Drawn, compiled, draw
from xdsl.dialects.builtin import ModuleOp

from cnncc.dialects.isa import LayerOp, instructions
from cnncc.errors import Refusal
from cnncc.isa.codec import decode_program, encode_program
from cnncc.isa.table import Instruction
from cnncc.machine.program import build_tree
from cnncc.machine.times import Cycles, simulate
from cnncc.machine.traps import Trap
from cnncc.mapper.layer_schedule import LayerPlan, layer_counts, layer_cycles
from cnncc.mapper.timeline import Cycles as Predicted

EXAMPLES = int(os.environ.get("CNNCC_EXAMPLES", "60"))
WHOLE = frozenset({"weight", "params"})  # what the layer before fetches for a layer that keeps it in the GLB


def plan_of(drawn: Drawn) -> LayerPlan:
    return LayerPlan("layer", drawn.shape, drawn.mapping, "residual" in drawn.operands, WHOLE)


def layers_of(module: ModuleOp) -> list[tuple[str, int]]:
    return [(op.record.data.label, op.record.data.first) for op in module.ops if isinstance(op, LayerOp)]


def counted(module: ModuleOp, drawn: Drawn) -> tuple[Cycles, int]:
    """What the interpreter counts of the layer between the copies of input and output; cycles before it."""
    layers = layers_of(module)
    times = simulate(instructions_of(module), drawn.arch, layers)
    *before, label, _ = [label for label, _ in layers]
    return times.layers[label], sum(times.layers[name].total for name in before)


def check(said: Predicted, found: Cycles, before: int, drawn: Drawn) -> None:
    """All counters agree. The array waits from the program's start on: before the layer, too."""
    assert {**vars(said), "stall": None} == {**vars(found), "stall": None}, drawn
    assert said.compute + sum(said.stall.values()) == said.total
    assert [more for name in said.stall if (more := found.stall[name] - said.stall[name])] == [before][
        : bool(before)
    ], drawn


@pytest.mark.parametrize("part", range(2))
def test_layer_cycles_of_random_mappings(part: int, tmp_path: Path) -> None:
    rng, left = np.random.default_rng([SEED, 100 + part]), -(-EXAMPLES // 2)
    while left:
        drawn = draw(rng)
        try:
            module, _ = compiled(drawn, tmp_path)
        except Refusal as refusal:
            assert any(text in str(refusal) for text in REASONS.values())
            continue
        found, before = counted(module, drawn)
        check(layer_counts(plan_of(drawn), drawn.arch), found, before, drawn)
        assert layer_cycles(plan_of(drawn), drawn.arch) == found.total
        left -= 1


def wrong(program: list[Instruction], at: int, more: int) -> list[Instruction]:
    """A program whose loop runs more often."""
    changed = replace(program[at], values={**program[at].values, "count": program[at].number("count") + more})
    return decode_program(encode_program([*program[:at], changed, *program[at + 1 :]]))


def test_layer_cycles_see_a_wrong_trip_count(tmp_path: Path) -> None:
    """Every loop of a program, run once more than its mapping says, takes other cycles."""
    rng, seen = np.random.default_rng([SEED, 7]), 0
    while seen < 12:
        drawn = draw(rng)
        with suppress(Refusal):
            module, _ = compiled(drawn, tmp_path)
            said = layer_counts(plan_of(drawn), drawn.arch)
            program, layers = list(instructions(module)), layers_of(module)
            for at in [at for at, each in enumerate(program) if each.spec.name == "loop"]:
                with suppress(Trap):  # a deadlock: a token that comes once is taken twice
                    times = simulate(build_tree(wrong(program, at, 1)), drawn.arch, layers)
                    assert times.layers[layers[-2][0]].total != said.total, (at, drawn)
                    seen += 1


def test_layer_cycles_need_neither_program_nor_ir() -> None:
    """What they say is not taken from what they are compared with, and processes that search start quickly."""
    for path in (Path(__file__).parents[1] / "cnncc" / "mapper").glob("*.py"):
        assert not re.search(r"(from|import) (cnncc\.(machine|isa|eval|passes)|xdsl)", path.read_text()), path
    script = "import sys, cnncc.mapper.layer_schedule\nassert not [name for name in sys.modules if 'xdsl' in name]"
    root = str(Path(__file__).parents[1])
    assert not subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": root}).returncode
