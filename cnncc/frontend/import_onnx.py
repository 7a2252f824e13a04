"""ONNX files as IR of the `onnx` dialect: any valid model, one generic op for a node."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    ModuleOp,
    NoneType,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from cnncc.context import CompilerContext
from cnncc.dialects.onnx import AbsentOp, NodeOp, ProtoAttr, new_constant, text_attr
from cnncc.errors import Finding, Refusal, Refusals
from cnncc.frontend.input_shapes import NO_SHAPES, Shapes, graph_inputs
from cnncc.frontend.load_onnx import read_model
from cnncc.frontend.node_order import captured_names
from cnncc.frontend.onnx_attrs import STANDARD_DOMAIN, attribute_from_proto, numpy_array
from cnncc.frontend.onnx_types import UNKNOWN, element_type, ir_type
from cnncc.weights import Array, WeightStore

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto

# Where PyTorch lists the modules around a node, as in "['', 'layer1', 'layer1.0', 'add_3']"; the last is its operation.
SCOPES = "pkg.torch.onnx.name_scopes"
DENSE_LIMIT_ELEMENTS = 1 << 28  # of a sparse initializer, which the file spells in a few bytes


def import_onnx(path: Path, ctx: CompilerContext, batch: int | None = None, shapes: Shapes = NO_SHAPES) -> ModuleOp:
    """The model in `path` as IR; its arrays go to the weight store of `ctx`.

    batch: the size of symbolic leading dims of the graph's inputs; None: 1.
    shapes: the sizes of other symbolic dims, see `fix_shapes`.
    Raises: Refusal, for a file that is not a valid, whole model of fixed input shapes with finite weights.
    """
    refusals, module = Refusals(), ModuleOp([])
    with refusals.kept():
        module = read_onnx(path, ctx, refusals, batch, shapes)
    refusals.raise_any(str(path))
    return module


def read_onnx(
    path: Path, ctx: CompilerContext, refusals: Refusals, batch: int | None, shapes: Shapes = NO_SHAPES
) -> ModuleOp:
    """As `import_onnx`, except that `refusals` collects faults which leave the rest of the model readable.

    Weights that are not finite become 0 in the module. Raises: Refusal, for any other fault.
    """
    model, inside = read_model(path, refusals, batch, shapes), Refusals()
    try:
        module = module_of(model, ctx.weights, inside)
    except Refusal as refusal:
        raise Refusal(f"{path}: {refusal}", *refusal.findings) from refusal
    for refusal in inside.found:
        refusals.add(Refusal(f"{path}: {refusal}", *refusal.findings))
    return module


def module_of(model: ModelProto, store: WeightStore, refusals: Refusals) -> ModuleOp:
    """A checked model with inferred types and all data inside, as IR. Raises Refusal, or collects, as `read_onnx`."""
    func = _GraphImporter(model.graph, store, refusals).main()
    attributes: dict[str, Attribute] = {
        "onnx.ir_version": IntegerAttr(model.ir_version, i64),
        "onnx.opset_imports": DictionaryAttr(
            {opset.domain or "ai.onnx": IntegerAttr(opset.version, i64) for opset in model.opset_import}
        ),
        "onnx.graph": text_attr(model.graph.name),
    }
    if model.functions:
        functions = [function.SerializeToString(deterministic=True) for function in model.functions]
        attributes["onnx.functions"] = ArrayAttr([ProtoAttr.pack(data, store) for data in functions])
    return ModuleOp([func], attributes)


class _GraphImporter:
    """Builds `@main`, node by node in the file's order, with every value by its ONNX name."""

    def __init__(self, graph: GraphProto, store: WeightStore, refusals: Refusals) -> None:
        self.graph = graph
        self.store = store
        self.refusals = refusals
        self.inputs = graph_inputs(graph)
        # Of a name that occurs twice, as of an input that is an output, the last type counts.
        typed = (*graph.value_info, *graph.output, *graph.input)
        self.types = {value.name: _type_of(value) for value in typed}
        self.block = Block(arg_types=[self.types[value.name] for value in self.inputs])
        self.values: dict[str, SSAValue] = {}
        self.absent: SSAValue | None = None

    def main(self) -> FuncOp:
        for value, argument in zip(self.inputs, self.block.args, strict=True):
            self.define(value.name, argument)
        for tensor in self.graph.initializer:
            self.tensor(tensor, f"initializer '{tensor.name}'")
        for sparse in self.graph.sparse_initializer:
            self.constant(_dense(sparse), sparse.values.name, f"initializer '{sparse.values.name}'")
        for node in self.graph.node:
            self.node(node)
        results = [self.used(output.name) for output in self.graph.output]
        self.block.add_op(ReturnOp(*results))
        types = FunctionType.from_lists(self.block.arg_types, [result.type for result in results])
        return FuncOp(
            "main",
            types,
            Region(self.block),
            arg_attrs=_name_dicts(value.name for value in self.inputs),
            res_attrs=_name_dicts(output.name for output in self.graph.output),
        )

    def define(self, name: str, value: SSAValue) -> None:
        if name in self.values:
            raise Refusal(f"value '{name}' is defined twice")
        self.values[name] = value
        value.name_hint = _hint(name)

    def used(self, name: str) -> SSAValue:
        if name not in self.values:
            raise Refusal(f"value '{name}' is used but never computed")
        return self.values[name]

    def left_out(self) -> SSAValue:
        """The one value for all omitted optional inputs."""
        if self.absent is None:
            self.block.add_op(absent := AbsentOp.create(result_types=[NoneType()]))
            self.absent = absent.result
        return self.absent

    def node(self, node: NodeProto) -> None:
        array = _constant_array(node)
        if array is not None:
            self.constant(array, node.output[0], f"constant '{node.output[0]}'")
            return
        captures = captured_names(node)
        operands = [self.used(name) if name else self.left_out() for name in node.input]
        attributes = {
            _ascii(attribute.name, "attribute name"): attribute_from_proto(attribute, self.store)
            for attribute in node.attribute
        }
        op = NodeOp.create(
            operands=[*operands, *map(self.used, captures)],
            result_types=[self.types.get(name, UNKNOWN) if name else NoneType() for name in node.output],
            attributes=attributes,
            properties=_properties(node, captures),
        )
        self.append(op, node.output)

    def tensor(self, tensor: TensorProto, owner: str) -> None:
        """An initializer: a constant, or a Constant node for a type that numpy does not have."""
        array = numpy_array(tensor, owner)
        if array is not None:
            self.constant(array, tensor.name, owner)
            return
        from onnx import AttributeProto

        attribute = AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor)
        op = NodeOp.create(
            result_types=[TensorType(element_type(tensor.data_type), tensor.dims)],
            attributes={"value": attribute_from_proto(attribute, self.store)},
            properties={"op_type": StringAttr("Constant"), "outputs": ArrayAttr([text_attr(tensor.name)])},
        )
        self.append(op, [tensor.name])

    def constant(self, array: Array, name: str, owner: str) -> None:
        if problem := _not_finite(array):
            self.refusals.add(Refusal(f"{owner} {problem}", Finding(problem, where=owner)))
            array = np.nan_to_num(array, nan=0, posinf=0, neginf=0)
        op = new_constant(array, self.store, text_attr(name))
        self.append(op, [name])

    def append(self, op: Operation, names: Sequence[str]) -> None:
        self.block.add_op(op)
        for name, result in zip(names, op.results, strict=True):
            if name:
                self.define(name, result)


