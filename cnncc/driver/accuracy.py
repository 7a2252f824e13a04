"""The accuracy lost by quantisation: the outputs, and every value before them, against the float network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import BlockArgument, OpResult, SSAValue

from cnncc.dialects.cnn import HostOp, shape, value_key
from cnncc.dialects.onnx import NodeOp
from cnncc.eval.cnn import joined
from cnncc.eval.onnx import Evaluator
from cnncc.main_function import input_names, main_arguments
from cnncc.passes._onnx.builder import base_of
from cnncc.passes._onnx.layers import is_tensor_of
from cnncc.passes._onnx.lowering import lower
from cnncc.passes._onnx.scale_groups import leaky_after, saturates_at_reader
from cnncc.weights import Array, WeightStore

Values = Mapping[str, Array]


@dataclass(frozen=True)
class Accuracy:
    """An output of the quantised network against float: SQNR in dB, greatest error, share of equal argmax."""

    output: str
    sqnr_db: float
    max_error: float
    top1_agreement: float


def accuracy(name: str, exact: Array, got: Array) -> Accuracy:
    """The accuracy of `got` against `exact` (both real, [n, …]; [] of one image that has a single number)."""
    reference = np.atleast_1d(np.asarray(exact, np.float64))
    error = np.asarray(got, np.float64) - reference
    if not reference.size:
        return Accuracy(name, sqnr_db(reference, error), 0.0, 1.0)
    rows = (reference.reshape(len(reference), -1), np.asarray(got).reshape(len(reference), -1))
    agree = float((rows[0].argmax(axis=1) == rows[1].argmax(axis=1)).mean())
    return Accuracy(name, sqnr_db(reference, error), float(np.abs(error).max()), agree)


def sqnr_db(exact: Array, error: Array) -> float:
    """The power of `exact` over the power of `error` in dB: inf without error, -inf if `exact` is all zeros."""
    signal, noise = float(np.square(exact, dtype=np.float64).sum()), float(np.square(error, dtype=np.float64).sum())
    if noise == 0:
        return float("inf")
    return 10 * float(np.log10(signal / noise)) if signal else float("-inf")


@dataclass(frozen=True)
class LayerAccuracy:
    """A value of the network by its key: its SQNR in dB, and its loss against the worst of its source values.

    - drop_db: the loss, 0 for an input of the network. An exact source value counts as the most accurate one that is
      not exact.
    - beyond: the share of float values that saturate. It is 0 if only a later value matters: a Conv before its only
      reader, a Relu.
    """

    label: str
    sqnr_db: float
    drop_db: float
    beyond: float = 0.0


class References:
    """The float values of a calibrated `onnx` module, and the scales of the integers that represent them.

    Values are those of `lowering`, the module's lowering to `cnn`, without values that are integers in the graph.
    """

    def __init__(self, module: ModuleOp, store: WeightStore, bits: tuple[int, int]) -> None:
        """bits: of operands and psums. Raises Refusal as `onnx-to-cnn`."""
        own_of: dict[SSAValue, SSAValue] = {}
        self.lowering = lower(module.clone(own_of), store, *bits)
        everything = [
            *main_arguments(module),
            *(v for op in module.walk() if isinstance(op, NodeOp) for v in op.results),
        ]
        self._module, self._store = module, store
        self._original = {
            own_of[v]: v for v in everything if own_of[v] in self.lowering.scales and is_tensor_of(v, f32)
        }
        self.values: Sequence[SSAValue] = list(self._original)

    def exact(self, values: Iterable[SSAValue], inputs: Values) -> dict[SSAValue, Array]:
        """The float results of some of the values, [n, …]."""
        wanted = list(values)
        originals = [self._original[value] for value in wanted]
        return dict(zip(wanted, run_floats(self._module, self._store, inputs, originals), strict=True))

    def key(self, value: SSAValue) -> str:
        """The key of `value` in a trace of the `cnn` level; the empty string if it has none."""
        match base_of(self.lowering.values[value]):
            case BlockArgument(index=index):
                return f"input {value.name_hint or index}"
            case OpResult(op=HostOp() as op, index=index) if len(op.outputs) > 1:
                return f"{value_key(op)}.{index}"
            case OpResult(op=op):
                return value_key(op) or ""
            case _:
                return ""

    def _counts(self, value: SSAValue) -> bool:
        """Whether `value` must not saturate. It may if the model states its integers or only a later value counts."""
        placement = self.lowering.placement
        stated = value.owner in placement.layers and placement.known(value) is not None
        return not stated and not saturates_at_reader(value, placement.layers)

    def measured(self, trace: Values, inputs: Values, quantised: Sequence[Array]) -> list[LayerAccuracy]:
        """The accuracy of the values in `trace`, in the network's order. inputs: reals. quantised: their integers."""
        first: dict[str, SSAValue] = {}  # values with the same integers, as after a Reshape, count once
        for value in self.values:
            if leaky_after(value, self.lowering.placement.layers) is None:  # its integers are those of the LeakyRelu
                first.setdefault(self.key(value), value)
        known = {value: trace[key] for key, value in first.items() if key in trace}
        known |= {value: quantised[value.index] for value in first.values() if isinstance(value, BlockArgument)}
        sqnrs, saturated = dict[SSAValue, float](), dict[SSAValue, float]()
        for value, exact in self.exact((value for value in first.values() if value in known), inputs).items():
            scale = self.lowering.scales[value]
            saturated[value] = scale.outside(exact) if self._counts(value) else 0.0
            if _is_read_as_codes(value):  # the model itself rounds and clamps it
                exact = scale.reals(scale.integers(exact)).astype(np.float32)
            got = scale.reals(np.asarray(known[value])).reshape(exact.shape)
            sqnrs[value] = sqnr_db(exact, got.astype(np.float32) - exact)  # f32 as onnxruntime's
        most = max(filter(isfinite, sqnrs.values()), default=0.0)
        return [
            LayerAccuracy(self.key(value), sqnr, _drop(sqnr, _sources(value, sqnrs), most), saturated[value])
            for value, sqnr in sqnrs.items()
        ]


