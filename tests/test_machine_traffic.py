"""Traffic of programs: against an enumeration of every word of every iteration, and by hand."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from trap_cases import TRAFFIC

from cnncc.arch.model import Arch, Bus, Dram, Glb, Pe, load_arch
from cnncc.isa.assembly import assemble
from cnncc.isa.table import Instruction
from cnncc.machine.program import build_tree
from cnncc.machine.stats import stats
from cnncc.machine.times.durations import load_occupancy
from cnncc.machine.traffic.counts import Traffic, count_traffic
from cnncc.machine.traffic.in_bounds import BoundedIndex, count_inside
from cnncc.machine.traps import Trap
from cnncc.model.energy import with_energy
from cnncc.util.nested import leaves

ARCH = Arch("small", 5, 6, Pe(512, 512, 64), Glb(4096, 4), Dram(2, 10), bus=Bus(4, 2))


# Every instruction of every iteration, every PE, every word: no products, no closed forms.


class Enumerate:
    def __init__(self, program: list[Instruction], arch: Arch) -> None:
        self.program, self.arch = program, arch
        self.desc: dict[int, tuple[int, int, dict[int, tuple[str, int]]]] = {i: (0, 0, {}) for i in range(16)}
        self.unit = (0, 0, 0)
        self.count = Traffic()
        self.counts: dict[int, int] = {}
        self.run(0, [])

    def holds(self, inst: Instruction, name: str, loops: list[int], last: bool) -> bool:
        when = inst.when(name)
        ends = [self.counts[i] - 1 if last else 0 for i in range(len(loops))]
        return when is not None and all(loops[i] == ends[i] for i in when if i < len(loops))

    def run(self, at: int, loops: list[int]) -> int:
        """Runs from `at` to the end of the loop's body; returns the place of its end."""
        while at < len(self.program) and self.program[at].spec.name != "end":
            inst = self.program[at]
            if inst.spec.name == "loop":
                self.counts[len(loops)] = inst.number("count")
                for i in range(inst.number("count")):
                    last = self.run(at + 1, [*loops, i])
                at = last
            else:
                self.step(inst, loops)
            at += 1
        return at

    def step(self, inst: Instruction, loops: list[int]) -> None:
        count = self.count
        match inst.spec.name:
            case "desc":
                self.desc[inst.number("id")] = (inst.number("height"), inst.number("width"), {})
            case "step":
                if (
                    inst.term("by").axis != "lin"
                ):  # a linear step is beside the other (DESC-1), and decides on no padding
                    self.desc[inst.number("id")][2][inst.number("loop")] = inst.term("by")
            case "unit":
                self.unit = (inst.number("bias"), inst.number("scale"), inst.number("residual"))
            case "load":
                self.load(inst, loops)
            case "mac":
                self.mac(inst)
            case "commit":
                rows = inst.number("rows")
                rows = -(-rows // inst.number("set_rows")) if inst.number("reduce") else rows
                results = rows * inst.number("cols")
                for extent in ("pixels", "lines", "channels"):
                    results *= inst.number(extent)
                if inst.text("source") == "glb":
                    count.glb_read_operand += results
                else:
                    self.psums(inst)
                if inst.number("partial"):
                    words = results * 32 // self.arch.operand_bits
                    count.glb_read_sums += words * (not self.holds(inst, "fresh", loops, last=False))
                    if not self.holds(inst, "final", loops, last=True):
                        count.glb_write_sums += words
                        return
                count.glb_write_results += results
                count.glb_read_residual += results * self.unit[2]
                count.glb_read_params += len(self.channels(inst)) * sum(self.unit[:2]) * 32 // self.arch.operand_bits
            case "dma":
                words = sum(self.copied(inst, loops))
                into = inst.text("direction") == "in"
                count.dram_read += words * into
                count.glb_write_dma += words * into
                count.glb_read_dma += words * (not into)
                count.dram_write += words * (not into)

    def psums(self, inst: Instruction) -> None:
        """Each PE's psums; with `reduce` each row of a set but its last passes what it has to the south."""
        pattern = [range(inst.number(extent)) for extent in ("pixels", "lines", "channels")]
        for row, *_ in itertools.product(range(inst.number("rows")), range(inst.number("cols")), *pattern):
            is_south = (row + 1) % inst.number("set_rows") == 0 or row + 1 == inst.number("rows")
            self.count.rf_psum_read += 1
            self.count.psum_link += bool(inst.number("reduce")) and not is_south

    def load(self, inst: Instruction, loops: list[int]) -> None:
        height, width, steps = self.desc[inst.number("desc")]
        set_rows, set_cols = inst.number("set_rows"), inst.number("set_cols")
        cols = range(inst.number("cols"))
        if inst.number("edge"):
            cols = [c for c in cols if (c + 1) % set_cols == 0 or c + 1 == len(cols)]
        met = set()
        for r, c in itertools.product(range(inst.number("rows")), cols):
            pe = {"row": r % set_rows, "row_set": r // set_rows, "col": c % set_cols, "col_set": c // set_cols}
            terms = [(name, pe[name]) for name in pe]
            position = dict.fromkeys(("lin", "k", "y", "x"), 0)
            for name, index in terms:
                position[inst.term(name).axis] += inst.term(name).step * index
            kind, slots = inst.text("kind"), 0
            setattr(self.count, f"rf_{kind}_write", getattr(self.count, f"rf_{kind}_write") + self.words(inst))
            if tuple(position.values()) in met:  # the same words: multicast
                continue
            met.add(tuple(position.values()))
            for place in itertools.product(*(range(inst.number(f"extent{i}")) for i in range(4))):
                at = {"y": inst.number("y"), "x": inst.number("x"), "lin": 0, "k": 0}
                added = [(steps[i], loop) for i, loop in enumerate(loops) if i in steps]
                added += [(inst.term(name), index) for name, index in terms]
                added += [(inst.term(f"term{i}"), index) for i, index in enumerate(place)]
                for (axis, step), index in added:
                    at[axis] += step * index
                inside = height == 0 or (0 <= at["y"] < height and 0 <= at["x"] < width)
                setattr(self.count, f"bus_{kind}", getattr(self.count, f"bus_{kind}") + 1)
                setattr(self.count, f"glb_read_{kind}", getattr(self.count, f"glb_read_{kind}") + inside)
                slots += 1
            peak = f"{kind}_peak"
            if inst.number("edge") and kind == "ifmap" and self.arch.pe.pong_words:
                continue
            setattr(self.count, peak, max(getattr(self.count, peak), inst.number("slot") + slots))

    @staticmethod
    def words(inst: Instruction) -> int:
        return len(list(itertools.product(*(range(inst.number(f"extent{i}")) for i in range(4)))))

    def copied(self, inst: Instruction, loops: list[int]) -> Iterator[bool]:
        """Of each word of a DMA transfer, whether it lies inside the bounds of the tensor in DRAM."""
        height, width, steps = self.desc[inst.number("dram")]
        for _, row, word in itertools.product(*(range(inst.number(n)) for n in ("count", "rows", "words"))):
            at = {"y": inst.number("y") + row, "x": inst.number("x") + word, "lin": 0, "k": 0}
            for register, (axis, step) in steps.items():
                if register < len(loops):
                    at[axis] += step * loops[register]
            yield height == 0 or (0 <= at["y"] < height and 0 <= at["x"] < width)

    def mac(self, inst: Instruction) -> None:
        op = {"mac": "macs", "max": "max", "add": "add"}[inst.text("op")]
        counters = list(itertools.product(*(range(inst.number(n)) for n in ("pixels", "taps", "step_range"))))
        reuse = inst.number("data_reuse")
        for r, c in itertools.product(range(self.arch.rows), range(self.arch.cols)):
            if r >= inst.number("rows") or c >= inst.number("cols"):
                self.count.idle_pe_cycles += self.arch.pe.start_cycles + len(counters) + self.arch.pe.finish_cycles
                continue
            for _ in counters:  # in each lane a word, maybe a weight; a psum there and back
                for _ in range(inst.number("lanes")):
                    setattr(self.count, op, getattr(self.count, op) + 1)
                    self.count.rf_ifmap_read += 1
                    self.count.rf_weight_read += op == "macs"
                sums = inst.number("lanes") if inst.number("psum_l") else 1
                self.count.rf_psum_read += sums
                self.count.rf_psum_write += sums
            if (c + 1) % inst.number("set_cols") and c + 1 < inst.number("cols"):
                self.count.n2n += reuse
                self.count.rf_ifmap_write += reuse
        slots = [inst.number("psum_slot") + sum(i * inst.number(f"psum_{n}") for i, n in zip(at, "zji", strict=True))
                 + inst.number("psum_l") * (inst.number("lanes") - 1) for at in counters]  # fmt: skip
        self.count.psum_peak = max(self.count.psum_peak, max(slots) + 1)
        if reuse:
            slot = inst.number("n2n_slot")
            turns = range(slot, min(2 * slot, slot + reuse) if self.arch.pe.pong_words else slot + reuse)
            self.count.ifmap_peak = max(self.count.ifmap_peak, turns.stop)

    def channels(self, inst: Instruction) -> set[tuple[int, ...]]:
        """The distinct combinations of indices that move a result to another channel."""
        sizes = [range(inst.number(n)) for n in ("rows", "cols", "pixels", "lines", "channels")]
        set_rows = inst.number("set_rows")
        if inst.number("reduce"):
            sizes[0], set_rows = range(-(-len(sizes[0]) // set_rows)), 1
        found = set()
        for r, c, pixel, line, channel in itertools.product(*sizes):
            at = {"row": r % set_rows, "row_set": r // set_rows,
                  "col": c % inst.number("set_cols"), "col_set": c // inst.number("set_cols"),
                  "pixel_term": pixel, "line_term": line, "channel_term": channel}  # fmt: skip
            found.add(tuple(i if inst.term(n).axis == "k" and inst.term(n).step else 0 for n, i in at.items()))
        return found


class Writer:
    """A random program for its traffic alone: no tokens."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.depth = 0

    def pick(self, *choices: object) -> object:
        return self.random.choice(choices)

    def term(self) -> str:
        return f"{self.pick('y', 'x', 'y', 'x', 'lin', 'k')}*{self.pick(-2, -1, 0, 0, 1, 2, 3)}"

    def place(self) -> str:
        sizes = {name: self.random.randint(1, most) for name, most in
                 (("rows", 5), ("cols", 6), ("set_rows", 4), ("set_cols", 4))}  # fmt: skip
        terms = {name: self.term() for name in ("row", "row_set", "col", "col_set")}
        return " ".join(f"{name}={value}" for name, value in (sizes | terms).items())

    def line(self) -> str:
        rng = self.random
        match self.pick("load", "load", "load", "desc", "step", "unit", "commit", "mac", "dma"):
            case "load":
                extents = " ".join(f"extent{i}={rng.randint(1, 3)} term{i}={self.term()}" for i in range(4))
                start = f"y={rng.randint(-4, 3)} x={rng.randint(-4, 3)} offset={rng.randint(0, 9)}"
                return (f"load kind={self.pick('weight', 'ifmap')} desc={self.pick(0, 1)} slot={rng.randint(0, 9)}"
                        f" edge={self.pick(0, 0, 1)} {self.place()} {extents} {start}")  # fmt: skip
            case "desc":
                ring = f"ring_y={self.pick(0, 2)} ring_x={self.pick(0, 3)}"
                return f"desc id={self.pick(0, 1)} height={self.pick(0, 3, 7)} width={rng.randint(1, 7)} {ring}"
            case "step":
                return f"step id={self.pick(0, 1)} loop={rng.randint(0, 3)} by={self.term()}"
            case "unit":
                return f"unit bias={self.pick(0, 1)} scale={self.pick(0, 1)} residual={self.pick(0, 1)}"
            case "commit":
                terms = f"pixel_term={self.term()} line_term={self.term()} channel_term={self.term()}"
                sizes = f"pixels={rng.randint(1, 3)} lines={rng.randint(1, 3)} channels={rng.randint(1, 3)}"
                whens = ("always", "never", "0", "1", "0+1", "2")
                sums = f"reduce={self.pick(0, 1)} partial={self.pick(0, 1, 1)}"
                sums += f" fresh={self.pick(*whens)} final={self.pick(*whens)}"
                return f"commit source={self.pick('psum', 'glb')} {self.place()} {sizes} {terms} {sums}"
            case "mac":
                steps = " ".join(f"psum_{i}={rng.randint(0, 3)}" for i in "zji")
                return (f"mac op={self.pick('mac', 'max', 'add')} rows={rng.randint(1, 5)} cols={rng.randint(1, 6)}"
                        f" set_cols={rng.randint(1, 4)} pixels={rng.randint(1, 3)} taps={rng.randint(1, 3)}"
                        f" lanes={self.pick(1, 1, 2, 5)} psum_l={self.pick(0, 0, 1)}"
                        f" step_range={rng.randint(1, 3)} data_reuse={rng.randint(0, 4)} n2n_slot={rng.randint(0, 30)}"
                        f" psum_slot={rng.randint(0, 5)} {steps}")  # fmt: skip
            case _:
                sizes = f"words={rng.randint(1, 9)} rows={rng.randint(1, 4)} count={rng.randint(1, 4)}"
                start = f"y={rng.randint(-4, 3)} x={rng.randint(-4, 3)}"
                return f"dma direction={self.pick('in', 'out')} dram={self.pick(0, 1)} {sizes} {start}"

    def body(self, levels: int) -> list[str]:
        lines = [self.line() for _ in range(self.random.randint(1, 4))]
        if levels:
            lines += [f"loop count={self.random.randint(1, 4)}", *self.body(levels - 1), "end"]
        return lines + [self.line() for _ in range(self.random.randint(0, 2))]


@pytest.mark.parametrize("block", range(4))
def test_traffic_equals_enumeration(block: int) -> None:
    for seed in range(block * 60, block * 60 + 60):
        writer = Writer(seed)
        lines = [
            f"desc id={i} height={writer.random.randint(1, 9)} width={writer.random.randint(1, 9)}" for i in (0, 1)
        ]
        text = "\n".join([*lines, *writer.body(writer.random.randint(0, 3)), "halt"])
        program = assemble(text)
        arch = dataclasses.replace(ARCH, pe=dataclasses.replace(ARCH.pe, pong_words=seed % 2))
        assert count_traffic(build_tree(program), arch).whole == Enumerate(program, arch).count, (seed, text)


def test_padding_by_hand() -> None:
    """A 3x3 window at (-1, -1) on a 4x5 image, moved by 2 three times (y = -1, 1, 3) and by 3 twice (x = -1, 2): rows
    inside 2, 3, 1 = 6, columns 2, 3 = 5: 30 of 54 words for each of 2 channels; the four PEs share them.
    """
    text = (
        "desc id=2 height=4 width=5\nstep id=2 loop=0 by=y*2\nstep id=2 loop=1 by=x*3\nloop count=3\nloop count=2\n"
        "load kind=ifmap desc=2 rows=2 cols=2 y=-1 x=-1 extent1=2 term1=k*1 extent2=3 term2=y*1 extent3=3 term3=x*1\n"
        "end\nend\nhalt"
    )
    traffic = count_traffic(build_tree(assemble(text)), ARCH).whole
    assert (traffic.bus, traffic.glb_read, traffic.ifmap_peak) == (108, 60, 18)


def test_diagonals_by_hand() -> None:
    """Row stationary on 3 x 4 PEs, 6 words each: PE r,c takes row r + c of an image, 6 distinct ones, row 5 outside of
    it. Its weights are row r, the same for all columns. Sets that overlap share, too: words 0, 1 and 1, 2 are 3.
    """
    start = "desc id=2 height=5 width=9 pitch=9\n"
    cases = [
        ("row=y*1 col=y*1 set_rows=3 set_cols=4", 6, 5, 4),
        ("row=y*1 set_rows=3", 3, 3, 1),
        ("row=y*1 col=y*-1 set_rows=3 set_cols=4 y=3", 6, 5, 4),
        ("row=y*1 col=x*1 set_rows=3 set_cols=4 y=-1", 12, 8, 4),
        ("col=lin*1 col_set=lin*1 set_cols=2", 3, 3, 3),
        ("row=lin*1 row_set=lin*1 col=lin*1 col_set=lin*2 set_rows=2 set_cols=2", 5, 5, 4),
    ]
    for terms, positions, inside, in_row in cases:
        text = f"{start}load kind=ifmap desc=2 rows=3 cols=4 extent3=6 term3=lin*1 {terms}\nhalt"
        traffic = count_traffic(build_tree(assemble(text)), ARCH).whole
        assert (traffic.bus, traffic.glb_read) == (6 * positions, 6 * inside), terms
        for glb, burst in ((1, 10), (2, 10), (100, 10), (100, 4), (100, 100)):
            arch = dataclasses.replace(ARCH, glb=Glb(4096, glb), bus=Bus(burst_words=burst))
            busy = max(-(-6 * positions // glb), in_row * -(-6 // burst), 6)
            assert load_occupancy(assemble(text)[1], arch).busy == busy, (terms, glb, burst)


def test_rectangles_by_hand() -> None:
    """5 rows of 4 words from (-2, -1) on, in an image of 4x5, moved by 2 rows three times (rows -2 to 2, 0 to 4, 2 to
    6) and by 3 columns twice (columns -1 to 2, 2 to 5): 3 + 4 + 2 = 9 rows, 3 + 3 = 6 columns, 2 channels. The time is
    that of all of it, ceil(40 / 2) cycles each.

    In a tall image every even row is copied by three steps, but row 0 by two, every odd row by two.
    """
    text = (
        "desc id=2 height=4 width=5\nstep id=2 loop=0 by=y*2\nstep id=2 loop=1 by=x*3\nloop count=3\nloop count=2\n"
        "dma dram=2 count=2 rows=5 words=4 y=-2 x=-1\nend\nend\nhalt"
    )
    found = stats(assemble(text), ARCH)
    assert found["words"]["dram_read"] == found["words"]["glb_write"] == 108
    assert found["cycles"]["dma"] == 6 * 20
    tall = text.replace("count=3", "count=1000000").replace("height=4", "height=65535")
    rows = 3 * 32768 - 1 + 2 * 32767
    assert count_traffic(build_tree(assemble(tall)), ARCH).whole.dram_read == 2 * 6 * rows


def test_counting_inside_long_loops() -> None:
    assert count_inside((0,), 100, [BoundedIndex(0, 1 << 24, 3), BoundedIndex(0, 5, 0)]) == 34 * 5
    assert count_inside(
        (-5,), 100, [BoundedIndex(0, 1000, 100), BoundedIndex(0, 100, 1), BoundedIndex(3, 7, -1)]
    ) == sum(0 <= -5 + a * 100 + b - c < 100 for a in range(1000) for b in range(100) for c in range(3, 7))


@pytest.mark.parametrize(("text", "index", "says"), TRAFFIC)
def test_traps(text: str, index: int, says: str) -> None:
    with pytest.raises(Trap, match=says) as caught:
        count_traffic(build_tree(assemble(text)), ARCH)
    assert caught.value.index == index


def test_stats_of_a_program_and_its_layers() -> None:
    text = (
        "desc id=1 height=6 width=6\nload kind=weight rows=2 cols=3 extent3=6 open=always close=always\n"
        "load kind=ifmap desc=1 rows=2 cols=3 set_rows=2 set_cols=3 row=y*1 col=x*1 x=-1 extent3=2 term3=x*1"
        " open=always close=always\n"
        "mac rows=2 cols=3 pixels=2 taps=3 data_reuse=1 set_cols=3 n2n_slot=2 psum_z=1 clear=always send=always"
        " take_weight=always give_weight=always take_ifmap=always give_ifmap=always\n"
        "commit rows=2 cols=3 pixels=2\nsync dma=1 load=1 array=1 commit=1\n"
    )
    found = stats(assemble(text + text + "dma words=5 direction=out\nhalt"), ARCH, [("a", 0), ("b", 6), ("out", 12)])
    names = {"cycles", "macs", "max", "add", "idle_pe_cycles", "utilisation", "words", "operands", "rf", "rf_peak"}
    assert set(found) == names | {"layers"}
    a, b, out = (found["layers"][label] for label in ("a", "b", "out"))
    assert a == b
    # 12 + 6 delivered: the load of 6 goes to all, the other has 6 PEs of 2 words, 2 rows of which lie at x = -1.
    assert a["words"] == {"dram_read": 0, "dram_write": 0, "glb_read": 6 + 10, "glb_write": 12, "bus": 18, "n2n": 4,
                          "psum_link": 0}  # fmt: skip
    assert a["operands"] == {
        "glb_read": {"weight": 6, "ifmap": 10, "params": 0, "residual": 0, "operand": 0, "sums": 0, "dma": 0},
        "glb_write": {"results": 12, "sums": 0, "dma": 0}, "bus": {"weight": 6, "ifmap": 12},
    }  # fmt: skip
    # Each of 6 PEs takes 6 weights, 2 words and, but for 2 of them, a neighbour's; 36 steps; 12 psums are committed.
    assert a["rf"] == {
        "weight": {"read": 36, "write": 36}, "ifmap": {"read": 36, "write": 12 + 4}, "psum": {"read": 48, "write": 36}
    }  # fmt: skip
    assert (a["macs"], a["idle_pe_cycles"], a["rf_peak"]) == (36, 24 * 10, {"weight": 6, "ifmap": 3, "psum": 2})
    assert out["words"]["dram_write"] == out["words"]["glb_read"] == 5
    assert found["macs"] == 72
    assert found["cycles"]["total"] == sum(layer["cycles"]["total"] for layer in found["layers"].values())
    assert found["utilisation"] == {"compute": 72 / (20 * 30), "total": 72 / (found["cycles"]["total"] * 30)}
    assert out["utilisation"] == {"compute": 0.0, "total": 0.0}


def test_stats_are_as_described() -> None:
    text = (Path(__file__).parents[1] / "docs" / "stats.md").read_text()
    described = re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)
    found = with_energy(stats(assemble("desc id=1\nsync dma=1\nhalt"), ARCH, [("a", 0)]), ARCH.energy)
    assert [name for name, _ in leaves(found["layers"].pop("a"))] == [name for name, _ in leaves(found)]
    assert described == [*(name for name, _ in leaves(found)), "layers"]


def test_stats_of_every_preset_run() -> None:
    for name in ("spatial-4x4", "spatial-8x8", "spatial-16x16"):
        arch = load_arch(name)
        program = assemble(f"mac rows={arch.rows} cols={arch.cols} pixels=4 taps=9 clear=always send=always\nhalt")
        assert stats(program, arch)["idle_pe_cycles"] == 0
        assert stats(program, dataclasses.replace(arch, rows=arch.rows + 1))["idle_pe_cycles"] == arch.cols * 40
