"""A plain interpreter of values, to compare the real one with: one image, one PE, one word, one multiply at a time.

Written from docs/machine.md alone, whose rules it cites; it shares no code with cnncc/machine but the Trap. It counts
words as it moves them (docs/stats.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import product
from math import floor, frexp
from operator import add

import numpy as np

from cnncc.arch.model import Arch
from cnncc.isa.fields import FieldTerm
from cnncc.isa.table import Instruction

Place = tuple[int, int, int, int, int, int]  # row, column of the array; row in set, row set, column in set, column set
Position = tuple[int, int, int, int]  # linear words, channel, row, column


def inst_n2n_slots(inst: Instruction) -> range:
    """The ifmap slots that n2n fills, one word a pixel step."""
    return range(inst.number("n2n_slot"), inst.number("n2n_slot") + inst.number("data_reuse"))


class PlainTrap(Exception):
    """The instruction `index`, the `step`th that ran, cannot be done."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.index = self.step = -1


def check(holds: bool, why: str) -> None:
    if not holds:
        raise PlainTrap(why)


def f32(exact: Fraction) -> np.float32:
    """The float32 nearest to a number, ties to even."""
    if exact.denominator == 1 and abs(exact.numerator) < 1 << 24:
        return np.float32(exact.numerator)
    exponent = 24 - frexp(float(exact))[1]  # or near it
    while abs(exact) * Fraction(2) ** exponent < 1 << 23:
        exponent += 1
    while abs(exact) * Fraction(2) ** exponent >= 1 << 24:
        exponent -= 1
    return np.float32(round(exact * Fraction(2) ** exponent) * 2.0**-exponent)


def f32_of_bits(bits: int) -> Fraction:
    return Fraction(float(np.array(bits, np.uint32).view(np.float32)))


def clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


