"""The evaluator of standard dialects is strict and exact."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from standard_ir import Program, exact_f32, fma, parse


def test_standard_evaluator_is_strict() -> None:
    def ran(body: str) -> list[np.ndarray]:
        return Program(f"func.func @main(%x : memref<2xi8>, %y : memref<2xi8>) {{ {body} func.return }}").run(
            np.array([100, -1])
        )

    constants = "%c0 = arith.constant 0 : index %c1 = arith.constant 1 : index %c2 = arith.constant 2 : index "
    load = "%a = memref.load %x[%c0] : memref<2xi8> %b = memref.load %x[%c1] : memref<2xi8> "
    both = "memref.store %c, %y[%c0] : memref<2xi8> memref.store %c, %y[%c1] : memref<2xi8> "
    assert ran(f"{constants} {load} %c = arith.addi %a, %a : i8 {both}")[0].tolist() == [-56, -56]
    with pytest.raises(IndexError, match="outside"):
        ran(f"{constants} %c = memref.load %x[%c2] : memref<2xi8>")
    with pytest.raises(TypeError, match="NoneType"):
        ran(f"{constants} {load} %n = memref.load %y[%c0] : memref<2xi8> %c = arith.addi %a, %n : i8 {both}")
    with pytest.raises(AssertionError, match="never released"):
        ran(f"{constants} {load} %m = memref.alloc() : memref<1xi8> %c = arith.addi %a, %b : i8 {both}")
    with pytest.raises(IndexError):
        ran(f"{constants} %m = memref.alloc() : memref<2xi8> memref.dealloc %m : memref<2xi8> "
            f"%c = memref.load %m[%c0] : memref<2xi8> {both}")  # fmt: skip
    with pytest.raises(Exception, match="nest.mac"):
        parse("nest.mac")


def test_standard_evaluator_rounds_exactly() -> None:
    rng = np.random.default_rng(5)
    numbers = rng.standard_normal(300) * 2.0 ** rng.integers(-150, 126, 300)
    assert [exact_f32(Fraction(x)) for x in numbers.tolist()] == numbers.astype(np.float32).tolist()
    assert fma(4097.0, 1 + 2**-12, -4095.5) == 2.5 + 2**-12
    assert exact_f32(Fraction(2) ** 24 + 1) == 2.0**24 and exact_f32(Fraction(2) ** 24 + 3) == 2.0**24 + 4
    assert exact_f32(Fraction(1 << 128)) == float("inf")
    assert exact_f32(Fraction((1 << 128) - (1 << 103) - 1)) == float(np.finfo(np.float32).max)
