"""cnncc.eval.cnn against loops that are written here, and against its own checks."""

from __future__ import annotations

import numpy as np
import pytest
from cnn_ir import parse, tensor
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from cnncc.dialects.cnn import ConvOp
from cnncc.errors import Refusal
from cnncc.eval import cnn
from cnncc.eval.cnn import conv_sums, evaluate, pool_values, quantise_inputs
from cnncc.window import Window


def pixel(x: np.ndarray, window: Window, n: int, c: int, i: int, j: int) -> int:
    inside = 0 <= i < x.shape[2] and 0 <= j < x.shape[3]
    return (int(x[n, c, i, j]) if inside else window.fill) - window.zero


def at(window: Window, h: int, w: int, r: int, s: int) -> tuple[int, int]:
    return (
        h * window.stride[0] + r * window.dilation[0] - window.pad[0],
        w * window.stride[1] + s * window.dilation[1] - window.pad[1],
    )


def brute_conv(x: np.ndarray, weights: np.ndarray, window: Window) -> np.ndarray:
    k, channels, rows, columns = weights.shape
    out = np.zeros((x.shape[0], k, *window.output(*x.shape[2:])), np.int64)
    for n, ok, h, w in np.ndindex(*out.shape):
        first = ok // (k // window.group) * channels
        for c, r, s in np.ndindex(channels, rows, columns):
            value = pixel(x, window, n, first + c, *at(window, h, w, r, s))
            out[n, ok, h, w] += value * int(weights[ok, c, r, s])
    return out


def brute_pool(x: np.ndarray, window: Window, kind: str) -> np.ndarray:
    out = np.zeros((*x.shape[:2], *window.output(*x.shape[2:])), np.int64)
    for n, k, h, w in np.ndindex(*out.shape):
        seen = [pixel(x, window, n, k, *at(window, h, w, r, s)) for r, s in np.ndindex(*window.kernel)]
        out[n, k, h, w] = max(seen) if kind == "max" else sum(seen)
    return out


