"""Conversions between the `isa` dialect and binaries: `binary_to_module` is the inverse of `build_binary`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

import cnncc
from cnncc.arch.model import Arch
from cnncc.binary.container import Binary, arch_digest, with_dram_addresses
from cnncc.dialects import isa
from cnncc.dialects.array import Tensor, TensorAttr, TensorOp
from cnncc.dialects.onnx import text
from cnncc.dialects.weights import GlobalOp, RefAttr, constant_array, tensor_type
from cnncc.errors import Refusal
from cnncc.frontend.segments import interface
from cnncc.isa.assembly import disassemble, on_one_line, parse_instruction
from cnncc.isa.codec import encode_program
from cnncc.isa.dram_layout import dram_layout
from cnncc.isa.table import Instruction
from cnncc.weights import Array, WeightStore


def build_binary(module: ModuleOp, store: WeightStore, arch: Arch, about: Mapping[str, Any] | None = None) -> Binary:
    """The binary of a module at the machine level. about: further metadata, such as the model's name and hash.

    Raises: Refusal, for weights that are no operand words, or tensors elsewhere than rule MEM-2 places them.
    """
    weights = [(op.sym_name.data, constant_array(op, store)) for op in module.ops if isinstance(op, GlobalOp)]
    tensors = [op.record.data for op in module.ops if isinstance(op, TensorOp)]
    _check_weights(weights, tensors, arch)
    kept = [t for t in tensors if t.memory != "glb" and t.role != "weight" and not t.part_of]
    for tensor, right in zip(kept, with_dram_addresses(kept, weights), strict=True):
        _check_place(tensor, right.at)
    segments = sorted((op for op in module.ops if isinstance(op, isa.SegmentOp)), key=lambda op: op.record.data.number)
    if [op.record.data.number for op in segments] != list(range(len(segments))):
        raise Refusal("host segments are not numbered from 0 on")
    models = [store[op.model.key.data].tobytes() for op in segments]
    return Binary(
        program=encode_program(isa.instructions(module)),
        weights=weights,
        tensors=[replace(tensor, words=int(np.prod(tensor.shape))) for tensor in kept],
        segments=models,
        arch=arch,
        metadata={**_metadata(module, tensors, models), "arch_sha256": arch_digest(arch), **(about or {})},
    )


def _check_weights(weights: Sequence[tuple[str, Array]], tensors: Sequence[Tensor], arch: Arch) -> None:
    places = {tensor.name: tensor for tensor in tensors if tensor.role == "weight"}
    for (name, array), at in zip(weights, dram_layout([array.size for _, array in weights]), strict=True):
        if array.dtype != np.dtype(f"int{arch.operand_bits}"):
            raise Refusal(f"weights {name} are {array.dtype}, the words of {arch.name} have {arch.operand_bits} bits")
        if name not in places:
            raise Refusal(f"weights {name} have no tensor")
        _check_place(places[name], at)
    if missing := places.keys() - {name for name, _ in weights}:
        raise Refusal(f"there are no weights {min(missing)}")


def _check_place(tensor: Tensor, at: int) -> None:
    if tensor.at != at:
        raise Refusal(f"tensor {tensor.name} lies at word {tensor.at}, rule MEM-2 has it at {at}: run array-allocate")
    if tensor.role != "weight" and tensor.words != int(np.prod(tensor.shape)):
        raise Refusal(f"tensor {tensor.name} has {tensor.words} words, its shape {list(tensor.shape)}")


def _metadata(module: ModuleOp, tensors: Sequence[Tensor], models: Sequence[bytes]) -> dict[str, Any]:
    layers = [_layer_entry(op) for op in module.ops if isinstance(op, isa.LayerOp)]
    insts = [op for op in module.ops if isinstance(op, isa.InstOp)]
    buffers = [t for t in tensors if t.memory == "glb" or t.part_of]
    return {
        "compiler": f"cnncc {cnncc.__version__}",
        "weights": [op.sym_name.data for op in module.ops if isinstance(op, GlobalOp)],
        "layers": layers,
        "segments": [{"inputs": [*inputs], "outputs": [*outputs]} for inputs, outputs in map(interface, models)],
        "buffers": [_buffer_entry(tensor) for tensor in buffers],
        "comments": {str(i): text(op.comment) for i, op in enumerate(insts) if op.comment is not None},
    }


def _buffer_entry(tensor: Tensor) -> dict[str, Any]:
    entry = {"name": tensor.name, "at": tensor.at, "words": tensor.words, "shape": list(tensor.shape)}
    part = {"memory": tensor.memory, "of": tensor.part_of, "offset": tensor.offset, "image": tensor.image}
    apart = {name: step for name in ("plane", "pitch", "column") if (step := getattr(tensor, name))}
    return {**entry, "part": part | apart} if tensor.part_of else entry


def _layer_entry(op: isa.LayerOp) -> dict[str, Any]:
    notes = {name: value.data for name, value in op.attributes.items() if isinstance(value, StringAttr)}
    return {**asdict(op.record.data), "about": notes}


# -- from a binary -----------------------------------------------------------------------------------------------------


def _entries(binary: Binary, key: str) -> Iterator[dict[str, Any]]:
    """The entries of a table in the metadata; none if it is missing or no table."""
    table = binary.metadata.get(key)
    for entry in cast("list[object]", table) if isinstance(table, list) else []:
        if isinstance(entry, dict):
            yield cast("dict[str, Any]", entry)


def layers(binary: Binary) -> list[tuple[isa.Layer, dict[str, str]]]:
    """The layers that the metadata lists, each with its notes. Raises Refusal for an entry that is no layer."""
    listed: list[tuple[isa.Layer, dict[str, str]]] = []
    for entry in _entries(binary, "layers"):
        label, value, first, count = (entry.get(key) for key in ("label", "value", "first", "count"))
        notes = entry.get("about", {})
        is_text = isinstance(label, str) and isinstance(value, str) and isinstance(notes, dict)
        if not is_text or not isinstance(first, int) or not isinstance(count, int) or min(first, count) < 0:
            raise Refusal(f"{binary.manifest}: layers: {entry} is no layer")
        texts = {str(k): str(v) for k, v in cast("dict[object, object]", notes).items()}
        listed.append((isa.Layer(cast("str", label), first, count, cast("str", value)), texts))
    return listed


def comments(binary: Binary) -> dict[int, str]:
    """Comments by number of the instruction; without any, the layers' labels at their first instructions."""
    table = binary.metadata.get("comments")
    if not isinstance(table, dict):
        return {layer.first: layer.label for layer, _ in layers(binary)}
    items = cast("dict[str, object]", table).items()
    return {int(number): str(text) for number, text in items if number.isdecimal()}


