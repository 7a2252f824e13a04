"""Reads an untrusted ONNX file into a model that is checked, whole, typed and of fixed shapes.

Every fault is a Refusal, whatever exception the ONNX library raises.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnncc.errors import Finding, Refusal, Refusals, refusals_of
from cnncc.frontend.graph_limits import check_nodes, check_values, node_label, tensors
from cnncc.frontend.half_floats import widen_halves
from cnncc.frontend.infer_shapes import infer_shapes
from cnncc.frontend.input_shapes import NO_SHAPES, Shapes, fix_shapes, give_shapes, graph_inputs
from cnncc.frontend.microsoft_ops import unknown_attribute
from cnncc.frontend.node_order import sort_nodes
from cnncc.frontend.run_onnx import OnnxSession
from cnncc.util.files import read_bytes

if TYPE_CHECKING:
    from onnx import ModelProto

SIZE_LIMIT_BYTES = (1 << 31) - 1  # of one protobuf message, which ONNX's checker and inference need
MOST_OPSET = (1 << 31) - 1  # that the checker takes; it says so itself


def load_onnx(path: Path, batch: int | None = None, shapes: Shapes = NO_SHAPES) -> ModelProto:
    """The model in `path`, with external data loaded, symbolic input dims fixed and shapes inferred.

    batch: the size of symbolic leading dims of graph inputs, and of dims of the same names; None: 1.
    shapes: see `fix_shapes`.
    Raises: Refusal, for any fault of the file, of `batch` or of `shapes`.
    """
    return read_model(path, Refusals(), batch, shapes)


def read_model(path: Path, refusals: Refusals, batch: int | None = None, shapes: Shapes = NO_SHAPES) -> ModelProto:
    """The model of `load_onnx`; `refusals` notes symbolic leading dims that become 1, and f16. Raises Refusal."""
    model, encoded = _read(path)
    check_nodes(model, path)
    # ONNX's checker, below, wants whole data, and each node behind those that it reads.
    loaded = _load_external_data(model, path)
    _check_size(model, path, "with its external data")
    with refusals_of(f"{path}: not a valid ONNX model"):
        moved = sort_nodes(model.graph)
    if loaded or moved:
        encoded = model.SerializeToString()
    _check(model, encoded, path)
    _check_attributes(model, path)
    fix_shapes(model, path, batch, shapes, refusals)
    inferred = with_shapes(model, path)
    # Inference leaves sizes of outputs open that depend on values.
    give_shapes(inferred.graph.output, shapes)
    if widen_halves(inferred):
        _check_size(inferred, path, "with f32 in place of f16")
        refusals.notes.append(Finding("f16 is taken as f32, which has all its values", "note", where="model"))
    check_values(inferred.graph, graph_inputs(inferred.graph), path)
    return inferred


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip()[:500] if lines else type(error).__name__


def _read(path: Path) -> tuple[ModelProto, bytes]:
    """The model, and its encoding. Raises Refusal."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    if path.suffix == ".mlir":
        raise Refusal(
            f"{path}: is IR, not an ONNX model: give the model; cnncc compile --from runs IR on down to a binary"
        )
    if path.suffix == ".cnb":
        raise Refusal(
            f"{path}: is a binary, not an ONNX model: give the model that it was compiled from; cnncc run, estimate, "
            f"disasm, messages and verify --prove take binaries"
        )
    encoded = read_bytes(path, SIZE_LIMIT_BYTES, "the limit is 2 GiB: use external data")
    try:
        model = ModelProto.FromString(encoded)
    except DecodeError as error:
        raise Refusal(f"{path}: not an ONNX model, or truncated") from error
    if not model.HasField("graph"):
        raise Refusal(f"{path}: not an ONNX model: it has no graph")
    return model, encoded


def _load_external_data(model: ModelProto, path: Path) -> bool:
    """Load arrays stored beside the model; whether there are any.

    Raises: Refusal, for a place outside the model's own folder.
    """
    from onnx import TensorProto

    folder, has_any = path.resolve().parent, False
    for tensor in tensors(model.graph):
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
        has_any = True
    return has_any


