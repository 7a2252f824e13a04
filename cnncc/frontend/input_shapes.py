"""The sizes of a graph's inputs and outputs, of which a file may leave some open: `--batch` and `--shape` give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from cnncc.errors import Finding, Refusal, Refusals, hint, plural

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorShapeProto, ValueInfoProto

    Dim = TensorShapeProto.Dimension

Shapes = Mapping[str, Sequence[int]]
"""The sizes of all dims of an input or output, by its name."""
NO_SHAPES: Shapes = {}
EXAMPLE_SIZE = 224  # that a message proposes: images of many networks have it
MOST_SIZE = (1 << 63) - 1  # that a file can have


def input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """The name and the sizes in `images=1,3,224,224`. Raises ValueError."""
    name, _, sizes = text.rpartition("=")
    parts = [part.strip() for part in sizes.split(",")]
    if not name or not all(map(str.isdecimal, parts)):
        raise ValueError(f"'{text}' is not NAME=SIZES, for example images=1,3,{EXAMPLE_SIZE},{EXAMPLE_SIZE}")
    return name, tuple(map(int, parts))


def shapes_of(given: Iterable[tuple[str, Sequence[int]]]) -> Shapes:
    """The sizes of each input. Raises Refusal for an input that is there twice."""
    shapes = dict[str, Sequence[int]]()
    for name, sizes in given:
        if name in shapes:
            raise Refusal(f"--shape {name} is given twice")
        shapes[name] = sizes
    return shapes


def graph_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """The inputs that a user feeds. Before IR version 4, graphs list initializers as inputs too."""
    given = {tensor.name for tensor in graph.initializer}
    given |= {sparse.values.name for sparse in graph.sparse_initializer}
    return [value for value in graph.input if value.name not in given]


def fix_shapes(model: ModelProto, path: Path, batch: int | None, shapes: Shapes, refusals: Refusals) -> None:
    """Give symbolic dims of graph inputs the sizes of `shapes`, and then leading ones the size `batch`.

    Dims of one name have one size: another input's dim gets the size of its name, unless `shapes` has several.

    batch: None is 1, with a note in `refusals`.
    Raises: Refusal, for any other symbolic dim, and for sizes that the inputs do not have.
    """
    inputs = graph_inputs(model.graph)
    _check_shapes(model, shapes, path)
    sizes = give_shapes(inputs, shapes)
    for dim in chain.from_iterable(map(_dims, inputs)):
        if _is_symbolic(dim) and _name(dim) and len(same := sizes.get(_name(dim), set())) == 1:
            dim.dim_value = min(same)
    open_ = [value for value in inputs if (dims := _dims(value)) and _is_symbolic(dims[0])]
    leading = [_dims(value)[0] for value in open_]
    if batch is not None:
        _check_batch(inputs, leading, path, batch)
    else:
        refusals.notes += [_taken_as_one(value) for value in open_]
    # Dims of one name have one size, also in outputs and inner values.
    names = {_name(dim) for dim in leading} - {""}
    for dim in leading:
        dim.dim_value = batch or 1
    for value in (*inputs, *model.graph.output, *model.graph.value_info):
        for dim in _dims(value):
            if _is_symbolic(dim) and dim.dim_param in names:
                dim.dim_value = batch or 1
    fatal = Refusals()
    for value in inputs:
        with fatal.kept():
            _check_input(value, path)
    fatal.raise_any(str(path))


def _dims(value: ValueInfoProto) -> Sequence[Dim]:
    """The dims of a tensor; empty for a scalar or a value that is no tensor."""
    return value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()


def _is_symbolic(dim: Dim) -> bool:
    return not dim.HasField("dim_value") or dim.dim_value < 0


def _name(dim: Dim) -> str:
    """The name of a symbolic dim, if it has one: exporters write `?` for several that are not the same."""
    return dim.dim_param if any(map(str.isalpha, dim.dim_param)) else ""


def _check_shapes(model: ModelProto, shapes: Shapes, path: Path) -> None:
    """Raises Refusal for names that are none of the graph's, and for sizes that its dims do not have."""
    by_name = {value.name: value for value in (*model.graph.output, *graph_inputs(model.graph))}
    refusals = Refusals()
    for name, shape in shapes.items():
        unknown = [f"there is no such input or output; {hint(name, by_name)}"]
        for what in _misfits(_dims(by_name[name]), shape) if name in by_name else unknown:
            where = f"--shape {name}"
            refusals.add(Refusal(f"{path}: {where}: {what}", Finding(what, where=where)))
    refusals.raise_any(str(path))


def give_shapes(values: Iterable[ValueInfoProto], shapes: Shapes) -> dict[str, set[int]]:
    """Give the symbolic dims of values that `shapes` names their sizes. The sizes by the names of such dims."""
    sizes: dict[str, set[int]] = {}
    for value in values:
        for dim, size in zip(_dims(value), shapes.get(value.name, ()), strict=False):
            if _is_symbolic(dim):
                sizes.setdefault(_name(dim), set()).add(size)
                dim.dim_value = size
    return sizes


def _misfits(dims: Sequence[Dim], shape: Sequence[int]) -> Iterator[str]:
    """Why dims cannot have these sizes."""
    if len(dims) != len(shape):
        yield f"it has {plural(len(dims), 'dim')}, not {len(shape)}"
        return
    for index, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if not 1 <= size <= MOST_SIZE:
            yield f"dim {index} is {size}, expected 1 to {MOST_SIZE}"
        elif not _is_symbolic(dim) and dim.dim_value != size:
            yield f"dim {index} has the fixed size {dim.dim_value}, not {size}"


def _taken_as_one(value: ValueInfoProto) -> Finding:
    what = f"dim 0 is symbolic ({_dim_name(value, 0)}) and taken as 1"
    return Finding(what, "note", where=f"input '{value.name}'", help="--batch N gives another size")


def _check_batch(inputs: list[ValueInfoProto], leading: list[Dim], path: Path, batch: int) -> None:
    if not 1 <= batch <= MOST_SIZE:
        raise Refusal(f"{path}: batch {batch}, expected 1 to {MOST_SIZE}")
    fixed = [value for value in inputs if (dims := _dims(value)) and dims[0].dim_value != batch]
    if not leading and fixed:
        size = _dims(fixed[0])[0].dim_value
        raise Refusal(f"{path}: input '{fixed[0].name}' has the fixed leading size {size}, not batch {batch}")


def _dim_name(value: ValueInfoProto, index: int) -> str:
    name = _dims(value)[index].dim_param
    return repr(name) if name else "without a name"


def _check_input(value: ValueInfoProto, path: Path) -> None:
    """Raises Refusal for symbolic dims."""
    refusals, where, dims = Refusals(), f"input '{value.name}'", _dims(value)
    example = ",".join(str(EXAMPLE_SIZE if _is_symbolic(dim) else dim.dim_value) for dim in dims)
    remedy = f"give its size, for example --shape {value.name}={example}"
    for index, dim in enumerate(dims):
        if _is_symbolic(dim):
            what = f"dim {index} is symbolic ({_dim_name(value, index)})"
            refusals.add(Refusal(f"{path}: {where}: {what}: {remedy}", Finding(what, where=where, help=remedy)))
    refusals.raise_any(str(path))
