"""Blocks of every operand in one or two buffers: values at every level, no races, and what overlaps.

Values are compared with plain loops (nest_cases.py), times and addresses come from two plain machines (glb_races.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pytest
from cli_cases import build, done, noise, save
from glb_races import both_races, dram_of
from nest_cases import Case, layer_of
from onnx import helper
from test_conv_groups import array_file
from test_pool_positions import check_levels as check_pool
from test_pool_positions import check_tokens, pool
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.parser import Parser

from cnncc.arch.model import load_arch
from cnncc.context import CompilerContext
from cnncc.dialects import array as A
from cnncc.dialects._records import format_record
from cnncc.dialects.isa import LayerOp as IsaLayerOp
from cnncc.dialects.isa import instructions
from cnncc.dialects.nest import LayerOp, MappingAttr, mapping_of
from cnncc.driver.pipeline import DONE, Compilation, Settings, Step, new_context
from cnncc.driver.sources import CompileOptions, start_compilation
from cnncc.driver.verify import compare_integers
from cnncc.errors import Refusal
from cnncc.eval import array, isa, nest
from cnncc.isa.codec import decode_program, encode_program
from cnncc.isa.table import Instruction, instruction
from cnncc.machine.program import build_tree
from cnncc.machine.times.times import simulate
from cnncc.mapping.mapping import Sizes
from cnncc.mapping.text import parse
from cnncc.model.layer_schedule import LayerPlan, layer_schedule
from cnncc.model.layer_shape import LayerShape
from cnncc.model.timed_program import ARRAY, Node, Task, TimedLoop
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

QUANT = "cnn.quant = #cnn.quant<scale = 1.0>"


@dataclass(frozen=True)
class Sum(Case):
    """A convolution, or an elementwise layer, whose results are added to a second image."""

    def random(self, what: int, most: int, shape: tuple[int, ...]) -> np.ndarray:
        return super().random(what, min(most, 9), shape)

    @property
    def dims(self) -> tuple[int, int, int, int]:
        return (self.n, self.k, *self.window.output(*self.image))

    @cached_property
    def residual(self) -> np.ndarray:
        return self.random(3, 99, self.dims)

    def results(self) -> np.ndarray:
        return (self.x if self.kind == "copy" else self.sums()) + self.residual

    def network(self, ctx: CompilerContext) -> ModuleOp:
        """`main` with this one layer, its factors being 1."""
        x, y, w = ("x".join(map(str, dims)) for dims in (self.x.shape, self.dims, self.weights.shape))
        ones = ctx.weights.add(np.array([1, 1, 0], np.float32))
        op = "cnn.add %x residual %r" if self.kind == "copy" else "cnn.conv %x residual %r"
        more = "" if self.kind == "copy" else f"weights @w window <{format_record(self.window)}>"
        bias = "" if self.kind == "copy" else 'bias = "b", '
        text = f"""builtin.module attributes {{{DONE} = "cnn-legalize"}} {{
            weights.global @w : tensor<{w}xi16> = #weights.ref<"{ctx.weights.add(self.weights)}">
            weights.global @b : tensor<{self.k}xi32> = #weights.ref<"{ctx.weights.add(self.bias)}">
            weights.global @f : tensor<3xf32> = #weights.ref<"{ones}">
            func.func @main(%x : tensor<{x}xi16> {{onnx.name = "x", {QUANT}}},
                            %r : tensor<{y}xi16> {{onnx.name = "r", {QUANT}}})
                -> (tensor<{y}xi16> {{onnx.name = "y", {QUANT}}}) {{
              %1 = {op} : tensor<{y}xi16> {more} then <{bias}factors = "f", add_clamp = [-32768, 32767]> label "sum"
                   : tensor<{x}xi16> -> tensor<{y}xi16>
              func.return %1 : tensor<{y}xi16>
            }} }}"""
        module = Parser(ctx, text).parse_module()
        module.verify()
        return module


def mapped(mapping: str, step: Step, module: ModuleOp) -> None:
    """Map the layer when that is due."""
    if step.name == "nest-assign-mapping":
        layer = layer_of(module)
        layer.mapping, layer.prefetched = MappingAttr(parse(mapping, layer.sizes.data)), None


def compiled(case: Sum, mapping: str, arch_file: Path | str, run: bool = True) -> tuple[Compilation, list[Instruction]]:
    """The program of a layer by a mapping. run: every level gives its results."""
    ctx, arch = new_context(), load_arch(str(arch_file))
    compilation = Compilation(ctx, case.network(ctx), Settings(arch, str(arch_file), 16))
    want, inputs = case.results(), [case.x, case.residual]

    def check(step: Step, module: ModuleOp) -> None:
        mapped(mapping, step, module)
        if not run:
            return
        match step.name:
            case "nest-stage":
                (got,), _ = nest.evaluate(module, ctx.weights, inputs)
            case "array-allocate":
                (got,), _ = array.evaluate(module, ctx.weights, arch, inputs)
                check_tokens(module)
            case "array-to-isa":
                (got,), _ = isa.evaluate(module, ctx.weights, arch, inputs)
            case _:
                return
        assert compare_integers({step.name: want}, {step.name: got}) == ""

    compilation.run("isa", [check])
    return compilation, list(decode_program(encode_program(instructions(compilation.module))))


def raced(case: Sum, compilation: Compilation, program: Sequence[Instruction]) -> list[str]:
    dram = dram_of(compilation.module, compilation.ctx, {"x": case.x, "r": case.residual})
    return both_races(program, compilation.settings.arch, dram)


CONV = Sum("mac", 1, 6, 4, (7, 6), Window((3, 3), (1, 1), (1, 1, 1, 1)))
ONCE = "weight@glb > params@glb"
TILE = "w':3 > [h''||2@rows w''||3@cols]"
REST = "c > weight@rf*2 > ifmap@rf*2 > {s > r}"
LOOPS = f"{TILE} > k > {REST}"
MAPPINGS = {
    "all in two": f"{ONCE} > h':2 > residual@glb*2 > ifmap@glb*2 > output@glb*2 > {LOOPS}",
    "all in one": f"{ONCE} > h':2 > residual@glb > ifmap@glb > output@glb > {LOOPS}",
    "residual in one": f"{ONCE} > h':2 > residual@glb > ifmap@glb*2 > output@glb*2 > {LOOPS}",
    "output in one": f"{ONCE} > h':2 > residual@glb > ifmap@glb*2 > output@glb > {LOOPS}",
    "ifmap in one": f"{ONCE} > h':2 > residual@glb*2 > ifmap@glb > output@glb*2 > {LOOPS}",
    "output stays": f"{ONCE} > h':2 > residual@glb*2 > ifmap@glb*2 > {LOOPS}",
    "output stays, residual in one": f"{ONCE} > h':2 > residual@glb > ifmap@glb*2 > {LOOPS}",
    "residual alone": f"{ONCE} > h':2 > residual@glb*2 > {LOOPS}",
    "output alone": f"{ONCE} > h':2 > output@glb*2 > {LOOPS}",
    "output alone in one": f"{ONCE} > h':2 > output@glb > {LOOPS}",
    "ifmap alone": f"{ONCE} > h':2 > ifmap@glb*2 > {LOOPS}",
    "ifmap alone in one": f"{ONCE} > h':2 > ifmap@glb > {LOOPS}",
    "columns": f"{ONCE} > h':3 > w':4 > residual@glb*2 > ifmap@glb*2 > output@glb*2 > "
    f"[h''||3@rows w''||4@cols] > k > {REST}",
    "ifmap outside": f"{ONCE} > h':2 > ifmap@glb*2 > k':4 > residual@glb*2 > output@glb*2 > {TILE} > k'' > {REST}",
    "weights inside": f"params@glb > h':4 > residual@glb*2 > ifmap@glb*2 > output@glb*2 > k':4 > weight@glb*2 > "
    f"h'':2 > w':3 > [h'''||2@rows w''||3@cols] > k'' > {REST}",
    "weights in slices": f"k':2 > weight@glb*2 > params@glb*2 > h':2 > {TILE} > k'' > {REST}",
    "weights in slices of one": f"k':2 > weight@glb > params@glb > h':2 > {TILE} > k'' > {REST}",
    "weights while sums stay": f"params@glb > h':2 > residual@glb*2 > ifmap@glb*2 > output@glb*2 > {TILE} > "
    f"k':3 > c':2 > weight@glb*2 > c'' > weight@rf*2 > ifmap@rf*2 > {{s > r > k''}}",
    "weights and partial sums": f"params@glb > c':3 > weight@glb*2 > h':2 > {TILE} > k > c'' > weight@rf*2 > "
    "ifmap@rf*2 > {s > r}",
    "partial sums of two outputs": f"params@glb > h':2 > residual@glb*2 > ifmap@glb*2 > output@glb*2 > c':3 > "
    f"weight@glb*2 > {TILE} > k > c'' > weight@rf*2 > ifmap@rf*2 > {{s > r}}",
    "ifmap in slices": f"params@glb > h':4 > residual@glb*2 > output@glb*2 > c':2 > ifmap@glb*2 > weight@glb*2 > "
    f"{TILE} > k > c'' > weight@rf*2 > ifmap@rf*2 > {{s > r}}",
    "ifmap in slices of columns": "params@glb > w':3 > residual@glb > output@glb > c':2 > ifmap@glb*2 > k':2 > "
    "weight@glb*2 > h':2 > [h''||2@rows w''||3@cols] > k'' > c'' > weight@rf*2 > ifmap@rf*2 > {s > r}",
    "ifmap in slices while sums stay": "params@glb > h':2 > w':3 > k':3 > residual@glb*2 > output@glb*2 > c':2 > "
    "ifmap@glb*2 > weight@glb*2 > [h''||2@rows w''||3@cols] > c'' > weight@rf*2 > ifmap@rf*2 > {s > r > k''}",
    "ifmap for taps in turn": f"{ONCE} > s > c':2 > ifmap@glb > h':2 > {TILE} > k > c'' > weight@rf*2 > ifmap@rf*2 > "
    "{r}",
    "ifmap for taps in turn, in two": f"{ONCE} > c':2 > r > h':4 > ifmap@glb*2 > h'':2 > w':3 > [h'''||2@rows "
    "w''||3@cols] > k > c'' > weight@rf*2 > ifmap@rf*2 > {s}",
    "ifmap in slices, output stays": f"params@glb > c':2 > ifmap@glb*2 > k':4 > weight@glb*2 > "
    f"h':2 > {TILE} > k'' > c'' > weight@rf*2 > ifmap@rf*2 > {{s > r}}",
}
BATCH = (
    "all in two", "residual in one", "columns", "ifmap outside", "weights inside", "partial sums of two outputs",
    "ifmap in slices",
)  # fmt: skip


@pytest.mark.parametrize("name", MAPPINGS)
def test_every_level_is_brute_force_and_free_of_races(name: str, tmp_path: Path) -> None:
    arch = array_file(tmp_path, "4x4")
    assert raced(CONV, *compiled(CONV, MAPPINGS[name], arch)) == []


@pytest.mark.parametrize("name", BATCH)
def test_images_follow_each_other(name: str, tmp_path: Path) -> None:
    """The last block of an image is followed by the first one of the next."""
    once, _, rest = MAPPINGS[name].partition("h'")
    case = replace(CONV, n=3 if name == "all in two" else 2)
    assert raced(case, *compiled(case, f"{once}n > h'{rest}", array_file(tmp_path, "4x4"))) == []


OF_GROUPS = Sum("mac", 1, 6, 3, (5, 6), Window((3, 3), (2, 1), (1, 1, 1, 1), group=2))
GROUPS = f"{ONCE} > c':2 > ifmap@glb*2 > k':3 > n > h > w > k'' > c'' > weight@rf*2 > ifmap@rf*2 > {{s > r}}"


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("images", [1, 2])
def test_blocks_of_the_same_channels_of_two_groups(images: int, outputs: int, tmp_path: Path) -> None:
    """Channels 0 to 4 of 6, then 2 to 5, for channels 0, 1 and then 2 of both groups: none beyond the last."""
    case, mapping = replace(OF_GROUPS, n=images, k=2 * outputs), GROUPS if images > 1 else GROUPS.replace("n > ", "")
    mapping = mapping if outputs > 1 else mapping.replace("k':3 > ", "").replace("k''", "k")
    assert raced(case, *compiled(case, mapping, array_file(tmp_path, "4x4"))) == []


@pytest.mark.parametrize(("w", "bodies"), [(5, 108), (2, 243)])
def test_a_loop_over_slices_is_opened_where_bodies_are_few(w: int, bodies: int, tmp_path: Path) -> None:
    """Three blocks of channels have 3 slices of weights each, in 3 blocks of rows and 4 slices of the image, each of
    which is a piece where the first is apart: 108 bodies. With 3 blocks of columns that were 324, so that it is not and
    the first two are one piece: 243.
    """
    case = Sum("mac", 1, 23, 7, (5, 5), Window((1, 1)))
    mapping = (
        f"params@glb > k':8 > h':2 > w':{w} > residual@glb*2 > output@glb*2 > c':2 > ifmap@glb*2 > k'':3 > "
        "weight@glb*2 > h'' > w'' > k''' > weight@rf*2 > ifmap@rf*2 > {c''}"
    ).replace("w':5 > ", "")
    mapping = mapping if w < 5 else mapping.replace("w''", "w")
    compilation, program = compiled(case, mapping, array_file(tmp_path, "4x4"))
    assert raced(case, compilation, program) == []
    assert sum(inst.spec.name == "mac" for inst in program) == bodies
    shape = LayerShape("mac", Sizes(1, 23, 7, 5, 5, 1, 1), case.window, 1, 5, 5)
    plan = LayerPlan("", shape, parse(mapping, shape.sizes), residual=True)
    assert macros(layer_schedule(plan, compilation.settings.arch).nodes) == bodies


def macros(nodes: Sequence[Node]) -> int:
    """Macro-instructions in the model's program."""
    inner = [macros(node.body) if isinstance(node, TimedLoop) else 0 for node in nodes]
    return sum(inner) + sum(isinstance(node, Task) and node.engine == ARRAY for node in nodes)