@st.composite
def window_and_image(draw) -> tuple[Window, np.ndarray]:
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    stride = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    pad = tuple(draw(st.integers(0, 3)) for _ in range(4))
    group = draw(st.sampled_from([1, 1, 2, 3]))
    fill = draw(st.integers(-3, 3))
    ih, iw = (draw(st.integers(7, 11)) for _ in range(2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.integers(-32768, 32768, (draw(st.integers(1, 2)), group * draw(st.integers(1, 3)), ih, iw))
    return Window(kernel, stride, pad, dilation, group, fill, draw(st.sampled_from([0, fill, 5]))), x


@settings(max_examples=examples(30))
@given(window_and_image(), st.integers(1, 3))
def test_quant_eval_conv_equals_loops(case, per_group: int) -> None:
    window, x = case
    rng = np.random.default_rng(0)
    shape = (window.group * per_group, x.shape[1] // window.group, *window.kernel)
    weights = rng.integers(-32768, 32768, shape)
    assert np.array_equal(conv_sums(x, weights, window), brute_conv(x, weights, window))


@settings(max_examples=examples(30))
@given(window_and_image(), st.sampled_from(["max", "sum"]))
def test_quant_eval_pool_equals_loops(case, kind: str) -> None:
    window, x = case
    assert np.array_equal(pool_values(x, window, kind), brute_pool(x, window, kind))


def test_quant_eval_large_convs_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of windows has 2 images of 5 columns, 4 channels and 6 taps: 240 terms. Parts have 2, 2 and 1 rows."""
    rng, window = np.random.default_rng(0), Window((3, 2), (2, 1), (1, 0, 1, 0), group=2)
    x, weights = rng.integers(-99, 100, (2, 4, 9, 6)), rng.integers(-99, 100, (6, 2, 3, 2))
    want, parts = conv_sums(x, weights, window), list[int]()
    monkeypatch.setattr(cnn, "MOST_TERMS", 2 * 240 + 239)
    sums = cnn._sums
    monkeypatch.setattr(cnn, "_sums", lambda part, *rest: (parts.append(part.shape[2]), sums(part, *rest))[1])
    assert np.array_equal(conv_sums(x, weights, window), want)
    assert parts == [2, 2, 1]


def test_quant_eval_sums_beyond_f64_stay_exact() -> None:
    x = np.full((1, 3, 1, 1), 2**40 + 1)
    weights = np.full((1, 3, 1, 1), 2**18 + 1)
    assert conv_sums(x, weights, Window((1, 1))).item() == 3 * (2**40 + 1) * (2**18 + 1)


CONV = """
func.func @main(%x: tensor<1x2x1x1xi16>) -> tensor<1x3x1x1xi32> {
  %0 = cnn.conv %x weights @w window <kernel = [1, 1]> label "c" : tensor<1x2x1x1xi16> -> tensor<1x3x1x1xi32>
  %1 = cnn.bias %0 @b label "c.bias" : tensor<1x3x1x1xi32> -> tensor<1x3x1x1xi32>
  func.return %1 : tensor<1x3x1x1xi32>
}"""


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (32767, 0, None),
        (32767, 131069, None),  # 2^31 - 1 exactly
        (32767, 131070, r"cnn.bias 'c.bias': the sum 2147483648 of channel 2 exceeds the psum range"),
        (32768 * 2, 0, r"cnn.conv 'c': the sum 4294836224 of channel 2 exceeds"),
    ],
)
def test_quant_eval_overflow_is_refused(weight: int, bias: int, message: str | None) -> None:
    weights = np.zeros((3, 2, 1, 1), np.int32)
    weights[2] = weight
    module, ctx = parse(CONV, w=weights, b=np.array([0, 0, bias], np.int32))
    x = np.full((1, 2, 1, 1), 32767)
    if message is None:
        outputs, trace = evaluate(module, ctx.weights, [x])
        assert outputs[0][0, 2, 0, 0] == 2 * 32767 * weight + bias
        assert np.array_equal(trace["c.bias"], outputs[0])
        return
    with pytest.raises(Refusal, match=message):
        evaluate(module, ctx.weights, [x])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros(256, np.int16), r"cnn.lookup 'f': @t: a table is int16\[257\], not int16\[256\]"),
        (np.zeros(257, np.int32), r"cnn.lookup 'f': @t: a table is int16\[257\], not int32\[257\]"),
        (None, "cnn.lookup 'f': there is no weights.global @t"),
    ],
)
def test_quant_eval_table_of_another_shape_is_refused(table: np.ndarray | None, message: str) -> None:
    text = f"""
    func.func @main(%x: {tensor((1, 2))}) -> {tensor((1, 2))} {{
      %0 = cnn.lookup %x by <clamp = [-9, 9], table = "t"> label "f" : {tensor((1, 2))} -> {tensor((1, 2))}
      func.return %0 : {tensor((1, 2))}
    }}"""
    right, ctx = parse(text, t=np.arange(257).astype(np.int16))
    assert evaluate(right, ctx.weights, [np.array([[-20, 5]])])[0][0].tolist() == [[0, 14]]
    module, ctx = parse(text, **({} if table is None else {"t": table}))
    with pytest.raises(Refusal, match=message):
        evaluate(module, ctx.weights, [np.zeros((1, 2), np.int64)])


def test_quant_eval_takes_several_batches() -> None:
    text = f"""
    func.func @main(%x: {tensor((2, 3, 4, 5))}) -> {tensor((2, 60))} {{
      %0 = cnn.reshape %x : {tensor((2, 3, 4, 5))} -> {tensor((2, 60))}
      func.return %0 : {tensor((2, 60))}
    }}"""
    module, ctx = parse(text)
    x = np.arange(6 * 60).reshape(6, 3, 4, 5)
    assert np.array_equal(evaluate(module, ctx.weights, [x])[0][0], x.reshape(6, 60))
    with pytest.raises(Refusal, match=r"shape \[3, 3, 4, 5\]"):
        evaluate(module, ctx.weights, [x[:3]])
    with pytest.raises(Refusal, match="outside -32768..32767"):
        evaluate(module, ctx.weights, [x + 32768])


def test_quant_eval_inputs_saturate_to_their_clamp() -> None:
    quant = '{onnx.name = "a", cnn.quant = #cnn.quant<scale = 0.5, clamp = [-7, 7]>}'
    module, _ = parse(f"func.func @main(%x: {tensor((5,))} {quant}) {{ func.return }}")
    (got,) = quantise_inputs(module, {"a": np.float32([0.25, 0.75, -9, 9, np.nan])})
    assert got.tolist() == [0, 2, -7, 7, -7]
    with pytest.raises(Refusal, match="input 'a' is missing: there are b"):
        quantise_inputs(module, {"b": np.zeros(5)})


def test_quant_eval_macs_of_a_conv() -> None:
    text = f"""
    func.func @main(%x: {tensor((2, 6, 9, 7))}) {{
      %0 = cnn.conv %x weights @w window <kernel = [3, 2], stride = [2, 1], group = 3> : {tensor((2, 6, 9, 7))} -> {tensor((2, 9, 4, 6), "i32")}
      func.return
    }}"""  # noqa: E501
    module, _ = parse(text)
    (conv,) = (op for op in module.walk() if isinstance(op, ConvOp))
    assert conv.macs() == 2 * 9 * 4 * 6 * 2 * 3 * 2
