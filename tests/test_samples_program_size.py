"""samples/program_size.py against programs that are run instruction by instruction, and against the counters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import program_size
import pytest
from cli_cases import conv_model, done, save
from click.testing import CliRunner
from program_size import unfolded

from cnncc.binary.container import load
from cnncc.isa.assembly import assemble
from cnncc.isa.table import Instruction
from cnncc.machine.program import build_tree
from cnncc.machine.traffic.counts import count_traffic

TEXT = """
    load rows=2 cols=5 set_cols=2 extent1=3 extent3=4
    loop count=3
      load rows=2 cols=5 set_cols=2 edge=1 extent3=7
      loop count=4
        mac rows=2 cols=5 set_cols=2 pixels=2 taps=3 step_range=2 lanes=3 data_reuse=4
      end
      mac op=max rows=1 cols=3 taps=5
      dma words=9
    end
    halt
"""


def one_by_one(program: list[Instruction]) -> Counter[str]:
    """Every instruction of every iteration, every PE."""
    found: Counter[str] = Counter()
    at, loops = 0, list[list[int]]()
    while program[at].spec.name != "halt":
        inst = program[at]
        match inst.spec.name:
            case "loop":
                loops.append([at, inst.number("count")])
            case "end":
                loops[-1][1] -= 1
                at = loops[-1][0] if loops[-1][1] else at
                if not loops[-1][1]:
                    loops.pop()
            case "load" | "mac" as name:
                for col in range(inst.number("cols")):
                    last = (
                        col % inst.number("set_cols") == inst.number("set_cols") - 1 or col == inst.number("cols") - 1
                    )
                    rows, mac = inst.number("rows"), name == "mac"
                    if mac:
                        for _ in range(inst.number("pixels") * inst.number("taps")):
                            found["MACs, max, add"] += rows * inst.number("step_range") * inst.number("lanes")
                        found["n2n"] += 0 if last else rows * inst.number("data_reuse")
                    elif last or not inst.number("edge"):
                        words = 1
                        for i in range(4):
                            words *= inst.number(f"extent{i}")
                        found["loads"] += rows * words
            case _:
                pass
        at += 1
    return found


def test_operations_are_those_of_every_iteration() -> None:
    program = assemble(TEXT)
    assert unfolded(build_tree(program)) == one_by_one(program)
    assert one_by_one(program)["loads"] == 120 + 3 * 2 * 3 * 7


@pytest.mark.usefixtures("short_searches")
def test_the_table_of_a_binary(tmp_path: Path) -> None:
    save(conv_model(), tmp_path / "net.onnx")
    done("compile", tmp_path / "net.onnx", "-o", tmp_path / "net.cnb", "--arch", "spatial-4x4")
    result = CliRunner().invoke(program_size.main, [str(tmp_path / "net.cnb")], catch_exceptions=False)
    assert result.exit_code == 0
    table = result.stdout.splitlines()
    name, *cells = table[1].split()
    numbers = [float(cell.replace(",", "")) for cell in cells]
    binary = load(tmp_path / "net.cnb")
    traffic = count_traffic(build_tree(binary.instructions), binary.arch).whole
    assert name == "net" and numbers[:2] == [binary.program.nbytes, len(binary.instructions)]
    assert numbers[2] == traffic.macs + traffic.max + traffic.add and numbers[4] == traffic.n2n
    assert numbers[5] == pytest.approx(sum(numbers[2:5]) / numbers[0], abs=0.05)
    assert one_by_one(binary.instructions)["loads"] == numbers[3]


def test_what_is_no_binary_is_said(tmp_path: Path) -> None:
    (tmp_path / "net.cnb").write_bytes(b"no")
    result = CliRunner().invoke(program_size.main, [str(tmp_path / "net.cnb")], catch_exceptions=False)
    assert result.exit_code == 1 and "Traceback" not in result.stderr and "net.cnb" in result.stderr
