"""Scales per position, and the average pools that need them: every level and the binary against plain loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
import pytest
from cli_cases import build, done, noise, save
from cnn_ir import imported
from examples import examples
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from nest_cases import Case, layer_of
from onnx import helper
from test_conv_groups import ARRAYS, array_file
from test_quant_lowering import hosts, lowered
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.parser import Parser

from cnncc.arch.model import load_arch
from cnncc.context import CompilerContext
from cnncc.dialects import array as A
from cnncc.dialects._records import format_record
from cnncc.dialects.cnn import PoolOp, Steps
from cnncc.dialects.nest import MappingAttr
from cnncc.dialects.onnx import NodeOp
from cnncc.driver.pipeline import DONE, Compilation, Settings, Step, new_context
from cnncc.driver.verify import compare_integers
from cnncc.errors import Refusal
from cnncc.eval import array, cnn, isa, nest
from cnncc.main_function import main_function
from cnncc.mapping.mapping import Loop, Mapping, Stage
from cnncc.model.glb_tokens import PRIMED
from cnncc.passes._onnx.layers import read_layer
from cnncc.passes._onnx.windows import StaysOnHost
from cnncc.passes._scheduling.glb_words import GlbTooSmall
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

node = helper.make_node
QUANT = "cnn.quant = #cnn.quant<scale = 1.0>"


@dataclass(frozen=True)
class Pool(Case):
    """A sum pool ("add") or convolution ("mac") with scales per position; perhaps with a slope or shuffle."""

    slope: float = 1.0
    shuffle: int = 1

    def random(self, what: int, most: int, shape: tuple[int, ...]) -> np.ndarray:
        return super().random(what, min(most, 30) if self.kind == "mac" else most, shape)

    @property
    def dims(self) -> tuple[int, int, int, int]:
        return (self.n, self.k, *self.window.output(*self.image))

    @cached_property
    def scale(self) -> np.ndarray:
        """f32[h, w], all different, so that no two positions can be mixed up."""
        rng = np.random.default_rng([self.seed, 4])
        return rng.uniform(0.1, 40 / prod(self.window.kernel) + 1, self.dims[2:]).astype(np.float32)

    def results(self) -> np.ndarray:
        """As docs/machine.md has it (COMMIT-2), from the sums of the window's formula."""
        sums = self.sums() - self.bias[None, :, None, None]
        products = sums.astype(np.float32) * self.scale
        if self.slope != 1:
            products = np.where(products < 0, products * np.float32(self.slope), products)
        words = np.clip(np.rint(products).astype(np.int64) + 3, -9000, 9000)
        each = self.k // self.shuffle
        order = [k % each * self.shuffle + k // each for k in range(self.k)]
        shuffled = np.empty_like(words)
        shuffled[:, order] = words
        return shuffled

    def network(self, ctx: CompilerContext) -> ModuleOp:
        """`main` with this one layer."""
        x, y = ("x".join(map(str, dims)) for dims in (self.x.shape, self.dims))
        steps = Steps(scale="q", per_position=True, zero=3, clamp=(-9000, 9000), slope=self.slope, shuffle=self.shuffle)
        op, weights = ('cnn.pool "sum"', "") if self.kind == "add" else ("cnn.conv", "weights @w")
        text = f"""builtin.module attributes {{{DONE} = "cnn-legalize"}} {{
            weights.global @q : tensor<{"x".join(map(str, self.dims[2:]))}xf32>
                = #weights.ref<"{ctx.weights.add(self.scale)}">
            weights.global @w : tensor<{"x".join(map(str, self.weights.shape))}xi16>
                = #weights.ref<"{ctx.weights.add(self.weights)}">
            func.func @main(%x : tensor<{x}xi16> {{onnx.name = "x", {QUANT}}})
                -> (tensor<{y}xi16> {{onnx.name = "y", {QUANT}}}) {{
              %1 = {op} %x {weights} window <{format_record(self.window)}> then <{format_record(steps)}>
                   label "pool" : tensor<{x}xi16> -> tensor<{y}xi16>
              func.return %1 : tensor<{y}xi16>
            }} }}"""
        module = Parser(ctx, text).parse_module()
        module.verify()
        return module


def pool(k: int, image: tuple[int, int], kernel: tuple[int, int], n: int = 1, **options) -> Pool:
    window = {name: options.pop(name) for name in ("stride", "pad", "dilation", "fill", "zero") if name in options}
    return Pool("add", n, k, 1, image, Window(kernel, **window), **options)


def conv(group: int, per_group: tuple[int, int], image: tuple[int, int], kernel: tuple[int, int], **window) -> Pool:
    (k, c), n = per_group, window.pop("n", 1)
    return Pool("mac", n, group * k, c, image, Window(kernel, group=group, **window))


def check_levels(case: Pool, arch: Path, mapping: Mapping | None = None) -> Compilation:
    """Compile the case from `cnn` to a binary, perhaps by a mapping of one's own; every level gives the results."""
    ctx, loaded = new_context(), load_arch(str(arch))
    compilation = Compilation(ctx, case.network(ctx), Settings(loaded, str(arch), 16))
    want = case.results()
    (got,), _ = cnn.evaluate(compilation.module, ctx.weights, [case.x])
    assert compare_integers({"cnn": want}, {"cnn": got}) == ""

    def check(step: Step, module: ModuleOp) -> None:
        match step.name:
            case "nest-assign-mapping":
                if mapping is not None:
                    layer = layer_of(module)
                    layer.mapping, layer.prefetched = MappingAttr(mapping), None
                return
            case "nest-stage":
                (got,), _ = nest.evaluate(module, ctx.weights, [case.x])
            case "array-allocate":
                (got,), _ = array.evaluate(module, ctx.weights, loaded, [case.x])
                check_tokens(module)
            case "array-to-isa":
                (got,), _ = isa.evaluate(module, ctx.weights, loaded, [case.x])
            case _:
                return
        assert compare_integers({step.name: want}, {step.name: got}) == ""

    compilation.run("isa", [check])
    return compilation


def check_tokens(module: ModuleOp) -> None:
    """What is given is taken: at the end each semaphore has what it had at the start.

    Rules: TOKEN-4 does not notice otherwise.
    """
    left: Counter[int] = Counter()

    def walk(block: Block, counts: dict[str, int]) -> None:
        for op in block.ops:
            record = getattr(getattr(op, "record", None), "data", None)
            if isinstance(op, A.RepeatOp):
                walk(op.body.block, {**counts, record.loop: record.count})
            elif isinstance(op, A.LayerOp):
                walk(op.body.block, {})
            elif isinstance(op, A.SignalOp):
                left[record.semaphore] += record.count
            elif hasattr(record, "tokens"):
                tokens = record.tokens
                for semaphore, when, sign in ((tokens.give, tokens.give_when, 1), (tokens.take, tokens.take_when, -1)):
                    left[semaphore] += sign * prod(count for loop, count in counts.items() if loop not in when)

    walk(module.body.block, {})
    del left[0]
    assert {semaphore: count for semaphore, count in left.items() if count} == {
        semaphore: count for semaphore, count in PRIMED.items() if semaphore in left
    }


SMALL = {
    "3x3": pool(5, (7, 5), (3, 3), pad=(1, 1, 1, 1)),
    "images": pool(3, (5, 11), (3, 3), n=3, pad=(1, 1, 1, 1)),
    "7x7": pool(4, (11, 8), (7, 7), pad=(3, 3, 3, 3)),
    "stride, zero point": pool(7, (13, 11), (3, 5), stride=(2, 3), pad=(2, 0, 1, 3), n=2, fill=-5, zero=-5),
    "dilated": pool(5, (11, 12), (3, 3), dilation=(2, 3), pad=(3, 0, 1, 2)),
    "slope": pool(5, (5, 6), (2, 3), pad=(0, 1, 1, 1), slope=0.25),
    "shuffle": pool(6, (7, 5), (3, 3), pad=(1, 1, 1, 1), n=2, shuffle=3),
    "conv": conv(1, (5, 3), (7, 5), (3, 3), n=2, pad=(1, 1, 1, 1)),
    "groups, stride": conv(2, (3, 2), (9, 8), (3, 2), stride=(2, 1), pad=(1, 0, 0, 1)),
    "depthwise": conv(5, (1, 1), (7, 6), (3, 3), pad=(1, 1, 1, 1)),
}


@pytest.mark.parametrize("words", [65536, 700, 200])
@pytest.mark.parametrize("arch", ["4x4", "3x5 small"])
@pytest.mark.parametrize("name", SMALL)
def test_pool_positions_every_level_is_brute_force(name: str, arch: str, words: int, tmp_path: Path) -> None:
    try:
        check_levels(SMALL[name], array_file(tmp_path, arch, glb_words=words))
    except GlbTooSmall as refusal:
        assert refusal.words > words
        check_levels(SMALL[name], array_file(tmp_path, arch, glb_words=refusal.words))


@st.composite
def small_pools(draw: st.DrawFn) -> Pool:
    kernel = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    stride, dilation = (draw(st.tuples(st.integers(1, 3), st.integers(1, 3))) for _ in range(2))
    pad = draw(st.tuples(*[st.integers(0, 3)] * 4))
    zero, k = draw(st.sampled_from([0, 0, -5])), draw(st.sampled_from([5, 1, 2, 6, 12]))
    window = Window(kernel, stride, pad, dilation, 1, zero, zero)
    image = tuple(draw(st.integers(max(1, span - pad[axis]), span + 9)) for axis, span in enumerate(window.spans))
    plain = Pool("add", draw(st.integers(1, 2)), k, 1, image, window, draw(st.integers(0, 99)))
    match draw(st.sampled_from(["", "slope", "shuffle"])):
        case "slope":
            return replace(plain, slope=-0.5)
        case "shuffle" if k % 2 == 0:
            return replace(plain, shuffle=2)
        case _:
            return plain


@settings(max_examples=examples(20), phases=set(Phase) - {Phase.shrink})
@given(case=small_pools(), arch=st.sampled_from(sorted(ARRAYS)), words=st.integers(20, 1500))
def test_pool_positions_any_window(tmp_path_factory: pytest.TempPathFactory, case: Pool, arch: str, words: int) -> None:
    try:
        check_levels(case, array_file(tmp_path_factory.getbasetemp(), arch, glb_words=words))
    except GlbTooSmall as refusal:
        assert refusal.words > words
        assume(False)


# -- mappings by hand --------------------------------------------------------------------------------------------------


def by_hand(case: Pool, around: list[Loop], stages: list[Stage], folder: Path) -> None:
    """Loops in time around single outputs, stages in the GLB among them."""
    singles = [Loop(dim) for dim in "nkhw" if case.dims["nkhw".index(dim)] > 1]
    loops = [*around, *singles, Loop("k", keep=True), Loop("s", keep=True), Loop("r", keep=True)]
    loops = [loop for loop in loops if loop.dim != "k" or loop.keep or loop.step > 1]
    depth = sum(not loop.keep for loop in loops)
    check_levels(case, array_file(folder, "4x4"), Mapping(tuple(loops), (*stages, Stage("ifmap", "rf", depth, 2))))


def glb(**depths: int) -> list[Stage]:
    return [Stage(operand, "glb", depth) for operand, depth in depths.items()]


HAND = pool(2, (7, 6), (3, 3), pad=(1, 1, 1, 1))
ROWS, BLOCKS = [Loop("h", 3)], [Loop("h", 3), Loop("w", 4)]


@pytest.mark.parametrize(
    ("around", "stages"),
    [
        (ROWS, glb(params=1)),
        (ROWS, [Stage("params", "glb", 1, 2)]),
        (ROWS, glb(params=1, ifmap=1)),
        (ROWS, glb(params=1, output=1)),
        (ROWS, glb(params=0, ifmap=1, output=1)),
        (BLOCKS, glb(params=2, ifmap=2, output=2)),
        (BLOCKS, glb(params=0, ifmap=2)),
        ([Loop("h", 4), Loop("h", 2)], glb(params=2, ifmap=2, output=2)),
    ],
)
def test_pool_positions_by_hand(around: list[Loop], stages: list[Stage], tmp_path: Path) -> None:
    by_hand(HAND, around, stages, tmp_path)


@pytest.mark.parametrize(
    ("around", "stages", "message"),
    [
        (ROWS, [], "params per position must be staged in glb"),
        (ROWS, glb(params=1, ifmap=2), "params per position come in slices only where ifmap and output do"),
        (BLOCKS, glb(params=2, ifmap=2), "params per position are staged in glb where the output is, if columns are"),
        ([Loop("h", 3), Loop("h", 2)], glb(params=2, ifmap=2, output=2), "steps of the loops over h .* must divide"),
    ],
)
def test_pool_positions_that_no_commit_can_follow(
    around: list[Loop], stages: list[Stage], message: str, tmp_path: Path
) -> None:
    with pytest.raises(Refusal, match=f"layer pool: {message}"):
        by_hand(HAND, around, stages, tmp_path)


# -- average pools -----------------------------------------------------------------------------------------------------


def means(x: np.ndarray, dims: tuple[int, int], attributes: dict) -> np.ndarray:
    """ONNX AveragePool, position by position. dims: rows and columns of the result."""
    (ih, iw), (top, left, bottom, right) = x.shape[2:], attributes["pads"]
    y = np.zeros((*x.shape[:2], *dims))
    steps = zip(attributes["strides"], attributes["dilations"], (top, left), strict=True)
    (sh, dh, _), (sw, dw, _) = steps
    for h, w in np.ndindex(*dims):
        count = 0
        for r, s in np.ndindex(*attributes["kernel_shape"]):
            iy, ix = h * sh + r * dh - top, w * sw + s * dw - left
            if 0 <= iy < ih and 0 <= ix < iw:
                y[:, :, h, w] += x[:, :, iy, ix]
                count += 1
            elif iy < ih + bottom and ix < iw + right:
                count += attributes["count_include_pad"]
        y[:, :, h, w] /= count
    return y


@st.composite
def average_pools(draw: st.DrawFn) -> tuple[tuple[int, int], dict]:
    """An image and attributes that onnxruntime takes: pads smaller than kernels, a window that fits."""
    kernel = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    strides, dilations = (draw(st.tuples(st.integers(1, 4), st.integers(1, 2))) for _ in range(2))
    pads = [draw(st.integers(0, min(3, size - 1))) for size in kernel * 2]
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    image = tuple(draw(st.integers(span, span + 9)) for span in spans)
    flags = {name: draw(st.integers(0, 1)) for name in ("ceil_mode", "count_include_pad")}
    return image, {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads, **flags}


def quant_of(attrs) -> float:
    (attr,) = attrs
    return float(attr.data["cnn.quant"].data.scale)


@pytest.mark.parametrize(
    ("attributes", "per_position"),
    [
        ({"pads": [1, 1, 1, 1]}, True),
        ({"pads": [1, 1, 1, 1], "count_include_pad": 1}, False),
        ({"pads": [0, 0, 0, 0]}, False),
        ({"strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1}, True),
        ({"strides": [7, 7], "pads": [1, 1, 1, 1]}, False),  # the only window
    ],
)
def test_pool_positions_only_where_divisors_differ(attributes: dict, per_position: bool) -> None:
    nodes = [node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], **attributes)]
    module, _, _ = lowered(nodes, {"x": (1, 3, 8, 6)}, ["y"], {})
    (op,) = [op for op in module.walk() if isinstance(op, PoolOp)]
    assert op.steps and op.steps.data.per_position == per_position


@settings(max_examples=examples(25))
@given(drawn=average_pools(), bits=st.sampled_from([16, 8]))
def test_pool_positions_means_are_onnxs(drawn: tuple[tuple[int, int], dict], bits: int) -> None:
    """Within half a step of the result and half a step of the inputs: no divisor can be another."""
    image, attributes = drawn
    nodes = [node("AveragePool", ["x"], ["y"], **attributes)]
    module, want, got = lowered(nodes, {"x": (2, 3, *image)}, ["y"], {}, opset=19, bits=bits)
    assert not hosts(module)
    func = main_function(module)
    steps = quant_of(func.arg_attrs or ()), quant_of(func.res_attrs or ())
    assert np.abs(want["y"] - got["y"]).max() <= sum(steps) / 2 * 1.001
    x = np.random.default_rng(21).standard_normal((len(want["y"]), 3, *image)).astype(np.float32)
    assert np.allclose(want["y"], means(x, want["y"].shape[2:], attributes), atol=1e-5)


def test_pool_positions_need_input() -> None:
    """The only window's rows are -1 and 1 of an image of one row: neither is one of it."""
    attributes = {"kernel_shape": [2, 1], "dilations": [2, 1], "pads": [1, 0, 1, 0]}
    module, _ = imported([node("AveragePool", ["x"], ["y"], **attributes)], {"x": (1, 2, 1, 3)}, ["y"], {}, 19)
    (pool_node,) = [op for op in module.walk() if isinstance(op, NodeOp)]
    with pytest.raises(StaysOnHost, match=r"pads = \[1, 0, 1, 0\] leave windows without input"):
        read_layer(pool_node, CompilerContext().weights)


def network() -> bytes:
    """A LeakyRelu and a shuffle after pools, an Add of pools, a Concat, ceil_mode, two images a batch."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="c", pads=[1, 1, 1, 1]),
        node("AveragePool", ["c"], ["p"], name="p", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("LeakyRelu", ["p"], ["l"], name="l", alpha=0.125),
        node("AveragePool", ["c"], ["q"], name="q", kernel_shape=[7, 5], pads=[3, 2, 3, 2]),
        node("Add", ["q", "l"], ["a"], name="a"),
        node("Concat", ["a", "p"], ["cat"], name="cat", axis=1),
        node("AveragePool", ["cat"], ["s"], name="s", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
        node("Conv", ["s", "v"], ["y"], name="y"),
    ]
    return build(nodes, {"x": (2, 3, 12, 11)}, ["y"], {"w": noise(1, 6, 3, 3, 3), "v": noise(2, 5, 12, 1, 1)})


@pytest.mark.parametrize(("words", "precision"), [(65536, "int8"), (700, "int16")])
def test_pool_positions_of_a_network(words: int, precision: str, tmp_path: Path) -> None:
    save(network(), tmp_path / "net.onnx")
    np.savez(tmp_path / "x.npz", x=noise(5, 4, 3, 12, 11))
    arch = array_file(tmp_path, "4x4", glb_words=words)
    options = ("--arch", arch, "--input", tmp_path / "x.npz", "--precision", precision)
    result = done("verify", tmp_path / "net.onnx", *options)
    assert "DIFFERS" not in result.stdout
    assert "steps agree" in result.stdout
    compiled = done("compile", tmp_path / "net.onnx", "--arch", arch, "--precision", precision, "-o", tmp_path / "n")
    assert "host" not in compiled.stdout
