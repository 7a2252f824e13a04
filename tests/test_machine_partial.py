"""Partial sums in the GLB (rule COMMIT-5), in blocks, against the plain interpreter without blocks."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from plain_machine import PlainTrap
from test_machine_values import DRAM, SHARED, check_moved, plain_run, random_arch, real_run, words_of

from cnncc.arch.model import Arch, Dram, Glb, Links, Pe
from cnncc.isa.assembly import assemble, disassemble
from cnncc.isa.table import Instruction
from cnncc.machine.program import build_tree
from cnncc.machine.traps import Trap
from cnncc.machine.values.interpreter import BLOCK_ELEMENTS, Interpreter
from cnncc.machine.values.memory import Memory
from cnncc.machine.values.work_limit import PER_INSTRUCTION

ALWAYS = " ".join(
    f"{name}=always" for name in ("clear", "send", "take_weight", "give_weight", "take_ifmap", "give_ifmap")
)
IFMAP, WEIGHT, OUTPUT, SUMS, OTHER, RAW, PARAMS = range(7)
DEPTH = 4


class Nest:
    """Loops around one macro-instruction and a commit of partial sums. A loop moves the place of the sums, or they are
    added up along it, or they begin anew in each of its iterations. Now and then something is not as it should be.
    """

    def __init__(self, seed: int) -> None:
        self.random = r = random.Random(seed)
        self.rows, self.cols = r.randint(1, 2), r.randint(1, 3)
        self.results = r.randint(1, 2)
        self.counts = [r.choice([1, 2, 2, 3, 4]) for _ in range(r.randint(2, DEPTH))]
        begin = r.choice([0, 0, 0, 1])
        self.kinds = ["anew" if loop < begin else r.choice(["moves", "adds"]) for loop in range(len(self.counts))]

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def when(self) -> str:
        adds = [loop for loop, kind in enumerate(self.kinds) if kind == "adds"]
        if self.chance(0.1):
            adds = self.random.choice([adds[1:], adds[:-1], list(range(len(self.counts)))])
        return "never" if self.chance(0.05) else "+".join(map(str, adds)) or "always"

    def setup(self) -> list[str]:
        r = self.random
        lines = [
            "desc id=5",
            "dma dram=5 glb=5 words=700",
            f"unit bias={int(self.chance(0.3))} clamp_lo=-32768 clamp_hi=32767",
            f"desc id={IFMAP} base=20 zero={r.choice([0, 0, 2])}",
            f"desc id={WEIGHT} base=120 wrap={r.choice([0, 0, 9])}",
            f"desc id={OUTPUT} base=500",
            f"desc id={SUMS} base={r.choice([260, 260, 260, 90])} wrap={r.choice([0] * 9 + [8])}",
            f"desc id={OTHER} base=5",
        ]
        inner = self.rows * self.cols * self.results
        sums = results = inner
        for loop, (kind, count) in reversed(list(enumerate(zip(self.kinds, self.counts, strict=True)))):
            lines += [f"step id={desc} loop={loop} by=lin*{r.randint(0, 5)}" for desc in (IFMAP, WEIGHT)]
            if kind != "adds" or self.chance(0.05):
                lines.append(f"step id={OUTPUT} loop={loop} by=lin*{results}")
                results *= count
            if kind == "moves" and not self.chance(0.03):
                lines.append(f"step id={SUMS} loop={loop} by=lin*{sums}")
                sums *= count
            if self.chance(0.3):
                lines.append(f"step id={OTHER} loop={loop} by=lin*{r.randint(0, 2)}")
        return lines

    def body(self) -> list[str]:
        r, taps = self.random, self.random.randint(1, 3)
        place = f"rows={self.rows} cols={self.cols} set_rows={self.rows} set_cols={self.cols}"
        reduce = int(self.rows > 1 and self.chance(0.4))
        row = 0 if reduce else self.cols * self.results
        return [
            f"load kind=weight desc={WEIGHT} open=always close=always {place} row=lin*{r.randint(0, 2)}"
            f" extent2={self.results} term2=lin*5 extent3={taps} term3=lin*1",
            f"load kind=ifmap desc={IFMAP} open=always close=always {place} col=lin*{r.randint(0, 2)}"
            f" extent3={taps} term3=lin*1",
            f"mac rows={self.rows} cols={self.cols} set_cols={self.cols} taps={taps} step_range={self.results}"
            f" ifmap_j=1 weight_j=1 weight_i={taps} psum_i=1 {ALWAYS}",
            f"commit desc={OUTPUT} params={OTHER} {place} row=lin*{row} col=lin*{self.results} reduce={reduce}"
            f" lines={self.results} line_term=lin*1 psum_j=1 partial=1 sums={SUMS} fresh={self.when()}"
            f" final={self.when()}",
        ]

    def write(self) -> list[Instruction]:
        body, lines = self.body(), self.setup()
        fetch = f"dma dram=5 glb={self.random.choice([WEIGHT, IFMAP, OTHER, RAW])} words=9 dram_offset=40"
        for loop, count in enumerate(self.counts):
            lines.append(f"loop count={count}")
            if loop == 0 and self.chance(0.3):
                lines += ["desc id=5 base=40", fetch] if self.chance(0.1) else [fetch]
        lines += body
        ends = len(self.counts)
        if self.chance(0.2):  # another body in the outer loops: the last iterations, peeled
            lines.append("end")
            ends -= 1
            lines += body
        return assemble("\n".join([*lines, *["end"] * ends, "halt"]))


def outcome(seed: int) -> str:
    """Run a nest on both interpreters; traps, blocks, or what runs one by one."""
    nest = Nest(seed)
    r, program = nest.random, nest.write()
    wide = r.choice([False, True])  # values that may leave 32 bits, and 33
    arch = replace(
        random_arch(random.Random(1)),
        rows=2,
        cols=3,
        operand_bits=16,
        psum_bits=r.choice([33, 33, 48]) if wide else 32,
        links=Links(True, True),
    )
    rng, most = np.random.default_rng(seed), 32767 if wide else 30
    dram = rng.integers(0 if wide else -most, most, (r.choice([1, 3]), DRAM))
    dram[:, :20] = 0
    dram[:, :SHARED] = dram[:1, :SHARED]
    elements = r.choice([BLOCK_ELEMENTS, BLOCK_ELEMENTS, 60])
    plain, real = plain_run(program, arch, dram), real_run(program, arch, dram, elements)
    if isinstance(plain, PlainTrap):
        assert isinstance(real, Trap), f"{seed}: instruction {plain.index} traps: {plain}\n{disassemble(program)}"
        assert plain.index == real.index, f"{seed}: {plain}, not {real}\n{disassemble(program)}"
        return f"trap: {plain}"
    assert not isinstance(real, Trap), f"{seed}: {real}\n{disassemble(program)}"
    for image, words in enumerate(words_of(real.glb, len(dram))):
        assert words == plain[image].glb, f"{seed}: image {image}\n{disassemble(program)}"
    check_moved(program, plain[0])
    return "one by one" if real.work.done > plain[0].executed * PER_INSTRUCTION else "blocks"


@pytest.mark.parametrize("part", range(3))
def test_random_nests(part: int) -> None:
    outcomes = Counter(outcome(seed).partition(":")[0] for seed in range(part * 40, part * 40 + 40))
    assert outcomes["blocks"] >= 20 and outcomes["trap"] >= 1, outcomes


def convolution(order: str, sizes: dict[str, int], rows: int, box: bool) -> tuple[list[Instruction], int, int]:
    """3x3 windows with sums in the GLB: PEs' rows are input channels, added up on their way south.

    A PE keeps the window of its channel (`box`), or nothing: each macro-instruction is one multiplication. The biases
    are fetched by the outermost loop. Also the words of ifmap and weights, which are in DRAM one after the other, the
    biases after them, and the first word of the results.
    """
    image, pitch = sizes["h"] * sizes["w"], sizes["w"] + 2
    ifmap = sizes["c"] * (sizes["h"] + 2) * pitch
    words, results = ifmap + sizes["k"] * sizes["c"] * 9, 2 * sizes["k"] * image
    x, w = results + sizes["k"] * image, results + sizes["k"] * image + ifmap
    steps = {
        "c": [(IFMAP, f"k*{rows}"), (WEIGHT, f"lin*{9 * rows}")],
        "k": [(WEIGHT, f"lin*{9 * sizes['c']}"), (OUTPUT, "k*1"), (SUMS, "k*1")],
        "h": [(desc, "y*1") for desc in (IFMAP, OUTPUT, SUMS)],
        "w": [(desc, "x*1") for desc in (IFMAP, OUTPUT, SUMS)],
        "r": [(IFMAP, "y*1"), (WEIGHT, "lin*3")],
        "s": [(IFMAP, "x*1"), (WEIGHT, "lin*1")],
    }
    lines = [
        f"desc id={IFMAP} base={x} pitch={pitch} plane={(sizes['h'] + 2) * pitch}",
        f"desc id={WEIGHT} base={w}",
        f"desc id={OUTPUT} base={results} pitch={sizes['w']} plane={image}",
        f"desc id={SUMS} pitch={sizes['w']} plane={image}",
        f"desc id={RAW}\ndesc id={OTHER} base={x}\ndesc id={PARAMS} base={x + words}",
        f"dma dram={RAW} glb={OTHER} words={words}",
        "unit bias=1 clamp_lo=-32768 clamp_hi=32767",
        f"step id={PARAMS} loop={order.index('k')} by=lin*2",
    ]
    lines += [f"step id={desc} loop={loop} by={by}" for loop, dim in enumerate(order) for desc, by in steps[dim]]
    lines += [f"loop count={sizes[dim] // (rows if dim == 'c' else 1)}" for dim in order]
    if order[0] != "k":  # one that steps with the loop would fetch other words
        lines.insert(-len(order) + 1, f"dma dram={RAW} glb={PARAMS} dram_offset={words} words={2 * sizes['k']}")
    else:
        lines.insert(-len(order), f"dma dram={RAW} glb={PARAMS} dram_offset={words} words={2 * sizes['k']}")
    place, sums = f"rows={rows} set_rows={rows}", "+".join(str(order.index(dim)) for dim in order if dim in "crs")
    window, whole = ("extent2=3 term2=y*1 extent3=3 term3=x*1", "extent3=9 term3=lin*1") if box else ("", "")
    lines += [
        f"load kind=weight desc={WEIGHT} open=always close=always {place} row=lin*9 {whole}",
        f"load kind=ifmap desc={IFMAP} open=always close=always {place} row=k*1 {window}",
        f"mac rows={rows} {'taps=9' if box else ''} ifmap_j=1 weight_j=1 {ALWAYS}",
        f"commit desc={OUTPUT} {place} params={PARAMS} reduce=1 partial=1 sums={SUMS} fresh={sums} final={sums}",
    ]
    return assemble("\n".join([*lines, *["end"] * len(order), "halt"])), words, results


@pytest.mark.parametrize(
    ("order", "sizes", "rows", "box"),
    [
        ("ckhw", {"c": 16, "k": 16, "h": 32, "w": 32}, 4, True),
        ("hckw", {"c": 16, "k": 16, "h": 32, "w": 32}, 4, True),
        ("crskhw", {"c": 16, "k": 16, "h": 21, "w": 21, "r": 3, "s": 3}, 1, False),
        ("khwcrs", {"c": 16, "k": 16, "h": 21, "w": 21, "r": 3, "s": 3}, 1, False),
    ],
)
def test_convolutions_are_blocks(order: str, sizes: dict[str, int], rows: int, box: bool) -> None:
    """65,536 macro-instructions of a window a PE, and a million of one multiplication: as few steps as loops."""
    program, words, results = convolution(order, sizes, rows, box)
    arch = Arch("ws", rows, 1, Pe(16, 16, 4), Glb(1 << 18, 4), Dram(2, 3), operand_bits=16, links=Links(south=True))
    data, bias = np.random.default_rng(3).integers(-9, 9, words), np.arange(sizes["k"])
    dram = Memory("dram", words + 2 * bias.size, 1)
    dram.write(np.arange(dram.words), np.concatenate([data, np.stack([bias, 0 * bias], axis=1).ravel()])[None])
    interpreter = Interpreter(arch, dram, lambda segment, memory: None)
    interpreter.run(build_tree(program))
    assert interpreter.work.done < 1000 * PER_INSTRUCTION  # of which the words themselves are most
    c, k, h, w = (sizes[dim] for dim in "ckhw")
    x, weights = np.split(data, [c * (h + 2) * (w + 2)])
    x, weights = x.reshape(c, h + 2, w + 2), weights.reshape(k, c, 3, 3)
    expected = bias.reshape(-1, 1, 1) + sum(
        np.einsum("kc,chw->khw", weights[:, :, r, s], x[:, r : r + h, s : s + w]) for r in range(3) for s in range(3)
    )
    found = interpreter.glb.read(np.arange(results, results + k * h * w))[0].reshape(k, h, w)
    np.testing.assert_array_equal(found, expected)
