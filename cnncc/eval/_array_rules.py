"""The rules of the PE-set programs, op by op, for the evaluator of the `array` dialect (docs/machine.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import assert_never

import numpy as np
from xdsl.ir import Operation

from cnncc.arch.model import Arch
from cnncc.arch.operations import MacOperation
from cnncc.dialects import array as A
from cnncc.errors import Refusal
from cnncc.eval._neighbours import check_arrival, check_ping_pong
from cnncc.eval._places import (
    Coordinates,
    LoopIndices,
    Mask,
    TensorPart,
    Words,
    addresses,
    last_columns,
    position,
    rectangle,
    slots,
)
from cnncc.eval._register_files import RegisterFile, check_banks
from cnncc.eval._sums import accumulated, added_south, check_width, south_rows
from cnncc.numerics import Epilogue, Floats, Ints, Table, integer_range
from cnncc.weights import Array


@dataclass
class ArrayState:
    """The state of a sequencer and its PEs, and one rule for each op.

    - frames: of a run of cores; their records lie in DRAM one after the other (CORE-8). 0: all images run at once
    - beside: the state of another core, which has the same memories (CORE-1)
    - routes: where tokens go, by semaphore, if not to the own one (CORE-3)
    """

    arch: Arch
    images: int
    globals_: Mapping[str, Array]
    tensors: Mapping[str, A.Tensor]
    frames: int = 0
    beside: ArrayState | None = None
    words: dict[str, Words | TensorPart] = field(default_factory=dict[str, Words | TensorPart])
    reals: dict[str, Array] = field(default_factory=dict[str, Array])
    views: dict[str, A.View] = field(default_factory=dict[str, A.View])
    semaphores: list[int] = field(default_factory=lambda: [0] * 16)
    loops: LoopIndices = field(default_factory=lambda: LoopIndices({}))
    unit: A.Unit = field(default_factory=A.Unit)
    loop_names: Sequence[str] = ()
    result: str = ""
    routes: dict[int, list[tuple[ArrayState, int]]] = field(
        default_factory=dict[int, list[tuple["ArrayState", int]]], repr=False
    )

    def start_layer(self, op: A.LayerOp) -> None:
        """Views and loops belong to one layer."""
        self.views, self.result = {}, ""
        self.loop_names = [inner.record.data.loop for inner in op.walk() if isinstance(inner, A.RepeatOp)]

    def __post_init__(self) -> None:
        pe, shape = self.arch.pe, (self.images, self.arch.rows, self.arch.cols)
        self.weight = RegisterFile("weight", pe.weight_halves, pe.weight_words, shape)
        # MAC-6: slots count the words of a macro-instruction, with those that wait in the FIFO of a virtual neighbour.
        waiting = pe.virtual_words if pe.pong_words else 0
        self.ifmap = RegisterFile("ifmap", pe.ifmap_halves, pe.ifmap_words + waiting, shape)
        self.psum = RegisterFile("psum", pe.psum_halves, pe.psum_words, shape)
        if self.beside is not None:
            self.words, self.reals = self.beside.words, self.beside.reals
            return
        whole: dict[str, Words] = {}
        for tensor in (tensor for tensor in self.tensors.values() if not tensor.part_of):
            # Weights are the same for all images, and no program writes them.
            whole[tensor.name] = Words.empty(self._in_records(tensor), 1 if tensor.role == "weight" else self.images)
        # Tensors have places once they are allocated. Those in records are apart.
        for a, b in combinations([self.tensors[name] for name in whole if self.tensors[name].at >= 0], 2):
            if a.memory == b.memory and not (self.frames and a.memory == "dram"):
                whole[a.name].share(whole[b.name], b.at - a.at)
        self.words = {name: self._words(tensor, whole) for name, tensor in self.tensors.items()}
        for tensor in self.tensors.values():
            if tensor.role == "weight":
                self._fill(tensor, self._global(tensor.name).reshape(1, -1))

    def _words(self, tensor: A.Tensor, whole: Mapping[str, Words]) -> Words | TensorPart:
        offset, size, outer = 0, int(addresses(tensor).max(initial=-1)) + 1, tensor
        while outer.part_of:
            offset, outer = offset + outer.offset, self.tensor(outer.part_of)
        return TensorPart(whole[outer.name], offset, size) if tensor.part_of else whole[tensor.name]

    def _in_records(self, tensor: A.Tensor) -> A.Tensor:
        """A tensor with its words in the records of all frames, if it lies there."""
        in_record = self.frames and tensor.memory == "dram" and tensor.role != "weight"
        return replace(tensor, words=self.frames * tensor.words) if in_record else tensor

    @property
    def passes(self) -> int:
        """How many times the network runs: once for each image, which is a frame on cores."""
        return self.frames or self.images

    def _global(self, name: str) -> Array:
        if name not in self.globals_:
            raise Refusal(f"there is no weights.global @{name}")
        return self.globals_[name]

    def _fill(self, tensor: A.Tensor, values: Ints) -> None:
        if values.shape[1] != (words := self._in_records(tensor).words):
            raise Refusal(f"tensor {tensor.name} has {words} words, its values {values.shape[1]}")
        self.words[tensor.name].write(np.arange(words), values)

    def set(self, tensor: A.Tensor, values: Array) -> None:
        """Give a tensor in DRAM its integers, one in the host's memory its reals."""
        if tensor.memory == "host":
            self.reals[tensor.name] = values
        elif values.dtype.kind not in "iu":
            raise Refusal(f"tensor {tensor.name} in DRAM holds integers, not {values.dtype}")
        else:
            self._fill(tensor, values.astype(np.int64).reshape(self.images, -1))

    def get(self, name: str) -> Array:
        """The values of a tensor, [images * shape[0], …]."""
        tensor = self.tensor(name)
        if tensor.memory == "host":
            if name not in self.reals:
                raise Refusal(f"tensor {name} was never written")
            return self.reals[name]
        # CORE-8: a tensor in DRAM has words in the record of each frame.
        records = np.arange(self._in_records(tensor).words // tensor.words) * tensor.words
        values = self.words[name].read(np.add.outer(records, addresses(tensor)))
        shape = tensor.shape or (tensor.words,)  # a buffer has no shape
        return values.reshape(self.images * len(records) * shape[0], *shape[1:])

    def tensor(self, name: str) -> A.Tensor:
        if name not in self.tensors:
            raise Refusal(f"there is no tensor {name}")
        return self.tensors[name]

    def _view(self, name: str, memory: str = "glb") -> tuple[A.View, Words | TensorPart]:
        if name not in self.views:
            raise Refusal(f"there is no view {name} before it; there are {', '.join(self.views) or 'none'}")
        view = self.views[name]
        tensor = self.tensor(view.tensor)
        if tensor.memory != memory:
            raise Refusal(f"view {name} is on tensor {tensor.name} in {tensor.memory}, not in {memory}")
        return view, self.words[tensor.name]

    # -- program (PROG-2, TOKEN-4) -------------------------------------------------------------------------------------

    def run(self, op: Operation) -> None:
        """Execute one op."""
        match op:
            case A.RepeatOp():
                self.repeat(op)
            case A.ViewOp():
                self.view(op.record.data)
            case A.DmaOp():
                self.with_tokens(op.record.data.tokens, lambda: self.dma(op.record.data))
            case A.LoadOp():
                self.with_tokens(op.record.data.tokens, lambda: self.load(op.record.data))
            case A.MacOp():
                self.mac(op.record.data)
            case A.UnitOp():
                self.unit = op.record.data
            case A.CommitOp():
                self.with_tokens(op.record.data.tokens, lambda: self.commit(op.record.data))
            case A.SignalOp():
                self.give(op.record.data.semaphore, op.record.data.count)
            case A.SyncOp():
                pass  # program order is stronger
            case _:
                raise Refusal("this is no part of a PE-set program")

    def repeat(self, op: A.RepeatOp) -> None:
        """A loop, one iteration after the other."""
        for _ in self.iterations(op.record.data):
            for inner in op.body.block.ops:
                named(inner, self.run)

    def iterations(self, repeat: A.Repeat) -> Iterator[None]:
        """Each iteration of a loop, with its index (PROG-2, CORE-8)."""
        outside, count = self.loops, repeat.count + (self.frames - 1 if repeat.frames else 0)
        if repeat.loop in outside.running:
            raise Refusal(f"loop {repeat.loop} stands inside itself")
        for index in range(count):
            self.loops = LoopIndices({**outside.running, repeat.loop: (index, count)})
            yield
        self.loops = outside

    def view(self, view: A.View) -> None:
        """Set a descriptor (DESC-1)."""
        loops = [(step.loop, step.axis == "lin") for step in view.steps]
        if len(set(loops)) < len(loops):
            raise Refusal(f"view {view.name} has two steps for one loop, on the linear axis or on others")
        if unknown := [step.loop for step in view.steps if step.loop not in self.loop_names]:
            raise Refusal(f"view {view.name} steps with loop {unknown[0]}; there are {', '.join(self.loop_names)}")
        if view.frames:
            if not self.frames:
                raise Refusal(f"view {view.name} is over frames, but no loop of the program is")
            words = self.tensor(view.tensor).words
            view = replace(view, frames=False, height=self.frames, pitch=words)
        self.views[view.name] = view

    def with_tokens(self, tokens: A.Tokens, rule: Callable[[], None]) -> None:
        """Take a token, do what `rule` says, give a token (TOKEN-4)."""
        if self.misses(tokens):
            raise Refusal(f"semaphore {tokens.take} has no token")
        if self._takes(tokens):
            self.semaphores[tokens.take] -= 1
        rule()
        if tokens.give and self.loops.last(tokens.give_when):
            self.give(tokens.give)

    def _takes(self, tokens: A.Tokens) -> bool:
        return bool(tokens.take) and self.loops.first(tokens.take_when)

    def misses(self, tokens: A.Tokens) -> bool:
        """Whether a token is to be taken that is not there."""
        return self._takes(tokens) and self.semaphores[_semaphore(tokens.take)] == 0

    def give(self, semaphore: int, count: int = 1) -> None:
        """Give tokens to a semaphore, or by its routes (CORE-3)."""
        for state, number in self.routes.get(_semaphore(semaphore), [(self, semaphore)]):
            state.semaphores[number] += count

    # -- memories (DMA-1, LOAD-1) --------------------------------------------------------------------------------------

    def dma(self, dma: A.Dma) -> None:
        """Copy rectangles between DRAM and GLB, but for what lies outside the bounds in DRAM."""
        if min(dma.count, dma.rows, dma.words) < 1:
            raise Refusal(f"{dma.count} blocks of {dma.rows} rows of {dma.words} words are no transfer")
        sides: dict[str, tuple[Words | TensorPart, Ints, Mask | None]] = {}
        for memory, name, offset, step in (
            ("dram", dma.dram, dma.dram_offset, dma.dram_step),
            ("glb", dma.glb, dma.glb_offset, dma.glb_step),
        ):
            view, words = self._view(name, memory)
            pattern = (A.Extent(dma.count, "lin", step), A.Extent(dma.rows, "y", 1), A.Extent(dma.words, "x", 1))
            start = A.Start(offset, 0, dma.y, dma.x)
            sides[memory] = words, *position(A.Place(), start, pattern).address(view, self.loops)
        inside = Ellipsis if sides["dram"][2] is None else sides["dram"][2]
        match dma.direction:
            case A.Direction.IN:
                source, target = sides["dram"], sides["glb"]
            case A.Direction.OUT:
                source, target = sides["glb"], sides["dram"]
                if self.views[dma.glb].tensor == self.result or self.frames:
                    self.result = self.views[dma.dram].tensor  # it was gathered in a buffer, or by another core
            case _:
                assert_never(dma.direction)
        target[0].write(target[1][inside], source[0].read(source[1][inside]))

    def load(self, load: A.Load) -> None:
        """Fill slots of the active PEs (LOAD-1, TOKEN-1)."""
        match load.kind:
            case A.LoadKind.WEIGHT:
                file = self.weight
            case A.LoadKind.IFMAP:
                file = self.ifmap
            case _:
                assert_never(load.kind)
        half = file.open() if self.loops.first(load.open) else file.opened()
        pes = rectangle(load.place, self.arch.rows, self.arch.cols)
        view, words = self._view(load.view)
        address, inside = position(load.place, load.start, load.pattern).address(view, self.loops)
        pe_mask = np.broadcast_to(last_columns(load.place), address.shape[:2]) if load.edge else None
        if pe_mask is not None:
            # PEs without part in the load read nothing, so their addresses may lie anywhere.
            reads = pe_mask.reshape(*pe_mask.shape, *[1] * len(load.pattern))
            inside = np.broadcast_to(reads, address.shape) if inside is None else inside & reads
        if inside is None:
            values = words.read(address)
        else:
            values = np.full((self.images, *address.shape), view.fill, np.int64)
            values[:, inside] = words.read(address[inside])
        values = (values - view.zero if view.zero else values).reshape(*values.shape[:3], -1)
        last = load.slot + values.shape[-1] - 1
        # MAC-6: with a pong, a half has slots beyond ping; of loads only those with `edge` fill these.
        inside_half = self.arch.pe.ifmap_words if file is self.ifmap and not load.edge else file.slots
        if load.slot < 0 or last >= inside_half:
            raise Refusal(f"{load.kind} slots {load.slot}..{last} are not in a half of {inside_half}")
        check_width(values if pe_mask is None else values[:, pe_mask], self.arch.operand_bits + 1)
        if pe_mask is not None:
            half.put(pes, np.arange(load.slot, last + 1, dtype=np.int64), values[:, pe_mask], pe_mask)
        else:
            half.fill(pes, load.slot, values)
        (half.edges if load.edge else half.loads).update(range(load.slot, last + 1))
        if self.loops.last(load.close):
            file.close()

    # -- array (MAC-1 to MAC-7, TOKEN-2, TOKEN-3) ----------------------------------------------------------------------

    def mac(self, mac: A.Mac) -> None:
        """A macro-instruction of every active PE."""
        if not 1 <= mac.pixels <= self.arch.pe.max_pixels:
            raise Refusal(f"pixels = {mac.pixels} is outside 1..{self.arch.pe.max_pixels}")
        if min(mac.taps, mac.step_range) < 1:
            raise Refusal(f"taps = {mac.taps} and step_range = {mac.step_range} are at least 1")
        if mac.lanes > self.arch.pe.lanes:
            raise Refusal(f"lanes = {mac.lanes} is more than the {self.arch.pe.lanes} of a PE")
        check_banks(mac, self.arch.pe)
        pes = rectangle(mac.place, self.arch.rows, self.arch.cols)
        for file, when in ((self.weight, mac.take_weight), (self.ifmap, mac.take_ifmap)):
            if self.loops.first(when):
                file.take()
        if self.arch.pe.pong_words:
            whole = self.loops.first(mac.take_ifmap) and self.loops.last(mac.give_ifmap)
            check_ping_pong(mac, self.ifmap.taken(), whole, self.arch.pe)
        if mac.data_reuse:
            self._from_east(mac, pes)
        if self.loops.first(mac.clear):
            self._clear(mac, pes)
        self._accumulate(mac, pes)
        for file, when in ((self.weight, mac.give_weight), (self.ifmap, mac.give_ifmap)):
            if self.loops.last(when):
                file.give()
        if self.loops.last(mac.send):
            self.psum.close()

    def _from_east(self, mac: A.Mac, pes: tuple[slice, slice]) -> None:
        """Word by word from the east neighbour's slot k to n2n_slot + k; what it received itself travels on (MAC-3)."""
        if not self.arch.links.n2n or mac.data_reuse > mac.pixels * mac.taps:
            raise Refusal(f"data_reuse = {mac.data_reuse} needs n2n links and at most pixels * taps words")
        half, takes = self.ifmap.taken(), np.broadcast_to(~last_columns(mac.place), (mac.place.rows, mac.place.cols))
        if not takes.any():
            return
        first, last = mac.n2n_slot, mac.n2n_slot + mac.data_reuse - 1
        if first < 0 or last >= self.ifmap.slots:
            raise Refusal(f"n2n slots {first}..{last} are not in a half of {self.ifmap.slots}")
        check_arrival(mac)
        east = (pes[0], slice(pes[1].start + 1, pes[1].stop))
        for k in range(0, mac.data_reuse, max(first, 1)):  # what the neighbour received is `first` slots further on
            some = slice(k, min(k + max(first, 1), mac.data_reuse))
            if not (full := half.full[east][takes[:, :-1], some].all(axis=0)).all():
                raise Refusal(f"ifmap slot {k + int(full.argmin())} of an east neighbour is empty")
            words = half.words[(slice(None), *east)][:, takes[:, :-1], some]
            half.put(pes, np.arange(first + some.start, first + some.stop), words, takes)

    def _clear(self, mac: A.Mac, pes: tuple[slice, slice]) -> None:
        half = self.psum.open()
        half.words[...] = _start(mac.op, self.arch.psum_bits)
        half.full[pes] = True

    def _accumulate(self, mac: A.Mac, pes: tuple[slice, slice]) -> None:
        """The counters of MAC-1, each sum checked as it grows, step by step (MAC-2)."""
        counts = (mac.pixels, mac.taps, mac.step_range)
        terms = self.ifmap.taken().read(pes, slots(mac.ifmap, (*counts, mac.lanes)), "ifmap")
        if multiplies(mac.op):
            terms = terms * self.weight.taken().read(pes, slots(mac.weight, (*counts, mac.lanes)), "weight")
        if mac.psum.lane:  # further channels
            psum = slots(mac.psum, (*counts, mac.lanes))
            psum, terms = psum.reshape(*psum.shape[:2], -1), terms.reshape(*terms.shape[:-2], -1)
        else:
            psum, terms = slots(mac.psum, counts), terms.sum(axis=-1)
        half = self.psum.opened()
        before = half.read(pes, psum, "psum")
        running = _running(mac.op)
        # All taps share a slot, and no other pixel or channel has it: its sums run along the axis of taps.
        if mac.psum.tap == 0 and np.unique(psum[:, 0]).size == psum[:, 0].size:
            start = before[..., :1, :]
            self._store(half.words, pes, psum[:, 0], running(np.concatenate([start, terms], axis=-2), axis=-2))
            return
        for at in np.ndindex(psum.shape):  # slots that meet again: one sum after the other
            old = half.read(pes, psum[at].reshape(1), "psum")
            new = running(np.stack([old, terms[(..., *at)][..., None]], axis=-2), axis=-2)
            self._store(half.words, pes, psum[at].reshape(1), new)

    def _store(self, words: Ints, pes: tuple[slice, slice], slots: Ints, running: Ints) -> None:
        """Keep the last of the sums `running` [images, rows, cols, *, tap, *] if all of them fit a psum."""
        low, high = integer_range(self.arch.psum_bits)
        if running.min() < low or running.max() > high:
            raise Refusal(f"a psum of {running.min()}..{running.max()} does not fit {self.arch.psum_bits} bits")
        words[(slice(None), *pes)][..., slots] = running[..., -1, :]

    # -- output units (COMMIT-1 to COMMIT-4) ---------------------------------------------------------------------------

    def commit(self, commit: A.Commit) -> None:
        """Psums, or words of the GLB, through the output units."""
        pes = rectangle(commit.place, self.arch.rows, self.arch.cols)
        place = south_rows(commit.place) if commit.reduce else commit.place
        where = position(place, commit.start, commit.pattern)
        match commit.source:
            case A.Source.PSUM:
                sums = self._psums(commit, pes)
            case A.Source.GLB:
                if commit.reduce:
                    raise Refusal("only psums are added up, not words of the glb")
                operand, words = self._view(commit.operand)
                sums = words.read(where.address(operand, self.loops)[0])
            case _:
                assert_never(commit.source)
        if commit.reduce:
            sums = added_south(commit.place, sums, self.arch)
        if commit.sums:
            sums = self._partial(commit, where, sums)
            if not self.loops.last(commit.final):
                return
        view, target = self._view(commit.view)
        address, inside = where.address(view, self.loops)
        if inside is not None and not inside.all():
            raise Refusal(f"a result lies outside the bounds of view {view.name}")
        residual = None
        if self.unit.factors:
            other, words = self._view(commit.residual)
            residual = words.read(where.address(other, self.loops)[0])
        results = self._epilogue(commit, place).apply(sums, slice(None), residual)
        check_width(results, self.arch.operand_bits)
        target.write(address, results)
        self.result = view.tensor

    def _psums(self, commit: A.Commit, pes: tuple[slice, slice]) -> Ints:
        sums = self.psum.take().read(pes, slots(commit.psum, tuple(extent.n for extent in commit.pattern)), "psum")
        self.psum.give()
        return sums

    def _partial(self, commit: A.Commit, where: Coordinates, sums: Ints) -> Ints:
        view, words = self._view(commit.sums)
        address, inside = where.address(view, self.loops)
        if inside is not None and not inside.all():
            raise Refusal(f"a partial sum lies outside the bounds of view {view.name}")
        ends = (self.loops.first(commit.fresh), self.loops.last(commit.final))
        return accumulated(words, address, sums, ends, self.arch)

    def _epilogue(self, commit: A.Commit, place: A.Place) -> Epilogue:
        """The output units' function, biases and scales in place for each result (COMMIT-2)."""
        unit, size = self.unit, self.arch.words_per_param
        factors = self._global(unit.factors) if unit.factors else None
        bias: Ints | None = None
        scale: Floats | None = None
        if count := unit.bias + unit.scale:
            words_of_channel = count * size
            view, words = self._view(commit.params)
            if any(step.axis != "lin" for step in view.steps):
                raise Refusal(f"view {view.name} of parameters steps by other than words")
            channels = position(place, A.Start(), commit.pattern).terms["k"]
            linear = commit.param * words_of_channel + self.loops.sums(view)["lin"]
            first = (linear % view.wrap if view.wrap else linear) + channels * words_of_channel
            # Parameters are weights, and alike for all images. Their 32 bits are words, the least significant first
            # (MEM-1).
            params = words.read(first[..., None] + np.arange(words_of_channel))[0]
            raw = params.astype(f"<i{self.arch.operand_bits // 8}").reshape(*first.shape, -1)
            pairs = np.ascontiguousarray(raw).view("<i4")
            bias = pairs[..., 0].astype(np.int64) if unit.bias else None
            scale = np.ascontiguousarray(pairs[..., -1]).view(np.float32) if unit.scale else None
        table = Table.of(self._global(unit.table), unit.shift) if unit.table else None
        return Epilogue(bias, scale, unit.zero, unit.clamp, factors, unit.multiply, unit.add_clamp, unit.slope, table)


def _semaphore(number: int) -> int:
    if not 1 <= number <= 15:
        raise Refusal(f"there is no semaphore {number}")
    return number


def named(op: Operation, rule: Callable[[Operation], None]) -> None:
    """Run `rule`, naming `op` where it refuses; an outer op leaves the innermost name."""
    try:
        rule(op)
    except Refusal as refusal:
        prefix = "" if isinstance(op, A.RepeatOp) else f"{op.name}: "
        raise Refusal(f"{prefix}{refusal}") from refusal


# -- operations of a macro-instruction (MAC-1) -------------------------------------------------------------------------


def multiplies(operation: MacOperation) -> bool:
    """Whether weights are read."""
    match operation:
        case MacOperation.MAC:
            return True
        case MacOperation.MAX | MacOperation.ADD:
            return False
        case _:
            assert_never(operation)


def _start(operation: MacOperation, bits: int) -> int:
    """What psums are before the first step."""
    match operation:
        case MacOperation.MAX:
            return integer_range(bits)[0]
        case MacOperation.MAC | MacOperation.ADD:
            return 0
        case _:
            assert_never(operation)


def _running(operation: MacOperation) -> Callable[..., np.ndarray]:
    """What all steps up to each one make of its operands."""
    match operation:
        case MacOperation.MAX:
            return np.maximum.accumulate
        case MacOperation.MAC | MacOperation.ADD:
            return np.add.accumulate
        case _:
            assert_never(operation)
