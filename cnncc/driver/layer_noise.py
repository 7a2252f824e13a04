"""Each layer against float with exact operands: an error that the steps of its integers do not explain is a mistake.

Unlike every level below `cnn`, the check does not trust the scales that quantisation chose. A layer is here the
computation of one rounded value: for example a convolution with the Relu and MaxPool after it. Definitions:

    error   mean square of (integer result - float result), with the float operands, quantised, as operands
    noise   mean square of (float result of rounded operands and weights - float result of exact ones),
            plus step² / 12 for the result; of a function by a table, "rounded" has what its lines may lie beside it

Without saturation, error <= 4 · noise: rounding moves a result by at most step / 2, and
(a + b)² <= 4 · (a² + b² / 3). A layer exceeds the limit if it saturates or has a coarser step than its range needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor, inf

import numpy as np
from xdsl.ir import BlockArgument, SSAValue

from cnncc.dialects.cnn import HostOp, shape
from cnncc.dialects.onnx import NodeOp
from cnncc.driver.accuracy import References
from cnncc.eval.cnn import convolution, evaluate, pixels_in_turn, pool_values, quantise_inputs
from cnncc.numerics import Ints
from cnncc.passes._onnx.builder import base_of, image_dims
from cnncc.passes._onnx.calibration import Scale
from cnncc.passes._onnx.functions import FunctionLayer
from cnncc.passes._onnx.layers import (
    AddLayer,
    ClampLayer,
    ConcatLayer,
    ConvLayer,
    LeakyLayer,
    MulLayer,
    PixelsLayer,
    PoolLayer,
    ShuffleLayer,
    SliceLayer,
)
from cnncc.passes._onnx.quantised_layers import AnyLayer
from cnncc.passes._onnx.scale_groups import saturates_at_reader, sources
from cnncc.quant.split import Doubles
from cnncc.weights import Array, WeightStore

LIMIT = 4  # the largest error of a layer, in units of its noise
OTHER = "no rounding explains it"
FLOAT_STEP = 2.0**-22  # the error of float itself, relative to the largest magnitude


@dataclass(frozen=True)
class LayerNoise:
    """A layer by the name of its result: mean squares of its error and of its noise.

    - cause: the reason of an error beyond the noise, or ''
    - narrowed: by convolution the number of channels with coarser weights than operands allow, so that psums hold sums
    """

    label: str
    error: float
    noise: float
    cause: str = ""
    narrowed: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def text(self) -> str:
        """The fault, on one line."""
        return f"'{self.label}' errs by {self.error / self.noise:.3g} times what rounding explains: {self.cause}"


def layer_noise(references: References, store: WeightStore, inputs: Mapping[str, Array]) -> list[LayerNoise]:
    """All layers with scales chosen by calibration, in the order of the network, for real inputs by name.

    inputs: like those of the calibration; others may saturate with good reason. Raises Refusal as `cnn.evaluate`.
    """
    return list(_Layers(references, store, inputs).measured())


class _Layers:
    """The rounded values of an `onnx` graph, each computed from the float results of the others."""

    def __init__(self, references: References, store: WeightStore, inputs: Mapping[str, Array]) -> None:
        self.references, self.lowering = references, references.lowering
        self.layers = self.lowering.placement.layers
        rounded = [v for v in references.values if v.owner not in self.layers or not self._is_inner(v)]
        self.exact = references.exact(rounded, inputs)
        self.given = {base_of(self.lowering.values[v]): self._quantised(v) for v in self.exact}
        quantised = quantise_inputs(self.lowering.module, inputs)
        _, self.trace = evaluate(self.lowering.module, store, quantised, given=self.given)

    def _is_inner(self, value: SSAValue) -> bool:
        """Whether `value` is not rounded by itself: its integers, saturated or not, only go into another value."""
        use = value.get_user_of_unique_use()
        if not isinstance(use, NodeOp) or not saturates_at_reader(value, self.layers):
            return False
        return self.lowering.scales.get(use.results[0]) == self.lowering.scales[value]

    def _quantised(self, value: SSAValue) -> Ints:
        """The input of readers: the integers of the float `value`, in its shape on the `cnn` level."""
        dims = shape(base_of(self.lowering.values[value]).type)
        return self.lowering.scales[value].integers(self.exact[value]).reshape(-1, *dims[1:])

    def measured(self) -> Iterator[LayerNoise]:
        seen: set[SSAValue] = set()
        for value in self.exact:
            if self._is_inner(value) or self.lowering.placement.known(value) is not None:
                continue  # another value counts, or the model states codes: `value` may saturate
            if (lowered := base_of(self.lowering.values[value])) in seen:
                continue  # a reshape of an earlier value
            seen.add(lowered)
            key, exact, scale = self.references.key(value), self.exact[value], self.lowering.scales[value]
            computed = self.given[lowered]
            if not isinstance(lowered, BlockArgument) and not isinstance(lowered.owner, HostOp):
                computed = self.trace[key].reshape(exact.shape)
            error = float(np.square(scale.reals(computed).reshape(exact.shape) - exact).mean())
            noise = self._noise(value)
            cause = self._cause(value) if error > LIMIT * noise else ""
            yield LayerNoise(key, error, noise, cause, self._narrowed(value))

    def _noise(self, value: SSAValue) -> float:
        """The noise of the layer that computes `value`: of its operands and of its result."""
        # A step that is coarser than the range needs is a mistake, and no noise.
        step, peak = min(self.lowering.scales[value].scale, self._fitting(value)), np.abs(self.exact[value]).max()
        own = step**2 / 12 + (FLOAT_STEP * float(peak)) ** 2
        if value.owner not in self.layers:
            return own
        moved = self._real(value, rounded=True) - self._real(value, rounded=False)
        return own + float(np.square(moved).mean())

    def _sag(self, node: NodeOp, layer: FunctionLayer, x: Doubles) -> Doubles:
        """How far the lines between the entries of a table lie beside the function at `x`, at most.

        The line of a pair of entries is as far off as the function bends there. Entries are fitted, so that a bend
        moves the lines next to it, too.
        """
        apart = self.lowering.entries_apart.get(node, 1)
        if apart == 1:
            return np.zeros_like(x)
        half = apart / 2 * self.lowering.scales[node.operands[0]].scale
        at = [layer.reals(x + side * half).astype(np.float64) for side in range(-3, 4)]
        bends = [(before + behind) / 2 - between for before, between, behind in zip(at, at[1:], at[2:], strict=False)]
        return np.abs(bends).max(axis=0)

    def _fitting(self, value: SSAValue) -> float:
        """The step that the calibrated range of `value` needs."""
        known = self.lowering.ranges.get(value)
        return Scale.of(known).scale if known else inf

    # Float results of a layer.

    def _real(self, value: SSAValue, *, rounded: bool) -> Doubles:
        """`value` in float.

        rounded: whether operands and weights are rounded to their steps, never saturated, and functions are off by
        what their tables may be.
        """
        node = value.owner
        assert isinstance(node, NodeOp)
        layer = self.layers[node]
        operands = [self._operand(operand, rounded=rounded) for operand in _read(node, layer)]
        weights = self._weights(node, layer, rounded=rounded) if isinstance(layer, ConvLayer) else None
        result = _computed(layer, operands, weights)
        if rounded and isinstance(layer, FunctionLayer):
            result = result + self._sag(node, layer, operands[0])
        return result.reshape(-1, *shape(value.type)[1:])

    def _operand(self, value: SSAValue, *, rounded: bool) -> Doubles:
        if value not in self.exact:
            reals = self._real(value, rounded=rounded)
        else:
            reals, step = self.exact[value].astype(np.float64), self.lowering.scales[value].scale
            reals = np.rint(reals / step) * step if rounded else reals
        dims = shape(value.type)
        return reals.reshape(-1, *(image_dims(dims) if len(dims) < 4 else dims)[1:])

    def _weights(self, node: NodeOp, layer: ConvLayer, *, rounded: bool) -> tuple[Doubles, Doubles]:
        """Weights [k, c, r, s] and bias [k]."""
        weights, bias = layer.weights.astype(np.float64), layer.bias.astype(np.float64)
        if not rounded:
            return weights, bias
        steps = self.lowering.weight_scales[node].astype(np.float64)
        of_bias, of_weights = steps * self.lowering.scales[node.operands[0]].scale, steps.reshape(-1, 1, 1, 1)
        return np.rint(weights / of_weights) * of_weights, np.rint(bias / of_bias) * of_bias

    # Causes of an error.

    def _cause(self, value: SSAValue) -> str:
        step, fitting = self.lowering.scales[value].scale, self._fitting(value)
        for part in (*self._operands(value), value):
            scale = self.lowering.scales[part]
            (lo, hi), share = scale.limits, scale.outside(self.exact[part])
            if share:
                what = "its result" if part is value else f"operand '{self.references.key(part)}'"
                return f"{what} is saturated: {100 * share:.3g} % of the values lie outside {lo:.4g}..{hi:.4g}"
        return (
            f"its scale is coarse: a step of {step:.3g}, its range asks for {fitting:.3g}" if step > fitting else OTHER
        )

    def _narrowed(self, value: SSAValue) -> dict[str, int]:
        """The narrowed channels of all convolutions in the layer of `value`, by label."""
        node = value.owner
        if not isinstance(node, NodeOp) or node not in self.layers:
            return {}
        channels = self.lowering.narrowed.get(node, 0)
        narrowed = {self.lowering.labels[node]: channels} if channels else {}
        for operand in _read(node, self.layers[node]):
            narrowed |= {} if operand in self.exact else self._narrowed(operand)
        return narrowed

    def _operands(self, value: SSAValue) -> Iterator[SSAValue]:
        """The rounded values that the layer of `value` reads."""
        node = value.owner
        if isinstance(node, NodeOp) and node in self.layers:
            for operand in _read(node, self.layers[node]):
                yield from ([operand] if operand in self.exact else self._operands(operand))


def _read(node: NodeOp, layer: AnyLayer) -> Sequence[SSAValue]:
    return node.operands if isinstance(layer, AddLayer | MulLayer) else sources(node, layer)


def _computed(layer: AnyLayer, operands: Sequence[Doubles], weights: tuple[Doubles, Doubles] | None) -> Doubles:
    """A layer in float64. operands: [n, …], with four dims or more. weights: [k, c, r, s] and bias [k]."""
    x = operands[0]
    match layer:
        case ConvLayer():
            assert weights is not None
            return convolution(x, weights[0], layer.window) + weights[1].reshape(-1, 1, 1)
        case PoolLayer(kind="max"):
            # Padding is never the maximum. `fill` is an integer, so it is the next one below all values.
            return pool_values(x, replace(layer.window, fill=floor(x.min())), "max")
        case PoolLayer():
            return pool_values(x, layer.window, "sum") / np.outer(layer.rows, layer.cols)
        case AddLayer():
            return x + operands[1]
        case MulLayer():
            return x * operands[1]
        case ClampLayer():
            return np.clip(x, layer.lo, layer.hi)
        case FunctionLayer():
            return layer.reals(x).astype(np.float64)
        case LeakyLayer():
            return np.where(x < 0, x * layer.slope, x)
        case ConcatLayer():
            return np.concatenate(operands, axis=1)
        case SliceLayer():
            return x[:, layer.first : layer.first + layer.channels]
        case ShuffleLayer():
            return x.swapaxes(1, 2)
        case PixelsLayer():
            count = layer.block**2
            parts = [x[:, at::count] for at in range(count)] if layer.by_channel else np.split(x, count, axis=1)
            return pixels_in_turn(parts, layer.block, layer.block)
        case _:
            return x
