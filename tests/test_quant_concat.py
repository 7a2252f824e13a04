"""Concatenations and channel shuffles from ONNX to loop nests: one scale for a group, and integers that only move."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_cases import done
from cnn_ir import imported, parse
from onnx import helper
from test_quant_lowering import W, X, decibels, hosts, lowered, normal
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import SSAValue
from xdsl.parser import Parser

from cnncc.arch.model import PRESETS, load_arch
from cnncc.context import CompilerContext
from cnncc.dialects.array import DmaOp
from cnncc.dialects.cnn import AddOp, ConcatOp, ConvOp, PoolOp, ReshapeOp, shuffled
from cnncc.dialects.nest import NEST
from cnncc.draws import Draws
from cnncc.driver.calibrate import calibrate
from cnncc.driver.pipeline import DONE, Compilation, Settings, new_context
from cnncc.errors import Refusal
from cnncc.eval import array, cnn_residues, isa, nest
from cnncc.eval.cnn import evaluate
from cnncc.frontend.import_onnx import import_onnx
from cnncc.numerics import integer_range
from cnncc.passes._onnx.calibration import take_ranges
from cnncc.passes._onnx.layers import ConcatLayer
from cnncc.passes._onnx.placement import place_nodes
from cnncc.passes._scheduling.glb_words import GlbTooSmall
from cnncc.passes.cnn_fuse_epilogue import CnnFuseEpiloguePass
from cnncc.passes.cnn_legalize import CnnLegalizePass
from cnncc.passes.cnn_to_nest import CnnToNestPass
from cnncc.passes.nest_assign_mapping import NestAssignMappingPass
from cnncc.passes.nest_permute import NestPermutePass
from cnncc.passes.nest_stage import NestStagePass
from cnncc.passes.nest_tile import NestTilePass
from cnncc.passes.nest_unroll import NestUnrollPass
from cnncc.universe import PASSES

pytestmark = pytest.mark.usefixtures("short_searches")

node = helper.make_node
V = {"w": W["w"], "v": normal(4, 3, 1, 1), "u": normal(6, 9, 3, 3)}


def same(result: str, weights: str = "w"):
    """A Conv of x with as many rows and columns as x."""
    return node("Conv", ["x", weights], [result], name=result, auto_pad="SAME_UPPER")


def concat(names: list[str], result: str = "y", axis: int = 1):
    return node("Concat", names, [result], name=result, axis=axis)


def shuffle(source: str, result: str, groups: int, channels: int) -> tuple:
    """The three nodes that exporters write, and their shapes."""
    nodes = [
        node("Reshape", [source, f"{result}.5"], [f"{result}.a"], name=f"{result}.a"),
        node("Transpose", [f"{result}.a"], [f"{result}.b"], name=f"{result}.b", perm=[0, 2, 1, 3, 4]),
        node("Reshape", [f"{result}.b", f"{result}.4"], [result], name=result),
    ]
    shapes = {
        f"{result}.5": np.array([2, groups, channels // groups, 9, 7]),
        f"{result}.4": np.array([2, channels, 9, 7]),
    }
    return nodes, shapes


SHUFFLED, SHAPES = shuffle("c", "s", 3, 6)
AGAIN, MORE_SHAPES = shuffle("s", "y", 2, 6)
S = {"w6": normal(6, 3, 3, 3), **SHAPES, **MORE_SHAPES}
HALVES, HALVES_SHAPES = shuffle("c", "y", 2, 8)
THIRDS, THIRDS_SHAPES = shuffle("c", "s", 3, 9)

CASES = {
    "branches": ([same("a"), same("b", "v"), concat(["a", "b"])], V),
    "branches that end differently": (
        [
            same("a"), node("Relu", ["a"], ["r"]), node("MaxPool", ["x"], ["m"], kernel_shape=[3, 3], pads=[1] * 4),
            node("AveragePool", ["x"], ["g"], kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
            same("b", "v"), node("LeakyRelu", ["b"], ["l"], alpha=0.1), concat(["r", "m", "l", "g"], axis=-3),
        ],
        V,
    ),
    "an input and what is computed": ([same("a"), concat(["x", "a"], "c"), node("Relu", ["c"], ["y"])], V),
    "one value twice": ([same("a"), concat(["a", "a", "a"])], V),
    "a value in two": ([same("a"), same("b", "v"), concat(["a", "b"], "c"), concat(["b", "a"], "d"),
                        node("Add", ["c", "d"], ["y"])], V),
    "concatenations of concatenations": (
        [
            same("a"), concat(["x", "a"], "c"), same("b", "v"), concat(["c", "b"], "d"),
            node("BatchNormalization", ["c", "s8", "s8", "s8", "p8"], ["n"]), node("Relu", ["n"], ["r"]),
            concat(["d", "r"]),
        ],
        {**V, "s8": normal(8), "p8": normal(8) ** 2 + np.float32(0.5)},
    ),
    "two dims, and an image made flat": (
        [
            node("GlobalAveragePool", ["x"], ["p"]), node("Flatten", ["p"], ["q"]), node("Flatten", ["x"], ["f"]),
            node("Gemm", ["f", "g"], ["m"]), concat(["m", "f", "q"], "c"), node("Relu", ["c"], ["y"]),
        ],
        {"g": normal(189, 5)},
    ),
    "max pool, reshape and conv of it": (
        [
            same("a"), same("b", "v"), concat(["a", "b"], "c"), node("Conv", ["c", "u"], ["d"]),
            node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2]), node("Flatten", ["m"], ["f"]),
            node("Flatten", ["d"], ["e"]), concat(["e", "f"]),
        ],
        V,
    ),
    "a part that is read as one image": (
        [
            same("a"), concat(["a", "x"], "c"), node("Reshape", ["a", "one"], ["r"]),
            node("Reshape", ["c", "one"], ["d"]), node("MaxPool", ["r"], ["m"], kernel_shape=[1, 1]),
            concat(["m", "d"]),
        ],
        {**V, "one": np.array([1, -1, 9, 7])},
    ),
    "shuffle of a conv": ([node("Conv", ["x", "w6"], ["c"], auto_pad="SAME_UPPER"), *SHUFFLED, *AGAIN], S),
    "shuffle of a grouped conv's relu, beside another reader": (
        [
            node("Conv", ["x", "w2"], ["d"], group=3, auto_pad="SAME_UPPER"), node("Relu", ["d"], ["c"]), *SHUFFLED,
            node("Add", ["s", "c"], ["y"]),
        ],
        {**S, "w2": normal(6, 1, 3, 3)},
    ),
    "shuffle of two halves": ([same("a", "v"), same("b", "w4"), concat(["a", "b"], "c"), *HALVES],
                              {**V, "w4": normal(4, 3, 3, 3), **HALVES_SHAPES}),
    "shuffle of a conv, a sum and a pool per position, as a part": (
        [
            same("a", "w3"), node("Add", ["a", "x"], ["t"]), node("Conv", ["x", "w3"], ["b"], auto_pad="SAME_UPPER"),
            node("AveragePool", ["x"], ["g"], kernel_shape=[3, 3], pads=[1] * 4), concat(["b", "t", "g"], "c"), *THIRDS,
            same("d"), concat(["d", "s"]),
        ],
        {**V, "w3": normal(3, 3, 3, 3), **THIRDS_SHAPES},
    ),
    "shuffle of a value that others read, an input and a slice": (
        [
            same("a", "w3"), node("Relu", ["a"], ["r"]), same("l", "w4"),
            node("Slice", ["l", "one", "four", "axis"], ["q"]), concat(["r", "x", "q"], "c"), *THIRDS,
            concat(["r", "s"]),
        ],
        {"w3": normal(3, 3, 3, 3), "w4": normal(4, 3, 3, 3), **THIRDS_SHAPES,
         "one": np.array([1]), "four": np.array([4]), "axis": np.array([1])},
    ),
    "shuffle of slices that follow each other": (
        [
            same("l", "w8"), node("Slice", ["l", "zero", "four", "axis"], ["p"]),
            node("Slice", ["l", "four", "eight", "axis"], ["q"]), concat(["p", "q"], "c"), *HALVES,
        ],
        {"w8": normal(8, 3, 1, 1), **HALVES_SHAPES, **{name: np.array([number]) for name, number in
                                                       (("zero", 0), ("four", 4), ("eight", 8), ("axis", 1))}},
    ),
    "shuffles of an input, a sum and a pool": (
        [
            concat(["x", "x"], "i"), node("MaxPool", ["i"], ["c"], kernel_shape=[3, 3], pads=[1] * 4), *SHUFFLED,
            node("Add", ["s", "i"], ["t"]), *[node(n.op_type, ["t" if v == "s" else v for v in n.input], n.output,
                                                   **({"perm": [0, 2, 1, 3, 4]} if n.op_type == "Transpose" else {}))
                                              for n in AGAIN],
        ],
        S,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_quant_concat_is_near_the_float_result(name: str) -> None:
    nodes, arrays = CASES[name]
    for bits, least in ((16, 60), (8, 17)):
        module, want, got = lowered(nodes, X, ["y"], arrays, bits=bits)
        assert not hosts(module)
        assert decibels(want["y"], got["y"]) > least


def integers(module: ModuleOp, seed: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    lo, hi = integer_range(10)
    return [rng.integers(lo, hi + 1, value.type.get_shape()) for value in main_block(module).args]


def main_block(module: ModuleOp):
    return next(op for op in module.ops if op.name == "func.func").body.block


def to_nest(ctx: CompilerContext, module: ModuleOp) -> None:
    ctx.load_dialect(NEST)
    passes = (
        CnnToNestPass(),
        NestAssignMappingPass("spatial-8x8"),
        NestTilePass(),
        NestPermutePass(),
        NestUnrollPass(),
        NestStagePass(),
    )
    for one in passes:
        one.apply(ctx, module)
        module.verify()


@pytest.mark.parametrize("name", CASES)
def test_quant_concat_is_addressable_and_nests_agree(name: str) -> None:
    nodes, arrays = CASES[name]
    module, ctx = lowered_again(nodes, arrays)
    assert_addressable(module)
    x = integers(module)
    want, trace = evaluate(module, ctx.weights, x)
    to_nest(ctx, module)
    got, keyed = nest.evaluate(module, ctx.weights, x)
    assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))
    assert set(keyed) == set(trace)
    assert all(np.array_equal(keyed[key], trace[key]) for key in trace)


def lowered_again(nodes, arrays) -> tuple[ModuleOp, CompilerContext]:
    from cnncc.passes.onnx_to_cnn import OnnxToCnnPass

    module, ctx = imported(nodes, X, ["y"], arrays)
    calibrate(module, ctx.weights, None, 16, 32)
    for one in (OnnxToCnnPass(), CnnFuseEpiloguePass(), CnnLegalizePass()):
        one.apply(ctx, module)
    module.verify()
    return module, ctx


def assert_addressable(module: ModuleOp) -> None:
    """Every operand of a concatenation is, but for its shape, a value of its own that no other has a part of.

    Nothing reads it as other images: what follows an image in memory are the other parts.
    """
    places = [value for op in module.walk() if isinstance(op, ConcatOp) for value in op.inputs]
    sources = []
    for value in places:
        n, c, h, w = (*value.type.get_shape(), 1, 1)[:4]
        while isinstance(value.owner, ReshapeOp):
            value = value.owner.x
        assert (*value.type.get_shape(), 1, 1)[:4] == (n, c, h, w)
        sources.append(value)
        assert {reshape.result.type.get_shape()[0] for reshape in reshapes(value)} <= {n}
    assert len(set(sources)) == len(sources)


def reshapes(value: SSAValue) -> Iterator[ReshapeOp]:
    """Those of a value, and those of these."""
    for use in value.uses:
        if isinstance(use.operation, ReshapeOp):
            yield use.operation
            yield from reshapes(use.operation.result)


def test_quant_concat_copies_only_what_has_two_places() -> None:
    copies = {}
    for name in CASES:
        module, _ = lowered_again(*CASES[name])
        pools = [op for op in module.walk() if isinstance(op, PoolOp)]
        copies[name] = sum("copy" in (op.label.data if op.label else "") for op in pools)
    assert copies["branches"] == 0
    assert (copies["one value twice"], copies["a value in two"]) == (2, 2)
    # An input is a tensor of its own; and the image made flat has other rows.
    assert (copies["concatenations of concatenations"], copies["two dims, and an image made flat"]) == (1, 1)
    assert copies["a part that is read as one image"] == 3  # and the input, and all parts as one image


def test_quant_concat_gives_its_operands_one_range() -> None:
    """The network's input is the largest, the Relu's result what counts of the first branch."""
    nodes = [
        same("a"),
        node("Relu", ["a"], ["r"]),
        concat(["x", "r"], "c"),
        node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2]),
    ]
    module, ctx = imported(nodes, X, ["y"], {"w": W["w"] / np.float32(50)})
    data = np.random.default_rng(1).standard_normal((8, 3, 9, 7)).astype(np.float32)
    calibrate(module, ctx.weights, {"x": data}, 16, 32)
    found = set(take_ranges(module).values())
    assert [(known.lo, known.hi) for known in found] == [(float(data.min()), float(data.max()))]


def test_quant_concat_beside_host_nodes() -> None:
    """What the host computes, and what it reads, is part of the group too; between host nodes it is the host's."""
    nodes = [
        same("a"), node("Sin", ["x"], ["g"], name="g"), concat(["a", "g"], "c"),
        node("Softmax", ["c"], ["y"], name="soft", axis=1),
        node("Cos", ["x"], ["t"], name="t"), concat(["t", "g"], "d"), node("Exp", ["d"], ["z"], name="z"),
    ]  # fmt: skip
    module, want, got = lowered(nodes, X, ["y", "z"], W)
    first, _ = hosts(module)
    assert "Concat node 'd': it stands between host nodes" in first.reason.data
    assert len([op for op in module.walk() if isinstance(op, ConcatOp)]) == 1
    assert decibels(want["y"], got["y"]) > 70


