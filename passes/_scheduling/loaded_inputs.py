"""Which input of a group comes from DRAM row by row into a ring, and not by overlapping blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from xdsl.ir import BlockArgument, SSAValue

from cnncc.dialects._groups import Read
from cnncc.dialects.nest import ColumnsOp, LayerOp, columns_of, image_shape, mapping_of, reads_of_values
from cnncc.passes._programs.tensors import uses
from cnncc.passes._scheduling.nest_layers import label_of, rows_apart


def loaded_values(layers: Sequence[LayerOp], rows: int, others: Collection[LayerOp]) -> Iterator[list[SSAValue]]:
    """Choices of values to load, the best one first; the last one is none. rows: of a stripe of the last layer.

    others: the layers of all strips of the group.
    """
    results = {layer.result for layer in layers}
    operands = [value for layer in layers for value in layer.operands if columns_of(value, results)[0] not in results]
    inputs = dict.fromkeys(map(_widest, operands))
    saved = {value: _rows_of_blocks(value, layers, rows) - rows_read(value, layers) for value in inputs}
    good = [
        value
        for value in inputs
        if (saved[value] > 0 and _is_streamed(value, layers)) or _is_copied_for(value, layers, others)
    ]
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


def _readers(value: SSAValue, layers: Sequence[LayerOp]) -> Iterator[tuple[LayerOp, Read]]:
    return ((layer, read) for layer in layers for read in reads_of_values(layer, [value]))


def _row_words(value: SSAValue) -> int:
    _, channels, _, cols = image_shape(value.type)
    return channels * cols


def _is_streamed(value: SSAValue, layers: Sequence[LayerOp]) -> bool:
    """Whether the value lies in DRAM for all layers that read it."""
    return all(read.operand in mapping_of(layer).stages_in("glb") for layer, read in _readers(value, layers))


def _is_copied_for(value: SSAValue, layers: Sequence[LayerOp], others: Collection[LayerOp]) -> bool:
    """Whether the value is an input of the network that would be copied to the GLB for the layers of a group alone."""
    whole, _ = columns_of(value)
    of_user = isinstance(whole, BlockArgument) and all(use.operation in others for use in uses(whole))
    staged = [(mapping_of(layer).stages_in("glb"), read.operand) for layer, read in _readers(value, layers)]
    return of_user and all(operand not in stages for stages, operand in staged) and any(stages for stages, _ in staged)


def _rows_of_blocks(value: SSAValue, layers: Sequence[LayerOp], rows: int) -> int:
    """The rows of all blocks of all layers that read the value, in stripes of about so many rows."""
    total, height = 0, image_shape(value.type)[2]
    for layer, read in _readers(value, layers):
        count = layer.sizes.data.h
        stripes = (read.rows(at, min(rows, count - at), height) for at in range(0, count, rows))
        total += sum(end - low for low, end in stripes) // (rows_apart(layer) if read.operand == "ifmap" else 1)
    return total