ALL = "residual@glb*2 > ifmap@glb*2 > output@glb*2"
COPIES = {
    "channels": f"k':2 > {ALL} > k'' > h > w",
    "rows": f"k > h':2 > {ALL} > h'' > w",
    "parts of rows": f"k > h > w':1 > {ALL}",
    "output in one": "k':2 > residual@glb > ifmap@glb > output@glb*2 > k'' > h > w",
    "output stays": "k':2 > residual@glb*2 > ifmap@glb*2 > k'' > h > w",
    "ifmap stays": "k > h':4 > residual@glb*2 > output@glb*2 > h'' > w",
    "residual stays": "k > h':4 > ifmap@glb*2 > output@glb*2 > h'' > w",
    "output alone": "k > h':4 > output@glb*2 > h'' > w",
}


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("name", COPIES)
def test_elementwise_layers(name: str, images: int, tmp_path: Path) -> None:
    case = Sum("copy", images, 6, 1, (8, 5), Window((1, 1), group=6))
    mapping = COPIES[name] if images == 1 else f"n > {COPIES[name]}"
    assert raced(case, *compiled(case, mapping, array_file(tmp_path, "4x4"))) == []


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        ("residual@glb*3 > ifmap@glb*3 > output@glb*3", "have one buffer or two"),
        ("residual@glb > ifmap@glb*2 > output@glb*2", "have one buffer or two, those of its inputs as many"),
        ("residual@glb*2 > ifmap@glb*2 > output@glb", "have two buffers only where its output has"),
    ],
)
def test_what_buffers_of_elementwise_layers_cannot_be(blocks: str, why: str, tmp_path: Path) -> None:
    case = Sum("copy", 1, 6, 1, (8, 5), Window((1, 1), group=6))
    with pytest.raises(Refusal, match=why):
        compiled(case, f"k':2 > {blocks} > k'' > h > w", array_file(tmp_path, "4x4"))


