"""Simple ops are verified as xDSL verifies all ops: the same are wrong, for the same reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects import func, test
from xdsl.dialects.builtin import ModuleOp, UnitAttr, f32
from xdsl.ir import Block, Operation, Region
from xdsl.irdl import OpDef
from xdsl.utils.exceptions import VerifyException

from cnncc.arch.model import load_arch
from cnncc.dialects._verifiers import _SimpleOpDef, verify
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


def network() -> tuple[ModuleOp, func.FuncOp, test.TestOp]:
    """A module with a function, whose first op has a region of one op."""
    inner = test.TestOp(result_types=[f32])
    outer = test.TestOp(inner.results, regions=[Region(Block([test.TestOp(result_types=[f32]), test.TestTermOp()]))])
    function = func.FuncOp("main", ([], []), Region(Block([inner, outer, func.ReturnOp()])))
    return ModuleOp([function]), function, outer


def no_terminator(function: func.FuncOp, outer: test.TestOp) -> None:
    del outer
    last = function.body.block.last_op
    assert last
    last.detach()


def empty_block(function: func.FuncOp, outer: test.TestOp) -> None:
    del function
    for op in outer.regions[0].block.ops:
        op.detach()


def no_terminator_of_one_block(function: func.FuncOp, outer: test.TestOp) -> None:
    del function
    outer.regions[0].add_block(Block([test.TestOp()]))


def erased_operand(function: func.FuncOp, outer: test.TestOp) -> None:
    del outer
    first = function.body.block.first_op
    assert first
    first.results[0].erase(safe_erase=False)


def parent_of_an_op(function: func.FuncOp, outer: test.TestOp) -> None:
    del function
    outer.parent = None


def parent_of_a_block(function: func.FuncOp, outer: test.TestOp) -> None:
    outer.regions[0].block.parent = function.body


def wrong_op(function: func.FuncOp, outer: test.TestOp) -> None:
    del function
    outer.regions[0].block.insert_op_before(func.CallOp.create(), outer.regions[0].block.first_op)


def wrong_successor(function: func.FuncOp, outer: test.TestOp) -> None:
    block = outer.regions[0].block
    assert block.last_op
    block.last_op.successors = [function.body.block]


BREAKS = (
    no_terminator,
    empty_block,
    no_terminator_of_one_block,
    erased_operand,
    parent_of_an_op,
    parent_of_a_block,
    wrong_op,
    wrong_successor,
)


@pytest.mark.parametrize("spoil", BREAKS, ids=lambda spoil: spoil.__name__)
def test_modules_are_verified_as_by_xdsl(spoil: Callable[[func.FuncOp, test.TestOp], None]) -> None:
    module, function, outer = network()
    verify(module)
    spoil(function, outer)
    with pytest.raises((VerifyException, ValueError)) as usual:
        module.verify()
    with pytest.raises(type(usual.value)) as quick:
        verify(module)
    assert str(quick.value) == str(usual.value)
