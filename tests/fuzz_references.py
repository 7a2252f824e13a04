"""What a random network computes: by onnxruntime without optimisations, and by float64_ops.py; and how near is near."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import float64_ops
import numpy as np
import onnx
import onnxruntime
from frontend_models import make_weights_unsigned
from random_graphs import Network

Array = np.ndarray
Values = dict[str, Array]

LEAST_DB = 45.0  # of 16-bit operands
MARGIN_DB = 12.0  # by which noise may exceed that of rounding all operands to 16 bits
TOP = (1 << 15) - 1
FLOAT32 = float(np.finfo(np.float32).max)
FLOAT_TOLERANCE = 1e-4  # of the greatest magnitude that a node reads or computes
PERTURBED = 4  # runs in which codes are off by a step
DRAWS = 16  # runs in which numbers are rounded
ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "PRelu")
# Operators whose result has the integers of what they read.
KEEPS_SCALE = (
    "Concat", "MaxPool", "GlobalMaxPool", "Reshape", "Flatten", "Transpose", "Identity", "Dropout", "Pad",
    "DepthToSpace",
)  # fmt: skip


def decibels(signal: float, noise: float) -> float:
    """The ratio of two powers; NaN where they are too large for float64."""
    if not np.isfinite(signal) or not np.isfinite(noise):
        return float("nan")
    if noise == 0:
        return float("inf")
    return 10 * float(np.log10(signal / noise)) if signal else float("-inf")


class Known:
    """A network's values for its feeds, batch by batch. wanted: the outputs by onnxruntime."""

    def __init__(self, net: Network) -> None:
        self.net, self.graph = net, net.model.graph
        self.batches = batches_of(net)
        self.outputs = [value.name for value in self.graph.output]
        self.values = onnxruntime_values(net.model, self.batches)
        self.wanted = self.joined(self.values)

    @property
    def has_codes(self) -> bool:
        return any(node.op_type == "QuantizeLinear" for node in self.graph.node)

    def joined(self, batches: list[Values]) -> Values:
        """The outputs of all batches."""
        return {name: np.concatenate([values[name] for values in batches]) for name in self.outputs}

    def float64(self, hook: float64_ops.Hook = float64_ops.unchanged) -> list[Values]:
        """All values in float64, batch by batch."""
        return [float64_ops.evaluate(self.net.model, feeds, hook) for feeds in self.batches]

    @cached_property
    def exact(self) -> list[Values]:
        """All values in float64, nothing rounded but codes."""
        return self.float64()

    # Do the references agree?

    def disagreement(self) -> str:
        """The first node of which the references differ, given the same inputs; the empty string where none does."""
        constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in self.graph.initializer}
        for values in self.values:
            known = {**constants, **values}
            for node in self.graph.node:
                inputs = [known[name] if name else None for name in node.input]
                if found := differs(node, inputs, known[node.output[0]]):
                    return found
        return ""

    # Are outputs near enough?

    def unequal(self, got: Values) -> str:
        """Which output is not onnxruntime's in every bit."""
        for name, want in self.wanted.items():
            if (wrong := got[name] != want).any():
                most = np.abs(got[name].astype(np.float64) - want).max()
                return f"output '{name}' differs in {wrong.sum()} of {want.size} places, by up to {most:g}"
        return ""

    def beyond_steps(self, got: Values) -> str:
        """Which output is further from onnxruntime's than codes that are off by a step explain."""
        allowed = self.sensitivity()
        for name, want in self.wanted.items():
            step = self.step(name)
            error = np.abs(got[name].astype(np.float64) - want).max() / step
            if error > (most := allowed[name] / step + 1.01):
                return f"output '{name}' is off by {error:.1f} steps, {most:.1f} are allowed"
        return ""

    def step(self, name: str) -> float:
        """Of the codes that an output is, or that it was dequantised from; 1 where it is codes."""
        made = {node.output[0]: node for node in self.graph.node}
        node = made.get(name)
        if node is None or node.op_type != "DequantizeLinear":
            return 1.0
        scales = {tensor.name: tensor for tensor in self.graph.initializer}
        return float(onnx.numpy_helper.to_array(scales[node.input[1]]))

    def sensitivity(self) -> dict[str, float]:
        """By how much outputs change where codes are off by up to a step each."""
        rng = np.random.default_rng(0)
        quantised = {node.output[0] for node in self.graph.node if node.op_type == "QuantizeLinear"}
        ends = {node.output[0] for node in self.graph.node if node.output[0] in self.outputs}

        def off(name: str, codes: Array) -> Array:
            if name not in quantised or name in ends:
                return codes
            info = np.iinfo(codes.dtype)
            return np.clip(codes.astype(int) + rng.integers(-1, 2, codes.shape), info.min, info.max).astype(codes.dtype)

        plain, most = self.joined(self.exact), dict.fromkeys(self.outputs, 0.0)
        for _ in range(PERTURBED):
            for name, array in self.joined(self.float64(off)).items():
                change = np.abs(array.astype(np.float64) - plain[name]).max()
                most[name] = max(most[name], float(change))
        return most

    def too_noisy(self, got: Values) -> str:
        """Which output of floats has less than `LEAST_DB` and clearly more noise than rounding to 16 bits gives."""
        exact = self.joined(self.exact)
        reached = {name: decibels(np.square(x).sum(), np.square(got[name] - x).sum()) for name, x in exact.items()}
        low = [name for name, ratio in reached.items() if ratio < LEAST_DB]
        rounded = [self.joined(self.float64(self.rounding(seed))) for seed in range(DRAWS)] if low else []
        for name in low:
            least = float(np.mean([np.square(each[name] - exact[name]).sum() for each in rounded]))
            possible = decibels(np.square(exact[name]).sum(), least)
            if reached[name] < possible - MARGIN_DB:
                return f"output '{name}' has {reached[name]:.1f} dB, rounding to 16 bits {possible:.1f} dB"
        return ""

    def rounding(self, seed: int) -> Callable[[str, Array], Array]:
        """Rounds a value to 16 bits of its own range; not before an activation that alone reads it: it may be fused.

        A Relu of a shared value can be no better than that value: where its greatest magnitudes are negative, it has
        fewer bits for what is positive. Where the grid of integers lies is drawn for every value, so that the mean over
        seeds does not depend on how near it is to an integer where it is there many times; 0 is always exact.
        """
        rng = np.random.default_rng(seed)
        tops: dict[str, float] = {}
        for values in self.exact:
            for name, value in values.items():
                tops[name] = max(tops.get(name, 0.0), float(np.abs(value).max(initial=0)))
        for node in reversed(self.graph.node):
            if node.op_type in KEEPS_SCALE:
                for name in node.input:
                    tops[name] = max(tops.get(name, 0.0), tops[node.output[0]])
        inputs = {value.name for value in self.graph.input}
        readers = Counter([name for node in self.graph.node for name in node.input] + self.outputs)
        activated = {node.input[0] for node in self.graph.node if node.op_type in ACTIVATIONS} - inputs
        fused = {name for name in activated if readers[name] == 1}

        def rounded(name: str, value: Array) -> Array:
            step = tops[name] / TOP
            if name in fused or not step:
                return value
            shift = rng.uniform(-0.5, 0.5) * (value != 0)
            return (np.rint(value / step + shift) - shift) * step

        return rounded


