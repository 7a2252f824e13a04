"""The order of data in memory, and what another one costs (CBRAIN-10, CBRAIN-13).

A buffer gives a *line*, T_in consecutive words, in a cycle (Table 3). An operation of inter-kernel needs T_in maps at
one position, all others need positions of one map. Where data lie in the order of their scheme, an operation takes one
line. Otherwise its words lie apart: as far as a map is large, or as there are maps.

The paper states the orders (Algorithm 2, lines 4 and 5), not what they save.
"""

from __future__ import annotations

from math import prod

from cnncc.cbrain.convolution import Convolution
from cnncc.cbrain.kernel_partition import partition
from cnncc.cbrain.scheme_choice import StoredOrder, wanted_order
from cnncc.cbrain.schemes import CBrain, Scheme, layer_cycles


def lines_read(layer: Convolution, scheme: Scheme, array: CBrain, order: StoredOrder) -> int:
    """Lines of data that a layer reads, at least: words that lie apart share a line only where they are near.

    >>> from cnncc.window import Window
    >>> conv2 = Convolution("conv2", (27, 27), 96, 256, Window((5, 5), pad=(2, 2, 2, 2), group=2))
    >>> [lines_read(conv2, Scheme.INTER, CBrain(), order) for order in StoredOrder]
    [874800, 13996800]
    """
    operations = layer_cycles(layer, scheme, array)
    if order is wanted_order(scheme):
        return operations
    turns = layer.window.group * -(-layer.kernels // array.tout)
    if order is StoredOrder.INTRA:
        full, rest = divmod(layer.depth, array.tin)
        maps = full * _lines(array.tin, prod(layer.image), array.tin) + _lines(rest, prod(layer.image), array.tin)
        return turns * layer.pixels * layer.taps * maps
    rows, cols = partition(layer).kernel if scheme is Scheme.PARTITION else layer.window.kernel
    of_a_window = layer.depth * rows * _lines(cols, layer.inputs, array.tin)
    # An operation takes a line at least.
    return max(operations, turns * layer.pixels * of_a_window)


def _lines(words: int, apart: int, tin: int) -> int:
    """Lines that hold words at equal distances, at least."""
    return min(words, -(-((words - 1) * apart + 1) // tin)) if words else 0


def order_cycles(layer: Convolution, scheme: Scheme, array: CBrain, order: StoredOrder) -> int:
    """Cycles that a layer takes more if its data lie in this order: the cheaper of two ways.

    - more lines than operations, one a cycle
    - the map in the other order first: each of its words is written by itself, in a cycle

    >>> from cnncc.window import Window
    >>> conv2 = Convolution("conv2", (27, 27), 96, 256, Window((5, 5), pad=(2, 2, 2, 2), group=2))
    >>> [order_cycles(conv2, Scheme.INTER, CBrain(), order) for order in StoredOrder]
    [0, 69984]
    """
    more = lines_read(layer, scheme, array, order) - layer_cycles(layer, scheme, array)
    return min(more, layer.inputs * prod(layer.image))