@pytest.mark.parametrize(
    ("concatenation", "reason"),
    [
        (concat(["x", "x"], axis=2), "axis = 2: the array concatenates channels"),
        (concat(["x", "k"]), "input 1 is constant"),
    ],
)
def test_quant_concat_that_stays_on_the_host(concatenation, reason: str) -> None:
    module, _, _ = lowered([concatenation], X, ["y"], {"k": normal(2, 3, 9, 7)})
    (host,) = hosts(module)
    assert reason in host.reason.data


def test_quant_concat_evaluates_to_its_formula() -> None:
    module, ctx = parse("""
    func.func @main(%x: tensor<1x6x2x3xi16>, %y: tensor<1x1x2x3xi16>) -> (tensor<1x13x2x3xi16>, tensor<1x6x2x3xi16>) {
      %s = cnn.shuffle %x groups 3 label "s" : tensor<1x6x2x3xi16> -> tensor<1x6x2x3xi16>
      %c = cnn.concat %s, %y, %x label "c"
           : (tensor<1x6x2x3xi16>, tensor<1x1x2x3xi16>, tensor<1x6x2x3xi16>) -> tensor<1x13x2x3xi16>
      func.return %c, %s : tensor<1x13x2x3xi16>, tensor<1x6x2x3xi16>
    }""")
    rng = np.random.default_rng(3)
    x, y = rng.integers(-99, 99, (4, 6, 2, 3)), rng.integers(-99, 99, (4, 1, 2, 3))
    (whole, moved), trace = evaluate(module, ctx.weights, [x, y])
    # Groups {0 1} {2 3} {4 5}: the first of each, then the second of each.
    assert np.array_equal(moved, x[:, [0, 2, 4, 1, 3, 5]])
    assert np.array_equal(whole, np.concatenate([moved, y, x], axis=1))
    assert np.array_equal(trace["c"], whole) and np.array_equal(trace["s"], moved)


