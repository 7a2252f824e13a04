"""IR of the `onnx` dialect as ONNX models: the whole graph, or a part of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, NoneType, StringAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import OpResult, SSAValue

from cnncc.dialects.onnx import AbsentOp, NodeOp, ProtoAttr, constant_operand, text
from cnncc.dialects.weights import ConstantOp
from cnncc.errors import Refusal
from cnncc.frontend.onnx_attrs import IDENTITY_OPSET, attribute_graphs, attribute_to_proto, node_graphs
from cnncc.frontend.onnx_types import type_proto
from cnncc.main_function import input_names, main_arguments, main_function, output_names, returned
from cnncc.weights import WeightStore

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

# onnxruntime 1.31 accepts IR versions up to 13; from 10 on, the format has all of its types.
IR_VERSIONS = (10, 13)


def export_onnx(module: ModuleOp, store: WeightStore) -> ModelProto:
    """The graph of `module` as a model, with its input and output names.

    Raises: Refusal, for an op without an ONNX equivalent.
    """
    block = main_function(module).body.block
    for op in block.ops:
        if not isinstance(op, NodeOp | ConstantOp | AbsentOp | ReturnOp):
            raise Refusal(f"op {op.name} has no ONNX equivalent")
    nodes, names = [op for op in block.ops if isinstance(op, NodeOp)], output_names(module)
    return export_nodes(nodes, block.args, returned(module), module, store, output_names=names)


def export_nodes(
    nodes: Sequence[NodeOp],
    inputs: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
    module: ModuleOp,
    store: WeightStore,
    *,
    output_names: Sequence[str] | None = None,
) -> ModelProto:
    """The part of `module` that computes `outputs` from `inputs` by `nodes` (in order), as a model.

    Its constants become initializers. Inputs keep their names, if they have any. Output i is called `output_names[i]`,
    by default like the value.
    """
    from onnx import ModelProto, helper

    known = dict(zip(main_arguments(module), input_names(module), strict=True))
    names = _Names(known, _inner_names(nodes, store))
    # Inputs and outputs first: a reader of the model knows their names. All other values take what is left.
    for value in inputs:
        names.give(value, names.known(value))
    results = [
        names.output(value, output_names[index] if output_names else None) for index, value in enumerate(outputs)
    ]
    constants = _constants(nodes, inputs, outputs)
    names.give_rest([*(op.result for op in constants), *(value for node in nodes for value in node.results)])

    opsets = [helper.make_opsetid(name, version) for name, version in opset_imports(module).items()]
    model = ModelProto(ir_version=_ir_version(module), opset_import=opsets)
    graph = model.graph
    graph.name = text(module.attributes.get("onnx.graph", StringAttr("main"))) or "main"
    graph.input.extend(_value_info(value, names.of[value]) for value in inputs)
    graph.initializer.extend(_initializer(op, names.of[op.result], store) for op in constants)
    graph.node.extend(_node(node, names, store) for node in nodes)
    # ONNX's inference finds too many windows for some of these pools. With another type onnxruntime leaves it open.
    pooled = [value for node in nodes if "ceil_mode" in node.attributes for value in node.results[:1]]
    graph.value_info.extend(_value_info(value, names.of[value]) for value in pooled)
    for value, name in zip(outputs, results, strict=True):
        if name != names.of[value]:
            graph.node.add(op_type="Identity", input=[names.of[value]], output=[name])
        graph.output.append(_value_info(value, name))
    model.functions.extend(_functions(module, store))
    return model


class _Names:
    """Gives every value a unique name: its name in the file, if that is free, else a generated one."""

    def __init__(self, known: dict[SSAValue, str], inner: set[str]) -> None:
        self.of: dict[SSAValue, str] = {}
        self._arguments = known
        self._inner = inner  # defined inside sub-graphs: never generated
        self._taken: set[str] = set()
        self._outputs: set[str] = set()
        self._fresh = count()

    def known(self, value: SSAValue) -> str | None:
        """The name of `value` in its ONNX file; None if it has none."""
        if value in self._arguments:
            return self._arguments[value]
        match value.owner:
            case NodeOp(output_names=ArrayAttr() as names) if isinstance(value, OpResult):
                return text(names.data[value.index])
            case ConstantOp() as op if "onnx.name" in op.attributes:
                return text(op.attributes["onnx.name"])
            case _:
                return None

    def _free(self, wanted: str | None) -> str:
        name = wanted
        while not name or name in self._taken or (name != wanted and name in self._inner):
            name = f"value_{next(self._fresh)}"
        self._taken.add(name)
        return name

    def give(self, value: SSAValue, wanted: str | None) -> None:
        """Name `value`: `wanted` if that is free, else a new name."""
        self.of[value] = self._free(wanted)

    def output(self, value: SSAValue, wanted: str | None) -> str:
        """The name of an output: `wanted`, by default the name of `value`. It may differ from the name of `value`.

        Raises: Refusal, if another input or output is called `wanted`.
        """
        if value not in self.of:
            own = wanted if isinstance(value.owner, NodeOp) else None
            self.give(value, own or self.known(value))
        name = self.of[value]
        if name in self._outputs or (wanted and name != wanted):
            name = self._free(wanted)
        if wanted and name != wanted:
            raise Refusal(f"output '{wanted}': another input or output has this name")
        self._outputs.add(name)
        return name

    def give_rest(self, values: Iterable[SSAValue]) -> None:
        """Name all `values` that have no name yet; generated names avoid all known ones."""
        rest = [value for value in values if value not in self.of]
        known = [(value, self.known(value)) for value in rest]
        for value, name in known:
            if isinstance(value.type, NoneType):
                self.of[value] = ""
            elif name and name not in self._taken:
                self.give(value, name)
        for value in rest:
            if value not in self.of:
                self.give(value, None)


def _attributes(node: NodeOp, store: WeightStore) -> list[AttributeProto]:
    """The ONNX attributes, without the notes of passes (`cnn.ranges`)."""
    own = {name: attribute for name, attribute in node.attributes.items() if not name.startswith("cnn.")}
    return [attribute_to_proto(name, attribute, store) for name, attribute in own.items()]


def has_graphs(node: NodeOp, store: WeightStore) -> bool:
    """Whether `node` has sub-graphs, such as the branches of an If."""
    opaque = any(isinstance(attribute, ProtoAttr) for attribute in node.attributes.values())
    return opaque and any(attribute_graphs(proto) for proto in _attributes(node, store))


def _inner_names(nodes: Iterable[NodeOp], store: WeightStore) -> set[str]:
    """All names inside sub-graphs of `nodes`."""
    protos = [proto for node in nodes if has_graphs(node, store) for proto in _attributes(node, store)]
    return {name for proto in protos for graph in attribute_graphs(proto) for name in _graph_names(graph)}


def _graph_names(graph: GraphProto) -> Iterator[str]:
    for value in (*graph.input, *graph.initializer, *graph.output):
        yield value.name
    for node in graph.node:
        yield from (*node.input, *node.output)
        for inner in node_graphs(node):
            yield from _graph_names(inner)


def _rename_captures(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Let `graph` use values from outside by their new `names`. ONNX forbids that inner names hide outer ones."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for inner in node_graphs(node):
            _rename_captures(inner, names)
    for output in graph.output:
        output.name = names.get(output.name, output.name)


def _constants(nodes: Iterable[NodeOp], inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> list[ConstantOp]:
    """The constants that are used, in order of first use."""
    values = dict.fromkeys([*(value for node in nodes for value in node.operands), *outputs])
    return [value.owner for value in values if isinstance(value.owner, ConstantOp) and value not in inputs]


def _value_info(value: SSAValue, name: str) -> ValueInfoProto:
    from onnx import ValueInfoProto

    return ValueInfoProto(name=name, type=type_proto(value.type))


def _initializer(op: ConstantOp, name: str, store: WeightStore) -> TensorProto:
    from onnx import numpy_helper

    array = constant_operand(op.result, store)
    assert array is not None
    return numpy_helper.from_array(array, name)


def _node(node: NodeOp, names: _Names, store: WeightStore) -> NodeProto:
    from onnx import NodeProto

    def name(value: SSAValue) -> str:
        return "" if isinstance(value.type, NoneType) else names.of[value]

    attributes = _attributes(node, store)
    if node.captures:
        captured = node.operands[len(node.own_operands) :]
        new_names = {text(old): name(value) for old, value in zip(node.captures, captured, strict=True)}
        for graph in (graph for attribute in attributes for graph in attribute_graphs(attribute)):
            _rename_captures(graph, new_names)
    return NodeProto(
        op_type=node.op_type.data,
        domain=node.domain.data if node.domain else "",
        name=text(node.node_name) if node.node_name else "",
        input=[name(value) for value in node.own_operands],
        output=[name(value) for value in node.results],
        attribute=attributes,
    )


def _ir_version(module: ModuleOp) -> int:
    version = module.attributes.get("onnx.ir_version")
    lowest, highest = IR_VERSIONS
    return min(max(version.value.data, lowest), highest) if isinstance(version, IntegerAttr) else lowest


def opset_imports(module: ModuleOp) -> dict[str, int]:
    """The version of each operator domain that `module` uses; ONNX's own domain is "". Raises Refusal without any."""
    imports = module.attributes.get("onnx.opset_imports")
    if not isinstance(imports, DictionaryAttr):
        raise Refusal("the module has no attribute onnx.opset_imports, e.g. {ai.onnx = 17}")
    versions = {name: attr.value.data for name, attr in imports.data.items() if isinstance(attr, IntegerAttr)}
    return {"": versions.pop("ai.onnx", IDENTITY_OPSET), **versions}


def _functions(module: ModuleOp, store: WeightStore) -> list[FunctionProto]:
    from google.protobuf.message import DecodeError
    from onnx import FunctionProto

    functions = module.attributes.get("onnx.functions")
    protos = functions if isinstance(functions, ArrayAttr) else ()
    try:
        return [FunctionProto.FromString(proto.unpack(store)) for proto in protos if isinstance(proto, ProtoAttr)]
    except DecodeError as error:
        raise Refusal(f"onnx.functions does not hold FunctionProtos: {error}") from error
