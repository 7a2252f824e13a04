"""Nests in standard dialects give the integers of the nest's evaluator and of brute force."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_cases import SCHEDULE, Case, any_mappings, arches, best_mapping, cases, context, layer_of, lowered, standard
from standard_ir import Program
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from cnncc.arch.model import Arch
from cnncc.context import CompilerContext
from cnncc.dialects.nest import MappingAttr, build_nest
from cnncc.errors import Refusal
from cnncc.eval.nest import evaluate
from cnncc.mapping.mapping import Loop, Mapping, Sizes, Stage
from cnncc.passes.nest_to_scf import NestToScfPass
from cnncc.window import Window


def set_mapping(module: ModuleOp, mapping: Mapping) -> None:
    layer = layer_of(module)
    layer.detach_region(layer.body)
    layer.add_region(build_nest(mapping))
    module.verify()


@settings(max_examples=examples(40))
@given(st.data(), cases(groups=True, small=True))
def test_scf_any_mapping_is_brute_force(data: st.DataObject, case: Case) -> None:
    ctx, module = lowered(case)
    set_mapping(module, data.draw(any_mappings(case)))
    (result,) = Program(standard(ctx, module)).run(case.x)
    np.testing.assert_array_equal(result, case.sums())


@settings(max_examples=examples(10))
@given(cases(groups=True, small=True), arches())
def test_scf_of_any_step_is_brute_force(case: Case, arch: Arch) -> None:
    ctx, module = lowered(case)
    layer = layer_of(module)
    layer.mapping = MappingAttr(best_mapping(layer, arch))
    texts = {standard(ctx, module)}
    for each in SCHEDULE:
        each.apply(ctx, module)
        texts.add(standard(ctx, module))
    for text in texts:
        (result,) = Program(text).run(case.x)
        np.testing.assert_array_equal(result, case.sums())


# Steps that divide neither the sizes below nor each other; every operand in a stage, weight and ifmap in two.
TILED = Mapping(
    (
        *(Loop("n"), Loop("k", 5), Loop("h", 4), Loop("w", 3)),
        *(Loop("k", 2, "rows"), Loop("h", 1, "rows"), Loop("w", 1, "cols")),
        *(Loop("c", 2), Loop("r", 2)),
        *(Loop(dim, keep=True) for dim in "scrk"),
    ),
    (
        *(Stage("ifmap", "glb", 0), Stage("weight", "glb", 2), Stage("params", "glb", 2), Stage("output", "glb", 3)),
        *(Stage("weight", "rf", 9), Stage("ifmap", "rf", 9)),
    ),
)


@pytest.mark.parametrize(
    "case",
    [
        Case("mac", 1, 5, 5, (7, 9), Window((3, 2), (1, 2), (1, 1, 1, 0))),
        Case("mac", 2, 7, 3, (11, 8), Window((3, 3), (2, 1), (0, 2, 1, 0), (2, 2), fill=-128, zero=-128)),
        Case("mac", 1, 6, 3, (7, 7), Window((3, 3), (1, 1), (1, 1, 1, 1), group=2, fill=5, zero=5)),
        Case("mac", 1, 10, 3, (7, 8), Window((3, 3), (1, 2), (1, 1, 0, 1), group=5)),
    ],
    ids=["strided", "dilated", "groups", "tiles-across-groups"],
)
def test_scf_tiles_that_do_not_divide(case: Case) -> None:
    ctx, module = lowered(case)
    set_mapping(module, TILED)
    text = standard(ctx, module)
    assert text.count("scf.parallel") == 3 and "arith.minsi" in text
    (result,) = Program(text).run(case.x)
    np.testing.assert_array_equal(result, case.sums())


def test_scf_depthwise_in_space() -> None:
    case = Case("mac", 1, 6, 1, (9, 8), Window((3, 3), (2, 1), (1, 1, 1, 1), group=6))
    ctx, module = lowered(case)
    around = (Loop("k", 4), Loop("h", 2), Loop("k", 1, "cols"), Loop("h", 1, "rows"))
    kept = tuple(Loop(dim, keep=True) for dim in "wrs")
    stages = Stage("ifmap", "glb", 1), Stage("weight", "rf", 4), Stage("ifmap", "rf", 4)
    set_mapping(module, Mapping((*around, *kept), stages))
    text = standard(ctx, module)
    assert (
        "memref<1x4x11x10xi16>" in text and "memref<1x1x3x10xi16>" in text
    )  # of the channels those of four and of one
    np.testing.assert_array_equal(Program(text).run(case.x)[0], case.sums())


@dataclass(frozen=True)
class Finish:
    """One layer that passes its operand on to an epilogue, in a nest with stages of all that this reads."""

    sizes: Sizes
    arrays: dict[str, np.ndarray]
    steps: dict[str, str]
    residual: bool
    mapping: Mapping
    x: np.ndarray
    y: np.ndarray

    def module(self) -> tuple[CompilerContext, ModuleOp]:
        ctx = context()
        names = {"float32": "f32", "int32": "i32", "int16": "i16"}
        symbols = [
            f"weights.global @{name} : tensor<{'x'.join(map(str, array.shape))}x{names[array.dtype.name]}> = "
            f'#weights.ref<"{ctx.weights.add(array)}">'
            for name, array in self.arrays.items()
        ]
        n, k, h, w = self.x.shape
        dims, other = f"{n}x{k}x{h}x{w}", "x".join(map(str, self.y.shape))
        then = ", ".join(f"{name} = {value}" for name, value in self.steps.items())
        residual = f"residual %y : tensor<{other}xi16>" if self.residual else ""
        text = (
            "\n".join(symbols)
            + f"""
            func.func @main(%x : tensor<{dims}xi32>, %y : tensor<{other}xi16>) -> tensor<{dims}xi16> {{
              %1 = nest.layer "add" %x {residual}
                   sizes <n = {n}, k = {k}, c = 1, h = {h}, w = {w}, r = 1, s = 1>
                   window <kernel = [1, 1], group = {k}> then <{then}> label "last"
                   : tensor<{dims}xi32> -> tensor<{dims}xi16> {{ nest.mac }}
              func.return %1 : tensor<{dims}xi16>
            }}"""
        )
        return ctx, self.parsed(ctx, text)

    def parsed(self, ctx: CompilerContext, text: str) -> ModuleOp:
        module = Parser(ctx, text).parse_module()
        set_mapping(module, self.mapping)
        return module

    def both(self) -> tuple[np.ndarray, np.ndarray]:
        """What the standard dialects and what the nest's evaluator give."""
        ctx, module = self.module()
        (want,), _ = evaluate(module, ctx.weights, [self.x, self.y])
        (found,) = Program(standard(ctx, module)).run(self.x, self.y)
        return found, want


