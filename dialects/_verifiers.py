"""Verifiers of simple ops in a third of the time. Every pass verifies every op, for a tenth of a compilation's time.

xDSL's verifier looks up options and variadic operands of the definition for each op anew. A simple op has none of them.
"""

from __future__ import annotations

from xdsl.ir import Dialect, Operation
from xdsl.irdl import IRDLOperation, OpDef, OptAttributeDef, OptPropertyDef, VariadicDef, VerificationContext
from xdsl.irdl.operations import SingleBlockRegionDef
from xdsl.utils.exceptions import VerifyException


class _SimpleOpDef(OpDef):
    """The definition of an op with fixed numbers of operands, results and regions."""

    def verify(self, op: Operation) -> None:
        """Raises as xDSL's verifier does, which says what is wrong."""
        if not self._holds(op):
            super().verify(op)
            return
        for trait in self.traits:
            trait.verify(op)

    def _holds(self, op: Operation) -> bool:
        """Whether operands, results, properties and attributes are as defined."""
        if len(op.operands) != len(self.operands) or len(op.results) != len(self.results):
            return False
        # An attribute that no definition has is legal in xDSL, a property is not.
        if len(op.regions) != len(self.regions) or op.successors or op.properties.keys() - self.properties:
            return False
        context = VerificationContext()
        try:
            for (_, operand), value in zip(self.operands, op.operands, strict=True):
                operand.constr.verify((value.type,), context)
            for (_, result), value in zip(self.results, op.results, strict=True):
                result.constr.verify((value.type,), context)
            for (_, definition), region in zip(self.regions, op.regions, strict=True):
                first = region.first_block
                if isinstance(definition, SingleBlockRegionDef) and (first is None or first is not region.last_block):
                    return False
                if first is not None:
                    definition.entry_args.verify(first.arg_types, context)
            for name, prop in self.properties.items():
                if name in op.properties:
                    prop.constr.verify(op.properties[name], context)
                elif not isinstance(prop, OptPropertyDef):
                    return False
            for name, attribute in self.attributes.items():
                if name in op.attributes:
                    attribute.constr.verify(op.attributes[name], context)
                elif not isinstance(attribute, OptAttributeDef):
                    return False
        except VerifyException:
            return False
        return True


def use_simple_verifiers(dialect: Dialect) -> None:
    """Have the simple ops of a dialect verified by `_SimpleOpDef`."""
    for op in dialect.operations:
        assert issubclass(op, IRDLOperation)
        definition = op.get_irdl_definition()
        parts = (*definition.operands, *definition.results, *definition.regions)
        if not definition.successors and not any(isinstance(each, VariadicDef) for _, each in parts):
            # xDSL made the definition when the class of the op was. Both classes have the same fields, so that one
            # takes the other's place.
            definition.__class__ = _SimpleOpDef
