"""The graph as the ONNX file says it: one generic op for every node, whatever its type.

The graph is `func.func @main`; its arguments and results carry the graph's names as `onnx.name`.
Initializers and Constant nodes are `weights.constant`. Types come from ONNX shape inference.
An ONNX attribute is an attribute of the same name:

    int, float         i64, f32
    ints               `array<i64>`
    floats, strings    arrays
    tensor             `#weights.ref`
    any other          `#onnx.proto`, the AttributeProto itself

A value that MLIR text cannot hold exactly is an `#onnx.proto`, too.

Module attributes: `onnx.ir_version`, `onnx.opset_imports` (domain to version, "ai.onnx" for the
default domain), `onnx.graph` (the graph's name), `onnx.functions` (FunctionProtos, where there are any).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    BytesAttr,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    NoneType,
    StringAttr,
)
from xdsl.ir import Attribute, Dialect, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from cnncc.dialects.weights import ConstantOp, RefAttr, TextParameter, constant_array, tensor_type
from cnncc.errors import Refusal
from cnncc.weights import Array, WeightStore

Text = StringAttr | BytesAttr
INLINE_LIMIT_BYTES = 1024

AttributeT = TypeVar("AttributeT", bound=Attribute)


def text_attr(text: str | bytes) -> Text:
    """`text` as the attribute that survives printing: MLIR text reads anything beyond ASCII as bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return StringAttr(raw.decode()) if raw.isascii() else BytesAttr(raw)


def raw_text(attribute: Attribute) -> bytes:
    """The bytes of an attribute that `text_attr` made. Raises Refusal for anything else."""
    match attribute:
        case StringAttr():
            return attribute.data.encode()
        case BytesAttr():
            return attribute.data
        case _:
            raise Refusal(f"expected a string in the IR, found {attribute}")


def text(attribute: Attribute) -> str:
    """The characters of an attribute that `text_attr` made."""
    return raw_text(attribute).decode(errors="replace")


@irdl_attr_definition
class ValueType(TextParameter, TypeAttribute):
    """What is not a tensor, or of unknown type: `!onnx.value<"seq(tensor(float))">`, `!onnx.value<"unknown">`."""

    name = "onnx.value"
    spec: StringAttr


@irdl_attr_definition
class ElementType(TextParameter, TypeAttribute):
    """An element type that builtin types do not have: `tensor<3x!onnx.element<"float8e4m3fn">>`."""

    name = "onnx.element"
    spec: StringAttr


@irdl_attr_definition
class ProtoAttr(ParametrizedAttribute):
    """A serialized ONNX message that the IR does not look into: `#onnx.proto<"base64">`.

    A large one is kept in the weight store, as bytes: `#onnx.proto<#weights.ref<"5f0c…">>`.
    """

    name = "onnx.proto"
    data: StringAttr | RefAttr

    @classmethod
    def pack(cls, data: bytes, store: WeightStore) -> ProtoAttr:
        """Keep `data`, in the attribute if short, else in `store`."""
        if len(data) <= INLINE_LIMIT_BYTES:
            return cls(StringAttr(base64.b64encode(data).decode()))
        return cls(RefAttr.to(bytes_array(data), store))

    def unpack(self, store: WeightStore) -> bytes:
        """The bytes that were packed. Raises Refusal where hand-written text is not base64."""
        if isinstance(self.data, RefAttr):
            return store[self.data.key.data].tobytes()
        try:
            return base64.b64decode(self.data.data, validate=True)
        except binascii.Error as error:
            raise Refusal(f"#onnx.proto does not hold base64: {error}") from error


def constant_operand(value: SSAValue | None, store: WeightStore) -> Array | None:
    """The array of a `weights.constant`, in the shape that its type says; None for any other value."""
    if value is None or not isinstance(value.owner, ConstantOp):
        return None
    return constant_array(value.owner, store).reshape(value.owner.result.type.get_shape())


def new_constant(array: Array, store: WeightStore, name: Attribute | None) -> ConstantOp:
    """A `weights.constant` for `array`, called `name` in ONNX. Raises KeyError for a type that IR does not have."""
    return ConstantOp.create(
        result_types=[tensor_type(array)],
        properties={"value": RefAttr.to(array, store)},
        attributes={"onnx.name": name} if name else {},
    )


def replace_constant(node: NodeOp, index: int, array: Array, store: WeightStore) -> None:
    """Have `node` read `array` in the place of the constant that is its operand `index`, under that one's name."""
    old = node.operands[index].owner
    name = old.attributes.get("onnx.name") if isinstance(old, ConstantOp) else None
    constant = new_constant(array, store, name)
    Rewriter.insert_op(constant, InsertPoint.before(node))
    node.operands[index] = constant.result


def bytes_array(data: bytes) -> Array:
    """`data` as u8[len]."""
    return np.frombuffer(data, np.uint8)


