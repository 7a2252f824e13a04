"""Arrays whose psums have more than 32 bits: the partial sums in the GLB have as many (rule COMMIT-5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import build, done, noise, save
from onnx import helper
from test_estimate import estimated, of_run
from test_estimate import run as counted
from textbook_dataflows import TEXTBOOK

from cnncc.arch.model import PRESETS, Arch, Dram, Glb, Links, Pe
from cnncc.isa.assembly import assemble
from cnncc.machine.program import build_tree
from cnncc.machine.traps import Trap
from cnncc.machine.values.integers import integers_of_words
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.memory import Memory

pytestmark = pytest.mark.usefixtures("short_searches")

DATAFLOWS = ("auto", "os", "ws", "is", "nlr")
node: Any = helper.make_node


@pytest.mark.parametrize(("psums", "operands", "words"), [(16, 16, 2), (32, 16, 2), (33, 16, 3), (48, 16, 3),
                                                        (24, 8, 4), (32, 8, 4), (40, 8, 5), (48, 8, 6)])  # fmt: skip
def test_wide_sums_take_whole_words(psums: int, operands: int, words: int) -> None:
    arch = Arch("a", 1, 1, Pe(4, 4, 4), Glb(64, 1), Dram(1, 1), operand_bits=operands, psum_bits=psums)
    assert (arch.sum_bits, arch.words_per_sum, arch.words_per_param) == (max(32, psums), words, 32 // operands)


def test_wide_sums_of_words() -> None:
    """-5 and 2^40 + 3 by hand."""
    words = np.array([[-5, -1, -1], [3, 0, 256]])
    assert integers_of_words(words, 16).tolist() == [-5, (1 << 40) + 3]
    assert integers_of_words(np.array([[1, 0, 0, 0, -128]]), 8).tolist() == [1 - (1 << 39)]


# -- from ONNX ---------------------------------------------------------------------------------------------------------


def large_sums(folder: Path) -> tuple[Path, Path]:
    """24 x 9 products of values that are nearly all as large as can be, and data for it."""
    x = (1 - noise(1, 2, 24, 6, 5) ** 2 / 50).astype(np.float32)
    weights = (1 - noise(2, 7, 24, 3, 3) ** 2 / 50).astype(np.float32)
    np.savez(folder / "x.npz", x=x)
    model = build([node("Conv", ["x", "w"], ["y"], name="c")], {"x": (1, 24, 6, 5)}, ["y"], {"w": weights})
    return save(model, folder / "net.onnx"), folder / "x.npz"


def array(folder: Path, psum_bits: int) -> Path:
    text = (PRESETS / "spatial-4x4.toml").read_text().replace("psum_bits = 32", f"psum_bits = {psum_bits}")
    path = folder / "wide.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("psum_bits", "precision", "dataflows"),
    [
        # Any two values of two of these.
        (33, "int16", DATAFLOWS[::2]), (40, "int16", DATAFLOWS[1::2]), (48, "int16", DATAFLOWS[::2]),
        (33, "int8", DATAFLOWS[1::2]), (40, "int8", DATAFLOWS[::2]), (48, "int8", DATAFLOWS[1::2]),
    ],
)  # fmt: skip
def test_wide_sums_are_exact_on_every_level(
    psum_bits: int, precision: str, dataflows: Sequence[str], tmp_path: Path
) -> None:
    model, x = large_sums(tmp_path)
    args = ("--arch", array(tmp_path, psum_bits), "--calibrate", x, "--precision", precision)
    outputs: set[bytes] = set()
    for dataflow in dataflows:
        options = (*args, "--dataflow", dataflow)
        assert "DIFFERS" not in done("verify", model, "--input", x, "--images", 2, *options).stdout
        done("compile", model, "-o", tmp_path / "net.cnb", *options)
        done("run", tmp_path / "net.cnb", "--input", x, "--output", tmp_path / "y.npz")
        outputs.add((tmp_path / "y.npz").read_bytes())
        assert of_run(estimated(model, *options)) == counted(tmp_path / "net.cnb"), dataflow
    assert len(outputs) == 1


def test_wide_sums_exceed_32_bits_and_lose_nothing(tmp_path: Path) -> None:
    """By this text the GLB has sums that 32 bits would not hold: the network's results are near float's by 16 bits."""
    model, x = large_sums(tmp_path)
    (tmp_path / "c.toml").write_text(f'[c]\nmapping = "{TEXTBOOK["ws"].mapping}"')
    args = ("--arch", array(tmp_path, 48), "--calibrate", x, "--schedule", tmp_path / "c.toml")
    printed = done("verify", model, "--input", x, *args).stdout
    assert float(printed.split("SQNR ")[1].split(" dB")[0]) > 85 and "psums narrow" not in printed
    assert "commit" in (listing := done("compile", model, "--emit", "isa", *args).stdout) and "partial" in listing


# -- by hand -----------------------------------------------------------------------------------------------------------

ADDED = """
desc id=5
dma dram=5 glb=5 words=8
desc id=0
desc id=1 base=4
desc id=2 base=40
desc id=3 base=20
unit scale=1 clamp_lo=-32768 clamp_hi=32767
desc id=4 base=6
loop count={count}
load kind=ifmap desc=0 open=always close=always
load kind=weight desc=1 open=always close=always
mac clear=always send=always take_weight=always give_weight=always take_ifmap=always give_ifmap=always
commit desc=2 params=4 partial=1 sums=3 fresh=0 final={final}
end
halt
"""


def machine(psum_bits: int) -> Arch:
    return Arch("a", 1, 1, Pe(4, 4, 4), Glb(64, 1), Dram(1, 1), psum_bits=psum_bits, links=Links())


def added(arch: Arch, count: int, final: str) -> Memory:
    """The GLB after `count` products of 32767 * 32767 were added up in it, the last one final or not; scale 2^-24."""
    memory = Memory("dram", 8, 1)
    scale = np.float32(2.0**-24).view(np.int32)
    words = [32767, 0, 0, 0, 32767, 0, int(scale) & 0xFFFF, int(scale) >> 16]
    memory.write(np.arange(8), np.array([words]))
    interpreter = Interpreter(arch, memory, lambda segment, memory: None)
    interpreter.run(build_tree(assemble(ADDED.format(count=count, final=final))))
    return interpreter.glb


def result(psum_bits: int, count: int) -> int:
    """The sum of all the products times 2^-24, after the output unit."""
    return int(added(machine(psum_bits), count, "0").read(np.array([40])).item())


def test_wide_sums_by_hand() -> None:
    """5 * 32767^2 = 5368381445 = 0x1_3FFB_0005: three words, the least first; times 2^-24 it is 319.98."""
    glb = added(machine(48), 5, "never")
    assert glb.read(np.arange(20, 23)).ravel().tolist() == [0x0005, 0x3FFB, 1]
    assert result(48, 5) == 320
    glb = added(machine(48), 3, "never")  # 0xBFFD_0003: words are signed
    assert glb.read(np.arange(20, 23)).ravel().tolist() == [0x0003, 0xBFFD - 0x10000, 0]


def test_wide_sums_trap_beyond_their_bits() -> None:
    """Four such products fit 33 bits, a fifth does not; of 32 bits two fit."""
    assert result(33, 4) == 256 and result(32, 2) == 128
    for bits, count in ((33, 5), (32, 3)):
        with pytest.raises(Trap, match=f"leaves {bits} bits"):
            result(bits, count)