def greatest_drop(layers: Sequence[LayerAccuracy]) -> LayerAccuracy | None:
    """The value with the greatest drop; None without any."""
    return max(layers, key=lambda layer: layer.drop_db, default=None)


def run_floats(module: ModuleOp, store: WeightStore, inputs: Values, values: Sequence[SSAValue]) -> list[Array]:
    """The float results of some `values` of an `onnx` module, computed in batches of the model's size."""
    names, sizes = input_names(module), [shape(value.type)[0] for value in main_arguments(module)]
    session = Evaluator(module, store, values)
    runs = [
        session.run({name: inputs[name][i * size : (i + 1) * size] for name, size in zip(names, sizes, strict=True)})
        for i in range(len(inputs[names[0]]) // sizes[0])
    ]
    return [joined([run[i] for run in runs]) for i in range(len(values))]


def _is_read_as_codes(value: SSAValue) -> bool:
    """Whether QuantizeLinear alone reads `value`."""
    readers = [use.operation for use in value.uses]
    return bool(readers) and all(isinstance(op, NodeOp) and op.is_op("QuantizeLinear") for op in readers)


def _drop(sqnr: float, sources: Iterable[float], most: float) -> float:
    """The loss against the worst source. Exact ones count as the most accurate value that is not: a loss is finite."""
    worst = min(sources, default=sqnr)
    return 0.0 if worst == sqnr else min(worst, most) - sqnr


def _sources(value: SSAValue, sqnrs: Mapping[SSAValue, float]) -> Iterator[float]:
    """The SQNR of the nearest measured values before `value`."""
    pending, seen = [value], {value}
    while pending:
        owner = pending.pop().owner
        operands = dict.fromkeys(owner.operands) if isinstance(owner, NodeOp) else {}
        yield from (sqnrs[operand] for operand in operands if operand in sqnrs)
        fresh = [operand for operand in operands if operand not in sqnrs and operand not in seen]
        seen.update(fresh)
        pending += fresh
