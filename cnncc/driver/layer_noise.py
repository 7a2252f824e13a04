"""Each layer against float with exact operands: an error that the steps of its integers do not explain is a mistake.

The check does not trust the scales that quantisation chose, as every level below `cnn` does. A layer here is what
computes one value that is rounded: a convolution with the Relu and MaxPool after it, say. With

    error   mean square of its integer result less float's, where its operands are float's, quantised
    noise   mean square of what float makes of rounded operands and weights less what it makes of exact ones,
            plus step² / 12 for the result

it holds that error <= 4 · noise wherever numbers are only rounded: a rounded result is off by at most step / 2, and
(a + b)² <= 4 · (a² + b² / 3). What saturates, or has a coarser step than its own range asks for, exceeds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, inf

import numpy as np
from xdsl.ir import BlockArgument, SSAValue

from cnncc.dialects.cnn import HostOp, shape
from cnncc.dialects.onnx import NodeOp
from cnncc.driver.accuracy import References
from cnncc.eval.cnn import convolution, evaluate, pool_values, quantise_inputs
from cnncc.numerics import Ints
from cnncc.passes._onnx.builder import base_of, image_dims
from cnncc.passes._onnx.calibration import Scale
from cnncc.passes._onnx.layers import (
    AddLayer,
    ClampLayer,
    ConcatLayer,
    ConvLayer,
    LeakyLayer,
    PoolLayer,
    ShuffleLayer,
)
from cnncc.passes._onnx.quantised_layers import AnyLayer
from cnncc.passes._onnx.scale_groups import counts_alone, sources
from cnncc.quant.split import Doubles
from cnncc.weights import Array, WeightStore

LIMIT = 4  # times its noise: what a layer may err
OTHER = "no rounding explains it"
FLOAT_STEP = 2.0**-22  # of the largest magnitude: what float may err itself


@dataclass(frozen=True)
class LayerNoise:
    """A layer by the name of its result: mean squares of its error and of its noise, and why it errs more, or ''.

    narrowed: the channels with coarser weights than operands allow, so that psums hold their sums.
    """

    label: str
    error: float
    noise: float
    cause: str = ""
    narrowed: int = 0

    @property
    def text(self) -> str:
        """What is wrong, on a line."""
        return f"'{self.label}' errs by {self.error / self.noise:.3g} times what its steps explain: {self.cause}"


def layer_noise(references: References, store: WeightStore, inputs: Mapping[str, Array]) -> list[LayerNoise]:
    """All layers whose scales calibration chose, in the order of the network, for real inputs by name.

    The inputs are such as the network was calibrated with: other ones may saturate with good reason. Raises Refusal as
    `cnn.evaluate`.
    """
    return list(_Layers(references, store, inputs).measured())


class _Layers:
    """The values of an `onnx` graph that are rounded, each computed from the others as float has them."""

    def __init__(self, references: References, store: WeightStore, inputs: Mapping[str, Array]) -> None:
        self.references, self.lowering = references, references.lowering
        self.layers = self.lowering.placement.layers
        rounded = [v for v in references.values if v.owner not in self.layers or not self._is_inner(v)]
        self.exact = references.exact(rounded, inputs)
        self.given = {base_of(self.lowering.values[v]): self._quantised(v) for v in self.exact}
        quantised = quantise_inputs(self.lowering.module, inputs)
        _, self.trace = evaluate(self.lowering.module, store, quantised, given=self.given)

    def _is_inner(self, value: SSAValue) -> bool:
        """Is `value` not rounded for itself: do its integers, saturated or not, only go into another value?"""
        use = value.get_user_of_unique_use()
        if not isinstance(use, NodeOp) or not counts_alone(value, self.layers):
            return False
        return self.lowering.scales.get(use.results[0]) == self.lowering.scales[value]

    def _quantised(self, value: SSAValue) -> Ints:
        """What readers are given: the integers of float's `value`, in the shape that it has on the `cnn` level."""
        dims = shape(base_of(self.lowering.values[value]).type)
        return self.lowering.scales[value].integers(self.exact[value]).reshape(-1, *dims[1:])

    def measured(self) -> Iterator[LayerNoise]:
        seen: set[SSAValue] = set()
        for value in self.exact:
            if self._is_inner(value) or self.lowering.placement.known(value) is not None:
                continue  # what counts is another value, or the model states codes: it may saturate
            if (lowered := base_of(self.lowering.values[value])) in seen:
                continue  # it is another value in another shape
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
        """Of the operands of the layer that computes `value`, and of its result."""
        step, peak = min(self.lowering.scales[value].scale, self._fitting(value)), np.abs(self.exact[value]).max()
        own = step**2 / 12 + (FLOAT_STEP * float(peak)) ** 2
        if value.owner not in self.layers:
            return own
        moved = self._real(value, rounded=True) - self._real(value, rounded=False)
        return own + float(np.square(moved).mean())

    def _fitting(self, value: SSAValue) -> float:
        """The step that the calibrated range of `value` asks for."""
        known = self.lowering.ranges.get(value)
        return Scale.of(known).scale if known else inf

    # What float makes of the operands of a layer.

    def _real(self, value: SSAValue, *, rounded: bool) -> Doubles:
        """`value` of operands that are exact, or rounded to their steps but not saturated, and such weights."""
        node = value.owner
        assert isinstance(node, NodeOp)
        layer = self.layers[node]
        operands = [self._operand(each, rounded=rounded) for each in _read(node, layer)]
        weights = self._weights(node, layer, rounded=rounded) if isinstance(layer, ConvLayer) else None
        return _computed(layer, operands, weights).reshape(-1, *shape(value.type)[1:])

    def _operand(self, value: SSAValue, *, rounded: bool) -> Doubles:
        if value not in self.exact:
            found = self._real(value, rounded=rounded)
        else:
            found, step = self.exact[value].astype(np.float64), self.lowering.scales[value].scale
            found = np.rint(found / step) * step if rounded else found
        dims = shape(value.type)
        return found.reshape(-1, *(image_dims(dims) if len(dims) < 4 else dims)[1:])

    def _weights(self, node: NodeOp, layer: ConvLayer, *, rounded: bool) -> tuple[Doubles, Doubles]:
        """Weights [k, c, r, s] and bias [k]."""
        weights, bias = layer.weights.astype(np.float64), layer.bias.astype(np.float64)
        if not rounded:
            return weights, bias
        steps = self.lowering.weight_scales[node].astype(np.float64)
        of_bias, of_weights = steps * self.lowering.scales[node.operands[0]].scale, steps.reshape(-1, 1, 1, 1)
        return np.rint(weights / of_weights) * of_weights, np.rint(bias / of_bias) * of_bias

    # Why a layer errs.

    def _cause(self, value: SSAValue) -> str:
        step, fitting = self.lowering.scales[value].scale, self._fitting(value)
        for each in (*self._operands(value), value):
            (lo, hi), share = self.lowering.scales[each].limits, self.lowering.scales[each].outside(self.exact[each])
            if share:
                what = (
                    "its result is saturated"
                    if each is value
                    else f"operand '{self.references.key(each)}' is saturated"
                )
                return f"{what}: {100 * share:.3g} % of the values lie outside {lo:.4g}..{hi:.4g}"
        return (
            f"its scale is coarse: a step of {step:.3g}, its range asks for {fitting:.3g}" if step > fitting else OTHER
        )

    def _narrowed(self, value: SSAValue) -> int:
        """The narrowed channels of all convolutions in the layer of `value`."""
        node = value.owner
        if not isinstance(node, NodeOp) or node not in self.layers:
            return 0
        inner = (each for each in _read(node, self.layers[node]) if each not in self.exact)
        return self.lowering.narrowed.get(node, 0) + sum(map(self._narrowed, inner))

    def _operands(self, value: SSAValue) -> Iterator[SSAValue]:
        """The rounded values that the layer of `value` reads."""
        node = value.owner
        if isinstance(node, NodeOp) and node in self.layers:
            for each in _read(node, self.layers[node]):
                yield from ([each] if each in self.exact else self._operands(each))


def _read(node: NodeOp, layer: AnyLayer) -> Sequence[SSAValue]:
    return node.operands if isinstance(layer, AddLayer) else sources(node, layer)


def _computed(layer: AnyLayer, operands: Sequence[Doubles], weights: tuple[Doubles, Doubles] | None) -> Doubles:
    """A layer in float64. operands: [n, …], images where they have fewer dims; weights [k, c, r, s] and bias [k]."""
    x = operands[0]
    match layer:
        case ConvLayer():
            assert weights is not None
            return convolution(x, weights[0], layer.window) + weights[1].reshape(-1, 1, 1)
        case PoolLayer(kind="max"):
            return pool_values(x, replace(layer.window, fill=floor(x.min())), "max")
        case PoolLayer():
            return pool_values(x, layer.window, "sum") / np.outer(layer.rows, layer.cols)
        case AddLayer():
            return x + operands[1]
        case ClampLayer():
            return np.clip(x, layer.lo, layer.hi)
        case LeakyLayer():
            return np.where(x < 0, x * layer.slope, x)
        case ConcatLayer():
            return np.concatenate(operands, axis=1)
        case ShuffleLayer():
            return x.swapaxes(1, 2)
        case _:
            return x
