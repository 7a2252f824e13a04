"""Layers that read a flattened value, as layers of the value itself. No pass.

Rows of a value go from layer to layer on cores, and a flattened value has none. A layer with a channel for each of its
words, as a Gemm, computes the same as a layer whose window is the whole value. Its weights lie as before: for each
output those of all channels, of each channel row by row.

    %1 = cnn.reshape %0 : tensor<1x16x7x7xi8> -> tensor<1x784x1x1xi8>
    %2 = nest.layer "mac" %1 weights @w sizes <n = 1, k = 10, c = 784, h = 1, w = 1, r = 1, s = 1> …
    ->
    %2 = nest.layer "mac" %0 weights @w sizes <n = 1, k = 10, c = 16, h = 1, w = 1, r = 7, s = 7> …
"""

from __future__ import annotations

from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter

from cnncc.dialects.cnn import ReshapeOp, WindowAttr
from cnncc.dialects.nest import LayerOp, SizesAttr, build_nest, image_shape
from cnncc.dialects.weights import GlobalOp, RefAttr, constant_array, tensor_type
from cnncc.passes._programs.tensors import source
from cnncc.passes._scheduling.rewrites import canonical
from cnncc.weights import WeightStore


def read_unflattened(module: ModuleOp, store: WeightStore) -> None:
    """Let layers read a value itself instead of its flattened form, if they compute the same from it."""
    for layer in [op for op in module.walk() if isinstance(op, LayerOp)]:
        value, flat = source(layer.ifmap), layer.ifmap
        if value is flat or not (
            image_shape(value.type) == image_shape(flat.type) or _whole(module, store, layer, value)
        ):
            continue
        layer.operands[0] = value
        while isinstance(reshape := flat.owner, ReshapeOp) and not list(flat.uses):
            flat = reshape.x
            Rewriter.erase_op(reshape)


def _whole(module: ModuleOp, store: WeightStore, layer: LayerOp, value: SSAValue) -> bool:
    """Give a layer of one pixel a window that is the whole value. Whether it could be done."""
    sizes, window = layer.sizes.data, layer.window.data
    _, channels, rows, cols = image_shape(value.type)
    pixel = (sizes.h, sizes.w, sizes.r, sizes.s, window.group) == (1, 1, 1, 1, 1) and not any(window.pad)
    name = layer.weights.root_reference.data if layer.weights else ""
    old = next((op for op in module.ops if isinstance(op, GlobalOp) and op.sym_name.data == name), None)
    if not pixel or sizes.c != channels * rows * cols or old is None:
        return False
    # The weights get another shape below, which another reader would not expect.
    if sum(isinstance(op, LayerOp) and op.weights == layer.weights for op in module.walk()) > 1:
        return False
    array = constant_array(old, store).reshape(sizes.k, channels, rows, cols)
    old.value, old.type = RefAttr.to(array, store), tensor_type(array)
    layer.sizes = SizesAttr(replace(sizes, c=channels, r=rows, s=cols))
    layer.window = WindowAttr(replace(window, kernel=(rows, cols), stride=(1, 1), dilation=(1, 1)))
    layer.detach_region(layer.body)
    layer.add_region(build_nest(canonical(layer.sizes.data)))
    return True
