"""Reads an ONNX file that nobody vouches for: checked, whole, of fixed shapes and typed.

What is wrong with it is a Refusal, whatever the ONNX library makes of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnncc.errors import Refusal
from cnncc.frontend.run_onnx import OnnxSession

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto, TensorShapeProto, ValueInfoProto

    Dim = TensorShapeProto.Dimension

SIZE_LIMIT_BYTES = (1 << 31) - 1  # of one protobuf message, which ONNX's checker and inference need
INPUT_LIMIT_ELEMENTS = 1 << 31


def load_onnx(path: Path, batch: int | None = None) -> ModelProto:
    """The model in `path`, with external data loaded, symbolic input dims fixed and shapes inferred.

    `batch` is the size of symbolic leading dims of graph inputs, and of dims of the same names.

    Raises: Refusal for whatever is wrong with the file or with `batch`.
    """
    model = _read(path)
    _load_external_data(model, path)
    if model.ByteSize() > SIZE_LIMIT_BYTES:
        raise Refusal(f"{path}: {model.ByteSize()} bytes with its external data, the limit is 2 GiB")
    _check(model, path)
    _fix_shapes(model, path, batch)
    return _inferred(model, path)


def graph_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """The inputs that a user feeds: before IR version 4 initializers are listed as inputs, too."""
    given = {tensor.name for tensor in graph.initializer}
    given |= {sparse.values.name for sparse in graph.sparse_initializer}
    return [value for value in graph.input if value.name not in given]


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip()[:500] if lines else type(error).__name__


def _read(path: Path) -> ModelProto:
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    try:
        size_bytes = path.stat().st_size
        if size_bytes > SIZE_LIMIT_BYTES:
            raise Refusal(f"{path}: {size_bytes} bytes, the limit is 2 GiB: use external data")
        model = ModelProto.FromString(path.read_bytes())
    except OSError as error:
        raise Refusal(f"{path}: cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise Refusal(f"{path}: not an ONNX model, or truncated") from error
    if not model.HasField("graph"):
        raise Refusal(f"{path}: not an ONNX model: it has no graph")
    return model


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """`graph` and all graphs in attributes of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _graphs(inner)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """All tensors in `graph` and the graphs inside it that may have external data."""
    for inner in _graphs(graph):
        yield from inner.initializer
        for sparse in inner.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in inner.node:
            for attribute in node.attribute:
                yield from (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else []))


def _load_external_data(model: ModelProto, path: Path) -> None:
    """Load arrays stored beside the model. Raises Refusal for a place outside the model's own folder."""
    from onnx import TensorProto

    folder = path.resolve().parent
    for tensor in _tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        where = f"{path}: external data '{location}' of tensor '{tensor.name}'"
        file = (folder / location).resolve()
        if not location or Path(location).is_absolute() or not file.is_relative_to(folder):
            raise Refusal(f"{where}: not inside the model's own folder")
        tensor.raw_data = _slice(file, entries, where)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def _slice(file: Path, entries: dict[str, str], where: str) -> bytes:
    """The bytes of `file` that external-data `entries` name."""
    try:
        size_bytes = file.stat().st_size
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(size_bytes - offset)))
        if offset < 0 or length < 0 or offset + length > size_bytes:
            raise Refusal(f"{where}: bytes {offset} to {offset + length} of a file of {size_bytes}")
        with file.open("rb") as stream:
            stream.seek(offset)
            return stream.read(length)
    except OSError as error:
        raise Refusal(f"{where}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Refusal(f"{where}: offset or length is not a number") from error


def _check(model: ModelProto, path: Path) -> None:
    from onnx import checker

    untyped: Any = checker
    try:
        untyped.check_model(model)
    except (checker.ValidationError, ValueError, RuntimeError) as error:
        raise Refusal(f"{path}: not a valid ONNX model: {_first_line(error)}") from error


def _dims(value: ValueInfoProto) -> Sequence[Dim]:
    """The dims of a tensor; none for a scalar or a value that is no tensor."""
    return value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()


def _is_symbolic(dim: Dim) -> bool:
    return not dim.HasField("dim_value") or dim.dim_value < 0


def _fix_shapes(model: ModelProto, path: Path, batch: int | None) -> None:
    """Give symbolic dims of graph inputs the size `batch`. Raises Refusal for one that stays open."""
    inputs = graph_inputs(model.graph)
    leading = [dims[0] for value in inputs if (dims := _dims(value)) and _is_symbolic(dims[0])]
    if batch is not None:
        _check_batch(inputs, leading, path, batch)
        names = {dim.dim_param for dim in leading} - {""}
        for dim in leading:
            dim.dim_value = batch
        for value in (*inputs, *model.graph.output, *model.graph.value_info):
            for dim in _dims(value):
                if _is_symbolic(dim) and dim.dim_param in names:
                    dim.dim_value = batch
    for value in inputs:
        _check_input(value, path, batch)


def _check_batch(inputs: list[ValueInfoProto], leading: list[Dim], path: Path, batch: int) -> None:
    if batch < 1:
        raise Refusal(f"{path}: batch {batch}, expected at least 1")
    fixed = [value for value in inputs if (dims := _dims(value)) and dims[0].dim_value != batch]
    if not leading and fixed:
        size = _dims(fixed[0])[0].dim_value
        raise Refusal(f"{path}: input '{fixed[0].name}' has the fixed leading size {size}, not batch {batch}")


def _check_input(value: ValueInfoProto, path: Path, batch: int | None) -> None:
    if not value.type.HasField("tensor_type"):
        return
    what = f"{path}: input '{value.name}'"
    for index, dim in enumerate(_dims(value)):
        if _is_symbolic(dim):
            name = f"'{dim.dim_param}'" if dim.dim_param else "without a name"
            remedy = "give its size with --batch N" if index == 0 and batch is None else "fix it in the model"
            raise Refusal(f"{what}: dim {index} is symbolic ({name}): {remedy}")
    elements = math.prod(dim.dim_value for dim in _dims(value))
    if elements > INPUT_LIMIT_ELEMENTS:
        raise Refusal(f"{what} has {elements} elements, the limit is {INPUT_LIMIT_ELEMENTS}")


def _inferred(model: ModelProto, path: Path) -> ModelProto:
    """`model` with the types of all values that ONNX can infer."""
    import onnx

    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        # Strict inference trips over a few valid models: onnxruntime has the last word.
        try:
            OnnxSession(model)
        except Refusal:
            raise Refusal(f"{path}: its shapes do not fit together: {_first_line(error)}") from error
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
