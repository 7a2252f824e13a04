"""Bugs that are planted are seen: by values against a convolution written out, by cycles against a closed form."""

from __future__ import annotations

from contextlib import suppress
from math import ceil
from typing import Any

import numpy as np
import pytest

from cnncc.arch.model import Arch, Bus, Dram, Glb, OutputUnits, Pe, Sequencer
from cnncc.isa.assembly import assemble
from cnncc.machine.program import build_tree
from cnncc.machine.times import durations
from cnncc.machine.times.durations import Occupancy
from cnncc.machine.times.times import simulate
from cnncc.machine.traps import Trap
from cnncc.machine.values.interpreter import Interpreter
from cnncc.machine.values.memory import Memory, OutOfRange
from cnncc.machine.values.regfile import Half, PsumHalf

ARCH = Arch(
    "row", 1, 3, Pe(32, 12, 4, max_pixels=1), Glb(256, 4), Dram(2, 7), bus=Bus(10, 2), commit=OutputUnits(1, 3),
    sequencer=Sequencer(overlap=False),
)  # fmt: skip
WIDTH, OUT_WIDTH, KERNEL = 5, 3, 3


def program(tiles: int, channels: int) -> str:
    """A convolution of one channel by 3 x 3, a tile being one row of outputs: the thesis' mapping on three PEs."""
    pixels, taps = (tiles + 2) * WIDTH, KERNEL * KERNEL
    words, out = pixels + taps * channels, 128
    row = "cols=3 set_cols=3"
    return f"""
        desc id=0
        dma words={words}
        desc id=1 pitch={WIDTH}
        step id=1 loop=0 by=y*1
        desc id=2 base={pixels}
        desc id=3 base={out} pitch={OUT_WIDTH} plane={OUT_WIDTH * tiles}
        step id=3 loop=0 by=y*1
        unit clamp_lo=-32768 clamp_hi=32767
        loop count={tiles}
          load kind=weight desc=2 {row} open=always close=always extent3={taps * channels} term3=lin*1
          load kind=ifmap desc=1 {row} open=always col=x*1 extent3=3 term3=y*1
          load kind=ifmap desc=1 {row} edge=1 close=always slot=3 x=1 col=x*1 extent2=2 term2=x*1 extent3=3 term3=y*1
          mac {row} taps={taps} step_range={channels} data_reuse=6 n2n_slot=3 ifmap_j=1 weight_j={channels} weight_i=1 \
psum_i=1 take_weight=always give_weight=always take_ifmap=always give_ifmap=always clear=always send=always
          commit desc=3 {row} col=x*1 channels={channels} channel_term=k*1 psum_i=1
        end
        halt
    """


def values_agree(tiles: int, channels: int, text: str = "") -> bool:
    """Whether the program computes the convolution, summed up here pixel by pixel."""
    rng = np.random.default_rng(tiles * 10 + channels)
    image, weights = rng.integers(-9, 9, (tiles + 2, WIDTH)), rng.integers(-9, 9, (channels, KERNEL, KERNEL))
    by_columns = weights.transpose(2, 1, 0).ravel()  # column, row, channel: as the taps run
    words = np.concatenate([image.ravel(), by_columns])
    memory = Memory("dram", words.size, 1)
    memory.write(np.arange(words.size), words[None])
    interpreter = Interpreter(ARCH, memory, lambda segment, dram: None)
    interpreter.block_elements = 0  # iteration by iteration, as the planted bugs know it
    interpreter.run(build_tree(assemble(text or program(tiles, channels))))
    try:
        got = interpreter.glb.read(np.arange(128, 128 + channels * tiles * OUT_WIDTH))[0].reshape(channels, tiles, -1)
    except OutOfRange:  # some were never written
        return False
    wanted = np.zeros_like(got)
    for k, h, w, r, s in np.ndindex(channels, tiles, OUT_WIDTH, KERNEL, KERNEL):
        wanted[k, h, w] += image[h + r, w + s] * weights[k, r, s]
    return np.array_equal(got, wanted)


