"""One layer, from its integers to its words and back: what it computes and how long it takes, over the whole grid.

Every case is compiled by the passes, encoded, decoded and run. Its output is compared with a brute-force evaluation,
its cycles with a walk over the tiles of the chosen mapping: both written here, from dialects/cnn.py and
docs/machine.md, sharing nothing with the passes and the interpreter but the mapping and the architecture's numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import ceil, prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from cnncc.arch.model import Arch, load_arch
from cnncc.context import CompilerContext
from cnncc.dialects.array import TensorOp
from cnncc.dialects.cnn import CNN, Window
from cnncc.dialects.isa import instructions
from cnncc.dialects.nest import LayerOp as NestLayerOp
from cnncc.dialects.nest import Mapping
from cnncc.dialects.weights import WEIGHTS, GlobalOp, constant_array
from cnncc.isa.codec import decode_program, encode_program
from cnncc.machine.memory import Memory
from cnncc.machine.program import build_tree
from cnncc.machine.times import simulate
from cnncc.machine.values import Interpreter
from cnncc.passes.array_allocate import ArrayAllocatePass
from cnncc.passes.array_prefetch import ArrayPrefetchPass
from cnncc.passes.array_to_isa import ArrayToIsaPass
from cnncc.passes.cnn_to_nest import CnnToNestPass
from cnncc.passes.nest_permute import NestPermutePass
from cnncc.passes.nest_schedule_os import NestScheduleOsPass
from cnncc.passes.nest_stage import NestStagePass
from cnncc.passes.nest_tile import NestTilePass
from cnncc.passes.nest_to_array import NestToArrayPass
from cnncc.passes.nest_unroll import NestUnrollPass

# A layer, and what it computes.


@dataclass(frozen=True)
class Case:
    kind: str = "mac"
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    pad: str = "none"
    c: int = 3
    k: int = 5
    image: tuple[int, int] = (7, 7)
    n: int = 1
    bits: int = 16
    array: tuple[int, int] = (4, 4)
    files: str = "large"
    glb: int = 1 << 16
    halves: int = 2
    scaled: bool = True
    zero: int = 0
    seed: int = 0

    @cached_property
    def pads(self) -> tuple[int, int, int, int]:
        r, s = self.kernel
        same = ((r - 1) // 2, (s - 1) // 2, r // 2, s // 2)
        return {"none": (0, 0, 0, 0), "same": same, "asymmetric": (r // 2, 0, r - 1, s - 1)}[self.pad]

    @cached_property
    def output(self) -> tuple[int, int]:
        top, left, bottom, right = self.pads
        sizes = (self.image[0] + top + bottom - self.kernel[0], self.image[1] + left + right - self.kernel[1])
        return (sizes[0] // self.stride[0] + 1, sizes[1] // self.stride[1] + 1)

    @property
    def channels(self) -> int:
        return self.c if self.kind == "mac" else self.k

    @property
    def fill(self) -> int:
        """Padding of a maximum never wins; a sum's is the zero point."""
        return -(1 << self.bits - 1) if self.kind == "max" else self.zero

    @property
    def most(self) -> int:
        """Operands: so few bits that no sum of up to 17 * 25 products leaves 32 bits, or a word of sums of 25 words."""
        return 120 if self.kind == "max" else {8: 60, 16: 1200}[self.bits]

    def random(self, what: int, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([self.seed, what]).integers(low, high, shape, endpoint=True)

    @cached_property
    def x(self) -> np.ndarray:
        return self.random(0, -self.most, self.most, (self.n, self.channels, *self.image))

    @cached_property
    def weights(self) -> np.ndarray:
        return self.random(1, -self.most, self.most, (self.k, self.c, *self.kernel))

    @cached_property
    def bias(self) -> np.ndarray:
        return self.random(2, -5000, 5000, (self.k,)).astype(np.int32)

    @cached_property
    def scale(self) -> np.ndarray:
        """So that some results reach the clamp, and most do not."""
        typical = self.most * (self.most if self.kind == "mac" else 1) * (self.c * prod(self.kernel)) ** 0.5
        return (self.random(3, 40, 160, (self.k,)) / typical).astype(np.float32)

    @property
    def clamp(self) -> tuple[int, int]:
        return (-70, 90)

    @property
    def steps(self) -> int:
        """Parameters of each channel: bias, scale."""
        return 0 if self.kind == "max" else 1 + self.scaled

    def sums(self) -> Iterator[tuple[tuple[int, int, int], np.ndarray]]:
        """For each image and position the sums of all channels."""
        top, left, _, _ = self.pads
        for n, y, x in np.ndindex(self.n, *self.output):
            window = np.full((self.channels, *self.kernel), self.fill)
            for r, s in np.ndindex(*self.kernel):
                iy, ix = y * self.stride[0] + r - top, x * self.stride[1] + s - left
                if 0 <= iy < self.image[0] and 0 <= ix < self.image[1]:
                    window[:, r, s] = self.x[n, :, iy, ix]
            if self.kind == "max":
                yield (n, y, x), window.max(axis=(1, 2))
            elif self.kind == "add":
                yield (n, y, x), (window - self.zero).sum(axis=(1, 2))
            else:
                yield (n, y, x), (self.weights * (window - self.zero)).sum(axis=(1, 2, 3))

    def expected(self) -> np.ndarray:
        result = np.zeros((self.n, self.k, *self.output), np.int64)
        for (n, y, x), sums in self.sums():
            result[n, :, y, x] = sums
        if self.kind == "max":
            return result
        result += self.bias[:, None, None]
        if self.scaled:
            result = np.rint(result.astype(np.float32) * self.scale[:, None, None]).astype(np.int64) + 3
        return np.clip(result, *self.clamp)

    def arch_text(self) -> str:
        """TOML of the array; small register files hold a kernel row of one channel, and little more."""
        s = self.kernel[1]
        weight, ifmap, psum = (112, 48, 16) if self.files == "large" else (s + 2, s + 1, 3)
        return f"""
            name = "grid"
            rows = {self.array[0]}
            cols = {self.array[1]}
            operand_bits = {self.bits}
            [pe]
            weight_words = {weight}
            ifmap_words = {ifmap}
            psum_words = {psum}
            weight_halves = {self.halves}
            ifmap_halves = {self.halves}
            psum_halves = {self.halves}
            start_cycles = 3
            finish_cycles = 2
            [bus]
            burst_words = 3
            latency_cycles = 2
            [glb]
            words = {self.glb}
            words_per_cycle = 5
            [dram]
            words_per_cycle = 3
            latency_cycles = 17
            [commit]
            units_per_column = 1
            latency_cycles = 4
            [sequencer]
            queue_depth = 3
        """

    def text(self, ctx: CompilerContext) -> str:
        def ref(values: np.ndarray) -> str:
            return f'#weights.ref<"{ctx.weights.add(values)}">'

        x, y = ("x".join(map(str, shape)) for shape in (self.x.shape, (self.n, self.k, *self.output)))
        word = f"i{self.bits}"
        weights = "x".join(map(str, self.weights.shape))
        op = {"mac": "conv %x weights @w", "max": 'pool "max" %x', "add": 'pool "sum" %x'}[self.kind]
        low, high = self.clamp
        scale = 'scale = "s", zero = 3, ' if self.scaled else ""
        then = "" if self.kind == "max" else f'then <bias = "b", {scale}clamp = [{low}, {high}]>'
        zero = 0 if self.kind == "max" else self.zero
        return f"""
            weights.global @w : tensor<{weights}x{word}> = {ref(self.weights.astype(f"int{self.bits}"))}
            weights.global @b : tensor<{self.k}xi32> = {ref(self.bias)}
            weights.global @s : tensor<{self.k}xf32> = {ref(self.scale)}
            func.func @main(%x : tensor<{x}x{word}> {{onnx.name = "x", cnn.quant = #cnn.quant<scale = 1.0>}})
                -> (tensor<{y}x{word}> {{onnx.name = "y", cnn.quant = #cnn.quant<scale = 1.0>}}) {{
              %1 = cnn.{op} window <kernel = {list(self.kernel)}, stride = {list(self.stride)}, pad = {list(self.pads)},
                   fill = {self.fill}, zero = {zero}> {then} label "layer" : tensor<{x}x{word}> -> tensor<{y}x{word}>
              func.return %1 : tensor<{y}x{word}>
            }}"""


# Compiled and run.


def compiled(case: Case, arch: str) -> tuple[ModuleOp, CompilerContext, Mapping]:
    ctx = CompilerContext()
    for dialect in (Builtin, Func, CNN, WEIGHTS):
        ctx.load_dialect(dialect)
    module = Parser(ctx, case.text(ctx)).parse_module()
    module.verify()
    CnnToNestPass().apply(ctx, module)
    NestScheduleOsPass(arch).apply(ctx, module)
    mapping = next(op for op in module.walk() if isinstance(op, NestLayerOp)).mapping
    for lowering in (
        NestTilePass(), NestPermutePass(), NestUnrollPass(), NestStagePass(), NestToArrayPass(arch),
        ArrayPrefetchPass(arch), ArrayAllocatePass(arch), ArrayToIsaPass(),
    ):  # fmt: skip
        lowering.apply(ctx, module)
        module.verify()
    assert mapping is not None
    return module, ctx, mapping.data


def run(case: Case, arch_file: Path) -> tuple[np.ndarray, int, Mapping, Arch]:
    """What the machine's words compute, in how many cycles; by which mapping, on which array."""
    arch_file.write_text(case.arch_text())
    module, ctx, mapping = compiled(case, str(arch_file))
    arch = load_arch(str(arch_file))
    tree = build_tree(decode_program(encode_program(instructions(module))))
    tensors = [op.record.data for op in module.ops if isinstance(op, TensorOp) and op.record.data.memory == "dram"]
    arrays = {op.sym_name.data: constant_array(op, ctx.weights) for op in module.ops if isinstance(op, GlobalOp)}
    dram = Memory("dram", max(t.at + t.words for t in tensors), 1)
    for tensor in tensors:
        if tensor.role != "output":
            words = arrays[tensor.name] if tensor.role == "weight" else case.x
            dram.write(np.arange(tensor.at, tensor.at + tensor.words), words.reshape(1, -1))
    Interpreter(arch, dram, lambda segment, memory: None).run(tree)
    output = next(tensor for tensor in tensors if tensor.role == "output")
    result = dram.read(np.arange(output.at, output.at + output.words)).reshape(output.shape)
    return result, simulate(tree, arch).cycles.total, mapping, arch


# Cycles, tile by tile (docs/machine.md: T, L2, A4, C3, X1, Z).


class Timeline:
    """Engines that work in order, tokens that they wait for, a sequencer that fills their queues."""

    def __init__(self, arch: Arch) -> None:
        pe = arch.pe
        self.now, self.depth = 0, arch.sequencer.queue_depth
        self.end = dict.fromkeys(("dma", "load", "array", "commit"), 0)
        self.done = dict(self.end)
        self.starts: dict[str, list[int]] = {engine: [] for engine in self.end}
        self.tokens: dict[str, deque[int]] = {name: deque() for name in ("W", "I", "P", "full", "free")}
        for name, halves in (("w", pe.weight_halves), ("i", pe.ifmap_halves), ("p", pe.psum_halves)):
            self.tokens[name] = deque([0] * halves)

    def issue(self, engine: str, busy: int, latency: int, takes: str = "", gives: str = "") -> None:
        """Z1, Z2. takes, gives: names of tokens with blanks between; small letters are free halves, capitals full."""
        starts = self.starts[engine]
        self.now = max(self.now, starts[-self.depth] if len(starts) >= self.depth else 0) + 1
        taken = [self.tokens[name].popleft() for name in takes.split()]
        starts.append(max([self.now, self.end[engine], *taken]))
        self.end[engine] = starts[-1] + busy
        done = self.end[engine] + latency
        self.done[engine] = max(self.done[engine], done)
        for name in gives.split():
            self.tokens[name].append(done)

    def sync(self, *engines: str) -> None:
        self.now = max([self.now, *(self.done[engine] for engine in engines)]) + 1


@dataclass(frozen=True)
class At:
    """Inside some loops: extents; which of the iterations around are first and last; PEs of space loops."""

    extent: dict[str, int]
    firsts: tuple[bool, ...] = ()
    lasts: tuple[bool, ...] = ()
    rows: tuple[tuple[str, int], ...] = ()
    cols: tuple[tuple[str, int], ...] = ()

    def pes(self, axis: tuple[tuple[str, int], ...], dims: str) -> int:
        return prod(count for dim, count in axis if dim in dims)


class Walk:
    """One layer's program as the mapping says it."""

    def __init__(self, case: Case, mapping: Mapping, arch: Arch) -> None:
        self.case, self.arch, self.time = case, arch, Timeline(arch)
        self.loops = [loop for loop in mapping.loops if not loop.keep]
        dims = [loop.dim for loop in self.loops]
        self.outputs = min([dims.index(dim) for dim in "crs" if dim in dims], default=len(dims))
        self.stages = {stage.operand: stage.depth for stage in mapping.stages if stage.memory == "glb"}
        self.mac = case.kind == "mac"
        self.param_words = case.steps * 32 // case.bits
        self.weight_words = case.c * prod(case.kernel)
        if case.steps == 0:
            assert "params" not in self.stages

    def total(self) -> int:
        case, time = self.case, self.time
        sizes = {"n": case.n, "k": case.k, "c": case.c if self.mac else 1, "h": case.output[0], "w": case.output[1]}
        sizes |= {"r": case.kernel[0], "s": case.kernel[1]}
        whole = [name for name in ("params", "weight") if self.stages.get(name) == 0]
        if any(self.stages.get(name) for name in ("params", "weight")):
            time.now += 1  # the signal: both halves of the buffers are free
            time.tokens["free"].extend([time.now] * 2)
            time.sync("dma")
        time.now += 2
        self.dma(case.x.size)
        for name in whole:  # what the layer needs comes while the input does
            time.now += 2
            words = self.param_words if name == "params" else self.weight_words
            self.dma(case.k * words, gives="full" if name == whole[-1] else "")
        time.sync("dma")
        time.now += self.setup_cycles()
        time.issue("commit", 1, 0)  # the unit
        self.walk(0, At(sizes))
        time.sync("load", "array", "commit")
        time.now += 2
        self.dma(case.n * case.k * prod(case.output))
        time.sync("dma")
        return max(time.now, *time.done.values())

    def setup_cycles(self) -> int:
        """Descriptors, and their steps: one for each loop in time that moves in the tensor."""
        time = [loop.dim for loop in self.loops if not loop.on]
        cycles = 1 + sum(dim in ("nchwrs" if self.mac else "nkhwrs") for dim in time)
        cycles += 1 + sum(dim in "nkhw" for dim in time)
        for name, dims in (("weight", "kcrs"), ("params", "k")):
            if name in self.stages:
                depth = self.stages[name]
                inside = [loop.dim for loop in self.loops[depth:] if not loop.on]
                cycles += 1 + sum(loop.dim == "k" for loop in self.loops[:depth])
                cycles += 1 + depth + sum(dim in dims for dim in inside)
        return cycles

    def dma(self, words: int, takes: str = "", gives: str = "") -> None:
        dram = self.arch.dram
        self.time.issue("dma", ceil(words / dram.words_per_cycle), dram.latency_cycles, takes, gives)

    def walk(self, depth: int, at: At) -> None:
        self.slices(depth, at)
        if depth == len(self.loops):
            self.tile(at)
        else:
            loop = self.loops[depth]
            full, rest = divmod(at.extent[loop.dim], loop.step)
            pieces = [(full, loop.step)] * (full > 0) + [(1, rest)] * (rest > 0)
            for number, (count, size) in enumerate(pieces):
                ends = (number == 0, number == len(pieces) - 1)
                self.piece(depth, replace(at, extent={**at.extent, loop.dim: size}), count, ends)
        if depth == self.outputs:
            self.commit(at)

    def piece(self, depth: int, at: At, count: int, ends: tuple[bool, bool]) -> None:
        loop = self.loops[depth]
        if loop.on:
            placed = {loop.on: (*getattr(at, loop.on), (loop.dim, count))}
            at = replace(at, firsts=(*at.firsts, ends[0]), lasts=(*at.lasts, ends[1]), **placed)
            self.walk(depth + 1, at)
            return
        self.time.now += 1  # the loop instruction
        for i in range(count):
            first, last = ends[0] and i == 0, ends[1] and i == count - 1
            self.walk(depth + 1, replace(at, firsts=(*at.firsts, first), lasts=(*at.lasts, last)))

    def slices(self, depth: int, at: At) -> None:
        staged = [name for name in ("params", "weight") if depth and self.stages.get(name) == depth]
        for i, name in enumerate(staged):
            words = self.param_words if name == "params" else self.weight_words
            takes, gives = "free" if i == 0 else "", "full" if i == len(staged) - 1 else ""
            self.dma(at.extent["k"] * words, takes, gives)

    def tile(self, at: At) -> None:
        """Loads and the macro-instruction."""
        pe, extent = self.arch.pe, at.extent
        if self.mac:
            first = "full" if all(at.firsts[self.stages["weight"] :]) else ""
            words = prod(extent[dim] for dim in "scrk")
            self.load(words, at.pes(at.rows, "k"), at.pes(at.cols, "k"), f"w {first}", "W")
        stride, z = self.case.stride[1], extent["w"]
        columns = (z - 1) * stride + extent["s"]
        shared = max(0, extent["s"] - stride) if self.mac and at.pes(at.cols, "w") > 1 else 0
        each = extent["r"] * (extent["c"] if self.mac else extent["k"])
        dims = "hw" if self.mac else "khw"
        rows, cols = at.pes(at.rows, dims), at.pes(at.cols, dims)
        self.load((columns - shared) * each, rows, cols, "i", "" if shared else "I")
        if shared:
            self.load(shared * each, rows, at.pes(at.cols, "") if self.mac else 0, "", "I")
        steps = z * extent["s"] * extent["r"] * extent["c"] * extent["k"]
        clear = " p" if all(at.firsts[self.outputs :]) else ""
        send = " P" if all(at.lasts[self.outputs :]) else ""
        weight = ("W ", "w ") if self.mac else ("", "")
        busy = pe.start_cycles + steps + pe.finish_cycles
        self.time.issue("array", busy, 0, f"{weight[0]}I{clear}", f"{weight[1]}i{send}")

    def load(self, words: int, rows: int, cols: int, takes: str, gives: str) -> None:
        glb, bus = self.arch.glb, self.arch.bus
        busy = max(ceil(words * rows * cols / glb.words_per_cycle), cols * ceil(words / bus.burst_words), words)
        self.time.issue("load", busy, bus.latency_cycles, takes, gives)

    def commit(self, at: At) -> None:
        rows, cols = at.pes(at.rows, "kh"), at.pes(at.cols, "kw")
        sums = at.extent["w"] * at.extent["k"]
        channels = at.pes(at.rows, "k") * at.pes(at.cols, "k") * at.extent["k"]
        words = rows * cols * sums + channels * self.param_words
        units = ceil(rows * sums / self.arch.commit.units_per_column)
        takes, gives = "P", "p"
        depth = self.stages.get("weight", self.stages.get("params"))
        if depth is not None:
            if not self.mac and all(at.firsts[depth : self.outputs]):
                takes += " full"
            if depth and all(at.lasts[depth : self.outputs]):
                gives += " free"
        latency = self.arch.commit.latency_cycles
        self.time.issue("commit", max(units, ceil(words / self.arch.glb.words_per_cycle)), latency, takes, gives)


def check(case: Case, folder: Path) -> Mapping:
    result, cycles, mapping, arch = run(case, folder / "array.toml")
    assert np.array_equal(result, case.expected())
    assert cycles == Walk(case, mapping, arch).total()
    return mapping


# The grid.

KERNELS = [(1, 1), (2, 2), (3, 3), (5, 5), (1, 5)]
STRIDES = [(1, 1), (2, 2), (3, 3), (1, 2), (3, 1)]
PADS = ["none", "same", "asymmetric"]
CHANNELS = [1, 3, 5, 16, 17]
SIZES = [5, 6, 7, 8, 9, 11, 13, 17, 19]
ARRAYS = [(2, 2), (2, 4), (3, 5), (4, 4), (4, 8), (8, 3), (8, 8)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    case = Case(
        kind=draw(st.sampled_from(["mac", "mac", "mac", "max", "add"])),
        kernel=draw(st.sampled_from(KERNELS)),
        stride=draw(st.sampled_from(STRIDES)),
        pad=draw(st.sampled_from(PADS)),
        c=draw(st.sampled_from(CHANNELS)),
        k=draw(st.sampled_from(CHANNELS)),
        image=(draw(st.sampled_from(SIZES)), draw(st.sampled_from(SIZES))),
        n=draw(st.integers(1, 2)),
        bits=draw(st.sampled_from([16, 8])),
        array=draw(st.sampled_from(ARRAYS)),
        files=draw(st.sampled_from(["large", "small"])),
        glb=draw(st.sampled_from([1 << 16, 1 << 14])),
        halves=draw(st.sampled_from([2, 2, 1, 3])),
        scaled=draw(st.booleans()),
        zero=draw(st.sampled_from([0, 0, -7, 60])),
        seed=draw(st.integers(0, 9)),
    )
    assume(case.x.size + case.weights.size + case.n * case.k * prod(case.output) + 8 * case.k <= case.glb)
    return case


GRID = [
    Case(),
    *(Case(kernel=kernel, pad=pad, array=(3, 5)) for kernel in KERNELS for pad in PADS),
    *(Case(stride=stride, kernel=kernel, image=(11, 13)) for stride in STRIDES for kernel in ((3, 3), (1, 5))),
    *(Case(c=c, k=k) for c in CHANNELS for k in (1, 17)),
    *(Case(c=3, k=k, array=(8, 8)) for k in CHANNELS),
    *(Case(image=(size, 5), array=(4, 8)) for size in SIZES),
    *(Case(image=(6, size), pad="asymmetric") for size in SIZES),
    *(Case(array=array, c=5, k=17, image=(13, 11), pad="same") for array in ARRAYS),
    *(Case(files="small", kernel=kernel, array=array) for kernel in KERNELS for array in ((2, 2), (4, 8))),
    *(Case(kind=kind, kernel=kernel, stride=(2, 2), pad="same", k=17) for kind in ("max", "add") for kernel in KERNELS),
    *(Case(kind=kind, files="small", n=2, k=5, array=(8, 3)) for kind in ("max", "add")),
    *(Case(bits=8, c=17, k=16, zero=zero, n=2, pad="same") for zero in (0, -7, 60)),
    *(Case(halves=halves, files=files, k=16) for halves in (1, 3) for files in ("large", "small")),
    *(Case(c=17, k=17, kernel=(5, 5), glb=1 << 14, files=files, array=array, n=2, scaled=scaled)
      for files, array, scaled in (("large", (8, 8), True), ("large", (2, 4), False), ("small", (4, 4), True))),
    Case(kind="add", k=17, scaled=True, glb=160, image=(2, 2), kernel=(2, 2), array=(2, 2), files="small"),
]  # fmt: skip


@pytest.mark.parametrize("case", GRID, ids=lambda case: "-".join(
    f"{name}={value}".replace(" ", "") for name, value in asdict(case).items() if value != getattr(Case(), name)
))  # fmt: skip
def test_grid(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases())
@example(case=Case(stride=(2, 1), kernel=(2, 2), image=(5, 19), array=(2, 2), files="small"))
def test_random_layers(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_the_grid_has_every_kind_of_mapping(tmp_path: Path) -> None:
    """Weights whole and in slices, reductions over c and over r, remainders in space, sets side by side."""
    seen: set[str] = set()
    for case in GRID:
        (tmp_path / "array.toml").write_text(case.arch_text())
        mapping = compiled(case, str(tmp_path / "array.toml"))[2]
        loops = [loop for loop in mapping.loops if not loop.keep]
        seen |= {f"{loop.dim} {loop.on or 'time'}" for loop in loops}
        seen |= {f"{stage.operand} in slices" for stage in mapping.stages if stage.memory == "glb" and stage.depth}
    wanted = {f"{dim} time" for dim in "nkhwcr"} | {"k rows", "h rows", "k cols", "w cols"}
    assert wanted | {"weight in slices", "params in slices"} <= seen


def test_window_is_what_the_cases_say() -> None:
    """The outputs' size by ONNX's formula, once."""
    case = Case(kernel=(5, 5), stride=(3, 2), pad="asymmetric", image=(11, 7))
    assert case.output == Window((5, 5), (3, 2), case.pads).output(11, 7) == ((11 + 2 + 4 - 5) // 3 + 1, 4)