def test_quant_concat_puts_pixels_in_turn() -> None:
    part = "tensor<1x2x3x5xi16>"
    arguments = ", ".join(f"%{name}: {part} {{cnn.quant = #cnn.quant<scale = 1.0>}}" for name in "abcdef")
    module, ctx = parse(f"""
    func.func @main({arguments}) -> tensor<1x2x6x15xi16> {{
      %p = cnn.concat %a, %b, %c, %d, %e, %f pixels 2 by 3 label "p"
           : ({", ".join([part] * 6)}) -> tensor<1x2x6x15xi16>
      func.return %p : tensor<1x2x6x15xi16>
    }}""")

    def in_turn(parts: np.ndarray) -> np.ndarray:
        result = np.zeros((*parts[0].shape[:2], 6, 15), np.int64)
        for row, col, (n, k, h, w) in product(range(2), range(3), np.ndindex(*parts[0].shape)):
            result[n, k, 2 * h + row, 3 * w + col] = parts[3 * row + col][n, k, h, w]
        return result

    parts = np.random.default_rng(3).integers(-99, 99, (6, 4, 2, 3, 5))  # four batches
    for level in (evaluate, nest.evaluate):
        (got,), trace = level(module, ctx.weights, [*parts])
        assert np.array_equal(got, in_turn(parts)) and np.array_equal(trace["p"], got)
    proven = cnn_residues.evaluate(module, ctx.weights, 16, Draws(0, 2))
    drawn = np.stack([known.residues for known in proven.inputs], axis=1)  # draw, part, n k h w
    assert np.array_equal(proven.outputs[0].residues, [in_turn(each) for each in drawn])