SCALES = [0.5, 0.25, -0.125, 1.5, 0.1, 3e-5, 3e38]


@st.composite
def finishes(draw: st.DrawFn) -> Finish:
    n, k, h, w = (draw(st.integers(1, most)) for most in (2, 6, 5, 4))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    arrays: dict[str, np.ndarray] = {}
    steps: dict[str, str] = {}
    names = ("bias", "scale", "position", "slope", "residual", "product", "pixel", "shuffle", "table")
    has = {name: draw(st.booleans()) for name in names}
    per_position = has["scale"] and has["position"]
    if has["bias"] and not per_position:
        arrays["b"] = rng.integers(-999, 999, k).astype(np.int32)
        steps["bias"] = '"b"'
    lo, hi = sorted(draw(st.lists(st.integers(-(1 << 15), (1 << 15) - 1), min_size=2, max_size=2)))
    if has["scale"]:
        arrays["q"] = rng.choice(SCALES, (h, w) if per_position else k).astype(np.float32)
        steps |= {"scale": '"q"', "zero": str(draw(st.sampled_from([0, 0, -128, 7])))}
        steps |= {"per_position": "true"} if per_position else {}
        steps |= {"slope": draw(st.sampled_from(["0.125", "0.0", "-2.0"]))} if has["slope"] else {}
    if has["table"]:
        arrays["t"] = rng.integers(-(1 << 15), 1 << 15, 257).astype(np.int16)
        shift = draw(st.sampled_from([0, 1, 5, 8, 11]))
        steps |= {"table": '"t"', "shift": str(shift)}
        hi = min(hi, lo + (256 << shift))
    steps["clamp"] = f"[{lo}, {hi}]"
    residual = has["residual"] and not per_position
    if residual:
        arrays["f"] = (rng.standard_normal(3) * rng.choice([0.01, 1, 100])).astype(np.float32)
        steps |= {"factors": '"f"', "add_clamp": f"[{lo}, {hi}]"}
        steps |= {"multiply": "true"} if has["product"] else {}
    elif has["shuffle"]:
        steps["shuffle"] = str(draw(st.sampled_from([each for each in range(1, k + 1) if k % each == 0])))
    sizes = Sizes(n, k, 1, h, w, 1, 1)
    loops = [Loop("k", 4)] if k >= 4 else []
    loops += [Loop("h", 2)] if h >= 2 else []
    loops += [Loop(dim) for dim in draw(st.permutations("nkhw")) if sizes.of(dim) > 1]
    staged = residual and (h, w) != (1, 1) and not has["pixel"]
    operands = ["output", *(["params"] if arrays.keys() & {"b", "q"} else []), *(["residual"] if staged else [])]
    stages = [Stage(name, "glb", draw(st.integers(0, len(loops)))) for name in operands if draw(st.booleans())]
    mapping = Mapping(tuple(loops), tuple(sorted(stages, key=lambda stage: stage.depth)))
    x = rng.integers(-(1 << 20), 1 << 20, (n, k, h, w))
    y = rng.integers(-(1 << 15), 1 << 15, (n, k, 1, 1) if has["pixel"] else (n, k, h, w))
    x = np.where(rng.random(x.shape) < 0.5, x % 64 - 32, x)  # small ones, which a scale of a half puts between integers
    return Finish(sizes, arrays, steps, residual, mapping, x, y)