POOLS = {
    "all": "params@glb*2 > ifmap@glb*2 > output@glb*2",
    "output in one": "params@glb*2 > ifmap@glb*2 > output@glb",
    "ifmap": "params@glb*2 > ifmap@glb*2",
    "output": "params@glb*2 > output@glb*2",
    "output and ifmap, params once": "ifmap@glb*2 > output@glb*2",
}


@pytest.mark.parametrize("name", POOLS)
def test_params_of_positions_come_with_their_blocks(name: str, tmp_path: Path) -> None:
    case = pool(5, (7, 6), (3, 3), pad=(1, 1, 1, 1), n=2)
    once = "" if "params" in POOLS[name] else "params@glb > "
    mapping = f"{once}n > h':2 > {POOLS[name]} > {TILE} > k > ifmap@rf*2 > {{s > r}}"
    sizes = Sizes(n=2, k=5, c=1, h=7, w=6, r=3, s=3)
    compilation = check_pool(case, array_file(tmp_path, "4x4"), parse(mapping, sizes))
    dram = dram_of(compilation.module, compilation.ctx, {"x": case.x})
    program = decode_program(encode_program(instructions(compilation.module)))
    assert both_races(program, compilation.settings.arch, dram) == []


# With a DRAM that is as slow as it may be, a layer that is quick.
QUICK = Sum("mac", 1, 6, 1, (7, 6), Window((1, 1)))
STREAM = f"{TILE} > weight@rf*2 > ifmap@rf*2 > {{k}}"
ONE_MORE = {
    "ifmap": (CONV, MAPPINGS["ifmap alone"], 10, 64),
    "ifmap in one": (CONV, MAPPINGS["ifmap alone in one"], 5, 64),
    "residual": (CONV, MAPPINGS["output stays"], 11, 64),
    "output": (QUICK, f"{ONCE} > h':2 > output@glb*2 > {STREAM}", 12, 1),
    "output in one": (QUICK, f"{ONCE} > h':2 > output@glb > {STREAM}", 8, 1),
    "weights": (CONV, MAPPINGS["weights in slices"], 1, 64),
    "weights in one": (CONV, MAPPINGS["weights in slices of one"], 9, 64),
    "weights while sums stay": (CONV, MAPPINGS["weights while sums stay"], 1, 64),
    "ifmap in slices": (CONV, MAPPINGS["ifmap in slices"], 10, 64),
}