def _type_of(value: ValueInfoProto) -> Attribute:
    try:
        return ir_type(value.type)
    except Refusal as refusal:
        finding = Finding(str(refusal), where=f"value '{value.name}'")
        raise Refusal(f"value '{value.name}': {refusal}", finding) from refusal


def _hint(name: str) -> str | None:
    """`name` turned into an SSA name, or None; an attribute keeps the exact name."""
    cleaned = re.sub(r"[^A-Za-z0-9_$.-]", "_", name)
    base = re.sub(r"(_\d+)*$", "", cleaned)  # copies of a value have its name without such a suffix
    return cleaned if base and SSAValue.is_valid_name(cleaned) else None


def _ascii(name: str, what: str) -> str:
    if not name.isascii():
        raise Refusal(f"{what} '{name}' is not ASCII")
    return name


def _name_dicts(names: Iterable[str]) -> ArrayAttr[DictionaryAttr] | None:
    """One dictionary for each name; None for no names, like the parser."""
    dicts = [DictionaryAttr({"onnx.name": text_attr(name)}) for name in names]
    return ArrayAttr(dicts) if dicts else None


def _module_path(node: NodeProto) -> str:
    """What goes before the name of `node`: its innermost module, as in "layer1.0/"; nothing if the file has none."""
    for entry in node.metadata_props:
        if entry.key == SCOPES:
            *modules, _ = re.findall("'([^']*)'", entry.value) or [""]
            return f"{modules[-1]}/" if modules and modules[-1] else ""
    return ""


