"""Small ONNX models for tests, built from text, and what every test of the front end does with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from xdsl.dialects import builtin, func
from xdsl.parser import Parser

from cnncc.api import CompileOptions, compile_model, run
from cnncc.context import CompilerContext
from cnncc.dialects.onnx import ONNX, NodeOp
from cnncc.dialects.weights import WEIGHTS
from cnncc.eval.onnx import evaluate
from cnncc.frontend.import_onnx import import_onnx
from cnncc.util.progress import silent

DATA = Path(__file__).parent / "data"


def context() -> CompilerContext:
    ctx = CompilerContext()
    for dialect in (builtin.Builtin, func.Func, ONNX, WEIGHTS):
        ctx.load_dialect(dialect)
    return ctx


def model(text: str, opset: int = 17, domains: tuple[str, ...] = (), **arrays: Any) -> onnx.ModelProto:
    """A model from ONNX's text syntax of a graph, with `arrays` as initializers."""
    proto = onnx.ModelProto(ir_version=9)
    proto.graph.CopyFrom(onnx.parser.parse_graph(text))
    proto.opset_import.add(domain="", version=opset)
    for domain in domains:
        proto.opset_import.add(domain=domain, version=1)
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return proto


def saved(proto: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def run_file(path: Path, inputs: dict[str, Any]) -> list[Any]:
    """What onnxruntime makes of a file, by itself: no part of cnncc takes part."""
    proto = onnx.load(path)
    make_weights_unsigned(proto)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def make_weights_unsigned(proto: onnx.ModelProto) -> None:
    """Where uint8 meets int8 onnxruntime is wrong on x86 without VNNI: its sums of two products saturate at 16 bits."""
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    for each in proto.graph.node:
        if each.op_type not in ("QLinearConv", "QLinearMatMul", "QGemm"):
            continue
        kinds = tuple(tensors[each.input[i]].data_type for i in (2, 5))
        if kinds != (onnx.TensorProto.UINT8, onnx.TensorProto.INT8):
            continue
        for i in (3, 5):
            name = f"{each.input[i]} + 128"
            if name not in tensors:
                codes = onnx.numpy_helper.to_array(tensors[each.input[i]]).astype(int) + 128
                tensors[name] = onnx.numpy_helper.from_array(codes.astype(np.uint8), name)
                proto.graph.initializer.append(tensors[name])
            each.input[i] = name


def assert_prints_and_parses(module: builtin.ModuleOp, ctx: CompilerContext, folder: Path) -> None:
    """The text of `module`, with its weights file, is the same module in a new context."""
    module.verify()
    text = str(module)
    other = context()
    if len(ctx.weights):
        (folder / "weights.npz").write_bytes(ctx.weights.to_bytes())
        other.weights.load(folder / "weights.npz")
    parsed = Parser(other, text).parse_module()
    assert parsed.is_structurally_equivalent(module)
    assert str(parsed) == text


def random_inputs(module: builtin.ModuleOp, seed: int = 0) -> dict[str, Any]:
    """Standard normal inputs for f32 arguments of `@main`."""
    from cnncc.main_function import input_names, main_arguments

    rng = np.random.default_rng(seed)
    values = zip(input_names(module), main_arguments(module), strict=True)
    return {name: rng.standard_normal(value.type.get_shape()).astype(np.float32) for name, value in values}


def op_types(module: builtin.ModuleOp) -> list[str]:
    return [op.op_type.data for op in module.walk() if isinstance(op, NodeOp)]


def rewritten(proto: onnx.ModelProto, folder: Path, *passes: Any, tolerance: float = 0.0) -> builtin.ModuleOp:
    """Import, apply `passes`, and compare all outputs; the module after."""
    ctx = context()
    module = import_onnx(saved(proto, folder), ctx)
    inputs = random_inputs(module)
    before = evaluate(module, ctx.weights, inputs)
    for one in passes:
        one.apply(ctx, module)
        module.verify()
    after = evaluate(module, ctx.weights, inputs)
    assert list(before) == list(after)
    for name, want in before.items():
        bound = tolerance * float(np.abs(want).max())
        np.testing.assert_allclose(after[name], want, rtol=0, atol=bound, strict=True)
        assert np.ptp(want) > 0  # one value everywhere would prove nothing
    assert_prints_and_parses(module, ctx, folder)
    return module


def on_array(path: Path, data: dict[str, Any]) -> tuple[list[bytes], float]:
    """The host segments of the network on spatial-4x4, and the SQNR of its output y against onnxruntime, in dB."""
    binary = compile_model(path, CompileOptions("spatial-4x4"), data, remark=silent)
    outputs = run(binary, data)["y"]
    images = [{name: values[i : i + 1] for name, values in data.items()} for i in range(len(outputs))]
    expected = np.concatenate([run_file(path, image)[0] for image in images])
    error = np.square(outputs - expected).sum() / np.square(expected).sum()
    return list(binary.segments), float(-10 * np.log10(error))
