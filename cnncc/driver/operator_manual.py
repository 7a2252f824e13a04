"""docs/operators.md from the readers of ONNX nodes: `python -m cnncc.driver.operator_manual` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from inspect import getdoc

from cnncc.driver.pass_manual import passes, summary
from cnncc.frontend.graph_limits import MOST_ELEMENTS, MOST_NODES, MOST_STEP, MOST_TRIPS
from cnncc.passes._onnx.layers import ON_INTEGERS, OWN_READERS, READERS
from cnncc.passes._onnx.quantised_layers import QUANTISED_READERS
from cnncc.passes._onnx.random_nodes import RANDOM_OPS
from cnncc.passes._onnx.windows import MOST_SIDE

_HEAD = """# Supported operators

Generated from the readers of ONNX nodes by `python -m cnncc.driver.operator_manual`; do not edit.

Every operator of ONNX and onnxruntime is accepted. The array runs the operators below, of all opsets. All others run on
the host, by onnxruntime, and so does a node that breaks a limit. `cnncc check MODEL.onnx` names each node on the host,
with the reason. [adding-an-operator.md](adding-an-operator.md) adds an operator. Two kinds of nodes are refused:

- Operators that onnxruntime does not know, unless the model defines them as functions.
- Nodes that draw random numbers, as no two runs would agree: Dropout in training mode, and
  {random}.

These limits hold for every node on the array:

- Values are f32, or int8 and uint8 in models that are quantised already. f16 is taken as f32, also in inputs and
  outputs; operators round to f16 no more. Values have at most 4 dimensions, all known and not 0. `--batch` and
  `--shape` give symbolic dimensions their sizes ([ladder.md](ladder.md#sizes-that-the-file-leaves-open)).
- Convolutions and pools of lines n c w become those of images n c 1 w, of one row.
- A MatMul of stacked matrices by one constant matrix becomes a convolution. The host turns the matrices.
- A Split of channels becomes slices.
- A Sub of two computed f32 inputs of one shape becomes an Add, the second one times -1.
- A ConvTranspose becomes convolutions. Its weights and bias are f32 constants, its kernel is not smaller than its
  stride, and it has no dilation beside a stride. Where a DepthToSpace does not put the pixels in their places, because
  the strides differ, are above 8, or do not divide rows and columns, the host does.
- A Resize or Upsample that repeats each pixel, in squares of 2 to 8 rows and columns, becomes a DepthToSpace of its
  input so often. A Conv before a DepthToSpace becomes a Conv for each pixel of a square.
- A Conv of f32 after a SpaceToDepth becomes a Conv of the image before it. So does one after a Concat of slices, as in
  YOLOv5's Focus, or after a Transpose between two Reshapes that are a SpaceToDepth.
- A number times its Sigmoid, SiLU, becomes one function. A HardSigmoid of f32 becomes a Clip of a line; between
  conversions of codes it is a function with a table.
- An image has at most {side:,} rows and columns, with its padding.
- The first input is computed, not constant. The first result alone is used.

A model beyond one of these sizes is refused, wherever it would run:

| of | at most |
|---|---|
| the file, with external data | 2 GiB |
| nodes | {nodes:,} |
| elements of a value | {elements:,} |
| kernel_shape, pads, strides, dilations | {step:,} |
| constant trips of a Loop and of those around it; one with a condition alone is refused | {trips:,} |
"""
_FLOAT = """
## Operators of the standard domain

The last column says whether the operator also takes int8 and uint8.

| operator | limits | on integers |
|---|---|---|
"""
_QUANTISED = """
## Operators of quantised models

The model's own integers, scales and zero points are kept ([ladder.md](ladder.md#models-that-are-quantised-already)).

| operator | domain | limits |
|---|---|---|
"""
_FOLDED = """
## What passes take away

These passes run before layers are made. So Mul, Add, Sub and Div by constants, Pad, Dropout, Cast and Constant often
cost nothing ([passes.md](passes.md#onnx-on-the-operators-of-the-model)):

| pass | what it does |
|---|---|
"""


def _limits(reader: object) -> str:
    """What a reader says of itself."""
    text = getdoc(reader)
    assert text, f"{reader} has no docstring"
    return " ".join(text.split())


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _quantised() -> Iterator[tuple[str, ...]]:
    for (domain, name), (reader, _, _) in QUANTISED_READERS.items():
        yield f"`{name}`", domain or "standard", _limits(reader)


def manual() -> str:
    """The text of docs/operators.md."""
    readers = [(f"`{name}`", _limits(reader), "yes" if name in ON_INTEGERS else "") for name, reader in READERS.items()]
    readers += [
        (f"`{name}`", f"Of onnxruntime's own (com.microsoft). {_limits(each)}", "")
        for name, each in OWN_READERS.items()
    ]
    folding = [(f"`{name}`", summary(each)) for name, each in passes().items() if name.startswith("onnx-")]
    folding = [row for row in folding if row[0] != "`onnx-to-cnn`"]
    sizes = {"nodes": MOST_NODES, "elements": MOST_ELEMENTS, "step": MOST_STEP, "trips": MOST_TRIPS, "side": MOST_SIDE}
    head = _HEAD.format(random=", ".join(RANDOM_OPS), **sizes)
    return head + _FLOAT + _rows(readers) + _QUANTISED + _rows(_quantised()) + _FOLDED + _rows(folding)


if __name__ == "__main__":
    print(manual(), end="")