@pytest.mark.parametrize(("channels", "groups"), [(6, 2), (6, 3), (12, 4), (5, 5), (7, 1)])
def test_quant_concat_shuffled_is_the_transpose(channels: int, groups: int) -> None:
    result = np.arange(channels).reshape(groups, -1).T.ravel()
    assert [int(np.flatnonzero(result == k)[0]) for k in range(channels)] == [
        shuffled(k, channels, groups) for k in range(channels)
    ]


def test_quant_concat_shuffle_is_fused_last() -> None:
    module, _ = lowered_again(*CASES["shuffle of a conv"])
    ops = [op for op in module.walk() if isinstance(op, ConvOp | PoolOp | AddOp)]
    assert [(type(op), op.steps.data.shuffle) for op in ops] == [(ConvOp, 3), (PoolOp, 2)]
    module, _ = lowered_again(*CASES["shuffles of an input, a sum and a pool"])
    ops = [op for op in module.walk() if isinstance(op, ConvOp | PoolOp | AddOp)]
    assert [op.steps.data.shuffle if op.steps else 1 for op in ops] == [1, 1, 3, 1, 2]


@pytest.mark.parametrize(
    ("name", "words", "dataflow"),
    [
        *((name, words, "auto") for name in CASES for words in (65536, 900)),
        *((name, 65536, "nlr") for name in ("branches", "shuffle of two halves")),
    ],
)
def test_quant_concat_runs_from_the_binary(name: str, words: int, dataflow: str, tmp_path: Path) -> None:
    """Parts of tensors and shuffled channels, in the GLB and in blocks from DRAM: the integers of the cnn level.

    By `nlr`, partial sums lie as far apart as the images of the whole. Their channels follow each other.
    """
    inputs = [np.random.default_rng(3).integers(-100, 100, (4, 3, 9, 7))]
    text = (PRESETS / "spatial-8x8.toml").read_text()
    path = tmp_path / "mine.toml"
    while words:
        path.write_text(text.replace("words = 65536", f"words = {words}"))
        module, ctx = lowered_again(*CASES[name])
        want, values = evaluate(module, ctx.weights, inputs)
        module.attributes[DONE] = StringAttr("cnn-legalize")
        arch = load_arch(str(path))
        compilation = Compilation(ctx, module, Settings(arch, str(path), 16, dataflow=dataflow, groups="none"))
        try:
            compilation.run("array")
            break
        except GlbTooSmall as refusal:  # inputs that are concatenated stay in the GLB
            assert refusal.words > words
            words = refusal.words
    results = [array.evaluate(module, ctx.weights, arch, inputs)]
    compilation.run("isa")
    results.append(isa.evaluate(module, ctx.weights, arch, inputs))
    for outputs, trace in results:
        assert all(np.array_equal(got, each) for got, each in zip(outputs, want, strict=True))
        assert trace
        assert all(np.array_equal(trace[key].ravel(), values[key].ravel()) for key in trace)


