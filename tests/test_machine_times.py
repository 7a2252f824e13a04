"""Times of programs: against a plain stepping simulator, by hand, and every trap."""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction
from math import ceil

import pytest
from examples import examples
from trap_cases import TIMES

from cnncc.arch.model import Arch, Bus, Dram, Glb, OutputUnits, Pe, Sequencer
from cnncc.isa.assembly import assemble, disassemble
from cnncc.isa.table import Instruction
from cnncc.machine.program import Leaf, LoopNode, build_tree
from cnncc.machine.times.paths import CAUSES, WORK
from cnncc.machine.times.times import Cycles, Times, simulate
from cnncc.machine.traps import Trap

ARCH = Arch(
    "small",
    4,
    4,
    Pe(32, 32, 16),
    Glb(4096, 4),
    Dram(2, 10),
    bus=Bus(4, 2),
    commit=OutputUnits(1, 3),
    sequencer=Sequencer(2),
)


# A plain simulator: every instruction of every iteration, absolute times, no state compared, nothing remembered. Each
# idle interval is walked back, event by event.


@dataclasses.dataclass(eq=False)
class Event:
    """Something that took time: pieces (cause, cycles) from `start` on, of which the last is a latency.

    by: what it had to wait for, an event and what of it (its start, its end, or all of it); via: the token of that.
    """

    start: int
    pieces: tuple[tuple[str, int], ...]
    by: tuple[Event, str] | None
    via: object = None
    engine: str = ""

    def __post_init__(self) -> None:
        done = self.start + sum(cycles for _, cycles in self.pieces)
        self.times = {"start": self.start, "end": done - self.pieces[-1][1], "done": done}

    def at(self, point: str) -> int:
        return self.times[point]


Point = tuple[Event, str]


def at(point: Point) -> int:
    return point[0].times[point[1]]


def latest(*points: Point) -> Point:
    """The first of those that are the latest."""
    return max(points, key=at)