@pytest.mark.parametrize("name", ONE_MORE)
def test_a_token_too_many_is_a_race(name: str, tmp_path: Path) -> None:
    """Values stay what they are (PROG-5): nothing but the times shows it."""
    case, mapping, semaphore, words = ONE_MORE[name]
    path = array_file(tmp_path, "4x4")
    path.write_text(path.read_text().replace("dram = { words_per_cycle = 4", f"dram = {{ words_per_cycle = {words}"))
    # What CONV gives by these mappings is tested above. The DRAM's rate changes no value.
    compilation, program = compiled(case, mapping, path, run=case is not CONV)
    assert raced(case, compilation, program) == []
    spoilt = [
        instruction("signal", semaphore=semaphore, count=inst.number("count") + 1)
        if inst.spec.name == "signal" and inst.number("semaphore") == semaphore
        else inst
        for inst in program
    ]
    assert spoilt != program
    assert raced(case, compilation, spoilt)


@pytest.mark.parametrize(
    ("mapping", "why"),
    [
        (MAPPINGS["all in two"].replace("output@glb*2", "output@glb"), "residual is staged in glb in two buffers only"),
        (MAPPINGS["all in two"].replace("output@glb*2", "output@glb*3"), "in one buffer or two, not in 3"),
        (MAPPINGS["output stays"].replace("ifmap@glb*2", "ifmap@glb"), r"only where ifmap is, too: ifmap@glb\*2"),
        (
            f"{ONCE} > k':2 > ifmap@glb*2 > output@glb*2 > h':2 > {TILE} > k'' > {REST}",
            "alone: then no two buffers inside",
        ),
        (f"{ONCE} > h':4 > w':2 > h'':3 > ifmap@glb*2 > [h'''||3@rows w''||2@cols] > k > {REST}", "an even number"),
        (MAPPINGS["ifmap in slices"].replace("ifmap@glb*2", "ifmap@glb"), "inside the blocks of the output"),
    ],
)
def test_what_two_buffers_cannot_be(mapping: str, why: str, tmp_path: Path) -> None:
    arch = array_file(tmp_path, "4x4")
    with pytest.raises(Refusal, match=why):
        compiled(CONV, mapping, arch)


