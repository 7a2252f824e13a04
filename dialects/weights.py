"""References to arrays in the weight store, so that no IR ever prints a weight.

`#weights.ref<"5f0c…">` names an array by its content. `weights.constant` makes it an SSA value
(the `onnx` level); `weights.global` gives it a symbol (from `cnn` down). Tests may write small
arrays in place, as `dense<…>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    IntegerType,
    ModuleOp,
    Signedness,
    StringAttr,
    SymbolNameConstraint,
    TensorType,
    bf16,
    f16,
    f32,
    f64,
)
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import Pure, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from cnncc.dialects._verifiers import use_simple_verifiers
from cnncc.errors import Refusal
from cnncc.weights import Array, WeightStore


class TextParameter(ParametrizedAttribute):
    """Something with one string, printed as `<"…">`."""

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse `<"…">`."""
        with parser.in_angle_brackets():
            return [StringAttr(parser.parse_str_literal())]

    def print_parameters(self, printer: Printer) -> None:
        """Print `<"…">`."""
        with printer.in_angle_brackets():
            printer.print_string_literal(cast(StringAttr, self.parameters[0]).data)


@irdl_attr_definition
class RefAttr(TextParameter):
    """The array of the weight store whose content key this is: `#weights.ref<"5f0c…">`."""

    name = "weights.ref"
    key: StringAttr

    @classmethod
    def to(cls, array: Array, store: WeightStore) -> RefAttr:
        """The reference to `array`, which `store` keeps."""
        return cls(StringAttr(store.add(array)))


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """An array as a value: `%w = weights.constant : tensor<16x3x3x3xf32> = #weights.ref<"5f0c…">`."""

    name = "weights.constant"
    value = prop_def(RefAttr | DenseIntOrFPElementsAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "`:` type($result) `=` $value attr-dict"

    def verify_(self) -> None:
        _check_in_place(self, self.result.type)


@irdl_op_definition
class GlobalOp(IRDLOperation):
    """An array under a symbol: `weights.global @conv1.w : tensor<16x3x3x3xi16> = #weights.ref<"5f0c…">`."""

    name = "weights.global"
    sym_name = prop_def(SymbolNameConstraint())
    value = prop_def(RefAttr | DenseIntOrFPElementsAttr)
    type = prop_def(TensorType)
    traits = traits_def(SymbolOpInterface())
    assembly_format = "$sym_name `:` $type `=` $value attr-dict"

    def verify_(self) -> None:
        _check_in_place(self, self.type)


def _check_in_place(op: ConstantOp | GlobalOp, kind: Attribute) -> None:
    """An array that is written in place has the type of the op. Raises VerifyException."""
    if isinstance(op.value, DenseIntOrFPElementsAttr) and op.value.type != kind:
        raise VerifyException(f"{op.name}: its type is {kind}, its array's is {op.value.type}")


# Signed integers are signless in IR, as in MLIR's tensor code; unsigned ones say so.
ELEMENT_TYPES: dict[str, Attribute] = {
    "float32": f32,
    "float64": f64,
    "float16": f16,
    "bfloat16": bf16,
    "bool": IntegerType(1),
    **{f"int{bits}": IntegerType(bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": IntegerType(bits, Signedness.UNSIGNED) for bits in (8, 16, 32, 64)},
}
# numpy has no bfloat16 of its own. `constant_array` leaves a type that is not here unchecked.
_DTYPES = {element_type: np.dtype(name) for name, element_type in ELEMENT_TYPES.items() if name != "bfloat16"}


def tensor_type(array: Array) -> TensorType[Attribute]:
    """The IR type of `array`. Raises KeyError for a type that has none."""
    return TensorType(ELEMENT_TYPES[array.dtype.name], array.shape)


def element_dtype(element_type: Attribute) -> np.dtype[np.generic]:
    """The numpy type of an IR element type. Raises KeyError for a type that has none."""
    return _DTYPES[element_type]


def new_global(name: str, array: Array, store: WeightStore) -> GlobalOp:
    """A `weights.global` for `array`, under the symbol `name`."""
    properties = {"sym_name": StringAttr(name), "value": RefAttr.to(array, store), "type": tensor_type(array)}
    return GlobalOp.create(properties=properties)


def constant_array(op: Operation, store: WeightStore) -> Array:
    """The array that a `weights.constant` or `weights.global` stands for. Raises Refusal for one of another type."""
    assert isinstance(op, ConstantOp | GlobalOp)
    shaped = op.type if isinstance(op, GlobalOp) else op.result.type
    assert isinstance(shaped, TensorType)
    if isinstance(op.value, RefAttr):
        array = store[op.value.key.data]
        if array.shape != shaped.get_shape() or array.dtype != _DTYPES.get(shaped.element_type, array.dtype):
            what = f"{op.name} @{op.sym_name.data}" if isinstance(op, GlobalOp) else op.name
            held = f"{array.dtype}{list(array.shape)}"
            raise Refusal(f"{what}: its type is {shaped}, but weight '{op.value.key.data}' is {held}: give one of both")
        return array
    values = list(op.value.get_values())
    # A splat has one value for all elements.
    full = values * int(np.prod(shaped.get_shape())) if op.value.is_splat() and len(values) == 1 else values
    return np.array(full, element_dtype(shaped.element_type)).reshape(shaped.get_shape())


def arrays_of(module: ModuleOp, store: WeightStore) -> dict[str, Array]:
    """The arrays of all `weights.global`s of a module, by symbol."""
    return {op.sym_name.data: constant_array(op, store) for op in module.ops if isinstance(op, GlobalOp)}


WEIGHTS = Dialect("weights", [ConstantOp, GlobalOp], [RefAttr])
use_simple_verifiers(WEIGHTS)