class Half:
    """One half of a register file: what is in (row, column, slot), and the PEs and sets that it belongs to."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        self.slots: dict[tuple[int, int, int], int] = {}
        self.edges: set[int] = set()
        self.loads: set[int] = set()
        self.least: int | None = None

    def get(self, row: int, col: int, slot: int) -> int:
        try:
            return self.slots[row, col, slot]
        except KeyError:
            raise PlainTrap(f"slot {slot} of PE {row},{col} is empty") from None


class File:
    def __init__(self, halves: int, words: int) -> None:
        self.halves, self.words = halves, words
        self.opened: Half | None = None
        self.full: list[Half] = []
        self.current: Half | None = None

    def held(self) -> int:
        return (self.opened is not None) + len(self.full) + (self.current is not None)


class PlainMachine:
    def __init__(self, arch: Arch, dram: list[int]) -> None:
        self.arch, self.dram = arch, dram
        self.glb: list[int | None] = [None] * arch.glb.words
        self.files = {
            "weight": File(arch.pe.weight_halves, arch.pe.weight_words),
            "ifmap": File(arch.pe.ifmap_halves, arch.pe.ifmap_words),
            "psum": File(arch.pe.psum_halves, arch.pe.psum_words),
        }
        self.descs: dict[int, Instruction] = {}
        self.steps: dict[int, dict[tuple[str, int], FieldTerm]] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}  # of the descriptors that an instruction uses
        self.unit: Instruction | None = None
        self.table = [0] * 256
        self.loops: list[list[int]] = []  # start, iteration, count
        self.executed = 0
        self.moved: Counter[str] = Counter()

    def run(self, program: Sequence[Instruction]) -> None:
        at = 0
        while (name := program[at].spec.name) != "halt":
            inst = program[at]
            self.executed += 1
            self.shapes.clear()
            if name == "loop":
                self.loops.append([at, 0, inst.number("count")])
            elif name == "end":
                self.loops[-1][1] += 1
                if self.loops[-1][1] < self.loops[-1][2]:
                    at = self.loops[-1][0]
                else:
                    self.loops.pop()
            elif name in ("desc", "step", "dma", "load", "mac", "unit", "table", "commit"):
                try:
                    getattr(self, f"do_{name}")(inst)
                except PlainTrap as trap:
                    trap.index, trap.step = at, self.executed
                    raise
            at += 1

    def holds(self, when: tuple[int, ...] | None, last: bool) -> bool:  # PROG-2
        if when is None:
            return False
        return all(
            register >= len(self.loops) or self.loops[register][1] == (self.loops[register][2] - 1 if last else 0)
            for register in when
        )

    # Memories (MEM-3) and addresses (DESC-1 to DESC-4).

    def read_glb(self, address: int) -> int:
        check(0 <= address < len(self.glb), "GLB has no such word")
        word = self.glb[address]
        check(word is not None, "a GLB word that was never written")
        assert word is not None
        return word

    def write_glb(self, address: int, word: int) -> None:
        check(0 <= address < len(self.glb), "GLB has no such word")
        self.glb[address] = word

    def do_desc(self, inst: Instruction) -> None:
        self.descs[inst.number("id")], self.steps[inst.number("id")] = inst, {}

    def do_step(self, inst: Instruction) -> None:
        term = inst.term("by")
        kind = "linear" if term.axis == "lin" else "other"
        self.steps.setdefault(inst.number("id"), {})[kind, inst.number("loop")] = term

    def field(self, desc: int, name: str) -> int:
        return self.descs[desc].number(name) if desc in self.descs else 0

    def added(self, desc: int) -> dict[str, int]:
        """What the terms of loops add on each axis."""
        added = dict.fromkeys(("lin", "k", "y", "x"), 0)
        for (_, register), term in self.steps.get(desc, {}).items():
            if register < len(self.loops):
                added[term.axis] += term.step * self.loops[register][1]
        return added

    def circular(self, desc: int, offset: int) -> int:
        """base + (offset + linear terms of loops) mod wrap."""
        base, wrap, *_, linear, _, _, _ = self.shape(desc)
        at = linear + offset
        return base + (at % wrap if wrap else at)

    def address(self, desc: int, start: dict[str, int], terms: list[tuple[FieldTerm, int]]) -> tuple[int, bool]:
        """The word address of a position, and whether it is inside the bounds."""
        return self.address_at(desc, start, *self.position(terms))

    @staticmethod
    def position(terms: Iterable[tuple[FieldTerm, int]]) -> Position:
        """What terms add on each axis."""
        axis = {"lin": 0, "k": 0, "y": 0, "x": 0}
        for (name, step), index in terms:
            axis[name] += step * index
        return axis["lin"], axis["k"], axis["y"], axis["x"]

    def address_at(self, desc: int, start: dict[str, int], lin: int, k: int, y: int, x: int) -> tuple[int, bool]:
        """The same of a position by its axes."""
        base, wrap, plane, pitch, column, height, width, ring_y, ring_x, *loops = self.shape(desc)
        linear, k_loops, y_loops, x_loops = loops
        k, y, x = k + k_loops + start["channel"], y + y_loops + start["y"], x + x_loops + start["x"]
        inside = height == 0 or (0 <= y < height and 0 <= x < width)
        linear += start["offset"]
        at = base + (linear % wrap if wrap else linear) + lin + k * plane
        return at + self.ring(ring_y, y) * pitch + self.ring(ring_x, x) * max(1, column), inside

    def shape(self, desc: int) -> tuple[int, ...]:
        """The base and wrap, steps, bounds and rings of a buffer; and what loops add: words, channels, rows, columns.

        They are the same for all words of an instruction.
        """
        if desc not in self.shapes:
            names = ("base", "wrap", "plane", "pitch", "column", "height", "width", "ring_y", "ring_x")
            self.shapes[desc] = (*(self.field(desc, name) for name in names), *self.added(desc).values())
        return self.shapes[desc]

    @staticmethod
    def ring(size: int, at: int) -> int:
        """The row or column of the buffer in which one of the image is kept: found by going round."""
        while size and at < 0:
            at += size
        while size and at >= size:
            at -= size
        return at

    def start(self, inst: Instruction) -> dict[str, int]:
        return {name: inst.number(name) for name in ("offset", "channel", "y", "x")}

    def places(self, inst: Instruction, set_rows: int) -> list[Place]:
        rows, cols, set_cols = inst.number("rows"), inst.number("cols"), inst.number("set_cols")
        row0, col0 = inst.number("row0"), inst.number("col0")
        check(row0 + rows <= self.arch.rows and col0 + cols <= self.arch.cols, "no such PEs")
        return [
            (row0 + r, col0 + c, r % set_rows, r // set_rows, c % set_cols, c // set_cols)
            for r in range(rows)
            for c in range(cols)
        ]

    def is_last(self, inst: Instruction, place: Place) -> bool:
        """The last column of its set, which may be cut short by the edge of the rectangle."""
        return place[4] == inst.number("set_cols") - 1 or place[1] == inst.number("col0") + inst.number("cols") - 1

    def pe_terms(self, inst: Instruction, place: Place) -> list[tuple[FieldTerm, int]]:
        return [(inst.term(name), place[2 + i]) for i, name in enumerate(("row", "row_set", "col", "col_set"))]

    def fits_word(self, value: int) -> bool:
        return -(1 << self.arch.operand_bits - 1) <= value < 1 << self.arch.operand_bits - 1

    # Instructions.

    def do_dma(self, inst: Instruction) -> None:  # DMA-1
        sizes = [inst.number(name) for name in ("count", "rows", "words")]
        check(sizes[0] * sizes[1] * sizes[2] <= len(self.glb), "more words than the GLB has")
        into_glb, (y, x) = inst.text("direction") == "in", (inst.number("y"), inst.number("x"))
        sides = [
            (
                inst.number(side),
                {"channel": 0, "y": y, "x": x, "offset": inst.number(f"{side}_offset")},
                FieldTerm("lin", inst.number(f"{side}_step")),
            )
            for side in ("dram", "glb")
        ]
        down, across = FieldTerm("y", 1), FieldTerm("x", 1)
        for block, row, word in product(*map(range, sizes)):
            at = [(down, row), (across, word)]
            (dram, inside), (glb, _) = (self.address(desc, start, [*at, (step, block)]) for desc, start, step in sides)
            if not inside:
                continue
            check(0 <= dram < len(self.dram), "DRAM has no such word")
            if into_glb:
                self.write_glb(glb, self.dram[dram])
                moved = ("dram_read", "glb_write_dma")
            else:
                self.dram[dram] = self.read_glb(glb)
                moved = ("glb_read_dma", "dram_write")
            for what in moved:
                self.moved[what] += 1

    def do_load(self, inst: Instruction) -> None:  # LOAD-1, TOKEN-1
        file, places = self.files[inst.text("kind")], self.places(inst, inst.number("set_rows"))
        if self.holds(inst.when("open"), last=False):
            check(file.opened is None and file.held() < file.halves, "no half is free")
            file.opened = Half(places)
        half = file.opened
        check(half is not None, "no half is open")
        assert half is not None
        check(half.places == places, "loads of one half go to the same PEs in the same sets")
        edge, kind, first_slot = inst.number("edge"), inst.text("kind"), inst.number("slot")
        most = file.words + (self.arch.pe.virtual_words if edge and self.arch.pe.pong_words else 0)
        takers = [place for place in places if not edge or self.is_last(inst, place)]
        positions = [self.position(self.pe_terms(inst, place)) for place in takers]  # LOAD-2
        sent = self.load_words(inst, dict.fromkeys(positions))
        for (row, col, *_), position in zip(takers, positions, strict=True):
            for slot, word in enumerate(sent[position], first_slot):
                half.slots[row, col, slot] = word
            self.moved[f"rf_{kind}_write"] += len(sent[position])
        slots = range(first_slot, first_slot + len(sent[positions[0]]))
        check(slots[-1] < most, "beyond the half")
        (half.edges if edge else half.loads).update(slots)
        if self.holds(inst.when("close"), last=True):
            file.full.append(half)
            file.opened = None

    def load_words(self, inst: Instruction, positions: Iterable[Position]) -> dict[Position, list[int]]:
        """The words of each position; PEs with the same one take the same words."""
        desc, start, kind = inst.number("desc"), self.start(inst), inst.text("kind")
        fill, zero, most = self.field(desc, "fill"), self.field(desc, "zero"), 1 << self.arch.operand_bits
        terms = [(inst.term(f"term{i}"), range(inst.number(f"extent{i}"))) for i in range(4)]
        pattern = [
            self.position((term, i) for (term, _), i in zip(terms, at, strict=True))
            for at in product(*(extent for _, extent in terms))
        ]
        sent = {position: list[int]() for position in positions}
        for position, words in sent.items():
            for at in pattern:
                address, inside = self.address_at(desc, start, *map(add, position, at))
                word = (self.read_glb(address) if inside else fill) - zero
                self.moved[f"glb_read_{kind}"] += inside
                check(-most <= word < most, "an operand that is too large")  # DESC-3
                words.append(word)
            self.moved[f"bus_{kind}"] += len(words)
        return sent

    def take(self, inst: Instruction, name: str) -> Half:  # TOKEN-2
        file = self.files[name]
        if self.holds(inst.when(f"take_{name}"), last=False):
            check(file.current is None, f"{name} half not given back")
            check(bool(file.full), f"no full {name} half")
            file.current = file.full.pop(0)
        check(file.current is not None, f"no {name} half in use")
        assert file.current is not None
        return file.current

    def do_mac(self, inst: Instruction) -> None:  # MAC-1, MAC-2, TOKEN-3
        op = inst.text("op")
        names = ("ifmap", "weight") if op == "mac" else ("ifmap",)
        halves = {name: self.take(inst, name) for name in names}
        places = self.places(inst, 1)
        check(inst.number("pixels") <= self.arch.pe.max_pixels, "too many pixels")
        lanes = range(inst.number("lanes"))
        own = inst.number("psum_l")
        check(len(lanes) <= (self.arch.pe.lanes if op == "mac" or own else 1), "too many lanes")
        if own:  # MAC-7
            check(self.arch.pe.lane_sums, "psum_l without lane_sums")
            steps = [inst.number(f"psum_{name}") for name in ("slot", "z", "j", "i")]
            check(all(step % self.arch.pe.lanes == 0 for step in steps), "psums of one of the lanes in several banks")
        self.n2n(inst, halves["ifmap"], places)
        sums = self.psum_half(inst, places)
        pixels, taps, step_range = (inst.number(counter) for counter in ("pixels", "taps", "step_range"))
        slots = {name: [inst.number(f"{name}_{by}") for by in ("slot", "z", "j", "i")] for name in ("psum", *names)}
        ifmap_l, weight_l = inst.number("ifmap_l"), inst.number("weight_l") if op == "mac" else 0
        n2n_slots, most = inst_n2n_slots(inst), 1 << self.arch.psum_bits
        pes = [(place[0], place[1], self.is_last(inst, place)) for place in places]
        ifmap, weight = halves["ifmap"], halves.get("weight")
        for z, j, i in product(range(pixels), range(taps), range(step_range)):
            slot = {name: at + z * by_z + j * by_j + i * by_i for name, (at, by_z, by_j, by_i) in slots.items()}
            last = slot["psum"] + own * (len(lanes) - 1)
            if slot["psum"] < 0 or last >= self.arch.pe.psum_words:
                raise PlainTrap(f"psum slot {slot['psum']}")
            step = z * taps + j
            for row, col, is_last in pes:
                terms = list[int]()
                for lane in lanes:
                    ifmap_slot = slot["ifmap"] + lane * ifmap_l
                    if ifmap_slot in n2n_slots and (not is_last or self.arch.pe.pong_words):  # MAC-6
                        check(step > ifmap_slot - n2n_slots.start, "a word is used before it arrives")
                    term = ifmap.get(row, col, ifmap_slot)
                    terms.append(term * weight.get(row, col, slot["weight"] + lane * weight_l) if weight else term)
                for lane, word in enumerate(terms if own else [sum(terms)]):
                    at = row, col, slot["psum"] + own * lane
                    before = sums.slots.get(at, sums.least)
                    after = max(before, word) if op == "max" else before + word
                    if abs(2 * after + 1) >= most:
                        raise PlainTrap("a psum that is too large")
                    sums.slots[at] = after
        steps = pixels * taps * step_range * len(pes)
        for counted in ({"mac": "macs"}.get(op, op), *(f"rf_{name}_read" for name in names)):
            self.moved[counted] += steps * len(lanes)
        for counted in ("rf_psum_read", "rf_psum_write"):  # lanes without sums of their own add up to one word
            self.moved[counted] += steps * (len(lanes) if own else 1)
        for name in names:
            if self.holds(inst.when(f"give_{name}"), last=True):
                self.files[name].current = None
        if self.holds(inst.when("send"), last=True):
            self.files["psum"].full.append(sums)
            self.files["psum"].current = None

    def n2n(self, inst: Instruction, half: Half, places: list[Place]) -> None:  # MAC-3
        reuse, slot = inst.number("data_reuse"), inst.number("n2n_slot")
        if reuse:
            check(self.arch.links.n2n, "no links")
            check(reuse <= inst.number("pixels") * inst.number("taps"), "more words than pixel steps")
        if self.arch.pe.pong_words:
            self.ping_pong(inst, half)
        elif reuse:
            check(slot + reuse <= self.arch.pe.ifmap_words, "beyond the half")
        for k in range(reuse):
            takers = [place for place in places if not self.is_last(inst, place)]
            words = [half.get(row, col + 1, k) for row, col, *_ in takers]
            for (row, col, *_), word in zip(takers, words, strict=True):
                half.slots[row, col, slot + k] = word
                self.moved.update(("n2n", "rf_ifmap_write"))

    def ping_pong(self, inst: Instruction, half: Half) -> None:  # MAC-6
        reuse, turn, pe = inst.number("data_reuse"), inst.number("n2n_slot"), self.arch.pe
        check(not half.edges or reuse > 0, "words of a virtual neighbour that nothing takes")
        if reuse == 0:
            return
        check(self.holds(inst.when("take_ifmap"), last=False), "ping and pong are not taken")
        check(self.holds(inst.when("give_ifmap"), last=True), "ping and pong are not given back")
        check(turn > 0 and all(slot < turn for slot in half.loads), "ping is loaded too far")
        check(all(turn <= slot < turn + reuse for slot in half.edges), "virtual words elsewhere")
        check(reuse <= pe.virtual_words, "the virtual neighbour has too many words")
        check(turn <= pe.ifmap_words and min(turn, reuse) <= pe.pong_words, "beyond ping or pong")
        for step in range(inst.number("pixels") * inst.number("taps")):
            for i, lane in product(range(inst.number("step_range")), range(inst.number("lanes"))):
                z, j = divmod(step, inst.number("taps"))
                at = (z, j, i, lane)
                slot = inst.number("ifmap_slot") + sum(
                    n * inst.number(f"ifmap_{c}") for n, c in zip(at, "zjil", strict=True)
                )
                arrived = turn + min(step, reuse - 1)  # the last slot filled when this step ends
                check(slot + 2 * turn > arrived, "another word is there")

    def psum_half(self, inst: Instruction, places: list[Place]) -> Half:
        file = self.files["psum"]
        if self.holds(inst.when("clear"), last=False):
            check(file.current is None and file.held() < file.halves, "no psum half is free")
            file.current = Half(places)
            file.current.least = -(1 << self.arch.psum_bits - 1) if inst.text("op") == "max" else 0
        check(file.current is not None, "no psum half is open")
        assert file.current is not None
        check(file.current.places == places, "same PEs in the same sets from clear to send")
        return file.current

    def do_unit(self, inst: Instruction) -> None:
        self.unit = inst

    def do_table(self, inst: Instruction) -> None:  # COMMIT-7
        for i in range(32):
            self.table[32 * inst.number("part") + i] = inst.number(f"entry{i}")

    def do_commit(self, inst: Instruction) -> None:  # COMMIT-1
        places = self.places(inst, inst.number("set_rows"))
        half = None
        if inst.text("source") == "psum":
            check(bool(self.files["psum"].full), "no psum half was sent")
            half = self.files["psum"].full.pop(0)
        results: list[tuple[int, int]] = []
        columns = {place: [place] for place in places}
        if inst.number("reduce"):  # COMMIT-6
            check(self.arch.links.south, "no links to the south")
            check(half is not None, "no psums to add up")
            check(inst.number("rows") % min(inst.number("set_rows"), inst.number("rows")) == 0, "a set is cut short")
            check(inst.term("row").step == 0, "results differ by row")
            columns = {}
            for place in places:  # from north to south
                head = next((top for top in columns if top[1] == place[1] and top[3] == place[3]), place)
                columns.setdefault(head, []).append(place)
        parts: list[tuple[int, int]] = []
        channels: set[tuple[int, ...]] = set()
        final = not inst.number("partial") or self.holds(inst.when("final"), last=True)
        counts = [range(inst.number(name)) for name in ("pixels", "lines", "channels")]
        with_psums = {place[:2] for place in half.places} if half else set[tuple[int, ...]]()
        of_pe = {place: self.pe_terms(inst, place) for place in columns}
        along = [inst.term(f"{name}_term") for name in ("pixel", "line", "channel")]
        for place, pixel, line, channel in product(columns, *counts):
            terms = [*of_pe[place], *zip(along, (pixel, line, channel), strict=True)]
            if half is None:
                value = self.read_operand(inst, "operand", terms)
            else:
                slot = inst.number("psum_slot") + pixel * inst.number("psum_z")
                slot += line * inst.number("psum_j") + channel * inst.number("psum_i")
                if not 0 <= slot < self.arch.pe.psum_words:
                    raise PlainTrap(f"psum slot {slot}")
                value = 0
                for row, col, *_ in columns[place]:
                    check((row, col) in with_psums, "PE without psums")
                    self.moved["rf_psum_read"] += 1
                    word = half.slots.get((row, col, slot), half.least)
                    assert word is not None
                    value += word
                    if abs(2 * value + 1) >= 1 << self.arch.psum_bits:
                        raise PlainTrap(f"psum {value} on its way")
                self.moved["psum_link"] += len(columns[place]) - 1
            assert value is not None
            if inst.number("partial"):  # COMMIT-5
                value = self.accumulate(inst, value, terms, parts)
            if not final:
                continue
            address, inside = self.address(inst.number("desc"), self.start(inst), terms)
            check(inside, "outside the bounds")  # COMMIT-4
            channels.add(tuple(index if term.axis == "k" and term.step else 0 for term, index in terms))
            value = self.output_unit(inst, value, terms)
            if not self.fits_word(value):
                raise PlainTrap(f"result {value}")
            results.append((address, value))
        for written in (results, parts):
            check(len({address for address, _ in written}) == len(written), "a word is written twice")
        unit = self.unit
        if unit is not None:
            quantities = len(channels) * (unit.number("bias") + unit.number("scale"))
            self.moved["glb_read_params"] += quantities * 32 // self.arch.operand_bits
        for address, value in results if final else parts:
            self.moved["glb_write_results" if final else "glb_write_sums"] += 1
            self.write_glb(address, value)

    def accumulate(
        self, inst: Instruction, value: int, terms: list[tuple[FieldTerm, int]], parts: list[tuple[int, int]]
    ) -> int:
        bits = self.arch.operand_bits
        wide = max(32, self.arch.psum_bits)
        each, base = -(-wide // bits), self.field(inst.number("sums"), "base")
        address, inside = self.address(inst.number("sums"), self.start(inst), terms)
        check(inside, "partial sums outside their bounds")
        at = base + (address - base) * each
        if not self.holds(inst.when("fresh"), last=False):
            stored = self.param(at, each)
            self.moved["glb_read_sums"] += each
            value += stored - (1 << bits * each) * (stored >> bits * each - 1)
        check(-(1 << wide - 1) <= value < 1 << wide - 1, f"partial sum {value}")
        for i in range(each):
            word = (value >> (bits * i)) % (1 << bits)
            parts.append((at + i, word - (1 << bits) * (word >> (bits - 1))))
        return value

    def read_operand(self, inst: Instruction, name: str, terms: list[tuple[FieldTerm, int]]) -> int:
        address, inside = self.address(inst.number(name), self.start(inst), terms)
        check(inside, f"{name} outside its bounds")
        self.moved[f"glb_read_{name}"] += 1
        return self.read_glb(address)

    def output_unit(self, inst: Instruction, value: int, terms: list[tuple[FieldTerm, int]]) -> int:  # COMMIT-2
        unit = self.unit
        if unit is None:
            return clamp(value, -(1 << 31), (1 << 31) - 1)
        each = 32 // self.arch.operand_bits
        words = each * (unit.number("bias") + unit.number("scale"))
        channel = sum(term.step * index for term, index in terms if term.axis == "k")
        params = self.circular(inst.number("params"), inst.number("param") * words) + channel * words
        if unit.number("bias"):
            bits = self.param(params, each)
            value += bits - (1 << 32) * (bits >> 31)
        if unit.number("scale"):
            bits = self.param(params + each * unit.number("bias"), each)
            with np.errstate(over="ignore", invalid="ignore"):  # a scale may be any bits
                product = f32(Fraction(value)) * np.array(bits, np.uint32).view(np.float32)
                if unit.number("leaky") and product < 0:
                    product = product * np.array(unit.number("slope"), np.uint32).view(np.float32)
            value = self.rounded(product, unit.number("zero"), unit.number("clamp_lo"), unit.number("clamp_hi"))
        value = clamp(value, unit.number("clamp_lo"), unit.number("clamp_hi"))
        if unit.number("lookup"):
            value = self.looked_up(value, unit)
        if unit.number("residual"):
            a, b, fixed = (f32_of_bits(unit.number(name)) for name in ("factor_a", "factor_b", "fixed"))
            residual = Fraction(self.read_operand(inst, "residual", terms))
            real = Fraction(float(f32(Fraction(value))))
            if unit.number("multiply"):
                product = Fraction(float(f32(real * Fraction(float(f32(residual - b))))))
                total = Fraction(float(f32(product * a))) + fixed
            else:
                total = real * a + Fraction(float(f32(residual * b + fixed)))
            value = round(Fraction(float(f32(total))))
            value = clamp(value, unit.number("add_lo"), unit.number("add_hi"))
        return value

    def looked_up(self, value: int, unit: Instruction) -> int:  # COMMIT-7
        """The line from entry to entry, exactly; then to the nearest integer, and up from the middle of two."""
        entries = [*self.table, unit.number("last")]
        place = Fraction(value - unit.number("clamp_lo"), 2 ** unit.number("shift"))
        place = max(Fraction(0), min(place, Fraction(256)))
        i = floor(place)
        after = entries[min(i + 1, 256)]
        return floor(entries[i] + (after - entries[i]) * (place - i) + Fraction(1, 2))

    def rounded(self, product: np.float32, zero: int, low: int, high: int) -> int:
        """Half to even, plus zero; what is no number is `low`, as garbage for a scale may give."""
        if not np.isfinite(product):
            return high if product > 0 else low
        return clamp(round(float(product)) + zero, low, high)

    def param(self, address: int, words: int) -> int:
        """The bits of a 32-bit quantity (MEM-1)."""
        bits = self.arch.operand_bits
        return sum((self.read_glb(address + n) & (1 << bits) - 1) << bits * n for n in range(words))