def test_two_buffers_hide_the_transfers(tmp_path: Path) -> None:
    """The DMA works while the array does: what is left of waiting is the first block, and the last one's way back."""
    case, arch = replace(CONV, k=16, c=8, image=(28, 16)), load_arch("spatial-8x8")
    idle: list[int] = []
    for buffers in (1, 2):
        ctx = new_context()
        compilation = Compilation(ctx, case.network(ctx), Settings(arch, "spatial-8x8", 16))
        blocks = f"residual@glb*{buffers} > ifmap@glb*{buffers} > output@glb*{buffers}"
        tile = "k':8 > [h''||4@rows k'':4||2@rows w':2||8@cols]"
        mapping = f"{ONCE} > h':4 > {blocks} > {tile} > c':2 > weight@rf*2 > ifmap@rf*2 > {{w'' > s > c'' > r > k'''}}"
        compilation.run("isa", [partial(mapped, mapping)])
        program = build_tree(decode_program(encode_program(instructions(compilation.module))))
        cycles = simulate(program, arch).cycles
        idle.append(cycles.total - cycles.compute)
    assert 3 * idle[1] < idle[0], idle


def branches() -> bytes:
    """What `a` gives goes to DRAM; the next layer reads and writes the GLB."""
    nodes = [
        helper.make_node("Conv", ["x", "wa"], ["a"], name="a", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "wb"], ["b"], name="b"),
        helper.make_node("Conv", ["a", "wc"], ["c"], name="c", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c", "wd"], ["d"], name="d"),
    ]
    shapes = {"wa": (12, 2, 3, 3), "wb": (8, 2, 1, 1), "wc": (4, 12, 3, 3), "wd": (3, 4, 1, 1)}
    weights = {name: noise(i, *dims) for i, (name, dims) in enumerate(shapes.items())}
    return build(nodes, {"x": (1, 2, 8, 8)}, ["b", "d"], weights)


