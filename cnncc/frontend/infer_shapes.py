"""The types of all values of a model, by ONNX's inference instead of the file's claims.

A file's claim counts only if inference gives no type (as in onnxruntime, which warns). Pools of ceil_mode = 1 are
corrected: onnxruntime has no window that begins in the padding at the end, but ONNX's inference counts such windows up
to opset 21.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from cnncc.frontend.microsoft_ops import with_microsoft_types

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

POOLS = ("MaxPool", "AveragePool", "LpPool")
LARGE = 1024  # elements; the values of larger initializers give no shape


def infer_shapes(model: ModelProto, *, strict: bool) -> ModelProto:
    """`model` with the types of all values that can be inferred.

    Raises: InferenceError, ValueError or RuntimeError, for shapes that do not fit; hardly ever if not `strict`.
    """
    bare = deepcopy(model)
    _clear_weights(bare)
    # Inference goes first, without the file's own shapes: those may be wrong. They only fill what is left open.
    del bare.graph.value_info[:]
    given = {value.name: value for value in bare.graph.input}
    for value in bare.graph.output:
        if value.name in given:
            value.CopyFrom(given[value.name])  # ONNX would take the output's type for the input's
        else:
            value.type.tensor_type.ClearField("shape")
    bare = _with_all(bare, strict)
    known = _typed(bare)
    claims = [value for value in (*model.graph.value_info, *model.graph.output) if value.name not in known]
    if any(_has_shape(value) for value in claims):
        outputs = {value.name for value in bare.graph.output}
        bare.graph.value_info.extend(value for value in claims if value.name not in outputs)
        for value in bare.graph.output:
            value.CopyFrom(next((claim for claim in claims if claim.name == value.name), value))
        bare = _with_all(bare, strict)
    for tensor, original in zip(bare.graph.initializer, model.graph.initializer, strict=True):
        tensor.CopyFrom(original)
    return bare


def _clear_weights(model: ModelProto) -> None:
    """Leave large initializers no values: inference would copy them several times."""
    from onnx import TensorProto

    for tensor in model.graph.initializer:
        if prod(tensor.dims) > LARGE:
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))


def _has_shape(value: ValueInfoProto) -> bool:
    return not value.type.HasField("tensor_type") or value.type.tensor_type.HasField("shape")


def _typed(model: ModelProto) -> dict[str, ValueInfoProto]:
    graph = model.graph
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: value for value in values if value.HasField("type") and _has_shape(value)}


def _with_all(model: ModelProto, strict: bool) -> ModelProto:
    return with_microsoft_types(_with_pools(model, strict), partial(_with_pools, strict=False))


def _with_pools(model: ModelProto, strict: bool) -> ModelProto:
    """`model` with inferred types; pools of ceil_mode are replaced by padded ones during inference."""
    from onnx import shape_inference

    stand_in = deepcopy(model)
    while True:
        # One pool a round: the pads of a pool depend on the shapes before it.
        typed = shape_inference.infer_shapes(stand_in, strict_mode=strict, data_prop=True)
        known = _typed(typed)
        for node, original in zip(stand_in.graph.node, model.graph.node, strict=True):
            if node == original and (pads := _padded(node, known)):
                _replace(node, pads)
                break
        else:
            for node, original in zip(typed.graph.node, model.graph.node, strict=True):
                node.CopyFrom(original)
            return typed


def _padded(node: NodeProto, known: dict[str, ValueInfoProto]) -> list[int]:
    """The pads that give a pool the windows of ceil_mode without ceil_mode; empty for other nodes."""
    from onnx import helper

    attributes: dict[str, Any] = {attr.name: helper.get_attribute_value(attr) for attr in node.attribute}
    if node.op_type not in POOLS or node.domain or attributes.get("ceil_mode") != 1 or node.input[0] not in known:
        return []
    kernel = attributes.get("kernel_shape", [])
    sizes = [dim.dim_value for dim in known[node.input[0]].type.tensor_type.shape.dim][2:]
    ones, zeros = [1] * len(kernel), [0] * (2 * len(kernel))
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    pads = list(attributes.get("pads", zeros))
    lengths = {len(kernel), len(strides), len(dilations), len(pads) // 2}
    auto = attributes.get("auto_pad", b"NOTSET")
    if auto == b"VALID" or lengths != {len(sizes)} or min(strides, default=0) < 1:
        return []
    for axis, (size, window, stride, step) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        if auto != b"NOTSET":  # ⌈size / stride⌉ windows, whatever ceil_mode is
            pads[axis + len(sizes)] = max((-(-size // stride) - 1) * stride + (window - 1) * step + 1 - size, 0)
            continue
        before, after = pads[axis], pads[axis + len(sizes)]
        reach = size + before + after - (window - 1) * step - 1
        if -(-reach // stride) * stride < size + before:  # the last window begins in the image
            pads[axis + len(sizes)] += -reach % stride
    return pads


def _replace(node: NodeProto, pads: list[int]) -> None:
    """Give the pool these pads instead of ceil_mode."""
    from onnx import helper

    kept = [attribute for attribute in node.attribute if attribute.name not in ("pads", "ceil_mode")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", pads)])
