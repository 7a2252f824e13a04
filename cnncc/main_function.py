"""The function `@main` of a module, its arguments and results, and the names that the model gives them."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue

from cnncc.dialects.onnx import text
from cnncc.errors import Refusal


def main_function(module: ModuleOp) -> FuncOp:
    """The graph of `module`. Raises Refusal if there is none."""
    for op in module.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main" and op.body.blocks:
            return op
    raise Refusal("the IR has no function @main")


def main_arguments(module: ModuleOp) -> Sequence[SSAValue]:
    """The inputs of the graph."""
    return main_function(module).body.block.args


def returned(module: ModuleOp) -> Sequence[SSAValue]:
    """The output values of the graph of `module`."""
    last = main_function(module).body.block.last_op
    if not isinstance(last, ReturnOp):
        raise Refusal("@main does not end with func.return")
    return last.operands


def input_names(module: ModuleOp) -> list[str]:
    """The names of the graph's inputs."""
    func = main_function(module)
    return _names(func.arg_attrs, "input", len(func.body.block.args))


def output_names(module: ModuleOp) -> list[str]:
    """The names of the graph's outputs."""
    return _names(main_function(module).res_attrs, "output", len(returned(module)))


def _names(attrs: ArrayAttr[DictionaryAttr] | None, kind: str, length: int) -> list[str]:
    known = [attr.data.get("onnx.name") for attr in attrs] if attrs else [None] * length
    return [text(name) if name else f"{kind}_{index}" for index, name in enumerate(known)]
