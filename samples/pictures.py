"""Draw the pictures of docs/: the machine, a PE set, ping and pong, the timeline of a layer, groups and cores.

    python samples/pictures.py                 writes docs/pictures/*.svg, the same bytes for the same code

Sizes come from an array's file, words from the atomic schedule of a layer, times from the clock of the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click

from cnncc.api import Binary, CompileOptions, compile_model, program_stats
from cnncc.arch.model import Arch, load_arch
from cnncc.binary.isa_module import layers
from cnncc.driver.pipeline import TO_PROGRAMS
from cnncc.driver.sources import start_before_programs
from cnncc.eval.atomic import Atom, Reuse, Word, atomic_schedule
from cnncc.isa.table import Instruction
from cnncc.machine.instruction_sizes import UnitSettings
from cnncc.machine.program import ALL_LOOPS, Leaf, Node, build_tree
from cnncc.machine.times.clock import Clock, start_state
from cnncc.machine.times.durations import Occupancy
from cnncc.machine.times.loop_texts import LoopTexts, waits_for
from cnncc.machine.times.tasks import ENGINES, EngineTask, queue_of
from cnncc.util.progress import silent

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "pictures"

INK, GREY, PALE, PAPER = "#1f2328", "#57606a", "#eef1f4", "#ffffff"
COLOURS = {"dma": "#8250df", "load": "#0969da", "array": "#bc4c00", "commit": "#1a7f37"}
WEIGHT, IFMAP = "#54aeff", "#0969da"
LOADED, MOVED, SUMS, SKIN, DASHED = "#ddf4ff", "#ffd8b5", "#dafbe1", "#fff8f2", "4 3"

# A set of four PEs, each with an output pixel of its own; neighbours' windows share two of three columns.
SET_MODEL, SET_LAYER, SET_ARRAY = "samples/models/mnist.onnx", "conv0", "seed-8x8"
SET_MAPPING = '["conv0"]\npox = 4\n'
SET_LOOPS = {"k0": 0, "h1": 1, "w2": 1}  # a macro-instruction in which no window reaches into the padding
PE, CYCLES = 1, 6

TIME_MODEL, TIME_LAYER, TIME_ARRAY = "samples/models/lenet.onnx", "c2", "spatial-8x8"
TIME_MAPPING = """["c2"]
mapping = "params@glb > h':2 > [k':4||4@rows k''||4@cols h''||2@cols] > c':2 > weight@glb*2 > r':3 > c''||2@rows \
> weight@rf*2 > ifmap@rf*2 > {w > s > r''}"
"""


@dataclass
class Picture:
    """An SVG file: what is drawn, from the back to the front, on a background of its own."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list[str])

    def box(
        self,
        x: int,
        y: int,
        width: int,
        height: int,
        fill: str = PALE,
        line: str = GREY,
        dash: str = "",
        round: int = 3,
    ) -> None:
        """A rectangle."""
        look = f'rx="{round}" fill="{fill}" stroke="{line}"' + (f' stroke-dasharray="{dash}"' if dash else "")
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {look}/>')

    def text(
        self, x: int, y: int, text: str, size: int = 13, colour: str = INK, anchor: str = "start", bold: bool = False
    ) -> None:
        """A line of text; y is its base line."""
        weight = ' font-weight="bold"' if bold else ""
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>{escaped}</text>'
        )

    def lines(self, x: int, y: int, texts: Sequence[str], size: int = 12, colour: str = GREY) -> None:
        """Lines of text below each other."""
        for i, text in enumerate(texts):
            self.text(x, y + i * (size + 4), text, size, colour)

    def path(
        self, points: Iterable[tuple[int, int]], colour: str = GREY, arrow: bool = True, both: bool = False
    ) -> None:
        """A line through points, with an arrow at its end (at both)."""
        corners = list(points)
        drawn = " ".join(f"{x},{y}" for x, y in corners)
        self.parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if arrow:
            self._head(corners[-2], corners[-1], colour)
        if both:
            self._head(corners[1], corners[0], colour)

    def _head(self, start: tuple[int, int], end: tuple[int, int], colour: str) -> None:
        """The head of an arrow along an axis."""
        x, y = end
        dx, dy = ((n > 0) - (n < 0) for n in (x - start[0], y - start[1]))
        back, side = (x - 6 * dx, y - 6 * dy), (3 * dy, 3 * dx)
        corners = (end, (back[0] + side[0], back[1] + side[1]), (back[0] - side[0], back[1] - side[1]))
        self.parts.append(f'<polygon points="{" ".join(f"{a},{b}" for a, b in corners)}" fill="{colour}"/>')

    def svg(self) -> str:
        """The file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="Helvetica, Arial, sans-serif" role="img">'
        )
        paper = f'<rect width="{self.width}" height="{self.height}" rx="6" fill="{PAPER}"/>'
        return "\n".join([head, f"<title>{self.title}</title>", paper, *self.parts, "</svg>"]) + "\n"


# -- the machine -------------------------------------------------------------------------------------------------------


def machine(arch: Arch) -> Picture:
    """An array of PEs with all that surrounds it, and what is in a PE."""
    picture = Picture(1000, 590, f"The machine {arch.name}: {arch.rows} x {arch.cols} PEs, memories, buses, engines")
    _sequencer(picture, arch)
    kib = arch.glb.words * arch.operand_bits // 8192
    picture.box(20, 262, 120, 84)
    picture.text(32, 284, "DRAM", bold=True)
    picture.lines(32, 303, ["weights, inputs,", "results"])
    picture.path([(140, 304), (206, 304)], COLOURS["dma"], both=True)
    picture.text(173, 294, "dma", 12, COLOURS["dma"], "middle", bold=True)
    picture.lines(146, 322, [f"{arch.dram.words_per_cycle} words", "a cycle"], 11)
    picture.box(206, 116, 124, 376)
    picture.text(218, 138, "GLB", bold=True)
    rate = f"{arch.glb.words_per_cycle} words"
    picture.lines(218, 157, ["global buffer", f"{arch.glb.words:,} words", f"({kib} KiB)"])
    picture.lines(218, 236, ["port of loads:", rate, "a cycle", "", "port of commits:", rate, "a cycle"])
    _array(picture, arch)
    _inside_a_pe(picture, arch)
    return picture


def _sequencer(picture: Picture, arch: Arch) -> None:
    """The program's way to the engines."""
    picture.box(20, 20, 310, 62)
    picture.text(32, 40, "sequencer", bold=True)
    picture.lines(32, 60, ["reads the program: hardware loops,", "addresses; one instruction a cycle"], 11)
    picture.path([(330, 51), (372, 51)])
    depth = arch.sequencer.queue_depth
    for i, (engine, colour) in enumerate(COLOURS.items()):
        x = 380 + i * 152
        picture.text(x, 40, engine, 13, colour, bold=True)
        for entry in range(depth):
            picture.box(x + entry * 128 // depth, 48, 128 // depth - 4, 14, PAPER, colour)
    picture.text(380, 82, f"four engines work at the same time, each with a queue of {depth} instructions", 12, GREY)


_LINKS = "Leftwards: input words to the west neighbour (n2n). Down: partial sums, to be added up or to be committed."


def _array(picture: Picture, arch: Arch) -> None:
    """PEs, row buses, links, output units."""
    left, top, pitch_x, pitch_y = 376, 128, 392 // arch.cols, 376 // arch.rows
    width, height = pitch_x - 15, pitch_y - 18
    right = left + arch.cols * pitch_x
    load, mac, commit = COLOURS["load"], COLOURS["array"], COLOURS["commit"]
    for row in range(arch.rows):
        y = top + row * pitch_y
        bus = y - 7
        picture.path([(330, bus), (right - 14, bus)], load, arrow=False)
        for col in range(arch.cols):
            x = left + col * pitch_x
            picture.path([(x + 6, bus), (x + 6, y)], load)
            picture.box(x, y, width, height, SKIN, mac)
            picture.text(x + width // 2 + 2, y + height // 2 + 5, "PE", 12, INK, "middle")
            if arch.links.n2n:
                end = x + pitch_x if col + 1 < arch.cols else right + 4
                picture.path([(end, y + height // 2), (x + width, y + height // 2)], IFMAP)
            down = y + pitch_y if row + 1 < arch.rows else 506
            picture.path([(x + width - 6, y + height), (x + width - 6, down)], commit)
    for col in range(arch.cols):
        picture.box(left + col * pitch_x, 506, width, 22, SUMS, commit)
    picture.path([(left, 517), (268, 517), (268, 492)], commit)
    units = arch.commit.units_per_column
    picture.text(left, 547, f"output units, {units} a column: bias, scale, rounding, clamp", 12, commit)
    picture.text(218, 547, "commit", 13, commit, bold=True)
    picture.text(338, 116, f"load by row buses, {arch.bus.burst_words} words a message", 12, load)
    picture.lines(20, 572, [_LINKS])


def _inside_a_pe(picture: Picture, arch: Arch) -> None:
    """One PE enlarged: its register files and its arithmetic."""
    pe, x = arch.pe, 800
    picture.box(x, 116, 180, 376, SKIN, COLOURS["array"])
    picture.text(x + 12, 138, "inside a PE", bold=True)
    files = (("weights", pe.weight_halves, pe.weight_words, 152), ("ifmap", pe.ifmap_halves, pe.ifmap_words, 214))
    for name, halves, words, y in files:
        picture.box(x + 12, y, 156, 46, LOADED, COLOURS["load"])
        picture.text(x + 22, y + 19, name, 12, bold=True)
        picture.text(x + 22, y + 36, f"{halves} x {words} words", 12, GREY)
    picture.path([(x + 90, 260), (x + 90, 292)])
    picture.box(x + 12, 292, 156, 46, PAPER, COLOURS["array"])
    picture.text(x + 90, 312, "multiply, add", 12, INK, "middle", bold=True)
    lanes = f"{pe.lanes} products a cycle" if pe.lanes > 1 else "1 product a cycle"
    picture.text(x + 90, 329, lanes, 12, GREY, "middle")
    picture.path([(x + 90, 338), (x + 90, 370)], both=True)
    picture.box(x + 12, 370, 156, 46, SUMS, COLOURS["commit"])
    picture.text(x + 22, 389, "psums", 12, bold=True)
    picture.text(x + 22, 406, f"{pe.psum_halves} x {pe.psum_words} partial sums", 12, GREY)
    halves = ["Two halves: one is loaded", "while the other is used."] if pe.weight_halves > 1 else []
    picture.lines(x + 12, 446, halves)


# -- a PE set, ping and pong -------------------------------------------------------------------------------------------


def schedules() -> list[Reuse]:
    """The macro-instruction of SET_LOOPS, in each PE of the set."""
    with TemporaryDirectory() as folder:
        schedule = Path(folder) / "set.toml"
        schedule.write_text(SET_MAPPING)
        options = CompileOptions(SET_ARRAY, batch=1, schedule=schedule)
        compilation = start_before_programs(ROOT / SET_MODEL, options)
        compilation.run_through(TO_PROGRAMS)
    store, arch = compilation.ctx.weights, compilation.settings.arch

    def of(column: int) -> list[Reuse]:
        return atomic_schedule(compilation.module, store, arch, SET_LAYER, (0, column), range(100))

    chosen = [next(reuse for reuse in of(column) if reuse.loops == SET_LOOPS) for column in range(4)]
    assert all(word.tensor for reuse in chosen for word in reuse.loaded["ifmap"])
    return chosen


def _place(word: Word) -> str:
    """A pixel by its row and column."""
    return ",".join(map(str, word.at[-2:]))


def pe_set(reuses: Sequence[Reuse]) -> Picture:
    """The windows of the PEs of a set, and where each of their words comes from."""
    picture = Picture(1000, 368, "A set of four PEs: words that come by the row bus, and from the east neighbour")
    colours = {"load": LOADED, "east": MOVED, "virtual": PAPER}
    legend = {
        "load": "by the row bus",
        "east": "from the east neighbour (n2n)",
        "virtual": "by the row bus, into a FIFO",
    }
    counts = dict.fromkeys(colours, 0)
    pitch, cell, left = 240, 54, 36
    for column, reuse in enumerate(reuses):
        x, y = left + column * pitch, 66
        received = [(atom.received, atom.source) for atom in reuse.atoms if atom.received]
        own = reuse.loaded["ifmap"][: len(reuse.atoms) - len(received)]
        words = [(word, "load") for word in own] + received
        picture.box(x - 12, y - 44, 3 * cell + 30, 3 * cell + 92, SKIN, COLOURS["array"])
        picture.text(x, y - 20, f"PE 0,{column}", 13, bold=True)
        picture.text(x + 3 * cell + 4, y - 20, f"output {_place(reuse.sums[0])}", 13, GREY, "end")
        for word, from_ in words:
            counts[from_] += 1
            row, col = (n - origin for n, origin in zip(word.at[-2:], own[0].at[-2:], strict=True))
            at_x, at_y = x + col * (cell + 2), y + row * cell
            picture.box(at_x, at_y, cell - 2, cell - 4, colours[from_], GREY, DASHED if from_ == "virtual" else "")
            picture.text(at_x + cell // 2 - 1, at_y + cell // 2 + 2, _place(word), 13, INK, "middle")
        columns = [len({word.at[-1] for word in group}) for group in (own, [word for word, _ in received])]
        origin = "FIFO" if received[0][1] == "virtual" else "east"
        picture.lines(
            x, y + 3 * cell + 20, [f"not_overlap: {columns[0]}, loaded", f"overlap: {columns[1]}, from the {origin}"]
        )
        if column + 1 < len(reuses):
            picture.path(
                [(x + pitch - 12, y + 3 * cell // 2), (x + 3 * cell + 18, y + 3 * cell // 2)], COLOURS["array"]
            )
    for i, (source, name) in enumerate(legend.items()):
        x = left - 12 + (0, 250, 600)[i]
        picture.box(x, 306, 16, 16, colours[source], GREY, DASHED if source == "virtual" else "")
        picture.text(x + 24, 319, f"{name}: {counts[source]} words", 13)
    total = sum(counts.values())
    from_bus = total - counts["east"]
    said = (
        f"The windows have {total} words; the row bus brings {from_bus} of them. Cells are input pixels: row, column."
    )
    picture.text(left - 12, 350, said, 13, GREY)
    return picture


def ping_pong(reuse: Reuse) -> Picture:
    """What lies in ping and pong of one PE, cycle by cycle (MAC-6)."""
    received = [atom.received for atom in reuse.atoms if atom.received]
    own = reuse.loaded["ifmap"]
    size = len(own)
    picture = Picture(1000, 110 + 58 * CYCLES, f"Ping and pong of one PE over {CYCLES} cycles")
    heads = {24: "cycle", 100: "multiplies", 258: "ping", 494: "pong", 730: "comes from the east", 894: "goes west"}
    for x, head in heads.items():
        picture.text(x, 36, head, 13, bold=True)
    memories: list[list[Word | None]] = [list(own), [None] * size]
    for step, atom in enumerate(reuse.atoms[:CYCLES]):
        y = 58 + 58 * step
        _step(picture, atom, y, memories, (step // size % 2, step % size))
        target = (step + size) // size % 2
        memories[target][step % size] = received[step]
    y = 58 + 58 * CYCLES
    picture.box(24, y + 2, 16, 16, MOVED, COLOURS["array"])
    picture.text(48, y + 15, "read in this cycle", 13)
    picture.box(196, y + 2, 16, 16, PAPER, COLOURS["array"], DASHED)
    picture.text(220, y + 15, "written in this cycle, by the word from the east", 13)
    said = f"N = {size} words. The PE reads one memory while the words of its neighbour fill the other."
    picture.text(24, y + 42, said, 13, GREY)
    return picture


def _step(
    picture: Picture, atom: Atom, y: int, memories: Sequence[Sequence[Word | None]], read: tuple[int, int]
) -> None:
    """One line: the memories as they are when the cycle begins."""
    mac = COLOURS["array"]
    (pixel, weight), *_ = atom.terms
    assert atom.received and weight and memories[read[0]][read[1]] == pixel
    picture.text(40, y + 26, str(atom.cycle), 14, INK, "middle")
    picture.text(100, y + 26, f"pixel {_place(pixel)}", 13)
    picture.text(174, y + 26, f"by w {_place(weight)}", 13, GREY)
    for memory, words in enumerate(memories):
        for slot, word in enumerate(words):
            x = 258 + memory * 236 + slot * 70
            is_read, written = (memory, slot) == read, (1 - memory, slot) == read
            fill = MOVED if is_read else PAPER if written or word is None else LOADED
            picture.box(x, y, 64, 42, fill, mac if written or is_read else GREY, DASHED if written else "")
            if word is not None:
                picture.text(x + 32, y + 26, _place(word), 13, GREY if written else INK, "middle")
    picture.text(730, y + 26, f"pixel {_place(atom.received)}", 13, mac)
    if atom.sent:
        picture.text(894, y + 26, f"pixel {_place(atom.sent)}", 13, GREY)


# -- a timeline --------------------------------------------------------------------------------------------------------


class Bar(NamedTuple):
    """An instruction at work, in cycles of the program."""

    engine: str
    instruction: Instruction
    start: int
    end: int


class Recorder(Clock):
    """A clock that keeps when each instruction of an engine is at work: every iteration of a loop by itself."""

    def __init__(self, binary: Binary) -> None:
        super().__init__(start_state(binary.arch), binary.arch.sequencer.overlap)
        self.texts = LoopTexts(binary.arch, [])
        self.bars: list[Bar] = []
        self.begins: dict[int, int] = {}  # instructions by number, with the time at which the sequencer comes to them
        self.run(build_tree(binary.instructions), ALL_LOOPS, ALL_LOOPS)

    def issue(self, owner: int, task: EngineTask, took: Occupancy, first: int, last: int) -> None:
        """Rules TIME-1 and TIME-2."""
        super().issue(owner, task, took, first, last)
        self.ended = self._free[task.engine]

    def run(self, nodes: Sequence[Node], first: int, last: int) -> None:
        """Run nodes; first, last: masks of the loop registers in their first, last iteration (PROG-2)."""
        for node in nodes:
            if isinstance(node, Leaf):
                self.begins.setdefault(node.index, self.now)
                self.instruction(node, first, last)
                continue
            self.tick(0)
            bit = 1 << node.register
            for i in range(node.count):
                in_last = last | bit if i == node.count - 1 else last & ~bit
                self.run(node.body, first | bit if i == 0 else first & ~bit, in_last)

    def instruction(self, leaf: Leaf, first: int, last: int) -> None:
        """Run an instruction (PROG-3, PROG-4)."""
        inst = leaf.instruction
        match inst.spec.name:
            case "sync":
                self.wait(0, waits_for(inst), 1)
            case "host" | "halt":
                self.wait(0, tuple(range(len(ENGINES))), int(inst.spec.name == "host"))
            case "signal":
                self.signal(0, queue_of(inst.number("semaphore")), inst.number("count"))
            case "desc" | "step":
                self.tick(0)
            case name:
                if name == "unit":
                    self.set_unit(UnitSettings.of(inst))
                took = self.texts.occupancy(leaf, self.unit)
                self.issue(0, self.texts.task(leaf), took, first, last)
                self.bars.append(Bar(inst.spec.engine, inst, self.ended - took.busy, self.ended))


@cache
def compiled() -> Binary:
    """TIME_MODEL with TIME_MAPPING."""
    with TemporaryDirectory() as folder:
        schedule = Path(folder) / "layer.toml"
        schedule.write_text(TIME_MAPPING)
        options = CompileOptions(TIME_ARRAY, batch=1, schedule=schedule)
        return compile_model(ROOT / TIME_MODEL, options, remark=silent)


def timeline(binary: Binary, label: str) -> Picture:
    """When each engine works on a layer, and what the array waits for."""
    cycles = program_stats(binary)["layers"][label]["cycles"]
    recorder = Recorder(binary)
    starts = [(layer.label, layer.first) for layer, _ in layers(binary)]
    number = [name for name, _ in starts].index(label)
    begin, end = (recorder.begins[starts[i][1]] for i in (number, number + 1))
    bars = [bar for bar in recorder.bars if begin <= bar.start < end]
    assert end - begin == cycles["total"]
    assert sum(bar.end - bar.start for bar in bars if bar.engine == "array") == cycles["compute"]
    picture = Picture(1000, 366, f"Timeline of layer {label}: when each engine is busy")
    left, width = 122, 850

    def at(cycle: int) -> int:
        return left + (cycle - begin) * width // (end - begin)

    for i, engine in enumerate(ENGINES):
        y = 24 + 58 * i
        picture.text(24, y + 18, engine, 14, COLOURS[engine], bold=True)
        picture.text(24, y + 34, f"{cycles['compute' if engine == 'array' else engine]:,} cycles", 12, GREY)
        picture.box(left, y, width, 40, PALE, PALE)
        for n, bar in enumerate(bar for bar in bars if bar.engine == engine):
            colour = COLOURS[engine]
            if engine == "load" and bar.instruction.text("kind") == "weight":
                colour = WEIGHT
            picture.box(at(bar.start), y, max(2, at(bar.end) - at(bar.start)), 40, colour, PAPER, round=1)
            if engine == "array":
                picture.text((at(bar.start) + at(bar.end)) // 2, y + 25, str(n + 1), 12, PAPER, "middle")
    for cycle in range(0, end - begin + 1, 500):
        picture.path([(at(begin + cycle), 256), (at(begin + cycle), 262)], arrow=False)
        picture.text(at(begin + cycle), 277, f"{cycle:,}", 12, GREY, "middle")
    for x, colour, text in ((24, WEIGHT, "loads of weights"), (190, IFMAP, "loads of the ifmap")):
        picture.box(x, 294, 16, 16, colour, colour)
        picture.text(x + 24, 307, text)
    picture.text(370, 307, "numbers: macro-instructions, each in all active PEs at the same time", 13, GREY)
    picture.text(24, 277, "cycle", 12, GREY)
    stalls = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in cycles["stall"].items() if count)
    share = 100 * cycles["compute"] / cycles["total"]
    said = f"{cycles['total']:,} cycles; the array is busy for {share:.1f} % of them. It waits for: {stalls}."
    picture.text(24, 344, said, 13, GREY)
    return picture


def pictures() -> dict[str, str]:
    """The text of each file by its name."""
    from core_pictures import drawings
    from group_pictures import example, pyramid, ring

    reuses, group = schedules(), example()
    drawn = {
        "machine": machine(load_arch("spatial-8x8")),
        "pe-set": pe_set(reuses),
        "ping-pong": ping_pong(reuses[PE]),
        "timeline": timeline(compiled(), TIME_LAYER),
        "pyramid": pyramid(group),
        "ring": ring(group),
        **drawings(),
    }
    return {f"{name}.svg": picture.svg() for name, picture in drawn.items()}


@click.command(help=__doc__)
def main() -> None:
    """Write docs/pictures."""
    TARGET.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (TARGET / name).write_text(text)
        click.echo(TARGET / name)


if __name__ == "__main__":
    main()