def _check_size(model: ModelProto, path: Path, how: str) -> None:
    if model.ByteSize() > SIZE_LIMIT_BYTES:
        raise Refusal(f"{path}: {model.ByteSize()} bytes {how}, the limit is 2 GiB")


def _slice(file: Path, entries: dict[str, str], where: str) -> bytes:
    """The bytes of `file` that external-data `entries` name."""
    # A pipe would be waited for, and a device may never end.
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise Refusal(f"{where}: no file")
    try:
        size_bytes = file.stat().st_size
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(size_bytes - offset)))
        if offset < 0 or length < 0 or offset + length > size_bytes:
            raise Refusal(f"{where}: bytes {offset} to {offset + length} of a file of {size_bytes}")
        if length > SIZE_LIMIT_BYTES:
            raise Refusal(f"{where}: {length:,} bytes, the limit is 2 GiB")
        with file.open("rb") as stream:
            stream.seek(offset)
            return stream.read(length)
    except OSError as error:
        raise Refusal(f"{where}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Refusal(f"{where}: offset or length is not a number") from error


def _check(model: ModelProto, encoded: bytes, path: Path) -> None:
    from onnx import checker

    untyped: Any = checker
    try:
        untyped.check_model(encoded)  # given the model, it would encode it once more
    except (checker.ValidationError, ValueError, RuntimeError) as error:
        findings = _invalid_parts(model)
        what = f"{len(findings)} problems" if len(findings) > 1 else _first_line(error)
        where = f"{findings[0].where}: " if len(findings) == 1 else ""
        raise Refusal(f"{path}: not a valid ONNX model: {where}{what}", *findings) from error


def _invalid_parts(model: ModelProto) -> list[Finding]:
    """The faults of inputs, outputs, constants and nodes: unknown operators, wrong attributes."""
    from onnx import checker

    untyped: Any = checker
    context: Any = untyped.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {opset.domain: min(opset.version, MOST_OPSET) for opset in model.opset_import}
    graph = model.graph
    parts: list[tuple[Any, Any, str]] = [
        *((untyped.check_value_info, value, f"input '{value.name}'") for value in graph.input),
        *((untyped.check_value_info, value, f"output '{value.name}'") for value in graph.output),
        *((untyped.check_tensor, tensor, f"tensor '{tensor.name}'") for tensor in graph.initializer),
        *((untyped.check_node, node, node_label(node, index)) for index, node in enumerate(graph.node)),
    ]
    findings: list[Finding] = []
    for check, part, where in parts:
        try:
            check(part, context)
        except (checker.ValidationError, ValueError, RuntimeError) as error:
            findings.append(Finding(f"not valid ONNX: {_first_line(error)}", where=where))
    return findings


def _check_attributes(model: ModelProto, path: Path) -> None:
    """Refuse unknown attributes of onnxruntime's own operators, which ONNX's checker does not check. Raises Refusal."""
    refusals = Refusals()
    for index, node in enumerate(model.graph.node):
        if name := unknown_attribute(node):
            what, where = f"there is no attribute '{name}'", node_label(node, index)
            refusals.add(Refusal(f"{path}: {where}: {what}", Finding(what, where=where, help="leave it out")))
    refusals.raise_any(str(path))


def with_shapes(model: ModelProto, path: Path) -> ModelProto:
    """`model` with the types of all values that ONNX can infer. Raises Refusal for shapes that do not fit together."""
    import onnx

    try:
        return infer_shapes(model, strict=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        # Strict inference rejects a few valid models, so onnxruntime decides.
        try:
            OnnxSession(model)
        except Refusal:
            misfits = _misfits(error)
            what = f"{len(misfits)} problems" if len(misfits) > 1 else _first_line(error)
            raise Refusal(f"{path}: its shapes do not fit together: {what}", *misfits) from error
        return infer_shapes(model, strict=False)


def _misfits(error: Exception) -> list[Finding]:
    """A finding for each node in strict inference's message, without nodes that only miss another's result."""
    nodes = re.findall(r"\(op_type:(.+?)(?:, node name: (.*?))?\): (.*)", str(error))
    return [
        Finding(f"shapes do not fit: {what[:300]}", where=f"{op_type} node" + (f" '{name}'" if name else ""))
        for op_type, name, what in nodes
        if not what.endswith("expected to have type but instead is null")
    ]