def test_quant_concat_parts_move_image_by_image() -> None:
    """An input and an output of the network, both of two images, are parts of a concatenation in the GLB.

    Only IR that is written by hand has this, as cnn-legalize copies such parts. A part's images lie next to each other
    in DRAM. In the GLB images of the other part lie between them.
    """
    quant, part, whole = "cnn.quant = #cnn.quant<scale = 1.0>", "tensor<2x3x4x5xi16>", "tensor<2x6x4x5xi16>"
    text = f"""builtin.module attributes {{{DONE} = "cnn-legalize"}} {{
        func.func @main(%x : {part} {{onnx.name = "x", {quant}}})
            -> ({whole} {{onnx.name = "c", {quant}}}, {part} {{onnx.name = "a", {quant}}}) {{
          %a = cnn.pool "max" %x window <kernel = [3, 3], pad = [1, 1, 1, 1]> label "a" : {part} -> {part}
          %c = cnn.concat %x, %a label "c" : ({part}, {part}) -> {whole}
          func.return %c, %a : {whole}, {part}
        }} }}"""
    ctx, arch = new_context(), load_arch("spatial-8x8")
    module = Parser(ctx, text).parse_module()
    images = [np.random.default_rng(3).integers(-100, 100, (4, 3, 4, 5))]
    want, _ = evaluate(module, ctx.weights, images)
    compilation = Compilation(ctx, module, Settings(arch, "spatial-8x8", 16))
    compilation.run("array")
    moves = [op.record.data for op in module.walk() if isinstance(op, DmaOp) and op.record.data.count > 1]
    assert [(move.direction, move.dram_step, move.glb_step) for move in moves] == [("in", 60, 120), ("out", 60, 120)]
    results = [array.evaluate(module, ctx.weights, arch, images)[0]]
    compilation.run("isa")
    results.append(isa.evaluate(module, ctx.weights, arch, images)[0])
    for outputs in results:
        assert all(np.array_equal(got, each) for got, each in zip(outputs, want, strict=True))


