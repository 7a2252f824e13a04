"""Verifiers in half the time of xDSL's. Every pass verifies every op, for a tenth of a compilation's time.

xDSL's verifier looks up options and variadic operands of the definition for each op anew. A simple op has none of them.
It counts the ops of each block, and compares parents by calls. `verify` walks through the ops once.
"""

from __future__ import annotations

from xdsl.ir import Block, Dialect, ErasedSSAValue, Operation, Region
from xdsl.irdl import IRDLOperation, OpDef, OptAttributeDef, OptPropertyDef, VariadicDef, VerificationContext
from xdsl.traits import IsTerminator, NoTerminator
from xdsl.utils.exceptions import VerifyException


def verify(op: Operation) -> None:
    """Raises as `op.verify()` does, which says what is wrong."""
    if not _is_sound(op):
        op.verify()


def _is_sound(op: Operation) -> bool:
    """Whether an op and all in it hold what xDSL verifies. An op with successors is none: xDSL looks at it."""
    if len(op.successors):
        return False
    for operand in op.operands:
        if isinstance(operand, ErasedSSAValue):
            return False
    for region in op.regions:
        if not _is_sound_region(region, op):
            return False
    try:
        op.verify_()
    except VerifyException:
        return False
    return True


def _is_sound_region(region: Region, op: Operation) -> bool:
    """The same of the ops in a region of `op`; its blocks end with a terminator unless it needs none."""
    ends = region.first_block is not region.last_block or not op.has_trait(NoTerminator)
    block = region.first_block
    while block:
        if block.parent is not region or not _is_sound_block(block, ends):
            return False
        block = block.next_block
    return True


def _is_sound_block(block: Block, ends: bool) -> bool:
    """The same of the ops in a block, of which the last one is a terminator if `ends`."""
    if ends and not (block.last_op and block.last_op.has_trait(IsTerminator)):
        return False
    op = block.first_op
    while op:
        if op.parent is not block or not _is_sound(op):
            return False
        op = op.next_op
    return True


class _SimpleOpDef(OpDef):
    """The definition of an op with fixed numbers of operands, results and regions, a block in each."""

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
        if len(op.regions) != len(self.regions) or op.successors or op.properties.keys() - self.properties:
            return False
        context = VerificationContext()
        try:
            for (_, operand), value in zip(self.operands, op.operands, strict=True):
                operand.constr.verify((value.type,), context)
            for (_, result), value in zip(self.results, op.results, strict=True):
                result.constr.verify((value.type,), context)
            for (_, definition), region in zip(self.regions, op.regions, strict=True):
                if region.first_block is None or region.first_block is not region.last_block:
                    return False
                definition.entry_args.verify(region.first_block.arg_types, context)
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
            definition.__class__ = _SimpleOpDef
