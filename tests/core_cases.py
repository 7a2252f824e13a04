"""Programs of cores by hand: a chain of convolutions and pools, a core each, with rows of pixels in rings.

The text is written row by row, with the loads, macro-instructions and commits of each row. A channel is a ring of rows
in the GLB with two semaphores. The consumer takes one token for each row that is full, the producer one for each row
that is free. A window of 3 rows needs the row below, so row 0 gives no token, and the last row takes none.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

import numpy as np

from cnncc.arch.model import Arch, Bus, Cores, Dram, Glb, OutputUnits, Pe, Sequencer
from cnncc.binary.container import Binary, with_dram_addresses
from cnncc.dialects.array import Tensor
from cnncc.isa.assembly import assemble
from cnncc.isa.codec import encode_program

BANK_WORDS = 1024
PAPER = Arch(
    "tcpa", 4, 5,
    Pe(648, 192, 64, ifmap_halves=3, lanes=2, max_pixels=32, start_cycles=3, finish_cycles=1),
    Glb(64 * BANK_WORDS, 8, banks=64),
    Dram(4, 64),
    operand_bits=8,
    clock_mhz=50,
    bus=Bus(10, 1),
    commit=OutputUnits(1, 4),
    sequencer=Sequencer(4),
    cores=Cores(8, 8, 3, 1),
)  # fmt: skip
BUFFERS = 2  # of images and results
FULL_IN, FREE_IN, FREE_OUT, FULL_OUT, READY = 1, 2, 3, 4, 5  # semaphores of each core
DMA_WEIGHTS = 5  # of the DMA core: the first of the semaphores for weights


def with_macro_cycles(arch: Arch, start: int, finish: int) -> Arch:
    return replace(arch, pe=replace(arch.pe, start_cycles=start, finish_cycles=finish))


@dataclass
class Layer:
    """A layer. place: row0, rows, col0, cols of its PEs; height, width: of its results; entries: of its input ring."""

    kind: str
    height: int
    width: int
    c: int
    k: int
    place: tuple[int, int, int, int]
    entries: int = 0
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int8))  # [k, c, r, s]
    bias: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    scale: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def pes(self) -> int:
        return self.place[1] * self.place[3]

    @property
    def stride(self) -> int:
        return 2 if self.kind == "pool" else 1

    @property
    def unit(self) -> int:
        """Rows of its input that are given at once."""
        return self.stride

    def reference(self, x: np.ndarray) -> np.ndarray:
        """x: [frame, c, ih, iw]."""
        if self.kind == "pool":
            f, c, h, w = x.shape
            return x.reshape(f, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))
        padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
        sums = np.zeros((len(x), self.k, self.height, self.width), np.int64)
        for r in range(3):
            for s in range(3):
                part = padded[:, :, r : r + self.height, s : s + self.width]
                sums += np.einsum("fchw,kc->fkhw", part, self.weights[:, :, r, s].astype(np.int64))
        sums += self.bias[:, None, None]
        return np.clip(np.rint(sums.astype(np.float32) * self.scale[:, None, None]), -128, 127).astype(np.int64)


PLACES = {  # of Conv0, Pool1, Conv2, Pool3, Conv4, by their PEs
    (4, 1, 8, 1, 2): [(2, 2, 0, 2), (2, 1, 2, 1), (0, 2, 0, 4), (3, 1, 2, 1), (2, 2, 3, 1)],
    (4, 1, 12, 1, 2): [(3, 1, 0, 4), (3, 1, 4, 1), (0, 3, 0, 4), (2, 1, 4, 1), (0, 2, 4, 1)],
    (1, 1, 2, 1, 1): [(2, 1, 0, 1), (2, 1, 2, 1), (0, 1, 0, 2), (3, 1, 2, 1), (2, 1, 3, 1)],
}


def chain(
    pes: tuple[int, ...], size: tuple[int, int] = (28, 28), channels: Sequence[int] = (1, 24, 24, 16), seed: int = 0
):
    """The paper's network, or one of other sizes."""
    r = np.random.default_rng(seed)
    (h, w), (c0, c1, c2, c3), place = size, channels, PLACES[pes]
    layers = [
        Layer("conv", h, w, c0, c1, place[0], BUFFERS),
        Layer("pool", h // 2, w // 2, c1, c1, place[1], 3),
        Layer("conv", h // 2, w // 2, c1, c2, place[2], 7),
        Layer("pool", h // 4, w // 4, c2, c2, place[3], 3),
        Layer("conv", h // 4, w // 4, c2, c3, place[4], 7),
    ]
    for layer in layers:
        if layer.kind == "conv":
            layer.weights = r.integers(-128, 128, (layer.k, layer.c, 3, 3)).astype(np.int8)
            layer.bias = r.integers(-500, 500, layer.k).astype(np.int32)
            layer.scale = (r.uniform(0.5, 1.5, layer.k) / (70 * 70 * np.sqrt(9 * layer.c) / 60)).astype(np.float32)
        layer.entries = min(layer.entries, layer.height * layer.stride // layer.unit)
    return layers


class ProgramWriter:
    """The program of a chain. lag: frames by which results leave behind the images that come."""

    def __init__(self, layers: Sequence[Layer], arch: Arch, lag: int = 1) -> None:
        self.layers, self.arch, self.lag = layers, arch, lag
        self.arrays: list[tuple[str, np.ndarray]] = []
        self._bank = 0
        first, last = layers[0], layers[-1]
        self.sizes = (first.c * first.height * first.width, last.k * last.height * last.width)
        self.rings = [self.words(BUFFERS * self.sizes[0])]
        self.ring_rows = [0]
        for producer, consumer in zip(layers, layers[1:], strict=False):
            needed = consumer.entries * consumer.unit
            rows = next(r for r in range(needed, producer.height + 1) if producer.height % r == 0)
            self.ring_rows.append(rows)
            self.rings.append(self.words(producer.k * rows * producer.width))
        self.rings.append(self.words(BUFFERS * self.sizes[1]))
        self.ring_rows.append(0)
        self.data: dict[int, tuple[int, int]] = {}  # by layer: where weights and parameters lie in the GLB
        self.transfers: list[tuple[int, int, int, int]] = []  # layer or -1, DRAM word, GLB word, words
        dram = 0
        for n, layer in enumerate(layers):
            if layer.kind == "pool":
                continue
            params = np.stack([layer.bias.view(np.int32), layer.scale.view(np.int32)], 1).astype("<i4").view(np.int8)
            at: list[int] = []
            for name, array in (("params", params.reshape(-1)), ("weights", self.packed(layer))):
                at.append(self.words(array.size))
                self.transfers.append((n if name == "weights" else -1, dram, at[-1], array.size))
                self.arrays.append((f"{n}.{name}", array))
                dram += array.size
            self.data[n] = (at[1], at[0])

    def words(self, count: int) -> int:
        """The first of so many words of the GLB, in banks of their own."""
        at = self._bank * BANK_WORDS
        self._bank += ceil(count / BANK_WORDS)
        return at

    # -- how layers run --------------------------------------------------------------------------------------------

    def plan(self, layer: Layer) -> tuple[int, int, int, bool]:
        """Filters of a PE, filters and channels of a macro-instruction, and whether weights are resident."""
        pe, f = self.arch.pe, layer.k // layer.pes
        resident = f * layer.c * 9 <= pe.weight_words
        group = next(g for g in range(f, 0, -1) if f % g == 0 and layer.width * g <= pe.psum_words)
        for chunk in range(layer.c, 0, -1):
            fits = 3 * (layer.width + 2) * chunk <= pe.ifmap_words and (
                resident or group * 9 * chunk <= pe.weight_words
            )
            if fits and layer.c % chunk == 0 and (chunk == 1 or chunk % pe.lanes == 0):
                return f, group, chunk, resident
        raise AssertionError("no channel fits")

    def packed(self, layer: Layer) -> np.ndarray:
        """Weights as [k][chunk][s][r][channel of the chunk], in which a macro-instruction takes them."""
        chunk = self.plan(layer)[2]
        parts = layer.weights.reshape(layer.k, layer.c // chunk, chunk, 3, 3)
        return np.ascontiguousarray(parts.transpose(0, 1, 4, 3, 2)).reshape(-1)

    # -- text ------------------------------------------------------------------------------------------------------

    def text(self) -> str:
        return "\n".join([*self.dma_core(), *(line for n in range(len(self.layers)) for line in self.core(n))])

    def dma_core(self) -> Iterator[str]:
        weights = [n for n, *_ in self.transfers if n >= 0]
        base, record = sum(array.size for _, array in self.arrays), sum(self.sizes)
        yield "core"
        yield f"route semaphore={FREE_IN} core=1 to={FULL_IN}"
        yield f"route semaphore={FULL_OUT} core={len(self.layers)} to={FREE_OUT}"
        for i, n in enumerate(weights):
            yield f"route semaphore={DMA_WEIGHTS + i} core={n + 1} to={READY}"
        yield f"signal semaphore={FULL_IN} count={BUFFERS}"
        yield f"signal semaphore={FREE_OUT} count={self.lag}" if self.lag else "sync"
        for n, dram, glb, count in self.transfers:
            yield f"desc id=0 base={dram}"
            yield f"desc id=1 base={glb}"
            gives = f"give={DMA_WEIGHTS + weights.index(n)} give_when=always" if n >= 0 else ""
            yield f"dma dram=0 glb=1 words={count} {gives}"
        for number, at, words in ((2, 0, self.sizes[0]), (4, self.sizes[0], self.sizes[1])):
            yield f"desc id={number} base={base + at} frames=1 width={record} pitch={record}"
            yield f"step id={number} by=y*1"
            yield f"desc id={number + 1} base={self.rings[0 if number == 2 else -1]} wrap={BUFFERS * words}"
            yield f"step id={number + 1} by=lin*{words}"
        yield f"loop frames=1 count={1 + self.lag}"
        # FULL_IN, FREE_IN: space for images, images. FREE_OUT, FULL_OUT: results, space for results.
        yield (
            f"dma dram=2 glb=3 words={self.sizes[0]} take={FULL_IN} take_when=always give={FREE_IN} give_when=always"
        )
        yield (
            f"dma direction=out dram=4 glb=5 words={self.sizes[1]} y={-self.lag} "
            f"glb_offset={-self.lag * self.sizes[1]} "
            f"take={FREE_OUT} take_when=always give={FULL_OUT} give_when=always"
        )
        yield "end\nhalt"

    def core(self, n: int) -> Iterator[str]:
        layer, last = self.layers[n], n == len(self.layers) - 1
        row0, rows, col0, cols = layer.place
        yield f"core row0={row0} rows={rows} col0={col0} cols={cols}"
        yield f"route semaphore={FREE_IN} core={n} to={FREE_OUT if n else FULL_IN}"
        yield f"route semaphore={FULL_OUT} core={0 if last else n + 2} to={FREE_OUT if last else FULL_IN}"
        entries = BUFFERS - self.lag if last else self.layers[n + 1].entries - (self.layers[n + 1].kind == "conv")
        if entries:
            yield f"signal semaphore={FREE_OUT} count={entries}"
        yield from self.descriptors(n)
        bundle = 1 if last else self.layers[n + 1].unit
        bodies = layer.height // bundle
        yield "loop frames=1"
        for first, count in ((0, 1), (1, bodies - 2), (bodies - 1, 1)):
            for number, step in ((0, bundle * layer.stride), (2, bundle)):
                yield f"step id={number} loop=1 by=y*{step}"
            yield f"loop count={count}"
            for y in range(first * bundle, (first + 1) * bundle):
                yield from self.row(n, y, count)
            yield "end"
        yield "end\nhalt"

    def descriptors(self, n: int) -> Iterator[str]:
        layer, stride = self.layers[n], self.layers[n].stride
        height, width = layer.height * stride, layer.width * stride
        for number, at, h, w, size in (
            (0, n, height, width, self.sizes[0]),
            (2, n + 1, layer.height, layer.width, self.sizes[1]),
        ):
            rows = self.ring_rows[at]
            ring = f"ring_y={rows}" if rows else f"wrap={BUFFERS * size}"
            bounds = f"height={h} width={w} pitch={w} plane={(rows or h) * w}"
            yield f"desc id={number} base={self.rings[at]} {bounds} {ring}"
            if not rows:
                yield f"step id={number} by=lin*{size}"
        if layer.kind == "conv":
            weights, params = self.data[n]
            yield f"desc id=1 base={weights}"
            yield f"desc id=3 base={params}"
            yield "unit bias=1 scale=1 clamp_lo=-128 clamp_hi=127"
            if self.plan(layer)[3]:
                pe, (f, *_) = layer.c * 9, self.plan(layer)
                yield (
                    f"load kind=weight {self.rectangle(layer)} desc=1 extent3={f * pe} term3=lin*1 open=always "
                    f"close=always {self.by_pe(layer, 'lin', f * pe)} take={READY} take_when=always"
                )
        else:
            yield "unit clamp_lo=-128 clamp_hi=127"

    def rectangle(self, layer: Layer) -> str:
        _, rows, _, cols = layer.place
        return f"rows={rows} cols={cols} set_rows={rows} set_cols={cols}"

    def by_pe(self, layer: Layer, axis: str, step: int) -> str:
        return f"row={axis}*{step * layer.place[3]} col={axis}*{step}"

    def row(self, n: int, y: int, count: int) -> Iterator[str]:
        """A row of results, in the loop over rows (register 1), of so many iterations. y: the row in the first one."""
        layer, last = self.layers[n], n == len(self.layers) - 1
        frame_in, window = n == 0, layer.kind == "conv"
        takes = y == 0 if frame_in else not window or y < layer.height - 1 or count > 1
        frees = y == layer.height - 1 if frame_in else True
        take = f"take={FULL_IN} take_when={{}}" if takes else ""
        free = f"give={FREE_IN} give_when={{}}" if frees else ""
        if last:
            take_out, give_out = y == 0, y == layer.height - 1
        else:
            consumer = self.layers[n + 1]
            take_out = y % consumer.unit == 0
            give_out = y > 0 if consumer.kind == "conv" else y % consumer.unit == consumer.unit - 1
        space = f"take={FREE_OUT} take_when={{}}" if take_out else ""
        full = f"give={FULL_OUT} give_when={{}}" if give_out else ""
        yield from (self.pool_row if layer.kind == "pool" else self.conv_row)(n, y, take, free, space, full)

    def pool_row(self, n: int, y: int, take: str, free: str, space: str, full: str) -> Iterator[str]:
        layer, pe = self.layers[n], self.arch.pe
        mine, w = layer.k // layer.pes, layer.width
        group = next(
            g for g in range(mine, 0, -1) if mine % g == 0 and w * g <= pe.psum_words and 4 * w * g <= pe.ifmap_words
        )
        rectangle, pes = self.rectangle(layer), self.by_pe(layer, "k", mine)
        for number in (0, 2):
            yield f"step id={number} loop=2 by=k*{group}"
        yield f"loop count={mine // group}"
        yield (
            f"load kind=ifmap {rectangle} desc=0 y={2 * y} extent1={group} term1=k*1 extent2={2 * w} term2=x*1 "
            f"extent3=2 term3=y*1 open=always close=always {pes} {take.format(2)} {free.format(2)}"
        )
        yield (
            f"mac op=max rows={layer.place[1]} cols={layer.place[3]} set_cols={layer.place[3]} pixels={w} taps=4 "
            f"step_range={group} ifmap_z=4 ifmap_j=1 ifmap_i={4 * w} psum_z={group} psum_i=1 clear=always send=always "
            "take_ifmap=always give_ifmap=always"
        )
        yield self.commit(layer, y, group, mine, 0, space.format(2), full.format(2))
        yield "end"

    def conv_row(self, n: int, y: int, take: str, free: str, space: str, full: str) -> Iterator[str]:
        layer, lanes = self.layers[n], self.arch.pe.lanes
        f, group, chunk, resident = self.plan(layer)
        chunks, groups, w = layer.c // chunk, f // group, layer.width
        used = lanes if chunk % lanes == 0 else 1
        rectangle = self.rectangle(layer)
        for g in range(groups):
            for c in range(chunks):
                if not resident:
                    ready = f"take={READY} take_when=0" if y == g == c == 0 else ""
                    yield (
                        f"load kind=weight {rectangle} desc=1 offset={g * group * layer.c * 9 + c * 9 * chunk} "
                        f"extent2={group} term2=lin*{layer.c * 9} extent3={9 * chunk} term3=lin*1 open=always "
                        f"close=always {self.by_pe(layer, 'lin', f * layer.c * 9)} {ready}"
                    )
                if chunks > 1 or g == 0:
                    final = c == chunks - 1 and (g == groups - 1 or chunks == 1)
                    yield (
                        f"load kind=ifmap {rectangle} desc=0 channel={c * chunk} y={y - 1} x=-1 extent1={w + 2} "
                        f"term1=x*1 extent2=3 term2=y*1 extent3={chunk} term3=k*1 open=always close=always "
                        f"{take.format('always') if g == c == 0 else ''} {free.format('always') if final else ''}"
                    )
                slot = g * group * layer.c * 9 + c * 9 * chunk if resident else 0
                if resident:
                    operands = "take_weight=0" if y == g == c == 0 else ""
                else:
                    operands = "take_weight=always give_weight=always"
                operands += " take_ifmap=always" if chunks > 1 or g == 0 else ""
                operands += " give_ifmap=always" if chunks > 1 or g == groups - 1 else ""
                yield (
                    f"mac rows={layer.place[1]} cols={layer.place[3]} set_cols={layer.place[3]} pixels={w} "
                    f"taps={9 * chunk // used} step_range={group} lanes={used} ifmap_l=1 weight_l=1 "
                    f"ifmap_z={3 * chunk} ifmap_j={used} weight_slot={slot} weight_j={used} "
                    f"weight_i={9 * (layer.c if resident else chunk)} psum_z={group} "
                    f"psum_i=1 {operands} {'clear=always' if c == 0 else ''} "
                    f"{'send=always' if c == chunks - 1 else ''}"
                )
            gives = full.format("always") if g == groups - 1 else ""
            yield self.commit(layer, y, group, f, g * group, space.format("always") if g == 0 else "", gives)

    def commit(self, layer: Layer, y: int, group: int, mine: int, first: int, space: str, full: str) -> str:
        return (
            f"commit {self.rectangle(layer)} desc=2 params=3 y={y} channel={first} param={first} pixels={layer.width} "
            f"channels={group} pixel_term=x*1 channel_term=k*1 psum_z={group} psum_i=1 {self.by_pe(layer, 'k', mine)} "
            f"{space} {full}"
        )

    def binary(self) -> Binary:
        first, last = self.layers[0], self.layers[-1]
        tensors = [
            Tensor("x", "dram", self.sizes[0], (1, first.c, first.height, first.width), "input", scale=1.0),
            Tensor("y", "dram", self.sizes[1], (1, last.k, last.height, last.width), "output", scale=1.0),
        ]
        tensors = [replace(tensor, clamp=(-128, 127)) for tensor in tensors]
        program = encode_program(assemble(self.text()))
        placed = with_dram_addresses(tensors, self.arrays)
        return Binary(program, self.arrays, placed, [], self.arch, {"weights": [name for name, _ in self.arrays]})


def reference(layers: Sequence[Layer], x: np.ndarray) -> np.ndarray:
    for layer in layers:
        x = layer.reference(x)
    return x


def macs_of_busiest(layers: Sequence[Layer], writer: ProgramWriter) -> int:
    """The macro-instruction steps of a frame in the core that has most."""
    most = 0
    for layer in layers:
        if layer.kind == "conv":
            chunk = writer.plan(layer)[2]
            lanes = writer.arch.pe.lanes if chunk % writer.arch.pe.lanes == 0 else 1
            steps = layer.k // layer.pes * 9 * layer.c // lanes
        else:
            steps = 4 * layer.k // layer.pes
        most = max(most, prod((layer.height, layer.width)) * steps)
    return most


SMALL = ((4, 1, 8, 1, 2), (12, 8), (1, 8, 8, 4))


def random_case(seed: int) -> tuple[str, Arch, int]:
    """A chain on a random array, with loops and waits between its instructions; and its lag."""
    r = random.Random(seed)
    pe = replace(
        PAPER.pe, start_cycles=r.randint(0, 4), finish_cycles=r.randint(0, 2), weight_halves=r.randint(1, 3),
        ifmap_halves=r.randint(1, 3), psum_halves=r.randint(1, 3),
    )  # fmt: skip
    arch = replace(
        PAPER, pe=pe, dram=Dram(r.choice([*range(1, 10), 0.3, 2.5]), r.randint(0, 90)),
        bus=Bus(r.randint(1, 10), r.randint(0, 5)),
        commit=OutputUnits(r.randint(1, 3), r.randint(0, 9)), sequencer=Sequencer(r.randint(1, 6), r.random() < 0.8),
        cores=Cores(8, r.randint(0, 8), 3, r.choice([0, 1, 10, 300])),
    )  # fmt: skip
    layers, lag = chain(*SMALL), r.choice([0, 1, 2])
    for layer in layers[1:]:
        layer.entries = r.randint(3 if layer.kind == "conv" else 1, layer.entries)
    # Waits, and loops without tokens, whose effects are summed up.
    before = {
        "end": "sync load=1 array=1 commit=1",
        "load": "loop count=3\ndesc id=9\nend",
        "mac": "loop count=2\nsync\nend",
    }
    lines = [
        line if r.random() < 0.8 else f"{before.get(line.split()[0], '')}\n{line}"
        for line in ProgramWriter(layers, arch, lag).text().splitlines()
    ]
    return "\n".join(lines), arch, lag
