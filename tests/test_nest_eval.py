"""The nest's evaluator and every scheduling pass against brute-force integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_cases import SCHEDULE, Case, any_mappings, arches, best_mapping, cases, context, layer_of, lowered
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from cnncc.arch.model import Arch
from cnncc.context import CompilerContext
from cnncc.dialects.cnn import Steps, StepsAttr, WindowAttr
from cnncc.dialects.nest import MappingAttr, SizesAttr, build_nest, mapping_of
from cnncc.errors import Refusal
from cnncc.eval import cnn
from cnncc.eval._lanes import LaneBody, LaneBuffer
from cnncc.eval.nest import LayerRun, evaluate
from cnncc.mapping.mapping import Loop, Mapping, Stage
from cnncc.passes.cnn_to_nest import CnnToNestPass
from cnncc.window import Window

pytestmark = pytest.mark.usefixtures("short_searches")

LAYER = Case("mac", 1, 5, 5, (7, 9), Window((3, 2), (1, 2), (1, 1, 1, 0)))


def result(ctx: CompilerContext, module: ModuleOp, case: Case) -> np.ndarray:
    outputs, trace = evaluate(module, ctx.weights, [case.x])
    np.testing.assert_array_equal(outputs[0], trace["layer0"])
    return outputs[0]


def scheduled(case: Case, arch: Arch) -> tuple[CompilerContext, ModuleOp]:
    """The layer with the mapping for `arch`, not yet applied."""
    ctx, module = lowered(case)
    layer = layer_of(module)
    layer.mapping = MappingAttr(best_mapping(layer, arch))
    module.verify()
    return ctx, module


@settings(max_examples=examples(16))
@given(cases(groups=True))
def test_nest_lowering_is_brute_force(case: Case) -> None:
    ctx, module = lowered(case)
    np.testing.assert_array_equal(result(ctx, module, case), case.sums())
    (output,), _ = cnn.evaluate(case.module(ctx), ctx.weights, [case.x])
    np.testing.assert_array_equal(output, case.sums())


@settings(max_examples=examples(24))
@given(cases(), arches())
def test_nest_schedule_is_brute_force_after_every_pass(case: Case, arch: Arch) -> None:
    want = case.sums()
    ctx, module = scheduled(case, arch)
    goal = layer_of(module).mapping.data
    for each in SCHEDULE:
        each.apply(ctx, module)
        module.verify()
        np.testing.assert_array_equal(result(ctx, module, case), want)
    assert mapping_of(layer_of(module)) == goal
    assert layer_of(module).mapping is None


@settings(max_examples=examples(30))
@given(st.data(), cases(groups=True))
def test_nest_any_mapping_is_brute_force(data: st.DataObject, case: Case) -> None:
    mapping = data.draw(any_mappings(case))
    ctx, module = lowered(case)
    layer = layer_of(module)
    layer.detach_region(layer.body)
    layer.add_region(build_nest(mapping))
    module.verify()
    assert mapping_of(layer) == mapping
    np.testing.assert_array_equal(result(ctx, module, case), case.sums())


def test_nest_batches_are_independent() -> None:
    case = replace(LAYER, n=4)
    ctx, module = lowered(replace(LAYER, n=2))
    np.testing.assert_array_equal(result(ctx, module, case), case.sums())


def test_nest_copy_adds_its_residual() -> None:
    ctx = context()
    factors = ctx.weights.add(np.array([1.5, -2.0, 0.25], np.float32))
    text = f"""
        weights.global @f : tensor<3xf32> = #weights.ref<"{factors}">
        func.func @main(%x : tensor<2x7xi16>, %y : tensor<2x7xi16>) -> tensor<1x14xi16> {{
          %1 = cnn.add %x residual %y : tensor<2x7xi16> then <factors = "f", add_clamp = [-50, 50]> label "sum"
               : tensor<2x7xi16> -> tensor<2x7xi16>
          %2 = cnn.reshape %1 label "flat" : tensor<2x7xi16> -> tensor<1x14xi16>
          func.return %2 : tensor<1x14xi16>
        }}"""
    module = Parser(ctx, text).parse_module()
    rng = np.random.default_rng(3)
    x, y = rng.integers(-30, 30, (2, 2, 7))
    before = cnn.evaluate(module, ctx.weights, [x, y])
    CnnToNestPass().apply(ctx, module)
    module.verify()
    (output,), trace = evaluate(module, ctx.weights, [x, y])
    want = np.clip(np.rint(1.5 * x - 2.0 * y + 0.25), -50, 50)
    np.testing.assert_array_equal(trace["sum"], want)
    np.testing.assert_array_equal(output, want.reshape(1, 14))
    np.testing.assert_array_equal(before[0][0], output)


def test_nest_epilogue_reads_staged_parameters_only() -> None:
    ctx, module = lowered(LAYER)
    layer = layer_of(module)
    run = LayerRun(layer, {"w": LAYER.weights, "b": LAYER.bias}, LAYER.x)
    body = run.whole({"w": LAYER.weights, "b": LAYER.bias}, LAYER.x)
    half = body.iterations("k", np.array([2]), 2)
    staged = run.fetch(Stage("params", "glb", 1), half)
    with pytest.raises(IndexError):
        staged.buffers["bias"].read(np.array([[[4]]]))
    np.testing.assert_array_equal(staged.buffers["bias"].values, LAYER.bias[None, 2:4])


def test_nest_reading_outside_a_buffer_raises() -> None:
    buffer = LaneBuffer.whole(np.arange(12).reshape(3, 4), (1, -1), 2).cut([np.array([1, 2]), np.array([0, 1])], [2, 2])
    assert buffer.read(np.array([[2], [2]]), np.array([[1], [1]])).tolist() == [[6], [6]]
    for y, x in ((0, 0), (3, 0), (1, -1), (1, 2)):
        with pytest.raises(IndexError, match="outside a buffer"):
            buffer.read(np.array([[y], [2]]), np.array([[x], [1]]))


def test_nest_psum_overflow_is_refused() -> None:
    ctx, module = lowered(LAYER)
    module.attributes["cnn.psum_bits"] = IntegerAttr(16, i64)
    with pytest.raises(Refusal, match="layer0.*outside the psum range -32768 to 32767"):
        result(ctx, module, LAYER)
    for bits in (-3, 1, 64):
        module.attributes["cnn.psum_bits"] = IntegerAttr(bits, i64)
        with pytest.raises(Refusal, match=f"cnn.psum_bits = {bits} is outside 2 to 63"):
            result(ctx, module, LAYER)


RICH = Mapping(
    (
        *(Loop("k", 4), Loop("h", 4), Loop("w", 3)),
        *(Loop("k", 2, "rows"), Loop("h", 1, "rows"), Loop("w", 1, "cols")),
        *(Loop("c", 2), Loop("r", 2)),
        *(Loop(dim, keep=True) for dim in "scrk"),
    ),
    (
        *(Stage("ifmap", "glb", 0), Stage("weight", "glb", 1, 2), Stage("params", "glb", 1, 2)),
        *(Stage("weight", "rf", 8, 2), Stage("ifmap", "rf", 8, 2)),
    ),
)


def mapped(mapping: Mapping = RICH) -> tuple[CompilerContext, ModuleOp]:
    ctx, module = lowered(LAYER)
    layer = layer_of(module)
    layer.detach_region(layer.body)
    layer.add_region(build_nest(mapping))
    return ctx, module


def effects(module: ModuleOp) -> tuple[list[int], object]:
    """What running the layer shows: its integers; the slices that its stages copied and the runs inside them."""
    symbols = {"w": LAYER.weights, "b": LAYER.bias, "f": np.ones(3, np.float32), "q": ONES, "t": TABLE}
    run = LayerRun(layer_of(module), symbols, LAYER.x)
    return run.result.ravel().tolist(), (run.fetched, run.runs)


WINDOW = LAYER.window
ONES = np.ones(len(LAYER.weights), np.float32)
TABLE = np.random.default_rng(5).permutation(np.arange(257, dtype=np.int16))
ALTERED_LAYERS = {
    "kind": lambda layer: layer.properties.update(kind=layer.kind.__class__("max")),
    "weights": lambda layer: layer.properties.pop("weights"),
    "stride": lambda layer: layer.properties.update(window=WindowAttr(replace(WINDOW, stride=(1, 1)))),
    "pad moved": lambda layer: layer.properties.update(window=WindowAttr(replace(WINDOW, pad=(0, 1, 2, 0)))),
    "pad": lambda layer: layer.properties.update(window=WindowAttr(replace(WINDOW, pad=(0, 1, 1, 0)))),
    "kernel": lambda layer: layer.properties.update(window=WindowAttr(replace(WINDOW, kernel=(3, 3)))),
    "dilation": lambda layer: layer.properties.update(window=WindowAttr(replace(WINDOW, dilation=(2, 1)))),
    "group": lambda layer: layer.properties.update(window=WindowAttr(replace(WINDOW, group=5))),
    "fill": lambda layer: layer.properties.update(window=WindowAttr(replace(WINDOW, fill=7))),
    "zero": lambda layer: layer.properties.update(window=WindowAttr(replace(WINDOW, zero=7))),
    "bias": lambda layer: layer.properties.update(steps=StepsAttr(Steps())),
    "missing bias": lambda layer: layer.properties.update(steps=StepsAttr(Steps(bias="no"))),
    "missing scale": lambda layer: layer.properties.update(steps=StepsAttr(Steps(bias="b", scale="no"))),
    "clamp": lambda layer: layer.properties.update(steps=StepsAttr(Steps(bias="b", clamp=(-9, 9)))),
    "slope": lambda layer: layer.properties.update(steps=StepsAttr(Steps(bias="b", scale="q", slope=0.5))),
    "factors": lambda layer: layer.properties.update(steps=StepsAttr(Steps(bias="b", factors="f"))),
    "table": lambda layer: layer.properties.update(steps=StepsAttr(Steps(bias="b", clamp=(-9, 9), table="t"))),
    "missing table": lambda layer: layer.properties.update(steps=StepsAttr(Steps(clamp=(-9, 9), table="no"))),
    "wrong table": lambda layer: layer.properties.update(steps=StepsAttr(Steps(clamp=(-9, 9), table="b"))),
}
for _dim in "nkchwrs":
    ALTERED_LAYERS[f"size {_dim}"] = lambda layer, dim=_dim: layer.properties.update(
        sizes=SizesAttr(replace(layer.sizes.data, **{dim: layer.sizes.data.of(dim) + 1}))
    )


@pytest.mark.parametrize("name", ALTERED_LAYERS)
def test_nest_layer_attribute_matters(name: str) -> None:
    _, module = mapped()
    module.verify()
    before = effects(module)
    ALTERED_LAYERS[name](layer_of(module))
    try:
        module.verify()
        after = effects(module)
    except (VerifyException, Refusal):
        return
    assert after[0] != before[0]


def test_nest_table_and_its_shift_by_formula() -> None:
    """Biased sums through a table of even numbers: halves never need rounding."""
    _, module = mapped()
    sums = np.array(effects(module)[0])
    assert sums.min() < -100 and sums.max() > 400
    table = 2 * TABLE.astype(np.int64)
    for shift, values in ((0, table), (1, np.stack([table[:-1], (table[:-1] + table[1:]) // 2], axis=1).ravel())):
        clamp = (-100, 100 + 56 * (shift + 1))
        steps = Steps(bias="b", clamp=clamp, table="t", shift=shift)
        layer_of(module).properties.update(steps=StepsAttr(steps))
        run = LayerRun(layer_of(module), {"w": LAYER.weights, "b": LAYER.bias, "t": (2 * TABLE)}, LAYER.x)
        np.testing.assert_array_equal(run.result.ravel(), values[np.clip(sums, *clamp) + 100])


@pytest.mark.parametrize(
    ("array", "says"),
    [
        ("b", r"nest.layer 'layer0': @b: a table is int16\[257\], not int"),
        ("no", "nest.layer 'layer0': there is no weights.global @no"),
    ],
)
def test_nest_table_of_another_shape_is_refused(array: str, says: str) -> None:
    _, module = mapped()
    layer_of(module).properties.update(steps=StepsAttr(Steps(clamp=(-9, 9), table=array)))
    with pytest.raises(Refusal, match=says):
        LayerRun(layer_of(module), {"w": LAYER.weights, "b": LAYER.bias}, LAYER.x)


@pytest.mark.parametrize("spoilt", RICH.stages, ids=lambda stage: f"{stage.operand} in {stage.memory}")
def test_nest_what_a_stage_copied_is_what_is_read(spoilt: Stage) -> None:
    class Spoilt(LayerRun):
        def fetch(self, stage: Stage, body: LaneBody) -> LaneBody:
            fetched = super().fetch(stage, body)
            if stage == spoilt:
                name = {"params": "bias"}.get(stage.operand, stage.operand)
                fetched.buffers[name].values[...] += 1
            return fetched

    layer = layer_of(mapped()[1])
    symbols = {"w": LAYER.weights, "b": LAYER.bias}
    assert (Spoilt(layer, symbols, LAYER.x).result != LayerRun(layer, symbols, LAYER.x).result).all()


def alterations() -> list[Mapping]:
    """RICH with one field of one loop or stage altered."""
    loops, stages = RICH.loops, RICH.stages
    found: list[Mapping] = []
    for depth, loop in enumerate(loops):
        fields = [{"step": loop.step + more} for more in (1, 2)]
        fields += [{"dim": dim} for dim in "nkchwrs" if dim != loop.dim]
        for change in fields + ([{"keep": not loop.keep}] if not loop.on else []):
            found.append(Mapping((*loops[:depth], replace(loop, **change), *loops[depth + 1 :]), stages))
    for index, stage in enumerate(stages):
        fields = [{"operand": operand} for operand in ("weight", "ifmap", "params") if operand != stage.operand]
        fields += [{"memory": "rf" if stage.memory == "glb" else "glb"}]
        fields += [{"depth": depth} for depth in range(len(loops) + 1) if depth != stage.depth]
        for change in fields:
            altered = (*stages[:index], replace(stage, **change), *stages[index + 1 :])
            found.append(Mapping(loops, tuple(sorted(altered, key=lambda each: each.depth))))
    return found


@pytest.mark.parametrize("mapping", alterations())
def test_nest_every_loop_and_stage_matters(mapping: Mapping) -> None:
    """What is legal computes the same integers but copies other words; what is not is refused."""
    before = effects(mapped()[1])
    _, module = mapped(mapping)
    try:
        module.verify()
    except VerifyException:
        return
    after = effects(module)
    assert after[0] == before[0]
    assert after[1] != before[1], "a schedule that differs copies or runs otherwise"
