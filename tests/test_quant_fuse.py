"""Fusion and legalisation change no integer: random chains and graphs, before and after."""

from __future__ import annotations

import numpy as np
import pytest
from cnn_ir import parse, tensor
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from cnncc.dialects.cnn import AddOp, ConvOp, LookupOp, PoolOp, value_key
from cnncc.eval.cnn import evaluate
from cnncc.passes.cnn_fuse_epilogue import CnnFuseEpiloguePass, clamp_after
from cnncc.passes.cnn_legalize import CnnLegalizePass

K = 4
SHAPE = (1, K, 4, 5)
BOUND = st.integers(-300, 300)


class Graph:
    """Builds the text of a graph of i16 values of one shape, and the arrays that it names."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.lines: list[str] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.values = ["%x"]

    def name(self) -> str:
        return f"v{len(self.lines)}"

    def emit(self, text: str, source: str, elements: tuple[str, str] = ("i16", "i16")) -> str:
        name = self.name()
        types = f"{tensor(SHAPE, elements[0])} -> {tensor(SHAPE, elements[1])}"
        self.lines.append(f'%{name} = {text.format(x=source)} label "{name}" : {types}')
        return f"%{name}"

    def array(self, name: str, array: np.ndarray) -> str:
        self.arrays[name] = array
        return name

    def sums(self, source: str, kind: str) -> str:
        if kind == "conv":
            weights = self.array(f"{self.name()}w", self.rng.integers(-99, 99, (K, K, 3, 3)).astype(np.int16))
            text = f"cnn.conv {{x}} weights @{weights} window <kernel = [3, 3], pad = [1, 1, 1, 1]>"
        else:
            text = 'cnn.pool "sum" {x} window <kernel = [2, 3], pad = [1, 1, 0, 1]>'
        return self.emit(text, source, ("i16", "i32"))

    def bias(self, source: str) -> str:
        values = self.array(f"{self.name()}b", self.rng.integers(-9999, 9999, K).astype(np.int32))
        return self.emit(f"cnn.bias {{x}} @{values}", source, ("i32", "i32"))

    def requant(self, source: str, lo: int, hi: int, zero: int, slope: float = 1.0) -> str:
        scale = self.array(f"{self.name()}q", (self.rng.random(K) / 50).astype(np.float32))
        steps = f'scale = "{scale}", zero = {zero}, clamp = [{lo}, {hi}], slope = {slope}'
        return self.emit(f"cnn.requant {{x}} by <{steps}>", source, ("i32", "i16"))

    def clamp(self, source: str, lo: int, hi: int) -> str:
        return self.emit(f"cnn.clamp {{x}} by <clamp = [{lo}, {hi}]>", source)

    def lookup(self, source: str, lo: int, hi: int) -> str:
        table = self.array(f"{self.name()}t", self.rng.integers(-500, 500, 257).astype(np.int16))
        shift = max((hi - lo - 1) // 256, 0).bit_length()  # the least that reaches hi, or one more
        return self.emit(f'cnn.lookup {{x}} by <clamp = [{lo}, {hi}], table = "{table}", shift = {shift}>', source)

    def maximum(self, source: str) -> str:
        return self.emit('cnn.pool "max" {x} window <kernel = [3, 3], pad = [1, 1, 1, 1], fill = -32768>', source)

    def shuffle(self, source: str) -> str:
        return self.emit("cnn.shuffle {x} groups 2", source)

    def add(self, source: str, other: str, lo: int, hi: int) -> str:
        factors = self.array(f"{self.name()}f", np.append(self.rng.random(2) * 2, 0.25).astype(np.float32))
        steps = f'<factors = "{factors}", add_clamp = [{lo}, {hi}]>'
        return self.emit(f"cnn.add {{x}} residual {other} : {tensor(SHAPE)} then {steps}", source)

    def module(self, results: list[str]) -> tuple:
        types = ", ".join(tensor(SHAPE) for _ in results)
        body = "\n".join(self.lines)
        text = (
            f"func.func @main(%x: {tensor(SHAPE)}) -> ({types}) {{\n{body}\n"
            f"func.return {', '.join(results)} : {types}\n}}"
        )
        return parse(text, **self.arrays)


@st.composite
def graphs(draw) -> Graph:
    graph = Graph(draw(st.integers(0, 2**32 - 1)))
    for _ in range(draw(st.integers(1, 9))):
        source = draw(st.sampled_from(graph.values[-2:]))
        lo, hi = sorted((draw(BOUND), draw(BOUND)))
        match draw(
            st.sampled_from(["sum", "sum", "clamp", "clamp", "max", "add", "add", "shuffle", "lookup", "lookup"])
        ):
            case "sum":
                sums = graph.sums(source, draw(st.sampled_from(["conv", "sum"])))
                sums = graph.bias(sums) if draw(st.booleans()) else sums
                value = graph.requant(
                    sums, lo, hi, draw(st.sampled_from([0, 0, 7])), draw(st.sampled_from([1.0, 1.0, 0.25]))
                )
            case "clamp":
                value = graph.clamp(source, lo, hi)
            case "max":
                value = graph.maximum(source)
            case "shuffle":
                value = graph.shuffle(source)
            case "lookup":
                least = lo + draw(st.sampled_from([-9, 0, 9]))  # it begins above the clamp before it, with it, or below
                sums = graph.maximum(source) if draw(st.booleans()) else source
                value = graph.lookup(graph.clamp(sums, least, max(least, hi)), lo, hi)
            case _:
                value = graph.add(source, draw(st.sampled_from(graph.values)), lo, hi)
        graph.values.append(value)
    return graph


@settings(max_examples=examples(150))
@given(graphs(), st.booleans())
def test_quant_fuse_keeps_every_integer(graph: Graph, every_value_is_read: bool) -> None:
    module, ctx = graph.module(graph.values[1:] if every_value_is_read else graph.values[-1:])
    x = graph.rng.integers(-400, 400, SHAPE)
    outputs, trace = evaluate(module, ctx.weights, [x])
    CnnFuseEpiloguePass().apply(ctx, module)
    CnnLegalizePass().apply(ctx, module)
    module.verify()
    fused_outputs, fused_trace = evaluate(module, ctx.weights, [x])
    assert all(np.array_equal(a, b) for a, b in zip(outputs, fused_outputs, strict=True))
    assert all(np.array_equal(trace[key], fused_trace[key]) for key in fused_trace)
    ops = [op for op in module.walk() if op.name.startswith("cnn.")]
    assert all(isinstance(op, ConvOp | PoolOp | AddOp) for op in ops)


def test_quant_fuse_gathers_a_whole_residual_block() -> None:
    graph = Graph(1)
    side = graph.requant(graph.bias(graph.sums("%x", "conv")), -100, 100, 0)
    main = graph.clamp(graph.requant(graph.bias(graph.sums(side, "conv")), -300, 300, 0), 0, 250)
    last = graph.clamp(graph.add(main, side, -200, 200), 10, 500)
    module, ctx = graph.module([last])
    x = graph.rng.integers(-400, 400, SHAPE)
    want = evaluate(module, ctx.weights, [x])[1]
    CnnFuseEpiloguePass().apply(ctx, module)
    first, second = (op for op in module.walk() if isinstance(op, ConvOp))
    assert (value_key(first), value_key(second)) == (side[1:], last[1:])
    assert second.residual is first.result
    assert second.steps.data.clamp == (0, 250)
    assert second.steps.data.add_clamp == (10, 200)
    got = evaluate(module, ctx.weights, [x])[1]
    assert all(np.array_equal(got[key], want[key]) for key in got)


@pytest.mark.parametrize(("lo", "is_fused"), [(-50, True), (-51, True), (-49, False), (0, False)])
def test_quant_fuse_a_table_begins_with_the_clamp(lo: int, is_fused: bool) -> None:
    """A Relu before a table that begins at -50 is another function than the table from 0 on."""
    graph = Graph(2)
    sums = graph.requant(graph.sums("%x", "conv"), -300, 300, 0)
    last = graph.lookup(graph.clamp(sums, lo, 250), -50, 400)
    module, ctx = graph.module([last])
    x = graph.rng.integers(-400, 400, SHAPE)
    (want,) = evaluate(module, ctx.weights, [x])[0]
    CnnFuseEpiloguePass().apply(ctx, module)
    assert is_fused == (not any(isinstance(op, LookupOp) for op in module.walk()))
    CnnLegalizePass().apply(ctx, module)
    assert np.array_equal(evaluate(module, ctx.weights, [x])[0][0], want)
    convs, pools = ([op for op in module.walk() if isinstance(op, kind)] for kind in (ConvOp, PoolOp))
    assert (len(convs), len(pools)) == (1, not is_fused)
    steps = (convs if is_fused else pools)[0].steps.data
    assert (steps.clamp, steps.table, steps.shift) == ((-50, 250 if is_fused else 400), f"{last[1:]}t", 1)


@given(BOUND, BOUND, BOUND, BOUND, st.integers(-400, 400))
def test_quant_fuse_one_clamp_for_two(a: int, b: int, c: int, d: int, x: int) -> None:
    first, second = sorted((a, b)), sorted((c, d))
    lo, hi = clamp_after(tuple(first), tuple(second))
    assert min(max(x, lo), hi) == min(max(min(max(x, first[0]), first[1]), second[0]), second[1])