@pytest.mark.usefixtures("resident_ends")
def test_layers_that_follow_each_other(tmp_path: Path) -> None:
    """Weights are prefetched, results go to DRAM while the next layer starts: all without races (GLB-5, GLB-6)."""
    path = array_file(tmp_path, "4x4", glb_words=900)
    path.write_text(path.read_text().replace("dram = { words_per_cycle = 4", "dram = { words_per_cycle = 1"))
    compilation = start_compilation(save(branches(), tmp_path / "net.onnx"), CompileOptions(str(path)))
    compilation.run("nest")
    staged = {layer.label.data: {s.operand for s in mapping_of(layer).stages if s.memory == "glb"}
              for layer in compilation.module.walk() if isinstance(layer, LayerOp) and layer.label}  # fmt: skip
    assert "output" in staged["a"] and not staged["b"] & {"ifmap", "residual"} and "ifmap" in staged["c"]
    compilation.run("array")
    ends = {op.label.data: op.body.block.last_op for op in compilation.module.ops if isinstance(op, A.LayerOp)}
    waits = {label for label, op in ends.items() if isinstance(op, A.SyncOp) and A.Engine.DMA in op.record.data.engines}
    assert waits & set("abcd") == {"a"}
    transfers = [op.record.data.dram for op in compilation.module.walk() if isinstance(op, A.DmaOp)]
    assert any(name.startswith("next.") for name in transfers)
    compilation.run()
    program = decode_program(encode_program(instructions(compilation.module)))
    dram = dram_of(compilation.module, compilation.ctx, {"x": np.ones((1, 2, 8, 8), np.int64)})
    assert both_races(program, compilation.settings.arch, dram) == []


