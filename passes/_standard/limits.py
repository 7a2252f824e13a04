"""Checks that standard integers hold a layer's values; others are refused. No IR is written here."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, IntegerType, ModuleOp, Signedness, TensorType, f32
from xdsl.ir import Attribute

from cnncc.dialects.nest import LayerOp
from cnncc.errors import Refusal
from cnncc.numerics import SEGMENTS, integer_range
from cnncc.weights import Array

DEFAULT_PSUM_BITS = 32


def sum_type(module: ModuleOp) -> IntegerType:
    """The integer type of the psums of `module`: i32, or i64 for wider psums."""
    bits = module.attributes.get("cnn.psum_bits")
    wide = isinstance(bits, IntegerAttr) and bits.value.data > DEFAULT_PSUM_BITS
    return IntegerType(64 if wide else 32)


def integer_tensor(what: str, kind: Attribute, most: IntegerType) -> IntegerType:
    """The element type of a tensor of signless integers of at most the width of `most`. Raises Refusal."""
    element = kind.element_type if isinstance(kind, TensorType) else kind
    if not isinstance(element, IntegerType) or not _is_signless(element, most.width.data):
        raise Refusal(f"{what} is {kind}: it must hold signless integers of at most {most}")
    return element


def _is_signless(kind: IntegerType, bits: int) -> bool:
    """Whether `kind` is a signless integer of at most `bits`."""
    return kind.signedness.data == Signedness.SIGNLESS and kind.width.data <= bits


def check_layer(layer: LayerOp, psum: IntegerType, table: Array | None) -> None:
    """Raises Refusal if a value of the layer may not fit its type. table: the entries of its table, if it has one."""
    ifmap = integer_tensor("the ifmap", layer.ifmap.type, psum)
    if layer.residual is not None:
        integer_tensor("the residual", layer.residual.type, psum)
    _check_fits("the ifmap less its zero point", _terms(layer, ifmap), psum)
    reach = _reach(layer, ifmap, psum)
    if table is not None and not layer.steps.data.factors:
        reach = int(table.min()), int(table.max())
    _check_fits("the result", reach, integer_tensor("the result", layer.result.type, psum))


def check_parameters(layer: LayerOp, types: dict[str, TensorType], psum: IntegerType) -> None:
    """Raises Refusal if weight, bias, scale or factors in `types` do not have the layer's shape and element."""
    sizes, per_position = layer.sizes.data, layer.steps.data.per_position
    shapes = {
        "weight": (sizes.k, sizes.c, sizes.r, sizes.s),
        "bias": (sizes.k,),
        "scale": (sizes.h, sizes.w) if per_position else (sizes.k,),
        "factors": (3,),
        "table": (SEGMENTS + 1,),
    }
    for name, kind in types.items():
        if kind.get_shape() != shapes[name]:
            raise Refusal(f"its {name} is {kind}: the layer reads {list(shapes[name])}")
        if name == "table" and kind.element_type != IntegerType(16):
            raise Refusal(f"its {name} is {kind}: it must hold i16")
        if name in ("weight", "bias", "table"):
            integer_tensor(f"its {name}", kind, psum)
        elif kind.element_type != f32:
            raise Refusal(f"its {name} is {kind}: it must hold f32")


def _terms(layer: LayerOp, ifmap: IntegerType) -> tuple[int, int]:
    """The least and the greatest value that a window may hold, padding included, less the zero point."""
    window = layer.window.data
    values = [*integer_range(ifmap.width.data), *([window.fill] if any(window.pad) else [])]
    return min(values) - window.zero, max(values) - window.zero


def _reach(layer: LayerOp, ifmap: IntegerType, psum: IntegerType) -> tuple[int, int]:
    """Bounds of the output from types and clamps."""
    steps = layer.steps.data
    if steps.factors:
        return steps.add_clamp
    lo, hi = steps.clamp
    if steps.scale:
        return lo, hi
    if layer.kind.data == "mac" or steps.bias:
        # Of sums no more is known here than that they fit: this was proven when the network was quantised.
        least, greatest = integer_range(psum.width.data)
    else:
        terms = 1 if layer.kind.data == "max" else layer.sizes.data.r * layer.sizes.data.s
        least, greatest = (edge * terms for edge in _terms(layer, ifmap))
    return min(max(least, lo), hi), min(max(greatest, lo), hi)


def _check_fits(what: str, reach: tuple[int, ...], kind: IntegerType) -> None:
    least, greatest = integer_range(kind.width.data)
    if reach[0] < least or reach[1] > greatest:
        raise Refusal(f"{what} may be {reach[0]} to {reach[1]}, {kind} holds {least} to {greatest}")
