"""Which input of a group comes from DRAM row by row into a ring, and not by overlapping blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Mapping as Map

from xdsl.ir import BlockArgument, SSAValue

from cnncc.dialects.nest import ColumnsOp, LayerOp, columns_of, image_shape, reads_of_values
from cnncc.mapping.groups import RowRead
from cnncc.mapping.mapping import Mapping
from cnncc.passes._programs.tensors import uses
from cnncc.passes._scheduling.nest_layers import label_of, rows_apart


def loaded_values(
    layers: Sequence[LayerOp], rows: int, nests: Map[LayerOp, Mapping], others: Collection[LayerOp] = ()
) -> Iterator[list[SSAValue]]:
    """Choices of values to load, the best one first; the last one is none.

    - rows: of a stripe of the last layer
    - nests: of these layers, which say what lies in DRAM
    - others: the layers of all strips of the group, if it has several
    """
    results = {layer.result for layer in layers}
    every = [value for layer in layers for value in layer.operands]
    operands = [value for value in every if columns_of(value, results).whole not in results]
    inputs = dict.fromkeys(map(_widest, operands))
    saved = {value: _rows_of_blocks(value, layers, rows) - rows_read(value, layers) for value in inputs}
    good = [
        value
        for value in inputs
        if (saved[value] > 0 and _is_streamed(value, layers, nests))
        or _is_for_these(value, layers, nests, others or layers)
    ]
    # One value at most: transfers of two loads would take each other's tokens.
    yield from ([value] for value in sorted(good, key=lambda value: -saved[value] * _row_words(value)))
    yield []


def _widest(value: SSAValue) -> SSAValue:
    """The columns of a whole value that a value is columns of; itself where it is a whole value."""
    while isinstance(value.owner, ColumnsOp) and isinstance(value.owner.x.owner, ColumnsOp):
        value = value.owner.x
    return value


def load_label(value: SSAValue, layers: Sequence[LayerOp]) -> str:
    """The label of a load: of the first layer that reads the value, and as what it does."""
    layer, read = next(_readers(value, layers))
    return f"{label_of(layer)}.{read.operand}"


def rows_read(value: SSAValue, layers: Sequence[LayerOp]) -> int:
    """Rows of the value up to the last one that a layer reads."""
    height = image_shape(value.type)[2]
    return max(read.rows(0, layer.sizes.data.h, height)[1] for layer, read in _readers(value, layers))


def _readers(value: SSAValue, layers: Sequence[LayerOp]) -> Iterator[tuple[LayerOp, RowRead]]:
    return ((layer, read) for layer in layers for read in reads_of_values(layer, [value]))


def _row_words(value: SSAValue) -> int:
    _, channels, _, cols = image_shape(value.type)
    return channels * cols


def _is_streamed(value: SSAValue, layers: Sequence[LayerOp], nests: Map[LayerOp, Mapping]) -> bool:
    """Whether the value lies in DRAM for all layers that read it."""
    return all(read.operand in nests[layer].glb_stages for layer, read in _readers(value, layers))


def _is_for_these(
    value: SSAValue, layers: Sequence[LayerOp], nests: Map[LayerOp, Mapping], others: Collection[LayerOp]
) -> bool:
    """Whether the value is an input of the network that a group alone reads; never in nests without stages."""
    whole = columns_of(value).whole
    of_user = isinstance(whole, BlockArgument) and all(use.operation in others for use in uses(whole))
    return of_user and any(nests[layer].stages for layer, _ in _readers(value, layers))


def _rows_of_blocks(value: SSAValue, layers: Sequence[LayerOp], rows: int) -> int:
    """The rows of all blocks of all layers that read the value, in stripes of about so many rows."""
    total, height = 0, image_shape(value.type)[2]
    for layer, read in _readers(value, layers):
        count = layer.sizes.data.h
        stripes = (read.rows(at, min(rows, count - at), height) for at in range(0, count, rows))
        # `read.rows` counts from the first row to the last; a block leaves out those that a kernel of one row skips.
        total += sum(end - low for low, end in stripes) // (rows_apart(layer) if read.operand == "ifmap" else 1)
    return total