def batches_of(net: Network) -> list[Values]:
    """The feeds, cut at the model's batch size."""
    size = net.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    images = len(next(iter(net.feeds.values())))
    return [{name: x[at : at + size] for name, x in net.feeds.items()} for at in range(0, images, size)]


def onnxruntime_values(model: onnx.ModelProto, batches: list[Values]) -> list[Values]:
    """All inputs and results by name, batch by batch."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    known = {value.name for value in model.graph.output}
    names = [node.output[0] for node in model.graph.node]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    make_weights_unsigned(shown)
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session: Any = onnxruntime.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [{**feeds, **dict(zip(names, session.run(names, feeds), strict=True))} for feeds in batches]


def differs(node: onnx.NodeProto, inputs: list[Array | None], got: Mapping[str, Array] | Array) -> str:
    """How far `got`, by onnxruntime, is from float64 for one node; the empty string where it is near."""
    wanted, result = float64_ops.apply(node, inputs), np.asarray(got)
    if result.dtype == np.float32:  # what lies beyond them is infinite
        wanted, result = (np.clip(x, -FLOAT32, FLOAT32) for x in (wanted, result))
    if wanted.shape != result.shape:
        return f"{node.name} ({node.op_type}): shape {list(result.shape)}, in float64 {list(wanted.shape)}"
    if not wanted.size:
        return ""
    error = float(np.abs(result.astype(np.float64) - wanted).max())
    read = max((float(np.abs(x).max(initial=0)) for x in inputs if x is not None and x.dtype.kind == "f"), default=0.0)
    allowed = 1.0 if result.dtype.kind in "iu" else FLOAT_TOLERANCE * max(read, float(np.abs(wanted).max()))
    return f"{node.name} ({node.op_type}) differs by {error:.3g}, more than {allowed:.3g}" if error > allowed else ""
