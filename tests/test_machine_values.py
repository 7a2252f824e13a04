"""Values of random programs: the interpreter, with its blocks, against the plain one that takes word by word."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import pytest
from examples import examples
from plain_machine import PlainMachine, PlainTrap

from cnncc.arch.model import Arch, Dram, Glb, Links, OutputUnits, Pe
from cnncc.isa.assembly import assemble, disassemble
from cnncc.isa.codec import decode_program, encode_program
from cnncc.isa.fields import FieldTerm, Value
from cnncc.isa.table import SPECS, Instruction, InstructionKind, instruction
from cnncc.machine.program import build_tree
from cnncc.machine.traffic.counts import count_traffic
from cnncc.machine.traps import Trap
from cnncc.machine.values.addresses import Grid
from cnncc.machine.values.interpreter import BLOCK_ELEMENTS, Interpreter
from cnncc.machine.values.memory import Memory, OutOfRange
from cnncc.machine.values.regfile import Half, HalfFault

GLB, SHARED, DRAM = 700, 200, 900
RESULTS = 500  # results go from here on; loads read below, mostly
IFMAP, OTHER, WEIGHT, OUTPUT, RESIDUAL, PARAMS, OPERAND, DRAM_SIDE, GLB_SIDE, SUMS = range(10)
STORED, STORED_TO = 10, 11


@dataclass
class Writer:
    """A random program, legal more often than not: where it is not, both interpreters must trap at the same place."""

    random: random.Random
    arch: Arch
    program: list[Instruction] = field(default_factory=list)
    loops: list[int] = field(default_factory=list)  # iterations of the loops that are open

    def emit(self, name: str, **values: Value) -> None:
        self.program.append(instruction(name, **values))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def upto(self, most: int) -> int:
        return self.random.randint(1, max(1, most))

    def term(self, most: int = 4, axes: str = "lkyx") -> FieldTerm:
        axis = {"l": "lin", "k": "k", "y": "y", "x": "x"}[self.random.choice(axes)]
        step = self.random.choice([0, 1, 1, 2, self.random.randint(-2, most)])
        return FieldTerm(axis, step if axis == "lin" else min(step, 2))

    # The start: all of the GLB but its last words, and descriptors.

    def setup(self) -> None:
        self.emit("desc", id=DRAM_SIDE)
        self.emit("desc", id=GLB_SIDE)
        self.emit("dma", direction="in", dram=DRAM_SIDE, glb=GLB_SIDE, words=self.random.choice([RESULTS, GLB, GLB]))

    def descriptors(self) -> None:
        r = self.random
        for desc in (IFMAP, OTHER, OPERAND, RESIDUAL):
            bounded = self.chance(0.6 if desc < 2 else 0.0)
            height, width = (r.randint(2, 6), r.choice([0, 2, 3, 4, 5, 6])) if bounded else (0, 0)
            self.emit(
                "desc", id=desc, base=r.randint(100, 350), height=height, width=width, pitch=r.randint(1, 6),
                plane=r.randint(1, 12), fill=r.choice([-5, 0, 4, 4, 300]),
                zero=r.choice([0, 0, 3, -2, 200]), wrap=self.wrap(), **self.ring(),
            )  # fmt: skip
            self.steps(desc)
        if self.chance(0.15):
            base = r.randint(RESULTS - 30, RESULTS + 30)
            self.emit("desc", id=r.choice([IFMAP, RESIDUAL, OPERAND]), base=base, pitch=1, plane=1)
        self.emit("desc", id=WEIGHT, base=r.randint(20, 60), plane=r.randint(1, 9), wrap=self.wrap())
        self.steps(WEIGHT, "llk")
        self.emit("desc", id=PARAMS, base=r.randint(0, 20), wrap=self.wrap())
        self.steps(PARAMS, "l")

    def wrap(self) -> int:
        return self.random.choice([0, 0, 0, 7, 30])

    def ring(self) -> dict[str, Value]:
        """Rings, and how far columns lie apart."""
        return {name: self.random.choice([0, 0, 0, 2, 3]) for name in ("ring_y", "ring_x", "column")}

    def steps(self, desc: int, axes: str = "lkyx") -> None:
        for register in sorted([*range(5), *range(5)]):  # a linear step and another, or one in place of the other
            if self.chance(0.3):
                self.emit("step", id=desc, loop=register, by=self.term(6, axes))

    def unit(self) -> None:
        r = self.random
        bias, scale, residual, leaky = (int(self.chance(p)) for p in (0.5, 0.4, 0.3, 0.4))
        half = 1 << self.arch.operand_bits - 1
        bounds = r.choice([(-half, half - 1)] * 4 + [(0, 20), (-(1 << 31), (1 << 31) - 1)])
        factors = [int(np.float32(r.uniform(-2, 2)).view(np.uint32)) for _ in range(4)]
        lookup = {}
        if self.chance(0.3):
            lookup = {"lookup": 1, "shift": r.choice([0, 1, self.arch.operand_bits - 8, r.randint(0, 15)])}
            lookup["last"] = r.randint(-half, half - 1)
            bounds = r.choice([bounds, bounds, (-3, 9), (5, 2)])  # some entries are far beyond the clamp
            for _ in range(r.choice([0, 1, 3, 8])):
                self.table()
        self.emit(
            "unit", bias=bias, scale=scale, residual=residual, zero=r.randint(-3, 3), clamp_lo=bounds[0],
            clamp_hi=bounds[1], factor_a=factors[0], factor_b=factors[1], fixed=factors[2], add_lo=-half,
            add_hi=half - 1, leaky=leaky, slope=factors[3], **lookup,
        )  # fmt: skip
        if self.chance(0.1):
            self.table()

    def table(self) -> None:
        """An eighth of the entries, most of them words."""
        half = 1 << self.arch.operand_bits - 1
        most = half if self.chance(0.95) else 1 << 15
        entries = {f"entry{at}": self.random.randint(-most, most - 1) for at in range(32)}
        self.emit("table", part=self.random.randint(0, 7), **entries)

    # Places of PEs.

    def place(self) -> dict[str, Value]:
        rows, cols = self.upto(self.arch.rows), self.upto(self.arch.cols)
        row0, col0 = self.random.randint(0, self.arch.rows - rows), self.random.randint(0, self.arch.cols - cols)
        whole_rows = [n for n in range(1, rows + 1) if rows % n == 0]
        whole_cols = [n for n in range(1, cols + 1) if cols % n == 0]
        sets = {
            "set_rows": self.upto(rows + 1) if self.chance(0.2) else self.random.choice(whole_rows),
            "set_cols": self.upto(cols + 1) if self.chance(0.2) else self.random.choice(whole_cols),
        }
        return {"row0": row0, "rows": rows, "col0": col0, "cols": cols, **sets}

    def terms(self, axes: str = "lkyx") -> dict[str, Value]:
        return {name: self.term(axes=axes) for name in ("row", "row_set", "col", "col_set")}

    # Loops around a macro-instruction.

    def loop(self, count: int = 0) -> None:
        self.loops.append(count or self.upto(3))
        self.emit("loop", count=self.loops[-1])

    def end(self) -> None:
        self.loops.pop()
        self.emit("end")

    def when(self, span: int) -> tuple[int, ...]:
        """The innermost `span` loops, sometimes without those that run once."""
        registers = range(len(self.loops) - span, len(self.loops))
        drop = self.chance(0.3)
        return tuple(register for register in registers if not (drop and self.loops[register] == 1))

    def load(self, kind: str, place: dict[str, Value], words: int, slot: int = 0, **fields: Value) -> None:
        """A load of `words` words from `slot` on."""
        extents, left = [1, 1, 1, 1], words
        for i in range(3):
            extents[i] = self.random.choice([n for n in range(1, left + 1) if left % n == 0])
            left //= extents[i]
        extents[3] = left
        self.random.shuffle(extents)
        axes = "llk" if kind == "weight" else "lkyx"
        desc = WEIGHT if kind == "weight" else IFMAP if self.chance(0.9) else OTHER
        self.emit(
            "load", kind=kind, desc=desc, slot=slot, **place, **self.terms(axes),
            **{f"extent{i}": extent for i, extent in enumerate(extents)},
            **{f"term{i}": self.term(3, axes) for i in range(4)},
            offset=self.random.randint(0, 9), channel=self.random.randint(0, 2),
            y=self.random.randint(-2, 2), x=self.random.randint(-2, 2), **fields,
        )  # fmt: skip

    def fill(self, kind: str, place: dict[str, Value], words: int, edge: int = 0) -> None:
        """Fill a half of `words` words by one load or two; its last `edge` ones only in the last columns."""
        fresh = words - edge
        if edge and fresh:
            self.load(kind, place, fresh, open=())
            self.load(kind, place, edge, fresh, edge=1, close=())
        elif fresh > 1 and self.chance(0.2):
            first = self.upto(fresh - 1)
            self.load(kind, place, first, open=())
            self.load(kind, place, fresh - first, first, close=())
        elif fresh > 1 and len(self.loops) < 7 and self.chance(0.1):
            self.loop()
            self.load(kind, place, fresh, open=(len(self.loops) - 1,), close=(len(self.loops) - 1,))
            self.end()
        else:
            self.load(kind, place, fresh, open=(), close=())

    def part(self, place: dict[str, Value]) -> dict[str, Value]:
        """The rectangle of a macro-instruction: that of its loads, or a part of it, or other sets."""
        rectangle = {name: place[name] for name in ("row0", "rows", "col0", "cols", "set_cols")}
        if self.chance(0.1):
            rectangle["rows"] = self.upto(int(str(place["rows"])))
        if self.chance(0.1):
            rectangle["set_cols"] = self.upto(int(str(place["cols"])))
        return rectangle

    def shape(self, op: str) -> dict[str, int]:
        """The counters and slot steps of a macro-instruction whose slots mostly lie in the register files."""
        pe, r = self.arch.pe, self.random
        z, i = self.upto(3), self.upto(4)
        own = pe.lane_sums and self.chance(0.6)
        lanes = self.upto(pe.lanes + self.chance(0.02)) if op == "mac" or own or self.chance(0.01) else 1
        j = self.upto(min(9, pe.weight_words // i, pe.ifmap_words // 2) // lanes)
        plain = self.chance(0.8)
        small = [-1, 0, 1, 1, 2]
        if own:  # MAC-7: each lane has its own channels, or shares the ifmap of all
            z, i = min(z, pe.psum_words // pe.lanes), min(i, pe.psum_words // pe.lanes // z) or 1
            aligned = [0, pe.lanes, pe.lanes, 2 * pe.lanes] if plain or self.chance(0.9) else [1]
            return {
                "pixels": z, "taps": j, "step_range": i, "lanes": lanes, "psum_l": 1,
                "ifmap_z": r.randint(0, 3), "ifmap_j": 1, "ifmap_l": r.choice([0, 0, j]), "ifmap_i": r.choice([0, j]),
                "weight_z": 0, "weight_j": i, "weight_l": i * j, "weight_i": r.choice([0, 1, 1]),
                "psum_z": i * pe.lanes if plain else r.choice(aligned), "psum_j": 0 if plain else r.choice(aligned),
                "psum_i": pe.lanes if plain else r.choice(aligned),
            }  # fmt: skip
        return {
            "pixels": z, "taps": j, "step_range": i, "lanes": lanes,
            "ifmap_z": r.randint(0, 3), "ifmap_j": lanes, "ifmap_l": 1,
            "ifmap_i": 0 if self.chance(0.7 if op == "mac" else 0.5) else j * lanes,
            "weight_z": 0, "weight_j": i * lanes, "weight_l": i, "weight_i": 1, "psum_z": i, "psum_j": 0, "psum_i": 1,
        } | ({} if plain else {
            "ifmap_z": r.choice(small), "ifmap_j": r.choice(small), "ifmap_i": r.choice(small),
            "weight_z": r.choice(small), "weight_j": r.choice(small), "weight_i": r.choice(small),
            "ifmap_l": r.choice(small), "weight_l": r.choice(small),
            "psum_z": r.choice(small), "psum_j": r.choice([0, 0, 1]), "psum_i": r.choice(small),
        })  # fmt: skip

    def slots(self, shape: dict[str, int], name: str) -> tuple[int, int]:
        """The first slot that keeps all slots of an operand from 0 on, and how many these are."""
        counts = {"z": shape["pixels"], "j": shape["taps"], "l": shape["lanes"], "i": shape["step_range"]}
        steps = [shape.get(f"{name}_{counter}", 0) * (count - 1) for counter, count in counts.items()]
        low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
        return -low, high - low + 1

    def mac(self, op: str, shape: dict[str, int], part: dict[str, Value], **fields: Value) -> None:
        slots = {f"{name}_slot": self.slots(shape, name)[0] for name in ("psum", "ifmap", "weight")}
        self.emit("mac", op=op, **part, **shape, **slots, **fields)

    def nest(self) -> None:
        """Output loops, then reduction loops, around loads and macro-instructions; then a commit."""
        op, place = self.random.choice(["mac", "mac", "max", "add"]), self.place()
        shape, part = self.shape(op), self.part(place)
        counts = [self.upto(3) for _ in range(self.random.randint(0, 3))]
        results = self.results(place, shape, counts)
        fetches = self.fetches(random.Random(str(results))) if counts else []
        stores = self.stores(random.Random(f"{results} stored")) if counts else []
        for depth, count in enumerate(counts):
            self.loop(count)
            for transfer in fetches if depth == 0 else []:
                self.emit("dma", **transfer)
        reuse = self.reuse(op, shape, place)
        self.tile(op, shape, place, part, reuse)
        self.emit("commit", **results)
        if self.chance(0.15):  # again, over some of the same words
            self.tile(op, shape, place, part, reuse)
            self.emit("commit", **results | {"offset": self.random.randint(-3, 3)})
        for _ in counts[1:]:
            self.end()
        for transfer in stores:
            self.emit("dma", direction="out", **transfer)
        if counts:
            self.end()

    def fetches(self, r: random.Random) -> list[dict[str, Value]]:
        """Transfers that each iteration of a loop begins with, or none: by a descriptor that is read by, or others."""
        found: list[dict[str, Value]] = []
        if r.random() < 0.6:
            return found
        self.emit("desc", id=DRAM_SIDE, base=150)  # no scales there
        self.emit("step", id=DRAM_SIDE, loop=0, by=FieldTerm("lin", r.randint(-1, 30)))
        self.emit("desc", id=GLB_SIDE, base=r.choice([20, 60, 150, 300, RESULTS]), wrap=r.choice([0, 0, 0, 7, 30]))
        self.emit("step", id=GLB_SIDE, loop=0, by=FieldTerm("lin", r.randint(0, 20)))
        for _ in range(r.randint(1, 2)):
            side = r.choice([WEIGHT, WEIGHT, IFMAP, IFMAP, PARAMS, RESIDUAL, GLB_SIDE, GLB_SIDE])
            sizes = {"words": r.randint(1, 90), "rows": r.randint(1, 2), "count": r.randint(1, 2)}
            steps = {"dram_step": r.randint(0, 40), "glb_step": r.randint(0, 40)}
            start = {"dram_offset": r.randint(0, 60), "glb_offset": r.choice([0, 0, 7, 15])}
            found.append({"dram": DRAM_SIDE, "glb": side, **sizes, **steps, **start})
        return found

    def stores(self, r: random.Random) -> list[dict[str, Value]]:
        """Transfers that each iteration of a loop ends with, or none: of results or of other words."""
        found: list[dict[str, Value]] = []
        if r.random() < 0.5:
            return found
        for desc, base in ((STORED_TO, r.choice([SHARED, 300, 600])), (STORED, r.choice([20, 300, RESULTS, RESULTS]))):
            self.emit("desc", id=desc, base=base, wrap=r.choice([0, 0, 0, 9]))
            self.emit("step", id=desc, loop=0, by=FieldTerm("lin", r.randint(0, 12)))
        for _ in range(r.randint(1, 2)):
            sizes = {"words": r.randint(1, 40), "rows": r.randint(1, 2), "count": r.randint(1, 2)}
            steps = {"dram_step": r.randint(0, 40), "glb_step": r.randint(0, 20)}
            found.append({"dram": STORED_TO, "glb": r.choice([STORED, STORED, OUTPUT]), **sizes, **steps})
        return found

    def tile(self, op, shape, place, part, reuse) -> None:
        """All of a sum: one body in reduction loops, or two, the second peeled."""
        early = [name for name in ("weight", "ifmap") if self.chance(0.25)]  # stays for all of the reduction
        early = early if op == "mac" else [name for name in early if name == "ifmap"]
        for name in early:
            self.fill(name, place if name == "ifmap" else self.sets(place), self.slots(shape, name)[1])
        reductions = self.random.choice([0, 1, 1, 2])
        bodies = 2 if reductions and self.chance(0.3) else 1
        for body in range(bodies):
            self.body(op, shape, place, part, reuse, reductions, early, (body == 0, body == bodies - 1))

    def sets(self, place: dict[str, Value]) -> dict[str, Value]:
        return place if self.chance(0.8) else place | {"set_rows": 1, "set_cols": 1}

    def reuse(self, op: str, shape: dict[str, int], place: dict[str, Value]) -> dict[str, int]:
        words = self.slots(shape, "ifmap")[1]
        if words < 2 or self.chance(0.6):
            return {}
        reuse = self.upto(min(words - 1, shape["pixels"] * shape["taps"]))
        slot = words - reuse if self.chance(0.8) else self.random.randint(0, 2)
        return {"data_reuse": reuse, "n2n_slot": slot}

    def body(self, op, shape, place, part, reuse, reductions, early, ends) -> None:
        first, last = ends
        for _ in range(reductions):
            self.loop()
        words, edge = self.slots(shape, "ifmap")[1], reuse.get("data_reuse", 0)
        if op == "mac" and "weight" not in early:
            self.fill("weight", self.sets(place), self.slots(shape, "weight")[1])
        if "ifmap" not in early:
            self.fill("ifmap", place, words, edge if self.chance(0.9) else 0)
        reduced = self.when(reductions)
        fields: dict[str, Value] = {}
        for name in ("weight", "ifmap"):
            fields[f"take_{name}"] = () if name not in early else reduced if first else None
            fields[f"give_{name}"] = () if name not in early else reduced if last else None
        clear, send = reduced if first else None, reduced if last else None
        if self.chance(0.3):  # in two macro-instructions, one half of the ifmap
            split = fields | {"give_ifmap": None, "give_weight": None}
            self.mac(op, shape, part, clear=clear, **split, **reuse)
            again = fields | {"take_ifmap": None, "take_weight": None}
            other = op if op == "mac" or self.chance(0.5) else self.random.choice(["max", "add"])
            self.mac(other, shape, part, send=send, **again)
        else:
            self.mac(op, shape, part, clear=clear, send=send, **fields, **reuse)
        for _ in range(reductions):
            self.end()

    def results(self, place: dict[str, Value], shape: dict[str, int], counts: list[int]) -> dict[str, Value]:
        """A commit with results one after the other: each term steps over all that those inside it write."""
        pattern = self.pattern(shape)
        sizes = [(f"{name}_term", int(str(pattern[f"{name}s"]))) for name in ("channel", "line", "pixel")]
        rows, cols, set_rows, set_cols = (int(str(place[n])) for n in ("rows", "cols", "set_rows", "set_cols"))
        sizes += [("col", min(cols, set_cols)), ("col_set", -(-cols // set_cols))]
        sizes += [("row", min(rows, set_rows)), ("row_set", -(-rows // set_rows))]
        sizes += [(str(register), count) for register, count in enumerate(counts)]
        if self.chance(0.5):
            self.random.shuffle(sizes)
        total, places, channels = 1, {}, self.random.choice(["channel_term", "col_set", "row_set"])
        ring = {"ring_y": self.random.choice([2, 40])} if self.chance(0.1) else {}
        self.emit("desc", id=OUTPUT, base=RESULTS + self.random.randint(0, 9), plane=1, pitch=1, **ring)
        for name, size in sizes:
            step = FieldTerm("k" if name == channels else self.random.choice(["lin", "lin", "x", "y"]), total)
            if name.isdigit():
                if not self.chance(0.05):
                    self.emit("step", id=OUTPUT, loop=int(name), by=step)
            else:
                places[name] = step
            total *= size
        if self.chance(0.03):
            places["col"] = FieldTerm("lin", 0)
        start = {name: self.random.randint(0, 2) for name in ("offset", "channel", "y", "x")}
        partial = self.partial(places, sizes, counts) if self.chance(0.4) else {}
        return start | partial | {
            "desc": OUTPUT, "operand": OPERAND, "residual": RESIDUAL, "params": PARAMS, **place, **places,
            **pattern, "psum_slot": self.slots(shape, "psum")[0], "param": self.random.randint(0, 3),
        }  # fmt: skip

    def pattern(self, shape: dict[str, int]) -> dict[str, Value]:
        """A commit of the pixels and channels of a macro-instruction: in any order, its channels in two parts."""
        parts = self.random.choice([n for n in range(1, shape["step_range"] + 1) if shape["step_range"] % n == 0])
        part = shape["step_range"] // parts
        counters = [(shape["pixels"], shape["psum_z"]), (parts, part * shape["psum_i"]), (part, shape["psum_i"])]
        if self.chance(0.5):
            self.random.shuffle(counters)
        fields: dict[str, Value] = {}
        for (extent, step), (count, slots) in zip(
            (("pixels", "psum_z"), ("lines", "psum_j"), ("channels", "psum_i")), counters, strict=True
        ):
            fields |= {extent: count, step: slots}
        return fields

    def partial(
        self, places: dict[str, FieldTerm], sizes: list[tuple[str, int]], counts: list[int]
    ) -> dict[str, Value]:
        """Sums of a set's rows, sums in parts: some of the loops around run over what is added up."""
        fields: dict[str, Value] = {}
        if self.chance(0.5):
            fields["reduce"] = 1
            if not self.chance(0.05):
                places["row"] = FieldTerm("lin", 0)
        if self.chance(0.6):
            added = {str(register) for register in range(len(counts)) if self.chance(0.6)}
            self.emit("desc", id=SUMS, base=230 + self.random.randint(0, 30), plane=1, pitch=1)
            total = 1
            for name, size in sizes:
                if name.isdigit() and name not in added and not self.chance(0.1):
                    self.emit("step", id=SUMS, loop=int(name), by=FieldTerm("lin", total))
                total *= size
            over = tuple(int(register) for register in sorted(added))
            others = [None, (), over, over[1:], over[:-1], tuple(range(len(counts)))]
            fresh, final = (over if self.chance(0.85) else self.random.choice(others) for _ in range(2))
            fields |= {"partial": 1, "sums": SUMS, "fresh": fresh, "final": final}
        return fields

    # Other pieces.

    def stream(self) -> None:
        pixels, channels, loops = self.upto(4), self.upto(4), self.random.randint(0, 2)
        self.emit("desc", id=OUTPUT, base=RESULTS + self.random.randint(0, 60))
        for register in range(loops):
            self.emit("step", id=OUTPUT, loop=register, by=FieldTerm("lin", (16, 48)[register]))
        for _ in range(loops):
            self.loop()
        self.emit(
            "commit", source="glb", desc=OUTPUT, operand=OPERAND, residual=RESIDUAL, params=PARAMS, pixels=pixels,
            channels=channels, pixel_term=FieldTerm("lin", channels), channel_term=FieldTerm("lin", 1),
        )  # fmt: skip
        for _ in range(loops):
            self.end()

    def dma(self) -> None:
        """Rectangles in or out, in a loop or not, wrapping or not, with rings, bounds, overlaps or not."""
        loops = self.random.randint(0, 2)
        way = self.random.choice(["in", "out"])
        for desc, base in ((DRAM_SIDE, 700 if way == "out" else 100), (GLB_SIDE, 230)):
            height, width = (self.upto(5), self.upto(9)) if self.chance(0.5) else (0, 0)
            self.emit(
                "desc", id=desc, base=base, height=height, width=width, pitch=self.upto(9), plane=self.upto(9),
                wrap=self.wrap(), **self.ring(),
            )  # fmt: skip
            for register in range(loops + 1):
                self.emit("step", id=desc, loop=register, by=self.term(3))
        for _ in range(loops):
            self.loop()
        words, rows = self.upto(9), self.upto(3)
        steps = {side: self.random.randint(0, 12) for side in ("dram_step", "glb_step")}
        self.emit(
            "dma", direction=way, dram=DRAM_SIDE, glb=GLB_SIDE, count=self.upto(4), words=words, rows=rows,
            y=self.random.randint(-2, 3), x=self.random.randint(-2, 3),
            dram_offset=self.random.randint(0, 5), glb_offset=self.random.randint(-2, 9), **steps,
        )  # fmt: skip
        for _ in range(loops):
            self.end()

    def pipelined(self) -> None:
        """Each iteration loads the half that the next one uses: the iterations are no block."""
        place, shape = self.place(), self.shape("add")
        words, count = self.slots(shape, "ifmap")[1], self.upto(3)
        results = self.results(place, shape, [count])
        self.load("ifmap", place, words, open=(), close=())
        self.loop(count)
        self.load("ifmap", place, words, open=(), close=())
        always = {"clear": (), "send": (), "take_ifmap": (), "give_ifmap": ()}
        self.mac("add", shape, self.part(place), **always)
        self.emit("commit", **results)
        self.end()
        self.mac("max", shape, self.part(place), **always)
        self.emit("commit", **results)

    def write(self) -> list[Instruction]:
        self.setup()
        for _ in range(self.random.randint(1, 3)):
            self.descriptors()
            self.unit()
            self.random.choice([self.nest, self.nest, self.nest, self.nest, self.stream, self.dma, self.pipelined])()
        self.emit("halt")
        return self.program


