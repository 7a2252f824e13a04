"""Simple ops are verified as xDSL verifies all ops: the same are wrong, for the same reasons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects import test
from xdsl.dialects.builtin import UnitAttr, f32
from xdsl.ir import Block, Operation, Region
from xdsl.irdl import OpDef
from xdsl.utils.exceptions import VerifyException

from cnncc.arch.model import load_arch
from cnncc.dialects._verifiers import _SimpleOpDef
from cnncc.driver.pipeline import Settings, import_model

pytestmark = pytest.mark.usefixtures("short_searches")

MODEL = Path(__file__).resolve().parents[1] / "samples" / "models" / "lenet.onnx"


@pytest.fixture(scope="module")
def simple_ops() -> dict[str, Operation]:
    """An op of each simple kind that a compilation has at any level."""
    ops: dict[str, Operation] = {}

    def look(_: Any, module: Operation) -> None:
        for op in module.clone().walk():  # another use of a value would change what the next pass does
            if isinstance(op.get_irdl_definition(), _SimpleOpDef):
                ops.setdefault(op.name, op)

    import_model(MODEL, None, Settings(load_arch("spatial-8x8"), "spatial-8x8", 16)).run("isa", [look])
    return ops


def broken(op: Operation) -> Iterator[Operation]:
    """Copies of an op, each with one thing that is wrong; some may be right."""
    value = test.TestOp(result_types=[f32]).results[0]
    for name in op.properties:
        wrong = op.clone()
        del wrong.properties[name]
        yield wrong
        for other in (UnitAttr(), f32, *op.properties.values()):
            wrong = op.clone()
            wrong.properties[name] = other
            yield wrong
    for where in ("properties", "attributes"):
        wrong = op.clone()
        getattr(wrong, where)["other"] = UnitAttr()
        yield wrong
    for operands in (op.operands[1:], [*op.operands, value], [value for _ in op.operands]):
        wrong = op.clone()
        wrong.operands = operands
        yield wrong
    results = [result.type for result in op.results]
    for types in (results[1:], [*results, f32], [f32 for _ in results]):
        regions = [region.clone() for region in op.regions]
        yield type(op).create(operands=op.operands, result_types=types, properties=op.properties, regions=regions)
    wrong = op.clone()
    wrong.add_region(Region(Block()))
    yield wrong
    if op.regions:
        for blocks in ([], [Block(), Block()], [Block(arg_types=[f32])]):
            wrong = op.clone()
            wrong.detach_region(wrong.regions[0])
            wrong.add_region(Region(blocks))
            yield wrong


def problem(definition: OpDef, op: Operation) -> str:
    """What the definition's verifier says, or xDSL's."""
    try:
        definition.verify(op)
    except VerifyException as error:
        return str(error)
    return ""


def test_simple_ops_are_verified_as_others(simple_ops: dict[str, Operation]) -> None:
    assert {"weights.global", "array.view", "isa.inst", "nest.stage", "nest.for", "cnn.requant"} <= simple_ops.keys()
    for op in simple_ops.values():
        definition = op.get_irdl_definition()
        usual = OpDef(**{name: getattr(definition, name) for name in OpDef.__dataclass_fields__})
        assert not problem(definition, op) and not problem(usual, op)
        each = list(broken(op))
        problems = [problem(usual, wrong) for wrong in each]
        assert problems == [problem(definition, wrong) for wrong in each]
        assert len(set(problems)) > 3