def slices_before_slices(outside: str, channels: int, folder: Path) -> Compilation:
    """Weights of `a` come in slices inside blocks of its results, those of `b` in slices, too."""
    nodes = [
        helper.make_node("Conv", ["x", "wa"], ["a"], name="a"),
        helper.make_node("Conv", ["a", "wb"], ["b"], name="b"),
    ]
    weights = {"wa": noise(0, 16, 8, 1, 1), "wb": noise(1, 8, 16, 1, 1)}
    model = save(build(nodes, {"x": (2, 8, 6, 6)}, ["b"], weights), folder / "net.onnx")
    schedule, inside = folder / "map.toml", "[k':4||4@cols h''||2@rows] > k'' > c'' > {w}"
    schedule.write_text(f"""
        "a".mapping = "{outside} > output@glb*2 > c':{channels} > weight@glb*2 > {inside}"
        "b".mapping = "n > h':2 > ifmap@glb*2 > k':4 > weight@glb*2 > [k''||4@cols h''||2@rows] > c > {{w}}"
    """)
    return start_compilation(model, CompileOptions(str(array_file(folder, "4x4", glb_words=9000)), schedule=schedule))


@pytest.mark.parametrize(("outside", "channels"), [("n > h':2", 4), ("n > h':2", 3), ("h':2 > n", 4), ("n > h':4", 2)])
def test_slices_that_come_ahead_behind_two_slices(outside: str, channels: int, tmp_path: Path) -> None:
    """Both slices of the last block come before the results of the one before: then no buffer is free for `b`'s."""
    compilation = slices_before_slices(outside, channels, tmp_path)
    compilation.run("array")
    (a,) = (op for op in compilation.module.ops if isinstance(op, A.LayerOp) and op.label.data == "a")
    names = [op.record.data.dram for op in a.walk() if isinstance(op, A.DmaOp)]
    assert names.count("next.weight.dram") == 1
    compilation.run()
    module = compilation.module
    image = {"x": np.random.default_rng(0).integers(-99, 99, (2, 8, 6, 6))}
    program = decode_program(encode_program(instructions(module)))
    assert both_races(program, compilation.settings.arch, dram_of(module, compilation.ctx, image)) == []
    assert "steps agree" in done("verify", tmp_path / "net.onnx", "--arch", tmp_path / "mine.toml", "--schedule",
                                 tmp_path / "map.toml").stdout  # fmt: skip


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("all in two", "there is no layer before it"),
        ("weights in slices of one", "none of its weights and parameters can be"),
    ],
)
def test_a_mark_that_cannot_be_is_refused(name: str, why: str, tmp_path: Path) -> None:
    path = array_file(tmp_path, "4x4")
    ctx, arch = new_context(), load_arch(str(path))
    compilation = Compilation(ctx, CONV.network(ctx), Settings(arch, str(path), 16))

    def mark(step: Step, module: ModuleOp) -> None:
        mapped(MAPPINGS[name], step, module)
        if step.name == "nest-assign-mapping":
            layer_of(module).prefetched = UnitAttr()

    with pytest.raises(Refusal, match=f"layer sum is to be prefetched, but {why}"):
        compilation.run("isa", [mark])


def test_marks_for_which_there_is_no_room_are_refused(tmp_path: Path) -> None:
    """What is chosen fits; what is marked by hand may not."""
    path = array_file(tmp_path, "4x4", glb_words=500)
    compilation = start_compilation(save(branches(), tmp_path / "net.onnx"), CompileOptions(str(path)))
    compilation.run("nest")
    layers = [op for op in compilation.module.walk() if isinstance(op, LayerOp)]
    assert not all(layer.prefetched for layer in layers)
    for layer in layers:
        layer.prefetched = UnitAttr()
    with pytest.raises(Refusal, match="with the prefetched operands: ") as refused:
        compilation.run()
    limits = {(finding.resource, finding.limit) for finding in refused.value.findings}
    assert limits == {("glb.words", 500)}


