"""The layers of a chain as the paper's equations see them, given as records or read from the `cnn` dialect.

| paper | here | meaning |
|---|---|---|
| R_i, C_i | `image` | rows and columns of the input |
| N_i | `inputs` | input channels |
| M_i | `outputs` | output channels; of a pool the paper says 1, and `outputs` is N_i |
| K_i, S_i | `window` | kernel and stride, with padding and dilation |
| R_(i+1), C_(i+1) | `results` | rows and columns of the output |

A *pixel* is all channels at one position. The letters R, C and K name other dimensions than the loops `r`, `c` and `k`
of mappings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from cnncc.dialects.cnn import ConvOp, PoolOp, ReshapeOp, shape, value_key
from cnncc.errors import Refusal
from cnncc.main_function import main_function
from cnncc.window import WindowedLayer


@dataclass(frozen=True)
class ChainLayer(WindowedLayer):
    """A convolution, a pool (`weighted` is false) or a fully connected layer (a convolution with one result).

    >>> from cnncc.window import Window
    >>> ChainLayer("conv", (28, 28), 1, 24, Window((3, 3), pad=(1, 1, 1, 1))).results
    (28, 28)

    Raises Refusal for sizes below 1, a window larger than its image, and channels that do not fit the groups.
    """

    weighted: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weighted and self.outputs != self.inputs:
            raise Refusal(f"{self.name}: a pool of {self.inputs} inputs has {self.outputs} outputs: give as many")

    @property
    def depth(self) -> int:
        """Input channels of one output channel: N of a plain convolution, 1 of pools and depthwise layers."""
        return self.inputs // self.window.group if self.weighted else 1

    @property
    def weights(self) -> int:
        """B^w in words: M · N · K², 0 of a pool."""
        return self.outputs * self.depth * self.taps if self.weighted else 0


def checked_chain(layers: Sequence[ChainLayer]) -> Sequence[ChainLayer]:
    """The layers. Raises Refusal unless there are some and each reads what the layer before it gives."""
    if not layers:
        raise Refusal("the chain has no layers: give one or more")
    for last, layer in zip(layers, layers[1:], strict=False):
        given, read = (last.outputs, *last.results), (layer.inputs, *layer.image)
        if given != read:
            raise Refusal(
                f"{layer.name}: reads {read} (channels, rows, columns), {last.name} gives {given}: make them equal"
            )
    return layers


def chain_layers(module: ModuleOp) -> list[ChainLayer]:
    """The layers of `main`, whose epilogues are fused (`cnn-fuse-epilogue`).

    A fully connected layer behind a flattened image becomes a convolution whose kernel is the whole image.
    Raises Refusal for a network that is no chain of convolutions, pools and fully connected layers with one frame.
    """
    main = main_function(module)
    value: SSAValue = main.body.block.args[0]
    if len(main.body.block.args) > 1:
        raise Refusal(f"main: {len(main.body.block.args)} inputs, a chain has 1")
    layers = list[ChainLayer]()
    for op in main.body.block.ops:
        if isinstance(op, ReturnOp):
            break
        if tuple(op.operands) != (value,):
            raise Refusal(f"{_name(op)}: does not read the value before it alone: a chain has no branches")
        if isinstance(op, ConvOp | PoolOp):
            layers.append(_layer(op, layers))
        elif not isinstance(op, ReshapeOp):
            raise Refusal(f"{_name(op)}: {op.name} is no layer of a chain: convolutions, pools and reshapes are")
        value = op.results[0]
    return list(checked_chain(layers))


def _name(op: Operation) -> str:
    return value_key(op) or op.name


def _layer(op: ConvOp | PoolOp, before: Sequence[ChainLayer]) -> ChainLayer:
    frames, inputs, rows, cols = shape(op.x.type)
    if frames != 1:
        raise Refusal(f"{_name(op)}: {frames} frames at once, the calculus takes 1: compile with --batch 1")
    label = op.label.data if op.label else _name(op)
    outputs = shape(op.result.type)[1]
    layer = ChainLayer(label, (rows, cols), inputs, outputs, op.window.data, isinstance(op, ConvOp))
    if before and before[-1].results != (1, 1) and isinstance(op.x.owner, ReshapeOp):
        return _on_image(layer, before[-1])
    return layer


def _on_image(layer: ChainLayer, last: ChainLayer) -> ChainLayer:
    """A fully connected layer of flattened pixels, as a convolution. Other layers stay, and do not fit the chain."""
    if layer.image != (1, 1) or not layer.weighted or layer.window.group > 1:
        return layer
    return replace(layer, image=last.results, inputs=last.outputs, window=replace(layer.window, kernel=last.results))