@irdl_op_definition
class NodeOp(IRDLOperation):
    """One ONNX node: `%y = onnx.node "Conv"(%x, %w) {pads = array<i64: 1, 1, 1, 1>} : (…) -> tensor<…>`.

    `domain` is absent for ONNX's own operators. An operand or result left out in the file is of type
    `none` (operand: `onnx.absent`). `outputs` keeps the names of the results. The last operands are
    the values that sub-graphs in the attributes take from outside by name: `captures` holds those names.
    """

    name = "onnx.node"
    op_type = prop_def(StringAttr)
    domain = opt_prop_def(StringAttr)
    node_name = opt_prop_def(StringAttr | BytesAttr)
    output_names = opt_prop_def(ArrayAttr[StringAttr | BytesAttr], prop_name="outputs")
    captures = opt_prop_def(ArrayAttr[StringAttr | BytesAttr])
    inputs = var_operand_def()
    results_ = var_result_def()
    assembly_format = (
        "$op_type (`domain` $domain^)? (`name` $node_name^)? `(` $inputs `)` (`captures` $captures^)? "
        "(`outputs` $outputs^)? attr-dict `:` functional-type($inputs, $results_)"
    )

    def verify_(self) -> None:
        """Check that names and values are equally many."""
        if self.output_names is not None and len(self.output_names) != len(self.results):
            raise VerifyException(f"{len(self.output_names)} output names for {len(self.results)} results")
        if self.captures is not None and len(self.captures) > len(self.operands):
            raise VerifyException(f"{len(self.captures)} captures but only {len(self.operands)} operands")

    @property
    def capture_count(self) -> int:
        """How many of the last operands are captures."""
        return 0 if self.captures is None else len(self.captures)

    @property
    def own_operands(self) -> Sequence[SSAValue]:
        """The node's inputs in ONNX's sense: without captures."""
        return self.operands[: len(self.operands) - self.capture_count]

    def operand(self, index: int) -> SSAValue | None:
        """Input `index`, or None where it is left out."""
        own = self.own_operands
        present = index < len(own) and not isinstance(own[index].type, NoneType)
        return own[index] if present else None

    def is_op(self, *op_types: str) -> bool:
        """Is this one of ONNX's own operators `op_types`?"""
        return self.domain is None and self.op_type.data in op_types

    def label(self) -> str:
        """What to call the node in messages: its name, else its first output's, with the operator."""
        names = [self.node_name] if self.node_name else list(self.output_names or ())
        return f"{self.op_type.data} node '{text(names[0])}'" if names else f"unnamed {self.op_type.data} node"

    def _attribute(self, name: str, *kinds: type[AttributeT], expected: str) -> AttributeT | None:
        attribute = self.attributes.get(name)
        if attribute is None or isinstance(attribute, kinds):
            return attribute
        raise Refusal(f"{self.label()}: attribute '{name}' is {attribute}, expected {expected}")

    def int_attr(self, name: str, default: int) -> int:
        """The integer attribute `name`. Raises Refusal where it is of another kind."""
        attribute = self._attribute(name, IntegerAttr, expected="an integer")
        return default if attribute is None else attribute.value.data

    def ints_attr(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """The attribute `name`, a list of integers. Raises Refusal where it is of another kind."""
        match self.attributes.get(name):
            case None:
                return tuple(default)
            case DenseArrayBase(elt_type=IntegerType()) as array:
                return tuple(cast("DenseArrayBase[IntegerType]", array).get_values())
            case other:
                raise Refusal(f"{self.label()}: attribute '{name}' is {other}, expected integers")

    def float_attr(self, name: str, default: float) -> float:
        """The float attribute `name`. Raises Refusal where it is of another kind."""
        attribute = self._attribute(name, FloatAttr, expected="a float")
        return default if attribute is None else attribute.value.data

    def str_attr(self, name: str, default: str) -> str:
        """The string attribute `name`. Raises Refusal where it is of another kind."""
        attribute = self._attribute(name, StringAttr, BytesAttr, expected="a string")
        return default if attribute is None else text(attribute)


def node_of(value: SSAValue | None, *op_types: str) -> NodeOp | None:
    """The node of one of ONNX's own operators `op_types` that computes `value`; None for any other value."""
    owner = value.owner if value is not None else None
    return owner if isinstance(owner, NodeOp) and owner.is_op(*op_types) else None


@irdl_op_definition
class AbsentOp(IRDLOperation):
    """An optional input that is left out, before one that is not: `%none = onnx.absent`."""

    name = "onnx.absent"
    result = result_def(NoneType())
    traits = traits_def(Pure())
    assembly_format = "attr-dict"


ONNX = Dialect("onnx", [NodeOp, AbsentOp], [ValueType, ElementType, ProtoAttr])
