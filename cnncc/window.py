"""Sliding windows, and a layer as formulas see it: an image, channels and a window, without values. No IR."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from cnncc.errors import Refusal


@dataclass(frozen=True)
class Window:
    """A sliding window: ONNX's kernel_shape, strides, pads (top left bottom right), dilations and group.

    `fill` is delivered for positions outside the image; `zero` is subtracted from every value (the
    input's zero point, so that for a convolution fill equals zero).
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    pad: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    group: int = 1
    fill: int = 0
    zero: int = 0

    def __post_init__(self) -> None:
        sizes = (len(self.kernel), len(self.stride), len(self.pad), len(self.dilation))
        if sizes != (2, 2, 4, 2):
            raise ValueError(f"kernel, stride, pad, dilation need 2, 2, 4, 2 numbers, not {sizes}")
        if min(*self.kernel, *self.stride, *self.dilation, self.group) < 1 or min(self.pad) < 0:
            raise ValueError("kernel, stride, dilation and group are at least 1, pads at least 0")

    @property
    def spans(self) -> tuple[int, int]:
        """Rows and columns from the first to the last of a window: dilation * (kernel - 1) + 1."""
        rows, cols = (d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))
        return rows, cols

    def output(self, ih: int, iw: int) -> tuple[int, int]:
        """oh, ow for an input of ih x iw: floor((i + pads - span) / stride) + 1."""
        top, left, bottom, right = self.pad
        spans = self.spans
        return (
            (ih + top + bottom - spans[0]) // self.stride[0] + 1,
            (iw + left + right - spans[1]) // self.stride[1] + 1,
        )


@dataclass(frozen=True)
class WindowedLayer:
    """A layer whose results are those of a window at all its positions.

    Raises Refusal for sizes below 1, a window larger than its image, and channels that do not fit the groups.
    """

    name: str
    image: tuple[int, int]
    inputs: int
    outputs: int
    window: Window

    def __post_init__(self) -> None:
        groups = self.window.group
        if min(*self.image, self.inputs, self.outputs) < 1:
            raise Refusal(
                f"{self.name}: image {self.image}, {self.inputs} inputs, {self.outputs} outputs: give 1 or more"
            )
        if min(self.results) < 1:
            raise Refusal(f"{self.name}: the window spans {self.window.spans} of an image of {self.image}: enlarge it")
        if self.inputs % groups or self.outputs % groups:
            raise Refusal(
                f"{self.name}: {self.inputs} inputs and {self.outputs} outputs in {groups} groups: "
                "give multiples of the groups"
            )

    @cached_property
    def results(self) -> tuple[int, int]:
        """Rows and columns of the results: R_(i+1), C_(i+1) of Heidorn et al."""
        return self.window.output(*self.image)

    @property
    def pixels(self) -> int:
        """Positions of the results."""
        return prod(self.results)

    @property
    def taps(self) -> int:
        """Weights of a kernel for one input channel: K², k x k."""
        return prod(self.window.kernel)