def test_a_part_that_edited_ir_reads_as_other_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the copy by `cnn-legalize`: the words of its second image do not follow those of the first."""
    monkeypatch.setattr("cnncc.passes.cnn_legalize._is_free", lambda _: True)
    module, ctx = lowered_again(*CASES["a part that is read as one image"])
    module.attributes[DONE] = StringAttr("cnn-legalize")
    compilation = Compilation(ctx, module, Settings(load_arch("spatial-8x8"), "spatial-8x8", 16, groups="none"))
    with pytest.raises(Refusal, match="is part of .*: its 2 images cannot be read as 1"):
        compilation.run("array")


def test_quant_concat_interleaved_is_proven(tmp_path: Path) -> None:
    """A binary says of a part how far its channels lie apart."""
    nodes, arrays = CASES["shuffle of two halves"]
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, k, 9, 7]) for name, k in (("x", 3), ("y", 8))
    ]
    graph = helper.make_graph(nodes, "halves", values[:1], values[1:], [
        onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if name in str(nodes)
    ])  # fmt: skip
    path = tmp_path / "halves.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    done("verify", path, "--prove")


INTERLEAVED = f"""
    %a = cnn.pool "max" %x window <kernel = [1, 1]> label "a" : {(PART := "tensor<2x2x4x3xi16>")} -> {PART}
    %b = cnn.pool "max" %y window <kernel = [3, 3], pad = [1, 1, 1, 1]> label "b" : {PART} -> {PART}
    %c = cnn.concat %a, %b interleaved label "c" : ({PART}, {PART}) -> {(TWO := "tensor<2x4x4x3xi16>")}
    %d = cnn.pool "max" %c window <kernel = [2, 1]> label "d" : {TWO} -> tensor<2x4x3x3xi16>
"""
OF_OTHER_ROWS = f"""
    %r = cnn.reshape %x label "r" : {PART} -> {(OTHER := "tensor<2x4x2x3xi16>")}
    %p = cnn.pool "max" %r window <kernel = [1, 1]> label "p" : {OTHER} -> {OTHER}
    %a = cnn.reshape %p label "a" : {OTHER} -> {PART}
"""
WITHOUT_A = INTERLEAVED[INTERLEAVED.index("%b") :]
OF_A_SUM = f'%a = cnn.add %x residual %y : {PART} then <factors = "f"> label "a" : {PART} -> {PART} {WITHOUT_A}'
NESTED = f"""{INTERLEAVED}
    %g = cnn.pool "max" %c window <kernel = [1, 1]> label "g" : {TWO} -> {TWO}
    %e = cnn.concat %c, %g interleaved label "e" : ({TWO}, {TWO}) -> tensor<2x8x4x3xi16>
