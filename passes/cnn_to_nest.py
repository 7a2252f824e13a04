"""Makes a loop nest of every layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute, Operation
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
    WindowAttr,
    shape,
    value_key,
)
from cnncc.dialects.nest import LayerOp, SizesAttr, build_nest, image_shape
from cnncc.errors import Refusal
from cnncc.mapping.mapping import Sizes
from cnncc.passes._scheduling.rewrites import canonical
from cnncc.window import Window


@dataclass(frozen=True)
class CnnToNestPass(ModulePass):
    """Lowers `cnn.conv`, `cnn.pool`, `cnn.add` and `cnn.mul` to `nest.layer`, one each, in the order n k h w c r s.

        %1 = cnn.conv %0 weights @w window <…> then <…>
        ->
        %1 = nest.layer "mac" %0 weights @w sizes <…> window <…> then <…> {
          nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } } }

    Dimensions of size 1 have no loop. A sum pool becomes "add". `cnn.add` and `cnn.mul` become "copy": the layer passes
    on the first operand, and its epilogue adds the second, or multiplies by it. Pools and copies work channel by
    channel: c = 1, as many groups as channels. Psums without an epilogue and single steps are refused:
    `cnn-fuse-epilogue` and `cnn-legalize` must run first. `cnn.reshape`, `cnn.concat` and `cnn.host` stay.
    """

    name = "cnn-to-nest"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        ops = list(op.walk())
        for candidate in ops:
            _check_fused(candidate)
        for candidate in ops:
            if isinstance(candidate, ConvOp | PoolOp | ElementwiseOp):
                Rewriter.replace_op(candidate, _layer(candidate))


def _check_fused(op: Operation) -> None:
    match op:
        case BiasOp() | RequantOp() | ClampOp() | LookupOp() | ShuffleOp():
            what = "is a step of its own"
        case ConvOp(steps=None) | PoolOp(kind=StringAttr(data="sum"), steps=None):
            what = "leaves sums without a way out ('then')"
        case _:
            return
    raise Refusal(
        f"cnn-to-nest: '{value_key(op) or '(no label)'}' ({op.name}) {what}: "
        "cnn-fuse-epilogue and cnn-legalize must run first"
    )


def _layer(op: ConvOp | PoolOp | ElementwiseOp) -> LayerOp:
    if len(shape(op.result.type)) > 4:
        raise Refusal(
            f"cnn-to-nest: '{value_key(op)}' ({op.name}) has {len(shape(op.result.type))} dims, at most 4 fit"
        )
    kind, window = _kind_and_window(op)
    n, k, h, w = image_shape(op.result.type)
    channels = image_shape(op.x.type)[1]
    sizes = Sizes(n, k, channels // window.group, h, w, *window.kernel)
    properties: dict[str, Attribute | None] = {
        "kind": StringAttr(kind),
        "weights": op.weights if isinstance(op, ConvOp) else None,
        "sizes": SizesAttr(sizes),
        "window": WindowAttr(window),
        "steps": op.steps or StepsAttr(Steps()),
        "label": op.label,
        "until": op.until,
    }
    return LayerOp.build(
        operands=[[op.x], [op.residual] if op.residual else []],
        result_types=[op.result.type],
        properties=properties,
        attributes=op.attributes,
        regions=[build_nest(canonical(sizes))],
    )


def _kind_and_window(op: ConvOp | PoolOp | ElementwiseOp) -> tuple[str, Window]:
    channels = image_shape(op.x.type)[1]
    match op:
        case ConvOp():
            return "mac", op.window.data
        case PoolOp(kind=StringAttr(data="max")):  # a maximum compares the integers themselves, zero point included
            return "max", replace(op.window.data, group=channels, zero=0)
        case PoolOp():
            return "add", replace(op.window.data, group=channels)
        case ElementwiseOp():
            return "copy", Window(kernel=(1, 1), group=channels)
