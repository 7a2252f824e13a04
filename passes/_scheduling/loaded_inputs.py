"""Which input of a group comes from DRAM row by row into a ring, and not by overlapping blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xdsl.ir import BlockArgument, SSAValue

from cnncc.dialects import nest
from cnncc.dialects._groups import Read
from cnncc.dialects.nest import LayerOp, image_shape, reads_of_values
from cnncc.passes._scheduling.nest_layers import label_of, rows_apart


def loaded_values(
    layers: Sequence[LayerOp], rows: int, nests: Mapping[LayerOp, nest.Mapping]
) -> Iterator[list[SSAValue]]:
    """Choices of values to load, the best one first; the last one is none. rows: of a stripe of the last layer.

    nests: of these layers, which say what lies in DRAM.
    """
    results = {layer.result for layer in layers}
    inputs = dict.fromkeys(value for layer in layers for value in layer.operands if value not in results)
    saved = {value: _rows_of_blocks(value, layers, rows) - rows_read(value, layers) for value in inputs}
    good = [
        value
        for value in inputs
        if (saved[value] > 0 and _is_streamed(value, layers, nests)) or _is_for_these(value, layers, nests)
    ]
    yield from ([value] for value in sorted(good, key=lambda value: -saved[value] * _row_words(value)))
    yield []


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


def _is_streamed(value: SSAValue, layers: Sequence[LayerOp], nests: Mapping[LayerOp, nest.Mapping]) -> bool:
    """Whether the value lies in DRAM for all layers that read it."""
    return all(read.operand in nests[layer].stages_in("glb") for layer, read in _readers(value, layers))


def _is_for_these(value: SSAValue, layers: Sequence[LayerOp], nests: Mapping[LayerOp, nest.Mapping]) -> bool:
    """Whether the value is an input of the network that these layers alone read, and not in nests without stages."""
    of_user = isinstance(value, BlockArgument) and all(use.operation in layers for use in value.uses)
    return of_user and any(nests[layer].stages for layer, _ in _readers(value, layers))


def _rows_of_blocks(value: SSAValue, layers: Sequence[LayerOp], rows: int) -> int:
    """The rows of all blocks of all layers that read the value, in stripes of about so many rows."""
    total, height = 0, image_shape(value.type)[2]
    for layer, read in _readers(value, layers):
        count = layer.sizes.data.h
        stripes = (read.rows(at, min(rows, count - at), height) for at in range(0, count, rows))
        total += sum(end - low for low, end in stripes) // (rows_apart(layer) if read.operand == "ifmap" else 1)
    return total