def kept_comments(binary: Binary, program: Sequence[Instruction]) -> dict[str, str]:
    """The comments that also hold of another program: of instructions that it has at the same places."""
    same = {i for i, (old, new) in enumerate(zip(binary.instructions, program, strict=False)) if old == new}
    return {str(i): comment for i, comment in comments(binary).items() if i in same}


def disassembly(binary: Binary) -> str:
    """The program of a binary as assembly, with its comments."""
    return disassemble(binary.instructions, comments(binary))


def check_names(assembly: str, binary: Binary) -> None:
    """Refuse assembly of another model: its comments name tensors that `binary` lacks or has elsewhere.

    A descriptor's comment ends with its tensor; a descriptor without a comment is accepted. Raises Refusal.
    """
    if "buffers" not in binary.metadata:
        return  # the names are unknown
    at = dict(zip((name for name, _ in binary.weights), binary.weight_places, strict=True))
    at |= {tensor.name: tensor.at for tensor in (*binary.tensors, *_buffers(binary))}
    for number, line in enumerate(assembly.splitlines(), 1):
        code, _, comment = line.partition(";")
        if not code.strip().startswith("desc") or ": " not in comment:
            continue
        # Names may contain ": ", so the comment may end with several of them.
        names = [name for name in at if comment.endswith(f": {on_one_line(name)}")]
        base = parse_instruction(code.strip()).values["base"]
        if not names:
            name = comment.rpartition(": ")[2]
            raise Refusal(f"line {number}: the data has no tensor '{name}': it is of another model")
        if base not in {at[name] for name in names}:
            where = f"is at word {at[names[0]]} in the data, not at {base}"
            raise Refusal(f"line {number}: '{names[0]}' {where}: it is of another model")


def _buffers(binary: Binary) -> Iterator[Tensor]:
    """The tensors in the GLB, and parts of other tensors, as the metadata lists them. Raises Refusal."""
    for entry in _entries(binary, "buffers"):
        try:
            shape, part = tuple(int(dim) for dim in entry["shape"]), entry.get("part")
            tensor = Tensor(str(entry["name"]), "glb", int(entry["words"]), shape, at=int(entry["at"]))
            yield _as_part(tensor, part) if part else tensor
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Refusal(f"{binary.manifest}: buffers: {entry} is no buffer") from error


def _as_part(tensor: Tensor, part: Mapping[str, Any]) -> Tensor:
    # The list has no scales: values between layers have 1 in DRAM. One in DRAM without a scale would be the host's.
    memory, scale = str(part["memory"]), 0.0 if part["memory"] == "glb" else 1.0
    steps = {name: int(part.get(name, 0)) for name in ("offset", "image", "plane", "pitch", "column")}
    return replace(tensor, memory=memory, scale=scale, part_of=str(part["of"]), **steps)


def binary_to_module(binary: Binary) -> tuple[ModuleOp, WeightStore]:
    """The module at the machine level of a binary, and the store with its weights."""
    store = WeightStore()
    return ModuleOp([*_memory_ops(binary, store), *_program_ops(binary, store)]), store


def _memory_ops(binary: Binary, store: WeightStore) -> Iterator[Operation]:
    for name, array in binary.weights:
        ref = {"value": RefAttr(StringAttr(store.add(array))), "type": tensor_type(array)}
        yield GlobalOp.create(properties={"sym_name": StringAttr(name), **ref})
    for (name, array), at in zip(binary.weights, binary.weight_places, strict=True):
        yield _tensor_op(Tensor(name, "dram", array.size, array.shape, "weight", at=at))
    for tensor in (*binary.tensors, *_buffers(binary)):
        yield _tensor_op(tensor)


def _tensor_op(tensor: Tensor) -> Operation:
    return TensorOp.create(properties={"record": TensorAttr(tensor)})


def _program_ops(binary: Binary, store: WeightStore) -> Iterator[Operation]:
    for number, model in enumerate(binary.segments):
        inputs, outputs = interface(model)
        record = isa.SegmentAttr(isa.Segment(number, tuple(inputs), tuple(outputs)))
        ref = RefAttr(StringAttr(store.add(np.frombuffer(model, np.uint8))))
        yield isa.SegmentOp.create(properties={"record": record, "model": ref})
    for layer, notes in layers(binary):
        texts = {name: StringAttr(text) for name, text in notes.items()}
        yield isa.LayerOp.create(properties={"record": isa.LayerAttr(layer)}, attributes=texts)
    by_number = comments(binary)
    for number, inst in enumerate(binary.instructions):
        yield isa.inst_op(inst, by_number.get(number, ""))