def cycles_agree(tiles: int, channels: int) -> bool:
    """Whether the program takes what its layer says, everything being done one after the other (TIME-6).

    Each instruction of an engine takes a cycle to decode, its duration and its latency. What the sequencer does alone
    costs nothing while an engine works: all but the first descriptor.
    """
    taps = KERNEL * KERNEL
    dma = 1 + ceil(((tiles + 2) * WIDTH + taps * channels) / 2) + 7
    weights = 1 + max(ceil(taps * channels / 4), ceil(taps * channels / 10), taps * channels) + 2
    ifmap = 1 + max(ceil(3 * 3 / 4), 3 * 1, 3) + 2
    edge = 1 + max(ceil(6 / 4), 1, 6) + 2
    mac = 1 + 3 + taps * channels + 1
    commit = 1 + max(channels, ceil(3 * channels / 4)) + 3
    wanted = 1 + dma + 2 + tiles * (weights + ifmap + edge + mac + commit)
    return simulate(build_tree(assemble(program(tiles, channels))), ARCH).cycles.total == wanted


@pytest.mark.parametrize(("tiles", "channels"), [(1, 1), (1, 2), (2, 1), (2, 2), (5, 3)])
def test_without_a_bug_all_agrees(tiles: int, channels: int) -> None:
    assert values_agree(tiles, channels)
    assert cycles_agree(tiles, channels)


def test_a_psum_half_that_is_not_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tile finds the sums of the one before it. With a single tile nobody sees that."""
    made: list[PsumHalf] = []
    fresh = PsumHalf.fresh

    def stale(*args: Any) -> PsumHalf:
        sums = fresh(*args)
        if made:
            sums.half, sums.bound = made[-1].half.copy(), made[-1].bound
        made.append(sums)
        return sums

    monkeypatch.setattr(PsumHalf, "fresh", stale)
    for tiles, seen in ((1, False), (2, True), (4, True)):
        made.clear()
        assert values_agree(tiles, 2) is not seen, tiles


def test_n2n_that_moves_every_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour's word is then another one by the time that it is used; without interleaving it is the same."""
    shift, channels = Half.shift_west, 0

    def hasty(half: Half, slot: int, reuse: int) -> None:
        shift(half, slot, reuse)
        arrived = [min(step * channels, reuse - 1) for step in range(reuse)]
        for taker in range(half.grid.cols - 1):  # all but the last, whose neighbour is virtual
            words = half.data[..., taker, slot : slot + reuse]
            half.data[..., taker, slot : slot + reuse] = words[..., arrived].copy()

    monkeypatch.setattr(Half, "shift_west", hasty)
    for tiles in (1, 2, 3):
        for channels, seen in ((1, False), (2, True), (3, True)):
            assert values_agree(tiles, channels) is not seen, (tiles, channels)


@pytest.mark.parametrize("name", ["mac_occupancy", "load_occupancy", "commit_occupancy", "dma_occupancy"])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_duration_that_is_off_by_one(monkeypatch: pytest.MonkeyPatch, name: str, off: int) -> None:
    right = getattr(durations, name)

    def wrong(*args: object) -> Occupancy:
        took: Occupancy = right(*args)
        return took._replace(busy=took.busy + off)

    monkeypatch.setattr(durations, name, wrong)
    assert not cycles_agree(1, 2)
    assert not cycles_agree(2, 2)
    assert values_agree(2, 2)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("ifmap_j=1", "ifmap_j=2"), ("weight_i=1", "weight_i=0"), ("n2n_slot=3", "n2n_slot=4"), ("x=1 ", "x=0 "),
        ("data_reuse=6", "data_reuse=5"), ("id=3 loop=0 by=y*1", "id=3 loop=0 by=y*0"), ("clear=always", "clear=0"),
        ("id=1 loop=0 by=y*1", "id=1 loop=0 by=y*2"), ("send=always", "send=0"), ("extent2=2", "extent2=1"),
    ],
)  # fmt: skip
def test_one_wrong_field(right: str, wrong: str) -> None:
    """Of two tiles, each is a trap or a wrong value. Conditions and steps of the loop need the second tile for that."""
    text = program(2, 2)
    assert text.count(right) == 1
    with suppress(Trap):
        assert not values_agree(2, 2, text.replace(right, wrong))
    if "loop=0" in wrong or wrong in ("clear=0", "send=0"):
        assert values_agree(1, 2, program(1, 2).replace(right, wrong))