"""
SLICE_OF_A = '%e = cnn.slice %a from {} label "e" : ' + f"{PART} -> tensor<2x1x4x3xi16>"
READ_E = '%f = cnn.pool "max" %e window <kernel = [1, 1]> label "f" : {0} -> {0}'


@pytest.mark.parametrize(
    ("body", "result", "refusal"),
    [
        (INTERLEAVED, "%d : tensor<2x4x3x3xi16>", ""),
        (INTERLEAVED, f"%c : {TWO}", ""),
        (f"{INTERLEAVED} {READ_E.format(PART).replace('%e', '%a')}", f"%f : {PART}", ""),
        (f"{INTERLEAVED} %e = cnn.concat %c, %x label \"e\" : ({TWO}, {PART}) -> tensor<2x6x4x3xi16>",
         "%e : tensor<2x6x4x3xi16>", ""),
        (INTERLEAVED, f"%a : {PART}", "is interleaved with others, so that it is not moved as a whole"),
        (INTERLEAVED.replace("%a, %b", "%x, %b"), f"%c : {TWO}", "is interleaved with others, so that it is not moved"),
        (f"{INTERLEAVED} {SLICE_OF_A.format(1)} {READ_E.format('tensor<2x1x4x3xi16>')}", "%f : tensor<2x1x4x3xi16>",
         "tensor a.glb is interleaved with others in c.glb: no slice or reshape of it is read"),
        (f"{INTERLEAVED} {SLICE_OF_A.format(0)} {READ_E.format('tensor<2x1x4x3xi16>')}", "%f : tensor<2x1x4x3xi16>",
         "tensor a.glb is interleaved with others in c.glb: no slice or reshape of it is read"),
        (f"{INTERLEAVED} %e = cnn.reshape %a label \"e\" : {PART} -> {OTHER} {READ_E.format(OTHER)}", f"%f : {OTHER}",
         "tensor a.glb is interleaved with others in c.glb: no slice or reshape of it is read"),
        (f"{OF_OTHER_ROWS} {WITHOUT_A}", f"%c : {TWO}", "'c' interleaves the channels of a reshape"),
        (NESTED, "%e : tensor<2x8x4x3xi16>", "concatenation c.glb is a part whose channels lie apart"),
        (OF_A_SUM, f"%c : {TWO}", "layer a: channels that are interleaved with others do not stream past the array"),
    ],
)  # fmt: skip
def test_quant_concat_interleaved_by_hand(body: str, result: str, refusal: str) -> None:
    """What layers can do is computed; what `cnn-legalize` copies otherwise is refused."""
    name, kind = result.split(" : ")
    ctx, arch = new_context(), load_arch("spatial-8x8")
    factors = ctx.weights.add(np.array([1.0, 1.0, 0.0], np.float32))
    quant = "cnn.quant = #cnn.quant<scale = 1.0>"
    text = f"""builtin.module attributes {{{DONE} = "cnn-legalize"}} {{
        weights.global @f : tensor<3xf32> = #weights.ref<"{factors}">
        func.func @main(%x : {PART} {{onnx.name = "x", {quant}}}, %y : {PART} {{onnx.name = "y", {quant}}})
            -> ({kind} {{onnx.name = "z", {quant}}}) {{ {body} func.return {name} : {kind} }} }}"""
    module = Parser(ctx, text).parse_module()
    images = [np.random.default_rng(seed).integers(-100, 100, (2, 2, 4, 3)) for seed in (3, 4)]
    want, _ = evaluate(module, ctx.weights, images)
    compilation = Compilation(ctx, module, Settings(arch, "spatial-8x8", 16, groups="none"))
    if refusal:
        with pytest.raises(Refusal) as refused:
            compilation.run("array")
        assert refusal in f"{refused.value} {refused.value.findings}"
        return
    compilation.run("array")
    results = [array.evaluate(module, ctx.weights, arch, images)[0]]
    compilation.run("isa")
    results.append(isa.evaluate(module, ctx.weights, arch, images)[0])
    assert all(np.array_equal(got, want[0]) for (got,) in results)


@pytest.mark.parametrize(
    ("net", "hosted"),
    [
        ("densenet121", set()),
        ("shufflenet", {"Softmax"}),
        ("inception_v2", {"Softmax"}),
        ("inception_v1", {"LRN", "Softmax"}),
    ],
)
def test_quant_concat_real_topologies_are_on_the_array(net: str, hosted: set[str]) -> None:
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{net}.onnx"
    ctx = new_context()
    module = import_onnx(path, ctx, batch=None)
    for name in (
        "onnx-fold-constants", "onnx-remove-identity", "onnx-fold-affine", "onnx-fold-batch-norm", "onnx-split-sum",
        "onnx-dead-code",
    ):  # fmt: skip
        PASSES[name]()().apply(ctx, module)
    placement = place_nodes(module, ctx.weights)
    assert {node.op_type.data for node in placement.reasons} == hosted
    # Each value that a concatenation reads shares its scale.
    for op, layer in placement.layers.items():
        if isinstance(layer, ConcatLayer):
            assert {placement.root(value) for value in op.operands} == {placement.root(op.results[0])}