def _properties(node: NodeProto, captures: Sequence[str]) -> dict[str, Attribute]:
    properties: dict[str, Attribute] = {"op_type": StringAttr(_ascii(node.op_type, "operator"))}
    if node.domain not in STANDARD_DOMAIN:
        properties["domain"] = StringAttr(_ascii(node.domain, "domain"))
    if node.name:
        properties["node_name"] = text_attr(_module_path(node) + node.name)
    if any(node.output):
        properties["outputs"] = ArrayAttr([text_attr(name) for name in node.output])
    if captures:
        properties["captures"] = ArrayAttr([text_attr(name) for name in captures])
    return properties


def _constant_array(node: NodeProto) -> Array | None:
    """The array of a Constant node; None for other nodes, and for types that numpy does not have."""
    if node.op_type != "Constant" or node.domain not in STANDARD_DOMAIN or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    match attribute.name:
        case "value":
            return numpy_array(attribute.t, f"constant '{node.output[0]}'")
        case "value_float":
            return np.array(attribute.f, np.float32)
        case "value_floats":
            return np.array(attribute.floats, np.float32)
        case "value_int":
            return np.array(attribute.i, np.int64)
        case "value_ints":
            return np.array(attribute.ints, np.int64)
        case _:
            return None


def _not_finite(array: Array) -> str:
    """The fault of an array with NaN or infinities, or ""; a single infinity is legal, as a bound of Clip."""
    if array.dtype.kind != "f" or np.isfinite(array).all() or (array.size == 1 and not np.isnan(array).any()):
        return ""
    values = "NaN" if np.isnan(array).any() else "infinities"
    return f"contains {values}: the model is damaged or was not trained to the end"


def _dense(sparse: SparseTensorProto) -> Array:
    """A sparse initializer as an array; its indices are linear, or one row of coordinates for each value."""
    owner = f"initializer '{sparse.values.name}'"
    shape = tuple(sparse.dims)
    if math.prod(shape) > DENSE_LIMIT_ELEMENTS:
        raise Refusal(f"{owner}: {math.prod(shape)} elements, the limit is {DENSE_LIMIT_ELEMENTS}")
    values, indices = numpy_array(sparse.values, owner), numpy_array(sparse.indices, owner)
    if values is None or indices is None:
        raise Refusal(f"{owner}: sparse, of a type that numpy does not have")
    dense = np.zeros(shape, values.dtype)
    try:
        dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, shape)] = values
    except (IndexError, ValueError) as error:
        raise Refusal(f"{owner}: an index is outside shape {list(shape)}") from error
    return dense
