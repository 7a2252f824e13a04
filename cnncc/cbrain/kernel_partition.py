"""Kernel partition (Section 4.2.1): a convolution as many small ones, whose kernel is as large as their stride.

A kernel of k x k becomes g x g *pieces* of s x s (Eq. 2), filled up with zeros. The padded image falls into *small
windows* d(x, y) of s x s, which do not overlap. Piece (u, v) meets the small windows from d(u, v) on, and the sums of
all pieces are added up (Algorithm 1). So it is a convolution of stride 1, with a kernel of g x g, over small windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from cnncc.cbrain.convolution import Convolution
from cnncc.errors import Refusal
from cnncc.util.convention import PAPER, Convention
from cnncc.weights import Array

Position = tuple[int, int]


@dataclass(frozen=True)
class Partition:
    """Eq. 2: g = ⌈k / s⌉ and k_s = s, of rows and columns.

    - grid: g, the pieces along rows and columns
    - side: k_s, the rows and columns of a piece
    - windows: the rows and columns of small windows that all outputs read

    >>> from cnncc.window import Window
    >>> conv1 = Convolution("conv1", (227, 227), 3, 96, Window((11, 11), stride=(4, 4)))
    >>> partition(conv1)
    Partition(grid=(3, 3), side=(4, 4), windows=(57, 57))
    """

    grid: tuple[int, int]
    side: tuple[int, int]
    windows: tuple[int, int]

    @property
    def pieces(self) -> int:
        """G = g x g."""
        return prod(self.grid)

    @property
    def taps(self) -> int:
        """k_s x k_s."""
        return prod(self.side)

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns of the kernel with its zeros."""
        return self.grid[0] * self.side[0], self.grid[1] * self.side[1]

    @property
    def image(self) -> tuple[int, int]:
        """Rows and columns of the image with its zeros."""
        return self.windows[0] * self.side[0], self.windows[1] * self.side[1]


def partition(layer: Convolution) -> Partition:
    """Eq. 2. Raises Refusal for a dilated kernel, whose pieces would be mostly zeros."""
    if layer.dilated:
        dilation = layer.window.dilation
        raise Refusal(f"{layer.name}: dilation {dilation}, a kernel is partitioned without any: leave the kernel whole")
    (rows, cols), (down, right) = layer.window.kernel, layer.window.stride
    grid = (-(-rows // down), -(-cols // right))
    return Partition(grid, (down, right), (layer.results[0] + grid[0] - 1, layer.results[1] + grid[1] - 1))


def window_ranges(layer: Convolution, convention: Convention) -> list[tuple[Position, Position]]:
    """Algorithm 1, lines 3 and 4: for each piece the first and the last d(x, y) that it meets. All count from 1.

    Paper: both indices move with ⌊i / g⌋, and the range of x has one value too many. Corrected: piece i is in row
    (i - 1) div g and column (i - 1) mod g of the kernel.

    >>> from cnncc.window import Window
    >>> conv1 = Convolution("conv1", (227, 227), 3, 96, Window((11, 11), stride=(4, 4)))
    >>> ranges = window_ranges(conv1, Convention.CORRECTED)
    >>> ranges[0], ranges[1], ranges[-1]
    (((1, 1), (55, 55)), ((1, 2), (55, 56)), ((3, 3), (57, 57)))
    """
    (rows, cols), (down, right) = layer.results, partition(layer).grid
    if convention is PAPER:
        shifts = [i // right for i in range(1, down * right + 1)]
        return [((shift, shift + 1), (shift + rows, shift + cols)) for shift in shifts]
    return [((u + 1, v + 1), (u + rows, v + cols)) for u, v in product(range(down), range(right))]


def small_windows(x: Array, side: tuple[int, int]) -> Array:
    """Fig. 5b and c: x [a, c, rows, cols] as [a, c * s * s, rows / s, cols / s], for an image and for kernels alike.

    Channel (c * s + y) * s + x has position y, x of all small windows of channel c. `side` divides rows and columns.
    """
    (outer, channels, rows, cols), (down, right) = x.shape, side
    cut = x.reshape(outer, channels, rows // down, down, cols // right, right)
    return cut.transpose(0, 1, 3, 5, 2, 4).reshape(outer, channels * down * right, rows // down, cols // right)
