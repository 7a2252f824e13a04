"""cnn-legalize: gives a clamp or requantisation that could not be fused an op of the array."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute
from xdsl.passes import ModulePass

from cnncc.dialects.cnn import ClampOp, PoolOp, RequantOp, Window, WindowAttr, element_bits, shape

OPERAND_BITS = 16


@dataclass(frozen=True)
class CnnLegalizePass(ModulePass):
    """What `cnn-fuse-epilogue` leaves becomes a pooling over one pixel with an epilogue.

        %2 = cnn.clamp %1 by <clamp = [0, 127]> label "relu"

    becomes

        %2 = cnn.pool "max" %1 window <kernel = [1, 1]> then <clamp = [0, 127]> label "relu"

    The value before has other readers, so its own epilogue cannot do it. From here on there are only conv,
    pool, add, reshape and host.
    """

    name = "cnn-legalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite all of them in `op`."""
        for candidate in list(op.walk()):
            if isinstance(candidate, ClampOp | RequantOp):
                _legalize(candidate)


def _legalize(op: ClampOp | RequantOp) -> None:
    if element_bits(op.x.type) > OPERAND_BITS or len(shape(op.x.type)) != 4:
        return  # sums are no operands of a pooling: only hand-written IR reads them twice
    properties: dict[str, Attribute] = {
        "kind": StringAttr("max"),
        "window": WindowAttr(Window((1, 1))),
        "steps": op.by,
    }
    if op.label is not None:
        properties["label"] = op.label
    pool = PoolOp.create(
        operands=[op.x], properties=properties, attributes=dict(op.attributes), result_types=[op.result.type]
    )
    block = op.parent
    assert block is not None
    block.insert_op_before(pool, op)
    pool.result.name_hint = op.result.name_hint
    op.result.replace_all_uses_with(pool.result)
    op.detach()
    op.erase()
