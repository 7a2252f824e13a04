"""cnn-fuse-epilogue: gathers the steps after a sum into the epilogue of the op that computes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from cnncc.dialects.cnn import (
    BiasOp,
    ClampOp,
    ConvOp,
    ElementwiseOp,
    LookupOp,
    PoolOp,
    RequantOp,
    ShuffleOp,
    Steps,
    StepsAttr,
    value_key,
)

SumOp = ConvOp | PoolOp | ElementwiseOp


def clamp_after(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The clamp that equals `second` after `first`, even if the two do not overlap."""
    lo, hi = second
    return (min(max(first[0], lo), hi), min(max(first[1], lo), hi))


def add_step(steps: Steps, op: Operation) -> Steps | None:
    """The epilogue `steps` followed by `op`; None if no epilogue has these steps in this order.

    The order of an epilogue is fixed: bias, requantisation, clamp, table, residual, second clamp; or a shuffle at the
    end.
    """
    if steps.shuffle != 1:
        return None
    match op:
        case ShuffleOp() if not steps.factors:
            return replace(steps, shuffle=op.groups.value.data)
        case BiasOp() if steps == Steps():
            return replace(steps, bias=op.bias.root_reference.data)
        # Nothing but a bias may come before, and no bias where each position has its scale.
        case RequantOp(by=StepsAttr(data=by)) if steps == Steps(bias="" if by.per_position else steps.bias):
            more = {"scale": by.scale, "per_position": by.per_position, "slope": by.slope}
            return replace(steps, zero=by.zero, clamp=by.clamp, **more)
        case ClampOp() if steps.factors:
            return replace(steps, add_clamp=clamp_after(steps.add_clamp, op.by.data.clamp))
        case ClampOp() if not steps.table:
            return replace(steps, clamp=clamp_after(steps.clamp, op.by.data.clamp))
        case LookupOp(by=StepsAttr(data=by)) if not (steps.factors or steps.table):
            clamp = clamp_after(steps.clamp, by.clamp)
            # The table begins with the least integer of the clamp.
            same = clamp[0] == by.clamp[0]
            return replace(steps, clamp=clamp, table=by.table, shift=by.shift) if same else None
        case ElementwiseOp(steps=StepsAttr(data=last)) if not (steps.factors or steps.per_position) and _is_alone(last):
            return replace(steps, factors=last.factors, multiply=last.multiply, add_clamp=last.add_clamp)
        case _:
            return None


def _is_alone(steps: Steps) -> bool:
    """Whether a `cnn.add` or `cnn.mul` has no steps before the residual."""
    return steps == Steps(factors=steps.factors, multiply=steps.multiply, add_clamp=steps.add_clamp)


@dataclass(frozen=True)
class CnnFuseEpiloguePass(ModulePass):
    """Bias, requantisation, clamp, table, residual and channel shuffle become steps of a conv, a pool, an add or a mul.

        %1 = cnn.conv %0 weights @c.w window <kernel = [3, 3]> label "c"
        %2 = cnn.bias %1 @c.b label "c.bias"
        %3 = cnn.requant %2 by <scale = "c.q", clamp = [-127, 127]> label "c.requant"
        %4 = cnn.clamp %3 by <clamp = [0, 127]> label "relu"

    becomes, if each value has one reader,

        %4 = cnn.conv %0 weights @c.w window <kernel = [3, 3]>
             then <bias = "c.b", scale = "c.q", clamp = [0, 127]> label "c" until "relu"

    Why: the array's output units run a whole epilogue as one commit. Every integer keeps its value. So a residual is
    fused only into the op of the `x` of a `cnn.add` or `cnn.mul`, because the operands do not commute bit for bit. A
    shuffle decides the place of a result: it is fused last, and never after a residual, whose channels are not
    shuffled. A conv of several groups and a shuffle of another number of groups stay two ops.
    """

    name = "cnn-fuse-epilogue"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Fuse in `op`, in order, so that each sum gathers all steps after it."""
        for candidate in list(op.walk()):
            fused = candidate if isinstance(candidate, SumOp) and candidate.parent is not None else None
            while fused is not None:
                fused = _fused(fused)


def _fused(sum_op: SumOp) -> SumOp | None:
    """`sum_op` and its reader fused, in the place of the reader; None if they stay two ops."""
    user = sum_op.result.get_user_of_unique_use()
    if user is None or user.parent is not sum_op.parent:
        return None  # another reader needs the value between
    if isinstance(user, ElementwiseOp) and user.x is not sum_op.result:
        return None  # the sum is the residual, which is rounded differently from x
    if isinstance(user, ShuffleOp) and isinstance(sum_op, ConvOp) and not sum_op.may_shuffle(user.groups.value.data):
        return None  # no single loop steps evenly through the channels of both
    steps = add_step(sum_op.steps.data if sum_op.steps else Steps(), user)
    if steps is None:
        return None  # no epilogue does these steps in this order
    residual = [*sum_op.operands[1:], *([user.residual] if isinstance(user, ElementwiseOp) else [])]
    return _replace(sum_op, user, steps, [sum_op.operands[0], *residual])


def _replace(sum_op: SumOp, last: Operation, steps: Steps, operands: list[SSAValue]) -> SumOp:
    """Put an op like `sum_op`, with other `steps`, in the place of `last`, where all `operands` are defined."""
    properties: dict[str, Attribute] = {**sum_op.properties, "steps": StepsAttr(steps)}
    if (key := value_key(last)) is not None:
        properties["until"] = StringAttr(key)
    fused = type(sum_op).create(
        operands=operands,
        properties=properties,
        attributes=dict(sum_op.attributes),
        result_types=[last.results[0].type],
    )
    Rewriter.replace_op(last, fused)
    Rewriter.erase_op(sum_op)
    return fused
