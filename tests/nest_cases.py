"""Random layers for the nest tests: their IR at the cnn level, their weights, and what they compute by brute force."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from hypothesis import strategies as st
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from cnncc.arch.model import Arch, load_arch
from cnncc.context import CompilerContext
from cnncc.dialects._records import format_record
from cnncc.dialects.cnn import CNN
from cnncc.dialects.nest import NEST, LayerOp
from cnncc.dialects.weights import WEIGHTS
from cnncc.driver.pipeline import DONE
from cnncc.mapping.mapping import Loop, Mapping, Stage
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._scheduling.candidates import Candidates
from cnncc.passes._scheduling.schedule_file import DataflowName, Schedule
from cnncc.passes.cnn_to_nest import CnnToNestPass
from cnncc.passes.nest_permute import NestPermutePass
from cnncc.passes.nest_stage import NestStagePass
from cnncc.passes.nest_tile import NestTilePass
from cnncc.passes.nest_to_scf import NestToScfPass
from cnncc.passes.nest_unroll import NestUnrollPass
from cnncc.window import Window

QUANT = "cnn.quant = #cnn.quant<scale = 1.0>"
SCHEDULE = (NestTilePass(), NestPermutePass(), NestUnrollPass(), NestStagePass())


def best_mapping(layer: LayerOp, arch: Arch, budget: GlbBudget | None = None, dataflow: str = "os") -> Mapping:
    """The mapping of a form that users get for a layer alone. Raises Refusal."""
    candidates = Candidates("test", arch, Schedule(), CompilerContext(), DataflowName(dataflow))
    mapping = candidates.best(layer, budget or GlbBudget(arch.glb.words))
    assert mapping is not None
    return mapping


def context() -> CompilerContext:
    ctx = CompilerContext()
    for dialect in (Builtin, Func, CNN, NEST, WEIGHTS):
        ctx.load_dialect(dialect)
    return ctx


@dataclass(frozen=True)
class Case:
    """A layer of `kind` (mac, max, add, copy) on an image x of n images of k or c * group channels."""

    kind: str
    n: int
    k: int
    c: int
    image: tuple[int, int]
    window: Window
    seed: int = 0

    def random(self, what: int, most: int, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([self.seed, what]).integers(-most, most, shape)

    @cached_property
    def x(self) -> np.ndarray:
        channels = self.c * self.window.group if self.kind == "mac" else self.k
        return self.random(0, 300, (self.n, channels, *self.image))

    @cached_property
    def weights(self) -> np.ndarray:
        return self.random(1, 300, (self.k, self.c, *self.window.kernel)).astype(np.int16)

    @cached_property
    def bias(self) -> np.ndarray:
        return self.random(2, 999, (self.k,)).astype(np.int32)

    def sums(self) -> np.ndarray:
        """Bias included. One tap of all windows after the other, from the formulas in dialects/cnn.py."""
        w, (rows, cols) = self.window, self.image
        per_group = self.k // w.group
        out = np.full((self.n, self.k, *w.output(*self.image)), -(10**9) if self.kind == "max" else 0, np.int64)
        for r, s in np.ndindex(*w.kernel):
            iy = np.arange(out.shape[2])[:, None] * w.stride[0] + r * w.dilation[0] - w.pad[0]
            ix = np.arange(out.shape[3]) * w.stride[1] + s * w.dilation[1] - w.pad[1]
            inside = (iy >= 0) & (iy < rows) & (ix >= 0) & (ix < cols)
            values = np.where(inside, self.x[:, :, iy.clip(0, rows - 1), ix.clip(0, cols - 1)], w.fill)
            if self.kind == "max":
                out = np.maximum(out, values)
            elif self.kind == "add":
                out += values - w.zero
            else:
                for k in range(0, self.k, per_group):
                    group = values[:, k // per_group * self.c :][:, : self.c] - w.zero
                    weights = self.weights[k : k + per_group, :, r, s].astype(np.int64)
                    out[:, k : k + per_group] += np.einsum("kc,nchw->nkhw", weights, group)
        return out + (0 if self.kind == "max" else self.bias[None, :, None, None])

    def module(self, ctx: CompilerContext) -> ModuleOp:
        """`main` with this one layer, sums plus bias as its result."""
        h, w = self.window.output(*self.image)
        x, y = "x".join(map(str, self.x.shape)), f"{self.n}x{self.k}x{h}x{w}"
        weights = "x".join(map(str, self.weights.shape))
        then = "" if self.kind == "max" else 'then <bias = "b">'
        op = {"mac": "conv %x weights @w", "max": 'pool "max" %x', "add": 'pool "sum" %x'}[self.kind]
        text = f"""
            weights.global @w : tensor<{weights}xi16> = #weights.ref<"{ctx.weights.add(self.weights)}">
            weights.global @b : tensor<{self.k}xi32> = #weights.ref<"{ctx.weights.add(self.bias)}">
            func.func @main(%x : tensor<{x}xi16>) -> tensor<{y}xi32> {{
              %1 = cnn.{op} window <{format_record(self.window)}> {then} label "layer0"
                   : tensor<{x}xi16> -> tensor<{y}xi32>
              func.return %1 : tensor<{y}xi32>
            }}"""
        module = Parser(ctx, text).parse_module()
        module.verify()
        return module


@dataclass(frozen=True)
class Small(Case):
    """A case whose sums fit in 16 bits, so that no step of an epilogue hides a difference."""

    def random(self, what: int, most: int, shape: tuple[int, ...]) -> np.ndarray:
        return super().random(what, min(most, 7), shape)

    def network(self, ctx: CompilerContext) -> ModuleOp:
        """`main` with this one layer, its sums plus bias as words."""
        x, y = self.x.shape, (self.n, self.k, *self.window.output(*self.image))
        x, y, w = ("x".join(map(str, dims)) for dims in (x, y, self.weights.shape))
        text = f"""builtin.module attributes {{{DONE} = "cnn-legalize"}} {{
            weights.global @w : tensor<{w}xi16> = #weights.ref<"{ctx.weights.add(self.weights)}">
            weights.global @b : tensor<{self.k}xi32> = #weights.ref<"{ctx.weights.add(self.bias)}">
            func.func @main(%x : tensor<{x}xi16> {{onnx.name = "x", {QUANT}}})
                -> (tensor<{y}xi16> {{onnx.name = "y", {QUANT}}}) {{
              %1 = cnn.conv %x weights @w window <{format_record(self.window)}> then <bias = "b"> label "conv"
                   : tensor<{x}xi16> -> tensor<{y}xi16>
              func.return %1 : tensor<{y}xi16>
            }} }}"""
        module = Parser(ctx, text).parse_module()
        module.verify()
        return module


def layer_of(module: ModuleOp) -> LayerOp:
    return next(op for op in module.walk() if isinstance(op, LayerOp))


def lowered(case: Case) -> tuple[CompilerContext, ModuleOp]:
    ctx = context()
    module = case.module(ctx)
    CnnToNestPass().apply(ctx, module)
    module.verify()
    return ctx, module


def standard(ctx: CompilerContext, module: ModuleOp) -> str:
    """The text of `module` in standard dialects; `module` stays."""
    other = module.clone()
    NestToScfPass().apply(ctx, other)
    other.verify()
    return str(other)


@st.composite
def cases(draw: st.DrawFn, groups: bool = False, small: bool = False) -> Case:
    """small: for evaluators that take one multiplication after the other."""
    channels = [1, 2, 3, 5] if small else [1, 3, 5, 16, 17]
    kind = draw(st.sampled_from(["mac", "mac", "max", "add"]))
    kernel = draw(st.sampled_from([(1, 1), (2, 2), (3, 3), (5, 5), (1, 5), (3, 1)]))
    stride = draw(st.sampled_from([(1, 1), (2, 2), (3, 3), (1, 2), (3, 2)]))
    half = (kernel[0] // 2, kernel[1] // 2)
    pad = draw(st.sampled_from([(0, 0, 0, 0), (*half, *half), (half[0], 0, 0, half[1]), (0, half[1], 1, 0)]))
    dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2)]))
    group = draw(st.sampled_from([1, 1, 2, 3])) if groups and kind == "mac" else 1
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    image = tuple(draw(st.integers(max(1, span - 1), 9 if small else 13)) + (1 if span > 1 else 0) for span in spans)
    zero = draw(st.sampled_from([0, -128]))
    fill = -(1 << 15) if kind == "max" else zero
    window = Window(kernel, stride, pad, dilation, group, fill, 0 if kind == "max" else zero)
    k = draw(st.sampled_from(channels)) * group
    c = draw(st.sampled_from(channels)) if kind == "mac" else 1
    n = draw(st.integers(1, 2 if small else 3))
    return Case(kind, n, k, c, image, window, draw(st.integers(0, 99)))


@st.composite
def arches(draw: st.DrawFn) -> Arch:
    arch = load_arch("spatial-8x8")
    pe = replace(
        arch.pe,
        weight_words=draw(st.sampled_from([7, 32, 112])),
        ifmap_words=draw(st.sampled_from([5, 12, 48])),
        psum_words=draw(st.sampled_from([1, 5, 16])),
        weight_halves=draw(st.integers(1, 2)),
    )
    glb = replace(arch.glb, words=draw(st.sampled_from([64, 65536])))
    return replace(arch, rows=draw(st.integers(2, 8)), cols=draw(st.integers(2, 8)), pe=pe, glb=glb)


@st.composite
def any_mappings(draw: st.DrawFn, case: Case) -> Mapping:
    """Any tiling, order, unrolling and stages that the rules allow, useful or not."""
    _, module = lowered(case)
    sizes = layer_of(module).sizes.data
    loops: list[Loop] = []
    for dim, size in vars(sizes).items():
        steps = sorted(draw(st.sets(st.integers(2, max(2, size - 1)), max_size=2)) if size > 2 else (), reverse=True)
        loops += [Loop(dim, step) for step in steps] + ([Loop(dim)] if size > 1 else [])
    order = draw(st.permutations([loop.dim for loop in loops]))
    left = {dim: iter([loop for loop in loops if loop.dim == dim]) for dim in set(order)}
    loops = [next(left[dim]) for dim in order]
    box = draw(st.integers(0, len(loops)))
    around = [replace(loop, on=draw(st.sampled_from(["", "", "rows", "cols"]))) for loop in loops[:box]]
    first_on = next((depth for depth, loop in enumerate(around) if loop.on), box)
    glb = draw(st.integers(0, first_on))
    first_term = next((depth for depth, loop in enumerate(loops) if loop.dim in "crs"), len(loops))
    inner = draw(st.integers(glb, box)) if case.kind == "mac" else box
    stages = [Stage("ifmap", "glb", glb), Stage("ifmap", "rf", inner)]
    if case.kind == "mac":
        stages += [Stage("weight", "glb", draw(st.integers(0, first_on))), Stage("weight", "rf", box)]
    stages += [Stage("output", "glb", draw(st.integers(0, min(first_on, first_term))))]
    if case.kind != "max":
        stages += [Stage("params", "glb", draw(st.integers(0, min(first_on, first_term))))]
    chosen = [stage for stage in stages if draw(st.booleans()) or (stage.memory == "rf" and stage.depth == box)]
    kept = max((stage.depth for stage in chosen if stage.memory == "rf"), default=len(loops))
    loops = [replace(loop, keep=depth >= kept) for depth, loop in enumerate((*around, *loops[box:]))]
    return Mapping(tuple(loops), tuple(sorted(chosen, key=lambda stage: stage.depth)))
