"""How long a layer takes: a walk over the tiles of its mapping with a clock, by the rules of docs/machine.md.

Of TOKEN, LOAD-2, MAC-4, COMMIT-3, DMA-1 and TIME nothing is shared with the passes and the interpreter but the mapping
and the architecture's numbers. Activations lie in the GLB as a whole. Weights do, too, or come in slices. A slice with
two buffers is prefetched, so the last full tile of a loop around it is a loop of its own (GLB-2).

Loops may be in any order, tiled or block-distributed. Register files may hold an operand for many macro-instructions,
but no loop in time steps through it then (LEGAL-3). They may hold weights outside of loops in space, which take equal
parts. Sums are not added up in space.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from math import ceil, gcd, prod
from typing import NamedTuple

from conv_grid_cases import Case

from cnncc.arch.model import Arch
from cnncc.mapping.mapping import Loop, Mapping


class Issued(NamedTuple):
    """An instruction: cycles of its engine, cycles until it is done. Without an engine: cycles of the sequencer."""

    engine: str
    busy: int
    latency: int = 0
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()


class Timeline:
    """Engines that work in order, tokens that they wait for, a sequencer that fills their queues.

    issued: all instructions so far.
    """

    def __init__(self, arch: Arch) -> None:
        pe = arch.pe
        self.now, self.depth, self.overlap = 0, arch.sequencer.queue_depth, arch.sequencer.overlap
        self.end: dict[str, int] = dict.fromkeys(("dma", "load", "array", "commit"), 0)
        self.done = dict(self.end)
        self.starts = {engine: deque[int](maxlen=self.depth) for engine in self.end}
        self.tokens: dict[str, deque[int]] = {name: deque() for name in ("W", "I", "P", "full", "free")}
        for name, halves in (("w", pe.weight_halves), ("i", pe.ifmap_halves), ("p", pe.psum_halves)):
            self.tokens[name] = deque([0] * halves)
        self.issued: list[Issued] = []

    def issue(self, engine: str, busy: int, latency: int, takes: str = "", gives: str = "") -> None:
        """takes, gives: tokens, blanks between; small letters: free halves, capitals: full."""
        self.run([Issued(engine, busy, latency, tuple(takes.split()), tuple(gives.split()))])

    def run(self, program: Sequence[Issued]) -> None:
        """TIME-1, TIME-2."""
        self.issued += program
        for engine, busy, latency, takes, gives in program:
            if not engine:
                self.now += busy
                continue
            starts, now = self.starts[engine], self.now
            if not self.overlap:  # TIME-6
                now = max(now, *self.done.values())
            if len(starts) == self.depth and starts[0] > now:
                now = starts[0]
            start = self.now = now + 1
            if self.end[engine] > start:
                start = self.end[engine]
            for name in takes:
                start = max(start, self.tokens[name].popleft())
            starts.append(start)
            self.end[engine] = start + busy
            done = start + busy + latency
            if done > self.done[engine]:
                self.done[engine] = done
            for name in gives:
                self.tokens[name].append(done)

    def sync(self, *engines: str) -> None:
        self.now = max([self.now, *(self.done[engine] for engine in engines)]) + 1


class At(NamedTuple):
    """Inside some loops: extents; which of the iterations around are first and last; PEs of space loops."""

    extent: dict[str, int]
    firsts: tuple[bool, ...] = ()
    lasts: tuple[bool, ...] = ()
    rows: tuple[tuple[str, int], ...] = ()
    cols: tuple[tuple[str, int], ...] = ()
    section: int | None = None  # the depth of the loops during which sums stay in their PEs, inside these (COST-6)

    def pes(self, axis: tuple[tuple[str, int], ...], dims: str) -> int:
        return prod(count for dim, count in axis if dim in dims)

    def placed(self, loop: Loop, count: int) -> At:
        """Inside a loop on so many PEs, if it is one in space."""
        return self._replace(**{loop.on: (*getattr(self, loop.on), (loop.dim, count))}) if loop.on else self

    def inside(self, first: bool, last: bool) -> At:
        """Inside an iteration of one more loop."""
        return At(self.extent, (*self.firsts, first), (*self.lasts, last), self.rows, self.cols, self.section)


def held(outputs: int, taps: int, stride: int, dilation: int) -> int:
    """Rows or columns of the image for windows next to each other: as far apart as any two of them that are needed."""
    steps = [step for count, step in ((outputs, stride), (taps, dilation)) if count > 1]
    return ((outputs - 1) * stride + (taps - 1) * dilation) // gcd(*steps or [1]) + 1


class Walk:
    """One layer's program as the mapping says it."""

    def __init__(self, case: Case, mapping: Mapping, arch: Arch) -> None:
        self.case, self.arch, self.time = case, arch, Timeline(arch)
        self.loops = [loop for loop in mapping.loops if not loop.keep]
        placed = [depth for depth, loop in enumerate(self.loops) if loop.on and loop.dim == "k"]
        self.spreads = placed[-1] if placed else -1  # the loop whose rest its sets share
        self.held = {stage.operand: stage.depth for stage in mapping.stages if stage.memory == "rf"}
        assert all(not loop.on for loop in self.loops[self.held["ifmap"] :])
        staged = [stage for stage in mapping.stages if stage.memory == "glb"]
        self.stages = {stage.operand: stage.depth for stage in staged}
        self.buffers = {stage.operand: stage.buffers for stage in staged}
        self.sliced = [name for name in ("params", "weight") if self.stages.get(name)]
        two = bool(self.sliced) and self.buffers[self.sliced[0]] > 1
        self.peeled = self.stages[self.sliced[0]] if two else 0
        self.prefetched: list[At] = []  # the blocks of prefetched slices, in their order
        self.running: set[int] = set()  # loops around them that run more than once somewhere
        self.begun = 0
        self.known: dict[tuple[object, ...], list[Issued]] = {}  # the instructions of an iteration
        self.busy: dict[tuple[object, ...], tuple[int, int, int]] = {}  # loads of tiles of each size
        self.pixels = min((loop.step for loop in self.loops if loop.dim == "w"), default=case.output[1])
        self.on_cols = [depth for depth, loop in enumerate(self.loops) if loop.on == "cols"]
        along_w = [depth for depth, loop in enumerate(self.loops) if loop.dim == "w"]
        self.neighbours = bool(along_w) and self.on_cols[-1:] == along_w[-1:]  # windows of PEs side by side are, too
        self.mac = case.is_mac
        self.alone = not self.mac or 1 < case.groups == case.channels_out  # channels with an input of their own
        self.words = {"params": case.steps * 32 // case.bits, "weight": prod(case.kernel)}  # of a channel, of two
        for name, dims in (("weight", "kcrs"), ("ifmap", "hwcrs" + "k" * self.alone)):
            inside = self.loops[self.held.get(name, len(self.loops)) :]
            assert not any(loop.dim in dims for loop in inside if not loop.on)
        assert not any(loop.on and loop.dim in "crs" for loop in self.loops)
        assert self.stages.keys() == {*(["weight"] if self.mac else []), *(["params"] if case.steps else [])}

    def total(self) -> int:
        case, time = self.case, self.time
        sizes = {"n": case.n, "k": case.channels_out, "c": case.c if self.mac else 1}
        sizes |= dict(zip("hwrs", (*case.output, *case.kernel), strict=True))
        whole = [name for name in ("params", "weight") if self.stages.get(name) == 0]
        if self.sliced:
            time.now += 1  # the signal: the buffers are free
            time.tokens["free"].extend([time.now] * self.buffers[self.sliced[0]])
            time.sync("dma")
        if self.peeled:
            self.find_blocks(0, At(sizes))
        time.now += 2
        self.dma(case.x.size)
        for name in whole:  # what the layer needs comes while the input does
            time.now += 2
            self.dma(self.slice_words(name, At(sizes)), gives="full" if name == "weight" or not self.mac else "")
        if self.prefetched:  # and the first slices
            self.fetch(self.prefetched[0], descriptors=2)
        time.sync("dma")
        time.now += self.setup_cycles(At(sizes))
        time.issue("commit", 1, 0)  # the unit
        self.walk(0, At(sizes))
        time.sync("load", "array", "commit")
        time.now += 2
        self.dma(case.n * case.channels_out * prod(case.output))
        time.sync("dma")
        return max(time.now, *time.done.values())

    def setup_cycles(self, at: At) -> int:
        """Descriptors, and their steps: one for each loop in time that moves in the tensor."""
        cycles = 1 + sum(self.moves_image(loop) for loop in self.loops if not loop.on)
        results = 1 + sum(loop.dim in "nkhw" for loop in self.loops if not loop.on)
        cycles += results * (1 + self.is_partial(0, at))  # and those of partial sums
        for name, dims in (("weight", "kcrs"), ("params", "k")):
            if name in self.stages:
                depth = self.stages[name]
                outside, inside = ([loop.dim for loop in part if not loop.on] for part in self.parts(depth))
                cycles += 1 + sum(dim in dims for dim in outside)
                cycles += 1 + sum(dim in dims for dim in inside) + (len(self.running) if depth else 0)
        return cycles

    def sets_of_rest(self, rest: int) -> int:
        """Channels that are left over go to as many sets as share them evenly."""
        around = [loop.step for loop in self.loops[: self.spreads] if loop.dim == "k"]
        together = self.case.channels_out if self.alone else self.case.per_group
        extent = min([self.case.channels_out, *around])
        most = extent // self.loops[self.spreads].step if extent <= together else 1
        return next((sets for sets in range(most, 1, -1) if rest and rest % sets == 0), 1)

    def parts(self, depth: int) -> tuple[list[Loop], list[Loop]]:
        return self.loops[:depth], self.loops[depth:]

    def moves_image(self, loop: Loop) -> bool:
        """Channels of the result have other channels of the image where they are of another group."""
        return loop.dim != "k" or self.alone or loop.step >= self.case.per_group

    def dma(self, words: int, takes: str = "", gives: str = "") -> None:
        dram = self.arch.dram
        self.time.issue("dma", ceil(words / Fraction(str(dram.words_per_cycle))), dram.latency_cycles, takes, gives)

    def walk(self, depth: int, at: At) -> None:
        self.slices(depth, at)
        if opens := at.section is None and self.opens(depth, at):
            at = at._replace(section=depth)
        if depth in self.held.values():
            self.loads(depth, at)
        if depth == len(self.loops):
            self.macro_instruction(at)
        else:
            pieces = self.pieces(depth, at)
            for number, (count, size) in enumerate(pieces):
                ends = (number == 0, number == len(pieces) - 1)
                self.piece(depth, at._replace(extent={**at.extent, self.loops[depth].dim: size}), count, ends)
        if opens:
            self.commit(at)

    def opens(self, depth: int, at: At) -> bool:
        """Whether sums stay in their PEs from here on: only loops over c, r, s run, always on the same PEs."""
        inside, extent = self.loops[depth:], dict(at.extent)
        if inside and (inside[0].on or inside[0].dim not in "crs"):
            return False  # as far inside as may be
        for loop in inside:
            whole, rest = divmod(extent[loop.dim], loop.step)
            others = whole and rest if loop.on else loop.dim not in "crs" and extent[loop.dim] > loop.step
            if others:
                return False
            extent[loop.dim] = min(loop.step, extent[loop.dim])
        return True

    def around(self, at: At) -> bool:
        """Whether loops over c, r, s go on around these iterations: then their sums are partial (COMMIT-5)."""
        each = zip(self.loops, at.firsts, at.lasts, strict=False)
        return any(loop.dim in "crs" and not (first and last) for loop, first, last in each)

    def is_partial(self, depth: int, at: At) -> bool:
        """Whether there are partial sums anywhere inside."""
        if self.opens(depth, at):
            return self.around(at)
        if depth == len(self.loops):
            return False
        loop, pieces = self.loops[depth], self.pieces(depth, at)
        alone = len(pieces) == 1 and (pieces[0][0] == 1 or bool(loop.on))
        return any(
            self.is_partial(
                depth + 1,
                at._replace(extent={**at.extent, loop.dim: size}, firsts=(*at.firsts, True), lasts=(*at.lasts, alone)),
            )
            for _, size in pieces
        )

    def pieces(self, depth: int, at: At) -> list[tuple[int, int]]:
        """Iterations and size: whole tiles, the rest; where slices are prefetched, the last whole tile by itself."""
        loop = self.loops[depth]
        full, rest = divmod(at.extent[loop.dim], loop.step)
        sets = self.sets_of_rest(rest) if depth == self.spreads else 1
        whole = [full - 1, 1] if depth < self.peeled and full > 1 and not loop.on else [full]
        return [(count, loop.step) for count in whole if count] + [(sets, rest // sets)] * (rest > 0)

    def find_blocks(self, depth: int, at: At) -> None:
        if depth == self.peeled:
            self.prefetched.append(at)
            return
        loop = self.loops[depth]
        for count, size in self.pieces(depth, at):
            inside = at.placed(loop, count)._replace(extent={**at.extent, loop.dim: size})
            if count > 1 and not loop.on:
                self.running.add(depth)
            for _ in range(1 if loop.on else count):
                self.find_blocks(depth + 1, inside)

    def piece(self, depth: int, at: At, count: int, ends: tuple[bool, bool]) -> None:
        loop = self.loops[depth]
        if loop.on:
            at = at.placed(loop, count)
            self.walk(depth + 1, at.inside(*ends))
            return
        self.time.run([Issued("", 1)])  # the loop instruction
        first, middle, last = (
            at.inside(ends[0], ends[1] and count == 1),
            at.inside(False, False),
            at.inside(False, ends[1]),
        )
        for i in range(count):
            self.iteration(depth + 1, first if i == 0 else last if i == count - 1 else middle)

    def iteration(self, depth: int, at: At) -> None:
        """Equal iterations have equal instructions, unless slices come in them."""
        key = (depth, *at.extent.values(), *at[1:])
        if key in self.known:
            self.time.run(self.known[key])
            return
        begin = len(self.time.issued)
        self.walk(depth, at)
        if all(self.stages[name] < depth for name in self.sliced):
            self.known[key] = self.time.issued[begin:]

    def slices(self, depth: int, at: At) -> None:
        if not any(self.stages[name] == depth for name in self.sliced):
            return
        self.begun += 1
        if not self.peeled:
            self.fetch(at)
        elif self.begun < len(self.prefetched):
            self.fetch(self.prefetched[self.begun])

    def fetch(self, at: At, descriptors: int = 0) -> None:
        for i, name in enumerate(self.sliced):
            takes, gives = "free" if i == 0 else "", "full" if i == len(self.sliced) - 1 else ""
            self.time.now += descriptors
            self.dma(self.slice_words(name, at), takes, gives)

    def slice_words(self, name: str, at: At) -> int:
        """Of all PEs' channels; of weights those of some channels of the image."""
        channels = at.extent["k"] * at.pes(at.rows, "k") * at.pes(at.cols, "k")
        return channels * self.words[name] * (at.extent["c"] if name == "weight" else 1)

    def loads(self, depth: int, at: At) -> None:
        """Of what the register files hold from here on, weights first."""
        key = (depth, *at.extent.values(), at.rows, at.cols)
        if key not in self.busy:
            self.busy[key] = self.durations(self.on_pes(at))
        weights, image, edge = self.busy[key]
        if self.held.get("weight") == depth:
            outside = self.stages["weight"]
            first = " full" if all(at.firsts[outside:]) else ""
            free = " free" if outside and not self.stages.get("params") and all(at.lasts[outside:]) else ""
            self.load(weights, f"w{first}", f"W{free}")
        if self.held["ifmap"] == depth:
            params = self.stages.get("params")
            full = " full" if not self.mac and params is not None and all(at.firsts[params:]) else ""
            self.load(image, f"i{full}", "" if edge else "I")
            if edge:
                self.load(edge, "", "I")

    def on_pes(self, at: At) -> At:
        """Inside the loops in space that stand further in: these take equal parts of what is held outside of them."""
        for depth in range(len(at.firsts), len(self.loops)):
            if (loop := self.loops[depth]).on:
                count, size = self.pieces(depth, at)[0]
                at = at.placed(loop, count)._replace(extent={**at.extent, loop.dim: size})
        return at

    def macro_instruction(self, at: At) -> None:
        takes = gives = ""
        outside = {**self.held, "sums": at.section}
        for name, taken, given in (("weight", "W", "w"), ("ifmap", "I", "i"), ("sums", "p", "P")):
            if name in outside:
                takes += f"{taken} " * all(at.firsts[outside[name] :])
                gives += f"{given} " * all(at.lasts[outside[name] :])
        pe, steps = self.arch.pe, prod(at.extent.values())
        self.time.issue("array", pe.start_cycles + steps + pe.finish_cycles, 0, takes, gives)

    def durations(self, at: At) -> tuple[int, int, int]:
        """Cycles of the loads of weights, of the image, and of the image for the last column of each set."""
        case, extent = self.case, at.extent
        weights = self.load_cycles(prod(extent[dim] for dim in "scrk"), at.pes(at.rows, "k"), at.pes(at.cols, "k"))
        lines, columns = (
            held(extent[out], extent[tap], stride, dilation)
            for (out, tap), stride, dilation in zip(("hr", "ws"), case.stride, case.dilation, strict=True)
        )
        shared, sets = self.shared_columns(at)
        each = extent["n"] * lines * extent["c"] * (extent["k"] if self.alone else 1)
        dims = "nkhw" if self.alone else "nhw"
        rows, cols = at.pes(at.rows, dims), at.pes(at.cols, dims)
        image = self.load_cycles((columns - shared) * each, rows, cols)
        return weights, image, self.load_cycles(shared * each, rows, sets)

    def shared_columns(self, at: At) -> tuple[int, int]:
        """Columns of the image that a PE has from its neighbour, and the PE sets of a row.

        Neighbours pass on what both windows need. The last PE of each set has a virtual neighbour.
        """
        if self.alone or self.case.dilation[1] > 1 or not self.case.n2n or self.held["ifmap"] < len(self.loops):
            return 0, 0
        if self.neighbours and at.pes(at.cols, "w") > 1:
            sets = at.pes(at.cols, "nh")
        elif self.arch.pe.pong_words and (self.neighbours or len(self.on_cols) < 2):
            sets = at.pes(at.cols, "nhw")  # of one PE each
        else:
            return 0, 0
        if self.arch.pe.pong_words and self.pixels > 1:
            return 0, 0  # what a pixel has used of ping the next one needs again
        return max(0, at.extent["s"] - self.case.stride[1]), sets

    def load(self, busy: int, takes: str, gives: str) -> None:
        self.time.issue("load", busy, self.arch.bus.latency_cycles, takes, gives)

    def load_cycles(self, words: int, rows: int, cols: int) -> int:
        glb, bus = ceil(words * rows * cols / self.arch.glb.words_per_cycle), ceil(words / self.arch.bus.burst_words)
        return max(glb, cols * bus, ceil(words / self.arch.pe.words_per_cycle))

    def commit(self, at: At) -> None:
        for depth in range(len(at.firsts), len(self.loops)):  # on the PEs inside
            count, size = self.pieces(depth, at)[0]
            at = at.placed(self.loops[depth], count)._replace(extent={**at.extent, self.loops[depth].dim: size})
        rows, cols = at.pes(at.rows, "nkh"), at.pes(at.cols, "nkhw")
        sums = prod(at.extent[dim] for dim in "nkhw")
        channels = at.pes(at.rows, "k") * at.pes(at.cols, "k") * at.extent["k"]
        of_sums = 2 * ceil(self.arch.psum_bits / self.arch.operand_bits) if self.around(at) else 0
        words = rows * cols * sums * (1 + of_sums) + channels * self.words["params"]
        units = ceil(rows * sums / self.arch.commit.units_per_column)
        takes, gives = "P", "p"
        depth = self.stages.get("params")
        if depth and all(at.lasts[depth:]):
            gives += " free"
        latency = self.arch.commit.latency_cycles
        self.time.issue("commit", max(units, ceil(words / self.arch.glb.words_per_cycle)), latency, takes, gives)


class Tally(Timeline):
    """Where nothing overlaps (TIME-6): the cycles of all instructions, one after the other, each `times` over.

    What the sequencer does itself is hidden behind the engine at work, `slack` cycles long; before the first
    instruction of an engine there is none. Each instruction that ends a loop's body is long enough for that.
    """

    def __init__(self, arch: Arch) -> None:
        self.cycles, self.times, self.slack = 0, 1, 0
        super().__init__(arch)

    @property
    def now(self) -> int:
        return 0

    @now.setter
    def now(self, later: int) -> None:
        hidden = min(self.slack, later)
        self.slack -= hidden
        self.cycles += later - hidden

    def issue(self, engine: str, busy: int, latency: int, takes: str = "", gives: str = "") -> None:
        self.slack = busy + latency
        self.cycles += self.times * (1 + self.slack)

    def sync(self, *engines: str) -> None:
        self.slack = 0
        self.cycles += 1


class ClosedForm(Walk):
    """The same layer without walking: what is inside a loop, times its iterations."""

    def __init__(self, case: Case, mapping: Mapping, arch: Arch) -> None:
        assert not arch.sequencer.overlap
        super().__init__(case, mapping, arch)
        self.time = self.tally = Tally(arch)

    def total(self) -> int:
        super().total()
        return self.tally.cycles

    def piece(self, depth: int, at: At, count: int, ends: tuple[bool, bool]) -> None:
        if self.loops[depth].on:
            super().piece(depth, at, count, ends)
            return
        self.tally.now += 1
        self.tally.times *= count
        begun = self.begun
        self.walk(depth + 1, at._replace(firsts=(*at.firsts, True), lasts=(*at.lasts, True)))
        self.begun += (count - 1) * (self.begun - begun)
        self.tally.times //= count
