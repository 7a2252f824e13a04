"""A convolution as C-Brain's formulas see it, given as a record or read from the `cnn` dialect.

| paper | here | meaning |
|---|---|---|
| X, Y | `image` | rows and columns of an input map |
| D_in | `inputs`, `depth` | input maps of the layer, of one kernel |
| D_out | `outputs`, `kernels` | output maps of the layer, of one group |
| k, s | `window` | kernel and stride |
| k x k | `taps` | weights of a kernel for one input map |
| (X - k)/s + 1 | `results` | rows and columns of an output map |

A *pixel* is one position of an output map, a *map* one channel. The paper's kernels are square. Here they need not be:
k and s are of rows and columns each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp

from cnncc.dialects.cnn import ConvOp, shape, value_key
from cnncc.errors import Refusal
from cnncc.main_function import main_function
from cnncc.window import WindowedLayer


@dataclass(frozen=True)
class Convolution(WindowedLayer):
    """A convolution.

    >>> from cnncc.window import Window
    >>> conv2 = Convolution("conv2", (27, 27), 96, 256, Window((5, 5), pad=(2, 2, 2, 2), group=2))
    >>> conv2.results, conv2.depth, conv2.macs
    ((27, 27), 48, 223948800)

    Raises Refusal for sizes below 1, a window larger than its image, and maps that do not fit the groups.
    """

    @property
    def depth(self) -> int:
        """D_in: the input maps that one kernel reads."""
        return self.inputs // self.window.group

    @property
    def kernels(self) -> int:
        """D_out: the output maps of one group."""
        return self.outputs // self.window.group

    @property
    def dilated(self) -> bool:
        """Whether the taps of a window lie apart. The paper's never do."""
        return self.window.dilation != (1, 1)

    @property
    def weights(self) -> int:
        """Words of all kernels."""
        return self.outputs * self.depth * self.taps

    @property
    def macs(self) -> int:
        """Multiply-accumulates, those on padding included."""
        return self.pixels * self.weights

    def padded(self) -> Convolution:
        """The same convolution, with its padding as a part of the image."""
        top, left, bottom, right = self.window.pad
        image = (self.image[0] + top + bottom, self.image[1] + left + right)
        return replace(self, image=image, window=replace(self.window, pad=(0, 0, 0, 0)))


def convolution_of(op: ConvOp) -> Convolution:
    """The layer of an op, for each of its frames."""
    _, inputs, rows, cols = shape(op.x.type)
    label = op.label.data if op.label else value_key(op) or op.name
    return Convolution(label, (rows, cols), inputs, shape(op.result.type)[1], op.window.data)


def convolutions(module: ModuleOp) -> list[Convolution]:
    """The convolutions of `main`, in its order. Fully connected layers, whose image is one pixel, are left out.

    Raises Refusal for more than one frame.
    """
    main = main_function(module)
    layers = list[Convolution]()
    for op in main.walk():
        if isinstance(op, ConvOp) and (layer := convolution_of(op)).image != (1, 1):
            if (frames := shape(op.x.type)[0]) != 1:
                raise Refusal(f"{layer.name}: {frames} frames at once, the formulas are of 1: compile with --batch 1")
            layers.append(layer)
    return layers
