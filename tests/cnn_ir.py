"""Small helpers for tests of the `cnn` level: IR from text, and modules with arrays under symbols."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from cnncc.context import CompilerContext
from cnncc.dialects.cnn import CNN
from cnncc.dialects.onnx import ONNX
from cnncc.dialects.weights import WEIGHTS, new_global
from cnncc.errors import Refusals
from cnncc.frontend.import_onnx import module_of
from cnncc.frontend.infer_shapes import infer_shapes


def parse(text: str, **arrays: np.ndarray) -> tuple[ModuleOp, CompilerContext]:
    """The module `text`, with `arrays` as `weights.global` symbols."""
    ctx = CompilerContext()
    for dialect in (Builtin, Func, CNN, WEIGHTS, ONNX):
        ctx.load_dialect(dialect)
    module = Parser(ctx, text).parse_module()
    for name, array in arrays.items():
        module.body.block.insert_op_before(new_global(name, array, ctx.weights), module.body.block.first_op)
    module.verify()
    return module, ctx


def tensor(shape: tuple[int, ...], element: str = "i16") -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{element}>"


def imported(nodes, inputs, outputs, initializers, opset: int = 17) -> tuple[ModuleOp, CompilerContext]:
    """An `onnx` module from NodeProtos, {name: shape} of f32 inputs, names of outputs and {name: array}."""
    from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

    given = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()}
    graph = helper.make_graph(
        nodes,
        "test",
        [*given.values()],
        [given.get(name, ValueInfoProto(name=name)) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    ctx, refusals = CompilerContext(), Refusals()
    module = module_of(infer_shapes(model, strict=False), ctx.weights, refusals)
    refusals.raise_any()
    return module, ctx