class Plain:
    def __init__(
        self, program: list[Instruction], arch: Arch, layers: list[tuple[str, int]], constant_words: int = 0
    ) -> None:
        self.program, self.arch, self.constant_words = program, arch, constant_words
        self.labels = [
            next((label for label, first in reversed(layers) if first <= i), layers[0][0] if layers else "")
            for i in range(len(program))
        ]
        self.first: Point = Event(0, (("", 0),), None), "start"
        self.when: Point = self.first
        self.starts = {engine: [] for engine in ("dma", "load", "array", "commit")}
        self.end = dict.fromkeys(self.starts, self.first)
        self.done = dict.fromkeys(self.starts, self.first)
        pe = arch.pe
        self.tokens = {f"{f} {s}": [] for f in ("weight", "ifmap", "psum") for s in ("free", "full")}
        for file, halves in (("weight", pe.weight_halves), ("ifmap", pe.ifmap_halves), ("psum", pe.psum_halves)):
            self.tokens[f"{file} free"] = [self.first] * halves
        self.tokens |= {s: [] for s in range(1, 16)}
        self.mark, self.last = 0, self.first[0]  # when the last macro-instruction or wait ended, and which it was
        self.bases: dict[int, int] = {}
        self.unit = (0, 0, 0)
        self.counts: dict[tuple[str, str], int] = {}
        self.durations: dict[tuple[object, ...], tuple[list[tuple[str, int]], tuple[str, int]]] = {}

    def count(self, at: int, name: str, cycles: int) -> None:
        for label in {self.labels[at], "*"}:
            self.counts[label, name] = self.counts.get((label, name), 0) + cycles

    @property
    def now(self) -> int:
        return at(self.when)

    def spend(self, cycles: int, *points: Point) -> None:
        """The sequencer waits for some points, then spends cycles."""
        by = latest(self.when, *points)
        self.when = Event(at(by), (("sequencer", cycles), ("", 0)), by), "end"

    def charge(self, number: int, end: Point, ended_by: object) -> None:
        """Walk an idle interval back from its end to the mark (CAUSE-1 to CAUSE-6)."""
        cycles: dict[str, int] = {}
        event, point = end
        while event.at(point) > self.mark:
            until = event.start
            for cause, count in event.pieces[: {"start": 0, "end": -1, "done": len(event.pieces)}[point]]:
                more = min(count, until + count - self.mark)
                cycles[cause] = cycles.get(cause, 0) + max(0, more)
                until += count
            if event.start <= self.mark and not (event.start == self.mark and event.by and event.by[0] is self.last):
                break
            assert event.by is not None
            (event, point), via = event.by, event.via
            if event is self.last and event.engine == "array" and isinstance(via, str):
                file = via.split()[0]
                if via in ("weight free", "ifmap free") or (via == "psum full" and ended_by == "psum free"):
                    cycles = {cause: 0 if cause in WORK else count for cause, count in cycles.items()} | {
                        f"{file}_file": sum(cycles.get(cause, 0) for cause in WORK)
                    }
        behind_wait = self.last.engine != "array"
        if behind_wait != (ended_by == "wait"):
            taken = [*WORK, "sequencer", *(f"{file}_file" for file in ("weight", "ifmap", "psum"))]
            rest = {cause: count for cause, count in cycles.items() if cause not in taken}
            cycles = rest | {"fill" if behind_wait else "drain": sum(cycles.values()) - sum(rest.values())}
        assert sum(cycles.values()) == at(end) - self.mark
        for cause, count in cycles.items():
            self.count(number, cause, count)

    def run(self) -> None:
        stack: list[list[int]] = []  # start, iteration, count
        at = 0
        while True:
            inst = self.program[at]
            name, before = inst.spec.name, self.now
            if name == "loop":
                stack.append([at, 0, inst.number("count")])
                self.spend(1)
            elif name == "end":
                stack[-1][1] += 1
                if stack[-1][1] < stack[-1][2]:
                    at = stack[-1][0]
                else:
                    stack.pop()
            else:
                self.step(at, inst, [i == 0 for _, i, _ in stack], [i == n - 1 for _, i, n in stack])
            self.count(at, "total", self.now - before)
            if name == "halt":
                return
            at += 1

    def step(self, number: int, inst: Instruction, firsts: list[bool], lasts: list[bool]) -> None:
        name = inst.spec.name

        def holds(field: str, flags: list[bool]) -> bool:
            when = inst.when(field)
            return when is not None and all(flags[loop] for loop in when if loop < len(flags))

        if name in ("sync", "host", "halt"):
            named = [e for e in self.done if name != "sync" or inst.number(e)]
            self.spend(int(name != "halt"), *(self.done[e] for e in named))
            if "array" in named:
                self.charge(number, self.when, "wait")
                self.mark, self.last = self.now, self.when[0]
            return
        if inst.spec.engine == "sequencer":
            self.spend(1)
            if name == "desc":
                self.bases[inst.number("id")] = inst.number("base")
            if name == "signal":
                self.tokens[inst.number("semaphore")] += [self.when] * inst.number("count")
            return
        engine = inst.spec.engine
        depth = self.arch.sequencer.queue_depth
        queued = self.starts[engine][-depth:] if len(self.starts[engine]) >= depth else [self.first]
        self.spend(1, *(() if self.arch.sequencer.overlap else self.done.values()), queued[0])
        takes, gives = [], []
        if name == "load":
            takes = [f"{inst.text('kind')} free"] * holds("open", firsts)
            gives = [f"{inst.text('kind')} full"] * holds("close", lasts)
        if name == "mac":
            mac = inst.text("op") == "mac"  # max and add have no weights
            takes += ["weight full"] * (mac and holds("take_weight", firsts)) + ["ifmap full"] * holds(
                "take_ifmap", firsts
            )
            takes += ["psum free"] * holds("clear", firsts)
            gives += ["weight free"] * (mac and holds("give_weight", lasts)) + ["ifmap free"] * holds(
                "give_ifmap", lasts
            )
            gives += ["psum full"] * holds("send", lasts)
        if name == "commit" and inst.text("source") == "psum":
            takes, gives = ["psum full"], ["psum free"]
        if name in ("dma", "load", "commit"):
            takes += [inst.number("take")] * (inst.number("take") > 0 and holds("take_when", firsts))
            gives += [inst.number("give")] * (inst.number("give") > 0 and holds("give_when", lasts))
        if name == "unit":
            self.unit = (inst.number("bias"), inst.number("scale"), inst.number("residual"))
        arrived = [(self.tokens[token].pop(0), token) for token in takes]
        by = latest(*(point for point, _ in arrived), self.end[engine], self.when)
        via = next((token for point, token in arrived if point is by), None)
        key = (number, self.unit, self.bases.get(inst.number("dram")) if name == "dma" else None)
        if key not in self.durations:
            self.durations[key] = self.busy(inst)
        busy, late = self.durations[key]
        event = Event(at(by), (*busy, late), by, via, engine)
        self.starts[engine].append((event, "start"))
        self.end[engine], self.done[engine] = (event, "end"), latest(self.done[engine], (event, "done"))
        for token in gives:
            self.tokens[token].append((event, "done"))
        if engine == "array":
            self.charge(number, (event, "start"), via)
            self.mark, self.last = event.at("end"), event
        self.count(number, engine, event.at("end") - event.start)

    def busy(self, inst: Instruction) -> tuple[list[tuple[str, int]], tuple[str, int]]:
        """What keeps an engine busy, and the latency, each with its cause."""
        arch = self.arch
        if inst.spec.name in ("unit", "table"):
            return [("output_units", 1)], ("", 0)
        if inst.spec.name == "dma":
            words = inst.number("count") * inst.number("rows") * inst.number("words")
            what = "weights" if self.bases.get(inst.number("dram"), 0) < self.constant_words else "activations"
            what = what if inst.text("direction") == "in" else "results"
            busy = ceil(words / Fraction(str(arch.dram.words_per_cycle)))
            return [(f"dram_bandwidth_{what}", busy)], (f"dram_latency_{what}", arch.dram.latency_cycles)
        if inst.spec.name == "mac":
            steps = inst.number("pixels") * inst.number("taps") * inst.number("step_range")
            return [("", arch.pe.start_cycles + steps + arch.pe.finish_cycles)], ("", 0)
        rows, cols = range(inst.number("rows")), range(inst.number("cols"))
        set_rows, set_cols = inst.number("set_rows"), inst.number("set_cols")
        if inst.spec.name == "load":
            words = 1
            for i in range(4):
                words *= inst.number(f"extent{i}")
            part = [c for c in cols if not inst.number("edge") or c % set_cols == set_cols - 1 or c == cols[-1]]
            by_row = [{self.position(inst, (r % set_rows, r // set_rows, c % set_cols, c // set_cols)) for c in part}
                      for r in rows]  # fmt: skip
            distinct = words * len(set.union(*by_row))
            bus = max(map(len, by_row)) * ceil(words / arch.bus.burst_words)
            port = ceil(distinct / arch.glb.words_per_cycle)
            write = ceil(words / arch.pe.words_per_cycle)
            busy = max([("glb_port", port), ("row_bus", bus), ("write_port", write)], key=lambda piece: piece[1])
            return [busy], ("row_bus", arch.bus.latency_cycles)
        psums = inst.number("pixels") * inst.number("lines") * inst.number("channels")
        hops = 0
        if inst.number("reduce"):  # one row of results a set, after as many hops as there are rows more
            hops, rows, set_rows = set_rows - 1, range(ceil(len(rows) / set_rows)), 1
        bias, scale, residual = self.unit
        channels = len({self.kind(inst, "row", r, set_rows) for r in rows})
        channels *= len({self.kind(inst, "col", c, set_cols) for c in cols})
        for extent in ("pixel", "line", "channel"):
            axis, step = inst.term(f"{extent}_term")
            channels *= inst.number(f"{extent}s") if axis == "k" and step else 1
        stream = inst.text("source") == "glb"
        results = len(rows) * len(cols) * psums
        twice = 2 * (32 // arch.operand_bits) * inst.number("partial")
        words = results * (1 + residual + stream + twice) + channels * (bias + scale) * (32 // arch.operand_bits)
        per_column = results / arch.cols if stream else len(rows) * psums
        units = ceil(per_column / arch.commit.units_per_column)
        port = ceil(words / arch.glb.words_per_cycle)
        busy = ("output_units", units) if units >= port else ("glb_port", port)
        return [busy, ("column_bus", hops)], ("output_units", arch.commit.latency_cycles)

    @staticmethod
    def position(inst: Instruction, indices: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
        """The sum of a PE's terms on each axis (LOAD-2)."""
        at = dict.fromkeys(("lin", "k", "y", "x"), 0)
        for name, index in zip(("row", "row_set", "col", "col_set"), indices, strict=True):
            at[inst.term(name).axis] += inst.term(name).step * index
        return tuple(at.items())

    @staticmethod
    def kind(inst: Instruction, side: str, i: int, size: int) -> tuple[int, int]:
        """The indices of a row or column that move a result to another channel (COMMIT-3)."""
        inner, sets = (inst.term(name) for name in (side, f"{side}_set"))
        return (i % size if inner.axis == "k" and inner.step else 0, i // size if sets.axis == "k" and sets.step else 0)

    def cycles(self, label: str) -> Cycles:
        def of(name: str) -> int:
            return self.counts.get((label, name), 0)

        stall = {cause: of(cause) for cause in CAUSES}
        return Cycles(of("total"), of("array"), of("load"), of("commit"), of("dma"), stall)


def plain(program: list[Instruction], arch: Arch, layers: list[tuple[str, int]], constant_words: int = 0) -> Times:
    machine = Plain(program, arch, layers, constant_words)
    machine.run()
    return Times(machine.cycles("*"), {label: machine.cycles(label) for label, _ in layers})


# Random legal programs: nests whose loads and commits take turns with macro-instructions.


class Writer:
    """A random program; each kind of token is balanced in each iteration, or over the loops of one nest."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.depth = 0

    def pick(self, *choices: object) -> object:
        return self.random.choice(choices)

    def place(self) -> str:
        rows, cols = self.random.randint(1, 4), self.random.randint(1, 4)
        terms = " ".join(
            f"{n}={self.pick('lin*0', 'k*2', 'y*1', 'y*-1', 'x*0')}" for n in ("row", "row_set", "col", "col_set")
        )
        sets = f"set_rows={self.random.randint(1, 4)} set_cols={self.random.randint(1, 4)}"
        return f"rows={rows} cols={cols} {sets} {terms}"

    def when(self, loops: list[int]) -> str:
        return "+".join(str(loop) for loop in loops) or "always"

    def inner(self, open_loops: int) -> list[int]:
        """The innermost loops of the nest: a token taken in their first iterations and given in their last."""
        return list(range(self.depth - open_loops, self.depth))

    def load(self, kind: str, loops: str, tokens: str = "") -> None:
        edge = f"edge={self.pick(0, 0, 1)}"
        extents = f"extent0={self.random.randint(1, 4)} extent3={self.random.randint(1, 9)}"
        self.lines.append(f"load kind={kind} {self.place()} {extents} {edge} open={loops} close={loops} {tokens}")

    def mac(self, op: str, weight: str, ifmap: str, psum: str) -> None:
        self.lines.append(
            f"mac rows=2 cols=3 pixels={self.random.randint(1, 5)} taps={self.random.randint(1, 9)} step_range=2"
            f" op={op} clear={psum} send={psum}"
            f" take_weight={weight} give_weight={weight} take_ifmap={ifmap} give_ifmap={ifmap}"
        )

    def commit(self, source: str = "psum", tokens: str = "") -> None:
        terms = f"channel_term={self.pick('k*1', 'lin*3')} pixel_term={self.pick('k*4', 'x*1', 'k*0')}"
        terms += f" line_term={self.pick('k*2', 'y*1', 'k*0')}"
        sizes = f"pixels={self.random.randint(1, 4)} lines={self.pick(1, 2, 3)} channels={self.random.randint(1, 3)}"
        sums = f"reduce={self.pick(0, 0, 1)} partial={self.pick(0, 0, 1)} fresh={self.pick('always', 'never', '0')}"
        self.lines.append(f"commit source={source} {self.place()} {sizes} {terms} {sums} {tokens}")

    def dma(self, tokens: str) -> None:
        sizes = f"count={self.pick(1, 3)} rows={self.pick(1, 1, 2)} words={self.random.randint(1, 60)}"
        if self.random.random() < 0.2:  # bounds and rings: no time depends on them
            self.lines.append(f"desc height=2 width={self.random.randint(1, 60)} ring_y=1 ring_x=7")
        self.lines.append(f"dma direction={self.pick('in', 'out')} y={self.pick(-1, 0, 3)} {sizes} {tokens}")

    def noise(self) -> None:
        if self.random.random() < 0.4:
            self.lines.append(str(self.pick(
                "desc id=3", "step id=3 loop=1 by=y*1", "unit bias=1", "unit scale=1 residual=1", "unit bias=1 scale=1",
                "sync load=1", "sync array=1 commit=1", "sync dma=1", "host segment=0", "sync",
                "table part=3 entry5=7",
            )))  # fmt: skip

    def fill(self, kind: str) -> None:
        """Fill a half by one load, or by several in a loop of their own."""
        if self.depth > 7 or self.random.random() < 0.6:
            self.load(kind, "always")
            return
        self.lines.append(f"loop count={self.pick(1, 2, 4)}")
        self.load(kind, str(self.depth))
        self.lines.append("end")

    def tile(self, spans: dict[str, int], inside: int) -> None:
        """`inside` loops around a macro-instruction; each file's half is filled outside of so many as its span says."""
        for kind in ("weight", "ifmap"):
            if spans[kind] == inside:
                self.fill(kind)
                self.noise()
        if inside:
            self.lines.append(f"loop count={self.pick(1, 2, 3, 7, 23)}")
            self.depth += 1
            self.tile(spans, inside - 1)
            self.depth -= 1
            self.lines.append("end")
        else:
            weight, ifmap, psum = (self.when(self.inner(spans[kind])) for kind in ("weight", "ifmap", "psum"))
            self.mac("mac", weight, ifmap, psum)
        if spans["psum"] == inside:
            self.commit()

    def nest(self, levels: int) -> None:
        self.noise()
        if not levels:
            self.piece()
            return
        for _ in range(self.random.choice([1, 1, 2])):
            self.lines.append(f"loop count={self.pick(1, 2, 3, 5, 17, 40)}")
            self.depth += 1
            self.nest(levels - 1)
            self.depth -= 1
            self.lines.append("end")
        if self.random.random() < 0.5:
            self.piece()

    def piece(self) -> None:
        match self.pick("tile", "tile", "tile", "stream", "buffer", "once"):
            case "tile":
                levels = self.random.randint(0, min(3, 7 - self.depth))
                self.tile({kind: self.random.randint(0, levels) for kind in ("weight", "ifmap", "psum")}, levels)
            case "stream":
                self.dma("give=2 give_when=always")
                self.commit("glb", "take=2 take_when=always give=3 give_when=always")
                self.dma("take=3 take_when=always")
            case "once":
                self.lines += ["signal semaphore=6 count=1", f"loop count={self.pick(1, 2, 9)}", "loop count=2"]
                for field in ("take", "give"):
                    self.dma(f"{field}=6 {field}_when={self.depth}+{self.depth + 1}")
                self.lines += ["end", "end", "dma words=1 take=6 take_when=always"]
            case "buffer":
                self.lines.append("signal semaphore=4 count=2")
                self.lines.append(f"loop count={self.pick(1, 2, 3, 7, 150)}")
                self.buffered()
                self.lines += ["end"]
                self.lines += ["dma words=1 take=4 take_when=always"] * 2

    def buffered(self) -> None:
        """A GLB part in two slices: dma fills, load empties."""
        self.dma("take=4 take_when=always give=5 give_when=always")
        self.load("ifmap", "always", "take=5 take_when=always give=4 give_when=always")
        self.mac("max", "always", "always", "always")
        self.commit()


def random_program(seed: int) -> tuple[list[Instruction], Arch]:
    writer = Writer(seed)
    for _ in range(writer.random.randint(1, 3)):
        writer.nest(writer.random.randint(0, 3))
    rng = writer.random
    pe = Pe(32, 32, 16, rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 3),
            start_cycles=rng.randint(0, 4), finish_cycles=rng.randint(0, 2),
            words_per_cycle=rng.choice([1, 1, 2, 5]))  # fmt: skip
    arch = Arch(
        "random", 4, 4, pe, Glb(4096, rng.randint(1, 9)),
        Dram(rng.choice([*range(1, 10), 0.3, 2.5]), rng.randint(0, 60)),
        operand_bits=rng.choice([8, 16]), bus=Bus(rng.randint(1, 10), rng.randint(0, 5)),
        commit=OutputUnits(rng.randint(1, 3), rng.randint(0, 9)),
        sequencer=Sequencer(rng.randint(1, 6), rng.random() < 0.8),
    )  # fmt: skip
    return assemble("\n".join([*writer.lines, "halt"])), arch


def steps_of(program: list[Instruction]) -> int:
    """Instructions that a plain simulator steps through."""
    total, times = 0, [1]
    for inst in program:
        total += times[-1]
        if inst.spec.name == "loop":
            times.append(times[-1] * inst.number("count"))
        elif inst.spec.name == "end":
            times.pop()
    return total


STEPPED = examples(50)  # programs of a block


@pytest.mark.parametrize("block", range(6))
def test_simulate_equals_stepping(block: int) -> None:
    compared = 0
    for seed in range(block * STEPPED, (block + 1) * STEPPED):
        program, arch = random_program(seed)
        if steps_of(program) > 20_000:
            continue
        compared += 1
        firsts = [0, *sorted(random.Random(seed).sample(range(len(program)), min(2, len(program) - 1)))]
        layers = [(f"layer{i}", first) for i, first in enumerate(firsts)]
        want = plain(program, arch, layers, random.Random(seed).choice([0, 40]))
        words = random.Random(seed).choice([0, 40])
        found = simulate(build_tree(program), arch, layers, causes=True, constant_words=words)
        assert found == want, (seed, disassemble(program))
        without = simulate(build_tree(program), arch, layers)
        assert without.cycles == dataclasses.replace(want.cycles, stall={})
        for field in ("total", "compute", "load"):
            assert sum(getattr(layer, field) for layer in want.layers.values()) == getattr(want.cycles, field)
    assert compared > 0.5 * STEPPED


def run(text: str, arch: Arch = ARCH, **options: object) -> Times:
    return simulate(build_tree(assemble(text)), arch, causes=True, **options)


def stalls(**cycles: int) -> dict[str, int]:
    """All of them by cause."""
    assert cycles.keys() <= set(CAUSES)
    return dict.fromkeys(CAUSES, 0) | cycles


def halves(weight: int = 1, ifmap: int = 1, psum: int = 1) -> Arch:
    pe = dataclasses.replace(ARCH.pe, weight_halves=weight, ifmap_halves=ifmap, psum_halves=psum)
    return dataclasses.replace(ARCH, pe=pe)


ALWAYS = "take_weight=always give_weight=always take_ifmap=always give_ifmap=always clear=always send=always"


def test_one_tile_by_hand() -> None:
    """The first load is decoded at 0 and starts at 1. It multicasts 6 words: max(ceil(6/4), ceil(6/4), 6) = 6 cycles,
    until 7, and 2 for the bus: full at 9. The second is decoded at 1, starts at 7; 4 rows x 4 columns of 2 words are
    D = 32: max(8, 4*1, 2) = 8 cycles until 15, full at 17. The mac is decoded at 2, starts at 17 (ifmap came last),
    lasts 3 + 2*3*1 + 1 = 10 until 27. The unit is decoded at 3 and runs 4..5. The commit is decoded at 4, starts at 27;
    32 results, 2 channels with 2 + 2 words each: max(4*2/1, (32 + 8)/4) = 10 cycles until 37, done at 40.
    """
    times = run(
        "load kind=weight rows=4 cols=4 extent3=6 open=always close=always\n"
        "load kind=ifmap rows=4 cols=4 set_rows=4 set_cols=4 row=y*1 col=x*1 extent2=2 open=always close=always\n"
        f"mac rows=4 cols=4 pixels=2 taps=3 {ALWAYS}\n"
        "unit bias=1 scale=1\n"
        "commit rows=4 cols=4 channels=2 channel_term=k*1 row=y*1 col=x*1\n"
        "halt"
    )
    assert times.cycles == Cycles(40, 10, 14, 11, 0, stalls(fill=17, drain=13))


def test_tables_by_hand() -> None:
    """Three `table` and a `unit` are decoded at 0 to 3 and take a cycle each, 1..5. The commit is decoded at 4, starts
    at 5, streams 4 words of one channel and writes 4: ceil(8/4) = 2 cycles of the GLB until 7, done 3 later.
    """
    tables = "".join(f"table part={part} entry0=1\n" for part in (0, 1, 7))
    times = run(f"{tables}unit lookup=1\ncommit source=glb channels=4 channel_term=k*1\nhalt").cycles
    assert (times.total, times.commit) == (10, 6)


def test_single_half_makes_load_and_mac_take_turns() -> None:
    """One weight half, 3 iterations. Load: 8 words, 8 cycles, full 2 later; mac: 3 + 5 + 1 = 9 cycles.
    Load 1 starts at 2 (loop at 0, decoded at 1), is full at 12; mac 12..21; load 2 at 21, full at 31; mac 31..40;
    load 3 at 40, full at 50; mac 50..59. With two halves load 2 starts at 10, full at 20: mac 21..30; load 3 at 21,
    full at 31: mac 31..40: the loads are the bottleneck by one cycle. With one half loads wait for the half that mac
    gives when it ends: the size of the file. With two the cycle before 31 is one of the bus latency.
    """
    text = (
        "loop count=3\nload kind=weight extent3=8 open=always close=always\n"
        "mac taps=5 take_weight=always give_weight=always\nend\nhalt"
    )
    times = run(text, halves(weight=1)).cycles
    assert (times.total, times.compute, times.load) == (59, 27, 24)
    assert times.stall == stalls(fill=12, weight_file=20)
    times = run(text, halves(weight=2)).cycles
    assert (times.total, times.stall) == (40, stalls(fill=12, row_bus=1))


def test_queue_depth_holds_the_sequencer() -> None:
    """Queue of 2; four DMAs of 20 cycles, decoded at 0, 1, at max(2, start of the first = 1) = 2, and at the start of
    the second, 21. The mac behind them is decoded at 22, starts at 23. The last DMA starts at 61, ends at 81, is done
    10 later. Before the mac the sequencer waits for the first DMA, behind it for the last: bandwidth up to 81.
    """
    times = run("dma words=40\n" * 4 + "mac taps=1\nhalt").cycles
    stall = stalls(dram_bandwidth_activations=20 + 53, dram_latency_activations=10, fill=3)
    assert times == Cycles(91, 5, 0, 0, 80, stall)


def test_psum_half_stalls_the_array() -> None:
    """One psum half: mac 1..6 (fill), commit 6..10 (4 results of one row: GLB ceil(4/4) = 1, units 4), done at 13; the
    second mac waits for that free half: 13..18, commit 18..22, done at 25.
    """
    text = "mac taps=1 clear=always send=always\ncommit pixels=4\n" * 2 + "halt"
    times = run(text, halves(psum=1)).cycles
    assert times == Cycles(25, 10, 0, 8, 0, stalls(fill=1, psum_file=7, drain=7))


def test_the_path_is_that_of_what_comes_last_weights_first_in_a_tie() -> None:
    """One psum half: mac 1..6, commit 6..10, done at 13. The load is decoded at 2, starts at 3, lasts 8 cycles, one for
    each word, and is full 2 later, at 13, too: a tie. One word more, and weights alone came last; one less, and the
    psum half did.
    """
    for words, start, causes in (
        (8, 13, {"write_port": 11 - 6, "row_bus": 2}),
        (9, 14, {"write_port": 12 - 6, "row_bus": 2}),
        (7, 13, {"psum_file": 7}),
    ):
        text = (
            "mac taps=1 clear=always send=always\ncommit pixels=4\n"
            f"load kind=weight extent3={words} open=always close=always\n"
            "mac taps=1 take_weight=always clear=always\nhalt"
        )
        times = run(text, halves(psum=1)).cycles
        assert times == Cycles(start + 5, 10, words, 4, 0, stalls(fill=1, **causes))


def test_a_late_transfer_of_weights_is_not_charged_to_the_ifmap() -> None:
    """The example of CAUSE-3: the ifmap's load comes last, but it is queued behind the load of late weights.

    desc 0..1. Two transfers: 2..4, done at 14, and 4..6, done at 16. Loads 14..18 and 18..22, full at 24: mac 24..34.
    The third transfer is decoded at 6: 7..37, done at 47. Loads 47..51 and 51..55, full at 57: mac 57..67.
    Back from 57 to 34: the bus up to 55, a word a cycle up to 47, latency up to 37, then bandwidth. Back from 24 to 0:
    fill, but for latency 14..4 and bandwidth 4..2.
    """
    load = "load kind={} extent3=4 open=always close=always {}\n"
    text = (
        "desc id=1 base=100\n"
        "dma words=4 give=1 give_when=always\ndma dram=1 words=4 give=2 give_when=always\n"
        + load.format("weight", "take=1 take_when=always")
        + load.format("ifmap", "take=2 take_when=always")
        + f"mac taps=6 {ALWAYS}\ndma words=60 give=1 give_when=always\n"
        + load.format("weight", "take=1 take_when=always")
        + load.format("ifmap", "")
        + f"mac taps=6 {ALWAYS}\nhalt"
    )
    stall = stalls(
        dram_bandwidth_weights=2 + 3, dram_latency_weights=10 + 10, write_port=8, row_bus=2, fill=12
    )  # fmt: skip
    assert run(text, constant_words=100).cycles == Cycles(67, 20, 16, 0, 34, stall)


def test_what_a_transfer_moves_follows_from_its_descriptor() -> None:
    """Constants lie in the first words of DRAM. Each word takes half a cycle, one more is the sequencer's."""
    text = "desc id=2 base=7\n" + "dma dram={} direction={} words=40\nsync dma=1\n" * 3 + "mac\nhalt"
    for words in (7, 8):
        moved = "weights" if words == 8 else "activations"
        times = run(text.format(0, "in", 2, "in", 2, "out"), constant_words=words).cycles.stall
        wanted = {"weights": 20, "activations": 0, "results": 20}
        wanted[moved] += 20
        assert {what: times[f"dram_bandwidth_{what}"] for what in wanted} == wanted


def test_layers_between_syncs_add_up_on_their_own() -> None:
    layer = (
        "unit\ndma words=9 give=1 give_when=always\nload kind=weight open=always close=always take=1 take_when=always\n"
    )
    layer += "mac take_weight=always give_weight=always clear=always send=always\ncommit pixels=3\n"
    layer += "sync dma=1 load=1 array=1 commit=1\n"
    times = run(layer * 2 + "halt", layers=[("a", 0), ("b", 6)])
    assert times.layers["a"] == times.layers["b"]
    for cycles in [times.cycles, *times.layers.values()]:
        assert cycles.compute + sum(cycles.stall.values()) == cycles.total
    assert times.cycles.total == 2 * times.layers["a"].total


def test_six_nested_loops_of_a_thousand() -> None:
    """10^18 iterations of three instructions: each costs what the slowest engine needs, here the array (28 cycles)."""
    body = "load kind=weight open=always close=always extent3=7\nmac taps=24 take_weight=always give_weight=always\n"
    times = run("loop count=1000\n" * 6 + body + "end\n" * 6 + "halt", limit_cycles=10**30).cycles
    assert times.compute == times.total - sum(times.stall.values()) == 28 * 10**18
    assert 28 * 10**18 < times.total < 28 * 10**18 + 100


def test_long_loops_equal_stepping() -> None:
    """Loops long enough for drifting engines to settle and periods to be multiplied, with what is left over."""
    for count, depth in ((997, 1), (1500, 5)):
        arch = dataclasses.replace(halves(2, 3, 2), sequencer=Sequencer(depth))
        text = (
            f"loop count=2\nloop count={count}\nload kind=weight extent3=13 open=always close=always\n"
            "load kind=ifmap extent3=11 open=always close=always\nsignal semaphore=7 count=2\n"
            f"mac taps=20 {ALWAYS}\ncommit pixels=23\ndma words=43 take=7 take_when=always\n"
            "dma words=5 take=7 take_when=always\nend\nend\nhalt"
        )
        program = assemble(text)
        assert simulate(build_tree(program), arch, [("all", 0)], causes=True) == plain(program, arch, [("all", 0)])


def test_a_first_iteration_is_not_mistaken_for_a_later_one() -> None:
    """Iterations 0 and 1 start from the same state (two tokens, engines idle), but only iteration 0 takes one."""
    program = assemble(
        "signal semaphore=6 count=2\nloop count=3\ndma words=9 take=6 take_when=0\nsync dma=1\n"
        "signal semaphore=6 count=1\nend\n" + "dma take=6 take_when=always\n" * 4 + "halt"
    )
    assert simulate(build_tree(program), ARCH, [("all", 0)], causes=True) == plain(program, ARCH, [("all", 0)])
    with pytest.raises(Trap, match="deadlock"):
        simulate(build_tree([*program[:-1], *assemble("dma take=6 take_when=always\nhalt")]), ARCH)


def test_loops_without_a_body_while_the_array_is_busy() -> None:
    for loops in ("loop count=4\nend\n", "loop count=3\nloop count=2\nend\nend\n"):
        load = "load kind=ifmap extent3=7 open=always close=always\n"
        program = assemble(f"{loops}{load}mac taps=40 take_ifmap=always give_ifmap=always\n{loops}{load}halt")
        assert simulate(build_tree(program), ARCH, [("all", 0)], causes=True) == plain(program, ARCH, [("all", 0)])


def test_loops_of_one_text_count_each_for_its_own_layer() -> None:
    """Layers whose loops are the same, but for the units' settings, a register or taps; one loop is of two layers."""
    loads = "".join(f"load kind={kind} extent3=9 open=always close=always\n" for kind in ("weight", "ifmap"))
    tile = f"{loads}mac taps=7 {ALWAYS}\ncommit cols=4 pixels=9\n"
    nest = f"loop count=9\nloop count=4\n{tile}end\nsync array=1 commit=1\nend\n"
    lines = [f"unit {unit}\n{nest}" for unit in ("", "", "residual=1 bias=1", "")] + [f"loop count=2\n{nest}end\n"]
    program = assemble("".join([*lines, nest.replace("taps=7", "taps=8")]) + "halt")
    layers = [("a", 0), ("b", 10), ("c", 20), ("d", 30), ("e", 35)]
    found = simulate(build_tree(program), ARCH, layers, causes=True)
    assert found == plain(program, ARCH, layers)
    assert found.layers["a"] == found.layers["b"] != found.layers["c"]


def test_a_loop_of_a_known_text_ends_at_the_limit_by_itself() -> None:
    nest = "loop count=3\nmac taps=6\nsync array=1\nend\n"  # from the second loop on 3 * (10 + 2) + 1 cycles each
    text = nest * 3 + "halt"
    assert run(text).cycles.total == 3 * 37
    for limit, index in ((38, 5), (39, 6), (49, 6), (50, 5)):  # mac, sync; then the mac again
        with pytest.raises(Trap, match=f"the limit of {limit} cycles is exceeded") as caught:
            run(text, limit_cycles=limit)
        assert caught.value.index == index


@pytest.mark.parametrize(("text", "index", "happened"), TIMES)
def test_traps(text: str, index: int, happened: str) -> None:
    program = assemble(text)
    with pytest.raises(Trap, match=happened) as caught:
        simulate(build_tree(program), ARCH)
    trap = caught.value
    assert trap.index == index
    assert trap.address == sum(inst.spec.words for inst in program[:index])
    assert str(trap).startswith(f"instruction {index} (word {trap.address:#06x}): ")
    assert trap.instruction == program[index]


def test_the_limit_is_exact() -> None:
    text = "loop count=1000000\nmac taps=6\nend\ndma words=4\nhalt"
    total = run(text).cycles.total
    assert run(text, limit_cycles=total).cycles.total == total
    with pytest.raises(Trap, match=f"the limit of {total - 1} cycles is exceeded") as caught:
        run(text, limit_cycles=total - 1)
    assert caught.value.instruction.spec.name == "halt"
    with pytest.raises(Trap, match="the limit of 1000 cycles is exceeded") as caught:
        run(text, limit_cycles=1000)
    assert caught.value.index == 0


def test_the_tree_keeps_numbers_and_addresses() -> None:
    tree = build_tree(assemble("desc id=1\nloop count=2\nloop count=3\nmac\nend\ndma\nend\nhalt"))
    desc, outer, halt = tree
    assert isinstance(desc, Leaf) and isinstance(halt, Leaf) and isinstance(outer, LoopNode)
    inner, dma = outer.body
    assert isinstance(inner, LoopNode) and isinstance(dma, Leaf)
    assert (outer.first, outer.last, outer.register, outer.count) == (1, 6, 0, 2)
    assert (inner.first, inner.last, inner.register, inner.count) == (2, 4, 1, 3)
    assert (dma.index, dma.address, halt.index, halt.address) == (5, 8 + 1 + 1 + 14 + 1, 7, 8 + 1 + 1 + 14 + 1 + 9 + 1)