def random_arch(r: random.Random) -> Arch:
    pe = Pe(
        r.choice([10, 40, 40]), r.choice([12, 40, 40]), 12, weight_halves=r.choice([1, 2, 2]),
        ifmap_halves=r.choice([1, 2, 2]), psum_halves=r.choice([1, 2]), max_pixels=3,
        lanes=r.choice([1, 1, 2, 4]), lane_sums=r.random() < 0.5,
    )  # fmt: skip
    sizes = r.choice([(1, 1), (2, 3), (3, 4), (4, 6)])
    bits = r.choice([8, 16, 16])
    psum_bits = r.choice([32, 32, 16 + bits // 8])
    return Arch(
        "tiny", *sizes, pe, Glb(GLB, 4), Dram(2, 3), bits, psum_bits, commit=OutputUnits(), links=Links(True, True)
    )


def with_pong(r: random.Random, arch: Arch) -> Arch:
    """The array, its ifmap halves maybe ping and pong."""
    pong, virtual = r.choice([(0, 0), (3, 4), (8, 12)])
    return replace(arch, pe=replace(arch.pe, pong_words=pong, virtual_words=virtual))


def contents(r: random.Random, images: int, bits: int) -> np.ndarray:
    """DRAM: the words below SHARED equal for all images, small scales among them, the others a few bits wide."""
    rng = np.random.default_rng(r.randint(0, 1 << 30))
    most = r.choice([3, 3, 12, 12, 1 << bits - 1])
    words = rng.integers(-most, most, (images, DRAM))
    words[:, :SHARED] = words[:1, :SHARED]
    scales = rng.uniform(-1, 1, 60).astype(np.float32)
    words[:, 20:140] = scales.view(np.int16)[:120] if bits == 16 else words[:, 20:140]
    return words


def plain_run(program: list[Instruction], arch: Arch, dram: np.ndarray) -> list[PlainMachine] | PlainTrap:
    """A machine for each image, or the trap that comes first."""
    machines = [PlainMachine(arch, [int(word) for word in image]) for image in dram]
    traps: list[PlainTrap] = []
    for machine in machines:
        try:
            machine.run(program)
        except PlainTrap as trap:
            traps.append(trap)
    return min(traps, key=lambda trap: trap.step) if traps else machines


def real_run(
    program: list[Instruction], arch: Arch, dram: np.ndarray, most: int = BLOCK_ELEMENTS, commits: list | None = None
) -> Interpreter | Trap:
    """commits: gets those that run; one of a block is one."""
    memory = Memory("dram", DRAM, len(dram), SHARED)
    memory.write(np.arange(SHARED), dram[:1, :SHARED])
    memory.write(np.arange(SHARED, DRAM), dram[:, SHARED:])
    interpreter = Interpreter(arch, memory, lambda segment, dram: None)
    interpreter.block_elements = most
    if commits is not None and (rule := interpreter.rules[InstructionKind.COMMIT]) is not None:
        interpreter.rules[InstructionKind.COMMIT] = lambda inst: (commits.append(inst), rule(inst))[1]
    try:
        interpreter.run(build_tree(decode_program(encode_program(program))))
    except Trap as trap:
        return trap
    return interpreter


def words_of(memory: Memory, images: int) -> list[list[int | None]]:
    result: list[list[int | None]] = [[] for _ in range(images)]
    for address in range(memory.words):
        written = bool(memory._written[address])
        words = memory.read(np.array([address])) if written else None
        for image in range(images):
            result[image].append(None if words is None else int(words[image % len(words), 0]))
    return result


def compare_memories(text: str, dram: np.ndarray, most: int = BLOCK_ELEMENTS) -> int:
    """On a row of four PEs a program traps on neither machine, and leaves the same words in both memories.

    Returns how many commits the interpreter does; those of a block are one.
    """
    arch = replace(random_arch(random.Random(1)), rows=1, cols=4, operand_bits=16, psum_bits=32)
    arch = replace(arch, pe=replace(arch.pe, ifmap_halves=2))
    program = assemble(text)
    commits = []
    plain, real = plain_run(program, arch, dram), real_run(program, arch, dram, most, commits)
    assert not isinstance(plain, PlainTrap) and not isinstance(real, Trap)
    assert words_of(real.glb, len(dram)) == [machine.glb for machine in plain]
    assert words_of(real.dram, len(dram)) == [machine.dram for machine in plain]
    return len(commits)


def check_moved(program: list[Instruction], plain: PlainMachine) -> None:
    """The words that the counters say are moved are those that were (docs/stats.md); the plain one sees no peaks."""
    counted = vars(count_traffic(build_tree(program), plain.arch).whole)
    unseen = {"idle_pe_cycles", "weight_peak", "ifmap_peak", "psum_peak"}
    wrong = {
        name: (n, plain.moved[name]) for name, n in counted.items() if name not in unseen and n != plain.moved[name]
    }
    assert not wrong and set(plain.moved) <= set(counted), f"{wrong}\n{disassemble(program)}"


def compare(seed: int) -> str:
    """Run program number `seed` on both; what it was: runs or traps."""
    r = random.Random(seed)
    arch, images = with_pong(r, random_arch(r)), r.choice([1, 3])
    program = Writer(r, arch).write()
    dram = contents(r, images, arch.operand_bits)
    most = r.choice([BLOCK_ELEMENTS, BLOCK_ELEMENTS, 40])  # small ones cut the loops where blocks begin
    plain, real = plain_run(program, arch, dram), real_run(program, arch, dram, most)
    if isinstance(plain, PlainTrap):
        assert isinstance(real, Trap), f"{seed}: instruction {plain.index} traps: {plain}\n{disassemble(program)}"
        assert (plain.index, seed) == (real.index, seed), f"{plain}, not {real}\n{disassemble(program)}"
        return f"trap: {plain}"
    assert not isinstance(real, Trap), f"{seed}: {real}\n{disassemble(program)}"
    for memory, lists in ((real.glb, [m.glb for m in plain]), (real.dram, [m.dram for m in plain])):
        for image, words in enumerate(words_of(memory, images)):
            wrong = [(at, *pair) for at, pair in enumerate(zip(words, lists[image], strict=True)) if pair[0] != pair[1]]
            assert not wrong, f"{seed}: {memory.name} of image {image}: {wrong}\n{disassemble(program)}"
    check_moved(program, plain[0])
    return "runs"


BY_HAND = """
    desc id=0
    dma dram=0 glb=0 words=40
    unit clamp_lo=-32768 clamp_hi=32767
    desc id=1 base=500
    step id=0 loop=0 by=lin*3
    step id=1 loop=0 by=lin*12
    step id=1 loop=1 by=lin*4
    loop count=2
      load kind=ifmap desc=0 open=always close=always cols=4 set_cols=4 extent3=3 term3=lin*1 col=lin*5
      loop count=3
        mac op=add cols=4 set_cols=4 taps=3 {slots} take_ifmap=1 give_ifmap=1 {sums}
        commit desc=1 cols=4 set_cols=4 col=lin*1
      end
    end
    halt
"""


@pytest.mark.parametrize("slots", ["data_reuse=1 ifmap_slot=2 ifmap_j=-1", "data_reuse=2 n2n_slot=1 ifmap_j=1"])
def test_neighbours_change_a_half_for_the_next_iteration(slots: str) -> None:
    """A half that stays in use over a loop moves on by one PE an iteration."""
    compare_memories(BY_HAND.format(slots=slots, sums="clear=always send=always"), np.arange(DRAM)[None] ** 2 % 1000)


IN_PARTS = """
    desc id=0
    dma dram=0 glb=0 words=120
    unit clamp_lo=-32768 clamp_hi=32767
    desc id=1 base=500
    desc id=2 base=20 wrap=9
    step id=0 loop=0 by=lin*7
    step id=0 loop=1 by=lin*5
    step id=1 loop=0 by=lin*12
    step id=2 loop=0 by=lin*2
    step id=2 loop=1 by=lin*1
    loop count=7
      loop count=2
        load kind=weight desc=2 open=always close=always cols=4 set_cols=4 extent3=3 term3=lin*1
        load kind=ifmap desc=0 open=always close=always cols=4 set_cols=4 extent3=3 term3=lin*1 col=lin*3
        mac cols=4 set_cols=4 taps=3 ifmap_j=1 weight_j=1 {sums} {always}
      end
      {inside}
    end
    {after}
    halt
"""


@pytest.mark.parametrize("most", [12, 24, 48, 72, 96, BLOCK_ELEMENTS])
@pytest.mark.parametrize("sums", ["1", "0+1"])
def test_parts_of_a_loop_are_blocks(most: int, sums: str) -> None:
    """Iterations 0 and 1, then 2 and 3, …: as many at once as memory allows, unless a condition tells them apart."""
    commit = "commit desc=1 cols=4 set_cols=4 col=lin*1"
    places = {"inside": commit, "after": ""} if sums == "1" else {"inside": "", "after": commit}
    always = " ".join(f"{name}=always" for name in ("take_weight", "give_weight", "take_ifmap", "give_ifmap"))
    text = IN_PARTS.format(sums=f"clear={sums} send={sums}", always=always, **places)
    compare_memories(text, np.arange(DRAM)[None] ** 2 % 11, most)


SLICES = """
    desc id=0 base=300
    desc id=1 base=100 wrap=24
    desc id=2 base=60 height=4 width=3 pitch=3 fill=9
    desc id=3 base=500
    desc id=4 base=40
    desc id=5 base=100 wrap=24
    step id=0 loop=0 by=lin*12
    step id=1 loop=0 by=lin*12
    step id=3 loop=0 by=lin*4
    step id=4 loop=0 by=lin*{params}
    step id=5 loop=0 by=lin*12
    step id=5 loop=1 by=lin*3
    unit bias=1 clamp_lo=-32768 clamp_hi=32767
    dma dram=0 glb=2 words=12 dram_offset=400
    dma dram=0 glb=1 words=12
    dma dram=0 glb=4 words=40 dram_offset=500
    loop count={count}
      dma dram=0 glb=1 words=12 dram_offset=12 glb_offset=12
      dma dram=0 {other} words=2 dram_offset=420
      loop count=4
        load kind=weight desc={weights} open=always close=always cols=4 set_cols=4 extent3=3 term3=lin*1
        load kind=ifmap desc=2 y=-1 open=always close=always cols=4 set_cols=4 extent3=3 term3=y*1 col=x*1
        mac cols=4 set_cols=4 taps=3 ifmap_j=1 weight_j=1 clear=1 send=1 {always}
      end
      commit desc=3 params=4 cols=4 set_cols=4 col=lin*1
    end
    halt
"""


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("weights", [1, 5])
@pytest.mark.parametrize(
    ("params", "other"), [(0, "glb=4"), (2, "glb=4"), (2, "glb=3 glb_offset=-3"), (2, "glb=3 glb_offset=2")]
)
def test_a_loop_that_fetches_a_slice_an_iteration(count: int, weights: int, params: int, other: str) -> None:
    """Each iteration reads one slice of weights and fetches the next one, two slices in turn (or reads what was there
    first), and fetches parameters, to one place or the next, or words over results of its own or of the one before.
    """
    always = " ".join(f"{name}=always" for name in ("take_weight", "give_weight", "take_ifmap", "give_ifmap"))
    dram = (np.arange(DRAM)[None] ** 2 + np.array([[0], [5]])) % 11
    dram[:, 701::2] = 0  # a bias is small: its second word is 0
    dram[:, :SHARED] = dram[:1, :SHARED]
    compare_memories(SLICES.format(always=always, count=count, weights=weights, params=params, other=other), dram)


FAR_APART = """glb=6 words=1 count=2 glb_step=550 dram_step=3
      dma dram=0 glb=7 words=1 count=2 glb_step=550 dram_step=3
      dma dram=0 glb=4"""


@pytest.mark.parametrize("fits", [2, 6])
def test_a_loop_that_keeps_much_runs_in_parts(fits: int) -> None:
    """Transfers that reach far: memory has space for the versions of a few iterations, not for all seven."""
    always = " ".join(f"{name}=always" for name in ("take_weight", "give_weight", "take_ifmap", "give_ifmap"))
    text = SLICES.replace("desc id=3 base=500", "desc id=3 base=600")
    text = text.format(always=always, count=7, weights=1, params=0, other=FAR_APART)
    dram = (np.arange(DRAM)[None] ** 2 + np.array([[0], [5]])) % 11
    dram[:, 701::2], dram[:, :SHARED] = 0, dram[:1, :SHARED]
    kept = 2 * (24 + 2 * 551 + 2)  # of both images, in an iteration
    assert compare_memories(text, dram, (fits + 1) * kept - 1) == -(-7 // fits)


WAITING = """
    desc id=0
    dma dram=0 glb=0 words=120
    desc id=1 base=500
    desc id=2 base=20
    step id=0 loop=0 by=lin*7
    step id=0 loop=1 by=lin*2
    step id=1 loop=0 by=lin*12
    step id=1 loop=1 by=lin*4
    step id=2 loop=1 by=lin*2
    loop count=2
      unit clamp_lo=-32768 clamp_hi=32767
      {load}
      loop count=3
        load kind=weight desc=2 open=always close=always cols=4 set_cols=4 extent3=3 term3=lin*1
        {inside}
        mac cols=4 set_cols=4 taps=3 ifmap_j=1 weight_j=1 {always} take_weight=always give_weight=always {ifmap}
        commit desc=1 cols=4 set_cols=4 col=lin*1
      end
      {after}
    end
    halt
"""
LOAD = "load kind=ifmap desc=0 open=always close=always cols=4 set_cols=4 extent3=3 term3=lin*1 col=lin*3"
LAST = """mac op=add cols=4 set_cols=4 taps=3 ifmap_j=1 {always} take_ifmap=always give_ifmap=always
      commit desc=1 offset=30 cols=4 set_cols=4 col=lin*1"""


@pytest.mark.parametrize(
    ("ifmap", "inside", "after", "commits"),
    [
        ("take_ifmap=1 give_ifmap=1", "", "", 2),
        # Each iteration takes what the one before loaded.
        ("take_ifmap=always give_ifmap=always", LOAD, LAST, 2 * (3 + 1)),
    ],
)
def test_a_half_waits_before_a_loop(ifmap: str, inside: str, after: str, commits: int) -> None:
    always = "clear=always send=always"
    after = after.format(always=always)
    text = WAITING.format(load=LOAD, ifmap=ifmap, inside=inside, after=after, always=always)
    assert compare_memories(text, np.arange(DRAM)[None] ** 2 % 11) == commits


STORES = """
    desc id=0
    desc id=1 base=500
    desc id=2 base=300
    desc id=3 base=296
    desc id=4 base=600
    desc id=5 base=100
    desc id=6 height=2 pitch=8
    step id=5 loop=0 by=lin*4
    step id=1 loop=0 by=lin*{step}
    step id=2 loop=0 by=lin*4
    step id=3 loop=0 by=lin*4
    unit clamp_lo=-32768 clamp_hi=32767
    dma dram=0 glb=0 words=700
    loop count=5
      {fetch}
      load kind=ifmap desc=0 open=always close=always cols=4 set_cols=4 extent3=3 term3=lin*1 col=lin*1
      mac op=add cols=4 set_cols=4 taps=3 ifmap_j=1 clear=always send=always take_ifmap=always give_ifmap=always
      commit desc=1 cols=4 set_cols=4 col=lin*1 {partial}
      dma direction=out dram=2 glb={stored} words=4
    end
    halt
"""


@pytest.mark.parametrize("step", [0, 4])
@pytest.mark.parametrize(
    ("fetch", "stored"),
    [
        ("", 1),
        ("dma dram=3 glb=0 words=6", 1),
        ("dma dram=3 glb=0 words=6", 0),
        ("dma dram=5 glb=0 words=6", 0),
        ("dma dram=6 glb=0 words=6 y=2", 1),
    ],
)
@pytest.mark.parametrize("partial", ["", "partial=1 sums=4 fresh=0 final=0"])
def test_a_loop_that_stores_its_results(step: int, fetch: str, stored: int, partial: str) -> None:
    """Each iteration stores its results, in one place or the next, or words that it fetched. It fetches nothing, what
    the iteration before it stored, other words, or rows that are none. With partial sums, only the last one has
    results, and all store that place. A loop that fetches nothing and stores in one place after the other is one block.
    """
    dram = np.arange(DRAM)[None] ** 2 % 11
    text = STORES.format(step=0 if partial else step, fetch=fetch, stored=stored, partial=partial)
    assert (compare_memories(text, dram) == 1) == (step > 0 and not fetch and not partial)


LINES = """
    desc id=0 height=5 width=2 pitch=2
    desc id=1 pitch=2 ring_y=3
    desc id=2 height=5 pitch=2 width=2 base=40 ring_x=2
    desc id=3 base=100 pitch=2
    step id=0 loop=0 by=y*1
    step id=1 loop=0 by=y*1
    step id=2 loop=0 by=y*1
    dma dram=0 glb=1 words=2
    unit clamp_lo=-32768 clamp_hi=32767
    loop count=5
      dma dram=0 glb=1 words=2 y=1
      commit source=glb desc=2 operand=1 pixels=2 pixel_term=x*1
    end
    dma direction=out dram=3 glb=2 rows=5 words=2
    halt
"""


def test_a_ring_of_rows_by_hand() -> None:
    """An image of 5 rows goes through 3 rows of the GLB: 6 words hold it, row 5 is not fetched, row 3 lies in row 0."""
    arch = replace(random_arch(random.Random(1)), operand_bits=16)
    dram = np.arange(DRAM)[None] + 7
    machine = real_run(assemble(LINES), arch, dram)
    assert not isinstance(machine, Trap)
    assert machine.dram.read(np.arange(100, 110))[0].tolist() == [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert machine.glb.read(np.arange(6))[0].tolist() == [13, 14, 15, 16, 11, 12]


OVERLAP = """
    desc id=0 base=300 pitch=2
    desc id=1 pitch=2 {ring}
    desc id=2 base=700 pitch=2
    desc id=3 base=800 pitch=2 {ring}
    dma dram=0 glb=1 count=2 rows=2 words=2 dram_step=4 glb_step=1
    dma dram=0 glb=2 words=8
    dma direction=out dram=3 glb=2 count=2 rows=2 words=2 dram_step=1 glb_step=4
    halt
"""


@pytest.mark.parametrize(
    ("ring", "expected"), [("", [0, 4, 5, 6, 7]), ("ring_y=1", [2, 6, 7]), ("ring_x=1", [1, 5, 3, 7])]
)
def test_rows_of_a_transfer_that_overlap(ring: str, expected: list[int]) -> None:
    """Blocks of two rows go one word apart, in or out: of the words for one place the last one stays (DMA-1)."""
    arch = replace(random_arch(random.Random(1)), operand_bits=16, glb=Glb(GLB + 8, 4))
    machine = real_run(assemble(OVERLAP.format(ring=ring)), arch, np.arange(DRAM) - 300 + np.array([[0], [100], [300]]))
    assert not isinstance(machine, Trap)
    for memory, start in ((machine.glb, 0), (machine.dram, 800)):
        found = memory.read(np.arange(start, start + len(expected)))
        assert found.tolist() == [[word + image for word in expected] for image in (0, 100, 300)], memory.name


COLUMNS = """
    desc id=0 height=2 width=3 pitch=3
    desc id=1 base=1 pitch=12 column=2
    desc id=2 height=2 width=6 pitch=12
    desc id=3 base=100 pitch=6
    desc id=4 base=200
    dma dram=4 glb=5 words=24
    dma dram=0 glb=1 rows=2 words=3
    dma direction=out dram=3 glb=2 rows=2 words=6
    halt
"""


def test_columns_apart_by_hand() -> None:
    """Rows 7 8 9 and 10 11 12 take every second column, from word 1 on, of rows that are 12 words apart (DESC-2)."""
    arch = replace(random_arch(random.Random(1)), operand_bits=16)
    machine = real_run(assemble(COLUMNS), arch, np.arange(DRAM)[None] + 7)
    assert not isinstance(machine, Trap)
    assert machine.glb.read(np.arange(7))[0].tolist() == [207, 7, 209, 8, 211, 9, 213]
    assert machine.dram.read(np.arange(100, 106))[0].tolist() == [207, 7, 209, 8, 211, 9]
    assert machine.dram.read(np.arange(106, 112))[0].tolist() == [219, 10, 221, 11, 223, 12]


LOOKUP = """
    desc id=0
    desc id=1 base=100
    desc id=2 base=200
    dma words=12
    table entry0=10 entry1=20 entry2=-7
    table part=7 entry31=5
    unit lookup=1 shift=2 last=2 clamp_lo=-8 clamp_hi=2000
    commit source=glb operand=0 desc=1 pixels=12 pixel_term=x*1
    {between}
    commit source=glb operand=0 desc=2 pixels=12 pixel_term=x*1
    halt
"""
LOOKED_UP = [-8, -7, -6, -5, -4, -3, -1, 0, 1012, 1013, 1016, 1017]
VALUES = [10, 13, 15, 18, 20, 13, 0, -7, 5, 4, 2, 2]  # both are the example of COMMIT-7
AS_BEFORE = "unit lookup=1 shift=2 last=2 clamp_lo=-8 clamp_hi=2000"


@pytest.mark.parametrize(
    ("between", "then"),
    [
        (f"unit\n{AS_BEFORE}", VALUES),  # `unit` keeps the entries
        ("table part=7 entry31=21", [*VALUES[:8], 21, 16, 2, 2]),  # and `table` the settings, and the other entries
        (AS_BEFORE.replace("last=2 ", "last=-32768 "), [*VALUES[:8], 5, -8188, -32768, -32768]),
        (AS_BEFORE.replace("clamp_lo=-8", "clamp_lo=-4"), [10, 10, 10, 10, 10, 13, 18, 20, 0, 1, 5, 4]),
        (AS_BEFORE.replace("clamp_hi=2000", "clamp_hi=-6"), [10, 13, *[15] * 10]),
        (AS_BEFORE.replace("lookup=1", "lookup=0"), LOOKED_UP),
    ],
)
def test_a_table_by_hand(between: str, then: list[int]) -> None:
    """Entries 0, 1, 2 and 255 are 10, 20, -7 and 5, entry 256 is 2, four integers lie between them (COMMIT-7).

    From -4 on: entry 0 stands for -4, 1 for 0, 2 for 4, 254 for 1012, 255 for 1016.
    """
    arch = replace(random_arch(random.Random(1)), operand_bits=16)
    dram = np.zeros((1, DRAM), np.int64)
    dram[0, :12] = LOOKED_UP
    machine = real_run(assemble(LOOKUP.format(between=between)), arch, dram)
    assert not isinstance(machine, Trap)
    assert machine.glb.read(np.arange(100, 112))[0].tolist() == VALUES
    assert machine.glb.read(np.arange(200, 212))[0].tolist() == then


NO_WIDTH = """
    desc id=0
    dma dram=0 glb=0 words=20
    unit clamp_lo=-32768 clamp_hi=32767
    desc id=1 base=500
    desc id=2 height=2 fill=9
    load kind=ifmap desc=2 open=always close=always extent3=3 term3=x*1
    mac op=add taps=3 ifmap_j=1 clear=always send=always take_ifmap=always give_ifmap=always
    commit desc=1
    halt
"""


def test_an_image_of_no_width_is_all_border() -> None:
    """Bounds of height 2 and width 0 have nothing inside (DESC-3)."""
    machine = real_run(
        assemble(NO_WIDTH), replace(random_arch(random.Random(1)), operand_bits=16), np.arange(DRAM)[None]
    )
    assert not isinstance(machine, Trap)
    assert machine.glb.read(np.array([500])).tolist() == [[27]]


DRAWN = examples(25)  # programs of a block


@pytest.mark.parametrize("block", range(10))
def test_random_programs(block: int) -> None:
    outcomes = [compare(seed) for seed in range(block * DRAWN, (block + 1) * DRAWN)]
    assert outcomes.count("runs") >= 0.2 * DRAWN  # a generator of traps would show little


def test_every_instruction_has_a_rule() -> None:
    """What changes no values says so, as a loop and its end, which are a node of the tree."""
    rules = Interpreter(random_arch(random.Random(1)), Memory("dram", 1, 1, 0), lambda segment, dram: None).rules
    assert {*rules} == {spec.name for spec in SPECS}


def test_windows_of_a_half_are_those_of_the_pes_that_it_has() -> None:
    """All rectangles in and around 2 x 3 PEs, the words of each PE being its place; and what changes in one."""
    outer = Grid(1, 2, 1, 2, 1, 3, 2, 3)
    places = 10 * np.arange(1, 3)[:, None] + np.arange(2, 5)
    filled = np.ones((1, 2, 1, 3, 1), np.bool_)
    for row, col, rows, cols in product(range(4), range(6), (1, 2, 3), (1, 2, 3, 4)):
        half = Half(outer, places.reshape(1, 1, 2, 1, 3, 1).astype(np.int16), filled)
        grid = Grid(row, col, 1, rows, 1, cols, rows, cols)
        if not (row >= 1 and row + rows <= 3 and col >= 2 and col + cols <= 5):
            with pytest.raises(HalfFault, match=r"are not all among the PEs with psum: rows 1\.\.2, columns 2\.\.4"):
                half.window(grid, "psum")
            continue
        part = half.window(grid, "psum")
        wanted = 10 * np.arange(row, row + rows)[:, None] + np.arange(col, col + cols)
        assert part.data.shape == (1, 1, rows, 1, cols, 1) and np.array_equal(part.data.reshape(rows, cols), wanted)
        assert part.filled.shape == (1, rows, 1, cols, 1)
        part.data = part.data + 100
        half.replace(part)
        changed = half.data.reshape(2, 3)
        inside = np.zeros((2, 3), np.bool_)
        inside[row - 1 : row - 1 + rows, col - 2 : col - 2 + cols] = True
        assert np.array_equal(changed, np.where(inside, places + 100, places))


def test_a_half_grows_with_the_words_that_come() -> None:
    """Two slots of eight images, for which it has room, and then two more."""
    half, words = Half.empty(Grid(0, 0, 1, 1, 1, 1, 1, 1), 0), np.arange(32, dtype=np.int16).reshape(8, 1, 1, 1, 1, 4)
    half.put(0, words[..., :2], edge=False, most=2)
    half.put(2, words[..., 2:], edge=False, most=4)
    assert np.array_equal(half.data, words) and half.filled.all() and half.loaded == 4


def test_words_that_differ_take_as_much_memory_as_is_written() -> None:
    """A memory of 2**22 words for 10**6 images is 8 TiB; of those that differ, the highest address is 6."""
    images = 10**6
    values = np.arange(images).astype(np.int16)[:, None]
    glb = Memory("glb", 1 << 22, images)
    glb.write(np.array([3]), values)
    before = glb.part(2, 5)
    glb.write(np.array([6]), values + 1)
    glb.write(np.array([1 << 21]), values[:1] + 7)
    assert np.array_equal(glb.read(np.array([3, 6, 3])), np.hstack([values, values + 1, values]))
    glb.write(np.array([3]), values + 2)
    glb.put_back(2, before)
    assert np.array_equal(glb.read(np.array([3, 1 << 21]))[:5], np.hstack([values, np.full_like(values, 7)])[:5])
    with pytest.raises(OutOfRange, match="glb word 7 is read but was never written"):
        glb.read(np.array([6, 7]))
