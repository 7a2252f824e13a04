"""What a Pad adds. No pass: passes that take Pads away use it."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType

from cnncc.dialects.onnx import NodeOp, constant_operand
from cnncc.weights import WeightStore


def zeros_added(pad: NodeOp, store: WeightStore) -> list[int] | None:
    """Zeros at the begins, then at the ends of all axes of its input; negative numbers cut off.

    None for a Pad that adds anything else, is computed at run time, or is of unknown rank.
    """
    value_type, pads = pad.operands[0].type, _pads(pad, store)
    if not isinstance(value_type, TensorType) or pads is None or not _adds_zeros(pad, store):
        return None
    rank = len(value_type.get_shape())
    axes = _axes(pad, rank, store)
    return None if axes is None or len(pads) != 2 * len(axes) else spread(pads, axes, rank)


def spread(pads: list[int], axes: list[int], rank: int) -> list[int]:
    """`pads` of `axes` (begins, then ends) as begins, then ends of all `rank` axes."""
    full = [0] * (2 * rank)
    for index, axis in enumerate(axes):
        full[axis % rank] = pads[index]
        full[axis % rank + rank] = pads[index + len(axes)]
    return full


def _pads(pad: NodeOp, store: WeightStore) -> list[int] | None:
    """Attribute up to opset 10 (called paddings in opset 1), input from opset 11."""
    for name in ("pads", "paddings"):
        if name in pad.attributes:
            return list(pad.ints_attr(name, ()))
    array = constant_operand(pad.operand(1), store)
    return None if array is None else [int(value) for value in array.flat]


def _axes(pad: NodeOp, rank: int, store: WeightStore) -> list[int] | None:
    """The axes of the pads: an input since opset 18, by default all axes."""
    if pad.operand(3) is None:
        return list(range(rank))
    array = constant_operand(pad.operand(3), store)
    return None if array is None else [int(value) for value in array.flat]


def _adds_zeros(pad: NodeOp, store: WeightStore) -> bool:
    if pad.str_attr("mode", "constant") != "constant":
        return False
    if pad.operand(2) is None:
        return pad.float_attr("value", 0.0) == 0
    array = constant_operand(pad.operand(2), store)
    return array is not None and array.size == 1 and not array.any()
