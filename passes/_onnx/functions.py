"""Functions of single numbers, as tables of the output units: Sigmoid, Tanh, SiLU and others. No pass.

onnxruntime computes the entries, by the node itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp

from cnncc.dialects.onnx import NodeOp
from cnncc.frontend.export_onnx import export_nodes
from cnncc.frontend.run_onnx import OnnxSession
from cnncc.numerics import SEGMENTS, Floats, Ints, dequantise, integer_range
from cnncc.passes._onnx.calibration import Scale
from cnncc.passes._onnx.codes import Codes
from cnncc.passes._onnx.windows import require
from cnncc.weights import WeightStore

if TYPE_CHECKING:
    from onnx import ModelProto

Doubles = npt.NDArray[np.float64]
INT16 = integer_range(16)
LEAST_STEPS = 8  # of entries to a kink: with fewer of them a scale would be coarser by more than an eighth


@dataclass(frozen=True)
class FunctionLayer:
    """A function of each number by itself.

    model: its node alone, of a tensor of any shape. kinks: it has kinks at this real and at minus this; 0: it has none.
    """

    model: bytes
    kinks: float = field(default=0.0, kw_only=True)

    def values(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The function of an array of any shape, of the node's own types, as onnxruntime computes it."""
        from onnx import ModelProto

        model = ModelProto.FromString(self.model)
        (result,) = OnnxSession(model).run({model.graph.input[0].name: x})
        return np.asarray(result)

    def reals(self, x: npt.NDArray[np.floating]) -> Floats:
        """The function of reals, in f32."""
        return self.values(x.astype(np.float32))

    def operand(self, x: Scale) -> Scale:
        """The scale x, or one a little coarser, at which a table has entries at the kinks."""
        step = 1 << _shift(x.hi - x.lo)
        steps = int(self.kinks / (x.scale * step))  # of entries from 0 to a kink
        if step == 1 or x.zero or steps < LEAST_STEPS:
            return x
        return replace(x, scale=self.kinks / (steps * step))

    def words(self, x: Scale, y: Scale) -> tuple[Ints, Doubles]:
        """The word at scale y for each word at scale x, from the least on; and likewise before it is rounded.

        The word is sat(rne(f(real) / scale) + zero), each step in f32, as ONNX QuantizeLinear computes it.
        """
        reals = self.reals(dequantise(np.arange(x.lo, x.hi + 1), x.scale, x.zero))
        with np.errstate(over="ignore", invalid="ignore"):
            exact = reals.astype(np.float64) / y.scale + y.zero
        return y.integers(reals), np.nan_to_num(exact, nan=y.lo).clip(y.lo, y.hi)


@dataclass(frozen=True)
class CodeFunctionLayer(FunctionLayer):
    """A function of codes of the model, such as QLinearSigmoid."""

    x: Codes
    y: Codes

    def words(self, x: Scale, y: Scale) -> tuple[Ints, Doubles]:
        """A word is a code, or one less 128."""
        codes = self.values(self.x.every.astype(self.x.element)).astype(np.int64)
        words = codes + (y.lo - self.y.range[0])
        return words, words.astype(np.float64)


def read_function(node: NodeOp, store: WeightStore) -> FunctionLayer:
    """Any shape. Each code, or word of 8 bits, has its result; words of 16 bits have lines between 257 results."""
    require(len(node.own_operands) == 1, f"it has {len(node.own_operands)} inputs, not 1")
    kinks = 3.0 if node.is_op("HardSwish") else 0.0
    return FunctionLayer(model_of(node, store).SerializeToString(deterministic=True), kinks=kinks)


def model_of(node: NodeOp, store: WeightStore) -> ModelProto:
    """A node that computes each number by itself, as a model of a tensor of any shape."""
    module = node.get_toplevel_object()
    assert isinstance(module, ModuleOp)
    model = export_nodes([node], [node.operands[0]], [node.results[0]], module, store)
    del model.functions[:]  # of the whole network
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    return model


@dataclass(frozen=True)
class FunctionTable:
    """The entries i16[257] of a table, for every 2^shift-th integer from the first of `clamp` on.

    Beyond the clamp the function has the values of its ends.
    """

    clamp: tuple[int, int]
    shift: int
    entries: Ints


def function_table(layer: FunctionLayer, x: Scale, y: Scale) -> FunctionTable:
    """The table of a function, for words at scale x. Its values are words at scale y.

    Integers at both ends whose values are all the same need no entries, so that the others have more. Example: a
    Sigmoid of -32,767..32,767 with a scale of 0.003 is 0 below about -4,000, and 1 above about 4,000, in words of 16
    bits: every 32nd integer has an entry, not every 256th.
    """
    words, exact = layer.words(x, y)
    changes = np.flatnonzero(np.diff(words))
    first, last = (int(changes[0]), int(changes[-1]) + 1) if changes.size else (0, 0)
    if shift := _shift(last - first):
        # Some functions have a kink at 0, where an entry should be.
        first = max(0, first - (first - (x.zero - x.lo)) % (1 << shift))
        shift = _shift(last - first)
    entries = _fitted(exact[first : last + 1], shift, y) if shift else words[first : last + 1]
    entries = np.append(entries, np.repeat(entries[-1], SEGMENTS + 1 - entries.size))
    return FunctionTable((x.lo + first, x.lo + last), shift, entries)


def _shift(integers: int) -> int:
    """The shift of a table that reaches so many integers beyond its first."""
    return max(0, (integers - 1) // SEGMENTS).bit_length()


def _fitted(values: Doubles, shift: int, y: Scale) -> Ints:
    """Entries for every 2^shift-th of some values, and one behind the last of them if that has none.

    The lines between them have the least squares of the distances from the values. They stay within the words of y.
    """
    step, distance = 1 << shift, np.arange(values.size)
    first, share = distance >> shift, distance % step / step
    count = int(-(-distance[-1] // step)) + 1

    def sums(lower: Doubles, upper: Doubles) -> Doubles:
        """Of each entry: over the values after it and over those before it."""
        of_both = np.bincount(first, lower, count)[:count] + np.bincount(first + 1, upper, count)[:count]
        return of_both.astype(np.float64)

    square, beside = sums((1 - share) ** 2, share**2), np.bincount(first, share * (1 - share), count)
    wanted = sums((1 - share) * values, share * values)
    # The normal equations have three diagonals: beside[i - 1], square[i], beside[i].
    for i in range(1, count):
        factor = beside[i - 1] / square[i - 1]
        square[i] -= factor * beside[i - 1]
        wanted[i] -= factor * wanted[i - 1]
    fitted = np.zeros(count + 1)
    for i in reversed(range(count)):
        fitted[i] = (wanted[i] - beside[i] * fitted[i + 1]) / square[i]
    entries = np.rint(fitted[:count]).astype(np.int64)
    entries[:-1] = entries[:-1].clip(y.lo, y.hi)
    # The last value may lie between two entries: it bounds the one behind it.
    before, of_last = int(entries[-2]), int(distance[-1]) - (count - 2) * step
    least, most = (before + int((bound - before) * step / of_last) for bound in (y.lo, y.hi))
    entries[-1] = entries[-1].clip(max(least, INT16[0]), min(most, INT16[1]))
    return entries
