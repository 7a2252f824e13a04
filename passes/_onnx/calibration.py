"""Calibrated ranges on an `onnx` graph, and the integer scales that follow from them. No pass.

`cnncc.driver.calibrate` writes them and `onnx-to-cnn` reads them: `cnn.range` on arguments of `@main`, and
`cnn.ranges`, one per result, on nodes. In the place of a result without a range, as of integers, `unit` stands there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, OpResult, SSAValue

from cnncc.dialects.cnn import Quant, QuantAttr, Range, RangeAttr
from cnncc.errors import Refusal
from cnncc.main_function import main_function
from cnncc.numerics import Ints, quantise
from cnncc.passes._onnx.codes import BYTE_BITS, Codes
from cnncc.quant.split import activation_scale

ON_ARGUMENT = "cnn.range"
ON_NODE = "cnn.ranges"


@dataclass(frozen=True)
class Scale:
    """The integers lo..hi of a tensor: real = (integer - zero) * scale."""

    scale: float
    lo: int
    hi: int
    zero: int = 0

    @classmethod
    def of(cls, values: Range) -> Scale:
        """The scale at which the greatest magnitude of `values` is `top`."""
        return cls(activation_scale(max(abs(values.lo), abs(values.hi)), values.top), -values.top, values.top)

    @property
    def clamp(self) -> tuple[int, int]:
        """lo, hi."""
        return (self.lo, self.hi)

    @property
    def reach(self) -> int:
        """The greatest |integer - zero|."""
        return max(abs(self.lo - self.zero), abs(self.hi - self.zero))

    def integer(self, real: float) -> int:
        """The nearest integer to `real`; infinite quotients saturate."""
        return int(self.integers(np.array(real)))

    def integers(self, reals: npt.NDArray[np.floating]) -> Ints:
        """The nearest integers to `reals`."""
        return quantise(reals, self.scale, self.zero, self.lo, self.hi)

    def reals(self, integers: Ints) -> npt.NDArray[np.float64]:
        """The reals of `integers`."""
        return (integers.astype(np.float64) - self.zero) * self.scale

    @property
    def limits(self) -> tuple[float, float]:
        """The reals of lo and hi."""
        return (self.lo - self.zero) * self.scale, (self.hi - self.zero) * self.scale

    def outside(self, reals: npt.NDArray[np.floating]) -> float:
        """The share of `reals` that saturate: more than half a step from every integer."""
        (lo, hi), margin = self.limits, self.scale / 2
        return float(((reals < lo - margin) | (reals > hi + margin)).mean())

    def within(self, lo: float, hi: float) -> tuple[int, int]:
        """The integers for the bounds lo..hi of reals."""
        return (self.integer(lo), self.integer(hi))

    def attr(self, element: str) -> QuantAttr:
        """The attribute of a tensor whose reals are of type `element`."""
        return QuantAttr(Quant(self.scale, self.zero, self.clamp, element))


def _argument_attrs(func: FuncOp) -> list[dict[str, Attribute]]:
    count = len(func.body.block.args)
    return [dict(attrs.data) for attrs in func.arg_attrs] if func.arg_attrs else [{} for _ in range(count)]


def take_ranges(module: ModuleOp) -> dict[SSAValue, Range]:
    """The ranges that calibration wrote. They are removed from nodes: parts of the graph are exported to ONNX."""
    func = main_function(module)
    attributes: dict[SSAValue, Attribute] = {}
    for value, attrs in zip(func.body.block.args, _argument_attrs(func), strict=True):
        if ON_ARGUMENT in attrs:
            attributes[value] = attrs[ON_ARGUMENT]
    for op in func.body.block.ops:
        ranges = op.attributes.pop(ON_NODE, None)
        if isinstance(ranges, ArrayAttr):
            attributes.update(zip(op.results, ranges, strict=False))
    return {value: known.data for value, known in attributes.items() if isinstance(known, RangeAttr)}


def write_ranges(module: ModuleOp, ranges: Mapping[SSAValue, Range]) -> None:
    """Put `ranges` on the arguments of `module`, and on its nodes."""
    func = main_function(module)
    attrs = _argument_attrs(func)
    for value, known in ranges.items():
        match value:
            case BlockArgument():
                attrs[value.index][ON_ARGUMENT] = RangeAttr(known)
            case OpResult():
                known_ones = [ranges.get(result) for result in value.op.results]
                of_results = [RangeAttr(each) if each else UnitAttr() for each in known_ones]
                value.op.attributes[ON_NODE] = ArrayAttr(of_results)
            case _:
                pass
    func.arg_attrs = ArrayAttr([DictionaryAttr(known) for known in attrs])


def scale_of(codes: Codes, operand_bits: int) -> Scale:
    """The scale of words of `operand_bits` for the reals of `codes`. Raises Refusal for words below 8 bits."""
    if operand_bits < BYTE_BITS:
        raise Refusal(f"the model's codes have {BYTE_BITS} bits, operands have {operand_bits}")
    lo, hi = codes.range
    # Words are signed: unsigned codes do not fit 8 bits, but codes less 128 do.
    shift = 0 if codes.signed or operand_bits > BYTE_BITS else 1 << BYTE_BITS - 1
    return Scale(codes.scale, lo - shift, hi - shift, codes.zero - shift)