def test_copies_of_many_values_are_several_layers() -> None:
    """Six copies and what is prefetched beside them, weights and parameters, take the 16 descriptors of a layer."""
    ctx, numbers = new_context(), range(7)
    weight, bias = (
        ctx.weights.add(np.array(value, dtype)) for value, dtype in (([[[[3]]]], np.int16), ([5], np.int32))
    )
    image = "tensor<1x1x2x2xi16>"
    inputs = ", ".join(f'%x{i} : {image} {{onnx.name = "x{i}", {QUANT}}}' for i in numbers)
    outputs = ", ".join(f'{image} {{onnx.name = "y{i}", {QUANT}}}' for i in numbers)
    layers = "\n".join(
        f"""%y{i} = cnn.conv %x{i} weights @w window <kernel = [1, 1]> then <bias = "b"> label "c{i}"
                : {image} -> {image}"""
        for i in numbers
    )
    text = f"""builtin.module attributes {{{DONE} = "cnn-legalize"}} {{
        weights.global @w : tensor<1x1x1x1xi16> = #weights.ref<"{weight}">
        weights.global @b : tensor<1xi32> = #weights.ref<"{bias}">
        func.func @main({inputs}) -> ({outputs}) {{
          {layers}
          func.return {", ".join(f"%y{i}" for i in numbers)} : {", ".join(image for _ in numbers)}
        }} }}"""
    arch = load_arch("spatial-4x4")
    compilation = Compilation(ctx, Parser(ctx, text).parse_module(), Settings(arch, "spatial-4x4", 16))
    compilation.run("isa")
    images = [np.full((1, 1, 2, 2), i) for i in numbers]
    got, _ = isa.evaluate(compilation.module, ctx.weights, arch, images)
    assert [int(each.max()) for each in got] == [3 * i + 5 for i in numbers]
    labels = [op.record.data.label for op in compilation.module.walk() if isinstance(op, IsaLayerOp)]
    assert [label for label in labels if "puts" in label] == ["inputs", "more inputs", "outputs", "more outputs"]


@pytest.mark.usefixtures("resident_ends")
@pytest.mark.usefixtures("longer_searches")
def test_a_schedule_file_says_what_moves(tmp_path: Path) -> None:
    """`c` reads in two buffers what would lie in the GLB else: the layer that computes it brings it to DRAM."""
    arch, schedule, binary = array_file(tmp_path, "4x4", glb_words=9000), tmp_path / "map.toml", tmp_path / "net.cnb"
    schedule.write_text("""["c"]
        mapping = "h':2 > ifmap@glb*2 > w':4 > [h''||2@rows w''||4@cols] > k > c > {s > r}" """)
    model = save(branches(), tmp_path / "net.onnx")
    options = ("--arch", arch, "--schedule", schedule)
    assert "steps agree" in done("verify", model, *options).stdout
    done("compile", model, *options, "-o", binary, "--dump-dir", tmp_path / "ir")
    mapped = next((tmp_path / "ir").glob("*-nest-assign-mapping.mlir")).read_text()
    assert re.search(r'mapping "[^"]*output@glb[^"]*"\s+label "a"', mapped)
    assert re.search(r'mapping "[^"]*ifmap@glb\*2[^"]*"\s+label "c"', mapped)
    assert "@glb" not in re.sub("(weight|params)@glb", "", re.findall(r'mapping "([^"]*)"\s+label "b"', mapped)[0])
    schedule.write_text("""["a"]
        mapping = "h':2 > ifmap@glb*2 > w':4 > [h''||2@rows w''||4@cols] > k > c > {s > r}" """)
    assert "steps agree" in done("verify", model, *options).stdout
