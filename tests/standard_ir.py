"""Runs `@main` of a module in standard dialects, on small sizes: apart from cnncc, which it does not import.

The module is parsed by xDSL with no other dialects known, and written anew as Python: an operation a line. Stricter
than a compiler: it raises for an index outside a memref, for memory that is read before it is written, used after its
release, or never released, for a store to a constant, for a float that its integer type does not hold. Iterations of
`scf.parallel` run backwards, and every rounding is exact.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects import arith, builtin, func, memref, scf
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerType, MemRefType, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.parser import Parser

DIALECTS = (builtin.Builtin, func.Func, scf.Scf, arith.Arith, memref.MemRef, math_dialect.Math)
NESTED = 12  # loops inside one Python function: Python takes 20
F32_MAX = 2.0**128 - 2.0**104
F32_OVERFLOW = 2**128 - 2**103  # from here on the nearest f32 is infinity


def parse(text: str) -> ModuleOp:
    """The verified module of `text`; a ParseError for any other dialect."""
    ctx = Context()
    for dialect in DIALECTS:
        ctx.load_dialect(dialect)
    module = Parser(ctx, text).parse_module()
    module.verify()
    return module


def f32(value: float) -> float:
    """The nearest f32 of an f64."""
    return ctypes.c_float(value).value


def exact_f32(value: Fraction) -> float:
    """The nearest f32 of any number, half to even."""
    near = f32(float(value))
    if math.isinf(near):
        return near if abs(value) >= F32_OVERFLOW else math.copysign(F32_MAX, near)
    around = [float(np.nextafter(np.float32(near), np.float32(way))) for way in (-F32_MAX, F32_MAX)]
    return min((near, *around), key=lambda x: (abs(Fraction(x) - value), int(np.float32(x).view(np.int32)) & 1))


def int_to_f32(value: int) -> float:
    return f32(value) if abs(value) <= 1 << 53 else exact_f32(Fraction(value))


def fma(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    return exact_f32(Fraction(a) * Fraction(b) + Fraction(c))


def round_even(value: float) -> float:
    return float(round(value)) if math.isfinite(value) else value


def number_of(pick: Callable[..., float]) -> Callable[[float, float], float]:
    """maxnumf, minnumf: NaN only where both are."""
    return lambda a, b: b if math.isnan(a) else a if math.isnan(b) else pick(a, b)


def to_int(value: float, bits: int) -> int:
    result = int(value)
    assert -(1 << bits - 1) <= result < 1 << bits - 1, f"{value} is no i{bits}"
    return result


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def bits(value: SSAValue) -> int:
    return value.type.width.data if isinstance(value.type, IntegerType) else 64


INTEGER = {
    arith.AddiOp: "{} + {}",
    arith.SubiOp: "{} - {}",
    arith.MuliOp: "{} * {}",
    arith.AndIOp: "{} & {}",
    arith.DivSIOp: "quotient({}, {})",
    arith.RemSIOp: "{0} - quotient({0}, {1}) * {1}",
    arith.TruncIOp: "{}",
}
PLAIN = {
    arith.ExtSIOp: "{}",
    arith.IndexCastOp: "{}",
    arith.ShRSIOp: "{} >> {}",
    arith.MaxSIOp: "max({}, {})",
    arith.MinSIOp: "min({}, {})",
    arith.SelectOp: "{1} if {0} else {2}",
    arith.SIToFPOp: "int_to_f32({})",
    arith.ExtFOp: "{}",
    arith.MaxnumfOp: "max_number({}, {})",
    arith.MinnumfOp: "min_number({}, {})",
    math_dialect.FmaOp: "fma({}, {}, {})",
    math_dialect.RoundEvenOp: "round_even({})",
}
FLOAT = {arith.MulfOp: "{} * {}", arith.AddfOp: "{} + {}", arith.SubfOp: "{} - {}"}
LIBRARY: dict[str, Any] = {
    "f32": f32, "int_to_f32": int_to_f32, "fma": fma, "round_even": round_even, "to_int": to_int, "quotient": quotient,
    "max_number": number_of(max), "min_number": number_of(min),
}  # fmt: skip


class Program:
    """`@main` as a Python function."""

    def __init__(self, text: str) -> None:
        module = parse(text)
        self.main = next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main")
        self.constants: dict[str, tuple[float, ...]] = {}
        for op in module.ops:
            if isinstance(op, memref.GlobalOp):
                assert isinstance(op.initial_value, DenseIntOrFPElementsAttr)
                values, size = tuple(op.initial_value.get_values()), math.prod(op.type.get_shape())
                self.constants[op.sym_name.data] = values * size if len(values) == 1 else values
        self.names: dict[SSAValue, str] = {}
        self.lines: list[str] = []
        arguments = ", ".join(map(self.name, self.main.body.block.args))
        self.line(0, f"def main({arguments}):")
        self.block(self.main.body.block, 1, 0)
        scope = LIBRARY | {"constants": self.constants, "live": (live := [])}
        exec("\n".join(self.lines), scope)
        self.function, self.live = scope["main"], live

    def run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """What `@main` writes into the arguments after `inputs`."""
        types = [argument.type for argument in self.main.body.block.args]
        assert [list(each.shape) for each in inputs] == [list(kind.get_shape()) for kind in types[: len(inputs)]]
        outputs = [[None] * math.prod(kind.get_shape()) for kind in types[len(inputs) :]]
        self.function(*[each.ravel().tolist() for each in inputs], *outputs)
        assert not any(self.live), "memory was never released"
        return [
            np.array(values, np.int64).reshape(kind.get_shape())
            for values, kind in zip(outputs, types[len(inputs) :], strict=True)
        ]

    def name(self, value: SSAValue) -> str:
        return self.names.setdefault(value, f"v{len(self.names)}")

    def line(self, depth: int, text: str) -> None:
        self.lines.append(" " * depth + text)

    def block(self, block: Block, depth: int, loops: int) -> None:
        """The lines of a body; one with many loops around it becomes a function of its own."""
        if loops == NESTED:
            self.line(depth, "def body():")
            self.block(block, depth + 1, 0)
            self.line(depth, "body()")
            return
        self.line(depth, "pass")
        for op in block.ops:
            self.operation(op, depth, loops)

    def place(self, of: SSAValue, at: Sequence[SSAValue], depth: int) -> str:
        """An element of the list that holds a memref, its indices checked."""
        assert isinstance(of.type, MemRefType)
        shape = of.type.get_shape()
        flat, checks = [], []
        for dim, index in enumerate(at):
            name = self.name(index)
            flat.append(f"{name} * {math.prod(shape[dim + 1 :])}")
            checks.append(f"0 <= {name} < {shape[dim]}")
        if checks:
            self.line(depth, f"if not ({' and '.join(checks)}): raise IndexError('outside {of.type}')")
        return f"{self.name(of)}[{' + '.join(flat) or 0}]"

    def operation(self, op: Operation, depth: int, loops: int) -> None:
        args = [self.name(value) for value in op.operands]
        result = self.name(op.results[0]) if op.results else ""
        match op:
            case scf.ForOp():
                self.line(depth, f"for {self.name(op.body.block.args[0])} in range({', '.join(args)}):")
                self.block(op.body.block, depth + 1, loops + 1)
            case scf.ParallelOp():
                assert len(args) == 3
                self.line(depth, f"for {self.name(op.body.block.args[0])} in reversed(range({', '.join(args)})):")
                self.block(op.body.block, depth + 1, loops + 1)
            case scf.IfOp():
                for word, region in ((f"if {args[0]}:", op.true_region), ("else:", op.false_region)):
                    self.line(depth, word)
                    self.block(region.block, depth + 1, loops)
                    assert isinstance(last := region.block.last_op, scf.YieldOp)
                    self.line(depth + 1, f"{result} = {self.name(last.operands[0])}")
            case scf.YieldOp() | scf.ReduceOp() | func.ReturnOp():
                pass
            case memref.GetGlobalOp():
                self.line(depth, f"{result} = constants[{op.name_.string_value()!r}]")
            case memref.AllocOp():
                self.line(depth, f"{result} = [None] * {math.prod(op.memref.type.get_shape())}; live.append({result})")
            case memref.DeallocOp():
                self.line(depth, f"{args[0]}.clear()")
            case memref.CopyOp():
                assert op.source.type == op.destination.type
                self.line(depth, f"{args[1]}[:] = {args[0]}")
            case memref.ReinterpretCastOp():
                assert op.static_offsets.get_values() == (0,)
                shape = op.result.type.get_shape()
                assert op.static_strides.get_values() == tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
                self.line(depth, f"{result} = {args[0]}")
            case memref.LoadOp():
                self.line(depth, f"{result} = {self.place(op.memref, op.indices, depth)}")
            case memref.StoreOp():
                self.line(depth, f"{self.place(op.memref, op.indices, depth)} = {args[0]}")
            case arith.ConstantOp():
                self.line(depth, f"{result} = {op.value.value.data!r}")
            case arith.CmpiOp():
                assert op.predicate.value.data == 6, "of the predicates ult alone is known"
                mask = (1 << bits(op.lhs)) - 1
                self.line(depth, f"{result} = {args[0]} & {mask} < {args[1]} & {mask}")
            case arith.CmpfOp():
                assert op.predicate.value.data == 4, "of the predicates olt alone is known"
                self.line(depth, f"{result} = {args[0]} < {args[1]}")
            case arith.FPToSIOp():
                self.line(depth, f"{result} = to_int({args[0]}, {bits(op.result)})")
            case _:
                self.line(depth, f"{result} = {self.value(op, args)}")

    def value(self, op: Operation, args: list[str]) -> str:
        """The expression of an operation without memory or regions. Raises KeyError for one that is not known."""
        if type(op) in INTEGER:
            half, text = 1 << bits(op.results[0]) - 1, INTEGER[type(op)].format(*args)
            if bits(op.results[0]) in (1, 64):  # booleans; no index comes near 64 bits
                return text
            return f"({text} + {half} & {2 * half - 1}) - {half}"
        if type(op) in FLOAT:
            assert op.fastmath.data == arith.FastMathFlagsAttr("none").data
            text = FLOAT[type(op)].format(*args)
            return f"f32({text})" if op.results[0].type == builtin.f32 else text
        return PLAIN[type(op)].format(*args)