def finished(case: Finish) -> np.ndarray:
    """The epilogue without a residual, one output after the other."""
    out = np.zeros(case.x.shape, np.int64)
    lo, hi = map(int, case.steps["clamp"].strip("[]").split(","))
    groups = int(case.steps.get("shuffle", "1"))
    for n, k, h, w in np.ndindex(out.shape):
        value = int(case.x[n, k, h, w]) + (int(case.arrays["b"][k]) if "bias" in case.steps else 0)
        if "scale" in case.steps:
            scale = case.arrays["q"][(h, w) if "per_position" in case.steps else k]
            with np.errstate(over="ignore", invalid="ignore"):
                product = np.float32(value) * scale
                if product < 0:
                    product = product * np.float32(case.steps.get("slope", "1"))
            value = lo if np.isnan(product) else max(lo, min(hi, float(np.rint(product)) + int(case.steps["zero"])))
        each = out.shape[1] // groups
        value = max(lo, min(hi, int(value)))
        if "table" in case.steps:
            points = [lo + (at << int(case.steps["shift"])) for at in range(257)]
            value = math.floor(np.interp(value, points, case.arrays["t"]) + 0.5)  # exact: entries have 16 bits
        out[n, k % each * groups + k // each, h, w] = value
    return out


@settings(max_examples=examples(50))
@given(finishes())
def test_scf_epilogue_is_brute_force(case: Finish) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        found, want = case.both()
    np.testing.assert_array_equal(found, want)
    if not case.residual:
        np.testing.assert_array_equal(found, finished(case))


def test_scf_shuffles_once_what_a_stage_gathers() -> None:
    x = np.arange(24).reshape(1, 6, 2, 2)
    mapping = Mapping((Loop("k", 4), Loop("k"), Loop("h"), Loop("w")), (Stage("output", "glb", 1),))
    found, want = Finish(
        Sizes(1, 6, 1, 2, 2, 1, 1), {}, {"shuffle": "3", "clamp": "[0, 99]"}, False, mapping, x, x
    ).both()
    np.testing.assert_array_equal(found, x[:, [0, 2, 4, 1, 3, 5]])
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("shift", [0, 1, 4, 15])
def test_scf_table_at_both_ends_and_between_all_entries(shift: int) -> None:
    rng = np.random.default_rng(shift)
    lo, hi = -7, -7 + (256 << shift)
    between = lo + (np.arange(256) << shift) + rng.integers(0, 1 << shift, 256)
    x = np.array([-(1 << 31), lo - 1, *between, hi - 1, hi, hi + 1, (1 << 31) - 1]).reshape(1, 1, 2, -1)
    arrays = {"t": rng.integers(-(1 << 15), 1 << 15, 257).astype(np.int16)}
    steps = {"clamp": f"[{lo}, {hi}]", "table": '"t"', "shift": str(shift)}
    sizes = Sizes(1, 1, 1, *x.shape[2:], 1, 1)
    case = Finish(sizes, arrays, steps, False, Mapping((Loop("h"), Loop("w"))), x, 0 * x)
    found, want = case.both()
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(found, finished(case))


def test_scf_residual_add_rounds_once() -> None:
    # 4097 * (1 + 2^-12) - 4095.5 is a little more than 2.5; rounded to f32 before the subtraction it is 2.5.
    x, y = np.array([4097, 0]).reshape(1, 1, 1, 2), np.array([0, 4097]).reshape(1, 1, 1, 2)
    factor = np.float32(1 + 2**-12)
    assert np.rint(np.float32(4097) * factor - np.float32(4095.5)) == 2
    factors = {"f": np.array([factor, factor, -4095.5], np.float32)}
    steps = {"factors": '"f"', "add_clamp": "[-99, 99]"}
    found, want = Finish(Sizes(1, 1, 1, 1, 2, 1, 1), factors, steps, True, Mapping((Loop("w"),)), x, y).both()
    assert found.ravel().tolist() == want.ravel().tolist() == [3, 3]


def test_scf_product_with_one_pixel_a_channel_rounds_each_step() -> None:
    # 4097 * 4099 = 16,793,603 is no f32: it becomes 16,793,604. Rounded once, the result would be 1.
    x, y = np.array([4097, 4097, 4099, 0]).reshape(1, 2, 1, 2), np.array([4100, 4098]).reshape(1, 2, 1, 1)
    factors = {"f": np.array([2**-9, 1, 1.5 - 16793604 / 2**9], np.float32)}
    steps = {"factors": '"f"', "multiply": "true", "add_clamp": "[-99, 99]"}
    mapping = Mapping((Loop("k"), Loop("w")))
    found, want = Finish(Sizes(1, 2, 1, 1, 2, 1, 1), factors, steps, True, mapping, x, y).both()
    assert found.ravel().tolist() == want.ravel().tolist() == [2, 2, 2, -99]


def test_scf_chain_of_reshape_and_concat() -> None:
    ctx = context()
    factors = ctx.weights.add(np.array([1.5, -2.0, 0.25], np.float32))
    text = f"""
        weights.global @f : tensor<3xf32> = #weights.ref<"{factors}">
        func.func @main(%x : tensor<2x6xi16>, %y : tensor<2x6xi16>)
            -> (tensor<2x3x1x4xi16>, tensor<2x6xi16>, tensor<2x6x2x1xi16>, tensor<2x3x4x3xi16>) {{
          %1 = nest.layer "copy" %x residual %y : tensor<2x6xi16>
               sizes <n = 2, k = 6, c = 1, h = 1, w = 1, r = 1, s = 1>
               window <kernel = [1, 1], group = 6> then <factors = "f", add_clamp = [-50, 50]> label "sum"
               : tensor<2x6xi16> -> tensor<2x6xi16> {{ nest.for n {{ nest.for k {{ nest.mac }} }} }}
          %2 = cnn.reshape %1 label "flat" : tensor<2x6xi16> -> tensor<2x1x6x1xi16>
          %3 = cnn.reshape %2 label "part" : tensor<2x1x6x1xi16> -> tensor<2x3x2x1xi16>
          %4 = cnn.reshape %y label "other" : tensor<2x6xi16> -> tensor<2x3x2x1xi16>
          %5 = cnn.concat %3, %4 label "cat" : (tensor<2x3x2x1xi16>, tensor<2x3x2x1xi16>) -> tensor<2x6x2x1xi16>
          %6 = cnn.reshape %5 label "end" : tensor<2x6x2x1xi16> -> tensor<2x3x1x4xi16>
          %7 = cnn.concat %3, %4 interleaved : (tensor<2x3x2x1xi16>, tensor<2x3x2x1xi16>) -> tensor<2x6x2x1xi16>
          %8 = cnn.concat %3, %4, %4, %4, %3, %3 pixels 2 by 3
               : (tensor<2x3x2x1xi16>, tensor<2x3x2x1xi16>, tensor<2x3x2x1xi16>, tensor<2x3x2x1xi16>,
               tensor<2x3x2x1xi16>, tensor<2x3x2x1xi16>) -> tensor<2x3x4x3xi16>
          func.return %6, %x, %7, %8
               : tensor<2x3x1x4xi16>, tensor<2x6xi16>, tensor<2x6x2x1xi16>, tensor<2x3x4x3xi16>
        }}"""
    module = Parser(ctx, text).parse_module()
    x, y = np.random.default_rng(3).integers(-30, 30, (2, 2, 6))
    found = Program(standard(ctx, module)).run(x, y)
    total = np.clip(np.rint(1.5 * x - 2.0 * y + 0.25), -50, 50).reshape(2, 3, 2)
    other = y.reshape(2, 3, 2)
    np.testing.assert_array_equal(found[0], np.concatenate([total, other], axis=1).reshape(2, 3, 1, 4))
    np.testing.assert_array_equal(found[1], x)
    np.testing.assert_array_equal(found[2], np.stack([total, other], axis=2).reshape(2, 6, 2, 1))
    rows = [np.stack(row, axis=3) for row in ([total, other, other], [other, total, total])]  # each 2 3 2 3
    np.testing.assert_array_equal(found[3], np.stack(rows, axis=3).reshape(2, 3, 4, 3))


LAYER = """
    weights.global @w : tensor<2x3x1x1xi8> = dense<3> : tensor<2x3x1x1xi8>
    weights.global @b : tensor<2xi32> = dense<3> : tensor<2xi32>
    weights.global @q : tensor<2xf32> = dense<3.0> : tensor<2xf32>
    weights.global @t : tensor<257xi16> = dense<300> : tensor<257xi16>
    weights.global @u : tensor<257xi32> = dense<3> : tensor<257xi32>
    func.func @main(%x: tensor<1x3x4x4xi8>) -> tensor<1x2x4x4xi8> {
      %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 3, h = 4, w = 4, r = 1, s = 1>
           window <kernel = [1, 1]> then <bias = "b", scale = "q", clamp = [-128, 127]> label "conv0"
           : tensor<1x3x4x4xi8> -> tensor<1x2x4x4xi8> {
        nest.for k { nest.for h { nest.for w { nest.for c { nest.mac } } } } }
      func.return %0 : tensor<1x2x4x4xi8>
    }
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (', scale = "q", clamp', ', table = "b", clamp',
         r"'conv0': its table is tensor<2xi32>: the layer reads \[257\]"),
        (', scale = "q", clamp', ', table = "none", clamp', "'conv0': there is no weights.global @none"),
        (', scale = "q", clamp', ', table = "u", clamp', "'conv0': its table is tensor<257xi32>: it must hold i16"),
        (', scale = "q", clamp', ', table = "t", clamp', "'conv0': the result may be 300 to 300, i8 holds -128 to 127"),
        ("clamp = [-128, 127]", "clamp = [-128, 128]", "'conv0': the result may be -128 to 128, i8 holds -128 to 127"),
        (', scale = "q", clamp = [-128, 127]', "", "'conv0': the result may be -2147483648 to 2147483647, i8 holds"),
        ("kernel = [1, 1]", "kernel = [1, 1], zero = 2147483647", "'conv0': the ifmap less its zero point may be"),
        ('bias = "b"', 'bias = "none"', "'conv0': there is no weights.global @none"),
        ("@b : tensor<2xi32> = dense<3> : tensor<2xi32>", "@b : tensor<3xi32> = dense<3> : tensor<3xi32>",
         r"'conv0': its bias is tensor<3xi32>: the layer reads \[2\]"),
        ("@q : tensor<2xf32> = dense<3.0> : tensor<2xf32>", "@q : tensor<2xf64> = dense<3.0> : tensor<2xf64>",
         "'conv0': its scale is tensor<2xf64>: it must hold f32"),
        ("%x: tensor<1x3x4x4xi8>", "%x: tensor<1x3x4x4xui8>", "'x' is tensor<1x3x4x4xui8>: it must hold signless"),
        ("= dense<3> : tensor<2x3x1x1xi8>", '= #weights.ref<"0">', "weight '0' is not in the weight store"),
    ],
)  # fmt: skip
def test_scf_refusals(old: str, new: str, message: str) -> None:
    ctx = context()
    text = LAYER.replace(old, new)
    assert text != LAYER
    if "ui8" in new:
        text = text.replace("tensor<1x3x4x4xi8> ->", "tensor<1x3x4x4xui8> ->")
    module = Parser(ctx, text).parse_module()
    before = str(module)
    with pytest.raises(Refusal, match=message):
        NestToScfPass().apply(ctx, module)
    assert str(module) == before, "a refusal changes nothing"


def test_scf_refuses_host_segments_and_other_levels() -> None:
    ctx = context()
    network = """
        func.func @main(%x: tensor<1x2xi16>) -> tensor<1x2xi16> {{
          %0 = {op} : (tensor<1x2xi16>) -> (tensor<1x2xi16>)
          func.return %0 : tensor<1x2xi16>
        }}"""
    host = """cnn.host model <"0"> because "operator Foo" label "foo" (%x) [#cnn.quant<scale = 1.0>] ->
              [#cnn.quant<scale = 1.0>]"""
    with pytest.raises(Refusal, match=r"nest-to-scf: 'foo' runs on the host \(operator Foo\)"):
        NestToScfPass().apply(ctx, Parser(ctx, network.format(op=host)).parse_module())
    module = Case("mac", 1, 2, 2, (3, 3), Window((1, 1))).module(ctx)
    with pytest.raises(Refusal, match=r"nest-to-scf: 'layer0': cnn.conv .* cnn-to-nest must run first"):
        NestToScfPass().apply(ctx, module)


def test_scf_sums_of_many_bits() -> None:
    # 8 products of almost 2^30 are more than an i32 holds.
    ctx = context()
    key = ctx.weights.add(np.full((1, 8, 1, 1), -(1 << 15), np.int16))
    scale = ctx.weights.add(np.array([2.0**-20], np.float32))
    text = f"""builtin.module attributes {{cnn.psum_bits = 40 : i64}} {{
        weights.global @w : tensor<1x8x1x1xi16> = #weights.ref<"{key}">
        weights.global @q : tensor<1xf32> = #weights.ref<"{scale}">
        func.func @main(%x: tensor<1x8xi16>) -> tensor<1x1xi16> {{
          %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 1, c = 8, h = 1, w = 1, r = 1, s = 1>
               window <kernel = [1, 1]> then <scale = "q", clamp = [-32768, 32767]> label "fc"
               : tensor<1x8xi16> -> tensor<1x1xi16> {{ nest.for c {{ nest.mac }} }}
          func.return %0 : tensor<1x1xi16>
        }} }}"""
    module = Parser(ctx, text).parse_module()
    x = np.full((1, 8), -(1 << 15))
    (found,), (want,) = Program(standard(ctx, module)).run(x), evaluate(module, ctx.weights, [x])[0]
    assert found.tolist() == want.tolist() == [[1 << 13]]
    del module.attributes["cnn.psum_bits"]  # sums wrap to 0, where the evaluator refuses
    assert Program(standard(ctx, module)).run(x)[0].tolist() == [[0]]
